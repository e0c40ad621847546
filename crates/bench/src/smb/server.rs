//! smbd of the benchmark: one account, an audit of opened and closed files, and shares for
//! smbtorture.
//!
//! The account `alice` is a name of SMB alone: smbd maps it to a user that every Debian has, and
//! keeps its password in the run's own directory. The bench's share refuses guests, so that a session
//! that was stripped of its identity is seen; smbtorture's shares take them, as the same user. The audit (vfs_full_audit(8)) writes a line for each file that
//! was opened or closed, with the session's account and the client's address as smbd sees them.
//! It takes one request of SMB 1 at a time (`max mux`), which makes a stock smbclient that speaks it as serial
//! as the clients of its day; SMB 2 knows credits instead.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;
use host::{command, kernel, wait};
use lab::servers::{SMB_PORT, smbd};
use lab::topology::{LabSite, LabTopology};

/// The account that clients use.
pub(super) const USER: &str = "alice";
/// Its password.
pub(super) const PASSWORD: &str = "correct-horse-1";
/// The share of the bench.
pub(super) const SHARE: &str = "files";
/// The same files, in a share that wants each message encrypted.
pub(super) const ENCRYPTED_SHARE: &str = "encrypted";

/// The share of office programs and file managers: it grants durable handles and has named streams.
pub(super) const OFFICE_SHARE: &str = "office";

/// Number of smbtorture suites at a time: each has shares of its own, because suites use the same
/// names.
pub(super) const TORTURE_LANES: usize = 4;

/// The share that smbtorture works in, and its second one, without named streams.
pub(super) fn torture_shares(lane: usize) -> [String; 2] {
    [format!("tort{lane}"), format!("tortplain{lane}")]
}

/// User that the account is mapped to: base-passwd has always had it, and it owns nothing.
const UNIX_USER: &str = "daemon";

/// Time limit for smbd to accept connections.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Time limit for smbd to log its answers.
const AUDIT_LIMIT: Duration = Duration::from_secs(10);

/// Number of SMB 1 requests that smbd takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestsAtOnce {
    /// One, so that a stock smbclient is serial.
    One,
    /// As many as smbd takes by default; cifs.ko asks for oplocks only if there are several.
    Usual,
}

/// The running smbd.
#[derive(Debug)]
pub(super) struct SmbServer {
    files: PathBuf,
    office_files: PathBuf,
    process: RunningProcess,
}

/// Operations of one client that smbd saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerObservation {
    /// Files and directories opened.
    pub(super) opens: usize,
    /// ... and closed.
    pub(super) closes: usize,
    /// Lines with another account than the client's own.
    pub(super) others: usize,
}

impl SmbServer {
    /// Starts smbd at the far site.
    ///
    /// # Errors
    /// When it does not come up; the message shows the end of its log.
    pub(super) fn start(
        run: &LabRun,
        topology: &LabTopology,
        logs: &Path,
        requests: RequestsAtOnce,
    ) -> Result<Self> {
        let site = LabSite::Far;
        let home = run.subdirectory("smb-server")?;
        let files = directory(&home, SHARE)?;
        let office_files = directory(&home, OFFICE_SHARE)?;
        let map = home.join("users");
        fs::write(&map, format!("{UNIX_USER} = {USER}\n"))?;
        let mut configuration = format!(
            "{global}    username map = {map}
    map to guest = Never
{mux}    log level = 1 full_audit:1
[{SHARE}]
    path = {files}
    read only = no
    vfs objects = full_audit
    full_audit:syslog = false
    full_audit:prefix = audit|%U|%I
    full_audit:success = create_file close
    full_audit:failure = none
    full_audit:log_secdesc = false
[{ENCRYPTED_SHARE}]
    path = {files}
    read only = no
    smb encrypt = required
[{OFFICE_SHARE}]
    path = {office}
    read only = no
    vfs objects = fruit streams_xattr
    fruit:metadata = stream
    fruit:resource = stream
    ea support = yes
    kernel share modes = no
    kernel oplocks = no
    posix locking = no
    durable handles = yes
",
            global = smbd::global_section(&home.join("state"), site)?,
            map = map.display(),
            mux = match requests {
                RequestsAtOnce::One => "    max mux = 1\n",
                RequestsAtOnce::Usual => "",
            },
            files = files.display(),
            office = office_files.display(),
        );
        for lane in 0..TORTURE_LANES {
            let [torture, plain] = torture_shares(lane);
            configuration += &format!(
                "[{torture}]
    path = {torture_path}
    read only = no
    guest ok = yes
    force user = {UNIX_USER}
    vfs objects = streams_xattr
    ea support = yes
    kernel share modes = no
    kernel oplocks = no
    posix locking = no
    durable handles = yes
[{plain}]
    path = {plain_path}
    read only = no
    guest ok = yes
    force user = {UNIX_USER}
",
                torture_path = directory(&home, &torture)?.display(),
                plain_path = directory(&home, &plain)?.display(),
            );
        }
        let path = home.join("smb.conf");
        fs::write(&path, configuration).with_context(|| format!("writing {}", path.display()))?;
        let configuration = path.display().to_string();
        command::run_with_input(
            "smbpasswd",
            ["-c", &configuration, "-a", "-s", UNIX_USER],
            &format!("{PASSWORD}\n{PASSWORD}\n"),
        )
        .context("making the account of the bench")?;
        let launch = LaunchConfig {
            name: "smbd",
            namespace: &topology.namespace(site.host()),
            program: Path::new("smbd"),
            logs,
        };
        let mut process = RunningProcess::start(run, &launch, smbd::arguments(&path))?;
        let address = std::net::SocketAddr::from((site.host_address(), SMB_PORT));
        let namespace = topology.namespace_file(site.host());
        process.wait_ready(START_LIMIT, "to accept connections", || {
            Ok(kernel::in_network_namespace(&namespace, || {
                std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(drop)
            })
            .is_ok())
        })?;
        Ok(Self {
            files,
            office_files,
            process,
        })
    }

    /// Directory of the bench's share on this machine's disk.
    pub(super) fn files(&self) -> &Path {
        &self.files
    }

    /// Directory of the share of office programs on this machine's disk.
    pub(super) fn office_files(&self) -> &Path {
        &self.office_files
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// Fails when it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Length of smbd's log so far.
    pub(super) fn mark(&self) -> usize {
        self.log().len()
    }

    /// Operations of the client since `mark`, once smbd has logged as many closes as the client had
    /// answers, or after a while.
    ///
    /// # Errors
    /// When the lab is interrupted.
    pub(super) fn account(&self, mark: usize, closes: usize) -> Result<ServerObservation> {
        let began = std::time::Instant::now();
        loop {
            wait::not_interrupted()?;
            let log = self.log();
            let witness = witness(&log[mark.min(log.len())..]);
            if witness.closes >= closes || began.elapsed() > AUDIT_LIMIT {
                return Ok(witness);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.process.log()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Makes a directory that any account may write in.
fn directory(home: &Path, name: &str) -> Result<PathBuf> {
    let path = home.join(name);
    fs::create_dir_all(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
    Ok(path)
}

/// Reads the audit's lines about the client's host: `audit|alice|198.18.1.2|close|ok|name`.
///
/// smbd also opens and closes files for its own reasons: a file counts as closed as often as it was
/// both opened by a client and closed.
fn witness(log: &str) -> ServerObservation {
    let client = LabSite::Near.host_address().to_string();
    let mut others = 0;
    let mut files: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for line in log.lines() {
        let Some((_, fields)) = line.split_once("audit|") else {
            continue;
        };
        let fields: Vec<&str> = fields.split('|').collect();
        let [account, address, operation, "ok", .., file] = fields[..] else {
            continue;
        };
        if address != client {
            continue;
        }
        if account != USER {
            others += 1;
            continue;
        }
        let [opens, closes] = files.entry(file).or_default();
        match operation {
            "create_file" => *opens += 1,
            "close" => *closes += 1,
            _ => {}
        }
    }
    ServerObservation {
        opens: files.values().map(|[opens, _]| opens).sum(),
        closes: files
            .values()
            .map(|[opens, closes]| opens.min(closes))
            .sum(),
        others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_separates_clients_and_counts_closes() {
        let log = "\
Copyright Andrew Tridgell
  audit|alice|198.18.1.2|create_file|ok|0x80|file|open|/x/a.bin
audit|alice|198.18.1.2|close|ok|/x
audit|alice|198.18.1.2|close|ok|/x/a.bin
audit|alice|198.18.1.2|close|ok|/x/a.bin
audit|alice|198.18.1.2|create_file|ok|0x80|file|open|/x/b.bin
audit|alice|198.18.2.2|close|ok|/x/beside-1.bin
audit|alice|198.18.1.2|close|fail (No such file)|/x/b
audit|nobody|198.18.1.2|create_file|ok|0x80|file|open|/x/a.bin
";
        assert_eq!(
            witness(log),
            ServerObservation {
                opens: 2,
                closes: 1,
                others: 1
            }
        );
    }
}
