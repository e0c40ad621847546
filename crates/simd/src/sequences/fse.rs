//! Entropy coding of a block's codes by states of a finite machine (RFC 8878 §4.1 (FSE)).
//!
//! ```text
//!  how often each code comes ─► parts of 2^log states ─► described in a few dozen bytes
//!                                                     └► from state to state, some bits each
//! ```
//! The format defines how the states of codes are spread, and their description (§4.1.1 (FSE Table
//! Description), §3.1.1.3.2.2 (Default Distributions)). The coder chooses the number of states of
//! each code, as zstd does.

/// States of a table at most, as a power of two (§3.1.1.3.2.1 (Sequences_Section_Header)).
pub(super) const MOST_LOG: u32 = 9;
/// States of a described table at least.
const LEAST_LOG: u32 = 5;
/// Codes of a kind at most, with room: 53 are used, for lengths of matches.
pub(super) const CODES: usize = 64;
/// Number of codes from which rare ones share one state.
const MANY: u32 = 2_048;
/// Remainder of a share below eight states at which it gets one more state, in millionths of 2^20:
/// the rounding cost that zstd uses.
const ROUND_UP: [u64; 8] = [
    0, 473_195, 504_333, 520_860, 550_000, 700_000, 750_000, 830_000,
];

/// Count of each code.
pub(super) type CodeCounts = [u32; CODES];
/// Number of states of each code; -1 for less than one.
type NormalizedCounts = [i16; CODES];

/// The states of one kind of codes.
pub(super) struct FseTable {
    log: u32,
    states: [u16; 1 << MOST_LOG],
    steps: [SymbolTransform; CODES],
}

/// State transition of a code.
#[derive(Clone, Copy, Default)]
struct SymbolTransform {
    /// The bits that go out of a state, in the upper half of its sum with this.
    bits: u32,
    /// Offset from the rest of the state to the next one.
    next: i32,
}

/// Counts codes.
pub(super) fn count(codes: &[u8]) -> CodeCounts {
    // Of neighbours, each in a table of its own: adding to one number twice in a row takes time.
    let mut parts = [[0; CODES]; 4];
    let (fours, rest) = codes.as_chunks::<4>();
    for four in fours {
        for (part, code) in parts.iter_mut().zip(four) {
            part[usize::from(*code) % CODES] += 1;
        }
    }
    for code in rest {
        parts[0][usize::from(*code) % CODES] += 1;
    }
    std::array::from_fn(|code| parts.iter().map(|part| part[code]).sum())
}

impl FseTable {
    /// A table for codes that come as often as this, `last` of them at the end, in 2^`log` states at most; adds
    /// its description to `out`. Of these codes are two kinds at least.
    pub(super) fn for_counts(counts: &CodeCounts, last: u8, log: u32, out: &mut Vec<u8>) -> Self {
        let mut counts = *counts;
        let last = usize::from(last);
        // The first state, which is that of the last code, costs nothing.
        if counts[last] > 1 {
            counts[last] -= 1;
        }
        let total: u32 = counts.iter().sum();
        let highest = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
        let log = suited_log(total, highest, log);
        let shares = shares_of(&counts, total, log);
        describe(&shares[..=highest], log, out);
        Self::of(&shares[..=highest], log)
    }

    /// One of the format's own.
    pub(super) fn of(shares: &[i16], log: u32) -> Self {
        let mut made = Self {
            log,
            states: [0; _],
            steps: [SymbolTransform::default(); _],
        };
        let size = 1_usize << log;
        let mut codes = [0_u8; 1 << MOST_LOG];
        let mut high = size;
        let mut starts = [0_u16; CODES];
        let mut total = 0;
        for (code, share) in shares.iter().enumerate() {
            starts[code] = total;
            let states = share.unsigned_abs();
            if *share == -1 {
                high -= 1;
                codes[high] = code as u8;
            }
            made.steps[code] = SymbolTransform::of(i32::from(states), i32::from(total), log);
            total += states;
        }
        debug_assert_eq!(usize::from(total), size);
        let mut at = 0;
        for (code, share) in shares.iter().enumerate() {
            for _ in 0..(*share).max(0) {
                codes[at] = code as u8;
                loop {
                    at = (at + (size >> 1) + (size >> 3) + 3) % size;
                    if at < high {
                        break;
                    }
                }
            }
        }
        for (state, code) in codes[..size].iter().enumerate() {
            let next = &mut starts[usize::from(*code)];
            made.states[usize::from(*next)] = (size + state) as u16;
            *next += 1;
        }
        made
    }

    /// One of a single code, which takes no bits.
    pub(super) fn of_one() -> Self {
        Self {
            log: 0,
            states: [0; _],
            steps: [SymbolTransform::default(); _],
        }
    }

    /// Bits of a state.
    #[inline(always)]
    pub(super) fn log(&self) -> u32 {
        self.log
    }

    /// A state that the code leaves behind, without one before it.
    #[inline]
    pub(super) fn begin(&self, code: u8) -> u32 {
        let step = self.steps[usize::from(code)];
        let bits = (step.bits + (1 << 15)) >> 16;
        let before = (bits << 16).wrapping_sub(step.bits);
        self.next(before, bits, step)
    }

    /// Returns the number of the state's lowest bits that are written before the code, and the next
    /// state.
    ///
    /// # Safety
    /// The table has such a code, and the state is one that it has given.
    #[inline(always)]
    pub(super) unsafe fn step(&self, state: u32, code: u8) -> (u32, u32) {
        // SAFETY: codes are less than their number, as the caller says.
        let step = unsafe { *self.steps.get_unchecked(usize::from(code)) };
        let bits = state.wrapping_add(step.bits) >> 16;
        let at = (state >> bits).wrapping_add_signed(step.next) as usize;
        debug_assert!(at < self.states.len());
        // SAFETY: what is left of a state is between once and twice the number of the code's states, which
        // stand there one after the other.
        let next = unsafe { *self.states.get_unchecked(at) };
        (bits, u32::from(next))
    }

    #[inline]
    fn next(&self, state: u32, bits: u32, step: SymbolTransform) -> u32 {
        let at = (state >> bits).wrapping_add_signed(step.next);
        u32::from(self.states[at as usize])
    }
}

impl SymbolTransform {
    /// Transition of a code with `states` states of 2^`log`, behind those of other codes.
    fn of(states: i32, others: i32, log: u32) -> Self {
        let most = match states {
            0 => return Self::default(),
            1 => log,
            _ => log - (states - 1).cast_unsigned().ilog2(),
        };
        // One bit less goes out of a state that is below this.
        let least = states.cast_unsigned() << most;
        Self {
            bits: (most << 16).wrapping_sub(least),
            next: others - states,
        }
    }
}

/// Returns the suitable number of states, as a power of two, for `total` codes of which the highest
/// is `highest`.
fn suited_log(total: u32, highest: usize, most: u32) -> u32 {
    let enough = (total - 1).max(1).ilog2().saturating_sub(2);
    let needed = (total.ilog2() + 1).min((highest.max(1)).ilog2() + 2);
    most.min(enough).max(needed).clamp(LEAST_LOG, most)
}

/// Divides 2^`log` states.
fn shares_of(counts: &CodeCounts, total: u32, log: u32) -> NormalizedCounts {
    const SCALE: u32 = 62;
    let scale = SCALE - log;
    let step = (1_u64 << SCALE) / u64::from(total);
    let few = total >> log;
    let mut left = 1_i32 << log;
    let mut shares = [0; CODES];
    for (count, share) in counts.iter().zip(&mut shares) {
        if *count == 0 {
            continue;
        }
        *share = if *count <= few {
            if total >= MANY { -1 } else { 1 }
        } else {
            let exact = u64::from(*count) * step;
            let whole = exact >> scale;
            let rest = exact - (whole << scale);
            let up = ROUND_UP
                .get(whole as usize)
                .is_some_and(|most| rest > most << (scale - 20));
            (whole + u64::from(up)) as i16
        };
        left -= i32::from(share.unsigned_abs());
    }
    // What is left, or missing, is the largest's; it keeps half of what it has.
    while left != 0 {
        let largest = shares.iter_mut().max_by_key(|share| **share);
        let largest = largest.expect("there are codes");
        let change = left.max(-i32::from(*largest / 2)) as i16;
        *largest += change;
        left -= i32::from(change);
    }
    shares
}

/// Writes down how many states each code has (§4.1.1).
fn describe(shares: &[i16], log: u32, out: &mut Vec<u8>) {
    let mut bits = VecBitWriter {
        held: 0,
        count: 0,
        out,
    };
    bits.add(log - LEAST_LOG, 4);
    let mut left = (1_u32 << log) + 1;
    let mut width = log + 1;
    let mut at = 0;
    while left > 1 {
        let share = shares[at];
        at += 1;
        // Numbers that cannot come leave some of those that can one bit less.
        let value = (share + 1).cast_unsigned();
        let value = u32::from(value);
        let threshold = 1 << (width - 1);
        let spare = 2 * threshold - 1 - left;
        left -= u32::from(share.unsigned_abs());
        let shifted = if value >= threshold {
            value + spare
        } else {
            value
        };
        bits.add(shifted, if shifted < spare { width - 1 } else { width });
        while left > 1 && left < 1 << (width - 1) {
            width -= 1;
        }
        if share == 0 && left > 1 {
            let none = shares[at..].iter().take_while(|share| **share == 0).count();
            at += none;
            for _ in 0..none / 3 {
                bits.add(3, 2);
            }
            bits.add((none % 3) as u32, 2);
        }
    }
    bits.end();
}

/// Bits that are gathered to bytes, the lowest first.
struct VecBitWriter<'a> {
    held: u64,
    count: u32,
    out: &'a mut Vec<u8>,
}

impl VecBitWriter<'_> {
    fn add(&mut self, value: u32, count: u32) {
        self.held |= u64::from(value) << self.count;
        self.count += count;
        while self.count >= u8::BITS {
            self.out.push(self.held as u8);
            self.held >>= u8::BITS;
            self.count -= u8::BITS;
        }
    }

    fn end(self) {
        if self.count > 0 {
            self.out.push(self.held as u8);
        }
    }
}
