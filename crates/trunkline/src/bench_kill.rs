//! `trunkline bench reduction-kill`: checks the content of a dictionary after kill -9, at many
//! random points.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use bench::reduction::{self, KillPlan, KillReport};
use clap::Args;
use host::kernel;
use serde_json::{Value, json};

use crate::bench_reduction::process;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Kills a process that writes a dictionary at random points, and checks the files that it left.
///
/// The process decodes and stores random data, as a node does, and acknowledges the data that is in
/// its files. The benchmark kills the process with SIGKILL while the process opens its dictionary,
/// reads or writes. The benchmark then starts the process again with the same files, and the
/// process must find everything that it acknowledged. The test fails at the first byte that is
/// wrong or lost.
#[derive(Debug, Args)]
pub(crate) struct BenchKill {
    /// Sets how many times the benchmark kills the process that writes the dictionary.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    points: u32,
    /// Sets the seed of all random numbers. The seed determines the data and the moments of the
    /// kills, but not the timing of the killed process.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Creates the dictionaries in this directory during the test, and removes the dictionaries
    /// after the test.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Prints the results of the benchmark as one JSON object.
    #[arg(long)]
    json: bool,
}

impl BenchKill {
    /// Runs the test and prints.
    ///
    /// # Errors
    /// Fails when acknowledged data is lost or wrong, or the test cannot run.
    pub(crate) fn run(self) -> Result<()> {
        kernel::catch_interruptions();
        let program = std::env::current_exe().context("finding this program")?;
        let plan = KillPlan {
            points: self.points,
            seed: self.seed,
            directory: self.directory,
            process: Box::new(move |task, directory| process(&program, task, directory)),
        };
        let display = progress();
        let began = Instant::now();
        let report = reduction::kill(&plan, &display);
        display.finish();
        let (report, took_s) = (report?, began.elapsed().as_secs_f64());
        let mut out = StandardOutput::new();
        match self.json {
            true => writeln!(out, "{}", document(&report, took_s))?,
            false => write!(out, "{}", summary(&report, took_s))?,
        }
        Ok(())
    }
}

fn document(report: &KillReport, took_s: f64) -> Value {
    json!({ "bench": "reduction-kill", "figures": report, "took_s": took_s })
}

fn summary(report: &KillReport, took_s: f64) -> String {
    let KillReport {
        points,
        while_opening,
        while_reading,
        while_writing,
        dictionaries,
        acknowledged_bytes,
        found_bytes,
        lost_links,
        lost_references,
        open_median_s,
        open_longest_s,
    } = report;
    format!(
        "killed {points} times, {dictionaries} dictionaries\n\
         of these {while_opening} opening, {while_reading} reading, {while_writing} writing\n\
         acknowledged {acknowledged_bytes} bytes; found and compared {found_bytes}\n\
         lost: {lost_references} references, {lost_links} links between chunks; wrong: 0 bytes\n\
         start to ready: {:.1} ms in the median, {:.1} ms at most\n\
         took {took_s:.0} s\n",
        open_median_s * 1e3,
        open_longest_s * 1e3,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_fits_eighty_columns() {
        let report = KillReport {
            points: 100_000,
            while_opening: 25_000,
            while_reading: 25_000,
            while_writing: 50_000,
            dictionaries: 10_000,
            acknowledged_bytes: 1 << 40,
            found_bytes: 1 << 44,
            open_longest_s: 100.0,
            ..KillReport::default()
        };
        for line in summary(&report, 1e5).lines() {
            assert!(line.len() <= 80, "{line}");
        }
    }
}
