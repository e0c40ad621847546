//! Loss recovery of the datagram path: what is under way, what arrived, what is lost, and when to
//! ask.
//!
//! ```text
//!  transport ── sent ──────────────►┌─────────────┐── acked, lost, spurious, recovered ─► frames,
//!            ── on_acknowledgement ►│ SentPackets │                              congestion, FEC
//!            ── handle_timeout ────►└─────────────┘── lost, or "send a probe"
//!                                          ▲ acknowledgements of the peer's ...
//!                                   ┌──────┴──────┐
//!  packets in ── on_packet ────────►│  Received   │── acknowledgement ─► into the next packet
//!                                   └─────────────┘
//! ```
//!
//! Packets are never sent again; their frames are, by the session. So each number has one time of
//! sending, and a late acknowledgement is no riddle (RFC 9002 §4.2). `sent.rs` has the machine,
//! `lateness.rs` how long a packet may be overtaken before it counts as lost, `marks.rs` whether the
//! path lets congestion marks through, `ring.rs` the numbers under way, `received.rs` the other
//! direction. What the losses look like is worked out by who needs it ([`crate::fec::LossEstimate`]).
//!
//! Nothing here sends, seals, or decides a rate.

mod lateness;
mod marks;
mod received;
mod ring;
mod sent;

use std::time::Duration;

pub use received::{
    AckRequest, EcnMarking, PendingAck, ReceivedPacket, ReceivedPackets, TRACKED_BACK,
};
pub use sent::{
    AckOutcome, LOST_REMEMBERED, OutgoingPacket, PROBE_INTERVAL_MAX, PacketKind,
    RecoveryStatistics, RecoveryTimeout, SentPacket, SentPackets, TRACKED_LIMIT, UNTIMED_LIMIT,
};

/// How long a receiver keeps an acknowledgement to itself, at most; what RFC 9000 §18.2
/// (max_ack_delay) has as default. Both ends hold to it, so it is not negotiated.
pub const ACK_DELAY_MAX: Duration = Duration::from_millis(25);

#[cfg(test)]
mod tests;
