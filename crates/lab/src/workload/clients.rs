//! Client programs, and the comparison of received with sent files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::files::{FileSet, hash};
use super::{TransferDirection, WorkloadKind};
use crate::mailbox::MailboxPrograms;
use crate::servers::{SMB_SHARE, UPLOAD_DIRECTORY};
use crate::topology::{LabSite, LabTopology};
use host::{command, kernel, wait};

/// Time limit for a client in one workload: an hour is many times what the slowest published link
/// needs.
const CLIENT_LIMIT: Duration = Duration::from_secs(3600);

/// SMB clients in Python, one per process (`smb_clients.py`). They are smbprotocol and not our own
/// code: a judge of an accelerator must not share code with it.
pub const SMB_CLIENTS: &str = include_str!("smb_clients.py");

/// Request patterns of office programs and file managers, which `smb_clients.py` imports as the
/// module `smb_patterns`.
pub const SMB_PATTERNS: &str = include_str!("smb_patterns.py");

/// Size of one READ of the serial SMB client: as much as Windows XP's Explorer asks for at once.
pub const SERIAL_BLOCK_BYTES: u64 = 61_440;

/// Account with which the serial client logs in; the lab's smbd makes a guest of it.
const GUEST: &str = "nobody-known";

/// Environment in which a workload runs.
#[derive(Debug)]
pub struct WorkloadEnvironment<'a> {
    /// The network.
    pub topology: &'a LabTopology,
    /// The directory that the servers serve, on the server's side.
    pub server_files: &'a Path,
    /// A directory of the client's own.
    pub client_directory: &'a Path,
    /// Directory for the clients' own messages.
    pub logs: &'a Path,
    /// A Python with smbprotocol, for the serial SMB client.
    pub python: Option<&'a Path>,
    /// Mail clients, for the workloads of a mailbox.
    pub mail: Option<MailClientSettings<'a>>,
}

/// Mail clients of a run.
#[derive(Clone, Copy, Debug)]
pub struct MailClientSettings<'a> {
    /// The programs.
    pub programs: &'a MailboxPrograms,
    /// True if Outlook 2003 uses the compression and the chained answers of its server.
    pub is_optimised: bool,
}

/// A file as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileArrival {
    /// Its name.
    pub file: String,
    /// The hash it should have.
    pub expected: String,
    /// Actual hash; `None` when the file did not arrive.
    pub found: Option<String>,
}

impl FileArrival {
    /// Tells whether the file arrived as it was sent.
    #[must_use]
    pub fn is_identical(&self) -> bool {
        self.found.as_deref() == Some(&self.expected)
    }
}

/// Outcome of a run of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadOutcome {
    /// Each file of the set.
    pub arrivals: Vec<FileArrival>,
    /// Text of the clients' failure, if there was one.
    pub failure: Option<String>,
}

impl WorkloadEnvironment<'_> {
    /// Runs `workload` for `files` and compares the files that arrived.
    ///
    /// The directories it uses are emptied first; a client's failure is part of the outcome.
    ///
    /// # Errors
    /// Fails when the lab itself fails or is interrupted.
    pub fn run(
        &self,
        workload: WorkloadKind,
        files: &FileSet,
        label: &str,
    ) -> Result<WorkloadOutcome> {
        let source = self.client_directory.join("out");
        let target = self.client_directory.join("in");
        let uploads = self.server_files.join(UPLOAD_DIRECTORY);
        for directory in [&source, &target, &uploads] {
            empty(directory)?;
        }
        let arrived = match workload.way() {
            TransferDirection::Download => &target,
            TransferDirection::Upload => {
                files.write_to(&source)?;
                &uploads
            }
        };
        let log = self.logs.join(format!("client-{label}.log"));
        let failure = self
            .drive(workload, files, &source, &target, &log)?
            .map(|problem| format!("{problem} (see {})", log.display()));
        let arrivals = files
            .iter()
            .map(|(name, content)| FileArrival {
                file: name.to_owned(),
                expected: hash(content),
                found: fs::read(arrived.join(name)).ok().map(|bytes| hash(&bytes)),
            })
            .collect();
        for directory in [&source, &target, &uploads] {
            empty(directory)?;
        }
        Ok(WorkloadOutcome { arrivals, failure })
    }

    fn drive(
        &self,
        workload: WorkloadKind,
        files: &FileSet,
        source: &Path,
        target: &Path,
        log: &Path,
    ) -> Result<Option<String>> {
        let server = LabSite::Far.host_address();
        let names: Vec<&str> = files.iter().map(|(name, _)| name).collect();
        match workload {
            WorkloadKind::HttpDownload => {
                for name in names {
                    let mut curl = curl();
                    curl.arg(format!("http://{server}/{name}"))
                        .arg("-o")
                        .arg(target.join(name));
                    if let Some(problem) = self.finish("curl", curl, log)? {
                        return Ok(Some(problem));
                    }
                }
                Ok(None)
            }
            WorkloadKind::FtpDownload => {
                let mut curl = curl();
                for name in names {
                    curl.arg(format!("ftp://{server}/{name}"))
                        .arg("-o")
                        .arg(target.join(name));
                }
                self.finish("curl", curl, log)
            }
            WorkloadKind::FtpUpload => {
                let mut curl = curl();
                for name in names {
                    curl.arg("-T")
                        .arg(source.join(name))
                        .arg(format!("ftp://{server}/{UPLOAD_DIRECTORY}/{name}"));
                }
                self.finish("curl", curl, log)
            }
            WorkloadKind::SmbDownload => {
                let gets: Vec<String> = names.iter().map(|name| format!("get {name}")).collect();
                let script = format!("lcd {}; {}", target.display(), gets.join("; "));
                self.finish("smbclient", smbclient(&script), log)
            }
            WorkloadKind::SmbUpload => {
                let puts: Vec<String> = names.iter().map(|name| format!("put {name}")).collect();
                let script = format!(
                    "lcd {}; cd {UPLOAD_DIRECTORY}; {}",
                    source.display(),
                    puts.join("; ")
                );
                self.finish("smbclient", smbclient(&script), log)
            }
            WorkloadKind::SmbSerialDownload | WorkloadKind::SmbOffice => {
                let doing = match workload {
                    WorkloadKind::SmbOffice => "office",
                    _ => "serial-get",
                };
                for name in names {
                    let client = self.serial_client(doing, name, &target.join(name))?;
                    if let Some(problem) = self.finish("the serial SMB client", client, log)? {
                        return Ok(Some(problem));
                    }
                }
                Ok(None)
            }
            WorkloadKind::MapiXp | WorkloadKind::Mapi2003 => {
                for name in names {
                    let client = self.mail_client(workload, name, &target.join(name))?;
                    if let Some(problem) = self.finish("the mail client", client, log)? {
                        return Ok(Some(problem));
                    }
                }
                Ok(None)
            }
        }
    }

    /// The mail client that saves the attachment of the message with this subject.
    fn mail_client(&self, workload: WorkloadKind, subject: &str, local: &Path) -> Result<Command> {
        let mail = self.mail.context(
            "the mail client needs a Python with impacket; scripts/install.sh test makes one",
        )?;
        let name = match workload {
            WorkloadKind::MapiXp => "outlook-xp",
            _ => "outlook-2003",
        };
        let optimisation = match mail.is_optimised {
            true => "on",
            false => "off",
        };
        let mut client = command::new(mail.programs.python());
        client
            .arg("-B")
            .arg(mail.programs.clients())
            .args([name, "save-attachment", "--subject", subject])
            .args(["--server", &LabSite::Far.host_address().to_string()])
            .args(["--exchange-optimisation", optimisation])
            .arg("--save")
            .arg(local);
        Ok(client)
    }

    /// The serial SMB client for one file.
    fn serial_client(&self, doing: &str, name: &str, local: &Path) -> Result<Command> {
        let python = self.python.context(
            "the serial SMB client needs a Python with smbprotocol; scripts/install.sh test makes one",
        )?;
        let script = self.client_directory.join("smb_clients.py");
        fs::write(&script, SMB_CLIENTS)?;
        let order = json!({
            "do": doing,
            "server": LabSite::Far.host_address().to_string(),
            "share": SMB_SHARE,
            "user": GUEST,
            "password": "",
            "protection": "off",
            "path": name,
            "truth": self.server_files.join(name),
            "local": local,
            "block": SERIAL_BLOCK_BYTES,
            "seconds": CLIENT_LIMIT.as_secs(),
        });
        let mut client = command::new(python);
        client
            .arg(script)
            .arg(order.to_string())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        Ok(client)
    }

    /// Runs a client to its end in the client's namespace; says how it failed, if it did.
    fn finish(&self, name: &str, mut client: Command, log: &Path) -> Result<Option<String>> {
        let output = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        client
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        std::os::unix::process::CommandExt::process_group(&mut client, 0);
        kernel::prepare_child(&mut client, Some(&self.topology.namespace_file("client")))?;
        let mut child = client.spawn().with_context(|| format!("starting {name}"))?;
        let status = wait::until(CLIENT_LIMIT, name, || Ok(child.try_wait()?));
        if status.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let status = status?;
        Ok((!status.success()).then(|| format!("{name} failed ({status})")))
    }
}

/// A curl that ignores the user's own settings and prints only errors.
fn curl() -> Command {
    let mut curl = command::new("curl");
    curl.args(["--disable", "--silent", "--show-error", "--noproxy", "*"]);
    curl
}

/// An smbclient without the host's configuration, as a guest.
fn smbclient(script: &str) -> Command {
    let mut smbclient = command::new("smbclient");
    let share = format!("//{}/{SMB_SHARE}", LabSite::Far.host_address());
    // By default it gives up a READ after 20 s, and asks for a whole file of 5 MB at once.
    let patience = CLIENT_LIMIT.as_secs().to_string();
    smbclient.args([
        &share,
        "-N",
        "-s",
        "/dev/null",
        "-t",
        &patience,
        "-c",
        script,
    ]);
    smbclient
}

/// Makes `directory` if need be and removes the files in it.
fn empty(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let entries: Vec<PathBuf> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    for path in entries {
        if path.is_dir() {
            bail!("{} should hold only files", path.display());
        }
        fs::remove_file(&path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the end of a session whose server closes the connection when the client logs off, so many seconds
    /// after it began. Returns what the client writes to standard error if it fails.
    fn log_off_of_a_closed_connection(age_s: u32) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        let package = directory.path().join("smbprotocol");
        fs::create_dir(&package).unwrap();
        fs::write(package.join("__init__.py"), "").unwrap();
        let exceptions = "class SMBConnectionClosed(Exception):\n    pass\n";
        fs::write(package.join("exceptions.py"), exceptions).unwrap();
        fs::write(directory.path().join("smb_clients.py"), SMB_CLIENTS).unwrap();
        let script = format!(
            "import time
from smb_clients import Session
from smbprotocol.exceptions import SMBConnectionClosed

class ClosedConnection:
    def disconnect(self, close):
        if close:
            raise SMBConnectionClosed()

session = Session.__new__(Session)
session.connection = ClosedConnection()
session.opens = session.closes = 1
session.began = time.monotonic() - {age_s}
figures, leave = session.report(bytes=5)
assert figures == {{'bytes': 5, 'opens': 1, 'closes': 1}}
leave()
"
        );
        let output = command::new("python3")
            .args(["-B", "-c", &script])
            .current_dir(directory.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then_some(said)
    }

    #[test]
    fn server_that_closes_an_idle_connection_during_log_off_is_no_failure() {
        assert_eq!(log_off_of_a_closed_connection(61), None);
        let failure = log_off_of_a_closed_connection(10).unwrap();
        assert!(failure.contains("SMBConnectionClosed"), "{failure}");
    }
}
