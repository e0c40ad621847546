//! Validation of a model on the held-out runs of a measurement, beside two baselines.
//!
//! ```text
//!  held-out run ─► our model ──────────┐
//!             ├──► single FIFO queue ──┼─► delays, loss, goodput against those of the device
//!             └──► fluid queue ────────┘
//!                     ▲ fitted by one search to the same records
//! ```
//! One run is in memory at a time, beside the runs of the fit.

use std::time::Duration;

use anyhow::{Result, bail};
use profile::{
    CableCalibration, DeviceFit, ExperimentPurpose, MeasuredRun, MeasurementSubject, ModelFamily,
    PacketPrediction, RunPlan, RunScore, predict_run, score_predictions,
};
use vocab::DeviceModel;

use crate::fitting::{CalibratedRuns, unusable};
use crate::records::RecordDirectory;
use crate::virtual_device::EmulatorSimulator;

/// Delays that differ by less are equal, as with stamps in microseconds: without it, a line whose rate
/// is wrong by 10⁻⁸ has another delay for each packet.
const SCORE_RESOLUTION: Duration = Duration::from_micros(1);
/// Points of a curve: enough for a plot of 760 pixels.
const CURVE_POINTS: usize = 201;

/// Model that predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValidatedModel {
    /// The model that is validated.
    Ours,
    /// A single FIFO output queue with a limit in packets.
    SingleQueue,
    /// Minimum transit by size and a fluid output queue in bytes (Hohn et al.).
    FluidQueue,
}

impl ValidatedModel {
    /// All, in the order of reports.
    pub const ALL: [ValidatedModel; 3] = [
        ValidatedModel::Ours,
        ValidatedModel::SingleQueue,
        ValidatedModel::FluidQueue,
    ];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ValidatedModel::Ours => "model",
            ValidatedModel::SingleQueue => "fifo",
            ValidatedModel::FluidQueue => "hohn",
        }
    }
}

/// Prediction of a run by one model.
#[derive(Clone, Debug)]
pub struct ModelPrediction {
    /// The model.
    pub model: ValidatedModel,
    /// Its score.
    pub score: RunScore,
    /// Delays in µs at equal steps of the distribution.
    pub delays_us: Vec<f64>,
    /// Predicted less measured delay in µs, of packets that device and model deliver, at equal steps
    /// of its distribution.
    pub residuals_us: Vec<f64>,
}

/// Predictions of one held-out run.
#[derive(Clone, Debug)]
pub struct RunComparison {
    /// The run.
    pub plan: RunPlan,
    /// Number of packets.
    pub packets: usize,
    /// Delays through the device in µs at equal steps of the distribution.
    pub measured_us: Vec<f64>,
    /// Predictions, ours first.
    pub predictions: Vec<ModelPrediction>,
}

impl RunComparison {
    /// The prediction of this model.
    #[must_use]
    pub fn prediction(&self, model: ValidatedModel) -> Option<&ModelPrediction> {
        self.predictions
            .iter()
            .find(|prediction| prediction.model == model)
    }

    /// Tells whether our model has the smallest distance and the smallest error of the 95 % delay.
    #[must_use]
    pub fn is_ours_best(&self) -> bool {
        let Some(ours) = self.prediction(ValidatedModel::Ours) else {
            return false;
        };
        let others = || self.predictions.iter().skip(1);
        others().next().is_some()
            && others().all(|other| {
                ours.score.ks_distance < other.score.ks_distance
                    && ours.score.p95_error() < other.score.p95_error()
            })
    }
}

/// Validation of a model on a measurement.
#[derive(Debug)]
pub struct ModelValidation {
    /// The model.
    pub model: DeviceModel,
    /// Calibration of the cable.
    pub calibration: Option<CableCalibration>,
    /// Delays that differ by no more count as equal.
    pub resolution: Duration,
    /// Fit of the whole model to the same measurement, with its intervals; `None` if the measurement
    /// has no runs for it.
    pub fit: Option<DeviceFit>,
    /// Baselines, fitted to the same measurement.
    pub baselines: Vec<(ValidatedModel, DeviceModel)>,
    /// Held-out runs, in the order of measuring.
    pub runs: Vec<RunComparison>,
    /// Sentences about runs and baselines that are missing.
    pub remarks: Vec<String>,
}

/// A model beside its baselines, which predicts held-out runs.
#[derive(Debug)]
struct ModelBench {
    calibration: Option<CableCalibration>,
    resolution: Duration,
    models: Vec<(ValidatedModel, DeviceModel)>,
}

/// Validates `model` on the held-out runs of `records`.
///
/// # Errors
/// When the records are damaged or hold no held-out run through the device.
pub fn validate(records: &RecordDirectory, model: &DeviceModel) -> Result<ModelValidation> {
    let training = CalibratedRuns::read(records)?;
    let (bench, mut validation) = prepare(&training, model);
    for block in &records.blocks {
        if !is_held_out(&block.plan) || block.is_void {
            continue;
        }
        add_run(&bench, &mut validation, records.read(block)?);
    }
    finish(validation)
}

/// Validates `model` on the held-out runs among `runs`, which have their cable's delay.
///
/// # Errors
/// When there is no held-out run through the device.
pub fn validate_runs(
    runs: Vec<MeasuredRun>,
    ports: u16,
    model: &DeviceModel,
) -> Result<ModelValidation> {
    let (held_out, training): (Vec<_>, Vec<_>) =
        runs.into_iter().partition(|run| is_held_out(&run.plan));
    let (bench, mut validation) = prepare(&CalibratedRuns::new(training, ports), model);
    for run in held_out {
        add_run(&bench, &mut validation, run);
    }
    finish(validation)
}

fn is_held_out(plan: &RunPlan) -> bool {
    plan.purpose == ExperimentPurpose::HeldOut && plan.subject == MeasurementSubject::Device
}

fn prepare(training: &CalibratedRuns, model: &DeviceModel) -> (ModelBench, ModelValidation) {
    let mut remarks = training.remarks.clone();
    let mut fitted = |name, family| match training.fit(name, family) {
        Ok(fit) => Some(fit),
        Err(error) => {
            remarks.push(format!("{name} was not fitted: {error}"));
            None
        }
    };
    let fit = fitted("the model of this measurement", ModelFamily::Full);
    let baselines: Vec<(ValidatedModel, DeviceModel)> = [
        (
            ValidatedModel::SingleQueue,
            fitted("the single FIFO output queue", ModelFamily::SingleQueue),
        ),
        (
            ValidatedModel::FluidQueue,
            fitted("the fluid queue of Hohn et al.", ModelFamily::FluidQueue),
        ),
    ]
    .into_iter()
    .filter_map(|(which, fit)| Some((which, fit?.model)))
    .collect();
    let mut models = vec![(ValidatedModel::Ours, model.clone())];
    models.extend(baselines.iter().cloned());
    let resolution = training.resolution().max(SCORE_RESOLUTION);
    let bench = ModelBench {
        calibration: training.calibration.clone(),
        resolution,
        models,
    };
    let validation = ModelValidation {
        model: model.clone(),
        calibration: training.calibration.clone(),
        resolution,
        fit,
        baselines,
        runs: Vec::new(),
        remarks,
    };
    (bench, validation)
}

fn add_run(bench: &ModelBench, validation: &mut ModelValidation, mut run: MeasuredRun) {
    let named = format!("run {} ({})", run.plan.number, run.plan.experiment);
    if let Some(reason) = unusable(&run) {
        validation
            .remarks
            .push(format!("{named} is left out: {reason}"));
        return;
    }
    if let Some(calibration) = &bench.calibration {
        calibration.subtract(&mut run);
    }
    match bench.compare(&run) {
        Some(comparison) => validation.runs.push(comparison),
        None => validation.remarks.push(format!(
            "{named} is left out: the device or the model delivers none of its packets"
        )),
    }
}

fn finish(validation: ModelValidation) -> Result<ModelValidation> {
    if validation.runs.is_empty() {
        let mut reasons = validation.remarks.join("; ");
        if !reasons.is_empty() {
            reasons.insert_str(0, ": ");
        }
        bail!(
            "the measurement has no usable held-out run through the device; add experiments with \
             purpose = \"held-out\" to the plan{reasons}"
        );
    }
    Ok(validation)
}

impl ModelBench {
    /// Compares all models on a run; `None` if the device or our model delivers no packet.
    fn compare(&self, run: &MeasuredRun) -> Option<RunComparison> {
        let mut measured_us = Vec::new();
        let mut packets = 0;
        let mut predictions = Vec::new();
        for (which, model) in &self.models {
            let predicted = predict_run(&mut EmulatorSimulator, model, run, Duration::ZERO);
            let Some(score) = score_predictions(&predicted, self.resolution) else {
                if *which == ValidatedModel::Ours {
                    return None;
                }
                continue;
            };
            if *which == ValidatedModel::Ours {
                packets = predicted.len();
                measured_us = curve(
                    predicted
                        .iter()
                        .filter_map(|one| one.measured_delay().map(microseconds)),
                );
            }
            predictions.push(ModelPrediction {
                model: *which,
                score,
                delays_us: curve(
                    predicted
                        .iter()
                        .filter_map(|one| one.predicted_delay().map(microseconds)),
                ),
                residuals_us: curve(predicted.iter().filter_map(residual)),
            });
        }
        Some(RunComparison {
            plan: run.plan.clone(),
            packets,
            measured_us,
            predictions,
        })
    }
}

/// Predicted less measured delay in µs.
fn residual(one: &PacketPrediction) -> Option<f64> {
    Some(microseconds(one.predicted_delay()?) - microseconds(one.measured_delay()?))
}

fn microseconds(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e3
}

/// The values at equal steps of their distribution, from the smallest to the largest.
fn curve(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return Vec::new();
    };
    (0..CURVE_POINTS)
        .map(|point| sorted[point * last / (CURVE_POINTS - 1)])
        .collect()
}
