//! A packet inside a direction: what it is, when it came, and what chance has decided for it, and why it may be gone.

use bytes::Bytes;
use vocab::Time;

use crate::counters::TrafficCount;

/// A packet between its arrival and its end.
#[derive(Clone, Debug)]
pub(crate) struct EmulatedPacket {
    /// Its number, counted from 0 over all that were handed in.
    pub(crate) index: u64,
    pub(crate) arrived: Time,
    pub(crate) bytes: Bytes,
    /// What it counts as on the line and in the queue.
    pub(crate) counted: u64,
    /// Decided when it was handed in, for behind the line.
    pub(crate) fate: PacketImpairments,
    /// Its two bits of congestion notification as it came; zero unless records are kept.
    pub(crate) ecn: u8,
    /// Whether a discipline has marked it.
    pub(crate) marked: bool,
}

impl EmulatedPacket {
    /// What will be made of it behind the line: a copy, or nothing.
    pub(crate) fn copy_to_come(&self) -> TrafficCount {
        if self.fate.duplicated && self.fate.lost.is_none() {
            TrafficCount::one(self.bytes.len())
        } else {
            TrafficCount::default()
        }
    }
}

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// It came faster than the policer allows.
    Policed,
    /// The queue was full.
    QueueFull,
    /// It had waited longest when the queue was full (drop-head).
    HeadOfQueue,
    /// Active queue management chose it.
    Aqm,
    /// It is longer than the shaper's bucket.
    TooLongForBucket,
    /// Chance, or a list, lost it behind the line.
    Lost,
    /// It was handed in while everything is lost behind the line, as it is in an outage.
    Outage,
    /// The direction held as much as [`MemoryLimits`](crate::MemoryLimits) allows: the emulation is not faithful from
    /// here on. A replay refuses the same packet.
    MemoryLimit,
    /// It arrived, and nobody had taken out what had arrived before it; a replay delivers it.
    Untaken,
}

/// What will happen to a packet behind the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacketImpairments {
    /// Why it does not get through, if it does not.
    pub(crate) lost: Option<DropReason>,
    pub(crate) corrupted: bool,
    pub(crate) duplicated: bool,
    pub(crate) late: bool,
}
