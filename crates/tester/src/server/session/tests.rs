//! Tests of packets that a session's socket has no room for, with a session that runs only when the
//! test lets it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Mutex;
use std::time::Duration;

use measure::wire::{
    ControlMessage, DATAGRAM_HEADER, DatagramArrival, DatagramHeader, DatagramKind, SessionKey,
    SessionRole, StreamOrder, frame, next_frame,
};
use socket2::SockRef;
use vocab::Bitrate;

use super::super::super::events::events;
use super::super::{ServerOptions, TestServer, default_limits};
use super::*;

const SESSION: u64 = 7;
const PAYLOAD: usize = 1_000;
const SENT: u64 = 50;

/// Client of a session, and the session's shell.
struct TestedSession<'a, 'scope, 'env> {
    shell: SessionShell<'scope>,
    scope: &'scope Scope<'scope, 'env>,
    incoming: IncomingDatagrams,
    key: SessionKey,
    udp: &'a UdpSocket,
    far: &'a TcpStream,
    heard: Vec<u8>,
}

impl TestedSession<'_, '_, '_> {
    /// Lets the session handle what has come, once.
    fn step(&mut self) {
        self.shell.wait(&mut self.incoming).unwrap();
        self.shell.carry_out(self.scope);
    }

    fn say(&mut self, message: &ControlMessage) {
        self.far.write_all(&frame(message)).unwrap();
    }

    /// The next message except for keep-alives.
    fn next(&mut self) -> ControlMessage {
        let mut bytes = [0; 4_096];
        loop {
            if let Some((message, length)) = next_frame(&self.heard).unwrap() {
                self.heard.drain(..length);
                if message != ControlMessage::Alive {
                    return message;
                }
                continue;
            }
            self.step();
            if let Ok(count) = self.far.read(&mut bytes) {
                assert!(count > 0, "the session goes on");
                self.heard.extend_from_slice(&bytes[..count]);
            }
        }
    }

    fn send(&self, kind: DatagramKind, order: u32, number: u64, extra: u64, length: usize) {
        let head = DatagramHeader {
            kind,
            session: SESSION,
            order,
            number,
            stamp: 0,
            extra,
        };
        let mut bytes = Vec::new();
        head.emit(&self.key, SessionRole::Client, length, &mut bytes);
        self.udp.send(&bytes).unwrap();
    }

    /// Shows the session where the client is over UDP.
    fn open(&mut self) {
        let mut cookie = 0;
        for kind in [DatagramKind::Open, DatagramKind::Confirm] {
            self.send(kind, 0, 0, cookie, DATAGRAM_HEADER);
            let mut bytes = [0; 100];
            let count = loop {
                self.step();
                if let Ok(count) = self.udp.recv(&mut bytes) {
                    break count;
                }
            };
            let answer = DatagramHeader::parse(&bytes[..count], &self.key, SessionRole::Server);
            cookie = answer.unwrap().extra;
        }
    }

    /// Sends a stream while nobody reads; returns the number of dropped packets.
    fn stream(&mut self, order: u32, room: usize) -> u64 {
        let thread = self.shell.thread;
        let server = &thread.state.server.udp;
        SockRef::from(server).set_recv_buffer_size(room).unwrap();
        self.say(&ControlMessage::Stream(StreamOrder {
            order,
            direction: TestDirection::Up,
            rate: Bitrate::from_bits_per_second(1_000_000),
            duration: Duration::from_secs(1),
            payload_bytes: PAYLOAD as u16,
        }));
        assert_eq!(self.next(), ControlMessage::Ready { order });
        let before = SocketDropCounter::begin(server);
        for number in 0..SENT {
            self.send(DatagramKind::Data, order, number, 0, PAYLOAD);
        }
        before.until_now(server)
    }

    /// Report of the session on a stream of which so many packets were sent: the arrivals, and the
    /// number of packets without room, which must come before the end.
    fn report(&mut self, order: u32, datagrams: u64) -> (Vec<DatagramArrival>, Option<u64>) {
        self.say(&ControlMessage::StreamSent { order, datagrams });
        let (mut all, mut no_room) = (Vec::new(), None);
        loop {
            match self.next() {
                ControlMessage::NoRoom { datagrams, .. } => no_room = Some(datagrams),
                ControlMessage::Arrivals { arrivals, .. } if arrivals.is_empty() => {
                    return (all, no_room);
                }
                ControlMessage::Arrivals { arrivals, .. } => all.extend(arrivals),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn packets_without_room_are_reported_before_the_end() {
    let server = TestServer::bind(&ServerOptions {
        bind: Some(Ipv4Addr::LOCALHOST.into()),
        port: 0,
        words: "words".to_owned(),
        limits: default_limits(),
    })
    .unwrap();
    server.udp.set_read_timeout(Some(LOOK_EVERY)).unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(server.udp.local_addr().unwrap()).unwrap();
    udp.set_nonblocking(true).unwrap();
    let far = TcpStream::connect(server.listener.local_addr().unwrap()).unwrap();
    let (near, _) = server.listener.accept().unwrap();
    far.set_nonblocking(true).unwrap();
    let state = ServerState {
        server: &server,
        session: Mutex::new(None),
        strangers: Mutex::new(Vec::new()),
        stop: AtomicBool::new(false),
        tell: &|_| {},
    };
    let (sender, receiver) = events().unwrap();
    let thread = SessionThread {
        state: &state,
        control: &near,
        writer: &MessageWriter::new(&near).unwrap(),
        sender,
        receiver,
    };
    let key = server.key.session(&[1; 32], &[2; 32]);
    let client = AuthenticatedClient {
        dscp: 0,
        key: key.clone(),
        proof: [0; 32],
    };
    std::thread::scope(|scope| {
        let mut tested = TestedSession {
            shell: SessionShell::new(&thread, SESSION, 99, client),
            scope,
            incoming: IncomingDatagrams::new(),
            key,
            udp: &udp,
            far: &far,
            heard: Vec::new(),
        };
        assert!(matches!(tested.next(), ControlMessage::Welcome { .. }));
        tested.open();
        let dropped = tested.stream(1, 2_048);
        assert!((1..SENT).contains(&dropped), "{dropped}");
        let (arrived, no_room) = tested.report(1, SENT);
        assert_eq!(arrived.len() as u64, SENT - dropped);
        assert_eq!(no_room, Some(dropped));
        // No more than is missing: what a path brings twice finds no room either.
        let dropped = tested.stream(2, 2_048);
        assert_eq!(tested.report(2, SENT - dropped + 1).1, Some(1));
        // Nothing is said where there was room, whatever was dropped before.
        assert_eq!(tested.stream(3, 1 << 20), 0);
        assert_eq!(tested.report(3, SENT).1, None);
    });
}
