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
use judge::{FitErrors, PortQuality, judge};

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
    /// Devices whose queue is not judged, because the noise of the stamps is longer than a packet of
    /// 1500 bytes on their line.
    pub queues_void: usize,
    /// Devices that are not judged at all, with the reason.
    pub void: Vec<String>,
    /// Median of the noise of the stamps, by the calibration over a cable.
    pub calibration_noise_us: f64,
    /// Devices that could not be fitted, with the reason; they count as wrong in everything.
    pub unfitted: Vec<String>,
}

/// Measurements of a device in real time until one counts.
const ATTEMPTS_MAX: u32 = 3;

/// A draw that was measured.
#[derive(Debug)]
struct JudgedDraw {
    errors: Result<FitErrors>,
    /// Noise of the stamps.
    noise: Duration,
    /// The noise hides the packets of the queue.
    is_queue_void: bool,
    /// Reason why the measurement says nothing about the device.
    void: Option<String>,
}

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
        let calibrated = CalibratedRuns::new(runs, device.ports);
        Some(judged(&device, &calibrated, PortQuality::EXACT))
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
        let mut draw = measured(&stand, &device)?;
        for _ in 1..ATTEMPTS_MAX {
            if draw.void.is_none() && !draw.is_queue_void || kernel::interrupted() {
                break;
            }
            draw = measured(&stand, &device)?;
        }
        if let Ok(errors) = &draw.errors {
            progress.note(&format!("known device {seed}: {errors:?}"));
        }
        draws.push(draw);
    }
    Ok(figures(draws.into_iter()))
}

/// Runs `device` in the emulator, and measures and judges it.
fn measured(stand: &DeviceStand<'_>, device: &DeviceModel) -> Result<JudgedDraw> {
    let process = stand.emulate(device)?;
    let plan = draw::real_plan(device);
    let (runs, result) = stand
        .measure(&plan, &SilentProgress)
        .with_context(|| device.name.clone())?;
    let lost = process.stop_emulation()?;
    let calibrated = CalibratedRuns::new(runs, device.ports);
    let quality = PortQuality {
        overload_gap: overload_gap(&result),
        burst_gap: burst_gap(&calibrated.runs),
        resolution: calibrated.resolution(),
    };
    let mut draw = judged(device, &calibrated, quality);
    if lost > 0 {
        draw.void = Some(format!(
            "{}: the emulator lost {lost} packets outside the model, as the machine is too busy",
            device.name
        ));
    }
    Ok(draw)
}

/// Time between packets of an overload, by its fastest run.
fn overload_gap(result: &MeasurementResult) -> Duration {
    let fastest = result
        .runs
        .iter()
        .filter(|run| run.outcome.plan.purpose == ExperimentPurpose::Overload)
        .map(|run| run.outcome.sent_pps)
        .fold(1.0, f64::max);
    Duration::from_secs_f64(1.0 / fastest)
}

/// Median time between packets of a short burst.
fn burst_gap(runs: &[MeasuredRun]) -> Duration {
    let mut gaps: Vec<Duration> = runs
        .iter()
        .filter(|run| run.plan.purpose == ExperimentPurpose::Contention)
        .flat_map(|run| run.records.windows(2))
        // A burst has one packet for each output.
        .filter(|pair| pair[1].output > pair[0].output)
        .map(|pair| pair[1].sent.since(pair[0].sent))
        .collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or_default()
}

fn judged(device: &DeviceModel, runs: &CalibratedRuns, quality: PortQuality) -> JudgedDraw {
    let fit = runs
        .fit("fitted", ModelFamily::Full)
        .with_context(|| device.name.clone());
    JudgedDraw {
        errors: fit.map(|fit| judge(device, &fit, dropped_sizes(&runs.runs), quality)),
        noise: quality.resolution,
        is_queue_void: !quality.can_count_packets(device),
        void: None,
    }
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
    for draw in draws {
        noises.push(draw.noise.as_nanos() as f64 / 1e3);
        if let Some(reason) = draw.void {
            figures.void.push(reason);
            continue;
        }
        figures.draws += 1;
        figures.queues_void += usize::from(draw.is_queue_void);
        let errors = draw.errors.unwrap_or_else(|error| {
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
    fn unfitted_is_wrong_and_void_does_not_count() {
        let right = FitErrors {
            rate_percent: Some(0.1),
            transit_us: 0.0,
            unit_is_right: Some(true),
            queue_percent: None,
            servers_are_right: None,
        };
        let noise = Duration::from_micros(3);
        let draw = |errors, void: Option<&str>| JudgedDraw {
            errors,
            noise,
            is_queue_void: false,
            void: void.map(str::to_owned),
        };
        let draws = [
            draw(Ok(right), None),
            draw(Err(anyhow::anyhow!("no packet")), None),
            draw(Ok(right), Some("a busy machine")),
        ];
        let figures = figures(draws.into_iter());
        assert_eq!((figures.draws, figures.servers_judged), (2, 1));
        assert!((figures.queue_unit_right_share - 0.5).abs() < 1e-12);
        assert!((figures.rate_error_p95_percent - 100.0).abs() < 1e-12);
        assert!((figures.calibration_noise_us - 3.0).abs() < 1e-12);
        assert_eq!(figures.unfitted, ["no packet"]);
        assert_eq!(figures.void, ["a busy machine"]);
    }
}
