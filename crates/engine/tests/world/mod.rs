//! The whole product in virtual time: two engines, a path between them, hosts that follow scripts.
//!
//! ```text
//!  scripted clients ── near engine ══ byte pipes with rate and delay ══ far engine ── scripted servers
//! ```
//!
//! Nothing sleeps and nothing is random but by seed: [`World::run_until`] jumps from one due
//! moment to the next until what the test waits for has come.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use accelerate::registry::Entry;
use accelerate::shared::testing::MemoryFiles;
use accelerate::shared::{FileRequest, Purged};
use accelerate::smb::testing::FileServer;
use bytes::{Bytes, BytesMut};
use engine::{
    Config, ConnectFailure, ConnectionId, Engine, Event, Input, Limits, LinkEnd, LinkId, Output,
    PeerConfig, Policy, Prefix, Route, Side, Surroundings, Via,
};
use reduce::testing::MemoryDisk;
use reduce::{DictionaryConfig, DictionaryKey, DiskCompletion};
use testkit::{BytePipe, PipeConfig};
use tunnel::DatagramAgreement;
use tunnel::packet::{self, ChallengeSeed, KeyLimits, PathSecret, Suite};
use tunnel::transport::{Codepoint, Keys};
use tunnel::wire::{DATAGRAM_VERSION, DatagramOffer};
use vocab::{Bitrate, ByteCount, NodeId, Random, Time};

use super::web::WebServer;

/// The two nodes, as indices.
pub(crate) const NEAR: usize = 0;
/// See [`NEAR`].
pub(crate) const FAR: usize = 1;

/// A run that needs more steps than this hangs.
const STEP_LIMIT: usize = 3_000_000;
/// What a shell asks an engine for at a time.
const TRANSMIT: usize = 16 * 1024;
/// Packets of one system call.
const BATCH: usize = 16;
/// The first seed of what hosts send without end.
const POURED: u64 = 1 << 32;

/// What the server on a port does.
#[derive(Clone)]
pub(crate) enum Script {
    /// Answers this after `after` bytes of request, then ends its stream.
    Answer { after: usize, answer: Bytes },
    /// Says this first, then sends back what it gets.
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
    /// Is out of reach, as the kernel says at once.
    Unreachable,
    /// Never answers: the attempt fails when the test says so.
    Dead,
    /// Answers requests of HTTP.
    Web(Rc<RefCell<WebServer>>),
    /// Each connection meets the next of these; when none is left, it is refused.
    InTurn(Rc<RefCell<VecDeque<Script>>>),
    /// Serves files.
    Files(Rc<RefCell<FileServer>>),
}

/// One host's end of one connection.
#[derive(Default)]
pub(crate) struct Host {
    pub(crate) received: BytesMut,
    pub(crate) first_byte_at: Option<Time>,
    pub(crate) last_byte_at: Option<Time>,
    pub(crate) peer_finished: bool,
    pub(crate) was_reset: bool,
    pub(crate) was_closed: bool,
    /// A client that asked may begin from here on.
    pub(crate) admitted_at: Option<Time>,
    /// ... or not, for this reason.
    pub(crate) declined: Option<ConnectFailure>,
    /// The address the connection was made from.
    pub(crate) seen_client: Option<SocketAddr>,
    credit: usize,
    to_send: VecDeque<Bytes>,
    finish_after: bool,
    finish_sent: bool,
    /// A reset follows what is to be sent, and a FIN where one is to follow as well.
    reset_after: bool,
    failure_told: bool,
    script: Option<Script>,
    script_done: bool,
    /// It reads so many bytes and then no more.
    reads_at_most: Option<usize>,
    unread: usize,
    /// What it sends without end.
    pours: Option<Random>,
}

/// One node with what a shell would keep around it.
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) hosts: BTreeMap<ConnectionId, Host>,
    pub(crate) intercepted: Vec<NodeId>,
    /// Servers that are bypassed, and for how long from the moment when that was said.
    pub(crate) avoided: BTreeMap<SocketAddr, Duration>,
    /// Networks between which the rules bypass everything.
    pub(crate) bypassed_routes: Vec<String>,
    /// Servers whose clients the rules accept at once.
    pub(crate) accepted_at_once: BTreeSet<SocketAddr>,
    /// Connections to dead servers that are being opened.
    pub(crate) attempts: Vec<ConnectionId>,
    /// Clients that are to pass by.
    pub(crate) passing: Vec<Prefix>,
    pub(crate) events: Vec<Event>,
    pub(crate) stopped: bool,
    /// Its process is stopped by a signal, or dead: it does nothing.
    is_frozen: bool,
    pub(crate) disk: MemoryDisk,
    /// The accelerators' files.
    pub(crate) files: MemoryFiles,
    /// Requests for them stay, until the test says otherwise.
    pub(crate) holds_files: bool,
    pub(crate) file_requests: VecDeque<(&'static Entry, FileRequest)>,
    /// How operators' purges ended.
    pub(crate) purged: Vec<(u64, Result<Purged, String>)>,
    link: Option<LinkId>,
    /// The link whose datagrams come and go, though it may have broken.
    path: Option<LinkId>,
    id: NodeId,
    accepted: u64,
}

/// Two nodes and the path between them.
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) nodes: [Node; 2],
    pub(crate) servers: BTreeMap<u16, Script>,
    /// Bytes that each node put on the path.
    pub(crate) wan_bytes: [u64; 2],
    pipes: [BytePipe; 2],
    /// What datagrams meet; `None` where the nodes send none.
    packets: Option<emulate::Link>,
    packets_blocked: bool,
    path: Path,
    links: u64,
    /// Hosts that have begun to send without end.
    poured: u64,
}

/// What a world's path is like.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    pub(crate) rate: Bitrate,
    pub(crate) delay: Duration,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            rate: Bitrate::from_bits_per_second(10_000_000),
            delay: Duration::from_millis(15),
        }
    }
}

/// What a test may set of both nodes.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) path: Path,
    pub(crate) limits: Limits,
    /// The far node's, where they are to differ from the usual ones.
    pub(crate) far_limits: Limits,
    pub(crate) policy: Policy,
    /// The far node's.
    pub(crate) far_policy: Policy,
    /// Whether both have a second peer, which never comes.
    pub(crate) has_other_peer: bool,
    /// Where both serve their peers; by default their LANs.
    pub(crate) serve: Option<Vec<Prefix>>,
    pub(crate) dictionary: DictionaryConfig,
    /// What datagrams meet; `None` where the nodes send none.
    pub(crate) packets: Option<emulate::LinkConfig>,
    /// The sessions' windows.
    pub(crate) tunnel: tunnel::Config,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            path: Path::default(),
            limits: Limits::default(),
            far_limits: Limits::default(),
            policy: Policy::default(),
            far_policy: Policy::default(),
            has_other_peer: false,
            serve: None,
            dictionary: DictionaryConfig {
                memory: ByteCount::mebibytes(64),
                disk: ByteCount::mebibytes(256),
                ..DictionaryConfig::default()
            },
            packets: None,
            tunnel: tunnel::Config::default(),
        }
    }
}

pub(crate) fn client() -> SocketAddr {
    "198.18.1.2:40000".parse().unwrap()
}

pub(crate) fn server(port: u16) -> SocketAddr {
    SocketAddr::new("198.18.2.2".parse().unwrap(), port)
}

impl World {
    /// A world whose link is up.
    pub(crate) fn new(setting: Setting) -> Self {
        let ids = [NodeId([1; 32]), NodeId([2; 32])];
        let pipe = || {
            BytePipe::new(PipeConfig {
                rate: setting.path.rate,
                delay: setting.path.delay,
                ..PipeConfig::default()
            })
        };
        let node = |own: usize| Node {
            engine: Engine::new(
                config(&setting, &ids, own),
                Time::ZERO,
                Random::from_seed(own as u64),
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
            world.input(own, Input::Calendar { since_1970 });
        }
        world.connect();
        world
    }

    /// What each node's shell says of its machine: a LAN, a WAN, and an address in each.
    pub(crate) fn look_around(&mut self, own: usize) {
        let surroundings = surroundings(own);
        self.input(own, Input::Surroundings(surroundings));
    }

    /// The shell says that there is one more network behind the LAN.
    pub(crate) fn add_lan_route(&mut self, own: usize, to: &str) {
        let mut surroundings = surroundings(own);
        surroundings.routes.push(Route {
            to: to.parse().unwrap(),
            side: Side::Lan,
        });
        self.input(own, Input::Surroundings(surroundings));
    }

    /// The node's owner says that more lies behind its peer.
    pub(crate) fn widen_prefixes(&mut self, own: usize, prefixes: &[&str]) {
        let ids = [self.nodes[NEAR].id, self.nodes[FAR].id];
        let mut config = config(&Setting::default(), &ids, own);
        config.peers[0].prefixes = prefixes.iter().map(|text| text.parse().unwrap()).collect();
        self.input(own, Input::Configure(Box::new(config)));
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
                Input::LinkUp {
                    link,
                    peer,
                    dialed_by_us: own == NEAR,
                    offer: self.packets.is_some().then(|| offer(own, self.links)),
                },
            );
        }
        let up = |world: &World| world.nodes.iter().all(|node| node.intercepted.len() == 1);
        self.run_until(up, Duration::from_secs(10));
    }

    /// The link dies at both ends; what is on it is lost.
    pub(crate) fn cut(&mut self) {
        self.end_link(LinkEnd::Lost);
    }

    /// The link ends at both ends in this way; what is on it is lost.
    pub(crate) fn end_link(&mut self, end: LinkEnd) {
        for own in [NEAR, FAR] {
            if let Some(link) = self.nodes[own].link.take() {
                self.input(own, Input::LinkDown { link, end });
            }
        }
        self.pipes = [self.pipe(), self.pipe()];
    }

    /// The link dies at one end, and the other hears nothing of it.
    pub(crate) fn lose_link(&mut self, own: usize) {
        self.lose_link_by(own, LinkEnd::Lost);
    }

    fn lose_link_by(&mut self, own: usize, end: LinkEnd) {
        if let Some(link) = self.nodes[own].link.take() {
            let now = self.now;
            let down = Input::LinkDown { link, end };
            self.nodes[own].engine.handle(now, down);
        }
        self.pipes = [self.pipe(), self.pipe()];
        self.drain();
    }

    /// The node's process is stopped (SIGSTOP): the kernel takes what comes for it, and nothing answers.
    pub(crate) fn freeze(&mut self, own: usize) {
        self.nodes[own].is_frozen = true;
        self.pipes[1 - own].set_blocked(true);
    }

    /// The process goes on, with what has come for it meanwhile.
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

    /// The path swallows everything from here on, or no longer does.
    pub(crate) fn set_blocked(&mut self, blocked: bool) {
        for pipe in &mut self.pipes {
            pipe.set_blocked(blocked);
        }
    }

    /// The path swallows all datagrams from here on, or no longer does.
    pub(crate) fn set_packets_blocked(&mut self, blocked: bool) {
        self.packets_blocked = blocked;
    }

    /// The far node is killed and started again with an empty memory and the disk it had.
    pub(crate) fn restart(&mut self, own: usize, setting: &Setting) {
        let ids = [self.nodes[NEAR].id, self.nodes[FAR].id];
        self.cut();
        let seed = 1000 + self.links;
        let node = &mut self.nodes[own];
        node.engine = Engine::new(
            config(setting, &ids, own),
            self.now,
            Random::from_seed(seed),
        );
        node.hosts.clear();
        node.file_requests.clear();
        node.intercepted.clear();
        node.avoided.clear();
        self.look_around(own);
    }

    /// A client connects through the near node.
    pub(crate) fn accept(&mut self, port: u16) -> ConnectionId {
        self.accept_between(client(), server(port), Via::Transparent)
    }

    /// The same, by a proxy or intercepted.
    pub(crate) fn accept_via(&mut self, port: u16, via: Via) -> ConnectionId {
        self.accept_between(client(), server(port), via)
    }

    /// A client connects to this server through the near node, from one port after the other.
    pub(crate) fn accept_between(
        &mut self,
        mut client: SocketAddr,
        server: SocketAddr,
        via: Via,
    ) -> ConnectionId {
        let node = &mut self.nodes[NEAR];
        node.accepted += 1;
        let connection = ConnectionId::Accepted(node.accepted);
        node.hosts.insert(connection, Host::default());
        client.set_port(40_000 + (node.accepted % 20_000) as u16);
        let accepted = Input::Accepted {
            connection,
            client,
            server,
            via,
        };
        self.input(NEAR, accepted);
        connection
    }

    /// A client asks for a connection and waits for the outcome.
    pub(crate) fn ask_via(&mut self, port: u16, via: Via) -> ConnectionId {
        let (connection, client) = self.new_client();
        let server = server(port);
        self.input(
            NEAR,
            Input::Asked {
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
        node.hosts.insert(connection, Host::default());
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
        host.pours = Some(Random::from_seed(POURED + self.poured));
        self.drain();
    }

    pub(crate) fn id(&self, own: usize) -> NodeId {
        self.nodes[own].id
    }

    pub(crate) fn client_host(&self, connection: ConnectionId) -> &Host {
        &self.nodes[NEAR].hosts[&connection]
    }

    /// The servers' ends of all connections, in the order they were opened.
    pub(crate) fn server_hosts(&self) -> impl Iterator<Item = &Host> {
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

    /// A client that reads no more takes this much of what waits for it.
    pub(crate) fn take(&mut self, connection: ConnectionId, bytes: usize) {
        let host = self.nodes[NEAR].hosts.get_mut(&connection).unwrap();
        let bytes = bytes.min(host.unread);
        host.unread -= bytes;
        self.input(NEAR, Input::Written { connection, bytes });
    }

    /// The client resets its connection.
    pub(crate) fn abort(&mut self, connection: ConnectionId) {
        self.input(NEAR, Input::Aborted { connection });
    }

    pub(crate) fn input(&mut self, own: usize, input: Input) {
        self.nodes[own].engine.handle(self.now, input);
        self.drain();
    }

    /// Lets time pass until `done`, which must come within `patience` of virtual time.
    pub(crate) fn run_until(&mut self, done: impl Fn(&World) -> bool, patience: Duration) {
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

    /// The configuration is read again and is what it was.
    pub(crate) fn reload(&mut self, own: usize) {
        let ids = [self.nodes[NEAR].id, self.nodes[FAR].id];
        let config = config(&Setting::default(), &ids, own);
        self.input(own, Input::Configure(Box::new(config)));
    }

    /// The configuration of a node that has no peer any longer.
    pub(crate) fn forget_peers(&mut self, own: usize) {
        let ids = [self.nodes[NEAR].id, self.nodes[FAR].id];
        let mut config = config(&Setting::default(), &ids, own);
        config.peers.clear();
        self.input(own, Input::Configure(Box::new(config)));
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
                let input = Input::LinkReceived { link, bytes };
                self.nodes[own].engine.handle(self.now, input);
            }
            while let Some(packet) = self.arrived_packet(own) {
                let Some(link) = self.nodes[own].path else {
                    continue;
                };
                let input = Input::Datagrams {
                    link,
                    from: address(1 - own),
                    codepoint: Codepoint::NotEct,
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

    /// Does what the engines and hosts want until all are content.
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

    /// What TLS and the system give a shell: the same secret at both ends.
    fn start_datagrams(&mut self, own: usize, link: LinkId, agreement: DatagramAgreement) {
        let DatagramAgreement {
            role,
            context,
            connection_ids,
            ..
        } = agreement;
        let suite = context.suite;
        let export = |room: &mut [u8], _: &'static [u8], context: &[u8]| {
            for (place, byte) in room.iter_mut().enumerate() {
                *byte = context[place % context.len()];
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(mut secret) = PathSecret::export(role, context, export);
        let (sealer, opener) = secret
            .path(self.now, 0, connection_ids, KeyLimits::of(suite))
            .unwrap();
        let keys = Keys {
            sealer,
            opener,
            challenges: ChallengeSeed::new(|room| room.fill(own as u8)),
        };
        let ready = Input::DatagramsReady {
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

    fn output(&mut self, own: usize, output: Output) {
        let now = self.now;
        if let Output::StartDatagrams { link, agreement } = output {
            return self.start_datagrams(own, link, *agreement);
        }
        let node = &mut self.nodes[own];
        match output {
            Output::Write { connection, bytes } => {
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
                    .handle(now, Input::Written { connection, bytes });
            }
            Output::FinishWrite { connection } => {
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.peer_finished = true;
                }
            }
            Output::Reset { connection } => {
                node.attempts.retain(|attempt| *attempt != connection);
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.was_reset = true;
                    // The system drops what the host has not taken.
                    let taken = host.received.len().saturating_sub(host.unread);
                    host.received.truncate(taken);
                }
            }
            Output::ResetWhenDelivered { connection } => {
                let host = node.hosts.get_mut(&connection);
                let host = host.expect("the engine waits for the answer of the host's connection");
                assert_eq!(host.unread, 0, "the engine waits until all is written");
                host.was_reset = true;
                node.engine.handle(now, Input::Aborted { connection });
            }
            Output::Close { connection } => {
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.was_closed = true;
                }
            }
            Output::ReadCredit { connection, bytes } => {
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.credit += bytes;
                }
            }
            Output::Connect {
                connection,
                client,
                server,
                ..
            } => self.open_server(own, connection, client, server),
            Output::Transmit { .. }
            | Output::TransmitDatagrams { .. }
            | Output::StartDatagrams { .. } => {}
            Output::SendLast { link, bytes } => {
                if node.link == Some(link) {
                    self.wan_bytes[own] += bytes.len() as u64;
                    self.pipes[own].send(now, bytes);
                }
            }
            Output::CloseLink { link, .. } => {
                if node.link == Some(link) {
                    node.link = None;
                }
            }
            Output::AcceleratorFile {
                accelerator,
                request,
            } => {
                node.file_requests.push_back((accelerator, request));
                if !node.holds_files {
                    self.complete_files(own);
                }
            }
            Output::AcceleratorPurged { id, result } => node.purged.push((id, result)),
            Output::Disk(request) => {
                let completion: DiskCompletion = node.disk.execute(request);
                node.engine.handle(now, Input::Disk(completion));
            }
            Output::Avoid { server, lasting } => {
                node.avoided.insert(server, lasting);
                node.engine.handle(now, Input::Avoided { server });
            }
            Output::Readmit { server } => {
                node.avoided.remove(&server);
            }
            Output::BypassRoutes { routes } => {
                let routes = routes.iter();
                let texts = routes.map(|(clients, servers)| format!("{clients} to {servers}"));
                node.bypassed_routes = texts.collect();
            }
            Output::AcceptAtOnce { server, .. } => {
                node.accepted_at_once.insert(server);
            }
            Output::AcceptAfterServer { server } => {
                node.accepted_at_once.remove(&server);
            }
            Output::Admit { connection } => {
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.admitted_at = Some(now);
                }
            }
            Output::Decline {
                connection,
                failure,
            } => {
                if let Some(host) = node.hosts.get_mut(&connection) {
                    host.declined = Some(failure);
                }
            }
            Output::PassBy { clients, .. } => node.passing.push(clients),
            Output::Intercept { peers } => node.intercepted = peers,
            Output::Event(event) => node.events.push(event),
            Output::Stopped => node.stopped = true,
        }
    }

    /// Carries out the requests for accelerators' files.
    fn complete_files(&mut self, own: usize) {
        let node = &mut self.nodes[own];
        while let Some((accelerator, request)) = node.file_requests.pop_front() {
            let completion = node.files.complete(request);
            let completed = Input::AcceleratorFile {
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
            Some(Script::InTurn(scripts)) => scripts.borrow_mut().pop_front(),
            script => script,
        };
        let node = &mut self.nodes[own];
        let result = match script {
            None | Some(Script::Refuse) => Err(ConnectFailure::Refused),
            Some(Script::Fail(failure)) => Err(failure),
            Some(Script::Unreachable) => Err(ConnectFailure::Unreachable),
            Some(Script::Dead) => return node.attempts.push(connection),
            Some(script) => {
                let mut host = Host {
                    seen_client: client,
                    reads_at_most: matches!(script, Script::Stall | Script::Pour).then_some(0),
                    ..Host::default()
                };
                if let Script::Pour = &script {
                    self.poured += 1;
                    host.pours = Some(Random::from_seed(POURED + self.poured));
                }
                if let Script::GreetAndEcho { greeting } = &script {
                    host.to_send.push_back(greeting.clone());
                }
                host.script = Some(script);
                node.hosts.insert(connection, host);
                Ok(())
            }
        };
        node.engine
            .handle(self.now, Input::Connected { connection, result });
    }

    /// A server's end of a connection whose attempt succeeds after all; the test tells the engine so.
    pub(crate) fn add_server_host(&mut self, connection: ConnectionId) {
        self.nodes[FAR].hosts.insert(connection, Host::default());
    }

    /// Lets every host do what its script, its credit and its data allow.
    fn hosts_act(&mut self, own: usize) -> bool {
        let now = self.now;
        let node = &mut self.nodes[own];
        let mut inputs = Vec::new();
        for (connection, host) in &mut node.hosts {
            if host.was_reset || host.was_closed {
                if let Some(Script::Files(server)) = host.script.take() {
                    server.borrow_mut().disconnect();
                }
                continue;
            }
            host.follow_script();
            if matches!(&host.script, Some(Script::ResetAfter { after }) if host.received.len() >= *after)
            {
                host.was_reset = true;
                inputs.push(Input::Aborted {
                    connection: *connection,
                });
                continue;
            }
            if host.reset_after && !host.failure_told && !host.to_send.is_empty() {
                host.failure_told = true;
                inputs.push(Input::Failed {
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
                inputs.push(Input::Received {
                    connection: *connection,
                    bytes,
                });
            }
            if host.finish_after && !host.finish_sent && host.to_send.is_empty() {
                host.finish_sent = true;
                inputs.push(Input::Finished {
                    connection: *connection,
                });
            }
            if host.reset_after && host.to_send.is_empty() {
                host.was_reset = true;
                inputs.push(Input::Aborted {
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

impl Host {
    fn follow_script(&mut self) {
        match &self.script {
            Some(Script::Answer { after, answer }) => {
                if !self.script_done && self.received.len() >= *after {
                    self.script_done = true;
                    for piece in answer.chunks(16 * 1024) {
                        self.to_send.push_back(Bytes::copy_from_slice(piece));
                    }
                    self.finish_after = true;
                }
            }
            Some(Script::AnswerAndReset { after, answer }) => {
                if !self.script_done && self.received.len() >= *after {
                    self.script_done = true;
                    for piece in answer.chunks(16 * 1024) {
                        self.to_send.push_back(Bytes::copy_from_slice(piece));
                    }
                    self.reset_after = true;
                }
            }
            Some(Script::GreetAndEcho { .. }) => {
                if !self.received.is_empty() {
                    self.to_send.push_back(self.received.split().freeze());
                }
                self.finish_after = self.peer_finished;
            }
            Some(Script::Swallow) => self.finish_after = self.peer_finished,
            Some(Script::Files(server)) => {
                if !self.received.is_empty() {
                    let answers = server.borrow_mut().hear(&self.received.split());
                    if !answers.is_empty() {
                        self.to_send.push_back(answers.into());
                    }
                }
                self.finish_after = self.peer_finished;
            }
            Some(Script::Web(server)) => {
                let answers = server.borrow_mut().hear(&mut self.received);
                if !answers.is_empty() {
                    self.to_send.push_back(answers.into());
                }
                self.finish_after = self.peer_finished;
            }
            Some(
                Script::Refuse
                | Script::Fail(_)
                | Script::Unreachable
                | Script::Dead
                | Script::InTurn(_)
                | Script::ResetAfter { .. }
                | Script::Stall
                | Script::Pour,
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

/// See [`World::look_around`].
fn surroundings(own: usize) -> Surroundings {
    let prefix = |text: &str| text.parse::<Prefix>().unwrap();
    let lan = ["198.18.1.0/24", "198.18.2.0/24"][own];
    let route = |to: &str, side| Route {
        to: prefix(to),
        side,
    };
    Surroundings {
        routes: vec![
            route("0.0.0.0/0", Side::Other),
            route("198.18.0.0/24", Side::Other),
            route(lan, Side::Lan),
        ],
        own: ["127.0.0.0/8", "::1", ["198.18.1.1", "198.18.2.1"][own]]
            .map(prefix)
            .to_vec(),
    }
}

/// Where a node takes packets.
fn address(own: usize) -> SocketAddr {
    SocketAddr::from(([198, 18, 0, 1 + own as u8], 4433))
}

fn offer(own: usize, link: u64) -> DatagramOffer {
    let mut nonce = [own as u8; 16];
    nonce[8..].copy_from_slice(&link.to_be_bytes());
    DatagramOffer {
        version: DATAGRAM_VERSION,
        suite: Suite::Aes256Gcm,
        connection_id: packet::ConnectionId([own as u8; 8]),
        nonce,
        port: 4433,
    }
}

/// The configuration of one of the two nodes.
pub(crate) fn config(setting: &Setting, ids: &[NodeId; 2], own: usize) -> Config {
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
    Config {
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
        datagrams: tunnel::transport::Settings::default(),
    }
}
