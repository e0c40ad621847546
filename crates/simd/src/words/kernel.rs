//! The choice of a kernel, and what vectors do not divide.

use super::WORD;
use super::portable::word_bytes;
use crate::vectors::VectorInstructions;

/// A way to mark positions; all mark the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordsKernel(VectorInstructions);

impl WordsKernel {
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

    /// Puts the marks of all positions where words begin into `marks`, which it empties first: bit
    /// `p % 64` of word `p / 64` for position `p`. A word that stands at the beginning begins there.
    pub fn mark(self, bytes: &[u8], marks: &mut Vec<u64>) {
        marks.clear();
        marks.reserve(bytes.len() / WORD + 1);
        let (whole, rest) = bytes.as_chunks();
        self.mark_words(whole, marks);
        if !rest.is_empty() {
            let mut padded = [0; WORD];
            padded[..rest.len()].copy_from_slice(rest);
            marks.push(word_bytes(&padded));
        }
        let mut before = 0;
        for mark in marks {
            let within = *mark;
            *mark = within & !(within << 1 | before);
            before = within >> (WORD - 1);
        }
    }

    /// Adds the marks of bytes that are part of a word.
    #[cfg_attr(target_arch = "x86_64", allow(unsafe_code))]
    fn mark_words(self, whole: &[[u8; WORD]], marks: &mut Vec<u64>) {
        match self.0 {
            VectorInstructions::Portable => marks.extend(whole.iter().map(word_bytes)),
            // SAFETY: the variant exists only where the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            VectorInstructions::Avx2 => unsafe { super::x86::mark_avx2(whole, marks) },
            // SAFETY: the variant exists only where the processor has AVX-512 F and BW.
            #[cfg(target_arch = "x86_64")]
            VectorInstructions::Avx512 => unsafe { super::x86::mark_avx512(whole, marks) },
        }
    }
}
