//! Fuzz entry of `lab` for the input of a TUN device: a kernel header and a packet, or a run of
//! packets as one.
//!
//! The output for its packets is such a message itself, with the same packets in it.

use emulator::link::offload::pass;

use crate::seed::{CorpusSeed, seed};

/// A packet or a run of packets.
pub(crate) fn offload(bytes: &[u8]) {
    let (packets, written) = pass(bytes);
    assert!(written.len() <= packets.len());
    let again: Vec<_> = written.iter().flat_map(|bytes| pass(bytes).0).collect();
    assert_eq!(again.len(), packets.len());
    for (packet, again) in packets.iter().zip(&again) {
        assert_eq!(comparable(packet), comparable(again));
    }
}

/// Returns a packet without its IPv4 identification and the checksum over it, which may change
/// where the identification must not be used.
fn comparable(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet.first() == Some(&0x45) && packet.len() >= 20 && packet[6] & 0x40 != 0 {
        packet[4..6].fill(0);
        packet[10..12].fill(0);
    }
    packet
}

/// Good inputs for [`offload`].
pub(crate) fn offload_seeds() -> Vec<CorpusSeed> {
    const TCP4: u8 = 1;
    const TCP6: u8 = 4;
    const UDP: u8 = 5;
    vec![
        seed("tcp4", message(TCP4, false, true)),
        seed("tcp6", message(TCP6, true, true)),
        seed("udp4", message(UDP, false, false)),
        seed("udp6", message(UDP, true, false)),
        seed("single", message(0, false, true)),
    ]
}

/// Makes a run of packets with 100 bytes each, the last with 50. The checksum field holds that of
/// the pseudo header, as the kernel leaves it to the hardware.
fn message(gso_type: u8, is_ipv6: bool, is_tcp: bool) -> Vec<u8> {
    const SIZE: u16 = 100;
    let payload = [0x5a; 350];
    let (protocol, checksum, mut transport) = if is_tcp {
        let header = [
            0, 80, 0x9c, 0x40, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0,
        ];
        (6_u8, 16_u16, header.to_vec())
    } else {
        let [high, low] = (8 + payload.len() as u16).to_be_bytes();
        (17, 6, vec![0, 53, 0x9c, 0x40, high, low, 0, 0])
    };
    let length = (transport.len() + payload.len()) as u16;
    let ip = if is_ipv6 {
        let [high, low] = length.to_be_bytes();
        let mut header = vec![0x60, 0, 0, 0, high, low, protocol, 64];
        header.extend([0x20; 32]);
        header
    } else {
        let [high, low] = (20 + length).to_be_bytes();
        vec![
            0x45, 0, high, low, 0, 1, 0x40, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2,
        ]
    };
    let addresses = if is_ipv6 { &ip[8..40] } else { &ip[12..20] };
    let mut sum = u32::from(protocol) + u32::from(length);
    for pair in addresses.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair[1]);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let at = usize::from(checksum);
    transport[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());

    const NEEDS_CHECKSUM: u8 = 1;
    let fields = [
        (ip.len() + transport.len()) as u16,
        SIZE,
        ip.len() as u16,
        checksum,
    ];
    let mut bytes = vec![NEEDS_CHECKSUM, gso_type];
    bytes.extend(fields.iter().flat_map(|field| field.to_ne_bytes()));
    bytes.extend(ip);
    bytes.extend(transport);
    bytes.extend(payload);
    bytes
}

#[test]
fn good_runs_pass_as_one() {
    for (name, bytes) in offload_seeds() {
        let (packets, written) = pass(&bytes);
        assert_eq!(written.len(), 1, "{name}");
        assert_eq!(
            packets.len(),
            if name == "single" { 1 } else { 4 },
            "{name}"
        );
    }
}
