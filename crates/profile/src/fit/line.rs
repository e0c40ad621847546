//! Rate and overhead of an output, from the distances of packets that leave it under overload.
//!
//! While the line is busy, packets of one size follow each other at their serialisation time,
//! which is a straight line over the sizes: its slope is the rate, its intercept the overhead.
//! Where the shared servers are slower than the line, packets follow each other at the pace of the
//! servers. Several servers then finish together, and the packets that they finish are one
//! serialisation time apart; behind a single server the line is not seen.

use std::collections::BTreeMap;
use std::time::Duration;

use vocab::{Bitrate, ByteCount, SharedServers, Time};

use super::search::FREE_OVERHEAD_MAX;
use super::transit::LoneTransit;
use super::{FitOptions, FittedParameter, ModelFamily, ParameterKind};
use crate::record::{MeasuredRun, PacketFate, PacketRecord};

/// Share by which the distances exceed the pace of the servers where the line is the bottleneck.
const SLOWER_THAN_SERVERS: f64 = 1.02;
/// Factor by which the distances exceed those of our own ports where the line is the bottleneck.
const SLOWER_THAN_PORTS: f64 = 1.02;
/// Times of the resolution by which a packet that waited exceeds the transit of a lone one.
const NOISE_MARGIN: u32 = 2;
/// Packets in a row that a distance is computed from, at least.
const PACKETS_LEAST: usize = 3;
/// Share of the distances that lie below the serialisation time, by noise.
const LOW_SHARE: f64 = 0.02;
/// Distance of the overhead from a whole number of bytes, up to which it is that number.
const WHOLE_BYTES: f64 = 0.3;
/// Overhead that a line has at most; the largest known is that of ATM cells with a tunnel.
const OVERHEAD_MAX: f64 = 256.0;
/// Times of the resolution below which a distance is hidden by the noise, so that packets that waited are
/// not told from others by their delay.
const HIDDEN_RESOLUTIONS: f64 = 4.0;
/// Pairs of packets with a drop between them that show that a whole run was an overload.
const DROPS_LEAST: usize = 200;
/// Times of the median sending distance that make a pause in which a short queue drains.
const SHORT_PAUSE: f64 = 8.0;
/// Share of the distances at either end that may differ from the others at a line.
const EVEN_SHARE: f64 = 0.05;
/// Spread of the other distances, as a share of them, and in ns by rounding.
const EVEN_SPREAD: f64 = 0.05;
const LEAST_SPREAD: f64 = 2.0;
/// Smallest error of a distance, ns: stamps are whole nanoseconds.
const LEAST_ERROR: f64 = 0.01;
/// Standard errors in half an interval: 95 %.
const STANDARD_ERRORS: f64 = 1.96;

/// The fitted line.
#[derive(Clone, Copy, Debug)]
pub(super) struct FittedLine {
    pub(super) rate: Bitrate,
    pub(super) overhead: ByteCount,
}

/// A packet that left: when it left and was sent, the number of packets that were dropped before it, and the
/// longest pause of the sender since the one that left before.
type LeftPacket = (Time, Time, u64, Duration);

/// Serialisation time of one size.
#[derive(Clone, Copy, Debug)]
struct SizeDistance {
    size: f64,
    /// In ns.
    distance: f64,
    /// Standard error, in ns.
    error: f64,
}

pub(super) fn fit(
    overloads: &[&MeasuredRun],
    (transit, servers): (&LoneTransit, Option<&SharedServers>),
    options: &FitOptions,
    parameters: &mut Vec<FittedParameter>,
) -> Option<FittedLine> {
    let distances = serialisation_times(overloads, (transit, servers), options);
    // A baseline's overhead stands for all that a packet costs whatever its size.
    let overhead_max = match options.family {
        ModelFamily::Full => OVERHEAD_MAX,
        ModelFamily::SingleQueue | ModelFamily::FluidQueue => FREE_OVERHEAD_MAX,
    };
    let line = fit_distances(distances, overhead_max, parameters);
    if line.is_none() {
        let (reason, remedy) = if overloads.is_empty() {
            (
                "no experiment has purpose = \"overload\"",
                "add one with for_each_size of two sizes or more, and bursts to a single output",
            )
        } else {
            (
                "the output is not the bottleneck of any size: the shared servers, or our own \
                 ports, are slower",
                "overload one output from more ports (from = [1, 2, 3], to = [0]), with larger \
                 packets and a shorter gap",
            )
        };
        for kind in [ParameterKind::OutputRate, ParameterKind::OutputOverhead] {
            let bounds = (0.0, f64::INFINITY);
            parameters.push(FittedParameter::unidentified(
                kind,
                bounds,
                reason,
                Some(remedy),
            ));
        }
    }
    line
}

/// Rate and overhead of a policer. Its bucket is empty at each drop, so what passes between the first and
/// the last drop of a run is the rate, also where the traffic pauses meanwhile: a pause fills the bucket,
/// and does not pass by as it does at a line.
pub(super) fn of_policer(
    overloads: &[&MeasuredRun],
    options: &FitOptions,
    parameters: &mut Vec<FittedParameter>,
) -> Option<FittedLine> {
    let distances = records_by_size(overloads)
        .into_iter()
        .filter_map(|(size, runs)| {
            let (mut span, mut packets) = (0.0, 0.0_f64);
            for records in runs {
                let mut lost = records
                    .iter()
                    .filter(|record| record.fate == PacketFate::Lost)
                    .map(|record| record.sent);
                let Some((first, last)) = lost.next().zip(lost.next_back()) else {
                    continue;
                };
                span += nanoseconds(last.since(first));
                packets += records
                    .iter()
                    .filter(|record| record.fate.is_forwarded())
                    .filter(|record| (first..=last).contains(&record.sent))
                    .count() as f64;
            }
            (packets >= PACKETS_LEAST as f64).then(|| SizeDistance {
                size: f64::from(size),
                distance: span / packets,
                error: (nanoseconds(options.resolution) / packets).max(LEAST_ERROR),
            })
        })
        .collect();
    let mut found = Vec::new();
    let line = fit_distances(distances, OVERHEAD_MAX, &mut found)?;
    parameters.retain(|parameter| found.iter().all(|other| other.kind != parameter.kind));
    parameters.append(&mut found);
    Some(line)
}

/// The straight line over the sizes, with its parameters; `None` if no line goes through them.
fn fit_distances(
    distances: Vec<SizeDistance>,
    overhead_max: f64,
    parameters: &mut Vec<FittedParameter>,
) -> Option<FittedLine> {
    let distances = without_outliers(distances);
    let (intercept, slope, slope_error) = straight_line(&distances)?;
    let found = intercept / slope;
    let mut overhead = found.clamp(0.0, overhead_max);
    let has_overhead = distances.len() > 1;
    if (overhead - overhead.round()).abs() <= WHOLE_BYTES {
        overhead = overhead.round();
    }
    let bare_slope = slope;
    // With the overhead known, all sizes tell the slope.
    let slope = slope_through(&distances, overhead);
    let bits_per_nanosecond = 8.0 / slope;
    let rate = Bitrate::from_bits_per_second((bits_per_nanosecond * 1e9).round() as u64);
    let rate_value = rate.bits_per_second() as f64;
    let share = STANDARD_ERRORS * slope_error / slope;
    let interval = (rate_value * (1.0 - share), rate_value * (1.0 + share));
    if !has_overhead {
        // The same time fits a faster line whose packets have an overhead.
        let most = 1.0 + overhead_max / distances[0].size;
        parameters.push(FittedParameter::identified(
            ParameterKind::OutputRate,
            rate_value,
            (interval.0, interval.1 * most),
        ));
        parameters.push(FittedParameter::unidentified(
            ParameterKind::OutputOverhead,
            (0.0, OVERHEAD_MAX),
            "the output is the bottleneck of a single size",
            Some("overload the output with a second size: add one to for_each_size"),
        ));
    } else {
        let mean_size =
            distances.iter().map(|entry| entry.size).sum::<f64>() / distances.len() as f64;
        let spread = (share * (mean_size + overhead)).max(WHOLE_BYTES);
        let bounds = ((overhead - spread).max(0.0), overhead + spread);
        if found > overhead_max + spread {
            let reason = format!(
                "each packet takes the time of {found:.0} bytes beside its own, which is more than any \
                 line adds: packets, and not bits, limit the output"
            );
            let rate = (
                0.0,
                8e9 / slope_error.mul_add(-STANDARD_ERRORS, bare_slope).max(1e-9),
            );
            for (kind, bounds) in [
                (ParameterKind::OutputRate, rate),
                (ParameterKind::OutputOverhead, (0.0, found + spread)),
            ] {
                parameters.push(FittedParameter::unidentified(kind, bounds, &reason, None));
            }
        } else {
            parameters.push(FittedParameter::identified(
                ParameterKind::OutputRate,
                rate_value,
                interval,
            ));
            if found < -spread.max(1.0) {
                parameters.push(FittedParameter::unidentified(
                    ParameterKind::OutputOverhead,
                    (0.0, overhead_max),
                    "small packets take less time on the line than their bytes need, so the sizes are \
                     on no straight line",
                    None,
                ));
            } else {
                parameters.push(FittedParameter::identified(
                    ParameterKind::OutputOverhead,
                    overhead,
                    bounds,
                ));
            }
        }
    }
    Some(FittedLine {
        rate,
        overhead: ByteCount::new(overhead.round() as u64),
    })
}

fn serialisation_times(
    overloads: &[&MeasuredRun],
    parts: (&LoneTransit, Option<&SharedServers>),
    options: &FitOptions,
) -> Vec<SizeDistance> {
    records_by_size(overloads)
        .into_iter()
        .filter_map(|(size, runs)| serialisation_time(size, &runs, parts, options))
        .collect()
}

/// Records of the runs with packets of a single size, apart for each output of each run: every output has
/// a line of its own.
fn records_by_size(overloads: &[&MeasuredRun]) -> BTreeMap<u32, Vec<Vec<PacketRecord>>> {
    let mut by_size: BTreeMap<u32, Vec<Vec<PacketRecord>>> = BTreeMap::new();
    for run in overloads {
        if let Some(size) = only_size(&run.records) {
            let outputs = by_size.entry(size).or_default();
            outputs.extend(records_by_output(&run.records));
        }
    }
    by_size
}

/// The records of each output, in their order.
pub(super) fn records_by_output(records: &[PacketRecord]) -> Vec<Vec<PacketRecord>> {
    let mut by_output: BTreeMap<u16, Vec<PacketRecord>> = BTreeMap::new();
    for record in records {
        by_output.entry(record.output).or_default().push(*record);
    }
    by_output.into_values().collect()
}

fn serialisation_time(
    size: u32,
    runs: &[Vec<PacketRecord>],
    (transit, servers): (&LoneTransit, Option<&SharedServers>),
    options: &FitOptions,
) -> Option<SizeDistance> {
    let resolution = nanoseconds(options.resolution);
    let mut distances = Vec::new();
    let (mut span, mut packets) = (0.0, 0.0_f64);
    let mut are_sure = true;
    for records in runs {
        // Noise makes a packet seem to wait that finds the output idle.
        let waiting = transit.least.at(u64::from(size)) + NOISE_MARGIN * options.resolution;
        let (own, are_own_sure) = busy_distances(records, waiting, options.resolution);
        are_sure &= are_own_sure;
        let own_span: f64 = own.iter().sum();
        let own_packets = own.len() as f64;
        // Packets leave in batches where a machine is busy, so only the mean of many is a distance. A batch
        // that drains faster than the packets came shows nothing of a line, which sends at one pace.
        let drains_faster =
            || own_span / own_packets < SLOWER_THAN_PORTS * sending_distance(records);
        if own.is_empty() || !is_even(&own, resolution) && drains_faster() {
            continue;
        }
        span += own_span;
        packets += own_packets;
        distances.extend(own);
    }
    if packets < 2.0 {
        return None;
    }
    let mean = span / packets;
    let pace = servers.map_or(0.0, |servers| {
        nanoseconds(servers.service.at(u64::from(size))) / f64::from(servers.count)
    });
    let (distance, error) = if mean > pace * SLOWER_THAN_SERVERS {
        (mean, resolution / packets)
    } else if servers.is_some_and(|servers| servers.count > 1) {
        (quantile(&distances, LOW_SHARE), resolution)
    } else {
        return None;
    };
    // The noise of a single stamp does not hide the mean of many distances, if the output was busy.
    let least = if are_sure { error } else { resolution };
    (distance > least).then_some(SizeDistance {
        size: f64::from(size),
        distance,
        error: error.max(LEAST_ERROR),
    })
}

/// Tells whether nearly all distances are the same: a line sends packets of one size at one pace, and a
/// machine that is busy does not.
fn is_even(distances: &[f64], resolution: f64) -> bool {
    let (low, high) = (
        quantile(distances, EVEN_SHARE),
        quantile(distances, 1.0 - EVEN_SHARE),
    );
    // Each of two stamps has its noise.
    high - low <= (EVEN_SPREAD * low).max(LEAST_SPREAD) && 2.0 * resolution <= EVEN_SPREAD * low
}

/// Distances in ns of packets that left an output that was busy between them, behind the part of the
/// run in which a token bucket lets packets pass at once. `waiting` is a delay that only packets have
/// that waited.
///
/// The output was busy if the later packet had come, with time to pass alone, before the earlier one
/// left; or if a packet was dropped between the two. A pause of the traffic is no distance. Where the noise
/// hides the distances, a delay shows nothing; then all distances without a pause of the sender are taken
/// from a run in which many packets were dropped. The flag is set if the noise did not choose.
fn busy_distances(
    records: &[PacketRecord],
    waiting: Duration,
    resolution: Duration,
) -> (Vec<f64>, bool) {
    let mut lost = 0_u64;
    let mut previous = None;
    let mut longest_gap = Duration::ZERO;
    let mut left = Vec::new();
    for record in records {
        let gap = previous.map_or(Duration::ZERO, |previous| record.sent.since(previous));
        longest_gap = longest_gap.max(gap);
        previous = Some(record.sent);
        match record.received {
            Some(received) if record.fate.is_forwarded() => {
                left.push((received, record.sent, lost, longest_gap));
                longest_gap = Duration::ZERO;
            }
            Some(_) | None => lost += u64::from(record.fate == PacketFate::Lost),
        }
    }
    if left.len() < PACKETS_LEAST {
        return (Vec::new(), false);
    }
    left.sort_unstable();
    // A bucket is empty once packets are dropped. Where few packets follow the first drop, the second
    // half of the run shows the rate.
    let first_loss = left.partition_point(|(_, _, lost, _)| *lost == 0);
    let half = left.len() / 2;
    let start = if 3 * (left.len() - first_loss) >= left.len() {
        first_loss
    } else {
        half
    };
    let start = if left.len() - start >= PACKETS_LEAST {
        start
    } else {
        0
    };
    let left = &left[start..];
    let distances = |is_chosen: &dyn Fn(&[LeftPacket]) -> bool| -> Vec<f64> {
        left.windows(2)
            .filter(|pair| is_chosen(pair))
            .map(|pair| nanoseconds(pair[1].0.since(pair[0].0)))
            .collect()
    };
    let all = distances(&|pair| pair[0].0 >= pair[1].1 + waiting || pair[0].2 != pair[1].2);
    let drops = left
        .windows(2)
        .filter(|pair| pair[0].2 != pair[1].2)
        .count();
    let hidden = HIDDEN_RESOLUTIONS * nanoseconds(resolution) * all.len() as f64;
    if all.iter().sum::<f64>() < hidden && drops >= DROPS_LEAST {
        // Late packets of a whole stretch add up to the right time, so only pauses are left out.
        let pause = SHORT_PAUSE * median_sending_distance(records);
        let busy = distances(&|pair| nanoseconds(pair[1].3) <= pause);
        return (busy, true);
    }
    (all, false)
}

/// Median distance in ns at which our own ports sent packets.
fn median_sending_distance(records: &[PacketRecord]) -> f64 {
    quantile(&sending_distances(records), 0.5)
}

/// Mean distance in ns at which our own ports sent packets, without pauses.
fn sending_distance(records: &[PacketRecord]) -> f64 {
    /// Times of the median distance that make a distance a pause.
    const PAUSE: f64 = 20.0;
    let mut distances = sending_distances(records);
    let pause = PAUSE * quantile(&distances, 0.5);
    distances.retain(|distance| *distance <= pause);
    distances.iter().sum::<f64>() / (distances.len() as f64).max(1.0)
}

fn sending_distances(records: &[PacketRecord]) -> Vec<f64> {
    let mut sent: Vec<_> = records.iter().map(|record| record.sent).collect();
    sent.sort_unstable();
    sent.windows(2)
        .map(|pair| nanoseconds(pair[1].since(pair[0])))
        .collect()
}

/// The size of all packets; `None` for a mix.
pub(super) fn only_size(records: &[PacketRecord]) -> Option<u32> {
    let first = records.first()?.size;
    records
        .iter()
        .all(|record| record.size == first)
        .then_some(first)
}

/// The sizes without those far from the line of the others: the output was idle in a part of their runs.
fn without_outliers(points: Vec<SizeDistance>) -> Vec<SizeDistance> {
    /// Sizes of which most can outvote one.
    const SIZES_LEAST: usize = 4;
    /// Times of the median residual that make an outlier, and a share that makes none.
    const OUTLIER: f64 = 4.0;
    const EQUAL: f64 = 1e-6;
    if points.len() < SIZES_LEAST {
        return points;
    }
    // The median of the slopes of all pairs (Theil and Sen) does not follow single sizes.
    let slopes: Vec<f64> = (0..points.len())
        .flat_map(|first| (0..first).map(move |second| (first, second)))
        .map(|(first, second)| {
            let (one, other) = (&points[first], &points[second]);
            (one.distance - other.distance) / (one.size - other.size)
        })
        .collect();
    let slope = quantile(&slopes, 0.5);
    let intercepts: Vec<f64> = points
        .iter()
        .map(|point| point.distance - slope * point.size)
        .collect();
    let intercept = quantile(&intercepts, 0.5);
    let residual = |point: &SizeDistance| {
        (point.distance - intercept - slope * point.size).abs() / point.distance
    };
    let residuals: Vec<f64> = points.iter().map(residual).collect();
    let most = OUTLIER * quantile(&residuals, 0.5) + EQUAL;
    points
        .into_iter()
        .filter(|point| residual(point) <= most)
        .collect()
}

/// Weighted least squares: intercept, slope, and the standard error of the slope.
fn straight_line(points: &[SizeDistance]) -> Option<(f64, f64, f64)> {
    if let [only] = points {
        let slope = only.distance / only.size;
        return Some((0.0, slope, only.error / only.size));
    }
    let weight = |point: &SizeDistance| 1.0 / (point.error * point.error);
    let sum = |value: &dyn Fn(&SizeDistance) -> f64| -> f64 {
        points
            .iter()
            .map(|point| weight(point) * value(point))
            .sum()
    };
    let total = sum(&|_| 1.0);
    let mean_size = sum(&|point| point.size) / total;
    let mean_distance = sum(&|point| point.distance) / total;
    let spread = sum(&|point| (point.size - mean_size) * (point.size - mean_size));
    if points.is_empty() || spread <= 0.0 {
        return None;
    }
    let slope = sum(&|point| (point.size - mean_size) * (point.distance - mean_distance)) / spread;
    let intercept = mean_distance - slope * mean_size;
    let residuals = sum(&|point| {
        let residual = point.distance - intercept - slope * point.size;
        residual * residual
    });
    // Where the points scatter more than their errors say, the scatter is the error.
    let scatter = (residuals / (points.len() as f64 - 2.0).max(1.0)).max(1.0);
    let error = libm::sqrt(scatter / spread);
    (slope > 0.0).then_some((intercept, slope, error))
}

/// The slope of the line with this overhead.
fn slope_through(points: &[SizeDistance], overhead: f64) -> f64 {
    let (mut products, mut squares) = (0.0, 0.0);
    for point in points {
        let weight = 1.0 / (point.error * point.error);
        let counted = point.size + overhead;
        products += weight * counted * point.distance;
        squares += weight * counted * counted;
    }
    products / squares
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let index = ((sorted.len().saturating_sub(1)) as f64 * share) as usize;
    sorted.get(index).copied().unwrap_or(0.0)
}

fn nanoseconds(span: Duration) -> f64 {
    span.as_nanos() as f64
}

#[cfg(test)]
mod tests;
