//! A record in the making.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use vocab::SegmentKind;

use crate::check::{CheckSpan, CheckSpans};
use crate::config::{
    MAX_BASE_BYTES, MAX_BASES, MAX_RECORD_OPERATIONS, MAX_RECORD_RAW, MAX_RECORD_SOURCES,
    MAX_SOURCE_BYTES,
};
use crate::dictionary::{Dictionary, PeerSlot};
use crate::fingerprint::{ChunkKey, Fingerprint};
use crate::literals::{BlockCoding, LiteralHistory, join_bases};
use crate::record::{
    CopyExtent, LiteralEncoding, OperationEnd, ParsedRecord, RecordOperation, SourceGroup,
    digest_of,
};

/// The shortest run: two chunks cost less as a run than as a list.
const LEAST_RUN: usize = 2;

/// Largest share of literals in a record of mostly references, as a divisor of its raw bytes.
const MOSTLY: usize = 16;

/// Raw bytes, operations and literals of one record, within their limits.
pub(super) struct RecordDraft {
    /// The raw bytes, a piece for each operation.
    pieces: Vec<Bytes>,
    raw_length: usize,
    /// Raw bytes that the dictionary holds as well.
    shared_length: usize,
    literal_length: usize,
    spans: CheckSpans,
    /// The first piece of the open span.
    span_start: usize,
    operations: Vec<RecordOperation>,
    references: Vec<DraftReference>,
    sources: Vec<SourceChunk>,
    /// The number of each chunk among the sources.
    numbers: BTreeMap<ChunkKey, usize>,
    source_bytes: usize,
    bases: Vec<(SourceChunk, Bytes)>,
    base_bytes: usize,
    /// Chunks that something else follows since this record: the peer will know only after it.
    relinked: BTreeSet<ChunkKey>,
    literal_limit: usize,
    has_asides: bool,
    /// Chunks that end in this record, with the second half of what identifies them.
    ended: Vec<(ChunkKey, u64)>,
    /// Keys that were not referred to as a whole chunk.
    new_to_peer: Vec<(ChunkKey, u64)>,
    peer: PeerSlot,
}

/// A chunk that bytes are taken from.
#[derive(Clone, Copy, Debug)]
struct SourceChunk {
    key: ChunkKey,
    /// The dictionary's links lead to it from the source before it, and do so without what this
    /// record itself will link.
    follows: bool,
}

/// An operation whose bytes came from the dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DraftReference {
    pub(super) source: usize,
    pub(super) operation: usize,
}

/// Use of links: whether references may rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkUse {
    Followed,
    /// The peer's links turned out to be others.
    Spelled,
}

/// Finished record with the data kept for its repair.
pub(super) struct FinishedRecord {
    pub(super) bytes: Bytes,
    /// The raw bytes, a piece for each operation.
    pub(super) pieces: Vec<Bytes>,
    /// True if it needs nothing that the peer might lack.
    pub(super) stands_alone: bool,
    pub(super) raw_length: usize,
    /// Raw bytes that the dictionary holds as well.
    pub(super) shared_length: usize,
    pub(super) references: Vec<DraftReference>,
    pub(super) sources: Vec<ChunkKey>,
    /// Number of sources in each group.
    pub(super) groups: Vec<usize>,
    pub(super) ended: Vec<(ChunkKey, u64)>,
    pub(super) new_to_peer: Vec<(ChunkKey, u64)>,
    pub(super) literal_bytes: usize,
    pub(super) coded_bytes: usize,
    pub(super) stored_bytes: usize,
    pub(super) delta_bytes: usize,
}

impl RecordDraft {
    /// An empty one for that peer.
    pub(super) fn new(peer: PeerSlot) -> Self {
        Self {
            pieces: Vec::new(),
            raw_length: 0,
            shared_length: 0,
            literal_length: 0,
            spans: CheckSpans::new(),
            span_start: 0,
            operations: Vec::new(),
            references: Vec::new(),
            sources: Vec::new(),
            numbers: BTreeMap::new(),
            source_bytes: 0,
            bases: Vec::new(),
            base_bytes: 0,
            relinked: BTreeSet::new(),
            literal_limit: 0,
            has_asides: false,
            ended: Vec::new(),
            new_to_peer: Vec::new(),
            peer,
        }
    }

    /// Sets how many literal bytes it may come to hold.
    pub(super) fn limit_literals(&mut self, limit: usize) {
        self.literal_limit = limit;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.literal_room() > 0 && self.operation_room() > 0
    }

    /// Operations that it can still take.
    pub(super) fn operation_room(&self) -> usize {
        MAX_RECORD_OPERATIONS - self.operations.len()
    }

    /// Raw bytes that neither peer nor dictionary holds elsewhere.
    pub(super) fn own_length(&self) -> usize {
        self.raw_length - self.shared_length
    }

    pub(super) fn raw_room(&self) -> usize {
        MAX_RECORD_RAW - self.raw_length
    }

    pub(super) fn literal_room(&self) -> usize {
        let room = self.literal_limit.saturating_sub(self.literal_length);
        self.raw_room().min(room)
    }

    /// Returns `true` if the record holds half of the literals that it may.
    pub(super) fn is_half_full(&self) -> bool {
        2 * self.literal_length >= self.literal_limit
    }

    /// Returns `true` if the record consists of references and few bytes of payload between them.
    pub(super) fn is_mostly_references(&self) -> bool {
        !self.has_asides && MOSTLY * self.literal_length <= self.raw_length
    }

    pub(super) fn literal(&mut self, piece: Bytes, end: OperationEnd) {
        let length = piece.len();
        self.literal_length += length;
        self.push(piece, RecordOperation::Literal { length, end });
    }

    pub(super) fn aside(&mut self, kind: SegmentKind, piece: Bytes, end: OperationEnd) {
        let length = piece.len();
        self.literal_length += length;
        self.has_asides = true;
        self.end_span(None);
        self.push(piece, RecordOperation::Aside { kind, length, end });
        self.end_span(None);
    }

    /// Makes a chunk of the dictionary one of the sources; says which, or that there is no room.
    pub(super) fn source(&mut self, dictionary: &Dictionary, key: ChunkKey) -> Option<usize> {
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
        }
        let length = dictionary.length(key);
        let room = MAX_SOURCE_BYTES - MAX_BASE_BYTES - self.source_bytes;
        if self.sources.len() == MAX_RECORD_SOURCES - MAX_BASES || length > room {
            return None;
        }
        self.source_bytes += length;
        let follows = self.follows(dictionary, self.sources.last().copied(), key);
        self.sources.push(SourceChunk { key, follows });
        let number = self.sources.len() - 1;
        self.numbers.insert(key, number);
        Some(number)
    }

    pub(super) fn chunk(&mut self, source: usize, bytes: Bytes) {
        self.end_span(None);
        self.refer(source, bytes, RecordOperation::Chunk { source });
    }

    /// The dictionary has the same bytes as the chunk that was added last: its copy is kept, and the
    /// host's is not.
    pub(super) fn share(&mut self, kept: Bytes) {
        if let (Some(RecordOperation::Chunk { .. }), Some(last)) =
            (self.operations.last(), self.pieces.last_mut())
            && last.len() == kept.len()
        {
            self.shared_length += kept.len();
            *last = kept;
        }
    }

    /// Adds bytes of a source, from `offset` on.
    pub(super) fn copy(
        &mut self,
        source: usize,
        offset: usize,
        extent: CopyExtent,
        piece: Bytes,
        end: OperationEnd,
    ) {
        let operation = RecordOperation::Copy {
            source,
            offset,
            extent,
            end,
        };
        self.refer(source, piece, operation);
    }

    /// Adds a chunk for the literals to be compressed against; says whether there is room.
    pub(super) fn base(&mut self, dictionary: &Dictionary, key: ChunkKey, bytes: Bytes) -> bool {
        if self.bases.iter().any(|(known, _)| known.key == key) {
            return true;
        }
        let room = MAX_BASE_BYTES - self.base_bytes;
        if self.bases.len() == MAX_BASES || bytes.len() > room {
            return false;
        }
        self.base_bytes += bytes.len();
        let last = self.bases.last().map(|(last, _)| *last);
        let follows = self.follows(dictionary, last, key);
        self.bases.push((SourceChunk { key, follows }, bytes));
        true
    }

    /// Records that a chunk of `length` bytes ends here, after `previous` in its flow. Call it
    /// before the dictionary is told.
    pub(super) fn end_chunk(
        &mut self,
        dictionary: &Dictionary,
        chunk: &Fingerprint,
        length: usize,
        previous: ChunkKey,
    ) {
        let hash = *chunk;
        self.end_span(Some(CheckSpan { length, hash }));
        self.ended.push((chunk.key(), chunk.check()));
        if dictionary.next(previous, self.peer) != chunk.key() {
            self.relinked.insert(previous);
        }
    }

    /// Notes that the peer gets the bytes of the chunk that ended last.
    pub(super) fn is_new_to_peer(&mut self, chunk: &Fingerprint) {
        self.new_to_peer.push((chunk.key(), chunk.check()));
    }

    /// Codes the literals and writes the record.
    pub(super) fn close(
        mut self,
        dictionary: &mut Dictionary,
        level: i32,
        experience: &mut LiteralHistory,
        runs: LinkUse,
    ) -> FinishedRecord {
        self.end_span(None);
        let codec = dictionary.codec();
        let pieces = self.pieces.iter().zip(&self.operations);
        let literals: Vec<&[u8]> = pieces
            .filter(|(piece, operation)| operation.literal_length().is_some() && !piece.is_empty())
            .map(|(piece, _)| &piece[..])
            .collect();
        let joined = if self.bases.is_empty() || literals.is_empty() {
            Vec::new()
        } else {
            join_bases(self.bases.iter().map(|(_, bytes)| &bytes[..]))
        };
        let mut coded = std::mem::take(&mut codec.coded);
        let coding = codec.encode(&literals, &joined, level, experience, &mut coded);
        let literal_bytes = self.literal_length;
        let mut sources = self.sources;
        let kind = match coding {
            BlockCoding::Stored => LiteralEncoding::Stored,
            BlockCoding::Compressed => LiteralEncoding::Zstd,
            BlockCoding::Delta => {
                sources.extend(self.bases.iter().map(|(base, _)| *base));
                LiteralEncoding::ZstdWithBases(self.bases.len())
            }
            BlockCoding::WindowBegins => LiteralEncoding::WindowBegins,
            BlockCoding::WindowGoesOn => LiteralEncoding::WindowGoesOn,
        };
        let stored_bytes = match kind {
            LiteralEncoding::Stored => literal_bytes,
            LiteralEncoding::Zstd
            | LiteralEncoding::ZstdWithBases(_)
            | LiteralEncoding::WindowBegins
            | LiteralEncoding::WindowGoesOn => 0,
        };
        let delta_bytes = match kind {
            LiteralEncoding::ZstdWithBases(_) => literal_bytes,
            LiteralEncoding::Stored
            | LiteralEncoding::Zstd
            | LiteralEncoding::WindowBegins
            | LiteralEncoding::WindowGoesOn => 0,
        };
        let stands_alone = match kind {
            LiteralEncoding::Stored | LiteralEncoding::Zstd => sources.is_empty(),
            LiteralEncoding::ZstdWithBases(_)
            | LiteralEncoding::WindowBegins
            | LiteralEncoding::WindowGoesOn => false,
        };
        let record = ParsedRecord {
            raw_length: self.raw_length,
            check: self.spans.check(),
            literal_length: literal_bytes,
            literals: kind,
            coded: Bytes::new(),
            groups: grouped(&sources, runs),
            operations: self.operations,
        };
        let whole = [&coded[..]];
        let body = match coding {
            BlockCoding::Stored => &literals[..],
            BlockCoding::Compressed
            | BlockCoding::Delta
            | BlockCoding::WindowBegins
            | BlockCoding::WindowGoesOn => &whole,
        };
        let (bytes, coded_bytes) = record.emit_with(body);
        drop(literals);
        codec.coded = coded;
        FinishedRecord {
            bytes,
            pieces: self.pieces,
            stands_alone,
            raw_length: self.raw_length,
            shared_length: self.shared_length,
            references: self.references,
            delta_bytes,
            sources: sources.iter().map(|source| source.key).collect(),
            groups: record.groups.iter().map(SourceGroup::len).collect(),
            ended: self.ended,
            new_to_peer: self.new_to_peer,
            literal_bytes,
            coded_bytes,
            stored_bytes,
        }
    }

    /// Ends the open span of the check.
    fn end_span(&mut self, known: Option<CheckSpan>) {
        let pieces = self.pieces[self.span_start..]
            .iter()
            .map(|piece| &piece[..]);
        self.spans.end(pieces, known);
        self.span_start = self.pieces.len();
    }

    fn follows(&self, dictionary: &Dictionary, last: Option<SourceChunk>, key: ChunkKey) -> bool {
        last.is_some_and(|SourceChunk { key: last, .. }| {
            dictionary.next(last, self.peer) == key && !self.relinked.contains(&last)
        })
    }

    fn refer(&mut self, source: usize, piece: Bytes, operation: RecordOperation) {
        self.references.push(DraftReference {
            source,
            operation: self.operations.len(),
        });
        self.push(piece, operation);
    }

    fn push(&mut self, piece: Bytes, operation: RecordOperation) {
        // The peer refuses a record with more, and the flow ends in the middle.
        debug_assert!(self.operation_room() > 0, "the caller asks for room");
        self.raw_length += piece.len();
        self.pieces.push(piece);
        self.operations.push(operation);
    }
}

/// The sources as runs where links lead from one to the next, and as lists elsewhere.
fn grouped(sources: &[SourceChunk], runs: LinkUse) -> Vec<SourceGroup> {
    let mut groups = Vec::new();
    for run in sources.chunk_by(|_, next| runs == LinkUse::Followed && next.follows) {
        let keys = run.iter().map(|source| source.key);
        if run.len() >= LEAST_RUN {
            groups.push(SourceGroup::Run {
                first: run[0].key,
                count: run.len(),
                digest: digest_of(keys),
            });
        } else if let Some(SourceGroup::Listed(listed)) = groups.last_mut() {
            listed.extend(keys);
        } else {
            groups.push(SourceGroup::Listed(keys.collect()));
        }
    }
    groups
}
