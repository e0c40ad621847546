//! Computes from the settings alone how many bytes a direction holds in memory at its worst moment.
//!
//! ```text
//!   bytes      ┌──────────── sent (the line's rate, as the schedule has it)
//!   since      │      ┌───── arrived (the same, later by delay, jitter and what is late)
//!   the start  │◄────►│      between them: under way
//! ```
//! Traffic is taken as a fluid that always fills the line. Where packets keep their order, one that
//! the jitter holds back holds up all behind it, so the tail of the jitter counts in full; where
//! they may overtake, only its mean does. Copies count, what is lost does not lessen anything.
//!
//! A recorded line is taken at its best: the most that it ever carries within the delay.
//!
//! Without a rate and without a policer nothing is judged, because the sender decides how many
//! packets are in flight.

use std::time::Duration;

use emulate::{
    DeliveryTrace, DirectionConfig, HELD_BYTES_MAX, JitterConfig, JitterDistribution, LineConfig,
    LinkConfig, PacketOrder, TokenBucket,
};
use vocab::Bitrate;

use super::FULL_PACKET;
use crate::link::settings::SettingDirection;

/// Jitter that fewer packets than one of a billion exceed is left out: at 100,000 packets a second
/// that is one in three hours.
const TAIL: f64 = 1e-9;

/// The normal distribution exceeds this many deviations with the probability [`TAIL`], and has this
/// mean above zero, in deviations (1/√2π).
const NORMAL_TAIL: f64 = 5.998;
const NORMAL_MEAN: f64 = 0.399;

/// The model cuts each sample of jitter here.
const JITTER_MAX_S: f64 = 3_600.0;

/// The most changes that are followed one by one; a schedule of more, repetitions included, is
/// judged by its highest rate and its longest delay.
const CHANGES_MAX: usize = 2_000_000;

/// Directions of a link that would hold more than the model can, with their sizes; `before` is the
/// current configuration of a running link.
pub(super) fn overfull(before: Option<&LinkConfig>, config: &LinkConfig) -> Vec<OverfullDirection> {
    let held = |way| HeldBytes::of(before.map(|link| one_way(link, way)), one_way(config, way));
    let forward = held(SettingDirection::Forward);
    let are_alike = |link: &LinkConfig| link.forward == link.back;
    let back = if are_alike(config) && before.is_none_or(are_alike) {
        forward
    } else {
        held(SettingDirection::Back)
    };
    let both = [
        (SettingDirection::Forward, forward),
        (SettingDirection::Back, back),
    ]
    .into_iter();
    both.filter(|(_, held)| !held.fits())
        .map(|(way, held)| OverfullDirection { way, held })
        .collect()
}

/// One way of a link.
pub(super) fn one_way(config: &LinkConfig, way: SettingDirection) -> &DirectionConfig {
    match way {
        SettingDirection::Forward => &config.forward,
        SettingDirection::Back => &config.back,
    }
}

/// A way that would hold too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverfullDirection {
    /// The direction.
    pub way: SettingDirection,
    /// Bytes that it would hold.
    pub held: HeldBytes,
}

/// Bytes at the worst moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldBytes {
    /// Bytes between the sender and the receiver.
    pub under_way: f64,
    /// Bytes in front of the line.
    pub queue: f64,
}

impl HeldBytes {
    pub(super) fn of(before: Option<&DirectionConfig>, direction: &DirectionConfig) -> Self {
        let copies = 1.0 + direction.duplication.as_fraction();
        let course = RateTimeline::of(before, direction);
        let (lowest, highest) = course.rates();
        let queue = if direction.line.rate().is_none() && highest == 0.0 {
            0.0
        } else {
            queue(direction, highest)
        };
        let held = Self {
            under_way: (course.under_way(direction) + burst_of(&direction.line)) * copies,
            queue,
        };
        let Some(policer) = &direction.policer else {
            return held;
        };
        // What the policer lets pass fills no queue in front of a line that is always faster.
        let policed = bytes_per_second(policer.rate);
        let is_unlimited = direction.line.rate().is_none() && highest == 0.0;
        if !is_unlimited && lowest < policed {
            return held;
        }
        let burst = policer.burst.bytes() as f64;
        let passing = (course.at_most(policed, is_unlimited).under_way(direction) + burst) * copies;
        Self {
            under_way: if is_unlimited {
                passing
            } else {
                held.under_way.min(passing)
            },
            queue: held.queue.min(burst),
        }
    }

    pub(super) fn fits(&self) -> bool {
        self.under_way + self.queue <= MOST
    }
}

/// Greatest number of bytes that a direction holds.
pub(super) const MOST: f64 = HELD_BYTES_MAX.bytes() as f64;

fn bytes_per_second(rate: Bitrate) -> f64 {
    rate.bits_per_second() as f64 / 8.0
}

/// Bytes that leave at once after the line was idle.
fn burst_of(line: &LineConfig) -> f64 {
    match line {
        LineConfig::Shaper(TokenBucket { burst, .. }) => burst.bytes() as f64,
        LineConfig::Unlimited | LineConfig::Rate(_) | LineConfig::Trace(_) => 0.0,
    }
}

/// Each limit that is set holds, so the smallest is the queue's.
fn queue(direction: &DirectionConfig, highest_rate: f64) -> f64 {
    let limit = direction.queue.limit;
    let in_bytes = [
        limit.bytes.map(|bytes| bytes.bytes() as f64),
        limit
            .packets
            .map(|packets| packets as f64 * FULL_PACKET as f64),
        limit.time.map(|time| highest_rate * time.as_secs_f64()),
    ];
    let least = in_bytes.into_iter().flatten().reduce(f64::min);
    least.unwrap_or_default()
}

/// A rate and a delay that hold for a while.
#[derive(Clone, Copy, Debug)]
struct TimelinePeriod<'a> {
    from_s: f64,
    until_s: f64,
    pace: LinePace<'a>,
    delay_s: f64,
}

/// Rate at which packets leave a line.
#[derive(Clone, Copy, Debug)]
enum LinePace<'a> {
    /// Bytes per second.
    Steady(f64),
    Recorded(&'a DeliveryTrace),
}

impl<'a> LinePace<'a> {
    fn of(line: &'a LineConfig) -> Self {
        match line {
            LineConfig::Unlimited => LinePace::Steady(0.0),
            LineConfig::Rate(rate) => LinePace::Steady(bytes_per_second(*rate)),
            LineConfig::Shaper(bucket) => LinePace::Steady(bytes_per_second(bucket.rate)),
            LineConfig::Trace(trace) => LinePace::Recorded(trace),
        }
    }

    /// Its lowest and its usual rate, bytes per second.
    fn rates(self) -> (f64, f64) {
        match self {
            LinePace::Steady(rate) => (rate, rate),
            LinePace::Recorded(trace) => (0.0, bytes_per_second(trace.mean_rate())),
        }
    }

    fn at_most(self, most: f64) -> Self {
        match self {
            LinePace::Steady(rate) => LinePace::Steady(rate.min(most)),
            LinePace::Recorded(_) => LinePace::Steady(most),
        }
    }
}

/// Best rate of each recorded line within a time, per second, as far as it was computed: the
/// periods of a round have few different delays.
#[derive(Default)]
struct TracePeakRates(Vec<(*const DeliveryTrace, f64, f64)>);

impl TracePeakRates {
    fn within(&mut self, pace: LinePace<'_>, span_s: f64) -> f64 {
        let trace = match pace {
            LinePace::Steady(rate) => return rate,
            LinePace::Recorded(trace) => trace,
        };
        if span_s <= 0.0 {
            return bytes_per_second(trace.mean_rate());
        }
        let key = std::ptr::from_ref(trace);
        let known = self
            .0
            .iter()
            .find(|(of, span, _)| *of == key && *span == span_s);
        if let Some((_, _, best)) = known {
            return *best;
        }
        let best = trace.most_within(Duration::from_secs_f64(span_s)) as f64 / span_s;
        self.0.push((key, span_s, best));
        best
    }
}

/// A direction's rate and delay over time.
#[derive(Clone, Debug)]
struct RateTimeline<'a> {
    legs: Vec<TimelinePeriod<'a>>,
}

impl<'a> RateTimeline<'a> {
    fn of(before: Option<&'a DirectionConfig>, direction: &'a DirectionConfig) -> Self {
        let mut legs = Vec::new();
        let mut now = TimelinePeriod {
            from_s: 0.0,
            until_s: 0.0,
            pace: LinePace::of(&direction.line),
            delay_s: direction.delay.as_secs_f64(),
        };
        if let Some(before) = before {
            let delay_s = before.delay.as_secs_f64() + extra_s(before.jitter, PacketOrder::Kept);
            legs.push(TimelinePeriod {
                from_s: -delay_s,
                until_s: 0.0,
                pace: LinePace::of(&before.line),
                delay_s,
            });
        }
        let steps = direction
            .schedule
            .as_ref()
            .map_or(&[][..], |schedule| schedule.steps());
        let longest_s = steps
            .iter()
            .filter_map(|step| step.change.delay)
            .chain([direction.delay])
            .max()
            .unwrap_or_default()
            .as_secs_f64();
        let repeat_s = direction
            .schedule
            .as_ref()
            .and_then(|schedule| schedule.repeat())
            .map(|repeat| repeat.as_secs_f64());
        // The first round is like no other, the second follows it, the third is like all others;
        // what is under way in it left within the longest delay.
        let rounds = repeat_s.map_or(1.0, |repeat| 3.0 + (longest_s / repeat).ceil());
        if rounds * steps.len() as f64 > CHANGES_MAX as f64 {
            let fastest = steps.iter().filter_map(|step| step.change.rate).max();
            let (_, usual) = now.pace.rates();
            if let Some(fastest) = fastest {
                now.pace = LinePace::Steady(usual.max(bytes_per_second(fastest)));
            }
            now.delay_s = longest_s;
            now.until_s = f64::INFINITY;
            legs.push(now);
            return Self { legs };
        }
        for round in 0..rounds as u64 {
            let start_s = round as f64 * repeat_s.unwrap_or_default();
            for step in steps {
                now.until_s = start_s + step.at.as_secs_f64();
                legs.push(now);
                now.from_s = now.until_s;
                if let Some(rate) = step.change.rate {
                    now.pace = LinePace::Steady(bytes_per_second(rate));
                }
                if let Some(delay) = step.change.delay {
                    now.delay_s = delay.as_secs_f64();
                }
            }
        }
        // A round that comes again ends what its last change began.
        let first_s = steps.first().map_or(0.0, |step| step.at.as_secs_f64());
        now.until_s = repeat_s.map_or(f64::INFINITY, |repeat| rounds * repeat + first_s);
        legs.push(now);
        Self { legs }
    }

    /// The lowest and the highest rate.
    fn rates(&self) -> (f64, f64) {
        self.legs
            .iter()
            .map(|leg| leg.pace.rates())
            .fold((f64::INFINITY, 0.0), |(low, high), (lowest, usual)| {
                (f64::min(low, lowest), f64::max(high, usual))
            })
    }

    /// The timeline limited to this rate; where the line has no limit, at this rate.
    fn at_most(&self, rate: f64, is_unlimited: bool) -> Self {
        let legs = self.legs.iter().map(|leg| TimelinePeriod {
            pace: if is_unlimited {
                LinePace::Steady(rate)
            } else {
                leg.pace.at_most(rate)
            },
            ..*leg
        });
        Self {
            legs: legs.collect(),
        }
    }

    /// The most that is under way, without copies.
    fn under_way(&self, direction: &DirectionConfig) -> f64 {
        let order = direction
            .jitter
            .map_or(PacketOrder::Kept, |jitter| jitter.order);
        let punctual = self.peak(extra_s(direction.jitter, order), order);
        let Some(reordering) = &direction.reordering else {
            return punctual;
        };
        // Packets that are late go their own way.
        let late_s =
            extra_s(direction.jitter, PacketOrder::Free) + reordering.late_by.as_secs_f64();
        let share = reordering.probability.as_fraction();
        (1.0 - share) * punctual + share * self.peak(late_s, PacketOrder::Free)
    }

    /// Greatest number of bytes in flight, with each period's delay longer by `extra_s`.
    fn peak(&self, extra_s: f64, order: PacketOrder) -> f64 {
        let mut turns = Vec::with_capacity(4 * self.legs.len());
        let mut bests = TracePeakRates::default();
        // With the order kept nothing arrives before what left earlier.
        let mut latest = f64::NEG_INFINITY;
        for leg in &self.legs {
            let delay = leg.delay_s + extra_s;
            let rate = bests.within(leg.pace, delay);
            if rate == 0.0 || leg.until_s <= leg.from_s {
                continue;
            }
            let free_from = match order {
                PacketOrder::Free => leg.from_s,
                PacketOrder::Kept => (latest - delay).clamp(leg.from_s, leg.until_s),
            };
            let turn = |at_s: f64, slope: f64| GrowthChange {
                at_s,
                slope,
                arrive: 0.0,
            };
            turns.extend([turn(leg.from_s, rate), turn(leg.until_s, -rate)]);
            if free_from > leg.from_s {
                turns.push(GrowthChange {
                    at_s: latest,
                    slope: 0.0,
                    arrive: rate * (free_from - leg.from_s),
                });
            }
            turns.extend([
                turn(free_from + delay, -rate),
                turn(leg.until_s + delay, rate),
            ]);
            latest = latest.max(leg.until_s + delay);
        }
        turns.retain(|turn| turn.at_s.is_finite());
        turns.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        let (mut under_way, mut slope, mut most) = (0.0, 0.0, 0.0_f64);
        let mut at_s = turns.first().map_or(0.0, |turn| turn.at_s);
        for turn in turns {
            under_way += slope * (turn.at_s - at_s);
            most = most.max(under_way);
            under_way -= turn.arrive;
            slope += turn.slope;
            at_s = turn.at_s;
        }
        most
    }
}

/// A time at which the growth of the bytes in flight changes.
#[derive(Clone, Copy, Debug)]
struct GrowthChange {
    at_s: f64,
    /// Change of the growth.
    slope: f64,
    /// Bytes that arrive all at once.
    arrive: f64,
}

/// Greatest additional delay by jitter: with the order kept, that of the tail for all packets;
/// otherwise the average.
fn extra_s(jitter: Option<JitterConfig>, order: PacketOrder) -> f64 {
    let Some(jitter) = jitter else {
        return 0.0;
    };
    let is_kept = order == PacketOrder::Kept;
    let seconds = match jitter.distribution {
        JitterDistribution::Uniform { spread } => {
            spread.as_secs_f64() * if is_kept { 1.0 } else { 0.25 }
        }
        JitterDistribution::Normal { deviation } => {
            deviation.as_secs_f64() * if is_kept { NORMAL_TAIL } else { NORMAL_MEAN }
        }
        JitterDistribution::Exponential { mean } => {
            mean.as_secs_f64() * if is_kept { -TAIL.ln() } else { 1.0 }
        }
        JitterDistribution::Pareto { mean, shape } => {
            let tail = (shape - 1.0) * (TAIL.powf(-1.0 / shape) - 1.0);
            mean.as_secs_f64() * if is_kept { tail } else { 1.0 }
        }
        JitterDistribution::LogNormal { median, sigma } => {
            let tail = (sigma * NORMAL_TAIL).exp();
            let mean = (sigma * sigma / 2.0).exp();
            median.as_secs_f64() * if is_kept { tail } else { mean }
        }
    };
    seconds.min(JITTER_MAX_S)
}

#[cfg(test)]
mod tests;
