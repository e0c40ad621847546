//! WAN traffic between two markers: bytes, and round trips.
//!
//! A round trip is counted where one packet of the near side waited for one of the far side:
//!
//! ```text
//!  near ──request──►                ──request──►                      2 round trips
//!                    ◄──answer── (≥ RTT later)   ◄──answer── (≥ RTT later)
//! ```
//! The first packet from the near side begins one; the first packet from the far side that is there a round-trip time
//! later, or more, ends it; the next packet from the near side begins the next. Packets below a length are left out:
//! acknowledgements and signs of life wait for nobody. So the count is a lower bound of what a client waited for, and
//! exact where requests wait for answers one after the other.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::transfers::{between_markers, is_marker, is_multicast};
use crate::topology::LabSite;
use capture::{CapturedPacket, TransportHeader};

/// A packet on the WAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WanCrossing {
    /// Time at the emulator's near device, since the Unix epoch.
    pub at: Duration,
    /// Set if it came from the near side.
    pub is_outward: bool,
    /// The length of the IP packet.
    pub ip_bytes: u64,
    /// Payload of its transport.
    pub payload_bytes: u64,
}

/// The packets between two markers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WanCrossings {
    /// Packets in the order of time.
    pub packets: Vec<WanCrossing>,
}

/// Reads the packets between the two markers of a label out of the WAN's capture.
///
/// # Errors
/// When a marker is not there.
pub fn crossings(wan: &[CapturedPacket], label: &str) -> Result<WanCrossings> {
    let between = between_markers(wan, label).context("in the WAN's capture")?;
    let crossing = between
        .iter()
        .filter(|packet| !is_marker(packet) && !is_multicast(packet));
    Ok(WanCrossings {
        packets: crossing.map(WanCrossing::of).collect(),
    })
}

impl WanCrossing {
    fn of(packet: &CapturedPacket) -> Self {
        const IPV4_HEADER: u64 = 20;
        const UDP_HEADER: u64 = 8;
        let payload_bytes = match packet.transport {
            TransportHeader::Tcp { payload_bytes, .. } => u64::from(payload_bytes),
            TransportHeader::Udp => packet.ip_bytes.saturating_sub(IPV4_HEADER + UDP_HEADER),
            TransportHeader::Other => 0,
        };
        Self {
            at: packet.at,
            is_outward: is_of_near_side(packet.source.ip()),
            ip_bytes: packet.ip_bytes,
            payload_bytes,
        }
    }
}

fn is_of_near_side(address: IpAddr) -> bool {
    let near = LabSite::Near;
    match address {
        IpAddr::V4(address) => {
            address == near.wan_address() || address.octets()[..3] == near.gateway().octets()[..3]
        }
        IpAddr::V6(address) => {
            address == near.wan_address_v6()
                || address.segments()[..4] == near.gateway_v6().segments()[..4]
        }
    }
}

impl WanCrossings {
    /// Bytes of all packets, IP headers included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.packets.iter().map(|packet| packet.ip_bytes).sum()
    }

    /// Round trips of at least this time, by packets with at least so many bytes of payload.
    #[must_use]
    pub fn round_trips(&self, round_trip_time: Duration, payload_bytes: u64) -> u32 {
        let mut count = 0;
        // When the packet was sent that an answer is waited for.
        let mut asked: Option<Duration> = None;
        let large = |packet: &&WanCrossing| packet.payload_bytes >= payload_bytes;
        for packet in self.packets.iter().filter(large) {
            match (asked, packet.is_outward) {
                (None, true) => asked = Some(packet.at),
                (Some(at), false) if packet.at >= at + round_trip_time => {
                    count += 1;
                    asked = None;
                }
                _ => {}
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn crossings(packets: &[(u64, bool, u64)]) -> WanCrossings {
        let crossing = |(at_ms, is_outward, payload_bytes): &(u64, bool, u64)| WanCrossing {
            at: Duration::from_millis(*at_ms),
            is_outward: *is_outward,
            ip_bytes: payload_bytes + 28,
            payload_bytes: *payload_bytes,
        };
        WanCrossings {
            packets: packets.iter().map(crossing).collect(),
        }
    }

    #[test]
    fn requests_one_after_the_other_are_round_trips() {
        let two = crossings(&[
            (0, true, 300),
            (100, false, 1_200),
            (101, false, 1_200),
            (102, true, 300),
            (203, false, 900),
        ]);
        assert_eq!(two.round_trips(RTT, 80), 2);
        assert_eq!(two.bytes(), 300 + 1_200 + 1_200 + 300 + 900 + 5 * 28);
    }

    #[test]
    fn requests_side_by_side_are_one_round_trip() {
        let one = crossings(&[
            (0, true, 300),
            (1, true, 300),
            (2, true, 300),
            (100, false, 500),
            (101, false, 500),
            (102, false, 500),
        ]);
        assert_eq!(one.round_trips(RTT, 80), 1);
    }

    #[test]
    fn acknowledgements_wait_for_nobody() {
        let none = crossings(&[(0, true, 40), (100, false, 40), (101, true, 40)]);
        assert_eq!(none.round_trips(RTT, 80), 0);
        // What was under way before the request is no answer to it.
        let early = crossings(&[(0, true, 300), (50, false, 1_200)]);
        assert_eq!(early.round_trips(RTT, 80), 0);
    }
}
