//! Data for the bench: the same bytes for everybody, from fixed seeds.
//!
//! Random bytes represent incompressible data; edits in them show how small an edit stays. The text
//! is generated, so that it needs no network, no licence and no megabytes in the tree: program
//! source by a small grammar, with a licence at the head of each file, names that belong to a file
//! and recur in it, comments in words, and indentation. zstd -3 compresses it 4.2:1, and the C and
//! the Rust sources of the crates that this project builds from 5.0:1 and 5.5:1; -19 gains as much
//! on either (0.73 and 0.71 of that). `bench reduction --text` uses existing text.

use bytes::Bytes;
use vocab::SeededRandom;

/// Random bytes without end.
#[derive(Clone, Debug)]
pub(super) struct RandomBytes(SeededRandom);

impl RandomBytes {
    pub(super) fn new(seed: u64) -> Self {
        Self(SeededRandom::from_seed(seed))
    }

    /// The next `length` bytes; a multiple of eight, or the last ones.
    pub(super) fn next(&mut self, length: usize) -> Bytes {
        let mut bytes = vec![0; length];
        self.0.fill(&mut bytes);
        bytes.into()
    }
}

/// Bytes of a block.
pub(super) const BLOCK: u64 = 1 << 20;

/// Endless random bytes that can start at any block, because each block has a seed of its own.
#[derive(Clone, Debug)]
pub(super) struct SeededBlocks {
    next: u64,
    noise: RandomBytes,
    left: usize,
}

impl SeededBlocks {
    /// Starts at the block of this number.
    pub(super) fn new(number: u64) -> Self {
        Self {
            next: number,
            noise: RandomBytes::new(number),
            left: 0,
        }
    }

    /// The next `length` bytes, which must divide a block.
    pub(super) fn next(&mut self, length: usize) -> Bytes {
        if self.left == 0 {
            self.noise = RandomBytes::new(self.next);
            self.next += 1;
            self.left = BLOCK as usize;
        }
        self.left -= length;
        self.noise.next(length)
    }
}

/// The data with random bytes inserted about every `period` bytes.
pub(super) fn edited(data: &Bytes, period: u64, inserted: usize) -> Bytes {
    let mut random = SeededRandom::from_seed(period);
    let mut out = Vec::with_capacity(data.len() / 10 * 11);
    let mut rest = &data[..];
    while !rest.is_empty() {
        let step = (period / 2 + random.below(period)) as usize;
        let (piece, after) = rest.split_at(step.min(rest.len()));
        out.extend_from_slice(piece);
        let mut more = vec![0; inserted];
        random.fill(&mut more);
        out.extend_from_slice(&more);
        rest = after;
    }
    out.into()
}

/// Program source of this length.
pub(super) fn source(seed: u64, length: usize) -> Bytes {
    let mut author = TextGenerator::new(seed);
    let mut out = String::with_capacity(length + 64 * 1024);
    while out.len() < length {
        author.write_file(&mut out);
    }
    let mut out = out.into_bytes();
    out.truncate(length);
    out.into()
}

/// Number of words for the language, names and comments.
const WORDS: u64 = 4_000;
/// Names that a project has, and of them those that a file works with.
const NAMES: u64 = 6_000;
const NAMES_OF_A_FILE: u64 = 60;

const TYPES: [&str; 12] = [
    "u8",
    "u16",
    "u32",
    "u64",
    "usize",
    "bool",
    "&str",
    "String",
    "Option<u64>",
    "Vec<u8>",
    "Result<(), Error>",
    "Duration",
];

struct TextGenerator {
    random: SeededRandom,
    words: Vec<String>,
    names: Vec<String>,
    licence: String,
    /// The names of the file at hand.
    local: Vec<usize>,
}

impl TextGenerator {
    fn new(seed: u64) -> Self {
        let mut random = SeededRandom::from_seed(seed);
        let words: Vec<String> = (0..WORDS).map(|_| word(&mut random)).collect();
        let names = (0..NAMES)
            .map(|_| {
                let parts = 1 + rank(&mut random, 3);
                let parts: Vec<&str> = (0..parts)
                    .map(|_| &words[rank(&mut random, WORDS) as usize][..])
                    .collect();
                parts.join("_")
            })
            .collect();
        let mut author = Self {
            random,
            words,
            names,
            licence: String::new(),
            local: Vec::new(),
        };
        for _ in 0..12 {
            let line = author.sentence(12);
            author.licence += &format!("// {line}\n");
        }
        author
    }

    fn write_file(&mut self, out: &mut String) {
        self.local = (0..NAMES_OF_A_FILE)
            .map(|_| rank(&mut self.random, NAMES) as usize)
            .collect();
        *out += &self.licence;
        for _ in 0..3 + self.random.below(8) {
            let (one, two) = (self.name(), self.name());
            *out += &format!("use crate::{one}::{two};\n");
        }
        for _ in 0..5 + self.random.below(30) {
            out.push('\n');
            self.write_function(out);
        }
    }

    fn write_function(&mut self, out: &mut String) {
        for _ in 0..self.random.below(4) {
            let words = 6 + self.random.below(9);
            let line = self.sentence(words);
            *out += &format!("    /// {line}\n");
        }
        let name = self.name();
        let arguments: Vec<String> = (0..self.random.below(4))
            .map(|_| format!("{}: {}", self.name(), self.kind()))
            .collect();
        let (arguments, kind) = (arguments.join(", "), self.kind());
        *out += &format!("    pub fn {name}(&mut self, {arguments}) -> {kind} {{\n");
        let mut depth = 2;
        for _ in 0..2 + self.random.below(18) {
            depth = self.write_line(out, depth);
        }
        for depth in (1..depth).rev() {
            *out += &format!("{}}}\n", "    ".repeat(depth));
        }
    }

    /// Writes a line at this depth; returns the depth of the next one.
    fn write_line(&mut self, out: &mut String, depth: usize) -> usize {
        let indent = "    ".repeat(depth);
        let (one, two, three) = (self.name(), self.name(), self.name());
        let number = rank(&mut self.random, 4096);
        let (line, next) = match self.random.below(16) {
            0 | 1 => (format!("let {one} = self.{two}.{three}();"), depth),
            2 => (format!("let mut {one} = {two}::new({three});"), depth),
            3 => (format!("self.{one} = {two};"), depth),
            4 => (format!("self.{one}.{two}({three}, {number});"), depth),
            5 => (format!("{one} += {two}.len() as u64;"), depth),
            6 => (format!("if {one} == {number} {{"), depth + 1),
            7 => (
                format!("if let Some({one}) = self.{two}.get(&{three}) {{"),
                depth + 1,
            ),
            8 => (format!("for {one} in &self.{two} {{"), depth + 1),
            9 => (format!("return Err(Error::{one}({number:#x}));"), depth),
            10 => (format!("assert_eq!({one}.{two}(), {number});"), depth),
            11 => (format!("// {}", self.sentence(9)), depth),
            12 => (format!("{one}.push({two}[{number}..]);"), depth),
            13 => (
                format!("match {one}.{two}() {{ Some({three}) => {three}, None => return }};"),
                depth,
            ),
            _ if depth > 2 => {
                *out += &format!("{}}}\n", "    ".repeat(depth - 1));
                return depth - 1;
            }
            _ => (format!("{one}({two}, {three});"), depth),
        };
        *out += &format!("{indent}{line}\n");
        next.min(6)
    }

    /// A name; most are among those that the file works with.
    fn name(&mut self) -> String {
        let index = match self.random.below(8) {
            0 => rank(&mut self.random, NAMES) as usize,
            _ => self.local[rank(&mut self.random, NAMES_OF_A_FILE) as usize],
        };
        self.names[index].clone()
    }

    fn kind(&mut self) -> &'static str {
        TYPES[rank(&mut self.random, TYPES.len() as u64) as usize]
    }

    fn sentence(&mut self, words: u64) -> String {
        let words: Vec<&str> = (0..words)
            .map(|_| &self.words[rank(&mut self.random, WORDS) as usize][..])
            .collect();
        words.join(" ")
    }
}

/// A number below `bound`, small ones far more often, as words are used.
fn rank(random: &mut SeededRandom, bound: u64) -> u64 {
    random.below(bound) * random.below(bound) / bound * random.below(bound) / bound
}

fn word(random: &mut SeededRandom) -> String {
    const BEGINNINGS: &[u8] = b"bcdfghlmnprstvw";
    const MIDDLES: &[u8] = b"aeiou";
    const ENDS: [&str; 8] = ["", "n", "r", "st", "ck", "t", "ing", "ed"];
    let mut word = String::new();
    for _ in 0..1 + random.below(3) {
        word.push(BEGINNINGS[random.below(BEGINNINGS.len() as u64) as usize] as char);
        word.push(MIDDLES[random.below(MIDDLES.len() as u64) as usize] as char);
    }
    word + ENDS[random.below(8) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_are_the_same_for_everybody() {
        let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex()[..16].to_owned();
        let noise = RandomBytes::new(1).next(100_000);
        assert_eq!(hash(&noise), "d261cbf3342af62f");
        assert_eq!(hash(&edited(&noise, 4_096, 8)), "4d40baca611ce110");
        assert_eq!(hash(&source(2, 100_000)), "297f8795a9e8d642");
    }

    #[test]
    fn noise_in_pieces_is_the_noise_at_once() {
        let mut pieces = RandomBytes::new(7);
        let joined = [pieces.next(64), pieces.next(1_000)].concat();
        assert_eq!(joined, RandomBytes::new(7).next(1_064));
    }
}
