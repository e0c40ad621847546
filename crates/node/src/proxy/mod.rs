//! Explicit proxies, for networks where traffic cannot be intercepted or privileges are missing.
//!
//! A client gets the success answer of its protocol when the server's connection is established,
//! and otherwise the failure. Where the server has accepted a connection before, or the policy says
//! so, the success is sent as soon as the request is parsed. The client's first bytes then travel
//! with the open, and the connection is reset if the far side cannot connect after all. Names are
//! resolved on this side by the system's resolver, and the first address is used.

pub mod host;
pub mod http_connect;
pub mod socks5;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::{ArrivalMethod, ConnectFailure};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::connections::ConnectionNumbers;
use crate::descriptors::TakenDescriptors;
use crate::lan::{self, ClientOutcome};
use crate::mailbox::LoopMailbox;
use crate::places::{CrowdedOut, PlaceLimits, PlacePool, SourceStanding};
use host::ProxyTarget;
use http_connect::{ConnectHead, ConnectStatus};
use socks5::{Socks5Parse, Socks5Refusal};

/// From the connection to the end of the request, name resolution included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests being read at a time; each holds at most 8 KiB. A client that has had its place for as
/// long as names take to resolve may lose it to another.
const SHARING: PlaceLimits = PlaceLimits {
    places: 1_024,
    per_source: 256,
    time_to_finish: Duration::from_secs(2),
};

/// The time for which a proxy, after its last answer, discards the client's further bytes: the
/// kernel answers unread bytes with a reset, which can make the client lose the answer. It is
/// enough for a client to read the answer, and for two lost packets on the way.
const DISCARD_FOR: Duration = Duration::from_secs(1);
/// The limit of these bytes: more than a client sends that waits for an answer.
const DISCARD_BYTES: usize = 64 * 1024;

/// The proxy protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyProtocol {
    Socks5,
    HttpConnect,
}

/// Places for requests that are being read, to be shared by all listeners.
pub(crate) fn places() -> PlacePool {
    PlacePool::new(SHARING)
}

/// Takes clients until dropped.
pub(crate) async fn listen(
    listener: TcpListener,
    protocol: ProxyProtocol,
    places: PlacePool,
    connections: ConnectionNumbers,
    mailbox: LoopMailbox,
) {
    // Accepted connections inherit it: an urgent byte behind the request is read in its place.
    let _ = SockRef::from(&listener).set_out_of_band_inline(true);
    loop {
        let (mut stream, client) = ConnectionNumbers::accept(&listener).await;
        let Some(place) = places.enter(client.ip(), SourceStanding::Unknown) else {
            tracing::debug!(%client, "closed a connection to the proxy, because too many requests are unfinished");
            continue;
        };
        let taken = connections.descriptors().await;
        let (connections, mailbox) = (connections.clone(), mailbox.clone());
        tokio::spawn(async move {
            let request = async {
                match protocol {
                    ProxyProtocol::Socks5 => socks5_request(&mut stream).await,
                    ProxyProtocol::HttpConnect => http_request(&mut stream).await,
                }
            };
            let timely = tokio::time::timeout(REQUEST_TIMEOUT, request);
            let requested = match place.hold(timely).await {
                Ok(Ok(requested)) => requested,
                Ok(Err(_)) => Err(io::ErrorKind::TimedOut.into()),
                Err(CrowdedOut) => Err(io::Error::other(
                    "closed an unfinished request, because another \
                    connection needed its place",
                )),
            };
            drop(place);
            match requested {
                Ok((server, early)) => {
                    ask(
                        &connections,
                        &mailbox,
                        protocol,
                        client,
                        server,
                        early,
                        (stream, taken),
                    );
                }
                Err(error) => tracing::debug!(%client, %error, via = %protocol.via(), "refused"),
            }
        });
    }
}

/// Requests the connection from the engine and sends the outcome to the client.
fn ask(
    connections: &ConnectionNumbers,
    mailbox: &LoopMailbox,
    protocol: ProxyProtocol,
    client: SocketAddr,
    server: SocketAddr,
    early: Bytes,
    (stream, taken): (TcpStream, TakenDescriptors),
) {
    // A socket is waited for by the runtime that it was made in, so this one is made anew.
    let stream = stream.into_std();
    let (via, waiting) = (protocol.via(), mailbox.clone());
    connections.asks(
        taken,
        client,
        server,
        via,
        mailbox,
        move |mut asked| async move {
            let Ok(mut stream) = stream.and_then(TcpStream::from_std) else {
                return asked.abort(&waiting).await;
            };
            match asked.outcome().await {
                ClientOutcome::Admitted => match stream.write_all(&protocol.success()).await {
                    Ok(()) => asked.serve(stream, early, waiting).await,
                    Err(_) => asked.abort(&waiting).await,
                },
                ClientOutcome::Declined(failure) => {
                    end_with(&mut stream, &protocol.failure(failure)).await
                }
                ClientOutcome::Ended => lan::reset(stream),
            }
        },
    );
}

impl ProxyProtocol {
    fn via(self) -> ArrivalMethod {
        match self {
            Self::Socks5 => ArrivalMethod::Socks5,
            Self::HttpConnect => ArrivalMethod::HttpConnect,
        }
    }

    /// The answer to a client when the server's connection is established.
    fn success(self) -> Vec<u8> {
        match self {
            Self::Socks5 => socks5::success(),
            Self::HttpConnect => http_connect::SUCCESS.to_vec(),
        }
    }

    /// The answer to a client when the server's connection could not be opened.
    fn failure(self, failure: ConnectFailure) -> Vec<u8> {
        match self {
            Self::Socks5 => socks5::failure(failure),
            Self::HttpConnect => http_connect::failure(failure),
        }
    }
}

/// Sends the last answer to a client, which may still be sending, so that it arrives before the
/// connection closes.
async fn end_with(stream: &mut TcpStream, answer: &[u8]) {
    let mut discarded = 0;
    let mut buffer = [0; 4 * 1024];
    let ending = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        while discarded < DISCARD_BYTES {
            match stream.read(&mut buffer).await? {
                0 => break,
                bytes => discarded += bytes,
            }
        }
        Ok::<_, io::Error>(())
    };
    // Whatever is in the way, the client is gone or not worth a longer wait.
    let _ = tokio::time::timeout(DISCARD_FOR, ending).await;
}

async fn socks5_request(stream: &mut TcpStream) -> io::Result<(SocketAddr, Bytes)> {
    let mut buffer = BytesMut::with_capacity(socks5::LONGEST_MESSAGE);
    let refuse = async |stream: &mut TcpStream, refusal: Socks5Refusal| {
        end_with(stream, &refusal.answer()).await;
        Err(io::Error::other(format!("{refusal:?}")))
    };
    loop {
        match socks5::parse_greeting(&buffer) {
            Socks5Parse::Incomplete => read_more(stream, &mut buffer).await?,
            Socks5Parse::Whole((), length) => {
                let _ = buffer.split_to(length);
                break;
            }
            Socks5Parse::Invalid(refusal) => return refuse(stream, refusal).await,
        }
    }
    stream.write_all(&socks5::CHOSE_NO_AUTHENTICATION).await?;
    loop {
        match socks5::parse_request(&buffer) {
            Socks5Parse::Incomplete => read_more(stream, &mut buffer).await?,
            Socks5Parse::Whole((host, port), length) => {
                let _ = buffer.split_to(length);
                let Some(server) = resolve(host, port).await else {
                    return refuse(stream, Socks5Refusal::Unresolvable).await;
                };
                return Ok((server, buffer.freeze()));
            }
            Socks5Parse::Invalid(refusal) => return refuse(stream, refusal).await,
        }
    }
}

async fn http_request(stream: &mut TcpStream) -> io::Result<(SocketAddr, Bytes)> {
    let mut buffer = BytesMut::new();
    let refuse = async |stream: &mut TcpStream, status: ConnectStatus| {
        end_with(stream, &status.answer()).await;
        Err(io::Error::other(format!("{status:?}")))
    };
    loop {
        match http_connect::parse_head(&buffer) {
            ConnectHead::Incomplete => read_more(stream, &mut buffer).await?,
            ConnectHead::Connect(host, port, length) => {
                let _ = buffer.split_to(length);
                let Some(server) = resolve(host, port).await else {
                    return refuse(stream, ConnectStatus::BadGateway).await;
                };
                return Ok((server, buffer.freeze()));
            }
            ConnectHead::Refused(status) => return refuse(stream, status).await,
        }
    }
}

/// Reads some bytes; the parsers refuse input beyond their limits.
async fn read_more(stream: &mut TcpStream, buffer: &mut BytesMut) -> io::Result<()> {
    buffer.reserve(1024);
    if stream.read_buf(buffer).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

async fn resolve(host: ProxyTarget, port: u16) -> Option<SocketAddr> {
    match host {
        ProxyTarget::Address(address) => Some(SocketAddr::new(address, port)),
        ProxyTarget::Name(name) => tokio::net::lookup_host((name, port)).await.ok()?.next(),
    }
}
