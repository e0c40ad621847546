//! The line takes packets out of the queue one at a time, and tells when the last bit of each has
//! left.
//!
//! A line of fixed rate counts its work in bits × 10⁹, and does `rate` of it per nanosecond: whole
//! numbers, so nothing is rounded. A packet ends in the first whole nanosecond in which its work is
//! done; further work in that nanosecond counts for the next packets, of which several may end in
//! the same one. The rate is therefore exact over any time, and each packet ends less than 1 ns
//! late. A shaper releases a packet in the first whole nanosecond in which its buckets have enough
//! tokens, a trace at its recorded opportunities.

use std::sync::Arc;
use std::time::Duration;

use vocab::{Bitrate, Time};

use crate::config;
use crate::token_bucket::TokenBuckets;
use crate::trace::{DeliveryTrace, TraceCursor};

/// The work of one bit, in the units in which a line of `rate` bit/s does `rate` per nanosecond.
const WORK_PER_BIT: u128 = 1_000_000_000;

/// A line at work.
#[derive(Debug)]
pub(crate) enum LineState {
    Unlimited {
        end: Time,
    },
    Rate(FixedRateLine),
    Shaper {
        bucket: TokenBuckets,
        end: Option<Time>,
        length: u64,
    },
    Trace {
        trace: Arc<DeliveryTrace>,
        cursor: TraceCursor,
        end: Time,
    },
}

/// A line of fixed rate.
#[derive(Debug)]
pub(crate) struct FixedRateLine {
    rate: Bitrate,
    /// Time for which `remaining` holds the work left for the packet on the line.
    clock: Time,
    remaining: u128,
    /// Work that the line has done by `clock` beyond the packet on it. It exceeds that packet where
    /// packets take less than a nanosecond.
    ahead: u128,
    end: Option<Time>,
    /// Last rate above zero, from which waiting times are computed while the line stands still.
    usual: Bitrate,
}

impl LineState {
    pub(crate) fn new(now: Time, config: &config::LineConfig) -> Self {
        match config {
            config::LineConfig::Unlimited => LineState::Unlimited { end: now },
            config::LineConfig::Rate(rate) => LineState::Rate(FixedRateLine {
                rate: *rate,
                clock: now,
                remaining: 0,
                ahead: 0,
                end: None,
                usual: *rate,
            }),
            config::LineConfig::Shaper(bucket) => LineState::Shaper {
                bucket: TokenBuckets::new(*bucket, now),
                end: None,
                length: 0,
            },
            config::LineConfig::Trace(trace) => LineState::Trace {
                trace: Arc::clone(trace),
                cursor: TraceCursor::new(now),
                end: now,
            },
        }
    }

    /// Applies other settings at `now`. A line of fixed rate whose rate changes keeps the bits that
    /// it has sent of `on_line`, the counted length of the packet on it; tokens stay.
    pub(crate) fn set(&mut self, now: Time, config: &config::LineConfig, on_line: Option<u64>) {
        match (&mut *self, config) {
            (LineState::Unlimited { .. }, config::LineConfig::Unlimited) => {}
            (LineState::Rate(line), config::LineConfig::Rate(rate)) => {
                line.set(now, *rate, on_line)
            }
            (LineState::Trace { trace, .. }, config::LineConfig::Trace(other))
                if trace == other => {}
            (
                LineState::Shaper {
                    bucket,
                    end,
                    length,
                },
                config::LineConfig::Shaper(other),
            ) => {
                bucket.set(now, *other);
                if on_line.is_some() {
                    *end = bucket.ready_at(now, *length);
                }
            }
            (line, config) => {
                *line = LineState::new(now, config);
                if let Some(length) = on_line {
                    line.begin(now, length);
                }
            }
        }
    }

    /// Tells whether a packet of this length can ever pass.
    pub(crate) fn can_carry(&self, length: u64) -> bool {
        match self {
            LineState::Shaper { bucket, .. } => bucket.fits(length),
            LineState::Unlimited { .. } | LineState::Rate(_) | LineState::Trace { .. } => true,
        }
    }

    /// Puts a packet on an idle line.
    pub(crate) fn begin(&mut self, now: Time, counted: u64) {
        match self {
            LineState::Unlimited { end } => *end = now,
            LineState::Rate(line) => line.begin(now, counted, 0),
            LineState::Shaper {
                bucket,
                end,
                length,
            } => {
                *length = counted;
                *end = bucket.ready_at(now, counted);
            }
            LineState::Trace { trace, cursor, end } => *end = cursor.carry(trace, now, counted),
        }
    }

    /// Puts a packet on the line behind the one that ends there at `now`.
    pub(crate) fn follow(&mut self, now: Time, counted: u64) {
        match self {
            LineState::Rate(line) => {
                let done = line.ahead + line.work_done(now);
                line.begin(now, counted, done.saturating_sub(line.remaining));
            }
            LineState::Unlimited { .. } | LineState::Shaper { .. } | LineState::Trace { .. } => {
                self.begin(now, counted);
            }
        }
    }

    /// Takes off the packet that ends at `now`.
    pub(crate) fn finish(&mut self, now: Time) {
        if let LineState::Shaper {
            bucket,
            end,
            length,
        } = self
        {
            bucket.take(now, *length);
            *end = None;
        }
    }

    /// Time at which the packet on the line ends; `None` while the line stands still. It is only
    /// valid while a packet is on the line.
    pub(crate) fn end(&self) -> Option<Time> {
        match self {
            LineState::Unlimited { end } | LineState::Trace { end, .. } => Some(*end),
            LineState::Rate(line) => line.end,
            LineState::Shaper { end, .. } => *end,
        }
    }

    /// Time that so many bytes need at the line's usual rate; `None` for a line without one.
    pub(crate) fn time_for(&self, bytes: u64) -> Option<Duration> {
        let rate = match self {
            LineState::Rate(line) => line.usual,
            LineState::Shaper { bucket, .. } => bucket.rate(),
            LineState::Unlimited { .. } | LineState::Trace { .. } => return None,
        };
        let work = u128::from(bytes) * 8 * WORK_PER_BIT;
        let nanoseconds = work.div_ceil(u128::from(rate.bits_per_second().max(1)));
        Some(Duration::from_nanos(
            u64::try_from(nanoseconds).unwrap_or(u64::MAX),
        ))
    }
}

impl FixedRateLine {
    fn set(&mut self, now: Time, rate: Bitrate, on_line: Option<u64>) {
        if on_line.is_some() {
            self.remaining = self.remaining.saturating_sub(self.work_done(now));
            self.clock = self.clock.max(now);
        }
        self.rate = rate;
        if rate > Bitrate::default() {
            self.usual = rate;
        }
        self.end = self.find_end();
    }

    fn begin(&mut self, now: Time, counted: u64, done: u128) {
        self.clock = now;
        let work = u128::from(counted) * 8 * WORK_PER_BIT;
        self.remaining = work.saturating_sub(done);
        self.ahead = done.saturating_sub(work);
        self.end = self.find_end();
    }

    fn find_end(&self) -> Option<Time> {
        let rate = u128::from(self.rate.bits_per_second());
        if rate == 0 {
            return None;
        }
        // A division of 128 bits takes several times as long as one of 64.
        let nanoseconds = match (u64::try_from(self.remaining), u64::try_from(rate)) {
            (Ok(remaining), Ok(rate)) => remaining.div_ceil(rate),
            _ => u64::try_from(self.remaining.div_ceil(rate)).unwrap_or(u64::MAX),
        };
        Some(self.clock + Duration::from_nanos(nanoseconds))
    }

    /// Work that the line does from `clock` to `until`.
    fn work_done(&self, until: Time) -> u128 {
        until.since(self.clock).as_nanos() * u128::from(self.rate.bits_per_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanoseconds: u64) -> Time {
        Time::from_nanos(nanoseconds)
    }

    fn rate(bits_per_second: u64) -> config::LineConfig {
        config::LineConfig::Rate(Bitrate::from_bits_per_second(bits_per_second))
    }

    /// End times of `count` packets that follow each other without a gap.
    fn ends(bits_per_second: u64, counted: u64, count: usize) -> Vec<u64> {
        let mut line = LineState::new(Time::ZERO, &rate(bits_per_second));
        line.begin(Time::ZERO, counted);
        let mut ends = Vec::new();
        while ends.len() < count {
            let end = line.end().unwrap();
            line.finish(end);
            line.follow(end, counted);
            ends.push(end.as_nanos());
        }
        ends
    }

    /// Whole nanoseconds that so many bits need.
    fn needed(bits: u64, bits_per_second: u64) -> u64 {
        (u128::from(bits) * WORK_PER_BIT).div_ceil(u128::from(bits_per_second)) as u64
    }

    #[test]
    fn busy_line_keeps_its_rate_to_the_nanosecond() {
        // 7 bit/s × 3 bytes does not divide: each packet takes 3 428 571 428.57… ns.
        for (index, end) in ends(7, 3, 1_000).into_iter().enumerate() {
            assert_eq!(end, needed((index as u64 + 1) * 24, 7));
        }
    }

    #[test]
    fn packets_shorter_than_a_nanosecond_keep_the_rate() {
        let fastest = crate::RATE_MAX.bits_per_second();
        // 0.32 and 0.512 ns each; 250 bytes end in the middle of a nanosecond and outlast it.
        for counted in [40, 64, 250] {
            for (index, end) in ends(fastest, counted, 100_000).into_iter().enumerate() {
                assert_eq!(end, needed((index as u64 + 1) * counted * 8, fastest));
            }
        }
    }

    #[test]
    fn an_idle_line_has_no_credit() {
        let mut line = LineState::new(Time::ZERO, &rate(1_000_000_000_000));
        line.begin(Time::ZERO, 1);
        line.finish(at(1));
        // The first took 8 of the nanosecond's 1,000 bits; what was left is gone.
        line.begin(at(1), 250);
        assert_eq!(line.end(), Some(at(3)));
        line.begin(at(10), 126);
        assert_eq!(line.end(), Some(at(12)));
    }

    #[test]
    fn rate_change_keeps_the_bits_already_sent() {
        let mut line = LineState::new(Time::ZERO, &rate(8_000));
        line.begin(Time::ZERO, 2);
        // Half of it has gone after 1 ms; the other half takes 2 ms at half the rate.
        line.set(at(1_000_000), &rate(4_000), Some(2));
        assert_eq!(line.end(), Some(at(3_000_000)));
    }

    #[test]
    fn stopped_line_keeps_its_packets() {
        let mut line = LineState::new(Time::ZERO, &rate(8_000));
        line.begin(Time::ZERO, 2);
        line.set(at(1_000_000), &rate(0), Some(2));
        assert_eq!(line.end(), None);
        // Waiting is still told by the rate that it had.
        assert_eq!(line.time_for(2), Some(Duration::from_millis(2)));
        line.set(at(10_000_000), &rate(8_000), Some(2));
        assert_eq!(line.end(), Some(at(11_000_000)));
    }
}
