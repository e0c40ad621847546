//! One node: an engine, its connections on the LAN, and its two ways over the link.
//!
//! ```text
//!  LAN segments ◄─► lan (TCP) ◄─► engine ◄─► session: stream (TCP) ─┐
//!                                            session: datagrams ────┴─► packets of the link
//! ```
//! The shell of a real node does the same with the kernel's sockets. It accepts connections to any
//! address, as interception does, and opens connections with the client's address.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use accelerate::registry::AcceleratorEntry;
use accelerate::settings::{LocatedValue, SettingValue, SettingsTable, TableSetting};
use accelerate::shared::memory_files::MemoryFiles;
use accelerate::{http, smb};
use bytes::{Bytes, BytesMut};
use engine::{
    ArrivalMethod, ConnectFailure, ConnectionId, Engine, EngineConfig, EngineInput, EngineLimits,
    EngineOutput, FlowPolicy, LinkEnd, LinkId, PeerConfig,
};
use tcp::{ConnectionConfig, ConnectionNumber, FlowAddresses};
use tunnel::DatagramAgreement;
use tunnel::fec::RepairMode;
use tunnel::packet::{self, ChallengeSeed, CipherSuite};
use tunnel::transport::{EcnMarking, PathSettings};
use tunnel::wire::{DATAGRAM_VERSION, DatagramOffer};
use vocab::{NodeId, SeededRandom, Time};

use crate::host::{HostSockets, SocketEvent};
use crate::packet::datagram;
use crate::path_keys::{LAN_ADDRESSES, LANS, public_path_keys, site_surroundings};
use crate::scripts::MAILBOX_PORT;
use crate::site::{NodeCorrection, NodeSettings};

/// Index of the client's node, and of the server's.
pub(crate) const NEAR: usize = 0;
pub(crate) const FAR: usize = 1;

/// Addresses towards the link; the port is that of the session.
const LINK_ADDRESSES: [Ipv4Addr; 2] =
    [Ipv4Addr::new(198, 18, 11, 2), Ipv4Addr::new(198, 18, 12, 2)];
const SESSION_PORT: u16 = 4433;
/// The one link between the nodes.
const LINK: LinkId = LinkId(1);
/// Time on the calendar at the start, since 1970.
pub(crate) const CALENDAR_START: Duration = Duration::from_secs(1_767_225_600);
/// UDP payload of a full packet.
const DATAGRAM_MAX: u16 = 1_472;
/// Packets of one system call.
const BATCH: usize = 16;
/// Bytes that the session hands to its stream at a time.
const TRANSMIT_BYTES: usize = 16 * 1024;
/// Unsent bytes in the stream at most (TCP_NOTSENT_LOWAT).
const UNSENT_MOST: u64 = 64 * 1024;

/// A node.
pub(crate) struct SimulatedNode {
    own: usize,
    engine: Engine,
    pub(crate) lan: HostSockets,
    pub(crate) stream_host: HostSockets,
    stream: Option<ConnectionNumber>,
    is_up: bool,
    connections: BTreeMap<ConnectionId, ConnectionNumber>,
    ids: BTreeMap<ConnectionNumber, ConnectionId>,
    opening: BTreeMap<ConnectionNumber, ConnectionId>,
    accepted: u64,
    files: BTreeMap<u8, MemoryFiles>,
    /// Packets for the link.
    packets: VecDeque<Bytes>,
    /// Memory for the packets of one system call.
    batch: BytesMut,
    wants_stream: bool,
    wants_datagrams: bool,
    /// True while the peer's networks are intercepted.
    intercepts: bool,
    carries_datagrams: bool,
}

impl SimulatedNode {
    pub(crate) fn new(own: usize, settings: NodeSettings, seed: u64) -> Self {
        let stream = |number| SeededRandom::for_stream(seed, number + own as u64 * 8);
        let lan_address = LAN_ADDRESSES[own].parse();
        let lan_address: IpAddr = lan_address.expect("it is an address");
        let config = ConnectionConfig::default();
        let mut node = Self {
            own,
            engine: Engine::new(configuration(own, settings), Time::ZERO, stream(1)),
            lan: HostSockets::new(lan_address, config, stream(2)).without_credit(),
            stream_host: HostSockets::new(
                LINK_ADDRESSES[own].into(),
                ConnectionConfig {
                    nagle: false,
                    ..config
                },
                stream(3),
            ),
            stream: None,
            is_up: false,
            connections: BTreeMap::new(),
            ids: BTreeMap::new(),
            opening: BTreeMap::new(),
            accepted: 0,
            files: BTreeMap::new(),
            packets: VecDeque::new(),
            batch: BytesMut::new(),
            wants_stream: false,
            wants_datagrams: false,
            intercepts: false,
            carries_datagrams: false,
        };
        node.input(
            Time::ZERO,
            EngineInput::Surroundings(site_surroundings(own)),
        );
        let since_1970 = CALENDAR_START;
        node.input(Time::ZERO, EngineInput::Calendar { since_1970 });
        match own {
            NEAR => {
                let peer = SocketAddr::from((LINK_ADDRESSES[FAR], SESSION_PORT));
                node.stream = node.stream_host.open(peer);
            }
            _ => node.stream_host.listen(SESSION_PORT),
        }
        node
    }

    /// Accepts connections to this port of any server.
    pub(crate) fn intercept(&mut self, port: u16) {
        self.lan.listen(port);
    }

    /// Tells whether the session is up and carries its flows in datagrams.
    pub(crate) fn is_ready(&self) -> bool {
        self.carries_datagrams && (self.own == FAR || self.intercepts)
    }

    /// Empties the dictionary and the accelerators' caches.
    pub(crate) fn empty_caches(&mut self, now: Time) {
        self.input(now, EngineInput::ClearDictionary { key: None });
        let purge = EngineInput::PurgeAccelerator {
            id: 1,
            name: http::ENTRY.name.to_owned(),
            prefix: String::new(),
        };
        self.input(now, purge);
    }

    pub(crate) fn input(&mut self, now: Time, input: EngineInput) {
        self.engine.handle(now, input);
    }

    /// Takes a datagram of the session.
    pub(crate) fn take_datagram(&mut self, now: Time, from: SocketAddr, payload: &Bytes) {
        let input = EngineInput::Datagrams {
            link: LINK,
            from,
            codepoint: EcnMarking::NotEct,
            segment: payload.len(),
            bytes: BytesMut::from(&payload[..]),
        };
        self.input(now, input);
    }

    /// The next packet for the link.
    pub(crate) fn poll_packet(&mut self) -> Option<Bytes> {
        self.packets.pop_front()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let timers = [
            self.engine.poll_timeout(),
            self.lan.poll_timeout(),
            self.stream_host.poll_timeout(),
        ];
        testkit::earliest(timers)
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.lan.handle_timeout(now);
        self.stream_host.handle_timeout(now);
        if self.engine.poll_timeout().is_some_and(|due| due <= now) {
            self.engine.handle_timeout(now);
            self.wants_datagrams = self.carries_datagrams;
        }
    }

    /// Does all that can be done at this moment. Returns true if something moved.
    pub(crate) fn act(&mut self, now: Time) -> bool {
        let mut moved = false;
        while let Some(output) = self.engine.poll_output() {
            self.output(now, output);
            moved = true;
        }
        moved |= self.transmit(now);
        moved |= self.lan.flush(now);
        moved |= self.stream_host.flush(now);
        moved |= self.report_written(now);
        while let Some((number, event)) = self.lan.poll_event() {
            self.lan_event(now, number, event);
            moved = true;
        }
        while let Some((number, event)) = self.stream_host.poll_event() {
            self.stream_event(now, number, event);
            moved = true;
        }
        moved
    }

    fn transmit(&mut self, now: Time) -> bool {
        let mut moved = false;
        while self.wants_stream
            && let Some(stream) = self.stream
            && self.stream_host.unsent_bytes(now, stream) < UNSENT_MOST
        {
            let Some(bytes) = self.engine.transmit(now, LINK, TRANSMIT_BYTES) else {
                self.wants_stream = false;
                break;
            };
            self.stream_host.send(stream, bytes);
            moved = true;
        }
        if !std::mem::take(&mut self.wants_datagrams) {
            return moved;
        }
        let [own, peer] = [self.own, 1 - self.own]
            .map(|index| SocketAddrV4::new(LINK_ADDRESSES[index], SESSION_PORT));
        while let Some(batch) = self
            .engine
            .transmit_datagrams(now, LINK, BATCH, &mut self.batch)
        {
            for payload in self.batch.chunks(batch.segment) {
                self.packets.push_back(datagram(own, peer, payload));
            }
            self.batch.clear();
            moved = true;
        }
        moved
    }

    /// Tells the engine what TCP has taken.
    fn report_written(&mut self, now: Time) -> bool {
        let taken: Vec<(ConnectionId, usize)> = self
            .ids
            .iter()
            .filter_map(|(number, id)| {
                let bytes = self.lan.taken(*number);
                (bytes > 0).then_some((*id, bytes))
            })
            .collect();
        let moved = !taken.is_empty();
        for (connection, bytes) in taken {
            self.input(now, EngineInput::Written { connection, bytes });
        }
        moved
    }

    fn lan_event(&mut self, now: Time, number: ConnectionNumber, event: SocketEvent) {
        let known = self.ids.get(&number).copied();
        match (event, known) {
            (SocketEvent::Accepted, _) => self.accept(now, number),
            (SocketEvent::Opened, _) => {
                if let Some(connection) = self.opening.remove(&number) {
                    self.bind(number, connection);
                    let result = Ok(());
                    self.input(now, EngineInput::Connected { connection, result });
                }
            }
            (SocketEvent::Received(bytes), Some(connection)) => {
                self.input(now, EngineInput::Received { connection, bytes });
            }
            (SocketEvent::PeerFinished, Some(connection)) => {
                self.input(now, EngineInput::Finished { connection });
            }
            (SocketEvent::Lost, Some(connection)) => {
                self.forget(connection);
                self.input(now, EngineInput::Aborted { connection });
            }
            (SocketEvent::Lost, None) => {
                if let Some(connection) = self.opening.remove(&number) {
                    let result = Err(ConnectFailure::Refused);
                    self.input(now, EngineInput::Connected { connection, result });
                }
            }
            (SocketEvent::Received(_) | SocketEvent::PeerFinished, None) => {}
        }
    }

    fn accept(&mut self, now: Time, number: ConnectionNumber) {
        let Some(FlowAddresses { local, remote }) = self.lan.addresses(number) else {
            return;
        };
        self.accepted += 1;
        let connection = ConnectionId::Accepted(self.accepted);
        self.bind(number, connection);
        let accepted = EngineInput::Accepted {
            connection,
            client: remote,
            server: local,
            via: ArrivalMethod::Transparent,
        };
        self.input(now, accepted);
    }

    fn bind(&mut self, number: ConnectionNumber, connection: ConnectionId) {
        self.connections.insert(connection, number);
        self.ids.insert(number, connection);
    }

    fn forget(&mut self, connection: ConnectionId) -> Option<ConnectionNumber> {
        let number = self.connections.remove(&connection)?;
        self.ids.remove(&number);
        Some(number)
    }

    fn stream_event(&mut self, now: Time, number: ConnectionNumber, event: SocketEvent) {
        match event {
            SocketEvent::Accepted => {
                self.stream = Some(number);
                self.link_up(now);
            }
            SocketEvent::Opened => self.link_up(now),
            SocketEvent::Received(bytes) => {
                self.input(now, EngineInput::LinkReceived { link: LINK, bytes });
            }
            SocketEvent::PeerFinished | SocketEvent::Lost => {
                if std::mem::take(&mut self.is_up) {
                    let (link, end) = (LINK, LinkEnd::Lost);
                    self.input(now, EngineInput::LinkDown { link, end });
                }
            }
        }
    }

    fn link_up(&mut self, now: Time) {
        self.is_up = true;
        let up = EngineInput::LinkUp {
            link: LINK,
            peer: identity(1 - self.own),
            dialed_by_us: self.own == NEAR,
            offer: Some(offer(self.own)),
        };
        self.input(now, up);
    }

    fn output(&mut self, now: Time, output: EngineOutput) {
        let number = |connection| self.connections.get(&connection).copied();
        match output {
            EngineOutput::Write { connection, bytes } => {
                if let Some(number) = number(connection) {
                    self.lan.send(number, bytes);
                }
            }
            EngineOutput::FinishWrite { connection } => {
                if let Some(number) = number(connection) {
                    self.lan.finish(number);
                }
            }
            EngineOutput::ReadCredit { connection, bytes } => {
                if let Some(number) = number(connection) {
                    self.lan.add_credit(number, bytes);
                }
            }
            EngineOutput::Reset { connection } | EngineOutput::Decline { connection, .. } => {
                if let Some(number) = self.forget(connection) {
                    self.lan.abort(number);
                }
            }
            EngineOutput::ResetWhenDelivered { connection } => {
                if let Some(number) = self.forget(connection) {
                    self.lan.abort(number);
                    self.input(now, EngineInput::Aborted { connection });
                }
            }
            EngineOutput::Close { connection } => {
                if let Some(number) = self.forget(connection) {
                    self.lan.finish(number);
                }
            }
            EngineOutput::Connect {
                connection,
                client,
                server,
                ..
            } => {
                let opened = match client {
                    Some(client) => self.lan.open_from(client, server),
                    None => self.lan.open(server),
                };
                match opened {
                    Some(number) => {
                        self.opening.insert(number, connection);
                    }
                    None => {
                        let result = Err(ConnectFailure::Unreachable);
                        self.input(now, EngineInput::Connected { connection, result });
                    }
                }
            }
            EngineOutput::Transmit { .. } => self.wants_stream = true,
            EngineOutput::TransmitDatagrams { .. } => self.wants_datagrams = true,
            EngineOutput::StartDatagrams { agreement, .. } => {
                self.carries_datagrams = true;
                self.wants_datagrams = true;
                self.start_datagrams(now, *agreement);
            }
            EngineOutput::SendLast { bytes, .. } => {
                if let Some(stream) = self.stream {
                    self.stream_host.send(stream, bytes);
                }
            }
            EngineOutput::AcceleratorFile {
                accelerator,
                request,
            } => {
                let files = self.files.entry(accelerator.number).or_default();
                let completion = files.complete(request);
                self.input(
                    now,
                    EngineInput::AcceleratorFile {
                        accelerator,
                        completion,
                    },
                );
            }
            EngineOutput::Avoid { server, .. } => {
                self.input(now, EngineInput::Avoided { server });
            }
            EngineOutput::Intercept { peers } => self.intercepts = !peers.is_empty(),
            // Connections are accepted at once, a dictionary without a key has no disk, and the rest
            // concerns machines that a site does not have.
            EngineOutput::Admit { .. }
            | EngineOutput::CloseLink { .. }
            | EngineOutput::Disk(_)
            | EngineOutput::AcceleratorPurged { .. }
            | EngineOutput::Readmit { .. }
            | EngineOutput::AcceptAtOnce { .. }
            | EngineOutput::AcceptAfterServer { .. }
            | EngineOutput::BypassRoutes { .. }
            | EngineOutput::PassBy { .. }
            | EngineOutput::Event(_)
            | EngineOutput::Stopped => {}
        }
    }

    /// Starts datagrams with keys of a secret that both ends know.
    fn start_datagrams(&mut self, now: Time, agreement: DatagramAgreement) {
        let own = self.own;
        let challenges = ChallengeSeed::new(|room| room.fill(own as u8));
        let keys = public_path_keys(now, agreement, challenges);
        let peer = SocketAddr::from((LINK_ADDRESSES[FAR], SESSION_PORT));
        let ready = EngineInput::DatagramsReady {
            link: LINK,
            keys: Box::new(keys),
            peer: (own == NEAR).then_some(peer),
            datagram_max: DATAGRAM_MAX,
        };
        self.input(now, ready);
    }
}

fn identity(own: usize) -> NodeId {
    NodeId([own as u8 + 1; 32])
}

fn offer(own: usize) -> DatagramOffer {
    DatagramOffer {
        version: DATAGRAM_VERSION,
        suite: CipherSuite::Aes256Gcm,
        connection_id: packet::ConnectionId([own as u8 + 1; 8]),
        nonce: [own as u8 + 1; 16],
        port: SESSION_PORT,
    }
}

/// The configuration that the lab's nodes have.
fn configuration(own: usize, settings: NodeSettings) -> EngineConfig {
    let mut policy = FlowPolicy::default();
    let entries: [&'static AcceleratorEntry; 3] = [&smb::ENTRY, &http::ENTRY, &mapi::ENTRY];
    for entry in entries {
        let mode = match (settings.is_accelerated, entry.name) {
            (false, _) => "off",
            (true, name) if name == smb::ENTRY.name => "strict",
            (true, _) => "on",
        };
        let mut table = SettingsTable {
            settings: vec![setting("mode", SettingValue::Text(mode.to_owned()))],
        };
        if entry.name == mapi::ENTRY.name {
            let port = located(SettingValue::Number(MAILBOX_PORT.into()));
            let ports = SettingValue::List(vec![port]);
            table.settings.push(setting("ports", ports));
        }
        let settings = (entry.parse)(&table).expect("the accelerator has these settings");
        policy.accelerators.set(entry, settings);
    }
    EngineConfig {
        local: identity(own),
        peers: vec![PeerConfig {
            node: identity(1 - own),
            name: ["far", "near"][own].to_owned(),
            prefixes: vec![LANS[1 - own].parse().expect("it is a prefix")],
        }],
        serve: None,
        serve_peers_without_prefixes: false,
        limits: EngineLimits::default(),
        policy,
        dictionary: reduce::DictionaryConfig::default(),
        dictionary_key: None,
        tunnel: tunnel::SessionConfig::default(),
        datagrams: PathSettings {
            fec: match settings.correction {
                NodeCorrection::Off => RepairMode::Off,
                NodeCorrection::Auto => RepairMode::Auto,
            },
            ..PathSettings::default()
        },
    }
}

fn setting(key: &str, value: SettingValue) -> TableSetting {
    TableSetting {
        key: key.to_owned(),
        key_span: 0..0,
        value: located(value),
    }
}

/// A value that stands in no file.
fn located(value: SettingValue) -> LocatedValue {
    LocatedValue { value, span: 0..0 }
}
