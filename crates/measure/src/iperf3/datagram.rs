//! Format of iperf3's UDP datagrams: a timestamp, a number, and padding (iperf_udp.c, with
//! `udp_counters_64bit`).
//!
//! ```text
//!  0        4             8        16
//!  seconds  microseconds  number   filling
//! ```
//! Numbers count from 1. Before the first of them the client shows the server its address with four bytes,
//! and the server answers with four.

use std::time::Duration;

use vocab::{ByteReader, TruncatedInput};

/// Message with which a client shows its address (`UDP_CONNECT_MSG` of iperf.h, as a little-endian
/// host writes it).
pub const HELLO: [u8; 4] = *b"9876";
/// Bytes of a datagram without filling.
pub const STAMP_BYTES: usize = 16;

/// The head of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampedHeader {
    /// Time of sending, to the microsecond, by the sender's clock.
    pub at: Duration,
    /// Its number, from 1 on.
    pub number: u64,
}

impl StampedHeader {
    /// Writes a datagram of `length` bytes into `out`, replacing its content.
    pub fn emit(&self, length: usize, out: &mut Vec<u8>) {
        out.clear();
        // iperf3's seconds have 32 bits.
        out.extend((self.at.as_secs() as u32).to_be_bytes());
        out.extend(self.at.subsec_micros().to_be_bytes());
        out.extend(self.number.to_be_bytes());
        out.resize(length.max(STAMP_BYTES), 0);
    }

    /// Parses one; [`None`] if it is too short, as the server's four bytes are.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        read(bytes).ok().filter(|head| head.number > 0)
    }
}

fn read(bytes: &[u8]) -> Result<StampedHeader, TruncatedInput> {
    let mut reader = ByteReader::new(bytes);
    let seconds = Duration::from_secs(u64::from(reader.u32()?));
    let microseconds = Duration::from_micros(u64::from(reader.u32()?));
    Ok(StampedHeader {
        at: seconds + microseconds,
        number: reader.u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_messages_are_read_back() {
        let head = StampedHeader {
            at: Duration::new(67_918, 63_838_000),
            number: u64::from(u32::MAX) + 1,
        };
        let mut bytes = vec![1, 2, 3];
        head.emit(1_472, &mut bytes);
        assert_eq!(bytes.len(), 1_472);
        assert_eq!(StampedHeader::parse(&bytes), Some(head));
    }

    /// The second packet of a server's stream, as iperf3 3.12 sent it with counters of 64 bits.
    #[test]
    fn a_recorded_datagram_is_understood() {
        let bytes = [
            0, 1, 0x0a, 0x8e, 0, 0x0d, 0x8d, 0x97, 0, 0, 0, 0, 0, 0, 0, 2, 0xe4, 0xfe,
        ];
        let head = StampedHeader::parse(&bytes).unwrap();
        assert_eq!(head.number, 2);
        assert_eq!(head.at, Duration::new(68_238, 888_215_000));
    }

    #[test]
    fn a_greeting_is_no_datagram() {
        assert_eq!(StampedHeader::parse(b"6789"), None);
        assert_eq!(StampedHeader::parse(&[0; 16]), None);
    }
}
