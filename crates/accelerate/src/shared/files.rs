//! Requests of an accelerator to the disk, and their answers.
//!
//! A file has a name in the accelerator's own directory. Two forms suffice: a log, which is
//! appended to, synced and read from its beginning, and a small file that is replaced as a whole.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

/// The longest name of a file, in bytes. It leaves room for an ending below the 255 bytes of common file
/// systems.
pub const FILE_NAME_MAX: usize = 64;

/// Bytes that one read gives at most, so that a file that grew does not fill the memory.
pub const READ_MAX: u32 = 1 << 20;

/// Files that a listing names at most; more than any accelerator makes, and some 400 kB.
pub const LISTED_MAX: usize = 4_096;

/// The name of a file: 1 to [`FILE_NAME_MAX`] lower-case letters, digits, `.`, `-` and `_`. It
/// begins with a letter or digit, and does not end in `.new`. So no name leads out of its directory
/// or equals that of an incomplete file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(String);

impl FileName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FileName {
    type Err = InvalidFileName;

    fn from_str(text: &str) -> Result<Self, InvalidFileName> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_valid = text.len() <= FILE_NAME_MAX
            && text.starts_with(plain)
            && !text.ends_with(".new")
            && text
                .chars()
                .all(|c| plain(c) || matches!(c, '.' | '-' | '_'));
        match is_valid {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidFileName),
        }
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&self.0)
    }
}

/// A text is not a [`FileName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a file's name must have 1 to {FILE_NAME_MAX} characters from a to z, 0 to 9, `.`, `-` and `_`; it \
     begins with a letter or digit, and does not end with `.new`"
)]
pub struct InvalidFileName;

/// A request for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRequest {
    /// Chosen by the accelerator; used by no other request that has not ended.
    pub id: u64,
    /// The operation and its file.
    pub operation: FileOperation,
}

/// An operation on one file of an accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileOperation {
    /// Name the files that there are; answered by [`FileAnswer::Files`].
    List,
    /// Read; answered by [`FileAnswer::Bytes`], which are fewer at the file's end and beyond [`READ_MAX`].
    Read {
        /// The file's name.
        file: FileName,
        /// From here on.
        offset: u64,
        /// So many bytes at most.
        length: u32,
    },
    /// Write at this offset, which is the file's end. A missing file is created.
    Append {
        /// The file's name.
        file: FileName,
        /// Its length so far.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// Cut the file to this length.
    Truncate {
        /// The file's name.
        file: FileName,
        /// Its new length.
        length: u64,
    },
    /// Make the written data and the file's name durable.
    Sync {
        /// The file's name.
        file: FileName,
    },
    /// Replace the file as a whole, durably: after a crash it has its old content or the new one.
    Replace {
        /// The file's name.
        file: FileName,
        /// Its new content.
        bytes: Bytes,
    },
    /// Remove the file, durably. A missing file is no fault.
    Delete {
        /// The file's name.
        file: FileName,
    },
}

impl FileOperation {
    /// Bytes that the operation holds in memory until it has ended.
    #[must_use]
    pub fn held(&self) -> usize {
        match self {
            Self::Append { bytes, .. } | Self::Replace { bytes, .. } => bytes.len(),
            Self::Read { length, .. } => (*length).min(READ_MAX) as usize,
            Self::List | Self::Truncate { .. } | Self::Sync { .. } | Self::Delete { .. } => 0,
        }
    }
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCompletion {
    /// The request's number.
    pub id: u64,
    /// The answer, or the fault of the disk.
    pub result: Result<FileAnswer, FileFault>,
}

/// The answer to a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileAnswer {
    /// It was done.
    Done,
    /// The bytes that were read.
    Bytes(Bytes),
    /// The files that there are, [`LISTED_MAX`] at most.
    Files(Vec<FileListing>),
}

/// An existing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileListing {
    /// Its name.
    pub file: FileName,
    /// Its length.
    pub bytes: u64,
}

/// The reason why a request failed. A failed write may have written some of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileFault {
    /// There is no such file.
    #[error("the file does not exist")]
    Missing,
    /// The disk is full, or a quota reached.
    #[error("the disk is full")]
    Full,
    /// Another error, as the system reported it.
    #[error("{0}")]
    Io(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["index", "index.log", "0-a_b.new.1"] {
            assert_eq!(name.parse::<FileName>().unwrap().as_str(), name);
        }
        let long = "a".repeat(FILE_NAME_MAX + 1);
        for name in [
            "", ".", "..", ".a", "../a", "a/b", "A", "a b", "ä", "-a", "a.new", &long,
        ] {
            assert_eq!(name.parse::<FileName>(), Err(InvalidFileName), "{name}");
        }
    }
}
