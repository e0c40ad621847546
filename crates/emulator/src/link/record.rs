//! What became of each packet, handed out of the link's thread to whoever writes it down.
//!
//! The link never waits for a writer: what finds no room is counted (`unrecorded_packets`) and
//! gone. The arrivals in the records are those that the model was told, so that they are all it
//! takes, with settings and seed, to have every fate again.

use emulate::PacketRecord;
use vocab::Time;

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    /// From end A to end B.
    Forward,
    /// From end B to end A.
    Back,
}

/// What became of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkRecord {
    /// Which way it went; its number counts for this way alone.
    pub heading: PacketDirection,
    /// The model's record; its times count from [`LinkHandle::started_at`].
    ///
    /// [`LinkHandle::started_at`]: super::LinkHandle::started_at
    pub record: PacketRecord,
}

/// Where records go.
pub trait RecordSink: Send {
    /// Takes a record, without waiting for anything; says whether there was room.
    fn offer(&mut self, record: LinkRecord) -> bool;

    /// Takes a record after the link's end, and waits until there is room; says whether it could.
    fn offer_last(&mut self, record: LinkRecord) -> bool;

    /// Is told that other settings hold from `at` on, for the packets from these numbers on,
    /// forward and back.
    fn changed(&mut self, at: Time, next: [u64; 2]);
}
