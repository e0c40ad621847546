//! Address resolution for emulated hosts: ARP (RFC 826) and neighbour discovery (RFC 4861).
//!
//! ```text
//!   request from the device ──► is the address one of ours? ──► reply
//!   our own request ──► reply of the device ──► Ethernet address of the next hop
//! ```
//! All hosts of a port share the port's Ethernet address. Nothing is remembered here: a reply depends
//! on its request alone. A message that RFC 4861 §7.1 tells hosts to discard gets none: one that crossed
//! a router, is cut, has a wrong checksum, or an option without length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use host::packets::offload::checksum::UnfoldedSum;

use crate::probe::{ETHERNET_HEADER, MacAddress};

const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// Ethernet, IPv4, and the lengths of their addresses.
const ARP_KIND: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const ARP_LENGTH: usize = 28;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;

const IPV6_HEADER: usize = 40;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Type, code, checksum, flags and target.
const DISCOVERY_HEAD: usize = 24;
/// The same, and one option with an Ethernet address.
const DISCOVERY_LENGTH: usize = 32;
/// Lengths of options count in units of so many bytes (RFC 4861 §4.6).
const OPTION_UNIT: usize = 8;
/// Options that carry the sender's and the target's address (RFC 4861 §4.6.1).
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
/// Hop limit that shows that a packet crossed no router (RFC 4861 §7.1.1).
const ON_LINK: u8 = 255;

/// Message of address resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeighbourMessage {
    /// Somebody asks for the Ethernet address of `target`.
    Request {
        /// Requested address.
        target: IpAddr,
        /// Address of the host that asks; unspecified for a duplicate address check.
        sender: IpAddr,
        /// Ethernet address of the host that asks.
        sender_mac: MacAddress,
    },
    /// `address` has this Ethernet address.
    Reply {
        /// Resolved address.
        address: IpAddr,
        /// Its Ethernet address.
        mac: MacAddress,
    },
}

/// Reads a message of address resolution from an untagged frame.
#[must_use]
pub(crate) fn parse(frame: &[u8]) -> Option<NeighbourMessage> {
    match *frame.get(12..ETHERNET_HEADER)?.first_chunk::<2>()? {
        ETHERTYPE_ARP => parse_arp(frame.get(ETHERNET_HEADER..)?),
        ETHERTYPE_IPV6 => parse_discovery(frame),
        _ => None,
    }
}

fn parse_arp(message: &[u8]) -> Option<NeighbourMessage> {
    let message: &[u8; ARP_LENGTH] = message.first_chunk()?;
    if message[..6] != ARP_KIND {
        return None;
    }
    let mac = |at: usize| -> Option<MacAddress> { message.get(at..at + 6)?.try_into().ok() };
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 4] = message.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(octets).into())
    };
    match message[7] {
        REQUEST => Some(NeighbourMessage::Request {
            target: address(24)?,
            sender: address(14)?,
            sender_mac: mac(8)?,
        }),
        REPLY => Some(NeighbourMessage::Reply {
            address: address(14)?,
            mac: mac(8)?,
        }),
        _ => None,
    }
}

fn parse_discovery(frame: &[u8]) -> Option<NeighbourMessage> {
    let header = frame.get(ETHERNET_HEADER..ETHERNET_HEADER + IPV6_HEADER)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    // Ethernet may pad behind the packet.
    let message = frame
        .get(ETHERNET_HEADER + IPV6_HEADER..)?
        .get(..length)
        .filter(|message| message.len() >= DISCOVERY_HEAD)?;
    let [kind, code] = [message[0], message[1]];
    if header[0] >> 4 != 6 || header[6] != ICMPV6 || header[7] != ON_LINK || code != 0 {
        return None;
    }
    let addresses = &header[8..IPV6_HEADER];
    if discovery_sum(addresses, message) != 0xffff {
        return None;
    }
    let address = |bytes: &[u8]| -> Option<Ipv6Addr> {
        let octets: [u8; 16] = bytes.try_into().ok()?;
        Some(octets.into())
    };
    let (sender, receiver) = (address(&addresses[..16])?, address(&addresses[16..])?);
    let target = address(&message[8..DISCOVERY_HEAD]).filter(|target| !target.is_multicast())?;
    let options = &message[DISCOVERY_HEAD..];
    let from = || -> Option<MacAddress> { frame.get(6..12)?.try_into().ok() };
    match kind {
        SOLICITATION => {
            let source = link_layer_option(options, SOURCE_OPTION)?;
            if sender.is_unspecified()
                && (source.is_some() || receiver != solicited_node_group(target))
            {
                return None;
            }
            Some(NeighbourMessage::Request {
                target: target.into(),
                sender: sender.into(),
                sender_mac: source.or_else(from)?,
            })
        }
        ADVERTISEMENT => Some(NeighbourMessage::Reply {
            address: target.into(),
            mac: link_layer_option(options, TARGET_OPTION)?.or_else(from)?,
        }),
        _ => None,
    }
}

/// Finds the Ethernet address in the options of a message: `Some(None)` if there is none, `None` if an
/// option has no length or goes beyond the message.
fn link_layer_option(mut options: &[u8], kind: u8) -> Option<Option<MacAddress>> {
    let mut found = None;
    while let [this, units, ..] = *options {
        let (option, rest) = options
            .split_at_checked(usize::from(units) * OPTION_UNIT)
            .filter(|(option, _)| !option.is_empty())?;
        if this == kind && found.is_none() {
            found = option.get(2..OPTION_UNIT)?.try_into().ok();
        }
        options = rest;
    }
    options.is_empty().then_some(found)
}

/// Sum over the pseudo header and the message; 0xffff if the message has the right checksum.
fn discovery_sum(addresses: &[u8], message: &[u8]) -> u16 {
    UnfoldedSum::default()
        .add_bytes(addresses)
        .add_word(u16::from(ICMPV6))
        .add_word(message.len() as u16)
        .add_bytes(message)
        .fold()
}

/// The solicited-node multicast address (RFC 4291 §2.7.1).
fn solicited_node_group(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Writes the reply to a request for one of our hosts, whose Ethernet address is `ours`; `None` if
/// the message is no request, or its addresses are of different families.
#[must_use]
pub(crate) fn reply(message: &NeighbourMessage, ours: MacAddress) -> Option<Vec<u8>> {
    let NeighbourMessage::Request {
        target,
        sender,
        sender_mac,
    } = *message
    else {
        return None;
    };
    match (target, sender) {
        (IpAddr::V4(target), IpAddr::V4(sender)) => {
            Some(arp(REPLY, (ours, target), (sender_mac, sender), sender_mac))
        }
        (IpAddr::V6(target), IpAddr::V6(sender)) => {
            // A check for duplicates is answered to all nodes (RFC 4861 §7.2.4).
            let (to, to_mac) = if sender.is_unspecified() {
                let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
                (all_nodes, multicast_mac(all_nodes))
            } else {
                (sender, sender_mac)
            };
            Some(discovery(
                ADVERTISEMENT,
                (ours, target),
                (to_mac, to),
                target,
            ))
        }
        _ => None,
    }
}

/// Writes a request for the Ethernet address of `target`, from our host `sender`; `None` if the
/// addresses are of different families.
#[must_use]
pub(crate) fn request(target: IpAddr, sender: IpAddr, ours: MacAddress) -> Option<Vec<u8>> {
    const EVERYBODY: MacAddress = [0xff; 6];
    match (target, sender) {
        (IpAddr::V4(target), IpAddr::V4(sender)) => {
            Some(arp(REQUEST, (ours, sender), ([0; 6], target), EVERYBODY))
        }
        (IpAddr::V6(target), IpAddr::V6(sender)) => {
            let group = solicited_node_group(target);
            Some(discovery(
                SOLICITATION,
                (ours, sender),
                (multicast_mac(group), group),
                target,
            ))
        }
        _ => None,
    }
}

fn arp(
    operation: u8,
    sender: (MacAddress, Ipv4Addr),
    target: (MacAddress, Ipv4Addr),
    to: MacAddress,
) -> Vec<u8> {
    let mut frame = [&to[..], &sender.0, &ETHERTYPE_ARP, &ARP_KIND].concat();
    frame.extend_from_slice(&[0, operation]);
    for (mac, address) in [sender, target] {
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&address.octets());
    }
    frame
}

fn discovery(
    kind: u8,
    (from_mac, from): (MacAddress, Ipv6Addr),
    (to_mac, to): (MacAddress, Ipv6Addr),
    target: Ipv6Addr,
) -> Vec<u8> {
    const SOLICITED_AND_OVERRIDE: u8 = 0x60;
    const OVERRIDE: u8 = 0x20;
    let mut frame = [&to_mac[..], &from_mac, &ETHERTYPE_IPV6].concat();
    frame.extend_from_slice(&[0x60, 0, 0, 0, 0, DISCOVERY_LENGTH as u8, ICMPV6, ON_LINK]);
    let addresses = [from.octets(), to.octets()].concat();
    frame.extend_from_slice(&addresses);
    let start = frame.len();
    let flags = match kind {
        ADVERTISEMENT if to.is_multicast() => OVERRIDE,
        ADVERTISEMENT => SOLICITED_AND_OVERRIDE,
        _ => 0,
    };
    frame.extend_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
    frame.extend_from_slice(&target.octets());
    let option = match kind {
        ADVERTISEMENT => TARGET_OPTION,
        _ => SOURCE_OPTION,
    };
    frame.extend_from_slice(&[option, 1]);
    frame.extend_from_slice(&from_mac);
    let sum = !discovery_sum(&addresses, &frame[start..]);
    frame[start + 2..start + 4].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Ethernet address of an IPv6 multicast group (RFC 2464 §7).
fn multicast_mac(group: Ipv6Addr) -> MacAddress {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: MacAddress = [2, 0, 0, 0, 0, 1];
    const THEIRS: MacAddress = [2, 0, 0, 0, 0, 2];

    #[test]
    fn both_families_resolve_each_other() {
        for (target, sender) in [
            ("198.18.1.10", "198.18.1.1"),
            ("2001:2:0:1::10", "2001:2:0:1::1"),
        ] {
            let (target, sender): (IpAddr, IpAddr) =
                (target.parse().unwrap(), sender.parse().unwrap());
            let frame = request(target, sender, THEIRS).unwrap();
            let asked = parse(&frame).unwrap();
            assert_eq!(
                asked,
                NeighbourMessage::Request {
                    target,
                    sender,
                    sender_mac: THEIRS
                }
            );
            let answer = reply(&asked, OURS).unwrap();
            assert_eq!(answer[..6], THEIRS);
            let expected = NeighbourMessage::Reply {
                address: target,
                mac: OURS,
            };
            assert_eq!(parse(&answer), Some(expected));
            assert_eq!(reply(&expected, OURS), None);
        }
    }

    /// A solicitation for an emulated host, as a router sends it.
    fn solicitation() -> Vec<u8> {
        let (target, sender) = ("2001:2:0:1::10", "2001:2:0:1::1");
        request(target.parse().unwrap(), sender.parse().unwrap(), THEIRS).unwrap()
    }

    /// The frame with another byte and the right checksum.
    fn changed(at: usize, value: u8) -> Vec<u8> {
        let mut frame = solicitation();
        frame[at] = value;
        with_checksum(frame)
    }

    fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
        let start = ETHERNET_HEADER + IPV6_HEADER;
        frame[start + 2..start + 4].fill(0);
        let sum = !discovery_sum(&frame[ETHERNET_HEADER + 8..start], &frame[start..]);
        frame[start + 2..start + 4].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    /// Offset of the ICMPv6 message.
    const MESSAGE: usize = ETHERNET_HEADER + IPV6_HEADER;

    #[test]
    fn duplicate_address_check_is_answered_to_all() {
        let target: IpAddr = "2001:2:0:1::10".parse().unwrap();
        // Without an option: the sender has no address yet (RFC 4861 §4.3).
        let mut frame = solicitation();
        frame[ETHERNET_HEADER + 8..ETHERNET_HEADER + 24].fill(0);
        frame.truncate(MESSAGE + DISCOVERY_HEAD);
        frame[ETHERNET_HEADER + 5] = DISCOVERY_HEAD as u8;
        let asked = parse(&with_checksum(frame)).unwrap();
        let sender = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let expected = NeighbourMessage::Request {
            target,
            sender,
            sender_mac: THEIRS,
        };
        assert_eq!(asked, expected);
        let answer = reply(&asked, OURS).unwrap();
        assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
        let address = target;
        assert_eq!(
            parse(&answer),
            Some(NeighbourMessage::Reply { address, mac: OURS })
        );
    }

    #[test]
    fn request_of_the_kernel_is_read() {
        // Solicitation of fe80::c8d3:2aff:fe2b:ae4e for 2001:2:0:1::2, with the option of its source.
        let target = "2001:2:0:1::2".parse().unwrap();
        let sender = "fe80::c8d3:2aff:fe2b:ae4e".parse().unwrap();
        let frame = request(target, sender, THEIRS).unwrap();
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0, 0, 2]);
        let group: Ipv6Addr = "ff02::1:ff00:2".parse().unwrap();
        assert_eq!(frame[ETHERNET_HEADER + 24..MESSAGE], group.octets());
        assert!(parse(&frame).is_some());
        // Ethernet pads, and an unknown option stands before the address.
        let mut padded = frame.clone();
        padded.extend([0; 9]);
        assert!(parse(&padded).is_some());
        let mut longer = frame.clone();
        longer.splice(
            MESSAGE + DISCOVERY_HEAD..MESSAGE + DISCOVERY_HEAD,
            [14, 1, 0, 0, 0, 0, 0, 0],
        );
        longer[ETHERNET_HEADER + 5] += 8;
        assert!(parse(&with_checksum(longer)).is_some());
    }

    #[test]
    fn messages_that_hosts_discard_get_no_reply() {
        for length in 0..solicitation().len() {
            assert_eq!(parse(&solicitation()[..length]), None, "{length}");
        }
        // Hops, code, target, length of the option, kind of the message.
        for (at, value) in [
            (ETHERNET_HEADER + 7, 254),
            (ETHERNET_HEADER, 0x40),
            (MESSAGE + 1, 1),
            (MESSAGE + 8, 0xff),
            (MESSAGE + DISCOVERY_HEAD + 1, 0),
            (MESSAGE + DISCOVERY_HEAD + 1, 2),
            (MESSAGE, 133),
        ] {
            assert_eq!(parse(&changed(at, value)), None, "{at} = {value}");
        }
        let mut damaged = solicitation();
        damaged[MESSAGE + 20] ^= 1;
        assert_eq!(parse(&damaged), None);
        // A check for duplicates names no source (RFC 4861 §7.1.1).
        let mut named = solicitation();
        named[ETHERNET_HEADER + 8..ETHERNET_HEADER + 24].fill(0);
        assert_eq!(parse(&with_checksum(named)), None);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let frames = [
            solicitation(),
            request(
                "198.18.1.10".parse().unwrap(),
                "198.18.1.1".parse().unwrap(),
                THEIRS,
            )
            .unwrap(),
        ];
        for frame in frames {
            for at in 0..frame.len() {
                for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
                    let mut damaged = frame.clone();
                    damaged[at] = value;
                    for damaged in [damaged.clone(), with_fixed_sum(damaged)] {
                        if let Some(message) = parse(&damaged) {
                            let _ = reply(&message, OURS);
                        }
                    }
                }
            }
        }
    }

    /// The frame with a right checksum, if it is long enough to have one.
    fn with_fixed_sum(frame: Vec<u8>) -> Vec<u8> {
        if frame.len() < MESSAGE + DISCOVERY_HEAD {
            return frame;
        }
        with_checksum(frame)
    }
}
