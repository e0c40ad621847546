//! Capture files of others: pcap and pcapng, frames, packets, and the streams of TCP connections.
//!
//! [`Frames`] reads a file frame by frame, [`Packet`] is what the headers of one say, and
//! [`Streams`] puts segments together to the bytes that the hosts sent. Every byte is treated as
//! hostile: a damaged file gives an error that says where, never a panic.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod frames;
mod pcap;
mod streams;

pub use frames::{Damage, Frame, Frames, is_capture};
pub use pcap::{ACK, Packet, SYN, Transport, read};
pub use streams::{Connection, Counts, Direction, Event, Streams};
