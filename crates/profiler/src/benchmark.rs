//! The benchmark of the profiler: what the ports of this machine hold, the noise of a cable, and how
//! well known and foreign devices are found.
//!
//! Devices in real time take hours, so a call may measure some of them. Its document is kept after each
//! device, and `merge` counts the documents of several calls together.

mod merge;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use host::progress::{ProgressReporter, SilentProgress};
use host::run::LabRun;
use profile::{
    AddressFamily, ExperimentPlan, ExperimentPurpose, MeasurementPlan, MeasurementSubject,
    SizeShare, TrafficPattern, TrafficPlan,
};
use serde_json::{Value, json};
use vocab::ByteCount;

use crate::captured_flows;
use crate::foreign_devices::{
    self, ForeignComparison, ForeignKind, ForeignResult, ModelReproduction, UncomparedRun,
    VoidReproduction,
};
use crate::known_devices;
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
#[derive(Clone, Debug)]
pub struct BenchmarkSettings {
    /// Packets per second to send.
    pub packets_per_second: f64,
    /// Time for which they are sent.
    pub duration: Duration,
    /// Known devices in virtual time; zero leaves them out.
    pub known_devices: u64,
    /// Numbers of the known devices in real time, from 0; an empty range leaves them out.
    pub known_devices_real_time: Range<u64>,
    /// Foreign devices in virtual time; zero leaves them out.
    pub foreign_devices: u64,
    /// Numbers of the foreign devices in real time, from 0; an empty range leaves them out.
    pub foreign_devices_real_time: Range<usize>,
    /// Compares TCP flows with captures.
    pub compares_flows: bool,
    /// Time after which no further device in real time begins, and in which those that have begun
    /// probably end; `None` measures all.
    pub within: Option<Duration>,
}

/// Results of the benchmark.
#[derive(Debug)]
pub struct BenchmarkResult {
    /// Runs over the cable.
    pub cable: MeasurementResult,
    /// Models of the foreign devices, with their comparisons.
    pub foreign: Vec<ForeignResult>,
    /// Devices that could not be measured, with the reasons.
    pub failures: Vec<String>,
    /// JSON object with the figures.
    pub document: Value,
}

/// Numbers of TCP flows that are compared with captures, and the time for which they send.
const TCP_FLOWS: [u32; 2] = [100, 2_000];
const TCP_DURATION: Duration = Duration::from_secs(10);

/// First seeds of the draws; tests use others.
const KNOWN_SEED: u64 = 1_000;
const REAL_TIME_SEED: u64 = 2_000;
const FOREIGN_SEED: u64 = 3_000;

/// Measures over a cable of its own and through the devices that `settings` name. `keep` gets the
/// document of what has been measured after each part, and after each device in real time.
///
/// # Errors
/// When the cable, a device or the records cannot be made.
pub fn run(
    lab: &LabRun,
    settings: BenchmarkSettings,
    progress: &dyn ProgressReporter,
    keep: &dyn Fn(&Value),
) -> Result<BenchmarkResult> {
    let until = settings.within.map(|within| Instant::now() + within);
    let mut parts = PartTimes::new();
    let cable = measure(lab, &cable_settings(lab, &settings)?, progress)?;
    parts.end("cable");
    let figures = figures(&cable).context("the benchmark was stopped before its end")?;
    let mut results = BenchmarkParts {
        figures,
        report: report::document(&cable),
        foreign: Vec::new(),
        failures: Vec::new(),
        parts,
    };
    keep(&results.document());
    let seeds = |first: u64, count: u64| first..first + count;
    if settings.known_devices > 0 {
        let seeds = seeds(KNOWN_SEED, settings.known_devices);
        results.figures["known_devices"] = json!(known_devices::in_virtual_time(seeds, progress));
        results.end("known_devices", keep);
    }
    // A device that cannot be made or measured costs its own figures and no others.
    if !settings.known_devices_real_time.is_empty() {
        let numbers = &settings.known_devices_real_time;
        let seeds = REAL_TIME_SEED + numbers.start..REAL_TIME_SEED + numbers.end;
        let measured = known_devices::in_real_time(lab, (seeds, until), progress, &mut |known| {
            results.figures["known_devices_real_time"] = json!(known);
            keep(&results.document());
        });
        if let Err(error) = measured {
            let failure = format!("known devices in real time: {error:#}");
            results.failures.push(failure);
        }
        results.end("known_devices_real_time", keep);
    }
    if settings.compares_flows {
        results.compare_flows(lab, progress);
        results.end("tcp_flows", keep);
    }
    if settings.foreign_devices > 0 {
        let seeds = seeds(FOREIGN_SEED, settings.foreign_devices);
        let switches = foreign_devices::in_virtual_time(seeds, progress);
        results.foreign.extend(switches);
        results.end("foreign_devices", keep);
    }
    let numbers = settings.foreign_devices_real_time;
    if !numbers.is_empty() {
        foreign_devices::in_real_time(lab, (numbers, until), progress, &mut |result| {
            results.add_foreign(result);
            keep(&results.document());
        });
        results.end("foreign_devices_real_time", keep);
    }
    let document = results.document();
    Ok(BenchmarkResult {
        cable,
        foreign: results.foreign,
        failures: results.failures,
        document,
    })
}

/// Counts the documents of several calls together; each has a name for messages.
///
/// # Errors
/// When a document is not one of this benchmark, or two have the same device.
pub fn merge(documents: &[(String, Value)]) -> Result<Value> {
    merge::merge(documents)
}

/// The results of a benchmark that is running: those of the parts that have ended.
struct BenchmarkParts {
    figures: Value,
    report: Value,
    foreign: Vec<ForeignResult>,
    failures: Vec<String>,
    parts: PartTimes,
}

impl BenchmarkParts {
    /// Ends a part of the benchmark.
    fn end(&mut self, part: &'static str, keep: &dyn Fn(&Value)) {
        self.parts.end(part);
        keep(&self.document());
    }

    fn compare_flows(&mut self, lab: &LabRun, progress: &dyn ProgressReporter) {
        let mut compared = Vec::new();
        for flows in TCP_FLOWS {
            progress.step(0.0, &format!("{flows} TCP flows"));
            match captured_flows::compare(lab, flows, TCP_DURATION, &SilentProgress) {
                Ok(figures) => compared.push(figures),
                Err(error) => self.failures.push(format!("{flows} TCP flows: {error:#}")),
            }
        }
        self.figures["tcp_flows"] = json!(compared);
    }

    fn add_foreign(&mut self, result: Result<ForeignResult>) {
        match result {
            Ok(result) => self.foreign.push(result),
            Err(error) => self.failures.push(format!("{error:#}")),
        }
    }

    fn document(&self) -> Value {
        let mut figures = self.figures.clone();
        if !self.foreign.is_empty() {
            describe_foreign(&ForeignRows::of(&self.foreign), &mut figures);
        }
        let models: Vec<_> = self.foreign.iter().map(foreign_document).collect();
        json!({
            "bench": "profile",
            "figures": figures,
            "report": self.report,
            "failures": self.failures,
            "part_times_s": self.parts.seconds,
            "foreign_models": models,
        })
    }
}

fn cable_settings(lab: &LabRun, settings: &BenchmarkSettings) -> Result<MeasurementSettings> {
    let plan = MeasurementPlan {
        name: "benchmark".to_owned(),
        ports: 2,
        family: AddressFamily::Ipv4,
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
    Ok(MeasurementSettings {
        plan,
        ports: Vec::new(),
        records: Some(lab.directory().join("records")),
        records_max_bytes: RECORDS_MAX_BYTES,
    })
}

/// Times that the parts of the benchmark took.
#[derive(Debug)]
struct PartTimes {
    started: Instant,
    seconds: BTreeMap<&'static str, f64>,
}

impl PartTimes {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            seconds: BTreeMap::new(),
        }
    }

    /// Ends a part; the next one begins.
    fn end(&mut self, part: &'static str) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.seconds.insert(part, seconds);
        self.started = Instant::now();
    }
}

/// Held-out runs of foreign devices, of one call or of several.
#[derive(Debug, Default)]
struct ForeignRows {
    comparisons: Vec<ForeignComparison>,
    uncompared: Vec<UncomparedRun>,
    reproductions: Vec<ModelReproduction>,
    void_reproductions: Vec<VoidReproduction>,
}

impl ForeignRows {
    fn of(results: &[ForeignResult]) -> Self {
        let results = results.iter().cloned();
        results.fold(Self::default(), |mut rows, result| {
            rows.comparisons.extend(result.comparisons);
            rows.uncompared.extend(result.uncompared);
            rows.reproductions.extend(result.reproductions);
            rows.void_reproductions.extend(result.void_reproductions);
            rows
        })
    }
}

/// Enters the comparisons and reproductions of foreign devices.
fn describe_foreign(rows: &ForeignRows, figures: &mut Value) {
    let comparisons: Vec<&ForeignComparison> = rows.comparisons.iter().collect();
    let uncompared: Vec<&UncomparedRun> = rows.uncompared.iter().collect();
    figures["foreign_devices"] = json!(comparisons);
    figures["foreign_uncompared"] = json!(uncompared);
    figures["foreign_complex_best_share"] = json!(share(
        (&comparisons, &uncompared),
        ForeignKind::Complex,
        ForeignComparison::is_ours_best
    ));
    figures["foreign_single_queue_equal_share"] = json!(share(
        (&comparisons, &uncompared),
        ForeignKind::SingleQueue,
        ForeignComparison::is_ours_equal
    ));
    let (reproductions, void) = (&rows.reproductions, &rows.void_reproductions);
    if reproductions.is_empty() && void.is_empty() {
        return;
    }
    let share = |is_near: fn(&ModelReproduction) -> bool| {
        let near = reproductions.iter().filter(|one| is_near(one)).count();
        (!reproductions.is_empty()).then(|| near as f64 / reproductions.len() as f64)
    };
    figures["reproduced_share"] = json!(share(ModelReproduction::is_near));
    figures["reproduced_within_noise_share"] =
        json!(share(ModelReproduction::is_near_within_noise));
    figures["reproductions"] = json!(reproductions);
    figures["void_reproductions"] = json!(void);
}

/// Share of the held-out runs of this kind that pass. A run on which a model failed does not pass; a void
/// one does not count.
fn share(
    (comparisons, uncompared): (&[&ForeignComparison], &[&UncomparedRun]),
    kind: ForeignKind,
    passes: impl Fn(&ForeignComparison) -> bool,
) -> Option<f64> {
    let of_kind: Vec<_> = comparisons.iter().filter(|one| one.kind == kind).collect();
    let failed = uncompared
        .iter()
        .filter(|one| one.kind == kind && !one.is_void)
        .count();
    let passed = of_kind.iter().filter(|one| passes(one)).count();
    let runs = of_kind.len() + failed;
    (runs > 0).then(|| passed as f64 / runs as f64)
}

fn foreign_document(result: &ForeignResult) -> Value {
    json!({"model": result.model, "remarks": result.remarks})
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_without_a_fit_is_not_best_and_a_void_one_does_not_count() {
        let best = ForeignComparison {
            device: "switch".to_owned(),
            kind: ForeignKind::Complex,
            experiment: "bursts".to_owned(),
            is_real_time: false,
            ks_ours: 0.1,
            ks_fifo: 0.2,
            ks_hohn: 0.2,
            p95_error_ours: 0.1,
            p95_error_fifo: 0.2,
            p95_error_hohn: 0.2,
            loss_measured: 0.0,
            loss_ours: 0.0,
            resolution_ns: 1_000,
        };
        let uncompared = |is_void| UncomparedRun {
            device: "switch".to_owned(),
            kind: ForeignKind::Complex,
            experiment: "bursts".to_owned(),
            is_real_time: false,
            is_void,
            reason: "no model was fitted".to_owned(),
        };
        let (failed, void) = (uncompared(false), uncompared(true));
        let share = |uncompared: &[&UncomparedRun]| {
            share(
                (&[&best], uncompared),
                ForeignKind::Complex,
                ForeignComparison::is_ours_best,
            )
        };
        assert_eq!(share(&[]), Some(1.0));
        assert_eq!(share(&[&void]), Some(1.0));
        assert_eq!(share(&[&failed, &void]), Some(0.5));
    }
}
