//! Cuts a byte stream into chunks where its content says so.
//!
//! A gear hash rolls over the last 64 bytes; a chunk ends after the byte where the hash's masked
//! bits are all zero. The rule is causal: whether a chunk ends at a byte depends on that chunk's
//! bytes so far and on nothing after, so data can be cut as it trickles in, and the cuts do not
//! depend on how it was handed over. The first [`MIN_CHUNK`] bytes are not even hashed (but for the
//! last 64), which makes it fast, and then an end is near, so most chunks have some 10 KiB.
//!
//! Only the encoder cuts; the encoded stream tells the decoder where chunks end. The rule can
//! therefore change without breaking the format, at the price of one cold transfer.

use std::ops::Range;

use crate::config::{MAX_CHUNK, MIN_CHUNK};

/// Bytes that the hash looks back on: each shift moves a byte's influence up by one bit.
const WINDOW: usize = 64;
/// Eleven high bits: a cut follows within about 2 KiB.
const MASK: u64 = 0xffe0_0000_0000_0000;
/// Stretches that are gone through in step: enough for one's step to wait for another's.
const LANES: usize = 4;
/// Bytes of each lane. Bytes searched beyond the end of a chunk are wasted work.
const LANE: usize = 256;

/// State of the current chunk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chunker {
    hash: u64,
    length: usize,
}

impl Chunker {
    /// Adds the stream's next bytes. Returns how many of them belong to the current chunk when it
    /// ends within them (pass the rest again), or `None` when all of them do and it continues.
    pub(crate) fn cut(&mut self, bytes: &[u8]) -> Option<usize> {
        let skipped = (MIN_CHUNK - WINDOW).saturating_sub(self.length);
        if bytes.len() <= skipped {
            self.length += bytes.len();
            return None;
        }
        let limit = bytes.len().min(MAX_CHUNK - self.length);
        let warm = limit.min(MIN_CHUNK.saturating_sub(self.length + 1).max(skipped));
        let mut hash = self.hash;
        for byte in &bytes[skipped..warm] {
            hash = roll(hash, *byte);
        }
        if let Some(end) = find(&mut hash, bytes, warm..limit) {
            *self = Self::default();
            return Some(end);
        }
        if self.length + limit == MAX_CHUNK {
            *self = Self::default();
            return Some(limit);
        }
        self.hash = hash;
        self.length += limit;
        None
    }
}

/// Returns the end of the chunk if it is in this range of the bytes, and updates the hash to that
/// of the range's end.
///
/// Each step of the hash depends on the one before, and that latency exceeds the other work. So
/// several stretches are searched side by side, each but the first from a hash of the bytes before
/// it. The first end found counts.
fn find(hash: &mut u64, bytes: &[u8], range: Range<usize>) -> Option<usize> {
    let mut start = range.start;
    while start + LANES * LANE <= range.end {
        let starts: [usize; LANES] = std::array::from_fn(|number| start + number * LANE);
        let mut hashes = [*hash; LANES];
        for (hash, start) in hashes.iter_mut().zip(starts).skip(1) {
            *hash = warmed(&bytes[start - WINDOW..start]);
        }
        let lanes = starts.map(|start| &bytes[start..start + LANE]);
        if let Some((number, index)) = find_in_lanes(&mut hashes, lanes) {
            // Those before it are not at their ends yet.
            let before = (0..number).find_map(|number| {
                let from = starts[number] + index + 1;
                let to = starts[number] + LANE;
                find_in_one(&mut hashes[number], &bytes[..to], from)
            });
            return before.or(Some(starts[number] + index + 1));
        }
        *hash = hashes[LANES - 1];
        start += LANES * LANE;
    }
    find_in_one(hash, &bytes[..range.end], start)
}

/// The first of the lanes, and the index in it, whose hash shows an end after the fewest steps.
#[inline]
fn find_in_lanes(hashes: &mut [u64; LANES], lanes: [&[u8]; LANES]) -> Option<(usize, usize)> {
    let [one, two, three, four] = lanes;
    let bytes = one.iter().zip(two).zip(three).zip(four).enumerate();
    for (index, (((one, two), three), four)) in bytes {
        for (hash, byte) in hashes.iter_mut().zip([one, two, three, four]) {
            *hash = roll(*hash, *byte);
        }
        if let Some(number) = hashes.iter().position(|hash| hash & MASK == 0) {
            return Some((number, index));
        }
    }
    None
}

/// The end of the chunk, if it is in these bytes from `from` on.
fn find_in_one(hash: &mut u64, bytes: &[u8], from: usize) -> Option<usize> {
    for (index, byte) in bytes.iter().enumerate().skip(from) {
        *hash = roll(*hash, *byte);
        if *hash & MASK == 0 {
            return Some(index + 1);
        }
    }
    None
}

/// The hash after these bytes, which are [`WINDOW`].
fn warmed(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |hash, byte| roll(hash, *byte))
}

#[inline(always)]
fn roll(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

/// One random number for each byte value, from SplitMix64 with a fixed seed: part of what makes
/// two nodes, and two releases, cut alike.
const GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let mut counter: u64 = 0x5472_756e_6b6c_696e;
    let mut index = 0;
    while index < 256 {
        counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = counter;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[index] = mixed ^ (mixed >> 31);
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use vocab::SeededRandom;

    use super::*;

    fn cuts(data: &[u8], mut piece: impl FnMut() -> usize) -> Vec<usize> {
        let mut chunker = Chunker::default();
        let (mut ends, mut start) = (Vec::new(), 0);
        while start < data.len() {
            let end = data.len().min(start.saturating_add(piece()));
            match chunker.cut(&data[start..end]) {
                Some(length) => {
                    start += length;
                    ends.push(start);
                }
                None => start = end,
            }
        }
        ends
    }

    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        SeededRandom::from_seed(seed).fill(&mut data);
        data
    }

    #[test]
    fn cuts_are_independent_of_input_pieces() {
        let data = noise(1, 600_000);
        let whole = cuts(&data, || usize::MAX);
        assert_eq!(whole, cuts(&data, || 1));
        let mut random = SeededRandom::from_seed(2);
        for most in [3, 100, 5_000, 70_000] {
            assert_eq!(whole, cuts(&data, || 1 + random.below(most) as usize));
        }
    }

    #[test]
    fn cuts_follow_the_rolling_hash() {
        let data = noise(6, 600_000);
        let (mut expected, mut start) = (Vec::new(), 0);
        for end in 1..=data.len() {
            let length = end - start;
            let chosen = length >= MIN_CHUNK && warmed(&data[end - WINDOW..end]) & MASK == 0;
            if chosen || length == MAX_CHUNK {
                expected.push(end);
                start = end;
            }
        }
        assert_eq!(cuts(&data, || usize::MAX), expected);
    }

    #[test]
    fn chunks_keep_their_bounds_and_their_mean() {
        let data = noise(3, 4 << 20);
        let ends = cuts(&data, || usize::MAX);
        let mut start = 0;
        for end in &ends {
            assert!((MIN_CHUNK..=MAX_CHUNK).contains(&(end - start)));
            start = *end;
        }
        let mean = data.len() / ends.len();
        assert!((9_500..11_000).contains(&mean), "mean {mean}");
        let flat = cuts(&vec![0; 1 << 20], || usize::MAX);
        assert!(flat.len() >= 16);
    }

    #[test]
    fn cuts_fall_in_step_again_after_an_insertion() {
        let data = noise(4, 1 << 20);
        let mut edited = data.clone();
        edited.splice(300_000..300_000, *b"!");
        let before = cuts(&data, || usize::MAX);
        let after = cuts(&edited, || usize::MAX);
        let same = after
            .iter()
            .filter(|end| before.contains(&(**end - usize::from(**end > 300_000))))
            .count();
        assert!(same + 8 >= before.len(), "{same} of {}", before.len());
    }

    /// The cuts are what two releases have in common: a change here costs every user one cold
    /// transfer and needs a line in the change log.
    #[test]
    fn cuts_match_recorded_ones() {
        let ends = cuts(&noise(5, 64 * 1024), || usize::MAX);
        assert_eq!(ends, GOLDEN);
    }

    const GOLDEN: &[usize] = &[9_617, 17_896, 27_348, 37_548, 46_655, 56_812];
}
