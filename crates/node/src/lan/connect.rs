//! Opens a connection to a server, with the client's own address where it must be kept.
//!
//! The socket is bound to the client's address and port by IP_TRANSPARENT. Where the port is in use
//! (a second connection of the same client through two nodes, or one in TIME_WAIT) another port is
//! used: the server still sees the client's address. The server's answers return to this node
//! because it is their gateway, and to this socket by the rule `socket transparent`.
//!
//! The engine decides which servers a peer may reach. The shell checks once more, at the moment of
//! the connection, that the server is not this machine: its addresses may have changed since the
//! last report to the engine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Once;
use std::time::Duration;

use engine::{ConnectFailure, IpPrefix};
use socket2::SockRef;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::descriptors::DescriptorPool;

/// The time after which a server that has not answered a client's address is called from this
/// node's own: the second SYN, which the kernel sends after a second, could have been answered by
/// then.
const PROBE_AFTER: Duration = Duration::from_millis(1500);
/// A server that has answered this node is given so long, and two round trips, to answer a client's address.
const CONFIRM_AT_LEAST: Duration = Duration::from_secs(1);
/// A server that has not answered three SYNs (0, 1 and 3 s) by now looks dead to its client too.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct OpenedConnection {
    pub(crate) stream: TcpStream,
    /// The server has reset the connection since it was established.
    pub(crate) failed: Option<ReportedFailure>,
}

/// The failure of a connection whose error the operating system has already reported: it reports it
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedFailure {
    /// True if a FIN arrived before.
    pub(crate) finished: bool,
}

impl ReportedFailure {
    /// Linux reports EPIPE where a FIN came before the RST, and otherwise ECONNRESET (`tcp_reset`).
    pub(crate) fn by(error: &io::Error) -> Self {
        let finished = error.raw_os_error() == Some(libc::EPIPE);
        Self { finished }
    }
}

/// Connects to `server`, bound to `client` if given. A connection to this machine itself requires
/// that `serve` names its address, or only loopback addresses.
///
/// # Errors
/// Why it failed, in the words that the client's node is told.
pub(crate) async fn open(
    client: Option<SocketAddr>,
    server: SocketAddr,
    serve: &[IpPrefix],
    descriptors: &DescriptorPool,
) -> Result<OpenedConnection, ConnectFailure> {
    if is_this_machine(server) && !is_named(server, serve) {
        tracing::debug!(%server, "refused to connect to this machine");
        return Err(ConnectFailure::NotPermitted);
    }
    let attempt = async {
        match connect(client, server).await {
            // The port, or the whole four-tuple, is taken: any other port will do.
            Err(error) if client.is_some() && is_taken(&error) => {
                let any_port = client.map(|client| SocketAddr::new(client.ip(), 0));
                connect(any_port, server).await
            }
            connected => connected,
        }
    };
    let attempt = tokio::time::timeout(CONNECT_TIMEOUT, attempt);
    let attempt = async {
        let timed_out = |_| Err(io::ErrorKind::TimedOut.into());
        attempt.await.unwrap_or_else(timed_out)
    };
    let connected = tokio::select! {
        connected = attempt => connected,
        failure = probe_for(client, server, descriptors) => {
            tracing::debug!(%server, ?client, ?failure, "the server did not answer the client's address");
            return Err(failure);
        }
    };
    connected.map_err(|error| {
        tracing::debug!(%server, ?client, %error, "could not connect to the server");
        failure(&error)
    })
}

/// As [`probe`], where a client's address is used; does not return otherwise.
async fn probe_for(
    client: Option<SocketAddr>,
    server: SocketAddr,
    descriptors: &DescriptorPool,
) -> ConnectFailure {
    match client {
        Some(client) => probe(client.ip(), server, descriptors).await,
        None => std::future::pending().await,
    }
}

/// Calls a server from this node's own address when two SYNs from a client's address have found no
/// answer. Returns the conclusion for those; does not return when there is none. The kernel reports
/// an unreachable host only to the packet's sender, which is not this node when it uses a client's
/// address.
///
/// Without a descriptor for it the client's own call decides. It has one at a time.
async fn probe(client: IpAddr, server: SocketAddr, descriptors: &DescriptorPool) -> ConnectFailure {
    tokio::time::sleep(PROBE_AFTER).await;
    let begun = Instant::now();
    if let Some(_taken) = descriptors.for_probe_now()
        && let Ok(probed) = tokio::time::timeout(CONNECT_TIMEOUT, connect(None, server)).await
    {
        let answered = close(probed);
        if answered == Err(ConnectFailure::Unreachable) {
            return ConnectFailure::Unreachable;
        }
        if is_answer(answered) && !answers_client(client, server, begun.elapsed()).await {
            return ConnectFailure::AnswersElsewhere;
        }
    }
    std::future::pending().await
}

/// Returns true if a server that answers this node's own address within `round_trip` also answers a
/// client's address. The server may have been started, or allowed by a filter, since the last
/// attempt from there.
async fn answers_client(client: IpAddr, server: SocketAddr, round_trip: Duration) -> bool {
    let patience = CONFIRM_AT_LEAST + 2 * round_trip;
    let any_port = SocketAddr::new(client, 0);
    let called = tokio::time::timeout(patience, connect(Some(any_port), server)).await;
    // What this node could not even send has found no answer elsewhere.
    called.is_ok_and(|called| close(called) != Err(ConnectFailure::TimedOut))
}

/// Closes a test connection by a reset, so that its end does not look like the end of a request.
fn close(called: io::Result<OpenedConnection>) -> Result<(), ConnectFailure> {
    called
        .map(|opened| reset(opened.stream))
        .map_err(|error| failure(&error))
}

fn is_answer(called: Result<(), ConnectFailure>) -> bool {
    matches!(called, Ok(()) | Err(ConnectFailure::Refused))
}

async fn connect(client: Option<SocketAddr>, server: SocketAddr) -> io::Result<OpenedConnection> {
    let domain = Domain::for_address(server);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Before the first byte can come: a server may begin with an urgent one.
    socket.set_out_of_band_inline(true)?;
    if let Some(client) = client {
        let transparent = match domain {
            Domain::IPV4 => socket.set_ip_transparent_v4(true),
            _ => socket.set_ip_transparent_v6(true),
        };
        if let Err(error) = transparent {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(
                    %error,
                    "a peer wants connections from its clients' addresses, but this node cannot use these \
                     addresses without transparent interception; set mode = \"transparent\" in [intercept]. \
                     Until then the node refuses these connections"
                );
            });
            return Err(error);
        }
        socket.set_reuse_address(true)?;
        socket.bind(&client.into())?;
    }
    match socket.connect(&server.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        None => Ok(OpenedConnection {
            stream,
            failed: None,
        }),
        // Before the connection is established the kernel says ECONNREFUSED. What the server sent before
        // this reset can still be read.
        Some(error) if is_reset(&error) => Ok(OpenedConnection {
            failed: Some(ReportedFailure::by(&error)),
            stream,
        }),
        Some(error) => Err(error),
    }
}

/// Closes with a RST instead of a FIN.
pub(crate) fn reset(stream: TcpStream) {
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}

fn is_reset(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse
            | io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::PermissionDenied
    )
}

fn failure(error: &io::Error) -> ConnectFailure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectFailure::Refused,
        io::ErrorKind::TimedOut => ConnectFailure::TimedOut,
        io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown => ConnectFailure::Unreachable,
        io::ErrorKind::PermissionDenied => ConnectFailure::NotPermitted,
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable | io::ErrorKind::OutOfMemory => {
            ConnectFailure::Exhausted
        }
        _ => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS) => ConnectFailure::Exhausted,
            Some(_) | None => ConnectFailure::Other,
        },
    }
}

/// Returns true if one of the prefixes is exactly the server's address, or a prefix of loopback
/// addresses.
fn is_named(server: SocketAddr, serve: &[IpPrefix]) -> bool {
    let address = server.ip().to_canonical();
    let length = if address.is_ipv4() { 32 } else { 128 };
    let around = |prefix: &&IpPrefix| prefix.contains(address);
    let mut around = serve.iter().filter(around);
    around.any(|prefix| prefix.length() == length || prefix.address().is_loopback())
}

/// Checks the routing table: towards one's own address the kernel chooses that address as source.
fn is_this_machine(server: SocketAddr) -> bool {
    let server = SocketAddr::new(server.ip().to_canonical(), server.port());
    // The kernel takes a connection to no address for one to itself.
    if server.ip().is_loopback() || server.ip().is_unspecified() {
        return true;
    }
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends nothing.
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((server.ip(), server.port().max(1)))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == server.ip())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::descriptors::DescriptorBudget;

    fn descriptors(probes: usize) -> DescriptorPool {
        DescriptorPool::new(DescriptorBudget {
            pool: 16,
            flows: 4,
            disk_files: 4,
            handshakes: 4,
            probes,
        })
    }

    fn prefixes(texts: &[&str]) -> Vec<IpPrefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn this_machine_is_out_of_bounds_unless_listed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let refused = open(None, server, &[], &descriptors(1)).await;
        assert_eq!(refused.unwrap_err(), ConnectFailure::NotPermitted);
        let everything = open(None, server, &prefixes(&["0.0.0.0/0"]), &descriptors(1)).await;
        assert_eq!(everything.unwrap_err(), ConnectFailure::NotPermitted);
        assert!(
            open(None, server, &prefixes(&["127.0.0.1"]), &descriptors(1))
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn a_closed_port_is_refused() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        drop(listener);
        let refused = open(None, server, &prefixes(&["127.0.0.0/8"]), &descriptors(1)).await;
        assert_eq!(refused.unwrap_err(), ConnectFailure::Refused);
    }

    #[tokio::test]
    async fn server_that_resets_at_once_is_still_read() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any_port: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any_port.into()).unwrap();
        socket.listen(1).unwrap();
        let server = socket.local_addr().unwrap().as_socket().unwrap();
        // In one thread: all of this happens before `open` looks at its connection again.
        let serve = async {
            let (accepted, _) = socket.accept().unwrap();
            accepted.send(b"an answer").unwrap();
            accepted.set_linger(Some(Duration::ZERO)).unwrap();
        };
        let local = prefixes(&["127.0.0.1"]);
        let descriptors = descriptors(1);
        let (opened, ()) = tokio::join!(open(None, server, &local, &descriptors), serve);
        let opened = opened.unwrap();
        assert_eq!(opened.failed, Some(ReportedFailure { finished: false }));
        let mut buffer = [0; 16];
        assert_eq!(opened.stream.try_read(&mut buffer).unwrap(), 9);
    }

    /// Connections of this machine to `server` that wait for its first answer.
    fn unanswered(server: SocketAddr) -> usize {
        let port = format!(":{:04X}", server.port());
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let is_unanswered = |line: &&str| {
            let mut words = line.split_whitespace().skip(2);
            let remote = words.next().unwrap_or_default();
            remote.ends_with(&port) && words.next() == Some("02")
        };
        table.lines().filter(is_unanswered).count()
    }

    #[tokio::test(start_paused = true)]
    async fn probes_stay_within_their_descriptor_budget() {
        // Its queue is full, so that it drops SYNs.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any_port: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any_port.into()).unwrap();
        socket.listen(0).unwrap();
        let server = socket.local_addr().unwrap().as_socket().unwrap();
        let _queued = std::net::TcpStream::connect(server).unwrap();

        let descriptors = descriptors(3);
        let client: IpAddr = "198.18.1.2".parse().unwrap();
        let mut probes: Vec<Pin<Box<dyn Future<Output = ConnectFailure>>>> = Vec::new();
        for _ in 0..8 {
            probes.push(Box::pin(probe(client, server, &descriptors)));
        }
        let mut context = Context::from_waker(Waker::noop());
        for probe in &mut probes {
            assert!(probe.as_mut().poll(&mut context).is_pending());
        }
        tokio::time::advance(PROBE_AFTER + Duration::from_millis(1)).await;
        for probe in &mut probes {
            assert!(probe.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(unanswered(server), 3);

        // The places are free again for other servers, although the calls told nothing.
        tokio::time::advance(CONNECT_TIMEOUT + Duration::from_millis(1)).await;
        for probe in &mut probes {
            assert!(probe.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(unanswered(server), 0);
        let places = (0..4).map(|_| descriptors.for_probe_now());
        assert_eq!(places.collect::<Vec<_>>().iter().flatten().count(), 3);
    }

    #[test]
    fn an_address_of_ours_is_recognised() {
        assert!(is_this_machine("127.0.0.1:80".parse().unwrap()));
        assert!(is_this_machine("0.0.0.0:80".parse().unwrap()));
        assert!(is_this_machine("[::ffff:127.0.0.1]:80".parse().unwrap()));
        assert!(!is_this_machine("198.18.2.2:80".parse().unwrap()));
    }
}
