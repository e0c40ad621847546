//! `trunkline bench profile`: the packet rate that the profiler sends, receives and records, and how
//! well it finds known and foreign devices.

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use host::machine::MachineInfo;
use host::run::LabRun;
use host::{kernel, rootless};
use profiler::benchmark::{self, BenchmarkResult, BenchmarkSettings};
use profiler::foreign_devices::{ForeignResult, REAL_TIME_DEVICES};
use profiler::report;
use serde_json::Value;
use vocab::parse_duration;

use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Measures the device profiler over a veth cable: the packets of 92 bytes per second that it sends,
/// receives and records, its own losses, and the delay of the cable. Then measures known devices, in
/// virtual and in real time, and foreign devices, and compares the fitted models with them; and
/// compares the goodput and the loss of TCP flows with captures.
#[derive(Debug, Args)]
pub(crate) struct BenchProfile {
    /// Sets the packets per second to send.
    #[arg(long, value_name = "N", default_value_t = 260_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: u32,
    /// Sets the time for which they are sent.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    duration: Duration,
    /// Sets the number of known devices in virtual time.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    known: u32,
    /// Sets the number of known devices in real time, each between veth pairs of its own.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    known_real_time: u32,
    /// Skips the first N known devices in real time, which an earlier call has measured.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    skip_known_real_time: u32,
    /// Sets the number of foreign devices in virtual time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    foreign: u32,
    /// Sets the number of foreign devices in real time: first six routers of the kernel, then two
    /// forwarders on one core.
    #[arg(long, value_name = "N", default_value_t = REAL_TIME_DEVICES, value_parser = foreign_count)]
    foreign_real_time: usize,
    /// Skips the first N foreign devices in real time, which an earlier call has measured.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = foreign_count)]
    skip_foreign_real_time: usize,
    /// Leaves out the TCP flows that are compared with captures of tcpdump.
    #[arg(long)]
    without_flows: bool,
    /// Writes the models of the foreign devices to this directory, which exists.
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Begins no further device in real time that would probably end later than this. A later call
    /// measures the rest.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    within: Option<Duration>,
    /// Keeps the results so far in this file as a JSON object, after each part and each device in
    /// real time, so that a call that is killed loses one device at most.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Measures nothing: counts the results of several calls, as `--json` printed or `--save` kept
    /// them, together.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "save")]
    merge: Vec<PathBuf>,
    /// Prints the results as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Parses a number of foreign devices in real time.
fn foreign_count(text: &str) -> Result<usize> {
    let count = text.parse().context("not a number")?;
    if count > REAL_TIME_DEVICES {
        bail!("there are {REAL_TIME_DEVICES} foreign devices in real time");
    }
    Ok(count)
}

impl BenchProfile {
    /// Measures and prints.
    ///
    /// # Errors
    /// When nothing could be measured.
    pub(crate) fn run(self) -> Result<()> {
        if !self.merge.is_empty() {
            return self.print_merged();
        }
        kernel::catch_interruptions();
        let environment = environment()?;
        rootless::obtain(&environment)?;
        let lab = LabRun::create(&environment)?;
        let display = progress();
        let settings = BenchmarkSettings {
            packets_per_second: f64::from(self.rate),
            duration: self.duration,
            known_devices: self.known.into(),
            known_devices_real_time: self.skip_known_real_time.into()..self.known_real_time.into(),
            foreign_devices: self.foreign.into(),
            foreign_devices_real_time: self.skip_foreign_real_time..self.foreign_real_time,
            compares_flows: !self.without_flows,
            within: self.within,
        };
        let machine = serde_json::to_value(MachineInfo::describe(&["ip"]))?;
        let unsaved = Cell::new(None);
        let keep = |document: &Value| {
            let Some(file) = &self.save else { return };
            let mut document = document.clone();
            document["machine"] = machine.clone();
            // The measurement goes on: it may still be printed.
            if let Err(error) = replace(file, &document) {
                unsaved.set(Some(error));
            }
        };
        let measured = benchmark::run(&lab, settings, &display, &keep);
        display.finish();
        let BenchmarkResult {
            cable,
            foreign,
            failures,
            mut document,
        } = measured?;
        if let Some(directory) = &self.models {
            write_models(directory, &foreign)?;
        }
        let mut out = StandardOutput::new();
        if self.json {
            document["machine"] = machine.clone();
            writeln!(out, "{document}")?;
        } else {
            write!(out, "{}", report::text(&cable))?;
            write_figures(&mut out, &document)?;
        }
        if let Some(error) = unsaved.into_inner() {
            return Err(error);
        }
        let mut missing = failures;
        missing.extend(unmeasured_draws(&document));
        match missing.as_slice() {
            [] => Ok(()),
            _ => bail!("not everything was measured: {}", missing.join("; ")),
        }
    }
}

impl BenchProfile {
    /// Counts the results of several calls together, and prints them.
    fn print_merged(&self) -> Result<()> {
        let read = |path: &PathBuf| {
            let name = path.display().to_string();
            let text = fs::read_to_string(path).with_context(|| name.clone())?;
            let document = serde_json::from_str(&text)
                .with_context(|| format!("{name} is not JSON; give what `--json` printed"))?;
            Ok((name, document))
        };
        let documents = self.merge.iter().map(read).collect::<Result<Vec<_>>>()?;
        let document = benchmark::merge(&documents)?;
        let mut out = StandardOutput::new();
        if self.json {
            writeln!(out, "{document}")?;
        } else {
            write_figures(&mut out, &document)?;
        }
        Ok(())
    }
}

/// Draws in real time that have no result, with the reasons.
fn unmeasured_draws(document: &Value) -> Vec<String> {
    let unmeasured = &document["figures"]["known_devices_real_time"]["unmeasured"];
    let unmeasured = unmeasured.as_array().into_iter().flatten();
    unmeasured
        .map(|one| {
            let reason = one["reason"].as_str().unwrap_or("?");
            format!("known device {}, real time: {reason}", one["seed"])
        })
        .collect()
}

/// Replaces a file as a whole, so that it is never cut.
fn replace(file: &Path, document: &Value) -> Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    fs::write(&beside, format!("{document}\n"))
        .and_then(|()| fs::rename(&beside, file))
        .with_context(|| format!("{}: the results are not kept", file.display()))
}

fn write_figures(out: &mut impl Write, document: &Value) -> io::Result<()> {
    for (name, value) in document["figures"].as_object().into_iter().flatten() {
        write_figure(out, name, value)?;
    }
    Ok(())
}

fn nearness(is_near: &Value, is_within_noise: &Value) -> &'static str {
    match (is_near.as_bool(), is_within_noise.as_bool()) {
        (Some(true), _) => "near",
        (_, Some(true)) => "hidden",
        (_, _) => "not near",
    }
}

/// Writes a figure on one line, and those of known and foreign devices below each other.
fn write_figure(out: &mut impl Write, name: &str, value: &Value) -> io::Result<()> {
    match value {
        Value::Object(parts) => {
            writeln!(out, "{name}")?;
            for (name, value) in parts {
                writeln!(out, "  {name:<30} {value}")?;
            }
            Ok(())
        }
        Value::Array(rows) if name == "reproductions" => {
            writeln!(
                out,
                "{name}: loss and p95 delay, device / emulated model (near: within the limits; hidden: the noise of the stamps hides the difference)"
            )?;
            for row in rows {
                writeln!(
                    out,
                    "  {}, {}: {:.5} / {:.5} {}; {:.1} / {:.1} us {}",
                    row["device"].as_str().unwrap_or("?"),
                    row["experiment"].as_str().unwrap_or("?"),
                    row["loss_device"].as_f64().unwrap_or(f64::NAN),
                    row["loss_model"].as_f64().unwrap_or(f64::NAN),
                    nearness(&row["is_loss_near"], &Value::Bool(false)),
                    row["p95_device_us"].as_f64().unwrap_or(f64::NAN),
                    row["p95_model_us"].as_f64().unwrap_or(f64::NAN),
                    nearness(
                        &row["is_delay_within_10_percent"],
                        &row["is_delay_within_noise"]
                    )
                )?;
            }
            Ok(())
        }
        Value::Array(rows) if matches!(name, "foreign_uncompared" | "void_reproductions") => {
            writeln!(out, "{name}: {} runs", rows.len())?;
            for row in rows {
                writeln!(
                    out,
                    "  {}, {}: {}{}",
                    row["device"].as_str().unwrap_or("?"),
                    row["experiment"].as_str().unwrap_or("?"),
                    if row["is_void"] == Value::Bool(false) {
                        "not the best, "
                    } else {
                        "void, "
                    },
                    row["reason"].as_str().unwrap_or("?"),
                )?;
            }
            Ok(())
        }
        Value::Array(rows) if name == "tcp_flows" => {
            writeln!(out, "{name}: greatest errors of a flow, by captures")?;
            for row in rows {
                if let Some(reason) = row["void"].as_str() {
                    writeln!(out, "  {} flows: void, {reason}", row["flows"])?;
                    continue;
                }
                writeln!(
                    out,
                    "  {} flows: goodput {} %, loss {}",
                    row["flows"], row["flow_goodput_error_max_percent"], row["flow_loss_error_max"]
                )?;
            }
            Ok(())
        }
        Value::Array(rows) => {
            writeln!(
                out,
                "{name}: distance (KS) and p95 error, ours / fifo / hohn"
            )?;
            for row in rows {
                let three = |key: &str| {
                    ["ours", "fifo", "hohn"]
                        .map(|model| {
                            format!(
                                "{:.3}",
                                row[format!("{key}_{model}")].as_f64().unwrap_or(f64::NAN)
                            )
                        })
                        .join(" / ")
                };
                writeln!(
                    out,
                    "  {}, {}: {}; {}",
                    row["device"].as_str().unwrap_or("?"),
                    row["experiment"].as_str().unwrap_or("?"),
                    three("ks"),
                    three("p95_error")
                )?;
            }
            Ok(())
        }
        _ => writeln!(out, "{name:<16} {value}"),
    }
}

fn write_models(directory: &Path, foreign: &[ForeignResult]) -> Result<()> {
    for (number, result) in foreign.iter().enumerate() {
        let path = directory.join(format!("model-{number}.toml"));
        let Some(text) = result.model_text()? else {
            continue;
        };
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
