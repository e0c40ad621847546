//! Where the bytes at some places of a text stood before, and how far they agree.
//!
//! ```text
//!  places ─► hashes of 16, 8 and 4 bytes ─► three tables: the latest place with the same
//!         ─► candidates, whose bytes are fetched ─► how many bytes agree there, a batch later
//! ```
//! Many places are worked on at once, in steps that are loops without branches that depend on data: the waits
//! for memory overlap, and vectors do several places at a time.

mod batch;
mod kernel;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

pub use batch::{Batch, Repeat, Repeats};
pub use kernel::Kernel;

/// Bytes that are compared from a place on.
pub const AHEAD: usize = 32;
/// Bytes that are compared before it.
pub const BEHIND: usize = 16;
/// Bytes that agree from a place on at least, for it to be a repeat.
pub const LEAST_AGREEING: u32 = 4;
/// A repeat of so many bytes at most stands for the next ones, too, if they are the rest of it.
pub const REST: u32 = 16;
/// A text has 2 to this power bytes at most.
pub const PLACE_BITS: u32 = 23;
/// Words of marks, of 64 places each, that are worked on together: what is known of their places stays in
/// the nearest cache, and they are enough for the bytes of the first candidate to arrive.
pub const WORDS: usize = 8;

/// Places in a word of marks.
const WORD: usize = 64;
/// Places in the tables by 4, 8 and 16 bytes, as powers of two. Together 512 KiB: they share a
/// processor's own cache with what else is done for a text.
const SHORT_LOG: u32 = 15;
const LONG_LOG: u32 = 15;
const LONGEST_LOG: u32 = 16;
/// A table's entry: the place, and above it bits of the hash.
const PLACE: u32 = (1 << PLACE_BITS) - 1;

/// Bytes that are compared.
const COMPARED: usize = BEHIND + AHEAD;
/// Odd and without pattern: the golden ratio, and the second constant of XXH64.
const MULTIPLIER: u64 = 0x9e37_79b1_85eb_ca87;
const OTHER_MULTIPLIER: u64 = 0xc2b2_ae3d_27d4_eb4f;
/// The bytes behind the first eight are turned by so many bits before they are mixed with these.
const TURN: i32 = 29;

/// The latest places of a text, by the bytes that stand there.
pub struct Tables {
    short: Box<[u32; 1 << SHORT_LOG]>,
    long: Box<[u32; 1 << LONG_LOG]>,
    longest: Box<[u32; 1 << LONGEST_LOG]>,
}

impl Tables {
    /// Tables of no places.
    #[must_use]
    pub fn new() -> Self {
        Self {
            short: table(),
            long: table(),
            longest: table(),
        }
    }

    /// Forgets all places: another text begins.
    pub fn clear(&mut self) {
        self.short.fill(0);
        self.long.fill(0);
        self.longest.fill(0);
    }
}

impl Default for Tables {
    fn default() -> Self {
        Self::new()
    }
}

fn table<const SIZE: usize>() -> Box<[u32; SIZE]> {
    let table = vec![0; SIZE].into_boxed_slice();
    table.try_into().expect("it was made with this size")
}
