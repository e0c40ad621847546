//! Start of a client's session: the server's address, the control connection, the two proofs, the
//! UDP socket. Errors name the next step for the user.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use measure::wire::{
    ControlMessage, ServerLimits, SessionKey, SessionNonce, SessionRole, SharedKey, VERSION,
    WireError,
};
use socket2::{Domain, Protocol, Socket, Type};

use super::conversation::{MessageReader, MessageWriter, random};
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

/// Result of a greeting.
pub(super) struct GreetingResult {
    pub(super) reader: MessageReader,
    pub(super) writer: MessageWriter,
    pub(super) session: u64,
    pub(super) key: SessionKey,
    pub(super) limits: ServerLimits,
    pub(super) remarks: String,
}

/// Shows the server that we hold the key, and has it show the same.
pub(super) fn greet(
    options: &RunOptions,
    server: SocketAddr,
    stream: TcpStream,
) -> Result<GreetingResult> {
    let writer = MessageWriter::new(&stream)?;
    let mut reader = MessageReader::new(stream);
    let foreign = || format!("{server} answers, but it is not a `trunkline measure server`");
    let greeting = reader.only(GREETING_MAX);
    let ControlMessage::Hello {
        oldest,
        newest,
        nonce: server_nonce,
    } = greeting.map_err(|error| match error.is::<WireError>() {
        true => error.context(foreign()),
        false => error.context(format!(
            "{server} accepts the connection, but sends no greeting: it is not a `trunkline measure \
             server`, or a proxy or firewall on the path answers instead of the server"
        )),
    })?
    else {
        bail!(foreign());
    };
    ensure!(
        (oldest..=newest).contains(&VERSION),
        "the server supports versions {oldest} to {newest} of the protocol, and this program supports \
         version {VERSION}; use the same release at both ends"
    );
    let nonce: SessionNonce = random()?;
    let key = SharedKey::from_words(&options.words);
    writer.send(&ControlMessage::Authenticate {
        version: VERSION,
        dscp: options.dscp,
        nonce,
        proof: key.prove(SessionRole::Client, VERSION, &nonce, &server_nonce),
    })?;
    let answer = reader.only(GREETING_MAX);
    let answer = answer.with_context(|| {
        format!(
            "{server} sent a greeting, but did not answer the proof of the key; it may be stopping"
        )
    })?;
    match answer {
        ControlMessage::Welcome {
            proof,
            session,
            limits,
            remarks,
        } => {
            ensure!(
                key.verify(&proof, SessionRole::Server, VERSION, &nonce, &server_nonce),
                "the server does not have the same key as this program"
            );
            Ok(GreetingResult {
                reader,
                writer,
                session,
                key: key.session(&nonce, &server_nonce),
                limits,
                remarks,
            })
        }
        ControlMessage::Refused { text, retry, .. } if !retry.is_zero() => {
            bail!("the server refuses the test: {text}; try again after this time")
        }
        ControlMessage::Refused { text, .. } => bail!("the server refuses the test: {text}"),
        other => Err(unexpected(&other)),
    }
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

/// Error for a message that the server should not have sent.
pub(super) fn unexpected(message: &ControlMessage) -> anyhow::Error {
    let text = format!("{message:?}");
    let name: String = text
        .chars()
        .take_while(|one| one.is_alphanumeric())
        .collect();
    anyhow!("the server said `{name}` where it should not")
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
