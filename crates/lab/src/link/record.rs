//! What became of each packet, handed out of the link's thread to whoever writes it down.
//!
//! The link never waits for a writer: what finds no room is counted (`unrecorded_packets`) and
//! gone. The arrivals in the records are those that the model was told, so that they are all it
//! takes, with settings and seed, to have every fate again.

use std::sync::mpsc;

use emulate::Record;

/// The records that wait for a writer: 0.3 s of 100,000 packets per second, some 50 MB if they
/// are of full size.
const WAITING_MAX: usize = 32_768;

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// From end A to end B.
    Forward,
    /// From end B to end A.
    Back,
}

/// What became of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkRecord {
    /// Which way it went; its number counts for this way alone.
    pub heading: Heading,
    /// The model's record; its times count from [`LinkHandle::started_at`].
    ///
    /// [`LinkHandle::started_at`]: super::LinkHandle::started_at
    pub record: Record,
}

/// Where records go.
pub trait RecordSink: Send {
    /// Takes a record, without waiting for anything; says whether there was room.
    fn offer(&mut self, record: LinkRecord) -> bool;
}

/// A sink for [`LinkHandle::records`] and where its records come out, in the order in which they
/// became certain.
///
/// [`LinkHandle::records`]: super::LinkHandle::records
#[must_use]
pub fn record_channel() -> (Box<dyn RecordSink>, mpsc::Receiver<LinkRecord>) {
    let (sender, receiver) = mpsc::sync_channel(WAITING_MAX);
    (Box::new(Channel(sender)), receiver)
}

struct Channel(mpsc::SyncSender<LinkRecord>);

impl RecordSink for Channel {
    fn offer(&mut self, record: LinkRecord) -> bool {
        self.0.try_send(record).is_ok()
    }
}
