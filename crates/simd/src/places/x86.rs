//! Thirty-two positions at a time with AVX2, sixty-four with AVX-512.

use std::arch::x86_64::*;

use super::portable::WORD_BYTES;
use super::{CHOSEN, SHIFT, WORD};

/// Adds the marks of all whole words.
///
/// # Safety
/// The processor has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn mark_avx512(bytes: &[u8], marks: &mut Vec<u64>) {
    let shift = _mm512_set1_epi8(SHIFT as i8);
    let chosen = _mm512_set1_epi8(CHOSEN as i8);
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk::<WORD_BYTES>() {
        // SAFETY: three bytes follow a whole vector; loads of this kind need no alignment.
        let load = |from: usize| unsafe { _mm512_loadu_si512(word.as_ptr().add(from).cast()) };
        let [one, two, three, four] = [load(0), load(1), load(2), load(3)];
        let twice = |vector| _mm512_add_epi8(vector, vector);
        let three_4 = twice(twice(three));
        let sum = _mm512_add_epi8(one, _mm512_add_epi8(two, twice(two)));
        let sum = _mm512_add_epi8(sum, twice(three_4));
        let mixed = _mm512_xor_si512(sum, _mm512_add_epi8(four, three_4));
        marks.push(_mm512_cmplt_epu8_mask(
            _mm512_add_epi8(mixed, shift),
            chosen,
        ));
        at += WORD;
    }
}

/// Adds the marks of all whole words.
///
/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn mark_avx2(bytes: &[u8], marks: &mut Vec<u64>) {
    let shift = _mm256_set1_epi8(SHIFT as i8);
    let last = _mm256_set1_epi8(CHOSEN as i8 - 1);
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk::<WORD_BYTES>() {
        let mut mark = 0;
        for half in [0, WORD / 2] {
            // SAFETY: two halves and three more bytes; loads of this kind need no alignment.
            let load =
                |from: usize| unsafe { _mm256_loadu_si256(word.as_ptr().add(half + from).cast()) };
            let [one, two, three, four] = [load(0), load(1), load(2), load(3)];
            let twice = |vector| _mm256_add_epi8(vector, vector);
            let three_4 = twice(twice(three));
            let sum = _mm256_add_epi8(one, _mm256_add_epi8(two, twice(two)));
            let sum = _mm256_add_epi8(sum, twice(three_4));
            let mixed = _mm256_xor_si256(sum, _mm256_add_epi8(four, three_4));
            let mixed = _mm256_add_epi8(mixed, shift);
            // There is no comparison without signs, so: whether it is its own minimum.
            let chosen = _mm256_cmpeq_epi8(_mm256_min_epu8(mixed, last), mixed);
            mark |= u64::from(_mm256_movemask_epi8(chosen) as u32) << half;
        }
        marks.push(mark);
        at += WORD;
    }
}
