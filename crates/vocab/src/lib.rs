//! The words every part of Trunkline shares.
//!
//! Quantities are types with units ([`Bitrate`], [`ByteCount`], [`Probability`]), written and
//! read as iperf3's and tc's users write them (`"51.84Mbit"`, `"64KiB"`, `"0.1%"`, `"250ms"`).
//! Time ([`Time`]) and chance ([`Random`]) are values that a shell hands in, so that the cores
//! need neither a clock nor a global generator. [`Reader`] and [`Writer`] are the one pair of
//! cursors that the wire formats are built on.
//!
//! It holds no protocol and does no I/O.

#![forbid(unsafe_code)]

mod chance;
mod cursor;
mod flow;
mod random;
mod text;
mod time;
mod units;

pub use chance::Chance;
pub use cursor::{Reader, Truncated, Writer, varint_length};
pub use flow::{FlowId, NodeId, ParseNodeIdError, Segment, SegmentKind};
pub use random::Random;
pub use text::printable;
pub use time::Time;
pub use units::{
    Bitrate, ByteCount, ParseUnitError, Probability, duration_text, format_duration, parse_duration,
};
