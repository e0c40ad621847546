//! Received packets: their numbers, and when to acknowledge them (RFC 9000 §13.2, Generating
//! Acknowledgments).
//!
//! An acknowledgement is due
//! - at once, for a packet that asks for it, and when enough packets wait for one: those that
//!   arrive in a sixteenth of a round trip, from 2 to 32;
//! - almost at once when packets are out of order or marked (RFC 9000 §13.2.1), though at most once
//!   in [`SPACING_MAX`]; on a path that always reorders, out-of-order packets do not count;
//! - an eighth of a round trip, or [`ACK_DELAY_MAX`], after the first packet that waits.
//!
//! It names the newest ranges, those that changed in the last few acknowledgements, however old,
//! and some of the others in turn. A number that is not named does not count as lost. Ranges that
//! the peer has confirmed (RFC 9000 §13.2.4) are not repeated.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use vocab::Time;

use super::ACK_DELAY_MAX;
use crate::packet::{EcnCounts, PacketAck, RANGE_LIMIT};
use crate::ranges::RangeSet;

/// Range of tracked numbers below the largest: enough for packets late by half a second at 1
/// Gbit/s, and more. Older ones are not acknowledged. There are at most half as many ranges, and as
/// many unconfirmed ones.
pub const TRACKED_BACK: u64 = 1 << 16;

/// Limit for ranges of recovered symbols that wait for confirmation. The oldest are dropped; the
/// sender then repeats their data unnecessarily.
const RECOVERED_LIMIT: usize = 1 << 10;

/// Ranges told in each acknowledgement, changed or not: at 10 % loss, 300 packets back, in 100
/// bytes.
const NEWEST: usize = 32;

/// Number of acknowledgements that report a change, however old the range is: at 10 % loss none of
/// them arrives for one change in ten thousand, which then waits for its turn.
const REPEATS: usize = 4;

/// Ranges reported in turn, of those that are neither new nor changed.
const IN_TURN: usize = 4;

/// Packets that wait for one acknowledgement: no fewer, so that a slow path's way back is spared
/// (RFC 9000 §13.2.2), and no more, so that the sender's rate is still seen.
const EVERY_MIN: u64 = 2;
/// The most.
const EVERY_MAX: u64 = 32;

/// News that is not urgent enough for a packet of its own each time waits at most this long, or a
/// 64th of the round-trip time.
const SPACING_MAX: Duration = Duration::from_millis(1);

/// Acknowledgement-only packets after which one asks for confirmation, so that little memory is
/// needed for them: half of the tracked ones.
const UNCONFIRMED_MAX: usize = super::UNTIMED_LIMIT / 2;

/// Share of reordered packets above which a path counts as always reordering, as a divisor.
const REORDERS_SHARE: u64 = 8;

/// Acknowledgement that a packet asks of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckRequest {
    /// No acknowledgement; it is acknowledged with other packets.
    Nothing,
    /// An acknowledgement, when convenient.
    Acknowledgement,
    /// An acknowledgement now: the sender is waiting for it, as after a probe.
    AtOnce,
}

/// The two bits of congestion notification of an IP packet (RFC 3168 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EcnMarking {
    /// No marks, or the host does not show them.
    NotEct,
    /// ECN-capable, as we send it.
    Ect0,
    /// ECN-capable, as we do not.
    Ect1,
    /// Congestion experienced.
    Ce,
}

/// A packet that came, opened and not seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedPacket {
    /// Its number.
    pub number: u64,
    /// Acknowledgement that the packet asks for.
    pub asks: AckRequest,
    /// Its mark.
    pub codepoint: EcnMarking,
}

/// Acknowledgement that may be sent now, with the state to update when it is sent
/// ([`ReceivedPackets::on_ack_sent`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingAck {
    /// As it goes into a packet.
    pub acknowledgement: PacketAck,
    /// Number below which the next acknowledgement continues with the ranges in turn.
    turn: u64,
}

/// Packets received on one path, and the acknowledgements that the peer is still to get.
#[derive(Clone, Debug)]
pub struct ReceivedPackets {
    /// Numbers that came.
    numbers: RangeSet,
    /// Numbers that the peer is not known to have seen acknowledged.
    unconfirmed: RangeSet,
    largest: Option<(u64, Time)>,
    /// Numbers that came since the last acknowledgement, and between the last few, newest first.
    changes: VecDeque<RangeSet>,
    /// Number below which the next ranges are reported in turn.
    turn: u64,
    recovered: RangeSet,
    counts: EcnCounts,
    has_marks: bool,
    /// Packets that wait for an acknowledgement.
    waiting: u64,
    due: Option<Time>,
    told_at: Option<Time>,
    rtt: Duration,
    arrivals: ArrivalCounter,
    confirmed_at: Time,
}

impl ReceivedPackets {
    /// Makes an empty set; `rtt` is the known round-trip time.
    #[must_use]
    pub fn new(now: Time, rtt: Duration) -> Self {
        Self {
            numbers: RangeSet::default(),
            unconfirmed: RangeSet::default(),
            largest: None,
            changes: VecDeque::from([RangeSet::default()]),
            turn: 0,
            recovered: RangeSet::default(),
            counts: EcnCounts::default(),
            has_marks: false,
            waiting: 0,
            due: None,
            told_at: None,
            rtt,
            arrivals: ArrivalCounter::new(now),
            confirmed_at: now,
        }
    }

    /// Takes the round-trip time as this side knows it by now.
    pub fn set_rtt(&mut self, rtt: Duration) {
        self.rtt = rtt;
    }

    /// Takes note of a packet that came.
    pub fn on_packet(&mut self, now: Time, arrival: ReceivedPacket) {
        let number = arrival.number;
        let horizon = self.horizon();
        if number < horizon || self.numbers.contains(number) {
            return;
        }
        let expected = self.largest.map_or(0, |(largest, _)| largest + 1);
        self.numbers.insert(number..number + 1);
        self.unconfirmed.insert(number..number + 1);
        self.changes[0].insert(number..number + 1);
        if number >= expected {
            self.largest = Some((number, now));
            let horizon = self.horizon();
            self.numbers.remove(0..horizon);
            self.unconfirmed.remove(0..horizon);
            for changed in &mut self.changes {
                changed.remove(0..horizon);
            }
        }
        self.count(arrival.codepoint);
        if arrival.asks == AckRequest::Nothing {
            return;
        }
        self.arrivals.count(now, self.rtt, number < expected);
        self.waiting += 1;
        let is_out_of_order = number != expected && !self.arrivals.reorder();
        let is_news = is_out_of_order || arrival.codepoint == EcnMarking::Ce;
        let due = if arrival.asks == AckRequest::AtOnce || self.waiting >= self.arrivals.every() {
            now
        } else if is_news {
            self.spaced(now)
        } else {
            now + self.delay()
        };
        self.make_due(due);
    }

    /// Records a source symbol that was recovered by repairs; its packet has not arrived.
    pub fn on_recovered(&mut self, now: Time, symbol: u64) {
        self.recovered.insert(symbol..symbol + 1);
        while self.recovered.count() > RECOVERED_LIMIT {
            let oldest = self.recovered.first().expect("there are too many");
            self.recovered.remove(oldest);
        }
        self.make_due(self.spaced(now));
    }

    /// Returns the time at which an acknowledgement has to be sent even if nothing else is; `None`
    /// when none is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// Returns `true` if anything changed since the last acknowledgement. A packet that is sent
    /// anyway may then carry another acknowledgement.
    #[must_use]
    pub fn has_unreported(&self) -> bool {
        !self.changes[0].is_empty() || self.due.is_some()
    }

    /// Returns the acknowledgement to send now, with at most `ranges_max` ranges of each kind;
    /// `None` before any packet has arrived. It counts as sent only after [`Self::on_ack_sent`].
    #[must_use]
    pub fn pending_ack(&self, now: Time, ranges_max: usize) -> Option<PendingAck> {
        let (_, came_at) = self.largest?;
        let ranges_max = ranges_max.clamp(1, RANGE_LIMIT);
        let (ranges, turn) = self.ranges_to_tell(ranges_max);
        let recovered = self.recovered.iter().rev().take(ranges_max);
        let recovered = recovered.map(inclusive).collect();
        let delay = now.since(came_at).as_micros();
        let acknowledgement = PacketAck {
            // A number on the wire is below 2^62.
            delay_us: u64::try_from(delay).unwrap_or(u64::MAX).min(u64::MAX >> 2),
            ranges,
            ecn: self.has_marks.then_some(self.counts),
            recovered,
        };
        Some(PendingAck {
            acknowledgement,
            turn,
        })
    }

    /// Records that a packet with this acknowledgement was sent; nothing is due any more.
    pub fn on_ack_sent(&mut self, now: Time, telling: &PendingAck) {
        self.turn = telling.turn;
        self.changes.push_front(RangeSet::default());
        self.changes.truncate(REPEATS);
        self.waiting = 0;
        self.due = None;
        self.told_at = Some(now);
    }

    /// Records that the peer has this acknowledgement, because it acknowledged the packet with it.
    /// Its ranges need not be reported again.
    pub fn confirmed(&mut self, now: Time, acknowledgement: &PacketAck) {
        self.confirmed_at = now;
        for (first, last) in &acknowledgement.ranges {
            self.unconfirmed.remove(*first..*last + 1);
            for changed in &mut self.changes {
                changed.remove(*first..*last + 1);
            }
        }
        for (first, last) in &acknowledgement.recovered {
            self.recovered.remove(*first..*last + 1);
        }
    }

    /// Returns `true` if the next packet with an acknowledgement should ask for one itself, so that
    /// this side need not repeat old ranges.
    ///
    /// This happens once in a round trip while there is more than one range to report, or after
    /// `UNCONFIRMED_MAX` packets without an answer (RFC 9000 §13.2.4).
    #[must_use]
    pub fn wants_confirmation(&self, now: Time, packets: usize) -> bool {
        (self.unconfirmed.count() > 1 || !self.recovered.is_empty() || packets >= UNCONFIRMED_MAX)
            && now.since(self.confirmed_at) >= self.rtt
    }

    /// Records that a packet was sent whose acknowledgement asks for confirmation.
    pub fn on_confirmation_requested(&mut self, now: Time) {
        self.confirmed_at = now;
    }

    /// Returns the number of tracked ranges, which determines the memory in use.
    #[must_use]
    pub fn tracked_ranges(&self) -> usize {
        self.numbers.count() + self.unconfirmed.count()
    }

    /// The least number that is kept track of.
    fn horizon(&self) -> u64 {
        let largest = self.largest.map_or(0, |(largest, _)| largest);
        (largest + 1).saturating_sub(TRACKED_BACK)
    }

    /// Returns the ranges to report, newest first: the newest, those that changed recently and some
    /// of the others; and the number below which the next of the others are.
    fn ranges_to_tell(&self, ranges_max: usize) -> (Vec<(u64, u64)>, u64) {
        let largest = self
            .largest
            .and_then(|(largest, _)| self.numbers.around(largest));
        let largest = largest.expect("something came");
        let mut told_down_to = largest.start;
        let mut ranges = vec![inclusive(largest)];
        for range in self.unknown_below(told_down_to).take(NEWEST - 1) {
            told_down_to = range.start;
            ranges.push(inclusive(range));
        }
        let before = ranges.len();
        for changed in &self.changes {
            let old = changed.below(told_down_to).take(ranges_max);
            let around = old.filter_map(|range| self.numbers.around(range.start));
            ranges.extend(around.map(inclusive));
        }
        let mut in_turn: Vec<_> = self.unknown_below(self.turn).take(IN_TURN).collect();
        if in_turn.is_empty() {
            in_turn = self.unknown_below(told_down_to).take(IN_TURN).collect();
        }
        let turn = in_turn.last().map_or(0, |range| range.start);
        let in_turn = in_turn.into_iter().map(inclusive);
        ranges.extend(in_turn.filter(|(first, _)| *first < told_down_to));
        ranges[before..].sort_unstable_by(|one, other| other.cmp(one));
        ranges.dedup();
        ranges.truncate(ranges_max);
        (ranges, turn)
    }

    /// Returns the ranges below `number` that the peer may not know, downwards. They are complete
    /// ranges: numbers between confirmed ones are reported in one range with them.
    fn unknown_below(&self, number: u64) -> impl Iterator<Item = Range<u64>> {
        let mut below = number;
        std::iter::from_fn(move || {
            let unknown = self.unconfirmed.below(below).next()?;
            let range = self.numbers.around(unknown.start)?;
            below = range.start;
            Some(range)
        })
    }

    fn count(&mut self, codepoint: EcnMarking) {
        let count = match codepoint {
            EcnMarking::NotEct => return,
            EcnMarking::Ect0 => &mut self.counts.ect0,
            EcnMarking::Ect1 => &mut self.counts.ect1,
            EcnMarking::Ce => &mut self.counts.ce,
        };
        *count += 1;
        self.has_marks = true;
    }

    fn make_due(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn delay(&self) -> Duration {
        (self.rtt / 8).clamp(path::GRANULARITY, ACK_DELAY_MAX)
    }

    /// Now, or when the last acknowledgement is long enough ago.
    fn spaced(&self, now: Time) -> Time {
        let spacing = (self.rtt / 64).min(SPACING_MAX);
        self.told_at.map_or(now, |told| now.max(told + spacing))
    }
}

/// Counts how many packets come in a sixteenth of a round trip, and how many of them late.
#[derive(Clone, Debug)]
struct ArrivalCounter {
    since: Time,
    count: u64,
    late: u64,
    every: u64,
    reorder: bool,
}

impl ArrivalCounter {
    fn new(now: Time) -> Self {
        Self {
            since: now,
            count: 0,
            late: 0,
            every: EVERY_MIN,
            reorder: false,
        }
    }

    /// Counts one arrival. Recomputes, each quarter of a round trip, the number of packets that
    /// makes an acknowledgement due.
    fn count(&mut self, now: Time, rtt: Duration, is_late: bool) {
        let passed = now.since(self.since);
        let period = (rtt / 4).max(path::GRANULARITY);
        if passed >= period {
            // After a pause the count is that of a longer time.
            let periods = u64::try_from(passed.as_nanos() / period.as_nanos()).unwrap_or(u64::MAX);
            self.every = (self.count / periods / 4).clamp(EVERY_MIN, EVERY_MAX);
            // The sender waits for late packets by then, and for nothing less than their lateness.
            self.reorder = self.late * REORDERS_SHARE > self.count;
            self.since = now;
            self.count = 0;
            self.late = 0;
        }
        self.count += 1;
        self.late += u64::from(is_late);
    }

    fn reorder(&self) -> bool {
        self.reorder
    }

    fn every(&self) -> u64 {
        self.every
    }
}

fn inclusive(range: Range<u64>) -> (u64, u64) {
    (range.start, range.end - 1)
}
