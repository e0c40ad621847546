//! Devices with a part that the drawn ones do not have: an input queue, a policer, a shaper.

use std::time::Duration;

use profile::{
    DeviceFit, ExperimentPurpose, FitOptions, MeasuredRun, MeasurementPlan, ModelFamily,
    ParameterKind, fit_device,
};
use vocab::{
    AqmModel, Bitrate, ByteCount, DeviceModel, DeviceQueueLimit, OutputModel, PolicerModel,
    Probability, SizeTimeTable,
};

use profiler::known_devices::draw;

use crate::{held_out, measure};

fn fitted(device: &DeviceModel, plan: &MeasurementPlan) -> DeviceFit {
    fitted_to(&measure(plan, device), device)
}

fn fitted_to(runs: &[MeasuredRun], device: &DeviceModel) -> DeviceFit {
    let options = FitOptions {
        name: "fitted".to_owned(),
        ports: device.ports,
        resolution: Duration::from_nanos(10),
        cable_delay: Duration::ZERO,
        family: ModelFamily::Full,
    };
    fit_device(runs, &options).unwrap()
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

fn policing_device(policer: PolicerModel) -> DeviceModel {
    bucket_device(OutputModel {
        rate: None,
        burst: None,
        overhead: ByteCount::new(14),
        queue: DeviceQueueLimit::Packets(1_000),
        aqm: None,
        policer: Some(policer),
    })
}

#[test]
fn late_packets_make_no_shaper() {
    let device = policing_device(PolicerModel {
        rate: Bitrate::from_bits_per_second(7_300_000),
        burst: ByteCount::new(40_000),
    });
    let mut runs = measure(&paced_plan(), &device);
    let overloads = runs
        .iter_mut()
        .filter(|run| run.plan.purpose == ExperimentPurpose::Overload);
    // A pause of the machine holds one of the first packets and a few of the others.
    for record in overloads.flat_map(|run| run.records.iter_mut().skip(5).step_by(1_000)) {
        record.received = record.received.map(|at| at + Duration::from_millis(6));
    }
    let fit = fitted_to(&runs, &device);
    let found = fit.model.output.policer.expect("the device drops");
    assert!(
        percent(found.rate.bits_per_second(), 7_300_000) < 1.0,
        "{fit:?}"
    );
    assert!(found.burst.bytes().abs_diff(40_000) <= 1_514, "{fit:?}");
}

#[test]
fn large_bucket_does_not_raise_the_rate() {
    // A second of the rate, as the kernel's `limit rate` has.
    let policer = PolicerModel {
        rate: Bitrate::from_bits_per_second(4_096_000),
        burst: ByteCount::new(517_000),
    };
    let plan = MeasurementPlan::from_toml(
        r#"
        name = "three times the rate"
        ports = 2

        [[experiment]]
        name = "transit"
        purpose = "transit"
        for_each_size = ["300B", "1100B"]
        traffic = [{ from = [0], to = [1], packets = 5,
            pattern = { kind = "constant", packets_per_second = 10.0 } }]

        [[experiment]]
        name = "overload with 300 bytes"
        purpose = "overload"
        for_each_size = ["300B"]
        traffic = [{ from = [0], to = [1], packets = 9000,
            pattern = { kind = "constant", packets_per_second = 5120.0 } }]

        [[experiment]]
        name = "overload with 1100 bytes"
        purpose = "overload"
        for_each_size = ["1100B"]
        traffic = [{ from = [0], to = [1], packets = 2500,
            pattern = { kind = "constant", packets_per_second = 1396.0 } }]
        "#,
    )
    .expect("the plan is well formed");
    let fit = fitted(&policing_device(policer), &plan);
    let found = fit.model.output.policer.expect("the device drops");
    let rate = found.rate.bits_per_second();
    assert!(percent(rate, 4_096_000) < 1.0, "{fit:?}");
    assert!(percent(found.burst.bytes(), 517_000) < 2.0, "{fit:?}");
}

#[test]
fn policer_is_found() {
    let policer = PolicerModel {
        rate: Bitrate::from_bits_per_second(7_300_000),
        burst: ByteCount::new(40_000),
    };
    let device = policing_device(policer);
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
    assert!(fit.is_identified(ParameterKind::ShaperBurst), "{fit:?}");
    assert_eq!(fit.parameter(ParameterKind::PolicerBurst), None, "{fit:?}");
    let DeviceQueueLimit::Bytes(limit) = output.queue else {
        panic!("{fit:?}");
    };
    assert!(limit.bytes().abs_diff(60_000) <= 1_514, "{fit:?}");
}

/// Lone packets, and a tenth more than the line of 10 Mbit/s sends, for some seconds: active queue
/// management then drops before the queue is full.
fn sustained_plan() -> MeasurementPlan {
    MeasurementPlan::from_toml(
        r#"
        name = "sustained"
        ports = 2

        [[experiment]]
        name = "transit"
        purpose = "transit"
        for_each_size = ["500B", "1500B"]
        traffic = [{ from = [0], to = [1], packets = 5,
            pattern = { kind = "constant", packets_per_second = 10.0 } }]

        [[experiment]]
        name = "overload with 500 bytes"
        purpose = "overload"
        for_each_size = ["500B"]
        traffic = [{ from = [0], to = [1], duration = "5s",
            pattern = { kind = "poisson", packets_per_second = 2675.0 } }]

        [[experiment]]
        name = "overload with 1500 bytes"
        purpose = "overload"
        for_each_size = ["1500B"]
        traffic = [{ from = [0], to = [1], duration = "5s",
            pattern = { kind = "poisson", packets_per_second = 908.0 } }]
        "#,
    )
    .expect("the plan is well formed")
}

fn managed_device(aqm: Option<AqmModel>, packets: u64) -> DeviceModel {
    let mut device = bucket_device(OutputModel {
        rate: Some(Bitrate::from_bits_per_second(10_000_000)),
        burst: None,
        overhead: ByteCount::new(14),
        queue: DeviceQueueLimit::Packets(packets),
        aqm,
        policer: None,
    });
    device.transit = SizeTimeTable::constant(Duration::from_millis(2));
    device
}

/// CoDel is found with its parameters; PIE and RED have no kind, but a delay at which the queue stands.
fn check_management(aqm: AqmModel, fit: &DeviceFit) {
    let interval_of = |kind| {
        let found = fit.parameter(kind);
        let found = found.unwrap_or_else(|| panic!("{aqm:?}, {kind}: {fit:?}"));
        println!("{found:?}");
        found.low..=found.high
    };
    match (aqm, fit.model.output.aqm) {
        (
            AqmModel::Codel { target, interval },
            Some(AqmModel::Codel {
                target: found,
                interval: found_interval,
            }),
        ) => {
            let near = |one: Duration, other: Duration| {
                (one.as_secs_f64() / other.as_secs_f64() - 1.0).abs() < 0.1
            };
            assert!(
                near(found, target) && near(found_interval, interval),
                "{fit:?}"
            );
            let nanoseconds = |span: Duration| span.as_nanos() as f64;
            assert!(interval_of(ParameterKind::CodelTarget).contains(&nanoseconds(target)));
            assert!(interval_of(ParameterKind::CodelInterval).contains(&nanoseconds(interval)));
        }
        (AqmModel::Pie { target }, None) => {
            let standing = interval_of(ParameterKind::StandingDelay);
            assert!(standing.contains(&(target.as_nanos() as f64)), "{fit:?}");
        }
        (AqmModel::Red { .. }, None) => {
            interval_of(ParameterKind::StandingDelay);
        }
        (aqm, found) => panic!("{aqm:?} was found as {found:?}: {fit:?}"),
    }
}

#[test]
fn managed_queues_have_no_limit_with_confidence() {
    let managements = [
        AqmModel::Codel {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
        },
        AqmModel::Codel {
            target: Duration::from_millis(15),
            interval: Duration::from_millis(60),
        },
        AqmModel::Pie {
            target: Duration::from_millis(15),
        },
        AqmModel::Pie {
            target: Duration::from_millis(30),
        },
        AqmModel::Red {
            minimum: ByteCount::new(30_000),
            maximum: ByteCount::new(90_000),
            probability: Probability::from_fraction(0.1).unwrap(),
        },
    ];
    for aqm in managements {
        let device = managed_device(Some(aqm), 2_000);
        let fit = fitted(&device, &sustained_plan());
        assert!(
            !fit.is_identified(ParameterKind::OutputQueue),
            "{aqm:?}: {fit:?}"
        );
        let early = fit
            .parameter(ParameterKind::EarlyDrops)
            .unwrap_or_else(|| panic!("{aqm:?}: {fit:?}"));
        println!("{aqm:?}: {early:?}");
        assert!(early.value > 0.01, "{aqm:?}: {fit:?}");
        check_management(aqm, &fit);
        let rate = fit.model.output.rate.unwrap().bits_per_second();
        assert!(percent(rate, 10_000_000) < 1.0, "{aqm:?}: {fit:?}");
    }
    let fit = fitted(&managed_device(None, 200), &sustained_plan());
    assert_eq!(fit.parameter(ParameterKind::EarlyDrops), None);
    assert_eq!(
        fit.model.output.queue,
        DeviceQueueLimit::Packets(200),
        "{fit:?}"
    );
}
