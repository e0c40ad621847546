//! A drop-tail queue in front of a line of fixed rate.
//!
//! The line's work is counted in bits × 10⁹, of which it does `rate` per nanosecond: whole
//! numbers, so nothing is rounded. A packet ends in the first whole nanosecond in which its work
//! is done, and what the line did beyond it in that nanosecond counts for the next packet. The
//! rate is therefore exact over any time, and each single ending is less than 1 ns late.
//!
//! It knows nothing of loss and delay.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use vocab::{Bitrate, ByteCount, Time};

use crate::counters::Tally;

/// The work of one bit, in the units in which a line of `rate` bit/s does `rate` per nanosecond.
const WORK_PER_BIT: u128 = 1_000_000_000;

/// The queue and the line behind it.
#[derive(Debug)]
pub(crate) struct Bottleneck {
    rate: Option<Bitrate>,
    limit: ByteCount,
    overhead: ByteCount,
    /// The first of them is on the line.
    packets: VecDeque<Bytes>,
    queued: Tally,
    /// `remaining` is what is left to do for the first packet at this moment.
    clock: Time,
    remaining: u128,
    /// When the first packet ends, if nothing is set otherwise until then.
    end: Option<Time>,
}

impl Bottleneck {
    pub(crate) fn new(rate: Option<Bitrate>, limit: ByteCount, overhead: ByteCount) -> Self {
        Self {
            rate,
            limit,
            overhead,
            packets: VecDeque::new(),
            queued: Tally::default(),
            clock: Time::ZERO,
            remaining: 0,
            end: None,
        }
    }

    /// Takes other settings at `now`; the packet on the line keeps the bits it has already sent,
    /// and nothing that waits is dropped, even where the new limit is lower.
    ///
    /// Everything that ends by `now` must have been taken out before.
    pub(crate) fn set(
        &mut self,
        now: Time,
        rate: Option<Bitrate>,
        limit: ByteCount,
        overhead: ByteCount,
    ) {
        if !self.packets.is_empty() {
            let done = self.work_done(now);
            self.remaining = self.remaining.saturating_sub(done);
            self.clock = self.clock.max(now);
        }
        self.rate = rate;
        self.limit = limit;
        self.overhead = overhead;
        self.end = self.find_end();
    }

    /// Whether a packet of this length fits now.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        self.occupancy() + length as u64 + self.overhead.bytes() <= self.limit.bytes()
    }

    /// Puts a packet at the tail, at `now`.
    pub(crate) fn push(&mut self, now: Time, packet: Bytes) {
        let was_idle = self.packets.is_empty();
        let length = packet.len();
        self.queued += Tally::one(length);
        self.packets.push_back(packet);
        if was_idle {
            self.clock = now;
            self.remaining = self.work(length);
            self.end = self.find_end();
        }
    }

    /// Takes out the next packet whose last bit has left by `now`, and says when that was.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, Bytes)> {
        let end = self.end.filter(|end| *end <= now)?;
        let packet = self.packets.pop_front()?;
        self.queued.subtract(Tally::one(packet.len()));
        if let Some(next) = self.packets.front() {
            let surplus = self.work_done(end).saturating_sub(self.remaining);
            self.remaining = self.work(next.len()).saturating_sub(surplus);
            self.clock = end;
        }
        self.end = self.find_end();
        Some((end, packet))
    }

    /// When the packet on the line ends; `None` when there is none or the line stands still.
    pub(crate) fn next_end(&self) -> Option<Time> {
        self.end
    }

    /// What waits, the packet on the line included.
    pub(crate) fn queued(&self) -> Tally {
        self.queued
    }

    fn find_end(&self) -> Option<Time> {
        if self.packets.is_empty() {
            return None;
        }
        let Some(rate) = self.rate else {
            return Some(self.clock);
        };
        if rate.bits_per_second() == 0 {
            return None;
        }
        let nanoseconds = self.remaining.div_ceil(u128::from(rate.bits_per_second()));
        Some(self.clock + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
    }

    /// What the line does from `clock` to `until`.
    fn work_done(&self, until: Time) -> u128 {
        let rate = self.rate.map_or(0, Bitrate::bits_per_second);
        until.since(self.clock).as_nanos() * u128::from(rate)
    }

    fn work(&self, length: usize) -> u128 {
        let bytes = length as u128 + u128::from(self.overhead.bytes());
        bytes * 8 * WORK_PER_BIT
    }

    /// What counts against the limit.
    fn occupancy(&self) -> u64 {
        self.queued.bytes + self.queued.packets * self.overhead.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(bits_per_second: u64, limit: u64) -> Bottleneck {
        Bottleneck::new(
            Some(Bitrate::from_bits_per_second(bits_per_second)),
            ByteCount::new(limit),
            ByteCount::new(0),
        )
    }

    fn packet(length: usize) -> Bytes {
        Bytes::from(vec![0; length])
    }

    #[test]
    fn a_busy_line_keeps_its_rate_to_the_nanosecond() {
        // 7 bit/s × 3 bytes does not divide: each packet takes 3 428 571 428.57… ns.
        let mut line = line(7, 1_000_000);
        for _ in 0..1_000 {
            line.push(Time::ZERO, packet(3));
        }
        let ends: Vec<u64> = std::iter::from_fn(|| line.pop(Time::NEVER))
            .map(|(end, _)| end.as_nanos())
            .collect();
        for (index, end) in ends.iter().enumerate() {
            let bits = (index as u64 + 1) * 24;
            assert_eq!(*end, (bits * 1_000_000_000).div_ceil(7));
        }
        assert_eq!(ends.len(), 1_000);
    }

    #[test]
    fn a_packet_counts_until_its_last_bit_has_left() {
        let mut line = line(12_000, 3_000);
        line.push(Time::ZERO, packet(1_500));
        line.push(Time::ZERO, packet(1_500));
        assert!(!line.has_room(1));
        assert!(line.pop(Time::from_nanos(999_999_999)).is_none());
        assert!(line.pop(Time::from_nanos(1_000_000_000)).is_some());
        assert!(line.has_room(1_500));
        assert!(!line.has_room(1_501));
    }

    #[test]
    fn an_idle_line_starts_a_packet_when_it_comes() {
        let mut line = line(8_000, 3_000);
        line.push(Time::from_nanos(500), packet(1));
        assert_eq!(
            line.pop(Time::NEVER).unwrap().0,
            Time::from_nanos(1_000_500)
        );
        line.push(Time::from_nanos(5_000_000), packet(1));
        assert_eq!(
            line.pop(Time::NEVER).unwrap().0,
            Time::from_nanos(6_000_000)
        );
    }

    #[test]
    fn a_change_of_rate_keeps_the_bits_already_sent() {
        let mut line = line(8_000, 3_000);
        line.push(Time::ZERO, packet(2));
        // Half of it has gone after 1 ms; the other half takes 2 ms at half the rate.
        line.set(
            Time::from_nanos(1_000_000),
            Some(Bitrate::from_bits_per_second(4_000)),
            ByteCount::new(1),
            ByteCount::new(0),
        );
        assert_eq!(line.next_end(), Some(Time::from_nanos(3_000_000)));
    }

    #[test]
    fn a_line_that_stands_still_keeps_what_it_has() {
        let mut line = line(8_000, 3_000);
        line.push(Time::ZERO, packet(2));
        let halfway = Time::from_nanos(1_000_000);
        let limit = ByteCount::new(3_000);
        line.set(halfway, Some(Bitrate::default()), limit, ByteCount::new(0));
        assert_eq!(line.next_end(), None);
        let later = Time::from_nanos(10_000_000);
        line.set(
            later,
            Some(Bitrate::from_bits_per_second(8_000)),
            limit,
            ByteCount::new(0),
        );
        assert_eq!(line.next_end(), Some(Time::from_nanos(11_000_000)));
    }
}
