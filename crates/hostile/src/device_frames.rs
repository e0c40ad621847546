//! Fuzz entry of `profiler` for the frames that come to one of its ports.
//!
//! A reply is a frame of fixed size, and a port does not reply to a reply: two ports on one cable would
//! otherwise talk for ever.

use profiler::reply_to_frame;

use crate::seed::{CorpusSeed, seed};

/// Length of an Ethernet header.
const ETHERNET: usize = 14;
/// Lengths of replies: ARP, and a neighbour advertisement with one option.
const REPLIES: [usize; 2] = [ETHERNET + 28, ETHERNET + 40 + 32];

/// A frame.
pub(crate) fn frame(bytes: &[u8]) {
    if let Some(reply) = reply_to_frame(bytes) {
        assert!(REPLIES.contains(&reply.len()));
        assert_eq!(reply_to_frame(&reply), None);
    }
}

/// Good inputs for [`frame`].
pub(crate) fn frame_seeds() -> Vec<CorpusSeed> {
    vec![
        seed("arp", arp()),
        seed("solicitation", packet(58, 255, &solicitation())),
        seed("udp6", packet(17, 64, &[0; 32])),
        seed("tcp6", packet(6, 64, &[0; 20])),
        seed("fragment6", packet(44, 64, &[0; 16])),
    ]
}

/// Request for 198.18.1.2 from 198.18.1.1.
fn arp() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 2, 0x08, 0x06]);
    frame.extend([0, 1, 0x08, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 198, 18, 1, 1]);
    frame.extend([0, 0, 0, 0, 0, 0, 198, 18, 1, 2]);
    frame
}

/// Solicitation for 2001:2:0:1::2 with the option of the sender's address; the checksum is that of
/// [`packet`].
fn solicitation() -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend([0x20, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    message.extend([1, 1, 2, 0, 0, 0, 0, 2]);
    message
}

/// An IPv6 packet from 2001:2:0:1::1 to ff02::1:ff00:2 in a frame. For ICMPv6, the checksum is filled in.
fn packet(protocol: u8, hops: u8, content: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x33, 0x33, 0xff, 0, 0, 2, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, content.len() as u8, protocol, hops]);
    let start = frame.len();
    frame.extend([0x20, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    frame.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 2]);
    let mut content = content.to_vec();
    if protocol == 58 {
        let pseudo = [0, protocol, 0, content.len() as u8];
        let whole = [&frame[start..], &pseudo, &content].concat();
        // RFC 1071: the carries come round at the end.
        let sum: u32 = whole
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        content[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    frame.extend(content);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_the_seeds_are_answered() {
        for request in [arp(), packet(58, 255, &solicitation())] {
            assert!(reply_to_frame(&request).is_some());
        }
    }
}
