//! The encoded stream's records (`docs/formats/reduced-stream.md`): their meaning, emit, parse.
//!
//! ```text
//! version=2  body_length  ┌ raw_length  check[16]  coding  literal_length ──┐
//!    u8        varint     │ (coded_length)  groups of sources  (base_count) │
//!                         │ coded literals                                  │
//!                         └ operation, operation, … to the end ─────────────┘
//! ```
//! A record says how to make `raw_length` bytes: each operation appends literal bytes or bytes
//! of the record's *sources*, chunks that both sides hold. The sources are named once, in
//! groups; a group that follows the dictionary's links costs the same whatever its length.
//! Operations go through them with a cursor, so that what continues where the last one ended
//! needs no address. A record is delivered only when the result hashes to `check`
//! (`check.rs`). Lengths are limited before anything is allocated.

use bytes::{Buf, Bytes};
use vocab::{ByteReader, ByteWriter, SegmentKind};
use xxhash_rust::xxh3::Xxh3Default;

use crate::check::CHECK_LENGTH;
use crate::config::{
    MAX_BASES, MAX_CHUNK, MAX_RECORD_BODY, MAX_RECORD_LITERALS, MAX_RECORD_OPERATIONS,
    MAX_RECORD_RAW, MAX_RECORD_SOURCES,
};
use crate::error::ReductionError;
use crate::fingerprint::ChunkKey;

/// The version that this node writes, and the only one that it reads so far.
pub(crate) const VERSION: u8 = 2;

const CODING_STORED: u8 = 0;
const CODING_ZSTD: u8 = 1;
const CODING_ZSTD_BASES: u8 = 2;
const CODING_WINDOW_BEGINS: u8 = 3;
const CODING_WINDOW_GOES_ON: u8 = 4;

const TAG_LITERAL: u8 = 0;
const TAG_CHUNKS: u8 = 1;
const TAG_COPY: u8 = 2;
const TAG_UNSTORED: u8 = 3;
const TAG_CONTROL: u8 = 4;
const TAG_FRAME: u8 = 5;
const TAG_COPY_REST: u8 = 6;
const TAG_KIND: u8 = 0x07;
const TAG_ENDS: u8 = 0x08;
const TAG_SEEK: u8 = 0x10;

/// End of a chunk or a frame: whether it is complete after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationEnd {
    Continues,
    Ends,
}

/// One step in making a record's raw bytes. Sources are named by their number in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordOperation {
    /// Payload from the literals.
    Literal { length: usize, end: OperationEnd },
    /// Payload: one whole chunk. No other chunk may be under way.
    Chunk { source: usize },
    /// Payload: a piece of a chunk.
    Copy {
        source: usize,
        offset: usize,
        extent: CopyExtent,
        end: OperationEnd,
    },
    /// Bytes from the literals that are no part of any chunk: control, frames, and payload that
    /// may not be stored.
    Aside {
        kind: SegmentKind,
        length: usize,
        end: OperationEnd,
    },
}

/// Extent of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyExtent {
    /// Number of bytes; the source continues after them.
    Bytes(usize),
    /// To the end of the source.
    Rest,
}

/// Some of a record's sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceGroup {
    /// Sources by key.
    Listed(Vec<ChunkKey>),
    /// The first one and those that followed it, each after the other, by the dictionary's
    /// links; the digest of their keys shows whether both sides' links agree.
    Run {
        first: ChunkKey,
        count: usize,
        digest: u32,
    },
}

/// Coding of the literals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiteralEncoding {
    Stored,
    Zstd,
    /// Number of the last sources that are bases.
    ZstdWithBases(usize),
    /// First blocks of a frame that later records of the flow continue.
    WindowBegins,
    /// The next blocks of it.
    WindowGoesOn,
}

/// A record's meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedRecord {
    pub(crate) raw_length: usize,
    pub(crate) check: [u8; CHECK_LENGTH],
    pub(crate) literal_length: usize,
    pub(crate) literals: LiteralEncoding,
    pub(crate) coded: Bytes,
    pub(crate) groups: Vec<SourceGroup>,
    pub(crate) operations: Vec<RecordOperation>,
}

/// Position in the sources at the end of the last operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SourceCursor {
    source: usize,
    offset: usize,
}

/// The digest over the keys of a run.
pub(crate) fn digest_of(keys: impl Iterator<Item = ChunkKey>) -> u32 {
    let mut hasher = Xxh3Default::new();
    for key in keys {
        hasher.update(&key.to_be_bytes());
    }
    hasher.digest() as u32
}

impl SourceGroup {
    /// Returns the number of sources in the group.
    pub(crate) fn len(&self) -> usize {
        match self {
            SourceGroup::Listed(keys) => keys.len(),
            SourceGroup::Run { count, .. } => *count,
        }
    }
}

impl RecordOperation {
    /// Returns the number of literals that the operation takes, if any.
    pub(crate) fn literal_length(&self) -> Option<usize> {
        match self {
            RecordOperation::Literal { length, .. } | RecordOperation::Aside { length, .. } => {
                Some(*length)
            }
            RecordOperation::Chunk { .. } | RecordOperation::Copy { .. } => None,
        }
    }

    /// The source that it takes from, if it does.
    pub(crate) fn source(&self) -> Option<usize> {
        match self {
            RecordOperation::Chunk { source } | RecordOperation::Copy { source, .. } => {
                Some(*source)
            }
            RecordOperation::Literal { .. } | RecordOperation::Aside { .. } => None,
        }
    }
}

impl ParsedRecord {
    /// The record's bytes.
    #[cfg(test)]
    pub(crate) fn emit(&self) -> Bytes {
        self.emit_with(&[&self.coded]).0
    }

    /// The record's bytes, with these coded literals in place of its own, and how many they are.
    pub(crate) fn emit_with(&self, coded: &[&[u8]]) -> (Bytes, usize) {
        let coded_length = coded.iter().map(|piece| piece.len()).sum();
        let mut operations = ByteWriter::with_capacity(64 + 8 * self.operations.len());
        emit_operations(&self.operations, &mut operations);
        let operations = operations.finish();
        let mut head = ByteWriter::with_capacity(128);
        head.varint(self.raw_length as u64).bytes(&self.check);
        let coding = match self.literals {
            LiteralEncoding::Stored => CODING_STORED,
            LiteralEncoding::Zstd => CODING_ZSTD,
            LiteralEncoding::ZstdWithBases(_) => CODING_ZSTD_BASES,
            LiteralEncoding::WindowBegins => CODING_WINDOW_BEGINS,
            LiteralEncoding::WindowGoesOn => CODING_WINDOW_GOES_ON,
        };
        head.u8(coding).varint(self.literal_length as u64);
        match self.literals {
            LiteralEncoding::Stored => {}
            LiteralEncoding::Zstd
            | LiteralEncoding::ZstdWithBases(_)
            | LiteralEncoding::WindowBegins
            | LiteralEncoding::WindowGoesOn => {
                head.varint(coded_length as u64);
            }
        }
        emit_groups(&self.groups, &mut head);
        if let LiteralEncoding::ZstdWithBases(count) = self.literals {
            head.varint(count as u64);
        }
        let head = head.finish();
        let body = head.len() + coded_length + operations.len();
        let mut whole = ByteWriter::with_capacity(body + 9);
        whole.u8(VERSION).varint(body as u64).bytes(&head);
        for piece in coded {
            whole.bytes(piece);
        }
        whole.bytes(&operations);
        (whole.finish(), coded_length)
    }

    /// Bytes of the record that these begin, its head included; `None` when there are too few of
    /// them to tell.
    pub(crate) fn length(bytes: &[u8]) -> Result<Option<usize>, ReductionError> {
        let mut reader = ByteReader::new(bytes);
        let body = Self::body_length(&mut reader)?;
        Ok(body.map(|body| bytes.len() - reader.remaining() + body))
    }

    fn body_length(reader: &mut ByteReader<'_>) -> Result<Option<usize>, ReductionError> {
        match reader.u8() {
            Err(_) => return Ok(None),
            Ok(VERSION) => {}
            Ok(other) => return Err(ReductionError::PeerIncompatible(other)),
        }
        let Ok(length) = reader.varint() else {
            return Ok(None);
        };
        usize::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_RECORD_BODY)
            .ok_or(ReductionError::InvalidMessage(
                "a record is longer than allowed",
            ))
            .map(Some)
    }

    /// Takes one record off the front of `bytes`; `None` when it is not all there yet.
    pub(crate) fn parse(bytes: &mut Bytes) -> Result<Option<(Self, usize)>, ReductionError> {
        let mut reader = ByteReader::new(bytes);
        let Some(length) = Self::body_length(&mut reader)? else {
            return Ok(None);
        };
        if reader.remaining() < length {
            return Ok(None);
        }
        let head = bytes.len() - reader.remaining();
        bytes.advance(head);
        let body = bytes.split_to(length);
        Self::parse_body(&body).map(|record| Some((record, head + length)))
    }

    fn parse_body(body: &Bytes) -> Result<Self, ReductionError> {
        let mut reader = ByteReader::new(body);
        let raw_length = limited(&mut reader, MAX_RECORD_RAW)?;
        let check = reader.array()?;
        let coding = reader.u8()?;
        let literal_length = limited(&mut reader, raw_length.min(MAX_RECORD_LITERALS))?;
        let coded_length = match coding {
            CODING_STORED => literal_length,
            CODING_ZSTD | CODING_ZSTD_BASES | CODING_WINDOW_BEGINS | CODING_WINDOW_GOES_ON => {
                limited(&mut reader, literal_length)?
            }
            _ => {
                return Err(ReductionError::InvalidMessage(
                    "an unknown coding of literals",
                ));
            }
        };
        let groups = parse_groups(&mut reader)?;
        let sources = groups.iter().map(SourceGroup::len).sum();
        let literals = match coding {
            CODING_STORED => LiteralEncoding::Stored,
            CODING_ZSTD => LiteralEncoding::Zstd,
            CODING_WINDOW_BEGINS => LiteralEncoding::WindowBegins,
            CODING_WINDOW_GOES_ON => LiteralEncoding::WindowGoesOn,
            _ => LiteralEncoding::ZstdWithBases(limited(&mut reader, MAX_BASES.min(sources))?),
        };
        let start = body.len() - reader.remaining();
        reader.bytes(coded_length)?;
        let coded = body.slice(start..start + coded_length);
        let operations = parse_operations(&mut reader, sources)?;
        let mut literal_sum = 0;
        for operation in &operations {
            literal_sum += operation.literal_length().unwrap_or(0);
        }
        if literal_sum != literal_length {
            return Err(ReductionError::InvalidMessage(
                "operations and literals differ in length",
            ));
        }
        Ok(Self {
            raw_length,
            check,
            literal_length,
            literals,
            coded,
            groups,
            operations,
        })
    }
}

/// Writes the groups; each one's kind is the low bit of its count.
fn emit_groups(groups: &[SourceGroup], out: &mut ByteWriter) {
    out.varint(groups.len() as u64);
    for group in groups {
        match group {
            SourceGroup::Listed(keys) => {
                out.varint(2 * keys.len() as u64);
                for key in keys {
                    out.u64(*key);
                }
            }
            SourceGroup::Run {
                first,
                count,
                digest,
            } => {
                out.varint(2 * *count as u64 + 1)
                    .u64(*first)
                    .bytes(&digest.to_be_bytes());
            }
        }
    }
}

fn parse_groups(reader: &mut ByteReader<'_>) -> Result<Vec<SourceGroup>, ReductionError> {
    let mut room = MAX_RECORD_SOURCES;
    let groups = limited(reader, room)?;
    (0..groups)
        .map(|_| {
            let head = limited(reader, 2 * room + 1)?;
            let count = head / 2;
            room -= count;
            if head % 2 == 0 {
                let keys = (0..count).map(|_| reader.u64());
                return Ok(SourceGroup::Listed(keys.collect::<Result<_, _>>()?));
            }
            Ok(SourceGroup::Run {
                count,
                first: reader.u64()?,
                digest: u32::from_be_bytes(reader.array()?),
            })
        })
        .collect()
}

/// Writes operations; chunks that follow each other share one tag.
fn emit_operations(operations: &[RecordOperation], out: &mut ByteWriter) {
    let mut rest = operations;
    let mut cursor = SourceCursor::default();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match *first {
            RecordOperation::Chunk { source } => {
                let follows = |(index, next): &(usize, &RecordOperation)| {
                    **next
                        == RecordOperation::Chunk {
                            source: source + 1 + index,
                        }
                };
                let more = rest.iter().enumerate().take_while(follows).count();
                cursor.emit_seek(TAG_CHUNKS, SourceCursor { source, offset: 0 }, out);
                out.varint(1 + more as u64);
                cursor = SourceCursor {
                    source: source + 1 + more,
                    offset: 0,
                };
                rest = &rest[more..];
            }
            RecordOperation::Literal { length, end } => {
                out.u8(TAG_LITERAL | end_bit(end)).varint(length as u64);
            }
            RecordOperation::Copy {
                source,
                offset,
                extent,
                end,
            } => {
                let tag = match extent {
                    CopyExtent::Bytes(_) => TAG_COPY | end_bit(end),
                    CopyExtent::Rest => TAG_COPY_REST | end_bit(end),
                };
                cursor.emit_seek(tag, SourceCursor { source, offset }, out);
                if let CopyExtent::Bytes(length) = extent {
                    out.varint(length as u64);
                }
                cursor = SourceCursor { source, offset }.after(extent);
            }
            RecordOperation::Aside { kind, length, end } => {
                let tag = match kind {
                    SegmentKind::Payload => TAG_UNSTORED,
                    SegmentKind::Control => TAG_CONTROL,
                    SegmentKind::Frame => TAG_FRAME,
                };
                out.u8(tag | end_bit(end)).varint(length as u64);
            }
        }
    }
}

fn parse_operations(
    reader: &mut ByteReader<'_>,
    sources: usize,
) -> Result<Vec<RecordOperation>, ReductionError> {
    let mut operations = Vec::new();
    let mut cursor = SourceCursor::default();
    while !reader.is_empty() {
        let tag = reader.u8()?;
        let end = if tag & TAG_ENDS == 0 {
            OperationEnd::Continues
        } else {
            OperationEnd::Ends
        };
        if tag & !(TAG_KIND | TAG_ENDS | TAG_SEEK) != 0 {
            return Err(ReductionError::InvalidMessage("an unknown operation"));
        }
        if tag & TAG_SEEK != 0 {
            cursor = cursor.parse_seek(reader)?;
        }
        let aside =
            |kind, reader: &mut ByteReader<'_>| -> Result<RecordOperation, ReductionError> {
                let length = limited(reader, MAX_RECORD_LITERALS)?;
                Ok(RecordOperation::Aside { kind, length, end })
            };
        let operation = match tag & TAG_KIND {
            TAG_LITERAL => RecordOperation::Literal {
                length: limited(reader, MAX_RECORD_LITERALS)?,
                end,
            },
            TAG_CHUNKS => {
                let room = MAX_RECORD_OPERATIONS - operations.len();
                let count = limited(reader, room.min(sources.saturating_sub(cursor.source)))?;
                if cursor.offset != 0 {
                    return Err(ReductionError::InvalidMessage(
                        "a whole chunk from its middle",
                    ));
                }
                let chunks = cursor.source..cursor.source + count;
                cursor.source += count;
                operations.extend(chunks.map(|source| RecordOperation::Chunk { source }));
                continue;
            }
            kind @ (TAG_COPY | TAG_COPY_REST) => {
                let extent = match kind {
                    TAG_COPY => CopyExtent::Bytes(limited(reader, MAX_CHUNK)?),
                    _ => CopyExtent::Rest,
                };
                let SourceCursor { source, offset } = cursor;
                if source >= sources {
                    return Err(ReductionError::InvalidMessage("a copy from no source"));
                }
                cursor = cursor.after(extent);
                RecordOperation::Copy {
                    source,
                    offset,
                    extent,
                    end,
                }
            }
            TAG_UNSTORED => aside(SegmentKind::Payload, reader)?,
            TAG_CONTROL => aside(SegmentKind::Control, reader)?,
            TAG_FRAME => aside(SegmentKind::Frame, reader)?,
            _ => return Err(ReductionError::InvalidMessage("an unknown operation")),
        };
        operations.push(operation);
        if operations.len() > MAX_RECORD_OPERATIONS {
            return Err(ReductionError::InvalidMessage(
                "too many operations in a record",
            ));
        }
    }
    Ok(operations)
}

impl SourceCursor {
    /// Returns the position after a copy that begins here.
    fn after(self, extent: CopyExtent) -> Self {
        match extent {
            CopyExtent::Bytes(length) => Self {
                offset: self.offset + length,
                ..self
            },
            CopyExtent::Rest => Self {
                source: self.source + 1,
                offset: 0,
            },
        }
    }

    /// Writes an operation's tag, and how to come from here to where it begins.
    fn emit_seek(self, tag: u8, target: Self, out: &mut ByteWriter) {
        if self == target {
            out.u8(tag);
            return;
        }
        out.u8(tag | TAG_SEEK)
            .varint(zigzag(self.source, target.source));
        if self.source == target.source {
            out.varint(zigzag(self.offset, target.offset));
        } else {
            out.varint(target.offset as u64);
        }
    }

    fn parse_seek(self, reader: &mut ByteReader<'_>) -> Result<Self, ReductionError> {
        let source = stepped(self.source, reader.varint()?, MAX_RECORD_SOURCES)?;
        let offset = if source == self.source {
            stepped(self.offset, reader.varint()?, MAX_CHUNK)?
        } else {
            limited(reader, MAX_CHUNK)?
        };
        Ok(Self { source, offset })
    }
}

/// A step as an unsigned number: forwards even, backwards odd.
fn zigzag(from: usize, to: usize) -> u64 {
    if to >= from {
        2 * (to - from) as u64
    } else {
        2 * (from - to) as u64 - 1
    }
}

/// Takes a step that [`zigzag`] wrote, to `most` at most.
fn stepped(from: usize, step: u64, most: usize) -> Result<usize, ReductionError> {
    let distance = usize::try_from(step.div_ceil(2)).ok();
    let to = distance.and_then(|distance| match step % 2 {
        0 => from.checked_add(distance),
        _ => from.checked_sub(distance),
    });
    to.filter(|to| *to <= most)
        .ok_or(ReductionError::InvalidMessage("a step beyond the sources"))
}

fn end_bit(end: OperationEnd) -> u8 {
    match end {
        OperationEnd::Continues => 0,
        OperationEnd::Ends => TAG_ENDS,
    }
}

/// A variable-length integer that may not be above `most`.
pub(crate) fn limited(reader: &mut ByteReader<'_>, most: usize) -> Result<usize, ReductionError> {
    let value = reader.varint()?;
    usize::try_from(value)
        .ok()
        .filter(|value| *value <= most)
        .ok_or(ReductionError::InvalidMessage(
            "a length or count above its limit",
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(
        source: usize,
        offset: usize,
        extent: CopyExtent,
        end: OperationEnd,
    ) -> RecordOperation {
        RecordOperation::Copy {
            source,
            offset,
            extent,
            end,
        }
    }

    fn sample() -> ParsedRecord {
        ParsedRecord {
            raw_length: 100_000,
            check: [7; CHECK_LENGTH],
            literal_length: 40,
            literals: LiteralEncoding::ZstdWithBases(2),
            coded: Bytes::from_static(b"coded"),
            groups: vec![
                SourceGroup::Listed(vec![1, 2]),
                SourceGroup::Run {
                    first: 9,
                    count: 5,
                    digest: 77,
                },
            ],
            operations: vec![
                RecordOperation::Chunk { source: 0 },
                RecordOperation::Chunk { source: 1 },
                RecordOperation::Chunk { source: 1 },
                RecordOperation::Literal {
                    length: 10,
                    end: OperationEnd::Continues,
                },
                copy(2, 17, CopyExtent::Bytes(60_000), OperationEnd::Continues),
                copy(2, 60_010, CopyExtent::Rest, OperationEnd::Ends),
                copy(3, 0, CopyExtent::Bytes(3), OperationEnd::Continues),
                copy(3, 3, CopyExtent::Rest, OperationEnd::Ends),
                copy(0, 0, CopyExtent::Rest, OperationEnd::Ends),
                RecordOperation::Chunk { source: 6 },
                RecordOperation::Aside {
                    kind: SegmentKind::Frame,
                    length: 30,
                    end: OperationEnd::Ends,
                },
            ],
        }
    }

    #[test]
    fn emitted_records_parse_back_completely_or_fail() {
        let record = sample();
        let emitted = record.emit();
        for cut in 0..emitted.len() {
            let mut part = emitted.slice(..cut);
            assert_eq!(ParsedRecord::parse(&mut part), Ok(None), "{cut}");
            assert_eq!(part.len(), cut);
        }
        let mut bytes = emitted.clone();
        let length = emitted.len();
        assert_eq!(ParsedRecord::parse(&mut bytes), Ok(Some((record, length))));
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_run_costs_the_same_whatever_its_length() {
        let warm = |count: usize| ParsedRecord {
            raw_length: count * 5_000,
            literal_length: 0,
            literals: LiteralEncoding::Stored,
            coded: Bytes::new(),
            groups: vec![SourceGroup::Run {
                first: 1,
                count,
                digest: 2,
            }],
            operations: (0..count)
                .map(|source| RecordOperation::Chunk { source })
                .collect(),
            ..sample()
        };
        assert!(warm(100).emit().len() <= warm(4).emit().len() + 4);
        assert!(warm(100).emit().len() < 50);
    }

    #[test]
    fn limits_are_checked_before_anything_is_made() {
        let mut other = Bytes::from_static(&[9]);
        assert_eq!(
            ParsedRecord::parse(&mut other),
            Err(ReductionError::PeerIncompatible(9))
        );
        let mut long = Bytes::from_static(&[VERSION, 0xbf, 0xff, 0xff, 0xff]);
        assert!(ParsedRecord::parse(&mut long).is_err());
        let refused = |change: fn(&mut ParsedRecord)| {
            let mut record = sample();
            change(&mut record);
            assert!(ParsedRecord::parse(&mut record.emit()).is_err());
        };
        refused(|record| record.raw_length = MAX_RECORD_RAW + 1);
        refused(|record| record.literal_length = 41);
        refused(|record| record.literals = LiteralEncoding::ZstdWithBases(8));
        refused(|record| {
            record
                .operations
                .push(copy(7, 0, CopyExtent::Rest, OperationEnd::Ends))
        });
        refused(|record| record.operations.push(RecordOperation::Chunk { source: 7 }));
        refused(|record| {
            record.groups.push(SourceGroup::Run {
                first: 1,
                count: MAX_RECORD_SOURCES - 6,
                digest: 0,
            });
        });
        refused(|record| {
            let chunk = RecordOperation::Chunk { source: 1 };
            record.operations.extend(vec![chunk; MAX_RECORD_OPERATIONS]);
        });
    }
}
