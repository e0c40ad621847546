//! The segments' format (`docs/formats/dictionary.md`): emit, parse, scan.
//!
//! ```text
//! segment: head │ record record … │ contents trailer
//! head:    magic[8] version:u16 0:u16 number:u32 generation[16] salt[16] tag[16]
//! record:  sealed{kind:u8 0[3] length:u32} │ sealed{body}
//! ```
//! Seals find torn and damaged records and keep the rest from who reads the disk, lengths of
//! records included. A damaged body costs its record; a damaged head costs the rest of the
//! segment, for where the next record starts is then unknown, unless the contents say so
//! (`contents.rs`).

use bytes::{BufMut, BytesMut};
use vocab::{ByteReader, NodeId};

use super::seal::{DictionaryKey, SealKey, SealedPart, SegmentName, TAG};
use crate::config::{MAX_CHUNK, MAX_TRACKED_PEERS};
use crate::fingerprint::{ChunkKey, Fingerprint};

const MAGIC: [u8; 8] = *b"TRNKLSEG";
const VERSION: u16 = 2;
/// Bytes of a segment's head.
pub(super) const SEGMENT_HEAD: usize = 64;
/// Bytes of a record's head.
const RECORD_HEAD: usize = 8 + TAG;
/// Bytes of a record that are not its body.
pub(super) const RECORD_OVERHEAD: usize = RECORD_HEAD + TAG;
/// Bytes before a chunk's own in its record's body.
pub(super) const CHUNK_HEAD: usize = 48;
/// Keys in one record of knowledge at most.
pub(super) const MAX_KNOWLEDGE_KEYS: usize = 1024;
const MAX_BODY: usize = CHUNK_HEAD + MAX_CHUNK;

const KIND_CHUNK: u8 = 1;
const KIND_PEER: u8 = 2;
pub(super) const KIND_HELD: u8 = 3;
pub(super) const KIND_LACKING: u8 = 4;
pub(super) const KIND_FORGET: u8 = 5;

/// Record of the log. Slots are those of its own segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogRecord<'a> {
    Chunk {
        fingerprint: Fingerprint,
        peers: u64,
        previous: ChunkKey,
        bytes: &'a [u8],
    },
    /// Assigns `slot` to `node` from here on in this segment, with the generation of its
    /// dictionary; zeros if unknown.
    Peer {
        slot: u8,
        node: NodeId,
        generation: [u8; 16],
    },
    /// The peer is known to hold these.
    Held { slot: u8, keys: Vec<ChunkKey> },
    /// The peer turned out not to hold these.
    Lacking { slot: u8, keys: Vec<ChunkKey> },
    /// The peer's holdings are forgotten.
    Forget { slot: u8 },
}

/// Result of parsing the front of a segment's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScanStep<'a> {
    /// A record and its length, head included.
    Record(LogRecord<'a>, usize),
    /// A record of this length whose body is damaged or unknown.
    Damaged(usize),
    /// More bytes are needed to tell.
    Short,
    /// No record starts here: the rest of the segment is lost, or its contents follow.
    Lost,
}

/// Result of checking the first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderKind {
    /// The head of the segment of this name.
    Sound(SegmentName),
    /// A segment in another version of the format.
    OtherVersion,
    /// Looks like a head, and was not written under this key (or was damaged).
    OtherKey,
    /// Foreign file.
    Foreign,
}

/// A segment's head.
pub(super) fn emit_segment_head(key: &DictionaryKey, name: &SegmentName) -> Vec<u8> {
    let mut head = Vec::with_capacity(SEGMENT_HEAD);
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&VERSION.to_be_bytes());
    head.extend_from_slice(&[0, 0]);
    head.extend_from_slice(&name.bytes());
    let tag = key.tag(&head);
    head.extend_from_slice(&tag);
    head
}

/// Says what a file begins with whose name has this number.
pub(super) fn parse_segment_head(key: &DictionaryKey, bytes: &[u8], number: u32) -> HeaderKind {
    let mut reader = ByteReader::new(bytes);
    let Ok((magic, version)) = reader
        .array()
        .and_then(|magic: [u8; 8]| Ok((magic, reader.u16()?)))
    else {
        return HeaderKind::Foreign;
    };
    if magic != MAGIC {
        return HeaderKind::Foreign;
    }
    if version != VERSION {
        return HeaderKind::OtherVersion;
    }
    let fields = reader
        .u16()
        .and_then(|_| Ok((reader.u32()?, reader.array()?, reader.array()?)));
    let Ok((named, generation, salt)) = fields else {
        return HeaderKind::Foreign;
    };
    let tag: Result<[u8; TAG], _> = reader.array();
    if tag != Ok(key.tag(&bytes[..SEGMENT_HEAD - TAG])) {
        return HeaderKind::OtherKey;
    }
    if named != number {
        return HeaderKind::Foreign;
    }
    HeaderKind::Sound(SegmentName {
        number,
        generation,
        salt,
    })
}

impl LogRecord<'_> {
    /// Appends the record's bytes, sealed for this offset.
    pub(super) fn emit(&self, seal: &SealKey, offset: u64, out: &mut BytesMut) {
        let start = out.len();
        out.extend_from_slice(&[0; RECORD_HEAD]);
        let kind = self.emit_body(out);
        let body = start + RECORD_HEAD;
        let length = (out.len() - body) as u32;
        let tag = seal.seal(SealedPart::Body, offset, &mut out[body..]);
        out.extend_from_slice(&tag);
        let mut head = [kind, 0, 0, 0, 0, 0, 0, 0];
        head[4..].copy_from_slice(&length.to_be_bytes());
        let tag = seal.seal(SealedPart::Head, offset, &mut head);
        out[start..start + 8].copy_from_slice(&head);
        out[start + 8..body].copy_from_slice(&tag);
    }

    fn emit_body(&self, out: &mut BytesMut) -> u8 {
        match self {
            LogRecord::Chunk {
                fingerprint,
                peers,
                previous,
                bytes,
            } => {
                out.extend_from_slice(&fingerprint.0);
                out.extend_from_slice(&peers.to_be_bytes());
                out.extend_from_slice(&previous.to_be_bytes());
                out.extend_from_slice(bytes);
                KIND_CHUNK
            }
            LogRecord::Peer {
                slot,
                node,
                generation,
            } => {
                out.put_u8(*slot);
                out.extend_from_slice(&node.0);
                out.extend_from_slice(generation);
                KIND_PEER
            }
            LogRecord::Held { slot, keys } => {
                emit_keys(out, *slot, keys);
                KIND_HELD
            }
            LogRecord::Lacking { slot, keys } => {
                emit_keys(out, *slot, keys);
                KIND_LACKING
            }
            LogRecord::Forget { slot } => {
                out.put_u8(*slot);
                KIND_FORGET
            }
        }
    }
}

fn emit_keys(out: &mut BytesMut, slot: u8, keys: &[ChunkKey]) {
    out.put_u8(slot);
    for key in keys {
        out.extend_from_slice(&key.to_be_bytes());
    }
}

/// Parses the front of `bytes`, which are at `offset` in their segment. Sealed bytes are opened in
/// `opened`.
pub(super) fn step<'a>(
    seal: &SealKey,
    offset: u64,
    bytes: &[u8],
    opened: &'a mut Vec<u8>,
) -> ScanStep<'a> {
    let Some(head) = bytes.first_chunk::<RECORD_HEAD>() else {
        return ScanStep::Short;
    };
    let mut head = *head;
    let Some(head) = seal.open(SealedPart::Head, offset, &mut head) else {
        return ScanStep::Lost;
    };
    let kind = head[0];
    let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
    if length > MAX_BODY {
        return ScanStep::Lost;
    }
    let whole = RECORD_OVERHEAD + length;
    let Some(body) = bytes.get(RECORD_HEAD..whole) else {
        return ScanStep::Short;
    };
    opened.clear();
    opened.extend_from_slice(body);
    let Some(body) = seal.open(SealedPart::Body, offset, opened) else {
        return ScanStep::Damaged(whole);
    };
    match parse_body(kind, body) {
        Some(record) => ScanStep::Record(record, whole),
        None => ScanStep::Damaged(whole),
    }
}

fn parse_body(kind: u8, body: &[u8]) -> Option<LogRecord<'_>> {
    let mut reader = ByteReader::new(body);
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
            generation: reader.array().ok()?,
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

fn parse_slot(reader: &mut ByteReader<'_>) -> Option<u8> {
    let slot = reader.u8().ok()?;
    (usize::from(slot) < MAX_TRACKED_PEERS).then_some(slot)
}

fn parse_keys(reader: &mut ByteReader<'_>) -> Option<Vec<ChunkKey>> {
    if reader.remaining() > 8 * MAX_KNOWLEDGE_KEYS {
        return None;
    }
    let mut keys = Vec::with_capacity(reader.remaining() / 8);
    while !reader.is_empty() {
        keys.push(reader.u64().ok()?);
    }
    Some(keys)
}

/// Contents of a segment file as recovery reads it without the contents at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentScan {
    /// True if the head is valid. Otherwise nothing else is read.
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
pub fn scan_segment(key: &DictionaryKey, number: u32, bytes: &[u8]) -> SegmentScan {
    let mut scan = SegmentScan::default();
    let HeaderKind::Sound(name) = parse_segment_head(key, bytes, number) else {
        return scan;
    };
    scan.is_segment = true;
    let seal = key.records(&name);
    let mut opened = Vec::new();
    let mut at = SEGMENT_HEAD;
    loop {
        let length = match step(&seal, at as u64, &bytes[at..], &mut opened) {
            ScanStep::Record(
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
            ScanStep::Record(_, length) => {
                scan.other_records += 1;
                length
            }
            ScanStep::Damaged(length) => {
                scan.damaged_records += 1;
                length
            }
            ScanStep::Short | ScanStep::Lost => break,
        };
        at += length;
    }
    scan.valid_bytes = at as u64;
    scan
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: SegmentName = SegmentName {
        number: 4,
        generation: [1; 16],
        salt: [2; 16],
    };

    fn key() -> DictionaryKey {
        DictionaryKey::new([5; 32])
    }

    fn sample() -> Vec<LogRecord<'static>> {
        vec![
            LogRecord::Peer {
                slot: 3,
                node: NodeId([9; 32]),
                generation: [8; 16],
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
    fn records_read_back_as_written_and_nowhere_else() {
        let seal = key().records(&NAME);
        let mut opened = Vec::new();
        for record in sample() {
            let mut bytes = BytesMut::new();
            record.emit(&seal, 640, &mut bytes);
            for cut in 0..bytes.len() {
                assert_eq!(
                    step(&seal, 640, &bytes[..cut], &mut opened),
                    ScanStep::Short
                );
            }
            let found = step(&seal, 640, &bytes, &mut opened);
            assert_eq!(found, ScanStep::Record(record, bytes.len()));
            assert_eq!(step(&seal, 641, &bytes, &mut opened), ScanStep::Lost);
        }
    }

    #[test]
    fn a_damaged_byte_is_found_wherever_it_is() {
        let seal = key().records(&NAME);
        let mut sound = BytesMut::from(&emit_segment_head(&key(), &NAME)[..]);
        assert_eq!(sound.len(), SEGMENT_HEAD);
        for record in sample() {
            let offset = sound.len() as u64;
            record.emit(&seal, offset, &mut sound);
        }
        assert!(!sound.windows(10).any(|window| window == b"some bytes"));
        let whole = scan_segment(&key(), 4, &sound);
        assert_eq!((whole.chunks, whole.other_records), (1, 4));
        assert_eq!(whole.valid_bytes, sound.len() as u64);
        assert!(!scan_segment(&key(), 5, &sound).is_segment);
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x10;
            let scan = scan_segment(&key(), 4, &damaged);
            assert!(scan != whole, "byte {at}");
        }
    }

    #[test]
    fn foreign_files_are_distinguished() {
        let head = emit_segment_head(&key(), &NAME);
        assert_eq!(
            parse_segment_head(&key(), &head, 4),
            HeaderKind::Sound(NAME)
        );
        assert_eq!(parse_segment_head(&key(), &head, 5), HeaderKind::Foreign);
        let other = DictionaryKey::new([6; 32]);
        assert_eq!(parse_segment_head(&other, &head, 4), HeaderKind::OtherKey);
        let mut old = head.clone();
        old[9] = 1;
        assert_eq!(
            parse_segment_head(&key(), &old, 4),
            HeaderKind::OtherVersion
        );
        assert_eq!(
            parse_segment_head(&key(), &head[..63], 4),
            HeaderKind::OtherKey
        );
        assert_eq!(
            parse_segment_head(&key(), &head[..9], 4),
            HeaderKind::Foreign
        );
    }
}
