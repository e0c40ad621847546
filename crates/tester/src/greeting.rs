//! Start of a client's session: the server's address, the control connection, the two proofs, the
//! UDP socket. Errors name the next step for the user.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use measure::session::{ClientGreeting, GreetedServer, GreetingError};
use measure::wire::WireError;
use socket2::{Domain, Protocol, Socket, Type};

use super::conversation::{MessageWriter, only_message, random};
use super::local_limits;
use super::options::RunOptions;
use host::stamped_sockets::{StampedDirection, stamp};
use host::tester_sockets as system;

/// Time limit for connecting.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Time limit for the server's greeting and its answer.
pub(super) const GREETING_MAX: Duration = Duration::from_secs(10);

/// Greatest segment size of the control connection, both ways: the default of RFC 9293 §3.7.1
/// (Maximum Segment Size Option), whose packets every path carries. A test finds black holes; its
/// own messages must not be lost in one.
const SEGMENT_IPV4: u32 = 536;
/// ... for IPv6.
const SEGMENT_IPV6: u32 = 1_220;

/// The server's address.
pub(super) fn resolve(options: &RunOptions) -> Result<SocketAddr> {
    let found: Vec<SocketAddr> = (options.host.as_str(), options.port)
        .to_socket_addrs()
        .with_context(|| format!("the resolver does not know the name `{}`", options.host))?
        .collect();
    let fits = |address: &&SocketAddr| match options.bind {
        Some(bind) => bind.is_ipv6() == address.is_ipv6(),
        None => !options.only_v6 || address.is_ipv6(),
    };
    found.iter().find(fits).copied().with_context(|| {
        let family = match options.only_v6 || options.bind.is_some_and(|bind| bind.is_ipv6()) {
            true => "IPv6",
            false => "IPv4",
        };
        format!("{} has no {family} address", options.host)
    })
}

/// The control connection.
pub(super) fn connect(options: &RunOptions, server: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(server),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if let Some(address) = options.bind {
        socket
            .bind(&SocketAddr::new(address, 0).into())
            .with_context(|| format!("{address} is not an address of this host"))?;
    }
    system::mark(&socket, options.dscp)?;
    // Said in the SYN, it bounds what the server sends, too.
    socket.set_tcp_mss(match server.ip().to_canonical() {
        IpAddr::V4(_) => SEGMENT_IPV4,
        IpAddr::V6(_) => SEGMENT_IPV6,
    })?;
    // One that is not to be had is told before anything is sent.
    local_limits::set_congestion_control(&socket, &options.congestion_control)?;
    let connected = socket.connect_timeout(&server.into(), CONNECT_MAX);
    connected.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => anyhow!(
            "{server} refuses the connection: no `trunkline measure server` listens at this port; start it, \
             or give its port with --port"
        ),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => anyhow!(
            "{server} did not answer within {} s: the host is down, or a firewall drops TCP port {}",
            CONNECT_MAX.as_secs(),
            server.port()
        ),
        _ => anyhow!("{server} cannot be reached: {error}"),
    })?;
    Ok(socket.into())
}

/// Shows the server that we hold the key, and has it show the same.
pub(super) fn greet(
    options: &RunOptions,
    server: SocketAddr,
    stream: &TcpStream,
) -> Result<GreetedServer> {
    let writer = MessageWriter::new(stream)?;
    let mut greeting = ClientGreeting::new(&options.words, random()?, options.dscp);
    let foreign = || format!("{server} answers, but it is not a `trunkline measure server`");
    let hello = only_message(stream, GREETING_MAX);
    let hello = hello.map_err(|error| match error.is::<WireError>() {
        true => error.context(foreign()),
        false => error.context(format!(
            "{server} accepts the connection, but sends no greeting: it is not a `trunkline measure \
             server`, or a proxy or firewall on the path answers instead of the server"
        )),
    })?;
    let proof = greeting.answer(&hello).map_err(|error| match error {
        GreetingError::Foreign => anyhow!(foreign()),
        other => other.into(),
    })?;
    writer.send(&proof)?;
    let answer = only_message(stream, GREETING_MAX);
    let answer = answer.with_context(|| {
        format!(
            "{server} sent a greeting, but did not answer the proof of the key; it may be stopping"
        )
    })?;
    Ok(greeting.finish(answer)?)
}

/// The socket of all probes and streams.
pub(super) fn open_udp(
    options: &RunOptions,
    server: SocketAddr,
    local: IpAddr,
) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(options.bind.unwrap_or(local), 0))
        .context("opening a UDP socket")?;
    socket.connect(server)?;
    system::make_room(&socket)?;
    system::never_cut_up(&socket)?;
    system::mark(&socket, options.dscp)?;
    stamp(&socket, StampedDirection::Received)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use socket2::SockRef;

    use super::*;

    /// The default segment size that every path carries (RFC 9293 §3.7.1).
    #[test]
    fn control_segments_fit_every_path() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let options = RunOptions {
            host: server.ip().to_string(),
            port: server.port(),
            words: String::new(),
            bind: None,
            only_v6: false,
            dscp: 0,
            congestion_control: String::new(),
            rest: Duration::ZERO,
        };
        let near = connect(&options, server).unwrap();
        let (far, _) = listener.accept().unwrap();
        for end in [&near, &far] {
            let segment = SockRef::from(end).tcp_mss().unwrap();
            assert!(segment <= SEGMENT_IPV4, "{segment}");
        }
    }
}
