//! The sockets that intercepted connections arrive on.
//!
//! They are bound to the loopback addresses, so that no other host can reach them directly. The
//! kernel's tproxy hands over connections for any destination address, which is then the socket's
//! own.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::Bytes;
use engine::ArrivalMethod;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::held::HeldSyns;
use crate::connections::ConnectionNumbers;
use crate::lan;
use crate::mailbox::LoopMailbox;

/// The limit of handshakes and finished connections that wait for the node; the kernel caps it at
/// somaxconn. Connections without descriptors wait here, so it is not shorter where these are few:
/// a SYN that finds the queue full is answered by a cookie, and its connection hangs.
const BACKLOG: i32 = 4096;

/// Binds the listeners for IPv4 and, where available, IPv6.
///
/// # Errors
/// When the port is in use or the privilege is missing.
pub(crate) fn bind(port: u16) -> io::Result<Vec<std::net::TcpListener>> {
    let mut listeners = vec![bind_one((Ipv4Addr::LOCALHOST, port).into())?];
    match bind_one((Ipv6Addr::LOCALHOST, port).into()) {
        Ok(listener) => listeners.push(listener),
        Err(error) => tracing::warn!(%error, "the node does not intercept IPv6"),
    }
    Ok(listeners)
}

/// Binds one listener that takes connections to any address.
pub(super) fn bind_one(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    if domain == Domain::IPV4 {
        socket.set_ip_transparent_v4(true)?;
    } else {
        socket.set_only_v6(true)?;
        socket.set_ip_transparent_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    // Accepted connections inherit it: an urgent byte that a client sends at once is read in its place.
    socket.set_out_of_band_inline(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Takes intercepted connections until dropped.
pub(crate) async fn accept_intercepted(
    listener: TcpListener,
    held: HeldSyns,
    connections: ConnectionNumbers,
    mailbox: LoopMailbox,
) {
    let own = listener.local_addr().ok();
    loop {
        let (stream, client) = ConnectionNumbers::accept(&listener).await;
        let Ok(server) = stream.local_addr() else {
            continue;
        };
        // Someone on this machine called the listener itself: there is nowhere to connect to.
        if Some(server) == own {
            lan::reset(stream);
            continue;
        }
        // Its SYN may have been held: then it is known already.
        let pair = (client, server);
        let Some(stream) = held.hand_over(pair, stream) else {
            continue;
        };
        let taken = connections.descriptors().await;
        let (early, via) = (Bytes::new(), ArrivalMethod::Transparent);
        connections.accepted((stream, taken), early, client, server, via, &mailbox);
    }
}
