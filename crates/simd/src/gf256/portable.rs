//! The kernel for processors without known instructions: eight bytes in a 64-bit word.
//!
//! Multiplying by a constant is a sum of doublings, one for each bit of the constant. All lanes of
//! a word are doubled at once: shift left, and add 0x1D where the top bit of a lane fell out. There
//! is no table, so nothing depends on the data but the data, and compilers turn the loop into
//! vectors of 16 bytes.

/// 0x1D in the lanes whose top bit falls out when they are doubled.
const REDUCTION: u64 = (super::POLYNOMIAL & 0xFF) as u64;
const TOP_BITS: u64 = 0x8080_8080_8080_8080;
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

/// `target[i] ^= constant · source[i]`; both of one length.
pub(super) fn mul_add(target: &mut [u8], source: &[u8], constant: u8) {
    let masks = masks(constant);
    let (words, tail) = target.as_chunks_mut::<8>();
    let (source_words, source_tail) = source.as_chunks::<8>();
    for (word, from) in words.iter_mut().zip(source_words) {
        let sum = u64::from_ne_bytes(*word) ^ product(u64::from_ne_bytes(*from), &masks);
        *word = sum.to_ne_bytes();
    }
    for (byte, from) in tail.iter_mut().zip(source_tail) {
        *byte ^= product(u64::from(*from), &masks) as u8;
    }
}

/// `target[i] = constant · target[i]`.
pub(super) fn scale(target: &mut [u8], constant: u8) {
    let masks = masks(constant);
    let (words, tail) = target.as_chunks_mut::<8>();
    for word in words {
        *word = product(u64::from_ne_bytes(*word), &masks).to_ne_bytes();
    }
    for byte in tail {
        *byte = product(u64::from(*byte), &masks) as u8;
    }
}

/// For each bit of the constant, all ones or all zeros.
fn masks(constant: u8) -> [u64; 8] {
    std::array::from_fn(|bit| u64::from(constant >> bit & 1).wrapping_neg())
}

fn product(lanes: u64, masks: &[u64; 8]) -> u64 {
    let mut doubled = lanes;
    let mut sum = 0;
    for mask in masks {
        sum ^= doubled & mask;
        let fallen = (doubled & TOP_BITS) >> 7;
        doubled = (doubled & !TOP_BITS) << 1;
        debug_assert_eq!(fallen & !LOW_BITS, 0, "one bit a lane");
        doubled ^= fallen * REDUCTION;
    }
    sum
}
