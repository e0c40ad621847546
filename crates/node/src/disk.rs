//! Executes the dictionary's disk requests, in order, on a thread of its own.
//!
//! One thread keeps the order that the dictionary relies on and keeps a slow disk away from
//! every flow. Files are `dictionary/NNNNNNNN.seg` in the state directory, for their owner
//! alone; a lock beside them keeps a second node out. A sync is fdatasync, and of the directory
//! too when the file is new: without that its name could be gone after a loss of power.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use engine::Input;
use reduce::{
    DiskAnswer, DiskCompletion, DiskFault, DiskOperation, DiskRequest, SegmentListing,
    parse_segment_file_name, segment_file_name,
};
use thiserror::Error;

use crate::identity::{make_private_directory, sync_directory};
use crate::mailbox::Mailbox;

/// Segment files kept open; a warm transfer reads from few at a time.
const OPEN_FILES: usize = 64;

/// Why there is no dictionary on disk.
#[derive(Debug, Error)]
pub enum DiskError {
    /// Another node uses the directory.
    #[error("{} is used by another running node; each needs a state_directory of its own", .0.display())]
    InUse(PathBuf),
    /// The directory cannot be used.
    #[error("cannot use {}: {cause}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

/// The lock on a state directory: held as long as the node lives, freed by its death.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Takes the lock.
    ///
    /// # Errors
    /// When another node has it, or the directory cannot be used.
    pub fn take(state_directory: &Path) -> Result<Self, DiskError> {
        let path = state_directory.join("lock");
        let failed = |cause| DiskError::Io {
            path: path.clone(),
            cause,
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(DiskError::InUse(state_directory.to_owned())),
            Err(TryLockError::Error(cause)) => Err(failed(cause)),
        }
    }
}

/// Starts the thread; requests go in by the sender and completions into the mailbox. It ends
/// when the sender is dropped.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start(
    state_directory: &Path,
    mailbox: Mailbox,
) -> io::Result<mpsc::Sender<DiskRequest>> {
    let mut disk = SegmentFiles::new(state_directory.join("dictionary"));
    let (sender, requests) = mpsc::channel::<DiskRequest>();
    thread::Builder::new()
        .name("disk".to_owned())
        .spawn(move || {
            for request in requests {
                let completion = disk.complete(request);
                if let Err(fault) = &completion.result {
                    tracing::debug!(%fault, "a disk request of the dictionary's failed");
                }
                let completion = Input::Disk(completion);
                if mailbox.blocking_input(completion).is_err() {
                    return;
                }
            }
        })?;
    Ok(sender)
}

/// A dictionary's directory and those of its files that are open.
#[derive(Debug)]
pub struct SegmentFiles {
    directory: PathBuf,
    open: BTreeMap<u32, File>,
    /// Files were made since the directory was last synced.
    has_new: bool,
}

impl SegmentFiles {
    /// The files in `directory`, which is made when the dictionary first looks at it.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            open: BTreeMap::new(),
            has_new: false,
        }
    }

    /// Executes a request. Requests are to come in the order in which the dictionary hands them out.
    pub fn complete(&mut self, request: DiskRequest) -> DiskCompletion {
        DiskCompletion {
            id: request.id,
            result: self.execute(request.operation),
        }
    }

    fn execute(&mut self, operation: DiskOperation) -> Result<DiskAnswer, DiskFault> {
        match operation {
            DiskOperation::List => self.list().map_err(fault).map(DiskAnswer::Segments),
            DiskOperation::Read {
                segment,
                offset,
                length,
            } => self
                .read(segment, offset, length)
                .map_err(fault)
                .map(DiskAnswer::Bytes),
            DiskOperation::Append {
                segment,
                offset,
                bytes,
            } => self
                .file(segment, offset == 0)
                .and_then(|file| file.write_all_at(&bytes, offset))
                .map_err(fault)
                .map(|()| DiskAnswer::Done),
            DiskOperation::Truncate { segment, length } => self
                .file(segment, false)
                .and_then(|file| file.set_len(length))
                .map_err(fault)
                .map(|()| DiskAnswer::Done),
            DiskOperation::Sync { segment } => {
                self.sync(segment).map_err(fault)?;
                Ok(DiskAnswer::Done)
            }
            DiskOperation::Delete { segment } => {
                self.open.remove(&segment);
                match fs::remove_file(self.path(segment)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fault(error)),
                    Ok(()) | Err(_) => Ok(DiskAnswer::Done),
                }
            }
        }
    }

    fn list(&self) -> io::Result<Vec<SegmentListing>> {
        make_private_directory(&self.directory).map_err(io::Error::other)?;
        let mut segments = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(parse_segment_file_name);
            if let Some(number) = number {
                let bytes = entry.metadata()?.len();
                segments.push(SegmentListing { number, bytes });
            }
        }
        Ok(segments)
    }

    fn read(&mut self, segment: u32, offset: u64, length: u32) -> io::Result<Bytes> {
        let file = self.file(segment, false)?;
        let mut buffer = vec![0; length as usize];
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        buffer.truncate(filled);
        Ok(buffer.into())
    }

    fn sync(&mut self, segment: u32) -> io::Result<()> {
        self.file(segment, false)?.sync_data()?;
        if self.has_new {
            sync_directory(&self.directory)?;
            self.has_new = false;
        }
        Ok(())
    }

    fn file(&mut self, segment: u32, create: bool) -> io::Result<&File> {
        if !self.open.contains_key(&segment) {
            if self.open.len() >= OPEN_FILES {
                // The oldest segment is the least likely to be written or read next.
                self.open.pop_first();
            }
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(create)
                .truncate(false)
                .mode(0o600)
                .open(self.path(segment))?;
            self.has_new |= create;
            self.open.insert(segment, file);
        }
        Ok(&self.open[&segment])
    }

    fn path(&self, segment: u32) -> PathBuf {
        self.directory.join(segment_file_name(segment))
    }
}

fn fault(error: io::Error) -> DiskFault {
    match error.kind() {
        io::ErrorKind::NotFound => DiskFault::Missing,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            DiskFault::Full
        }
        _ => DiskFault::Io(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(segment: u32, offset: u64, bytes: &'static [u8]) -> DiskOperation {
        DiskOperation::Append {
            segment,
            offset,
            bytes: Bytes::from_static(bytes),
        }
    }

    #[test]
    fn segments_are_written_read_cut_and_removed() {
        let state = tempfile::tempdir().unwrap();
        let mut disk = SegmentFiles::new(state.path().join("dictionary"));
        assert_eq!(
            disk.execute(DiskOperation::List),
            Ok(DiskAnswer::Segments(vec![]))
        );
        assert_eq!(disk.execute(append(7, 0, b"hello ")), Ok(DiskAnswer::Done));
        assert_eq!(disk.execute(append(7, 6, b"world")), Ok(DiskAnswer::Done));
        assert_eq!(
            disk.execute(DiskOperation::Sync { segment: 7 }),
            Ok(DiskAnswer::Done)
        );
        let read = |offset, length| DiskOperation::Read {
            segment: 7,
            offset,
            length,
        };
        assert_eq!(
            disk.execute(read(6, 100)),
            Ok(DiskAnswer::Bytes(Bytes::from_static(b"world")))
        );
        disk.execute(DiskOperation::Truncate {
            segment: 7,
            length: 5,
        })
        .unwrap();
        fs::write(state.path().join("dictionary/notes.txt"), "ours").unwrap();
        assert_eq!(
            disk.execute(DiskOperation::List),
            Ok(DiskAnswer::Segments(vec![SegmentListing {
                number: 7,
                bytes: 5
            }]))
        );
        let delete = DiskOperation::Delete { segment: 7 };
        assert_eq!(disk.execute(delete.clone()), Ok(DiskAnswer::Done));
        assert_eq!(disk.execute(delete), Ok(DiskAnswer::Done));
        assert_eq!(disk.execute(read(0, 1)), Err(DiskFault::Missing));
    }

    #[test]
    fn a_full_disk_is_called_full() {
        assert_eq!(
            fault(io::Error::from_raw_os_error(libc::ENOSPC)),
            DiskFault::Full
        );
        assert_eq!(
            fault(io::Error::from_raw_os_error(libc::EDQUOT)),
            DiskFault::Full
        );
    }

    #[test]
    fn more_segments_than_open_files_all_work() {
        let state = tempfile::tempdir().unwrap();
        let mut disk = SegmentFiles::new(state.path().join("dictionary"));
        disk.execute(DiskOperation::List).unwrap();
        for segment in 0..OPEN_FILES as u32 + 8 {
            disk.execute(append(segment, 0, b"x")).unwrap();
        }
        for segment in 0..OPEN_FILES as u32 + 8 {
            disk.execute(append(segment, 1, b"y")).unwrap();
        }
        assert!(disk.open.len() <= OPEN_FILES);
    }

    #[test]
    fn a_state_directory_belongs_to_one_node() {
        let state = tempfile::tempdir().unwrap();
        let first = StateLock::take(state.path()).unwrap();
        let second = StateLock::take(state.path()).unwrap_err();
        assert!(second.to_string().contains("another running node"));
        drop(first);
        assert!(StateLock::take(state.path()).is_ok());
    }
}
