//! Appends, syncs, and the contents at the end of a segment.

use std::sync::Arc;

use bytes::BytesMut;

use super::super::contents::{
    CHUNK_LINE, CONTENTS_FRAME, ChunkLine, EncodedFacts, PeerLine, SegmentContents,
};
use super::super::seal::SealKey;
use super::super::segment::{
    CHUNK_HEAD, LogRecord, MAX_KNOWLEDGE_KEYS, RECORD_OVERHEAD, SEGMENT_HEAD, emit_segment_head,
};
use super::super::{Dictionary, DiskLocation};
use super::{
    ActiveSegment, AppendState, DiskLog, FlushTiming, LogState, PeerFact, RequestPurpose,
    SegmentFile,
};
use crate::config::{DISK_BLOCK, DISK_RETRY, MAX_DISK_APPEND, SYNC_BYTES};
use crate::disk::{DiskAnswer, DiskFault, DiskOperation};
use crate::fingerprint::{ChunkKey, Fingerprint};

/// An append in the making.
struct PendingAppend {
    /// Offset in the segment.
    start: u64,
    memory: BytesMut,
    /// Bytes of the memory before its own, so that those stand there as they will in the file.
    front: usize,
}

impl PendingAppend {
    /// Returns its present end in the segment.
    fn end(&self) -> u64 {
        self.start + (self.memory.len() - self.front) as u64
    }

    fn emit(&mut self, record: &LogRecord<'_>, seal: &SealKey) {
        record.emit(seal, self.end(), &mut self.memory);
    }
}

impl DiskLog {
    /// Makes an empty append at `start`, with room for the queue.
    fn append_at(&mut self, start: u64) -> PendingAppend {
        let queued = self.queue_bytes + self.queue.len() * (RECORD_OVERHEAD + CHUNK_HEAD);
        let mut memory = std::mem::take(&mut self.spare);
        memory.clear();
        // Blocks to align it, and for what is known of peers. If that is more, or its memory moves,
        // it costs time and nothing else.
        memory.reserve(MAX_DISK_APPEND.min(queued) + 2 * DISK_BLOCK);
        let address = memory.as_ptr().addr();
        let front = (start as usize).wrapping_sub(address) % DISK_BLOCK;
        memory.resize(front, 0);
        PendingAppend {
            start,
            memory,
            front,
        }
    }
}

impl Dictionary {
    /// Starts an append if none is under way and something waits.
    pub(super) fn start_append(&mut self) {
        let log = &self.log;
        let ready = matches!(log.state, LogState::Ready);
        if !ready || !log.writes() || log.appending == AppendState::UnderWay {
            return;
        }
        if log.queue.is_empty() && log.flush == FlushTiming::WithChunks {
            return;
        }
        if log.gathers_until().is_some() {
            return;
        }
        if let Some(active) = self.take_full() {
            self.write_contents(active.number, active.facts);
        }
        self.drop_segments(self.next_append());
        if self.log.deletions > 0 {
            // The cap holds only once they are gone.
            return;
        }
        let Some((mut active, seal)) = self.active_segment() else {
            return;
        };
        let number = active.number;
        let segment = self.log.segments.get(&number);
        let start = segment.map_or(0, |segment| segment.bytes);
        let mut out = self.log.append_at(start);
        if start == 0 {
            self.emit_head(number, &mut out);
        }
        for slot in active.announced..self.peers.len() {
            self.emit_peer(slot as u8, &seal, &mut out);
        }
        active.announced = self.peers.len();
        let mut chunks = Vec::new();
        while let Some(fingerprint) = self.log.queue.front().copied() {
            let key = fingerprint.key();
            let length = self.length(key) + RECORD_OVERHEAD + CHUNK_HEAD;
            let end = out.end() + length as u64;
            let full = !chunks.is_empty() && end > self.log.segment_size;
            if full || end - start > MAX_DISK_APPEND as u64 {
                break;
            }
            self.log.queue.pop_front();
            let offset = out.end();
            if self.emit_chunk(fingerprint, &seal, &mut out) {
                chunks.push((key, offset as u32));
            }
        }
        for ((slot, fact), keys) in std::mem::take(&mut self.log.knowledge) {
            if fact == PeerFact::Generation {
                self.emit_peer(slot, &seal, &mut out);
            }
            for record in knowledge(slot, fact, &keys) {
                out.emit(&record, &seal);
                active.facts.push(&record);
            }
        }
        self.log.flush = FlushTiming::WithChunks;
        self.log.active = Some(active);
        let length = out.end() - start;
        if length == 0 {
            self.log.spare = out.memory;
            return;
        }
        let memory = out.memory.freeze();
        let operation = DiskOperation::Append {
            segment: number,
            offset: start,
            bytes: memory.slice(out.front..),
        };
        self.log.appending = AppendState::UnderWay;
        // What it had no room for has waited long enough.
        let is_all = self.log.queue.is_empty();
        self.log.appended_at = is_all.then_some(self.log.now);
        let work = RequestPurpose::Append {
            segment: number,
            length,
            chunks,
            memory,
        };
        self.log.ask(operation, work);
        self.keep_within_memory();
    }

    /// Bytes that the next append adds at most, together with what the contents of its segment
    /// will add once that is full.
    fn next_append(&self) -> u64 {
        let log = &self.log;
        let (mut records, mut lines) = (0, 0);
        for fingerprint in &log.queue {
            let length = self.length(fingerprint.key()) + RECORD_OVERHEAD + CHUNK_HEAD;
            if records + length > MAX_DISK_APPEND {
                break;
            }
            records += length;
            lines += CHUNK_LINE;
        }
        let known: usize = log
            .knowledge
            .values()
            .map(|keys| {
                (keys.len() / MAX_KNOWLEDGE_KEYS + 1) * (RECORD_OVERHEAD + 64) + keys.len() * 8
            })
            .sum();
        let peers = self.peers.len() * (RECORD_OVERHEAD + 64);
        let active = log.active.as_ref();
        let contents = active.map_or(0, |active| log.contents_bytes(active)) + lines + known;
        (SEGMENT_HEAD + records + known + peers + contents + CONTENTS_FRAME) as u64
    }

    /// The segment that was appended to, if it has no room for more.
    fn take_full(&mut self) -> Option<ActiveSegment> {
        let active = self.log.active.take()?;
        if self.log.has_room(&active) {
            self.log.active = Some(active);
            return None;
        }
        Some(active)
    }

    /// The segment to append to, and its seal.
    fn active_segment(&mut self) -> Option<(ActiveSegment, Arc<SealKey>)> {
        let active = self.log.active.take();
        let active = active.filter(|active| self.log.segments.contains_key(&active.number));
        let active = active.unwrap_or_else(|| {
            let number = self.log.next_number;
            self.log.next_number += 1;
            let mut salt = [0; 16];
            self.random.fill(&mut salt);
            self.log.segments.insert(number, SegmentFile::new(salt, 0));
            ActiveSegment {
                number,
                announced: 0,
                facts: EncodedFacts::default(),
                ends: false,
            }
        });
        let name = self.log.name(active.number, self.generation)?;
        Some((active, self.log.seal(&name)?))
    }

    fn emit_head(&self, number: u32, out: &mut PendingAppend) {
        let name = self.log.name(number, self.generation);
        if let (Some(name), Some(key)) = (name, &self.log.key) {
            out.memory.extend_from_slice(&emit_segment_head(key, &name));
        }
    }

    fn emit_peer(&self, slot: u8, seal: &SealKey, out: &mut PendingAppend) {
        if let Some(peer) = self.peers.get(usize::from(slot)) {
            let record = LogRecord::Peer {
                slot,
                node: peer.node,
                generation: peer.generation,
            };
            out.emit(&record, seal);
        }
    }

    /// Writes a queued chunk's record; says whether it was still to be written.
    fn emit_chunk(
        &mut self,
        fingerprint: Fingerprint,
        seal: &SealKey,
        out: &mut PendingAppend,
    ) -> bool {
        let key = fingerprint.key();
        let Some(known) = self.index.get(key) else {
            return false;
        };
        self.log.queue_bytes -= known.length;
        if known.place != DiskLocation::Queued {
            return false;
        }
        let bytes = self.memory.peek(key);
        let bytes = bytes.expect("a queued chunk is pinned in memory");
        self.index.set_place(known.slot, DiskLocation::Writing);
        let record = LogRecord::Chunk {
            fingerprint,
            peers: known.peers.holders,
            previous: self.previous(key),
            bytes: &bytes,
        };
        out.emit(&record, seal);
        true
    }

    pub(super) fn appended(&mut self, number: u32, length: u64, chunks: &[(ChunkKey, u32)]) {
        self.log.appending = AppendState::Idle;
        let Some(segment) = self.log.segments.get_mut(&number) else {
            // The dictionary was cleared meanwhile.
            self.log.delete(number, length);
            return;
        };
        segment.bytes += length;
        for (key, offset) in chunks {
            if let Some(known) = self.index.get(*key) {
                let place = DiskLocation::At {
                    segment: number,
                    offset: *offset,
                };
                self.index.set_place(known.slot, place);
                self.log.list(number, known.slot);
            }
        }
        self.log.unsynced += length;
        self.log.mark_dirty();
        let active = self.log.active.as_ref();
        let full = active.is_some_and(|active| !self.log.has_room(active));
        if self.log.unsynced >= SYNC_BYTES || full {
            self.sync();
        }
    }

    pub(super) fn append_failed(&mut self, number: u32, failed: u64, chunks: &[(ChunkKey, u32)]) {
        self.log.appending = AppendState::Idle;
        self.statistics.unwritten_chunks += chunks.len() as u64;
        for (key, _) in chunks {
            self.unplace(*key);
        }
        // What waits behind would fail as well: it stays in memory only.
        self.abandon_queue();
        self.log.retry_at = Some(self.log.now + DISK_RETRY);
        let active = self.log.active.take();
        let length = self.log.segments.get(&number).map(|segment| segment.bytes);
        match length {
            Some(0) => {
                self.log.segments.remove(&number);
                self.log.delete(number, failed);
            }
            Some(length) => {
                // The cut gives room for what says what is in it; nothing else is ever appended,
                // for what stood there was sealed with the same nonces.
                self.log.cut(number, length, failed);
                let facts = active.map(|active| active.facts).unwrap_or_default();
                self.write_contents(number, facts);
            }
            None => {}
        }
    }

    /// Handles a failed sync. The written bytes may be missing, which is noticed when they are
    /// read; nothing more is appended.
    pub(super) fn sync_failed(&mut self, number: u32) {
        self.log.retry_at = Some(self.log.now + DISK_RETRY);
        let active = self.log.active.as_mut();
        if let Some(active) = active.filter(|active| active.number == number) {
            active.ends = true;
        }
    }

    /// Writes the contents of a segment that is no longer appended to. If this fails, the next
    /// start reads the whole segment.
    pub(in super::super) fn write_contents(&mut self, number: u32, facts: EncodedFacts) {
        self.log.finish_list(number);
        let name = self.log.name(number, self.generation);
        let (Some(name), Some(segment)) = (name, self.log.segments.get(&number)) else {
            return;
        };
        let mut chunks = Vec::with_capacity(segment.chunks.len());
        for slot in &segment.chunks {
            let Some(known) = self.index.at(*slot) else {
                continue;
            };
            if let DiskLocation::At { segment, offset } = known.place
                && segment == number
            {
                chunks.push(ChunkLine {
                    key: known.key,
                    check: known.check,
                    previous: self.index.previous(known.key),
                    peers: known.peers.holders,
                    offset,
                    length: known.length,
                });
            }
        }
        let peers = self.peers.iter().enumerate();
        let peers = peers.map(|(slot, peer)| PeerLine {
            slot: slot as u8,
            node: peer.node,
            generation: peer.generation,
        });
        let contents = SegmentContents {
            peers: peers.collect(),
            chunks,
            facts,
        };
        let mut salt = [0; 16];
        self.random.fill(&mut salt);
        let key = self.log.key.as_ref();
        let Some(bytes) = key.and_then(|key| contents.emit(key, &name, salt)) else {
            return;
        };
        let length = bytes.len() as u64;
        if self.log.bytes() + length > self.log.cap {
            return;
        }
        let Some(segment) = self.log.segments.get_mut(&number) else {
            return;
        };
        let operation = DiskOperation::Append {
            segment: number,
            offset: segment.bytes,
            bytes: bytes.into(),
        };
        segment.bytes += length;
        let work = RequestPurpose::Close {
            segment: number,
            length,
        };
        self.log.ask(operation, work);
    }

    pub(super) fn closed(
        &mut self,
        number: u32,
        length: u64,
        result: &Result<DiskAnswer, DiskFault>,
    ) {
        match (self.log.segments.get_mut(&number), result) {
            (None, _) => self.log.delete(number, length),
            (Some(_), Ok(_)) => {
                let operation = DiskOperation::Sync { segment: number };
                self.log.ask(operation, RequestPurpose::LastSync);
            }
            (Some(segment), Err(_)) => {
                segment.bytes -= length;
                let bytes = segment.bytes;
                self.log.cut(number, bytes, length);
            }
        }
    }

    pub(super) fn sync(&mut self) {
        if self.log.unsynced == 0 {
            return;
        }
        self.log.unsynced = 0;
        if self.log.knowledge.is_empty() {
            self.log.dirty_since = None;
        }
        if let Some(ActiveSegment { number, .. }) = self.log.active {
            let segment = number;
            self.log.ask(
                DiskOperation::Sync { segment },
                RequestPurpose::Sync { segment },
            );
        }
    }
}

/// Builds the records of facts learnt about a peer.
fn knowledge(slot: u8, fact: PeerFact, keys: &[ChunkKey]) -> Vec<LogRecord<'static>> {
    let pieces = keys.chunks(MAX_KNOWLEDGE_KEYS).map(<[ChunkKey]>::to_vec);
    match fact {
        PeerFact::Forget => vec![LogRecord::Forget { slot }],
        PeerFact::Generation => Vec::new(),
        PeerFact::Held => pieces.map(|keys| LogRecord::Held { slot, keys }).collect(),
        PeerFact::Lacking => pieces
            .map(|keys| LogRecord::Lacking { slot, keys })
            .collect(),
    }
}
