//! Figures of a connection, as Linux gives them in `struct tcp_info`, and the clock of what limited
//! the sender.

use std::time::Duration;

use vocab::{ByteCount, Time};

/// State of loss recovery; the diagram is in `send/recovery.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryPhase {
    /// Nothing is missing.
    #[default]
    Open,
    /// Segments arrived out of order.
    Disorder,
    /// The window is being reduced without retransmissions.
    Reduced,
    /// Lost segments are sent again.
    Recovery,
    /// A retransmission time-out has expired.
    Loss,
}

/// State of a connection, RFC 9293 §3.3.2; a listener is not a connection here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// The SYN was sent.
    SynSent,
    /// A SYN was received and answered.
    SynReceived,
    /// Data flow both ways.
    Established,
    /// This end has closed; its FIN is not acknowledged.
    FinWait1,
    /// This end has closed and the peer knows it.
    FinWait2,
    /// The peer has closed.
    CloseWait,
    /// Both have closed; the FIN of this end is not acknowledged, and it came first.
    Closing,
    /// Both have closed, the peer first; the FIN of this end is not acknowledged.
    LastAck,
    /// Both have closed; late segments are answered for a while.
    TimeWait,
    /// The connection has ended.
    Closed,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedReason {
    /// Both ends closed.
    Finished,
    /// The peer sent a reset.
    Reset,
    /// The peer refused the connection.
    Refused,
    /// The peer did not answer.
    TimedOut,
    /// This end aborted.
    Aborted,
}

/// The limit that stops a sender that has data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendLimit {
    /// The congestion window, or nothing.
    #[default]
    None,
    /// The window that the peer advertises.
    PeerWindow,
    /// The send buffer.
    Buffer,
}

/// Figures of a connection at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// State of the connection.
    pub state: ConnectionState,
    /// State of loss recovery.
    pub recovery: RecoveryPhase,
    /// Payload of a full segment.
    pub segment_bytes: u32,
    /// Smoothed RTT; zero before the first sample.
    pub rtt: Duration,
    /// Mean deviation of the RTT.
    pub rtt_variance: Duration,
    /// Least RTT.
    pub rtt_min: Duration,
    /// Retransmission time-out without back-off.
    pub timeout: Duration,
    /// Congestion window in segments.
    pub congestion_window: u32,
    /// Slow-start threshold in segments; the greatest number while unknown.
    pub slow_start_threshold: u32,
    /// Segments without a cumulative acknowledgement.
    pub unacknowledged: u32,
    /// Those of them that SACK reported.
    pub sacked: u32,
    /// Those of them that count as lost.
    pub lost: u32,
    /// Those of them that are on their way again.
    pub retransmitted: u32,
    /// Payload that the peer acknowledged.
    pub bytes_acknowledged: ByteCount,
    /// Payload that arrived in order.
    pub bytes_received: ByteCount,
    /// Payload that was sent, retransmissions included.
    pub bytes_sent: ByteCount,
    /// Payload that was sent again, each time counted.
    pub bytes_retransmitted: ByteCount,
    /// Segments with payload or FIN that were sent, retransmissions included.
    pub segments_sent: u64,
    /// Segments that were sent again.
    pub segments_retransmitted: u64,
    /// Retransmission time-outs.
    pub timeouts: u32,
    /// Probes of the tail.
    pub tail_probes: u32,
    /// Loss episodes that SACK found.
    pub recoveries: u32,
    /// Reductions that were taken back.
    pub undone_reductions: u32,
    /// Reordering events seen.
    pub reorderings: u32,
    /// Time with data to send.
    pub busy: Duration,
    /// Time that the peer's window limited the sender.
    pub receive_window_limited: Duration,
    /// Time that the send buffer limited the sender.
    pub send_buffer_limited: Duration,
    /// The window that the peer advertises.
    pub peer_window: ByteCount,
    /// Received payload that was not the test pattern.
    pub bytes_damaged: ByteCount,
}

/// Clock of busy and limited time.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitClock {
    /// The application has more data than the send buffer takes.
    pub(crate) application_waits: bool,
    limit: SendLimit,
    since: Time,
    busy_since: Option<Time>,
    busy: Duration,
    by_peer: Duration,
    by_buffer: Duration,
}

impl LimitClock {
    /// There are data to send.
    pub(crate) fn start(&mut self, now: Time) {
        self.busy_since.get_or_insert(now);
    }

    /// Everything is acknowledged.
    pub(crate) fn stop(&mut self, now: Time) {
        self.set(now, SendLimit::None);
        if let Some(since) = self.busy_since.take() {
            self.busy += now.since(since);
        }
    }

    pub(crate) fn set(&mut self, now: Time, limit: SendLimit) {
        if limit == self.limit {
            return;
        }
        let (peer, buffer) = self.limited(now);
        (self.by_peer, self.by_buffer) = (peer, buffer);
        (self.limit, self.since) = (limit, now);
    }

    pub(crate) fn busy(&self, now: Time) -> Duration {
        self.busy
            + self
                .busy_since
                .map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Time limited by the peer's window and by the send buffer.
    pub(crate) fn limited(&self, now: Time) -> (Duration, Duration) {
        let span = now.since(self.since);
        match self.limit {
            SendLimit::None => (self.by_peer, self.by_buffer),
            SendLimit::PeerWindow => (self.by_peer + span, self.by_buffer),
            SendLimit::Buffer => (self.by_peer, self.by_buffer + span),
        }
    }
}
