//! Outage tests: two sessions over links that break anywhere and packets that get lost; every byte
//! arrives once and in order.
//!
//! A seeded model drives both sides with random writes, reads and ends, delivers the bytes of the
//! link in random pieces, and loses links at any byte, with the data in flight. In some simulations
//! frames travel in packets for a while. Packets are lost, duplicated, reordered, and sometimes
//! declared lost although they arrive. Each stream is a function of flow, direction and offset, and
//! that function is the reference.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tunnel::wire::{SessionFrame, split_frame};
use tunnel::{
    CarriedFrame, LinkEnd, LinkId, OpenAnswer, OpenRequest, Session, SessionConfig, SessionEvent,
};
use vocab::{ByteCount, ByteWriter, FlowId, NodeId, SeededRandom, Time};

/// One direction of a flow, as one side sees its own and the other's half of it.
#[derive(Debug, Default)]
struct FlowDirection {
    length: u64,
    written: u64,
    finished: bool,
    read: u64,
    consumed: u64,
    end_seen: bool,
    peer_consumed: u64,
}

#[derive(Debug, Default)]
struct FlowModel {
    /// Streams by writing side.
    streams: [FlowDirection; 2],
    opened_far: u32,
    answered: u32,
    closed: [u32; 2],
}

struct OutageSimulation {
    random: SeededRandom,
    now: Time,
    sessions: [Session; 2],
    link: Option<LinkId>,
    links: u64,
    /// Bytes under way to each side.
    wire: [Vec<u8>; 2],
    with_packets: bool,
    /// Packets under way to each side, in no order.
    packets: [Vec<TestPacket>; 2],
    /// Outcomes that each side will be told of its packets, in any order.
    reports: [Vec<(PacketFate, Vec<CarriedFrame>)>; 2],
    packets_sent: u64,
    flows: BTreeMap<FlowId, (usize, FlowModel)>,
    window: u64,
}

#[derive(Clone)]
struct TestPacket {
    payload: Bytes,
    carried: Vec<CarriedFrame>,
}

#[derive(Clone, Copy)]
enum PacketFate {
    Arrived,
    Lost,
}

fn byte_at(flow: FlowId, writer: usize, offset: u64) -> u8 {
    let mixed = (offset + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(flow.0 * 2 + writer as u64)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 56) as u8
}

fn open() -> OpenRequest {
    OpenRequest {
        client: "198.18.1.2:40000".parse().unwrap(),
        server: "198.18.2.2:80".parse().unwrap(),
        accelerator: 1,
        keep_client_address: false,
        may_store: true,
        dscp: 10,
    }
}

impl OutageSimulation {
    fn new(seed: u64) -> Self {
        let mut random = SeededRandom::from_seed(seed);
        let window = 4_096 << random.below(6);
        let config = SessionConfig {
            flow_window: ByteCount::new(window),
            total_window: ByteCount::new(window * 8),
            flow_window_limit: ByteCount::new(window * 4),
            ..SessionConfig::default()
        };
        let ids = [NodeId([1; 32]), NodeId([2; 32])];
        let mut session = |side: usize| {
            let own = SeededRandom::from_seed(random.next_u64());
            Session::new(config.clone(), ids[side], ids[1 - side], own, Time::ZERO)
        };
        let sessions = [session(0), session(1)];
        Self {
            random,
            now: Time::ZERO,
            sessions,
            link: None,
            links: 0,
            wire: Default::default(),
            with_packets: !seed.is_multiple_of(3),
            packets: Default::default(),
            reports: Default::default(),
            packets_sent: 0,
            flows: BTreeMap::new(),
            window: window * 8,
        }
    }

    fn dial(&mut self) {
        self.lose();
        let link = LinkId(self.links);
        self.links += 1;
        let dialer = self.random.below(2) as usize;
        // Past the time in which two dials count as one.
        self.pass(Duration::from_secs(3));
        for side in [0, 1] {
            self.sessions[side].link_up(self.now, link, side == dialer);
        }
        self.link = Some(link);
    }

    /// Breaks the link: a part of the data in flight still arrives, the rest does not. Each side
    /// notices at random.
    fn lose(&mut self) {
        let Some(link) = self.link else {
            return;
        };
        for side in [0, 1] {
            let arrives = self.random.below(self.wire[side].len() as u64 + 1) as usize;
            let part: Vec<u8> = self.wire[side].drain(..arrives).collect();
            self.sessions[side].handle(self.now, link, &part).unwrap();
            self.wire[side].clear();
            self.drain(side);
        }
        // A transport that ends with its link reports nothing.
        self.packets = Default::default();
        self.reports = Default::default();
        for side in [0, 1] {
            if self.random.below(2) == 0 {
                self.sessions[side].link_down(self.now, link, LinkEnd::Lost);
            }
        }
        self.link = None;
    }

    fn pass(&mut self, span: Duration) {
        self.now += span;
        for side in [0, 1] {
            if self.sessions[side]
                .poll_timeout()
                .is_some_and(|at| at <= self.now)
            {
                self.sessions[side].handle_timeout(self.now);
            }
            self.drain(side);
        }
    }

    fn drain(&mut self, side: usize) {
        while let Some(event) = self.sessions[side].poll_event() {
            match event {
                SessionEvent::Opened { flow, open: got } => {
                    assert_eq!(got, open());
                    let (opener, model) = self.flows.get_mut(&flow).unwrap();
                    assert_eq!(*opener, 1 - side);
                    model.opened_far += 1;
                    self.sessions[side].answer(flow, OpenAnswer::Connected);
                }
                SessionEvent::Answered { flow, answer } => {
                    assert_eq!(answer, OpenAnswer::Connected);
                    self.flows.get_mut(&flow).unwrap().1.answered += 1;
                }
                SessionEvent::Finished { flow } => {
                    let stream = &mut self.flows.get_mut(&flow).unwrap().1.streams[1 - side];
                    assert!(!stream.end_seen, "an end is told once");
                    assert_eq!(stream.read, stream.length);
                    stream.end_seen = true;
                }
                SessionEvent::Consumed { flow, offset } => {
                    let stream = &mut self.flows.get_mut(&flow).unwrap().1.streams[side];
                    // The end of the direction is news as well, at the same offset.
                    assert!(offset >= stream.peer_consumed && offset <= stream.consumed);
                    stream.peer_consumed = offset;
                }
                SessionEvent::Closed { flow } => {
                    self.flows.get_mut(&flow).unwrap().1.closed[side] += 1;
                }
                SessionEvent::Reset { flow, reason } => panic!("flow {flow} was reset: {reason:?}"),
                SessionEvent::PeerRestarted => panic!("nobody restarted"),
                SessionEvent::PeerLost { .. } => panic!("nobody was given up"),
                SessionEvent::LinkAttached { .. }
                | SessionEvent::LinkReplaced { .. }
                | SessionEvent::LinkLost { .. }
                | SessionEvent::Hello { .. }
                | SessionEvent::Readable { .. }
                | SessionEvent::Writable { .. }
                | SessionEvent::Message { .. }
                | SessionEvent::Silent
                | SessionEvent::Heard
                | SessionEvent::GoAway
                | SessionEvent::DatagramsAgreed { .. }
                | SessionEvent::DatagramsUp
                | SessionEvent::DatagramsDown { .. }
                | SessionEvent::Drained => {}
            }
        }
    }

    fn open_flow(&mut self) {
        let side = self.random.below(2) as usize;
        let Ok(flow) = self.sessions[side].open(self.now, open()) else {
            return;
        };
        let mut model = FlowModel::default();
        for stream in &mut model.streams {
            let most = 1 << self.random.below(18);
            stream.length = self.random.below(most);
        }
        assert!(
            self.flows.insert(flow, (side, model)).is_none(),
            "ids are new"
        );
    }

    /// Both sides write, read and consume what they can, at random and in part.
    fn work(&mut self, everything: bool) {
        for (flow, (opener, model)) in &mut self.flows {
            for side in [0, 1] {
                if side != *opener && model.opened_far == 0 {
                    continue;
                }
                let session = &mut self.sessions[side];
                let random = &mut self.random;
                let part = |random: &mut SeededRandom, most: u64| {
                    if everything {
                        most
                    } else {
                        random.below(most + 1)
                    }
                };
                let stream = &mut model.streams[side];
                let room = session.writable(*flow) as u64;
                let count = part(random, room.min(stream.length - stream.written));
                let bytes: Bytes = (stream.written..stream.written + count)
                    .map(|offset| byte_at(*flow, side, offset))
                    .collect();
                session.write(*flow, bytes);
                stream.written += count;
                if stream.written == stream.length && !stream.finished {
                    stream.finished = true;
                    session.finish(*flow);
                }
                let stream = &mut model.streams[1 - side];
                let most = part(random, 50_000) as usize;
                if let Some(bytes) = session.read(*flow, most) {
                    for byte in &bytes {
                        assert_eq!(*byte, byte_at(*flow, 1 - side, stream.read));
                        stream.read += 1;
                    }
                }
                let consumed = stream.consumed + part(random, stream.read - stream.consumed);
                // What the session tells the peer is never ahead of the decoder.
                stream.consumed = consumed;
                session.consumed(*flow, consumed);
            }
        }
        for side in [0, 1] {
            self.drain(side);
            let statistics = self.sessions[side].statistics();
            assert!(statistics.unconsumed_bytes <= self.window);
            assert!(statistics.outstanding_bytes <= self.window);
        }
    }

    fn carry(&mut self) {
        let Some(link) = self.link else {
            return;
        };
        for side in [0, 1] {
            let room = 1 + self.random.below(40_000) as usize;
            if let Some(bytes) = self.sessions[side].poll_transmit(self.now, link, room) {
                self.wire[1 - side].extend_from_slice(&bytes);
            }
        }
        for side in [0, 1] {
            let count = self.random.below(self.wire[side].len() as u64 + 1) as usize;
            let part: Vec<u8> = self.wire[side].drain(..count).collect();
            self.sessions[side].handle(self.now, link, &part).unwrap();
            self.drain(side);
        }
    }

    /// Frames travel in packets from here on, or no longer.
    fn change_way(&mut self) {
        if self.link.is_none() || !self.sessions.iter().all(Session::is_up) {
            return;
        }
        let side = self.random.below(2) as usize;
        if !self.sessions[side].is_in_packets() {
            self.sessions[side].packets_up(self.now);
            return;
        }
        if self.random.below(6) > 0 {
            return;
        }
        let under_way = self.packets[1 - side].drain(..);
        let unreported = self.reports[side].drain(..).map(|(_, carried)| carried);
        let lost: Vec<Vec<CarriedFrame>> = under_way
            .map(|packet| packet.carried)
            .chain(unreported)
            .collect();
        for carried in lost.iter().flatten() {
            self.sessions[side].packet_lost(self.now, carried);
        }
        self.sessions[side].packets_down(self.now);
    }

    fn carry_packets(&mut self) {
        if self.link.is_none() {
            return;
        }
        for side in [0, 1] {
            let most = self.random.below(4);
            for _ in 0..most {
                let (mut out, mut carried) = (ByteWriter::new(), Vec::new());
                let room = 120 + self.random.below(1_300) as usize;
                self.sessions[side].poll_packet(self.now, room, &mut out, &mut carried);
                assert!(out.len() <= room, "a packet has a length");
                assert_eq!(out.is_empty(), carried.is_empty());
                if carried.is_empty() {
                    break;
                }
                self.packets_sent += 1;
                let payload = out.finish();
                self.packets[1 - side].push(TestPacket { payload, carried });
            }
        }
        for side in [0, 1] {
            for _ in 0..self.random.below(6) {
                if self.packets[side].is_empty() {
                    break;
                }
                let count = self.packets[side].len() as u64;
                // Mostly the oldest.
                let place = self.random.below(count).min(self.random.below(count)) as usize;
                let packet = self.packets[side].remove(place);
                self.arrive(side, packet);
            }
            self.drain(side);
            while !self.reports[side].is_empty() && self.random.below(4) > 0 {
                let place = self.random.below(self.reports[side].len() as u64) as usize;
                let (fate, carried) = self.reports[side].swap_remove(place);
                for carried in &carried {
                    match fate {
                        PacketFate::Arrived => self.sessions[side].packet_arrived(carried),
                        PacketFate::Lost => self.sessions[side].packet_lost(self.now, carried),
                    }
                }
            }
            self.drain(side);
        }
    }

    /// One packet reaches a side, or not.
    fn arrive(&mut self, side: usize, packet: TestPacket) {
        let sender = 1 - side;
        let (copies, fate) = match self.random.below(20) {
            0..=2 => (0, PacketFate::Lost),
            3 => (2, PacketFate::Arrived),
            // The sender does not hear of it, and takes it for lost.
            4 => (1, PacketFate::Lost),
            _ => (1, PacketFate::Arrived),
        };
        for _ in 0..copies {
            let mut payload = BytesMut::from(&packet.payload[..]);
            while let Some(frame) = split_frame(&mut payload).unwrap() {
                self.sessions[side]
                    .handle_packet_frame(self.now, SessionFrame::parse(&frame).unwrap())
                    .unwrap();
            }
            assert!(payload.is_empty());
        }
        self.reports[sender].push((fate, packet.carried));
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..=2 => self.dial(),
            3 => self.lose(),
            4..=10 => self.open_flow(),
            11..=40 => self.work(false),
            41..=50 if self.with_packets => self.change_way(),
            _ => self.carry(),
        }
        self.carry_packets();
        let span = Duration::from_micros(self.random.below(5_000));
        self.pass(span);
    }

    /// No more outages: all that is open must end.
    fn settle(&mut self) {
        self.dial();
        for _ in 0..20_000 {
            self.work(true);
            self.carry();
            self.carry_packets();
            if self.with_packets && self.random.below(50) == 0 {
                self.change_way();
            }
            self.pass(Duration::from_millis(5));
            if self.flows.values().all(|(_, model)| model.closed == [1, 1]) {
                return;
            }
        }
        let open: Vec<_> = self
            .flows
            .iter()
            .filter(|(_, (_, model))| model.closed != [1, 1])
            .collect();
        panic!("flows that do not end: {open:?}");
    }

    fn check(&self) {
        for (flow, (_, model)) in &self.flows {
            assert_eq!((model.opened_far, model.answered), (1, 1), "flow {flow}");
            for stream in &model.streams {
                assert_eq!(stream.read, stream.length, "flow {flow}");
                assert_eq!(stream.peer_consumed, stream.length, "flow {flow}");
            }
        }
        for session in &self.sessions {
            let statistics = session.statistics();
            assert_eq!(session.flow_count(), 0);
            assert!(self.packets_sent > 0 || statistics.duplicate_bytes == 0);
            assert_eq!(statistics.outstanding_bytes, 0);
            assert_eq!(statistics.unconsumed_bytes, 0);
            assert_eq!(statistics.reset_flows, 0);
        }
    }
}

fn run(seed: u64, steps: u32) -> OutageSimulation {
    let mut world = OutageSimulation::new(seed);
    world.dial();
    for _ in 0..steps {
        world.step();
    }
    world.settle();
    world.check();
    world
}

#[test]
fn every_byte_arrives_once_despite_link_losses() {
    let (mut flows, mut links, mut again, mut packets) = (0, 0, 0, 0);
    for seed in 0..100 {
        let world = run(seed, 600);
        flows += world.flows.len();
        links += world.links;
        packets += world.packets_sent;
        again += world.sessions[0].statistics().retransmitted_bytes;
    }
    // The model must have had something to break.
    assert!(
        flows > 1_000 && links > 1_000 && again > 1_000_000 && packets > 10_000,
        "{flows} {links} {again} {packets}"
    );
}

#[test]
fn flow_ending_during_link_setup_ends_everywhere() {
    run(7_440_300_229_351_737_010, 152);
}

#[test]
fn flow_ends_despite_loss_of_last_acknowledgement() {
    run(2_524_465_180_402_118_032, 376);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_event_sequence_completes(seed in any::<u64>(), steps in 1..400_u32) {
        run(seed, steps);
    }

    #[test]
    fn noise_on_a_link_causes_only_errors(
        noise in prop::collection::vec(any::<u8>(), 0..2_000),
        flips in prop::collection::vec((any::<u16>(), any::<u8>()), 0..4),
    ) {
        let mut world = OutageSimulation::new(7);
        world.dial();
        for _ in 0..60 {
            world.carry();
            world.open_flow();
            world.work(true);
        }
        let link = world.link.unwrap();
        world.carry();
        let mut bytes = world.sessions[0]
            .poll_transmit(world.now, link, 60_000)
            .map_or_else(Vec::new, |bytes| bytes.to_vec());
        for (place, value) in flips {
            let length = bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(usize::from(place) % length) {
                *byte ^= value;
            }
        }
        let rest = std::mem::take(&mut world.wire[1]);
        world.sessions[1].handle(world.now, link, &rest).unwrap();
        let now = world.now;
        for bytes in [&bytes, &noise] {
            if world.sessions[1].handle(now, link, bytes).is_err() {
                prop_assert!(!world.sessions[1].is_up());
            }
        }
        while world.sessions[1].poll_event().is_some() {}
        world.sessions[1].handle_timeout(now + Duration::from_secs(1));
        world.sessions[1].poll_transmit(now, link, 1_000);
    }
}
