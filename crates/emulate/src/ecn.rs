//! Congestion notification (RFC 3168): the only field of a packet that a link may read and change.
//!
//! It finds the IP header behind an Ethernet header with up to two VLAN tags, reads the two bits,
//! and sets them to "congestion experienced". A packet that it cannot parse counts as not capable
//! and is not changed.

use bytes::Bytes;

use crate::config::LinkFraming;

/// RFC 3168 §5: both bits zero.
const NOT_CAPABLE: u8 = 0b00;
/// RFC 3168 §5: both bits set.
const CONGESTION_EXPERIENCED: u8 = 0b11;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IEEE 802.1Q and 802.1ad.
const ETHERTYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
const VLAN_TAGS_MAX: usize = 2;

/// Position of the two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EcnField {
    /// An IPv4 header starts here.
    V4(usize),
    /// An IPv6 header starts here.
    V6(usize),
}

/// The two bits of a packet; zero for a packet that is not IP.
pub(crate) fn codepoint(framing: LinkFraming, packet: &[u8]) -> u8 {
    match find(framing, packet) {
        Some(EcnField::V4(at)) => packet[at + 1] & 0b11,
        Some(EcnField::V6(at)) => (packet[at + 1] >> 4) & 0b11,
        None => NOT_CAPABLE,
    }
}

/// Tells whether the sender of this packet supports congestion marks.
pub(crate) fn is_capable(framing: LinkFraming, packet: &[u8]) -> bool {
    codepoint(framing, packet) != NOT_CAPABLE
}

/// The packet with the mark; unchanged if it is no IP packet.
pub(crate) fn mark(framing: LinkFraming, packet: &Bytes) -> Bytes {
    let Some(field) = find(framing, packet) else {
        return packet.clone();
    };
    let mut packet = packet.to_vec();
    match field {
        EcnField::V4(at) => {
            let before = u16::from_be_bytes([packet[at], packet[at + 1]]);
            packet[at + 1] |= CONGESTION_EXPERIENCED;
            let after = u16::from_be_bytes([packet[at], packet[at + 1]]);
            let sum = u16::from_be_bytes([packet[at + 10], packet[at + 11]]);
            packet[at + 10..at + 12].copy_from_slice(&updated(sum, before, after).to_be_bytes());
        }
        EcnField::V6(at) => packet[at + 1] |= CONGESTION_EXPERIENCED << 4,
    }
    packet.into()
}

/// Check sum of a header after one of its words has changed: RFC 1624 §3, equation 3.
fn updated(sum: u16, before: u16, after: u16) -> u16 {
    let mut total = u32::from(!sum) + u32::from(!before) + u32::from(after);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    !(total as u16)
}

/// Finds the IP header, if a whole one is there.
fn find(framing: LinkFraming, packet: &[u8]) -> Option<EcnField> {
    let at = match framing {
        LinkFraming::Ip => 0,
        LinkFraming::Ethernet => behind_ethernet(packet)?,
    };
    match packet.get(at)? >> 4 {
        4 if packet.len() >= at + 20 => Some(EcnField::V4(at)),
        6 if packet.len() >= at + 40 => Some(EcnField::V6(at)),
        _ => None,
    }
}

fn behind_ethernet(frame: &[u8]) -> Option<usize> {
    let mut at = 12;
    for _ in 0..=VLAN_TAGS_MAX {
        let ethertype = u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]);
        if ethertype == ETHERTYPE_IPV4 || ethertype == ETHERTYPE_IPV6 {
            return Some(at + 2);
        }
        if !ETHERTYPES_VLAN.contains(&ethertype) {
            return None;
        }
        at += 4;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of RFC 1071's kind: any values and a right check sum.
    fn ipv4(tos: u8) -> Vec<u8> {
        let mut header = vec![
            0x45, tos, 0, 20, 1, 2, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        let sum = sum_of(&header);
        header[10..12].copy_from_slice(&(!sum).to_be_bytes());
        header
    }

    fn sum_of(header: &[u8]) -> u16 {
        let mut total: u32 = header
            .chunks(2)
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    #[test]
    fn a_mark_keeps_the_check_sum_right() {
        for tos in 0..=255 {
            let marked = mark(LinkFraming::Ip, &Bytes::from(ipv4(tos)));
            assert_eq!(marked[1], tos | 3);
            assert_eq!(sum_of(&marked), 0xffff, "tos {tos}");
        }
    }

    #[test]
    fn finds_the_bits_behind_ethernet_and_vlan_tags() {
        let mut frame = vec![0; 12];
        frame.extend([0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 0x86, 0xdd]);
        let mut header = vec![0; 40];
        (header[0], header[1]) = (0x60, 0x20);
        frame.extend(&header);
        assert_eq!(codepoint(LinkFraming::Ethernet, &frame), 2);
        let marked = mark(LinkFraming::Ethernet, &Bytes::from(frame.clone()));
        assert_eq!(codepoint(LinkFraming::Ethernet, &marked), 3);
        assert_eq!(marked[22], 0x60);
        assert!(!is_capable(LinkFraming::Ip, &frame));
    }

    #[test]
    fn anything_else_is_left_alone() {
        for length in 0..60 {
            for first in [0x00, 0x45, 0x60, 0xff] {
                let packet = Bytes::from(vec![first; length]);
                for framing in [LinkFraming::Ip, LinkFraming::Ethernet] {
                    let marked = mark(framing, &packet);
                    assert_eq!(marked.len(), length);
                }
            }
        }
        let arp = Bytes::from([vec![0; 12], vec![8, 6], vec![1; 28]].concat());
        assert_eq!(mark(LinkFraming::Ethernet, &arp), arp);
    }
}
