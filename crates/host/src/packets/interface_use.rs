//! Uses of an interface by this host that would be lost while a bridge has it.
//!
//! ```text
//!   kernel ──► links, addresses, routes (rtnetlink(7)) ──► the first use that stands in the way
//! ```
//! A bridge hides its interfaces from the host's own network stack. An interface that is a port of
//! the kernel's bridge or bond, that others are stacked on, or that carries an address or a route
//! is therefore refused. The message says what was found and how to undo it. Addresses and routes
//! that the kernel makes by itself on every interface that is up (link-local addresses of IPv6 and
//! their routes) do not count.
//!
//! Only one network namespace is searched: a macvlan interface that was moved into another one
//! names its parent there, and not here.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::interface_system::{self as system, RtnetlinkTable};

/// One use of an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InterfaceUse {
    /// The interface is a port of another interface of this kind.
    Port {
        /// Name of the other interface.
        master: String,
        /// Kind of the other interface, as `ip -d link` names it.
        kind: String,
    },
    /// A default route leads through it.
    DefaultRoute,
    /// Another interface of this kind is stacked on it.
    Parent {
        /// Name of the other interface.
        child: String,
        /// Kind of the other interface, as `ip -d link` names it.
        kind: String,
    },
    /// The interface has an address, with the length of its network's prefix.
    Address {
        /// The address.
        address: IpAddr,
        /// Length of the prefix, bits.
        prefix: u8,
    },
    /// A route leads through it.
    Route {
        /// First address of the destination network.
        network: IpAddr,
        /// Length of the prefix, bits.
        prefix: u8,
    },
}

/// Finds the most severe use that conflicts with a bridge over the interface of this number in the
/// calling thread's namespace.
///
/// # Errors
/// When the kernel does not answer.
pub fn of_interface(index: i32) -> io::Result<Option<InterfaceUse>> {
    let mut uses = InterfaceUseSearch::of(index);
    system::dump(RtnetlinkTable::Links, |message| uses.link(message))?;
    system::dump(RtnetlinkTable::Addresses, |message| uses.address(message))?;
    system::dump(RtnetlinkTable::Routes, |message| uses.route(message))?;
    Ok(uses.most_severe())
}

impl InterfaceUse {
    /// Describes the use of the interface of this name, and how to undo it.
    pub fn explain(&self, name: &str) -> String {
        match self {
            InterfaceUse::Port { master, kind } => {
                let (what, instead) = match kind.as_str() {
                    "bridge" | "openvswitch" => ("a port of the bridge", "name another interface"),
                    "bond" | "team" => ("part of the bond", "name the bond itself"),
                    "vrf" => ("in the routing domain", "name another interface"),
                    _ => ("a port of", "name another interface"),
                };
                format!(
                    "it is {what} {master}, which would get nothing from it any more; {instead}, or take it out: ip link set {name} nomaster"
                )
            }
            InterfaceUse::DefaultRoute => format!(
                "this host's default route leads through it, and a bridge there would cut the host off; name another interface, or remove the route: ip route del default dev {name}"
            ),
            InterfaceUse::Parent { child, kind } => format!(
                "this host's {kind} interface {child} is stacked on it and would get nothing any more; name another interface, or remove that one: ip link del {child}"
            ),
            InterfaceUse::Address { address, prefix } => format!(
                "this host has the address {address}/{prefix} on it, where nobody would reach it any more; name another interface, or remove the address: ip address del {address}/{prefix} dev {name}"
            ),
            InterfaceUse::Route { network, prefix } => {
                let family = match network {
                    IpAddr::V4(_) => "",
                    IpAddr::V6(_) => "-6 ",
                };
                format!(
                    "this host's route to {network}/{prefix} leads through it and would end there; name another interface, or remove the route: ip {family}route del {network}/{prefix} dev {name}"
                )
            }
        }
    }
}

/// Uses found so far.
#[derive(Debug)]
struct InterfaceUseSearch {
    index: i32,
    master: Option<i32>,
    /// Name and kind of those that others may be ports of; filled as they pass.
    links: Vec<LinkMessage>,
    found: Vec<InterfaceUse>,
}

/// Fields of an RTM_NEWLINK message that are needed here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LinkMessage {
    index: i32,
    name: String,
    /// Empty where the kernel names none: hardware.
    kind: String,
    master: Option<i32>,
    /// Interface that it is stacked on in this namespace.
    lower: Option<i32>,
}

/// Two ends of a pair name each other as what they are stacked on.
const PAIRS: [&str; 2] = ["veth", "netkit"];

impl InterfaceUseSearch {
    fn of(index: i32) -> Self {
        Self {
            index,
            master: None,
            links: Vec::new(),
            found: Vec::new(),
        }
    }

    fn link(&mut self, message: &[u8]) {
        let Some(link) = LinkMessage::parse(message) else {
            return;
        };
        if link.index == self.index {
            self.master = link.master;
        } else if link.lower == Some(self.index) && !PAIRS.contains(&link.kind.as_str()) {
            self.found.push(InterfaceUse::Parent {
                child: link.name.clone(),
                kind: link.kind.clone(),
            });
        }
        self.links.push(link);
    }

    /// `struct ifaddrmsg`: family, prefix length, flags, scope, index.
    fn address(&mut self, message: &[u8]) {
        const HEADER: usize = 8;
        const ADDRESS: u16 = 1;
        const LOCAL: u16 = 2;
        let Some((&[family, prefix, _, scope, a, b, c, d], rest)) =
            message.split_first_chunk::<HEADER>()
        else {
            return;
        };
        let is_made_by_kernel = i32::from(family) == libc::AF_INET6 && scope == libc::RT_SCOPE_LINK;
        if i32::from_ne_bytes([a, b, c, d]) != self.index || is_made_by_kernel {
            return;
        }
        // Of a pair of addresses, as on a line between two hosts, LOCAL is this host's.
        let value = |kind| attributes(rest).find(|(found, _)| *found == kind);
        let address = value(LOCAL).or_else(|| value(ADDRESS));
        if let Some(address) = address.and_then(|(_, bytes)| ip_address(bytes)) {
            self.found.push(InterfaceUse::Address { address, prefix });
        }
    }

    /// `struct rtmsg`: family, lengths of destination and source prefix, type of service, table,
    /// who made it, scope, type, flags.
    fn route(&mut self, message: &[u8]) {
        const HEADER: usize = 12;
        const DESTINATION: u16 = 1;
        let Some((&[family, prefix, _, _, _, maker, _, kind, a, b, c, d], rest)) =
            message.split_first_chunk::<HEADER>()
        else {
            return;
        };
        let is_remembered = u32::from_ne_bytes([a, b, c, d]) & libc::RTM_F_CLONED != 0;
        // The kernel's own follow from addresses.
        if kind != libc::RTN_UNICAST || maker == libc::RTPROT_KERNEL || is_remembered {
            return;
        }
        if !attributes(rest).any(|(kind, value)| leads_through(kind, value, self.index)) {
            return;
        }
        let network = match attributes(rest).find(|(kind, _)| *kind == DESTINATION) {
            Some((_, bytes)) => ip_address(bytes),
            None if i32::from(family) == libc::AF_INET6 => Some(Ipv6Addr::UNSPECIFIED.into()),
            None => Some(Ipv4Addr::UNSPECIFIED.into()),
        };
        match network {
            Some(_) if prefix == 0 => self.found.push(InterfaceUse::DefaultRoute),
            Some(network) => self.found.push(InterfaceUse::Route { network, prefix }),
            None => {}
        }
    }

    fn most_severe(mut self) -> Option<InterfaceUse> {
        if let Some(master) = self.master {
            let link = self.links.into_iter().find(|link| link.index == master);
            let LinkMessage { name, kind, .. } = link.unwrap_or_else(|| LinkMessage {
                name: format!("number {master}"),
                ..LinkMessage::default()
            });
            self.found.push(InterfaceUse::Port { master: name, kind });
        }
        self.found.into_iter().min()
    }
}

impl LinkMessage {
    /// `struct ifinfomsg`: family, padding, type, index, flags, change.
    fn parse(message: &[u8]) -> Option<Self> {
        const HEADER: usize = 16;
        const NAME: u16 = 3;
        const LINK: u16 = 5;
        const MASTER: u16 = 10;
        const INFORMATION: u16 = 18;
        const KIND: u16 = 1;
        const LINK_NAMESPACE: u16 = 37;
        let (header, rest) = message.split_first_chunk::<HEADER>()?;
        let mut link = Self {
            index: number(&header[4..8])?,
            ..Self::default()
        };
        let mut is_elsewhere = false;
        for (kind, value) in attributes(rest) {
            match kind {
                NAME => link.name = text(value),
                LINK => link.lower = number(value),
                MASTER => link.master = number(value),
                INFORMATION => {
                    let kind = attributes(value).find(|(kind, _)| *kind == KIND);
                    link.kind = kind.map(|(_, value)| text(value)).unwrap_or_default();
                }
                LINK_NAMESPACE => is_elsewhere = true,
                _ => {}
            }
        }
        if is_elsewhere {
            link.lower = None;
        }
        Some(link)
    }
}

/// Returns `true` if an attribute of a route names this interface as the outgoing one: alone, or as
/// one of many (`struct rtnexthop`: length, flags, hops, index, and attributes).
fn leads_through(kind: u16, value: &[u8], index: i32) -> bool {
    const OUT: u16 = 4;
    const MANY: u16 = 9;
    const HOP: usize = 8;
    match kind {
        OUT => number(value) == Some(index),
        MANY => {
            let mut rest = value;
            while let Some(hop) = rest.first_chunk::<HOP>() {
                if number(&hop[4..]) == Some(index) {
                    return true;
                }
                let length = usize::from(u16::from_ne_bytes([hop[0], hop[1]]));
                rest = rest.get(aligned(length.max(HOP))..).unwrap_or_default();
            }
            false
        }
        _ => false,
    }
}

/// Attributes start at multiples of this.
fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// The kind and the value of each attribute, up to the first that is none.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const HEADER: usize = 4;
    /// The two highest bits say how the value is made.
    const KIND: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let &[a, b, c, d] = bytes.first_chunk::<HEADER>()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = bytes.get(HEADER..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]) & KIND, value))
    })
}

fn number(bytes: &[u8]) -> Option<i32> {
    bytes.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .trim_end_matches('\0')
        .to_owned()
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(bytes).into());
    }
    <[u8; 16]>::try_from(bytes)
        .ok()
        .map(|bytes| Ipv6Addr::from(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: i32 = 7;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn link(index: i32, name: &str, kind: &str, more: &[(u16, i32)]) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend(index.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(attribute(3, format!("{name}\0").as_bytes()));
        // Nested, as a kernel may say.
        bytes.extend(attribute(18 | 0x8000, &attribute(1, kind.as_bytes())));
        for (kind, value) in more {
            bytes.extend(attribute(*kind, &value.to_ne_bytes()));
        }
        bytes
    }

    fn address(index: i32, scope: u8, address: IpAddr, prefix: u8) -> Vec<u8> {
        let (family, value) = family(address);
        let mut bytes = vec![family, prefix, 0, scope];
        bytes.extend(index.to_ne_bytes());
        bytes.extend(attribute(1, &value));
        bytes
    }

    fn family(address: IpAddr) -> (u8, Vec<u8>) {
        match address {
            IpAddr::V4(address) => (libc::AF_INET as u8, address.octets().to_vec()),
            IpAddr::V6(address) => (libc::AF_INET6 as u8, address.octets().to_vec()),
        }
    }

    fn route(network: IpAddr, prefix: u8, maker: u8, way: &[u8]) -> Vec<u8> {
        let (family, value) = family(network);
        let kind = libc::RTN_UNICAST;
        let mut bytes = vec![family, prefix, 0, 0, 254, maker, 0, kind, 0, 0, 0, 0];
        if prefix > 0 {
            bytes.extend(attribute(1, &value));
        }
        bytes.extend(way);
        bytes
    }

    fn through(index: i32) -> Vec<u8> {
        attribute(4, &index.to_ne_bytes())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn explained(fill: impl FnOnce(&mut InterfaceUseSearch)) -> String {
        let mut uses = InterfaceUseSearch::of(INDEX);
        fill(&mut uses);
        uses.most_severe()
            .map(|found| found.explain("eth7"))
            .unwrap_or_default()
    }

    #[test]
    fn a_port_is_told_from_its_master() {
        for (kind, words) in [
            ("bridge", "a port of the bridge up9"),
            ("bond", "part of the bond up9"),
            ("team", "part of the bond up9"),
            ("vrf", "in the routing domain up9"),
            ("hsr", "a port of up9"),
        ] {
            let text = explained(|uses| {
                uses.link(&link(INDEX, "eth7", "", &[(10, 9)]));
                uses.link(&link(9, "up9", kind, &[]));
            });
            assert!(text.contains(words), "{text}");
            assert!(text.contains("ip link set eth7 nomaster"), "{text}");
        }
        // Its master may have gone since.
        let text = explained(|uses| uses.link(&link(INDEX, "eth7", "", &[(10, 9)])));
        assert!(text.contains("number 9"), "{text}");
    }

    #[test]
    fn parent_is_found_by_stacked_interfaces() {
        for kind in ["vlan", "macvlan", "macvtap", "ipvlan", "macsec"] {
            let text = explained(|uses| uses.link(&link(9, "up9", kind, &[(5, INDEX)])));
            assert!(text.contains(&format!("{kind} interface up9")), "{text}");
            assert!(text.contains("ip link del up9"), "{text}");
        }
        // The other end of a pair is not stacked on it, nor what is stacked on its number in
        // another namespace, nor on another interface.
        let text = explained(|uses| {
            uses.link(&link(INDEX, "eth7", "veth", &[(5, 9)]));
            uses.link(&link(9, "peer", "veth", &[(5, INDEX)]));
            uses.link(&link(10, "moved", "macvlan", &[(5, INDEX), (37, 0)]));
            uses.link(&link(11, "other", "vlan", &[(5, 10)]));
        });
        assert_eq!(text, "");
    }

    #[test]
    fn addresses_count_except_kernel_made_ones() {
        let text = explained(|uses| uses.address(&address(INDEX, 0, ip("192.0.2.1"), 24)));
        assert!(text.contains("ip address del 192.0.2.1/24 dev eth7"));
        let text = explained(|uses| uses.address(&address(INDEX, 0, ip("2001:db8::1"), 64)));
        assert!(text.contains("2001:db8::1/64"), "{text}");
        let link = libc::RT_SCOPE_LINK;
        let text = explained(|uses| {
            uses.address(&address(INDEX, link, ip("fe80::1"), 64));
            uses.address(&address(8, 0, ip("192.0.2.1"), 24));
        });
        assert_eq!(text, "");
        let text = explained(|uses| uses.address(&address(INDEX, link, ip("169.254.0.1"), 16)));
        assert!(text.contains("169.254.0.1/16"), "{text}");
    }

    #[test]
    fn routes_count_except_those_of_addresses() {
        let boot = libc::RTPROT_BOOT;
        let network = ip("198.51.100.0");
        let text = explained(|uses| uses.route(&route(network, 24, boot, &through(INDEX))));
        assert!(
            text.contains("ip route del 198.51.100.0/24 dev eth7"),
            "{text}"
        );
        let text =
            explained(|uses| uses.route(&route(ip("2001:db8::"), 32, boot, &through(INDEX))));
        assert!(text.contains("ip -6 route del 2001:db8::/32"), "{text}");
        let text = explained(|uses| {
            let kernel = libc::RTPROT_KERNEL;
            uses.route(&route(ip("fe80::"), 64, kernel, &through(INDEX)));
            uses.route(&route(network, 24, boot, &through(8)));
        });
        assert_eq!(text, "");
        // One of several ways.
        let hops: Vec<u8> = [8, INDEX]
            .into_iter()
            .flat_map(|index| {
                let gateway = attribute(5, &[192, 0, 2, 1]);
                let mut hop = (8 + gateway.len() as u16).to_ne_bytes().to_vec();
                hop.extend([0, 0]);
                hop.extend(index.to_ne_bytes());
                hop.extend(gateway);
                hop
            })
            .collect();
        let text = explained(|uses| uses.route(&route(network, 24, boot, &attribute(9, &hops))));
        assert!(text.contains("198.51.100.0/24"), "{text}");
    }

    #[test]
    fn most_severe_use_is_named_first() {
        let boot = libc::RTPROT_BOOT;
        for nowhere in ["0.0.0.0", "::"] {
            let text = explained(|uses| {
                uses.link(&link(9, "up9", "vlan", &[(5, INDEX)]));
                uses.address(&address(INDEX, 0, ip("192.0.2.1"), 24));
                uses.route(&route(ip("198.51.100.0"), 24, boot, &through(INDEX)));
                uses.route(&route(ip(nowhere), 0, boot, &through(INDEX)));
            });
            assert!(text.contains("default route"), "{text}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = vocab::SeededRandom::from_seed(11);
        let mut bytes = [0; 96];
        for round in 0..20_000_usize {
            random.fill(&mut bytes);
            // Lengths that lead somewhere now and then.
            for at in [8, 12, 16, 24] {
                bytes[at] %= 40;
                bytes[at + 1] = 0;
            }
            bytes[4..8].copy_from_slice(&INDEX.to_ne_bytes());
            let message = &bytes[..round % bytes.len()];
            let mut uses = InterfaceUseSearch::of(INDEX);
            uses.link(message);
            uses.address(message);
            uses.route(message);
            uses.most_severe();
        }
    }
}
