//! nginx as the origin: its defaults and validators, gzip for text, and directories with policies for caches.
//!
//! | path | policy |
//! | --- | --- |
//! | `/page/index.html`, `/checked/` | `Cache-Control: no-cache` |
//! | other files of `/page/`, `/fresh/` | `max-age=3600` |
//! | `/once/` | `no-store` |

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use vocab::SeededRandom;

use host::kernel::{self, ProcessSignal};
use host::process::{LaunchConfig, RunningProcess};
use host::run;
use host::run::LabRun;
use lab::servers::{HTTP_PORT, certificates};
use lab::topology::{LabSite, LabTopology};

/// The name that pages are asked for by.
pub(super) const SITE_NAME: &str = "www.corp.example";
/// The port of the origin's TLS.
const TLS_PORT: u16 = 443;
/// How long nginx may take until it accepts connections.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long one attempt to connect may take; the server is one veth away.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A running nginx; dropping it stops it.
#[derive(Debug)]
pub(super) struct OriginServer {
    process: RunningProcess,
    files: PathBuf,
    log: PathBuf,
    /// The certificate of the origin's own authority, where it has TLS.
    authority: Option<PathBuf>,
}

impl OriginServer {
    /// Starts nginx at the far site, with TLS where openssl makes a certificate.
    ///
    /// # Errors
    /// When it does not come up; the message shows the end of its log.
    pub(super) fn start(
        run: &LabRun,
        topology: &LabTopology,
        logs: &Path,
        has_tls: bool,
    ) -> Result<Self> {
        let site = LabSite::Far;
        let home = run.subdirectory("origin")?;
        let files = run.subdirectory("origin/files")?;
        let log = logs.join("origin-access.log");
        let authority = match has_tls {
            true => Some(certificates::make(&home, SITE_NAME)?),
            false => None,
        };
        let configuration = home.join("nginx.conf");
        fs::write(&configuration, text(&home, &files, &log, has_tls))?;
        let launch = LaunchConfig {
            name: "origin",
            namespace: &topology.namespace(site.host()),
            program: Path::new("nginx"),
            logs,
        };
        let path = |path: &Path| path.display().to_string();
        let arguments = [
            "-c",
            &path(&configuration),
            "-p",
            &path(&home),
            "-e",
            "stderr",
        ];
        let mut process = RunningProcess::start(run, &launch, arguments)?;
        let address = SocketAddr::from((site.host_address(), HTTP_PORT));
        let namespace = run::namespace_path(&topology.namespace(site.host()));
        process.wait_ready(START_LIMIT, "to accept connections", || {
            let connect = || TcpStream::connect_timeout(&address, CONNECT_LIMIT).map(drop);
            Ok(kernel::in_network_namespace(&namespace, connect).is_ok())
        })?;
        Ok(Self {
            process,
            files,
            log,
            authority,
        })
    }

    /// The directory that it serves.
    pub(super) fn files(&self) -> &Path {
        &self.files
    }

    /// The certificate of the origin's own authority.
    pub(super) fn authority(&self) -> Option<&Path> {
        self.authority.as_deref()
    }

    /// Puts random bytes below the served directory, and gives them.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn publish(&self, path: &str, bytes: usize, seed: u64) -> Result<Vec<u8>> {
        let mut content = vec![0; bytes];
        // No two runs share a byte, so nothing that a dictionary might keep can help.
        SeededRandom::for_stream(u64::from(std::process::id()), seed).fill(&mut content);
        let file = self.files.join(path.trim_start_matches('/'));
        let parent = file.parent().context("every file is in a directory")?;
        fs::create_dir_all(parent)?;
        fs::write(&file, &content).with_context(|| format!("writing {}", file.display()))?;
        Ok(content)
    }

    /// Requests for a path that it has answered, by its log.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub(super) fn requests_for(&self, path: &str) -> Result<usize> {
        let text = fs::read_to_string(&self.log)
            .with_context(|| format!("reading {}", self.log.display()))?;
        let asked = format!("\"GET {path} ");
        Ok(text.lines().filter(|line| line.contains(&asked)).count())
    }

    /// Goes on if it still runs.
    ///
    /// # Errors
    /// When it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.process.check()
    }
}

impl Drop for OriginServer {
    fn drop(&mut self) {
        // It is ended with the run's namespaces at the latest.
        let _ = self.process.stop(ProcessSignal::Terminate);
    }
}

/// The configuration. One process, as in the lab's: a worker would outlive a master that was killed.
fn text(home: &Path, files: &Path, log: &Path, has_tls: bool) -> String {
    let (home, files, log) = (home.display(), files.display(), log.display());
    let tls = match has_tls {
        true => format!(
            "        listen {TLS_PORT} ssl http2 backlog=4096;\n        ssl_certificate {home}/leaf.pem;\n        \
             ssl_certificate_key {home}/leaf.key;\n"
        ),
        false => String::new(),
    };
    format!(
        "user root;
daemon off;
master_process off;
pid {home}/pid;
error_log stderr warn;
events {{ worker_connections 16384; }}
http {{
    log_format lab '$time_iso8601 $remote_addr \"$request\" $status $body_bytes_sent';
    access_log {log} lab;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    default_type application/octet-stream;
    types {{
        text/html html;
        text/css css;
        application/javascript js;
        image/bmp bmp;
        font/woff2 woff2;
    }}
    sendfile on;
    keepalive_timeout 600;
    gzip on;
    gzip_types text/css application/javascript;
    server {{
        listen {HTTP_PORT} backlog=4096;
{tls}        server_name {SITE_NAME};
        root {files};
        location = /page/index.html {{ add_header Cache-Control no-cache; }}
        location /checked/ {{ add_header Cache-Control no-cache; }}
        location /page/ {{ add_header Cache-Control max-age=3600; }}
        location /fresh/ {{ add_header Cache-Control max-age=3600; }}
        location /once/ {{ add_header Cache-Control no-store; }}
    }}
}}
"
    )
}
