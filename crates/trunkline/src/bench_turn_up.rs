//! `trunkline bench turn-up`: compares the turn-up tester's results with the known figures of
//! links.
//!
//! `bench::known_links` describes the links.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use bench::known_links::{self, BufferFound, RateFound, RoundTripFound, StreamFound, WindowsFound};
use clap::{Args, ValueEnum};
use host::machine::MachineInfo;
use host::progress::ProgressReporter;
use host::terminal::write_hanging;
use host::{ProgramEnvironment, kernel, rootless};
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};
use serde_json::json;
use vocab::{Bitrate, ByteCount, parse_duration};

use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Lines and delays behind which the baseline RTT is measured.
const ROUND_TRIPS: [(u64, Duration); 3] = [
    (1_000_000, Duration::from_millis(50)),
    (10_000_000, Duration::from_millis(10)),
    (100_000_000, Duration::from_micros(2_500)),
];

/// Measures links whose figures are known, and prints measured and known figures together: rates of
/// the kernel's tbf, baseline RTTs, and the two published case studies of RFC 6349 over the
/// emulator.
///
/// The benchmark takes about six minutes and needs tc. Run nothing else on the machine: other
/// processes interrupt the tester, and these interruptions change the results.
#[derive(Debug, Args)]
pub(crate) struct BenchTurnUp {
    /// Runs only these parts of the benchmark.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,...")]
    only: Vec<TurnUpPart>,
    /// Sets the rates of tbf (the kernel's token bucket filter). The filter counts Ethernet headers, so
    /// IP packets of 1,500 bytes get 1500/1514 of each rate.
    #[arg(
        long,
        value_name = "RATE,...",
        value_delimiter = ',',
        default_value = "512kbit,1Mbit,2Mbit,10Mbit,45Mbit,100Mbit,155Mbit,300Mbit,500Mbit"
    )]
    rates: Vec<Bitrate>,
    /// Sets the buffer sizes for the second published case study. The benchmark also measures a
    /// buffer of one bandwidth-delay product (BDP) each time.
    #[arg(
        long,
        value_name = "SIZE,...",
        value_delimiter = ',',
        default_value = "3kB,7500B,15kB"
    )]
    buffers: Vec<ByteCount>,
    /// Sets the duration of each UDP stream and of each TCP test run.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    duration: Duration,
    /// Prints the results of the benchmark as one JSON object.
    #[arg(long)]
    json: bool,
}

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TurnUpPart {
    /// Measures the bottleneck rate of tbf.
    Rates,
    /// Measures the baseline RTT.
    RoundTrips,
    /// Repeats the first case study, which varies the window.
    Windows,
    /// Repeats the second case study, which has a small buffer.
    Buffers,
}

/// Results of the benchmark.
#[derive(Debug, Default)]
struct TurnUpFindings {
    rates: Vec<RateFound>,
    round_trips: Vec<RoundTripFound>,
    windows: Option<WindowsFound>,
    buffers: Vec<BufferFound>,
    /// Text for each value that could not be measured, with the reason.
    failures: Vec<String>,
}

impl TurnUpFindings {
    fn has_any(&self) -> bool {
        !self.rates.is_empty()
            || !self.round_trips.is_empty()
            || self.windows.is_some()
            || !self.buffers.is_empty()
    }
}

impl BenchTurnUp {
    pub(crate) fn run(self) -> Result<()> {
        kernel::catch_interruptions();
        let environment = environment()?;
        let privileges = rootless::obtain(&environment)?;
        let needs = LabRequirements {
            servers: vec![],
            clients: vec!["tc"],
            interception: InterceptionMode::None,
            captures: CaptureMode::None,
        };
        preflight::check(&needs, privileges)?;
        let display = progress();
        let found = self.measure(&environment, &display);
        display.finish();
        ensure!(
            found.has_any(),
            "nothing could be measured: {}",
            found.failures.join("; ")
        );
        let machine = MachineInfo::describe(&["tc"]);
        let mut out = StandardOutput::new();
        match self.json {
            true => writeln!(
                out,
                "{}",
                json!({
                    "bench": "turn-up",
                    "rates": found.rates,
                    "round_trips": found.round_trips,
                    "windows": found.windows,
                    "buffers": found.buffers,
                    "failures": found.failures,
                    "machine": machine,
                })
            )?,
            false => write!(out, "{}", text(&found))?,
        }
        Ok(())
    }

    /// Tells whether this part was requested, and the run was not interrupted.
    fn has(&self, part: TurnUpPart) -> bool {
        !kernel::interrupted() && (self.only.is_empty() || self.only.contains(&part))
    }

    fn measure(
        &self,
        environment: &ProgramEnvironment,
        display: &dyn ProgressReporter,
    ) -> TurnUpFindings {
        let mut found = TurnUpFindings::default();
        let mut failures = Vec::new();
        let mut keep = |what: String, error: anyhow::Error| {
            failures.push(format!("{what}: {error:#}"));
        };
        if self.has(TurnUpPart::Rates) {
            for (place, rate) in self.rates.iter().enumerate() {
                let what = format!("tbf at {rate}");
                display.step(0.5 * place as f64 / self.rates.len() as f64, &what);
                if kernel::interrupted() {
                    break;
                }
                match known_links::rate(environment, *rate, self.duration) {
                    Ok(one) => found.rates.push(one),
                    Err(error) => keep(what, error),
                }
            }
        }
        if self.has(TurnUpPart::RoundTrips) {
            for (bits, delay) in ROUND_TRIPS {
                let what = format!("{} ms each way", delay.as_secs_f64() * 1e3);
                display.step(0.5, &what);
                if kernel::interrupted() {
                    break;
                }
                let rate = Bitrate::from_bits_per_second(bits);
                match known_links::round_trip(environment, rate, delay) {
                    Ok(one) => found.round_trips.push(one),
                    Err(error) => keep(what, error),
                }
            }
        }
        if self.has(TurnUpPart::Windows) {
            let what = "windows of 32 to 256 kB".to_owned();
            display.step(0.65, &what);
            match known_links::windows(environment, self.duration) {
                Ok(one) => found.windows = Some(one),
                Err(error) => keep(what, error),
            }
        }
        if self.has(TurnUpPart::Buffers) {
            for queue in self
                .buffers
                .iter()
                .copied()
                .chain([known_links::case_bdp()])
            {
                let what = format!("a buffer of {queue}");
                display.step(0.8, &what);
                if kernel::interrupted() {
                    break;
                }
                match known_links::buffer(environment, queue, self.duration) {
                    Ok(one) => found.buffers.push(one),
                    Err(error) => keep(what, error),
                }
            }
        }
        found.failures = failures;
        found
    }
}

fn text(found: &TurnUpFindings) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_all(&mut out, found);
    out
}

fn write_all(out: &mut String, found: &TurnUpFindings) -> std::fmt::Result {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
    };
    if !found.rates.is_empty() {
        writeln!(
            out,
            "bottleneck rate behind tbf, Mbit/s of IP packets\n{:>12} {:>13} {:>13} {:>10}  {:<8} limit",
            "tbf's rate", "expected", "found", "error %", "steady"
        )?;
        for one in &found.rates {
            writeln!(
                out,
                "{:>12.3} {:>13.5} {:>13} {:>10}  {:<8} {}",
                one.set_bit_s as f64 / 1e6,
                one.expected_bit_s / 1e6,
                number(one.found_bit_s.map(|bits| bits / 1e6), 5),
                number(one.error_percent, 4),
                one.is_steady
                    .map_or("–", |is| if is { "yes" } else { "no" }),
                one.limited_by.as_deref().unwrap_or("–"),
            )?;
        }
    }
    if !found.round_trips.is_empty() {
        writeln!(
            out,
            "\nbaseline RTT, ms\n{:>12} {:>13} {:>13} {:>10}",
            "line Mbit/s", "expected", "found", "difference"
        )?;
        for one in &found.round_trips {
            writeln!(
                out,
                "{:>12.3} {:>13.3} {:>13} {:>10}",
                one.rate_bit_s as f64 / 1e6,
                one.expected_ms,
                number(one.found_ms, 3),
                number(one.found_ms.map(|found| found - one.expected_ms), 3),
            )?;
        }
    }
    if let Some(windows) = &found.windows {
        writeln!(
            out,
            "\nfirst case study, Mbit/s of payload (100 Mbit/s of Ethernet, 20 ms)\n{:>12} {:>13} {:>13} {:>10}",
            "window B", "formula", "found", "error %"
        )?;
        for one in &windows.windows {
            let error = |found: f64| (found / one.formula_mbit_s - 1.0) * 100.0;
            writeln!(
                out,
                "{:>12} {:>13.1} {:>13} {:>10}",
                one.window_bytes,
                one.formula_mbit_s,
                number(one.found_mbit_s, 3),
                number(one.found_mbit_s.map(error), 2),
            )?;
        }
        writeln!(
            out,
            "  published for 256 kB: 100, more than the line carries of payload"
        )?;
        writeln!(out, "  named: {}", windows.causes.join(", "))?;
    }
    if !found.buffers.is_empty() {
        writeln!(
            out,
            "\nsecond case study (300 Mbit/s, 50 ms, 30 connections of 64 kB)\n{:>12} {:>13} {:>13} {:>10}  named",
            "buffer B", "found B", "Mbit/s", "of line %"
        )?;
        for one in &found.buffers {
            let share = |found: f64| found / one.carried_mbit_s * 100.0;
            writeln!(
                out,
                "{:>12} {:>13} {:>13} {:>10}  {}",
                one.queue_bytes,
                number(one.found_queue_bytes, 0),
                number(one.found_mbit_s, 1),
                number(one.found_mbit_s.map(share), 1),
                one.causes.join(", "),
            )?;
        }
        writeln!(
            out,
            "\n{:>12}  streams, Mbit/s: arrived of sent (lost)",
            "buffer B"
        )?;
        for one in &found.buffers {
            let stream = |stream: &StreamFound| {
                let StreamFound {
                    offered_mbit_s,
                    arrived_mbit_s,
                    lost_packets,
                } = stream;
                format!("{arrived_mbit_s:.2} of {offered_mbit_s:.1} ({lost_packets})")
            };
            let streams: Vec<String> = one.streams.iter().map(stream).collect();
            writeln!(out, "{:>12}  {}", one.queue_bytes, streams.join(", "))?;
        }
        for one in &found.buffers {
            for lost in &one.spoilt {
                writeln!(
                    out,
                    "measured again: {} B, as this host itself had lost {} packets",
                    one.queue_bytes,
                    lost.packets()
                )?;
            }
            for remark in &one.remarks {
                write_hanging(out, "note: ", 6, remark.split(' '));
            }
        }
    }
    for failure in &found.failures {
        writeln!(out, "not measured: {failure}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bench::peers::HostLosses;

    use super::*;

    #[test]
    fn table_shows_found_values_beside_the_configured() {
        let found = TurnUpFindings {
            rates: vec![RateFound {
                set_bit_s: 10_000_000,
                expected_bit_s: 9_907_529.7,
                found_bit_s: Some(9_907_000.0),
                error_percent: Some(-0.005_3),
                is_steady: Some(true),
                limited_by: Some("path".to_owned()),
            }],
            buffers: vec![BufferFound {
                queue_bytes: 7_500,
                found_queue_bytes: None,
                found_mbit_s: None,
                carried_mbit_s: 289.6,
                streams: vec![StreamFound {
                    offered_mbit_s: 450.0,
                    arrived_mbit_s: 299.5,
                    lost_packets: 62_700,
                }],
                causes: vec!["shallow-buffer".to_owned()],
                spoilt: vec![HostLosses {
                    emulator_packets: 4_874,
                    ..HostLosses::default()
                }],
                remarks: vec!["up: a long remark that has to be cut into two lines, as it is longer than eighty".to_owned()],
            }],
            failures: vec!["tbf at 1Gbit: no tc".to_owned()],
            ..TurnUpFindings::default()
        };
        let text = text(&found);
        for words in [
            "9.90753",
            "-0.0053",
            "shallow-buffer",
            "299.50 of 450.0 (62700)",
            "lost 4874 packets",
            "note: up: a long",
            "not measured: tbf",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}
