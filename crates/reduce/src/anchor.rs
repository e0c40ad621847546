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
/// Values that sixteen bits of a hash can have.
const ALL: u64 = 1 << 16;

/// A place in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkAnchor {
    /// Bytes from the chunk's start.
    pub(crate) at: usize,
    /// The hash of the [`WINDOW`] bytes there.
    pub(crate) hash: u64,
}

/// Returns the anchors in these bytes, in order.
///
/// For data that compression alone shrinks `expansion` times, most anchors are left out: only
/// longer repeats are worth a copy there, and each anchor that is kept or looked up costs a cache
/// miss. Half of an anchor's bytes decide whether it stays. An anchor that stays at one expansion
/// also stays at each lower one.
pub(crate) fn anchors(bytes: &[u8], expansion: usize) -> Vec<ChunkAnchor> {
    let kept = match expansion {
        0 | 1 => ALL,
        2 | 3 => ALL / 3,
        _ => ALL / 12,
    };
    let chosen = places::PlacesKernel::detect().positions(bytes);
    let mut found = Vec::with_capacity(chosen.len() * kept as usize / ALL as usize + 8);
    let mut free = 0;
    for at in chosen {
        let at = at as usize;
        if at < free {
            continue;
        }
        let Some(window) = bytes[at..].first_chunk() else {
            return found;
        };
        free = at + LEAST_SPACING;
        let front = front_of(window);
        if front >> 48 < kept {
            let hash = hash_of(front, window);
            found.push(ChunkAnchor { at, hash });
        }
    }
    found
}

/// Hash of a window's first half.
///
/// Together with the second half it identifies the window by three products of 128 bits, folded, as
/// wyhash does (Wang Yi, 2019). Collisions of two windows are harmless, so only speed matters.
fn front_of(window: &[u8; WINDOW]) -> u64 {
    fold(word(window, 0), word(window, 1))
}

/// Hash of a window. Its highest bits are those of the front, so that anchors kept at one expansion
/// share them.
fn hash_of(front: u64, window: &[u8; WINDOW]) -> u64 {
    const HIGHEST: u64 = 0xf << 60;
    let back = fold(word(window, 2), word(window, 3));
    front & HIGHEST | fold(front ^ SECRETS[1], back ^ SECRETS[2]) & !HIGHEST
}

fn word(window: &[u8; WINDOW], index: usize) -> u64 {
    let (words, _) = window.as_chunks();
    u64::from_le_bytes(words[index]) ^ SECRETS[index]
}

fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

/// Odd and with as many ones as zeros, as wyhash asks of them; they are its own.
const SECRETS: [u64; 4] = [
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5899_65cc_7537_4cc3,
];

#[cfg(test)]
mod tests {
    use vocab::SeededRandom;

    use super::*;

    #[test]
    fn anchors_depend_only_on_content() {
        let mut data = vec![0; 60_000];
        SeededRandom::from_seed(1).fill(&mut data);
        let whole = anchors(&data, 1);
        let mean = data.len() / whole.len();
        assert!((70..130).contains(&mean), "{mean}");
        for shift in [1, 7, 16, 1001] {
            let shifted = anchors(&data[shift..], 1);
            let same = shifted.iter().filter(|anchor| {
                let at = anchor.at + shift;
                let hash = anchor.hash;
                whole.contains(&ChunkAnchor { at, hash })
            });
            assert!(same.count() + 2 >= shifted.len());
        }
    }

    #[test]
    fn text_has_the_expected_anchors() {
        let mut random = SeededRandom::from_seed(2);
        let words = [
            "the", "while", "let", "mut", "return", "struct", "(self)", "{\n    ",
        ];
        let mut text = Vec::new();
        while text.len() < 60_000 {
            text.extend_from_slice(words[random.below(8) as usize].as_bytes());
            text.extend_from_slice(format!(" {} ", random.below(5000)).as_bytes());
        }
        let mean = text.len() / anchors(&text, 1).len();
        assert!((30..200).contains(&mean), "{mean}");
    }

    #[test]
    fn anchors_persist_at_lower_expansions() {
        let mut data = vec![0; 600_000];
        SeededRandom::from_seed(3).fill(&mut data);
        let kept = [1, 2, 3, 4, 9].map(|expansion| anchors(&data, expansion));
        for pair in kept.windows(2) {
            assert!(pair[1].iter().all(|anchor| pair[0].contains(anchor)));
        }
        let [all, third, _, twelfth, _] = kept.each_ref().map(Vec::len);
        assert!((5..8).contains(&(2 * all / third)), "{third} of {all}");
        assert!((9..16).contains(&(all / twelfth)), "{twelfth} of {all}");
    }

    #[test]
    fn constant_and_short_chunks_have_few() {
        assert_eq!(anchors(&[0; 6400], 1), []);
        for byte in 0..=255 {
            assert!(anchors(&[byte; 6400], 1).len() <= 6400 / LEAST_SPACING);
        }
        for length in 0..100 {
            let data: Vec<u8> = (0..length).map(|index| (index * 7) as u8).collect();
            let found = anchors(&data, 1);
            assert!(found.iter().all(|anchor| anchor.at + WINDOW <= length));
        }
    }
}
