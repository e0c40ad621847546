//! The choice of a kernel, and what vectors do not divide.

use super::portable::{WORD_BYTES, mark_word};
use super::{CHOOSING, SPACING, WORD};
use crate::vectors::VectorInstructions;

/// A way to mark positions; all mark the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacesKernel(VectorInstructions);

impl PlacesKernel {
    /// The fastest kernel that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        Self(VectorInstructions::detect())
    }

    /// Every kernel that this processor has, for tests and benchmarks.
    #[must_use]
    pub fn available() -> Vec<Self> {
        VectorInstructions::available()
            .into_iter()
            .map(Self)
            .collect()
    }

    /// The chosen positions of `bytes`, in their order. The last three, whose bytes are not all there, are not
    /// chosen.
    ///
    /// # Panics
    /// When there are 4 GiB or more.
    #[must_use]
    pub fn positions(self, bytes: &[u8]) -> Vec<u32> {
        assert!(u32::try_from(bytes.len()).is_ok(), "too many bytes");
        let expected = bytes.len() / SPACING * 5 / 4 + 8;
        let mut positions = Vec::with_capacity(expected + WORD);
        match self.list_words(bytes, &mut positions) {
            Some(words) => {
                let last = [last_word(&bytes[words * WORD..])];
                list(&last, (words * WORD) as u32, &mut positions);
            }
            None => list(&self.mark(bytes), 0, &mut positions),
        }
        positions
    }

    /// Adds the positions in the words for which there are bytes enough, and says how many words those are; none
    /// where the processor cannot do that at once.
    #[cfg_attr(target_arch = "x86_64", allow(unsafe_code))]
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    fn list_words(self, bytes: &[u8], positions: &mut Vec<u32>) -> Option<usize> {
        #[cfg(target_arch = "x86_64")]
        if self.0 == VectorInstructions::Avx512
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("popcnt")
        {
            // SAFETY: the variant exists only where the processor has AVX-512 F and BW, and it has been asked for
            // the rest.
            return Some(unsafe { super::x86::list_avx512(bytes, positions) });
        }
        None
    }

    /// The chosen positions of `bytes`: bit `p % 64` of word `p / 64` for position `p`.
    pub(super) fn mark(self, bytes: &[u8]) -> Vec<u64> {
        let mut marks = Vec::with_capacity(bytes.len() / WORD + 1);
        self.mark_words(bytes, &mut marks);
        marks.push(last_word(&bytes[marks.len() * WORD..]));
        marks
    }

    /// Adds the words for which there are bytes enough.
    #[cfg_attr(target_arch = "x86_64", allow(unsafe_code))]
    fn mark_words(self, bytes: &[u8], marks: &mut Vec<u64>) {
        match self.0 {
            VectorInstructions::Portable => {
                let mut at = 0;
                while let Some(bytes) = bytes[at..].first_chunk() {
                    marks.push(mark_word(bytes));
                    at += WORD;
                }
            }
            // SAFETY: the variant exists only where the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            VectorInstructions::Avx2 => unsafe { super::x86::mark_avx2(bytes, marks) },
            // SAFETY: the variant exists only where the processor has AVX-512 F and BW.
            #[cfg(target_arch = "x86_64")]
            VectorInstructions::Avx512 => unsafe { super::x86::mark_avx512(bytes, marks) },
        }
    }
}

/// Marks of the positions behind the last complete word.
fn last_word(rest: &[u8]) -> u64 {
    let mut padded = [0; WORD_BYTES];
    padded[..rest.len()].copy_from_slice(rest);
    let positions = (rest.len() + 1).saturating_sub(CHOOSING);
    // At most 63, or there would have been another whole word.
    let whole = (1 << positions) - 1;
    mark_word(&padded) & whole
}

/// Adds the positions that are marked, from `base` on. Of most words of marks there are one or two, so that two are
/// listed whether they are there or not, without a branch.
fn list(marks: &[u64], base: u32, positions: &mut Vec<u32>) {
    for (base, marks) in (base..).step_by(WORD).zip(marks) {
        let mut marks = *marks;
        let count = marks.count_ones() as usize;
        let listed = positions.len();
        for _ in 0..count.max(2) {
            positions.push(base + marks.trailing_zeros());
            marks &= marks.wrapping_sub(1);
        }
        positions.truncate(listed + count);
    }
}
