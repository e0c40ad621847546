//! Captures of SMB at a host of the lab.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;

use host::kernel::ProcessSignal;
use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;
use host::wait;
use lab::topology::{LabSite, LabTopology};

/// Time limit for tcpdump to write its file's head, and for the file to stop growing.
const LIMIT: Duration = Duration::from_secs(20);

/// A file that has not grown for so long holds all packets: tcpdump writes each at once.
const QUIET: Duration = Duration::from_secs(1);

/// A running capture; dropping it ends it.
#[derive(Debug)]
pub(super) struct SmbCapture {
    process: RunningProcess,
    file: PathBuf,
}

impl SmbCapture {
    /// Starts to capture at a host's interface, and waits until packets are seen.
    ///
    /// # Errors
    /// Fails when tcpdump does not start.
    pub(super) fn start(
        run: &LabRun,
        topology: &LabTopology,
        logs: &Path,
        site: LabSite,
        file: PathBuf,
    ) -> Result<Self> {
        // What an earlier capture left would look like a head.
        let _ = fs::remove_file(&file);
        let launch = LaunchConfig {
            name: &format!("tcpdump-smb-{}", site.host()),
            namespace: &topology.namespace(site.host()),
            program: Path::new("tcpdump"),
            logs,
        };
        let path = file.display().to_string();
        let arguments = [
            "-i",
            "lan0",
            "-s",
            "0",
            "-U",
            "--immediate-mode",
            "-Z",
            "root",
            "-w",
            &path,
            "tcp port 445",
        ];
        let mut process = RunningProcess::start(run, &launch, arguments)?;
        process.wait_ready(LIMIT, "to open its file", || {
            Ok(fs::metadata(&file).is_ok_and(|metadata| metadata.len() > 0))
        })?;
        Ok(Self { process, file })
    }

    /// Ends the capture once no more packets come.
    ///
    /// # Errors
    /// Fails when tcpdump has ended by itself.
    pub(super) fn finish(&mut self) -> Result<()> {
        let mut last = (0, Instant::now());
        wait::until(LIMIT, "the end of a capture", || {
            self.process.check()?;
            let length = fs::metadata(&self.file)?.len();
            if length != last.0 {
                last = (length, Instant::now());
            }
            Ok((last.1.elapsed() > QUIET).then_some(()))
        })?;
        self.process.stop(ProcessSignal::Interrupt).map(drop)
    }
}
