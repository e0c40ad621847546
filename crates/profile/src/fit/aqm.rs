//! Active queue management, from drops that no full queue explains.
//!
//! CoDel (RFC 8289) drops as packets are taken out, at times that follow from one number:
//!
//! ```text
//!   wait reaches     first drop        second       third
//!   the target ──────────┼──────────────┼─────────┼───────┼──►
//!             interval       interval    interval  interval
//!                            ÷ √1        ÷ √2      ÷ √3
//! ```
//!
//! So the drops of a run tell the interval and that it is CoDel, and the wait of the packets that were taken
//! out an interval before the first drop tells the target. A packet that is dropped at the head is taken out as the
//! packet before it has left the line.
//!
//! PIE and RED drop at random. Under a load that does not react, both hold the queue at one length, so they
//! are not told apart by runs of one load: the wait is reported, and no kind.

use std::time::Duration;

use vocab::{AqmModel, DeviceModel, Time};

use super::line::records_by_output;
use super::occupancy::packets_at_device;
use super::{FitOptions, FittedParameter, ParameterKind};
use crate::record::{MeasuredRun, PacketRecord};

/// Drops that must come at the times of CoDel, at least: drops at random do not.
const DROPS_LEAST: usize = 9;
/// Times of a packet's time on the line by which a drop may come after its time: the line is busy, and two
/// stamps are rounded.
const LATE_PACKETS: f64 = 2.0;
/// Packets before the wait reached the target of which one had waited less.
const PACKETS_BEFORE: usize = 4;
/// Shares of the waits between which the interval of a standing delay is.
const STANDING_SHARES: (f64, f64) = (0.05, 0.95);

/// A packet at the output: the time at which it was taken out for the line, and its wait if it was delivered.
#[derive(Clone, Copy, Debug)]
struct TakenPacket {
    /// In ns.
    at: f64,
    /// In ns.
    wait: Option<f64>,
}

/// Interval and bounds of the target that one run shows, in ns.
#[derive(Clone, Copy, Debug)]
struct CodelSight {
    interval: f64,
    error: f64,
    target: (f64, f64),
}

/// Fits the active queue management behind early drops; `model` has transit, servers and rate. `None` if it
/// is not CoDel.
pub(super) fn fit(
    overloads: &[&MeasuredRun],
    model: &DeviceModel,
    options: &FitOptions,
    parameters: &mut Vec<FittedParameter>,
) -> Option<AqmModel> {
    let outputs: Vec<(Vec<TakenPacket>, f64)> = overloads
        .iter()
        .flat_map(|run| records_by_output(&run.records))
        .filter_map(|records| {
            let largest = records.iter().map(|record| record.size).max()?;
            let line = nanoseconds(model.output.serialisation(u64::from(largest)));
            Some((taken_packets(&records, model, options), line))
        })
        .filter(|(packets, _)| packets.iter().any(|packet| packet.wait.is_none()))
        .collect();
    let sights: Option<Vec<CodelSight>> = outputs
        .iter()
        .map(|(packets, line)| codel_sight(packets, *line, options))
        .collect();
    let codel = sights.and_then(|sights| codel(&sights, parameters));
    if codel.is_none() {
        report_standing_delay(&outputs, parameters);
    }
    codel
}

/// The packets of one output in the order in which they were taken out.
fn taken_packets(
    records: &[PacketRecord],
    model: &DeviceModel,
    options: &FitOptions,
) -> Vec<TakenPacket> {
    let mut left = Time::ZERO;
    packets_at_device(records)
        .into_iter()
        .map(|record| {
            let size = u64::from(record.size);
            let Some((received, delay)) = record.received.zip(record.delay()) else {
                return TakenPacket {
                    at: nanoseconds(left.since(Time::ZERO)),
                    wait: None,
                };
            };
            left = received - options.cable_delay;
            let alone = model.transit.at(size) + options.cable_delay;
            let line = model.output.serialisation(size);
            TakenPacket {
                at: nanoseconds(left.since(Time::ZERO)) - nanoseconds(line),
                wait: Some(nanoseconds(delay) - nanoseconds(alone)),
            }
        })
        .collect()
}

/// Interval and target by the first drops of a run; `None` if they are not at the times of CoDel.
fn codel_sight(packets: &[TakenPacket], line: f64, options: &FitOptions) -> Option<CodelSight> {
    let drops: Vec<f64> = packets
        .iter()
        .filter(|packet| packet.wait.is_none())
        .map(|packet| packet.at)
        .take(DROPS_LEAST)
        .collect();
    let (first, others) = drops.split_first()?;
    if drops.len() < DROPS_LEAST {
        return None;
    }
    let late = LATE_PACKETS * line + nanoseconds(options.resolution);
    // Each drop bounds the interval: it comes at its time or a little later.
    let (mut low, mut high) = (0.0_f64, f64::INFINITY);
    let mut factors = 0.0;
    for (place, at) in others.iter().enumerate() {
        factors += 1.0 / libm::sqrt((place + 1) as f64);
        low = low.max((at - first - late) / factors);
        high = high.min((at - first + late) / factors);
    }
    if low > high || high <= late {
        return None;
    }
    let (interval, error) = (f64::midpoint(low, high), (high - low) / 2.0);
    // The wait reached the target an interval before the first drop and did not fall below it since.
    let reached = first - interval;
    let slack = error + late;
    let waits = |from: f64, to: f64| {
        packets
            .iter()
            .filter(move |packet| (from..to).contains(&packet.at))
            .filter_map(|packet| packet.wait)
    };
    let above = waits(reached + slack, *first).fold(f64::INFINITY, f64::min);
    let mut before: Vec<f64> = waits(0.0, reached + slack).collect();
    let most = PACKETS_BEFORE + (2.0 * slack / line.max(1.0)).ceil() as usize;
    let before = before.split_off(before.len().saturating_sub(most));
    let below = before.into_iter().fold(f64::INFINITY, f64::min);
    let resolution = nanoseconds(options.resolution);
    let target = (below - resolution, above + resolution);
    (target.0 < target.1 && above.is_finite()).then_some(CodelSight {
        interval,
        error,
        target,
    })
}

/// CoDel as all runs show it; `None` if they contradict each other.
fn codel(sights: &[CodelSight], parameters: &mut Vec<FittedParameter>) -> Option<AqmModel> {
    let (mut interval, mut target) = ((0.0_f64, f64::INFINITY), (0.0_f64, f64::INFINITY));
    for sight in sights {
        let own = (sight.interval - sight.error, sight.interval + sight.error);
        interval = (interval.0.max(own.0), interval.1.min(own.1));
        target = (target.0.max(sight.target.0), target.1.min(sight.target.1));
    }
    let is_open = |(low, high): (f64, f64)| low <= high && high.is_finite();
    if !is_open(interval) || !is_open(target) {
        return None;
    }
    let mut found = |kind, (low, high): (f64, f64)| {
        let middle = f64::midpoint(low, high).max(1.0);
        parameters.push(FittedParameter::identified(kind, middle, (low, high)));
        Duration::from_nanos(middle.round() as u64)
    };
    Some(AqmModel::Codel {
        target: found(ParameterKind::CodelTarget, target),
        interval: found(ParameterKind::CodelInterval, interval),
    })
}

/// Reports the wait at which the queue stood in the second half of the overloads.
fn report_standing_delay(
    outputs: &[(Vec<TakenPacket>, f64)],
    parameters: &mut Vec<FittedParameter>,
) {
    let mut waits: Vec<f64> = outputs
        .iter()
        .flat_map(|(packets, _)| &packets[packets.len() / 2..])
        .filter_map(|packet| packet.wait)
        .collect();
    waits.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        let rank = (waits.len().saturating_sub(1)) as f64 * share;
        waits.get(rank as usize).copied()
    };
    if let (Some(low), Some(middle), Some(high)) =
        (at(STANDING_SHARES.0), at(0.5), at(STANDING_SHARES.1))
    {
        parameters.push(FittedParameter::identified(
            ParameterKind::StandingDelay,
            middle,
            (low, high),
        ));
    }
}

fn nanoseconds(span: Duration) -> f64 {
    span.as_nanos() as f64
}
