//! The whole product in virtual time: two engines, a path between them, hosts that follow scripts.
//!
//! ```text
//!  scripted clients ── near engine ══ byte pipes with rate and delay ══ far engine ── scripted servers
//! ```
//!
//! Nothing sleeps, and only seeds provide randomness: [`TwoNodeWorld::run_until`] jumps from one
//! due time to the next until the condition of the test holds.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use accelerate::registry::AcceleratorEntry;
use accelerate::shared::memory_files::MemoryFiles;
use accelerate::shared::{FileRequest, PurgeCount};
use accelerate::smb::testing::FileServer;
use bytes::{Bytes, BytesMut};
use engine::{
    ArrivalMethod, ConnectFailure, ConnectionId, Engine, EngineConfig, EngineEvent, EngineInput,
    EngineLimits, EngineOutput, FlowPolicy, IpPrefix, LinkEnd, LinkId, NetworkRoute, PeerConfig,
    RouteSide,
};
use reduce::testing::MemoryDisk;
use reduce::{DictionaryConfig, DictionaryKey, DiskCompletion};
use simulation::{public_path_keys, site_surroundings};
use testkit::{BytePipe, PipeConfig};
use tunnel::DatagramAgreement;
use tunnel::packet::{self, ChallengeSeed, CipherSuite};
use tunnel::transport::EcnMarking;
use tunnel::wire::{DATAGRAM_VERSION, DatagramOffer};
use vocab::{Bitrate, ByteCount, NodeId, SeededRandom, Time};

use super::web::WebServer;

/// The two nodes, as indices.
pub(crate) const NEAR: usize = 0;
/// See [`NEAR`].
pub(crate) const FAR: usize = 1;

/// A run that needs more steps than this hangs.
const STEP_LIMIT: usize = 3_000_000;
/// The number of bytes that a shell requests from an engine at a time.
const TRANSMIT: usize = 16 * 1024;
/// Packets of one system call.
const BATCH: usize = 16;
/// The first seed of the endless data that hosts send.
const POURED: u64 = 1 << 32;

/// The behaviour of the server on a port.
#[derive(Clone)]
pub(crate) enum ServerScript {
    /// Answers this after `after` bytes of request, then ends its stream.
    Answer { after: usize, answer: Bytes },
    /// Sends this first, then echoes the received data.
    GreetAndEcho { greeting: Bytes },
    /// Takes everything and ends its stream when the client has.
    Swallow,
    /// Refuses the connection.
    Refuse,
    /// Cannot be connected to for this reason.
    Fail(ConnectFailure),
    /// Accepts and then resets after `after` bytes.
    ResetAfter { after: usize },
    /// Answers this after `after` bytes of request and then resets, as a server does that closes with unread
    /// data.
    AnswerAndReset { after: usize, answer: Bytes },
    /// Accepts and reads nothing.
    Stall,
    /// Sends bytes that never repeat, without end, and reads nothing.
    Pour,
    /// The server is unreachable, as the kernel reports at once.
    Unreachable,
    /// The server never answers: the attempt fails when the test decides.
    Dead,
    /// Answers requests of HTTP.
    Web(Rc<RefCell<WebServer>>),
    /// Each connection meets the next of these; when none is left, it is refused.
    InTurn(Rc<RefCell<VecDeque<ServerScript>>>),
    /// Serves files.
    Files(Rc<RefCell<FileServer>>),
}

/// One host's end of one connection.
#[derive(Default)]
pub(crate) struct TestHost {
    pub(crate) received: BytesMut,
    pub(crate) first_byte_at: Option<Time>,
    pub(crate) last_byte_at: Option<Time>,
    pub(crate) peer_finished: bool,
    pub(crate) was_reset: bool,
    pub(crate) was_closed: bool,
    /// The time from which a waiting client may begin.
    pub(crate) admitted_at: Option<Time>,
    /// ... or not, for this reason.
    pub(crate) declined: Option<ConnectFailure>,
    /// The address the connection was made from.
    pub(crate) seen_client: Option<SocketAddr>,
    credit: usize,
    to_send: VecDeque<Bytes>,
    finish_after: bool,
    finish_sent: bool,
    /// A reset follows the data, and follows the FIN where there is one.
    reset_after: bool,
    failure_told: bool,
    script: Option<ServerScript>,
    script_done: bool,
    /// It reads so many bytes and then no more.
    reads_at_most: Option<usize>,
    unread: usize,
    /// The generator of the bytes that it sends without end.
    pours: Option<SeededRandom>,
}

/// One node with the state that a shell would keep around it.
pub(crate) struct TestNode {
    pub(crate) engine: Engine,
    pub(crate) hosts: BTreeMap<ConnectionId, TestHost>,
    pub(crate) intercepted: Vec<NodeId>,
    /// The bypassed servers, and the durations from the time of the output.
    pub(crate) avoided: BTreeMap<SocketAddr, Duration>,
    /// Networks between which the rules bypass everything.
    pub(crate) bypassed_routes: Vec<String>,
    /// Servers whose clients the rules accept at once.
    pub(crate) accepted_at_once: BTreeSet<SocketAddr>,
    /// Connections to dead servers that are being opened.
    pub(crate) attempts: Vec<ConnectionId>,
    /// Clients that are to pass by.
    pub(crate) passing: Vec<IpPrefix>,
    pub(crate) events: Vec<EngineEvent>,
    pub(crate) stopped: bool,
    /// Its process is stopped by a signal, or dead: it does nothing.
    is_frozen: bool,
    pub(crate) disk: MemoryDisk,
    /// The accelerators' files.
    pub(crate) files: MemoryFiles,
    /// True if requests for files are kept until the test continues them.
    pub(crate) holds_files: bool,
    pub(crate) file_requests: VecDeque<(&'static AcceleratorEntry, FileRequest)>,
    /// The results of operators' purges.
    pub(crate) purged: Vec<(u64, Result<PurgeCount, String>)>,
    link: Option<LinkId>,
    /// The link whose datagrams are exchanged, even if it has broken.
    path: Option<LinkId>,
    id: NodeId,
    accepted: u64,
}

/// Two nodes and the path between them.
pub(crate) struct TwoNodeWorld {
    pub(crate) now: Time,
    pub(crate) nodes: [TestNode; 2],
    pub(crate) servers: BTreeMap<u16, ServerScript>,
    /// Bytes that each node put on the path.
    pub(crate) wan_bytes: [u64; 2],
    pipes: [BytePipe; 2],
    /// The link for datagrams; `None` where the nodes send none.
    packets: Option<emulate::Link>,
    packets_blocked: bool,
    path: TestPath,
    links: u64,
    /// Hosts that have begun to send without end.
    poured: u64,
}

/// The properties of a world's path.
#[derive(Clone, Copy)]
pub(crate) struct TestPath {
    pub(crate) rate: Bitrate,
    pub(crate) delay: Duration,
}

impl Default for TestPath {
    fn default() -> Self {
        Self {
            rate: Bitrate::from_bits_per_second(10_000_000),
            delay: Duration::from_millis(15),
        }
    }
}

/// The settings that a test may change on both nodes.
#[derive(Clone)]
pub(crate) struct WorldSettings {
    pub(crate) path: TestPath,
    pub(crate) limits: EngineLimits,
    /// The far node's, where they are to differ from the usual ones.
    pub(crate) far_limits: EngineLimits,
    pub(crate) policy: FlowPolicy,
    /// The far node's.
    pub(crate) far_policy: FlowPolicy,
    /// True if both nodes have a second peer, which never connects.
    pub(crate) has_other_peer: bool,
    /// The networks where both serve their peers; by default their LANs.
    pub(crate) serve: Option<Vec<IpPrefix>>,
    pub(crate) dictionary: DictionaryConfig,
    /// The link for datagrams; `None` where the nodes send none.
    pub(crate) packets: Option<emulate::LinkConfig>,
    /// The sessions' windows.
    pub(crate) tunnel: tunnel::SessionConfig,
}

impl Default for WorldSettings {
    fn default() -> Self {
        Self {
            path: TestPath::default(),
            limits: EngineLimits::default(),
            far_limits: EngineLimits::default(),
            policy: FlowPolicy::default(),
            far_policy: FlowPolicy::default(),
            has_other_peer: false,
            serve: None,
            dictionary: DictionaryConfig {
                memory: ByteCount::mebibytes(64),
                disk: ByteCount::mebibytes(256),
                ..DictionaryConfig::default()
            },
            packets: None,
            tunnel: tunnel::SessionConfig::default(),
        }
    }
}

pub(crate) fn client() -> SocketAddr {
    "198.18.1.2:40000".parse().unwrap()
}

pub(crate) fn server(port: u16) -> SocketAddr {
    SocketAddr::new("198.18.2.2".parse().unwrap(), port)
}

impl TwoNodeWorld {
    /// A world whose link is up.
    pub(crate) fn new(setting: WorldSettings) -> Self {
        let ids = [NodeId([1; 32]), NodeId([2; 32])];
        let pipe = || {
            BytePipe::new(PipeConfig {
                rate: setting.path.rate,
                delay: setting.path.delay,
                ..PipeConfig::default()
            })
        };
        let node = |own: usize| TestNode {
            engine: Engine::new(
                config(&setting, &ids, own),
                Time::ZERO,
                SeededRandom::from_seed(own as u64),
            ),
            hosts: BTreeMap::new(),
            intercepted: Vec::new(),
            avoided: BTreeMap::new(),
            bypassed_routes: Vec::new(),
            accepted_at_once: BTreeSet::new(),
            attempts: Vec::new(),
            passing: Vec::new(),
            events: Vec::new(),
            stopped: false,
            is_frozen: false,
            disk: MemoryDisk::default(),
            files: MemoryFiles::default(),
            holds_files: false,
            file_requests: VecDeque::new(),
            purged: Vec::new(),
            link: None,
            path: None,
            id: ids[own],
            accepted: 0,
        };
        let mut world = Self {
            now: Time::ZERO,
            nodes: [node(NEAR), node(FAR)],
            servers: BTreeMap::new(),
            wan_bytes: [0; 2],
            pipes: [pipe(), pipe()],
            packets: setting.packets.map(emulate::Link::new),
            packets_blocked: false,
            path: setting.path,
            links: 0,
            poured: 0,
        };
        for own in [NEAR, FAR] {
            world.look_around(own);
            let since_1970 = Duration::from_secs(1_767_225_600);
            world.input(own, EngineInput::Calendar { since_1970 });
        }
        world.connect();
        world
    }

    /// Reports each node's network to its engine: a LAN, a WAN, and an address in each.
    pub(crate) fn look_around(&mut self, own: usize) {
        let surroundings = site_surroundings(own);
        self.input(own, EngineInput::Surroundings(surroundings));
    }

    /// Reports one more network behind the LAN, as the shell would.
    pub(crate) fn add_lan_route(&mut self, own: usize, to: &str) {
        let mut surroundings = site_surroundings(own);
        surroundings.routes.push(NetworkRoute {
            to: to.parse().unwrap(),
            side: RouteSide::Lan,
        });
        self.input(own, EngineInput::Surroundings(surroundings));
    }

    /// Adds prefixes to the peer, as the node's operator would.
    pub(crate) fn widen_prefixes(&mut self, own: usize, prefixes: &[&str]) {
        let ids = [self.nodes[NEAR].id, self.nodes[FAR].id];
        let mut config = config(&WorldSettings::default(), &ids, own);
        config.peers[0].prefixes = prefixes.iter().map(|text| text.parse().unwrap()).collect();
        self.input(own, EngineInput::Configure(Box::new(config)));
    }

    /// A fresh link between the nodes, the near one dialling.
    pub(crate) fn connect(&mut self) {
        self.links += 1;
        let link = LinkId(self.links);
        self.pipes = [self.pipe(), self.pipe()];
        for own in [NEAR, FAR] {
            let peer = self.nodes[1 - own].id;
            self.nodes[own].link = Some(link);
            self.nodes[own].path = Some(link);
            self.input(
                own,
                EngineInput::LinkUp {
                    link,
                    peer,
                    dialed_by_us: own == NEAR,
                    offer: self.packets.is_some().then(|| offer(own, self.links)),
                },
            );
        }
        let up = |world: &TwoNodeWorld| world.nodes.iter().all(|node| node.intercepted.len() == 1);
        self.run_until(up, Duration::from_secs(10));
    }

    /// Breaks the link at both ends; data in transit is lost.
    pub(crate) fn cut(&mut self) {
        self.end_link(LinkEnd::Lost);
    }

    /// Ends the link at both ends in this way; data in transit is lost.
    pub(crate) fn end_link(&mut self, end: LinkEnd) {
        for own in [NEAR, FAR] {
            if let Some(link) = self.nodes[own].link.take() {
                self.input(own, EngineInput::LinkDown { link, end });
            }
        }
        self.pipes = [self.pipe(), self.pipe()];
    }

    /// Breaks the link at one end; the other end does not notice.
    pub(crate) fn lose_link(&mut self, own: usize) {
        self.lose_link_by(own, LinkEnd::Lost);
    }

    fn lose_link_by(&mut self, own: usize, end: LinkEnd) {
        if let Some(link) = self.nodes[own].link.take() {
            let now = self.now;
            let down = EngineInput::LinkDown { link, end };
            self.nodes[own].engine.handle(now, down);
        }
        self.pipes = [self.pipe(), self.pipe()];
        self.drain();
    }

    /// Stops the node's process (SIGSTOP): the kernel receives data for it, and nothing answers.
    pub(crate) fn freeze(&mut self, own: usize) {
        self.nodes[own].is_frozen = true;
        self.pipes[1 - own].set_blocked(true);
    }

    /// Continues the process, with the data that has arrived meanwhile.
    pub(crate) fn thaw(&mut self, own: usize) {
        self.nodes[own].is_frozen = false;
        self.pipes[1 - own].set_blocked(false);
        self.drain();
    }

    /// The node's process dies, and its kernel closes the link.
    pub(crate) fn kill(&mut self, own: usize) {
        self.nodes[own].is_frozen = true;
        self.nodes[own].link = None;
        self.lose_link_by(1 - own, LinkEnd::ClosedByPeer);
    }

    /// Makes the path drop everything from here on, or ends that.
    pub(crate) fn set_blocked(&mut self, blocked: bool) {
        for pipe in &mut self.pipes {
            pipe.set_blocked(blocked);
        }
    }

    /// Makes the path drop all datagrams from here on, or ends that.
    pub(crate) fn set_packets_blocked(&mut self, blocked: bool) {
        self.packets_blocked = blocked;
    }

    /// The far node is killed and started again with an empty memory and the disk it had.
    pub(crate) fn restart(&mut self, own: usize, setting: &WorldSettings) {
        let ids = [self.nodes[NEAR].id, self.nodes[FAR].id];
        self.cut();
        let seed = 1000 + self.links;
        let node = &mut self.nodes[own];
        node.engine = Engine::new(
            config(setting, &ids, own),
            self.now,
            SeededRandom::from_seed(seed),
        );
        node.hosts.clear();
        node.file_requests.clear();
        node.intercepted.clear();
        node.avoided.clear();
        self.look_around(own);
        let since_1970 = Duration::from_secs(1_767_225_600) + self.now.since(Time::ZERO);
        self.input(own, EngineInput::Calendar { since_1970 });
    }

    /// A client connects through the near node.
    pub(crate) fn accept(&mut self, port: u16) -> ConnectionId {
        self.accept_between(client(), server(port), ArrivalMethod::Transparent)
    }

    /// The same, by a proxy or intercepted.
    pub(crate) fn accept_via(&mut self, port: u16, via: ArrivalMethod) -> ConnectionId {
        self.accept_between(client(), server(port), via)
    }

    /// A client connects to this server through the near node, from one port after the other.
    pub(crate) fn accept_between(
        &mut self,
        mut client: SocketAddr,
        server: SocketAddr,
        via: ArrivalMethod,
    ) -> ConnectionId {
        let node = &mut self.nodes[NEAR];
        node.accepted += 1;
        let connection = ConnectionId::Accepted(node.accepted);
        node.hosts.insert(connection, TestHost::default());
        client.set_port(40_000 + (node.accepted % 20_000) as u16);
        let accepted = EngineInput::Accepted {
            connection,
            client,
            server,
            via,
        };
        self.input(NEAR, accepted);
        connection
    }

    /// Starts a client that requests a connection and waits for the outcome.
    pub(crate) fn ask_via(&mut self, port: u16, via: ArrivalMethod) -> ConnectionId {
        let (connection, client) = self.new_client();
        let server = server(port);
        self.input(
            NEAR,
            EngineInput::Asked {
                connection,
                client,
                server,
                via,
            },
        );
        connection
    }

    fn new_client(&mut self) -> (ConnectionId, SocketAddr) {
        let node = &mut self.nodes[NEAR];
        node.accepted += 1;
        let connection = ConnectionId::Accepted(node.accepted);
        node.hosts.insert(connection, TestHost::default());
        let mut client = client();
        client.set_port(40_000 + (node.accepted % 20_000) as u16);
        (connection, client)
    }

    /// The client sends these bytes, and a FIN after them if `finish`.
    pub(crate) fn send(&mut self, connection: ConnectionId, bytes: &[u8], finish: bool) {
        let host = self.nodes[NEAR].hosts.get_mut(&connection).unwrap();
        for piece in bytes.chunks(64 * 1024) {
            host.to_send.push_back(Bytes::copy_from_slice(piece));
        }
        host.finish_after = finish;
        self.drain();
    }

    /// The client reads so many bytes and then no more.
    pub(crate) fn read_at_most(&mut self, connection: ConnectionId, most: usize) {
        let host = self.nodes[NEAR].hosts.get_mut(&connection).unwrap();
        host.reads_at_most = Some(most);
    }

    /// The client sends bytes that never repeat, without end.
    pub(crate) fn pour(&mut self, connection: ConnectionId) {
        self.poured += 1;
        let host = self.nodes[NEAR].hosts.get_mut(&connection).unwrap();
        host.pours = Some(SeededRandom::from_seed(POURED + self.poured));
        self.drain();
    }

    pub(crate) fn id(&self, own: usize) -> NodeId {
        self.nodes[own].id
    }

    pub(crate) fn client_host(&self, connection: ConnectionId) -> &TestHost {
        &self.nodes[NEAR].hosts[&connection]
    }

    /// The servers' ends of all connections, in the order they were opened.
    pub(crate) fn server_hosts(&self) -> impl Iterator<Item = &TestHost> {
        self.nodes[FAR].hosts.values()
    }

    /// The client sends these bytes and resets its connection behind them.
    pub(crate) fn send_and_reset(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let host = self.nodes[NEAR].hosts.get_mut(&connection).unwrap();
        host.reset_after = true;
        self.send(connection, bytes, false);
    }

    /// A host beside this node sends these bytes, ends its stream if `finish`, and resets its connection.
    pub(crate) fn reset_behind(
        &mut self,
        own: usize,
        connection: ConnectionId,
        bytes: &Bytes,
        finish: bool,
    ) {
        let host = self.nodes[own].hosts.get_mut(&connection).unwrap();
        let pieces = bytes.chunks(64 * 1024).map(Bytes::copy_from_slice);
        host.to_send.extend(pieces);
        host.finish_after = finish;
        host.reset_after = true;
        self.drain();
    }

    /// Lets a client that has stopped reading take this many of the waiting bytes.
    pub(crate) fn take(&mut self, connection: ConnectionId, bytes: usize) {
        let host = self.nodes[NEAR].hosts.get_mut(&connection).unwrap();
        let bytes = bytes.min(host.unread);
        host.unread -= bytes;
        self.input(NEAR, EngineInput::Written { connection, bytes });
    }

    /// The client resets its connection.
    pub(crate) fn abort(&mut self, connection: ConnectionId) {
        self.input(NEAR, EngineInput::Aborted { connection });
    }

    pub(crate) fn input(&mut self, own: usize, input: EngineInput) {
        self.nodes[own].engine.handle(self.now, input);
        self.drain();
    }

    /// Lets time pass until `done`, which must come within `patience` of virtual time.
    pub(crate) fn run_until(&mut self, done: impl Fn(&TwoNodeWorld) -> bool, patience: Duration) {
        let deadline = self.now + patience;
        for _ in 0..STEP_LIMIT {
            if done(self) {
                return;
            }
            let next = self.next_due();
            assert!(
                next <= deadline,
                "not done after {patience:?}; flows: {:#?}",
                self.nodes
                    .each_ref()
                    .map(|node| node.engine.flows(self.now))
            );
            self.step(next);
        }
        panic!("no progress of time in {STEP_LIMIT} steps");
    }

    /// Lets this much time pass.
    pub(crate) fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        while self.next_due() <= end {
            let next = self.next_due();
            self.step(next);
        }
        self.now = end;
        self.drain();
    }

    /// Reloads the unchanged configuration.
    pub(crate) fn reload(&mut self, own: usize) {
        let ids = [self.nodes[NEAR].id, self.nodes[FAR].id];
        let config = config(&WorldSettings::default(), &ids, own);
        self.input(own, EngineInput::Configure(Box::new(config)));
    }

    /// The configuration of a node that has no peer any longer.
    pub(crate) fn forget_peers(&mut self, own: usize) {
        let ids = [self.nodes[NEAR].id, self.nodes[FAR].id];
        let mut config = config(&WorldSettings::default(), &ids, own);
        config.peers.clear();
        self.input(own, EngineInput::Configure(Box::new(config)));
    }

    fn next_due(&self) -> Time {
        let running = self.nodes.iter().filter(|node| !node.is_frozen);
        let engines = running.filter_map(|node| node.engine.poll_timeout());
        let pipes = self.pipes.iter().filter_map(BytePipe::poll_timeout);
        let packets = self.packets.as_ref().and_then(emulate::Link::poll_timeout);
        engines
            .chain(pipes)
            .chain(packets)
            .min()
            .unwrap_or(Time::NEVER)
            .max(self.now)
    }

    fn step(&mut self, next: Time) {
        self.now = next;
        for own in [NEAR, FAR] {
            if self.nodes[own].is_frozen {
                while self.arrived_packet(own).is_some() {}
                continue;
            }
            while let Some(bytes) = self.pipes[1 - own].poll(self.now) {
                let Some(link) = self.nodes[own].link else {
                    continue;
                };
                let input = EngineInput::LinkReceived { link, bytes };
                self.nodes[own].engine.handle(self.now, input);
            }
            while let Some(packet) = self.arrived_packet(own) {
                let Some(link) = self.nodes[own].path else {
                    continue;
                };
                let input = EngineInput::Datagrams {
                    link,
                    from: address(1 - own),
                    codepoint: EcnMarking::NotEct,
                    segment: packet.len(),
                    bytes: BytesMut::from(&packet[..]),
                };
                self.nodes[own].engine.handle(self.now, input);
            }
            if self.nodes[own]
                .engine
                .poll_timeout()
                .is_some_and(|at| at <= self.now)
            {
                self.nodes[own].engine.handle_timeout(self.now);
            }
        }
        self.drain();
    }

    /// Executes the outputs of the engines and the actions of the hosts until none is left.
    fn drain(&mut self) {
        loop {
            let mut quiet = true;
            for own in [NEAR, FAR] {
                if self.nodes[own].is_frozen {
                    continue;
                }
                while let Some(output) = self.nodes[own].engine.poll_output() {
                    quiet = false;
                    self.output(own, output);
                }
                quiet &= !self.transmit(own);
                quiet &= !self.hosts_act(own);
            }
            if quiet {
                return;
            }
        }
    }

    fn arrived_packet(&mut self, own: usize) -> Option<Bytes> {
        let packets = self.packets.as_mut()?;
        let direction = match own {
            FAR => &mut packets.forward,
            _ => &mut packets.back,
        };
        Some(direction.poll_output(self.now)?.packet)
    }

    fn transmit_datagrams(&mut self, own: usize, link: LinkId) -> bool {
        let Some(packets) = &mut self.packets else {
            return false;
        };
        let direction = match own {
            NEAR => &mut packets.forward,
            _ => &mut packets.back,
        };
        let mut sent = false;
        let mut out = BytesMut::new();
        let engine = &mut self.nodes[own].engine;
        while let Some(transmit) = engine.transmit_datagrams(self.now, link, BATCH, &mut out) {
            assert_eq!(transmit.to, address(1 - own), "packets go to the peer");
            self.wan_bytes[own] += transmit.bytes as u64;
            for packet in out.chunks(transmit.segment) {
                if self.packets_blocked {
                    continue;
                }
                direction.handle(self.now, Bytes::copy_from_slice(packet));
            }
            out.clear();
            sent = true;
        }
        sent
    }

    /// Starts datagrams with the inputs of TLS and the system: the same secret at both ends.
    fn start_datagrams(&mut self, own: usize, link: LinkId, agreement: DatagramAgreement) {
        let challenges = ChallengeSeed::new(|room| room.fill(own as u8));
        let keys = public_path_keys(self.now, agreement, challenges);
        let ready = EngineInput::DatagramsReady {
            link,
            keys: Box::new(keys),
            peer: (own == NEAR).then_some(address(FAR)),
            datagram_max: 1_452,
        };
        self.nodes[own].engine.handle(self.now, ready);
    }

    fn transmit(&mut self, own: usize) -> bool {
        let path = self.nodes[own].path;
        let mut sent = path.is_some_and(|path| self.transmit_datagrams(own, path));
        let Some(link) = self.nodes[own].link else {
            return sent;
        };
        while self.pipes[own].writable(self.now) >= TRANSMIT {
            let Some(bytes) = self.nodes[own].engine.transmit(self.now, link, TRANSMIT) else {
                break;
            };
            self.wan_bytes[own] += bytes.len() as u64;
            self.pipes[own].send(self.now, bytes);
            sent = true;
        }
        sent
    }

    fn output(&mut self, own: usize, output: EngineOutput) {
        let now = self.now;
        if let EngineOutput::StartDatagrams { link, agreement } = output {
            return self.start_datagrams(own, link, *agreement);
        }
        let node = &mut self.nodes[own];
        match output {
            EngineOutput::Write { connection, bytes } => {
                let length = bytes.len();
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.first_byte_at.get_or_insert(now);
                    host.last_byte_at = Some(now);
                    host.received.extend_from_slice(&bytes);
                    if host
                        .reads_at_most
                        .is_some_and(|most| host.received.len() > most)
                    {
                        host.unread += length;
                        return;
                    }
                }
                let bytes = length;
                node.engine
                    .handle(now, EngineInput::Written { connection, bytes });
            }
            EngineOutput::FinishWrite { connection } => {
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.peer_finished = true;
                }
            }
            EngineOutput::Reset { connection } => {
                node.attempts.retain(|attempt| *attempt != connection);
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.was_reset = true;
                    // The system drops what the host has not taken.
                    let taken = host.received.len().saturating_sub(host.unread);
                    host.received.truncate(taken);
                }
            }
            EngineOutput::ResetWhenDelivered { connection } => {
                let host = node.hosts.get_mut(&connection);
                let host = host.expect("the engine waits for the answer of the host's connection");
                assert_eq!(host.unread, 0, "the engine waits until all is written");
                host.was_reset = true;
                node.engine.handle(now, EngineInput::Aborted { connection });
            }
            EngineOutput::Close { connection } => {
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.was_closed = true;
                }
            }
            EngineOutput::ReadCredit { connection, bytes } => {
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.credit += bytes;
                }
            }
            EngineOutput::Connect {
                connection,
                client,
                server,
                ..
            } => self.open_server(own, connection, client, server),
            EngineOutput::Transmit { .. }
            | EngineOutput::TransmitDatagrams { .. }
            | EngineOutput::StartDatagrams { .. } => {}
            EngineOutput::SendLast { link, bytes } => {
                if node.link == Some(link) {
                    self.wan_bytes[own] += bytes.len() as u64;
                    self.pipes[own].send(now, bytes);
                }
            }
            EngineOutput::CloseLink { link, .. } => {
                if node.link == Some(link) {
                    node.link = None;
                }
            }
            EngineOutput::AcceleratorFile {
                accelerator,
                request,
            } => {
                node.file_requests.push_back((accelerator, request));
                if !node.holds_files {
                    self.complete_files(own);
                }
            }
            EngineOutput::AcceleratorPurged { id, result } => node.purged.push((id, result)),
            EngineOutput::Disk(request) => {
                let completion: DiskCompletion = node.disk.execute(request);
                node.engine.handle(now, EngineInput::Disk(completion));
            }
            EngineOutput::Avoid { server, lasting } => {
                node.avoided.insert(server, lasting);
                node.engine.handle(now, EngineInput::Avoided { server });
            }
            EngineOutput::Readmit { server } => {
                node.avoided.remove(&server);
            }
            EngineOutput::BypassRoutes { routes } => {
                let routes = routes.iter();
                let texts = routes.map(|(clients, servers)| format!("{clients} to {servers}"));
                node.bypassed_routes = texts.collect();
            }
            EngineOutput::AcceptAtOnce { server, .. } => {
                node.accepted_at_once.insert(server);
            }
            EngineOutput::AcceptAfterServer { server } => {
                node.accepted_at_once.remove(&server);
            }
            EngineOutput::Admit { connection } => {
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.admitted_at = Some(now);
                }
            }
            EngineOutput::Decline {
                connection,
                failure,
            } => {
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.declined = Some(failure);
                }
            }
            EngineOutput::PassBy { clients, .. } => node.passing.push(clients),
            EngineOutput::Intercept { peers } => node.intercepted = peers,
            EngineOutput::Event(event) => node.events.push(event),
            EngineOutput::Stopped => node.stopped = true,
        }
    }

    /// Carries out the requests for accelerators' files.
    fn complete_files(&mut self, own: usize) {
        let node = &mut self.nodes[own];
        while let Some((accelerator, request)) = node.file_requests.pop_front() {
            let completion = node.files.complete(request);
            let completed = EngineInput::AcceleratorFile {
                accelerator,
                completion,
            };
            node.engine.handle(self.now, completed);
        }
    }

    /// Requests for accelerators' files stay from here on, or are carried out again.
    pub(crate) fn hold_files(&mut self, own: usize, holds: bool) {
        self.nodes[own].holds_files = holds;
        if !holds {
            self.complete_files(own);
        }
        self.drain();
    }

    fn open_server(
        &mut self,
        own: usize,
        connection: ConnectionId,
        client: Option<SocketAddr>,
        server: SocketAddr,
    ) {
        let script = match self.servers.get(&server.port()).cloned() {
            Some(ServerScript::InTurn(scripts)) => scripts.borrow_mut().pop_front(),
            script => script,
        };
        let node = &mut self.nodes[own];
        let result = match script {
            None | Some(ServerScript::Refuse) => Err(ConnectFailure::Refused),
            Some(ServerScript::Fail(failure)) => Err(failure),
            Some(ServerScript::Unreachable) => Err(ConnectFailure::Unreachable),
            Some(ServerScript::Dead) => return node.attempts.push(connection),
            Some(script) => {
                let mut host = TestHost {
                    seen_client: client,
                    reads_at_most: matches!(script, ServerScript::Stall | ServerScript::Pour)
                        .then_some(0),
                    ..TestHost::default()
                };
                if let ServerScript::Pour = &script {
                    self.poured += 1;
                    host.pours = Some(SeededRandom::from_seed(POURED + self.poured));
                }
                if let ServerScript::GreetAndEcho { greeting } = &script {
                    host.to_send.push_back(greeting.clone());
                }
                host.script = Some(script);
                node.hosts.insert(connection, host);
                Ok(())
            }
        };
        node.engine
            .handle(self.now, EngineInput::Connected { connection, result });
    }

    /// A server's end of a connection whose attempt succeeds after all; the test tells the engine so.
    pub(crate) fn add_server_host(&mut self, connection: ConnectionId) {
        self.nodes[FAR]
            .hosts
            .insert(connection, TestHost::default());
    }

    /// Lets every host act within its script, its credit and its data. Returns true if one did.
    fn hosts_act(&mut self, own: usize) -> bool {
        let now = self.now;
        let node = &mut self.nodes[own];
        let mut inputs = Vec::new();
        for (connection, host) in &mut node.hosts {
            if host.was_reset || host.was_closed {
                if let Some(ServerScript::Files(server)) = host.script.take() {
                    server.borrow_mut().disconnect();
                }
                continue;
            }
            host.follow_script();
            if matches!(&host.script, Some(ServerScript::ResetAfter { after }) if host.received.len() >= *after)
            {
                host.was_reset = true;
                inputs.push(EngineInput::Aborted {
                    connection: *connection,
                });
                continue;
            }
            if host.reset_after && !host.failure_told && !host.to_send.is_empty() {
                host.failure_told = true;
                inputs.push(EngineInput::Failed {
                    connection: *connection,
                });
            }
            while host.credit > 0
                && let Some(mut bytes) = host.to_send.pop_front()
            {
                if bytes.len() > host.credit {
                    host.to_send.push_front(bytes.split_off(host.credit));
                }
                host.credit -= bytes.len();
                inputs.push(EngineInput::Received {
                    connection: *connection,
                    bytes,
                });
            }
            if host.finish_after && !host.finish_sent && host.to_send.is_empty() {
                host.finish_sent = true;
                inputs.push(EngineInput::Finished {
                    connection: *connection,
                });
            }
            if host.reset_after && host.to_send.is_empty() {
                host.was_reset = true;
                inputs.push(EngineInput::Aborted {
                    connection: *connection,
                });
            }
        }
        let acted = !inputs.is_empty();
        for input in inputs {
            node.engine.handle(now, input);
        }
        acted
    }

    fn pipe(&self) -> BytePipe {
        BytePipe::new(PipeConfig {
            rate: self.path.rate,
            delay: self.path.delay,
            ..PipeConfig::default()
        })
    }
}

impl TestHost {
    fn follow_script(&mut self) {
        match &self.script {
            Some(ServerScript::Answer { after, answer }) => {
                if !self.script_done && self.received.len() >= *after {
                    self.script_done = true;
                    for piece in answer.chunks(16 * 1024) {
                        self.to_send.push_back(Bytes::copy_from_slice(piece));
                    }
                    self.finish_after = true;
                }
            }
            Some(ServerScript::AnswerAndReset { after, answer }) => {
                if !self.script_done && self.received.len() >= *after {
                    self.script_done = true;
                    for piece in answer.chunks(16 * 1024) {
                        self.to_send.push_back(Bytes::copy_from_slice(piece));
                    }
                    self.reset_after = true;
                }
            }
            Some(ServerScript::GreetAndEcho { .. }) => {
                if !self.received.is_empty() {
                    self.to_send.push_back(self.received.split().freeze());
                }
                self.finish_after = self.peer_finished;
            }
            Some(ServerScript::Swallow) => self.finish_after = self.peer_finished,
            Some(ServerScript::Files(server)) => {
                if !self.received.is_empty() {
                    let answers = server.borrow_mut().hear(&self.received.split());
                    if !answers.is_empty() {
                        self.to_send.push_back(answers.into());
                    }
                }
                self.finish_after = self.peer_finished;
            }
            Some(ServerScript::Web(server)) => {
                let answers = server.borrow_mut().hear(&mut self.received);
                if !answers.is_empty() {
                    self.to_send.push_back(answers.into());
                }
                self.finish_after = self.peer_finished;
            }
            Some(
                ServerScript::Refuse
                | ServerScript::Fail(_)
                | ServerScript::Unreachable
                | ServerScript::Dead
                | ServerScript::InTurn(_)
                | ServerScript::ResetAfter { .. }
                | ServerScript::Stall
                | ServerScript::Pour,
            )
            | None => {}
        }
        if let Some(random) = &mut self.pours
            && self.to_send.is_empty()
            && self.credit > 0
        {
            let mut bytes = vec![0; self.credit];
            random.fill(&mut bytes);
            self.to_send.push_back(bytes.into());
        }
    }
}

/// The address where a node receives packets.
fn address(own: usize) -> SocketAddr {
    SocketAddr::from(([198, 18, 0, 1 + own as u8], 4433))
}

fn offer(own: usize, link: u64) -> DatagramOffer {
    let mut nonce = [own as u8; 16];
    nonce[8..].copy_from_slice(&link.to_be_bytes());
    DatagramOffer {
        version: DATAGRAM_VERSION,
        suite: CipherSuite::Aes256Gcm,
        connection_id: packet::ConnectionId([own as u8; 8]),
        nonce,
        port: 4433,
    }
}

/// The configuration of one of the two nodes.
pub(crate) fn config(setting: &WorldSettings, ids: &[NodeId; 2], own: usize) -> EngineConfig {
    let prefix = |text: &str| text.parse().unwrap();
    let mut peers = vec![PeerConfig {
        node: ids[1 - own],
        name: ["far", "near"][own].to_owned(),
        prefixes: vec![prefix(["198.18.2.0/24", "198.18.1.0/24"][own])],
    }];
    if setting.has_other_peer {
        peers.push(PeerConfig {
            node: NodeId([9; 32]),
            name: "other".to_owned(),
            prefixes: vec![prefix("198.18.9.0/24")],
        });
    }
    EngineConfig {
        local: ids[own],
        peers,
        serve: setting.serve.clone(),
        serve_peers_without_prefixes: false,
        limits: match own {
            NEAR => setting.limits,
            _ => setting.far_limits,
        },
        // The near node's policy must bind its peer too.
        policy: match own {
            NEAR => setting.policy.clone(),
            _ => setting.far_policy.clone(),
        },
        dictionary: setting.dictionary,
        dictionary_key: Some(DictionaryKey::new([1; 32])),
        tunnel: setting.tunnel.clone(),
        datagrams: tunnel::transport::PathSettings::default(),
    }
}
