//! The choice in plain code, which compilers turn into vector instructions.

use super::{CHOOSING, WORD, is_chosen};

/// Bytes that a word of marks is made from.
pub(super) const WORD_BYTES: usize = WORD + CHOOSING - 1;

/// The marks of 64 positions.
pub(super) fn mark_word(bytes: &[u8; WORD_BYTES]) -> u64 {
    let mut chosen = [0_u8; WORD];
    for (index, chosen) in chosen.iter_mut().enumerate() {
        *chosen = u8::from(is_chosen([
            bytes[index],
            bytes[index + 1],
            bytes[index + 2],
            bytes[index + 3],
        ]));
    }
    // Eight bytes of zero or one become eight bits: the product brings each to the highest byte.
    let (words, _) = chosen.as_chunks();
    let bits = words.iter().enumerate().map(|(index, word)| {
        let gathered = u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        gathered << (8 * index)
    });
    bits.fold(0, |marks, bits| marks | bits)
}
