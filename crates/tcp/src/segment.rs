//! A TCP segment between two ends: header fields, options and payload, independent of IP.
//!
//! Payload is bytes, or a range of the test pattern ([`SegmentPayload::Pattern`]). A simulation can
//! pass segments as values, so that nobody writes, sums and reads pattern bytes; the wire form has
//! the same content.

use std::net::SocketAddr;
use std::ops::BitOr;

use bytes::Bytes;

use crate::payload::write_pattern;

/// The two ends of a connection, as one of them sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowAddresses {
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

impl FlowAddresses {
    /// The same flow as the other end sees it.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
        }
    }
}

/// Control bits of a segment, RFC 9293 §3.1 (Header Format).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentFlags(u8);

impl SegmentFlags {
    /// No bit.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronises the sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Resets the connection.
    pub const RST: Self = Self(0x04);
    /// Asks the receiver to deliver at once.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement field is valid.
    pub const ACK: Self = Self(0x10);

    /// Flags from the octet of the header; ECN and urgent bits are dropped.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 0x1f)
    }

    /// The octet of the header.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// True if all of `others` are set.
    #[must_use]
    pub const fn contain(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

impl BitOr for SegmentFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Time stamps of a segment, RFC 7323 §3.2 (Timestamps Option).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimestampOption {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the peer's clock, as the sender last saw it.
    pub echo: u32,
}

/// Most SACK blocks that the 40 octets of options hold, RFC 2018 §3.
pub const SACK_BLOCKS_MAX: usize = 4;

/// Blocks of sequence numbers that arrived out of order, RFC 2018 §3 (Sack Option Format).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(u32, u32); SACK_BLOCKS_MAX],
    count: u8,
}

impl SackBlocks {
    /// Appends a block, from its first number to the one behind its last; a fifth is dropped.
    pub fn push(&mut self, start: u32, end: u32) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.count)) {
            *place = (start, end);
            self.count += 1;
        }
    }

    /// The blocks in their order.
    #[must_use]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.count)]
    }
}

/// Options of a segment; others that arrive are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentOptions {
    /// Maximum segment size, in SYN segments.
    pub mss: Option<u16>,
    /// Shift count of windows, in SYN segments.
    pub window_scale: Option<u8>,
    /// SACK-permitted, in SYN segments.
    pub sack_permitted: bool,
    /// Time stamps.
    pub timestamps: Option<TimestampOption>,
    /// SACK blocks.
    pub sack: SackBlocks,
}

impl SegmentOptions {
    /// Length on the wire, padded to four octets.
    #[must_use]
    pub fn wire_length(&self) -> usize {
        let mut length = 0;
        if self.mss.is_some() {
            length += 4;
        }
        if self.window_scale.is_some() {
            length += 4;
        }
        // SACK-permitted stands beside the time stamps, in place of their padding.
        if self.timestamps.is_some() {
            length += 12;
        } else if self.sack_permitted {
            length += 4;
        }
        let blocks = self.sack.as_slice().len();
        if blocks > 0 {
            length += 4 + 8 * blocks;
        }
        length
    }
}

/// Payload of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum SegmentPayload {
    /// No payload.
    #[default]
    Empty,
    /// Payload as bytes.
    Bytes(Bytes),
    /// A range of the test pattern, which [`crate::write_pattern`] writes out.
    Pattern {
        /// Position in the stream of its first byte.
        offset: u64,
        /// Number of bytes.
        length: u32,
    },
}

impl SegmentPayload {
    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            SegmentPayload::Empty => 0,
            SegmentPayload::Bytes(bytes) => bytes.len(),
            SegmentPayload::Pattern { length, .. } => *length as usize,
        }
    }

    /// True without payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes to `out`.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        match self {
            SegmentPayload::Empty => {}
            SegmentPayload::Bytes(bytes) => out.extend_from_slice(bytes),
            SegmentPayload::Pattern { offset, length } => {
                let start = out.len();
                out.resize(start + *length as usize, 0);
                write_pattern(*offset, &mut out[start..]);
            }
        }
    }

    /// The payload without its first `count` bytes, and at most `keep` of the others.
    #[must_use]
    pub fn trimmed(self, count: usize, keep: usize) -> Self {
        match self {
            SegmentPayload::Empty => SegmentPayload::Empty,
            SegmentPayload::Bytes(mut bytes) => {
                let mut rest = bytes.split_off(count.min(bytes.len()));
                rest.truncate(keep);
                SegmentPayload::Bytes(rest)
            }
            SegmentPayload::Pattern { offset, length } => {
                let count = count.min(length as usize);
                SegmentPayload::Pattern {
                    offset: offset + count as u64,
                    length: (length as usize - count).min(keep) as u32,
                }
            }
        }
    }
}

/// A TCP segment without its ports, which [`FlowAddresses`] has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpSegment {
    /// Sequence number of the first octet, or of the SYN.
    pub sequence: u32,
    /// Next sequence number that the sender expects, if [`SegmentFlags::ACK`] is set.
    pub acknowledgement: u32,
    /// Control bits.
    pub flags: SegmentFlags,
    /// Window field as it stands in the header, not scaled.
    pub window: u16,
    /// Options.
    pub options: SegmentOptions,
    /// Payload.
    pub payload: SegmentPayload,
}

impl TcpSegment {
    /// Sequence numbers that the segment takes: payload, SYN and FIN.
    #[must_use]
    pub fn sequence_length(&self) -> u32 {
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        length
            + u32::from(self.flags.contain(SegmentFlags::SYN))
            + u32::from(self.flags.contain(SegmentFlags::FIN))
    }

    /// Length of the TCP header with options, and of the payload.
    #[must_use]
    pub fn wire_length(&self) -> usize {
        TCP_HEADER + self.options.wire_length() + self.payload.len()
    }
}

/// Length of a TCP header without options, RFC 9293 §3.1.
pub(crate) const TCP_HEADER: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimmed_payload_keeps_its_place() {
        let pattern = SegmentPayload::Pattern {
            offset: 100,
            length: 10,
        };
        let expected = SegmentPayload::Pattern {
            offset: 103,
            length: 5,
        };
        assert_eq!(pattern.clone().trimmed(3, 5), expected);
        assert!(pattern.trimmed(12, 5).is_empty());
        let bytes = SegmentPayload::Bytes(Bytes::from_static(b"abcdef"));
        let expected = SegmentPayload::Bytes(Bytes::from_static(b"cde"));
        assert_eq!(bytes.trimmed(2, 3), expected);
    }

    #[test]
    fn a_fifth_block_is_dropped() {
        let mut blocks = SackBlocks::default();
        for index in 0..6 {
            blocks.push(index, index + 1);
        }
        assert_eq!(blocks.as_slice().len(), SACK_BLOCKS_MAX);
    }
}
