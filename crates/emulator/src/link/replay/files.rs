//! Search for the files that a log's settings came from.
//!
//! A log may come from a stranger, so it must not cause arbitrary files to be read: a file that a
//! setting names must be among the files whose hash is in the log, must lie beside the log or at
//! its original path, must be an ordinary file of bounded length, and must still have that hash.
//! Only then is its content parsed; before that none of it can appear in a message.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

use super::super::packet_log::SettingsRow;
use super::super::settings::{LinkSettings, SettingKey, SettingName, UsedFile};

/// Greatest length of a setting's file.
const LONGEST_FILE: u64 = 512 << 20;

/// Greatest number of bytes that all changes of settings may read together: a trace takes twice its
/// length in memory, for each change again.
const READ_MAX: u64 = 1 << 30;

/// Prefix of a word that names a file of losses.
const LIST_FILE: &str = "list:@";

/// Files that were found so far.
pub(super) struct ReplayFiles {
    /// Directory of the log.
    folder: PathBuf,
    found: HashMap<(PathBuf, String), File>,
    read: u64,
}

impl ReplayFiles {
    /// File search for the log in this file.
    pub(super) fn for_log(log: &Path) -> Self {
        Self {
            folder: log.parent().unwrap_or(Path::new("")).to_owned(),
            found: HashMap::new(),
            read: 0,
        }
    }

    /// The row's settings, with the names of the found and verified files in place of those in the
    /// log.
    ///
    /// # Errors
    /// Fails when a named file does not exist, or has changed.
    pub(super) fn settings(&mut self, row: &SettingsRow) -> Result<LinkSettings> {
        let mut settings = LinkSettings::default();
        for (name, word) in row.settings.named() {
            let (before, file) = match named_file(&name, &word) {
                Some(file) => (&word[..word.len() - file.len()], file),
                None => {
                    settings.set_by_name(&name, &word)?;
                    continue;
                }
            };
            let used = row
                .files
                .iter()
                .find(|used| used.path == Path::new(file))
                .ok_or_else(|| anyhow!("`{name}` names {file}, and the log has no hash of it"))?;
            let found = self.find(used)?;
            let descriptor = format!("{before}/proc/self/fd/{}", found.as_raw_fd());
            settings.set_by_name(&name, &descriptor)?;
        }
        Ok(settings)
    }

    fn find(&mut self, used: &UsedFile) -> Result<&File> {
        let key = (used.path.clone(), used.blake3.clone());
        if !self.found.contains_key(&key) {
            let file = find(&self.folder, used)?;
            self.found.insert(key.clone(), file);
        }
        let file = &self.found[&key];
        self.read += file.metadata()?.len();
        if self.read > READ_MAX {
            bail!(
                "the log's changes of settings read files of more than {READ_MAX} bytes in all; replay a log of fewer changes"
            );
        }
        Ok(file)
    }
}

/// File name in a word.
fn named_file<'w>(name: &str, word: &'w str) -> Option<&'w str> {
    let name: SettingName = name.parse().ok()?;
    match name.key {
        SettingKey::Trace | SettingKey::Schedule => (word != "none").then_some(word),
        SettingKey::Loss => word.strip_prefix(LIST_FILE),
        _ => None,
    }
}

/// Looks beside the log first, so that a log can be carried elsewhere with its files.
fn find(folder: &Path, used: &UsedFile) -> Result<File> {
    let beside = used.path.file_name().map(|name| folder.join(name));
    let mut reason = None;
    for path in beside.iter().chain([&used.path]) {
        match open(path) {
            Ok(file) if hash(&file)? == used.blake3 => return Ok(file),
            Ok(_) => {
                reason = Some(anyhow!(
                    "{} is no longer what it was when the log was written; bring that file back, there or beside the log",
                    path.display()
                ));
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => reason = Some(error),
        }
    }
    Err(reason.unwrap_or_else(|| {
        anyhow!(
            "the settings lie in {}, which is neither there nor beside the log; bring that file back",
            used.path.display()
        )
    }))
}

fn is_absent(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn open(path: &Path) -> Result<File> {
    let about = || format!("cannot read {}", path.display());
    // Looked at before it is opened, because opening a device may do something already, and again
    // behind it, because it may be another file by then.
    check(path, &fs::metadata(path).with_context(about)?)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .with_context(about)?;
    check(path, &file.metadata().with_context(about)?)?;
    Ok(file)
}

fn check(path: &Path, metadata: &fs::Metadata) -> Result<()> {
    if !metadata.is_file() {
        bail!(
            "the log names {}, which is no ordinary file, so it is not read",
            path.display()
        );
    }
    // What the kernel makes up while it is read has no length.
    match metadata.len() {
        0 => bail!("the log names {}, which is empty", path.display()),
        1..=LONGEST_FILE => Ok(()),
        length => bail!(
            "the log names {}, which is {length} bytes long; the longest that is read is {LONGEST_FILE}",
            path.display()
        ),
    }
}

fn hash(file: &File) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let length = file.metadata()?.len();
    io::copy(&mut file.take(length), &mut hasher).context("cannot read a file of settings")?;
    Ok(hasher.finalize().to_hex().to_string())
}
