//! Loss recovery of the datagram path: packets in flight, arrived and lost, and when to probe.
//!
//! ```text
//!  transport ── sent ──────────────►┌─────────────┐── acked, lost, spurious, recovered ─► frames,
//!            ── on_acknowledgement ►│ SentPackets │                              congestion, FEC
//!            ── handle_timeout ────►└─────────────┘── lost, or "send a probe"
//!                                          ▲ acknowledgements from the peer
//!                                   ┌──────┴──────────┐
//!  packets in ── on_packet ────────►│ ReceivedPackets │── acknowledgement ─► into the next packet
//!                                   └─────────────────┘
//! ```
//!
//! Packets are never sent again; the session sends their frames again. So each number has one
//! sending time, and a late acknowledgement is unambiguous (RFC 9002 §4.2). `sent.rs` has the state
//! machine, `reordering.rs` the reordering window, `ecn.rs` the ECN validation, `ring.rs` the
//! numbers in flight, `received.rs` the other direction. The loss statistics are kept by their user
//! ([`crate::fec::LossEstimate`]).
//!
//! The module does not send, seal, or decide a rate.

mod ecn;
mod received;
mod reordering;
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

/// Largest delay of an acknowledgement: the default of RFC 9000 §18.2 (max_ack_delay). Both ends
/// use it, so it is not negotiated.
pub const ACK_DELAY_MAX: Duration = Duration::from_millis(25);

#[cfg(test)]
mod tests;
