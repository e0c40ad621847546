//! Changes over time: a recorded rate, delay and loss, or an outage.
//!
//! A [`LinkSchedule`] is a list of times, counted from the start of the link, with the settings
//! that change at each; it may repeat. A [`SchedulePlayer`] plays one. A change of loss applies to
//! the packets that are handed in from then on.
//!
//! The CSV form has a heading with any of `time`, `rate`, `delay` and `loss`, one row per change,
//! an empty field for a setting that stays, and optionally a line `# repeat 60s`
//! (docs/formats/link-schedule.md).

use std::sync::Arc;
use std::time::Duration;

use vocab::{Bitrate, Probability, Time, parse_duration};

use crate::config::{DirectionConfig, LineConfig, LossModel, check_delay, check_rate};
use crate::config_error::ConfigError;
use crate::trace::TraceError;

/// The most changes in one schedule: one each second for eleven days.
pub const STEPS_MAX: usize = 1_000_000;

/// A schedule starts over no oftener than this.
const REPEAT_MIN: Duration = Duration::from_millis(1);

/// Changes over time.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSchedule {
    steps: Vec<ScheduleStep>,
    repeat: Option<Duration>,
}

/// One moment of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleStep {
    /// Time, counted from the start.
    pub at: Duration,
    /// The changes from then on.
    pub change: SettingsChange,
}

/// Changes of settings; `None` leaves a setting unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SettingsChange {
    /// Rate of the line; zero stops the line.
    pub rate: Option<Bitrate>,
    /// The one-way delay.
    pub delay: Option<Duration>,
    /// The loss.
    pub loss: Option<LossModel>,
}

impl LinkSchedule {
    /// A schedule of these steps; with `repeat` it starts over each time that much has passed.
    ///
    /// # Errors
    /// When it is empty or longer than [`STEPS_MAX`], when a step comes before the one in front
    /// of it, or when a step lies beyond the repetition.
    pub fn new(steps: Vec<ScheduleStep>, repeat: Option<Duration>) -> Result<Self, ConfigError> {
        let refuse = |what: String| Err(ConfigError::Schedule(what));
        if steps.is_empty() || steps.len() > STEPS_MAX {
            return refuse(format!(
                "a schedule has 1 to {STEPS_MAX} changes, not {}",
                steps.len()
            ));
        }
        for pair in steps.windows(2) {
            if pair[1].at < pair[0].at {
                return refuse(format!(
                    "a schedule goes forward: {:?} comes after {:?}",
                    pair[1].at, pair[0].at
                ));
            }
        }
        let last = steps.last().map_or(Duration::ZERO, |step| step.at);
        if let Some(repeat) = repeat
            && (repeat < REPEAT_MIN || repeat <= last)
        {
            return refuse(format!(
                "a schedule whose last change is at {last:?} cannot repeat every {repeat:?}; make it longer than that, and at least {REPEAT_MIN:?}"
            ));
        }
        Ok(Self { steps, repeat })
    }

    /// Reads the CSV form.
    ///
    /// # Errors
    /// The first line that cannot be read, and why.
    pub fn from_csv(text: &str) -> Result<Self, TraceError> {
        let mut columns: Option<Vec<ScheduleColumn>> = None;
        let mut steps: Vec<ScheduleStep> = Vec::new();
        let mut repeat = None;
        for (index, row) in text.lines().enumerate() {
            let refuse = |what: String| TraceError {
                line: index + 1,
                what,
            };
            let row = row.trim();
            if let Some(comment) = row.strip_prefix('#') {
                if let Some(span) = comment.trim().strip_prefix("repeat") {
                    repeat = Some(read_time(span.trim()).map_err(refuse)?);
                }
                continue;
            }
            if row.is_empty() {
                continue;
            }
            let Some(columns) = &columns else {
                columns = Some(read_heading(row).map_err(refuse)?);
                continue;
            };
            let step = read_row(columns, row).map_err(refuse)?;
            if let Some(last) = steps.last()
                && step.at < last.at
            {
                return Err(refuse(format!(
                    "its time {:?} is before the row above, {:?}; times must not go back",
                    step.at, last.at
                )));
            }
            if steps.len() == STEPS_MAX {
                return Err(refuse(format!(
                    "a schedule has at most {STEPS_MAX} changes"
                )));
            }
            steps.push(step);
        }
        let line = text.lines().count().max(1);
        Self::new(steps, repeat).map_err(|error| TraceError {
            line,
            what: error.to_string(),
        })
    }

    /// The steps, in order.
    #[must_use]
    pub fn steps(&self) -> &[ScheduleStep] {
        &self.steps
    }

    /// Time after which it repeats.
    #[must_use]
    pub fn repeat(&self) -> Option<Duration> {
        self.repeat
    }

    /// Checks that a direction with these settings can follow the schedule.
    pub(crate) fn check(&self, config: &DirectionConfig) -> Result<(), ConfigError> {
        for step in &self.steps {
            if let Some(rate) = step.change.rate {
                check_rate(rate)?;
                if matches!(config.line, LineConfig::Shaper(_) | LineConfig::Trace(_)) {
                    return Err(ConfigError::Schedule(
                        "a schedule sets the rate of a plain line, not of a shaper or a trace; leave one of them out".to_owned(),
                    ));
                }
            }
            if let Some(delay) = step.change.delay {
                check_delay(delay)?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScheduleColumn {
    Time,
    Rate,
    Delay,
    Loss,
}

fn read_heading(row: &str) -> Result<Vec<ScheduleColumn>, String> {
    let mut columns = Vec::new();
    for name in row.split(',') {
        let column = match name.trim() {
            "time" | "time_s" => ScheduleColumn::Time,
            "rate" => ScheduleColumn::Rate,
            "delay" => ScheduleColumn::Delay,
            "loss" => ScheduleColumn::Loss,
            other => {
                return Err(format!(
                    "`{other}` is no column; the first line names the columns, of time, rate, delay and loss"
                ));
            }
        };
        if columns.contains(&column) {
            return Err(format!("the column `{}` is there twice", name.trim()));
        }
        columns.push(column);
    }
    if !columns.contains(&ScheduleColumn::Time) {
        return Err("there is no column `time`".to_owned());
    }
    Ok(columns)
}

fn read_row(columns: &[ScheduleColumn], row: &str) -> Result<ScheduleStep, String> {
    let fields: Vec<&str> = row.split(',').map(str::trim).collect();
    if fields.len() != columns.len() {
        return Err(format!(
            "{} fields where the heading has {}",
            fields.len(),
            columns.len()
        ));
    }
    let mut at = None;
    let mut change = SettingsChange::default();
    for (column, field) in columns.iter().zip(fields) {
        match column {
            ScheduleColumn::Time => at = Some(read_time(field)?),
            _ if field.is_empty() => {}
            ScheduleColumn::Rate => change.rate = Some(read_rate(field)?),
            ScheduleColumn::Delay => {
                change.delay = Some(parse_duration(field).map_err(|error| error.to_string())?);
            }
            ScheduleColumn::Loss => {
                let loss: Probability = field
                    .parse()
                    .map_err(|error: vocab::ParseUnitError| error.to_string())?;
                change.loss = Some(loss.into());
            }
        }
    }
    let at = at.ok_or("the time is missing")?;
    Ok(ScheduleStep { at, change })
}

/// A time with its unit, or a bare number of seconds.
fn read_time(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    match seconds.map(Duration::try_from_secs_f64) {
        Some(Ok(span)) => Ok(span),
        Some(Err(_)) => Err(format!(
            "`{text}` is no time; write seconds, as 1.5, or 250ms"
        )),
        None => parse_duration(text).map_err(|error| error.to_string()),
    }
}

/// Parses a rate with its unit; a bare zero stops the line.
fn read_rate(text: &str) -> Result<Bitrate, String> {
    if text == "0" {
        return Ok(Bitrate::default());
    }
    text.parse()
        .map_err(|error: vocab::ParseUnitError| error.to_string())
}

/// A schedule being played.
#[derive(Debug)]
pub(crate) struct SchedulePlayer {
    schedule: Arc<LinkSchedule>,
    /// Start of the present round.
    start: Time,
    /// The next step of it.
    position: usize,
}

impl SchedulePlayer {
    pub(crate) fn new(now: Time, schedule: Arc<LinkSchedule>) -> Self {
        Self {
            schedule,
            start: now,
            position: 0,
        }
    }

    /// Time of the next change.
    pub(crate) fn next(&self) -> Option<Time> {
        let step = self.schedule.steps.get(self.position)?;
        Some(self.start + step.at)
    }

    /// Takes the next change.
    pub(crate) fn take(&mut self) -> Option<SettingsChange> {
        let change = self.schedule.steps.get(self.position)?.change.clone();
        self.position += 1;
        if let Some(repeat) = self.schedule.repeat
            && self.position == self.schedule.steps.len()
        {
            // At the end of all time it comes to its end, too.
            if self.start + repeat < Time::NEVER {
                self.position = 0;
            }
            self.start += repeat;
        }
        Some(change)
    }

    /// Skips whole rounds that were not polled, except for the last two before `now`: each round
    /// sets the same settings again.
    pub(crate) fn skip_rounds(&mut self, now: Time) {
        let Some(repeat) = self.schedule.repeat else {
            return;
        };
        let rounds = now.since(self.start).as_nanos() / repeat.as_nanos().max(1);
        if let Some(unseen) = rounds.checked_sub(2)
            && unseen > 0
        {
            let span = u64::try_from(repeat.as_nanos() * unseen).unwrap_or(u64::MAX);
            self.start += Duration::from_nanos(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_changes_and_leaves_the_rest() {
        let schedule = LinkSchedule::from_csv(
            "# from a drive test\n# repeat 60s\ntime,rate,delay,loss\n0,10Mbit,50ms,0%\n\n1.5,,,1%\n2s,0,,\n",
        )
        .unwrap();
        assert_eq!(schedule.repeat(), Some(Duration::from_secs(60)));
        let steps = schedule.steps();
        assert_eq!(steps.len(), 3);
        assert_eq!(steps[1].at, Duration::from_millis(1_500));
        assert_eq!(steps[1].change.rate, None);
        assert_eq!(
            steps[1].change.loss,
            Some(Probability::from_fraction(0.01).unwrap().into())
        );
        assert_eq!(steps[2].change.rate, Some(Bitrate::default()));
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, line, word) in [
            ("", 1, "1 to"),
            ("time,speed\n0,1Mbit\n", 1, "speed"),
            ("rate\n1Mbit\n", 1, "time"),
            ("time,time\n", 1, "twice"),
            ("time,rate\n0,1Mbit\n0.5\n", 3, "fields"),
            ("time,rate\n1,1Mbit\n0.5,1Mbit\n", 3, "before"),
            ("time,rate\n-1,1Mbit\n", 2, "-1"),
            ("time,rate\nnan,1Mbit\n", 2, "nan"),
            ("time,rate\n1,fast\n", 2, "fast"),
            ("time,loss\n1,150%\n", 2, "150%"),
            ("# repeat 1s\ntime,rate\n2,1Mbit\n", 3, "repeat"),
        ] {
            let error = LinkSchedule::from_csv(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.what.contains(word), "{text:?}: {error}");
        }
    }

    #[test]
    fn unseen_rounds_are_skipped_and_time_is_bounded() {
        let step = |at| ScheduleStep {
            at: Duration::from_millis(at),
            change: SettingsChange::default(),
        };
        let repeat = Duration::from_millis(10);
        let schedule = LinkSchedule::new(vec![step(1), step(4)], Some(repeat)).unwrap();
        let mut timeline = SchedulePlayer::new(Time::ZERO, Arc::new(schedule));
        let day = Time::ZERO + Duration::from_secs(86_400) + Duration::from_millis(2);
        timeline.skip_rounds(day);
        let mut seen = Vec::new();
        while let Some(at) = timeline.next().filter(|at| *at <= day) {
            seen.push(day.since(at).as_millis());
            timeline.take();
        }
        assert_eq!(seen, [21, 18, 11, 8, 1]);
        timeline.skip_rounds(Time::NEVER);
        let left = std::iter::from_fn(|| timeline.take()).take(100).count();
        assert!(left < 10, "{left} changes at the end of time");
    }

    #[test]
    fn a_timeline_starts_over_for_ever() {
        let step = |at, rate| ScheduleStep {
            at: Duration::from_millis(at),
            change: SettingsChange {
                rate: Some(Bitrate::from_bits_per_second(rate)),
                ..SettingsChange::default()
            },
        };
        let schedule = LinkSchedule::new(
            vec![step(0, 1), step(4, 2)],
            Some(Duration::from_millis(10)),
        )
        .unwrap();
        let mut timeline = SchedulePlayer::new(Time::from_nanos(5), Arc::new(schedule));
        let played: Vec<(u64, u64)> = (0..4)
            .map(|_| {
                let at = timeline.next().unwrap().as_nanos();
                (at, timeline.take().unwrap().rate.unwrap().bits_per_second())
            })
            .collect();
        assert_eq!(
            played,
            [(5, 1), (4_000_005, 2), (10_000_005, 1), (14_000_005, 2)]
        );
    }
}
