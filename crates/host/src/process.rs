//! A long-lived process of the lab: a server, a node, the emulator, a capture.
//!
//! It runs in a network namespace, writes to a log file of its own, is known to the journal, dies
//! with the lab, and is stopped by its number when dropped.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::kernel::{self, ProcessSignal};
use crate::run::{LabRun, namespace_path};
use crate::{command, wait};

/// A process that has not ended this long after it was asked to is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Number of log lines in an error message.
const LOG_LINES_SHOWN: usize = 12;

/// A running process; dropping it stops it.
#[derive(Debug)]
pub struct RunningProcess {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

/// Program to start, and where.
#[derive(Debug)]
pub struct LaunchConfig<'a> {
    /// Name in messages; also its log's file name.
    pub name: &'a str,
    /// The network namespace it runs in.
    pub namespace: &'a str,
    /// The program: a path, or a name to find.
    pub program: &'a Path,
    /// Directory of its log, which is appended to when the process is started again.
    pub logs: &'a Path,
}

impl RunningProcess {
    /// Starts a process whose standard output and error go to its log.
    ///
    /// # Errors
    /// When the program cannot be started or the log cannot be opened.
    pub fn start<A: AsRef<OsStr>>(
        run: &LabRun,
        launch: &LaunchConfig<'_>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self> {
        let path = launch.logs.join(format!("{}.log", launch.name));
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        let mut command = command::new(launch.program);
        command
            .args(arguments)
            // vsftpd serves its standard input if that is a socket, and fails if it is closed.
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // A group of its own keeps a terminal's Ctrl-C from ending it before the lab does.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        kernel::prepare_child(&mut command, Some(&namespace_path(launch.namespace)))
            .with_context(|| format!("joining the namespace {}", launch.namespace))?;
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", launch.name))?;
        let process = Self {
            name: launch.name.to_owned(),
            child,
            log: path,
            ended: None,
        };
        run.note_process(process.pid())?;
        Ok(process)
    }

    /// The process's number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of its log.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: ProcessSignal) -> Result<()> {
        kernel::send_signal(self.pid(), signal)
            .with_context(|| format!("sending {signal:?} to {}", self.name))
    }

    /// Returns if the process still runs.
    ///
    /// # Errors
    /// When it has ended; the message shows the end of its log.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.poll_end()? {
            bail!(
                "{} ended by itself ({status}):\n{}",
                self.name,
                self.log_end()
            );
        }
        Ok(())
    }

    /// Waits until `look` finds something, and fails at once if the process ends meanwhile.
    ///
    /// # Errors
    /// When it ends, or after `limit`.
    pub fn wait_ready(
        &mut self,
        limit: Duration,
        what: &str,
        mut look: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let what = format!("{} {what}", self.name);
        wait::until(limit, &what, || {
            self.check()?;
            Ok(look()?.then_some(()))
        })
        .with_context(|| format!("the end of its log:\n{}", self.log_end()))
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Errors
    /// After `limit`, or when the lab is interrupted.
    pub fn wait_end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("{} to end", self.name);
        wait::until(limit, &what, || self.poll_end())
    }

    /// Asks the process to stop by `signal` and waits for its end; kills it if it does not.
    ///
    /// # Errors
    /// When its end cannot be waited for.
    pub fn stop(&mut self, signal: ProcessSignal) -> Result<ExitStatus> {
        if let Some(status) = self.poll_end()? {
            return Ok(status);
        }
        let _ = self.signal(signal);
        // A frozen process would sleep through its end.
        let _ = self.signal(ProcessSignal::Thaw);
        let start = std::time::Instant::now();
        // Not `wait::until`: an interrupted lab stops its processes with the same patience.
        while start.elapsed() < STOP_LIMIT {
            if let Some(status) = self.poll_end()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        tracing::warn!(name = self.name, "did not stop when asked; killing it");
        self.child.kill()?;
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    fn poll_end(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// The last lines that the process wrote.
    #[must_use]
    pub fn log_end(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        if let Err(error) = self.stop(ProcessSignal::Terminate) {
            tracing::warn!(name = self.name, %error, "could not be stopped");
        }
    }
}
