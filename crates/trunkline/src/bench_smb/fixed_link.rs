//! The parts that the reports of `--clients kernel` and `--clients office` have in common.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use bench::smb::fixed_link::{FixedLinkCell, FixedLinkReport, FixedLinkResult};
use host::machine::MachineInfo;
use serde_json::{Value, json};

use crate::output::StandardOutput;

/// Returns the cells whose names a word chooses.
pub(super) fn chosen<C: FixedLinkCell>(cells: Vec<C>, words: &[String]) -> Vec<C> {
    let is_chosen = |cell: &C| words.iter().any(|word| cell.is_chosen_by(word));
    cells.into_iter().filter(is_chosen).collect()
}

/// Prints a report, as a JSON object or as a table.
pub(super) fn print(
    is_json: bool,
    mut document: Value,
    table: &str,
    took: Duration,
    programs: &[&str],
) -> Result<()> {
    let took = took.as_secs_f64();
    let mut out = StandardOutput::new();
    if is_json {
        document["took_s"] = json!(took);
        document["machine"] = json!(MachineInfo::describe(programs));
        document["certificate"] = json!(crate::emulate::calibrate::citation());
        writeln!(out, "{document}")?;
    } else {
        writeln!(out, "{table}\n{took:.0} s.")?;
    }
    Ok(())
}

/// Returns the first result of each row of a table: all modes of a cell are one row.
pub(super) fn rows<C: FixedLinkCell, F>(
    report: &FixedLinkReport<C, F>,
    row_of: impl Fn(&C) -> C,
) -> Vec<(C, &FixedLinkResult<C, F>)> {
    let mut rows: Vec<(C, &FixedLinkResult<C, F>)> = Vec::new();
    for result in &report.cells {
        let row = row_of(&result.cell);
        if rows.iter().all(|(other, _)| *other != row) {
            rows.push((row, result));
        }
    }
    rows
}

/// Lines below a table, about cells with faults and without figures.
pub(super) fn faults<C: FixedLinkCell, F>(report: &FixedLinkReport<C, F>) -> String {
    let mut text = String::new();
    for result in report.cells.iter().filter(|result| !result.identical) {
        let _ = writeln!(
            text,
            "\nfault: {}: the client and the server have different files",
            result.cell.name()
        );
    }
    for failure in &report.not_measured {
        let _ = writeln!(text, "\nnot measured: {}: {}", failure.cell, failure.reason);
    }
    if report.is_interrupted {
        text += "\nThe benchmark was interrupted; these are the results so far.\n";
    }
    text
}
