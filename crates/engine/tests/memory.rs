//! The memory that a hostile paired peer can make an engine hold: every byte, counted by the
//! allocator.
//!
//! The peer opens flows to servers that read nothing, and sends messages that cost the engine much
//! memory and the peer little. The test keeps the bytes for the servers as a shell does, so they
//! count too. All attacks run in one test, because the allocator counts for all threads.
#![allow(
    unsafe_code,
    reason = "an allocator that counts can only be made of the system's"
)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::{
    ConnectionId, Engine, EngineConfig, EngineInput, EngineLimits, EngineOutput, FlowPolicy,
    LinkId, PeerConfig,
};
use reduce::{Dictionary, DictionaryConfig, EncoderConfig, FlowEncoder, PeerSlot, StoragePolicy};
use tunnel::wire::{
    DataFrame, FlowAck, MessageContinuation, MessageFrame, ReceiptState, SessionFrame, TotalCredit,
};
use tunnel::{OpenRequest, Session};
use vocab::{ByteCount, ByteWriter, FlowId, FlowSegment, NodeId, SeededRandom, Time};

struct CountingAllocator;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        MOST.fetch_max(before + layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

/// `[limits] memory` of the engine here; the usual ones are eight times as large.
const MEMORY: ByteCount = ByteCount::mebibytes(32);
const DICTIONARY: ByteCount = ByteCount::mebibytes(4);
/// Bytes of all flows that the peer may send and the engine not consume.
const TOTAL_WINDOW: ByteCount = ByteCount::mebibytes(16);

/// The memory that an engine may hold beside its limit and its dictionary: one compression context,
/// one record in progress (its sources, raw bytes and literals), and the largest message.
const BESIDE: usize = 16 << 20;
/// The memory that an open flow may use beside that.
const BESIDE_EACH_FLOW: usize = 10 << 10;
/// The hard limit of memory, in per cent of the limit.
const HARD_LIMIT_PERCENT: usize = 125;

const LOCAL: NodeId = NodeId([1; 32]);
const PEER: NodeId = NodeId([2; 32]);
const LINK: LinkId = LinkId(1);

/// An engine, its hostile peer, and servers that read nothing.
struct HostileWorld {
    now: Time,
    engine: Engine,
    /// The bytes that the engine has written to each server.
    queues: BTreeMap<ConnectionId, Vec<Bytes>>,
    flows: Vec<FlowId>,
    /// Bytes that may be read of each server.
    credits: Vec<(ConnectionId, usize)>,
    /// The number of bytes sent on each flow.
    sent: Vec<u64>,
    link_is_up: bool,
    /// The servers send bytes that never repeat, without end.
    pours: Option<SeededRandom>,
}

impl HostileWorld {
    fn new(flows: usize) -> Self {
        let now = Time::from_nanos(1_000_000_000);
        let tunnel = tunnel::SessionConfig {
            total_window: TOTAL_WINDOW,
            ..tunnel::SessionConfig::default()
        };
        let config = EngineConfig {
            local: LOCAL,
            peers: vec![PeerConfig {
                node: PEER,
                name: "near".to_owned(),
                prefixes: vec!["198.18.1.0/24".parse().unwrap()],
            }],
            serve: Some(vec!["198.18.2.0/24".parse().unwrap()]),
            serve_peers_without_prefixes: false,
            limits: EngineLimits {
                memory: MEMORY,
                ..EngineLimits::default()
            },
            policy: FlowPolicy::default(),
            dictionary: DictionaryConfig {
                memory: DICTIONARY,
                ..DictionaryConfig::default()
            },
            dictionary_key: None,
            tunnel: tunnel.clone(),
            datagrams: tunnel::transport::PathSettings::default(),
        };
        let mut world = Self {
            now,
            engine: Engine::new(config, now, SeededRandom::from_seed(1)),
            queues: BTreeMap::new(),
            flows: Vec::new(),
            credits: Vec::new(),
            sent: vec![0; flows],
            link_is_up: true,
            pours: None,
        };
        // An honest session agrees on the link and opens the flows.
        let mut peer = Session::new(tunnel, PEER, LOCAL, SeededRandom::from_seed(2), now);
        peer.link_up(now, LINK, true);
        world.give(EngineInput::LinkUp {
            link: LINK,
            peer: PEER,
            dialed_by_us: false,
            offer: None,
        });
        world.exchange(&mut peer);
        for port in 0..flows {
            let open = OpenRequest {
                client: SocketAddr::from(([198, 18, 1, 2 + (port % 200) as u8], 1_000)),
                server: SocketAddr::from(([198, 18, 2, 2], 9)),
                accelerator: 0,
                keep_client_address: false,
                may_store: true,
                dscp: 0,
            };
            world.flows.push(peer.open(now, open).unwrap());
        }
        world.exchange(&mut peer);
        assert_eq!(world.queues.len(), flows, "all flows have a server");
        world
    }

    fn exchange(&mut self, peer: &mut Session) {
        loop {
            let mut is_quiet = true;
            while let Some(bytes) = peer.poll_transmit(self.now, LINK, 16_384) {
                is_quiet = false;
                self.give(EngineInput::LinkReceived { link: LINK, bytes });
            }
            while let Some(bytes) = self.engine.transmit(self.now, LINK, 16_384) {
                is_quiet = false;
                peer.handle(self.now, LINK, &bytes).unwrap();
            }
            self.drain();
            while peer.poll_event().is_some() {}
            if is_quiet {
                return;
            }
        }
    }

    fn give(&mut self, input: EngineInput) {
        self.engine.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            match output {
                EngineOutput::Connect { connection, .. } => {
                    self.queues.insert(connection, Vec::new());
                    let result = Ok(());
                    let input = EngineInput::Connected { connection, result };
                    self.engine.handle(self.now, input);
                }
                EngineOutput::Write { connection, bytes } => {
                    if let Some(queue) = self.queues.get_mut(&connection) {
                        queue.push(bytes);
                    }
                }
                EngineOutput::Reset { connection } | EngineOutput::Close { connection } => {
                    self.queues.remove(&connection);
                }
                EngineOutput::ReadCredit { connection, bytes } => {
                    if let Some(random) = &mut self.pours {
                        let mut sent = vec![0; bytes];
                        random.fill(&mut sent);
                        let bytes = sent.into();
                        let input = EngineInput::Received { connection, bytes };
                        self.engine.handle(self.now, input);
                    } else {
                        self.credits.push((connection, bytes));
                    }
                }
                EngineOutput::CloseLink { .. } => self.link_is_up = false,
                _ => {}
            }
        }
    }

    /// Sends frames from the peer, in one piece as TLS delivers them, and discards the engine's
    /// answers.
    fn send(&mut self, frames: &[SessionFrame]) {
        let mut out = ByteWriter::new();
        for frame in frames {
            frame.emit(&mut out);
        }
        let bytes = out.finish();
        for piece in bytes.chunks(16_384) {
            let bytes = Bytes::copy_from_slice(piece);
            self.give(EngineInput::LinkReceived { link: LINK, bytes });
        }
        self.now += Duration::from_millis(1);
        while self.engine.transmit(self.now, LINK, 16_384).is_some() {}
        self.engine.handle_timeout(self.now);
        self.drain();
    }

    /// Data of one flow, from where it was, in frames of this size.
    fn write(&mut self, flow: usize, bytes: &[u8], step: usize) {
        for piece in bytes.chunks(step) {
            let frame = SessionFrame::Data(DataFrame {
                flow: self.flows[flow],
                offset: self.sent[flow],
                bytes: Bytes::copy_from_slice(piece),
            });
            self.sent[flow] += piece.len() as u64;
            self.send(&[frame]);
        }
    }

    fn is_over(&self) -> bool {
        !self.link_is_up || self.queues.is_empty()
    }
}

/// Returns the records of a stream made of these segments; each record holds bytes of only one
/// segment.
fn encoded(segments: Vec<FlowSegment>) -> Vec<u8> {
    encoded_together(segments, 1)
}

/// The same, so many segments at a time in the same records.
fn encoded_together(segments: Vec<FlowSegment>, together: usize) -> Vec<u8> {
    let config = EncoderConfig {
        storing: StoragePolicy::Never,
        ..EncoderConfig::default()
    };
    let dictionary = DictionaryConfig {
        memory: ByteCount::mebibytes(1),
        ..DictionaryConfig::default()
    };
    let mut dictionary = Dictionary::new(dictionary, SeededRandom::from_seed(3));
    let mut encoder = FlowEncoder::new(config, PeerSlot::UNTRACKED);
    let mut now = Time::from_nanos(1);
    let mut stream = Vec::new();
    for segments in segments.chunks(together) {
        for segment in segments {
            encoder.push(now, segment.clone());
        }
        now += Duration::from_millis(1);
        while let Some(bytes) = encoder.poll_encoded(now, &mut dictionary, 1 << 20) {
            stream.extend_from_slice(&bytes);
        }
        encoder.acknowledged(stream.len() as u64, &mut dictionary);
    }
    stream
}

fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SeededRandom::from_seed(4).fill(&mut bytes);
    bytes
}

fn payload(bytes: Vec<u8>) -> FlowSegment {
    FlowSegment::payload(bytes.into())
}

/// One way to make the engine hold much.
struct MemoryAttack {
    name: &'static str,
    flows: usize,
    run: fn(&mut HostileWorld),
}

const ATTACKS: [MemoryAttack; 10] = [
    MemoryAttack {
        name: "4,096 new bytes behind old ones, into flows that nobody reads",
        flows: 40,
        run: |world| {
            // What fills the queue to the server.
            let stream = encoded(vec![payload(noise(300_000))]);
            for flow in 0..world.flows.len() {
                world.write(flow, &stream, 16_000);
            }
            let most = TOTAL_WINDOW.bytes() * 19 / 20;
            let mut new = 0;
            let junk = Bytes::from(vec![0; 64_000]);
            for flow in (0..world.flows.len()).cycle() {
                if new >= most || world.is_over() || world.sent[flow] > 1 << 19 {
                    return;
                }
                let old = 56_000;
                let frame = SessionFrame::Data(DataFrame {
                    flow: world.flows[flow],
                    offset: world.sent[flow] - old,
                    bytes: junk.slice(..old as usize + 4_096),
                });
                world.sent[flow] += 4_096;
                new += 4_096;
                world.send(&[frame]);
            }
        },
    },
    MemoryAttack {
        name: "pieces of one byte that do not join",
        flows: 1,
        run: |world| {
            for batch in 0..300 {
                let frames: Vec<SessionFrame> = (0..100)
                    .map(|piece| {
                        SessionFrame::Data(DataFrame {
                            flow: world.flows[0],
                            offset: 2 * (batch * 100 + piece) + 1,
                            bytes: Bytes::from_static(b"x"),
                        })
                    })
                    .collect();
                world.send(&frames);
            }
        },
    },
    MemoryAttack {
        name: "a byte for the server in each record of many for the other half",
        flows: 4,
        run: |world| {
            let mut segments = Vec::new();
            for _ in 0..300 {
                segments.push(payload(vec![1]));
                segments.push(FlowSegment::frame(vec![0; 120_000].into()));
            }
            let stream = encoded_together(segments, 2);
            for flow in 0..world.flows.len() {
                world.write(flow, &stream, 16_000);
            }
        },
    },
    MemoryAttack {
        name: "records of one byte",
        flows: 2,
        run: |world| {
            let stream = encoded((0..4_000).map(|_| payload(vec![1])).collect());
            for flow in 0..world.flows.len() {
                for _ in 0..4 {
                    world.write(flow, &stream, 1_000);
                }
            }
        },
    },
    MemoryAttack {
        name: "the beginning of a record behind a whole one",
        flows: 2_000,
        run: |world| {
            let mut stream = encoded(vec![payload(noise(15_000))]);
            stream.extend_from_slice(&stream.clone()[..10]);
            for flow in 0..world.flows.len() {
                world.write(flow, &stream, 16_000);
            }
            // The servers read it all.
            let queues: Vec<(ConnectionId, usize)> = world
                .queues
                .iter_mut()
                .map(|(connection, queue)| {
                    let bytes = std::mem::take(queue).iter().map(Bytes::len).sum();
                    (*connection, bytes)
                })
                .collect();
            for (connection, bytes) in queues {
                world.give(EngineInput::Written { connection, bytes });
            }
        },
    },
    MemoryAttack {
        name: "zeros, half a mebibyte in a few bytes",
        flows: 200,
        run: |world| {
            let stream = encoded((0..20).map(|_| payload(vec![0; 120_000])).collect());
            for flow in 0..world.flows.len() {
                world.write(flow, &stream, 16_000);
            }
        },
    },
    MemoryAttack {
        name: "frames for the other half that never end",
        flows: 200,
        run: |world| {
            // All records but the last, with which the frame ends.
            let mut stream = encoded(vec![FlowSegment::frame(vec![0; 1_000_000].into())]);
            stream.truncate(stream.len() - 2);
            for flow in 0..world.flows.len() {
                world.write(flow, &stream, 16_000);
            }
        },
    },
    MemoryAttack {
        name: "messages behind one that never comes",
        flows: 1,
        run: |world| {
            for sequence in 1..16_000 {
                let message = SessionFrame::Message(MessageFrame {
                    flow: world.flows[0],
                    kind: 1,
                    piece: MessageContinuation::Part,
                    sequence,
                    bytes: Bytes::from(vec![1; 1_000]),
                });
                world.send(&[message]);
            }
        },
    },
    MemoryAttack {
        name: "credit without end, and nothing is acknowledged",
        flows: 20,
        run: |world| {
            let window = 1 << 40;
            let mut frames = vec![SessionFrame::TotalCredit(TotalCredit { window })];
            frames.extend(world.flows.iter().map(|flow| {
                SessionFrame::Ack(FlowAck {
                    flow: *flow,
                    received: 0,
                    consumed: 0,
                    limit: window,
                    finish: ReceiptState::NotYet,
                })
            }));
            world.pours = Some(SeededRandom::from_seed(5));
            for (connection, bytes) in std::mem::take(&mut world.credits) {
                let bytes = noise(bytes).into();
                world.give(EngineInput::Received { connection, bytes });
            }
            for _ in 0..50 {
                world.send(&frames);
            }
        },
    },
    MemoryAttack {
        name: "flows that are opened and never used",
        flows: 4_000,
        run: |_| {},
    },
];

#[test]
fn hostile_peer_cannot_exceed_the_engines_limits() {
    let mut failed = Vec::new();
    for attack in ATTACKS {
        let before = ALLOCATED.load(Ordering::Relaxed);
        MOST.store(before, Ordering::Relaxed);
        let mut world = HostileWorld::new(attack.flows);
        (attack.run)(&mut world);
        let held = ALLOCATED.load(Ordering::Relaxed) - before;
        let most = MOST.load(Ordering::Relaxed) - before;
        let bound = MEMORY.as_usize() * HARD_LIMIT_PERCENT / 100
            + DICTIONARY.as_usize()
            + BESIDE
            + attack.flows * BESIDE_EACH_FLOW;
        let said = world.engine.status().buffered_bytes;
        if most > bound {
            failed.push(format!(
                "{}: {held} bytes at the end, {most} at most, {said} by the engine's own count; \
                 bound {bound}",
                attack.name,
            ));
        }
    }
    assert!(
        failed.is_empty(),
        "more is held than the bound: {failed:#?}"
    );
}
