//! One TCP without sockets: segments come in, segments go out, and the caller hands in the time.
//!
//! ```text
//!   IP packets ─ parse_packet ─► TcpHost ─► TcpConnection ─► SendSide, ReceiveSide
//!              ◄─ emit_packet ─           ◄─ poll_output ─
//! ```
//!
//! It behaves as Linux does where the two can be compared: NewReno or CUBIC with HyStart, SACK, RACK
//! and tail probes, proportional rate reduction, F-RTO, delayed acknowledgements. So hosts of a
//! simulation load a path as real ones do, and one end can be the kernel's own TCP behind a TUN
//! device. Data can be a pattern that takes no memory ([`SendContent::Pattern`]).
//!
//! It has no ECN, no pacing, no urgent data, no keep-alive and no TCP Fast Open.

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod congestion;
mod connection;
mod host;
mod info;
mod payload;
mod range_set;
mod receive;
mod receive_window;
mod segment;
mod send;
mod wire;

pub use config::{CongestionAlgorithm, ConnectionConfig};
pub use connection::{TIME_WAIT, TcpConnection, reset_for};
pub use host::{CONNECTIONS_MOST, ConnectionNumber, TcpHost};
pub use info::{ClosedReason, ConnectionInfo, ConnectionState, RecoveryPhase, SendLimit};
pub use payload::{ReceiveContent, SendContent, is_pattern, write_pattern};
pub use segment::{
    FlowAddresses, SACK_BLOCKS_MAX, SackBlocks, SegmentFlags, SegmentOptions, SegmentPayload,
    TcpSegment, TimestampOption,
};
pub use wire::{IPV4_HEADER, IPV6_HEADER, PacketError, emit_packet, packet_length, parse_packet};
