//! A switch with cells and turns, in virtual time: a device that no model of the fit describes.
//!
//! ```text
//!   input ─► buffers of 64 bytes ─┐ turns   ┌─► fixed delay ─► slots with descriptors ─► line
//!   input ─► buffers of 64 bytes ─┼► engine ┤
//!   input ─► buffers of 64 bytes ─┘ engine  └─► fixed delay ─► slots with descriptors ─► line
//! ```
//! | part | here | in the fitter's model |
//! | --- | --- | --- |
//! | order of service | inputs take turns | the oldest packet of all inputs |
//! | service time | a start and a time for each cell of 64 bytes: stairs over the sizes | straight lines |
//! | input queue | buffers of 64 bytes | packets, bytes or slots |
//! | output queue | slots that hold a descriptor of 16 bytes as well; freed as the packet goes onto the line | freed when its last bit has left |

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use profile::{
    MeasuredRun, MeasurementPlan, MeasurementSubject, PacketContent, PacketIntegrity,
    ReceivedPacket, RunPlan, TrafficMachine,
};
use vocab::{Bitrate, ByteCount, SeededRandom, Time};

use crate::known_devices::draw;
use crate::virtual_device::virtual_runs;

/// Bytes of a cell.
const CELL: u64 = 64;
/// Bytes of a descriptor in the first slot of a packet.
const DESCRIPTOR: u64 = 16;
/// Stream of the random numbers of a switch.
const STREAM: u64 = 36;

/// Parameters of a switch.
#[derive(Clone, Copy, Debug)]
struct CellSwitchShape {
    engines: usize,
    start: Duration,
    cell: Duration,
    fixed: Duration,
    input_cells: u64,
    output_slots: u64,
    slot: u64,
    rate: Bitrate,
    overhead: u64,
}

impl CellSwitchShape {
    fn drawn(seed: u64) -> Self {
        let mut random = SeededRandom::for_stream(seed, STREAM);
        let microseconds = |least: u64, span: u64, random: &mut SeededRandom| {
            Duration::from_nanos(1_000 * least + random.below(1_000 * span))
        };
        Self {
            engines: 1 + random.below(3) as usize,
            start: microseconds(4, 16, &mut random),
            cell: Duration::from_nanos(100 + random.below(500)),
            fixed: microseconds(5, 50, &mut random),
            input_cells: 400 + random.below(2_000),
            output_slots: 40 + random.below(400),
            slot: 128 << random.below(4),
            rate: Bitrate::from_bits_per_second(40_000_000 + random.below(400_000_000)),
            overhead: random.below(39),
        }
    }

    fn service(&self, size: u64) -> Duration {
        self.start + self.cell * size.div_ceil(CELL) as u32
    }

    fn serialisation(&self, size: u64) -> Duration {
        self.rate.time_for(ByteCount::new(size + self.overhead))
    }

    fn slots(&self, size: u64) -> u64 {
        (size + DESCRIPTOR).div_ceil(self.slot)
    }
}

/// A packet in the switch.
#[derive(Clone, Debug)]
struct SwitchedPacket {
    number: u64,
    size: u64,
    input: usize,
    output: usize,
    content: Bytes,
}

/// Event of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SwitchStep {
    Served,
    AtOutput,
    Sent,
}

/// An event: time, number in the order of making, kind, and packet by its place.
type SwitchEvent = Reverse<(Time, u64, SwitchStep, usize)>;

/// A switch at work.
#[derive(Debug)]
struct CellSwitch {
    shape: CellSwitchShape,
    inputs: Vec<VecDeque<usize>>,
    queued_cells: Vec<u64>,
    turn: usize,
    busy: usize,
    outputs: Vec<VecDeque<usize>>,
    used_slots: Vec<u64>,
    sending: Vec<bool>,
    packets: Vec<SwitchedPacket>,
    events: BinaryHeap<SwitchEvent>,
    made: u64,
    left: VecDeque<(Time, usize)>,
}

impl CellSwitch {
    fn new(shape: CellSwitchShape, ports: u16) -> Self {
        let ports = usize::from(ports);
        Self {
            shape,
            inputs: vec![VecDeque::new(); ports],
            queued_cells: vec![0; ports],
            turn: 0,
            busy: 0,
            outputs: vec![VecDeque::new(); ports],
            used_slots: vec![0; ports],
            sending: vec![false; ports],
            packets: Vec::new(),
            events: BinaryHeap::new(),
            made: 0,
            left: VecDeque::new(),
        }
    }

    fn handle(&mut self, now: Time, packet: SwitchedPacket) {
        self.advance(now);
        let cells = packet.size.div_ceil(CELL);
        let input = packet.input;
        let place = self.packets.len();
        self.packets.push(packet);
        if self.busy < self.shape.engines {
            self.serve(now, place);
        } else if self.queued_cells[input] + cells <= self.shape.input_cells {
            self.queued_cells[input] += cells;
            self.inputs[input].push_back(place);
        }
    }

    fn next_event(&self) -> Option<Time> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    fn advance(&mut self, now: Time) {
        while let Some(Reverse((at, _, step, place))) = self.events.peek().copied()
            && at <= now
        {
            self.events.pop();
            let output = self.packets[place].output;
            match step {
                SwitchStep::Served => {
                    self.busy -= 1;
                    self.add(at + self.shape.fixed, SwitchStep::AtOutput, place);
                    self.serve_next(at);
                }
                SwitchStep::AtOutput => self.enter_output(at, place),
                SwitchStep::Sent => {
                    self.left.push_back((at, place));
                    self.sending[output] = false;
                    if let Some(next) = self.outputs[output].pop_front() {
                        self.used_slots[output] -= self.shape.slots(self.packets[next].size);
                        self.send(at, next);
                    }
                }
            }
        }
    }

    /// Serves the next packet of the input whose turn it is.
    fn serve_next(&mut self, now: Time) {
        let ports = self.inputs.len();
        for step in 1..=ports {
            let input = (self.turn + step) % ports;
            if let Some(place) = self.inputs[input].pop_front() {
                self.turn = input;
                self.queued_cells[input] -= self.packets[place].size.div_ceil(CELL);
                self.serve(now, place);
                return;
            }
        }
    }

    fn serve(&mut self, now: Time, place: usize) {
        self.busy += 1;
        let service = self.shape.service(self.packets[place].size);
        self.add(now + service, SwitchStep::Served, place);
    }

    fn enter_output(&mut self, now: Time, place: usize) {
        let (output, size) = (self.packets[place].output, self.packets[place].size);
        if !self.sending[output] {
            self.send(now, place);
            return;
        }
        let slots = self.shape.slots(size);
        if self.used_slots[output] + slots <= self.shape.output_slots {
            self.used_slots[output] += slots;
            self.outputs[output].push_back(place);
        }
    }

    fn send(&mut self, now: Time, place: usize) {
        let (output, size) = (self.packets[place].output, self.packets[place].size);
        self.sending[output] = true;
        self.add(
            now + self.shape.serialisation(size),
            SwitchStep::Sent,
            place,
        );
    }

    fn add(&mut self, at: Time, step: SwitchStep, place: usize) {
        self.events.push(Reverse((at, self.made, step, place)));
        self.made += 1;
    }
}

/// Training of the known devices, and held-out bursts and closed-loop TCP.
pub(super) fn plan() -> MeasurementPlan {
    let mut plan = draw::plan("0s");
    let held_out = MeasurementPlan::from_toml(HELD_OUT).expect("the plan is well formed");
    plan.loss_after = held_out.loss_after;
    plan.experiments.extend(held_out.experiments);
    plan
}

const HELD_OUT: &str = r#"
    name = "held out"
    ports = 8
    loss_after = "10s"

    [[experiment]]
    name = "bursts to all outputs"
    purpose = "held-out"
    traffic = [{ from = [0, 1, 2, 3, 4, 5, 6, 7], to = [3, 4, 5, 6, 7, 0, 1, 2], packets = 20000,
        sizes = [{ size = "64B", share = 5 }, { size = "576B", share = 2 }, { size = "1500B", share = 3 }],
        pattern = { kind = "bursts", packets_per_burst = 40, period = "4ms" } }]

    [[experiment]]
    name = "bursts to one output"
    purpose = "held-out"
    traffic = [{ from = [1, 2, 3, 4], to = [0], packets = 20000,
        sizes = [{ size = "64B", share = 5 }, { size = "576B", share = 2 }, { size = "1500B", share = 3 }],
        pattern = { kind = "bursts", packets_per_burst = 60, period = "6ms" } }]

    [[experiment]]
    name = "closed-loop TCP"
    purpose = "held-out"
    traffic = [{ from = [1, 2, 3, 4], to = [0], flows = 20, duration = "2s",
        pattern = { kind = "tcp", segment = "1448B" } }]
"#;

/// Measures the cable and the switch of this seed by a plan.
pub(super) fn measure(plan: &MeasurementPlan, seed: u64) -> Vec<MeasuredRun> {
    let shape = CellSwitchShape::drawn(seed);
    let mut cable = plan.clone();
    cable.experiments.retain_mut(|experiment| {
        let subjects = &mut experiment.subjects;
        subjects.retain(|subject| *subject == MeasurementSubject::Cable);
        !subjects.is_empty()
    });
    let device = plan
        .runs()
        .into_iter()
        .filter(|run| run.subject == MeasurementSubject::Device)
        .map(|run| measure_run(run, shape));
    // No run of the cable reads the model.
    let unused = draw::device(seed);
    virtual_runs(&cable, &unused).chain(device).collect()
}

fn measure_run(run: RunPlan, shape: CellSwitchShape) -> MeasuredRun {
    let mut switch = CellSwitch::new(shape, draw::PORTS);
    let mut machine = TrafficMachine::new(Time::ZERO, &run);
    let mut records = Vec::new();
    let mut now = Time::ZERO;
    loop {
        while let Some(packet) = machine.poll_output(now) {
            let content = match packet.content {
                PacketContent::Datagram => Bytes::new(),
                PacketContent::Tcp(content) => content,
            };
            let packet = SwitchedPacket {
                number: packet.sequence,
                size: u64::from(packet.size),
                input: usize::from(packet.input),
                output: usize::from(packet.output),
                content,
            };
            switch.handle(now, packet);
        }
        switch.advance(now);
        while let Some((at, place)) = switch.left.pop_front() {
            let packet = &switch.packets[place];
            let arrival = ReceivedPacket {
                sequence: packet.number,
                at,
                size: packet.size as u32,
                output: packet.output as u16,
                integrity: PacketIntegrity::Intact,
                content: Some(packet.content.clone()),
            };
            machine.handle_received(now, &arrival);
        }
        records.extend(std::iter::from_fn(|| machine.poll_record(now)));
        let next = match (machine.poll_timeout(), switch.next_event()) {
            (None, None) => break,
            (Some(machine), Some(switch)) => machine.min(switch),
            (Some(next), None) | (None, Some(next)) => next,
        };
        now = now.max(next);
    }
    MeasuredRun { plan: run, records }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(microseconds * 1_000)
    }

    #[test]
    fn inputs_take_turns() {
        let shape = CellSwitchShape {
            engines: 1,
            start: Duration::from_micros(9),
            cell: Duration::from_micros(1),
            fixed: Duration::ZERO,
            input_cells: 100,
            output_slots: 100,
            slot: 128,
            rate: Bitrate::from_bits_per_second(1_000_000_000),
            overhead: 0,
        };
        let mut switch = CellSwitch::new(shape, 8);
        // Three packets of input 0, then one of input 1, each with a service of 10 µs.
        for (number, input) in [0, 0, 0, 1].into_iter().enumerate() {
            let packet = SwitchedPacket {
                number: number as u64,
                size: 50,
                input,
                output: 2,
                content: Bytes::new(),
            };
            switch.handle(at(0), packet);
        }
        switch.advance(at(1_000));
        let order: Vec<usize> = switch.left.iter().map(|(_, place)| *place).collect();
        assert_eq!(order, [0, 3, 1, 2]);
        // 10 µs of service and 0.4 µs on the line.
        assert_eq!(switch.left[0].0, Time::from_nanos(10_400));
    }
}
