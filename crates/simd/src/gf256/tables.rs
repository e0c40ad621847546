//! Tables that follow from the polynomial, computed when the program is compiled.
//!
//! Logarithms and powers serve products of single elements. For slices there is one small table
//! for each constant c: the products of c with the 16 low and 16 high halves of a byte (for
//! instructions that look up 16 bytes at once), and the 8 × 8 bit matrix of the map x ↦ c·x (for
//! GFNI, whose affine instruction takes such a matrix).

use super::{POLYNOMIAL, multiply_bitwise};

/// Powers of the generator 2, long enough to take the sum of two logarithms (at most 508).
pub(super) static POWERS: [u8; 510] = powers();

/// Logarithms to the base 2; that of 0, which has none, is never asked for.
pub(super) static LOGARITHMS: [u8; 256] = logarithms();

/// For each constant: its products with 0x00…0x0F, then with 0x00, 0x10…0xF0.
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code)
)]
pub(super) static HALVES: [[u8; 32]; 256] = halves();

/// For each constant: the bit matrix that multiplies by it, as `GF2P8AFFINEQB` wants it.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) static MATRICES: [u64; 256] = matrices();

const fn powers() -> [u8; 510] {
    let mut powers = [0; 510];
    let mut element = 1_u16;
    let mut at = 0;
    while at < powers.len() {
        powers[at] = element as u8;
        element <<= 1;
        if element & 0x100 != 0 {
            element ^= POLYNOMIAL;
        }
        at += 1;
    }
    powers
}

const fn logarithms() -> [u8; 256] {
    let powers = powers();
    let mut logarithms = [0; 256];
    let mut at = 0;
    while at < 255 {
        logarithms[powers[at] as usize] = at as u8;
        at += 1;
    }
    logarithms
}

const fn halves() -> [[u8; 32]; 256] {
    let mut tables = [[0; 32]; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut half = 0;
        while half < 16 {
            tables[constant][half] = multiply_bitwise(constant as u8, half as u8);
            tables[constant][16 + half] = multiply_bitwise(constant as u8, (half << 4) as u8);
            half += 1;
        }
        constant += 1;
    }
    tables
}

/// Bit i of c·x is the sum over j of bit j of x times bit i of c·2ʲ; the instruction takes the row
/// for bit i in byte 7 − i of its matrix (Intel SDM, GF2P8AFFINEQB, `affine_byte`).
const fn matrices() -> [u64; 256] {
    let mut matrices = [0; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut column = 0;
        while column < 8 {
            let image = multiply_bitwise(constant as u8, 1 << column);
            let mut row = 0;
            while row < 8 {
                if image >> row & 1 != 0 {
                    matrices[constant] |= 1 << ((7 - row) * 8 + column);
                }
                row += 1;
            }
            column += 1;
        }
        constant += 1;
    }
    matrices
}
