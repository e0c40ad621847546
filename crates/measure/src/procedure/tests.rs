//! Tests of client, server and the path between them in virtual time.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use emulate::{DirectionConfig, LineConfig, Link, LinkConfig, TokenBucket};
use testkit::{VirtualClock, earliest};
use vocab::{Bitrate, ByteCount, Probability, Time};

use super::slow_host::taken_in;
use super::*;
use crate::wire::{DatagramKind, SessionKey, SessionRole, SharedKey, TestDirection};

const SESSION: u64 = 7;
const HEADERS: usize = UDP_HEADERS_IPV4 as usize;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn mbit(rate: f64) -> Bitrate {
    Bitrate::from_bits_per_second((rate * 1e6) as u64)
}

fn key() -> SessionKey {
    SharedKey::from_words("words").session(&[1; 32], &[2; 32])
}

fn client_address() -> SocketAddr {
    "192.0.2.1:5000".parse().unwrap()
}

fn way(rate: f64, delay: Duration) -> DirectionConfig {
    DirectionConfig {
        line: LineConfig::Rate(mbit(rate)),
        delay,
        queue: ByteCount::mebibytes(1).into(),
        ..DirectionConfig::default()
    }
}

/// A path with a server at its far end.
struct ServerPath {
    link: Link,
    server: UdpResponder,
    /// Drops larger IP packets in silence.
    carries: [usize; 2],
    clock: VirtualClock,
    sent: usize,
}

impl ServerPath {
    fn new(up: DirectionConfig, down: DirectionConfig) -> Self {
        let mut server = UdpResponder::new(SESSION, key(), 99);
        open(&mut server, client_address());
        let config = LinkConfig {
            forward: up,
            back: down,
            seed: 1,
        };
        Self {
            link: Link::new(config),
            server,
            carries: [65_535; 2],
            clock: VirtualClock::new(),
            sent: 0,
        }
    }

    fn send(&mut self, direction: TestDirection, outgoing: &OutgoingDatagram) {
        let (role, way) = match direction {
            TestDirection::Up => (SessionRole::Client, &mut self.link.forward),
            TestDirection::Down => (SessionRole::Server, &mut self.link.back),
        };
        let mut bytes = Vec::new();
        outgoing
            .datagram
            .emit(&key(), role, outgoing.length, &mut bytes);
        self.sent += 1;
        if bytes.len() + HEADERS <= self.carries[direction as usize] {
            bytes.resize(bytes.len() + HEADERS, 0);
            let _ = way.handle(self.clock.now(), Bytes::from(bytes));
        }
    }

    fn run(&mut self, machine: &mut impl UdpExchange) {
        while !machine.is_over(self.clock.now()) {
            let now = self.clock.now();
            if machine.poll_timeout().is_some_and(|due| due <= now) {
                machine.handle_timeout(now);
            }
            while let Some(outgoing) = machine.poll_transmit(now) {
                self.send(TestDirection::Up, &outgoing);
            }
            while let Some(packet) = self.link.forward.poll_output(now) {
                let bytes = &packet.packet[..packet.packet.len() - HEADERS];
                match self.server.handle(now, now, client_address(), bytes) {
                    ResponderAction::Send(answers) => {
                        for answer in answers {
                            self.send(TestDirection::Down, &answer);
                        }
                    }
                    ResponderAction::Confirmed(answer) => self.send(TestDirection::Down, &answer),
                    ResponderAction::Data(_) | ResponderAction::Silence => {}
                }
            }
            while let Some(packet) = self.link.back.poll_output(now) {
                let bytes = &packet.packet[..packet.packet.len() - HEADERS];
                let datagram = DatagramHeader::parse(bytes, &key(), SessionRole::Server).unwrap();
                machine.handle(now, &datagram, bytes.len());
            }
            let next = earliest([machine.poll_timeout(), self.link.poll_timeout()]);
            match next {
                Some(next) if !machine.is_over(now) => self.clock.jump_to(next),
                _ => return,
            };
        }
    }
}

#[test]
fn opening_survives_losses_and_finally_gives_up() {
    let lossy = DirectionConfig {
        loss: Probability::from_fraction(0.3).unwrap().into(),
        ..way(10.0, ms(300))
    };
    for (carries, is_open) in [(1_500, true), (0, false)] {
        let mut world = ServerPath::new(lossy.clone(), lossy.clone());
        world.carries[0] = carries;
        let mut opening = UdpOpening::new(Time::ZERO, SESSION);
        world.run(&mut opening);
        assert_eq!(opening.is_open(), is_open);
        assert!(world.clock.now() < Time::ZERO + Duration::from_secs(7));
    }
}

/// Makes an address the client's.
fn open(server: &mut UdpResponder, address: SocketAddr) {
    let mut head = DatagramHeader {
        kind: DatagramKind::Open,
        session: SESSION,
        order: 0,
        number: 0,
        stamp: 0,
        extra: 0,
    };
    let mut bytes = Vec::new();
    head.emit(&key(), SessionRole::Client, 0, &mut bytes);
    let ResponderAction::Send(answers) = server.handle(Time::ZERO, Time::ZERO, address, &bytes)
    else {
        panic!("an opening is answered");
    };
    assert_eq!(answers[0].datagram.kind, DatagramKind::Cookie);
    assert!(
        answers[0].length <= bytes.len(),
        "no larger than the question"
    );
    head.kind = DatagramKind::Confirm;
    head.extra = answers[0].datagram.extra;
    head.emit(&key(), SessionRole::Client, 0, &mut bytes);
    let answer = server.handle(Time::ZERO, Time::ZERO, address, &bytes);
    assert!(
        matches!(answer, ResponderAction::Confirmed(_)),
        "{answer:?}"
    );
}

fn mtu_test(direction: TestDirection) -> PathMtuTest {
    PathMtuTest::new(
        Time::ZERO,
        direction,
        SESSION,
        1_500,
        UDP_HEADERS_IPV4,
        ms(50),
    )
}

/// RFC 8899 §4.3, §5: black holes are found without any ICMP message, and to the byte.
#[test]
fn path_mtu_is_exact_behind_silent_drops() {
    for carries in [1_500_usize, 1_499, 1_492, 1_380, 1_228, 1_006, 576] {
        for direction in TestDirection::BOTH {
            let mut world = ServerPath::new(way(10.0, ms(25)), way(10.0, ms(25)));
            world.carries[direction as usize] = carries;
            let mut test = mtu_test(direction);
            world.run(&mut test);
            let expected = MtuOutcome::Found {
                mtu: carries as u16,
                tried: 1_500,
            };
            assert_eq!(test.outcome(), Some(expected), "{direction:?}");
            let took = world.clock.now().since(Time::ZERO);
            assert!(took < Duration::from_secs(6), "{carries}: {took:?}");
        }
    }
}

#[test]
fn losses_make_no_path_mtu_smaller() {
    for seed in 1..10 {
        let lossy = DirectionConfig {
            loss: Probability::from_fraction(0.05).unwrap().into(),
            ..way(10.0, ms(25))
        };
        let mut world = ServerPath::new(lossy.clone(), lossy.clone());
        world.link = Link::new(LinkConfig::symmetric(lossy, seed));
        world.carries = [1_400; 2];
        let mut test = mtu_test(TestDirection::Up);
        world.run(&mut test);
        // Three losses in a row of the very size that passes are one in eight thousand.
        let Some(MtuOutcome::Found { mtu, .. }) = test.outcome() else {
            panic!("{:?}", test.outcome());
        };
        assert_eq!(mtu, 1_400);
    }
}

#[test]
fn dead_and_slow_paths_are_distinguished() {
    for (carries, expected) in [
        (0, MtuOutcome::NoAnswer),
        (300, MtuOutcome::TooSmall { tried: 576 }),
    ] {
        let mut world = ServerPath::new(way(10.0, ms(25)), way(10.0, ms(25)));
        world.carries[0] = carries;
        let mut test = mtu_test(TestDirection::Up);
        world.run(&mut test);
        assert_eq!(test.outcome(), Some(expected));
    }
}

/// RFC 6349 §3.2.1: both delays, and the time that a small packet takes on each line.
#[test]
fn the_baseline_is_both_delays_and_serialisation() {
    let lossy = DirectionConfig {
        loss: Probability::from_fraction(0.02).unwrap().into(),
        ..way(2.0, ms(30))
    };
    let mut world = ServerPath::new(lossy, way(10.0, ms(20)));
    let mut test = BaselineRtt::new(Time::ZERO, SESSION, 5);
    world.run(&mut test);
    let outcome = test.outcome(world.clock.now()).unwrap();
    assert!(outcome.samples.len() >= 100, "{}", outcome.samples.len());
    let bytes = ByteCount::new((crate::wire::DATAGRAM_HEADER + HEADERS) as u64);
    let expected = ms(50) + mbit(2.0).time_for(bytes) + mbit(10.0).time_for(bytes);
    assert_eq!(outcome.baseline(), Some(expected));
    assert!(outcome.median() >= outcome.baseline());
}

/// Runs a search over a path, and returns its result.
fn search(config: DirectionConfig, bounds: SearchConfig) -> BottleneckSearch {
    search_by(config, bounds, |record| record)
}

/// Runs a search with a receiving host that alters each stream.
fn search_by(
    config: DirectionConfig,
    bounds: SearchConfig,
    mut host: impl FnMut(StreamRecord) -> StreamRecord,
) -> BottleneckSearch {
    let mut search = BottleneckSearch::new(bounds);
    let mut link = Link::new(LinkConfig::symmetric(config, 3));
    let mut clock = VirtualClock::new();
    while let SearchStep::Stream(plan) = search.next_step() {
        let mut departures = DepartureSchedule::new(clock.now(), plan);
        let mut log = ArrivalLog::new(clock.now());
        loop {
            let now = clock.now();
            while let Some((number, stamp)) = departures.poll_transmit(now) {
                let mut packet = vec![0; usize::from(plan.ip_bytes)];
                packet[20..28].copy_from_slice(&number.to_be_bytes());
                packet[28..36].copy_from_slice(&stamp.to_be_bytes());
                let _ = link.forward.handle(now, Bytes::from(packet));
            }
            while let Some(packet) = link.forward.poll_output(now) {
                let field = |at: usize| {
                    let bytes: [u8; 8] = packet.packet[at..at + 8].try_into().unwrap();
                    u64::from_be_bytes(bytes)
                };
                log.arrived(now, field(20), field(28));
            }
            let next = earliest([departures.poll_timeout(), link.poll_timeout()]);
            match next {
                Some(next) => clock.jump_to(next),
                None => break,
            };
        }
        search.handle(&host(StreamRecord {
            plan,
            sent: departures.sent(),
            arrivals: log.into_arrivals(),
            left_ns: Vec::new(),
            no_room: 0,
        }));
        clock.advance(ms(200));
    }
    search
}

fn bounds(max: f64, ip_bytes: u16) -> SearchConfig {
    SearchConfig {
        max: mbit(max),
        measure_for: Duration::from_secs(5),
        ip_bytes,
    }
}

fn assert_rate(found: &BottleneckSearch, expected: f64, within: f64) {
    let outcome = found.outcome().expect("something got through");
    let rate = outcome.rate.bits_per_second() as f64 / 1e6;
    let off = (rate / expected - 1.0).abs();
    assert!(off <= within, "{rate} for {expected}: {outcome:?}");
    assert_eq!(outcome.limited_by, LimitedBy::Path);
    assert!(outcome.is_steady);
}

/// RFC 6349 §3.2.2: the IP-layer rate, over slow and fast lines, with queues of all depths.
#[test]
fn bottleneck_rate_is_found_within_a_thousandth() {
    for rate in [0.128, 0.512, 1.536, 10.0, 51.84, 155.52] {
        let found = search(way(rate, ms(10)), bounds(1_000.0, 1_500));
        assert_rate(&found, rate, 0.001);
    }
    let shallow = DirectionConfig {
        queue: ByteCount::new(3_000).into(),
        ..way(44.21, ms(10))
    };
    assert_rate(&search(shallow, bounds(1_000.0, 1_500)), 44.21, 0.001);
}

/// A rate that counts Ethernet's header carries 1500 of 1514 bytes.
#[test]
fn frame_rate_is_converted_to_packet_rate() {
    let frames = DirectionConfig {
        overhead: ByteCount::new(14),
        ..way(10.0, ms(10))
    };
    let found = search(frames, bounds(1_000.0, 1_500));
    assert_rate(&found, 10.0 * 1_500.0 / 1_514.0, 0.001);
}

#[test]
fn buckets_are_emptied_before_the_rate_is_read() {
    let bucket = TokenBucket {
        rate: mbit(10.0),
        burst: ByteCount::new(400_000),
        peak: None,
    };
    let shaper = DirectionConfig {
        line: LineConfig::Shaper(bucket),
        queue: ByteCount::new(200_000).into(),
        ..way(100.0, ms(10))
    };
    assert_rate(&search(shaper, bounds(1_000.0, 1_500)), 10.0, 0.001);
    let policer = DirectionConfig {
        policer: Some(bucket),
        ..way(100.0, ms(10))
    };
    // What a policer passes comes in the rhythm of what is offered: a packet more or less a second.
    assert_rate(&search(policer, bounds(1_000.0, 1_500)), 10.0, 0.0013);
}

#[test]
fn random_loss_is_not_taken_for_a_limit() {
    let lossy = DirectionConfig {
        loss: Probability::from_fraction(0.05).unwrap().into(),
        ..way(20.0, ms(10))
    };
    let found = search(lossy, bounds(1_000.0, 1_500));
    let outcome = found.outcome().unwrap();
    // What is lost behind the line does not arrive, and is told apart.
    let rate = outcome.rate.bits_per_second() as f64 / 20e6;
    assert!((0.93..0.97).contains(&rate), "{outcome:?}");
    assert!((0.01..0.12).contains(&outcome.loss_below), "{outcome:?}");
}

#[test]
fn search_stops_at_the_allowed_rate() {
    let found = search(way(100.0, ms(10)), bounds(8.0, 1_500));
    let outcome = found.outcome().unwrap();
    assert_eq!(outcome.limited_by, LimitedBy::MaxRate);
    let rate = outcome.rate.bits_per_second() as f64 / 8e6;
    assert!((0.995..1.005).contains(&rate), "{outcome:?}");
}

/// A host that takes in 20 Mbit/s, behind a path that carries more: packets without room are not
/// the path's losses.
#[test]
fn receiving_hosts_limit_is_distinguished_from_the_paths() {
    // More than was offered, and less: then the path holds back some of it, and nobody knows how much.
    for path in [100.0, 26.0] {
        let mut measured = 0;
        let found = search_by(way(path, ms(10)), bounds(30.0, 1_500), |record| {
            measured += u32::from(record.plan.duration == Duration::from_secs(5));
            taken_in(record, mbit(20.0), 500)
        });
        let outcome = found.outcome().unwrap();
        assert_eq!(outcome.limited_by, LimitedBy::Receiver, "{path}");
        let rate = outcome.rate.bits_per_second() as f64 / 20e6;
        assert!((0.99..1.01).contains(&rate), "{outcome:?}");
        assert!(outcome.loss_below.abs() < 1e-9, "{outcome:?}");
        // It was given a second try.
        assert_eq!(measured, 2, "{path}");
    }
}

#[test]
fn briefly_busy_receiver_is_no_limit() {
    let mut measured = 0;
    let found = search_by(way(26.0, ms(10)), bounds(1_000.0, 1_500), |record| {
        measured += u32::from(record.plan.duration == Duration::from_secs(5));
        match measured {
            1 => taken_in(record, mbit(20.0), 500),
            _ => record,
        }
    });
    assert_eq!(measured, 2);
    assert_rate(&found, 26.0, 0.001);
}

#[test]
fn few_packets_without_room_keep_the_paths_limit() {
    // More than a hundredth of what is missing: such a stream is not read for causes, and another one is tried.
    for (one_in, tries) in [(400, 1), (180, 2)] {
        let mut measured = 0;
        let found = search_by(way(26.0, ms(10)), bounds(1_000.0, 1_500), |mut record| {
            measured += u32::from(record.plan.duration == Duration::from_secs(5));
            let packets = record.arrivals.len();
            let few = packets / 2..packets / 2 + packets / one_in;
            record.no_room = few.len() as u64;
            record.arrivals.drain(few);
            record
        });
        assert_eq!(measured, tries, "one in {one_in}");
        let outcome = found.outcome().unwrap();
        assert_eq!(outcome.limited_by, LimitedBy::Path);
    }
}

#[test]
fn dead_path_ends_the_search_without_a_rate() {
    let dead = DirectionConfig {
        loss: Probability::from_fraction(1.0).unwrap().into(),
        ..way(100.0, ms(10))
    };
    assert_eq!(search(dead, bounds(100.0, 1_500)).outcome(), None);
}

/// DESIGN: UDP answers nothing without a valid tag, and no more than it was asked before an address is
/// believed.
#[test]
fn server_ignores_strangers_and_verifies_addresses() {
    let mut server = UdpResponder::new(SESSION, key(), 99);
    let stranger: SocketAddr = "198.51.100.9:53".parse().unwrap();
    let ask = |server: &mut UdpResponder, kind, from, key: &SessionKey| {
        let head = DatagramHeader {
            kind,
            session: SESSION,
            order: 0,
            number: 1,
            stamp: 0,
            extra: 1_472,
        };
        let mut bytes = Vec::new();
        head.emit(key, SessionRole::Client, 0, &mut bytes);
        server.handle(Time::ZERO, Time::ZERO, from, &bytes)
    };
    let other = SharedKey::from_words("other").session(&[1; 32], &[2; 32]);
    let silence = ResponderAction::Silence;
    assert_eq!(
        ask(&mut server, DatagramKind::Open, stranger, &other),
        silence
    );
    for kind in DatagramKind::ALL
        .into_iter()
        .filter(|kind| *kind != DatagramKind::Open)
    {
        assert_eq!(
            ask(&mut server, kind, stranger, &key()),
            silence,
            "{kind:?}"
        );
    }
    open(&mut server, client_address());
    assert_eq!(server.client(), Some(client_address()));
    // Recorded and sent again from elsewhere.
    assert_eq!(
        ask(&mut server, DatagramKind::ProbeWanted, stranger, &key()),
        silence
    );
    assert_eq!(
        ask(&mut server, DatagramKind::Data, stranger, &key()),
        silence
    );
    let answer = ask(
        &mut server,
        DatagramKind::ProbeWanted,
        client_address(),
        &key(),
    );
    let ResponderAction::Send(answers) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(answers[0].length, 1_472);
    let mut heard = 0;
    for _ in 0..2 * ANSWERS_PER_SECOND {
        let answer = ask(&mut server, DatagramKind::Echo, client_address(), &key());
        heard += u32::from(answer != ResponderAction::Silence);
    }
    assert!(heard < ANSWERS_PER_SECOND);
}
