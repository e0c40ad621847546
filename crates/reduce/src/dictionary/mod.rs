//! The dictionary (signatures; the body follows).
#![allow(unused_variables)]
use vocab::{NodeId, Random, Time};

use crate::{DictionaryConfig, DiskCompletion, DiskRequest};

/// Which peer's holdings are meant; cheap to copy, valid for the dictionary that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerSlot(Option<u8>);

/// What the dictionary has done and holds; counters since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DictionaryStatistics {
    /// Chunks that can be looked up, in memory or on disk.
    pub chunks: u64,
    /// Bytes of memory used, bookkeeping included.
    pub memory_bytes: u64,
    /// Bytes in segment files.
    pub disk_bytes: u64,
    /// Segment files.
    pub segments: u64,
    /// Look-ups that found their chunk in memory.
    pub memory_hits: u64,
    /// Look-ups that found their chunk on disk.
    pub disk_hits: u64,
    /// Look-ups that found nothing.
    pub misses: u64,
    /// Chunks dropped from memory.
    pub evictions: u64,
    /// Disk requests that failed.
    pub disk_faults: u64,
    /// Stretches of segments that were damaged and skipped, and chunks that did not verify.
    pub damaged_records: u64,
    /// Segments set aside: garbage or another version.
    pub rejected_segments: u64,
    /// Chunks not written because the disk was full, failing or too slow.
    pub unwritten_chunks: u64,
}

/// Everything remembered, for all peers and flows.
pub struct Dictionary {}

impl Dictionary {
    /// An empty dictionary; the disk is not touched before [`Self::open`].
    #[must_use]
    pub fn new(config: DictionaryConfig, random: Random) -> Self {
        Self {}
    }
    /// Starts recovery from disk.
    pub fn open(&mut self) {}
    /// Whether recovery is over. The dictionary can be used before.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        true
    }
    /// Whether [`Self::generation`] is final: recovery has seen the disk's. Tell it to no peer before.
    #[must_use]
    pub fn is_identified(&self) -> bool {
        true
    }
    /// The random id of this dictionary; changes when it is emptied.
    #[must_use]
    pub fn generation(&self) -> [u8; 16] {
        [0; 16]
    }
    /// The next piece of disk work, if there is any.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        None
    }
    /// Takes in the end of a piece of disk work.
    pub fn handle_disk(&mut self, completion: DiskCompletion) {}
    /// When [`Self::handle_timeout`] wants to be called (syncs, retries).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }
    /// Tells the dictionary the time; any time is fine, also before [`Self::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Time) {}
    /// The slot of a peer, given out at its first mention.
    pub fn peer(&mut self, node: NodeId) -> PeerSlot {
        PeerSlot(None)
    }
    /// The peer's dictionary is another one than before: nothing is known of it.
    pub fn forget_peer(&mut self, slot: PeerSlot) {}
    /// Empties memory and disk and takes a new generation.
    pub fn clear(&mut self) {}
    /// Counters and sizes.
    #[must_use]
    pub fn statistics(&self) -> DictionaryStatistics {
        DictionaryStatistics::default()
    }
}
