//! The encoded stream's records (`docs/formats/reduced-stream.md`): their meaning, emit, parse.
//!
//! ```text
//! version=1  body_length  ┌ raw_length  check[16]  coding  literal_length ─┐
//!    u8        varint     │ (bases: count, key[8]…)  (coded_length)        │
//!                         │ coded literals                                 │
//!                         └ operation, operation, … to the end ────────────┘
//! ```
//! A record says how to make `raw_length` bytes: each operation appends literal bytes or bytes
//! of chunks that both sides hold. It is delivered only when the result's BLAKE3 hash begins
//! with `check`. Lengths are limited before anything is allocated.

use bytes::{Buf, Bytes};
use vocab::{Reader, SegmentKind, Writer};

use crate::config::{MAX_BASES, MAX_CHUNK, MAX_RECORD_BODY, MAX_RECORD_OPERATIONS, MAX_RECORD_RAW};
use crate::error::Error;
use crate::fingerprint::Key;

/// The version that this node writes, and the only one that it reads so far.
pub(crate) const VERSION: u8 = 1;
/// Bytes of a record's check.
pub(crate) const CHECK_LENGTH: usize = 16;

const CODING_STORED: u8 = 0;
const CODING_ZSTD: u8 = 1;
const CODING_ZSTD_BASES: u8 = 2;

const TAG_LITERAL: u8 = 0;
const TAG_CHUNKS: u8 = 1;
const TAG_RANGE: u8 = 2;
const TAG_UNSTORED: u8 = 3;
const TAG_CONTROL: u8 = 4;
const TAG_FRAME: u8 = 5;
const TAG_KIND: u8 = 0x07;
const TAG_ENDS: u8 = 0x08;

/// Whether a chunk or a frame is whole after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Continues,
    Ends,
}

/// One step in making a record's raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Payload from the literals.
    Literal { length: usize, end: End },
    /// Payload: one whole chunk. No other chunk may be under way.
    Chunk { key: Key },
    /// Payload: a piece of a chunk.
    Range {
        key: Key,
        offset: usize,
        length: usize,
        end: End,
    },
    /// Bytes from the literals that are no part of any chunk: control, frames, and payload that
    /// may not be stored.
    Aside {
        kind: SegmentKind,
        length: usize,
        end: End,
    },
}

/// How the literals are coded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Literals {
    Stored,
    Zstd,
    ZstdWithBases(Vec<Key>),
}

/// A record's meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) raw_length: usize,
    pub(crate) check: [u8; CHECK_LENGTH],
    pub(crate) literal_length: usize,
    pub(crate) literals: Literals,
    pub(crate) coded: Bytes,
    pub(crate) operations: Vec<Operation>,
}

/// The check over a record's raw bytes.
pub(crate) fn check_of(raw: &[u8]) -> [u8; CHECK_LENGTH] {
    let mut check = [0; CHECK_LENGTH];
    check.copy_from_slice(&blake3::hash(raw).as_bytes()[..CHECK_LENGTH]);
    check
}

impl Record {
    /// The record's bytes.
    pub(crate) fn emit(&self) -> Bytes {
        let mut operations = Writer::with_capacity(16 * self.operations.len());
        emit_operations(&self.operations, &mut operations);
        let operations = operations.finish();
        let mut head = Writer::with_capacity(64);
        head.varint(self.raw_length as u64).bytes(&self.check);
        match &self.literals {
            Literals::Stored => {
                head.u8(CODING_STORED).varint(self.literal_length as u64);
            }
            Literals::Zstd => {
                head.u8(CODING_ZSTD)
                    .varint(self.literal_length as u64)
                    .varint(self.coded.len() as u64);
            }
            Literals::ZstdWithBases(bases) => {
                head.u8(CODING_ZSTD_BASES)
                    .varint(self.literal_length as u64)
                    .varint(bases.len() as u64);
                for key in bases {
                    head.u64(*key);
                }
                head.varint(self.coded.len() as u64);
            }
        }
        let head = head.finish();
        let body = head.len() + self.coded.len() + operations.len();
        let mut whole = Writer::with_capacity(body + 9);
        whole
            .u8(VERSION)
            .varint(body as u64)
            .bytes(&head)
            .bytes(&self.coded)
            .bytes(&operations);
        whole.finish()
    }

    /// Takes one record off the front of `bytes`; `None` when it is not all there yet.
    pub(crate) fn parse(bytes: &mut Bytes) -> Result<Option<(Self, usize)>, Error> {
        let mut reader = Reader::new(bytes);
        match reader.u8() {
            Err(_) => return Ok(None),
            Ok(VERSION) => {}
            Ok(other) => return Err(Error::PeerIncompatible(other)),
        }
        let Ok(length) = reader.varint() else {
            return Ok(None);
        };
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_RECORD_BODY)
            .ok_or(Error::InvalidMessage("a record is longer than allowed"))?;
        if reader.remaining() < length {
            return Ok(None);
        }
        let head = bytes.len() - reader.remaining();
        bytes.advance(head);
        let body = bytes.split_to(length);
        Self::parse_body(&body).map(|record| Some((record, head + length)))
    }

    fn parse_body(body: &Bytes) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let raw_length = limited(&mut reader, MAX_RECORD_RAW)?;
        let check = reader.array()?;
        let coding = reader.u8()?;
        let literal_length = limited(&mut reader, raw_length)?;
        let literals = match coding {
            CODING_STORED => Literals::Stored,
            CODING_ZSTD => Literals::Zstd,
            CODING_ZSTD_BASES => {
                let count = limited(&mut reader, MAX_BASES)?;
                let keys = (0..count).map(|_| reader.u64());
                Literals::ZstdWithBases(keys.collect::<Result<_, _>>()?)
            }
            _ => return Err(Error::InvalidMessage("an unknown coding of literals")),
        };
        let coded_length = match literals {
            Literals::Stored => literal_length,
            Literals::Zstd | Literals::ZstdWithBases(_) => limited(&mut reader, literal_length)?,
        };
        let start = body.len() - reader.remaining();
        reader.bytes(coded_length)?;
        let coded = body.slice(start..start + coded_length);
        let operations = parse_operations(&mut reader)?;
        let mut literal_sum = 0;
        for operation in &operations {
            if let Operation::Literal { length, .. } | Operation::Aside { length, .. } = operation {
                literal_sum += length;
            }
        }
        if literal_sum != literal_length {
            return Err(Error::InvalidMessage(
                "operations and literals differ in length",
            ));
        }
        Ok(Self {
            raw_length,
            check,
            literal_length,
            literals,
            coded,
            operations,
        })
    }
}

/// Writes operations; chunks that follow each other share one tag.
fn emit_operations(operations: &[Operation], out: &mut Writer) {
    let mut rest = operations;
    while let Some((first, after)) = rest.split_first() {
        let chunks = rest
            .iter()
            .map_while(|operation| match operation {
                Operation::Chunk { key } => Some(*key),
                Operation::Literal { .. } | Operation::Range { .. } | Operation::Aside { .. } => {
                    None
                }
            })
            .collect::<Vec<_>>();
        match *first {
            Operation::Chunk { .. } => {
                out.u8(TAG_CHUNKS).varint(chunks.len() as u64);
                for key in &chunks {
                    out.u64(*key);
                }
                rest = &rest[chunks.len()..];
                continue;
            }
            Operation::Literal { length, end } => {
                out.u8(TAG_LITERAL | end_bit(end)).varint(length as u64);
            }
            Operation::Range {
                key,
                offset,
                length,
                end,
            } => {
                out.u8(TAG_RANGE | end_bit(end))
                    .u64(key)
                    .varint(offset as u64)
                    .varint(length as u64);
            }
            Operation::Aside { kind, length, end } => {
                let tag = match kind {
                    SegmentKind::Payload => TAG_UNSTORED,
                    SegmentKind::Control => TAG_CONTROL,
                    SegmentKind::Frame => TAG_FRAME,
                };
                out.u8(tag | end_bit(end)).varint(length as u64);
            }
        }
        rest = after;
    }
}

fn parse_operations(reader: &mut Reader<'_>) -> Result<Vec<Operation>, Error> {
    let mut operations = Vec::new();
    while !reader.is_empty() {
        let tag = reader.u8()?;
        let end = if tag & TAG_ENDS == 0 {
            End::Continues
        } else {
            End::Ends
        };
        if tag & !(TAG_KIND | TAG_ENDS) != 0 {
            return Err(Error::InvalidMessage("an unknown operation"));
        }
        let aside = |kind, reader: &mut Reader<'_>| -> Result<Operation, Error> {
            let length = limited(reader, MAX_RECORD_RAW)?;
            Ok(Operation::Aside { kind, length, end })
        };
        let operation = match tag & TAG_KIND {
            TAG_LITERAL => Operation::Literal {
                length: limited(reader, MAX_RECORD_RAW)?,
                end,
            },
            TAG_CHUNKS => {
                let count = limited(reader, MAX_RECORD_OPERATIONS - operations.len())?;
                for _ in 0..count {
                    operations.push(Operation::Chunk { key: reader.u64()? });
                }
                continue;
            }
            TAG_RANGE => Operation::Range {
                key: reader.u64()?,
                offset: limited(reader, MAX_CHUNK)?,
                length: limited(reader, MAX_CHUNK)?,
                end,
            },
            TAG_UNSTORED => aside(SegmentKind::Payload, reader)?,
            TAG_CONTROL => aside(SegmentKind::Control, reader)?,
            TAG_FRAME => aside(SegmentKind::Frame, reader)?,
            _ => return Err(Error::InvalidMessage("an unknown operation")),
        };
        operations.push(operation);
        if operations.len() > MAX_RECORD_OPERATIONS {
            return Err(Error::InvalidMessage("too many operations in a record"));
        }
    }
    Ok(operations)
}

fn end_bit(end: End) -> u8 {
    match end {
        End::Continues => 0,
        End::Ends => TAG_ENDS,
    }
}

/// A variable-length integer that may not be above `most`.
pub(crate) fn limited(reader: &mut Reader<'_>, most: usize) -> Result<usize, Error> {
    let value = reader.varint()?;
    usize::try_from(value)
        .ok()
        .filter(|value| *value <= most)
        .ok_or(Error::InvalidMessage("a length or count above its limit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        Record {
            raw_length: 100_000,
            check: [7; CHECK_LENGTH],
            literal_length: 40,
            literals: Literals::ZstdWithBases(vec![1, 2]),
            coded: Bytes::from_static(b"coded"),
            operations: vec![
                Operation::Chunk { key: 1 },
                Operation::Chunk { key: 2 },
                Operation::Literal {
                    length: 10,
                    end: End::Continues,
                },
                Operation::Range {
                    key: 3,
                    offset: 17,
                    length: 60_000,
                    end: End::Ends,
                },
                Operation::Aside {
                    kind: SegmentKind::Frame,
                    length: 30,
                    end: End::Ends,
                },
            ],
        }
    }

    #[test]
    fn what_is_emitted_parses_back_whole_or_not_at_all() {
        let record = sample();
        let emitted = record.emit();
        for cut in 0..emitted.len() {
            let mut part = emitted.slice(..cut);
            assert_eq!(Record::parse(&mut part), Ok(None), "{cut}");
            assert_eq!(part.len(), cut);
        }
        let mut bytes = emitted.clone();
        let length = emitted.len();
        assert_eq!(Record::parse(&mut bytes), Ok(Some((record, length))));
        assert!(bytes.is_empty());
    }

    #[test]
    fn limits_are_checked_before_anything_is_made() {
        let mut other = Bytes::from_static(&[9]);
        assert_eq!(Record::parse(&mut other), Err(Error::PeerIncompatible(9)));
        let mut long = Bytes::from_static(&[1, 0xbf, 0xff, 0xff, 0xff]);
        assert!(Record::parse(&mut long).is_err());
        let mut record = sample();
        record.raw_length = MAX_RECORD_RAW + 1;
        assert!(Record::parse(&mut record.emit()).is_err());
        let mut record = sample();
        record.literal_length = 41;
        assert!(Record::parse(&mut record.emit()).is_err());
    }
}
