//! Anchors: places in a chunk by which the same bytes are found again elsewhere.
//!
//! ```text
//! …………╎●……………●………●………………………●……   four bytes at ● choose the place, the next 32 name it
//! ```
//! About one position in [`places::SPACING`] is chosen, by its four bytes alone, so the same bytes give
//! the same anchors wherever they stand. The choice is a vector kernel's (`simd::places`); the
//! naming hash is taken only where it fell.

use simd::places;

/// Bytes that an anchor's hash stands for: the shortest repeat that is found by it.
pub(crate) const WINDOW: usize = 32;
/// Positions after an anchor where none is taken: bounds how many a constant run of bytes has.
const LEAST_SPACING: usize = 16;

/// A place in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// Bytes from the chunk's start.
    pub(crate) at: usize,
    /// The hash of the [`WINDOW`] bytes there.
    pub(crate) hash: u64,
}

/// The anchors in these bytes, in order.
pub(crate) fn anchors(bytes: &[u8]) -> Vec<Anchor> {
    let mut found = Vec::with_capacity(bytes.len() / places::SPACING * 5 / 4 + 8);
    let marks = places::Kernel::detect().mark(bytes);
    let mut free = 0;
    for (number, mut marks) in marks.into_iter().enumerate() {
        while marks != 0 {
            let at = 64 * number + marks.trailing_zeros() as usize;
            marks &= marks - 1;
            if at < free {
                continue;
            }
            let Some(window) = bytes[at..].first_chunk() else {
                return found;
            };
            found.push(Anchor {
                at,
                hash: hash_of(window),
            });
            free = at + LEAST_SPACING;
        }
    }
    found
}

/// Names a window by three products of 128 bits, folded, as wyhash does (Wang Yi, 2019): nothing
/// depends on two windows never having the same name, so speed is all that is asked.
fn hash_of(window: &[u8; WINDOW]) -> u64 {
    let (words, _) = window.as_chunks();
    let word = |index: usize| u64::from_le_bytes(words[index]) ^ SECRETS[index];
    let fold = |one: u64, other: u64| {
        let product = u128::from(one) * u128::from(other);
        product as u64 ^ (product >> 64) as u64
    };
    let (front, back) = (fold(word(0), word(1)), fold(word(2), word(3)));
    fold(front ^ SECRETS[1], back ^ SECRETS[2])
}

/// Odd and with as many ones as zeros, as wyhash asks of them; they are its own.
const SECRETS: [u64; 4] = [
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5899_65cc_7537_4cc3,
];

/// Drops most anchors of data of which compression by itself makes an `expansion`th: there only
/// longer repeats are worth a copy, and each anchor that is kept or looked for costs a miss of the
/// processor's cache. Which ones stay is decided by their hashes, and what stays at one expansion
/// stays at each lower one.
pub(crate) fn thin_out(anchors: &mut Vec<Anchor>, expansion: usize) {
    let kept = match expansion {
        0 | 1 => return,
        2 | 3 => 3,
        _ => 12,
    };
    anchors.retain(|anchor| (anchor.hash >> 48).is_multiple_of(kept));
}

#[cfg(test)]
mod tests {
    use vocab::Random;

    use super::*;

    #[test]
    fn the_same_bytes_have_the_same_anchors_wherever_they_stand() {
        let mut data = vec![0; 60_000];
        Random::from_seed(1).fill(&mut data);
        let whole = anchors(&data);
        let mean = data.len() / whole.len();
        assert!((70..130).contains(&mean), "{mean}");
        for shift in [1, 7, 16, 1001] {
            let shifted = anchors(&data[shift..]);
            let same = shifted.iter().filter(|anchor| {
                let at = anchor.at + shift;
                let hash = anchor.hash;
                whole.contains(&Anchor { at, hash })
            });
            assert!(same.count() + 2 >= shifted.len());
        }
    }

    #[test]
    fn text_has_its_share() {
        let mut random = Random::from_seed(2);
        let words = [
            "the", "while", "let", "mut", "return", "struct", "(self)", "{\n    ",
        ];
        let mut text = Vec::new();
        while text.len() < 60_000 {
            text.extend_from_slice(words[random.below(8) as usize].as_bytes());
            text.extend_from_slice(format!(" {} ", random.below(5000)).as_bytes());
        }
        let mean = text.len() / anchors(&text).len();
        assert!((30..200).contains(&mean), "{mean}");
    }

    #[test]
    fn constant_and_short_chunks_have_few() {
        assert_eq!(anchors(&[0; 6400]), []);
        for byte in 0..=255 {
            assert!(anchors(&[byte; 6400]).len() <= 6400 / LEAST_SPACING);
        }
        for length in 0..100 {
            let data: Vec<u8> = (0..length).map(|index| (index * 7) as u8).collect();
            let found = anchors(&data);
            assert!(found.iter().all(|anchor| anchor.at + WINDOW <= length));
        }
    }
}
