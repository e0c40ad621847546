//! Internet checksum, RFC 1071, fast enough for every byte that passes.
//!
//! Sixteen-bit sums with end-around carry are equal in either byte order, except for the order of
//! their own two bytes (RFC 1071 §2 (B)), and wider words may be added as long as the carries are
//! folded in at the end (§2 (C)).

use super::{TransportProtocol, word};

/// A sum that is not folded yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnfoldedSum(u64);

impl UnfoldedSum {
    /// Adds bytes that begin at an even offset of the summed data; an odd last byte is padded with
    /// zero.
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        // 2^32 words of 32 bits fit, many times the longest packet.
        let mut sum: u64 = words
            .iter()
            .map(|word| u64::from(u32::from_ne_bytes(*word)))
            .sum();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        // One fold keeps any number of additions from overflowing.
        Self(self.0 + (sum & 0xffff_ffff) + (sum >> 32))
    }

    /// Adds a number of the header.
    #[must_use]
    pub fn add_word(self, value: u16) -> Self {
        Self(self.0 + u64::from(u16::from_ne_bytes(value.to_be_bytes())))
    }

    /// The sum as a header holds it, not complemented.
    #[must_use]
    pub fn fold(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::from_be_bytes((sum as u16).to_ne_bytes())
    }

    /// The complement, which a header holds: all ones instead of zero, which is the same number
    /// and which UDP does not take for "none" (RFC 768).
    #[must_use]
    pub fn complement(self) -> u16 {
        match !self.fold() {
            0 => 0xffff,
            sum => sum,
        }
    }
}

/// The sum of the pseudo header (RFC 9293 §3.1, RFC 8200 §8.1) of a packet whose IP addresses are
/// `addresses` and whose transport part is `length` bytes, fewer than 65,536.
pub(super) fn pseudo_header(
    addresses: &[u8],
    transport: TransportProtocol,
    length: usize,
) -> UnfoldedSum {
    UnfoldedSum::default()
        .add_bytes(addresses)
        .add_word(u16::from(transport.protocol()))
        .add_word(length as u16)
}

/// Returns `true` if the checksum in an IPv4 header, which is all of `header`, is right.
pub(super) fn ipv4_header_is_valid(header: &[u8]) -> bool {
    UnfoldedSum::default().add_bytes(header).fold() == 0xffff
}

/// Writes the check sum of an IPv4 header, which is all of `header`.
pub(super) fn write_ipv4_header(header: &mut [u8]) {
    const CHECKSUM: usize = 10;
    super::set_word(header, CHECKSUM, 0);
    let sum = !UnfoldedSum::default().add_bytes(header).fold();
    super::set_word(header, CHECKSUM, sum);
}

/// Returns `true` if the checksum of a transport part is present and right.
pub(super) fn transport_is_valid(
    addresses: &[u8],
    transport: TransportProtocol,
    part: &[u8],
) -> bool {
    word(part, transport.checksum_offset()) != 0
        && pseudo_header(addresses, transport, part.len())
            .add_bytes(part)
            .fold()
            == 0xffff
}
