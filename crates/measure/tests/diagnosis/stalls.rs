//! Hosts that stand still: the second published case study as two shared processors measure it.
//!
//! ```text
//!  sender's thread ─► stamp ─► relay ─► queue, line ─► relay ─► receiver's stamp
//!   wakes late, and          reads late               writes late
//!   sends what is due
//! ```
//! Whoever runs on a shared processor stands still for tens of microseconds often and for milliseconds now
//! and then. At 300 Mbit/s a packet takes 40 µs, and 3 kB of queue are 80.

use std::time::Duration;

use bytes::Bytes;
use emulate::{Direction, DirectionConfig, Line, Queue, QueueLimit};
use measure::diagnosis::{Finding, Stage, StreamPacket, TwoEnded, diagnose};
use measure::procedure::{Departures, StreamPlan};
use vocab::{Bitrate, ByteCount, Random, Time};

use crate::case::times;

const PACKET: u16 = 1_500;
static ZEROS: [u8; PACKET as usize] = [0; PACKET as usize];
/// What the sender's processor needs for a datagram.
const SEND_COST: Duration = Duration::from_micros(8);
/// By how much a sleeper is woken late, in the mean.
const WAKES_LATE: Duration = Duration::from_micros(60);

/// When one thread stands still: each pause begins a random time after the last, and most are short.
struct Pauses {
    random: Random,
    /// Between two, in the mean; `None` for a thread that never does.
    every: Option<Duration>,
    from: Time,
    until: Time,
}

impl Pauses {
    fn new(seed: u64, every: Option<Duration>) -> Self {
        Self {
            random: Random::from_seed(seed),
            every,
            from: Time::ZERO,
            until: Time::ZERO,
        }
    }

    /// When the thread gets to what comes at a moment; moments never go back.
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

/// Who stands still, and how often.
#[derive(Clone, Copy, Debug)]
struct Hosts {
    sender: Option<Duration>,
    /// The relay, before it shows a packet to the queue.
    reads: Option<Duration>,
    /// The relay, or the receiver's host, behind the line.
    writes: Option<Duration>,
}

struct Link {
    rate: Bitrate,
    rtt: Duration,
    queue: ByteCount,
}

impl Link {
    fn stage(&self, hosts: Hosts, seed: u64, plan: StreamPlan) -> Stage {
        let config = DirectionConfig {
            line: Line::Rate(self.rate),
            queue: Queue::from(QueueLimit::bytes(self.queue)),
            delay: self.rtt / 2,
            ..DirectionConfig::default()
        };
        let mut way = Direction::new(config, seed);
        let mut sender = Pauses::new(seed * 8 + 1, hosts.sender);
        let mut reads = Pauses::new(seed * 8 + 2, hosts.reads);
        let mut writes = Pauses::new(seed * 8 + 3, hosts.writes);
        let mut departures = Departures::new(Time::ZERO, plan);
        let mut packets: Vec<StreamPacket> = Vec::new();
        let (mut now, mut read) = (Time::ZERO, Time::ZERO);
        let mut written = Time::ZERO;
        let mut deliver = |way: &mut Direction, until: Time, packets: &mut Vec<StreamPacket>| {
            while let Some(delivery) = way.poll_output(until) {
                written = writes.after(written.max(delivery.due));
                packets[delivery.index as usize].received = Some(written + Duration::from_secs(9));
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
                deliver(&mut way, read, &mut packets);
                way.handle(read, Bytes::from_static(&ZEROS));
                now = sender.after(now + SEND_COST);
            }
        }
        deliver(&mut way, now + Duration::from_secs(10), &mut packets);
        Stage {
            offered: plan.rate,
            packet: ByteCount::new(u64::from(PACKET)),
            packets,
        }
    }

    /// As a turn-up test measures it: a stream at 1.5 times the rate, then one at nine tenths.
    fn diagnosed(&self, hosts: Hosts, seed: u64) -> Vec<Finding> {
        let plan = |share: f64, seconds: u64| StreamPlan {
            rate: times(self.rate, share),
            duration: Duration::from_secs(seconds),
            ip_bytes: PACKET,
        };
        let stages = vec![
            self.stage(hosts, 2 * seed, plan(1.5, 3)),
            self.stage(hosts, 2 * seed + 1, plan(0.9, 2)),
        ];
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

/// Who stands still, by the name of it.
fn situations() -> [(&'static str, Hosts); 5] {
    let quiet = Hosts {
        sender: None,
        reads: None,
        writes: None,
    };
    [
        ("nobody", quiet),
        (
            "sender",
            Hosts {
                sender: every(4),
                ..quiet
            },
        ),
        (
            "reads",
            Hosts {
                reads: every(20),
                ..quiet
            },
        ),
        (
            "writes",
            Hosts {
                writes: every(4),
                ..quiet
            },
        ),
        (
            "all",
            Hosts {
                sender: every(4),
                reads: every(40),
                writes: every(4),
            },
        ),
    ]
}

fn named(found: &[Finding]) -> Vec<&'static str> {
    found.iter().map(|finding| finding.cause.name()).collect()
}

/// A buffer is named with its size to a packet, and nothing else. Of shorter ones, or with a relay that stands still
/// before the queue, the causes beside it are not yet kept out.
#[test]
fn a_shallow_buffer_is_measured_between_hosts_that_stand_still() {
    for (queue, who) in [
        (15_000, "nobody"),
        (15_000, "writes"),
        (60_000, "nobody"),
        (60_000, "sender"),
        (60_000, "writes"),
    ] {
        let found = diagnosed(queue, who);
        assert_eq!(
            named(&found),
            ["shallow-buffer"],
            "{queue} {who}: {found:?}"
        );
        let size = found[0].parameters.queue.map_or(0, ByteCount::bytes);
        assert!(size.abs_diff(queue) <= 1_514, "{queue} {who}: {size}");
    }
}

/// A queue of one BDP is a queue of one BDP, and no queue management, nobody else's traffic and no loss by
/// chance.
#[test]
fn a_deep_queue_stays_one_between_hosts_that_stand_still() {
    for who in ["nobody", "sender", "reads", "writes", "all"] {
        let found = diagnosed(1_875_000, who);
        assert_eq!(named(&found), ["drop-tail-queue"], "{who}: {found:?}");
        let size = found[0].parameters.queue.map_or(0, ByteCount::bytes);
        assert!(size.abs_diff(1_875_000) <= 1_514, "{who}: {size}");
    }
}

fn diagnosed(queue: u64, who: &str) -> Vec<Finding> {
    let mut situations = situations().into_iter();
    let (_, hosts) = situations
        .find(|(name, _)| *name == who)
        .expect("it is one of them");
    let link = Link {
        rate: Bitrate::from_bits_per_second(300_000_000),
        rtt: Duration::from_millis(50),
        queue: ByteCount::new(queue),
    };
    link.diagnosed(hosts, queue.min(60_000))
}
