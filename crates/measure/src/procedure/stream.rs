//! Streams of datagrams at a constant rate, which do not react to anything (RFC 6349 §3.2.2 wants
//! stateless streams, not TCP), and what arrived of them.

use std::time::Duration;

use vocab::{Bitrate, ByteCount, Time};

use super::bottleneck::{STEADY_PERMILLE, StreamPlan};
use crate::wire::Arrival;

/// How far behind its times a sender may fall and still catch up, in time and in packets, whichever is
/// longer. A burst of more than this would be what the path is tested with, and not the rate.
const BEHIND_MAX: Duration = Duration::from_millis(4);
const BEHIND_PACKETS_MAX: u32 = 4;
/// Arrivals that are kept of one stream, 24 bytes each: a minute at 400 Mbit/s.
const ARRIVALS_MAX: usize = 2_000_000;

/// When each packet of a stream leaves.
#[derive(Clone, Debug)]
pub struct Departures {
    plan: StreamPlan,
    began: Time,
    /// How long the sender stood still, in all.
    shifted: Duration,
    next: u64,
}

impl Departures {
    /// A stream that begins now.
    #[must_use]
    pub fn new(now: Time, plan: StreamPlan) -> Self {
        Self {
            plan,
            began: now,
            shifted: Duration::ZERO,
            next: 0,
        }
    }

    /// When the next packet is to leave; [`None`] when the stream is over.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let bits = u128::from(self.next) * u128::from(self.plan.ip_bytes) * 8;
        let rate = u128::from(self.plan.rate.bits_per_second().max(1));
        let nanoseconds = u64::try_from(bits * 1_000_000_000 / rate).unwrap_or(u64::MAX);
        let after = Duration::from_nanos(nanoseconds) + self.shifted;
        (after < self.plan.duration).then(|| self.began + after)
    }

    /// The number and the stamp of a packet that is to leave now; [`None`] while none is.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(u64, u64)> {
        let due = self.poll_timeout().filter(|due| *due <= now)?;
        let behind = now.since(due);
        let bytes = ByteCount::new(u64::from(self.plan.ip_bytes));
        let gap = self.plan.rate.time_for(bytes);
        if behind > BEHIND_MAX.max(gap.saturating_mul(BEHIND_PACKETS_MAX)) {
            self.shifted += behind;
        }
        let number = self.next;
        self.next += 1;
        Some((number, now.since(self.began).as_nanos() as u64))
    }

    /// Packets that have left.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.next
    }
}

/// Collects what arrives of a stream.
#[derive(Clone, Debug)]
pub struct ArrivalLog {
    began: Time,
    arrivals: Vec<Arrival>,
}

impl ArrivalLog {
    /// An empty log.
    #[must_use]
    pub fn new(now: Time) -> Self {
        Self {
            began: now,
            arrivals: Vec::new(),
        }
    }

    /// Notes an arrival; beyond two million they are not noted.
    pub fn arrived(&mut self, at: Time, number: u64, sent_ns: u64) {
        if self.arrivals.len() < ARRIVALS_MAX {
            self.arrivals.push(Arrival {
                number,
                sent_ns,
                arrived_ns: at.since(self.began).as_nanos() as u64,
            });
        }
    }

    /// All that was noted.
    #[must_use]
    pub fn into_arrivals(self) -> Vec<Arrival> {
        self.arrivals
    }

    /// How many were noted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Whether nothing has arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }
}

/// What was delivered in one second of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delivered {
    /// Where the second ends, since the first arrival.
    pub at: Duration,
    /// Of IP packets, from the last arrival before the second to the last one in it.
    pub rate: Bitrate,
    /// Packets that arrived in it.
    pub packets: u64,
}

/// A stream, and all that became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamRecord {
    /// As it was ordered.
    pub plan: StreamPlan,
    /// Packets that left.
    pub sent: u64,
    /// In order of arrival; the two clocks have nothing to do with each other.
    pub arrivals: Vec<Arrival>,
}

impl StreamRecord {
    /// Packets that did not arrive.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.arrivals.len() as u64)
    }

    /// The share of packets that did not arrive.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.lost() as f64 / (self.sent.max(1)) as f64
    }

    /// The rate that the sender kept, by the stamps of what arrived.
    #[must_use]
    pub fn offered(&self) -> Option<Bitrate> {
        let first = self.arrivals.iter().min_by_key(|arrival| arrival.number)?;
        let last = self.arrivals.iter().max_by_key(|arrival| arrival.number)?;
        let span = last.sent_ns.checked_sub(first.sent_ns)?;
        self.rate(last.number.checked_sub(first.number)?, span)
    }

    /// The rate at which the second half of what arrived came in: where a bucket or queue was filled,
    /// that is behind it.
    #[must_use]
    pub fn delivered_late(&self) -> Option<Bitrate> {
        let late = &self.arrivals[self.arrivals.len() / 2..];
        let (first, last) = (late.first()?, late.last()?);
        let span = last.arrived_ns.checked_sub(first.arrived_ns)?;
        self.rate(late.len() as u64 - 1, span)
    }

    /// The rate at which everything came in, from the first arrival to the last.
    #[must_use]
    pub fn delivered(&self) -> Option<Bitrate> {
        let (first, last) = (self.arrivals.first()?, self.arrivals.last()?);
        let span = last.arrived_ns.checked_sub(first.arrived_ns)?;
        self.rate(self.arrivals.len() as u64 - 1, span)
    }

    fn rate(&self, packets: u64, nanoseconds: u64) -> Option<Bitrate> {
        let bits = u128::from(packets) * u128::from(self.plan.ip_bytes) * 8 * 1_000_000_000;
        let rate = bits.checked_div(u128::from(nanoseconds))?;
        Some(Bitrate::from_bits_per_second(u64::try_from(rate).ok()?))
    }

    /// What arrived, second by second; a second that was not whole is left out. Each is measured from
    /// arrival to arrival, so that on a slow link it is not a packet too many or too few.
    #[must_use]
    pub fn seconds(&self) -> Vec<Delivered> {
        const SECOND: u64 = 1_000_000_000;
        let Some(first) = self.arrivals.first() else {
            return Vec::new();
        };
        let since = |arrival: &Arrival| arrival.arrived_ns.saturating_sub(first.arrived_ns);
        let mut seconds = Vec::new();
        let (mut from, mut end) = (0, SECOND);
        for (place, arrival) in self.arrivals.iter().enumerate() {
            while since(arrival) > end && place > 0 {
                let until = place - 1;
                let span = since(&self.arrivals[until]) - since(&self.arrivals[from]);
                let packets = (until - from) as u64;
                seconds.push(Delivered {
                    at: Duration::from_nanos(end),
                    rate: self.rate(packets, span).unwrap_or_default(),
                    packets,
                });
                from = until;
                end += SECOND;
            }
        }
        seconds
    }

    /// The rate once it was steady: over the seconds at the end that differ from their neighbours by
    /// no more than 0.1 %, or a single packet, of which there must be two. [`None`] where it never
    /// came to rest.
    #[must_use]
    pub fn steady(&self) -> Option<Bitrate> {
        let seconds = self.seconds();
        let is_like = |one: &Delivered, other: &Delivered| {
            let (one_rate, other_rate) = (rate_f64(one), rate_f64(other));
            let packet = 1.0 / (one.packets.min(other.packets).max(1)) as f64;
            let tolerance = (STEADY_PERMILLE / 1_000.0).max(1.01 * packet);
            (one_rate - other_rate).abs() <= tolerance * one_rate.max(other_rate)
        };
        let alike = seconds
            .windows(2)
            .rev()
            .take_while(|pair| is_like(&pair[0], &pair[1]))
            .count();
        if alike == 0 || seconds.last().is_none_or(|last| last.packets == 0) {
            return None;
        }
        let tail = &seconds[seconds.len() - 1 - alike..];
        let packets: u64 = tail.iter().map(|second| second.packets).sum();
        // A second's span is that of its packets at its rate.
        let span: f64 = tail
            .iter()
            .map(|second| second.packets as f64 / rate_f64(second).max(1.0))
            .sum();
        Some(Bitrate::from_bits_per_second(
            (packets as f64 / span).round() as u64,
        ))
    }

    /// IP bytes that arrived.
    #[must_use]
    pub fn delivered_bytes(&self) -> ByteCount {
        ByteCount::new(self.arrivals.len() as u64 * u64::from(self.plan.ip_bytes))
    }
}

fn rate_f64(second: &Delivered) -> f64 {
    second.rate.bits_per_second() as f64
}
