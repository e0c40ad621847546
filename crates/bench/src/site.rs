//! Two sites of the lab with a link between them, and nodes or none: the common part of a lane.
//!
//! A lane of a protocol adds its server, its clients and its content. A site runs no server.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use vocab::SeededRandom;

use host::ProgramEnvironment;
use host::kernel::ProcessSignal;
use host::process::RunningProcess;
use host::run::LabRun;
use lab::nodes::{ExtraConfiguration, LabNodes};
use lab::topology::{LabSite, LabTopology, LinkArguments, OffloadMode};

/// Both sites.
pub(crate) struct BenchSite {
    // In the order in which they have to go.
    pub(crate) nodes: LabNodes,
    pub(crate) emulator: Option<RunningProcess>,
    pub(crate) topology: LabTopology,
    /// Directory of the processes' logs.
    pub(crate) logs: PathBuf,
    /// Directory of the clients' files.
    pub(crate) directory: PathBuf,
    pub(crate) run: LabRun,
}

impl BenchSite {
    /// Builds both sites with a directory of this name for the clients; no node runs yet, and there is no
    /// link.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub(crate) fn create(environment: &ProgramEnvironment, directory: &str) -> Result<Self> {
        let run = LabRun::create(environment)?;
        let logs = run.subdirectory("logs")?;
        let directory = run.subdirectory(directory)?;
        let topology =
            LabTopology::create_with(&run, &[LabSite::Near, LabSite::Far], OffloadMode::Kept)?;
        Ok(Self {
            nodes: LabNodes::prepare(&run, &topology, &logs)?,
            emulator: None,
            topology,
            logs,
            directory,
            run,
        })
    }

    /// Makes a link with these arguments of `trunkline emulate run` in place of the one before, and removes
    /// the nodes.
    ///
    /// # Errors
    /// Fails when the emulator does not start.
    pub(crate) fn set_words(&mut self, words: Vec<String>) -> Result<()> {
        self.nodes.stop()?;
        if let Some(mut emulator) = self.emulator.take() {
            emulator.stop(ProcessSignal::Terminate)?;
        }
        let words = LinkArguments(words);
        let emulator = self
            .topology
            .start_emulator(&self.run, &self.logs, &words)?;
        self.emulator = Some(emulator);
        Ok(())
    }

    /// Starts the nodes anew with these lines of credentials and accelerators.
    ///
    /// # Errors
    /// Fails when they do not start.
    pub(crate) fn start_nodes(
        &mut self,
        credentials: Vec<String>,
        accelerators: Vec<String>,
    ) -> Result<()> {
        self.nodes.stop()?;
        let extras = ExtraConfiguration {
            // A flow that ended a moment before its nodes keeps the one that goes last waiting.
            node: vec!["grace = \"1s\"".to_owned()],
            credentials,
            accelerators,
            ..ExtraConfiguration::default()
        };
        self.nodes.configure(&self.topology, &extras)?;
        self.nodes.start(&self.run)
    }

    /// Writes the file with an account of any domain. Returns the line that names it in the nodes'
    /// configuration.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub(crate) fn account_file(&self, user: &str, password: &str) -> Result<String> {
        let path = self.directory.join("accounts");
        let line = format!("*\\{user}:password:{password}\n");
        // Never open to others, not even as it is made.
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?
            .write_all(line.as_bytes())?;
        Ok(format!("accounts = \"{}\"", path.display()))
    }

    /// Checks that nodes and link still run.
    ///
    /// # Errors
    /// Fails when a process has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.nodes.check()?;
        match &mut self.emulator {
            Some(emulator) => emulator.check(),
            None => Ok(()),
        }
    }
}

/// Writes random bytes. No two runs share a byte, so that nothing a dictionary might keep can help.
///
/// # Errors
/// Fails when the file cannot be written.
pub(crate) fn write_random(path: &Path, bytes: u64, stream: u64) -> Result<()> {
    let mut file = fs::File::create(path).with_context(|| format!("writing {}", path.display()))?;
    let mut random = SeededRandom::for_stream(u64::from(std::process::id()), stream);
    let mut block = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(block.len() as u64) as usize;
        random.fill(&mut block[..count]);
        file.write_all(&block[..count])?;
        left -= count as u64;
    }
    Ok(())
}
