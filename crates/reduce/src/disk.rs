//! Disk interface of the dictionary: requests out, completions in.
//!
//! The dictionary opens no file. It hands out [`DiskRequest`]s, each with an id, and each is
//! completed by a [`DiskCompletion`] with the same id. Segment `number` is the file
//! [`segment_file_name`] in the dictionary's own directory; other files there are not touched.
//!
//! ```text
//!   Dictionary ──poll_disk──► DiskRequest{id, operation} ──► shell: files, threads
//!              ◄─handle_disk─ DiskCompletion{id, result}  ◄──┘
//! ```
//!
//! The shell guarantees that requests for the same segment run in the order in which they were
//! handed out (those for different segments may overtake each other), that every request is
//! completed exactly once, and that a failed append or sync is reported as failed. It need not make
//! appends durable before a [`DiskOperation::Sync`].

use bytes::Bytes;

/// One piece of disk work with the id that its completion must carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskRequest {
    /// Counts up from 1; never used twice in the life of a dictionary.
    pub id: u64,
    /// Operation to perform.
    pub operation: DiskOperation,
}

/// Disk operation that the dictionary requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    /// Name all segments and their lengths. Answer: [`DiskAnswer::Segments`]. A directory that
    /// does not exist is made and answered with an empty list.
    List,
    /// Read `length` bytes at `offset`; fewer, or none, where the file ends earlier. Answer:
    /// [`DiskAnswer::Bytes`].
    Read {
        /// The segment's number.
        segment: u32,
        /// Start offset in the file, in bytes.
        offset: u64,
        /// Bytes wanted, at most [`crate::MAX_DISK_READ`].
        length: u32,
    },
    /// Write all of `bytes` at `offset`, the end of the file as the dictionary knows it (after a
    /// failed append it may overwrite the partial data). Makes the file at offset 0. For chunks,
    /// the address of the bytes has the same remainder modulo [`crate::DISK_BLOCK`] as `offset`, so
    /// that whole blocks can be written in place; do not rely on it. Answer: [`DiskAnswer::Done`].
    Append {
        /// The segment's number.
        segment: u32,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Bytes to write, at most [`crate::MAX_DISK_APPEND`].
        bytes: Bytes,
    },
    /// Cut the file to `length` bytes: a torn tail found at recovery. Answer:
    /// [`DiskAnswer::Done`].
    Truncate {
        /// The segment's number.
        segment: u32,
        /// The new length in bytes.
        length: u64,
    },
    /// Make the segment's appended data and the file's existence durable (fdatasync, also of the
    /// directory when the file is new). Answer: [`DiskAnswer::Done`].
    Sync {
        /// The segment's number.
        segment: u32,
    },
    /// Remove the file; it is fine if it is gone. Answer: [`DiskAnswer::Done`].
    Delete {
        /// The segment's number.
        segment: u32,
    },
}

/// The end of the request with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCompletion {
    /// The id of the request.
    pub id: u64,
    /// Result of the operation.
    pub result: Result<DiskAnswer, DiskFault>,
}

/// Answer to a successful disk request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskAnswer {
    /// All segments there are, in any order.
    Segments(Vec<SegmentListing>),
    /// The bytes read.
    Bytes(Bytes),
    /// The operation is complete.
    Done,
}

/// One segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentListing {
    /// The segment's number, read from the file's name by [`parse_segment_file_name`].
    pub number: u32,
    /// The file's length in bytes.
    pub bytes: u64,
}

/// Cause of a failed request. The dictionary continues in every case; it is a cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskFault {
    /// No space left, or a quota is used up: writing is tried again later.
    #[error("the disk is full")]
    Full,
    /// The file is not there.
    #[error("the segment file is gone")]
    Missing,
    /// Anything else, in the system's words.
    #[error("{0}")]
    Io(String),
}

/// The file name of a segment: its number in at least eight decimal digits and `.seg`.
#[must_use]
pub fn segment_file_name(number: u32) -> String {
    format!("{number:08}.seg")
}

/// The segment's number if the name is one that [`segment_file_name`] gives.
#[must_use]
pub fn parse_segment_file_name(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".seg")?;
    let number = digits.parse().ok()?;
    (segment_file_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_file_names_are_segments() {
        assert_eq!(segment_file_name(31), "00000031.seg");
        assert_eq!(parse_segment_file_name("00000031.seg"), Some(31));
        for other in ["31.seg", "0000001f.seg", "+0000031.seg", "00000031.tmp", ""] {
            assert_eq!(parse_segment_file_name(other), None, "{other}");
        }
    }
}
