//! Payload that is sent and received: stored bytes, or a pattern that needs no memory.
//!
//! A measurement's host sends data that nobody wants to keep. The byte of a pattern follows from
//! its position in the stream, so a sender stores no payload for retransmissions and a receiver
//! verifies each byte when it arrives, in any order.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::segment::SegmentPayload;

/// Multiplier of the pattern's words (the golden ratio in 64 bits): neighbouring words differ in
/// most bits, and no two words of a stream below 2^67 bytes are equal.
const PATTERN_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

fn pattern_word(index: u64) -> [u8; 8] {
    index.wrapping_mul(PATTERN_MULTIPLIER).to_le_bytes()
}

/// Writes the bytes of the test pattern from position `offset` of the stream.
pub fn write_pattern(mut offset: u64, mut out: &mut [u8]) {
    let skip = (offset % 8) as usize;
    if skip > 0 {
        let word = pattern_word(offset / 8);
        let count = out.len().min(8 - skip);
        out[..count].copy_from_slice(&word[skip..skip + count]);
        offset += count as u64;
        out = &mut out[count..];
    }
    let mut index = offset / 8;
    let mut words = out.chunks_exact_mut(8);
    for place in &mut words {
        place.copy_from_slice(&pattern_word(index));
        index += 1;
    }
    let rest = words.into_remainder();
    let count = rest.len();
    rest.copy_from_slice(&pattern_word(index)[..count]);
}

/// Tells whether `bytes` are the test pattern from position `offset` of the stream.
#[must_use]
pub fn is_pattern(mut offset: u64, bytes: &[u8]) -> bool {
    let mut expected = [0; 256];
    for piece in bytes.chunks(expected.len()) {
        let expected = &mut expected[..piece.len()];
        write_pattern(offset, expected);
        if piece != expected {
            return false;
        }
        offset += piece.len() as u64;
    }
    true
}

/// Content that a connection sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendContent {
    /// The application's bytes, kept until they are acknowledged.
    #[default]
    Stored,
    /// The test pattern; nothing is kept.
    Pattern,
}

/// Treatment of the payload that a connection receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveContent {
    /// The bytes wait for the application.
    #[default]
    Stored,
    /// The bytes are counted and compared with the test pattern; the application reads at once.
    Pattern,
    /// The bytes are counted; the application reads at once.
    Discarded,
}

/// Bytes from the first unacknowledged one on, by their position in the stream.
#[derive(Clone, Debug)]
pub(crate) enum SendStore {
    Stored { start: u64, bytes: VecDeque<u8> },
    Pattern { start: u64, end: u64 },
}

impl SendStore {
    pub(crate) fn new(content: SendContent) -> Self {
        match content {
            SendContent::Stored => SendStore::Stored {
                start: 0,
                bytes: VecDeque::new(),
            },
            SendContent::Pattern => SendStore::Pattern { start: 0, end: 0 },
        }
    }

    /// Position behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        match self {
            SendStore::Stored { start, bytes } => start + bytes.len() as u64,
            SendStore::Pattern { end, .. } => *end,
        }
    }

    /// Appends the application's bytes; a pattern takes their number.
    pub(crate) fn write(&mut self, data: &[u8]) {
        match self {
            SendStore::Stored { bytes, .. } => bytes.extend(data),
            SendStore::Pattern { end, .. } => *end += data.len() as u64,
        }
    }

    /// Appends pattern bytes.
    pub(crate) fn write_pattern(&mut self, count: u64) {
        match self {
            SendStore::Stored { start, bytes } => {
                let from = bytes.len();
                let offset = *start + from as u64;
                let mut data = vec![0; count as usize];
                write_pattern(offset, &mut data);
                bytes.extend(data);
            }
            SendStore::Pattern { end, .. } => *end = end.saturating_add(count),
        }
    }

    /// Forgets the bytes below `position`.
    pub(crate) fn release(&mut self, position: u64) {
        match self {
            SendStore::Stored { start, bytes } => {
                let count = position.saturating_sub(*start).min(bytes.len() as u64);
                bytes.drain(..count as usize);
                *start += count;
            }
            SendStore::Pattern { start, end } => *start = position.clamp(*start, *end),
        }
    }

    /// Payload of a segment; the range is one that was written and not released.
    pub(crate) fn payload(&self, position: u64, length: u32) -> SegmentPayload {
        if length == 0 {
            return SegmentPayload::Empty;
        }
        match self {
            SendStore::Stored { start, bytes } => {
                let from = position.saturating_sub(*start) as usize;
                let range = bytes.range(from..from + length as usize);
                SegmentPayload::Bytes(range.copied().collect())
            }
            SendStore::Pattern { .. } => SegmentPayload::Pattern {
                offset: position,
                length,
            },
        }
    }
}

/// Received payload, by its position in the stream.
#[derive(Clone, Debug)]
pub(crate) enum ReceiveStore {
    Stored {
        ready: VecDeque<Bytes>,
        ready_bytes: u64,
        early: BTreeMap<u64, Bytes>,
        next: u64,
    },
    Pattern {
        damaged: u64,
    },
    Discarded,
}

impl ReceiveStore {
    pub(crate) fn new(content: ReceiveContent) -> Self {
        match content {
            ReceiveContent::Stored => ReceiveStore::Stored {
                ready: VecDeque::new(),
                ready_bytes: 0,
                early: BTreeMap::new(),
                next: 0,
            },
            ReceiveContent::Pattern => ReceiveStore::Pattern { damaged: 0 },
            ReceiveContent::Discarded => ReceiveStore::Discarded,
        }
    }

    /// Takes payload inside the window, in order or not.
    pub(crate) fn insert(&mut self, position: u64, payload: SegmentPayload) {
        match self {
            ReceiveStore::Discarded => {}
            ReceiveStore::Pattern { damaged } => {
                let is_right = match &payload {
                    SegmentPayload::Empty => true,
                    SegmentPayload::Bytes(bytes) => is_pattern(position, bytes),
                    SegmentPayload::Pattern { offset, .. } => *offset == position,
                };
                if !is_right {
                    *damaged += payload.len() as u64;
                }
            }
            ReceiveStore::Stored { early, next, .. } => {
                let bytes = match payload {
                    SegmentPayload::Bytes(bytes) => bytes,
                    other => {
                        let mut written = Vec::with_capacity(other.len());
                        other.write_to(&mut written);
                        written.into()
                    }
                };
                let is_new = position + bytes.len() as u64 > *next;
                let is_longer = early
                    .get(&position)
                    .is_none_or(|known| known.len() < bytes.len());
                if is_new && is_longer {
                    early.insert(position, bytes);
                }
            }
        }
    }

    /// Makes everything below `position` readable.
    pub(crate) fn deliver(&mut self, position: u64) {
        let ReceiveStore::Stored {
            ready,
            ready_bytes,
            early,
            next,
        } = self
        else {
            return;
        };
        while let Some(entry) = early.first_entry()
            && *entry.key() < position
        {
            let (start, mut bytes) = entry.remove_entry();
            let known = next.saturating_sub(start).min(bytes.len() as u64);
            let fresh = bytes.split_off(known as usize);
            if fresh.is_empty() {
                continue;
            }
            *next += fresh.len() as u64;
            *ready_bytes += fresh.len() as u64;
            ready.push_back(fresh);
        }
    }

    /// The next bytes in order.
    pub(crate) fn read(&mut self) -> Option<Bytes> {
        let ReceiveStore::Stored {
            ready, ready_bytes, ..
        } = self
        else {
            return None;
        };
        let bytes = ready.pop_front()?;
        *ready_bytes -= bytes.len() as u64;
        Some(bytes)
    }

    /// Bytes that wait for the application.
    pub(crate) fn waiting(&self) -> u64 {
        match self {
            ReceiveStore::Stored { ready_bytes, .. } => *ready_bytes,
            ReceiveStore::Pattern { .. } | ReceiveStore::Discarded => 0,
        }
    }

    /// Bytes of segments that were not the pattern.
    pub(crate) fn damaged(&self) -> u64 {
        match self {
            ReceiveStore::Pattern { damaged } => *damaged,
            ReceiveStore::Stored { .. } | ReceiveStore::Discarded => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_is_the_same_from_any_position() {
        let mut whole = [0; 100];
        write_pattern(0, &mut whole);
        for start in 0..30 {
            for length in 0..40 {
                let mut part = vec![0; length];
                write_pattern(start as u64, &mut part);
                assert_eq!(part, whole[start..start + length]);
                assert!(is_pattern(start as u64, &part));
            }
        }
        whole[50] ^= 1;
        assert!(!is_pattern(0, &whole));
        assert!(is_pattern(51, &whole[51..]));
    }

    #[test]
    fn overlapping_payload_is_delivered_once() {
        let mut store = ReceiveStore::new(ReceiveContent::Stored);
        store.insert(3, SegmentPayload::Bytes(Bytes::from_static(b"defg")));
        store.insert(5, SegmentPayload::Bytes(Bytes::from_static(b"fghi")));
        store.insert(0, SegmentPayload::Bytes(Bytes::from_static(b"abcd")));
        store.deliver(9);
        let mut read = Vec::new();
        while let Some(bytes) = store.read() {
            read.extend_from_slice(&bytes);
        }
        assert_eq!(read, b"abcdefghi");
        assert_eq!(store.waiting(), 0);
    }
}
