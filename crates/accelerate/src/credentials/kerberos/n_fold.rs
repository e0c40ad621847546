//! n-fold: any bytes spread over 128 bits, the block of AES (RFC 3961 §5.1, A Key Derivation Function).

/// The length of the result in bytes.
pub(crate) const LENGTH: usize = 16;

/// The 128-fold of the input: copies of it, each turned 13 bits further to the right than the one before,
/// laid end to end until they fill whole blocks, and the blocks added with the carry put back in at the
/// end (ones' complement).
///
/// # Panics
/// When there is no input.
pub(crate) fn n_fold(input: &[u8]) -> [u8; LENGTH] {
    let bits = 8 * input.len() as isize;
    let mut sum = 0u128;
    let mut at = 0;
    loop {
        let mut block = [0; LENGTH];
        for byte in &mut block {
            let copy = (at / input.len()) as isize;
            let within = (8 * (at % input.len())) as isize;
            let from = (within - 13 * copy).rem_euclid(bits) as usize;
            let (first, shift) = (from / 8, from % 8);
            let two = [input[first], input[(first + 1) % input.len()]];
            *byte = (u16::from_be_bytes(two) << shift >> 8) as u8;
            at += 1;
        }
        let (next, carry) = sum.overflowing_add(u128::from_be_bytes(block));
        sum = next + u128::from(carry);
        // The copies end where a block does: at the least common multiple of both lengths.
        if at % input.len() == 0 {
            return sum.to_be_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::hexadecimal;
    use super::*;

    #[test]
    fn the_published_fold_comes_out() {
        // RFC 3961 A.1 (n-fold) has one of 128 bits, of the text that all derivations of its own begin with.
        let wanted = hexadecimal("6b65726265726f737b9b5b2b93132b93");
        assert_eq!(n_fold(b"kerberos")[..], wanted[..]);
    }
}
