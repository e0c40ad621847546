//! A path in virtual time: a chain of hops in each direction, with cross traffic.
//!
//! ```text
//!  sender ─► access line ─► bottleneck ─► (a further line) ─► receiver
//!                 cross traffic ─┘  └► gone with it
//!  sender ◄──────────────── the way back ◄─────────────────── receiver
//! ```

use std::time::Duration;

use bytes::Bytes;
use emulate::{DirectionConfig, LinkDirection};
use measure::diagnosis::{LoadStage, StreamPacket};
use vocab::{Bitrate, ByteCount, SeededRandom, Time};

/// The bytes of every packet: the models look at nothing but the length.
static ZEROS: [u8; 9_000] = [0; 9_000];
/// Name of packets of other traffic, which is not measured.
const FOREIGN: u64 = u64::MAX;

/// Chain of hops; a packet that leaves one enters the next.
pub(crate) struct HopChain {
    hops: Vec<PathHop>,
    cross: Option<BackgroundTraffic>,
}

struct PathHop {
    direction: LinkDirection,
    /// Whose each packet is, by the number that the direction gives it.
    names: Vec<u64>,
}

/// Cross traffic at one hop: on for a while, off for a while, Poisson while on.
pub(crate) struct BackgroundTraffic {
    pub(crate) hop: usize,
    pub(crate) rate: Bitrate,
    pub(crate) packet: usize,
    pub(crate) on: Duration,
    pub(crate) off: Duration,
    pub(crate) random: SeededRandom,
    pub(crate) next: Time,
    pub(crate) until: Time,
}

impl HopChain {
    pub(crate) fn new(
        hops: Vec<DirectionConfig>,
        seed: u64,
        cross: Option<BackgroundTraffic>,
    ) -> Self {
        let hops = hops.into_iter().enumerate().map(|(index, config)| {
            config
                .check()
                .expect("the models hold what a case asks for");
            PathHop {
                direction: LinkDirection::new(config, seed.wrapping_add(index as u64)),
                names: Vec::new(),
            }
        });
        Self {
            hops: hops.collect(),
            cross,
        }
    }

    pub(crate) fn send(&mut self, now: Time, bytes: usize, name: u64) {
        self.hops[0].take(now, Bytes::from_static(&ZEROS[..bytes]), name);
    }

    /// Takes a packet that arrives at `now`; `passed` is called for each packet that leaves a hop
    /// other than the last.
    pub(crate) fn poll(&mut self, now: Time, mut passed: impl FnMut(usize, u64)) -> Option<u64> {
        while let Some(cross) = self.cross.as_mut().filter(|cross| cross.next <= now) {
            let (hop, packet) = (cross.hop, cross.packet);
            cross.advance(now);
            self.hops[hop].take(now, Bytes::from_static(&ZEROS[..packet]), FOREIGN);
        }
        for index in 0..self.hops.len() {
            while let Some(delivery) = self.hops[index].direction.poll_output(now) {
                let name = self.hops[index].names[delivery.index as usize];
                if name == FOREIGN {
                    continue;
                }
                if index + 1 == self.hops.len() {
                    return Some(name);
                }
                passed(index, name);
                self.hops[index + 1].take(now, delivery.packet, name);
            }
        }
        None
    }

    pub(crate) fn next(&self) -> Option<Time> {
        let hops = self
            .hops
            .iter()
            .filter_map(|hop| hop.direction.poll_timeout());
        hops.chain(self.cross.as_ref().map(|cross| cross.next))
            .min()
    }
}

impl PathHop {
    fn take(&mut self, now: Time, packet: Bytes, name: u64) {
        self.names.push(name);
        self.direction.handle(now, packet);
    }
}

impl BackgroundTraffic {
    fn advance(&mut self, now: Time) {
        let mean = self
            .rate
            .time_for(ByteCount::new(self.packet as u64))
            .as_secs_f64();
        let gap = -mean * (1.0 - self.random.next_f64()).ln();
        self.next = now + Duration::from_secs_f64(gap.max(1e-9));
        if self.next > self.until {
            let pause = self.off.mul_f64(0.5 + self.random.next_f64());
            self.next += pause;
            self.until = self.next + self.on.mul_f64(0.5 + self.random.next_f64());
        }
    }
}

/// Clocks of the hosts: a constant offset between them, and the wake-up delay in a stamp.
#[derive(Clone, Debug)]
pub(crate) struct HostClocks {
    pub(crate) ahead: Duration,
    /// Mean addition to each receive stamp.
    pub(crate) lateness: Duration,
    pub(crate) random: SeededRandom,
}

impl HostClocks {
    fn stamp(&mut self, at: Time) -> Time {
        let late = -self.lateness.as_secs_f64() * (1.0 - self.random.next_f64()).ln();
        at + self.ahead + Duration::from_secs_f64(late)
    }
}

/// Plan of a stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagePlan {
    pub(crate) offered: Bitrate,
    pub(crate) packet: ByteCount,
    pub(crate) count: usize,
    /// Greatest rate of the sending host.
    pub(crate) host: Bitrate,
}

/// Sends a stage from `start` on, over a path that is idle then, and waits for the arrivals.
pub(crate) fn stage(
    way: &mut HopChain,
    clocks: &mut HostClocks,
    start: Time,
    plan: StagePlan,
) -> (LoadStage, Time) {
    let rate = plan.offered.min(plan.host);
    let gap = |index: usize| rate.time_for(ByteCount::new(plan.packet.bytes() * index as u64));
    let mut packets: Vec<StreamPacket> = Vec::with_capacity(plan.count);
    let mut latest = Time::ZERO;
    let end = start + gap(plan.count) + Duration::from_secs(15);
    let mut now = start;
    loop {
        while let Some(name) = way.poll(now, |_, _| {}) {
            let Some(packet) = packets.get_mut(name as usize) else {
                continue;
            };
            // A host stamps in the order in which packets come.
            latest = latest.max(clocks.stamp(now));
            packet.received = Some(latest);
        }
        if packets.len() < plan.count && start + gap(packets.len()) <= now {
            way.send(now, plan.packet.as_usize(), packets.len() as u64);
            packets.push(StreamPacket {
                sent: now,
                received: None,
            });
            continue;
        }
        let send = (packets.len() < plan.count).then(|| start + gap(packets.len()));
        let under_way = packets.len() < plan.count || way.hops_hold();
        match [send, way.next()].into_iter().flatten().min() {
            Some(next) if under_way && next <= end => now = next,
            _ => break,
        }
    }
    // Names are used again by the next stage: nothing of this one may still arrive.
    let stage = LoadStage {
        offered: plan.offered,
        packet: plan.packet,
        packets,
    };
    (stage, now)
}

impl HopChain {
    /// Packets that a hop's policer, queue or queue management dropped.
    pub(crate) fn dropped(&self, hop: usize) -> u64 {
        let counters = self.hops[hop].direction.counters();
        let dropped = [
            counters.dropped_by_policer,
            counters.dropped_by_queue,
            counters.dropped_by_aqm,
        ];
        dropped.iter().map(|tally| tally.packets).sum()
    }

    fn hops_hold(&self) -> bool {
        self.hops.iter().any(|hop| {
            let counters = hop.direction.counters();
            counters.queued.packets + counters.in_flight.packets > 0
        })
    }
}
