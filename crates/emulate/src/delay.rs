//! Delay behind the line: propagation delay, jitter, and packets that come late.
//!
//! A packet arrives `delay` after its last bit has left the line, plus or minus its jitter. If the
//! order is kept, it never arrives before one that left earlier; a packet that reordering made
//! late, and every packet if the order is free, is independent of the others. A change of settings
//! does not affect packets in flight.
//!
//! Logarithms and other functions come from the `libm` crate and not from the machine's library,
//! whose last bits differ: a seed must give the same arrivals everywhere.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::f64::consts::TAU;
use std::time::Duration;

use bytes::Bytes;
use vocab::{IndexedRandom, Time};

use crate::config::{DirectionConfig, JitterConfig, JitterDistribution, PacketOrder};
use crate::counters::TrafficCount;
use crate::impairments::RandomStream;
use crate::memory::MemoryLimits;

/// A sample of a heavy tail is cut here: no packet is under way for more than an hour.
const SAMPLE_MAX: Duration = Duration::from_secs(3_600);

/// Packets on their way.
#[derive(Debug)]
pub(crate) struct DelayLine {
    delay: Duration,
    jitter: Option<JitterConfig>,
    late_by: Duration,
    original: JitterRandom,
    copy: JitterRandom,
    /// Packets that keep their order, the next to arrive first.
    in_order: VecDeque<DelayedPacket>,
    /// Packets that are independent of the order.
    apart: BinaryHeap<Reverse<DelayedPacket>>,
    /// The arrival of the last packet that kept the order.
    last: Time,
    /// Number of packets so far; it orders packets with the same arrival time.
    sequence: u64,
    /// Packets that were due at the last check, in the order of their arrival: all of them are due
    /// before any packet in flight.
    untaken: VecDeque<DelayedPacket>,
    untaken_size: TrafficCount,
    /// Both those under way and those set aside.
    in_flight: TrafficCount,
}

/// A packet that arrives at the delay line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PacketArrival {
    pub(crate) index: u64,
    pub(crate) arrived: Time,
    pub(crate) bytes: Bytes,
    pub(crate) ecn: u8,
    pub(crate) corrupted: bool,
    pub(crate) marked: bool,
    pub(crate) is_copy: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct DelayedPacket {
    due: Time,
    sequence: u64,
    packet: PacketArrival,
}

impl Ord for DelayedPacket {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.sequence).cmp(&(other.due, other.sequence))
    }
}

impl PartialOrd for DelayedPacket {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Two uniform numbers for each packet.
#[derive(Clone, Copy, Debug)]
struct JitterRandom {
    first: IndexedRandom,
    second: IndexedRandom,
}

impl DelayLine {
    pub(crate) fn new(config: &DirectionConfig, seed: u64) -> Self {
        let noise = |first: RandomStream, second: RandomStream| JitterRandom {
            first: first.random(seed),
            second: second.random(seed),
        };
        let mut line = Self {
            delay: Duration::ZERO,
            jitter: None,
            late_by: Duration::ZERO,
            original: noise(RandomStream::Jitter, RandomStream::JitterAngle),
            copy: noise(RandomStream::JitterOfCopy, RandomStream::JitterAngleOfCopy),
            in_order: VecDeque::new(),
            apart: BinaryHeap::new(),
            last: Time::ZERO,
            sequence: 0,
            untaken: VecDeque::new(),
            untaken_size: TrafficCount::default(),
            in_flight: TrafficCount::default(),
        };
        line.set(config);
        line
    }

    /// Takes other settings for the packets that come from now on.
    pub(crate) fn set(&mut self, config: &DirectionConfig) {
        self.delay = config.delay;
        self.jitter = config.jitter;
        self.late_by = config
            .reordering
            .map_or(Duration::ZERO, |reordering| reordering.late_by);
    }

    pub(crate) fn set_delay(&mut self, delay: Duration) {
        self.delay = delay;
    }

    /// Takes in a packet whose last bit left the line at `sent`.
    pub(crate) fn push(&mut self, sent: Time, packet: PacketArrival, is_late: bool) {
        let mut due = sent + self.sample(packet.index, packet.is_copy);
        let order = self.jitter.map_or(PacketOrder::Kept, |jitter| jitter.order);
        self.in_flight += TrafficCount::one(packet.bytes.len());
        self.sequence += 1;
        let sequence = self.sequence;
        if is_late || order == PacketOrder::Free {
            if is_late {
                due += self.late_by;
            }
            self.apart.push(Reverse(DelayedPacket {
                due,
                sequence,
                packet,
            }));
            return;
        }
        due = due.max(self.last);
        self.last = due;
        self.in_order.push_back(DelayedPacket {
            due,
            sequence,
            packet,
        });
    }

    /// Takes out the next packet that is due by `now`, with the moment at which it was due.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, PacketArrival)> {
        let next = match self.untaken.pop_front() {
            Some(next) => {
                self.untaken_size
                    .subtract(TrafficCount::one(next.packet.bytes.len()));
                next
            }
            None => self.pop_under_way(now)?,
        };
        self.in_flight
            .subtract(TrafficCount::one(next.packet.bytes.len()));
        Some((next.due, next.packet))
    }

    /// Sets aside packets that are due by `now`; they are then no longer in flight. Returns the
    /// next due packet when no more may be set aside. The caller repeats the call until it returns
    /// `None`.
    ///
    /// All packets that leave the line up to `now` must have been pushed before.
    pub(crate) fn set_aside(
        &mut self,
        now: Time,
        limits: &MemoryLimits,
    ) -> Option<(Time, PacketArrival)> {
        while let Some(next) = self.pop_under_way(now) {
            let length = TrafficCount::one(next.packet.bytes.len());
            if !limits.keep_untaken(self.untaken_size + length) {
                self.in_flight.subtract(length);
                return Some((next.due, next.packet));
            }
            self.untaken_size += length;
            self.untaken.push_back(next);
        }
        None
    }

    /// Takes out the next packet that is due by `now`, of those that are not set aside.
    fn pop_under_way(&mut self, now: Time) -> Option<DelayedPacket> {
        if self.next_under_way()? > now {
            return None;
        }
        let from_apart = match (self.in_order.front(), self.apart.peek()) {
            (Some(in_order), Some(Reverse(apart))) => apart < in_order,
            (in_order, _) => in_order.is_none(),
        };
        if from_apart {
            self.apart.pop().map(|Reverse(next)| next)
        } else {
            self.in_order.pop_front()
        }
    }

    /// All packets in the delay line, in no order.
    pub(crate) fn packets(&self) -> impl Iterator<Item = &PacketArrival> {
        let apart = self.apart.iter().map(|Reverse(next)| next);
        let all = self.untaken.iter().chain(&self.in_order).chain(apart);
        all.map(|next| &next.packet)
    }

    /// Arrival time of the next packet.
    pub(crate) fn next_due(&self) -> Option<Time> {
        match self.untaken.front() {
            Some(next) => Some(next.due),
            None => self.next_under_way(),
        }
    }

    fn next_under_way(&self) -> Option<Time> {
        let in_order = self.in_order.front().map(|next| next.due);
        let apart = self.apart.peek().map(|Reverse(next)| next.due);
        match (in_order, apart) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// The earliest arrival of a packet that leaves the line at `sent` or later; the packet of
    /// this number leaves first.
    pub(crate) fn earliest_arrival(&self, sent: Time) -> Time {
        let least = match self.jitter.map(|jitter| jitter.distribution) {
            None => self.delay,
            Some(JitterDistribution::Uniform { spread }) => self.delay.saturating_sub(spread),
            Some(JitterDistribution::Normal { .. }) => Duration::ZERO,
            Some(
                JitterDistribution::Exponential { .. }
                | JitterDistribution::Pareto { .. }
                | JitterDistribution::LogNormal { .. },
            ) => self.delay,
        };
        sent + least
    }

    /// Tells whether a packet that comes from now on can arrive before one in flight. A packet that
    /// reordering delays is independent of the others, so it need not wait for a packet that jitter
    /// holds back.
    pub(crate) fn can_overtake(&self) -> bool {
        if self.late_by > Duration::ZERO {
            return true;
        }
        let is_free = self
            .jitter
            .is_some_and(|jitter| jitter.order == PacketOrder::Free);
        is_free || !self.apart.is_empty()
    }

    /// Packets in the delay line, set aside or not.
    pub(crate) fn in_flight(&self) -> TrafficCount {
        self.in_flight
    }

    /// Packets in the delay line that were not set aside.
    pub(crate) fn under_way(&self) -> TrafficCount {
        self.in_flight - self.untaken_size
    }

    /// The delay of the packet of this number.
    fn sample(&self, number: u64, is_copy: bool) -> Duration {
        let Some(jitter) = self.jitter else {
            return self.delay;
        };
        let noise = if is_copy { self.copy } else { self.original };
        let (plus, span) = noise.sample(jitter.distribution, number);
        if plus {
            self.delay + span
        } else {
            self.delay.saturating_sub(span)
        }
    }
}

impl JitterRandom {
    /// The amount to add to the delay (`true`) or to subtract from it (`false`).
    fn sample(self, distribution: JitterDistribution, number: u64) -> (bool, Duration) {
        let uniform = self.first.fraction(number);
        match distribution {
            JitterDistribution::Uniform { spread } => {
                let share = 2.0 * uniform - 1.0;
                (share >= 0.0, scaled(spread, share.abs()))
            }
            JitterDistribution::Normal { deviation } => {
                let normal = self.normal(number);
                (normal >= 0.0, scaled(deviation, normal.abs()))
            }
            JitterDistribution::Exponential { mean } => {
                (true, scaled(mean, -libm::log(1.0 - uniform)))
            }
            JitterDistribution::Pareto { mean, shape } => {
                let factor = libm::pow(1.0 - uniform, -1.0 / shape) - 1.0;
                (true, scaled(mean, (shape - 1.0) * factor))
            }
            JitterDistribution::LogNormal { median, sigma } => {
                (true, scaled(median, libm::exp(sigma * self.normal(number))))
            }
        }
    }

    /// A sample of the standard normal distribution, by Box and Muller (1958).
    fn normal(self, number: u64) -> f64 {
        let radius = (-2.0 * libm::log(1.0 - self.first.fraction(number))).sqrt();
        radius * libm::cos(TAU * self.second.fraction(number))
    }
}

/// `span` times a factor that is not negative, at most [`SAMPLE_MAX`].
fn scaled(span: Duration, factor: f64) -> Duration {
    let nanoseconds = span.as_nanos() as f64 * factor;
    // The conversion saturates, and what is not a number becomes zero.
    Duration::from_nanos(nanoseconds.round() as u64).min(SAMPLE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u64 = 200_000;

    fn line(distribution: JitterDistribution, order: PacketOrder) -> DelayLine {
        let config = DirectionConfig {
            delay: Duration::from_millis(100),
            jitter: Some(JitterConfig {
                distribution,
                order,
            }),
            ..DirectionConfig::default()
        };
        DelayLine::new(&config, 1)
    }

    /// Mean and standard deviation of the delay, in milliseconds.
    fn moments(distribution: JitterDistribution) -> (f64, f64) {
        let line = line(distribution, PacketOrder::Free);
        let samples: Vec<f64> = (0..COUNT)
            .map(|number| line.sample(number, false).as_secs_f64() * 1e3)
            .collect();
        let mean = samples.iter().sum::<f64>() / COUNT as f64;
        let variance = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / COUNT as f64;
        (mean, variance.sqrt())
    }

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn each_distribution_has_its_mean_and_deviation() {
        let uniform = JitterDistribution::Uniform { spread: millis(12) };
        let normal = JitterDistribution::Normal {
            deviation: millis(5),
        };
        let exponential = JitterDistribution::Exponential { mean: millis(5) };
        let pareto = JitterDistribution::Pareto {
            mean: millis(5),
            shape: 5.0,
        };
        let log_normal = JitterDistribution::LogNormal {
            median: millis(5),
            sigma: 0.5,
        };
        // Deviations: spread/sqrt(3); itself; the mean; mean·sqrt(shape/(shape−2)); and for the
        // log-normal with s² = sigma²: median·exp(s²/2)·sqrt(exp(s²)−1).
        let half = 0.125_f64.exp();
        for (distribution, mean, deviation) in [
            (uniform, 100.0, 12.0 / 3.0_f64.sqrt()),
            (normal, 100.0, 5.0),
            (exponential, 105.0, 5.0),
            (pareto, 105.0, 5.0 * (5.0_f64 / 3.0).sqrt()),
            (
                log_normal,
                100.0 + 5.0 * half,
                5.0 * half * (0.25_f64.exp() - 1.0).sqrt(),
            ),
        ] {
            let (seen_mean, seen_deviation) = moments(distribution);
            assert!(
                (seen_mean - mean).abs() < 0.06,
                "{distribution:?} {seen_mean}"
            );
            let tolerance = 0.04 * deviation;
            assert!(
                (seen_deviation - deviation).abs() < tolerance,
                "{distribution:?} {seen_deviation} for {deviation}"
            );
        }
    }

    fn arrival(index: u64) -> PacketArrival {
        PacketArrival {
            index,
            arrived: Time::ZERO,
            bytes: Bytes::from_static(b"packet"),
            ecn: 0,
            corrupted: false,
            marked: false,
            is_copy: false,
        }
    }

    fn order_of_arrival(order: PacketOrder) -> Vec<u64> {
        let mut line = line(JitterDistribution::Uniform { spread: millis(50) }, order);
        for index in 0..100 {
            line.push(Time::from_nanos(index * 1_000_000), arrival(index), false);
        }
        std::iter::from_fn(|| line.pop(Time::NEVER))
            .map(|(_, packet)| packet.index)
            .collect()
    }

    #[test]
    fn jitter_keeps_the_order_unless_it_is_free() {
        assert!(order_of_arrival(PacketOrder::Kept).is_sorted());
        let mut free = order_of_arrival(PacketOrder::Free);
        assert!(!free.is_sorted());
        free.sort_unstable();
        assert!(free.into_iter().eq(0..100));
    }

    #[test]
    fn late_packet_is_overtaken_and_delays_no_other() {
        let config = DirectionConfig {
            reordering: Some(crate::config::ReorderingConfig {
                probability: vocab::Probability::ZERO,
                late_by: millis(5),
            }),
            ..DirectionConfig::default()
        };
        let mut line = DelayLine::new(&config, 1);
        line.push(Time::ZERO, arrival(0), true);
        line.push(Time::from_nanos(1), arrival(1), false);
        let (due, packet) = line.pop(Time::NEVER).unwrap();
        assert_eq!((due.as_nanos(), packet.index), (1, 1));
        let (due, packet) = line.pop(Time::NEVER).unwrap();
        assert_eq!((due.as_nanos(), packet.index), (5_000_000, 0));
        assert_eq!(line.in_flight(), TrafficCount::default());
    }
}
