//! Number and service time of shared servers, from bursts to as many outputs as packets.
//!
//! The packets of a burst meet only in the servers. Of a burst at one moment, as many packets as
//! there are servers take the transit alone; the next ones take a service time more, and so on.
//! Ports that send one packet after the other spread the burst; so the waiting times are computed
//! from the stamps for each number of servers, and the number that explains the delays best is
//! taken. Noise only adds to a delay, so waiting times follow the lower edge of the delays and not their
//! mean.

use std::collections::BTreeMap;
use std::time::Duration;

use vocab::{ByteCount, SharedServers, SizeTimePoint, SizeTimeTable, Time};

use super::line::{FittedLine, only_size};
use super::occupancy::service_ends;
use super::transit::LoneTransit;
use super::{FitOptions, FittedParameter, ParameterKind};
use crate::plan::TrafficPattern;
use crate::record::MeasuredRun;

/// Times of the resolution by which a waiting time must exceed it to be seen.
const SEEN_RESOLUTIONS: u32 = 2;
/// Halvings of the interval in which the service time is searched.
const SEARCH_STEPS: u32 = 40;

/// Share of the bursts of a size that count: those whose packets wait least.
const USUAL_SHARE: f64 = 0.75;

/// Share of the packets that wait shorter than predicted, by noise: the lower edge of the delays.
const EDGE_SHARE: f64 = 0.2;

/// Share of the servers' pace from which on the outputs may limit a long burst.
const OUTPUT_SHARE: f64 = 0.9;

/// Standard errors in half an interval: 95 %.
const STANDARD_ERRORS: f64 = 1.96;

/// Error in ns of a waiting time by the rounding of the stamps.
const ROUNDING: f64 = 1.0;

/// Packets of a long burst, at least.
const LONG_BURST: usize = 50;

/// A packet of a burst.
#[derive(Clone, Copy, Debug)]
struct BurstPacket {
    sent: Time,
    /// Delay beyond that of a lone packet, in ns; negative by noise.
    excess: f64,
}

/// Packets of bursts, by size.
type BurstsBySize = BTreeMap<u32, Vec<Vec<BurstPacket>>>;

pub(super) fn fit<'a>(
    runs: impl Iterator<Item = &'a MeasuredRun>,
    transit: &LoneTransit,
    options: &FitOptions,
    parameters: &mut Vec<FittedParameter>,
) -> Option<SharedServers> {
    let bursts = bursts_by_size(runs, transit, options);
    let width = bursts.values().flatten().map(Vec::len).max().unwrap_or(0);
    if width < 2 {
        parameters.push(FittedParameter::unidentified(
            ParameterKind::ServerCount,
            (0.0, f64::INFINITY),
            "no burst of two packets or more went to different outputs",
            Some(
                "add an experiment with purpose = \"contention\" whose bursts have a packet for each \
                 output",
            ),
        ));
        return None;
    }
    let seen = f64::from(SEEN_RESOLUTIONS) * nanoseconds(options.resolution);
    if longest_wait(&bursts) <= seen {
        parameters.push(FittedParameter::unidentified(
            ParameterKind::ServerCount,
            (0.0, f64::INFINITY),
            &format!(
                "{width} packets at one moment do not wait for each other: there are at least as \
                 many servers, or a service time below {seen:.0} ns"
            ),
            Some("send longer bursts, to more outputs, with gap = \"0s\""),
        ));
        return None;
    }
    let (count, _) = (1..width)
        .map(|count| (count, total_error(&bursts, count)))
        .min_by(|one, other| one.1.total_cmp(&other.1))?;
    let count = u16::try_from(count).ok()?;
    let resolution = nanoseconds(options.resolution);
    let (low, high) = count_interval(&bursts, usize::from(count), width, seen);
    parameters.push(FittedParameter::identified(
        ParameterKind::ServerCount,
        f64::from(count),
        (low as f64, high as f64),
    ));
    let mut points = Vec::new();
    for (size, bursts) in &bursts {
        let (service, error) = best_service(bursts, usize::from(count));
        parameters.push(FittedParameter::identified(
            ParameterKind::ServiceTime { size: *size },
            service,
            (
                (service - error - resolution).max(0.0),
                service + error + resolution,
            ),
        ));
        points.push(SizeTimePoint {
            size: ByteCount::new(u64::from(*size)),
            time: Duration::from_nanos(service.round() as u64),
        });
    }
    let service = SizeTimeTable::new(points).ok()?;
    Some(SharedServers { count, service })
}

/// Service times from long bursts, in which an error of the stamps counts once for all packets: each
/// packet leaves a service time after the packet that the same server finished before.
///
/// A time is taken only if it agrees with that of the short bursts, and if the outputs of `line` keep up
/// with the servers. Sizes between two long bursts get the time between theirs, if that agrees
/// as well.
pub(super) fn refine<'a>(
    servers: &SharedServers,
    long_bursts: impl Iterator<Item = &'a MeasuredRun>,
    line: Option<FittedLine>,
    parameters: &mut [FittedParameter],
) -> SharedServers {
    let mut points = servers.service.points().to_vec();
    let mut refined = Vec::new();
    for run in long_bursts {
        let Some(size) = only_size(&run.records) else {
            continue;
        };
        let Some(service) = long_service(run, usize::from(servers.count)) else {
            continue;
        };
        if line.is_some_and(|line| outputs_limit(run, line, service / f64::from(servers.count))) {
            continue;
        }
        let short = parameters
            .iter_mut()
            .find(|parameter| parameter.kind == ParameterKind::ServiceTime { size });
        if let Some(parameter) = short
            && (parameter.low..=parameter.high).contains(&service)
            && let Some(point) = points
                .iter_mut()
                .find(|point| point.size.bytes() == u64::from(size))
        {
            parameter.value = service;
            point.time = Duration::from_nanos(service.round() as u64);
            refined.push(*point);
        }
    }
    refined.sort_unstable_by_key(|point| point.size);
    refined.dedup_by_key(|point| point.size);
    if let (Some(first), Some(last)) = (refined.first(), refined.last()) {
        let between = first.size..last.size;
        if let Ok(table) = SizeTimeTable::new(refined) {
            for point in &mut points {
                let size = point.size.bytes();
                let service = nanoseconds(table.at(size));
                let short = parameters.iter_mut().find(|parameter| {
                    parameter.kind
                        == ParameterKind::ServiceTime {
                            size: u32::try_from(size).unwrap_or(u32::MAX),
                        }
                });
                if between.contains(&point.size)
                    && let Some(parameter) = short
                    && (parameter.low..=parameter.high).contains(&service)
                {
                    parameter.value = service;
                    point.time = table.at(size);
                }
            }
        }
    }
    let service = SizeTimeTable::new(points).unwrap_or_else(|_| servers.service.clone());
    SharedServers {
        count: servers.count,
        service,
    }
}

/// Tells whether the outputs of a run need nearly the time in which a packet leaves the servers.
fn outputs_limit(run: &MeasuredRun, line: FittedLine, pace: f64) -> bool {
    let mut outputs: Vec<u16> = run.records.iter().map(|record| record.output).collect();
    outputs.sort_unstable();
    outputs.dedup();
    let size = run.records.first().map_or(0, |record| record.size);
    let counted = ByteCount::new(u64::from(size) + line.overhead.bytes());
    let serialisation = nanoseconds(line.rate.time_for(counted));
    serialisation / outputs.len() as f64 > OUTPUT_SHARE * pace
}

/// Time between packets of one server in the packets of a burst up to the first loss. Packets are late and
/// never early, so it is that of the earliest packets near the start and near the end.
fn long_service(run: &MeasuredRun, count: usize) -> Option<f64> {
    /// Steps after which the earliest packets do not change any more.
    const STEPS: u32 = 8;
    let mut left: Vec<Time> = run
        .records
        .iter()
        .map_while(|record| record.delay().map(|delay| record.sent + delay))
        .collect();
    if left.len() < LONG_BURST + count {
        return None;
    }
    left.sort_unstable();
    let times: Vec<f64> = left
        .iter()
        .map(|at| nanoseconds(at.since(left[0])))
        .collect();
    let third = times.len() / 3;
    let mut pace = times.last()? / (times.len() - 1) as f64;
    for _ in 0..STEPS {
        let earliest = |range: std::ops::Range<usize>| {
            range.min_by(|one, other| {
                let early = |index: usize| times[index] - pace * index as f64;
                early(*one).total_cmp(&early(*other))
            })
        };
        let (first, last) = (
            earliest(0..third)?,
            earliest(times.len() - third..times.len())?,
        );
        pace = (times[last] - times[first]) / (last - first) as f64;
    }
    Some(pace * count as f64)
}

/// Bursts of packets of one size that all arrived at outputs of their own.
fn bursts_by_size<'a>(
    runs: impl Iterator<Item = &'a MeasuredRun>,
    transit: &LoneTransit,
    options: &FitOptions,
) -> BurstsBySize {
    let mut found = BurstsBySize::new();
    for run in runs {
        let [traffic] = run.plan.traffic.as_slice() else {
            continue;
        };
        let TrafficPattern::Bursts {
            packets_per_burst, ..
        } = traffic.pattern
        else {
            continue;
        };
        let burst_of = |sequence: u64| sequence / u64::from(packets_per_burst.max(1));
        for records in run
            .records
            .chunk_by(|one, other| burst_of(one.sequence) == burst_of(other.sequence))
        {
            let mut outputs: Vec<u16> = records.iter().map(|record| record.output).collect();
            outputs.sort_unstable();
            outputs.dedup();
            let size = records[0].size;
            let packets: Vec<BurstPacket> = records
                .iter()
                .filter(|record| record.size == size)
                .filter_map(|record| {
                    let delay = record.delay()?.saturating_sub(options.cable_delay);
                    Some(BurstPacket {
                        sent: record.sent,
                        excess: nanoseconds(delay) - transit.usual(size),
                    })
                })
                .collect();
            if packets.len() == records.len() && outputs.len() == records.len() {
                found.entry(size).or_default().push(packets);
            }
        }
    }
    for bursts in found.values_mut() {
        // The first packet of a burst does not wait. Its usual delay differs from that of a lone packet
        // where a machine wakes up between lone packets.
        let mut firsts: Vec<f64> = bursts
            .iter()
            .filter_map(|burst| Some(burst.first()?.excess))
            .collect();
        firsts.sort_unstable_by(f64::total_cmp);
        let usual = firsts
            .get(rank(firsts.len(), EDGE_SHARE))
            .copied()
            .unwrap_or(0.0);
        for packet in bursts.iter_mut().flatten() {
            packet.excess -= usual;
        }
        // The servers make every burst of a size wait; a burst that waits much longer is late for
        // another reason.
        let waits = longest_waits(bursts);
        if let Some(usual) = waits.get(rank(waits.len(), USUAL_SHARE)).copied() {
            bursts.retain(|burst| longest_of(burst) <= usual);
        }
    }
    found
}

/// Longest wait of a burst, of the size whose packets wait longest: the median over its bursts.
fn longest_wait(bursts: &BurstsBySize) -> f64 {
    bursts
        .values()
        .filter_map(|bursts| {
            let waits = longest_waits(bursts);
            waits.get(rank(waits.len(), 0.5)).copied()
        })
        .fold(0.0, f64::max)
}

/// Longest wait of each burst, sorted.
fn longest_waits(bursts: &[Vec<BurstPacket>]) -> Vec<f64> {
    let mut waits: Vec<f64> = bursts.iter().map(|burst| longest_of(burst)).collect();
    waits.sort_unstable_by(f64::total_cmp);
    waits
}

fn longest_of(burst: &[BurstPacket]) -> f64 {
    burst.iter().map(|packet| packet.excess).fold(0.0, f64::max)
}

/// Index of the smallest of `count` sorted values that this share does not exceed.
fn rank(count: usize, share: f64) -> usize {
    ((count as f64 * share).ceil() as usize).saturating_sub(1)
}

/// Least and greatest count that the bursts do not tell from `best`: 95 % by the standard error of the
/// difference in error of each burst. One burst alone has no spread; it tells a count by a difference that is
/// `seen` in one packet.
fn count_interval(bursts: &BurstsBySize, best: usize, width: usize, seen: f64) -> (usize, usize) {
    let errors = |count: usize| -> Vec<f64> {
        bursts
            .values()
            .flat_map(|bursts| {
                let (service, _) = best_service(bursts, count);
                bursts
                    .iter()
                    .map(move |burst| mean_error(std::slice::from_ref(burst), count, service))
            })
            .collect()
    };
    let of_best = errors(best);
    let is_told = |count: usize| {
        let differences: Vec<f64> = errors(count)
            .iter()
            .zip(&of_best)
            .map(|(error, best)| error - best)
            .collect();
        let number = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / number;
        let squares: f64 = differences
            .iter()
            .map(|difference| (difference - mean) * (difference - mean))
            .sum();
        let error = if number > 1.0 {
            STANDARD_ERRORS * libm::sqrt(squares / (number * (number - 1.0)))
        } else {
            seen
        };
        mean > error.max(ROUNDING)
    };
    let open = || (1..width).filter(|count| *count == best || !is_told(*count));
    (open().min().unwrap_or(best), open().max().unwrap_or(best))
}

fn total_error(bursts: &BurstsBySize, count: usize) -> f64 {
    bursts
        .values()
        .map(|bursts| best_service(bursts, count).1)
        .sum()
}

/// The service time that explains these bursts best with `count` servers, and its mean error, in which a
/// packet that waits longer than predicted counts less than one that waits shorter.
fn best_service(bursts: &[Vec<BurstPacket>], count: usize) -> (f64, f64) {
    let (mut low, mut high) = (0.0, 0.0_f64);
    for burst in bursts {
        let start = burst.first().map_or(Time::ZERO, |packet| packet.sent);
        for packet in burst {
            // A packet that waits begins when the service of an earlier one ends, and no service of the
            // burst began before its start.
            high = high.max(nanoseconds(packet.sent.since(start)) + packet.excess);
        }
    }
    // The waiting time of every packet rises with the service time, so where more than the edge waited
    // shorter than predicted the service time is lower.
    for _ in 0..SEARCH_STEPS {
        let middle = f64::midpoint(low, high);
        if share_below(bursts, count, middle) > EDGE_SHARE {
            high = middle;
        } else {
            low = middle;
        }
    }
    let service = f64::midpoint(low, high);
    (service, mean_error(bursts, count, service))
}

/// Share of the packets that wait in the prediction and waited shorter in truth.
fn share_below(bursts: &[Vec<BurstPacket>], count: usize, service: f64) -> f64 {
    let (mut below, mut waiting) = (0.0, 0.0_f64);
    for_each_wait(bursts, count, service, |predicted, observed| {
        if predicted > 0.0 {
            waiting += 1.0;
            below += f64::from(u8::from(predicted > observed));
        }
    });
    below / waiting.max(1.0)
}

/// Mean error of the waiting times, by the weights of [`EDGE_SHARE`].
fn mean_error(bursts: &[Vec<BurstPacket>], count: usize, service: f64) -> f64 {
    let (mut sum, mut packets) = (0.0, 0.0_f64);
    for_each_wait(bursts, count, service, |predicted, observed| {
        let difference = predicted - observed;
        sum += if difference > 0.0 {
            difference * (1.0 - EDGE_SHARE)
        } else {
            -difference * EDGE_SHARE
        };
        packets += 1.0;
    });
    sum / packets.max(1.0)
}

/// Calls `take` with the predicted and the observed waiting time of each packet.
fn for_each_wait(
    bursts: &[Vec<BurstPacket>],
    count: usize,
    service: f64,
    mut take: impl FnMut(f64, f64),
) {
    for burst in bursts {
        let start = burst.first().map_or(Time::ZERO, |packet| packet.sent);
        let sent = burst
            .iter()
            .map(|packet| (nanoseconds(packet.sent.since(start)), service));
        for (end, packet) in service_ends(sent, count).zip(burst) {
            let wait = end - nanoseconds(packet.sent.since(start)) - service;
            take(wait, packet.excess);
        }
    }
}

fn nanoseconds(span: Duration) -> f64 {
    span.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use vocab::SeededRandom;

    use super::*;

    /// Bursts of eight packets at one moment through `count` servers, with noise of up to `noise` ns.
    fn bursts(count: u64, service: f64, noise: u64, number: usize) -> BurstsBySize {
        let mut random = SeededRandom::from_seed(1);
        let burst = |_| -> Vec<BurstPacket> {
            (0..8_u64)
                .map(|packet| BurstPacket {
                    sent: Time::ZERO,
                    excess: (packet / count) as f64 * service + random.below(noise + 1) as f64,
                })
                .collect()
        };
        let bursts = (0..number).map(burst).collect();
        BurstsBySize::from([(1_000, bursts)])
    }

    fn interval(bursts: &BurstsBySize, seen: f64) -> (usize, usize, usize) {
        let (best, _) = (1..8)
            .map(|count| (count, total_error(bursts, count)))
            .min_by(|one, other| one.1.total_cmp(&other.1))
            .unwrap();
        let (low, high) = count_interval(bursts, best, 8, seen);
        (low, best, high)
    }

    #[test]
    fn interval_of_the_count_is_one_number_where_bursts_tell_it() {
        for count in 1..=4 {
            let found = interval(&bursts(count, 5_000.0, 0, 2), 2.0);
            let count = count as usize;
            assert_eq!(found, (count, count, count));
        }
        assert_eq!(interval(&bursts(2, 5_000.0, 500, 40), 1_000.0), (2, 2, 2));
    }

    #[test]
    fn interval_of_the_count_is_wide_where_noise_hides_it() {
        // The noise is three service times, and the bursts are few.
        for count in 2..=4 {
            let (low, best, high) = interval(&bursts(count, 1_000.0, 3_000, 3), 6_000.0);
            assert!(low < high, "{count}: {low} {best} {high}");
            assert!(
                (low..=high).contains(&(count as usize)),
                "{count}: {low} {best} {high}"
            );
        }
        // A single burst has no spread.
        assert_eq!(interval(&bursts(2, 5_000.0, 0, 1), 100.0), (2, 2, 2));
        let (low, _, high) = interval(&bursts(2, 5_000.0, 0, 1), 10_000.0);
        assert!(low < high, "{low} {high}");
    }
}
