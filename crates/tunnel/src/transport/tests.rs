//! Two transports and a path that the test holds in its hands.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::packet::{ConnectionId, ConnectionIds, KeyContext, KeyLimits, PathSecret, Role, Suite};
use crate::wire::{Data, Frame};
use vocab::{FlowId, NodeId};

const NEAR: usize = 0;
const FAR: usize = 1;
const ONE_WAY: Duration = Duration::from_millis(20);

/// Two ends; each sends numbered frames, and remembers what became of them.
struct Pair {
    now: Time,
    ends: [Transport<u64>; 2],
    homes: [SocketAddr; 2],
    under_way: BTreeMap<(Time, u64), (usize, SocketAddr, BytesMut)>,
    sent: u64,
    /// Frames that an end wants to send, and those that came.
    wanted: [Vec<u64>; 2],
    came: [BTreeSet<u64>; 2],
    arrived: [BTreeSet<u64>; 2],
    changes: [Vec<Change>; 2],
    /// Datagrams that the path swallows.
    swallows: fn(&BytesMut) -> bool,
    /// The length of a frame's bytes.
    frame_bytes: usize,
}

fn home(end: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + end as u8], 4_000))
}

fn keys(end: usize) -> Keys {
    let roles = [Role::Dialler, Role::Listener];
    let context = KeyContext {
        version: 1,
        suite: Suite::Aes256Gcm,
        dialler: NodeId([1; 32]),
        listener: NodeId([2; 32]),
        dialler_nonce: [3; 16],
        listener_nonce: [4; 16],
    };
    let export = |room: &mut [u8], _: &'static [u8], _: &[u8]| {
        room.fill(7);
        Ok::<(), std::convert::Infallible>(())
    };
    let Ok(mut secret) = PathSecret::export(roles[end], context, export);
    let ids = ConnectionIds {
        ours: ConnectionId([end as u8; 8]),
        theirs: ConnectionId([1 - end as u8; 8]),
    };
    let limits = KeyLimits::of(Suite::Aes256Gcm);
    let (sealer, opener) = secret.path(Time::ZERO, 0, ids, limits).unwrap();
    let challenges = ChallengeSeed::new(|room| room.fill(end as u8));
    Keys {
        sealer,
        opener,
        challenges,
    }
}

impl Pair {
    fn new(settings: Settings) -> Self {
        let end = |end: usize, peer| Transport::new(Time::ZERO, keys(end), peer, settings);
        Self {
            now: Time::ZERO,
            ends: [end(NEAR, Some(home(FAR))), end(FAR, None)],
            homes: [home(NEAR), home(FAR)],
            under_way: BTreeMap::new(),
            sent: 0,
            wanted: Default::default(),
            came: Default::default(),
            arrived: Default::default(),
            changes: Default::default(),
            swallows: |_| false,
            frame_bytes: 1_000,
        }
    }

    fn settle(&mut self, end: usize) {
        let mut out = BytesMut::new();
        loop {
            out.clear();
            let (wanted, bytes) = (&mut self.wanted[end], self.frame_bytes);
            let transmit = self.ends[end].poll_transmit(self.now, 8, &mut out, |room, payload| {
                let number = wanted.pop()?;
                Frame::Data(Data {
                    flow: FlowId(number),
                    offset: 0,
                    bytes: vec![number as u8; bytes.min(room - 20)].into(),
                })
                .emit(payload);
                Some(number)
            });
            let Some(transmit) = transmit else {
                break;
            };
            for packet in out.chunks(transmit.segment) {
                let packet = BytesMut::from(packet);
                self.sent += 1;
                if transmit.to == self.homes[1 - end] && !(self.swallows)(&packet) {
                    let at = (self.now + ONE_WAY, self.sent);
                    self.under_way
                        .insert(at, (1 - end, self.homes[end], packet));
                }
            }
        }
        self.drain(end);
    }

    fn drain(&mut self, end: usize) {
        let transport = &mut self.ends[end];
        while let Some(frame) = transport.poll_frame() {
            let Frame::Data(data) = frame else {
                panic!("a frame that nobody sent: {frame:?}");
            };
            self.came[end].insert(data.flow.0);
        }
        while let Some((fate, number)) = transport.poll_fate() {
            match fate {
                Fate::Arrived => drop(self.arrived[end].insert(number)),
                Fate::Lost if self.arrived[end].contains(&number) => {}
                Fate::Lost => self.wanted[end].push(number),
            }
        }
        while let Some(change) = transport.poll_change() {
            self.changes[end].push(change);
        }
    }

    fn run(&mut self, span: Duration) {
        let end_of_run = self.now + span;
        let mut idle_rounds = 0;
        loop {
            for end in [NEAR, FAR] {
                self.settle(end);
            }
            let timers = self.ends.iter().filter_map(Transport::poll_timeout);
            let arrivals = self.under_way.keys().map(|(at, _)| *at).take(1);
            let next = timers.chain(arrivals).min().unwrap_or(Time::NEVER);
            if next > end_of_run {
                self.now = end_of_run;
                return;
            }
            idle_rounds = if next > self.now { 0 } else { idle_rounds + 1 };
            assert!(idle_rounds < 1_000, "time stands still at {}", self.now);
            self.now = self.now.max(next);
            while let Some(entry) = self.under_way.first_entry()
                && entry.key().0 <= self.now
            {
                let (to, from, packet) = entry.remove();
                self.ends[to]
                    .handle(self.now, from, Codepoint::NotEct, packet)
                    .unwrap();
                self.drain(to);
            }
            for end in [NEAR, FAR] {
                self.ends[end].handle_timeout(self.now);
                self.drain(end);
            }
        }
    }

    fn send(&mut self, end: usize, numbers: std::ops::Range<u64>) {
        self.wanted[end].extend(numbers);
    }
}

fn carrying(settings: Settings) -> Pair {
    let mut pair = Pair::new(settings);
    pair.run(Duration::from_millis(500));
    assert_eq!(pair.changes, [[Change::Carrying], [Change::Carrying]]);
    pair
}

#[test]
fn frames_arrive_once_told_and_are_acknowledged() {
    let mut pair = carrying(Settings::default());
    pair.send(NEAR, 0..300);
    pair.send(FAR, 0..300);
    pair.run(Duration::from_secs(3));
    for end in [NEAR, FAR] {
        assert!(pair.came[end].iter().copied().eq(0..300));
        assert!(pair.arrived[end].iter().copied().eq(0..300));
        assert_eq!(pair.ends[end].status(pair.now).lost_packets, 0);
        assert_eq!(pair.ends[end].status(pair.now).in_flight_bytes, 0);
    }
}

#[test]
fn a_path_for_jumbo_packets_is_found_and_correction_bears_it() {
    let mut pair = carrying(Settings {
        datagram_max: 8_952,
        ..Settings::default()
    });
    pair.frame_bytes = 8_000;
    pair.send(NEAR, 0..300);
    pair.run(Duration::from_secs(5));
    assert_eq!(pair.ends[NEAR].status(pair.now).packet_size, 8_952);
    assert!(pair.came[FAR].iter().copied().eq(0..300));
}

#[test]
fn a_quiet_path_is_not_suspended_for_a_probe_of_its_size_that_is_lost() {
    let mut pair = Pair::new(Settings {
        datagram_max: 1_472,
        ..Settings::default()
    });
    pair.swallows = |packet| packet.len() > 1_300;
    pair.run(Duration::from_secs(60));
    assert_eq!(pair.changes, [[Change::Carrying], [Change::Carrying]]);
    let size = pair.ends[NEAR].status(pair.now).packet_size;
    assert!((1_292..=1_300).contains(&size), "{size}");
}

#[test]
fn a_path_that_swallows_all_is_suspended_and_used_again() {
    let mut pair = carrying(Settings::default());
    pair.swallows = |_| true;
    pair.send(NEAR, 0..50);
    pair.run(Duration::from_secs(4));
    let reason = SuspendReason::NoAnswer;
    assert_eq!(pair.changes[NEAR].last(), Some(&Change::Suspended(reason)));
    // What was under way has to go another way.
    let unsaid: BTreeSet<u64> = pair.wanted[NEAR].iter().copied().collect();
    assert!(unsaid.into_iter().eq(0..50));
    pair.swallows = |_| false;
    pair.run(Duration::from_secs(10));
    assert_eq!(pair.changes[NEAR].last(), Some(&Change::Carrying));
    assert!(pair.came[FAR].iter().copied().eq(0..50));
}

#[test]
fn a_peer_that_moves_with_packets_under_way_is_followed() {
    let mut pair = carrying(Settings::default());
    for step in 0..4_u64 {
        pair.send(NEAR, 100 * step..100 * (step + 1));
        pair.send(FAR, 100 * step..100 * (step + 1));
        pair.run(Duration::from_millis(25));
        // By turns another port and another host.
        pair.homes[NEAR] = SocketAddr::from(([10, 0, (step / 2) as u8, 9], 5_000 + step as u16));
        pair.run(Duration::from_secs(8));
    }
    for end in [NEAR, FAR] {
        assert!(pair.came[end].iter().copied().eq(0..400), "{end}");
    }
}
