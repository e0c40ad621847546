//! Accepts links. Handshakes are few, short, and only for hosts that belong here.
//!
//! Before its handshake is complete a connection costs a socket and one task, for five seconds at
//! most. The places for such connections are shared among their sources ([`SHARING`]), and sources
//! that a peer has connected from are preferred to strangers. A connection without a place is
//! closed unanswered.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{LazyConfigAcceptor, server};

use super::known_sources::KnownSources;
use super::link::{self, AuthenticatedLink, LinkNumbers};
use super::socket;
use crate::config::WanConfig;
use crate::identity::{NodeIdentity, node_id};
use crate::mailbox::LoopMailbox;
use crate::pairing::{self, InvitationDirectory, PinDirectory};
use crate::places::{CrowdedOut, PlaceLimits, PlacePool};
use crate::repeats;
use crate::tls::{self, TrustedIdentities};

/// The limits of simultaneous handshakes: each holds some 50 kB for at most five seconds. From one
/// address come those of a site behind one NAT with several nodes, not more. A handshake takes two
/// round trips, by satellite more than a second.
const SHARING: PlaceLimits = PlaceLimits {
    places: 256,
    per_source: 16,
    time_to_finish: Duration::from_secs(2),
};
/// The limit of connections that the kernel holds for the listener: the number that arrives in a
/// tenth of a second when strangers send ten thousand a second.
const BACKLOG: i32 = 1_024;
/// For a whole handshake, and for the whole of a pairing.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after which the system is asked again when it had no descriptor for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The context of the listener.
pub(crate) struct ListenerContext {
    pub(crate) identity: Arc<NodeIdentity>,
    pub(crate) trust: TrustedIdentities,
    pub(crate) wan: WanConfig,
    pub(crate) own_name: String,
    pub(crate) invitations: InvitationDirectory,
    pub(crate) pins: PinDirectory,
    pub(crate) numbers: LinkNumbers,
    pub(crate) known: KnownSources,
    pub(crate) mailbox: LoopMailbox,
    /// The number of simultaneous handshakes that have descriptors.
    pub(crate) handshakes: usize,
    /// Notified when a pin was added here.
    pub(crate) paired: Arc<tokio::sync::Notify>,
}

struct LinkAcceptor {
    listening: ListenerContext,
    session: Arc<rustls::ServerConfig>,
    pairing: Arc<rustls::ServerConfig>,
    places: PlacePool,
}

/// Takes links until it is dropped.
///
/// # Errors
/// When rustls refuses this node's identity.
pub(crate) async fn listen(
    listener: TcpListener,
    listening: ListenerContext,
) -> Result<(), rustls::Error> {
    let acceptor = Arc::new(LinkAcceptor {
        session: tls::session_server(&listening.identity, listening.trust.clone())?,
        pairing: tls::pairing_server(&listening.identity)?,
        places: PlacePool::new(PlaceLimits {
            places: listening.handshakes.min(SHARING.places),
            per_source: listening.handshakes.div_ceil(2).min(SHARING.per_source),
            ..SHARING
        }),
        listening,
    });
    if let Err(error) = SockRef::from(&listener).listen(BACKLOG) {
        tracing::debug!(%error, "the kernel's queue for new connections is shorter than the node asked for; \
                                 raise net.core.somaxconn");
    }
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                repeats::NO_LINK_ACCEPTED.tell(None, || {
                    tracing::warn!(%error, "cannot take a link");
                });
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let standing = acceptor.listening.known.standing(from.ip());
        let Some(place) = acceptor.places.enter(from.ip(), standing) else {
            crowded_out(from);
            continue;
        };
        let acceptor = Arc::clone(&acceptor);
        tokio::spawn(async move {
            let welcomed = place.hold(acceptor.welcome(stream, from)).await;
            drop(place);
            match welcomed {
                Ok(Ok(Some(link))) => link::carry(link, acceptor.listening.mailbox.clone()).await,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::debug!(%from, %error, "no link"),
                Err(CrowdedOut) => crowded_out(from),
            }
        });
    }
}

fn crowded_out(from: SocketAddr) {
    repeats::CROWDED_OUT.tell(Some(from.ip()), || {
        tracing::warn!(%from, "too many handshakes are unfinished; the node closed one of them");
    });
}

impl LinkAcceptor {
    /// Performs the handshake: a link, if a peer requested one.
    async fn welcome(
        &self,
        stream: TcpStream,
        from: SocketAddr,
    ) -> io::Result<Option<AuthenticatedLink>> {
        socket::prepare(&stream, &self.listening.wan);
        let handshake = async {
            let start =
                LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
            let pairs = start
                .client_hello()
                .alpn()
                .is_some_and(|mut offered| offered.any(|protocol| protocol == tls::PAIRING));
            let config = if pairs { &self.pairing } else { &self.session };
            Ok::<_, io::Error>((pairs, start.into_stream(Arc::clone(config)).await?))
        };
        let (pairs, stream) = timely(handshake).await?;
        if pairs {
            timely(self.pair(stream, from)).await?;
            return Ok(None);
        }
        if stream.get_ref().1.alpn_protocol() != Some(tls::SESSION) {
            return Err(io::Error::other(
                "the other end does not use Trunkline's protocol",
            ));
        }
        let peer = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(|chain| chain.first())
            .and_then(node_id)
            .ok_or_else(|| io::Error::other("the other end sent no certificate"))?;
        self.listening.known.note(from.ip());
        Ok(Some(AuthenticatedLink {
            number: self.listening.numbers.take(),
            peer,
            dialed_by_us: false,
            stream: stream.into(),
            first: Bytes::new(),
        }))
    }

    async fn pair(
        &self,
        mut stream: server::TlsStream<TcpStream>,
        from: SocketAddr,
    ) -> io::Result<()> {
        let ListenerContext {
            identity,
            invitations,
            pins,
            own_name,
            paired,
            ..
        } = &self.listening;
        match pairing::accept(identity, invitations, pins, own_name, &mut stream).await {
            Ok(done) => {
                self.listening.known.note(from.ip());
                tracing::info!(
                    peer = done.pin.name,
                    node = done.pin.node.short(),
                    "paired with a new node"
                );
                paired.notify_one();
                Ok(())
            }
            Err(error) => {
                repeats::REFUSED_PAIRING.tell(Some(from.ip()), || {
                    tracing::warn!(%from, %error, "refused to pair");
                });
                Err(io::Error::other(error))
            }
        }
    }
}

async fn timely<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(HANDSHAKE_TIMEOUT, step)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests;
