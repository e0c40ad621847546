//! Segments of a transfer with limited bytes in flight, as a capture at any place sees them.

use std::net::SocketAddr;

use vocab::Time;

use super::super::segment::{TcpOptions, TcpSegment};

pub(super) const PAYLOAD: u32 = 1_448;
pub(super) const RTT_US: u64 = 20_000;
const SCALE: u8 = 7;

/// A transfer whose packets leave when an acknowledgement makes room for them.
pub(super) struct SyntheticTransfer {
    pub(super) packets: u32,
    /// Packets under way at most, as the sender has it.
    pub(super) flight: u32,
    /// Bytes of window that the acknowledgement of a packet offers.
    pub(super) offered: fn(u32) -> u32,
    /// Place of the capture: the share of the path from the sender, in percent.
    pub(super) way_percent: u64,
    /// Departure time of a packet that was released at a given time.
    pub(super) leaves: fn(u32, u64) -> u64,
    /// The port that it is sent from.
    pub(super) port: u16,
}

impl Default for SyntheticTransfer {
    fn default() -> Self {
        Self {
            packets: 2_000,
            flight: 24,
            offered: |_| 1 << 20,
            way_percent: 0,
            leaves: |_, free| free,
            port: 40_000,
        }
    }
}

impl SyntheticTransfer {
    pub(super) fn segments(&self) -> Vec<TcpSegment> {
        let sender = SocketAddr::from(([192, 0, 2, 1], self.port));
        let receiver = SocketAddr::from(([192, 0, 2, 2], 443));
        let way = RTT_US / 2 * self.way_percent / 100;
        let segment = |sent_us: u64, is_answer: bool| {
            let (here, there, seen) = match is_answer {
                true => (receiver, sender, RTT_US / 2 - way),
                false => (sender, receiver, way),
            };
            let clock = |at: u64| 1_000 + (at / 1_000) as u32;
            TcpSegment {
                at: Time::from_nanos((sent_us + seen) * 1_000),
                source: here,
                destination: there,
                sequence: 1,
                acknowledgement: Some(1),
                opens: false,
                ends: false,
                window: 0xffff,
                payload_bytes: 0,
                header_bytes: 52,
                options: TcpOptions {
                    stamps: Some((clock(sent_us), clock(sent_us.saturating_sub(RTT_US / 2)))),
                    ..TcpOptions::default()
                },
            }
        };
        let opening = |at: u64, is_answer: bool| TcpSegment {
            sequence: 0,
            acknowledgement: is_answer.then_some(1),
            opens: true,
            options: TcpOptions {
                segment_bytes: Some(1_460),
                window_scale: Some(SCALE),
                ..TcpOptions::default()
            },
            ..segment(at, is_answer)
        };
        let mut segments = vec![opening(0, false), opening(RTT_US / 2, true)];
        let mut sent: Vec<u64> = Vec::new();
        let room = |number: u32| self.flight.min((self.offered)(number) / PAYLOAD);
        let (mut edge, mut heard) = (room(0), 0);
        for number in 0..self.packets {
            let mut free = RTT_US + 500 * u64::from(number);
            while edge <= number {
                free = sent[heard as usize] + RTT_US;
                heard += 1;
                edge = edge.max(heard + room(heard - 1));
            }
            // No packet overtakes the one before.
            let at = (self.leaves)(number, free).max(sent.last().map_or(0, |last| last + 10));
            sent.push(at);
            segments.push(TcpSegment {
                sequence: 1 + number * PAYLOAD,
                payload_bytes: PAYLOAD,
                ..segment(at, false)
            });
            segments.push(TcpSegment {
                acknowledgement: Some(1 + (number + 1) * PAYLOAD),
                window: ((self.offered)(number) >> SCALE) as u16,
                ..segment(at + RTT_US / 2, true)
            });
        }
        segments.sort_by_key(|segment| segment.at);
        segments
    }
}
