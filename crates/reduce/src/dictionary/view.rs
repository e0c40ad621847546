//! View of the dictionary for a decoder: the chunks that its peer may refer to, and no others.
//!
//! ```text
//! record from peer B ─► PeerView(B) ─► chunks that B sent, or was sent   ─► bytes
//!                           └────────► anything else: as if it were not there
//! ```
//! A peer names chunks by their keys and by links between them. A compromised peer could name
//! chunks of other peers and learn from the answers their content, or that they exist. So a decoder
//! reaches the dictionary's chunks only through this view, which treats a chunk of others like one
//! that does not exist: no access to its bytes, no read from disk, no link to or from it.

use std::collections::{BTreeMap, VecDeque};

use super::index::KnownChunk;
use super::{Dictionary, FetchResult, NO_KEY, PeerSlot};
use crate::fingerprint::ChunkKey;
use crate::literals::LiteralCodec;
use crate::repair::RepairScope;

/// Chunks of its own that a flow of an untracked peer may refer to, at most: more than an encoder can
/// have on their way, which are 8 MiB of its own and 64 MiB that the dictionary lends it, of chunks of
/// 8 KiB at least.
const MAX_FLOW_CHUNKS: usize = 10_000;

/// View of the dictionary with the chunks that one peer may refer to.
pub(crate) struct PeerView<'a> {
    dictionary: &'a mut Dictionary,
    peer: PeerSlot,
    flow: &'a FlowChunks,
}

/// A chunk that the peer may refer to: only [`PeerView::find`] makes one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadableChunk(KnownChunk);

/// The chunks that came in a flow of a peer without a slot: it may refer to these alone.
#[derive(Debug, Default)]
pub(crate) struct FlowChunks {
    /// The second half of what identifies each.
    checks: BTreeMap<ChunkKey, u64>,
    /// Keys in the order of their arrival.
    order: VecDeque<ChunkKey>,
}

impl ReadableChunk {
    /// The chunk's length in bytes.
    pub(crate) fn length(&self) -> usize {
        self.0.length
    }

    /// The second half of what identifies the chunk.
    pub(crate) fn check(&self) -> u64 {
        self.0.check
    }
}

impl<'a> PeerView<'a> {
    pub(crate) fn new(
        dictionary: &'a mut Dictionary,
        peer: PeerSlot,
        flow: &'a FlowChunks,
    ) -> Self {
        Self {
            dictionary,
            peer,
            flow,
        }
    }

    /// The chunk, if it is there and the peer may refer to it.
    pub(crate) fn find(&self, key: ChunkKey) -> Option<ReadableChunk> {
        let known = self.dictionary.index.get(key)?;
        let may_read = match self.peer.0 {
            Some(_) => known.peers.readers & self.peer.bit() != 0,
            None => self.flow.checks.get(&key) == Some(&known.check),
        };
        may_read.then_some(ReadableChunk(known))
    }

    /// Returns `true` if there is no such chunk for the peer.
    pub(crate) fn lacks(&self, key: ChunkKey) -> bool {
        self.find(key).is_none()
    }

    /// The chunk's bytes from wherever they are.
    pub(crate) fn fetch(&mut self, chunk: &ReadableChunk) -> FetchResult {
        self.dictionary.fetch_known(&chunk.0)
    }

    /// The chunk that came after this one in the peer's flows, or [`NO_KEY`].
    pub(crate) fn next(&self, key: ChunkKey) -> ChunkKey {
        let Some(slot) = self.peer.0 else {
            let next = self.dictionary.index.next(key);
            let both = !self.lacks(key) && !self.lacks(next);
            return if both { next } else { NO_KEY };
        };
        match self.dictionary.own_links.get(slot, key) {
            Some(next) if !self.lacks(key) && !self.lacks(next) => next,
            Some(_) | None => self.dictionary.index.next_for(key, self.peer.bit()),
        }
    }

    /// Notes that in a flow of the peer `key` came right after `previous`, if both are its chunks.
    pub(crate) fn link(&mut self, previous: ChunkKey, key: ChunkKey) {
        if !self.lacks(previous) && !self.lacks(key) {
            self.dictionary.link(previous, key, self.peer);
        }
    }

    /// Counts a request to the peer.
    pub(crate) fn count_request(&mut self, scope: &RepairScope) {
        self.dictionary.count_request(scope);
    }

    pub(crate) fn codec(&mut self) -> &mut LiteralCodec {
        self.dictionary.codec()
    }
}

impl FlowChunks {
    /// Notes a chunk that came in the flow whole, if the peer has no slot.
    pub(crate) fn push(&mut self, peer: PeerSlot, key: ChunkKey, check: u64) {
        if peer.0.is_some() {
            return;
        }
        if self.checks.insert(key, check).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_FLOW_CHUNKS
            && let Some(oldest) = self.order.pop_front()
        {
            self.checks.remove(&oldest);
        }
    }
}
