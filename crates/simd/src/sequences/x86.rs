//! Sixteen sequences at a time with AVX-512.

use std::arch::x86_64::*;

use super::gather::{
    GatheredBlock, LANES, LITERAL_CODES, LITERALS, LITERALS_ABOVE, MATCH_CODES, MATCHES,
    MATCHES_ABOVE, NAMES, OFFSETS, RepeatOffsets, STEP, TOO_LONG,
};
use super::{MAX_BLOCK, MIN_MATCH, ZstdSequence};

/// A value exists only where the processor has AVX-512 F, BW, CD, DQ and VL, BMI1, BMI2, LZCNT and POPCNT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SequencesAvx512(());

/// A value exists only where the processor has BMI1, BMI2 and LZCNT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SequencesBmi2(());

/// Codes and extra bits of the lengths of a vector's sequences.
#[derive(Clone, Copy)]
struct CodedLengths {
    codes: __m512i,
    bits: __m512i,
    extra: __m512i,
}

impl SequencesAvx512 {
    /// Asks the processor.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt");
        has.then_some(Self(()))
    }

    /// Gathers the codes of sequences. Returns the end of the last one.
    pub(super) fn gather(
        self,
        gathered: &mut GatheredBlock,
        history: &[u8],
        start: usize,
        sequences: &[ZstdSequence],
        recent: &mut RepeatOffsets,
    ) -> Option<usize> {
        let room = sequences.len().next_multiple_of(LANES);
        let has_room = gathered.codes.iter().all(|codes| codes.len() >= room)
            && gathered.extras.len() >= room
            && gathered.widths.len() >= room
            && gathered.literals.len() >= MAX_BLOCK + STEP
            && start <= history.len()
            && history.len() - start <= MAX_BLOCK
            && history.len() <= i32::MAX as usize;
        assert!(has_room, "there is room for all sequences");
        // SAFETY: the processor has the instructions, or there would be no value of this type, and room was
        // checked.
        unsafe { gather(gathered, history, start, sequences, recent) }
    }
}

impl SequencesBmi2 {
    /// Asks the processor.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt");
        has.then_some(Self(()))
    }

    /// Does this with the instructions.
    pub(super) fn run<Result>(self, work: impl FnOnce() -> Result) -> Result {
        /// # Safety
        /// The processor has the instructions.
        #[target_feature(enable = "bmi1,bmi2,lzcnt")]
        unsafe fn run<Result>(work: impl FnOnce() -> Result) -> Result {
            work()
        }
        // SAFETY: the processor has them, or there would be no value of this type.
        unsafe { run(work) }
    }
}

/// # Safety
/// The processor has the instructions; there is room for all sequences, rounded up to a vector's, and for all
/// literals of the longest block and [`STEP`] more; the block is no longer than that, and `start` within the history.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn gather(
    gathered: &mut GatheredBlock,
    history: &[u8],
    start: usize,
    sequences: &[ZstdSequence],
    recent: &mut RepeatOffsets,
) -> Option<usize> {
    let of = |value: u32| _mm512_set1_epi32(value.cast_signed());
    let last_lane = of(LANES as u32 - 1);
    let [codes_literals, codes_matches] = [
        [wide(&LITERAL_CODES, 0), wide(&LITERAL_CODES, 16)],
        [wide(&MATCH_CODES, 0), wide(&MATCH_CODES, 16)],
    ];
    let more_matches = [wide(&MATCH_CODES, 32), wide(&MATCH_CODES, 48)];
    let mut before = lanes_of(*recent);
    let mut end = of(start as u32);
    let mut kept = gathered.kept;
    let (from, to) = (history.as_ptr(), gathered.literals.as_mut_ptr());
    let steps = history.len().saturating_sub(STEP - 1);
    let mut at = start;
    for (number, group) in sequences.chunks(LANES).enumerate() {
        let lanes = u16::MAX >> (LANES - group.len());
        // SAFETY: only those of the group are read.
        let [offset, literals, length] = unsafe { parts(group) };
        let total = _mm512_add_epi32(literals, length);
        let ends = running_sum(total, end);
        let begins = _mm512_sub_epi32(ends, total);
        let here = _mm512_add_epi32(begins, literals);
        // So neither sums nor what follows from them wrap around.
        let is_long = _mm512_cmpge_epu32_mask(_mm512_or_si512(literals, length), of(TOO_LONG));
        let is_wrong = _mm512_cmplt_epu32_mask(length, of(MIN_MATCH as u32))
            | _mm512_cmpgt_epu32_mask(offset, here)
            | _mm512_testn_epi32_mask(offset, offset);
        end = _mm512_permutexvar_epi32(last_lane, ends);
        at = _mm512_cvtsi512_si32(end).cast_unsigned() as usize;
        if is_long | is_wrong & lanes != 0 || at > history.len() {
            return None;
        }
        let has = _mm512_test_epi32_mask(literals, literals);
        let places = array(_mm512_maskz_compress_epi32(has, begins));
        let counts = array(_mm512_maskz_compress_epi32(has, literals));
        for (place, count) in places.iter().zip(&counts).take(has.count_ones() as usize) {
            let (place, count) = (*place as usize, *count as usize);
            // SAFETY: these bytes are there, for the sequence ends within the history, and if there are more of
            // them, those are, too. There is room for the literals of a block, which are no more than
            // its bytes, and for a step.
            unsafe {
                let (from, to) = (from.add(place), to.add(kept));
                if count <= STEP && place < steps {
                    from.copy_to_nonoverlapping(to, STEP);
                } else {
                    copy(from, to, count);
                }
            }
            kept += count;
        }
        let named = is_named(offset, before) & lanes;
        let mut number_of = _mm512_add_epi32(offset, of(NAMES));
        if named == 0 && group.len() == LANES {
            before = offset;
        } else {
            // In their order, each with those before it.
            let mut recent = recent_of(before);
            let mut numbers = array(number_of);
            for (sequence, number) in group.iter().zip(&mut numbers) {
                *number = recent.code(sequence.0.offset, sequence.0.litLength > 0);
            }
            // SAFETY: it is as long as a vector; loads of this kind need no alignment.
            number_of = unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) };
            before = lanes_of(recent);
        }
        let of_literals = code(literals, codes_literals, LITERALS_ABOVE);
        let length = _mm512_sub_epi32(length, of(MIN_MATCH as u32));
        let mut of_match = code(length, codes_matches, MATCHES_ABOVE);
        // The second half of their table.
        let is_in_more = _mm512_cmpge_epu32_mask(length, of(64));
        if is_in_more & lanes != 0 {
            let is_in_more = is_in_more & _mm512_cmplt_epu32_mask(length, of(128));
            let half = _mm512_srli_epi32::<1>(length);
            let found = _mm512_permutex2var_epi32(more_matches[0], half, more_matches[1]);
            of_match = CodedLengths::of(length, found, is_in_more, of_match);
        }
        let high = _mm512_sub_epi32(of(31), _mm512_lzcnt_epi32(number_of));
        let offset_extra = _mm512_xor_si512(number_of, _mm512_sllv_epi32(of(1), high));
        let shift = _mm512_add_epi32(of_literals.bits, of_match.bits);
        let low = _mm512_or_si512(
            of_literals.extra,
            _mm512_sllv_epi32(of_match.extra, of_literals.bits),
        );
        let at = number * LANES;
        // SAFETY: there is room for as many as in the vectors; stores of this kind need no alignment.
        unsafe {
            let extras = gathered.extras.as_mut_ptr().add(at);
            let first = extra([low, offset_extra, shift].map(|v| _mm512_castsi512_si256(v)));
            _mm512_storeu_si512(extras.cast(), first);
            let second =
                extra([low, offset_extra, shift].map(|v| _mm512_extracti64x4_epi64::<1>(v)));
            _mm512_storeu_si512(extras.add(LANES / 2).cast(), second);
            store(&mut gathered.widths, at, _mm512_add_epi32(shift, high));
            store(&mut gathered.codes[LITERALS], at, of_literals.codes);
            store(&mut gathered.codes[OFFSETS], at, high);
            store(&mut gathered.codes[MATCHES], at, of_match.codes);
        }
    }
    gathered.kept = kept;
    *recent = recent_of(before);
    Some(at)
}

/// Copies many literals: by a call, which is too much for a few.
///
/// # Safety
/// They are there, and have room.
#[cold]
#[inline(never)]
unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: as the caller says; they are of two vectors.
    unsafe { from.copy_to_nonoverlapping(to, count) };
}

/// Offsets, literals and lengths of the sequences; zeros where there are none.
///
/// # Safety
/// There are no more than a vector has lanes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn parts(group: &[ZstdSequence]) -> [__m512i; 3] {
    const WORDS: usize = size_of::<ZstdSequence>() / size_of::<u32>();
    const { assert!(WORDS == 4) };
    let words = u64::MAX >> (64 - WORDS * group.len());
    let from = group.as_ptr().cast::<i32>();
    let quarter = |number: usize| {
        let mask = (words >> (LANES * number)) as u16;
        // SAFETY: only words of the group are read.
        unsafe { _mm512_maskz_loadu_epi32(mask, from.wrapping_add(LANES * number)) }
    };
    let [one, two, three, four] = [quarter(0), quarter(1), quarter(2), quarter(3)];
    let each = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    let part = |number: i32| {
        let each = _mm512_add_epi32(each, _mm512_set1_epi32(number));
        let low = _mm512_permutex2var_epi32(one, each, two);
        let high = _mm512_permutex2var_epi32(three, each, four);
        _mm512_mask_mov_epi64(low, 0xf0, high)
    };
    [part(0), part(1), part(2)]
}

/// Running sum of the values, including the last of `others`.
#[inline]
#[target_feature(enable = "avx512f")]
fn running_sum(values: __m512i, others: __m512i) -> __m512i {
    let none = _mm512_setzero_si512();
    let sum = _mm512_add_epi32(values, _mm512_alignr_epi32::<15>(values, none));
    let sum = _mm512_add_epi32(sum, _mm512_alignr_epi32::<14>(sum, none));
    let sum = _mm512_add_epi32(sum, _mm512_alignr_epi32::<12>(sum, none));
    let sum = _mm512_add_epi32(sum, _mm512_alignr_epi32::<8>(sum, none));
    _mm512_add_epi32(sum, others)
}

/// Returns a mask of the offsets that equal one of the three before them, as long as none does.
#[inline]
#[target_feature(enable = "avx512f")]
fn is_named(offset: __m512i, before: __m512i) -> u16 {
    _mm512_cmpeq_epi32_mask(offset, _mm512_alignr_epi32::<15>(offset, before))
        | _mm512_cmpeq_epi32_mask(offset, _mm512_alignr_epi32::<14>(offset, before))
        | _mm512_cmpeq_epi32_mask(offset, _mm512_alignr_epi32::<13>(offset, before))
}

/// Codes of lengths.
#[inline]
#[target_feature(enable = "avx512f,avx512cd")]
fn code(length: __m512i, [low, high]: [__m512i; 2], above: u32) -> CodedLengths {
    let of = |value: u32| _mm512_set1_epi32(value.cast_signed());
    let bits = _mm512_sub_epi32(of(31), _mm512_lzcnt_epi32(length));
    let large = CodedLengths {
        codes: _mm512_add_epi32(bits, of(above)),
        bits,
        extra: _mm512_andnot_si512(_mm512_sllv_epi32(of(1), bits), length),
    };
    // Of the table's two halves the first is for lengths that are their own codes.
    let half = _mm512_srli_epi32::<1>(length);
    let found = _mm512_permutex2var_epi32(low, half, high);
    let own = _mm512_cmpeq_epi32_mask(_mm512_and_si512(found, of(0xff)), of(0));
    let found = _mm512_mask_mov_epi32(found, own, length);
    let is_small = _mm512_cmplt_epu32_mask(length, of(64));
    CodedLengths::of(length, found, is_small, large)
}

impl CodedLengths {
    /// Selects table values for marked lanes, and the other values for the rest.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of(length: __m512i, found: __m512i, marked: u16, others: Self) -> Self {
        let of = |value: u32| _mm512_set1_epi32(value.cast_signed());
        let bits = _mm512_srli_epi32::<8>(found);
        let open = _mm512_sllv_epi32(of(u32::MAX), bits);
        let codes = _mm512_and_si512(found, of(0xff));
        Self {
            codes: _mm512_mask_mov_epi32(others.codes, marked, codes),
            bits: _mm512_mask_mov_epi32(others.bits, marked, bits),
            extra: _mm512_mask_andnot_epi32(others.extra, marked, open, length),
        }
    }
}

/// Eight sequences' extra bits: those of lengths, and above them the offset's.
#[inline]
#[target_feature(enable = "avx512f")]
fn extra([low, offset, shift]: [__m256i; 3]) -> __m512i {
    let [low, offset, shift] = [low, offset, shift].map(|part| _mm512_cvtepu32_epi64(part));
    _mm512_or_si512(low, _mm512_sllv_epi64(offset, shift))
}

/// Stores the lowest bytes of all lanes.
///
/// # Safety
/// There is room for them.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(to: &mut [u8], at: usize, values: __m512i) {
    debug_assert!(at + LANES <= to.len());
    // SAFETY: there is room; stores of this kind need no alignment.
    unsafe {
        _mm_storeu_si128(to.as_mut_ptr().add(at).cast(), _mm512_cvtepi32_epi8(values));
    }
}

/// Sixteen entries of a table, from a place on.
#[inline]
#[target_feature(enable = "avx512f")]
fn wide(codes: &[u16], from: usize) -> __m512i {
    let codes: &[u16] = &codes[from..from + LANES];
    // SAFETY: there are sixteen; loads of this kind need no alignment.
    _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn array(values: __m512i) -> [u32; LANES] {
    let mut array = [0; LANES];
    // SAFETY: it is as long as a vector; stores of this kind need no alignment.
    unsafe { _mm512_storeu_si512(array.as_mut_ptr().cast(), values) };
    array
}

/// The last offsets as they are in a vector of offsets: the last one is in the highest lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_of(RepeatOffsets([one, two, three]): RepeatOffsets) -> __m512i {
    let [one, two, three] = [one, two, three].map(u32::cast_signed);
    _mm512_set_epi32(one, two, three, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn recent_of(offsets: __m512i) -> RepeatOffsets {
    let [.., three, two, one] = array(offsets);
    RepeatOffsets([one, two, three])
}
