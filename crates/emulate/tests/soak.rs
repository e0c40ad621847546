//! A day of virtual time: settings change every few seconds, the line is never idle, and at the end
//! every bit of work and every byte of memory is accounted for.
//!
//! `cargo test` runs ten minutes with about a million packets;
//! `cargo test --release -p emulate --test soak -- --ignored --nocapture` runs 24 hours with more
//! than 10^8 and prints what it saw.

// A counting allocator is the only way to see a leak from inside, and cannot be had without.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use emulate::{
    CoDelConfig, DirectionConfig, GilbertElliott, JitterConfig, JitterDistribution, LineConfig,
    LinkDirection, LinkSchedule, LossModel, PacketOrder, QueueConfig, QueueDiscipline, QueueLimit,
    ReorderingConfig, ScheduleStep, SettingsChange,
};
use vocab::{Bitrate, ByteCount, Probability, SeededRandom, Time};

/// Counts the bytes that are allocated and not freed.
struct CountingAllocator;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; only a counter is kept beside.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Interval between refills of the queue, far shorter than any line of this test needs to empty it.
const TICK: Duration = Duration::from_millis(10);
/// Duration of each group of settings.
const PERIOD: Duration = Duration::from_secs(7);
const QUEUE: ByteCount = ByteCount::mebibytes(1);
/// Backlog of three times the bytes that the fastest line of this test carries in a tick.
const BACKLOG: ByteCount = ByteCount::new(90_000);

struct SoakTest {
    direction: LinkDirection,
    random: SeededRandom,
    packets: Vec<Bytes>,
    now: Time,
    /// Work that the line had time for, in bits × 10⁹.
    possible: u128,
    rate: Bitrate,
    delivered: u64,
    changes: u64,
    /// The most memory in use after a change of settings, by the hour.
    peaks: Vec<usize>,
}

impl SoakTest {
    fn new(seed: u64) -> Self {
        let mut random = SeededRandom::from_seed(seed);
        let config = settings(&mut random);
        let rate = config.line.rate().unwrap_or_default();
        let packets = (0..64)
            .map(|_| Bytes::from(vec![0x45; 200 + random.below(1_300) as usize]))
            .collect();
        Self {
            direction: LinkDirection::new(config, seed),
            random,
            packets,
            now: Time::ZERO,
            possible: 0,
            rate,
            delivered: 0,
            changes: 0,
            peaks: Vec::new(),
        }
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        let mut next_change = self.now + PERIOD;
        let mut next_hour = self.now + Duration::from_secs(3_600);
        self.peaks.push(0);
        self.fill();
        while self.now < end {
            self.now += TICK;
            self.possible += u128::from(self.rate.bits_per_second()) * TICK.as_nanos();
            while let Some(delivery) = self.direction.poll_output(self.now) {
                assert!(delivery.due <= self.now);
                self.delivered += 1;
            }
            if self.now >= next_change {
                next_change += PERIOD;
                self.change();
            }
            if self.now >= next_hour {
                next_hour += Duration::from_secs(3_600);
                self.peaks.push(0);
            }
            self.fill();
            self.check_work();
        }
    }

    /// Hands in packets until more than a tick's worth waits, so that the line is never idle; with
    /// a discipline this may take many packets.
    fn fill(&mut self) {
        while self.direction.queued(self.now).bytes < BACKLOG.bytes() {
            let packet = &self.packets[self.random.below(64) as usize];
            self.direction.handle(self.now, packet.clone());
        }
    }

    fn change(&mut self) {
        let config = settings(&mut self.random);
        self.rate = config.line.rate().unwrap_or_default();
        self.direction.set_config(self.now, config);
        self.changes += 1;
        let live = LIVE.load(Ordering::Relaxed);
        if let Some(peak) = self.peaks.last_mut() {
            *peak = live.max(*peak);
        }
    }

    /// Checks that the line has carried all that it had time for, except the packet that is on it.
    fn check_work(&self) {
        let carried = u128::from(self.carried_bytes()) * 8 * 1_000_000_000;
        let behind = self.possible.checked_sub(carried);
        let packet = 1_500 * 8 * 1_000_000_000;
        assert!(
            behind.is_some_and(|behind| behind < packet),
            "at {:?}: carried {carried} of {}",
            self.now,
            self.possible
        );
    }

    fn carried_bytes(&self) -> u64 {
        let counters = self.direction.counters();
        counters.offered.bytes
            - counters.dropped_by_queue.bytes
            - counters.dropped_by_aqm.bytes
            - counters.queued.bytes
    }

    // What the long run saw is its result.
    #[allow(clippy::disallowed_macros)]
    fn finish(mut self) {
        let counters = self.direction.counters();
        let offered = counters.offered.packets;
        let drained = self.now + Duration::from_secs(7_200);
        while self.direction.poll_output(drained).is_some() {
            self.delivered += 1;
        }
        let counters = self.direction.counters();
        assert_eq!(counters.queued.packets + counters.in_flight.packets, 0);
        assert_eq!(counters.delivered.packets, self.delivered);
        let first = self.peaks[0];
        let last = self.peaks[self.peaks.len() - 1];
        println!(
            "{offered} packets handed in, {} delivered, {} changes of settings, memory in use at most {first} bytes in the first hour and {last} in the last",
            self.delivered, self.changes
        );
        // The buffers' capacities settle within the first hour but for a rare larger peak.
        assert!(last < 2 * first + (1 << 20), "{:?}", self.peaks);
    }
}

/// Random settings in which only the line limits the rate: a discipline that refuses new packets
/// (PIE, RED) would leave the line idle under this load.
fn settings(random: &mut SeededRandom) -> DirectionConfig {
    let millis = Duration::from_millis;
    let chance = |fraction| Probability::from_fraction(fraction).unwrap_or(Probability::ZERO);
    let discipline = match random.below(4) {
        0 => QueueDiscipline::CoDel(CoDelConfig::default()),
        1 => QueueDiscipline::DropHead,
        _ => QueueDiscipline::DropTail,
    };
    let loss = match random.below(3) {
        0 => LossModel::None,
        1 => LossModel::Random(chance(0.01)),
        _ => GilbertElliott::from_rate_and_burst(chance(0.02), 5.0)
            .map_or(LossModel::None, LossModel::GilbertElliott),
    };
    let order = if random.below(2) == 0 {
        PacketOrder::Kept
    } else {
        PacketOrder::Free
    };
    let jitter = (random.below(2) == 0).then(|| JitterConfig {
        distribution: JitterDistribution::Normal {
            deviation: millis(5),
        },
        order,
    });
    // A schedule that changes delay and loss under way, and leaves the rate alone.
    let schedule = (random.below(4) == 0).then(|| {
        let step = ScheduleStep {
            at: millis(500),
            change: SettingsChange {
                delay: Some(millis(80)),
                loss: Some(LossModel::None),
                ..SettingsChange::default()
            },
        };
        LinkSchedule::new(vec![step], Some(millis(1_000))).map(Arc::new)
    });
    DirectionConfig {
        queue: QueueConfig {
            limit: QueueLimit::bytes(QUEUE),
            discipline,
        },
        line: LineConfig::Rate(Bitrate::from_bits_per_second(
            4_000_003 + random.below(20_000_000),
        )),
        loss,
        corruption: chance(0.001),
        duplication: chance(0.001),
        delay: millis(random.below(300)),
        jitter,
        reordering: (random.below(3) == 0).then(|| ReorderingConfig {
            probability: chance(0.01),
            late_by: millis(5),
        }),
        schedule: schedule.and_then(Result::ok),
        ..DirectionConfig::default()
    }
}

#[test]
fn ten_minutes_neither_drift_nor_leak() {
    let mut soak = SoakTest::new(1);
    soak.run(Duration::from_secs(600));
    soak.finish();
}

#[test]
#[ignore = "a minute in a release build; run it with --release -- --ignored"]
fn hundred_million_packets_neither_drift_nor_leak() {
    let mut soak = SoakTest::new(2);
    soak.run(Duration::from_secs(24 * 3_600));
    assert!(soak.direction.counters().offered.packets >= 100_000_000);
    soak.finish();
}
