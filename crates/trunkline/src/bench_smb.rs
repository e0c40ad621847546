//! `trunkline bench smb`: measures SMB clients over the emulated WAN, with and without
//! Trunkline, and compares the results with published CIFS figures.
//!
//! Every cell has a name (`serial-64k/OC-1/100ms/hmac/application`). `--cells` selects the cells
//! whose names contain one of its words; a word with several parts (`serial+T1+application`)
//! selects names that contain all parts.

mod fixed_link;
mod kernel;
mod office;

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::lines::LinkKind;
use bench::smb::{
    self, AccelerationMode, ClientPython, DocumentTimes, SmbCell, SmbCellResult, SmbReport,
    SmbSelection,
};
use clap::Args;
use host::machine::MachineInfo;
use serde_json::{Value, json};

use crate::environment::environment;
use crate::installed_python::installed_python;
use crate::output::StandardOutput;
use crate::progress::progress;

/// The environment variable that names a Python with smbprotocol.
const PYTHON_VARIABLE: &str = "TRUNKLINE_SMB_PYTHON";

/// SMB clients over the emulated WAN, with and without Trunkline.
#[derive(Debug, Args)]
pub(crate) struct BenchSmb {
    /// Runs every measurement, every document and 1,000 small files, in about a day. Without
    /// --full, the benchmark runs serial clients over both links with four delays, and other
    /// clients only over OC-1 with 100 ms, in under 40 minutes.
    #[arg(long)]
    full: bool,
    /// Runs only those measurements of --full whose names contain one of these words, for example
    /// `serial-64k+OC-1/100ms,listing`.
    #[arg(
        long,
        value_name = "WORD,...",
        value_delimiter = ',',
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    cells: Vec<String>,
    /// Prints the results of the benchmark as one JSON object.
    #[arg(long)]
    json: bool,
    /// Selects the clients. `kernel` measures the Linux kernel's client in a virtual machine, over 20
    /// Mbit/s with an RTT of 100 ms; its packages are downloaded once (Debian 12). `office` sends the
    /// requests of office programs and file managers over the same link.
    #[arg(long, value_enum, default_value_t = BenchedClients::Stock)]
    clients: BenchedClients,
    /// Saves the packets of each cell of `--clients kernel` or `office`, as they are at the client and
    /// at the server, in this directory.
    #[arg(long, value_name = "DIRECTORY")]
    captures: Option<PathBuf>,
}

/// Clients of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BenchedClients {
    /// Serial clients of our own scripts, smbclient and smbnetfs.
    Stock,
    /// The Linux kernel's client.
    Kernel,
    /// Requests of office programs, Explorer and Finder.
    Office,
}

impl BenchSmb {
    /// Measures and prints.
    ///
    /// # Errors
    /// Fails when nothing is selected, a program is missing, or the result cannot be written.
    pub(crate) fn run(self) -> Result<()> {
        host::kernel::catch_interruptions();
        match self.clients {
            BenchedClients::Stock => self.run_stock_clients(),
            BenchedClients::Kernel => kernel::run(&self),
            BenchedClients::Office => office::run(&self),
        }
    }

    fn run_stock_clients(self) -> Result<()> {
        ensure!(
            self.captures.is_none(),
            "--captures is for --clients kernel and --clients office"
        );
        let choice = self.choice();
        ensure!(
            !choice.cells.is_empty() || !choice.document_modes.is_empty(),
            "no cell has this name; a cell has a name such as {}; further names are `documents` and \
             `without-key` (the cell without a key)",
            SmbCell::of_default()[0].name()
        );
        let clients = ClientPython::find(&python()?)?;
        let display = progress();
        let began = Instant::now();
        let report = smb::measure(&environment()?, &clients, &choice, &display)?;
        display.finish();
        let took = began.elapsed().as_secs_f64();
        let mut out = StandardOutput::new();
        if self.json {
            let mut document = document(&report);
            document["took_s"] = json!(took);
            document["machine"] = json!(MachineInfo::describe(&["smbd", "smbclient"]));
            document["certificate"] = json!(crate::emulate::calibrate::citation());
            writeln!(out, "{document}")?;
        } else {
            writeln!(out, "{}\n{took:.0} s.", table(&report))?;
        }
        Ok(())
    }

    fn choice(&self) -> SmbSelection {
        let has = |name: &str| self.cells.iter().any(|word| word == name);
        let chosen = |cell: &SmbCell| self.cells.iter().any(|word| cell.is_chosen_by(word));
        let all = self.cells.is_empty();
        let cells = match (all, self.full) {
            (true, false) => SmbCell::of_default(),
            (true, true) => SmbCell::every(),
            (false, _) => SmbCell::every().into_iter().filter(chosen).collect(),
        };
        let document_modes = match (all || has("documents"), self.full) {
            (false, _) => vec![],
            (true, false) => vec![AccelerationMode::Baseline, AccelerationMode::Application],
            (true, true) => vec![
                AccelerationMode::Baseline,
                AccelerationMode::Tcp,
                AccelerationMode::Application,
            ],
        };
        SmbSelection {
            cells,
            document_modes,
            is_full: self.full,
            with_withheld_key: all || has("without-key"),
        }
    }
}

/// The Python that serial clients run in: the one that the variable names, or the one that the
/// project's installation has made.
pub(crate) fn python() -> Result<PathBuf> {
    installed_python(PYTHON_VARIABLE, "smb-clients")
}

fn document(report: &SmbReport) -> Value {
    json!({
        "bench": "smb",
        "figures": {
            "cells": report.cells,
            "documents": report.documents,
            "without_key": report.without_key,
            "published": {
                "wx_cifs": smb::rates(),
                "waas_3g_cifs_open_save": smb::documents(),
            },
        },
        "not_measured": report.not_measured,
        "is_interrupted": report.is_interrupted,
        "raw": { "references": report.references },
    })
}

fn table(report: &SmbReport) -> String {
    let mut text = String::new();
    rates(&mut text, &report.cells);
    small(&mut text, &report.cells);
    documents(&mut text, &report.documents);
    if let Some(result) = &report.without_key {
        let why = result.accelerate.clone().unwrap_or_default();
        let _ = writeln!(
            text,
            "\nSigned, key withheld ({}): {:.1} kB/s\n  {}: {}\n  what would change that: {}",
            result.cell.name(),
            result.goodput_kb_s,
            why.did,
            why.why_not.as_deref().unwrap_or("no reason given"),
            why.remedy.as_deref().unwrap_or("nothing"),
        );
    }
    answers(&mut text, &report.cells);
    for failure in &report.not_measured {
        let _ = writeln!(text, "\nnot measured: {}: {}", failure.cell, failure.reason);
    }
    for result in report.cells.iter().chain(&report.without_key) {
        for fault in &result.faults {
            let _ = writeln!(text, "\nfault: {}: {fault}", result.cell.name());
        }
    }
    if report.is_interrupted {
        text += "\nThe benchmark was interrupted; these are the results so far.\n";
    }
    text
}

/// Cells that are rates, a line for each with its modes side by side.
fn rates(text: &mut String, cells: &[SmbCellResult]) {
    let published = smb::rates();
    for link in [LinkKind::T1, LinkKind::Oc1] {
        let of_link: Vec<&SmbCellResult> = cells
            .iter()
            .filter(|result| result.cell.link == link && result.cell.client.is_bulk())
            .collect();
        if of_link.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "\n{}, {:.3} Mbit/s, {:.1} kB/s of payload at most; goodput in kB/s, round trips\n\
             {:<12}{:>5} {:<10}{:>10}{:>10}{:>12}{:>8}{:>10}",
            link.name(),
            link.bits_per_second() as f64 / 1e6,
            link.payload_kb_s(),
            "client",
            "ms",
            "signing",
            "baseline",
            "tcp",
            "application",
            "of rate",
            "trips",
        );
        let mut seen: Vec<SmbCell> = Vec::new();
        for result in &of_link {
            let row = SmbCell {
                mode: AccelerationMode::Baseline,
                ..result.cell
            };
            if seen.contains(&row) {
                continue;
            }
            seen.push(row);
            line(text, &row, &of_link);
        }
        for rate in published.iter().filter(|rate| rate.link == link.name()) {
            let _ = writeln!(
                text,
                "{:<12}{:>5} {:<10}{:>10.1}{:>10.1}{:>12.1}{:>7.0} %",
                "WX 2006",
                rate.one_way_delay_ms,
                "off",
                rate.baseline_kb_s,
                rate.tcp_kb_s,
                rate.application_kb_s,
                rate.application_kb_s / link.payload_kb_s() * 100.0,
            );
        }
    }
}

fn line(text: &mut String, row: &SmbCell, results: &[&SmbCellResult]) {
    let of_mode = |mode| {
        results
            .iter()
            .find(|result| result.cell == SmbCell { mode, ..*row })
            .copied()
    };
    let figure = |mode| match of_mode(mode) {
        Some(result) => format!("{:.1}", result.goodput_kb_s),
        None => "-".to_owned(),
    };
    let best = AccelerationMode::ALL.into_iter().rev().find_map(of_mode);
    let trips = best
        .and_then(|result| result.wan_round_trips)
        .map_or_else(|| "-".to_owned(), |trips| format!("{trips:.1}"));
    let _ = writeln!(
        text,
        "{:<12}{:>5} {:<10}{:>10}{:>10}{:>12}{:>7.0} %{:>9}",
        row.client.name(),
        row.one_way_delay_ms,
        row.protection.name(),
        figure(AccelerationMode::Baseline),
        figure(AccelerationMode::Tcp),
        figure(AccelerationMode::Application),
        best.map_or(0.0, |result| result.of_payload_rate * 100.0),
        trips,
    );
}

/// Cells that are counts.
fn small(text: &mut String, cells: &[SmbCellResult]) {
    let mut few = cells
        .iter()
        .filter(|result| !result.cell.client.is_bulk())
        .peekable();
    if few.peek().is_none() {
        return;
    }
    let _ = writeln!(
        text,
        "\nSmall files of 10 kB and listings; round trips\n{:<50}{:>7}{:>9}{:>8}{:>6}",
        "", "files", "s", "trips", "each"
    );
    for result in few {
        let trips =
            |count: Option<f64>| count.map_or("-".to_owned(), |count| format!("{count:.1}"));
        let _ = writeln!(
            text,
            "{:<50}{:>7}{:>9.2}{:>8}{:>6}",
            result.cell.name(),
            result.files,
            result.seconds,
            trips(result.wan_round_trips),
            trips(result.wan_round_trips_per_file),
        );
    }
}

fn documents(text: &mut String, times: &[DocumentTimes]) {
    if times.is_empty() {
        return;
    }
    let published = smb::documents();
    let _ = writeln!(
        text,
        "\nDocuments opened and saved over T1, 75 ms each way; published over 3G (WAAS 2009); \
         seconds\n{:<12}{:<14}{:<8}{:>8}{:>8}{:>14}{:>8}",
        "", "", "", "open", "save", "WAAS open", "save"
    );
    for time in times {
        let theirs = published.iter().find(|document| document.file == time.file);
        let theirs = theirs.map(|document| match time.cache {
            "cold" => document.cold_s,
            "warm" => document.warm_s,
            _ => document.baseline_s,
        });
        let [open, save] = theirs.unwrap_or([f64::NAN; 2]);
        let _ = writeln!(
            text,
            "{:<12}{:<14}{:<8}{:>8.2}{:>8.2}{:>14.2}{:>8.2}",
            time.file, time.mode, time.cache, time.open_seconds, time.save_seconds, open, save
        );
    }
}

/// Answers of the nodes about the flows that they should have accelerated.
fn answers(text: &mut String, cells: &[SmbCellResult]) {
    let mut known = Vec::new();
    for result in cells
        .iter()
        .filter(|result| result.cell.mode.consistency().is_some())
    {
        let Some(why) = &result.accelerate else {
            continue;
        };
        let answer = format!(
            "{}{}",
            why.did,
            why.why_not
                .as_ref()
                .map_or(String::new(), |reason| format!(": {reason}"))
        );
        match known.iter_mut().find(|(text, _)| *text == answer) {
            Some((_, count)) => *count += 1,
            None => known.push((answer, 1)),
        }
    }
    for (answer, count) in known {
        let _ = writeln!(text, "\nWith the accelerator, {count} cells: {answer}");
    }
    for result in cells {
        let Some(freshness) = &result.freshness else {
            continue;
        };
        let _ = writeln!(
            text,
            "\n{}: {} changes by a second client, {} of {} files told with outdated times, by \
             {:.0} ms at most (allowed: {:.0})",
            result.cell.name(),
            freshness.changes,
            freshness.outdated_times,
            freshness.files,
            freshness.oldest_time_ms,
            freshness.bound_ms,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(words: &[&str], full: bool) -> BenchSmb {
        BenchSmb {
            full,
            cells: words.iter().map(|word| (*word).to_owned()).collect(),
            json: false,
            clients: BenchedClients::Stock,
            captures: None,
        }
    }

    #[test]
    fn words_choose_from_all_cells_and_nothing_else() {
        let choice = bench(&["serial-64k/T1/0ms/cmac"], false).choice();
        assert_eq!(choice.cells.len(), 3);
        assert!(choice.document_modes.is_empty() && !choice.with_withheld_key);
        let choice = bench(&["documents"], false).choice();
        assert!(choice.cells.is_empty() && choice.document_modes.len() == 2);
        assert!(bench(&[], false).choice().with_withheld_key);
    }

    #[test]
    fn empty_word_does_not_select_everything() {
        #[derive(clap::Parser)]
        struct BenchSmbCommandLine {
            #[command(flatten)]
            bench: BenchSmb,
        }
        let parse = |words: &str| {
            <BenchSmbCommandLine as clap::Parser>::try_parse_from(["it", "--cells", words])
        };
        assert!(parse("").is_err() && parse("listing,").is_err());
        assert_eq!(parse("listing,T1").unwrap().bench.cells, ["listing", "T1"]);
    }

    #[test]
    fn an_empty_report_has_the_agreed_keys() {
        let document = document(&SmbReport::default());
        assert_eq!(document["bench"], "smb");
        assert!(document["figures"]["cells"].is_array());
        let published = document["figures"]["published"]["wx_cifs"].as_array();
        assert_eq!(published.map(Vec::len), Some(8));
    }
}
