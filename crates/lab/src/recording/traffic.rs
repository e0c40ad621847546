//! Traffic of a workload that is not its own: foreign packets and retransmissions.
//!
//! The 2006 report repeats a test whose capture has more than 1 % of other protocols or
//! retransmissions (section 6.3, Measurement). Both are counted at the client's interface between
//! the markers. A segment counts as retransmitted if it carries bytes that later bytes of its
//! direction have overtaken: the emulated links do not reorder unless their settings say so.

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::transfers::{between_markers, is_marker, is_multicast, span_of_markers};
use crate::topology::LabSite;
use crate::workload::TransferDirection;
use capture::{CapturedPacket, TransportHeader};
use emulator::link::PacketDirection;
use emulator::link::replay::LoggedDrop;

/// Packets of a workload at the client's interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// All packets but markers and multicast.
    pub packets: u64,
    /// Packets that are not TCP between the client and the server.
    pub foreign: u64,
    /// Segments with bytes that came before, or that later bytes have overtaken.
    pub retransmitted: u64,
    /// Those of them that the server sent.
    pub retransmitted_by_server: u64,
}

/// The IP and TCP headers of a segment over IPv4 at most, in bytes: a longer packet has payload.
const HEADERS_MOST_BYTES: u32 = 20 + 60;

/// Counts the data packets that the link dropped in the direction of a workload between the two markers of a
/// label. A packet without payload, such as an acknowledgement, is sent again by nobody.
///
/// # Errors
/// When a marker is not there.
pub fn dropped_data(
    client: &[CapturedPacket],
    label: &str,
    drops: &[LoggedDrop],
    way: TransferDirection,
) -> Result<u64> {
    let span = span_of_markers(client, label).context("in the client's capture")?;
    let heading = match way {
        TransferDirection::Upload => PacketDirection::Forward,
        TransferDirection::Download => PacketDirection::Back,
    };
    let of_cell = drops.iter().filter(|drop| {
        drop.heading == heading && drop.bytes > HEADERS_MOST_BYTES && span.contains(&drop.entered)
    });
    Ok(of_cell.count() as u64)
}

/// Counts the packets between the two markers of a label.
///
/// # Errors
/// When a marker is not there.
pub fn traffic(client: &[CapturedPacket], label: &str) -> Result<TrafficCounts> {
    let between = between_markers(client, label).context("in the client's capture")?;
    let near = LabSite::Near.host_address();
    let far = LabSite::Far.host_address();
    let mut counts = TrafficCounts::default();
    // The end of what each direction of each connection has carried.
    let mut ends: HashMap<(SocketAddr, SocketAddr), u32> = HashMap::new();
    for packet in between {
        if is_marker(packet) || is_multicast(packet) {
            continue;
        }
        counts.packets += 1;
        let (source, destination) = (packet.source, packet.destination);
        let is_between = (source.ip() == near && destination.ip() == far)
            || (source.ip() == far && destination.ip() == near);
        let TransportHeader::Tcp {
            sequence,
            payload_bytes,
            ..
        } = packet.transport
        else {
            counts.foreign += 1;
            continue;
        };
        if !is_between {
            counts.foreign += 1;
            continue;
        }
        if packet.opens_connection() {
            ends.insert((source, destination), sequence.wrapping_add(1));
            continue;
        }
        if payload_bytes == 0 {
            continue;
        }
        let end = sequence.wrapping_add(payload_bytes);
        let known = ends.entry((source, destination)).or_insert(sequence);
        let ahead = end.wrapping_sub(*known);
        // Numbers wrap: what lies more than half the space ahead lies behind.
        if ahead == 0 || ahead > u32::MAX / 2 {
            counts.retransmitted += 1;
            counts.retransmitted_by_server += u64::from(source.ip() == far);
        } else {
            *known = end;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::marker::{self, MarkerEdge, WorkloadMarker};
    use super::*;

    fn packet(from: (std::net::Ipv4Addr, u16), to: (std::net::Ipv4Addr, u16)) -> CapturedPacket {
        CapturedPacket {
            at: Duration::ZERO,
            source: from.into(),
            destination: to.into(),
            ip_bytes: 100,
            transport: TransportHeader::Udp,
            is_fragment: false,
            payload: Vec::new(),
        }
    }

    fn marker(edge: MarkerEdge) -> CapturedPacket {
        let marker = WorkloadMarker {
            edge,
            label: "x".to_owned(),
        };
        let near = LabSite::Near.host_address();
        let mut packet = packet((near, 5), (LabSite::Far.host_address(), marker::PORT));
        packet.payload = marker.payload().into_bytes();
        packet
    }

    fn segment(sequence: u32, payload_bytes: u32) -> CapturedPacket {
        let (near, far) = (LabSite::Near.host_address(), LabSite::Far.host_address());
        CapturedPacket {
            transport: TransportHeader::Tcp {
                sequence,
                acknowledgement: 1,
                flags: capture::ACK,
                payload_bytes,
            },
            ..packet((far, 80), (near, 40))
        }
    }

    #[test]
    fn only_data_of_the_workload_in_its_span_counts_as_dropped() {
        let (mut begin, mut end) = (marker(MarkerEdge::Begin), marker(MarkerEdge::End));
        begin.at = Duration::from_secs(100);
        end.at = Duration::from_secs(160);
        let packets = [begin, end];
        let drop = |seconds, heading, bytes| LoggedDrop {
            entered: Duration::from_secs(seconds),
            heading,
            bytes,
        };
        let drops = [
            drop(99, PacketDirection::Back, 1_500),
            drop(110, PacketDirection::Back, 1_500),
            drop(111, PacketDirection::Back, 81),
            drop(112, PacketDirection::Back, 80),
            drop(113, PacketDirection::Forward, 1_500),
            drop(114, PacketDirection::Forward, 52),
            drop(161, PacketDirection::Back, 1_500),
        ];
        let count = |way| dropped_data(&packets, "x", &drops, way).unwrap();
        assert_eq!(count(TransferDirection::Download), 2);
        assert_eq!(count(TransferDirection::Upload), 1);
    }

    #[test]
    fn overtaken_segments_are_retransmissions() {
        let wraps = u32::MAX - 1_500;
        let near = LabSite::Near.host_address();
        let resolver = packet((near, 9_000), ([198, 51, 100, 1].into(), 53));
        let packets = [
            resolver.clone(),
            marker(MarkerEdge::Begin),
            segment(wraps, 1_000),
            // One is missing here, and comes later.
            segment(wraps.wrapping_add(2_000), 1_000),
            segment(wraps.wrapping_add(1_000), 1_000),
            segment(wraps.wrapping_add(2_000), 1_000),
            segment(wraps.wrapping_add(3_000), 1_000),
            segment(wraps.wrapping_add(4_000), 0),
            resolver,
            marker(MarkerEdge::End),
        ];
        let counts = traffic(&packets, "x").unwrap();
        assert_eq!(
            counts,
            TrafficCounts {
                packets: 7,
                foreign: 1,
                retransmitted: 2,
                retransmitted_by_server: 2,
            }
        );
    }
}
