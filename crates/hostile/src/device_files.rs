//! Fuzz entries of `profile` and `vocab` for the files of the device profiler: a measurement plan,
//! a device model, and the head of a column of records.
//!
//! An accepted plan lists its runs, and the first one sends packets whose numbers rise. An accepted
//! model can be run: no packet comes out that did not go in, and time moves forward.

use bytes::Bytes;
use emulate::EmulatedDevice;
use profile::{ColumnHead, MeasurementPlan, TrafficMachine, TrafficPattern};
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

/// The head of a column of records.
pub(crate) fn column(bytes: &[u8]) {
    let Ok(head) = ColumnHead::parse(bytes) else {
        return;
    };
    assert!(head.start <= bytes.len());
    let text = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}\n",
        head.kind, head.rows
    );
    // A type with a quotation mark cannot be written with the same one.
    if head.kind.contains('\'') {
        return;
    }
    let mut written = b"\x93NUMPY\x01\x00".to_vec();
    written.extend((text.len() as u16).to_le_bytes());
    written.extend(text.as_bytes());
    let again = ColumnHead::parse(&written).expect("a head that was read can be written");
    assert_eq!((again.kind, again.rows), (head.kind, head.rows));
}

/// Good inputs for [`column`].
pub(crate) fn column_seeds() -> Vec<CorpusSeed> {
    let head = |version: &[u8], text: &str| {
        let mut bytes = b"\x93NUMPY".to_vec();
        bytes.extend(version);
        bytes.extend(text.as_bytes());
        bytes
    };
    let ours = "{'descr': '<i8', 'fortran_order': False, 'shape': (                   7,), }\n";
    let other = "{\"shape\": (7,), \"fortran_order\": False, \"descr\": \"|u1\"}";
    vec![
        seed("ours", head(&[1, 0, ours.len() as u8, 0], ours)),
        seed(
            "version-2",
            head(&[2, 0, other.len() as u8, 0, 0, 0], other),
        ),
    ]
}
