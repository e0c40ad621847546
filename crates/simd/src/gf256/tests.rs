//! Every kernel against the bitwise definition, and the definition against published facts.

use proptest::prelude::*;

use super::*;

/// Longest slice that is tried with every constant: past four vectors of 64 bytes, and a rest.
const LONGEST: usize = 4 * 64 + 67;

/// Bytes that go through all values and do not repeat with the length of a vector.
fn pattern(length: usize, step: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * step + at / 251 + 1) as u8)
        .collect()
}

fn reference(target: &[u8], terms: &[(&[u8], u8)]) -> Vec<u8> {
    let mut sum = target.to_vec();
    for (source, constant) in terms {
        for (byte, from) in sum.iter_mut().zip(*source) {
            *byte ^= multiply_bitwise(*from, *constant);
        }
    }
    sum
}

#[test]
fn the_field_is_that_of_rfc_5510() {
    // RFC 5510 §8.1 (Finite Field): α⁸ = α⁴ + α³ + α² + 1, and α generates all 255 elements.
    let mut element = 1;
    let mut seen = [false; 256];
    for _ in 0..255 {
        assert!(!seen[usize::from(element)]);
        seen[usize::from(element)] = true;
        element = multiply_bitwise(element, 2);
    }
    assert_eq!(element, 1);
    assert!(!seen[0]);
    assert_eq!(multiply_bitwise(0x80, 2), 0x1D);
    // From tables printed with Reed–Solomon coders over 0x11D: α¹⁰⁰ = 17, α²⁵ = 3.
    let power = |exponent| (0..exponent).fold(1, |product, _| multiply_bitwise(product, 2));
    assert_eq!((power(25), power(100)), (3, 17));
}

#[test]
fn element_products_and_inverses_match_the_definition() {
    for one in 0..=255 {
        for other in 0..=255 {
            assert_eq!(multiply(one, other), multiply_bitwise(one, other));
        }
        if one != 0 {
            assert_eq!(multiply_bitwise(one, inverse(one)), 1);
        }
    }
}

#[test]
#[should_panic(expected = "0 has no inverse")]
fn zero_has_no_inverse() {
    let _ = inverse(0);
}

#[test]
fn detected_kernel_is_the_best_available() {
    assert_eq!(
        Gf256Kernel::available().last(),
        Some(&Gf256Kernel::detect())
    );
}

#[test]
fn every_kernel_multiplies_every_element_by_every_constant() {
    let all: Vec<u8> = (0..=255).collect();
    for kernel in Gf256Kernel::available() {
        for constant in 0..=255 {
            let mut sum = vec![0; 256];
            kernel.mul_add(&mut sum, &all, constant);
            let mut scaled = all.clone();
            kernel.scale(&mut scaled, constant);
            let right: Vec<u8> = all
                .iter()
                .map(|element| multiply_bitwise(*element, constant))
                .collect();
            assert_eq!(sum, right, "{} by {constant}", kernel.name());
            assert_eq!(scaled, right, "{} scales by {constant}", kernel.name());
        }
    }
}

#[test]
fn every_kernel_takes_every_length_with_every_constant() {
    let source = pattern(LONGEST, 7);
    let target = pattern(LONGEST, 13);
    for kernel in Gf256Kernel::available() {
        for length in 0..=LONGEST {
            // All constants with the lengths round a vector's; for others a few of each kind.
            let step = if length % 16 < 2 || length % 16 == 15 {
                1
            } else {
                37
            };
            for constant in (0..=255).step_by(step) {
                let mut sum = target[..length].to_vec();
                kernel.mul_add(&mut sum, &source[..length], constant);
                let right = reference(&target[..length], &[(&source[..length], constant)]);
                assert_eq!(sum, right, "{} {length} by {constant}", kernel.name());
            }
        }
    }
}

#[test]
fn kernels_stay_within_slices_at_every_alignment() {
    let source = pattern(LONGEST + 64, 11);
    for kernel in Gf256Kernel::available() {
        for offset in 0..64 {
            for length in [
                0,
                1,
                15,
                16,
                17,
                63,
                64,
                65,
                127,
                128,
                255,
                256,
                257,
                LONGEST - 64,
            ] {
                let mut around = pattern(LONGEST + 64, 3);
                let before = around.clone();
                let middle = offset..offset + length;
                // The source lies at another alignment than the target.
                let from = &source[63 - offset..][..length];
                kernel.mul_add(&mut around[middle.clone()], from, 0xA7);
                let right = reference(&before[middle.clone()], &[(from, 0xA7)]);
                assert_eq!(around[..offset], before[..offset]);
                assert_eq!(around[middle.clone()], right);
                assert_eq!(around[middle.end..], before[middle.end..]);
                kernel.scale(&mut around[middle.clone()], 0x53);
                let right: Vec<u8> = right.iter().map(|b| multiply_bitwise(*b, 0x53)).collect();
                assert_eq!(around[middle.clone()], right);
                assert_eq!(around[..offset], before[..offset]);
                assert_eq!(around[middle.end..], before[middle.end..]);
            }
        }
    }
}

#[test]
#[should_panic(expected = "as long as the target")]
fn a_source_of_another_length_is_refused() {
    Gf256Kernel::detect().mul_add(&mut [0; 64], &[0; 63], 1);
}

proptest! {
    #[test]
    fn multi_term_product_equals_sum_of_terms(
        target in proptest::collection::vec(any::<u8>(), 0..1_600),
        constants in proptest::collection::vec(any::<u8>(), 0..24),
        step in 1_usize..1_000,
    ) {
        let sources: Vec<Vec<u8>> = (0..constants.len())
            .map(|number| pattern(target.len(), step + number))
            .collect();
        let terms: Vec<(&[u8], u8)> = sources
            .iter()
            .zip(&constants)
            .map(|(source, constant)| (&source[..], *constant))
            .collect();
        let right = reference(&target, &terms);
        for kernel in Gf256Kernel::available() {
            let mut sum = target.clone();
            kernel.mul_add_many(&mut sum, &terms);
            prop_assert_eq!(&sum, &right, "{}", kernel.name());
        }
    }
}
