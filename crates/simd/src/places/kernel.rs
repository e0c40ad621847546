//! The choice of a kernel, and what vectors do not divide.

use super::portable::{WORD_BYTES, mark_word};
use super::{CHOOSING, WORD};
use crate::vectors::Vectors;

/// A way to mark positions; all mark the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Vectors);

impl Kernel {
    /// The fastest kernel that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        Self(Vectors::detect())
    }

    /// Every kernel that this processor has, for tests and benchmarks.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Vectors::available().into_iter().map(Self).collect()
    }

    /// The chosen positions of `bytes`: bit `p % 64` of word `p / 64` for position `p`. The last
    /// three positions, whose bytes are not all there, are not chosen, and may be beyond the last word.
    #[must_use]
    pub fn mark(self, bytes: &[u8]) -> Vec<u64> {
        let mut marks = Vec::with_capacity(bytes.len() / WORD + 1);
        self.mark_words(bytes, &mut marks);
        let rest = &bytes[marks.len() * WORD..];
        let mut padded = [0; WORD_BYTES];
        padded[..rest.len()].copy_from_slice(rest);
        let positions = (rest.len() + 1).saturating_sub(CHOOSING);
        // At most 63, or there would have been another whole word.
        let whole = (1 << positions) - 1;
        marks.push(mark_word(&padded) & whole);
        marks
    }

    /// Adds the words for which there are bytes enough.
    #[cfg_attr(target_arch = "x86_64", allow(unsafe_code))]
    fn mark_words(self, bytes: &[u8], marks: &mut Vec<u64>) {
        match self.0 {
            Vectors::Portable => {
                let mut at = 0;
                while let Some(bytes) = bytes[at..].first_chunk() {
                    marks.push(mark_word(bytes));
                    at += WORD;
                }
            }
            // SAFETY: the variant exists only where the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => unsafe { super::x86::mark_avx2(bytes, marks) },
            // SAFETY: the variant exists only where the processor has AVX-512 F and BW.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => unsafe { super::x86::mark_avx512(bytes, marks) },
        }
    }
}
