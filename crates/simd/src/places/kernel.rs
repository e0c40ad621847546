//! The choice of a kernel, and what vectors do not divide.

use super::portable::{WORD_BYTES, mark_word};
use super::{CHOOSING, WORD};

/// A way to mark positions; all mark the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Instructions);

/// Which instructions do the work. A variant exists only where the processor has been asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Kernel {
    /// The fastest kernel that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512bw") {
                return Self(Instructions::Avx512);
            }
            if is_x86_feature_detected!("avx2") {
                return Self(Instructions::Avx2);
            }
        }
        Self(Instructions::Portable)
    }

    /// Every kernel that this processor has, for tests and benchmarks.
    #[must_use]
    pub fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
        let mut kernels = vec![Self(Instructions::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                kernels.push(Self(Instructions::Avx2));
            }
            if is_x86_feature_detected!("avx512bw") {
                kernels.push(Self(Instructions::Avx512));
            }
        }
        kernels
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
            Instructions::Portable => {
                let mut at = 0;
                while let Some(bytes) = bytes[at..].first_chunk() {
                    marks.push(mark_word(bytes));
                    at += WORD;
                }
            }
            // SAFETY: the variant exists only where the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { super::x86::mark_avx2(bytes, marks) },
            // SAFETY: the variant exists only where the processor has AVX-512 F and BW.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { super::x86::mark_avx512(bytes, marks) },
        }
    }
}
