//! Big packets and the real ones they stand for.
//!
//! ```text
//!   kernel ──► virtio header + up to 64 kB ──► split ──► real packets ──► the model
//!   kernel ◄── virtio header + up to 64 kB ◄── merge ◄── real packets ◄──┘
//! ```
//! Linux hands a run of TCP segments or UDP datagrams through its stack as one packet, and leaves
//! check sums to the hardware; a TUN device may ask to be that hardware, which makes one system
//! call out of some forty. `split.rs` does what hardware would do, so that rate, loss and queue
//! act on the packets that a wire would carry. `merge.rs` puts packets together that are written
//! at the same moment anyway, and only those that the kernel would take apart into the very bytes
//! that came.
//!
//! The header before each packet is `struct virtio_net_hdr` of linux/virtio_net.h, in the
//! machine's byte order; its fields are described in the Virtual I/O Device specification 1.2
//! §5.1.6 (Device Operation).
//!
//! Nothing in here trusts a length or an offset, and nothing calls the kernel.

pub mod checksum;
mod merge;
mod refusals;
mod split;
#[cfg(test)]
mod tests;

use bytes::Bytes;

pub use merge::{MergeOptions, PacketGroup};
pub use refusals::RunRefusals;
pub use split::split;

/// The length of [`VirtioNetHeader`] on its way to and from the kernel.
pub const HEADER_LENGTH: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the check sum holds only the pseudo header's part.
pub const NEEDS_CHECKSUM: u8 = 1;

const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: a run of datagrams, and not the fragments of one.
const GSO_UDP: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`: the first segment alone has CWR.
const GSO_ECN: u8 = 0x80;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// Offsets of the checksum in a TCP and in a UDP header.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;

/// Offset of the flags in a TCP header (RFC 9293 §3.1), and the flags needed here.
const TCP_FLAGS: usize = 13;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const CWR: u8 = 0x80;

/// Metadata that the kernel gives and takes with a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioNetHeader {
    flags: u8,
    gso_type: u8,
    header_length: u16,
    /// Payload bytes of each real packet but the last.
    gso_size: u16,
    /// Start of the checksummed part: the transport header.
    checksum_start: u16,
    /// Offset of the checksum in it.
    checksum_offset: u16,
}

impl VirtioNetHeader {
    /// Reads a header as the kernel writes it (linux/virtio_net.h, native byte order).
    #[must_use]
    pub fn parse(bytes: [u8; HEADER_LENGTH]) -> Self {
        let [flags, gso_type, a, b, c, d, e, f, g, h] = bytes;
        Self {
            flags,
            gso_type,
            header_length: u16::from_ne_bytes([a, b]),
            gso_size: u16::from_ne_bytes([c, d]),
            checksum_start: u16::from_ne_bytes([e, f]),
            checksum_offset: u16::from_ne_bytes([g, h]),
        }
    }

    /// Writes the header as the kernel reads it.
    #[must_use]
    pub fn emit(self) -> [u8; HEADER_LENGTH] {
        let [a, b] = self.header_length.to_ne_bytes();
        let [c, d] = self.gso_size.to_ne_bytes();
        let [e, f] = self.checksum_start.to_ne_bytes();
        let [g, h] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h]
    }
}

/// Passes `bytes` (a header and the packet it describes) through the offload code as a TUN device
/// does. Returns the real packets in them, and the bytes that are written, a header before each, if
/// all packets are due at once. Returns nothing if the packets cannot be separated.
///
/// It does what the link does to packets, without the model, for fuzzing.
#[must_use]
pub fn pass(bytes: &[u8]) -> (Vec<Bytes>, Vec<Vec<u8>>) {
    let (mut packets, mut written) = (Vec::new(), Vec::new());
    let Some((header, packet)) = bytes.split_first_chunk::<HEADER_LENGTH>() else {
        return (packets, written);
    };
    if split(VirtioNetHeader::parse(*header), packet, |packet| {
        packets.push(packet);
    })
    .is_err()
    {
        return (packets, written);
    }
    let merging = MergeOptions {
        tcp: true,
        udp: true,
    };
    let mut group = PacketGroup::default();
    let mut write = |group: &PacketGroup| {
        group.write(|pieces| written.push(pieces.iter().flat_map(|piece| piece.to_vec()).collect()))
    };
    for packet in &packets {
        if let Err(packet) = group.extend(packet.clone(), true) {
            if !group.is_empty() {
                write(&group);
            }
            group.begin(packet, true, merging);
        }
    }
    if !group.is_empty() {
        write(&group);
    }
    (packets, written)
}

/// Transport protocol above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransportProtocol {
    Tcp,
    Udp,
}

impl TransportProtocol {
    fn protocol(self) -> u8 {
        match self {
            TransportProtocol::Tcp => PROTOCOL_TCP,
            TransportProtocol::Udp => PROTOCOL_UDP,
        }
    }

    fn checksum_offset(self) -> usize {
        match self {
            TransportProtocol::Tcp => TCP_CHECKSUM,
            TransportProtocol::Udp => UDP_CHECKSUM,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn set_word(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes, `at` bytes into `packet`, the check sum of all from `start` on; the field holds the
/// pseudo header's sum, and so is summed itself. Both lie in the packet.
pub fn finish_checksum(packet: &mut [u8], start: usize, at: usize) {
    let sum = checksum::UnfoldedSum::default()
        .add_bytes(&packet[start..])
        .complement();
    set_word(packet, at, sum);
}
