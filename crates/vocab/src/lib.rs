//! The words every part of Trunkline shares.
//!
//! Quantities are types with units ([`Bitrate`], [`ByteCount`], [`Probability`]), written and
//! read as iperf3's and tc's users write them (`"51.84Mbit"`, `"64KiB"`, `"0.1%"`, `"250ms"`).
//! Time ([`Time`]) and chance ([`SeededRandom`]) are values that a shell hands in, so that the cores
//! need neither a clock nor a global generator. [`DeviceModel`] describes a router as the profiler
//! fits it and the emulator runs it. [`ByteReader`] and [`ByteWriter`] are the one pair of
//! cursors that the wire formats are built on.
//!
//! It holds no protocol and does no I/O.

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]

mod cursor;
mod device;
mod flow;
mod indexed_random;
mod random;
mod text;
mod time;
mod units;

pub use cursor::{ByteReader, ByteWriter, TruncatedInput, varint_length};
pub use device::{
    AqmModel, DEVICE_PORTS_MAX, DEVICE_RATE_MAX, DEVICE_SERVERS_MAX, DeviceModel, DeviceModelError,
    DeviceQueueLimit, OutputModel, PolicerModel, PortOutput, SharedServers, SizeTimePoint,
    SizeTimeTable, TABLE_POINTS_MAX,
};
pub use flow::{FlowId, FlowSegment, NodeId, ParseNodeIdError, SegmentKind};
pub use indexed_random::IndexedRandom;
pub use random::SeededRandom;
pub use text::printable;
pub use time::Time;
pub use units::{
    Bitrate, ByteCount, ParseUnitError, Probability, duration_text, format_duration, parse_duration,
};
