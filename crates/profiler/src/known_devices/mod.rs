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
use profile::{ExperimentPurpose, MeasuredRun, MeasurementPlan, ModelFamily, PacketFate};
use serde::Serialize;
use vocab::DeviceModel;

use crate::device_stand::{DeviceStand, EmulationAccount};
use crate::fitting::CalibratedRuns;
use crate::measurement::MeasurementResult;
use crate::virtual_device::virtual_runs;
use judge::{FitErrors, MeasurementQuality, judge};

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
    /// Devices whose queue is not judged, because the emulated device delivered packets later than the
    /// smallest effect that tells the unit of its queue from another one.
    pub queues_late: usize,
    /// Devices whose servers are not judged, because the emulated device was late by a part of the wait
    /// for a server.
    pub servers_late: usize,
    /// Devices that are not judged at all, with the reason.
    pub void: Vec<String>,
    /// Median of the noise of the stamps, by the calibration over a cable.
    pub calibration_noise_us: f64,
    /// Lateness of the emulated device for half of the lone packets and short bursts: the median of the
    /// draws.
    pub probe_lateness_us: f64,
    /// Lateness within which it delivered 99 of 100 packets of the overloads: the median of the draws.
    pub overload_lateness_us: f64,
    /// Measurements that were made, those that were repeated included.
    pub measurements: usize,
    /// Each draw, so that the draws of several calls can be counted together.
    pub each: Vec<DrawResult>,
    /// Devices that could not be fitted, with the reason; they count as wrong in everything.
    pub unfitted: Vec<String>,
}

/// Result of one draw; a part that is not judged has `null`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrawResult {
    /// Seed of the device.
    pub seed: u64,
    /// Error of the rate, in percent.
    pub rate_error_percent: Option<f64>,
    /// Greatest error of the transit that exceeds 5 % and the noise.
    pub transit_error_us: f64,
    /// The unit of the queue is right.
    pub queue_unit_is_right: Option<bool>,
    /// Error of the queue's size beyond one packet, in percent.
    pub queue_size_error_percent: Option<f64>,
    /// The number of servers is right.
    pub servers_are_right: Option<bool>,
    /// The whole draw is void.
    pub is_void: bool,
    /// The emulated device was too late to tell the unit.
    pub is_queue_late: bool,
    /// The emulated device was too late to tell the servers.
    pub are_servers_late: bool,
    /// Noise of the stamps.
    pub noise_us: f64,
    /// Lateness within which the emulated device delivered 99 of 100 packets of the overloads.
    pub overload_lateness_us: f64,
    /// Measurements until this one.
    pub measurements: usize,
}

/// Measurements of a device in real time until one counts.
const ATTEMPTS_MAX: usize = 3;

/// A draw that was measured.
#[derive(Debug)]
struct JudgedDraw {
    seed: u64,
    errors: Result<FitErrors>,
    quality: MeasurementQuality,
    /// Parts that are not judged.
    unjudged: UnjudgedParts,
    /// Reason why the measurement says nothing about the device.
    void: Option<String>,
    /// Measurements until this one.
    measurements: usize,
}

/// Parts of a device that are not judged, because the machine hides them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnjudgedParts {
    /// The noise of the stamps hides the packets of the queue.
    noisy_queue: bool,
    /// The emulated device was too late to tell the unit of its queue.
    late_queue: bool,
    /// It was too late to tell its servers.
    late_servers: bool,
}

impl JudgedDraw {
    fn result(&self) -> DrawResult {
        let errors = match &self.errors {
            Ok(errors) => *errors,
            Err(_) => FitErrors::all_wrong(),
        };
        DrawResult {
            seed: self.seed,
            rate_error_percent: errors.rate_percent,
            transit_error_us: errors.transit_us,
            queue_unit_is_right: errors.unit_is_right,
            queue_size_error_percent: errors.queue_percent,
            servers_are_right: errors.servers_are_right,
            is_void: self.void.is_some(),
            is_queue_late: self.unjudged.late_queue,
            are_servers_late: self.unjudged.late_servers,
            noise_us: micros(self.quality.resolution),
            overload_lateness_us: micros(self.quality.overload_lateness),
            measurements: self.measurements,
        }
    }

    /// Number of parts that are not judged; a void measurement has more than any other.
    fn hidden(&self) -> u8 {
        let UnjudgedParts {
            noisy_queue,
            late_queue,
            late_servers,
        } = self.unjudged;
        let void = if self.void.is_some() { 4 } else { 0 };
        void + [noisy_queue, late_queue, late_servers]
            .map(u8::from)
            .iter()
            .sum::<u8>()
    }
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
        Some(judged(
            seed,
            (&device, &calibrated),
            MeasurementQuality::EXACT,
        ))
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
        // The measurement that the machine hid least counts, whatever it found.
        let mut draw = measured(seed, &stand, &device)?;
        for measurements in 2..=ATTEMPTS_MAX {
            if draw.hidden() == 0 || kernel::interrupted() {
                break;
            }
            let again = measured(seed, &stand, &device)?;
            if again.hidden() < draw.hidden() {
                draw = again;
            }
            draw.measurements = measurements;
        }
        progress.note(&format!(
            "known device {seed}: {:?}, {:?}",
            draw.quality, draw.unjudged
        ));
        if let Ok(errors) = &draw.errors {
            progress.note(&format!("known device {seed}: {errors:?}"));
        }
        draws.push(draw);
    }
    Ok(figures(draws.into_iter()))
}

/// Runs `device` in the emulator, and measures and judges it. Overloads go through a process of their
/// own, so that the emulator counts its lateness for them apart.
fn measured(seed: u64, stand: &DeviceStand<'_>, device: &DeviceModel) -> Result<JudgedDraw> {
    let (overloads, probes) = draw::real_plans(device);
    let (mut runs, _, probed) = measured_by(stand, device, &probes)?;
    let (overloaded_runs, result, overloaded) = measured_by(stand, device, &overloads)?;
    runs.extend(overloaded_runs);
    let calibrated = CalibratedRuns::new(runs, device.ports);
    let quality = MeasurementQuality {
        overload_gap: overload_gap(&result),
        burst_gap: burst_gap(&calibrated.runs),
        resolution: calibrated.resolution(),
        probe_lateness: probed.lateness_p50,
        overload_lateness: overloaded.lateness_p99,
    };
    let mut draw = judged(seed, (device, &calibrated), quality);
    let lost = probed.lost + overloaded.lost;
    if lost > 0 {
        draw.void = Some(format!(
            "{}: the emulator lost {lost} packets outside the model, as the machine is too busy",
            device.name
        ));
    }
    Ok(draw)
}

/// Runs `device` in the emulator for the runs of one plan.
fn measured_by(
    stand: &DeviceStand<'_>,
    device: &DeviceModel,
    plan: &MeasurementPlan,
) -> Result<(Vec<MeasuredRun>, MeasurementResult, EmulationAccount)> {
    let process = stand.emulate(device)?;
    let (runs, result) = stand
        .measure(plan, &SilentProgress)
        .with_context(|| device.name.clone())?;
    Ok((runs, result, process.stop_emulation()?))
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

fn judged(
    seed: u64,
    (device, runs): (&DeviceModel, &CalibratedRuns),
    quality: MeasurementQuality,
) -> JudgedDraw {
    let fit = runs
        .fit("fitted", ModelFamily::Full)
        .with_context(|| device.name.clone());
    JudgedDraw {
        seed,
        errors: fit.map(|fit| judge(device, &fit, dropped_sizes(&runs.runs), quality)),
        unjudged: UnjudgedParts {
            noisy_queue: !quality.can_count_packets(device),
            late_queue: quality.is_late_for_unit(device),
            late_servers: quality.is_late_for_servers(device),
        },
        quality,
        void: None,
        measurements: 1,
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
    let (mut units, mut servers) = (Vec::new(), Vec::new());
    let (mut noises, mut probes, mut overloads) = (Vec::new(), Vec::new(), Vec::new());
    for draw in draws {
        noises.push(micros(draw.quality.resolution));
        probes.push(micros(draw.quality.probe_lateness));
        overloads.push(micros(draw.quality.overload_lateness));
        figures.measurements += draw.measurements;
        figures.each.push(draw.result());
        if let Some(reason) = draw.void {
            figures.void.push(reason);
            continue;
        }
        figures.draws += 1;
        let unjudged = draw.unjudged;
        figures.queues_void += usize::from(unjudged.noisy_queue);
        figures.queues_late += usize::from(unjudged.late_queue && !unjudged.noisy_queue);
        figures.servers_late += usize::from(unjudged.late_servers);
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
        probe_lateness_us: quantile(&probes, 0.5),
        overload_lateness_us: quantile(&overloads, 0.5),
        ..figures
    }
}

fn micros(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e3
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
        let quality = MeasurementQuality {
            resolution: Duration::from_micros(3),
            ..MeasurementQuality::EXACT
        };
        let draw = |errors, void: Option<&str>| JudgedDraw {
            seed: 7,
            errors,
            quality,
            unjudged: UnjudgedParts::default(),
            void: void.map(str::to_owned),
            measurements: 2,
        };
        let draws = [
            draw(Ok(right), None),
            draw(Err(anyhow::anyhow!("no packet")), None),
            draw(Ok(right), Some("a busy machine")),
        ];
        let figures = figures(draws.into_iter());
        assert_eq!((figures.draws, figures.servers_judged), (2, 1));
        assert_eq!(figures.measurements, 6);
        assert!((figures.queue_unit_right_share - 0.5).abs() < 1e-12);
        assert!((figures.rate_error_p95_percent - 100.0).abs() < 1e-12);
        assert!((figures.calibration_noise_us - 3.0).abs() < 1e-12);
        assert_eq!(figures.unfitted, ["no packet"]);
        assert_eq!(figures.void, ["a busy machine"]);
        let void: Vec<bool> = figures.each.iter().map(|one| one.is_void).collect();
        assert_eq!(void, [false, false, true]);
    }

    #[test]
    fn late_parts_are_counted_and_not_judged() {
        let late = |late_queue, late_servers| JudgedDraw {
            seed: 7,
            errors: Ok(FitErrors {
                rate_percent: Some(0.1),
                transit_us: 0.0,
                unit_is_right: None,
                queue_percent: None,
                servers_are_right: None,
            }),
            quality: MeasurementQuality {
                overload_lateness: Duration::from_millis(2),
                ..MeasurementQuality::EXACT
            },
            unjudged: UnjudgedParts {
                noisy_queue: false,
                late_queue,
                late_servers,
            },
            void: None,
            measurements: 3,
        };
        assert!(late(true, true).hidden() > late(true, false).hidden());
        let figures = figures([late(true, true), late(true, false)].into_iter());
        assert_eq!((figures.draws, figures.rates_judged), (2, 2));
        assert_eq!((figures.queues_late, figures.servers_late), (2, 1));
        assert_eq!((figures.queues_judged, figures.servers_judged), (0, 0));
        assert!((figures.overload_lateness_us - 2_000.0).abs() < 1e-9);
    }
}
