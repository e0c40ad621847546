//! Search: rate, overhead and limit of an output with the smallest loss on runs of overload.
//!
//! ```text
//!  direct estimate ─► candidate ─► replay of the overloads ─► loss ─┐
//!                         ▲                                         │
//!                         └── better? go on : halve the steps ◄─────┘
//! ```
//! The loss of a run is the distance of the distributions of delays (Kolmogorov and Smirnov), plus
//! e / (1 + e) of the relative error e of the 95 % delay, plus the difference of the loss ratios. The
//! loss of a candidate is the mean over the runs. All model families are searched by this code from the
//! same records. Every parameter of the baselines is free; of the full model, only a limit that is not
//! identified, within its interval.
//!
//! The axes are the times of the smallest and the largest packet on the line, which give rate and
//! overhead, and the limit.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use vocab::{Bitrate, ByteCount, DeviceModel, DeviceQueueLimit, SizeTimeTable, Time};

use super::occupancy::{InputDrops, forwarding_ends};
use super::{FitOptions, ModelFamily, with_output};
use crate::record::{MeasuredRun, PacketFate, PacketRecord};
use crate::validate::distribution::{kolmogorov_smirnov, quantile};

/// Packets of a run that are replayed, at most: more do not change the distribution.
const PACKETS_MAX: usize = 40_000;
/// Candidates that a search from one start tries, at most.
const CANDIDATES_MAX: u32 = 160;
/// First step of a time on the line, as a logarithm.
const TIME_STEP: f64 = 0.2;
/// First step of the limit, as a logarithm.
const LIMIT_STEP: f64 = 0.4;
/// Share of the first steps at which a search ends.
const LAST_STEP: f64 = 1.0 / 1_024.0;
/// Loss that is no better than another by less.
const EQUAL: f64 = 1e-6;
/// Loss at which a search ends: a few packets of a thousand.
const LOSS_ENOUGH: f64 = 1e-3;
/// Overhead of a line, at most, as [`DeviceModel::check`] allows.
pub(super) const FREE_OVERHEAD_MAX: f64 = 10_000.0;
/// Delays that differ by less are equal, as with stamps in microseconds.
const RESOLUTION_LEAST: Duration = Duration::from_micros(1);
/// Largest packet that every queue takes.
const FULL_PACKET: u64 = 1_500;

/// Rate, overhead and limit of an output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OutputCandidate {
    pub(super) rate: Bitrate,
    pub(super) overhead: ByteCount,
    pub(super) queue: DeviceQueueLimit,
}

/// Ranges that a search does not leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchBounds {
    /// In bit/s.
    pub(super) rate: (f64, f64),
    /// In bytes.
    pub(super) overhead: (f64, f64),
    /// In the unit of the queue.
    pub(super) limit: (f64, f64),
}

impl SearchBounds {
    /// Bounds of a parameter that the records do not identify.
    pub(super) const FREE: (f64, f64) = (0.0, f64::INFINITY);
}

/// Runs of overload that are replayed through candidates.
#[derive(Debug)]
pub(super) struct OverloadReplay<'a> {
    runs: Vec<ReplayedRun>,
    model: &'a DeviceModel,
    lone: &'a SizeTimeTable,
    family: ModelFamily,
    resolution: Duration,
    sizes: (f64, f64),
}

/// A run as it comes to the outputs.
#[derive(Debug)]
struct ReplayedRun {
    packets: Vec<ReplayedPacket>,
    /// Packets, with those that an input queue drops.
    count: usize,
    measured: DelayFigures,
}

#[derive(Clone, Copy, Debug)]
struct ReplayedPacket {
    sent: Time,
    /// Time at which the servers have finished it.
    served: Time,
    size: u32,
    output: u16,
}

/// Sorted delays, their 95th percentile, and the share of the packets that have none.
#[derive(Debug)]
struct DelayFigures {
    delays: Vec<Duration>,
    p95: Duration,
    loss_ratio: f64,
}

impl DelayFigures {
    /// Sorts the delays of `count` packets.
    fn new(mut delays: Vec<Duration>, count: usize) -> Self {
        // Delays under overload come in long rising runs, which a stable sort takes as they are.
        delays.sort();
        Self {
            p95: quantile(&delays, 0.95).unwrap_or_default(),
            loss_ratio: 1.0 - delays.len() as f64 / count.max(1) as f64,
            delays,
        }
    }
}

impl<'a> OverloadReplay<'a> {
    /// Prepares the replay; `model` has the servers and the input queue, and `lone` the transit of lone
    /// packets. `None` if no packet of the overloads was forwarded.
    pub(super) fn new(
        overloads: &[&MeasuredRun],
        (model, lone): (&'a DeviceModel, &'a SizeTimeTable),
        options: &FitOptions,
    ) -> Option<Self> {
        let runs: Vec<ReplayedRun> = overloads
            .iter()
            .filter_map(|run| replayed_run(&run.records, model, options))
            .collect();
        let sizes = || {
            runs.iter()
                .flat_map(|run| run.packets.iter().map(|packet| packet.size))
        };
        let sizes = (f64::from(sizes().min()?), f64::from(sizes().max()?));
        Some(Self {
            runs,
            model,
            lone,
            family: options.family,
            resolution: options.resolution.max(RESOLUTION_LEAST),
            sizes,
        })
    }

    /// Searches from `start`; returns the best candidate and its loss.
    pub(super) fn search(
        &self,
        start: OutputCandidate,
        bounds: SearchBounds,
    ) -> (OutputCandidate, f64) {
        let mut best = (start, self.loss(start));
        let mut tried = 1;
        let mut scale = 1.0;
        while scale >= LAST_STEP && best.1 > LOSS_ENOUGH && tried < CANDIDATES_MAX {
            let mut is_better = false;
            for axis in SearchAxis::ALL {
                for direction in [1.0, -1.0] {
                    // A step that helps is made again.
                    while tried < CANDIDATES_MAX
                        && let Some(next) = self.moved(best.0, axis, direction * scale, bounds)
                    {
                        tried += 1;
                        let loss = self.loss(next);
                        if loss >= best.1 - EQUAL {
                            break;
                        }
                        best = (next, loss);
                        is_better = true;
                    }
                }
            }
            if !is_better {
                scale /= 2.0;
            }
        }
        best
    }

    /// The candidate a step of this share along an axis; `None` where the bounds leave no step.
    fn moved(
        &self,
        from: OutputCandidate,
        axis: SearchAxis,
        share: f64,
        bounds: SearchBounds,
    ) -> Option<OutputCandidate> {
        let mut to = from;
        if axis == SearchAxis::Limit {
            let limit = from.queue.limit() as f64 * libm::exp(share * LIMIT_STEP);
            let limit = limit.clamp(bounds.limit.0, bounds.limit.1).round() as u64;
            to.queue = with_limit(from.queue, limit, from.overhead);
        } else {
            let (small, large) = self.sizes;
            let bits = from.rate.bits_per_second() as f64;
            let overhead = from.overhead.bytes() as f64;
            let time = |size: f64| 8.0 * (size + overhead) / bits;
            let factor = libm::exp(share * TIME_STEP);
            let (first, last) = match axis {
                SearchAxis::SmallPacket if large <= small => return None,
                SearchAxis::SmallPacket => (time(small) * factor, time(large)),
                SearchAxis::LargePacket if large <= small => {
                    (time(small) * factor, time(large) * factor)
                }
                SearchAxis::LargePacket => (time(small), time(large) * factor),
                SearchAxis::Limit => (time(small), time(large)),
            };
            let most = bounds.overhead.1.min(FREE_OVERHEAD_MAX);
            let wanted = if large <= small {
                overhead
            } else if last <= first {
                most
            } else {
                first * (large - small) / (last - first) - small
            };
            let overhead = wanted.clamp(bounds.overhead.0.min(most), most).round();
            // Where the overhead is bounded, the packet whose time moves keeps its time.
            let kept = match axis {
                SearchAxis::SmallPacket => (small, first),
                SearchAxis::LargePacket | SearchAxis::Limit => (large, last),
            };
            let bits = 8.0 * (kept.0 + overhead) / kept.1;
            let bits = bits.clamp(bounds.rate.0.max(1.0), bounds.rate.1.min(1e12));
            to.overhead = ByteCount::new(overhead as u64);
            to.rate = Bitrate::from_bits_per_second(bits.round() as u64);
            to.queue = with_limit(from.queue, from.queue.limit(), to.overhead);
        }
        (to != from).then_some(to)
    }

    /// Mean loss of a candidate over the runs.
    pub(super) fn loss(&self, candidate: OutputCandidate) -> f64 {
        let model = with_output(self.model.clone(), candidate, self.lone, self.family);
        let losses = self.runs.iter().map(|run| self.loss_of(run, &model));
        losses.sum::<f64>() / self.runs.len() as f64
    }

    fn loss_of(&self, run: &ReplayedRun, model: &DeviceModel) -> f64 {
        let predicted = DelayFigures::new(replay(&run.packets, model), run.count);
        let measured = &run.measured;
        let distance =
            kolmogorov_smirnov(&measured.delays, &predicted.delays, self.resolution).min(1.0);
        let difference = predicted.p95.abs_diff(measured.p95);
        let error = if difference <= self.resolution {
            0.0
        } else {
            difference.as_secs_f64() / measured.p95.as_secs_f64().max(1e-9)
        };
        let lost = (predicted.loss_ratio - measured.loss_ratio).abs();
        distance + error / (1.0 + error) + lost
    }
}

/// Axis of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchAxis {
    /// Time of the smallest packet on the line.
    SmallPacket,
    /// Time of the largest packet on the line.
    LargePacket,
    /// Limit of the queue.
    Limit,
}

impl SearchAxis {
    const ALL: [SearchAxis; 3] = [
        SearchAxis::LargePacket,
        SearchAxis::SmallPacket,
        SearchAxis::Limit,
    ];
}

/// A limit in the unit of `queue` that lets the largest packet in.
pub(super) fn with_limit(
    queue: DeviceQueueLimit,
    limit: u64,
    overhead: ByteCount,
) -> DeviceQueueLimit {
    let limit = limit.max(queue.cost(FULL_PACKET + overhead.bytes()));
    match queue {
        DeviceQueueLimit::Bytes(_) => DeviceQueueLimit::Bytes(ByteCount::new(limit)),
        DeviceQueueLimit::Packets(_) => DeviceQueueLimit::Packets(limit),
        DeviceQueueLimit::Slots { slot, .. } => DeviceQueueLimit::Slots { count: limit, slot },
    }
}

fn replayed_run(
    records: &[PacketRecord],
    model: &DeviceModel,
    options: &FitOptions,
) -> Option<ReplayedRun> {
    let mut sent: Vec<&PacketRecord> = records
        .iter()
        .filter(|record| !matches!(record.fate, PacketFate::LostAtPort | PacketFate::Duplicated))
        .collect();
    sent.sort_by_key(|record| (record.sent, record.sequence));
    sent.truncate(PACKETS_MAX);
    let delays: Vec<Duration> = sent
        .iter()
        .filter_map(|record| Some(record.delay()?.saturating_sub(options.cable_delay)))
        .collect();
    if delays.is_empty() {
        return None;
    }
    let ends = forwarding_ends(&sent, model, InputDrops::AsModelled);
    let count = sent.len();
    let packets = sent
        .into_iter()
        .zip(ends)
        .filter_map(|(record, served)| {
            Some(ReplayedPacket {
                sent: record.sent,
                served: served?,
                size: record.size,
                output: record.output,
            })
        })
        .collect();
    Some(ReplayedRun {
        packets,
        count,
        measured: DelayFigures::new(delays, count),
    })
}

/// An output at work.
#[derive(Debug, Default)]
struct ReplayedOutput {
    last_arrival: Time,
    free_from: Time,
    content: u64,
    /// Departure and cost of the packets in the queue and on the line, oldest first.
    queued: VecDeque<(Time, u64)>,
}

/// Delays of the packets that the outputs do not drop.
fn replay(packets: &[ReplayedPacket], model: &DeviceModel) -> Vec<Duration> {
    let mut outputs: BTreeMap<u16, ReplayedOutput> = BTreeMap::new();
    let mut delays = Vec::with_capacity(packets.len());
    let queue = model.output.queue;
    // Most runs have packets of one size.
    let mut known: Option<(u32, PacketTimes)> = None;
    for packet in packets {
        let times = match known {
            Some((size, times)) if size == packet.size => times,
            _ => PacketTimes::of(packet, model),
        };
        known = Some((packet.size, times));
        let output = outputs.entry(packet.output).or_default();
        let at = (packet.served + times.fixed).max(output.last_arrival);
        output.last_arrival = at;
        while let Some((left, cost)) = output.queued.front().copied()
            && left <= at
        {
            output.queued.pop_front();
            output.content -= cost;
        }
        if output.content + times.cost > queue.limit() {
            continue;
        }
        let left = at.max(output.free_from) + times.line;
        output.free_from = left;
        output.content += times.cost;
        output.queued.push_back((left, times.cost));
        delays.push(left.since(packet.sent));
    }
    delays
}

/// Times and cost of packets of one size.
#[derive(Clone, Copy, Debug)]
struct PacketTimes {
    fixed: Duration,
    line: Duration,
    cost: u64,
}

impl PacketTimes {
    fn of(packet: &ReplayedPacket, model: &DeviceModel) -> Self {
        let size = u64::from(packet.size);
        let counted = size + model.output.overhead.bytes();
        Self {
            fixed: model.fixed_delay(packet.output, size),
            line: model.output.serialisation(size),
            cost: model.output.queue.cost(counted),
        }
    }
}
