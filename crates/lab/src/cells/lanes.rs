//! Lanes: networks of the lab side by side, in which series run at the same time.
//!
//! ```text
//!  light series ─► lane 1, lane 2, … ─┐
//!                                     ├─ reports ─► journal and progress, in one thread
//!  other series ─► lane 1 alone ──────┘
//! ```
//! Each lane has namespaces, servers, nodes and an emulator of its own, so lanes share the processors and
//! the disk and nothing else. A series is light if it needs little of the processors; all others run alone.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::expansion::CellSeries;
use super::journal::{CampaignJournal, SeriesAttempt};
use super::plan::CellPlan;
use super::sizes::{self, CellSizes, SeriesEstimate};
use host::kernel;
use host::progress::ProgressReporter;

/// Lanes of a campaign without `--jobs`.
pub const DEFAULT_JOBS: usize = 4;

/// Greatest payload rate of a light series, in bytes per second (3 Mbit/s). Two processors carry an OC-1 of
/// 51.84 Mbit/s with clients, servers, nodes and captures; four light series are a quarter of it.
const LIGHT_MOST_BYTES_S: f64 = 375e3;

/// A series that waits for a lane.
pub(super) struct NextSeries<'a> {
    pub(super) series: &'a CellSeries,
    /// Attempts of it in the journal.
    pub(super) attempts: Vec<SeriesAttempt>,
}

/// Series that wait, as one lane sees them; takes the lane's reports.
pub(super) struct WaitingSeries<'q, 'a> {
    queue: &'q Mutex<VecDeque<NextSeries<'a>>>,
    reports: Sender<LaneReport>,
}

enum LaneReport {
    Step(String),
    Note(String),
    /// An attempt of the series with this key has begun.
    Began(String),
    Attempt(Box<SeriesAttempt>),
    /// The series with this key needs no further attempt.
    Passed(String),
    Ended(Result<()>),
}

/// Remaining time of a campaign: the estimate, corrected by what has been seen.
pub(super) struct RemainingTime {
    began: Instant,
    estimates: Vec<(String, Duration)>,
    passed: Duration,
    total: Duration,
}

/// Tells whether a series leaves room for others beside it.
fn is_light(series: &CellSeries) -> bool {
    let rates = series.cells.iter().map(sizes::peak_rate);
    rates.fold(0.0, f64::max) <= LIGHT_MOST_BYTES_S
}

/// Separates the series that run side by side in so many lanes from those that run alone.
pub(super) fn split<'a>(
    left: &[&'a CellSeries],
    jobs: usize,
) -> (Vec<&'a CellSeries>, Vec<&'a CellSeries>) {
    left.iter()
        .copied()
        .partition(|series| jobs > 1 && is_light(series))
}

/// Part of a campaign's time that a series is expected to take.
pub(super) fn expected_share(
    plan: &CellPlan,
    series: &CellSeries,
    sizes: CellSizes,
    jobs: usize,
) -> Duration {
    let own = SeriesEstimate::of(plan, series, sizes).0;
    match jobs > 1 && is_light(series) {
        true => own / u32::try_from(jobs).unwrap_or(u32::MAX),
        false => own,
    }
}

/// Runs a lane in each of `jobs` threads, and writes what they report.
///
/// # Errors
/// Fails with the first error of a lane or of the journal; the other lanes then end behind their present
/// series.
pub(super) fn run<'a>(
    part: Vec<&'a CellSeries>,
    jobs: usize,
    journal: &mut CampaignJournal,
    clock: &mut RemainingTime,
    progress: &dyn ProgressReporter,
    lane: impl Fn(usize, &WaitingSeries<'_, '_>) -> Result<()> + Sync,
) -> Result<()> {
    let jobs = jobs.min(part.len());
    let waiting = part.into_iter().map(|series| NextSeries {
        series,
        attempts: journal.attempts_of(&series.key).cloned().collect(),
    });
    let queue: Mutex<VecDeque<NextSeries<'a>>> = Mutex::new(waiting.collect());
    let (sender, reports) = mpsc::channel();
    thread::scope(|scope| {
        for number in 1..=jobs {
            let waiting = WaitingSeries {
                queue: &queue,
                reports: sender.clone(),
            };
            let lane = &lane;
            scope.spawn(move || {
                let ended = lane(number, &waiting);
                waiting.report(LaneReport::Ended(ended));
            });
        }
        drop(sender);
        let mut outcome = Ok(());
        for report in reports {
            let handled = match report {
                LaneReport::Step(text) => {
                    progress.step(clock.done(), &text);
                    Ok(())
                }
                LaneReport::Note(text) => {
                    progress.note(&text);
                    Ok(())
                }
                LaneReport::Began(key) => {
                    progress.step(clock.done(), &format!("{key}{}", clock.remaining()));
                    Ok(())
                }
                LaneReport::Attempt(attempt) => journal.add(*attempt),
                LaneReport::Passed(key) => {
                    clock.pass(&key);
                    Ok(())
                }
                LaneReport::Ended(ended) => ended,
            };
            if handled.is_err() {
                locked(&queue).clear();
                outcome = outcome.and(handled);
            }
        }
        outcome
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> WaitingSeries<'_, 'a> {
    /// Takes the next series, if one waits and the campaign is not interrupted.
    pub(super) fn take(&self) -> Option<NextSeries<'a>> {
        locked(self.queue)
            .pop_front()
            .filter(|_| !kernel::interrupted())
    }

    /// Reports that an attempt begins.
    pub(super) fn begin(&self, series: &CellSeries) {
        self.report(LaneReport::Began(series.key.clone()));
    }

    /// Hands an attempt to the journal.
    pub(super) fn add(&self, attempt: SeriesAttempt) {
        self.report(LaneReport::Attempt(Box::new(attempt)));
    }

    /// Reports that the series needs no further attempt.
    pub(super) fn pass(&self, series: &CellSeries) {
        self.report(LaneReport::Passed(series.key.clone()));
    }

    fn report(&self, report: LaneReport) {
        // The receiver reads until the last lane has ended.
        let _ = self.reports.send(report);
    }
}

impl ProgressReporter for WaitingSeries<'_, '_> {
    fn step(&self, _done: f64, text: &str) {
        self.report(LaneReport::Step(text.to_owned()));
    }

    fn note(&self, text: &str) {
        self.report(LaneReport::Note(text.to_owned()));
    }
}

impl RemainingTime {
    /// The time of these series in so many lanes.
    pub(super) fn new(
        plan: &CellPlan,
        left: &[&CellSeries],
        sizes: CellSizes,
        jobs: usize,
    ) -> Self {
        let estimates: Vec<(String, Duration)> = left
            .iter()
            .map(|series| {
                let share = expected_share(plan, series, sizes, jobs);
                (series.key.clone(), share)
            })
            .collect();
        Self {
            began: Instant::now(),
            total: estimates.iter().map(|(_, time)| *time).sum(),
            estimates,
            passed: Duration::ZERO,
        }
    }

    fn pass(&mut self, key: &str) {
        let own = self.estimates.iter().find(|(each, _)| each == key);
        self.passed += own.map_or(Duration::ZERO, |(_, time)| *time);
    }

    fn done(&self) -> f64 {
        self.passed.as_secs_f64() / self.total.as_secs_f64().max(1.0)
    }

    fn remaining(&self) -> String {
        let left = self.total.saturating_sub(self.passed).as_secs_f64();
        let pace = match self.passed.is_zero() {
            true => 1.0,
            false => self.began.elapsed().as_secs_f64() / self.passed.as_secs_f64(),
        };
        format!(" ({:.0} min left)", (left * pace / 60.0).ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::super::expansion::{expand, series};
    use super::super::journal::CampaignHeader;
    use super::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::bail;
    use host::progress::SilentProgress;

    fn campaign() -> (CellPlan, String, Vec<CellSeries>) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let (plan, text) = CellPlan::read(&directory.join("wx-2006.toml")).unwrap();
        let cells = expand(&plan);
        let all = series(&plan, &cells, &cells);
        (plan, text, all)
    }

    /// Runs all series in lanes that do nothing, and returns the journal's attempts.
    fn run_all(
        lane: impl Fn(&WaitingSeries<'_, '_>) -> Result<()> + Sync,
    ) -> (Result<()>, Vec<String>) {
        let (plan, text, all) = campaign();
        let sizes = CellSizes::of(&plan, false, true);
        let directory = tempfile::tempdir().unwrap();
        let header = CampaignHeader::of_simulation(&text, sizes);
        let mut journal = CampaignJournal::open(directory.path(), &header).unwrap();
        let left: Vec<&CellSeries> = all.iter().collect();
        let mut clock = RemainingTime::new(&plan, &left, sizes, 4);
        let ran = run(
            left,
            4,
            &mut journal,
            &mut clock,
            &SilentProgress,
            |_, waiting| lane(waiting),
        );
        let keys = journal
            .attempts
            .iter()
            .map(|attempt| attempt.series.clone());
        (ran, keys.collect())
    }

    #[test]
    fn slow_links_and_serial_clients_are_light() {
        let (_, _, all) = campaign();
        let left: Vec<&CellSeries> = all.iter().collect();
        let (light, alone) = split(&left, 4);
        let has = |part: &[&CellSeries], name: &str| {
            part.iter().any(|series| series.key.starts_with(name))
        };
        for name in ["CIFS/T1/0s/loss=0%/A", "CIFS/OC-1/250ms/loss=0%/B"] {
            assert!(has(&light, name) && !has(&alone, name), "{name}");
        }
        // The warm-up of nodes fills the link, whatever the client does behind it.
        for name in ["CIFS/OC-1/250ms/loss=0%/T", "CIFS/OC-1/0s/loss=0%/B"] {
            assert!(has(&alone, name) && !has(&light, name), "{name}");
        }
        assert_eq!(split(&left, 1).1.len(), left.len());
    }

    #[test]
    fn each_series_runs_in_one_lane() {
        let (ran, mut keys) = run_all(|waiting| {
            while let Some(next) = waiting.take() {
                waiting.add(SeriesAttempt::begin(&next.series.key, 1, String::new()));
            }
            Ok(())
        });
        ran.unwrap();
        assert_eq!(keys.len(), 110);
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 110);
    }

    #[test]
    fn failure_of_a_lane_ends_the_others() {
        let begun = AtomicUsize::new(0);
        let (ran, keys) = run_all(|waiting| {
            if begun.fetch_add(1, Ordering::SeqCst) == 0 {
                bail!("no server");
            }
            while let Some(next) = waiting.take() {
                waiting.add(SeriesAttempt::begin(&next.series.key, 1, String::new()));
                while !locked(waiting.queue).is_empty() {
                    thread::yield_now();
                }
            }
            Ok(())
        });
        assert_eq!(ran.unwrap_err().to_string(), "no server");
        assert!(keys.len() <= 3, "{keys:?}");
    }
}
