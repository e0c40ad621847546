//! Sixteen bytes at a time with SSE2, which every processor of this architecture has.

use std::arch::x86_64::*;

use super::LANES;

/// A bit for each byte, the first one lowest: whether it differs.
#[inline]
pub(crate) fn differing(one: &[u8; LANES], other: &[u8; LANES]) -> u16 {
    // SAFETY: both are as long as a vector, loads of this kind need no alignment, and every processor of
    // this architecture has the instructions.
    unsafe {
        let [one, other] = [one, other].map(|bytes| _mm_loadu_si128(bytes.as_ptr().cast()));
        !(_mm_movemask_epi8(_mm_cmpeq_epi8(one, other)) as u16)
    }
}

/// Has the processor fetch this byte, which is about to be read.
#[inline]
pub(super) fn fetch(byte: &u8) {
    // SAFETY: every processor of this architecture has the instruction, and it changes nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) };
}
