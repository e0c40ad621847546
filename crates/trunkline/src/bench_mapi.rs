//! `trunkline bench mapi`: measures mail clients over the emulated WAN, with and without Trunkline,
//! and compares the results with published figures.
//!
//! Every cell has a name (`outlook-xp/save-attachment/OC-1/100ms/none/application/first`). `--cells`
//! selects the cells whose names contain one of its words; a word with several parts
//! (`save-attachment+T1+application`) selects names that contain all parts.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::lines::LinkKind;
use bench::mapi::{self, ContentState, MailAction, MailMode, MapiCell, MapiCellResult, MapiReport};
use clap::Args;
use host::machine::MachineInfo;
use lab::report::published;
use serde_json::{Value, json};

use crate::environment::environment;
use crate::installed_python::installed_python;
use crate::output::StandardOutput;
use crate::progress::progress;

/// The environment variable that names a Python with impacket.
const PYTHON_VARIABLE: &str = "TRUNKLINE_MAILBOX_PYTHON";

/// Mail clients over the emulated WAN, with and without Trunkline.
#[derive(Debug, Args)]
pub(crate) struct BenchMapi {
    /// Runs every cell, in more than a day. Without --full, the benchmark runs the accelerated
    /// transfers of attachments over both links at four delays, and other cells only at OC-1 and
    /// 100 ms, in about 45 minutes.
    #[arg(long)]
    full: bool,
    /// Runs only the cells (of all cells, as with --full) whose names contain one of these words,
    /// for example `save-attachment+OC-1/100ms,list`.
    #[arg(
        long,
        value_name = "WORD,...",
        value_delimiter = ',',
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    cells: Vec<String>,
    /// Prints the results as one JSON object.
    #[arg(long)]
    json: bool,
}

impl BenchMapi {
    /// Measures and prints.
    ///
    /// # Errors
    /// Fails when nothing is selected, a program is missing, or the result cannot be written.
    pub(crate) fn run(self) -> Result<()> {
        host::kernel::catch_interruptions();
        let cells = self.choice();
        ensure!(
            !cells.is_empty(),
            "no cell has this name; a cell has a name such as {}",
            MapiCell::of_default()[0].name()
        );
        let python = python()?;
        let display = progress();
        let began = Instant::now();
        let report = mapi::measure(&environment()?, &python, &cells, &display)?;
        display.finish();
        let took = began.elapsed().as_secs_f64();
        let mut out = StandardOutput::new();
        if self.json {
            let mut document = document(&report);
            document["took_s"] = json!(took);
            document["machine"] = json!(MachineInfo::describe(&["python3"]));
            document["certificate"] = json!(crate::emulate::calibrate::citation());
            writeln!(out, "{document}")?;
        } else {
            writeln!(out, "{}\n{took:.0} s.", table(&report))?;
        }
        Ok(())
    }

    fn choice(&self) -> Vec<MapiCell> {
        let chosen = |cell: &MapiCell| self.cells.iter().any(|word| cell.is_chosen_by(word));
        match (self.cells.is_empty(), self.full) {
            (true, false) => MapiCell::of_default(),
            (true, true) => MapiCell::every(),
            (false, _) => MapiCell::every().into_iter().filter(chosen).collect(),
        }
    }
}

/// The Python of the mail server and its clients: the one that the variable names, or the one that the
/// project's installation has made.
pub(crate) fn python() -> Result<PathBuf> {
    installed_python(PYTHON_VARIABLE, "mailbox")
}

fn document(report: &MapiReport) -> Value {
    json!({
        "bench": "mapi",
        "figures": {
            "cells": report.cells,
            "peers": report.peers,
            "published": { "wx_mapi": published::mail_rates() },
        },
        "not_measured": report.not_measured,
        "is_interrupted": report.is_interrupted,
        "raw": { "references": report.references },
    })
}

fn table(report: &MapiReport) -> String {
    let mut text = String::new();
    for action in MailAction::ALL {
        for link in LinkKind::ALL {
            section(&mut text, action, link, &report.cells);
        }
    }
    for failure in &report.not_measured {
        let _ = writeln!(text, "\nnot measured: {}: {}", failure.cell, failure.reason);
    }
    for result in &report.cells {
        for fault in &result.faults {
            let _ = writeln!(text, "\nfault: {}: {fault}", result.cell.name());
        }
    }
    answers(&mut text, &report.cells);
    if report.is_interrupted {
        text += "\nThe benchmark was interrupted; these are the results so far.\n";
    }
    text
}

/// The cells of an action and a link, a line for each with its modes side by side.
fn section(text: &mut String, action: MailAction, link: LinkKind, cells: &[MapiCellResult]) {
    let results: Vec<&MapiCellResult> = cells
        .iter()
        .filter(|result| (result.cell.action, result.cell.link) == (action, link))
        .collect();
    if results.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{}, {}, {:.3} Mbit/s, {:.1} kB/s of payload at most; goodput in kB/s\n\
         {:<14}{:>5} {:<14}{:<7}{:>9}{:>10}{:>12}{:>9}{:>9}{:>10}{:>8}",
        action.name(),
        link.name(),
        link.bits_per_second() as f64 / 1e6,
        link.payload_kb_s(),
        "client",
        "ms",
        "protection",
        "state",
        "baseline",
        "transport",
        "application",
        "exchange",
        "peers",
        "of target",
        "trips",
    );
    let mut seen: Vec<MapiCell> = Vec::new();
    for result in &results {
        let row = MapiCell {
            mode: MailMode::Baseline,
            ..result.cell
        };
        if !seen.contains(&row) {
            seen.push(row);
            line(text, &row, &results);
        }
    }
    if action != MailAction::SaveAttachment {
        return;
    }
    let rates = published::mail_rates();
    for rate in rates.iter().filter(|rate| rate.link == link.name()) {
        let exchange = rate.exchange_kb_s.map(|rate| format!("{rate:.1}"));
        let _ = writeln!(
            text,
            "{:<14}{:>5} {:<14}{:<7}{:>9.1}{:>10.1}{:>12.1}{:>9}",
            rate.client,
            rate.one_way_delay_ms,
            "WX 2006",
            "first",
            rate.baseline_kb_s,
            rate.transport_kb_s,
            rate.application_kb_s,
            exchange.unwrap_or_else(|| "-".to_owned()),
        );
    }
}

fn line(text: &mut String, row: &MapiCell, results: &[&MapiCellResult]) {
    let of_mode = |mode| {
        results
            .iter()
            .find(|result| result.cell == MapiCell { mode, ..*row })
            .copied()
    };
    let figure = |mode| match of_mode(mode) {
        Some(result) => format!("{:.1}", result.goodput_kb_s),
        None => "-".to_owned(),
    };
    let best =
        of_mode(MailMode::Application).or_else(|| MailMode::ALL.into_iter().find_map(of_mode));
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    let percent = best
        .and_then(|result| result.of_target_rate)
        .map(|share| share * 100.0);
    let held = match best.is_some_and(|result| result.is_held_by_peer) {
        true => "*",
        false => " ",
    };
    let _ = writeln!(
        text,
        "{:<14}{:>5} {:<14}{:<7}{:>9}{:>10}{:>12}{:>9}{:>8}{held}{:>8} %{:>8}",
        row.client.name(),
        row.one_way_delay_ms,
        row.protection.name(),
        row.state.name(),
        figure(MailMode::Baseline),
        figure(MailMode::Transport),
        figure(MailMode::Application),
        figure(MailMode::Exchange),
        or_dash(best.and_then(|result| result.peer_limit_kb_s)),
        or_dash(percent),
        or_dash(best.and_then(|result| result.wan_round_trips)),
    );
    if row.state == ContentState::Again
        && let Some(result) = best
    {
        let _ = writeln!(
            text,
            "    {:.2} % of its bytes on the link",
            result.wan_bytes as f64 * 100.0 / result.bytes.max(1) as f64
        );
    }
}

/// Answers of the nodes about the flows that they should have accelerated.
fn answers(text: &mut String, cells: &[MapiCellResult]) {
    let mut known: Vec<(String, usize)> = Vec::new();
    for result in cells {
        let Some(why) = result
            .accelerate
            .as_ref()
            .filter(|_| result.cell.mode == MailMode::Application)
        else {
            continue;
        };
        let reason = why.why_not.as_ref();
        let answer = format!(
            "{}{}",
            why.did,
            reason.map_or(String::new(), |reason| format!(": {reason}"))
        );
        match known.iter_mut().find(|(text, _)| *text == answer) {
            Some((_, count)) => *count += 1,
            None => known.push((answer, 1)),
        }
    }
    for (answer, count) in known {
        let _ = writeln!(text, "\nWith the accelerator, {count} cells: {answer}");
    }
    if cells.iter().any(|result| result.is_held_by_peer) {
        *text += "\n* Client and server alone are slower than the link.\n";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_from_all_cells() {
        let bench = |words: &[&str], full| BenchMapi {
            full,
            cells: words.iter().map(|word| (*word).to_owned()).collect(),
            json: false,
        };
        let chosen = bench(&["outlook-xp/save-attachment/T1/0ms/none"], false).choice();
        // Three modes, and the accelerated one again.
        assert_eq!(chosen.len(), 4);
        assert!(bench(&["nothing"], true).choice().is_empty());
        assert!(bench(&[], true).choice().len() > bench(&[], false).choice().len());
    }

    #[test]
    fn an_empty_report_has_the_agreed_keys() {
        let document = document(&MapiReport::default());
        assert_eq!(document["bench"], "mapi");
        assert!(document["figures"]["cells"].is_array());
        let published = document["figures"]["published"]["wx_mapi"].as_array();
        assert_eq!(published.map(Vec::len), Some(16));
    }
}
