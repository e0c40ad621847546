//! The whole chain in virtual time: a plan against an emulated device, records on disk, reader, fit,
//! validation, and the reports.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use profile::ParameterKind;
use profiler::{
    CalibratedRuns, MeasurementPlan, ModelFamily, RecordDirectory, ValidatedModel, fit_report,
    page, validate, validation_report, virtual_runs, write_virtual_records,
};
use vocab::{ByteCount, DeviceModel, DeviceQueueLimit};

/// Two servers of 6 to 12 us in front of outputs of 80 Mbit/s with slots of 256 bytes.
const DEVICE: &str = r#"
    name = "known"
    ports = 4
    transit = [{ size = "64B", time = "40us" }, { size = "1500B", time = "190us" }]
    [servers]
    count = 2
    service = [{ size = "64B", time = "6us" }, { size = "1500B", time = "12us" }]
    [output]
    rate = "80Mbit"
    overhead = "24B"
    queue = { slots = 200, slot = "256B" }
"#;

const PLAN: &str = r#"
    name = "chain"
    ports = 4
    loss_after = "1s"

    [[experiment]]
    name = "lone"
    purpose = "transit"
    subjects = ["cable", "device"]
    for_each_size = ["64B", "128B", "300B", "512B", "900B", "1500B"]
    traffic = [{ from = [1], to = [0], packets = 5,
        pattern = { kind = "constant", packets_per_second = 50.0 } }]

    [[experiment]]
    name = "contention"
    purpose = "contention"
    for_each_size = ["64B", "128B", "300B", "512B", "900B", "1500B"]
    traffic = [{ from = [0, 1, 2, 3], to = [1, 2, 3, 0], packets = 16,
        pattern = { kind = "bursts", packets_per_burst = 4, period = "20ms" } }]

    [[experiment]]
    name = "overload"
    purpose = "overload"
    for_each_size = ["64B", "128B", "300B", "512B", "900B", "1500B"]
    traffic = [{ from = [1, 2, 3], to = [0], packets = 600,
        pattern = { kind = "bursts", packets_per_burst = 600, period = "1h" } }]

    [[experiment]]
    name = "mixed bursts"
    purpose = "held-out"
    traffic = [{ from = [1, 2, 3], to = [0], packets = 3000,
        sizes = [{ size = "64B", share = 5 }, { size = "576B", share = 2 }, { size = "1500B", share = 3 }],
        pattern = { kind = "bursts", packets_per_burst = 120, period = "10ms" } }]

    [[experiment]]
    name = "closed-loop TCP"
    purpose = "held-out"
    traffic = [{ from = [1, 2, 3], to = [0], flows = 12, duration = "1s",
        pattern = { kind = "tcp", segment = "1448B" } }]
"#;

#[test]
fn records_of_emulated_device_give_its_model_back() {
    let device: DeviceModel = fit_report::model_from_file(DEVICE).unwrap();
    let plan = MeasurementPlan::from_toml(PLAN).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("records");
    write_virtual_records(&path, &plan, u64::MAX, virtual_runs(&plan, &device)).unwrap();

    let records = RecordDirectory::open(&path).unwrap();
    let calibrated = CalibratedRuns::read(&records).unwrap();
    assert_eq!(calibrated.resolution(), Duration::from_nanos(1));
    let fit = calibrated.fit("fitted", ModelFamily::Full).unwrap();

    let rate = fit.model.output.rate.unwrap().bits_per_second() as f64;
    assert!((rate / 80e6 - 1.0).abs() < 0.001, "{rate}");
    assert_eq!(fit.model.output.overhead, ByteCount::new(24));
    let DeviceQueueLimit::Slots { count, slot } = fit.model.output.queue else {
        panic!("the unit is wrong: {:?}", fit.model.output.queue);
    };
    assert_eq!(slot, ByteCount::new(256));
    assert!((199..=201).contains(&count), "{count}");
    assert_eq!(fit.model.servers.as_ref().unwrap().count, 2);
    for size in [64, 700, 1_500] {
        let (fitted, known) = (fit.model.transit.at(size), device.transit.at(size));
        assert!(fitted.abs_diff(known) < Duration::from_micros(1), "{size}");
    }
    // No input is overloaded, so the report says what is missing.
    assert!(!fit.is_identified(ParameterKind::InputQueue));
    let text = fit_report::text(&calibrated, &fit);
    assert!(
        text.contains("200 slots") && text.contains("To identify it"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let document = fit_report::document(&calibrated, &fit);
    assert_eq!(document["model"]["servers"]["count"], 2);

    let file = fit_report::model_file(&fit.model).unwrap();
    let model = fit_report::model_from_file(&file).unwrap();
    assert_eq!(model, fit.model);
    let validation = validate(&records, &model).unwrap();
    assert_eq!(validation.runs.len(), 2);
    for run in &validation.runs {
        let ours = &run.prediction(ValidatedModel::Ours).unwrap().score;
        assert!(ours.measured.loss_ratio > 0.001, "{ours:?}");
        assert!(ours.ks_distance < 0.05, "{}: {ours:?}", run.plan.experiment);
        assert!(ours.p95_error() < 0.05, "{}: {ours:?}", run.plan.experiment);
        assert!(
            ours.loss_error() < 0.005,
            "{}: {ours:?}",
            run.plan.experiment
        );
        assert_eq!(run.predictions.len(), 3);
    }
    let text = validation_report::text(&validation);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let document = validation_report::document(&validation);
    assert!(document["runs"][1]["predictions"]["hohn"]["ks_distance"].is_number());
    let page = page::html(&validation).unwrap();
    assert!(page.contains("class=\"narrow\"") && !page.contains("src="));
}

#[test]
fn measurement_without_held_out_runs_validates_nothing() {
    let device: DeviceModel = fit_report::model_from_file(DEVICE).unwrap();
    let mut plan = MeasurementPlan::from_toml(PLAN).unwrap();
    plan.experiments.truncate(1);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("records");
    write_virtual_records(&path, &plan, u64::MAX, virtual_runs(&plan, &device)).unwrap();
    let records = RecordDirectory::open(&path).unwrap();
    let error = validate(&records, &device).unwrap_err().to_string();
    assert!(error.contains("purpose = \"held-out\""), "{error}");
    // Lone packets alone give a transit, and the rest is named with its remedy.
    let runs = CalibratedRuns::read(&records).unwrap();
    let fit = runs.fit("lone", ModelFamily::Full).unwrap();
    let missing: Vec<_> = fit
        .parameters
        .iter()
        .filter(|one| one.unidentified.is_some())
        .collect();
    assert!(missing.len() >= 4, "{missing:?}");
    assert!(
        missing.iter().all(|one| one.remedy.is_some()),
        "{missing:?}"
    );
}
