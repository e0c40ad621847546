//! Arithmetic in the field of 256 elements: single ones, and whole slices by a [`Gf256Kernel`].
//!
//! An element is a byte, read as a polynomial over GF(2); addition is XOR, multiplication is that
//! of polynomials modulo x⁸ + x⁴ + x³ + x² + 1 (0x11D), the field of RFC 5510 §8.1 (Finite Field)
//! and RFC 8681 §3.7.1 (Finite Field Definitions). docs/decisions/0016 says why not the one of AES.
//!
//! [`multiply_bitwise`] is the definition, [`multiply`] the same by a table of logarithms, for
//! single elements. Slices go through a [`Gf256Kernel`], which multiplies by a constant: that is a linear
//! map of 8 bits, so each kernel carries a small table for every constant (`tables.rs`).

mod kernel;
#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code)]
mod neon;
mod portable;
mod tables;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

pub use kernel::Gf256Kernel;

/// The polynomial that products are reduced by: x⁸ + x⁴ + x³ + x² + 1, in which x itself (2)
/// generates all elements but 0.
pub const POLYNOMIAL: u16 = 0x11D;

/// The product of two elements by the definition: shift and add, one bit after the other.
#[must_use]
pub const fn multiply_bitwise(one: u8, other: u8) -> u8 {
    let mut product = 0;
    let mut shifted = one as u16;
    let mut left = other;
    while left != 0 {
        if left & 1 != 0 {
            product ^= shifted;
        }
        shifted <<= 1;
        if shifted & 0x100 != 0 {
            shifted ^= POLYNOMIAL;
        }
        left >>= 1;
    }
    product as u8
}

/// The product of two elements.
#[must_use]
pub const fn multiply(one: u8, other: u8) -> u8 {
    if one == 0 || other == 0 {
        return 0;
    }
    let sum =
        tables::LOGARITHMS[one as usize] as usize + tables::LOGARITHMS[other as usize] as usize;
    tables::POWERS[sum]
}

/// The element whose product with `element` is 1.
///
/// # Panics
/// When `element` is 0, which has none.
#[must_use]
pub const fn inverse(element: u8) -> u8 {
    assert!(element != 0, "0 has no inverse");
    tables::POWERS[255 - tables::LOGARITHMS[element as usize] as usize]
}
