//! Places in bytes that the bytes themselves choose, so that the same content has the same places
//! wherever it stands.
//!
//! ```text
//!  bytes  … a b c d …        a's position is chosen or not by a, b, c and d alone
//!  marks  0 0 1 0 0 …        one bit for each position, 64 in a word
//! ```
//! Four bytes choose their position in one case of 85, by byte arithmetic without carries between
//! positions ([`is_chosen`] is the definition), so that a vector decides for as many positions as it
//! has bytes.

mod kernel;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

pub use kernel::PlacesKernel;

/// Bytes that choose a position: it and those behind it.
pub const CHOOSING: usize = 4;
/// Average distance of selected positions in random bytes.
pub const SPACING: usize = 256 / CHOSEN as usize;
/// Number of the 256 values of a position's bytes that select the position.
const CHOSEN: u8 = 3;
/// Keeps runs of zeros from being chosen.
const SHIFT: u8 = 0x35;
/// Positions in a word of marks.
const WORD: usize = 64;

/// Returns `true` if these bytes select the position of the first.
#[must_use]
pub const fn is_chosen([one, two, three, four]: [u8; CHOOSING]) -> bool {
    let sum = one
        .wrapping_add(two.wrapping_mul(3))
        .wrapping_add(three << 3);
    let mixed = sum ^ four.wrapping_add(three << 2);
    mixed.wrapping_add(SHIFT) < CHOSEN
}
