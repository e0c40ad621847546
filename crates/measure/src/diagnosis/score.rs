//! Accuracy of diagnoses on labelled cases: counts, Wilson intervals, a confusion matrix.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::finding::{DiagnosisCause, DiagnosisFinding};

/// Greatest relative error of a rate.
const RATE_WITHIN: f64 = 0.03;
/// Greatest error of a burst, relative or in bytes (two MTU), whichever is more.
const BURST_WITHIN: f64 = 0.15;
const BURST_WITHIN_BYTES: f64 = 3_000.0;

/// Cases and those that are right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoreShare {
    /// Number of right ones.
    pub right: u64,
    /// All.
    pub all: u64,
}

impl ScoreShare {
    /// Counts a case.
    pub fn count(&mut self, is_right: bool) {
        self.all += 1;
        self.right += u64::from(is_right);
    }

    /// The share's interval at 95 % by Wilson's score (E. B. Wilson, 1927), from 0 to 1; not a number
    /// for no case.
    #[must_use]
    pub fn interval(self) -> (f64, f64) {
        const Z: f64 = 1.959_964;
        let (n, share) = (self.all as f64, self.right as f64 / self.all as f64);
        let middle = share + Z * Z / (2.0 * n);
        let spread = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + Z * Z / n;
        ((middle - spread) / scale, (middle + spread) / scale)
    }
}

impl std::fmt::Display for ScoreShare {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.all == 0 {
            return write!(out, "none");
        }
        let (low, high) = self.interval();
        let share = 100.0 * self.right as f64 / self.all as f64;
        write!(
            out,
            "{}/{} = {share:.1} % (95 %: {:.1} to {:.1})",
            self.right,
            self.all,
            100.0 * low,
            100.0 * high
        )
    }
}

/// The account of a set of cases.
#[derive(Clone, Debug, Default)]
pub struct DiagnosisScore {
    /// Exactly the causes that are there.
    pub exact: ScoreShare,
    /// Share of paths with a bucket for which the right one of policer and shaper was named, and
    /// not the other.
    pub bucket: ScoreShare,
    /// Share of rightly named buckets with a rate within 3 %.
    pub rate: ScoreShare,
    /// Share of those with a burst within the larger of 15 % and two MTU, where its size is known
    /// and nobody shares it.
    pub burst: ScoreShare,
    /// Findings by true cause: how often each was found; and, under `None`, those that were missed.
    matrix: BTreeMap<DiagnosisCause, BTreeMap<DiagnosisCause, u64>>,
    missed: BTreeMap<DiagnosisCause, u64>,
    /// Number of cases with each cause.
    there: BTreeMap<DiagnosisCause, u64>,
}

/// True parameters of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct BucketTruth {
    /// Bits of IP packets per second.
    pub rate: f64,
    /// Bytes of IP packets; [`None`] where the burst is not judged.
    pub burst: Option<f64>,
}

/// Part of a finding that is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgedFinding {
    /// The cause that was named.
    pub cause: DiagnosisCause,
    /// Its rate, in bits of IP packets per second.
    pub rate: Option<f64>,
    /// Its burst, in bytes of IP packets.
    pub burst: Option<f64>,
}

impl From<&DiagnosisFinding> for JudgedFinding {
    fn from(finding: &DiagnosisFinding) -> Self {
        let parameters = finding.parameters;
        Self {
            cause: finding.cause,
            rate: parameters.rate.map(|rate| rate.bits_per_second() as f64),
            burst: parameters.burst.map(|burst| burst.bytes() as f64),
        }
    }
}

impl JudgedFinding {
    /// Compares its rate and burst with the truth; `true` is within the error bars.
    #[must_use]
    pub fn errors(&self, truth: BucketTruth) -> (Option<bool>, Option<bool>) {
        let rate = self
            .rate
            .map(|rate| (rate / truth.rate - 1.0).abs() <= RATE_WITHIN);
        let burst = self.burst.zip(truth.burst).map(|(found, burst)| {
            (found - burst).abs() <= f64::max(BURST_WITHIN * burst, BURST_WITHIN_BYTES)
        });
        (rate, burst)
    }
}

impl DiagnosisScore {
    /// Counts a case; returns whether all of it is right.
    pub fn count(
        &mut self,
        causes: &BTreeSet<DiagnosisCause>,
        truth: BucketTruth,
        answers: &[JudgedFinding],
    ) -> bool {
        let found: BTreeSet<DiagnosisCause> = answers.iter().map(|answer| answer.cause).collect();
        let mut is_right = found == *causes;
        self.exact.count(is_right);
        for (this, other) in [
            (DiagnosisCause::Policer, DiagnosisCause::Shaper),
            (DiagnosisCause::Shaper, DiagnosisCause::Policer),
        ] {
            if !causes.contains(&this) {
                continue;
            }
            let right = found.contains(&this) && !found.contains(&other);
            self.bucket.count(right);
            let Some(answer) = answers.iter().find(|answer| answer.cause == this) else {
                continue;
            };
            let (rate, burst) = answer.errors(truth);
            // With others on the path a bucket is not full at the beginning.
            let burst = burst.filter(|_| !causes.contains(&DiagnosisCause::CrossTraffic));
            if let Some(right) = rate {
                self.rate.count(right);
                is_right &= right;
            }
            if let Some(right) = burst {
                self.burst.count(right);
                is_right &= right;
            }
        }
        for cause in causes {
            *self.there.entry(*cause).or_default() += 1;
            if !found.contains(cause) {
                *self.missed.entry(*cause).or_default() += 1;
            }
            let row = self.matrix.entry(*cause).or_default();
            for seen in &found {
                // What another label of the same case explains is no confusion of this one.
                if seen == cause || !causes.contains(seen) {
                    *row.entry(*seen).or_default() += 1;
                }
            }
        }
        is_right
    }

    /// Findings by true cause, by name: how often each cause was found for it, itself first.
    #[must_use]
    pub fn matrix(&self) -> BTreeMap<&'static str, BTreeMap<&'static str, u64>> {
        let row = |row: &BTreeMap<DiagnosisCause, u64>| {
            let named = row.iter().map(|(seen, count)| (seen.name(), *count));
            named.collect()
        };
        let named = self.matrix.iter();
        named
            .map(|(cause, seen)| (cause.name(), row(seen)))
            .collect()
    }

    /// The figures and the matrix, for people.
    #[must_use]
    pub fn report(&self, title: &str) -> String {
        let mut text = format!(
            "{title}\n  all causes right      {}\n  policer or shaper     {}\n  rate within 3 %       {}\n  \
             burst within its bar  {}\n\n",
            self.exact, self.bucket, self.rate, self.burst
        );
        let _ = writeln!(
            text,
            "{:18}{:>6}{:>8}  found instead or beside it",
            "there", "cases", "found"
        );
        for (cause, row) in &self.matrix {
            let cases = self.there.get(cause).copied().unwrap_or_default();
            let right = row.get(cause).copied().unwrap_or_default();
            let others: Vec<String> = row
                .iter()
                .filter(|(seen, _)| *seen != cause)
                .map(|(seen, count)| format!("{} {count}", seen.name()))
                .collect();
            let _ = writeln!(
                text,
                "{:18}{cases:>6}{right:>8}  {}",
                cause.name(),
                others.join(", ")
            );
        }
        text
    }
}

#[test]
fn wilsons_interval_is_the_published_one() {
    // 81 of 263: E. B. Wilson's formula gives 0.2553 to 0.3662 (Newcombe 1998, Table I).
    let (low, high) = ScoreShare {
        right: 81,
        all: 263,
    }
    .interval();
    assert!((low - 0.2553).abs() < 5e-5 && (high - 0.3662).abs() < 5e-5);
}
