//! Memory tier: the bytes of recently used chunks, up to a limit.
//!
//! Eviction is CLOCK (second chance): chunks are in a ring in the order of their arrival. The hand
//! takes the oldest, but a chunk used since the hand last passed stays for another round.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::seeded::SeededBuildHasher;
use crate::fingerprint::ChunkKey;

/// Bookkeeping of one resident chunk in bytes: map slot, `Bytes` handle, ring slot, allocator.
pub(super) const RESIDENT_OVERHEAD: usize = 112;

/// Chunks whose bytes are in memory.
pub(super) struct MemoryTier {
    residents: HashMap<ChunkKey, ResidentChunk, SeededBuildHasher>,
    ring: VecDeque<ChunkKey>,
    bytes: usize,
}

struct ResidentChunk {
    bytes: Bytes,
    used: bool,
}

/// Eviction status of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionStatus {
    /// The chunk may be evicted.
    Free,
    /// The chunk must stay: it has not been written, or is being read and would be lost.
    Pinned,
}

impl MemoryTier {
    pub(super) fn new(seed: SeededBuildHasher) -> Self {
        Self {
            residents: HashMap::with_hasher(seed),
            ring: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Bytes held, bookkeeping included.
    pub(super) fn used(&self) -> usize {
        self.bytes + self.residents.len() * RESIDENT_OVERHEAD
    }

    /// The chunk's bytes; it counts as used.
    pub(super) fn get(&mut self, key: ChunkKey) -> Option<Bytes> {
        let resident = self.residents.get_mut(&key)?;
        resident.used = true;
        Some(resident.bytes.clone())
    }

    /// The chunk's bytes, without counting as use.
    pub(super) fn peek(&self, key: ChunkKey) -> Option<Bytes> {
        self.residents
            .get(&key)
            .map(|resident| resident.bytes.clone())
    }

    pub(super) fn contains(&self, key: ChunkKey) -> bool {
        self.residents.contains_key(&key)
    }

    /// Marks a chunk as used, if it is here.
    pub(super) fn touch(&mut self, key: ChunkKey) {
        if let Some(resident) = self.residents.get_mut(&key) {
            resident.used = true;
        }
    }

    /// Takes a chunk in, with an allocation of its own so that no larger buffer is kept alive.
    pub(super) fn insert(&mut self, key: ChunkKey, bytes: &[u8]) -> Bytes {
        let bytes = Bytes::copy_from_slice(bytes);
        let resident = ResidentChunk {
            bytes: bytes.clone(),
            used: false,
        };
        match self.residents.insert(key, resident) {
            Some(old) => self.bytes -= old.bytes.len(),
            None => self.ring.push_back(key),
        }
        self.bytes += bytes.len();
        bytes
    }

    /// Takes the least recently used chunk out that `hold` lets go; `None` when there is none.
    pub(super) fn evict(
        &mut self,
        mut hold: impl FnMut(ChunkKey) -> EvictionStatus,
    ) -> Option<ChunkKey> {
        for _ in 0..2 * self.ring.len() {
            let key = self.ring.pop_front()?;
            let resident = self.residents.get_mut(&key);
            let resident = resident.expect("the ring holds residents only");
            if resident.used || hold(key) == EvictionStatus::Pinned {
                resident.used = false;
                self.ring.push_back(key);
                continue;
            }
            self.bytes -= resident.bytes.len();
            self.residents.remove(&key);
            return Some(key);
        }
        None
    }

    pub(super) fn clear(&mut self) {
        self.residents.clear();
        self.ring.clear();
        self.bytes = 0;
    }
}
