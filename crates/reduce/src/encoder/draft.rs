//! A record in the making.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use vocab::SegmentKind;

use crate::check::{Span, Spans};
use crate::config::{
    MAX_BASE_BYTES, MAX_BASES, MAX_RECORD_OPERATIONS, MAX_RECORD_RAW, MAX_RECORD_SOURCES,
    MAX_SOURCE_BYTES,
};
use crate::dictionary::Dictionary;
use crate::fingerprint::{Fingerprint, Key};
use crate::literals::{Coding, Experience, join_bases, resembles};
use crate::record::{End, Extent, Group, Literals, Operation, Record, digest_of};

/// The shortest run: two chunks cost less as a run than as a list.
const LEAST_RUN: usize = 2;

/// Raw bytes, operations and literals of one record, within their limits.
pub(super) struct Draft {
    raw: Vec<u8>,
    spans: Spans,
    literals: Vec<u8>,
    operations: Vec<Operation>,
    lengths: Vec<usize>,
    references: Vec<Reference>,
    sources: Vec<SourceChunk>,
    /// The number of each chunk among the sources.
    numbers: BTreeMap<Key, usize>,
    source_bytes: usize,
    bases: Vec<(SourceChunk, Bytes)>,
    base_bytes: usize,
    /// Chunks that something else follows since this record: the peer will know only after it.
    relinked: BTreeSet<Key>,
    literal_limit: usize,
    /// Chunks that end in this record, with the second half of what identifies them.
    ended: Vec<(Key, u64)>,
    /// Literal payload bytes for which no base has been found yet.
    pub(super) unbased: usize,
}

/// A chunk that bytes are taken from.
#[derive(Clone, Copy, Debug)]
struct SourceChunk {
    key: Key,
    /// The dictionary's links lead to it from the source before it, and do so without what this
    /// record itself will link.
    follows: bool,
}

/// Bytes of a record that came from the dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) source: usize,
    pub(super) start: usize,
    pub(super) length: usize,
}

/// Whether links may be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    Followed,
    /// The peer's links turned out to be others.
    Spelled,
}

/// A finished record and what has to be remembered of it.
pub(super) struct Closed {
    pub(super) bytes: Bytes,
    pub(super) raw: Bytes,
    pub(super) lengths: Vec<usize>,
    pub(super) references: Vec<Reference>,
    pub(super) sources: Vec<Key>,
    /// How many sources each group names.
    pub(super) groups: Vec<usize>,
    pub(super) ended: Vec<(Key, u64)>,
    pub(super) literal_bytes: usize,
    pub(super) coded_bytes: usize,
    pub(super) stored_bytes: usize,
    pub(super) delta_bytes: usize,
}

impl Draft {
    pub(super) fn new() -> Self {
        Self {
            raw: Vec::new(),
            spans: Spans::new(),
            literals: Vec::new(),
            operations: Vec::new(),
            lengths: Vec::new(),
            references: Vec::new(),
            sources: Vec::new(),
            numbers: BTreeMap::new(),
            source_bytes: 0,
            bases: Vec::new(),
            base_bytes: 0,
            relinked: BTreeSet::new(),
            literal_limit: 0,
            ended: Vec::new(),
            unbased: 0,
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
        self.literal_room() > 0 && self.operations.len() < MAX_RECORD_OPERATIONS
    }

    pub(super) fn raw_length(&self) -> usize {
        self.raw.len()
    }

    pub(super) fn raw_room(&self) -> usize {
        MAX_RECORD_RAW - self.raw.len()
    }

    pub(super) fn literal_room(&self) -> usize {
        let room = self.literal_limit.saturating_sub(self.literals.len());
        self.raw_room().min(room)
    }

    /// Whether there are references in it and nothing else.
    pub(super) fn refers_only(&self) -> bool {
        self.literals.is_empty() && self.operations.len() == self.references.len()
    }

    pub(super) fn literal(&mut self, piece: &[u8], end: End) {
        self.raw.extend_from_slice(piece);
        self.literals.extend_from_slice(piece);
        self.lengths.push(piece.len());
        self.operations.push(Operation::Literal {
            length: piece.len(),
            end,
        });
    }

    pub(super) fn aside(&mut self, kind: SegmentKind, piece: &[u8], end: End) {
        self.spans.end(&self.raw, None);
        self.raw.extend_from_slice(piece);
        self.spans.end(&self.raw, None);
        self.literals.extend_from_slice(piece);
        self.lengths.push(piece.len());
        self.operations.push(Operation::Aside {
            kind,
            length: piece.len(),
            end,
        });
    }

    /// Makes a chunk of the dictionary one of the sources; says which, or that there is no room.
    pub(super) fn source(&mut self, dictionary: &Dictionary, key: Key) -> Option<usize> {
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

    pub(super) fn chunk(&mut self, source: usize, bytes: &[u8]) {
        self.spans.end(&self.raw, None);
        self.refer(source, bytes);
        self.operations.push(Operation::Chunk { source });
    }

    /// Adds bytes of a source, from `offset` on.
    pub(super) fn copy(
        &mut self,
        source: usize,
        offset: usize,
        extent: Extent,
        piece: &[u8],
        end: End,
    ) {
        self.refer(source, piece);
        self.operations.push(Operation::Copy {
            source,
            offset,
            extent,
            end,
        });
    }

    /// Adds a chunk for the literals to be compressed against; says whether there is room.
    pub(super) fn base(&mut self, dictionary: &Dictionary, key: Key, bytes: Bytes) -> bool {
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

    /// Notes that a chunk of so many bytes ends here, after `previous` in its flow; to be called
    /// before the dictionary is told.
    pub(super) fn ended(
        &mut self,
        dictionary: &Dictionary,
        chunk: &Fingerprint,
        length: usize,
        previous: Key,
    ) {
        let hash = *chunk;
        self.spans.end(&self.raw, Some(Span { length, hash }));
        self.ended.push((chunk.key(), chunk.check()));
        if dictionary.next(previous) != chunk.key() {
            self.relinked.insert(previous);
        }
    }

    /// Codes the literals and writes the record.
    pub(super) fn close(
        mut self,
        dictionary: &mut Dictionary,
        level: i32,
        experience: &mut Experience,
        runs: Runs,
    ) -> Closed {
        let mut joined = if self.bases.is_empty() || self.literals.is_empty() {
            Vec::new()
        } else {
            join_bases(self.bases.iter().map(|(_, bytes)| &bytes[..]))
        };
        if !resembles(&self.literals, &joined) {
            joined.clear();
        }
        let mut coded = Vec::new();
        let codec = dictionary.codec();
        let coding = codec.encode(&self.literals, &joined, level, experience, &mut coded);
        let literal_bytes = self.literals.len();
        let mut sources = self.sources;
        let (literals, coded) = match coding {
            Coding::Stored => (Literals::Stored, self.literals),
            Coding::Compressed if joined.is_empty() => (Literals::Zstd, coded),
            Coding::Compressed => {
                sources.extend(self.bases.iter().map(|(base, _)| *base));
                (Literals::ZstdWithBases(self.bases.len()), coded)
            }
            Coding::WindowBegins => (Literals::WindowBegins, coded),
            Coding::WindowGoesOn => (Literals::WindowGoesOn, coded),
        };
        let stored_bytes = match literals {
            Literals::Stored => literal_bytes,
            Literals::Zstd
            | Literals::ZstdWithBases(_)
            | Literals::WindowBegins
            | Literals::WindowGoesOn => 0,
        };
        let delta_bytes = match literals {
            Literals::ZstdWithBases(_) => literal_bytes,
            Literals::Stored | Literals::Zstd | Literals::WindowBegins | Literals::WindowGoesOn => {
                0
            }
        };
        self.spans.end(&self.raw, None);
        let record = Record {
            raw_length: self.raw.len(),
            check: self.spans.check(),
            literal_length: literal_bytes,
            literals,
            coded: coded.into(),
            groups: grouped(&sources, runs),
            operations: self.operations,
        };
        Closed {
            bytes: record.emit(),
            raw: self.raw.into(),
            lengths: self.lengths,
            references: self.references,
            delta_bytes,
            sources: sources.iter().map(|source| source.key).collect(),
            groups: record.groups.iter().map(Group::len).collect(),
            ended: self.ended,
            literal_bytes,
            coded_bytes: record.coded.len(),
            stored_bytes,
        }
    }

    fn follows(&self, dictionary: &Dictionary, last: Option<SourceChunk>, key: Key) -> bool {
        last.is_some_and(|SourceChunk { key: last, .. }| {
            dictionary.next(last) == key && !self.relinked.contains(&last)
        })
    }

    fn refer(&mut self, source: usize, bytes: &[u8]) {
        self.references.push(Reference {
            source,
            start: self.raw.len(),
            length: bytes.len(),
        });
        self.lengths.push(bytes.len());
        self.raw.extend_from_slice(bytes);
    }
}

/// The sources as runs where links lead from one to the next, and as lists elsewhere.
fn grouped(sources: &[SourceChunk], runs: Runs) -> Vec<Group> {
    let mut groups = Vec::new();
    for run in sources.chunk_by(|_, next| runs == Runs::Followed && next.follows) {
        let keys = run.iter().map(|source| source.key);
        if run.len() >= LEAST_RUN {
            groups.push(Group::Run {
                first: run[0].key,
                count: run.len(),
                digest: digest_of(keys),
            });
        } else if let Some(Group::Listed(listed)) = groups.last_mut() {
            listed.extend(keys);
        } else {
            groups.push(Group::Listed(keys.collect()));
        }
    }
    groups
}
