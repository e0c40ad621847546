//! CoDel, controlled delay: drops by how long packets have waited, as they are taken out
//! (RFC 8289 §5).
//!
//! Once packets have waited longer than `target` for a whole `interval`, one is dropped, and then
//! one after each `interval / √count`, until one comes that has waited less:
//!
//! ```text
//!                 above target for an interval: drop one
//!        ┌────────┐ ───────────────────────────────────► ┌──────────┐ ─┐ drop_next has come:
//!        │ passing│                                      │ dropping │  │ drop, count += 1,
//!        └────────┘ ◄─────────────────────────────────── └──────────┘ ◄┘ drop_next += interval/√count
//!                   below target, or no full packet waits
//! ```
//!
//! The RFC's `dequeue()` drops in a loop. Here each turn of the loop is a call of
//! [`CoDelState::on_dequeue`]: after [`QueueVerdict::Drop`] the caller asks again, at the same instant, about
//! the next packet; [`DequeueOutcome`] remembers where the loop was left. Where the RFC drops, an
//! ECN-capable packet is marked instead if the settings say so; it goes on to the line and ends the
//! loop, as in Linux. It holds no packets, and `interval / √count` is cut to whole nanoseconds.

use std::mem;
use std::time::Duration;

use vocab::Time;

use super::QueueVerdict;
use crate::config::{CoDelConfig, EcnMode};

/// Number of intervals after dropping stopped during which the former drop rate is still a good
/// start; RFC 8289 §5.5 (Dequeue Routine).
const REMEMBERED_INTERVALS: u32 = 16;

/// The state of one queue: RFC 8289 §5.2 (Per-Queue State).
#[derive(Clone, Debug)]
pub(crate) struct CoDelState {
    config: CoDelConfig,
    /// Backlog up to which no packet is dropped: RFC 8289 §5.3 (Constants) says that `maxpacket`
    /// should be the interface's MTU. It is a counted length, as on the line.
    max_packet: u64,
    /// Time at which the waiting time will have been above the target for an interval.
    first_above: Option<Time>,
    drop_next: Time,
    /// Packets dropped since dropping began.
    count: u32,
    /// Value of `count` at the beginning of the dropping state.
    last_count: u32,
    dropping: bool,
    round: DequeueOutcome,
}

/// Outcome for the previous packet, where the line takes out several at one instant.
#[derive(Clone, Copy, Debug)]
enum DequeueOutcome {
    /// There was none, or it went to the line.
    New,
    /// It was dropped when dropping began: this one passes in any case.
    Entered,
    /// It was dropped because `drop_next` had come, and there may be more to drop.
    Dropped,
}

impl CoDelState {
    pub(crate) fn new(config: CoDelConfig, max_packet: u64) -> Self {
        Self {
            config,
            max_packet,
            first_above: None,
            drop_next: Time::ZERO,
            count: 0,
            last_count: 0,
            dropping: false,
            round: DequeueOutcome::New,
        }
    }

    /// Applies other settings and keeps the state.
    pub(crate) fn set(&mut self, config: CoDelConfig, max_packet: u64) {
        self.config = config;
        self.max_packet = max_packet;
    }

    /// Decides about the packet that is taken out at `now` after it waited for `sojourn`.
    /// `backlog_after` is the number of bytes that still wait behind it; `ect` tells whether its
    /// sender supports marks.
    ///
    /// After [`QueueVerdict::Drop`] the caller asks about the next packet, or, when there is none,
    /// calls [`CoDelState::on_empty`].
    pub(crate) fn on_dequeue(
        &mut self,
        now: Time,
        sojourn: Duration,
        backlog_after: u64,
        ect: bool,
    ) -> QueueVerdict {
        let ok_to_drop = self.is_ok_to_drop(now, sojourn, backlog_after);
        match mem::replace(&mut self.round, DequeueOutcome::New) {
            DequeueOutcome::New if self.dropping => {
                self.dropping = ok_to_drop;
                self.drop_if_due(now, ect)
            }
            DequeueOutcome::New if ok_to_drop => self.enter(now, ect),
            DequeueOutcome::New | DequeueOutcome::Entered => QueueVerdict::Pass,
            DequeueOutcome::Dropped => {
                self.dropping = ok_to_drop;
                if ok_to_drop {
                    self.drop_next = self.control_law(self.drop_next);
                }
                self.drop_if_due(now, ect)
            }
        }
    }

    /// Updates the state when there was no packet to take out.
    pub(crate) fn on_empty(&mut self) {
        self.first_above = None;
        self.dropping = false;
        self.round = DequeueOutcome::New;
    }

    /// RFC 8289 §5.6 (Helper Routines), `dodequeue()`: above the target for an interval.
    fn is_ok_to_drop(&mut self, now: Time, sojourn: Duration, backlog_after: u64) -> bool {
        if sojourn < self.config.target || backlog_after <= self.max_packet {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            None => {
                self.first_above = Some(now + self.config.interval);
                false
            }
            Some(first_above) => now >= first_above,
        }
    }

    /// The loop of RFC 8289 §5.5 (Dequeue Routine), one turn.
    fn drop_if_due(&mut self, now: Time, ect: bool) -> QueueVerdict {
        if !self.dropping || now < self.drop_next {
            return QueueVerdict::Pass;
        }
        self.count = self.count.saturating_add(1);
        if self.marks(ect) {
            self.drop_next = self.control_law(self.drop_next);
            return QueueVerdict::Mark;
        }
        self.round = DequeueOutcome::Dropped;
        QueueVerdict::Drop
    }

    /// The first drop: RFC 8289 §5.5 (Dequeue Routine), from "enter drop state" on.
    fn enter(&mut self, now: Time, ect: bool) -> QueueVerdict {
        self.dropping = true;
        // If the waiting time rose above the target soon after it last sank below it, the rate of
        // dropping that controlled the queue then is a good one to begin with.
        let delta = self.count.saturating_sub(self.last_count);
        let recently = now.since(self.drop_next) < self.config.interval * REMEMBERED_INTERVALS;
        self.count = if delta > 1 && recently { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = self.control_law(now);
        if self.marks(ect) {
            return QueueVerdict::Mark;
        }
        self.round = DequeueOutcome::Entered;
        QueueVerdict::Drop
    }

    fn marks(&self, ect: bool) -> bool {
        ect && self.config.ecn == EcnMode::Mark
    }

    /// RFC 8289 §5.6 (Helper Routines): when to drop next after `from`.
    fn control_law(&self, from: Time) -> Time {
        let pause = self.config.interval.as_nanos() as f64 / f64::from(self.count).sqrt();
        from + Duration::from_nanos(pause as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_PACKET: u64 = 1_500;

    const LONG: Duration = Duration::from_millis(20);

    fn at(milliseconds: u64) -> Time {
        Time::from_nanos(milliseconds * 1_000_000)
    }

    /// Takes one packet to the line each millisecond; says when packets were dropped.
    fn drops(codel: &mut CoDelState, from: u64, until: u64, sojourn: Duration) -> Vec<u64> {
        let mut dropped = Vec::new();
        for now in from..until {
            while codel.on_dequeue(at(now), sojourn, 50_000, false) == QueueVerdict::Drop {
                dropped.push(now);
            }
        }
        dropped
    }

    #[test]
    fn drops_come_faster_while_packets_wait_too_long() {
        let mut codel = CoDelState::new(CoDelConfig::default(), MAX_PACKET);
        // From 100 ms on, each after 100 ms / √count.
        assert_eq!(drops(&mut codel, 0, 420, LONG), [100, 200, 271, 329, 379]);
    }

    #[test]
    fn sojourn_below_target_leaves_the_dropping_state() {
        let mut codel = CoDelState::new(CoDelConfig::default(), MAX_PACKET);
        drops(&mut codel, 0, 250, LONG);
        let short = Duration::from_micros(4_999);
        assert!(drops(&mut codel, 250, 260, short).is_empty());
        assert!(drops(&mut codel, 260, 359, LONG).is_empty());
    }

    #[test]
    fn queue_of_one_packet_never_drops() {
        let mut codel = CoDelState::new(CoDelConfig::default(), MAX_PACKET);
        for now in 0..500 {
            let verdict = codel.on_dequeue(at(now), LONG, MAX_PACKET, false);
            assert_eq!(verdict, QueueVerdict::Pass);
        }
    }

    #[test]
    fn only_ecn_capable_packets_are_marked() {
        let marking = CoDelConfig {
            ecn: EcnMode::Mark,
            ..CoDelConfig::default()
        };
        let mut codel = CoDelState::new(marking, MAX_PACKET);
        assert!(drops(&mut codel, 0, 100, LONG).is_empty());
        let marked = codel.on_dequeue(at(100), LONG, 50_000, true);
        assert_eq!(marked, QueueVerdict::Mark);
        assert_eq!(drops(&mut codel, 101, 201, LONG), [200]);
    }
}
