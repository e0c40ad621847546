//! `trunkline bench session`: measures a WAN session on each kind of path, with two nodes over the
//! emulator or in virtual time.
//!
//! Every measurement has a name (`20Mbit-100ms-1%`, `exchanges`). `--cells` selects the one with
//! exactly this name, or otherwise all whose names contain the word. Forward error correction off,
//! on and auto use the same seeds, so that pairs can be compared. Figures are medians over seeds;
//! the single values are in the result too. In real time a run that fails does not affect the
//! others, and an interrupted benchmark reports the results that it has; missing ones are named,
//! with the reason.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use bench::sessions::{
    self, ExchangeTimes, FailedRun, FirstByte, FlowCost, PathCellResult, RivalController,
    SessionMeasurement, SessionReport, SessionSelection, SmallFlow,
};
use clap::Args;
use emulator::link::InvalidRequest;
use host::kernel;
use host::machine::MachineInfo;
use serde_json::{Value, json};
use tunnel::fec::RepairMode;

use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::{ProgressDisplay, progress};

/// A WAN session on emulated paths.
#[derive(Debug, Args)]
pub(crate) struct BenchSession {
    /// Simulates two sessions in virtual time, so that the results do not depend on the speed of
    /// this machine. Without --virtual, two real nodes run over the emulator in network namespaces,
    /// with or without root.
    #[arg(long)]
    r#virtual: bool,
    /// Runs only the measurements whose names contain one of these words, for example
    /// `500Mbit,jitter,exchanges`.
    #[arg(long, value_name = "WORD,...", value_delimiter = ',')]
    cells: Vec<String>,
    /// Sets the modes of forward error correction that the benchmark measures [default: off,auto
    /// with --virtual, otherwise auto].
    #[arg(long, value_name = "MODE,...", value_delimiter = ',', value_parser = mode)]
    fec: Vec<RepairMode>,
    /// Repeats every measurement with this many seeds, and prints the medians [default: 10 with
    /// --virtual, otherwise 1].
    #[arg(long, alias = "pairs", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    repeat: Option<u64>,
    /// Sets the seed of the first repetition. The following repetitions use the next larger numbers
    /// as seeds.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Prints the results of the benchmark as one JSON object.
    #[arg(long)]
    json: bool,
}

fn mode(text: &str) -> Result<RepairMode, String> {
    match text {
        "off" => Ok(RepairMode::Off),
        "on" => Ok(RepairMode::On),
        "auto" => Ok(RepairMode::Auto),
        _ => Err("off, on or auto".to_owned()),
    }
}

impl BenchSession {
    /// Measures and prints.
    ///
    /// # Errors
    /// Fails when a word selects nothing ([`InvalidRequest`]), the result cannot be written, or a
    /// measurement failed; the other results are still printed.
    pub(crate) fn run(self) -> Result<()> {
        let choice = self.choice(self.chosen()?);
        let display = progress();
        let began = Instant::now();
        let report = match self.r#virtual {
            true => sessions::measure(&choice, &display),
            false => in_real_time(&choice, &display)?,
        };
        display.finish();
        let mut out = StandardOutput::new();
        if self.json {
            let mut document = document(&report, self.r#virtual);
            document["seed"] = json!(choice.seed);
            document["repeat"] = json!(choice.repeat);
            document["took_s"] = json!(began.elapsed().as_secs_f64());
            document["machine"] = json!(MachineInfo::describe(&[]));
            if !self.r#virtual {
                document["certificate"] = json!(crate::emulate::calibrate::citation());
            }
            writeln!(out, "{document}")?;
        } else {
            write!(out, "{}", table(&report, self.r#virtual))?;
            writeln!(
                out,
                "\nSeeds {} to {}, {:.0} s.",
                choice.seed,
                choice.seed + choice.repeat - 1,
                began.elapsed().as_secs_f64()
            )?;
        }
        match report.not_measured.len() {
            0 => Ok(()),
            count => {
                bail!("{count} runs gave no figure; the result names these runs and the reasons")
            }
        }
    }

    fn choice(&self, measurements: Vec<SessionMeasurement>) -> SessionSelection {
        let modes = match (self.fec.is_empty(), self.r#virtual) {
            (false, _) => self.fec.clone(),
            (true, true) => vec![RepairMode::Off, RepairMode::Auto],
            (true, false) => vec![RepairMode::Auto],
        };
        SessionSelection {
            measurements,
            modes,
            repeat: self.repeat.unwrap_or(if self.r#virtual { 10 } else { 1 }),
            seed: self.seed,
        }
    }

    /// Selected measurements, each once and in the usual order.
    fn chosen(&self) -> Result<Vec<SessionMeasurement>> {
        let all = SessionMeasurement::all();
        let names: Vec<String> = all.iter().map(SessionMeasurement::name).collect();
        let mut is_chosen = vec![self.cells.is_empty(); all.len()];
        for word in &self.cells {
            // A path's name is the beginning of its variations' names.
            let is_name = names.contains(word);
            let is_meant = |name: &String| match is_name {
                true => name == word,
                false => name.contains(word.as_str()),
            };
            if !names.iter().any(is_meant) {
                return Err(InvalidRequest::because(anyhow!(
                    "no measurement has a name that contains `{word}`; the measurements are: {}",
                    names.join(", ")
                )));
            }
            for (chosen, name) in is_chosen.iter_mut().zip(&names) {
                *chosen |= is_meant(name);
            }
        }
        let chosen = all.into_iter().zip(is_chosen);
        Ok(chosen.filter_map(|(one, is)| is.then_some(one)).collect())
    }
}

/// Measures with nodes, and adds measurements that exist in virtual time only: thousands of
/// exchanges, and many sessions on one path.
fn in_real_time(choice: &SessionSelection, display: &ProgressDisplay) -> Result<SessionReport> {
    kernel::catch_interruptions();
    let mut report = sessions::measure_in_real_time(&environment()?, choice, display)?;
    let of_virtual_time = |measurement: &SessionMeasurement| {
        matches!(
            measurement,
            SessionMeasurement::Exchanges
                | SessionMeasurement::SmallFlow
                | SessionMeasurement::Sessions
        )
    };
    let others = SessionSelection {
        measurements: choice
            .measurements
            .iter()
            .copied()
            .filter(of_virtual_time)
            .collect(),
        ..choice.clone()
    };
    let counted = sessions::measure(&others, display);
    report.exchanges_in_real_time = std::mem::replace(&mut report.exchanges, counted.exchanges);
    report.small_flow = counted.small_flow;
    report.jain_16_sessions = counted.jain_16_sessions;
    report.not_measured.extend(counted.not_measured);
    Ok(report)
}

/// Descriptions of the rivals in virtual time, for the reader of the shares.
const VIRTUAL_RIVALS: [&str; 2] = [
    "a second session of this project in virtual time, not a kernel",
    "without correction, with our CUBIC, our BBR, or BBR version 1 as Linux has it",
];

/// Descriptions of the rivals in real time.
const KERNEL_RIVALS: [&str; 2] = [
    "one TCP connection of this kernel on the link, past both nodes",
    "its congestion control set by route (congctl) and read back",
];

fn rivals(is_virtual: bool) -> [&'static str; 2] {
    match is_virtual {
        true => VIRTUAL_RIVALS,
        false => KERNEL_RIVALS,
    }
}

fn document(report: &SessionReport, is_virtual: bool) -> Value {
    let shares = |rival| {
        json!({
            "1_bdp": report.share_beside(rival, 1.0),
            "4_bdp": report.share_beside(rival, 4.0),
        })
    };
    json!({
        "bench": "session",
        "virtual": is_virtual,
        "figures": {
            "cells": report.cells,
            "first_byte_rtt": report.first_byte.map(|times| times.longest_rtt),
            "first_byte_short_answer_rtt": report.first_byte.map(|times| times.short_answer_rtt),
            "exchange_64k_p99_ratio": {
                "off": report.exchange_p99_ratio("off"),
                "on": report.exchange_p99_ratio("on"),
                "auto": report.exchange_p99_ratio("auto"),
            },
            "cpu_gbit_s": report.cpu_gbit_s(),
            "jain_16_sessions": report.jain_16_sessions(),
            "small_flow_ratio": report.small_flow_ratio(),
            "share_vs_cubic": shares(RivalController::Cubic),
            "share_vs_bbr": shares(RivalController::Bbr),
            "share_vs_bbr_v1": shares(RivalController::BbrV1),
            // What rivals leave each other, with nothing of ours in the queue.
            "reference_cubic_vs_bbr": {
                "1_bdp": report.cubic_beside_bbr(1.0),
                "4_bdp": report.cubic_beside_bbr(4.0),
            },
            "share_verdicts": report.verdicts(),
            "rivals": rivals(is_virtual).join(", "),
            // Of which virtual time decides, whatever else was measured in real time.
            "always_virtual": ["exchange_64k_p99_ratio", "jain_16_sessions", "small_flow_ratio"],
        },
        "not_measured": report.not_measured,
        "raw": {
            "cells": report.runs,
            "first_byte": report.first_byte,
            "exchanges": report.exchanges,
            "small_flow": report.small_flow,
            "jain_16_sessions": report.jain_16_sessions,
            "shares": report.shares,
            "references": report.references,
            "exchanges_in_real_time": report.exchanges_in_real_time,
            "cpu": report.costs,
        },
    })
}

fn table(report: &SessionReport, is_virtual: bool) -> String {
    let mut text = String::new();
    if !report.cells.is_empty() {
        cells(&mut text, &report.cells);
        let mut paths: Vec<&str> = report.cells.iter().map(|cell| &cell.path[..]).collect();
        paths.sort_unstable();
        paths.dedup();
        let _ = writeln!(text, "Flows travelled by {}.", paths.join(" and "));
    }
    if let Some(times) = &report.first_byte {
        first_byte(&mut text, times);
    }
    if !report.exchanges.is_empty() {
        exchanges(&mut text, report, &report.exchanges);
    }
    if let (Some(times), Some(ratio)) = (&report.small_flow, report.small_flow_ratio()) {
        small_flow(&mut text, times, ratio);
    }
    if let Some(index) = report.jain_16_sessions() {
        let _ = writeln!(
            text,
            "\nSixteen sessions on 20 Mbit/s, 100 ms, one queue of 1 BDP\n  Jain's index {index:.3}"
        );
    }
    if !report.shares.is_empty() || !report.references.is_empty() {
        shares(&mut text, report, rivals(is_virtual));
    }
    if !report.costs.is_empty() {
        costs(&mut text, &report.costs);
    }
    if !report.not_measured.is_empty() {
        not_measured(&mut text, &report.not_measured);
    }
    text
}

fn cells(text: &mut String, cells: &[PathCellResult]) {
    let _ = writeln!(
        text,
        "{:<28}{:>5}{:>9}{:>8}{:>8}{:>8}{:>7}{:>7}\n{:<28}{:>5}{:>9}{:>8}{:>8}{:>8}{:>7}{:>7}",
        "path",
        "FEC",
        "goodput",
        "16 MiB",
        "known",
        "queue",
        "lost",
        "repair",
        "",
        "",
        "Mbit/s",
        "Mbit/s",
        "Mbit/s",
        "p95 ms",
        "%",
        "%"
    );
    for result in cells {
        let _ = writeln!(
            text,
            "{:<28}{:>5}{:>9.2}{:>8.2}{:>8}{:>8}{:>7.2}{:>7.2}",
            result.cell.name(),
            result.fec,
            result.goodput_mbit_s,
            result.whole_transfer_mbit_s,
            figure(result.whole_transfer_remembered_mbit_s, 2),
            figure(result.queueing_p95_ms, 1),
            result.lost_share * 100.0,
            result.repair_share * 100.0,
        );
    }
}

/// A figure that may not have been measured.
fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

fn first_byte(text: &mut String, times: &FirstByte) {
    let _ = writeln!(
        text,
        "\nFirst byte of an answer of 64 KiB, in RTT since the client's open\n  \
         median {:.2}, longest {:.2}; new session {:.2}; after silence {:.2}\n  \
         of an answer of 100 B: longest {:.2}",
        times.median_rtt,
        times.longest_rtt,
        times.new_session_rtt,
        times.after_silence_rtt,
        times.short_answer_rtt
    );
}

fn exchanges(text: &mut String, report: &SessionReport, all: &[ExchangeTimes]) {
    let _ = writeln!(
        text,
        "\nExchanges of 100 B and 64 KiB on 20 Mbit/s, 100 ms\n  \
         {:<12}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}",
        "FEC, loss", "median", "p90", "p99", "p99.9", "longest", "p99 over", "repair"
    );
    for one in all {
        let times = &one.latencies;
        let ratio = match one.loss > 0.0 {
            true => report.exchange_p99_ratio(one.fec),
            false => None,
        };
        let _ = writeln!(
            text,
            "  {:<12}{:>9.1}{:>9.1}{:>9.1}{:>9.1}{:>9.1}{:>10}{:>8.2}%",
            format!("{}, {}%", one.fec, one.loss * 100.0),
            times.median_ms,
            times.p90_ms,
            times.p99_ms,
            times.p99_9_ms,
            times.longest_ms,
            ratio.map_or(String::new(), |ratio| format!("{ratio:.3}")),
            one.repair_share * 100.0,
        );
    }
    let _ = writeln!(
        text,
        "  in ms; p99 over the least median without loss; {} exchanges each",
        all.first().map_or(0, |one| one.latencies.count)
    );
}

fn small_flow(text: &mut String, times: &SmallFlow, ratio: f64) {
    let _ = writeln!(
        text,
        "\nFirst 64 KiB of a new flow on 20 Mbit/s, 100 ms\n  \
         alone {:.1} ms (p99 {:.1}), beside 16 bulk flows {:.1} ms (p99 {:.1}):\n  \
         {ratio:.2} times as long",
        times.alone.median_ms,
        times.alone.p99_ms,
        times.beside_bulk.median_ms,
        times.beside_bulk.p99_ms
    );
}

fn shares(text: &mut String, report: &SessionReport, rivals: [&str; 2]) {
    let _ = writeln!(
        text,
        "\nTwo flows on 20 Mbit/s, 100 ms\n  {:<16}{:>9}{:>12}{:>9}{:>9}{:>12}",
        "", "queue", "first's", "least", "greatest", "both's use"
    );
    let ours = report.shares.iter().map(|both| ("ours", both));
    let references = report.references.iter().map(|both| ("cubic", both));
    for (first, both) in ours.chain(references) {
        let names = format!("{first}, {}", both.rival);
        let _ = writeln!(
            text,
            "  {names:<16}{:>5} BDP{:>11.1}%{:>8.1}%{:>8.1}%{:>11.1}%",
            both.queue_bdp,
            both.share * 100.0,
            both.least * 100.0,
            both.greatest * 100.0,
            both.used * 100.0,
        );
    }
    let _ = writeln!(text, "  A rival is {},\n  {}.", rivals[0], rivals[1]);
    for verdict in report.verdicts() {
        let text_of_it = format!(
            "Beside {}, {} BDP: {}.",
            verdict.rival, verdict.queue_bdp, verdict.why
        );
        wrapped(text, &text_of_it);
    }
}

/// Adds a sentence in lines that fit a terminal.
fn wrapped(text: &mut String, sentence: &str) {
    const WIDTH: usize = 80;
    let mut line = String::from(" ");
    for word in sentence.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = String::from("   ");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}

fn costs(text: &mut String, all: &[FlowCost]) {
    let _ = writeln!(
        text,
        "\nClient, server and both nodes on these processors, no emulator\n  \
         {:<10}{:>6}{:>9}{:>10}{:>10}{:>10}{:>10}{:>8}",
        "", "path", "Gbit/s", "near", "far", "client", "server", "idle"
    );
    for cost in all {
        let _ = writeln!(
            text,
            "  {:<10}{:>6}{:>9.3}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>7.1}%",
            if cost.is_reduced {
                "reduced"
            } else {
                "carried"
            },
            cost.path,
            cost.gbit_s,
            cost.near_cpu_s_per_gb,
            cost.far_cpu_s_per_gb,
            cost.client_cpu_s_per_gb,
            cost.server_cpu_s_per_gb,
            cost.cpu_idle_percent
        );
    }
    let _ = writeln!(text, "  near to server: processor seconds for 10^9 bytes");
}

fn not_measured(text: &mut String, all: &[FailedRun]) {
    let _ = writeln!(text, "\nNot measured");
    for FailedRun {
        measurement,
        run,
        why,
    } in all
    {
        let _ = writeln!(text, "  {measurement}, {run}\n    {why}");
    }
}

#[cfg(test)]
mod tests {
    use bench::sessions::{FlowPair, LatencyQuantiles, all_cells};
    use host::progress::SilentProgress;

    use super::*;

    fn bench(words: &[&str]) -> BenchSession {
        BenchSession {
            r#virtual: true,
            cells: words.iter().map(|word| (*word).to_owned()).collect(),
            fec: vec![],
            repeat: None,
            seed: 1,
            json: false,
        }
    }

    fn report() -> SessionReport {
        let choice = SessionSelection {
            measurements: vec![SessionMeasurement::FirstByte],
            modes: vec![RepairMode::Auto],
            repeat: 1,
            seed: 1,
        };
        let mut report = sessions::measure(&choice, &SilentProgress);
        let longest_name = all_cells().into_iter().max_by_key(|cell| cell.name().len());
        report.cells = vec![PathCellResult {
            cell: longest_name.unwrap(),
            fec: "auto",
            goodput_mbit_s: 12_345.678,
            queueing_p95_ms: Some(12_345.6),
            lost_share: 1.0,
            r#virtual: true,
            ..PathCellResult::default()
        }];
        let latencies = LatencyQuantiles {
            count: 20_000,
            median_ms: 1_234.5,
            p99_ms: 12_345.6,
            longest_ms: 60_000.0,
            ..LatencyQuantiles::default()
        };
        report.exchanges = ["off", "on", "auto"]
            .into_iter()
            .flat_map(|fec| [0.0, 0.01].map(|loss| (fec, loss)))
            .map(|(fec, loss)| ExchangeTimes {
                fec,
                loss,
                latencies,
                repair_share: 0.25,
            })
            .collect();
        report.small_flow = Some(SmallFlow {
            alone: latencies,
            beside_bulk: latencies,
        });
        report.jain_16_sessions = vec![0.95];
        let shares = |rival: RivalController, queue_bdp, share| sessions::QueueShares {
            rival: rival.name(),
            queue_bdp,
            share,
            least: 0.4,
            greatest: 0.6,
            used: 0.95,
            shares: vec![share],
            runs: vec![FlowPair::default()],
        };
        let rivals = [
            (RivalController::Cubic, 0.5),
            (RivalController::Bbr, 0.5),
            (RivalController::BbrV1, 0.2),
        ];
        report.shares = rivals
            .into_iter()
            .flat_map(|(rival, share)| [1.0, 4.0].map(|queue| shares(rival, queue, share)))
            .collect();
        report.references = [1.0, 4.0]
            .map(|queue| shares(RivalController::BbrV1, queue, 0.1))
            .to_vec();
        report.costs = vec![FlowCost {
            is_reduced: false,
            gbit_s: 1.5,
            path: "udp".to_owned(),
            near_cpu_s_per_gb: 12.34,
            far_cpu_s_per_gb: 12.34,
            client_cpu_s_per_gb: 12.34,
            server_cpu_s_per_gb: 12.34,
            cpu_idle_percent: 100.0,
        }];
        report
    }

    #[test]
    fn default_run_measures_ten_pairs_and_one_run() {
        let choice = bench(&[]).choice(vec![]);
        assert_eq!((choice.repeat, choice.modes.len()), (10, 2));
        let choice = BenchSession {
            r#virtual: false,
            ..bench(&[])
        }
        .choice(vec![]);
        assert_eq!((choice.repeat, choice.modes), (1, vec![RepairMode::Auto]));
    }

    #[test]
    fn the_document_has_the_agreed_keys() {
        let document = document(&report(), true);
        let figures = &document["figures"];
        let cell = &figures["cells"][0];
        for key in [
            "rate_mbit_s",
            "rtt_ms",
            "loss",
            "burst",
            "jitter_ms",
            "goodput_mbit_s",
            "whole_transfer_mbit_s",
        ] {
            assert!(cell[key].is_f64(), "{key}");
        }
        assert_eq!(cell["fec"], "auto");
        assert_eq!(cell["virtual"], true);
        assert!(cell.get("cpu_idle_percent").unwrap().is_null());
        for key in ["first_byte_rtt", "jain_16_sessions", "small_flow_ratio"] {
            assert!(figures[key].is_f64(), "{key}");
        }
        for mode in ["off", "on", "auto"] {
            assert!(figures["exchange_64k_p99_ratio"][mode].is_f64(), "{mode}");
        }
        for key in ["share_vs_cubic", "share_vs_bbr"] {
            for queue in ["1_bdp", "4_bdp"] {
                assert_eq!(figures[key][queue], 0.5, "{key}");
            }
        }
        for queue in ["1_bdp", "4_bdp"] {
            assert_eq!(figures["share_vs_bbr_v1"][queue], 0.2);
            assert_eq!(figures["reference_cubic_vs_bbr"][queue], 0.1);
        }
        let verdicts = figures["share_verdicts"].as_array().unwrap();
        let fair = verdicts.iter().map(|verdict| &verdict["is_fair"]);
        assert!(fair.eq(&[true, true, true, true, false, false]));
        assert_eq!(figures["cpu_gbit_s"], 1.5);
    }

    #[test]
    fn the_table_fits_a_terminal() {
        let text = table(&report(), false) + &table(&report(), true);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for part in [
            "12345.68",
            "p99.9",
            "16 bulk",
            "Jain",
            "ours, cubic",
            "cubic, bbr-v1",
            "the rival breaks it",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    fn chosen(words: &[&str]) -> Vec<String> {
        let chosen = bench(words).chosen().unwrap();
        chosen.iter().map(SessionMeasurement::name).collect()
    }

    #[test]
    fn a_word_of_its_name_chooses_a_measurement() {
        assert_eq!(chosen(&["policer"]), ["20Mbit-100ms-policer"]);
        assert_eq!(chosen(&["beside", "first"]).len(), 5);
        assert_eq!(chosen(&["first", "first-byte"]), ["first-byte"]);
        assert_eq!(chosen(&[]).len(), SessionMeasurement::all().len());
    }

    #[test]
    fn a_whole_name_chooses_that_measurement_alone() {
        for name in SessionMeasurement::all()
            .iter()
            .map(SessionMeasurement::name)
        {
            assert_eq!(chosen(&[&name]), [name]);
        }
    }

    #[test]
    fn unknown_word_is_refused_with_all_names() {
        let error = bench(&["policer", "exchnges"]).chosen().unwrap_err();
        assert!(InvalidRequest::is_cause_of(&error));
        let text = error.to_string();
        for part in ["`exchnges`", "20Mbit-100ms-policer", "exchanges", "cpu"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn missing_figures_are_named_beside_the_others() {
        let mut report = report();
        report.not_measured = vec![FailedRun {
            measurement: "beside-bbr".to_owned(),
            run: "queue of 4 BDP, seed 1".to_owned(),
            why: "a node ended".to_owned(),
        }];
        let text = table(&report, false);
        for part in [
            "12345.68",
            "beside-bbr, queue of 4 BDP, seed 1",
            "a node ended",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let document = document(&report, false);
        assert_eq!(document["not_measured"][0]["measurement"], "beside-bbr");
        assert_eq!(document["not_measured"][0]["why"], "a node ended");
        assert_eq!(document["figures"]["cpu_gbit_s"], 1.5);
    }
}
