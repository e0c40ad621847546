//! Token buckets: a shaper or a policer, where lone packets pass faster than the line's rate allows.
//!
//! A line needs its serialisation time for a lone packet as well. If the transit is shorter than
//! the distance of packets under overload, the rate is that of a bucket. Packets wait for the
//! tokens of a shaper; a policer drops them instead, and those that pass take the transit alone.

use std::time::Duration;

use vocab::{ByteCount, DeviceModel, PolicerModel};

use super::line::{self, FittedLine, only_size, records_by_output};
use super::{FitOptions, FittedParameter, ParameterKind};
use crate::record::{MeasuredRun, PacketRecord};

/// Share of the distance under overload below which the rest of the transit shows a bucket.
const FASTER_THAN_LINE: f64 = 0.9;
/// Packets in a row that wait where the bucket is empty: a single one is late for other reasons.
const WAITING_IN_ROW: u32 = 2;
/// Share of the packets that wait for the tokens of a shaper, at least. Behind a policer single packets
/// are late for other reasons.
const WAITING_SHARE: f64 = 0.1;
/// Smallest bucket that a model holds: a packet of 1500 bytes.
const BURST_LEAST: f64 = 1500.0;

/// Model of the line.
#[derive(Clone, Copy, Debug)]
pub(super) enum LineKind {
    /// It sends bit by bit.
    Line,
    /// A token bucket whose packets wait.
    Shaper {
        /// Size of the bucket.
        burst: ByteCount,
    },
    /// A token bucket that drops packets.
    Policer {
        /// Its rate and bucket.
        policer: PolicerModel,
        /// Bytes that a packet costs beside its own.
        overhead: ByteCount,
    },
}

/// Decides what limits the rate of `line`; `model` has transit and servers.
pub(super) fn fit(
    overloads: &[&MeasuredRun],
    line: FittedLine,
    model: &DeviceModel,
    options: &FitOptions,
    parameters: &mut Vec<FittedParameter>,
) -> LineKind {
    let is_bucket = model.transit.points().iter().all(|point| {
        let size = point.size.bytes();
        let distance = line
            .rate
            .time_for(ByteCount::new(size + line.overhead.bytes()));
        let rest = point.time.saturating_sub(model.service_time(size));
        nanoseconds(rest) < FASTER_THAN_LINE * nanoseconds(distance)
    });
    if !is_bucket {
        return LineKind::Line;
    }
    let bursts = sights(overloads, line, model, options);
    if bursts.is_empty() {
        return LineKind::Line;
    }
    if bursts.iter().any(|sight| sight.waits) {
        let burst = bucket_size(&bursts, line, ParameterKind::ShaperBurst, parameters);
        return LineKind::Shaper { burst };
    }
    let line = line::of_policer(overloads, options, parameters).unwrap_or(line);
    let bursts = sights(overloads, line, model, options);
    let burst = bucket_size(&bursts, line, ParameterKind::PolicerBurst, parameters);
    parameters.push(FittedParameter::identified(
        ParameterKind::PolicerRate,
        line.rate.bits_per_second() as f64,
        parameters
            .iter()
            .find(|parameter| parameter.kind == ParameterKind::OutputRate)
            .map_or((0.0, f64::INFINITY), |rate| (rate.low, rate.high)),
    ));
    LineKind::Policer {
        policer: PolicerModel {
            rate: line.rate,
            burst,
        },
        overhead: line.overhead,
    }
}

fn sights(
    overloads: &[&MeasuredRun],
    line: FittedLine,
    model: &DeviceModel,
    options: &FitOptions,
) -> Vec<BucketSight> {
    overloads
        .iter()
        .filter(|run| only_size(&run.records).is_some())
        .flat_map(|run| records_by_output(&run.records))
        .filter_map(|records| sight(&records, line, model, options))
        .collect()
}

/// The bucket that half of the runs exceed: a pause of the machine makes it larger or smaller in some.
fn bucket_size(
    bursts: &[BucketSight],
    line: FittedLine,
    kind: ParameterKind,
    parameters: &mut Vec<FittedParameter>,
) -> ByteCount {
    let least = BURST_LEAST + line.overhead.bytes() as f64;
    let mut sizes: Vec<f64> = bursts.iter().map(|sight| sight.burst).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    let burst = sizes.get(sizes.len() / 2).copied().unwrap_or(least);
    let width = bursts
        .iter()
        .map(|sight| sight.packet)
        .max_by(f64::total_cmp)
        .unwrap_or(least);
    parameters.push(FittedParameter::identified(
        kind,
        burst,
        (burst - width, burst + width),
    ));
    ByteCount::new(burst.max(least).round() as u64)
}

/// The bucket as the start of a run shows it.
#[derive(Clone, Copy, Debug)]
struct BucketSight {
    /// Bytes that passed at once, less the tokens that came meanwhile.
    burst: f64,
    /// Bytes of a packet.
    packet: f64,
    /// Set if many packets waited.
    waits: bool,
}

fn sight(
    records: &[PacketRecord],
    line: FittedLine,
    model: &DeviceModel,
    options: &FitOptions,
) -> Option<BucketSight> {
    let size = u64::from(only_size(records)?);
    let packet = (size + line.overhead.bytes()) as f64;
    let distance = nanoseconds(
        line.rate
            .time_for(ByteCount::new(size + line.overhead.bytes())),
    );
    let transit = nanoseconds(model.transit.at(size) + options.cable_delay);
    let service = nanoseconds(model.service_time(size));
    let start = records.first()?.sent;
    let mut passed = 0.0;
    let mut last = 0.0;
    let (mut arrived, mut waiting) = (0.0_f64, 0.0_f64);
    let mut waiting_in_row = 0_u32;
    let mut at_once = true;
    let mut previous = None;
    for record in records {
        let Some(delay) = record.delay() else {
            at_once = false;
            continue;
        };
        let received = record.sent + delay;
        // Behind the servers packets come one by one; what counts is the wait for tokens.
        let gap = previous.map_or(0.0, |previous| nanoseconds(received.since(previous)));
        previous = Some(received);
        let excess = nanoseconds(delay) - transit;
        arrived += 1.0;
        if excess > service + 0.5 * distance && gap > 0.5 * distance {
            waiting += 1.0;
            waiting_in_row += 1;
            at_once &= waiting_in_row < WAITING_IN_ROW;
        } else {
            if at_once {
                passed += packet * f64::from(1 + waiting_in_row);
                last = nanoseconds(received.since(start)) - transit;
            }
            waiting_in_row = 0;
        }
    }
    let tokens = line.rate.bits_per_second() as f64 / 8e9 * last.max(0.0);
    Some(BucketSight {
        burst: (passed - tokens).max(0.0),
        packet,
        waits: waiting > WAITING_SHARE * arrived,
    })
}

fn nanoseconds(span: Duration) -> f64 {
    span.as_nanos() as f64
}
