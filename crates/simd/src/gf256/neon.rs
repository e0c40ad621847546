//! The kernel for aarch64: NEON, by looking up halves of bytes, 16 at once.
//!
//! The method is that of the AVX2 kernel (Plank, Greenan and Miller, "Screaming Fast Galois Field
//! Arithmetic Using Intel SIMD Instructions", FAST 2013), with `TBL` as the instruction that looks
//! up.

use std::arch::aarch64::*;

use super::tables::HALVES;

/// Bytes in a vector.
const NEON: usize = 16;
/// A vector of zeros before one of ones: read from `n` on, a mask of the last `n` bytes.
static END_MASK: [u8; 2 * NEON] = end_mask();
/// Vectors of the target that are kept in registers while the sources pass: enough to hide the
/// latency of an addition behind that of looking up.
const KEPT: usize = 4;

const fn end_mask() -> [u8; 2 * NEON] {
    let mut mask = [0; 2 * NEON];
    let mut at = NEON;
    while at < 2 * NEON {
        mask[at] = 0xFF;
        at += 1;
    }
    mask
}

/// Adds `constant · source` to `target` for all terms.
///
/// # Safety
/// The processor has NEON, and every source is as long as the target.
#[target_feature(enable = "neon")]
pub(super) unsafe fn mul_add_many(target: &mut [u8], terms: &[(&[u8], u8)]) {
    let length = target.len();
    let mut at = 0;
    while at + KEPT * NEON <= length {
        // SAFETY: `at` and the KEPT vectors behind it lie in the target, and sources are as long.
        unsafe { add_block::<KEPT>(target, terms, at) };
        at += KEPT * NEON;
    }
    while at + NEON <= length {
        // SAFETY: `at` and the vector behind it lie in the target, and sources are as long.
        unsafe { add_block::<1>(target, terms, at) };
        at += NEON;
    }
    if at == length {
        return;
    }
    if length >= NEON {
        // SAFETY: the target and so every source has a whole vector.
        unsafe { add_end(target, terms, length - at) };
        return;
    }
    let mut padded = [0; NEON];
    padded[..length].copy_from_slice(target);
    for (source, constant) in terms {
        let mut from = [0; NEON];
        from[..length].copy_from_slice(source);
        // SAFETY: one whole vector on either side.
        unsafe { add_block::<1>(&mut padded, &[(&from, *constant)], 0) };
    }
    target.copy_from_slice(&padded[..length]);
}

/// Adds the products of all terms to the vectors of `target` that begin at `at`.
///
/// # Safety
/// The processor has NEON; `at + VECTORS * 16` is within the target and every source.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn add_block<const VECTORS: usize>(target: &mut [u8], terms: &[(&[u8], u8)], at: usize) {
    debug_assert!(at + VECTORS * NEON <= target.len());
    // SAFETY: the caller keeps `at` and the vectors behind it within the target; loads and stores
    // of this kind need no alignment.
    let place = unsafe { target.as_mut_ptr().add(at) };
    let mut sums = [vdupq_n_u8(0); VECTORS];
    for (number, sum) in sums.iter_mut().enumerate() {
        // SAFETY: as above.
        *sum = unsafe { vld1q_u8(place.add(number * NEON)) };
    }
    for (source, constant) in terms {
        debug_assert!(at + VECTORS * NEON <= source.len());
        let (low, high) = halves(*constant);
        for (number, sum) in sums.iter_mut().enumerate() {
            // SAFETY: every source is as long as the target.
            let bytes = unsafe { vld1q_u8(source.as_ptr().add(at + number * NEON)) };
            *sum = veorq_u8(*sum, product(bytes, low, high));
        }
    }
    for (number, sum) in sums.iter().enumerate() {
        // SAFETY: as for the loads.
        unsafe { vst1q_u8(place.add(number * NEON), *sum) };
    }
}

/// Adds the products of all terms to the last `rest` bytes of `target`, fewer than a vector: whole
/// vectors that end with the slices are multiplied, and what lies before the rest is masked out.
///
/// # Safety
/// The processor has NEON; the target has a vector's length or more, and every source is as long.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn add_end(target: &mut [u8], terms: &[(&[u8], u8)], rest: usize) {
    debug_assert!(rest < NEON && NEON <= target.len());
    let at = target.len() - NEON;
    let mut sum = vdupq_n_u8(0);
    for (source, constant) in terms {
        let (low, high) = halves(*constant);
        // SAFETY: every source is as long as the target, which has a vector behind `at`.
        let bytes = unsafe { vld1q_u8(source.as_ptr().add(at)) };
        sum = veorq_u8(sum, product(bytes, low, high));
    }
    // SAFETY: the mask has two vectors, and one begins at `rest`; the target has one behind `at`.
    unsafe {
        let mask = vld1q_u8(END_MASK[rest..].as_ptr());
        let place = target.as_mut_ptr().add(at);
        let before = vld1q_u8(place);
        vst1q_u8(place, veorq_u8(before, vandq_u8(sum, mask)));
    }
}

/// Multiplies every element of `target` by `constant`.
///
/// # Safety
/// The processor has NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn scale(target: &mut [u8], constant: u8) {
    let (low, high) = halves(constant);
    let (vectors, rest) = target.as_chunks_mut::<NEON>();
    let scale = |vector: &mut [u8; NEON]| {
        // SAFETY: the array is one vector.
        let bytes = unsafe { vld1q_u8(vector.as_ptr()) };
        let product = product(bytes, low, high);
        // SAFETY: the array is one vector.
        unsafe { vst1q_u8(vector.as_mut_ptr(), product) };
    };
    vectors.iter_mut().for_each(scale);
    let mut padded = [0; NEON];
    padded[..rest.len()].copy_from_slice(rest);
    scale(&mut padded);
    rest.copy_from_slice(&padded[..rest.len()]);
}

/// The products of the constant with low and with high halves.
#[target_feature(enable = "neon")]
#[inline]
fn halves(constant: u8) -> (uint8x16_t, uint8x16_t) {
    let table = HALVES[usize::from(constant)].as_ptr();
    // SAFETY: the table has 32 bytes, two of these loads.
    unsafe { (vld1q_u8(table), vld1q_u8(table.add(16))) }
}

#[target_feature(enable = "neon")]
#[inline]
fn product(bytes: uint8x16_t, low: uint8x16_t, high: uint8x16_t) -> uint8x16_t {
    let low_halves = vandq_u8(bytes, vdupq_n_u8(0x0F));
    let high_halves = vshrq_n_u8::<4>(bytes);
    veorq_u8(vqtbl1q_u8(low, low_halves), vqtbl1q_u8(high, high_halves))
}
