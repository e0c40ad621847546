//! `trunkline emulate status`: shows the state of a running link.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use emulator::link::control::{self, ControlRequest, FoundLinks};
use emulator::link::metrics;
use emulator::link::settings::SettingKey;
use serde_json::Value;

use super::account;
use super::device;
use super::run::control_directories;
use crate::output::StandardOutput;

/// Selection of the link.
#[derive(Debug, Args)]
pub(super) struct LinkSelection {
    /// Selects the emulated link with this name [default: the running link, if only one is
    /// running]. The name of a link is the name of its device A. If two running links have the same
    /// device name, the name of the second link also contains its process id.
    #[arg(long, value_name = "NAME", conflicts_with = "control")]
    name: Option<String>,
    /// Selects the emulated link whose control socket has this path.
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// Arguments of `trunkline emulate status`.
#[derive(Debug, Args)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    which: LinkSelection,
    /// Prints the status of the emulated link as JSON.
    #[arg(long)]
    json: bool,
    /// Prints the status of the emulated link as Prometheus metrics.
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Prints the status of the emulated link every second, until the link ends.
    #[arg(long)]
    watch: bool,
}

/// Interval of `--watch`.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl LinkSelection {
    /// The socket of the link.
    pub(super) fn socket(&self) -> Result<PathBuf> {
        if let Some(control) = &self.control {
            return Ok(control.clone());
        }
        let FoundLinks { running, killed } = control::look_for_links(&control_directories());
        for name in &killed {
            remark!(
                "the process of the link {name} was killed; no process listens at its control socket any more"
            );
        }
        let names = || {
            let names: Vec<&str> = running.iter().map(|(name, _)| name.as_str()).collect();
            names.join(", ")
        };
        if let Some(name) = &self.name {
            return match running.iter().find(|(other, _)| other == name) {
                Some((_, path)) => Ok(path.clone()),
                None if running.is_empty() => bail!(NONE_RUNS),
                None => bail!(
                    "no running link has the name {name}; the running links are {}",
                    names()
                ),
            };
        }
        match running.as_slice() {
            [] => bail!(NONE_RUNS),
            [(_, path)] => Ok(path.clone()),
            _ => bail!(
                "several links are running; select one with --name: {}",
                names()
            ),
        }
    }
}

const NONE_RUNS: &str = "no link is running, or this user may not use its socket; start a link with \
                         `trunkline emulate run`, or name the socket of a link with --control";

impl StatusArguments {
    pub(super) fn run(self) -> Result<()> {
        let socket = self.which.socket()?;
        let mut out = StandardOutput::new();
        let mut before = None;
        loop {
            let status = match control::ask(&socket, &ControlRequest::Status) {
                Ok(status) => status,
                // It has ended while it was watched.
                Err(_) if before.is_some() => return Ok(()),
                Err(error) => return Err(error),
            };
            self.print(&mut out, &status, before.as_ref())?;
            out.flush()?;
            if !self.watch || !out.is_read() {
                return Ok(());
            }
            before = Some(status);
            thread::sleep(LOOK_AGAIN_AFTER);
        }
    }

    fn print(&self, out: &mut impl Write, status: &Value, before: Option<&Value>) -> Result<()> {
        if self.json {
            serde_json::to_writer(&mut *out, status)?;
            writeln!(out)?;
        } else if status["device"].is_object() {
            if self.prometheus {
                bail!("a device has no Prometheus metrics; use --json");
            }
            device::print_status(out, status)?;
        } else if self.prometheus {
            write!(out, "{}", metrics::prometheus(status))?;
        } else if let Some(before) = before {
            writeln!(out)?;
            print_change(out, status, before)?;
        } else {
            print_status(out, status)?;
        }
        Ok(())
    }
}

/// Prints the whole status, for the first output.
pub(super) fn print_status(out: &mut impl Write, status: &Value) -> Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let (a, b) = (text(&status["ends"][0]), text(&status["ends"][1]));
    writeln!(
        out,
        "{a} to {b}: process {}, for {} s, seed {}",
        status["process"], status["uptime_s"], status["seed"]
    )?;
    let socket = status["control"].as_str().map(Path::new);
    if let Some(name) = socket.and_then(control::name_at)
        && name != a
    {
        writeln!(
            out,
            "name: {name}, because another link already had the name {a}"
        )?;
    }
    for (way, label) in [("forward", "forward"), ("back", "back   ")] {
        let in_force = &status["in_force"][way];
        let words: Vec<String> = SettingKey::ALL
            .into_iter()
            .filter_map(|key| {
                let word = in_force[key.name()].as_str()?;
                Some(format!("{} {word}", key.name()))
            })
            .collect();
        let lines = account::in_lines(&format!("{label}  "), 9, words);
        out.write_all(lines.as_bytes())?;
    }
    match status["not_held"].as_str() {
        None => writeln!(out, "held: yes, the link follows its settings")?,
        Some(reason) => writeln!(
            out,
            "held: NO, the link did not follow its settings: {reason}"
        )?,
    }
    for (label, key) in [("log", "log"), ("pcapng", "capture")] {
        if let Some(log) = status[key].as_object() {
            let error = log["error"]
                .as_str()
                .map(|error| format!("; ended: {error}"));
            writeln!(
                out,
                "{label}: {} records, {} lost{}",
                log["records"],
                log["lost_records"],
                error.unwrap_or_default()
            )?;
        }
    }
    writeln!(out)?;
    account::print(out, (&a, &b), status)?;
    Ok(())
}

/// Prints the counts since the previous status.
fn print_change(out: &mut impl Write, status: &Value, before: &Value) -> Result<()> {
    let since = |way: &str, key: &str| {
        let value = |status: &Value| status[way][key].as_u64().unwrap_or(0);
        value(status).saturating_sub(value(before))
    };
    for way in ["forward", "back"] {
        let drops: u64 = [
            "dropped_by_queue_packets",
            "dropped_by_policer_packets",
            "dropped_by_aqm_packets",
        ]
        .iter()
        .map(|key| since(way, key))
        .sum();
        writeln!(
            out,
            "{way:<7} {:>9.3} Mbit/s {:>7} delivered {:>6} dropped {:>5} lost {:>5} held",
            since(way, "delivered_bytes") as f64 * 8.0 / 1e6 / LOOK_AGAIN_AFTER.as_secs_f64(),
            since(way, "delivered_packets"),
            drops,
            since(way, "dropped_by_loss_packets") + since(way, "dropped_by_outage_packets"),
            status[way]["held_packets"]
        )?;
    }
    Ok(())
}
