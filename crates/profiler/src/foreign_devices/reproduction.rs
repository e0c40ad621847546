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
use profile::{
    ExperimentPurpose, MeasuredRun, MeasurementPlan, MeasurementSubject, PacketFate, RunPlan,
};
use serde::{Deserialize, Serialize};
use vocab::DeviceModel;

use super::held_out_plans;
use crate::device_stand::DeviceStand;
use crate::fitting::{CalibratedRuns, unusable};

/// Greatest error of the loss ratio, as a share of it or in absolute terms.
const LOSS_ERROR_MAX: f64 = 0.2;
const LOSS_DIFFERENCE_MAX: f64 = 0.000_5;
/// Greatest error of the 95 % delay.
const DELAY_ERROR_MAX: f64 = 0.1;

/// A held-out run of a device beside the same run through its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Packets that the emulator delivered more than 0.2 ms after the model's time, as a share of all.
    pub emulator_late_share: f64,
    /// The loss is within 20 % or 0.05 percentage points.
    pub is_loss_near: bool,
    /// The delay of 95 % is within 10 %.
    pub is_delay_within_10_percent: bool,
    /// The delay of 95 % is within 10 % or the noise of the stamps. Where the noise is longer than 10 % of
    /// the delay, this says only that the measurement sees no difference.
    pub is_delay_within_noise: bool,
}

/// A held-out run whose reproduction says nothing, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoidReproduction {
    /// Name of the device.
    pub device: String,
    /// Held-out experiment.
    pub experiment: String,
    /// Why it says nothing.
    pub reason: String,
}

/// Loss ratio and delay of 95 % of a run.
#[derive(Clone, Copy, Debug)]
struct RunFigures {
    loss: f64,
    p95_us: f64,
}

impl ModelReproduction {
    fn new(
        device: &str,
        experiment: &str,
        (measured, emulated): (RunFigures, RunFigures),
        noise_us: f64,
        emulator_late_share: f64,
    ) -> Self {
        let loss_error = (emulated.loss - measured.loss).abs();
        let delay_error = (emulated.p95_us - measured.p95_us).abs();
        let delay_allowed = DELAY_ERROR_MAX * measured.p95_us;
        Self {
            device: device.to_owned(),
            experiment: experiment.to_owned(),
            loss_device: measured.loss,
            loss_model: emulated.loss,
            p95_device_us: measured.p95_us,
            p95_model_us: emulated.p95_us,
            noise_us,
            emulator_late_share,
            is_loss_near: loss_error <= LOSS_DIFFERENCE_MAX.max(LOSS_ERROR_MAX * measured.loss),
            is_delay_within_10_percent: delay_error <= delay_allowed,
            is_delay_within_noise: delay_error <= delay_allowed.max(noise_us),
        }
    }

    /// Tells whether loss and delay are within their limits.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.is_loss_near && self.is_delay_within_10_percent
    }

    /// Tells whether they are, or the measurement does not see the difference of the delays.
    #[must_use]
    pub fn is_near_within_noise(&self) -> bool {
        self.is_loss_near && self.is_delay_within_noise
    }
}

/// Measures the held-out runs of `plan` through `model` in the emulator, and compares them with those
/// of the device among `measured`. Every held-out run of the plan is among the results, or among the void ones.
///
/// # Errors
/// When the emulator does not run the model, or nothing is measured.
pub(super) fn reproduce(
    lab: &LabRun,
    model: &DeviceModel,
    plan: &MeasurementPlan,
    measured: &[MeasuredRun],
) -> Result<(Vec<ModelReproduction>, Vec<VoidReproduction>)> {
    let planned = held_out_plans(plan);
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
    let account = process.stop_emulation()?;
    let (device_noise, emulated_noise) = (
        CalibratedRuns::new(measured.to_vec(), plan.ports).resolution(),
        CalibratedRuns::new(again.clone(), plan.ports).resolution(),
    );
    let noise = device_noise.max(emulated_noise).as_nanos() as f64 / 1e3;
    let (mut pairs, mut void) = (Vec::new(), Vec::new());
    for run in planned {
        match pair(&run, measured, &again) {
            Ok(figures) => pairs.push(ModelReproduction::new(
                &model.name,
                &run.experiment,
                figures,
                noise,
                account.late_share,
            )),
            Err(reason) => void.push(VoidReproduction {
                device: model.name.clone(),
                experiment: run.experiment,
                reason,
            }),
        }
    }
    Ok((pairs, void))
}

/// Figures of a planned run of the device and of its model, or the reason why there are none.
fn pair(
    planned: &RunPlan,
    measured: &[MeasuredRun],
    again: &[MeasuredRun],
) -> Result<(RunFigures, RunFigures), String> {
    let of = |runs: &[MeasuredRun], subject: &str| {
        let run = runs.iter().find(|run| {
            run.plan.purpose == ExperimentPurpose::HeldOut
                && (&run.plan.experiment, run.plan.repetition)
                    == (&planned.experiment, planned.repetition)
        });
        let run = run.ok_or_else(|| format!("the run of the {subject} is void or missing"))?;
        match unusable(run) {
            Some(reason) => Err(format!("the run of the {subject} is void: {reason}")),
            None => Ok(figures(run)),
        }
    };
    let device = of(measured, "device")?.ok_or("the device delivered no packet")?;
    // A model that delivers nothing is wrong, and not void.
    let model = of(again, "emulated model")?.unwrap_or(RunFigures {
        loss: 1.0,
        p95_us: f64::INFINITY,
    });
    Ok((device, model))
}

/// The figures of a run; `None` if nothing arrived.
fn figures(run: &MeasuredRun) -> Option<RunFigures> {
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
    Some(RunFigures {
        loss: lost as f64 / (lost + delays.len()) as f64,
        p95_us: p95.as_nanos() as f64 / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use profile::PacketRecord;
    use vocab::Time;

    use super::*;

    fn reproduction(loss: [f64; 2], p95_us: [f64; 2]) -> ModelReproduction {
        let figures = |index: usize| RunFigures {
            loss: loss[index],
            p95_us: p95_us[index],
        };
        ModelReproduction::new("", "", (figures(0), figures(1)), 30.0, 0.0)
    }

    #[test]
    fn near_is_a_share_or_a_few_packets() {
        assert!(reproduction([0.1, 0.119], [100.0, 109.0]).is_near());
        assert!(!reproduction([0.1, 0.121], [100.0, 100.0]).is_near());
        assert!(reproduction([0.0, 0.000_4], [100.0, 100.0]).is_near());
    }

    /// A held-out run with these arrivals in ns, each of a packet that was sent at zero.
    fn run(arrivals: &[Option<u64>], fate: PacketFate) -> MeasuredRun {
        let plan = MeasurementPlan::from_toml(
            r#"
            name = "test"
            ports = 2
            [[experiment]]
            name = "bursts"
            purpose = "held-out"
            traffic = [{ from = [0], to = [1], packets = 2, sizes = [{ size = "100B" }],
                pattern = { kind = "constant", packets_per_second = 1.0 } }]
            "#,
        )
        .unwrap();
        let record = |(number, at): (usize, &Option<u64>)| PacketRecord {
            sequence: number as u64,
            flow: 0,
            size: 100,
            input: 0,
            output: 1,
            sent: Time::ZERO,
            received: at.map(Time::from_nanos),
            fate: at.map_or(fate, |_| PacketFate::Delivered),
        };
        MeasuredRun {
            plan: plan.runs().remove(0),
            records: arrivals.iter().enumerate().map(record).collect(),
        }
    }

    #[test]
    fn void_run_is_named_and_a_silent_model_is_wrong() {
        let good = [run(&[Some(1_000), Some(2_000)], PacketFate::Lost)];
        let planned = good[0].plan.clone();
        assert!(pair(&planned, &good, &good).is_ok());
        let void = [run(&[Some(1_000), None], PacketFate::LostAtPort)];
        for (device, model) in [
            (&void[..], &good[..]),
            (&good[..], &void[..]),
            (&good[..], &[]),
        ] {
            let reason = pair(&planned, device, model).unwrap_err();
            assert!(reason.contains("void"), "{reason}");
        }
        let silent = [run(&[None, None], PacketFate::Lost)];
        let both = pair(&planned, &good, &silent).unwrap();
        let reproduction = ModelReproduction::new("", "", both, 30.0, 0.0);
        assert!(!reproduction.is_near() && !reproduction.is_near_within_noise());
    }

    #[test]
    fn delay_within_noise_is_said_apart() {
        let hidden = reproduction([0.1, 0.1], [100.0, 125.0]);
        assert!(!hidden.is_near() && hidden.is_near_within_noise());
        let different = reproduction([0.1, 0.1], [100.0, 131.0]);
        assert!(!different.is_near_within_noise());
        let other_loss = reproduction([0.1, 0.2], [100.0, 125.0]);
        assert!(!other_loss.is_near_within_noise());
    }
}
