//! zstd's entropy stage for sequences that were found elsewhere.
//!
//! ```text
//!  history  … bytes of earlier blocks │ the next block          one zstd frame, flushed after each
//!                     ▲      sequence │ literals │ match        block, of at most 2^`log` bytes
//!                     └── offset ─────────────────┘
//! ```
//! A block of a zstd frame is a list of sequences: so many literals, then so many bytes that stand
//! `offset` further back (RFC 8878 §3.1.1.3.2 (Sequences Section)). Who finds them decides how small
//! and how fast; [`Frame`] takes them from its caller and has zstd code them. zstd offers that by
//! `ZSTD_registerSequenceProducer` (zstd.h, "Block-Level Sequence Producer API"), which is reached by
//! pointers only, and so stands in this crate.
//!
//! zstd.h says of that interface that each block is taken to be without history. That is about what
//! zstd hands to the producer, which gets no pointer to what is before; the offsets that come back
//! are coded as they are. Here the bytes are one stable buffer that belongs to the frame, so what
//! is before is known without it.

use std::ffi::c_void;
use std::ptr::NonNull;

use zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_reset, ZSTD_CCtx_setParameter, ZSTD_EndDirective, ZSTD_ResetDirective,
    ZSTD_Sequence, ZSTD_cParameter, ZSTD_compressBound, ZSTD_compressStream2, ZSTD_createCCtx,
    ZSTD_freeCCtx, ZSTD_inBuffer, ZSTD_isError, ZSTD_outBuffer, ZSTD_registerSequenceProducer,
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
/// `ZSTD_ps_enable`: offsets that were used before are coded as such.
const ENABLE: i32 = 1;
/// `ZSTD_c_blockSplitterLevel` 1: a block stays one.
const NO_SPLITTING: i32 = 1;

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
    /// Never grows beyond its first capacity, so that it stays where it is.
    history: Vec<u8>,
    /// Bytes of it that are coded.
    coded: usize,
    /// Belongs to this frame, as a pointer because zstd keeps one.
    block: NonNull<Block>,
}

/// What is handed to zstd next.
struct Block {
    sequences: Vec<Sequence>,
    length: usize,
}

// SAFETY: a context may be used by any thread, one at a time (zstd.h, "Explicit context"), and
// nothing else refers to it, to the history or to the block.
unsafe impl Send for Frame {}

impl Frame {
    /// A frame of 2^`log` bytes at most; `None` when there is no memory for its context.
    #[must_use]
    pub fn new(log: u32) -> Option<Self> {
        // SAFETY: takes nothing; returns a context of our own, or null.
        let context = NonNull::new(unsafe { ZSTD_createCCtx() })?;
        let block = Box::new(Block {
            sequences: Vec::new(),
            length: 0,
        });
        Some(Self {
            context,
            log,
            history: Vec::with_capacity(1 << log),
            coded: 0,
            // `from_mut` of a leaked box: freed by `drop`.
            block: NonNull::from_mut(Box::leak(block)),
        })
    }

    /// Ends the frame and begins another; says whether zstd took the parameters.
    #[must_use]
    pub fn begin(&mut self) -> bool {
        self.history.clear();
        self.coded = 0;
        let context = self.context.as_ptr();
        let whole = ZSTD_ResetDirective::ZSTD_reset_session_and_parameters;
        // SAFETY: the context is alive and used by nobody else.
        let reset = unsafe { ZSTD_CCtx_reset(context, whole) };
        let parameters = [
            (ZSTD_cParameter::ZSTD_c_windowLog, self.log.cast_signed()),
            (ZSTD_cParameter::ZSTD_c_strategy, STRATEGY),
            (ZSTD_cParameter::ZSTD_c_hashLog, NO_TABLE),
            (ZSTD_cParameter::ZSTD_c_chainLog, NO_TABLE),
            // ZSTD_c_stableInBuffer: zstd keeps no copy of the history.
            (ZSTD_cParameter::ZSTD_c_experimentalParam9, 1),
            // ZSTD_c_enableSeqProducerFallback: it looks for no sequences itself.
            (ZSTD_cParameter::ZSTD_c_experimentalParam17, 0),
            // ZSTD_c_repcodeResolution
            (ZSTD_cParameter::ZSTD_c_experimentalParam19, ENABLE),
            // ZSTD_c_blockSplitterLevel
            (ZSTD_cParameter::ZSTD_c_experimentalParam20, NO_SPLITTING),
        ];
        let taken = parameters.into_iter().all(|(parameter, value)| {
            // SAFETY: the context is alive; values out of range are errors.
            let set = unsafe { ZSTD_CCtx_setParameter(context, parameter, value) };
            !is_error(set)
        });
        // SAFETY: the block lives as long as the context, and `produce` takes it for what it is.
        unsafe {
            ZSTD_registerSequenceProducer(context, self.block.as_ptr().cast(), Some(produce));
        }
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

    /// Codes the bytes that were pushed as one block, flushed, and adds it to `out`. `find` is given all
    /// bytes of the frame, and where the block begins, and puts its sequences into an empty list.
    /// Says whether it is done; if not, or after a block that was left out, the frame has to begin anew.
    #[must_use]
    pub fn code(
        &mut self,
        find: impl FnOnce(&[u8], usize, &mut Vec<Sequence>),
        out: &mut Vec<u8>,
    ) -> bool {
        let start = self.coded;
        // SAFETY: nobody else refers to the block but zstd, which does so in `flush` only.
        let block = unsafe { self.block.as_mut() };
        block.sequences.clear();
        find(&self.history, start, &mut block.sequences);
        block.length = self.history.len() - start;
        if block.length > MAX_BLOCK || !are_sound(&block.sequences, start, block.length) {
            return false;
        }
        self.flush(out)
    }

    /// Has zstd code the block.
    fn flush(&mut self, out: &mut Vec<u8>) -> bool {
        let length = self.history.len() - self.coded;
        // SAFETY: plain arithmetic.
        out.reserve(unsafe { ZSTD_compressBound(length) });
        let spare = out.spare_capacity_mut();
        let mut to = ZSTD_outBuffer {
            dst: spare.as_mut_ptr().cast(),
            size: spare.len(),
            pos: 0,
        };
        let mut from = ZSTD_inBuffer {
            src: self.history.as_ptr().cast(),
            size: self.history.len(),
            pos: self.coded,
        };
        let flush = ZSTD_EndDirective::ZSTD_e_flush;
        // SAFETY: both buffers are as long as they say. That of the input is where it was and holds
        // what it did in the call before, as a stable one has to.
        let left =
            unsafe { ZSTD_compressStream2(self.context.as_ptr(), &mut to, &mut from, flush) };
        // SAFETY: zstd has written `pos` bytes, which is no more than there was room for.
        unsafe { out.set_len(out.len() + to.pos) };
        self.coded = self.history.len();
        left == 0 && from.pos == from.size
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: both are of this frame and not used again; the block came from a box.
        unsafe {
            ZSTD_freeCCtx(self.context.as_ptr());
            drop(Box::from_raw(self.block.as_ptr()));
        }
    }
}

/// Whether these make `length` bytes behind `start` others, each from bytes that are there.
fn are_sound(sequences: &[Sequence], start: usize, length: usize) -> bool {
    let Some((last, others)) = sequences.split_last() else {
        return false;
    };
    let (mut at, mut sound) = (start, true);
    // Without a branch for each.
    for sequence in others {
        at += sequence.literals();
        sound &= (sequence.offset().wrapping_sub(1) < at) & (sequence.length() >= MIN_MATCH);
        at += sequence.length();
    }
    sound && last.length() == 0 && last.offset() == 0 && at + last.literals() == start + length
}

/// Hands zstd the sequences of a [`Block`].
///
/// # Safety
/// `state` is one, `sequences` has room for `capacity`.
unsafe extern "C" fn produce(
    state: *mut c_void,
    sequences: *mut ZSTD_Sequence,
    capacity: usize,
    _source: *const c_void,
    length: usize,
    _dictionary: *const c_void,
    _dictionary_length: usize,
    _level: i32,
    _window: usize,
) -> usize {
    // SAFETY: it was registered with a block, which nobody changes while zstd works.
    let block = unsafe { &*state.cast::<Block>() };
    if block.length != length || block.sequences.len() > capacity {
        // ZSTD_SEQUENCE_PRODUCER_ERROR
        return usize::MAX;
    }
    // SAFETY: there is room for so many; the type is zstd's own.
    unsafe {
        let from = block.sequences.as_ptr().cast();
        std::ptr::copy_nonoverlapping(from, sequences, block.sequences.len());
    }
    block.sequences.len()
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
