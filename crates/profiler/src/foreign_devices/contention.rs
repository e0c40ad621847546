//! Two forwarders in two namespaces that contend for one core.
//!
//! ```text
//!   port 0 ─ in0 ─ forwarder ─ in1 ─ port 1     both bound to one processor,
//!   port 2 ─ in2 ─ forwarder ─ in3 ─ port 3     which the scheduler divides
//! ```
//! Each forwarder is a link of the emulator without any setting, in user space. Packets wait in the
//! rings of its sockets while the other one has the processor.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use host::packets::system;
use host::progress::{ProgressReporter, SilentProgress};
use host::run::LabRun;
use profile::{MeasuredRun, MeasurementPlan};

use crate::device_stand::{DeviceProcess, DeviceStand, ip};
use crate::measurement::plan_time;

/// Name of the device.
pub(super) const NAME: &str = "two forwarders on one core";

/// Makes the forwarders, and measures them.
pub(super) fn measure(
    lab: &LabRun,
    progress: &dyn ProgressReporter,
) -> Result<(MeasurementPlan, Vec<MeasuredRun>)> {
    let stand = DeviceStand::create(lab, "contention", 4)?;
    let second = lab.make_namespace("contention-second")?;
    for number in [2, 3] {
        ip(&format!(
            "-n {} link set in{number} netns {second}",
            stand.device
        ))?;
        ip(&format!("-n {second} link set in{number} up"))?;
    }
    let processor = system::allowed_processors()?
        .last()
        .copied()
        .unwrap_or_default()
        .to_string();
    let program = lab.environment().program.display().to_string();
    let start = |namespace: &str, name: &str, bridge: &str| {
        let arguments = [
            "-c",
            processor.as_str(),
            program.as_str(),
            "emulate",
            "run",
            "--json",
            "--bridge",
            bridge,
        ];
        DeviceProcess::start_program(lab, (namespace, name), Path::new("taskset"), &arguments)
    };
    let first_forwarder = start(&stand.device, "forwarder-1", "in0,in1")?;
    let second_forwarder = start(&second, "forwarder-2", "in2,in3")?;
    let plan = plan();
    let (runs, result) = stand.measure(&plan, &SilentProgress)?;
    first_forwarder.stop()?;
    second_forwarder.stop()?;
    if let Some(failure) = &result.failure {
        progress.note(&format!("{NAME}: {failure}"));
    }
    Ok((plan, runs))
}

/// Time that the measurement takes.
pub(super) fn measuring_time() -> Duration {
    plan_time(&plan())
}

fn plan() -> MeasurementPlan {
    MeasurementPlan::from_toml(PLAN).expect("the plan is well formed")
}

const PLAN: &str = r#"
    name = "contention"
    ports = 4
    loss_after = "1s"

    [[experiment]]
    name = "transit"
    purpose = "transit"
    subjects = ["cable", "device"]
    for_each_size = ["64B", "300B", "700B", "1100B", "1500B"]
    traffic = [{ from = [0], to = [1], packets = 300,
        pattern = { kind = "poisson", packets_per_second = 200.0 } }]

    [[experiment]]
    name = "contention"
    purpose = "contention"
    for_each_size = ["64B", "700B", "1500B"]
    traffic = [{ from = [0, 2], to = [1, 3], packets = 1000,
        pattern = { kind = "bursts", packets_per_burst = 2, period = "5ms" } }]

    [[experiment]]
    name = "input overload"
    purpose = "input-overload"
    for_each_size = ["64B", "700B", "1500B"]
    traffic = [{ from = [0], to = [1], packets = 20000,
        pattern = { kind = "bursts", packets_per_burst = 20000, period = "10s" } }]

    [[experiment]]
    name = "overload"
    purpose = "overload"
    for_each_size = ["64B", "700B", "1500B"]
    traffic = [{ from = [0], to = [1], packets = 20000,
        pattern = { kind = "bursts", packets_per_burst = 20000, period = "10s" } }]

    [[experiment]]
    name = "bursts through both"
    purpose = "held-out"
    traffic = [{ from = [0, 2], to = [1, 3], packets = 40000,
        sizes = [{ size = "64B", share = 5 }, { size = "576B", share = 2 }, { size = "1500B", share = 3 }],
        pattern = { kind = "bursts", packets_per_burst = 100, period = "5ms" } }]

    [[experiment]]
    name = "closed-loop TCP through both"
    purpose = "held-out"
    [[experiment.traffic]]
    from = [0]
    to = [1]
    flows = 10
    duration = "3s"
    pattern = { kind = "tcp", segment = "1448B" }
    [[experiment.traffic]]
    from = [2]
    to = [3]
    flows = 10
    duration = "3s"
    pattern = { kind = "tcp", segment = "1448B" }
"#;
