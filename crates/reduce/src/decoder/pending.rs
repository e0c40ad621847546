//! A record on its way to delivery: where its bytes come from, and whether they are right.
//!
//! ```text
//! run ─► keys by the peer's links ─► digest agrees? ─► chunks: memory, or read from disk
//!                      │ no                                     │ not there
//!                      └──────► asked of the encoder: keys, bytes; then, if need be, all
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;

use super::DecoderOutput;
use crate::check::{CheckSpan, check_of};
use crate::config::{MAX_CHUNK, MAX_REPAIR_RANGES, MAX_SOURCE_BYTES, PARTIAL_REPAIRS};
use crate::dictionary::{FetchResult, FetchTicket, NO_KEY, PeerView};
use crate::error::ReductionError;
use crate::fingerprint::ChunkKey;
use crate::literals::join_bases;
use crate::record::{
    CopyExtent, LiteralEncoding, OperationEnd, ParsedRecord, RecordOperation, SourceGroup,
    digest_of,
};
use crate::repair::{RepairRequest, RepairScope};
use crate::windows::WindowId;

/// A record that is not delivered yet.
pub(super) struct PendingRecord {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) record: ParsedRecord,
    /// Bytes that it takes: its raw ones, or of the chunks that it is made from if they are more.
    pub(super) weight: usize,
    /// Memory that the record's description takes beside that, in bytes.
    fixed: usize,
    /// The record's sources, in order.
    sources: Vec<RecordSource>,
    /// The sources of runs whose keys the encoder has told, until they are linked here as well.
    named: Vec<Range<usize>>,
    /// The bytes of references, by their number, from the encoder.
    repaired: BTreeMap<usize, Bytes>,
    /// The literals if they are in the flow's window, decoded once, in the records' order; `None`
    /// inside when they could not be.
    windowed: Option<Option<Bytes>>,
    repair: RepairState,
    partial_repairs: usize,
    /// True if it was searched while another record waited, and nothing has changed since.
    is_looked_through: bool,
}

/// Expectation for a flow's next records, from its last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepairOutlook {
    Good,
    /// Most references are missing, not only a chunk here and there.
    Bleak,
}

/// Time at which a record is searched for missing chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepairTiming {
    /// All records before it are delivered.
    Now,
    /// Some are not, and may bring the missing chunks.
    Ahead,
}

/// One of the chunks that a record takes bytes from.
#[derive(Clone, Debug)]
struct RecordSource {
    /// [`NO_KEY`] while the run that it is in has not been followed to its end.
    key: ChunkKey,
    state: SourceState,
}

/// State of a source's bytes.
#[derive(Clone, Debug)]
enum SourceState {
    /// Not looked for yet, or not found when looked for early.
    Unknown,
    Reading(FetchTicket),
    /// The chunk.
    Chunk(Bytes),
    Missing,
}

/// State of a record's repair.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RepairState {
    None,
    AskedSome {
        references: Vec<usize>,
        runs: Vec<usize>,
    },
    AskedAll,
    AnsweredAll(Vec<Bytes>),
}

/// Result of an attempt to deliver the front record.
pub(super) enum DeliveryAttempt {
    Verified(VerifiedRecord),
    Waits(DecoderOutput),
}

/// A record's raw bytes, found right by its check: only [`PendingRecord::verify`] makes one.
pub(super) struct VerifiedRecord {
    pub(super) raw: Bytes,
    /// Number of raw bytes of each operation.
    pub(super) lengths: Vec<usize>,
    /// For each operation that took a whole chunk from the dictionary, the chunk.
    pub(super) chunks: Vec<ChunkKey>,
    /// The spans in which chunks end, in order.
    pub(super) chunk_ends: Vec<CheckSpan>,
}

impl PendingRecord {
    pub(super) fn new(start: u64, end: u64, record: ParsedRecord) -> Self {
        let unnamed = RecordSource {
            key: NO_KEY,
            state: SourceState::Unknown,
        };
        let mut sources = Vec::new();
        for group in &record.groups {
            match group {
                SourceGroup::Listed(keys) => sources.extend(keys.iter().map(|key| RecordSource {
                    key: *key,
                    state: SourceState::Unknown,
                })),
                SourceGroup::Run { count, .. } => {
                    sources.resize(sources.len() + count, unnamed.clone());
                }
            }
        }
        let fixed = record.coded.len()
            + record.operations.capacity() * size_of::<RecordOperation>()
            + sources.capacity() * size_of::<RecordSource>();
        Self {
            start,
            end,
            fixed,
            weight: record.raw_length,
            record,
            sources,
            named: Vec::new(),
            repaired: BTreeMap::new(),
            windowed: None,
            repair: RepairState::None,
            partial_repairs: 0,
            is_looked_through: false,
        }
    }

    /// Looks up sources early. A missing one may still arrive with a record before this one.
    /// Sources beyond [`MAX_SOURCE_BYTES`] are left for a repair.
    pub(super) fn start_reads(&mut self, view: &mut PeerView<'_>) {
        self.follow_runs(view);
        let (mut counted, mut total) = (BTreeSet::new(), 0);
        for source in &mut self.sources {
            let Some(chunk) = view.find(source.key) else {
                continue;
            };
            if counted.insert(source.key) {
                total += chunk.length();
            }
            if total > MAX_SOURCE_BYTES {
                return;
            }
            self.weight = self.weight.max(total);
            if let SourceState::Unknown = &source.state {
                match view.fetch(&chunk) {
                    FetchResult::Ready(bytes) => source.state = SourceState::Chunk(bytes),
                    FetchResult::Reading(ticket) => source.state = SourceState::Reading(ticket),
                    FetchResult::Missing => {}
                }
            }
        }
    }

    /// Bytes that it takes beside [`Self::weight`], about: its description, and the heads of the pieces
    /// that came from repairs. The bytes of these are among its raw ones.
    pub(super) fn extra(&self) -> usize {
        let all = match &self.repair {
            RepairState::AnsweredAll(pieces) => pieces.len(),
            RepairState::None | RepairState::AskedSome { .. } | RepairState::AskedAll => 0,
        };
        self.fixed + (self.repaired.len() + all) * size_of::<Bytes>()
    }

    /// Tries to make the raw bytes, now that all records before this one are delivered.
    pub(super) fn attempt(
        &mut self,
        view: &mut PeerView<'_>,
        window: &mut Option<WindowId>,
        outlook: RepairOutlook,
    ) -> Result<DeliveryAttempt, ReductionError> {
        self.decode_in_window(view, window);
        match &self.repair {
            RepairState::AskedSome { .. } | RepairState::AskedAll => {
                return Ok(DeliveryAttempt::Waits(DecoderOutput::WaitForRepair));
            }
            RepairState::AnsweredAll(pieces) => {
                let verified = self.join_pieces(pieces);
                return verified.map(DeliveryAttempt::Verified).ok_or(
                    ReductionError::PeerMisbehaved(
                        "a record does not verify, even sent again as a whole",
                    ),
                );
            }
            RepairState::None => {}
        }
        if self.windowed == Some(None) {
            return Ok(DeliveryAttempt::Waits(self.ask_for_all(view)));
        }
        // From now on both sides' links agree there.
        for sources in self.named.drain(..) {
            for pair in self.sources[sources].windows(2) {
                view.link(pair[0].key, pair[1].key);
            }
        }
        self.start_reads(view);
        let mut waits = false;
        for source in &mut self.sources {
            match &source.state {
                SourceState::Reading(ticket) => match ticket.outcome() {
                    None => waits = true,
                    Some(Some(bytes)) => source.state = SourceState::Chunk(bytes),
                    Some(None) => source.state = SourceState::Missing,
                },
                SourceState::Unknown if source.key != NO_KEY => source.state = SourceState::Missing,
                SourceState::Unknown | SourceState::Chunk(_) | SourceState::Missing => {}
            }
        }
        if waits {
            return Ok(DeliveryAttempt::Waits(DecoderOutput::WaitForDisk));
        }
        if let Some(request) = self.ask_for_missing(view, RepairTiming::Now, outlook) {
            return Ok(DeliveryAttempt::Waits(request));
        }
        if let Some(verified) = self.assemble(view) {
            return Ok(DeliveryAttempt::Verified(verified));
        }
        Ok(DeliveryAttempt::Waits(self.ask_for_all(view)))
    }

    /// Requests chunks that are known to be missing although earlier records are not delivered,
    /// unless a disk read is pending. Call it for one record after the other. A chunk that an
    /// earlier record brings may be sent twice.
    pub(super) fn ask_ahead(
        &mut self,
        view: &mut PeerView<'_>,
        window: &mut Option<WindowId>,
        outlook: RepairOutlook,
    ) -> Option<DecoderOutput> {
        self.decode_in_window(view, window);
        if self.is_looked_through || self.repair != RepairState::None {
            return None;
        }
        if self.is_reading() {
            return Some(DecoderOutput::WaitForDisk);
        }
        self.is_looked_through = true;
        if self.windowed == Some(None) {
            return Some(self.ask_for_all(view));
        }
        self.follow_runs(view);
        self.ask_for_missing(view, RepairTiming::Ahead, outlook)
    }

    fn is_reading(&self) -> bool {
        let reading = |source: &RecordSource| match &source.state {
            SourceState::Reading(ticket) => ticket.outcome().is_none(),
            SourceState::Unknown | SourceState::Chunk(_) | SourceState::Missing => false,
        };
        self.sources.iter().any(reading)
    }

    /// Updates the expectation `before` with the result of this record's repair.
    pub(super) fn outlook(&self, before: RepairOutlook) -> RepairOutlook {
        match (&self.repair, self.partial_repairs) {
            (_, PARTIAL_REPAIRS..) => RepairOutlook::Bleak,
            (RepairState::None, 0) => RepairOutlook::Good,
            _ => before,
        }
    }

    /// Handles an answer. Returns `true` if it matches the request.
    pub(super) fn answered_all(&mut self, pieces: Vec<Bytes>) -> bool {
        let length: usize = pieces.iter().map(Bytes::len).sum();
        let asked = self.repair == RepairState::AskedAll && length == self.record.raw_length;
        if asked {
            self.repair = RepairState::AnsweredAll(pieces);
        }
        asked
    }

    /// Handles an answer. Returns `true` if it matches the request.
    pub(super) fn answered_some(&mut self, pieces: Vec<Bytes>, keys: &[ChunkKey]) -> bool {
        let RepairState::AskedSome { references, runs } = &self.repair else {
            return false;
        };
        let named: usize = runs.iter().map(|run| self.record.groups[*run].len()).sum();
        let length: usize = pieces.iter().map(Bytes::len).sum();
        if references.len() != pieces.len()
            || named != keys.len()
            || length > self.record.raw_length
        {
            return false;
        }
        self.repaired.extend(references.iter().copied().zip(pieces));
        let mut keys = keys.iter().copied();
        let mut first = 0;
        for (number, group) in self.record.groups.iter().enumerate() {
            let sources = first..first + group.len();
            first = sources.end;
            if !runs.contains(&number) {
                continue;
            }
            self.named.push(sources.clone());
            for (source, key) in self.sources[sources].iter_mut().zip(&mut keys) {
                source.key = key;
            }
        }
        self.repair = RepairState::None;
        self.is_looked_through = false;
        true
    }

    /// Finds the keys of runs, where the links lead to those that the encoder meant.
    fn follow_runs(&mut self, view: &PeerView<'_>) {
        let mut at = 0;
        for group in &self.record.groups {
            let sources = at..at + group.len();
            at = sources.end;
            if let SourceGroup::Run { first, digest, .. } = group {
                let sources = &mut self.sources[sources];
                let known = sources.first().is_none_or(|source| source.key != NO_KEY);
                if known || digest_of(walk(view, *first, sources.len())) != *digest {
                    continue;
                }
                let keys = walk(view, *first, sources.len());
                for (source, key) in sources.iter_mut().zip(keys) {
                    source.key = key;
                }
            }
        }
    }

    /// Returns the request for missing chunks, if there are any.
    fn ask_for_missing(
        &mut self,
        view: &mut PeerView<'_>,
        asking: RepairTiming,
        outlook: RepairOutlook,
    ) -> Option<DecoderOutput> {
        let mut missing = BTreeSet::new();
        let (mut runs, mut first) = (Vec::new(), 0);
        let mut is_hopeless = false;
        for (number, group) in self.record.groups.iter().enumerate() {
            let sources = first..first + group.len();
            first = sources.end;
            let unnamed = |index: &usize| self.sources[*index].key == NO_KEY;
            match group {
                SourceGroup::Run { first, count, .. }
                    if sources.clone().any(|index| unnamed(&index)) =>
                {
                    let begins_here = !view.lacks(*first);
                    is_hopeless |= outlook == RepairOutlook::Bleak && !begins_here;
                    if asking == RepairTiming::Ahead && begins_here {
                        // The links that lead on may come with a record before this one.
                        continue;
                    }
                    runs.push(number);
                    // The links to a chunk go with it, so where they end one is most likely lost:
                    // its bytes are asked for together with the keys, which saves a round trip.
                    let mut keys = walk(view, *first, *count);
                    let lost = keys.position(|key| view.lacks(key));
                    missing.extend(lost.map(|index| sources.start + index));
                }
                SourceGroup::Run { .. } | SourceGroup::Listed(_) => {
                    let lost = |index: &usize| self.sources[*index].is_missing(view);
                    missing.extend(sources.filter(lost));
                }
            }
        }
        let bases = match self.record.literals {
            LiteralEncoding::ZstdWithBases(count) => self.sources.len() - count..self.sources.len(),
            LiteralEncoding::Stored
            | LiteralEncoding::Zstd
            | LiteralEncoding::WindowBegins
            | LiteralEncoding::WindowGoesOn => 0..0,
        };
        let baseless = missing.range(bases).next().is_some();
        let mut references = Vec::new();
        let taking = self
            .record
            .operations
            .iter()
            .filter_map(RecordOperation::source);
        for (number, source) in taking.enumerate() {
            if missing.contains(&source) && !self.repaired.contains_key(&number) {
                references.push(number);
            }
        }
        if references.is_empty() && runs.is_empty() && !baseless {
            return None;
        }
        let many = references.len().max(runs.len()) > MAX_REPAIR_RANGES;
        if many || baseless || is_hopeless || self.partial_repairs == PARTIAL_REPAIRS {
            return Some(self.ask_for_all(view));
        }
        self.partial_repairs += 1;
        self.repair = RepairState::AskedSome {
            references: references.clone(),
            runs: runs.clone(),
        };
        Some(self.request(view, RepairScope::Some { references, runs }))
    }

    /// Advances the flow's window by one record, whatever the result of the rest of the record.
    fn decode_in_window(&mut self, view: &mut PeerView<'_>, window: &mut Option<WindowId>) {
        if self.windowed.is_some() {
            return;
        }
        let record = &self.record;
        let codec = view.codec();
        match record.literals {
            LiteralEncoding::WindowBegins => codec.begin_decoding(window),
            LiteralEncoding::WindowGoesOn => {}
            LiteralEncoding::Stored | LiteralEncoding::Zstd | LiteralEncoding::ZstdWithBases(_) => {
                return;
            }
        }
        let decoded = codec.decode_in_window(&record.coded, window, record.literal_length);
        self.windowed = Some(decoded.map(Bytes::from));
    }

    fn ask_for_all(&mut self, view: &mut PeerView<'_>) -> DecoderOutput {
        self.repair = RepairState::AskedAll;
        self.request(view, RepairScope::All)
    }

    fn request(&self, view: &mut PeerView<'_>, scope: RepairScope) -> DecoderOutput {
        view.count_request(&scope);
        let record_start = self.start;
        DecoderOutput::NeedRepair(
            RepairRequest {
                record_start,
                scope,
            }
            .emit(),
        )
    }

    /// Assembles the raw bytes from the sources; `None` if their check fails.
    fn assemble(&self, view: &mut PeerView<'_>) -> Option<VerifiedRecord> {
        let record = &self.record;
        let literals: Bytes = match record.literals {
            LiteralEncoding::Stored => record.coded.clone(),
            LiteralEncoding::Zstd => {
                let length = record.literal_length;
                let decoded = view.codec().decode(&record.coded, &[], length)?;
                decoded.into()
            }
            LiteralEncoding::ZstdWithBases(count) => {
                let bases = &self.sources[self.sources.len() - count..];
                let joined = join_bases(bases.iter().map(|base| base.bytes().unwrap_or_default()));
                let length = record.literal_length;
                let decoded = view.codec().decode(&record.coded, &joined, length)?;
                decoded.into()
            }
            LiteralEncoding::WindowBegins | LiteralEncoding::WindowGoesOn => {
                self.windowed.as_ref().and_then(Option::as_ref)?.clone()
            }
        };
        let only_literals = record
            .operations
            .iter()
            .map(RecordOperation::literal_length);
        if let Some(lengths) = only_literals.collect() {
            return self.verify(literals, lengths, Vec::new());
        }
        let mut literals = &literals[..];
        let mut raw = Vec::with_capacity(record.raw_length);
        let mut lengths = Vec::with_capacity(record.operations.len());
        let mut chunks = Vec::new();
        let mut reference = 0;
        for operation in &record.operations {
            let piece = match *operation {
                RecordOperation::Literal { length, .. } | RecordOperation::Aside { length, .. } => {
                    let (piece, rest) = literals.split_at_checked(length)?;
                    literals = rest;
                    piece
                }
                RecordOperation::Chunk { source } => {
                    let repaired = self.repaired.get(&reference);
                    reference += 1;
                    chunks.push(match repaired {
                        Some(_) => NO_KEY,
                        None => self.sources[source].key,
                    });
                    match repaired {
                        Some(bytes) => bytes,
                        None => self.sources[source].bytes()?,
                    }
                }
                RecordOperation::Copy {
                    source,
                    offset,
                    extent,
                    ..
                } => {
                    let repaired = self.repaired.get(&reference);
                    reference += 1;
                    match (repaired, extent) {
                        (Some(bytes), _) => bytes,
                        (None, CopyExtent::Rest) => self.sources[source].bytes()?.get(offset..)?,
                        (None, CopyExtent::Bytes(length)) => {
                            let bytes = self.sources[source].bytes()?;
                            bytes.get(offset..offset + length)?
                        }
                    }
                }
            };
            if raw.len() + piece.len() > record.raw_length {
                return None;
            }
            raw.extend_from_slice(piece);
            lengths.push(piece.len());
        }
        self.verify(raw.into(), lengths, chunks)
    }

    /// Joins the raw bytes of a whole repair, one piece for each operation; `None` if their check
    /// fails.
    fn join_pieces(&self, pieces: &[Bytes]) -> Option<VerifiedRecord> {
        let lengths = pieces.iter().map(Bytes::len).collect();
        self.verify(pieces.concat().into(), lengths, Vec::new())
    }

    fn verify(
        &self,
        raw: Bytes,
        lengths: Vec<usize>,
        chunks: Vec<ChunkKey>,
    ) -> Option<VerifiedRecord> {
        let record = &self.record;
        let mut fits = raw.len() == record.raw_length && lengths.len() == record.operations.len();
        for (operation, have) in record.operations.iter().zip(&lengths) {
            match operation {
                RecordOperation::Literal { length, .. }
                | RecordOperation::Copy {
                    extent: CopyExtent::Bytes(length),
                    ..
                }
                | RecordOperation::Aside { length, .. } => fits &= length == have,
                RecordOperation::Chunk { .. } => fits &= (1..=MAX_CHUNK).contains(have),
                RecordOperation::Copy {
                    extent: CopyExtent::Rest,
                    ..
                } => fits &= *have <= MAX_CHUNK,
            }
        }
        if !fits {
            return None;
        }
        let (mut spans, mut chunk_ends) = (Vec::new(), Vec::new());
        let (mut at, mut start) = (0, 0);
        let mut end_span = |end: usize| {
            spans.push(&raw[std::mem::replace(&mut start, end)..end]);
            spans.len() - 1
        };
        for (operation, length) in record.operations.iter().zip(&lengths) {
            let before = at;
            at += length;
            match operation {
                RecordOperation::Literal { end, .. } | RecordOperation::Copy { end, .. } => {
                    match end {
                        OperationEnd::Continues => {}
                        OperationEnd::Ends => chunk_ends.push(end_span(at)),
                    }
                }
                RecordOperation::Chunk { .. } => {
                    end_span(before);
                    chunk_ends.push(end_span(at));
                }
                RecordOperation::Aside { .. } => {
                    end_span(before);
                    end_span(at);
                }
            }
        }
        end_span(at);
        let spans = CheckSpan::of_each(&spans);
        let chunk_ends = chunk_ends.iter().map(|number| spans[*number]).collect();
        (check_of(&spans) == record.check).then(|| VerifiedRecord {
            raw,
            lengths,
            chunks,
            chunk_ends,
        })
    }
}

impl RecordSource {
    fn bytes(&self) -> Option<&[u8]> {
        match &self.state {
            SourceState::Chunk(bytes) => Some(bytes),
            SourceState::Unknown | SourceState::Reading(_) | SourceState::Missing => None,
        }
    }

    /// Returns `true` if the peer has no such chunk here. A source that is not named yet counts as
    /// present.
    fn is_missing(&self, view: &PeerView<'_>) -> bool {
        match &self.state {
            SourceState::Missing => true,
            SourceState::Unknown => self.key != NO_KEY && view.lacks(self.key),
            SourceState::Reading(ticket) => ticket.outcome() == Some(None),
            SourceState::Chunk(_) => false,
        }
    }
}

/// Follows links for `count` chunks from `first` on: each is the one last seen after the one
/// before.
fn walk(view: &PeerView<'_>, first: ChunkKey, count: usize) -> impl Iterator<Item = ChunkKey> {
    std::iter::successors(Some(first), |key| Some(view.next(*key))).take(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        DECODE_AHEAD_BYTES, DecoderConfig, DictionaryConfig, MAX_RECORD_SOURCES, REPAIR_AHEAD_BYTES,
    };
    use crate::decoder::FlowDecoder;
    use crate::dictionary::{Dictionary, FlowChunks};
    use crate::fingerprint::Fingerprint;
    use vocab::{NodeId, SeededRandom};

    const PEER: NodeId = NodeId([7; 32]);

    /// Chunks of the peer in a dictionary, each linked to the one before.
    fn chain(dictionary: &mut Dictionary, count: usize, length: usize) -> Vec<ChunkKey> {
        let peer = dictionary.peer(PEER);
        let mut keys = vec![NO_KEY];
        for number in 0..count {
            let mut chunk = vec![0; length];
            SeededRandom::from_seed(number as u64).fill(&mut chunk);
            let fingerprint = Fingerprint::of(&chunk);
            dictionary.insert(&fingerprint, &chunk, keys[number], peer);
            dictionary.mark_held(fingerprint.key(), fingerprint.check(), peer);
            keys.push(fingerprint.key());
        }
        keys.split_off(1)
    }

    fn record(groups: Vec<SourceGroup>, operations: Vec<RecordOperation>) -> ParsedRecord {
        ParsedRecord {
            raw_length: MAX_CHUNK,
            check: [0; 16],
            literal_length: 0,
            literals: LiteralEncoding::Stored,
            coded: Bytes::new(),
            groups,
            operations,
        }
    }

    fn dictionary() -> Dictionary {
        Dictionary::new(DictionaryConfig::default(), SeededRandom::from_seed(1))
    }

    fn start_reads(pending: &mut PendingRecord, dictionary: &mut Dictionary) {
        let peer = dictionary.peer(PEER);
        pending.start_reads(&mut PeerView::new(dictionary, peer, &FlowChunks::default()));
    }

    fn attempt(
        pending: &mut PendingRecord,
        dictionary: &mut Dictionary,
    ) -> Result<DeliveryAttempt, ReductionError> {
        let peer = dictionary.peer(PEER);
        let chunks = FlowChunks::default();
        let mut view = PeerView::new(dictionary, peer, &chunks);
        pending.attempt(&mut view, &mut None, RepairOutlook::Good)
    }

    #[test]
    fn hostile_references_use_no_extra_memory() {
        let mut dictionary = dictionary();
        let keys = chain(&mut dictionary, 100, MAX_CHUNK);
        let twice: Vec<ChunkKey> = keys.iter().flat_map(|key| [*key; 2]).collect();
        let mut pending =
            PendingRecord::new(0, 1, record(vec![SourceGroup::Listed(twice)], Vec::new()));
        start_reads(&mut pending, &mut dictionary);
        let taken = pending
            .sources
            .iter()
            .filter_map(RecordSource::bytes)
            .count();
        assert_eq!(taken, 2 * (MAX_SOURCE_BYTES / MAX_CHUNK));
    }

    /// Eight records of a byte from each of many chunks: 18 MiB, if all were looked up at once.
    #[test]
    fn expensive_records_count_and_resolve_few_at_once() {
        const CHUNKS: usize = MAX_SOURCE_BYTES / MAX_CHUNK;
        let mut dictionary = dictionary();
        let keys = chain(&mut dictionary, 8 * CHUNKS, MAX_CHUNK);
        let peer = dictionary.peer(PEER);
        let mut decoder = FlowDecoder::new(DecoderConfig::default(), peer);
        for keys in keys.chunks(CHUNKS) {
            let bytes = (0..CHUNKS).map(|source| RecordOperation::Copy {
                source,
                offset: 0,
                extent: CopyExtent::Bytes(1),
                end: OperationEnd::Continues,
            });
            let mut costly = record(vec![SourceGroup::Listed(keys.to_vec())], bytes.collect());
            costly.raw_length = CHUNKS;
            decoder.push(costly.emit_with(&[]).0);
        }
        // The first does not verify and is asked for; then the others are looked through.
        for most in [DECODE_AHEAD_BYTES, REPAIR_AHEAD_BYTES] {
            let polled = decoder.poll(&mut dictionary);
            assert!(matches!(
                polled,
                Ok(DecoderOutput::NeedRepair(_) | DecoderOutput::WaitForRepair)
            ));
            let records = decoder.records.iter();
            let sources = records.flat_map(|pending| &pending.sources);
            let held: usize = sources
                .filter_map(RecordSource::bytes)
                .map(<[u8]>::len)
                .sum();
            assert!(held >= MAX_SOURCE_BYTES, "{held}");
            assert!(held <= most + MAX_SOURCE_BYTES, "{held}");
            assert!(decoder.buffered() >= held);
        }
    }

    #[test]
    fn runs_are_followed_only_on_matching_links() {
        let mut dictionary = dictionary();
        let keys = chain(&mut dictionary, 20, 100);
        let run = |digest| SourceGroup::Run {
            first: keys[3],
            count: 10,
            digest,
        };
        let right = digest_of(keys[3..13].iter().copied());
        let mut pending = PendingRecord::new(0, 1, record(vec![run(right)], Vec::new()));
        start_reads(&mut pending, &mut dictionary);
        let found: Vec<ChunkKey> = pending.sources.iter().map(|source| source.key).collect();
        assert_eq!(found, keys[3..13]);
        // A link that is another, an end of the links, and a loop in them: asked for.
        let peer = dictionary.peer(PEER);
        dictionary.link(keys[7], keys[2], peer);
        for digest in [right, right ^ 1] {
            let mut pending = PendingRecord::new(0, 1, record(vec![run(digest)], Vec::new()));
            start_reads(&mut pending, &mut dictionary);
            assert!(pending.sources.iter().all(|source| source.key == NO_KEY));
            let asked = attempt(&mut pending, &mut dictionary);
            assert!(matches!(
                asked,
                Ok(DeliveryAttempt::Waits(DecoderOutput::NeedRepair(_)))
            ));
        }
    }

    #[test]
    fn short_run_requests_chunk_and_keys() {
        let mut dictionary = dictionary();
        let keys = chain(&mut dictionary, 20, 100);
        let beyond = SourceGroup::Run {
            first: keys[15],
            count: MAX_RECORD_SOURCES,
            digest: 0,
        };
        let chunks = (0..8).map(|source| RecordOperation::Chunk { source });
        let mut pending = PendingRecord::new(0, 1, record(vec![beyond], chunks.collect()));
        start_reads(&mut pending, &mut dictionary);
        let asked = attempt(&mut pending, &mut dictionary);
        let Ok(DeliveryAttempt::Waits(DecoderOutput::NeedRepair(request))) = asked else {
            panic!("it asks");
        };
        let scope = RepairRequest::parse(&request).unwrap().scope;
        let (references, runs) = (vec![5], vec![0]);
        assert_eq!(scope, RepairScope::Some { references, runs });
    }
}
