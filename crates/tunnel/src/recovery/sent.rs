//! Packets that are under way: acknowledged, declared lost, or probed for.
//!
//! ```text
//!             acknowledged                      (settled)
//!   InFlight ──────────────────────────────────►
//!      │  ▲ overtaken, and late beyond the window,
//!      │  │ or three behind on a path that keeps the order
//!      ├──┴──► Lost ──── acknowledged: spurious ─►     forgotten after a while
//!      │        │ restored
//!      └───────►Recovered ─ acknowledged: spurious ►   forgotten after a while
//!     restored by a repair
//! ```
//!
//! A packet that was declared lost is remembered, so that a wrong verdict is noticed, teaches
//! `reordering.rs` and can be taken back in the controller and the session. When nothing tells a loss,
//! since nothing that was sent later was acknowledged, a timer asks for a probe (RFC 9002 §6.2).
//!
//! Each packet is pushed, overtaken, declared and settled at most once, and the ranges that every
//! acknowledgement repeats are skipped (`ring.rs`), so the cost of a packet does not depend on how
//! many are under way; only those that are overtaken go through a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use path::RttEstimator;
use vocab::Time;

use super::ACK_DELAY_MAX;
use super::ecn::EcnValidation;
use super::reordering::ReorderingEstimate;
use super::ring::PacketRing;
use crate::SessionError;
use crate::packet::PacketAck;

/// Numbers from the oldest packet that is not settled to the newest, at most: 300 MB in the least
/// packets that every path carries, which is 1 Gbit/s over 2.5 s.
pub const TRACKED_LIMIT: usize = 1 << 18;

/// Packets declared lost that are remembered, at most: those of a second at 1 Gbit/s and 15 %.
pub const LOST_REMEMBERED: usize = 1 << 14;

/// The longest time between two probes of a path that does not answer, unless a single probe
/// timeout is longer: an outage that ends is noticed this soon, for 40 bytes/s.
pub const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(3);

/// Number of consecutive probes at one probe timeout before the interval doubles; RFC 9002 §6.2.1
/// doubles from the first on. A short burst may have lost only the answers, and while the window is
/// full nothing but probes is sent. A probe in a round trip is little load on any path (Linux waits
/// equally long for six retransmissions in a row where few packets are in flight,
/// `net.ipv4.tcp_thin_linear_timeouts`).
const PROBES_BEFORE_BACKOFF: u32 = 4;

/// Limit for tracked packets without a timer. The oldest are dropped, and their content is sent
/// again later. A side that only acknowledges asks for a confirmation before it reaches the limit,
/// so it is reached only on a path whose other direction is dead.
pub const UNTIMED_LIMIT: usize = 1 << 10;

/// A lost packet is remembered for three probe timeouts (as long as RFC 9000 §10.2 keeps a closed
/// connection for what may still be under way), and at least for this.
const REMEMBER_MIN: Duration = Duration::from_secs(1);

/// On a path that keeps the order a packet is lost when one that was sent this many later has been
/// acknowledged (RFC 9002 §6.1.1, kPacketThreshold).
const PACKET_THRESHOLD: u64 = 3;

/// Purpose of a packet as far as recovery is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// Asks for no acknowledgement and does not count as in flight. Its arrival or loss is known
    /// only when another packet is acknowledged.
    Silent,
    /// Asks for an acknowledgement and counts as in flight.
    Eliciting,
    /// Also eliciting, and larger than the known size of the path. Its loss is no sign of
    /// congestion (RFC 9000 §14.4).
    MtuProbe,
    /// Asks for an acknowledgement on a path that is not known to carry packets. It does not count
    /// as in flight, has no timer, and its loss has no meaning.
    PathProbe,
}

impl PacketKind {
    /// Returns `true` if the packet counts as in flight and a probe timer runs for it.
    #[must_use]
    pub fn is_in_flight(self) -> bool {
        match self {
            PacketKind::Silent | PacketKind::PathProbe => false,
            PacketKind::Eliciting | PacketKind::MtuProbe => true,
        }
    }

    /// Returns `true` if the receiver has to answer the packet.
    #[must_use]
    pub fn asks(self) -> bool {
        match self {
            PacketKind::Silent => false,
            PacketKind::Eliciting | PacketKind::MtuProbe | PacketKind::PathProbe => true,
        }
    }
}

/// A packet that goes out.
#[derive(Clone, Debug)]
pub struct OutgoingPacket<T> {
    /// Its number, larger than any before.
    pub number: u64,
    /// Its bytes, headers included.
    pub bytes: u64,
    /// Purpose of the packet.
    pub kind: PacketKind,
    /// True if the packet is sent with ECT(0), as [`SentPackets::wants_mark`] asks for.
    pub is_marked: bool,
    /// Number of the source symbol in its payload, if any; the numbers rise with packet numbers.
    pub symbol: Option<u64>,
    /// Content that the caller gets back when the packet is acknowledged or lost.
    pub content: T,
}

/// A packet that went out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentPacket<T> {
    /// Its number.
    pub number: u64,
    /// Its bytes, headers included.
    pub bytes: u64,
    /// Time at which it was sent.
    pub sent_at: Time,
    /// Purpose of the packet.
    pub kind: PacketKind,
    /// Content that the caller passed in.
    pub content: T,
}

/// Changes by an acknowledgement. Each packet is in one of the lists, once.
#[derive(Clone, Debug)]
pub struct AckOutcome<T> {
    /// Packets that were under way and have arrived.
    pub acked: Vec<SentPacket<T>>,
    /// Packets that were in flight, have not arrived, and whose contents the peer has from repairs.
    pub recovered: Vec<SentPacket<T>>,
    /// Packets that are lost now; their contents are to be sent again.
    pub lost: Vec<SentPacket<T>>,
    /// Packets that were declared lost, or recovered, and have arrived after all.
    pub spurious: Vec<SentPacket<T>>,
    /// Packets that were declared lost and have not arrived, but whose contents the peer has from
    /// repairs by now.
    pub recovered_late: Vec<SentPacket<T>>,
    /// The round-trip time of the largest number, if it was news.
    pub rtt: Option<Duration>,
    /// Additional packets marked "congestion experienced".
    pub ce_marked: u64,
}

/// Action that a timeout requires.
#[derive(Clone, Debug)]
pub enum RecoveryTimeout<T> {
    /// Packets are lost.
    Lost(Vec<SentPacket<T>>),
    /// The probe timeout expired: one or two packets that ask for an acknowledgement have to be
    /// sent, regardless of the congestion window (RFC 9002 §6.2.4 and §7.5).
    Probe {
        /// Number of consecutive probe timeouts; from 1.
        count: u32,
    },
}

/// Counts since the path began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStatistics {
    /// Packets sent, the silent ones too.
    pub sent: u64,
    /// Packets that arrived, late ones included.
    pub acked: u64,
    /// Packets declared lost, or lost and recovered.
    pub lost: u64,
    /// Packets whose contents came from repairs, those declared lost before included.
    pub recovered: u64,
    /// Packets that arrived after such a verdict.
    pub spurious: u64,
    /// Times that the probe timer ran out.
    pub probe_timeouts: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrackedState {
    InFlight,
    Lost,
    Recovered,
}

#[derive(Clone, Debug)]
struct TrackedPacket<T> {
    sent: SentPacket<T>,
    state: TrackedState,
    is_marked: bool,
    /// The round-trip time of the packet that overtook it.
    overtaken_by: Option<Duration>,
}

/// The packets of one path that are not settled.
#[derive(Clone, Debug)]
pub struct SentPackets<T> {
    /// Boxed, so that a settled number between those that are not costs two words.
    packets: PacketRing<Box<TrackedPacket<T>>>,
    /// Overtaken packets by the time at which they were expected; settled ones among them.
    overtaken: BinaryHeap<Reverse<(Time, u64)>>,
    /// Packets declared lost or recovered, in that order.
    remembered: VecDeque<(Time, u64)>,
    /// Packets that no timer waits for, as they were sent; settled ones among them.
    untimed: VecDeque<u64>,
    /// Source symbols and the packets that carry them.
    symbols: VecDeque<(u64, u64)>,
    largest_acked: Option<u64>,
    /// Numbers below it have been held against the packet threshold.
    threshold_from: u64,
    in_flight: u64,
    eliciting: u64,
    last_eliciting_at: Time,
    probed_at: Time,
    probe_count: u32,
    loss_time: Option<Time>,
    probe_timeout: Duration,
    rtt: RttEstimator,
    reordering_estimate: ReorderingEstimate,
    marks: EcnValidation,
    statistics: RecoveryStatistics,
}

impl<T: Clone> SentPackets<T> {
    /// Makes an empty set; `rtt` may hold an earlier round-trip time estimate.
    #[must_use]
    pub fn new(now: Time, rtt: RttEstimator) -> Self {
        Self {
            packets: PacketRing::new(),
            overtaken: BinaryHeap::new(),
            remembered: VecDeque::new(),
            untimed: VecDeque::new(),
            symbols: VecDeque::new(),
            largest_acked: None,
            threshold_from: 0,
            in_flight: 0,
            eliciting: 0,
            last_eliciting_at: now,
            probed_at: now,
            probe_count: 0,
            loss_time: None,
            probe_timeout: rtt.probe_timeout(ACK_DELAY_MAX),
            reordering_estimate: ReorderingEstimate::new(now, &rtt),
            rtt,
            marks: EcnValidation::new(),
            statistics: RecoveryStatistics::default(),
        }
    }

    /// Returns `true` if another packet may be sent without exceeding [`TRACKED_LIMIT`] tracked
    /// packets.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.packets.span() < TRACKED_LIMIT
            || (self.packets.get(self.packets.base()))
                .is_none_or(|oldest| oldest.state != TrackedState::InFlight)
    }

    /// Records a packet that is sent now.
    ///
    /// # Panics
    /// When its number is not larger than all before it, or there is no room. Numbers may be
    /// skipped, a few at a time.
    pub fn sent(&mut self, now: Time, packet: OutgoingPacket<T>) {
        assert!(self.has_room(), "the caller asks for room first");
        if self.packets.span() >= TRACKED_LIMIT {
            // What is oldest was declared lost, or there were no room.
            self.packets.take(self.packets.base());
        }
        if packet.kind.is_in_flight() {
            self.in_flight += packet.bytes;
            self.eliciting += 1;
            self.last_eliciting_at = now;
        }
        if packet.is_marked {
            self.marks.sent();
        }
        if let Some(symbol) = packet.symbol {
            self.symbols.push_back((symbol, packet.number));
        }
        self.statistics.sent += 1;
        let (number, kind) = (packet.number, packet.kind);
        self.packets.push(
            number,
            Box::new(TrackedPacket {
                sent: SentPacket {
                    number: packet.number,
                    bytes: packet.bytes,
                    sent_at: now,
                    kind: packet.kind,
                    content: packet.content,
                },
                state: TrackedState::InFlight,
                is_marked: packet.is_marked,
                overtaken_by: None,
            }),
        );
        if !kind.is_in_flight() {
            self.note_untimed(number);
        }
    }

    /// Takes in what the peer says has arrived.
    ///
    /// # Errors
    /// [`SessionError::PeerMisbehaved`] when it names a packet that was not sent (RFC 9000 §13.1);
    /// nothing has changed then.
    pub fn on_acknowledgement(
        &mut self,
        now: Time,
        acknowledgement: &PacketAck,
    ) -> Result<AckOutcome<T>, SessionError> {
        let largest = acknowledgement.largest();
        if largest >= self.packets.end() {
            return Err(SessionError::PeerMisbehaved(
                "it acknowledged a packet that was never sent",
            ));
        }
        let mut outcome = AckOutcome {
            acked: Vec::new(),
            recovered: Vec::new(),
            lost: Vec::new(),
            spurious: Vec::new(),
            recovered_late: Vec::new(),
            rtt: None,
            ce_marked: 0,
        };
        let mut news = AckSummary::default();
        for (first, last) in &acknowledgement.ranges {
            let mut number = self.packets.find(*first);
            while number <= *last && number < self.packets.end() {
                self.arrived(now, number, largest, &mut news, &mut outcome);
                number = self.packets.find(number + 1);
            }
        }
        if let Some(sent_at) = news.largest_sent_at
            && news.elicited
        {
            // RFC 9002 §5.1: only for the largest number, and only if the peer was to answer.
            let delay = Duration::from_micros(acknowledgement.delay_us).min(ACK_DELAY_MAX);
            let latest = now.since(sent_at);
            self.rtt.sample(now, latest, delay);
            outcome.rtt = Some(latest);
        }
        if self.largest_acked.is_none_or(|before| largest > before) {
            self.overtake(now, largest, news.largest_sent_at);
            // RFC 9000 §13.4.2.1: counts of an older acknowledgement may be older too.
            outcome.ce_marked = self.marks.acknowledged(news.marked, acknowledgement.ecn);
        }
        for (first, last) in &acknowledgement.recovered {
            self.recover(now, *first, *last, &mut outcome);
        }
        if news.any {
            self.probe_count = 0;
        }
        self.reordering_estimate.update(now, &self.rtt);
        let slowest = self.reordering_estimate.slowest_flight();
        self.probe_timeout = self.rtt.probe_timeout(ACK_DELAY_MAX).max(slowest);
        self.detect_lost(now, &mut outcome.lost);
        self.forget(now);
        Ok(outcome)
    }

    /// Returns the time at which to call [`SentPackets::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        // RFC 9002 §6.2.1: no probe while a verdict is pending.
        self.loss_time.or_else(|| self.probe_time())
    }

    /// Handles an expired timer; `None` when none has expired. Call until it returns `None`: with
    /// the last pending loss a probe may become due at once.
    pub fn handle_timeout(&mut self, now: Time) -> Option<RecoveryTimeout<T>> {
        if self.loss_time.is_some_and(|due| due <= now) {
            let mut lost = Vec::new();
            self.detect_lost(now, &mut lost);
            self.forget(now);
            if !lost.is_empty() {
                return Some(RecoveryTimeout::Lost(lost));
            }
        }
        if self.loss_time.is_none() && self.probe_time().is_some_and(|due| due <= now) {
            self.probe_count = self.probe_count.saturating_add(1);
            self.probed_at = now;
            self.statistics.probe_timeouts += 1;
            self.forget(now);
            return Some(RecoveryTimeout::Probe {
                count: self.probe_count,
            });
        }
        None
    }

    /// Takes all packets in flight, in the order of sending, from an abandoned path; the caller
    /// sends their contents another way. Lost packets are forgotten.
    pub fn abandon(&mut self) -> Vec<SentPacket<T>> {
        let mut left = Vec::new();
        let mut number = self.packets.find(0);
        while let Some(tracked) = self.packets.take(number) {
            if tracked.state == TrackedState::InFlight {
                left.push(tracked.sent);
            }
            number = self.packets.find(number);
        }
        self.overtaken.clear();
        self.remembered.clear();
        self.untimed.clear();
        self.symbols.clear();
        self.in_flight = 0;
        self.eliciting = 0;
        self.loss_time = None;
        self.probe_count = 0;
        left
    }

    /// Forgets the path's measurements because packets take another path, for which `rtt` is
    /// assumed (RFC 9000 §9.4).
    pub fn forget_path(&mut self, now: Time, rtt: RttEstimator) {
        self.probe_timeout = rtt.probe_timeout(ACK_DELAY_MAX);
        self.reordering_estimate = ReorderingEstimate::new(now, &rtt);
        self.rtt = rtt;
    }

    /// The packet in flight that asked first for an acknowledgement, whose contents a probe may
    /// repeat (RFC 9002 §6.2.4).
    #[must_use]
    pub fn oldest_in_flight(&mut self) -> Option<&SentPacket<T>> {
        let mut number = self.packets.find(0);
        loop {
            let tracked = self.packets.get(number)?;
            if tracked.state == TrackedState::InFlight && tracked.sent.kind == PacketKind::Eliciting
            {
                break;
            }
            number = self.packets.find(number + 1);
        }
        self.packets.get(number).map(|tracked| &tracked.sent)
    }

    /// Bytes that are in flight: sent, asking for an acknowledgement, and neither acknowledged nor
    /// lost.
    #[must_use]
    pub fn bytes_in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Count of the numbers from the oldest unsettled one to the newest: the entries in memory.
    #[must_use]
    pub fn tracked(&self) -> usize {
        self.packets.span()
    }

    /// Packets under way that no timer waits for.
    #[must_use]
    pub fn untimed(&self) -> usize {
        self.untimed.len()
    }

    /// Returns the round-trip time estimate.
    #[must_use]
    pub fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    /// Returns the probe timeout without backoff (RFC 9002 §6.2.1). On a path that reorders it
    /// includes the delay of slow packets.
    #[must_use]
    pub fn probe_timeout(&self) -> Duration {
        self.probe_timeout
    }

    /// Typical round-trip time of a packet. Samples are of packets that arrive first (RFC 9002
    /// §5.1), so on a path that reorders, the smoothed time covers only the fast ones, and this is
    /// the median of all. Used for [`super::ReceivedPackets::set_rtt`].
    #[must_use]
    pub fn typical_rtt(&self) -> Duration {
        self.reordering_estimate.typical()
    }

    /// Returns the delay of packets behind those that overtake them; `None` while the order is
    /// kept.
    #[must_use]
    pub fn reordering(&self) -> Option<Duration> {
        self.reordering_estimate.spread(&self.rtt)
    }

    /// Returns the reordering window.
    #[must_use]
    pub fn reordering_window(&self) -> Duration {
        self.reordering_estimate.window()
    }

    /// Returns `true` if the next packet is to be sent with ECT(0).
    #[must_use]
    pub fn wants_mark(&self) -> bool {
        self.marks.wanted()
    }

    /// Returns `true` if congestion marks were tested and do not get through.
    #[must_use]
    pub fn marks_failed(&self) -> bool {
        self.marks.failed()
    }

    /// Counts for an operator.
    #[must_use]
    pub fn statistics(&self) -> RecoveryStatistics {
        self.statistics
    }

    fn arrived(
        &mut self,
        now: Time,
        number: u64,
        largest: u64,
        news: &mut AckSummary,
        outcome: &mut AckOutcome<T>,
    ) {
        let tracked = self.packets.take(number).expect("it was found");
        let sent = tracked.sent;
        let is_spurious = tracked.state != TrackedState::InFlight;
        news.any = true;
        news.elicited |= sent.kind.asks();
        news.marked += u64::from(tracked.is_marked);
        if number == largest {
            news.largest_sent_at = Some(sent.sent_at);
        }
        if sent.kind.asks() {
            // One that asks for nothing may be acknowledged at any time.
            let flight = now.since(sent.sent_at);
            self.reordering_estimate
                .arrived(flight, tracked.overtaken_by);
        }
        self.statistics.acked += 1;
        if is_spurious {
            self.statistics.spurious += 1;
            outcome.spurious.push(sent);
        } else {
            self.leaves_flight(sent.kind, sent.bytes);
            outcome.acked.push(sent);
        }
    }

    /// Notes which packets the one that was acknowledged now has overtaken.
    fn overtake(&mut self, now: Time, largest: u64, largest_sent_at: Option<Time>) {
        let rtt = largest_sent_at.map_or(self.rtt.smoothed(), |sent_at| now.since(sent_at));
        let from = self.largest_acked.map_or(0, |before| before + 1);
        self.largest_acked = Some(largest);
        let mut number = self.packets.find(from);
        while number < largest {
            let tracked = self.packets.get_mut(number).expect("it was found");
            tracked.overtaken_by = Some(rtt);
            let expected = tracked.sent.sent_at + rtt;
            self.overtaken.push(Reverse((expected, number)));
            number = self.packets.find(number + 1);
        }
    }

    fn detect_lost(&mut self, now: Time, lost: &mut Vec<SentPacket<T>>) {
        // RFC 9002 §6.1.1, and not on a path that reorders, where it would be wrong all the time.
        let below = self
            .largest_acked
            .map_or(0, |largest| (largest + 1).saturating_sub(PACKET_THRESHOLD));
        if below > self.threshold_from {
            if !self.reordering_estimate.reorders() {
                let mut number = self.packets.find(self.threshold_from);
                while number < below {
                    self.declare_lost(now, number, lost);
                    number = self.packets.find(number + 1);
                }
            }
            self.threshold_from = below;
        }
        let window = self.reordering_estimate.window();
        self.loss_time = None;
        while let Some(Reverse((expected, number))) = self.overtaken.peek().copied() {
            let is_pending = (self.packets.get(number))
                .is_some_and(|tracked| tracked.state == TrackedState::InFlight);
            if is_pending && expected + window > now {
                self.loss_time = Some(expected + window);
                return;
            }
            self.overtaken.pop();
            if is_pending {
                self.declare_lost(now, number, lost);
            }
        }
    }

    fn declare_lost(&mut self, now: Time, number: u64, lost: &mut Vec<SentPacket<T>>) {
        let tracked = self.packets.get_mut(number).expect("it was found");
        if tracked.state != TrackedState::InFlight {
            return;
        }
        tracked.state = TrackedState::Lost;
        lost.push(tracked.sent.clone());
        self.missing(now, number);
    }

    /// Counts a packet that did not arrive, and remembers it.
    fn missing(&mut self, now: Time, number: u64) {
        let tracked = self.packets.get(number).expect("it is being declared");
        let (kind, bytes) = (tracked.sent.kind, tracked.sent.bytes);
        self.leaves_flight(kind, bytes);
        self.statistics.lost += 1;
        self.remembered.push_back((now, number));
    }

    /// Finds the packets that carried the symbols from `first` to `last`.
    fn recover(&mut self, now: Time, first: u64, last: u64, outcome: &mut AckOutcome<T>) {
        let mut index = self.symbols.partition_point(|(symbol, _)| *symbol < first);
        while let Some((symbol, carrier)) = self.symbols.get(index).copied()
            && symbol <= last
        {
            let number = self.packets.find(carrier);
            if number != carrier {
                // Settled, like all up to the next that is held.
                index = self.symbols.partition_point(|(_, held)| *held < number);
                continue;
            }
            index += 1;
            let tracked = self.packets.get_mut(number).expect("it was found");
            match std::mem::replace(&mut tracked.state, TrackedState::Recovered) {
                TrackedState::Recovered => continue,
                TrackedState::Lost => outcome.recovered_late.push(tracked.sent.clone()),
                TrackedState::InFlight => {
                    outcome.recovered.push(tracked.sent.clone());
                    self.missing(now, number);
                }
            }
            self.statistics.recovered += 1;
        }
    }

    /// Forgets lost packets after a while, and what went with settled ones.
    fn forget(&mut self, now: Time) {
        let remember = (self.probe_timeout() * 3).max(REMEMBER_MIN);
        while let Some((declared_at, number)) = self.remembered.front().copied() {
            if now.since(declared_at) < remember && self.remembered.len() <= LOST_REMEMBERED {
                break;
            }
            self.remembered.pop_front();
            self.packets.take(number);
        }
        let base = self.packets.base();
        while (self.symbols.front()).is_some_and(|(_, number)| *number < base) {
            self.symbols.pop_front();
        }
    }

    fn note_untimed(&mut self, number: u64) {
        self.untimed.push_back(number);
        while let Some(oldest) = self.untimed.front().copied() {
            let is_under_way = (self.packets.get(oldest))
                .is_some_and(|tracked| tracked.state == TrackedState::InFlight);
            if is_under_way && self.untimed.len() <= UNTIMED_LIMIT {
                break;
            }
            self.untimed.pop_front();
            if is_under_way {
                self.packets.take(oldest);
            }
        }
    }

    fn leaves_flight(&mut self, kind: PacketKind, bytes: u64) {
        if kind.is_in_flight() {
            self.in_flight -= bytes;
            self.eliciting -= 1;
        }
    }

    fn probe_time(&self) -> Option<Time> {
        if self.eliciting == 0 {
            return None;
        }
        let once = self.probe_timeout();
        // RFC 9002 §6.2.1: each probe in a row waits twice as long; after a few, and bounded, here.
        let doublings = (self.probe_count + 1).saturating_sub(PROBES_BEFORE_BACKOFF);
        let backed_off = once.saturating_mul(1 << doublings.min(16));
        let wait = backed_off.min(PROBE_INTERVAL_MAX.max(once));
        let since = if self.probe_count == 0 {
            self.last_eliciting_at
        } else {
            self.last_eliciting_at.max(self.probed_at)
        };
        Some(since + wait)
    }
}

/// Summary of a processed acknowledgement.
#[derive(Default)]
struct AckSummary {
    any: bool,
    elicited: bool,
    marked: u64,
    /// Sending time of the largest number, if it is newly acknowledged.
    largest_sent_at: Option<Time>,
}
