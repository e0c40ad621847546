//! Propagation delay: every packet the same time on its way, in order.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use vocab::Time;

use crate::counters::Tally;

/// Packets on their way, the next to arrive first.
#[derive(Debug)]
pub(crate) struct DelayLine {
    delay: Duration,
    packets: VecDeque<(Time, Bytes)>,
    in_flight: Tally,
}

impl DelayLine {
    pub(crate) fn new(delay: Duration) -> Self {
        Self {
            delay,
            packets: VecDeque::new(),
            in_flight: Tally::default(),
        }
    }

    /// Takes another delay for the packets that come from now on. Those under way keep theirs,
    /// and none overtakes another.
    pub(crate) fn set(&mut self, delay: Duration) {
        self.delay = delay;
    }

    /// Takes in a packet whose last bit left the line at `sent`.
    pub(crate) fn push(&mut self, sent: Time, packet: Bytes) {
        let last = self.packets.back().map_or(Time::ZERO, |(due, _)| *due);
        let due = self.arrival(sent).max(last);
        self.in_flight += Tally::one(packet.len());
        self.packets.push_back((due, packet));
    }

    /// Takes out the next packet that is due by `now`, with the moment at which it was due.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, Bytes)> {
        self.packets.front().filter(|(due, _)| *due <= now)?;
        let (due, packet) = self.packets.pop_front()?;
        self.in_flight.subtract(Tally::one(packet.len()));
        Some((due, packet))
    }

    /// When the next packet arrives.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.packets.front().map(|(due, _)| *due)
    }

    /// When a packet would arrive that leaves the line at `sent`.
    pub(crate) fn arrival(&self, sent: Time) -> Time {
        sent + self.delay
    }

    /// What is under way.
    pub(crate) fn in_flight(&self) -> Tally {
        self.in_flight
    }
}
