//! The sending half of a connection: what may be sent, what is acknowledged, and the retransmission
//! timer.
//!
//! ```text
//!   write ─► store ─► next_transmission ─► segment
//!                       ▲      window of the peer, congestion window, Nagle
//!   ACK ─► on_ack ─► scoreboard ─► RTT, RACK ─► recovery.rs ─► congestion window
//!   timer.rs: RTO (RFC 6298), tail probe (RFC 8985 §7), reordering window, window probe
//! ```
//!
//! Positions are 64-bit and count the SYN as 0, the first byte as 1 and the FIN behind the last byte.

mod rack;
mod recovery;
mod rtt;
mod scoreboard;
mod timer;

use std::time::Duration;

use vocab::Time;

use crate::config::ConnectionConfig;
use crate::congestion::CongestionWindow;
use crate::info::{LimitClock, SendLimit};
use crate::payload::SendStore;
use crate::segment::SegmentPayload;
use rack::{RackDetector, RackTimes};
use recovery::{DeliveryReport, RecoveryState};
use rtt::RoundTripEstimator;
use scoreboard::SendScoreboard;
use timer::{ForcedTransmission, RetransmissionTimer};

pub(crate) use timer::TimerOutcome;

/// An acknowledgement with its numbers as stream positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAck<'a> {
    pub(crate) position: u64,
    /// SACK blocks, a report of duplicates first if there is one (RFC 2883 §4).
    pub(crate) blocks: &'a [(u64, u64)],
    /// Milliseconds of our clock that the time stamp echoes, and those of now.
    pub(crate) echo: Option<(u64, u64)>,
    /// The segment has no payload, so it may be a duplicate acknowledgement.
    pub(crate) is_pure: bool,
}

/// A segment to send.
#[derive(Clone, Debug)]
pub(crate) struct PendingTransmission {
    pub(crate) position: u64,
    pub(crate) payload: SegmentPayload,
    pub(crate) is_fin: bool,
    pub(crate) is_push: bool,
}

/// Counts of a connection's sending half.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCounters {
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_resent: u64,
    pub(crate) segments_sent: u64,
    pub(crate) segments_resent: u64,
    pub(crate) timeouts: u32,
    pub(crate) tail_probes: u32,
    pub(crate) recoveries: u32,
    pub(crate) undone: u32,
}

/// The sending half of a connection.
#[derive(Clone, Debug)]
pub(crate) struct SendSide {
    mss: u32,
    initial_window: u32,
    nagle: bool,
    uses_sack: bool,
    buffer: u64,
    store: SendStore,
    /// Position of the FIN, once the application has closed.
    fin: Option<u64>,
    una: u64,
    next: u64,
    peer_window: u64,
    largest_peer_window: u64,
    /// Position behind the latest short segment, for Nagle's algorithm.
    short_end: u64,
    board: SendScoreboard,
    window: CongestionWindow,
    rtt: RoundTripEstimator,
    rack: RackDetector,
    recovery: RecoveryState,
    timer: RetransmissionTimer,
    /// Use of the congestion window: RFC 7661's question, answered as Linux does.
    usage: WindowUsage,
    latest_send: Option<Time>,
    limits: LimitClock,
    counters: SendCounters,
}

/// Use of the congestion window in the current round trip.
#[derive(Clone, Copy, Debug, Default)]
struct WindowUsage {
    is_limited: bool,
    most_outstanding: u32,
    round_end: u64,
    /// Largest use since `since` while the window was not filled.
    used: u32,
    since: Time,
    sent: bool,
    sent_new: bool,
}

impl SendSide {
    pub(crate) fn new(config: &ConnectionConfig) -> Self {
        Self {
            mss: u32::from(config.mss).max(1),
            initial_window: config.initial_window,
            nagle: config.nagle,
            uses_sack: false,
            buffer: config.send_buffer.bytes().max(1),
            store: SendStore::new(config.send_content),
            fin: None,
            una: 1,
            next: 1,
            peer_window: 0,
            largest_peer_window: 0,
            short_end: 0,
            board: SendScoreboard::default(),
            window: CongestionWindow::new(config),
            rtt: RoundTripEstimator::new(config.timeout_least),
            rack: RackDetector::new(),
            recovery: RecoveryState::default(),
            timer: RetransmissionTimer::new(config.timeout_least),
            usage: WindowUsage::default(),
            latest_send: None,
            limits: LimitClock::default(),
            counters: SendCounters::default(),
        }
    }

    /// Takes what the handshake agreed on: payload of a full segment, and SACK.
    pub(crate) fn agree(&mut self, mss: u32, uses_sack: bool) {
        self.mss = mss.max(1);
        self.uses_sack = uses_sack;
    }

    /// Appends the application's bytes; returns the number that the buffer takes.
    pub(crate) fn write(&mut self, now: Time, data: &[u8]) -> usize {
        let room = self.room();
        let count = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.store.write(&data[..count]);
        if count < data.len() {
            self.limits.application_waits = true;
        }
        self.limits.start(now);
        count
    }

    pub(crate) fn write_pattern(&mut self, now: Time, count: u64) {
        self.store.write_pattern(count);
        self.limits.start(now);
    }

    /// The application sends no more.
    pub(crate) fn close(&mut self) {
        let end = self.store.end() + 1;
        self.fin.get_or_insert(end);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.fin.is_some()
    }

    /// The FIN was acknowledged.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.una > fin)
    }

    pub(crate) fn una(&self) -> u64 {
        self.una
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Position of the last byte that was written.
    pub(crate) fn written_end(&self) -> u64 {
        self.store.end()
    }

    /// Free bytes of the send buffer.
    pub(crate) fn room(&self) -> u64 {
        self.buffer
            .saturating_sub((self.store.end() + 1).saturating_sub(self.una))
    }

    pub(crate) fn set_peer_window(&mut self, window: u64) {
        self.peer_window = window;
        self.largest_peer_window = self.largest_peer_window.max(window);
    }

    /// Sample of the handshake, RFC 6298 §2.2.
    pub(crate) fn sample_handshake(&mut self, now: Time, rtt: Duration) {
        self.rtt.sample(rtt, 1, 1);
        self.rtt.sample_least(now, rtt);
    }

    /// A lost SYN restarts with one segment, RFC 5681 §3.1.
    pub(crate) fn on_lost_handshake(&mut self) {
        self.window.segments = 1;
    }

    /// Takes an acknowledgement; `false` if it is for data that was never sent.
    pub(crate) fn on_ack(&mut self, now: Time, ack: &PeerAck<'_>) -> bool {
        if ack.position > self.next {
            return false;
        }
        let una_before = self.una;
        let lost_before = self.board.lost_count();
        let mut report = DeliveryReport {
            is_pure: ack.is_pure,
            ..DeliveryReport::default()
        };
        self.take_duplicates(ack, &mut report);
        let highest_before = self.board.highest_sacked();
        self.take_blocks(now, ack, &mut report);
        self.take_position(now, ack, highest_before, &mut report);
        self.sample_rtt(now, ack, &report);
        if let Some(lowest) = report.lowest_reordered {
            let distance = report.highest.saturating_sub(lowest);
            self.rack.on_reordering(distance, self.mss);
        }
        self.end_tail_probe(ack, &report);
        let mut set_timer = report.advanced;
        if self.recovery.is_alert()
            || report.sacked
            || report.duplicate
            || self.board.lost_count() > 0
        {
            set_timer &= !self.recover(now, una_before, ack, &mut report);
        }
        if set_timer {
            self.set_timer_after_ack(now);
        }
        let newly_lost = self.board.lost_count().saturating_sub(lost_before);
        self.control_congestion(now, &report, newly_lost);
        if self.una > self.store.end() {
            self.limits.stop(now);
        }
        true
    }

    /// Marks what the blocks report.
    fn take_blocks(&mut self, now: Time, ack: &PeerAck<'_>, report: &mut DeliveryReport) {
        report.highest = self.board.highest_sacked();
        if !self.uses_sack {
            return;
        }
        let from = ack.position.max(self.una);
        let mut blocks = [(0, 0); crate::segment::SACK_BLOCKS_MAX];
        let mut count = 0;
        for (start, end) in ack.blocks {
            if *end > from && *end <= self.next && start < end && count < blocks.len() {
                blocks[count] = ((*start).max(from), *end);
                count += 1;
            }
        }
        let blocks = &mut blocks[..count];
        blocks.sort_unstable();
        let Self {
            board, rack, rtt, ..
        } = self;
        let (least, high) = (rtt.least(), self.recovery.high());
        for (start, end) in blocks {
            board.sack(*start, *end, |segment| {
                report.sacked = true;
                report.delivered += 1;
                rack.on_delivered(now, segment, least);
                if !segment.ambiguous {
                    report.first_sacked_at.get_or_insert(segment.sent);
                    report.last_sacked_at = Some(segment.sent);
                    report.note_original(segment, report.highest, high);
                }
                report.highest = report.highest.max(segment.end());
            });
        }
    }

    /// Removes what is cumulatively acknowledged. Blocks of the same acknowledgement are no sign of reordering: a
    /// delayed acknowledgement reports the segment in front of a gap and the one behind it together.
    fn take_position(
        &mut self,
        now: Time,
        ack: &PeerAck<'_>,
        highest_before: u64,
        report: &mut DeliveryReport,
    ) {
        if ack.position <= self.una {
            return;
        }
        let Self {
            board, rack, rtt, ..
        } = self;
        let (least, high) = (rtt.least(), self.recovery.high());
        board.acknowledge(ack.position, |segment| {
            if segment.ambiguous {
                report.retransmission_arrived = true;
            }
            if segment.sacked {
                return;
            }
            report.delivered += 1;
            rack.on_delivered(now, segment, least);
            if !segment.ambiguous {
                report.first_acknowledged_at.get_or_insert(segment.sent);
                report.last_acknowledged_at = Some(segment.sent);
                report.note_original(segment, highest_before, high);
            }
        });
        report.advanced = true;
        self.una = ack.position;
        self.store.release(self.una - 1);
        self.limits.application_waits &= self.room() == 0;
    }

    /// RTT samples: of the oldest segment for the estimator, of the newest one for congestion control
    /// (RFC 7323 §4.3; RFC 6298 §3 for segments that were sent more than once).
    fn sample_rtt(&mut self, now: Time, ack: &PeerAck<'_>, report: &DeliveryReport) {
        let since = |at: Option<Time>| at.map(|at| now.since(at));
        let mut oldest = None;
        let mut newest = None;
        if !report.retransmission_arrived {
            oldest = since(report.first_acknowledged_at);
            newest = since(report.last_acknowledged_at);
        }
        if report.first_sacked_at.is_some() {
            oldest = oldest.or(since(report.first_sacked_at));
            newest = newest.or(since(report.last_sacked_at));
        }
        if oldest.is_none()
            && report.advanced
            && let Some((echo, now)) = ack.echo
        {
            oldest = Some(Duration::from_millis(now.saturating_sub(echo).max(1)));
            newest = oldest;
        }
        if let Some(newest) = newest {
            self.rtt.sample_least(now, newest);
            self.window.on_rtt(now, newest, self.una, self.next);
        }
        if let Some(oldest) = oldest {
            self.rtt.sample(oldest, self.una, self.next);
            self.timer.forget_backoff();
        }
        if report.advanced {
            self.timer.on_progress();
        }
    }

    fn control_congestion(&mut self, now: Time, report: &DeliveryReport, newly_lost: u32) {
        if self.recovery.is_reducing() {
            let in_flight = self.board.in_flight();
            self.recovery
                .reduce_proportionally(&mut self.window, in_flight, report, newly_lost);
            return;
        }
        let may_increase = if self.rack.has_more_than_usual_reordering() {
            report.delivered > 0
        } else {
            report.advanced
        };
        if may_increase && report.delivered > 0 && self.is_window_used() {
            self.window.increase(now, report.delivered);
        }
    }

    /// True if the congestion window, not the application or the peer, limits the sender.
    fn is_window_used(&self) -> bool {
        let in_slow_start = self.window.in_slow_start();
        self.usage.is_limited
            || (in_slow_start && self.window.segments < 2 * self.usage.most_outstanding)
    }

    /// The next segment to send.
    pub(crate) fn next_transmission(&mut self, now: Time) -> Option<PendingTransmission> {
        if let Some(forced) = self.timer.take_forced() {
            let transmission = match forced {
                ForcedTransmission::TailProbe => self.tail_probe(now),
                ForcedTransmission::WindowProbe => Some(self.window_probe()),
            };
            if transmission.is_some() {
                return transmission;
            }
        }
        if self.board.in_flight() < self.window.segments {
            if !self.recovery.prefers_new_data()
                && let Some(number) = self.board.next_lost()
            {
                return Some(self.retransmit(now, number));
            }
            if let Some(length) = self.sendable(now) {
                return Some(self.transmit_new(now, length));
            }
            if self.recovery.gives_up_new_data() && self.board.next_lost().is_some() {
                return self.next_transmission(now);
            }
        }
        self.after_burst(now);
        None
    }

    /// Length of the next new segment, if it may be sent now. A FIN counts.
    fn sendable(&mut self, now: Time) -> Option<u32> {
        let end = self.fin.map_or(self.store.end() + 1, |fin| fin + 1);
        let available = end.saturating_sub(self.next);
        if available == 0 {
            let limit = if self.limits.application_waits {
                SendLimit::Buffer
            } else {
                SendLimit::None
            };
            self.limits.set(now, limit);
            return None;
        }
        let buffered = (self.una + self.buffer).saturating_sub(self.next);
        if buffered == 0 {
            self.limits.set(now, SendLimit::Buffer);
            return None;
        }
        let open = (self.una + self.peer_window).saturating_sub(self.next);
        let full = u64::from(self.mss);
        let wanted = available.min(full).min(buffered);
        if open < wanted {
            // RFC 1122 §4.2.3.4: no part of a segment at the window's edge while others are under way.
            if open == 0 || !self.board.is_empty() {
                self.limits.set(now, SendLimit::PeerWindow);
                if self.board.is_empty() {
                    self.start_persisting(now);
                }
                return None;
            }
            return Some(open as u32);
        }
        let has_fin = self.next + wanted == end && self.fin.is_some();
        let short_waits = self.short_end > self.una && !self.board.is_empty();
        if wanted < full && self.nagle && short_waits && !has_fin {
            self.limits.set(now, SendLimit::None);
            return None;
        }
        Some(wanted as u32)
    }

    fn transmit_new(&mut self, now: Time, length: u32) -> PendingTransmission {
        if self.board.is_empty() {
            self.restart_after_idle(now);
        }
        let position = self.next;
        let was_idle = self.board.is_empty();
        self.board.push(now, position, length);
        self.next += u64::from(length);
        if length < self.mss {
            self.short_end = self.next;
        }
        self.usage.sent_new = true;
        self.note_sent(now);
        if was_idle {
            self.arm_timeout(now);
        }
        self.build(position, length)
    }

    fn restart_after_idle(&mut self, now: Time) {
        let Some(latest) = self.latest_send else {
            return;
        };
        let timeout = self.rtt.timeout();
        let idle = now.since(latest);
        if idle > timeout {
            let timeouts = (idle.as_nanos() / timeout.as_nanos().max(1)).min(32) as u32;
            self.window
                .restart_after_idle(timeouts, self.initial_window);
        }
        self.window.on_restart(now, latest);
    }

    fn retransmit(&mut self, now: Time, number: u64) -> PendingTransmission {
        let Some((position, length)) = self
            .board
            .get(number)
            .map(|segment| (segment.start, segment.length))
        else {
            return self.window_probe();
        };
        self.board.resend(now, number);
        self.recovery.note_retransmission(now);
        self.note_sent(now);
        self.counters.segments_resent += 1;
        // The wait for a reordering window goes on, as in Linux: other segments depend on it.
        if position == self.una && !self.timer.waits_for_reordering() {
            self.arm_timeout(now);
        }
        let transmission = self.build(position, length);
        self.counters.bytes_resent += transmission.payload.len() as u64;
        transmission
    }

    fn note_sent(&mut self, now: Time) {
        self.usage.sent = true;
        self.latest_send = Some(now);
        self.counters.segments_sent += 1;
        self.recovery.note_sent();
    }

    fn build(&mut self, position: u64, length: u32) -> PendingTransmission {
        let end = position + u64::from(length);
        let is_fin = self.fin.is_some_and(|fin| end > fin);
        let bytes = length - u32::from(is_fin);
        self.counters.bytes_sent += u64::from(bytes);
        PendingTransmission {
            position,
            payload: self.store.payload(position - 1, bytes),
            is_fin,
            is_push: bytes > 0 && position + u64::from(bytes) == self.store.end() + 1,
        }
    }

    /// Work at the end of a burst: how far the window was used, and the tail probe's timer.
    fn after_burst(&mut self, now: Time) {
        let in_flight = self.board.in_flight();
        let is_limited = in_flight >= self.window.segments;
        if is_limited {
            self.limits.set(now, SendLimit::None);
        }
        if self.usage.sent || is_limited {
            self.validate_window(now, is_limited);
        }
        if self.usage.sent_new {
            self.set_probe_after_burst(now);
        }
        (self.usage.sent, self.usage.sent_new) = (false, false);
    }

    /// RFC 7661's validation in Linux's form (RFC 2861 §3.1): a window that stays unused shrinks.
    fn validate_window(&mut self, now: Time, is_limited: bool) {
        let outstanding = self.board.count();
        let usage = &mut self.usage;
        if self.una >= usage.round_end
            || is_limited
            || (!usage.is_limited && outstanding > usage.most_outstanding)
        {
            usage.is_limited = is_limited;
            usage.most_outstanding = outstanding;
            usage.round_end = self.next;
        }
        if self.is_window_used() {
            (self.usage.used, self.usage.since) = (0, now);
            return;
        }
        self.usage.used = self.usage.used.max(outstanding);
        if now.since(self.usage.since) >= self.rtt.timeout() {
            if !self.recovery.is_alert() {
                self.window
                    .limit_to_used(self.usage.used, self.initial_window);
            }
            (self.usage.used, self.usage.since) = (0, now);
        }
    }

    fn rack_times(&self) -> RackTimes {
        RackTimes {
            least: self.rtt.least(),
            smoothed: self.rtt.smoothed(),
        }
    }
}

/// Figures of the sending half.
impl SendSide {
    pub(crate) fn counters(&self) -> SendCounters {
        self.counters
    }

    pub(crate) fn limits(&self) -> &LimitClock {
        &self.limits
    }

    pub(crate) fn mss(&self) -> u32 {
        self.mss
    }

    pub(crate) fn peer_window(&self) -> u64 {
        self.peer_window
    }

    pub(crate) fn congestion_window(&self) -> (u32, u32) {
        (self.window.segments, self.window.threshold)
    }

    pub(crate) fn in_flight(&self) -> (u32, u32, u32, u32) {
        let board = &self.board;
        (
            board.count(),
            board.sacked_count(),
            board.lost_count(),
            board.resent_count(),
        )
    }

    pub(crate) fn rtt(&self) -> (Option<Duration>, Duration, Option<Duration>, Duration) {
        let rtt = &self.rtt;
        (rtt.smoothed(), rtt.deviation(), rtt.least(), rtt.timeout())
    }

    pub(crate) fn reorderings_seen(&self) -> u32 {
        self.rack.reorderings_seen()
    }

    pub(crate) fn phase(&self) -> crate::info::RecoveryPhase {
        self.recovery.phase()
    }
}
