//! Fuzz entries of `profile` and `vocab` for the files of the device profiler: a measurement plan,
//! and a device model.
//!
//! An accepted plan lists its runs, and the first one sends packets whose numbers rise. An accepted
//! model can be run: no packet comes out that did not go in, and time moves forward.

use bytes::Bytes;
use emulate::EmulatedDevice;
use profile::{MeasurementPlan, TrafficMachine, TrafficPattern};
use vocab::{DeviceModel, Time};

use crate::seed::{CorpusSeed, seed};

/// Packets of each run of a machine.
const PACKETS: u64 = 200;

/// A measurement plan.
pub(crate) fn plan(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(plan) = MeasurementPlan::from_toml(text) else {
        return;
    };
    let runs = plan.runs();
    let is_udp = |run: &&profile::RunPlan| {
        run.traffic
            .iter()
            .all(|traffic| !matches!(traffic.pattern, TrafficPattern::Tcp { .. }))
    };
    let Some(run) = runs.iter().find(is_udp) else {
        return;
    };
    let mut machine = TrafficMachine::new(Time::ZERO, run);
    for number in 0..PACKETS {
        let Some(at) = machine.next_packet() else {
            break;
        };
        let packet = machine.poll_output(at).expect("a packet is due");
        assert_eq!(packet.sequence, number);
        assert!(packet.input < plan.ports && packet.output < plan.ports);
    }
}

/// Good inputs for [`plan`].
pub(crate) fn plan_seeds() -> Vec<CorpusSeed> {
    let bursts = r#"name = "bursts"
ports = 2
[[experiment]]
name = "mix"
purpose = "held-out"
for_each_size = ["64B", "1500B"]
subjects = ["cable", "device"]
repetitions = 3
[[experiment.traffic]]
from = [0]
to = [1]
pattern = { kind = "bursts", packets_per_burst = 10, gap = "2us", period = "20ms" }
sizes = [{ size = "64B", share = 3.0 }, { size = "1500B" }]
duration = "1s"
"#;
    let random = r#"name = "random"
ports = 1
loss_after = "3s"
[[experiment]]
name = "poisson"
purpose = "report"
[[experiment.traffic]]
from = [0, 0]
to = [0]
pattern = { kind = "poisson", packets_per_second = 1e3 }
sizes = [{ size = "52B" }]
packets = 100
"#;
    vec![seed("bursts", bursts), seed("random", random)]
}

/// A device model.
pub(crate) fn model(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(model) = toml::from_str::<DeviceModel>(text) else {
        return;
    };
    let ports = model.ports;
    let mut device = EmulatedDevice::new(model, 1);
    let mut last = Time::ZERO;
    let mut left = 0;
    for number in 0..PACKETS {
        let now = Time::from_nanos(number * 10_000);
        let size = 40 + (number * 97 % 1_461) as usize;
        let way = (
            (number % u64::from(ports)) as u16,
            (number * 3 % u64::from(ports)) as u16,
        );
        device.handle(now, way, Bytes::from(vec![0; size]));
        while let Some(delivery) = device.poll_output(now) {
            assert!(delivery.at >= last && delivery.index <= number);
            last = delivery.at;
            left += 1;
        }
    }
    // A minute later; with 1 bit/s most packets are still inside.
    while device
        .poll_output(Time::from_nanos(60_000_000_000))
        .is_some()
    {
        left += 1;
    }
    assert!(left <= PACKETS);
    assert_eq!(device.counters().offered.packets, PACKETS);
}

/// Good inputs for [`model`].
pub(crate) fn model_seeds() -> Vec<CorpusSeed> {
    let router = r#"name = "router"
ports = 4
transit = [{ size = "64B", time = "30us" }, { size = "1500B", time = "180us" }]
input_queue = { packets = 75 }
[servers]
count = 2
service = [{ size = "64B", time = "9us" }]
[output]
rate = "100Mbit"
overhead = "38B"
queue = { slots = 512, slot = "256B" }
[[port]]
number = 3
output = { rate = "1Gbit", queue = { bytes = "64KiB" }, aqm = { kind = "codel", target = "5ms", interval = "100ms" } }
"#;
    let policer = r#"ports = 2
transit = [{ size = "0B", time = "1us" }]
[output]
queue = { packets = 5 }
policer = { rate = "1Mbit", burst = "15kB" }
"#;
    vec![seed("router", router), seed("policer", policer)]
}
