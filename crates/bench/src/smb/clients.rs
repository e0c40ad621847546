//! Runner of the client programs: `smb_clients.py` in a Python with smbprotocol, in a lab's namespace.
//!
//! The serial clients are smbprotocol and not our own code: a judge of an accelerator must not
//! share code with it, least of all the code that checks signatures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::server::{PASSWORD, SHARE, USER};
use host::{command, kernel, wait};
use lab::topology::{LabSite, LabTopology};
use lab::workload::{SMB_CLIENTS, SMB_PATTERNS};

/// A client that takes longer than this for one cell hangs: 1,000 small files at the longest delay
/// without Trunkline take half an hour.
const LIMIT: Duration = Duration::from_secs(3_600);

/// Time limit for a client to end after the request to do so.
const END_LIMIT: Duration = Duration::from_secs(30);

/// The Python that clients run in.
#[derive(Clone, Debug)]
pub struct ClientPython {
    python: PathBuf,
}

/// Outcome that a client reports.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ClientOutcome {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    #[serde(default)]
    pub(super) files: usize,
    /// Number of times that it has waited for answers.
    #[serde(default)]
    pub(super) requests: u64,
    pub(super) opens: usize,
    pub(super) closes: usize,
    pub(super) is_identical: bool,
    #[serde(default)]
    pub(super) open_seconds: f64,
    #[serde(default)]
    pub(super) save_seconds: f64,
}

impl ClientPython {
    /// Checks that this Python has the modules that the clients need.
    ///
    /// # Errors
    /// Fails when it has not; the message says how to get them.
    pub fn find(python: &Path) -> Result<Self> {
        let found = Command::new(python)
            .args(["-c", "import smbprotocol"])
            .output()
            .is_ok_and(|output| output.status.success());
        ensure!(
            found,
            "{} is no Python with smbprotocol, which the serial clients are; scripts/install.sh \
             test makes one, and TRUNKLINE_SMB_PYTHON names another",
            python.display()
        );
        Ok(Self {
            python: python.to_owned(),
        })
    }

    /// Carries out `order`, in the namespace of this host, and inspects the result while the
    /// client's session still exists.
    ///
    /// # Errors
    /// Fails when the client fails; the message has the end of its output.
    pub(super) fn run<T>(
        &self,
        place: &ClientPlace<'_>,
        order: &Value,
        look: impl FnOnce(&ClientOutcome) -> Result<T>,
    ) -> Result<(ClientOutcome, T)> {
        let name = order["do"].as_str().unwrap_or_default().to_owned();
        let (mut command, log) = self.command(place, order)?;
        let child = command
            .stdin(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting the client {name}"))?;
        let mut running = RunningClient {
            child,
            output: place.output(),
        };
        let said = running.wait_for_a_line(&name, &log)?;
        let outcome: ClientOutcome =
            serde_json::from_str(&said).with_context(|| format!("{name} said: {said}"))?;
        let seen = look(&outcome)?;
        running.finish(&name)?;
        Ok((outcome, seen))
    }

    /// Starts the second client, beside the server, and waits until it has begun.
    ///
    /// # Errors
    /// When it does not begin.
    pub(super) fn write_beside(
        &self,
        place: &ClientPlace<'_>,
        order: &Value,
    ) -> Result<SecondClient> {
        let (mut command, log) = self.command(place, order)?;
        let child = command.stdin(Stdio::piped()).spawn()?;
        let mut running = RunningClient {
            child,
            output: place.output(),
        };
        running.wait_for_a_line("the second client", &log)?;
        Ok(SecondClient(running))
    }

    fn command(&self, place: &ClientPlace<'_>, order: &Value) -> Result<(Command, PathBuf)> {
        let script = place.directory.join("smb_clients.py");
        fs::write(&script, SMB_CLIENTS)?;
        fs::write(place.directory.join("smb_patterns.py"), SMB_PATTERNS)?;
        let log = place.directory.join(format!("{}.log", place.host));
        // smbnetfs mounts; with the process its mount namespace and the mount go.
        let mut command = command::new("unshare");
        command
            .args(["--mount", "--"])
            .arg(&self.python)
            .arg(&script)
            .arg(order.to_string())
            .current_dir(place.directory)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(fs::File::create(place.output())?)
            .stderr(fs::File::create(&log)?);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let namespace = place.topology.namespace_file(place.host);
        kernel::prepare_child(&mut command, Some(&namespace))?;
        Ok((command, log))
    }
}

/// Place in which a client runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientPlace<'a> {
    pub(super) topology: &'a LabTopology,
    /// The host's role, `client` or `server`.
    pub(super) host: &'a str,
    /// A directory of the client's own.
    pub(super) directory: &'a Path,
}

impl ClientPlace<'_> {
    /// Fields that every order has.
    pub(super) fn order(&self, doing: &str, protection: &str, path: &str) -> Value {
        json!({
            "do": doing,
            "server": LabSite::Far.host_address().to_string(),
            "share": SHARE,
            "user": USER,
            "password": PASSWORD,
            "protection": protection,
            "path": path,
        })
    }

    fn output(&self) -> PathBuf {
        self.directory.join(format!("{}.out", self.host))
    }
}

/// A client at work; dropping it ends it.
#[derive(Debug)]
struct RunningClient {
    child: Child,
    output: PathBuf,
}

impl RunningClient {
    /// Waits until the client has written a line, and returns it.
    fn wait_for_a_line(&mut self, name: &str, log: &Path) -> Result<String> {
        wait::until(LIMIT, name, || {
            let ended = self.child.try_wait()?;
            let said = fs::read_to_string(&self.output).unwrap_or_default();
            if let Some((line, _)) = said.split_once('\n') {
                return Ok(Some(line.to_owned()));
            }
            if let Some(status) = ended {
                let errors = fs::read_to_string(log).unwrap_or_default();
                let last: Vec<&str> = errors.lines().rev().take(3).collect();
                bail!("{name} failed ({status}): {}", last.join(" < "));
            }
            Ok(None)
        })
    }

    /// Ends the client.
    fn finish(&mut self, name: &str) -> Result<()> {
        drop(self.child.stdin.take());
        let status = wait::until(END_LIMIT, name, || Ok(self.child.try_wait()?))?;
        ensure!(status.success(), "{name} did not end well ({status})");
        Ok(())
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The second client; dropping it ends it.
#[derive(Debug)]
pub(super) struct SecondClient(RunningClient);

impl SecondClient {
    /// Ends it, and says how often it has written.
    ///
    /// # Errors
    /// When it had ended before, or does not end well.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.0.finish("the second client")?;
        let said = fs::read_to_string(&self.0.output)?;
        let last: Value = serde_json::from_str(said.lines().last().unwrap_or_default())?;
        last["writes"]
            .as_u64()
            .with_context(|| format!("the second client said: {said}"))
    }
}
