//! Ethernet frames around the packets that `offload` knows.
//!
//! ```text
//!   destination, source │ 802.1Q tags, if any │ type │ packet
//!                       ▲ where the kernel takes a tag out, and where it is put back
//! ```
//! Nothing in here trusts a length, and nothing calls the kernel.

use bytes::Bytes;

use super::offload::{self, HEADER_LENGTH};

/// Both addresses.
const ADDRESSES: usize = 12;
/// Addresses and type.
pub const HEADER: usize = 14;
/// A tag: its type and its control information.
pub const TAG: usize = 4;

/// IEEE 802.1Q and 802.1ad, and what came before the latter.
const TAG_TYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// No tower of tags on a real network is higher.
const TAGS_MAX: usize = 4;

/// Returns the start of the packet in a frame; `None` if the frame ends before.
pub fn packet_offset(frame: &[u8]) -> Option<usize> {
    let mut end = HEADER;
    for _ in 0..=TAGS_MAX {
        let kind = frame.get(end - 2..end)?;
        if !TAG_TYPES.contains(&u16::from_be_bytes([kind[0], kind[1]])) {
            return Some(end);
        }
        end += TAG;
    }
    None
}

/// Passes each real frame of `frame` to `each`, with the VLAN tag restored that the kernel removed
/// and all checksums completed. Returns `false` if the frame is malformed.
pub fn make_real(
    offload: [u8; HEADER_LENGTH],
    tag: Option<(u16, u16)>,
    frame: &[u8],
    mut each: impl FnMut(Bytes),
) -> bool {
    if offload[1] == 0 {
        each(complete(offload, tag, frame));
        return true;
    }
    if frame.len() < HEADER {
        return false;
    }
    // What is not IP has no packet that could be told apart; all of it is header, then.
    let start = packet_offset(frame).unwrap_or(HEADER);
    let (header, packet) = frame.split_at(start);
    let mut real_header = Vec::with_capacity(header.len() + TAG);
    real_header.extend_from_slice(&header[..ADDRESSES]);
    if let Some((kind, control)) = tag {
        real_header.extend_from_slice(&kind.to_be_bytes());
        real_header.extend_from_slice(&control.to_be_bytes());
    }
    real_header.extend_from_slice(&header[ADDRESSES..]);
    let Some(offload) = moved(offload, -(start as i32)) else {
        return false;
    };
    offload::split(offload::VirtioNetHeader::parse(offload), packet, |packet| {
        let mut real = Vec::with_capacity(real_header.len() + packet.len());
        real.extend_from_slice(&real_header);
        real.extend_from_slice(&packet);
        each(Bytes::from(real));
    })
    .is_ok()
}

/// Completes a single frame. It stays unchanged if its checksum offsets lead outside.
fn complete(offload: [u8; HEADER_LENGTH], tag: Option<(u16, u16)>, frame: &[u8]) -> Bytes {
    let needs_checksum = offload[0] & offload::NEEDS_CHECKSUM != 0;
    if !needs_checksum && tag.is_none() {
        return Bytes::copy_from_slice(frame);
    }
    let mut real = Vec::with_capacity(frame.len() + tag.map_or(0, |_| TAG));
    let (addresses, rest) = frame.split_at(ADDRESSES.min(frame.len()));
    real.extend_from_slice(addresses);
    if let Some((kind, control)) = tag {
        real.extend_from_slice(&kind.to_be_bytes());
        real.extend_from_slice(&control.to_be_bytes());
    }
    real.extend_from_slice(rest);
    if needs_checksum {
        let [.., a, b, c, d] = offload;
        let behind_tag = real.len() - frame.len();
        let start = usize::from(u16::from_ne_bytes([a, b])) + behind_tag;
        let at = start + usize::from(u16::from_ne_bytes([c, d]));
        if at + 2 <= real.len() {
            offload::finish_checksum(&mut real, start, at);
        }
    }
    Bytes::from(real)
}

/// A header for the kernel whose places count from elsewhere: from a frame's first byte instead of
/// a packet's, or the other way round. `None` if they would lie before that.
pub fn moved(mut header: [u8; HEADER_LENGTH], by: i32) -> Option<[u8; HEADER_LENGTH]> {
    /// Offsets of the headers' length and of the start of the checksum.
    const PLACES: [usize; 2] = [2, 6];
    if header[0] & offload::NEEDS_CHECKSUM == 0 && header[1] == 0 {
        return Some(header);
    }
    for place in PLACES {
        let value = i32::from(u16::from_ne_bytes([header[place], header[place + 1]]));
        // The length of the headers is a hint that may be missing.
        if value == 0 && place == PLACES[0] {
            continue;
        }
        let moved = u16::try_from(value + by).ok()?;
        header[place..place + 2].copy_from_slice(&moved.to_ne_bytes());
    }
    Some(header)
}

/// Completes the checksum of a frame that a program on this machine has left to its hardware.
///
/// Frames for an XDP program carry no such flag, but the field then holds the sum of the pseudo
/// header alone. One complete packet in 65,536 looks the same by chance; its recomputed checksum is
/// unchanged.
pub fn complete_checksum(frame: &mut [u8]) {
    if let Some(start) = packet_offset(frame)
        && let Some(place) = unfinished_checksum(frame, start)
    {
        offload::finish_checksum(&mut frame[..place.end], place.start, place.field);
    }
}

/// Checksum field that covers only the pseudo header so far.
struct PartialChecksum {
    /// Start and end of the transport part.
    start: usize,
    end: usize,
    field: usize,
}

fn unfinished_checksum(frame: &[u8], start: usize) -> Option<PartialChecksum> {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    /// Options for each hop and for the destination (RFC 8200 §4.3 and §4.6), which the sum does
    /// not depend on.
    const PASSED_OVER: [u8; 2] = [0, 60];
    /// A packet has one of each, or two of the latter.
    const EXTENSIONS_MAX: usize = 3;
    let word = |at: usize| -> Option<u16> {
        Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]))
    };
    let (addresses, protocol, begin, end) = match word(start - 2)? {
        IPV4 => {
            const FRAGMENT: u16 = 0x3fff;
            let header = usize::from(*frame.get(start)? & 0xf) * 4;
            if header < 20 || word(start + 6)? & FRAGMENT != 0 {
                return None;
            }
            let end = start + usize::from(word(start + 2)?);
            (
                start + 12..start + 20,
                *frame.get(start + 9)?,
                start + header,
                end,
            )
        }
        IPV6 => {
            let end = start + 40 + usize::from(word(start + 4)?);
            let mut protocol = *frame.get(start + 6)?;
            let mut begin = start + 40;
            for _ in 0..EXTENSIONS_MAX {
                if !PASSED_OVER.contains(&protocol) {
                    break;
                }
                protocol = *frame.get(begin)?;
                begin += (usize::from(*frame.get(begin + 1)?) + 1) * 8;
            }
            (start + 8..start + 40, protocol, begin, end)
        }
        _ => return None,
    };
    let field = begin
        + match protocol {
            TCP => 16,
            UDP => 6,
            _ => return None,
        };
    if end > frame.len() || field + 2 > end {
        return None;
    }
    let mut sum = u32::from(protocol) + (end - begin) as u32;
    for pair in frame.get(addresses)?.as_chunks::<2>().0 {
        sum += u32::from(u16::from_be_bytes(*pair));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (sum as u16 == word(field)?).then_some(PartialChecksum {
        start: begin,
        end,
        field,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with an IPv4 UDP datagram whose check sum is left to the hardware.
    fn unfinished(payload: &[u8]) -> Vec<u8> {
        let length = 28 + payload.len() as u16;
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
        frame.extend([0x45, 0, (length >> 8) as u8, length as u8, 0, 0, 0x40, 0]);
        frame.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let part = length - 20;
        let pseudo = 0x0a00 + 1 + 0x0a00 + 2 + 17 + part;
        frame.extend([0x10, 0, 0x20, 0, (part >> 8) as u8, part as u8]);
        frame.extend(pseudo.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// Adds 16 bits at a time, with the carry brought round each time (RFC 1071 §1).
    fn slow_sum(bytes: &[u8]) -> u16 {
        bytes.chunks(2).fold(0, |sum, pair| {
            let value = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            let (sum, carry) = u16::overflowing_add(sum, value);
            sum + u16::from(carry)
        })
    }

    fn transport_sum(frame: &[u8], start: usize) -> u16 {
        let part = &frame[start + 20..];
        let mut summed = frame[start + 12..start + 20].to_vec();
        summed.extend([0, 17]);
        summed.extend((part.len() as u16).to_be_bytes());
        summed.extend(part);
        slow_sum(&summed)
    }

    #[test]
    fn unfinished_checksums_are_completed_and_others_left_alone() {
        for payload in [&b""[..], b"x", b"even", b"odd length"] {
            let mut frame = unfinished(payload);
            complete_checksum(&mut frame);
            assert_eq!(transport_sum(&frame, 14), 0xffff);
            let finished = frame.clone();
            complete_checksum(&mut frame);
            assert_eq!(frame, finished);
            // One bit that a receiver has to notice stays for it to notice.
            *frame.last_mut().unwrap() ^= 1;
            let damaged = frame.clone();
            complete_checksum(&mut frame);
            assert_eq!(frame, damaged);
        }
    }

    #[test]
    fn options_of_ipv6_are_passed_over() {
        let payload = b"behind options";
        let part = 8 + payload.len() as u16;
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        frame.extend([0x60, 0, 0, 0, 0, 16 + part as u8, 0, 64]);
        let addresses = [[0xfd; 16], [0xfe; 16]].concat();
        frame.extend(&addresses);
        // Hop-by-hop options, then destination options, each of padding alone.
        frame.extend([60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0]);
        let mut summed = addresses;
        summed.extend([0, 17, 0, part as u8]);
        let pseudo = slow_sum(&summed);
        frame.extend([0x10, 0, 0x20, 0, 0, part as u8]);
        frame.extend(pseudo.to_be_bytes());
        frame.extend(payload);
        complete_checksum(&mut frame);
        summed.extend(&frame[14 + 40 + 16..]);
        assert_eq!(slow_sum(&summed), 0xffff);
    }

    #[test]
    fn padding_behind_a_packet_is_not_summed() {
        let mut padded = unfinished(b"abc");
        let length = padded.len();
        padded.resize(60, 0xaa);
        complete_checksum(&mut padded);
        assert_eq!(transport_sum(&padded[..length], 14), 0xffff);
        assert!(padded[length..].iter().all(|byte| *byte == 0xaa));
    }

    #[test]
    fn a_tag_is_put_back_where_it_was() {
        let frame = unfinished(b"tagged");
        let mut seen = Vec::new();
        assert!(make_real(
            [0; HEADER_LENGTH],
            Some((0x8100, 0x2007)),
            &frame,
            |real| {
                seen.push(real);
            }
        ));
        let mut expected = frame[..12].to_vec();
        expected.extend([0x81, 0x00, 0x20, 0x07]);
        expected.extend(&frame[12..]);
        assert_eq!(seen, [expected.clone()]);
        assert_eq!(packet_offset(&expected), Some(18));
    }

    #[test]
    fn a_checksum_is_completed_behind_a_tag() {
        let mut frame = unfinished(b"odd length!");
        let mut offload = [0; HEADER_LENGTH];
        offload[0] = offload::NEEDS_CHECKSUM;
        offload[6..8].copy_from_slice(&34_u16.to_ne_bytes());
        offload[8..10].copy_from_slice(&6_u16.to_ne_bytes());
        for tag in [None, Some((0x8100, 7))] {
            let mut seen = Vec::new();
            assert!(make_real(offload, tag, &frame, |real| seen.push(real)));
            let start = packet_offset(&seen[0]).unwrap();
            assert_eq!(start, HEADER + if tag.is_some() { TAG } else { 0 });
            assert_eq!(transport_sum(&seen[0], start), 0xffff);
        }
        // Where it leads outside, nothing is written.
        offload[6..8].copy_from_slice(&9_000_u16.to_ne_bytes());
        assert!(make_real(offload, None, &frame, |real| assert_eq!(
            real,
            frame
        )));
        frame.truncate(5);
        assert!(make_real(offload, Some((1, 1)), &frame, |real| assert_eq!(
            real.len(),
            9
        )));
    }

    #[test]
    fn datagram_run_becomes_tagged_frames() {
        let frame = unfinished(&[7; 250]);
        // VIRTIO_NET_HDR_GSO_UDP_L4, of 100 bytes each, summed from the UDP header on.
        let mut offload = [0; HEADER_LENGTH];
        offload[0] = offload::NEEDS_CHECKSUM;
        offload[1] = 5;
        offload[2..4].copy_from_slice(&42_u16.to_ne_bytes());
        offload[4..6].copy_from_slice(&100_u16.to_ne_bytes());
        offload[6..8].copy_from_slice(&34_u16.to_ne_bytes());
        offload[8..10].copy_from_slice(&6_u16.to_ne_bytes());
        let mut seen = Vec::new();
        assert!(make_real(offload, Some((0x88a8, 9)), &frame, |real| seen.push(real)));
        let payloads: Vec<_> = seen.iter().map(|real| real.len() - 18 - 28).collect();
        assert_eq!(payloads, [100, 100, 50]);
        for real in &seen {
            assert_eq!(real[12..16], [0x88, 0xa8, 0, 9]);
            assert_eq!(slow_sum(&real[18..38]), 0xffff);
            assert_eq!(transport_sum(real, 18), 0xffff);
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = vocab::SeededRandom::from_seed(7);
        let mut bytes = [0; 80];
        for round in 0..20_000_usize {
            random.fill(&mut bytes);
            let kinds = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x88, 0xa8]];
            bytes[12..14].copy_from_slice(&kinds[round % 4]);
            bytes[16..18].copy_from_slice(&kinds[round / 4 % 4]);
            let length = round % bytes.len();
            let offload: [u8; HEADER_LENGTH] = bytes[60..70].try_into().unwrap();
            let tag = (round % 3 == 0).then_some((0x8100, 1));
            make_real(offload, tag, &bytes[..length], |_| {});
            complete_checksum(&mut bytes[..length]);
            moved(offload, 14);
        }
    }
}
