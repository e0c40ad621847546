//! The disk tier: chunks are appended to segments in the order of their arrival, the oldest
//! segment goes when there are too many bytes.
//!
//! ```text
//! chunk: Nowhere ──queued──► Queued ──in a batch──► Writing ──done──► At(segment, offset)
//!           ▲                                          │ failed             │ segment dropped
//!           └──────────────────────────────────────────┴────────────────────┘ (or queued again)
//! ```
//! One append is under way at a time; what arrives meanwhile goes out together in the next, so
//! batches grow with the load and a lone chunk is written at once. A sync follows each
//! [`SYNC_BYTES`], or [`SYNC_INTERVAL`] after the first unsynced byte. After a failed write the
//! disk is left alone for [`DISK_RETRY`]; chunks of that time stay in memory only.
//!
//! Eviction is by segment, oldest first, with a second chance: a chunk of the dropped segment
//! that is in memory and was used since it was written is queued again.
//!
//! What peers hold is written in batches with the next append; losing some of it only costs
//! bytes on the wire.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use vocab::{Time, Writer};

use super::index::{Known, Slot};
use super::recovery::Recovery;
use super::segment::{
    CHUNK_HEAD, LogRecord, MAX_KNOWLEDGE_KEYS, RECORD_HEAD, Step, emit_segment_head, step,
};
use super::{Dictionary, ENTRY_MEMORY, Fetch, Place, Ticket};
use crate::config::{
    DISK_RETRY, DictionaryConfig, MAX_DISK_APPEND, MAX_DISK_BACKLOG, MAX_SEGMENTS, SYNC_BYTES,
    SYNC_INTERVAL,
};
use crate::disk::{DiskAnswer, DiskCompletion, DiskFault, DiskOperation, DiskRequest};
use crate::fingerprint::{Fingerprint, Key};

/// The smallest segment, in bytes.
const LEAST_SEGMENT: u64 = 64 * 1024;
/// Less than this, in bytes, is no disk tier.
const LEAST_DISK: u64 = 1024 * 1024;
/// A segment ends after the record that fills it, and knowledge may follow: bytes that it may
/// be longer.
const SEGMENT_OVERSHOOT: u64 = 128 * 1024;
/// Segments that the disk's bytes are divided into at least, so that dropping one keeps most.
const LEAST_SEGMENTS: u64 = 4;

/// The state of the disk tier.
pub(super) struct Log {
    /// Bytes on disk at most; zero: there is no disk tier.
    pub(super) cap: u64,
    segment_size: u64,
    pub(super) state: LogState,
    next_id: u64,
    requests: VecDeque<DiskRequest>,
    under_way: BTreeMap<u64, Work>,
    pub(super) segments: BTreeMap<u32, Segment>,
    /// Bytes that their lists of chunks take.
    lists_bytes: usize,
    /// The segment that is appended to.
    pub(super) active: Option<Active>,
    pub(super) next_number: u32,
    queue: VecDeque<Key>,
    queue_bytes: usize,
    appending: Appending,
    knowledge: BTreeMap<(u8, Fact), Vec<Key>>,
    unsynced: u64,
    dirty_since: Option<Time>,
    flush: Flush,
    retry_at: Option<Time>,
    now: Time,
}

/// How far the disk tier is.
pub(super) enum LogState {
    /// [`Dictionary::open`] has not been called.
    Closed,
    Recovering(Box<Recovery>),
    Ready,
    /// It could not even be listed: memory only, until the next start.
    Failed,
}

/// A segment file.
#[derive(Clone, Debug, Default)]
pub(super) struct Segment {
    pub(super) bytes: u64,
    /// The chunks in it, and some that have another place by now.
    pub(super) chunks: Vec<Slot>,
}

/// Where appending goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    pub(super) number: u32,
    /// Peers named in it so far.
    pub(super) announced: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Appending {
    Idle,
    UnderWay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    WithChunks,
    Now,
}

/// What is to be written down of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fact {
    Forget,
    Held,
    /// After `Held`: between two batches the order of the two is lost, and taking a chunk for
    /// lacking costs bytes where taking it for held would cost a repair.
    Lacking,
}

/// What a request under way was for.
pub(super) enum Work {
    List,
    Identify,
    Recover,
    Fetch {
        key: Key,
        place: Place,
    },
    Append {
        segment: u32,
        length: u64,
        chunks: Vec<(Key, u32)>,
        announced: usize,
    },
    /// Syncs, cuts and deletions: only their failure matters.
    Upkeep,
}

impl Log {
    pub(super) fn new(config: &DictionaryConfig) -> Self {
        let cap = Some(config.disk.bytes()).filter(|bytes| *bytes >= LEAST_DISK);
        let cap = cap.unwrap_or(0);
        let largest = (cap / LEAST_SEGMENTS).clamp(LEAST_SEGMENT, 1 << 30);
        Self {
            cap,
            segment_size: config.segment.bytes().clamp(LEAST_SEGMENT, largest),
            state: LogState::Closed,
            next_id: 0,
            requests: VecDeque::new(),
            under_way: BTreeMap::new(),
            segments: BTreeMap::new(),
            lists_bytes: 0,
            active: None,
            next_number: 1,
            queue: VecDeque::new(),
            queue_bytes: 0,
            appending: Appending::Idle,
            knowledge: BTreeMap::new(),
            unsynced: 0,
            dirty_since: None,
            flush: Flush::WithChunks,
            retry_at: None,
            now: Time::ZERO,
        }
    }

    /// Hands out a request and remembers what it is for.
    pub(super) fn ask(&mut self, operation: DiskOperation, work: Work) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.requests.push_back(DiskRequest { id, operation });
        self.under_way.insert(id, work);
        id
    }

    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    /// Bytes that are allocated for the lists of what is in which segment.
    pub(super) fn list_bytes(&self) -> usize {
        let per_segment = 2 * size_of::<(u32, Segment)>();
        self.lists_bytes + self.segments.len() * per_segment
    }

    pub(super) fn segment_has_room(&self, number: u32) -> bool {
        let segment = self.segments.get(&number);
        segment.is_some_and(|segment| segment.bytes < self.segment_size)
    }

    /// Notes that the chunk in this slot is in that segment.
    pub(super) fn list(&mut self, number: u32, slot: Slot) {
        if let Some(segment) = self.segments.get_mut(&number) {
            self.lists_bytes -= list_bytes(&segment.chunks);
            segment.chunks.push(slot);
            self.lists_bytes += list_bytes(&segment.chunks);
        }
    }

    /// Nothing more is added to the segment: its list gives back what it does not need.
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
            Work::List => self.listed(completion.result),
            Work::Identify => self.identified(completion.result),
            Work::Recover => self.recovered(completion.result),
            Work::Fetch { key, place } => self.fetched(key, place, completion.result),
            Work::Append {
                segment,
                length,
                chunks,
                announced,
            } => match completion.result {
                Ok(_) => self.appended(segment, length, &chunks),
                Err(_) => self.append_failed(segment, &chunks, announced),
            },
            Work::Upkeep => {}
        }
    }

    /// When [`Self::handle_timeout`] wants to be called (syncs, retries).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let sync = self.log.dirty_since.map(|since| since + SYNC_INTERVAL);
        [sync, self.log.retry_at].into_iter().flatten().min()
    }

    /// Tells the dictionary the time; welcome at any time, not only at [`Self::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Time) {
        let log = &mut self.log;
        log.now = log.now.max(now);
        if log.retry_at.is_some_and(|at| log.now >= at) {
            log.retry_at = None;
        }
        let due = log
            .dirty_since
            .is_some_and(|since| log.now >= since + SYNC_INTERVAL);
        if due {
            log.dirty_since = None;
            if !log.knowledge.is_empty() {
                log.flush = Flush::Now;
            }
            self.sync();
        }
    }

    /// Puts a chunk on its way to the disk, if there is one that keeps up.
    pub(super) fn enqueue(&mut self, key: Key) {
        if self.log.cap == 0 {
            return;
        }
        let Some(known) = self.index.get(key) else {
            return;
        };
        let length = known.length;
        if !self.log.writes() || self.log.queue_bytes + length > backlog(&self.config) {
            self.statistics.unwritten_chunks += 1;
            return;
        }
        self.index.set_place(known.slot, Place::Queued);
        self.log.queue.push_back(key);
        self.log.queue_bytes += length;
    }

    /// Notes what is to be written down of a peer's holdings.
    pub(super) fn note(&mut self, slot: Option<u8>, fact: Fact, key: Option<Key>) {
        let Some(slot) = slot.filter(|_| self.log.writes()) else {
            return;
        };
        if fact == Fact::Forget {
            self.log.knowledge.remove(&(slot, Fact::Held));
            self.log.knowledge.remove(&(slot, Fact::Lacking));
        }
        let keys = self.log.knowledge.entry((slot, fact)).or_default();
        keys.extend(key);
        if keys.len() >= MAX_KNOWLEDGE_KEYS {
            self.log.flush = Flush::Now;
        }
        self.log.mark_dirty();
    }

    /// Asks for a chunk's record.
    pub(super) fn start_fetch(&mut self, known: &Known) -> Fetch {
        let Known { key, place, .. } = *known;
        let Place::At { segment, offset } = place else {
            return Fetch::Missing;
        };
        let operation = DiskOperation::Read {
            segment,
            offset: u64::from(offset),
            length: (RECORD_HEAD + CHUNK_HEAD + known.length) as u32,
        };
        self.log.ask(operation, Work::Fetch { key, place });
        let ticket = Ticket::default();
        self.fetches.insert(key, ticket.clone());
        Fetch::Reading(ticket)
    }

    /// Drops everything that is on disk.
    pub(super) fn clear_log(&mut self) {
        let numbers: Vec<u32> = self.log.segments.keys().copied().collect();
        for segment in numbers {
            let operation = DiskOperation::Delete { segment };
            self.log.ask(operation, Work::Upkeep);
        }
        self.forget_recovered();
        self.log.segments.clear();
        self.log.lists_bytes = 0;
        self.log.active = None;
        self.log.queue.clear();
        self.log.queue_bytes = 0;
        self.log.knowledge.clear();
        self.log.unsynced = 0;
    }

    fn fetched(&mut self, key: Key, place: Place, result: Result<DiskAnswer, DiskFault>) {
        let answer = match &result {
            Ok(DiskAnswer::Bytes(bytes)) => chunk_of(bytes, key),
            Ok(DiskAnswer::Segments(_) | DiskAnswer::Done) | Err(_) => None,
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
                self.keep_within_memory();
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

    /// There is no disk after all: what waits for it stays in memory only.
    pub(super) fn abandon_queue(&mut self) {
        for key in std::mem::take(&mut self.log.queue) {
            self.statistics.unwritten_chunks += 1;
            self.unplace(key);
        }
        self.log.queue_bytes = 0;
        self.log.knowledge.clear();
    }

    /// The chunk has no place on disk any more.
    fn unplace(&mut self, key: Key) {
        if !self.memory.contains(key) {
            self.index.remove(key);
        } else if let Some(known) = self.index.get(key) {
            self.index.set_place(known.slot, Place::Nowhere);
        }
    }

    /// Starts an append if none is under way and something waits.
    fn start_append(&mut self) {
        let log = &self.log;
        let ready = matches!(log.state, LogState::Ready);
        if !ready || !log.writes() || log.appending == Appending::UnderWay {
            return;
        }
        if log.queue.is_empty() && log.flush == Flush::WithChunks {
            return;
        }
        let mut out = Writer::with_capacity(MAX_DISK_APPEND.min(self.log.queue_bytes + 4096));
        let Active { number, announced } = self.active_segment(&mut out);
        let start = self
            .log
            .segments
            .get(&number)
            .map_or(0, |segment| segment.bytes);
        for slot in announced..self.peers.len() {
            let node = self.peers[slot];
            let slot = slot as u8;
            LogRecord::Peer { slot, node }.emit(&mut out);
        }
        let mut chunks = Vec::new();
        while let Some(key) = self.log.queue.front().copied() {
            let length = self.length(key) + RECORD_HEAD + CHUNK_HEAD;
            let end = start + (out.len() + length) as u64;
            let full = !chunks.is_empty() && end > self.log.segment_size;
            if full || out.len() + length > MAX_DISK_APPEND {
                break;
            }
            self.log.queue.pop_front();
            let offset = start + out.len() as u64;
            if self.emit_chunk(key, &mut out) {
                chunks.push((key, offset as u32));
            }
        }
        for ((slot, fact), keys) in std::mem::take(&mut self.log.knowledge) {
            emit_knowledge(slot, fact, &keys, &mut out);
        }
        self.log.flush = Flush::WithChunks;
        if out.is_empty() {
            return;
        }
        let bytes = out.finish();
        let length = bytes.len() as u64;
        let operation = DiskOperation::Append {
            segment: number,
            offset: start,
            bytes,
        };
        self.log.active = Some(Active {
            number,
            announced: self.peers.len(),
        });
        self.log.appending = Appending::UnderWay;
        let work = Work::Append {
            segment: number,
            length,
            chunks,
            announced,
        };
        self.log.ask(operation, work);
    }

    /// The segment to append to; a new one's head goes into `out`.
    fn active_segment(&mut self, out: &mut Writer) -> Active {
        if let Some(active) = self.log.active
            && self.log.segment_has_room(active.number)
        {
            return active;
        }
        if let Some(active) = self.log.active {
            self.log.finish_list(active.number);
        }
        self.drop_segments(self.log.segment_size + SEGMENT_OVERSHOOT);
        let number = self.log.next_number;
        self.log.next_number += 1;
        self.log.segments.insert(number, Segment::default());
        out.bytes(&emit_segment_head(number, &self.generation));
        Active {
            number,
            announced: 0,
        }
    }

    /// Writes a queued chunk's record; says whether it was still to be written.
    fn emit_chunk(&mut self, key: Key, out: &mut Writer) -> bool {
        let Some(known) = self.index.get(key) else {
            return false;
        };
        self.log.queue_bytes -= known.length;
        if known.place != Place::Queued {
            return false;
        }
        let bytes = self.memory.peek(key);
        let bytes = bytes.expect("a queued chunk is pinned in memory");
        // The full fingerprint is not kept in memory; making it again also keeps bytes that
        // memory has lost from being written as good ones.
        let fingerprint = Fingerprint::of(&bytes);
        self.index.set_place(known.slot, Place::Writing);
        LogRecord::Chunk {
            fingerprint,
            peers: known.peers,
            previous: self.previous(key),
            bytes: &bytes,
        }
        .emit(out);
        true
    }

    fn appended(&mut self, number: u32, length: u64, chunks: &[(Key, u32)]) {
        self.log.appending = Appending::Idle;
        let Some(segment) = self.log.segments.get_mut(&number) else {
            // The dictionary was cleared meanwhile.
            let operation = DiskOperation::Delete { segment: number };
            self.log.ask(operation, Work::Upkeep);
            return;
        };
        segment.bytes += length;
        for (key, offset) in chunks {
            if let Some(known) = self.index.get(*key) {
                let place = Place::At {
                    segment: number,
                    offset: *offset,
                };
                self.index.set_place(known.slot, place);
                self.log.list(number, known.slot);
            }
        }
        self.log.unsynced += length;
        self.log.mark_dirty();
        if self.log.unsynced >= SYNC_BYTES || !self.log.segment_has_room(number) {
            self.sync();
        }
        self.keep_within_memory();
    }

    fn append_failed(&mut self, number: u32, chunks: &[(Key, u32)], announced: usize) {
        self.log.appending = Appending::Idle;
        self.statistics.unwritten_chunks += chunks.len() as u64;
        for (key, _) in chunks {
            self.unplace(*key);
        }
        // What waits behind would fail as well: it stays in memory only.
        self.abandon_queue();
        self.log.retry_at = Some(self.log.now + DISK_RETRY);
        let length = self
            .log
            .segments
            .get(&number)
            .map_or(0, |segment| segment.bytes);
        let operation = if length == 0 {
            self.log.segments.remove(&number);
            self.log.active = None;
            DiskOperation::Delete { segment: number }
        } else {
            self.log.active = Some(Active { number, announced });
            DiskOperation::Truncate {
                segment: number,
                length,
            }
        };
        self.log.ask(operation, Work::Upkeep);
        self.keep_within_memory();
    }

    fn sync(&mut self) {
        if self.log.unsynced == 0 {
            return;
        }
        self.log.unsynced = 0;
        if self.log.knowledge.is_empty() {
            self.log.dirty_since = None;
        }
        if let Some(Active { number, .. }) = self.log.active {
            let operation = DiskOperation::Sync { segment: number };
            self.log.ask(operation, Work::Upkeep);
        }
    }

    /// Drops the oldest segments until `more` bytes fit, and until the index of what is on disk
    /// leaves half of the memory to other things.
    pub(super) fn drop_segments(&mut self, more: u64) {
        loop {
            let too_many = self.log.bytes() + more > self.log.cap
                || self.log.segments.len() >= MAX_SEGMENTS
                || self.index.len() * ENTRY_MEMORY > self.memory_cap() / 2;
            let oldest = self.log.segments.first_key_value();
            let Some(number) = oldest.map(|(number, _)| *number).filter(|_| too_many) else {
                return;
            };
            self.drop_segment(number);
        }
    }

    fn drop_segment(&mut self, number: u32) {
        let Some(segment) = self.log.segments.remove(&number) else {
            return;
        };
        if self
            .log
            .active
            .is_some_and(|active| active.number == number)
        {
            self.log.active = None;
        }
        let operation = DiskOperation::Delete { segment: number };
        self.log.ask(operation, Work::Upkeep);
        self.log.lists_bytes -= list_bytes(&segment.chunks);
        for slot in segment.chunks {
            let here = self.index.at(slot).filter(
                |known| matches!(known.place, Place::At { segment, .. } if segment == number),
            );
            let Some(known) = here else { continue };
            let used = self.index.take_used(slot);
            self.unplace(known.key);
            if used && self.memory.contains(known.key) {
                self.enqueue(known.key);
            }
        }
        self.index.release_segment(number);
    }
}

fn list_bytes(list: &Vec<Slot>) -> usize {
    list.capacity() * size_of::<Slot>()
}

/// Bytes that may wait for the disk: never more than a quarter of the memory, which they pin.
fn backlog(config: &DictionaryConfig) -> usize {
    MAX_DISK_BACKLOG.min(config.memory.as_usize().max(super::LEAST_MEMORY) / 4)
}

fn emit_knowledge(slot: u8, fact: Fact, keys: &[Key], out: &mut Writer) {
    if fact == Fact::Forget {
        LogRecord::Forget { slot }.emit(out);
    }
    for keys in keys.chunks(MAX_KNOWLEDGE_KEYS) {
        let keys = keys.to_vec();
        match fact {
            Fact::Forget => {}
            Fact::Lacking => LogRecord::Lacking { slot, keys }.emit(out),
            Fact::Held => LogRecord::Held { slot, keys }.emit(out),
        }
    }
}

/// The chunk in a record read from disk, if it is sound and the one meant.
fn chunk_of(record: &Bytes, key: Key) -> Option<(Fingerprint, Bytes)> {
    let Step::Record(
        LogRecord::Chunk {
            fingerprint, bytes, ..
        },
        _,
    ) = step(record)
    else {
        return None;
    };
    let sound = fingerprint.key() == key && Fingerprint::of(bytes) == fingerprint;
    sound.then(|| (fingerprint, record.slice_ref(bytes)))
}
