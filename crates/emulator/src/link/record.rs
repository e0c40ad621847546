//! Records of packets, handed from the link's thread to a writer.
//!
//! The link never waits for a writer: records without room are counted (`unrecorded_packets`) and
//! dropped. The arrivals in the records are those that the model received, so that with settings
//! and seed they suffice to replay every fate.

use emulate::PacketRecord;
use vocab::Time;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    /// Direction from end A to end B.
    Forward,
    /// Direction from end B to end A.
    Back,
}

/// Record of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkRecord {
    /// Direction of the packet; its number counts packets of this direction only.
    pub heading: PacketDirection,
    /// The model's record; its times count from [`LinkHandle::started_at`].
    ///
    /// [`LinkHandle::started_at`]: super::LinkHandle::started_at
    pub record: PacketRecord,
}

/// Receiver of records.
pub trait RecordSink: Send {
    /// Takes a record, without waiting for anything; says whether there was room.
    fn offer(&mut self, record: LinkRecord) -> bool;

    /// Takes a record after the link's end, and waits until there is room; says whether it could.
    fn offer_last(&mut self, record: LinkRecord) -> bool;

    /// Takes note that other settings are in force from `at` on, for the packets from these numbers
    /// on, forward and back.
    fn changed(&mut self, at: Time, next: [u64; 2]);
}
