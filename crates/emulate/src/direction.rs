//! One direction of a link: the models in their order, their memory limits, and the counters.
//!
//! ```text
//! handle ──► policer ──► queue, line ──► loss, corruption, duplication ──► delay ──► poll_output
//!              drop       drop, mark                drop
//! ```
//!
//! A packet moves from one model to the next at its own time, independent of the caller's polling:
//! two callers that hand in the same packets at the same times see the same outcome, however often
//! they poll. Only [`LinkDirection::poll_timeout`] is worth waiting for: between the line's end and
//! the arrival there is no visible event.
//!
//! The random impairments of a packet are drawn when it is handed in, by its number
//! (impairments.rs). A change of loss, made by hand or by a schedule, therefore applies to packets
//! that are handed in after it.

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::{IndexedRandom, Time};

use crate::bottleneck::{self, Bottleneck, BottleneckExit};
use crate::config::{DirectionConfig, LineConfig};
use crate::counters::{DirectionCounters, TrafficCount};
use crate::delay::{DelayLine, PacketArrival};
use crate::ecn;
use crate::impairments::{ImpairmentModel, RandomStream};
use crate::memory::{HELD_PACKETS_MAX, MemoryLimits};
use crate::packet::{DropReason, EmulatedPacket};
use crate::schedule::{SchedulePlayer, SettingsChange};
use crate::token_bucket::TokenBuckets;

/// The most records that wait for [`LinkDirection::poll_record`]; a caller that wants them all drains
/// them after each call, and then there are never more than a queue's worth.
pub const RECORDS_MAX: usize = 2 * HELD_PACKETS_MAX as usize;

/// One direction of a link.
#[derive(Debug)]
pub struct LinkDirection {
    /// The current settings, including changes by a schedule.
    config: DirectionConfig,
    /// The settings that were asked for.
    asked: DirectionConfig,
    policer: Option<TokenBuckets>,
    bottleneck: Bottleneck,
    impairments: ImpairmentModel,
    discipline_random: IndexedRandom,
    delay: DelayLine,
    limits: MemoryLimits,
    /// Copies that duplication will make of the packets in the bottleneck.
    copies_to_come: TrafficCount,
    /// Number of packets in the bottleneck that will be reordered, whatever the settings are then.
    late_to_come: u64,
    timeline: Option<SchedulePlayer>,
    counters: DirectionCounters,
    /// Number of packets handed in, which is the number of the next one.
    next_index: u64,
    /// Records of packets for a log; `None` unless they were requested.
    records: Option<VecDeque<PacketRecord>>,
    /// The latest time that any caller named; time does not run backwards in here.
    now: Time,
}

/// Immediate outcome for a packet that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueOutcome {
    /// The packet was queued. A discipline may still drop it, or it may be lost behind the line.
    Queued,
    /// The packet was dropped.
    Dropped(DropReason),
}

/// A packet at the far end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketDelivery {
    /// Arrival time in the model; a caller that takes the packet out later delays it by the
    /// difference.
    pub due: Time,
    /// The packet as it was handed in, except for a flipped bit or a mark.
    pub packet: Bytes,
    /// Its number, from 0, among all packets that were handed in.
    pub index: u64,
    /// Set if one of its bits was flipped.
    pub corrupted: bool,
    /// Set if this direction marked it "congestion experienced".
    pub marked: bool,
    /// Set if it is the second of two copies.
    pub is_copy: bool,
}

/// Record of one packet, for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketRecord {
    /// Its number, from 0, among all packets that were handed in.
    pub index: u64,
    /// Time at which it was handed in.
    pub arrived: Time,
    /// Its two ECN bits (RFC 3168 §5) when it was handed in; zero for a packet that is not IP.
    pub ecn: u8,
    /// The packet as it was when its fate was decided.
    pub packet: Bytes,
    /// Outcome of the packet.
    pub ending: PacketOutcome,
}

/// Outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketOutcome {
    /// The packet arrived.
    Delivered {
        /// Arrival time in the model.
        at: Time,
        /// With a flipped bit.
        corrupted: bool,
        /// Marked here.
        marked: bool,
        /// The second of two.
        is_copy: bool,
    },
    /// The packet was dropped.
    Dropped {
        /// Time of the decision.
        at: Time,
        /// Why.
        reason: DropReason,
    },
    /// The packet was still queued or in flight when recording ended
    /// ([`LinkDirection::record_held`]).
    Held {
        /// Time at which recording ended.
        at: Time,
        /// The second of two.
        is_copy: bool,
    },
}

impl LinkDirection {
    /// Makes an empty direction, whose clock starts at [`Time::ZERO`]. All its random numbers
    /// follow from `seed`.
    ///
    /// [`DirectionConfig::check`] tells whether the model can use `config`.
    #[must_use]
    pub fn new(config: DirectionConfig, seed: u64) -> Self {
        Self::within(MemoryLimits::default(), config, seed)
    }

    /// Makes an empty direction with other memory limits.
    #[must_use]
    pub fn within(limits: MemoryLimits, config: DirectionConfig, seed: u64) -> Self {
        let now = Time::ZERO;
        Self {
            policer: config
                .policer
                .map(|policer| TokenBuckets::new(policer, now)),
            bottleneck: Bottleneck::new(now, &config),
            impairments: ImpairmentModel::new(&config, seed),
            discipline_random: RandomStream::Discipline.random(seed),
            delay: DelayLine::new(&config, seed),
            limits,
            copies_to_come: TrafficCount::default(),
            late_to_come: 0,
            timeline: timeline(now, &config),
            asked: config.clone(),
            config,
            counters: DirectionCounters::default(),
            next_index: 0,
            records: None,
            now,
        }
    }

    /// Applies other settings from `now` on; a schedule among them starts at `now`. No queued
    /// packet and no packet in flight is dropped: the packet on the line keeps the bits it has
    /// sent, packets in flight keep their arrival times.
    ///
    /// An unchanged schedule continues, and its changes stay in force unless the new settings name
    /// the same setting.
    pub fn set_config(&mut self, now: Time, mut config: DirectionConfig) {
        let now = self.advance(now);
        let asked = config.clone();
        if self.asked.schedule == config.schedule {
            if self.asked.line == config.line {
                config.line = self.config.line.clone();
            }
            if self.asked.delay == config.delay {
                config.delay = self.config.delay;
            }
            if self.asked.loss == config.loss {
                config.loss = self.config.loss.clone();
            }
        } else {
            self.timeline = timeline(now, &config);
        }
        self.asked = asked;
        self.bottleneck.set(now, &config);
        self.policer = match (self.policer.take(), config.policer) {
            (Some(mut bucket), Some(policer)) => {
                bucket.set(now, policer);
                Some(bucket)
            }
            (None, Some(policer)) => Some(TokenBuckets::new(policer, now)),
            (_, None) => None,
        };
        self.impairments.set(&config);
        self.delay.set(&config);
        self.config = config;
        self.advance(now);
    }

    /// The current settings, including changes by a schedule.
    #[must_use]
    pub fn config(&self) -> &DirectionConfig {
        &self.config
    }

    /// Takes in a packet that comes at `now`.
    pub fn handle(&mut self, now: Time, packet: Bytes) -> EnqueueOutcome {
        let now = self.advance(now);
        let index = self.next_index;
        self.next_index += 1;
        self.counters.offered += TrafficCount::one(packet.len());
        let packet = EmulatedPacket {
            index,
            arrived: now,
            counted: self.config.counted_length(packet.len()),
            ecn: if self.records.is_some() {
                ecn::codepoint(self.config.framing, &packet)
            } else {
                0
            },
            bytes: packet,
            fate: self.impairments.of(index),
            marked: false,
        };
        if let Some(policer) = &mut self.policer
            && !policer.conforms(now, packet.counted)
        {
            return self.refuse(now, &packet, DropReason::Policed);
        }
        if !self.has_room(
            now,
            TrafficCount::one(packet.bytes.len()) + packet.copy_to_come(),
        ) {
            return self.refuse(now, &packet, DropReason::MemoryLimit);
        }
        self.copies_to_come += packet.copy_to_come();
        self.late_to_come += u64::from(packet.fate.late);
        let chance = self.discipline_random;
        self.bottleneck.push(now, packet, || chance.fraction(index));
        match self.leave_all(now, index) {
            Some(reason) => EnqueueOutcome::Dropped(reason),
            None => EnqueueOutcome::Queued,
        }
    }

    /// Takes out the next packet that has arrived at the far end by `now`.
    pub fn poll_output(&mut self, now: Time) -> Option<PacketDelivery> {
        let now = self.advance(now);
        let (due, arrival) = self.delay.pop(now)?;
        let PacketArrival {
            index,
            arrived,
            bytes: packet,
            ecn,
            corrupted,
            marked,
            is_copy,
        } = arrival;
        self.counters.delivered += TrafficCount::one(packet.len());
        if let Some(records) = &mut self.records {
            let ending = PacketOutcome::Delivered {
                at: due,
                corrupted,
                marked,
                is_copy,
            };
            keep(records, (index, arrived, ecn), &packet, ending);
        }
        Some(PacketDelivery {
            due,
            packet,
            index,
            corrupted,
            marked,
            is_copy,
        })
    }

    /// Time of the next call of [`LinkDirection::poll_output`]; `None` when no packet is on its way
    /// or the line is stopped for good. The call may return nothing, if the packet is lost.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let under_way = self.delay.next_due();
        if let Some(due) = under_way
            && self.late_to_come == 0
            && !self.delay.can_overtake()
        {
            return Some(due);
        }
        let end = self.bottleneck.next_end();
        let behind_line = end.map(|end| self.delay.earliest_arrival(end));
        // What waits may leave or arrive sooner when the schedule says so, and what stands still
        // moves again only then.
        let change = self.next_change().filter(|_| self.bottleneck_waits());
        [under_way, behind_line, change].into_iter().flatten().min()
    }

    /// Time at which the packet on the line ends and the queue has room again; `None` when there is
    /// none or the line stands still. It is for callers that hold packets back instead of having
    /// them dropped.
    #[must_use]
    pub fn room_at(&self) -> Option<Time> {
        self.bottleneck.next_end()
    }

    /// Starts or stops recording; earlier records are discarded.
    pub fn keep_records(&mut self, keep: bool) {
        self.records = keep.then(VecDeque::new);
    }

    /// Takes out the next record: one for each packet as soon as its end is certain, two for one
    /// that was duplicated. Beyond [`RECORDS_MAX`] undrained the oldest are forgotten.
    pub fn poll_record(&mut self) -> Option<PacketRecord> {
        self.records.as_mut()?.pop_front()
    }

    /// Records each packet that is still held at `now`, the end of recording, so that every packet
    /// that was handed in has a record.
    pub fn record_held(&mut self, now: Time) {
        let at = self.advance(now);
        let Some(records) = &mut self.records else {
            return;
        };
        for packet in self.bottleneck.packets() {
            let origin = (packet.index, packet.arrived, packet.ecn);
            let is_copy = false;
            keep(
                records,
                origin,
                &packet.bytes,
                PacketOutcome::Held { at, is_copy },
            );
        }
        for arrival in self.delay.packets() {
            let origin = (arrival.index, arrival.arrived, arrival.ecn);
            let is_copy = arrival.is_copy;
            keep(
                records,
                origin,
                &arrival.bytes,
                PacketOutcome::Held { at, is_copy },
            );
        }
    }

    /// The account as of the latest time that was named to this direction.
    #[must_use]
    pub fn counters(&self) -> DirectionCounters {
        DirectionCounters {
            queued: self.bottleneck.queued(),
            in_flight: self.delay.in_flight(),
            ..self.counters
        }
    }

    /// Packets in the queue or on the line at `now`.
    pub fn queued(&mut self, now: Time) -> TrafficCount {
        self.advance(now);
        self.bottleneck.queued()
    }

    /// Processes all events up to `now`, each at its own time.
    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        let now = self.now;
        if !self.bottleneck_waits()
            && let Some(timeline) = &mut self.timeline
        {
            timeline.skip_rounds(now);
        }
        while let Some(at) = self.next_change().filter(|at| *at <= now) {
            while let Some(exit) = self.bottleneck.poll(at) {
                self.leave(exit);
            }
            if let Some(change) = self.timeline.as_mut().and_then(SchedulePlayer::take) {
                self.change(at, change);
            }
        }
        while let Some(exit) = self.bottleneck.poll(now) {
            self.leave(exit);
        }
        now
    }

    fn next_change(&self) -> Option<Time> {
        self.timeline.as_ref()?.next()
    }

    fn change(&mut self, at: Time, change: SettingsChange) {
        if let Some(rate) = change.rate {
            self.config.line = LineConfig::Rate(rate);
            self.bottleneck.set_line(at, &self.config.line);
        }
        if let Some(delay) = change.delay {
            self.config.delay = delay;
            self.delay.set_delay(delay);
        }
        if let Some(loss) = change.loss {
            self.impairments.set_loss(&loss);
            self.config.loss = loss;
        }
    }

    /// Takes out the packets that have left the bottleneck by `now`; returns the reason if the
    /// packet of this number was dropped.
    fn leave_all(&mut self, now: Time, index: u64) -> Option<DropReason> {
        let mut dropped = None;
        while let Some(exit) = self.bottleneck.poll(now) {
            if exit.packet.index == index {
                dropped = exit.dropped;
            }
            self.leave(exit);
        }
        dropped
    }

    /// Takes a packet from the bottleneck to the delay, or to its end.
    fn leave(&mut self, exit: BottleneckExit) {
        let BottleneckExit {
            at,
            packet,
            dropped,
        } = exit;
        self.copies_to_come.subtract(packet.copy_to_come());
        self.late_to_come -= u64::from(packet.fate.late);
        if let Some(reason) = dropped {
            self.count_drop(at, &packet, reason);
            return;
        }
        if let Some(reason) = packet.fate.lost {
            self.count_drop(at, &packet, reason);
            return;
        }
        let length = TrafficCount::one(packet.bytes.len());
        let mut bytes = bottleneck::marked(self.config.framing, &packet);
        if packet.marked {
            self.counters.marked += length;
        }
        if packet.fate.corrupted {
            bytes = self.impairments.corrupt(packet.index, &bytes);
            self.counters.corrupted += length;
        }
        let arrival = PacketArrival {
            index: packet.index,
            arrived: packet.arrived,
            bytes,
            ecn: packet.ecn,
            corrupted: packet.fate.corrupted,
            marked: packet.marked,
            is_copy: false,
        };
        if packet.fate.duplicated {
            self.counters.duplicated += length;
            let copy = PacketArrival {
                is_copy: true,
                ..arrival.clone()
            };
            self.delay.push(at, arrival, packet.fate.late);
            self.delay.push(at, copy, packet.fate.late);
        } else {
            self.delay.push(at, arrival, packet.fate.late);
        }
        if packet.fate.late {
            self.counters.reordered += length;
        }
    }

    fn refuse(&mut self, now: Time, packet: &EmulatedPacket, reason: DropReason) -> EnqueueOutcome {
        self.count_drop(now, packet, reason);
        EnqueueOutcome::Dropped(reason)
    }

    fn count_drop(&mut self, at: Time, packet: &EmulatedPacket, reason: DropReason) {
        let origin = (packet.index, packet.arrived, packet.ecn);
        self.end_dropped(at, origin, &packet.bytes, reason);
    }

    fn end_dropped(
        &mut self,
        at: Time,
        origin: (u64, Time, u8),
        bytes: &Bytes,
        reason: DropReason,
    ) {
        let counter = match reason {
            DropReason::Policed => &mut self.counters.dropped_by_policer,
            DropReason::QueueFull | DropReason::HeadOfQueue | DropReason::TooLongForBucket => {
                &mut self.counters.dropped_by_queue
            }
            DropReason::Aqm => &mut self.counters.dropped_by_aqm,
            DropReason::Lost => &mut self.counters.dropped_by_loss,
            DropReason::Outage => &mut self.counters.dropped_by_outage,
            DropReason::MemoryLimit => &mut self.counters.dropped_by_limit,
            DropReason::Untaken => &mut self.counters.dropped_untaken,
        };
        *counter += TrafficCount::one(bytes.len());
        if let Some(records) = &mut self.records {
            keep(
                records,
                origin,
                bytes,
                PacketOutcome::Dropped { at, reason },
            );
        }
    }

    fn bottleneck_waits(&self) -> bool {
        self.bottleneck.queued().packets > 0
    }

    /// Tells whether there is memory to hold this much more from `now` on.
    fn has_room(&mut self, now: Time, more: TrafficCount) -> bool {
        let waiting = self.bottleneck.queued() + self.copies_to_come + more;
        // What is due and not taken out need not be told from what is under way until it matters.
        if self.limits.hold(waiting + self.delay.in_flight()) {
            return true;
        }
        while let Some((due, arrival)) = self.delay.set_aside(now, &self.limits) {
            let origin = (arrival.index, arrival.arrived, arrival.ecn);
            self.end_dropped(due, origin, &arrival.bytes, DropReason::Untaken);
        }
        self.limits.hold(waiting + self.delay.under_way())
    }
}

fn timeline(now: Time, config: &DirectionConfig) -> Option<SchedulePlayer> {
    let schedule = config.schedule.as_ref()?;
    Some(SchedulePlayer::new(now, schedule.clone()))
}

/// Records the outcome of the packet of this number, with its arrival and ECN bits.
fn keep(
    records: &mut VecDeque<PacketRecord>,
    (index, arrived, ecn): (u64, Time, u8),
    packet: &Bytes,
    ending: PacketOutcome,
) {
    if records.len() == RECORDS_MAX {
        records.pop_front();
    }
    records.push_back(PacketRecord {
        index,
        arrived,
        ecn,
        packet: packet.clone(),
        ending,
    });
}
