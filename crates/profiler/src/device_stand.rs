//! A stand for devices of this machine: ports of the profiler, each cabled to an interface of the
//! device's namespace.
//!
//! ```text
//!   namespace of the ports:   port0   port1 …
//!                               ║       ║
//!   namespace of the device:   in0     in1 …
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use host::command;
use host::kernel::ProcessSignal;
use host::packets::namespace::NetworkNamespace;
use host::process::{LaunchConfig, RunningProcess};
use host::progress::ProgressReporter;
use host::run::LabRun;
use profile::{MeasuredRun, MeasurementPlan};
use serde_json::Value;
use vocab::DeviceModel;

use crate::measurement::{MeasurementResult, MeasurementSettings, measure};
use crate::port::PortLocation;
use crate::records::RecordDirectory;

/// Time for the emulator to take its interfaces.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Records that one measurement may write.
const RECORDS_MAX_BYTES: u64 = 2 << 30;

/// Number of the stands that this process has made.
static STANDS: AtomicU32 = AtomicU32::new(0);

/// Namespaces and cables.
#[derive(Debug)]
pub(crate) struct DeviceStand<'a> {
    lab: &'a LabRun,
    ports: String,
    /// Namespace of the device.
    pub(crate) device: String,
    count: u16,
}

impl<'a> DeviceStand<'a> {
    /// Makes a stand with so many ports. `role` and a number of its own name its namespaces.
    ///
    /// # Errors
    /// When the kernel or `ip` refuses.
    pub(crate) fn create(lab: &'a LabRun, role: &str, count: u16) -> Result<Self> {
        let number = STANDS.fetch_add(1, Ordering::Relaxed);
        let ports = lab.make_namespace(&format!("{role}{number}-ports"))?;
        let device = lab.make_namespace(&format!("{role}{number}-device"))?;
        for number in 0..count {
            ip(&format!(
                "-n {ports} link add port{number} type veth peer name in{number} netns {device}"
            ))?;
            for (namespace, end) in [(&ports, "port"), (&device, "in")] {
                // Addresses that the kernel gives itself would send frames of their own.
                ip(&format!(
                    "-n {namespace} link set {end}{number} addrgenmode none up"
                ))?;
            }
        }
        Ok(Self {
            lab,
            ports,
            device,
            count,
        })
    }

    /// Runs a command in the device's namespace.
    ///
    /// # Errors
    /// When it fails.
    pub(crate) fn inside(&self, words: &str) -> Result<String> {
        let arguments = ["netns", "exec", &self.device].into_iter();
        command::run("ip", arguments.chain(words.split(' ')))
    }

    /// Makes a router of the device's namespace, with the addresses that the profiler expects.
    ///
    /// # Errors
    /// When the kernel does not forward.
    pub(crate) fn route(&self) -> Result<()> {
        for number in 0..self.count {
            ip(&format!(
                "-n {} address add 198.18.{number}.1/24 dev in{number}",
                self.device
            ))?;
        }
        self.inside("sysctl -qw net.ipv4.ip_forward=1")?;
        let forwards = self.inside("cat /proc/sys/net/ipv4/ip_forward")?;
        ensure!(
            forwards.trim() == "1",
            "the kernel does not forward in the router's namespace"
        );
        Ok(())
    }

    /// Starts the emulator with a device model as the device.
    ///
    /// # Errors
    /// When the emulator does not start; the message has its log.
    pub(crate) fn emulate(&self, model: &DeviceModel) -> Result<DeviceProcess> {
        let file = self.lab.directory().join("device.toml");
        let text = toml::to_string(model).context("writing the device model")?;
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        let ports: Vec<String> = (0..self.count)
            .map(|number| format!("in{number}"))
            .collect();
        let file = file.display().to_string();
        let ports = ports.join(",");
        let arguments = [
            "emulate",
            "run",
            "--json",
            "--device",
            file.as_str(),
            "--bridge",
            ports.as_str(),
        ];
        DeviceProcess::start(self.lab, &self.device, "device", &arguments)
    }

    /// Measures by a plan through the device's ports; returns the runs with their records, and the
    /// report.
    ///
    /// # Errors
    /// When nothing was measured, or the records cannot be read.
    pub(crate) fn measure(
        &self,
        plan: &MeasurementPlan,
        progress: &dyn ProgressReporter,
    ) -> Result<(Vec<MeasuredRun>, MeasurementResult)> {
        let records = self.lab.directory().join("stand-records");
        remove(&records)?;
        let ports = (0..self.count).map(|number| PortLocation {
            interface: format!("port{number}"),
            namespace: Some(NetworkNamespace::new(&self.ports)),
        });
        let settings = MeasurementSettings {
            plan: plan.clone(),
            ports: ports.collect(),
            records: Some(records.clone()),
            records_max_bytes: RECORDS_MAX_BYTES,
        };
        let result = measure(self.lab, &settings, progress)?;
        let directory = RecordDirectory::open(&records)?;
        let runs = directory
            .blocks
            .iter()
            .filter(|block| !block.is_void)
            .map(|block| directory.read(block))
            .collect::<Result<Vec<_>, _>>()?;
        remove(&records)?;
        Ok((runs, result))
    }
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| directory.display().to_string())
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A process that is the device, or a part of it; dropping it ends it.
#[derive(Debug)]
pub(crate) struct DeviceProcess {
    process: RunningProcess,
    log: PathBuf,
}

impl DeviceProcess {
    /// Starts this program with `arguments` in a namespace, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not start or does not become ready.
    pub(crate) fn start(
        lab: &LabRun,
        namespace: &str,
        name: &str,
        arguments: &[&str],
    ) -> Result<Self> {
        let program = &lab.environment().program;
        Self::start_program(lab, (namespace, name), program, arguments)
    }

    /// The same for another program that starts this one.
    ///
    /// # Errors
    /// When it does not start or does not become ready.
    pub(crate) fn start_program(
        lab: &LabRun,
        (namespace, name): (&str, &str),
        program: &Path,
        arguments: &[&str],
    ) -> Result<Self> {
        let log = lab.directory().join(format!("{name}.log"));
        // The word of an earlier process must not count.
        let _ = fs::remove_file(&log);
        let launch = LaunchConfig {
            name,
            namespace,
            program,
            logs: lab.directory(),
        };
        let mut process = RunningProcess::start(lab, &launch, arguments)?;
        process.wait_ready(START_LIMIT, "to be ready", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            Ok(text.lines().any(|line| line == "ready"))
        })?;
        Ok(Self { process, log })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.process.stop(ProcessSignal::Terminate).map(|_| ())
    }

    /// Ends an emulated device; returns its account of itself.
    ///
    /// # Errors
    /// When it cannot be waited for, or its last line is no report.
    pub(crate) fn stop_emulation(self) -> Result<EmulationAccount> {
        let log = self.log.clone();
        self.stop()?;
        let text = fs::read_to_string(&log).with_context(|| log.display().to_string())?;
        EmulationAccount::read(&text).with_context(|| {
            format!(
                "{} does not end with the emulator's report: {text}",
                log.display()
            )
        })
    }
}

/// Deviations of an emulated device from its model, as the emulator counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct EmulationAccount {
    /// Packets that the machine lost and not the model.
    pub(crate) lost: u64,
    /// Time within which half of the packets left, counted from the model's time.
    pub(crate) lateness_p50: Duration,
    /// The same for 99 of 100 packets.
    pub(crate) lateness_p99: Duration,
    /// Share of the packets that left more than 0.2 ms after the model's time.
    pub(crate) late_share: f64,
}

impl EmulationAccount {
    /// Reads the report at the end of the emulator's output.
    fn read(text: &str) -> Option<Self> {
        let reports = text.lines().rev();
        let report: Value = reports
            .filter_map(|line| serde_json::from_str(line).ok())
            .find(|report: &Value| report["ports"].is_array())?;
        let ports = report["ports"].as_array()?.iter();
        let at_ports = ports.map(|port| {
            Some(port["unread_packets"].as_u64()? + port["failed_writes_packets"].as_u64()?)
        });
        let others = report["dropped_by_limit_packets"].as_u64()?
            + report["dropped_by_flood_limit_frames"].as_u64()?;
        let micros = |key: &str| Some(Duration::from_micros(report[key].as_u64()?));
        Some(Self {
            lost: at_ports.sum::<Option<u64>>()? + others,
            lateness_p50: micros("lateness_p50_us")?,
            lateness_p99: micros("lateness_p99_us")?,
            late_share: report["over_200us_late_packets"].as_u64()? as f64
                / report["delivered_packets"].as_u64()?.max(1) as f64,
        })
    }
}

/// Runs `ip` with these words.
///
/// # Errors
/// When it fails.
pub(crate) fn ip(words: &str) -> Result<()> {
    command::run("ip", words.split(' ')).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_is_the_last_report() {
        let text = r#"ready
{"dropped_by_limit_packets":1,"dropped_by_flood_limit_frames":2,"lateness_p50_us":10,
{"dropped_by_limit_packets":1,"dropped_by_flood_limit_frames":2,"lateness_p50_us":10,"lateness_p99_us":350,"over_200us_late_packets":2,"delivered_packets":8,"ports":[{"unread_packets":3,"failed_writes_packets":4},{"unread_packets":5,"failed_writes_packets":0}]}
bye"#;
        let account = EmulationAccount {
            lost: 15,
            lateness_p50: Duration::from_micros(10),
            lateness_p99: Duration::from_micros(350),
            late_share: 0.25,
        };
        assert_eq!(EmulationAccount::read(text), Some(account));
        assert_eq!(EmulationAccount::read("ready"), None);
    }
}
