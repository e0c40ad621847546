//! Files with other people's secrets that the operator hands to the node. A reader of such a file
//! can act as those people. So it must belong to the node's user or root, and be closed to all
//! others. A node does not start when it cannot use such a file, and reports the reason.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;
use zeroize::Zeroizing;

use crate::sys;

const ROOT: u32 = 0;

/// The reason why a file cannot be used. `setting` is the key that names it, with its section.
#[derive(Debug, Error)]
pub enum PrivateFileError {
    /// It cannot be read.
    #[error("cannot read {}: {cause}; {}write another file as {setting}, or remove this setting", path.display(), owner_hint(path, cause))]
    Io {
        /// The file.
        path: PathBuf,
        /// The setting that names it.
        setting: &'static str,
        /// The cause.
        cause: io::Error,
    },
    /// Others can read or change it.
    #[error("other users can read or write {} (mode {mode:o}); run `chmod 600` on this file; if others may \
             have read it, replace the secrets in it", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It belongs to another user.
    #[error("{} belongs to the user {owner}, but the node runs as the user {node}; run `chown {node} {}` as root", path.display(), path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The owner's number.
        owner: u32,
        /// The number of the user that the node runs as.
        node: u32,
    },
    /// It is no regular file, or far too long.
    #[error("{} cannot be used, because it is not a regular file or is too long; write another file as {setting}", path.display())]
    NoFile {
        /// The file.
        path: PathBuf,
        /// The setting that names it.
        setting: &'static str,
    },
}

/// The command for root that gives a file to the node's user.
fn owner_hint(path: &Path, cause: &io::Error) -> String {
    if cause.kind() != io::ErrorKind::PermissionDenied {
        return String::new();
    }
    format!("run `chown {} {}` as root, ", sys::user(), path.display())
}

/// The properties that identify a version of a file: a changed or replaced file has another stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    /// Also another when its owner or its mode is.
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of the file that has this name now.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|of| Self::from(&of))
    }
}

impl From<&Metadata> for FileStamp {
    fn from(of: &Metadata) -> Self {
        Self {
            device: of.dev(),
            inode: of.ino(),
            length: of.len(),
            modified: (of.mtime(), of.mtime_nsec()),
            changed: (of.ctime(), of.ctime_nsec()),
        }
    }
}

/// Reads a file of at most `bytes_max` bytes that only the user of this node, or root, may read.
///
/// # Errors
/// When it cannot be read, is open to others, belongs to somebody else, or is none.
pub(crate) fn read(
    path: &Path,
    setting: &'static str,
    bytes_max: u64,
    node: u32,
) -> Result<Zeroizing<Vec<u8>>, PrivateFileError> {
    let failed = |cause| PrivateFileError::Io {
        path: path.to_owned(),
        setting,
        cause,
    };
    // A pipe that nobody writes to would be waited for as it is opened; a regular file's bytes are
    // there whether or not one waits.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(failed)?;
    // Of what was opened, and not of what has the name a moment later.
    let metadata = file.metadata().map_err(failed)?;
    check(path, setting, &metadata, bytes_max, node)?;
    contents(file, metadata.len(), bytes_max).map_err(failed)
}

fn check(
    path: &Path,
    setting: &'static str,
    metadata: &Metadata,
    bytes_max: u64,
    node: u32,
) -> Result<(), PrivateFileError> {
    let path = || path.to_owned();
    let (mode, owner) = (metadata.mode() & 0o777, metadata.uid());
    if !metadata.is_file() || metadata.len() > bytes_max {
        return Err(PrivateFileError::NoFile {
            path: path(),
            setting,
        });
    }
    if mode & 0o077 != 0 {
        return Err(PrivateFileError::Exposed { path: path(), mode });
    }
    // Root reads everything. The node, if it is another user, does not: a file of root's is none of its.
    let is_roots = owner == ROOT && (node == sys::user() || node == ROOT);
    if owner != node && !is_roots {
        return Err(PrivateFileError::Foreign {
            path: path(),
            owner,
            node,
        });
    }
    Ok(())
}

/// The bytes, in memory of the file's own length, so that it does not grow and leave copies behind.
fn contents(file: File, length: u64, bytes_max: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(length as usize + 1));
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::process::Command;

    use super::*;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secrets");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (directory, path)
    }

    fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, PrivateFileError> {
        super::read(path, "accounts", 100, sys::user())
    }

    #[test]
    fn a_file_of_its_own_is_read() {
        for mode in [0o600, 0o400] {
            let (_directory, path) = file("secret\n", mode);
            assert_eq!(**read(&path).unwrap(), *b"secret\n");
        }
    }

    #[test]
    fn readable_file_is_refused_with_a_remedy() {
        for mode in [0o640, 0o604, 0o620, 0o610] {
            let (_directory, path) = file("secret\n", mode);
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
            assert!(error.contains(&format!("mode {mode:o}")), "{error}");
        }
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let (_directory, path) = file("", 0o600);
        // Only root can give files away; others cannot be in this place.
        if chown(&path, Some(12_345), None).is_err() {
            return;
        }
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("the user 12345"), "{error}");
        // Root looks after a node that runs as that user.
        super::read(&path, "accounts", 100, 12_345).unwrap();
        chown(&path, Some(0), None).unwrap();
        let error = super::read(&path, "accounts", 100, 12_345).unwrap_err();
        let cure = format!("chown 12345 {}", path.display());
        assert!(error.to_string().contains(&cure), "{error}");
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secrets");
        let mut make = Command::new("mkfifo");
        make.args(["-m", "600"]).arg(&path);
        assert!(make.status().unwrap().success());
        assert!(matches!(read(&path), Err(PrivateFileError::NoFile { .. })));
    }

    #[test]
    fn non_file_or_long_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let is_no_file = |path: &Path| matches!(read(path), Err(PrivateFileError::NoFile { .. }));
        assert!(is_no_file(directory.path()));
        let (_directory, path) = file(&"x".repeat(101), 0o600);
        assert!(is_no_file(&path));
        let missing = read(Path::new("/nowhere/secrets")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/secrets"), "{missing}");
        assert!(missing.contains("another file as accounts"), "{missing}");
    }

    #[test]
    fn changed_file_has_another_stamp() {
        let (directory, path) = file("one", 0o600);
        let first = FileStamp::of(&path).unwrap();
        assert_eq!(FileStamp::of(&path), Some(first));
        fs::write(&path, "three").unwrap();
        let second = FileStamp::of(&path).unwrap();
        assert_ne!(first, second);
        let other = directory.path().join("other");
        fs::write(&other, "three").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_ne!(FileStamp::of(&path), Some(second));
        fs::remove_file(&path).unwrap();
        assert_eq!(FileStamp::of(&path), None);
    }
}
