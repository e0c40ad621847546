//! The one binary: a file per subcommand, and nothing else.
//!
//! A subcommand is a clap struct in a file of its own with `run(self) -> anyhow::Result<()>`;
//! here stand only its name in [`Command`] and its line in [`Command::run`]. This crate alone
//! reads the environment (`TRUNKLINE_LOG`, in tracing's filter syntax) and prints.
//!
//! Exit codes: 0 done, 1 failed (the reason is on standard error), 2 misused (clap's).

mod bench;
mod bench_peers;
mod completions;
mod demo;
mod emulate;
mod lab;
mod man;
mod node;
mod peer;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Makes a long, slow or lossy network path feel like a LAN, and proves it.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version, about, propagate_version = true)]
struct Arguments {
    /// How the log on standard error is written.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows two sites over an emulated WAN, with and without Trunkline.
    Demo(demo::Demo),
    /// Builds the lab behind the demo, runs plans in it, and reports.
    Lab(lab::Lab),
    /// Prints a completion script for a shell.
    Completions(completions::Completions),
    /// Writes the manual pages.
    Man(man::Man),
    /// Runs a node, checks its configuration, asks a running one.
    Node(node::Node),
    /// Pairs two nodes with a one-time token, lists and removes pins.
    Peer(peer::Peer),
    /// Finds what a part of Trunkline can do on this machine.
    Bench(bench::Bench),
    /// Emulates a WAN link between two network devices.
    Emulate(emulate::Emulate),
}

impl Command {
    fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Demo(command) => command.run(),
            Command::Lab(command) => command.run(),
            Command::Completions(command) => command.run(),
            Command::Man(command) => command.run(),
            Command::Node(command) => command.run(),
            Command::Peer(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Emulate(command) => command.run(),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_log(arguments.log_format);
    match arguments.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // `{:#}` writes the whole chain of causes on one line.
            eprintln!("trunkline: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Sends the log to standard error, so that standard output holds results only.
fn start_log(format: LogFormat) {
    let filter =
        EnvFilter::try_from_env("TRUNKLINE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
