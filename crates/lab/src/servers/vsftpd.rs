//! vsftpd: anonymous FTP, passive and active, with uploads, without any user of the host's.

use std::path::Path;

use anyhow::Result;

/// The configuration and the arguments that make vsftpd use it.
pub(super) fn configuration(
    home: &Path,
    files: &Path,
    logs: &Path,
    role: &str,
) -> Result<(String, Vec<String>)> {
    let empty = home.join("vsftpd-empty");
    std::fs::create_dir_all(&empty)?;
    let log = logs.join(format!("{role}-vsftpd-session.log"));
    let port = super::FTP_PORT;
    // run_as_launching_user: no chroot and no change of user, which a namespace with one user id
    // could not do; the log-in directory is anon_root. seccomp_sandbox kills sessions in
    // containers whose kernels use system calls that vsftpd 3.0.3 does not know.
    let text = format!(
        "listen=NO
listen_ipv6=YES
listen_port={port}
background=NO
anonymous_enable=YES
no_anon_password=YES
local_enable=NO
run_as_launching_user=YES
anon_root={files}
ftp_username=root
write_enable=YES
anon_upload_enable=YES
anon_other_write_enable=YES
anon_umask=022
anon_world_readable_only=NO
secure_chroot_dir={empty}
seccomp_sandbox=NO
pasv_min_port=30000
pasv_max_port=30999
port_enable=YES
connect_from_port_20=NO
xferlog_enable=YES
log_ftp_protocol=YES
vsftpd_log_file={log}
max_clients=0
max_per_ip=0
",
        files = files.display(),
        empty = empty.display(),
        log = log.display(),
    );
    Ok((text, vec![home.join("vsftpd.conf").display().to_string()]))
}
