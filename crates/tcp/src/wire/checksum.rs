//! The Internet check sum, RFC 1071, and the pseudo header of TCP.

use std::net::IpAddr;

use super::PROTOCOL_TCP;

/// Sum of 16-bit words in one's complement. Only the last piece may have an odd length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InternetChecksum(u64);

impl InternetChecksum {
    /// Adds `bytes`, padded with a zero to an even number.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        // Sums of 32-bit words fold to the same 16 bits (RFC 1071 §2 (B)); 64 bits hold 2^32 of them.
        let mut words = bytes.chunks_exact(4);
        let mut sum = 0_u64;
        for word in &mut words {
            sum += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        }
        let mut last = [0; 4];
        let rest = words.remainder();
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_be_bytes(last));
        self.0 += (sum & 0xffff_ffff) + (sum >> 32);
    }

    /// The check sum; zero over data that contains a right one.
    pub(crate) fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

/// Fields of the IP header that TCP's check sum covers, RFC 9293 §3.1 and RFC 8200 §8.1.
pub(crate) struct PseudoHeader {
    source: IpAddr,
    target: IpAddr,
    length: usize,
}

impl PseudoHeader {
    pub(crate) fn new(source: IpAddr, target: IpAddr, length: usize) -> Self {
        Self {
            source,
            target,
            length,
        }
    }

    pub(crate) fn sum(&self) -> InternetChecksum {
        let mut sum = InternetChecksum::default();
        for address in [self.source, self.target] {
            match address {
                IpAddr::V4(address) => sum.add(&address.octets()),
                IpAddr::V6(address) => sum.add(&address.octets()),
            }
        }
        sum.add(&[0, 0, 0, PROTOCOL_TCP]);
        sum.add(&(self.length as u32).to_be_bytes());
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_1071_example_sums_to_ddf2() {
        // RFC 1071 §3 (Numerical Examples).
        let mut sum = InternetChecksum::default();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.finish(), !0xddf2);
    }

    #[test]
    fn an_odd_octet_counts_as_the_upper_half() {
        let mut odd = InternetChecksum::default();
        odd.add(&[1, 2, 3]);
        let mut even = InternetChecksum::default();
        even.add(&[1, 2, 3, 0]);
        assert_eq!(odd.finish(), even.finish());
    }
}
