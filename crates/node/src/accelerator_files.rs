//! Carries out the accelerators' requests for files, in order, on a thread of its own.
//!
//! Each accelerator has a directory in the state directory, `accelerators/NAME`, for the node's user alone.
//! The thread is not the dictionary's, so that neither waits for the other's disk. A sync is fdatasync, and of
//! the directory too when the file is new.
//!
//! A file stays open between a write and its sync, because the kernel reports a disk error only to
//! processes that have the file open by then (fsync(2), since Linux 4.13). A file that must be
//! closed earlier is synced first.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use accelerate::registry::AcceleratorEntry;
use accelerate::shared::{
    FileAnswer, FileCompletion, FileFault, FileListing, FileName, FileOperation, FileRequest,
    LISTED_MAX, READ_MAX,
};
use bytes::Bytes;
use engine::EngineInput;

use crate::mailbox::LoopMailbox;
use crate::private_directory::{
    make_private_directory, open_or_make, remove_durably, sync_directory, write_durably,
};

/// Files kept open, of all accelerators together; each works on one or two.
pub(crate) const OPEN_FILES: usize = 4;

/// The ending of files that are being written and have not their name yet. A [`FileName`] never has it.
const UNFINISHED: &str = ".new";

/// The entrance for requests.
#[derive(Debug)]
pub(crate) struct FilesThread {
    /// `None` once the thread has been asked to end.
    requests: Option<mpsc::Sender<(&'static AcceleratorEntry, FileRequest)>>,
    /// Its other end goes with the thread.
    ended: mpsc::Receiver<()>,
}

impl FilesThread {
    /// Starts the thread; completions go into the mailbox.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(state_directory: &Path, mailbox: LoopMailbox) -> io::Result<Self> {
        let mut files = AcceleratorFiles::new(state_directory.join("accelerators"));
        let (sender, requests) = mpsc::channel::<(&'static AcceleratorEntry, FileRequest)>();
        let (alive, ended) = mpsc::channel();
        thread::Builder::new()
            .name("files".to_owned())
            .spawn(move || {
                let _alive = alive;
                let mut has_listener = true;
                for (accelerator, request) in requests {
                    let completion = files.complete(accelerator.name, request);
                    if let Err(fault) = &completion.result {
                        let accelerator = accelerator.name;
                        tracing::debug!(accelerator, %fault, "a disk request for an accelerator's file failed");
                    }
                    // What was put out before the loop's end is written all the same.
                    let completed = EngineInput::AcceleratorFile {
                        accelerator,
                        completion,
                    };
                    has_listener = has_listener && mailbox.blocking_input(completed).is_ok();
                }
            })?;
        Ok(Self {
            requests: Some(sender),
            ended,
        })
    }

    /// Hands on a request; its completion at once if the thread has ended.
    pub(crate) fn send(
        &self,
        accelerator: &'static AcceleratorEntry,
        request: FileRequest,
    ) -> Result<(), FileCompletion> {
        let id = request.id;
        let sent = self
            .requests
            .as_ref()
            .map(|requests| requests.send((accelerator, request)));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(FileCompletion {
                id,
                result: Err(FileFault::Io(
                    "the thread that reads and writes the accelerators' files has \
                                           ended; restart the node"
                        .to_owned(),
                )),
            }),
        }
    }

    /// Waits until all requests are executed. Returns true if they were, within this time.
    pub(crate) fn finish(&mut self, within: Duration) -> bool {
        self.requests = None;
        match self.ended.recv_timeout(within) {
            Err(RecvTimeoutError::Disconnected) | Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
        }
    }
}

/// An open file of an accelerator's.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
    /// Something was written since the last sync.
    is_dirty: bool,
}

/// The accelerators' directories.
#[derive(Debug)]
pub(crate) struct AcceleratorFiles {
    directory: PathBuf,
    /// The open files; the last used one is at the end.
    open: Vec<OpenFile>,
    /// Directories in which files were made since they were last synced.
    has_new: BTreeSet<PathBuf>,
}

impl AcceleratorFiles {
    /// The directories below this one, each made when it is first written to.
    #[must_use]
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            open: Vec::new(),
            has_new: BTreeSet::new(),
        }
    }

    /// Carries out a request of the accelerator of this name.
    pub(crate) fn complete(&mut self, accelerator: &str, request: FileRequest) -> FileCompletion {
        let directory = self.directory.join(accelerator);
        let result = self.execute(&directory, request.operation);
        FileCompletion {
            id: request.id,
            result: result.map_err(fault),
        }
    }

    fn execute(&mut self, directory: &Path, operation: FileOperation) -> io::Result<FileAnswer> {
        let path = |file: FileName| directory.join(file.as_str());
        match operation {
            FileOperation::List => return list(directory).map(FileAnswer::Files),
            FileOperation::Read {
                file,
                offset,
                length,
            } => return read(&path(file), offset, length).map(FileAnswer::Bytes),
            FileOperation::Append {
                file,
                offset,
                bytes,
            } => {
                make_private_directory(directory)?;
                let path = path(file);
                if !path.try_exists()? {
                    self.has_new.insert(directory.to_owned());
                }
                let open = self.open(path)?;
                open.is_dirty = true;
                open.file.write_all_at(&bytes, offset)?;
            }
            FileOperation::Truncate { file, length } => {
                let open = self.open_existing(path(file))?;
                open.is_dirty = true;
                open.file.set_len(length)?;
            }
            FileOperation::Sync { file } => {
                let open = self.open_existing(path(file))?;
                open.file.sync_data()?;
                open.is_dirty = false;
                if self.has_new.contains(directory) {
                    sync_directory(directory)?;
                    self.has_new.remove(directory);
                }
            }
            FileOperation::Replace { file, bytes } => {
                make_private_directory(directory)?;
                let path = path(file);
                self.forget(&path);
                write_durably(&path, &bytes)?;
            }
            FileOperation::Delete { file } => {
                let path = path(file);
                self.forget(&path);
                match remove_durably(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
        }
        Ok(FileAnswer::Done)
    }

    fn open_existing(&mut self, path: PathBuf) -> io::Result<&mut OpenFile> {
        match path.try_exists()? {
            true => self.open(path),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn open(&mut self, path: PathBuf) -> io::Result<&mut OpenFile> {
        match self.open.iter().position(|open| open.path == path) {
            Some(place) => {
                let open = self.open.remove(place);
                self.open.push(open);
            }
            None => {
                if self.open.len() >= OPEN_FILES {
                    let oldest = self.open.remove(0);
                    if oldest.is_dirty {
                        oldest.file.sync_data()?;
                    }
                }
                let file = open_or_make(&path)?;
                self.open.push(OpenFile {
                    path,
                    file,
                    is_dirty: false,
                });
            }
        }
        Ok(self.open.last_mut().expect("it was just put there"))
    }

    fn forget(&mut self, path: &Path) {
        self.open.retain(|open| open.path != path);
    }
}

/// Lists the files of a directory, and removes those that a crash left incomplete.
fn list(directory: &Path) -> io::Result<Vec<FileListing>> {
    let mut files = Vec::new();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            continue;
        };
        if name.ends_with(UNFINISHED) {
            fs::remove_file(entry.path())?;
            continue;
        }
        let metadata = entry.metadata()?;
        if let (Ok(file), true) = (name.parse(), metadata.is_file()) {
            let bytes = metadata.len();
            files.push(FileListing { file, bytes });
        }
    }
    files.sort_by(|one, other| one.file.cmp(&other.file));
    files.truncate(LISTED_MAX);
    Ok(files)
}

fn read(path: &Path, offset: u64, length: u32) -> io::Result<Bytes> {
    let mut options = fs::OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let mut buffer = vec![0; length.min(READ_MAX) as usize];
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

fn fault(error: io::Error) -> FileFault {
    match error.kind() {
        io::ErrorKind::NotFound => FileFault::Missing,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            FileFault::Full
        }
        _ => FileFault::Io(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn name(text: &str) -> FileName {
        text.parse().unwrap()
    }

    fn append(file: &str, offset: u64, bytes: &'static [u8]) -> FileOperation {
        FileOperation::Append {
            file: name(file),
            offset,
            bytes: Bytes::from_static(bytes),
        }
    }

    fn read_all(file: &str) -> FileOperation {
        FileOperation::Read {
            file: name(file),
            offset: 0,
            length: READ_MAX,
        }
    }

    struct FilesFixture {
        _state: tempfile::TempDir,
        directory: PathBuf,
        files: AcceleratorFiles,
    }

    impl FilesFixture {
        fn new() -> Self {
            let state = tempfile::tempdir().unwrap();
            let directory = state.path().join("accelerators");
            Self {
                files: AcceleratorFiles::new(directory.clone()),
                directory,
                _state: state,
            }
        }

        fn ask(&mut self, operation: FileOperation) -> Result<FileAnswer, FileFault> {
            let request = FileRequest { id: 7, operation };
            let completion = self.files.complete("store", request);
            assert_eq!(completion.id, 7);
            completion.result
        }
    }

    #[test]
    fn files_are_written_read_cut_replaced_and_removed() {
        let mut site = FilesFixture::new();
        assert_eq!(
            site.ask(FileOperation::List),
            Ok(FileAnswer::Files(Vec::new()))
        );
        assert_eq!(site.ask(read_all("log")), Err(FileFault::Missing));
        let file = name("log");
        let sync = FileOperation::Sync { file: file.clone() };
        assert_eq!(site.ask(sync.clone()), Err(FileFault::Missing));
        assert_eq!(site.ask(append("log", 0, b"one")), Ok(FileAnswer::Done));
        assert_eq!(site.ask(append("log", 3, b"two")), Ok(FileAnswer::Done));
        assert_eq!(site.ask(sync), Ok(FileAnswer::Done));
        let cut = FileOperation::Truncate {
            file: file.clone(),
            length: 4,
        };
        assert_eq!(site.ask(cut), Ok(FileAnswer::Done));
        let bytes = |text: &'static str| Ok(FileAnswer::Bytes(Bytes::from_static(text.as_bytes())));
        assert_eq!(site.ask(read_all("log")), bytes("onet"));
        let replace = FileOperation::Replace {
            file: file.clone(),
            bytes: Bytes::from_static(b"whole"),
        };
        assert_eq!(site.ask(replace), Ok(FileAnswer::Done));
        // Not to the file that had the name before.
        assert_eq!(site.ask(append("log", 5, b"!")), Ok(FileAnswer::Done));
        assert_eq!(site.ask(read_all("log")), bytes("whole!"));
        let delete = FileOperation::Delete { file };
        assert_eq!(site.ask(delete.clone()), Ok(FileAnswer::Done));
        assert_eq!(site.ask(delete), Ok(FileAnswer::Done));
        assert_eq!(site.ask(read_all("log")), Err(FileFault::Missing));
    }

    #[test]
    fn partial_file_of_a_crash_is_removed() {
        let mut site = FilesFixture::new();
        site.ask(append("log", 0, b"one")).unwrap();
        let directory = site.directory.join("store");
        fs::write(directory.join("index.0123456789abcdef.new"), "half").unwrap();
        fs::write(directory.join("Not ours"), "").unwrap();
        fs::create_dir(directory.join("directory")).unwrap();
        let listing = FileListing {
            file: name("log"),
            bytes: 3,
        };
        assert_eq!(
            site.ask(FileOperation::List),
            Ok(FileAnswer::Files(vec![listing]))
        );
        assert!(!directory.join("index.0123456789abcdef.new").exists());
        assert!(directory.join("Not ours").exists());
    }

    #[test]
    fn files_are_for_the_nodes_user_alone() {
        let mut site = FilesFixture::new();
        site.ask(append("log", 0, b"one")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&site.directory.join("store")), 0o700);
        assert_eq!(mode(&site.directory.join("store/log")), 0o600);
    }

    #[test]
    fn more_files_than_stay_open_all_work() {
        let mut site = FilesFixture::new();
        let names: Vec<String> = (0..OPEN_FILES + 3).map(|at| format!("f{at}")).collect();
        for file in &names {
            site.ask(append(file, 0, b"one")).unwrap();
        }
        for file in &names {
            site.ask(append(file, 3, b"two")).unwrap();
            let sync = FileOperation::Sync { file: name(file) };
            assert_eq!(site.ask(sync), Ok(FileAnswer::Done));
        }
        assert!(site.files.open.len() <= OPEN_FILES);
        assert!(names.iter().all(|file| {
            site.ask(read_all(file)) == Ok(FileAnswer::Bytes(Bytes::from_static(b"onetwo")))
        }));
    }
}
