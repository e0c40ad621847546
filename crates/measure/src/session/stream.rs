//! Stream of datagrams that one end sends: the bytes of each packet, and their departure times.

use crate::procedure::{ARRIVALS_MAX, StreamPlan};
use crate::wire::{DatagramHeader, DatagramKind, SessionKey, SessionRole};

/// Stream that is to be sent; [`crate::procedure::DepartureSchedule`] has its times.
#[derive(Clone, Debug)]
pub struct OutgoingStream {
    pub(super) role: SessionRole,
    pub(super) key: SessionKey,
    pub(super) session: u64,
    /// Number of the order.
    pub order: u32,
    /// Plan of the stream.
    pub plan: StreamPlan,
    /// Bytes of the IP and UDP headers, which the plan counts.
    pub(super) headers: u16,
    pub(super) left_ns: Vec<u64>,
}

/// Packets of a stream that left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentDatagrams {
    /// Their number.
    pub datagrams: u64,
    /// Departure times of the first packets.
    pub left_ns: Vec<u64>,
}

impl OutgoingStream {
    /// Writes the packet with this number and stamp into `out`, whose old content goes.
    pub fn emit(&mut self, number: u64, stamp: u64, out: &mut Vec<u8>) {
        let head = DatagramHeader {
            kind: DatagramKind::Data,
            session: self.session,
            order: self.order,
            number,
            stamp,
            extra: 0,
        };
        let length = usize::from(self.plan.ip_bytes.saturating_sub(self.headers));
        head.emit(&self.key, self.role, length, out);
        // Only the client reads them.
        if self.role == SessionRole::Client && self.left_ns.len() < ARRIVALS_MAX {
            self.left_ns.push(stamp);
        }
    }

    /// Result of the stream after so many packets.
    #[must_use]
    pub fn finish(self, datagrams: u64) -> SentDatagrams {
        SentDatagrams {
            datagrams,
            left_ns: self.left_ns,
        }
    }
}
