//! Limit of the output queue and the unit in which the device counts it.
//!
//! Of each size, the queue held at most `fits` packets, and dropped the next one. A unit says how
//! much a packet of each size costs, so each size bounds the limit from both sides:
//!
//! ```text
//!   fits · cost(size)  <=  limit  <  (fits + 1) · cost(size)
//! ```
//!
//! The unit is right if these intervals have a common part. Packets come before bytes and bytes
//! before slots, because each is a special case of the next one.

use std::collections::BTreeMap;

use vocab::{ByteCount, DeviceModel, DeviceQueueLimit};

use super::occupancy::QueueArrivals;
use super::search;
use super::{FittedParameter, ParameterKind};

/// Share of the arrivals that noise may have moved to the wrong side of a departure.
const NOISE_SHARE: f64 = 0.002;
/// Smallest slot that is told from bytes.
const SLOT_LEAST: u64 = 64;
/// Share by which the intervals of the sizes may miss each other, for noise.
const GAP_MAX: f64 = 0.05;

/// Share of the fullest content below which a drop is early.
const EARLY_SHARE: f64 = 0.9;
/// Length of the largest packet that every queue takes.
const FULL_PACKET: u64 = 1_500;

/// Packets by which noise may move the content of a queue.
const SLACK_PACKETS: u64 = 2;
/// Remedy where outputs drop in runs of input overload.
pub(super) const SPREAD_OUTPUTS: &str =
    "spread the bursts of input overload over more outputs, so that none of them fills";
/// Share of the drops that a full queue explains, where it explains the run.
const EXPLAINED_SHARE: f64 = 0.9;

/// Content of the queue at arrivals of packets of one size.
#[derive(Clone, Copy, Debug)]
struct SizeLimit {
    size: u32,
    /// Packets that fit.
    fits: u64,
    /// Packets that surely do not fit; `None` if none was dropped.
    too_many: Option<u64>,
    /// Cleared if packets were dropped while the queue held fewer than at other times, so that
    /// another part has dropped them.
    is_sharp: bool,
}

/// A unit with the limits that agree with all sizes.
#[derive(Clone, Copy, Debug)]
struct UnitFit {
    unit: DeviceQueueLimit,
    low: u64,
    /// Inclusive; below `low` where the sizes contradict each other.
    high: u64,
}

/// Tells whether packets were dropped, and nearly all of them at queues that were full by `limit`.
pub(super) fn explains_drops(
    outputs: &[QueueArrivals],
    limit: DeviceQueueLimit,
    overhead: u64,
) -> bool {
    if !is_sharp(&limits_by_size(outputs)) {
        return false;
    }
    let cost = |size: u32| limit.cost(u64::from(size) + overhead);
    let (mut drops, mut explained) = (0.0_f64, 0.0);
    for output in outputs {
        for arrival in output
            .arrivals
            .iter()
            .filter(|arrival| !arrival.is_accepted)
        {
            let (first, last) = arrival.queued;
            let content: u64 = output.accepted[first..last].iter().copied().map(cost).sum();
            drops += 1.0;
            if (content + cost(arrival.size)) as f64 > limit.limit() as f64 * (1.0 - GAP_MAX) {
                explained += 1.0;
            }
        }
    }
    drops > 0.0 && explained >= drops * EXPLAINED_SHARE
}

/// Fits the input queue, which `model` does not have yet, from bursts on one input.
pub(super) fn fit_input(
    inputs: &[QueueArrivals],
    parameters: &mut Vec<FittedParameter>,
) -> Option<DeviceQueueLimit> {
    let limits = limits_by_size(inputs);
    let dropped_sizes = limits
        .iter()
        .filter(|limit| limit.too_many.is_some())
        .count();
    let most = limits.iter().map(|limit| limit.fits).max().unwrap_or(0);
    let (reason, remedy) = if !is_sharp(&limits) {
        (
            "packets were dropped at different contents of the input queue, so the outputs dropped \
             some of them; the interval is in packets",
            SPREAD_OUTPUTS,
        )
    } else if limits.is_empty() {
        (
            "no experiment with purpose = \"input-overload\" makes packets wait for a server",
            "add one with bursts on one input to all outputs, with gap = \"0s\"",
        )
    } else if dropped_sizes == 0 {
        (
            "no packet was dropped in runs of input overload; the interval is in packets",
            "raise packets_per_burst of the input overload",
        )
    } else {
        let best = best_unit(&limits, 0);
        if dropped_sizes > 1 && best.gap() <= GAP_MAX {
            let limit = with_limit(best);
            parameters.push(FittedParameter::identified(
                ParameterKind::InputQueue,
                limit.limit() as f64,
                (
                    best.low.min(best.high) as f64,
                    best.low.max(best.high) as f64,
                ),
            ));
            return Some(limit);
        }
        (
            "the limits of the sizes contradict each other; the interval is in packets",
            "add sizes to for_each_size of the input overload",
        )
    };
    parameters.push(FittedParameter::unidentified(
        ParameterKind::InputQueue,
        (most as f64, f64::INFINITY),
        reason,
        Some(remedy),
    ));
    None
}

pub(super) fn fit(
    outputs: &[QueueArrivals],
    model: &DeviceModel,
    parameters: &mut Vec<FittedParameter>,
) -> Option<DeviceQueueLimit> {
    let limits = limits_by_size(outputs);
    let overhead = model.output.overhead.bytes();
    let dropped_sizes = limits
        .iter()
        .filter(|limit| limit.too_many.is_some())
        .count();
    let most = limits
        .iter()
        .map(|limit| limit.fits * (u64::from(limit.size) + overhead))
        .max()
        .unwrap_or(0);
    if !is_sharp(&limits) {
        // The interval of the share reaches from none, as the drops may have another cause.
        let share = early_drop_share(outputs, &limits);
        parameters.push(FittedParameter::identified(
            ParameterKind::EarlyDrops,
            share,
            (0.0, share),
        ));
        parameters.push(FittedParameter::unidentified(
            ParameterKind::OutputQueue,
            (most as f64, f64::INFINITY),
            &format!(
                "{:.1} % of the drops met a queue that held less than at other times: the device has \
                 active queue management, or another queue before this one; the interval is in bytes",
                share * 100.0
            ),
            None,
        ));
        // A model without active queue management is nearest with the fullest queue that was seen.
        let least = FULL_PACKET + overhead;
        return Some(DeviceQueueLimit::Bytes(ByteCount::new(most.max(least))));
    }
    if dropped_sizes == 0 {
        parameters.push(FittedParameter::unidentified(
            ParameterKind::OutputQueue,
            (most as f64, f64::INFINITY),
            "no packet was dropped at an output, so its queue was never full; the interval is in bytes",
            Some(
                "raise packets_per_burst of the overload of each size, with a gap of some \
                 microseconds where the inputs drop packets of a burst",
            ),
        ));
        return None;
    }
    let best = best_unit(&limits, overhead);
    if dropped_sizes == 1 {
        parameters.push(FittedParameter::unidentified(
            ParameterKind::OutputQueue,
            (best.low as f64, best.high as f64),
            "packets of one size alone were dropped, so packets are not told from bytes; the \
             interval is in packets",
            Some("raise packets_per_burst of the overload of a second size until packets are dropped"),
        ));
        return Some(with_limit(best));
    }
    if best.gap() > GAP_MAX {
        parameters.push(FittedParameter::unidentified(
            ParameterKind::OutputQueue,
            (best.high as f64, best.low as f64),
            "packets are dropped at contents that no limit in packets, bytes or slots explains: \
             active queue management, or a drop elsewhere",
            None,
        ));
        return Some(with_limit(best));
    }
    let limit = with_limit(best);
    if is_packets_or_bytes(&limits, overhead) {
        let largest = limits.iter().rfind(|limit| limit.too_many.is_some());
        let interval = largest.map_or((0, u64::MAX), |largest| {
            (
                largest.fits,
                largest.too_many.map_or(u64::MAX, |least| least - 1),
            )
        });
        parameters.push(FittedParameter::unidentified(
            ParameterKind::OutputQueue,
            (interval.0 as f64, interval.1 as f64),
            &format!(
                "a limit in packets and one in bytes explain the drops alike; the interval is in packets \
                 of {} bytes",
                largest.map_or(0, |largest| largest.size)
            ),
            Some("overload the output with sizes that are further apart"),
        ));
        return Some(limit);
    }
    parameters.push(FittedParameter::identified(
        ParameterKind::OutputQueue,
        limit.limit() as f64,
        (
            best.low.min(best.high) as f64,
            best.low.max(best.high) as f64,
        ),
    ));
    if let DeviceQueueLimit::Slots { slot, .. } = limit {
        let slots: Vec<u64> = slot_units(&limits, overhead)
            .filter(|fit| fit.gap() <= 0.0)
            .map(|fit| slot_of(fit.unit))
            .collect();
        let (low, high) = (slots.first(), slots.last());
        parameters.push(FittedParameter::identified(
            ParameterKind::OutputSlot,
            slot.bytes() as f64,
            (
                low.map_or(slot.bytes(), |low| *low) as f64,
                high.map_or(slot.bytes(), |high| *high) as f64,
            ),
        ));
    }
    Some(limit)
}

/// Limits in a unit from which a search starts: both ends of the interval that the sizes leave, or of
/// their contradiction, and the middle. Empty if no packet was dropped.
pub(super) fn search_starts(
    outputs: &[QueueArrivals],
    unit: DeviceQueueLimit,
    overhead: ByteCount,
) -> Vec<DeviceQueueLimit> {
    // A content at which packets were dropped and at others not is the fullest that was seen.
    let mut limits = limits_by_size(outputs);
    for limit in &mut limits {
        limit.too_many = limit
            .too_many
            .or((!limit.is_sharp).then_some(limit.fits + 1));
    }
    let fit = limits_in(unit, &limits, overhead.bytes());
    if fit.high == u64::MAX {
        return Vec::new();
    }
    [fit.low, u64::midpoint(fit.low, fit.high), fit.high]
        .map(|limit| search::with_limit(unit, limit, overhead))
        .to_vec()
}

/// Share of the drops at contents below [`EARLY_SHARE`] of the fullest that their size has seen.
fn early_drop_share(outputs: &[QueueArrivals], limits: &[SizeLimit]) -> f64 {
    let (mut drops, mut early) = (0.0_f64, 0.0);
    for output in outputs {
        for arrival in output
            .arrivals
            .iter()
            .filter(|arrival| !arrival.is_accepted)
        {
            let most = limits
                .iter()
                .find(|limit| limit.size == arrival.size)
                .map_or(0, |limit| limit.fits);
            let (first, last) = arrival.queued;
            drops += 1.0;
            if ((last - first + 1) as f64) < EARLY_SHARE * most as f64 {
                early += 1.0;
            }
        }
    }
    early / drops.max(1.0)
}

fn is_sharp(limits: &[SizeLimit]) -> bool {
    limits.iter().all(|limit| limit.is_sharp)
}

fn limits_by_size(outputs: &[QueueArrivals]) -> Vec<SizeLimit> {
    let mut contents: BTreeMap<u32, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
    for output in outputs {
        for arrival in &output.arrivals {
            let (first, last) = arrival.queued;
            let is_pure =
                output.accepted[first..last].first() == Some(&arrival.size) || first == last;
            if !is_pure {
                continue;
            }
            let entry = contents.entry(arrival.size).or_default();
            let with_it = (last - first) as u64 + 1;
            if arrival.is_accepted {
                entry.0.push(with_it);
            } else {
                entry.1.push(with_it);
            }
        }
    }
    contents
        .into_iter()
        .map(|(size, (mut accepted, mut dropped))| {
            accepted.sort_unstable();
            dropped.sort_unstable();
            let noise = |count: usize| (count as f64 * NOISE_SHARE) as usize;
            let held = accepted
                .len()
                .checked_sub(1 + noise(accepted.len()))
                .map_or(0, |index| accepted[index]);
            let first_drop = dropped.get(noise(dropped.len())).copied();
            // Noise makes the two contradict each other by a packet or so.
            let slack = SLACK_PACKETS.max((held as f64 * GAP_MAX) as u64);
            // An empty queue takes any packet, so another part has dropped one that found it empty.
            let is_sharp = first_drop.is_none_or(|first| first > 1 && first + slack > held);
            let too_many = first_drop.filter(|_| is_sharp);
            SizeLimit {
                size,
                fits: too_many.map_or(held, |too_many| held.min(too_many.saturating_sub(1))),
                too_many: too_many.map(|too_many| too_many.max(held + 1)),
                is_sharp,
            }
        })
        .collect()
}

/// The first unit that agrees with all sizes, or the one that contradicts them least.
fn best_unit(limits: &[SizeLimit], overhead: u64) -> UnitFit {
    let packets = limits_in(DeviceQueueLimit::Packets(0), limits, overhead);
    if packets.gap() <= 0.0 {
        return packets;
    }
    let bytes = limits_in(DeviceQueueLimit::Bytes(ByteCount::new(0)), limits, overhead);
    if bytes.gap() <= 0.0 {
        return bytes;
    }
    let slots: Vec<UnitFit> = slot_units(limits, overhead).collect();
    let agreeing: Vec<UnitFit> = slots
        .iter()
        .filter(|fit| fit.gap() <= 0.0)
        .copied()
        .collect();
    // Device makers use powers of two.
    let power = agreeing
        .iter()
        .find(|fit| slot_of(fit.unit).is_power_of_two());
    if let Some(fit) = power.or_else(|| agreeing.get(agreeing.len() / 2)) {
        return *fit;
    }
    [packets, bytes]
        .into_iter()
        .chain(slots)
        .min_by(|one, other| one.gap().total_cmp(&other.gap()))
        .unwrap_or(packets)
}

/// Tells whether packets and bytes agree with all sizes. Slots have a parameter more, by which they agree with
/// most short queues, so they count only where both fail.
fn is_packets_or_bytes(limits: &[SizeLimit], overhead: u64) -> bool {
    let agrees = |unit| limits_in(unit, limits, overhead).gap() <= 0.0;
    agrees(DeviceQueueLimit::Packets(0)) && agrees(DeviceQueueLimit::Bytes(ByteCount::new(0)))
}

/// Slots that are not equal to packets: those that the largest packet does not fit in.
fn slot_units(limits: &[SizeLimit], overhead: u64) -> impl Iterator<Item = UnitFit> {
    let largest = limits.iter().map(|limit| limit.size).max().unwrap_or(0);
    (SLOT_LEAST..u64::from(largest) + overhead).map(move |slot| {
        let unit = DeviceQueueLimit::Slots {
            count: 0,
            slot: ByteCount::new(slot),
        };
        limits_in(unit, limits, overhead)
    })
}

fn limits_in(unit: DeviceQueueLimit, limits: &[SizeLimit], overhead: u64) -> UnitFit {
    let mut fit = UnitFit {
        unit,
        low: 0,
        high: u64::MAX,
    };
    for limit in limits {
        let cost = unit.cost(u64::from(limit.size) + overhead);
        fit.low = fit.low.max(limit.fits * cost);
        if let Some(too_many) = limit.too_many {
            fit.high = fit.high.min(too_many * cost - 1);
        }
    }
    fit
}

fn with_limit(fit: UnitFit) -> DeviceQueueLimit {
    let middle = u64::midpoint(fit.low, fit.high);
    match fit.unit {
        DeviceQueueLimit::Packets(_) => DeviceQueueLimit::Packets(middle.max(1)),
        DeviceQueueLimit::Bytes(_) => DeviceQueueLimit::Bytes(ByteCount::new(middle.max(1))),
        DeviceQueueLimit::Slots { slot, .. } => DeviceQueueLimit::Slots {
            count: middle.max(1),
            slot,
        },
    }
}

fn slot_of(unit: DeviceQueueLimit) -> u64 {
    match unit {
        DeviceQueueLimit::Slots { slot, .. } => slot.bytes(),
        DeviceQueueLimit::Packets(_) | DeviceQueueLimit::Bytes(_) => 0,
    }
}

impl UnitFit {
    /// Share of the limit by which the sizes contradict each other; zero or below if they agree.
    fn gap(&self) -> f64 {
        if self.low <= self.high {
            return 0.0;
        }
        (self.low - self.high) as f64 / self.low as f64
    }
}
