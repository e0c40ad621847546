//! Contents at the end of a segment, so that a start reads half a percent of the disk instead of
//! all of it (`docs/formats/dictionary.md`).
//!
//! ```text
//! records … │ sealed{peers, chunks, facts} │ trailer
//! trailer:    magic[8] length:u32 number:u32 generation[16] salt[16] contents salt[16] tag[16]
//! ```
//! The contents are written when nothing more will be appended to the segment, and are accepted
//! only as a whole. A segment without contents is read from its start, and the contents are then
//! written.

use vocab::{ByteReader, NodeId};

use super::seal::{DictionaryKey, SealedPart, SegmentName, TAG};
use super::segment::{
    KIND_FORGET, KIND_HELD, KIND_LACKING, LogRecord, MAX_KNOWLEDGE_KEYS, SEGMENT_HEAD,
};
use crate::config::{MAX_DISK_APPEND, MAX_TRACKED_PEERS};
use crate::fingerprint::ChunkKey;

const MAGIC: [u8; 8] = *b"TRNKLIDX";
/// Bytes of a trailer.
pub(super) const TRAILER: usize = 8 + 4 + 4 + 16 + 16 + 16 + TAG;
/// Bytes for each chunk.
pub(super) const CHUNK_LINE: usize = 40;
/// Bytes for each peer.
const PEER_LINE: usize = 49;
/// Bytes of everything but chunks and facts at most.
pub(super) const CONTENTS_FRAME: usize = 2 + MAX_TRACKED_PEERS * PEER_LINE + 4 + TAG + TRAILER;
/// Bytes of chunks and facts at which a segment ends; what one more append adds still fits into
/// [`MAX_DISK_APPEND`].
pub(super) const FULL_CONTENTS: usize = MAX_DISK_APPEND / 2;

/// A chunk of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkLine {
    pub(super) key: ChunkKey,
    pub(super) check: u64,
    pub(super) previous: ChunkKey,
    pub(super) peers: u64,
    pub(super) offset: u32,
    pub(super) length: usize,
}

/// A peer that the segment's slots mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerLine {
    pub(super) slot: u8,
    pub(super) node: NodeId,
    pub(super) generation: [u8; 16],
}

/// Contents of a segment, decrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentContents {
    pub(super) peers: Vec<PeerLine>,
    pub(super) chunks: Vec<ChunkLine>,
    /// Records of knowledge, in the order in which they were written.
    pub(super) facts: EncodedFacts,
}

/// Records of knowledge in short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EncodedFacts(Vec<u8>);

/// Trailer of a segment: the location and the name of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentTrailer {
    pub(super) name: SegmentName,
    salt: [u8; 16],
    /// Bytes before the trailer that are sealed.
    pub(super) length: usize,
}

impl EncodedFacts {
    /// Notes a record; one that is no knowledge is not noted.
    pub(super) fn push(&mut self, record: &LogRecord<'_>) {
        let (kind, slot, keys): (u8, u8, &[ChunkKey]) = match record {
            LogRecord::Held { slot, keys } => (KIND_HELD, *slot, keys),
            LogRecord::Lacking { slot, keys } => (KIND_LACKING, *slot, keys),
            LogRecord::Forget { slot } => (KIND_FORGET, *slot, &[]),
            LogRecord::Chunk { .. } | LogRecord::Peer { .. } => return,
        };
        self.0.extend_from_slice(&[kind, slot]);
        self.0.extend_from_slice(&(keys.len() as u16).to_be_bytes());
        for key in keys {
            self.0.extend_from_slice(&key.to_be_bytes());
        }
    }

    /// The records again; it ends at the first that is not one.
    pub(super) fn records(&self) -> impl Iterator<Item = LogRecord<'static>> {
        let mut reader = ByteReader::new(&self.0);
        std::iter::from_fn(move || parse_fact(&mut reader))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn parse_fact(reader: &mut ByteReader<'_>) -> Option<LogRecord<'static>> {
    let (kind, slot) = (reader.u8().ok()?, reader.u8().ok()?);
    let count = usize::from(reader.u16().ok()?);
    if usize::from(slot) >= MAX_TRACKED_PEERS || count > MAX_KNOWLEDGE_KEYS {
        return None;
    }
    let keys: Result<Vec<ChunkKey>, _> = (0..count).map(|_| reader.u64()).collect();
    let keys = keys.ok()?;
    match kind {
        KIND_HELD => Some(LogRecord::Held { slot, keys }),
        KIND_LACKING => Some(LogRecord::Lacking { slot, keys }),
        KIND_FORGET if keys.is_empty() => Some(LogRecord::Forget { slot }),
        _ => None,
    }
}

impl SegmentContents {
    /// The sealed contents and their trailer, to be appended to the segment; `None` if they would
    /// be longer than one append may be.
    pub(super) fn emit(
        &self,
        key: &DictionaryKey,
        name: &SegmentName,
        salt: [u8; 16],
    ) -> Option<Vec<u8>> {
        let length = self.chunks.len() * CHUNK_LINE + self.facts.len() + CONTENTS_FRAME;
        if length > MAX_DISK_APPEND {
            return None;
        }
        let mut out = Vec::with_capacity(length);
        out.extend_from_slice(&(self.peers.len() as u16).to_be_bytes());
        for peer in &self.peers {
            out.push(peer.slot);
            out.extend_from_slice(&peer.node.0);
            out.extend_from_slice(&peer.generation);
        }
        out.extend_from_slice(&(self.chunks.len() as u32).to_be_bytes());
        for chunk in &self.chunks {
            for word in [chunk.key, chunk.check, chunk.previous, chunk.peers] {
                out.extend_from_slice(&word.to_be_bytes());
            }
            out.extend_from_slice(&chunk.offset.to_be_bytes());
            out.extend_from_slice(&((chunk.length - 1) as u16).to_be_bytes());
            out.extend_from_slice(&[0, 0]);
        }
        out.extend_from_slice(&self.facts.0);
        let tag = key
            .contents(name, &salt)
            .seal(SealedPart::Body, 0, &mut out);
        out.extend_from_slice(&tag);
        let length = out.len() as u32;
        let trailer = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&name.bytes());
        out.extend_from_slice(&salt);
        let tag = key.tag(&out[trailer..]);
        out.extend_from_slice(&tag);
        Some(out)
    }

    /// Opens and reads what stands before a trailer.
    pub(super) fn parse(
        key: &DictionaryKey,
        trailer: &SegmentTrailer,
        sealed: &mut [u8],
    ) -> Option<Self> {
        let seal = key.contents(&trailer.name, &trailer.salt);
        Self::parse_opened(seal.open(SealedPart::Body, 0, sealed)?)
    }

    fn parse_opened(bytes: &[u8]) -> Option<Self> {
        let mut reader = ByteReader::new(bytes);
        let mut contents = Self::default();
        for _ in 0..reader.u16().ok()? {
            let slot = reader.u8().ok()?;
            if usize::from(slot) >= MAX_TRACKED_PEERS {
                return None;
            }
            contents.peers.push(PeerLine {
                slot,
                node: NodeId(reader.array().ok()?),
                generation: reader.array().ok()?,
            });
        }
        let count = reader.u32().ok()? as usize;
        if count > reader.remaining() / CHUNK_LINE {
            return None;
        }
        contents.chunks.reserve_exact(count);
        for _ in 0..count {
            contents.chunks.push(ChunkLine {
                key: reader.u64().ok()?.max(1),
                check: reader.u64().ok()?,
                previous: reader.u64().ok()?,
                peers: reader.u64().ok()?,
                offset: reader.u32().ok()?,
                length: usize::from(reader.u16().ok()?) + 1,
            });
            reader.u16().ok()?;
        }
        let facts = reader.bytes(reader.remaining()).ok()?;
        contents.facts = EncodedFacts(facts.to_vec());
        Some(contents)
    }
}

impl SegmentTrailer {
    /// The trailer that the last bytes of a segment file are, if they are one of this number.
    pub(super) fn parse(key: &DictionaryKey, end: &[u8], number: u32) -> Option<Self> {
        let bytes = end.last_chunk::<TRAILER>()?;
        let mut reader = ByteReader::new(bytes);
        let magic: [u8; 8] = reader.array().ok()?;
        let length = reader.u32().ok()? as usize;
        let named = reader.u32().ok()?;
        let name = SegmentName {
            number,
            generation: reader.array().ok()?,
            salt: reader.array().ok()?,
        };
        let salt = reader.array().ok()?;
        let tag: [u8; TAG] = reader.array().ok()?;
        let sound = magic == MAGIC && named == number && length <= MAX_DISK_APPEND;
        let sound = sound && tag == key.tag(&bytes[..TRAILER - TAG]);
        sound.then_some(Self { name, salt, length })
    }

    /// Bytes of the segment before its contents, if it has `bytes` in all.
    pub(super) fn records_end(&self, bytes: u64) -> Option<u64> {
        bytes
            .checked_sub((self.length + TRAILER) as u64)
            .filter(|end| *end >= SEGMENT_HEAD as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> SegmentName {
        SegmentName {
            number: 9,
            generation: [3; 16],
            salt: [4; 16],
        }
    }

    fn sample() -> SegmentContents {
        let mut facts = EncodedFacts::default();
        facts.push(&LogRecord::Forget { slot: 2 });
        facts.push(&LogRecord::Held {
            slot: 63,
            keys: vec![1, u64::MAX],
        });
        let line = |key: u64| ChunkLine {
            key,
            check: !key,
            previous: key - 1,
            peers: 1 << 63,
            offset: 64 * key as u32,
            length: if key == 1 { 65_536 } else { 1 },
        };
        SegmentContents {
            peers: vec![PeerLine {
                slot: 63,
                node: NodeId([7; 32]),
                generation: [6; 16],
            }],
            chunks: (1..20).map(line).collect(),
            facts,
        }
    }

    #[test]
    fn contents_read_back_and_damage_is_detected() {
        let key = DictionaryKey::new([1; 32]);
        let written = sample().emit(&key, &name(), [5; 16]).unwrap();
        let read = |bytes: &[u8]| {
            let trailer = SegmentTrailer::parse(&key, bytes, 9)?;
            let end = bytes.len() - TRAILER;
            let start = end.checked_sub(trailer.length)?;
            let mut sealed = bytes[start..end].to_vec();
            SegmentContents::parse(&key, &trailer, &mut sealed)
        };
        let contents = read(&written).unwrap();
        assert_eq!(contents, sample());
        assert_eq!(contents.facts.records().count(), 2);
        for at in 0..written.len() {
            let mut damaged = written.clone();
            damaged[at] ^= 1;
            assert_eq!(read(&damaged), None, "byte {at}");
            assert_eq!(read(&written[..at]), None, "cut at {at}");
        }
        assert_eq!(SegmentTrailer::parse(&key, &written, 8), None);
    }

    #[test]
    fn contents_that_are_too_long_are_not_written() {
        let mut long = sample();
        let line = long.chunks[0];
        long.chunks.resize(MAX_DISK_APPEND / CHUNK_LINE, line);
        let key = DictionaryKey::new([1; 32]);
        assert_eq!(long.emit(&key, &name(), [5; 16]), None);
    }

    #[test]
    fn any_bytes_parse_or_are_rejected() {
        let mut random = vocab::SeededRandom::from_seed(1);
        for length in 0..400 {
            let mut bytes = vec![0; length];
            random.fill(&mut bytes);
            if length > 2 {
                bytes[..2].copy_from_slice(&[0, (length % 3) as u8]);
            }
            if let Some(contents) = SegmentContents::parse_opened(&bytes) {
                assert!(contents.facts.records().count() <= length);
            }
        }
    }
}
