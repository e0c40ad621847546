//! Coefficients of source symbols in repair symbols, computed from their numbers on both sides.
//!
//! Within an *epoch* of 64 repair symbols they are a Cauchy matrix, each column of it scaled:
//!
//! ```text
//!  coefficient = scale(epoch, number) / (row + column)     row    = 192 + key mod 64
//!                                                          column = number mod 192
//! ```
//!
//! Rows and columns are distinct elements, so every square part of the matrix can be inverted
//! (Blömer et al., "An XOR-Based Erasure-Resilient Coding Scheme", 1995, §4): over one window, any k
//! lost symbols are recovered from any k repair symbols of an epoch. The scale differs from epoch to
//! epoch, without which every 64th repair symbol over one window would be the same. Where windows
//! or epochs differ, a square system is singular about as often as a random one, 1 time in 250.

use simd::gf256::{inverse, multiply};

use super::WINDOW_LIMIT;

/// Repair symbols in an epoch: the elements that the columns leave.
pub(super) const EPOCH: u16 = 256 - WINDOW_LIMIT as u16;

/// The coefficient of a source symbol in the repair symbol of that key; never 0.
pub(super) fn coefficient(key: u16, number: u64) -> u8 {
    let row = (WINDOW_LIMIT as u16 + key % EPOCH) as u8;
    let column = (number % WINDOW_LIMIT) as u8;
    multiply(inverse(row ^ column), scale(key / EPOCH, number))
}

/// A pseudo-random element other than 0: the output function of SplitMix64 (Steele, Lea and Flood,
/// "Fast splittable pseudorandom number generators", 2014) over epoch and number.
fn scale(epoch: u16, number: u64) -> u8 {
    let mut mixed = number ^ (u64::from(epoch) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    // The upper half times 255, as a fraction of 2³²: each of 1..=255 equally likely.
    ((((mixed >> 32) * 255) >> 32) + 1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_match_the_format() {
        // They are part of the wire format: a change of these is a change of version.
        // These were computed by a separate script from the formula above.
        let row = |key| -> Vec<u8> { (0..6).map(|number| coefficient(key, number)).collect() };
        assert_eq!(row(0), [95, 206, 186, 221, 237, 64]);
        assert_eq!(row(63), [255, 153, 238, 173, 97, 132]);
        assert_eq!(row(64), [96, 237, 233, 48, 61, 99]);
        assert_eq!(coefficient(u16::MAX, u64::MAX), 56);
    }

    #[test]
    fn repair_symbol_covers_every_symbol() {
        for key in (0..=u16::MAX).step_by(7) {
            for number in 0..2 * WINDOW_LIMIT {
                assert_ne!(coefficient(key, number), 0);
            }
        }
    }

    #[test]
    fn repair_symbols_over_one_window_are_pairwise_independent() {
        // Over an epoch by design, and with the epoch's scale also beyond it.
        for key in 1..4 * EPOCH {
            let ratio =
                |number| multiply(coefficient(key, number), inverse(coefficient(0, number)));
            assert!((1..20).any(|number| ratio(number) != ratio(0)), "{key}");
        }
    }
}
