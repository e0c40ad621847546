//! zstd's entropy stage for sequences that were found elsewhere.
//!
//! ```text
//!  history  … bytes of earlier blocks │ the next block          one zstd frame, flushed after each
//!                     ▲      sequence │ literals │ match        block, of at most 2^`log` bytes
//!                     └── offset ─────────────────┘
//! ```
//! A block of a zstd frame is a list of sequences: so many literals, then so many bytes that stand
//! `offset` further back (RFC 8878 §3.1.1.3.2 (Sequences Section)). Who finds them decides how small
//! and how fast; [`Frame`] takes them from its caller and has zstd code them, by
//! `ZSTD_compressSequencesAndLiterals` (zstd.h), which is reached by pointers only, and so stands in
//! this crate. It sees neither the bytes nor what is before them: of what it makes, a frame of one
//! block, the block is taken over into this frame.
//!
//! Offsets that were used before have names (§3.1.1.5 (Repeat Offsets)). zstd finds them slowly, one search
//! after the other, and each time as if a frame began; so they are found here (`Recent`).

use std::ptr::NonNull;

use zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_reset, ZSTD_CCtx_setParameter, ZSTD_ResetDirective, ZSTD_Sequence,
    ZSTD_cParameter, ZSTD_compressBound, ZSTD_compressSequencesAndLiterals, ZSTD_createCCtx,
    ZSTD_freeCCtx, ZSTD_isError, ZSTD_versionNumber,
};

/// Bytes of a block at most: zstd's `ZSTD_BLOCKSIZE_MAX`.
pub const MAX_BLOCK: usize = 128 * 1024;
/// Bytes of a match at least: zstd's `ZSTD_MINMATCH_MIN`.
pub const MIN_MATCH: usize = 3;
/// The strategy by whose rules zstd chooses how to code tables: `ZSTD_dfast`, that of level 3. It
/// finds nothing itself.
const STRATEGY: i32 = 2;
/// zstd's own tables, which stay empty: the smallest that it takes, as powers of two.
const NO_TABLE: i32 = 6;
/// `ZSTD_ps_disable`
const DISABLE: i32 = 2;
/// `ZSTD_sf_explicitBlockDelimiters`
const EXPLICIT: i32 = 1;
/// zstd codes an offset as the number that is greater by three (RFC 8878 §3.1.1.3.2.1.1, `Offset_Value`): up to
/// there it is the name of one that was used before.
const NAMES: u32 = 3;
/// The version of zstd that adds them to whatever is handed to it as an offset, as tests have found:
/// others get no names. Its debug builds may assert that no offset is zero; ours is none.
const NAMING_VERSION: u32 = 10_507;
/// A frame begins with this number ...
const MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
/// ... and a byte of flags, none of them set, and one for the size of the window (§3.1.1.1 (Frame Header)).
const FLAGS: u8 = 0;
const FRAME_HEADER: usize = 6;
/// A block begins with three bytes: whether it is the last, its kind, its length (§3.1.1.2.1 (Block Header)).
const BLOCK_HEADER: usize = 3;
const LAST_BLOCK: u8 = 1;
const RAW_BLOCK: u32 = 0;
/// Literals, most of which come in small numbers, are copied so many at a time ...
const STEP: usize = 16;
/// ... and zstd reads so many bytes beyond them.
const BEYOND: usize = 16;

/// So many literals, and a match behind them; the last of a block has no match.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Sequence(ZSTD_Sequence);

impl Sequence {
    /// `literals` bytes as they are, then `length` bytes (at least [`MIN_MATCH`]) from `offset` further back.
    #[must_use]
    pub const fn new(literals: u32, length: u32, offset: u32) -> Self {
        Self(ZSTD_Sequence {
            offset,
            litLength: literals,
            matchLength: length,
            rep: 0,
        })
    }

    /// The end of a block: `literals` bytes as they are, or none.
    #[must_use]
    pub const fn last(literals: u32) -> Self {
        Self::new(literals, 0, 0)
    }

    /// Literals of it.
    #[must_use]
    pub const fn literals(&self) -> usize {
        self.0.litLength as usize
    }

    /// Bytes of its match; 0 for the last of a block.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.0.matchLength as usize
    }

    /// How far back the match stands.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.0.offset as usize
    }
}

/// One zstd frame on its way, with all bytes that it was made from.
pub struct Frame {
    context: NonNull<ZSTD_CCtx>,
    log: u32,
    history: Vec<u8>,
    /// Bytes of it that are coded.
    coded: usize,
    /// Whether its header is written.
    is_begun: bool,
    recent: Recent,
    /// Whether offsets may be handed over by their names.
    names: bool,
    sequences: Vec<Sequence>,
    /// Of the block, one after the other, and room.
    literals: Vec<u8>,
}

/// The last three offsets, as a decoder knows them.
#[derive(Clone, Copy)]
struct Recent([u32; NAMES as usize]);

// SAFETY: a context may be used by any thread, one at a time (zstd.h, "Explicit context"), and
// nothing else refers to it.
unsafe impl Send for Frame {}

impl Frame {
    /// A frame of 2^`log` bytes at most; `None` when there is no memory for its context.
    #[must_use]
    pub fn new(log: u32) -> Option<Self> {
        // SAFETY: takes nothing; returns a context of our own, or null.
        let context = NonNull::new(unsafe { ZSTD_createCCtx() })?;
        Some(Self {
            context,
            log,
            history: Vec::with_capacity(1 << log),
            coded: 0,
            is_begun: false,
            recent: Recent::new(),
            // SAFETY: takes nothing and returns a number.
            names: unsafe { ZSTD_versionNumber() } == NAMING_VERSION,
            sequences: Vec::new(),
            literals: vec![0; MAX_BLOCK + STEP + BEYOND],
        })
    }

    /// Ends the frame and begins another; says whether zstd took the parameters.
    #[must_use]
    pub fn begin(&mut self) -> bool {
        self.history.clear();
        self.coded = 0;
        self.is_begun = false;
        self.recent = Recent::new();
        let context = self.context.as_ptr();
        let whole = ZSTD_ResetDirective::ZSTD_reset_session_and_parameters;
        // SAFETY: the context is alive and used by nobody else.
        let reset = unsafe { ZSTD_CCtx_reset(context, whole) };
        let parameters = [
            (ZSTD_cParameter::ZSTD_c_windowLog, self.log.cast_signed()),
            (ZSTD_cParameter::ZSTD_c_strategy, STRATEGY),
            (ZSTD_cParameter::ZSTD_c_hashLog, NO_TABLE),
            (ZSTD_cParameter::ZSTD_c_chainLog, NO_TABLE),
            (ZSTD_cParameter::ZSTD_c_minMatch, MIN_MATCH as i32),
            (ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
            // ZSTD_c_blockDelimiters
            (ZSTD_cParameter::ZSTD_c_experimentalParam11, EXPLICIT),
            // ZSTD_c_repcodeResolution
            (ZSTD_cParameter::ZSTD_c_experimentalParam19, DISABLE),
        ];
        let taken = parameters.into_iter().all(|(parameter, value)| {
            // SAFETY: the context is alive; values out of range are errors.
            let set = unsafe { ZSTD_CCtx_setParameter(context, parameter, value) };
            !is_error(set)
        });
        !is_error(reset) && taken
    }

    /// Whether so many bytes more have room.
    #[must_use]
    pub fn has_room(&self, length: usize) -> bool {
        length <= (1 << self.log) - self.history.len()
    }

    /// Adds bytes to the next block.
    ///
    /// # Panics
    /// When there is no room for them.
    pub fn push(&mut self, bytes: &[u8]) {
        assert!(self.has_room(bytes.len()), "a frame has no more room");
        self.history.extend_from_slice(bytes);
    }

    /// Codes the bytes that were pushed as one block, and adds it to `out`. `find` is given all
    /// bytes of the frame, and where the block begins, and puts its sequences into an empty list.
    /// Says whether it is done; if not, or after a block that was left out, the frame has to begin anew.
    #[must_use]
    pub fn code(
        &mut self,
        find: impl FnOnce(&[u8], usize, &mut Vec<Sequence>),
        out: &mut Vec<u8>,
    ) -> bool {
        let start = self.coded;
        self.sequences.clear();
        find(&self.history, start, &mut self.sequences);
        self.coded = self.history.len();
        let length = self.coded - start;
        if length > MAX_BLOCK {
            return false;
        }
        let recent = self.recent;
        let Some(kept) = self.gather(start) else {
            return false;
        };
        if !self.is_begun {
            self.is_begun = true;
            out.extend_from_slice(&MAGIC);
            // Its size is a power of two, of which the exponent counts from 10 on.
            out.extend_from_slice(&[FLAGS, ((self.log - 10) << 3) as u8]);
        }
        if length > 0 && !self.flush(kept, length, out) {
            // As it is: such a block leaves the offsets alone.
            self.recent = recent;
            let header = (length as u32) << 3 | RAW_BLOCK;
            out.extend_from_slice(&header.to_le_bytes()[..BLOCK_HEADER]);
            out.extend_from_slice(&self.history[start..]);
        }
        true
    }

    /// Brings the block's literals together and gives offsets their names; returns how many literals there are,
    /// or none where the sequences do not make the block, each from bytes that are there.
    fn gather(&mut self, start: usize) -> Option<usize> {
        let (history, literals) = (&self.history[..], &mut self.literals[..]);
        let (last, others) = self.sequences.split_last_mut()?;
        let (mut recent, names) = (self.recent, self.names);
        // Up to where a whole step can be copied from and to.
        let steps = [history.len(), literals.len()].map(|length| length.checked_sub(STEP));
        let [from, to] = steps.map(|last| last.map_or(0, |last| last + 1));
        let (mut at, mut kept) = (start, 0);
        // Negative once anything is wrong.
        let mut sound = 0;
        for sequence in others {
            let (count, length) = (sequence.literals(), sequence.length());
            if count <= STEP && at < from && kept < to {
                // SAFETY: from there on are as many bytes, and room for them; they are of two vectors.
                unsafe {
                    let from = history.as_ptr().add(at);
                    let to = literals.as_mut_ptr().add(kept);
                    from.copy_to_nonoverlapping(to, STEP);
                }
            } else {
                copy(history, at, count, literals, kept)?;
            }
            at += count;
            kept += count;
            let offset = sequence.0.offset;
            let [here, back, long] = [at, offset as usize, length].map(|value| value as isize);
            sound |= (here - back) | (back - 1) | (long - MIN_MATCH as isize);
            at += length;
            // Of text one in a thousand; others are handed over as they are.
            if recent.has(offset) {
                let code = recent.code(offset, count > 0);
                if names {
                    sequence.0.offset = code.wrapping_sub(NAMES);
                }
            } else {
                recent.push(offset);
            }
        }
        copy(history, at, last.literals(), literals, kept)?;
        let is_whole = at + last.literals() == history.len();
        self.recent = recent;
        let is_end = last.length() == 0 && last.offset() == 0;
        (sound >= 0 && is_end && is_whole).then_some(kept + last.literals())
    }

    /// Has zstd code the block; says whether it came out smaller, and otherwise adds nothing.
    fn flush(&mut self, kept: usize, length: usize, out: &mut Vec<u8>) -> bool {
        let before = out.len();
        // SAFETY: plain arithmetic.
        out.reserve(unsafe { ZSTD_compressBound(length) });
        let spare = out.spare_capacity_mut();
        // SAFETY: all buffers are as long as they say: that of the literals has room beyond them. The sequences
        // have zstd's own type; their lengths make the literals and the block, as was checked.
        let made = unsafe {
            ZSTD_compressSequencesAndLiterals(
                self.context.as_ptr(),
                spare.as_mut_ptr().cast(),
                spare.len(),
                self.sequences.as_ptr().cast(),
                self.sequences.len(),
                self.literals.as_ptr().cast(),
                kept,
                self.literals.len(),
                length,
            )
        };
        if is_error(made) || made >= FRAME_HEADER + length {
            return false;
        }
        // SAFETY: zstd has written as much, which is no more than there was room for.
        unsafe { out.set_len(before + made) };
        let begins = out[before..].starts_with(&MAGIC) && out[before + MAGIC.len()] == FLAGS;
        if !begins {
            out.truncate(before);
            return false;
        }
        out.drain(before..before + FRAME_HEADER);
        out[before] &= !LAST_BLOCK;
        true
    }
}

impl Recent {
    /// As they are when a frame begins.
    const fn new() -> Self {
        Self([1, 4, 8])
    }

    /// Whether an offset is one of them: then it has a name, or had one if literals were before it.
    #[inline]
    fn has(&self, offset: u32) -> bool {
        let [one, two, three] = self.0;
        offset == one || offset == two || offset == three
    }

    /// Adds one that is none of them.
    #[inline]
    fn push(&mut self, offset: u32) {
        let [one, two, _] = self.0;
        self.0 = [offset, one, two];
    }

    /// The number that a decoder is told for an offset, which from then on is the last. Behind another match, with
    /// no literals between, the last one has no name: it would be the same match.
    #[inline]
    fn code(&mut self, offset: u32, has_literals: bool) -> u32 {
        let [one, two, three] = self.0;
        let is_one = offset == one && has_literals;
        let is_two = offset == two;
        let shift = u32::from(!has_literals);
        let mut code = offset.wrapping_add(NAMES);
        code = if offset == three { 3 - shift } else { code };
        code = if is_two { 2 - shift } else { code };
        code = if is_one { 1 } else { code };
        let second = if is_one { two } else { one };
        let third = if is_one || is_two { three } else { two };
        self.0 = [offset, second, third];
        code
    }
}

/// Copies literals.
#[cold]
fn copy(from: &[u8], at: usize, count: usize, to: &mut [u8], kept: usize) -> Option<()> {
    to.get_mut(kept..kept.checked_add(count)?)?
        .copy_from_slice(from.get(at..at.checked_add(count)?)?);
    Some(())
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: it is of this frame and not used again.
        unsafe { ZSTD_freeCCtx(self.context.as_ptr()) };
    }
}

fn is_error(code: usize) -> bool {
    // SAFETY: plain arithmetic.
    unsafe { ZSTD_isError(code) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(coded: &[u8], length: usize) -> Option<Vec<u8>> {
        let mut context = zstd_safe::DCtx::create();
        let mut raw = Vec::with_capacity(length + 1);
        let mut to = zstd_safe::OutBuffer::around(&mut raw);
        let mut from = zstd_safe::InBuffer::around(coded);
        while from.pos() < coded.len() {
            context.decompress_stream(&mut to, &mut from).ok()?;
        }
        context.decompress_stream(&mut to, &mut from).ok()?;
        Some(raw)
    }

    fn frame() -> Frame {
        let mut frame = Frame::new(20).unwrap();
        assert!(frame.begin());
        frame
    }

    #[test]
    fn blocks_refer_to_blocks_before_them() {
        let mut frame = frame();
        let noise = |seed: u64| -> Vec<u8> {
            let mut state = seed;
            let step = |_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(99);
                (state >> 56) as u8
            };
            (0..50_000).map(step).collect()
        };
        let (one, two) = (noise(1), noise(2));
        let mut coded = Vec::new();
        frame.push(&one);
        let literals = |_: &[u8], _, found: &mut Vec<_>| found.push(Sequence::last(50_000));
        assert!(frame.code(literals, &mut coded));
        frame.push(&two);
        assert!(frame.code(literals, &mut coded));
        let before = coded.len();
        assert!(before >= 100_000);
        // The first block's middle, in two pieces, then a few of the second's bytes three times.
        frame.push(&one[10_000..30_000]);
        frame.push(&two[..100].repeat(3));
        let found = |history: &[u8], start, found: &mut Vec<_>| {
            assert_eq!((history.len(), start), (120_300, 100_000));
            found.push(Sequence::new(0, 5_000, 90_000));
            found.push(Sequence::new(7, 14_993, 90_000));
            found.push(Sequence::new(0, 100, 70_000));
            found.push(Sequence::new(0, 200, 100));
            found.push(Sequence::last(0));
        };
        assert!(frame.code(found, &mut coded));
        assert!(coded.len() - before < 60, "{}", coded.len() - before);
        let whole = [&one, &two, &one[10_000..30_000], &two[..100].repeat(3)].concat();
        assert!(decoded(&coded, whole.len()) == Some(whole));
    }

    /// The next numbers of a generator (Knuth's MMIX).
    fn draw(state: &mut u64, bound: u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (*state >> 33) % bound
    }

    #[test]
    fn offsets_that_come_again_are_named_as_a_decoder_knows_them() {
        let mut lengths = Vec::new();
        for names in [true, false] {
            let state = &mut 5;
            let mut frame = frame();
            frame.names &= names;
            let (mut coded, mut whole) = (Vec::new(), Vec::<u8>::new());
            for block in 0..60 {
                let start = whole.len();
                let mut sequences = Vec::new();
                // Each fourth block has literals only, and stays as it is.
                for _ in 0..if block % 4 == 0 { 0 } else { 200 } {
                    let literals = draw(state, 3) as u32;
                    (0..literals).for_each(|_| whole.push(draw(state, 256) as u8));
                    let offsets = [1, 4, 8, 3, 7, 50, 51, 300];
                    let offset = offsets[draw(state, 8) as usize];
                    let length = 3 + draw(state, 9) as u32;
                    (0..length).for_each(|_| whole.push(whole[whole.len() - offset]));
                    sequences.push(Sequence::new(literals, length, offset as u32));
                }
                let last = if block % 4 == 0 { 500 } else { 0 };
                (0..last).for_each(|_| whole.push(draw(state, 256) as u8));
                sequences.push(Sequence::last(last));
                frame.push(&whole[start..]);
                let find = |_: &[u8], _, found: &mut Vec<_>| found.extend_from_slice(&sequences);
                assert!(frame.code(find, &mut coded));
            }
            assert!(decoded(&coded, whole.len()) == Some(whole));
            lengths.push(coded.len());
        }
        assert!(lengths[0] < lengths[1], "{lengths:?}");
    }

    #[test]
    fn a_block_that_does_not_come_out_smaller_is_left_as_it_is() {
        let mut frame = frame();
        let state = &mut 7;
        let noise: Vec<u8> = (0..MAX_BLOCK).map(|_| draw(state, 256) as u8).collect();
        let mut coded = Vec::new();
        for part in [&noise[..], &noise[..1], &noise[..9]] {
            frame.push(part);
            let length = part.len() as u32;
            let find = |_: &[u8], _, found: &mut Vec<_>| found.push(Sequence::last(length));
            assert!(frame.code(find, &mut coded));
        }
        assert_eq!(
            coded.len(),
            FRAME_HEADER + 3 * BLOCK_HEADER + MAX_BLOCK + 10
        );
        let whole = [&noise[..], &noise[..1], &noise[..9]].concat();
        assert!(decoded(&coded, whole.len()) == Some(whole));
    }

    #[test]
    fn a_frame_begins_anew_and_blocks_of_every_small_size_are_coded() {
        let mut frame = frame();
        for length in 0..300 {
            assert!(frame.begin());
            let block = vec![7; length];
            frame.push(&block);
            let mut coded = Vec::new();
            let find = |_: &[u8], _, found: &mut Vec<_>| {
                if length > 4 {
                    found.push(Sequence::new(1, length as u32 - 2, 1));
                    found.push(Sequence::last(1));
                } else {
                    found.push(Sequence::last(length as u32));
                }
            };
            assert!(frame.code(find, &mut coded));
            assert!(decoded(&coded, length) == Some(block), "{length}");
        }
    }

    #[test]
    fn a_frame_ends_with_its_window() {
        let mut frame = frame();
        let block = vec![b'x'; MAX_BLOCK];
        let mut coded = Vec::new();
        for _ in 0..8 {
            assert!(frame.has_room(MAX_BLOCK));
            frame.push(&block);
            let find = |_: &[u8], start: usize, found: &mut Vec<_>| {
                if start > 0 {
                    found.push(Sequence::new(0, MAX_BLOCK as u32, start as u32));
                    found.push(Sequence::last(0));
                } else {
                    found.push(Sequence::last(MAX_BLOCK as u32));
                }
            };
            assert!(frame.code(find, &mut coded));
        }
        assert!(!frame.has_room(1));
        assert!(decoded(&coded, 1 << 20) == Some(vec![b'x'; 1 << 20]));
    }

    #[test]
    fn sequences_that_make_no_block_are_refused() {
        let wrong: [&[Sequence]; 8] = [
            &[],
            &[Sequence::last(99)],
            &[Sequence::last(101)],
            &[Sequence::new(10, 90, 5)],
            &[Sequence::new(10, 2, 5), Sequence::last(88)],
            &[Sequence::new(10, 50, 0), Sequence::last(40)],
            &[Sequence::new(10, 50, 11), Sequence::last(40)],
            &[Sequence::new(10, 91, 5), Sequence::last(0)],
        ];
        for sequences in wrong {
            let mut frame = frame();
            frame.push(&[1; 100]);
            let find = |_: &[u8], _, found: &mut Vec<_>| found.extend_from_slice(sequences);
            assert!(!frame.code(find, &mut Vec::new()));
        }
        let mut frame = frame();
        frame.push(&[1; MAX_BLOCK + 1]);
        let find =
            |_: &[u8], _, found: &mut Vec<_>| found.push(Sequence::last(MAX_BLOCK as u32 + 1));
        assert!(!frame.code(find, &mut Vec::new()));
    }
}
