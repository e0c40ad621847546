//! zstd blocks from sequences that the caller found.
//!
//! ```text
//!  history  … bytes of earlier blocks │ the next block          one zstd frame, flushed after each
//!                     ▲      sequence │ literals │ match        block, of at most 2^`log` bytes
//!                     └── offset ─────────────────┘
//!  block    literals, by zstd │ sequences: codes in three tables, extra bits
//! ```
//! A block of a zstd frame is a list of sequences: literals, then a match of bytes that are
//! `offset` further back (RFC 8878 §3.1.1.3.2 (Sequences Section)). The match finder decides how
//! small and how fast; [`ZstdFrame`] takes the sequences from its caller and codes them. Codes are
//! gathered by vectors (`gather`), and written in the format (`section`, `fse`). The literals are
//! coded by zstd: `ZSTD_compressSequencesAndLiterals` (zstd.h) makes a frame of one block of them
//! alone, and the literals section is copied from it. It is called through pointers only, so it is
//! in this crate.

mod fse;
mod gather;
mod section;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ptr::NonNull;

use gather::{GatheredBlock, RepeatOffsets};

use zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_reset, ZSTD_CCtx_setParameter, ZSTD_ResetDirective, ZSTD_Sequence,
    ZSTD_cParameter, ZSTD_compressBound, ZSTD_compressSequencesAndLiterals, ZSTD_createCCtx,
    ZSTD_freeCCtx, ZSTD_isError,
};

/// Bytes of a block at most: zstd's `ZSTD_BLOCKSIZE_MAX`.
pub const MAX_BLOCK: usize = 128 * 1024;
/// Bytes of a match at least: zstd's `ZSTD_MINMATCH_MIN`.
pub const MIN_MATCH: usize = 3;
/// Window sizes of the format for which an offset's extra bits fit a word beside those of lengths,
/// as powers of two.
const LEAST_LOG: u32 = 10;
const MOST_LOG: u32 = 24;
/// Strategy whose rules zstd uses for the coding of tables: `ZSTD_dfast`, that of level 3. It finds
/// no matches itself.
const STRATEGY: i32 = 2;
/// zstd's own tables, which stay empty: the smallest that it takes, as powers of two.
const NO_TABLE: i32 = 6;
/// `ZSTD_ps_disable`
const DISABLE: i32 = 2;
/// `ZSTD_sf_explicitBlockDelimiters`
const EXPLICIT: i32 = 1;
/// A frame begins with this number ...
const MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
/// ... and a byte of flags, none of them set, and one for the size of the window (§3.1.1.1 (Frame Header)).
const FLAGS: u8 = 0;
const FRAME_HEADER: usize = 6;
/// A block begins with three bytes: whether it is the last, its kind, its length (§3.1.1.2.1 (Block Header)).
const BLOCK_HEADER: usize = 3;
const LAST_BLOCK: u8 = 1;
/// Kinds of blocks, above the mark of the last.
const RAW_BLOCK: u32 = 0;
const COMPRESSED_BLOCK: u32 = 2 << 1;
/// Length of a sequences section without sequences (§3.1.1.3.2.1).
const NO_SEQUENCES: usize = 1;
/// Limits of raw literals for a header of one to three bytes (§3.1.1.3.1.1
/// (Literals_Section_Header)).
const ONE_BYTE: usize = 1 << 5;
const TWO_BYTES: usize = 1 << 12;

/// Sequence of literals and a match behind them; the last of a block has no match.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct ZstdSequence(ZSTD_Sequence);

impl ZstdSequence {
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

    /// Returns the distance back to the match.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.0.offset as usize
    }
}

/// One zstd frame on its way, with all bytes that it was made from.
pub struct ZstdFrame {
    context: NonNull<ZSTD_CCtx>,
    log: u32,
    history: Vec<u8>,
    /// Bytes of it that are coded.
    coded: usize,
    /// True once the frame's header is written.
    is_begun: bool,
    recent: RepeatOffsets,
    sequences: Vec<ZstdSequence>,
    gathered: GatheredBlock,
    gather: gather::GatherKernel,
    write: section::SectionKernel,
}

// SAFETY: a context may be used by any thread, one at a time (zstd.h, "Explicit context"), and
// nothing else refers to it.
unsafe impl Send for ZstdFrame {}

impl ZstdFrame {
    /// A frame of 2^`log` bytes at most; `None` when there is no memory for its context.
    ///
    /// # Panics
    /// When that is less than 10, or more than 24.
    #[must_use]
    pub fn new(log: u32) -> Option<Self> {
        assert!((LEAST_LOG..=MOST_LOG).contains(&log), "no such window");
        // SAFETY: takes nothing; returns a context of our own, or null.
        let context = NonNull::new(unsafe { ZSTD_createCCtx() })?;
        Some(Self {
            context,
            log,
            history: Vec::with_capacity(1 << log),
            coded: 0,
            is_begun: false,
            recent: RepeatOffsets::new(),
            sequences: Vec::new(),
            gathered: GatheredBlock::new(),
            gather: gather::GatherKernel::detect(),
            write: section::SectionKernel::detect(),
        })
    }

    /// Ends the frame and begins another; says whether zstd took the parameters.
    #[must_use]
    pub fn begin(&mut self) -> bool {
        self.history.clear();
        self.coded = 0;
        self.is_begun = false;
        self.recent = RepeatOffsets::new();
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

    /// Returns `true` if `length` more bytes fit.
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

    /// Codes the pushed bytes as one block, and adds it to `out`. `find` is given all bytes of the
    /// frame, and the start of the block, and puts its sequences into an empty list. Returns `true`
    /// on success; otherwise, or after a block that was left out, the frame has to be restarted.
    #[must_use]
    pub fn code(
        &mut self,
        find: impl FnOnce(&[u8], usize, &mut Vec<ZstdSequence>),
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
        let gathered = self.gather.gather(
            &mut self.gathered,
            &self.history,
            start,
            &self.sequences,
            &mut self.recent,
        );
        if gathered.is_none() {
            return false;
        }
        if !self.is_begun {
            self.is_begun = true;
            out.extend_from_slice(&MAGIC);
            // Its size is a power of two, of which the exponent counts from the least on.
            out.extend_from_slice(&[FLAGS, ((self.log - LEAST_LOG) << 3) as u8]);
        }
        if length > 0 && !self.flush(length, out) {
            // As it is: such a block leaves the offsets alone.
            self.recent = recent;
            let header = (length as u32) << 3 | RAW_BLOCK;
            out.extend_from_slice(&header.to_le_bytes()[..BLOCK_HEADER]);
            out.extend_from_slice(&self.history[start..]);
        }
        true
    }

    /// Writes the block; says whether it came out smaller, and otherwise adds nothing.
    fn flush(&mut self, length: usize, out: &mut Vec<u8>) -> bool {
        let before = out.len();
        if !self.add_coded_literals(out) {
            add_plain_literals(self.gathered.literals(), out);
        }
        self.write.emit(&self.gathered, out);
        let made = out.len() - before - BLOCK_HEADER;
        if made >= length {
            out.truncate(before);
            return false;
        }
        let header = (made as u32) << 3 | COMPRESSED_BLOCK;
        out[before..before + BLOCK_HEADER].copy_from_slice(&header.to_le_bytes()[..BLOCK_HEADER]);
        true
    }

    /// Has zstd code the literals, and adds its section of them behind room for a block's header; says whether it
    /// came out smaller, and otherwise adds nothing.
    fn add_coded_literals(&mut self, out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let kept = self.gathered.kept;
        let alone = [ZstdSequence::last(kept as u32)];
        // SAFETY: plain arithmetic.
        out.reserve(unsafe { ZSTD_compressBound(kept) });
        let spare = out.spare_capacity_mut();
        // SAFETY: all buffers are as long as they say: that of the literals has room beyond them. The one sequence
        // has zstd's own type, and makes the literals.
        let made = unsafe {
            ZSTD_compressSequencesAndLiterals(
                self.context.as_ptr(),
                spare.as_mut_ptr().cast(),
                spare.len(),
                alone.as_ptr().cast(),
                alone.len(),
                self.gathered.literals.as_ptr().cast(),
                kept,
                self.gathered.literals.len(),
                kept,
            )
        };
        let rest = FRAME_HEADER + BLOCK_HEADER + NO_SEQUENCES;
        if is_error(made) || made <= rest || made - rest >= kept {
            return false;
        }
        // SAFETY: zstd has written as much, which is no more than there was room for.
        unsafe { out.set_len(before + made) };
        let frame = &out[before..];
        let kind = u32::from(frame[FRAME_HEADER] & !LAST_BLOCK) & 6;
        let is_known = frame.starts_with(&MAGIC)
            && frame[MAGIC.len()] == FLAGS
            && kind == COMPRESSED_BLOCK
            && frame[made - NO_SEQUENCES..] == [0];
        if !is_known {
            out.truncate(before);
            return false;
        }
        let section = before + FRAME_HEADER + BLOCK_HEADER..before + made - NO_SEQUENCES;
        out.copy_within(section, before + BLOCK_HEADER);
        out.truncate(before + made - FRAME_HEADER - NO_SEQUENCES);
        true
    }
}

/// Adds literals as they are, behind room for a block's header.
fn add_plain_literals(literals: &[u8], out: &mut Vec<u8>) {
    let count = literals.len() as u32;
    let (header, length) = match literals.len() {
        0..ONE_BYTE => (count << 3, 1),
        ONE_BYTE..TWO_BYTES => (count << 4 | 1 << 2, 2),
        _ => (count << 4 | 3 << 2, 3),
    };
    out.extend_from_slice(&[0; BLOCK_HEADER]);
    out.extend_from_slice(&header.to_le_bytes()[..length]);
    out.extend_from_slice(literals);
}

impl Drop for ZstdFrame {
    fn drop(&mut self) {
        // SAFETY: it is of this frame and not used again.
        unsafe { ZSTD_freeCCtx(self.context.as_ptr()) };
    }
}

fn is_error(code: usize) -> bool {
    // SAFETY: plain arithmetic.
    unsafe { ZSTD_isError(code) != 0 }
}
