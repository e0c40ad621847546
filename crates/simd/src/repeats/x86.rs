//! The steps with AVX-512: eight or sixteen places at a time.

use std::arch::x86_64::*;

use super::batch::{
    BatchParts, ListedPlaces, MOST, ROOM, RepeatMatches, RepeatReach, TableLookups,
};
use super::{
    AHEAD, BEHIND, COMPARED, FURTHER, LEAST_AGREEING, LEAST_BEYOND, LEAST_GAIN, LONG_LOG,
    LONGEST_LOG, MULTIPLIER, NEAR, OTHER_MULTIPLIER, PLACE, PlaceTables, REST, SHORT_LOG, WORD,
};

/// A value exists only where the processor has AVX-512 F, BW, CD, DQ and VL, BMI1, BMI2 and POPCNT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RepeatsAvx512 {
    /// True if the processor has VBMI2 as well, which packs bytes.
    packs_bytes: bool,
}

impl RepeatsAvx512 {
    /// Asks the processor.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt");
        let packs_bytes = is_x86_feature_detected!("avx512vbmi2");
        has.then_some(Self { packs_bytes })
    }

    /// Disables VBMI2, as on older processors.
    pub(super) fn without_packed_bytes(self) -> Self {
        Self { packs_bytes: false }
    }

    /// All steps.
    pub(super) fn find(
        self,
        parts: BatchParts<'_>,
        tables: &mut PlaceTables,
        history: &[u8],
        marks: &[u64],
        base: usize,
    ) {
        // SAFETY: the processor has the instructions, or there would be no value of this type.
        unsafe { find(self, parts, tables, history, marks, base) }
    }
}

/// All steps.
///
/// # Safety
/// The processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
unsafe fn find(
    instructions: RepeatsAvx512,
    parts: BatchParts<'_>,
    tables: &mut PlaceTables,
    history: &[u8],
    marks: &[u64],
    base: usize,
) {
    let BatchParts {
        now,
        before,
        short,
        long,
        longest,
        differing,
        reach,
        repeats,
    } = parts;
    now.count = match instructions.packs_bytes {
        // SAFETY: the processor has VBMI2.
        true => unsafe { list_by_bytes(marks, base as u32, &mut now.places) },
        false => list(marks, base as u32, &mut now.places),
    };
    check(now, history);
    // SAFETY: all places were checked, and so many bytes are there.
    unsafe { hash(now, history, short, long, longest) };
    let count = now.count;
    // SAFETY: the slots are `LOG` highest bits of something, so they are in the tables, which have
    // as many entries.
    unsafe {
        for place in 0..count {
            exchange(short, &mut tables.short, place);
            exchange(long, &mut tables.long, place);
            exchange(longest, &mut tables.longest, place);
        }
    }
    choose(now, short, long, longest);
    for candidate in &now.candidates[..count] {
        let byte = history.as_ptr().wrapping_add(*candidate as usize - BEHIND);
        // They may be in two lines of the cache.
        _mm_prefetch::<_MM_HINT_T0>(byte.cast());
        _mm_prefetch::<_MM_HINT_T0>(byte.wrapping_add(COMPARED - 1).cast());
    }
    check(before, history);
    check_candidates(before, history);
    // SAFETY: all places and candidates were checked, and so many bytes are before and behind them.
    unsafe { compare(before, history, differing) };
    gather(before, differing, reach, repeats);
    thin(repeats);
    if now.count == 0 {
        *reach = RepeatReach::default();
    }
}

/// Lists the places that are marked, from `base` on; says how many there are.
#[target_feature(enable = "avx512f,popcnt")]
fn list(marks: &[u64], base: u32, places: &mut [u32; ROOM]) -> usize {
    let mut count = 0;
    let steps = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (base, marks) in (base..).step_by(WORD).zip(marks) {
        for part in [0, 16, 32, 48] {
            let here = (marks >> part) as u16;
            let at = _mm512_add_epi32(steps, _mm512_set1_epi32((base + part).cast_signed()));
            let listed = _mm512_maskz_compress_epi32(here, at);
            store_places(places, count, listed);
            count += here.count_ones() as usize;
        }
    }
    assert!(count <= MOST, "marks stand side by side");
    count
}

/// Lists places by packing the places of a word as bytes, all at once.
#[target_feature(enable = "avx512f,avx512vbmi2,popcnt")]
fn list_by_bytes(marks: &[u64], base: u32, places: &mut [u32; ROOM]) -> usize {
    const BYTES: [u8; WORD] = {
        let mut bytes = [0; WORD];
        let mut at = 0;
        while at < WORD {
            bytes[at] = at as u8;
            at += 1;
        }
        bytes
    };
    let mut count = 0;
    // SAFETY: they are as long as a vector; loads of this kind need no alignment.
    let bytes = unsafe { _mm512_loadu_si512(BYTES.as_ptr().cast()) };
    for (base, marks) in (base..).step_by(WORD).zip(marks) {
        let packed = _mm512_maskz_compress_epi8(*marks, bytes);
        let base = _mm512_set1_epi32(base.cast_signed());
        let first = _mm512_castsi512_si128(packed);
        store_places(
            places,
            count,
            _mm512_add_epi32(_mm512_cvtepu8_epi32(first), base),
        );
        let here = marks.count_ones() as usize;
        if here > 16 {
            let second = _mm512_extracti32x4_epi32::<1>(packed);
            store_places(
                places,
                count + 16,
                _mm512_add_epi32(_mm512_cvtepu8_epi32(second), base),
            );
        }
        count += here;
    }
    assert!(count <= MOST, "marks stand side by side");
    count
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_places(places: &mut [u32; ROOM], from: usize, values: __m512i) {
    let room: &mut [u32] = &mut places[from..from + 16];
    // SAFETY: the room is as long as a vector; stores of this kind need no alignment.
    unsafe { _mm512_storeu_si512(room.as_mut_ptr().cast(), values) };
}

/// Makes sure that there are bytes enough before and behind each place.
fn check(listed: &ListedPlaces, history: &[u8]) {
    let places = &listed.places[..listed.count];
    // Each is greater than the one before.
    for at in [places.first(), places.last()].into_iter().flatten() {
        check_place(*at, history);
    }
}

fn check_place(at: u32, history: &[u8]) {
    let at = at as usize;
    let is_there = at >= BEHIND && at + AHEAD <= history.len();
    assert!(is_there, "as many bytes are there");
}

/// Makes sure that there are bytes enough behind each candidate; before it there are.
fn check_candidates(listed: &ListedPlaces, history: &[u8]) {
    let candidates = &listed.candidates[..listed.count];
    let (least, most) = candidates
        .iter()
        .fold((u32::MAX, 0), |(least, most), candidate| {
            (least.min(*candidate), most.max(*candidate))
        });
    if listed.count > 0 {
        check_place(least, history);
        check_place(most, history);
    }
}

/// Makes slots and entries of the bytes at each place.
///
/// # Safety
/// From each place on there are sixteen bytes.
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
unsafe fn hash(
    listed: &ListedPlaces,
    history: &[u8],
    short: &mut TableLookups,
    long: &mut TableLookups,
    longest: &mut TableLookups,
) {
    let multiplier = _mm512_set1_epi64(MULTIPLIER.cast_signed());
    let other_multiplier = _mm512_set1_epi64(OTHER_MULTIPLIER.cast_signed());
    let low_multiplier = _mm256_set1_epi32(MULTIPLIER as i32);
    for place in (0..listed.count).step_by(8) {
        let left = (listed.count - place).min(8);
        let mask = u8::MAX >> (8 - left);
        let at: &[u32] = &listed.places[place..place + 8];
        let zeros = _mm512_setzero_si512();
        // SAFETY: eight places are read, and the bytes at those that count; none of these needs
        // alignment.
        let (at, front, back) = unsafe {
            let at = _mm256_loadu_si256(at.as_ptr().cast());
            let bytes = history.as_ptr();
            let front = _mm512_mask_i32gather_epi64::<1>(zeros, mask, at, bytes.cast());
            let behind = bytes.wrapping_add(8);
            let back = _mm512_mask_i32gather_epi64::<1>(zeros, mask, at, behind.cast());
            (at, front, back)
        };
        let high = |product| _mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(product));
        let hash = _mm256_mullo_epi32(_mm512_cvtepi64_epi32(front), low_multiplier);
        write::<SHORT_LOG>(short, place, hash, at);
        let hash = high(_mm512_mullo_epi64(front, other_multiplier));
        write::<LONG_LOG>(long, place, hash, at);
        // Of the lower halves.
        let back = _mm512_mul_epu32(back, multiplier);
        let both = _mm512_add_epi64(front, back);
        let hash = high(_mm512_mullo_epi64(both, other_multiplier));
        write::<LONGEST_LOG>(longest, place, hash, at);
    }
}

/// Writes the entries of a vector. The highest bits of each 64-bit hash's upper half choose the
/// slot, and the next ones stand above the place.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn write<const LOG: u32>(looked: &mut TableLookups, place: usize, hash: __m256i, at: __m256i) {
    let slots: &mut [u32] = &mut looked.slots[place..place + 8];
    let entries: &mut [u32] = &mut looked.entries[place..place + 8];
    let slot = _mm256_srlv_epi32(hash, _mm256_set1_epi32((u32::BITS - LOG).cast_signed()));
    let tag = _mm256_sllv_epi32(hash, _mm256_set1_epi32(LOG.cast_signed()));
    let tag = _mm256_andnot_si256(_mm256_set1_epi32(PLACE.cast_signed()), tag);
    // SAFETY: both are as long as a vector; stores of this kind need no alignment.
    unsafe {
        _mm256_storeu_si256(slots.as_mut_ptr().cast(), slot);
        _mm256_storeu_si256(entries.as_mut_ptr().cast(), _mm256_or_si256(tag, at));
    }
}

/// Writes a place into a table and returns the previous one.
///
/// # Safety
/// The place exists, and its slot is in the table.
#[inline(always)]
unsafe fn exchange<const SIZE: usize>(
    looked: &mut TableLookups,
    table: &mut [u32; SIZE],
    place: usize,
) {
    // SAFETY: as the caller says.
    unsafe {
        let entry = table.get_unchecked_mut(*looked.slots.get_unchecked(place) as usize);
        let before = std::mem::replace(entry, *looked.entries.get_unchecked(place));
        *looked.before.get_unchecked_mut(place) = before;
    }
}

/// Takes the candidate of the longest bytes, or the least that there may be for none.
#[target_feature(enable = "avx512f")]
fn choose(
    listed: &mut ListedPlaces,
    short: &TableLookups,
    long: &TableLookups,
    longest: &TableLookups,
) {
    let mask = _mm512_set1_epi32(PLACE.cast_signed());
    let least = _mm512_set1_epi32(BEHIND as i32);
    for place in (0..listed.count).step_by(16) {
        let mut best = _mm512_setzero_si512();
        for looked in [short, long, longest] {
            let before: &[u32] = &looked.before[place..place + 16];
            let entries: &[u32] = &looked.entries[place..place + 16];
            // SAFETY: both are as long as a vector; loads of this kind need no alignment.
            let (before, entries) = unsafe {
                let before = _mm512_loadu_si512(before.as_ptr().cast());
                (before, _mm512_loadu_si512(entries.as_ptr().cast()))
            };
            // Whether it was of the same bytes, as far as can be known.
            let same = _mm512_cmple_epu32_mask(_mm512_xor_si512(before, entries), mask);
            best = _mm512_mask_mov_epi32(best, same, before);
        }
        let best = _mm512_max_epu32(_mm512_and_si512(best, mask), least);
        let candidates: &mut [u32] = &mut listed.candidates[place..place + 16];
        // SAFETY: it is as long as a vector; stores of this kind need no alignment.
        unsafe { _mm512_storeu_si512(candidates.as_mut_ptr().cast(), best) };
    }
}

/// Compares the bytes at each place and its candidate.
///
/// # Safety
/// There are bytes enough before and behind each of them.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn compare(listed: &ListedPlaces, history: &[u8], differing: &mut [u64; ROOM]) {
    const MASK: u64 = (1 << COMPARED) - 1;
    let pairs = listed.places[..listed.count].iter().zip(&listed.candidates);
    for ((at, candidate), differing) in pairs.zip(differing) {
        let [one, other] = [at, candidate].map(|at| {
            let from = history.as_ptr().wrapping_add(*at as usize - BEHIND);
            // SAFETY: these bytes are there; no others are read, and loads of this kind need no alignment.
            unsafe { _mm512_maskz_loadu_epi8(MASK, from.cast()) }
        });
        *differing = _mm512_cmpneq_epi8_mask(one, other);
    }
}

/// Gathers the places at which enough bytes agree for a sequence.
#[target_feature(enable = "avx512f,avx512cd,popcnt")]
fn gather(
    listed: &ListedPlaces,
    differing: &[u64; ROOM],
    reach: &mut RepeatReach,
    repeats: &mut RepeatMatches,
) {
    const AHEAD_BITS: u32 = BEHIND as u32;
    let of = |value: u32| _mm512_set1_epi32(value.cast_signed());
    let lower = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    let none = _mm512_setzero_si512();
    let (mut last_offset, mut last_ahead, mut last_end) = (none, none, none);
    // The last of sixteen counts.
    let [mut most, mut least] = [reach.most, reach.least].map(of);
    let mut count = 0;
    for place in (0..listed.count).step_by(16) {
        let bits: &[u64] = &differing[place..place + 16];
        let at = load(&listed.places, place);
        let candidates = load(&listed.candidates, place);
        // SAFETY: there are as many as in two vectors; loads of this kind need no alignment.
        let (bits, more_bits) = unsafe {
            let bits = bits.as_ptr();
            (
                _mm512_loadu_si512(bits.cast()),
                _mm512_loadu_si512(bits.wrapping_add(8).cast()),
            )
        };
        // Of 48 bits 32 are for the bytes ahead, of which the lowest counts: the zeros below it become ones.
        let ahead = _mm512_permutex2var_epi32(
            _mm512_srli_epi64::<AHEAD_BITS>(bits),
            lower,
            _mm512_srli_epi64::<AHEAD_BITS>(more_bits),
        );
        let below = _mm512_andnot_si512(ahead, _mm512_sub_epi32(ahead, of(1)));
        let ahead = _mm512_sub_epi32(of(AHEAD as u32), _mm512_lzcnt_epi32(below));
        // The lowest 16 are for those before it, of which the highest counts.
        let behind = _mm512_permutex2var_epi32(bits, lower, more_bits);
        let behind = _mm512_slli_epi32::<{ 32 - BEHIND as u32 }>(behind);
        let behind = _mm512_lzcnt_epi32(_mm512_or_si512(behind, of(1 << (31 - BEHIND))));
        let offset = _mm512_sub_epi32(at, candidates);
        let end = _mm512_add_epi32(at, ahead);
        // Whether it is what is left of the one before.
        let offset_before = _mm512_alignr_epi32::<15>(offset, last_offset);
        let ahead_before = _mm512_alignr_epi32::<15>(ahead, last_ahead);
        let end_before = _mm512_alignr_epi32::<15>(end, last_end);
        (last_offset, last_ahead, last_end) = (offset, ahead, end);
        let rest = _mm512_cmpeq_epi32_mask(offset, offset_before)
            & _mm512_cmpeq_epi32_mask(end, end_before)
            & _mm512_cmple_epi32_mask(ahead_before, of(REST));
        let mut gain = of(LEAST_GAIN);
        for (far, more) in FURTHER {
            let is_far = _mm512_cmpge_epu32_mask(offset, of(far));
            gain = _mm512_mask_add_epi32(gain, is_far, gain, of(more));
        }
        let found = _mm512_cmpge_epi32_mask(ahead, of(LEAST_AGREEING))
            & _mm512_cmpgt_epi32_mask(candidates, of(BEHIND as u32))
            & _mm512_cmpge_epi32_mask(_mm512_add_epi32(ahead, behind), gain)
            & !rest
            & first_lanes(listed.count - place);
        // It becomes a sequence if it ends there at most: so far the sequence before it may reach.
        let beyond = _mm512_sub_epi32(_mm512_add_epi32(end, of(1)), gain);
        let beyond = _mm512_min_epi32(beyond, _mm512_add_epi32(at, of(NEAR - LEAST_BEYOND)));
        let most_before = most;
        most = running_most(_mm512_maskz_mov_epi32(found, end), most_before);
        let most_before = _mm512_alignr_epi32::<15>(most, most_before);
        let is_certain = _mm512_cmpgt_epi32_mask(beyond, most_before);
        let certain = _mm512_mask_mov_epi32(beyond, is_certain, end);
        let least_before = least;
        least = running_most(_mm512_maskz_mov_epi32(found, certain), least_before);
        let least_before = _mm512_alignr_epi32::<15>(least, least_before);
        let found = found & _mm512_cmpgt_epi32_mask(beyond, least_before);
        store(&mut repeats.at, count, found, at);
        store(&mut repeats.offset, count, found, offset);
        store(&mut repeats.ahead, count, found, ahead);
        store(&mut repeats.behind, count, found, behind);
        count += found.count_ones() as usize;
    }
    repeats.count = count;
    let last = |reached| {
        let highest = _mm512_extracti32x4_epi32::<3>(reached);
        (_mm_cvtsi128_si32(_mm_shuffle_epi32::<3>(highest))).cast_unsigned()
    };
    (reach.most, reach.least) = (last(most), last(least));
}

/// Running maximum of the values, including the last of `others`.
#[inline]
#[target_feature(enable = "avx512f")]
fn running_most(values: __m512i, others: __m512i) -> __m512i {
    let none = _mm512_setzero_si512();
    let most = _mm512_max_epi32(values, _mm512_alignr_epi32::<15>(values, none));
    let most = _mm512_max_epi32(most, _mm512_alignr_epi32::<14>(most, none));
    let most = _mm512_max_epi32(most, _mm512_alignr_epi32::<12>(most, none));
    let most = _mm512_max_epi32(most, _mm512_alignr_epi32::<8>(most, none));
    let last = _mm512_permutexvar_epi32(_mm512_set1_epi32(15), others);
    _mm512_max_epi32(most, last)
}

/// Leaves out what the next one covers from its beginning on.
#[target_feature(enable = "avx512f,popcnt")]
fn thin(repeats: &mut RepeatMatches) {
    let mut count = 0;
    for place in (0..repeats.count).step_by(16) {
        let left = repeats.count - place;
        let first = |place| {
            let at = load(&repeats.at, place);
            _mm512_sub_epi32(at, load(&repeats.behind, place))
        };
        let is_covered = _mm512_cmple_epi32_mask(first(place + 1), first(place));
        let stays = first_lanes(left) & !(is_covered & first_lanes(left - 1));
        for part in [
            &mut repeats.at,
            &mut repeats.offset,
            &mut repeats.ahead,
            &mut repeats.behind,
        ] {
            let values = load(part, place);
            store(part, count, stays, values);
        }
        count += stays.count_ones() as usize;
    }
    repeats.count = count;
}

/// Returns a mask of the first `count` lanes of sixteen.
fn first_lanes(count: usize) -> u16 {
    !u16::MAX.unbounded_shl(count.min(16) as u32)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(part: &[u32; ROOM], place: usize) -> __m512i {
    let values: &[u32] = &part[place..place + 16];
    // SAFETY: there are as many as in a vector; loads of this kind need no alignment.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

/// Packs those that are marked, from a place on.
#[inline]
#[target_feature(enable = "avx512f")]
fn store(part: &mut [u32; ROOM], place: usize, marked: u16, values: __m512i) {
    let room: &mut [u32] = &mut part[place..place + 16];
    let packed = _mm512_maskz_compress_epi32(marked, values);
    // SAFETY: the room is as long as a vector; stores of this kind need no alignment.
    unsafe { _mm512_storeu_si512(room.as_mut_ptr().cast(), packed) };
}
