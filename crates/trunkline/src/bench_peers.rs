//! `trunkline bench emulator-peers`: compares the emulator's policer and shaper with the kernel's.
//!
//! The same packets go through `nft limit` and `--police`, and through tbf and `--shaper`. Each row
//! has the result of both. `bench::peers` describes the path of the packets.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use bench::peers::{self, ComparisonRow, PeersReport, SkippedPeer};
use clap::Args;
use host::{kernel, rootless};
use serde_json::{Value, json};

use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::progress;

#[derive(Debug, Args)]
pub(crate) struct EmulatorPeers {
    /// Prints the results of the benchmark as one JSON object.
    #[arg(long)]
    json: bool,
    /// Writes the numbers and arrival times of the test packets into files in this directory.
    #[arg(long, value_name = "DIRECTORY")]
    raw: Option<PathBuf>,
}

impl EmulatorPeers {
    pub(crate) fn run(self) -> Result<()> {
        kernel::catch_interruptions();
        let environment = environment()?;
        rootless::obtain(&environment)?;
        let display = progress();
        let report = peers::measure(&environment, self.raw.as_deref(), &display)?;
        display.finish();
        let mut out = StandardOutput::new();
        if self.json {
            writeln!(out, "{}", document(&report))?;
        } else {
            write!(out, "{}", table(&report))?;
        }
        Ok(())
    }
}

fn document(report: &PeersReport) -> Value {
    json!({
        "bench": "emulator-peers",
        "rows": report.rows,
        "not_compared": report.not_compared,
        "date": report.date,
        "machine": report.machine,
    })
}

fn table(report: &PeersReport) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "Emulator beside the kernel's policer and shaper, {}\n{} x {}, Linux {}\n",
        report.date, machine.processors, machine.processor_model, machine.kernel
    );
    let mut setting = "";
    for row in &report.rows {
        if row.setting != setting {
            setting = &row.setting;
            text += &format!(
                "\n{}: {setting}\n{:<26}{:>17}{:>17}{:>17}\n",
                row.peer, "", "kernel", "trunkline", "difference"
            );
        }
        text += &line(row);
    }
    for SkippedPeer { peer, reason } in &report.not_compared {
        text += &format!("\nnot compared: {peer}: {reason}");
    }
    text + "\n"
}

fn line(row: &ComparisonRow) -> String {
    let figure = |value: f64| {
        if value.fract() == 0.0 {
            format!("{value:.0}")
        } else {
            format!("{value:.2}")
        }
    };
    let mut line = format!(
        "  {:<24}{:>17}{:>17}{:>17}\n",
        row.quantity,
        figure(row.kernel),
        figure(row.trunkline),
        figure(row.difference)
    );
    if let (Some(kernel), Some(trunkline)) = (row.kernel_error_percent, row.trunkline_error_percent)
    {
        line += &format!(
            "  {:<24}{:>17}{:>17}\n",
            "  off the setting by",
            format!("{kernel:+.4} %"),
            format!("{trunkline:+.4} %")
        );
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> PeersReport {
        PeersReport {
            rows: vec![ComparisonRow {
                peer: "tbf",
                quantity: "rate",
                setting: "1 Mbit/s".to_owned(),
                unit: "bit/s",
                expected: Some(1e6),
                kernel: 999_990.5,
                trunkline: 1_000_001.0,
                difference: 10.5,
                kernel_error_percent: Some(-0.001_2),
                trunkline_error_percent: Some(0.000_1),
                packets: 500,
            }],
            not_compared: vec![SkippedPeer {
                peer: "codel",
                reason: "not in this kernel".to_owned(),
            }],
            date: "today".to_owned(),
            machine: host::machine::MachineInfo::default(),
        }
    }

    #[test]
    fn the_document_has_the_agreed_keys() {
        let document = document(&report());
        assert_eq!(document["bench"], "emulator-peers");
        let row = &document["rows"][0];
        for key in ["peer", "quantity", "setting"] {
            assert!(row[key].is_string(), "{key}");
        }
        for key in ["kernel", "trunkline", "difference"] {
            assert!(row[key].is_f64(), "{key}");
        }
        assert_eq!(document["not_compared"][0]["peer"], "codel");
    }

    #[test]
    fn the_table_names_errors_and_fits_a_terminal() {
        let text = table(&report());
        assert!(text.contains("-0.0012 %"), "{text}");
        assert!(text.contains("1000001 "), "{text}");
        assert!(text.contains("not compared: codel: not in this kernel"));
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}
