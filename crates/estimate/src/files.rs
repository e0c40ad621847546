//! Input files: those that the user names, and those in named directories.
//!
//! Directories are walked in the order of their names' bytes, files and folders together, so that
//! the same tree gives the same order everywhere. Symbolic links inside are not followed and
//! special files (devices, pipes, sockets) are not opened: both are reported, like unreadable
//! files. Inputs named by the user are opened by name, following links.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

use host::invalid_request::InvalidRequest;

/// Input to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// A file or a directory.
    Path(PathBuf),
    /// Standard input.
    Standard,
}

impl InputSource {
    /// Reads `-` as standard input.
    #[must_use]
    pub fn named(name: &Path) -> Self {
        match name.as_os_str() == "-" {
            true => Self::Standard,
            false => Self::Path(name.to_owned()),
        }
    }
}

/// Skipped input, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedInput {
    /// Its name.
    pub path: String,
    /// Reason.
    pub reason: String,
    /// True if bytes are missing that should have been sent. The figures then do not cover all
    /// inputs.
    pub is_loss: bool,
}

/// Inputs to send, in order.
#[derive(Debug, Default)]
pub(super) struct InputList {
    pub(super) files: Vec<(InputSource, u64)>,
    pub(super) skipped: Vec<SkippedInput>,
}

/// Checks that all inputs exist and are finite.
///
/// # Errors
/// [`InvalidRequest`], when one is not.
pub fn check(inputs: &[InputSource]) -> Result<()> {
    for input in inputs {
        let InputSource::Path(path) = input else {
            continue;
        };
        let name = path.display();
        let metadata = fs::metadata(path)
            .with_context(|| format!("cannot read {name}"))
            .map_err(InvalidRequest::because)?;
        let kind = metadata.file_type();
        if kind.is_char_device() || kind.is_socket() {
            return Err(InvalidRequest::because(anyhow!(
                "{name} is a device or a socket and has no end; name files, directories or -"
            )));
        }
    }
    Ok(())
}

/// Finds everything under `inputs` but `excluded`.
///
/// # Errors
/// When one of them is not there or has no end ([`InvalidRequest`]); nothing was read then.
pub(super) fn find(inputs: &[InputSource], excluded: Option<&Path>) -> Result<InputList> {
    check(inputs)?;
    let excluded = excluded.and_then(|path| path.canonicalize().ok());
    let mut found = InputList::default();
    for input in inputs {
        let length = match input {
            InputSource::Standard => 0,
            InputSource::Path(path) if path.is_dir() => {
                walk(path, excluded.as_deref(), &mut found);
                continue;
            }
            // One that has gone by now is noticed when it is opened.
            InputSource::Path(path) => fs::metadata(path).map_or(0, |metadata| metadata.len()),
        };
        found.files.push((input.clone(), length));
    }
    Ok(found)
}

fn walk(directory: &Path, excluded: Option<&Path>, found: &mut InputList) {
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries = match entries {
        Ok(entries) => entries,
        Err(error) => return found.skip(directory, &format!("cannot be read: {error}"), true),
    };
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // Not followed: a link's own metadata.
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            Err(error) => {
                found.skip(&path, &format!("cannot be read: {error}"), true);
                continue;
            }
        };
        let kind = metadata.file_type();
        if kind.is_file() {
            found.files.push((InputSource::Path(path), metadata.len()));
        } else if kind.is_dir() {
            let is_excluded = excluded.is_some() && path.canonicalize().ok().as_deref() == excluded;
            match is_excluded {
                true => found.skip(&path, "is the dictionary itself", false),
                false => walk(&path, excluded, found),
            }
        } else if kind.is_symlink() {
            found.skip(&path, "is a symbolic link", false);
        } else {
            found.skip(&path, "is a device, a pipe or a socket", false);
        }
    }
}

impl InputList {
    fn skip(&mut self, path: &Path, reason: &str, is_loss: bool) {
        self.skipped.push(SkippedInput {
            path: path.display().to_string(),
            reason: reason.to_owned(),
            is_loss,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_order_is_fixed_and_special_files_reported() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("b/deep")).unwrap();
        fs::create_dir(root.join("dictionary")).unwrap();
        for name in ["c", "a", "b/deep/x", "B", "dictionary/near"] {
            fs::write(root.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink(root.join("a"), root.join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let found = find(
            &[InputSource::Path(root.to_owned()), InputSource::Standard],
            Some(&root.join("dictionary")),
        )
        .unwrap();
        let name = |path: &Path| path.strip_prefix(root).unwrap().display().to_string();
        let names: Vec<String> = found
            .files
            .iter()
            .map(|(input, _)| match input {
                InputSource::Path(path) => name(path),
                InputSource::Standard => "-".to_owned(),
            })
            .collect();
        assert_eq!(names, ["B", "a", "b/deep/x", "c", "-"]);
        let skipped: Vec<String> = found
            .skipped
            .iter()
            .map(|skipped| name(Path::new(&skipped.path)))
            .collect();
        assert_eq!(skipped, ["dictionary", "link", "socket"]);
        assert!(found.skipped.iter().all(|skipped| !skipped.is_loss));
    }

    #[test]
    fn what_is_named_and_not_there_is_refused() {
        for name in ["/nowhere/at/all", "/dev/zero"] {
            let refused = find(&[InputSource::named(Path::new(name))], None).unwrap_err();
            assert!(InvalidRequest::is_cause_of(&refused), "{refused:#}");
            assert!(format!("{refused:#}").contains(name), "{refused:#}");
        }
        assert_eq!(InputSource::named(Path::new("-")), InputSource::Standard);
    }
}
