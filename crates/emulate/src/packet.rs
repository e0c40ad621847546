//! A packet inside a direction: what it is, when it came, and what chance has decided for it.

use bytes::Bytes;
use vocab::Time;

use crate::counters::Tally;
use crate::direction::DropReason;

/// A packet between its arrival and its end.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// Its number, counted from 0 over all that were handed in.
    pub(crate) index: u64,
    pub(crate) arrived: Time,
    pub(crate) bytes: Bytes,
    /// What it counts as on the line and in the queue.
    pub(crate) counted: u64,
    /// Decided when it was handed in, for behind the line.
    pub(crate) fate: Misfortune,
    /// Its two bits of congestion notification as it came; zero unless records are kept.
    pub(crate) ecn: u8,
    /// Whether a discipline has marked it.
    pub(crate) marked: bool,
}

impl Packet {
    /// What will be made of it behind the line: a copy, or nothing.
    pub(crate) fn copy_to_come(&self) -> Tally {
        if self.fate.duplicated && self.fate.lost.is_none() {
            Tally::one(self.bytes.len())
        } else {
            Tally::default()
        }
    }
}

/// What will happen to a packet behind the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Misfortune {
    /// Why it does not get through, if it does not.
    pub(crate) lost: Option<DropReason>,
    pub(crate) corrupted: bool,
    pub(crate) duplicated: bool,
    pub(crate) late: bool,
}
