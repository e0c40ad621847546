//! Verdict of a test, based only on the thresholds that were stated.

use std::time::Duration;

use vocab::Bitrate;

use super::{MissedThreshold, RunPurpose, RunResult, TestThresholds, TurnUp, TurnUpVerdict};
use crate::procedure::{LimitedBy, MtuOutcome};
use crate::wire::TestDirection;

impl TestThresholds {
    /// Tells whether a test whose streams are no faster than `most` can meet the thresholds;
    /// otherwise the user is told before anything is sent.
    #[must_use]
    pub fn are_within(&self, most: Bitrate) -> bool {
        self.rate_min.is_none_or(|least| least <= most)
    }
}

impl TurnUp {
    /// Verdict of the test, by the thresholds that were stated.
    #[must_use]
    pub fn verdict(&self) -> TurnUpVerdict {
        let directions = &self.profile.directions;
        let measured = directions
            .iter()
            .filter(|direction| self.known(**direction).bottleneck.is_some())
            .count();
        if self.round_trip().is_none() || measured < directions.len() {
            let why = self
                .given_up()
                .or_else(|| self.no_rate.clone())
                .or_else(|| self.remarks.first().cloned());
            return TurnUpVerdict::NotMeasured(
                why.unwrap_or_else(|| "nothing was measured".to_owned()),
            );
        }
        let mut judge = ThresholdJudge::default();
        let limits = &self.profile.thresholds;
        if let (Some(limit), Some(rtt)) = (limits.baseline_rtt_max, self.round_trip()) {
            judge.at_most("baseline RTT in ms", ms(limit), Some(ms(rtt)));
        }
        for direction in directions {
            self.judge_direction(*direction, &mut judge);
        }
        let missing = self.given_up().or_else(|| judge.missing.into_iter().next());
        match (missing, judge.missed.is_empty()) {
            (_, false) => TurnUpVerdict::Failed(judge.missed),
            (Some(missing), true) if judge.kept.is_empty() => TurnUpVerdict::NotMeasured(missing),
            (Some(missing), true) => {
                TurnUpVerdict::NotMeasured(format!("{missing}; kept: {}", judge.kept.join(", ")))
            }
            (None, true) => TurnUpVerdict::Passed(judge.count),
        }
    }

    /// Reason why the test ended early, with the results so far that may explain it.
    fn given_up(&self) -> Option<String> {
        let mut why = self.given_up.clone()?;
        for direction in &self.profile.directions {
            if let Some(mtu) = self.known(*direction).black_hole() {
                let name = direction.name();
                why += &format!("; an MTU black hole {name}: packets above {mtu} bytes vanish");
            }
        }
        Some(why)
    }

    fn judge_direction(&self, direction: TestDirection, judge: &mut ThresholdJudge) {
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
            judge.at_least_unless(
                self.is_of_tester(direction),
                &format!("bottleneck rate {name} in Mbit/s"),
                mbit(limit),
                found,
            );
        }
        let alone: Vec<&RunResult> = known
            .runs
            .iter()
            .filter(|run| run.plan.purpose != RunPurpose::Together)
            .collect();
        if let Some(limit) = limits.transfer_time_ratio_max {
            let full = alone.iter().filter(|run| self.fills(direction, run));
            let best = full
                .filter_map(|run| run.figures.as_ref()?.transfer_time_ratio)
                .reduce(f64::min);
            // What a host could not send, or take in, over UDP it may not over TCP either.
            let is_slow = |why: &TesterLimit| why.limit.is_host();
            judge.at_most_unless(
                self.is_of_tester(direction).filter(is_slow),
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

    /// Limit of the tester that set the measured rate, if it was not the path; the path may then
    /// carry more.
    fn is_of_tester(&self, direction: TestDirection) -> Option<TesterLimit> {
        let found = self.known(direction).bottleneck.as_ref()?;
        let offered = mbit(self.profile.max_rate);
        let why = match found.limited_by {
            LimitedBy::Path => return None,
            LimitedBy::MaxRate => format!(
                "no more than {offered:.3} Mbit/s was offered (--max-rate here or at the server), and the path \
                 may carry more"
            ),
            LimitedBy::Sender => {
                "that is all that the sending host managed, and the path may carry more: use a faster host, \
                 or fewer tests at once"
                    .to_owned()
            }
            LimitedBy::Receiver => {
                "that is all that the receiving host took in, and the path may carry more: use a faster host, \
                 or fewer tests at once"
                    .to_owned()
            }
        };
        Some(TesterLimit {
            limit: found.limited_by,
            why,
        })
    }

    /// Tells whether a run's windows together fill the path.
    fn fills(&self, direction: TestDirection, run: &RunResult) -> bool {
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

/// A limit that is the tester's own.
struct TesterLimit {
    limit: LimitedBy,
    why: String,
}

/// Collector of the thresholds' results.
#[derive(Default)]
struct ThresholdJudge {
    count: usize,
    kept: Vec<String>,
    missed: Vec<MissedThreshold>,
    missing: Vec<String>,
}

impl ThresholdJudge {
    fn at_most(&mut self, what: &str, limit: f64, found: Option<f64>) {
        self.at_most_unless(None, what, limit, found);
    }

    fn at_least(&mut self, what: &str, limit: f64, found: Option<f64>) {
        self.at_least_unless(None, what, limit, found);
    }

    fn at_most_unless(
        &mut self,
        tester: Option<TesterLimit>,
        what: &str,
        limit: f64,
        found: Option<f64>,
    ) {
        let how = format!("at most {limit}");
        self.judge(tester, what, &how, found, |found| found <= limit);
    }

    fn at_least_unless(
        &mut self,
        tester: Option<TesterLimit>,
        what: &str,
        limit: f64,
        found: Option<f64>,
    ) {
        let how = format!("at least {limit}");
        self.judge(tester, what, &how, found, |found| found >= limit);
    }

    /// Judges one threshold: a value that does not meet it is missed; where the `tester` set the
    /// limit, the value counts as not measured.
    fn judge(
        &mut self,
        tester: Option<TesterLimit>,
        what: &str,
        how: &str,
        found: Option<f64>,
        is_kept: impl Fn(f64) -> bool,
    ) {
        self.count += 1;
        let stated = format!("{what} was to be {how}");
        match (found, tester) {
            (None, _) => self.missing.push(format!("{stated} and was not measured")),
            (Some(found), _) if is_kept(found) => self.kept.push(format!("{what} {found:.3}")),
            (Some(found), Some(tester)) => self.missing.push(format!(
                "{stated} and could not be measured: {found:.3} was found, but {}",
                tester.why
            )),
            (Some(found), None) => self.missed.push(MissedThreshold {
                text: format!("{stated} and is {found:.3}"),
            }),
        }
    }
}
