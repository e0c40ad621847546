//! An emulated device in virtual time: measures it by a plan, and replays packets through a model.

use bytes::Bytes;
use emulate::EmulatedDevice;
use profile::{
    DeviceSimulator, MeasuredRun, MeasurementPlan, PacketContent, PacketIntegrity, ReceivedPacket,
    RunPlan, SimulatedPacket, TrafficMachine,
};
use vocab::{DeviceModel, Time};

/// Content of UDP packets; the device reads only their length.
static ZEROS: [u8; 9_000] = [0; 9_000];

/// Runs the whole plan against a device of this model.
pub(crate) fn measure(plan: &MeasurementPlan, model: &DeviceModel) -> Vec<MeasuredRun> {
    plan.runs()
        .into_iter()
        .map(|run| measure_run(run, model))
        .collect()
}

fn measure_run(run: RunPlan, model: &DeviceModel) -> MeasuredRun {
    let mut device = EmulatedDevice::new(model.clone(), run.seed);
    let mut machine = TrafficMachine::new(Time::ZERO, &run);
    let mut records = Vec::new();
    let mut now = Time::ZERO;
    loop {
        while let Some(packet) = machine.poll_output(now) {
            let content = match packet.content {
                PacketContent::Datagram => Bytes::from_static(&ZEROS[..packet.size as usize]),
                PacketContent::Tcp(content) => content,
            };
            let index = device.handle(now, (packet.input, packet.output), content);
            // Both count from zero.
            assert_eq!(index, packet.sequence);
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
        records.extend(std::iter::from_fn(|| machine.poll_record(now)));
        let next = match (machine.poll_timeout(), device.poll_timeout()) {
            (None, None) => break,
            (Some(machine), Some(device)) => machine.min(device),
            (one, other) => one.or(other).expect("one of them has a time"),
        };
        now = now.max(next);
    }
    while device.poll_drop().is_some() {}
    MeasuredRun { plan: run, records }
}

/// The emulator as a simulator of models.
pub(crate) struct EmulatorSimulator;

impl DeviceSimulator for EmulatorSimulator {
    fn replay(&mut self, model: &DeviceModel, packets: &[SimulatedPacket]) -> Vec<Option<Time>> {
        let mut device = EmulatedDevice::new(model.clone(), 1);
        let mut left = vec![None; packets.len()];
        for packet in packets {
            let content = Bytes::from_static(&ZEROS[..packet.size as usize]);
            device.handle(packet.sent, (packet.input, packet.output), content);
            while device.poll_drop().is_some() {}
            collect(&mut device, packet.sent, &mut left);
        }
        while let Some(next) = device.poll_timeout() {
            collect(&mut device, next, &mut left);
        }
        left
    }
}

fn collect(device: &mut EmulatedDevice, until: Time, left: &mut [Option<Time>]) {
    while let Some(delivery) = device.poll_output(until) {
        left[delivery.index as usize] = Some(delivery.at);
    }
}
