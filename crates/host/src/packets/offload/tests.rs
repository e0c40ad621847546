//! Offload tests: split packets have right checksums and lengths by an independent slow reader;
//! merged packets that are split again are the original ones; no input causes a panic.

use std::io::IoSlice;

use bytes::Bytes;
use vocab::SeededRandom;

use super::split::SplitError;
use super::*;

const MERGE_ALL: MergeOptions = MergeOptions {
    tcp: true,
    udp: true,
};

/// A run of packets as the kernel hands it over.
#[derive(Clone, Debug)]
struct GsoPacket {
    header: VirtioNetHeader,
    packet: Vec<u8>,
    size: usize,
}

/// RFC 1071 §4.1 as it stands there: sixteen bits at a time.
fn slow_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for byte_pair in parts.concat().chunks(2) {
        let low = byte_pair.get(1).copied().unwrap_or(0);
        sum += u32::from(byte_pair[0]) << 8 | u32::from(low);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The transport part of a packet, after everything in front of it was found right.
fn checked(packet: &[u8]) -> (TransportProtocol, &[u8]) {
    let (addresses, protocol, part) = if packet[0] >> 4 == 4 {
        let start = usize::from(packet[0] & 0xf) * 4;
        assert_eq!(usize::from(word(packet, 2)), packet.len());
        assert_eq!(slow_sum(&[&packet[..start]]), 0xffff);
        (&packet[12..20], packet[9], &packet[start..])
    } else {
        const DESTINATION_OPTIONS: u8 = 60;
        assert_eq!(usize::from(word(packet, 4)) + 40, packet.len());
        let (mut next, mut start) = (packet[6], 40);
        while next == DESTINATION_OPTIONS {
            next = packet[start];
            start += usize::from(packet[start + 1]) * 8 + 8;
        }
        (&packet[8..40], next, &packet[start..])
    };
    let length = (part.len() as u32).to_be_bytes();
    let pseudo = [addresses, &length, &[0, 0, 0, protocol]].concat();
    assert_eq!(slow_sum(&[&pseudo, part]), 0xffff);
    match protocol {
        6 => (TransportProtocol::Tcp, part),
        17 => {
            assert_eq!(usize::from(word(part, 4)), part.len());
            assert_ne!(word(part, 6), 0);
            (TransportProtocol::Udp, part)
        }
        other => panic!("protocol {other}"),
    }
}

fn payload_of((transport, part): (TransportProtocol, &[u8])) -> &[u8] {
    match transport {
        TransportProtocol::Tcp => &part[usize::from(part[12] >> 4) * 4..],
        TransportProtocol::Udp => &part[8..],
    }
}

fn up_to(random: &mut SeededRandom, most: u64) -> usize {
    random.below(most + 1) as usize
}

fn bytes(random: &mut SeededRandom, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random.fill(&mut bytes);
    bytes
}

impl GsoPacket {
    /// Any flow; with options and extension headers if not `plain`.
    fn random(random: &mut SeededRandom, plain: bool) -> Self {
        let is_tcp = random.below(2) == 0;
        let is_ipv4 = random.below(2) == 0;
        let size = 1 + up_to(random, 1_459);
        let pieces = 1 + random.below(44);
        let payload = (size as u64 * pieces).min(65_000) as usize - up_to(random, size as u64 - 1);
        let payload = bytes(random, payload);
        let mut part = Vec::new();
        part.extend(bytes(random, 4));
        if is_tcp {
            let options = 4 * up_to(random, 10);
            part.extend(bytes(random, 8));
            part.extend([(5 + options as u8 / 4) << 4, ACK]);
            part.extend(bytes(random, 6));
            part.extend(bytes(random, options));
        } else {
            part.extend(((payload.len() + 8) as u16).to_be_bytes());
            part.extend([0, 0]);
        }
        let header_length = part.len();
        part.extend(payload);
        let protocol = if is_tcp { 6 } else { 17 };
        let mut ip = Vec::new();
        if is_ipv4 {
            let options = if plain { 0 } else { 4 * up_to(random, 10) };
            ip.extend([0x45 + options as u8 / 4, 0x2]);
            ip.extend(((20 + options + part.len()) as u16).to_be_bytes());
            ip.extend(bytes(random, 2));
            ip.extend([0x40, 0, 64, protocol, 0, 0]);
            ip.extend(bytes(random, 8));
            ip.extend(bytes(random, options));
        } else {
            let extension = if plain { 0 } else { 8 * up_to(random, 2) };
            ip.extend([0x60, 1, 2, 3]);
            ip.extend(((part.len() + extension) as u16).to_be_bytes());
            ip.extend([if extension == 0 { protocol } else { 60 }, 64]);
            ip.extend(bytes(random, 32));
            if extension > 0 {
                ip.extend([protocol, extension as u8 / 8 - 1]);
                ip.extend(bytes(random, extension - 2));
            }
        }
        let transport = if is_tcp {
            TransportProtocol::Tcp
        } else {
            TransportProtocol::Udp
        };
        let at = transport.checksum_offset();
        let addresses = if is_ipv4 { &ip[12..20] } else { &ip[8..40] };
        let length = (part.len() as u32).to_be_bytes();
        let pseudo = slow_sum(&[addresses, &length, &[0, 0, 0, protocol]]);
        set_word(&mut part, at, pseudo);
        let gso_type = match (transport, is_ipv4) {
            (TransportProtocol::Tcp, true) => GSO_TCP4,
            (TransportProtocol::Tcp, false) => GSO_TCP6,
            (TransportProtocol::Udp, _) => GSO_UDP,
        };
        Self {
            header: VirtioNetHeader {
                flags: NEEDS_CHECKSUM,
                gso_type,
                header_length: (ip.len() + header_length) as u16,
                gso_size: size as u16,
                checksum_start: ip.len() as u16,
                checksum_offset: at as u16,
            },
            packet: [ip, part].concat(),
            size,
        }
    }

    fn split(&self) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        split(self.header, &self.packet, |piece| pieces.push(piece)).unwrap();
        pieces
    }

    fn transport(&self) -> &[u8] {
        &self.packet[usize::from(self.header.checksum_start)..]
    }

    fn flags(&mut self) -> &mut u8 {
        &mut self.packet[usize::from(self.header.checksum_start) + TCP_FLAGS]
    }

    fn is_tcp(&self) -> bool {
        self.header.gso_type != GSO_UDP
    }
}

/// Returns the bytes that are written for packets sent one after the other.
fn merged(packets: &[Bytes]) -> Vec<(VirtioNetHeader, Vec<u8>)> {
    let mut written = Vec::new();
    let mut group = PacketGroup::default();
    let mut write = |group: &PacketGroup| {
        group.write(|pieces: &[IoSlice<'_>]| {
            let header = <[u8; HEADER_LENGTH]>::try_from(&*pieces[0]).unwrap();
            let packet = pieces[1..].iter().flat_map(|piece| piece.to_vec());
            written.push((VirtioNetHeader::parse(header), packet.collect()));
        });
    };
    for packet in packets {
        if let Err(packet) = group.extend(packet.clone(), true) {
            if !group.is_empty() {
                write(&group);
            }
            group.begin(packet, true, MERGE_ALL);
        }
    }
    if !group.is_empty() {
        write(&group);
    }
    written
}

fn split_again(written: &[(VirtioNetHeader, Vec<u8>)]) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    for (header, packet) in written {
        split(*header, packet, |piece| pieces.push(piece)).unwrap();
    }
    pieces
}

#[test]
fn split_pieces_equal_the_original() {
    let mut random = SeededRandom::from_seed(1);
    for _ in 0..500 {
        let big = GsoPacket::random(&mut random, false);
        let pieces = big.split();
        let mut all = Vec::new();
        for piece in &pieces {
            let payload = payload_of(checked(piece));
            assert!(payload.len() == big.size || std::ptr::eq(piece, pieces.last().unwrap()));
            all.extend_from_slice(payload);
        }
        let transport = if big.is_tcp() {
            TransportProtocol::Tcp
        } else {
            TransportProtocol::Udp
        };
        assert_eq!(all, payload_of((transport, big.transport())));
    }
}

#[test]
fn segments_continue_numbers_and_keep_end_flags() {
    let mut random = SeededRandom::from_seed(2);
    for _ in 0..200 {
        let mut big = GsoPacket::random(&mut random, true);
        if !big.is_tcp() {
            continue;
        }
        *big.flags() = ACK | FIN | PSH | CWR;
        let pieces = big.split();
        let mut sequence = long(big.transport(), 4);
        for (index, piece) in pieces.iter().enumerate() {
            let (_, part) = checked(piece);
            assert_eq!(long(part, 4), sequence);
            sequence =
                sequence.wrapping_add(payload_of((TransportProtocol::Tcp, part)).len() as u32);
            let is_last = index + 1 == pieces.len();
            let ends = if is_last { FIN | PSH } else { 0 };
            let begins = if index == 0 { CWR } else { 0 };
            assert_eq!(part[TCP_FLAGS], ACK | ends | begins);
            if piece[0] == 0x45 {
                let identification = word(&big.packet, 4).wrapping_add(index as u16);
                assert_eq!(word(piece, 4), identification);
            }
        }
    }
}

#[test]
fn merged_packets_split_into_same_bytes() {
    let mut random = SeededRandom::from_seed(3);
    let mut saved = 0;
    for _ in 0..500 {
        // Several flows in turn, each of them broken off somewhere.
        let mut packets = Vec::new();
        for _ in 0..1 + random.below(3) {
            let mut big = GsoPacket::random(&mut random, true);
            if big.is_tcp() && random.below(2) == 0 {
                *big.flags() |= PSH;
            }
            let pieces = big.split();
            let from = up_to(&mut random, pieces.len() as u64 - 1);
            packets.extend_from_slice(&pieces[from..]);
        }
        let written = merged(&packets);
        assert_eq!(split_again(&written), packets);
        for (header, packet) in &written {
            assert!(packet.len() <= 65_535);
            assert!(header.gso_type == GSO_NONE || packet.len() > usize::from(header.gso_size));
        }
        saved += packets.len() - written.len();
    }
    assert!(saved > 3_000, "only {saved} writes saved");
}

#[test]
fn a_run_of_one_flow_is_one_write() {
    let mut random = SeededRandom::from_seed(4);
    for _ in 0..200 {
        let big = GsoPacket::random(&mut random, true);
        let pieces = big.split();
        let written = merged(&pieces);
        assert_eq!(written.len(), pieces.len().div_ceil(64));
        if pieces.len() > 1 && pieces.len() <= 64 {
            // All that the kernel had said comes back, and so does its packet.
            assert_eq!(written[0].0, big.header);
            let mut packet = big.packet.clone();
            if packet[0] == 0x45 {
                checksum::write_ipv4_header(&mut packet[..20]);
            }
            assert_eq!(written[0].1, packet);
        }
    }
}

#[test]
fn datagrams_with_a_standing_identification_are_merged() {
    let mut random = SeededRandom::from_seed(5);
    let big = loop {
        let big = GsoPacket::random(&mut random, true);
        if !big.is_tcp() && big.packet[0] == 0x45 && big.packet.len() > 3 * big.size + 28 {
            break big;
        }
    };
    let with_identification_zero = |piece: &Bytes| {
        let mut piece = piece.to_vec();
        set_word(&mut piece, 4, 0);
        checksum::write_ipv4_header(&mut piece[..20]);
        piece
    };
    let pieces: Vec<Vec<u8>> = big.split().iter().map(with_identification_zero).collect();
    let as_bytes =
        |pieces: &[Vec<u8>]| -> Vec<Bytes> { pieces.iter().cloned().map(Bytes::from).collect() };
    let written = merged(&as_bytes(&pieces));
    assert_eq!(written.len(), 1);
    let again: Vec<Vec<u8>> = split_again(&written)
        .iter()
        .map(with_identification_zero)
        .collect();
    assert_eq!(again, pieces);

    // Where it may be fragmented, the identification has a meaning.
    let mut fragmentable = pieces.clone();
    for piece in &mut fragmentable {
        piece[6] = 0;
        checksum::write_ipv4_header(&mut piece[..20]);
    }
    assert_eq!(merged(&as_bytes(&fragmentable)).len(), pieces.len());
}

#[test]
fn ambiguous_checksum_keeps_packet_unmerged() {
    let mut random = SeededRandom::from_seed(12);
    let mut seen = [0; 2];
    while seen.iter().any(|count| *count < 20) {
        let big = GsoPacket::random(&mut random, true);
        let pieces = big.split();
        if pieces.len() < 3 || big.size < 2 {
            continue;
        }
        let part = payload_of(checked(&pieces[1])).len();
        let payload = pieces[1].len() - part;
        let (start, at) = match checked(&pieces[1]) {
            (TransportProtocol::Tcp, part) => (pieces[1].len() - part.len(), 16),
            (TransportProtocol::Udp, part) => (pieces[1].len() - part.len(), 6),
        };
        // The payload takes up what the check sum had made good.
        let sum = u32::from(word(&pieces[1], start + at)) + u32::from(word(&pieces[1], payload));
        let sum = (sum & 0xffff) + (sum >> 16);
        for zero in [0_u16, 0xffff] {
            if !big.is_tcp() && zero == 0 {
                continue;
            }
            let mut piece = pieces[1].to_vec();
            set_word(&mut piece, payload, sum as u16);
            set_word(&mut piece, start + at, zero);
            checked(&piece);
            let mut packets = pieces.clone();
            packets[1] = Bytes::from(piece.clone());
            let is_alone = merged(&packets).iter().any(|(_, packet)| *packet == piece);
            assert_eq!(is_alone, big.is_tcp());
        }
        seen[usize::from(big.is_tcp())] += 1;
    }
}

#[test]
fn flipped_bit_keeps_packet_unmerged() {
    let mut random = SeededRandom::from_seed(6);
    for _ in 0..500 {
        let big = GsoPacket::random(&mut random, true);
        let mut packets = big.split();
        let at = up_to(&mut random, packets.len() as u64 - 1);
        let mut damaged = packets[at].to_vec();
        let bit = up_to(&mut random, damaged.len() as u64 * 8 - 1);
        damaged[bit / 8] ^= 1 << (bit % 8);
        packets[at] = Bytes::from(damaged.clone());
        let written = merged(&packets);
        assert_eq!(split_again(&written), packets);
        let alone = written.iter().any(|(header, packet)| {
            header.gso_type == GSO_NONE && header.flags == 0 && *packet == damaged
        });
        assert!(alone, "bit {bit} of packet {at}");
    }
}

#[test]
fn packet_marked_damaged_stays_unmerged() {
    let mut random = SeededRandom::from_seed(7);
    let pieces = loop {
        let pieces = GsoPacket::random(&mut random, true).split();
        if pieces.len() >= 3 {
            break pieces;
        }
    };
    let mut group = PacketGroup::default();
    group.begin(pieces[0].clone(), true, MERGE_ALL);
    assert!(group.extend(pieces[1].clone(), false).is_err());
    group.begin(pieces[1].clone(), false, MERGE_ALL);
    assert!(group.extend(pieces[2].clone(), true).is_err());
    group.begin(pieces[1].clone(), true, MergeOptions::NONE);
    assert!(group.extend(pieces[2].clone(), true).is_err());
}

#[test]
fn a_single_packet_has_its_check_sum_completed() {
    let mut random = SeededRandom::from_seed(8);
    for _ in 0..200 {
        let mut big = GsoPacket::random(&mut random, false);
        big.header.gso_type = GSO_NONE;
        if big.packet[0] >> 4 == 4 {
            let start = usize::from(big.header.checksum_start);
            checksum::write_ipv4_header(&mut big.packet[..start]);
        }
        let pieces = big.split();
        assert_eq!(pieces.len(), 1);
        checked(&pieces[0]);
    }
    let foreign = VirtioNetHeader {
        flags: NEEDS_CHECKSUM,
        checksum_start: 3,
        checksum_offset: 2,
        ..VirtioNetHeader::default()
    };
    let mut pieces = Vec::new();
    split(foreign, &[1, 2, 3, 4, 5, 6], |piece| pieces.push(piece)).unwrap();
    assert_eq!(pieces, [Bytes::from_static(&[1, 2, 3, 4, 5, 6])]);
}

#[test]
fn arbitrary_input_is_harmless() {
    let mut random = SeededRandom::from_seed(9);
    for round in 0..2_000 {
        let mut big = GsoPacket::random(&mut random, round % 2 == 0);
        let mut header = big.header.emit();
        for _ in 0..random.below(4) {
            header[up_to(&mut random, 9)] = random.below(256) as u8;
        }
        for _ in 0..random.below(4) {
            let within = (big.packet.len() as u64 - 1).min(100);
            big.packet[up_to(&mut random, within)] = random.below(256) as u8;
        }
        if random.below(4) == 0 {
            big.packet.truncate(up_to(&mut random, 120));
        }
        let header = VirtioNetHeader::parse(header);
        let mut pieces = Vec::new();
        let mut total = 0;
        let result = split(header, &big.packet, |piece| {
            total += piece.len();
            pieces.push(piece);
        });
        if result.is_err() {
            assert!(pieces.is_empty());
        }
        assert!(pieces.len() <= 65_536 && total <= 100 * 65_536);
        // Only a few, since pieces of one byte are many.
        pieces.truncate(100);
        let again = split_again(&merged(&pieces));
        assert_eq!(again.len(), pieces.len());
    }
}

#[test]
fn unrequested_offload_kind_is_refused() {
    const GSO_UFO: u8 = 3;
    let header = VirtioNetHeader {
        gso_type: GSO_UFO,
        ..VirtioNetHeader::default()
    };
    let result = split(header, &[0x45; 100], |_| ());
    assert_eq!(result, Err(SplitError::Kind(GSO_UFO)));
}
