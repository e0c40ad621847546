//! Chance, seeded: the same seed gives the same numbers on every machine and in every release.
//!
//! The generator is xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number
//! generators", 2021), its state filled by SplitMix64 as its authors advise. It is written out
//! here, and held by its authors' test vector, because a seed printed in a report must give the
//! same losses years later, which no library promises. It is not for secrets.

use crate::Probability;

/// A seeded generator of pseudo-random numbers; not for keys or tokens.
#[derive(Clone, Debug)]
pub struct SeededRandom {
    state: [u64; 4],
}

impl SeededRandom {
    /// A generator whose whole future is fixed by `seed`.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut counter = seed;
        let mut split_mix = || {
            counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = counter;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        Self {
            state: [split_mix(), split_mix(), split_mix(), split_mix()],
        }
    }

    /// A generator for one part of a whole, independent of those for other `stream` numbers.
    #[must_use]
    pub fn for_stream(seed: u64, stream: u64) -> Self {
        let mut root = Self::from_seed(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        Self::from_seed(root.next_u64())
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let shifted = b << 17;
        let mut state = [a, b, c ^ a, d ^ b];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        self.state = state;
        result
    }

    /// A number in `0.0..1.0` with 53 random bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A number below `bound`, each equally likely (Lemire's method without its rejection step:
    /// the bias is below `bound` / 2^64). Zero when `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns `true` if an event of this probability happens now.
    pub fn happens(&mut self, probability: Probability) -> bool {
        self.next_f64() < probability.as_fraction()
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_authors_reference() {
        // The published vector for state {1, 2, 3, 4}.
        let mut random = SeededRandom {
            state: [1, 2, 3, 4],
        };
        let first: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        assert_eq!(
            first,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386,
                9_228_616_714_210_784_205
            ]
        );
    }

    #[test]
    fn fractions_and_bounds_stay_in_range() {
        let mut random = SeededRandom::from_seed(7);
        for _ in 0..10_000 {
            let fraction = random.next_f64();
            assert!((0.0..1.0).contains(&fraction));
            assert!(random.below(10) < 10);
        }
        assert_eq!(random.below(0), 0);
        assert!(!random.happens(Probability::ZERO));
    }

    #[test]
    fn streams_of_one_seed_differ() {
        let mut one = SeededRandom::for_stream(1, 0);
        let mut two = SeededRandom::for_stream(1, 1);
        assert_ne!(one.next_u64(), two.next_u64());
    }
}
