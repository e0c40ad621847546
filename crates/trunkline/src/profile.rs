//! `trunkline profile`: measures a network device as a black box.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use host::invalid_request::InvalidRequest;
use host::run::LabRun;
use host::{kernel, rootless};
use profiler::{MeasurementPlan, MeasurementSettings, PortLocation, measure, report};
use vocab::ByteCount;

use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Measures a router, a switch or another network device as a black box, from this one host.
#[derive(Debug, Args)]
pub(crate) struct ProfileArguments {
    #[command(subcommand)]
    action: ProfileAction,
}

#[derive(Debug, Subcommand)]
enum ProfileAction {
    /// Runs a measurement plan, and prints delays and losses of cable and device.
    Run(ProfileRun),
}

/// Sends the traffic of a plan through a device and receives it again, and accounts for every packet.
///
/// Runs over a cable of its own (a veth pair) come first and show the noise of this host. Each port
/// is an interface that is cabled to one port of the device and that this host does not use itself.
/// On port N, the device needs the address 198.18.N.1/24 and must forward to the other ports; a device
/// that bridges needs no address. Ctrl-C stops the measurement, and what was measured is printed.
///
/// The exit code is 0 if all runs were measured and valid, and 1 otherwise.
#[derive(Debug, Args)]
struct ProfileRun {
    /// Names the plan, a TOML file such as plans/bbp.toml.
    plan: PathBuf,
    /// Names the interfaces of the device's ports, in the order of the plan: INTERFACE, or
    /// INTERFACE@NAMESPACE. Without ports, only the runs over the cable are measured.
    #[arg(long = "port", value_name = "INTERFACE", value_parser = PortLocation::parse)]
    ports: Vec<PortLocation>,
    /// Writes one record for each packet to this new directory, as one NumPy file for each column.
    #[arg(long, value_name = "DIR")]
    records: Option<PathBuf>,
    /// Limits the records; later ones are left out and counted.
    #[arg(long, value_name = "BYTES", default_value = "8GB")]
    records_max: ByteCount,
    /// Sends at most this number of packets of each traffic pattern in a run.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    packets: Option<u64>,
    /// Repeats each run at most this number of times.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: Option<u32>,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

impl ProfileArguments {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// When nothing could be measured, or not all of it.
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            ProfileAction::Run(run) => run.run(),
        }
    }
}

impl ProfileRun {
    fn run(self) -> Result<()> {
        kernel::catch_interruptions();
        let settings = self.settings().map_err(InvalidRequest::because)?;
        let environment = environment()?;
        if self.ports.is_empty() {
            rootless::obtain(&environment)?;
        } else if kernel::effective_user() != 0 {
            bail!("to measure through interfaces of this host, run this command as root");
        }
        let lab = LabRun::create(&environment)?;
        let display = progress();
        let result = measure(&lab, &settings, &display);
        display.finish();
        let result = result?;
        let mut out = StandardOutput::new();
        if self.json {
            writeln!(out, "{}", report::document(&result))?;
        } else {
            write!(out, "{}", report::text(&result))?;
        }
        if let Some(failure) = &result.failure {
            bail!("not everything was measured: {failure}");
        }
        let void = result.runs.iter().filter(|run| run.outcome.is_void());
        match void.count() {
            0 => Ok(()),
            count => bail!(
                "{count} of {} runs are void; the report says why",
                result.runs.len()
            ),
        }
    }

    fn settings(&self) -> Result<MeasurementSettings> {
        let text = fs::read_to_string(&self.plan)
            .with_context(|| format!("cannot read the plan {}", self.plan.display()))?;
        let mut plan =
            MeasurementPlan::from_toml(&text).with_context(|| self.plan.display().to_string())?;
        for experiment in &mut plan.experiments {
            if let Some(repetitions) = self.repetitions {
                experiment.repetitions = experiment.repetitions.min(repetitions);
            }
            for traffic in &mut experiment.traffic {
                if let Some(packets) = self.packets {
                    traffic.packets = Some(traffic.packets.unwrap_or(packets).min(packets));
                }
            }
        }
        if !self.ports.is_empty() && self.ports.len() != usize::from(plan.ports) {
            bail!(
                "the plan has {} ports and {} are given; add --port once for each port of the device",
                plan.ports,
                self.ports.len()
            );
        }
        Ok(MeasurementSettings {
            plan,
            ports: self.ports.clone(),
            records: self.records.clone(),
            records_max_bytes: self.records_max.bytes(),
        })
    }
}
