//! Tests of packets that a session's socket has no room for, with a server whose threads run only
//! when the test lets them.

use std::io::Read;

use measure::wire::{DatagramArrival, DatagramHeader, DatagramKind, frame, next_frame};

use super::*;

const PAYLOAD: usize = 1_000;

/// A session whose client has shown where it is, and the far end of its control connection.
fn begin(server: &TestServer, client: &UdpSocket) -> (Arc<ServerSession>, TcpStream) {
    let far = TcpStream::connect(server.listener.local_addr().unwrap()).unwrap();
    let (near, from) = server.listener.accept().unwrap();
    let key = server.key.session(&[1; 32], &[2; 32]);
    let session = ServerSession {
        id: 7,
        from,
        dscp: 0,
        responder: Mutex::new(UdpResponder::new(7, key.clone(), 99)),
        key,
        writer: MessageWriter::new(&near).unwrap(),
        began: Instant::now(),
        is_over: AtomicBool::new(false),
        is_busy: AtomicBool::new(false),
        is_reporting: AtomicBool::new(false),
        given_up: Mutex::new(None),
        listening: Mutex::new(None),
        is_streaming: AtomicBool::new(false),
        heard: LastHeard::new(),
        joining: Mutex::new(None),
    };
    let ask = |kind, extra| {
        let bytes = datagram(&session, kind, 0, 0, extra);
        let now = TesterClock::new().now();
        let address = client.local_addr().unwrap();
        lock(&session.responder).handle(now, now, address, &bytes)
    };
    let ResponderAction::Send(answers) = ask(DatagramKind::Open, 0) else {
        panic!("a client is answered");
    };
    let cookie = answers[0].datagram.extra;
    assert!(matches!(
        ask(DatagramKind::Confirm, cookie),
        ResponderAction::Confirmed(_)
    ));
    (Arc::new(session), far)
}

fn datagram(
    session: &ServerSession,
    kind: DatagramKind,
    order: u32,
    number: u64,
    extra: u64,
) -> Vec<u8> {
    let head = DatagramHeader {
        kind,
        session: session.id,
        order,
        number,
        stamp: 0,
        extra,
    };
    let mut bytes = Vec::new();
    head.emit(&session.key, SessionRole::Client, PAYLOAD, &mut bytes);
    bytes
}

/// Report of the server on an upload stream: all arrivals, the number of packets without room, and
/// whether that number came before the end.
fn told(far: &mut TcpStream) -> (Vec<DatagramArrival>, Option<u64>) {
    let (mut heard, mut bytes) = (Vec::new(), [0; 4_096]);
    let (mut all, mut no_room) = (Vec::new(), None);
    loop {
        while let Some((message, length)) = next_frame(&heard).unwrap() {
            heard.drain(..length);
            assert_eq!(length, frame(&message).len());
            match message {
                ControlMessage::Ready { .. } => {}
                ControlMessage::NoRoom { datagrams, .. } => no_room = Some(datagrams),
                ControlMessage::Arrivals { arrivals, .. } if arrivals.is_empty() => {
                    return (all, no_room);
                }
                ControlMessage::Arrivals { arrivals, .. } => all.extend(arrivals),
                other => panic!("{other:?}"),
            }
        }
        let count = far.read(&mut bytes).unwrap();
        assert!(count > 0, "the server goes on to the end");
        heard.extend_from_slice(&bytes[..count]);
    }
}

#[test]
fn packets_without_room_are_reported_before_the_end() {
    const SENT: u64 = 50;
    let server = TestServer::bind(&ServerOptions {
        bind: Some(Ipv4Addr::LOCALHOST.into()),
        port: 0,
        words: "words".to_owned(),
        limits: default_limits(),
    })
    .unwrap();
    server.udp.set_read_timeout(Some(LOOK_EVERY)).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(server.udp.local_addr().unwrap()).unwrap();
    let (session, mut far) = begin(&server, &client);
    let shared = ServerState {
        server: &server,
        clock: TesterClock::new(),
        session: Mutex::new(Some(session.clone())),
        strangers: Mutex::new(Vec::new()),
        stop: AtomicBool::new(false),
        tell: &|_| {},
    };
    let carry = |order: u32, room: usize| {
        SockRef::from(&server.udp)
            .set_recv_buffer_size(room)
            .unwrap();
        let plan = StreamOrder {
            order,
            direction: TestDirection::Up,
            rate: Bitrate::from_bits_per_second(1_000_000),
            duration: Duration::from_secs(1),
            payload_bytes: PAYLOAD as u16,
        };
        shared.stream(&session, plan).unwrap();
        // All of it comes while nobody reads.
        let before = SocketDropCounter::begin(&server.udp);
        for number in 0..SENT {
            let bytes = datagram(&session, DatagramKind::Data, order, number, 0);
            client.send(&bytes).unwrap();
        }
        let dropped = before.until_now(&server.udp);
        shared.stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| shared.answer());
            let has_all = || {
                let listening = lock(&session.listening);
                listening.as_ref().unwrap().log.len() as u64 == SENT - dropped
            };
            while !has_all() {
                std::thread::sleep(LOOK_EVERY / 10);
            }
            shared.stop.store(true, Ordering::Relaxed);
        });
        dropped
    };
    let dropped = carry(1, 2_048);
    assert!((1..SENT).contains(&dropped), "{dropped}");
    session.report_arrivals(1, SENT, &server.udp);
    let (arrived, no_room) = told(&mut far);
    assert_eq!(arrived.len() as u64, SENT - dropped);
    assert_eq!(no_room, Some(dropped));
    // No more than is missing: what a path brings twice finds no room either.
    let dropped = carry(2, 2_048);
    session.report_arrivals(2, SENT - dropped + 1, &server.udp);
    assert_eq!(told(&mut far).1, Some(1));
    // Nothing is said where there was room, whatever was dropped before.
    assert_eq!(carry(3, 1 << 20), 0);
    session.report_arrivals(3, SENT, &server.udp);
    assert_eq!(told(&mut far).1, None);
}
