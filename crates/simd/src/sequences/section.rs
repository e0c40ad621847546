//! The sequences of a block, as its second part (RFC 8878 §3.1.1.3.2 (Sequences Section)).
//!
//! ```text
//!  how many │ how their codes are coded │ tables │ ◄── bits, of the last sequence first
//! ```
//! Three machines, one for each kind of codes, go from state to state, and what each state gives out stands
//! before the sequence's extra bits. A decoder reads all of it from the end.

use super::fse::{CODES, CodeCounts, FseTable, MOST_LOG, count};
use super::gather::{GatheredBlock, LITERALS, MATCHES, OFFSETS};

#[cfg(target_arch = "x86_64")]
use super::x86::SequencesBmi2;

/// Coding modes of a kind of codes (§3.1.1.3.2.1 (Sequences_Section_Header)).
const BY_DEFAULT: u8 = 0;
const OF_ONE: u8 = 1;
const DESCRIBED: u8 = 2;
/// Number of sequences from which their count takes two bytes, and three.
const TWO_BYTES: usize = 128;
const THREE_BYTES: usize = 0x7f00;
/// States of offsets at most, as a power of two.
const MOST_OFFSETS_LOG: u32 = 8;
/// Largest size of one sequence, in bytes: 26 bits of states and 55 extra ones.
const MOST_BYTES: usize = 11;
/// Bytes that are written at a time, and with which the bits end.
const WORD: usize = 8;

/// The tables that need no description (§3.1.1.3.2.2 (Default Distributions)), with the powers of two that they
/// have states.
const DEFAULTS: [(&[i16], u32); 3] = [
    (
        &[
            4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1,
            1, 1, 1, -1, -1, -1, -1,
        ],
        6,
    ),
    (
        &[
            1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1,
            -1,
        ],
        5,
    ),
    (
        &[
            1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
        ],
        6,
    ),
];

/// A way to write bits; all write the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectionKernel(SectionInstructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SectionInstructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Bmi2(SequencesBmi2),
}

impl SectionKernel {
    /// The fastest that this processor has.
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(instructions) = SequencesBmi2::detect() {
            return Self(SectionInstructions::Bmi2(instructions));
        }
        Self(SectionInstructions::Portable)
    }

    /// All that this processor has.
    #[cfg(test)]
    pub(super) fn available() -> Vec<Self> {
        let mut kernels = vec![Self(SectionInstructions::Portable), Self::detect()];
        kernels.dedup();
        kernels
    }

    /// Adds the section of the gathered codes.
    pub(super) fn emit(self, gathered: &GatheredBlock, out: &mut Vec<u8>) {
        let count = gathered.count;
        match count {
            0..TWO_BYTES => out.push(count as u8),
            TWO_BYTES..THREE_BYTES => {
                out.extend_from_slice(&[(count >> 8) as u8 | 0x80, count as u8])
            }
            _ => {
                let more = ((count - THREE_BYTES) as u16).to_le_bytes();
                out.extend_from_slice(&[0xff, more[0], more[1]]);
            }
        }
        if count == 0 {
            return;
        }
        let head = out.len();
        out.push(0);
        let tables = [LITERALS, OFFSETS, MATCHES].map(|kind| {
            let (mode, table) = table(kind, &gathered.codes[kind][..count], out);
            out[head] |= mode << (6 - 2 * kind);
            table
        });
        match self.0 {
            SectionInstructions::Portable => write(&tables, gathered, out),
            #[cfg(target_arch = "x86_64")]
            SectionInstructions::Bmi2(instructions) => instructions.run(
                #[inline(always)]
                || write(&tables, gathered, out),
            ),
        }
    }
}

/// Returns the coding mode of this kind of codes and its table, and writes the table's description
/// if needed.
fn table(kind: usize, codes: &[u8], out: &mut Vec<u8>) -> (u8, FseTable) {
    let counts = count(codes);
    let most = counts.iter().max().map_or(0, |most| *most as usize);
    let last = codes[codes.len() - 1];
    let (shares, log) = DEFAULTS[kind];
    if most == codes.len() && most > 2 {
        out.push(last);
        return (OF_ONE, FseTable::of_one());
    }
    if is_plain(&counts, codes.len(), most, shares.len(), log) {
        return (BY_DEFAULT, FseTable::of(shares, log));
    }
    let log = if kind == OFFSETS {
        MOST_OFFSETS_LOG
    } else {
        MOST_LOG
    };
    (DESCRIBED, FseTable::for_counts(&counts, last, log, out))
}

/// Returns `true` if a table for these codes is not worth its description, by the rule of zstd's
/// fast levels.
fn is_plain(counts: &CodeCounts, total: usize, most: usize, codes: usize, log: u32) -> bool {
    let are_there = counts[codes..].iter().all(|count| *count == 0);
    let is_little = total < 1 << log;
    let is_flat = most < total >> (log - 1);
    are_there && (is_little || is_flat)
}

/// Adds the bits of all sequences.
#[inline(always)]
fn write(tables: &[FseTable; 3], gathered: &GatheredBlock, out: &mut Vec<u8>) {
    let count = gathered.count;
    let [literals, offsets, matches] = gathered.codes.each_ref().map(|codes| &codes[..count]);
    let (extras, widths) = (&gathered.extras[..count], &gathered.widths[..count]);
    let last = count - 1;
    let codes = [literals[last], offsets[last], matches[last]];
    assert!(codes.iter().all(|code| usize::from(*code) < CODES));
    out.reserve(MOST_BYTES * count + 2 * WORD);
    let [mut of_literals, mut of_offset, mut of_match] =
        [LITERALS, OFFSETS, MATCHES].map(|kind| tables[kind].begin(codes[kind]));
    let mut bits = RawBitWriter {
        held: extras[last],
        count: u32::from(widths[last]),
        to: out.as_mut_ptr().wrapping_add(out.len()),
    };
    let begin = bits.to;
    // SAFETY: there is room for what all sequences take at most, and a word that is written beyond. Codes were
    // counted for the tables, so these have them, and states are theirs.
    let length = unsafe {
        bits.flush();
        let sequences = literals
            .iter()
            .zip(offsets)
            .zip(matches)
            .zip(extras.iter().zip(widths));
        for (((literals, offset), matched), (extra, width)) in sequences.take(last).rev() {
            bits.step(&tables[OFFSETS], &mut of_offset, *offset);
            bits.step(&tables[MATCHES], &mut of_match, *matched);
            bits.step(&tables[LITERALS], &mut of_literals, *literals);
            let width = u32::from(*width);
            if bits.count + width >= u64::BITS {
                bits.flush();
            }
            bits.add(*extra, width);
            bits.flush();
        }
        for (kind, state) in [
            (MATCHES, of_match),
            (OFFSETS, of_offset),
            (LITERALS, of_literals),
        ] {
            let width = tables[kind].log();
            bits.add(u64::from(state) & !(u64::MAX << width), width);
        }
        // Where a decoder begins.
        bits.add(1, 1);
        bits.flush();
        bits.to.offset_from_unsigned(begin) + usize::from(bits.count > 0)
    };
    // SAFETY: so many bytes were written.
    unsafe { out.set_len(out.len() + length) };
}

/// Bits on their way to memory, the lowest first.
struct RawBitWriter {
    held: u64,
    count: u32,
    to: *mut u8,
}

impl RawBitWriter {
    /// Adds the lowest bits of something that has no others; there is room for them.
    #[inline(always)]
    fn add(&mut self, value: u64, count: u32) {
        self.held |= value << self.count;
        self.count += count;
    }

    /// Adds what a code makes of a state.
    ///
    /// # Safety
    /// The table has such a code, and has given the state.
    #[inline(always)]
    unsafe fn step(&mut self, table: &FseTable, state: &mut u32, code: u8) {
        // SAFETY: as the caller says.
        let (width, next) = unsafe { table.step(*state, code) };
        self.add(u64::from(*state & !(u32::MAX << width)), width);
        *state = next;
    }

    /// Writes whole bytes; less than eight bits are left.
    ///
    /// # Safety
    /// A word can be written there.
    #[inline(always)]
    unsafe fn flush(&mut self) {
        debug_assert!(self.count < u64::BITS);
        // SAFETY: as the caller says.
        unsafe {
            self.to.cast::<[u8; WORD]>().write(self.held.to_le_bytes());
            self.to = self.to.add((self.count >> 3) as usize);
        }
        self.held >>= self.count & !7;
        self.count &= 7;
    }
}
