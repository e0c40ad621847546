//! `trunkline bench diagnosis`: measures how often the diagnosis is right on the kernel's policers
//! and shapers.
//!
//! Each case's result is written to a file, one line of JSON, as soon as the case is over; an
//! interrupted run continues where it stopped. `bench::labelled` defines the cases.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ::measure::diagnosis::{DiagnosisScore, ScoreShare};
use anyhow::{Context, Result, bail, ensure};
use bench::labelled::{self, CAPTURE_LOSSES_MIN, CaseOutcome, PathCase};
use clap::Args;
use host::machine::MachineInfo;
use host::progress::ProgressReporter;
use host::{kernel, rootless};
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};
use serde_json::{Value, json};

use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Attempts for a case that could not be measured: a busy machine can be too slow once.
const ATTEMPTS: u32 = 2;

/// Tests the diagnosis of paths whose bottleneck the kernel makes (tbf, nftables), with random
/// parameters from a seed.
///
/// Each case is a path in network namespaces. `trunkline measure run` measures the path between its
/// two ends, and a capture at the client records the TCP packets. 120 cases take about 20 minutes
/// when three cases run in parallel. The benchmark needs tc, nft and tcpdump.
#[derive(Debug, Args)]
pub(crate) struct BenchDiagnosis {
    /// Sets how many random test cases the benchmark runs.
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    cases: u32,
    /// Sets the seed that determines all test cases [default: a new seed for each run; with
    /// --results, the seed in the file of results].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Runs only the test cases with these numbers.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    only: Vec<u32>,
    /// Sets how many test cases run in parallel. If too many test cases run in parallel, the
    /// machine is busy and adds delays of its own.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    at_once: u32,
    /// Appends the results to this file, one line of JSON per test case. The benchmark skips a test
    /// case whose result is already in the file.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Saves the packet capture of each test case in this directory. Each packet capture contains
    /// the headers of packets without their payload, and has some megabytes.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Measures nothing, and diagnoses the captures in the directory of --keep again, for the test
    /// cases in the file of --results. With --again, another build of Trunkline can diagnose the
    /// captures of an earlier run within about a minute and without root privileges.
    #[arg(long, requires = "keep", requires = "results")]
    again: bool,
    /// Prints the results of the benchmark as one JSON object.
    #[arg(long)]
    json: bool,
}

impl BenchDiagnosis {
    /// Measures the missing cases, or judges the kept captures again, and prints.
    ///
    /// # Errors
    /// Fails when nothing could be measured, or the results file belongs to another seed.
    pub(crate) fn run(self) -> Result<()> {
        kernel::catch_interruptions();
        let environment = environment()?;
        if self.again {
            return self.judge_again(&environment);
        }
        if let Some(keep) = &self.keep {
            std::fs::create_dir_all(keep).with_context(|| format!("making {}", keep.display()))?;
        }
        let privileges = rootless::obtain(&environment)?;
        let needs = LabRequirements {
            servers: vec![],
            clients: vec![],
            interception: InterceptionMode::None,
            captures: CaptureMode::Taken,
        };
        preflight::check(&needs, privileges)?;
        let mut known = match &self.results {
            Some(path) => read(path)?,
            None => BTreeMap::new(),
        };
        let seed = self.seed(&known)?;
        let wanted = match self.only.is_empty() {
            true => (0..self.cases).collect(),
            false => self.only.clone(),
        };
        let mut file = self.results.as_deref().map(appended).transpose()?;
        let missing: VecDeque<u32> = wanted
            .iter()
            .copied()
            .filter(|index| !known.contains_key(index) || !self.is_kept(seed, *index))
            .collect();
        let (all, begun) = (wanted.len(), wanted.len() - missing.len());
        let display = progress();
        let missing = Mutex::new(missing);
        let (sender, outcomes) = std::sync::mpsc::channel();
        let mut failures: Vec<String> = Vec::new();
        std::thread::scope(|scope| -> Result<()> {
            for _ in 0..self.at_once {
                let (sender, missing, environment) = (sender.clone(), &missing, &environment);
                let keep = self.keep.as_deref();
                scope.spawn(move || {
                    while let Some(index) = next(missing) {
                        let case = PathCase::draw(seed, index);
                        if sender.send(measured(environment, &case, keep)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let mut done = begun;
            for outcome in outcomes {
                done += 1;
                let outcome = match outcome {
                    Ok(outcome) => outcome,
                    Err(error) => {
                        failures.push(format!("{error:#}"));
                        display.note(&format!("{error:#}"));
                        continue;
                    }
                };
                let text = format!("case {}: {}", outcome.case.index, outcome.there.join(", "));
                display.step(done as f64 / all as f64, &text);
                if let Some(file) = &mut file {
                    writeln!(file, "{}", serde_json::to_string(&outcome)?)?;
                }
                known.insert(outcome.case.index, outcome);
            }
            Ok(())
        })?;
        display.finish();
        known.retain(|index, _| wanted.contains(index));
        ensure!(
            !known.is_empty(),
            "no case could be measured: {}",
            failures.join("; ")
        );
        self.print(&DiagnosisReport::of(seed, known, failures, all))
    }

    /// Tells whether a case's capture is already in the directory where it is kept.
    fn is_kept(&self, seed: u64, index: u32) -> bool {
        self.keep
            .as_deref()
            .is_none_or(|keep| labelled::kept_capture(keep, &PathCase::draw(seed, index)).exists())
    }

    /// Judges kept captures again. The findings of the two ends stay as they were measured.
    fn judge_again(&self, environment: &host::ProgramEnvironment) -> Result<()> {
        let (Some(results), Some(keep)) = (&self.results, &self.keep) else {
            bail!(
                "--again needs the results and the captures of an earlier run: add --results FILE --keep DIR"
            );
        };
        ensure!(
            results.exists(),
            "the file {} does not exist; --again needs the cases in this file",
            results.display()
        );
        let mut known = read(results)?;
        if !self.only.is_empty() {
            known.retain(|index, _| self.only.contains(index));
        }
        let (all, seed) = (known.len(), self.seed(&known)?);
        let mut failures = Vec::new();
        known.retain(
            |_, outcome| match labelled::judge_again(environment, outcome, keep) {
                _ if kernel::interrupted() => false,
                Ok(()) => true,
                Err(error) => {
                    failures.push(format!("{error:#}"));
                    false
                }
            },
        );
        ensure!(
            !known.is_empty(),
            "no case in {} has a capture in {}: {}",
            results.display(),
            keep.display(),
            failures.join("; ")
        );
        self.print(&DiagnosisReport::of(seed, known, failures, all))
    }

    fn print(&self, report: &DiagnosisReport) -> Result<()> {
        let mut out = StandardOutput::new();
        match self.json {
            true => writeln!(out, "{}", report.document())?,
            false => write!(out, "{}", report.text())?,
        }
        Ok(())
    }

    fn seed(&self, known: &BTreeMap<u32, CaseOutcome>) -> Result<u64> {
        let of_results = known.values().next().map(|outcome| outcome.case.seed);
        if let (Some(asked), Some(there)) = (self.seed, of_results)
            && asked != there
        {
            bail!(
                "the results in this file have the seed {there}, and not {asked}; name another file"
            );
        }
        match self.seed.or(of_results) {
            Some(seed) => Ok(seed),
            None => fresh_seed(),
        }
    }
}

/// Seed from the clock: parameters are drawn when the test begins. It is short enough to type.
fn fresh_seed() -> Result<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(now.as_millis() as u64 % 1_000_000_000)
}

fn next(missing: &Mutex<VecDeque<u32>>) -> Option<u32> {
    if kernel::interrupted() {
        return None;
    }
    let mut missing = missing
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    missing.pop_front()
}

fn measured(
    environment: &host::ProgramEnvironment,
    case: &PathCase,
    keep: Option<&Path>,
) -> Result<CaseOutcome> {
    let mut attempt = 1;
    loop {
        match labelled::measure(environment, case, keep) {
            Err(_) if attempt < ATTEMPTS && !kernel::interrupted() => attempt += 1,
            other => return other,
        }
    }
}

fn read(path: &Path) -> Result<BTreeMap<u32, CaseOutcome>> {
    let Ok(file) = File::open(path) else {
        return Ok(BTreeMap::new());
    };
    let mut known = BTreeMap::new();
    for line in BufReader::new(file).lines() {
        // The last line of a run that was killed may be half a line.
        if let Ok(outcome) = serde_json::from_str::<CaseOutcome>(&line?) {
            known.insert(outcome.case.index, outcome);
        }
    }
    Ok(known)
}

fn appended(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))
}

/// All known results with their judgement.
struct DiagnosisReport {
    seed: u64,
    outcomes: BTreeMap<u32, CaseOutcome>,
    failures: Vec<String>,
    wanted: usize,
    two_ended: DiagnosisScore,
    captures: DiagnosisScore,
    wrong: Vec<u32>,
    wrong_captures: Vec<u32>,
}

impl DiagnosisReport {
    fn of(
        seed: u64,
        outcomes: BTreeMap<u32, CaseOutcome>,
        failures: Vec<String>,
        wanted: usize,
    ) -> Self {
        let (mut two_ended, mut captures) = (DiagnosisScore::default(), DiagnosisScore::default());
        let (mut wrong, mut wrong_captures) = (Vec::new(), Vec::new());
        for (index, outcome) in &outcomes {
            if !two_ended.count(&outcome.causes(), outcome.truth(), &outcome.answers()) {
                wrong.push(*index);
            }
            if let Some((causes, truth, answers)) = outcome.capture()
                && !captures.count(&causes, truth, &answers)
            {
                wrong_captures.push(*index);
            }
        }
        Self {
            seed,
            outcomes,
            failures,
            wanted,
            two_ended,
            captures,
            wrong,
            wrong_captures,
        }
    }

    fn document(&self) -> Value {
        let share = |share: ScoreShare| {
            let (low, high) = share.interval();
            json!({
                "right": share.right,
                "all": share.all,
                "low_95_percent": (share.all > 0).then_some(low * 100.0),
                "high_95_percent": (share.all > 0).then_some(high * 100.0),
            })
        };
        let shares = |score: &DiagnosisScore| {
            json!({
                "all_causes": share(score.exact),
                "policer_or_shaper": share(score.bucket),
                "rate_within_3_percent": share(score.rate),
                "burst_within_15_percent_or_two_mtu": share(score.burst),
                "matrix": score.matrix(),
            })
        };
        json!({
            "bench": "diagnosis",
            "figures": {
                "two_ended": shares(&self.two_ended),
                "captures": shares(&self.captures),
            },
            "seed": self.seed,
            "wanted": self.wanted,
            "not_measured": self.failures,
            "wrong": self.wrong,
            "wrong_captures": self.wrong_captures,
            "cases": self.outcomes.values().collect::<Vec<_>>(),
            "machine": MachineInfo::describe(&["nft", "tc"]),
        })
    }

    fn text(&self) -> String {
        let mut text = format!("seed {}\n", self.seed);
        let title = format!("between two ends, {} cases", self.outcomes.len());
        text += &self.two_ended.report(&title);
        let title = format!("captures with {CAPTURE_LOSSES_MIN} losses or more");
        let _ = write!(text, "\n{}", self.captures.report(&title));
        for index in &self.wrong {
            let outcome = &self.outcomes[index];
            let case = &outcome.case;
            let _ = writeln!(
                text,
                "\ncase {index}: {:?}, RTT {} ms, loss {} %, {} connections: {}",
                case.device,
                case.rtt_ms,
                case.loss_percent,
                case.connections,
                outcome.there.join(", ")
            );
            for found in &outcome.found {
                let _ = writeln!(text, "  {}: {}", found.cause, found.evidence.join("; "));
            }
        }
        if self.outcomes.len() < self.wanted {
            let _ = writeln!(
                text,
                "\n{} of {} cases were not measured. {}",
                self.wanted - self.outcomes.len(),
                self.wanted,
                self.failures.join("; ")
            );
        }
        text
    }
}
