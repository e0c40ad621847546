//! `trunkline emulate run … -- COMMAND`: the link around one command.
//!
//! What is written on standard output is the command's alone, and so is the exit code, but for four:
//! 2 what was asked for was refused, 125 the link failed, 126 and 127 the command could not be
//! started or was not found, the last three as with env(1) and timeout(1). What the link counted is printed on standard error, and only when asked for.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use emulator::around::{CommandNetwork, CommandOutcome};
use emulator::link::control::{ControlledLink, UnprovenRate};
use emulator::link::settings::LinkSettings;
use emulator::link::{LinkDevices, LinkReport, OffloadSetting};

use super::account;
use super::run::{RunningLink, SettingsAnnouncement, WatchArguments, warn};

/// What concerns the command that is put behind the link.
#[derive(Debug, Args)]
#[command(next_help_heading = "A link around one command")]
pub(super) struct CommandArguments {
    /// How the command's packets get from the link into the host's network [default: auto].
    #[arg(long, value_enum, requires = "command")]
    gateway: Option<GatewayOption>,
    /// Prints on standard error what the link counted, once the command has ended; so does
    /// --json, as JSON.
    #[arg(long, requires = "command")]
    report: bool,
    /// Writes what the link counted to this file, and not to standard error.
    #[arg(long, value_name = "FILE", requires = "command")]
    report_to: Option<PathBuf>,
    /// Runs this command behind the link, as the same user, in the same directory and terminal.
    ///
    /// Forward (A to B) is what the command sends, back is what it receives. The command is in a
    /// network namespace of its own, whose default route leads through the link to the network of
    /// this host; the gateway's address (198.19.0.1 unless that is taken: `ip route`) reaches the
    /// host's own services over IPv4, also those that listen on its loopback only. Packets are of
    /// 1500 bytes at most. As root the way on is NAT in this host's network; without root a
    /// gateway program must be installed (pasta, of the package passt, or slirp4netns).
    ///
    /// The exit code is the command's (128 and the signal's number if one ended it); 2 if a flag or
    /// a setting was refused, 125 if the link failed, 126 if the command could not be started, 127
    /// if it was not found. INT, TERM,
    /// HUP, QUIT, USR1 and USR2 are passed on to it. What it started ends when it ends.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = NOT_WITH_COMMAND)]
    command: Vec<OsString>,
}

/// The devices of a link around a command are its own.
const NOT_WITH_COMMAND: [&str; 6] = [
    "device_a",
    "device_b",
    "namespace_a",
    "namespace_b",
    "bridge",
    "io",
];

/// The way into the host's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GatewayOption {
    /// NAT as root, else a program.
    Auto,
    /// NAT by this host's kernel: rules in a table of their own, forwarding switched on; both are
    /// taken back in the end.
    Nat,
    /// A program, pasta or slirp4netns: nothing of this host's network is changed.
    User,
}

impl CommandArguments {
    /// Whether anything is said of the command beside the command.
    pub(super) fn has_options(&self) -> bool {
        self.gateway.is_some() || self.report || self.report_to.is_some()
    }

    /// Whether there is a command at all.
    pub(super) fn is_given(&self) -> bool {
        !self.command.is_empty()
    }

    /// Makes the link, runs the command behind it, and ends this process with its exit code. To
    /// be called before any thread starts.
    pub(super) fn run(
        self,
        settings: Result<LinkSettings>,
        unheld: UnprovenRate,
        watched: &WatchArguments,
        offloads: OffloadSetting,
        json: bool,
    ) -> ! {
        let code = self
            .run_to_end(settings, unheld, watched, offloads, json)
            .unwrap_or_else(|error| {
                remark!("trunkline: {error:#}");
                crate::failure_code(&error, FAILED)
            });
        process::exit(code.into())
    }

    /// All that was made has been removed when it returns.
    fn run_to_end(
        self,
        settings: Result<LinkSettings>,
        unheld: UnprovenRate,
        watched: &WatchArguments,
        offloads: OffloadSetting,
        json: bool,
    ) -> Result<u8> {
        let settings = settings?;
        let account = self.account(json)?;
        let gateway = match self.gateway {
            None | Some(GatewayOption::Auto) => emulator::around::GatewayChoice::Automatic,
            Some(GatewayOption::Nat) => emulator::around::GatewayChoice::Nat,
            Some(GatewayOption::User) => emulator::around::GatewayChoice::User,
        };
        let mut around = CommandNetwork::prepare(gateway, std::env::var_os("PATH").as_ref())?;
        let (a, b) = around.devices();
        let ends = [a.device.clone(), b.device.clone()];
        let devices = LinkDevices::Tun { a, b, offloads };
        let running = RunningLink::start(
            devices,
            ends,
            settings,
            unheld,
            watched,
            SettingsAnnouncement::No,
        )?;
        around.connect()?;
        if let Some(obstacles) = around.obstacles() {
            remark!("trunkline: warning: {obstacles}");
        }
        let ended = around.run(&self.command, || running.link.is_running())?;
        if let CommandOutcome::Code(code) = ended
            // What a signal has ended has no last words.
            && code < 128
        {
            around.drain(|| holds_nothing(&running.link));
        }
        let code = self.exit_code(ended);
        let (report, log) = running.stop()?;
        // The command's exit code says what the command did, whoever reads the account of its link.
        if let Err(error) = account.write(&report, json) {
            remark!("trunkline: warning: the link's account is not written: {error:#}");
        }
        warn(&report, &log);
        Ok(code)
    }

    fn exit_code(&self, ended: CommandOutcome) -> u8 {
        let name = self.command[0].to_string_lossy();
        match ended {
            CommandOutcome::Code(code) => code,
            CommandOutcome::NotStarted(error) => {
                remark!("trunkline: cannot run {name}: {error}");
                match error.kind() {
                    ErrorKind::NotFound => NOT_FOUND,
                    _ => NOT_STARTED,
                }
            }
            CommandOutcome::WithoutLink => {
                remark!("trunkline: {name} was ended because its link failed");
                FAILED
            }
        }
    }

    /// Where what the link counted is to go. A file is opened before the command is run, which may
    /// take long to be run in vain.
    fn account(&self, json: bool) -> Result<ReportTarget> {
        match &self.report_to {
            Some(path) => {
                let about = || format!("cannot write {}", path.display());
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(path)
                    .with_context(about)?;
                Ok(ReportTarget::File(file, path.clone()))
            }
            None if self.report || json => Ok(ReportTarget::StandardError),
            None => Ok(ReportTarget::Unwanted),
        }
    }
}

/// Where what the link counted goes.
enum ReportTarget {
    Unwanted,
    StandardError,
    /// What it held before stays until there is something to write.
    File(File, PathBuf),
}

impl ReportTarget {
    fn write(self, report: &LinkReport, json: bool) -> Result<()> {
        match self {
            ReportTarget::Unwanted => Ok(()),
            ReportTarget::StandardError => print(io::stderr(), report, json),
            ReportTarget::File(file, path) => {
                // A pipe or a device has nothing that would have to go.
                if file.metadata().is_ok_and(|file| file.is_file()) {
                    file.set_len(0)
                        .with_context(|| path.display().to_string())?;
                }
                print(file, report, json).with_context(|| path.display().to_string())
            }
        }
    }
}

/// Whether all that the command sent has left the link, or nobody can tell.
fn holds_nothing(link: &ControlledLink) -> bool {
    let held = link
        .status()
        .ok()
        .and_then(|status| status["forward"]["held_packets"].as_u64());
    held.unwrap_or(0) == 0
}

fn print(mut out: impl Write, report: &LinkReport, json: bool) -> Result<()> {
    if json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        let report = serde_json::to_value(report)?;
        account::print(&mut out, ("command", "world"), &report)?;
    }
    Ok(())
}

/// The link failed, not the command.
const FAILED: u8 = 125;
const NOT_STARTED: u8 = 126;
const NOT_FOUND: u8 = 127;
