//! Known devices in virtual time: drawn from seeds, measured by a plan, fitted, and compared.
//!
//! `cargo test` runs twenty draws. The figures of docs/guides/profile.md come from
//! `trunkline bench profile`.

#![allow(clippy::unwrap_used)]
// A report for people, and which devices it is about.
#![allow(clippy::disallowed_macros)]

mod baselines;
mod busy_machine;
mod held_out;
mod special;

use std::ops::Range;
use std::time::Duration;

use host::progress::SilentProgress;
use profile::{MeasuredRun, MeasurementPlan, ParameterKind};
use profiler::foreign_devices::{self, ForeignComparison};
use profiler::known_devices::{self, KnownDeviceFigures, draw, judge};
use profiler::{CalibratedRuns, ModelFamily, virtual_runs};
use vocab::{DeviceModel, SeededRandom};

/// Runs the whole plan against a device of this model.
fn measure(plan: &MeasurementPlan, model: &DeviceModel) -> Vec<MeasuredRun> {
    virtual_runs(plan, model).collect()
}

fn check(seeds: Range<u64>) -> KnownDeviceFigures {
    let figures = known_devices::in_virtual_time(seeds, &SilentProgress);
    println!("{figures:?}");
    assert_eq!(figures.unfitted, [""; 0]);
    assert!(figures.rate_error_p95_percent <= 1.0);
    assert!(figures.transit_error_p95_us <= 2.0);
    assert!(figures.queue_unit_right_share >= 0.98);
    assert!(figures.queue_size_error_p95_percent <= 5.0);
    assert!(figures.servers_right_share >= 0.95);
    figures
}

#[test]
fn known_devices_are_found_again() {
    let figures = check(0..20);
    // The ranges overload and fill most devices.
    assert_eq!(figures.draws, 20);
    assert!(figures.rates_judged >= 15 && figures.queues_judged >= 10);
}

#[test]
#[ignore = "long: 200 draws, a minute with optimisation"]
fn two_hundred_known_devices_are_found_again() {
    check(1_000..1_200);
}

/// Ports that send a packet each microsecond, and stamp arrivals up to a microsecond late.
#[test]
fn noise_of_the_ports_is_tolerated() {
    let noise = Duration::from_micros(1);
    let (mut judged, mut near) = (0, 0);
    let (mut queues, mut units) = (0, 0);
    for seed in 0..10 {
        let device = draw::device(seed);
        let mut runs = measure(&draw::plan("1us"), &device);
        let mut random = SeededRandom::for_stream(seed, 35);
        for record in runs.iter_mut().flat_map(|run| &mut run.records) {
            let late = Duration::from_nanos(random.below(1_000));
            record.received = record.received.map(|received| received + late);
        }
        let runs = CalibratedRuns::new(runs, device.ports);
        let fit = runs.fit("fitted", ModelFamily::Full).unwrap();
        let dropped = known_devices::dropped_sizes(&runs.runs);
        let errors = judge::judge(
            &device,
            &fit,
            dropped,
            judge::MeasurementQuality {
                overload_gap: noise,
                burst_gap: noise,
                resolution: noise,
                ..judge::MeasurementQuality::EXACT
            },
        );
        println!(
            "seed {seed}: {errors:?} {:?} {:?} {:?}",
            device.output.queue,
            fit.model.output.queue,
            fit.parameter(ParameterKind::OutputQueue)
        );
        judged += usize::from(errors.rate_percent.is_some());
        near += usize::from(errors.rate_percent.is_some_and(|error| error <= 1.0));
        queues += usize::from(errors.unit_is_right.is_some());
        units += usize::from(errors.unit_is_right == Some(true));
    }
    assert!(
        queues >= 8 && units * 10 >= queues * 9,
        "{units} of {queues}"
    );
    assert!(judged >= 5 && near * 2 >= judged, "{near} of {judged}");
}

/// Compares the models on held-out runs of these devices; returns the runs, and those in which the
/// full model has the smallest distance and the smallest error of the 95 % delay.
fn count_best(seeds: Range<u64>) -> (usize, usize) {
    let (mut runs, mut best) = (0, 0);
    for seed in seeds {
        for run in held_out::compare(seed) {
            println!(
                "seed {seed}, {}: loss {:.4} (ours {:.4}), KS ours {:.4} fifo {:.4} hohn {:.4}, p95 \
                 error ours {:.4} fifo {:.4} hohn {:.4}",
                run.experiment,
                run.ours.measured.loss_ratio,
                run.ours.predicted.loss_ratio,
                run.ours.ks_distance,
                run.single_queue.ks_distance,
                run.fluid_queue.ks_distance,
                run.ours.p95_error(),
                run.single_queue.p95_error(),
                run.fluid_queue.p95_error(),
            );
            runs += 1;
            let others = [&run.single_queue, &run.fluid_queue];
            best += usize::from(others.iter().all(|other| {
                run.ours.ks_distance < other.ks_distance && run.ours.p95_error() < other.p95_error()
            }));
        }
    }
    println!("the full model is best in {best} of {runs} runs");
    (runs, best)
}

#[test]
fn full_model_predicts_held_out_runs_best() {
    let (runs, best) = count_best(0..3);
    assert!(best * 10 >= runs * 8, "{best} of {runs}");
}

#[test]
#[ignore = "long: 20 devices, minutes without optimisation"]
fn full_model_is_best_on_twenty_devices() {
    let (runs, best) = count_best(100..120);
    assert!(best * 10 >= runs * 9, "{best} of {runs}");
}

/// The delay of closed-loop TCP is that of a queue that is full with large packets.
#[test]
fn full_queue_of_a_foreign_switch_is_found() {
    let results = foreign_devices::in_virtual_time(3_006..3_007, &SilentProgress);
    assert_eq!(results[0].uncompared, []);
    let tcp = results[0].comparisons.last().unwrap();
    assert_eq!(tcp.experiment, "closed-loop TCP");
    assert!(tcp.ks_ours < 0.05 && tcp.p95_error_ours < 0.01, "{tcp:?}");
    assert!(tcp.is_ours_best(), "{tcp:?}");
    // The ports are exact, so delays within a microsecond are equal.
    assert_eq!(tcp.resolution_ns, 1_000);
}

/// Devices that are not made from the fitter's assumptions; the table is in docs/guides/profile.md.
#[test]
#[ignore = "long: 8 switches, minutes without optimisation"]
fn full_model_is_best_on_foreign_switches() {
    let results = foreign_devices::in_virtual_time(3_000..3_008, &SilentProgress);
    assert_eq!(results.len(), 8);
    let comparisons: Vec<ForeignComparison> = results
        .into_iter()
        .flat_map(|result| result.comparisons)
        .collect();
    for one in &comparisons {
        println!(
            "{}, {}: KS {:.3} / {:.3} / {:.3}, p95 {:.2} % / {:.2} % / {:.2} %, loss {:.2} % / {:.2} %",
            one.device,
            one.experiment,
            one.ks_ours,
            one.ks_fifo,
            one.ks_hohn,
            one.p95_error_ours * 100.0,
            one.p95_error_fifo * 100.0,
            one.p95_error_hohn * 100.0,
            one.loss_measured * 100.0,
            one.loss_ours * 100.0,
        );
    }
    let best = comparisons.iter().filter(|one| one.is_ours_best()).count();
    println!(
        "the full model is best in {best} of {} runs",
        comparisons.len()
    );
    assert_eq!(comparisons.len(), 24);
    assert!(best * 10 >= comparisons.len() * 9, "{best} of 24");
}
