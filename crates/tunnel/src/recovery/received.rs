//! Packets that came: which ones, and when to say so (RFC 9000 §13.2, Generating Acknowledgments).
//!
//! An acknowledgement is due
//! - at once, for a packet that asks for that, and when enough packets wait for one: those that
//!   arrive in a sixteenth of a round trip, from 2 to 32;
//! - almost at once when something is out of order or marked (RFC 9000 §13.2.1), though not more
//!   often than once in [`SPACING_MAX`]; on a path that reorders all the time order is no news;
//! - an eighth of a round trip, or [`ACK_DELAY_MAX`], after the first that waits.
//!
//! It names the newest ranges, those that changed in the last few acknowledgements however old they
//! are, and some of the others in turn; a sender takes no silence about a number for a loss of it.
//! What the peer has confirmed to know (RFC 9000 §13.2.4) is not told again.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use vocab::Time;

use super::ACK_DELAY_MAX;
use crate::packet::{EcnCounts, PacketAck, RANGE_LIMIT};
use crate::ranges::RangeSet;

/// Numbers before the largest that are kept track of: as many as may be late by half a second at
/// 1 Gbit/s, and more. Older ones are not acknowledged. There are at most half as many ranges, and
/// as many of what is not confirmed.
pub const TRACKED_BACK: u64 = 1 << 16;

/// Ranges of recovered symbols that wait for confirmation, at most: the oldest are forgotten, and
/// then the sender sends again what it need not.
const RECOVERED_LIMIT: usize = 1 << 10;

/// Ranges told in each acknowledgement, changed or not: at 10 % loss, 300 packets back, in 100
/// bytes.
const NEWEST: usize = 32;

/// How many acknowledgements tell of a change, however old the range is: at 10 % loss one change in
/// ten thousand is then told by none, and waits for its turn.
const REPEATS: usize = 4;

/// Ranges told in turn, of those that are neither new nor changed.
const IN_TURN: usize = 4;

/// Packets that wait for one acknowledgement: no fewer, so that a slow path's way back is spared
/// (RFC 9000 §13.2.2), and no more, so that the sender's rate is still seen.
const EVERY_MIN: u64 = 2;
/// The most.
const EVERY_MAX: u64 = 32;

/// News that is not urgent enough for a packet of its own each time waits at most this long, or a
/// 64th of the round-trip time.
const SPACING_MAX: Duration = Duration::from_millis(1);

/// Packets that say nothing but what arrived, after which one asks to be confirmed, so that the
/// memory of them stays small: half of what is kept track of.
const UNCONFIRMED_MAX: usize = super::UNTIMED_LIMIT / 2;

/// A path on which more than one in so many packets is overtaken reorders all the time.
const REORDERS_SHARE: u64 = 8;

/// What a packet asks of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckRequest {
    /// Nothing: it is acknowledged when something else is.
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
    /// What it asks.
    pub asks: AckRequest,
    /// Its mark.
    pub codepoint: EcnMarking,
}

/// What the peer may be told now, and what is to be noted when it is ([`ReceivedPackets::told`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingAck {
    /// As it goes into a packet.
    pub acknowledgement: PacketAck,
    /// Where the next one's turn goes on.
    turn: u64,
}

/// What has come on one path, and what the peer is to hear of it.
#[derive(Clone, Debug)]
pub struct ReceivedPackets {
    /// Numbers that came.
    numbers: RangeSet,
    /// Those of them that the peer is not known to know.
    unconfirmed: RangeSet,
    largest: Option<(u64, Time)>,
    /// Numbers that came since the last acknowledgement, and between the last few, newest first.
    changes: VecDeque<RangeSet>,
    /// Ranges below it are the next to be told in turn.
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
    /// Nothing has come; `rtt` is what is known of the round-trip time.
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

    /// Takes note of a source symbol that was restored from repairs; its packet has not come.
    pub fn on_recovered(&mut self, now: Time, symbol: u64) {
        self.recovered.insert(symbol..symbol + 1);
        while self.recovered.count() > RECOVERED_LIMIT {
            let oldest = self.recovered.first().expect("there are too many");
            self.recovered.remove(oldest);
        }
        self.make_due(self.spaced(now));
    }

    /// When an acknowledgement is to be sent, even if nothing else is; `None` when nobody waits for
    /// one.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// Whether there is anything that the last acknowledgement did not tell, so that a packet that
    /// goes out anyway may take another along.
    #[must_use]
    pub fn has_unreported(&self) -> bool {
        !self.changes[0].is_empty() || self.due.is_some()
    }

    /// What to tell the peer now, in at most `ranges_max` ranges of each kind; `None` when nothing
    /// has come yet. It is not told before [`Self::told`] says so.
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

    /// Takes note that a packet with this went out: what was due is done.
    pub fn on_ack_sent(&mut self, now: Time, telling: &PendingAck) {
        self.turn = telling.turn;
        self.changes.push_front(RangeSet::default());
        self.changes.truncate(REPEATS);
        self.waiting = 0;
        self.due = None;
        self.told_at = Some(now);
    }

    /// Takes note that the peer has this acknowledgement, since it acknowledged the packet with it:
    /// what it told need not be told again.
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

    /// Whether the next packet with an acknowledgement should itself ask for one, so that this side
    /// need not repeat itself for ever: once in a round trip, while there is more than a line to
    /// tell, or `UNCONFIRMED_MAX` packets of which nothing was heard (RFC 9000 §13.2.4).
    #[must_use]
    pub fn wants_confirmation(&self, now: Time, packets: usize) -> bool {
        (self.unconfirmed.count() > 1 || !self.recovered.is_empty() || packets >= UNCONFIRMED_MAX)
            && now.since(self.confirmed_at) >= self.rtt
    }

    /// Takes note that a packet with an acknowledgement went out that asks for one itself.
    pub fn on_confirmation_requested(&mut self, now: Time) {
        self.confirmed_at = now;
    }

    /// How many ranges are kept: what this costs in memory.
    #[must_use]
    pub fn tracked_ranges(&self) -> usize {
        self.numbers.count() + self.unconfirmed.count()
    }

    /// The least number that is kept track of.
    fn horizon(&self) -> u64 {
        let largest = self.largest.map_or(0, |(largest, _)| largest);
        (largest + 1).saturating_sub(TRACKED_BACK)
    }

    /// The newest ranges, those that changed of late and some of the others, newest first, and below
    /// which number the next of the others are.
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

    /// Ranges that hold anything that the peer may not know, from below a number downwards. They
    /// are whole ranges: pieces that came between confirmed ones are told in one with them.
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

    /// Counts one; works anew, each quarter of a round trip, how many make an acknowledgement due.
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
