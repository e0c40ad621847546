//! Kernels for x86-64: AVX2 by looking up halves of bytes, GFNI with AVX-512 by bit matrices.
//!
//! AVX2 splits each byte into halves and looks both up, 32 at once (`VPSHUFB`; Plank, Greenan and
//! Miller, "Screaming Fast Galois Field Arithmetic Using Intel SIMD Instructions", FAST 2013). GFNI
//! multiplies 64 bytes by an 8 × 8 bit matrix in one instruction; its affine form takes any matrix
//! and so any polynomial, while its multiplication knows that of AES only.
//!
//! ```text
//!  target  [ 4 vectors ][ 4 vectors ] … [1 vector] … [rest]
//!            ▲ in registers while every source adds its product
//! ```

use std::arch::x86_64::*;

use super::tables::{HALVES, MATRICES};

/// Bytes in a vector of AVX2.
const AVX2: usize = 32;
/// Bytes in a vector of AVX-512.
const AVX512: usize = 64;
/// A vector of zeros before one of ones: read from `n` on, a mask of the last `n` bytes.
static END_MASK: [u8; 2 * AVX2] = end_mask();
/// Vectors of the target that are kept in registers while the sources pass: enough to hide the
/// latency of an addition (1) behind that of a multiplication (3 to 5 cycles).
const KEPT: usize = 4;

const fn end_mask() -> [u8; 2 * AVX2] {
    let mut mask = [0; 2 * AVX2];
    let mut at = AVX2;
    while at < 2 * AVX2 {
        mask[at] = 0xFF;
        at += 1;
    }
    mask
}

/// Adds `constant · source` to `target` for all terms.
///
/// # Safety
/// The processor has AVX2, and every source is as long as the target.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn mul_add_many_avx2(target: &mut [u8], terms: &[(&[u8], u8)]) {
    let length = target.len();
    let mut at = 0;
    while at + KEPT * AVX2 <= length {
        // SAFETY: `at` and the KEPT vectors behind it lie in the target, and sources are as long.
        unsafe { add_block_avx2::<KEPT>(target, terms, at) };
        at += KEPT * AVX2;
    }
    while at + AVX2 <= length {
        // SAFETY: `at` and the vector behind it lie in the target, and sources are as long.
        unsafe { add_block_avx2::<1>(target, terms, at) };
        at += AVX2;
    }
    if at == length {
        return;
    }
    if length >= AVX2 {
        // SAFETY: the target and so every source has a whole vector.
        unsafe { add_end_avx2(target, terms, length - at) };
        return;
    }
    let mut padded = [0; AVX2];
    padded[..length].copy_from_slice(target);
    for (source, constant) in terms {
        let mut from = [0; AVX2];
        from[..length].copy_from_slice(source);
        // SAFETY: one whole vector on either side.
        unsafe { add_block_avx2::<1>(&mut padded, &[(&from, *constant)], 0) };
    }
    target.copy_from_slice(&padded[..length]);
}

/// Adds the products of all terms to the vectors of `target` that begin at `at`.
///
/// # Safety
/// The processor has AVX2; `at + VECTORS * 32` is within the target and every source.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn add_block_avx2<const VECTORS: usize>(
    target: &mut [u8],
    terms: &[(&[u8], u8)],
    at: usize,
) {
    debug_assert!(at + VECTORS * AVX2 <= target.len());
    // SAFETY: the caller keeps `at` and the vectors behind it within the target; loads and stores
    // of this kind need no alignment.
    let place = unsafe { target.as_mut_ptr().add(at) };
    let mut sums = [_mm256_setzero_si256(); VECTORS];
    for (number, sum) in sums.iter_mut().enumerate() {
        // SAFETY: as above.
        *sum = unsafe { _mm256_loadu_si256(place.add(number * AVX2).cast()) };
    }
    for (source, constant) in terms {
        debug_assert!(at + VECTORS * AVX2 <= source.len());
        let (low, high) = halves_avx2(*constant);
        for (number, sum) in sums.iter_mut().enumerate() {
            // SAFETY: every source is as long as the target.
            let bytes =
                unsafe { _mm256_loadu_si256(source.as_ptr().add(at + number * AVX2).cast()) };
            *sum = _mm256_xor_si256(*sum, product_avx2(bytes, low, high));
        }
    }
    for (number, sum) in sums.iter().enumerate() {
        // SAFETY: as for the loads.
        unsafe { _mm256_storeu_si256(place.add(number * AVX2).cast(), *sum) };
    }
}

/// Adds the products of all terms to the last `rest` bytes of `target`, fewer than a vector: whole
/// vectors that end with the slices are multiplied, and what lies before the rest is masked out.
///
/// # Safety
/// The processor has AVX2; the target has a vector's length or more, and every source is as long.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn add_end_avx2(target: &mut [u8], terms: &[(&[u8], u8)], rest: usize) {
    debug_assert!(rest < AVX2 && AVX2 <= target.len());
    let at = target.len() - AVX2;
    let mut sum = _mm256_setzero_si256();
    for (source, constant) in terms {
        let (low, high) = halves_avx2(*constant);
        // SAFETY: every source is as long as the target, which has a vector behind `at`.
        let bytes = unsafe { _mm256_loadu_si256(source.as_ptr().add(at).cast()) };
        sum = _mm256_xor_si256(sum, product_avx2(bytes, low, high));
    }
    // SAFETY: the mask has two vectors, and one begins at `rest`; the target has one behind `at`.
    unsafe {
        let mask = _mm256_loadu_si256(END_MASK[rest..].as_ptr().cast());
        let place = target.as_mut_ptr().add(at);
        let before = _mm256_loadu_si256(place.cast());
        _mm256_storeu_si256(
            place.cast(),
            _mm256_xor_si256(before, _mm256_and_si256(sum, mask)),
        );
    }
}

/// Multiplies every element of `target` by `constant`.
///
/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn scale_avx2(target: &mut [u8], constant: u8) {
    let (low, high) = halves_avx2(constant);
    let (vectors, rest) = target.as_chunks_mut::<AVX2>();
    let scale = |vector: &mut [u8; AVX2]| {
        // SAFETY: the array is one vector.
        let bytes = unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) };
        let product = product_avx2(bytes, low, high);
        // SAFETY: the array is one vector.
        unsafe { _mm256_storeu_si256(vector.as_mut_ptr().cast(), product) };
    };
    vectors.iter_mut().for_each(scale);
    let mut padded = [0; AVX2];
    padded[..rest.len()].copy_from_slice(rest);
    scale(&mut padded);
    rest.copy_from_slice(&padded[..rest.len()]);
}

/// The products of the constant with low and with high halves, in both lanes of a vector.
#[target_feature(enable = "avx2")]
#[inline]
fn halves_avx2(constant: u8) -> (__m256i, __m256i) {
    let table = HALVES[usize::from(constant)].as_ptr();
    // SAFETY: the table has 32 bytes, two of these loads.
    let (low, high) = unsafe {
        (
            _mm_loadu_si128(table.cast()),
            _mm_loadu_si128(table.add(16).cast()),
        )
    };
    (
        _mm256_broadcastsi128_si256(low),
        _mm256_broadcastsi128_si256(high),
    )
}

#[target_feature(enable = "avx2")]
#[inline]
fn product_avx2(bytes: __m256i, low: __m256i, high: __m256i) -> __m256i {
    let half = _mm256_set1_epi8(0x0F);
    let low_halves = _mm256_and_si256(bytes, half);
    let high_halves = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), half);
    _mm256_xor_si256(
        _mm256_shuffle_epi8(low, low_halves),
        _mm256_shuffle_epi8(high, high_halves),
    )
}

/// Adds `constant · source` to `target` for all terms.
///
/// # Safety
/// The processor has GFNI, AVX-512 F and BW, and every source is as long as the target.
#[target_feature(enable = "gfni,avx512f,avx512bw")]
pub(super) unsafe fn mul_add_many_gfni(target: &mut [u8], terms: &[(&[u8], u8)]) {
    let length = target.len();
    let mut at = 0;
    while at + KEPT * AVX512 <= length {
        // SAFETY: `at` and the KEPT vectors behind it lie in the target, and sources are as long.
        unsafe { add_block_gfni::<KEPT>(target, terms, at) };
        at += KEPT * AVX512;
    }
    while at < length {
        let mask = first_bytes(length - at);
        // SAFETY: the masked bytes behind `at` lie in the target; others are neither read nor
        // written (Intel SDM, "Fault Suppression").
        let mut sum = unsafe { _mm512_maskz_loadu_epi8(mask, target.as_ptr().add(at).cast()) };
        for (source, constant) in terms {
            // SAFETY: every source is as long as the target.
            let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, source.as_ptr().add(at).cast()) };
            sum = _mm512_xor_si512(sum, product_gfni(bytes, *constant));
        }
        // SAFETY: as for the load.
        unsafe { _mm512_mask_storeu_epi8(target.as_mut_ptr().add(at).cast(), mask, sum) };
        at += AVX512;
    }
}

/// Adds the products of all terms to the vectors of `target` that begin at `at`.
///
/// # Safety
/// The processor has GFNI, AVX-512 F and BW; `at + VECTORS * 64` is within the target and every
/// source.
#[target_feature(enable = "gfni,avx512f,avx512bw")]
#[inline]
unsafe fn add_block_gfni<const VECTORS: usize>(
    target: &mut [u8],
    terms: &[(&[u8], u8)],
    at: usize,
) {
    debug_assert!(at + VECTORS * AVX512 <= target.len());
    // SAFETY: the caller keeps `at` and the vectors behind it within the target; loads and stores
    // of this kind need no alignment.
    let place = unsafe { target.as_mut_ptr().add(at) };
    let mut sums = [_mm512_setzero_si512(); VECTORS];
    for (number, sum) in sums.iter_mut().enumerate() {
        // SAFETY: as above.
        *sum = unsafe { _mm512_loadu_si512(place.add(number * AVX512).cast()) };
    }
    for (source, constant) in terms {
        debug_assert!(at + VECTORS * AVX512 <= source.len());
        for (number, sum) in sums.iter_mut().enumerate() {
            // SAFETY: every source is as long as the target.
            let bytes =
                unsafe { _mm512_loadu_si512(source.as_ptr().add(at + number * AVX512).cast()) };
            *sum = _mm512_xor_si512(*sum, product_gfni(bytes, *constant));
        }
    }
    for (number, sum) in sums.iter().enumerate() {
        // SAFETY: as for the loads.
        unsafe { _mm512_storeu_si512(place.add(number * AVX512).cast(), *sum) };
    }
}

/// Multiplies every element of `target` by `constant`.
///
/// # Safety
/// The processor has GFNI, AVX-512 F and BW.
#[target_feature(enable = "gfni,avx512f,avx512bw")]
pub(super) unsafe fn scale_gfni(target: &mut [u8], constant: u8) {
    for vector in target.chunks_mut(AVX512) {
        let mask = first_bytes(vector.len());
        // SAFETY: the masked bytes are those of the piece; others are neither read nor written.
        let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, vector.as_ptr().cast()) };
        let product = product_gfni(bytes, constant);
        // SAFETY: as for the load.
        unsafe { _mm512_mask_storeu_epi8(vector.as_mut_ptr().cast(), mask, product) };
    }
}

#[target_feature(enable = "gfni,avx512f,avx512bw")]
#[inline]
fn product_gfni(bytes: __m512i, constant: u8) -> __m512i {
    let matrix = _mm512_set1_epi64(MATRICES[usize::from(constant)].cast_signed());
    _mm512_gf2p8affine_epi64_epi8::<0>(bytes, matrix)
}

/// A mask of the first `count` bytes of a vector; of all when there are more.
fn first_bytes(count: usize) -> __mmask64 {
    if count >= AVX512 {
        return u64::MAX;
    }
    (1 << count) - 1
}
