//! `trunkline profile`: measures a network device as a black box.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use host::invalid_request::InvalidRequest;
use host::run::LabRun;
use host::{kernel, rootless};
use profiler::{
    CalibratedRuns, MeasurementPlan, MeasurementSettings, ModelFamily, PortLocation,
    RecordDirectory, RecordEnd, fit_report, measure, page, report, validate, validation_report,
    virtual_runs, write_virtual_records,
};
use vocab::{ByteCount, DeviceModel};

use crate::environment::environment;
use crate::output::StandardOutput;
use crate::page_file::PageFile;
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
    /// Fits a device model to the records of a measurement.
    Fit(ProfileFit),
    /// Compares a device model with the held-out traffic of a measurement.
    Validate(ProfileValidate),
}

/// Fits a device model to the records of a measurement, and prints each parameter with its interval.
///
/// The plan of the measurement needs experiments with the purposes transit, contention, input-overload
/// and overload, as plans/full.toml has them. Where the records do not determine a parameter, the
/// command says why, and what a plan needs for it.
#[derive(Debug, Args)]
struct ProfileFit {
    /// Names the directory that profile run --records wrote.
    records: PathBuf,
    /// Writes the model to this file, for emulate run --device and profile validate.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Sets the device's name in the model; the plan's name if it is left out.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

/// Puts the held-out traffic of a measurement through a device model, and compares delays, loss and
/// goodput with those of the device.
///
/// Two other models are fitted to the same records and compared as well: a single FIFO output queue,
/// and minimum transit with a fluid queue (Hohn et al.).
#[derive(Debug, Args)]
struct ProfileValidate {
    /// Names the device model, a TOML file that profile fit wrote.
    model: PathBuf,
    /// Names the directory that profile run --records wrote.
    records: PathBuf,
    /// Writes a report with plots to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
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
    /// Measures an emulated device of this model in virtual time, without ports and without waiting.
    #[arg(
        long = "virtual",
        value_name = "MODEL",
        conflicts_with = "ports",
        requires = "records"
    )]
    virtual_device: Option<PathBuf>,
    /// Limits the records; later ones are left out and counted.
    #[arg(long, value_name = "BYTES", default_value = "8GB")]
    records_max: ByteCount,
    /// Writes the report as an HTML page to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "virtual_device")]
    html: Option<PathBuf>,
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
            ProfileAction::Fit(fit) => fit.run(),
            ProfileAction::Validate(validate) => validate.run(),
        }
    }
}

impl ProfileFit {
    fn run(self) -> Result<()> {
        let records = RecordDirectory::open(&self.records)?;
        let file = self.output.as_deref().map(PageFile::open).transpose()?;
        let runs = CalibratedRuns::read(&records)?;
        let name = self.name.as_deref().unwrap_or(&records.plan.name);
        let fit = runs.fit(name, ModelFamily::Full)?;
        if let Some(file) = file {
            file.write(&fit_report::model_file(&fit.model)?)?;
        }
        let mut out = StandardOutput::new();
        if self.json {
            writeln!(out, "{}", fit_report::document(&runs, &fit))?;
        } else {
            write!(out, "{}", fit_report::text(&runs, &fit))?;
        }
        Ok(())
    }
}

impl ProfileValidate {
    fn run(self) -> Result<()> {
        let model = read_model(&self.model)?;
        let records = RecordDirectory::open(&self.records)?;
        let page = self.html.as_deref().map(PageFile::open).transpose()?;
        let validation = validate(&records, &model)?;
        if let Some(page) = page {
            page.write(&page::html(&validation)?)?;
        }
        let mut out = StandardOutput::new();
        if self.json {
            writeln!(out, "{}", validation_report::document(&validation))?;
        } else {
            write!(out, "{}", validation_report::text(&validation))?;
        }
        Ok(())
    }
}

impl ProfileRun {
    fn run(self) -> Result<()> {
        kernel::catch_interruptions();
        let settings = self.settings().map_err(InvalidRequest::because)?;
        if let (Some(model), Some(records)) = (&self.virtual_device, &self.records) {
            return self.run_virtually(&settings.plan, &read_model(model)?, records);
        }
        let environment = environment()?;
        if self.ports.is_empty() {
            rootless::obtain(&environment)?;
        } else if kernel::effective_user() != 0 {
            bail!("to measure through interfaces of this host, run this command as root");
        }
        let page = self.html.as_deref().map(PageFile::open).transpose()?;
        let lab = LabRun::create(&environment)?;
        let display = progress();
        let result = measure(&lab, &settings, &display);
        display.finish();
        let result = result?;
        if let Some(page) = page {
            page.write(&page::measurement_html(&result)?)?;
        }
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

    fn run_virtually(
        &self,
        plan: &MeasurementPlan,
        model: &DeviceModel,
        records: &Path,
    ) -> Result<()> {
        if model.ports < plan.ports {
            bail!(
                "the plan uses {} ports, and the model has {}",
                plan.ports,
                model.ports
            );
        }
        let runs = virtual_runs(plan, model).take_while(|_| !kernel::interrupted());
        let summary = write_virtual_records(records, plan, self.records_max.bytes(), runs)?;
        if kernel::interrupted() {
            bail!(
                "stopped by the user; {} has the runs before",
                records.display()
            );
        }
        let mut out = StandardOutput::new();
        if self.json {
            writeln!(out, "{}", serde_json::json!({"records": summary}))?;
        } else {
            writeln!(
                out,
                "{} records of {} in virtual time, in {}",
                summary.rows,
                model.name,
                records.display()
            )?;
        }
        match summary.end {
            RecordEnd::Complete => Ok(()),
            RecordEnd::LimitReached | RecordEnd::Failed(_) => {
                bail!("{} records are missing", summary.missing_rows)
            }
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

fn read_model(path: &Path) -> Result<DeviceModel> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the model {}", path.display()))?;
    fit_report::model_from_file(&text)
        .with_context(|| path.display().to_string())
        .map_err(InvalidRequest::because)
}
