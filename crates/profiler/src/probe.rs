//! Probe packets: UDP datagrams that carry their run, sequence number and time of sending.
//!
//! ```text
//!   Ethernet │ IPv4 or IPv6 │ UDP │ magic │ run │ input, output │ sequence │ flow │ stamp_ns │ filling …
//!      14         20 or 40     8      4      2        1 + 1            4        4       8
//! ```
//! Numbers of the payload are big-endian. The stamp is user space's, by CLOCK_REALTIME, right before
//! the packets of a batch go to the kernel. A template holds the packet of a flow with zeros for
//! sequence and stamp and the sum of everything else, so that a packet costs one copy and the sum of
//! twelve bytes.
//!
//! A TCP segment has no room for that. Its number, modulo 65,536, stands in the identification field of
//! its IPv4 header; packets that must not be fragmented may have any value there (RFC 6864 §4.1). In an
//! IPv6 header it stands in the flow label, which routers leave as it is (RFC 6437 §2).
//!
//! A length is that of the IP packet. Nothing in here trusts a length of a received packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use host::packets::frame;
use host::packets::offload::checksum::UnfoldedSum;

/// Length of an Ethernet header.
pub(crate) const ETHERNET_HEADER: usize = 14;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;

/// First bytes of each probe's payload: "TLP1", the version of this layout.
const MAGIC: [u8; 4] = *b"TLP1";
/// Bytes of the payload that have a meaning.
const HEAD: usize = 24;
const SEQUENCE: usize = 8;
const STAMP: usize = 16;

/// Bytes of a frame within which all that identifies a probe lies, with up to two VLAN tags.
pub(crate) const IDENTIFYING_BYTES: usize = ETHERNET_HEADER + 8 + IPV6_HEADER + UDP_HEADER + HEAD;

const UDP: u8 = 17;
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;
/// Neighbour solicitation and advertisement (RFC 4861 §4.3 and §4.4).
const NEIGHBOUR_DISCOVERY: [u8; 2] = [135, 136];

/// Hops that a probe may take, the value that hosts use.
const HOP_LIMIT: u8 = 64;

/// An address of the Ethernet.
pub(crate) type MacAddress = [u8; 6];

/// Shape of the probes of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbeShape {
    /// Source address and port.
    pub(crate) source: SocketAddr,
    /// Destination address and port, of the same family.
    pub(crate) destination: SocketAddr,
    /// Ethernet address of the emulated host that sends.
    pub(crate) source_mac: MacAddress,
    /// Ethernet address of the next hop.
    pub(crate) next_hop: MacAddress,
    /// Length of the IP packet, bytes.
    pub(crate) packet_bytes: u16,
    /// Number of the run, modulo 65,536.
    pub(crate) run: u16,
    /// Port of the device that the packet enters.
    pub(crate) input: u8,
    /// Port of the device that the packet leaves.
    pub(crate) output: u8,
    /// Number of the flow in its run.
    pub(crate) flow: u32,
}

/// Shape that cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeShapeError {
    /// The packet is too short for the headers and the fields of a probe.
    #[error(
        "a probe of {asked} bytes is too short; IPv{version} probes have at least {least} bytes"
    )]
    TooShort {
        /// Requested length.
        asked: u16,
        /// IP version.
        version: u8,
        /// Smallest length of this version.
        least: usize,
    },
    /// Source and destination have different families.
    #[error("{0} and {1} are addresses of different IP versions; use two of the same version")]
    DifferentFamilies(IpAddr, IpAddr),
}

/// Packet of a flow, to be completed for each sequence number.
#[derive(Clone, Debug)]
pub(crate) struct ProbeTemplate {
    frame: Vec<u8>,
    /// Offset of the UDP header.
    udp: usize,
    /// Sum over pseudo header and datagram, with zeros for checksum, sequence and stamp.
    sum: UnfoldedSum,
}

impl ProbeTemplate {
    /// Builds the packet.
    ///
    /// # Errors
    /// When the packet is too short, or the addresses differ in family.
    pub(crate) fn new(shape: &ProbeShape) -> Result<Self, ProbeShapeError> {
        let length = usize::from(shape.packet_bytes);
        let (source, destination) = (shape.source.ip(), shape.destination.ip());
        let (version, header) = match source {
            IpAddr::V4(_) => (4, IPV4_HEADER),
            IpAddr::V6(_) => (6, IPV6_HEADER),
        };
        let least = header + UDP_HEADER + HEAD;
        if length < least {
            return Err(ProbeShapeError::TooShort {
                asked: shape.packet_bytes,
                version,
                least,
            });
        }
        let mut frame = Vec::with_capacity(ETHERNET_HEADER + length);
        frame.extend_from_slice(&shape.next_hop);
        frame.extend_from_slice(&shape.source_mac);
        let addresses = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                push_ipv4_header(&mut frame, source, destination, shape.packet_bytes)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                push_ipv6_header(&mut frame, source, destination, shape.packet_bytes)
            }
            _ => return Err(ProbeShapeError::DifferentFamilies(source, destination)),
        };
        let udp = frame.len();
        let datagram = (length - header) as u16;
        frame.extend_from_slice(&shape.source.port().to_be_bytes());
        frame.extend_from_slice(&shape.destination.port().to_be_bytes());
        frame.extend_from_slice(&datagram.to_be_bytes());
        frame.extend_from_slice(&[0; 2]);
        frame.extend_from_slice(&MAGIC);
        frame.extend_from_slice(&shape.run.to_be_bytes());
        frame.extend_from_slice(&[shape.input, shape.output]);
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(&shape.flow.to_be_bytes());
        frame.extend_from_slice(&[0; 8]);
        let filled = frame.len() - udp - UDP_HEADER - HEAD;
        // A ramp, in which a shifted or repeated piece shows.
        frame.extend((filled..length - least).map(|place| place as u8));
        let sum = UnfoldedSum::default()
            .add_bytes(&addresses)
            .add_word(u16::from(UDP))
            .add_word(datagram)
            .add_bytes(&frame[udp..]);
        Ok(Self { frame, udp, sum })
    }

    /// Writes the probe with this sequence number and stamp, in place of what `into` holds.
    pub(crate) fn write(&self, sequence: u32, stamp_ns: u64, into: &mut Vec<u8>) {
        into.clear();
        into.extend_from_slice(&self.frame);
        let payload = self.udp + UDP_HEADER;
        let (sequence, stamp) = (sequence.to_be_bytes(), stamp_ns.to_be_bytes());
        into[payload + SEQUENCE..payload + SEQUENCE + 4].copy_from_slice(&sequence);
        into[payload + STAMP..payload + STAMP + 8].copy_from_slice(&stamp);
        let sum = self.sum.add_bytes(&sequence).add_bytes(&stamp).complement();
        into[self.udp + 6..self.udp + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Writes a number into the identification of an IPv4 packet, and corrects the header's checksum; or
/// into the flow label of an IPv6 packet, which no checksum covers. Anything else stays as it is.
pub(crate) fn write_number(packet: &mut [u8], number: u16) {
    const IDENTIFICATION: usize = 4;
    const CHECKSUM: usize = 10;
    /// Lowest 16 bits of the flow label (RFC 8200 §3).
    const FLOW_LABEL: usize = 2;
    let number = number.to_be_bytes();
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= IPV4_HEADER => {
            let header = (usize::from(packet[0] & 0xf) * 4).clamp(IPV4_HEADER, packet.len());
            packet[IDENTIFICATION..IDENTIFICATION + 2].copy_from_slice(&number);
            packet[CHECKSUM..CHECKSUM + 2].fill(0);
            let sum = !UnfoldedSum::default().add_bytes(&packet[..header]).fold();
            packet[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        }
        Some(6) if packet.len() >= IPV6_HEADER => {
            packet[FLOW_LABEL..FLOW_LABEL + 2].copy_from_slice(&number);
        }
        Some(_) | None => {}
    }
}

fn push_ipv4_header(
    frame: &mut Vec<u8>,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    length: u16,
) -> Vec<u8> {
    const DO_NOT_FRAGMENT: [u8; 2] = [0x40, 0];
    frame.extend_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    let start = frame.len();
    frame.extend_from_slice(&[0x45, 0]);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&[0; 2]);
    frame.extend_from_slice(&DO_NOT_FRAGMENT);
    frame.extend_from_slice(&[HOP_LIMIT, UDP, 0, 0]);
    frame.extend_from_slice(&source.octets());
    frame.extend_from_slice(&destination.octets());
    let sum = !UnfoldedSum::default().add_bytes(&frame[start..]).fold();
    frame[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
    [source.octets(), destination.octets()].concat()
}

fn push_ipv6_header(
    frame: &mut Vec<u8>,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    length: u16,
) -> Vec<u8> {
    frame.extend_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
    frame.extend_from_slice(&[0x60, 0, 0, 0]);
    frame.extend_from_slice(&(length - IPV6_HEADER as u16).to_be_bytes());
    frame.extend_from_slice(&[UDP, HOP_LIMIT]);
    frame.extend_from_slice(&source.octets());
    frame.extend_from_slice(&destination.octets());
    [source.octets(), destination.octets()].concat()
}

/// A received or sent frame, by what it is to a measurement.
#[derive(Debug)]
pub(crate) enum MeasuredFrame<'a> {
    /// A UDP probe.
    Probe(ProbePacket<'a>),
    /// A TCP segment.
    Segment(SegmentPacket<'a>),
    /// ARP or neighbour discovery.
    Neighbour,
    /// An ICMP message that is not neighbour discovery, by type and code.
    Icmp(u8, u8),
    /// A fragment of an IP packet.
    Fragment,
    /// Anything else.
    Foreign,
}

/// Fields of a probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbePacket<'a> {
    /// Number of the run, modulo 65,536.
    pub(crate) run: u16,
    /// Port of the device that the packet entered.
    pub(crate) input: u8,
    /// Port of the device that the packet should leave.
    pub(crate) output: u8,
    /// Sequence number.
    pub(crate) sequence: u32,
    /// Number of the flow.
    pub(crate) flow: u32,
    /// Time of sending by user space's clock, nanoseconds since 1970.
    pub(crate) stamp_ns: u64,
    addresses: &'a [u8],
    ports: &'a [u8; 4],
    datagram: &'a [u8],
}

/// A TCP segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentPacket<'a> {
    /// Number of the packet modulo 65,536.
    pub(crate) number: u16,
    /// The IP packet, as far as it was kept.
    pub(crate) packet: &'a [u8],
    addresses: &'a [u8],
    segment: &'a [u8],
}

impl SegmentPacket<'_> {
    /// Returns `true` if the TCP checksum is right. The frame must be whole.
    #[must_use]
    pub(crate) fn is_intact(&self) -> bool {
        is_sum_right(self.addresses, TCP, self.segment)
    }

    /// Destination address.
    #[must_use]
    pub(crate) fn destination(&self) -> Option<IpAddr> {
        let (_, destination) = self.addresses.split_at(self.addresses.len() / 2);
        let v4 = <[u8; 4]>::try_from(destination).map(IpAddr::from);
        v4.or_else(|_| <[u8; 16]>::try_from(destination).map(IpAddr::from))
            .ok()
    }
}

fn is_sum_right(addresses: &[u8], protocol: u8, part: &[u8]) -> bool {
    UnfoldedSum::default()
        .add_bytes(addresses)
        .add_word(u16::from(protocol))
        .add_word(part.len() as u16)
        .add_bytes(part)
        .fold()
        == 0xffff
}

impl ProbePacket<'_> {
    /// Returns `true` if the UDP checksum is right. The frame must be whole.
    #[must_use]
    pub(crate) fn is_intact(&self) -> bool {
        is_sum_right(self.addresses, UDP, self.datagram)
    }

    /// Returns `true` if the packet has these addresses and ports.
    #[must_use]
    pub(crate) fn is_between(&self, source: SocketAddr, destination: SocketAddr) -> bool {
        let [a, b, c, d] = *self.ports;
        let ports = [[a, b], [c, d]].map(u16::from_be_bytes);
        let (from, to) = self.addresses.split_at(self.addresses.len() / 2);
        let is = |octets: &[u8], address: IpAddr| match address {
            IpAddr::V4(address) => octets == address.octets(),
            IpAddr::V6(address) => octets == address.octets(),
        };
        ports == [source.port(), destination.port()]
            && is(from, source.ip())
            && is(to, destination.ip())
    }

    /// Length of the IP packet without options. The frame must be whole.
    #[must_use]
    pub(crate) fn ip_bytes(&self) -> u32 {
        let header = match self.addresses.len() {
            8 => IPV4_HEADER,
            _ => IPV6_HEADER,
        };
        (header + self.datagram.len()) as u32
    }
}

/// Reads a frame, which may be cut.
#[must_use]
pub(crate) fn parse(bytes: &[u8]) -> MeasuredFrame<'_> {
    parse_checked(bytes).unwrap_or(MeasuredFrame::Foreign)
}

fn parse_checked(bytes: &[u8]) -> Option<MeasuredFrame<'_>> {
    const FRAGMENT: u16 = 0x3fff;
    let start = frame::packet_offset(bytes)?;
    let word = |at: usize| -> Option<u16> {
        Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
    };
    let (protocol, addresses, transport, end) = match word(start - 2)? {
        ETHERTYPE_ARP => return Some(MeasuredFrame::Neighbour),
        ETHERTYPE_IPV4 => {
            let header = usize::from(*bytes.get(start)? & 0xf) * 4;
            if header < IPV4_HEADER {
                return None;
            }
            if word(start + 6)? & FRAGMENT != 0 {
                return Some(MeasuredFrame::Fragment);
            }
            let addresses = bytes.get(start + 12..start + IPV4_HEADER)?;
            let end = start + usize::from(word(start + 2)?);
            (*bytes.get(start + 9)?, addresses, start + header, end)
        }
        ETHERTYPE_IPV6 => {
            const FRAGMENT_HEADER: u8 = 44;
            let protocol = *bytes.get(start + 6)?;
            if protocol == FRAGMENT_HEADER {
                return Some(MeasuredFrame::Fragment);
            }
            let addresses = bytes.get(start + 8..start + IPV6_HEADER)?;
            let end = start + IPV6_HEADER + usize::from(word(start + 4)?);
            (protocol, addresses, start + IPV6_HEADER, end)
        }
        _ => return None,
    };
    match protocol {
        UDP => {}
        TCP => {
            let number = start + if addresses.len() == 8 { 4 } else { 2 };
            return Some(MeasuredFrame::Segment(SegmentPacket {
                number: word(number)?,
                packet: bytes.get(start..end.min(bytes.len()))?,
                addresses,
                segment: bytes.get(transport..end.min(bytes.len()))?,
            }));
        }
        ICMP | ICMPV6 => {
            let kind = *bytes.get(transport)?;
            if protocol == ICMPV6 && NEIGHBOUR_DISCOVERY.contains(&kind) {
                return Some(MeasuredFrame::Neighbour);
            }
            return Some(MeasuredFrame::Icmp(kind, *bytes.get(transport + 1)?));
        }
        _ => return None,
    }
    let datagram = bytes.get(transport..end.min(bytes.len()))?;
    let (udp, payload) = datagram.split_at_checked(UDP_HEADER)?;
    let head: &[u8; HEAD] = payload.first_chunk()?;
    if head[..4] != MAGIC {
        return None;
    }
    let number =
        |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    Some(MeasuredFrame::Probe(ProbePacket {
        run: (number(4) >> 16) as u16,
        input: head[6],
        output: head[7],
        sequence: number(SEQUENCE),
        flow: number(12),
        stamp_ns: u64::from(number(STAMP)) << 32 | u64::from(number(STAMP + 4)),
        addresses,
        ports: udp.first_chunk()?,
        datagram,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(version: u8, packet_bytes: u16) -> ProbeShape {
        let (source, destination) = match version {
            4 => ("198.18.1.10:5000", "198.18.2.10:5001"),
            _ => ("[2001:2:0:1::10]:5000", "[2001:2:0:2::10]:5001"),
        };
        ProbeShape {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            source_mac: [2, 0, 0, 0, 0, 1],
            next_hop: [2, 0, 0, 0, 0, 2],
            packet_bytes,
            run: 7,
            input: 0,
            output: 1,
            flow: 3,
        }
    }

    /// Adds words one by one, with the carry brought round each time (RFC 1071 §1).
    fn slow_sum(bytes: &[u8]) -> u16 {
        bytes.chunks(2).fold(0, |sum, pair| {
            let value = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            let (sum, carry) = u16::overflowing_add(sum, value);
            sum + u16::from(carry)
        })
    }

    #[test]
    fn written_probe_parses_with_right_checksums() {
        for (version, bytes) in [(4, 92), (4, 52), (4, 1_401), (6, 92), (6, 72), (6, 1_400)] {
            let shape = shape(version, bytes);
            let template = ProbeTemplate::new(&shape).unwrap();
            let mut written = vec![9; 3];
            template.write(0xdead_beef, 1_234_567_890_123_456_789, &mut written);
            assert_eq!(written.len(), ETHERNET_HEADER + usize::from(bytes));
            let MeasuredFrame::Probe(probe) = parse(&written) else {
                panic!("no probe");
            };
            assert_eq!((probe.run, probe.flow), (7, 3));
            assert_eq!((probe.input, probe.output), (0, 1));
            assert_eq!(probe.ip_bytes(), u32::from(bytes));
            assert_eq!(probe.sequence, 0xdead_beef);
            assert_eq!(probe.stamp_ns, 1_234_567_890_123_456_789);
            assert!(probe.is_between(shape.source, shape.destination) && probe.is_intact());
            let (addresses, header) = if version == 4 { (12, 20) } else { (8, 40) };
            let (head, datagram) = written[ETHERNET_HEADER..].split_at(header);
            let mut pseudo = head[addresses..].to_vec();
            pseudo.extend([0, 17]);
            pseudo.extend((datagram.len() as u16).to_be_bytes());
            pseudo.extend(datagram);
            assert_eq!(slow_sum(&pseudo), 0xffff);
            if version == 4 {
                assert_eq!(slow_sum(&written[14..34]), 0xffff);
            }
        }
    }

    #[test]
    fn damage_and_rewriting_are_noticed() {
        let template = ProbeTemplate::new(&shape(4, 92)).unwrap();
        let mut frame = Vec::new();
        template.write(1, 2, &mut frame);
        *frame.last_mut().unwrap() ^= 1;
        let MeasuredFrame::Probe(probe) = parse(&frame) else {
            panic!("no probe");
        };
        assert!(!probe.is_intact());
        template.write(1, 2, &mut frame);
        // A translator rewrites the source port and its part of the checksum.
        frame[34] ^= 1;
        let MeasuredFrame::Probe(probe) = parse(&frame) else {
            panic!("no probe");
        };
        let shape = shape(4, 92);
        assert!(!probe.is_between(shape.source, shape.destination));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let template = ProbeTemplate::new(&shape(6, 92)).unwrap();
        let mut frame = Vec::new();
        template.write(1, 2, &mut frame);
        for length in 0..frame.len() {
            let _ = parse(&frame[..length]);
        }
        for at in 0..frame.len() {
            for value in [0, 1, 0x4f, 0x86, 0xff] {
                let mut damaged = frame.clone();
                damaged[at] = value;
                if let MeasuredFrame::Probe(probe) = parse(&damaged) {
                    let shape = shape(6, 92);
                    let _ = (
                        probe.is_intact(),
                        probe.is_between(shape.source, shape.destination),
                    );
                }
            }
        }
    }

    /// A TCP segment of 21 bytes with right checksums, in a frame that Ethernet has padded.
    fn segment_frame(version: u8) -> (Vec<u8>, Vec<u8>) {
        let (mut packet, kind) = match version {
            4 => (
                vec![0x45, 0, 0, 41, 9, 9, 0x40, 0, 64, TCP, 0, 0],
                ETHERTYPE_IPV4,
            ),
            _ => (vec![0x6a, 0xb0, 9, 9, 0, 21, TCP, 64], ETHERTYPE_IPV6),
        };
        let addresses = packet.len();
        match version {
            4 => packet.extend([198, 18, 0, 2, 198, 18, 1, 2]),
            _ => {
                for address in ["2001:2::2", "2001:2:0:1::2"] {
                    packet.extend(address.parse::<Ipv6Addr>().unwrap().octets());
                }
            }
        }
        let start = packet.len();
        packet.extend([0; 21]);
        let mut pseudo = packet[addresses..start].to_vec();
        pseudo.extend([0, TCP, 0, 21]);
        pseudo.extend(&packet[start..]);
        let sum = (!slow_sum(&pseudo)).to_be_bytes();
        packet[start + 16..start + 18].copy_from_slice(&sum);
        write_number(&mut packet, 0xabcd);
        let mut frame = vec![0; 12];
        frame.extend(kind.to_be_bytes());
        frame.extend(&packet);
        frame.extend([0xee; 5]);
        (frame, packet)
    }

    #[test]
    fn segment_carries_its_number_in_the_header() {
        for (version, destination) in [(4, "198.18.1.2"), (6, "2001:2:0:1::2")] {
            let (mut frame, packet) = segment_frame(version);
            if version == 4 {
                assert_eq!(slow_sum(&packet[..20]), 0xffff);
            } else {
                // Traffic class and the highest bits of the label stay.
                assert_eq!(packet[..2], [0x6a, 0xb0]);
            }
            let MeasuredFrame::Segment(segment) = parse(&frame) else {
                panic!("no segment");
            };
            assert_eq!(segment.number, 0xabcd);
            assert_eq!(segment.packet, packet);
            assert_eq!(segment.destination(), Some(destination.parse().unwrap()));
            assert!(segment.is_intact());
            write_number(&mut frame[14..24], 1);
            let last = ETHERNET_HEADER + packet.len() - 1;
            frame[last] ^= 1;
            let MeasuredFrame::Segment(segment) = parse(&frame) else {
                panic!("no segment");
            };
            assert!(!segment.is_intact());
        }
        write_number(&mut [], 1);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let error = ProbeTemplate::new(&shape(6, 71)).unwrap_err();
        assert!(error.to_string().contains("at least 72"), "{error}");
        let mut mixed = shape(4, 92);
        mixed.destination = "[2001:2::1]:1".parse().unwrap();
        assert!(ProbeTemplate::new(&mixed).is_err());
    }
}
