//! Two sessions with a datagram path beside their link, in virtual time: how they agree on one, use
//! it, and leave it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::BytesMut;

use super::*;
use crate::limits::{MESSAGE_PIECE, RESETS_WAITING};
use crate::packet::{
    ChallengeSeed, CipherSuite, ConnectionId, ConnectionIds, KeyLimits, PacketSealer, PathSecret,
};
use crate::transport::{EcnMarking, PathKeys, PathSettings, SuspendReason};
use crate::wire::{
    DATAGRAM_VERSION, DataFrame, DatagramOffer, OpenFrame, ResumeContinuation, ResumeFrame,
    SessionFrame, split_frame,
};
use crate::{DatagramAgreement, LinkEnd, LinkId, SessionError};

const NEAR: usize = 0;
const FAR: usize = 1;
const ONE_WAY: Duration = Duration::from_millis(10);

/// Two sessions, a link, and a way for datagrams that the test holds in its hands.
struct DatagramSessionPair {
    now: Time,
    sessions: [Session; 2],
    link: Option<LinkId>,
    links: u64,
    on_link: [VecDeque<(Time, Bytes)>; 2],
    under_way: BTreeMap<(Time, u64), (usize, BytesMut)>,
    datagrams: [u64; 2],
    /// Address of each side.
    addresses: [SocketAddr; 2],
    /// Timeout of the NAT before the near side, and the last packet of that side.
    binding: Option<(Duration, Time)>,
    drops_datagram: fn(usize, &BytesMut) -> bool,
    /// Keys as the peer has them, to make packets by hand.
    forged: [Option<PacketSealer>; 2],
    events: [Vec<SessionEvent>; 2],
}

fn home(side: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + side as u8], 4_000))
}

fn open() -> OpenRequest {
    OpenRequest {
        client: "198.18.1.2:40000".parse().unwrap(),
        server: "198.18.2.2:80".parse().unwrap(),
        accelerator: 0,
        keep_client_address: true,
        may_store: true,
        dscp: 0,
    }
}

fn offer(side: usize, link: LinkId) -> DatagramOffer {
    DatagramOffer {
        version: DATAGRAM_VERSION,
        suite: CipherSuite::Aes256Gcm,
        connection_id: ConnectionId([side as u8, link.0 as u8, 0, 0, 0, 0, 0, 0]),
        nonce: [side as u8; 16],
        port: 4_000,
    }
}

fn bytes(count: usize) -> Bytes {
    (0..count).map(|index| (index * index / 7) as u8).collect()
}

impl DatagramSessionPair {
    fn new(config: &SessionConfig) -> Self {
        let ids = [NodeId([1; 32]), NodeId([2; 32])];
        let session = |side: usize| {
            let random = SeededRandom::from_seed(side as u64);
            Session::new(config.clone(), ids[side], ids[1 - side], random, Time::ZERO)
        };
        Self {
            now: Time::ZERO,
            sessions: [session(NEAR), session(FAR)],
            link: None,
            links: 0,
            on_link: Default::default(),
            under_way: BTreeMap::new(),
            datagrams: [0; 2],
            addresses: [home(NEAR), home(FAR)],
            binding: None,
            drops_datagram: |_, _| false,
            forged: [None, None],
            events: Default::default(),
        }
    }

    /// A pair whose frames travel in packets.
    fn in_packets(config: &SessionConfig) -> Self {
        let mut pair = Self::new(config);
        pair.connect();
        pair.run(Duration::from_secs(1));
        assert!(pair.sessions.iter().all(Session::is_in_packets));
        pair.events = Default::default();
        pair
    }

    fn connect(&mut self) {
        self.on_link = Default::default();
        let link = LinkId(self.links);
        self.links += 1;
        self.link = Some(link);
        self.sessions[NEAR].link_up(self.now, link, true);
        self.sessions[FAR].link_up(self.now, link, false);
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        let mut idle_rounds = 0;
        loop {
            for side in [NEAR, FAR] {
                self.settle(side);
            }
            let on_link = self.on_link.iter().filter_map(|way| way.front());
            let next = on_link
                .map(|(at, _)| *at)
                .chain(self.under_way.keys().map(|(at, _)| *at).take(1))
                .chain(self.sessions.iter().filter_map(Session::poll_timeout))
                .min()
                .unwrap_or(Time::NEVER);
            if next > end {
                self.now = end;
                return;
            }
            idle_rounds = if next > self.now { 0 } else { idle_rounds + 1 };
            assert!(idle_rounds < 1_000, "time stands still at {}", self.now);
            self.now = self.now.max(next);
            self.arrive();
            for side in [NEAR, FAR] {
                self.sessions[side].handle_timeout(self.now);
            }
        }
    }

    fn arrive(&mut self) {
        for side in [NEAR, FAR] {
            while self.on_link[side]
                .front()
                .is_some_and(|(at, _)| *at <= self.now)
            {
                let (_, bytes) = self.on_link[side].pop_front().unwrap();
                let link = self.link.unwrap();
                self.sessions[side].handle(self.now, link, &bytes).unwrap();
                self.take_events(side);
            }
        }
        while let Some(entry) = self.under_way.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, packet) = entry.remove();
            let (from, now) = (self.addresses[1 - to], self.now);
            self.sessions[to]
                .handle_datagram(now, from, EcnMarking::NotEct, packet)
                .unwrap();
            self.take_events(to);
        }
    }

    fn settle(&mut self, side: usize) {
        self.take_events(side);
        while let Some(link) = self.sessions[side].wants_transmit()
            && let Some(bytes) = self.sessions[side].poll_transmit(self.now, link, 64 << 10)
        {
            if Some(link) == self.link {
                self.on_link[1 - side].push_back((self.now + ONE_WAY, bytes));
            }
        }
        let mut out = BytesMut::new();
        while let Some(link) = self.link
            && let Some(transmit) = self.sessions[side].poll_datagrams(self.now, link, 8, &mut out)
        {
            for packet in out.chunks(transmit.segment) {
                self.datagrams[side] += 1;
                let packet = BytesMut::from(packet);
                let arrives = self.is_let_through(side, transmit.to);
                if arrives && !(self.drops_datagram)(side, &packet) {
                    let at = (self.now + ONE_WAY, self.datagrams.iter().sum());
                    self.under_way.insert(at, (1 - side, packet));
                }
            }
            out.clear();
        }
        self.take_events(side);
    }

    /// A translator gives the near side another port when it has forgotten the one before, and lets
    /// nothing in to the old one.
    fn is_let_through(&mut self, side: usize, to: SocketAddr) -> bool {
        if let Some((forgets_after, seen)) = &mut self.binding {
            if self.now.since(*seen) > *forgets_after {
                if side == FAR {
                    return false;
                }
                let port = self.addresses[NEAR].port() + 1;
                self.addresses[NEAR].set_port(port);
            }
            *seen = self.now;
        }
        to == self.addresses[1 - side]
    }

    fn take_events(&mut self, side: usize) {
        while let Some(event) = self.sessions[side].poll_event() {
            match &event {
                SessionEvent::LinkAttached { link } => {
                    self.sessions[side].offer_datagrams(self.now, *link, offer(side, *link));
                }
                SessionEvent::DatagramsAgreed { link, agreement } => {
                    self.agreed(side, *link, agreement.clone());
                }
                _ => {}
            }
            self.events[side].push(event);
        }
    }

    fn agreed(&mut self, side: usize, link: LinkId, agreement: DatagramAgreement) {
        let peer = (side == NEAR).then_some(home(FAR));
        let export = |room: &mut [u8], _: &'static [u8], context: &[u8]| {
            for (place, byte) in room.iter_mut().enumerate() {
                *byte = context[place % context.len()];
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let context = agreement.context.clone();
        let limits = KeyLimits::of(context.suite);
        let path = |ids: ConnectionIds| {
            let Ok(mut secret) = PathSecret::export(agreement.role, context.clone(), export);
            secret.path(Time::ZERO, 0, ids, limits).unwrap()
        };
        self.forged[side] = Some(path(agreement.connection_ids).0);
        let (sealer, opener) = path(agreement.connection_ids);
        self.sessions[side].start_datagrams(self.now, link, |now, random| {
            let challenges = ChallengeSeed::new(|room| random.fill(room));
            let keys = PathKeys {
                sealer,
                opener,
                challenges,
            };
            DatagramTransport::new(now, keys, peer, PathSettings::default())
        });
    }

    /// A packet with these frames, as that side could seal it with a number of its own choice.
    fn sealed(&mut self, side: usize, number: u64, frames: &[SessionFrame]) -> BytesMut {
        let mut payload = vocab::ByteWriter::new();
        for frame in frames {
            frame.emit(&mut payload);
        }
        let mut packet = BytesMut::new();
        let start = PacketSealer::begin(&mut packet);
        packet.extend_from_slice(payload.as_slice());
        let sealer = self.forged[side].as_mut().unwrap();
        sealer.skip_to(number);
        sealer.seal(self.now, &mut packet, start).unwrap();
        packet
    }

    fn down(&self, side: usize) -> Vec<SuspendReason> {
        let down = self.events[side].iter().filter_map(|event| match event {
            SessionEvent::DatagramsDown { reason } => Some(*reason),
            _ => None,
        });
        down.collect()
    }
}

#[test]
fn closed_path_moves_frames_to_the_link() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    let now = pair.now;
    pair.sessions[NEAR].close_datagrams(now);
    pair.run(2 * ONE_WAY);
    assert_eq!(pair.down(NEAR), [SuspendReason::ClosedHere]);
    assert_eq!(pair.down(FAR), [SuspendReason::ClosedByPeer]);
    let before = pair.datagrams;
    let flow = pair.sessions[NEAR].open(pair.now, open()).unwrap();
    pair.sessions[NEAR].write(flow, bytes(5_000));
    pair.run(Duration::from_secs(60));
    assert!(pair.events[FAR].contains(&SessionEvent::Readable { flow }));
    // The end itself is said again, and nothing else goes there.
    assert_eq!(pair.datagrams, [before[NEAR] + 2, before[FAR]]);
}

/// All that has come of a flow, taken.
fn taken(session: &mut Session, flow: FlowId) -> Vec<u8> {
    std::iter::from_fn(|| session.read(flow, 1 << 20))
        .flatten()
        .collect()
}

fn lost_links(pair: &DatagramSessionPair, side: usize) -> usize {
    let is_lost = |event: &&SessionEvent| matches!(event, SessionEvent::LinkLost { .. });
    pair.events[side].iter().filter(is_lost).count()
}

#[test]
fn packets_continue_until_a_new_link() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    let flow = pair.sessions[FAR].open(pair.now, open()).unwrap();
    pair.sessions[FAR].write(flow, bytes(5_000));
    let link = pair.link.unwrap();
    for session in &mut pair.sessions {
        session.link_down(pair.now, link, LinkEnd::Lost);
        assert!(session.is_path_without_link());
        assert_eq!(session.wants_transmit(), None);
    }
    pair.run(Duration::from_secs(30));
    assert_eq!(taken(&mut pair.sessions[NEAR], flow), bytes(5_000));
    pair.sessions[NEAR].answer(flow, OpenAnswer::Connected);
    pair.sessions[NEAR].write(flow, bytes(3_000));
    pair.run(Duration::from_millis(1));
    pair.connect();
    pair.run(Duration::from_secs(1));
    assert!(pair.sessions.iter().all(Session::is_in_packets));
    assert!(!pair.sessions.iter().any(Session::is_path_without_link));
    assert_eq!(taken(&mut pair.sessions[FAR], flow), bytes(3_000));
    assert!(taken(&mut pair.sessions[NEAR], flow).is_empty());
    assert_eq!([NEAR, FAR].map(|side| lost_links(&pair, side)), [0, 0]);
}

/// Packets may be under way when the peer's process dies; later ones show that it lives.
#[test]
fn closed_link_ends_peer_unless_packets_arrive() {
    for (heard_ms, is_lost) in [(900, true), (2_000, false)] {
        let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
        let flow = pair.sessions[NEAR].open(pair.now, open()).unwrap();
        let link = pair.link.unwrap();
        for session in &mut pair.sessions {
            session.link_down(pair.now, link, LinkEnd::ClosedByPeer);
        }
        pair.run(Duration::from_millis(heard_ms));
        pair.drops_datagram = |_, _| true;
        pair.run(Duration::from_millis(5_000 - heard_ms));
        let lost = SessionEvent::PeerLost { flows: 1 };
        assert_eq!(pair.events[NEAR].contains(&lost), is_lost);
        pair.run(Duration::from_secs(30));
        let flows = pair.sessions[NEAR].flow_statistics(flow);
        assert_eq!(flows.is_none(), is_lost);
    }
}

/// A link that breaks may be all that is heard of a path that goes dark.
#[test]
fn unheard_peer_is_silent_five_seconds_after_linkloss() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    let link = pair.link.unwrap();
    pair.drops_datagram = |_, _| true;
    for session in &mut pair.sessions {
        session.link_down(pair.now, link, LinkEnd::Lost);
    }
    assert!(pair.sessions[NEAR].is_silent());
    pair.run(Duration::from_secs(5));
    assert!(pair.events[NEAR].contains(&SessionEvent::Silent));
}

/// DESIGN: UDP outlives a lost control connection by 60 s at most.
#[test]
fn packets_end_one_minute_after_their_link() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    let link = pair.link.unwrap();
    pair.sessions[NEAR].link_down(pair.now, link, LinkEnd::Lost);
    pair.run(Duration::from_millis(59_900));
    assert!(pair.sessions[NEAR].is_in_packets());
    pair.run(Duration::from_millis(200));
    assert_eq!(lost_links(&pair, NEAR), 1);
    assert!(!pair.sessions[NEAR].is_up());
    assert_eq!(pair.down(FAR), [SuspendReason::ClosedByPeer]);
    let flow = pair.sessions[FAR].open(pair.now, open()).unwrap();
    pair.sessions[FAR].write(flow, bytes(5_000));
    // The near side forgets about it soon, and the next link has a path of its own.
    pair.run(Duration::from_secs(3));
    assert!(pair.sessions[NEAR].closing.is_none());
    pair.connect();
    pair.run(Duration::from_secs(1));
    assert!(pair.sessions.iter().all(Session::is_in_packets));
    assert_eq!(taken(&mut pair.sessions[NEAR], flow), bytes(5_000));
}

#[test]
fn broken_link_is_lost_without_packet_answers() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    let link = pair.link.unwrap();
    pair.sessions[NEAR].link_down(pair.now, link, LinkEnd::Lost);
    pair.drops_datagram = |_, _| true;
    let flow = pair.sessions[NEAR].open(pair.now, open()).unwrap();
    pair.sessions[NEAR].write(flow, bytes(5_000));
    pair.run(Duration::from_secs(3));
    assert_eq!(pair.down(NEAR), [SuspendReason::NoAnswer]);
    assert_eq!(lost_links(&pair, NEAR), 1);
    assert!(!pair.sessions[NEAR].is_up());
    pair.drops_datagram = |_, _| false;
    pair.connect();
    pair.run(Duration::from_secs(1));
    assert_eq!(taken(&mut pair.sessions[FAR], flow), bytes(5_000));
}

/// Data sent on the link in a trial, and before packets were up, is not known to have arrived.
#[test]
fn unconfirmed_link_data_moves_to_packets() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    let flow = pair.sessions[NEAR].open(pair.now, open()).unwrap();
    pair.sessions[NEAR].write(flow, bytes(5_000));
    pair.run(Duration::from_secs(1));
    assert_eq!(taken(&mut pair.sessions[FAR], flow), bytes(5_000));
    let link = pair.link.unwrap();
    let now = begin_trial(&mut pair.sessions[NEAR], pair.now);
    pair.now = now;
    pair.sessions[NEAR].write(flow, bytes(7_000));
    let lost = pair.sessions[NEAR].poll_transmit(now, link, 64 << 10);
    assert!(lost.is_some_and(|bytes| bytes.len() > 7_000));
    pair.sessions[NEAR].link_down(now, link, LinkEnd::Lost);
    pair.run(Duration::from_secs(1));
    assert_eq!(taken(&mut pair.sessions[FAR], flow), bytes(7_000));
}

/// Has a session with backlog try the link; gives the moment at which it does.
fn begin_trial(session: &mut Session, mut now: Time) -> Time {
    let choice = &mut session.link.as_mut().unwrap().datagrams.selection;
    while !choice.is_trial() {
        now += ONE_WAY;
        choice.sent(now, path_selection::BacklogState::Data);
        choice.delivered(10_000);
        choice.judge(now, ONE_WAY);
    }
    now
}

/// The answer to a liveness ping does not confirm data on the link.
#[test]
fn simultaneous_packet_ping_and_marker_ping_differ() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    let flow = pair.sessions[NEAR].open(pair.now, open()).unwrap();
    pair.sessions[NEAR].write(flow, bytes(5_000));
    pair.run(Duration::from_secs(1));
    let link = pair.link.unwrap();
    let near = &mut pair.sessions[NEAR];
    let now = begin_trial(near, pair.now);
    near.write(flow, bytes(5_000));
    near.liveness.restart();
    let on_link = near.poll_transmit(now, link, 64 << 10).unwrap();
    let (mut packet, mut carried) = (vocab::ByteWriter::new(), Vec::new());
    near.poll_packet(now, 1_200, &mut packet, &mut carried);
    let stamps = |bytes: &[u8]| -> Vec<u32> {
        let mut bytes = BytesMut::from(bytes);
        let frames = std::iter::from_fn(|| split_frame(&mut bytes).unwrap());
        let frames = frames.map(|frame| SessionFrame::parse(&frame).unwrap());
        let stamp = |frame| match frame {
            SessionFrame::Ping(ping) => Some(ping.stamp_us),
            _ => None,
        };
        frames.filter_map(stamp).collect()
    };
    let stamps = [stamps(&on_link), stamps(packet.as_slice())];
    assert_eq!(stamps.each_ref().map(Vec::len), [1, 1]);
    assert_ne!(stamps[0], stamps[1]);
}

/// A peer that violates the protocol in a packet gets a Close frame.
#[test]
fn protocol_violation_closes_the_path() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    let greeting = SessionFrame::Resume(ResumeFrame {
        series: ResumeContinuation::Last,
        flows_seen_below: 0,
        next_message: 0,
        positions: Vec::new(),
    });
    let packet = pair.sealed(NEAR, 1_000, &[greeting]);
    let (now, codepoint) = (pair.now, EcnMarking::NotEct);
    let error = pair.sessions[FAR]
        .handle_datagram(now, home(NEAR), codepoint, packet)
        .unwrap_err();
    assert!(matches!(error, SessionError::PeerMisbehaved(_)), "{error}");
    pair.run(2 * ONE_WAY);
    assert_eq!(pair.down(NEAR), [SuspendReason::ClosedByPeer]);
}

/// Packets need no more resets waiting than a link, whatever the peer opens in them.
#[test]
fn resets_of_packet_flows_stay_bounded() {
    let config = SessionConfig {
        flow_limit: 0,
        ..SessionConfig::default()
    };
    let mut pair = DatagramSessionPair::in_packets(&config);
    let (now, codepoint) = (pair.now, EcnMarking::NotEct);
    let mut outcome = Ok(());
    let mut flow = 0;
    for number in 1_000..20_000 {
        let mut frames = Vec::new();
        for _ in 0..20 {
            let id = FlowId(flow);
            frames.push(SessionFrame::Open(OpenFrame {
                flow: id,
                open: open(),
            }));
            flow += 2;
        }
        let packet = pair.sealed(NEAR, number, &frames);
        outcome = pair.sessions[FAR].handle_datagram(now, home(NEAR), codepoint, packet);
        if outcome.is_err() {
            break;
        }
        let waiting = pair.sessions[FAR].control.resets.len();
        assert!(waiting <= RESETS_WAITING + 1, "{waiting}");
    }
    assert!(matches!(outcome, Err(SessionError::PeerMisbehaved(_))));
    assert!(flow / 2 > RESETS_WAITING as u64, "not before the limit");
    assert!(pair.sessions[FAR].control.resets.is_empty());
    assert!(!pair.sessions[FAR].is_up());
}

#[test]
fn closing_a_flow_frees_its_held_data() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    let [reset, filled] = [(); 2].map(|()| pair.sessions[NEAR].open(pair.now, open()).unwrap());
    pair.run(2 * ONE_WAY);
    let mut frames = Vec::new();
    for flow in [reset, filled] {
        for offset in [5, 10, 15] {
            let bytes = bytes(1);
            frames.push(SessionFrame::Data(DataFrame {
                flow,
                offset,
                bytes,
            }));
        }
    }
    for frame in frames {
        let now = pair.now;
        pair.sessions[FAR].handle_packet_frame(now, frame).unwrap();
    }
    assert_eq!(pair.sessions[FAR].held_pieces, 6);
    pair.sessions[FAR].reset(reset, ResetReason::Limit);
    assert_eq!(pair.sessions[FAR].held_pieces, 3);
    pair.sessions[NEAR].write(filled, bytes(12));
    pair.run(ONE_WAY + Duration::from_millis(5));
    assert_eq!(pair.sessions[FAR].held_pieces, 1);
    let (now, link) = (pair.now, pair.link.unwrap());
    for side in [NEAR, FAR] {
        pair.sessions[side].link_down(now, link, LinkEnd::Lost);
    }
    pair.drops_datagram = |_, _| true;
    pair.run(SessionConfig::default().give_up_after);
    assert_eq!(pair.sessions[FAR].held_pieces, 0);
}

/// An offer comes after the last Resume, and one that comes before is a fault of the peer.
#[test]
fn an_offer_between_resumes_is_refused() {
    let mut pair = DatagramSessionPair::new(&SessionConfig::default());
    pair.connect();
    let link = pair.link.unwrap();
    let mut greeting = vocab::ByteWriter::new();
    pair.sessions[NEAR].hello().emit(&mut greeting);
    let resume = |series| {
        SessionFrame::Resume(ResumeFrame {
            series,
            flows_seen_below: 0,
            next_message: 0,
            positions: Vec::new(),
        })
    };
    resume(ResumeContinuation::More).emit(&mut greeting);
    let now = pair.now;
    let greeting = greeting.finish();
    pair.sessions[FAR].handle(now, link, &greeting).unwrap();
    let mut early = vocab::ByteWriter::new();
    SessionFrame::DatagramOffer(offer(NEAR, link)).emit(&mut early);
    let error = pair.sessions[FAR].handle(now, link, &early.finish());
    assert!(
        matches!(error, Err(SessionError::PeerMisbehaved(_))),
        "{error:?}"
    );
    assert!(!pair.sessions[FAR].is_up());
}

/// A side that may take its peer's flows before its own last Resume is out keeps its offer for after
/// that, or the peer would refuse it.
#[test]
fn an_offer_waits_for_the_last_resume() {
    let mut pair = DatagramSessionPair::new(&SessionConfig::default());
    pair.connect();
    pair.run(Duration::from_millis(100));
    for _ in 0..1_200 {
        pair.sessions[NEAR].open(pair.now, open()).unwrap();
    }
    pair.run(Duration::from_millis(200));
    pair.connect();
    let link = pair.link.unwrap();
    // The far side's greeting is whole before more than one Resume of the near side's fits its link.
    let mut far = pair.sessions[FAR]
        .poll_transmit(pair.now, link, 64 << 10)
        .unwrap();
    let mut sent = pair.sessions[NEAR]
        .poll_transmit(pair.now, link, 1)
        .unwrap()
        .to_vec();
    pair.sessions[FAR].handle(pair.now, link, &sent).unwrap();
    while let Some(more) = pair.sessions[FAR].poll_transmit(pair.now, link, 64 << 10) {
        far = [far, more].concat().into();
    }
    pair.sessions[NEAR].handle(pair.now, link, &far).unwrap();
    assert!(pair.sessions[NEAR].is_up());
    pair.take_events(NEAR);
    sent.clear();
    while let Some(more) = pair.sessions[NEAR].poll_transmit(pair.now, link, 1) {
        sent.extend_from_slice(&more);
        pair.sessions[FAR].handle(pair.now, link, &more).unwrap();
        if pair.sessions[FAR].is_up() {
            break;
        }
    }
    assert!(sent.len() > 2 * 1_024, "more than one Resume");
    pair.run(Duration::from_secs(1));
    assert!(pair.sessions.iter().all(Session::is_in_packets));
}

/// A piece of a message, an acknowledgement that waits and the packet's own words fit the least
/// packet together.
#[test]
fn message_is_not_delayed_by_pending_acknowledgement() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    pair.drops_datagram = |_, packet| packet.len() > 1_200;
    pair.run(Duration::from_secs(120));
    let size = pair.sessions[NEAR].datagram_status().unwrap().packet_size;
    assert_eq!(size, 1_200);
    let flow = pair.sessions[NEAR].open(pair.now, open()).unwrap();
    pair.run(Duration::from_millis(100));
    for round in 0..20 {
        // A packet of the far side's, so that the near side has one to acknowledge, later.
        pair.sessions[FAR].write(flow, bytes(10));
        pair.run(ONE_WAY);
        let before = pair.datagrams[NEAR];
        pair.sessions[NEAR].send_message(flow, 1, bytes(MESSAGE_PIECE));
        pair.settle(NEAR);
        assert!(pair.datagrams[NEAR] > before, "it waits in round {round}");
        pair.run(Duration::from_millis(200));
    }
    let came = pair.events[FAR].iter();
    let came = came.filter(|event| matches!(event, SessionEvent::Message { .. }));
    assert_eq!(came.count(), 20);
}

/// A node that is full tells the peer so by messages that have no bytes of their own.
#[test]
fn empty_messages_keep_within_a_packet() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    let now = pair.now;
    let near = &mut pair.sessions[NEAR];
    let flows: Vec<_> = (0..40).map(|_| near.open(now, open()).unwrap()).collect();
    pair.run(Duration::from_secs(1));
    let now = pair.now;
    let near = &mut pair.sessions[NEAR];
    for room in 0..600 {
        for flow in &flows {
            near.send_message(*flow, 1, Bytes::new());
        }
        for _ in 0..10 {
            let (mut packet, mut carried) = (vocab::ByteWriter::new(), Vec::new());
            near.poll_packet(now, room, &mut packet, &mut carried);
            let length = packet.as_slice().len();
            assert!(length <= room, "{length} bytes in a room of {room}");
            for frame in &carried {
                near.packet_arrived(frame);
            }
        }
    }
}

/// The NAT before one side forgets a mapping after 30 seconds of silence, as some do (RFC 4787
/// requires two minutes). An idle session sends often enough.
#[test]
fn an_idle_path_keeps_its_translator_awake() {
    // Whether or not the session has something to say of its own.
    for ping_interval in [1, 3_600].map(Duration::from_secs) {
        let config = SessionConfig {
            ping_interval,
            silent_after: 2 * ping_interval,
            give_up_after: 4 * ping_interval,
            ..SessionConfig::default()
        };
        let mut pair = DatagramSessionPair::in_packets(&config);
        pair.binding = Some((Duration::from_secs(30), pair.now));
        let port = pair.addresses[NEAR].port();
        pair.run(Duration::from_secs(3_000));
        assert_eq!(pair.addresses[NEAR].port(), port);
        assert!(pair.down(NEAR).is_empty() && pair.down(FAR).is_empty());
        // The far side reaches the near one at once.
        let flow = pair.sessions[FAR].open(pair.now, open()).unwrap();
        pair.run(2 * ONE_WAY);
        assert!(pair.events[NEAR].contains(&SessionEvent::Opened { flow, open: open() }));
    }
}

/// Repair symbols would be most of the traffic of an idle session that only sends signs of life.
#[test]
fn exchanges_are_repaired_but_keepalives_are_not() {
    let mut pair = DatagramSessionPair::in_packets(&SessionConfig::default());
    pair.run(Duration::from_secs(5));
    let repairs = |pair: &DatagramSessionPair| {
        let sent = |session: &Session| session.datagram_status().unwrap().sent_repairs;
        pair.sessions.iter().map(sent).sum::<u64>()
    };
    let (before, asked) = (repairs(&pair), pair.datagrams);
    pair.run(Duration::from_secs(60));
    assert_eq!(repairs(&pair), before);
    // A ping and its answer need three packets with the acknowledgement, each way in turn.
    let sent: u64 = (0..2).map(|side| pair.datagrams[side] - asked[side]).sum();
    assert!((60..240).contains(&sent), "{sent} packets in a minute");
    let flow = pair.sessions[NEAR].open(pair.now, open()).unwrap();
    pair.sessions[NEAR].write(flow, bytes(5_000));
    pair.run(Duration::from_secs(1));
    assert!(repairs(&pair) > before);
}
