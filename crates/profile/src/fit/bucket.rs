//! Token buckets: a shaper or a policer, where lone packets pass faster than the line's rate allows.
//!
//! A line needs its serialisation time for a lone packet as well. If the transit is shorter than
//! the distance of packets under overload, the rate is that of a bucket. Packets wait for the
//! tokens of a shaper; a policer drops them instead, and those that pass take the transit alone.

use std::time::Duration;

use vocab::{ByteCount, DeviceModel, PolicerModel};

use super::line::{FittedLine, only_size};
use super::{FitOptions, FittedParameter, ParameterKind};
use crate::record::MeasuredRun;

/// Share of the distance under overload below which the rest of the transit shows a bucket.
const FASTER_THAN_LINE: f64 = 0.9;
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
    Policer(PolicerModel),
}

/// Decides what limits the rate of `line`; `model` has transit and servers.
pub(super) fn fit(
    overloads: &[&MeasuredRun],
    line: FittedLine,
    model: &DeviceModel,
    options: &FitOptions,
    parameters: &mut Vec<FittedParameter>,
) -> LineKind {
    let overhead = line.overhead.bytes();
    let is_bucket = model.transit.points().iter().all(|point| {
        let size = point.size.bytes();
        let distance = line.rate.time_for(ByteCount::new(size + overhead));
        let rest = point.time.saturating_sub(model.service_time(size));
        nanoseconds(rest) < FASTER_THAN_LINE * nanoseconds(distance)
    });
    if !is_bucket {
        return LineKind::Line;
    }
    let bursts: Vec<BucketSight> = overloads
        .iter()
        .filter_map(|run| sight(run, line, model, options))
        .collect();
    let Some(burst) = bursts
        .iter()
        .map(|sight| sight.burst)
        .max_by(f64::total_cmp)
    else {
        return LineKind::Line;
    };
    let least = BURST_LEAST + overhead as f64;
    let width = bursts
        .iter()
        .map(|sight| sight.packet)
        .min_by(f64::total_cmp)
        .unwrap_or(least);
    let burst_bytes = ByteCount::new(burst.max(least).round() as u64);
    parameters.push(FittedParameter::identified(
        ParameterKind::PolicerBurst,
        burst,
        (burst - width, burst + width),
    ));
    if bursts.iter().any(|sight| sight.waits) {
        return LineKind::Shaper { burst: burst_bytes };
    }
    parameters.push(FittedParameter::identified(
        ParameterKind::PolicerRate,
        line.rate.bits_per_second() as f64,
        parameters
            .iter()
            .find(|parameter| parameter.kind == ParameterKind::OutputRate)
            .map_or((0.0, f64::INFINITY), |rate| (rate.low, rate.high)),
    ));
    LineKind::Policer(PolicerModel {
        rate: line.rate,
        burst: burst_bytes,
    })
}

/// The bucket as the start of a run shows it.
#[derive(Clone, Copy, Debug)]
struct BucketSight {
    /// Bytes that passed at once, less the tokens that came meanwhile.
    burst: f64,
    /// Bytes of a packet.
    packet: f64,
    /// Set if packets waited.
    waits: bool,
}

fn sight(
    run: &MeasuredRun,
    line: FittedLine,
    model: &DeviceModel,
    options: &FitOptions,
) -> Option<BucketSight> {
    let size = u64::from(only_size(&run.records)?);
    let packet = (size + line.overhead.bytes()) as f64;
    let distance = nanoseconds(
        line.rate
            .time_for(ByteCount::new(size + line.overhead.bytes())),
    );
    let transit = nanoseconds(model.transit.at(size) + options.cable_delay);
    let service = nanoseconds(model.service_time(size));
    let start = run.records.first()?.sent;
    let mut passed = 0.0;
    let mut last = 0.0;
    let mut waits = false;
    let mut at_once = true;
    let mut previous = None;
    for record in &run.records {
        let Some(delay) = record.delay() else {
            at_once = false;
            continue;
        };
        let received = record.sent + delay;
        // Behind the servers packets come one by one; what counts is the wait for tokens.
        let gap = previous.map_or(0.0, |previous| nanoseconds(received.since(previous)));
        previous = Some(received);
        let excess = nanoseconds(delay) - transit;
        let waits_now = excess > service + 0.5 * distance && gap > 0.5 * distance;
        waits |= waits_now && excess > 3.0 * distance;
        at_once &= !waits_now;
        if at_once {
            passed += packet;
            last = nanoseconds(received.since(start)) - transit;
        }
    }
    let tokens = line.rate.bits_per_second() as f64 / 8e9 * last.max(0.0);
    Some(BucketSight {
        burst: (passed - tokens).max(0.0),
        packet,
        waits,
    })
}

fn nanoseconds(span: Duration) -> f64 {
    span.as_nanos() as f64
}
