//! What happened to the packets of one direction; nothing goes uncounted.

use std::ops::AddAssign;

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
        self.packets -= other.packets;
        self.bytes -= other.bytes;
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// The account of one direction. At every moment
/// `offered = delivered + dropped_by_* + queued + in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed in.
    pub offered: Tally,
    /// Taken out at the far end.
    pub delivered: Tally,
    /// Refused because the queue was full: the model's own.
    pub dropped_by_queue: Tally,
    /// Lost by chance behind the line: the model's own.
    pub dropped_by_loss: Tally,
    /// Refused because the direction held as much as its memory limits allow: outside the model.
    /// A run in which this is not zero did not emulate what it was set to.
    pub dropped_by_limit: Tally,
    /// Now waiting in the queue or on the line.
    pub queued: Tally,
    /// Now between the line and the far end.
    pub in_flight: Tally,
}
