//! One connection: the states of RFC 9293 §3.3.2 around a sending and a receiving half.
//!
//! ```text
//!   connect ► SynSent ─────────────► Established ─ close ► FinWait1 ► FinWait2 ► TimeWait ► Closed
//!   accept ► SynReceived ───────────►     │                    └────► Closing ──────┘
//!                                         └ FIN ► CloseWait ─ close ► LastAck ────────────► Closed
//! ```
//!
//! After each call of `handle_segment`, `handle_timeout`, `write`, `close` or `abort`, drain
//! [`TcpConnection::poll_output`] until `None`. It opens nothing, reads no clock and draws no random
//! numbers except from the generator that it is handed.

mod arrival;
mod output;

use std::time::Duration;

use bytes::Bytes;
use vocab::{ByteCount, SeededRandom, Time};

use crate::config::ConnectionConfig;
use crate::info::{ClosedReason, ConnectionInfo, ConnectionState};
use crate::receive::ReceiveSide;
use crate::segment::{FlowAddresses, TcpSegment};
use crate::send::{SendSide, TimerOutcome};

pub use output::reset_for;

/// Transmissions of a SYN before a connection ends; Linux's tcp_syn_retries and tcp_synack_retries
/// are 6 and 5.
const SYN_TRANSMISSIONS_MOST: u32 = 6;
/// Time in which a closed connection answers late segments; Linux's TCP_TIMEWAIT_LEN.
pub const TIME_WAIT: Duration = Duration::from_secs(60);
/// Least time between two answers to segments outside the window, RFC 5961 §10 (tcp_invalid_ratelimit).
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);
/// Least MSS that is accepted from a peer, RFC 9293 §3.7.1 gives no bound; Linux's TCP_MIN_MSS.
const MSS_LEAST: u16 = 48;
/// MSS of a peer that names none, RFC 9293 §3.7.1.
const MSS_DEFAULT: u16 = 536;
/// Length of the time stamp option with its padding.
const TIMESTAMP_BYTES: u16 = 12;

/// Sequence numbers and options that the handshake agrees on.
#[derive(Clone, Copy, Debug)]
struct HandshakeState {
    /// Number of the own SYN, and of the peer's.
    own: u32,
    peer: u32,
    syn_due: bool,
    syn_sent: Option<Time>,
    transmissions: u32,
    timer: Option<Time>,
    timestamps: bool,
    sack: bool,
    /// Shift of the peer's windows, and whether windows are scaled at all.
    peer_shift: u8,
    scaling: bool,
    peer_mss: u16,
}

/// Clock of time stamps, and the peer's latest one (RFC 7323 §4.3).
#[derive(Clone, Copy, Debug)]
struct TimestampClock {
    offset: u32,
    recent: u32,
    recent_at: Option<Time>,
}

impl TimestampClock {
    /// The clock's value: milliseconds and an offset that differs from flow to flow.
    fn value(&self, now: Time) -> u32 {
        self.offset.wrapping_add(milliseconds(now) as u32)
    }
}

fn milliseconds(now: Time) -> u64 {
    now.as_nanos() / 1_000_000
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct TcpConnection {
    addresses: FlowAddresses,
    config: ConnectionConfig,
    state: ConnectionState,
    reason: Option<ClosedReason>,
    handshake: HandshakeState,
    clock: TimestampClock,
    send: SendSide,
    receive: ReceiveSide,
    /// Position of the segment that last updated the peer's window, and its acknowledgement.
    window_update: (u64, u64),
    time_wait: Option<Time>,
    challenged: Option<Time>,
    reset_due: bool,
    /// A call may have made output; `poll_timeout` says so until it is drained.
    output_pending: bool,
}

impl TcpConnection {
    /// Opens a connection: the first output is a SYN.
    #[must_use]
    pub fn connect(
        addresses: FlowAddresses,
        config: ConnectionConfig,
        random: &mut SeededRandom,
    ) -> Self {
        let mut connection = Self::new(addresses, config, ConnectionState::SynSent, random);
        connection.handshake.syn_due = true;
        connection.output_pending = true;
        connection
    }

    /// Answers a SYN; `None` if `segment` is not one that opens a connection.
    #[must_use]
    pub fn accept(
        now: Time,
        addresses: FlowAddresses,
        config: ConnectionConfig,
        segment: &TcpSegment,
        random: &mut SeededRandom,
    ) -> Option<Self> {
        use crate::segment::SegmentFlags;
        let flags = segment.flags;
        let opens = flags.contain(SegmentFlags::SYN)
            && !flags.contain(SegmentFlags::ACK)
            && !flags.contain(SegmentFlags::RST)
            && !flags.contain(SegmentFlags::FIN);
        if !opens {
            return None;
        }
        let mut connection = Self::new(addresses, config, ConnectionState::SynReceived, random);
        connection.take_syn_options(now, segment);
        connection.handshake.syn_due = true;
        connection.output_pending = true;
        Some(connection)
    }

    fn new(
        addresses: FlowAddresses,
        config: ConnectionConfig,
        state: ConnectionState,
        random: &mut SeededRandom,
    ) -> Self {
        let drawn = random.next_u64();
        Self {
            addresses,
            config,
            state,
            reason: None,
            handshake: HandshakeState {
                own: drawn as u32,
                peer: 0,
                syn_due: false,
                syn_sent: None,
                transmissions: 0,
                timer: None,
                timestamps: config.timestamps,
                sack: config.sack,
                peer_shift: 0,
                scaling: config.window_scaling,
                peer_mss: MSS_DEFAULT,
            },
            clock: TimestampClock {
                offset: (drawn >> 32) as u32,
                recent: 0,
                recent_at: None,
            },
            send: SendSide::new(&config),
            receive: ReceiveSide::new(&config, u32::from(config.mss), 0, false),
            window_update: (0, 0),
            time_wait: None,
            challenged: None,
            reset_due: false,
            output_pending: false,
        }
    }

    /// The two ends.
    #[must_use]
    pub fn addresses(&self) -> FlowAddresses {
        self.addresses
    }

    /// The state of the connection.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.state
    }

    /// Why the connection ended, once it has.
    #[must_use]
    pub fn closed_reason(&self) -> Option<ClosedReason> {
        self.reason
    }

    /// True once both SYNs are acknowledged.
    #[must_use]
    pub fn is_established(&self) -> bool {
        !matches!(
            self.state,
            ConnectionState::SynSent | ConnectionState::SynReceived
        ) && self
            .reason
            .is_none_or(|reason| reason == ClosedReason::Finished)
    }

    /// Appends the application's bytes; returns the number that the send buffer takes. After
    /// [`TcpConnection::close`] it takes none.
    pub fn write(&mut self, now: Time, data: &[u8]) -> usize {
        if self.send.is_closing() || self.reason.is_some() {
            return 0;
        }
        let count = self.send.write(now, data);
        self.output_pending |= count > 0;
        count
    }

    /// Appends bytes of the test pattern. With [`crate::SendContent::Pattern`] any number is taken, and the send
    /// buffer limits the bytes under way; otherwise no more than [`TcpConnection::writable`].
    pub fn write_pattern(&mut self, now: Time, count: ByteCount) {
        if self.send.is_closing() || self.reason.is_some() {
            return;
        }
        let most = match self.config.send_content {
            crate::payload::SendContent::Pattern => u64::MAX,
            crate::payload::SendContent::Stored => self.send.room(),
        };
        self.send.write_pattern(now, count.bytes().min(most));
        self.output_pending = true;
    }

    /// Free bytes of the send buffer.
    #[must_use]
    pub fn writable(&self) -> ByteCount {
        ByteCount::new(self.send.room())
    }

    /// The next received bytes; only with [`crate::ReceiveContent::Stored`].
    pub fn read(&mut self) -> Option<Bytes> {
        let bytes = self.receive.read();
        self.output_pending |= self.receive.must_acknowledge();
        bytes
    }

    /// Payload bytes that arrived in order.
    #[must_use]
    pub fn bytes_received(&self) -> ByteCount {
        ByteCount::new(self.receive.bytes_received())
    }

    /// The peer sends no more, and everything that it sent has arrived.
    #[must_use]
    pub fn is_peer_finished(&self) -> bool {
        self.receive.is_finished()
    }

    /// Everything that was written is acknowledged.
    #[must_use]
    pub fn is_all_acknowledged(&self) -> bool {
        self.send.una() > self.send.written_end()
    }

    /// Ends the own direction after the bytes that were written, and after the handshake.
    pub fn close(&mut self) {
        match self.state {
            ConnectionState::SynSent | ConnectionState::SynReceived => self.send.close(),
            ConnectionState::Established => {
                self.send.close();
                self.state = ConnectionState::FinWait1;
            }
            ConnectionState::CloseWait => {
                self.send.close();
                self.state = ConnectionState::LastAck;
            }
            ConnectionState::FinWait1
            | ConnectionState::FinWait2
            | ConnectionState::Closing
            | ConnectionState::LastAck
            | ConnectionState::TimeWait
            | ConnectionState::Closed => {}
        }
        self.output_pending = true;
    }

    /// Ends the connection with a reset.
    pub fn abort(&mut self) {
        if self.state == ConnectionState::Closed {
            return;
        }
        self.reset_due = self.state != ConnectionState::SynSent;
        self.end(ClosedReason::Aborted);
        self.output_pending = true;
    }

    fn end(&mut self, reason: ClosedReason) {
        self.state = ConnectionState::Closed;
        self.reason.get_or_insert(reason);
        self.time_wait = None;
        self.handshake.timer = None;
        self.handshake.syn_due = false;
    }

    /// Time at which [`TcpConnection::handle_timeout`] has work, or the earliest time while output waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.output_pending {
            return Some(Time::ZERO);
        }
        if self.state == ConnectionState::Closed {
            return None;
        }
        [
            self.handshake.timer,
            self.time_wait,
            self.send.timer_due(),
            self.receive.ack_due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Handles the timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.state == ConnectionState::Closed {
            return;
        }
        self.output_pending = true;
        if self.handshake.timer.is_some_and(|due| due <= now) {
            self.handshake.timer = None;
            if self.handshake.transmissions >= SYN_TRANSMISSIONS_MOST {
                self.end(ClosedReason::TimedOut);
                return;
            }
            self.handshake.syn_due = true;
        }
        if self.time_wait.is_some_and(|due| due <= now) {
            self.end(ClosedReason::Finished);
            return;
        }
        self.receive.on_timer(now);
        if self.send.on_timer(now) == TimerOutcome::GivenUp {
            self.end(ClosedReason::TimedOut);
        }
    }

    /// Figures of the connection.
    #[must_use]
    pub fn info(&self, now: Time) -> ConnectionInfo {
        let send = &self.send;
        let counters = send.counters();
        let (congestion_window, slow_start_threshold) = send.congestion_window();
        let (unacknowledged, sacked, lost, retransmitted) = send.in_flight();
        let (rtt, rtt_variance, rtt_min, timeout) = send.rtt();
        let (receive_window_limited, send_buffer_limited) = send.limits().limited(now);
        ConnectionInfo {
            state: self.state,
            recovery: send.phase(),
            segment_bytes: send.mss(),
            rtt: rtt.unwrap_or_default(),
            rtt_variance,
            rtt_min: rtt_min.unwrap_or_default(),
            timeout,
            congestion_window,
            slow_start_threshold,
            unacknowledged,
            sacked,
            lost,
            retransmitted,
            bytes_acknowledged: ByteCount::new(send.una() - 1 - u64::from(send.is_finished())),
            bytes_received: self.bytes_received(),
            bytes_sent: ByteCount::new(counters.bytes_sent),
            bytes_retransmitted: ByteCount::new(counters.bytes_resent),
            segments_sent: counters.segments_sent,
            segments_retransmitted: counters.segments_resent,
            timeouts: counters.timeouts,
            tail_probes: counters.tail_probes,
            recoveries: counters.recoveries,
            undone_reductions: counters.undone,
            reorderings: send.reorderings_seen(),
            busy: send.limits().busy(now),
            receive_window_limited,
            send_buffer_limited,
            peer_window: ByteCount::new(send.peer_window()),
            bytes_damaged: ByteCount::new(self.receive.bytes_damaged()),
        }
    }
}

#[cfg(test)]
mod tests;
