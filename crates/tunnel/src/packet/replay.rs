//! Replay window: remembers accepted packet numbers, in constant memory.
//!
//! A ring of bits, handled by words, as in RFC 6479 (IPsec Anti-Replay Algorithm without Bit
//! Shifting). Moving on clears the words that are entered, however far it goes, and shifts nothing.
//!
//! ```text
//!   forgotten │ words of the window: taken or not │ not seen yet
//!   ──────────┼───────────────────────────────────┼────────────►  numbers
//!             └ top − width                       └ top = largest taken + 1
//! ```
//!
//! A number below the window is refused whether or not it was accepted before. Only authenticated
//! packets reach the window: it is checked after the tag.

const WORD_BITS: u64 = u64::BITS as u64;

/// Width of the replay window, in numbers below the largest: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowWidth {
    exponent: u32,
}

impl WindowWidth {
    /// 2^16 numbers, 8 KiB.
    pub const LEAST: Self = Self { exponent: 16 };
    /// 2^22 numbers, 512 KiB: as far as three bytes of a number reach back with certainty.
    pub const GREATEST: Self = Self { exponent: 22 };

    /// Returns the width that remembers at least `packets` numbers: the packet rate times the
    /// longest delay. It is limited to the smallest and largest width.
    #[must_use]
    pub fn covering(packets: u64) -> Self {
        let (least, greatest) = (Self::LEAST.numbers(), Self::GREATEST.numbers());
        let numbers = packets.clamp(least, greatest).next_power_of_two();
        Self {
            exponent: numbers.trailing_zeros(),
        }
    }

    /// Returns the width in numbers.
    #[must_use]
    pub fn numbers(self) -> u64 {
        1 << self.exponent
    }
}

impl Default for WindowWidth {
    /// 2^18 numbers, 32 KiB: 2 Gbit/s in packets of 1,400 bytes that come 1.4 s late.
    fn default() -> Self {
        Self { exponent: 18 }
    }
}

/// Reason for refusing a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayRejection {
    /// It was accepted before.
    Replayed,
    /// It is below the window.
    TooOld,
}

/// The numbers that were taken.
pub(super) struct ReplayWindow {
    /// Bits of the window, and of one word more, so that a word is never old and new in parts.
    words: Box<[u64]>,
    width: u64,
    /// Above every number that was taken.
    top: u64,
}

impl ReplayWindow {
    pub(super) fn new(width: WindowWidth) -> Self {
        let width = width.numbers();
        let words = (width / WORD_BITS + 1) as usize;
        Self {
            words: vec![0; words].into_boxed_slice(),
            width,
            top: 0,
        }
    }

    /// Above every number that was taken.
    pub(super) fn top(&self) -> u64 {
        self.top
    }

    /// Takes a number, once.
    pub(super) fn take(&mut self, number: u64) -> Result<(), ReplayRejection> {
        if number + self.width < self.top {
            return Err(ReplayRejection::TooOld);
        }
        self.advance(number);
        let bit = 1 << (number % WORD_BITS);
        let word = self.word_of(number);
        if self.words[word] & bit != 0 {
            return Err(ReplayRejection::Replayed);
        }
        self.words[word] |= bit;
        Ok(())
    }

    /// Clears the words between the top's and `number`'s, all at most, and moves the top.
    fn advance(&mut self, number: u64) {
        if number < self.top {
            return;
        }
        let entered = match self.top.checked_sub(1) {
            Some(largest) => number / WORD_BITS - largest / WORD_BITS,
            None => number / WORD_BITS,
        };
        let first = number / WORD_BITS + 1 - entered.min(self.words.len() as u64);
        for word in first..=number / WORD_BITS {
            let place = (word % self.words.len() as u64) as usize;
            self.words[place] = 0;
        }
        self.top = number + 1;
    }

    fn word_of(&self, number: u64) -> usize {
        (number / WORD_BITS % self.words.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Few enough numbers that random ones meet.
    fn narrow() -> ReplayWindow {
        ReplayWindow::new(WindowWidth { exponent: 8 })
    }

    #[test]
    fn window_edge_is_accepted_and_below_is_not() {
        let mut window = ReplayWindow::new(WindowWidth::LEAST);
        window.take(1_000_000).unwrap();
        let edge = 1_000_001 - 65_536;
        assert_eq!(window.take(edge - 1), Err(ReplayRejection::TooOld));
        assert_eq!(window.take(edge), Ok(()));
        assert_eq!(window.take(edge), Err(ReplayRejection::Replayed));
    }

    #[test]
    fn large_jump_clears_the_window() {
        let mut window = narrow();
        for number in 0..300 {
            window.take(number).unwrap();
        }
        window.take(1 << 50).unwrap();
        for number in (1 << 50) - 255..1 << 50 {
            assert_eq!(window.take(number), Ok(()));
        }
    }

    #[test]
    fn window_width_covers_the_request_within_bounds() {
        assert_eq!(WindowWidth::covering(0), WindowWidth::LEAST);
        assert_eq!(WindowWidth::covering(65_537).numbers(), 131_072);
        assert_eq!(WindowWidth::covering(131_072).numbers(), 131_072);
        assert_eq!(WindowWidth::covering(u64::MAX), WindowWidth::GREATEST);
    }

    proptest! {
        #[test]
        fn replay_window_matches_a_set_of_numbers(
            steps in prop::collection::vec((0_u64..4, 0_u64..700), 1..400),
        ) {
            let mut window = narrow();
            let mut taken = BTreeSet::new();
            let mut top = 0_u64;
            for (leap, step) in steps {
                // Mostly near the top on both sides, sometimes far above it.
                let number = match leap {
                    0 => top + step,
                    1 => top + step % 3,
                    _ => top.saturating_sub(step % 300),
                };
                let expected = if number + 256 < top {
                    Err(ReplayRejection::TooOld)
                } else if taken.insert(number) {
                    top = top.max(number + 1);
                    Ok(())
                } else {
                    Err(ReplayRejection::Replayed)
                };
                prop_assert_eq!(window.take(number), expected);
                prop_assert_eq!(window.top(), top);
            }
        }
    }
}
