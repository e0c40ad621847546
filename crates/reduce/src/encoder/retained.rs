//! Record data that is kept for repair until the peer has acknowledged it.

use bytes::Bytes;

use super::draft::DraftReference;
use crate::dictionary::MemoryLoan;
use crate::fingerprint::ChunkKey;

/// A record that the peer has not acknowledged.
pub(super) struct RetainedRecord {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Number of repair requests for it.
    pub(super) repairs: usize,
    /// The raw bytes, a piece for each operation; `None` where nothing can be missing at the peer,
    /// because the record refers to nothing.
    pub(super) pieces: Option<Vec<Bytes>>,
    /// Bytes of memory that it takes beside them, about.
    pub(super) overhead: usize,
    /// Bytes of them that count as kept here.
    pub(super) own_length: usize,
    /// For the others.
    pub(super) _loan: Option<MemoryLoan>,
    pub(super) references: Vec<DraftReference>,
    pub(super) sources: Vec<ChunkKey>,
    /// Number of sources in each of its groups.
    pub(super) groups: Vec<usize>,
    pub(super) ended: Vec<(ChunkKey, u64)>,
}

impl RetainedRecord {
    /// The keys of a group of its sources.
    pub(super) fn group(&self, number: usize) -> Option<&[ChunkKey]> {
        let count = *self.groups.get(number)?;
        let first: usize = self.groups[..number].iter().sum();
        self.sources.get(first..first + count)
    }
}
