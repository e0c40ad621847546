//! Index of all chunks, in under 50 bytes a chunk in total.
//!
//! ```text
//! key ─► bucket: slot ─► entry in its page ─► entry ─► …          (linear hashing, chained)
//!                          │ peers: number of an interned pair of sets: who holds it, who may refer to it
//!                          │ next, previous: slots of the chunks beside it
//!                          └ place: number of a segment and an offset in it
//! ```
//! A dictionary of a terabyte has a hundred million entries, so repeated values are stored once:
//! sets of peers and segments have short numbers here, and links are slots. Pages are never moved
//! and buckets are split one at a time (Litwin, "Linear hashing: a new tool for file and table
//! addressing", 1980), so growth causes neither doubling nor a pause.
//!
//! A chunk that is being read for a content handle is pinned: its entry counts the readers
//! (`index/pins.rs`).
//!
//! A free slot may still be the target of links. It is reused only after [`ChunkIndex::sweep`] has
//! passed over all entries and cut these links. Until then a link to it leads nowhere.

mod pins;
mod segments;

use std::collections::HashMap;
use std::hash::BuildHasher;

use super::seeded::SeededBuildHasher;
use super::{DiskLocation, NO_KEY};
use crate::fingerprint::ChunkKey;
use pins::PinnedTotals;
use segments::SegmentNumbers;

/// Entries that are allocated together: little is wasted in a small dictionary, and the table of
/// pages is short in a large one.
const PAGE: usize = 256;
/// Buckets that are allocated together.
const BUCKET_PAGE: usize = 256;
/// Entries for each bucket: two more steps in a look-up against half of the buckets' memory.
const LOAD: usize = 2;
/// Entries that the sweep looks at for each one that comes or goes. Slots wait for a pass to end,
/// so this bounds those that wait to a thirty-second of all in a steady state.
const SWEEP_STEP: u32 = 64;
/// Largest number of distinct pairs of peer sets; the numbers have sixteen bits.
const MAX_SETS: usize = 1 << 16;

/// Stands for "no slot" in links and chains.
const NOWHERE: u32 = u32::MAX;
const PLACE_NOWHERE: u16 = 0;
const PLACE_QUEUED: u16 = 1;
const PLACE_WRITING: u16 = 2;
const FIRST_SEGMENT: u16 = 3;

/// Memory of one entry in bytes, its share of the buckets and its place in a segment's list
/// included.
pub(super) const ENTRY_MEMORY: usize = size_of::<IndexEntry>() + 4 / LOAD + 4;

/// Slot of an entry, valid until the entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntrySlot(u32);

/// Index entry of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownChunk {
    pub(super) slot: EntrySlot,
    pub(super) key: ChunkKey,
    /// The second half of what identifies it.
    pub(super) check: u64,
    pub(super) peers: ChunkPeers,
    pub(super) length: usize,
    pub(super) place: DiskLocation,
    /// True if the chunk is pinned for a reader of a body that it is part of.
    pub(super) is_pinned: bool,
}

impl KnownChunk {
    /// Returns `true` if the chunk's record is in the log or about to be, so that changes have to
    /// be logged as well.
    pub(super) fn is_written(&self) -> bool {
        match self.place {
            DiskLocation::Writing | DiskLocation::At { .. } => true,
            DiskLocation::Nowhere | DiskLocation::Queued => false,
        }
    }
}

/// Peers' relations to a chunk, one bit for each peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ChunkPeers {
    /// Peers that are known to hold it now.
    pub(super) holders: u64,
    /// Peers that sent its bytes or were sent them. Only they may refer to it. Every holder is one of
    /// them; a reader that lost the chunk is no holder.
    pub(super) readers: u64,
}

impl ChunkPeers {
    /// Peers that hold a chunk and may refer to it.
    pub(super) fn holding(peers: u64) -> Self {
        Self {
            holders: peers,
            readers: peers,
        }
    }

    pub(super) fn and_reader(self, peers: u64) -> Self {
        Self {
            readers: self.readers | peers,
            ..self
        }
    }

    pub(super) fn and_holder(self, peers: u64) -> Self {
        Self {
            holders: self.holders | peers,
            readers: self.readers | peers,
        }
    }

    pub(super) fn joined_with(self, other: Self) -> Self {
        Self {
            holders: self.holders | other.holders,
            readers: self.readers | other.readers,
        }
    }

    /// Removes peers that turned out not to hold it. They may refer to it as before.
    pub(super) fn without_holder(self, peers: u64) -> Self {
        Self {
            holders: self.holders & !peers,
            ..self
        }
    }

    /// Returns `true` if every bit of this set is also in `other`.
    fn is_within(self, other: Self) -> bool {
        self.holders & !other.holders == 0 && self.readers & !other.readers == 0
    }
}

/// Result of noting that one chunk followed another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkOutcome {
    Noted,
    /// The chunk's link is one that other peers may follow, and stays as it is.
    OthersFollowIt,
}

/// One chunk as it is kept.
#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    /// [`NO_KEY`] in a slot that is free.
    key: ChunkKey,
    check: u64,
    /// The next entry of its bucket.
    chain: u32,
    next: u32,
    previous: u32,
    offset: u32,
    place: u16,
    length_less_one: u16,
    /// The number of its [`ChunkPeers`].
    peers: u16,
    used: bool,
    /// Bodies that are read or kept and have it pinned.
    pins: u8,
}

const FREE: IndexEntry = IndexEntry {
    key: NO_KEY,
    check: 0,
    chain: NOWHERE,
    next: NOWHERE,
    previous: NOWHERE,
    offset: 0,
    place: PLACE_NOWHERE,
    length_less_one: 0,
    peers: 0,
    used: false,
    pins: 0,
};

/// All entries.
#[expect(
    clippy::vec_box,
    reason = "a table of pages that are never moved is the point"
)]
pub(super) struct ChunkIndex {
    seed: SeededBuildHasher,
    pages: Vec<Box<[IndexEntry; PAGE]>>,
    /// Slots that were ever given out; those beyond have never been used.
    given: u32,
    buckets: Vec<Box<[u32; BUCKET_PAGE]>>,
    bucket_count: usize,
    length: usize,
    sets: PeerSets,
    segments: SegmentNumbers,
    /// Totals of the pinned chunks.
    pinned: PinnedTotals,
    /// Slots to which no link leads any more.
    free: Vec<u32>,
    /// Slots that became free before the sweep's pass began.
    swept: Vec<u32>,
    /// Slots that became free since.
    freed: Vec<u32>,
    /// Position of the sweep.
    hand: u32,
}

impl ChunkIndex {
    pub(super) fn new(seed: SeededBuildHasher) -> Self {
        Self {
            seed,
            pages: Vec::new(),
            given: 0,
            buckets: Vec::new(),
            bucket_count: 0,
            length: 0,
            sets: PeerSets::new(),
            segments: SegmentNumbers::default(),
            pinned: PinnedTotals::default(),
            free: Vec::new(),
            swept: Vec::new(),
            freed: Vec::new(),
            hand: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.seed);
    }

    /// Chunks in it.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Bytes that are allocated for it; the lists of the segments are the log's.
    pub(super) fn bytes(&self) -> usize {
        self.pages.len() * size_of::<[IndexEntry; PAGE]>()
            + self.buckets.len() * size_of::<[u32; BUCKET_PAGE]>()
            + (self.pages.capacity() + self.buckets.capacity()) * size_of::<usize>()
            + (self.free.capacity() + self.swept.capacity() + self.freed.capacity())
                * size_of::<u32>()
            + self.sets.bytes()
            + self.segments.bytes()
    }

    pub(super) fn get(&self, key: ChunkKey) -> Option<KnownChunk> {
        self.find(key).map(|slot| self.known(EntrySlot(slot)))
    }

    /// Returns the entry in a slot, if there is one.
    pub(super) fn at(&self, slot: EntrySlot) -> Option<KnownChunk> {
        let used = slot.0 < self.given && self.entry(slot.0).key != NO_KEY;
        used.then(|| self.known(slot))
    }

    /// Adds a chunk that is not there.
    pub(super) fn insert(&mut self, key: ChunkKey, check: u64, length: usize) -> EntrySlot {
        debug_assert!(self.find(key).is_none() && key != NO_KEY);
        self.sweep();
        if self.length >= self.bucket_count * LOAD {
            self.split_bucket();
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            if self.given as usize == self.pages.len() * PAGE {
                self.pages.push(Box::new([FREE; PAGE]));
            }
            self.given += 1;
            self.given - 1
        });
        let bucket = self.bucket_of(key);
        *self.entry_mut(slot) = IndexEntry {
            key,
            check,
            chain: self.head(bucket),
            length_less_one: u16::try_from(length - 1).expect("a chunk has 64 KiB at most"),
            ..FREE
        };
        *self.head_mut(bucket) = slot;
        self.length += 1;
        EntrySlot(slot)
    }

    pub(super) fn remove(&mut self, key: ChunkKey) {
        let Some(slot) = self.find(key) else { return };
        let chain = self.entry(slot).chain;
        let bucket = self.bucket_of(key);
        if self.head(bucket) == slot {
            *self.head_mut(bucket) = chain;
        } else {
            let mut before = self.head(bucket);
            while self.entry(before).chain != slot {
                before = self.entry(before).chain;
            }
            self.entry_mut(before).chain = chain;
        }
        self.sets.release(self.entry(slot).peers);
        self.uncount_pinned(slot);
        *self.entry_mut(slot) = FREE;
        self.freed.push(slot);
        self.length -= 1;
        self.sweep();
    }

    pub(super) fn set_place(&mut self, slot: EntrySlot, place: DiskLocation) {
        let (place, offset) = match place {
            DiskLocation::Nowhere => (PLACE_NOWHERE, 0),
            DiskLocation::Queued => (PLACE_QUEUED, 0),
            DiskLocation::Writing => (PLACE_WRITING, 0),
            DiskLocation::At { segment, offset } => match self.segments.number(segment) {
                Some(number) => (FIRST_SEGMENT + number, offset),
                None => (PLACE_NOWHERE, 0),
            },
        };
        self.uncount_pinned(slot.0);
        let entry = self.entry_mut(slot.0);
        entry.place = place;
        entry.offset = offset;
        self.count_pinned(slot.0);
    }

    /// No chunk is in this segment any more: its number can stand for another one.
    pub(super) fn release_segment(&mut self, segment: u32) {
        self.segments.release(segment);
    }

    pub(super) fn set_peers(&mut self, slot: EntrySlot, peers: ChunkPeers) {
        let number = self.entry(slot.0).peers;
        let number = self.sets.exchange(number, peers);
        self.entry_mut(slot.0).peers = number;
    }

    /// Forgets all holdings of these peers.
    pub(super) fn forget_holders(&mut self, peers: u64) {
        self.sets.forget_holders(peers);
    }

    /// Marks a chunk as used.
    pub(super) fn touch(&mut self, slot: EntrySlot) {
        self.entry_mut(slot.0).used = true;
    }

    /// Returns `true` if the chunk was used since it was added or since the last call.
    pub(super) fn take_used(&mut self, slot: EntrySlot) -> bool {
        std::mem::take(&mut self.entry_mut(slot.0).used)
    }

    /// Records that `key` followed `previous` in a flow of these peers, unless that would take from
    /// other peers a link that they may follow. A peer must not learn of other peers' flows from
    /// its own links.
    pub(super) fn link(&mut self, previous: ChunkKey, key: ChunkKey, peers: u64) -> LinkOutcome {
        let before = self.find(previous).unwrap_or(NOWHERE);
        let after = self.find(key).unwrap_or(NOWHERE);
        if before == after {
            return LinkOutcome::Noted;
        }
        if after != NOWHERE {
            self.entry_mut(after).previous = before;
        }
        if before == NOWHERE || after == NOWHERE {
            return LinkOutcome::Noted;
        }
        let IndexEntry { next, .. } = *self.entry(before);
        if next != NOWHERE && next != after && self.key_at(next) != NO_KEY {
            let both = self.readers_at(before) & self.readers_at(next);
            if both & !peers != 0 {
                return LinkOutcome::OthersFollowIt;
            }
        }
        self.entry_mut(before).next = after;
        LinkOutcome::Noted
    }

    /// [`Self::next`], if one of these peers may refer to both chunks.
    pub(super) fn next_for(&self, key: ChunkKey, peers: u64) -> ChunkKey {
        let Some(slot) = self.find(key) else {
            return NO_KEY;
        };
        let next = self.entry(slot).next;
        if next == NOWHERE || self.readers_at(slot) & self.readers_at(next) & peers == 0 {
            return NO_KEY;
        }
        self.entry(next).key
    }

    fn readers_at(&self, slot: u32) -> u64 {
        self.sets.peers(self.entry(slot).peers).readers
    }

    /// The key of the chunk that was last seen after this one, or [`NO_KEY`].
    pub(super) fn next(&self, key: ChunkKey) -> ChunkKey {
        let slot = self.find(key);
        slot.map_or(NO_KEY, |slot| self.key_at(self.entry(slot).next))
    }

    /// The key of the chunk that was last seen before this one, or [`NO_KEY`].
    pub(super) fn previous(&self, key: ChunkKey) -> ChunkKey {
        let slot = self.find(key);
        slot.map_or(NO_KEY, |slot| self.key_at(self.entry(slot).previous))
    }

    fn key_at(&self, slot: u32) -> ChunkKey {
        if slot == NOWHERE {
            NO_KEY
        } else {
            self.entry(slot).key
        }
    }

    fn known(&self, slot: EntrySlot) -> KnownChunk {
        let entry = self.entry(slot.0);
        KnownChunk {
            slot,
            key: entry.key,
            check: entry.check,
            peers: self.sets.peers(entry.peers),
            length: usize::from(entry.length_less_one) + 1,
            place: match entry.place {
                PLACE_NOWHERE => DiskLocation::Nowhere,
                PLACE_QUEUED => DiskLocation::Queued,
                PLACE_WRITING => DiskLocation::Writing,
                number => DiskLocation::At {
                    segment: self.segments.segment(number - FIRST_SEGMENT),
                    offset: entry.offset,
                },
            },
            is_pinned: entry.pins > 0,
        }
    }

    fn find(&self, key: ChunkKey) -> Option<u32> {
        if self.bucket_count == 0 || key == NO_KEY {
            return None;
        }
        let mut slot = self.head(self.bucket_of(key));
        while slot != NOWHERE {
            let entry = self.entry(slot);
            if entry.key == key {
                return Some(slot);
            }
            slot = entry.chain;
        }
        None
    }

    /// Linear hashing: as many of the hash's bits as there are buckets for, one less for those
    /// buckets that are not split yet.
    fn bucket_of(&self, key: ChunkKey) -> usize {
        let hash = self.seed.hash_one(key) as usize;
        let wide = self.bucket_count.next_power_of_two();
        let bucket = hash & (wide - 1);
        if bucket < self.bucket_count {
            bucket
        } else {
            bucket & (wide / 2 - 1)
        }
    }

    /// Adds a bucket and moves there what belongs to it from the one it splits.
    fn split_bucket(&mut self) {
        let new = self.bucket_count;
        if new == self.buckets.len() * BUCKET_PAGE {
            self.buckets.push(Box::new([NOWHERE; BUCKET_PAGE]));
        }
        self.bucket_count += 1;
        if new == 0 {
            return;
        }
        let old = new & (self.bucket_count.next_power_of_two() / 2 - 1);
        let mut slot = self.head(old);
        let (mut stay, mut go) = (NOWHERE, NOWHERE);
        while slot != NOWHERE {
            let IndexEntry { key, chain, .. } = *self.entry(slot);
            let list = if self.bucket_of(key) == new {
                &mut go
            } else {
                &mut stay
            };
            let before = std::mem::replace(list, slot);
            self.entry_mut(slot).chain = before;
            slot = chain;
        }
        *self.head_mut(old) = stay;
        *self.head_mut(new) = go;
    }

    /// Cuts links to slots that are free, a few entries at a time, if there are any such slots.
    fn sweep(&mut self) {
        if self.swept.is_empty() {
            if self.freed.is_empty() {
                return;
            }
            std::mem::swap(&mut self.swept, &mut self.freed);
            self.hand = 0;
        }
        let end = self.given.min(self.hand + SWEEP_STEP);
        for slot in self.hand..end {
            let IndexEntry { next, previous, .. } = *self.entry(slot);
            if next != NOWHERE && self.entry(next).key == NO_KEY {
                self.entry_mut(slot).next = NOWHERE;
            }
            if previous != NOWHERE && self.entry(previous).key == NO_KEY {
                self.entry_mut(slot).previous = NOWHERE;
            }
        }
        self.hand = end;
        if self.hand == self.given {
            self.free.append(&mut self.swept);
        }
    }

    fn entry(&self, slot: u32) -> &IndexEntry {
        &self.pages[slot as usize / PAGE][slot as usize % PAGE]
    }

    fn entry_mut(&mut self, slot: u32) -> &mut IndexEntry {
        &mut self.pages[slot as usize / PAGE][slot as usize % PAGE]
    }

    fn head(&self, bucket: usize) -> u32 {
        self.buckets[bucket / BUCKET_PAGE][bucket % BUCKET_PAGE]
    }

    fn head_mut(&mut self, bucket: usize) -> &mut u32 {
        &mut self.buckets[bucket / BUCKET_PAGE][bucket % BUCKET_PAGE]
    }
}

/// Pairs of sets of peers, each kept once and counted. Number 0 is the pair of empty sets.
struct PeerSets {
    sets: Vec<CountedPeerSet>,
    numbers: HashMap<ChunkPeers, u16>,
    free: Vec<u16>,
}

#[derive(Clone, Copy)]
struct CountedPeerSet {
    peers: ChunkPeers,
    /// Entries that have it.
    count: u32,
}

impl PeerSets {
    fn new() -> Self {
        Self {
            sets: vec![CountedPeerSet {
                peers: ChunkPeers::default(),
                count: 0,
            }],
            numbers: HashMap::new(),
            free: Vec::new(),
        }
    }

    fn bytes(&self) -> usize {
        // A map's slot has its key, its value, a byte of control, and eighths of them are spare.
        let map = self.numbers.capacity() * (size_of::<(ChunkPeers, u16)>() + 1) * 8 / 7;
        self.sets.capacity() * size_of::<CountedPeerSet>() + self.free.capacity() * 2 + map
    }

    fn peers(&self, number: u16) -> ChunkPeers {
        self.sets[usize::from(number)].peers
    }

    /// Returns a pair and takes another one. Once all numbers are in use, a peer that would be
    /// added is left out and a pair that would shrink becomes empty. Both are safe: chunks that a
    /// peer is not known to hold are sent again, and chunks it may not refer to are requested
    /// again.
    fn exchange(&mut self, old: u16, peers: ChunkPeers) -> u16 {
        let before = self.peers(old);
        if before == peers {
            return old;
        }
        let Some(new) = self.acquire(peers) else {
            if before.is_within(peers) {
                return old;
            }
            self.release(old);
            return 0;
        };
        self.release(old);
        new
    }

    fn acquire(&mut self, peers: ChunkPeers) -> Option<u16> {
        if peers == ChunkPeers::default() {
            return Some(0);
        }
        if let Some(number) = self.numbers.get(&peers) {
            self.sets[usize::from(*number)].count += 1;
            return Some(*number);
        }
        let set = CountedPeerSet { peers, count: 1 };
        let number = match self.free.pop() {
            Some(number) => {
                self.sets[usize::from(number)] = set;
                number
            }
            None if self.sets.len() < MAX_SETS => {
                self.sets.push(set);
                (self.sets.len() - 1) as u16
            }
            None => return None,
        };
        self.numbers.insert(peers, number);
        Some(number)
    }

    fn release(&mut self, number: u16) {
        if number == 0 {
            return;
        }
        let set = &mut self.sets[usize::from(number)];
        set.count -= 1;
        if set.count > 0 {
            return;
        }
        // Two numbers may stand for the same pair after `forget_holders`; the map knows one of them.
        if self.numbers.get(&set.peers) == Some(&number) {
            self.numbers.remove(&set.peers);
        }
        self.free.push(number);
    }

    fn forget_holders(&mut self, peers: u64) {
        self.numbers.clear();
        for (number, set) in self.sets.iter_mut().enumerate().skip(1) {
            set.peers = set.peers.without_holder(peers);
            if set.count > 0 && set.peers != ChunkPeers::default() {
                self.numbers.insert(set.peers, number as u16);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn index_entry_has_the_documented_size() {
        assert_eq!(size_of::<IndexEntry>(), 40);
        // 6 MiB for a stored GiB in chunks of 8.5 KiB and their heads.
        const { assert!(ENTRY_MEMORY * (1 << 30) / (8_700 + 72) <= 6 << 20) };
    }

    #[test]
    fn excess_peer_sets_only_lose_knowledge() {
        let mut sets = PeerSets::new();
        let mut numbers = Vec::new();
        for peers in 1..MAX_SETS as u64 {
            numbers.push(sets.exchange(0, ChunkPeers::holding(peers)));
        }
        let kept = sets.exchange(numbers[0], ChunkPeers::holding(1 << 40 | 1));
        assert_eq!(sets.peers(kept), ChunkPeers::holding(1));
        let kept = sets.exchange(kept, ChunkPeers::holding(1).and_reader(1 << 40));
        assert_eq!(sets.peers(kept), ChunkPeers::holding(1));
        let large = numbers[(1 << 15 | 1) - 1];
        assert_eq!(sets.peers(large), ChunkPeers::holding(1 << 15 | 1));
        assert_eq!(sets.exchange(large, ChunkPeers::holding(1 << 41)), 0);
        // What was given back can be taken again.
        let again = sets.exchange(0, ChunkPeers::holding(1 << 42));
        assert_eq!(sets.peers(again), ChunkPeers::holding(1 << 42));
    }

    #[test]
    fn forgotten_peer_holds_nothing_but_keeps_references() {
        let mut index = ChunkIndex::new(SeededBuildHasher(1));
        for key in 1..=8 {
            let slot = index.insert(key, key, 10);
            index.set_peers(slot, ChunkPeers::holding(key));
        }
        index.forget_holders(1);
        for key in 1..=8 {
            let peers = index.get(key).unwrap().peers;
            assert_eq!((peers.holders, peers.readers), (key & !1, key));
        }
        // Pairs that became equal are released one by one without harm.
        for key in 1..=8 {
            let slot = index.get(key).unwrap().slot;
            index.set_peers(slot, ChunkPeers::holding(2));
        }
        for key in 1..=8 {
            index.remove(key);
        }
        assert_eq!(index.sets.free.len(), index.sets.sets.len() - 1);
    }

    #[test]
    fn links_serve_only_readers_of_both_chunks() {
        let mut index = ChunkIndex::new(SeededBuildHasher(1));
        let (one, other) = (1, 2);
        for (key, readers) in [(10, one | other), (11, one), (12, other)] {
            let slot = index.insert(key, key, 10);
            index.set_peers(slot, ChunkPeers::default().and_reader(readers));
        }
        assert_eq!(index.link(10, 11, one), LinkOutcome::Noted);
        assert_eq!(index.next_for(10, one), 11);
        assert_eq!(index.next_for(10, other), NO_KEY);
        assert_eq!(index.next_for(10, 0), NO_KEY);
        assert_eq!(index.link(10, 12, other), LinkOutcome::OthersFollowIt);
        assert_eq!(index.next_for(10, one), 11);
        assert_eq!(index.link(10, 12, one), LinkOutcome::Noted);
        assert_eq!(index.next_for(10, one), NO_KEY);
        assert_eq!(index.next_for(10, other), 12);
    }

    /// Reference model of [`ChunkIndex`], in the simplest form.
    #[derive(Default)]
    struct IndexModel {
        entries: BTreeMap<ChunkKey, ModelEntry>,
    }

    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct ModelEntry {
        peers: ChunkPeers,
        next: ChunkKey,
        previous: ChunkKey,
    }

    impl IndexModel {
        fn remove(&mut self, key: ChunkKey) {
            self.entries.remove(&key);
            for entry in self.entries.values_mut() {
                for link in [&mut entry.next, &mut entry.previous] {
                    if *link == key {
                        *link = NO_KEY;
                    }
                }
            }
        }

        fn link(&mut self, previous: ChunkKey, key: ChunkKey) {
            if previous == key || !self.entries.contains_key(&key) {
                return;
            }
            let before = match self.entries.get_mut(&previous) {
                Some(entry) => {
                    entry.next = key;
                    previous
                }
                None => NO_KEY,
            };
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.previous = before;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn chunk_index_matches_a_plain_map(
            steps in prop::collection::vec((0..8_u8, 1..400_u64, 1..400_u64), 1..3_000),
        ) {
            let mut index = ChunkIndex::new(SeededBuildHasher(7));
            let mut model = IndexModel::default();
            for (step, key, other) in steps {
                match step {
                    0..4 => {
                        if index.get(key).is_none() {
                            index.insert(key, !key, key as usize);
                            model.entries.insert(key, ModelEntry::default());
                        }
                        index.link(other, key, u64::MAX);
                        model.link(other, key);
                    }
                    4..6 => {
                        index.remove(key);
                        model.remove(key);
                    }
                    6 => {
                        if let Some(known) = index.get(key) {
                            let peers = ChunkPeers::holding(other);
                            index.set_peers(known.slot, peers);
                            let segment = other as u32;
                            index.set_place(known.slot, DiskLocation::At { segment, offset: 9 });
                            model.entries.get_mut(&key).unwrap().peers = peers;
                            let place = index.get(key).unwrap().place;
                            prop_assert_eq!(place, DiskLocation::At { segment, offset: 9 });
                        }
                    }
                    _ => {
                        index.forget_holders(other & 3);
                        for entry in model.entries.values_mut() {
                            entry.peers = entry.peers.without_holder(other & 3);
                        }
                    }
                }
            }
            prop_assert_eq!(index.len(), model.entries.len());
            for key in 1..400 {
                let known = index.get(key);
                let entry = model.entries.get(&key);
                prop_assert_eq!(known.is_some(), entry.is_some());
                if let (Some(known), Some(entry)) = (known, entry) {
                    prop_assert_eq!((known.key, known.check), (key, !key));
                    prop_assert_eq!(known.length, key as usize);
                    let next = index.next(key);
                    let previous = index.previous(key);
                    let found = ModelEntry { peers: known.peers, next, previous };
                    prop_assert_eq!(found, *entry);
                }
            }
            // No slot was lost: each is in use or on one of the lists.
            let waiting = index.free.len() + index.swept.len() + index.freed.len();
            prop_assert_eq!(index.given as usize, index.len() + waiting);
            let waits: BTreeSet<u32> = index.free.iter().copied().collect();
            for slot in 0..index.given {
                let IndexEntry { next, previous, .. } = *index.entry(slot);
                prop_assert!(!waits.contains(&next) && !waits.contains(&previous));
            }
        }
    }
}
