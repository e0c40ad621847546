//! Plain LZ77 ([MS-XCA] §2.3 and §2.4), which [MS-OXCRPC] calls DIRECT2.
//!
//! ```text
//!  32 flags (LE) │ 32 items: flag 0 a literal byte; flag 1 a match
//!  match: u16 = (distance − 1) << 3 │ length − 3, and if that is 7: a nibble, and if that is 15: a byte,
//!         and if that is 255: a u16, and if that is 0: a u32
//! ```
//! Two matches share the byte of their nibbles. Literals are copied in runs, and matches in the
//! longest pieces that do not overlap. The output is limited by the announced size, so a small
//! input cannot fill memory.

use thiserror::Error;

/// The shortest match.
const MATCH_MIN: usize = 3;
/// The greatest distance: 13 bits.
const WINDOW: usize = 8192;
/// Bits of the compressor's table of positions.
const HASH_BITS: u32 = 13;
/// Earlier positions that the compressor compares for one match.
const CHAIN_MAX: usize = 16;
/// A match of this length is taken without a look for a longer one.
const GOOD_MATCH: usize = 64;

/// Compressed data that is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Lz77Error {
    /// It ends in the middle of an item.
    #[error("it ends in the middle of an item")]
    Truncated,
    /// A match begins before the data does.
    #[error("a match begins before the data")]
    Distance,
    /// A length has an impossible form.
    #[error("a length is not valid")]
    Length,
    /// It gives more bytes than announced.
    #[error("it gives more bytes than announced")]
    TooLong,
    /// It gives fewer bytes than announced.
    #[error("it gives fewer bytes than announced")]
    TooShort,
}

/// Decompresses `input`, which gives exactly `size` bytes.
///
/// # Errors
/// [`Lz77Error`] when it does not.
pub fn decompress(input: &[u8], size: usize) -> Result<Vec<u8>, Lz77Error> {
    let mut output: Vec<u8> = Vec::with_capacity(size);
    let mut at = 0;
    let mut nibble_at = None;
    while at < input.len() {
        let flags = input.get(at..).and_then(<[u8]>::first_chunk);
        let mut flags = u32::from_le_bytes(*flags.ok_or(Lz77Error::Truncated)?);
        at += 4;
        let mut left = 32;
        while left > 0 {
            let literals = (flags.leading_zeros()).min(left) as usize;
            if literals > 0 {
                let run = literals.min(input.len() - at);
                if output.len() + run > size {
                    return Err(Lz77Error::TooLong);
                }
                output.extend_from_slice(&input[at..at + run]);
                at += run;
                if run < literals {
                    // Behind the last literal all flags are ones.
                    return Err(Lz77Error::Truncated);
                }
                left -= literals as u32;
                flags = flags.checked_shl(literals as u32).unwrap_or(0);
                continue;
            }
            if at == input.len() {
                return finished(output, size);
            }
            let (distance, length) = read_match(input, &mut at, &mut nibble_at)?;
            if distance > output.len() {
                return Err(Lz77Error::Distance);
            }
            if length > size - output.len() {
                return Err(Lz77Error::TooLong);
            }
            copy_match(&mut output, distance, length);
            left -= 1;
            flags <<= 1;
        }
    }
    finished(output, size)
}

fn finished(output: Vec<u8>, size: usize) -> Result<Vec<u8>, Lz77Error> {
    if output.len() == size {
        Ok(output)
    } else {
        Err(Lz77Error::TooShort)
    }
}

fn take<const N: usize>(input: &[u8], at: &mut usize) -> Result<[u8; N], Lz77Error> {
    let taken = input.get(*at..).and_then(<[u8]>::first_chunk);
    *at += N;
    taken.copied().ok_or(Lz77Error::Truncated)
}

fn read_match(
    input: &[u8],
    at: &mut usize,
    nibble_at: &mut Option<usize>,
) -> Result<(usize, usize), Lz77Error> {
    let token = usize::from(u16::from_le_bytes(take(input, at)?));
    let distance = (token >> 3) + 1;
    let mut length = token & 7;
    if length == 7 {
        let nibble = match nibble_at.take() {
            Some(shared) => input[shared] >> 4,
            None => {
                *nibble_at = Some(*at);
                take::<1>(input, at)?[0] & 15
            }
        };
        length += usize::from(nibble);
        if nibble == 15 {
            let byte = take::<1>(input, at)?[0];
            length += usize::from(byte);
            if byte == 255 {
                let long = match u16::from_le_bytes(take(input, at)?) {
                    0 => u32::from_le_bytes(take(input, at)?),
                    short => u32::from(short),
                };
                length = usize::try_from(long).map_err(|_| Lz77Error::Length)?;
                if length < 7 + 15 {
                    return Err(Lz77Error::Length);
                }
            }
        }
    }
    let length = length.checked_add(MATCH_MIN).ok_or(Lz77Error::Length)?;
    Ok((distance, length))
}

/// Appends `length` bytes from `distance` bytes before the end. A match may overlap itself; each
/// piece then doubles what can be copied at once.
fn copy_match(output: &mut Vec<u8>, distance: usize, length: usize) {
    let start = output.len() - distance;
    let mut left = length;
    while left > 0 {
        let piece = left.min(output.len() - start);
        output.extend_from_within(start..start + piece);
        left -= piece;
    }
}

/// Compresses `input`. The result may be longer than it.
#[must_use]
pub fn compress(input: &[u8]) -> Vec<u8> {
    let mut writer = ItemWriter::new(input.len());
    let mut heads = vec![u32::MAX; 1 << HASH_BITS];
    let mut earlier = vec![u32::MAX; WINDOW];
    let mut at = 0;
    while at < input.len() {
        let (distance, length) = longest_match(input, at, &heads, &earlier);
        let step = if length >= MATCH_MIN {
            writer.found(distance, length);
            length
        } else {
            writer.literal(input[at]);
            1
        };
        for position in at..at + step {
            if let Some(hash) = hash_at(input, position) {
                earlier[position % WINDOW] = heads[hash];
                heads[hash] = position as u32;
            }
        }
        at += step;
    }
    writer.finish()
}

fn hash_at(input: &[u8], at: usize) -> Option<usize> {
    let three: &[u8; 3] = input.get(at..)?.first_chunk()?;
    let value = u32::from_le_bytes([three[0], three[1], three[2], 0]);
    Some((value.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize)
}

/// The longest match for the bytes at `at` among the latest positions with the same hash.
fn longest_match(input: &[u8], at: usize, heads: &[u32], earlier: &[u32]) -> (usize, usize) {
    let Some(hash) = hash_at(input, at) else {
        return (0, 0);
    };
    let (mut best_distance, mut best) = (0, 0);
    let mut candidate = heads[hash];
    for _ in 0..CHAIN_MAX {
        let position = candidate as usize;
        if candidate == u32::MAX || at - position > WINDOW {
            break;
        }
        let length = common_length(&input[position..], &input[at..]);
        if length > best {
            (best_distance, best) = (at - position, length);
            if best >= GOOD_MATCH {
                break;
            }
        }
        let next = earlier[position % WINDOW];
        if next == u32::MAX || next >= candidate {
            break;
        }
        candidate = next;
    }
    (best_distance, best)
}

fn common_length(one: &[u8], other: &[u8]) -> usize {
    let most = one.len().min(other.len());
    let mut length = 0;
    while let (Some(left), Some(right)) = (
        one.get(length..).and_then(<[u8]>::first_chunk::<8>),
        other.get(length..).and_then(<[u8]>::first_chunk::<8>),
    ) {
        let difference = u64::from_le_bytes(*left) ^ u64::from_le_bytes(*right);
        if difference != 0 {
            return length + (difference.trailing_zeros() / 8) as usize;
        }
        length += 8;
    }
    while length < most && one[length] == other[length] {
        length += 1;
    }
    length
}

/// Writes literals and matches with their flags.
struct ItemWriter {
    output: Vec<u8>,
    flags_at: usize,
    flags: u32,
    count: u32,
    nibble_at: Option<usize>,
}

impl ItemWriter {
    fn new(size: usize) -> Self {
        let mut output = Vec::with_capacity(size + size / 8 + 8);
        output.extend_from_slice(&[0; 4]);
        Self {
            output,
            flags_at: 0,
            flags: 0,
            count: 0,
            nibble_at: None,
        }
    }

    fn literal(&mut self, byte: u8) {
        self.output.push(byte);
        self.flag(0);
    }

    fn found(&mut self, distance: usize, length: usize) {
        let rest = length - MATCH_MIN;
        let token = ((distance - 1) << 3 | rest.min(7)) as u16;
        self.output.extend_from_slice(&token.to_le_bytes());
        if rest >= 7 {
            let nibble = (rest - 7).min(15) as u8;
            match self.nibble_at.take() {
                Some(shared) => self.output[shared] |= nibble << 4,
                None => {
                    self.nibble_at = Some(self.output.len());
                    self.output.push(nibble);
                }
            }
        }
        if rest >= 7 + 15 {
            let byte = (rest - 7 - 15).min(255) as u8;
            self.output.push(byte);
            if byte == 255 {
                match u16::try_from(rest) {
                    Ok(short) => self.output.extend_from_slice(&short.to_le_bytes()),
                    Err(_) => {
                        self.output.extend_from_slice(&[0; 2]);
                        self.output.extend_from_slice(&(rest as u32).to_le_bytes());
                    }
                }
            }
        }
        self.flag(1);
    }

    fn flag(&mut self, flag: u32) {
        self.flags = self.flags << 1 | flag;
        self.count += 1;
        if self.count == 32 {
            self.write_flags();
            self.flags_at = self.output.len();
            self.output.extend_from_slice(&[0; 4]);
            (self.flags, self.count) = (0, 0);
        }
    }

    fn write_flags(&mut self) {
        let bytes = self.flags.to_le_bytes();
        self.output[self.flags_at..self.flags_at + 4].copy_from_slice(&bytes);
    }

    /// The flags behind the last item are ones.
    fn finish(mut self) -> Vec<u8> {
        let unused = 32 - self.count;
        self.flags = self.flags.checked_shl(unused).unwrap_or(0)
            | u32::MAX.checked_shr(self.count).unwrap_or(0);
        self.write_flags();
        self.output
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz";

    #[test]
    fn literals_match_ms_xca_3_1() {
        let mut compressed = vec![0x3f, 0, 0, 0];
        compressed.extend_from_slice(ALPHABET);
        assert_eq!(decompress(&compressed, 26).unwrap(), ALPHABET);
        assert_eq!(compress(ALPHABET), compressed);
    }

    #[test]
    fn repeats_match_ms_xca_3_1() {
        let compressed = [
            0xff, 0xff, 0xff, 0x1f, 0x61, 0x62, 0x63, 0x17, 0x00, 0x0f, 0xff, 0x26, 0x01,
        ];
        let plain = b"abc".repeat(100);
        assert_eq!(decompress(&compressed, 300).unwrap(), plain);
        assert_eq!(compress(&plain), compressed);
    }

    #[test]
    fn bomb_stops_at_announced_size() {
        let bomb = compress(&vec![0; 65_535]);
        assert!(bomb.len() < 32);
        assert_eq!(decompress(&bomb, 65_534), Err(Lz77Error::TooLong));
        assert_eq!(decompress(&bomb, 65_536), Err(Lz77Error::TooShort));
    }

    #[test]
    fn match_before_data_is_refused() {
        assert_eq!(
            decompress(&[0xff, 0xff, 0xff, 0xff, 0, 0], 3),
            Err(Lz77Error::Distance)
        );
    }

    proptest! {
        #[test]
        fn compressed_data_reads_back(
            pieces in proptest::collection::vec((any::<u8>(), 1_usize..900, any::<bool>()), 0..60),
        ) {
            let mut plain = Vec::new();
            for (seed, length, repeats) in pieces {
                for step in 0..length {
                    let byte = if repeats { seed } else { seed.wrapping_mul(step as u8 | 1).rotate_left(step as u32 % 8) };
                    plain.push(byte);
                }
            }
            let compressed = compress(&plain);
            prop_assert_eq!(decompress(&compressed, plain.len()).unwrap(), plain);
        }

        #[test]
        fn any_bytes_end_within_the_size(bytes in proptest::collection::vec(any::<u8>(), 0..300), size in 0_usize..5000) {
            if let Ok(plain) = decompress(&bytes, size) {
                prop_assert_eq!(plain.len(), size);
            }
        }
    }
}
