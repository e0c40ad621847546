//! Known devices: drawn from seeds, measured by a plan, fitted, and compared with the truth.
//!
//! ```text
//!   seed ─► draw ─► emulated device ─► measured, in virtual or in real time ─► fit ─► judge
//!             └──────────────────────── the true parameters ──────────────────────────┘
//! ```
//! A parameter that the fit calls unidentifiable counts as wrong where the plan overloads that part of
//! the device.

pub mod draw;
pub mod judge;

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result};
use host::kernel;
use host::progress::{ProgressReporter, SilentProgress};
use host::run::LabRun;
use profile::{ExperimentPurpose, MeasuredRun, ModelFamily, PacketFate};
use serde::Serialize;
use vocab::DeviceModel;

use crate::device_stand::DeviceStand;
use crate::fitting::CalibratedRuns;
use crate::measurement::MeasurementResult;
use crate::virtual_device::virtual_runs;
use judge::{FitErrors, judge};

/// Figures of many draws.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KnownDeviceFigures {
    /// Devices that were drawn, measured and fitted.
    pub draws: usize,
    /// 95th percentile of the error of the rate.
    pub rate_error_p95_percent: f64,
    /// 95th percentile of the greatest error of the transit at any size, where it exceeds 5 %.
    pub transit_error_p95_us: f64,
    /// Share of the queues whose unit is right.
    pub queue_unit_right_share: f64,
    /// 95th percentile of the error of the queue's size beyond one packet.
    pub queue_size_error_p95_percent: f64,
    /// Share of the devices whose number of servers is right.
    pub servers_right_share: f64,
    /// Devices whose rate, queue and servers the plan overloads, so that they are judged.
    pub rates_judged: usize,
    /// Devices whose queue is judged.
    pub queues_judged: usize,
    /// Devices whose servers are judged.
    pub servers_judged: usize,
    /// Median of the noise of the stamps, by the calibration over a cable.
    pub calibration_noise_us: f64,
    /// Devices that could not be fitted, with the reason; they count as wrong in everything.
    pub unfitted: Vec<String>,
}

/// A draw that was measured: the errors, and the noise of the stamps.
type JudgedDraw = (Result<FitErrors>, Duration);

/// Measures and fits the devices of these seeds in virtual time.
#[must_use]
pub fn in_virtual_time(seeds: Range<u64>, progress: &dyn ProgressReporter) -> KnownDeviceFigures {
    let count = seeds.end.saturating_sub(seeds.start).max(1);
    let plan = draw::plan("0s");
    let draws = seeds.clone().map_while(|seed| {
        let done = (seed - seeds.start) as f64 / count as f64;
        progress.step(done, &format!("known device {seed}, virtual time"));
        if kernel::interrupted() {
            return None;
        }
        let device = draw::device(seed);
        let runs = virtual_runs(&plan, &device).collect();
        let noise = Duration::from_nanos(1);
        Some((judged(&device, runs, (Duration::ZERO, noise)), noise))
    });
    figures(draws)
}

/// Measures and fits the devices of these seeds in real time: each runs in a process of its own,
/// between veth pairs.
///
/// # Errors
/// When the stand cannot be made or a measurement fails.
pub fn in_real_time(
    lab: &LabRun,
    seeds: Range<u64>,
    progress: &dyn ProgressReporter,
) -> Result<KnownDeviceFigures> {
    let count = seeds.end.saturating_sub(seeds.start).max(1);
    let stand = DeviceStand::create(lab, "known", draw::PORTS)?;
    let mut draws = Vec::new();
    for seed in seeds.clone() {
        let done = (seed - seeds.start) as f64 / count as f64;
        progress.step(done, &format!("known device {seed}, real time"));
        if kernel::interrupted() {
            break;
        }
        let device = draw::device(seed);
        let process = stand.emulate(&device)?;
        let plan = draw::real_plan(&device);
        let (runs, result) = stand
            .measure(&plan, &SilentProgress)
            .with_context(|| format!("known device {seed}"))?;
        process.stop()?;
        let calibrated = CalibratedRuns::new(runs, device.ports);
        let noise = calibrated.resolution();
        let quality = (sending_gap(&result), noise);
        let errors = judged_of(&device, &calibrated, quality);
        if let Ok(errors) = &errors {
            progress.note(&format!("known device {seed}: {errors:?}"));
        }
        draws.push((errors, noise));
    }
    Ok(figures(draws.into_iter()))
}

/// Time between packets of a burst, by the fastest run of overload.
fn sending_gap(result: &MeasurementResult) -> Duration {
    let fastest = result
        .runs
        .iter()
        .filter(|run| run.outcome.plan.purpose == ExperimentPurpose::Overload)
        .map(|run| run.outcome.sent_pps)
        .fold(1.0, f64::max);
    Duration::from_secs_f64(1.0 / fastest)
}

fn judged(
    device: &DeviceModel,
    runs: Vec<MeasuredRun>,
    quality: (Duration, Duration),
) -> Result<FitErrors> {
    judged_of(device, &CalibratedRuns::new(runs, device.ports), quality)
}

fn judged_of(
    device: &DeviceModel,
    runs: &CalibratedRuns,
    quality: (Duration, Duration),
) -> Result<FitErrors> {
    let fit = runs
        .fit("fitted", ModelFamily::Full)
        .with_context(|| device.name.clone())?;
    Ok(judge(device, &fit, dropped_sizes(&runs.runs), quality))
}

/// Number of sizes of which the output dropped packets; the drawn devices have no input queues.
#[must_use]
pub fn dropped_sizes(runs: &[MeasuredRun]) -> usize {
    runs.iter()
        .filter(|run| run.plan.purpose == ExperimentPurpose::Overload)
        .filter(|run| {
            run.records
                .iter()
                .any(|record| record.fate == PacketFate::Lost)
        })
        .count()
}

fn figures(draws: impl Iterator<Item = JudgedDraw>) -> KnownDeviceFigures {
    let mut figures = KnownDeviceFigures::default();
    let (mut rates, mut transits, mut queues) = (Vec::new(), Vec::new(), Vec::new());
    let (mut units, mut servers, mut noises) = (Vec::new(), Vec::new(), Vec::new());
    for (errors, noise) in draws {
        figures.draws += 1;
        noises.push(noise.as_nanos() as f64 / 1e3);
        let errors = errors.unwrap_or_else(|error| {
            figures.unfitted.push(format!("{error:#}"));
            FitErrors::all_wrong()
        });
        rates.extend(errors.rate_percent);
        transits.push(errors.transit_us);
        units.extend(errors.unit_is_right);
        queues.extend(errors.queue_percent);
        servers.extend(errors.servers_are_right);
    }
    KnownDeviceFigures {
        rate_error_p95_percent: quantile(&rates, 0.95),
        transit_error_p95_us: quantile(&transits, 0.95),
        queue_unit_right_share: share(&units),
        queue_size_error_p95_percent: quantile(&queues, 0.95),
        servers_right_share: share(&servers),
        rates_judged: rates.len(),
        queues_judged: units.len(),
        servers_judged: servers.len(),
        calibration_noise_us: quantile(&noises, 0.5),
        ..figures
    }
}

fn share(right: &[bool]) -> f64 {
    right.iter().filter(|right| **right).count() as f64 / right.len().max(1) as f64
}

/// Smallest value that at least this share does not exceed; zero of none.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfitted_device_counts_as_wrong() {
        let right = FitErrors {
            rate_percent: Some(0.1),
            transit_us: 0.0,
            unit_is_right: Some(true),
            queue_percent: None,
            servers_are_right: None,
        };
        let noise = Duration::from_micros(3);
        let draws = [
            (Ok(right), noise),
            (Err(anyhow::anyhow!("no packet")), noise),
        ];
        let figures = figures(draws.into_iter());
        assert_eq!((figures.draws, figures.servers_judged), (2, 1));
        assert!((figures.queue_unit_right_share - 0.5).abs() < 1e-12);
        assert!((figures.rate_error_p95_percent - 100.0).abs() < 1e-12);
        assert!((figures.calibration_noise_us - 3.0).abs() < 1e-12);
        assert_eq!(figures.unfitted, ["no packet"]);
    }
}
