//! Word beginnings: the places of a text at which its repeats begin.
//!
//! ```text
//!  bytes  self . next _ token ( 7 ) ;      a word begins where a letter, a digit or a byte of
//!  marks  1      1      1       1          another script follows something else
//! ```
//! One bit for each position, 64 in a word of marks. [`is_word`] is the definition.

mod kernel;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

pub use kernel::WordsKernel;

/// Positions in a word of marks.
const WORD: usize = 64;
/// Letters differ from their capitals in this bit alone.
const CASE: u8 = 0x20;
/// Letters, and digits.
const LETTERS: u8 = 26;
const DIGITS: u8 = 10;

/// Returns `true` if a byte is part of a word: ASCII letters and digits, and the bytes of other
/// characters in UTF-8.
#[must_use]
pub const fn is_word(byte: u8) -> bool {
    byte >= 0x80 || (byte | CASE).wrapping_sub(b'a') < LETTERS || byte.wrapping_sub(b'0') < DIGITS
}
