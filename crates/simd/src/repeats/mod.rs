//! Repeats: earlier occurrences of the bytes at some places of a text, and their length.
//!
//! ```text
//!  places ─► hashes of 12, 8 and 4 bytes ─► three tables: the latest place with the same
//!         ─► candidates, whose bytes are fetched ─► how many bytes agree there, a batch later
//!         ─► those that reach further than others by what a sequence costs
//! ```
//!
//! Many places are processed at once, in steps that are loops without data-dependent branches:
//! memory latencies overlap, and vectors process several places at a time.

mod batch;
mod kernel;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

pub use batch::{RepeatBatch, RepeatMatch, RepeatMatches};
pub use kernel::RepeatsKernel;

/// Bytes that are compared from a place on.
pub const AHEAD: usize = 32;
/// Bytes that are compared before it.
pub const BEHIND: usize = 16;
/// Bytes that agree from a place on at least, for it to be a repeat.
pub const LEAST_AGREEING: u32 = 4;
/// Longest repeat that also covers the next ones if they are the rest of it, in bytes.
pub const REST: u32 = 16;
/// Limit of the bytes that count when repeats' ends are compared; with more, matches are shortened
/// that should continue.
pub const NEAR: u32 = 16;
/// Bytes that have to be left of them beyond the others: zstd's shortest match.
const LEAST_BEYOND: u32 = 3;
/// Bytes that a further repeat has to cover, because a sequence costs about as much as that many
/// literals ...
const LEAST_GAIN: u32 = 4;
/// ... and additional bytes from these offsets on.
const FURTHER: [(u32, u32); 2] = [(1 << 14, 2), (1 << 18, 1)];
/// A text has 2 to this power bytes at most.
pub const PLACE_BITS: u32 = 23;
/// Words of marks, of 64 places each, that are processed together. Their state stays in the nearest
/// cache, and they are enough for the bytes of the first candidate to arrive.
pub const WORDS: usize = 8;

/// Places in a word of marks.
const WORD: usize = 64;
/// Places in the tables by 4, 8 and 12 bytes, as powers of two. Together 512 KiB: they share a
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

/// Bytes that a repeat at this offset has to cover beyond others to be worth a sequence.
#[inline]
#[must_use]
pub const fn least_gain(offset: u32) -> u32 {
    let [(far, more), (farther, yet_more)] = FURTHER;
    LEAST_GAIN + more * (offset >= far) as u32 + yet_more * (offset >= farther) as u32
}

/// The latest places of a text, by the bytes that stand there.
pub struct PlaceTables {
    short: Box<[u32; 1 << SHORT_LOG]>,
    long: Box<[u32; 1 << LONG_LOG]>,
    longest: Box<[u32; 1 << LONGEST_LOG]>,
}

impl PlaceTables {
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

impl Default for PlaceTables {
    fn default() -> Self {
        Self::new()
    }
}

fn table<const SIZE: usize>() -> Box<[u32; SIZE]> {
    let table = vec![0; SIZE].into_boxed_slice();
    table.try_into().expect("it was made with this size")
}
