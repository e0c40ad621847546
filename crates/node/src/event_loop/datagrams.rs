//! The UDP side of links: the sockets of their datagram paths, and the packets that leave.
//!
//! A path's keys come from its link's TLS connection. The path ends with the link or, where it
//! carries flows, some time later. Packets are sent from the loop's own thread, which makes them: a
//! wait for another thread would defeat the pacing.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::BytesMut;
use engine::{EngineInput, LinkId};
use tokio::task::AbortHandle;
use tunnel::DatagramAgreement;
use tunnel::packet::{
    ChallengeSeed, CipherSuite, ConnectionId, ConnectionIds, KeyContext, KeyLimits, PathSecret,
    TlsRole,
};
use tunnel::transport::{PathKeys, TransmitBatch};
use tunnel::wire::{DATAGRAM_VERSION, DatagramOffer};
use vocab::Time;

use super::EventLoop;
use crate::mailbox::{LoopMailbox, LoopMessage};
use crate::sys;
use crate::wan::{
    self, KeyExporter, LinkAddresses, LinkPaths, PacketTrain, SendRefusal, WanSocket,
};

/// Batches of packets that a path sends before other work is looked at: some milliseconds.
const SENDS: usize = 64;
/// The largest packet's payload: jumbo frames of 9,000 bytes; larger packets gain little.
const DATAGRAM_MAX: u16 = 8_972;

/// A UDP socket that is read, on this thread, until it is dropped.
pub(super) struct ReadSocket {
    socket: Arc<WanSocket>,
    reader: AbortHandle,
}

impl ReadSocket {
    /// Begins to read; to be called inside the runtime of the loop.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn new(
        socket: std::net::UdpSocket,
        paths: &LinkPaths,
        mailbox: &LoopMailbox,
    ) -> io::Result<Self> {
        let socket = Arc::new(WanSocket::new(socket)?);
        let reading = wan::receive(Arc::clone(&socket), paths.clone(), mailbox.clone());
        let reader = tokio::spawn(reading).abort_handle();
        Ok(Self { socket, reader })
    }
}

impl Drop for ReadSocket {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The UDP side of a link.
pub(super) struct LinkDatagrams {
    socket: Arc<WanSocket>,
    /// Reads the socket, where it belongs to this link alone.
    _reader: Option<ReadSocket>,
    /// The connection id at the beginning of packets to this node.
    connection_id: ConnectionId,
    /// The session may have packets for it.
    wants: bool,
    /// Packets that the kernel had no room for.
    waiting: Option<(TransmitBatch, BytesMut)>,
}

impl LinkDatagrams {
    pub(super) fn connection_id(&self) -> ConnectionId {
        self.connection_id
    }

    /// The session may have packets for it.
    pub(super) fn wants_transmit(&mut self) {
        self.wants = true;
    }

    /// The session may have packets for it, and the kernel room for them.
    fn is_ready(&self) -> bool {
        self.wants && self.waiting.is_none()
    }
}

impl EventLoop {
    /// Opens a socket for the datagram path of a link. Returns the offer for the peer; `None` where
    /// this node takes no UDP.
    pub(super) fn open_datagrams(
        &self,
        addresses: &LinkAddresses,
        dialed_by_us: bool,
    ) -> io::Result<Option<(LinkDatagrams, DatagramOffer)>> {
        if !self.parts.config.wan.udp {
            return Ok(None);
        }
        let (socket, reader) = if dialed_by_us {
            let socket = wan::bind(SocketAddr::new(addresses.local.ip(), 0))?;
            let read = ReadSocket::new(socket, &self.paths, &self.parts.mailbox)?;
            (Arc::clone(&read.socket), Some(read))
        } else {
            let Some(read) = &self.udp else {
                return Ok(None);
            };
            (Arc::clone(&read.socket), None)
        };
        let mut random = [0; ConnectionId::LENGTH + 16];
        sys::fill_random(&mut random)?;
        let (id, nonce) = random.split_at(ConnectionId::LENGTH);
        let connection_id = ConnectionId(id.try_into().map_err(io::Error::other)?);
        let offer = DatagramOffer {
            version: DATAGRAM_VERSION,
            suite: preferred_suite(),
            connection_id,
            nonce: nonce.try_into().map_err(io::Error::other)?,
            port: socket.port(),
        };
        let datagrams = LinkDatagrams {
            socket,
            _reader: reader,
            connection_id,
            wants: false,
            waiting: None,
        };
        Ok(Some((datagrams, offer)))
    }

    /// Gives the engine the secrets that a datagram path needs from the link's TLS connection.
    pub(super) fn start_datagrams(&mut self, link: LinkId, agreement: DatagramAgreement) {
        let now = self.clock.now();
        let Some(slot) = self.links.get(&link) else {
            return;
        };
        let DatagramAgreement {
            role,
            context,
            connection_ids,
            port,
        } = agreement;
        let remote = slot.addresses.remote;
        match keys(now, &slot.exporter, role, context, connection_ids) {
            Ok(keys) => {
                let ready = EngineInput::DatagramsReady {
                    link,
                    keys: Box::new(keys),
                    // Who was dialled is where the link is; the other may be behind a translator.
                    peer: (role == TlsRole::Dialler).then(|| SocketAddr::new(remote.ip(), port)),
                    datagram_max: datagram_max(&slot.addresses),
                };
                self.engine.handle(now, ready);
            }
            Err(error) => {
                tracing::warn!(
                    error,
                    "no keys for the UDP path of a link; its flows travel by TLS only"
                );
            }
        }
    }

    /// Gives the engine packets that arrived by UDP.
    pub(super) fn take_train(&mut self, now: Time, train: PacketTrain) {
        let datagrams = EngineInput::Datagrams {
            link: train.link,
            from: train.from,
            codepoint: train.codepoint,
            segment: train.segment,
            bytes: train.bytes,
        };
        self.engine.handle(now, datagrams);
    }

    /// Sends the packets that the datagram paths release now. Returns true if there are more, so
    /// that other work can run in between.
    pub(super) fn serve_datagrams(&mut self) -> bool {
        let ready: Vec<(LinkId, usize)> = self
            .links
            .iter()
            .filter_map(|(link, slot)| {
                let datagrams = slot.datagrams.as_ref().filter(|path| path.is_ready())?;
                let packet = usize::from(datagram_max(&slot.addresses));
                Some((*link, datagrams.socket.packets_max(packet)))
            })
            .collect();
        let mut has_more = false;
        for (link, packets_max) in ready {
            for _ in 0..SENDS {
                let is_full = self.serve_path(link, packets_max);
                self.drain();
                let is_ready = self.datagrams(link).is_some_and(|path| path.is_ready());
                has_more |= is_ready;
                // Behind a full batch little is left of what a host's connection brought at once. It
                // goes in the next, with what the connection brings in its turn.
                if is_full || !is_ready {
                    break;
                }
            }
        }
        has_more
    }

    /// Sends a batch of a path's packets, if it lets any out; whether there were as many as it takes.
    fn serve_path(&mut self, link: LinkId, packets_max: usize) -> bool {
        let now = self.clock.now();
        let mut packets = std::mem::take(&mut self.packets);
        packets.clear();
        let transmit = self
            .engine
            .transmit_datagrams(now, link, packets_max, &mut packets);
        let Some(transmit) = transmit else {
            self.packets = packets;
            if let Some(datagrams) = self.datagrams(link) {
                datagrams.wants = false;
            }
            return false;
        };
        self.send_datagrams(link, transmit, packets);
        transmit.bytes.div_ceil(transmit.segment) >= packets_max
    }

    fn send_datagrams(&mut self, link: LinkId, transmit: TransmitBatch, packets: BytesMut) {
        let mailbox = self.parts.mailbox.clone();
        let Some(slot) = self.links.get_mut(&link) else {
            return;
        };
        let source = slot.addresses.local.ip();
        let Some(datagrams) = &mut slot.datagrams else {
            return;
        };
        match datagrams.socket.send(&transmit, &packets, source) {
            Ok(()) => {}
            Err(SendRefusal::Full) => {
                datagrams.waiting = Some((transmit, packets));
                let socket = Arc::clone(&datagrams.socket);
                tokio::spawn(async move {
                    let _ = socket.writable().await;
                    let _ = mailbox.send(LoopMessage::DatagramRoom { link }).await;
                });
                return;
            }
            // What does not leave is lost, which is told by nobody acknowledging it.
            Err(SendRefusal::Failed(error)) => {
                tracing::debug!(link = link.0, %error, to = %transmit.to, "the kernel did not send UDP packets");
            }
        }
        self.packets = packets;
    }

    pub(super) fn send_waiting(&mut self, link: LinkId) {
        let waiting = self.datagrams(link).and_then(|path| path.waiting.take());
        if let Some((transmit, packets)) = waiting {
            self.send_datagrams(link, transmit, packets);
        }
    }

    fn datagrams(&mut self, link: LinkId) -> Option<&mut LinkDatagrams> {
        self.links.get_mut(&link)?.datagrams.as_mut()
    }
}

/// The suite that this processor is faster at.
fn preferred_suite() -> CipherSuite {
    #[cfg(target_arch = "x86_64")]
    let has_aes = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    if has_aes {
        CipherSuite::Aes256Gcm
    } else {
        CipherSuite::ChaCha20Poly1305
    }
}

/// The largest UDP payload that the link's interface takes.
fn datagram_max(addresses: &LinkAddresses) -> u16 {
    let headers = match addresses.remote.ip().to_canonical() {
        IpAddr::V4(_) => 28,
        IpAddr::V6(_) => 48,
    };
    let payload = addresses.mtu.saturating_sub(headers);
    u16::try_from(payload).unwrap_or(u16::MAX).min(DATAGRAM_MAX)
}

fn keys(
    now: Time,
    exporter: &KeyExporter,
    role: TlsRole,
    context: KeyContext,
    connection_ids: ConnectionIds,
) -> Result<PathKeys, String> {
    let limits = KeyLimits::of(context.suite);
    let export = |room: &mut [u8], label: &'static [u8], context: &[u8]| {
        exporter.export(room, label, context)
    };
    let mut secret =
        PathSecret::export(role, context, export).map_err(|error| error.to_string())?;
    let (sealer, opener) = secret
        .path(now, 0, connection_ids, limits)
        .map_err(|error| error.to_string())?;
    let mut filled = Ok(());
    let challenges = ChallengeSeed::new(|room| filled = sys::fill_random(room));
    filled.map_err(|error| error.to_string())?;
    Ok(PathKeys {
        sealer,
        opener,
        challenges,
    })
}
