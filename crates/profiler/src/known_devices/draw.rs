//! Devices with parameters drawn from stated ranges, and the plan that measures them.
//!
//! | parameter | range |
//! | --- | --- |
//! | output rate | 1 Mbit/s to 1 Gbit/s, logarithmic |
//! | overhead | 0 to 38 bytes |
//! | output queue | 4 packets of 1500 bytes to 2 MB, logarithmic, in bytes, packets or slots |
//! | slot | 128 to 2048 bytes, logarithmic |
//! | servers | 1 to 4, each 0.5 to 50 µs, up to three times as long for 1500 bytes as for 64 |
//! | fixed delay | 1 to 200 µs, bent at 512 bytes |

use std::fmt::Write;
use std::time::Duration;

use profile::{ExperimentPurpose, MeasurementPlan, TrafficPattern};
use vocab::{
    Bitrate, ByteCount, DeviceModel, DeviceQueueLimit, OutputModel, SeededRandom, SharedServers,
    SizeTimePoint, SizeTimeTable,
};

/// Sizes that the plan sends; they lie on both sides of usual slot sizes.
pub(crate) const SIZES: [u64; 12] = [
    64, 90, 128, 200, 300, 430, 512, 700, 900, 1_100, 1_300, 1_500,
];
/// Those of long bursts on one input in real time.
const INPUT_SIZES: [u64; 4] = [64, 300, 700, 1_500];
/// Bytes that a burst of overload offers.
const OVERLOAD_BYTES: u64 = 4_000_000;
/// Packets of a burst on one input.
const INPUT_PACKETS: u64 = 1_000;
/// Largest queue.
const QUEUE_BYTES_MAX: f64 = 2_000_000.0;
/// Ports of every device.
pub const PORTS: u16 = 8;

/// Time to wait for the last packets beyond that in which the queue drains.
const LOSS_LEAST: Duration = Duration::from_millis(200);
/// Lone packets of each size through noisy ports: the smallest of so many delays has little noise.
const LONE_PACKETS: u64 = 40;
/// A packet of 1500 bytes takes 12 ms on the slowest line.
const LONE_PPS: f64 = 60.0;
/// Ports of a short burst in real time: the emulator forwards as a switch, which sends nothing back to
/// its port. All packets enter by one port, which sends them in one batch.
const BURST_OUTPUTS: std::ops::Range<u16> = 1..PORTS;
/// Time between packets of an overload in real time: the fastest line is overloaded by its larger
/// packets, and a process on a shared core keeps up.
const OVERLOAD_GAP: Duration = Duration::from_micros(8);
/// Packets of an overload in real time: half a second, in which pauses of the machine average out.
const OVERLOAD_PACKETS: u64 = 62_500;
/// Bursts of each size through noisy ports, and the time between them, in which every line drains.
const BURSTS: u64 = 25;
const BURST_PERIOD: Duration = Duration::from_millis(20);

/// A device of this seed.
///
/// # Panics
/// Never: the ranges give usable models.
#[must_use]
pub fn device(seed: u64) -> DeviceModel {
    let mut random = SeededRandom::for_stream(seed, 33);
    let rate = Bitrate::from_bits_per_second(logarithmic(&mut random, 1e6, 1e9) as u64);
    let overhead = random.below(39);
    let count = 1 + random.below(4) as u16;
    let least = logarithmic(&mut random, 500.0, 50_000.0);
    let most = (least * (1.0 + 2.0 * random.next_f64())).min(50_000.0);
    let service = table(&[(64, least), (1_500, most)]);
    let fixed = logarithmic(&mut random, 1_000.0, 100_000.0);
    let bend = fixed * (1.0 + random.next_f64());
    let fixed = [(64, fixed), (512, bend), (1_500, bend * 1.1)];
    let queue = queue(&mut random, overhead);
    let output = OutputModel {
        rate: Some(rate),
        burst: None,
        overhead: ByteCount::new(overhead),
        queue,
        aqm: None,
        policer: None,
    };
    let transit: Vec<(u64, f64)> = fixed
        .iter()
        .map(|(size, fixed)| {
            let rest = service.at(*size) + output.serialisation(*size);
            (*size, fixed + rest.as_nanos() as f64)
        })
        .collect();
    let model = DeviceModel {
        name: format!("known device {seed}"),
        ports: PORTS,
        transit: table(&transit),
        input_queue: None,
        servers: Some(SharedServers { count, service }),
        output,
        port_outputs: Vec::new(),
    };
    model.check().expect("the ranges give usable models");
    model
}

fn queue(random: &mut SeededRandom, overhead: u64) -> DeviceQueueLimit {
    let full = (1_500 + overhead) as f64;
    match random.below(3) {
        0 => {
            let bytes = logarithmic(random, 4.0 * full, QUEUE_BYTES_MAX);
            DeviceQueueLimit::Bytes(ByteCount::new(bytes as u64))
        }
        1 => {
            let packets = logarithmic(random, 4.0, QUEUE_BYTES_MAX / full);
            DeviceQueueLimit::Packets(packets.round() as u64)
        }
        _ => {
            let slot = logarithmic(random, 128.0, 2_048.0).round();
            let least = 4.0 * (full / slot).ceil();
            let count = logarithmic(random, least, QUEUE_BYTES_MAX / slot);
            DeviceQueueLimit::Slots {
                count: count.round() as u64,
                slot: ByteCount::new(slot as u64),
            }
        }
    }
}

fn logarithmic(random: &mut SeededRandom, from: f64, to: f64) -> f64 {
    from * (to / from).powf(random.next_f64())
}

fn table(points: &[(u64, f64)]) -> SizeTimeTable {
    let points = points
        .iter()
        .map(|(size, nanoseconds)| SizeTimePoint {
            size: ByteCount::new(*size),
            time: Duration::from_nanos(nanoseconds.round() as u64),
        })
        .collect();
    SizeTimeTable::new(points).expect("the sizes rise")
}

/// The plan for ports without noise: lone packets, bursts to eight outputs, and overload of one output, all by size. `gap` is
/// the time between the packets of a burst.
///
/// # Panics
/// When `gap` is no time.
#[must_use]
pub fn plan(gap: &str) -> MeasurementPlan {
    let sizes: Vec<String> = SIZES.iter().map(|size| format!("\"{size}B\"")).collect();
    let sizes = sizes.join(", ");
    let mut text = format!(
        r#"
        name = "known devices"
        ports = {PORTS}
        loss_after = "100s"

        [[experiment]]
        name = "transit"
        purpose = "transit"
        subjects = ["cable", "device"]
        for_each_size = [{sizes}]
        traffic = [{{ from = [0], to = [1], packets = 3,
            pattern = {{ kind = "constant", packets_per_second = 5.0 }} }}]

        [[experiment]]
        name = "contention"
        purpose = "contention"
        for_each_size = [{sizes}]
        traffic = [{{ from = [0, 1, 2, 3, 4, 5, 6, 7], to = [1, 2, 3, 4, 5, 6, 7, 0], packets = 16,
            pattern = {{ kind = "bursts", packets_per_burst = 8, gap = "{gap}", period = "200ms" }} }}]
        "#
    );
    write!(
        text,
        r#"
        [[experiment]]
        name = "input overload"
        purpose = "input-overload"
        for_each_size = [{sizes}]
        traffic = [{{ from = [0], to = [0, 1, 2, 3, 4, 5, 6, 7], packets = {INPUT_PACKETS},
            pattern = {{ kind = "bursts", packets_per_burst = {INPUT_PACKETS}, gap = "{gap}", period = "1h" }} }}]
        "#
    )
    .expect("a string takes any text");
    for size in SIZES {
        let packets = OVERLOAD_BYTES / size;
        write!(
            text,
            r#"
            [[experiment]]
            name = "overload {size}"
            purpose = "overload"
            for_each_size = ["{size}B"]
            traffic = [{{ from = [1, 2, 3, 4, 5, 6, 7], to = [0], packets = {packets},
                pattern = {{ kind = "bursts", packets_per_burst = {packets}, gap = "{gap}", period = "1h" }} }}]
            "#
        )
        .expect("a string takes any text");
    }
    MeasurementPlan::from_toml(&text).expect("the plan is well formed")
}

/// The plan for ports with noise: the same experiments with more packets, short bursts that enter by one
/// port, and an overload of half a second. `device` is only asked how long its queues need
/// to drain, as an operator knows the slowest line that he expects; each run waits that long.
///
/// # Panics
/// Never: the plan is well formed.
#[must_use]
pub fn real_plan(device: &DeviceModel) -> MeasurementPlan {
    let mut plan = plan("0s");
    let rate = device
        .output
        .rate
        .map_or(1e9, |rate| rate.bits_per_second() as f64);
    let drain =
        Duration::from_secs_f64(8.0 * 1.1 * QUEUE_BYTES_MAX.min(queue_bytes(device)) / rate);
    // Servers that are slower than the ports hold the packets of a whole run back.
    let pace = device.servers.as_ref().map_or(Duration::ZERO, |servers| {
        device.service_time(1_500) / u32::from(servers.count)
    });
    let backlog = pace.saturating_sub(OVERLOAD_GAP) * OVERLOAD_PACKETS as u32;
    plan.loss_after = drain + backlog + LOSS_LEAST;
    for experiment in &mut plan.experiments {
        if experiment.purpose == ExperimentPurpose::InputOverload {
            // Each run waits until the queues have drained.
            experiment.for_each_size = INPUT_SIZES.map(ByteCount::new).to_vec();
        }
        for traffic in &mut experiment.traffic {
            match (experiment.purpose, &mut traffic.pattern) {
                (ExperimentPurpose::Transit, pattern) => {
                    *pattern = TrafficPattern::Constant {
                        packets_per_second: LONE_PPS,
                    };
                    traffic.packets = Some(LONE_PACKETS);
                }
                (
                    ExperimentPurpose::Contention,
                    TrafficPattern::Bursts {
                        packets_per_burst,
                        period,
                        ..
                    },
                ) => {
                    traffic.from = vec![0];
                    traffic.to = BURST_OUTPUTS.collect();
                    *packets_per_burst = u32::from(BURST_OUTPUTS.end - BURST_OUTPUTS.start);
                    *period = BURST_PERIOD;
                    traffic.packets = Some(u64::from(*packets_per_burst) * BURSTS);
                }
                (
                    ExperimentPurpose::Overload,
                    TrafficPattern::Bursts {
                        packets_per_burst,
                        gap,
                        ..
                    },
                ) => {
                    *gap = OVERLOAD_GAP;
                    *packets_per_burst = OVERLOAD_PACKETS as u32;
                    traffic.packets = Some(OVERLOAD_PACKETS);
                }
                (ExperimentPurpose::InputOverload, _) => {
                    // The emulator forwards as a switch, which sends nothing back to its port.
                    traffic.to.retain(|port| !traffic.from.contains(port));
                }
                _ => {}
            }
        }
    }
    plan
}

/// The plan for ports with noise in two: the overloads, and all others.
pub(super) fn real_plans(device: &DeviceModel) -> (MeasurementPlan, MeasurementPlan) {
    let mut overloads = real_plan(device);
    let mut probes = overloads.clone();
    let experiments = std::mem::take(&mut probes.experiments);
    (overloads.experiments, probes.experiments) = experiments
        .into_iter()
        .partition(|experiment| experiment.purpose == ExperimentPurpose::Overload);
    probes.loss_after = probes.loss_after.min(probe_drain(device) + LOSS_LEAST);
    (overloads, probes)
}

/// Time in which all packets of a run without overload of an output leave: those of a burst on one
/// input, one after the other through the servers and then, an equal part each, through the outputs.
fn probe_drain(device: &DeviceModel) -> Duration {
    let outputs = BURST_OUTPUTS.end - BURST_OUTPUTS.start;
    let behind_each = (INPUT_PACKETS as u32).div_ceil(u32::from(outputs));
    let served = device.service_time(1_500) * INPUT_PACKETS as u32;
    device.fixed_delay(0, 1_500) + served + device.output.serialisation(1_500) * behind_each
}

/// Bytes of packets of 1500 bytes that the queue holds.
fn queue_bytes(device: &DeviceModel) -> f64 {
    let overhead = device.output.overhead.bytes();
    let queue = device.output.queue;
    let most = SIZES.map(|size| queue.limit() / queue.cost(size + overhead) * (size + overhead));
    most.into_iter().max().unwrap_or_default() as f64
}
