//! One link: a reader and a writer around a TLS stream.
//!
//! The data between the engine and the socket is kept small, so that the session decides the order
//! of sending: [`LEAST_ROOM`] to [`MOST_ROOM`] bytes, sized so that the socket takes them within a
//! few milliseconds. TCP_NOTSENT_LOWAT bounds the kernel's own unsent queue.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use engine::{EngineInput, LinkEnd, LinkId};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_rustls::TlsStream;
use vocab::NodeId;

use crate::mailbox::{LoopMailbox, LoopMessage};
use crate::sys;

/// Read at once: four TLS records.
const READ_BYTES: usize = 64 * 1024;
/// Bytes between engine and socket at the start and at the least: one TLS record.
const LEAST_ROOM: usize = 16 * 1024;
/// At the most: 1 ms at 2 Gbit/s.
const MOST_ROOM: usize = 256 * 1024;
/// The time below which a fast socket may be handed twice as much ...
const FAST: Duration = Duration::from_millis(1);
/// ... and half as much when it takes longer than this.
const SLOW: Duration = Duration::from_millis(8);
/// For the TLS close to leave; the link is closed anyway afterwards.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A command of the engine's loop to a link.
#[derive(Debug)]
pub(crate) enum LinkCommand {
    Send(Bytes),
    Close,
}

/// Gives out the numbers of links; each is used once.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkNumbers {
    next: Arc<AtomicU64>,
}

impl LinkNumbers {
    pub(crate) fn take(&self) -> LinkId {
        LinkId(self.next.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// A link whose other end is authenticated.
pub(super) struct AuthenticatedLink {
    pub(super) number: LinkId,
    pub(super) peer: NodeId,
    pub(super) dialed_by_us: bool,
    pub(super) stream: TlsStream<TcpStream>,
    /// The bytes that were read before the link was announced.
    pub(super) first: Bytes,
}

/// The addresses of a link's TCP connection, and the parameters of its path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkAddresses {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Bytes of the largest packet, headers included, as far as the kernel knows.
    pub(crate) mtu: usize,
}

fn addresses(stream: &TcpStream) -> io::Result<LinkAddresses> {
    Ok(LinkAddresses {
        local: stream.local_addr()?,
        remote: stream.peer_addr()?,
        mtu: sys::connection_mtu(stream)?,
    })
}

/// A TLS stream that its reader, its writer and the key exporter share.
#[derive(Clone)]
struct SharedStream(Arc<Mutex<TlsStream<TcpStream>>>);

impl SharedStream {
    fn lock(&self) -> MutexGuard<'_, TlsStream<TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for SharedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_read(context, buffer)
    }
}

impl AsyncWrite for SharedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_shutdown(context)
    }
}

/// Makes secrets of a link's TLS connection, while that lives (RFC 8446 §7.5, Exporters).
pub(crate) struct KeyExporter(Weak<Mutex<TlsStream<TcpStream>>>);

impl KeyExporter {
    /// One of a link that is no TLS connection.
    #[cfg(test)]
    pub(crate) fn without_link() -> Self {
        Self(Weak::new())
    }

    /// Fills `room` with the secret of this label and context.
    ///
    /// # Errors
    /// When the connection is gone, or rustls refuses.
    pub(crate) fn export(
        &self,
        room: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), rustls::Error> {
        let Some(stream) = self.0.upgrade().map(SharedStream) else {
            return Err(rustls::Error::General("the link is gone".to_owned()));
        };
        match &*stream.lock() {
            TlsStream::Client(stream) => {
                let (_, connection) = stream.get_ref();
                connection.export_keying_material(room, label, Some(context))?;
            }
            TlsStream::Server(stream) => {
                let (_, connection) = stream.get_ref();
                connection.export_keying_material(room, label, Some(context))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for KeyExporter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Exporter").finish_non_exhaustive()
    }
}

/// Announces the link, carries its bytes until it ends, and announces that.
pub(super) async fn carry(link: AuthenticatedLink, mailbox: LoopMailbox) {
    let number = link.number;
    let (commands, orders) = mpsc::unbounded_channel();
    let addresses = match addresses(link.stream.get_ref().0) {
        Ok(addresses) => addresses,
        Err(error) => {
            tracing::debug!(link = number.0, %error, "a link ended before its handshake was complete");
            return;
        }
    };
    let stream = SharedStream(Arc::new(Mutex::new(link.stream)));
    let up = LoopMessage::LinkUp {
        link: number,
        peer: link.peer,
        dialed_by_us: link.dialed_by_us,
        addresses,
        exporter: KeyExporter(Arc::downgrade(&stream.0)),
        commands,
    };
    if mailbox.send(up).await.is_err() {
        return;
    }
    let room = LoopMessage::LinkRoom {
        link: number,
        bytes: LEAST_ROOM,
    };
    let _ = mailbox.send(room).await;
    if !link.first.is_empty() {
        let _ = mailbox
            .input(EngineInput::LinkReceived {
                link: number,
                bytes: link.first,
            })
            .await;
    }
    let (end, ended) = tokio::select! {
        ended = read(number, stream.clone(), &mailbox) => ended,
        ended = write(number, stream.clone(), orders, &mailbox) => ended,
    };
    tracing::debug!(link = number.0, ended, "link closed");
    let _ = mailbox
        .input(EngineInput::LinkDown { link: number, end })
        .await;
}

/// Classifies the end of a link that failed with this error. A time-out, or an ICMP error that the
/// kernel reports at one, is the path's; the others are a FIN without a goodbye, or a RST, from the
/// peer's host.
fn end_of(error: &io::Error) -> LinkEnd {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => LinkEnd::ClosedByPeer,
        _ => LinkEnd::Lost,
    }
}

async fn read(
    link: LinkId,
    mut reader: SharedStream,
    mailbox: &LoopMailbox,
) -> (LinkEnd, &'static str) {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match reader.read(&mut buffer).await {
            Ok(0) => return (LinkEnd::ClosedByPeer, "the peer closed the link"),
            Err(error) => {
                tracing::debug!(link = link.0, %error, "reading a link failed");
                return (end_of(&error), "reading failed");
            }
            Ok(length) => {
                let bytes = Bytes::copy_from_slice(&buffer[..length]);
                let received = EngineInput::LinkReceived { link, bytes };
                if mailbox.input(received).await.is_err() {
                    return (LinkEnd::Lost, "the node stopped");
                }
            }
        }
    }
}

async fn write(
    link: LinkId,
    mut writer: SharedStream,
    mut orders: mpsc::UnboundedReceiver<LinkCommand>,
    mailbox: &LoopMailbox,
) -> (LinkEnd, &'static str) {
    let mut room = SendRoom::new();
    // Pieces ordered while another was being written; the room bounds their number.
    let mut waiting = VecDeque::new();
    let mut closing = None;
    loop {
        let order = match waiting.pop_front() {
            Some(bytes) => LinkCommand::Send(bytes),
            None if closing.is_some() => LinkCommand::Close,
            None => match orders.recv().await {
                Some(order) => order,
                None => break,
            },
        };
        match order {
            LinkCommand::Send(bytes) => {
                let started = Instant::now();
                let sent = async {
                    writer.write_all(&bytes).await?;
                    writer.flush().await
                };
                tokio::pin!(sent);
                let sent = loop {
                    // A peer that does not read must not keep a link that is to be closed.
                    tokio::select! {
                        sent = &mut sent => break sent,
                        Some(order) = orders.recv(), if closing.is_none() => match order {
                            LinkCommand::Send(bytes) => waiting.push_back(bytes),
                            LinkCommand::Close => closing = Some(Instant::now() + CLOSE_TIMEOUT),
                        },
                        () = tokio::time::sleep_until(closing.unwrap_or(started)),
                            if closing.is_some() => {
                                return (LinkEnd::Lost, "this node closed the link before all data was sent");
                            }
                    }
                };
                if let Err(error) = sent {
                    tracing::debug!(link = link.0, %error, "writing a link failed");
                    return (end_of(&error), "writing failed");
                }
                let granted = room.taken(bytes.len(), started.elapsed());
                if granted > 0 {
                    let message = LoopMessage::LinkRoom {
                        link,
                        bytes: granted,
                    };
                    if mailbox.send(message).await.is_err() {
                        return (LinkEnd::Lost, "the node stopped");
                    }
                }
            }
            LinkCommand::Close => break,
        }
    }
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, writer.shutdown()).await;
    (LinkEnd::Lost, "this node closed the link")
}

/// The number of bytes that may stand between the engine and the socket.
#[derive(Debug)]
struct SendRoom {
    size: usize,
    /// Granted to the loop and not yet taken by the socket.
    outstanding: usize,
}

impl SendRoom {
    /// The first [`LEAST_ROOM`] bytes are granted.
    fn new() -> Self {
        Self {
            size: LEAST_ROOM,
            outstanding: LEAST_ROOM,
        }
    }

    /// Records that the socket took `length` bytes within `took`. Returns the number of bytes to
    /// grant.
    fn taken(&mut self, length: usize, took: Duration) -> usize {
        // Only a piece that used a good part of the room says anything about it.
        let tells = length * 4 >= self.size;
        if tells && took < FAST {
            self.size = (self.size * 2).min(MOST_ROOM);
        } else if tells && took > SLOW {
            self.size = (self.size / 2).max(LEAST_ROOM);
        }
        self.outstanding = self.outstanding.saturating_sub(length);
        let granted = self.size.saturating_sub(self.outstanding);
        self.outstanding += granted;
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_room_follows_the_socket_within_bounds() {
        let mut room = SendRoom::new();
        // What the loop has been granted and not yet used.
        let mut usable = LEAST_ROOM;
        for took_ms in [0, 0, 0, 0, 0, 0, 3, 20, 20, 20, 20, 20, 20, 0, 20, 0] {
            let length = usable.min(64 * 1024);
            usable = usable - length + room.taken(length, Duration::from_millis(took_ms));
            assert!((LEAST_ROOM..=MOST_ROOM).contains(&room.size));
            assert!((1..=MOST_ROOM).contains(&usable), "{usable}");
        }
        assert!(usable <= 2 * LEAST_ROOM);
    }
}
