//! Packets as two captures see them: at the client's interface, and at the near end of the link.

use std::net::SocketAddr;

use bytes::Bytes;
use tcp::{FlowAddresses, SegmentPayload, TcpSegment, packet_length};
use vocab::Time;

/// Bytes kept of a payload, enough for a request with a file's name.
const SNAPSHOT_BYTES: usize = 204;

/// A recorded packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TappedPacket {
    /// Time of the packet.
    pub at: Time,
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
    /// Length of the IP packet.
    pub ip_bytes: u64,
    /// Transport header.
    pub header: TappedHeader,
    /// The first bytes of the payload.
    pub payload: Bytes,
}

/// Transport header of a recorded packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TappedHeader {
    /// A TCP segment.
    Tcp {
        /// Sequence number of its first byte.
        sequence: u32,
        /// Next byte that its sender expects.
        acknowledgement: u32,
        /// The eight flags.
        flags: u8,
        /// Length of the payload.
        payload_bytes: u32,
    },
    /// A UDP datagram.
    Udp,
}

/// Packets of both captures, in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteRecording {
    /// Packets at the client's interface.
    pub client: Vec<TappedPacket>,
    /// Packets at the near end of the link: those that enter it forward, and those that leave it
    /// back.
    pub link: Vec<TappedPacket>,
}

impl TappedPacket {
    /// A segment whose sender is the local end of `addresses`.
    pub(crate) fn segment(now: Time, addresses: &FlowAddresses, segment: &TcpSegment) -> Self {
        Self {
            at: now,
            source: addresses.local,
            destination: addresses.remote,
            ip_bytes: packet_length(addresses, segment) as u64,
            header: TappedHeader::Tcp {
                sequence: segment.sequence,
                acknowledgement: segment.acknowledgement,
                flags: segment.flags.bits(),
                payload_bytes: segment.payload.len() as u32,
            },
            payload: match &segment.payload {
                SegmentPayload::Bytes(bytes) => {
                    Bytes::copy_from_slice(&bytes[..bytes.len().min(SNAPSHOT_BYTES)])
                }
                SegmentPayload::Empty | SegmentPayload::Pattern { .. } => Bytes::new(),
            },
        }
    }

    /// A datagram whose payload is not kept.
    pub(crate) fn datagram(
        now: Time,
        source: SocketAddr,
        destination: SocketAddr,
        ip_bytes: usize,
    ) -> Self {
        Self {
            at: now,
            source,
            destination,
            ip_bytes: ip_bytes as u64,
            header: TappedHeader::Udp,
            payload: Bytes::new(),
        }
    }
}
