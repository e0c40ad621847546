//! Codes of a block's sequences: its literals, and for each sequence three codes and their extra
//! bits.
//!
//! ```text
//!  literals 17, match 40, offset 1,000 ─► 16 + 1 bit, 34 + 1 bit, 9 + 9 bits     codes and extra bits
//! ```
//! Codes of lengths and offsets are the format's (RFC 8878 §3.1.1.3.2.1.1 (Sequence Codes for
//! Lengths and Offsets)): small values are their own code, greater ones share a code and differ in
//! extra bits. Offsets that were used before have repeat codes instead (§3.1.1.5 (Repeat Offsets)).

use super::{MAX_BLOCK, MIN_MATCH, ZstdSequence};

#[cfg(target_arch = "x86_64")]
use super::x86::SequencesAvx512;

/// Kinds of codes, in the order in which their tables stand in a block.
pub(super) const LITERALS: usize = 0;
pub(super) const OFFSETS: usize = 1;
pub(super) const MATCHES: usize = 2;
/// Offsets that have names; others are coded as numbers that are greater by as much.
pub(super) const NAMES: u32 = 3;
/// Number of literals that are copied at a time; most runs are short.
pub(super) const STEP: usize = 16;
/// Sequences that vectors do together.
pub(super) const LANES: usize = 16;
/// More literals, or a longer match, are in no block.
pub(super) const TOO_LONG: u32 = 2 * MAX_BLOCK as u32;

/// Codes of lengths that are not their own, for each two lengths: the code, and in the upper byte how many extra
/// bits it has. Of literals below 64 ...
pub(super) const LITERAL_CODES: [u16; 32] = codes(
    16,
    [16, 18, 20, 22, 24, 28, 32, 40, 48],
    [1, 1, 1, 1, 2, 2, 3, 3, 4],
);
/// ... and of matches, less [`MIN_MATCH`], below 128.
pub(super) const MATCH_CODES: [u16; 64] = codes(
    32,
    [32, 34, 36, 38, 40, 44, 48, 56, 64, 80, 96],
    [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5],
);
/// Offset of the codes with extra bits: the code is the number of extra bits plus this.
pub(super) const LITERALS_ABOVE: u32 = 19;
pub(super) const MATCHES_ABOVE: u32 = 36;

/// Literals and codes of a block.
pub(super) struct GatheredBlock {
    /// One after the other, and room.
    pub(super) literals: Vec<u8>,
    /// Number of literals.
    pub(super) kept: usize,
    pub(super) count: usize,
    /// Codes of each sequence, with room for a vector's.
    pub(super) codes: [Vec<u8>; 3],
    /// Extra bits of the literals' code, above them of the match's and of the offset's ...
    pub(super) extras: Vec<u64>,
    /// ... and how many they are together.
    pub(super) widths: Vec<u8>,
}

/// The last three offsets, as a decoder knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RepeatOffsets(pub(super) [u32; NAMES as usize]);

/// A way to gather; all give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GatherKernel(GatherInstructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GatherInstructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx512(SequencesAvx512),
}

impl GatherKernel {
    /// The fastest that this processor has.
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(instructions) = SequencesAvx512::detect() {
            return Self(GatherInstructions::Avx512(instructions));
        }
        Self(GatherInstructions::Portable)
    }

    /// All that this processor has.
    #[cfg(test)]
    pub(super) fn available() -> Vec<Self> {
        let mut kernels = vec![Self(GatherInstructions::Portable), Self::detect()];
        kernels.dedup();
        kernels
    }

    /// Gathers the codes of the block that begins at `start` and ends with `history`. Returns
    /// nothing if the sequences do not form the block from earlier bytes.
    pub(super) fn gather(
        self,
        gathered: &mut GatheredBlock,
        history: &[u8],
        start: usize,
        sequences: &[ZstdSequence],
        recent: &mut RepeatOffsets,
    ) -> Option<()> {
        let (last, others) = sequences.split_last()?;
        let is_end = last.length() == 0 && last.offset() == 0;
        let fits = history.len() - start <= MAX_BLOCK && history.len() <= i32::MAX as usize;
        if !is_end || !fits {
            return None;
        }
        gathered.begin(others.len());
        let at = match self.0 {
            GatherInstructions::Portable => gathered.gather(history, start, others, recent)?,
            #[cfg(target_arch = "x86_64")]
            GatherInstructions::Avx512(kernel) => {
                kernel.gather(gathered, history, start, others, recent)?
            }
        };
        let is_whole = history.len() - at == last.literals();
        is_whole.then(|| gathered.copy(history, at, last.literals()))
    }
}

impl GatheredBlock {
    /// Makes an empty block.
    pub(super) fn new() -> Self {
        Self {
            literals: vec![0; MAX_BLOCK + 2 * STEP],
            kept: 0,
            count: 0,
            codes: [const { Vec::new() }; 3],
            extras: Vec::new(),
            widths: Vec::new(),
        }
    }

    /// The block's literals.
    pub(super) fn literals(&self) -> &[u8] {
        &self.literals[..self.kept]
    }

    /// Reserves room for `count` sequences.
    fn begin(&mut self, count: usize) {
        (self.kept, self.count) = (0, count);
        let room = count.next_multiple_of(LANES);
        if self.extras.len() < room {
            self.extras.resize(room, 0);
            self.widths.resize(room, 0);
            for codes in &mut self.codes {
                codes.resize(room, 0);
            }
        }
    }

    /// One sequence after the other; says where the last one ends.
    fn gather(
        &mut self,
        history: &[u8],
        start: usize,
        sequences: &[ZstdSequence],
        recent: &mut RepeatOffsets,
    ) -> Option<usize> {
        let mut at = start;
        for (index, sequence) in sequences.iter().enumerate() {
            let (literals, length) = (sequence.0.litLength, sequence.0.matchLength);
            let here = at + literals as usize;
            let end = here + length as usize;
            let is_sound = literals.max(length) < TOO_LONG
                && length as usize >= MIN_MATCH
                && (1..=here).contains(&sequence.offset())
                && end <= history.len();
            if !is_sound {
                return None;
            }
            self.copy(history, at, literals as usize);
            at = end;
            let offset = recent.code(sequence.0.offset, literals > 0);
            self.code(index, literals, length, offset);
        }
        Some(at)
    }

    /// Adds literals, which are a part of the block.
    #[inline]
    pub(super) fn copy(&mut self, history: &[u8], at: usize, count: usize) {
        let to = &mut self.literals[self.kept..];
        if count <= STEP
            && let Some(from) = history[at..].first_chunk::<STEP>()
            && let Some(to) = to.first_chunk_mut::<STEP>()
        {
            *to = *from;
        } else {
            to[..count].copy_from_slice(&history[at..at + count]);
        }
        self.kept += count;
    }

    fn code(&mut self, index: usize, literals: u32, length: u32, offset: u32) {
        let [of_literals, of_match] = [
            code_of(literals, &LITERAL_CODES, LITERALS_ABOVE),
            code_of(length - MIN_MATCH as u32, &MATCH_CODES, MATCHES_ABOVE),
        ];
        let of_offset = (offset.ilog2(), offset.ilog2());
        let (mut extra, mut width) = (0, 0);
        for (value, (_, bits)) in [
            (literals, of_literals),
            (length - MIN_MATCH as u32, of_match),
            (offset, of_offset),
        ] {
            extra |= u64::from(value & !(u32::MAX << bits)) << width;
            width += bits;
        }
        self.extras[index] = extra;
        self.widths[index] = width as u8;
        for (codes, (code, _)) in self
            .codes
            .iter_mut()
            .zip([of_literals, of_offset, of_match])
        {
            codes[index] = code as u8;
        }
    }
}

impl RepeatOffsets {
    /// As they are when a frame begins.
    pub(super) const fn new() -> Self {
        Self([1, 4, 8])
    }

    /// Returns the offset value for a decoder, and makes the offset the last one. Directly behind
    /// another match, without literals, the last offset has no repeat code: it would be the same
    /// match.
    #[inline]
    pub(super) fn code(&mut self, offset: u32, has_literals: bool) -> u32 {
        let [one, two, three] = self.0;
        let is_one = offset == one && has_literals;
        let is_two = offset == two;
        let shift = u32::from(!has_literals);
        let mut code = offset + NAMES;
        code = if offset == three { 3 - shift } else { code };
        code = if is_two { 2 - shift } else { code };
        code = if is_one { 1 } else { code };
        let second = if is_one { two } else { one };
        let third = if is_one || is_two { three } else { two };
        self.0 = [offset, second, third];
        code
    }
}

/// A length's code, and how many extra bits it has.
fn code_of(length: u32, codes: &[u16], above: u32) -> (u32, u32) {
    // Those that stand in the table begin where it is half through.
    if (length as usize) < codes.len() / 2 {
        (length, 0)
    } else if let Some(code) = codes.get(length as usize / 2) {
        (u32::from(code & 0xff), u32::from(code >> 8))
    } else {
        (length.ilog2() + above, length.ilog2())
    }
}

/// Makes the code table from `first` on, for these lengths and extra bits.
const fn codes<const PAIRS: usize, const CODES: usize>(
    first: u16,
    from: [usize; CODES],
    bits: [u16; CODES],
) -> [u16; PAIRS] {
    let mut codes = [0; PAIRS];
    let mut number = 0;
    while number < CODES {
        let mut length = from[number];
        while length < from[number] + (1 << bits[number]) {
            codes[length / 2] = (first + number as u16) | (bits[number] << 8);
            length += 2;
        }
        number += 1;
    }
    codes
}
