//! Lanes: networks of the lab side by side, in which series run at the same time.
//!
//! ```text
//!  series of one group of a repeat ─► lane 1, lane 2, … ─ reports ─► journal and progress, in one thread
//!
//!  group 1   4 lanes   little data, and nothing fills the link         (T1; OC-1 without nodes at long delays)
//!  group 2   4 lanes   little data behind a warm-up that fills the link
//!      …     3 and 2 lanes, the same
//!  last      1 lane    all that needs the processors for itself
//! ```
//! Each repeat runs these groups anew.
//! Each lane has namespaces, servers, nodes and an emulator of its own, so lanes share the processors and
//! the disk and nothing else. A group has as many lanes as the processors carry of its series. Where a warm-up fills
//! the link, the lanes warm up one after the other, and then measure together (`rounds.rs`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
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

/// Greatest payload rate of series side by side, all together, in bytes per second (12 Mbit/s). Two processors carry
/// an OC-1 of 51.84 Mbit/s with clients, servers, nodes and captures; this is a quarter of it.
const TOGETHER_MOST_BYTES_S: f64 = 1_500e3;

/// Series that run in the same number of lanes.
pub(super) struct LaneGroup<'a> {
    /// Lanes.
    pub(super) jobs: usize,
    /// The series.
    pub(super) series: Vec<&'a CellSeries>,
    /// True if the lanes must not warm up while another one measures.
    pub(super) has_rounds: bool,
}

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

/// Lanes for a series and others like it.
fn lanes_of(series: &CellSeries, jobs: usize) -> usize {
    let rates = series.cells.iter().map(sizes::expected_rate);
    let rate = rates.fold(1.0, f64::max);
    jobs.min((TOGETHER_MOST_BYTES_S / rate) as usize).max(1)
}

/// Tells whether the warm-ups of a series and of others like it are too much at the same time.
fn needs_rounds(series: &CellSeries, lanes: usize) -> bool {
    let rates = series.cells.iter().map(sizes::warm_up_rate);
    lanes > 1 && rates.fold(0.0, f64::max) * lanes as f64 > TOGETHER_MOST_BYTES_S
}

/// Groups the series of each repeat by the lanes in which they run, most lanes first. In a group the order stays.
///
/// A repeat ends before the next one begins, so that what changes on the machine during a campaign is in
/// all cells alike.
pub(super) fn group<'a>(left: &[&'a CellSeries], jobs: usize) -> Vec<LaneGroup<'a>> {
    let mut groups: BTreeMap<(u32, Reverse<usize>, bool), Vec<&'a CellSeries>> = BTreeMap::new();
    for series in left {
        let lanes = lanes_of(series, jobs);
        let repeat = series.cells[0].repeat;
        let key = (repeat, Reverse(lanes), needs_rounds(series, lanes));
        groups.entry(key).or_default().push(series);
    }
    let group = |((_, Reverse(jobs), has_rounds), series)| LaneGroup {
        jobs,
        series,
        has_rounds,
    };
    groups.into_iter().map(group).collect()
}

impl LaneGroup<'_> {
    /// Time that the group is expected to take: each lane takes the next series when it is free, and lanes with
    /// rounds wait for the longest series of a round.
    pub(super) fn expected_time(&self, plan: &CellPlan, sizes: CellSizes) -> Duration {
        let estimates = self.series.iter();
        let estimates = estimates.map(|series| SeriesEstimate::of(plan, series, sizes));
        let estimates: Vec<SeriesEstimate> = estimates.collect();
        if self.has_rounds {
            let rounds = estimates.chunks(self.jobs).map(|round| {
                let alone: Duration = round.iter().map(|each| each.alone).sum();
                let beside = round.iter().map(|each| each.beside).max();
                alone.saturating_add(beside.unwrap_or_default())
            });
            return rounds.fold(Duration::ZERO, Duration::saturating_add);
        }
        let mut lanes = vec![Duration::ZERO; self.jobs.max(1)];
        for estimate in estimates {
            lanes.sort_unstable();
            lanes[0] = lanes[0].saturating_add(estimate.total());
        }
        lanes.into_iter().max().unwrap_or_default()
    }
}

/// Part of a campaign's time that a series is expected to take.
pub(super) fn expected_share(
    plan: &CellPlan,
    series: &CellSeries,
    sizes: CellSizes,
    jobs: usize,
) -> Duration {
    let SeriesEstimate { alone, beside } = SeriesEstimate::of(plan, series, sizes);
    let lanes = lanes_of(series, jobs);
    let share = u32::try_from(lanes).unwrap_or(u32::MAX);
    match needs_rounds(series, lanes) {
        true => alone.saturating_add(beside / share),
        false => alone.saturating_add(beside) / share,
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
    fn lanes_follow_the_load_of_series() {
        let (_, _, all) = campaign();
        let left: Vec<&CellSeries> = all.iter().collect();
        let groups = group(&left, 4);
        let place = |name: &str| {
            let has = |group: &&LaneGroup<'_>| {
                let mut keys = group.series.iter().map(|series| &series.key);
                keys.any(|key| key.starts_with(name))
            };
            let found = groups.iter().find(has).expect(name);
            (found.jobs, found.has_rounds)
        };
        for (name, lanes) in [
            ("CIFS/T1/0s/loss=0%/A", (4, false)),
            ("CIFS/OC-1/250ms/loss=0%/B", (4, false)),
            // The warm-up of nodes fills the link, whatever the client does behind it.
            ("CIFS/OC-1/250ms/loss=0%/T", (4, true)),
            ("MAPI-XP/OC-1/30ms/loss=0%/B", (3, false)),
            ("CIFS/OC-1/0s/loss=0%/B", (1, false)),
            ("CIFS/OC-1/250ms/loss=0%/A", (1, false)),
        ] {
            assert_eq!(place(name), lanes, "{name}");
        }
        let order: Vec<usize> = groups.iter().map(|group| group.jobs).collect();
        assert!(order.is_sorted_by(|one, two| one >= two), "{order:?}");
        let [alone] = &group(&left, 1)[..] else {
            panic!("one lane has one group");
        };
        assert_eq!(alone.series.len(), left.len());
    }

    #[test]
    fn repeat_ends_before_the_next_one_begins() {
        let (_, text, _) = campaign();
        let plan = CellPlan::parse(&text.replace("repeats = 1", "repeats = 3")).unwrap();
        let cells = expand(&plan);
        let all = series(&plan, &cells, &cells);
        let left: Vec<&CellSeries> = all.iter().collect();
        let groups = group(&left, 4);
        let order: Vec<u32> = groups
            .iter()
            .flat_map(|group| group.series.iter().map(|series| series.cells[0].repeat))
            .collect();
        assert_eq!(order.len(), 330);
        assert!(order.is_sorted(), "{order:?}");
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
