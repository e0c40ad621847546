//! What a test comes to: by the thresholds that somebody stated, and by nothing else.

use std::time::Duration;

use vocab::Bitrate;

use super::{Missed, Purpose, RunDone, TurnUp, Verdict};
use crate::procedure::MtuOutcome;
use crate::wire::Direction;

impl TurnUp {
    /// How the test ended, by the thresholds that were stated.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let directions = &self.profile.directions;
        let measured = directions
            .iter()
            .filter(|direction| self.known(**direction).bottleneck.is_some())
            .count();
        if self.round_trip().is_none() || measured < directions.len() {
            let why = self
                .given_up
                .clone()
                .or_else(|| self.no_rate.clone())
                .or_else(|| self.remarks.first().cloned());
            return Verdict::NotMeasured(why.unwrap_or_else(|| "nothing was measured".to_owned()));
        }
        let mut judge = Judge::default();
        let limits = &self.profile.thresholds;
        if let (Some(limit), Some(rtt)) = (limits.baseline_rtt_max, self.round_trip()) {
            judge.at_most("baseline RTT in ms", ms(limit), Some(ms(rtt)));
        }
        for direction in directions {
            self.judge_direction(*direction, &mut judge);
        }
        let missing = self
            .given_up
            .clone()
            .or_else(|| judge.missing.into_iter().next());
        match (missing, judge.missed.is_empty()) {
            (_, false) => Verdict::Failed(judge.missed),
            (Some(missing), true) => Verdict::NotMeasured(missing),
            (None, true) => Verdict::Passed(judge.count),
        }
    }

    fn judge_direction(&self, direction: Direction, judge: &mut Judge) {
        let limits = &self.profile.thresholds;
        let known = self.known(direction);
        let name = direction.name();
        if let Some(limit) = limits.path_mtu_min {
            let found = match known.path_mtu {
                Some(MtuOutcome::Found { mtu, .. }) => Some(f64::from(mtu)),
                // More than that is not known.
                Some(MtuOutcome::Between { passes, .. }) if limit <= passes => {
                    Some(f64::from(passes))
                }
                Some(
                    MtuOutcome::Between { .. } | MtuOutcome::TooSmall { .. } | MtuOutcome::NoAnswer,
                )
                | None => None,
            };
            judge.at_least(
                &format!("path MTU {name} in bytes"),
                f64::from(limit),
                found,
            );
        }
        if let Some(limit) = limits.rate_min {
            let found = known.bottleneck.as_ref().map(|found| mbit(found.rate));
            judge.at_least(
                &format!("bottleneck rate {name} in Mbit/s"),
                mbit(limit),
                found,
            );
        }
        let alone: Vec<&RunDone> = known
            .runs
            .iter()
            .filter(|run| run.plan.purpose != Purpose::Together)
            .collect();
        if let Some(limit) = limits.transfer_time_ratio_max {
            let full = alone.iter().filter(|run| self.fills(direction, run));
            let best = full
                .filter_map(|run| run.figures.as_ref()?.transfer_time_ratio)
                .reduce(f64::min);
            judge.at_most(
                &format!("best transfer time ratio {name} with a full window"),
                limit,
                best,
            );
        }
        if let Some(limit) = limits.efficiency_percent_min {
            let worst = alone
                .iter()
                .filter_map(|run| run.figures.as_ref()?.efficiency_percent)
                .reduce(f64::min);
            judge.at_least(
                &format!("least TCP efficiency {name} in percent"),
                limit,
                worst,
            );
        }
        if let Some(limit) = limits.buffer_delay_percent_max {
            let bdp = self.bdp(direction).unwrap_or_default();
            let worst = alone
                .iter()
                .filter(|run| run.plan.windows[direction as usize] <= bdp)
                .filter_map(|run| run.figures.as_ref()?.buffer_delay_percent)
                .reduce(f64::max);
            judge.at_most(
                &format!("greatest buffer delay {name} in percent"),
                limit,
                worst,
            );
        }
    }

    /// Whether a run's windows together fill the path.
    fn fills(&self, direction: Direction, run: &RunDone) -> bool {
        let place = direction as usize;
        let all = run.plan.windows[place].bytes() * u64::from(run.plan.connections[place]);
        self.bdp(direction).is_some_and(|bdp| all >= bdp.bytes())
    }
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

fn mbit(rate: Bitrate) -> f64 {
    rate.bits_per_second() as f64 / 1e6
}

/// Collects what thresholds say.
#[derive(Default)]
struct Judge {
    count: usize,
    missed: Vec<Missed>,
    missing: Vec<String>,
}

impl Judge {
    fn at_most(&mut self, what: &str, limit: f64, found: Option<f64>) {
        self.judge(what, "at most", limit, found, |found| found <= limit);
    }

    fn at_least(&mut self, what: &str, limit: f64, found: Option<f64>) {
        self.judge(what, "at least", limit, found, |found| found >= limit);
    }

    fn judge(
        &mut self,
        what: &str,
        how: &str,
        limit: f64,
        found: Option<f64>,
        is_kept: impl Fn(f64) -> bool,
    ) {
        self.count += 1;
        match found {
            None => self.missing.push(format!(
                "{what} was to be {how} {limit} and was not measured"
            )),
            Some(found) if is_kept(found) => {}
            Some(found) => self.missed.push(Missed {
                text: format!("{what} was to be {how} {limit} and is {found:.3}"),
            }),
        }
    }
}
