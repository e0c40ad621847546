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
mod results;

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use host::kernel;
use host::progress::{ProgressReporter, SilentProgress};
use host::run::LabRun;
use profile::{ExperimentPurpose, MeasuredRun, MeasurementPlan, ModelFamily, PacketFate};
use vocab::DeviceModel;

use crate::device_stand::{DeviceStand, EmulationAccount};
use crate::fitting::CalibratedRuns;
use crate::measurement::{MeasurementResult, plan_time};
use crate::virtual_device::virtual_runs;
use judge::{FitErrors, MeasurementQuality, judge};

pub use results::{DrawResult, KnownDeviceFigures, UnmeasuredDraw};

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
    /// It was too late, or the stamps too noisy, to tell its rate.
    hidden_rate: bool,
}

impl JudgedDraw {
    fn result(&self) -> DrawResult {
        let (errors, unfitted) = match &self.errors {
            Ok(errors) => (*errors, None),
            Err(error) => (FitErrors::all_wrong(), Some(format!("{error:#}"))),
        };
        DrawResult {
            seed: self.seed,
            rate_error_percent: errors.rate_percent,
            transit_error_us: errors.transit_us,
            queue_unit_is_right: errors.unit_is_right,
            queue_size_error_percent: errors.queue_percent,
            servers_are_right: errors.servers_are_right,
            void: self.void.clone(),
            unfitted,
            is_queue_noisy: self.unjudged.noisy_queue,
            is_queue_late: self.unjudged.late_queue,
            are_servers_late: self.unjudged.late_servers,
            is_rate_hidden: self.unjudged.hidden_rate,
            noise_us: micros(self.quality.resolution),
            probe_lateness_us: micros(self.quality.probe_lateness),
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
            hidden_rate,
        } = self.unjudged;
        let void = if self.void.is_some() { 5 } else { 0 };
        void + [noisy_queue, late_queue, late_servers, hidden_rate]
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
        let parts = (&device, &calibrated);
        Some(judged(seed, parts, MeasurementQuality::EXACT).result())
    });
    KnownDeviceFigures::of(draws.collect(), Vec::new())
}

/// Measures and fits the devices of these seeds in real time: each runs in a process of its own,
/// between veth pairs. `keep` gets the figures of the draws so far after each draw. No measurement
/// begins that would probably end after `until`. A draw that cannot be measured has its reason in the
/// figures, and the next one begins.
///
/// # Errors
/// When the stand cannot be made.
pub fn in_real_time(
    lab: &LabRun,
    (seeds, until): (Range<u64>, Option<Instant>),
    progress: &dyn ProgressReporter,
    keep: &mut dyn FnMut(&KnownDeviceFigures),
) -> Result<KnownDeviceFigures> {
    let count = seeds.end.saturating_sub(seeds.start).max(1);
    let stand = DeviceStand::create(lab, "known", draw::PORTS)?;
    let (mut each, mut unmeasured) = (Vec::new(), Vec::new());
    for seed in seeds.clone() {
        let done = (seed - seeds.start) as f64 / count as f64;
        let device = draw::device(seed);
        let takes = measuring_time(&device);
        progress.step(
            done,
            &format!(
                "known device {seed}, real time, about {} s for each of at most {ATTEMPTS_MAX} measurements",
                takes.as_secs()
            ),
        );
        let has_time = || until.is_none_or(|until| Instant::now() + takes <= until);
        let mut without = |reason: String| unmeasured.push(UnmeasuredDraw { seed, reason });
        if kernel::interrupted() {
            without("the user stopped the benchmark".to_owned());
        } else if !has_time() {
            without("the time of this piece was over".to_owned());
        } else {
            match measured_with_repeats(seed, (&stand, &device), &has_time) {
                Ok(draw) => {
                    progress.note(&format!("known device {seed}: {draw:?}"));
                    each.push(draw);
                }
                Err(error) => without(format!("{error:#}")),
            }
        }
        keep(&KnownDeviceFigures::of(each.clone(), unmeasured.clone()));
    }
    Ok(KnownDeviceFigures::of(each, unmeasured))
}

/// Measures a device until nothing is hidden, at most [`ATTEMPTS_MAX`] times. The measurement that the
/// machine hid least counts, whatever it found.
fn measured_with_repeats(
    seed: u64,
    (stand, device): (&DeviceStand<'_>, &DeviceModel),
    has_time: &dyn Fn() -> bool,
) -> Result<DrawResult> {
    let mut draw = measured(seed, stand, device)?;
    for measurements in 2..=ATTEMPTS_MAX {
        if draw.hidden() == 0 || !has_time() || kernel::interrupted() {
            break;
        }
        // The earlier measurement is whole, so it counts where a repetition fails or is stopped.
        let Ok(again) = measured(seed, stand, device) else {
            break;
        };
        if again.hidden() < draw.hidden() {
            draw = again;
        }
        draw.measurements = measurements;
    }
    Ok(draw.result())
}

/// Time that one measurement of a device takes, as far as its plans tell.
fn measuring_time(device: &DeviceModel) -> Duration {
    let (overloads, probes) = draw::real_plans(device);
    plan_time(&overloads) + plan_time(&probes)
}

/// Runs `device` in the emulator, and measures and judges it. Overloads go through a process of their
/// own, so that the emulator counts its lateness for them apart.
fn measured(seed: u64, stand: &DeviceStand<'_>, device: &DeviceModel) -> Result<JudgedDraw> {
    let (overloads, probes) = draw::real_plans(device);
    let (mut runs, probe_result, probed) = measured_by(stand, device, &probes)?;
    let (overloaded_runs, result, overloaded) = measured_by(stand, device, &overloads)?;
    // A part of the plan says too little.
    ensure!(!kernel::interrupted(), "the user stopped the benchmark");
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
    let failures = [&probe_result, &result];
    if let Some(failure) = failures.iter().find_map(|one| one.failure.as_ref()) {
        draw.void = Some(format!("{}: {failure}", device.name));
    } else if lost > 0 {
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
            hidden_rate: quality.is_late_for_rate(device),
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

fn micros(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurement_that_hides_less_has_fewer_hidden_parts() {
        let draw = |late_queue, late_servers, void: Option<&str>| JudgedDraw {
            seed: 7,
            errors: Err(anyhow::anyhow!("no packet")),
            quality: MeasurementQuality::EXACT,
            unjudged: UnjudgedParts {
                noisy_queue: false,
                late_queue,
                late_servers,
                hidden_rate: false,
            },
            void: void.map(str::to_owned),
            measurements: 1,
        };
        assert!(draw(true, true, None).hidden() > draw(true, false, None).hidden());
        assert!(draw(false, false, Some("busy")).hidden() > draw(true, true, None).hidden());
        assert_eq!(draw(false, false, None).hidden(), 0);
        let result = draw(true, false, None).result();
        assert_eq!(result.unfitted.as_deref(), Some("no packet"));
        assert_eq!(result.rate_error_percent, Some(100.0));
    }

    #[test]
    fn measuring_time_counts_the_wait_of_each_run() {
        let device = draw::device(2_000);
        let (overloads, probes) = draw::real_plans(&device);
        let waits: Duration = [&overloads, &probes]
            .iter()
            .map(|plan| plan.loss_after * plan.runs().len() as u32)
            .sum();
        assert!(measuring_time(&device) > waits);
    }
}
