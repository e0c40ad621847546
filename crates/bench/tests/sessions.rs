//! Sessions on a thousand paths: every byte of every flow arrives once, or the flow ends in error,
//! within a stated time.
//!
//! A path follows from its seed: rate, delay, loss in and out of bursts, jitter that reorders,
//! copies, flipped bits, a queue, a policer, changes during the flow, black holes of one direction
//! or both, UDP that is blocked temporarily or permanently. The simulation checks each byte and
//! each end.

#![allow(clippy::unwrap_used)]

use std::num::NonZero;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bench::sessions::{
    DatagramFilter, DatagramSupport, FlowScript, SessionSimulation, SimulationPlan,
};
use emulate::{
    DirectionConfig, GilbertElliott, JitterConfig, JitterDistribution, LineConfig, LinkConfig,
    LossModel, PacketOrder, ReorderingConfig, TokenBucket,
};
use tunnel::SessionConfig;
use tunnel::congestion::CongestionAlgorithm;
use tunnel::fec::RepairMode;
use tunnel::transport::PathSettings;
use vocab::{Bitrate, ByteCount, FlowId, Probability, SeededRandom};

const NEAR: usize = 0;
const FAR: usize = 1;

/// A session notices within a second and some probe timeouts that packets do not get through, and
/// goes on over the link. With the time that the data itself takes at the slowest rate here, this is
/// when all must be done.
const DONE_WITHIN: Duration = Duration::from_secs(180);

/// Greatest stall: a path without answers for a second and for four probe timeouts is abandoned for
/// the link (tunnel::transport), where everything in flight is sent again. A probe timeout is at
/// most two round trips of the longest kind here.
fn stall_max(round_trip: Duration) -> Duration {
    Duration::from_secs(1) + 4 * 2 * round_trip + round_trip
}

fn chance(random: &mut SeededRandom, most: f64) -> Probability {
    Probability::from_fraction(random.next_f64() * most).unwrap()
}

fn ms(random: &mut SeededRandom, most: u64) -> Duration {
    Duration::from_micros(random.below(most * 1_000 + 1))
}

fn direction(random: &mut SeededRandom) -> DirectionConfig {
    let rate = Bitrate::from_bits_per_second(1_000_000 << random.below(8));
    let delay = ms(random, 150);
    let bdp = rate.bytes_in(2 * delay).bytes().max(16_000);
    let loss = match random.below(4) {
        0 => LossModel::None,
        1 | 2 => LossModel::from(chance(random, 0.1)),
        _ => {
            let (rate, burst) = (chance(random, 0.05), 1.0 + random.next_f64() * 10.0);
            LossModel::GilbertElliott(GilbertElliott::from_rate_and_burst(rate, burst).unwrap())
        }
    };
    let often = |random: &mut SeededRandom| random.below(4) == 0;
    DirectionConfig {
        line: LineConfig::Rate(rate),
        queue: ByteCount::new(4_000 + (bdp as f64 * random.next_f64() * 4.0) as u64).into(),
        loss,
        delay,
        corruption: if often(random) {
            chance(random, 0.02)
        } else {
            Probability::ZERO
        },
        duplication: if often(random) {
            chance(random, 0.05)
        } else {
            Probability::ZERO
        },
        jitter: often(random).then(|| JitterConfig {
            distribution: JitterDistribution::Uniform {
                spread: delay.min(ms(random, 50)),
            },
            order: if random.below(2) == 0 {
                PacketOrder::Free
            } else {
                PacketOrder::Kept
            },
        }),
        reordering: often(random).then(|| ReorderingConfig {
            probability: chance(random, 0.1),
            late_by: ms(random, 100),
        }),
        policer: often(random).then(|| {
            let rate = Bitrate::from_bits_per_second(rate.bits_per_second() / 2);
            TokenBucket {
                rate,
                burst: ByteCount::new(rate.bytes_in(Duration::from_millis(100)).bytes().max(3_000)),
                peak: None,
            }
        }),
        ..DirectionConfig::default()
    }
}

fn link(random: &mut SeededRandom) -> LinkConfig {
    LinkConfig {
        forward: direction(random),
        back: direction(random),
        seed: random.next_u64(),
    }
}

fn plan(random: &mut SeededRandom) -> SimulationPlan {
    let packets = link(random);
    SimulationPlan {
        link: (
            Bitrate::from_bits_per_second(20_000_000),
            packets.forward.delay,
        ),
        packets,
        datagrams: DatagramSupport::Offered,
        transport: PathSettings {
            fec: [RepairMode::Off, RepairMode::On, RepairMode::Auto][random.below(3) as usize],
            algorithm: if random.below(4) == 0 {
                CongestionAlgorithm::Cubic
            } else {
                CongestionAlgorithm::Bbr
            },
            ..PathSettings::default()
        },
        session: SessionConfig {
            compare_paths: false,
            ..SessionConfig::default()
        },
    }
}

fn work(random: &mut SeededRandom) -> FlowScript {
    match random.below(4) {
        0 => FlowScript::Download(Some(random.below(1 << 20))),
        1 => FlowScript::Upload(Some(random.below(1 << 20))),
        2 => FlowScript::Download(Some(random.below(3_000))),
        _ => FlowScript::Exchanges {
            question: 1 + random.below(300),
            answer: 1 + random.below(20_000),
            count: 1 + random.below(8) as usize,
        },
    }
}

fn block(world: &mut SessionSimulation, passage: DatagramFilter) {
    for side in [0, 1] {
        world.set_passage(side, passage);
    }
}

/// Changes the path at random; returns the longest round trip from then on.
fn disturb(
    random: &mut SeededRandom,
    world: &mut SessionSimulation,
    mut round_trip: Duration,
) -> Duration {
    let way = random.below(2) as usize;
    match random.below(8) {
        0 => {
            let link = link(random);
            round_trip = round_trip.max(slowest(&link));
            world.set_packets(link);
        }
        1 => world.set_passage(way, DatagramFilter::Blocked),
        2 => block(world, DatagramFilter::Blocked),
        3 | 4 => block(world, DatagramFilter::Open),
        _ => {}
    }
    round_trip
}

fn is_done(world: &SessionSimulation) -> bool {
    [0, 1].map(|side| world.session(side).flow_count()) == [0, 0]
}

/// The longest that a packet and its answer take on this link with full queues.
fn slowest(link: &LinkConfig) -> Duration {
    let one_way = |way: &DirectionConfig| {
        let spread = match &way.jitter {
            Some(JitterConfig {
                distribution: JitterDistribution::Uniform { spread },
                ..
            }) => *spread,
            _ => Duration::ZERO,
        };
        let late_by = way.reordering.as_ref().map(|late| late.late_by);
        let queue = way.queue.limit.bytes.unwrap_or_default();
        let waits = way.line.rate().map(|rate| rate.time_for(queue));
        way.delay + spread + late_by.unwrap_or_default() + waits.unwrap_or_default()
    };
    one_way(&link.forward) + one_way(&link.back)
}

/// Runs one path and says how often frames changed their way.
fn run(seed: u64) -> (usize, u64) {
    let mut random = SeededRandom::from_seed(seed);
    let plan = plan(&mut random);
    let mut round_trip = slowest(&plan.packets);
    let mut world = SessionSimulation::new(plan);
    for _ in 0..1 + random.below(6) {
        let work = work(&mut random);
        world.start(work);
        let pause = ms(&mut random, 400);
        world.run(pause);
        round_trip = disturb(&mut random, &mut world, round_trip);
    }
    let end = world.now() + DONE_WITHIN;
    world.run_until(end, is_done);
    for (flow, transfer) in world.transfers() {
        assert!(
            transfer.is_complete(),
            "seed {seed}: flow {flow} is not done after {DONE_WITHIN:?}: {transfer:?}; near {:?}; far {:?}",
            world.status(0),
            world.status(1)
        );
        let stall = transfer.longest_stall;
        assert!(
            stall <= stall_max(round_trip),
            "seed {seed}: flow {flow} stalled for {stall:?}, round trips take {round_trip:?}: {transfer:?}"
        );
    }
    for side in [0, 1] {
        assert_eq!(world.session(side).flow_count(), 0, "seed {seed}");
        let statistics = world.session(side).statistics();
        assert_eq!(statistics.outstanding_bytes, 0, "seed {seed}");
        assert_eq!(statistics.unconsumed_bytes, 0, "seed {seed}");
    }
    let packets = world.status(0).map_or(0, |status| status.received_packets);
    (world.changes().len(), packets)
}

/// Runs the paths of these seeds on as many threads as there are processors.
fn run_all(seeds: Range<u64>) {
    let count = seeds.end - seeds.start;
    let next = AtomicU64::new(seeds.start);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let work = || {
        let (mut changes, mut packets) = (0, 0);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return (changes, packets);
            }
            let outcome = run(seed);
            changes += outcome.0;
            packets += outcome.1;
        }
    };
    let (changes, packets) = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    // There must have been packets, and ways to change between.
    assert!(
        changes as u64 > 2 * count && packets > 100 * count,
        "{changes} {packets}"
    );
}

#[test]
fn every_byte_arrives_once_on_a_thousand_paths() {
    run_all(0..1_000);
}

/// A path of 20 Mbit/s and 50 ms without loss, with this for each direction's other settings.
fn calm(other: DirectionConfig) -> SimulationPlan {
    let direction = DirectionConfig {
        line: LineConfig::Rate(MBIT_20),
        delay: CALM_RTT / 2,
        queue: ByteCount::kibibytes(128).into(),
        ..other
    };
    SimulationPlan {
        packets: LinkConfig::symmetric(direction, 7),
        link: (MBIT_20, CALM_RTT / 2),
        datagrams: DatagramSupport::Offered,
        transport: PathSettings::default(),
        session: SessionConfig {
            compare_paths: false,
            ..SessionConfig::default()
        },
    }
}

const MBIT_20: Bitrate = Bitrate::from_bits_per_second(20_000_000);
const CALM_RTT: Duration = Duration::from_millis(50);

/// The bytes of a flow in these tests: some three seconds.
const BYTES: u64 = 8 << 20;

fn three_kinds() -> [FlowScript; 3] {
    [
        FlowScript::Download(Some(BYTES)),
        FlowScript::Upload(Some(BYTES)),
        FlowScript::Exchanges {
            question: 100,
            answer: 64 << 10,
            count: 40,
        },
    ]
}

/// Runs until every flow is done, and says how long any of them stalled at most.
fn finish(world: &mut SessionSimulation, what: &str) -> Duration {
    let end = world.now() + DONE_WITHIN;
    let done = world.run_until(end, is_done);
    assert!(done, "{what}: {:?}", world.status(1));
    assert!(
        world
            .transfers()
            .all(|(_, transfer)| transfer.is_complete())
    );
    let stalls = world
        .transfers()
        .map(|(_, transfer)| transfer.longest_stall);
    stalls.max().unwrap_or_default()
}

fn goodput_mbit_s(world: &mut SessionSimulation, flow: FlowId, span: Duration) -> f64 {
    let before = world.transfer(flow).received(NEAR);
    world.run(span);
    let bytes = world.transfer(flow).received(NEAR) - before;
    bytes as f64 * 8.0 / 1e6 / span.as_secs_f64()
}

#[test]
fn udp_blocked_mid_flow_loses_no_byte() {
    for sides in [&[0][..], &[1], &[0, 1]] {
        for work in three_kinds() {
            let mut world = SessionSimulation::new(calm(DirectionConfig::default()));
            world.start(work);
            world.run(Duration::from_secs(1));
            assert!(world.session(NEAR).is_in_packets() && world.session(FAR).is_in_packets());
            for side in sides {
                world.set_passage(*side, DatagramFilter::Blocked);
            }
            let what = format!("{work:?}, nothing from {sides:?}");
            let stall = finish(&mut world, &what);
            assert!(stall < Duration::from_millis(1_500), "{what}: {stall:?}");
            block(&mut world, DatagramFilter::Open);
            world.run(Duration::from_secs(10));
            let again = world.start(FlowScript::Download(Some(1 << 20)));
            world.run(Duration::from_secs(2));
            assert!(world.transfer(again).is_complete());
            for side in [NEAR, FAR] {
                let is_back = world.session(side).is_in_packets();
                assert!(is_back, "{what}: UDP is used again");
            }
        }
    }
}

#[test]
fn unanswered_udp_delays_no_flow() {
    let mut world = SessionSimulation::new(calm(DirectionConfig {
        loss: LossModel::from(Probability::from_fraction(1.0).unwrap()),
        ..DirectionConfig::default()
    }));
    assert!(!world.session(NEAR).is_in_packets());
    let start = world.now();
    let flow = world.start(FlowScript::Exchanges {
        question: 100,
        answer: 64 << 10,
        count: 1,
    });
    finish(&mut world, "by the link");
    let first_byte = world.transfer(flow).first_byte_at(NEAR).unwrap();
    let waited = first_byte.since(start);
    // On the link a byte is read when the whole frame around it has come.
    let frame = MBIT_20.time_for(ByteCount::kibibytes(16));
    assert!(waited < CALM_RTT * 11 / 10 + frame, "{waited:?}");
}

#[test]
fn flows_survive_thirty_seconds_without_a_path() {
    for work in three_kinds() {
        let mut world = SessionSimulation::new(calm(DirectionConfig::default()));
        let flow = world.start(work);
        world.run(Duration::from_secs(1));
        block(&mut world, DatagramFilter::Blocked);
        world.break_links();
        world.run(OUTAGE);
        let had = world.transfer(flow).received(NEAR) + world.transfer(flow).received(FAR);
        block(&mut world, DatagramFilter::Open);
        world.dial();
        world.run(4 * CALM_RTT);
        let has = world.transfer(flow).received(NEAR) + world.transfer(flow).received(FAR);
        assert!(has > had, "{work:?} goes on within four round trips");
        let stall = finish(&mut world, "after the outage");
        assert!(stall < OUTAGE + 4 * CALM_RTT, "{work:?}: {stall:?}");
    }
}

/// Outage that flows must survive.
const OUTAGE: Duration = Duration::from_secs(30);

#[test]
fn lost_peer_ends_flows_by_reset_in_time() {
    for work in three_kinds() {
        let mut world = SessionSimulation::new(calm(DirectionConfig::default()));
        let flow = world.start(work);
        world.run(Duration::from_secs(1));
        block(&mut world, DatagramFilter::Blocked);
        world.break_links();
        let gone = world.now();
        world.run(SessionConfig::default().give_up_after + Duration::from_secs(1));
        let transfer = world.transfer(flow);
        assert!(transfer.was_reset, "{transfer:?}");
        let told = transfer.closed_at.unwrap().since(gone);
        // Packets that were under way when the link broke are still heard.
        let most = SessionConfig::default().give_up_after + CALM_RTT;
        assert!(told <= most, "{told:?}");
        assert!(is_done(&world));
    }
}

#[test]
fn bulk_flow_follows_a_rate_drop_and_recovery() {
    let mut world = SessionSimulation::new(calm(DirectionConfig::default()));
    let flow = world.start(FlowScript::Download(None));
    world.run(Duration::from_secs(5));
    let mut slow = calm(DirectionConfig::default()).packets;
    let rate = Bitrate::from_bits_per_second(2_000_000);
    slow.forward.line = LineConfig::Rate(rate);
    slow.back.line = LineConfig::Rate(rate);
    world.set_packets(slow);
    // The queue of 128 KiB is half a second long at this rate.
    world.run(Duration::from_secs(3));
    let goodput = goodput_mbit_s(&mut world, flow, Duration::from_secs(10));
    assert!(goodput > 0.85 * 2.0, "{goodput:.2} of 2 Mbit/s");
    world.set_packets(calm(DirectionConfig::default()).packets);
    world.run(Duration::from_secs(10));
    let goodput = goodput_mbit_s(&mut world, flow, Duration::from_secs(10));
    assert!(goodput > 0.85 * 20.0, "{goodput:.2} of 20 Mbit/s");
    let stall = world.transfer(flow).longest_stall;
    let queue = rate.time_for(ByteCount::kibibytes(128));
    assert!(stall < queue + 4 * CALM_RTT, "{stall:?}");
    assert!(world.changes().iter().all(|(_, _, in_packets)| *in_packets));
}

#[test]
fn packets_that_come_twice_change_nothing() {
    let mut world = SessionSimulation::new(calm(DirectionConfig {
        duplication: Probability::from_fraction(0.3).unwrap(),
        ..DirectionConfig::default()
    }));
    let flow = world.start(FlowScript::Download(None));
    world.run(Duration::from_secs(5));
    // The queue overflows in start-up, and data that is lost twice is sent twice.
    let lost_in_start_up = world.status(FAR).unwrap().lost_packets;
    let twice_in_start_up = world.session(NEAR).statistics().duplicate_bytes;
    // The emulator copies behind the line.
    let goodput = goodput_mbit_s(&mut world, flow, Duration::from_secs(10));
    assert!(goodput > 0.93 * 20.0, "{goodput:.2} of 20 Mbit/s");
    let status = world.status(FAR).unwrap();
    assert_eq!(status.lost_packets, lost_in_start_up);
    let refused = world.status(NEAR).unwrap().refused_packets;
    assert!(refused > 1_000, "{refused} replays were refused");
    let twice = world.session(NEAR).statistics().duplicate_bytes;
    assert_eq!(twice, twice_in_start_up);
}

#[test]
fn packets_with_flipped_bits_count_as_losses() {
    let mut world = SessionSimulation::new(calm(DirectionConfig {
        corruption: Probability::from_fraction(0.03).unwrap(),
        ..DirectionConfig::default()
    }));
    for work in three_kinds() {
        world.start(work);
    }
    let stall = finish(&mut world, "with flipped bits");
    assert!(stall < 6 * CALM_RTT, "{stall:?}");
    let refused = world.status(NEAR).unwrap().refused_packets;
    assert!(refused > 100, "{refused} were refused");
    assert!(world.changes().iter().all(|(_, _, in_packets)| *in_packets));
}

/// Share of the line's rate in a second of a session over the link: without headers and framing.
const LINK_SHARE: f64 = 0.95;

#[test]
fn udp_slower_than_the_link_is_abandoned() {
    let rate = Bitrate::from_bits_per_second(1_000_000);
    let policed = DirectionConfig {
        policer: Some(TokenBucket {
            rate,
            burst: ByteCount::kibibytes(64),
            peak: None,
        }),
        ..DirectionConfig::default()
    };
    let mut shaped = calm(DirectionConfig::default());
    for way in [&mut shaped.packets.forward, &mut shaped.packets.back] {
        way.line = LineConfig::Rate(rate);
    }
    // What loses many packets is suspected after three seconds of backlog, the other after thirty; a
    // trial takes three more.
    for (mut plan, within) in [(calm(policed), 7), (shaped, 35)] {
        plan.session.compare_paths = true;
        let mut world = SessionSimulation::new(plan);
        let flow = world.start(FlowScript::Download(None));
        let start = world.now();
        let is_left = world.run_until(start + Duration::from_secs(within), |world| {
            !world.session(FAR).is_in_packets()
        });
        assert!(is_left, "{within}: {:?}", world.status(FAR));
        for _ in 0..10 {
            let goodput = goodput_mbit_s(&mut world, flow, Duration::from_secs(1));
            assert!(goodput > LINK_SHARE * 20.0, "{goodput:.2} of 20 Mbit/s");
        }
    }
}

#[test]
fn rate_drop_stalls_flows_no_longer_than_outage() {
    // Packets of the base size are 1,228 bytes; a path that carries less is left.
    for most in [1_499, 1_338, 1_228, 1_227, 600] {
        for side in [NEAR, FAR] {
            for work in three_kinds() {
                let mut world = SessionSimulation::new(calm(DirectionConfig::default()));
                world.start(work);
                world.run(Duration::from_secs(1));
                world.set_passage(side, DatagramFilter::UpTo(most));
                let what = format!("{work:?}, {most} bytes from {side}");
                let stall = finish(&mut world, &what);
                assert!(stall < Duration::from_millis(1_500), "{what}: {stall:?}");
                let carries = world.session(side).is_in_packets();
                let size = world.status(side).unwrap().mtu_bytes;
                assert!(
                    !carries || size <= most.max(1_228) as u64 || size == 1_480,
                    "{what}: {size}"
                );
                assert!(carries || most < 1_228, "{what}");
            }
        }
    }
}

/// Runs a bulk flow into this rate after half a minute in which the nodes of one side were stopped,
/// or without such a pause. Returns the packets lost in two seconds, and the rate of the flow then.
fn meets(mbit: u64, sleeper: Option<usize>) -> (u64, f64) {
    let mut world = SessionSimulation::new(calm(DirectionConfig::default()));
    let flow = world.start(FlowScript::Download(None));
    world.run(Duration::from_secs(5));
    if let Some(side) = sleeper {
        world.suspend(side);
        world.run(OUTAGE);
    }
    let mut path = calm(DirectionConfig::default()).packets;
    for way in [&mut path.forward, &mut path.back] {
        way.line = LineConfig::Rate(Bitrate::from_bits_per_second(mbit * 1_000_000));
    }
    world.set_packets(path);
    let before = world.status(FAR).unwrap().lost_packets;
    if let Some(side) = sleeper {
        world.resume(side);
    }
    world.run(Duration::from_secs(2));
    for side in [NEAR, FAR] {
        assert!(world.session(side).is_in_packets(), "{sleeper:?}");
    }
    let lost = world.status(FAR).unwrap().lost_packets - before;
    (
        lost,
        goodput_mbit_s(&mut world, flow, Duration::from_secs(10)),
    )
}

/// A node that is stopped and continued, as in a virtual machine that is moved. Data that it missed
/// is neither a loss nor a round trip, and a rate that has fallen meanwhile is detected at the same
/// cost as one that falls in mid-flow.
#[test]
fn node_that_slept_adapts_to_the_current_path() {
    for mbit in [20, 2] {
        let (awake_lost, awake) = meets(mbit, None);
        for side in [NEAR, FAR] {
            let (lost, goodput) = meets(mbit, Some(side));
            let what = format!("{side} slept: {goodput:.2} of {mbit} Mbit/s, {lost} lost");
            assert!(goodput > 0.97 * awake, "{what}, awake {awake:.2}");
            assert!(lost <= awake_lost.max(10), "{what}, awake {awake_lost}");
        }
    }
}
