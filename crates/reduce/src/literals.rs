//! Compression of what no reference covers.
//!
//! ```text
//!  similar chunks at the peer ─► a frame against these bases (delta coding)
//!  a bulk flow                ─► the next blocks of its window (`windows.rs`)
//!  the rest                   ─► a frame by itself, or stored as it is
//! ```
//! Data that compression cannot help is recognised by a probe of its byte frequencies; of every
//! [`RETRY`]th such block the beginning is tried in earnest, for the short repeats that frequencies
//! do not show. Longer ones are the dictionary's.

use zstd_safe::{CCtx, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use crate::config::{MAX_DECODING_WINDOWS, MAX_ENCODING_WINDOWS, WINDOW_LOG};
use crate::window_coder::{CoderKind, WindowCoder};
use crate::windows::{WindowId, WindowPool};

/// Bytes that the probe looks at, taken evenly from the block.
const PROBE: usize = 1024;
/// Blocks below this size are always tried: it costs next to nothing.
const ALWAYS_TRIED: usize = 512;
/// Interval at which the beginning of a block that looks incompressible is compressed all the same,
/// in blocks ...
const RETRY: u32 = 16;
/// ... this many bytes of it ...
const SAMPLE: usize = 16 * 1024;
/// ... at zstd's fastest level with a name.
const SAMPLE_LEVEL: i32 = 1;
/// Literals shorter than this are stored: zstd's frame costs more than it saves.
const LEAST_COMPRESSED: usize = 32;
/// Bytes of literals with which a flow gets a window: a context is too large a thing for less.
const BULK: u64 = 64 * 1024;
/// Literal bytes that a flow codes without a window after the decoder has lost one, doubled each
/// time: a peer that is short of memory does not get endless repairs.
const WITHOUT_WINDOW: u64 = 1024 * 1024;
/// Smallest saving of bases over coding without them, in thousandths: literals coded against them
/// are missing from the flow's window.
const LEAST_SAVED_PER_MILLE: usize = 300;
/// Assumed compression of literals without bases until it is measured, as a divisor.
const UNKNOWN_PART: usize = 8;
/// Records that do without bases after these were not worth it.
const WITHOUT_BASES: u32 = 12;
/// Number of records unsuited to a window's coder after which another window begins: a megabyte of
/// the largest records, because later records lose the earlier ones.
const UNSUITED: u32 = 8;
/// Smallest block that counts for the measured compression of a flow, in bytes.
const TELLING: usize = 4 * 1024;
/// Stands before the bases, so that a chunk that happens to start with zstd's own dictionary
/// magic number is not parsed as one.
const BASE_GUARD: [u8; 8] = [0; 8];

/// The compression contexts of a process, shared by all its flows.
///
/// About 1.5 MiB, and for bulk flows the windows: each some 10 MiB to code and 9 MiB to decode,
/// [`MAX_ENCODING_WINDOWS`] and [`MAX_DECODING_WINDOWS`] of them at most.
pub(crate) struct LiteralCodec {
    compress: CCtx<'static>,
    decompress: DCtx<'static>,
    encoding: WindowPool<WindowCoder>,
    decoding: WindowPool<DCtx<'static>>,
    /// Room for literals that have to be in one piece, and for what they are coded as.
    joined: Vec<u8>,
    pub(crate) coded: Vec<u8>,
}

/// Coding of a block of literals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockCoding {
    /// As they are.
    Stored,
    /// One zstd frame.
    Compressed,
    /// One zstd frame against the bases.
    Delta,
    /// The first blocks of a zstd frame: a window begins.
    WindowBegins,
    /// The next blocks of it.
    WindowGoesOn,
}

/// Results of an encoder's earlier literals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LiteralHistory {
    incompressible: u32,
    /// Compressed size of the last thousand bytes that were coded without bases, in thousandths.
    per_mille: Option<usize>,
    /// Records that do without bases from now on.
    without_bases: u32,
    window: Option<WindowId>,
    /// Bytes in the window.
    windowed: usize,
    /// Records in a row that the window's means do not suit.
    unsuited: u32,
    /// Bytes of literals seen so far.
    literals: u64,
    /// Literal bytes before which no window begins.
    window_from: u64,
    losses: u32,
}

impl LiteralCodec {
    pub(crate) fn new() -> Self {
        Self {
            compress: CCtx::create(),
            decompress: DCtx::create(),
            encoding: WindowPool::new(MAX_ENCODING_WINDOWS),
            decoding: WindowPool::new(MAX_DECODING_WINDOWS),
            joined: Vec::new(),
            coded: Vec::new(),
        }
    }

    /// Codes literals, which may be in pieces, into `out`, which it empties first.
    pub(crate) fn encode(
        &mut self,
        pieces: &[&[u8]],
        bases: &[u8],
        level: i32,
        experience: &mut LiteralHistory,
        out: &mut Vec<u8>,
    ) -> BlockCoding {
        out.clear();
        let length = pieces.iter().map(|piece| piece.len()).sum();
        experience.literals += length as u64;
        if length < LEAST_COMPRESSED {
            return BlockCoding::Stored;
        }
        if !bases.is_empty() && self.encode_against(pieces, bases, level, experience, out) {
            return BlockCoding::Delta;
        }
        let coding = self.encode_without(pieces, length, level, experience, out);
        experience.note(length, coding, out.len());
        coding
    }

    /// Decodes into exactly `length` bytes, or says that it is impossible. The caller has
    /// bounded `length`; no more is ever allocated.
    pub(crate) fn decode(&mut self, coded: &[u8], bases: &[u8], length: usize) -> Option<Vec<u8>> {
        let mut raw = Vec::with_capacity(length);
        let done = if bases.is_empty() {
            self.decompress.decompress(&mut raw, coded)
        } else {
            self.decompress
                .decompress_using_dict(&mut raw, coded, bases)
        };
        (done == Ok(length) && raw.len() == length).then_some(raw)
    }

    /// Begins a flow's window, in place of the one it may have.
    pub(crate) fn begin_decoding(&mut self, window: &mut Option<WindowId>) {
        if let Some(old) = window.take() {
            self.decoding.end(old);
        }
        let Some((id, context)) = self.decoding.begin(DCtx::create) else {
            return;
        };
        let limit = DParameter::WindowLogMax(WINDOW_LOG);
        let fresh = context
            .reset(ResetDirective::SessionAndParameters)
            .and_then(|_| context.set_parameter(limit));
        *window = fresh.is_ok().then_some(id);
    }

    /// Decodes what comes next in a flow's window into exactly `length` bytes, or says that it is
    /// impossible: then the window is lost. Beyond the window's own context no more is ever
    /// allocated.
    pub(crate) fn decode_in_window(
        &mut self,
        coded: &[u8],
        window: &mut Option<WindowId>,
        length: usize,
    ) -> Option<Vec<u8>> {
        let id = (*window)?;
        let context = self.decoding.find(id);
        let raw = context.and_then(|context| decode_blocks(context, coded, length));
        if raw.is_none() {
            self.decoding.end(id);
            *window = None;
        }
        raw
    }

    /// Codes `raw` against the bases; says whether it was worth it.
    fn encode_against(
        &mut self,
        pieces: &[&[u8]],
        bases: &[u8],
        level: i32,
        experience: &mut LiteralHistory,
        out: &mut Vec<u8>,
    ) -> bool {
        if experience.without_bases > 0 {
            experience.without_bases -= 1;
            return false;
        }
        join(pieces, &mut self.joined);
        let raw = &self.joined[..];
        out.reserve(zstd_safe::compress_bound(raw.len()));
        let done = self.compress.compress_using_dict(out, raw, bases, level);
        let expected = match experience.per_mille {
            Some(per_mille) => raw.len() * per_mille / 1000,
            None => raw.len() / UNKNOWN_PART,
        };
        let most = expected - expected * LEAST_SAVED_PER_MILLE / 1000;
        if done.is_ok() && out.len() <= most {
            return true;
        }
        if experience.per_mille.is_some() {
            experience.without_bases = WITHOUT_BASES;
        }
        out.clear();
        false
    }

    /// Codes `length` bytes in the flow's window, alone, or stores them.
    fn encode_without(
        &mut self,
        pieces: &[&[u8]],
        length: usize,
        level: i32,
        experience: &mut LiteralHistory,
        out: &mut Vec<u8>,
    ) -> BlockCoding {
        let compressible = looks_compressible(pieces, length);
        let windowed = compressible && experience.wants_window();
        if windowed
            && let Some(coding) = self.encode_in_window(pieces, length, level, experience, out)
        {
            return coding;
        }
        if !compressible && length >= ALWAYS_TRIED && !self.sample_saves(pieces, experience, out) {
            return BlockCoding::Stored;
        }
        join(pieces, &mut self.joined);
        let raw = &self.joined[..];
        out.reserve(zstd_safe::compress_bound(raw.len()));
        let done = self.compress.compress(out, raw, level);
        if done.is_err() || !is_saving(raw.len(), out.len()) {
            out.clear();
            experience.incompressible = experience.incompressible.saturating_add(1);
            return BlockCoding::Stored;
        }
        experience.incompressible = 0;
        BlockCoding::Compressed
    }

    /// Returns `true` if the first bytes of a block that looks incompressible become smaller.
    /// Tested for one block in [`RETRY`] only.
    fn sample_saves(
        &mut self,
        pieces: &[&[u8]],
        experience: &mut LiteralHistory,
        out: &mut Vec<u8>,
    ) -> bool {
        experience.incompressible = experience.incompressible.wrapping_add(1);
        if experience.incompressible % RETRY != 1 {
            return false;
        }
        let sample = pieces.first().copied().unwrap_or_default();
        let sample = &sample[..sample.len().min(SAMPLE)];
        out.reserve(zstd_safe::compress_bound(sample.len()));
        let done = self.compress.compress(out, sample, SAMPLE_LEVEL);
        let saves = done.is_ok() && is_saving(sample.len(), out.len());
        out.clear();
        saves
    }

    /// Codes the next `length` bytes in the flow's window, if one is available and it helps.
    fn encode_in_window(
        &mut self,
        pieces: &[&[u8]],
        length: usize,
        level: i32,
        experience: &mut LiteralHistory,
        out: &mut Vec<u8>,
    ) -> Option<BlockCoding> {
        let mut coding = BlockCoding::WindowGoesOn;
        let known = experience.window;
        let mut fresh = experience.windowed + length > 1 << WINDOW_LOG;
        if known.is_none_or(|id| self.encoding.find(id).is_none()) {
            let (id, _) = self.encoding.begin(WindowCoder::new)?;
            experience.window = Some(id);
            fresh = true;
        }
        let id = experience.window?;
        let coder = self.encoding.find(id)?;
        let means = CoderKind::for_pieces(pieces, length, level);
        if coder.uses(means) {
            experience.unsuited = 0;
        } else {
            experience.unsuited += 1;
            fresh |= experience.unsuited == UNSUITED;
        }
        if fresh {
            experience.unsuited = 0;
            experience.windowed = 0;
            coding = BlockCoding::WindowBegins;
        }
        experience.windowed += length;
        let ready = !fresh || coder.begin(means);
        if ready && coder.code(pieces, length, out) && is_saving(length, out.len()) {
            experience.incompressible = 0;
            return Some(coding);
        }
        // The window has seen what the decoder is not going to see.
        self.encoding.end(id);
        experience.window = None;
        out.clear();
        None
    }
}

/// Makes one piece of several.
fn join(pieces: &[&[u8]], joined: &mut Vec<u8>) {
    joined.clear();
    for piece in pieces {
        joined.extend_from_slice(piece);
    }
}

/// Returns `true` if compression is worth decoding: it saves at least one part in 64.
fn is_saving(raw: usize, coded: usize) -> bool {
    coded + raw / 64 < raw
}

/// The next `length` bytes of a window.
fn decode_blocks(context: &mut DCtx<'static>, coded: &[u8], length: usize) -> Option<Vec<u8>> {
    // With room for one byte too many, which a sound block does not fill.
    let mut raw = Vec::with_capacity(length + 1);
    let mut from = InBuffer::around(coded);
    let mut to = OutBuffer::around(&mut raw);
    loop {
        let before = (from.pos(), to.pos());
        context.decompress_stream(&mut to, &mut from).ok()?;
        if (from.pos(), to.pos()) == before {
            break;
        }
    }
    (from.pos() == coded.len() && raw.len() == length).then_some(raw)
}

impl LiteralHistory {
    /// Remembers how a block came out that was coded without bases.
    fn note(&mut self, raw: usize, coding: BlockCoding, coded: usize) {
        if raw >= TELLING {
            self.per_mille = Some(match coding {
                BlockCoding::Stored => 1000,
                _ => 1000 * coded / raw,
            });
        }
    }

    /// The decoder asked for a whole record: its window may be lost.
    pub(crate) fn window_lost(&mut self) {
        if self.window.take().is_some() {
            self.window_from = self.literals + (WITHOUT_WINDOW << self.losses.min(20));
            self.losses += 1;
        }
    }

    /// Returns `true` if compressible blocks go into a window.
    fn wants_window(&self) -> bool {
        self.window.is_some() || self.literals >= BULK.max(self.window_from)
    }
}

/// The bytes of several bases as one prefix for zstd.
pub(crate) fn join_bases<'a>(bases: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut joined = BASE_GUARD.to_vec();
    for base in bases {
        joined.extend_from_slice(base);
    }
    joined
}

/// Returns `true` if the byte frequencies are uneven.
///
/// For uniformly random bytes the sum of the squared counts of n samples over 256 values is n +
/// n²/256 on average. 1.25 times that is never reached by chance, and always by text, machine code,
/// base64 and the like.
fn looks_compressible(pieces: &[&[u8]], length: usize) -> bool {
    let mut counts = [0_u32; 256];
    let step = (length / PROBE).max(1);
    let mut samples = 0_u32;
    // Runs of 16 neighbours, so that a structure with an even period is not looked at in step.
    for run in pieces.iter().flat_map(|piece| piece.chunks(16 * step)) {
        for byte in run.iter().take(16) {
            counts[usize::from(*byte)] += 1;
            samples += 1;
        }
    }
    let squares: u64 = counts.iter().map(|count| u64::from(count * count)).sum();
    let samples = u64::from(samples);
    4 * squares > 5 * (samples + samples * samples / 256)
}

#[cfg(test)]
mod tests {
    use vocab::SeededRandom;
    use zstd_safe::zstd_sys::ZSTD_EndDirective;
    use zstd_safe::{CCtx, CParameter};

    use super::*;

    #[test]
    fn incompressible_data_is_tried_less_than_text() {
        let mut noise = vec![0; 64 * 1024];
        SeededRandom::from_seed(1).fill(&mut noise);
        assert!(!looks_compressible(&[&noise], noise.len()));
        let text = b"The quick brown fox jumps over the lazy dog. ".repeat(1000);
        assert!(looks_compressible(&[&text], text.len()));
        // Its bytes are as evenly spread, and the same again and again.
        let hidden = noise[..2_000].repeat(32);
        assert!(!looks_compressible(&[&hidden], hidden.len()));
        let (mut codec, mut coded) = (LiteralCodec::new(), Vec::new());
        let mut experience = LiteralHistory::default();
        let mut code = |raw: &[u8]| {
            codec.encode(&[raw], &[], 3, &mut experience, &mut coded) != BlockCoding::Stored
        };
        assert!((0..40).all(|_| !code(&noise)));
        let tried = (0..64).filter(|_| code(&hidden)).count();
        assert!((1..64).contains(&tried), "{tried}");
        assert!(code(&text));
    }

    #[test]
    fn a_base_makes_a_similar_block_small() {
        let mut codec = LiteralCodec::new();
        let mut base = vec![0; 16 * 1024];
        SeededRandom::from_seed(2).fill(&mut base);
        let mut raw = base.clone();
        raw.splice(5000..5000, *b"edited");
        let joined = join_bases([&base[..]].into_iter());
        let mut coded = Vec::new();
        let coding = codec.encode(
            &[&raw],
            &joined,
            3,
            &mut LiteralHistory::default(),
            &mut coded,
        );
        assert_eq!(coding, BlockCoding::Delta);
        assert!(coded.len() < 100, "{}", coded.len());
        assert_eq!(codec.decode(&coded, &joined, raw.len()), Some(raw.clone()));
        assert_ne!(codec.decode(&coded, &[], raw.len()), Some(raw));
    }

    #[test]
    fn bases_are_used_only_where_they_help_much() {
        let mut codec = LiteralCodec::new();
        let mut experience = LiteralHistory::default();
        let mut coded = Vec::new();
        let mut code =
            |raw: &[u8], bases: &[u8]| codec.encode(&[raw], bases, 3, &mut experience, &mut coded);
        let words = |seed| {
            let mut random = SeededRandom::from_seed(seed);
            let words = (0..8_000).map(|_| format!("word {} ", random.below(5_000)));
            words.collect::<String>().into_bytes()
        };
        let (one, two) = (words(1), words(2));
        let edited = [b"edited ", &one[..]].concat();
        let bases = join_bases([&one[..]].into_iter());
        // Much smaller than anything that is not known yet, and than what comes to be known.
        assert_eq!(code(&edited, &bases), BlockCoding::Delta);
        assert_eq!(code(&two, &bases), BlockCoding::WindowBegins);
        assert_eq!(code(&edited, &bases), BlockCoding::Delta);
        // Somewhat smaller is not enough, and the next records do without at once.
        assert_eq!(code(&words(3), &bases), BlockCoding::WindowGoesOn);
        for seed in 0..u64::from(WITHOUT_BASES) {
            assert_eq!(code(&words(4 + seed), &bases), BlockCoding::WindowGoesOn);
        }
        assert_eq!(code(&edited, &bases), BlockCoding::Delta);
    }

    #[test]
    fn decompression_bomb_is_refused() {
        let mut codec = LiteralCodec::new();
        let mut coded = Vec::new();
        let zeros = vec![0; 60_000];
        codec.encode(
            &[&zeros],
            &[],
            3,
            &mut LiteralHistory::default(),
            &mut coded,
        );
        assert!(coded.len() < 100);
        assert_eq!(codec.decode(&coded, &[], 1000), None);
        assert_eq!(codec.decode(&coded, &[], 60_001), None);
        assert!(codec.decode(&coded, &[], 60_000) == Some(zeros));
    }

    /// Blocks of a text with a small vocabulary, coded in one window.
    fn windowed(codec: &mut LiteralCodec) -> Vec<(Vec<u8>, Vec<u8>, BlockCoding)> {
        let mut random = SeededRandom::from_seed(3);
        let mut experience = LiteralHistory::default();
        let blocks = (0..4).map(|_| {
            let mut raw = Vec::new();
            while raw.len() < 70_000 {
                let names = [0; 3].map(|_| random.below(2000) * 7_919);
                let [one, two, three] = names.map(|name| format!("{name:x}").replace('1', "_in"));
                raw.extend_from_slice(format!("let {one} = {two}({three});\n").as_bytes());
            }
            let mut coded = Vec::new();
            let coding = codec.encode(&[&raw], &[], 3, &mut experience, &mut coded);
            (raw, coded, coding)
        });
        blocks.collect()
    }

    #[test]
    fn window_shrinks_later_blocks_and_decodes_in_order() {
        let mut codec = LiteralCodec::new();
        let blocks = windowed(&mut codec);
        let mut window = None;
        for (index, (raw, coded, coding)) in blocks.iter().enumerate() {
            let mut alone = Vec::new();
            codec.encode(&[raw], &[], 3, &mut LiteralHistory::default(), &mut alone);
            if index == 0 {
                assert_eq!(*coding, BlockCoding::WindowBegins);
                codec.begin_decoding(&mut window);
            } else {
                assert_eq!(*coding, BlockCoding::WindowGoesOn);
                assert!(coded.len() < alone.len());
            }
            let decoded = codec.decode_in_window(coded, &mut window, raw.len());
            assert!(decoded.as_ref() == Some(raw));
        }
        let mut fresh = None;
        assert!(
            codec
                .decode_in_window(&blocks[1].1, &mut fresh, 70_000)
                .is_none()
        );
        codec.begin_decoding(&mut fresh);
        assert!(
            codec
                .decode_in_window(&blocks[1].1, &mut fresh, 70_000)
                .is_none()
        );
        assert_eq!(fresh, None);
    }

    #[test]
    fn decompression_bomb_in_a_window_is_refused() {
        let mut codec = LiteralCodec::new();
        for wrong in [-1, 1] {
            let (raw, coded, _) = windowed(&mut codec).swap_remove(0);
            let mut window = None;
            codec.begin_decoding(&mut window);
            let length = raw.len().checked_add_signed(wrong).unwrap();
            assert!(
                codec
                    .decode_in_window(&coded, &mut window, length)
                    .is_none()
            );
            assert_eq!(window, None, "what is decoded wrongly is not gone on with");
        }
    }

    #[test]
    fn a_window_larger_than_agreed_is_refused() {
        let mut codec = LiteralCodec::new();
        let mut context = CCtx::create();
        for parameter in [
            CParameter::CompressionLevel(3),
            CParameter::WindowLog(WINDOW_LOG + 1),
        ] {
            context.set_parameter(parameter).unwrap();
        }
        let raw = vec![7; 10_000];
        let mut coded = Vec::with_capacity(zstd_safe::compress_bound(raw.len()));
        let mut to = OutBuffer::around(&mut coded);
        let flush = ZSTD_EndDirective::ZSTD_e_flush;
        let left = context.compress_stream2(&mut to, &mut InBuffer::around(&raw), flush);
        assert_eq!(left, Ok(0));
        let mut window = None;
        codec.begin_decoding(&mut window);
        assert!(
            codec
                .decode_in_window(&coded, &mut window, raw.len())
                .is_none()
        );
    }
}
