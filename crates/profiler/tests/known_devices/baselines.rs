//! Baselines: each is the best model of its own family, so a device that is one is found by it.

use std::time::Duration;

use profile::{FitOptions, MeasuredRun, ModelFamily, fit_device, held_out_runs, score_run};
use profiler::EmulatorSimulator;
use vocab::{
    Bitrate, ByteCount, DeviceModel, DeviceQueueLimit, OutputModel, SharedServers, SizeTimePoint,
    SizeTimeTable,
};

use crate::{held_out, measure};
use profiler::known_devices::draw;

const SCORE_RESOLUTION: Duration = Duration::from_micros(1);

fn options(family: ModelFamily, resolution: Duration) -> FitOptions {
    FitOptions {
        name: "fitted".to_owned(),
        ports: draw::PORTS,
        resolution,
        cable_delay: Duration::ZERO,
        family,
    }
}

fn fitted(runs: &[MeasuredRun], family: ModelFamily) -> DeviceModel {
    fit_device(runs, &options(family, Duration::from_nanos(10)))
        .unwrap()
        .model
}

/// A line behind a constant delay.
fn line(queue: DeviceQueueLimit, overhead: u64) -> DeviceModel {
    let output = OutputModel {
        rate: Some(Bitrate::from_bits_per_second(20_000_000)),
        burst: None,
        overhead: ByteCount::new(overhead),
        queue,
        aqm: None,
        policer: None,
    };
    let points = [64, 1_500]
        .into_iter()
        .map(|size| SizeTimePoint {
            size: ByteCount::new(size),
            time: Duration::from_micros(50) + output.serialisation(size),
        })
        .collect();
    let device = DeviceModel {
        name: "line".to_owned(),
        ports: draw::PORTS,
        transit: SizeTimeTable::new(points).unwrap(),
        input_queue: None,
        servers: None,
        output,
        port_outputs: Vec::new(),
    };
    device.check().unwrap();
    device
}

/// Greatest distance of delays, and greatest error of the 95 % delay, in held-out runs.
fn worst_score(device: &DeviceModel, model: &DeviceModel) -> (f64, f64) {
    let runs = measure(&held_out::plan(), device);
    let exact = options(ModelFamily::Full, SCORE_RESOLUTION);
    held_out_runs(&runs)
        .map(|run| score_run(&mut EmulatorSimulator, model, run, &exact).unwrap())
        .fold((0.0, 0.0), |(distance, error), score| {
            (
                f64::max(distance, score.ks_distance),
                f64::max(error, score.p95_error()),
            )
        })
}

#[test]
fn single_queue_takes_the_unit_that_fits() {
    // 60,000 bytes are 39 large packets or 526 small ones: no limit in packets explains both.
    let queue = DeviceQueueLimit::Bytes(ByteCount::new(60_000));
    let device = line(queue, 14);
    let training = measure(&draw::plan("0s"), &device);
    for family in [ModelFamily::SingleQueue, ModelFamily::FluidQueue] {
        let model = fitted(&training, family);
        let DeviceQueueLimit::Bytes(limit) = model.output.queue else {
            panic!("{family:?}: {:?}", model.output.queue);
        };
        assert!(
            limit.bytes().abs_diff(60_000) <= 1_514,
            "{family:?}: {limit}"
        );
        let (distance, error) = worst_score(&device, &model);
        assert!(
            distance < 0.02 && error < 0.02,
            "{family:?}: {distance} {error}"
        );
    }
    let packets = line(DeviceQueueLimit::Packets(60), 14);
    let training = measure(&draw::plan("0s"), &packets);
    let model = fitted(&training, ModelFamily::SingleQueue);
    assert_eq!(model.output.queue, DeviceQueueLimit::Packets(60));
}

#[test]
fn overhead_of_a_baseline_has_no_small_bound() {
    // A server of 500 us for each packet is an overhead of 1,250 bytes at 20 Mbit/s.
    let mut device = line(DeviceQueueLimit::Packets(1_000), 0);
    device.output.rate = Some(Bitrate::from_bits_per_second(1_000_000_000));
    let time = |size: u64| Duration::from_nanos(500_000 + size * 400);
    let table = |extra: u64| {
        let points = [64, 1_500]
            .into_iter()
            .map(|size| SizeTimePoint {
                size: ByteCount::new(size),
                time: time(size) + Duration::from_micros(extra),
            })
            .collect();
        SizeTimeTable::new(points).unwrap()
    };
    device.transit = table(50);
    device.servers = Some(SharedServers {
        count: 1,
        service: table(0),
    });
    device.check().unwrap();
    let model = fitted(
        &measure(&draw::plan("0s"), &device),
        ModelFamily::FluidQueue,
    );
    let overhead = model.output.overhead.bytes();
    assert!(overhead.abs_diff(1_250) < 25, "{:?}", model.output);
}
