//! Dictionary: all chunks that this node stores, for all its peers and flows.
//!
//! ```text
//!             ┌─ index: key ─► check, length, place on disk, who holds it, neighbours (40 bytes)
//! encoder ──► │
//! decoder ──► ├─ memory: bytes of recently used chunks, second-chance eviction
//!             │
//!             └─ log: append-only segments on disk (format: docs/formats/dictionary.md)
//! ```
//! The index says for each chunk which peers are *known* to hold it: they sent it, or they
//! acknowledged it. It also says which peers may refer to it: they sent its bytes, or were sent them
//! (`view.rs`). Each chunk also remembers the one that followed it and the one that came
//! before it in the flow where it was last seen; that is how a partial or edited chunk finds
//! the old bytes to be compared with.
//!
//! It is a cache: it may lose anything at any time, and every byte that leaves it is checked,
//! by its fingerprint when it comes from disk and by the record's own check in any case.

mod anchors;
#[cfg(test)]
mod append_tests;
mod contents;
#[cfg(test)]
mod damage_tests;
mod index;
mod lending;
mod local_chunks;
mod log;
mod memory;
mod own_links;
mod pins;
mod recovery;
mod seal;
mod seeded;
mod segment;
#[cfg(test)]
mod survival_tests;
#[cfg(test)]
mod traffic_tests;
mod view;

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use vocab::{NodeId, SeededRandom};

use crate::anchor::ChunkAnchor;
use crate::config::{DictionaryConfig, LENT_PART, MAX_TRACKED_PEERS};
use crate::fingerprint::{ChunkKey, Fingerprint};
use crate::literals::LiteralCodec;
use crate::repair::RepairScope;
use anchors::AnchorTable;
use index::{ChunkIndex, ChunkPeers, ENTRY_MEMORY, KnownChunk, LinkOutcome};
use lending::LoanAccount;
use log::{DiskLog, PeerFact};
use memory::{EvictionStatus, MemoryTier};
use own_links::OwnLinks;
use pins::PinnedBodies;
use seeded::SeededBuildHasher;

pub(crate) use lending::MemoryLoan;
pub(crate) use local_chunks::InsertOutcome;
pub use pins::{ContentPin, PinPurpose, PinState};
pub use seal::DictionaryKey;
pub use segment::{SegmentScan, scan_segment};
pub(crate) use view::{FlowChunks, PeerView};

/// The least memory that is used, whatever the configuration says, in bytes.
const LEAST_MEMORY: usize = 1024 * 1024;
/// Stands for "no chunk" in links; no key is zero.
pub(crate) const NO_KEY: ChunkKey = 0;

/// Slot of a peer whose holdings are tracked. Cheap to copy, valid for the dictionary that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerSlot(Option<u8>);

impl PeerSlot {
    /// Slot of a peer that is not tracked between flows. It may refer only to chunks of the same
    /// flow.
    pub const UNTRACKED: PeerSlot = PeerSlot(None);

    fn bit(self) -> u64 {
        self.0.map_or(0, |slot| 1 << slot)
    }
}

/// Counters and contents of the dictionary; counters since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DictionaryStatistics {
    /// Chunks that can be looked up, in memory or on disk.
    pub chunks: u64,
    /// Bytes of memory used, bookkeeping included.
    pub memory_bytes: u64,
    /// Memory of the index: data about chunks without their bytes.
    pub index_bytes: u64,
    /// Bytes in segment files.
    pub disk_bytes: u64,
    /// Bytes that wait to be written there, or are being written.
    pub waiting_bytes: u64,
    /// Segment files.
    pub segments: u64,
    /// Look-ups that found their chunk in memory.
    pub memory_hits: u64,
    /// Look-ups that found their chunk on disk.
    pub disk_hits: u64,
    /// Look-ups that found nothing.
    pub misses: u64,
    /// Requests to peers for content that they took to be here.
    pub content_requests: u64,
    /// Requests to peers for no more than the keys of runs whose links are not here.
    pub link_requests: u64,
    /// Chunks dropped from memory.
    pub evictions: u64,
    /// Disk requests that failed.
    pub disk_faults: u64,
    /// Stretches of segments that were damaged and skipped, and chunks that did not verify.
    pub damaged_records: u64,
    /// Segments deleted unread: garbage, or one of the next two.
    pub rejected_segments: u64,
    /// Rejected segments in another version of the format.
    pub outdated_segments: u64,
    /// Rejected segments that were not sealed with this key, or whose head is damaged.
    pub sealed_segments: u64,
    /// Chunks not written because the disk was full, failing or too slow.
    pub unwritten_chunks: u64,
}

/// Dictionary of all peers' and flows' chunks.
pub struct Dictionary {
    config: DictionaryConfig,
    random: SeededRandom,
    generation: [u8; 16],
    seed: SeededBuildHasher,
    index: ChunkIndex,
    memory: MemoryTier,
    anchors: AnchorTable,
    lending: LoanAccount,
    own_links: OwnLinks,
    pinned_bodies: PinnedBodies,
    log: DiskLog,
    peers: Vec<TrackedPeer>,
    fetches: BTreeMap<ChunkKey, FetchTicket>,
    codec: LiteralCodec,
    statistics: DictionaryStatistics,
}

/// A peer whose holdings are known.
#[derive(Clone, Copy, Debug)]
struct TrackedPeer {
    node: NodeId,
    /// Generation of the peer's dictionary; zeros if the peer has not announced it.
    generation: [u8; 16],
    /// True if the peer has announced its generation since the start.
    has_announced: bool,
}

/// Location of a chunk on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskLocation {
    /// In memory only.
    Nowhere,
    /// In memory and on its way to the disk.
    Queued,
    /// In memory, and the append that holds it is under way.
    Writing,
    /// In this segment; its record starts at this offset.
    At { segment: u32, offset: u32 },
}

/// Presence of a chunk that an encoder is about to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkPresence {
    /// Not in the dictionary.
    New,
    /// In the dictionary; the peer is not known to hold it.
    Here,
    /// In the dictionary, and the peer is known to hold it.
    AtBoth,
}

/// A chunk on its way from disk; shared by all who wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FetchTicket(Arc<OnceLock<Option<Bytes>>>);

impl FetchTicket {
    /// `None` while the read is under way, then the bytes, or that they could not be had.
    pub(crate) fn outcome(&self) -> Option<Option<Bytes>> {
        self.0.get().cloned()
    }

    fn resolve(&self, outcome: Option<Bytes>) {
        // Each read completes once, so nothing was set before.
        let _ = self.0.set(outcome);
    }
}

/// Result of resolving a reference for a decoder.
#[derive(Clone, Debug)]
pub(crate) enum FetchResult {
    /// The chunk.
    Ready(Bytes),
    /// The chunk is being read.
    Reading(FetchTicket),
    /// The chunk is not in the dictionary.
    Missing,
}

impl Dictionary {
    /// An empty dictionary in memory; nothing is kept on disk without a key.
    #[must_use]
    pub fn new(config: DictionaryConfig, random: SeededRandom) -> Self {
        Self::make(config, None, random)
    }

    /// Makes an empty dictionary that stores its chunks on disk, sealed with this key. The disk is
    /// not used before [`Self::open`]. `random` has to differ at every start, because no two
    /// segments of one key may have the same salt.
    #[must_use]
    pub fn with_key(config: DictionaryConfig, key: DictionaryKey, random: SeededRandom) -> Self {
        Self::make(config, Some(key), random)
    }

    fn make(
        config: DictionaryConfig,
        key: Option<DictionaryKey>,
        mut random: SeededRandom,
    ) -> Self {
        let mut generation = [0; 16];
        random.fill(&mut generation);
        let seed = SeededBuildHasher(random.next_u64());
        Self {
            config,
            generation,
            seed,
            index: ChunkIndex::new(seed),
            memory: MemoryTier::new(seed),
            anchors: AnchorTable::new(config.memory.as_usize().max(LEAST_MEMORY)),
            lending: LoanAccount::default(),
            own_links: OwnLinks::new(seed, config.memory.as_usize().max(LEAST_MEMORY)),
            pinned_bodies: PinnedBodies::default(),
            log: DiskLog::new(&config, key),
            peers: Vec::new(),
            fetches: BTreeMap::new(),
            codec: LiteralCodec::new(),
            statistics: DictionaryStatistics::default(),
            random,
        }
    }

    /// The random id of this dictionary; changes when it is emptied.
    #[must_use]
    pub fn generation(&self) -> [u8; 16] {
        self.generation
    }

    /// The slot of a peer, given out at its first mention and never to another peer. Peers beyond
    /// [`MAX_TRACKED_PEERS`] share [`PeerSlot::UNTRACKED`].
    pub fn peer(&mut self, node: NodeId) -> PeerSlot {
        let known = self.peers.iter().position(|peer| peer.node == node);
        let slot = known.unwrap_or_else(|| {
            if self.peers.len() < MAX_TRACKED_PEERS {
                self.peers.push(TrackedPeer {
                    node,
                    generation: [0; 16],
                    has_announced: false,
                });
                self.peers.len() - 1
            } else {
                MAX_TRACKED_PEERS
            }
        });
        PeerSlot(u8::try_from(slot).ok().filter(|_| slot < MAX_TRACKED_PEERS))
    }

    /// Handles the generation that a peer announces for its dictionary. If it differs from the last
    /// one, also from before a restart, the peer's holdings are forgotten.
    pub fn peer_generation(&mut self, slot: PeerSlot, generation: [u8; 16]) {
        let peer = slot
            .0
            .and_then(|slot| self.peers.get_mut(usize::from(slot)));
        let Some(peer) = peer else { return };
        let before = std::mem::replace(&mut peer.generation, generation);
        peer.has_announced = true;
        if before == generation {
            return;
        }
        if before != [0; 16] {
            self.forget_peer(slot);
        }
        self.note(slot.0, PeerFact::Generation, None);
    }

    /// Forgets the holdings of a peer whose dictionary was replaced. The peer may still refer to
    /// the chunks that it sent or was sent.
    pub fn forget_peer(&mut self, slot: PeerSlot) {
        self.index.forget_holders(slot.bit());
        self.note(slot.0, PeerFact::Forget, None);
    }

    /// Empties memory and disk and starts a new generation. Content on disk can return as long as
    /// its key exists: deletion of the files is only requested, and a crash or a loss of power may
    /// undo it. Callers that can therefore pass a new `key`, stored durably in place of the old
    /// one; everything is sealed with it from here on.
    pub fn clear(&mut self, key: Option<DictionaryKey>) {
        if let (Some(key), Some(old)) = (key, &mut self.log.key) {
            *old = key;
        }
        self.index.clear();
        self.memory.clear();
        self.anchors.clear();
        self.own_links.clear();
        self.pinned_bodies.clear();
        self.clear_log();
        self.random.fill(&mut self.generation);
    }

    /// Counters and sizes.
    #[must_use]
    pub fn statistics(&self) -> DictionaryStatistics {
        DictionaryStatistics {
            chunks: self.index.len() as u64,
            memory_bytes: self.memory_used() as u64,
            index_bytes: self.index_bytes() as u64,
            disk_bytes: self.log.bytes(),
            waiting_bytes: self.log.waiting_bytes(),
            segments: self.log.segments.len() as u64,
            ..self.statistics
        }
    }

    /// Counts a request to a peer.
    pub(crate) fn count_request(&mut self, scope: &RepairScope) {
        match scope {
            RepairScope::Some { references, .. } if references.is_empty() => {
                self.statistics.link_requests += 1;
            }
            RepairScope::Some { .. } | RepairScope::All => self.statistics.content_requests += 1,
        }
    }

    pub(crate) fn codec(&mut self) -> &mut LiteralCodec {
        &mut self.codec
    }

    /// Returns the presence of a chunk. Finding it counts as a use.
    pub(crate) fn look_up(&mut self, fingerprint: &Fingerprint, peer: PeerSlot) -> ChunkPresence {
        let known = self.index.get(fingerprint.key());
        let Some(known) = known.filter(|known| known.check == fingerprint.check()) else {
            self.statistics.misses += 1;
            return ChunkPresence::New;
        };
        self.index.touch(known.slot);
        if self.memory.contains(known.key) {
            self.statistics.memory_hits += 1;
            self.memory.touch(known.key);
        } else {
            self.statistics.disk_hits += 1;
        }
        if known.peers.holders & peer.bit() != 0 {
            ChunkPresence::AtBoth
        } else {
            ChunkPresence::Here
        }
    }

    /// Remembers a chunk, or refreshes one that is here, as the successor of `previous` in a flow of
    /// this peer; returns its own copy of the bytes. The peer may not refer to it before
    /// [`Self::mark_sent`] or [`Self::mark_held`].
    pub(crate) fn insert(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: &[u8],
        previous: ChunkKey,
        peer: PeerSlot,
    ) -> Option<Bytes> {
        let key = fingerprint.key();
        let kept = match self.index.get(key) {
            // Another chunk with the same key: an accident or a trick. The older one stays.
            Some(known) if known.check != fingerprint.check() => return None,
            Some(known) => {
                self.index.touch(known.slot);
                match self.memory.get(key) {
                    Some(kept) => kept,
                    None => {
                        let kept = self.memory.insert(key, bytes);
                        self.memory.touch(key);
                        kept
                    }
                }
            }
            None => {
                self.index.insert(key, fingerprint.check(), bytes.len());
                let kept = self.memory.insert(key, bytes);
                self.enqueue(*fingerprint);
                kept
            }
        };
        self.link(previous, key, peer);
        self.keep_within_memory();
        Some(kept)
    }

    /// Lends a flow so much memory for chunks that it has referred to, if there is that much to lend.
    pub(crate) fn lend(&mut self, bytes: usize) -> Option<MemoryLoan> {
        let loan = self.lending.lend(bytes, self.memory_cap() / LENT_PART);
        self.keep_within_memory();
        loan
    }

    /// Notes that in a flow of this peer `key` came right after `previous`.
    pub(crate) fn link(&mut self, previous: ChunkKey, key: ChunkKey, peer: PeerSlot) {
        self.link_for(previous, key, peer.bit());
    }

    /// Notes that in a flow of these peers `key` came right after `previous`.
    fn link_for(&mut self, previous: ChunkKey, key: ChunkKey, peers: u64) {
        let linked = self.index.link(previous, key, peers);
        let mut left = peers;
        while left != 0 {
            let slot = left.trailing_zeros() as u8;
            left &= left - 1;
            match linked {
                LinkOutcome::Noted => self.own_links.remove(slot, previous),
                LinkOutcome::OthersFollowIt => self.own_links.insert(slot, previous, key),
            }
        }
    }

    /// The chunk that was last seen after this one in a flow of the peer, or else of others, or
    /// [`NO_KEY`].
    pub(crate) fn next(&self, key: ChunkKey, peer: PeerSlot) -> ChunkKey {
        let own = peer.0.and_then(|slot| self.own_links.get(slot, key));
        own.unwrap_or_else(|| self.index.next(key))
    }

    /// The chunk that was last seen before this one, or [`NO_KEY`].
    pub(crate) fn previous(&self, key: ChunkKey) -> ChunkKey {
        self.index.previous(key)
    }

    /// A chunk's length in bytes; zero for one that is not here.
    pub(crate) fn length(&self, key: ChunkKey) -> usize {
        self.index.get(key).map_or(0, |known| known.length)
    }

    /// Returns `true` if the peer is known to hold the chunk.
    pub(crate) fn is_held_by(&self, key: ChunkKey, peer: PeerSlot) -> bool {
        let known = self.index.get(key);
        known.is_some_and(|known| known.peers.holders & peer.bit() != 0)
    }

    /// The peer is known to hold the chunk: it sent its bytes, or acknowledged them. So it may refer to
    /// it. `check` is the second half of what identifies the chunk: another one with the same key is
    /// not the peer's.
    pub(crate) fn mark_held(&mut self, key: ChunkKey, check: u64, peer: PeerSlot) {
        if let Some(known) = self.index.get(key).filter(|known| known.check == check) {
            let peers = known.peers.and_holder(peer.bit());
            self.learn(peer, PeerFact::Held, &known, peers);
        }
    }

    /// The chunk's bytes are on their way to the peer: it may refer to it.
    pub(crate) fn mark_sent(&mut self, key: ChunkKey, check: u64, peer: PeerSlot) {
        if let Some(known) = self.index.get(key).filter(|known| known.check == check) {
            let peers = known.peers.and_reader(peer.bit());
            if peers != known.peers {
                self.index.set_peers(known.slot, peers);
            }
        }
    }

    /// The peer turned out not to hold the chunk. It may still refer to it, once it has it again.
    pub(crate) fn mark_lacking(&mut self, key: ChunkKey, peer: PeerSlot) {
        if let Some(known) = self.index.get(key) {
            let peers = known.peers.without_holder(peer.bit());
            self.learn(peer, PeerFact::Lacking, &known, peers);
        }
    }

    fn learn(&mut self, peer: PeerSlot, fact: PeerFact, known: &KnownChunk, peers: ChunkPeers) {
        if peers == known.peers {
            return;
        }
        self.index.set_peers(known.slot, peers);
        if known.is_written() && peers.holders != known.peers.holders {
            self.note(peer.0, fact, Some(known.key));
        }
    }

    /// The chunk's bytes if they are in memory.
    pub(crate) fn resident(&mut self, key: ChunkKey) -> Option<Bytes> {
        self.memory.get(key)
    }

    /// Notes by which of its bytes a chunk of the peer's may be found.
    pub(crate) fn add_anchors(&mut self, key: ChunkKey, anchors: &[ChunkAnchor], peer: PeerSlot) {
        if !anchors.is_empty() {
            self.anchors.add(key, anchors, self.salt(peer));
        }
    }

    /// A chunk of the peer's, and an offset in it, where bytes with this hash may be.
    pub(crate) fn find_anchor(&self, hash: u64, peer: PeerSlot) -> Option<(ChunkKey, usize)> {
        self.anchors.find(hash, self.salt(peer))
    }

    /// Returns the salt that is mixed into a peer's anchors. Other peers' anchors of the same bytes
    /// are then in other places, so a peer cannot infer from missing anchors that others have the
    /// same bytes.
    fn salt(&self, peer: PeerSlot) -> u64 {
        self.seed
            .hash_one(peer.0.map_or(0, |slot| u64::from(slot) + 1))
    }

    /// The chunk's bytes from wherever they are; a disk read is asked for once.
    pub(crate) fn fetch(&mut self, key: ChunkKey) -> FetchResult {
        if let Some(bytes) = self.memory.get(key) {
            return FetchResult::Ready(bytes);
        }
        match self.index.get(key) {
            Some(known) => self.fetch_known(&known),
            None => FetchResult::Missing,
        }
    }

    fn fetch_known(&mut self, known: &KnownChunk) -> FetchResult {
        if let Some(bytes) = self.memory.get(known.key) {
            return FetchResult::Ready(bytes);
        }
        if let Some(ticket) = self.fetches.get(&known.key) {
            return FetchResult::Reading(ticket.clone());
        }
        self.index.touch(known.slot);
        self.start_fetch(known)
    }

    fn memory_cap(&self) -> usize {
        self.config.memory.as_usize().max(LEAST_MEMORY)
    }

    fn memory_used(&self) -> usize {
        let caches = self.anchors.used() + self.own_links.used();
        self.memory.used() + self.index_bytes() + caches + self.lending.used()
    }

    fn index_bytes(&self) -> usize {
        self.index.bytes() + self.log.list_bytes()
    }

    fn keep_within_memory(&mut self) {
        while self.memory_used() > self.memory_cap() {
            // The limit holds even if only what is pinned is left.
            let evicted = self
                .evict(EvictionStatus::Pinned)
                .or_else(|| self.evict(EvictionStatus::Free));
            let Some(key) = evicted else {
                return;
            };
            self.statistics.evictions += 1;
            let known = self.index.get(key);
            if known.is_some_and(|known| known.place == DiskLocation::Nowhere) {
                self.index.remove(key);
            }
        }
    }

    /// Takes a chunk out of memory; `read` says what holds for those that are pinned for readers.
    fn evict(&mut self, read: EvictionStatus) -> Option<ChunkKey> {
        let index = &self.index;
        let hold = |key| match index.get(key).map(|known| (known.place, known.is_pinned)) {
            Some((DiskLocation::Queued | DiskLocation::Writing, _)) => EvictionStatus::Pinned,
            Some((DiskLocation::Nowhere, true)) => read,
            Some((DiskLocation::Nowhere | DiskLocation::At { .. }, _)) | None => {
                EvictionStatus::Free
            }
        };
        self.memory.evict(hold)
    }
}
