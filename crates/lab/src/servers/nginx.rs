//! nginx: one process that serves static files over HTTP on IPv4 and IPv6, with the client's
//! address in its log.

use std::path::Path;

use anyhow::Result;

/// The configuration and the arguments that make nginx use it.
pub(super) fn configuration(
    home: &Path,
    files: &Path,
    logs: &Path,
    role: &str,
) -> Result<(String, Vec<String>)> {
    let scratch = home.join("nginx");
    std::fs::create_dir_all(&scratch)?;
    let scratch = scratch.display();
    let log = logs.join(format!("{role}-nginx-access.log"));
    let port = super::HTTP_PORT;
    // One process: a worker would outlive a master that was killed, and would change its user.
    // The user is named because nginx chowns its directories to the one it was built with.
    let text = format!(
        "user root;
daemon off;
master_process off;
pid {scratch}/pid;
error_log stderr warn;
events {{ worker_connections 2048; }}
http {{
    log_format lab '$time_iso8601 $remote_addr $remote_port \"$request\" $status $body_bytes_sent';
    access_log {log} lab;
    client_body_temp_path {scratch}/body;
    proxy_temp_path {scratch}/proxy;
    fastcgi_temp_path {scratch}/fastcgi;
    uwsgi_temp_path {scratch}/uwsgi;
    scgi_temp_path {scratch}/scgi;
    default_type application/octet-stream;
    sendfile on;
    server {{
        listen {port} backlog=1024;
        listen [::]:{port} backlog=1024;
        root {files};
    }}
}}
",
        log = log.display(),
        files = files.display(),
    );
    let arguments = vec![
        "-c".to_owned(),
        home.join("nginx.conf").display().to_string(),
        "-p".to_owned(),
        scratch.to_string(),
        "-e".to_owned(),
        "stderr".to_owned(),
    ];
    Ok((text, arguments))
}
