//! Two connected sessions: their link, their datagram path, and the hosts behind them.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use simulation::public_path_keys;
use tunnel::packet::{ChallengeSeed, CipherSuite, ConnectionId};
use tunnel::transport::{DatagramTransport, EcnMarking, PathSettings, TransportStatus};
use tunnel::wire::{DATAGRAM_VERSION, DatagramOffer};
use tunnel::{
    DatagramAgreement, LinkEnd, LinkId, OpenAnswer, OpenRequest, Session, SessionConfig,
    SessionEvent,
};
use vocab::{Bitrate, ByteCount, FlowId, NodeId, SeededRandom, Time};

use super::pipe::EmulatedPipe;
use super::work::{self, FlowScript, FlowTransfer};

/// IP and UDP headers of a packet.
pub(super) const HEADERS: ByteCount = ByteCount::new(28);

/// Packets of one batch: a send with segmentation offload.
const BATCH: usize = 16;

/// Greatest number of datagram bytes that wait for a stopped node: the size of its socket buffer.
const SOCKET: usize = 4 << 20;

/// Support of the nodes for a datagram path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramSupport {
    /// Nodes offer no datagram path.
    Absent,
    /// Nodes offer one.
    Offered,
}

/// Filter of the datagrams that can reach the other side at all, independent of the path's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramFilter {
    /// Every one.
    Open,
    /// Datagrams whose IP packets are at most so many bytes long. Others are dropped silently.
    UpTo(usize),
    /// No datagrams: UDP is blocked.
    Blocked,
}

impl DatagramFilter {
    fn lets_through(self, payload: usize) -> bool {
        match self {
            Self::Open => true,
            Self::UpTo(most) => payload as u64 + HEADERS.bytes() <= most as u64,
            Self::Blocked => false,
        }
    }
}

/// Parameters of a pair.
#[derive(Clone, Debug)]
pub(super) struct PairPlan {
    pub(super) link: (Bitrate, Duration),
    pub(super) datagrams: DatagramSupport,
    pub(super) transport: PathSettings,
    pub(super) session: SessionConfig,
    /// Seed of all its random numbers.
    pub(super) seed: u64,
}

/// One session, seen from both of its ends.
pub struct SessionPair {
    plan: PairPlan,
    sessions: [Session; 2],
    pipes: [EmulatedPipe; 2],
    link: LinkId,
    /// Filters, by the sending side.
    passages: [DatagramFilter; 2],
    /// Bytes that arrived for a side that is not running at present.
    asleep: [Option<VecDeque<Bytes>>; 2],
    flows: BTreeMap<FlowId, FlowTransfer>,
    source: Bytes,
    buffer: BytesMut,
    changes: Vec<(Time, usize, bool)>,
    /// Set if something has happened since it was last settled.
    is_stirred: bool,
    /// Time of the next event without input.
    due: Time,
}

impl SessionPair {
    pub(super) fn new(plan: PairPlan) -> Self {
        let ids = [NodeId([1; 32]), NodeId([2; 32])];
        let session = |side: usize| {
            let random = SeededRandom::for_stream(plan.seed, 10 + side as u64);
            let config = plan.session.clone();
            Session::new(config, ids[side], ids[1 - side], random, Time::ZERO)
        };
        let (rate, delay) = plan.link;
        let mut pair = Self {
            sessions: [session(0), session(1)],
            pipes: [
                EmulatedPipe::new(rate, delay),
                EmulatedPipe::new(rate, delay),
            ],
            link: LinkId(1),
            passages: [DatagramFilter::Open; 2],
            asleep: [None, None],
            flows: BTreeMap::new(),
            source: work::source(),
            buffer: BytesMut::new(),
            changes: Vec::new(),
            is_stirred: true,
            due: Time::ZERO,
            plan,
        };
        pair.link_up(Time::ZERO);
        pair
    }

    /// State of a flow's transfer.
    ///
    /// # Panics
    /// When it was never opened here.
    #[must_use]
    pub fn transfer(&self, flow: FlowId) -> &FlowTransfer {
        &self.flows[&flow]
    }

    /// All flows so far.
    pub fn transfers(&self) -> impl Iterator<Item = (&FlowId, &FlowTransfer)> {
        self.flows.iter()
    }

    /// A side's session.
    #[must_use]
    pub fn session(&self, side: usize) -> &Session {
        &self.sessions[side]
    }

    /// A side's datagram path.
    #[must_use]
    pub fn status(&self, side: usize) -> Option<TransportStatus> {
        self.sessions[side].datagram_status()
    }

    /// Times at which each side's frames changed between link (`false`) and packets.
    #[must_use]
    pub fn changes(&self) -> &[(Time, usize, bool)] {
        &self.changes
    }

    /// Tells whether both sides have connected, and send packets if they are to.
    pub(super) fn is_ready(&self) -> bool {
        let in_packets = self.plan.datagrams == DatagramSupport::Offered;
        let is_ready =
            |session: &Session| session.is_up() && (!in_packets || session.is_in_packets());
        self.sessions.iter().all(is_ready)
    }

    pub(super) fn start(&mut self, now: Time, work: FlowScript) -> FlowId {
        let open = OpenRequest {
            client: SocketAddr::from(([198, 18, 1, 2], 40_000)),
            server: SocketAddr::from(([198, 18, 2, 2], 80)),
            accelerator: 0,
            keep_client_address: false,
            may_store: true,
            dscp: 0,
        };
        let id = self.sessions[0]
            .open(now, open)
            .expect("the sessions have met");
        self.flows.insert(id, FlowTransfer::new(now, work));
        self.write(0, id);
        self.is_stirred = true;
        id
    }

    pub(super) fn set_passage(&mut self, side: usize, passage: DatagramFilter) {
        self.passages[side] = passage;
    }

    /// Stops the node of a side, as by SIGSTOP or a hypervisor: it does nothing, and does not
    /// notice. Arrivals wait in its sockets.
    pub(super) fn suspend(&mut self, side: usize) {
        self.asleep[side].get_or_insert_default();
    }

    /// Continues the node.
    pub(super) fn resume(&mut self, now: Time, side: usize) {
        for datagram in self.asleep[side].take().unwrap_or_default() {
            self.handle_datagram(now, side, &datagram);
        }
        self.due = now;
        self.is_stirred = true;
    }

    fn runs(&self, side: usize) -> bool {
        self.asleep[side].is_none()
    }

    /// Breaks the link; bytes on it are lost.
    pub(super) fn break_link(&mut self, now: Time) {
        for session in &mut self.sessions {
            session.link_down(now, self.link, LinkEnd::Lost);
        }
        self.pipes = self.new_pipes();
        self.is_stirred = true;
    }

    /// The near side dials again.
    pub(super) fn dial(&mut self, now: Time) {
        self.pipes = self.new_pipes();
        self.link = LinkId(self.link.0 + 1);
        self.link_up(now);
    }

    fn new_pipes(&self) -> [EmulatedPipe; 2] {
        let (rate, delay) = self.plan.link;
        [
            EmulatedPipe::new(rate, delay),
            EmulatedPipe::new(rate, delay),
        ]
    }

    fn link_up(&mut self, now: Time) {
        for (side, session) in self.sessions.iter_mut().enumerate() {
            session.link_up(now, self.link, side == 0);
        }
        self.is_stirred = true;
    }

    /// Time of the next event without input.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// Handles due events, and takes in the bytes that the link has delivered.
    pub(super) fn handle_due(&mut self, now: Time) {
        if self.due > now {
            return;
        }
        self.is_stirred = true;
        for to in [0, 1] {
            while self.runs(to)
                && let Some(bytes) = self.pipes[1 - to].poll(now)
            {
                self.sessions[to]
                    .handle(now, self.link, &bytes)
                    .expect("sessions keep the rules on the link");
                self.settle_events(now, to);
            }
        }
        for (session, asleep) in self.sessions.iter_mut().zip(&self.asleep) {
            let is_due = session.poll_timeout().is_some_and(|at| at <= now);
            if asleep.is_none() && is_due {
                session.handle_timeout(now);
            }
        }
    }

    /// Takes in a datagram.
    pub(super) fn handle_datagram(&mut self, now: Time, to: usize, datagram: &[u8]) {
        if let Some(waiting) = &mut self.asleep[to] {
            let bytes: usize = waiting.iter().map(Bytes::len).sum();
            if bytes + datagram.len() <= SOCKET {
                waiting.push_back(Bytes::copy_from_slice(datagram));
            }
            return;
        }
        self.is_stirred = true;
        let datagram = BytesMut::from(datagram);
        self.sessions[to]
            .handle_datagram(now, address(1 - to), EcnMarking::NotEct, datagram)
            .expect("sessions keep the rules in packets");
        self.settle_events(now, to);
    }

    /// Handles events and sends, until there is neither; datagrams go to `carry`, with the side
    /// that they come from.
    pub(super) fn settle(&mut self, now: Time, mut carry: impl FnMut(usize, Bytes)) {
        if !std::mem::take(&mut self.is_stirred) {
            return;
        }
        let awake = [0, 1].into_iter().filter(|side| self.runs(*side));
        let awake: Vec<usize> = awake.collect();
        for side in &awake {
            self.settle_side(now, *side, &mut carry);
        }
        let timers = (awake.iter()).filter_map(|side| self.sessions[*side].poll_timeout());
        // A side that sleeps takes nothing from the link, which stops when it is full.
        let both = (awake.len() == 2).then_some(&self.pipes);
        let pipes = both
            .into_iter()
            .flatten()
            .filter_map(EmulatedPipe::poll_timeout);
        self.due = timers.chain(pipes).min().unwrap_or(Time::NEVER);
    }

    fn settle_side(&mut self, now: Time, side: usize, carry: &mut impl FnMut(usize, Bytes)) {
        self.settle_events(now, side);
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
            self.settle_events(now, side);
        }
        loop {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            let transmit = self.sessions[side].poll_datagrams(now, self.link, BATCH, &mut buffer);
            if let Some(transmit) = transmit {
                assert_eq!(transmit.to, address(1 - side), "packets go to the peer");
                for packet in buffer.chunks(transmit.segment) {
                    if self.passages[side].lets_through(packet.len()) {
                        carry(side, Bytes::copy_from_slice(packet));
                    }
                }
            }
            self.buffer = buffer;
            self.settle_events(now, side);
            if transmit.is_none() {
                return;
            }
        }
    }

    fn settle_events(&mut self, now: Time, side: usize) {
        while let Some(event) = self.sessions[side].poll_event() {
            self.on_event(now, side, event);
        }
    }

    fn on_event(&mut self, now: Time, side: usize, event: SessionEvent) {
        match event {
            SessionEvent::LinkAttached { link } => {
                if self.plan.datagrams == DatagramSupport::Offered {
                    self.sessions[side].offer_datagrams(now, link, offer(side));
                }
            }
            SessionEvent::DatagramsAgreed { link, agreement } => {
                self.agreed(now, side, link, agreement)
            }
            SessionEvent::DatagramsUp => self.changes.push((now, side, true)),
            SessionEvent::DatagramsDown { .. } => self.changes.push((now, side, false)),
            SessionEvent::Opened { flow, .. } => {
                self.sessions[side].answer(flow, OpenAnswer::Connected);
                self.write(side, flow);
            }
            SessionEvent::Readable { flow } => {
                self.read(now, side, flow);
                self.write(side, flow);
            }
            SessionEvent::Writable { flow } => self.write(side, flow),
            SessionEvent::Finished { flow } => {
                if let Some(transfer) = self.flows.get_mut(&flow) {
                    transfer.note_end(side);
                }
            }
            SessionEvent::Closed { flow } => self.closed(now, flow, false),
            SessionEvent::Reset { flow, .. } => self.closed(now, flow, true),
            SessionEvent::Hello { .. }
            | SessionEvent::Answered { .. }
            | SessionEvent::Consumed { .. }
            | SessionEvent::Message { .. }
            | SessionEvent::Silent
            | SessionEvent::Heard
            | SessionEvent::PeerRestarted
            | SessionEvent::PeerLost { .. }
            | SessionEvent::GoAway
            | SessionEvent::LinkReplaced { .. }
            | SessionEvent::LinkLost { .. }
            | SessionEvent::Drained => {}
        }
    }

    fn agreed(&mut self, now: Time, side: usize, link: LinkId, agreement: DatagramAgreement) {
        let settings = PathSettings {
            seed: self.plan.seed ^ side as u64,
            ..self.plan.transport
        };
        let peer = (side == 0).then_some(address(1));
        self.sessions[side].start_datagrams(now, link, |now, random| {
            let challenges = ChallengeSeed::new(|room| random.fill(room));
            let keys = public_path_keys(now, agreement, challenges);
            DatagramTransport::new(now, keys, peer, settings)
        });
    }

    fn closed(&mut self, now: Time, flow: FlowId, was_reset: bool) {
        if let Some(transfer) = self.flows.get_mut(&flow) {
            transfer.close(now, was_reset);
        }
    }

    fn write(&mut self, side: usize, flow: FlowId) {
        if let Some(transfer) = self.flows.get_mut(&flow) {
            transfer.write(&mut self.sessions[side], side, flow, &self.source);
        }
    }

    fn read(&mut self, now: Time, side: usize, flow: FlowId) {
        if let Some(transfer) = self.flows.get_mut(&flow) {
            transfer.read(now, &mut self.sessions[side], side, flow, &self.source);
        }
    }
}

fn address(side: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + side as u8], 4_000))
}

fn offer(side: usize) -> DatagramOffer {
    DatagramOffer {
        version: DATAGRAM_VERSION,
        suite: CipherSuite::Aes256Gcm,
        connection_id: ConnectionId([side as u8; 8]),
        nonce: [side as u8; 16],
        port: 4_000,
    }
}
