//! The stand of the tests: ports of the profiler, cabled to interfaces of a device.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use emulator::device::{DeviceHandle, DeviceStart, read_model};
use emulator::link::{BridgeEnd, BridgeIo, NetworkNamespace};
use host::progress::SilentProgress;
use host::rootless::UserNamespaceMembership;
use host::run::LabRun;
use host::{ProgramEnvironment, command, kernel};
use profiler::{MeasurementPlan, MeasurementResult, MeasurementSettings, PortLocation, measure};

static TURN: Mutex<()> = Mutex::new(());

/// Ports and a device's interfaces, in two namespaces.
pub(crate) struct DeviceStand {
    pub(crate) run: LabRun,
    pub(crate) ports: String,
    pub(crate) device: String,
    count: u16,
    _turn: MutexGuard<'static, ()>,
}

impl DeviceStand {
    /// Makes a stand with so many ports; `None` where the test cannot run, with a remark on standard
    /// error.
    pub(crate) fn new(test: &str, count: u16) -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let has_root = kernel::effective_user() == 0 && command::find("ip").is_some();
        if !has_root || command::run("unshare", ["-n", "true"]).is_err() {
            // Past the test harness, which hides what passing tests print.
            let _ = writeln!(std::io::stderr(), "skipped {test}: it needs root and ip(8)");
            return None;
        }
        let run = lab("");
        let ports = run.make_namespace("ports").unwrap();
        let device = run.make_namespace("device").unwrap();
        for number in 0..count {
            ip(&format!(
                "-n {ports} link add port{number} type veth peer name in{number} netns {device}"
            ));
            for (namespace, interface) in [(&ports, "port"), (&device, "in")] {
                let interface = format!("{interface}{number}");
                // Addresses that the kernel gives itself would send frames of their own.
                ip(&format!(
                    "-n {namespace} link set {interface} addrgenmode none arp off up"
                ));
            }
        }
        Some(Self {
            run,
            ports,
            device,
            count,
            _turn: turn,
        })
    }

    /// Interfaces of the device, as the command line names them.
    pub(crate) fn bridge(&self) -> String {
        let names = (0..self.count).map(|number| format!("in{number}@{}", self.device));
        names.collect::<Vec<_>>().join(",")
    }

    /// Writes a model to a file; returns its path.
    pub(crate) fn write_model(&self, model: &str) -> PathBuf {
        let path = self.run.directory().join("model.toml");
        std::fs::write(&path, model).unwrap();
        path
    }

    /// Starts a device of this model.
    pub(crate) fn start(&self, model: &str) -> DeviceHandle {
        let ports = (0..self.count).map(|number| BridgeEnd {
            interface: format!("in{number}"),
            namespace: Some(NetworkNamespace::new(&self.device)),
        });
        DeviceHandle::start(DeviceStart {
            model: read_model(&self.write_model(model)).unwrap(),
            ports: ports.collect(),
            io: BridgeIo::Packet,
            seed: 1,
            busy_poll: Duration::ZERO,
        })
        .unwrap()
    }

    /// Ports of the profiler.
    pub(crate) fn locations(&self) -> Vec<PortLocation> {
        (0..self.count)
            .map(|number| PortLocation::parse(&format!("port{number}@{}", self.ports)).unwrap())
            .collect()
    }

    /// Measures by a plan through all ports.
    pub(crate) fn measure(
        &self,
        plan: &str,
        records: Option<&Path>,
    ) -> anyhow::Result<MeasurementResult> {
        let settings = MeasurementSettings {
            plan: MeasurementPlan::from_toml(plan).unwrap(),
            ports: self.locations(),
            records: records.map(Path::to_owned),
            records_max_bytes: 1 << 30,
        };
        measure(&self.run, &settings, &SilentProgress)
    }
}

/// A lab whose processes run this program.
pub(crate) fn lab(program: &str) -> LabRun {
    LabRun::create(&ProgramEnvironment {
        program: PathBuf::from(program),
        arguments: Vec::new(),
        user_namespace: UserNamespaceMembership::No,
    })
    .unwrap()
}

pub(crate) fn ip(words: &str) {
    command::run("ip", words.split(' ')).unwrap();
}
