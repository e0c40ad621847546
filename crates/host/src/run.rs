//! The run directory: everything one run of the lab makes, and the journal that says what.
//!
//! ```text
//! /run/trunkline-lab/     in a user namespace the lab's own /run, which goes with it
//!   ID/                   one run; ID also prefixes its namespaces: tlID-client, ...
//!     journal             a line of JSON for the owner and for each namespace and process
//!     ...                 server directories, captures, logs
//! ```
//! A line is written before the thing it names is made, so that a run killed at any moment leaves
//! a journal that covers all it left. [`LabRun::create`] first sweeps: a run whose owner (process
//! number and start time) is gone has its processes ended, its namespaces deleted and its directory
//! removed. Runs whose owner lives are not touched.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::kernel::{self, ProcessSignal};
use crate::{ProgramEnvironment, command};

/// Directory of named network namespaces (ip-netns(8)).
const NAMESPACE_DIRECTORY: &str = "/run/netns";

/// Directory of runs.
const BASE_DIRECTORY: &str = "/run/trunkline-lab";

/// A directory without a readable owner line is left alone this long: its maker may be between
/// making the directory and writing the line.
const UNOWNED_GRACE: Duration = Duration::from_secs(60);

/// Number of attempts to kill the processes left in a dead run's namespaces before the namespaces
/// are deleted anyway.
const KILL_ROUNDS: u32 = 50;
/// Between two such rounds.
const KILL_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JournalEntry {
    Owner { pid: u32, start: u64 },
    Namespace(String),
    Process { pid: u32, start: u64 },
}

/// One run of the lab; dropping it removes everything it made.
#[derive(Debug)]
pub struct LabRun {
    environment: ProgramEnvironment,
    id: String,
    directory: PathBuf,
    journal: Mutex<File>,
}

impl LabRun {
    /// Removes what dead runs left and opens a run of its own.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn create(environment: &ProgramEnvironment) -> Result<Self> {
        let base = Path::new(BASE_DIRECTORY);
        fs::create_dir_all(base).with_context(|| format!("making {}", base.display()))?;
        sweep(base);
        // The owner's number is unique among live runs, and dead ones have just been removed; a
        // process with several runs (the tests) counts on.
        let pid = std::process::id();
        let (id, directory) = (0..)
            .map(|count| format!("{pid:x}{}", suffix(count)))
            .map(|id| (base.join(&id), id))
            .find_map(|(directory, id)| match fs::create_dir(&directory) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
                other => Some(other.map(|()| (id, directory))),
            })
            .expect("one of all numbers is free")
            .with_context(|| format!("making a run directory in {}", base.display()))?;
        let journal = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(directory.join("journal"))?;
        let run = Self {
            environment: environment.clone(),
            id,
            directory,
            journal: Mutex::new(journal),
        };
        let start = kernel::process_start(pid).unwrap_or_default();
        run.note(&JournalEntry::Owner { pid, start })?;
        Ok(run)
    }

    /// Returns the environment of the lab.
    #[must_use]
    pub fn environment(&self) -> &ProgramEnvironment {
        &self.environment
    }

    /// The run's short name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The run's private directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes (if need be) and names a directory of this run.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(path)
    }

    /// Makes the network namespace `tl<id>-<role>` and returns its name.
    ///
    /// # Errors
    /// When the kernel or `ip` refuses.
    pub fn make_namespace(&self, role: &str) -> Result<String> {
        let name = format!("tl{}-{role}", self.id);
        self.note(&JournalEntry::Namespace(name.clone()))?;
        command::run("ip", ["netns", "add", &name])?;
        Ok(name)
    }

    /// Records a process that this run has started.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub fn note_process(&self, pid: u32) -> Result<()> {
        match kernel::process_start(pid) {
            Some(start) => self.note(&JournalEntry::Process { pid, start }),
            None => Ok(()),
        }
    }

    fn note(&self, entry: &JournalEntry) -> Result<()> {
        let mut line = serde_json::to_string(entry)?;
        line.push('\n');
        let mut journal = self
            .journal
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        journal
            .write_all(line.as_bytes())
            .context("writing the journal of this run")
    }
}

impl Drop for LabRun {
    fn drop(&mut self) {
        remove_leftovers(&self.directory);
    }
}

/// Returns the path of a named network namespace.
#[must_use]
pub fn namespace_path(name: &str) -> PathBuf {
    Path::new(NAMESPACE_DIRECTORY).join(name)
}

/// The processes that are in a named namespace now, this one apart.
#[must_use]
pub fn processes_in(namespace: &str) -> Vec<u32> {
    let list = command::run("ip", ["netns", "pids", namespace]).unwrap_or_default();
    list.lines()
        .filter_map(|line| line.trim().parse().ok())
        .filter(|pid| *pid != std::process::id())
        .collect()
}

/// A suffix for each further run of one process: "", "b", "c", ...
fn suffix(count: u32) -> String {
    match count {
        0 => String::new(),
        _ => format!("r{count}"),
    }
}

/// Removes what runs with a dead owner left in `base`.
fn sweep(base: &Path) {
    let Ok(runs) = fs::read_dir(base) else { return };
    for directory in runs.flatten().map(|run| run.path()) {
        if !owner_is_alive(&directory) {
            tracing::info!(run = %directory.display(), "removing what a dead run left");
            remove_leftovers(&directory);
        }
    }
}

fn entries(directory: &Path) -> Vec<JournalEntry> {
    let text = fs::read_to_string(directory.join("journal")).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn owner_is_alive(directory: &Path) -> bool {
    let owner = entries(directory)
        .into_iter()
        .find_map(|entry| match entry {
            JournalEntry::Owner { pid, start } => Some((pid, start)),
            JournalEntry::Namespace(_) | JournalEntry::Process { .. } => None,
        });
    match owner {
        Some((pid, start)) => kernel::process_start(pid) == Some(start),
        None => fs::metadata(directory)
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|made| made.elapsed().is_ok_and(|age| age < UNOWNED_GRACE)),
    }
}

/// Ends the processes, deletes the namespaces and removes the directory that the journal in
/// `directory` names. Continues after failures: the rest is still worth removing.
fn remove_leftovers(directory: &Path) {
    let entries = entries(directory);
    for entry in entries.iter().rev() {
        if let JournalEntry::Process { pid, start } = entry
            && kernel::process_start(*pid) == Some(*start)
        {
            let _ = kernel::send_signal(*pid, ProcessSignal::Kill);
        }
    }
    for entry in entries.iter().rev() {
        let JournalEntry::Namespace(name) = entry else {
            continue;
        };
        if !namespace_path(name).exists() {
            continue;
        }
        // Servers' own children are in no journal, but they are in a namespace that only this
        // run has ever used. A node's watchdog may start it again between two looks.
        for _ in 0..KILL_ROUNDS {
            let rest = processes_in(name);
            if rest.is_empty() {
                break;
            }
            for pid in rest {
                let _ = kernel::send_signal(pid, ProcessSignal::Kill);
            }
            std::thread::sleep(KILL_PAUSE);
        }
        let deleted = command::run("ip", ["netns", "del", name]);
        // Another run that starts at this moment removes the same leftovers.
        if let Err(error) = deleted
            && namespace_path(name).exists()
        {
            tracing::warn!(name, %error, "a namespace could not be deleted");
        }
    }
    if let Err(error) = fs::remove_dir_all(directory) {
        tracing::warn!(directory = %directory.display(), %error, "a run directory could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_journal(base: &Path, name: &str, entries: &[JournalEntry]) -> PathBuf {
        let directory = base.join(name);
        fs::create_dir(&directory).unwrap();
        let text: String = entries
            .iter()
            .map(|entry| serde_json::to_string(entry).unwrap() + "\n")
            .collect();
        fs::write(directory.join("journal"), text).unwrap();
        directory
    }

    #[test]
    fn the_sweep_removes_only_what_dead_runs_left() {
        let base = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let start = kernel::process_start(pid).unwrap();
        let mut orphan = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let orphan_start = kernel::process_start(orphan.id()).unwrap();
        let alive = write_journal(base.path(), "alive", &[JournalEntry::Owner { pid, start }]);
        let dead = write_journal(
            base.path(),
            "dead",
            &[
                JournalEntry::Owner {
                    pid,
                    start: start + 1,
                },
                JournalEntry::Process {
                    pid: orphan.id(),
                    start: orphan_start,
                },
            ],
        );
        let fresh = write_journal(base.path(), "fresh", &[]);
        sweep(base.path());
        assert!(alive.exists());
        assert!(!dead.exists());
        assert!(fresh.exists());
        assert!(!orphan.wait().unwrap().success());
    }

    #[test]
    fn process_with_a_reused_number_is_spared() {
        let base = tempfile::tempdir().unwrap();
        let mut bystander = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let start = kernel::process_start(bystander.id()).unwrap();
        write_journal(
            base.path(),
            "dead",
            &[
                JournalEntry::Owner { pid: 1, start: 0 },
                JournalEntry::Process {
                    pid: bystander.id(),
                    start: start + 7,
                },
            ],
        );
        sweep(base.path());
        assert_eq!(kernel::process_start(bystander.id()), Some(start));
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    }
}
