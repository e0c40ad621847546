//! Settings of a connection, with the defaults of Linux.

use std::time::Duration;

use vocab::ByteCount;

use crate::payload::{ReceiveContent, SendContent};

/// Congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionAlgorithm {
    /// NewReno's window: RFC 5681 §3.1 (Slow Start and Congestion Avoidance).
    NewReno,
    /// CUBIC, RFC 9438, with HyStart as Linux has it.
    #[default]
    Cubic,
}

/// Settings of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionConfig {
    /// Congestion control.
    pub congestion: CongestionAlgorithm,
    /// HyStart's early exit from slow start; only CUBIC has it.
    pub hystart: bool,
    /// Congestion window at the start in segments; RFC 6928 §2.
    pub initial_window: u32,
    /// Largest segment that this end receives: the MTU less 40 (IPv4) or 60 (IPv6) bytes. It bounds
    /// what this end sends as well.
    pub mss: u16,
    /// Largest receive window.
    pub receive_buffer: ByteCount,
    /// Receive window that is offered at first. It grows up to a multiple of the data that arrive in an RTT, and
    /// each segment that enlarges it is acknowledged at once. Linux offers 64 KiB (half of tcp_rmem's default).
    pub receive_window_initial: ByteCount,
    /// Bytes that may wait for transmission or for an acknowledgement.
    pub send_buffer: ByteCount,
    /// Offer of SACK, RFC 2018.
    pub sack: bool,
    /// Offer of time stamps, RFC 7323 §3.
    pub timestamps: bool,
    /// Offer of window scaling, RFC 7323 §2.
    pub window_scaling: bool,
    /// Nagle's algorithm, RFC 1122 §4.2.3.4, in Minshall's form: at most one short segment is
    /// unacknowledged.
    pub nagle: bool,
    /// Longest delay of an acknowledgement. RFC 1122 §4.2.3.2 allows 500 ms; Linux delays by 40 ms.
    pub ack_delay: Duration,
    /// Longest delay of the fourth and later acknowledgements behind one gap; zero sends each at
    /// once. Linux: 1 ms (tcp_comp_sack_delay_ns).
    pub sack_delay: Duration,
    /// Least retransmission time-out above the smoothed RTT. RFC 6298 §2.4 advises a second in all;
    /// Linux has 200 ms (TCP_RTO_MIN).
    pub timeout_least: Duration,
    /// Content to send.
    pub send_content: SendContent,
    /// Treatment of received payload.
    pub receive_content: ReceiveContent,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            congestion: CongestionAlgorithm::Cubic,
            hystart: true,
            initial_window: 10,
            mss: 1_460,
            receive_buffer: ByteCount::mebibytes(4),
            receive_window_initial: ByteCount::kibibytes(64),
            send_buffer: ByteCount::mebibytes(4),
            sack: true,
            timestamps: true,
            window_scaling: true,
            nagle: true,
            ack_delay: Duration::from_millis(40),
            sack_delay: Duration::from_millis(1),
            timeout_least: Duration::from_millis(200),
            send_content: SendContent::Stored,
            receive_content: ReceiveContent::Stored,
        }
    }
}

impl ConnectionConfig {
    /// A bulk sender or receiver of the test pattern.
    #[must_use]
    pub fn pattern() -> Self {
        Self {
            send_content: SendContent::Pattern,
            receive_content: ReceiveContent::Pattern,
            ..Self::default()
        }
    }

    /// Shift count that makes the receive buffer fit the window field, RFC 7323 §2.3.
    pub(crate) fn window_shift(&self) -> u8 {
        let mut shift = 0;
        while shift < 14 && self.receive_buffer.bytes() >> shift > u64::from(u16::MAX) {
            shift += 1;
        }
        shift
    }
}
