//! IP packets with one TCP segment: written with check sums, and parsed from untrusted bytes.
//!
//! IPv4 packets have the "do not fragment" bit and no options; IPv6 packets have no extension
//! headers. A parser accepts IPv4 options and refuses fragments, extension headers, and packets with a
//! wrong check sum.

mod checksum;
mod options;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::Bytes;
use thiserror::Error;

use crate::segment::{FlowAddresses, SegmentFlags, SegmentPayload, TCP_HEADER, TcpSegment};
use checksum::{InternetChecksum, PseudoHeader};

/// Length of an IPv4 header without options, RFC 791 §3.1.
pub const IPV4_HEADER: usize = 20;
/// Length of an IPv6 header, RFC 8200 §3.
pub const IPV6_HEADER: usize = 40;
/// IP protocol number of TCP.
const PROTOCOL_TCP: u8 = 6;
/// Time to live of packets, RFC 1700's default.
const HOP_LIMIT: u8 = 64;

/// Why a packet is no TCP segment for us.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PacketError {
    /// The bytes end before the header or its length field says.
    #[error("the packet is shorter than its headers say")]
    Truncated,
    /// Neither IPv4 nor IPv6.
    #[error("the packet has IP version {0}")]
    UnknownVersion(u8),
    /// Another protocol, or an IPv6 extension header.
    #[error("the packet carries protocol {0}, not TCP")]
    NotTcp(u8),
    /// A part of a fragmented packet.
    #[error("the packet is a fragment")]
    Fragment,
    /// A header length field is too small.
    #[error("a header of the packet is shorter than the least length")]
    HeaderTooShort,
    /// The check sum of the IPv4 header is wrong.
    #[error("the check sum of the IPv4 header is wrong")]
    HeaderChecksum,
    /// The check sum of the TCP segment is wrong.
    #[error("the TCP check sum is wrong")]
    SegmentChecksum,
}

/// Writes an IP packet with `segment` from `addresses.local` to `addresses.remote`.
///
/// # Panics
/// When one address is IPv4 and the other one IPv6.
#[must_use]
pub fn emit_packet(addresses: &FlowAddresses, segment: &TcpSegment) -> Bytes {
    let length = segment.wire_length();
    let mut out = Vec::with_capacity(IPV6_HEADER + length);
    match (addresses.local.ip(), addresses.remote.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            emit_ipv4_header(&mut out, source, target, length);
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            emit_ipv6_header(&mut out, source, target, length);
        }
        _ => panic!("the ends of a flow have addresses of one IP version"),
    }
    let start = out.len();
    emit_tcp_header(&mut out, addresses, segment);
    segment.payload.write_to(&mut out);
    let mut sum = PseudoHeader::new(addresses.local.ip(), addresses.remote.ip(), length).sum();
    sum.add(&out[start..]);
    let sum = sum.finish();
    out[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
    out.into()
}

/// Length of the IP packet that [`emit_packet`] would write.
#[must_use]
pub fn packet_length(addresses: &FlowAddresses, segment: &TcpSegment) -> usize {
    let header = if addresses.local.is_ipv4() {
        IPV4_HEADER
    } else {
        IPV6_HEADER
    };
    header + segment.wire_length()
}

fn emit_ipv4_header(out: &mut Vec<u8>, source: Ipv4Addr, target: Ipv4Addr, length: usize) {
    let total = u16::try_from(IPV4_HEADER + length).unwrap_or(u16::MAX);
    out.extend_from_slice(&[0x45, 0]);
    out.extend_from_slice(&total.to_be_bytes());
    // Identification 0 and "do not fragment", RFC 6864 §4.1.
    out.extend_from_slice(&[0, 0, 0x40, 0, HOP_LIMIT, PROTOCOL_TCP, 0, 0]);
    out.extend_from_slice(&source.octets());
    out.extend_from_slice(&target.octets());
    let mut sum = InternetChecksum::default();
    sum.add(out);
    let sum = sum.finish();
    out[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn emit_ipv6_header(out: &mut Vec<u8>, source: Ipv6Addr, target: Ipv6Addr, length: usize) {
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    out.extend_from_slice(&[0x60, 0, 0, 0]);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&[PROTOCOL_TCP, HOP_LIMIT]);
    out.extend_from_slice(&source.octets());
    out.extend_from_slice(&target.octets());
}

fn emit_tcp_header(out: &mut Vec<u8>, addresses: &FlowAddresses, segment: &TcpSegment) {
    let header = TCP_HEADER + segment.options.wire_length();
    out.extend_from_slice(&addresses.local.port().to_be_bytes());
    out.extend_from_slice(&addresses.remote.port().to_be_bytes());
    out.extend_from_slice(&segment.sequence.to_be_bytes());
    out.extend_from_slice(&segment.acknowledgement.to_be_bytes());
    out.push(((header / 4) as u8) << 4);
    out.push(segment.flags.bits());
    out.extend_from_slice(&segment.window.to_be_bytes());
    // The check sum, written at the end, and the urgent pointer.
    out.extend_from_slice(&[0; 4]);
    options::emit(out, &segment.options);
}

/// Parses an IP packet with a TCP segment; the addresses are those of its receiver.
///
/// # Errors
/// When the packet is damaged, cut short, a fragment, or not TCP.
pub fn parse_packet(packet: &Bytes) -> Result<(FlowAddresses, TcpSegment), PacketError> {
    let first = *packet.first().ok_or(PacketError::Truncated)?;
    let (source, target, start, end) = match first >> 4 {
        4 => parse_ipv4_header(packet)?,
        6 => parse_ipv6_header(packet)?,
        other => return Err(PacketError::UnknownVersion(other)),
    };
    let bytes = packet.get(start..end).ok_or(PacketError::Truncated)?;
    let mut sum = PseudoHeader::new(source, target, bytes.len()).sum();
    sum.add(bytes);
    let header: &[u8; TCP_HEADER] = bytes.first_chunk().ok_or(PacketError::Truncated)?;
    let header_length = usize::from(header[12] >> 4) * 4;
    if header_length < TCP_HEADER {
        return Err(PacketError::HeaderTooShort);
    }
    let option_bytes = bytes
        .get(TCP_HEADER..header_length)
        .ok_or(PacketError::Truncated)?;
    if sum.finish() != 0 {
        return Err(PacketError::SegmentChecksum);
    }
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let payload = match packet.slice(start + header_length..end) {
        bytes if bytes.is_empty() => SegmentPayload::Empty,
        bytes => SegmentPayload::Bytes(bytes),
    };
    let addresses = FlowAddresses {
        local: SocketAddr::new(target, half(2)),
        remote: SocketAddr::new(source, half(0)),
    };
    let segment = TcpSegment {
        sequence: word(4),
        acknowledgement: word(8),
        flags: SegmentFlags::from_bits(header[13]),
        window: half(14),
        options: options::parse(option_bytes),
        payload,
    };
    Ok((addresses, segment))
}

/// Source, target, and the range of the TCP segment.
type IpEnvelope = (IpAddr, IpAddr, usize, usize);

fn parse_ipv4_header(packet: &[u8]) -> Result<IpEnvelope, PacketError> {
    let header: &[u8; IPV4_HEADER] = packet.first_chunk().ok_or(PacketError::Truncated)?;
    let header_length = usize::from(header[0] & 0x0f) * 4;
    if header_length < IPV4_HEADER {
        return Err(PacketError::HeaderTooShort);
    }
    let whole_header = packet.get(..header_length).ok_or(PacketError::Truncated)?;
    let mut sum = InternetChecksum::default();
    sum.add(whole_header);
    if sum.finish() != 0 {
        return Err(PacketError::HeaderChecksum);
    }
    // More fragments, or an offset.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(PacketError::Fragment);
    }
    if header[9] != PROTOCOL_TCP {
        return Err(PacketError::NotTcp(header[9]));
    }
    let end = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if end < header_length || end > packet.len() {
        return Err(PacketError::Truncated);
    }
    let address =
        |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    Ok((address(12).into(), address(16).into(), header_length, end))
}

fn parse_ipv6_header(packet: &[u8]) -> Result<IpEnvelope, PacketError> {
    let header: &[u8; IPV6_HEADER] = packet.first_chunk().ok_or(PacketError::Truncated)?;
    if header[6] != PROTOCOL_TCP {
        return Err(PacketError::NotTcp(header[6]));
    }
    let end = IPV6_HEADER + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if end > packet.len() {
        return Err(PacketError::Truncated);
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    Ok((address(8).into(), address(24).into(), IPV6_HEADER, end))
}

#[cfg(test)]
mod tests;
