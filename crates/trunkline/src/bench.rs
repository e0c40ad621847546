//! `trunkline bench`: measures the performance of one part of Trunkline on this machine.
//!
//! The emulator's figures are the rate of UDP packets handed to the kernel one by one (`gbit_s` for
//! 1500-byte packets, `kpps` for 64-byte packets), the same with segmentation offload
//! (`..._offloaded`), the rate of one TCP connection, and the delay that the emulator adds at
//! 10,000 packets per second. Each figure is measured with all processors, and with one processor
//! for emulator, sender and receiver together (`one_core`).

use std::io::Write;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use emulator::calibrate::{self, BenchFigures, BenchReport, CapacitySearch, DeviceKind, LimitedBy};
use host::{kernel, rootless};
use serde_json::{Map, Value, json};

use crate::bench_diagnosis::BenchDiagnosis;
use crate::bench_http::BenchHttp;
use crate::bench_kill::BenchKill;
use crate::bench_mapi::BenchMapi;
use crate::bench_peers::EmulatorPeers;
use crate::bench_profile::BenchProfile;
use crate::bench_reduction::{BenchReduction, ReductionEnd};
use crate::bench_session::BenchSession;
use crate::bench_smb::BenchSmb;
use crate::bench_turn_up::BenchTurnUp;
use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Measures the performance of one part of Trunkline on this machine.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    part: BenchPart,
}

#[derive(Debug, Subcommand)]
enum BenchPart {
    /// Measures the link emulator: the highest load that it carries with at most 0.01 % loss
    /// outside its model, and the delay that it adds.
    Emulator(EmulatorArguments),
    /// Compares the emulator's policer and shaper with those of the kernel (nft limit, tbf), on the
    /// same packets.
    EmulatorPeers(EmulatorPeers),
    /// Measures a WAN session on emulated paths: the share of the line that its flows get, with and
    /// without forward error correction.
    Session(BenchSession),
    // Its own text says more.
    Reduction(BenchReduction),
    // Its own text says more.
    ReductionKill(BenchKill),
    // Its own text says more.
    Diagnosis(BenchDiagnosis),
    // Its own text says more.
    TurnUp(BenchTurnUp),
    /// Measures SMB clients over the emulated WAN, with and without Trunkline, and compares the
    /// results with published CIFS figures.
    Smb(BenchSmb),
    /// Measures mail clients over the emulated WAN, with and without Trunkline, and compares the
    /// results with published MAPI figures.
    Mapi(BenchMapi),
    // Its own text says more.
    Http(BenchHttp),
    // Its own text says more.
    Profile(BenchProfile),
    /// Runs one end of a transfer of the reduction benchmark. The benchmark itself starts this
    /// hidden command.
    #[command(hide = true)]
    ReductionEnd(ReductionEnd),
}

#[derive(Debug, Args)]
struct EmulatorArguments {
    /// Selects how the emulator is attached to the two test hosts: by tun, packet or xdp, or by
    /// each of these methods in turn.
    #[arg(long, default_value = "tun", value_parser = devices)]
    device: DeviceList,
    /// Prints the results of the benchmark as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Devices that `--device` names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceList(Vec<DeviceKind>);

fn devices(text: &str) -> Result<DeviceList, String> {
    match text {
        "all" => Ok(DeviceList(DeviceKind::ALL.to_vec())),
        one => one
            .parse()
            .map(|device| DeviceList(vec![device]))
            .map_err(|error| format!("{error}, or all")),
    }
}

impl BenchArguments {
    /// Runs the chosen part.
    ///
    /// # Errors
    /// Fails when the part cannot be measured; the message says what to do.
    pub(crate) fn run(self) -> Result<()> {
        match self.part {
            BenchPart::Emulator(emulator) => emulator.run(),
            BenchPart::EmulatorPeers(peers) => peers.run(),
            BenchPart::Session(session) => session.run(),
            BenchPart::Reduction(reduction) => reduction.run(),
            BenchPart::ReductionKill(kill) => kill.run(),
            BenchPart::Diagnosis(diagnosis) => diagnosis.run(),
            BenchPart::TurnUp(turn_up) => turn_up.run(),
            BenchPart::Smb(smb) => smb.run(),
            BenchPart::Mapi(mapi) => mapi.run(),
            BenchPart::Http(http) => http.run(),
            BenchPart::Profile(profile) => profile.run(),
            BenchPart::ReductionEnd(end) => end.run(),
        }
    }
}

impl EmulatorArguments {
    fn run(self) -> Result<()> {
        kernel::catch_interruptions();
        let environment = environment()?;
        let privileges = rootless::obtain(&environment)?;
        let DeviceList(devices) = &self.device;
        let display = progress();
        let mut reports = Vec::new();
        let mut failures = Map::new();
        for device in devices {
            match calibrate::bench(&environment, privileges, *device, &display) {
                Ok(report) => reports.push(report),
                Err(error) if devices.len() > 1 && !kernel::interrupted() => {
                    failures.insert(device.name().to_owned(), json!(format!("{error:#}")));
                }
                Err(error) => return Err(error),
            }
        }
        display.finish();
        let Some(first) = reports.first() else {
            bail!("no device could be measured: {}", Value::Object(failures));
        };
        let mut out = StandardOutput::new();
        if self.json {
            let mut document = document(first);
            if devices.len() > 1 {
                let each: Map<String, Value> = reports
                    .iter()
                    .map(|report| (report.device.name().to_owned(), figures(report)))
                    .collect();
                document["devices"] = Value::Object(each);
                document["not_measured"] = Value::Object(failures);
            }
            writeln!(out, "{document}")?;
        } else {
            for report in &reports {
                write!(out, "{}", table(report))?;
            }
            for (device, reason) in failures {
                writeln!(out, "{device} was not measured: {reason}")?;
            }
        }
        Ok(())
    }
}

fn document(report: &BenchReport) -> Value {
    json!({
        "bench": "emulator",
        "figures": figures(report),
        "device": report.device.name(),
        "date": report.date,
        "host": report.host,
        "lost_at_most_percent": 0.01,
        "trials": { "all_cores": report.all_cores, "one_core": report.one_core },
    })
}

fn figures(report: &BenchReport) -> Value {
    let mut all = one(&report.all_cores);
    all["one_core"] = one(&report.one_core);
    all
}

fn one(figures: &BenchFigures) -> Value {
    let limited = |by: LimitedBy| -> Vec<&str> {
        ROWS.iter()
            .filter(|row| {
                row.search
                    .is_some_and(|search| search(figures).limited_by == Some(by))
            })
            .map(|row| row.key)
            .collect()
    };
    let mut object: Map<String, Value> = ROWS
        .iter()
        .map(|row| (row.key.to_owned(), json!((row.value)(figures))))
        .collect();
    for (key, by) in [
        ("limited_by_sender", LimitedBy::Sender),
        ("limited_by_processors", LimitedBy::Processors),
    ] {
        object.insert(key.to_owned(), json!(limited(by)));
    }
    Value::Object(object)
}

/// A figure: its key, its name in the table, and its source.
struct FigureRow {
    key: &'static str,
    title: &'static str,
    value: fn(&BenchFigures) -> f64,
    search: Option<fn(&BenchFigures) -> &CapacitySearch>,
}

const ROWS: [FigureRow; 9] = [
    FigureRow {
        key: "gbit_s",
        title: "UDP, 1500-byte packets, Gbit/s",
        value: |figures| figures.full.gbit_s(),
        search: Some(|figures| &figures.full),
    },
    FigureRow {
        key: "kpps",
        title: "UDP, 64-byte packets, thousands/s",
        value: |figures| figures.small.packets_per_second / 1e3,
        search: Some(|figures| &figures.small),
    },
    FigureRow {
        key: "gbit_s_offloaded",
        title: "the same by segmentation offload, Gbit/s",
        value: |figures| figures.full_offloaded.gbit_s(),
        search: Some(|figures| &figures.full_offloaded),
    },
    FigureRow {
        key: "kpps_offloaded",
        title: "the same by segmentation offload, thousands/s",
        value: |figures| figures.small_offloaded.packets_per_second / 1e3,
        search: Some(|figures| &figures.small_offloaded),
    },
    FigureRow {
        key: "tcp_gbit_s",
        title: "one TCP connection, Gbit/s",
        value: |figures| figures.tcp_gbit_s,
        search: None,
    },
    FigureRow {
        key: "added_delay_us_p50",
        title: "added delay at 10,000 packets/s, median, us",
        value: |figures| figures.added_delay_us.p50,
        search: None,
    },
    FigureRow {
        key: "added_delay_us_p99",
        title: "added delay, 99 of 100, us",
        value: |figures| figures.added_delay_us.p99,
        search: None,
    },
    FigureRow {
        key: "added_delay_us_p99_9",
        title: "added delay, 999 of 1000, us",
        value: |figures| figures.added_delay_us.p99_9,
        search: None,
    },
    FigureRow {
        key: "added_delay_us_max",
        title: "added delay, worst, us",
        value: |figures| figures.added_delay_us.max,
        search: None,
    },
];

fn table(report: &BenchReport) -> String {
    let host = &report.host;
    let mut text = format!(
        "Emulator over {}, {}\n{} x {}, Linux {}\nstolen time {:.2} %, bare timers p99 {:.0} us\n{:<48}{:>14}{:>14}\n",
        report.device,
        report.date,
        host.processors,
        host.processor_model,
        host.kernel,
        host.stolen_percent,
        host.bare_timer_lateness_us.p99,
        "",
        "all cores",
        "one core"
    );
    for row in &ROWS {
        let cell = |figures: &BenchFigures| {
            let by_sender = row
                .search
                .is_some_and(|search| search(figures).limited_by == Some(LimitedBy::Sender));
            format!(
                "{}{:.2}",
                if by_sender { ">= " } else { "" },
                (row.value)(figures)
            )
        };
        text += &format!(
            "{:<48}{:>14}{:>14}\n",
            row.title,
            cell(&report.all_cores),
            cell(&report.one_core)
        );
    }
    text + ">= means that the sender could not send more.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_keys_exist_for_all_cores_and_one() {
        let mut figures = BenchFigures {
            tcp_gbit_s: 3.5,
            ..BenchFigures::default()
        };
        figures.small.limited_by = Some(LimitedBy::Sender);
        figures.full.limited_by = Some(LimitedBy::Processors);
        let object = one(&figures);
        for key in [
            "gbit_s",
            "kpps",
            "tcp_gbit_s",
            "added_delay_us_p50",
            "added_delay_us_p99",
        ] {
            assert!(object[key].is_f64(), "{key}");
        }
        assert_eq!(object["limited_by_sender"], json!(["kpps"]));
        assert_eq!(object["limited_by_processors"], json!(["gbit_s"]));
    }

    #[test]
    fn devices_are_one_or_all() {
        assert_eq!(devices("all").unwrap().0.len(), 3);
        assert_eq!(devices("xdp").unwrap().0, [DeviceKind::Xdp]);
        assert!(devices("usb").unwrap_err().contains("or all"));
    }
}
