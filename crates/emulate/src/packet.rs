//! A packet inside a direction: its content, its arrival, its random impairments, and the reasons
//! for a drop.

use bytes::Bytes;
use vocab::Time;

use crate::counters::TrafficCount;

/// A packet between its arrival and its end.
#[derive(Clone, Debug)]
pub(crate) struct EmulatedPacket {
    /// Its number, from 0, among all packets that were handed in.
    pub(crate) index: u64,
    pub(crate) arrived: Time,
    pub(crate) bytes: Bytes,
    /// Its counted length on the line and in the queue.
    pub(crate) counted: u64,
    /// Decided when it was handed in, for behind the line.
    pub(crate) fate: PacketImpairments,
    /// Its two bits of congestion notification as it came; zero unless records are kept.
    pub(crate) ecn: u8,
    /// Set if a discipline has marked it.
    pub(crate) marked: bool,
}

impl EmulatedPacket {
    /// The copy that duplication will make of it behind the line, if any.
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
    /// The packet came faster than the policer allows.
    Policed,
    /// The queue was full.
    QueueFull,
    /// The packet had waited longest when the queue was full (drop-head).
    HeadOfQueue,
    /// Active queue management chose it.
    Aqm,
    /// The packet is longer than the shaper's bucket.
    TooLongForBucket,
    /// The packet was lost behind the line, at random or by list.
    Lost,
    /// The packet was handed in while everything is lost behind the line, as in an outage.
    Outage,
    /// The direction held as much as [`MemoryLimits`](crate::MemoryLimits) allows: the emulation is not faithful from
    /// here on. A replay refuses the same packet.
    MemoryLimit,
    /// The packet arrived while too many earlier packets had not been taken out; a replay delivers
    /// it.
    Untaken,
}

/// Impairments of a packet behind the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacketImpairments {
    /// Why it does not get through, if it does not.
    pub(crate) lost: Option<DropReason>,
    pub(crate) corrupted: bool,
    pub(crate) duplicated: bool,
    pub(crate) late: bool,
}
