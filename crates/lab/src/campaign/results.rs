//! Results of a campaign: the raw result file that every figure of a report traces to.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::link::LabLink;
use super::plan::PassKind;
use crate::recording::MeasuredFile;
use host::machine::MachineInfo;

/// The version of the result file's format; a reader refuses others.
pub const FORMAT_VERSION: u32 = 1;

/// The host was the limit when its processors were busy for more than this share of a workload.
const BUSY_LIMIT: f64 = 0.95;

/// A campaign's results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CampaignResults {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// The plan's title.
    pub title: String,
    /// Start time, RFC 3339.
    pub started: String,
    /// Duration in seconds.
    pub took_s: f64,
    /// The machine and the programs.
    pub machine: MachineInfo,
    /// Seeds of the contents.
    pub seeds: CampaignSeeds,
    /// Number of times that everything was measured.
    pub repeats: u32,
    /// Passes that were run.
    pub passes: Vec<PassKind>,
    /// The plan's tests, in order.
    pub tests: Vec<TestResults>,
    /// Notes for the reader, for example that the host was the limit or that something was not
    /// available.
    pub notes: Vec<String>,
}

/// Seeds of all random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CampaignSeeds {
    /// Seed of the downloads' contents; the uploads' seed is this plus one.
    pub files: u64,
    /// Seed of the edits in the edited pass, drawn from the clock.
    pub edits: u64,
    /// The emulator's.
    pub link: u64,
}

/// The results of one test of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestResults {
    /// Its link.
    pub link: LabLink,
    /// Nodes of its passes with nodes; `None` if no pass has nodes, or in a demo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<TestNodes>,
    /// Counters of the emulator, as it printed them.
    pub emulator: serde_json::Value,
    /// A line for each run of a workload.
    pub runs: Vec<WorkloadRun>,
    /// A line for each file of each run.
    pub samples: Vec<FileSample>,
}

/// Nodes of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestNodes {
    /// Letter of their mode: `T` or `A`.
    pub mode: String,
    /// Their forward error correction: `off` or `auto`.
    pub fec: String,
}

/// One run of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadRun {
    /// The pass.
    pub pass: PassKind,
    /// The workload.
    pub workload: String,
    /// The repeat, from 1.
    pub repeat: u32,
    /// The markers' label in the captures.
    pub label: String,
    /// Busy share of all processors' time during the run, on the whole machine.
    pub cpu_busy: f64,
    /// Text of the failure, if there was one.
    pub failure: Option<String>,
}

/// One file of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileSample {
    /// The pass.
    pub pass: PassKind,
    /// The workload.
    pub workload: String,
    /// The repeat, from 1.
    pub repeat: u32,
    /// The file and its figures.
    #[serde(flatten)]
    pub measured: MeasuredFile,
}

impl CampaignResults {
    /// Reads a result file back.
    ///
    /// # Errors
    /// When it cannot be read or is of another version.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the results {}", path.display()))?;
        let results: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a result file", path.display()))?;
        anyhow::ensure!(
            results.format_version == FORMAT_VERSION,
            "{} is of format {}, this program reads {FORMAT_VERSION}",
            path.display(),
            results.format_version
        );
        Ok(results)
    }

    /// Writes the result file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Text for each transfer that was not whole, one line each; empty when all files are
    /// identical.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for test in &self.tests {
            for run in &test.runs {
                if let Some(failure) = &run.failure {
                    faults.push(format!("{}: {failure}", run.label));
                }
            }
            for sample in &test.samples {
                let place = format!(
                    "{} {} {}",
                    sample.pass.name(),
                    sample.workload,
                    sample.measured.file
                );
                match &sample.measured.found_hash {
                    None => faults.push(format!("{place}: did not arrive")),
                    Some(hash) if *hash != sample.measured.expected_hash => {
                        faults.push(format!("{place}: arrived with other content"));
                    }
                    Some(_) => {}
                }
            }
        }
        faults
    }
}

impl TestNodes {
    /// Description for people: `mode A, FEC auto`.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("mode {}, FEC {}", self.mode, self.fec)
    }
}

impl TestResults {
    /// Sentence for each case in which the host, and not the link, was the limit.
    #[must_use]
    pub fn host_limits(&self) -> Vec<String> {
        let mut limits = Vec::new();
        let busy = || self.runs.iter().filter(|run| run.cpu_busy > BUSY_LIMIT);
        if let Some(most) = busy().map(|run| run.cpu_busy).max_by(f64::total_cmp) {
            let passes: Vec<String> = PassKind::ALL
                .into_iter()
                .filter_map(|pass| {
                    let names: BTreeSet<&str> = busy()
                        .filter(|run| run.pass == pass)
                        .map(|run| run.workload.as_str())
                        .collect();
                    let names: Vec<&str> = names.into_iter().collect();
                    (!names.is_empty()).then(|| format!("{} ({})", pass.name(), names.join(", ")))
                })
                .collect();
            limits.push(format!(
                "The host was the limit, or shared with others: its processors were up to {:.0} % \
                 busy during {}.",
                most * 100.0,
                passes.join("; ")
            ));
        }
        for way in ["forward", "back"] {
            let count = |name: &str| self.emulator[way][name].as_u64().unwrap_or_default();
            let lost = count("unread_packets")
                + count("dropped_by_limit_packets")
                + count("untaken_packets")
                + count("failed_writes_packets");
            if lost > 0 {
                limits.push(format!(
                    "The host was the limit: it lost {lost} packets outside the link's model \
                     ({way})."
                ));
            }
            // One packet in a hundred more than a millisecond late bends a figure by more than
            // the emulator promises.
            let late = count("late_packets");
            if late * 100 > count("delivered_packets") && late > 0 {
                limits.push(format!(
                    "The host was the limit: {late} of {} packets left the emulated link more \
                     than 1 ms late ({way}).",
                    count("delivered_packets")
                ));
            }
        }
        limits
    }
}
