//! How often diagnoses are right: counts, Wilson intervals, a confusion matrix.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use measure::diagnosis::{Cause, Finding};

/// Cases and those that are right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) right: u64,
    pub(crate) all: u64,
}

impl Share {
    pub(crate) fn count(&mut self, is_right: bool) {
        self.all += 1;
        self.right += u64::from(is_right);
    }

    /// Wilson's score interval at 95 % (E. B. Wilson, 1927).
    pub(crate) fn interval(self) -> (f64, f64) {
        const Z: f64 = 1.959_964;
        let (n, share) = (self.all as f64, self.right as f64 / self.all as f64);
        let middle = share + Z * Z / (2.0 * n);
        let spread = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + Z * Z / n;
        ((middle - spread) / scale, (middle + spread) / scale)
    }
}

impl std::fmt::Display for Share {
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
pub(crate) struct Score {
    /// Exactly the causes that are there.
    pub(crate) exact: Share,
    /// Of paths with a bucket: the right one of policer and shaper named, and not the other.
    pub(crate) bucket: Share,
    /// Of buckets named rightly: the rate within 3 %; the burst within the larger of 15 % and 2 MTU.
    pub(crate) rate: Share,
    pub(crate) burst: Share,
    /// By what is there: how often each was found; and, with nobody's label, what was missed.
    matrix: BTreeMap<Cause, BTreeMap<Cause, u64>>,
    missed: BTreeMap<Cause, u64>,
    /// How many cases each cause is in.
    there: BTreeMap<Cause, u64>,
}

/// What is known of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truth {
    pub(crate) rate: f64,
    pub(crate) burst: Option<f64>,
}

impl Score {
    /// Counts a case; returns whether all of it is right.
    pub(crate) fn count(
        &mut self,
        causes: &BTreeSet<Cause>,
        truth: Truth,
        findings: &[Finding],
    ) -> bool {
        let found: BTreeSet<Cause> = findings.iter().map(|finding| finding.cause).collect();
        let mut is_right = found == *causes;
        self.exact.count(is_right);
        for (this, other) in [
            (Cause::Policer, Cause::Shaper),
            (Cause::Shaper, Cause::Policer),
        ] {
            if !causes.contains(&this) {
                continue;
            }
            let right = found.contains(&this) && !found.contains(&other);
            self.bucket.count(right);
            let Some(finding) = findings.iter().find(|finding| finding.cause == this) else {
                continue;
            };
            if let Some(rate) = finding.parameters.rate {
                let error = rate.bits_per_second() as f64 / truth.rate - 1.0;
                self.rate.count(error.abs() <= 0.03);
                is_right &= error.abs() <= 0.03;
            }
            // With others on the path a bucket is not full at the beginning.
            let is_shared = causes.contains(&Cause::CrossTraffic);
            if let (Some(burst), Some(true_burst), false) =
                (finding.parameters.burst, truth.burst, is_shared)
            {
                let error = (burst.bytes() as f64 - true_burst).abs();
                let right = error <= f64::max(0.15 * true_burst, 3_000.0);
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

    /// The figures and the matrix, for people.
    pub(crate) fn report(&self, title: &str) -> String {
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
    let (low, high) = Share {
        right: 81,
        all: 263,
    }
    .interval();
    assert!((low - 0.2553).abs() < 5e-5 && (high - 0.3662).abs() < 5e-5);
}
