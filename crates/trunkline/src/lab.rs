//! `trunkline lab`: the lab behind the demo, for plans of one's own and for looking around.

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
    /// Builds both sites, servers, nodes and the link, and keeps them until Ctrl-C.
    Up(UpArguments),
    /// Runs a plan and reports.
    Run(LabRunArguments),
    /// Makes table, JSON and HTML again from what a run has kept.
    Report(ReportArguments),
}

#[derive(Debug, Args)]
struct UpArguments {
    /// The link, as for `trunkline demo`.
    #[arg(
        long,
        value_name = "LINK",
        default_value = "",
        hide_default_value = true
    )]
    link: LabLink,
    /// Leaves the nodes out.
    #[arg(long)]
    without_nodes: bool,
}

#[derive(Debug, Args)]
struct LabRunArguments {
    /// The plan (TOML), such as scenarios/waas-3g.toml.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// The seed of the files' contents and of the link [default: from the clock].
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
struct ReportArguments {
    /// A directory that `--keep` has left.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    output: OutputArguments,
}

impl LabArguments {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// When it fails; the message says what to do.
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            LabAction::Up(up) => up.run(),
            LabAction::Run(run) => {
                let plan = CampaignPlan::read(&run.plan)?;
                demo::measure(&plan, run.seed, &run.output)
            }
            LabAction::Report(report) => {
                let results = CampaignResults::read(&report.directory.join("results.json"))?;
                demo::write(&results, &report.output)
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
