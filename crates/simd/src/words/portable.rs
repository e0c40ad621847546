//! The marks in plain code, which compilers turn into vector instructions.

use super::{WORD, is_word};

/// The marks of bytes that are part of a word.
pub(super) fn word_bytes(bytes: &[u8; WORD]) -> u64 {
    let within = bytes.map(|byte| u8::from(is_word(byte)));
    // Eight bytes of zero or one become eight bits: the product brings each to the highest byte.
    let (words, _) = within.as_chunks();
    let bits = words.iter().enumerate().map(|(index, word)| {
        let gathered = u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        gathered << (8 * index)
    });
    bits.fold(0, |marks, bits| marks | bits)
}
