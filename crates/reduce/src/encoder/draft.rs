//! A record in the making.

use bytes::Bytes;
use vocab::SegmentKind;

use crate::config::{MAX_BASE_BYTES, MAX_BASES, MAX_RECORD_OPERATIONS};
use crate::fingerprint::Key;
use crate::literals::{Codec, Coding, Experience, join_bases};
use crate::record::{End, Literals, Operation, Record, check_of};

/// Raw bytes, operations and literals of one record, within their limits.
pub(super) struct Draft {
    raw: Vec<u8>,
    literals: Vec<u8>,
    operations: Vec<Operation>,
    lengths: Vec<usize>,
    references: Vec<Reference>,
    bases: Vec<(Key, Bytes)>,
    base_bytes: usize,
    raw_limit: usize,
    literal_limit: usize,
    /// Chunks that end in this record, with the second half of what identifies them.
    pub(super) ended: Vec<(Key, u64)>,
    /// Literal payload bytes for which no base has been found yet.
    pub(super) unbased: usize,
}

/// Bytes of a record that came from the dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) key: Key,
    pub(super) start: usize,
    pub(super) length: usize,
}

/// A finished record and what has to be remembered of it.
pub(super) struct Closed {
    pub(super) bytes: Bytes,
    pub(super) raw: Bytes,
    pub(super) lengths: Vec<usize>,
    pub(super) references: Vec<Reference>,
    pub(super) bases: Vec<Key>,
    pub(super) ended: Vec<(Key, u64)>,
    pub(super) literal_bytes: usize,
    pub(super) coded_bytes: usize,
    pub(super) stored_bytes: usize,
    pub(super) delta_bytes: usize,
}

impl Draft {
    pub(super) fn new(raw_limit: usize, literal_limit: usize) -> Self {
        Self {
            raw: Vec::new(),
            literals: Vec::new(),
            operations: Vec::new(),
            lengths: Vec::new(),
            references: Vec::new(),
            bases: Vec::new(),
            base_bytes: 0,
            raw_limit,
            literal_limit,
            ended: Vec::new(),
            unbased: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.literal_room() > 0 && self.operations.len() < MAX_RECORD_OPERATIONS
    }

    pub(super) fn raw_room(&self) -> usize {
        self.raw_limit - self.raw.len()
    }

    pub(super) fn literal_room(&self) -> usize {
        self.raw_room()
            .min(self.literal_limit - self.literals.len())
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
        self.raw.extend_from_slice(piece);
        self.literals.extend_from_slice(piece);
        self.lengths.push(piece.len());
        self.operations.push(Operation::Aside {
            kind,
            length: piece.len(),
            end,
        });
    }

    pub(super) fn chunk(&mut self, key: Key, bytes: &[u8]) {
        self.refer(key, bytes);
        self.operations.push(Operation::Chunk { key });
    }

    pub(super) fn range(&mut self, key: Key, offset: usize, piece: &[u8], end: End) {
        self.refer(key, piece);
        self.operations.push(Operation::Range {
            key,
            offset,
            length: piece.len(),
            end,
        });
    }

    /// Adds a chunk for the literals to be compressed against; says whether there is room.
    pub(super) fn base(&mut self, key: Key, bytes: Bytes) -> bool {
        if self.bases.iter().any(|(known, _)| *known == key) {
            return true;
        }
        let room = MAX_BASE_BYTES - self.base_bytes;
        if self.bases.len() == MAX_BASES || bytes.len() > room {
            return false;
        }
        self.base_bytes += bytes.len();
        self.bases.push((key, bytes));
        true
    }

    /// Codes the literals and writes the record.
    pub(super) fn close(
        self,
        codec: &mut Codec,
        level: i32,
        experience: &mut Experience,
    ) -> Closed {
        let joined = if self.bases.is_empty() || self.literals.is_empty() {
            Vec::new()
        } else {
            join_bases(self.bases.iter().map(|(_, bytes)| &bytes[..]))
        };
        let mut coded = Vec::new();
        let coding = codec.encode(&self.literals, &joined, level, experience, &mut coded);
        let literal_bytes = self.literals.len();
        let keys = |bases: &[(Key, Bytes)]| bases.iter().map(|(key, _)| *key).collect::<Vec<_>>();
        let (literals, coded) = match coding {
            Coding::Stored => (Literals::Stored, self.literals),
            Coding::Compressed if joined.is_empty() => (Literals::Zstd, coded),
            Coding::Compressed => (Literals::ZstdWithBases(keys(&self.bases)), coded),
        };
        let bases = match &literals {
            Literals::ZstdWithBases(keys) => keys.clone(),
            Literals::Stored | Literals::Zstd => Vec::new(),
        };
        let stored_bytes = match literals {
            Literals::Stored => literal_bytes,
            Literals::Zstd | Literals::ZstdWithBases(_) => 0,
        };
        let record = Record {
            raw_length: self.raw.len(),
            check: check_of(&self.raw),
            literal_length: literal_bytes,
            literals,
            coded: coded.into(),
            operations: self.operations,
        };
        Closed {
            bytes: record.emit(),
            raw: self.raw.into(),
            lengths: self.lengths,
            references: self.references,
            delta_bytes: if bases.is_empty() { 0 } else { literal_bytes },
            bases,
            ended: self.ended,
            literal_bytes,
            coded_bytes: record.coded.len(),
            stored_bytes,
        }
    }

    fn refer(&mut self, key: Key, bytes: &[u8]) {
        self.references.push(Reference {
            key,
            start: self.raw.len(),
            length: bytes.len(),
        });
        self.lengths.push(bytes.len());
        self.raw.extend_from_slice(bytes);
    }
}
