//! Every kernel against the definition.

use proptest::prelude::*;

use super::*;

fn check(bytes: &[u8]) {
    let chosen = |position: usize| {
        bytes[position..]
            .first_chunk()
            .is_some_and(|four| is_chosen(*four))
    };
    let all: Vec<u32> = (0..bytes.len())
        .filter(|position| chosen(*position))
        .map(|position| position as u32)
        .collect();
    for kernel in PlacesKernel::available() {
        assert_eq!(kernel.positions(bytes), all, "{kernel:?}");
        let marks = kernel.mark(bytes);
        for position in 0..bytes.len().max(marks.len() * WORD) {
            let word = marks.get(position / WORD).copied().unwrap_or(0);
            let marked = word >> (position % WORD) & 1 == 1;
            let expected = position < bytes.len() && chosen(position);
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
fn every_value_of_each_byte() {
    let bytes: Vec<u8> = (0..4)
        .flat_map(|place| (0..=255).map(move |value| (place, value)))
        .flat_map(|(place, value)| {
            let mut four = [17, 93, 140, 201];
            four[place] = value;
            four
        })
        .collect();
    check(&bytes);
}

#[test]
fn as_many_positions_as_there_can_be() {
    // Of the same byte all are chosen, or none.
    let chosen: Vec<u8> = (0..=255).filter(|byte| is_chosen([*byte; 4])).collect();
    assert!(!chosen.is_empty());
    for byte in chosen {
        for length in [3, 66, 67, 130, 131, 20_000] {
            check(&vec![byte; length]);
        }
    }
}

#[test]
fn expected_share_is_chosen_without_zero_runs() {
    assert!(!is_chosen([0; CHOOSING]));
    let all = (0..=255_u8).flat_map(|one| (0..=255).map(move |four| [one, 9, 77, four]));
    let chosen = all.filter(|four| is_chosen(*four)).count();
    assert_eq!(chosen, 65_536 * usize::from(CHOSEN) / 256);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        check(&bytes);
    }
}
