//! The comparison in plain code.

use super::LANES;

/// A bit for each byte, the first one lowest: whether it differs.
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
#[inline]
pub(crate) fn differing(one: &[u8; LANES], other: &[u8; LANES]) -> u16 {
    let bytes = one.iter().zip(other).enumerate();
    let bits = bytes.map(|(at, (one, other))| u16::from(one != other) << at);
    bits.fold(0, |bits, bit| bits | bit)
}
