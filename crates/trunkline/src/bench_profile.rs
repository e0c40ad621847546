//! `trunkline bench profile`: the packet rate that the profiler sends, receives and records.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use host::machine::MachineInfo;
use host::run::LabRun;
use host::{kernel, rootless};
use profiler::benchmark::{self, BenchmarkSettings};
use profiler::report;
use vocab::parse_duration;

use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Measures the device profiler over a veth cable: the packets of 92 bytes per second that it sends,
/// receives and records, its own losses, and the delay of the cable.
#[derive(Debug, Args)]
pub(crate) struct BenchProfile {
    /// Sets the packets per second to send.
    #[arg(long, value_name = "N", default_value_t = 260_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: u32,
    /// Sets the time for which they are sent.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    duration: Duration,
    /// Prints the results as one JSON object.
    #[arg(long)]
    json: bool,
}

impl BenchProfile {
    /// Measures and prints.
    ///
    /// # Errors
    /// When nothing could be measured.
    pub(crate) fn run(self) -> Result<()> {
        kernel::catch_interruptions();
        let environment = environment()?;
        rootless::obtain(&environment)?;
        let lab = LabRun::create(&environment)?;
        let display = progress();
        let settings = BenchmarkSettings {
            packets_per_second: f64::from(self.rate),
            duration: self.duration,
        };
        let measured = benchmark::run(&lab, settings, &display);
        display.finish();
        let (result, mut document) = measured?;
        let mut out = StandardOutput::new();
        if self.json {
            document["machine"] = serde_json::to_value(MachineInfo::describe(&["ip"]))?;
            writeln!(out, "{document}")?;
        } else {
            write!(out, "{}", report::text(&result))?;
            for (name, value) in document["figures"].as_object().into_iter().flatten() {
                writeln!(out, "{name:<16} {value}")?;
            }
        }
        Ok(())
    }
}
