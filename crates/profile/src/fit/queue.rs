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
//!
//! Noise, or a device that serves packets in another order, blurs the content at single drops by a few packets.
//! The limit is then taken from what left after the last packet of an overload came, and is the one whose
//! full queue has the smallest error of the delay over all sizes.

use std::collections::{BTreeMap, BTreeSet};

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
#[derive(Clone, Debug)]
struct SizeLimit {
    size: u32,
    /// Packets that fit.
    fits: u64,
    /// Packets that surely do not fit; `None` if none was dropped.
    too_many: Option<u64>,
    /// Packets in the queue with each packet that was accepted, sorted.
    accepted: Vec<u64>,
    /// The same for packets that were dropped.
    dropped: Vec<u64>,
    /// Packets in full queues as the last packet came, sorted.
    last_contents: Vec<u64>,
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

impl SizeLimit {
    /// Tells whether packets were dropped at a content at which others were accepted.
    fn is_blurred(&self) -> bool {
        self.too_many.is_some() && self.dropped.first() <= self.accepted.last()
    }

    /// Least and greatest number of packets that fit, as far as one can tell; `None` if none was dropped.
    fn likely(&self) -> Option<(u64, u64)> {
        let most = self.too_many?.checked_sub(1)?;
        let last = self.last_contents.get(self.last_contents.len() / 2);
        match last.filter(|last| self.is_blurred() && (self.fits..=most).contains(last)) {
            Some(last) => Some((*last, *last)),
            None => Some((self.fits, most)),
        }
    }
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
            let limit = likely_limit(best, &limits, 0);
            parameters.push(FittedParameter::identified(
                ParameterKind::InputQueue,
                limit.limit() as f64,
                best.interval_around(limit),
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
                "{:.1} % of the drops met a queue that held less than at other times. Active queue \
                 management, another queue before this one, or another order of service may be the \
                 cause; the interval is in bytes",
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
        return Some(likely_limit(best, &limits, overhead));
    }
    if best.gap() > GAP_MAX {
        parameters.push(FittedParameter::unidentified(
            ParameterKind::OutputQueue,
            (best.high as f64, best.low as f64),
            "packets are dropped at contents that no limit in packets, bytes or slots explains: \
             active queue management, or a drop elsewhere",
            None,
        ));
        return Some(likely_limit(best, &limits, overhead));
    }
    let limit = likely_limit(best, &limits, overhead);
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
        best.interval_around(limit),
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
    let mut limits: Vec<SizeLimit> = contents
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
            // Noise, or packets that come in another order than the model's, make the two contradict each
            // other by a few packets.
            let is_near = |first: u64| {
                first + SLACK_PACKETS > held || (first + 1) as f64 >= EARLY_SHARE * held as f64
            };
            // An empty queue takes any packet, so another part has dropped one that found it empty.
            let is_sharp = first_drop.is_none_or(|first| first > 1 && is_near(first));
            let too_many = first_drop.filter(|_| is_sharp);
            SizeLimit {
                size,
                fits: too_many.map_or(held, |too_many| held.min(too_many.saturating_sub(1))),
                too_many: too_many.map(|too_many| too_many.max(held + 1)),
                accepted,
                dropped,
                last_contents: sorted_contents(outputs, size),
                is_sharp,
            }
        })
        .collect();
    // A queue that holds some packets holds as many smaller ones, in each unit. Where it never did, it was not
    // full, and another part dropped the smaller ones.
    let mut least = 0;
    for limit in limits.iter_mut().rev() {
        if limit.too_many.is_some() {
            least = least.max(limit.fits);
        } else if limit.fits < least {
            limit.is_sharp = true;
            limit.dropped.clear();
        }
    }
    limits
}

fn sorted_contents(outputs: &[QueueArrivals], size: u32) -> Vec<u64> {
    let mut contents: Vec<u64> = outputs
        .iter()
        .filter_map(|output| output.last_content)
        .filter(|(of_size, _)| *of_size == size)
        .map(|(_, content)| content)
        .collect();
    contents.sort_unstable();
    contents
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

/// The limit with the smallest greatest error of the delay through a full queue, over all sizes. Where no size is
/// blurred, it is within the bounds of all sizes, or within their contradiction.
fn likely_limit(fit: UnitFit, limits: &[SizeLimit], overhead: u64) -> DeviceQueueLimit {
    let (mut low, mut high) = (fit.low.min(fit.high), fit.low.max(fit.high));
    let counted = |limit: &SizeLimit| u64::from(limit.size) + overhead;
    for limit in limits.iter().filter(|limit| limit.is_blurred()) {
        let cost = fit.unit.cost(counted(limit));
        low = low.min(limit.fits * cost);
        high = high.max(limit.too_many.map_or(0, |too_many| too_many * cost - 1));
    }
    let likely: Vec<(u64, (u64, u64))> = limits
        .iter()
        .filter_map(|limit| Some((counted(limit), limit.likely()?)))
        .collect();
    // From one of these limits to the next, the number of packets that fit is the same for each size.
    let mut steps = BTreeSet::from([low]);
    for (counted, _) in &likely {
        let cost = fit.unit.cost(*counted);
        steps.extend((low / cost + 1..=high / cost).map(|fits| fits * cost));
    }
    // Bytes on the line, of which the delay consists.
    let error = |limit: u64| -> u64 {
        let errors = likely.iter().map(|(counted, (first, last))| {
            let fits = limit / fit.unit.cost(*counted);
            let packets = first.saturating_sub(fits) + fits.saturating_sub(*last);
            packets * counted
        });
        errors.max().unwrap_or(0)
    };
    let ends = steps.iter().skip(1).map(|next| next - 1).chain([high]);
    let mut best: Option<(u64, u64, u64)> = None;
    for (start, end) in steps.iter().copied().zip(ends) {
        let error = error(start);
        best = Some(match best {
            Some((least, first, last)) if error == least && last + 1 == start => {
                (least, first, end)
            }
            Some((least, first, last))
                if error > least || error == least && last - first >= end - start =>
            {
                (least, first, last)
            }
            Some(_) | None => (error, start, end),
        });
    }
    let (_, first, last) = best.unwrap_or((0, low, high));
    let middle = u64::midpoint(first, last).max(1);
    match fit.unit {
        DeviceQueueLimit::Packets(_) => DeviceQueueLimit::Packets(middle),
        DeviceQueueLimit::Bytes(_) => DeviceQueueLimit::Bytes(ByteCount::new(middle)),
        DeviceQueueLimit::Slots { slot, .. } => DeviceQueueLimit::Slots {
            count: middle,
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
    /// The bounds of all sizes, or of their contradiction, and the limit.
    fn interval_around(&self, limit: DeviceQueueLimit) -> (f64, f64) {
        let limit = limit.limit();
        let low = self.low.min(self.high).min(limit);
        (low as f64, self.high.max(self.low).max(limit) as f64)
    }

    /// Share of the limit by which the sizes contradict each other; zero or below if they agree.
    fn gap(&self) -> f64 {
        if self.low <= self.high {
            return 0.0;
        }
        (self.low - self.high) as f64 / self.low as f64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vocab::{OutputModel, SizeTimeTable};

    use super::super::occupancy::QueueArrival;
    use super::*;

    fn model() -> DeviceModel {
        DeviceModel {
            name: "test".to_owned(),
            ports: 2,
            transit: SizeTimeTable::constant(Duration::from_micros(100)),
            input_queue: None,
            servers: None,
            output: OutputModel {
                rate: None,
                burst: None,
                overhead: ByteCount::new(0),
                queue: DeviceQueueLimit::Packets(1),
                aqm: None,
                policer: None,
            },
            port_outputs: Vec::new(),
        }
    }

    /// Packets of a size that were accepted and dropped with these contents.
    fn output(size: u32, accepted: &[u64], dropped: &[u64], last: Option<u64>) -> QueueArrivals {
        let arrival = |is_accepted| {
            move |content: &u64| QueueArrival {
                size,
                queued: (0, *content as usize - 1),
                is_accepted,
            }
        };
        let accepted = accepted.iter().map(arrival(true));
        QueueArrivals {
            accepted: vec![size; 1_000],
            arrivals: accepted.chain(dropped.iter().map(arrival(false))).collect(),
            last_content: last.map(|content| (size, content)),
        }
    }

    fn fitted(outputs: &[QueueArrivals]) -> (DeviceQueueLimit, Vec<FittedParameter>) {
        let mut parameters = Vec::new();
        let limit = fit(outputs, &model(), &mut parameters).unwrap();
        (limit, parameters)
    }

    #[test]
    fn blurred_limit_is_what_left_after_the_last_packet() {
        // The queue holds 32 packets; the order of service moves single contents by two or three.
        let accepted: Vec<u64> = (1..=33).collect();
        let outputs = [500, 1_000, 1_500].map(|size| {
            let dropped = [30, 31, 32, 33, 33, 33, 34];
            output(size, &accepted, &dropped, Some(32))
        });
        let (limit, parameters) = fitted(&outputs);
        assert_eq!(limit, DeviceQueueLimit::Packets(32), "{parameters:?}");
        assert!(
            parameters
                .iter()
                .all(|one| one.kind != ParameterKind::EarlyDrops)
        );
    }

    #[test]
    fn limit_that_no_unit_explains_keeps_the_delay_of_large_packets() {
        // A queue of 10,000 bytes that does not count the packet on the line.
        let outputs = [100, 500, 1_500].map(|size| {
            let fits = 10_000 / u64::from(size) + 1;
            let accepted: Vec<u64> = (1..=fits + 1).collect();
            output(size, &accepted, &[fits, fits + 1, fits + 1], Some(fits))
        });
        let (limit, parameters) = fitted(&outputs);
        let unit = limit.cost(1_500);
        assert_eq!(limit.limit() / unit, 7, "{limit:?} {parameters:?}");
    }

    #[test]
    fn drops_of_small_packets_in_front_of_the_queue_are_no_early_drops() {
        // The servers pass small packets more slowly than the line sends them, so their drops are elsewhere.
        let sharp = |size: u32| {
            let fits = 48_000 / u64::from(size);
            let accepted: Vec<u64> = (1..=fits).collect();
            output(size, &accepted, &[fits + 1], None)
        };
        let outputs = [
            output(64, &[1, 2, 3], &[1, 1], None),
            sharp(700),
            sharp(1_500),
        ];
        let (limit, parameters) = fitted(&outputs);
        assert!(matches!(limit, DeviceQueueLimit::Bytes(_)), "{limit:?}");
        assert!(
            parameters
                .iter()
                .all(|one| one.kind != ParameterKind::EarlyDrops)
        );
        // At contents of which a larger packet shows that they fit, and a full queue was seen, a drop is early.
        let early = output(1_500, &(1..=32).collect::<Vec<_>>(), &[5, 9, 33], None);
        let (_, parameters) = fitted(&[sharp(700), early]);
        assert!(
            parameters
                .iter()
                .any(|one| one.kind == ParameterKind::EarlyDrops)
        );
    }
}
