//! Every kernel against the definition.

use proptest::prelude::*;

use super::*;

fn check(bytes: &[u8]) {
    let begins = |position: usize| {
        is_word(bytes[position]) && (position == 0 || !is_word(bytes[position - 1]))
    };
    for kernel in WordsKernel::available() {
        // What was there before is gone.
        let mut marks = vec![u64::MAX; 3];
        kernel.mark(bytes, &mut marks);
        assert_eq!(marks.len(), bytes.len().div_ceil(WORD));
        for position in 0..marks.len() * WORD {
            let marked = marks[position / WORD] >> (position % WORD) & 1 == 1;
            let expected = position < bytes.len() && begins(position);
            assert_eq!(
                marked,
                expected,
                "{kernel:?}, {position} of {}",
                bytes.len()
            );
        }
    }
}

#[test]
fn every_length_up_to_several_words() {
    let bytes: Vec<u8> = (0..400_u32)
        .map(|at| (at * at * 7 + at / 3) as u8)
        .collect();
    for length in 0..bytes.len() {
        check(&bytes[..length]);
        check(&bytes[bytes.len() - length..]);
    }
}

#[test]
fn every_value_of_a_byte_between_others() {
    let bytes: Vec<u8> = (0..=255)
        .flat_map(|value| [value, b' ', value, b'a'])
        .collect();
    check(&bytes);
    let words = (0..=255_u8).filter(|byte| is_word(*byte));
    let ascii = words.filter(u8::is_ascii).collect::<Vec<u8>>();
    assert!(ascii.iter().all(u8::is_ascii_alphanumeric));
    assert_eq!(ascii.len(), 62);
}

#[test]
fn words_continue_across_mark_boundaries() {
    let mut bytes = [b'a'; 3 * WORD];
    bytes[WORD - 2] = b' ';
    let mut marks = Vec::new();
    WordsKernel::detect().mark(&bytes, &mut marks);
    assert_eq!(marks, [1 | 1 << (WORD - 1), 0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        check(&bytes);
    }
}
