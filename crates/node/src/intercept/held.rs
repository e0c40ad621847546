//! Connections whose SYN is held until the server has answered, so that the client sees the
//! server's behaviour: an open port, a refusal, or silence.
//!
//! ```text
//!   SYN ─► rules: log to this node, tproxy to a mute listener, which drops it
//!            │
//!            ▼ copy
//!          Asked ─► engine ─► far node ─► server
//!                                │
//!          connected ◄───────────┤   the SYN enters the kernel again by the loopback device, marked,
//!             │                  │   and the rules hand it to the listener of interception
//!             ▼                  │
//!          SYN-ACK to client     └─► refused: RST to the client; unreachable: ICMP to the client;
//!                                    anything else: nothing, and the client's next SYN finds the
//!                                    server bypassed
//! ```
//!
//! The kernel answers a SYN as soon as it reaches a listener, so a held SYN must not reach one. The
//! mute listener makes the hold end with this process: without it tproxy does not match, and the
//! SYN passes.
//!
//! A SYN that a client repeats meanwhile is already held. The rules hold a limited number of SYNs
//! of each client and each second; the others go to their servers directly. Where that limit is not
//! enough, a SYN is not held here, and its client is accepted at once.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use engine::{ArrivalMethod, ConnectFailure, EngineInput};
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use super::firewall_watch::AddressFamily;
use super::packet_log::PacketLog;
use super::rules::{ANSWERED_PREFIX, HELD_PREFIX};
use super::surviving::{LOOK_AT_CHECKS, SurvivingHandle};
use super::syn_packet::SynPacket;
use crate::config::InterceptConfig;
use crate::connections::ConnectionNumbers;
use crate::lan;
use crate::mailbox::LoopMailbox;
use crate::repeats;
use crate::sys;

/// SYNs that are held at a time; each costs about 1 kB here and a flow in the engine.
const HELD_MAX: usize = 2_048;
/// The limit of held SYNs of one client: the SYNs that the rules admit while a silent server is
/// awaited.
const HELD_PER_CLIENT: usize = 256;
/// A client whose SYN was let in completes its handshake within this time, with two lost packets on the
/// way.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The kernel's settings of the devices.
const SETTINGS: &str = "/proc/sys/net/ipv4/conf";

/// The client's address and the server's.
type AddressPair = (SocketAddr, SocketAddr);

/// The ports of the mute listeners, for the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldPorts {
    /// On 127.0.0.1; also the group that packets are logged to.
    pub ipv4: u16,
    /// The port on ::1, where there is IPv6.
    pub ipv6: Option<u16>,
}

/// The sockets that are opened while the process has all its privileges.
#[derive(Debug)]
pub(crate) struct HoldSockets {
    pub(crate) ports: HoldPorts,
    log: PacketLog,
    packets: PacketSockets,
    /// They only have to exist.
    mute: Vec<Socket>,
}

impl HoldSockets {
    /// Opens listeners, log and sockets; logs why SYNs cannot be held where they cannot.
    pub(crate) fn open_or_warn(config: &InterceptConfig) -> Option<Self> {
        let opened = Self::open(config);
        let opened = opened.inspect_err(|error| {
            tracing::warn!(
                %error,
                "the node accepts every intercepted client before the server answers, and ignores `accept`, \
                 because it cannot hold SYNs on this machine; holding needs a kernel with nfnetlink_log, \
                 and packet sockets (AF_PACKET in RestrictAddressFamilies= of the systemd unit)"
            );
        });
        opened.ok()
    }

    fn open(config: &InterceptConfig) -> io::Result<Self> {
        let mark = u32::from(config.mark) << 24;
        if is_reverse_path_strict() {
            admit_by_loopback();
        }
        let (ipv4, v4_port) = mute_listener(Ipv4Addr::LOCALHOST.into())?;
        let ipv6 = mute_listener(Ipv6Addr::LOCALHOST.into()).ok();
        let ports = HoldPorts {
            ipv4: v4_port,
            ipv6: ipv6.as_ref().map(|(_, port)| *port),
        };
        let mute = std::iter::once(ipv4).chain(ipv6.map(|(socket, _)| socket));
        Ok(Self {
            log: PacketLog::bind(ports.ipv4)?,
            packets: PacketSockets::open(mark)?,
            mute: mute.collect(),
            ports,
        })
    }
}

/// Returns true if the kernel drops packets that arrive on another device than the one towards
/// their source (strict reverse path filtering).
fn is_reverse_path_strict() -> bool {
    let is_strict = |device: &str| {
        let setting = std::fs::read_to_string(format!("{SETTINGS}/{device}/rp_filter"));
        setting.is_ok_and(|text| text.trim() == "1")
    };
    is_strict("all") || is_strict("lo")
}

/// Has the kernel take the packets that are let in by the loopback device, whose source is a client's. Both
/// settings concern that device alone: the source is looked up with the packet's mark, which leads to the
/// loopback device itself.
fn admit_by_loopback() {
    for setting in ["accept_local", "src_valid_mark"] {
        if let Err(error) = std::fs::write(format!("{SETTINGS}/lo/{setting}"), "1") {
            tracing::warn!(
                %error,
                setting = format!("net.ipv4.conf.lo.{setting}"),
                "a kernel setting cannot be changed, and with rp_filter = 1 clients that are accepted after \
                 the server wait one second longer; set the kernel setting to 1, or set rp_filter to 2"
            );
        }
    }
}

/// A listener that the kernel hands SYNs to and that drops them unanswered.
fn mute_listener(address: IpAddr) -> io::Result<(Socket, u16)> {
    let address = SocketAddr::new(address, 0);
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    if domain == Domain::IPV4 {
        socket.set_ip_transparent_v4(true)?;
    } else {
        socket.set_only_v6(true)?;
        socket.set_ip_transparent_v6(true)?;
    }
    // A program that returns 0 has every packet dropped before TCP looks at it.
    let drop_all = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
    socket.attach_filter(&[drop_all])?;
    socket.bind(&address.into())?;
    socket.listen(1)?;
    let bound = socket.local_addr()?.as_socket();
    Ok((socket, bound.map_or(0, |bound| bound.port())))
}

/// Sockets that send whole packets.
#[derive(Debug)]
struct PacketSockets {
    /// Into the loopback device, with the mark of interception.
    loopback: Socket,
    /// To hosts.
    ipv4: Socket,
    ipv6: Option<Socket>,
}

impl PacketSockets {
    fn open(mark: u32) -> io::Result<Self> {
        let loopback = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
        loopback.set_mark(mark)?;
        loopback.set_nonblocking(true)?;
        let raw = |domain| {
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
            socket.set_nonblocking(true)?;
            Ok::<_, io::Error>(socket)
        };
        Ok(Self {
            loopback,
            ipv4: raw(Domain::IPV4)?,
            ipv6: raw(Domain::IPV6).ok(),
        })
    }

    /// Has the SYN arrive once more, this time for the listener of interception.
    fn let_in(&self, syn: &SynPacket) -> io::Result<()> {
        let ethertype = match syn.source.ip() {
            IpAddr::V4(_) => libc::ETH_P_IP,
            IpAddr::V6(_) => libc::ETH_P_IPV6,
        };
        let address = sys::loopback_packet_address(ethertype as u16)?;
        self.loopback.send_to(&syn.with_checksum(), &address)?;
        Ok(())
    }

    /// Sends the client of the SYN a packet.
    fn answer(&self, syn: &SynPacket, packet: &[u8]) -> io::Result<()> {
        self.send(syn.source.ip(), packet)
    }

    /// Sends a host an IP packet.
    fn send(&self, host: IpAddr, packet: &[u8]) -> io::Result<()> {
        let socket = match host {
            IpAddr::V4(_) => &self.ipv4,
            IpAddr::V6(_) => self.ipv6.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        // The packet has the port; raw sockets for IPv6 refuse another.
        socket.send_to(packet, &SockAddr::from(SocketAddr::new(host, 0)))?;
        Ok(())
    }
}

/// The SYNs that are held. Clones are handles to the same ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldSyns {
    table: Arc<Mutex<HeldTable>>,
    /// The connections that pass by, whose packets arrive on the same socket.
    pub(super) surviving: SurvivingHandle,
}

#[derive(Debug, Default)]
struct HeldTable {
    /// The tasks that wait for the connection of an admitted SYN.
    held: HashMap<AddressPair, Option<oneshot::Sender<TcpStream>>>,
    per_client: HashMap<IpAddr, usize>,
    /// Families whose handshakes do not end here.
    withdrawn: BTreeSet<AddressFamily>,
}

/// The result of adding a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SynPlacement {
    Held,
    HeldAlready,
    Full,
}

impl HeldSyns {
    /// Hands an accepted connection to the task that waits for it, or gives it back.
    pub(super) fn hand_over(&self, pair: AddressPair, stream: TcpStream) -> Option<TcpStream> {
        let waiting = self.lock().held.get_mut(&pair).and_then(Option::take);
        match waiting {
            Some(waiting) => waiting.send(stream).err(),
            None => Some(stream),
        }
    }

    fn take_place(&self, pair: AddressPair) -> SynPlacement {
        let mut table = self.lock();
        if table.held.contains_key(&pair) {
            return SynPlacement::HeldAlready;
        }
        let own = table.per_client.get(&pair.0.ip()).copied().unwrap_or(0);
        if table.held.len() >= HELD_MAX || own >= HELD_PER_CLIENT {
            return SynPlacement::Full;
        }
        table.per_client.insert(pair.0.ip(), own + 1);
        table.held.insert(pair, None);
        SynPlacement::Held
    }

    /// The connection of a SYN that is let in; `None` where its handshake would not end.
    fn expect(&self, pair: AddressPair) -> Option<oneshot::Receiver<TcpStream>> {
        let mut table = self.lock();
        if table.withdrawn.contains(&AddressFamily::of(pair.0.ip())) {
            return None;
        }
        let (sender, stream) = oneshot::channel();
        *table.held.get_mut(&pair)? = Some(sender);
        Some(stream)
    }

    /// Stops holding the clients of a family whose intercepted connections the packet filter drops:
    /// as long as the far node's connection to the server exists, the server takes a client's own
    /// SYN for one of that connection.
    pub(super) fn withdraw(&self, family: AddressFamily) {
        let mut table = self.lock();
        table.withdrawn.insert(family);
        for (pair, waiting) in &mut table.held {
            if AddressFamily::of(pair.0.ip()) == family {
                *waiting = None;
            }
        }
    }

    /// Clients of a family are waited for again.
    pub(super) fn restore(&self, family: AddressFamily) {
        self.lock().withdrawn.remove(&family);
    }

    fn release(&self, pair: AddressPair) {
        let mut table = self.lock();
        if table.held.remove(&pair).is_none() {
            return;
        }
        let client = pair.0.ip();
        match table.per_client.get_mut(&client) {
            Some(own) if *own > 1 => *own -= 1,
            Some(_) | None => {
                table.per_client.remove(&client);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HeldTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handles the logged packets until dropped.
pub(crate) async fn attend(
    hold: HoldSockets,
    held: HeldSyns,
    connections: ConnectionNumbers,
    mailbox: LoopMailbox,
) {
    let packets = Arc::new(hold.packets);
    let _mute = hold.mute;
    let mut reader = match hold.log.into_reader() {
        Ok(reader) => reader,
        Err(error) => {
            tracing::error!(%error, "held connections cannot be intercepted; the node bypasses them");
            return;
        }
    };
    let mut checks = tokio::time::interval(LOOK_AT_CHECKS);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let send = |host: IpAddr, packet: &[u8]| packets.send(host, packet);
    loop {
        let logged = tokio::select! {
            logged = reader.read() => logged,
            _ = checks.tick() => {
                held.surviving.tick(send);
                continue;
            }
        };
        let logged = match logged {
            Ok(logged) => logged,
            Err(error) => {
                tracing::error!(%error, "held connections cannot be intercepted any more; the node bypasses them");
                return;
            }
        };
        let mut answered = Vec::new();
        for one in logged {
            if held.surviving.observe(&one, send) {
                continue;
            }
            let Some(syn) = SynPacket::parse(one.packet) else {
                continue;
            };
            match (one.prefix, syn.is_answer) {
                (HELD_PREFIX, false) => take(syn, &packets, &held, &connections, &mailbox),
                (ANSWERED_PREFIX, true) => answered.push(syn.source),
                _ => {}
            }
        }
        for server in answered {
            let _ = mailbox
                .input(EngineInput::BypassedServerAnswered { server })
                .await;
        }
    }
}

fn take(
    syn: SynPacket,
    packets: &Arc<PacketSockets>,
    held: &HeldSyns,
    connections: &ConnectionNumbers,
    mailbox: &LoopMailbox,
) {
    let pair = (syn.source, syn.destination);
    match held.take_place(pair) {
        SynPlacement::Held => {}
        SynPlacement::HeldAlready => return,
        SynPlacement::Full => {
            warn_if_failed(packets.let_in(&syn));
            return;
        }
    }
    // Where there are none, it waits in the kernel's queue.
    let Some(taken) = connections.descriptors_now() else {
        held.release(pair);
        warn_if_failed(packets.let_in(&syn));
        return;
    };
    let (packets, held, waiting) = (Arc::clone(packets), held.clone(), mailbox.clone());
    let via = ArrivalMethod::Transparent;
    connections.asks(
        taken,
        pair.0,
        pair.1,
        via,
        mailbox,
        move |mut asked| async move {
            match asked.outcome().await {
                lan::ClientOutcome::Admitted => {
                    let stream = match held.expect(pair) {
                        Some(arrived) => {
                            warn_if_failed(packets.let_in(&syn));
                            let arrived = tokio::time::timeout(HANDSHAKE, arrived).await;
                            arrived.ok().and_then(Result::ok)
                        }
                        None => None,
                    };
                    held.release(pair);
                    // Its runtime is another one.
                    let stream = stream.map(TcpStream::into_std);
                    match stream.map(|stream| stream.and_then(TcpStream::from_std)) {
                        Some(Ok(stream)) => asked.serve(stream, Bytes::new(), waiting).await,
                        Some(Err(_)) | None => asked.abort(&waiting).await,
                    }
                }
                lan::ClientOutcome::Declined(ConnectFailure::Refused) => {
                    held.release(pair);
                    warn_if_failed(packets.answer(&syn, &syn.refusal()));
                }
                lan::ClientOutcome::Declined(ConnectFailure::Unreachable) => {
                    held.release(pair);
                    warn_if_failed(packets.answer(&syn, &syn.unreachable()));
                }
                lan::ClientOutcome::Declined(_) | lan::ClientOutcome::Ended => held.release(pair),
            }
        },
    );
}

fn warn_if_failed(sent: io::Result<()>) {
    if let Err(error) = sent {
        repeats::HELD_UNTOLD.tell(None, || {
            tracing::warn!(%error, "the node could not send a held client the answer of its server");
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn pair(client: u8, port: u16) -> AddressPair {
        let client = SocketAddr::from(([198, 18, 1, client], port));
        (client, SocketAddr::from(([198, 18, 2, 2], 80)))
    }

    #[test]
    fn a_syn_that_comes_again_is_held_already() {
        let held = HeldSyns::default();
        assert_eq!(held.take_place(pair(2, 1)), SynPlacement::Held);
        assert_eq!(held.take_place(pair(2, 1)), SynPlacement::HeldAlready);
        held.release(pair(2, 1));
        assert_eq!(held.take_place(pair(2, 1)), SynPlacement::Held);
    }

    #[test]
    fn one_client_leaves_room_for_others() {
        let held = HeldSyns::default();
        for port in 0..HELD_PER_CLIENT as u16 {
            assert_eq!(held.take_place(pair(2, port)), SynPlacement::Held);
        }
        assert_eq!(held.take_place(pair(2, 9_999)), SynPlacement::Full);
        assert_eq!(held.take_place(pair(3, 1)), SynPlacement::Held);
        held.release(pair(2, 0));
        assert_eq!(held.take_place(pair(2, 9_999)), SynPlacement::Held);
        for port in 0..HELD_PER_CLIENT as u16 {
            held.release(pair(2, port));
        }
        held.release(pair(2, 9_999));
        held.release(pair(3, 1));
        assert!(held.lock().per_client.is_empty());
    }

    #[test]
    fn clients_of_a_withdrawn_family_are_not_held() {
        let held = HeldSyns::default();
        let earlier = pair(2, 1);
        held.take_place(earlier);
        let mut arrived = held.expect(earlier).unwrap();
        held.withdraw(AddressFamily::Ipv6);
        assert_eq!(arrived.try_recv().unwrap_err(), TryRecvError::Empty);
        held.withdraw(AddressFamily::Ipv4);
        assert_eq!(arrived.try_recv().unwrap_err(), TryRecvError::Closed);
        held.take_place(pair(2, 2));
        assert!(held.expect(pair(2, 2)).is_none());
        held.restore(AddressFamily::Ipv4);
        assert!(held.expect(pair(2, 2)).is_some());
    }

    #[test]
    fn all_clients_together_have_a_limit() {
        let held = HeldSyns::default();
        let shares = (HELD_MAX / HELD_PER_CLIENT) as u8;
        for client in 0..shares {
            for port in 0..HELD_PER_CLIENT as u16 {
                assert_eq!(held.take_place(pair(client, port)), SynPlacement::Held);
            }
        }
        assert_eq!(held.take_place(pair(shares, 1)), SynPlacement::Full);
    }
}
