//! Clients' connections: numbered, announced to the engine, and served by a task each on its thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::{ArrivalMethod, ConnectionId};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::descriptors::{DescriptorPool, TakenDescriptors};
use crate::lan::{self, WaitingClient};
use crate::mailbox::{LoopMailbox, LoopMessage};
use crate::repeats;

/// The pause after which the system is asked again for a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Gives out numbers; each is used once.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionNumbers {
    next: Arc<AtomicU64>,
    engine: Handle,
    descriptors: DescriptorPool,
}

impl ConnectionNumbers {
    /// Connections that are served by the runtime of the engine's thread.
    pub(crate) fn new(engine: Handle, descriptors: DescriptorPool) -> Self {
        let next = Arc::default();
        Self {
            next,
            engine,
            descriptors,
        }
    }

    /// Accepts a connection. It is the listener's only one that has no descriptors yet.
    pub(crate) async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
        loop {
            match listener.accept().await {
                Ok(accepted) => return accepted,
                // The client has gone, or others have used up what the whole system has.
                Err(error) => {
                    repeats::NO_CLIENT_ACCEPTED.tell(None, || {
                        tracing::warn!(%error, "cannot take a connection");
                    });
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits for the descriptors of an accepted connection. No other should be accepted meanwhile,
    /// so that the others wait in the kernel.
    pub(crate) async fn descriptors(&self) -> TakenDescriptors {
        self.descriptors.for_client().await
    }

    /// The descriptors of a connection that is going to be accepted; `None` when there are none now.
    pub(crate) fn descriptors_now(&self) -> Option<TakenDescriptors> {
        self.descriptors.for_client_now()
    }

    /// Starts a task that announces the connection and then serves it until it ends. `early` is the
    /// data that was already read.
    pub(crate) fn accepted(
        &self,
        (stream, taken): (TcpStream, TakenDescriptors),
        early: Bytes,
        client: SocketAddr,
        server: SocketAddr,
        via: ArrivalMethod,
        mailbox: &LoopMailbox,
    ) {
        let connection = self.number();
        let (commands, orders) = mpsc::unbounded_channel();
        let accepted = LoopMessage::Accepted {
            connection,
            client: canonical(client),
            server: canonical(server),
            via,
            commands,
            descriptors: taken.clone(),
        };
        let mailbox = mailbox.clone();
        // A socket is waited for by the runtime that it was made in, so this one is made anew.
        let stream = stream.into_std();
        self.engine.spawn(async move {
            let Ok(stream) = stream.and_then(TcpStream::from_std) else {
                return;
            };
            if mailbox.send(accepted).await.is_ok() {
                lan::serve(connection, stream, early, None, orders, mailbox).await;
            }
            drop(taken);
        });
    }

    /// Announces a client that waits for the outcome of its server's connection, and then starts a
    /// task for it.
    pub(crate) fn asks<Attending>(
        &self,
        taken: TakenDescriptors,
        client: SocketAddr,
        server: SocketAddr,
        via: ArrivalMethod,
        mailbox: &LoopMailbox,
        attend: impl FnOnce(WaitingClient) -> Attending + Send + 'static,
    ) where
        Attending: Future<Output = ()> + Send,
    {
        let connection = self.number();
        let (commands, orders) = mpsc::unbounded_channel();
        let message = LoopMessage::Asked {
            connection,
            client: canonical(client),
            server: canonical(server),
            via,
            commands,
            descriptors: taken.clone(),
        };
        let mailbox = mailbox.clone();
        self.engine.spawn(async move {
            // A loop that has ended drops the message and with it `commands`: that is an order to end.
            let _ = mailbox.send(message).await;
            attend(WaitingClient { connection, orders }).await;
            drop(taken);
        });
    }

    fn number(&self) -> ConnectionId {
        ConnectionId::Accepted(self.next.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Converts an IPv4 address that came through an IPv6 socket to IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
