//! The one binary: a file per subcommand, and nothing else.
//!
//! A subcommand is a clap struct in a file of its own with `run(self) -> anyhow::Result<()>`;
//! here stand only its name in [`ProgramCommand`] and its line in [`ProgramCommand::run`]. This crate alone
//! reads the environment (`TRUNKLINE_LOG`, in tracing's filter syntax) and prints.
//!
//! Exit codes of all commands: 0 success, 1 failure, 2 a refused request (a flag, a setting, more
//! than the host holds), of which nothing was begun; the reason is on standard error. Around one
//! command, `emulate run -- COMMAND` has 125 in place of 1.

// They panic when the reader of a pipe has gone; `say!`, `show!` and `remark!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

mod bench;
mod bench_diagnosis;
mod bench_http;
mod bench_kill;
mod bench_mapi;
mod bench_peers;
mod bench_profile;
mod bench_reduction;
mod bench_session;
mod bench_smb;
mod bench_turn_up;
mod completions;
mod demo;
mod demo_download;
mod demo_page;
mod emulate;
mod environment;
mod estimate;
mod http;
mod http_status;
mod installed_python;
mod lab;
mod man;
mod measure;
mod measure_arguments;
mod measure_diagnose;
mod measure_key;
mod measure_steps;
mod node;
mod page_file;
mod peer;
mod profile;
mod progress;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use ::emulator::link::InvalidRequest;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Accelerates applications over long, slow or lossy network paths, and measures the effect.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version, about, propagate_version = true)]
struct ProgramArguments {
    /// Sets the format of the log that Trunkline writes to standard error.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: ProgramCommand,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Writes text that people can read.
    Text,
    /// Writes one JSON object per line.
    Json,
}

#[derive(Debug, Subcommand)]
enum ProgramCommand {
    /// Compares two sites over an emulated WAN, with and without Trunkline.
    Demo(demo::DemoArguments),
    /// Builds the test network of the demo, runs plans in it, and reports the results.
    Lab(lab::LabArguments),
    /// Prints a completion script for a shell.
    Completions(completions::CompletionsArguments),
    /// Writes the manual pages.
    Man(man::ManArguments),
    /// Runs a node, checks its configuration, or queries a running node.
    Node(node::NodeArguments),
    /// Creates the certificate authority that interception of HTTPS needs.
    Http(http::HttpArguments),
    /// Pairs two nodes with a one-time token, and lists or removes paired nodes.
    Peer(peer::PeerArguments),
    // Its own text says more.
    Estimate(estimate::EstimateArguments),
    /// Measures the performance of one part of Trunkline on this machine.
    Bench(bench::BenchArguments),
    /// Emulates a WAN link between two network devices.
    Emulate(emulate::EmulateArguments),
    /// Measures a circuit by RFC 6349, between its two ends.
    Measure(measure::MeasureArguments),
    /// Measures a network device as a black box.
    Profile(profile::ProfileArguments),
}

impl ProgramCommand {
    fn run(self) -> anyhow::Result<()> {
        match self {
            ProgramCommand::Demo(command) => command.run(),
            ProgramCommand::Lab(command) => command.run(),
            ProgramCommand::Completions(command) => command.run(),
            ProgramCommand::Man(command) => command.run(),
            ProgramCommand::Node(command) => command.run(),
            ProgramCommand::Http(command) => command.run(),
            ProgramCommand::Peer(command) => command.run(),
            ProgramCommand::Estimate(command) => command.run(),
            ProgramCommand::Bench(command) => command.run(),
            ProgramCommand::Emulate(command) => command.run(),
            ProgramCommand::Measure(command) => command.run(),
            ProgramCommand::Profile(command) => command.run(),
        }
    }
}

fn main() -> ExitCode {
    let words = with_negative_values(std::env::args_os());
    let arguments = ProgramArguments::try_parse_from(&words)
        .unwrap_or_else(|error| with_unit_hint(error, &words).exit());
    start_log(arguments.log_format);
    match arguments.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // `{:#}` writes the whole chain of causes on one line.
            remark!("trunkline: {error:#}");
            ExitCode::from(failure_code(&error, FAILED))
        }
    }
}

const FAILED: u8 = 1;
/// Exit code of clap for arguments that it refuses.
const REFUSED: u8 = 2;

/// Exit code of an error; a refused request has the same code wherever it was detected.
fn failure_code(error: &anyhow::Error, failed: u8) -> u8 {
    if InvalidRequest::is_cause_of(error) {
        REFUSED
    } else {
        failed
    }
}

/// Joins `--delay -5ms` to `--delay=-5ms`, so that the setting's own parser reports the error; no
/// flag of this program begins with a digit. Words after `--` belong to a command.
fn with_negative_values(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    let mut is_ours = true;
    for argument in arguments {
        is_ours = is_ours && argument != "--";
        let bytes = argument.as_encoded_bytes();
        let is_negative = matches!(bytes, [b'-', b'0'..=b'9' | b'.', ..]);
        match joined.last_mut() {
            Some(flag) if is_ours && is_negative && flag.as_encoded_bytes().starts_with(b"--") => {
                flag.push("=");
                flag.push(argument);
            }
            _ => joined.push(argument),
        }
    }
    joined
}

/// Adds an explanation to the error for `--delay 15 ms`, for which clap only reports that it does
/// not know `ms`.
fn with_unit_hint(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(unit)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let hint = words.windows(3).find_map(|three| {
        let [flag, number, last] = [&three[0], &three[1], &three[2]].map(|word| word.to_str());
        let (flag, number) = (flag?, number?);
        let is_split =
            last == Some(unit) && flag.starts_with("--") && number.parse::<f64>().is_ok();
        is_split
            .then(|| format!("write a number and its unit without a space: {flag} {number}{unit}"))
    });
    if let Some(hint) = hint.filter(|_| error.kind() == ErrorKind::UnknownArgument) {
        let hint = ContextValue::StyledStrs(vec![hint.into()]);
        error.insert(ContextKind::Suggested, hint);
    }
    error
}

/// Sends the log to standard error, so that standard output has results only.
fn start_log(format: LogFormat) {
    let filter =
        EnvFilter::try_from_env("TRUNKLINE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // Where nobody reads the log, nobody reads a complaint about it either.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_value_joins_its_flag_except_in_commands() {
        let joined = |line: &str| {
            let joined = with_negative_values(line.split(' ').map(OsString::from));
            let joined: Vec<&str> = joined.iter().filter_map(|one| one.to_str()).collect();
            joined.join(" ")
        };
        assert_eq!(joined("run --delay -5ms"), "run --delay=-5ms");
        assert_eq!(joined("run -5 --rate --delay"), "run -5 --rate --delay");
        assert_eq!(
            joined("run --delay 5ms -- kill --signal -9"),
            "run --delay 5ms -- kill --signal -9"
        );
    }
}
