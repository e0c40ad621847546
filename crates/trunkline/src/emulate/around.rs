//! `trunkline emulate run … -- COMMAND`: runs one command behind the link.
//!
//! Standard output belongs to the command alone. So does the exit code, except for four: 2 a
//! setting was refused, 125 the link failed, 126 the command could not be started, 127 it was not
//! found; the last three as with env(1) and timeout(1). The link's counters are printed on standard
//! error, and only on request.

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

/// Options of the command that runs behind the link.
#[derive(Debug, Args)]
#[command(next_help_heading = "Running one command behind the link")]
pub(super) struct CommandArguments {
    /// Selects how the command behind the emulated link reaches the network of this host [default:
    /// auto].
    #[arg(long, value_enum, requires = "command")]
    gateway: Option<GatewayOption>,
    /// Prints the counters of the emulated link on standard error after the command behind the link
    /// has ended. With --json, Trunkline prints the counters as JSON.
    #[arg(long, requires = "command")]
    report: bool,
    /// Writes the counters of the emulated link to this file, and not to standard error.
    #[arg(long, value_name = "FILE", requires = "command")]
    report_to: Option<PathBuf>,
    /// Runs this command behind the emulated link, as the user who runs Trunkline, in the present
    /// directory and in the present terminal.
    ///
    /// The command sends in the direction `forward` (A to B), and receives in the direction `back`.
    /// The command runs in its own network namespace, whose default route leads through the link to
    /// the network of this host. Over IPv4, the command reaches the host's own services at the
    /// gateway's address, including services that listen on the host's loopback address and on no
    /// other address. The gateway's address is 198.19.0.1, or another address if this address is in
    /// use; `ip route` shows the address. Packets have at most 1500 bytes. With root privileges,
    /// NAT in this host's network connects the emulated link to the network. Without root, a
    /// gateway program must be installed: pasta (package passt) or slirp4netns.
    ///
    /// If the command was run, the exit code of Trunkline is the exit code of the command, or 128
    /// plus the number of the signal that ended the command. The exit code is 2 if an option or a
    /// setting is invalid, 125 if the emulated link failed, 126 if the command could not be
    /// started, and 127 if the command was not found. Trunkline forwards the signals INT, TERM,
    /// HUP, QUIT, USR1 and USR2 to the command. Processes that the command started end when the
    /// command ends.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = NOT_WITH_COMMAND)]
    command: Vec<OsString>,
}

/// Options that a link around a command does not take, because it has its own devices.
const NOT_WITH_COMMAND: [&str; 6] = [
    "device_a",
    "device_b",
    "namespace_a",
    "namespace_b",
    "bridge",
    "io",
];

/// Connection to the host's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GatewayOption {
    /// Uses NAT if Trunkline runs as root, otherwise a gateway program.
    Auto,
    /// Uses NAT of this host's kernel: adds a table of rules and switches forwarding on, and undoes
    /// both at the end.
    Nat,
    /// Uses a gateway program (pasta or slirp4netns), which changes nothing in this host's network.
    User,
}

impl CommandArguments {
    /// Tells whether an option of the command was given.
    pub(super) fn has_options(&self) -> bool {
        self.gateway.is_some() || self.report || self.report_to.is_some()
    }

    /// Tells whether a command was given.
    pub(super) fn is_given(&self) -> bool {
        !self.command.is_empty()
    }

    /// Makes the link, runs the command behind it, and ends this process with the command's exit
    /// code. It must be called before any thread starts.
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

    /// Runs the link and the command; everything that was made is removed when it returns.
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
            remark!("trunkline: warning: the link's counters could not be written: {error:#}");
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
                remark!("trunkline: {name} was ended, because its link failed");
                FAILED
            }
        }
    }

    /// Opens the destination of the link's counters. A file is opened before the command runs, so
    /// that a long run does not end with an unwritable file.
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

/// Destination of the link's counters.
enum ReportTarget {
    Unwanted,
    StandardError,
    /// File for the report; its old content stays until there is something to write.
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

/// Tells whether everything that the command sent has left the link, or this cannot be known.
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

/// Exit code when the link failed, not the command.
const FAILED: u8 = 125;
const NOT_STARTED: u8 = 126;
const NOT_FOUND: u8 = 127;
