//! `trunkline lab`: a lab for experiments, and campaigns with their reports.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lab::campaign::{CampaignResults, LabLink};
use lab::cells::{
    self, CampaignOutcome, CellPlan, CellSelection, CellSizes, CellStatus, JOURNAL_FILE,
    PlannedCell, RunOptions, SimulationOptions,
};
use lab::report;
use serde_json::{Value, json};

use crate::bench_mapi;
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

/// Choice of a plan's cells and sizes.
#[derive(Debug, Args)]
struct CellChoice {
    /// Runs only the measurements whose names contain one of these words. If a word has several
    /// parts joined by +, such as `CIFS+T1+/A/`, the name of the measurement must contain all
    /// parts.
    #[arg(long, value_name = "WORD,...", value_delimiter = ',')]
    cells: Vec<String>,
    /// Transfers every document completely, even if the transfer takes a long time.
    #[arg(long, conflicts_with = "short")]
    document_sizes: bool,
    /// Gives a first result: measures each group of the plan once, only at the first and the middle
    /// one of its delays and at the middle one of its losses, without calibration. Each measurement transfers data
    /// only for 5 s and 20 round trips. With --cells, all measurements that the words name run.
    #[arg(long)]
    short: bool,
}

#[derive(Debug, Args)]
struct CheckArguments {
    /// Names the plan of the campaign, a TOML file such as scenarios/wx-2006.toml.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    #[command(flatten)]
    choice: CellChoice,
    /// Expects this number of light measurements at the same time [default: 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Prints the measurements of the plan as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct LabRunArguments {
    /// Names the plan of the campaign, a TOML file such as scenarios/wx-2006.toml.
    #[arg(value_name = "PLAN", required_unless_present_any = ["json", "csv"])]
    plan: Option<PathBuf>,
    #[command(flatten)]
    choice: CellChoice,
    /// Saves the results of the campaign in this directory [default: the plan's name with -run, or with
    /// -virtual].
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Simulates the measurements in virtual time. Hosts with scripts, two Trunkline engines and the
    /// link models run in one process. The simulation needs no root privileges, no real servers and
    /// no real clients. Two simulations with the same seed give the same results.
    #[arg(long)]
    r#virtual: bool,
    /// Runs this number of measurements at the same time [default: 4, with --virtual one for
    /// each processor]. In the real laboratory, only measurements that move at most 12 Mbit/s together
    /// run at the same time. All others would disturb each other, and run alone.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Compares the simulation with the real campaign in this directory [default: the plan's name with
    /// -run, if it contains a campaign].
    #[arg(long, value_name = "DIR", requires = "virtual")]
    real: Option<PathBuf>,
    #[command(flatten)]
    output: ReportOutput,
}

#[derive(Debug, Args)]
struct ReportArguments {
    /// Names the directory of an earlier campaign, or a directory that `trunkline demo --keep`
    /// wrote.
    #[arg(value_name = "DIR", required_unless_present_any = ["json", "csv"])]
    directory: Option<PathBuf>,
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
    /// Writes a CSV with a line for each cell to FILE. Without FILE, the command prints the CSV on standard
    /// output instead of the table. The columns are the keys of the cells in the JSON.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    csv: Option<PathBuf>,
    /// Writes the HTML report to this file. If FILE is -, the command writes the report to standard
    /// output [default: report.html in the directory of the results].
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl ReportOutput {
    /// The command's subject: a plan or a directory. The command line cannot tell `--json FILE` from `--json`
    /// before the subject, so a missing subject is what stands behind `--json` or `--csv`.
    fn subject(&mut self, named: Option<PathBuf>, what: &str) -> Result<PathBuf> {
        if let Some(subject) = named {
            return Ok(subject);
        }
        let standard_output = Path::new("-");
        let mut taken = [&mut self.json, &mut self.csv]
            .into_iter()
            .flatten()
            .filter(|path| path.as_path() != standard_output);
        let (Some(path), None) = (taken.next(), taken.next()) else {
            bail!("the command line names no {what}; write the {what} before --json or --csv");
        };
        Ok(std::mem::replace(path, standard_output.to_owned()))
    }

    /// Refuses two documents on standard output.
    fn check(&self) -> Result<()> {
        let standard_output = Some(Path::new("-"));
        let outputs = [&self.json, &self.csv, &self.report];
        let printed = outputs
            .into_iter()
            .filter(|output| output.as_deref() == standard_output);
        if printed.count() > 1 {
            bail!(
                "only one of --json, --csv and --report can use standard output; write file names \
                 behind the others"
            );
        }
        Ok(())
    }
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

impl CellChoice {
    fn sizes(&self, plan: &CellPlan) -> CellSizes {
        CellSizes::of(plan, self.document_sizes, self.short)
    }

    fn selection(&self) -> CellSelection {
        CellSelection {
            words: self.cells.clone(),
            is_short: self.short,
        }
    }

    /// Measurements of the real laboratory at the same time.
    fn lanes(jobs: Option<u16>) -> usize {
        jobs.map_or(cells::DEFAULT_JOBS, usize::from)
    }
}

impl CheckArguments {
    fn run(self) -> Result<()> {
        let (plan, _) = CellPlan::read(&self.plan)?;
        let sizes = self.choice.sizes(&plan);
        let selection = self.choice.selection();
        let all = cells::expand(&plan);
        let chosen: Vec<PlannedCell> = all
            .iter()
            .filter(|cell| selection.includes(cell))
            .cloned()
            .collect();
        let series = cells::series(&plan, &chosen, &all);
        let lanes = CellChoice::lanes(self.jobs);
        let expected = cells::expected_time(&plan, &series, sizes, &selection, lanes);
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
                    })
                })
                .collect();
            let document = json!({
                "title": plan.title,
                "cells": cells,
                "expected_s": expected.as_secs_f64().round(),
            });
            say!("{}", serde_json::to_string_pretty(&document)?);
            return Ok(());
        }
        for cell in &chosen {
            let size = match sizes.bytes(cell) {
                0 => "file set".to_owned(),
                bytes => vocab::ByteCount::new(bytes).to_string(),
            };
            say!(
                "{:<58} {size:>12}",
                format!("{}#{}", cell.name(), cell.repeat)
            );
        }
        say!(
            "{} cells; about {:.0} minutes",
            chosen.len(),
            (expected.as_secs_f64() / 60.0).ceil()
        );
        Ok(())
    }
}

impl LabRunArguments {
    fn run(mut self) -> Result<()> {
        host::kernel::catch_interruptions();
        let path = self.output.subject(self.plan.take(), "plan")?;
        self.output.check()?;
        let (plan, text) = CellPlan::read(&path)?;
        let of_plan = |ending: &str| {
            let name = path.file_stem().unwrap_or_default();
            PathBuf::from(format!("{}-{ending}", name.to_string_lossy()))
        };
        let directory = self.keep.clone().unwrap_or_else(|| match self.r#virtual {
            true => of_plan("virtual"),
            false => of_plan("run"),
        });
        let sizes = self.choice.sizes(&plan);
        let progress = progress();
        let result = if self.r#virtual {
            let is_campaign = |directory: &PathBuf| directory.join(JOURNAL_FILE).exists();
            let options = SimulationOptions {
                directory: directory.clone(),
                sizes,
                cells: self.choice.selection(),
                jobs: self.jobs.map_or_else(processors, usize::from),
                real: self
                    .real
                    .clone()
                    .or_else(|| Some(of_plan("run")).filter(is_campaign)),
            };
            cells::run_simulation(&plan, &text, &options, &progress)
        } else {
            let options = RunOptions {
                directory: directory.clone(),
                sizes,
                cells: self.choice.selection(),
                jobs: CellChoice::lanes(self.jobs),
                python: bench_smb::python().ok(),
                mail_python: bench_mapi::python().ok(),
                certificate: crate::emulate::calibrate::citation(),
            };
            cells::run(&environment()?, &plan, &text, &options, &progress)
        };
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
        match outcome.failed_cells() {
            0 => {}
            failed => bail!(
                "{failed} cells failed; the report names the failures, and the same command measures \
                 again what failed in the laboratory"
            ),
        }
        Ok(())
    }
}

impl ReportArguments {
    fn run(mut self) -> Result<()> {
        let directory = self.output.subject(self.directory.take(), "directory")?;
        self.output.check()?;
        if directory.join(JOURNAL_FILE).exists() {
            let outcome = CampaignOutcome::read(&directory)?;
            return write(&outcome, &directory, &self.output);
        }
        if self.output.csv.is_some() {
            bail!(
                "{} contains no campaign of `trunkline lab run`; --csv is for the cells of a campaign, and \
                 --json has the files of a demo",
                directory.display()
            );
        }
        let results = CampaignResults::read(&directory.join("results.json"))?;
        let output = OutputArguments {
            json: self.output.json,
            report: match self.output.report {
                Some(report) => report,
                None => directory.join("report.html"),
            },
            keep: None,
        };
        demo::write(&results, &demo::WebResults::default(), &output)
    }
}

/// Processors that this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Writes table, JSON, CSV and HTML of a campaign.
fn write(outcome: &CampaignOutcome, directory: &Path, output: &ReportOutput) -> Result<()> {
    let page_path = match &output.report {
        Some(path) => path.clone(),
        None => directory.join("report.html"),
    };
    let mut printed = write_or_return(&page_path, report::campaign_html(outcome)?)?;
    if let Some(path) = &output.json {
        let document = serde_json::to_string_pretty(&report::campaign_json(outcome))? + "\n";
        printed = printed.or(write_or_return(path, document)?);
    }
    if let Some(path) = &output.csv {
        printed = printed.or(write_or_return(path, report::campaign_csv(outcome))?);
    }
    if let Some(text) = printed {
        show!("{text}");
        return Ok(());
    }
    show!("{}", report::campaign_table(outcome));
    say!(
        "{} cells measured, {} failed, {} left, {} not simulated; {:.0} s in all",
        outcome.count(CellStatus::Measured),
        outcome.count(CellStatus::Failed),
        outcome.count(CellStatus::NotMeasured),
        outcome.count(CellStatus::NotSimulated),
        outcome.took_s()
    );
    say!("report: {}", page_path.display());
    say!("results: {}", directory.display());
    Ok(())
}

/// Writes a text to a file, or returns it if it goes to standard output.
fn write_or_return(path: &Path, text: String) -> Result<Option<String>> {
    if path == Path::new("-") {
        return Ok(Some(text));
    }
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct LabCommand {
        #[command(flatten)]
        lab: LabArguments,
    }

    fn parsed(words: &str) -> Result<(PathBuf, ReportOutput)> {
        let line = ["lab"].into_iter().chain(words.split(' '));
        Ok(match LabCommand::try_parse_from(line)?.lab.action {
            LabAction::Run(mut run) => {
                let plan = run.output.subject(run.plan.take(), "plan")?;
                run.output.check()?;
                (plan, run.output)
            }
            LabAction::Report(mut report) => {
                let directory = report
                    .output
                    .subject(report.directory.take(), "directory")?;
                report.output.check()?;
                (directory, report.output)
            }
            LabAction::Up(_) | LabAction::Check(_) => bail!("this test has run and report only"),
        })
    }

    #[test]
    fn json_option_leaves_the_subject() {
        let standard_output = Some(PathBuf::from("-"));
        for (words, json) in [
            ("run plan.toml", None),
            ("run --json plan.toml", standard_output.clone()),
            ("run plan.toml --json", standard_output.clone()),
            ("run --json out.json plan.toml", Some("out.json".into())),
            ("run plan.toml --json out.json", Some("out.json".into())),
            ("report --json plan.toml", standard_output.clone()),
            ("report plan.toml --json", standard_output),
        ] {
            let (subject, found) = parsed(words).expect(words);
            assert_eq!((subject, found.json), ("plan.toml".into(), json), "{words}");
        }
        for words in [
            "run",
            "run --json",
            "run --json -",
            "report --json",
            "report --csv",
            "report --json out.json --csv run",
        ] {
            assert!(parsed(words).is_err(), "{words}");
        }
    }

    #[test]
    fn csv_option_leaves_the_subject() {
        for (words, csv) in [
            ("report --csv run", "-"),
            ("report run --csv", "-"),
            ("report run --csv cells.csv", "cells.csv"),
            ("run --csv cells.csv run", "cells.csv"),
            ("report run --json out.json --csv", "-"),
        ] {
            let (subject, found) = parsed(words).expect(words);
            assert_eq!(
                (subject, found.csv),
                ("run".into(), Some(csv.into())),
                "{words}"
            );
        }
    }

    #[test]
    fn one_document_goes_to_standard_output() {
        for words in [
            "report run --json --csv",
            "report run --csv --report -",
            "run plan.toml --json --report -",
        ] {
            let problem = parsed(words).expect_err(words).to_string();
            assert!(problem.contains("only one of"), "{words}: {problem}");
        }
    }
}
