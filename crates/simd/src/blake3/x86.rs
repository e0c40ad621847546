//! Sixteen lanes of 32 bits: AVX-512.
//!
//! Each of sixteen vectors holds one word of the state for all lanes, so the compression function
//! is that of the specification with vectors in place of words. Blocks come as sixteen words for
//! one lane each and are transposed.

use std::arch::x86_64::*;

use super::{BLOCK, HASH, INITIAL, LaneJob, SCHEDULE};

const LANES: usize = 16;
/// Blocks fetched ahead of the current one: sixteen streams are more than a processor prefetches by
/// itself.
const AHEAD: usize = 4;

/// Hashes all jobs, sixteen at a time.
///
/// # Safety
/// The processor has AVX-512 F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn run_avx512(jobs: &[LaneJob<'_>], results: &mut [[u8; HASH]]) {
    assert_eq!(jobs.len(), results.len());
    let after = jobs.chunks(LANES).skip(1).chain([&[][..]]);
    let groups = jobs.chunks(LANES).zip(after);
    for ((jobs, after), results) in groups.zip(results.chunks_mut(LANES)) {
        run_lanes(jobs, after, results);
    }
}

/// Hashes up to sixteen jobs; lanes without one do the first again. Fetches the first blocks of those
/// that come `after`.
#[target_feature(enable = "avx512f")]
fn run_lanes(jobs: &[LaneJob<'_>], after: &[LaneJob<'_>], results: &mut [[u8; HASH]]) {
    let job = |lane: usize| jobs.get(lane).unwrap_or(&jobs[0]);
    let mut padded = [[0; BLOCK]; LANES];
    let (mut most, mut least) = (0, usize::MAX);
    let mut counters = [[0; LANES]; 2];
    let (mut firsts, mut lasts) = ([0; LANES], [0; LANES]);
    let mut whole_blocks = true;
    for lane in 0..LANES {
        let job = job(lane);
        most = job.blocks().max(most);
        least = job.blocks().min(least);
        let rest = &job.bytes[(job.blocks() - 1) * BLOCK..];
        // A whole one is taken from where it is, and not touched before its turn.
        if rest.len() < BLOCK {
            padded[lane][..rest.len()].copy_from_slice(rest);
        }
        counters[0][lane] = job.counter as u32;
        counters[1][lane] = (job.counter >> 32) as u32;
        firsts[lane] = job.first;
        lasts[lane] = job.last;
        whole_blocks &= rest.len() == BLOCK;
    }
    let counters = [load_words(counters[0]), load_words(counters[1])];
    let (firsts, lasts) = (load_words(firsts), load_words(lasts));
    let whole = _mm512_set1_epi32(BLOCK as i32);
    let mut state = INITIAL.map(|word| _mm512_set1_epi32(word as i32));
    let mut blocks = [&padded[0]; LANES];
    // Most leaves are of the same length and have no block that needs care.
    let alike = if whole_blocks && least == most {
        most
    } else {
        least - 1
    };
    for number in 0..alike {
        let ahead = number + AHEAD;
        if ahead < most {
            jobs.iter().for_each(|job| fetch(job, ahead));
        } else {
            after.iter().for_each(|job| fetch(job, ahead - most));
        }
        for (lane, block) in blocks.iter_mut().enumerate() {
            let there = job(lane).bytes[number * BLOCK..].first_chunk();
            *block = there.expect("these blocks are whole");
        }
        let mut flags = _mm512_setzero_si512();
        if number == 0 {
            flags = firsts;
        }
        if number == most - 1 {
            flags = _mm512_or_si512(flags, lasts);
        }
        state = compress(state, &blocks, counters, whole, flags);
    }
    for number in alike..most {
        let (mut lengths, mut flags, mut live) = ([0; LANES], [0; LANES], 0);
        for lane in 0..LANES {
            let job = job(lane);
            let last = job.blocks() - 1;
            blocks[lane] = match job.bytes[(number * BLOCK).min(job.bytes.len())..].first_chunk() {
                Some(block) if number <= last => block,
                _ => &padded[lane],
            };
            lengths[lane] = match number == last {
                true => (job.bytes.len() - last * BLOCK) as u32,
                false => BLOCK as u32,
            };
            flags[lane] |= if number == 0 { job.first } else { 0 };
            flags[lane] |= if number == last { job.last } else { 0 };
            live |= u16::from(number <= last) << lane;
        }
        let next = compress(
            state,
            &blocks,
            counters,
            load_words(lengths),
            load_words(flags),
        );
        for (state, next) in state.iter_mut().zip(next) {
            *state = _mm512_mask_mov_epi32(*state, live, next);
        }
    }
    let mut words = [[0; LANES]; 8];
    for (words, vector) in words.iter_mut().zip(state) {
        // SAFETY: sixteen words of 32 bits; stores of this kind need no alignment.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), vector) };
    }
    for (lane, result) in results.iter_mut().enumerate() {
        for (bytes, words) in result.as_chunks_mut::<4>().0.iter_mut().zip(&words) {
            *bytes = u32::to_le_bytes(words[lane]);
        }
    }
}

/// Has the cache fetch a job's block of this number, if it has one.
#[target_feature(enable = "avx512f")]
#[inline]
fn fetch(job: &LaneJob<'_>, number: usize) {
    if let Some(byte) = job.bytes.get(number * BLOCK) {
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast());
    }
}

#[target_feature(enable = "avx512f")]
fn load_words(words: [u32; LANES]) -> __m512i {
    // SAFETY: sixteen words of 32 bits; loads of this kind need no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

/// The compression function (section 2.2), of which only the chaining value is kept.
#[target_feature(enable = "avx512f")]
#[inline]
fn compress(
    state: [__m512i; 8],
    blocks: &[&[u8; BLOCK]; LANES],
    counters: [__m512i; 2],
    lengths: __m512i,
    flags: __m512i,
) -> [__m512i; 8] {
    let message = transposed(blocks);
    let initial = |word: usize| _mm512_set1_epi32(INITIAL[word] as i32);
    let [h0, h1, h2, h3, h4, h5, h6, h7] = state;
    let mut v = [
        h0,
        h1,
        h2,
        h3,
        h4,
        h5,
        h6,
        h7,
        initial(0),
        initial(1),
        initial(2),
        initial(3),
        counters[0],
        counters[1],
        lengths,
        flags,
    ];
    macro_rules! quarter {
        ($a:literal, $b:literal, $c:literal, $d:literal, $x:expr, $y:expr) => {
            v[$a] = _mm512_add_epi32(_mm512_add_epi32(v[$a], $x), v[$b]);
            v[$d] = _mm512_ror_epi32::<16>(_mm512_xor_si512(v[$d], v[$a]));
            v[$c] = _mm512_add_epi32(v[$c], v[$d]);
            v[$b] = _mm512_ror_epi32::<12>(_mm512_xor_si512(v[$b], v[$c]));
            v[$a] = _mm512_add_epi32(_mm512_add_epi32(v[$a], $y), v[$b]);
            v[$d] = _mm512_ror_epi32::<8>(_mm512_xor_si512(v[$d], v[$a]));
            v[$c] = _mm512_add_epi32(v[$c], v[$d]);
            v[$b] = _mm512_ror_epi32::<7>(_mm512_xor_si512(v[$b], v[$c]));
        };
    }
    macro_rules! round {
        ($round:literal) => {
            let word = |index: usize| message[SCHEDULE[$round][index]];
            quarter!(0, 4, 8, 12, word(0), word(1));
            quarter!(1, 5, 9, 13, word(2), word(3));
            quarter!(2, 6, 10, 14, word(4), word(5));
            quarter!(3, 7, 11, 15, word(6), word(7));
            quarter!(0, 5, 10, 15, word(8), word(9));
            quarter!(1, 6, 11, 12, word(10), word(11));
            quarter!(2, 7, 8, 13, word(12), word(13));
            quarter!(3, 4, 9, 14, word(14), word(15));
        };
    }
    round!(0);
    round!(1);
    round!(2);
    round!(3);
    round!(4);
    round!(5);
    round!(6);
    let half = |index: usize| _mm512_xor_si512(v[index], v[index + 8]);
    [
        half(0),
        half(1),
        half(2),
        half(3),
        half(4),
        half(5),
        half(6),
        half(7),
    ]
}

/// Transposes 16 × 16 words in four steps, each of which exchanges halves of twice as many words.
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed(blocks: &[&[u8; BLOCK]; LANES]) -> [__m512i; LANES] {
    let mut rows = [_mm512_setzero_si512(); LANES];
    for (row, block) in rows.iter_mut().zip(blocks) {
        // SAFETY: a block has 64 bytes; loads of this kind need no alignment.
        *row = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
    }
    // Within each quarter of a vector: pairs of lanes, then fours.
    let mut fours = rows;
    for group in 0..4 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|lane| rows[4 * group + lane]);
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        fours[4 * group] = _mm512_unpacklo_epi64(ab_low, cd_low);
        fours[4 * group + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
        fours[4 * group + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
        fours[4 * group + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    // `fours[4 g + w]` has in quarter q word 4 q + w of lanes 4 g to 4 g + 3.
    let mut words = fours;
    for word in 0..4 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|group| fours[4 * group + word]);
        let even_ab = _mm512_shuffle_i32x4::<0b1000_1000>(a, b);
        let odd_ab = _mm512_shuffle_i32x4::<0b1101_1101>(a, b);
        let even_cd = _mm512_shuffle_i32x4::<0b1000_1000>(c, d);
        let odd_cd = _mm512_shuffle_i32x4::<0b1101_1101>(c, d);
        words[word] = _mm512_shuffle_i32x4::<0b1000_1000>(even_ab, even_cd);
        words[4 + word] = _mm512_shuffle_i32x4::<0b1000_1000>(odd_ab, odd_cd);
        words[8 + word] = _mm512_shuffle_i32x4::<0b1101_1101>(even_ab, even_cd);
        words[12 + word] = _mm512_shuffle_i32x4::<0b1101_1101>(odd_ab, odd_cd);
    }
    words
}
