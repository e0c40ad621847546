//! Taking links: handshakes that are few, short and only for those who belong here.
//!
//! Before its handshake is done a connection costs a socket and one task, for five seconds at
//! most, and there are at most [`UNFINISHED`] of them, [`UNFINISHED_PER_SOURCE`] from one
//! address. Beyond that a connection is closed unanswered.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{LazyConfigAcceptor, server};

use super::link::{self, Link, LinkNumbers};
use super::socket;
use crate::config::Wan;
use crate::identity::{Identity, node_id};
use crate::mailbox::Mailbox;
use crate::pairing::{self, Invitations, Pins};
use crate::tls::{self, Trust};

/// Handshakes under way in all: each holds some 50 kB for at most five seconds.
const UNFINISHED: usize = 256;
/// From one address: a site behind one NAT with several nodes, not more.
const UNFINISHED_PER_SOURCE: usize = 16;
/// For a whole handshake, and for the whole of a pairing.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// When the system has no descriptor for a new connection, it is asked again after this.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the listener needs.
pub(crate) struct Listening {
    pub(crate) identity: Arc<Identity>,
    pub(crate) trust: Trust,
    pub(crate) wan: Wan,
    pub(crate) own_name: String,
    pub(crate) invitations: Invitations,
    pub(crate) pins: Pins,
    pub(crate) numbers: LinkNumbers,
    pub(crate) mailbox: Mailbox,
    /// Told when a pin was added here.
    pub(crate) paired: Arc<tokio::sync::Notify>,
}

struct Acceptor {
    listening: Listening,
    session: Arc<rustls::ServerConfig>,
    pairing: Arc<rustls::ServerConfig>,
    sources: Sources,
}

/// Takes links until it is dropped.
///
/// # Errors
/// When rustls refuses this node's identity.
pub(crate) async fn listen(
    listener: TcpListener,
    listening: Listening,
) -> Result<(), rustls::Error> {
    let acceptor = Arc::new(Acceptor {
        session: tls::session_server(&listening.identity, listening.trust.clone())?,
        pairing: tls::pairing_server(&listening.identity)?,
        sources: Sources::default(),
        listening,
    });
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot take a link");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = acceptor.sources.enter(from.ip()) else {
            tracing::debug!(%from, "too many unfinished handshakes; closed");
            continue;
        };
        let acceptor = Arc::clone(&acceptor);
        tokio::spawn(async move {
            if let Err(error) = acceptor.welcome(stream, from, place).await {
                tracing::debug!(%from, %error, "no link");
            }
        });
    }
}

impl Acceptor {
    async fn welcome(&self, stream: TcpStream, from: SocketAddr, place: Place) -> io::Result<()> {
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
            return timely(self.pair(stream, from)).await;
        }
        if stream.get_ref().1.alpn_protocol() != Some(tls::SESSION) {
            return Err(io::Error::other("it does not speak this protocol"));
        }
        let peer = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(|chain| chain.first())
            .and_then(node_id)
            .ok_or_else(|| io::Error::other("it showed no certificate"))?;
        drop(place);
        let link = Link {
            number: self.listening.numbers.take(),
            peer,
            dialed_by_us: false,
            stream: stream.into(),
            first: Bytes::new(),
        };
        link::carry(link, self.listening.mailbox.clone()).await;
        Ok(())
    }

    async fn pair(
        &self,
        mut stream: server::TlsStream<TcpStream>,
        from: SocketAddr,
    ) -> io::Result<()> {
        let Listening {
            identity,
            invitations,
            pins,
            own_name,
            paired,
            ..
        } = &self.listening;
        match pairing::accept(identity, invitations, pins, own_name, &mut stream).await {
            Ok(done) => {
                tracing::info!(
                    peer = done.pin.name,
                    node = done.pin.node.short(),
                    "paired with a new node"
                );
                paired.notify_one();
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, "refused to pair");
                tracing::debug!(%from, "the refused joiner");
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

/// Counts unfinished handshakes by source.
#[derive(Clone, Debug, Default)]
struct Sources {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One unfinished handshake's place; given back when dropped.
#[derive(Debug)]
struct Place {
    sources: Sources,
    source: IpAddr,
}

impl Sources {
    fn enter(&self, source: IpAddr) -> Option<Place> {
        let source = bucket(source);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let in_all: usize = counts.values().sum();
        let here = counts.get(&source).copied().unwrap_or(0);
        if in_all >= UNFINISHED || here >= UNFINISHED_PER_SOURCE {
            return None;
        }
        counts.insert(source, here + 1);
        Some(Place {
            sources: self.clone(),
            source,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self
            .sources
            .counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.source);
            }
        }
    }
}

/// One source: an IPv4 address, or the /64 that one IPv6 host can fill by itself.
fn bucket(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_cannot_take_all_places() {
        let sources = Sources::default();
        let address = |last: u8| IpAddr::from([198, 18, 0, last]);
        let places: Vec<Place> = (0..UNFINISHED_PER_SOURCE)
            .map(|_| sources.enter(address(1)).unwrap())
            .collect();
        assert!(sources.enter(address(1)).is_none());
        assert!(sources.enter(address(2)).is_some());
        drop(places);
        assert!(sources.enter(address(1)).is_some());
    }

    #[test]
    fn places_are_limited_in_all() {
        let sources = Sources::default();
        let places: Vec<Place> = (0..UNFINISHED)
            .filter_map(|n| sources.enter(IpAddr::from([198, 18, 0, n as u8])))
            .collect();
        assert_eq!(places.len(), UNFINISHED);
        assert!(sources.enter(IpAddr::from([198, 19, 0, 1])).is_none());
    }

    #[test]
    fn an_ipv6_host_is_one_source_whatever_address_it_uses() {
        let one: IpAddr = "2001:2::1".parse().unwrap();
        let other: IpAddr = "2001:2::ffff:1".parse().unwrap();
        assert_eq!(bucket(one), bucket(other));
    }
}
