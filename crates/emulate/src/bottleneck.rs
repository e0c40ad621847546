//! A queue in front of a line: it decides which packets wait, and which are dropped.
//!
//! ```text
//! push ──► discipline ──► limit ──► waiting ──► discipline ──► line ──► poll
//!          drop, mark     drop                  drop, mark
//! ```
//!
//! Events happen at their own times, independent of the caller's polling. Events of the same
//! nanosecond happen in this order: a packet ends and the next is taken out for the line, a
//! discipline updates its state, the caller's packet arrives.

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::{ByteCount, DeviceQueueLimit, Time};

use crate::config::{DirectionConfig, LinkFraming, QueueLimit};
use crate::counters::TrafficCount;
use crate::ecn;
use crate::line::LineState;
use crate::packet::{DropReason, EmulatedPacket};
use crate::queue::{ArrivingPacket, DequeuedPacket, QueueManager, QueueVerdict};

/// The queue and the line behind it.
#[derive(Debug)]
pub(crate) struct Bottleneck {
    framing: LinkFraming,
    limit: QueueLimit,
    manager: QueueManager,
    line: LineState,
    waiting: VecDeque<EmulatedPacket>,
    on_line: Option<EmulatedPacket>,
    /// Counted bytes of the waiting packets; `counted` adds those of the packet on the line.
    waiting_counted: u64,
    counted: u64,
    held: TrafficCount,
    /// Limit in buffers of one size, which only a device model has.
    slots: Option<DeviceQueueLimit>,
    slots_held: u64,
    /// Dropped packets that were not polled yet.
    dropped: VecDeque<BottleneckExit>,
}

/// A packet that is no longer here.
#[derive(Debug)]
pub(crate) struct BottleneckExit {
    pub(crate) at: Time,
    pub(crate) packet: EmulatedPacket,
    /// Reason of the drop; `None` for a packet that the line has carried.
    pub(crate) dropped: Option<DropReason>,
}

impl Bottleneck {
    pub(crate) fn new(now: Time, config: &DirectionConfig) -> Self {
        Self {
            framing: config.framing,
            limit: config.queue.limit,
            manager: QueueManager::new(config.queue.discipline, config.full_packet()),
            line: LineState::new(now, &config.line),
            waiting: VecDeque::new(),
            on_line: None,
            waiting_counted: 0,
            counted: 0,
            held: TrafficCount::default(),
            slots: None,
            slots_held: 0,
            dropped: VecDeque::new(),
        }
    }

    /// A queue that is limited in buffers of one size as well.
    pub(crate) fn with_slots(now: Time, config: &DirectionConfig, slots: DeviceQueueLimit) -> Self {
        Self {
            slots: Some(slots),
            ..Self::new(now, config)
        }
    }

    /// Applies other settings at `now`. The packet on the line keeps the bits that it has sent, and
    /// no waiting packet is dropped, even if the new limit is lower.
    ///
    /// All events up to `now` must have been polled before.
    pub(crate) fn set(&mut self, now: Time, config: &DirectionConfig) {
        self.framing = config.framing;
        self.limit = config.queue.limit;
        self.manager
            .set(now, config.queue.discipline, config.full_packet());
        self.set_line(now, &config.line);
    }

    pub(crate) fn set_line(&mut self, now: Time, line: &crate::config::LineConfig) {
        let on_line = self.on_line.as_ref().map(|packet| packet.counted);
        self.line.set(now, line, on_line);
        // A smaller bucket may not hold the packet that waits for it.
        if on_line.is_some_and(|counted| !self.line.can_carry(counted)) {
            self.drop_on_line(now);
        }
    }

    /// Appends a packet at `now`, or drops it or others. `uniform` is its random number.
    pub(crate) fn push(
        &mut self,
        now: Time,
        mut packet: EmulatedPacket,
        uniform: impl Fn() -> f64,
    ) {
        if !self.line.can_carry(packet.counted) {
            self.drop(now, packet, DropReason::TooLongForBucket);
            return;
        }
        if self.manager.is_active() {
            let newcomer = ArrivingPacket {
                occupancy: self.counted,
                is_ecn_capable: ecn::is_capable(self.framing, &packet.bytes),
                uniform: uniform(),
            };
            match self.manager.on_arrival(now, newcomer) {
                QueueVerdict::Pass => {}
                QueueVerdict::Mark => packet.marked = true,
                QueueVerdict::Drop => return self.drop(now, packet, DropReason::Aqm),
            }
        }
        if !self.has_room(packet.counted) {
            if matches!(self.manager, QueueManager::DropHead) {
                self.make_room(now, packet.counted);
            }
            if !self.has_room(packet.counted) {
                self.manager.on_full();
                self.drop(now, packet, DropReason::QueueFull);
                return;
            }
        }
        self.counted += packet.counted;
        self.held += TrafficCount::one(packet.bytes.len());
        self.slots_held += self.slots_of(packet.counted);
        if self.on_line.is_none() {
            self.waiting_counted += packet.counted;
            self.waiting.push_back(packet);
            self.put_next_on_line(now, LineState::begin);
        } else {
            self.waiting_counted += packet.counted;
            self.waiting.push_back(packet);
        }
    }

    /// Takes out the next packet that has left by `until`, carried or dropped, in the order of
    /// their moments.
    pub(crate) fn poll(&mut self, until: Time) -> Option<BottleneckExit> {
        loop {
            if let Some(exit) = self.dropped.pop_front() {
                return Some(exit);
            }
            let end = self.next_end().filter(|end| *end <= until);
            let update = self.manager.next_update().filter(|at| *at <= until);
            match (end, update) {
                (Some(end), Some(update)) if update < end => self.manager.update(just_before(end)),
                (Some(end), _) => return self.finish_packet(end),
                (None, Some(_)) => self.manager.update(until),
                (None, None) => return None,
            }
        }
    }

    /// Time at which the packet on the line ends; `None` when there is none or the line stands
    /// still.
    pub(crate) fn next_end(&self) -> Option<Time> {
        self.on_line.as_ref().and_then(|_| self.line.end())
    }

    /// Packets that are queued, the packet on the line included.
    pub(crate) fn queued(&self) -> TrafficCount {
        self.held
    }

    /// Packets that are queued, the packet on the line first.
    pub(crate) fn packets(&self) -> impl Iterator<Item = &EmulatedPacket> {
        self.on_line.iter().chain(&self.waiting)
    }

    fn finish_packet(&mut self, at: Time) -> Option<BottleneckExit> {
        let packet = self.on_line.take()?;
        self.line.finish(at);
        self.forget(&packet);
        self.put_next_on_line(at, LineState::follow);
        if self.on_line.is_none() {
            self.manager.on_idle(at);
        }
        Some(BottleneckExit {
            at,
            packet,
            dropped: None,
        })
    }

    /// Takes the packet at the head out for the line, and drops those in front of it that the
    /// discipline does not want to see there.
    fn put_next_on_line(&mut self, now: Time, put: fn(&mut LineState, Time, u64)) {
        while let Some(mut packet) = self.waiting.pop_front() {
            self.waiting_counted -= packet.counted;
            if self.manager.is_active() {
                let head = DequeuedPacket {
                    sojourn: now.since(packet.arrived),
                    backlog: self.waiting_counted,
                    is_ecn_capable: ecn::is_capable(self.framing, &packet.bytes),
                };
                match self.manager.on_departure(now, head) {
                    QueueVerdict::Pass => {}
                    QueueVerdict::Mark => packet.marked = true,
                    QueueVerdict::Drop => {
                        self.forget(&packet);
                        self.drop(now, packet, DropReason::Aqm);
                        continue;
                    }
                }
            }
            if !self.line.can_carry(packet.counted) {
                self.forget(&packet);
                self.drop(now, packet, DropReason::TooLongForBucket);
                continue;
            }
            put(&mut self.line, now, packet.counted);
            self.on_line = Some(packet);
            return;
        }
    }

    fn drop_on_line(&mut self, now: Time) {
        if let Some(packet) = self.on_line.take() {
            self.forget(&packet);
            self.drop(now, packet, DropReason::TooLongForBucket);
            self.put_next_on_line(now, LineState::begin);
            if self.on_line.is_none() {
                self.manager.on_idle(now);
            }
        }
    }

    fn make_room(&mut self, now: Time, counted: u64) {
        while !self.has_room(counted) {
            let Some(oldest) = self.waiting.pop_front() else {
                return;
            };
            self.waiting_counted -= oldest.counted;
            self.forget(&oldest);
            self.drop(now, oldest, DropReason::HeadOfQueue);
        }
    }

    fn has_room(&self, counted: u64) -> bool {
        let QueueLimit {
            bytes,
            packets,
            time,
        } = self.limit;
        let after = self.counted + counted;
        let slots_after = self.slots_held + self.slots_of(counted);
        bytes.is_none_or(|limit| ByteCount::new(after) <= limit)
            && packets.is_none_or(|limit| self.held.packets < limit)
            && time.is_none_or(|limit| {
                self.line
                    .time_for(after)
                    .is_none_or(|needed| needed <= limit)
            })
            && self.slots.is_none_or(|limit| slots_after <= limit.limit())
    }

    fn slots_of(&self, counted: u64) -> u64 {
        self.slots.map_or(0, |limit| limit.cost(counted))
    }

    fn drop(&mut self, at: Time, packet: EmulatedPacket, reason: DropReason) {
        self.dropped.push_back(BottleneckExit {
            at,
            packet,
            dropped: Some(reason),
        });
    }

    fn forget(&mut self, packet: &EmulatedPacket) {
        self.counted -= packet.counted;
        self.slots_held -= self.slots_of(packet.counted);
        self.held.subtract(TrafficCount::one(packet.bytes.len()));
    }
}

fn just_before(time: Time) -> Time {
    Time::from_nanos(time.as_nanos().saturating_sub(1))
}

/// A packet with the mark of congestion, if a discipline has set it.
pub(crate) fn marked(framing: LinkFraming, packet: &EmulatedPacket) -> Bytes {
    if packet.marked {
        ecn::mark(framing, &packet.bytes)
    } else {
        packet.bytes.clone()
    }
}
