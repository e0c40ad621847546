//! Thirty-two positions at a time with AVX2, sixty-four with AVX-512.

use std::arch::x86_64::*;

use super::{CASE, DIGITS, LETTERS, WORD};

/// Adds the marks of bytes that are part of a word.
///
/// # Safety
/// The processor has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn mark_avx512(whole: &[[u8; WORD]], marks: &mut Vec<u64>) {
    let of = |byte: u8| _mm512_set1_epi8(byte as i8);
    for word in whole {
        // SAFETY: a whole vector is there; loads of this kind need no alignment.
        let bytes = unsafe { _mm512_loadu_si512(word.as_ptr().cast()) };
        let letter = _mm512_sub_epi8(_mm512_or_si512(bytes, of(CASE)), of(b'a'));
        let digit = _mm512_sub_epi8(bytes, of(b'0'));
        marks.push(
            _mm512_cmplt_epu8_mask(letter, of(LETTERS))
                | _mm512_cmplt_epu8_mask(digit, of(DIGITS))
                | _mm512_movepi8_mask(bytes),
        );
    }
}

/// Adds the marks of bytes that are part of a word.
///
/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn mark_avx2(whole: &[[u8; WORD]], marks: &mut Vec<u64>) {
    let of = |byte: u8| _mm256_set1_epi8(byte as i8);
    // There is no comparison without signs, so: whether it is its own minimum.
    let below = |bytes, bound: u8| {
        let least = _mm256_min_epu8(bytes, of(bound - 1));
        _mm256_cmpeq_epi8(least, bytes)
    };
    for word in whole {
        let mut mark = 0;
        for half in [0, WORD / 2] {
            // SAFETY: two halves are there; loads of this kind need no alignment.
            let bytes = unsafe { _mm256_loadu_si256(word.as_ptr().add(half).cast()) };
            let letter = _mm256_sub_epi8(_mm256_or_si256(bytes, of(CASE)), of(b'a'));
            let digit = _mm256_sub_epi8(bytes, of(b'0'));
            let ascii = _mm256_or_si256(below(letter, LETTERS), below(digit, DIGITS));
            let within = _mm256_movemask_epi8(_mm256_or_si256(ascii, bytes));
            mark |= u64::from(within as u32) << half;
        }
        marks.push(mark);
    }
}
