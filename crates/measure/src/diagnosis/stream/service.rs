//! Bytes that an overloaded bottleneck served over time, and their deviation from a steady rate.

use std::collections::VecDeque;

use super::super::statistics::LinearFit;
use super::{CLUMP_GAP, LEAST_RECEIVED, PacketDeparture, SAME_RATE, StageSeries};

/// Time in seconds that a host or a relay on the path may stop: two shared processors with other
/// work stop for tens of milliseconds.
const STALL: f64 = 0.05;
/// Gap in packets' time that shows a stopped host: other traffic takes a part of the bottleneck,
/// not all of it.
const STILL_PACKETS: f64 = 4.0;

/// Bytes that an overloaded bottleneck served over time in the second half of a stage.
pub(super) struct BottleneckService {
    /// Seconds, and bytes served by then.
    pub(super) served: Vec<(f64, f64)>,
    pub(super) line: LinearFit,
    /// Bytes of it that may be there or missing because of hosts.
    pub(super) error: f64,
    /// Greatest relative error of the rate by hosts, as in `OverloadObservation`.
    pub(super) rate_error: Option<f64>,
    /// Marks each packet that found the line busy, as far as is known.
    pub(super) surely: Vec<bool>,
}

impl BottleneckService {
    /// Service of a line with a queue, which is at least as fast.
    pub(super) fn of_queue(
        series: &StageSeries,
        mut rate: f64,
        full_wait: f64,
        noise: f64,
    ) -> Option<Self> {
        /// Number of iterations that find the rate from the busy times of the previous rate.
        const STEPS: usize = 4;
        let from = series.sent.last()? / 2.0;
        let of = |rate: f64| BusyPeriods::of(series, from, rate, rate * full_wait, noise);
        let mut busy = of(rate);
        // The faster the line, the sooner a pause leaves it idle; and the more it was, the faster it is.
        for _ in 0..STEPS {
            let found = busy.as_ref().and_then(|busy| fit(&busy.served));
            let Some(found) = found.filter(|found| found.slope > rate) else {
                break;
            };
            rate = found.slope;
            busy = of(rate);
        }
        if let Some(busy) = busy {
            let line = fit(&busy.served)?;
            let error = busy.error();
            return Some(Self {
                rate_error: Some(error / line.slope / busy.lasted()),
                served: busy.served,
                line,
                error,
                surely: busy.surely,
            });
        }
        // A sender that stands still for longer than a short queue lasts leaves the line idle, which nobody takes.
        let idle: Vec<f64> = QueueBacklog::of(series, rate, rate * full_wait)
            .map(|backlog| backlog.idle)
            .collect();
        let departures = series.free_departures();
        let served: Vec<(f64, f64)> = departures
            .filter(|d| series.sent[d.index] >= from)
            .map(|d| (d.at - idle[d.index], d.served))
            .collect();
        Some(Self {
            line: fit(&served)?,
            served,
            error: 0.0,
            rate_error: None,
            surely: vec![true; series.sent.len()],
        })
    }

    /// Service of a bucket without a queue.
    pub(super) fn of_bucket(series: &StageSeries, rate: f64) -> Option<Self> {
        let last = *series.sent.last()?;
        let departures = series.free_departures();
        let served: Vec<(f64, f64)> = departures
            .filter(|d| series.sent[d.index] >= last / 2.0)
            .map(|d| (d.at, d.served))
            .collect();
        // What a sender that stands still leaves of a bucket of a packet; of a larger one it is less.
        let idle = QueueBacklog::of(series, rate, series.packet).map(|backlog| backlog.idle);
        let lost_share = idle.last().unwrap_or_default() / last;
        Some(Self {
            line: fit(&served)?,
            served,
            error: 0.0,
            rate_error: (lost_share < SAME_RATE).then_some(lost_share),
            surely: vec![true; series.sent.len()],
        })
    }
}

fn fit(points: &[(f64, f64)]) -> Option<LinearFit> {
    LinearFit::of(points.iter().copied())
}

/// Traffic that passed while the line surely had packets to carry, by sending time. Other traffic
/// on the line slows it. Times at which hosts stood still are left out: a sender that stops leaves
/// the line idle, and a gap without any arrival comes from a host or a relay, because other traffic
/// never takes the whole line.
struct BusyPeriods {
    /// Busy seconds, and bytes served in them, one stretch behind the other.
    served: Vec<(f64, f64)>,
    stretches: usize,
    /// Bytes that had to be left to carry.
    sure: f64,
    /// Marks each packet that surely found the line busy.
    surely: Vec<bool>,
}

impl BusyPeriods {
    /// Busy periods of a line with this rate and queue. `None` where they cover too little of the
    /// time since `from`.
    fn of(series: &StageSeries, from: f64, rate: f64, queue: f64, noise: f64) -> Option<Self> {
        /// Least backlog of a line that is surely busy: this share of a packet, and the bytes
        /// served in this many times the hosts' noise.
        const SURE_PACKETS: f64 = 0.2;
        const SURE_NOISE: f64 = 2.0;
        /// The share of the time that the line must surely have been busy.
        const LEAST_SHARE: f64 = 0.3;
        /// Backlog, in packets, up to which a stretch has caught up.
        const START_PACKETS: f64 = 0.25;
        let sure = SURE_PACKETS * series.packet + SURE_NOISE * noise * rate;
        let least = CLUMP_GAP * series.packet / series.sent_rate();
        let still = STILL_PACKETS * series.packet / rate;
        let mut busy = Self {
            served: Vec::new(),
            stretches: 0,
            sure,
            surely: QueueBacklog::of(series, rate, queue)
                .map(|backlog| backlog.level >= sure)
                .collect(),
        };
        let departures = series.departures();
        let departures: Vec<PacketDeparture> = departures
            .filter(|d| series.sent[d.index] >= from)
            .collect();
        let goes_on = |pair: &[PacketDeparture]| {
            let until = pair[0].index + 1..=pair[1].index;
            busy.surely[until].iter().all(|is| *is) && pair[1].at - pair[0].at <= still
        };
        let mut ends: Vec<usize> = (1..departures.len())
            .filter(|place| !goes_on(&departures[place - 1..=*place]))
            .collect();
        ends.push(departures.len());
        let (mut begin, mut before) = (0, (0.0, 0.0));
        for end in ends {
            let stretch = &departures[begin..end];
            begin = end;
            let stretch = &stretch[caught_up(stretch, rate, START_PACKETS * series.packet)..];
            let Some(start) = stretch.first() else {
                continue;
            };
            let next = stretch.iter().skip(1).map(|next| next.at);
            let next = next.chain([f64::INFINITY]);
            let free = stretch.iter().zip(next).skip(1);
            let free = free.filter(|(this, next)| next - this.at > least);
            let points = free.map(|(this, _)| {
                (
                    before.0 + this.at - start.at,
                    before.1 + this.served - start.served,
                )
            });
            let known = busy.served.len();
            busy.served.extend(points);
            if busy.served.len() > known {
                before = busy.served.last().copied().unwrap_or(before);
                busy.stretches += 1;
            }
        }
        let span = match (departures.first(), departures.last()) {
            (Some(first), Some(last)) => last.at - first.at,
            _ => 0.0,
        };
        let is_enough = busy.served.len() >= LEAST_RECEIVED && busy.lasted() >= LEAST_SHARE * span;
        is_enough.then_some(busy)
    }

    fn lasted(&self) -> f64 {
        self.served.last().map_or(0.0, |(at, _)| *at)
    }

    /// Error of the service in bytes by hosts: the least backlog, at both ends of each stretch.
    fn error(&self) -> f64 {
        self.sure * (self.stretches.max(1) - 1) as f64
    }
}

/// Index of the first departure of a stretch that has made up for an earlier hold-up by a host or a
/// relay: no departure that soon follows is further ahead of the line's rate by more than `near`
/// bytes.
fn caught_up(stretch: &[PacketDeparture], rate: f64, near: f64) -> usize {
    let Some(first) = stretch.first() else {
        return 0;
    };
    let ahead = |this: &PacketDeparture| this.served - rate * (this.at - first.at);
    let soon = stretch.iter().take_while(|d| d.at <= first.at + STALL);
    let most = soon.map(ahead).fold(f64::NEG_INFINITY, f64::max);
    stretch
        .iter()
        .position(|this| ahead(this) >= most - near)
        .unwrap_or_default()
}

/// Backlog before a line with a full queue, computed from the sending times and the fate of
/// packets; the queue is full where a packet was dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueBacklog {
    /// Bytes that a packet finds before it.
    pub(super) level: f64,
    /// Time in seconds that the line had been idle by then, because nothing had been sent.
    pub(super) idle: f64,
}

impl QueueBacklog {
    /// Backlog that each packet of a series finds, before a line of a rate with so long a queue.
    pub(super) fn of(series: &StageSeries, rate: f64, queue: f64) -> impl Iterator<Item = Self> {
        let (mut level, mut before, mut idle) = (0.0_f64, 0.0, 0.0);
        let packets = series.sent.iter().zip(&series.delay);
        packets.map(move |(sent, delay)| {
            level -= rate * (sent - before).max(0.0);
            before = f64::max(before, *sent);
            if level < 0.0 {
                idle -= level / rate;
                level = 0.0;
            }
            let found = Self { level, idle };
            level = match delay {
                Some(_) => level + series.packet,
                None => level.max(queue),
            };
            found
        })
    }
}

/// Deviation of the service from a steady rate, without the effect of hosts and relays that
/// stopped. `served` has the departure time of each packet, and the bytes served by then.
pub(super) fn rate_deviation(served: &[(f64, f64)], packet: f64) -> Option<f64> {
    let beside = |served: &[(f64, f64)], line: LinearFit| -> Vec<(f64, f64)> {
        let off = served.iter().map(|(at, bytes)| (*at, bytes - line.at(*at)));
        off.collect()
    };
    let line = LinearFit::of(served.iter().copied())?;
    let levels = made_up(&beside(served, line));
    // What such a host kept from a line that then was idle, or from a bucket that then was full, is gone:
    // up to the rate times that time.
    let mut excused = 0.0;
    let mut whole = served.to_vec();
    for place in 1..served.len() {
        let still = served[place].0 - served[place - 1].0;
        if still * line.slope > STILL_PACKETS * packet {
            excused += (levels[place - 1] - levels[place]).clamp(0.0, still * line.slope);
        }
        whole[place].1 += excused;
    }
    let line = LinearFit::of(whole.iter().copied())?;
    let left = made_up(&beside(&whole, line));
    Some(left.into_iter().map(f64::abs).fold(0.0, f64::max))
}

/// Deviation of the service from a line, without delays that are made up within [`STALL`]: each
/// point counts as the best one that soon follows. A host that stopped hands on its packets late
/// and all at once; service that other traffic took is never made up.
pub(super) fn made_up(beside: &[(f64, f64)]) -> Vec<f64> {
    // Of the points within reach, from the latest to the earliest, those better than all before them.
    let mut best: VecDeque<(f64, f64)> = VecDeque::new();
    let mut all: Vec<f64> = beside
        .iter()
        .rev()
        .map(|(at, value)| {
            while best.back().is_some_and(|(_, other)| other <= value) {
                best.pop_back();
            }
            best.push_back((*at, *value));
            while best.front().is_some_and(|(then, _)| *then > at + STALL) {
                best.pop_front();
            }
            best.front().map_or(*value, |(_, value)| *value)
        })
        .collect();
    all.reverse();
    all
}
