//! Devices with a part that the drawn ones do not have: an input queue, a policer, a shaper.

use std::time::Duration;

use profile::{DeviceFit, FitOptions, MeasurementPlan, ModelFamily, ParameterKind, fit_device};
use vocab::{
    Bitrate, ByteCount, DeviceModel, DeviceQueueLimit, OutputModel, PolicerModel, SizeTimeTable,
};

use profiler::known_devices::draw;

use crate::{held_out, measure};

fn fitted(device: &DeviceModel, plan: &MeasurementPlan) -> DeviceFit {
    let options = FitOptions {
        name: "fitted".to_owned(),
        ports: device.ports,
        resolution: Duration::from_nanos(10),
        cable_delay: Duration::ZERO,
        family: ModelFamily::Full,
    };
    fit_device(&measure(plan, device), &options).unwrap()
}

/// Lone packets, and ten times the policer's or shaper's rate for half a second.
fn paced_plan() -> MeasurementPlan {
    MeasurementPlan::from_toml(
        r#"
        name = "paced"
        ports = 2

        [[experiment]]
        name = "transit"
        purpose = "transit"
        for_each_size = ["200B", "700B", "1500B"]
        traffic = [{ from = [0], to = [1], packets = 5,
            pattern = { kind = "constant", packets_per_second = 10.0 } }]

        [[experiment]]
        name = "overload"
        purpose = "overload"
        for_each_size = ["200B", "700B", "1500B"]
        traffic = [{ from = [0], to = [1], duration = "500ms",
            pattern = { kind = "constant", packets_per_second = 50000.0 } }]
        "#,
    )
    .expect("the plan is well formed")
}

fn bucket_device(output: OutputModel) -> DeviceModel {
    DeviceModel {
        name: "bucket".to_owned(),
        ports: 2,
        transit: SizeTimeTable::constant(Duration::from_micros(40)),
        input_queue: None,
        servers: None,
        output,
        port_outputs: Vec::new(),
    }
}

fn percent(one: u64, other: u64) -> f64 {
    (one as f64 / other as f64 - 1.0).abs() * 100.0
}

#[test]
fn input_queue_is_found_or_not_identified() {
    let mut found = 0;
    for seed in 0..5 {
        let mut device = held_out::device(seed);
        // The outputs drop nothing that the input queue lets through.
        device.output.queue = DeviceQueueLimit::Bytes(ByteCount::mebibytes(2));
        let fit = fitted(&device, &draw::plan("0s"));
        if fit.is_identified(ParameterKind::InputQueue) {
            found += 1;
            assert_eq!(fit.model.input_queue, device.input_queue, "seed {seed}");
        } else {
            println!(
                "seed {seed}: {:?}",
                fit.parameter(ParameterKind::InputQueue)
            );
        }
    }
    assert!(found >= 3, "{found} of 5");
}

#[test]
fn policer_is_found() {
    let policer = PolicerModel {
        rate: Bitrate::from_bits_per_second(7_300_000),
        burst: ByteCount::new(40_000),
    };
    let device = bucket_device(OutputModel {
        rate: None,
        burst: None,
        overhead: ByteCount::new(14),
        queue: DeviceQueueLimit::Packets(1_000),
        aqm: None,
        policer: Some(policer),
    });
    let fit = fitted(&device, &paced_plan());
    let found = fit.model.output.policer.unwrap();
    let rates = (found.rate.bits_per_second(), policer.rate.bits_per_second());
    assert!(percent(rates.0, rates.1) < 1.0, "{fit:?}");
    assert!(found.burst.bytes().abs_diff(40_000) <= 1_514, "{fit:?}");
    assert_eq!(fit.model.output.rate, None);
    assert!(!fit.is_identified(ParameterKind::ServerCount));
}

#[test]
fn shaper_is_found() {
    let device = bucket_device(OutputModel {
        rate: Some(Bitrate::from_bits_per_second(7_300_000)),
        burst: Some(ByteCount::new(30_000)),
        overhead: ByteCount::new(14),
        queue: DeviceQueueLimit::Bytes(ByteCount::new(60_000)),
        aqm: None,
        policer: None,
    });
    let fit = fitted(&device, &paced_plan());
    let output = &fit.model.output;
    let rate = output.rate.unwrap().bits_per_second();
    assert!(percent(rate, 7_300_000) < 1.0, "{fit:?}");
    let burst = output.burst.unwrap().bytes();
    assert!(burst.abs_diff(30_000) <= 1_514, "{fit:?}");
    let DeviceQueueLimit::Bytes(limit) = output.queue else {
        panic!("{fit:?}");
    };
    assert!(limit.bytes().abs_diff(60_000) <= 1_514, "{fit:?}");
}
