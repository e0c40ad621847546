//! Tests of a circuit by streams of given frames, which go before TCP is tried (RFC 6349 §3.2.2): service
//! activation by ITU-T Y.1564, and throughput, frame loss and back-to-back bursts by RFC 2544.
//!
//! ```text
//!  Service:     CIR in quarters ─► CIR + EIR ─► a quarter above ─► performance for a stated time
//!  Throughput:  for each frame size: search with a stated loss goal ─► frame loss in tenths ─► bursts
//! ```
//! Both are machines: `next_stream` says what to send, `handle` takes what arrived. Frames are Ethernet's, and
//! rates count them from the destination address to the check sum, as contracts do (MEF 10, information
//! rate). What is sent are IP packets of [`FRAME_OVERHEAD`] bytes less.
//!
//! The clocks need not be synchronised, and no one-way delay is claimed: see [`StreamResult`].

mod seen;
mod service;
mod throughput;

pub use seen::StreamResult;
pub use service::{
    ServiceCriteria, ServicePart, ServicePlan, ServiceProcedure, ServiceVerdict, StepResult,
    StepVerdict, TOLERANCE_PERCENT,
};
pub use throughput::{
    BackToBack, LoadClass, LoadTrials, LossStep, SearchGoal, SizeResult, SlowEnd, ThroughputPlan,
    ThroughputProcedure,
};

use std::time::Duration;

use vocab::{Bitrate, ByteCount};

use crate::procedure::{StreamPlan, StreamRecord, UDP_HEADERS_IPV6};
use crate::wire::{DATAGRAM_HEADER, TestDirection};

/// Overhead of Ethernet for an IP packet, as contracts count it: header 14 bytes, check sum 4.
pub const FRAME_OVERHEAD: u16 = 18;
/// The least frame that holds a packet of the tester's. RFC 2544's 64 bytes do not hold its tag.
pub const FRAME_MIN: u16 = UDP_HEADERS_IPV6 + DATAGRAM_HEADER as u16 + FRAME_OVERHEAD;
/// Greatest number of frames in one stream; see [`crate::procedure::ArrivalLog`].
const FRAMES_MAX: u64 = 1_500_000;

/// A test that is made of streams, one after the other.
pub trait StreamTest {
    /// Next stream to send; it stays the same until [`StreamTest::handle`] has the record. [`None`]
    /// when the test is complete.
    fn next_stream(&self) -> Option<(TestDirection, StreamPlan)>;
    /// Takes in the record of the stream that was to be sent.
    fn handle(&mut self, record: &StreamRecord);
    /// Progress, from 0 to 1.
    fn progress(&self) -> f64;
    /// Short description of the current measurement.
    fn describe(&self) -> String;
    /// Ends the test here, and says why.
    fn give_up(&mut self, why: String);
}

/// A stream of frames at a rate that counts whole frames, shorter where it would have too many.
fn stream(rate: Bitrate, frame: u16, duration: Duration) -> StreamPlan {
    let most = rate.time_for(ByteCount::new(u64::from(frame) * FRAMES_MAX));
    StreamPlan {
        rate: of_packets(rate, frame),
        duration: duration.min(most),
        ip_bytes: frame - FRAME_OVERHEAD,
    }
}

/// The rate of IP packets in a rate of frames.
fn of_packets(rate: Bitrate, frame: u16) -> Bitrate {
    scale(rate, u64::from(frame - FRAME_OVERHEAD), u64::from(frame))
}

/// The rate of frames that carry a rate of IP packets.
fn of_frames(rate: Bitrate, frame: u16) -> Bitrate {
    scale(rate, u64::from(frame), u64::from(frame - FRAME_OVERHEAD))
}

fn scale(rate: Bitrate, times: u64, over: u64) -> Bitrate {
    let bits = u128::from(rate.bits_per_second()) * u128::from(times) / u128::from(over.max(1));
    Bitrate::from_bits_per_second(u64::try_from(bits).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
