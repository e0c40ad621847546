//! Links that hold only for the flows of one peer.
//!
//! A chunk's entry in the index has room for one link. Where the flows of two peers continue
//! differently after a chunk that both have, the link in the index is kept and the other one is
//! stored here. Otherwise a peer could notice from a changed link that somebody else has sent or
//! received the same chunk.
//!
//! The table has a fixed size and each link one place in it: a newer one replaces an older one. A
//! lost link costs one repair of keys.

use std::hash::{BuildHasher, Hasher};

use super::seeded::SeededBuildHasher;
use crate::fingerprint::ChunkKey;

/// Part of the dictionary's memory for these links, as a divisor: 131,072 of them in 256 MiB.
const MEMORY_PART: usize = 128;

/// The table; it takes no memory until there is a link.
pub(super) struct OwnLinks {
    seed: SeededBuildHasher,
    most: usize,
    links: Vec<OwnLink>,
}

#[derive(Clone, Copy, Default)]
struct OwnLink {
    /// The hash of the peer and of the chunk that the link begins at; zero where there is none.
    from: u64,
    to: ChunkKey,
}

impl OwnLinks {
    /// Makes the links of a dictionary with `memory` bytes of memory.
    pub(super) fn new(seed: SeededBuildHasher, memory: usize) -> Self {
        Self {
            seed,
            most: (memory / MEMORY_PART / size_of::<OwnLink>()).max(1),
            links: Vec::new(),
        }
    }

    /// Bytes that are allocated.
    pub(super) fn used(&self) -> usize {
        self.links.capacity() * size_of::<OwnLink>()
    }

    pub(super) fn clear(&mut self) {
        self.links = Vec::new();
    }

    /// Notes that in the flows of the peer in this slot `to` came after `from`.
    pub(super) fn insert(&mut self, slot: u8, from: ChunkKey, to: ChunkKey) {
        if self.links.is_empty() {
            self.links = vec![OwnLink::default(); self.most];
        }
        let from = self.name(slot, from);
        let place = from as usize % self.most;
        self.links[place] = OwnLink { from, to };
    }

    /// The link in the index holds for the peer as well.
    pub(super) fn remove(&mut self, slot: u8, from: ChunkKey) {
        if let Some(place) = self.find(slot, from) {
            self.links[place] = OwnLink::default();
        }
    }

    pub(super) fn get(&self, slot: u8, from: ChunkKey) -> Option<ChunkKey> {
        self.find(slot, from).map(|place| self.links[place].to)
    }

    fn find(&self, slot: u8, from: ChunkKey) -> Option<usize> {
        if self.links.is_empty() {
            return None;
        }
        let from = self.name(slot, from);
        let place = from as usize % self.most;
        (self.links[place].from == from).then_some(place)
    }

    fn name(&self, slot: u8, from: ChunkKey) -> u64 {
        let mut hasher = self.seed.build_hasher();
        hasher.write_u64(from);
        hasher.write_u64(u64::from(slot) + 1);
        hasher.finish().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_links_stay_within_their_share() {
        let mut links = OwnLinks::new(SeededBuildHasher(1), 1 << 20);
        assert_eq!((links.used(), links.get(0, 5)), (0, None));
        links.insert(0, 5, 6);
        links.insert(1, 5, 7);
        assert_eq!((links.get(0, 5), links.get(1, 5)), (Some(6), Some(7)));
        links.remove(0, 5);
        assert_eq!((links.get(0, 5), links.get(1, 5)), (None, Some(7)));
        for from in 0..10_000 {
            links.insert(0, from, from + 1);
        }
        assert_eq!(links.used(), (1 << 20) / MEMORY_PART);
    }
}
