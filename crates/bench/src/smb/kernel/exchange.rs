//! A mount of the share in the machine, the actions on it, and their comparison with the server's
//! files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use vocab::SeededRandom;

use super::super::cells::{SMALL_FILE_BYTES, SMALL_FILES};
use super::super::server::{PASSWORD, SHARE, USER};
use super::super::stand::{SMALL, SMALL_UPLOADS, SmbLane};
use super::{ACTION_LIMIT, BLOCK_BYTES, BULK_BYTES, FILES, KernelClientKind};
use host::command;
use lab::machine::VirtualMachine;
use lab::topology::LabSite;

/// Files and directories of the share.
pub(super) const BULK: &str = "kernel-bulk.bin";
pub(super) const BULK_UPLOAD: &str = "kernel-upload.bin";
const TREE: &str = "kernel-tree";
/// Directory that the client may write in.
pub(super) const ACTION_DIRECTORY: &str = "kernel-actions";

/// Directories of the tree, its own top apart; each of the first level holds four of the second.
const TREE_DIRECTORIES: usize = 30;
/// Directories of the first level.
const TREE_BRANCHES: usize = 6;

/// Directory of the machine at which the share is mounted.
const PLACE: &str = "/mnt/share";
/// Directory of a second mount, with a connection of its own.
const SECOND_PLACE: &str = "/mnt/second";

/// A share mounted in the machine. A mount that is dropped stays: the machine goes with what failed.
pub(super) struct ShareMount<'m> {
    machine: &'m mut VirtualMachine,
}

/// Outcome of an action, as the machine's agent reports it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ActionOutcome {
    #[serde(default)]
    pub(super) seconds: f64,
    #[serde(default)]
    pub(super) items: u64,
    #[serde(default)]
    pub(super) bytes: u64,
    /// SHA-256 of the content of each file.
    #[serde(default)]
    digests: BTreeMap<String, String>,
    /// Size of each entry of a tree; negative for a directory.
    #[serde(default)]
    sizes: BTreeMap<String, i64>,
}

impl<'m> ShareMount<'m> {
    /// Mounts the bench's share.
    pub(super) fn mount(machine: &'m mut VirtualMachine, options: &str) -> Result<Self> {
        mount_at(machine, PLACE, options)?;
        Ok(Self { machine })
    }

    /// Mounts the share a second time, over a connection of its own.
    pub(super) fn mount_second(machine: &mut VirtualMachine, options: &str) -> Result<()> {
        mount_at(machine, SECOND_PLACE, &format!("{options},nosharesock"))
    }

    /// Takes the second mount away.
    pub(super) fn unmount_second(machine: &mut VirtualMachine) -> Result<()> {
        let command = format!("umount {SECOND_PLACE}");
        machine.shell(ACTION_LIMIT, &command).map(drop)
    }

    /// Makes a directory of the share.
    pub(super) fn make_directory(&mut self, name: &str) -> Result<()> {
        let command = format!("mkdir -p {PLACE}/{name}");
        self.machine.shell(ACTION_LIMIT, &command).map(drop)
    }

    /// Removes a directory of the share with all that is in it, and unmounts the share.
    pub(super) fn remove(self, name: &str) -> Result<()> {
        let command = format!("rm -r {PLACE}/{name}");
        self.machine.shell(ACTION_LIMIT, &command)?;
        self.unmount()
    }

    /// Takes locks of a file through this mount and the second one.
    ///
    /// # Errors
    /// Fails when two holders got the same range, or an operation fails.
    pub(super) fn locks(&mut self, name: &str) -> Result<()> {
        let fields = json!({
            "path": format!("{PLACE}/{name}"),
            "other_path": format!("{SECOND_PLACE}/{name}"),
        });
        let said = self.machine.request(ACTION_LIMIT, "locks", fields)?;
        ensure!(said["refused"] == true, "two holders have the same range");
        Ok(())
    }

    /// Has the agent carry out an action on a file or directory of the share.
    pub(super) fn request(
        &mut self,
        action: &str,
        name: &str,
        mut fields: Value,
    ) -> Result<ActionOutcome> {
        let path = format!("{PLACE}/{name}");
        fields["path"] = json!(path);
        fields["directory"] = json!(path);
        let said = self.machine.request(ACTION_LIMIT, action, fields)?;
        serde_json::from_value(said).context("reading what the machine says")
    }

    /// Unmounts it: everything that was written is at the server afterwards.
    pub(super) fn unmount(self) -> Result<()> {
        let command = format!("umount {PLACE}");
        self.machine.shell(ACTION_LIMIT, &command).map(drop)
    }
}

fn mount_at(machine: &mut VirtualMachine, place: &str, options: &str) -> Result<()> {
    let server = LabSite::Far.host_address();
    let command = format!(
        "mkdir -p {place} && mount -t cifs //{server}/{SHARE} {place} \
         -o ip={server},username={USER},password={PASSWORD},{options} || \
         {{ dmesg | tail -n 5; false; }}"
    );
    machine
        .shell(ACTION_LIMIT, &command)
        .with_context(|| format!("mounting with {options}"))
        .map(drop)
}

/// Carries out the action of a cell.
pub(super) fn run(mount: &mut ShareMount<'_>, client: KernelClientKind) -> Result<ActionOutcome> {
    let blocks = json!({ "block": BLOCK_BYTES, "bytes": BULK_BYTES });
    match client {
        KernelClientKind::SmallRead => {
            // Spread over the directory.
            let names: Vec<String> = (0..FILES)
                .map(|number| format!("file-{:04}.bin", number * (SMALL_FILES / FILES)))
                .collect();
            mount.request("small-read", SMALL, json!({ "names": names }))
        }
        KernelClientKind::SmallWrite => {
            let names: Vec<String> = (0..FILES)
                .map(|number| format!("new-{number:04}.bin"))
                .collect();
            let fields = json!({ "names": names, "file_bytes": SMALL_FILE_BYTES });
            mount.request("small-write", SMALL_UPLOADS, fields)
        }
        KernelClientKind::Walk => mount.request("walk", TREE, json!({})),
        KernelClientKind::BlockRead => mount.request("read-blocks", BULK, blocks),
        KernelClientKind::BlockWrite => mount.request("write-blocks", BULK_UPLOAD, blocks),
    }
}

/// The share as the server's disk has it.
pub(super) struct ShareFiles {
    root: PathBuf,
}

impl ShareFiles {
    /// Fills the share beside what the lane has put there.
    pub(super) fn create(lane: &SmbLane) -> Result<Self> {
        let files = Self {
            root: lane.files().to_owned(),
        };
        lane.publish(BULK, BULK_BYTES, 1)?;
        let tree = files.root.join(TREE);
        let mut directories = Vec::new();
        for number in 0..TREE_DIRECTORIES {
            let branch = format!("branch-{}", number % TREE_BRANCHES);
            directories.push(match number / TREE_BRANCHES {
                0 => tree.join(branch),
                below => tree.join(branch).join(format!("twig-{below}")),
            });
        }
        let mut random = SeededRandom::from_seed(1);
        for number in 0..SMALL_FILES - TREE_DIRECTORIES {
            let directory = &directories[number % TREE_DIRECTORIES];
            fs::create_dir_all(directory)?;
            let size = random.below(4_000) as usize;
            fs::write(
                directory.join(format!("name-{number:04}.txt")),
                vec![b'.'; size],
            )?;
        }
        for directory in directories.iter().chain([&tree]) {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        }
        Ok(files)
    }

    /// Tells whether what the client read, wrote or listed is what the server has.
    pub(super) fn has_what_the_client_has(
        &self,
        client: KernelClientKind,
        outcome: &ActionOutcome,
    ) -> Result<bool> {
        let digests = |directory: &str| self.digests(directory, outcome.digests.keys());
        Ok(match client {
            KernelClientKind::SmallRead => digests(SMALL)? == outcome.digests,
            KernelClientKind::SmallWrite => digests(SMALL_UPLOADS)? == outcome.digests,
            KernelClientKind::Walk => self.sizes(&self.root.join(TREE))? == outcome.sizes,
            KernelClientKind::BlockRead | KernelClientKind::BlockWrite => {
                digests("")? == outcome.digests
            }
        })
    }

    /// Tells whether files of a directory have the digests that the client has.
    pub(super) fn has_digests(&self, directory: &str, outcome: &ActionOutcome) -> Result<bool> {
        Ok(self.digests(directory, outcome.digests.keys())? == outcome.digests)
    }

    /// Tells whether a tree has the names and sizes that the client has.
    pub(super) fn has_sizes(&self, directory: &str, outcome: &ActionOutcome) -> Result<bool> {
        Ok(self.sizes(&self.root.join(directory))? == outcome.sizes)
    }

    /// Path of a file at the server.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Tells whether the server has a file or directory.
    pub(super) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Makes the directory that the client may write in, without what was in it.
    pub(super) fn empty_action_directory(&self) -> Result<()> {
        let path = self.root.join(ACTION_DIRECTORY);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        Ok(())
    }

    /// Removes what the client has written.
    pub(super) fn clear(&self) -> Result<()> {
        let _ = fs::remove_file(self.root.join(BULK_UPLOAD));
        for entry in fs::read_dir(self.root.join(SMALL_UPLOADS))?.flatten() {
            fs::remove_file(entry.path())?;
        }
        Ok(())
    }

    /// SHA-256 of files, by sha256sum(1).
    fn digests<'n>(
        &self,
        directory: &str,
        names: impl Iterator<Item = &'n String>,
    ) -> Result<BTreeMap<String, String>> {
        let mut digests = BTreeMap::new();
        for name in names {
            let path = self.root.join(directory).join(name);
            if !path.exists() {
                continue;
            }
            let said = command::run("sha256sum", [&path])?;
            let digest = said.split_whitespace().next().unwrap_or_default();
            digests.insert(name.clone(), digest.to_owned());
        }
        Ok(digests)
    }

    /// Size of each entry below a directory, -1 for directories.
    fn sizes(&self, top: &Path) -> Result<BTreeMap<String, i64>> {
        let mut sizes = BTreeMap::new();
        let mut waiting = vec![top.to_owned()];
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(&directory)?.flatten() {
                let (path, metadata) = (entry.path(), entry.metadata()?);
                let name = path.strip_prefix(top)?.display().to_string();
                if metadata.is_dir() {
                    sizes.insert(name, -1);
                    waiting.push(path);
                } else {
                    sizes.insert(name, i64::try_from(metadata.len())?);
                }
            }
        }
        Ok(sizes)
    }
}
