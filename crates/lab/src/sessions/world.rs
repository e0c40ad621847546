//! The world: two sessions, what is between them, and the time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use emulate::{DirectionConfig, Link, LinkConfig};
use tunnel::packet::{ChallengeSeed, ConnectionId, KeyLimits, PathSecret, Suite};
use tunnel::transport::{Codepoint, Keys, Settings, Status, Transport};
use tunnel::wire::{DATAGRAM_VERSION, DatagramOffer};
use tunnel::{Answer, Config, DatagramAgreement, Event, LinkId, Open, Session};
use vocab::{Bitrate, ByteCount, FlowId, NodeId, Random, Time};

use super::pipe::Pipe;
use super::work::{self, Transfer, Work};

/// IP and UDP headers of a packet.
const HEADERS: ByteCount = ByteCount::new(28);

/// Packets of one batch: a send with segmentation offload.
const BATCH: usize = 16;

/// Turns without time passing after which something is wrong.
const IDLE_ROUNDS_MAX: u32 = 10_000;

/// Whether there is a datagram path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagrams {
    /// Nodes offer none.
    Absent,
    /// Nodes offer one.
    Offered,
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What packets meet; its seed is the world's. The overhead is set to what IP and UDP add.
    pub packets: LinkConfig,
    /// Rate and delay of the link, each way.
    pub link: (Bitrate, Duration),
    /// Whether nodes offer datagrams.
    pub datagrams: Datagrams,
    /// Of the datagram path.
    pub transport: Settings,
    /// Of both sessions.
    pub session: Config,
}

/// Two sessions and what is between them.
pub struct World {
    now: Time,
    plan: Plan,
    sessions: [Session; 2],
    pipes: [Pipe; 2],
    packets: Link,
    link: LinkId,
    /// Datagrams are swallowed, each way.
    blocked: [bool; 2],
    flows: BTreeMap<FlowId, Transfer>,
    source: Bytes,
    buffer: BytesMut,
    changes: Vec<(Time, usize, bool)>,
}

impl World {
    /// A world whose sessions have met, and whose datagram path carries if it can within two
    /// seconds.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let mut config = plan.packets.clone();
        for direction in [&mut config.forward, &mut config.back] {
            let DirectionConfig { overhead, .. } = direction;
            *overhead = HEADERS;
        }
        let ids = [NodeId([1; 32]), NodeId([2; 32])];
        let seed = config.seed;
        let session = |side: usize| {
            let random = Random::for_stream(seed, 10 + side as u64);
            Session::new(
                plan.session.clone(),
                ids[side],
                ids[1 - side],
                random,
                Time::ZERO,
            )
        };
        let (rate, delay) = plan.link;
        let mut world = Self {
            now: Time::ZERO,
            sessions: [session(0), session(1)],
            pipes: [Pipe::new(rate, delay), Pipe::new(rate, delay)],
            packets: Link::new(config),
            link: LinkId(1),
            blocked: [false; 2],
            flows: BTreeMap::new(),
            source: work::source(),
            buffer: BytesMut::new(),
            changes: Vec::new(),
            plan,
        };
        for side in [0, 1] {
            world.sessions[side].link_up(world.now, world.link, side == 0);
        }
        let wanted = world.plan.datagrams == Datagrams::Offered;
        while world.now < Time::ZERO + Duration::from_secs(2) {
            let is_ready =
                |session: &Session| session.is_up() && (!wanted || session.is_in_packets());
            if world.sessions.iter().all(is_ready) {
                break;
            }
            world.run(Duration::from_millis(5));
        }
        world
    }

    /// The time in this world.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Opens a flow at the near side.
    ///
    /// # Panics
    /// When the session opens none.
    pub fn start(&mut self, work: Work) -> FlowId {
        let open = Open {
            client: SocketAddr::from(([198, 18, 1, 2], 40_000)),
            server: SocketAddr::from(([198, 18, 2, 2], 80)),
            accelerator: 0,
            keep_client_address: false,
            may_store: true,
            dscp: 0,
        };
        let id = self.sessions[0]
            .open(self.now, open)
            .expect("the sessions have met");
        self.flows.insert(id, Transfer::new(self.now, work));
        self.write(0, id);
        id
    }

    /// What has come of a flow.
    ///
    /// # Panics
    /// When it was never opened here.
    #[must_use]
    pub fn transfer(&self, flow: FlowId) -> &Transfer {
        &self.flows[&flow]
    }

    /// All flows so far.
    pub fn transfers(&self) -> impl Iterator<Item = (&FlowId, &Transfer)> {
        self.flows.iter()
    }

    /// A side's session.
    #[must_use]
    pub fn session(&self, side: usize) -> &Session {
        &self.sessions[side]
    }

    /// A side's datagram path.
    #[must_use]
    pub fn status(&self, side: usize) -> Option<Status> {
        self.sessions[side].datagram_status()
    }

    /// The model between the sides.
    #[must_use]
    pub fn packets(&self) -> &Link {
        &self.packets
    }

    /// When each side's frames changed between link (`false`) and packets.
    #[must_use]
    pub fn changes(&self) -> &[(Time, usize, bool)] {
        &self.changes
    }

    /// Takes other settings of the packets' model from now on.
    pub fn set_packets(&mut self, mut config: LinkConfig) {
        config.forward.overhead = HEADERS;
        config.back.overhead = HEADERS;
        self.packets.set_config(self.now, config);
    }

    /// Swallows all datagrams from this side on, or no longer.
    pub fn block(&mut self, side: usize, blocked: bool) {
        self.blocked[side] = blocked;
    }

    /// Lets time pass.
    pub fn run(&mut self, span: Duration) {
        self.run_until(self.now + span, |_| false);
    }

    /// Lets time pass until `end`, or until `is_enough` says so; says whether it did.
    ///
    /// # Panics
    /// When time stands still: a session says that something is due and does not do it.
    pub fn run_until(&mut self, end: Time, is_enough: impl Fn(&World) -> bool) -> bool {
        let mut idle_rounds = 0;
        loop {
            for side in [0, 1] {
                self.settle(side);
            }
            if is_enough(self) {
                return true;
            }
            let timers = self.sessions.iter().filter_map(Session::poll_timeout);
            let pipes = self.pipes.iter().filter_map(Pipe::poll_timeout);
            let next = timers
                .chain(pipes)
                .chain(self.packets.poll_timeout())
                .min()
                .unwrap_or(Time::NEVER);
            if next > end {
                self.now = self.now.max(end);
                return false;
            }
            idle_rounds = if next > self.now { 0 } else { idle_rounds + 1 };
            assert!(
                idle_rounds < IDLE_ROUNDS_MAX,
                "time stands still at {}: near {:?}, far {:?}",
                self.now,
                self.status(0),
                self.status(1)
            );
            self.now = self.now.max(next);
            self.arrive();
            for side in [0, 1] {
                let due = self.sessions[side].poll_timeout();
                if due.is_some_and(|at| at <= self.now) {
                    self.sessions[side].handle_timeout(self.now);
                }
            }
        }
    }

    /// What has arrived by now.
    fn arrive(&mut self) {
        let now = self.now;
        for to in [0, 1] {
            let from = 1 - to;
            while let Some(bytes) = self.pipes[from].poll(now) {
                self.sessions[to]
                    .handle(now, self.link, &bytes)
                    .expect("sessions keep the rules on the link");
                self.settle_events(to);
            }
            loop {
                let direction = match from {
                    0 => &mut self.packets.forward,
                    _ => &mut self.packets.back,
                };
                let Some(delivery) = direction.poll_output(now) else {
                    break;
                };
                let datagram = BytesMut::from(&delivery.packet[..]);
                self.sessions[to]
                    .handle_datagram(now, address(from), Codepoint::NotEct, datagram)
                    .expect("sessions keep the rules in packets");
                self.settle_events(to);
            }
        }
    }

    /// Handles events and sends, until there is neither.
    fn settle(&mut self, side: usize) {
        self.settle_events(side);
        let now = self.now;
        while let Some(link) = self.sessions[side].wants_transmit() {
            let room = self.pipes[side].room(now);
            if room == 0 {
                break;
            }
            let Some(bytes) = self.sessions[side].poll_transmit(now, link, room.min(16 << 10))
            else {
                break;
            };
            self.pipes[side].send(now, bytes);
            self.settle_events(side);
        }
        loop {
            self.buffer.clear();
            let mut buffer = std::mem::take(&mut self.buffer);
            let transmit = self.sessions[side].poll_datagrams(now, BATCH, &mut buffer);
            if let Some(transmit) = transmit {
                assert_eq!(transmit.to, address(1 - side), "packets go to the peer");
                for packet in buffer.chunks(transmit.segment) {
                    let packet = Bytes::copy_from_slice(packet);
                    let direction = match side {
                        0 => &mut self.packets.forward,
                        _ => &mut self.packets.back,
                    };
                    if !self.blocked[side] {
                        direction.handle(now, packet);
                    }
                }
            }
            self.buffer = buffer;
            self.settle_events(side);
            if transmit.is_none() {
                return;
            }
        }
    }

    fn settle_events(&mut self, side: usize) {
        while let Some(event) = self.sessions[side].poll_event() {
            self.on_event(side, event);
        }
    }

    fn on_event(&mut self, side: usize, event: Event) {
        match event {
            Event::LinkAttached { link } => {
                if self.plan.datagrams == Datagrams::Offered {
                    self.sessions[side].offer_datagrams(self.now, link, offer(side));
                }
            }
            Event::DatagramsAgreed { link, agreement } => self.agreed(side, link, agreement),
            Event::DatagramsUp => self.changes.push((self.now, side, true)),
            Event::DatagramsDown { .. } => self.changes.push((self.now, side, false)),
            Event::Opened { flow, .. } => {
                self.sessions[side].answer(flow, Answer::Connected);
                self.write(side, flow);
            }
            Event::Readable { flow } => {
                self.read(side, flow);
                self.write(side, flow);
            }
            Event::Writable { flow } => self.write(side, flow),
            Event::Finished { flow } => {
                if let Some(transfer) = self.flows.get_mut(&flow) {
                    transfer.saw_end(side);
                }
            }
            Event::Closed { flow } => {
                let now = self.now;
                if let Some(transfer) = self.flows.get_mut(&flow) {
                    transfer.closed_at = Some(now);
                }
            }
            Event::Reset { flow, .. } => {
                if let Some(transfer) = self.flows.get_mut(&flow) {
                    transfer.was_reset = true;
                    transfer.closed_at = Some(self.now);
                }
            }
            Event::Hello { .. }
            | Event::Answered { .. }
            | Event::Consumed { .. }
            | Event::Message { .. }
            | Event::Silent
            | Event::Heard
            | Event::PeerRestarted
            | Event::GoAway
            | Event::LinkReplaced { .. }
            | Event::Drained => {}
        }
    }

    fn agreed(&mut self, side: usize, link: LinkId, agreement: DatagramAgreement) {
        let settings = Settings {
            seed: self.plan.packets.seed ^ side as u64,
            ..self.plan.transport
        };
        let peer = (side == 0).then_some(address(1));
        let DatagramAgreement {
            role,
            context,
            connection_ids,
            ..
        } = agreement;
        let suite = context.suite;
        self.sessions[side].start_datagrams(self.now, link, |now, random| {
            // Both ends of a TLS connection export the same.
            let export = |room: &mut [u8], _: &'static [u8], context: &[u8]| {
                for (place, byte) in room.iter_mut().enumerate() {
                    *byte = context[place % context.len()];
                }
                Ok::<(), std::convert::Infallible>(())
            };
            let Ok(mut secret) = PathSecret::export(role, context, export);
            let (sealer, opener) = secret
                .path(now, 0, connection_ids, KeyLimits::of(suite))
                .expect("it is the first path");
            let challenges = ChallengeSeed::new(|room| random.fill(room));
            let keys = Keys {
                sealer,
                opener,
                challenges,
            };
            Transport::new(now, keys, peer, settings)
        });
    }

    fn write(&mut self, side: usize, flow: FlowId) {
        if let Some(transfer) = self.flows.get_mut(&flow) {
            transfer.write(&mut self.sessions[side], side, flow, &self.source);
        }
    }

    fn read(&mut self, side: usize, flow: FlowId) {
        if let Some(transfer) = self.flows.get_mut(&flow) {
            let session = &mut self.sessions[side];
            transfer.read(self.now, session, side, flow, &self.source);
        }
    }
}

fn address(side: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + side as u8], 4_000))
}

fn offer(side: usize) -> DatagramOffer {
    DatagramOffer {
        version: DATAGRAM_VERSION,
        suite: Suite::Aes256Gcm,
        connection_id: ConnectionId([side as u8; 8]),
        nonce: [side as u8; 16],
        port: 4_000,
    }
}
