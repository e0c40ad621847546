//! Loss estimate of a path: how often packets are lost, and in runs of which length, before any
//! correction.
//!
//! Two counters decay with every packet: a long one for the path's usual loss, and a short one that
//! notices within a hundred packets that it has become worse. Each counts packets and losses. A
//! prior of one loss in a hundred packets is added, so that a path without measurements counts as
//! lossy. The result errs on the cautious side by one standard deviation of the Beta distribution
//! of these counts.
//!
//! Losses by a full queue are excluded: repair symbols do not help there, and make it fuller.

/// Packets after which the long memory has faded to a third: ten seconds of 20 Mbit/s.
const LONG_MEMORY: f64 = 16_384.0;

/// Packets after which the short memory has faded to a third: a round trip or two of a path for
/// which correction matters.
const SHORT_MEMORY: f64 = 256.0;

/// The prior: one loss in a hundred packets, of the weight of a hundred packets.
const PRIOR_LOST: f64 = 1.0;
const PRIOR_PACKETS: f64 = 100.0;

/// The prior of run lengths: this many runs of one packet.
const PRIOR_RUNS: f64 = 4.0;

/// Cause of a packet's loss, as far as the sender knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// No sign of a queue.
    Unknown,
    /// The path's queue was full: the controller saw it grow, or was told so by marks.
    Queue,
}

/// Estimate of a path's losses.
#[derive(Clone, Debug, Default)]
pub struct LossEstimate {
    long: DecayingLossCount,
    short: DecayingLossCount,
    runs: f64,
    last_lost: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct DecayingLossCount {
    packets: f64,
    lost: f64,
}

impl LossEstimate {
    /// Makes an estimate without measurements.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes packets that arrived.
    pub fn delivered(&mut self, count: u64) {
        let fading = self.fade(count);
        self.runs *= fading;
    }

    /// Records a lost packet, whether or not it was recovered by correction.
    ///
    /// Runs are recognised by consecutive packet numbers, so report losses in the order of their
    /// numbers.
    pub fn lost(&mut self, number: u64, cause: LossCause) {
        match cause {
            LossCause::Unknown => {}
            LossCause::Queue => return,
        }
        let fading = self.fade(1);
        self.long.lost += 1.0;
        self.short.lost += 1.0;
        let continues = self
            .last_lost
            .is_some_and(|last| number.abs_diff(last) == 1);
        self.runs = self.runs * fading + if continues { 0.0 } else { 1.0 };
        self.last_lost = Some(number);
    }

    /// Takes back a loss: the packet came after all.
    pub fn spurious(&mut self) {
        for memory in [&mut self.long, &mut self.short] {
            memory.lost = (memory.lost - 1.0).max(0.0);
        }
        // Its run is taken back in proportion, since nobody knows which it was.
        if self.runs > self.long.lost {
            self.runs = self.long.lost;
        }
    }

    /// The share of packets that is lost, on the cautious side.
    #[must_use]
    pub fn probability(&self) -> f64 {
        let (long, long_deviation) = self.long.posterior();
        let (short, short_deviation) = self.short.posterior();
        (long + long_deviation)
            .max(short - short_deviation)
            .min(1.0)
    }

    /// Mean number of consecutive packets that a loss covers; at least 1.
    #[must_use]
    pub fn mean_run(&self) -> f64 {
        ((self.long.lost + PRIOR_RUNS) / (self.runs + PRIOR_RUNS)).max(1.0)
    }

    fn fade(&mut self, count: u64) -> f64 {
        let count = count as f64;
        self.short.fade(count, SHORT_MEMORY);
        self.long.fade(count, LONG_MEMORY)
    }
}

impl DecayingLossCount {
    /// Lets `count` packets come in and older ones fade; returns by how much they did.
    fn fade(&mut self, count: f64, memory: f64) -> f64 {
        let fading = (-count / memory).exp();
        self.lost *= fading;
        self.packets = self.packets * fading + memory * (1.0 - fading);
        fading
    }

    /// Mean and standard deviation of Beta(lost + prior, delivered + prior).
    fn posterior(self) -> (f64, f64) {
        let weight = self.packets + PRIOR_PACKETS;
        let mean = ((self.lost + PRIOR_LOST) / weight).min(1.0);
        (mean, (mean * (1.0 - mean) / (weight + 1.0)).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use vocab::{Probability, SeededRandom};

    use super::*;

    fn after(packets: u64, loss: f64, seed: u64) -> LossEstimate {
        let mut estimate = LossEstimate::new();
        feed(&mut estimate, packets, loss, seed);
        estimate
    }

    fn feed(estimate: &mut LossEstimate, packets: u64, loss: f64, seed: u64) {
        let mut random = SeededRandom::from_seed(seed);
        let loss = Probability::from_fraction(loss).unwrap();
        for number in 0..packets {
            if random.happens(loss) {
                estimate.lost(number, LossCause::Unknown);
            } else {
                estimate.delivered(1);
            }
        }
    }

    #[test]
    fn unknown_path_counts_as_lossy() {
        let estimate = LossEstimate::new();
        assert!((0.015..0.025).contains(&estimate.probability()));
        assert_eq!(estimate.mean_run(), 1.0);
    }

    #[test]
    fn measured_loss_is_never_much_underestimated() {
        for loss in [0.001, 0.01, 0.05, 0.10] {
            let estimate = after(20_000, loss, 5).probability();
            let range = loss * 0.95..loss * 1.3 + 0.0005;
            assert!(range.contains(&estimate), "{loss}: {estimate}");
        }
        assert!(after(50_000, 0.0, 1).probability() < 0.000_2);
    }

    #[test]
    fn rising_loss_is_noticed_within_hundreds_of_packets() {
        let mut estimate = after(50_000, 0.0, 1);
        feed(&mut estimate, 400, 0.05, 2);
        assert!(estimate.probability() > 0.02, "{estimate:?}");
    }

    #[test]
    fn runs_are_told_from_single_losses() {
        let mut estimate = LossEstimate::new();
        for start in (0..20_000).step_by(800) {
            for number in start..start + 8 {
                estimate.lost(number, LossCause::Unknown);
            }
            estimate.delivered(792);
        }
        assert!((5.0..8.1).contains(&estimate.mean_run()), "{estimate:?}");
        assert!(after(20_000, 0.01, 3).mean_run() < 1.1);
    }

    #[test]
    fn losses_by_a_full_queue_do_not_count() {
        let mut estimate = after(10_000, 0.0, 1);
        let before = estimate.probability();
        for number in 0..1_000 {
            estimate.lost(number, LossCause::Queue);
        }
        assert_eq!(estimate.probability(), before);
    }

    #[test]
    fn spurious_loss_is_taken_back() {
        let mut estimate = after(1_000, 0.0, 1);
        let before = estimate.probability();
        estimate.lost(1, LossCause::Unknown);
        estimate.spurious();
        assert!(estimate.probability() <= before);
        assert!(estimate.mean_run() >= 1.0);
    }
}
