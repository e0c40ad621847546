//! `trunkline bench smb --clients office`: the requests of office programs and file managers.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::smb::office::{
    self, ONE_WAY_DELAY_MS, OfficeCell, OfficeCellResult, OfficeReport, OfficeSelection, RATE,
};
use bench::smb::{AccelerationMode, ClientPython};
use host::machine::MachineInfo;
use serde_json::{Value, json};

use super::{BenchSmb, python};
use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Measures and prints.
pub(super) fn run(arguments: &BenchSmb) -> Result<()> {
    let selection = OfficeSelection {
        cells: cells(&arguments.cells),
        captures: arguments.captures.clone(),
    };
    ensure!(
        !selection.cells.is_empty(),
        "no cell has this name; a cell has a name such as {}",
        OfficeCell::every()[0].name()
    );
    let clients = ClientPython::find(&python()?)?;
    let display = progress();
    let began = Instant::now();
    let report = office::measure(&environment()?, &clients, &selection, &display)?;
    display.finish();
    let took = began.elapsed().as_secs_f64();
    let mut out = StandardOutput::new();
    if arguments.json {
        let mut document = document(&report);
        document["took_s"] = json!(took);
        document["machine"] = json!(MachineInfo::describe(&["smbd"]));
        document["certificate"] = json!(crate::emulate::calibrate::citation());
        writeln!(out, "{document}")?;
    } else {
        writeln!(out, "{}\n{took:.0} s.", table(&report))?;
    }
    Ok(())
}

fn cells(words: &[String]) -> Vec<OfficeCell> {
    let is_chosen =
        |cell: &OfficeCell| words.is_empty() || words.iter().any(|word| cell.is_chosen_by(word));
    OfficeCell::every().into_iter().filter(is_chosen).collect()
}

fn document(report: &OfficeReport) -> Value {
    json!({
        "bench": "smb",
        "figures": { "cells": report.cells },
        "not_measured": report.not_measured,
        "is_interrupted": report.is_interrupted,
    })
}

fn table(report: &OfficeReport) -> String {
    let mut text = format!(
        "SMB 3.1.1, {:.0} Mbit/s, RTT {} ms; round trips of an action (time by RTT)\n\
         {:<18}{:<11}{:>9}{:>9}{:>9}{:>12}\n",
        RATE.bits_per_second() as f64 / 1e6,
        2 * ONE_WAY_DELAY_MS,
        "action",
        "signing",
        "requests",
        "direct",
        "through",
        "of direct",
    );
    let mut seen: Vec<OfficeCell> = Vec::new();
    for result in &report.cells {
        let row = OfficeCell {
            mode: AccelerationMode::Baseline,
            ..result.cell
        };
        if seen.contains(&row) {
            continue;
        }
        seen.push(row);
        let trips = |mode| {
            let cell = OfficeCell { mode, ..row };
            let found = report.cells.iter().find(|other| other.cell == cell);
            found.map(|result: &OfficeCellResult| result.round_trips_per_action)
        };
        let (direct, through) = (
            trips(AccelerationMode::Baseline),
            trips(AccelerationMode::Application),
        );
        let figure = |figure: Option<f64>| {
            figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"))
        };
        let _ = writeln!(
            text,
            "{:<18}{:<11}{:>9}{:>9}{:>9}{:>12}",
            row.pattern.name(),
            row.protection.signing(),
            result.requests_per_action,
            figure(direct),
            figure(through),
            figure(
                through
                    .zip(direct)
                    .map(|(through, direct)| through / direct)
            ),
        );
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_from_all_office_cells() {
        let chosen = |word: &str| cells(&[word.to_owned()]).len();
        assert_eq!(chosen("word-save"), 6);
        assert_eq!(chosen("browse+encrypted/application"), 2);
        assert_eq!(chosen("serial-64k"), 0);
        assert_eq!(cells(&[]).len(), OfficeCell::every().len());
        assert_eq!(document(&OfficeReport::default())["bench"], "smb");
    }
}
