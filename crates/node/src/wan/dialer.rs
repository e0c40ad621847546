//! Dials a peer whenever a link to it is wanted.
//!
//! A link is wanted while there is none, and once more when the session has heard nothing for a
//! while. The dialler then dials a fresh link without waiting for the old one to fail, since a TCP
//! connection through a broken path takes minutes to notice.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::EngineInput;
use thiserror::Error;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::{TlsConnector, client};
use vocab::NodeId;

use super::known_sources::KnownSources;
use super::link::{self, AuthenticatedLink, LinkNumbers};
use super::socket;
use crate::config::WanConfig;
use crate::mailbox::LoopMailbox;
use crate::tls;

/// Three SYNs get through a path that loses half of all packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For the handshake, and then for the peer's first bytes.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The first wait after a failure, doubled up to the last.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const LAST_BACKOFF: Duration = Duration::from_secs(2);
/// A link that lived this long was a good one: the next failure starts a new count.
const LIVED: Duration = Duration::from_secs(5);
const FIRST_BYTES: usize = 16 * 1024;

/// The state of a peer's links, kept by the engine's loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerLinks {
    /// The number of links that are up, whichever side dialled them.
    pub(crate) up: usize,
    /// True if the peer has been silent for some seconds.
    pub(crate) silent: bool,
}

/// The context of the dialler.
pub(crate) struct DialerContext {
    pub(crate) peer: NodeId,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) wan: WanConfig,
    pub(crate) tls: Arc<rustls::ClientConfig>,
    pub(crate) numbers: LinkNumbers,
    pub(crate) known: KnownSources,
    pub(crate) mailbox: LoopMailbox,
    pub(crate) links: watch::Receiver<PeerLinks>,
}

/// Dials the peer whenever a link is wanted, until dropped or the loop ends.
pub(crate) async fn dial_while_needed(mut dialing: DialerContext) {
    let mut backoff = FIRST_BACKOFF;
    let mut last_error = String::new();
    // The link that was dialled because of the present silence, while it lives.
    let mut fresh: Option<tokio::task::JoinHandle<()>> = None;
    loop {
        let state = *dialing.links.borrow_and_update();
        if !state.silent {
            fresh = None;
        }
        let has_fresh = fresh.as_ref().is_some_and(|link| !link.is_finished());
        let wanted = state.up == 0 || (state.silent && !has_fresh);
        if !wanted {
            if wait_for_change(&mut dialing.links, fresh.as_mut())
                .await
                .is_err()
            {
                return;
            }
            continue;
        }
        match dialing.dial().await {
            Ok(link) => {
                last_error.clear();
                let born = Instant::now();
                let number = link.number;
                let mut carried = tokio::spawn(link::carry(link, dialing.mailbox.clone()));
                tracing::debug!(peer = dialing.name, link = number.0, "dialled");
                if wait_until_counted(&mut dialing.links, &mut carried)
                    .await
                    .is_err()
                {
                    return;
                }
                if carried.is_finished() && born.elapsed() < LIVED {
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(LAST_BACKOFF);
                } else {
                    backoff = FIRST_BACKOFF;
                }
                fresh = Some(carried);
            }
            Err(error) => {
                if is_refusal(&error) {
                    let peer = dialing.peer;
                    let refused = dialing.mailbox.input(EngineInput::RefusedByPeer { peer });
                    if refused.await.is_err() {
                        return;
                    }
                }
                let error = error.to_string();
                // The same failure again and again is one piece of news.
                if error == last_error {
                    tracing::debug!(peer = dialing.name, error, "cannot dial");
                } else {
                    tracing::warn!(
                        peer = dialing.name,
                        error,
                        "cannot connect to the peer; the node keeps trying"
                    );
                    last_error = error;
                }
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(LAST_BACKOFF);
            }
        }
    }
}

/// Waits until the loop has counted the new link, so that it is not dialled twice.
async fn wait_until_counted(
    links: &mut watch::Receiver<PeerLinks>,
    carried: &mut tokio::task::JoinHandle<()>,
) -> Result<(), watch::error::RecvError> {
    tokio::select! {
        counted = links.wait_for(|state| state.up > 0) => counted.map(drop),
        _ = carried => Ok(()),
    }
}

async fn wait_for_change(
    links: &mut watch::Receiver<PeerLinks>,
    fresh: Option<&mut tokio::task::JoinHandle<()>>,
) -> Result<(), watch::error::RecvError> {
    match fresh {
        Some(link) if !link.is_finished() => tokio::select! {
            changed = links.changed() => changed,
            _ = link => Ok(()),
        },
        Some(_) | None => links.changed().await,
    }
}

impl DialerContext {
    async fn dial(&self) -> io::Result<AuthenticatedLink> {
        let stream = within(CONNECT_TIMEOUT, TcpStream::connect(&self.address)).await?;
        socket::prepare(&stream, &self.wan);
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let mut stream = within(
            HANDSHAKE_TIMEOUT,
            connector.connect(tls::unchecked_name(), stream),
        )
        .await?;
        if stream.get_ref().1.alpn_protocol() != Some(tls::SESSION) {
            return Err(io::Error::other(
                "the other end does not use Trunkline's protocol",
            ));
        }
        let first = within(HANDSHAKE_TIMEOUT, first_bytes(&mut stream)).await?;
        if let Ok(address) = stream.get_ref().0.peer_addr() {
            self.known.note(address.ip());
        }
        Ok(AuthenticatedLink {
            number: self.numbers.take(),
            peer: self.peer,
            dialed_by_us: true,
            stream: stream.into(),
            first,
        })
    }
}

/// The client's side of a TLS 1.3 handshake ends before the server has looked at its
/// certificate. The peer's first bytes show that it let us in; a refusal is an alert instead.
async fn first_bytes(stream: &mut client::TlsStream<TcpStream>) -> io::Result<Bytes> {
    let mut buffer = vec![0; FIRST_BYTES];
    match stream.read(&mut buffer).await {
        Ok(0) => Err(io::Error::other(
            "the peer closed the link without a reason",
        )),
        Ok(length) => Ok(Bytes::copy_from_slice(&buffer[..length])),
        Err(error) => Err(explain(error)),
    }
}

/// The peer refuses this node's identity. It reported that behind its own handshake, so it is the
/// pinned peer.
#[derive(Debug, Error)]
#[error(
    "the peer refused this node's identity; pair the two nodes with `trunkline peer invite` and `trunkline peer join`"
)]
struct DialRefusal;

fn is_refusal(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|inner| inner.is::<DialRefusal>())
}

/// Explains an alert after the handshake.
fn explain(error: io::Error) -> io::Error {
    let alert = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    if matches!(alert, Some(rustls::Error::AlertReceived(_))) {
        return io::Error::other(DialRefusal);
    }
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return io::Error::other("the peer closed the link without a reason");
    }
    error
}

async fn within<T>(limit: Duration, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, step)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
