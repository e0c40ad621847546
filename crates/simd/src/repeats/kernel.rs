//! The choice of a kernel.

use super::batch::RepeatBatch;
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::x86::RepeatsAvx512;
use super::{PLACE_BITS, PlaceTables, RepeatMatches, WORDS};

/// A way to find repeats; all find the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatsKernel(RepeatsInstructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepeatsInstructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx512(RepeatsAvx512),
}

impl RepeatsKernel {
    /// The fastest kernel that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(instructions) = RepeatsAvx512::detect() {
            return Self(RepeatsInstructions::Avx512(instructions));
        }
        Self(RepeatsInstructions::Portable)
    }

    /// Every kernel that this processor has, for tests and benchmarks.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut kernels = vec![Self(RepeatsInstructions::Portable)];
        #[cfg(target_arch = "x86_64")]
        if let Some(instructions) = RepeatsAvx512::detect() {
            kernels.push(Self(RepeatsInstructions::Avx512(
                instructions.without_packed_bytes(),
            )));
        }
        kernels.push(Self::detect());
        kernels.dedup();
        kernels
    }

    /// Looks up the marked places of a text and writes them down for those to come: bit `p % 64` of word
    /// `p / 64` of the marks is for the place `base + p`. Of two places one after the other, one may be
    /// marked. `history` is all of the text that is known. Returns the repeats at the places that were handed in
    /// before, in their order: hand in none to get the last. Those are left out that do not reach beyond one
    /// before them by [`super::least_gain`], as far as is known without choosing, or that the next one covers.
    ///
    /// # Panics
    /// When there are more than [`super::WORDS`] of marks, when two of a word stand side by side, when `base` is far
    /// beyond the longest text, or for a place that does not have [`super::BEHIND`] bytes before it and
    /// [`super::AHEAD`] bytes from there on.
    pub fn find<'a>(
        self,
        batch: &'a mut RepeatBatch,
        tables: &mut PlaceTables,
        history: &[u8],
        marks: &[u64],
        base: usize,
    ) -> &'a RepeatMatches {
        assert!(marks.len() <= WORDS, "too many marks");
        // So there are half as many in a word as there could be, which is what vectors have room for.
        let dense = marks
            .iter()
            .fold(0, |dense, marks| dense | marks & marks << 1);
        assert!(dense == 0, "marks stand side by side");
        assert!(base <= 2 << PLACE_BITS, "a text is too long");
        let parts = batch.turn();
        match self.0 {
            RepeatsInstructions::Portable => portable::find(parts, tables, history, marks, base),
            #[cfg(target_arch = "x86_64")]
            RepeatsInstructions::Avx512(instructions) => {
                instructions.find(parts, tables, history, marks, base)
            }
        }
        batch.repeats()
    }
}
