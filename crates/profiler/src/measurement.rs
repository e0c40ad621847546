//! A measurement: all runs of a plan, the cable's first, and the cells of their report.
//!
//! ```text
//!   plan ─► runs over the cable ─► runs through the device ─► cells: experiment × size × subject
//!                  └── noise of the ports ──────────────────► subtracted from the device's delays
//! ```
//! A failure ends the measurement, and what was measured before it is kept and reported.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use host::kernel;
use host::progress::ProgressReporter;
use host::run::LabRun;
use profile::{
    AddressFamily, MeasurementPlan, MeasurementSubject, RunPlan, TrafficPattern, TrafficPlan,
    TrafficSummary,
};
use serde_json::json;

use crate::cable::CablePair;
use crate::figures::DelaySamples;
use crate::port::{MeasurementPort, PortLocation};
use crate::records::{RecordSummary, RecordWriter};
use crate::run::{RunEnd, RunObserver, RunOutcome, execute};

/// TCP header with time stamps.
const TCP_HEADER: u64 = 32;

/// Settings of a measurement.
#[derive(Clone, Debug)]
pub struct MeasurementSettings {
    /// The plan.
    pub plan: MeasurementPlan,
    /// Ports of the device, in the plan's order; none measures the cable alone.
    pub ports: Vec<PortLocation>,
    /// Directory for the records; none keeps no records.
    pub records: Option<PathBuf>,
    /// Limit for the records on the disk, bytes.
    pub records_max_bytes: u64,
}

/// Result of a measurement.
#[derive(Debug)]
pub struct MeasurementResult {
    /// Name of the plan.
    pub plan: String,
    /// Runs that were measured, in the order of measuring.
    pub runs: Vec<RunResult>,
    /// Runs of the plan.
    pub planned_runs: usize,
    /// Sums over repetitions.
    pub cells: Vec<MeasurementCell>,
    /// The records, if some were kept.
    pub records: Option<RecordSummary>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// Reason why runs are missing.
    pub failure: Option<String>,
}

/// Result of a run without its delays.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// Outcome, whose delays have been moved to a cell.
    pub outcome: RunOutcome,
    /// Figures of its delays.
    pub delays: Option<crate::figures::DelayFigures>,
}

/// Runs of one experiment, size and subject.
#[derive(Clone, Debug)]
pub struct MeasurementCell {
    /// Name of the experiment.
    pub experiment: String,
    /// Size of the packets, if it is one.
    pub size: Option<u64>,
    /// Rate of the plan, if it is constant.
    pub planned_pps: Option<f64>,
    /// A pattern is closed-loop TCP.
    pub has_tcp: bool,
    /// Subject of the runs.
    pub subject: MeasurementSubject,
    /// Runs that count.
    pub valid_runs: u32,
    /// Runs that do not, because of our own losses, a step of the clock, or an end before their time.
    pub void_runs: u32,
    /// Fates of the packets of runs that count.
    pub summary: TrafficSummary,
    /// Packets that our own ports lost, in all runs.
    pub own_losses: f64,
    /// Packets of all runs.
    pub packets: u64,
    /// Delays of runs that count.
    pub delays: DelaySamples,
    /// Mean over runs of the packets sent per second.
    pub sent_pps: f64,
    /// Mean over runs of the packets received per second.
    pub received_pps: f64,
}

/// Runs the plan.
///
/// # Errors
/// When nothing could be measured: the records, the cable or the ports cannot be made.
pub fn measure(
    lab: &LabRun,
    settings: &MeasurementSettings,
    progress: &dyn ProgressReporter,
) -> Result<MeasurementResult> {
    let plan = &settings.plan;
    let mut runs = plan.runs();
    // The noise of the ports is known before the device is measured.
    runs.sort_by_key(|run| run.subject == MeasurementSubject::Device);
    let mut result = MeasurementResult {
        plan: plan.name.clone(),
        runs: Vec::new(),
        planned_runs: runs.len(),
        cells: Vec::new(),
        records: None,
        notes: Vec::new(),
        failure: None,
    };
    if settings.ports.is_empty() {
        let all = runs.len();
        runs.retain(|run| run.subject == MeasurementSubject::Cable);
        if runs.is_empty() {
            return Err(anyhow!(
                "the plan measures a device only, and no port is given; add --port INTERFACE for each of its {} ports",
                plan.ports
            ));
        }
        if runs.len() < all {
            result.notes.push(format!(
                "no port is given, so the {} runs through a device are left out; add --port INTERFACE for each of its {} ports",
                all - runs.len(),
                plan.ports
            ));
        }
    }
    let largest = largest_packet(&runs);
    let mut devices = open_ports(&settings.ports, largest)?;
    let mut records = settings
        .records
        .as_deref()
        .map(|directory| {
            RecordWriter::create(
                directory,
                describe(plan, &runs, crate::STAMPS),
                settings.records_max_bytes,
            )
        })
        .transpose()?;
    let mut cable = None;
    let whole = total_time(&runs);
    let mut behind = Duration::ZERO;
    for (begun, run) in runs.iter().enumerate() {
        if kernel::interrupted() {
            result.failure = Some("stopped by the user".to_owned());
            break;
        }
        let ports = match run.subject {
            MeasurementSubject::Device => Ok(devices.as_mut_slice()),
            MeasurementSubject::Cable => cable_ports(&mut cable, lab, largest, ports_used(run)),
        };
        let observer = RunWatch {
            progress,
            run,
            number: begun + 1,
            runs: runs.len(),
            behind,
            whole,
            started: Instant::now(),
            packets: Cell::new(0),
        };
        let outcome = ports.and_then(|ports| execute(ports, run, records.as_mut(), &observer));
        behind += expected_time(run);
        match outcome {
            Ok(outcome) => {
                let end = outcome.end.clone();
                if let Some(records) = &mut records {
                    records.end_run(run.number, end.name(), !outcome.is_void());
                }
                result.add(outcome);
                match end {
                    RunEnd::Complete => {}
                    RunEnd::Interrupted => result.failure = Some("stopped by the user".to_owned()),
                    RunEnd::DeviceSilent => {
                        result.failure = Some(format!(
                            "nothing has arrived for 5 s in run {} ({}); the device is dead, or it filters the packets",
                            run.number, run.experiment
                        ));
                    }
                    RunEnd::Loop => {
                        result.failure = Some(format!(
                            "many more packets arrive than are sent in run {} ({}); there is a loop behind the device's ports",
                            run.number, run.experiment
                        ));
                    }
                    RunEnd::PortFailed { error } => result.failure = Some(error),
                }
            }
            Err(error) if result.runs.is_empty() => return Err(error),
            Err(error) => result.failure = Some(format!("{error:#}")),
        }
        if result.failure.is_some() {
            break;
        }
        wait(run.pause);
    }
    if let Some(records) = records {
        result.records = Some(records.finish()?);
    }
    Ok(result)
}

impl MeasurementResult {
    fn add(&mut self, mut outcome: RunOutcome) {
        let delays = std::mem::take(&mut outcome.delays);
        let figures = delays.figures();
        let run = &outcome.plan;
        let size = run
            .size
            .map(vocab::ByteCount::bytes)
            .or_else(|| one_size(run));
        let planned_pps = planned_rate(run);
        let is_tcp = |one: &TrafficPlan| matches!(one.pattern, TrafficPattern::Tcp { .. });
        let has_tcp = run.traffic.iter().any(is_tcp);
        let known = self.cells.iter_mut().find(|cell| {
            cell.experiment == run.experiment && cell.size == size && cell.subject == run.subject
        });
        let cell = match known {
            Some(cell) => cell,
            None => {
                self.cells.push(MeasurementCell {
                    experiment: run.experiment.clone(),
                    size,
                    planned_pps,
                    has_tcp,
                    subject: run.subject,
                    valid_runs: 0,
                    void_runs: 0,
                    summary: TrafficSummary::default(),
                    own_losses: 0.0,
                    packets: 0,
                    delays: DelaySamples::default(),
                    sent_pps: 0.0,
                    received_pps: 0.0,
                });
                self.cells.last_mut().expect("one has just been added")
            }
        };
        cell.packets += outcome.summary.sent;
        cell.own_losses += outcome.own_loss() * outcome.summary.sent as f64;
        if outcome.is_void() {
            cell.void_runs += 1;
        } else {
            let runs = f64::from(cell.valid_runs);
            let mean = |mean: f64, value: f64| (mean * runs + value) / (runs + 1.0);
            cell.sent_pps = mean(cell.sent_pps, outcome.sent_pps);
            cell.received_pps = mean(cell.received_pps, outcome.received_pps);
            cell.valid_runs += 1;
            cell.delays.append(&delays);
            add_summary(&mut cell.summary, &outcome.summary);
        }
        self.runs.push(RunResult {
            outcome,
            delays: figures,
        });
    }

    /// The cable's cell that belongs to a cell of the device.
    #[must_use]
    pub fn cable_of(&self, cell: &MeasurementCell) -> Option<&MeasurementCell> {
        self.cells.iter().find(|cable| {
            cable.subject == MeasurementSubject::Cable
                && cable.experiment == cell.experiment
                && cable.size == cell.size
        })
    }
}

fn add_summary(sum: &mut TrafficSummary, one: &TrafficSummary) {
    sum.sent += one.sent;
    sum.delivered += one.delivered;
    sum.reordered += one.reordered;
    sum.duplicated += one.duplicated;
    sum.corrupted += one.corrupted;
    sum.lost += one.lost;
    sum.lost_at_port += one.lost_at_port;
}

fn open_ports(locations: &[PortLocation], largest: usize) -> Result<Vec<MeasurementPort>> {
    (0..)
        .zip(locations)
        .map(|(number, location)| MeasurementPort::open(location, number, largest))
        .collect()
}

fn cable_ports<'a>(
    cable: &'a mut Option<CablePair>,
    lab: &LabRun,
    largest: usize,
    wanted: u16,
) -> Result<&'a mut [MeasurementPort]> {
    if cable.is_none() {
        *cable = Some(CablePair::create(lab, largest).context("the cable of the calibration")?);
    }
    cable.as_mut().expect("it has just been made").ports(wanted)
}

/// Number of the ports that a run uses: one more than the highest.
fn ports_used(run: &RunPlan) -> u16 {
    let ports = run
        .traffic
        .iter()
        .flat_map(|traffic| traffic.from.iter().chain(&traffic.to));
    ports.max().map_or(0, |highest| highest + 1)
}

fn largest_packet(runs: &[RunPlan]) -> usize {
    let of_run = |run: &RunPlan, traffic: &TrafficPlan| {
        let ip_header = match run.family {
            AddressFamily::Ipv4 => 20,
            AddressFamily::Ipv6 => 40,
        };
        let udp = traffic.sizes.iter().map(|share| share.size.bytes()).max();
        match traffic.pattern {
            TrafficPattern::Tcp { segment, .. } => segment.bytes() + TCP_HEADER + ip_header,
            TrafficPattern::Constant { .. }
            | TrafficPattern::Poisson { .. }
            | TrafficPattern::Bursts { .. } => udp.unwrap_or(0),
        }
    };
    let sizes = runs
        .iter()
        .flat_map(|run| run.traffic.iter().map(move |traffic| of_run(run, traffic)));
    sizes.max().unwrap_or(0) as usize
}

fn one_size(run: &RunPlan) -> Option<u64> {
    let [traffic] = run.traffic.as_slice() else {
        return None;
    };
    match traffic.sizes.as_slice() {
        [only] => Some(only.size.bytes()),
        _ => None,
    }
}

fn planned_rate(run: &RunPlan) -> Option<f64> {
    let rates = run.traffic.iter().map(|traffic| match traffic.pattern {
        TrafficPattern::Constant { packets_per_second }
        | TrafficPattern::Poisson { packets_per_second } => Some(packets_per_second),
        TrafficPattern::Bursts { .. } | TrafficPattern::Tcp { .. } => None,
    });
    rates.sum()
}

/// Time that a run takes, as far as the plan tells.
fn expected_time(run: &RunPlan) -> Duration {
    run.sending_time().unwrap_or_default() + run.loss_after + run.pause
}

fn total_time(runs: &[RunPlan]) -> Duration {
    runs.iter().map(expected_time).sum()
}

/// Time that a plan takes, as far as it tells.
pub(crate) fn plan_time(plan: &MeasurementPlan) -> Duration {
    total_time(&plan.runs())
}

/// Waits, and stops early if the user asks for it.
fn wait(pause: Duration) {
    const STEP: Duration = Duration::from_millis(100);
    let mut left = pause;
    while !left.is_zero() && !kernel::interrupted() {
        let step = left.min(STEP);
        std::thread::sleep(step);
        left -= step;
    }
}

/// Description of a measurement beside its records.
pub(crate) fn describe(
    plan: &MeasurementPlan,
    runs: &[RunPlan],
    stamps: &str,
) -> serde_json::Value {
    let runs: Vec<_> = runs
        .iter()
        .map(|run| {
            json!({
                "run": run.number,
                "experiment": run.experiment,
                "purpose": run.purpose,
                "subject": run.subject,
                "repetition": run.repetition,
                "size": run.size.map(vocab::ByteCount::bytes).or_else(|| one_size(run)),
            })
        })
        .collect();
    json!({"plan": plan, "runs": runs, "stamps": stamps})
}

/// Observer that reports progress and the user's wish to stop.
struct RunWatch<'a> {
    progress: &'a dyn ProgressReporter,
    run: &'a RunPlan,
    /// The position of the run among those that are measured, which the plan may exceed.
    number: usize,
    runs: usize,
    behind: Duration,
    whole: Duration,
    started: Instant,
    packets: Cell<u64>,
}

impl RunObserver for RunWatch<'_> {
    fn sent(&self, packets: u64) -> bool {
        if packets >= self.packets.get() {
            self.packets.set(packets + 1);
            let here = self.started.elapsed().min(expected_time(self.run));
            let done = (self.behind + here).as_secs_f64();
            let left = self.whole.saturating_sub(self.behind + here);
            let text = format!(
                "run {} of {}: {} ({}), about {} left",
                self.number,
                self.runs,
                self.run.experiment,
                match self.run.subject {
                    MeasurementSubject::Cable => "cable",
                    MeasurementSubject::Device => "device",
                },
                rounded(left)
            );
            self.progress
                .step(done / self.whole.as_secs_f64().max(1e-9), &text);
        }
        !kernel::interrupted()
    }
}

/// A time in hours and minutes, or in minutes and seconds below an hour.
fn rounded(span: Duration) -> String {
    let seconds = span.as_secs();
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{} s", seconds.div_ceil(10) * 10),
        (0, minutes, _) => format!("{} min", minutes + 1),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_is_rounded_for_people() {
        for (seconds, text) in [(3, "10 s"), (70, "2 min"), (7_380, "2 h 03 min")] {
            assert_eq!(rounded(Duration::from_secs(seconds)), text);
        }
    }
}
