//! Segments that mean harm: no input breaks a connection or its counts.

use proptest::prelude::*;

use super::*;
use crate::payload::{ReceiveContent, SendContent};
use crate::segment::{SegmentFlags, SegmentOptions, SegmentPayload, TimestampOption};

/// A step of a hostile peer. Numbers are positions near those in use.
#[derive(Clone, Debug)]
enum HostileStep {
    Segment {
        flags: u8,
        sequence: u32,
        acknowledgement: u32,
        window: u16,
        length: u32,
        blocks: Vec<(u32, u32)>,
        stamp: Option<u32>,
    },
    Wait(u64),
    Write(u64),
    Close,
}

fn step() -> impl Strategy<Value = HostileStep> {
    let near = || prop_oneof![4 => 0_u32..30_000, 1 => any::<u32>()];
    let segment = (
        prop_oneof![4 => Just(0x10_u8), 1 => any::<u8>()],
        near(),
        near(),
        any::<u16>(),
        0_u32..3_000,
        proptest::collection::vec((near(), near()), 0..5),
        proptest::option::of(any::<u32>()),
    );
    prop_oneof![
        8 => segment.prop_map(
            |(flags, sequence, acknowledgement, window, length, blocks, stamp)| {
                HostileStep::Segment { flags, sequence, acknowledgement, window, length, blocks, stamp }
            }
        ),
        2 => (0_u64..3_000).prop_map(HostileStep::Wait),
        1 => (0_u64..20_000).prop_map(HostileStep::Write),
        1 => Just(HostileStep::Close),
    ]
}

const PEER: u32 = 0xffff_f000;

fn opened(content: (SendContent, ReceiveContent)) -> (TcpConnection, u32) {
    let addresses = FlowAddresses {
        local: "192.0.2.1:1".parse().unwrap(),
        remote: "192.0.2.2:2".parse().unwrap(),
    };
    let config = ConnectionConfig {
        mss: 1_000,
        timestamps: false,
        receive_buffer: ByteCount::new(20_000),
        send_buffer: ByteCount::new(20_000),
        send_content: content.0,
        receive_content: content.1,
        ..ConnectionConfig::default()
    };
    let mut random = SeededRandom::from_seed(1);
    let mut connection = TcpConnection::connect(addresses, config, &mut random);
    let syn = connection.poll_output(Time::ZERO).unwrap();
    let answer = TcpSegment {
        sequence: PEER,
        acknowledgement: syn.sequence.wrapping_add(1),
        flags: SegmentFlags::SYN | SegmentFlags::ACK,
        window: 30_000,
        options: SegmentOptions {
            sack_permitted: true,
            mss: Some(1_000),
            ..SegmentOptions::default()
        },
        payload: SegmentPayload::Empty,
    };
    connection.handle_segment(Time::ZERO, &answer);
    (connection, syn.sequence)
}

fn apply(connection: &mut TcpConnection, now: &mut Time, own: u32, step: HostileStep) {
    match step {
        HostileStep::Segment {
            flags,
            sequence,
            acknowledgement,
            window,
            length,
            blocks,
            stamp,
        } => {
            let mut segment = TcpSegment {
                sequence: PEER.wrapping_add(sequence),
                acknowledgement: own.wrapping_add(acknowledgement),
                flags: SegmentFlags::from_bits(flags),
                window,
                payload: SegmentPayload::Bytes(vec![7; length as usize].into()),
                ..TcpSegment::default()
            };
            segment.options.timestamps = stamp.map(|value| TimestampOption { value, echo: value });
            for (start, end) in blocks {
                let number = |position: u32| own.wrapping_add(position);
                segment.options.sack.push(number(start), number(end));
            }
            connection.handle_segment(*now, &segment);
        }
        HostileStep::Wait(milliseconds) => {
            *now += Duration::from_millis(milliseconds);
            connection.handle_timeout(*now);
        }
        HostileStep::Write(count) => connection.write_pattern(*now, ByteCount::new(count)),
        HostileStep::Close => connection.close(),
    }
}

proptest! {
    #[test]
    fn hostile_segments_never_break_a_connection(
        stored in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let content = match stored {
            true => (SendContent::Stored, ReceiveContent::Stored),
            false => (SendContent::Pattern, ReceiveContent::Pattern),
        };
        let (mut connection, own) = opened(content);
        let mut now = Time::ZERO;
        for step in steps {
            apply(&mut connection, &mut now, own, step);
            let mut outputs = 0;
            while let Some(segment) = connection.poll_output(now) {
                outputs += 1;
                prop_assert!(outputs < 200, "output never ends");
                prop_assert!(segment.payload.len() <= 1_000);
            }
            let info = connection.info(now);
            prop_assert!(info.sacked + info.lost <= info.unacknowledged);
            prop_assert!(info.bytes_received.bytes() <= 20_000 || !stored);
            if let Some(due) = connection.poll_timeout() {
                prop_assert!(due > Time::ZERO, "output waits after it was drained");
            }
        }
    }
}
