//! What happened to the packets of one direction; nothing goes uncounted.

use std::ops::{Add, AddAssign, Sub};

/// A number of packets and the bytes in them, as handed in (without the configured overhead).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Bytes in those packets.
    pub bytes: u64,
}

impl Tally {
    /// One packet of this length.
    #[must_use]
    pub(crate) fn one(length: usize) -> Self {
        Self {
            packets: 1,
            bytes: length as u64,
        }
    }

    pub(crate) fn subtract(&mut self, other: Tally) {
        *self = *self - other;
    }
}

impl Add for Tally {
    type Output = Tally;

    fn add(self, other: Tally) -> Tally {
        Tally {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Sub for Tally {
    type Output = Tally;

    fn sub(self, other: Tally) -> Tally {
        Tally {
            packets: self.packets - other.packets,
            bytes: self.bytes - other.bytes,
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        *self = *self + other;
    }
}

/// The account of one direction. At every moment
/// `offered + duplicated = delivered + dropped_by_* + queued + in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed in.
    pub offered: Tally,
    /// Taken out at the far end, copies included.
    pub delivered: Tally,
    /// Dropped before the queue because they came faster than the policer allows.
    pub dropped_by_policer: Tally,
    /// Dropped because the queue was full (at its head, for drop-head), or longer than a shaper's
    /// bucket.
    pub dropped_by_queue: Tally,
    /// Dropped by active queue management before the queue was full.
    pub dropped_by_aqm: Tally,
    /// Lost by chance, or by list, behind the line.
    pub dropped_by_loss: Tally,
    /// Lost behind the line, handed in while everything is lost there: in an outage.
    pub dropped_by_outage: Tally,
    /// Refused because the direction held as much as its memory limits allow: outside the model.
    /// A run in which this is not zero did not emulate what it was set to. A replay of it refuses
    /// the same packets.
    pub dropped_by_limit: Tally,
    /// Thrown away when they were due, because too many that were due before had not been taken
    /// out: outside the model, and the caller's fault. The fates of all others are the model's; a
    /// replay of such a run delivers these.
    pub dropped_untaken: Tally,
    /// Copies that chance has made.
    pub duplicated: Tally,
    /// Sent on with a flipped bit.
    pub corrupted: Tally,
    /// Marked "congestion experienced" by active queue management.
    pub marked: Tally,
    /// Sent on to arrive late.
    pub reordered: Tally,
    /// Now waiting in the queue or on the line.
    pub queued: Tally,
    /// Now between the line and the far end, or there and not yet taken out.
    pub in_flight: Tally,
}
