//! A TCP segment of a capture, with the header fields that a diagnosis needs.
//!
//! [`TcpSegment::parse`] takes a captured IP packet, truncated or not, and never panics. A
//! super-segment (captured before the card segmented it, or after it was coalesced) is one segment
//! with a long payload; its length comes from the IP header or, where that is zero, from the length
//! on the wire.

use std::net::{IpAddr, SocketAddr};

use vocab::Time;

const PROTOCOL_TCP: u8 = 6;
/// Flags of RFC 9293 §3.1 (Header Format).
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// The longest super-segment that is believed. An IP packet has 65,535 bytes at most; Linux hands up to eight
/// times as many to a card at once (`GSO_MAX_SIZE`, "BIG TCP"). A jumbogram (RFC 2675) may be longer, but no
/// link carries one.
pub(super) const MOST_PAYLOAD: u32 = 8 * 65_535;
/// Greatest number of IPv6 extension headers; real packets have fewer.
const MOST_EXTENSIONS: usize = 8;

/// A TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSegment {
    /// Capture time.
    pub at: Time,
    /// Sender.
    pub source: SocketAddr,
    /// Receiver.
    pub destination: SocketAddr,
    /// The sequence number of its first byte.
    pub sequence: u32,
    /// Acknowledgement number, if the ACK flag is set.
    pub acknowledgement: Option<u32>,
    /// Set if it opens a connection (SYN).
    pub opens: bool,
    /// Set if it ends a connection (FIN or RST).
    pub ends: bool,
    /// The window field, not scaled.
    pub window: u16,
    /// Its payload on the wire.
    pub payload_bytes: u32,
    /// The headers of IP and TCP.
    pub header_bytes: u32,
    /// TCP options of the segment.
    pub options: TcpOptions,
}

/// TCP options that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// RFC 9293 §3.7.1 (Maximum Segment Size).
    pub segment_bytes: Option<u16>,
    /// RFC 7323 §2 (Window Scale).
    pub window_scale: Option<u8>,
    /// RFC 7323 §3 (Time Stamps): the sender's clock, and the echo of the peer's.
    pub stamps: Option<(u32, u32)>,
    /// SACK blocks (RFC 2018 §3): first and one past the last byte; unused ones are `None`.
    pub blocks: [Option<(u32, u32)>; 4],
}

impl TcpSegment {
    /// Parses the headers of an IP packet captured at `at`, of which `wire_bytes` were on the wire.
    /// `None` for anything without a complete TCP header: other protocols, later fragments,
    /// truncated headers.
    #[must_use]
    pub fn parse(at: Time, ip: &[u8], wire_bytes: usize) -> Option<Self> {
        let header = match ip.first()? >> 4 {
            4 => ipv4(ip, wire_bytes)?,
            6 => ipv6(ip, wire_bytes)?,
            _ => return None,
        };
        let tcp = ip.get(header.length..)?;
        let length = usize::from(*tcp.get(12)? >> 4) * 4;
        if length < 20 {
            return None;
        }
        let flags = *tcp.get(13)?;
        let header_bytes = header.length + length;
        let payload_bytes = u32::try_from(header.packet.checked_sub(header_bytes)?)
            .ok()
            .filter(|payload| *payload <= MOST_PAYLOAD)?;
        Some(Self {
            at,
            source: SocketAddr::new(header.source, half(tcp, 0)?),
            destination: SocketAddr::new(header.destination, half(tcp, 2)?),
            sequence: word(tcp, 4)?,
            acknowledgement: (flags & ACK != 0).then_some(word(tcp, 8)?),
            opens: flags & SYN != 0,
            ends: flags & (FIN | RST) != 0,
            window: half(tcp, 14)?,
            payload_bytes,
            header_bytes: u32::try_from(header_bytes).ok()?,
            options: TcpOptions::parse(tcp.get(20..tcp.len().min(length)).unwrap_or_default()),
        })
    }
}

impl TcpOptions {
    /// Parses the options (RFC 9293 §3.2, Specific Option Definitions); a damaged one ends the
    /// list.
    fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let Some(kind) = bytes.first() {
            let length = match kind {
                0 => break,
                1 => 1,
                _ => usize::from(bytes.get(1).copied().unwrap_or_default()),
            };
            let Some(option) = bytes.get(..length).filter(|option| !option.is_empty()) else {
                break;
            };
            match (kind, length) {
                (2, 4) => options.segment_bytes = half(option, 2),
                (3, 3) => options.window_scale = Some(option[2].min(14)),
                (8, 10) => options.stamps = word(option, 2).zip(word(option, 6)),
                (5, _) => {
                    for (index, block) in options.blocks.iter_mut().enumerate() {
                        let at = 2 + 8 * index;
                        *block = word(option, at).zip(word(option, at + 4));
                    }
                }
                _ => {}
            }
            bytes = &bytes[length..];
        }
        options
    }
}

struct IpHeader {
    source: IpAddr,
    destination: IpAddr,
    /// Bytes before TCP's header.
    length: usize,
    /// Bytes of the whole packet.
    packet: usize,
}

fn ipv4(ip: &[u8], wire_bytes: usize) -> Option<IpHeader> {
    let address = |start: usize| <[u8; 4]>::try_from(ip.get(start..start + 4)?).ok();
    let length = usize::from(ip[0] & 0x0f) * 4;
    // Fragments have no TCP header of their own, or not all of their payload.
    let is_fragment = half(ip, 6)? & 0x3fff != 0;
    if length < 20 || is_fragment || *ip.get(9)? != PROTOCOL_TCP {
        return None;
    }
    Some(IpHeader {
        source: address(12)?.into(),
        destination: address(16)?.into(),
        length,
        packet: match half(ip, 2)? {
            0 => wire_bytes,
            packet => packet.into(),
        },
    })
}

fn ipv6(ip: &[u8], wire_bytes: usize) -> Option<IpHeader> {
    /// RFC 8200 §4: hop-by-hop, routing, destination options.
    const EXTENSIONS: [u8; 3] = [0, 43, 60];
    let address = |start: usize| <[u8; 16]>::try_from(ip.get(start..start + 16)?).ok();
    let (mut next, mut length) = (*ip.get(6)?, 40);
    for _ in 0..MOST_EXTENSIONS {
        if !EXTENSIONS.contains(&next) {
            break;
        }
        next = *ip.get(length)?;
        length += (usize::from(*ip.get(length + 1)?) + 1) * 8;
    }
    (next == PROTOCOL_TCP).then_some(IpHeader {
        source: address(8)?.into(),
        destination: address(24)?.into(),
        length,
        packet: match half(ip, 4)? {
            0 => wire_bytes,
            payload => 40 + usize::from(payload),
        },
    })
}

fn word(bytes: &[u8], start: usize) -> Option<u32> {
    Some(u32::from_be_bytes(
        bytes.get(start..start + 4)?.try_into().ok()?,
    ))
}

fn half(bytes: &[u8], start: usize) -> Option<u16> {
    Some(u16::from_be_bytes(
        bytes.get(start..start + 2)?.try_into().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> Vec<u8> {
        let mut packet = vec![
            0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        packet.extend(443_u16.to_be_bytes());
        packet.extend(50_000_u16.to_be_bytes());
        packet.extend(7_u32.to_be_bytes());
        packet.extend(9_u32.to_be_bytes());
        packet.extend([0xd0, ACK, 1, 0, 0, 0, 0, 0]);
        packet.extend([1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6]);
        packet.extend([1, 1, 5, 18]);
        for edge in [100_u32, 200, 300, 400] {
            packet.extend(edge.to_be_bytes());
        }
        packet
    }

    #[test]
    fn headers_options_and_an_offloaded_length_are_read() {
        let segment = TcpSegment::parse(Time::ZERO, &packet(), 40_072).unwrap();
        assert_eq!(segment.source, "10.0.0.1:443".parse().unwrap());
        assert_eq!((segment.sequence, segment.acknowledgement), (7, Some(9)));
        assert_eq!((segment.header_bytes, segment.payload_bytes), (72, 40_000));
        assert_eq!(segment.options.stamps, Some((5, 6)));
        assert_eq!(
            segment.options.blocks,
            [Some((100, 200)), Some((300, 400)), None, None]
        );
        assert!(!segment.opens && !segment.ends);
    }

    #[test]
    fn longest_offloaded_length_is_read_longer_is_refused() {
        let longest = MOST_PAYLOAD as usize + 72;
        let segment = TcpSegment::parse(Time::ZERO, &packet(), longest).unwrap();
        assert_eq!(segment.payload_bytes, MOST_PAYLOAD);
        for wire_bytes in [longest + 1, u32::MAX as usize] {
            assert_eq!(TcpSegment::parse(Time::ZERO, &packet(), wire_bytes), None);
        }
    }

    #[test]
    fn damaged_packets_never_panic_the_reader() {
        let whole = packet();
        for length in 0..whole.len() {
            let _ = TcpSegment::parse(Time::ZERO, &whole[..length], whole.len());
        }
        let mut random = vocab::SeededRandom::from_seed(1);
        for _ in 0..5_000 {
            let mut bent = whole.clone();
            let at = random.below(bent.len() as u64) as usize;
            bent[at] = random.next_u64() as u8;
            let _ = TcpSegment::parse(Time::ZERO, &bent, whole.len());
        }
    }
}
