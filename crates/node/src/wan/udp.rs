//! UDP sockets for datagram paths: batches in, batches out, without knowledge of their content.
//!
//! ```text
//!   socket ─ recvmmsg, GRO ─► task ─► Train ─► mailbox ─► loop ─► engine     (all on one thread)
//!   socket ◄ sendmsg, GSO ───────────────────────────────  loop ◄ transmit_datagrams
//! ```
//!
//! The node's WAN address has one socket for all accepted links, since firewalls admit that port.
//! Each link that this node dials has a socket of its own, at the address of its TCP connection, so
//! that routing and translation treat both alike. The connection id in its packets identifies a
//! path, never their source address.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::BytesMut;
use engine::LinkId;
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tunnel::packet::ConnectionId;
use tunnel::transport::{EcnMarking, TransmitBatch};

use crate::mailbox::{LoopMailbox, LoopMessage};
use crate::sys;

/// The kernel buffer in each direction: 100 ms at 320 Mbit/s, during which the engine's thread may
/// be busy.
const KERNEL_BUFFER: usize = 4 << 20;
/// The most bytes that a batch delivers at once; mailbox messages are sized by it.
const MESSAGE_BYTES: usize = 64 * 1024;
/// The longest run that segmentation offload takes (the length of an IP packet, less headers).
const RUN_BYTES: usize = 65_000;

/// Packets of one length, but the last, which may be shorter, from one address to one path.
#[derive(Debug)]
pub(crate) struct PacketTrain {
    /// The link of the first packet. A run is one sender's packets. A sender that uses two paths of
    /// this node from one port loses the second path's packets when they arrive in one run.
    pub(crate) link: LinkId,
    pub(crate) from: SocketAddr,
    pub(crate) codepoint: EcnMarking,
    pub(crate) segment: usize,
    pub(crate) bytes: BytesMut,
}

/// The links by the connection id of their packets. The reader of a socket checks it, so that
/// strangers' packets never reach the engine's queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkPaths {
    links: Arc<RwLock<HashMap<ConnectionId, LinkId>>>,
}

impl LinkPaths {
    pub(crate) fn insert(&self, connection_id: ConnectionId, link: LinkId) {
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        links.insert(connection_id, link);
    }

    pub(crate) fn remove(&self, connection_id: ConnectionId) {
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        links.remove(&connection_id);
    }

    fn link(&self, connection_id: ConnectionId) -> Option<LinkId> {
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        links.get(&connection_id).copied()
    }
}

/// A socket and the offloads that the kernel supports on it.
#[derive(Debug)]
pub(crate) struct WanSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    port: u16,
}

/// The reason why packets were not sent.
#[derive(Debug)]
pub(crate) enum SendRefusal {
    /// The kernel's queue is full; [`WanSocket::writable`] waits for room.
    Full,
    /// They are gone, as if the network had lost them.
    Failed(io::Error),
}

impl WanSocket {
    /// Makes a bound socket ready; to be called inside a runtime.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let port = socket.local_addr()?.port();
        Ok(Self {
            socket: UdpSocket::from_std(socket)?,
            state,
            port,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The number of packets of this length that may leave at once.
    pub(crate) fn packets_max(&self, length: usize) -> usize {
        self.state
            .max_gso_segments()
            .min(RUN_BYTES / length.max(1))
            .max(1)
    }

    /// Sends packets of one destination from the address `source`.
    pub(crate) fn send(
        &self,
        transmit: &TransmitBatch,
        contents: &[u8],
        source: IpAddr,
    ) -> Result<(), SendRefusal> {
        let run = quinn_udp::Transmit {
            destination: transmit.to,
            ecn: transmit.is_marked.then_some(EcnCodepoint::Ect0),
            contents,
            segment_size: Some(transmit.segment),
            src_ip: Some(source),
        };
        let sent = self.socket.try_io(Interest::WRITABLE, || {
            self.state.try_send((&self.socket).into(), &run)
        });
        match sent {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(SendRefusal::Full),
            Err(error) => Err(SendRefusal::Failed(error)),
        }
    }

    /// Waits until there is room in the kernel's queue.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }
}

/// A socket at this address, with as large buffers as the node's privileges allow by now.
///
/// # Errors
/// What the system says.
pub(crate) fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    let got = sys::enlarge_buffers(&socket, KERNEL_BUFFER)?;
    if got < KERNEL_BUFFER {
        tracing::warn!(
            wanted = KERNEL_BUFFER,
            got,
            "the kernel limits the UDP buffers, and a fast path loses packets when these buffers are full; \
             raise net.core.rmem_max and net.core.wmem_max"
        );
    }
    Ok(socket)
}

/// Passes received packets on until the loop or the socket ends.
pub(crate) async fn receive(socket: Arc<WanSocket>, paths: LinkPaths, mailbox: LoopMailbox) {
    let room = MESSAGE_BYTES.max(socket.state.gro_segments() * 1_500);
    let mut buffers = vec![vec![0_u8; room]; BATCH_SIZE];
    let mut metas = [RecvMeta::default(); BATCH_SIZE];
    loop {
        if let Err(error) = socket.socket.readable().await {
            tracing::error!(%error, "the node cannot wait for a UDP socket; the datagram paths of this socket end");
            return;
        }
        let mut slices: Vec<IoSliceMut<'_>> = buffers
            .iter_mut()
            .map(|buffer| IoSliceMut::new(buffer))
            .collect();
        let received = socket.socket.try_io(Interest::READABLE, || {
            let inner = (&socket.socket).into();
            socket.state.recv(inner, &mut slices, &mut metas)
        });
        drop(slices);
        let count = match received {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                // Such as an ICMP message about what was sent before: authenticated packets alone
                // say what a path is like.
                tracing::debug!(%error, "a UDP socket reports an error");
                continue;
            }
        };
        let mut trains = Vec::with_capacity(count);
        let mut bytes = 0;
        for (buffer, meta) in buffers.iter().zip(&metas).take(count) {
            let Some(train) = train(&buffer[..meta.len], meta, &paths) else {
                continue;
            };
            if bytes + train.bytes.len() > MESSAGE_BYTES && !trains.is_empty() {
                let full = LoopMessage::Datagrams(std::mem::take(&mut trains));
                bytes = 0;
                if mailbox.send(full).await.is_err() {
                    return;
                }
            }
            bytes += train.bytes.len();
            trains.push(train);
        }
        if !trains.is_empty() && mailbox.send(LoopMessage::Datagrams(trains)).await.is_err() {
            return;
        }
    }
}

/// The received packets, in a buffer of their own size; `None` when they are not packets of a path.
fn train(received: &[u8], meta: &RecvMeta, paths: &LinkPaths) -> Option<PacketTrain> {
    let link = paths.link(ConnectionId::of(received)?)?;
    let codepoint = match meta.ecn {
        None => EcnMarking::NotEct,
        Some(EcnCodepoint::Ect0) => EcnMarking::Ect0,
        Some(EcnCodepoint::Ect1) => EcnMarking::Ect1,
        Some(EcnCodepoint::Ce) => EcnMarking::Ce,
    };
    Some(PacketTrain {
        link,
        from: meta.addr,
        codepoint,
        segment: meta.stride.max(1),
        bytes: BytesMut::from(received),
    })
}
