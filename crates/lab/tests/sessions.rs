//! Sessions on a thousand paths: every byte of every flow arrives once, or the flow ends in error,
//! within a named time.
//!
//! A path follows from its seed: rate, delay, loss in and out of bursts, jitter that reorders,
//! copies, flipped bits, a queue, a policer, changes on the way, black holes of one direction or
//! both, a UDP that is blocked for a while or for good. The world checks each byte and each end.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use emulate::{
    DirectionConfig, Distribution, GilbertElliott, Jitter, Line, LinkConfig, Loss, Order,
    Reordering, TokenBucket,
};
use lab::sessions::{Datagrams, Plan, Work, World};
use tunnel::Config;
use tunnel::congestion::Algorithm;
use tunnel::fec::Mode;
use tunnel::transport::Settings;
use vocab::{Bitrate, ByteCount, Probability, Random, Time};

/// A session notices within a second and some probe timeouts that packets do not get through, and
/// goes on over the link. With the time that the data itself takes at the slowest rate here, this is
/// when all must be done.
const DONE_WITHIN: Duration = Duration::from_secs(180);

fn chance(random: &mut Random, most: f64) -> Probability {
    Probability::from_fraction(random.next_f64() * most).unwrap()
}

fn ms(random: &mut Random, most: u64) -> Duration {
    Duration::from_micros(random.below(most * 1_000 + 1))
}

fn direction(random: &mut Random) -> DirectionConfig {
    let rate = Bitrate::from_bits_per_second(1_000_000 << random.below(8));
    let delay = ms(random, 150);
    let bdp = rate.bytes_in(2 * delay).bytes().max(16_000);
    let loss = match random.below(4) {
        0 => Loss::None,
        1 | 2 => Loss::from(chance(random, 0.1)),
        _ => {
            let (rate, burst) = (chance(random, 0.05), 1.0 + random.next_f64() * 10.0);
            Loss::GilbertElliott(GilbertElliott::from_rate_and_burst(rate, burst).unwrap())
        }
    };
    let often = |random: &mut Random| random.below(4) == 0;
    DirectionConfig {
        line: Line::Rate(rate),
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
        jitter: often(random).then(|| Jitter {
            distribution: Distribution::Uniform {
                spread: delay.min(ms(random, 50)),
            },
            order: if random.below(2) == 0 {
                Order::Free
            } else {
                Order::Kept
            },
        }),
        reordering: often(random).then(|| Reordering {
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

fn link(random: &mut Random) -> LinkConfig {
    LinkConfig {
        forward: direction(random),
        back: direction(random),
        seed: random.next_u64(),
    }
}

fn plan(random: &mut Random) -> Plan {
    let packets = link(random);
    Plan {
        link: (
            Bitrate::from_bits_per_second(20_000_000),
            packets.forward.delay,
        ),
        packets,
        datagrams: Datagrams::Offered,
        transport: Settings {
            fec: [Mode::Off, Mode::On, Mode::Auto][random.below(3) as usize],
            algorithm: if random.below(4) == 0 {
                Algorithm::Cubic
            } else {
                Algorithm::Bbr
            },
            ..Settings::default()
        },
        session: Config {
            compare_ways: false,
            ..Config::default()
        },
    }
}

fn work(random: &mut Random) -> Work {
    match random.below(4) {
        0 => Work::Download(Some(random.below(1 << 20))),
        1 => Work::Upload(Some(random.below(1 << 20))),
        2 => Work::Download(Some(random.below(3_000))),
        _ => Work::Exchanges {
            question: 1 + random.below(300),
            answer: 1 + random.below(20_000),
            count: 1 + random.below(8) as usize,
        },
    }
}

/// What happens to the path on the way.
fn disturb(random: &mut Random, world: &mut World) {
    let way = random.below(2) as usize;
    match random.below(8) {
        0 => world.set_packets(link(random)),
        1 => world.block(way, true),
        2 => {
            world.block(0, true);
            world.block(1, true);
        }
        3 | 4 => {
            world.block(0, false);
            world.block(1, false);
        }
        _ => {}
    }
}

fn is_done(world: &World) -> bool {
    [0, 1].map(|side| world.session(side).flow_count()) == [0, 0]
}

/// Runs one path and says how often frames changed their way.
fn run(seed: u64) -> (usize, u64) {
    let mut random = Random::from_seed(seed);
    let mut world = World::new(plan(&mut random));
    for _ in 0..1 + random.below(6) {
        let work = work(&mut random);
        world.start(work);
        let pause = ms(&mut random, 400);
        world.run(pause);
        disturb(&mut random, &mut world);
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

fn run_all(seeds: std::ops::Range<u64>) {
    let (mut changes, mut packets) = (0, 0);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let outcome = run(seed);
        changes += outcome.0;
        packets += outcome.1;
    }
    // There must have been packets, and ways to change between.
    assert!(
        changes as u64 > 2 * count && packets > 100 * count,
        "{changes} {packets}"
    );
}

#[test]
fn every_byte_arrives_once_on_many_paths() {
    run_all(0..60);
}

/// `cargo test --release -p lab --test sessions -- --ignored`
#[test]
#[ignore = "minutes in a debug build"]
fn every_byte_arrives_once_on_a_thousand_paths() {
    run_all(0..1_000);
}

#[test]
fn a_blocked_udp_costs_a_second_or_two_and_no_byte() {
    let mut random = Random::from_seed(7);
    let mut plan = plan(&mut random);
    let clean = DirectionConfig {
        line: Line::Rate(Bitrate::from_bits_per_second(20_000_000)),
        delay: Duration::from_millis(25),
        queue: ByteCount::kibibytes(128).into(),
        ..DirectionConfig::default()
    };
    plan.packets = LinkConfig::symmetric(clean, 7);
    plan.link.1 = Duration::from_millis(25);
    let mut world = World::new(plan);
    let flow = world.start(Work::Download(Some(8 << 20)));
    world.run(Duration::from_secs(1));
    assert!(world.session(1).is_in_packets());
    world.block(0, true);
    world.block(1, true);
    let (from, before) = (world.now(), world.transfer(flow).received(0));
    let goes_on = world.run_until(from + Duration::from_secs(10), |world| {
        world.transfer(flow).received(0) > before + (1 << 20)
    });
    assert!(goes_on && !world.session(1).is_in_packets());
    let gap = world.now().since(from);
    assert!(gap < Duration::from_secs(3), "{gap:?}");
    let end: Time = world.now() + DONE_WITHIN;
    world.run_until(end, is_done);
    assert!(world.transfer(flow).is_complete());
    world.block(0, false);
    world.block(1, false);
    let flow = world.start(Work::Download(Some(1 << 20)));
    world.run(Duration::from_secs(10));
    assert!(world.session(1).is_in_packets(), "UDP is used again");
    assert!(world.transfer(flow).is_complete());
}
