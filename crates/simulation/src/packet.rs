//! Packets on the link: TCP as the crate `tcp` writes it, and UDP and ICMP echoes with IPv4 headers of
//! their own.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use bytes::{BufMut, Bytes, BytesMut};
use tcp::{FlowAddresses, TcpSegment, parse_packet};

/// IPv4 and UDP headers.
pub(crate) const UDP_HEADERS: usize = 28;
/// Protocol numbers in an IP header.
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_UDP: u8 = 17;
/// An ICMP echo, as `ping` sends.
const ECHO_BYTES: usize = 84;

/// A packet that has crossed the link.
pub(crate) enum LinkPacket {
    /// A segment; the receiver is the local end.
    Segment(FlowAddresses, TcpSegment),
    /// A datagram.
    Datagram {
        source: SocketAddr,
        destination: SocketAddr,
        payload: Bytes,
    },
    /// An ICMP echo request, or its reply.
    Echo,
}

/// Writes an echo; only its length and its protocol are read.
pub(crate) fn echo() -> Bytes {
    let mut packet = vec![0; ECHO_BYTES];
    packet[0] = 0x45;
    packet[3] = ECHO_BYTES as u8;
    packet[9] = PROTOCOL_ICMP;
    packet.into()
}

/// Writes a UDP packet. The check sums are left out, because nothing on the link reads them.
pub(crate) fn datagram(source: SocketAddrV4, destination: SocketAddrV4, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(UDP_HEADERS + payload.len());
    let total = u16::try_from(UDP_HEADERS + payload.len()).unwrap_or(u16::MAX);
    out.put_slice(&[0x45, 0]);
    out.put_u16(total);
    out.put_slice(&[0, 0, 0x40, 0, 64, PROTOCOL_UDP, 0, 0]);
    out.put_slice(&source.ip().octets());
    out.put_slice(&destination.ip().octets());
    out.put_u16(source.port());
    out.put_u16(destination.port());
    out.put_u16(total - 20);
    out.put_u16(0);
    out.put_slice(payload);
    out.freeze()
}

/// Parses a packet; `None` for a damaged one, which is lost.
pub(crate) fn parse(packet: &Bytes) -> Option<LinkPacket> {
    match packet.get(9) {
        Some(&PROTOCOL_UDP) => {}
        Some(&PROTOCOL_ICMP) => return Some(LinkPacket::Echo),
        Some(_) | None => {
            let (addresses, segment) = parse_packet(packet).ok()?;
            return Some(LinkPacket::Segment(addresses, segment));
        }
    }
    let headers = packet.first_chunk::<UDP_HEADERS>()?;
    let address = |at: usize, port: usize| {
        let octets: [u8; 4] = headers[at..at + 4].try_into().ok()?;
        let port = u16::from_be_bytes([headers[port], headers[port + 1]]);
        Some(SocketAddr::from((Ipv4Addr::from(octets), port)))
    };
    Some(LinkPacket::Datagram {
        source: address(12, 20)?,
        destination: address(16, 22)?,
        payload: packet.slice(UDP_HEADERS..),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagram_reads_back() {
        let source = SocketAddrV4::new(Ipv4Addr::new(198, 18, 11, 2), 4433);
        let target = SocketAddrV4::new(Ipv4Addr::new(198, 18, 12, 2), 4434);
        let packet = datagram(source, target, b"payload");
        assert_eq!(packet.len(), 35);
        let Some(LinkPacket::Datagram {
            source: from,
            destination,
            payload,
        }) = parse(&packet)
        else {
            panic!("it is a datagram");
        };
        assert_eq!((from, destination), (source.into(), target.into()));
        assert_eq!(&payload[..], b"payload");
        assert!(parse(&packet.slice(..27)).is_none());
    }
}
