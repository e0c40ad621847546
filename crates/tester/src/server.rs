//! `trunkline measure server`: the far end of a turn-up test.
//!
//! ```text
//!  accept ─► greet ─► Authenticate ─► one session at a time ─► orders: streams, runs
//!                  └► Join ─► the session's run
//!  UDP ─► Responder (tags, cookies) ─► answers; what arrives of a stream
//! ```
//! A stranger costs a thread for five seconds at most, of which there are [`UNFINISHED_MAX`], and no more than
//! [`UNFINISHED_EACH`] for strangers from one place: one host shuts nobody else out. What it sends
//! is limited in rate and time, by each order and by the session, and ends [`SILENCE_MAX`] after the
//! client's last word.

mod session;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender as Channel, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use measure::procedure::{ArrivalLog, ResponderAction, StreamPlan, UdpResponder};
use measure::wire::{
    ControlMessage, DATAGRAM_HEADER, JoinMessage, RunOrder, ServerLimits, ServerRefusal,
    SessionKey, SessionNonce, SessionRole, SharedKey, StreamOrder, TestDirection, VERSION,
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use vocab::{Bitrate, ByteCount};

use super::conversation::{
    ALIVE_EVERY, LastHeard, MessageReader, MessageWriter, SILENCE_MAX, random,
};
use super::local_limits;
use super::streams::StreamSender;
use super::transfers::{TransferResult, scaled};
use host::kernel;
use host::stamped_sockets::{StampedDirection, stamp};
use host::tester_sockets::{self as system, IncomingDatagrams, SocketDropCounter, TesterClock};

/// Time limit for a client to authenticate.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// Greatest number of unauthenticated connections: in total, and from one IPv4 address or one IPv6
/// network. A client opens one after the other, and on a lossy path several are in progress.
const UNFINISHED_MAX: usize = 16;
const UNFINISHED_EACH: usize = 8;
/// Time limit for the connections of a run to arrive.
const JOINING_MAX: Duration = Duration::from_secs(15);
/// Interval of the checks for the server's end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time without arrivals after which a stream that was sent is over.
const QUIET: Duration = Duration::from_millis(150);
/// Time limit for the rest of a stream: the deepest queue.
const REST_MAX: Duration = Duration::from_secs(5);
/// Arrivals, and samples, in one message: 27 and 200 bytes each at most.
const ARRIVALS_EACH: usize = 2_000;
const SAMPLES_EACH: usize = 250;
/// A window clamp that bounds nothing.
const NO_CLAMP: u64 = i32::MAX as u64;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on; `None` is all of them.
    pub bind: Option<IpAddr>,
    /// The port, TCP and UDP; zero lets the system choose.
    pub port: u16,
    /// The key's words, which clients must know, too.
    pub words: String,
    /// Limits for its clients.
    pub limits: ServerLimits,
}

/// Event of a running server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client has shown that it holds the key.
    Began(SocketAddr),
    /// Its test is over, for this reason.
    Ended(SocketAddr, String),
    /// A client was refused, for this reason.
    Refused(SocketAddr, String),
}

/// A server that listens.
#[derive(Debug)]
pub struct TestServer {
    listener: TcpListener,
    udp: UdpSocket,
    key: SharedKey,
    limits: ServerLimits,
}

impl TestServer {
    /// Opens both sockets.
    ///
    /// # Errors
    /// When the port is taken or the address is not this host's.
    pub fn bind(options: &ServerOptions) -> Result<Self> {
        let any = [
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        ];
        let addresses = match &options.bind {
            Some(address) => std::slice::from_ref(address),
            // Both families by one socket, or IPv4 alone where there is no IPv6.
            None => &any[..],
        };
        let mut failed = None;
        for address in addresses {
            match open(SocketAddr::new(*address, options.port)) {
                Ok((listener, udp)) => {
                    return Ok(Self {
                        listener,
                        udp,
                        key: SharedKey::from_words(&options.words),
                        limits: options.limits,
                    });
                }
                Err(error) => failed = Some(error),
            }
        }
        let error = failed.context("there is an address to listen at")?;
        Err(error.context(format!("listening at port {} (TCP and UDP)", options.port)))
    }

    /// The port, TCP and UDP.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn port(&self) -> Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Serves until `is_over` returns true.
    ///
    /// # Errors
    /// Fails when a socket fails permanently.
    pub fn serve(
        &self,
        is_over: &(dyn Fn() -> bool + Sync),
        tell: &(dyn Fn(ServerEvent) + Sync),
    ) -> Result<()> {
        let shared = ServerState {
            server: self,
            clock: TesterClock::new(),
            session: Mutex::new(None),
            strangers: Mutex::new(Vec::new()),
            stop: AtomicBool::new(false),
            tell,
        };
        SockRef::from(&self.listener).set_read_timeout(Some(LOOK_EVERY))?;
        self.udp.set_read_timeout(Some(LOOK_EVERY))?;
        std::thread::scope(|scope| {
            scope.spawn(|| shared.answer());
            let served = loop {
                if is_over() {
                    break Ok(());
                }
                match self.listener.accept() {
                    Ok((stream, from)) => {
                        let shared = &shared;
                        if let Some(stranger) = shared.let_in(from.ip()) {
                            scope.spawn(move || shared.receive_stranger(stream, from, stranger));
                        }
                    }
                    Err(error) if is_passing(&error) => {}
                    // Connections that end leave room again; the test under way does not end for it.
                    Err(error) if is_full(&error) => std::thread::sleep(LOOK_EVERY),
                    Err(error) => break Err(error).context("accepting a connection"),
                }
            };
            shared.stop.store(true, Ordering::Relaxed);
            served
        })
    }
}

/// A connection that came to nothing is no fault of the listener's.
fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
    )
}

/// The process, or the system, has no room for one connection more (accept(2)).
fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

fn open(address: SocketAddr) -> Result<(TcpListener, UdpSocket)> {
    let socket = |kind, protocol| -> Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        Ok(socket)
    };
    let listener = socket(Type::STREAM, Protocol::TCP)?;
    listener.set_reuse_address(true)?;
    listener.bind(&address.into())?;
    listener.listen(128)?;
    let listener = TcpListener::from(listener);
    let port = listener.local_addr()?.port();
    let udp = socket(Type::DGRAM, Protocol::UDP)?;
    udp.bind(&SocketAddr::new(address.ip(), port).into())?;
    let udp = UdpSocket::from(udp);
    system::make_room(&udp)?;
    system::never_cut_up(&udp)?;
    stamp(&udp, StampedDirection::Received)?;
    Ok((listener, udp))
}

/// State that all threads of a server share.
struct ServerState<'a> {
    server: &'a TestServer,
    clock: TesterClock,
    session: Mutex<Option<Arc<ServerSession>>>,
    /// Addresses of unauthenticated clients.
    strangers: Mutex<Vec<IpAddr>>,
    stop: AtomicBool,
    tell: &'a (dyn Fn(ServerEvent) + Sync),
}

/// The one test that runs.
struct ServerSession {
    id: u64,
    from: SocketAddr,
    dscp: u8,
    key: SessionKey,
    responder: Mutex<UdpResponder>,
    writer: MessageWriter,
    began: Instant,
    is_over: AtomicBool,
    /// Set while an order is carried out.
    is_busy: AtomicBool,
    /// Set while the arrivals of a stream are reported.
    is_reporting: AtomicBool,
    /// The order that was given up.
    given_up: Mutex<Option<u32>>,
    listening: Mutex<Option<StreamListener>>,
    /// Set while a stream is sent.
    is_streaming: AtomicBool,
    heard: LastHeard,
    joining: Mutex<Option<(u32, Channel<RunConnection>)>>,
}

/// A connection of a run, with its number.
type RunConnection = (u16, TcpStream);

struct StreamListener {
    order: u32,
    log: ArrivalLog,
    no_room: SocketDropCounter,
    last: Instant,
    /// Time at which the client was last told that its packets arrive.
    reported_at: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl ServerState<'_> {
    fn current(&self) -> Option<Arc<ServerSession>> {
        lock(&self.session).clone()
    }

    /// Answers over UDP.
    fn answer(&self) {
        let udp = &self.server.udp;
        let mut incoming = IncomingDatagrams::new();
        let mut bytes = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let received = incoming.receive(udp, self.clock, |arrived, from, datagram| {
                // Asked for each: a test may have begun while this was waited for.
                let Some(session) = self.current() else {
                    return;
                };
                let now = self.clock.now();
                let answer = lock(&session.responder).handle(now, arrived, from, datagram);
                let answers = match answer {
                    ResponderAction::Silence => return,
                    ResponderAction::Data(data) => {
                        session.heard.note_activity();
                        if let Some(listening) = &mut *lock(&session.listening)
                            && listening.order == data.order
                        {
                            listening.log.arrived(arrived, data.number, data.stamp);
                            listening.last = Instant::now();
                            if listening.reported_at.elapsed() >= ALIVE_EVERY {
                                listening.reported_at = Instant::now();
                                let head = session.here(data.order);
                                let role = SessionRole::Server;
                                head.emit(&session.key, role, DATAGRAM_HEADER, &mut bytes);
                                let _ = udp.send_to(&bytes, from);
                            }
                        }
                        return;
                    }
                    ResponderAction::Send(answers) => answers,
                    ResponderAction::Confirmed(answer) => vec![answer],
                };
                for answer in answers {
                    let head = answer.datagram;
                    head.emit(&session.key, SessionRole::Server, answer.length, &mut bytes);
                    // A size that this host cannot send is one that does not pass.
                    let _ = udp.send_to(&bytes, from);
                }
            });
            if received.is_err() {
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }

    /// Place for one more unauthenticated client from an address; [`None`] where there is none.
    fn let_in(&self, from: IpAddr) -> Option<UnauthenticatedClient<'_>> {
        let place = place_of(from);
        let mut strangers = lock(&self.strangers);
        let same = strangers.iter().filter(|other| **other == place).count();
        if strangers.len() >= UNFINISHED_MAX || same >= UNFINISHED_EACH {
            return None;
        }
        strangers.push(place);
        Some(UnauthenticatedClient {
            place,
            all: &self.strangers,
        })
    }

    fn receive_stranger(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        stranger: UnauthenticatedClient<'_>,
    ) {
        if let Err(error) = self.greet(stream, from, stranger) {
            (self.tell)(ServerEvent::Refused(from, format!("{error:#}")));
        }
    }

    fn greet(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        stranger: UnauthenticatedClient<'_>,
    ) -> Result<()> {
        let nonce: SessionNonce = random()?;
        let writer = MessageWriter::new(&stream)?;
        writer.send(&ControlMessage::Hello {
            oldest: VERSION,
            newest: VERSION,
            nonce,
        })?;
        let mut reader = MessageReader::new(stream);
        match reader.only(GREETING_MAX)? {
            ControlMessage::Join(joining) => self.join(reader.into_stream(), joining, &nonce),
            ControlMessage::Authenticate {
                version,
                dscp,
                nonce: client,
                proof,
            } => {
                let refuse = |reason, retry, text: &str| -> Result<()> {
                    let text = text.to_owned();
                    let _ = writer.send(&ControlMessage::Refused {
                        reason,
                        retry,
                        text: text.clone(),
                    });
                    bail!("{text}")
                };
                if version != VERSION {
                    let text = format!("this server speaks version {VERSION}, not {version}");
                    return refuse(ServerRefusal::Version, Duration::ZERO, &text);
                }
                let key = &self.server.key;
                if !key.verify(&proof, SessionRole::Client, version, &client, &nonce) {
                    let text = "the key is not this server's";
                    return refuse(ServerRefusal::Key, Duration::ZERO, text);
                }
                let id = u64::from_be_bytes(random()?);
                let session_key = key.session(&client, &nonce);
                let secret = u64::from_be_bytes(random()?);
                let session = Arc::new(ServerSession {
                    id,
                    from,
                    dscp,
                    responder: Mutex::new(UdpResponder::new(id, session_key.clone(), secret)),
                    key: session_key,
                    writer,
                    began: Instant::now(),
                    is_over: AtomicBool::new(false),
                    is_busy: AtomicBool::new(false),
                    is_reporting: AtomicBool::new(false),
                    given_up: Mutex::new(None),
                    listening: Mutex::new(None),
                    is_streaming: AtomicBool::new(false),
                    heard: LastHeard::new(),
                    joining: Mutex::new(None),
                });
                if let Some(left) = self.enter(&session) {
                    let retry = left.as_secs();
                    let text = format!("another test is running, for at most {retry} more seconds");
                    let _ = session.writer.send(&ControlMessage::Refused {
                        reason: ServerRefusal::Busy,
                        retry: left,
                        text: text.clone(),
                    });
                    bail!("{text}");
                }
                drop(stranger);
                let proof = key.prove(SessionRole::Server, version, &client, &nonce);
                self.serve_session(&session, reader, proof);
                Ok(())
            }
            _ => bail!("the first message was neither a proof of the key nor part of a session"),
        }
    }

    /// Takes the one place, or says for how long it is taken at most.
    fn enter(&self, session: &Arc<ServerSession>) -> Option<Duration> {
        let mut place = lock(&self.session);
        if let Some(other) = &*place {
            let left = self.server.limits.session;
            return Some(left.saturating_sub(other.began.elapsed()));
        }
        *place = Some(session.clone());
        None
    }

    fn join(&self, stream: TcpStream, joining: JoinMessage, nonce: &SessionNonce) -> Result<()> {
        let session = self
            .current()
            .filter(|session| session.id == joining.session)
            .context("the connection belongs to a test that is not running")?;
        let JoinMessage {
            order, connection, ..
        } = joining;
        ensure!(
            session
                .key
                .verify_join(&joining.proof, nonce, order, connection),
            "the connection does not have the session's key"
        );
        // Acknowledgements, too, where this end receives.
        system::mark(&stream, session.dscp)?;
        let place = lock(&session.joining);
        let (_, channel) = place
            .as_ref()
            .filter(|(expected, _)| *expected == order)
            .context("the connection belongs to a test run that was not requested")?;
        channel
            .send((connection, stream))
            .context("the connection belongs to a test run that has ended")
    }

    fn serve_session(
        &self,
        session: &Arc<ServerSession>,
        mut reader: MessageReader,
        proof: [u8; 32],
    ) {
        // Free again whatever becomes of this thread.
        let place = TestSlot(&self.session);
        (self.tell)(ServerEvent::Began(session.from));
        let ended = std::thread::scope(|scope| {
            let ended = self.converse(session, &mut reader, proof, scope);
            session.is_over.store(true, Ordering::Relaxed);
            ended
        });
        drop(place);
        let reason = match ended {
            Ok(()) => "done".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        (self.tell)(ServerEvent::Ended(session.from, reason));
    }

    fn converse<'scope>(
        &'scope self,
        session: &Arc<ServerSession>,
        reader: &mut MessageReader,
        proof: [u8; 32],
        scope: &'scope std::thread::Scope<'scope, '_>,
    ) -> Result<()> {
        // Answers to probes as well as streams; the test before this one had another mark.
        system::mark(&self.server.udp, session.dscp)?;
        session.writer.mark(session.dscp)?;
        session.writer.send(&ControlMessage::Welcome {
            proof,
            session: session.id,
            limits: self.server.limits,
            remarks: local_limits::remarks().join("; "),
        })?;
        let mut said = Instant::now();
        loop {
            let message = reader.next(LOOK_EVERY)?;
            if said.elapsed() >= ALIVE_EVERY && !session.is_measuring() {
                said = Instant::now();
                session.writer.send(&ControlMessage::Alive)?;
            }
            ensure!(
                reader.silence().min(session.heard.silence()) < SILENCE_MAX,
                "no message from the client arrived for {} s",
                SILENCE_MAX.as_secs()
            );
            ensure!(!self.stop.load(Ordering::Relaxed), "the server was stopped");
            if session.began.elapsed() > self.server.limits.session {
                let text = "the test reached the server's time limit".to_owned();
                let _ = session.writer.send(&ControlMessage::Refused {
                    reason: ServerRefusal::TimeUp,
                    retry: Duration::ZERO,
                    text: text.clone(),
                });
                bail!("{text}");
            }
            match message {
                None | Some(ControlMessage::Alive) => {}
                Some(ControlMessage::Bye) => return Ok(()),
                Some(ControlMessage::Stop { order }) => *lock(&session.given_up) = Some(order),
                // A thread each, and never more than one of either: a client may say it again and again.
                Some(ControlMessage::StreamSent { order, datagrams }) => {
                    if !session.is_reporting.swap(true, Ordering::AcqRel) {
                        let session = session.clone();
                        let udp = &self.server.udp;
                        scope.spawn(move || session.report_arrivals(order, datagrams, udp));
                    }
                }
                Some(ControlMessage::Stream(order)) => {
                    if session.claim(order.order) {
                        let session = session.clone();
                        scope.spawn(move || {
                            session.carry_out(order.order, || self.stream(&session, order));
                        });
                    }
                }
                Some(ControlMessage::Run(order)) => {
                    if session.claim(order.order) {
                        let session = session.clone();
                        scope.spawn(move || {
                            session.carry_out(order.order, || self.run(&session, &order));
                        });
                    }
                }
                Some(_) => bail!("the client sent what only a server sends"),
            }
        }
    }

    fn stream(&self, session: &ServerSession, order: StreamOrder) -> Result<()> {
        let limits = &self.server.limits;
        ensure!(
            order.rate <= limits.rate && order.duration <= limits.order,
            "a stream of {} for {} s exceeds the server's limits ({} for {} s)",
            order.rate,
            order.duration.as_secs(),
            limits.rate,
            limits.order.as_secs()
        );
        // A smaller one would go out all the same, and at a multiple of the rate.
        ensure!(
            usize::from(order.payload_bytes) >= DATAGRAM_HEADER,
            "a stream of {} bytes above UDP: its packets have {DATAGRAM_HEADER} or more",
            order.payload_bytes
        );
        let to = lock(&session.responder)
            .client()
            .context("no UDP packet of the client has arrived yet")?;
        if order.direction == TestDirection::Up {
            *lock(&session.listening) = Some(StreamListener {
                order: order.order,
                log: ArrivalLog::new(self.clock.now()),
                no_room: SocketDropCounter::begin(&self.server.udp),
                last: Instant::now(),
                reported_at: Instant::now(),
            });
            session
                .writer
                .send(&ControlMessage::Ready { order: order.order })?;
            return Ok(());
        }
        session
            .writer
            .send(&ControlMessage::Ready { order: order.order })?;
        let headers = super::udp_headers(to.ip());
        let plan = StreamPlan {
            rate: order.rate,
            duration: order.duration,
            ip_bytes: order.payload_bytes.saturating_add(headers),
        };
        let sender = StreamSender {
            socket: &self.server.udp,
            to: Some(to),
            role: SessionRole::Server,
            key: &session.key,
            session: session.id,
            order: order.order,
        };
        session.is_streaming.store(true, Ordering::Relaxed);
        let is_over = || session.is_given_up(order.order);
        let sent = sender.send(plan, headers, self.clock, &is_over, &mut |_| {});
        session.is_streaming.store(false, Ordering::Relaxed);
        let datagrams = sent.context("sending the stream")?;
        session.writer.send(&ControlMessage::StreamSent {
            order: order.order,
            datagrams,
        })?;
        Ok(())
    }

    fn run(&self, session: &ServerSession, order: &RunOrder) -> Result<()> {
        let limits = &self.server.limits;
        let [up, down] = order.connections;
        ensure!(
            up.max(down) <= limits.connections && order.duration <= limits.order,
            "{} connections for {} s exceed the server's limits ({} for {} s)",
            up.max(down),
            order.duration.as_secs(),
            limits.connections,
            limits.order.as_secs()
        );
        let (channel, joined) = channel();
        *lock(&session.joining) = Some((order.order, channel));
        // Before they connect: the window scale, and so the grain of all windows, follows from it.
        let window = order.windows[TestDirection::Up as usize];
        if up > 0 && window.bytes() > 0 {
            system::clamp_window(&self.server.listener, scaled(window))?;
        }
        session
            .writer
            .send(&ControlMessage::Ready { order: order.order })?;
        let connections = session.wait_for(order, &joined);
        *lock(&session.joining) = None;
        system::clamp_window(&self.server.listener, NO_CLAMP)?;
        let transfers = session.prepare(order, connections?)?;
        let congestion_control = transfers
            .sending
            .first()
            .map(|(_, stream)| kernel::congestion_control(stream))
            .transpose()?
            .unwrap_or_default();
        session
            .writer
            .send(&ControlMessage::Ready { order: order.order })?;
        let busy = local_limits::ProcessorUsage::begin();
        let is_over = || session.is_given_up(order.order);
        let TransferResult { samples, .. } = transfers.run(&is_over, &mut |_| ());
        for some in samples.chunks(SAMPLES_EACH) {
            session.writer.send(&ControlMessage::Samples {
                order: order.order,
                samples: some.to_vec(),
            })?;
        }
        session.writer.send(&ControlMessage::RunEnded {
            order: order.order,
            congestion_control,
            busy_permille: busy.permille(),
        })?;
        Ok(())
    }
}

/// The one test's place.
struct TestSlot<'a>(&'a Mutex<Option<Arc<ServerSession>>>);

impl Drop for TestSlot<'_> {
    fn drop(&mut self) {
        *lock(self.0) = None;
    }
}

/// Place of a client that has not authenticated, as long as this is held.
struct UnauthenticatedClient<'a> {
    place: IpAddr,
    all: &'a Mutex<Vec<IpAddr>>,
}

impl Drop for UnauthenticatedClient<'_> {
    fn drop(&mut self) {
        let mut all = lock(self.all);
        if let Some(at) = all.iter().position(|other| *other == self.place) {
            all.swap_remove(at);
        }
    }
}

/// Address range that counts as one host: a single IPv4 address, or a /64 network of IPv6.
fn place_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => Ipv6Addr::from(u128::from(six) >> 64 << 64).into(),
        four @ IpAddr::V4(_) => four,
    }
}

/// Default limits of a server.
#[must_use]
pub fn default_limits() -> ServerLimits {
    ServerLimits {
        rate: Bitrate::from_bits_per_second(1_000_000_000),
        order: Duration::from_secs(60),
        session: Duration::from_secs(30 * 60),
        connections: 64,
    }
}

/// The largest window that a receiver on this host can be given, for remarks.
#[must_use]
pub fn window_max() -> Option<ByteCount> {
    local_limits::window_max()
}

#[cfg(test)]
mod tests;
