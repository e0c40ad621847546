//! `trunkline lab`: the lab behind the demo, for plans of one's own and for looking around.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use host::Environment;
use host::progress::Progress;
use host::rootless::{INSIDE_VARIABLE, Inside};
use indicatif::{ProgressBar, ProgressStyle};
use lab::campaign::{Link, Plan, Results};

use crate::demo::{self, Output};

/// Builds the lab, runs plans in it, and reports.
#[derive(Debug, Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Builds both sites, servers, nodes and the link, and keeps them until Ctrl-C.
    Up(Up),
    /// Runs a plan and reports.
    Run(Run),
    /// Makes table, JSON and HTML again from what a run has kept.
    Report(Report),
}

#[derive(Debug, Args)]
struct Up {
    /// The link, as for `trunkline demo`.
    #[arg(
        long,
        value_name = "LINK",
        default_value = "",
        hide_default_value = true
    )]
    link: Link,
    /// Leaves the nodes out.
    #[arg(long)]
    without_nodes: bool,
}

#[derive(Debug, Args)]
struct Run {
    /// The plan (TOML), such as scenarios/waas-3g.toml.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// The seed of the files' contents and of the link [default: from the clock].
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Report {
    /// A directory that `--keep` has left.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Lab {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// When it fails; the message says what to do.
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            Action::Up(up) => up.run(),
            Action::Run(run) => {
                let plan = Plan::read(&run.plan)?;
                demo::measure(&plan, run.seed, &run.output)
            }
            Action::Report(report) => {
                let results = Results::read(&report.directory.join("results.json"))?;
                demo::write(&results, &report.output)
            }
        }
    }
}

impl Up {
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

/// What the lab needs to know of this process.
pub(crate) fn environment() -> Result<Environment> {
    Ok(Environment {
        program: std::env::current_exe().context("finding this program")?,
        arguments: std::env::args_os().skip(1).collect(),
        user_namespace: match std::env::var_os(INSIDE_VARIABLE) {
            Some(_) => Inside::Yes,
            None => Inside::No,
        },
    })
}

/// A bar where somebody watches, plain lines on standard error where nobody does.
pub(crate) fn progress() -> Display {
    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(1000);
        let style = ProgressStyle::with_template("{elapsed_precise} [{bar:24}] {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(std::time::Duration::from_millis(250));
        bar
    });
    Display {
        bar,
        began: Instant::now(),
        last: RefCell::default(),
    }
}

/// Shows the lab's progress.
pub(crate) struct Display {
    bar: Option<ProgressBar>,
    began: Instant,
    last: RefCell<String>,
}

impl Display {
    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Display {
    fn step(&self, done: f64, text: &str) {
        let text = &vocab::printable(text);
        match &self.bar {
            Some(bar) => {
                bar.set_position((done * 1000.0) as u64);
                bar.set_message(text.clone());
            }
            None if *self.last.borrow() != *text => {
                remark!("{:6.1} s  {text}", self.began.elapsed().as_secs_f64());
                text.clone_into(&mut self.last.borrow_mut());
            }
            None => {}
        }
    }

    fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => remark!("{text}"),
        }
    }
}
