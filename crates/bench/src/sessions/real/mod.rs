//! The benchmark in real time: two nodes as processes, the emulator between them, hosts at both
//! ends.
//!
//! The nodes choose their path themselves, and results name it. Where the machine is short of
//! processor time (`cpu_idle_percent`), the figures of virtual time count.
//!
//! A run that fails gives no figure, and is listed with its reason; the next one gets a new test
//! bed. Measurements that an interrupted benchmark has not reached are listed, too.
//!
//! `stand.rs` is the test bed, `hosts.rs` the hosts, `runs.rs` the runs, `attempts.rs` the handling
//! of runs that fail.

mod attempts;
mod hosts;
mod runs;
mod stand;

use std::time::Duration;

use anyhow::Result;
use tunnel::fec::RepairMode;

use self::attempts::RunAttempts;
use self::runs::{CPU_FROM, CPU_SPAN};
use self::stand::{FlowMode, SessionTestBed};
use super::exchanges::{ExchangeTimes, LatencyQuantiles};
use super::measurement::{EXCHANGE_LOSS, SessionMeasurement, SessionSelection};
use super::mode_name;
use super::report::{FlowCost, SessionReport};
use super::series::FlowPair;
use super::shares::{FROM as SHARE_FROM, QUEUES, QueueShares, RivalController, SPAN as SHARE_SPAN};
use host::median::median;
use host::progress::ProgressReporter;
use host::{ProgramEnvironment, kernel, rootless};
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};

/// Greatest number of seeds with which rivals are compared with each other: the kernel's flows are
/// only a reference, and each run takes eighty seconds.
const REFERENCES_MAX: usize = 2;

/// Runs all measurements that are possible in real time, until the lab is interrupted. The report
/// lists the others, with the reason.
///
/// # Errors
/// Fails when a requirement is missing, or the test bed cannot be made: nothing was measured then.
pub fn measure(
    environment: &ProgramEnvironment,
    choice: &SessionSelection,
    progress: &dyn ProgressReporter,
) -> Result<SessionReport> {
    let privileges = rootless::obtain(environment)?;
    progress.note(privileges.explain());
    let needs = LabRequirements {
        servers: vec![],
        clients: vec![],
        interception: InterceptionMode::Transparent,
        captures: CaptureMode::None,
    };
    preflight::check(&needs, privileges)?;
    let make = || SessionTestBed::create(environment);
    let mut bench = RealSessionBench {
        attempts: RunAttempts::new(make()?, &make, kernel::interrupted, progress),
        choice,
        progress,
        report: SessionReport::default(),
        behind: 0.0,
    };
    bench.run();
    let RealSessionBench {
        attempts,
        mut report,
        ..
    } = bench;
    report.not_measured = attempts.into_failures();
    report.set_medians();
    Ok(report)
}

struct RealSessionBench<'a> {
    attempts: RunAttempts<'a, SessionTestBed>,
    choice: &'a SessionSelection,
    progress: &'a dyn ProgressReporter,
    report: SessionReport,
    /// Seconds that are behind it, by the estimate.
    behind: f64,
}

impl SessionMeasurement {
    /// Approximate duration in real time with one seed and mode; `None` when it exists in virtual
    /// time only.
    fn seconds(&self) -> Option<f64> {
        match self {
            Self::Cell(cell) => Some(cell.steady().1.as_secs_f64() + 14.0),
            Self::FirstByte | Self::Exchanges => Some(25.0),
            // No kernel has both versions of BBR.
            Self::Beside(RivalController::BbrV1) => None,
            Self::Beside(RivalController::Cubic | RivalController::Bbr) | Self::Reference => {
                Some(2.0 * (SHARE_FROM + SHARE_SPAN).as_secs_f64() + 10.0)
            }
            Self::Cpu => Some(2.0 * (CPU_FROM + CPU_SPAN).as_secs_f64() + 5.0),
            Self::SmallFlow | Self::Sessions => None,
        }
    }
}

impl RealSessionBench<'_> {
    fn run(&mut self) {
        let choice = self.choice;
        let whole: f64 = choice
            .measurements
            .iter()
            .filter_map(SessionMeasurement::seconds)
            .sum();
        // Nodes that were joined directly stay so: what needs no link comes last.
        let (last, first): (Vec<&SessionMeasurement>, Vec<&SessionMeasurement>) = choice
            .measurements
            .iter()
            .partition(|measurement| **measurement == SessionMeasurement::Cpu);
        for measurement in first.into_iter().chain(last) {
            let Some(seconds) = measurement.seconds() else {
                continue;
            };
            self.progress.step(self.behind / whole, &measurement.name());
            self.measure_one(measurement);
            self.behind += seconds;
        }
    }

    fn measure_one(&mut self, measurement: &SessionMeasurement) {
        let Self {
            attempts, report, ..
        } = self;
        let seeds = self.choice.seed..self.choice.seed + self.choice.repeat;
        let name = &measurement.name();
        match measurement {
            SessionMeasurement::Cell(cell) => {
                for mode in &self.choice.modes {
                    for seed in seeds.clone() {
                        let run = format!("{}, seed {seed}", mode_name(*mode));
                        let result = attempts.run(name, run, |at| at.cell(cell, *mode, seed));
                        report.runs.extend(result);
                    }
                }
            }
            SessionMeasurement::FirstByte => {
                for seed in seeds {
                    let run = format!("seed {seed}");
                    if let Some(times) = attempts.run(name, run, |at| at.first_byte(seed)) {
                        report.take_first_byte(times);
                    }
                }
            }
            SessionMeasurement::Exchanges => {
                for loss in [0.0, EXCHANGE_LOSS] {
                    let runs = seeds.clone().filter_map(|seed| {
                        let run = format!("real time, {}% loss, seed {seed}", loss * 100.0);
                        attempts.run(name, run, |at| at.exchanges(loss, seed))
                    });
                    let (times, repairs): (Vec<Vec<Duration>>, Vec<f64>) = runs.unzip();
                    if let Some(repair_share) = median(repairs) {
                        report.exchanges.push(ExchangeTimes {
                            fec: mode_name(RepairMode::Auto),
                            loss,
                            latencies: LatencyQuantiles::of(times.concat()),
                            repair_share,
                        });
                    }
                }
            }
            SessionMeasurement::Beside(rival) => {
                for queue_bdp in QUEUES {
                    let runs = seeds.clone().filter_map(|seed| {
                        let run = format!("queue of {queue_bdp} BDP, seed {seed}");
                        attempts.run(name, run, |at| at.run_beside_rival(*rival, queue_bdp, seed))
                    });
                    let runs: Vec<FlowPair> = runs.collect();
                    if !runs.is_empty() {
                        let shares = QueueShares::of(rival.name(), queue_bdp, runs);
                        report.shares.push(shares);
                    }
                }
            }
            SessionMeasurement::Reference => {
                for queue_bdp in QUEUES {
                    let runs = seeds.clone().take(REFERENCES_MAX).filter_map(|seed| {
                        let run = format!("queue of {queue_bdp} BDP, seed {seed}");
                        attempts.run(name, run, |at| at.rivals_alone(queue_bdp, seed))
                    });
                    let runs: Vec<FlowPair> = runs.collect();
                    if !runs.is_empty() {
                        let shares = QueueShares::of(RivalController::Bbr.name(), queue_bdp, runs);
                        report.references.push(shares);
                    }
                }
            }
            SessionMeasurement::Cpu => {
                for flow in [FlowMode::Carried, FlowMode::Reduced] {
                    for number in 1..=self.choice.repeat {
                        let run = format!("{}, {number}", flow.name());
                        report
                            .costs
                            .extend(attempts.run(name, run, |at| at.cost(flow)));
                    }
                }
            }
            SessionMeasurement::SmallFlow | SessionMeasurement::Sessions => {}
        }
    }
}

/// The median rate of flows that were not reduced.
pub(super) fn cpu_gbit_s(costs: &[FlowCost]) -> Option<f64> {
    let costs = costs.iter().filter(|cost| !cost.is_reduced);
    median(costs.map(|cost| cost.gbit_s))
}
