//! All measurements in virtual time, on as many threads as there are processors, and their medians.
//!
//! A measurement is a number of independent jobs, one for each seed and variant. The longest begin
//! first, so that no single one is left at the end. Figures do not depend on which thread runs a
//! job.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tunnel::fec::RepairMode;

use super::cells::PathCell;
use super::exchanges::{self, ExchangeTimes, FirstByte, LatencyQuantiles, SmallFlow};
use super::measurement::{EXCHANGE_LOSS, SessionMeasurement, SessionSelection};
use super::mode_name;
use super::real;
use super::report::{FailedRun, SessionReport};
use super::series::FlowPair;
use super::shares::{self, QUEUES, QueueShares, RivalController};
use super::transfers::{PathCellResult, run_cell};
use host::kernel;
use host::median::median;
use host::progress::ProgressReporter;

/// One run.
#[derive(Clone, Copy, Debug)]
enum SessionJob {
    Cell(PathCell, RepairMode),
    FirstByte,
    Exchanges(f64, RepairMode),
    SmallFlow,
    Sessions,
    Beside(RivalController, f64),
    Reference(f64),
}

/// Outcome of one job.
enum JobOutcome {
    Cell(Box<PathCellResult>),
    FirstByte(FirstByte),
    Exchanges((Vec<Duration>, f64)),
    SmallFlow([Vec<Duration>; 2]),
    Jain(f64),
    Together(FlowPair),
}

impl SessionJob {
    fn run(self, seed: u64) -> JobOutcome {
        match self {
            Self::Cell(cell, mode) => JobOutcome::Cell(Box::new(run_cell(cell, mode, seed))),
            Self::FirstByte => JobOutcome::FirstByte(exchanges::first_byte(seed)),
            Self::Exchanges(loss, mode) => {
                JobOutcome::Exchanges(exchanges::exchanges(loss, mode, seed))
            }
            Self::SmallFlow => JobOutcome::SmallFlow(exchanges::small_flow(seed)),
            Self::Sessions => JobOutcome::Jain(shares::jain(seed)),
            Self::Beside(rival, queue_bdp) => {
                JobOutcome::Together(shares::run_beside_rival(rival, queue_bdp, seed))
            }
            Self::Reference(queue_bdp) => {
                JobOutcome::Together(shares::rivals_alone(queue_bdp, seed))
            }
        }
    }

    /// Name of its run with this seed.
    fn run_name(self, seed: u64) -> String {
        match self {
            Self::Cell(_, mode) => format!("{}, seed {seed}", mode_name(mode)),
            Self::Exchanges(loss, mode) => {
                let (mode, percent) = (mode_name(mode), loss * 100.0);
                format!("{mode}, {percent}% loss, seed {seed}")
            }
            Self::Beside(_, queue_bdp) | Self::Reference(queue_bdp) => {
                format!("queue of {queue_bdp} BDP, seed {seed}")
            }
            Self::FirstByte | Self::SmallFlow | Self::Sessions => format!("seed {seed}"),
        }
    }

    /// Approximate amount of data to carry, in Mbit.
    fn weight(self) -> f64 {
        match self {
            Self::Cell(cell, _) => {
                cell.rate_mbit_s * cell.steady().1.as_secs_f64() + 2.0 * 8.0 * 16.0
            }
            Self::FirstByte => 10.0,
            Self::Exchanges(..) => exchanges::EXCHANGES as f64 * 0.5,
            Self::SmallFlow => 1_500.0,
            Self::Sessions | Self::Beside(..) | Self::Reference(_) => 1_600.0,
        }
    }
}

impl SessionMeasurement {
    fn jobs(&self, modes: &[RepairMode]) -> Vec<SessionJob> {
        match self {
            Self::Cell(cell) => modes
                .iter()
                .map(|mode| SessionJob::Cell(*cell, *mode))
                .collect(),
            Self::FirstByte => vec![SessionJob::FirstByte],
            Self::Exchanges => {
                let modes = [RepairMode::Off, RepairMode::On, RepairMode::Auto];
                let with = |loss| modes.map(|mode| SessionJob::Exchanges(loss, mode));
                [with(0.0), with(EXCHANGE_LOSS)].concat()
            }
            Self::SmallFlow => vec![SessionJob::SmallFlow],
            Self::Sessions => vec![SessionJob::Sessions],
            Self::Beside(rival) => QUEUES
                .map(|queue| SessionJob::Beside(*rival, queue))
                .to_vec(),
            Self::Reference => QUEUES.map(SessionJob::Reference).to_vec(),
            // Virtual time has no processor.
            Self::Cpu => vec![],
        }
    }
}

/// Runs the selected measurements, until the lab is interrupted: running ones are then finished,
/// and the rest is named in the report.
#[must_use]
pub fn measure(choice: &SessionSelection, progress: &dyn ProgressReporter) -> SessionReport {
    measure_until(choice, progress, &kernel::interrupted)
}

fn measure_until(
    choice: &SessionSelection,
    progress: &dyn ProgressReporter,
    is_over: &(dyn Fn() -> bool + Sync),
) -> SessionReport {
    let variants: Vec<(String, SessionJob)> = choice
        .measurements
        .iter()
        .flat_map(|measurement| {
            let jobs = measurement.jobs(&choice.modes);
            jobs.into_iter().map(|job| (measurement.name(), job))
        })
        .collect();
    let seeds = choice.seed..choice.seed + choice.repeat;
    let runs: Vec<(usize, u64)> = (0..variants.len())
        .flat_map(|variant| seeds.clone().map(move |seed| (variant, seed)))
        .collect();
    let outcomes = run_all(&variants, &runs, progress, is_over);
    let mut report = SessionReport::default();
    let mut rest = outcomes.into_iter();
    for (name, job) in &variants {
        let mut measured = Vec::new();
        for (seed, outcome) in seeds.clone().zip(&mut rest) {
            match outcome {
                Some(outcome) => measured.push(outcome),
                None => report.not_measured.push(FailedRun {
                    measurement: name.clone(),
                    run: job.run_name(seed),
                    why: FailedRun::INTERRUPTED.to_owned(),
                }),
            }
        }
        report.take(*job, measured);
    }
    report.set_medians();
    report
}

/// Outcomes of all runs, in their order; `None` for those that were not begun.
fn run_all(
    variants: &[(String, SessionJob)],
    runs: &[(usize, u64)],
    progress: &dyn ProgressReporter,
    is_over: &(dyn Fn() -> bool + Sync),
) -> Vec<Option<JobOutcome>> {
    let weight = |run: usize| variants[runs[run].0].1.weight();
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by(|a, b| weight(*b).total_cmp(&weight(*a)));
    let whole: f64 = order.iter().map(|run| weight(*run)).sum();
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let mut outcomes: Vec<Option<JobOutcome>> = runs.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let (done, results) = mpsc::channel();
        for _ in 0..threads {
            let (done, next, order) = (done.clone(), &next, &order);
            scope.spawn(move || {
                while !is_over()
                    && let Some(run) = order.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let (variant, seed) = runs[*run];
                    // Nobody listens any more when another thread has panicked.
                    let _ = done.send((*run, variants[variant].1.run(seed)));
                }
            });
        }
        drop(done);
        let mut behind = 0.0;
        for (run, outcome) in results {
            behind += weight(run);
            progress.step(behind / whole, &variants[runs[run].0].0);
            outcomes[run] = Some(outcome);
        }
    });
    outcomes
}

impl SessionReport {
    fn take(&mut self, job: SessionJob, outcomes: Vec<JobOutcome>) {
        if outcomes.is_empty() {
            return;
        }
        let mut waits = [Vec::new(), Vec::new()];
        let mut repair_shares = Vec::new();
        let mut runs = Vec::new();
        for outcome in outcomes {
            match outcome {
                JobOutcome::Cell(result) => self.runs.push(*result),
                JobOutcome::FirstByte(times) => self.take_first_byte(times),
                JobOutcome::Exchanges((times, repairs)) => {
                    waits[0].extend(times);
                    repair_shares.push(repairs);
                }
                JobOutcome::SmallFlow(times) => {
                    for (all, times) in waits.iter_mut().zip(times) {
                        all.extend(times);
                    }
                }
                JobOutcome::Jain(index) => self.jain_16_sessions.push(index),
                JobOutcome::Together(run) => runs.push(run),
            }
        }
        let [first, second] = waits;
        match job {
            SessionJob::Exchanges(loss, mode) => self.exchanges.push(ExchangeTimes {
                fec: mode_name(mode),
                loss,
                latencies: LatencyQuantiles::of(first),
                repair_share: median(repair_shares).unwrap_or_default(),
            }),
            SessionJob::SmallFlow => {
                self.small_flow = Some(SmallFlow {
                    alone: LatencyQuantiles::of(first),
                    beside_bulk: LatencyQuantiles::of(second),
                });
            }
            SessionJob::Beside(rival, queue_bdp) => {
                self.shares
                    .push(QueueShares::of(rival.name(), queue_bdp, runs));
            }
            SessionJob::Reference(queue_bdp) => {
                let rival = RivalController::BbrV1.name();
                self.references
                    .push(QueueShares::of(rival, queue_bdp, runs));
            }
            SessionJob::Cell(..) | SessionJob::FirstByte | SessionJob::Sessions => {}
        }
    }

    /// The worst of all seeds counts.
    pub(super) fn take_first_byte(&mut self, times: FirstByte) {
        let worst = self.first_byte.get_or_insert(times);
        worst.longest_rtt = worst.longest_rtt.max(times.longest_rtt);
        worst.median_rtt = worst.median_rtt.max(times.median_rtt);
        worst.new_session_rtt = worst.new_session_rtt.max(times.new_session_rtt);
        worst.after_silence_rtt = worst.after_silence_rtt.max(times.after_silence_rtt);
        worst.short_answer_rtt = worst.short_answer_rtt.max(times.short_answer_rtt);
    }

    pub(super) fn set_medians(&mut self) {
        let mut left: Vec<&PathCellResult> = self.runs.iter().collect();
        while let Some(first) = left.first().copied() {
            let of = |fec: &str| -> Vec<&PathCellResult> {
                self.runs
                    .iter()
                    .filter(|run| run.cell == first.cell && run.fec == fec)
                    .collect()
            };
            let median = PathCellResult::median_of(&of(first.fec), &of(mode_name(RepairMode::Off)));
            self.cells.extend(median);
            left.retain(|run| run.cell != first.cell || run.fec != first.fec);
        }
    }

    /// Ratio of the 99th percentile of exchange times with this mode to the median without loss,
    /// with the mode that is fastest there.
    #[must_use]
    pub fn exchange_p99_ratio(&self, fec: &str) -> Option<f64> {
        let (lossy, loss_free): (Vec<&ExchangeTimes>, Vec<&ExchangeTimes>) =
            self.exchanges.iter().partition(|times| times.loss > 0.0);
        let medians = loss_free.iter().map(|times| times.latencies.median_ms);
        let least = medians.min_by(f64::total_cmp)?;
        let of_mode = lossy.iter().find(|times| times.fec == fec)?;
        Some(of_mode.latencies.p99_ms / least)
    }

    /// Throughput of flows without an emulator and without reduction.
    #[must_use]
    pub fn cpu_gbit_s(&self) -> Option<f64> {
        real::cpu_gbit_s(&self.costs)
    }

    /// The median of all seeds.
    #[must_use]
    pub fn jain_16_sessions(&self) -> Option<f64> {
        median(self.jain_16_sessions.iter().copied())
    }

    /// Ratio of the median wait of a small flow beside bulk flows to that without.
    #[must_use]
    pub fn small_flow_ratio(&self) -> Option<f64> {
        let times = self.small_flow.as_ref()?;
        Some(times.beside_bulk.median_ms / times.alone.median_ms)
    }

    /// Our share beside this rival in a queue of so many BDP.
    #[must_use]
    pub fn share_beside(&self, rival: RivalController, queue_bdp: f64) -> Option<f64> {
        let name = rival.name();
        let both = self
            .shares
            .iter()
            .find(|both| both.rival == name && both.queue_bdp == queue_bdp)?;
        Some(both.share)
    }

    /// CUBIC's share beside BBR in a queue of so many BDP.
    #[must_use]
    pub fn cubic_beside_bbr(&self, queue_bdp: f64) -> Option<f64> {
        let mut references = self.references.iter();
        let both = references.find(|both| both.queue_bdp == queue_bdp)?;
        Some(both.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::progress::SilentProgress;

    fn exchanges(fec: &'static str, loss: f64, median_ms: f64, p99_ms: f64) -> ExchangeTimes {
        ExchangeTimes {
            fec,
            loss,
            latencies: LatencyQuantiles {
                median_ms,
                p99_ms,
                ..LatencyQuantiles::default()
            },
            repair_share: 0.0,
        }
    }

    #[test]
    fn exchanges_are_compared_with_the_best_lossless_time() {
        let report = SessionReport {
            exchanges: vec![
                exchanges("off", 0.0, 140.0, 150.0),
                exchanges("auto", 0.0, 125.0, 150.0),
                exchanges("off", 0.01, 140.0, 250.0),
            ],
            ..SessionReport::default()
        };
        assert_eq!(report.exchange_p99_ratio("off"), Some(2.0));
        assert_eq!(report.exchange_p99_ratio("auto"), None);
    }

    #[test]
    fn jobs_not_begun_before_interruption_are_listed() {
        let choice = SessionSelection {
            measurements: vec![SessionMeasurement::FirstByte, SessionMeasurement::Exchanges],
            modes: vec![],
            repeat: 2,
            seed: 5,
        };
        let report = measure_until(&choice, &SilentProgress, &|| true);
        let names: Vec<String> = report
            .not_measured
            .iter()
            .map(|run| format!("{}: {}: {}", run.measurement, run.run, run.why))
            .collect();
        assert_eq!(names.len(), 2 + 2 * 6);
        assert_eq!(names[1], "first-byte: seed 6: interrupted");
        assert_eq!(names[13], "exchanges: auto, 1% loss, seed 6: interrupted");
        let nothing = SessionReport {
            not_measured: report.not_measured.clone(),
            ..SessionReport::default()
        };
        assert_eq!(report, nothing, "no figure of no runs");
    }

    fn run(fec: &'static str, seed: u64, goodput_mbit_s: f64) -> PathCellResult {
        PathCellResult {
            fec,
            goodput_mbit_s,
            seeds: vec![seed],
            ..PathCellResult::default()
        }
    }

    #[test]
    fn pairs_share_a_seed_and_figures_are_medians() {
        let mut report = SessionReport {
            runs: vec![
                run("off", 1, 10.0),
                run("off", 2, 20.0),
                run("off", 3, 40.0),
                run("auto", 3, 40.0),
                run("auto", 1, 9.0),
                run("auto", 2, 24.0),
            ],
            ..SessionReport::default()
        };
        report.set_medians();
        let [off, auto] = &report.cells[..] else {
            panic!("{} paths and modes", report.cells.len());
        };
        assert_eq!((off.fec, off.goodput_mbit_s), ("off", 20.0));
        assert_eq!(off.goodput_over_off, None);
        assert_eq!((auto.fec, auto.goodput_mbit_s), ("auto", 24.0));
        assert_eq!(auto.goodput_over_off, Some(1.0));
        assert_eq!(auto.seeds, [3, 1, 2]);
    }

    #[test]
    fn threads_change_no_figure() {
        let choice = SessionSelection {
            measurements: vec![SessionMeasurement::FirstByte],
            modes: vec![],
            repeat: 4,
            seed: 5,
        };
        let mut alone = SessionReport::default();
        for seed in 5..9 {
            alone.take(SessionJob::FirstByte, vec![SessionJob::FirstByte.run(seed)]);
        }
        assert_eq!(measure(&choice, &SilentProgress), alone);
    }
}
