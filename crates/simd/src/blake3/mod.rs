//! BLAKE3 of many short inputs at once.
//!
//! ```text
//!  inputs   ├ 1 KiB ┼ 1 KiB ┼ 300 B ┤├ 1 KiB ┼ 1 KiB ┤├ 700 B ┤     leaves of all of them
//!              ▼       ▼       ▼        ▼       ▼        ▼
//!           [ lane 0  lane 1  lane 2   lane 3  lane 4   lane 5 … ]   one vector of 16 (or 8) words
//!              └───┬───┘       │        └───┬───┘
//!                parent ───────┘          parent                     level by level, again in lanes
//! ```
//! BLAKE3 cuts an input into leaves of a kibibyte, which can be hashed side by side, and hashes
//! pairs of results up to a root. Implementations that take one input at a time leave most lanes
//! of wide vectors empty where an input is no multiple of 16 KiB: for inputs of some 8 KiB by a
//! factor of two to three. Here the leaves of all inputs share the lanes, whatever their lengths.
//!
//! The results are those of the specification ("BLAKE3: one function, fast everywhere", version
//! 20211102, section 2); the tests compare with the crate `blake3`, whose lanes are as good as
//! these on processors with narrower vectors, and which [`Blake3Kernel::detect`] leaves the work to there.

// Without any such vectors there is no kernel, and nothing that makes one its work.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_variables))]

mod kernel;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

pub use kernel::Blake3Kernel;

/// Bytes of a hash.
pub const HASH: usize = 32;
/// Bytes of a leaf at most (section 2.1, "chunks").
const LEAF: usize = 1024;
/// Bytes that are compressed at a time.
const BLOCK: usize = 64;
/// The first chaining value (table 1).
const INITIAL: [u32; 8] = [
    0x6A09_E667,
    0xBB67_AE85,
    0x3C6E_F372,
    0xA54F_F53A,
    0x510E_527F,
    0x9B05_688C,
    0x1F83_D9AB,
    0x5BE0_CD19,
];
/// The order in which each round takes the words of a block: the permutation of table 2, applied
/// once more for each round.
const SCHEDULE: [[usize; 16]; 7] = schedule();
// Flags of table 3.
const LEAF_START: u32 = 1;
const LEAF_END: u32 = 2;
const PARENT: u32 = 4;
const ROOT: u32 = 8;

/// Input of one lane: a leaf, or a pair of results.
#[derive(Clone, Copy, Debug)]
struct LaneJob<'a> {
    bytes: &'a [u8],
    /// Number of a leaf in its input.
    counter: u64,
    /// Flags of its first block ...
    first: u32,
    /// ... and of its last, which may be the same.
    last: u32,
}

const fn schedule() -> [[usize; 16]; 7] {
    const PERMUTATION: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
    let mut rounds = [[0; 16]; 7];
    let mut word = 0;
    while word < 16 {
        rounds[0][word] = word;
        word += 1;
    }
    let mut round = 1;
    while round < 7 {
        let mut word = 0;
        while word < 16 {
            rounds[round][word] = rounds[round - 1][PERMUTATION[word]];
            word += 1;
        }
        round += 1;
    }
    rounds
}

impl<'a> LaneJob<'a> {
    /// Leaf number `counter` of an input of `leaves`.
    fn leaf(bytes: &'a [u8], counter: usize, leaves: usize) -> Self {
        let root = if leaves == 1 { ROOT } else { 0 };
        Self {
            bytes,
            counter: counter as u64,
            first: LEAF_START,
            last: LEAF_END | root,
        }
    }

    /// Two results side by side, of a level that has `width` of them.
    fn parent(bytes: &'a [u8], width: usize) -> Self {
        let root = if width == 2 { ROOT } else { 0 };
        Self {
            bytes,
            counter: 0,
            first: PARENT,
            last: root,
        }
    }

    /// Blocks that it takes; no bytes at all are one empty block.
    fn blocks(&self) -> usize {
        self.bytes.len().div_ceil(BLOCK).max(1)
    }
}
