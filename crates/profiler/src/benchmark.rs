//! The benchmark of the profiler: what the ports of this machine hold, and the noise of a cable.

use std::time::Duration;

use anyhow::{Context, Result};
use host::progress::ProgressReporter;
use host::run::LabRun;
use profile::{
    ExperimentPlan, ExperimentPurpose, MeasurementPlan, MeasurementSubject, SizeShare,
    TrafficPattern, TrafficPlan,
};
use serde_json::{Value, json};
use vocab::ByteCount;

use crate::measurement::{MeasurementResult, MeasurementSettings, measure};
use crate::report;

/// Size of the packets of the published measurement.
const PACKET: ByteCount = ByteCount::new(92);
/// Rate of the run whose delays are the cable's figures: a rate of the published table at which the
/// ports are idle between packets.
const CALIBRATION_PPS: f64 = 10_000.0;
const CALIBRATION_PACKETS: u64 = 50_000;
/// Bytes of records that the benchmark may write.
const RECORDS_MAX_BYTES: u64 = 2 << 30;

const SUSTAINED: &str = "sustained";
const CALIBRATION: &str = "calibration";

/// Settings of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct BenchmarkSettings {
    /// Packets per second to send.
    pub packets_per_second: f64,
    /// Time for which they are sent.
    pub duration: Duration,
}

/// Measures over a cable of its own, and returns the JSON object with its figures.
///
/// # Errors
/// When the cable or the records cannot be made.
pub fn run(
    lab: &LabRun,
    settings: BenchmarkSettings,
    progress: &dyn ProgressReporter,
) -> Result<(MeasurementResult, Value)> {
    let plan = MeasurementPlan {
        name: "benchmark".to_owned(),
        ports: 2,
        seed: 1,
        loss_after: Duration::from_secs(1),
        experiments: vec![
            experiment(
                CALIBRATION,
                TrafficPattern::Constant {
                    packets_per_second: CALIBRATION_PPS,
                },
                Some(CALIBRATION_PACKETS),
                None,
            ),
            experiment(
                SUSTAINED,
                TrafficPattern::Constant {
                    packets_per_second: settings.packets_per_second,
                },
                None,
                Some(settings.duration),
            ),
        ],
    };
    plan.check()?;
    let measured = MeasurementSettings {
        plan,
        ports: Vec::new(),
        records: Some(lab.directory().join("records")),
        records_max_bytes: RECORDS_MAX_BYTES,
    };
    let result = measure(lab, &measured, progress)?;
    let figures = figures(&result).context("the benchmark was stopped before its end")?;
    let document = json!({
        "bench": "profile",
        "figures": figures,
        "report": report::document(&result),
    });
    Ok((result, document))
}

fn experiment(
    name: &str,
    pattern: TrafficPattern,
    packets: Option<u64>,
    duration: Option<Duration>,
) -> ExperimentPlan {
    ExperimentPlan {
        name: name.to_owned(),
        purpose: ExperimentPurpose::Report,
        subjects: vec![MeasurementSubject::Cable],
        repetitions: 1,
        pause: Duration::ZERO,
        for_each_size: Vec::new(),
        traffic: vec![TrafficPlan {
            from: vec![0],
            to: vec![1],
            pattern,
            sizes: vec![SizeShare {
                size: PACKET,
                share: 1.0,
            }],
            flows: 1,
            start: Duration::ZERO,
            packets,
            duration,
        }],
    }
}

fn figures(result: &MeasurementResult) -> Option<Value> {
    let of = |name: &str| {
        result
            .runs
            .iter()
            .find(|run| run.outcome.plan.experiment == name)
    };
    let (sustained, calibration) = (of(SUSTAINED)?, of(CALIBRATION)?);
    let cable = calibration.delays?;
    let outcome = &sustained.outcome;
    let recorded = result.records.as_ref()?;
    // Packets of which both stamps are in the records, over the time of receiving.
    let share = (outcome.summary.delivered + outcome.summary.reordered) as f64
        / outcome.summary.sent.max(1) as f64;
    let kept = recorded.rows as f64 / (recorded.rows + recorded.missing_rows).max(1) as f64;
    Some(json!({
        "sent_pps": outcome.sent_pps,
        "recorded_pps": outcome.received_pps.min(outcome.sent_pps * share) * kept,
        "own_loss": outcome.own_loss(),
        "cable_p5_ns": cable.p5_ns,
        "cable_mean_ns": cable.mean_ns,
        "cable_p95_ns": cable.p95_ns,
    }))
}
