//! The decoder: records in, verified segments out; one for each flow and direction.
//!
//! ```text
//! push ──► records ──► fetch sources ──► assemble ──► check ──► segments
//!          (up to 8        │ on disk: WaitForDisk         │ differs
//!           ahead)         └ nowhere: NeedRepair ◄────────┘
//! ```
//! Nothing is delivered before the record's check has been found right. What cannot be resolved
//! is asked of the encoder again, at first the keys of runs that the links here do not lead
//! along and the references that are missing, then the whole record; if even that does not verify, the
//! peer is at fault and the flow ends. While one record waits for its repair, those behind it are looked
//! through and ask for theirs, so that a flow that has lost much waits for one round trip and not for
//! one for each record. Every chunk that ends is put into the dictionary, as the encoder did when it
//! sent it. A reference leads only to chunks that this peer sent or was sent ([`PeerView`]); any other
//! chunk is asked for like one that does not exist.

#[cfg(test)]
mod buffer_tests;
#[cfg(test)]
mod isolation_tests;
mod pending;

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use vocab::{FlowSegment, SegmentKind};

use crate::anchor::anchors;
use crate::check::CheckSpan;
use crate::config::{
    DECODE_AHEAD_BYTES, DECODE_AHEAD_RECORDS, DecoderConfig, MAX_CHUNK, MAX_FRAME,
    MAX_RECORD_LITERALS, MIN_CHUNK, REPAIR_AHEAD_BYTES, REPAIR_AHEAD_RECORDS,
};
use crate::dictionary::{Dictionary, FlowChunks, NO_KEY, PeerSlot, PeerView};
use crate::error::ReductionError;
use crate::fingerprint::{ChunkKey, Fingerprint};
use crate::record::{LiteralEncoding, OperationEnd, ParsedRecord, RecordOperation};
use crate::repair::{AnswerScope, RepairAnswer};
use crate::windows::WindowId;
use pending::{DeliveryAttempt, PendingRecord, RepairOutlook, VerifiedRecord};

/// Pieces from this size on, in bytes, are kept as they come; smaller ones are copied together, so
/// that none keeps a much larger buffer from being used again.
const KEPT_PIECE: usize = 8 * 1024;
/// Bytes at a record's start that say how long it is, at most.
const RECORD_START: usize = 10;

/// Result of [`FlowDecoder::poll`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecoderOutput {
    /// The next segment, verified.
    Segment(FlowSegment),
    /// Waits for more bytes.
    NeedMore,
    /// Waits for a disk completion of the dictionary: poll again after each.
    WaitForDisk,
    /// A request to be carried to the peer's [`crate::FlowEncoder::repair`]; given once. Until its
    /// answer is handed in, [`FlowDecoder::poll`] says [`DecoderOutput::WaitForRepair`].
    NeedRepair(Bytes),
    /// Waits for the answer to the repair request.
    WaitForRepair,
}

/// One direction of one flow, from the WAN.
pub struct FlowDecoder {
    peer: PeerSlot,
    /// Bytes pushed since `input` was filled: large pieces as they arrived, then small ones.
    incoming: VecDeque<Bytes>,
    gathered: BytesMut,
    /// Bytes in `incoming`.
    waiting: usize,
    input: Bytes,
    /// Bytes of the buffer that `input` is the rest of.
    input_buffer: usize,
    /// Offset of `input` in the encoded stream.
    parsed: u64,
    records: VecDeque<PendingRecord>,
    /// Bytes that `records` take together.
    ahead: usize,
    /// Records at the back whose sources have not been looked up.
    unread: usize,
    outlook: RepairOutlook,
    ready: VecDeque<FlowSegment>,
    /// End of the record whose segments are in `ready`.
    delivered: u64,
    consumed: u64,
    /// The payload chunk that is not whole yet.
    partial: Vec<u8>,
    previous: ChunkKey,
    /// Chunks that the peer may refer to if it has no slot.
    chunks: FlowChunks,
    window: Option<WindowId>,
    /// Raw literal bytes for each coded one, in the last record with enough of them.
    expansion: usize,
    frame: Vec<u8>,
    failed: Option<ReductionError>,
    /// Payload came that the peer keeps out of the dictionaries.
    brought_unstorable: bool,
    /// `input` is a buffer of its own, and no part of a larger one.
    is_input_own: bool,
    /// Bytes that records which are looked up ahead may take, beside the limits that always hold.
    ahead_limit: usize,
}

impl FlowDecoder {
    /// A decoder for a flow from that peer.
    #[must_use]
    pub fn new(_config: DecoderConfig, peer: PeerSlot) -> Self {
        Self {
            peer,
            incoming: VecDeque::new(),
            gathered: BytesMut::new(),
            waiting: 0,
            input: Bytes::new(),
            input_buffer: 0,
            parsed: 0,
            records: VecDeque::new(),
            ahead: 0,
            unread: 0,
            outlook: RepairOutlook::Good,
            ready: VecDeque::new(),
            delivered: 0,
            consumed: 0,
            partial: Vec::new(),
            previous: NO_KEY,
            chunks: FlowChunks::default(),
            window: None,
            expansion: 1,
            frame: Vec::new(),
            failed: None,
            brought_unstorable: false,
            is_input_own: true,
            ahead_limit: usize::MAX,
        }
    }

    /// Takes in encoded bytes, cut anywhere. They are kept until they are decoded: who pushes
    /// bounds them by the flow's credit.
    pub fn push(&mut self, encoded: Bytes) {
        if self.failed.is_some() || encoded.is_empty() {
            return;
        }
        if encoded.len() < KEPT_PIECE {
            self.gathered.extend_from_slice(&encoded);
            return;
        }
        self.stop_gathering();
        self.waiting += encoded.len();
        self.incoming.push_back(encoded);
    }

    /// The next thing. After [`DecoderOutput::Segment`] call again.
    ///
    /// # Errors
    /// When the stream is malformed or does not verify; the flow must then be reset, and every
    /// later call fails too.
    pub fn poll(&mut self, dictionary: &mut Dictionary) -> Result<DecoderOutput, ReductionError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.poll_next(dictionary).inspect_err(|error| {
            self.failed = Some(*error);
        })
    }

    /// Approximate memory in use, in bytes. Each record that is looked up ahead counts with its raw
    /// bytes, or with the chunks it is made from if they are larger.
    #[must_use]
    pub fn buffered(&self) -> usize {
        let ready: usize = self.ready.iter().map(|segment| segment.bytes.len()).sum();
        let repairs: usize = self.records.iter().map(PendingRecord::extra).sum();
        self.waiting
            + self.incoming.len() * size_of::<Bytes>()
            + self.gathered.capacity()
            + self.input.len()
            + self.partial.capacity()
            + self.frame.capacity()
            + ready
            + self.ready.len() * size_of::<FlowSegment>()
            + self.ahead
            + repairs
    }

    /// Sets how many bytes records that are looked up ahead of the first may take, as the node has
    /// memory to give.
    pub fn limit_ahead(&mut self, bytes: usize) {
        self.ahead_limit = bytes;
    }

    /// The encoded offset up to which everything has been resolved and handed out.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Returns `true` if the peer has sent payload that it keeps out of the dictionaries
    /// ([`crate::StoragePolicy::Never`]). This node then has to keep the flow's payload out of its
    /// own dictionary as well.
    #[must_use]
    pub fn has_received_unstorable(&self) -> bool {
        self.brought_unstorable
    }

    /// Returns `true` if all pushed bytes have been handed out. A clean end of the flow's direction
    /// is valid only here.
    #[must_use]
    pub fn is_at_boundary(&self) -> bool {
        let read = self.input.is_empty() && self.waiting + self.gathered.len() == 0;
        read && self.records.is_empty() && self.ready.is_empty() && self.frame.is_empty()
    }

    /// Handles the answer to a repair request; [`Self::poll`] then continues. The record's check
    /// verifies the bytes.
    ///
    /// # Errors
    /// When the answer is malformed or matches no request.
    pub fn handle_repair(&mut self, answer: &[u8]) -> Result<(), ReductionError> {
        let answer = RepairAnswer::parse(answer)?;
        let mut records = self.records.iter_mut();
        let record = records.find(|record| record.start == answer.record_start);
        let unasked = ReductionError::PeerMisbehaved("a repair that nobody asked for");
        let record = record.ok_or(unasked)?;
        let asked = match answer.scope {
            AnswerScope::All => record.answered_all(answer.pieces),
            AnswerScope::Some => record.answered_some(answer.pieces, &answer.keys),
        };
        asked.then_some(()).ok_or(unasked)
    }

    fn poll_next(&mut self, dictionary: &mut Dictionary) -> Result<DecoderOutput, ReductionError> {
        loop {
            if let Some(segment) = self.ready.pop_front() {
                if self.ready.is_empty() {
                    self.consumed = self.delivered;
                }
                return Ok(DecoderOutput::Segment(segment));
            }
            let ahead = DECODE_AHEAD_BYTES.min(self.ahead_limit);
            self.parse_ahead(DECODE_AHEAD_RECORDS, ahead)?;
            self.read_ahead(dictionary, DECODE_AHEAD_RECORDS, ahead);
            if self.records.is_empty() {
                self.shrink_buffers();
            }
            let Some(front) = self.records.front_mut() else {
                return Ok(DecoderOutput::NeedMore);
            };
            let before = front.weight;
            let mut view = PeerView::new(dictionary, self.peer, &self.chunks);
            let attempt = front.attempt(&mut view, &mut self.window, self.outlook)?;
            self.ahead += front.weight - before;
            match attempt {
                DeliveryAttempt::Waits(DecoderOutput::WaitForRepair) => {
                    return self.ask_ahead(dictionary);
                }
                DeliveryAttempt::Waits(reason) => return Ok(reason),
                DeliveryAttempt::Verified(verified) => self.deliver(dictionary, &verified)?,
            }
        }
    }

    /// Parses pushed records, while there are fewer than `records` and they take less than `bytes`
    /// bytes.
    fn parse_ahead(&mut self, records: usize, bytes: usize) -> Result<(), ReductionError> {
        while self.records.is_empty() || self.records.len() < records && self.ahead < bytes {
            let Some((mut record, length)) = ParsedRecord::parse(&mut self.input)? else {
                if self.join_input()? {
                    continue;
                }
                return Ok(());
            };
            if record.literals == LiteralEncoding::Stored {
                // The host gets these bytes themselves.
                record.coded = unshared(record.coded, self.input_buffer);
            }
            let start = self.parsed;
            self.parsed += length as u64;
            let pending = PendingRecord::new(start, self.parsed, record);
            self.ahead += pending.weight;
            self.unread += 1;
            self.records.push_back(pending);
        }
        Ok(())
    }

    /// Looks up the sources of `records` records, while they take less than `bytes` bytes.
    fn read_ahead(&mut self, dictionary: &mut Dictionary, records: usize, bytes: usize) {
        if self.unread == 0 {
            return;
        }
        let read = self.records.len() - self.unread;
        let mut taken: usize = self.records.iter().take(read).map(|at| at.weight).sum();
        let mut view = PeerView::new(dictionary, self.peer, &self.chunks);
        for pending in self.records.iter_mut().take(records).skip(read) {
            if taken >= bytes {
                return;
            }
            let before = pending.weight;
            pending.start_reads(&mut view);
            self.ahead += pending.weight - before;
            self.unread -= 1;
            taken += pending.weight;
        }
    }

    /// Requests the missing chunks of later records while the front record waits for its own.
    fn ask_ahead(&mut self, dictionary: &mut Dictionary) -> Result<DecoderOutput, ReductionError> {
        let ahead = REPAIR_AHEAD_BYTES.min(self.ahead_limit);
        self.parse_ahead(REPAIR_AHEAD_RECORDS, ahead)?;
        self.read_ahead(dictionary, REPAIR_AHEAD_RECORDS, ahead);
        let mut waits = DecoderOutput::WaitForRepair;
        let mut view = PeerView::new(dictionary, self.peer, &self.chunks);
        for pending in self.records.iter_mut().skip(1) {
            match pending.ask_ahead(&mut view, &mut self.window, self.outlook) {
                Some(DecoderOutput::WaitForDisk) => waits = DecoderOutput::WaitForDisk,
                Some(request) => return Ok(request),
                None => {}
            }
        }
        Ok(waits)
    }

    /// Makes what came the input, as soon as that makes a record of it; says whether it did. A
    /// record that came in one piece is not copied, any other one once.
    fn join_input(&mut self) -> Result<bool, ReductionError> {
        let more = self.waiting + self.gathered.len();
        let length = ParsedRecord::length(&self.input)?;
        if more == 0 || length.is_some_and(|length| self.input.len() + more < length) {
            return Ok(false);
        }
        if self.input.is_empty() {
            if self.incoming.is_empty() {
                self.stop_gathering();
            }
            self.input = self.take_incoming(usize::MAX);
            self.input_buffer = self.input.len();
            self.is_input_own = false;
            return Ok(true);
        }
        let length = length.unwrap_or(self.input.len() + RECORD_START);
        let mut joined = BytesMut::with_capacity(length);
        joined.extend_from_slice(&self.input);
        self.stop_gathering();
        while joined.len() < length {
            let more = self.take_incoming(length - joined.len());
            if more.is_empty() {
                break;
            }
            joined.extend_from_slice(&more);
        }
        self.input = joined.freeze();
        self.input_buffer = self.input.len();
        self.is_input_own = false;
        Ok(true)
    }

    /// Copies remainders of large buffers to small ones while the decoder waits for input, perhaps
    /// forever.
    fn shrink_buffers(&mut self) {
        if !self.is_input_own && self.input.len() < KEPT_PIECE {
            self.input = Bytes::copy_from_slice(&self.input);
            self.input_buffer = self.input.len();
            self.is_input_own = true;
        }
        if self.partial.is_empty() {
            self.partial = Vec::new();
        }
    }

    /// The next of what waits, `most` bytes of it at most.
    fn take_incoming(&mut self, most: usize) -> Bytes {
        let Some(piece) = self.incoming.front_mut() else {
            return Bytes::new();
        };
        let taken = piece.split_to(most.min(piece.len()));
        self.waiting -= taken.len();
        if piece.is_empty() {
            self.incoming.pop_front();
        }
        taken
    }

    /// Adds the buffer gathered from small pieces to the pieces that wait.
    fn stop_gathering(&mut self) {
        if !self.gathered.is_empty() {
            self.waiting += self.gathered.len();
            self.incoming
                .push_back(std::mem::take(&mut self.gathered).freeze());
        }
    }

    /// Takes the front record's verified bytes apart, remembers its chunks and queues segments.
    fn deliver(
        &mut self,
        dictionary: &mut Dictionary,
        verified: &VerifiedRecord,
    ) -> Result<(), ReductionError> {
        let Some(pending) = self.records.pop_front() else {
            return Ok(());
        };
        self.ahead -= pending.weight;
        // The front one was looked up when it was tried.
        self.unread = self.unread.min(self.records.len());
        self.outlook = pending.outlook(self.outlook);
        if pending.record.literal_length >= MIN_CHUNK {
            self.expansion = pending.record.literal_length / pending.record.coded.len().max(1);
        }
        let raw = &verified.raw;
        let mut chunks = verified.chunks.iter();
        let mut chunk_ends = verified.chunk_ends.iter();
        let (mut at, mut payload) = (0, 0);
        for (operation, length) in pending.record.operations.iter().zip(&verified.lengths) {
            let length = *length;
            let piece = at..at + length;
            at += length;
            match *operation {
                RecordOperation::Aside { kind, end, .. } => {
                    self.queue_payload(raw.slice(payload..piece.start));
                    payload = at;
                    self.aside(kind, raw.slice(piece), end)?;
                }
                RecordOperation::Literal { end, .. } | RecordOperation::Copy { end, .. } => {
                    let ended = match end {
                        OperationEnd::Continues => None,
                        OperationEnd::Ends => chunk_ends.next(),
                    };
                    self.extend_chunk(dictionary, &raw[piece], ended)?;
                }
                RecordOperation::Chunk { .. } => {
                    if !self.partial.is_empty() {
                        return Err(ReductionError::PeerMisbehaved(
                            "a chunk begins inside another",
                        ));
                    }
                    let ended = chunk_ends.next();
                    let key = chunks.next().copied().unwrap_or(NO_KEY);
                    let chunk = PeerView::new(dictionary, self.peer, &self.chunks).find(key);
                    // It may have been evicted since it was looked up: then it is put back,
                    // because the peer will take it for held.
                    match chunk.filter(|chunk| chunk.length() == length) {
                        Some(chunk) => {
                            dictionary.link(self.previous, key, self.peer);
                            self.note_chunk(dictionary, key, chunk.check());
                        }
                        None => self.extend_chunk(dictionary, &raw[piece], ended)?,
                    }
                }
            }
        }
        self.queue_payload(raw.slice(payload..));
        for segment in &mut self.ready {
            segment.bytes = unshared(std::mem::take(&mut segment.bytes), raw.len());
        }
        self.delivered = pending.end;
        if self.ready.is_empty() {
            self.consumed = pending.end;
        }
        Ok(())
    }

    /// Queues payload, in pieces: who takes them may pause after each.
    fn queue_payload(&mut self, mut bytes: Bytes) {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(MAX_RECORD_LITERALS));
            self.ready.push_back(FlowSegment::payload(piece));
        }
    }

    /// Takes in bytes that belong to no chunk; frames are put together again.
    fn aside(
        &mut self,
        kind: SegmentKind,
        bytes: Bytes,
        end: OperationEnd,
    ) -> Result<(), ReductionError> {
        if kind != SegmentKind::Frame {
            if !bytes.is_empty() {
                self.brought_unstorable |= kind == SegmentKind::Payload;
                self.ready.push_back(FlowSegment { kind, bytes });
            }
            return Ok(());
        }
        if self.frame.len() + bytes.len() > MAX_FRAME {
            return Err(ReductionError::PeerMisbehaved(
                "a frame is longer than allowed",
            ));
        }
        match end {
            OperationEnd::Continues => self.frame.extend_from_slice(&bytes),
            OperationEnd::Ends if self.frame.is_empty() => {
                self.ready.push_back(FlowSegment::frame(bytes))
            }
            OperationEnd::Ends => {
                self.frame.extend_from_slice(&bytes);
                let frame = std::mem::take(&mut self.frame);
                self.ready.push_back(FlowSegment::frame(frame.into()));
            }
        }
        Ok(())
    }

    /// Adds payload to the chunk under way, and remembers it when it has `ended`: then the span of
    /// the record is named in which it did.
    fn extend_chunk(
        &mut self,
        dictionary: &mut Dictionary,
        piece: &[u8],
        ended: Option<&CheckSpan>,
    ) -> Result<(), ReductionError> {
        let length = self.partial.len() + piece.len();
        if length > MAX_CHUNK {
            return Err(ReductionError::PeerMisbehaved(
                "a chunk is longer than allowed",
            ));
        }
        let Some(span) = ended else {
            self.partial.extend_from_slice(piece);
            return Ok(());
        };
        if self.partial.is_empty() {
            self.remember(dictionary, piece, span);
        } else {
            let mut whole = std::mem::take(&mut self.partial);
            whole.extend_from_slice(piece);
            self.remember(dictionary, &whole, span);
            whole.clear();
            self.partial = whole;
        }
        Ok(())
    }

    /// Puts a chunk into the dictionary. Its fingerprint is known if all of it is in the span in
    /// which it ended, which holds bytes of no other chunk.
    fn remember(&mut self, dictionary: &mut Dictionary, chunk: &[u8], span: &CheckSpan) {
        if chunk.is_empty() {
            return;
        }
        let fingerprint = if span.length == chunk.len() {
            span.hash
        } else {
            Fingerprint::of(chunk)
        };
        let view = PeerView::new(dictionary, self.peer, &self.chunks);
        let is_new = view.lacks(fingerprint.key());
        let kept = dictionary.insert(&fingerprint, chunk, self.previous, self.peer);
        if kept.is_none() {
            // Another chunk has this key, and it may be one of other peers.
            self.previous = NO_KEY;
            return;
        }
        if is_new {
            let anchors = anchors(chunk, self.expansion);
            dictionary.add_anchors(fingerprint.key(), &anchors, self.peer);
        }
        self.note_chunk(dictionary, fingerprint.key(), fingerprint.check());
    }

    /// The peer holds this chunk, which is the last one that ended in the flow.
    fn note_chunk(&mut self, dictionary: &mut Dictionary, key: ChunkKey, check: u64) {
        dictionary.mark_held(key, check, self.peer);
        self.chunks.push(self.peer, key, check);
        self.previous = key;
    }
}

/// Copies the bytes to their own buffer if they are less than half of the present one. A host that
/// reads slowly keeps a segment for long, and its memory is counted by the segment's length.
fn unshared(bytes: Bytes, buffer: usize) -> Bytes {
    match 2 * bytes.len() < buffer {
        true => Bytes::copy_from_slice(&bytes),
        false => bytes,
    }
}
