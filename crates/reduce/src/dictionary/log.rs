//! Disk tier: chunks are appended to segments in the order of their arrival, and the oldest segment
//! is dropped when the disk limit is reached.
//!
//! ```text
//! chunk: Nowhere ──queued──► Queued ──in a batch──► Writing ──done──► At(segment, offset)
//!           ▲                                          │ failed             │ segment dropped
//!           └──────────────────────────────────────────┴────────────────────┘ (or queued again)
//! ```
//! One append is in progress at a time. Chunks that arrive meanwhile, and within [`GATHERING`] of
//! it, are written together in the next. So batches grow with the load and a single chunk is
//! written at once (`log/append.rs`). A sync follows each [`crate::SYNC_BYTES`], or
//! [`SYNC_INTERVAL`] after the first unsynced byte. When a segment is full, its contents are
//! written at its end (`contents.rs`). After a failed write its segment is ended and the disk is
//! not used for [`DISK_RETRY`]; chunks of that time stay in memory only.
//!
//! Eviction is by segment, oldest first, with a second chance: a chunk of the dropped segment that
//! was used since it was written is queued again, after it was read if it is not in memory.
//!
//! Peers' holdings are written in batches with the next append. Losing some of them only costs
//! bytes on the wire.

mod append;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use vocab::Time;

use super::contents::{CHUNK_LINE, EncodedFacts, FULL_CONTENTS};
use super::index::{ChunkPeers, EntrySlot, KnownChunk};
use super::recovery::LogRecovery;
use super::seal::{DictionaryKey, SealKey, SegmentName};
use super::segment::{CHUNK_HEAD, LogRecord, MAX_KNOWLEDGE_KEYS, RECORD_OVERHEAD, ScanStep, step};
use super::{Dictionary, DiskLocation, ENTRY_MEMORY, FetchResult, FetchTicket, PeerSlot};
use crate::config::{
    DISK_BLOCK, DISK_RETRY, DictionaryConfig, GATHERED, GATHERING, MAX_DISK_APPEND,
    MAX_DISK_BACKLOG, MAX_SEGMENTS, SYNC_INTERVAL,
};
use crate::disk::{
    DiskAnswer, DiskCompletion, DiskFault, DiskOperation, DiskRequest, SegmentListing,
};
use crate::fingerprint::{ChunkKey, Fingerprint};

/// The smallest segment, in bytes.
const LEAST_SEGMENT: u64 = 64 * 1024;
/// Less than this, in bytes, is no disk tier.
const LEAST_DISK: u64 = 1024 * 1024;
/// Largest part of a dropped segment that is read to be written again, as a divisor. The chunks
/// with most uses are a small part, and reading keeps others from the disk.
const RESCUED_PART: u64 = 4;
/// Segments whose derived keys are kept ready: the one that is written, and those that a few flows read.
const KEPT_SEALS: usize = 8;
/// Part of the disk backlog that is gathered at most before it is written, as a divisor.
const BACKLOG_PART: usize = 4;
/// Segments that the disk's bytes are divided into at least, so that dropping one keeps most.
const LEAST_SEGMENTS: u64 = 4;

/// The state of the disk tier.
pub(super) struct DiskLog {
    /// Bytes on disk at most; zero: there is no disk tier.
    pub(super) cap: u64,
    /// Key of the disk tier; without one there is no disk tier.
    pub(super) key: Option<DictionaryKey>,
    /// Keys that seal the records of the most recently used segments.
    seals: VecDeque<(SegmentName, Arc<SealKey>)>,
    segment_size: u64,
    pub(super) state: LogState,
    next_id: u64,
    requests: VecDeque<DiskRequest>,
    under_way: BTreeMap<u64, RequestPurpose>,
    pub(super) segments: BTreeMap<u32, SegmentFile>,
    /// Removals under way.
    pub(super) deletions: usize,
    /// Files that could not be removed, with their bytes.
    undeleted: BTreeMap<u32, u64>,
    /// Bytes that their lists of chunks take.
    lists_bytes: usize,
    /// The segment that is appended to.
    active: Option<ActiveSegment>,
    pub(super) next_number: u32,
    queue: VecDeque<Fingerprint>,
    queue_bytes: usize,
    appending: AppendState,
    /// Time of the last append request.
    appended_at: Option<Time>,
    /// Bytes of chunks that do not wait for more of them.
    gathered: usize,
    /// The memory of the last append, to be used again.
    spare: BytesMut,
    knowledge: BTreeMap<(u8, PeerFact), Vec<ChunkKey>>,
    unsynced: u64,
    dirty_since: Option<Time>,
    flush: FlushTiming,
    retry_at: Option<Time>,
    now: Time,
}

/// State of the disk tier.
pub(super) enum LogState {
    /// [`Dictionary::open`] has not been called.
    Closed,
    Recovering(Box<LogRecovery>),
    Ready,
    /// The directory could not be listed: memory only, until the next start.
    Failed,
}

/// A segment file.
#[derive(Clone, Debug)]
pub(super) struct SegmentFile {
    pub(super) bytes: u64,
    /// Bytes behind them that should have been cut and may still be there.
    excess: u64,
    salt: [u8; 16],
    /// The chunks in it, and some that have another place by now.
    chunks: Vec<EntrySlot>,
}

impl SegmentFile {
    pub(super) fn new(salt: [u8; 16], bytes: u64) -> Self {
        Self {
            bytes,
            excess: 0,
            salt,
            chunks: Vec::new(),
        }
    }
}

/// Segment that is appended to.
#[derive(Clone, Debug)]
struct ActiveSegment {
    number: u32,
    /// Peers named in it so far.
    announced: usize,
    /// Facts on peers' holdings that were written in the segment.
    facts: EncodedFacts,
    /// True if nothing more is appended because of a disk error.
    ends: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppendState {
    Idle,
    UnderWay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushTiming {
    WithChunks,
    Now,
}

/// Kind of a logged fact about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeerFact {
    Forget,
    /// Generation of the peer's dictionary.
    Generation,
    Held,
    /// After `PeerHoldings`: between two batches the order of the two is lost, and taking a chunk for
    /// lacking costs bytes where taking it for held would cost a repair.
    Lacking,
}

/// Purpose of a disk request in progress.
pub(super) enum RequestPurpose {
    List,
    Identify,
    /// The end of a segment is read.
    Contents {
        listing: SegmentListing,
    },
    Scan,
    Fetch {
        key: ChunkKey,
        place: DiskLocation,
        name: SegmentName,
    },
    Append {
        segment: u32,
        length: u64,
        chunks: Vec<(ChunkKey, u32)>,
        /// The memory that is written from.
        memory: Bytes,
    },
    /// A chunk that is used is read from a segment that is to go.
    Rescue {
        key: ChunkKey,
        offset: u32,
        name: SegmentName,
        peers: ChunkPeers,
    },
    /// The end of a segment is written.
    Close {
        segment: u32,
        length: u64,
    },
    Sync {
        segment: u32,
    },
    /// The segment's file is truncated by this many bytes.
    Cut {
        segment: u32,
        excess: u64,
    },
    /// A file of this many bytes is removed.
    Delete {
        segment: u32,
        bytes: u64,
    },
    /// The last bytes of a segment that is no longer appended to are synced.
    LastSync,
}

impl DiskLog {
    pub(super) fn new(config: &DictionaryConfig, key: Option<DictionaryKey>) -> Self {
        let cap = Some(config.disk.bytes()).filter(|bytes| *bytes >= LEAST_DISK && key.is_some());
        let cap = cap.unwrap_or(0);
        let largest = (cap / LEAST_SEGMENTS).clamp(LEAST_SEGMENT, 1 << 30);
        Self {
            cap,
            key,
            seals: VecDeque::new(),
            segment_size: config.segment.bytes().clamp(LEAST_SEGMENT, largest),
            state: LogState::Closed,
            next_id: 0,
            requests: VecDeque::new(),
            under_way: BTreeMap::new(),
            segments: BTreeMap::new(),
            deletions: 0,
            undeleted: BTreeMap::new(),
            lists_bytes: 0,
            active: None,
            next_number: 1,
            queue: VecDeque::new(),
            queue_bytes: 0,
            appending: AppendState::Idle,
            appended_at: None,
            gathered: GATHERED.min(backlog(config) / BACKLOG_PART),
            spare: BytesMut::new(),
            knowledge: BTreeMap::new(),
            unsynced: 0,
            dirty_since: None,
            flush: FlushTiming::WithChunks,
            retry_at: None,
            now: Time::ZERO,
        }
    }

    /// Queues a request and records its purpose.
    pub(super) fn ask(&mut self, operation: DiskOperation, work: RequestPurpose) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.requests.push_back(DiskRequest { id, operation });
        self.under_way.insert(id, work);
        id
    }

    /// Bytes at which a segment ends.
    pub(super) fn segment_size(&self) -> u64 {
        self.segment_size
    }

    /// Bytes of chunks that wait to be written, and of records that are being written.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let writing = self.under_way.values().map(|work| match work {
            RequestPurpose::Append { length, .. } => *length,
            _ => 0,
        });
        self.queue_bytes as u64 + writing.sum::<u64>()
    }

    /// Bytes on disk, those included that it did not want to let go.
    pub(super) fn bytes(&self) -> u64 {
        let segments = self.segments.values();
        let bytes: u64 = segments.map(|segment| segment.bytes + segment.excess).sum();
        bytes + self.undeleted.values().sum::<u64>()
    }

    /// Has a segment's file removed.
    pub(super) fn delete(&mut self, segment: u32, bytes: u64) {
        self.deletions += 1;
        let operation = DiskOperation::Delete { segment };
        self.ask(operation, RequestPurpose::Delete { segment, bytes });
    }

    /// Truncates a segment's file by `excess` bytes.
    pub(super) fn cut(&mut self, segment: u32, length: u64, excess: u64) {
        let operation = DiskOperation::Truncate { segment, length };
        self.ask(operation, RequestPurpose::Cut { segment, excess });
    }

    /// Memory of the lists of the segments' chunks, in bytes.
    pub(super) fn list_bytes(&self) -> usize {
        let per_segment = 2 * size_of::<(u32, SegmentFile)>();
        self.lists_bytes + self.segments.len() * per_segment
    }

    fn has_room(&self, active: &ActiveSegment) -> bool {
        let segment = self.segments.get(&active.number);
        !active.ends
            && segment.is_some_and(|segment| segment.bytes < self.segment_size)
            && self.contents_bytes(active) < FULL_CONTENTS
    }

    /// Bytes that the contents of the segment will take for chunks and facts.
    fn contents_bytes(&self, active: &ActiveSegment) -> usize {
        let segment = self.segments.get(&active.number);
        segment.map_or(0, |segment| segment.chunks.len() * CHUNK_LINE) + active.facts.len()
    }

    fn name(&self, number: u32, generation: [u8; 16]) -> Option<SegmentName> {
        let segment = self.segments.get(&number)?;
        Some(SegmentName {
            number,
            generation,
            salt: segment.salt,
        })
    }

    /// Returns the key that seals a segment's records. Deriving it costs as much as sealing some
    /// kilobytes.
    fn seal(&mut self, name: &SegmentName) -> Option<Arc<SealKey>> {
        if let Some((_, seal)) = self.seals.iter().find(|(known, _)| known == name) {
            return Some(Arc::clone(seal));
        }
        let seal = Arc::new(self.key.as_ref()?.records(name));
        if self.seals.len() == KEPT_SEALS {
            self.seals.pop_front();
        }
        self.seals.push_back((*name, Arc::clone(&seal)));
        Some(seal)
    }

    /// Notes that the chunk in this slot is in that segment.
    pub(super) fn list(&mut self, number: u32, slot: EntrySlot) {
        if let Some(segment) = self.segments.get_mut(&number) {
            self.lists_bytes -= list_bytes(&segment.chunks);
            segment.chunks.push(slot);
            self.lists_bytes += list_bytes(&segment.chunks);
        }
    }

    /// Reserves room for `chunks` chunks in the segment's list.
    pub(super) fn reserve_list(&mut self, number: u32, chunks: usize) {
        if let Some(segment) = self.segments.get_mut(&number) {
            self.lists_bytes -= list_bytes(&segment.chunks);
            segment.chunks.reserve_exact(chunks);
            self.lists_bytes += list_bytes(&segment.chunks);
        }
    }

    /// Shrinks the list of a segment that is no longer appended to.
    pub(super) fn finish_list(&mut self, number: u32) {
        if let Some(segment) = self.segments.get_mut(&number) {
            self.lists_bytes -= list_bytes(&segment.chunks);
            segment.chunks.shrink_to_fit();
            self.lists_bytes += list_bytes(&segment.chunks);
        }
    }

    fn writes(&self) -> bool {
        let open = match self.state {
            LogState::Recovering(_) | LogState::Ready => true,
            LogState::Closed | LogState::Failed => false,
        };
        open && self.cap > 0 && self.retry_at.is_none()
    }

    /// Returns the time until which queued chunks wait for more, if they do.
    fn gathers_until(&self) -> Option<Time> {
        let until = self.appended_at? + GATHERING;
        let little = !self.queue.is_empty() && self.queue_bytes < self.gathered;
        let idle = self.appending == AppendState::Idle && self.writes();
        (little && idle && self.flush == FlushTiming::WithChunks && until > self.now)
            .then_some(until)
    }

    fn mark_dirty(&mut self) {
        self.dirty_since.get_or_insert(self.now);
    }
}

impl Dictionary {
    /// The next piece of disk work, if there is any. To be drained after every call that may
    /// cause some: encoding, decoding, completions and timeouts.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        if self.log.requests.is_empty() {
            self.start_append();
        }
        self.log.requests.pop_front()
    }

    /// Requests that gathered chunks are written with the next [`Self::poll_disk`], because no more
    /// follow. Peers' holdings are included, because peers would otherwise be asked for chunks that
    /// they refer to.
    pub fn request_flush(&mut self) {
        if !self.log.queue.is_empty() || !self.log.knowledge.is_empty() {
            self.log.flush = FlushTiming::Now;
        }
    }

    /// Takes in the end of a piece of disk work. A completion for an id that is not under way is
    /// ignored.
    pub fn handle_disk(&mut self, completion: DiskCompletion) {
        let Some(work) = self.log.under_way.remove(&completion.id) else {
            return;
        };
        if completion.result.is_err() {
            self.statistics.disk_faults += 1;
        }
        match work {
            RequestPurpose::List => self.listed(completion.result),
            RequestPurpose::Identify => self.identified(completion.result),
            RequestPurpose::Contents { listing } => self.contents_read(listing, completion.result),
            RequestPurpose::Scan => self.scanned(completion.result),
            RequestPurpose::Fetch { key, place, name } => {
                self.fetched(key, place, &name, completion.result);
            }
            RequestPurpose::Rescue {
                key,
                offset,
                name,
                peers,
            } => self.finish_rescue(key, offset, &name, peers, &completion.result),
            RequestPurpose::Append {
                segment,
                length,
                chunks,
                memory,
            } => {
                // The disk is done with it. What knowledge of peers has made larger is not kept.
                if let Ok(memory) = memory.try_into_mut()
                    && memory.capacity() <= MAX_DISK_APPEND + 4 * DISK_BLOCK
                {
                    self.log.spare = memory;
                }
                match completion.result {
                    Ok(_) => self.appended(segment, length, &chunks),
                    Err(_) => self.append_failed(segment, length, &chunks),
                }
            }
            RequestPurpose::Close { segment, length } => {
                self.closed(segment, length, &completion.result)
            }
            RequestPurpose::Sync { segment } => {
                if completion.result.is_err() {
                    self.sync_failed(segment);
                }
            }
            RequestPurpose::Cut { segment, excess } => {
                let segment = self.log.segments.get_mut(&segment);
                if let (Some(segment), Err(_)) = (segment, completion.result) {
                    segment.excess += excess;
                }
            }
            RequestPurpose::Delete { segment, bytes } => {
                self.log.deletions -= 1;
                if completion.result.is_err() {
                    self.log.undeleted.insert(segment, bytes);
                    self.log.retry_at = Some(self.log.now + DISK_RETRY);
                }
            }
            RequestPurpose::LastSync => {}
        }
        self.keep_within_memory();
    }

    /// Returns the time at which to call [`Self::handle_timeout`] (syncs, retries).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let sync = self.log.dirty_since.map(|since| since + SYNC_INTERVAL);
        let times = [sync, self.log.retry_at, self.log.gathers_until()];
        times.into_iter().flatten().min()
    }

    /// Tells the dictionary the time; welcome at any time, not only at [`Self::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Time) {
        self.release_pins();
        let log = &mut self.log;
        log.now = log.now.max(now);
        if log.retry_at.is_some_and(|at| log.now >= at) {
            log.retry_at = None;
            for (segment, bytes) in std::mem::take(&mut log.undeleted) {
                log.delete(segment, bytes);
            }
        }
        let due = log
            .dirty_since
            .is_some_and(|since| log.now >= since + SYNC_INTERVAL);
        if due {
            log.dirty_since = None;
            if !log.knowledge.is_empty() {
                log.flush = FlushTiming::Now;
            }
            self.sync();
        }
    }

    /// Puts the chunk of this fingerprint on its way to the disk, if there is one that keeps up.
    pub(super) fn enqueue(&mut self, fingerprint: Fingerprint) {
        if self.log.cap == 0 {
            return;
        }
        let Some(known) = self.index.get(fingerprint.key()) else {
            return;
        };
        let length = known.length;
        if !self.log.writes() || self.log.queue_bytes + length > backlog(&self.config) {
            self.statistics.unwritten_chunks += 1;
            return;
        }
        self.index.set_place(known.slot, DiskLocation::Queued);
        self.log.queue.push_back(fingerprint);
        self.log.queue_bytes += length;
    }

    /// Queues a fact about a peer's holdings to be written.
    pub(super) fn note(&mut self, slot: Option<u8>, fact: PeerFact, key: Option<ChunkKey>) {
        let Some(slot) = slot.filter(|_| self.log.writes()) else {
            return;
        };
        if fact == PeerFact::Forget {
            self.log.knowledge.remove(&(slot, PeerFact::Held));
            self.log.knowledge.remove(&(slot, PeerFact::Lacking));
        }
        let keys = self.log.knowledge.entry((slot, fact)).or_default();
        keys.extend(key);
        if keys.len() >= MAX_KNOWLEDGE_KEYS {
            self.log.flush = FlushTiming::Now;
        }
        self.log.mark_dirty();
    }

    /// Asks for a chunk's record.
    pub(super) fn start_fetch(&mut self, known: &KnownChunk) -> FetchResult {
        let KnownChunk { key, place, .. } = *known;
        let DiskLocation::At { segment, offset } = place else {
            return FetchResult::Missing;
        };
        let Some(name) = self.log.name(segment, self.generation) else {
            return FetchResult::Missing;
        };
        let operation = DiskOperation::Read {
            segment,
            offset: u64::from(offset),
            length: (RECORD_OVERHEAD + CHUNK_HEAD + known.length) as u32,
        };
        self.log
            .ask(operation, RequestPurpose::Fetch { key, place, name });
        let ticket = FetchTicket::default();
        self.fetches.insert(key, ticket.clone());
        FetchResult::Reading(ticket)
    }

    /// Drops everything that is on disk.
    pub(super) fn clear_log(&mut self) {
        for (number, segment) in std::mem::take(&mut self.log.segments) {
            self.log.delete(number, segment.bytes + segment.excess);
        }
        self.forget_recovered();
        self.log.lists_bytes = 0;
        self.log.active = None;
        self.log.seals.clear();
        self.log.queue.clear();
        self.log.queue_bytes = 0;
        self.log.knowledge.clear();
        self.log.unsynced = 0;
    }

    fn fetched(
        &mut self,
        key: ChunkKey,
        place: DiskLocation,
        name: &SegmentName,
        result: Result<DiskAnswer, DiskFault>,
    ) {
        let answer = match (&result, self.log.seal(name), place) {
            (Ok(DiskAnswer::Bytes(bytes)), Some(seal), DiskLocation::At { offset, .. }) => {
                chunk_of(bytes, &seal, offset, key)
            }
            _ => None,
        };
        let known = self.index.get(key);
        let known = known.filter(|known| known.place == place);
        let bytes = answer.filter(|(fingerprint, _)| {
            known.is_none_or(|known| known.check == fingerprint.check())
        });
        let bytes = bytes.map(|(_, bytes)| bytes);
        match (&bytes, known) {
            (Some(bytes), Some(_)) => {
                self.memory.insert(key, bytes);
            }
            (None, Some(_)) => {
                if result.is_ok() {
                    self.statistics.damaged_records += 1;
                }
                self.unplace(key);
            }
            (_, None) => {}
        }
        if let Some(ticket) = self.fetches.remove(&key) {
            ticket.resolve(bytes);
        }
    }

    /// Drops the disk queue because there is no disk; its chunks stay in memory only.
    pub(super) fn abandon_queue(&mut self) {
        for fingerprint in std::mem::take(&mut self.log.queue) {
            self.statistics.unwritten_chunks += 1;
            self.unplace(fingerprint.key());
        }
        self.log.queue_bytes = 0;
        self.log.knowledge.clear();
    }

    /// The chunk has no place on disk any more.
    fn unplace(&mut self, key: ChunkKey) {
        if !self.memory.contains(key) {
            self.index.remove(key);
        } else if let Some(known) = self.index.get(key) {
            self.index.set_place(known.slot, DiskLocation::Nowhere);
        }
    }

    /// Drops the oldest segments that are not being read, until `more` bytes fit and the index of
    /// the disk's chunks leaves half of the memory free.
    pub(super) fn drop_segments(&mut self, more: u64) {
        self.release_pins();
        loop {
            let too_many = self.log.bytes() + more > self.log.cap
                || self.log.segments.len() >= MAX_SEGMENTS
                || self.index.len() * ENTRY_MEMORY > self.memory_cap() / 2;
            let active = self.log.active.as_ref().map(|active| active.number);
            if !too_many {
                return;
            }
            let numbers = self.log.segments.keys().copied();
            let mut numbers = numbers.filter(|number| Some(*number) != active);
            // What is being read stays, unless there is nothing else.
            let unpinned = |number: &u32| !self.index.is_segment_pinned(*number);
            let oldest = numbers.clone().find(unpinned).or_else(|| numbers.next());
            let Some(number) = oldest else {
                return;
            };
            self.drop_segment(number);
        }
    }

    fn drop_segment(&mut self, number: u32) {
        let name = self.log.name(number, self.generation);
        let (Some(name), Some(segment)) = (name, self.log.segments.remove(&number)) else {
            return;
        };
        self.log.lists_bytes -= list_bytes(&segment.chunks);
        let mut room = segment.bytes / RESCUED_PART;
        for slot in segment.chunks {
            let Some(known) = self.index.at(slot) else {
                continue;
            };
            let DiskLocation::At { segment, offset } = known.place else {
                continue;
            };
            if segment != number {
                continue;
            }
            let used = self.index.take_used(slot) || known.is_pinned;
            let resident = self.memory.peek(known.key);
            self.unplace(known.key);
            if let Some(bytes) = resident.filter(|_| used) {
                self.enqueue(Fingerprint::of(&bytes));
            } else if used && known.length as u64 <= room {
                room -= known.length as u64;
                self.start_rescue(&known, offset, name);
            }
        }
        self.index.release_segment(number);
        // Behind the reads of what is rescued.
        self.log.delete(number, segment.bytes + segment.excess);
    }

    /// Has a chunk read that is still used, while its segment is there.
    fn start_rescue(&mut self, known: &KnownChunk, offset: u32, name: SegmentName) {
        let operation = DiskOperation::Read {
            segment: name.number,
            offset: u64::from(offset),
            length: (RECORD_OVERHEAD + CHUNK_HEAD + known.length) as u32,
        };
        let work = RequestPurpose::Rescue {
            key: known.key,
            offset,
            name,
            peers: known.peers,
        };
        self.log.ask(operation, work);
    }

    /// Takes a rescued chunk in again, unless the dictionary was cleared meanwhile.
    fn finish_rescue(
        &mut self,
        key: ChunkKey,
        offset: u32,
        name: &SegmentName,
        peers: ChunkPeers,
        result: &Result<DiskAnswer, DiskFault>,
    ) {
        let (Ok(DiskAnswer::Bytes(bytes)), Some(seal)) = (result, self.log.seal(name)) else {
            return;
        };
        let chunk = chunk_of(bytes, &seal, offset, key);
        let Some((fingerprint, bytes)) = chunk.filter(|_| name.generation == self.generation)
        else {
            return;
        };
        let previous = self.previous(key);
        self.insert(&fingerprint, &bytes, previous, PeerSlot::UNTRACKED);
        let known = self.index.get(key);
        if let Some(known) = known.filter(|known| known.check == fingerprint.check()) {
            self.index
                .set_peers(known.slot, known.peers.joined_with(peers));
        }
    }
}

fn list_bytes(list: &Vec<EntrySlot>) -> usize {
    list.capacity() * size_of::<EntrySlot>()
}

/// Bytes that may wait for the disk: never more than a quarter of the memory, which they pin.
fn backlog(config: &DictionaryConfig) -> usize {
    MAX_DISK_BACKLOG.min(config.memory.as_usize().max(super::LEAST_MEMORY) / 4)
}

/// The chunk in a record read from this offset, if it is sound and the one meant.
fn chunk_of(
    record: &[u8],
    seal: &SealKey,
    offset: u32,
    key: ChunkKey,
) -> Option<(Fingerprint, Bytes)> {
    let mut opened = Vec::new();
    let step = step(seal, u64::from(offset), record, &mut opened);
    let ScanStep::Record(
        LogRecord::Chunk {
            fingerprint, bytes, ..
        },
        _,
    ) = step
    else {
        return None;
    };
    // The seal says that these are the bytes that had this fingerprint when they were written.
    let length = bytes.len();
    let sound = fingerprint.key() == key;
    let bytes = Bytes::from(opened).slice(CHUNK_HEAD..CHUNK_HEAD + length);
    sound.then_some((fingerprint, bytes))
}
