//! Known devices in virtual time: drawn from seeds, measured by a plan, fitted, and compared.
//!
//! `cargo test` runs twenty draws. The figures of docs/guides/profile.md come from
//! `cargo test --release -p profile --test known_devices -- --ignored --nocapture`.

#![allow(clippy::unwrap_used)]
// A report for people, and which devices it is about.
#![allow(clippy::disallowed_macros)]

mod draw;
mod held_out;
mod judge;
mod special;
mod virtual_device;

use std::time::Duration;

use judge::FitErrors;
use profile::{
    DeviceFit, ExperimentPurpose, FitOptions, MeasuredRun, ModelFamily, PacketFate, fit_device,
};
use vocab::{DeviceModel, SeededRandom, format_duration};

/// Ports that measure a device.
#[derive(Clone, Copy, Debug)]
enum PortQuality {
    /// They send at once and stamp exactly.
    Ideal,
    /// They send a packet each microsecond, and stamp arrivals up to a microsecond late.
    Noisy,
}

impl PortQuality {
    fn gap(self) -> Duration {
        match self {
            PortQuality::Ideal => Duration::ZERO,
            PortQuality::Noisy => Duration::from_micros(1),
        }
    }

    fn resolution(self) -> Duration {
        match self {
            PortQuality::Ideal => Duration::from_nanos(1),
            PortQuality::Noisy => Duration::from_micros(1),
        }
    }

    fn stamp(self, runs: &mut [MeasuredRun], seed: u64) {
        if let PortQuality::Ideal = self {
            return;
        }
        let mut random = SeededRandom::for_stream(seed, 35);
        for record in runs.iter_mut().flat_map(|run| &mut run.records) {
            let late = Duration::from_nanos(random.below(1_000));
            record.received = record.received.map(|received| received + late);
        }
    }
}

fn fitted(device: &DeviceModel, runs: &[MeasuredRun], ports: PortQuality) -> DeviceFit {
    let options = FitOptions {
        name: "fitted".to_owned(),
        ports: device.ports,
        resolution: ports.resolution(),
        cable_delay: Duration::ZERO,
        family: ModelFamily::Full,
    };
    fit_device(runs, &options).unwrap()
}

fn judged(seed: u64, ports: PortQuality) -> FitErrors {
    let device = draw::device(seed);
    let mut runs = virtual_device::measure(&draw::plan(&format_duration(ports.gap())), &device);
    ports.stamp(&mut runs, seed);
    let fit = fitted(&device, &runs, ports);
    // Without input queues, only the output drops.
    let dropped_sizes = runs
        .iter()
        .filter(|run| run.plan.purpose == ExperimentPurpose::Overload)
        .filter(|run| {
            run.records
                .iter()
                .any(|record| record.fate == PacketFate::Lost)
        })
        .count();
    let errors = judge::judge(
        &device,
        &fit,
        dropped_sizes,
        (ports.gap(), ports.resolution()),
    );
    let is_wrong = errors.rate_percent.is_some_and(|error| error > 1.0)
        || errors.transit_us > 2.0
        || errors.unit_is_right == Some(false)
        || errors.queue_percent.is_some_and(|error| error > 5.0)
        || errors.servers_are_right == Some(false);
    if is_wrong {
        println!(
            "seed {seed}: {errors:?}\n  device {device:?}\n  fitted {:?}",
            fit.model
        );
        for parameter in &fit.parameters {
            if let Some(reason) = &parameter.unidentified {
                println!("  {}: {reason}", parameter.kind);
            }
        }
    }
    errors
}

/// Shares and errors of many draws.
struct DrawSummary {
    draws: usize,
    rates: Vec<f64>,
    transits: Vec<f64>,
    units: Vec<bool>,
    queues: Vec<f64>,
    servers: Vec<bool>,
}

impl DrawSummary {
    fn of(seeds: std::ops::Range<u64>, ports: PortQuality) -> Self {
        let errors: Vec<FitErrors> = seeds.map(|seed| judged(seed, ports)).collect();
        Self {
            draws: errors.len(),
            rates: errors.iter().filter_map(|one| one.rate_percent).collect(),
            transits: errors.iter().map(|one| one.transit_us).collect(),
            units: errors.iter().filter_map(|one| one.unit_is_right).collect(),
            queues: errors.iter().filter_map(|one| one.queue_percent).collect(),
            servers: errors
                .iter()
                .filter_map(|one| one.servers_are_right)
                .collect(),
        }
    }

    fn print(&self) {
        println!(
            "{} draws: rate judged {}, error p95 {:.4} % max {:.4} %; transit error max {:.3} us; \
             queue judged {}, unit right {:.1} %, size error p95 {:.2} % max {:.2} %; servers \
             judged {}, right {:.1} %",
            self.draws,
            self.rates.len(),
            quantile(&self.rates, 0.95),
            quantile(&self.rates, 1.0),
            quantile(&self.transits, 1.0),
            self.units.len(),
            100.0 * share(&self.units),
            quantile(&self.queues, 0.95),
            quantile(&self.queues, 1.0),
            self.servers.len(),
            100.0 * share(&self.servers),
        );
    }

    fn check(&self) {
        self.print();
        assert!(quantile(&self.rates, 0.95) <= 1.0);
        assert!(quantile(&self.transits, 0.95) <= 2.0);
        assert!(share(&self.units) >= 0.98);
        assert!(quantile(&self.queues, 0.95) <= 5.0);
        assert!(share(&self.servers) >= 0.95);
    }
}

fn share(right: &[bool]) -> f64 {
    right.iter().filter(|right| **right).count() as f64 / right.len().max(1) as f64
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted[(last as f64 * share).ceil() as usize]
}

#[test]
fn known_devices_are_found_again() {
    let summary = DrawSummary::of(0..20, PortQuality::Ideal);
    summary.check();
    // The ranges overload and fill most devices.
    assert!(summary.rates.len() >= 15 && summary.units.len() >= 10);
}

#[test]
#[ignore = "long: 200 draws, a minute with optimisation"]
fn two_hundred_known_devices_are_found_again() {
    DrawSummary::of(1_000..1_200, PortQuality::Ideal).check();
}

#[test]
fn noise_of_the_ports_is_tolerated() {
    let summary = DrawSummary::of(0..10, PortQuality::Noisy);
    summary.print();
}

/// Compares the models on held-out runs of these devices; returns the runs, and those in which the
/// full model has the smallest distance and the smallest error of the 95 % delay.
fn count_best(seeds: std::ops::Range<u64>) -> (usize, usize) {
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
