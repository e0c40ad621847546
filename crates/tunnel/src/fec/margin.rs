//! Number of repair symbols that makes a remaining loss unlikely enough.
//!
//! Losses follow a Markov chain with two states, Gilbert's ("Capacity of a Burst-Noise Channel",
//! 1960), with the measured share of losses and the measured mean length of runs. A run of source
//! symbols and the repair symbols behind it are complete if no more packets of both are lost than
//! there are repair symbols. The distribution of that count is computed packet by packet.

/// Model of a path's losses.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossModel {
    /// The share of packets that is lost; 0 to 1.
    pub(super) probability: f64,
    /// Mean number of consecutive lost packets; at least 1.
    pub(super) mean_run: f64,
}

/// The least number of repair symbols for `sources` symbols with which at most a share `failure` of
/// such runs is incomplete; `most` when no number up to that is enough.
///
/// Costs about `(sources + most) · most` multiplications.
pub(super) fn repairs_needed(sources: u64, losses: LossModel, failure: f64, most: usize) -> usize {
    let mut chain = LossChain::new(losses, most);
    for _ in 0..sources {
        chain.step();
    }
    for repairs in 0..most {
        if 1.0 - chain.at_most(repairs) <= failure {
            return repairs;
        }
        chain.step();
    }
    most
}

/// Probabilities of each number of lost packets, separately for whether the last packet was lost.
struct LossChain {
    /// (last arrived, last lost) by the number lost; more than the length are not looked at.
    counts: Vec<(f64, f64)>,
    /// Probability of a loss after an arrival, and after a loss.
    loss_after: (f64, f64),
}

impl LossChain {
    fn new(losses: LossModel, most: usize) -> Self {
        let probability = losses.probability.clamp(0.0, 0.99);
        // With runs as short as chance alone makes them, packets are independent.
        let after_loss = (1.0 - 1.0 / losses.mean_run.max(1.0)).max(probability);
        let after_arrival = (probability * (1.0 - after_loss) / (1.0 - probability)).min(1.0);
        let mut counts = vec![(0.0, 0.0); most + 1];
        counts[0] = (1.0 - probability, probability);
        Self {
            counts,
            loss_after: (after_arrival, after_loss),
        }
    }

    /// One more packet.
    fn step(&mut self) {
        let (after_arrival, after_loss) = self.loss_after;
        let mut lost_one_less = 0.0;
        for (arrived, lost) in &mut self.counts {
            let newly_lost = *arrived * after_arrival + *lost * after_loss;
            let newly_arrived = *arrived * (1.0 - after_arrival) + *lost * (1.0 - after_loss);
            *arrived = newly_arrived;
            *lost = lost_one_less;
            lost_one_less = newly_lost;
        }
    }

    /// The probability that at most `lost` packets were lost.
    fn at_most(&self, lost: usize) -> f64 {
        self.counts[..=lost]
            .iter()
            .map(|(arrived, lost)| arrived + lost)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(probability: f64) -> LossModel {
        LossModel {
            probability,
            mean_run: 1.0,
        }
    }

    /// The probability that more than `repairs` of `packets` are lost, by the binomial theorem.
    fn binomial_tail(packets: u64, probability: f64, repairs: u64) -> f64 {
        let mut term = (1.0 - probability).powi(packets as i32);
        let mut sum = term;
        for lost in 0..repairs {
            term *= (packets - lost) as f64 / (lost + 1) as f64;
            term *= probability / (1.0 - probability);
            sum += term;
        }
        1.0 - sum
    }

    #[test]
    fn independent_losses_are_binomial() {
        for sources in [1, 5, 47, 192] {
            for probability in [0.001, 0.01, 0.05, 0.2] {
                let needed = repairs_needed(sources, random(probability), 0.002, 100) as u64;
                assert!(binomial_tail(sources + needed, probability, needed) <= 0.002);
                if needed > 0 {
                    let fewer = needed - 1;
                    assert!(binomial_tail(sources + fewer, probability, fewer) > 0.002);
                }
            }
        }
    }

    #[test]
    fn runs_need_more_than_single_losses() {
        let burst = |mean_run| LossModel {
            probability: 0.01,
            mean_run,
        };
        let needed = |mean_run| repairs_needed(47, burst(mean_run), 0.01, 60);
        assert_eq!(needed(1.0), repairs_needed(47, random(0.01), 0.01, 60));
        assert!(needed(2.0) > needed(1.0));
        assert!(needed(8.0) > 8);
    }

    #[test]
    fn limits_hold_for_any_estimate() {
        assert_eq!(repairs_needed(0, random(0.5), 0.0, 0), 0);
        assert_eq!(repairs_needed(100, random(0.0), 0.0, 10), 0);
        for probability in [1.0, 2.0] {
            let hopeless = LossModel {
                probability,
                mean_run: 0.0,
            };
            assert_eq!(repairs_needed(100, hopeless, 0.002, 10), 10);
        }
    }
}
