//! `trunkline measure server`: the far end of a turn-up test.
//!
//! ```text
//!  accept ─► greet ─► Authenticate ─► one session at a time: a thread with its sockets (session.rs)
//!                  └► Join ─► the session's thread
//! ```
//! A stranger costs a thread for five seconds at most, of which there are [`UNFINISHED_MAX`], and no more than
//! [`UNFINISHED_EACH`] for strangers from one place: one host shuts nobody else out.
//! [`measure::session::ServerConversation`] limits what a client may order.

mod session;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use measure::session::{AuthenticatedClient, GreetingOutcome, JoinError, ServerGreeting};
use measure::wire::{JoinMessage, ServerLimits, SessionNonce, SharedKey};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use vocab::{Bitrate, ByteCount};

use self::session::{JoiningConnection, SessionEvent, SessionThread};
use super::conversation::{MessageWriter, only_message, random};
use super::events::{EventSender, events};
use super::local_limits;
use host::stamped_sockets::{StampedDirection, stamp};
use host::tester_sockets as system;

/// Time limit for a client to authenticate.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// Greatest number of unauthenticated connections: in total, and from one IPv4 address or one IPv6
/// network. A client opens one after the other, and on a lossy path several are in progress.
const UNFINISHED_MAX: usize = 16;
const UNFINISHED_EACH: usize = 8;
/// Interval of the checks for the server's end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

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
            session: Mutex::new(None),
            strangers: Mutex::new(Vec::new()),
            stop: AtomicBool::new(false),
            tell,
        };
        SockRef::from(&self.listener).set_read_timeout(Some(LOOK_EVERY))?;
        self.udp.set_read_timeout(Some(LOOK_EVERY))?;
        std::thread::scope(|scope| {
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
    session: Mutex<Option<RunningSession>>,
    /// Addresses of unauthenticated clients.
    strangers: Mutex<Vec<IpAddr>>,
    stop: AtomicBool,
    tell: &'a (dyn Fn(ServerEvent) + Sync),
}

/// The one test that runs.
struct RunningSession {
    id: u64,
    dscp: u8,
    began: Instant,
    events: EventSender<SessionEvent>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl ServerState<'_> {
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
        let greeting = ServerGreeting::new(random()?);
        let writer = MessageWriter::new(&stream)?;
        writer.send(&greeting.hello())?;
        let message = only_message(&stream, GREETING_MAX)?;
        let outcome = match greeting.handle(message, &self.server.key) {
            GreetingOutcome::Session(client) => {
                match self.begin(&stream, from, &writer, client, stranger)? {
                    None => return Ok(()),
                    Some(busy) => busy,
                }
            }
            outcome => outcome,
        };
        match outcome {
            GreetingOutcome::Join(joining) => self.join(stream, from, joining, greeting.nonce()),
            GreetingOutcome::Refused(message, text) => {
                let _ = writer.send(&message);
                bail!("{text}")
            }
            GreetingOutcome::Foreign | GreetingOutcome::Session(_) => {
                bail!("the first message was neither a proof of the key nor part of a session")
            }
        }
    }

    /// Runs a client's session to its end; returns a refusal while another one runs.
    fn begin(
        &self,
        stream: &TcpStream,
        from: SocketAddr,
        writer: &MessageWriter,
        client: AuthenticatedClient,
        stranger: UnauthenticatedClient<'_>,
    ) -> Result<Option<GreetingOutcome>> {
        let (id, secret) = (u64::from_be_bytes(random()?), u64::from_be_bytes(random()?));
        let (sender, receiver) = events()?;
        {
            let mut place = lock(&self.session);
            if let Some(other) = &*place {
                let left = self.server.limits.session;
                let left = left.saturating_sub(other.began.elapsed());
                return Ok(Some(ServerGreeting::busy(left)));
            }
            *place = Some(RunningSession {
                id,
                dscp: client.dscp,
                began: Instant::now(),
                events: sender.clone(),
            });
        }
        drop(stranger);
        // Free again whatever becomes of this thread.
        let place = TestSlot(&self.session);
        (self.tell)(ServerEvent::Began(from));
        let thread = SessionThread {
            state: self,
            control: stream,
            writer,
            sender,
            receiver,
        };
        let ended = thread.serve(id, secret, client);
        drop(place);
        let reason = match ended {
            Ok(()) => "done".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        (self.tell)(ServerEvent::Ended(from, reason));
        Ok(None)
    }

    /// Hands a connection of a run to the session that it names.
    fn join(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        joining: JoinMessage,
        nonce: &SessionNonce,
    ) -> Result<()> {
        let place = lock(&self.session);
        let session = place
            .as_ref()
            .filter(|session| session.id == joining.session)
            .ok_or(JoinError::OtherSession)?;
        // Acknowledgements, too, where this end receives.
        system::mark(&stream, session.dscp)?;
        let is_taken = session.events.send(SessionEvent::Joined(JoiningConnection {
            joining,
            nonce: *nonce,
            stream,
            from,
        }));
        match is_taken {
            true => Ok(()),
            false => Err(JoinError::OtherSession.into()),
        }
    }
}

/// The one test's place.
struct TestSlot<'a>(&'a Mutex<Option<RunningSession>>);

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
