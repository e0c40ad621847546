//! Capture files as tcpdump writes them: the classic pcap format, Ethernet or bare IP.
//!
//! Reads what the analysis needs and no more: time, addresses, lengths, TCP's numbers and flags, and
//! the first payload bytes. The format is that of pcap-savefile(5); link types 1 (Ethernet), 12
//! and 101 (raw IP). It does not put segments together: what is looked for stands at the start of
//! one.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const LINK_ETHERNET: u32 = 1;
/// LINKTYPE_RAW, and DLT_RAW as Linux numbers it.
const LINK_RAW: [u32; 2] = [101, 12];
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// One captured IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// When it was captured, since the Unix epoch.
    pub at: Duration,
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
    /// The length of the whole IP packet, IP header included, in bytes.
    pub ip_bytes: u64,
    /// What it carries.
    pub transport: Transport,
    /// The transport's payload, as far as it was captured.
    pub payload: Vec<u8>,
}

/// The transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
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
pub(super) const SYN: u8 = 0x02;
/// The ACK flag: the acknowledgement number means something.
pub(super) const ACK: u8 = 0x10;

impl Packet {
    /// Whether it opens a connection (SYN without ACK).
    #[must_use]
    pub fn opens_connection(&self) -> bool {
        matches!(self.transport, Transport::Tcp { flags, .. } if flags & (SYN | ACK) == SYN)
    }
}

/// Reads all IP packets of a capture file.
///
/// A packet cut off at the end of the file (tcpdump was killed) is left out; packets of other
/// protocols are skipped.
///
/// # Errors
/// When the file cannot be read or is not a capture.
pub fn read(path: &Path) -> Result<Vec<Packet>> {
    let bytes =
        std::fs::read(path).with_context(|| format!("reading the capture {}", path.display()))?;
    parse(&bytes).with_context(|| format!("{} is not a capture file", path.display()))
}

fn parse(bytes: &[u8]) -> Result<Vec<Packet>> {
    let Some((header, mut rest)) = bytes.split_at_checked(24) else {
        bail!("it is shorter than a header");
    };
    let nanoseconds_per_unit = match word(header, 0) {
        Some(0xa1b2_c3d4) => 1000,
        Some(0xa1b2_3c4d) => 1,
        _ => bail!("it does not start as one written on this machine does"),
    };
    let link = word(header, 20).unwrap_or_default() & 0xffff;
    if link != LINK_ETHERNET && !LINK_RAW.contains(&link) {
        bail!("its link type {link} is neither Ethernet nor raw IP");
    }
    let mut packets = Vec::new();
    while let Some((record, tail)) = rest.split_at_checked(16) {
        let field = |index| word(record, index).unwrap_or_default();
        let Some((frame, tail)) = tail.split_at_checked(field(8) as usize) else {
            break;
        };
        rest = tail;
        let at = Duration::from_secs(field(0).into())
            + Duration::from_nanos(u64::from(field(4)) * nanoseconds_per_unit);
        let ip = if link == LINK_ETHERNET {
            frame.get(14..)
        } else {
            Some(frame)
        };
        packets.extend(ip.and_then(|ip| parse_ip(at, ip)));
    }
    Ok(packets)
}

fn parse_ip(at: Duration, ip: &[u8]) -> Option<Packet> {
    let (source, destination, protocol, ip_bytes, header) = match ip.first()? >> 4 {
        4 => {
            let address = |start: usize| {
                Some(IpAddr::from(
                    <[u8; 4]>::try_from(ip.get(start..start + 4)?).ok()?,
                ))
            };
            let header = usize::from(ip[0] & 0x0f) * 4;
            (
                address(12)?,
                address(16)?,
                *ip.get(9)?,
                u64::from(half(ip, 2)?),
                header,
            )
        }
        6 => {
            let address = |start: usize| {
                Some(IpAddr::from(
                    <[u8; 16]>::try_from(ip.get(start..start + 16)?).ok()?,
                ))
            };
            (
                address(8)?,
                address(24)?,
                *ip.get(6)?,
                40 + u64::from(half(ip, 4)?),
                40,
            )
        }
        _ => return None,
    };
    let segment = ip.get(header..)?;
    let ports = || Some((half(segment, 0)?, half(segment, 2)?));
    let (transport, (from, to), start) = match protocol {
        PROTOCOL_TCP => {
            let start = usize::from(segment.get(12)? >> 4) * 4;
            let payload_bytes = ip_bytes.checked_sub((header + start) as u64)?;
            let transport = Transport::Tcp {
                sequence: big_endian(segment, 4)?,
                acknowledgement: big_endian(segment, 8)?,
                flags: *segment.get(13)?,
                payload_bytes: u32::try_from(payload_bytes).ok()?,
            };
            (transport, ports()?, start)
        }
        PROTOCOL_UDP => (Transport::Udp, ports()?, 8),
        _ => (Transport::Other, (0, 0), 0),
    };
    // Ethernet pads short frames; what the IP header does not count is not payload.
    let end = usize::try_from(ip_bytes).ok()?.checked_sub(header)?;
    let segment = &segment[..segment.len().min(end)];
    Some(Packet {
        at,
        source: SocketAddr::new(source, from),
        destination: SocketAddr::new(destination, to),
        ip_bytes,
        transport,
        payload: segment.get(start..).unwrap_or_default().to_vec(),
    })
}

/// A word in this machine's order, as capture files are written.
fn word(bytes: &[u8], start: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(
        bytes.get(start..start + 4)?.try_into().ok()?,
    ))
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
        let packets = parse(&file(101, &[&packet])).unwrap();
        assert_eq!(packets.len(), 1);
        assert_eq!(packets[0].ip_bytes, 1040);
        assert_eq!(packets[0].payload, b"GET /a");
        assert_eq!(packets[0].at, Duration::new(5, 250_000));
        assert_eq!(packets[0].source, test_address(1, 1234));
        assert_eq!(
            packets[0].transport,
            Transport::Tcp {
                sequence: 77,
                acknowledgement: 99,
                flags: 0x18,
                payload_bytes: 1000
            }
        );
    }

    #[test]
    fn ethernet_padding_is_not_payload() {
        let mut frame = vec![0; 14];
        frame.extend(tcp_packet(b"", 40));
        frame.extend([0; 6]);
        let packets = parse(&file(1, &[&frame])).unwrap();
        assert!(packets[0].payload.is_empty());
    }

    #[test]
    fn damaged_files_are_refused_or_cut_and_never_panic() {
        let whole = file(
            101,
            &[&tcp_packet(b"GET /a", 46), &tcp_packet(b"GET /b", 46)],
        );
        for length in 0..whole.len() {
            let _ = parse(&whole[..length]);
        }
        assert_eq!(parse(&whole[..whole.len() - 1]).unwrap().len(), 1);
        assert!(parse(&[0; 64]).is_err());
        let mut random = vocab::Random::from_seed(1);
        for _ in 0..2000 {
            let mut damaged = whole.clone();
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] = random.next_u64() as u8;
            let _ = parse(&damaged);
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
        let packets = parse(&file(12, &[&packet])).unwrap();
        assert_eq!(packets[0].destination.to_string(), "[2001:2:0:2::2]:9");
        assert_eq!(packets[0].payload, b"abcd");
        assert_eq!(packets[0].ip_bytes, 52);
    }
}
