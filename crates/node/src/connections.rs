//! Accepted connections: numbered, announced to the engine, and served by a task each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use engine::{ConnectionId, Via};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::lan;
use crate::mailbox::{Mailbox, Message};

/// Gives out numbers; each is used once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    next: Arc<AtomicU64>,
}

impl Connections {
    /// Starts a task that announces and then serves the connection.
    pub(crate) fn accepted(
        &self,
        stream: TcpStream,
        client: SocketAddr,
        server: SocketAddr,
        via: Via,
        mailbox: &Mailbox,
    ) {
        let this = self.clone();
        let mailbox = mailbox.clone();
        tokio::spawn(async move {
            this.serve(stream, Bytes::new(), client, server, via, mailbox)
                .await;
        });
    }

    /// Announces the connection and serves it until it ends. `early` is what was read of it
    /// already.
    pub(crate) async fn serve(
        &self,
        stream: TcpStream,
        early: Bytes,
        client: SocketAddr,
        server: SocketAddr,
        via: Via,
        mailbox: Mailbox,
    ) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = ConnectionId::Accepted(number);
        let (commands, orders) = mpsc::unbounded_channel();
        let accepted = Message::Accepted {
            connection,
            client: canonical(client),
            server: canonical(server),
            via,
            commands,
        };
        if mailbox.send(accepted).await.is_ok() {
            lan::serve(connection, stream, early, orders, mailbox).await;
        }
    }
}

/// An IPv4 address that came through an IPv6 socket, as what it is.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
