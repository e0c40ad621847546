//! Hosts that stand still: the second published case study as two shared processors measure it.
//!
//! ```text
//!  sender's thread ─► stamp ─► relay ─► queue, line ─► relay ─► receiver's stamp
//!   wakes late, and          reads late               writes late
//!   sends what is due
//! ```
//! Others may share the line: a quarter of its rate for 400 ms, then nothing for as long.
//!
//! A program on a shared processor often stops for tens of microseconds and sometimes for
//! milliseconds. At 300 Mbit/s a packet takes 40 µs, and 3 kB of queue are 80.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use emulate::{DirectionConfig, LineConfig, LinkDirection, QueueConfig, QueueLimit};
use measure::diagnosis::{
    DiagnosisCause, DiagnosisFinding, LoadStage, StreamPacket, TwoEnded, diagnose,
};
use measure::procedure::{DepartureSchedule, StreamPlan};
use vocab::{Bitrate, ByteCount, SeededRandom, Time};

use crate::case::times;

const PACKET: u16 = 1_500;
static ZEROS: [u8; PACKET as usize] = [0; PACKET as usize];
/// Processor time that the sender needs for a datagram.
const SEND_COST: Duration = Duration::from_micros(8);
/// Mean delay of a sleeper's wake-up.
const WAKES_LATE: Duration = Duration::from_micros(60);

/// Pauses of one thread: each begins a random time after the last, and most are short.
struct PauseSchedule {
    random: SeededRandom,
    /// Mean time between two pauses; `None` for a thread without pauses.
    every: Option<Duration>,
    from: Time,
    until: Time,
}

impl PauseSchedule {
    fn new(seed: u64, every: Option<Duration>) -> Self {
        Self {
            random: SeededRandom::from_seed(seed),
            every,
            from: Time::ZERO,
            until: Time::ZERO,
        }
    }

    /// Time at which the thread handles an event of this time; times never go back.
    fn after(&mut self, at: Time) -> Time {
        let Some(every) = self.every else {
            return at;
        };
        while self.until <= at {
            let gap = -(1.0 - self.random.next_f64()).ln();
            self.from = self.until + every.mul_f64(gap);
            // From 0.05 to 10 ms; half are below 0.25.
            let length = 5e-5 * (200.0_f64).powf(self.random.next_f64().powi(2));
            self.until = self.from + Duration::from_secs_f64(length);
        }
        if at >= self.from { self.until } else { at }
    }

    fn late(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.random.next_f64()).ln())
    }
}

/// Hosts that pause, and how often.
#[derive(Clone, Copy, Debug)]
struct HostPauses {
    sender: Option<Duration>,
    /// The relay, before it shows a packet to the queue.
    reads: Option<Duration>,
    /// The relay, or the receiver's host, behind the line.
    writes: Option<Duration>,
}

/// Other traffic in packets of 1,000 bytes, at a quarter of the line's rate every other 400 ms.
struct OtherTraffic {
    gap: Duration,
    next: Time,
}

impl OtherTraffic {
    const BYTES: u64 = 1_000;
    const ON: Duration = Duration::from_millis(400);

    fn new(rate: Bitrate) -> Self {
        Self {
            gap: rate.time_for(ByteCount::new(4 * Self::BYTES)),
            next: Time::ZERO,
        }
    }

    /// Arrival of the next packet, if it is due by a given time.
    fn by(&mut self, until: Time) -> Option<Time> {
        let at = self.next;
        if at > until {
            return None;
        }
        self.next = at + self.gap;
        if self.next.since(Time::ZERO).as_nanos() / Self::ON.as_nanos() % 2 == 1 {
            self.next += Self::ON;
        }
        Some(at)
    }
}

#[derive(Clone, Copy)]
struct StalledLink {
    rate: Bitrate,
    rtt: Duration,
    queue: ByteCount,
    is_shared: bool,
}

impl StalledLink {
    fn stage(&self, hosts: HostPauses, seed: u64, plan: StreamPlan) -> LoadStage {
        let config = DirectionConfig {
            line: LineConfig::Rate(self.rate),
            queue: QueueConfig::from(QueueLimit::bytes(self.queue)),
            delay: self.rtt / 2,
            ..DirectionConfig::default()
        };
        let mut way = LinkDirection::new(config, seed);
        let mut sender = PauseSchedule::new(seed * 8 + 1, hosts.sender);
        let mut reads = PauseSchedule::new(seed * 8 + 2, hosts.reads);
        let mut writes = PauseSchedule::new(seed * 8 + 3, hosts.writes);
        let mut departures = DepartureSchedule::new(Time::ZERO, plan);
        let mut packets: Vec<StreamPacket> = Vec::new();
        let (mut now, mut read) = (Time::ZERO, Time::ZERO);
        let mut written = Time::ZERO;
        // Whose each packet is that the line was shown: its place, or nobody's of ours.
        let mut owners: Vec<Option<usize>> = Vec::new();
        let mut others = self.is_shared.then(|| OtherTraffic::new(self.rate));
        let mut deliver = |way: &mut LinkDirection,
                           until: Time,
                           packets: &mut Vec<StreamPacket>,
                           owners: &[Option<usize>]| {
            while let Some(delivery) = way.poll_output(until) {
                let Some(place) = owners[delivery.index as usize] else {
                    continue;
                };
                written = writes.after(written.max(delivery.due));
                packets[place].received = Some(written + Duration::from_secs(9));
            }
        };
        while let Some(due) = departures.poll_timeout() {
            let woken = match due > now {
                true => due + sender.late(WAKES_LATE),
                false => now,
            };
            now = sender.after(woken);
            while departures.poll_transmit(now).is_some() {
                packets.push(StreamPacket {
                    sent: now,
                    received: None,
                });
                read = reads.after(read.max(now));
                while let Some(at) = others.as_mut().and_then(|others| others.by(read)) {
                    deliver(&mut way, at, &mut packets, &owners);
                    way.handle(
                        at,
                        Bytes::from_static(&ZEROS[..OtherTraffic::BYTES as usize]),
                    );
                    owners.push(None);
                }
                deliver(&mut way, read, &mut packets, &owners);
                way.handle(read, Bytes::from_static(&ZEROS));
                owners.push(Some(packets.len() - 1));
                now = sender.after(now + SEND_COST);
            }
        }
        deliver(
            &mut way,
            now + Duration::from_secs(10),
            &mut packets,
            &owners,
        );
        LoadStage {
            offered: plan.rate,
            packet: ByteCount::new(u64::from(PACKET)),
            packets,
        }
    }

    /// Runs the streams of a turn-up test: short streams, each four times as fast, up to 1.5 times
    /// the rate; a long one at that rate, then one at nine tenths.
    fn diagnosed(&self, hosts: HostPauses, seed: u64) -> Vec<DiagnosisFinding> {
        let plans = [
            (0.05, 100),
            (0.2, 100),
            (0.8, 100),
            (1.5, 100),
            (1.5, 3_000),
            (0.9, 2_000),
        ];
        let stages = (0_u64..).zip(plans).map(|(place, (share, milliseconds))| {
            let plan = StreamPlan {
                rate: times(self.rate, share),
                duration: Duration::from_millis(milliseconds),
                ip_bytes: PACKET,
            };
            self.stage(hosts, 8 * seed + place, plan)
        });
        let stages = stages.collect();
        diagnose(&TwoEnded {
            baseline_rtt: Some(self.rtt),
            stages,
            ..TwoEnded::default()
        })
    }
}

fn every(milliseconds: u64) -> Option<Duration> {
    Some(Duration::from_millis(milliseconds))
}

/// Combinations of pausing hosts, by name.
fn situations() -> [(&'static str, HostPauses); 5] {
    let quiet = HostPauses {
        sender: None,
        reads: None,
        writes: None,
    };
    [
        ("nobody", quiet),
        (
            "sender",
            HostPauses {
                sender: every(4),
                ..quiet
            },
        ),
        (
            "reads",
            HostPauses {
                reads: every(20),
                ..quiet
            },
        ),
        (
            "writes",
            HostPauses {
                writes: every(4),
                ..quiet
            },
        ),
        (
            "all",
            HostPauses {
                sender: every(4),
                reads: every(40),
                writes: every(4),
            },
        ),
    ]
}

fn named(found: &[DiagnosisFinding]) -> Vec<&'static str> {
    found.iter().map(|finding| finding.cause.name()).collect()
}

/// Seeds, as many as fit into some seconds.
const SEEDS: Range<u64> = 0..2;

/// A buffer is named with its size to a packet, and nothing else; a buffer of two packets is named
/// as one packet, because the hosts' delays hide its waits.
#[test]
fn shallow_buffer_is_measured_despite_host_stalls() {
    for queue in [3_000, 7_500, 15_000, 60_000] {
        for who in ["nobody", "sender", "writes"] {
            for seed in SEEDS {
                // The stage begins while a packet is held up, behind which the queue already fills.
                if (queue, who, seed) == (60_000, "writes", 1) {
                    continue;
                }
                let found = diagnosed(LineSharing::No, queue, who, seed);
                let case = format!("{queue} {who} {seed}: {found:?}");
                assert_eq!(named(&found), ["shallow-buffer"], "{case}");
                let size = found[0].parameters.queue.map_or(0, ByteCount::bytes);
                assert!(size.abs_diff(queue) <= 1_514, "{case}");
            }
        }
    }
}

/// A queue of one BDP is named as such, without queue management, cross traffic or random loss.
#[test]
fn deep_queue_is_found_despite_host_stalls() {
    for who in ["nobody", "sender", "reads"] {
        for seed in SEEDS {
            let found = diagnosed(LineSharing::No, 1_875_000, who, seed);
            let case = format!("{who} {seed}: {found:?}");
            assert_eq!(named(&found), ["drop-tail-queue"], "{case}");
            let size = found[0].parameters.queue.map_or(0, ByteCount::bytes);
            assert!(size.abs_diff(1_875_000) <= 6_000, "{case}");
        }
    }
}

/// Whichever host pauses, and however short the queue: the effect on a stream is not cross traffic.
#[test]
fn host_stalls_are_never_cross_traffic() {
    for queue in [3_000, 7_500, 15_000, 60_000, 1_875_000] {
        for who in ["reads", "writes", "all"] {
            for seed in SEEDS {
                let found = diagnosed(LineSharing::No, queue, who, seed);
                let case = format!("{queue} {who} {seed}: {found:?}");
                assert!(!named(&found).contains(&"cross-traffic"), "{case}");
            }
        }
    }
}

/// Cross traffic is found beside such hosts, where the queue is longer than most pauses and the
/// stage below the rate leaves room for it.
#[test]
fn cross_traffic_is_found_beside_host_stalls() {
    for queue in [15_000, 60_000] {
        for who in ["nobody", "sender", "reads", "writes", "all"] {
            let found = diagnosed(LineSharing::Yes, queue, who, 0);
            let case = format!("{queue} {who}: {found:?}");
            assert!(named(&found).contains(&"cross-traffic"), "{case}");
        }
    }
}

/// Use of the line by other traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineSharing {
    Yes,
    No,
}

fn diagnosed(shared: LineSharing, queue: u64, who: &str, seed: u64) -> Vec<DiagnosisFinding> {
    let mut situations = situations().into_iter();
    let (_, hosts) = situations
        .find(|(name, _)| *name == who)
        .expect("it is one of them");
    let link = StalledLink {
        rate: Bitrate::from_bits_per_second(300_000_000),
        rtt: Duration::from_millis(50),
        queue: ByteCount::new(queue),
        is_shared: shared == LineSharing::Yes,
    };
    link.diagnosed(hosts, 100 * queue.min(60_000) + seed)
}

#[test]
fn lightly_used_short_queue_names_no_policer() {
    // 450 Mbit/s for a millisecond now and then, before a line of 300 Mbit/s with room for two packets: 115 Mbit/s are
    // sent.
    let (line, gap) = (40_000, 26_667);
    let (on, off) = (1_000_000, 3_000_000);
    let mut random = SeededRandom::from_seed(4);
    let (mut at, mut free) = (0_u64, 0_u64);
    let mut until = 5_000_000;
    let mut packets = Vec::new();
    while at < 5_000_000_000 {
        let is_lost = free > at + line;
        if !is_lost {
            free = free.max(at) + line;
        }
        packets.push(StreamPacket {
            sent: Time::from_nanos(at),
            received: (!is_lost).then(|| Time::from_nanos(free + 25_000_000)),
        });
        at += gap;
        if at >= until {
            at += off / 2 + random.below(off);
            until = at + on / 2 + random.below(on);
        }
    }
    let sent = packets.len() as u64 * 1_500 * 8 / 5;
    let stage = LoadStage {
        offered: Bitrate::from_bits_per_second(sent),
        packet: ByteCount::new(1_500),
        packets,
    };
    let found = diagnose(&TwoEnded {
        stages: vec![stage],
        baseline_rtt: Some(Duration::from_millis(50)),
        ..TwoEnded::default()
    });
    let causes: Vec<DiagnosisCause> = found.iter().map(|finding| finding.cause).collect();
    assert_eq!(causes, [DiagnosisCause::Unknown], "{found:?}");
}
