//! The segments' format (`docs/formats/dictionary.md`): emit, parse, scan.
//!
//! ```text
//! segment: magic[8] version:u16 0:u16 number:u32 generation[16] check:u64 │ record record …
//! record:  mark:u8 kind:u8 0:u16 length:u32 body_check:u64 head_check:u64 │ body
//! ```
//! Both checks are XXH3-64; they find torn and damaged records, while a chunk's fingerprint
//! alone decides whether its bytes are used. A damaged body costs its record; a damaged head
//! costs the rest of the segment, for where the next record starts is then unknown.

use bytes::Bytes;
use vocab::{NodeId, Reader, Writer};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{MAX_CHUNK, MAX_TRACKED_PEERS};
use crate::fingerprint::{Fingerprint, Key};

const MAGIC: [u8; 8] = *b"TRNKLSEG";
const VERSION: u16 = 1;
const MARK: u8 = 0xd1;
/// Bytes of a segment's head.
pub(super) const SEGMENT_HEAD: usize = 40;
/// Bytes of a record's head.
pub(super) const RECORD_HEAD: usize = 24;
/// Bytes before a chunk's own in its record's body.
pub(super) const CHUNK_HEAD: usize = 48;
/// Keys in one record of knowledge at most.
pub(super) const MAX_KNOWLEDGE_KEYS: usize = 1024;
const MAX_BODY: usize = CHUNK_HEAD + MAX_CHUNK;

const KIND_CHUNK: u8 = 1;
const KIND_PEER: u8 = 2;
const KIND_HELD: u8 = 3;
const KIND_LACKING: u8 = 4;
const KIND_FORGET: u8 = 5;

/// What a record says. Slots are those of its own segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogRecord<'a> {
    Chunk {
        fingerprint: Fingerprint,
        peers: u64,
        previous: Key,
        bytes: &'a [u8],
    },
    /// From here on in this segment, `slot` means `node`.
    Peer { slot: u8, node: NodeId },
    /// The peer is known to hold these.
    Held { slot: u8, keys: Vec<Key> },
    /// The peer turned out not to hold these.
    Lacking { slot: u8, keys: Vec<Key> },
    /// Nothing is known of the peer any more.
    Forget { slot: u8 },
}

/// What stands at the front of some bytes of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// A record and its length, head included.
    Record(LogRecord<'a>, usize),
    /// A record of this length whose body is damaged or unknown.
    Damaged(usize),
    /// More bytes are needed to tell.
    Short,
    /// No record starts here: the rest of the segment is lost.
    Lost,
}

/// A segment's head.
pub(super) fn emit_segment_head(number: u32, generation: &[u8; 16]) -> Bytes {
    let mut out = Writer::with_capacity(SEGMENT_HEAD);
    out.bytes(&MAGIC).u16(VERSION).u16(0);
    out.u32(number).bytes(generation);
    let head = out.finish();
    let mut out = Writer::with_capacity(SEGMENT_HEAD);
    out.bytes(&head).u64(xxh3_64(&head));
    out.finish()
}

/// The generation that a segment's head names, if it is a sound head of this number and version.
pub(super) fn parse_segment_head(bytes: &[u8], number: u32) -> Option<[u8; 16]> {
    let mut reader = Reader::new(bytes);
    let head = reader.bytes(SEGMENT_HEAD - 8).ok()?;
    let check = reader.u64().ok()?;
    let mut fields = Reader::new(head);
    let magic: [u8; 8] = fields.array().ok()?;
    let version = fields.u16().ok()?;
    fields.u16().ok()?;
    let named = fields.u32().ok()?;
    let sound = magic == MAGIC && version == VERSION && named == number;
    let generation = fields.array().ok()?;
    (sound && check == xxh3_64(head)).then_some(generation)
}

impl LogRecord<'_> {
    /// Appends the record's bytes.
    pub(super) fn emit(&self, out: &mut Writer) {
        let mut body = Writer::new();
        let kind = match self {
            LogRecord::Chunk {
                fingerprint,
                peers,
                previous,
                bytes,
            } => {
                body = Writer::with_capacity(CHUNK_HEAD + bytes.len());
                body.bytes(&fingerprint.0)
                    .u64(*peers)
                    .u64(*previous)
                    .bytes(bytes);
                KIND_CHUNK
            }
            LogRecord::Peer { slot, node } => {
                body.u8(*slot).bytes(&node.0);
                KIND_PEER
            }
            LogRecord::Held { slot, keys } => {
                emit_keys(&mut body, *slot, keys);
                KIND_HELD
            }
            LogRecord::Lacking { slot, keys } => {
                emit_keys(&mut body, *slot, keys);
                KIND_LACKING
            }
            LogRecord::Forget { slot } => {
                body.u8(*slot);
                KIND_FORGET
            }
        };
        let body = body.finish();
        let mut head = Writer::with_capacity(RECORD_HEAD);
        head.u8(MARK).u8(kind).u16(0).u32(body.len() as u32);
        head.u64(xxh3_64(&body));
        let head = head.finish();
        out.bytes(&head).u64(xxh3_64(&head)).bytes(&body);
    }
}

fn emit_keys(body: &mut Writer, slot: u8, keys: &[Key]) {
    body.u8(slot);
    for key in keys {
        body.u64(*key);
    }
}

/// Reads what stands at the front of `bytes`.
pub(super) fn step(bytes: &[u8]) -> Step<'_> {
    let mut reader = Reader::new(bytes);
    let Ok(head) = reader.bytes(RECORD_HEAD - 8) else {
        return Step::Short;
    };
    let Ok(head_check) = reader.u64() else {
        return Step::Short;
    };
    let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
    if head[0] != MARK || head_check != xxh3_64(head) || length > MAX_BODY {
        return Step::Lost;
    }
    let Ok(body) = reader.bytes(length) else {
        return Step::Short;
    };
    let whole = RECORD_HEAD + length;
    let sound = xxh3_64(body).to_be_bytes() == head[8..16];
    match parse_body(head[1], body).filter(|_| sound) {
        Some(record) => Step::Record(record, whole),
        None => Step::Damaged(whole),
    }
}

fn parse_body(kind: u8, body: &[u8]) -> Option<LogRecord<'_>> {
    let mut reader = Reader::new(body);
    let record = match kind {
        KIND_CHUNK => {
            let fingerprint = Fingerprint(reader.array().ok()?);
            let peers = reader.u64().ok()?;
            let previous = reader.u64().ok()?;
            let bytes = reader.bytes(reader.remaining()).ok()?;
            if bytes.is_empty() {
                return None;
            }
            LogRecord::Chunk {
                fingerprint,
                peers,
                previous,
                bytes,
            }
        }
        KIND_PEER => LogRecord::Peer {
            slot: parse_slot(&mut reader)?,
            node: NodeId(reader.array().ok()?),
        },
        KIND_HELD => LogRecord::Held {
            slot: parse_slot(&mut reader)?,
            keys: parse_keys(&mut reader)?,
        },
        KIND_LACKING => LogRecord::Lacking {
            slot: parse_slot(&mut reader)?,
            keys: parse_keys(&mut reader)?,
        },
        KIND_FORGET => LogRecord::Forget {
            slot: parse_slot(&mut reader)?,
        },
        _ => return None,
    };
    reader.is_empty().then_some(record)
}

fn parse_slot(reader: &mut Reader<'_>) -> Option<u8> {
    let slot = reader.u8().ok()?;
    (usize::from(slot) < MAX_TRACKED_PEERS).then_some(slot)
}

fn parse_keys(reader: &mut Reader<'_>) -> Option<Vec<Key>> {
    if reader.remaining() > 8 * MAX_KNOWLEDGE_KEYS {
        return None;
    }
    let mut keys = Vec::with_capacity(reader.remaining() / 8);
    while !reader.is_empty() {
        keys.push(reader.u64().ok()?);
    }
    Some(keys)
}

/// What a segment file holds, as recovery sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentScan {
    /// Whether the head is sound; nothing else is read when it is not.
    pub is_segment: bool,
    /// Chunks whose bytes have the fingerprint that their record says.
    pub chunks: u64,
    /// Sound records of other kinds.
    pub other_records: u64,
    /// Records with a damaged body, and chunks with another fingerprint.
    pub damaged_records: u64,
    /// Bytes from the start up to where no further record could be found.
    pub valid_bytes: u64,
}

/// Reads a whole segment file: for inspection, and as one entry for fuzzing the format.
#[must_use]
pub fn scan_segment(number: u32, bytes: &[u8]) -> SegmentScan {
    let mut scan = SegmentScan::default();
    if parse_segment_head(bytes, number).is_none() {
        return scan;
    }
    scan.is_segment = true;
    let mut at = SEGMENT_HEAD;
    loop {
        let length = match step(&bytes[at..]) {
            Step::Record(
                LogRecord::Chunk {
                    fingerprint, bytes, ..
                },
                length,
            ) => {
                if Fingerprint::of(bytes) == fingerprint {
                    scan.chunks += 1;
                } else {
                    scan.damaged_records += 1;
                }
                length
            }
            Step::Record(_, length) => {
                scan.other_records += 1;
                length
            }
            Step::Damaged(length) => {
                scan.damaged_records += 1;
                length
            }
            Step::Short | Step::Lost => break,
        };
        at += length;
    }
    scan.valid_bytes = at as u64;
    scan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<LogRecord<'static>> {
        vec![
            LogRecord::Peer {
                slot: 3,
                node: NodeId([9; 32]),
            },
            LogRecord::Chunk {
                fingerprint: Fingerprint::of(b"some bytes"),
                peers: 8,
                previous: 77,
                bytes: b"some bytes",
            },
            LogRecord::Held {
                slot: 3,
                keys: vec![1, 2, u64::MAX],
            },
            LogRecord::Lacking {
                slot: 0,
                keys: vec![5],
            },
            LogRecord::Forget { slot: 63 },
        ]
    }

    #[test]
    fn records_read_back_as_written() {
        for record in sample() {
            let mut out = Writer::new();
            record.emit(&mut out);
            let bytes = out.finish();
            for cut in 0..bytes.len() {
                assert_eq!(step(&bytes[..cut]), Step::Short);
            }
            assert_eq!(step(&bytes), Step::Record(record, bytes.len()));
        }
    }

    #[test]
    fn a_damaged_byte_is_found_wherever_it_is() {
        let mut out = Writer::new();
        out.bytes(&emit_segment_head(4, &[1; 16]));
        for record in sample() {
            record.emit(&mut out);
        }
        let sound = out.finish();
        let whole = scan_segment(4, &sound);
        assert_eq!((whole.chunks, whole.other_records), (1, 4));
        assert_eq!(whole.valid_bytes, sound.len() as u64);
        assert!(!scan_segment(5, &sound).is_segment);
        for at in 0..sound.len() {
            let mut damaged = sound.to_vec();
            damaged[at] ^= 0x10;
            let scan = scan_segment(4, &damaged);
            assert!(scan != whole, "byte {at}");
        }
    }
}
