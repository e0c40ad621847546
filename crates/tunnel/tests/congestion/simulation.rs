//! Senders with endless data over an emulated path in virtual time, for the controllers' tests.
//!
//! ```text
//!  flow ─ controller, pacer ─► emulate::Direction (shared) ─► receiver, acknowledges each packet
//!   ▲      loss by time                                          │
//!   └──────────────── emulate::Direction (each flow's own) ◄─────┘
//! ```
//!
//! What stands here for loss recovery is simple on purpose: an acknowledgement says all that has
//! arrived; a packet is lost when a later one has arrived and 9/8 of a round trip has passed
//! (RFC 9002 §6.1.2 (Time Threshold)), more once a loss has turned out to be none.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use emulate::{DirectionConfig, LinkDirection};
use tunnel::congestion::{
    AckedPacket, CongestionAlgorithm, CongestionController, ControllerConfig, DeliveryEvent,
    LostPacket, Pacer, RememberedPath, SendState, controller,
};
use vocab::{SeededRandom, Time};

/// A full packet with its headers.
pub const PACKET: u64 = 1500;

/// An acknowledgement's bytes.
const ACKNOWLEDGEMENT: usize = 60;

/// Number of recent round-trip times from which the spread of a reordering path is measured.
const SPREAD_SAMPLES: usize = 512;

/// Behaviour of a simulated flow.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedFlow {
    pub algorithm: CongestionAlgorithm,
    pub start: Duration,
    pub remembered: Option<RememberedPath>,
}

impl SimulatedFlow {
    pub fn of(algorithm: CongestionAlgorithm) -> Self {
        Self {
            algorithm,
            start: Duration::ZERO,
            remembered: None,
        }
    }
}

/// One experiment.
#[derive(Clone, Debug)]
pub struct SimulationSetup {
    pub forward: DirectionConfig,
    pub back: DirectionConfig,
    pub flows: Vec<SimulatedFlow>,
    pub seed: u64,
    pub length: Duration,
    /// Outcomes count from here on.
    pub steady_from: Duration,
}

/// Result of a simulated flow.
#[derive(Clone, Debug, Default)]
pub struct FlowOutcome {
    /// Bytes that arrived in the steady part.
    pub steady_bytes: u64,
    /// Packets sent and packets that did not arrive, over the whole run.
    pub sent: u64,
    pub dropped: u64,
    /// Packets wrongly declared lost.
    pub spurious: u64,
    /// Bytes that had arrived, and when, a row for each 100 kB.
    pub arrivals: Vec<(Duration, u64)>,
    /// Queueing delays of the steady part.
    pub queueing: Vec<Duration>,
}

impl FlowOutcome {
    /// A quantile of the queueing delay.
    pub fn queueing_quantile(&self, share: f64) -> Duration {
        let mut sorted = self.queueing.clone();
        sorted.sort_unstable();
        let at = (sorted.len() as f64 * share) as usize;
        sorted.get(at).copied().unwrap_or_default()
    }

    /// Returns the time at which `bytes` bytes had arrived.
    pub fn time_of(&self, bytes: u64) -> Option<Duration> {
        let row = self.arrivals.iter().find(|(_, count)| *count >= bytes);
        row.map(|(at, _)| *at)
    }

    /// Packets that did not arrive, of those sent.
    pub fn loss(&self) -> f64 {
        self.dropped as f64 / self.sent.max(1) as f64
    }
}

struct SimulatedPacket {
    bytes: u64,
    sent_at: Time,
    state: SendState,
    is_lost: bool,
}

struct SimulatedSender {
    controller: Box<dyn CongestionController>,
    pacer: Pacer,
    start: Time,
    next_number: u64,
    packets: BTreeMap<u64, SimulatedPacket>,
    in_flight: u64,
    largest_acked: Option<u64>,
    newest_acked_at: Time,
    smoothed: Duration,
    late_by: Duration,
    times: Vec<Duration>,
    overtaken_at: Option<Time>,
    reordering: Option<Duration>,
    last_event: Time,
    loss_at: Option<Time>,
    pace_at: Option<Time>,
    back: LinkDirection,
    /// Numbers in the order of their arrival at the receiver.
    received: Vec<u64>,
    /// Count of packets in each acknowledgement, and the packet that caused it.
    acknowledgements: Vec<(usize, u64)>,
    processed: usize,
    received_bytes: u64,
    outcome: FlowOutcome,
}

/// Runs the experiment.
pub fn run(setup: &SimulationSetup) -> Vec<FlowOutcome> {
    let mut random = SeededRandom::from_seed(setup.seed);
    let mut forward = LinkDirection::new(setup.forward.clone(), random.next_u64());
    let mut senders: Vec<SimulatedSender> = setup
        .flows
        .iter()
        .map(|flow| SimulatedSender::new(flow, setup, &mut random))
        .collect();
    let packet = Bytes::from(vec![0x45; PACKET as usize]);
    // By the packet's index in the shared direction.
    let mut owners: Vec<(u32, u64, Time)> = Vec::new();
    let end = Time::ZERO + setup.length;
    let steady_from = Time::ZERO + setup.steady_from;
    let mut now = Time::ZERO;
    while now < end {
        while let Some(delivery) = forward.poll_output(now) {
            let (owner, number, sent_at) = owners[delivery.index as usize];
            let queueing = delivery
                .due
                .since(sent_at)
                .saturating_sub(setup.forward.delay);
            senders[owner as usize].arrived(now, number, queueing, steady_from);
        }
        for (index, sender) in senders.iter_mut().enumerate() {
            sender.handle(now);
            sender.send(now, |number| {
                owners.push((index as u32, number, now));
                forward.handle(now, packet.clone());
            });
        }
        let next = senders.iter().filter_map(SimulatedSender::next).min();
        let next = [next, forward.poll_timeout()].into_iter().flatten().min();
        let Some(next) = next else { break };
        now = next.max(now + Duration::from_nanos(1));
    }
    senders.into_iter().map(SimulatedSender::finish).collect()
}

impl SimulatedSender {
    fn new(flow: &SimulatedFlow, setup: &SimulationSetup, random: &mut SeededRandom) -> Self {
        let start = Time::ZERO + flow.start;
        let config = ControllerConfig {
            packet_bytes: PACKET,
            rate_max: None,
            seed: random.next_u64(),
        };
        let controller = controller(start, flow.algorithm, config, flow.remembered);
        let pacer = Pacer::new(start, controller.pacing_rate(), controller.send_quantum());
        Self {
            controller,
            pacer,
            start,
            next_number: 0,
            packets: BTreeMap::new(),
            in_flight: 0,
            largest_acked: None,
            newest_acked_at: Time::ZERO,
            smoothed: Duration::ZERO,
            late_by: Duration::ZERO,
            times: Vec::new(),
            overtaken_at: None,
            reordering: None,
            last_event: start,
            loss_at: None,
            pace_at: None,
            back: LinkDirection::new(setup.back.clone(), random.next_u64()),
            received: Vec::new(),
            acknowledgements: Vec::new(),
            processed: 0,
            received_bytes: 0,
            outcome: FlowOutcome::default(),
        }
    }

    fn next(&self) -> Option<Time> {
        let silence = (self.in_flight > 0).then(|| self.silence_ends());
        let start = (self.next_number == 0).then_some(self.start);
        [
            self.loss_at,
            self.pace_at,
            silence,
            start,
            self.back.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn silence_ends(&self) -> Time {
        self.last_event + (self.smoothed + self.late_by).max(Duration::from_millis(300)) * 3
    }

    /// At the receiver.
    fn arrived(&mut self, now: Time, number: u64, queueing: Duration, steady_from: Time) {
        self.received.push(number);
        self.received_bytes += PACKET;
        if now >= steady_from {
            self.outcome.steady_bytes += PACKET;
            self.outcome.queueing.push(queueing);
        }
        if self.received_bytes / 100_000 > (self.received_bytes - PACKET) / 100_000 {
            let row = (now.since(self.start), self.received_bytes);
            self.outcome.arrivals.push(row);
        }
        self.acknowledgements.push((self.received.len(), number));
        let packet = Bytes::from_static(&[0x45; ACKNOWLEDGEMENT]);
        self.back.handle(now, packet);
    }

    fn handle(&mut self, now: Time) {
        while let Some(delivery) = self.back.poll_output(now) {
            let (count, cause) = self.acknowledgements[delivery.index as usize];
            self.acknowledged(now, count, cause);
        }
        if self.in_flight > 0 && now >= self.silence_ends() {
            let all: Vec<u64> = self.packets.keys().copied().collect();
            self.declare(now, &all, &[], &[], None);
        } else if self.loss_at.is_some_and(|at| at <= now) {
            self.declare(now, &[], &[], &[], None);
        }
    }

    fn acknowledged(&mut self, now: Time, count: usize, cause: u64) {
        let (mut acked, mut spurious) = (Vec::new(), Vec::new());
        let mut rtt = None;
        for position in self.processed..count {
            let number = self.received[position];
            let Some(packet) = self.packets.remove(&number) else {
                continue;
            };
            let flight = now.since(packet.sent_at);
            if packet.is_lost {
                self.outcome.spurious += 1;
                self.late_by += flight.saturating_sub(self.threshold());
                spurious.push(LostPacket {
                    number,
                    bytes: packet.bytes,
                    sent_at: packet.sent_at,
                    state: packet.state,
                });
            } else {
                self.in_flight -= packet.bytes;
                acked.push(AckedPacket {
                    number,
                    bytes: packet.bytes,
                    sent_at: packet.sent_at,
                    state: packet.state,
                    recovered: false,
                });
            }
            if number == cause {
                self.note_flight(now, number, flight);
                if self.largest_acked.is_none_or(|largest| number > largest) {
                    rtt = Some(flight);
                    self.largest_acked = Some(number);
                    self.newest_acked_at = packet.sent_at;
                    self.smoothed = if self.smoothed.is_zero() {
                        flight
                    } else {
                        (self.smoothed * 7 + flight) / 8
                    };
                }
            }
        }
        self.processed = self.processed.max(count);
        if !acked.is_empty() || !spurious.is_empty() {
            self.declare(now, &[], &acked, &spurious, rtt);
        }
    }

    /// Keeps the spread of round-trip times while packets overtake each other.
    fn note_flight(&mut self, now: Time, number: u64, flight: Duration) {
        if self.largest_acked.is_some_and(|largest| number < largest) {
            self.overtaken_at = Some(now);
        }
        if self.times.len() < SPREAD_SAMPLES {
            self.times.push(flight);
        } else {
            self.times[self.received.len() % SPREAD_SAMPLES] = flight;
        }
        let is_reordering = self
            .overtaken_at
            .is_some_and(|at| now.since(at) < Duration::from_secs(2));
        if !is_reordering {
            self.reordering = None;
        } else if self.times.len() < 64 || self.received.len().is_multiple_of(32) {
            let mut sorted = self.times.clone();
            sorted.sort_unstable();
            let high = sorted[(sorted.len() * 19 / 20).min(sorted.len() - 1)];
            self.reordering = Some(high - sorted[0]);
        }
    }

    fn threshold(&self) -> Duration {
        (self.smoothed + self.late_by) * 9 / 8
    }

    fn declare(
        &mut self,
        now: Time,
        certain: &[u64],
        acked: &[AckedPacket],
        spurious: &[LostPacket],
        rtt: Option<Duration>,
    ) {
        let threshold = self.threshold();
        let mut lost = Vec::new();
        self.loss_at = None;
        for (number, packet) in &mut self.packets {
            if packet.is_lost {
                continue;
            }
            let due = packet.sent_at + threshold;
            if packet.sent_at >= self.newest_acked_at && certain.is_empty() {
                break;
            }
            if due <= now || !certain.is_empty() {
                packet.is_lost = true;
                self.in_flight -= packet.bytes;
                lost.push(LostPacket {
                    number: *number,
                    bytes: packet.bytes,
                    sent_at: packet.sent_at,
                    state: packet.state,
                });
            } else {
                self.loss_at = Some(due);
                break;
            }
        }
        // Those declared lost long ago do not come any more.
        while let Some(first) = self.packets.first_entry() {
            if !first.get().is_lost || now.since(first.get().sent_at) < threshold * 4 {
                break;
            }
            first.remove();
        }
        self.last_event = now;
        self.controller.event(&DeliveryEvent {
            now,
            acked,
            lost: &lost,
            spurious,
            rtt,
            ce_marked: 0,
            in_flight: self.in_flight,
            reordering: self.reordering,
        });
        self.pacer.set(
            now,
            self.controller.pacing_rate(),
            self.controller.send_quantum(),
        );
    }

    fn send(&mut self, now: Time, mut transmit: impl FnMut(u64)) {
        self.pace_at = None;
        if now < self.start {
            return;
        }
        while self.in_flight + PACKET <= self.controller.window() {
            if let Some(at) = self.pacer.delay(now) {
                self.pace_at = Some(at);
                return;
            }
            self.pacer.sent(now, PACKET);
            let number = self.next_number;
            self.next_number += 1;
            let state = self.controller.sent(now, number, PACKET, self.in_flight);
            if self.in_flight == 0 {
                self.last_event = now;
            }
            self.in_flight += PACKET;
            let packet = SimulatedPacket {
                bytes: PACKET,
                sent_at: now,
                state,
                is_lost: false,
            };
            self.packets.insert(number, packet);
            transmit(number);
        }
    }

    fn finish(mut self) -> FlowOutcome {
        self.outcome.sent = self.next_number;
        let arrived = self.received.len() as u64;
        let under_way = self.in_flight / PACKET;
        self.outcome.dropped = self.next_number.saturating_sub(arrived + under_way);
        self.outcome
    }
}
