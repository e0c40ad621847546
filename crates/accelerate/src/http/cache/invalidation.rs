//! Invalidations that a response under way may have missed.
//!
//! ```text
//!   GET asked (generation 7) ─────── answer ends ─► store: refused, because /a was invalidated at 8
//!          POST /a, or a purge (generation 8)
//! ```
//! A response that was asked for before its URL was invalidated may show the state before. It goes to its own client, and is
//! not stored. URLs share slots, so an invalidation may also keep a response of another URL from being stored.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::key::CacheKey;

/// Slots of the table: 32 kB. A thousand unsafe requests during one fetch keep it from being stored by chance one time in
/// four.
const SLOTS: usize = 4_096;

/// A moment in the order of invalidations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CacheGeneration(u64);

/// The last invalidation of each URL.
#[derive(Debug)]
pub(super) struct InvalidationTable {
    now: CacheGeneration,
    /// The last one of all URLs.
    all: CacheGeneration,
    /// The last one of any URL of each slot.
    slots: Vec<CacheGeneration>,
}

impl InvalidationTable {
    /// A table without an invalidation.
    pub(super) fn new() -> Self {
        let start = CacheGeneration(0);
        Self {
            now: start,
            all: start,
            slots: vec![start; SLOTS],
        }
    }

    /// The generation of a response that is asked for now.
    pub(super) fn current(&self) -> CacheGeneration {
        self.now
    }

    /// Marks a key whose content may have changed at the server.
    pub(super) fn note(&mut self, key: &CacheKey) {
        self.now.0 += 1;
        self.slots[slot(key)] = self.now;
    }

    /// Nothing that is under way may be stored.
    pub(super) fn note_all(&mut self) {
        self.now.0 += 1;
        self.all = self.now;
    }

    /// True if a response that was asked for in `asked` may have missed an invalidation.
    pub(super) fn is_missed(&self, asked: CacheGeneration, key: &CacheKey) -> bool {
        asked < self.all.max(self.slots[slot(key)])
    }
}

fn slot(key: &CacheKey) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() as usize % SLOTS
}
