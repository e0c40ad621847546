//! Counters of the packets of one direction; every packet is counted.

use std::ops::{Add, AddAssign, Sub};

/// A number of packets and the bytes in them, as handed in (without the configured overhead).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCount {
    /// Packets.
    pub packets: u64,
    /// Bytes in those packets.
    pub bytes: u64,
}

impl TrafficCount {
    /// One packet of this length.
    #[must_use]
    pub(crate) fn one(length: usize) -> Self {
        Self {
            packets: 1,
            bytes: length as u64,
        }
    }

    pub(crate) fn subtract(&mut self, other: TrafficCount) {
        *self = *self - other;
    }
}

impl Add for TrafficCount {
    type Output = TrafficCount;

    fn add(self, other: TrafficCount) -> TrafficCount {
        TrafficCount {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Sub for TrafficCount {
    type Output = TrafficCount;

    fn sub(self, other: TrafficCount) -> TrafficCount {
        TrafficCount {
            packets: self.packets - other.packets,
            bytes: self.bytes - other.bytes,
        }
    }
}

impl AddAssign for TrafficCount {
    fn add_assign(&mut self, other: TrafficCount) {
        *self = *self + other;
    }
}

/// The account of one direction. At every moment
/// `offered + duplicated = delivered + dropped_by_* + queued + in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    /// Handed in.
    pub offered: TrafficCount,
    /// Taken out at the far end, copies included.
    pub delivered: TrafficCount,
    /// Dropped before the queue because they came faster than the policer allows.
    pub dropped_by_policer: TrafficCount,
    /// Dropped because the queue was full (at its head, for drop-head), or longer than a shaper's
    /// bucket.
    pub dropped_by_queue: TrafficCount,
    /// Dropped by active queue management before the queue was full.
    pub dropped_by_aqm: TrafficCount,
    /// Lost behind the line, at random or by list.
    pub dropped_by_loss: TrafficCount,
    /// Lost behind the line, handed in while everything is lost there: in an outage.
    pub dropped_by_outage: TrafficCount,
    /// Refused because the direction had reached its memory limits: outside the model. If this is
    /// not zero, the run did not emulate its settings. A replay refuses the same packets.
    pub dropped_by_limit: TrafficCount,
    /// Thrown away when they were due, because too many that were due before had not been taken
    /// out: outside the model, and the caller's fault. The fates of all others are the model's; a
    /// replay of such a run delivers these.
    pub dropped_untaken: TrafficCount,
    /// Copies made by duplication.
    pub duplicated: TrafficCount,
    /// Sent on with a flipped bit.
    pub corrupted: TrafficCount,
    /// Marked "congestion experienced" by active queue management.
    pub marked: TrafficCount,
    /// Sent on to arrive late.
    pub reordered: TrafficCount,
    /// Now waiting in the queue or on the line.
    pub queued: TrafficCount,
    /// Now between the line and the far end, or there and not yet taken out.
    pub in_flight: TrafficCount,
}
