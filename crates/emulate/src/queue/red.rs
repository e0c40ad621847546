//! RED, random early detection: drops packets as they come, with a probability that follows the
//! average length of the queue (Floyd and Jacobson, "Random Early Detection Gateways for
//! Congestion Avoidance", 1993, figure 2).
//!
//! ```text
//! chance
//!   1 ┤                    ┌───────────  plain: all above the maximum
//!     │                    │    ⋰  gentle: in a straight line to 1 at twice the maximum
//! p   ┤                 ⋰  ┘
//!   0 ┼────────────⋰──────┬─────────┬─► average queue, in bytes
//!               minimum  maximum  2·maximum
//! ```
//!
//! The drop probability grows with the packets since the last drop, so that drops are spread
//! evenly. The packet on the line belongs to the queue, which is empty exactly while the line is
//! idle; for each typical packet that the line could have sent while idle the average decays once.
//! "Gentle" is Floyd's later recommendation (2000). The queue is measured in bytes and the
//! probability does not depend on a packet's length, as RFC 7141 §2.1 and §2.2 advise. A packet
//! that is dropped when it arrives at the empty queue does not end the idle time, which the next
//! packet counts again, exactly as in figure 2. Where the paper marks, an ECN-capable packet is
//! marked if the settings say so, at any average, and any other is dropped.

use vocab::Time;

use super::QueueVerdict;
use crate::config::{EcnMode, RedConfig};

/// The state of one queue.
#[derive(Clone, Debug)]
pub(crate) struct RedState {
    config: RedConfig,
    /// The average length of the queue in bytes.
    average: f64,
    /// Packets since the last one that was dropped or marked while the average was high enough;
    /// `None` while it is lower.
    since_last: Option<u64>,
    /// Time since which the queue has been empty, if it is.
    idle_since: Time,
}

impl RedState {
    /// An average of a queue that has been empty since the start of time.
    pub(crate) fn new(config: RedConfig) -> Self {
        Self {
            config,
            average: 0.0,
            since_last: None,
            idle_since: Time::ZERO,
        }
    }

    /// Applies other settings and keeps the state.
    pub(crate) fn set(&mut self, config: RedConfig) {
        self.config = config;
    }

    /// Decides about a packet that arrives at `now` when `occupancy` bytes are in the queue, the
    /// packet on the line included. `ect` tells whether its sender supports marks; `uniform` is its
    /// random number in `0.0..1.0`.
    pub(crate) fn on_enqueue(
        &mut self,
        now: Time,
        occupancy: u64,
        ect: bool,
        uniform: f64,
    ) -> QueueVerdict {
        self.take_into_average(now, occupancy);
        let Some(base) = self.base_probability() else {
            self.since_last = None;
            return QueueVerdict::Pass;
        };
        let since_last = self.since_last.map_or(0, |packets| packets + 1);
        if uniform >= spread_probability(base, since_last) {
            self.since_last = Some(since_last);
            return QueueVerdict::Pass;
        }
        self.since_last = Some(0);
        if ect && self.config.ecn == EcnMode::Mark {
            QueueVerdict::Mark
        } else {
            QueueVerdict::Drop
        }
    }

    /// The last bit of the last packet has left at `now`.
    pub(crate) fn on_idle(&mut self, now: Time) {
        self.idle_since = now;
    }

    fn take_into_average(&mut self, now: Time, occupancy: u64) {
        let keep = 1.0 - self.config.weight;
        if occupancy > 0 {
            self.average = keep * self.average + self.config.weight * occupancy as f64;
        } else {
            let packet_time = self.config.packet_time.as_nanos().max(1);
            let missed = now.since(self.idle_since).as_nanos() / packet_time;
            self.average *= power(keep, missed);
        }
    }

    /// The paper's p_b, or `None` below the minimum.
    fn base_probability(&self) -> Option<f64> {
        let minimum = self.config.minimum.bytes() as f64;
        let maximum = self.config.maximum.bytes() as f64;
        let highest = self.config.probability.as_fraction();
        if self.average < minimum {
            None
        } else if self.average < maximum {
            Some(highest * (self.average - minimum) / (maximum - minimum))
        } else if self.config.gentle && self.average < 2.0 * maximum {
            Some(highest + (1.0 - highest) * (self.average - maximum) / maximum)
        } else {
            Some(1.0)
        }
    }
}

/// The paper's p_a: such that the packets between two drops are spread evenly.
fn spread_probability(base: f64, since_last: u64) -> f64 {
    let spread = since_last as f64 * base;
    if spread >= 1.0 {
        1.0
    } else {
        base / (1.0 - spread)
    }
}

/// `base` to the power of `exponent` by squaring, which gives the same result on every machine; a
/// library does not promise that.
fn power(mut base: f64, mut exponent: u128) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vocab::{ByteCount, Probability};

    use super::*;

    fn config() -> RedConfig {
        RedConfig {
            minimum: ByteCount::new(10_000),
            maximum: ByteCount::new(30_000),
            probability: Probability::from_fraction(0.1).unwrap(),
            weight: 1.0,
            packet_time: Duration::from_millis(1),
            gentle: false,
            ecn: EcnMode::Drop,
        }
    }

    #[test]
    fn drops_are_spread_evenly() {
        let mut red = RedState::new(config());
        // A chance of 0.05 makes runs of up to 20 packets, each as likely; the middle number of
        // chance lands in their middle.
        let verdicts: Vec<QueueVerdict> = (0..200)
            .map(|_| red.on_enqueue(Time::ZERO, 20_000, false, 0.5))
            .collect();
        let dropped: Vec<usize> = (0..200)
            .filter(|index| verdicts[*index] == QueueVerdict::Drop)
            .collect();
        assert!(dropped.len() > 10);
        let gaps: Vec<usize> = dropped.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(gaps.iter().all(|gap| *gap == gaps[0]), "{gaps:?}");
    }

    /// Verdict on the first packet, with the highest possible random number.
    fn lucky(config: RedConfig, occupancy: u64) -> QueueVerdict {
        RedState::new(config).on_enqueue(Time::ZERO, occupancy, false, 1.0 - f64::EPSILON)
    }

    #[test]
    fn packets_above_maximum_drop_unless_gentle() {
        assert_eq!(lucky(config(), 29_999), QueueVerdict::Pass);
        assert_eq!(lucky(config(), 30_000), QueueVerdict::Drop);
        let gentle = RedConfig {
            gentle: true,
            ..config()
        };
        assert_eq!(lucky(gentle, 30_000), QueueVerdict::Pass);
        assert_eq!(lucky(gentle, 59_999), QueueVerdict::Pass);
        assert_eq!(lucky(gentle, 60_000), QueueVerdict::Drop);
    }

    #[test]
    fn idle_queue_average_decays_packet_by_packet() {
        let mut red = RedState::new(RedConfig {
            weight: 0.5,
            ..config()
        });
        red.on_enqueue(Time::ZERO, 8_000, false, 0.5);
        red.on_idle(Time::from_nanos(1_000_000));
        red.on_enqueue(Time::from_nanos(3_999_999), 0, false, 0.5);
        // 4,000 bytes, halved for each of the two milliseconds that were full.
        assert_eq!(red.average, 1_000.0);
        assert_eq!(power(0.5, 3), 0.125);
        assert_eq!(power(0.5, u128::MAX), 0.0);
    }
}
