//! An Ethernet frame with a TCP SYN (RFC 9293 §3.1), for probes.

use std::net::{IpAddr, SocketAddr};

/// The length of a header with one option of four bytes, in units of 32 bits.
const TCP_WORDS: u8 = 6;
const TCP_BYTES: usize = TCP_WORDS as usize * 4;
const SYN: u8 = 0x02;
const TCP: u8 = 6;
const TTL: u8 = 64;
/// The maximum segment size that hosts on Ethernet announce (RFC 6691).
const MSS: u16 = 1460;
/// A local address that no device has.
const SOURCE: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// Builds a SYN from `client` to `server`, of one family, to the device with this address.
pub(super) fn syn_frame(device: &[u8; 6], client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let mut frame = device.to_vec();
    frame.extend(SOURCE);
    let (source, destination) = (octets(client.ip()), octets(server.ip()));
    let length = TCP_BYTES as u16;
    if client.is_ipv4() {
        frame.extend([0x08, 0x00]);
        let mut header = vec![0x45, 0];
        header.extend((20 + length).to_be_bytes());
        // No identification, never fragmented.
        header.extend([0, 0, 0x40, 0, TTL, TCP, 0, 0]);
        header.extend(&source);
        header.extend(&destination);
        let sum = checksum(&[&header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(header);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([TCP, TTL]);
        frame.extend(&source);
        frame.extend(&destination);
    }
    let mut segment = Vec::with_capacity(TCP_BYTES);
    segment.extend(client.port().to_be_bytes());
    segment.extend(server.port().to_be_bytes());
    segment.extend(1_u32.to_be_bytes());
    segment.extend(0_u32.to_be_bytes());
    segment.extend([TCP_WORDS << 4, SYN]);
    segment.extend(u16::MAX.to_be_bytes());
    segment.extend([0; 4]);
    segment.extend([2, 4]);
    segment.extend(MSS.to_be_bytes());
    // The pseudo header (RFC 9293 §3.1, RFC 8200 §8.1): the sum of its fields is the same in both.
    let numbers = [0, TCP, (length >> 8) as u8, length as u8];
    let sum = checksum(&[&source, &destination, &numbers, &segment]);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    frame.extend(segment);
    frame
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The Internet checksum (RFC 1071) of parts that are each of even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_both_families_verify() {
        for (client, server, header) in [
            ("198.18.1.254:40000", "198.18.2.1:445", 20),
            ("[2001:2:0:1::fe]:40000", "[2001:2:0:2::1]:80", 40),
        ] {
            let (client, server) = (client.parse().unwrap(), server.parse().unwrap());
            let frame = syn_frame(&[6; 6], client, server);
            assert_eq!(frame.len(), 14 + header + TCP_BYTES);
            if header == 20 {
                assert_eq!(checksum(&[&frame[14..34]]), 0);
            }
            let (addresses, segment) = (&frame[14..14 + header], &frame[14 + header..]);
            let addresses = &addresses[header - if header == 20 { 8 } else { 32 }..];
            let numbers = [0, TCP, 0, TCP_BYTES as u8];
            assert_eq!(checksum(&[addresses, &numbers, segment]), 0);
        }
    }
}
