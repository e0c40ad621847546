//! `trunkline lab`: the lab of the demo, for own plans and experiments.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use lab::campaign::{CampaignPlan, CampaignResults, LabLink};

use crate::demo::{self, OutputArguments};
use crate::environment::environment;
use crate::progress::progress;

/// Builds the lab, runs plans in it, and reports.
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
    /// Runs a plan and reports the results.
    Run(LabRunArguments),
    /// Creates the table, the JSON and the HTML report again, from the stored results of an earlier
    /// run.
    Report(ReportArguments),
}

#[derive(Debug, Args)]
struct UpArguments {
    /// Changes settings of the link, as in `trunkline demo`.
    #[arg(
        long,
        value_name = "LINK",
        default_value = "",
        hide_default_value = true
    )]
    link: LabLink,
    /// Builds the lab without nodes.
    #[arg(long)]
    without_nodes: bool,
}

#[derive(Debug, Args)]
struct LabRunArguments {
    /// Names the plan, a TOML file such as scenarios/waas-3g.toml.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// Sets the seed of the files' contents and of the link [default: a seed from the clock].
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
struct ReportArguments {
    /// Names the directory that an earlier run wrote with `--keep`.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    output: OutputArguments,
}

impl LabArguments {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// Fails when the action fails; the message says what to do.
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            LabAction::Up(up) => up.run(),
            LabAction::Run(run) => {
                let plan = CampaignPlan::read(&run.plan)?;
                demo::measure(&plan, run.seed, None, &run.output)
            }
            LabAction::Report(report) => {
                let results = CampaignResults::read(&report.directory.join("results.json"))?;
                demo::write(&results, None, &report.output)
            }
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
