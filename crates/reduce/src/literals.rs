//! Compression of what no reference covers.
//!
//! A record's literal bytes are one zstd frame, alone or against *bases* (similar chunks that
//! both sides hold, used as a raw-content prefix: delta coding), or stored as they are. Data
//! that compression cannot help is recognised by a probe of its byte frequencies; only every
//! [`RETRY`]th such block is tried in earnest, for the repeats that frequencies do not show.

use zstd_safe::{CCtx, DCtx};

/// Bytes that the probe looks at, taken evenly from the block.
const PROBE: usize = 1024;
/// Blocks below this size are always tried: it costs next to nothing.
const ALWAYS_TRIED: usize = 512;
/// One in so many blocks that look incompressible is compressed all the same.
const RETRY: u32 = 16;
/// Literals shorter than this are stored: zstd's frame costs more than it saves.
const LEAST_COMPRESSED: usize = 32;
/// Stands before the bases, so that a chunk that happens to start with zstd's own dictionary
/// magic number is not parsed as one.
const BASE_GUARD: [u8; 8] = [0; 8];

/// The compression contexts of a process: about 1.5 MiB, shared by all its flows.
pub(crate) struct Codec {
    compress: CCtx<'static>,
    decompress: DCtx<'static>,
}

/// How a block of literals was coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    /// As they are.
    Stored,
    /// One zstd frame, against the bases if there are any.
    Compressed,
}

/// What an encoder remembers of how its literals fared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Experience {
    incompressible: u32,
}

impl Codec {
    pub(crate) fn new() -> Self {
        Self {
            compress: CCtx::create(),
            decompress: DCtx::create(),
        }
    }

    /// Codes `raw` into `out`, which it empties first.
    pub(crate) fn encode(
        &mut self,
        raw: &[u8],
        bases: &[u8],
        level: i32,
        experience: &mut Experience,
        out: &mut Vec<u8>,
    ) -> Coding {
        out.clear();
        if raw.len() < LEAST_COMPRESSED || (bases.is_empty() && !experience.worth_trying(raw)) {
            return Coding::Stored;
        }
        out.reserve(zstd_safe::compress_bound(raw.len()));
        let done = if bases.is_empty() {
            self.compress.compress(out, raw, level)
        } else {
            self.compress.compress_using_dict(out, raw, bases, level)
        };
        let saved = done.is_ok() && out.len() + raw.len() / 64 < raw.len();
        if !saved {
            out.clear();
            experience.incompressible = experience.incompressible.saturating_add(1);
            return Coding::Stored;
        }
        experience.incompressible = 0;
        Coding::Compressed
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
}

impl Experience {
    /// Whether zstd is worth its time on this block.
    fn worth_trying(&mut self, raw: &[u8]) -> bool {
        if raw.len() < ALWAYS_TRIED || looks_compressible(raw) {
            return true;
        }
        self.incompressible = self.incompressible.wrapping_add(1);
        self.incompressible % RETRY == 1
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

/// Whether the byte frequencies are uneven. For uniformly random bytes the sum of the squared
/// counts of n samples over 256 values is n + n²/256 on average; 1.25 times that is never
/// reached by chance and always by text, machine code, base64 and the like.
fn looks_compressible(raw: &[u8]) -> bool {
    let mut counts = [0_u32; 256];
    let step = (raw.len() / PROBE).max(1);
    let mut samples = 0_u32;
    // Runs of 16 neighbours, so that a structure with an even period is not looked at in step.
    for run in raw.chunks(16 * step) {
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
    use vocab::Random;

    use super::*;

    #[test]
    fn noise_is_not_tried_each_time_and_text_is() {
        let mut noise = vec![0; 64 * 1024];
        Random::from_seed(1).fill(&mut noise);
        assert!(!looks_compressible(&noise));
        let text = b"The quick brown fox jumps over the lazy dog. ".repeat(1000);
        assert!(looks_compressible(&text));
        let mut experience = Experience::default();
        let tried = (0..64).filter(|_| experience.worth_trying(&noise)).count();
        assert_eq!(tried, 4);
        assert!(experience.worth_trying(&text));
    }

    #[test]
    fn a_base_makes_a_similar_block_small() {
        let mut codec = Codec::new();
        let mut base = vec![0; 16 * 1024];
        Random::from_seed(2).fill(&mut base);
        let mut raw = base.clone();
        raw.splice(5000..5000, *b"edited");
        let joined = join_bases([&base[..]].into_iter());
        let mut coded = Vec::new();
        let coding = codec.encode(&raw, &joined, 3, &mut Experience::default(), &mut coded);
        assert_eq!(coding, Coding::Compressed);
        assert!(coded.len() < 100, "{}", coded.len());
        assert_eq!(codec.decode(&coded, &joined, raw.len()), Some(raw.clone()));
        assert_ne!(codec.decode(&coded, &[], raw.len()), Some(raw));
    }

    #[test]
    fn a_bomb_is_refused_at_the_declared_length() {
        let mut codec = Codec::new();
        let mut coded = Vec::new();
        let zeros = vec![0; 100_000];
        codec.encode(&zeros, &[], 3, &mut Experience::default(), &mut coded);
        assert!(coded.len() < 100);
        assert_eq!(codec.decode(&coded, &[], 1000), None);
        assert_eq!(codec.decode(&coded, &[], 100_001), None);
        assert_eq!(codec.decode(&coded, &[], 100_000), Some(zeros));
    }
}
