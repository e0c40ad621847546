//! Nearest accepted settings in place of refused ones, as text that can be typed.
//!
//! ```text
//!   asked ──► no faster than the host ──► does memory hold that? ──yes──► --rate
//!                                                  │ no
//!                                                  └──► less queue; else less delay, or a lower
//!                                                       rate, or less jitter: what fits
//! ```
//! Each advice is a configuration first, which the same checks let pass that refused what was asked,
//! and words then. A queue that is as large as the default becomes the default of what is advised.

use std::sync::Arc;
use std::time::Duration;

use emulate::{
    DirectionConfig, JitterConfig, JitterDistribution, LineConfig, LinkConfig, LinkSchedule,
    QueueLimit, ScheduleStep,
};
use vocab::{Bitrate, ByteCount, format_duration};

use super::memory::{HeldBytes, MOST, OverfullDirection, one_way, overfull};
use super::{FULL_PACKET, fastest, fastest_of, rounded_down};
use crate::link::settings::{SettingDirection, default_queue};

/// Halvings that search for the nearest setting that fits: to one part in a million.
const HALVINGS: u32 = 20;

const WAYS: [SettingDirection; 2] = [SettingDirection::Forward, SettingDirection::Back];

/// A configuration that was refused.
pub(super) struct RefusedConfig<'a> {
    /// Current configuration of the link, if it already runs.
    before: Option<&'a LinkConfig>,
    config: &'a LinkConfig,
    /// The ways whose queue is the default.
    defaults: Vec<SettingDirection>,
}

/// A setting that is made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReducedSetting {
    Delay,
    Rate,
    Jitter,
    Lateness,
}

/// A configuration that works, and the words for its differences.
struct SuggestedConfig {
    config: LinkConfig,
    words: Vec<(SettingDirection, String)>,
}

impl<'a> RefusedConfig<'a> {
    pub(super) fn new(before: Option<&'a LinkConfig>, config: &'a LinkConfig) -> Self {
        let round_trip = config.forward.delay + config.back.delay;
        let is_default = |way: &SettingDirection| {
            let direction = one_way(config, *way);
            direction.queue.limit == QueueLimit::bytes(default_queue(direction, round_trip))
        };
        Self {
            before,
            config,
            defaults: WAYS.into_iter().filter(is_default).collect(),
        }
    }

    /// The rate at which memory would hold it, all else being as it is: at most the one asked for.
    pub(super) fn fastest_that_fits(&self) -> Bitrate {
        let full = overfull(self.before, self.config);
        let slower = match self.shorter_queue(self.config, &full) {
            Some(advice) => Some(advice),
            None => self.smaller(self.config, &full, ReducedSetting::Rate),
        };
        slower.map_or(Bitrate::default(), |advice| fastest_of(&advice.config))
    }

    /// Text that advises a configuration for a host that carries `most`.
    pub(super) fn advice(&self, most: Bitrate) -> String {
        let slower = self.slower(most);
        let base = &slower.config;
        let full = overfull(self.before, base);
        if full.is_empty() {
            return format!("use {}", written(&slower.words));
        }
        if let Some(shorter) = self.shorter_queue(base, &full) {
            return format!("use {}", with(&shorter.words, &slower.words));
        }
        if WAYS
            .iter()
            .any(|way| one_way(base, *way).schedule.is_some())
        {
            let share = share_of_schedule(&full);
            let slower = match &slower.words[..] {
                [] => String::new(),
                words => format!(", and use {}", written(words)),
            };
            return format!(
                "the schedule is too much in its worst moment: lower its rates, or its delays and the jitter, to {} % of what they are{slower}",
                (share * 100.0).floor().max(1.0)
            );
        }
        let kinds = [
            ReducedSetting::Delay,
            ReducedSetting::Rate,
            ReducedSetting::Jitter,
            ReducedSetting::Lateness,
        ];
        let ways: Vec<String> = kinds
            .into_iter()
            .filter_map(|kind| {
                let advice = self.smaller(base, &full, kind)?;
                let is_replaced = |way| {
                    kind == ReducedSetting::Rate
                        && advice.words.iter().any(|(other, _)| *other == way)
                };
                let rest = slower.words.iter().filter(|(way, _)| !is_replaced(*way));
                let rest: Vec<_> = rest.cloned().collect();
                Some(with(&advice.words, &rest))
            })
            .collect();
        match &ways[..] {
            [] => "use a lower rate, a shorter delay, less jitter, and a shorter queue".to_owned(),
            ways => format!("use {}", ways.join(", or ")),
        }
    }

    /// The same on a line that is nowhere faster than `most`.
    fn slower(&self, most: Bitrate) -> SuggestedConfig {
        let mut config = self.config.clone();
        let mut words = Vec::new();
        for way in WAYS {
            let direction = one_way_mut(&mut config, way);
            if fastest(direction).is_some_and(|rate| rate > most) {
                words.push((way, slow_down(direction, most, way)));
            }
        }
        SuggestedConfig {
            config: self.settled(config),
            words: self.once_where_alike(words),
        }
    }

    /// Advice with a queue for which there is room; `None` where the queue is not the cause.
    fn shorter_queue(
        &self,
        base: &LinkConfig,
        full: &[OverfullDirection],
    ) -> Option<SuggestedConfig> {
        let mut config = base.clone();
        let mut words = Vec::new();
        for OverfullDirection { way, held } in full {
            let room = (MOST - held.under_way).floor();
            if room < FULL_PACKET as f64 {
                return None;
            }
            let limit = ByteCount::new(room as u64);
            one_way_mut(&mut config, *way).queue.limit = QueueLimit::bytes(limit);
            words.push((*way, format!("{} {}B", flag("queue", *way), room as u64)));
        }
        Some(SuggestedConfig {
            words: self.once_where_alike(words),
            config,
        })
    }

    /// The same with as much less of one setting as it takes, in the ways that are too full.
    fn smaller(
        &self,
        base: &LinkConfig,
        full: &[OverfullDirection],
        kind: ReducedSetting,
    ) -> Option<SuggestedConfig> {
        let mut ways: Vec<SettingDirection> = full.iter().map(|full| full.way).collect();
        let are_alike = self.is_alike();
        ways.truncate(if are_alike { 1 } else { 2 });
        let mut config = base.clone();
        let mut words = Vec::new();
        for way in ways {
            let (mut good, mut bad) = (0.0, 1.0);
            let mut best = None;
            for _ in 0..HALVINGS {
                let share = (good + bad) / 2.0;
                let mut changed = config.clone();
                let word = kind.shrink(one_way_mut(&mut changed, way), share, way);
                if are_alike {
                    changed.back = changed.forward.clone();
                }
                let changed = self.settled(changed);
                let before = self.before.map(|link| one_way(link, way));
                if HeldBytes::of(before, one_way(&changed, way)).fits() {
                    good = share;
                    best = word.map(|word| (changed, word));
                } else {
                    bad = share;
                }
            }
            let (changed, word) = best?;
            config = changed;
            words.push((way, word));
        }
        let advice = SuggestedConfig { config, words };
        overfull(self.before, &advice.config)
            .is_empty()
            .then_some(advice)
    }

    /// Tells whether both directions are alike, so that advice for one holds for both.
    fn is_alike(&self) -> bool {
        self.config.forward == self.config.back
    }

    fn once_where_alike(
        &self,
        mut words: Vec<(SettingDirection, String)>,
    ) -> Vec<(SettingDirection, String)> {
        if self.is_alike() {
            words.truncate(1);
        }
        words
    }

    /// Completes the configuration with the default queue where none is named.
    fn settled(&self, mut config: LinkConfig) -> LinkConfig {
        let round_trip = config.forward.delay + config.back.delay;
        for way in &self.defaults {
            let direction = one_way_mut(&mut config, *way);
            direction.queue.limit = QueueLimit::bytes(default_queue(direction, round_trip));
        }
        config
    }
}

impl ReducedSetting {
    /// Reduces a setting to this share; returns the words for it, unless nothing is left.
    fn shrink(
        self,
        direction: &mut DirectionConfig,
        share: f64,
        way: SettingDirection,
    ) -> Option<String> {
        match self {
            ReducedSetting::Delay => {
                direction.delay = part(direction.delay, share);
                let delay = direction.delay;
                (!delay.is_zero())
                    .then(|| format!("{} {}", flag("delay", way), format_duration(delay)))
            }
            ReducedSetting::Rate => {
                let at = |rate: Bitrate| {
                    let bits = rate.bits_per_second() as f64 * share;
                    rounded_down(Bitrate::from_bits_per_second(bits as u64))
                };
                let rate = match &direction.line {
                    LineConfig::Rate(rate) => at(*rate),
                    LineConfig::Shaper(bucket) => at(bucket.rate),
                    LineConfig::Trace(_) | LineConfig::Unlimited => return None,
                };
                (rate > Bitrate::default()).then(|| slow_down(direction, rate, way))
            }
            ReducedSetting::Jitter => {
                let jitter = reduced_jitter(direction.jitter?, share);
                direction.jitter = Some(jitter);
                let percent = (share * 100.0).floor();
                (percent >= 1.0).then(|| {
                    format!(
                        "a jitter of {percent} % of that, or one that lets packets overtake (`,reorder`)"
                    )
                })
            }
            ReducedSetting::Lateness => {
                let reordering = direction.reordering.as_mut()?;
                reordering.late_by = part(reordering.late_by, share);
                let late_by = format_duration(reordering.late_by);
                Some(format!("packets that are late by {late_by}"))
            }
        }
    }
}

/// The share of rates or delays that fits, with a queue that was named or that grows with them.
fn share_of_schedule(full: &[OverfullDirection]) -> f64 {
    let shares = full.iter().map(|full| {
        let HeldBytes { under_way, queue } = full.held;
        let grows = MOST / (under_way + queue);
        let stays = (MOST - queue) / under_way;
        if stays > 0.0 { grows.min(stays) } else { grows }
    });
    shares.fold(1.0, f64::min)
}

/// Limits a direction's rate everywhere to this; returns the words for it.
fn slow_down(direction: &mut DirectionConfig, most: Bitrate, way: SettingDirection) -> String {
    let word = match &mut direction.line {
        LineConfig::Rate(rate) => {
            *rate = most.min(*rate);
            format!("{} {rate}", flag("rate", way))
        }
        LineConfig::Shaper(bucket) => {
            bucket.rate = most.min(bucket.rate);
            format!("a shaper of {}", bucket.rate)
        }
        LineConfig::Trace(_) | LineConfig::Unlimited => {
            direction.line = LineConfig::Rate(most);
            format!("a trace of {most} at most")
        }
    };
    let schedule = direction.schedule.as_ref();
    let Some(slower) = schedule.and_then(|schedule| slower_schedule(schedule, most)) else {
        return word;
    };
    direction.schedule = Some(Arc::new(slower));
    format!("a schedule of {most} at most")
}

/// The schedule limited to this rate; `None` where no rate is higher.
fn slower_schedule(schedule: &LinkSchedule, most: Bitrate) -> Option<LinkSchedule> {
    let is_higher = |step: &ScheduleStep| step.change.rate.is_some_and(|rate| rate > most);
    if !schedule.steps().iter().any(is_higher) {
        return None;
    }
    let steps = schedule.steps().iter().cloned().map(|mut step| {
        step.change.rate = step.change.rate.map(|rate| rate.min(most));
        step
    });
    LinkSchedule::new(steps.collect(), schedule.repeat()).ok()
}

fn one_way_mut(config: &mut LinkConfig, way: SettingDirection) -> &mut DirectionConfig {
    match way {
        SettingDirection::Forward => &mut config.forward,
        SettingDirection::Back => &mut config.back,
    }
}

fn flag(name: &str, way: SettingDirection) -> String {
    match way {
        SettingDirection::Forward => format!("--{name}"),
        SettingDirection::Back => format!("--{name}-back"),
    }
}

fn written(words: &[(SettingDirection, String)]) -> String {
    let words: Vec<&str> = words.iter().map(|(_, word)| word.as_str()).collect();
    words.join(" ")
}

fn with(words: &[(SettingDirection, String)], rest: &[(SettingDirection, String)]) -> String {
    match rest {
        [] => written(words),
        rest => format!("{} with {}", written(words), written(rest)),
    }
}

/// A share of a span, rounded down to whole milliseconds.
fn part(span: Duration, share: f64) -> Duration {
    Duration::from_millis((span.as_secs_f64() * share * 1e3) as u64)
}

fn reduced_jitter(jitter: JitterConfig, share: f64) -> JitterConfig {
    let part = |span: Duration| span.mul_f64(share);
    let distribution = match jitter.distribution {
        JitterDistribution::Uniform { spread } => JitterDistribution::Uniform {
            spread: part(spread),
        },
        JitterDistribution::Normal { deviation } => JitterDistribution::Normal {
            deviation: part(deviation),
        },
        JitterDistribution::Exponential { mean } => {
            JitterDistribution::Exponential { mean: part(mean) }
        }
        JitterDistribution::Pareto { mean, shape } => JitterDistribution::Pareto {
            mean: part(mean),
            shape,
        },
        JitterDistribution::LogNormal { median, sigma } => JitterDistribution::LogNormal {
            median: part(median),
            sigma,
        },
    };
    JitterConfig {
        distribution,
        ..jitter
    }
}
