//! Capture files of others: pcap and pcapng, frames, packets, and the streams of TCP connections.
//!
//! [`CaptureReader`] reads a file frame by frame, [`CapturedPacket`] is what the headers of one say, and
//! [`StreamReassembler`] puts segments together to the bytes that the hosts sent. Every byte is treated as
//! hostile: a damaged file gives an error that says where, never a panic.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod frames;
mod pcap;
mod streams;

pub use frames::{CaptureError, CaptureReader, CapturedFrame, is_capture};
pub use pcap::{ACK, CapturedPacket, SYN, TransportHeader, read};
pub use streams::{
    CapturedConnection, StreamCounts, StreamDirection, StreamEvent, StreamReassembler,
};
