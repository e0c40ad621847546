//! Foreign devices: devices that are not made from the fitter's assumptions.
//!
//! ```text
//!   device ─► training runs ─► our model, single FIFO queue, fluid queue (by the same code)
//!         └─► held-out runs ─► distance and error of each of the three
//! ```
//! | kind | devices |
//! | --- | --- |
//! | single-queue | a router of the kernel with tbf at several rates, or with an nft limit, in real time |
//! | complex | two forwarders that contend for one core, in real time; switches with cells and turns (`cell_switch.rs`) in virtual time |

mod cell_switch;
mod contention;
mod kernel_router;
mod reproduction;

use std::ops::Range;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use host::kernel;
use host::progress::ProgressReporter;
use host::run::LabRun;
use profile::{
    ExperimentPurpose, MeasuredRun, MeasurementPlan, MeasurementSubject, ModelFamily, RunPlan,
};
use serde::{Deserialize, Serialize};
use vocab::DeviceModel;

use crate::fitting::{CalibratedRuns, unusable};
use crate::validation::{ModelValidation, ValidatedModel, validate_runs};

pub use kernel_router::{KERNEL_ROUTERS, RouterLimit};
pub use reproduction::{ModelReproduction, VoidReproduction};

/// Kind of a foreign device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignKind {
    /// A single queue behind each output explains it.
    SingleQueue,
    /// Shared servers, input queues or contention.
    Complex,
}

/// Scores of the three models on a held-out run of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignComparison {
    /// Name of the device.
    pub device: String,
    /// Its kind.
    pub kind: ForeignKind,
    /// Held-out experiment.
    pub experiment: String,
    /// Set if the device ran in real time.
    pub is_real_time: bool,
    /// Distance of the distributions of delays (Kolmogorov and Smirnov), for our model.
    pub ks_ours: f64,
    /// The same for a single FIFO output queue.
    pub ks_fifo: f64,
    /// The same for the fluid queue of Hohn et al.
    pub ks_hohn: f64,
    /// Error of the delay of 95 %, for our model.
    pub p95_error_ours: f64,
    /// The same for a single FIFO output queue.
    pub p95_error_fifo: f64,
    /// The same for the fluid queue of Hohn et al.
    pub p95_error_hohn: f64,
    /// Loss ratio of the device.
    pub loss_measured: f64,
    /// Loss ratio of our model.
    pub loss_ours: f64,
    /// Delays that differ by no more count as equal: the noise of the stamps, and at least a microsecond.
    pub resolution_ns: u64,
}

/// A held-out run of a device without a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncomparedRun {
    /// Name of the device.
    pub device: String,
    /// Its kind.
    pub kind: ForeignKind,
    /// Held-out experiment.
    pub experiment: String,
    /// Set if the device ran in real time.
    pub is_real_time: bool,
    /// Set if the measurement of the run is void, so that it says nothing about any model. Otherwise a model
    /// failed, and ours counts as not the best.
    pub is_void: bool,
    /// Why there is no comparison.
    pub reason: String,
}

impl ForeignComparison {
    /// Tells whether our model is below both baselines in distance and error.
    #[must_use]
    pub fn is_ours_best(&self) -> bool {
        self.ks_ours < self.ks_fifo.min(self.ks_hohn)
            && self.p95_error_ours < self.p95_error_fifo.min(self.p95_error_hohn)
    }

    /// Tells whether our model is within 10 % or 0.02 of the better baseline, in distance and error.
    #[must_use]
    pub fn is_ours_equal(&self) -> bool {
        let is_near = |ours: f64, best: f64| ours <= (best * 1.1).max(best + 0.02);
        is_near(self.ks_ours, self.ks_fifo.min(self.ks_hohn))
            && is_near(
                self.p95_error_ours,
                self.p95_error_fifo.min(self.p95_error_hohn),
            )
    }
}

/// A device that was measured, fitted and compared.
#[derive(Clone, Debug)]
pub struct ForeignResult {
    /// The fitted model; `None` if the device could not be fitted.
    pub model: Option<DeviceModel>,
    /// Comparisons on its held-out runs.
    pub comparisons: Vec<ForeignComparison>,
    /// Held-out runs without a comparison.
    pub uncompared: Vec<UncomparedRun>,
    /// Held-out runs through the fitted model in the emulator, for devices in real time.
    pub reproductions: Vec<ModelReproduction>,
    /// Held-out runs that could not be reproduced, or whose reproduction says nothing.
    pub void_reproductions: Vec<VoidReproduction>,
    /// Remarks of the fit and of the validation.
    pub remarks: Vec<String>,
}

impl ForeignResult {
    /// The fitted model as the text of a model file; `None` without a model.
    ///
    /// # Errors
    /// When TOML cannot express it.
    pub fn model_text(&self) -> Result<Option<String>> {
        let text = self.model.as_ref().map(toml::to_string).transpose();
        text.context("writing a device model")
    }
}

/// Measures the switches of these seeds in virtual time, and compares the models.
pub fn in_virtual_time(seeds: Range<u64>, progress: &dyn ProgressReporter) -> Vec<ForeignResult> {
    let count = seeds.end.saturating_sub(seeds.start).max(1);
    let plan = cell_switch::plan();
    let mut results = Vec::new();
    for seed in seeds.clone() {
        let done = (seed - seeds.start) as f64 / count as f64;
        progress.step(done, &format!("foreign device {seed}, virtual time"));
        if kernel::interrupted() {
            break;
        }
        let runs = cell_switch::measure(&plan, seed);
        let name = format!("cell switch {seed}");
        results.push(compare(&name, (ForeignKind::Complex, false), runs, &plan));
    }
    results
}

/// Number of the foreign devices in real time.
pub const REAL_TIME_DEVICES: usize = KERNEL_ROUTERS.len() + 1;

/// Measures those of the devices of the kernel and of user space that have these numbers, in real time,
/// and compares the models; `take` gets each result once it is there. A device that cannot be made or
/// measured gives an error, and so does one that would probably end after `until`.
pub fn in_real_time(
    lab: &LabRun,
    (numbers, until): (Range<usize>, Option<Instant>),
    progress: &dyn ProgressReporter,
    take: &mut dyn FnMut(Result<ForeignResult>),
) {
    let numbers = numbers.start..numbers.end.min(REAL_TIME_DEVICES);
    let count = numbers.len().max(1);
    for (position, number) in numbers.enumerate() {
        let router = KERNEL_ROUTERS.get(number);
        let (name, takes) = match router {
            Some(limit) => (limit.name(), kernel_router::measuring_time(*limit)),
            None => (contention::NAME.to_owned(), contention::measuring_time()),
        };
        let done = position as f64 / count as f64;
        progress.step(done, &format!("{name}, about {} s", takes.as_secs()));
        let result = if kernel::interrupted() {
            Err(anyhow!("the user stopped the benchmark"))
        } else if until.is_some_and(|until| Instant::now() + takes > until) {
            Err(anyhow!("the time of this piece was over"))
        } else {
            match router {
                Some(limit) => kernel_router(lab, *limit, progress),
                None => contending_forwarders(lab, progress),
            }
        };
        take(result.with_context(|| name));
    }
}

fn contending_forwarders(lab: &LabRun, progress: &dyn ProgressReporter) -> Result<ForeignResult> {
    let (plan, runs) = contention::measure(lab, progress)?;
    ensure!(!kernel::interrupted(), "the user stopped the benchmark");
    let kind = (ForeignKind::Complex, true);
    Ok(compare(contention::NAME, kind, runs, &plan))
}

/// Measures a router of the kernel, compares the models, and runs ours in the emulator.
///
/// # Errors
/// When the router cannot be made or measured.
pub fn kernel_router(
    lab: &LabRun,
    limit: RouterLimit,
    progress: &dyn ProgressReporter,
) -> Result<ForeignResult> {
    let (plan, runs) = kernel_router::measure(lab, limit, progress)?;
    // A part of the plan says too little.
    ensure!(!kernel::interrupted(), "the user stopped the benchmark");
    let kind = (ForeignKind::SingleQueue, true);
    let name = limit.name();
    let mut result = compare(&name, kind, runs.clone(), &plan);
    (result.reproductions, result.void_reproductions) = match &result.model {
        Some(model) => match reproduction::reproduce(lab, model, &plan, &runs) {
            Ok(both) => both,
            Err(error) => (
                Vec::new(),
                all_void(
                    &name,
                    &plan,
                    &format!("it could not be emulated: {error:#}"),
                ),
            ),
        },
        None => (
            Vec::new(),
            all_void(&name, &plan, "there is no model of the device"),
        ),
    };
    ensure!(!kernel::interrupted(), "the user stopped the benchmark");
    Ok(result)
}

fn all_void(device: &str, plan: &MeasurementPlan, reason: &str) -> Vec<VoidReproduction> {
    held_out_plans(plan)
        .map(|run| VoidReproduction {
            device: device.to_owned(),
            experiment: run.experiment,
            reason: reason.to_owned(),
        })
        .collect()
}

/// Runs of the plan that validate a model.
fn held_out_plans(plan: &MeasurementPlan) -> impl Iterator<Item = RunPlan> {
    plan.runs().into_iter().filter(|run| {
        run.purpose == ExperimentPurpose::HeldOut && run.subject == MeasurementSubject::Device
    })
}

/// Fits all models to the runs of a device, and compares them on those that are held out. Every held-out
/// run of the plan has a comparison, or is named without one.
fn compare(
    name: &str,
    (kind, is_real_time): (ForeignKind, bool),
    runs: Vec<MeasuredRun>,
    plan: &MeasurementPlan,
) -> ForeignResult {
    let measured: Vec<(RunPlan, Option<String>)> = held_out_plans(plan)
        .map(|planned| {
            let run = runs.iter().find(|run| is_same_run(&run.plan, &planned));
            let void = match run {
                Some(run) => unusable(run),
                None => Some("its measurement is void".to_owned()),
            };
            (planned, void)
        })
        .collect();
    let mut result = ForeignResult {
        model: None,
        comparisons: Vec::new(),
        uncompared: Vec::new(),
        reproductions: Vec::new(),
        void_reproductions: Vec::new(),
        remarks: Vec::new(),
    };
    let (mut compared, mut failure) = (Vec::new(), None);
    match CalibratedRuns::new(runs.clone(), plan.ports).fit(name, ModelFamily::Full) {
        Ok(fit) => {
            match validate_runs(runs, plan.ports, &fit.model) {
                Ok(validation) => {
                    (compared, result.comparisons) =
                        comparisons(name, (kind, is_real_time), &validation)
                            .into_iter()
                            .unzip();
                    result.remarks = validation.remarks;
                }
                Err(error) => failure = Some(format!("{error:#}")),
            }
            result.model = Some(fit.model);
        }
        Err(error) => failure = Some(format!("no model was fitted: {error}")),
    }
    result.remarks.extend(failure.clone());
    for (planned, void) in measured {
        if compared.iter().any(|one| is_same_run(one, &planned)) {
            continue;
        }
        let reason = void.clone().or_else(|| failure.clone());
        result.uncompared.push(UncomparedRun {
            device: name.to_owned(),
            kind,
            experiment: planned.experiment,
            is_real_time,
            is_void: void.is_some(),
            reason: reason.unwrap_or_else(|| {
                "the device, our model or a baseline delivers none of its packets".to_owned()
            }),
        });
    }
    result
}

fn is_same_run(one: &RunPlan, other: &RunPlan) -> bool {
    (&one.experiment, one.subject, one.repetition, one.size)
        == (
            &other.experiment,
            other.subject,
            other.repetition,
            other.size,
        )
}

/// The runs on which all three models predict something, with their comparisons.
fn comparisons(
    name: &str,
    (kind, is_real_time): (ForeignKind, bool),
    validation: &ModelValidation,
) -> Vec<(RunPlan, ForeignComparison)> {
    let scored = validation.runs.iter().filter_map(|run| {
        let score = |model| Some(run.prediction(model)?.score);
        let [ours, fifo, hohn] = [
            score(ValidatedModel::Ours)?,
            score(ValidatedModel::SingleQueue)?,
            score(ValidatedModel::FluidQueue)?,
        ];
        let comparison = ForeignComparison {
            device: name.to_owned(),
            kind,
            experiment: run.plan.experiment.clone(),
            is_real_time,
            ks_ours: ours.ks_distance,
            ks_fifo: fifo.ks_distance,
            ks_hohn: hohn.ks_distance,
            p95_error_ours: ours.p95_error(),
            p95_error_fifo: fifo.p95_error(),
            p95_error_hohn: hohn.p95_error(),
            loss_measured: ours.measured.loss_ratio,
            loss_ours: ours.predicted.loss_ratio,
            resolution_ns: u64::try_from(validation.resolution.as_nanos()).unwrap_or(u64::MAX),
        };
        Some((run.plan.clone(), comparison))
    });
    scored.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_without_a_fit_keeps_its_runs_in_the_account() {
        // Nothing arrives, so no model can be fitted.
        let plan = cell_switch::plan();
        let lost = plan.runs().into_iter().map(|run| MeasuredRun {
            plan: run,
            records: Vec::new(),
        });
        let result = compare("dead", (ForeignKind::Complex, false), lost.collect(), &plan);
        assert!(result.model.is_none() && result.comparisons.is_empty());
        let named: Vec<&str> = result
            .uncompared
            .iter()
            .map(|run| run.experiment.as_str())
            .collect();
        assert_eq!(
            named,
            [
                "bursts to all outputs",
                "bursts to one output",
                "closed-loop TCP"
            ]
        );
        assert!(result.uncompared.iter().all(|run| !run.is_void));
    }

    #[test]
    fn void_run_is_named_as_void() {
        let plan = cell_switch::plan();
        let result = compare("absent", (ForeignKind::Complex, true), Vec::new(), &plan);
        assert_eq!(result.uncompared.len(), 3);
        assert!(result.uncompared.iter().all(|run| run.is_void));
    }
}
