//! The kernels against each other, and against a search by hand.

use proptest::prelude::*;

use super::*;

fn marks(places: &[usize], base: usize, words: usize) -> Vec<u64> {
    let mut marks = vec![0; words];
    for place in places {
        marks[(place - base) / WORD] |= 1 << ((place - base) % WORD);
    }
    marks
}

/// The repeats that each kernel finds at these places, batch by batch.
fn found(history: &[u8], places: &[usize]) -> Vec<Repeat> {
    let base = 11;
    let all = marks(places, base, history.len().div_ceil(WORD));
    let each: Vec<Vec<Repeat>> = Kernel::available()
        .into_iter()
        .map(|kernel| {
            let (mut batch, mut tables) = (Batch::new(), Tables::new());
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
    for other in &each {
        assert_eq!(*other, each[0]);
    }
    each[0].clone()
}

/// Whether these are repeats, and all that they are said to be.
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
fn the_latest_place_with_the_most_bytes_is_found() {
    // By 4 bytes, by 8, and by 16; a later one with less does not count.
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
fn a_text_that_begins_knows_nothing_of_the_one_before() {
    let text = b".................word1word2word3word4......................................";
    for kernel in Kernel::available() {
        let (mut batch, mut tables) = (Batch::new(), Tables::new());
        let mut count = |tables: &mut Tables| {
            let marks = marks(&[17, 22, 27, 32], 0, 1);
            assert!(kernel.find(&mut batch, tables, text, &marks, 0).is_empty());
            kernel.find(&mut batch, tables, text, &[], 0).len()
        };
        assert_eq!(count(&mut tables), 3);
        assert_eq!(count(&mut tables), 4);
        tables.clear();
        assert_eq!(count(&mut tables), 3);
    }
}

#[test]
fn the_rest_of_a_short_repeat_is_left_out() {
    let found_in = |text: &str, word: &str| {
        let text = format!("{:16}{text}1 {text}2{:40}", "", "");
        let second = text.rfind(word).unwrap();
        let places: Vec<usize> = text
            .match_indices("al_")
            .chain(text.match_indices(word))
            .map(|(at, _)| at)
            .collect();
        let found = found(text.as_bytes(), &places);
        found.iter().any(|repeat| repeat.at as usize == second)
    };
    assert!(!found_in("al_pha_beta", "beta"));
    assert!(found_in("al_pha_beta_and_gamma", "beta"));
}

#[test]
fn as_many_places_as_there_can_be() {
    let text: Vec<u8> = (0..4_000_u32).map(|at| (at * at / 7) as u8 % 3).collect();
    let places: Vec<usize> = (BEHIND..text.len() - AHEAD).step_by(2).collect();
    check(&text, &places);
    assert!(!found(&text, &places).is_empty());
}

#[test]
#[should_panic(expected = "as many bytes are there")]
fn a_place_too_near_to_the_end() {
    let marks = marks(&[40], 0, 1);
    let (mut batch, mut tables) = (Batch::new(), Tables::new());
    for marks in [&marks[..], &[]] {
        Kernel::detect().find(&mut batch, &mut tables, &[1; 71], marks, 0);
    }
}

#[test]
#[should_panic(expected = "as many bytes are there")]
fn a_place_too_near_to_the_beginning() {
    let marks = marks(&[BEHIND - 1], 0, 1);
    let (mut batch, mut tables) = (Batch::new(), Tables::new());
    for marks in [&marks[..], &[]] {
        Kernel::detect().find(&mut batch, &mut tables, &[1; 99], marks, 0);
    }
}

#[test]
#[should_panic(expected = "too many marks")]
fn too_many_marks() {
    let marks = [0; WORDS + 1];
    Kernel::detect().find(&mut Batch::new(), &mut Tables::new(), &[1; 99], &marks, 0);
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
