//! An accelerator's disk in memory, for simulations and tests: it can fail, fill up and lose unsynced data.
//!
//! A request that contradicts the content is answered with a fault, as a damaged disk would.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::files::{
    FileAnswer, FileCompletion, FileFault, FileListing, FileName, FileOperation, FileRequest,
    READ_MAX,
};

/// One accelerator's files.
#[derive(Clone, Debug, Default)]
pub struct MemoryFiles {
    files: BTreeMap<FileName, MemoryFile>,
    /// True if writes fail because the disk is full.
    pub is_full: bool,
}

#[derive(Clone, Debug, Default)]
struct MemoryFile {
    content: Vec<u8>,
    /// The content that survives a crash.
    synced: Option<Vec<u8>>,
}

impl MemoryFiles {
    /// Carries out a request.
    pub fn complete(&mut self, request: FileRequest) -> FileCompletion {
        FileCompletion {
            id: request.id,
            result: self.execute(request.operation),
        }
    }

    /// Crashes the process: of the data written since the last sync of a file, only so many bytes
    /// remain.
    pub fn crash(&mut self, bytes_left: usize) {
        self.files.retain(|_, file| {
            let synced = file.synced.as_ref().map_or(0, Vec::len);
            if file.content.len() >= synced {
                file.content.truncate(synced + bytes_left);
            } else {
                // It was cut, and that was not synced.
                file.content = file.synced.clone().unwrap_or_default();
            }
            file.synced.is_some() || !file.content.is_empty()
        });
    }

    /// The content of a file.
    #[must_use]
    pub fn content(&self, file: &str) -> Option<&[u8]> {
        let file = file.parse().ok()?;
        self.files.get(&file).map(|file| file.content.as_slice())
    }

    /// The names of all files.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.files.keys().map(FileName::to_string).collect()
    }

    /// Gives a file another content, as a fault of the disk would.
    ///
    /// # Panics
    /// When there is no such file.
    #[cfg(any(test, feature = "testing"))]
    pub fn damage(&mut self, file: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        let file = file.parse().ok().and_then(|file| self.files.get_mut(&file));
        let file = file.expect("there is such a file");
        damage(&mut file.content);
        file.synced = Some(file.content.clone());
    }

    fn execute(&mut self, operation: FileOperation) -> Result<FileAnswer, FileFault> {
        match operation {
            FileOperation::List => {
                let files = self.files.iter().map(|(name, file)| FileListing {
                    file: name.clone(),
                    bytes: file.content.len() as u64,
                });
                return Ok(FileAnswer::Files(files.collect()));
            }
            FileOperation::Read {
                file,
                offset,
                length,
            } => {
                let content = &self.existing(&file)?.content;
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let rest = content.get(from..).unwrap_or_default();
                let length = rest.len().min(length.min(READ_MAX) as usize);
                return Ok(FileAnswer::Bytes(Bytes::copy_from_slice(&rest[..length])));
            }
            FileOperation::Append {
                file,
                offset,
                bytes,
            } => {
                self.check_room()?;
                let content = &mut self.files.entry(file).or_default().content;
                if content.len() as u64 != offset {
                    return Err(FileFault::Io(format!(
                        "an append at {offset} is not at the end of the file"
                    )));
                }
                content.extend_from_slice(&bytes);
            }
            FileOperation::Truncate { file, length } => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                self.existing(&file)?.content.truncate(length);
            }
            FileOperation::Sync { file } => {
                let file = self.existing(&file)?;
                file.synced = Some(file.content.clone());
            }
            FileOperation::Replace { file, bytes } => {
                self.check_room()?;
                let file = self.files.entry(file).or_default();
                file.content = bytes.to_vec();
                file.synced = Some(bytes.to_vec());
            }
            FileOperation::Delete { file } => {
                self.files.remove(&file);
            }
        }
        Ok(FileAnswer::Done)
    }

    fn existing(&mut self, file: &FileName) -> Result<&mut MemoryFile, FileFault> {
        self.files.get_mut(file).ok_or(FileFault::Missing)
    }

    fn check_room(&self) -> Result<(), FileFault> {
        match self.is_full {
            true => Err(FileFault::Full),
            false => Ok(()),
        }
    }
}
