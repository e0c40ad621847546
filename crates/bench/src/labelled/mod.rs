//! Labelled cases on the kernel's own policers and shapers: tests of the turn-up tester on paths
//! with a known bottleneck.
//!
//! ```text
//!  client ── near ══ emulator (delay, loss) ══ far ─(nft limit | tbf)── server
//!    └ trunkline measure run, tcpdump            trunkline measure server ┘
//! ```
//! Every case is drawn from a seed ([`PathCase::draw`]), built in namespaces of its own, measured by the
//! program itself from end to end, and judged against what was set up. A capture of its TCP runs at the
//! client is judged too, one-ended. The path's delay and random losses are the emulator's, since many
//! kernels have no netem; the bottleneck never is.
//!
//! It does not decide how many cases run, in which order, or where results are kept.

mod case;
mod path;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use measure::diagnosis::{BucketTruth, DiagnosisCause, JudgedFinding};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use host::ProgramEnvironment;

pub use case::{BottleneckDevice, PathCase};

/// Least number of retransmissions with which a capture shows the cause of losses, as in Flach et
/// al., SIGCOMM 2016, §3.
pub const CAPTURE_LOSSES_MIN: u64 = 15;

/// A case that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseOutcome {
    /// The path that was built.
    pub case: PathCase,
    /// The causes that are in it, by their names.
    pub there: Vec<String>,
    /// Causes that the two ends found.
    pub found: Vec<NamedCause>,
    /// Causes that the capture at the client shows; empty where it holds no transfer.
    pub captured: Vec<NamedCause>,
    /// Bytes that TCP sent again.
    pub retransmitted_bytes: u64,
    /// Other remarks of the tester.
    pub remarks: Vec<String>,
    /// Duration.
    pub took_s: f64,
}

/// A cause that was named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedCause {
    /// Its name.
    pub cause: String,
    /// Bits of IP packets per second.
    pub rate_bit_s: Option<f64>,
    /// Bytes of IP packets.
    pub burst_bytes: Option<f64>,
    /// Why.
    pub evidence: Vec<String>,
}

impl NamedCause {
    /// Reads the list of causes out of a document of the program.
    fn of(list: &Value) -> Vec<Self> {
        let number = |finding: &Value, name: &str| finding["parameters"][name].as_f64();
        let texts = |value: &Value| {
            let all = value.as_array().into_iter().flatten();
            all.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let findings = list.as_array().into_iter().flatten();
        findings
            .map(|finding| Self {
                cause: finding["cause"].as_str().unwrap_or_default().to_owned(),
                rate_bit_s: number(finding, "rate_bit_s"),
                burst_bytes: number(finding, "burst_bytes"),
                evidence: texts(&finding["evidence"]),
            })
            .collect()
    }

    /// The same of the largest transfer in a capture.
    fn in_capture(document: &Value) -> Vec<Self> {
        Self::of(&document["transfers"][0]["diagnosis"])
    }

    fn answer(&self) -> Option<JudgedFinding> {
        Some(JudgedFinding {
            cause: DiagnosisCause::named(&self.cause)?,
            rate: self.rate_bit_s,
            burst: self.burst_bytes,
        })
    }
}

impl CaseOutcome {
    /// The causes that are there.
    #[must_use]
    pub fn causes(&self) -> BTreeSet<DiagnosisCause> {
        let named = self.there.iter();
        named
            .filter_map(|name| DiagnosisCause::named(name))
            .collect()
    }

    /// True parameters of the bucket.
    #[must_use]
    pub fn truth(&self) -> BucketTruth {
        self.case.truth()
    }

    /// Findings of the two ends.
    #[must_use]
    pub fn answers(&self) -> Vec<JudgedFinding> {
        self.found.iter().filter_map(NamedCause::answer).collect()
    }

    /// Findings from the capture, and the causes that a capture can show; [`None`] where it met the
    /// bottleneck too rarely.
    #[must_use]
    pub fn capture(&self) -> Option<(BTreeSet<DiagnosisCause>, BucketTruth, Vec<JudgedFinding>)> {
        let mtu = self.case.mtu.map_or(1_500, u64::from);
        let has_losses = self.retransmitted_bytes >= CAPTURE_LOSSES_MIN * mtu;
        let mut causes = self.causes();
        causes.remove(&DiagnosisCause::MtuBlackHole);
        let truth = BucketTruth {
            burst: None,
            ..self.truth()
        };
        let answers = self
            .captured
            .iter()
            .filter_map(NamedCause::answer)
            .collect();
        has_losses.then_some((causes, truth, answers))
    }
}

/// The file of a case's capture in a directory of kept ones.
#[must_use]
pub fn kept_capture(directory: &Path, case: &PathCase) -> PathBuf {
    directory.join(format!("case-{}-{}.pcap", case.seed, case.index))
}

/// Builds a case, measures and judges it, and removes it; its capture is kept in the directory `keep`.
///
/// # Errors
/// When it cannot be built, the tester could not measure, or the capture cannot be kept.
pub fn measure(
    environment: &ProgramEnvironment,
    case: &PathCase,
    keep: Option<&Path>,
) -> Result<CaseOutcome> {
    let began = Instant::now();
    let path = path::CasePath::build(environment, case)
        .with_context(|| format!("building case {}", case.index))?;
    let measured = path
        .measure(
            case,
            keep.map(|directory| kept_capture(directory, case))
                .as_deref(),
        )
        .with_context(|| format!("measuring case {}", case.index))?;
    let runs = measured.test["directions"]["up"]["runs"].as_array();
    let resent = runs.into_iter().flatten();
    Ok(CaseOutcome {
        case: case.clone(),
        there: case
            .causes()
            .into_iter()
            .map(|cause| cause.name().to_owned())
            .collect(),
        found: NamedCause::of(&measured.test["diagnosis"]),
        captured: NamedCause::in_capture(&measured.capture),
        retransmitted_bytes: resent
            .filter_map(|run| run["retransmitted_bytes"].as_u64())
            .sum(),
        remarks: {
            let remarks = measured.test["remarks"].as_array();
            let texts = remarks.into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        },
        took_s: began.elapsed().as_secs_f64(),
    })
}

/// Judges a kept capture of a case again, with the program as it is now; nothing is measured.
///
/// # Errors
/// When there is no such capture, or it cannot be judged.
pub fn judge_again(
    environment: &ProgramEnvironment,
    outcome: &mut CaseOutcome,
    kept: &Path,
) -> Result<()> {
    let file = kept_capture(kept, &outcome.case);
    let document = path::diagnose(&environment.program, &file)
        .with_context(|| format!("judging case {} again", outcome.case.index))?;
    outcome.captured = NamedCause::in_capture(&document);
    Ok(())
}
