//! A node with an engine, its disk, and the servers beside it; and peers, honest or hostile.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use accelerate::shared::memory_files::MemoryFiles;
use bytes::Bytes;
use engine::{
    ArrivalMethod, ConnectionId, Engine, EngineConfig, EngineInput, EngineLimits, EngineOutput,
    FlowPolicy, LinkEnd, LinkId, PeerConfig,
};
use reduce::testing::MemoryDisk;
use reduce::{DictionaryConfig, DictionaryKey};
use tunnel::wire::SessionFrame;
use tunnel::{OpenAnswer, OpenRequest, ResetReason, Session};
use vocab::{ByteCount, ByteWriter, FlowId, NodeId, SeededRandom, Time};

/// Flows that the node may have.
pub(crate) const FLOW_LIMIT: usize = 200;
/// Bytes that it may buffer in all flows.
pub(crate) const MEMORY_LIMIT: ByteCount = ByteCount::mebibytes(16);
/// Index of the hostile peer.
pub(crate) const HOSTILE: usize = 0;
/// A peer that behaves.
pub(crate) const HONEST: usize = 1;
/// A server beside the node.
pub(crate) const SERVER: ([u8; 4], u16) = ([198, 18, 1, 2], 80);
/// Messages of the flow layer: the peer asks for a repair, and answers a request.
pub(crate) const REPAIR_REQUEST: u8 = 1;

const LOCAL: NodeId = NodeId([1; 32]);
/// Bytes that one frame on the link may take in a turn.
const LINK_TURN: usize = 16_384;
/// Turns of an exchange after which it counts as an endless loop.
const MOST_TURNS: usize = 100_000;

pub(crate) struct TestSite {
    pub(crate) now: Time,
    pub(crate) engine: Engine,
    pub(crate) disk: MemoryDisk,
    pub(crate) files: MemoryFiles,
    pub(crate) peers: Vec<ScriptedPeer>,
    pub(crate) connections: BTreeMap<ConnectionId, HostConnection>,
    /// Destinations that the engine has asked to connect to since the start.
    pub(crate) connects: Vec<SocketAddr>,
    /// True if servers and clients read the data written to them.
    pub(crate) hosts_read: bool,
    links: u64,
    accepted: u64,
    starts: u64,
}

/// Peer with its own session and its observations.
pub(crate) struct ScriptedPeer {
    node: NodeId,
    pub(crate) session: Session,
    pub(crate) link: LinkId,
    /// Flows that the engine opened to it.
    pub(crate) opened: VecDeque<FlowId>,
    pub(crate) answers: BTreeMap<FlowId, OpenAnswer>,
    pub(crate) resets: BTreeMap<FlowId, ResetReason>,
    /// Messages of the engine: the flow, the kind, the content.
    pub(crate) messages: Vec<(FlowId, u8, Bytes)>,
    /// Bytes that came from the engine on links.
    pub(crate) link_bytes: usize,
    /// Reasons for which the engine closed links.
    pub(crate) closed: Vec<String>,
}

/// A connection of a host beside the node.
#[derive(Debug, Default)]
pub(crate) struct HostConnection {
    /// Data that the host was sent.
    pub(crate) written: Vec<u8>,
    /// Bytes that the host was sent and has not read.
    untaken: usize,
    /// Bytes that the engine will still read from it.
    pub(crate) credit: usize,
}

impl ScriptedPeer {
    fn new(number: usize, seed: u64, now: Time) -> Self {
        let node = NodeId([10 + number as u8; 32]);
        let random = SeededRandom::from_seed(seed);
        Self {
            node,
            session: Session::new(tunnel::SessionConfig::default(), node, LOCAL, random, now),
            link: LinkId(0),
            opened: VecDeque::new(),
            answers: BTreeMap::new(),
            resets: BTreeMap::new(),
            messages: Vec::new(),
            link_bytes: 0,
            closed: Vec::new(),
        }
    }

    /// Repair requests that the peer received in this flow.
    pub(crate) fn repair_requests(&self, flow: FlowId) -> Vec<Bytes> {
        let messages = self.messages.iter();
        let requests = messages.filter(|(of, kind, _)| *of == flow && *kind == REPAIR_REQUEST);
        requests.map(|(_, _, bytes)| bytes.clone()).collect()
    }
}

fn config() -> EngineConfig {
    let peers = (0..2_u8).map(|number| PeerConfig {
        node: NodeId([10 + number; 32]),
        name: format!("peer {number}"),
        prefixes: vec![
            format!("198.18.{}.0/24", 10 + number)
                .parse()
                .expect("a prefix"),
        ],
    });
    EngineConfig {
        local: LOCAL,
        peers: peers.collect(),
        serve: Some(vec!["198.18.1.0/24".parse().expect("a prefix")]),
        serve_peers_without_prefixes: false,
        limits: EngineLimits {
            flows: FLOW_LIMIT,
            memory: MEMORY_LIMIT,
            ..EngineLimits::default()
        },
        policy: FlowPolicy::default(),
        dictionary: DictionaryConfig {
            memory: ByteCount::mebibytes(8),
            disk: ByteCount::mebibytes(32),
            segment: ByteCount::mebibytes(1),
        },
        dictionary_key: Some(DictionaryKey::new([1; 32])),
        tunnel: tunnel::SessionConfig::default(),
        datagrams: tunnel::transport::PathSettings::default(),
    }
}

impl TestSite {
    /// The node and its two peers, with a link to each.
    pub(crate) fn new() -> Self {
        let now = Time::from_nanos(1_000_000_000);
        let mut site = Self {
            now,
            engine: Engine::new(config(), now, SeededRandom::from_seed(1)),
            disk: MemoryDisk::new(),
            files: MemoryFiles::default(),
            peers: Vec::new(),
            connections: BTreeMap::new(),
            connects: Vec::new(),
            hosts_read: true,
            links: 0,
            accepted: 0,
            starts: 1,
        };
        site.connect_peers();
        site
    }

    /// Restarts the node cleanly with its disk, and the peers.
    pub(crate) fn restart(&mut self) {
        self.give(EngineInput::Stop {
            grace: Duration::ZERO,
        });
        for _ in 0..5 {
            self.wait(Duration::from_secs(1));
        }
        self.starts += 1;
        self.engine = Engine::new(config(), self.now, SeededRandom::from_seed(self.starts));
        self.connections.clear();
        self.peers.clear();
        self.connect_peers();
    }

    fn connect_peers(&mut self) {
        self.drain_engine();
        for number in 0..2 {
            let seed = 100 * self.starts + number as u64;
            self.peers.push(ScriptedPeer::new(number, seed, self.now));
            self.connect(number);
        }
        self.exchange();
    }

    /// A new link to the peer.
    pub(crate) fn connect(&mut self, number: usize) {
        self.links += 1;
        let peer = &mut self.peers[number];
        peer.link = LinkId(self.links);
        peer.session.link_up(self.now, peer.link, true);
        let (link, node) = (peer.link, peer.node);
        self.give(EngineInput::LinkUp {
            link,
            peer: node,
            dialed_by_us: false,
            offer: None,
        });
    }

    /// An ordinary open of this peer's: one of its clients to a server beside the node.
    pub(crate) fn open_to(number: usize, server: SocketAddr) -> OpenRequest {
        OpenRequest {
            client: SocketAddr::from(([198, 18, 10 + number as u8, 5], 40_000)),
            server,
            accelerator: 0,
            keep_client_address: false,
            may_store: true,
            dscp: 0,
        }
    }

    /// Opens a flow to the server and waits until it is connected.
    pub(crate) fn open(&mut self, number: usize) -> FlowId {
        let open = Self::open_to(number, SERVER.into());
        let flow = self.peers[number].session.open(self.now, open);
        let flow = flow.expect("the session is up");
        self.exchange();
        flow
    }

    /// Sends bytes in a flow, as far as the credit goes; says how many went.
    pub(crate) fn write(&mut self, number: usize, flow: FlowId, bytes: &Bytes) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            let session = &mut self.peers[number].session;
            let length = session.writable(flow).min(bytes.len() - sent);
            if length == 0 {
                break;
            }
            session.write(flow, bytes.slice(sent..sent + length));
            sent += length;
            self.exchange();
        }
        sent
    }

    /// Sends a frame that the peer's session would not make.
    pub(crate) fn send_frame(&mut self, number: usize, frame: &SessionFrame) {
        let mut out = ByteWriter::new();
        frame.emit(&mut out);
        let (link, bytes) = (self.peers[number].link, out.finish());
        self.give(EngineInput::LinkReceived { link, bytes });
        self.exchange();
    }

    /// A client beside the node connects to a server behind the peer; the flow that the peer sees.
    pub(crate) fn accept(&mut self, number: usize) -> (ConnectionId, FlowId) {
        self.accepted += 1;
        let connection = ConnectionId::Accepted(self.accepted);
        self.connections
            .insert(connection, HostConnection::default());
        self.give(EngineInput::Accepted {
            connection,
            client: SocketAddr::from(([198, 18, 1, 9], 40_000)),
            server: SocketAddr::from(([198, 18, 10 + number as u8, 2], 80)),
            via: ArrivalMethod::Transparent,
        });
        self.exchange();
        let flow = self.peers[number].opened.pop_front();
        let flow = flow.expect("the peer saw the flow");
        self.peers[number]
            .session
            .answer(flow, OpenAnswer::Connected);
        self.exchange();
        (connection, flow)
    }

    /// A host beside the node sends bytes, as far as the engine reads; says how many went.
    pub(crate) fn host_sends(&mut self, connection: ConnectionId, bytes: &Bytes) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            let Some(at) = self.connections.get_mut(&connection) else {
                break;
            };
            let length = at.credit.min(bytes.len() - sent);
            if length == 0 {
                break;
            }
            at.credit -= length;
            let bytes = bytes.slice(sent..sent + length);
            sent += length;
            self.give(EngineInput::Received { connection, bytes });
            self.exchange();
        }
        sent
    }

    /// All that servers and clients were sent, of all connections there are.
    pub(crate) fn written(&self) -> Vec<u8> {
        let connections = self.connections.values();
        connections.flat_map(|at| at.written.clone()).collect()
    }

    /// Checks that a new flow of an honest peer still works: a server gets its data.
    pub(crate) fn honest_peer_is_served(&mut self) {
        let flow = self.open(HONEST);
        assert_eq!(
            self.peers[HONEST].answers.get(&flow),
            Some(&OpenAnswer::Connected)
        );
        let message = Bytes::from_static(b"an honest request");
        let operation = reduce::testing::ForgedOperation::NewChunk(message.clone());
        let nothing = reduce::testing::ForgedSources::Listed(Vec::new());
        let record = reduce::testing::forged_record(nothing, &[operation], &[&message]);
        assert_eq!(self.write(HONEST, flow, &record), record.len());
        let mut connections = self.connections.values();
        assert!(connections.any(|at| at.written == message));
        self.peers[HONEST]
            .session
            .reset(flow, ResetReason::HostReset);
        self.exchange();
    }

    /// The engine keeps to its limits.
    pub(crate) fn check_limits(&self) {
        let status = self.engine.status();
        assert!(status.flows <= FLOW_LIMIT, "{} flows", status.flows);
        let buffered = status.buffered_bytes;
        assert!(buffered <= MEMORY_LIMIT.bytes() * 2, "{buffered} bytes");
    }

    /// Carries bytes both ways until all fall silent.
    pub(crate) fn exchange(&mut self) {
        for turn in 0.. {
            assert!(turn < MOST_TURNS, "it goes round in a circle");
            let mut is_quiet = true;
            for number in 0..self.peers.len() {
                is_quiet &= !self.exchange_with(number);
            }
            if is_quiet {
                return;
            }
        }
    }

    /// One turn with a peer; says whether anything moved.
    fn exchange_with(&mut self, number: usize) -> bool {
        let link = self.peers[number].link;
        let mut moved = false;
        let sent = self.peers[number]
            .session
            .poll_transmit(self.now, link, LINK_TURN);
        if let Some(bytes) = sent {
            moved = true;
            self.give(EngineInput::LinkReceived { link, bytes });
        }
        if let Some(bytes) = self.engine.transmit(self.now, link, LINK_TURN) {
            moved = true;
            let peer = &mut self.peers[number];
            peer.link_bytes += bytes.len();
            peer.session
                .handle(self.now, link, &bytes)
                .expect("the engine speaks the protocol");
            self.drain_engine();
        }
        self.drain_peer(number);
        moved
    }

    fn drain_peer(&mut self, number: usize) {
        let peer = &mut self.peers[number];
        while let Some(event) = peer.session.poll_event() {
            match event {
                tunnel::SessionEvent::Opened { flow, .. } => peer.opened.push_back(flow),
                tunnel::SessionEvent::Answered { flow, answer } => {
                    peer.answers.insert(flow, answer);
                }
                tunnel::SessionEvent::Reset { flow, reason } => {
                    peer.resets.insert(flow, reason);
                }
                tunnel::SessionEvent::Message { flow, kind, bytes } => {
                    peer.messages.push((flow, kind, bytes));
                }
                tunnel::SessionEvent::Readable { flow } => {
                    while peer.session.read(flow, usize::MAX).is_some() {}
                }
                _ => {}
            }
        }
    }

    /// Time passes for all.
    pub(crate) fn wait(&mut self, span: Duration) {
        self.now += span;
        for peer in &mut self.peers {
            if peer.session.poll_timeout().is_some_and(|at| at <= self.now) {
                peer.session.handle_timeout(self.now);
            }
        }
        if self.engine.poll_timeout().is_some_and(|at| at <= self.now) {
            self.engine.handle_timeout(self.now);
        }
        self.drain_engine();
        self.exchange();
    }

    pub(crate) fn give(&mut self, input: EngineInput) {
        self.engine.handle(self.now, input);
        self.drain_engine();
    }

    fn drain_engine(&mut self) {
        for count in 0.. {
            assert!(count < MOST_TURNS, "the engine goes round in a circle");
            let Some(output) = self.engine.poll_output() else {
                return;
            };
            self.carry_out(output);
        }
    }

    fn carry_out(&mut self, output: EngineOutput) {
        match output {
            EngineOutput::Write { connection, bytes } => {
                let at = self.connections.entry(connection).or_default();
                at.written.extend_from_slice(&bytes);
                at.untaken += bytes.len();
                if self.hosts_read {
                    let bytes = std::mem::take(&mut at.untaken);
                    let written = EngineInput::Written { connection, bytes };
                    self.engine.handle(self.now, written);
                }
            }
            EngineOutput::ResetWhenDelivered { connection } => {
                self.connections.remove(&connection);
                let aborted = EngineInput::Aborted { connection };
                self.engine.handle(self.now, aborted);
            }
            EngineOutput::Reset { connection } | EngineOutput::Close { connection } => {
                self.connections.remove(&connection);
            }
            EngineOutput::ReadCredit { connection, bytes } => {
                if let Some(at) = self.connections.get_mut(&connection) {
                    at.credit += bytes;
                }
            }
            EngineOutput::Connect {
                connection, server, ..
            } => {
                self.connects.push(server);
                self.connections
                    .insert(connection, HostConnection::default());
                let result = Ok(());
                self.engine
                    .handle(self.now, EngineInput::Connected { connection, result });
            }
            EngineOutput::AcceleratorFile {
                accelerator,
                request,
            } => {
                let completion = self.files.complete(request);
                let completed = EngineInput::AcceleratorFile {
                    accelerator,
                    completion,
                };
                self.engine.handle(self.now, completed);
            }
            EngineOutput::Disk(request) => {
                let completion = self.disk.execute(request);
                self.engine.handle(self.now, EngineInput::Disk(completion));
            }
            EngineOutput::CloseLink { link, reason } => {
                let peer = self.peers.iter_mut().find(|peer| peer.link == link);
                if let Some(peer) = peer {
                    peer.closed.push(reason);
                    peer.session.link_down(self.now, link, LinkEnd::Lost);
                }
                self.engine.handle(
                    self.now,
                    EngineInput::LinkDown {
                        link,
                        end: LinkEnd::Lost,
                    },
                );
            }
            EngineOutput::Avoid { server, .. } => {
                self.engine
                    .handle(self.now, EngineInput::Avoided { server });
            }
            _ => {}
        }
    }
}
