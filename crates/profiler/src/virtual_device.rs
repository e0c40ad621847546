//! Emulated devices in virtual time: measured by a plan, and replayed for validation.
//!
//! ```text
//!  plan ─► traffic machine ─► emulated device ─► traffic machine ─► records
//!  packets of a held-out run ─► emulated device ─► time at which each leaves
//! ```
//! The cable of the plan delivers at once, because virtual ports add nothing.

use bytes::Bytes;
use emulate::EmulatedDevice;
use profile::{
    DeviceSimulator, MeasuredRun, MeasurementPlan, MeasurementSubject, OutgoingPacket,
    PACKET_SIZE_MAX, PacketContent, PacketIntegrity, ReceivedPacket, RunPlan, SimulatedPacket,
    TrafficMachine,
};
use vocab::{DeviceModel, Time};

/// Content of UDP packets; the device reads only their length.
static ZEROS: [u8; PACKET_SIZE_MAX.bytes() as usize] = [0; PACKET_SIZE_MAX.bytes() as usize];
/// Seed of a model's own random numbers in a replay.
const REPLAY_SEED: u64 = 1;

/// The runs of the plan against a device of this model, in virtual time; each is measured when it is
/// asked for.
pub fn virtual_runs<'a>(
    plan: &MeasurementPlan,
    model: &'a DeviceModel,
) -> impl Iterator<Item = MeasuredRun> + use<'a> {
    plan.runs().into_iter().map(move |run| match run.subject {
        MeasurementSubject::Device => measure_device(run, model),
        MeasurementSubject::Cable => measure_cable(run),
    })
}

fn measure_device(run: RunPlan, model: &DeviceModel) -> MeasuredRun {
    let mut device = EmulatedDevice::new(model.clone(), run.seed);
    let mut machine = TrafficMachine::new(Time::ZERO, &run);
    let mut records = Vec::new();
    let mut now = Time::ZERO;
    loop {
        while let Some(packet) = machine.poll_output(now) {
            let (input, output) = (packet.input, packet.output);
            device.handle(now, (input, output), content_of(packet));
        }
        while let Some(delivery) = device.poll_output(now) {
            let arrival = ReceivedPacket {
                sequence: delivery.index,
                at: delivery.at,
                size: delivery.packet.len() as u32,
                output: delivery.output,
                integrity: PacketIntegrity::Intact,
                content: Some(delivery.packet),
            };
            machine.handle_received(now, &arrival);
        }
        while device.poll_drop().is_some() {}
        records.extend(std::iter::from_fn(|| machine.poll_record(now)));
        let next = match (machine.poll_timeout(), device.poll_timeout()) {
            (None, None) => break,
            (Some(machine), Some(device)) => machine.min(device),
            (Some(next), None) | (None, Some(next)) => next,
        };
        now = now.max(next);
    }
    MeasuredRun { plan: run, records }
}

fn measure_cable(run: RunPlan) -> MeasuredRun {
    let mut machine = TrafficMachine::new(Time::ZERO, &run);
    let mut records = Vec::new();
    let mut now = Time::ZERO;
    loop {
        while let Some(packet) = machine.poll_output(now) {
            let arrival = ReceivedPacket {
                sequence: packet.sequence,
                at: now,
                size: packet.size,
                output: packet.output,
                integrity: PacketIntegrity::Intact,
                content: Some(content_of(packet)),
            };
            machine.handle_received(now, &arrival);
        }
        records.extend(std::iter::from_fn(|| machine.poll_record(now)));
        match machine.poll_timeout() {
            Some(next) => now = now.max(next),
            None => break,
        }
    }
    MeasuredRun { plan: run, records }
}

fn content_of(packet: OutgoingPacket) -> Bytes {
    match packet.content {
        PacketContent::Datagram => zeros(packet.size),
        PacketContent::Tcp(content) => content,
    }
}

/// A packet of this length; records can name a longer one than a plan sends.
fn zeros(size: u32) -> Bytes {
    match ZEROS.get(..size as usize) {
        Some(content) => Bytes::from_static(content),
        None => Bytes::from(vec![0; size as usize]),
    }
}

/// The emulator as a simulator of models.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmulatorSimulator;

impl DeviceSimulator for EmulatorSimulator {
    fn replay(&mut self, model: &DeviceModel, packets: &[SimulatedPacket]) -> Vec<Option<Time>> {
        let mut device = EmulatedDevice::new(model.clone(), REPLAY_SEED);
        let mut left = vec![None; packets.len()];
        for packet in packets {
            device.handle(
                packet.sent,
                (packet.input, packet.output),
                zeros(packet.size),
            );
            while device.poll_drop().is_some() {}
            collect(&mut device, packet.sent, &mut left);
        }
        while let Some(next) = device.poll_timeout() {
            collect(&mut device, next, &mut left);
            while device.poll_drop().is_some() {}
        }
        left
    }
}

fn collect(device: &mut EmulatedDevice, until: Time, left: &mut [Option<Time>]) {
    while let Some(delivery) = device.poll_output(until) {
        if let Some(left) = left.get_mut(delivery.index as usize) {
            *left = Some(delivery.at);
        }
    }
}
