//! Merging of packets that are written at the same moment into fewer and bigger ones.
//!
//! A [`PacketGroup`] accepts packets one after the other as long as each continues the one before:
//! the same headers except for counters, payload of the same length (the last may be shorter),
//! right checksums. Any other packet ends the group and begins the next, so no packet overtakes
//! another. A packet that arrives damaged stays unmerged and unchanged: in a group its checksum
//! would be recomputed, which would hide the damage.
//!
//! The kernel splits a group into the original packets, byte for byte, with one exception: packets
//! of TCP or UDP with a constant IPv4 identification, as Linux sends datagrams, may count up after
//! a further hop. No receiver may use it in a packet that must not be fragmented (RFC 6864 §4.1). A
//! zero checksum has two encodings, 0 and 65,535, and the kernel uses either: a packet with one
//! that it might encode differently stays unmerged.
//!
//! Until it is split, a group is one packet to the kernel: it is counted as one and captured as
//! one, and where a queue of the host is full, all of it is dropped.

use std::io::IoSlice;

use bytes::Bytes;

use super::checksum;
use super::{
    ACK, GSO_TCP4, GSO_TCP6, GSO_UDP, IPV4_HEADER, IPV6_HEADER, NEEDS_CHECKSUM, PROTOCOL_TCP,
    PROTOCOL_UDP, PSH, TCP_FLAGS, TCP_HEADER, TransportProtocol, UDP_HEADER, VirtioNetHeader, long,
    set_word, word,
};

/// Largest size that the kernel takes in one piece, in bytes: any packet of IPv4 (its length
/// field). A run of datagrams is also limited by `UDP_MAX_SEGMENTS`, which was 64 before Linux 6.9.
const MERGED_BYTES_MAX: usize = 65_535;
const MERGED_PACKETS_MAX: usize = 64;

/// The longest headers that a group is made of: IPv6's and TCP's with all options.
const HEADERS_MAX: usize = IPV6_HEADER + 60;

/// Kinds of packets that may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeOptions {
    /// TCP segments.
    pub tcp: bool,
    /// UDP datagrams.
    pub udp: bool,
}

impl MergeOptions {
    /// Packets are never merged.
    pub const NONE: Self = Self {
        tcp: false,
        udp: false,
    };

    fn allows(self, transport: TransportProtocol) -> bool {
        match transport {
            TransportProtocol::Tcp => self.tcp,
            TransportProtocol::Udp => self.udp,
        }
    }
}

/// Packets that go to the kernel as one.
#[derive(Debug, Default)]
pub struct PacketGroup {
    packets: Vec<Bytes>,
    /// Shape of the first packet; `None` keeps it alone.
    shape: Option<PacketShape>,
    /// The length of all together.
    length: usize,
    /// True if nothing may follow: the last packet was shorter, or had PSH set.
    is_ended: bool,
    /// Sequence of the IPv4 identification, known from the second packet on.
    counting: Option<IpIdSequence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IpIdSequence {
    Up,
    StandingStill,
}

/// Shape of a packet that others may continue.
#[derive(Clone, Copy, Debug)]
struct PacketShape {
    transport: TransportProtocol,
    /// Offset of the transport header.
    start: usize,
    /// Offset of the payload.
    payload: usize,
    /// Length of the payload.
    size: usize,
}

impl PacketGroup {
    /// Returns `true` if the group has no packets.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The packets in it, in order.
    pub fn packets(&self) -> &[Bytes] {
        &self.packets
    }

    /// Restarts the group with this packet, which stays alone unless it is `intact`.
    pub fn begin(&mut self, packet: Bytes, intact: bool, merging: MergeOptions) {
        self.shape = PacketShape::of(&packet)
            .filter(|shape| intact && shape.size > 0 && merging.allows(shape.transport));
        self.length = packet.len();
        self.counting = None;
        self.is_ended = self.shape.is_none_or(|shape| shape.is_pushed(&packet));
        self.packets.clear();
        self.packets.push(packet);
    }

    /// Takes a packet that continues it; gives any other back.
    pub fn extend(&mut self, packet: Bytes, intact: bool) -> Result<(), Bytes> {
        if self.is_ended || !intact {
            return Err(packet);
        }
        let Some(counting) = self.continued_by(&packet) else {
            return Err(packet);
        };
        let Some(shape) = self.shape else {
            return Err(packet);
        };
        let size = packet.len() - shape.payload;
        self.counting = counting.or(self.counting);
        self.length += size;
        self.is_ended = size < shape.size
            || shape.is_pushed(&packet)
            || self.packets.len() + 1 == MERGED_PACKETS_MAX;
        self.packets.push(packet);
        Ok(())
    }

    /// Checks that `packet` continues the last one. Returns what it shows about the identification
    /// field.
    fn continued_by(&mut self, packet: &[u8]) -> Option<Option<IpIdSequence>> {
        let first = self.packets.first()?;
        let last = self.packets.last()?;
        let shape = self.shape?;
        let next = PacketShape::of(packet)?;
        let fits = next.transport == shape.transport
            && next.payload == shape.payload
            && (1..=shape.size).contains(&next.size)
            && self.length + next.size <= MERGED_BYTES_MAX;
        if !fits || !shape.has_equal_headers(first, packet) {
            return None;
        }
        if shape.transport == TransportProtocol::Tcp {
            let behind = shape
                .sequence(first)
                .wrapping_add(self.payload_length() as u32);
            if shape.sequence(packet) != behind {
                return None;
            }
        }
        let counting = match shape.is_ipv4() {
            true => Some(counting(last, packet)?),
            false => None,
        };
        let is_steady = self.counting.is_none() || self.counting == counting;
        // Last, because they look at every byte.
        let is_valid = (self.packets.len() > 1 || shape.has_valid_checksums(first))
            && shape.has_valid_checksums(packet);
        if !is_valid {
            return None;
        }
        is_steady.then_some(counting)
    }

    fn payload_length(&self) -> usize {
        self.length - self.shape.map_or(0, |shape| shape.payload)
    }

    /// Calls `write` with the pieces of memory to write at once: a header for the kernel and the
    /// packet.
    pub fn write<T>(&self, write: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        let (Some(shape), [first, .., last]) = (self.shape, self.packets.as_slice()) else {
            let header = VirtioNetHeader::default().emit();
            let packet = self.packets.first().map_or(&[][..], |packet| packet);
            return write(&[IoSlice::new(&header), IoSlice::new(packet)]);
        };
        let mut headers = [0; HEADERS_MAX];
        let headers = &mut headers[..shape.payload];
        headers.copy_from_slice(&first[..shape.payload]);
        shape.write_merged(headers, self.length, last);
        let header = shape.header().emit();

        let mut pieces = [IoSlice::new(&[]); MERGED_PACKETS_MAX + 2];
        pieces[0] = IoSlice::new(&header);
        pieces[1] = IoSlice::new(headers);
        for (piece, packet) in pieces[2..].iter_mut().zip(&self.packets) {
            *piece = IoSlice::new(&packet[shape.payload..]);
        }
        write(&pieces[..self.packets.len() + 2])
    }

    /// Drops the packets; an empty group accepts nothing before it is restarted.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.is_ended = true;
    }

    /// The packets it was made of, one by one, as a group of one each.
    pub fn drain(&mut self) -> impl Iterator<Item = PacketGroup> + '_ {
        self.is_ended = true;
        self.packets.drain(..).map(|packet| {
            let mut alone = PacketGroup::default();
            alone.begin(packet, false, MergeOptions::NONE);
            alone
        })
    }
}

/// Returns the identification's sequence from one IPv4 header to the next, if a group may have it.
fn counting(last: &[u8], packet: &[u8]) -> Option<IpIdSequence> {
    const DONT_FRAGMENT: u8 = 0x40;
    let (before, after) = (word(last, 4), word(packet, 4));
    if after == before.wrapping_add(1) {
        Some(IpIdSequence::Up)
    } else if after == before && packet[6] & DONT_FRAGMENT != 0 {
        Some(IpIdSequence::StandingStill)
    } else {
        None
    }
}

impl PacketShape {
    /// Returns the shape of a packet that is complete and has nothing between the headers of IP and
    /// of TCP or UDP.
    fn of(packet: &[u8]) -> Option<Self> {
        let (start, protocol, length) = match packet.first()? {
            0x45 if packet.len() >= IPV4_HEADER => {
                const FRAGMENT: u16 = 0x3fff;
                let is_whole = word(packet, 6) & FRAGMENT == 0;
                let protocol = is_whole.then_some(packet[9])?;
                (IPV4_HEADER, protocol, usize::from(word(packet, 2)))
            }
            first if first >> 4 == 6 && packet.len() >= IPV6_HEADER => {
                let length = IPV6_HEADER + usize::from(word(packet, 4));
                (IPV6_HEADER, packet[6], length)
            }
            _ => return None,
        };
        if length != packet.len() {
            return None;
        }
        let part = &packet[start..];
        let (transport, header) = match protocol {
            PROTOCOL_TCP if part.len() >= TCP_HEADER => {
                let header = usize::from(part[12] >> 4) * 4;
                let is_plain = part[TCP_FLAGS] & !PSH == ACK && part[12] & 0xf == 0;
                (is_plain && header >= TCP_HEADER).then_some((TransportProtocol::Tcp, header))?
            }
            PROTOCOL_UDP if part.len() >= UDP_HEADER => {
                let is_whole = usize::from(word(part, 4)) == part.len();
                is_whole.then_some((TransportProtocol::Udp, UDP_HEADER))?
            }
            _ => return None,
        };
        let payload = start + header;
        Some(Self {
            transport,
            start,
            payload,
            size: packet.len().checked_sub(payload)?,
        })
    }

    fn is_ipv4(self) -> bool {
        self.start == IPV4_HEADER
    }

    fn is_pushed(self, packet: &[u8]) -> bool {
        self.transport == TransportProtocol::Tcp && packet[self.start + TCP_FLAGS] & PSH != 0
    }

    fn sequence(self, packet: &[u8]) -> u32 {
        long(packet, self.start + 4)
    }

    /// Returns `true` if two packets of this shape differ only in lengths, identification,
    /// checksums, sequence number and PSH.
    fn has_equal_headers(self, one: &[u8], other: &[u8]) -> bool {
        let same = |from: usize, to: usize| one[from..to] == other[from..to];
        let ip = if self.is_ipv4() {
            same(0, 2) && same(6, 10) && same(12, 20)
        } else {
            same(0, 4) && same(6, IPV6_HEADER)
        };
        let start = self.start;
        ip && same(start, start + 4)
            && match self.transport {
                TransportProtocol::Udp => true,
                // Acknowledgement and offset; the flags are ACK and perhaps PSH; window; urgent
                // pointer and options.
                TransportProtocol::Tcp => {
                    same(start + 8, start + TCP_FLAGS)
                        && same(start + 14, start + 16)
                        && same(start + 18, self.payload)
                }
            }
    }

    fn addresses(self, packet: &[u8]) -> &[u8] {
        match self.is_ipv4() {
            true => &packet[12..20],
            false => &packet[8..IPV6_HEADER],
        }
    }

    /// Returns `true` if the checksums are right and have no other valid encoding.
    fn has_valid_checksums(self, packet: &[u8]) -> bool {
        const OTHER_ZERO: u16 = 0xffff;
        const IPV4_CHECKSUM: usize = 10;
        let (ip, part) = packet.split_at(self.start);
        let at = self.transport.checksum_offset();
        let is_odd = match self.transport {
            TransportProtocol::Tcp => word(part, at) == OTHER_ZERO,
            // UDP's 0 says that there is none, so that everyone writes the other.
            TransportProtocol::Udp => false,
        };
        if is_odd || self.is_ipv4() && word(ip, IPV4_CHECKSUM) == OTHER_ZERO {
            return false;
        }
        (!self.is_ipv4() || checksum::ipv4_header_is_valid(ip))
            && checksum::transport_is_valid(self.addresses(packet), self.transport, part)
    }

    fn header(self) -> VirtioNetHeader {
        VirtioNetHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: match (self.transport, self.is_ipv4()) {
                (TransportProtocol::Tcp, true) => GSO_TCP4,
                (TransportProtocol::Tcp, false) => GSO_TCP6,
                (TransportProtocol::Udp, _) => GSO_UDP,
            },
            header_length: self.payload as u16,
            gso_size: self.size as u16,
            checksum_start: self.start as u16,
            checksum_offset: self.transport.checksum_offset() as u16,
        }
    }

    /// Makes the first packet's headers those of all `length` bytes together, whose last packet
    /// is `last`.
    fn write_merged(self, headers: &mut [u8], length: usize, last: &[u8]) {
        let start = self.start;
        let part = length - start;
        if self.is_ipv4() {
            set_word(headers, 2, length as u16);
            checksum::write_ipv4_header(&mut headers[..start]);
        } else {
            set_word(headers, 4, part as u16);
        }
        match self.transport {
            TransportProtocol::Tcp => headers[start + TCP_FLAGS] = last[start + TCP_FLAGS],
            TransportProtocol::Udp => set_word(headers, start + 4, part as u16),
        }
        let sum = checksum::pseudo_header(self.addresses(headers), self.transport, part).fold();
        set_word(headers, start + self.transport.checksum_offset(), sum);
    }
}
