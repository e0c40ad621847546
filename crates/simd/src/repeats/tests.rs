//! The kernels against a slow search by the definition, and what that finds against the text.

use std::panic::catch_unwind;

use proptest::prelude::*;

use super::*;

fn marks(places: &[usize], base: usize, words: usize) -> Vec<u64> {
    let mut marks = vec![0; words];
    for place in places {
        marks[(place - base) / WORD] |= 1 << ((place - base) % WORD);
    }
    marks
}

/// Start of the first batch.
const BASE: usize = 11;

/// Finds the repeats at these places by the definition, one byte at a time.
fn expected(history: &[u8], places: &[usize]) -> Vec<RepeatMatch> {
    let logs = [SHORT_LOG, LONG_LOG, LONGEST_LOG];
    let mut tables = logs.map(|log| vec![0_u32; 1 << log]);
    let batch_of = |at: usize| (at - BASE) / (WORDS * WORD);
    let mut repeats = Vec::new();
    let (mut most, mut least) = (0, 0);
    for batch in 0..batch_of(history.len()) + 1 {
        let here = || places.iter().filter(|at| batch_of(**at) == batch);
        let mut found: Vec<RepeatMatch> = Vec::new();
        let mut last = None;
        for at in here() {
            let number = |from: usize| {
                let bytes = history[from..from + 8].iter().rev();
                bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
            };
            let (front, back) = (number(*at), number(at + 8));
            let back = (back & 0xffff_ffff) * (MULTIPLIER & 0xffff_ffff);
            let hashes = [front << 32, front, front.wrapping_add(back)];
            let multipliers = [MULTIPLIER, OTHER_MULTIPLIER, OTHER_MULTIPLIER];
            let mut candidate = 0;
            for table in 0..tables.len() {
                let hash = hashes[table].wrapping_mul(multipliers[table]);
                let slot = hash >> (64 - logs[table]);
                let tag = hash >> (64 - logs[table] - 9) & 0x1ff;
                let entry = tag << PLACE_BITS | *at as u64;
                let before = &mut tables[table][slot as usize];
                if u64::from(*before) >> PLACE_BITS == tag {
                    candidate = (*before & PLACE) as usize;
                }
                *before = entry as u32;
            }
            let candidate = candidate.max(BEHIND);
            let same = |one: usize| history[one] == history[candidate + one - at];
            let ahead = (*at..at + AHEAD).take_while(|one| same(*one)).count();
            let behind = (at - BEHIND..*at).rev().take_while(|one| same(*one));
            let repeat = RepeatMatch {
                at: *at as u32,
                offset: (at - candidate) as u32,
                ahead: ahead as u32,
                behind: behind.count() as u32,
            };
            let this = (repeat.offset, at + ahead);
            let is_rest = last
                .replace((this, ahead))
                .is_some_and(|(last, ahead)| last == this && ahead <= REST as usize);
            let gain = least_gain(repeat.offset);
            let agrees = repeat.ahead >= LEAST_AGREEING && repeat.ahead + repeat.behind >= gain;
            if is_rest || !agrees || candidate == BEHIND {
                continue;
            }
            let end = at + ahead;
            // Whether it becomes a sequence after one that ends there.
            let follows = |other: usize| {
                let gains = end >= other + gain as usize;
                gains && at + NEAR as usize > other + LEAST_BEYOND as usize
            };
            if follows(least) {
                found.push(repeat);
            }
            least = least.max(match follows(most) {
                true => end,
                false => (end + 1 - gain as usize).min(at + (NEAR - LEAST_BEYOND) as usize),
            });
            most = most.max(end);
        }
        if here().next().is_none() {
            (most, least) = (0, 0);
        }
        let first = |repeat: &RepeatMatch| repeat.at - repeat.behind;
        let nexts: Vec<Option<u32>> = (1..=found.len())
            .map(|next| found.get(next).map(first))
            .collect();
        let kept = found
            .iter()
            .zip(nexts)
            .filter(|(repeat, next)| next.is_none_or(|next| next > first(repeat)));
        repeats.extend(kept.map(|(repeat, _)| *repeat));
    }
    repeats
}

/// The repeats that each kernel finds at these places, which are in their order, batch by batch.
fn found(history: &[u8], places: &[usize]) -> Vec<RepeatMatch> {
    let base = BASE;
    let all = marks(places, base, history.len().div_ceil(WORD));
    let each: Vec<Vec<RepeatMatch>> = RepeatsKernel::available()
        .into_iter()
        .map(|kernel| {
            let (mut batch, mut tables) = (RepeatBatch::new(), PlaceTables::new());
            let mut repeats = Vec::new();
            for (number, marks) in all.chunks(WORDS).enumerate() {
                let base = base + number * WORDS * WORD;
                let more = kernel.find(&mut batch, &mut tables, history, marks, base);
                repeats.extend(more.iter());
            }
            let last = kernel.find(&mut batch, &mut tables, history, &[], 0);
            repeats.extend(last.iter());
            repeats
        })
        .collect();
    let expected = expected(history, places);
    for found in each {
        assert_eq!(found, expected);
    }
    expected
}

/// Checks that the found repeats are real and have the reported lengths.
fn check(history: &[u8], places: &[usize]) {
    for repeat in found(history, places) {
        let at = repeat.at as usize;
        let from = at - repeat.offset as usize;
        assert!(places.contains(&at) && places.contains(&from) && from < at);
        let same = |(one, other): (usize, usize)| history[one] == history[other];
        let ahead = (at..at + AHEAD).zip(from..).take_while(|pair| same(*pair));
        assert_eq!(ahead.count(), repeat.ahead as usize);
        let behind = (at - BEHIND..at).zip(from - BEHIND..from).rev();
        let behind = behind.take_while(|pair| same(*pair)).count();
        assert_eq!(behind, repeat.behind as usize);
        assert!(repeat.ahead >= LEAST_AGREEING);
    }
}

#[test]
fn latest_longest_match_is_found() {
    // By 4 bytes, by 8, and by 12; a later one with less does not count.
    let parts = [
        "................ abcdefghijklmnop 1",
        " abcdefgh--------- 2",
        " abcd------------- 3",
        " abcdefghijklmnop 4",
        " abcdefgh+++++++++ 5",
        " abcd+++++++++++++ 6",
        "................................................",
    ];
    let text = parts.concat().into_bytes();
    let starts: Vec<usize> = text
        .windows(4)
        .enumerate()
        .filter(|(_, four)| four == b"abcd")
        .map(|(at, _)| at)
        .collect();
    let [one, two, three, four, five, six] = starts[..] else {
        panic!("{starts:?}");
    };
    let pairs = found(&text, &starts).into_iter().map(|repeat| {
        (
            repeat.at as usize,
            (repeat.at - repeat.offset) as usize,
            repeat.ahead,
        )
    });
    let expected = [
        (two, one, 8),
        (three, two, 4),
        (four, one, 17),
        (five, four, 8),
        (six, five, 4),
    ];
    assert_eq!(pairs.collect::<Vec<_>>(), expected);
    check(&text, &starts);
}

#[test]
fn new_text_has_no_old_matches() {
    let text = b".................worldly1worldly2worldly3worldly4................................";
    for kernel in RepeatsKernel::available() {
        let (mut batch, mut tables) = (RepeatBatch::new(), PlaceTables::new());
        let mut count = |tables: &mut PlaceTables, places: &[usize]| {
            let marks = marks(places, 0, 1);
            assert!(kernel.find(&mut batch, tables, text, &marks, 0).is_empty());
            kernel.find(&mut batch, tables, text, &[], 0).len()
        };
        assert_eq!(count(&mut tables, &[17, 25, 33, 41]), 3);
        assert_eq!(count(&mut tables, &[25]), 1);
        tables.clear();
        assert_eq!(count(&mut tables, &[25]), 0);
    }
}

#[test]
fn rest_of_a_short_repeat_is_omitted() {
    let found_in = |text: &str, word: &str| {
        let text = format!("{:16}{text}1 {text}2{:40}", "", "");
        let second = text.rfind(word).unwrap();
        let mut places: Vec<usize> = text
            .match_indices("al_")
            .chain(text.match_indices(word))
            .map(|(at, _)| at)
            .collect();
        places.sort_unstable();
        let found = found(text.as_bytes(), &places);
        found.iter().any(|repeat| repeat.at as usize == second)
    };
    assert!(!found_in("al_pha_beta", "beta"));
    assert!(found_in("al_pha_beta_and_gamma", "beta"));
}

#[test]
fn covered_repeats_are_omitted() {
    let at_of = |text: &str, words: [&str; 2]| {
        let text = format!("{:17}{text}{:40}", "", "");
        let mut places: Vec<usize> = words
            .iter()
            .flat_map(|word| text.match_indices(word))
            .map(|(at, _)| at)
            .collect();
        places.sort_unstable();
        let found = found(text.as_bytes(), &places);
        let last = words.map(|word| text.rfind(word).unwrap() as u32);
        last.map(|at| found.iter().any(|repeat| repeat.at == at))
    };
    // The second one is a part of the first, from elsewhere.
    let text = "alphabetagammadelta1 betagammadelta2 alphabetagammadelta3";
    assert_eq!(at_of(text, ["alpha", "beta"]), [true, false]);
    // The first one is a part of the second, from elsewhere.
    let text = "-alpha:beta:gamma11 +alpha:beta:g22 -alpha:beta:gamma11";
    assert_eq!(at_of(text, ["alpha:", "beta:"]), [false, true]);
    // It reaches further, but not by enough.
    let text = "=alpha:beta:gamma11 -alpha:beta:g22 =alpha:beta:g2";
    assert_eq!(at_of(text, ["alpha:", "beta:"]), [true, false]);
}

#[test]
fn as_many_places_as_there_can_be() {
    let text: Vec<u8> = (0..4_000_u32).map(|at| (at * at / 7) as u8 % 3).collect();
    let places: Vec<usize> = (BEHIND..text.len() - AHEAD).step_by(2).collect();
    check(&text, &places);
    assert!(!found(&text, &places).is_empty());
}

/// Checks that each kernel panics with this message.
fn panics_everywhere(text: &[u8], marks: &[u64], why: &str) {
    for kernel in RepeatsKernel::available() {
        let find = || {
            let (mut batch, mut tables) = (RepeatBatch::new(), PlaceTables::new());
            for marks in [marks, &[]] {
                kernel.find(&mut batch, &mut tables, text, marks, 0);
            }
        };
        let panicked = catch_unwind(find).expect_err("it goes on");
        let said = panicked.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panicked.downcast_ref::<String>().map(String::as_str));
        assert!(
            said.is_some_and(|said| said.contains(why)),
            "{kernel:?}: {said:?}"
        );
    }
}

#[test]
fn a_place_too_near_to_the_end() {
    panics_everywhere(&[1; 71], &marks(&[40], 0, 1), "as many bytes are there");
}

#[test]
fn a_place_too_near_to_the_beginning() {
    panics_everywhere(
        &[1; 99],
        &marks(&[BEHIND - 1], 0, 1),
        "as many bytes are there",
    );
}

#[test]
fn marks_side_by_side() {
    let why = "marks stand side by side";
    panics_everywhere(&[1; 1_000], &[u64::MAX, 0, 0, 0, 0, 0, 0, 1], why);
    panics_everywhere(&[1; 1_000], &[0, 3 << 40], why);
}

#[test]
#[should_panic(expected = "too many marks")]
fn too_many_marks() {
    let marks = [0; WORDS + 1];
    RepeatsKernel::detect().find(
        &mut RepeatBatch::new(),
        &mut PlaceTables::new(),
        &[1; 99],
        &marks,
        0,
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text(
        bytes in prop::collection::vec(0_u8..3, 100..3_000),
        steps in prop::collection::vec(2_usize..30, 500),
    ) {
        let mut places = Vec::new();
        let mut at = BEHIND;
        for step in steps {
            if at + AHEAD > bytes.len() {
                break;
            }
            places.push(at);
            at += step;
        }
        check(&bytes, &places);
    }
}
