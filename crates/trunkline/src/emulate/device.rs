//! `trunkline emulate run --device`: an emulated router or switch, and its status.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use emulator::device::{DeviceHandle, DeviceReport, DeviceStart, read_model};
use emulator::link::control::{ControlSocket, ControlTarget};
use emulator::link::{
    BridgeEnd, BridgeIo, InvalidRequest, NetworkNamespace, StopSignals, stand_apart,
};
use serde_json::Value;

use super::run::{control_directories, wait_for_end};
use crate::output::StandardOutput;

/// Seed of the random numbers of active queue management.
const SEED: u64 = 1;

/// Options of a device.
#[derive(Debug)]
pub(super) struct DeviceArguments {
    /// File of the model.
    pub(super) model: PathBuf,
    /// Interfaces, separated by commas.
    pub(super) interfaces: String,
    pub(super) io: BridgeIo,
    pub(super) control: Option<PathBuf>,
    pub(super) run_time: Option<Duration>,
    pub(super) busy_poll: Duration,
    pub(super) is_json: bool,
}

/// A device that is ready to be started.
#[derive(Debug)]
pub(super) struct DeviceRun {
    start: DeviceStart,
    control: Option<PathBuf>,
    run_time: Option<Duration>,
    is_json: bool,
}

impl DeviceRun {
    /// Reads the model and the names of the interfaces.
    ///
    /// # Errors
    /// When the model cannot be read or used, or a name is empty ([`InvalidRequest`]).
    pub(super) fn new(arguments: DeviceArguments) -> Result<Self> {
        let model = read_model(&arguments.model).map_err(InvalidRequest::because)?;
        let ports = interfaces(&arguments.interfaces).map_err(InvalidRequest::because)?;
        Ok(Self {
            start: DeviceStart {
                model,
                ports,
                io: arguments.io,
                seed: SEED,
                busy_poll: arguments.busy_poll,
            },
            control: arguments.control,
            run_time: arguments.run_time,
            is_json: arguments.is_json,
        })
    }

    /// Forwards until a signal comes or the time is over, then prints the counters.
    ///
    /// # Errors
    /// When the device cannot be started, or an interface is deleted while it runs.
    pub(super) fn run(self) -> Result<()> {
        // Before any thread starts, so that all of them leave the signals to this one.
        let signals = StopSignals::block()?;
        stand_apart();
        let name = self.start.ports[0].interface.clone();
        let device = Arc::new(DeviceHandle::start(self.start)?);
        let target: Arc<dyn ControlTarget> = device.clone();
        let control = match &self.control {
            Some(path) => Some(ControlSocket::listen(path, target)?),
            None => ControlSocket::listen_in(&control_directories(), &name, &target),
        };
        remark!(
            "device {}: {} ports",
            device.model().name,
            device.model().ports
        );
        let mut out = StandardOutput::new();
        writeln!(out, "ready")?;
        out.flush()?;
        wait_for_end(&signals, self.run_time, || device.is_running());
        drop(control);
        let report = device.stop()?;
        if self.is_json {
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else {
            print_counters(&mut out, &serde_json::to_value(&report)?)?;
        }
        warn(&report);
        Ok(())
    }
}

fn interfaces(list: &str) -> Result<Vec<BridgeEnd>> {
    list.split(',')
        .map(|text| {
            let (interface, namespace) = match text.split_once('@') {
                Some((interface, namespace)) => (interface, Some(namespace)),
                None => (text, None),
            };
            if interface.is_empty() || namespace == Some("") {
                return Err(anyhow!(
                    "`{text}` names no interface; write --bridge eth1,eth2, or --bridge eth1@lab,eth2@lab"
                ));
            }
            Ok(BridgeEnd {
                interface: interface.to_owned(),
                namespace: namespace.map(NetworkNamespace::new),
            })
        })
        .collect()
}

/// Label, and key in the report.
type DeviceRow = (&'static str, &'static str);

const ROWS: [DeviceRow; 17] = [
    ("offered, packets", "offered_packets"),
    ("offered, bytes", "offered_bytes"),
    ("delivered, packets", "delivered_packets"),
    ("delivered, bytes", "delivered_bytes"),
    (
        "dropped by input queues, packets",
        "dropped_by_input_queue_packets",
    ),
    ("dropped by policers, packets", "dropped_by_policer_packets"),
    (
        "dropped by output queues, packets",
        "dropped_by_output_queue_packets",
    ),
    ("dropped by AQM, packets", "dropped_by_aqm_packets"),
    ("still in the device, packets", "held_packets"),
    ("refused for memory, packets", "dropped_by_limit_packets"),
    ("dropped in a loop, frames", "dropped_by_flood_limit_frames"),
    ("not forwarded, frames", "returned_frames"),
    ("over 0.2 ms late, packets", "over_200us_late_packets"),
    ("over 1 ms late, packets", "late_packets"),
    ("lateness, median, us", "lateness_p50_us"),
    ("lateness, 99 of 100, us", "lateness_p99_us"),
    ("lateness, largest, us", "lateness_max_us"),
];

/// Prints the counters of a report, as JSON has it.
fn print_counters(out: &mut impl Write, report: &Value) -> io::Result<()> {
    for (label, key) in ROWS {
        writeln!(out, "{label:<34}{:>22}", report[key])?;
    }
    writeln!(
        out,
        "\n{:<20}{:>14}{:>14}{:>10}{:>14}",
        "port", "received", "sent", "unread", "not taken"
    )?;
    for (number, port) in report["ports"].as_array().into_iter().flatten().enumerate() {
        writeln!(
            out,
            "{:<20}{:>14}{:>14}{:>10}{:>14}",
            format!("{number} {}", port["interface"].as_str().unwrap_or("?")),
            port["received_frames"],
            port["sent_frames"],
            port["unread_packets"],
            port["failed_writes_packets"]
        )?;
    }
    Ok(())
}

/// Prints the status of a running device.
pub(super) fn print_status(out: &mut impl Write, status: &Value) -> io::Result<()> {
    writeln!(
        out,
        "device {}: process {}, for {} s, seed {}",
        status["model"]["name"].as_str().unwrap_or("?"),
        status["process"],
        status["uptime_s"],
        status["seed"]
    )?;
    match status["not_held"].as_str() {
        None => writeln!(out, "held: yes, the device follows its model")?,
        Some(reason) => writeln!(
            out,
            "held: NO, the device did not follow its model: {reason}"
        )?,
    }
    writeln!(out)?;
    print_counters(out, &status["device"])
}

/// Prints on standard error each reason to doubt a measurement through this device.
fn warn(report: &DeviceReport) {
    let lost = report.lost_outside_the_model();
    if lost > 0 {
        remark!(
            "warning: {lost} packets were lost outside the model, which processed {}; the host was too slow, a port was down, or there is a loop",
            report.offered_packets
        );
    }
    if let Some(reason) = &report.not_held {
        remark!(
            "warning: the device did not follow its model in {} s of its run; last reason: {reason}",
            report.not_held_seconds
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_interfaces_with_namespaces() {
        let ports = interfaces("eth1,eth2@lab").unwrap();
        assert_eq!(ports[0], BridgeEnd::here("eth1"));
        assert_eq!(ports[1].namespace, Some(NetworkNamespace::new("lab")));
        for wrong in ["", "eth1,", "eth1,@lab", "eth1@"] {
            let error = interfaces(wrong).unwrap_err().to_string();
            assert!(error.contains("names no interface"), "{error}");
        }
    }
}
