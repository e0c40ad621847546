//! Real servers, unmodified, in private directories: nginx, vsftpd and smbd.
//!
//! Each runs in the foreground in the server's namespace with a configuration of its own, writes
//! nothing outside the run directory (no syslog, no pid files elsewhere), is ready when a
//! connection to it succeeds, and is stopped by its number.
//!
//! All three run as the user who started the lab, so that one configuration serves root and a user
//! namespace with a single user id alike.

pub mod certificates;
mod nginx;
pub mod smbd;
mod vsftpd;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::topology::{LabSite, LabTopology};
use host::kernel::{self, ProcessSignal};
use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;

/// nginx's port.
pub const HTTP_PORT: u16 = 80;
/// vsftpd's control port.
pub const FTP_PORT: u16 = 21;
/// smbd's port.
pub const SMB_PORT: u16 = 445;
/// Port of the mail server's endpoint mapper, which names its other ports.
pub const ENDPOINT_MAPPER_PORT: u16 = 135;
/// The share that smbd offers to guests.
pub const SMB_SHARE: &str = "files";
/// The directory below the served one that takes uploads.
pub const UPLOAD_DIRECTORY: &str = "upload";

/// Time limit for a server to accept connections.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Time limit for one attempt to connect; the servers are one veth away.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A kind of server that the lab knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerKind {
    /// nginx.
    Http,
    /// vsftpd.
    Ftp,
    /// Samba's smbd.
    Smb,
    /// The lab's mail server, which is started for each cell ([`crate::mailbox`]).
    Mail,
}

impl ServerKind {
    /// The server's program.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            ServerKind::Http => "nginx",
            ServerKind::Ftp => "vsftpd",
            ServerKind::Smb => "smbd",
            ServerKind::Mail => "python3",
        }
    }

    /// The port it listens on.
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            ServerKind::Http => HTTP_PORT,
            ServerKind::Ftp => FTP_PORT,
            ServerKind::Smb => SMB_PORT,
            ServerKind::Mail => ENDPOINT_MAPPER_PORT,
        }
    }
}

/// The running servers of one site.
#[derive(Debug)]
pub struct SiteServers {
    files: PathBuf,
    processes: Vec<RunningProcess>,
}

impl SiteServers {
    /// Starts `kinds` at `site`; all serve one directory. Mail servers are left out.
    ///
    /// # Errors
    /// When one of them does not come up; the message shows the end of its log.
    pub fn start(
        run: &LabRun,
        topology: &LabTopology,
        site: LabSite,
        logs: &Path,
        kinds: &[ServerKind],
    ) -> Result<Self> {
        let role = site.host();
        let home = run.subdirectory(role)?;
        let files = run.subdirectory(&format!("{role}/files"))?;
        std::fs::create_dir_all(files.join(UPLOAD_DIRECTORY))?;
        let mut servers = Self {
            files: files.clone(),
            processes: Vec::new(),
        };
        for kind in kinds {
            let (configuration, arguments) = match kind {
                ServerKind::Http => nginx::configuration(&home, &files, logs, role)?,
                ServerKind::Ftp => vsftpd::configuration(&home, &files, logs, role)?,
                ServerKind::Smb => smbd::configuration(&home, &files, site)?,
                // It serves no directory: its mailbox is described when a cell starts it.
                ServerKind::Mail => continue,
            };
            let path = home.join(format!("{}.conf", kind.program()));
            std::fs::write(&path, configuration)
                .with_context(|| format!("writing {}", path.display()))?;
            let launch = LaunchConfig {
                name: &format!("{role}-{}", kind.program()),
                namespace: &topology.namespace(role),
                program: Path::new(kind.program()),
                logs,
            };
            let mut process = RunningProcess::start(run, &launch, arguments)?;
            let address = SocketAddr::from((site.host_address(), kind.port()));
            let namespace = topology.namespace_file(role);
            process.wait_ready(START_LIMIT, "to accept connections", || {
                Ok(kernel::in_network_namespace(&namespace, || {
                    TcpStream::connect_timeout(&address, CONNECT_LIMIT).map(drop)
                })
                .is_ok())
            })?;
            servers.processes.push(process);
        }
        Ok(servers)
    }

    /// The directory that all of them serve.
    #[must_use]
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// The directory that uploads arrive in.
    #[must_use]
    pub fn uploads(&self) -> PathBuf {
        self.files.join(UPLOAD_DIRECTORY)
    }

    /// Stops all of them.
    ///
    /// # Errors
    /// When one cannot be stopped.
    pub fn stop(&mut self) -> Result<()> {
        for process in &mut self.processes {
            process.stop(ProcessSignal::Terminate)?;
        }
        Ok(())
    }

    /// Checks that all of them still run.
    ///
    /// # Errors
    /// Fails when one has ended.
    pub fn check(&mut self) -> Result<()> {
        self.processes
            .iter_mut()
            .try_for_each(RunningProcess::check)
    }
}
