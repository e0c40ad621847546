//! Age of the information that a client received about files, while a second client changed them.
//!
//! ```text
//!  reader   opens file 10, 20, ... ── asked ─ opened ─ READ answered ──► what it was told, and when
//!  changer  before the reader is there: a new time, or new contents  ──► what it changed, and when
//! ```
//! Both write their moments down by the machine's one monotonic clock. What was told of a file is out of
//! date once the change that replaced it has been answered; it was so old as the time from that answer
//! to the question. A change that was under way while the question was asked says nothing.
//!
//! Both write their times by the machine's one monotonic clock. Information about a file is out of
//! date once the change that replaced it has been answered; its age is the time from that answer to
//! the question. A change in progress during the question does not count.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Result of a freshness test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FreshnessResult {
    /// Changes that the second client made while the first read.
    pub changes: usize,
    /// Changes of contents among them.
    pub changed_contents: usize,
    /// Files among those read that it changed at some time.
    pub files: usize,
    /// Times among them that were out of date when they were requested.
    pub outdated_times: usize,
    /// Age of the oldest of them.
    pub oldest_time_ms: f64,
    /// Number of contents that were out of date; must be zero.
    pub outdated_contents: usize,
    /// Bound of the nodes' policy for times.
    pub bound_ms: f64,
}

/// Part of a file that is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChangeKind {
    Time,
    Contents,
}

/// A line of the second client's log: the new version, and the seconds at which it was requested
/// and answered.
#[derive(Clone, Debug, Deserialize)]
struct FileChange {
    file: String,
    kind: ChangeKind,
    version: u64,
    began: f64,
    ended: f64,
}

/// A line of the first client's.
#[derive(Clone, Debug, Deserialize)]
struct ReportedVersion {
    file: String,
    kind: ChangeKind,
    /// The oldest version that was reported.
    version: u64,
    asked: f64,
    answered: f64,
}

impl FreshnessResult {
    /// Reads the logs of both clients.
    ///
    /// # Errors
    /// Fails when they have another form, or a version was reported that was never made.
    pub(super) fn of(changer: &Path, reader: &Path, bound_ms: f64) -> Result<Self> {
        Self::judge(&lines(changer)?, &lines(reader)?, bound_ms)
    }

    fn judge(changes: &[FileChange], told: &[ReportedVersion], bound_ms: f64) -> Result<Self> {
        let mut versions: HashMap<(&str, ChangeKind, u64), &FileChange> = HashMap::new();
        for change in changes {
            versions.insert((&change.file, change.kind, change.version), change);
        }
        let mut found = Self {
            files: told.len(),
            bound_ms,
            ..Self::default()
        };
        let began = told.iter().map(|told| told.asked).fold(f64::MAX, f64::min);
        let ended = told.iter().map(|told| told.answered).fold(0.0, f64::max);
        let meanwhile = |change: &&FileChange| change.ended >= began && change.began <= ended;
        let made: Vec<&FileChange> = changes.iter().filter(meanwhile).collect();
        let of_contents = made.iter().filter(|made| made.kind == ChangeKind::Contents);
        (found.changes, found.changed_contents) = (made.len(), of_contents.count());
        for told in told {
            let of = |version| versions.get(&(&told.file[..], told.kind, version));
            let made = of(told.version)
                .with_context(|| format!("{} was told as nobody left it: {told:?}", told.file))?;
            ensure!(
                made.began <= told.answered,
                "{} was told before it was made: {told:?}",
                told.file
            );
            let Some(next) = of(told.version + 1) else {
                continue;
            };
            let age_ms = (told.asked - next.ended) * 1e3;
            match told.kind {
                _ if age_ms <= 0.0 => {}
                ChangeKind::Time => {
                    found.outdated_times += 1;
                    found.oldest_time_ms = found.oldest_time_ms.max(age_ms);
                }
                ChangeKind::Contents => found.outdated_contents += 1,
            }
        }
        Ok(found)
    }

    /// Faults, as sentences.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.outdated_contents > 0 {
            faults.push(format!(
                "{} files were read as they had been before they were changed",
                self.outdated_contents
            ));
        }
        if self.oldest_time_ms > self.bound_ms {
            faults.push(format!(
                "a file's times were {:.0} ms old, where the policy allows {:.0} ms",
                self.oldest_time_ms, self.bound_ms
            ));
        }
        if self.changes == self.changed_contents {
            faults.push("the second client changed no file's times".to_owned());
        }
        if self.changed_contents == 0 {
            faults.push("the second client changed no file's contents".to_owned());
        }
        faults
    }
}

fn lines<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    text.lines()
        .map(|line| {
            serde_json::from_str(line).with_context(|| format!("{} holds {line}", path.display()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: ChangeKind, version: u64, began: f64, ended: f64) -> FileChange {
        FileChange {
            file: "a".to_owned(),
            kind,
            version,
            began,
            ended,
        }
    }

    fn told(kind: ChangeKind, version: u64, asked: f64, answered: f64) -> ReportedVersion {
        ReportedVersion {
            file: "a".to_owned(),
            kind,
            version,
            asked,
            answered,
        }
    }

    fn judge(changes: &[FileChange], told: &[ReportedVersion]) -> FreshnessResult {
        FreshnessResult::judge(changes, told, 1_000.0).expect("versions that were made")
    }

    #[test]
    fn age_counts_from_the_replacement_before_the_question() {
        let changes = [
            change(ChangeKind::Time, 0, 0.0, 0.1),
            change(ChangeKind::Time, 1, 5.0, 5.25),
        ];
        let found = judge(&changes, &[told(ChangeKind::Time, 0, 6.0, 6.1)]);
        assert_eq!(found.outdated_times, 1);
        assert!((found.oldest_time_ms - 750.0).abs() < 1e-6);
        assert!(
            found
                .faults()
                .contains(&"the second client changed no file's times".to_owned())
        );
        let late = judge(&changes, &[told(ChangeKind::Time, 0, 6.5, 6.6)]);
        assert!(late.faults().iter().any(|fault| fault.contains("1250 ms")));
    }

    #[test]
    fn content_replaced_earlier_is_a_fault() {
        let mut changes = vec![
            change(ChangeKind::Contents, 0, 0.0, 0.1),
            change(ChangeKind::Contents, 1, 5.0, 6.0),
        ];
        let under_way = judge(&changes, &[told(ChangeKind::Contents, 0, 5.5, 5.6)]);
        assert_eq!(
            under_way.faults(),
            ["the second client changed no file's times"]
        );
        changes.push(change(ChangeKind::Time, 1, 5.5, 5.55));
        let under_way = judge(&changes, &[told(ChangeKind::Contents, 0, 5.5, 5.6)]);
        assert_eq!(under_way.faults(), Vec::<String>::new());
        assert_eq!((under_way.changes, under_way.changed_contents), (2, 1));
        let late = judge(&changes, &[told(ChangeKind::Contents, 0, 6.1, 6.2)]);
        assert_eq!(late.outdated_contents, 1);
        // And nothing changed while it was asked for.
        assert_eq!(late.faults().len(), 3);
    }

    /// A run in which only times changed shows nothing of contents.
    #[test]
    fn run_without_content_changes_is_a_fault() {
        let changes = [
            change(ChangeKind::Time, 0, 0.0, 0.1),
            change(ChangeKind::Contents, 1, 1.0, 1.1),
            change(ChangeKind::Time, 1, 5.5, 5.6),
        ];
        let found = judge(&changes, &[told(ChangeKind::Time, 0, 5.0, 6.0)]);
        assert_eq!((found.changes, found.changed_contents), (1, 0));
        assert_eq!(
            found.faults(),
            ["the second client changed no file's contents"]
        );
    }

    #[test]
    fn a_version_that_nobody_made_is_an_error() {
        let changes = [change(ChangeKind::Time, 0, 0.0, 0.1)];
        let judge = |told| FreshnessResult::judge(&changes, &[told], 1_000.0);
        assert!(judge(told(ChangeKind::Time, 1, 1.0, 1.1)).is_err());
        assert!(judge(told(ChangeKind::Contents, 0, 1.0, 1.1)).is_err());
    }
}
