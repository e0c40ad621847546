//! Simulated capture of a transfer: segments as a tap sees them, with the effects of taps.

use std::time::Duration;

use measure::diagnosis::{TcpOptions, TcpSegment};
use tcp::SegmentFlags;

use crate::transfer::{CapturedPacket, HEADERS};

/// Segments that a card is handed at once, and that it hands up at once.
const MOST_AT_ONCE: u32 = 44;
/// Segments that come within this long are put together at a receiver.
const TOGETHER: Duration = Duration::from_micros(30);
/// IPv4 and TCP headers without options.
const BARE_HEADERS: u32 = 40;

/// Settings of a capture.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CaptureSettings {
    /// Set if the capture has super-segments.
    pub(crate) offloaded: bool,
    /// The share of the capture missing at its beginning, handshakes included.
    pub(crate) begins_late: f64,
}

/// Segments that a capture of it holds.
pub(crate) fn segments(
    seen: &[CapturedPacket],
    packet: u64,
    taking: CaptureSettings,
) -> Vec<TcpSegment> {
    let payload = (packet - HEADERS) as u32;
    let mut segments: Vec<TcpSegment> = Vec::new();
    for seen in seen {
        let this = captured(seen);
        let joins = |last: &&mut TcpSegment| {
            taking.offloaded
                && this.payload_bytes > 0
                && last.source == this.source
                && last.sequence.wrapping_add(last.payload_bytes) == this.sequence
                && last.payload_bytes < MOST_AT_ONCE * payload
                && last.payload_bytes > 0
                && this.at.since(last.at) <= TOGETHER
        };
        match segments.last_mut().filter(joins) {
            Some(last) => last.payload_bytes += this.payload_bytes,
            None => segments.push(this),
        }
    }
    let late = (segments.len() as f64 * taking.begins_late) as usize;
    segments.drain(..late);
    segments
}

fn captured(seen: &CapturedPacket) -> TcpSegment {
    let segment = &seen.segment;
    let flags = segment.flags;
    let mut options = TcpOptions {
        segment_bytes: segment.options.mss,
        window_scale: segment.options.window_scale,
        stamps: segment
            .options
            .timestamps
            .map(|stamps| (stamps.value, stamps.echo)),
        ..TcpOptions::default()
    };
    for (slot, block) in options
        .blocks
        .iter_mut()
        .zip(segment.options.sack.as_slice())
    {
        *slot = Some(*block);
    }
    TcpSegment {
        at: seen.at,
        source: seen.addresses.local,
        destination: seen.addresses.remote,
        sequence: segment.sequence,
        acknowledgement: flags
            .contain(SegmentFlags::ACK)
            .then_some(segment.acknowledgement),
        opens: flags.contain(SegmentFlags::SYN),
        ends: flags.contain(SegmentFlags::FIN) || flags.contain(SegmentFlags::RST),
        window: segment.window,
        payload_bytes: segment.payload.len() as u32,
        header_bytes: BARE_HEADERS + segment.options.wire_length() as u32,
        options,
    }
}
