//! `trunkline bench smb --clients kernel`: the Linux kernel's SMB client in a virtual machine.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::smb::AccelerationMode;
use bench::smb::kernel::{
    self, KernelCell, KernelCellResult, KernelReport, KernelSelection, ONE_WAY_DELAY_MS, RATE,
};
use host::machine::MachineInfo;
use serde_json::{Value, json};

use super::BenchSmb;
use crate::environment::environment;
use crate::installed_python::cache_directory;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Measures and prints.
pub(super) fn run(arguments: &BenchSmb) -> Result<()> {
    let cells = cells(&arguments.cells, arguments.full);
    ensure!(
        !cells.is_empty(),
        "no cell has this name; a cell has a name such as {}",
        KernelCell::of_default()[0].name()
    );
    let selection = KernelSelection {
        cells,
        cache: cache_directory()?,
        captures: arguments.captures.clone(),
    };
    let display = progress();
    let began = Instant::now();
    let report = kernel::measure(&environment()?, &selection, &display)?;
    display.finish();
    let took = began.elapsed().as_secs_f64();
    let mut out = StandardOutput::new();
    if arguments.json {
        let mut document = document(&report);
        document["took_s"] = json!(took);
        document["machine"] = json!(MachineInfo::describe(&["smbd", lab::machine::PROGRAM]));
        document["certificate"] = json!(crate::emulate::calibrate::citation());
        writeln!(out, "{document}")?;
    } else {
        writeln!(out, "{}\n{took:.0} s.", table(&report))?;
    }
    Ok(())
}

fn cells(words: &[String], is_full: bool) -> Vec<KernelCell> {
    match (words.is_empty(), is_full) {
        (true, false) => KernelCell::of_default(),
        (true, true) => KernelCell::every(),
        (false, _) => KernelCell::every()
            .into_iter()
            .filter(|cell| words.iter().any(|word| cell.is_chosen_by(word)))
            .collect(),
    }
}

fn document(report: &KernelReport) -> Value {
    json!({
        "bench": "smb",
        "figures": { "cells": report.cells },
        "kernel": report.kernel,
        "not_measured": report.not_measured,
        "is_interrupted": report.is_interrupted,
    })
}

fn table(report: &KernelReport) -> String {
    let mut text = format!(
        "Linux {}, {:.0} Mbit/s, RTT {} ms; round trips per item (time by RTT), goodput in kB/s\n\
         {:<20}{:<10}{:<8}{:<11}{:>9}{:>9}{:>11}{:>11}\n",
        report.kernel,
        RATE.bits_per_second() as f64 / 1e6,
        2 * ONE_WAY_DELAY_MS,
        "client",
        "item",
        "dialect",
        "signing",
        "direct",
        "through",
        "kB/s",
        "through",
    );
    let mut seen: Vec<KernelCell> = Vec::new();
    for result in &report.cells {
        let row = KernelCell {
            mode: AccelerationMode::Baseline,
            ..result.cell
        };
        if seen.contains(&row) {
            continue;
        }
        seen.push(row);
        let figure = |mode, of: &dyn Fn(&KernelCellResult) -> String| {
            let cell = KernelCell { mode, ..row };
            let found = report.cells.iter().find(|other| other.cell == cell);
            found.map_or_else(|| "-".to_owned(), of)
        };
        let trips = |result: &KernelCellResult| format!("{:.2}", result.round_trips_per_item);
        let rate = |result: &KernelCellResult| format!("{:.0}", result.goodput_kb_s);
        let (direct, through) = (AccelerationMode::Baseline, AccelerationMode::Application);
        let _ = writeln!(
            text,
            "{:<20}{:<10}{:<8}{:<11}{:>9}{:>9}{:>11}{:>11}",
            row.client.name(),
            row.client.item(),
            row.dialect.name(),
            row.protection.signing(),
            figure(direct, &trips),
            figure(through, &trips),
            figure(direct, &rate),
            figure(through, &rate),
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
    fn words_choose_from_all_kernel_cells() {
        let words = |word: &str| cells(&[word.to_owned()], false);
        assert_eq!(words("kernel-walk/2.1").len(), 4);
        assert!(words("serial-64k").is_empty());
        assert_eq!(cells(&[], false), KernelCell::of_default());
        assert_eq!(document(&KernelReport::default())["bench"], "smb");
    }
}
