//! Tests of each end against messages that the other end would not send, or does not send.

use std::net::SocketAddr;
use std::time::Duration;

use vocab::{Bitrate, ByteCount, Time};

use super::*;
use crate::procedure::StreamPlan;
use crate::turn_up::{RunPlan, RunPurpose};
use crate::wire::{
    ControlMessage, DATAGRAM_HEADER, DatagramHeader, DatagramKind, JoinMessage, RunOrder,
    ServerLimits, SessionKey, SessionNonce, SessionRole, SharedKey, StreamOrder, TestDirection,
    frame, next_frame,
};

const SESSION: u64 = 7;
const CLIENT: &str = "192.0.2.1:40000";

fn key() -> SessionKey {
    SharedKey::from_words("words").session(&[1; 32], &[2; 32])
}

fn limits() -> ServerLimits {
    ServerLimits {
        rate: Bitrate::from_bits_per_second(10_000_000),
        order: Duration::from_secs(10),
        session: Duration::from_secs(60),
        connections: 4,
    }
}

fn at(milliseconds: u64) -> Time {
    Time::from_epoch(Duration::from_millis(milliseconds))
}

fn client() -> ClientConversation {
    let settings = ClientSettings {
        session: SESSION,
        key: key(),
        limits: limits(),
        interface_mtu: 1_500,
        udp_headers: 28,
        congestion_control: String::new(),
    };
    ClientConversation::new(at(0), settings)
}

fn run_plan() -> RunPlan {
    RunPlan {
        purpose: RunPurpose::Listed,
        connections: [1, 0],
        windows: [ByteCount::new(32_000), ByteCount::default()],
        duration: Duration::from_secs(2),
    }
}

fn run_step() -> ClientStep {
    ClientStep::Run {
        plan: run_plan(),
        segments_max: [None; 2],
        rest: Duration::ZERO,
    }
}

/// Messages among a client's outputs, except for keep-alives.
fn client_messages(client: &mut ClientConversation) -> Vec<ControlMessage> {
    let mut messages = Vec::new();
    while let Some(output) = client.poll_output() {
        if let ClientOutput::Control(bytes) = output {
            let (message, _) = next_frame(&bytes).unwrap().unwrap();
            if message != ControlMessage::Alive {
                messages.push(message);
            }
        }
    }
    messages
}

/// Why a client failed after this message.
fn failure_after(step: ClientStep, messages: &[ControlMessage]) -> String {
    let mut client = client();
    client.begin(at(0), step);
    for message in messages {
        client.handle_control(at(10), &frame(message));
    }
    let failure = client.failure().map(ToString::to_string);
    failure.unwrap_or_default()
}

/// A server that is killed closes the connection within the same second.
#[test]
fn closed_connection_is_not_called_silent() {
    let mut client = client();
    client.begin(at(0), run_step());
    client.control_lost("the other end closed the connection".to_owned());
    client.handle_timeout(at(9_000));
    let why = client.failure().unwrap().to_string();
    assert_eq!(
        why,
        "the other end closed the connection: the server was stopped, or the network is down"
    );
}

#[test]
fn silent_server_ends_the_test() {
    let mut client = client();
    client.begin(at(0), run_step());
    client.handle_control(at(2_000), &frame(&ControlMessage::Alive));
    client.handle_timeout(at(6_999));
    assert_eq!(client.failure(), None);
    client.handle_timeout(at(7_000));
    assert_eq!(client.failure(), Some(&ConversationError::Silent));
}

#[test]
fn server_without_answer_ends_the_test() {
    let mut client = client();
    client.begin(at(0), run_step());
    for second in 1..20 {
        client.handle_control(at(1_000 * second), &frame(&ControlMessage::Alive));
        client.handle_timeout(at(1_000 * second));
    }
    assert_eq!(client.failure(), None);
    client.handle_timeout(at(20_000));
    let why = client.failure().unwrap().to_string();
    assert_eq!(why, "the server did not answer in 20 s");
}

#[test]
fn faulty_messages_of_a_server_are_named() {
    let ready = |order| ControlMessage::Ready { order };
    assert_eq!(failure_after(run_step(), &[ready(1)]), "");
    assert_eq!(
        failure_after(run_step(), &[ready(2)]),
        "the server said `Ready` where it should not"
    );
    let failed = ControlMessage::Failed {
        order: 1,
        text: "no room".to_owned(),
    };
    assert_eq!(
        failure_after(run_step(), &[ready(1), failed]),
        "the server says: no room"
    );
    let bytes = [0, 0, 0, 1, 99];
    let mut client = client();
    client.handle_control(at(1), &bytes);
    assert!(matches!(client.failure(), Some(ConversationError::Wire(_))));
}

/// The server says that all connections have come, and that it is over, before this end knows.
#[test]
fn server_may_be_ready_before_the_client() {
    let mut client = client();
    client.begin(at(0), run_step());
    let order = 1;
    for _ in 0..2 {
        client.handle_control(at(1), &frame(&ControlMessage::Ready { order }));
    }
    client.connected(at(2), Ok("cubic".to_owned()));
    let ended = ControlMessage::RunEnded {
        order,
        congestion_control: "reno".to_owned(),
        busy_permille: 3,
    };
    client.handle_control(at(3), &frame(&ended));
    assert_eq!(client.poll_outcome(), None);
    client.transferred(at(4), Vec::new(), 5);
    let Some(StepOutcome::Run(run)) = client.poll_outcome() else {
        panic!("{:?}", client.failure());
    };
    assert_eq!(run.congestion_control, ["cubic", "reno"]);
    assert_eq!(run.busy_permille, [5, 3]);
    assert!(client.is_idle());
}

#[test]
fn interrupted_run_is_stopped_at_the_server() {
    let mut client = client();
    client.begin(at(0), run_step());
    client_messages(&mut client);
    client.interrupt();
    client.finish();
    let messages = client_messages(&mut client);
    assert_eq!(
        messages,
        [ControlMessage::Stop { order: 1 }, ControlMessage::Bye]
    );
    assert_eq!(client.failure(), Some(&ConversationError::Interrupted));
}

fn server() -> ServerConversation {
    let client = AuthenticatedClient {
        dscp: 0,
        key: key(),
        proof: [0; 32],
    };
    let settings = ServerSettings {
        session: SESSION,
        secret: 99,
        limits: limits(),
        remarks: String::new(),
    };
    ServerConversation::new(at(0), client, settings)
}

/// Messages among a server's outputs, except for keep-alives.
fn server_messages(server: &mut ServerConversation) -> Vec<ControlMessage> {
    let mut messages = Vec::new();
    while let Some(output) = server.poll_output() {
        if let ServerOutput::Control(bytes) = output {
            let (message, _) = next_frame(&bytes).unwrap().unwrap();
            if message != ControlMessage::Alive {
                messages.push(message);
            }
        }
    }
    messages
}

/// Answer of a server to an order.
fn answer(server: &mut ServerConversation, order: &ControlMessage) -> String {
    server_messages(server);
    server.handle_control(at(1), &frame(order));
    match &server_messages(server)[..] {
        [ControlMessage::Failed { text, .. }] => text.clone(),
        [ControlMessage::Ready { .. }] => "ready".to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Shows a server the client's UDP address.
fn open(server: &mut ServerConversation) {
    let from: SocketAddr = CLIENT.parse().unwrap();
    let mut cookie = 0;
    for kind in [DatagramKind::Open, DatagramKind::Confirm] {
        let head = DatagramHeader {
            kind,
            session: SESSION,
            order: 0,
            number: 0,
            stamp: 0,
            extra: cookie,
        };
        let mut bytes = Vec::new();
        head.emit(&key(), SessionRole::Client, DATAGRAM_HEADER, &mut bytes);
        server.handle_datagram(at(1), at(1), from, &bytes);
        while let Some(output) = server.poll_output() {
            if let ServerOutput::Datagram(to, bytes) = output {
                assert_eq!(to, from);
                let answer = DatagramHeader::parse(&bytes, &key(), SessionRole::Server);
                cookie = answer.unwrap().extra;
            }
        }
    }
}

fn stream_order(order: u32, rate: u64, payload_bytes: u16) -> ControlMessage {
    ControlMessage::Stream(StreamOrder {
        order,
        direction: TestDirection::Down,
        rate: Bitrate::from_bits_per_second(rate),
        duration: Duration::from_secs(1),
        payload_bytes,
    })
}

fn run_order(order: u32, connections: [u16; 2]) -> ControlMessage {
    ControlMessage::Run(RunOrder {
        order,
        connections,
        windows: [ByteCount::default(); 2],
        duration: Duration::from_secs(1),
        congestion_control: String::new(),
    })
}

#[test]
fn orders_beyond_the_limits_fail() {
    let mut server = server();
    let much = answer(&mut server, &stream_order(1, 10_000_001, 1_000));
    assert!(much.contains("exceeds the server's limits"), "{much}");
    let small = answer(&mut server, &stream_order(2, 1_000, 55));
    assert!(small.contains("its packets have 56 or more"), "{small}");
    let early = answer(&mut server, &stream_order(3, 1_000, 1_000));
    assert!(early.contains("no UDP packet"), "{early}");
    let many = answer(&mut server, &run_order(4, [5, 0]));
    assert!(many.contains("exceed the server's limits"), "{many}");
    open(&mut server);
    assert_eq!(answer(&mut server, &stream_order(5, 1_000, 56)), "ready");
    let second = answer(&mut server, &run_order(6, [1, 0]));
    assert_eq!(second, "the order before this one is not over");
    assert_eq!(server.ended(), None);
}

#[test]
fn only_wanted_connections_join() {
    let nonce: SessionNonce = [3; 32];
    let joining = |order, connection, key: &SessionKey| JoinMessage {
        session: SESSION,
        order,
        connection,
        proof: key.join(&nonce, order, connection),
    };
    let mut server = server();
    let join = |server: &mut ServerConversation, message| server.join(at(2), &message, &nonce);
    assert_eq!(
        join(&mut server, joining(1, 0, &key())),
        Err(JoinError::NotRequested)
    );
    assert_eq!(answer(&mut server, &run_order(1, [2, 0])), "ready");
    let other = SharedKey::from_words("others").session(&[1; 32], &[2; 32]);
    assert_eq!(
        join(&mut server, joining(1, 0, &other)),
        Err(JoinError::WrongKey)
    );
    let elsewhere = JoinMessage {
        session: SESSION + 1,
        ..joining(1, 0, &key())
    };
    assert_eq!(join(&mut server, elsewhere), Err(JoinError::OtherSession));
    assert_eq!(join(&mut server, joining(1, 0, &key())), Ok(true));
    assert_eq!(join(&mut server, joining(1, 0, &key())), Ok(false));
    assert_eq!(join(&mut server, joining(1, 2, &key())), Ok(false));
    server.handle_timeout(at(4_999));
    server.handle_control(at(5_000), &frame(&ControlMessage::Alive));
    server.handle_control(at(9_000), &frame(&ControlMessage::Alive));
    server.handle_control(at(13_000), &frame(&ControlMessage::Alive));
    server.handle_timeout(at(15_001));
    let messages = server_messages(&mut server);
    let [ControlMessage::Failed { order: 1, text }] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!(text, "1 of 2 connections came in 15 s");
}

#[test]
fn session_ends_at_its_time_limit() {
    let mut server = server();
    for second in 1..60 {
        server.handle_control(at(1_000 * second), &frame(&ControlMessage::Alive));
    }
    server_messages(&mut server);
    server.handle_timeout(at(60_000));
    assert!(matches!(
        &server_messages(&mut server)[..],
        [ControlMessage::Refused { .. }]
    ));
    assert_eq!(server.ended(), Some(&Err(ServerSessionError::TimeUp)));
    assert_eq!(server.poll_timeout(), None);
}

#[test]
fn silent_or_foreign_client_ends_its_session() {
    let mut silent = server();
    silent.handle_timeout(at(5_000));
    assert_eq!(silent.ended(), Some(&Err(ServerSessionError::Silent)));
    let mut foreign = server();
    foreign.handle_control(at(1), &frame(&ControlMessage::Ready { order: 1 }));
    assert_eq!(foreign.ended(), Some(&Err(ServerSessionError::WrongSide)));
    let mut done = server();
    done.handle_control(at(1), &frame(&ControlMessage::Bye));
    assert_eq!(done.ended(), Some(&Ok(())));
}

/// While a stream is measured, nothing is sent over TCP; its receiver shows a sign of life over UDP.
#[test]
fn control_connection_is_quiet_during_a_stream() {
    let mut server = server();
    open(&mut server);
    assert_eq!(answer(&mut server, &stream_order(1, 1_000, 1_000)), "ready");
    server.handle_control(at(3_000), &frame(&ControlMessage::Alive));
    server.handle_timeout(at(3_000));
    assert!(server.poll_output().is_none());
    server.stream_sent(Ok(SentDatagrams::default()));
    server.handle_timeout(at(3_001));
    let mut bytes = Vec::new();
    while let Some(ServerOutput::Control(message)) = server.poll_output() {
        bytes.push(message);
    }
    assert_eq!(bytes.len(), 2, "the end of the stream, and a keep-alive");
}

#[test]
fn stream_that_shrinks_to_the_order_limit_is_ordered() {
    let plan = StreamPlan {
        rate: Bitrate::from_bits_per_second(1_000_000),
        duration: Duration::from_secs(30),
        ip_bytes: 1_500,
    };
    let mut client = client();
    client.begin(
        at(0),
        ClientStep::Stream {
            direction: TestDirection::Up,
            plan,
            rest: Duration::from_millis(100),
        },
    );
    assert_eq!(client.poll_timeout(), Some(Time::ZERO));
    client.handle_timeout(at(100));
    // The server does not know our UDP address, so it is shown first, in vain.
    for step in 1..=15 {
        client.handle_control(at(100 + 400 * step), &frame(&ControlMessage::Alive));
        client.handle_timeout(at(100 + 400 * step));
    }
    let messages = client_messages(&mut client);
    let [ControlMessage::Stream(order)] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!(order.duration, limits().order);
}
