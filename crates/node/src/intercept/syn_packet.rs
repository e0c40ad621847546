//! The first packet of a connection (a SYN), as it was logged: its addresses, the same packet with
//! a valid checksum, the refusal that the server would send, and the ICMP message of a router that
//! does not find the server.
//!
//! The parsers accept any bytes. They do not follow IPv6 extension headers before the TCP header:
//! such a packet is not held.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
const ICMP_HEADER: usize = 8;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
const FLAG_SYN: u8 = 0x02;
const FLAG_RST: u8 = 0x04;
const FLAG_ACK: u8 = 0x10;
/// Hops that a refusal may take: the usual first value of hosts.
const HOPS: u8 = 64;
/// The offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;

/// An IP packet that begins a TCP connection or answers one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SynPacket {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// True if the packet is the answer of a server (SYN and ACK).
    pub(super) is_answer: bool,
    tcp_at: usize,
    bytes: Vec<u8>,
}

impl SynPacket {
    /// Reads an IP packet; `None` when it is not whole, or not a TCP packet with SYN.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let (tcp_at, length, source, destination) = match packet.first()? >> 4 {
            4 => ipv4(packet)?,
            6 => ipv6(packet)?,
            _ => return None,
        };
        let packet = packet.get(..length)?;
        let tcp = packet.get(tcp_at..)?;
        let flags = *tcp.get(13)?;
        let header = usize::from(tcp.get(12)? >> 4) * 4;
        if flags & FLAG_SYN == 0 || header < TCP_HEADER || tcp.len() < header {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        Some(Self {
            source: SocketAddr::new(source, port(0)),
            destination: SocketAddr::new(destination, port(2)),
            is_answer: flags & FLAG_ACK != 0,
            tcp_at,
            bytes: packet.to_vec(),
        })
    }

    /// The packet with a valid TCP checksum: a packet between virtual machines or containers may have
    /// none yet, because no network card has computed it.
    pub(super) fn with_checksum(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        set_tcp_checksum(
            &mut bytes,
            self.tcp_at,
            self.source.ip(),
            self.destination.ip(),
        );
        bytes
    }

    /// Builds the packet by which the server refuses (RFC 9293 §3.5.2, "Reset Generation", group
    /// 1).
    pub(super) fn refusal(&self) -> Vec<u8> {
        let tcp = &self.bytes[self.tcp_at..];
        let header = usize::from(tcp[12] >> 4) * 4;
        let data = tcp.len() - header;
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        // A SYN counts as one byte.
        let acknowledged = sequence.wrapping_add(1).wrapping_add(data as u32);
        let mut segment = [0; TCP_HEADER];
        segment[..2].copy_from_slice(&self.destination.port().to_be_bytes());
        segment[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        segment[8..12].copy_from_slice(&acknowledged.to_be_bytes());
        segment[12] = ((TCP_HEADER / 4) as u8) << 4;
        segment[13] = FLAG_RST | FLAG_ACK;
        let (mut bytes, tcp_at) = match (self.destination.ip(), self.source.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                (ipv4_header(from, to, PROTOCOL_TCP, TCP_HEADER), IPV4_HEADER)
            }
            (from, to) => {
                let (from, to) = (as_ipv6(from), as_ipv6(to));
                (ipv6_header(from, to, PROTOCOL_TCP, TCP_HEADER), IPV6_HEADER)
            }
        };
        bytes.extend_from_slice(&segment);
        set_tcp_checksum(&mut bytes, tcp_at, self.destination.ip(), self.source.ip());
        bytes
    }
}

impl SynPacket {
    /// The message of a router that does not find the server: host unreachable (RFC 792, Destination
    /// Unreachable), or address unreachable (RFC 4443 §3.1). Its sender is the server's address, which the
    /// client's rules expect an answer from.
    pub(super) fn unreachable(&self) -> Vec<u8> {
        // The header of the packet that it is about, and 8 bytes at least of what follows.
        let quoted = &self.bytes[..self.tcp_at + 8];
        let (mut bytes, icmp_at, kind, code, checksum_from) =
            match (self.destination.ip(), self.source.ip()) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    let length = ICMP_HEADER + quoted.len();
                    let header = ipv4_header(from, to, PROTOCOL_ICMP, length);
                    (header, IPV4_HEADER, 3, 1, None)
                }
                (from, to) => {
                    let (from, to) = (as_ipv6(from), as_ipv6(to));
                    let length = ICMP_HEADER + quoted.len();
                    let header = ipv6_header(from, to, PROTOCOL_ICMPV6, length);
                    (header, IPV6_HEADER, 1, 3, Some((from, to)))
                }
            };
        bytes.extend_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(quoted);
        let icmp = &bytes[icmp_at..];
        let sum = match checksum_from {
            None => checksum(&[icmp]),
            Some((from, to)) => {
                let length = (icmp.len() as u32).to_be_bytes();
                let rest = [0, 0, 0, PROTOCOL_ICMPV6];
                checksum(&[&from.octets(), &to.octets(), &length, &rest, icmp])
            }
        };
        bytes[icmp_at + 2..icmp_at + 4].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}

/// The place of the TCP header, the length of the packet, its source and its destination.
pub(super) type PacketHeaders = (usize, usize, IpAddr, IpAddr);

/// Reads the header of an IPv4 packet that is not a fragment.
pub(super) fn ipv4(packet: &[u8]) -> Option<PacketHeaders> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let fixed = packet.first_chunk::<IPV4_HEADER>()?;
    let length = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    let is_fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
    if header < IPV4_HEADER || length < header || fixed[9] != PROTOCOL_TCP || is_fragment {
        return None;
    }
    let address = |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
    Some((header, length, address(12).into(), address(16).into()))
}

/// Reads the header of an IPv6 packet.
pub(super) fn ipv6(packet: &[u8]) -> Option<PacketHeaders> {
    let fixed = packet.first_chunk::<IPV6_HEADER>()?;
    let payload = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if fixed[6] != PROTOCOL_TCP {
        return None;
    }
    let address = |at: usize| {
        let octets: [u8; 16] = fixed[at..at + 16].try_into().expect("it is 16 bytes long");
        Ipv6Addr::from(octets)
    };
    let (source, destination) = (address(8).into(), address(24).into());
    Some((IPV6_HEADER, IPV6_HEADER + payload, source, destination))
}

/// The header of a packet with a payload of this length.
pub(super) fn ipv4_header(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: usize) -> Vec<u8> {
    let length = (IPV4_HEADER + payload) as u16;
    let mut header = vec![0; IPV4_HEADER];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&length.to_be_bytes());
    // Don't fragment, as the packets of hosts have it.
    header[6] = 0x40;
    header[8] = HOPS;
    header[9] = protocol;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let checksum = checksum(&[&header]);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// The header of a packet with a payload of this length.
pub(super) fn ipv6_header(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, payload: usize) -> Vec<u8> {
    let mut header = vec![0; IPV6_HEADER];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    header[6] = protocol;
    header[7] = HOPS;
    header[8..24].copy_from_slice(&from.octets());
    header[24..40].copy_from_slice(&to.octets());
    header
}

/// The address in the form of IPv6.
pub(super) fn as_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Sets the checksum of the TCP segment that ends `bytes` (RFC 9293 §3.1, "Header Format").
pub(super) fn set_tcp_checksum(
    bytes: &mut [u8],
    tcp_at: usize,
    source: IpAddr,
    destination: IpAddr,
) {
    let tcp = &mut bytes[tcp_at..];
    tcp[TCP_CHECKSUM..TCP_CHECKSUM + 2].fill(0);
    let length = (tcp.len() as u32).to_be_bytes();
    let rest = [0, 0, 0, PROTOCOL_TCP];
    let sum = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            checksum(&[&source.octets(), &destination.octets(), &length, &rest, tcp])
        }
        (source, destination) => checksum(&[
            &as_ipv6(source).octets(),
            &as_ipv6(destination).octets(),
            &length,
            &rest,
            tcp,
        ]),
    };
    tcp[TCP_CHECKSUM..TCP_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The Internet checksum (RFC 1071) of parts that are each of even length, but the last.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum = words.fold(0_u32, |sum, word| {
        let low = word.get(1).copied().unwrap_or(0);
        sum + u32::from(u16::from_be_bytes([word[0], low]))
    });
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A SYN of 198.18.1.2 to port 80 of 198.18.2.2, captured on a veth device: its checksum is that of
    /// the pseudo header alone.
    const SYN: &[u8] = &[
        0x45, 0x00, 0x00, 0x3c, 0x1f, 0x2b, 0x40, 0x00, 0x40, 0x06, 0x93, 0x6c, 198, 18, 1, 2, 198,
        18, 2, 2, 0xb1, 0x04, 0x00, 0x50, 0x4a, 0xd9, 0x0c, 0xbf, 0x00, 0x00, 0x00, 0x00, 0xa0,
        0x02, 0xfa, 0xf0, 0x8f, 0x57, 0x00, 0x00, 0x02, 0x04, 0x05, 0xb4, 0x04, 0x02, 0x08, 0x0a,
        0xbc, 0x3a, 0x98, 0x02, 0x00, 0x00, 0x00, 0x00, 0x01, 0x03, 0x03, 0x0a,
    ];

    /// Returns true if the TCP checksum of a packet is valid.
    fn is_valid(packet: &[u8]) -> bool {
        let parsed = |packet: &[u8]| match packet[0] >> 4 {
            4 => ipv4(packet),
            _ => ipv6(packet),
        };
        let (tcp_at, _, source, destination) = parsed(packet).unwrap();
        let mut again = packet.to_vec();
        set_tcp_checksum(&mut again, tcp_at, source, destination);
        again == packet
    }

    fn ipv6_syn() -> Vec<u8> {
        let from = "2001:2:0:1::2".parse().unwrap();
        let to = "2001:2:0:2::2".parse().unwrap();
        let mut packet = ipv6_header(from, to, PROTOCOL_TCP, SYN.len() - IPV4_HEADER);
        packet.extend_from_slice(&SYN[IPV4_HEADER..]);
        packet
    }

    #[test]
    fn syn_yields_addresses_and_valid_checksum() {
        let syn = SynPacket::parse(SYN).unwrap();
        assert_eq!(syn.source, "198.18.1.2:45316".parse().unwrap());
        assert_eq!(syn.destination, "198.18.2.2:80".parse().unwrap());
        assert!(!syn.is_answer);
        let sent = syn.with_checksum();
        assert!(is_valid(&sent));
        assert_eq!(sent.len(), SYN.len());
        assert_eq!(sent[..IPV4_HEADER], SYN[..IPV4_HEADER]);
        let six = SynPacket::parse(&ipv6_syn()).unwrap();
        assert_eq!(six.source, "[2001:2:0:1::2]:45316".parse().unwrap());
        assert!(is_valid(&six.with_checksum()));
    }

    #[test]
    fn refusal_comes_from_the_servers_address() {
        for syn in [SYN.to_vec(), ipv6_syn()] {
            let syn = SynPacket::parse(&syn).unwrap();
            let refusal = syn.refusal();
            assert!(is_valid(&refusal));
            let at = refusal.len() - TCP_HEADER;
            let tcp = &refusal[at..];
            assert_eq!(tcp[..4], [0, 80, 0xb1, 0x04]);
            assert_eq!(tcp[8..12], [0x4a, 0xd9, 0x0c, 0xc0], "one after its SYN");
            assert_eq!(tcp[13], FLAG_RST | FLAG_ACK);
        }
        let syn = SynPacket::parse(SYN).unwrap();
        let refusal = syn.refusal();
        assert_eq!(checksum(&[&refusal[..IPV4_HEADER]]), 0);
        assert_eq!(refusal[12..20], [198, 18, 2, 2, 198, 18, 1, 2]);
    }

    #[test]
    fn unreachable_message_quotes_the_syn() {
        let syn = SynPacket::parse(SYN).unwrap();
        let said = syn.unreachable();
        assert_eq!(checksum(&[&said[..IPV4_HEADER]]), 0);
        assert_eq!(said[9], PROTOCOL_ICMP);
        assert_eq!(said[12..20], [198, 18, 2, 2, 198, 18, 1, 2]);
        let icmp = &said[IPV4_HEADER..];
        assert_eq!(icmp[..2], [3, 1]);
        assert_eq!(checksum(&[icmp]), 0);
        assert_eq!(icmp[ICMP_HEADER..], SYN[..IPV4_HEADER + 8]);

        let packet = ipv6_syn();
        let said = SynPacket::parse(&packet).unwrap().unreachable();
        assert_eq!(said[6], PROTOCOL_ICMPV6);
        assert_eq!(usize::from(said[5]), said.len() - IPV6_HEADER);
        assert_eq!(said[IPV6_HEADER..IPV6_HEADER + 2], [1, 3]);
        assert_eq!(said[IPV6_HEADER + ICMP_HEADER..], packet[..IPV6_HEADER + 8]);
    }

    #[test]
    fn refusal_acknowledges_fast_open_data() {
        let mut packet = SYN.to_vec();
        packet.extend_from_slice(b"data!");
        packet[3] += 5;
        let refusal = SynPacket::parse(&packet).unwrap().refusal();
        assert_eq!(refusal[28..32], [0x4a, 0xd9, 0x0c, 0xc5]);
    }

    #[test]
    fn fragments_other_protocols_and_cut_packets_are_nothing() {
        let changed = |at: usize, value: u8| {
            let mut packet = SYN.to_vec();
            packet[at] = value;
            packet
        };
        for packet in [
            changed(6, 0x20),
            changed(7, 0x01),
            changed(9, 17),
            changed(33, FLAG_ACK),
            changed(0, 0x44),
            changed(3, 0x10),
            changed(3, 0xff),
            changed(32, 0x40),
            SYN[..30].to_vec(),
        ] {
            assert_eq!(SynPacket::parse(&packet), None, "{packet:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
            at in 0..SYN.len(),
            value in any::<u8>(),
        ) {
            let _ = SynPacket::parse(&bytes);
            bytes.splice(0..0, SYN.iter().copied());
            bytes[at] = value;
            if let Some(syn) = SynPacket::parse(&bytes) {
                let _ = syn.refusal();
                let _ = syn.unreachable();
                let _ = syn.with_checksum();
            }
        }
    }
}
