//! PIE, proportional integral controller enhanced: drops packets as they come, with a probability
//! that is computed anew every few milliseconds from how long packets wait (RFC 8033).
//!
//! ```text
//! on_enqueue ──► burst allowance? ──► short delay or queue? ──► chance with drop_prob ──► Verdict
//! on_dequeue ──► the delay, by the packet's time stamp            ▲
//! update ──────► drop_prob += alpha·(delay − target) + beta·(delay − delay before)
//! ```
//!
//! It is the pseudocode of appendix A with ECN (§5.1), derandomization (§5.4) and the cap on the
//! adjustment (§5.5), the last two as in appendix B; the probability decays only while both delays
//! are zero (§4.2 and appendix A; appendix B decays it below half of the target).
//!
//! Left out, all of it optional: the estimate of the line's rate (§5.2; time stamps are there);
//! turning it on and off (§5.3), which does change fates, since there PIE is inactive until the
//! queue is longer than a third of its limit, and here always active, as in appendix A; scaling the
//! weights with the target (§4.2) or the probability with a packet's length.
//!
//! A queue without a waiting packet has a delay of zero, by Little's law as in §4.3; otherwise the
//! stamp of the last packet before a pause would count without end. It holds no packets and draws
//! no numbers.

use std::time::Duration;

use vocab::Time;

use super::QueueVerdict;
use crate::config::{EcnMode, PieConfig};

/// RFC 8033 appendix A: weight of the distance from the target, in 1/s, for [`UPDATE`].
const ALPHA: f64 = 0.125;

/// RFC 8033 appendix A: weight of the change since the last update, in 1/s, for [`UPDATE`].
const BETA: f64 = 1.25;

/// The time between updates for which the weights are given: RFC 8033 §4.2.
const UPDATE: Duration = Duration::from_millis(15);

/// The probability from which on packets are dropped that could be marked: RFC 8033 §5.1.
const MARK_BELOW: f64 = 0.1;

/// The sum of probabilities since the last drop below which nothing is dropped: RFC 8033 §5.4.
const ACCUMULATED_LOW: f64 = 0.85;

/// The sum of probabilities since the last drop at which one is certain: RFC 8033 §5.4.
const ACCUMULATED_HIGH: f64 = 8.5;

/// The state of one queue.
#[derive(Clone, Debug)]
pub(crate) struct PieState {
    config: PieConfig,
    /// The `MEAN_PKTSIZE` of RFC 8033 §4.1, twice which in the queue is never too long. A full-size
    /// packet as the line counts it: the largest that a mean can be, as Linux takes the MTU.
    mean_packet: u64,
    weights: PieCoefficients,
    next_update: Time,
    burst_allowance: Duration,
    drop_probability: f64,
    /// The sum of probabilities since the last drop.
    accumulated: f64,
    /// Waiting time of the packet that was taken out last, in seconds.
    delay: f64,
    /// The same at the update before, in seconds.
    delay_before: f64,
}

impl PieState {
    /// A controller whose first update is one period after the start of time.
    pub(crate) fn new(config: PieConfig, mean_packet: u64) -> Self {
        Self {
            mean_packet,
            weights: PieCoefficients::of(&config),
            next_update: Time::ZERO + config.update,
            burst_allowance: Duration::ZERO,
            drop_probability: 0.0,
            accumulated: 0.0,
            delay: 0.0,
            delay_before: 0.0,
            config,
        }
    }

    /// Applies other settings at `now` and keeps the state. A new update interval counts from
    /// `now`.
    pub(crate) fn set(&mut self, now: Time, config: PieConfig, mean_packet: u64) {
        self.mean_packet = mean_packet;
        if config.update != self.config.update {
            self.next_update = now + config.update;
        }
        self.weights = PieCoefficients::of(&config);
        self.config = config;
    }

    /// Decides about a packet that arrives when `backlog` bytes are in the queue, the packet on the
    /// line included. `ect` tells whether its sender supports marks; `uniform` is its random number
    /// in `0.0..1.0`.
    ///
    /// Every update up to now must have been made.
    pub(crate) fn on_enqueue(&mut self, backlog: u64, ect: bool, uniform: f64) -> QueueVerdict {
        let was_short = self.weights.is_short(self.delay_before);
        if self.drop_probability == 0.0 && self.weights.is_short(self.delay) && was_short {
            self.burst_allowance = self.config.burst;
        }
        if !self.burst_allowance.is_zero() || !self.drops_early(backlog, uniform) {
            return QueueVerdict::Pass;
        }
        self.accumulated = 0.0;
        if ect && self.config.ecn == EcnMode::Mark && self.drop_probability < MARK_BELOW {
            QueueVerdict::Mark
        } else {
            QueueVerdict::Drop
        }
    }

    /// A packet that passed found the queue full.
    pub(crate) fn on_full(&mut self) {
        self.accumulated = 0.0;
    }

    /// A packet was taken out after it waited for `sojourn`, with `backlog_after` bytes behind it.
    pub(crate) fn on_dequeue(&mut self, sojourn: Duration, backlog_after: u64) {
        self.delay = if backlog_after == 0 {
            0.0
        } else {
            seconds(sojourn)
        };
    }

    /// Time of the next update of the probability; `None` if time ends before.
    pub(crate) fn next_update(&self) -> Option<Time> {
        Some(self.next_update).filter(|at| *at < Time::NEVER)
    }

    /// Makes every update that is due by `until`, that instant included. Between them nothing may
    /// have come or gone.
    pub(crate) fn update(&mut self, until: Time) {
        while self.next_update().is_some_and(|at| at <= until) {
            let before = (self.drop_probability, self.delay_before);
            let rests = self.burst_allowance.is_zero();
            self.update_once();
            self.next_update += self.config.update;
            if rests && before == (self.drop_probability, self.delay_before) {
                self.skip_to(until);
            }
        }
    }

    /// RFC 8033 appendix A, `drop_early()`, with §5.4 (Derandomization) as in appendix B.
    fn drops_early(&mut self, backlog: u64, uniform: f64) -> bool {
        let is_calm = self.weights.is_short(self.delay_before) && self.drop_probability < 0.2;
        if is_calm || backlog <= 2 * self.mean_packet {
            return false;
        }
        if self.drop_probability == 0.0 {
            self.accumulated = 0.0;
        }
        self.accumulated += self.drop_probability;
        if self.accumulated < ACCUMULATED_LOW {
            return false;
        }
        self.accumulated >= ACCUMULATED_HIGH || uniform < self.drop_probability
    }

    /// RFC 8033 appendix A, `calculate_drop_prob()`, with §5.5 (Cap Drop Adjustment) as in
    /// appendix B.
    fn update_once(&mut self) {
        let PieCoefficients {
            alpha,
            beta,
            target,
        } = self.weights;
        let mut change = alpha * (self.delay - target) + beta * (self.delay - self.delay_before);
        change /= scale(self.drop_probability);
        if self.drop_probability >= 0.1 && change > 0.02 {
            change = 0.02;
        }
        self.drop_probability += change;
        if self.delay == 0.0 && self.delay_before == 0.0 {
            self.drop_probability *= 0.98;
        }
        self.drop_probability = self.drop_probability.clamp(0.0, 1.0);
        self.delay_before = self.delay;
        self.burst_allowance = self.burst_allowance.saturating_sub(self.config.update);
    }

    /// Leaves out the updates up to `until`: the last one changed nothing, nor would these.
    fn skip_to(&mut self, until: Time) {
        let period = self.config.update.as_nanos().max(1);
        let Some(missed) = until.as_nanos().checked_sub(self.next_update.as_nanos()) else {
            return;
        };
        let skipped = (u128::from(missed) / period + 1) * period;
        self.next_update += Duration::from_nanos(u64::try_from(skipped).unwrap_or(u64::MAX));
    }
}

/// The settings as the arithmetic needs them, in seconds.
#[derive(Clone, Copy, Debug)]
struct PieCoefficients {
    alpha: f64,
    beta: f64,
    target: f64,
}

impl PieCoefficients {
    /// RFC 8033 §4.2: when the period is halved, alpha is halved and beta grows by a quarter of
    /// the former alpha; in general alpha goes with the period and beta + alpha/2 stays.
    fn of(config: &PieConfig) -> Self {
        let ratio = config.update.as_nanos() as f64 / UPDATE.as_nanos() as f64;
        let alpha = ALPHA * ratio;
        Self {
            alpha,
            beta: BETA + (ALPHA - alpha) / 2.0,
            target: seconds(config.target),
        }
    }

    /// Tells whether the delay is below half of the target, where PIE does not drop.
    fn is_short(&self, delay: f64) -> bool {
        delay < self.target / 2.0
    }
}

/// Divisor of a change, so that a small probability moves in small steps (RFC 8033 §4.2).
fn scale(drop_probability: f64) -> f64 {
    match drop_probability {
        p if p < 0.000_001 => 2048.0,
        p if p < 0.000_01 => 512.0,
        p if p < 0.000_1 => 128.0,
        p if p < 0.001 => 32.0,
        p if p < 0.01 => 8.0,
        p if p < 0.1 => 2.0,
        _high => 1.0,
    }
}

fn seconds(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEAN_PACKET: u64 = 1_500;

    fn at(milliseconds: u64) -> Time {
        Time::from_nanos(milliseconds * 1_000_000)
    }

    /// A queue that has delayed packets by 100 ms for this long.
    fn congested(milliseconds: u64) -> PieState {
        let mut pie = PieState::new(PieConfig::default(), MEAN_PACKET);
        pie.on_dequeue(Duration::from_millis(100), 50_000);
        pie.update(at(milliseconds));
        pie
    }

    #[test]
    fn the_first_burst_passes_whole() {
        let mut pie = PieState::new(PieConfig::default(), MEAN_PACKET);
        pie.on_enqueue(0, false, 0.0);
        pie.on_dequeue(Duration::from_millis(100), 50_000);
        pie.update(at(149));
        // Nine updates have passed, and the tenth ends the 150 ms.
        for _ in 0..1_000 {
            assert_eq!(pie.on_enqueue(50_000, false, 0.0), QueueVerdict::Pass);
        }
        pie.update(at(2_000));
        let dropped = (0..1_000)
            .filter(|_| pie.on_enqueue(50_000, false, 0.0) == QueueVerdict::Drop)
            .count();
        assert!(dropped > 0);
    }

    #[test]
    fn two_packets_are_never_too_many() {
        let mut pie = congested(60_000);
        for _ in 0..1_000 {
            assert_eq!(
                pie.on_enqueue(2 * MEAN_PACKET, false, 0.0),
                QueueVerdict::Pass
            );
        }
        assert_eq!(
            pie.on_enqueue(2 * MEAN_PACKET + 1, false, 0.0),
            QueueVerdict::Drop
        );
    }

    #[test]
    fn a_long_pause_costs_nothing_and_forgets_everything() {
        let mut pie = congested(60_000);
        pie.on_dequeue(Duration::ZERO, 0);
        pie.update(Time::from_nanos(u64::MAX - 1));
        assert_eq!(pie.drop_probability, 0.0);
        assert_eq!(pie.next_update(), None);
        // A standing queue that nothing leaves comes to rest as well.
        let mut pie = congested(1);
        pie.update(Time::NEVER);
        assert_eq!(pie.drop_probability, 1.0);
    }

    #[test]
    fn a_short_delay_lowers_the_probability_without_decay() {
        let mut pie = congested(1);
        pie.drop_probability = 0.5;
        pie.delay_before = 0.005;
        pie.on_dequeue(Duration::from_millis(5), 50_000);
        pie.update(at(15));
        // RFC 8033 §4.2: 0.125/s for 10 ms less than the target, and no decay beside it.
        assert_eq!(pie.drop_probability, 0.5 - 0.125 * 0.01);
    }

    #[test]
    fn updates_that_are_left_out_keep_the_beat() {
        let mut pie = PieState::new(PieConfig::default(), MEAN_PACKET);
        pie.update(at(15 * 1_000_000 + 7));
        assert_eq!(pie.next_update(), Some(at(15 * 1_000_001)));
        pie.update(at(15 * 1_000_001));
        assert_eq!(pie.next_update(), Some(at(15 * 1_000_002)));
    }

    #[test]
    fn weights_stay_positive_up_to_the_longest_period() {
        let weights = |milliseconds| {
            PieCoefficients::of(&PieConfig {
                update: Duration::from_millis(milliseconds),
                ..PieConfig::default()
            })
        };
        assert!(weights(314).beta > 0.0);
        assert!(weights(315).beta <= 0.0);
    }

    #[test]
    fn half_the_period_has_the_weights_of_rfc() {
        let half = PieCoefficients::of(&PieConfig {
            update: UPDATE / 2,
            ..PieConfig::default()
        });
        assert_eq!(half.alpha, ALPHA / 2.0);
        assert_eq!(half.beta, BETA + ALPHA / 4.0);
    }
}
