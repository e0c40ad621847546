//! Address resolution for emulated hosts: ARP (RFC 826) and neighbour discovery (RFC 4861).
//!
//! ```text
//!   request from the device ──► is the address one of ours? ──► reply
//!   our own request ──► reply of the device ──► Ethernet address of the next hop
//! ```
//! All hosts of a port share the port's Ethernet address. Nothing is remembered here: a reply depends
//! on its request alone, and a wrong packet gets none.

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
/// Type, code, checksum, flags, target, and one option with an Ethernet address.
const DISCOVERY_LENGTH: usize = 32;
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
    let message = frame.get(ETHERNET_HEADER + IPV6_HEADER..)?;
    if header[6] != ICMPV6 || header[7] != ON_LINK {
        return None;
    }
    let address = |bytes: &[u8]| -> Option<IpAddr> {
        let octets: [u8; 16] = bytes.try_into().ok()?;
        Some(Ipv6Addr::from(octets).into())
    };
    let target = address(message.get(8..24)?)?;
    let option = message.get(24..DISCOVERY_LENGTH);
    let option_of = |kind: u8| -> Option<MacAddress> {
        let option = option.filter(|option| option[..2] == [kind, 1])?;
        option[2..8].try_into().ok()
    };
    let from = || -> Option<MacAddress> { frame.get(6..12)?.try_into().ok() };
    match *message.first()? {
        SOLICITATION => Some(NeighbourMessage::Request {
            target,
            sender: address(&header[8..24])?,
            sender_mac: option_of(SOURCE_OPTION).or_else(from)?,
        }),
        ADVERTISEMENT => Some(NeighbourMessage::Reply {
            address: target,
            mac: option_of(TARGET_OPTION).or_else(from)?,
        }),
        _ => None,
    }
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
            let [.., a, b, c] = target.octets();
            // The solicited-node multicast address (RFC 4291 §2.7.1).
            let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
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
    let sum = !UnfoldedSum::default()
        .add_bytes(&addresses)
        .add_word(u16::from(ICMPV6))
        .add_word(DISCOVERY_LENGTH as u16)
        .add_bytes(&frame[start..])
        .fold();
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

    #[test]
    fn duplicate_address_check_is_answered_to_all() {
        let target: IpAddr = "2001:2:0:1::10".parse().unwrap();
        let asked = NeighbourMessage::Request {
            target,
            sender: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            sender_mac: THEIRS,
        };
        let answer = reply(&asked, OURS).unwrap();
        assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    }

    #[test]
    fn forwarded_discovery_and_cut_messages_are_ignored() {
        let mut frame = request(
            "2001:2:0:1::10".parse().unwrap(),
            "2001:2:0:1::1".parse().unwrap(),
            THEIRS,
        )
        .unwrap();
        for length in 0..ETHERNET_HEADER + IPV6_HEADER + 24 {
            assert_eq!(parse(&frame[..length]), None, "{length}");
        }
        frame[ETHERNET_HEADER + 7] = 254;
        assert_eq!(parse(&frame), None);
    }
}
