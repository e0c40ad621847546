//! Anchors: places in a chunk by which the same bytes are found again elsewhere.
//!
//! ```text
//! …………╎●……………●………●………………………●……   four bytes at ● choose the place, the next 32 name it
//! ```
//! About one position in [`SPACING`] is chosen, by its four bytes alone, so the same bytes give
//! the same anchors wherever they stand. The choice is made of byte arithmetic without carries
//! between positions, which compilers turn into vector instructions (0.3 ns a byte); the naming
//! hash is taken only where it fell.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes that an anchor's hash stands for: the shortest repeat that is found by it.
pub(crate) const WINDOW: usize = 32;
/// Positions of which one is chosen, in the mean.
const SPACING: usize = 64;
/// Positions after an anchor where none is taken: bounds how many a constant run of bytes has.
const LEAST_SPACING: usize = 16;
/// Bytes that choose a position.
const CHOOSING: usize = 4;
/// Positions that are looked at together ...
const BLOCK: usize = 64;
/// ... and the bytes that they take.
const BLOCK_BYTES: usize = BLOCK + CHOOSING - 1;
/// Of the 256 values of a position's bytes, so many choose it.
const CHOSEN: u8 = (256 / SPACING) as u8;

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
    let mut found = Vec::with_capacity(bytes.len() / SPACING + 8);
    let positions = (bytes.len() + 1).saturating_sub(WINDOW);
    let mut free = 0;
    let mut take = |at: usize| {
        if at >= free && at < positions {
            let hash = xxh3_64(&bytes[at..at + WINDOW]);
            found.push(Anchor { at, hash });
            free = at + LEAST_SPACING;
        }
    };
    let mut start = 0;
    while let Some(block) = bytes[start..].first_chunk() {
        choose(block, |index| take(start + index));
        start += BLOCK;
    }
    let rest = &bytes[start..];
    let mut block = [0; BLOCK_BYTES];
    block[..rest.len()].copy_from_slice(rest);
    choose(&block, |index| take(start + index));
    found
}

/// Drops most anchors of data of which compression by itself makes an `expansion`th: there only
/// longer repeats are worth a copy, and each anchor that is kept or looked for costs a miss of the
/// processor's cache. Which ones stay is decided by their hashes, and what stays at one expansion
/// stays at each lower one.
pub(crate) fn thin_out(anchors: &mut Vec<Anchor>, expansion: usize) {
    let kept = match expansion {
        0 | 1 => return,
        2 | 3 => 4,
        _ => 16,
    };
    anchors.retain(|anchor| (anchor.hash >> 48).is_multiple_of(kept));
}

/// Hands the block's positions that are anchors to `take`.
fn choose(block: &[u8; BLOCK_BYTES], mut take: impl FnMut(usize)) {
    let mut chosen = [0; BLOCK];
    for (index, chosen) in chosen.iter_mut().enumerate() {
        let [one, two, three, four] = [
            block[index],
            block[index + 1],
            block[index + 2],
            block[index + 3],
        ];
        let sum = one
            .wrapping_add(two.wrapping_mul(3))
            .wrapping_add(three << 3);
        let mixed = sum ^ four.wrapping_add(three << 2);
        // The constant keeps runs of zeros from being chosen.
        *chosen = u8::from(mixed.wrapping_add(0x35) < CHOSEN);
    }
    if chosen.iter().fold(0, |any, chosen| any | chosen) == 0 {
        return;
    }
    let (words, _) = chosen.as_chunks();
    for (number, word) in words.iter().enumerate() {
        let mut word = u128::from_le_bytes(*word);
        while word != 0 {
            take(16 * number + word.trailing_zeros() as usize / 8);
            word &= word - 1;
        }
    }
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
        assert!((50..100).contains(&mean), "{mean}");
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
        assert!((30..150).contains(&mean), "{mean}");
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
