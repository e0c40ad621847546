//! The public suites, by the scripts that run them through two nodes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::HttpChoice;
use super::report::CellFigures;
use host::{ProgramEnvironment, command, kernel};

/// Runs cache-tests; needs a checkout of the suite.
///
/// # Errors
/// When the suite or the script is missing, or the script fails.
pub(super) fn cache_tests(
    environment: &ProgramEnvironment,
    choice: &HttpChoice,
) -> Result<CellFigures> {
    let suite = choice.cache_tests.as_deref();
    let suite = suite.context("no checkout of cache-tests was named (--cache-tests DIR)")?;
    let output = run(environment, &script(choice, "cache-tests.sh")?, &[suite])?;
    let counts = output.lines().last().context("the script says nothing")?;
    let counts: Value = serde_json::from_str(counts).context("the script's counts")?;
    let failed: Vec<&str> = output.lines().filter(|line| is_failure(line)).collect();
    let mut figures = CellFigures::default();
    figures.add("cache_tests_required", passed(&counts, "required"));
    figures.add("cache_tests_optimal", passed(&counts, "optimal"));
    let stale = failed.iter().filter(|line| is_of_staleness(line)).count();
    figures.add("cache_tests_staleness_failures", stale);
    figures.raw = json!({ "counts": counts, "did_not_pass": failed });
    Ok(figures)
}

/// Runs h2spec against the intercepted side.
///
/// # Errors
/// When the script is missing or fails.
pub(super) fn h2spec(environment: &ProgramEnvironment, choice: &HttpChoice) -> Result<CellFigures> {
    let script = script(choice, "h2spec.sh")?;
    let mut run = command::new(&script);
    run.arg(&environment.program);
    kernel::prepare_child(&mut run, None)?;
    // Fewer passes than it wants make it fail, and are a figure all the same.
    let output = run.output().context("starting h2spec.sh")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let summary = text.lines().rev().find(|line| tests_passed(line).is_some());
    let summary = summary.with_context(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("h2spec.sh says no count of passed tests: {}", errors.trim())
    })?;
    let mut figures = CellFigures::default();
    figures.add("h2spec_passed", tests_passed(summary));
    figures.raw = json!({ "summary": summary });
    Ok(figures)
}

fn script(choice: &HttpChoice, name: &str) -> Result<PathBuf> {
    let path = choice.scripts.join(name);
    ensure!(
        path.is_file(),
        "{} is not there (run it from a checkout, or name --scripts DIR)",
        path.display()
    );
    Ok(path)
}

fn run(environment: &ProgramEnvironment, script: &Path, arguments: &[&Path]) -> Result<String> {
    let mut run = command::new(script);
    run.args(arguments).env("TRUNKLINE", &environment.program);
    kernel::prepare_child(&mut run, None)?;
    command::finish(&script.display().to_string(), &mut run, None)
}

/// Tests of a kind that passed, by the suite's own judgement.
fn passed(counts: &Value, kind: &str) -> Option<u64> {
    counts[kind]["pass"].as_u64()
}

/// A line such as `required fail stale/stale-close: ["Assertion", "..."]`.
fn is_failure(line: &str) -> bool {
    ["required ", "optimal "]
        .iter()
        .any(|kind| line.starts_with(kind))
}

/// A required test of the group `stale` that failed. Those whose prerequisites were not met say nothing of staleness.
fn is_of_staleness(line: &str) -> bool {
    let mut words = line.split(' ');
    let is_required = words.next() == Some("required");
    let verdict = words.next().unwrap_or_default();
    let group = words.next().and_then(|test| test.split('/').next());
    is_required && verdict == "fail" && group == Some("stale")
}

/// The count in h2spec's summary, `145 tests, 117 passed, 1 skipped, 27 failed`, or in the script's.
fn tests_passed(line: &str) -> Option<u64> {
    let (before, _) = line.split_once(" passed")?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_what_the_suites_print() {
        assert_eq!(
            tests_passed("145 tests, 117 passed, 1 skipped, 27 failed"),
            Some(117)
        );
        let of_script = "h2spec: 120 passed; nginx 1.22 passes 117 of 145";
        assert_eq!(tests_passed(of_script), Some(120));
        assert_eq!(tests_passed("Finished in 52 seconds"), None);
        let counts = json!({ "required": { "pass": 150, "fail": 6 }, "optimal": { "pass": 92 } });
        assert_eq!(
            (passed(&counts, "required"), passed(&counts, "optimal")),
            (Some(150), Some(92))
        );
    }

    #[test]
    fn failures_of_staleness_are_told_from_others() {
        let stale = "required fail stale/stale-close-must-revalidate: [\"Assertion\"]";
        assert!(is_failure(stale) && is_of_staleness(stale));
        for other in [
            "optimal optional_fail stale/stale-while-revalidate: false",
            "required setup_fail stale/stale-close: [\"Setup\"]",
            "required fail vary/vary-2-match: [\"Assertion\"]",
        ] {
            assert!(!is_of_staleness(other), "{other}");
        }
    }
}
