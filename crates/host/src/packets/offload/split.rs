//! Splitting of the kernel's big packets into those of the wire.
//!
//! A run of TCP segments is split as hardware does it: sequence numbers continue, FIN and PSH stay
//! with the last, CWR (RFC 3168 §6.1.2) with the first, and the IPv4 identification counts up. IP
//! options, extension headers and TCP options are copied to every piece. Checksums are completed
//! from the pseudo header's sum in their field, which is independent of any headers between IP and
//! the transport.

use bytes::Bytes;
use thiserror::Error;

use super::checksum::{self, UnfoldedSum};
use super::{
    CWR, FIN, GSO_ECN, GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_UDP, IPV4_HEADER, IPV6_HEADER,
    NEEDS_CHECKSUM, PSH, TCP_FLAGS, TCP_HEADER, TransportProtocol, UDP_HEADER, VirtioNetHeader,
    finish_checksum, long, set_word, word,
};

/// Error of a big packet without valid segmentation data. The kernel makes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SplitError {
    #[error("it is of a kind that was not asked for: {0}")]
    Kind(u8),
    #[error("its headers are longer than the packet, or not those it says")]
    Headers,
    #[error("its pieces have no length")]
    Size,
}

/// The longest packet of IPv4, and less than IPv6's; the devices say that they take no longer one.
const PACKET_MAX: usize = 65_535;

/// Passes each real packet in `packet` to `each`, in order.
///
/// # Errors
/// When it is a malformed run of packets; none has been passed on then.
pub fn split(
    header: VirtioNetHeader,
    packet: &[u8],
    mut each: impl FnMut(Bytes),
) -> Result<(), SplitError> {
    let (version, transport) = match header.gso_type & !GSO_ECN {
        GSO_NONE => {
            each(complete(header, packet));
            return Ok(());
        }
        GSO_TCP4 => (Some(4), TransportProtocol::Tcp),
        GSO_TCP6 => (Some(6), TransportProtocol::Tcp),
        GSO_UDP => (None, TransportProtocol::Udp),
        kind => return Err(SplitError::Kind(kind)),
    };
    let run = ParsedGsoPacket::parse(header, packet, transport)?;
    if version.is_some_and(|version| version != run.version()) {
        return Err(SplitError::Headers);
    }
    for index in 0..run.pieces() {
        each(run.piece(index));
    }
    Ok(())
}

/// A single packet with its check sum completed if it is not; as it is where that would be
/// outside the packet.
fn complete(header: VirtioNetHeader, packet: &[u8]) -> Bytes {
    let mut packet = packet.to_vec();
    if header.flags & NEEDS_CHECKSUM != 0 {
        let start = usize::from(header.checksum_start);
        let at = start + usize::from(header.checksum_offset);
        if at + 2 <= packet.len() {
            finish_checksum(&mut packet, start, at);
        }
    }
    Bytes::from(packet)
}

/// A big packet whose headers have been looked at.
struct ParsedGsoPacket<'a> {
    transport: TransportProtocol,
    /// IP and transport header.
    headers: &'a [u8],
    /// Offset of the transport header in `headers`.
    start: usize,
    payload: &'a [u8],
    size: usize,
}

impl<'a> ParsedGsoPacket<'a> {
    fn parse(
        header: VirtioNetHeader,
        packet: &'a [u8],
        transport: TransportProtocol,
    ) -> Result<Self, SplitError> {
        // The header's own length field is not asked: it may count what is behind the headers.
        let start = usize::from(header.checksum_start);
        let first = *packet.first().ok_or(SplitError::Headers)?;
        let starts_there = match first >> 4 {
            4 => start >= IPV4_HEADER && start == usize::from(first & 0xf) * 4,
            6 => start >= IPV6_HEADER,
            _ => false,
        };
        let shortest = match transport {
            TransportProtocol::Tcp => TCP_HEADER,
            TransportProtocol::Udp => UDP_HEADER,
        };
        let is_summed_there = header.flags & NEEDS_CHECKSUM != 0
            && usize::from(header.checksum_offset) == transport.checksum_offset();
        if !starts_there || !is_summed_there || packet.len() < start + shortest {
            return Err(SplitError::Headers);
        }
        let length = match transport {
            TransportProtocol::Tcp => usize::from(packet[start + 12] >> 4) * 4,
            TransportProtocol::Udp => UDP_HEADER,
        };
        if length < shortest || packet.len() < start + length {
            return Err(SplitError::Headers);
        }
        let size = usize::from(header.gso_size);
        let (headers, payload) = packet.split_at(start + length);
        if size == 0 || packet.len() > PACKET_MAX {
            return Err(SplitError::Size);
        }
        Ok(Self {
            transport,
            headers,
            start,
            payload,
            size,
        })
    }

    fn version(&self) -> u8 {
        self.headers[0] >> 4
    }

    fn pieces(&self) -> usize {
        self.payload.len().div_ceil(self.size).max(1)
    }

    fn piece(&self, index: usize) -> Bytes {
        let from = index * self.size;
        let to = self.payload.len().min(from + self.size);
        let mut packet = Vec::with_capacity(self.headers.len() + to - from);
        packet.extend_from_slice(self.headers);
        packet.extend_from_slice(&self.payload[from..to]);

        let is_last = index + 1 == self.pieces();
        match self.transport {
            TransportProtocol::Tcp => {
                const SEQUENCE: usize = 4;
                let at = self.start + SEQUENCE;
                let sequence = long(&packet, at).wrapping_add(from as u32);
                packet[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
                let flags = &mut packet[self.start + TCP_FLAGS];
                if !is_last {
                    *flags &= !(FIN | PSH);
                }
                if index > 0 {
                    *flags &= !CWR;
                }
            }
            TransportProtocol::Udp => {
                const LENGTH: usize = 4;
                let length = packet.len() - self.start;
                set_word(&mut packet, self.start + LENGTH, length as u16);
            }
        }
        self.write_ip(&mut packet, index);
        self.write_checksum(&mut packet);
        Bytes::from(packet)
    }

    fn write_ip(&self, packet: &mut [u8], index: usize) {
        let length = packet.len();
        if self.version() == 4 {
            const IDENTIFICATION: usize = 4;
            set_word(packet, 2, length as u16);
            let identification = word(packet, IDENTIFICATION).wrapping_add(index as u16);
            set_word(packet, IDENTIFICATION, identification);
            checksum::write_ipv4_header(&mut packet[..self.start]);
        } else {
            set_word(packet, 4, (length - IPV6_HEADER) as u16);
        }
    }

    /// The kernel's part of the sum counts the length of the whole; a piece has its own.
    fn write_checksum(&self, packet: &mut [u8]) {
        let at = self.start + self.transport.checksum_offset();
        let whole = self.headers.len() - self.start + self.payload.len();
        let part = packet.len() - self.start;
        let sum = UnfoldedSum::default()
            .add_bytes(&packet[self.start..])
            .add_word(!(whole as u16))
            .add_word(part as u16)
            .complement();
        set_word(packet, at, sum);
    }
}
