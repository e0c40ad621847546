//! Directories and files of a node's own: its state directory and its content.
//!
//! ```text
//!   path ─► PrivateDirectory (an open directory) ─► openat, renameat, unlinkat: names, not paths
//! ```
//! Every write goes into a temporary file that is new (`O_EXCL`) and no link (`O_NOFOLLOW`), is synced
//! and renamed. After a crash there is the old content or the new one, and never a part.
//!
//! Root runs tools (`peer invite`, `peer join`) on the directory of a node that runs as another
//! user. Files that root creates there get the owner of their directory, so that the node can read
//! them. The node's user owns the directory and could replace a directory in it by a symbolic link.
//! Root therefore follows no link that is not root's own.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::sys;

const ROOT: u32 = 0;
/// For the owner alone.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The mode bits with which other users may change the content of a directory.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The reason why a node does not trust its state directory.
#[derive(Debug, Error)]
pub enum StateDirectoryError {
    /// It cannot be used.
    #[error("cannot use the state directory {}: {cause}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// It belongs to another user, who could put other keys and peers there.
    #[error(
        "{} belongs to the user {owner}, but this process runs as the user {node}; run the node and `node \
         check` as the user {owner} (`setpriv --reuid={owner} ...`), or give the directory to the user \
         {node} with `chown -R {node} {}` as root",
        path.display(),
        path.display()
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// The owner's number.
        owner: u32,
        /// The number of the user that the node runs as.
        node: u32,
    },
    /// Others can put files there.
    #[error(
        "other users can write to {} (mode {mode:o}); run `chmod go-w {}`, and check that the directory \
         contains only files of the node",
        path.display(),
        path.display()
    )]
    Writable {
        /// The path.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// The directories in a state directory whose files define trust, or contain carried data.
const PARTS: [&str; 4] = ["peers", "invitations", "dictionary", "accelerators"];

/// Checks that a node that runs as this process's user may trust its state directory and the
/// directories in it. Missing directories are created later, for the node alone.
///
/// # Errors
/// When a directory belongs to somebody else, or others can write to it.
pub fn check_state_directory(path: &Path) -> Result<(), StateDirectoryError> {
    check(path, sys::user())?;
    for part in PARTS {
        check(&path.join(part), sys::user())?;
    }
    Ok(())
}

/// The user that owns a state directory, if that is not the one that this process acts as: the user of
/// the node, where root runs a tool.
#[must_use]
pub fn other_owner(state_directory: &Path) -> Option<u32> {
    let owner = fs::metadata(state_directory).ok()?.uid();
    (owner != sys::user()).then_some(owner)
}

/// The user that the node of a state directory runs as: this process's, or the directory's owner where
/// root looks after it.
#[must_use]
pub fn node_user(state_directory: &Path) -> u32 {
    match other_owner(state_directory) {
        Some(owner) if sys::user() == ROOT => owner,
        Some(_) | None => sys::user(),
    }
}

fn check(path: &Path, node: u32) -> Result<(), StateDirectoryError> {
    let failed = |cause| StateDirectoryError::Io {
        path: path.to_owned(),
        cause,
    };
    let metadata = match open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.and_then(|directory| directory.metadata()),
    };
    let metadata = metadata.map_err(failed)?;
    if metadata.uid() != node {
        return Err(StateDirectoryError::Foreign {
            path: path.to_owned(),
            owner: metadata.uid(),
            node,
        });
    }
    let mode = metadata.mode() & 0o777;
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(StateDirectoryError::Writable {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

/// Makes a directory (and those above it) that its owner alone can enter, if it is not there.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn make_private_directory(path: &Path) -> io::Result<()> {
    match open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened.map(drop),
    }
    let (parent, name) = parts(path)?;
    make_private_directory(&parent)?;
    let parent = open(&parent)?;
    match sys::make_directory_at(&parent, &name, DIRECTORY_MODE) {
        // Another process of this node's was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let directory = sys::open_at(&parent, &name, flags, 0)?;
    take_owner(&directory, &parent)
}

/// Writes a whole file, for its owner alone, so that after a crash there is either the old
/// content or the new: into a temporary file, synced, renamed, the directory synced.
///
/// # Errors
/// What the system says.
pub(crate) fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let (directory, name) = parts(path)?;
    let directory = open(&directory)?;
    let mut random = [0; 8];
    sys::fill_random(&mut random)?;
    let mut temporary = name.as_bytes().to_vec();
    temporary.extend(format!(".{:016x}.new", u64::from_le_bytes(random)).bytes());
    let temporary = CString::new(temporary)?;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let mut file = sys::open_at(&directory, &temporary, flags, FILE_MODE)?;
    let write = || {
        take_owner(&file, &directory)?;
        file.write_all(content)?;
        file.sync_all()?;
        sys::rename_at(&directory, &temporary, &name)
    };
    write_or_remove(write, &directory, &temporary)?;
    directory.sync_all()
}

fn write_or_remove(
    write: impl FnOnce() -> io::Result<()>,
    directory: &File,
    temporary: &CString,
) -> io::Result<()> {
    write().inspect_err(|_| drop(sys::remove_at(directory, temporary)))
}

/// Opens a file for writing, or makes an empty one for its owner alone; follows no link.
///
/// # Errors
/// What the system says.
pub(crate) fn open_or_make(path: &Path) -> io::Result<File> {
    let (directory, name) = parts(path)?;
    let directory = open(&directory)?;
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let exclusive = flags | libc::O_CREAT | libc::O_EXCL;
    match sys::open_at(&directory, &name, exclusive, FILE_MODE) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            sys::open_at(&directory, &name, flags, 0)
        }
        made => {
            let file = made?;
            take_owner(&file, &directory)?;
            Ok(file)
        }
    }
}

/// Removes a file, durably.
///
/// # Errors
/// What the system says.
pub(crate) fn remove_durably(path: &Path) -> io::Result<()> {
    let (directory, name) = parts(path)?;
    let directory = open(&directory)?;
    sys::remove_at(&directory, &name)?;
    directory.sync_all()
}

/// Makes renames and removals in a directory durable.
///
/// # Errors
/// What the system says.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    open(directory)?.sync_all()
}

/// Opens a directory. A symbolic link is followed only where it is root's or this user's own.
fn open(path: &Path) -> io::Result<File> {
    let path = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => {
            if ![ROOT, sys::user()].contains(&metadata.uid()) {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!(
                        "it is a symbolic link that belongs to the user {}; replace the link by the directory itself",
                        metadata.uid()
                    ),
                ));
            }
            fs::canonicalize(path)?
        }
        Ok(_) => path.to_owned(),
        Err(error) => return Err(error),
    };
    sys::open_directory(&path)
}

/// Gives a file that root has made in another user's directory to that user.
fn take_owner(made: impl AsFd, directory: &File) -> io::Result<()> {
    let metadata = directory.metadata()?;
    if sys::user() != ROOT || metadata.uid() == ROOT {
        return Ok(());
    }
    fchown(made, Some(metadata.uid()), Some(metadata.gid()))
}

/// The directory and the name of a file.
fn parts(path: &Path) -> io::Result<(PathBuf, CString)> {
    let name: Option<&OsStr> = path.file_name();
    let name = name.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    Ok((directory.to_owned(), CString::new(name.as_bytes())?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// A user that is neither root nor a usual system user.
    const OTHER: u32 = 54_321;

    /// Gives the path to [`OTHER`]; false where this process may not.
    fn give_away(path: &Path) -> bool {
        sys::user() == ROOT && chown(path, Some(OTHER), Some(OTHER)).is_ok()
    }

    fn owner(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().uid()
    }

    #[test]
    fn own_directory_is_trusted_and_others_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        check_state_directory(&state).unwrap();
        make_private_directory(&state.join("peers")).unwrap();
        check_state_directory(&state).unwrap();
        for (path, mode) in [(&state, 0o770), (&state.join("peers"), 0o702)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            let error = check_state_directory(&state).unwrap_err().to_string();
            let cure = format!("chmod go-w {}", path.display());
            assert!(error.contains(&cure), "{error}");
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        }
        // Others may look, as keys have a mode of their own.
        fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
        check_state_directory(&state).unwrap();
        if give_away(&state) {
            let error = check_state_directory(&state).unwrap_err().to_string();
            let cure = format!("chown -R 0 {}", state.display());
            let (first, second) = error.split_once(", or give ").unwrap();
            assert!(first.contains(&format!("as the user {OTHER}")), "{error}");
            assert!(second.contains(&cure), "{error}");
        }
    }

    #[test]
    fn root_creates_files_for_the_directorys_owner() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        fs::create_dir(&state).unwrap();
        if !give_away(&state) {
            return;
        }
        let pin = state.join("peers/far.json");
        make_private_directory(&state.join("peers")).unwrap();
        write_durably(&pin, b"one").unwrap();
        write_durably(&pin, b"two").unwrap();
        drop(open_or_make(&state.join("lock")).unwrap());
        for path in [&pin, &state.join("peers"), &state.join("lock")] {
            assert_eq!(owner(path), OTHER, "{}", path.display());
            let mode = fs::metadata(path).unwrap().mode();
            assert_eq!(mode & 0o077, 0, "{}", path.display());
        }
        assert_eq!(fs::read(&pin).unwrap(), b"two");
    }

    #[test]
    fn root_follows_no_link_of_the_users() {
        let directory = tempfile::tempdir().unwrap();
        let (state, target) = (directory.path().join("state"), directory.path().join("etc"));
        fs::create_dir(&state).unwrap();
        fs::create_dir(&target).unwrap();
        let link = state.join("peers");
        symlink(&target, &link).unwrap();
        if !give_away(&state) || std::os::unix::fs::lchown(&link, Some(OTHER), None).is_err() {
            return;
        }
        let file = link.join("far.json");
        for refused in [
            make_private_directory(&link.join("deeper")),
            write_durably(&file, b"pin"),
            open_or_make(&file).map(drop),
            remove_durably(&file),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(
                error.contains("symbolic link that belongs to the user 54321"),
                "{error}"
            );
        }
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    }

    #[test]
    fn writing_follows_no_symbolic_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (
            directory.path().join("key"),
            directory.path().join("passwd"),
        );
        fs::write(&target, b"before").unwrap();
        symlink(&target, &path).unwrap();
        // What was renamed over the link is a file of its own.
        write_durably(&path, b"secret").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"before");
        assert_eq!(fs::read(&path).unwrap(), b"secret");
        fs::remove_file(&path).unwrap();
        symlink(&target, &path).unwrap();
        assert!(open_or_make(&path).is_err());
        // Nothing is left beside it, whatever was guessed of the temporary file's name.
        let guessed = format!("key.{}.new", std::process::id());
        symlink(&target, directory.path().join(&guessed)).unwrap();
        write_durably(&path, b"secret").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"before");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    }

    #[test]
    fn root_may_link_the_state_directory() {
        let directory = tempfile::tempdir().unwrap();
        let (real, link) = (
            directory.path().join("private"),
            directory.path().join("state"),
        );
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        write_durably(&link.join("key"), b"secret").unwrap();
        assert_eq!(fs::read(real.join("key")).unwrap(), b"secret");
        check_state_directory(&link).unwrap();
    }
}
