//! Entry of `engine`: a paired peer that was taken over, and hosts that do as they like.
//!
//! The peer speaks the session's protocol correctly, by a session of its own, and lies in what
//! travels inside: the hello's content, opens, encoded streams, messages. Bytes that are no frames
//! at all come as well. Whatever comes, the engine may not panic, go round in a circle, connect to
//! its own machine, have more flows than its limit, or ask for more from a host than it has room
//! for.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use accelerate::shared::memory_files::MemoryFiles;
use bytes::Bytes;
use engine::{
    ArrivalMethod, ConnectFailure, ConnectionId, Engine, EngineConfig, EngineInput, EngineLimits,
    EngineOutput, FlowPolicy, LinkEnd, LinkId, PeerConfig,
};
use reduce::testing::MemoryDisk;
use reduce::{DictionaryConfig, DictionaryKey};
use tunnel::{OpenAnswer, OpenRequest, ResetReason, Session};
use vocab::{ByteCount, FlowId, NodeId, SeededRandom, Time};

use crate::ByteScript;
use crate::seed::{CorpusSeed, seed, sized};

/// Outputs after one input past which the engine is taken to be in a circle.
const MOST_OUTPUTS: usize = 100_000;

/// Flows that the engine may have; small, so that a script reaches it.
const FLOW_LIMIT: usize = 8;

const LOCAL: NodeId = NodeId([1; 32]);
const PEER: NodeId = NodeId([2; 32]);

struct EngineSimulation {
    now: Time,
    engine: Engine,
    disk: MemoryDisk,
    files: MemoryFiles,
    /// The peer's session and the flows that it knows.
    peer: Session,
    flows: Vec<FlowId>,
    link: LinkId,
    /// Open connections of the engine and the bytes that may still be read from each.
    connections: BTreeMap<ConnectionId, usize>,
    /// Connections that the engine waits for.
    connecting: VecDeque<ConnectionId>,
    /// Writes that a host has not taken yet.
    unwritten: VecDeque<(ConnectionId, usize)>,
    accepted: u64,
}

/// Runs a script against an engine.
pub(crate) fn peer(bytes: &[u8]) {
    let mut script = ByteScript::new(bytes);
    let mut world = EngineSimulation::new();
    while let Some(step) = script.step() {
        world.take_step(step % 32, &mut script);
        world.drain();
    }
    world.exchange();
    world.wait(Duration::from_secs(60));
    world.drain();
}

impl EngineSimulation {
    fn new() -> Self {
        let now = Time::from_nanos(1_000_000_000);
        let config = EngineConfig {
            local: LOCAL,
            peers: vec![PeerConfig {
                node: PEER,
                name: "far".to_owned(),
                prefixes: ["198.18.1.0/24", "198.18.2.0/24"]
                    .map(|text| text.parse().expect("a prefix"))
                    .to_vec(),
            }],
            serve: Some(vec!["198.18.0.0/15".parse().expect("a prefix")]),
            serve_peers_without_prefixes: true,
            limits: EngineLimits {
                flows: FLOW_LIMIT,
                memory: ByteCount::mebibytes(4),
                ..EngineLimits::default()
            },
            policy: FlowPolicy::default(),
            dictionary: DictionaryConfig {
                memory: ByteCount::mebibytes(1),
                disk: ByteCount::kibibytes(256),
                segment: ByteCount::kibibytes(64),
            },
            dictionary_key: Some(DictionaryKey::new([1; 32])),
            tunnel: tunnel::SessionConfig::default(),
            datagrams: tunnel::transport::PathSettings::default(),
        };
        let engine = Engine::new(config, now, SeededRandom::from_seed(1));
        let session = tunnel::SessionConfig::default();
        let peer = Session::new(session, PEER, LOCAL, SeededRandom::from_seed(2), now);
        let mut world = Self {
            now,
            engine,
            disk: MemoryDisk::new(),
            files: MemoryFiles::default(),
            peer,
            flows: Vec::new(),
            link: LinkId(0),
            connections: BTreeMap::new(),
            connecting: VecDeque::new(),
            unwritten: VecDeque::new(),
            accepted: 0,
        };
        world.drain();
        world.replace_link();
        world.exchange();
        world
    }

    fn take_step(&mut self, step: u8, script: &mut ByteScript<'_>) {
        match step {
            0 => self.exchange(),
            1 => self.open(script),
            2 | 3 => self.peer_writes(script),
            4 => {
                let flow = self.pick(script.byte());
                let kind = script.byte();
                let bytes = Bytes::copy_from_slice(script.bytes());
                self.peer.send_message(flow, kind, bytes);
            }
            5 => {
                let flow = self.pick(script.byte());
                self.peer.finish(flow);
            }
            6 => {
                let flow = self.pick(script.byte());
                let reason = ResetReason::Unknown(script.byte());
                self.peer.reset(flow, reason);
            }
            7 => {
                let flow = self.pick(script.byte());
                let answer = match script.byte() % 2 {
                    0 => OpenAnswer::Connected,
                    _ => OpenAnswer::Failed(ConnectFailure::Refused),
                };
                self.peer.answer(flow, answer);
            }
            8 => {
                let blob = script.bytes();
                let blob = &blob[..blob.len().min(tunnel::limits::HELLO_BLOB_LIMIT)];
                self.peer.set_hello_blob(Bytes::copy_from_slice(blob));
            }
            9 => self.replace_link(),
            10 => {
                let bytes = Bytes::copy_from_slice(script.bytes());
                self.give(EngineInput::LinkReceived {
                    link: self.link,
                    bytes,
                });
            }
            11 => {
                self.peer.link_down(self.now, self.link, LinkEnd::Lost);
                self.give(EngineInput::LinkDown {
                    link: self.link,
                    end: LinkEnd::ClosedByPeer,
                });
            }
            12 => self.wait(Duration::from_millis(u64::from(script.short()))),
            13 => self.accept(script),
            14 | 15 => self.host_sends(script),
            16 => {
                if let Some(connection) = self.pick_connection(script.byte()) {
                    self.give(EngineInput::Finished { connection });
                }
            }
            17 => {
                if let Some(connection) = self.pick_connection(script.byte()) {
                    self.connections.remove(&connection);
                    self.give(EngineInput::Aborted { connection });
                }
            }
            18 => {
                if let Some(connection) = self.connecting.pop_front() {
                    let result = match script.byte() % 3 {
                        0 => Ok(()),
                        1 => Err(ConnectFailure::Refused),
                        _ => Err(ConnectFailure::TimedOut),
                    };
                    self.give(EngineInput::Connected { connection, result });
                }
            }
            19 => {
                if let Some((connection, bytes)) = self.unwritten.pop_front() {
                    self.give(EngineInput::Written { connection, bytes });
                }
            }
            20 => {
                let flow = self.pick(script.byte());
                // The peer says that it has resolved what it may never have received.
                self.peer.consumed(flow, u64::from(script.short()));
            }
            21 => self.peer.goaway(self.now),
            22 => self.give(EngineInput::ClearDictionary {
                key: Some(DictionaryKey::new([2; 32])),
            }),
            23 => self.disk.broken = !self.disk.broken,
            24 => self.give(EngineInput::Stop {
                grace: Duration::from_secs(5),
            }),
            _ => {
                self.connect_all();
                self.exchange();
            }
        }
    }

    fn replace_link(&mut self) {
        self.peer.link_down(self.now, self.link, LinkEnd::Lost);
        self.give(EngineInput::LinkDown {
            link: self.link,
            end: LinkEnd::Lost,
        });
        self.link = LinkId(self.link.0 + 1);
        self.peer.link_up(self.now, self.link, true);
        self.give(EngineInput::LinkUp {
            link: self.link,
            peer: PEER,
            dialed_by_us: false,
            offer: None,
        });
        self.drain();
    }

    fn open(&mut self, script: &mut ByteScript<'_>) {
        let server = match script.byte() % 4 {
            0 => SocketAddr::from(([127, 0, 0, script.byte()], script.short())),
            1 => SocketAddr::from(([0, 0, 0, 0, 0, 0xffff, 0x7f00, 1], script.short())),
            2 => SocketAddr::from(([script.byte(), 0, script.byte(), 1], script.short())),
            _ => SocketAddr::from(([198, 18, 2, 2], script.short())),
        };
        let open = OpenRequest {
            client: SocketAddr::from(([198, 18, 1, script.byte()], script.short())),
            server,
            accelerator: script.byte() % 4,
            keep_client_address: script.byte().is_multiple_of(2),
            may_store: script.byte().is_multiple_of(2),
            dscp: script.byte(),
        };
        if let Ok(flow) = self.peer.open(self.now, open) {
            self.flows.push(flow);
        }
    }

    fn peer_writes(&mut self, script: &mut ByteScript<'_>) {
        let flow = self.pick(script.byte());
        let bytes = script.bytes();
        let length = bytes.len().min(self.peer.writable(flow));
        if length > 0 {
            self.peer
                .write(flow, Bytes::copy_from_slice(&bytes[..length]));
        }
    }

    fn accept(&mut self, script: &mut ByteScript<'_>) {
        self.accepted += 1;
        let connection = ConnectionId::Accepted(self.accepted);
        self.connections.insert(connection, 0);
        let client = SocketAddr::from(([198, 18, 1, 2], 40_000));
        let server = SocketAddr::from(([198, 18, 2, script.byte()], script.short()));
        let which = script.byte();
        let via = match which % 3 {
            0 => ArrivalMethod::Transparent,
            1 => ArrivalMethod::Socks5,
            _ => ArrivalMethod::HttpConnect,
        };
        self.give(match which % 2 {
            0 => EngineInput::Accepted {
                connection,
                client,
                server,
                via,
            },
            _ => EngineInput::Asked {
                connection,
                client,
                server,
                via,
            },
        });
    }

    fn host_sends(&mut self, script: &mut ByteScript<'_>) {
        let Some(connection) = self.pick_connection(script.byte()) else {
            return;
        };
        let bytes = script.bytes();
        let credit = self.connections.entry(connection).or_default();
        let length = bytes.len().min(*credit);
        *credit -= length;
        if length > 0 {
            let bytes = Bytes::copy_from_slice(&bytes[..length]);
            self.give(EngineInput::Received { connection, bytes });
        }
    }

    fn connect_all(&mut self) {
        while let Some(connection) = self.connecting.pop_front() {
            let result = Ok(());
            self.give(EngineInput::Connected { connection, result });
            self.drain();
        }
        while let Some((connection, bytes)) = self.unwritten.pop_front() {
            self.give(EngineInput::Written { connection, bytes });
            self.drain();
        }
    }

    /// Carries bytes both ways until both fall silent, or for a while.
    fn exchange(&mut self) {
        const ROUNDS: usize = 40;
        for _ in 0..ROUNDS {
            let mut is_quiet = true;
            while let Some(bytes) = self.peer.poll_transmit(self.now, self.link, 16_384) {
                is_quiet = false;
                let link = self.link;
                self.give(EngineInput::LinkReceived { link, bytes });
                self.drain();
            }
            while let Some(bytes) = self.engine.transmit(self.now, self.link, 16_384) {
                is_quiet = false;
                if self.peer.handle(self.now, self.link, &bytes).is_err() {
                    self.replace_link();
                }
                self.drain();
            }
            if is_quiet {
                break;
            }
        }
    }

    fn wait(&mut self, span: Duration) {
        self.now += span;
        if self.peer.poll_timeout().is_some_and(|at| at <= self.now) {
            self.peer.handle_timeout(self.now);
        }
        if self.engine.poll_timeout().is_some_and(|at| at <= self.now) {
            self.engine.handle_timeout(self.now);
        }
    }

    fn give(&mut self, input: EngineInput) {
        self.engine.handle(self.now, input);
        self.drain_engine();
    }

    fn drain(&mut self) {
        self.drain_engine();
        for count in 0.. {
            assert!(count < MOST_OUTPUTS, "the peer's session goes round");
            match self.peer.poll_event() {
                None => break,
                Some(tunnel::SessionEvent::Opened { flow, .. }) => self.flows.push(flow),
                Some(
                    tunnel::SessionEvent::Closed { flow }
                    | tunnel::SessionEvent::Reset { flow, .. },
                ) => {
                    self.flows.retain(|known| *known != flow);
                }
                Some(tunnel::SessionEvent::Readable { flow }) => {
                    // Read and thrown away, so that credit does not end the exchange.
                    while self.peer.read(flow, usize::MAX).is_some() {}
                }
                Some(_) => {}
            }
        }
    }

    fn drain_engine(&mut self) {
        for count in 0.. {
            assert!(count < MOST_OUTPUTS, "the engine goes round in a circle");
            let Some(output) = self.engine.poll_output() else {
                break;
            };
            self.carry_out(output);
        }
        assert!(self.engine.status().flows <= FLOW_LIMIT);
    }

    fn carry_out(&mut self, output: EngineOutput) {
        match output {
            EngineOutput::Write { connection, bytes } => {
                assert!(self.connections.contains_key(&connection));
                self.unwritten.push_back((connection, bytes.len()));
            }
            EngineOutput::FinishWrite { connection } => {
                assert!(self.connections.contains_key(&connection));
            }
            EngineOutput::ResetWhenDelivered { connection } => {
                assert!(self.connections.remove(&connection).is_some());
                self.unwritten.retain(|(waiting, _)| *waiting != connection);
                self.engine
                    .handle(self.now, EngineInput::Aborted { connection });
            }
            EngineOutput::Reset { connection }
            | EngineOutput::Decline { connection, .. }
            | EngineOutput::Close { connection } => {
                self.connections.remove(&connection);
                self.connecting.retain(|waiting| *waiting != connection);
                self.unwritten.retain(|(waiting, _)| *waiting != connection);
            }
            EngineOutput::ReadCredit { connection, bytes } => {
                let credit = self.connections.entry(connection).or_default();
                *credit += bytes;
                assert!(*credit <= 4 << 20, "more is asked for than the limit");
            }
            EngineOutput::Connect {
                connection, server, ..
            } => {
                let is_far = matches!(connection, ConnectionId::Opened(_));
                assert!(is_far && !server.ip().to_canonical().is_loopback());
                self.connections.insert(connection, 0);
                self.connecting.push_back(connection);
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
            EngineOutput::CloseLink { link, .. } => {
                if link == self.link {
                    self.peer.link_down(self.now, link, LinkEnd::Lost);
                    self.engine.handle(
                        self.now,
                        EngineInput::LinkDown {
                            link,
                            end: LinkEnd::Lost,
                        },
                    );
                }
            }
            EngineOutput::Avoid { server, .. } => {
                self.engine
                    .handle(self.now, EngineInput::Avoided { server });
            }
            EngineOutput::Admit { connection } => {
                assert!(self.connections.contains_key(&connection));
            }
            EngineOutput::Readmit { .. }
            | EngineOutput::BypassRoutes { .. }
            | EngineOutput::AcceptAtOnce { .. }
            | EngineOutput::AcceptAfterServer { .. }
            | EngineOutput::Transmit { .. }
            | EngineOutput::TransmitDatagrams { .. }
            | EngineOutput::StartDatagrams { .. }
            | EngineOutput::PassBy { .. }
            | EngineOutput::SendLast { .. }
            | EngineOutput::Intercept { .. }
            | EngineOutput::AcceleratorPurged { .. }
            | EngineOutput::Event(_)
            | EngineOutput::Stopped => {}
        }
    }

    /// One of the peer's flows, or one that does not exist.
    fn pick(&self, which: u8) -> FlowId {
        let at = usize::from(which).checked_rem(self.flows.len());
        at.map_or(FlowId(999), |at| self.flows[at])
    }

    fn pick_connection(&self, which: u8) -> Option<ConnectionId> {
        let at = usize::from(which).checked_rem(self.connections.len())?;
        self.connections.keys().nth(at).copied()
    }
}

/// Good inputs for [`peer`].
pub(crate) fn peer_seeds() -> Vec<CorpusSeed> {
    // Open to 198.18.2.2:80 from 198.18.1.2:40000, answered and connected.
    let open: &[u8] = &[1, 3, 0, 80, 2, 156, 64, 0, 0, 0, 25, 25];
    // A client's connection, with a request.
    let accept: &[u8] = &[13, 2, 0, 80, 0, 25];
    let request = [&[14, 0][..], &sized(b"GET / HTTP/1.1\r\n\r\n"), &[25]].concat();
    let record = [&[2, 0][..], &sized(&[1, 20, 4, 0, 0, 0, 0]), &[25]].concat();
    let message = [&[4, 0, 1][..], &sized(&[1, 0, 0]), &[25]].concat();
    let hello = [&[8][..], &sized(&[7; 16]), &[9, 25]].concat();
    let noise = [&[10][..], &sized(&[0x42; 40]), &[9, 25]].concat();
    let local: &[u8] = &[1, 0, 1, 0, 22, 2, 156, 64, 0, 0, 0, 25];
    vec![
        seed("peer-opens", [open, &[5, 0, 25]].concat()),
        seed(
            "client-opens",
            [accept, &request, &[7, 0, 0, 25, 16, 0, 25]].concat(),
        ),
        seed("bad-record", [open, &record].concat()),
        seed("bad-message", [accept, &request, &message].concat()),
        seed("other-dictionary", [accept, &request, &hello].concat()),
        seed("noise", [open, &noise].concat()),
        seed("to-this-machine", local),
        seed("many", open.repeat(12)),
        seed(
            "outage",
            [accept, &request, &[11, 12, 100, 0, 9, 25]].concat(),
        ),
        seed("stop", [accept, &request, &[24, 25, 12, 30, 0]].concat()),
        seed("refused", [&open[..11], &[0, 18, 1, 25]].concat()),
    ]
}
