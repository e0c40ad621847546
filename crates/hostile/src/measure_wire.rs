//! Entries of `measure`: what strangers and the other end of a turn-up test send.

use std::net::SocketAddr;
use std::time::Duration;

use measure::procedure::{ResponderAction, UdpResponder};
use measure::session::{
    AuthenticatedClient, ClientConversation, ClientOutput, ClientSettings, ClientStep, SILENCE_MAX,
    ServerConversation, ServerOutput, ServerSettings,
};
use measure::tcp_info::TcpInfo;
use measure::turn_up::{RunPlan, RunPurpose};
use measure::wire::{
    ControlMessage, DATAGRAM_HEADER, DatagramArrival, DatagramHeader, DatagramKind,
    LONGEST_MESSAGE, PROOF_BYTES, RunOrder, RunSample, ServerLimits, ServerRefusal, SessionKey,
    SessionRole, SharedKey, StreamOrder, TestDirection, frame, next_frame,
};
use vocab::{Bitrate, ByteCount, Time};

use crate::seed::{CorpusSeed, seed};

/// Messages on the control connection, one after the other: read and written again, and as said by
/// each end to the other end's machine.
pub(crate) fn control(bytes: &[u8]) {
    say_to_server(bytes);
    say_to_client(bytes);
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

/// Feeds a client's control bytes to a server that knows no UDP address yet.
fn say_to_server(bytes: &[u8]) {
    let client = AuthenticatedClient {
        dscp: 0,
        key: session_key(),
        proof: [0; PROOF_BYTES],
    };
    let settings = ServerSettings {
        session: SESSION,
        secret: 99,
        limits: limits(),
        remarks: String::new(),
    };
    let mut server = ServerConversation::new(Time::ZERO, client, settings);
    let mut now = Time::ZERO;
    server.handle_control(now, bytes);
    while server.ended().is_none() {
        while let Some(output) = server.poll_output() {
            match output {
                ServerOutput::EndDropCount => server.drops_counted(u64::MAX),
                ServerOutput::Prepare(_) => server.prepared(Err("no room".to_owned())),
                ServerOutput::SendStream(..) | ServerOutput::Transfer(_) => {
                    panic!("neither a UDP address nor a connection is known")
                }
                _ => {}
            }
        }
        let due = server.poll_timeout().expect("silence ends it");
        assert!(due > now, "output waits no longer");
        now = due;
        server.handle_timeout(now);
    }
    assert!(now <= Time::ZERO + SILENCE_MAX);
}

/// Feeds a server's control bytes to a client that has ordered a run.
fn say_to_client(bytes: &[u8]) {
    let settings = ClientSettings {
        session: SESSION,
        key: session_key(),
        limits: limits(),
        interface_mtu: 1_500,
        udp_headers: 28,
        congestion_control: String::new(),
    };
    let mut client = ClientConversation::new(Time::ZERO, settings);
    let plan = RunPlan {
        purpose: RunPurpose::Listed,
        connections: [1, 1],
        windows: [ByteCount::new(65_536); 2],
        duration: Duration::from_secs(2),
    };
    let mut now = Time::ZERO;
    client.begin(
        now,
        ClientStep::Run {
            plan,
            segments_max: [None; 2],
            rest: Duration::ZERO,
        },
    );
    client.handle_control(now, bytes);
    while client.failure().is_none() && !client.is_idle() {
        while let Some(output) = client.poll_output() {
            match output {
                ClientOutput::Connect(_) => client.connected(now, Ok(String::new())),
                ClientOutput::Transfer(_) => client.transferred(now, Vec::new(), 0),
                _ => {}
            }
        }
        if client.failure().is_some() || client.is_idle() {
            break;
        }
        let due = client.poll_timeout().expect("silence ends it");
        assert!(due > now || now == Time::ZERO, "output waits no longer");
        now = due.max(now);
        client.handle_timeout(now);
    }
    assert!(now <= Time::ZERO + SILENCE_MAX);
}

fn limits() -> ServerLimits {
    ServerLimits {
        rate: Bitrate::from_bits_per_second(1_000_000_000),
        order: Duration::from_secs(60),
        session: Duration::from_secs(1_800),
        connections: 64,
    }
}

const SESSION: u64 = 0x7475_726e_2d75_7021;

fn session_key() -> SessionKey {
    SharedKey::from_words("words").session(&[1; 32], &[2; 32])
}

/// A datagram to a server: first as it is, then with a right tag.
pub(crate) fn datagram(bytes: &[u8]) {
    let key = session_key();
    let stranger: SocketAddr = ([198, 51, 100, 9], 53).into();
    let mut server = UdpResponder::new(SESSION, key.clone(), 99);
    let parsed = DatagramHeader::parse(bytes, &key, SessionRole::Client);
    let answer = server.handle(Time::ZERO, Time::ZERO, stranger, bytes);
    match parsed {
        Err(_) => assert_eq!(answer, ResponderAction::Silence, "no tag, no answer"),
        Ok(datagram) => {
            let mut again = Vec::new();
            datagram.emit(&key, SessionRole::Client, bytes.len(), &mut again);
            assert_eq!(
                DatagramHeader::parse(&again, &key, SessionRole::Client),
                Ok(datagram)
            );
            // From an address that is not believed, nothing larger than the question.
            if let ResponderAction::Send(answers) = answer {
                let sum: usize = answers.iter().map(|answer| answer.length).sum();
                assert!(sum <= bytes.len());
                assert_eq!(datagram.kind, DatagramKind::Open);
            }
        }
    }
}

/// Good inputs for [`control`].
pub(crate) fn control_seeds() -> Vec<CorpusSeed> {
    let limits = limits();
    let order = StreamOrder {
        order: 1,
        direction: TestDirection::Down,
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
    let arrival = DatagramArrival {
        number: 3,
        sent_ns: 1_000_000,
        arrived_ns: 25_000_000,
    };
    let begin = [
        frame(&ControlMessage::Hello {
            oldest: 1,
            newest: 1,
            nonce: [7; 32],
        }),
        frame(&ControlMessage::Authenticate {
            version: 1,
            dscp: 46,
            nonce: [8; 32],
            proof: [9; 32],
        }),
        frame(&ControlMessage::Welcome {
            proof: [1; 32],
            session: SESSION,
            limits,
            remarks: String::new(),
        }),
    ];
    let refused = ControlMessage::Refused {
        reason: ServerRefusal::Busy,
        retry: Duration::from_secs(90),
        text: "another test is running".to_owned(),
    };
    let orders = [
        frame(&ControlMessage::Stream(order)),
        frame(&ControlMessage::Run(run)),
        frame(&ControlMessage::Alive),
        frame(&ControlMessage::Bye),
    ];
    let reports = [
        frame(&ControlMessage::Arrivals {
            order: 1,
            arrivals: vec![arrival],
        }),
        frame(&ControlMessage::NoRoom {
            order: 1,
            datagrams: 61_234,
        }),
        frame(&ControlMessage::Samples {
            order: 2,
            samples: vec![sample],
        }),
        frame(&ControlMessage::RunEnded {
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
pub(crate) fn datagram_seeds() -> Vec<CorpusSeed> {
    let written = |kind, role, length| {
        let head = DatagramHeader {
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
        seed(
            "open",
            written(DatagramKind::Open, SessionRole::Client, DATAGRAM_HEADER),
        ),
        seed(
            "confirm",
            written(DatagramKind::Confirm, SessionRole::Client, 0),
        ),
        seed(
            "probe-wanted",
            written(DatagramKind::ProbeWanted, SessionRole::Client, 0),
        ),
        seed(
            "data",
            written(DatagramKind::Data, SessionRole::Client, 200),
        ),
        seed(
            "of-the-server",
            written(DatagramKind::Cookie, SessionRole::Server, 0),
        ),
    ]
}
