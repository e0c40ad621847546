//! Table of the results for a terminal of 80 columns.

use std::fmt::Write;

use super::rows::{ResultRow, TransferFigures, rows, sums};
use crate::campaign::{CampaignResults, PassKind, TestResults};
use host::terminal::{WIDTH, write_wrapped};

/// The whole result as text of at most 80 columns.
#[must_use]
pub fn table(results: &CampaignResults) -> String {
    let mut out = tests(results);
    for note in &results.notes {
        write_wrapped(&mut out, note);
    }
    let faults = results.faults();
    if faults.is_empty() {
        out += "Every file arrived identical.\n";
    } else {
        for fault in faults {
            write_wrapped(&mut out, &format!("NOT IDENTICAL: {fault}"));
        }
    }
    out
}

/// Rows and sums of all tests.
pub(super) fn tests(results: &CampaignResults) -> String {
    let mut out = String::new();
    for test in &results.tests {
        write_test(&mut out, test);
    }
    out
}

fn write_test(out: &mut String, test: &TestResults) {
    let rows = rows(test);
    let _ = writeln!(out, "Link: {}", test.link);
    if let Some(nodes) = &test.nodes {
        let _ = writeln!(out, "Nodes: {}", nodes.describe());
    }
    let _ = writeln!(out);
    let _ = writeln!(
        out,
        "{:14} {:>6} {:^32} {:>24}",
        "", "", "seconds, request to last ACK", "WAN bytes, % of baseline"
    );
    let _ = writeln!(
        out,
        "{:14} {:>6} {:>8} {:>7} {:>7} {:>7} {:>7} {:>5} {:>5} {:>5}",
        "", "kB", "baseline", "cold", "warm", "edited", "base kB", "cold", "warm", "edit"
    );
    for sum in sums(&rows) {
        let _ = writeln!(out, "{}", "-".repeat(WIDTH));
        write_row(out, &sum.workload, &sum);
        for row in rows.iter().filter(|row| row.workload == sum.workload) {
            write_row(out, &format!("  {}", row.file), row);
        }
        if !sum.workload.starts_with("http") {
            write_session(out, &sum);
        }
    }
    let _ = writeln!(out, "{}", "-".repeat(WIDTH));
}

fn write_row(out: &mut String, name: &str, row: &ResultRow) {
    let seconds = |pass| format_seconds(row.figures.get(&pass).map(|figures| figures.elapsed_s));
    let percent = |pass| match row.share(pass, |figures: &TransferFigures| figures.wan_bytes) {
        Some(share) => format!("{:.1}", share * 100.0),
        None => "-".to_owned(),
    };
    let baseline_bytes = row.figures.get(&PassKind::Baseline).map_or_else(
        || "-".to_owned(),
        |figures| format!("{:.0}", figures.wan_bytes / 1000.0),
    );
    let _ = writeln!(
        out,
        "{name:14} {:>6} {:>8} {:>7} {:>7} {:>7} {baseline_bytes:>7} {:>5} {:>5} {:>5}",
        row.bytes / 1000,
        seconds(PassKind::Baseline),
        seconds(PassKind::Cold),
        seconds(PassKind::Warm),
        seconds(PassKind::Edited),
        percent(PassKind::Cold),
        percent(PassKind::Warm),
        percent(PassKind::Edited),
    );
}

/// The data's times leave control exchanges, and the server's own answer to an upload, out; the
/// session's wall time has them.
fn write_session(out: &mut String, sum: &ResultRow) {
    let seconds = |pass| format_seconds(sum.figures.get(&pass).map(|figures| figures.window_s));
    let _ = writeln!(
        out,
        "{:21} {:>8} {:>7} {:>7} {:>7}",
        "  session, wall time",
        seconds(PassKind::Baseline),
        seconds(PassKind::Cold),
        seconds(PassKind::Warm),
        seconds(PassKind::Edited),
    );
}

fn format_seconds(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds >= 1000.0 => format!("{seconds:.0}"),
        Some(seconds) if seconds >= 100.0 => format!("{seconds:.1}"),
        Some(seconds) => format!("{seconds:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::tests::sample_results;
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let mut results = sample_results();
        results.notes.push("word ".repeat(40));
        results.tests[0].samples[0].measured.elapsed_s = 4321.0;
        let text = table(&results);
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(text.contains("http-download"));
        assert!(text.contains("Every file arrived identical."));
    }

    #[test]
    fn a_damaged_file_is_shouted() {
        let mut results = sample_results();
        results.tests[0].samples[0].measured.found_hash = Some("b".to_owned());
        assert!(table(&results).contains("NOT IDENTICAL: baseline http-download 2M.doc"));
    }
}
