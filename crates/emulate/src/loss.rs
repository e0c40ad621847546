//! Random loss: each packet on its own, with one probability.

use vocab::{Probability, Random};

/// Independent loss.
#[derive(Debug)]
pub(crate) struct RandomLoss {
    probability: Probability,
    random: Random,
}

impl RandomLoss {
    pub(crate) fn new(probability: Probability, random: Random) -> Self {
        Self {
            probability,
            random,
        }
    }

    /// Takes another probability; the sequence of chance goes on where it is.
    pub(crate) fn set(&mut self, probability: Probability) {
        self.probability = probability;
    }

    /// Whether the next packet is lost. A number is drawn for each packet, even at probability
    /// zero, so that a change of the setting moves no later draw.
    pub(crate) fn loses_next(&mut self) -> bool {
        self.random.happens(self.probability)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loses_the_share_it_is_set_to() {
        let probability = Probability::from_fraction(0.01).unwrap();
        let mut loss = RandomLoss::new(probability, Random::from_seed(1));
        let lost = (0..1_000_000).filter(|_| loss.loses_next()).count();
        // 99.9 % of all seeds are within 3.29 standard deviations of 99.5 packets.
        assert!((9_672..=10_328).contains(&lost), "{lost} of 1,000,000");
    }

    #[test]
    fn certain_loss_and_none_are_exact() {
        let mut loss = RandomLoss::new(Probability::ZERO, Random::from_seed(1));
        assert!((0..1_000).all(|_| !loss.loses_next()));
        loss.set(Probability::from_fraction(1.0).unwrap());
        assert!((0..1_000).all(|_| loss.loses_next()));
    }
}
