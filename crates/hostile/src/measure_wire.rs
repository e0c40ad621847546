//! Entries of `measure`: what strangers and the other end of a turn-up test send.

use std::net::SocketAddr;
use std::time::Duration;

use measure::procedure::{Answer, Responder};
use measure::tcp_info::TcpInfo;
use measure::wire::{
    Arrival, DATAGRAM_HEADER, Datagram, Direction, Key, Kind, LONGEST_MESSAGE, Limits, Message,
    Refusal, Role, RunOrder, RunSample, SessionKey, StreamOrder, frame, next_frame,
};
use vocab::{Bitrate, ByteCount, Time};

use crate::seed::{Seed, seed};

/// Messages on the control connection, one after the other.
pub(crate) fn control(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some((message, length))) = next_frame(rest) {
        assert!((4..=rest.len()).contains(&length));
        assert_eq!(next_frame(&rest[..length - 1]), Ok(None));
        let again = frame(&message);
        // A number may be written longer than it need be; what it means is the same.
        let (same, whole) = next_frame(&again)
            .expect("what was read can be written")
            .expect("and is whole");
        assert_eq!((same, whole), (message, again.len()));
        rest = &rest[length..];
    }
    if next_frame(rest) == Ok(None) {
        assert!(
            rest.len() < LONGEST_MESSAGE + 4,
            "a peer could send for ever"
        );
    }
}

const SESSION: u64 = 0x7475_726e_2d75_7021;

fn session_key() -> SessionKey {
    Key::from_words("words").session(&[1; 32], &[2; 32])
}

/// A datagram to a server: first as it is, then with a right tag.
pub(crate) fn datagram(bytes: &[u8]) {
    let key = session_key();
    let stranger: SocketAddr = ([198, 51, 100, 9], 53).into();
    let mut server = Responder::new(SESSION, key.clone(), 99);
    let parsed = Datagram::parse(bytes, &key, Role::Client);
    let answer = server.handle(Time::ZERO, Time::ZERO, stranger, bytes);
    match parsed {
        Err(_) => assert_eq!(answer, Answer::Silence, "no tag, no answer"),
        Ok(datagram) => {
            let mut again = Vec::new();
            datagram.emit(&key, Role::Client, bytes.len(), &mut again);
            assert_eq!(Datagram::parse(&again, &key, Role::Client), Ok(datagram));
            // From an address that is not believed, nothing larger than the question.
            if let Answer::Send(answers) = answer {
                let sum: usize = answers.iter().map(|answer| answer.length).sum();
                assert!(sum <= bytes.len());
                assert_eq!(datagram.kind, Kind::Open);
            }
        }
    }
}

/// Good inputs for [`control`].
pub(crate) fn control_seeds() -> Vec<Seed> {
    let limits = Limits {
        rate: Bitrate::from_bits_per_second(1_000_000_000),
        order: Duration::from_secs(60),
        session: Duration::from_secs(1_800),
        connections: 64,
    };
    let order = StreamOrder {
        order: 1,
        direction: Direction::Down,
        rate: Bitrate::from_bits_per_second(10_000_000),
        duration: Duration::from_secs(10),
        payload_bytes: 1_472,
    };
    let run = RunOrder {
        order: 2,
        connections: [1, 4],
        windows: [ByteCount::new(65_536), ByteCount::new(16_384)],
        duration: Duration::from_secs(10),
        congestion_control: "cubic".to_owned(),
    };
    let sample = RunSample {
        connection: 1,
        at: Duration::from_millis(1_500),
        info: TcpInfo::default(),
    };
    let arrival = Arrival {
        number: 3,
        sent_ns: 1_000_000,
        arrived_ns: 25_000_000,
    };
    let begin = [
        frame(&Message::Hello {
            oldest: 1,
            newest: 1,
            nonce: [7; 32],
        }),
        frame(&Message::Authenticate {
            version: 1,
            dscp: 46,
            nonce: [8; 32],
            proof: [9; 32],
        }),
        frame(&Message::Welcome {
            proof: [1; 32],
            session: SESSION,
            limits,
            remarks: String::new(),
        }),
    ];
    let refused = Message::Refused {
        reason: Refusal::Busy,
        retry: Duration::from_secs(90),
        text: "another test is running".to_owned(),
    };
    let orders = [
        frame(&Message::Stream(order)),
        frame(&Message::Run(run)),
        frame(&Message::Alive),
        frame(&Message::Bye),
    ];
    let reports = [
        frame(&Message::Arrivals {
            order: 1,
            arrivals: vec![arrival],
        }),
        frame(&Message::NoRoom {
            order: 1,
            datagrams: 61_234,
        }),
        frame(&Message::Samples {
            order: 2,
            samples: vec![sample],
        }),
        frame(&Message::RunEnded {
            order: 2,
            congestion_control: "bbr".to_owned(),
            busy_permille: 120,
        }),
    ];
    vec![
        seed("begin", begin.concat()),
        seed("refused", frame(&refused)),
        seed("orders", orders.concat()),
        seed("reports", reports.concat()),
        seed("http", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ]
}

/// Good inputs for [`datagram`].
pub(crate) fn datagram_seeds() -> Vec<Seed> {
    let written = |kind, role, length| {
        let head = Datagram {
            kind,
            session: SESSION,
            order: 0,
            number: 1,
            stamp: 5,
            extra: 1_472,
        };
        let mut bytes = Vec::new();
        head.emit(&session_key(), role, length, &mut bytes);
        bytes
    };
    vec![
        seed("open", written(Kind::Open, Role::Client, DATAGRAM_HEADER)),
        seed("confirm", written(Kind::Confirm, Role::Client, 0)),
        seed("probe-wanted", written(Kind::ProbeWanted, Role::Client, 0)),
        seed("data", written(Kind::Data, Role::Client, 200)),
        seed("of-the-server", written(Kind::Cookie, Role::Server, 0)),
    ]
}
