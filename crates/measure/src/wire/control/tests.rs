//! Tests of every message in both directions, and of invalid messages.

use super::*;

fn samples() -> Vec<ControlMessage> {
    let info = TcpInfo {
        segment_bytes: 1_448,
        rtt: Duration::from_micros(20_150),
        bytes_sent: ByteCount::new(1 << 40),
        peer_window: Some(ByteCount::new(0)),
        ..TcpInfo::default()
    };
    let sample = |connection, info| RunSample {
        connection,
        at: Duration::from_secs(1),
        info,
    };
    vec![
        ControlMessage::Hello {
            oldest: 1,
            newest: 2,
            nonce: [7; 32],
        },
        ControlMessage::Authenticate {
            version: 1,
            dscp: 46,
            nonce: [8; 32],
            proof: [9; 32],
        },
        ControlMessage::Join(JoinMessage {
            session: 1,
            order: 2,
            connection: 3,
            proof: [4; 32],
        }),
        ControlMessage::Welcome {
            proof: [1; 32],
            session: u64::MAX,
            limits: ServerLimits {
                rate: Bitrate::from_bits_per_second(1_000_000_000),
                order: Duration::from_secs(60),
                session: Duration::from_secs(600),
                connections: 64,
            },
            remarks: "net.core.rmem_max is small".to_owned(),
        },
        ControlMessage::Refused {
            reason: ServerRefusal::Busy,
            retry: Duration::from_secs(90),
            text: "another test is running".to_owned(),
        },
        ControlMessage::Stream(StreamOrder {
            order: 1,
            direction: TestDirection::Down,
            rate: Bitrate::from_bits_per_second(512_000),
            duration: Duration::from_secs(10),
            payload_bytes: 1_472,
        }),
        ControlMessage::Run(RunOrder {
            order: 2,
            connections: [1, 4],
            windows: [ByteCount::new(65_536), ByteCount::new(0)],
            duration: Duration::from_secs(10),
            congestion_control: "cubic".to_owned(),
        }),
        ControlMessage::Ready { order: 2 },
        ControlMessage::StreamSent {
            order: 1,
            datagrams: 1_000,
        },
        ControlMessage::Arrivals {
            order: 1,
            arrivals: vec![DatagramArrival {
                number: 5,
                sent_ns: 1_000_000,
                arrived_ns: 26_000_000,
            }],
        },
        ControlMessage::NoRoom {
            order: 1,
            datagrams: 61_234,
        },
        ControlMessage::Samples {
            order: 2,
            samples: vec![sample(0, info), sample(1, TcpInfo::default())],
        },
        ControlMessage::RunEnded {
            order: 2,
            congestion_control: "bbr".to_owned(),
            busy_permille: 999,
        },
        ControlMessage::Alive,
        ControlMessage::Stop { order: 2 },
        ControlMessage::Failed {
            order: 2,
            text: "no".to_owned(),
        },
        ControlMessage::Bye,
    ]
}

#[test]
fn messages_round_trip_and_truncated_ones_wait() {
    for message in samples() {
        let bytes = frame(&message);
        assert_eq!(next_frame(&bytes), Ok(Some((message.clone(), bytes.len()))));
        for cut in 0..bytes.len() {
            assert_eq!(next_frame(&bytes[..cut]), Ok(None), "{message:?}");
        }
    }
}

#[test]
fn malformed_message_is_refused() {
    assert_eq!(
        next_frame(b"GET / HTTP/1.1\r\n"),
        Err(WireError::TooLong(u64::from(u32::from_be_bytes(*b"GET "))))
    );
    let malformed = Err(WireError::Malformed);
    assert_eq!(next_frame(&[0, 0, 0, 1, 99]), malformed);
    assert_eq!(next_frame(&[0, 0, 0, 2, ALIVE, 0]), malformed);
    assert_eq!(next_frame(&[0, 0, 0, 0]), malformed);
    let mut hello = frame(&samples()[0]);
    hello[5] = b'X';
    assert_eq!(next_frame(&hello), Err(WireError::Foreign));
    let mut escape = frame(&ControlMessage::Failed {
        order: 1,
        text: "red".to_owned(),
    });
    *escape.last_mut().unwrap() = 0x1b;
    assert_eq!(next_frame(&escape), malformed);
}

#[test]
fn long_text_is_cut_at_a_character_boundary() {
    let message = ControlMessage::Failed {
        order: 1,
        text: "ü".repeat(400),
    };
    let Ok(Some((ControlMessage::Failed { text, .. }, _))) = next_frame(&frame(&message)) else {
        panic!("it reads back");
    };
    assert_eq!(text, "ü".repeat(256));
}
