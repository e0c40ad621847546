//! Packets written and parsed: vectors, both IP versions, and damaged bytes.

use proptest::prelude::*;

use super::*;
use crate::segment::{SegmentOptions, TimestampOption};

fn addresses(version: u8) -> FlowAddresses {
    let (local, remote) = match version {
        4 => ("192.0.2.1:40000", "198.51.100.2:5201"),
        _ => ("[2001:db8::1]:40000", "[2001:db8::2]:5201"),
    };
    FlowAddresses {
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
    }
}

fn segment() -> TcpSegment {
    let mut options = SegmentOptions {
        mss: Some(1_460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(TimestampOption { value: 1, echo: 2 }),
        ..SegmentOptions::default()
    };
    options.sack.push(7, 9);
    TcpSegment {
        sequence: 0xffff_fff0,
        acknowledgement: 17,
        flags: SegmentFlags::ACK | SegmentFlags::PSH,
        window: 502,
        options,
        payload: SegmentPayload::Bytes(Bytes::from_static(b"hello")),
    }
}

#[test]
fn packets_of_both_versions_read_back_equal() {
    for version in [4, 6] {
        let addresses = addresses(version);
        let packet = emit_packet(&addresses, &segment());
        assert_eq!(packet.len(), packet_length(&addresses, &segment()));
        let (seen_by, parsed) = parse_packet(&packet).unwrap();
        assert_eq!(seen_by, addresses.reversed());
        assert_eq!(parsed, segment());
    }
}

#[test]
fn syn_options_stand_in_the_order_of_linux() {
    // MSS, SACK-permitted, time stamps, no-operation, window scale: 20 octets without padding.
    let bytes = [
        0x02, 0x04, 0x05, 0xb4, 0x04, 0x02, 0x08, 0x0a, 0x00, 0x00, 0x03, 0xe8, 0x00, 0x00, 0x00,
        0x00, 0x01, 0x03, 0x03, 0x07,
    ];
    let parsed = options::parse(&bytes);
    assert_eq!(parsed.mss, Some(1_460));
    assert!(parsed.sack_permitted);
    assert_eq!(parsed.timestamps.unwrap().value, 1_000);
    assert_eq!(parsed.window_scale, Some(7));
    let mut written = Vec::new();
    options::emit(&mut written, &parsed);
    assert_eq!(written, bytes);
}

#[test]
fn a_flipped_bit_is_noticed() {
    for version in [4, 6] {
        let packet = emit_packet(&addresses(version), &segment());
        let tcp = packet.len() - segment().wire_length();
        for at in tcp..packet.len() {
            let mut damaged = packet.to_vec();
            damaged[at] ^= 0x10;
            assert!(parse_packet(&damaged.into()).is_err(), "octet {at}");
        }
    }
}

#[test]
fn fragments_and_other_protocols_are_refused() {
    let packet = emit_packet(&addresses(4), &segment()).to_vec();
    let with = |changes: &[(usize, u8)]| {
        let mut changed = packet.clone();
        for (at, value) in changes {
            changed[*at] = *value;
        }
        changed[10..12].copy_from_slice(&[0, 0]);
        let mut sum = InternetChecksum::default();
        sum.add(&changed[..20]);
        changed[10..12].copy_from_slice(&sum.finish().to_be_bytes());
        parse_packet(&changed.into())
    };
    assert_eq!(with(&[(6, 0x20)]), Err(PacketError::Fragment));
    assert_eq!(with(&[(9, 17)]), Err(PacketError::NotTcp(17)));
    assert_eq!(with(&[(3, 19)]), Err(PacketError::Truncated));
    assert_eq!(
        parse_packet(&Bytes::from_static(&[0x50; 40])),
        Err(PacketError::UnknownVersion(5))
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_packet(&Bytes::from(bytes));
    }

    #[test]
    fn arbitrary_options_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let _ = options::parse(&bytes);
    }
}
