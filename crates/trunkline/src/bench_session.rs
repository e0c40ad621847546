//! `trunkline bench session`: what a WAN session makes of each kind of path, in virtual time.
//!
//! Every path has a name (`20Mbit-100ms-1%`); `--cells` takes those whose name holds one of its
//! words. Forward error correction off, on and auto share seeds, so that pairs can be compared.

use std::io::Write;

use anyhow::{Result, ensure};
use clap::Args;
use lab::progress::Progress;
use lab::sessions::{Cell, CellResult, all_cells, run_cell};
use serde_json::json;
use tunnel::fec::Mode;

use crate::lab::progress;
use crate::output::Output;

/// A WAN session on emulated paths.
#[derive(Debug, Args)]
pub(crate) struct BenchSession {
    /// Two sessions in virtual time, which tells what the protocol does whatever this machine can.
    #[arg(long, required = true)]
    r#virtual: bool,
    /// Only paths whose name holds one of these, as in `500Mbit,jitter`.
    #[arg(long, value_delimiter = ',')]
    cells: Vec<String>,
    /// Modes of forward error correction.
    #[arg(long, value_delimiter = ',', value_parser = mode, default_value = "off,auto")]
    fec: Vec<Mode>,
    /// Seeds for each path.
    #[arg(long, default_value_t = 1)]
    pairs: u64,
    /// The first seed; the others follow it.
    #[arg(long, default_value_t = 1)]
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
    /// When no path is chosen, or the result cannot be written.
    pub(crate) fn run(self) -> Result<()> {
        let cells: Vec<Cell> = all_cells()
            .into_iter()
            .filter(|cell| self.is_chosen(cell))
            .collect();
        let names: Vec<String> = all_cells().iter().map(Cell::name).collect();
        ensure!(
            !cells.is_empty(),
            "no path is called so; there are: {}",
            names.join(", ")
        );
        let display = progress();
        let total = cells.len() * self.fec.len() * self.pairs as usize;
        let mut results = Vec::with_capacity(total);
        for cell in &cells {
            for seed in self.seed..self.seed + self.pairs {
                for fec in &self.fec {
                    let done = results.len() as f64 / total as f64;
                    display.step(done, &cell.name());
                    results.push(run_cell(*cell, *fec, seed));
                }
            }
        }
        display.finish();
        let mut out = Output::new();
        if self.json {
            let document = json!({ "bench": "session", "figures": { "cells": results } });
            writeln!(out, "{document}")?;
        } else {
            write!(out, "{}", table(&results))?;
        }
        Ok(())
    }

    fn is_chosen(&self, cell: &Cell) -> bool {
        let name = cell.name();
        self.cells.is_empty() || self.cells.iter().any(|word| name.contains(word.as_str()))
    }
}

/// Results of one path and mode side by side, the median of each figure.
fn table(results: &[CellResult]) -> String {
    let mut text = format!(
        "{:<30}{:>5}{:>9}{:>8}{:>8}{:>7}{:>6}{:>6}\n{:<30}{:>5}{:>9}{:>8}{:>8}{:>7}{:>6}{:>6}\n",
        "path",
        "FEC",
        "goodput",
        "16 MiB",
        "known",
        "queue",
        "lost",
        "rep.",
        "",
        "",
        "Mbit/s",
        "Mbit/s",
        "Mbit/s",
        "p95 ms",
        "%",
        "%"
    );
    let mut done = Vec::new();
    for result in results {
        let key = (result.cell.name(), result.fec);
        if done.contains(&key) {
            continue;
        }
        let same: Vec<&CellResult> = results
            .iter()
            .filter(|other| (other.cell.name(), other.fec) == key)
            .collect();
        let median = |figure: fn(&CellResult) -> f64| {
            let mut figures: Vec<f64> = same.iter().map(|result| figure(result)).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        text += &format!(
            "{:<30}{:>5}{:>9.2}{:>8.2}{:>8.2}{:>7.1}{:>6.2}{:>6.2}\n",
            key.0,
            key.1,
            median(|result| result.goodput_mbit_s),
            median(|result| result.whole_transfer_mbit_s),
            median(|result| result.whole_transfer_remembered_mbit_s),
            median(|result| result.queueing_p95_ms),
            median(|result| result.lost_share * 100.0),
            median(|result| result.repair_share * 100.0),
        );
        done.push(key);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_its_name_chooses_a_path() {
        let bench = BenchSession {
            r#virtual: true,
            cells: vec!["policer".to_owned()],
            fec: vec![Mode::Auto],
            pairs: 1,
            seed: 1,
            json: false,
        };
        let chosen = all_cells()
            .iter()
            .filter(|cell| bench.is_chosen(cell))
            .count();
        assert_eq!(chosen, 1);
    }
}
