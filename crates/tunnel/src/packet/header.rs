//! Header of a packet: one byte of flags, the receiver's connection id, and the low bytes of the
//! packet number.
//!
//! ```text
//!   0      1                 9          9 + 1…4
//!  +------+-----------------+----------+-----------------------------+----------+
//!  |flags | connection id 8 | number   | payload, sealed             | tag 16   |
//!  +------+-----------------+----------+-----------------------------+----------+
//!   010rrKLL      r: zero · K: key phase · LL: bytes of the number − 1
//! ```
//!
//! The form is that of a short header of RFC 9000 §17.3.1 (1-RTT Packet) without its spin bit.
//! Header protection hides the five low bits of the flags and the number (RFC 9001 §5.4), so that
//! an observer sees neither the number of packets nor key updates.

/// A name that the receiver of packets has chosen at random, and by which it finds the path that a
/// datagram belongs to, wherever it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub [u8; ConnectionId::LENGTH]);

impl ConnectionId {
    /// Its length in bytes: with 64 random bits a stranger does not find one by trying.
    pub const LENGTH: usize = 8;

    /// The connection id that a datagram begins with; `None` when it is no packet of this format.
    /// Nothing about the datagram is proved by it.
    #[must_use]
    pub fn of(datagram: &[u8]) -> Option<Self> {
        let (flags, rest) = datagram.split_first()?;
        if flags & VISIBLE_MASK != FORM {
            return None;
        }
        rest.first_chunk().copied().map(Self)
    }
}

/// Bytes of a packet number that this version sends. Half their range, 2^23, must be more than
/// the packets that can be under way or late ([`UNACKNOWLEDGED_LIMIT`], and the widest replay
/// window): RFC 9000 §17.1 asks for more than twice the unacknowledged span, and the additional
/// span keeps the numbers of packets readable that are overtaken by a whole window of others.
///
/// [`UNACKNOWLEDGED_LIMIT`]: super::UNACKNOWLEDGED_LIMIT
pub(super) const NUMBER_LENGTH: usize = 3;

/// Bytes before the payload in what this version sends.
pub const HEADER_LENGTH: usize = NUMBER_OFFSET + NUMBER_LENGTH;

/// Offset of the number.
pub(super) const NUMBER_OFFSET: usize = 1 + ConnectionId::LENGTH;

/// Bits of the flags that are not hidden.
pub(super) const VISIBLE_MASK: u8 = 0b1110_0000;
/// Value of the fixed bits. As in QUIC they distinguish a packet from other UDP traffic (RFC 9443).
pub(super) const FORM: u8 = 0b0100_0000;
/// Bits of the flags that are hidden (RFC 9001 §5.4.1, short header).
pub(super) const HIDDEN_MASK: u8 = 0b0001_1111;
/// Bits without a meaning; zero.
pub(super) const RESERVED_MASK: u8 = 0b0001_1000;
/// The key phase.
pub(super) const KEY_PHASE: u8 = 0b0000_0100;
/// Length of the number, less one.
pub(super) const LENGTH_MASK: u8 = 0b0000_0011;

/// Decodes a packet number from its low bytes `truncated`: the number nearest to the expected one
/// (RFC 9000 §A.3, Sample Packet Number Decoding Algorithm).
pub(super) fn decode_number(expected: u64, truncated: u64, length: usize) -> u64 {
    let window = 1_u64 << (8 * length);
    let half = window / 2;
    let candidate = (expected & !(window - 1)) | truncated;
    if candidate + half <= expected && candidate < (1 << 62) - window {
        candidate + window
    } else if candidate > expected + half && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_decode_as_in_rfc_9000_a3() {
        // "if the highest successfully authenticated packet had a packet number of 0xa82f30ea, a
        // packet containing a 16-bit value of 0x9b32 will be decoded as 0xa82f9b32".
        assert_eq!(decode_number(0xa82f_30eb, 0x9b32, 2), 0xa82f_9b32);
    }

    #[test]
    fn numbers_within_half_the_range_are_decoded() {
        for length in 1..=4_usize {
            let half = 1_u64 << (8 * length - 1);
            let mask = 2 * half - 1;
            for expected in [0, 1, half, 3 * half + 5, 1 << 40, (1 << 62) - 1] {
                let low = expected.saturating_sub(half - 1);
                let high = (expected + half).min((1 << 62) - 1);
                for number in [low, expected, high] {
                    let found = decode_number(expected, number & mask, length);
                    assert_eq!(found, number, "{length} bytes, {expected} expected");
                }
            }
        }
    }

    #[test]
    fn a_connection_id_is_read_of_packets_only() {
        let mut datagram = [0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        let id = ConnectionId([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ConnectionId::of(&datagram), Some(id));
        assert_eq!(ConnectionId::of(&datagram[..8]), None);
        assert_eq!(ConnectionId::of(&[]), None);
        datagram[0] = 0xc0;
        assert_eq!(ConnectionId::of(&datagram), None);
    }
}
