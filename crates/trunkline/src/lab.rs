//! `trunkline lab`: a lab for experiments, and campaigns with their reports.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lab::campaign::{CampaignResults, LabLink};
use lab::cells::{
    self, CampaignOutcome, CellPlan, CellSizes, CellStatus, JOURNAL_FILE, PlannedCell, RunOptions,
    SeriesEstimate,
};
use lab::report;
use serde_json::{Value, json};

use crate::bench_smb;
use crate::demo::{self, OutputArguments};
use crate::environment::environment;
use crate::progress::progress;

/// Builds the lab, runs campaigns in it, and reports the results.
#[derive(Debug, Args)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    action: LabAction,
}

#[derive(Debug, Subcommand)]
enum LabAction {
    /// Builds both sites with their servers, nodes and the link, and keeps everything until you
    /// press Ctrl-C.
    Up(UpArguments),
    /// Checks a plan and prints its cells and the expected time.
    Check(CheckArguments),
    /// Runs a plan and reports the results. The same command continues an interrupted campaign.
    Run(LabRunArguments),
    /// Creates the table, the JSON and the HTML report again, from the directory of an earlier run.
    Report(ReportArguments),
}

#[derive(Debug, Args)]
struct UpArguments {
    /// Changes settings of the emulated link, as in `trunkline demo`.
    #[arg(
        long,
        value_name = "LINK",
        default_value = "",
        hide_default_value = true
    )]
    link: LabLink,
    /// Builds the laboratory without Trunkline nodes.
    #[arg(long)]
    without_nodes: bool,
}

/// Plan, and the choice of its cells and sizes.
#[derive(Debug, Args)]
struct PlanArguments {
    /// Names the plan of the campaign, a TOML file such as scenarios/wx-2006.toml.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// Runs only the measurements whose names contain one of these words. If a word has several
    /// parts, as `CIFS+T1+/A/`, the name must contain all parts.
    #[arg(long, value_name = "WORD,...", value_delimiter = ',')]
    cells: Vec<String>,
    /// Transfers every document completely, even if the transfer takes a long time.
    #[arg(long, conflicts_with = "short")]
    document_sizes: bool,
    /// Transfers data only for 5 s and 20 round trips in each measurement.
    #[arg(long)]
    short: bool,
}

#[derive(Debug, Args)]
struct CheckArguments {
    #[command(flatten)]
    plan: PlanArguments,
    /// Prints the measurements of the plan as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct LabRunArguments {
    #[command(flatten)]
    plan: PlanArguments,
    /// Saves the results of the campaign in this directory [default: the plan's name with -run].
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    output: ReportOutput,
}

#[derive(Debug, Args)]
struct ReportArguments {
    /// Names the directory of an earlier campaign, or a directory that `trunkline demo --keep`
    /// wrote.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    output: ReportOutput,
}

/// Destinations of a report.
#[derive(Debug, Args)]
struct ReportOutput {
    /// Writes the results as JSON to FILE. Without FILE, the command prints the results as JSON on
    /// standard output instead of the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Writes the HTML report to this file. The name - means standard output [default: report.html
    /// in the directory of the results].
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl LabArguments {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// Fails when the action fails; the message says what to do.
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            LabAction::Up(up) => up.run(),
            LabAction::Check(check) => check.run(),
            LabAction::Run(run) => run.run(),
            LabAction::Report(report) => report.run(),
        }
    }
}

impl UpArguments {
    fn run(self) -> Result<()> {
        host::kernel::catch_interruptions();
        let progress = progress();
        let with = match self.without_nodes {
            true => lab::site::WithNodes::No,
            false => lab::site::WithNodes::Yes,
        };
        let site = lab::site::Lab::up(&environment()?, &self.link, with, &progress)?;
        progress.finish();
        say!("{}", site.directions());
        say!("Ctrl-C ends the lab and removes everything.");
        site.wait()
    }
}

impl PlanArguments {
    fn sizes(&self, plan: &CellPlan) -> CellSizes {
        CellSizes::of(plan, self.document_sizes, self.short)
    }

    fn is_chosen(&self, cell: &PlannedCell) -> bool {
        self.cells.is_empty() || self.cells.iter().any(|word| cell.is_chosen_by(word))
    }
}

impl CheckArguments {
    fn run(self) -> Result<()> {
        let (plan, _) = CellPlan::read(&self.plan.plan)?;
        let sizes = self.plan.sizes(&plan);
        let all = cells::expand(&plan);
        let chosen: Vec<PlannedCell> = all
            .iter()
            .filter(|cell| self.plan.is_chosen(cell))
            .cloned()
            .collect();
        let series = cells::series(&plan, &chosen, &all);
        let expected: Duration = series
            .iter()
            .map(|series| SeriesEstimate::of(&plan, series, sizes).0)
            .sum();
        let not_built = chosen.iter().filter(|cell| !cell.is_built()).count();
        if self.json {
            let cells: Vec<Value> = chosen
                .iter()
                .map(|cell| {
                    json!({
                        "cell": cell.name(),
                        "repeat": cell.repeat,
                        "seed": cell.seed,
                        "link": cell.settings.to_string(),
                        "workload": cell.workload.name(),
                        "bytes": sizes.bytes(cell),
                        "is_built": cell.is_built(),
                    })
                })
                .collect();
            let document = json!({
                "title": plan.title,
                "cells": cells,
                "expected_s": expected.as_secs_f64().round(),
                "not_built": not_built,
            });
            say!("{}", serde_json::to_string_pretty(&document)?);
            return Ok(());
        }
        for cell in &chosen {
            let size = match (cell.is_built(), sizes.bytes(cell)) {
                (false, _) => "not built".to_owned(),
                (true, 0) => "file set".to_owned(),
                (true, bytes) => vocab::ByteCount::new(bytes).to_string(),
            };
            say!(
                "{:<58} {size:>12}",
                format!("{}#{}", cell.name(), cell.repeat)
            );
        }
        say!(
            "{} cells, {not_built} of them not built; about {:.0} minutes",
            chosen.len(),
            (expected.as_secs_f64() / 60.0).ceil()
        );
        Ok(())
    }
}

impl LabRunArguments {
    fn run(self) -> Result<()> {
        host::kernel::catch_interruptions();
        let (plan, text) = CellPlan::read(&self.plan.plan)?;
        let directory = match &self.keep {
            Some(directory) => directory.clone(),
            None => {
                let name = self.plan.plan.file_stem().unwrap_or_default();
                PathBuf::from(format!("{}-run", name.to_string_lossy()))
            }
        };
        let options = RunOptions {
            directory: directory.clone(),
            sizes: self.plan.sizes(&plan),
            cells: self.plan.cells.clone(),
            python: bench_smb::python().ok(),
            certificate: crate::emulate::calibrate::citation(),
        };
        let progress = progress();
        let result = cells::run(&environment()?, &plan, &text, &options, &progress);
        progress.finish();
        let outcome = match result {
            Ok(journal) => CampaignOutcome::of(journal)?,
            Err(error) if host::kernel::interrupted() => {
                return Err(error.context(format!(
                    "ended; the same command continues the campaign in {}",
                    directory.display()
                )));
            }
            Err(error) => return Err(error),
        };
        outcome.write_tables(&directory)?;
        write(&outcome, &directory, &self.output)?;
        let faults = outcome.faults();
        if !faults.is_empty() {
            bail!("{} transfers were not identical", faults.len());
        }
        Ok(())
    }
}

impl ReportArguments {
    fn run(self) -> Result<()> {
        if self.directory.join(JOURNAL_FILE).exists() {
            let outcome = CampaignOutcome::read(&self.directory)?;
            return write(&outcome, &self.directory, &self.output);
        }
        let results = CampaignResults::read(&self.directory.join("results.json"))?;
        let output = OutputArguments {
            json: self.output.json,
            report: match self.output.report {
                Some(report) => report,
                None => self.directory.join("report.html"),
            },
            keep: None,
        };
        demo::write(&results, None, &output)
    }
}

/// Writes table, JSON and HTML of a campaign.
fn write(outcome: &CampaignOutcome, directory: &Path, output: &ReportOutput) -> Result<()> {
    let standard_output = Path::new("-");
    let page = report::campaign_html(outcome)?;
    let page_path = match &output.report {
        Some(path) => path.clone(),
        None => directory.join("report.html"),
    };
    if page_path == standard_output {
        show!("{page}");
        return Ok(());
    }
    fs::write(&page_path, page).with_context(|| format!("writing {}", page_path.display()))?;
    if let Some(path) = &output.json {
        let document = serde_json::to_string_pretty(&report::campaign_json(outcome))?;
        if path == standard_output {
            say!("{document}");
            return Ok(());
        }
        fs::write(path, document).with_context(|| format!("writing {}", path.display()))?;
    }
    show!("{}", report::campaign_table(outcome));
    say!(
        "{} cells measured, {} failed, {} left, {} not built; {:.0} s in all",
        outcome.count(CellStatus::Measured),
        outcome.count(CellStatus::Failed),
        outcome.count(CellStatus::NotMeasured),
        outcome.count(CellStatus::NotBuilt),
        outcome.took_s()
    );
    say!("report: {}", page_path.display());
    say!("results: {}", directory.display());
    Ok(())
}
