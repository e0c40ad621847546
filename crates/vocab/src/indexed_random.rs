//! Chance by number: what happens to the n-th of something, whatever happened to the others.
//!
//! [`SeededRandom`](crate::SeededRandom) is a sequence, so each number depends on how many were drawn before.
//! Where an outcome must depend on a seed and on an index alone (whether packet 17 is lost, however
//! many packets a queue dropped before it), the index itself is mixed with a key. The mixing is
//! SplitMix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014):
//! its n-th output for a seed, computed without the ones before. It is not for secrets.

use crate::{Probability, SeededRandom};

/// The golden ratio's odd fraction, by which SplitMix64 steps.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A source of chance that is asked by number; not for keys or tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedRandom {
    key: u64,
}

impl IndexedRandom {
    /// A source for one kind of event, independent of those for other `stream` numbers.
    #[must_use]
    pub fn for_stream(seed: u64, stream: u64) -> Self {
        Self {
            key: SeededRandom::for_stream(seed, stream).next_u64(),
        }
    }

    /// The 64 random bits of this number.
    #[must_use]
    pub const fn bits(self, number: u64) -> u64 {
        let mut mixed = self
            .key
            .wrapping_add(number.wrapping_add(1).wrapping_mul(STEP));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A fraction in `0.0..1.0` with 53 random bits.
    #[must_use]
    pub fn fraction(self, number: u64) -> f64 {
        (self.bits(number) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Returns `true` if an event of this probability happens for this number.
    #[must_use]
    pub fn happens(self, number: u64, probability: Probability) -> bool {
        self.fraction(number) < probability.as_fraction()
    }

    /// A number below `bound`, each equally likely but for a bias below `bound` / 2^64. Zero when
    /// `bound` is zero.
    #[must_use]
    pub fn below(self, number: u64, bound: u64) -> u64 {
        ((u128::from(self.bits(number)) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_split_mix_64_by_number() {
        // The outputs for seed 1234567 that SplitMix64's implementations are compared by.
        let chance = IndexedRandom { key: 1_234_567 };
        let first: Vec<u64> = (0..3).map(|number| chance.bits(number)).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn events_match_their_probability() {
        let chance = IndexedRandom::for_stream(1, 2);
        let probability = Probability::from_fraction(0.01).unwrap();
        let count = (0..1_000_000)
            .filter(|number| chance.happens(*number, probability))
            .count();
        // 99.9 % of all keys are within 3.29 standard deviations of 99.5 events.
        assert!((9_672..=10_328).contains(&count), "{count} of 1,000,000");
        assert_eq!(chance.below(5, 0), 0);
        assert!((0..1_000).all(|number| chance.below(number, 10) < 10));
    }
}
