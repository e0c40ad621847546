//! The IP packets of a capture.
//!
//! Reads what the analysis needs and no more: time, addresses, lengths, TCP's numbers and flags, and
//! the payload as far as it was captured. What a capture file is, [`super::frames`] knows. It does not
//! put segments together; [`super::streams`] does.

use std::fs::File;
use std::io::BufReader;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::frames::{CaptureError, CaptureReader, CapturedFrame};

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// One captured IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPacket {
    /// Capture time since the Unix epoch.
    pub at: Duration,
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
    /// The length of the whole IP packet, IP header included, in bytes.
    pub ip_bytes: u64,
    /// Transport header of the packet.
    pub transport: TransportHeader,
    /// True if it is a fragment of a packet. It then carries [`TransportHeader::Other`].
    pub is_fragment: bool,
    /// The transport's payload, as far as it was captured.
    pub payload: Vec<u8>,
}

/// The transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportHeader {
    /// A TCP segment.
    Tcp {
        /// The sequence number of its first byte.
        sequence: u32,
        /// The next byte its sender waits for.
        acknowledgement: u32,
        /// The eight flags (RFC 9293 §3.1, Header Format).
        flags: u8,
        /// The payload's length on the wire.
        payload_bytes: u32,
    },
    /// A UDP datagram.
    Udp,
    /// Anything else; its ports read 0.
    Other,
}

/// The SYN flag.
pub const SYN: u8 = 0x02;
/// The ACK flag: the acknowledgement number means something.
pub const ACK: u8 = 0x10;

impl CapturedPacket {
    /// Returns `true` if it opens a connection (SYN without ACK).
    #[must_use]
    pub fn opens_connection(&self) -> bool {
        matches!(self.transport, TransportHeader::Tcp { flags, .. } if flags & (SYN | ACK) == SYN)
    }
}

/// Reads all IP packets of a capture file.
///
/// A packet cut off at the end of the file (tcpdump was killed) is left out; packets of other
/// protocols are skipped.
///
/// # Errors
/// When the file cannot be read or is not a capture.
pub fn read(path: &Path) -> Result<Vec<CapturedPacket>> {
    let file =
        File::open(path).with_context(|| format!("reading the capture {}", path.display()))?;
    parse(BufReader::new(file)).with_context(|| format!("{} is not a capture file", path.display()))
}

fn parse(file: impl std::io::Read) -> Result<Vec<CapturedPacket>, CaptureError> {
    let mut frames = CaptureReader::open(file)?;
    let mut packets = Vec::new();
    loop {
        match frames.next_frame() {
            Ok(Some(frame)) => packets.extend(CapturedPacket::of(&frame)),
            Ok(None) | Err(CaptureError::Cut { .. }) => return Ok(packets),
            Err(damage) => return Err(damage),
        }
    }
}

impl CapturedPacket {
    /// The packet in a frame; `None` when there is none, or only a part of its headers.
    #[must_use]
    pub fn of(frame: &CapturedFrame) -> Option<Self> {
        let (packet, wire_bytes) = frame.network()?;
        parse_ip(frame.at, packet, wire_bytes)
    }
}

fn parse_ip(at: Duration, ip: &[u8], wire_bytes: usize) -> Option<CapturedPacket> {
    let header = match ip.first()? >> 4 {
        4 => ipv4(ip, wire_bytes)?,
        6 => ipv6(ip, wire_bytes)?,
        _ => return None,
    };
    let segment = ip.get(header.length..)?;
    let ports = || Some((half(segment, 0)?, half(segment, 2)?));
    let (transport, (from, to), start) = match header.protocol {
        // A later fragment has no header of its own.
        _ if header.is_fragment => (TransportHeader::Other, (0, 0), 0),
        PROTOCOL_TCP => {
            let start = usize::from(segment.get(12)? >> 4) * 4;
            let payload_bytes = header
                .ip_bytes
                .checked_sub((header.length + start) as u64)?;
            let transport = TransportHeader::Tcp {
                sequence: big_endian(segment, 4)?,
                acknowledgement: big_endian(segment, 8)?,
                flags: *segment.get(13)?,
                payload_bytes: u32::try_from(payload_bytes).ok()?,
            };
            (transport, ports()?, start)
        }
        PROTOCOL_UDP => (TransportHeader::Udp, ports()?, 8),
        _ => (TransportHeader::Other, (0, 0), 0),
    };
    // Ethernet pads short frames; what the IP header does not count is not payload.
    let end = usize::try_from(header.ip_bytes)
        .ok()?
        .checked_sub(header.length)?;
    let segment = &segment[..segment.len().min(end)];
    Some(CapturedPacket {
        at,
        source: SocketAddr::new(header.source, from),
        destination: SocketAddr::new(header.destination, to),
        ip_bytes: header.ip_bytes,
        transport,
        is_fragment: header.is_fragment,
        payload: segment.get(start..).unwrap_or_default().to_vec(),
    })
}

/// Fields of the IP header, extensions included.
struct IpHeader {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// The whole packet's length.
    ip_bytes: u64,
    /// Bytes before the transport's header.
    length: usize,
    /// A piece of a packet, the first one or a later one.
    is_fragment: bool,
}

fn ipv4(ip: &[u8], wire_bytes: usize) -> Option<IpHeader> {
    let address = |start: usize| <[u8; 4]>::try_from(ip.get(start..start + 4)?).ok();
    let ip_bytes = match half(ip, 2)? {
        // Captured before the network card cut it into packets (segmentation offload).
        0 => wire_bytes as u64,
        length => length.into(),
    };
    Some(IpHeader {
        source: address(12)?.into(),
        destination: address(16)?.into(),
        protocol: *ip.get(9)?,
        ip_bytes,
        length: usize::from(ip[0] & 0x0f) * 4,
        // The flag that more follow, and the offset (RFC 791 §3.1).
        is_fragment: half(ip, 6)? & 0x3fff != 0,
    })
}

fn ipv6(ip: &[u8], wire_bytes: usize) -> Option<IpHeader> {
    /// RFC 8200 §4: hop-by-hop, routing, destination options; RFC 4302 §2: authentication.
    const OPTIONS: [u8; 3] = [0, 43, 60];
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    /// More headers than anybody sends.
    const MOST_HEADERS: usize = 16;
    let address = |start: usize| <[u8; 16]>::try_from(ip.get(start..start + 16)?).ok();
    let mut header = IpHeader {
        source: address(8)?.into(),
        destination: address(24)?.into(),
        protocol: *ip.get(6)?,
        ip_bytes: match half(ip, 4)? {
            0 => wire_bytes as u64,
            length => 40 + u64::from(length),
        },
        length: 40,
        is_fragment: false,
    };
    for _ in 0..MOST_HEADERS {
        let size = |at: usize| ip.get(at + 1).map(|size| usize::from(*size));
        let length = match header.protocol {
            kind if OPTIONS.contains(&kind) => (size(header.length)? + 1) * 8,
            AUTHENTICATION => (size(header.length)? + 2) * 4,
            FRAGMENT => {
                // The offset, and the flag that more follow; both are zero in a packet of one piece.
                header.is_fragment |= half(ip, header.length + 2)? & 0xfff9 != 0;
                8
            }
            _ => return Some(header),
        };
        header.protocol = *ip.get(header.length)?;
        header.length += length;
    }
    None
}

fn big_endian(bytes: &[u8], start: usize) -> Option<u32> {
    Some(u32::from_be_bytes(
        bytes.get(start..start + 4)?.try_into().ok()?,
    ))
}

fn half(bytes: &[u8], start: usize) -> Option<u16> {
    Some(u16::from_be_bytes(
        bytes.get(start..start + 2)?.try_into().ok()?,
    ))
}

/// The unspecified address, for tests that build packets by hand.
#[cfg(test)]
pub(super) fn test_address(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([198, 18, last, 2], port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(link: u32, frames: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 256, link] {
            bytes.extend(field.to_ne_bytes());
        }
        for frame in frames {
            for field in [5, 250, frame.len() as u32, frame.len() as u32] {
                bytes.extend(field.to_ne_bytes());
            }
            bytes.extend_from_slice(frame);
        }
        bytes
    }

    fn tcp_packet(payload: &[u8], length_on_wire: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0];
        packet.extend(length_on_wire.to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, PROTOCOL_TCP, 0, 0]);
        packet.extend([198, 18, 1, 2, 198, 18, 2, 2]);
        packet.extend(1234_u16.to_be_bytes());
        packet.extend(80_u16.to_be_bytes());
        packet.extend(77_u32.to_be_bytes());
        packet.extend(99_u32.to_be_bytes());
        packet.extend([0x50, 0x18, 0, 0, 0, 0, 0, 0]);
        packet.extend_from_slice(payload);
        packet
    }

    #[test]
    fn a_cut_packet_keeps_its_lengths() {
        let packet = tcp_packet(b"GET /a", 1040);
        let packets = parse(&file(101, &[&packet])[..]).unwrap();
        assert_eq!(packets.len(), 1);
        assert_eq!(packets[0].ip_bytes, 1040);
        assert_eq!(packets[0].payload, b"GET /a");
        assert_eq!(packets[0].at, Duration::new(5, 250_000));
        assert_eq!(packets[0].source, test_address(1, 1234));
        assert_eq!(
            packets[0].transport,
            TransportHeader::Tcp {
                sequence: 77,
                acknowledgement: 99,
                flags: 0x18,
                payload_bytes: 1000
            }
        );
    }

    #[test]
    fn ethernet_padding_is_not_payload() {
        let mut frame = [[0; 12].to_vec(), vec![8, 0]].concat();
        frame.extend(tcp_packet(b"", 40));
        frame.extend([0; 6]);
        let packets = parse(&file(1, &[&frame])[..]).unwrap();
        assert!(packets[0].payload.is_empty());
    }

    #[test]
    fn damaged_files_never_panic() {
        let whole = file(
            101,
            &[&tcp_packet(b"GET /a", 46), &tcp_packet(b"GET /b", 46)],
        );
        for length in 0..whole.len() {
            let _ = parse(&whole[..length]);
        }
        assert_eq!(parse(&whole[..whole.len() - 1]).unwrap().len(), 1);
        assert!(parse(&[0; 64][..]).is_err());
        let mut random = vocab::SeededRandom::from_seed(1);
        for _ in 0..2000 {
            let mut damaged = whole.clone();
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] = random.next_u64() as u8;
            let _ = parse(&damaged[..]);
        }
    }

    #[test]
    fn addresses_of_both_families_are_read() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 12, PROTOCOL_UDP, 64];
        packet.extend(
            "2001:2:0:1::2"
                .parse::<std::net::Ipv6Addr>()
                .unwrap()
                .octets(),
        );
        packet.extend(
            "2001:2:0:2::2"
                .parse::<std::net::Ipv6Addr>()
                .unwrap()
                .octets(),
        );
        packet.extend([0, 1, 0, 9, 0, 12, 0, 0, b'a', b'b', b'c', b'd']);
        let packets = parse(&file(12, &[&packet])[..]).unwrap();
        assert_eq!(packets[0].destination.to_string(), "[2001:2:0:2::2]:9");
        assert_eq!(packets[0].payload, b"abcd");
        assert_eq!(packets[0].ip_bytes, 52);
    }

    #[test]
    fn extension_headers_are_skipped_and_fragments_ignored() {
        let plain = tcp_packet(b"GET /a", 46);
        let mut packet = vec![0x60, 0, 0, 0, 0, 8 + 8 + 26, 0, 64];
        packet.extend([0; 32]);
        packet.extend([44, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend([PROTOCOL_TCP, 0, 0, 0, 0, 0, 0, 1]);
        packet.extend_from_slice(&plain[20..]);
        let packets = parse(&file(101, &[&packet])[..]).unwrap();
        assert_eq!(packets[0].payload, b"GET /a");
        // A later fragment, and a first one.
        for (at, byte) in [(50, 1), (51, 1)] {
            let mut fragment = packet.clone();
            fragment[at] = byte;
            let packets = parse(&file(101, &[&fragment])[..]).unwrap();
            assert_eq!(packets[0].transport, TransportHeader::Other);
        }
        let mut fragment = plain.clone();
        fragment[6] = 0x20;
        let packets = parse(&file(101, &[&fragment])[..]).unwrap();
        assert_eq!(packets[0].transport, TransportHeader::Other);
    }

    #[test]
    fn offloaded_packet_has_its_captured_length() {
        let packet = tcp_packet(&[7; 60], 0);
        let packets = parse(&file(101, &[&packet])[..]).unwrap();
        assert_eq!(packets[0].payload.len(), 60);
    }
}
