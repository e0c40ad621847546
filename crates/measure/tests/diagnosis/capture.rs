//! Simulated capture of a transfer: segments as a tap sees them, with the effects of taps.

use std::net::SocketAddr;
use std::time::Duration;

use measure::diagnosis::{TcpOptions, TcpSegment};

use crate::tcp::HEADERS;
use crate::transfer::{CapturedPacket, PacketContent};

/// Segments that a card is handed at once, and that it hands up at once.
const MOST_AT_ONCE: u32 = 44;
/// Segments that come within this long are put together at a receiver.
const TOGETHER: Duration = Duration::from_micros(30);
/// The window field and its scale: 65,535 × 2^7 = 8 MB.
const WINDOW_SCALE: u8 = 7;

/// Settings of a capture.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CaptureSettings {
    /// Set if the capture has super-segments.
    pub(crate) offloaded: bool,
    /// The share of the capture missing at its beginning, handshakes included.
    pub(crate) begins_late: f64,
    /// The receiver's window.
    pub(crate) window: u64,
}

/// Segments that a capture of it holds.
pub(crate) fn segments(
    seen: &[CapturedPacket],
    packet: u64,
    taking: CaptureSettings,
) -> Vec<TcpSegment> {
    let payload = packet - HEADERS;
    let scale = match taking.window {
        0..8_000_000 => WINDOW_SCALE,
        _ => 14,
    };
    let field = (taking.window >> scale).min(65_535) as u16;
    let mut segments: Vec<TcpSegment> = Vec::new();
    let mut opened: Vec<usize> = Vec::new();
    for seen in seen {
        // Sequence numbers wrap early in each.
        let base = (u32::MAX - 200_000).wrapping_add(7_919 * seen.connection as u32);
        let number = |segment: u64| base.wrapping_add((segment * payload) as u32);
        let (here, there) = ends(seen.connection);
        if !opened.contains(&seen.connection) {
            opened.push(seen.connection);
            segments.extend(handshake(seen, base, packet, scale));
        }
        let segment = |source, destination| TcpSegment {
            at: seen.at,
            source,
            destination,
            sequence: base.wrapping_add(1),
            acknowledgement: Some(1),
            opens: false,
            ends: false,
            window: field,
            payload_bytes: 0,
            header_bytes: HEADERS as u32,
            options: TcpOptions {
                stamps: Some(seen.stamps),
                ..TcpOptions::default()
            },
        };
        match &seen.what {
            PacketContent::Segment(index) => {
                let this = TcpSegment {
                    sequence: number(*index).wrapping_add(1),
                    payload_bytes: payload as u32,
                    ..segment(here, there)
                };
                let joins = |last: &&mut TcpSegment| {
                    taking.offloaded
                        && last.source == here
                        && last.sequence.wrapping_add(last.payload_bytes) == this.sequence
                        && last.payload_bytes < MOST_AT_ONCE * payload as u32
                        && last.payload_bytes > 0
                        && this.at.since(last.at) <= TOGETHER
                };
                match segments.last_mut().filter(joins) {
                    Some(last) => last.payload_bytes += this.payload_bytes,
                    None => segments.push(this),
                }
            }
            PacketContent::Ack(ack) => {
                let mut this = segment(there, here);
                this.sequence = 1;
                this.acknowledgement = Some(number(ack.next).wrapping_add(1));
                for (slot, (start, end)) in this.options.blocks.iter_mut().zip(&ack.blocks) {
                    let edge = |segment: u64| number(segment).wrapping_add(1);
                    *slot = Some((edge(*start), edge(*end)));
                }
                segments.push(this);
            }
        }
    }
    let late = (segments.len() as f64 * taking.begins_late) as usize;
    segments.drain(..late);
    segments
}

fn ends(connection: usize) -> (SocketAddr, SocketAddr) {
    let port = 40_000 + connection as u16;
    (
        SocketAddr::from(([10, 1, 0, 1], port)),
        SocketAddr::from(([10, 2, 0, 1], 443)),
    )
}

fn handshake(first: &CapturedPacket, base: u32, packet: u64, scale: u8) -> [TcpSegment; 2] {
    let (here, there) = ends(first.connection);
    let open = TcpSegment {
        at: first.at,
        source: here,
        destination: there,
        sequence: base,
        acknowledgement: None,
        opens: true,
        ends: false,
        window: 65_535,
        payload_bytes: 0,
        header_bytes: 60,
        options: TcpOptions {
            segment_bytes: Some((packet - 40) as u16),
            window_scale: Some(scale),
            stamps: Some((first.stamps.0, 0)),
            ..TcpOptions::default()
        },
    };
    let answer = TcpSegment {
        source: there,
        destination: here,
        sequence: 0,
        acknowledgement: Some(base.wrapping_add(1)),
        ..open.clone()
    };
    [open, answer]
}
