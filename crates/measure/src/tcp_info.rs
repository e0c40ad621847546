//! Kernel counters of a connection: `struct tcp_info` of Linux, read from its bytes.
//!
//! A shell asks for it by getsockopt (TCP_INFO, tcp(7)) and hands over the bytes. The kernel appends
//! fields with time and says how many bytes it filled in; a field that an older kernel does not have
//! is [`None`] where that matters, never a zero that looks like a figure. The places of the fields are
//! those of include/uapi/linux/tcp.h, which never move.
//!
//! `bytes_sent` includes retransmissions and `bytes_retransmitted` counts a byte every time that it is
//! sent again, as RFC 6349 §4.2 wants both.

use std::time::Duration;

use vocab::{Bitrate, ByteCount};

/// Least length with the fields that RFC 6349 needs: up to the retransmitted bytes (Linux 4.19).
const LENGTH_MIN: usize = 216;
/// Up to the window that the peer advertises (Linux 5.4).
const LENGTH_WITH_WINDOW: usize = 232;
/// Length of all known fields; further fields of a newer kernel are not read.
pub const LENGTH_MAX: usize = 256;

/// The counters of one connection at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Payload in a full segment that this end sends.
    pub segment_bytes: u32,
    /// The path MTU that the kernel assumes.
    pub path_mtu: u32,
    /// The smoothed RTT.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rtt_variance: Duration,
    /// The least RTT of late (tcp_min_rtt_wlen); not RFC 6349's baseline.
    pub rtt_min: Duration,
    /// The congestion window, in segments.
    pub congestion_window: u32,
    /// The slow-start threshold, in segments.
    pub slow_start_threshold: u32,
    /// Segments that are under way.
    pub unacknowledged: u32,
    /// Segments that were sent again.
    pub segments_retransmitted: u32,
    /// Payload that the peer acknowledged.
    pub bytes_acknowledged: ByteCount,
    /// Payload that came in.
    pub bytes_received: ByteCount,
    /// Payload that went out, retransmissions included.
    pub bytes_sent: ByteCount,
    /// Payload that went out again, each time counted.
    pub bytes_retransmitted: ByteCount,
    /// The rate of the latest deliveries, as the kernel samples it.
    pub delivery_rate: Bitrate,
    /// Time with data to send.
    pub busy: Duration,
    /// Time that the peer's window limited the sender.
    pub receive_window_limited: Duration,
    /// Time that the own send buffer limited the sender.
    pub send_buffer_limited: Duration,
    /// Reordering events seen.
    pub reorderings: u32,
    /// The window that the peer advertises; before Linux 5.4 not known.
    pub peer_window: Option<ByteCount>,
}

impl TcpInfo {
    /// Parses the bytes from getsockopt; [`None`] where the kernel does not count retransmitted
    /// bytes.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < LENGTH_MIN {
            return None;
        }
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
            bytes.map_or(0, u32::from_ne_bytes)
        };
        let long = |at: usize| {
            let bytes = bytes
                .get(at..at + 8)
                .and_then(|eight| eight.try_into().ok());
            bytes.map_or(0, u64::from_ne_bytes)
        };
        let microseconds = |at| Duration::from_micros(u64::from(word(at)));
        Some(Self {
            segment_bytes: word(16),
            unacknowledged: word(24),
            path_mtu: word(60),
            rtt: microseconds(68),
            rtt_variance: microseconds(72),
            slow_start_threshold: word(76),
            congestion_window: word(80),
            segments_retransmitted: word(100),
            bytes_acknowledged: ByteCount::new(long(120)),
            bytes_received: ByteCount::new(long(128)),
            rtt_min: microseconds(148),
            // The kernel counts bytes a second.
            delivery_rate: Bitrate::from_bits_per_second(long(160).saturating_mul(8)),
            busy: Duration::from_micros(long(168)),
            receive_window_limited: Duration::from_micros(long(176)),
            send_buffer_limited: Duration::from_micros(long(184)),
            bytes_sent: ByteCount::new(long(200)),
            bytes_retransmitted: ByteCount::new(long(208)),
            reorderings: word(220),
            peer_window: (bytes.len() >= LENGTH_WITH_WINDOW)
                .then(|| ByteCount::new(u64::from(word(228)))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that the kernel would fill in, with these values at their places in linux/tcp.h.
    fn filled(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut put = |at: usize, value: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + value.len()) {
                place.copy_from_slice(value);
            }
        };
        put(16, &1_448_u32.to_ne_bytes());
        put(68, &20_150_u32.to_ne_bytes());
        put(148, &20_010_u32.to_ne_bytes());
        put(160, &1_250_000_u64.to_ne_bytes());
        put(200, &102_000_u64.to_ne_bytes());
        put(208, &2_000_u64.to_ne_bytes());
        put(228, &65_536_u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn fields_are_where_the_kernel_puts_them() {
        let info = TcpInfo::parse(&filled(248)).unwrap();
        assert_eq!(info.segment_bytes, 1_448);
        assert_eq!(info.rtt, Duration::from_micros(20_150));
        assert_eq!(info.rtt_min, Duration::from_micros(20_010));
        assert_eq!(
            info.delivery_rate,
            Bitrate::from_bits_per_second(10_000_000)
        );
        assert_eq!(info.bytes_sent, ByteCount::new(102_000));
        assert_eq!(info.bytes_retransmitted, ByteCount::new(2_000));
        assert_eq!(info.peer_window, Some(ByteCount::new(65_536)));
    }

    #[test]
    fn old_kernels_have_fewer_counters() {
        assert_eq!(TcpInfo::parse(&filled(224)).unwrap().peer_window, None);
        assert_eq!(TcpInfo::parse(&filled(192)), None);
        assert_eq!(TcpInfo::parse(&[]), None);
    }
}
