//! A TCP segment of a connection that passes by: its numbers as they were logged, and the segments that a node sends
//! for one of the two hosts (RFC 9293 §3.1, "Header Format").
//!
//! A question is a keep-alive (RFC 9293 §3.8.4): an empty segment in front of the receiver's window. The receiver
//! answers with its current numbers and changes nothing. A reset has exactly the number that the receiver expects
//! next (RFC 5961 §3.2), and closes the connection there.
//!
//! The parser accepts any bytes, and packets of which only the headers were logged. It does not follow IPv6 extension
//! headers before the TCP header.

use std::net::{IpAddr, SocketAddr};

use super::syn_packet::{as_ipv6, ipv4, ipv4_header, ipv6, ipv6_header, set_tcp_checksum};

const TCP_HEADER: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const FLAG_FIN: u8 = 0x01;
const FLAG_SYN: u8 = 0x02;
const FLAG_RST: u8 = 0x04;
const FLAG_ACK: u8 = 0x10;
const OPTION_END: u8 = 0;
const OPTION_NOTHING: u8 = 1;
/// The timestamps option (RFC 7323 §3.2) and its length.
const OPTION_TIMESTAMPS: u8 = 8;
const TIMESTAMPS_LENGTH: u8 = 10;

/// The numbers of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcpSegment {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) sequence: u32,
    /// The number that its sender expects next.
    pub(super) acknowledged: u32,
    /// The bytes of payload, by the IP header.
    pub(super) payload: u32,
    pub(super) kind: SegmentKind,
    pub(super) window: u16,
    pub(super) timestamps: Option<SegmentTimestamps>,
}

/// The flags that matter to a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentKind {
    /// A segment of an open connection.
    Open,
    /// A segment with SYN, FIN or RST, or without ACK.
    Ending,
}

/// The option of RFC 7323.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentTimestamps {
    pub(super) value: u32,
    pub(super) echo: u32,
}

impl TcpSegment {
    /// Reads an IP packet that may be cut behind the TCP header; `None` when it is not a TCP packet.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let (tcp_at, length, source, destination) = match packet.first()? >> 4 {
            4 => ipv4(packet)?,
            6 => ipv6(packet)?,
            _ => return None,
        };
        let tcp = packet.get(tcp_at..)?;
        let fixed = tcp.first_chunk::<TCP_HEADER>()?;
        let header = usize::from(fixed[12] >> 4) * 4;
        let options = tcp.get(TCP_HEADER..header)?;
        let payload = length.checked_sub(tcp_at)?.checked_sub(header)?;
        let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let number = |at: usize| {
            u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
        };
        let is_open = fixed[13] & (FLAG_SYN | FLAG_FIN | FLAG_RST | FLAG_ACK) == FLAG_ACK;
        Some(Self {
            source: SocketAddr::new(source, word(0)),
            destination: SocketAddr::new(destination, word(2)),
            sequence: number(4),
            acknowledged: number(8),
            payload: u32::try_from(payload).ok()?,
            kind: match is_open {
                true => SegmentKind::Open,
                false => SegmentKind::Ending,
            },
            window: word(14),
            timestamps: timestamps(options),
        })
    }

    /// The number of the byte that the sender sends next.
    pub(super) fn next_sequence(&self) -> u32 {
        self.sequence.wrapping_add(self.payload)
    }

    /// Returns the segment as its sender would have sent it after it had received this timestamp of the other host.
    pub(super) fn with_echo(mut self, echo: u32) -> Self {
        if let Some(stamps) = &mut self.timestamps {
            stamps.echo = echo;
        }
        self
    }

    /// Builds the packet by which the receiver of this segment would ask its sender whether it still lives.
    pub(super) fn question_to_sender(&self) -> Vec<u8> {
        let question = Self {
            source: self.destination,
            destination: self.source,
            sequence: self.acknowledged.wrapping_sub(1),
            acknowledged: self.next_sequence(),
            timestamps: self.timestamps.map(|stamps| SegmentTimestamps {
                value: stamps.echo,
                echo: stamps.value,
            }),
            ..*self
        };
        question.packet(FLAG_ACK)
    }

    /// Builds the packet by which the sender of this segment would ask the receiver whether it still lives.
    pub(super) fn question_to_receiver(&self) -> Vec<u8> {
        let question = Self {
            sequence: self.next_sequence().wrapping_sub(1),
            ..*self
        };
        question.packet(FLAG_ACK)
    }

    /// Builds the reset of the connection at the sender of this segment.
    pub(super) fn reset_to_sender(&self) -> Vec<u8> {
        let reset = Self {
            source: self.destination,
            destination: self.source,
            sequence: self.acknowledged,
            acknowledged: self.next_sequence(),
            window: 0,
            timestamps: None,
            ..*self
        };
        reset.packet(FLAG_RST | FLAG_ACK)
    }

    /// Builds the reset of the connection at the receiver of this segment.
    pub(super) fn reset_to_receiver(&self) -> Vec<u8> {
        let reset = Self {
            sequence: self.next_sequence(),
            window: 0,
            timestamps: None,
            ..*self
        };
        reset.packet(FLAG_RST | FLAG_ACK)
    }

    /// Builds a packet with these numbers and without payload.
    fn packet(&self, flags: u8) -> Vec<u8> {
        let mut segment = vec![0; TCP_HEADER];
        segment[..2].copy_from_slice(&self.source.port().to_be_bytes());
        segment[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
        segment[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        segment[8..12].copy_from_slice(&self.acknowledged.to_be_bytes());
        segment[13] = flags;
        segment[14..16].copy_from_slice(&self.window.to_be_bytes());
        if let Some(SegmentTimestamps { value, echo }) = self.timestamps {
            let option = [
                OPTION_NOTHING,
                OPTION_NOTHING,
                OPTION_TIMESTAMPS,
                TIMESTAMPS_LENGTH,
            ];
            segment.extend(option);
            segment.extend(value.to_be_bytes());
            segment.extend(echo.to_be_bytes());
        }
        segment[12] = ((segment.len() / 4) as u8) << 4;
        let (from, to) = (self.source.ip(), self.destination.ip());
        let mut packet = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                ipv4_header(from, to, PROTOCOL_TCP, segment.len())
            }
            (from, to) => ipv6_header(as_ipv6(from), as_ipv6(to), PROTOCOL_TCP, segment.len()),
        };
        let tcp_at = packet.len();
        packet.extend(segment);
        set_tcp_checksum(&mut packet, tcp_at, from, to);
        packet
    }
}

/// The timestamps among the options of a header.
fn timestamps(mut options: &[u8]) -> Option<SegmentTimestamps> {
    loop {
        match options {
            [] | [OPTION_END, ..] => return None,
            [OPTION_NOTHING, rest @ ..] => options = rest,
            [OPTION_TIMESTAMPS, TIMESTAMPS_LENGTH, rest @ ..] => {
                let value = u32::from_be_bytes(*rest.first_chunk()?);
                let echo = u32::from_be_bytes(*rest.get(4..)?.first_chunk()?);
                return Some(SegmentTimestamps { value, echo });
            }
            [_, length, ..] if *length >= 2 => options = options.get(usize::from(*length)..)?,
            [_, ..] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(is_ipv4: bool) -> TcpSegment {
        let (source, destination) = match is_ipv4 {
            true => ("198.18.1.2:40000", "198.18.2.2:445"),
            false => ("[2001:2:0:1::2]:40000", "[2001:2:0:2::2]:445"),
        };
        TcpSegment {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            sequence: u32::MAX - 9,
            acknowledged: 500,
            payload: 0,
            kind: SegmentKind::Open,
            window: 512,
            timestamps: Some(SegmentTimestamps {
                value: 70,
                echo: 60,
            }),
        }
    }

    #[test]
    fn segments_of_both_families_parse_as_written() {
        for is_ipv4 in [true, false] {
            let segment = segment(is_ipv4);
            assert_eq!(TcpSegment::parse(&segment.packet(FLAG_ACK)), Some(segment));
            let plain = TcpSegment {
                timestamps: None,
                ..segment
            };
            assert_eq!(TcpSegment::parse(&plain.packet(FLAG_ACK)), Some(plain));
            for flags in [FLAG_RST | FLAG_ACK, FLAG_FIN | FLAG_ACK, FLAG_SYN, 0] {
                let parsed = TcpSegment::parse(&segment.packet(flags)).unwrap();
                assert_eq!(parsed.kind, SegmentKind::Ending);
            }
        }
    }

    #[test]
    fn payload_counts_though_the_log_cuts_it() {
        let mut packet = segment(true).packet(FLAG_ACK);
        let length = packet.len() as u16 + 100;
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        let parsed = TcpSegment::parse(&packet).unwrap();
        assert_eq!(parsed.payload, 100);
        assert_eq!(parsed.next_sequence(), 90, "numbers wrap");
    }

    #[test]
    fn questions_lie_in_front_of_the_window() {
        for is_ipv4 in [true, false] {
            let seen = segment(is_ipv4);
            let to_sender = TcpSegment::parse(&seen.question_to_sender()).unwrap();
            assert_eq!(
                (to_sender.source, to_sender.destination),
                (seen.destination, seen.source)
            );
            assert_eq!(to_sender.sequence, 499);
            assert_eq!(to_sender.acknowledged, u32::MAX - 9);
            let stamps = to_sender.timestamps.unwrap();
            assert_eq!((stamps.value, stamps.echo), (60, 70));
            let to_receiver = TcpSegment::parse(&seen.question_to_receiver()).unwrap();
            assert_eq!(to_receiver.destination, seen.destination);
            assert_eq!(to_receiver.sequence, u32::MAX - 10);
            assert_eq!(to_receiver.acknowledged, 500);
        }
    }

    #[test]
    fn resets_have_the_number_expected_next() {
        let seen = segment(true);
        let to_sender = TcpSegment::parse(&seen.reset_to_sender()).unwrap();
        assert_eq!(to_sender.destination, seen.source);
        assert_eq!(to_sender.sequence, 500);
        let to_receiver = TcpSegment::parse(&seen.reset_to_receiver()).unwrap();
        assert_eq!(to_receiver.destination, seen.destination);
        assert_eq!(to_receiver.sequence, u32::MAX - 9);
        for reset in [to_sender, to_receiver] {
            assert_eq!(reset.kind, SegmentKind::Ending);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            at in 0_usize..60,
            byte: u8,
        ) {
            let _ = TcpSegment::parse(&bytes);
            let mut bent = segment(bytes.len() % 2 == 0).packet(FLAG_ACK);
            let at = at.min(bent.len() - 1);
            bent[at] = byte;
            let _ = TcpSegment::parse(&bent);
            let _ = TcpSegment::parse(&bent[..at]);
        }
    }
}
