//! Match finder for text, for zstd to code: it looks for repeats in a window's bytes, at the
//! beginnings of words.
//!
//! ```text
//!  history  … self.next_token(); … self.next_chunk(     what came before, 8 MiB at most
//!                                   ▲    ▲    ▲          words begin here: looked up, then written down
//!  three tables of places, by the 4, 8 and 12 bytes that stand there
//! ```
//!
//! Repeats in text begin where words do. So only word beginnings, one byte in eight, are looked up
//! and recorded, and they are known in advance. A block is processed in batches of half a kibibyte,
//! and each batch in steps that are loops without data-dependent branches, in which memory
//! latencies overlap.
//!
//! 1. Find the word beginnings (`simd::words`).
//! 2. For each of them find the best candidate: the latest place with the same 12 bytes, else 8,
//!    else 4, by nine bits of their hash. Its bytes are fetched meanwhile (`simd::repeats`).
//! 3. A batch later count the equal bytes. Candidates with less than four are dropped, and those
//!    that reach no further than an earlier one, or that the next one covers.
//! 4. Select the sequences (`SelectedMatch`). A match that reaches further than the one before it
//!    shortens that one; one that also agrees as far back replaces it.
//!
//! It does not find matches that begin within words, so data without words gains nothing
//! ([`is_text`]), and it does not search for repeat offsets: those that occur are coded as such
//! (`simd::sequences`).

use simd::agreement::ahead;
use simd::repeats::{
    self, AHEAD, BEHIND, NEAR, PLACE_BITS, PlaceTables, RepeatBatch, RepeatMatches, least_gain,
};
use simd::sequences::{MIN_MATCH, ZstdSequence};
use simd::words;

use crate::config::WINDOW_LOG;

const _: () = assert!(WINDOW_LOG <= PLACE_BITS, "a place fits in a table's entry");

/// Bytes of a block that [`is_text`] looks at, in runs of this length.
const SAMPLE: usize = 2048;
const RUN: usize = 64;
/// Largest part of a text's sampled bytes that is neither ASCII nor white space, as a divisor ...
const OTHERS: usize = 8;
/// ... and limits for the share of word beginnings, as divisors.
const SPARSE: usize = 16;
const DENSE: usize = 3;

/// Match state of one window.
pub(crate) struct WindowMatcher {
    words: words::WordsKernel,
    repeats: repeats::RepeatsKernel,
    tables: PlaceTables,
    marks: Vec<u64>,
    batch: Box<RepeatBatch>,
}

/// Match selected so far.
struct SelectedMatch {
    /// End of the last sequence.
    done: i32,
    /// The match that is not yet a sequence, because it may be cut short.
    start: i32,
    end: i32,
    /// 0 where there is none.
    offset: i32,
}

impl WindowMatcher {
    pub(crate) fn new() -> Self {
        Self {
            words: words::WordsKernel::detect(),
            repeats: repeats::RepeatsKernel::detect(),
            tables: PlaceTables::new(),
            marks: Vec::new(),
            batch: RepeatBatch::new(),
        }
    }

    /// Forgets everything: a window begins.
    pub(crate) fn begin(&mut self) {
        self.tables.clear();
    }

    /// Adds the sequences of the block from `start` to the end of `history`, which is all of the
    /// window, each block of it after the one before.
    pub(crate) fn find(&mut self, history: &[u8], start: usize, found: &mut Vec<ZstdSequence>) {
        debug_assert!(history.len() <= 1 << WINDOW_LOG);
        // Behind each place that is looked at stand as many bytes as are compared; before it, too.
        let readable = history.len().saturating_sub(AHEAD).max(start);
        self.words.mark(&history[start..readable], &mut self.marks);
        if let Some(marks) = self.marks.first_mut() {
            *marks &= u64::MAX << BEHIND.saturating_sub(start);
        }
        let mut choice = SelectedMatch {
            done: start as i32,
            start: start as i32,
            end: start as i32,
            offset: 0,
        };
        // The last of them have their turn with none.
        let batches = self.marks.chunks(repeats::WORDS).chain([&[][..]]);
        for (number, marks) in batches.enumerate() {
            let base = start + 64 * repeats::WORDS * number;
            let (batch, tables) = (&mut self.batch, &mut self.tables);
            let repeats = self.repeats.find(batch, tables, history, marks, base);
            choice.choose(history, repeats, found);
        }
        if choice.offset != 0 {
            found.push(choice.sequence(choice.end));
            choice.done = choice.end;
        }
        found.push(ZstdSequence::last(
            (history.len() - choice.done as usize) as u32,
        ));
    }
}

impl SelectedMatch {
    /// Adds the sequences that repeats become.
    fn choose(&mut self, history: &[u8], repeats: &RepeatMatches, found: &mut Vec<ZstdSequence>) {
        found.reserve(repeats.len());
        for repeat in repeats.iter() {
            let at = repeat.at as i32;
            if at + repeat.ahead.min(NEAR) as i32 <= self.end + MIN_MATCH as i32 {
                continue;
            }
            let offset = repeat.offset as i32;
            let mut end = at + repeat.ahead as i32;
            if repeat.ahead == AHEAD as u32 {
                end += agreeing_after(history, end as usize, offset as usize) as i32;
            }
            let mut first = at - repeat.behind as i32;
            if repeat.behind == BEHIND as u32 {
                let done = self.done as usize;
                first -= agreeing_before(history, done, first as usize, offset as usize) as i32;
            }
            let first = first.max(self.done);
            if first <= self.start {
                self.take(first, end, offset);
                continue;
            }
            let begins = first.max(at.min(self.end));
            let gain = end - begins.max(self.end);
            let any = self.offset != 0;
            let too_short = any && begins < self.start + MIN_MATCH as i32;
            if gain < least_gain(repeat.offset) as i32 || too_short {
                continue;
            }
            if any {
                let cut = self.end.min(begins);
                found.push(self.sequence(cut));
                self.done = cut;
            }
            self.take(begins, end, offset);
        }
    }

    /// Makes this the match that may be cut short.
    fn take(&mut self, start: i32, end: i32, offset: i32) {
        (self.start, self.end, self.offset) = (start, end, offset);
    }

    /// The match, ended there, and the literals before it.
    fn sequence(&self, end: i32) -> ZstdSequence {
        ZstdSequence::new(
            (self.start - self.done) as u32,
            (end - self.start) as u32,
            self.offset as u32,
        )
    }
}

/// Returns the number of bytes from `at` on that equal those `offset` further back.
fn agreeing_after(history: &[u8], at: usize, offset: usize) -> usize {
    let mut end = at;
    while end + AHEAD <= history.len() {
        let agreeing = ahead(history, end, end - offset) as usize;
        end += agreeing;
        if agreeing < AHEAD {
            return end - at;
        }
    }
    let pairs = history[end..].iter().zip(&history[end - offset..]);
    end - at + pairs.take_while(|(one, other)| one == other).count()
}

/// Returns the number of bytes before `at`, and not before `least`, that equal those `offset`
/// further back.
fn agreeing_before(history: &[u8], least: usize, at: usize, offset: usize) -> usize {
    let here = history.get(least..at).unwrap_or_default().iter().rev();
    let there = history[..at - offset].iter().rev();
    let pairs = here.zip(there);
    pairs.take_while(|(one, other)| one == other).count()
}

/// Returns `true` if the bytes are text in an alphabet: words, and few bytes that are not ASCII.
/// Only some of the bytes are sampled.
pub(crate) fn is_text(pieces: &[&[u8]], length: usize) -> bool {
    let step = (length / SAMPLE).max(1);
    let runs = pieces.iter().flat_map(|piece| piece.chunks(RUN * step));
    let (mut samples, mut others, mut begins) = (0, 0, 0);
    for run in runs {
        let mut before = true;
        for byte in &run[..run.len().min(RUN)] {
            let within = words::is_word(*byte);
            let printed = matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r');
            others += usize::from(!printed);
            begins += usize::from(within && !before);
            before = within;
            samples += 1;
        }
    }
    samples > 0
        && others * OTHERS <= samples
        && begins * SPARSE >= samples
        && begins * DENSE <= samples
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use simd::sequences::{MAX_BLOCK, ZstdFrame};
    use vocab::SeededRandom;

    use super::*;

    /// Applies the sequences to the literals in `history`.
    fn executed(history: &[u8], start: usize, sequences: &[ZstdSequence]) -> Vec<u8> {
        let mut made = history[..start].to_vec();
        for sequence in sequences {
            let at = made.len();
            made.extend_from_slice(&history[at..at + sequence.literals()]);
            for _ in 0..sequence.length() {
                made.push(made[made.len() - sequence.offset()]);
            }
        }
        made
    }

    /// Codes the blocks in one window by sequences, executes these, and has zstd decode the frame.
    fn check(blocks: &[&[u8]]) -> usize {
        let mut matcher = WindowMatcher::new();
        let mut frame = ZstdFrame::new(WINDOW_LOG).unwrap();
        assert!(frame.begin());
        let mut coded = Vec::new();
        let mut whole = Vec::new();
        for block in blocks {
            frame.push(block);
            whole.extend_from_slice(block);
            let find = |history: &[u8], start, found: &mut Vec<_>| {
                matcher.find(history, start, found);
                assert!(executed(history, start, found) == history);
                let (_, others) = found.split_last().unwrap();
                assert!(others.iter().all(|sequence| sequence.length() >= MIN_MATCH));
            };
            assert!(frame.code(find, &mut coded));
        }
        let mut context = zstd_safe::DCtx::create();
        let mut raw = Vec::with_capacity(whole.len() + 1);
        let mut to = zstd_safe::OutBuffer::around(&mut raw);
        let mut from = zstd_safe::InBuffer::around(&coded);
        loop {
            let before = (from.pos(), to.pos());
            context.decompress_stream(&mut to, &mut from).unwrap();
            if (from.pos(), to.pos()) == before {
                break;
            }
        }
        assert!(raw == whole);
        coded.len()
    }

    fn word(random: &mut SeededRandom, bound: u64) -> String {
        let mut left = random.below(bound) * random.below(bound) / bound;
        let mut word = String::new();
        while word.is_empty() || left > 0 {
            word += ["ta", "ke", "mi", "ro", "su", "len", "ding", "ver"][left as usize % 8];
            left /= 8;
        }
        word
    }

    fn text(random: &mut SeededRandom, length: usize) -> Vec<u8> {
        let mut text = Vec::new();
        while text.len() < length {
            let [one, two, three] = [900, 3_000, 300].map(|bound| word(random, bound));
            let line = format!("let {one} = self.{two}_{three}({one});\n    ");
            text.extend_from_slice(line.as_bytes());
        }
        text.truncate(length);
        text
    }

    #[test]
    fn text_becomes_as_small_as_at_zstds_level() {
        let sources = [
            include_str!("literals.rs"),
            include_str!("encoder.rs"),
            include_str!("record.rs"),
            include_str!("decoder.rs"),
            include_str!("dictionary/mod.rs"),
            include_str!("dictionary/index.rs"),
            include_str!("dictionary/log.rs"),
            include_str!("encoder/matching.rs"),
        ];
        let sources = sources.concat().into_bytes();
        // Names at random from a few syllables, which repeat within words: what suits it least.
        let made = text(&mut SeededRandom::from_seed(1), 1 << 20);
        for (text, most_percent) in [(sources, 104), (made, 105)] {
            let coded = check(&text.chunks(MAX_BLOCK).collect::<Vec<_>>());
            let mut whole = Vec::with_capacity(1 << 20);
            zstd_safe::compress(&mut whole, &text, 3).unwrap();
            let most = whole.len() * most_percent / 100;
            assert!(coded < most, "{coded}, zstd -3 {}", whole.len());
        }
    }

    #[test]
    fn full_window_is_searched_completely() {
        let mut random = SeededRandom::from_seed(2);
        let once = text(&mut random, MAX_BLOCK);
        // It has no words, so the tables stay as they are.
        let mut noise = vec![0; (1 << WINDOW_LOG) - 2 * MAX_BLOCK];
        random.fill(&mut noise);
        noise.iter_mut().for_each(|byte| *byte = b' ' + *byte % 16);
        let mut blocks = vec![&once[..]];
        blocks.extend(noise.chunks(MAX_BLOCK));
        let without = check(&blocks);
        blocks.push(&once);
        let with = check(&blocks);
        assert!(with - without < 1_000, "{}", with - without);
    }

    #[test]
    fn every_small_block_is_coded() {
        let mut random = SeededRandom::from_seed(3);
        let text = text(&mut random, 4_000);
        for length in 0..70 {
            check(&text.chunks(length.max(1)).take(40).collect::<Vec<_>>());
            check(&[&text[..length], &text[..length], &[], &text[..2 * length]]);
        }
    }

    #[test]
    fn repeated_input_is_one_long_match() {
        let mut random = SeededRandom::from_seed(4);
        let block = text(&mut random, 60_000);
        let mut matcher = WindowMatcher::new();
        let history = [&block[..], &block[..]].concat();
        matcher.find(&history[..60_000], 0, &mut Vec::new());
        let mut found = Vec::new();
        matcher.find(&history, 60_000, &mut found);
        // A few where a phrase at its beginning came again later.
        assert!(found.len() < 10, "{}", found.len());
        assert!(found.iter().any(|sequence| sequence.offset() == 60_000));
        assert!(found.iter().any(|sequence| sequence.length() > 59_000));
    }

    #[test]
    fn new_window_has_no_old_matches() {
        let mut random = SeededRandom::from_seed(5);
        let block = text(&mut random, 60_000);
        let mut matcher = WindowMatcher::new();
        matcher.find(&block, 0, &mut Vec::new());
        matcher.begin();
        let later = &block[20_000..];
        let mut found = Vec::new();
        matcher.find(later, 0, &mut found);
        assert!(executed(later, 0, &found) == later);
    }

    #[test]
    fn text_is_recognised() {
        let mut random = SeededRandom::from_seed(6);
        let mut noise = vec![0; 100_000];
        random.fill(&mut noise);
        let base64: Vec<u8> = noise.iter().map(|byte| b'A' + byte % 26).collect();
        let text = text(&mut random, 100_000);
        let german = "Wer immer strebend sich bemüht, den können wir erlösen. ".repeat(99);
        let greek = "ἓν οἶδα ὅτι οὐδὲν οἶδα. ".repeat(1_000);
        let cases: [(&[u8], bool); 6] = [
            (&text, true),
            (german.as_bytes(), true),
            (&noise, false),
            (&base64, false),
            (greek.as_bytes(), false),
            (&[b' '; 5_000], false),
        ];
        for (bytes, expected) in cases {
            assert_eq!(is_text(&[bytes], bytes.len()), expected);
            let pieces: Vec<&[u8]> = bytes.chunks(997).collect();
            assert_eq!(is_text(&pieces, bytes.len()), expected);
        }
        assert!(!is_text(&[], 0));
    }

    /// Bytes with few different words, so that all kinds of repeats overlap.
    fn repetitive_texts() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let word = prop::sample::select(vec![
            &b"a"[..],
            b"ab ",
            b"abc",
            b" ",
            b"_",
            b"self.abcabc",
            b"0123456789abcdefXYZ ",
            b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            b". . . . . . . . . ",
            b"\xff\x80",
        ]);
        let block = prop::collection::vec(word, 0..400).prop_map(|words| words.concat());
        prop::collection::vec(block, 1..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn coded_input_decodes(blocks in repetitive_texts()) {
            check(&blocks.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_decode(blocks in prop::collection::vec(
            prop::collection::vec(0_u8..4, 0..3_000), 1..4,
        )) {
            check(&blocks.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}
