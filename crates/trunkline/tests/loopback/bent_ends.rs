//! Turn-up tests with a misbehaving other end or path, over loopback.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use measure::wire::{
    ControlMessage, DATAGRAM_HEADER, DatagramHeader, DatagramKind, SessionKey, SessionRole,
    SharedKey, StreamOrder, TestDirection, VERSION, frame, next_frame,
};
use vocab::Bitrate;

use crate::turn_up::{KEY, MeasureServer, assert_refused, measure, run};

/// A client that holds the key and sends arbitrary messages.
struct MisbehavingClient {
    control: TcpStream,
    heard: Vec<u8>,
    udp: UdpSocket,
    key: SessionKey,
    session: u64,
}

impl MisbehavingClient {
    fn begin(port: u16) -> Self {
        let server = SocketAddr::from(([127, 0, 0, 1], port));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.connect(server).unwrap();
        udp.set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let key = SharedKey::from_words(KEY);
        let nonce = [7; 32];
        let mut client = Self {
            control: TcpStream::connect(server).unwrap(),
            heard: Vec::new(),
            udp,
            key: key.session(&nonce, &nonce),
            session: 0,
        };
        let ControlMessage::Hello { nonce: theirs, .. } = client.next() else {
            panic!("a server greets first");
        };
        client.key = key.session(&nonce, &theirs);
        client.say(&ControlMessage::Authenticate {
            version: VERSION,
            dscp: 0,
            nonce,
            proof: key.prove(SessionRole::Client, VERSION, &nonce, &theirs),
        });
        let ControlMessage::Welcome { session, .. } = client.next() else {
            panic!("the key is the server's");
        };
        client.session = session;
        client
    }

    fn say(&mut self, message: &ControlMessage) {
        self.control.write_all(&frame(message)).unwrap();
    }

    /// The next message except for keep-alives.
    fn next(&mut self) -> ControlMessage {
        let mut bytes = [0; 4_096];
        loop {
            match next_frame(&self.heard).unwrap() {
                Some((message, length)) => {
                    self.heard.drain(..length);
                    if message != ControlMessage::Alive {
                        return message;
                    }
                }
                None => {
                    let count = self.control.read(&mut bytes).unwrap();
                    assert!(count > 0, "the server closed the connection");
                    self.heard.extend_from_slice(&bytes[..count]);
                }
            }
        }
    }

    fn send(&self, kind: DatagramKind, order: u32, extra: u64) {
        let head = DatagramHeader {
            kind,
            session: self.session,
            order,
            number: 0,
            stamp: 0,
            extra,
        };
        let mut bytes = Vec::new();
        head.emit(&self.key, SessionRole::Client, DATAGRAM_HEADER, &mut bytes);
        self.udp.send(&bytes).unwrap();
    }

    /// Shows the server where it is over UDP.
    fn open(&self) {
        let mut bytes = [0; 100];
        let mut answer = |kind, extra| loop {
            self.send(kind, 0, extra);
            if let Ok(count) = self.udp.recv(&mut bytes) {
                return DatagramHeader::parse(&bytes[..count], &self.key, SessionRole::Server)
                    .unwrap();
            }
        };
        let cookie = answer(DatagramKind::Open, 0).extra;
        assert_eq!(
            answer(DatagramKind::Confirm, cookie).kind,
            DatagramKind::Confirmed
        );
    }

    fn order(
        &mut self,
        order: u32,
        direction: TestDirection,
        payload_bytes: u16,
    ) -> ControlMessage {
        self.say(&ControlMessage::Stream(StreamOrder {
            order,
            direction,
            rate: Bitrate::from_bits_per_second(1_000_000),
            duration: Duration::from_secs(1),
            payload_bytes,
        }));
        self.next()
    }
}

/// A packet has a head of 56 bytes: an order of smaller ones would be carried out at a multiple of its rate, and
/// so of the most that the server gives.
#[test]
fn stream_of_impossible_packets_is_refused() {
    let server = MeasureServer::start_with(&["--max-rate=1Mbit"]);
    let mut client = MisbehavingClient::begin(server.port);
    client.open();
    for (order, bytes) in [(1, 0), (2, DATAGRAM_HEADER as u16 - 1)] {
        let answer = client.order(order, TestDirection::Down, bytes);
        assert!(
            matches!(answer, ControlMessage::Failed { .. }),
            "{answer:?}"
        );
    }
    let answer = client.order(3, TestDirection::Down, DATAGRAM_HEADER as u16);
    assert_eq!(answer, ControlMessage::Ready { order: 3 });
}

/// Whatever a client says again and again, it costs the server a thread or two.
#[test]
fn repeating_client_gets_no_thread_per_message() {
    let server = MeasureServer::start_with(&[]);
    let mut client = MisbehavingClient::begin(server.port);
    client.open();
    assert_eq!(
        client.order(1, TestDirection::Up, 1_000),
        ControlMessage::Ready { order: 1 }
    );
    for again in 0..5_000 {
        // As long as it goes on, the end of the stream is waited for.
        if again % 50 == 0 {
            client.send(DatagramKind::Data, 1, 0);
        }
        client.say(&ControlMessage::StreamSent {
            order: 1,
            datagrams: 1,
        });
    }
    // What was said before is heard by then.
    let answer = client.order(2, TestDirection::Down, 0);
    assert!(matches!(
        answer,
        ControlMessage::Failed { .. } | ControlMessage::Arrivals { .. }
    ));
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let threads = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"))
        .and_then(|count| count.trim().parse::<u32>().ok());
    assert!(threads.is_some_and(|count| count < 20), "{threads:?}");
}

/// Connections beyond the process's limit do not end a server.
#[test]
fn server_without_room_for_connections_goes_on() {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "ulimit -n 16; exec \"$0\" measure server --bind=127.0.0.1 --port=0",
        ])
        .arg(env!("CARGO_BIN_EXE_trunkline"))
        .env("TRUNKLINE_MEASURE_KEY", KEY)
        .stdin(Stdio::null());
    let mut server = MeasureServer::of(&mut command);
    let many: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap())
        .collect();
    // One of them found no room for itself, and so none was left for the next.
    server.wait_for("Too many open files");
    drop(many);
    // Those that had room are waited for.
    loop {
        assert_eq!(server.child.try_wait().unwrap(), None, "it ended");
        let output = run(server.port, &[], "a brass owl waits");
        if String::from_utf8_lossy(&output.stderr).contains("the key is not this server's") {
            return;
        }
    }
}

/// A host that opens silent connections does not lock others out of the server.
#[test]
fn strangers_from_one_address_shut_nobody_else_out() {
    let server = MeasureServer::start_with(&[]);
    let _mute: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap())
        .collect();
    let output = run(server.port, &["--bind=127.0.0.2"], "a brass owl waits");
    assert_refused(&output, "the key is not this server's");
}

/// Whatever the test is at, the reason is the server's.
#[test]
fn server_time_limit_is_reported_in_every_phase() {
    for (time, direction) in [("1s", "up"), ("6s", "up"), ("6s", "down")] {
        let server = MeasureServer::start_with(&["--max-test", time]);
        let direction = format!("--direction={direction}");
        let more = [&direction, "--duration=20s", "--max-rate=1Mbit"];
        let output = run(server.port, &more, KEY);
        let text = String::from_utf8_lossy(&output.stdout).replace("\n  ", " ");
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.contains("the test reached the server's time limit"),
            "{text}"
        );
    }
}

/// A user who types the key, or waits for it at a pipe, can interrupt the program.
#[test]
fn key_prompt_can_be_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("key");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let key = format!("--key-file={}", pipe.display());
    for arguments in [
        &["run", "127.0.0.1", &key][..],
        &["server", "--port=0", &key],
        &["service", "127.0.0.1", "--cir=1Mbit", &key],
    ] {
        let mut child = measure(arguments, "").spawn().unwrap();
        // This waits until the other end is opened to be read.
        let writing = OpenOptions::new().write(true).open(&pipe).unwrap();
        let id = child.id().to_string();
        // Not SIGINT: what a shell starts in the background ignores that one.
        let sent = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(sent.success());
        let mut ended = None;
        for _ in 0..600 {
            ended = child.try_wait().unwrap();
            if ended.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = child.kill();
        let signal = ended.and_then(|status| status.signal());
        assert_eq!(signal, Some(15), "{arguments:?}: {ended:?}");
        drop(writing);
    }
}

#[test]
fn invalid_options_are_reported_before_sending() {
    let cases = [
        (
            "--max-transfer-time-ratio=nan",
            "a threshold must be a number",
        ),
        ("--min-efficiency=inf", "a number of percent"),
        ("--max-buffer-delay=-1", "a number of percent"),
        (
            "--html=/nonexistent/page.html",
            "cannot write /nonexistent/page.html",
        ),
        ("--html=/tmp", "cannot write /tmp"),
        ("--key-file=/dev/zero", "use a few words"),
    ];
    // Nothing listens there: whoever gets as far is told so.
    let port = {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        taken.local_addr().unwrap().port()
    };
    for (argument, words) in cases {
        assert_refused(&run(port, &[argument], KEY), words);
    }
}

/// Forwards packets to a port, TCP and UDP, as a NAT does; from some moment on UDP leaves from
/// another port.
struct TestNat {
    port: u16,
    is_over: Arc<AtomicBool>,
}

impl TestNat {
    /// `changes` says of a datagram on its way to the server whether the port changes before it.
    fn before(server: u16, changes: impl Fn(&[u8]) -> bool + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let inside = UdpSocket::bind(("127.0.0.1", port)).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                    return;
                };
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server, client),
                ] {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        let over = is_over.clone();
        std::thread::spawn(move || {
            let outside = || {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.connect(("127.0.0.1", server)).unwrap();
                socket
            };
            let (mut way, mut has_changed) = (outside(), false);
            let mut client: Option<SocketAddr> = None;
            let mut bytes = [0; 65_536];
            let wait = Some(Duration::from_millis(1));
            inside.set_read_timeout(wait).unwrap();
            while !over.load(Ordering::Relaxed) {
                if let Ok((count, from)) = inside.recv_from(&mut bytes) {
                    client = Some(from);
                    if !has_changed && changes(&bytes[..count]) {
                        (way, has_changed) = (outside(), true);
                    }
                    let _ = way.send(&bytes[..count]);
                }
                way.set_nonblocking(true).unwrap();
                while let (Ok(count), Some(client)) = (way.recv(&mut bytes), client) {
                    let _ = inside.send_to(&bytes[..count], client);
                }
            }
        });
        Self { port, is_over }
    }
}

impl Drop for TestNat {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The server sends only to a verified address, and accepts nothing from elsewhere: a client whose
/// NAT gives it another port verifies itself again.
#[test]
fn nat_port_change_costs_one_stream_only() {
    let server = MeasureServer::start_with(&[]);
    let kind = DatagramKind::ALL
        .iter()
        .position(|kind| *kind == DatagramKind::Data);
    let data = kind.unwrap() as u8;
    // Before the first packet of a stream: all of it comes from an address that nobody knows.
    let nat = TestNat::before(server.port, move |bytes| {
        bytes[2] == data && bytes.len() > 100
    });
    let more = [
        "--direction=up",
        "--duration=2s",
        "--max-rate=1Mbit",
        "--walk=0",
        "--connections=1",
    ];
    let output = run(nat.port, &more, KEY);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("MEASURED"), "{text}");
}
