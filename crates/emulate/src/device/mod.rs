//! A device with several ports, as [`DeviceModel`] describes it, in the time that it is handed.
//!
//! ```text
//!  handle ─► input queue ─► servers ─► fixed delay ─► policer ─► bottleneck ─► poll_output
//!            forwarding.rs             by output                 of the output
//! ```
//!
//! Each event happens at its own time, independent of the caller's polling. Events of the same
//! nanosecond happen in this order: a line finishes a packet, a server or a fixed delay finishes
//! one (in the order in which they began), the caller's packet arrives. Packets to one output do
//! not overtake each other between servers and queue. The random numbers of active queue
//! management follow from the seed and the number of the packet.

mod forwarding;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vocab::{AqmModel, ByteCount, DeviceModel, DeviceQueueLimit, IndexedRandom, OutputModel, Time};

use crate::bottleneck::{Bottleneck, BottleneckExit};
use crate::config::{
    CoDelConfig, DirectionConfig, EcnMode, LineConfig, LinkFraming, PieConfig, QueueConfig,
    QueueDiscipline, QueueLimit, RedConfig, TokenBucket,
};
use crate::counters::TrafficCount;
use crate::memory::{HELD_BYTES_MAX, HELD_PACKETS_MAX};
use crate::packet::{DropReason, EmulatedPacket, PacketImpairments};
use crate::token_bucket::TokenBuckets;
use forwarding::{ForwardingEngine, ForwardingStep};

/// Stream of the random numbers of active queue management.
const DISCIPLINE_STREAM: u64 = 0;
/// Ends of packets that wait to be polled; beyond it the oldest are forgotten, but counted.
const ENDS_MAX: usize = 1 << 20;
/// Weight of the newest length in RED's average, which Floyd and Jacobson advise.
const RED_WEIGHT: f64 = 0.002;
/// Length of the packet by which RED's average decays while the queue is empty.
const RED_PACKET: u64 = 500;

/// A packet that has left the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDelivery {
    /// Time at which its last bit left.
    pub at: Time,
    /// Number of the packet, from 0, among all that were handed in.
    pub index: u64,
    /// Port that it left.
    pub output: u16,
    /// The packet.
    pub packet: Bytes,
}

/// A packet that the device has dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceDrop {
    /// Time of the drop.
    pub at: Time,
    /// Number of the packet.
    pub index: u64,
    /// Why it was dropped.
    pub reason: DeviceDropReason,
}

/// Reason why a device dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceDropReason {
    /// The device has no such port.
    NoSuchPort,
    /// The queue of its input was full.
    InputQueueFull,
    /// It came faster than the policer allows.
    Policed,
    /// The queue of its output was full.
    OutputQueueFull,
    /// Active queue management chose it.
    Aqm,
    /// The device held as much as the emulator allows: the emulation is not faithful from here on.
    MemoryLimit,
}

/// Account of a device. At every moment `offered = delivered + dropped_by_* + held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Handed in.
    pub offered: TrafficCount,
    /// Left through an output.
    pub delivered: TrafficCount,
    /// Handed in for a port that does not exist.
    pub dropped_no_port: TrafficCount,
    /// Dropped by an input queue.
    pub dropped_by_input: TrafficCount,
    /// Dropped by a policer.
    pub dropped_by_policer: TrafficCount,
    /// Dropped by an output queue.
    pub dropped_by_output: TrafficCount,
    /// Dropped by active queue management.
    pub dropped_by_aqm: TrafficCount,
    /// Refused because the emulator held too much.
    pub dropped_by_limit: TrafficCount,
    /// Now inside the device.
    pub held: TrafficCount,
}

/// A device at work.
#[derive(Debug)]
pub struct EmulatedDevice {
    model: Arc<DeviceModel>,
    framing: LinkFraming,
    forwarding: ForwardingEngine,
    outputs: Vec<EmulatedOutput>,
    /// Ends of the packets on the lines.
    line_ends: BTreeSet<(Time, u16)>,
    discipline_random: IndexedRandom,
    now: Time,
    next_index: u64,
    counters: DeviceCounters,
    deliveries: VecDeque<DeviceDelivery>,
    drops: VecDeque<DeviceDrop>,
}

/// A packet between input and output queue.
#[derive(Debug)]
struct ForwardedPacket {
    packet: EmulatedPacket,
    input: u16,
    output: u16,
}

#[derive(Debug)]
struct EmulatedOutput {
    overhead: u64,
    policer: Option<TokenBuckets>,
    bottleneck: Bottleneck,
    line_end: Option<Time>,
}

impl EmulatedDevice {
    /// Makes an idle device. The model must have been checked; `seed` fixes the random numbers of
    /// active queue management.
    #[must_use]
    pub fn new(model: DeviceModel, seed: u64) -> Self {
        Self::with_framing(model, seed, LinkFraming::Ip)
    }

    /// The same for packets with another framing, whose header does not count for their size.
    #[must_use]
    pub fn with_framing(model: DeviceModel, seed: u64, framing: LinkFraming) -> Self {
        let model = Arc::new(model);
        let outputs = (0..model.ports)
            .map(|port| EmulatedOutput::new(model.output_of(port), framing))
            .collect();
        Self {
            forwarding: ForwardingEngine::new(Arc::clone(&model)),
            model,
            framing,
            outputs,
            line_ends: BTreeSet::new(),
            discipline_random: IndexedRandom::for_stream(seed, DISCIPLINE_STREAM),
            now: Time::ZERO,
            next_index: 0,
            counters: DeviceCounters::default(),
            deliveries: VecDeque::new(),
            drops: VecDeque::new(),
        }
    }

    /// The model that it runs.
    #[must_use]
    pub fn model(&self) -> &DeviceModel {
        &self.model
    }

    /// Takes in a packet whose last bit comes at `now` at port `input`, for port `output`. Returns its
    /// number.
    pub fn handle(&mut self, now: Time, (input, output): (u16, u16), packet: Bytes) -> u64 {
        let now = self.advance(now);
        let index = self.next_index;
        self.next_index += 1;
        let length = self.length(&packet);
        self.counters.offered += length;
        self.counters.held += length;
        let packet = EmulatedPacket {
            index,
            arrived: now,
            counted: length.bytes,
            bytes: packet,
            fate: PacketImpairments::default(),
            ecn: 0,
            marked: false,
        };
        if input >= self.model.ports || output >= self.model.ports {
            self.drop(now, &packet, DeviceDropReason::NoSuchPort);
            return index;
        }
        let held = self.counters.held;
        if held.packets > HELD_PACKETS_MAX || held.bytes > HELD_BYTES_MAX.bytes() {
            self.drop(now, &packet, DeviceDropReason::MemoryLimit);
            return index;
        }
        let forwarded = ForwardedPacket {
            packet,
            input,
            output,
        };
        if let Err(refused) = self.forwarding.push(now, forwarded) {
            self.drop(now, &refused.packet, DeviceDropReason::InputQueueFull);
        }
        // Without servers and delay the packet is at its output by now.
        self.advance(now);
        index
    }

    /// Takes out the next packet that has left by `now`, in the order of their times.
    pub fn poll_output(&mut self, now: Time) -> Option<DeviceDelivery> {
        self.advance(now);
        self.deliveries.pop_front()
    }

    /// Takes out the next packet that was dropped by the latest time that was named.
    pub fn poll_drop(&mut self) -> Option<DeviceDrop> {
        self.drops.pop_front()
    }

    /// Time of the next event; `None` when the device is empty. [`EmulatedDevice::poll_output`] may
    /// return nothing then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if let Some(delivery) = self.deliveries.front() {
            return Some(delivery.at);
        }
        self.next_event()
    }

    /// The account as of the latest time that was named.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        self.counters
    }

    /// One packet, and its bytes without the framing.
    fn length(&self, packet: &Bytes) -> TrafficCount {
        TrafficCount::one(packet.len().saturating_sub(self.framing.header()))
    }

    fn next_event(&self) -> Option<Time> {
        let line = self.line_ends.first().map(|(at, _)| *at);
        match (line, self.forwarding.next_event()) {
            (Some(line), Some(forwarding)) => Some(line.min(forwarding)),
            (one, other) => one.or(other),
        }
    }

    /// Processes all events up to `now`, each at its own time.
    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        let now = self.now;
        while let Some(at) = self.next_event().filter(|at| *at <= now) {
            match self.line_ends.first() {
                Some((end, port)) if *end == at => {
                    let port = *port;
                    self.drain_output(at, port);
                }
                Some(_) | None => {
                    if let Some(ForwardingStep::AtOutput(packet)) = self.forwarding.advance(at) {
                        self.enter_output(at, packet);
                    }
                }
            }
        }
        now
    }

    fn enter_output(&mut self, at: Time, forwarded: ForwardedPacket) {
        let ForwardedPacket {
            mut packet, output, ..
        } = forwarded;
        let chance = self.discipline_random;
        let index = packet.index;
        let port = &mut self.outputs[usize::from(output)];
        packet.counted += port.overhead;
        // The queue's own time is the time in the queue.
        packet.arrived = at;
        if let Some(policer) = &mut port.policer
            && !policer.conforms(at, packet.counted)
        {
            self.drop(at, &packet, DeviceDropReason::Policed);
            return;
        }
        port.bottleneck.push(at, packet, || chance.fraction(index));
        self.drain_output(at, output);
    }

    /// Takes out what has left the queue or the line of a port by `at`.
    fn drain_output(&mut self, at: Time, port: u16) {
        while let Some(exit) = self.outputs[usize::from(port)].bottleneck.poll(at) {
            self.leave(port, exit);
        }
        let output = &mut self.outputs[usize::from(port)];
        let end = output.bottleneck.next_end();
        if end != output.line_end {
            if let Some(old) = output.line_end.take() {
                self.line_ends.remove(&(old, port));
            }
            if let Some(new) = end {
                self.line_ends.insert((new, port));
            }
            output.line_end = end;
        }
    }

    fn leave(&mut self, port: u16, exit: BottleneckExit) {
        let BottleneckExit {
            at,
            packet,
            dropped,
        } = exit;
        match dropped {
            Some(DropReason::Aqm) => self.drop(at, &packet, DeviceDropReason::Aqm),
            Some(_) => self.drop(at, &packet, DeviceDropReason::OutputQueueFull),
            None => {
                let length = self.length(&packet.bytes);
                self.counters.delivered += length;
                self.counters.held.subtract(length);
                keep(
                    &mut self.deliveries,
                    DeviceDelivery {
                        at,
                        index: packet.index,
                        output: port,
                        packet: packet.bytes,
                    },
                );
            }
        }
    }

    fn drop(&mut self, at: Time, packet: &EmulatedPacket, reason: DeviceDropReason) {
        let length = self.length(&packet.bytes);
        let counter = match reason {
            DeviceDropReason::NoSuchPort => &mut self.counters.dropped_no_port,
            DeviceDropReason::InputQueueFull => &mut self.counters.dropped_by_input,
            DeviceDropReason::Policed => &mut self.counters.dropped_by_policer,
            DeviceDropReason::OutputQueueFull => &mut self.counters.dropped_by_output,
            DeviceDropReason::Aqm => &mut self.counters.dropped_by_aqm,
            DeviceDropReason::MemoryLimit => &mut self.counters.dropped_by_limit,
        };
        *counter += length;
        self.counters.held.subtract(length);
        let index = packet.index;
        keep(&mut self.drops, DeviceDrop { at, index, reason });
    }
}

impl EmulatedOutput {
    fn new(model: &OutputModel, framing: LinkFraming) -> Self {
        let config = DirectionConfig {
            framing,
            overhead: model.overhead,
            queue: QueueConfig {
                limit: queue_limit(model.queue),
                discipline: discipline(model),
            },
            line: line(model),
            ..DirectionConfig::default()
        };
        let bottleneck = match model.queue {
            DeviceQueueLimit::Slots { .. } => {
                Bottleneck::with_slots(Time::ZERO, &config, model.queue)
            }
            DeviceQueueLimit::Bytes(_) | DeviceQueueLimit::Packets(_) => {
                Bottleneck::new(Time::ZERO, &config)
            }
        };
        let policer = model.policer.map(|policer| {
            let bucket = TokenBucket {
                rate: policer.rate,
                burst: policer.burst,
                peak: None,
            };
            TokenBuckets::new(bucket, Time::ZERO)
        });
        Self {
            overhead: model.overhead.bytes(),
            policer,
            bottleneck,
            line_end: None,
        }
    }
}

fn line(model: &OutputModel) -> LineConfig {
    match (model.rate, model.burst) {
        (None, _) => LineConfig::Unlimited,
        (Some(rate), None) => LineConfig::Rate(rate),
        (Some(rate), Some(burst)) => LineConfig::Shaper(TokenBucket {
            rate,
            burst,
            peak: None,
        }),
    }
}

/// The limits that the bottleneck knows; slots are an extra of device models.
fn queue_limit(limit: DeviceQueueLimit) -> QueueLimit {
    match limit {
        DeviceQueueLimit::Bytes(bytes) => QueueLimit::bytes(bytes),
        DeviceQueueLimit::Packets(packets) => QueueLimit::packets(packets),
        // A packet takes a slot at least.
        DeviceQueueLimit::Slots { count, .. } => QueueLimit::packets(count),
    }
}

fn discipline(model: &OutputModel) -> QueueDiscipline {
    match model.aqm {
        None => QueueDiscipline::DropTail,
        Some(AqmModel::Codel { target, interval }) => QueueDiscipline::CoDel(CoDelConfig {
            target,
            interval,
            ecn: EcnMode::Drop,
        }),
        Some(AqmModel::Pie { target }) => QueueDiscipline::Pie(PieConfig {
            target,
            ..PieConfig::default()
        }),
        Some(AqmModel::Red {
            minimum,
            maximum,
            probability,
        }) => QueueDiscipline::Red(RedConfig {
            minimum,
            maximum,
            probability,
            weight: RED_WEIGHT,
            packet_time: packet_time(model),
            gentle: true,
            ecn: EcnMode::Drop,
        }),
    }
}

/// Time of a typical packet on the line, by which RED's average decays; a nanosecond on a line
/// without a rate, whose queue is always empty.
fn packet_time(model: &OutputModel) -> Duration {
    let counted = ByteCount::new(RED_PACKET + model.overhead.bytes());
    let least = Duration::from_nanos(1);
    model
        .rate
        .map_or(least, |rate| rate.time_for(counted).max(least))
}

fn keep<T>(ends: &mut VecDeque<T>, end: T) {
    if ends.len() == ENDS_MAX {
        ends.pop_front();
    }
    ends.push_back(end);
}

#[cfg(test)]
mod tests;
