//! Executes the dictionary's disk requests, in order, on a thread of its own.
//!
//! One thread keeps the order that the dictionary relies on, and keeps a slow disk from delaying
//! flows. Files are `dictionary/NNNNNNNN.seg` in the state directory, for their owner alone; a lock
//! beside them excludes a second node. A sync is fdatasync; for a new file the directory is synced
//! as well, because its name could otherwise be lost in a power failure.
//!
//! ```text
//! append  ├ head ┼ whole blocks, from where they stand in memory ┼ tail ┤
//!           page cache          O_DIRECT                        page cache
//! ```
//! Large appends bypass the page cache. This costs less processor time than copying into it
//! (figures in docs/decisions/0049), and the dictionary already has the data in memory. A file
//! system without O_DIRECT uses the page cache for all writes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use engine::EngineInput;
use reduce::{
    DISK_BLOCK, DiskAnswer, DiskCompletion, DiskFault, DiskOperation, DiskRequest, SegmentListing,
    parse_segment_file_name, segment_file_name,
};
use thiserror::Error;

use crate::mailbox::LoopMailbox;
use crate::private_directory::{make_private_directory, open_or_make, sync_directory};

/// Segment files kept open; a warm transfer reads from few at a time.
const OPEN_FILES: usize = 64;

/// The least size of whole blocks that bypasses the page cache. A choice: half of the least
/// measured size, where both ways took about as long (docs/decisions/0049).
const LEAST_DIRECT: usize = 64 * 1024;

/// The reason why there is no dictionary on disk.
#[derive(Debug, Error)]
pub enum DiskError {
    /// Another node uses the directory.
    #[error("another running node uses the state directory {}; give each node a different state_directory", .0.display())]
    InUse(PathBuf),
    /// The directory cannot be used.
    #[error("cannot use the state directory {}: {cause}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
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
        let file = open_or_make(&path).map_err(failed)?;
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
    files_max: usize,
    mailbox: LoopMailbox,
) -> io::Result<mpsc::Sender<DiskRequest>> {
    let mut disk = SegmentFiles {
        files_max,
        ..SegmentFiles::new(state_directory.join("dictionary"))
    };
    let (sender, requests) = mpsc::channel::<DiskRequest>();
    thread::Builder::new()
        .name("disk".to_owned())
        .spawn(move || {
            for request in requests {
                let completion = disk.complete(request);
                if let Err(fault) = &completion.result {
                    tracing::debug!(%fault, "a disk request of the dictionary failed");
                }
                let completion = EngineInput::Disk(completion);
                if mailbox.blocking_input(completion).is_err() {
                    return;
                }
            }
        })?;
    Ok(sender)
}

/// The way past the page cache.
#[derive(Debug)]
enum DirectIo {
    /// No large append was made yet.
    Untried,
    /// To the segment of this number.
    To { segment: u32, file: File },
    /// The file system does not have it.
    Refused,
}

impl DirectIo {
    fn refused(error: &io::Error) -> Self {
        tracing::debug!(%error, "the dictionary's file system does not support direct I/O, so its writes go \
                                 through the page cache");
        Self::Refused
    }

    fn forget(&mut self, number: u32) {
        if matches!(self, Self::To { segment, .. } if *segment == number) {
            *self = Self::Untried;
        }
    }
}

/// A dictionary's directory and those of its files that are open.
#[derive(Debug)]
pub struct SegmentFiles {
    directory: PathBuf,
    open: BTreeMap<u32, File>,
    /// So many are kept open, at most.
    files_max: usize,
    direct: DirectIo,
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
            files_max: OPEN_FILES,
            direct: DirectIo::Untried,
            has_new: false,
        }
    }

    /// Executes a request. Requests must come in the order in which the dictionary outputs them.
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
                .append(segment, offset, &bytes)
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
                self.direct.forget(segment);
                match fs::remove_file(self.path(segment)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fault(error)),
                    Ok(()) | Err(_) => Ok(DiskAnswer::Done),
                }
            }
        }
    }

    fn list(&self) -> io::Result<Vec<SegmentListing>> {
        make_private_directory(&self.directory)?;
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

    fn append(&mut self, segment: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // Makes it where it is new.
        self.file(segment, offset == 0)?;
        let blocks = whole_blocks(offset, bytes);
        let (head, tail) = (0..blocks.start, blocks.end..bytes.len());
        let is_written = self.append_directly(segment, offset, bytes, &blocks)?;
        let rest = match is_written {
            true => [head, tail],
            false => [0..bytes.len(), 0..0],
        };
        let file = self.file(segment, false)?;
        for part in rest {
            file.write_all_at(&bytes[part.clone()], offset + part.start as u64)?;
        }
        Ok(())
    }

    /// Writes these blocks past the page cache. Returns false if that is not supported.
    fn append_directly(
        &mut self,
        segment: u32,
        offset: u64,
        bytes: &[u8],
        blocks: &Range<usize>,
    ) -> io::Result<bool> {
        if blocks.len() < LEAST_DIRECT {
            return Ok(false);
        }
        let path = self.path(segment);
        match &self.direct {
            DirectIo::Refused => return Ok(false),
            DirectIo::To { segment: open, .. } if *open == segment => {}
            DirectIo::To { .. } | DirectIo::Untried => {
                let mut options = OpenOptions::new();
                let file = options
                    .write(true)
                    .custom_flags(libc::O_DIRECT | libc::O_NOFOLLOW)
                    .open(path);
                self.direct = match file {
                    Ok(file) => DirectIo::To { segment, file },
                    Err(error) if is_refusal(&error) => DirectIo::refused(&error),
                    // Nothing is written yet, and the other way is open.
                    Err(_) => DirectIo::Untried,
                };
            }
        }
        let DirectIo::To { file, .. } = &self.direct else {
            return Ok(false);
        };
        match file.write_all_at(&bytes[blocks.clone()], offset + blocks.start as u64) {
            Ok(()) => Ok(true),
            Err(error) if is_refusal(&error) => {
                self.direct = DirectIo::refused(&error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
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
            if self.open.len() >= self.files_max {
                // The oldest segment is the least likely to be written or read next.
                self.open.pop_first();
            }
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(create)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
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

/// Returns the range of whole blocks in these bytes whose alignment in memory equals that in the
/// file; empty if it differs.
fn whole_blocks(offset: u64, bytes: &[u8]) -> Range<usize> {
    let to_block = |address: usize| address.wrapping_neg() % DISK_BLOCK;
    let start = to_block(offset as usize);
    let agree = start == to_block(bytes.as_ptr().addr());
    match bytes.len().checked_sub(start).filter(|_| agree) {
        Some(rest) => start..start + rest / DISK_BLOCK * DISK_BLOCK,
        None => 0..0,
    }
}

/// Returns true if the system reports that direct I/O is not supported there (open(2), write(2)).
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
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
    fn appends_of_any_size_and_alignment_read_back() {
        let state = tempfile::tempdir().unwrap();
        let mut disk = SegmentFiles::new(state.path().join("dictionary"));
        disk.execute(DiskOperation::List).unwrap();
        let content: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
        let memory = Bytes::from(content);
        let mut expected = Vec::new();
        let mut direct = 0;
        for length in [70_000, 5, 131_072, 3_000, 0, 300_000, 66_000] {
            for shift in [0, 1, 2_048] {
                let offset = expected.len() as u64;
                // As far from a block as the file's end, and then a little further.
                let front =
                    (expected.len()).wrapping_sub(memory.as_ptr().addr()) % DISK_BLOCK + shift;
                let bytes = memory.slice(front..front + length);
                let blocks = whole_blocks(offset, &bytes);
                assert_eq!(blocks.is_empty(), shift > 0 || length < 2 * DISK_BLOCK);
                direct += usize::from(blocks.len() >= LEAST_DIRECT);
                expected.extend_from_slice(&bytes);
                let append = DiskOperation::Append {
                    segment: 3,
                    offset,
                    bytes,
                };
                assert_eq!(disk.execute(append), Ok(DiskAnswer::Done));
                let seen = disk.read(3, 0, expected.len() as u32 + 1).unwrap();
                assert!(seen == expected, "{length} bytes at {offset}");
            }
        }
        assert_eq!(direct, 3);
        assert!(fs::read(state.path().join("dictionary/00000003.seg")).unwrap() == expected);
        let probe = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .custom_flags(libc::O_DIRECT)
            .open(state.path().join("probe"));
        let is_direct = matches!(disk.direct, DirectIo::To { segment: 3, .. });
        assert_eq!(is_direct, probe.is_ok(), "{:?}", disk.direct);
        let delete = DiskOperation::Delete { segment: 3 };
        assert_eq!(disk.execute(delete), Ok(DiskAnswer::Done));
        assert!(!matches!(disk.direct, DirectIo::To { .. }));
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
