//! The kernels against the crate `blake3`, whose own tests hold it to the published vectors.

use proptest::prelude::*;

use super::*;

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * (2 * seed + 1) + at / 251 + seed) as u8)
        .collect()
}

fn check(inputs: &[&[u8]]) {
    let Some(kernel) = Blake3Kernel::detect() else {
        return;
    };
    let hashes = kernel.hash_each(inputs);
    assert_eq!(hashes.len(), inputs.len());
    for (input, hash) in inputs.iter().zip(hashes) {
        assert_eq!(hash, *blake3::hash(input).as_bytes(), "{}", input.len());
    }
}

#[test]
fn the_schedule_is_the_permutation_again_and_again() {
    // The paper's reference implementation lists the last round's order so.
    let last = [11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13];
    assert_eq!(SCHEDULE[6], last);
}

#[test]
fn every_length_alone() {
    for length in (0..2 * LEAF + 70).chain((1..40).flat_map(|leaf| {
        let whole = leaf * LEAF;
        [whole - 1, whole, whole + 1, whole + 64, whole + 65]
    })) {
        check(&[&pattern(length, length)]);
    }
}

#[test]
fn none_and_many_of_all_lengths() {
    check(&[]);
    let many: Vec<Vec<u8>> = (0..70).map(|seed| pattern(seed * seed * 3, seed)).collect();
    let many: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
    check(&many);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lengths_and_places_do_not_matter(
        inputs in prop::collection::vec((0..20_000_usize, 0..64_usize), 0..24),
    ) {
        let buffers: Vec<Vec<u8>> = inputs
            .iter()
            .map(|(length, shift)| pattern(length + shift, *shift))
            .collect();
        let slices: Vec<&[u8]> = buffers
            .iter()
            .zip(&inputs)
            .map(|(buffer, (_, shift))| &buffer[*shift..])
            .collect();
        check(&slices);
    }
}
