//! Thirty-two positions at a time with AVX2, sixty-four with AVX-512, which lists them as well if it has VBMI2.

use std::arch::x86_64::*;

use super::portable::WORD_BYTES;
use super::{CHOSEN, SHIFT, WORD};

/// Numbers in a vector.
const LANES: usize = 16;

/// Adds the marks of all whole words.
///
/// # Safety
/// The processor has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn mark_avx512(bytes: &[u8], marks: &mut Vec<u64>) {
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk::<WORD_BYTES>() {
        marks.push(marks_of(word));
        at += WORD;
    }
}

/// Adds the marked positions of all whole words; says how many words those are.
///
/// # Safety
/// The processor has AVX-512 F, BW and VBMI2, and POPCNT.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) unsafe fn list_avx512(bytes: &[u8], positions: &mut Vec<u32>) -> usize {
    const BYTES: [u8; WORD] = {
        let mut bytes = [0; WORD];
        let mut at = 0;
        while at < WORD {
            bytes[at] = at as u8;
            at += 1;
        }
        bytes
    };
    // SAFETY: they are as long as a vector; loads of this kind need no alignment.
    let places = unsafe { _mm512_loadu_si512(BYTES.as_ptr().cast()) };
    let (mut at, mut count) = (0, positions.len());
    while let Some(word) = bytes[at..].first_chunk::<WORD_BYTES>() {
        if positions.capacity() - count < WORD {
            // SAFETY: so many were written.
            unsafe { positions.set_len(count) };
            positions.reserve(bytes.len() - at);
        }
        let marks = marks_of(word);
        let packed = _mm512_maskz_compress_epi8(marks, places);
        let base = _mm512_set1_epi32(at as i32);
        let room = positions.as_mut_ptr().wrapping_add(count);
        let store = |part: usize, bytes: __m128i| {
            let listed = _mm512_add_epi32(_mm512_cvtepu8_epi32(bytes), base);
            // SAFETY: there is room for a word's positions; stores of this kind need no alignment.
            unsafe { _mm512_storeu_si512(room.add(part * LANES).cast(), listed) };
        };
        store(0, _mm512_castsi512_si128(packed));
        let here = marks.count_ones() as usize;
        if here > LANES {
            store(1, _mm512_extracti32x4_epi32::<1>(packed));
            store(2, _mm512_extracti32x4_epi32::<2>(packed));
            store(3, _mm512_extracti32x4_epi32::<3>(packed));
        }
        count += here;
        at += WORD;
    }
    // SAFETY: so many were written.
    unsafe { positions.set_len(count) };
    at / WORD
}

/// The marks of a word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn marks_of(word: &[u8; WORD_BYTES]) -> u64 {
    // SAFETY: three bytes follow a whole vector; loads of this kind need no alignment.
    let load = |from: usize| unsafe { _mm512_loadu_si512(word.as_ptr().add(from).cast()) };
    let [one, two, three, four] = [load(0), load(1), load(2), load(3)];
    let twice = |vector| _mm512_add_epi8(vector, vector);
    let three_4 = twice(twice(three));
    let sum = _mm512_add_epi8(one, _mm512_add_epi8(two, twice(two)));
    let sum = _mm512_add_epi8(sum, twice(three_4));
    let mixed = _mm512_xor_si512(sum, _mm512_add_epi8(four, three_4));
    let mixed = _mm512_add_epi8(mixed, _mm512_set1_epi8(SHIFT as i8));
    _mm512_cmplt_epu8_mask(mixed, _mm512_set1_epi8(CHOSEN as i8))
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
