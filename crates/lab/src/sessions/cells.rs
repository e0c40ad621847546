//! The kinds of paths that a session is measured on, and one measurement.
//!
//! Loss acts behind the queue and in both directions. The steady part of a transfer is that of the
//! seconds 5 to 35, on the longest paths 20 to 80.

use std::sync::Arc;
use std::time::Duration;

use emulate::{
    Change, DirectionConfig, Distribution, GilbertElliott, Jitter, Line, LinkConfig, Loss, Order,
    Schedule, Step, TokenBucket,
};
use serde::Serialize;
use tunnel::Config;
use tunnel::congestion::Remembered;
use tunnel::fec::Mode;
use tunnel::transport::Settings;
use vocab::{Bitrate, ByteCount, Probability, Random, Time};

use super::work::Work;
use super::world::{Datagrams, Plan, World};

/// What is special about a path, beside rate, delay, loss and jitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Nothing: a drop-tail queue of one BDP.
    #[default]
    Plain,
    /// The rate changes each half second, to anything from a quarter of it to all of it.
    Trace,
    /// A policer of half the line's rate, with a bucket of 50 ms of it.
    Policer,
    /// A queue of a tenth of the BDP.
    ShallowQueue,
}

/// One path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The line's rate.
    pub rate_mbit_s: f64,
    /// Round-trip time without queues.
    pub rtt_ms: f64,
    /// The share of packets lost, each way.
    pub loss: f64,
    /// Packets lost in a row, on average.
    pub burst: f64,
    /// Half the width of a uniform jitter that reorders, each way.
    pub jitter_ms: f64,
    /// What else.
    pub shape: Shape,
}

/// What was measured on one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellResult {
    /// The path.
    #[serde(flatten)]
    pub cell: Cell,
    /// Forward error correction: `"off"`, `"on"` or `"auto"`.
    pub fec: &'static str,
    /// Application bytes in the steady part.
    pub goodput_mbit_s: f64,
    /// Application bytes of a transfer of 16 MiB over the time from its open to its last byte.
    pub whole_transfer_mbit_s: f64,
    /// The same on a path that is remembered.
    pub whole_transfer_remembered_mbit_s: f64,
    /// Idle share of the processors; `None` in virtual time.
    pub cpu_idle_percent: Option<f64>,
    /// 95th percentile of the queueing delay in the steady part.
    pub queueing_p95_ms: f64,
    /// Packets lost on the way of all that were sent, in the steady part.
    pub lost_share: f64,
    /// Repair packets of all that were sent.
    pub repair_share: f64,
    /// Packets taken for lost that came, of all that were sent.
    pub spurious_share: f64,
    /// Whether this is virtual time.
    pub r#virtual: bool,
    /// The seed of the path.
    pub seed: u64,
}

const PLAIN: Cell = Cell {
    rate_mbit_s: 20.0,
    rtt_ms: 100.0,
    loss: 0.0,
    burst: 1.0,
    jitter_ms: 0.0,
    shape: Shape::Plain,
};

const OC_1_MBIT_S: f64 = 51.84;

/// Every path of the bench.
#[must_use]
pub fn all_cells() -> Vec<Cell> {
    let losses = [0.0, 0.01, 0.05, 0.10];
    let random = losses.map(|loss| Cell { loss, ..PLAIN });
    let bursts = [0.01, 0.05, 0.10].map(|loss| Cell {
        loss,
        burst: 8.0,
        ..PLAIN
    });
    let jitter = losses.map(|loss| Cell {
        loss,
        jitter_ms: 50.0,
        ..PLAIN
    });
    let far = [0.0, 30.0, 100.0, 250.0].map(|one_way: f64| Cell {
        rate_mbit_s: OC_1_MBIT_S,
        rtt_ms: 2.0 * one_way,
        ..PLAIN
    });
    let fat = [0.0, 0.01].map(|loss| Cell {
        rate_mbit_s: 500.0,
        loss,
        ..PLAIN
    });
    let shapes =
        [Shape::Trace, Shape::Policer, Shape::ShallowQueue].map(|shape| Cell { shape, ..PLAIN });
    [&random[..], &bursts, &jitter, &far, &fat, &shapes].concat()
}

/// The bytes of a whole transfer.
const WHOLE: u64 = 16 << 20;

/// A queue holds at least this: of a path without delay a BDP is nothing.
const QUEUE_MIN: u64 = 64 << 10;

impl Cell {
    /// A name for a person and for `--cells`.
    #[must_use]
    pub fn name(&self) -> String {
        let mut name = format!("{}Mbit-{}ms", self.rate_mbit_s, self.rtt_ms);
        if self.loss > 0.0 {
            name += &format!("-{}%", self.loss * 100.0);
        }
        if self.burst > 1.0 {
            name += &format!("-bursts{}", self.burst);
        }
        if self.jitter_ms > 0.0 {
            name += &format!("-jitter{}ms", self.jitter_ms);
        }
        match self.shape {
            Shape::Plain => {}
            Shape::Trace => name += "-trace",
            Shape::Policer => name += "-policer",
            Shape::ShallowQueue => name += "-shallow",
        }
        name
    }

    fn rate(&self) -> Bitrate {
        Bitrate::from_bits_per_second((self.rate_mbit_s * 1e6) as u64)
    }

    fn rtt(&self) -> Duration {
        Duration::from_secs_f64(self.rtt_ms / 1e3)
    }

    /// The steady part.
    fn steady(&self) -> (Duration, Duration) {
        let (from, to) = if self.rtt_ms >= 500.0 {
            (20, 80)
        } else {
            (5, 35)
        };
        (Duration::from_secs(from), Duration::from_secs(to))
    }

    /// The model of the path with this seed.
    #[must_use]
    pub fn link(&self, seed: u64) -> LinkConfig {
        let rate = self.rate();
        let bdp = rate.bytes_in(self.rtt()).bytes();
        let queue = match self.shape {
            Shape::ShallowQueue => bdp / 10,
            Shape::Plain | Shape::Trace | Shape::Policer => bdp.max(QUEUE_MIN),
        };
        let probability = Probability::from_fraction(self.loss).unwrap_or_default();
        let loss = if self.burst > 1.0 && self.loss > 0.0 {
            GilbertElliott::from_rate_and_burst(probability, self.burst)
                .map_or(Loss::None, Loss::GilbertElliott)
        } else {
            Loss::from(probability)
        };
        let one_way = self.rtt() / 2;
        let spread = Duration::from_secs_f64(self.jitter_ms / 1e3);
        let direction = DirectionConfig {
            line: Line::Rate(rate),
            queue: ByteCount::new(queue).into(),
            loss,
            delay: one_way,
            jitter: (self.jitter_ms > 0.0).then_some(Jitter {
                distribution: Distribution::Uniform { spread },
                order: Order::Free,
            }),
            policer: (self.shape == Shape::Policer).then(|| {
                let rate = Bitrate::from_bits_per_second(rate.bits_per_second() / 2);
                TokenBucket {
                    rate,
                    burst: rate.bytes_in(Duration::from_millis(50)),
                    peak: None,
                }
            }),
            schedule: (self.shape == Shape::Trace).then(|| Arc::new(self.trace(seed))),
            ..DirectionConfig::default()
        };
        LinkConfig::symmetric(direction, seed)
    }

    /// The changing rate, repeated each minute.
    fn trace(&self, seed: u64) -> Schedule {
        const STEP: Duration = Duration::from_millis(500);
        const STEPS: u32 = 120;
        let mut random = Random::for_stream(seed, 99);
        let steps = (0..STEPS)
            .map(|index| {
                let share = 0.25 + 0.75 * random.next_f64();
                let rate = self.rate().bits_per_second() as f64 * share;
                Step {
                    at: index * STEP,
                    change: Change {
                        rate: Some(Bitrate::from_bits_per_second(rate as u64)),
                        ..Change::default()
                    },
                }
            })
            .collect();
        Schedule::new(steps, Some(STEPS * STEP)).expect("steps rise and end before they repeat")
    }

    fn plan(&self, seed: u64, fec: Mode, remembered: Option<Remembered>) -> Plan {
        let packets = self.link(seed);
        Plan {
            link: (self.rate(), packets.forward.delay),
            packets,
            datagrams: Datagrams::Offered,
            transport: Settings {
                fec,
                remembered,
                datagram_max: 1_472,
                ..Settings::default()
            },
            session: Config {
                flow_window_limit: ByteCount::mebibytes(64),
                total_window: ByteCount::mebibytes(256),
                // Links here have a line of their own, so that there is always more to be had.
                compare_ways: false,
                ..Config::default()
            },
        }
    }
}

/// Measures one path in virtual time.
#[must_use]
pub fn run_cell(cell: Cell, fec: Mode, seed: u64) -> CellResult {
    let mut world = World::new(cell.plan(seed, fec, None));
    let start = world.now();
    let flow = world.start(Work::Download(None));
    let (from, to) = cell.steady();
    world.run_until(start + from, |_| false);
    let (before, sent_before) = (world.transfer(flow).received(0), world.status(1));
    let mut queueing = Vec::new();
    let mut at = start + from;
    while at < start + to {
        at += Duration::from_millis(20);
        world.run_until(at, |_| false);
        queueing.push(queueing_delay(&world, at));
    }
    let received = world.transfer(flow).received(0) - before;
    let after = world.status(1);
    let share = |count: fn(&tunnel::transport::Status) -> u64| {
        let (Some(before), Some(after)) = (&sent_before, &after) else {
            return 0.0;
        };
        let sent = after.sent_packets - before.sent_packets;
        (count(after) - count(before)) as f64 / sent.max(1) as f64
    };
    queueing.sort_unstable();
    let p95 = queueing
        .get(queueing.len() * 95 / 100)
        .copied()
        .unwrap_or_default();
    let known = Remembered {
        rate: cell.rate(),
        rtt: cell.rtt().max(Duration::from_millis(1)),
    };
    CellResult {
        cell,
        fec: name(fec),
        goodput_mbit_s: received as f64 * 8.0 / (to - from).as_secs_f64() / 1e6,
        whole_transfer_mbit_s: whole_transfer(cell, fec, seed, None),
        whole_transfer_remembered_mbit_s: whole_transfer(cell, fec, seed, Some(known)),
        cpu_idle_percent: None,
        queueing_p95_ms: p95.as_secs_f64() * 1e3,
        lost_share: share(|status| status.lost_packets),
        repair_share: share(|status| status.sent_repairs),
        spurious_share: share(|status| status.spurious_packets),
        r#virtual: true,
        seed,
    }
}

/// How long the line works on what waits before it, towards the near side.
fn queueing_delay(world: &World, _at: Time) -> Duration {
    let direction = &world.packets().back;
    let queued = ByteCount::new(direction.counters().queued.bytes);
    direction
        .config()
        .line
        .rate()
        .map_or(Duration::ZERO, |rate| rate.time_for(queued))
}

fn whole_transfer(cell: Cell, fec: Mode, seed: u64, remembered: Option<Remembered>) -> f64 {
    let mut world = World::new(cell.plan(seed, fec, remembered));
    let start = world.now();
    let flow = world.start(Work::Download(Some(WHOLE)));
    let limit = start + Duration::from_secs(600);
    world.run_until(limit, |world| world.transfer(flow).received(0) == WHOLE);
    let received = world.transfer(flow).received(0);
    received as f64 * 8.0 / world.now().since(start).as_secs_f64().max(1e-9) / 1e6
}

/// The word for a mode of forward error correction.
fn name(fec: Mode) -> &'static str {
    match fec {
        Mode::Off => "off",
        Mode::On => "on",
        Mode::Auto => "auto",
    }
}
