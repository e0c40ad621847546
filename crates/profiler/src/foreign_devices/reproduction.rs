//! Reproduction: a fitted model runs in the emulator, in real time, and is measured as its device was.
//!
//! ```text
//!   device ─► training runs ─► model ─► emulator ─► held-out runs ─┐
//!         └─► held-out runs ───────────────────────────────────────┴─► loss and p95 delay
//! ```

use std::time::Duration;

use anyhow::Result;
use host::progress::SilentProgress;
use host::run::LabRun;
use profile::{ExperimentPurpose, MeasuredRun, MeasurementPlan, MeasurementSubject, PacketFate};
use serde::Serialize;
use vocab::DeviceModel;

use crate::device_stand::DeviceStand;
use crate::fitting::CalibratedRuns;

/// Greatest error of the loss ratio, as a share of it or in absolute terms.
const LOSS_ERROR_MAX: f64 = 0.2;
const LOSS_DIFFERENCE_MAX: f64 = 0.000_5;
/// Greatest error of the 95 % delay.
const DELAY_ERROR_MAX: f64 = 0.1;

/// A held-out run of a device beside the same run through its model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReproduction {
    /// Name of the device.
    pub device: String,
    /// Held-out experiment.
    pub experiment: String,
    /// Loss ratio of the device.
    pub loss_device: f64,
    /// Loss ratio of the model in the emulator.
    pub loss_model: f64,
    /// Delay of 95 % of the device.
    pub p95_device_us: f64,
    /// Delay of 95 % of the model in the emulator.
    pub p95_model_us: f64,
    /// Noise of the stamps, by the noisier of the two calibrations.
    pub noise_us: f64,
}

impl ModelReproduction {
    /// Tells whether the loss is within 20 % or 0.05 percentage points, and the delay within 10 % or the
    /// noise of the stamps.
    #[must_use]
    pub fn is_near(&self) -> bool {
        let difference = (self.loss_model - self.loss_device).abs();
        let is_loss_near = difference <= LOSS_DIFFERENCE_MAX.max(LOSS_ERROR_MAX * self.loss_device);
        let delay_error = (self.p95_model_us - self.p95_device_us).abs();
        let is_delay_near = delay_error <= self.noise_us.max(DELAY_ERROR_MAX * self.p95_device_us);
        is_loss_near && is_delay_near
    }
}

/// Measures the held-out runs of `plan` through `model` in the emulator, and compares them with those
/// of the device among `measured`.
///
/// # Errors
/// When the emulator does not run the model, or nothing is measured.
pub(super) fn reproduce(
    lab: &LabRun,
    model: &DeviceModel,
    plan: &MeasurementPlan,
    measured: &[MeasuredRun],
) -> Result<Vec<ModelReproduction>> {
    let mut plan = plan.clone();
    for experiment in &mut plan.experiments {
        if experiment.purpose != ExperimentPurpose::HeldOut {
            experiment.subjects = vec![MeasurementSubject::Cable];
        }
    }
    plan.experiments.retain(|experiment| {
        matches!(
            experiment.purpose,
            ExperimentPurpose::HeldOut | ExperimentPurpose::Transit
        )
    });
    let stand = DeviceStand::create(lab, "reproduction", plan.ports)?;
    let process = stand.emulate(model)?;
    let (again, _) = stand.measure(&plan, &SilentProgress)?;
    process.stop()?;
    let (device, device_noise) = held_out(measured.to_vec(), plan.ports);
    let (emulated, emulated_noise) = held_out(again, plan.ports);
    let noise = device_noise.max(emulated_noise);
    let pairs = device.iter().filter_map(|one| {
        let other = emulated.iter().find(|other| {
            (&other.plan.experiment, other.plan.repetition)
                == (&one.plan.experiment, one.plan.repetition)
        })?;
        let ((loss_device, p95_device), (loss_model, p95_model)) = (figures(one)?, figures(other)?);
        Some(ModelReproduction {
            device: model.name.clone(),
            experiment: one.plan.experiment.clone(),
            loss_device,
            loss_model,
            p95_device_us: p95_device.as_nanos() as f64 / 1e3,
            p95_model_us: p95_model.as_nanos() as f64 / 1e3,
            noise_us: noise.as_nanos() as f64 / 1e3,
        })
    });
    Ok(pairs.collect())
}

/// The held-out runs, and the noise of their stamps.
fn held_out(runs: Vec<MeasuredRun>, ports: u16) -> (Vec<MeasuredRun>, Duration) {
    let calibrated = CalibratedRuns::new(runs, ports);
    let noise = calibrated.resolution();
    let mut runs = calibrated.runs;
    runs.retain(|run| run.plan.purpose == ExperimentPurpose::HeldOut);
    (runs, noise)
}

/// Loss ratio and delay of 95 % of a run; `None` if nothing arrived.
fn figures(run: &MeasuredRun) -> Option<(f64, Duration)> {
    let mut delays: Vec<Duration> = run
        .records
        .iter()
        .filter_map(profile::PacketRecord::delay)
        .collect();
    let lost = run
        .records
        .iter()
        .filter(|record| matches!(record.fate, PacketFate::Lost | PacketFate::Corrupted))
        .count();
    delays.sort_unstable();
    let rank = (delays.len() * 95).div_ceil(100);
    let p95 = *delays.get(rank.checked_sub(1)?)?;
    Some((lost as f64 / (lost + delays.len()) as f64, p95))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_is_a_share_or_a_few_packets() {
        let reproduction = |loss_device, loss_model, p95_model_us| ModelReproduction {
            device: String::new(),
            experiment: String::new(),
            loss_device,
            loss_model,
            p95_device_us: 100.0,
            p95_model_us,
            noise_us: 3.0,
        };
        assert!(reproduction(0.1, 0.119, 109.0).is_near());
        assert!(!reproduction(0.1, 0.121, 100.0).is_near());
        assert!(!reproduction(0.1, 0.1, 111.0).is_near());
        assert!(reproduction(0.0, 0.000_4, 100.0).is_near());
    }
}
