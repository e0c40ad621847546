//! Table of the chunks' anchors, of fixed size, in which newer ones displace older ones.
//!
//! ```text
//! hash ─► slot: owner (32 bits) │ tag (16 bits) │ position (16 bits)
//! owner ─► key of the chunk, in a ring of the last chunks that were taken in
//! ```
//!
//! A result is a guess: the caller compares the bytes. Nothing is ever removed; anchors of a chunk
//! that has left the ring, or the dictionary, are recognised as stale when they are found.

use crate::anchor::ChunkAnchor;
use crate::fingerprint::ChunkKey;

/// Part of the dictionary's memory for the table, as a divisor.
const SHARE: usize = 16;
/// Slots for each chunk in the ring; a chunk of 10 KiB has about a hundred anchors.
const SLOTS_FOR_OWNER: usize = 64;

/// The table.
pub(super) struct AnchorTable {
    slots: Vec<u64>,
    owners: Vec<ChunkKey>,
    /// The number of the chunk that was taken in last; numbers begin at one.
    last: u32,
}

impl AnchorTable {
    /// Makes a table for a dictionary with `memory` bytes.
    pub(super) fn new(memory: usize) -> Self {
        // The largest power of two within the share.
        let slots = 1
            << (memory / SHARE / size_of::<u64>())
                .max(SLOTS_FOR_OWNER)
                .ilog2();
        Self {
            slots: vec![0; slots],
            owners: vec![0; slots / SLOTS_FOR_OWNER],
            last: 0,
        }
    }

    /// Bytes of memory.
    pub(super) fn used(&self) -> usize {
        (self.slots.len() + self.owners.len()) * size_of::<u64>()
    }

    /// Takes a chunk's anchors in; they are found with the same salt only.
    pub(super) fn add(&mut self, key: ChunkKey, anchors: &[ChunkAnchor], salt: u64) {
        // After 2^32 chunks numbers come again; a stale slot then costs a comparison.
        self.last = self.last.wrapping_add(1).max(1);
        let owner = self.last as usize % self.owners.len();
        self.owners[owner] = key;
        for anchor in anchors {
            let hash = anchor.hash ^ salt;
            let slot = self.slot(hash);
            let tag = hash & 0xffff;
            self.slots[slot] = u64::from(self.last) << 32 | tag << 16 | anchor.at as u64 & 0xffff;
        }
    }

    /// Returns a possible location of these bytes: the chunk, and the offset in it.
    pub(super) fn find(&self, hash: u64, salt: u64) -> Option<(ChunkKey, usize)> {
        let hash = hash ^ salt;
        let slot = self.slots[self.slot(hash)];
        let owner = (slot >> 32) as u32;
        let age = self.last.wrapping_sub(owner) as usize;
        if owner == 0 || age >= self.owners.len() || slot >> 16 & 0xffff != hash & 0xffff {
            return None;
        }
        let key = self.owners[owner as usize % self.owners.len()];
        Some((key, slot as usize & 0xffff))
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(0);
        self.owners.fill(0);
    }

    /// Returns the slot of a hash by its highest bits, which groups the anchors kept of
    /// compressible data: they use few pages and cache lines.
    fn slot(&self, hash: u64) -> usize {
        (hash >> (u64::BITS - self.slots.len().ilog2())) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_anchors_displace_older_ones() {
        let mut table = AnchorTable::new(1 << 20);
        assert!(table.used() <= (1 << 20) / SHARE * 65 / 64);
        let anchor = |at, hash| ChunkAnchor { at, hash };
        assert_eq!(table.find(77 << 51, 9), None);
        table.add(5, &[anchor(100, 77 << 51 | 3), anchor(65_500, 78 << 51)], 9);
        assert_eq!(table.find(77 << 51 | 3, 9), Some((5, 100)));
        assert_eq!(table.find(77 << 51 | 4, 9), None);
        assert_eq!(table.find(77 << 51 | 3, 8), None);
        assert_eq!(table.find(78 << 51, 9), Some((5, 65_500)));
        table.add(6, &[anchor(1, 78 << 51)], 9);
        assert_eq!(table.find(78 << 51, 9), Some((6, 1)));
        for key in 7..7 + table.owners.len() as u64 {
            table.add(key, &[], 9);
        }
        assert_eq!(table.find(78 << 51, 9), None);
        table.add(9, &[anchor(2, 78 << 51)], 9);
        table.clear();
        assert_eq!(table.find(78 << 51, 9), None);
    }
}
