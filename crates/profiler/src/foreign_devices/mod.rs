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

use anyhow::{Context, Result};
use host::kernel;
use host::progress::ProgressReporter;
use host::run::LabRun;
use profile::{MeasuredRun, MeasurementPlan, ModelFamily};
use serde::Serialize;
use vocab::DeviceModel;

use crate::fitting::CalibratedRuns;
use crate::validation::{ModelValidation, ValidatedModel, validate_runs};

pub use kernel_router::{KERNEL_ROUTERS, RouterLimit};
pub use reproduction::ModelReproduction;

/// Kind of a foreign device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignKind {
    /// A single queue behind each output explains it.
    SingleQueue,
    /// Shared servers, input queues or contention.
    Complex,
}

/// Scores of the three models on a held-out run of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
#[derive(Debug)]
pub struct ForeignResult {
    /// The fitted model.
    pub model: DeviceModel,
    /// Comparisons on its held-out runs.
    pub comparisons: Vec<ForeignComparison>,
    /// Held-out runs through the fitted model in the emulator, for devices in real time.
    pub reproductions: Vec<ModelReproduction>,
    /// Remarks of the fit and of the validation.
    pub remarks: Vec<String>,
}

impl ForeignResult {
    /// The fitted model as the text of a model file.
    ///
    /// # Errors
    /// When TOML cannot express it.
    pub fn model_text(&self) -> Result<String> {
        toml::to_string(&self.model).context("writing a device model")
    }
}

/// Measures the switches of these seeds in virtual time, and compares the models. A device that cannot
/// be fitted gives an error.
pub fn in_virtual_time(
    seeds: Range<u64>,
    progress: &dyn ProgressReporter,
) -> Vec<Result<ForeignResult>> {
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
/// and compares the models. A device that cannot be made, measured, fitted or emulated gives an error.
pub fn in_real_time(
    lab: &LabRun,
    numbers: Range<usize>,
    progress: &dyn ProgressReporter,
) -> Vec<Result<ForeignResult>> {
    let mut results = Vec::new();
    let numbers = numbers.start..numbers.end.min(REAL_TIME_DEVICES);
    let count = numbers.len().max(1);
    for (position, number) in numbers.enumerate() {
        if kernel::interrupted() {
            break;
        }
        let done = position as f64 / count as f64;
        results.push(match KERNEL_ROUTERS.get(number) {
            Some(limit) => {
                progress.step(done, &limit.name());
                kernel_router(lab, *limit, progress).with_context(|| limit.name())
            }
            None => {
                progress.step(done, contention::NAME);
                contending_forwarders(lab, progress).context(contention::NAME)
            }
        });
    }
    results
}

fn contending_forwarders(lab: &LabRun, progress: &dyn ProgressReporter) -> Result<ForeignResult> {
    let (plan, runs) = contention::measure(lab, progress)?;
    compare(contention::NAME, (ForeignKind::Complex, true), runs, &plan)
}

/// Measures a router of the kernel, compares the models, and runs ours in the emulator.
///
/// # Errors
/// When the router cannot be made, measured, fitted or emulated.
pub fn kernel_router(
    lab: &LabRun,
    limit: RouterLimit,
    progress: &dyn ProgressReporter,
) -> Result<ForeignResult> {
    let (plan, runs) = kernel_router::measure(lab, limit, progress)?;
    let kind = (ForeignKind::SingleQueue, true);
    let mut result = compare(&limit.name(), kind, runs.clone(), &plan)?;
    result.reproductions = reproduction::reproduce(lab, &result.model, &plan, &runs)?;
    Ok(result)
}

/// Fits all models to the runs of a device, and compares them on those that are held out.
fn compare(
    name: &str,
    (kind, is_real_time): (ForeignKind, bool),
    runs: Vec<MeasuredRun>,
    plan: &MeasurementPlan,
) -> Result<ForeignResult> {
    let model = CalibratedRuns::new(runs.clone(), plan.ports)
        .fit(name, ModelFamily::Full)
        .with_context(|| name.to_owned())?
        .model;
    let validation = validate_runs(runs, plan.ports, &model).with_context(|| name.to_owned())?;
    Ok(ForeignResult {
        comparisons: comparisons(name, (kind, is_real_time), &validation),
        model,
        reproductions: Vec::new(),
        remarks: validation.remarks,
    })
}

fn comparisons(
    name: &str,
    (kind, is_real_time): (ForeignKind, bool),
    validation: &ModelValidation,
) -> Vec<ForeignComparison> {
    let scored = validation.runs.iter().filter_map(|run| {
        let score = |model| Some(run.prediction(model)?.score);
        let [ours, fifo, hohn] = [
            score(ValidatedModel::Ours)?,
            score(ValidatedModel::SingleQueue)?,
            score(ValidatedModel::FluidQueue)?,
        ];
        Some(ForeignComparison {
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
        })
    });
    scored.collect()
}
