//! `trunkline bench session`: what a WAN session makes of each kind of path, in virtual time.
//!
//! Every measurement has a name (`20Mbit-100ms-1%`, `exchanges`); `--cells` takes those whose name
//! holds one of its words. Forward error correction off, on and auto share seeds, so that pairs can
//! be compared. Figures are medians over seeds; what they are the medians of is in the result too.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use lab::host::Machine;
use lab::sessions::{
    self, CellResult, Choice, Exchanges, FirstByte, Measurement, Report, Rival, Shares, SmallFlow,
};
use serde_json::{Value, json};
use tunnel::fec::Mode;

use crate::lab::progress;
use crate::output::Output;

/// A WAN session on emulated paths.
#[derive(Debug, Args)]
pub(crate) struct BenchSession {
    /// Two sessions in virtual time, which tells what the protocol does whatever this machine can.
    #[arg(long, required = true)]
    r#virtual: bool,
    /// Only measurements whose name holds one of these, as in `500Mbit,jitter,exchanges`.
    #[arg(long, value_name = "WORD,...", value_delimiter = ',')]
    cells: Vec<String>,
    /// Modes of forward error correction on the paths.
    #[arg(long, value_name = "MODE,...", value_delimiter = ',', value_parser = mode, default_value = "off,auto")]
    fec: Vec<Mode>,
    /// Measures everything with so many seeds; figures are medians.
    #[arg(long, alias = "pairs", value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    repeat: u64,
    /// The first seed; the others follow it.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "off" => Ok(Mode::Off),
        "on" => Ok(Mode::On),
        "auto" => Ok(Mode::Auto),
        _ => Err("off, on or auto".to_owned()),
    }
}

impl BenchSession {
    /// Measures and prints.
    ///
    /// # Errors
    /// When nothing is chosen, or the result cannot be written.
    pub(crate) fn run(self) -> Result<()> {
        let chosen = self.chosen();
        let names: Vec<String> = Measurement::all().iter().map(Measurement::name).collect();
        ensure!(
            !chosen.is_empty(),
            "nothing is called so; there are: {}",
            names.join(", ")
        );
        let choice = Choice {
            measurements: chosen,
            modes: self.fec.clone(),
            repeat: self.repeat,
            seed: self.seed,
        };
        let display = progress();
        let began = Instant::now();
        let report = sessions::measure(&choice, &display);
        display.finish();
        let mut out = Output::new();
        if self.json {
            let mut document = document(&report);
            document["seed"] = json!(self.seed);
            document["repeat"] = json!(self.repeat);
            document["took_s"] = json!(began.elapsed().as_secs_f64());
            document["machine"] = json!(Machine::describe(&[]));
            writeln!(out, "{document}")?;
        } else {
            write!(out, "{}", table(&report))?;
            writeln!(
                out,
                "\nSeeds {} to {}, {:.0} s.",
                self.seed,
                self.seed + self.repeat - 1,
                began.elapsed().as_secs_f64()
            )?;
        }
        Ok(())
    }

    fn chosen(&self) -> Vec<Measurement> {
        let is_chosen = |measurement: &Measurement| {
            let name = measurement.name();
            self.cells.is_empty() || self.cells.iter().any(|word| name.contains(word.as_str()))
        };
        Measurement::all().into_iter().filter(is_chosen).collect()
    }
}

/// What rivals are in virtual time, for who reads the shares.
const VIRTUAL_RIVALS: [&str; 2] = [
    "a second session of this project in virtual time, not a kernel",
    "without correction, with this project's CUBIC (RFC 9438) or its BBR",
];

fn document(report: &Report) -> Value {
    let shares = |rival| {
        json!({
            "1_bdp": report.share_beside(rival, 1.0),
            "4_bdp": report.share_beside(rival, 4.0),
        })
    };
    json!({
        "bench": "session",
        "virtual": true,
        "figures": {
            "cells": report.cells,
            "first_byte_rtt": report.first_byte.map(|times| times.longest_rtt),
            "exchange_64k_p99_ratio": {
                "off": report.exchange_p99_ratio("off"),
                "on": report.exchange_p99_ratio("on"),
                "auto": report.exchange_p99_ratio("auto"),
            },
            "cpu_gbit_s": null,
            "jain_16_sessions": report.jain_16_sessions(),
            "small_flow_ratio": report.small_flow_ratio(),
            "share_vs_cubic": shares(Rival::Cubic),
            "share_vs_bbr": shares(Rival::Bbr),
            "rivals": VIRTUAL_RIVALS.join(", "),
        },
        "raw": {
            "cells": report.runs,
            "first_byte": report.first_byte,
            "exchanges": report.exchanges,
            "small_flow": report.small_flow,
            "jain_16_sessions": report.jain_16_sessions,
            "shares": report.shares,
        },
    })
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    if !report.cells.is_empty() {
        cells(&mut text, &report.cells);
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
    if !report.shares.is_empty() {
        shares(&mut text, &report.shares);
    }
    text
}

fn cells(text: &mut String, cells: &[CellResult]) {
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
            "{:<28}{:>5}{:>9.2}{:>8.2}{:>8.2}{:>8.1}{:>7.2}{:>7.2}",
            result.cell.name(),
            result.fec,
            result.goodput_mbit_s,
            result.whole_transfer_mbit_s,
            result.whole_transfer_remembered_mbit_s,
            result.queueing_p95_ms,
            result.lost_share * 100.0,
            result.repair_share * 100.0,
        );
    }
}

fn first_byte(text: &mut String, times: &FirstByte) {
    let _ = writeln!(
        text,
        "\nFirst byte of an answer, in RTT since the client's open\n  \
         median {:.2}, longest {:.2}; new session {:.2}; after a silent minute {:.2}",
        times.median_rtt, times.longest_rtt, times.new_session_rtt, times.after_silence_rtt
    );
}

fn exchanges(text: &mut String, report: &Report, all: &[Exchanges]) {
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

fn shares(text: &mut String, all: &[Shares]) {
    let _ = writeln!(
        text,
        "\nBeside a rival on 20 Mbit/s, 100 ms\n  {:<10}{:>9}{:>11}{:>9}{:>9}{:>12}",
        "rival", "queue", "our share", "least", "greatest", "both's use"
    );
    for both in all {
        let _ = writeln!(
            text,
            "  {:<10}{:>5} BDP{:>10.1}%{:>8.1}%{:>8.1}%{:>11.1}%",
            both.rival,
            both.queue_bdp,
            both.share * 100.0,
            both.least * 100.0,
            both.greatest * 100.0,
            both.used * 100.0,
        );
    }
    let _ = writeln!(
        text,
        "  A rival is {},\n  {}.",
        VIRTUAL_RIVALS[0], VIRTUAL_RIVALS[1]
    );
}

#[cfg(test)]
mod tests {
    use lab::progress::Silent;
    use lab::sessions::{Latencies, all_cells};

    use super::*;

    fn bench(words: &[&str]) -> BenchSession {
        BenchSession {
            r#virtual: true,
            cells: words.iter().map(|word| (*word).to_owned()).collect(),
            fec: vec![Mode::Auto],
            repeat: 1,
            seed: 1,
            json: false,
        }
    }

    fn report() -> Report {
        let choice = Choice {
            measurements: vec![Measurement::FirstByte],
            modes: vec![Mode::Auto],
            repeat: 1,
            seed: 1,
        };
        let mut report = sessions::measure(&choice, &Silent);
        let longest_name = all_cells().into_iter().max_by_key(|cell| cell.name().len());
        report.cells = vec![CellResult {
            cell: longest_name.unwrap(),
            fec: "auto",
            goodput_mbit_s: 12_345.678,
            queueing_p95_ms: 12_345.6,
            lost_share: 1.0,
            r#virtual: true,
            ..CellResult::default()
        }];
        let latencies = Latencies {
            count: 20_000,
            median_ms: 1_234.5,
            p99_ms: 12_345.6,
            longest_ms: 60_000.0,
            ..Latencies::default()
        };
        report.exchanges = ["off", "on", "auto"]
            .into_iter()
            .flat_map(|fec| [0.0, 0.01].map(|loss| (fec, loss)))
            .map(|(fec, loss)| Exchanges {
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
        report.shares = [Rival::Cubic, Rival::Bbr]
            .into_iter()
            .flat_map(|rival| [1.0, 4.0].map(|queue| (rival, queue)))
            .map(|(rival, queue_bdp)| Shares {
                rival: rival.name(),
                queue_bdp,
                share: 0.5,
                least: 0.4,
                greatest: 0.6,
                used: 0.95,
                shares: vec![0.5],
            })
            .collect();
        report
    }

    #[test]
    fn the_document_has_the_agreed_keys() {
        let document = document(&report());
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
        assert!(figures.get("cpu_gbit_s").unwrap().is_null());
    }

    #[test]
    fn the_table_fits_a_terminal() {
        let text = table(&report());
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        for part in ["12345.68", "p99.9", "16 bulk", "Jain", "cubic"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_word_of_its_name_chooses_a_measurement() {
        assert_eq!(bench(&["policer"]).chosen().len(), 1);
        assert_eq!(bench(&["beside", "first"]).chosen().len(), 3);
        assert_eq!(bench(&["nothing"]).chosen().len(), 0);
        assert_eq!(bench(&[]).chosen().len(), Measurement::all().len());
    }
}
