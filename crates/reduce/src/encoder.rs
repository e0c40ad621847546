//! Encoder: segments in, records out; one for each flow and direction.
//!
//! ```text
//! push ──► order of runs: payload 3000 │ control │ payload 20000 │ …
//!      └─► chunker: whole chunks with fingerprints, and the open one
//! poll_encoded ──► takes runs in order; a run of payload takes from the front chunk:
//!     whole chunk that the peer holds        ─► one more of a run of such chunks
//!     part of such a chunk (rest follows)    ─► a copy from it
//!     anything else                          ─► copies of what can be found in such chunks, and
//!                                               literals, compressed against similar ones
//!   ──► record ──► kept raw until the peer acknowledges it
//! ```
//! Chunks are cut when bytes are pushed, so the cuts depend only on the payload. Pushed bytes are
//! sent at the next poll, as part of a chunk if necessary. Only the open tail of a bulk transfer
//! waits, and the rest of it after a full record, for [`TAIL_HOLD`] at most, unless the expected
//! chunk there already shows that the peer holds its bytes. A record of mostly references also
//! waits that long for more of them, but only after [`BULK`] bytes arrived in close succession: so
//! a whole file costs a few dozen bytes for each half MiB, and ordinary replies do not wait. A
//! whole chunk waits as long, after [`MAX_CHUNK`] bytes arrived in close succession, for old chunks
//! that it may be an edition of and that have to be read from disk.

mod chunk;
mod draft;
mod matching;
mod retained;
mod statistics;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use crate::anchor::anchors;
use crate::chunker::Chunker;
use crate::config::{
    BULK, EncoderConfig, MAX_CHUNK, MAX_FRAME, MAX_RECORD_LITERALS, MAX_RECORD_REPAIRS, MIN_CHUNK,
    StoragePolicy, TAIL_HOLD,
};
use crate::dictionary::{ChunkPresence, Dictionary, FetchTicket, NO_KEY, PeerSlot};
use crate::error::ReductionError;
use crate::fingerprint::{ChunkKey, Fingerprint};
use crate::literals::LiteralHistory;
use crate::record::{CopyExtent, OperationEnd};
use crate::repair::{AnswerScope, RepairAnswer, RepairRequest, RepairScope};
use chunk::{ChunkPlan, EditedChunk, OutgoingChunk, add_bases};
use draft::{LinkUse, RecordDraft};
use matching::{ChunkMatches, ChunkPiece, PeerHoldings, StreamCursor};
use retained::RetainedRecord;

pub use statistics::FlowReduction;

/// Literal bytes in a record at least before `max` closes it: smaller blocks compress badly, and
/// what does not fit waits in the encoder for the next poll.
const LEAST_LITERALS: usize = 16 * 1024;
/// Memory of a retained record beside its bytes and its lists, about.
const RECORD_MEMORY: usize = 256;
/// Memory of a chunk that ended in a record that is not acknowledged, about: in a list and in a tree.
const ENDED_MEMORY: usize = 64;
/// Growth of the retained bytes by the raw bytes that a peer has acknowledged, as a factor.
const RETAINED_GROWTH: usize = 3;
/// Encoded bytes of a record, at least, however short the credit is: below it the record's header
/// would be a quarter of it.
const LEAST_RECORD: usize = 128;
/// Literal bytes in the first record of a burst at most, and four times as many in each that follows: a
/// record is delivered when all of it has arrived, so the first one decides when a host sees the
/// first byte. At 20 Mbit/s 64 KiB would hold that byte back by 26 ms, and a new session begins
/// with some ten packets over a third of a round trip.
const FIRST_LITERALS: usize = 4 * 1024;
/// Smallest payload of a bulk transfer that makes a record, in bytes; less waits for more, like its
/// tail.
const LEAST_REST: usize = 32 * 1024;
/// Chunks to come that are looked at when nothing is known of where the old stream is.
const LOOK_AHEAD: usize = 4;
/// Smallest size of a flow's last chunk that is stored, in bytes: below it a reference would save
/// less than its index entry costs.
const LEAST_LAST_CHUNK: usize = 64;
/// If all of that last chunk has been sent, saying that it ends costs a record of its own, which
/// must be worth it.
const LEAST_SENT_LAST_CHUNK: usize = 1024;

/// Number of records after a repair of runs in which sources are listed individually. It limits the
/// round trips lost to links that keep changing at the peer.
const SPELLED_RECORDS: usize = 16;

/// One direction of one flow, towards the WAN.
pub struct FlowEncoder {
    config: EncoderConfig,
    peer: PeerSlot,
    order: VecDeque<QueuedSegment>,
    /// Whole chunks that have no fingerprints yet, with how much of each has been sent.
    cut: Vec<(Bytes, usize)>,
    chunks: VecDeque<OutgoingChunk>,
    chunker: Chunker,
    open: Vec<u8>,
    open_sent: usize,
    pending: usize,
    /// The last chunk that was emitted to its end.
    previous: ChunkKey,
    cursor: StreamCursor,
    last_push: Time,
    recent: usize,
    /// Limit for literal bytes in the next record, which grows during a burst.
    opening: usize,
    /// Literal bytes in a record at most while the flow's credit is short.
    record_limit: usize,
    hold_until: Option<Time>,
    /// Boxed: it is large, and most flows have none.
    collecting: Option<Box<CollectingRecord>>,
    reading: BaseReadState,
    is_finished: bool,
    leftover: Bytes,
    encoded: u64,
    retained: VecDeque<RetainedRecord>,
    retained_bytes: usize,
    /// Memory overhead of the records in `retained`, in bytes.
    retained_overhead: usize,
    /// Raw bytes that may be retained, beside [`EncoderConfig::retained`], for a peer that has
    /// acknowledged nothing yet, and at most.
    retained_start: usize,
    retained_limit: usize,
    /// Raw bytes that were retained and that the peer has acknowledged.
    released: usize,
    /// Chunks that ended in records not yet acknowledged: this flow may refer to them.
    in_flight: BTreeMap<ChunkKey, u64>,
    lacking: Vec<ChunkKey>,
    /// Records yet to come in which no run is used.
    spelled: usize,
    experience: LiteralHistory,
    /// Raw literal bytes for each 16 coded ones, from the last records.
    expansion: usize,
    statistics: FlowReduction,
}

/// Data to send next, in the order of its arrival.
enum QueuedSegment {
    /// Bytes from the chunks.
    Payload(usize),
    /// Bytes that belong to no chunk.
    Aside(SegmentKind, Bytes),
}

/// Reads of old chunks that the front chunk may resemble; the front chunk waits for them.
enum BaseReadState {
    Nothing,
    For {
        reads: Vec<FetchTicket>,
        until: Time,
    },
    /// They took too long.
    TooLong,
}

/// A record of little but references that waits for more of them.
struct CollectingRecord {
    draft: RecordDraft,
    /// `None` when it has waited long enough.
    until: Option<Time>,
}

impl FlowEncoder {
    /// An encoder for a flow to that peer.
    #[must_use]
    pub fn new(config: EncoderConfig, peer: PeerSlot) -> Self {
        Self {
            config,
            peer,
            order: VecDeque::new(),
            cut: Vec::new(),
            chunks: VecDeque::new(),
            chunker: Chunker::default(),
            open: Vec::new(),
            open_sent: 0,
            pending: 0,
            previous: NO_KEY,
            cursor: StreamCursor::default(),
            last_push: Time::ZERO,
            recent: 0,
            opening: FIRST_LITERALS,
            record_limit: MAX_RECORD_LITERALS,
            hold_until: None,
            collecting: None,
            reading: BaseReadState::Nothing,
            is_finished: false,
            leftover: Bytes::new(),
            encoded: 0,
            retained: VecDeque::new(),
            retained_bytes: 0,
            retained_overhead: 0,
            retained_start: usize::MAX,
            retained_limit: usize::MAX,
            released: 0,
            in_flight: BTreeMap::new(),
            lacking: Vec::new(),
            spelled: 0,
            experience: LiteralHistory::default(),
            expansion: 16,
            statistics: FlowReduction::default(),
        }
    }

    /// Adds a segment to send. The bytes are kept, with the whole buffer they belong to, until the
    /// peer has acknowledged them: do not pass small parts of large buffers whose rest is used
    /// elsewhere.
    ///
    /// # Panics
    /// When a frame is longer than [`MAX_FRAME`], which the other side would refuse.
    pub fn push(&mut self, now: Time, segment: FlowSegment) {
        let length = segment.bytes.len();
        if now.since(self.last_push) > TAIL_HOLD {
            self.recent = 0;
            // With bytes still waiting here the WAN is what is slow, and no burst begins.
            if self.pending() == 0 {
                self.opening = FIRST_LITERALS;
            }
        }
        self.last_push = now;
        self.pending += length;
        self.statistics.raw_bytes += length as u64;
        match (segment.kind, self.config.storing) {
            (SegmentKind::Payload, StoragePolicy::Remember) => {
                if length > 0 {
                    self.push_payload(segment.bytes);
                }
            }
            (SegmentKind::Payload, StoragePolicy::Never) | (SegmentKind::Control, _) => {
                if length > 0 {
                    self.order
                        .push_back(QueuedSegment::Aside(segment.kind, segment.bytes));
                }
            }
            (SegmentKind::Frame, _) => {
                assert!(length <= MAX_FRAME, "a frame of {length} bytes is too long");
                self.order
                    .push_back(QueuedSegment::Aside(segment.kind, segment.bytes));
            }
        }
    }

    /// A body ends with the payload that was pushed so far: its last chunk ends there, and what follows is cut as
    /// if nothing stood before it. So a body that begins and ends this way is cut in every flow as it is when it
    /// is stored ([`crate::ContentWriter`]), and is in the dictionary once.
    pub fn end_body(&mut self) {
        self.hold_until = None;
        if !self.open.is_empty() {
            self.close_chunk();
            self.extend_payload(0);
        }
    }

    /// Ends the input: nothing is held back, and the last chunk is stored as it is.
    pub fn finish(&mut self) {
        self.is_finished = true;
        self.hold_until = None;
        self.recent = 0;
        if let Some(collecting) = &mut self.collecting {
            collecting.until = None;
        }
        self.reading = BaseReadState::TooLong;
        let worth_it = if self.open_sent == self.open.len() {
            LEAST_SENT_LAST_CHUNK
        } else {
            LEAST_LAST_CHUNK
        };
        if self.open.len() >= worth_it {
            self.close_chunk();
            self.extend_payload(0);
        }
    }

    /// Bytes that wait here: raw ones not yet encoded, and encoded ones not yet taken. Zero means
    /// that nothing at all is left to send. References that wait for more of them count as
    /// [`Self::retained`] already.
    #[must_use]
    pub fn pending(&self) -> usize {
        // An empty frame or the end of a last chunk has no bytes, but still has to go.
        let waits = !self.order.is_empty() || self.collecting.is_some();
        let without_bytes = usize::from(self.pending == 0 && waits);
        self.pending + self.leftover.len() + without_bytes
    }

    /// The next encoded bytes, at most `max` of them; `None` when there is nothing to send now,
    /// or nothing may be sent because too much waits for acknowledgement. A record that is
    /// longer than `max` comes in pieces.
    pub fn poll_encoded(
        &mut self,
        now: Time,
        dictionary: &mut Dictionary,
        max: usize,
    ) -> Option<Bytes> {
        dictionary.handle_timeout(now);
        self.forget_lacking(dictionary);
        if self.hold_until.is_some_and(|until| now >= until) {
            self.hold_until = None;
            self.recent = 0;
        }
        if let Some(collecting) = &mut self.collecting {
            collecting.until = collecting.until.filter(|until| now < *until);
        }
        if let BaseReadState::For { until, .. } = self.reading
            && now >= until
        {
            self.reading = BaseReadState::TooLong;
        }
        if max == 0 {
            return None;
        }
        if self.leftover.is_empty() {
            if self.retained_bytes + self.retained_overhead >= self.retained_most() {
                return None;
            }
            self.leftover = self.encode_record(now, dictionary, max)?;
        }
        let length = max.min(self.leftover.len());
        Some(self.leftover.split_to(length))
    }

    /// Sets how many encoded bytes a record that is begun from now on should have at most; no less
    /// than `LEAST_RECORD` is used. The receiver can use a record only when all of it has arrived,
    /// so it has to fit the credit that is left.
    pub fn limit_record(&mut self, bytes: usize) {
        self.record_limit = bytes.clamp(LEAST_RECORD, MAX_RECORD_LITERALS);
    }

    /// Returns the rest of the record that [`Self::poll_encoded`] began.
    pub fn rest_of_record(&mut self) -> Option<Bytes> {
        let rest = std::mem::take(&mut self.leftover);
        (!rest.is_empty()).then_some(rest)
    }

    /// Returns the time at which a held tail must be sent. Call [`Self::poll_encoded`] then, even
    /// with a `max` of zero when nothing can be sent, which stops the timer.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let collecting = self.collecting.as_ref();
        let collecting = collecting.and_then(|collecting| collecting.until);
        let reading = match self.reading {
            BaseReadState::For { until, .. } => Some(until),
            BaseReadState::Nothing | BaseReadState::TooLong => None,
        };
        let waits = [self.hold_until, collecting, reading];
        waits.into_iter().flatten().min()
    }

    /// Returns `true` if [`Self::poll_encoded`] may continue at the next disk completion.
    #[must_use]
    pub fn waits_for_disk(&self) -> bool {
        matches!(self.reading, BaseReadState::For { .. })
    }

    /// Records that the peer's decoder has consumed the encoded stream up to `offset`: it holds the
    /// chunks that ended before, and their repair data is released.
    pub fn acknowledged(&mut self, offset: u64, dictionary: &mut Dictionary) {
        self.forget_lacking(dictionary);
        while let Some(record) = self.retained.pop_front_if(|record| record.end <= offset) {
            self.retained_bytes -= record.own_length;
            self.retained_overhead -= record.overhead;
            let freed = record.own_length + record.overhead;
            self.released = self.released.saturating_add(freed);
            for (key, check) in record.ended {
                dictionary.mark_held(key, check, self.peer);
                if self.in_flight.get(&key) == Some(&check) {
                    self.in_flight.remove(&key);
                }
            }
        }
    }

    /// Raw bytes kept for repair, those of chunks left out that the dictionary has lent.
    #[must_use]
    pub fn retained(&self) -> usize {
        let collecting = self.collecting.as_ref();
        self.retained_bytes + collecting.map_or(0, |collecting| collecting.draft.own_length())
    }

    /// Sets how much memory the flow may hold here, as the node has it to give. Twice the share is
    /// retained at most, and an eighth of it for a peer that has acknowledged nothing yet, because that
    /// one may never do so; what the node has to `spare` is for either.
    pub fn limit_retained(&mut self, share: usize, spare: usize) {
        self.retained_start = spare.saturating_add(share / 8);
        self.retained_limit = share.saturating_mul(2);
    }

    /// Bytes of memory that are held beside [`Self::pending`], about: many small pieces cost more than
    /// their bytes.
    #[must_use]
    pub fn pending_overhead(&self) -> usize {
        self.order.len() * size_of::<QueuedSegment>()
    }

    /// Bytes of memory that are held beside [`Self::retained`], about.
    #[must_use]
    pub fn retained_overhead(&self) -> usize {
        self.retained_overhead
    }

    /// Retained bytes at which encoding pauses.
    fn retained_most(&self) -> usize {
        let grown = self.released.saturating_mul(RETAINED_GROWTH);
        let proven = self.retained_start.saturating_add(grown);
        self.config
            .retained
            .as_usize()
            .min(self.retained_limit)
            .min(proven)
    }

    /// Answers a decoder's request from the retained records.
    ///
    /// # Errors
    /// When the request is malformed, names data that this flow has not sent or that the peer has
    /// already acknowledged, or is one more than [`MAX_RECORD_REPAIRS`] for its record.
    pub fn repair(&mut self, request: &[u8]) -> Result<Bytes, ReductionError> {
        let request = RepairRequest::parse(request)?;
        let found = self
            .retained
            .binary_search_by_key(&request.record_start, |record| record.start);
        let record = found.ok().and_then(|index| self.retained.get_mut(index));
        let record = record.ok_or(ReductionError::PeerMisbehaved(
            "a repair is asked for a record that is not on its way",
        ))?;
        let pieces = record
            .pieces
            .as_ref()
            .ok_or(ReductionError::PeerMisbehaved(
                "a repair is asked for a record that refers to nothing",
            ))?;
        if record.repairs == MAX_RECORD_REPAIRS {
            return Err(ReductionError::PeerMisbehaved(
                "a record is to be repaired again and again",
            ));
        }
        record.repairs += 1;
        let mut answer = RepairAnswer {
            record_start: request.record_start,
            scope: AnswerScope::All,
            pieces: Vec::new(),
            keys: Vec::new(),
        };
        match request.scope {
            RepairScope::All => {
                self.lacking.extend(&record.sources);
                self.experience.window_lost();
                answer.pieces.clone_from(pieces);
            }
            RepairScope::Some { references, runs } => {
                answer.scope = AnswerScope::Some;
                for number in references {
                    let reference = record.references.get(number);
                    let reference = reference.ok_or(ReductionError::PeerMisbehaved(
                        "a repair is asked for a reference that is not there",
                    ))?;
                    self.lacking.push(record.sources[reference.source]);
                    let piece = pieces[reference.operation].clone();
                    answer.pieces.push(piece);
                }
                if !runs.is_empty() {
                    self.spelled = SPELLED_RECORDS;
                }
                for number in runs {
                    let keys = record.group(number).ok_or(ReductionError::PeerMisbehaved(
                        "a repair is asked for a run that is not there",
                    ))?;
                    answer.keys.extend(keys);
                }
            }
        }
        self.statistics.repairs += 1;
        let bytes: usize = answer.pieces.iter().map(Bytes::len).sum();
        self.statistics.repaired_bytes += bytes as u64;
        Ok(answer.emit(self.config.level))
    }

    /// Counters for `why`.
    #[must_use]
    pub fn statistics(&self) -> FlowReduction {
        self.statistics
    }

    fn push_payload(&mut self, mut bytes: Bytes) {
        self.recent = self.recent.saturating_add(bytes.len());
        self.extend_payload(bytes.len());
        while let Some(length) = self.chunker.cut(&bytes) {
            let end = bytes.split_to(length);
            if self.open.is_empty() {
                self.cut.push((end, 0));
            } else {
                self.open.extend_from_slice(&end);
                self.close_chunk();
            }
            self.hold_until = None;
        }
        self.open.extend_from_slice(&bytes);
    }

    /// Adds to the last run of payload, or starts one.
    fn extend_payload(&mut self, bytes: usize) {
        if let Some(QueuedSegment::Payload(length)) = self.order.back_mut() {
            *length += bytes;
        } else {
            self.order.push_back(QueuedSegment::Payload(bytes));
        }
    }

    /// Makes the open chunk a whole one.
    fn close_chunk(&mut self) {
        let bytes = Bytes::from(std::mem::take(&mut self.open));
        self.cut.push((bytes, self.open_sent));
        self.open_sent = 0;
        self.chunker = Chunker::default();
    }

    /// Gives the chunks that were cut their fingerprints, all at once, which is faster.
    fn fingerprint_chunks(&mut self) {
        if self.cut.is_empty() {
            return;
        }
        let bytes: Vec<&[u8]> = self.cut.iter().map(|(bytes, _)| &bytes[..]).collect();
        let fingerprints = Fingerprint::of_each(&bytes);
        let cut = self.cut.drain(..).zip(fingerprints);
        self.chunks.extend(
            cut.map(|((bytes, sent), fingerprint)| OutgoingChunk::new(bytes, fingerprint, sent)),
        );
    }

    fn forget_lacking(&mut self, dictionary: &mut Dictionary) {
        for key in self.lacking.drain(..) {
            dictionary.mark_lacking(key, self.peer);
        }
    }

    /// Makes one record of what waits; `None` when nothing may go.
    fn encode_record(
        &mut self,
        now: Time,
        dictionary: &mut Dictionary,
        max: usize,
    ) -> Option<Bytes> {
        if self.holds_rest(now) {
            return None;
        }
        self.fingerprint_chunks();
        let most = self.config.record.as_usize().clamp(1, MAX_RECORD_LITERALS);
        let literals = (max.saturating_mul(self.expansion) / 16).max(LEAST_LITERALS);
        let most = most.min(self.record_limit.saturating_mul(self.expansion) / 16);
        let (mut draft, until) = match self.collecting.take().map(|collecting| *collecting) {
            Some(CollectingRecord { draft, until }) => (draft, until),
            None => (RecordDraft::new(self.peer), Some(now + TAIL_HOLD)),
        };
        draft.limit_literals(literals.min(most).min(self.opening));
        while draft.has_room() {
            let taken = match self.order.front_mut() {
                None => break,
                Some(QueuedSegment::Aside(kind, bytes)) => {
                    let length = bytes.len().min(draft.literal_room());
                    let piece = bytes.split_to(length);
                    let end = if bytes.is_empty() {
                        OperationEnd::Ends
                    } else {
                        OperationEnd::Continues
                    };
                    draft.aside(*kind, piece, end);
                    self.pending -= length;
                    if end == OperationEnd::Ends {
                        self.order.pop_front();
                    }
                    true
                }
                Some(QueuedSegment::Payload(_)) if !self.chunks.is_empty() => {
                    self.take_from_chunk(now, dictionary, &mut draft)
                }
                Some(QueuedSegment::Payload(_)) => self.take_from_open(now, dictionary, &mut draft),
            };
            if !taken {
                break;
            }
        }
        if draft.is_empty() {
            return None;
        }
        let may_grow = draft.is_mostly_references() && draft.has_room() && draft.raw_room() > 0;
        let all_taken = self.chunks.is_empty() && self.order.len() <= 1;
        if until.is_some() && may_grow && all_taken && self.is_bulk() {
            self.collecting = Some(Box::new(CollectingRecord { draft, until }));
            return None;
        }
        Some(self.close_record(dictionary, draft))
    }

    /// Emits as much as possible of the front chunk. Returns `true` if anything was taken.
    fn take_from_chunk(
        &mut self,
        now: Time,
        dictionary: &mut Dictionary,
        draft: &mut RecordDraft,
    ) -> bool {
        let run = self.payload_run();
        let Some(mut chunk) = self.chunks.pop_front() else {
            return false;
        };
        let plan = chunk
            .plan
            .take()
            .or_else(|| self.plan(now, dictionary, &chunk));
        let Some(mut plan) = plan else {
            self.chunks.push_front(chunk);
            return false;
        };
        let taken = match &mut plan {
            ChunkPlan::Refer => chunk.take_reference(dictionary, draft, run),
            ChunkPlan::Pieces(edited) => chunk.take_piece(dictionary, draft, edited, run),
        };
        let Some(length) = taken else {
            chunk.plan = Some(plan);
            self.chunks.push_front(chunk);
            return false;
        };
        chunk.sent += length;
        self.consume_payload(run, length);
        if chunk.sent < chunk.bytes.len() {
            chunk.plan = Some(plan);
            self.chunks.push_front(chunk);
            return true;
        }
        let key = chunk.fingerprint.key();
        let length = chunk.bytes.len();
        draft.end_chunk(dictionary, &chunk.fingerprint, length, self.previous);
        let previous = self.previous;
        let kept = dictionary.insert(&chunk.fingerprint, &chunk.bytes, previous, self.peer);
        match (plan, kept) {
            (ChunkPlan::Refer, Some(kept)) => draft.share(kept),
            (ChunkPlan::Refer, None) => {}
            (ChunkPlan::Pieces(edited), _) => {
                dictionary.add_anchors(key, &edited.anchors, self.peer);
                draft.is_new_to_peer(&chunk.fingerprint);
            }
        }
        self.previous = key;
        true
    }

    /// Emits what may go of the chunk that is not whole yet. Says whether anything was taken.
    fn take_from_open(
        &mut self,
        now: Time,
        dictionary: &mut Dictionary,
        draft: &mut RecordDraft,
    ) -> bool {
        let run = self.payload_run();
        if run == 0 {
            self.order.pop_front();
            return true;
        }
        let tail = self.order.len() == 1;
        let expected = self.expected_chunk(dictionary);
        // In a bulk transfer the rest of the chunk is about to come, and then it is a whole one.
        let waits = expected.is_none() || self.is_bulk();
        if tail && waits && self.holds_tail(now) {
            return false;
        }
        let length = run.min(draft.literal_room());
        let end = self.open_sent + length;
        let source = expected.and_then(|key| draft.source(dictionary, key).map(|at| (key, at)));
        if let Some((key, source)) = source {
            let piece = self.open_piece(length);
            let extent = CopyExtent::Bytes(length);
            draft.copy(
                source,
                self.open_sent,
                extent,
                piece,
                OperationEnd::Continues,
            );
            self.cursor.move_to(key, end);
        } else {
            self.take_edited_tail(dictionary, draft, length);
        }
        self.open_sent += length;
        self.consume_payload(run, length);
        true
    }

    /// The next bytes of the chunk that is not whole yet.
    fn open_piece(&self, length: usize) -> Bytes {
        Bytes::copy_from_slice(&self.open[self.open_sent..self.open_sent + length])
    }

    /// Emits the next bytes of the open chunk as copies and literals, as one literal where the record takes
    /// no more operations.
    fn take_edited_tail(
        &mut self,
        dictionary: &mut Dictionary,
        draft: &mut RecordDraft,
        length: usize,
    ) {
        let mut rest = self.open_piece(length);
        let mut held = PeerHoldings {
            dictionary,
            in_flight: &self.in_flight,
            peer: self.peer,
        };
        let expansion = self.expansion / 16;
        let ChunkMatches { pieces, bases } =
            self.cursor
                .search(&mut held, &rest, 0, &anchors(&rest, 1), expansion);
        add_bases(dictionary, draft, &bases);
        for piece in pieces {
            if draft.operation_room() == 1 {
                break;
            }
            let there = rest.split_to(piece.length());
            match piece {
                ChunkPiece::Copy {
                    from,
                    length,
                    to_end,
                } => match draft.source(dictionary, from.key) {
                    Some(source) => {
                        let extent = if to_end {
                            CopyExtent::Rest
                        } else {
                            CopyExtent::Bytes(length)
                        };
                        draft.copy(source, from.offset, extent, there, OperationEnd::Continues);
                    }
                    None => draft.literal(there, OperationEnd::Continues),
                },
                ChunkPiece::Literal(_) => draft.literal(there, OperationEnd::Continues),
            }
        }
        if !rest.is_empty() {
            draft.literal(rest, OperationEnd::Continues);
        }
    }

    /// Returns `true` if payload arrives so fast that waiting a little makes better records.
    fn is_bulk(&self) -> bool {
        self.recent >= BULK && !self.is_finished
    }

    /// Returns `true` if the rest of a bulk transfer after a full record waits for more payload. A
    /// small record costs as much to make, to check and to compress against as a full one.
    fn holds_rest(&mut self, now: Time) -> bool {
        let only_payload = matches!(self.order.front(), Some(QueuedSegment::Payload(_)));
        let little = self.order.len() == 1 && only_payload && self.pending < LEAST_REST;
        let waited = self.collecting.is_some() || !matches!(self.reading, BaseReadState::Nothing);
        little && !waited && self.is_bulk() && self.holds_tail(now)
    }

    /// Returns `true` if the open tail waits for the rest of its chunk; sets the timer.
    fn holds_tail(&mut self, now: Time) -> bool {
        match self.hold_until {
            Some(_) => true,
            None if self.recent >= MIN_CHUNK && now.since(self.last_push) < TAIL_HOLD => {
                self.hold_until = Some(now + TAIL_HOLD);
                true
            }
            None => false,
        }
    }

    /// The chunk that followed the previous one last time, if the peer holds it, its bytes are
    /// in memory, and the open chunk begins as it does.
    fn expected_chunk(&mut self, dictionary: &mut Dictionary) -> Option<ChunkKey> {
        let key = dictionary.next(self.previous, self.peer);
        if key == NO_KEY || !self.peer_holds(dictionary, key) {
            return None;
        }
        let bytes = dictionary.resident(key)?;
        bytes.starts_with(&self.open).then_some(key)
    }

    fn peer_holds(&self, dictionary: &Dictionary, key: ChunkKey) -> bool {
        self.in_flight.contains_key(&key) || dictionary.is_held_by(key, self.peer)
    }

    /// The length of the run of payload that is next.
    fn payload_run(&self) -> usize {
        match self.order.front() {
            Some(QueuedSegment::Payload(length)) => *length,
            Some(QueuedSegment::Aside(..)) | None => 0,
        }
    }

    fn consume_payload(&mut self, run: usize, length: usize) {
        self.pending -= length;
        if run == length {
            self.order.pop_front();
        } else if let Some(QueuedSegment::Payload(left)) = self.order.front_mut() {
            *left -= length;
        }
    }

    /// Decides how a chunk is sent; `None` while it waits for similar chunks from disk.
    fn plan(
        &mut self,
        now: Time,
        dictionary: &mut Dictionary,
        chunk: &OutgoingChunk,
    ) -> Option<ChunkPlan> {
        if let BaseReadState::For { reads, .. } = &self.reading
            && reads.iter().any(|read| read.outcome().is_none())
        {
            return None;
        }
        let key = chunk.fingerprint.key();
        let presence = dictionary.look_up(&chunk.fingerprint, self.peer);
        let in_flight = self.in_flight.get(&key) == Some(&chunk.fingerprint.check());
        if presence == ChunkPresence::AtBoth || in_flight {
            let next = dictionary.next(key, self.peer);
            self.cursor.follow(next, chunk.bytes.len());
            return Some(ChunkPlan::Refer);
        }
        if !self.cursor.is_placed() {
            self.look_back_from_next(dictionary);
        }
        let mut held = PeerHoldings {
            dictionary,
            in_flight: &self.in_flight,
            peer: self.peer,
        };
        let until = match self.reading {
            BaseReadState::Nothing => now + TAIL_HOLD,
            // Once is enough: what has left the memory again since is not waited for.
            BaseReadState::For { .. } | BaseReadState::TooLong => now,
        };
        let reads = self.cursor.read_ahead(&mut held, chunk.bytes.len());
        if !reads.is_empty() && now < until && self.recent >= MAX_CHUNK && !self.is_finished {
            self.reading = BaseReadState::For { reads, until };
            return None;
        }
        self.reading = BaseReadState::Nothing;
        let expansion = self.expansion / 16;
        let anchors = anchors(&chunk.bytes, expansion);
        let ChunkMatches { pieces, bases } =
            self.cursor
                .search(&mut held, &chunk.bytes, chunk.sent, &anchors, expansion);
        Some(ChunkPlan::Pieces(EditedChunk {
            pieces: pieces.into(),
            bases,
            anchors,
        }))
    }

    /// Places the cursor before a chunk that is to come and that the peer holds, as far back in
    /// the old stream as the chunk that is being planned is in the new one.
    fn look_back_from_next(&mut self, dictionary: &Dictionary) {
        for (between, next) in self.chunks.iter().take(LOOK_AHEAD).enumerate() {
            let mut key = next.fingerprint.key();
            if !self.peer_holds(dictionary, key) {
                continue;
            }
            for _ in 0..=between {
                key = dictionary.previous(key);
            }
            if key != NO_KEY {
                self.cursor.move_to(key, 0);
            }
            return;
        }
    }

    fn close_record(&mut self, dictionary: &mut Dictionary, draft: RecordDraft) -> Bytes {
        let runs = match self.spelled {
            0 => LinkUse::Followed,
            _ => LinkUse::Spelled,
        };
        self.spelled = self.spelled.saturating_sub(1);
        let closed = draft.close(dictionary, self.config.level, &mut self.experience, runs);
        let statistics = &mut self.statistics;
        statistics.records += 1;
        statistics.encoded_bytes += closed.bytes.len() as u64;
        statistics.referenced_bytes += (closed.raw_length - closed.literal_bytes) as u64;
        statistics.literal_bytes += closed.literal_bytes as u64;
        statistics.incompressible_bytes += closed.stored_bytes as u64;
        statistics.delta_bytes += closed.delta_bytes as u64;
        // It may have ended with a chunk, a little before its limit.
        if 2 * closed.literal_bytes >= self.opening {
            self.opening = (4 * self.opening).min(MAX_RECORD_LITERALS);
        }
        if closed.literal_bytes >= LEAST_LITERALS {
            let expansion = 16 * closed.literal_bytes / closed.coded_bytes.max(1);
            self.expansion = expansion.clamp(16, 8 * 16);
        }
        let start = self.encoded;
        self.encoded += closed.bytes.len() as u64;
        self.in_flight.extend(closed.ended.iter().copied());
        // The peer may refer to them before its acknowledgement comes, as when it sends back what it got.
        for (key, check) in closed.new_to_peer {
            dictionary.mark_sent(key, check, self.peer);
        }
        let loan = dictionary.lend(closed.shared_length);
        let lent = loan.as_ref().map_or(0, |_| closed.shared_length);
        // What refers to nothing is understood by whoever has it: no repair of it is ever asked for.
        // Keeping it would hold a flow to [`EncoderConfig::retained`] for each round trip, and to
        // far less while a lost packet holds up the order.
        let (own_length, pieces) = match closed.stands_alone {
            true => (0, None),
            false => (closed.raw_length - lent, Some(closed.pieces)),
        };
        self.retained_bytes += own_length;
        let overhead = RECORD_MEMORY
            + closed.ended.len() * ENDED_MEMORY
            + (closed.sources.len() + closed.groups.len()) * size_of::<ChunkKey>()
            + closed.references.len() * 2 * size_of::<usize>()
            + pieces.as_ref().map_or(0, Vec::len) * size_of::<Bytes>();
        self.retained_overhead += overhead;
        self.retained.push_back(RetainedRecord {
            overhead,
            start,
            end: self.encoded,
            repairs: 0,
            pieces,
            own_length,
            _loan: loan,
            references: closed.references,
            sources: closed.sources,
            groups: closed.groups,
            ended: closed.ended,
        });
        closed.bytes
    }
}
