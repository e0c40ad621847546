//! The servers that a peer may reach, and the client addresses that it may use.
//!
//! ```text
//!   open { client, server } ──► server: `serve`, or the networks behind lan_interfaces
//!                               client: the peer's `prefixes`, or this node's own address
//!                               both, and the port: the first `serve_rule` that matches, if any does
//! ```
//!
//! The shell reports the machine's routes and its own addresses ([`NetworkSurroundings`]), and
//! again when they change. The longest matching route decides the side of an address. A default
//! route, or one that covers nearly everything, places no address on the LAN side. An operator with
//! such a LAN route names the networks in `serve`.
//!
//! An IPv6 address may carry an IPv4 address that a translator or a tunnel extracts again (6to4,
//! NAT64, Teredo, ISATAP). Such an address is refused when the IPv4 address inside it would be.
//!
//! It does not resolve names and does not know which process listens on an address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::{EngineConfig, IpPrefix, PeerConfig, ServeAction, ServeRule, has_port, holds};

/// An IPv4 route of fewer bits counts as a default route: the largest private network has 8, and
/// the halves of a split default route have 1.
const LEAST_LENGTH_V4: u8 = 8;
/// The same for IPv6: unique local addresses are a /7, the global ones together a /3.
const LEAST_LENGTH_V6: u8 = 7;

/// The shell's view of the machine's network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSurroundings {
    /// All routes that a connection of this node may take, apart from those to itself.
    pub routes: Vec<NetworkRoute>,
    /// This machine's own addresses, and its broadcast addresses.
    pub own: Vec<IpPrefix>,
}

impl NetworkSurroundings {
    /// The networks on the LAN side, which are served by default.
    #[must_use]
    pub fn lan_networks(&self) -> Vec<IpPrefix> {
        AddressBounds::new(self).lan_networks().collect()
    }
}

/// One route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkRoute {
    /// The destinations.
    pub to: IpPrefix,
    /// The side on which packets leave.
    pub side: RouteSide,
}

/// A side of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteSide {
    /// One of `lan_interfaces`.
    Lan,
    /// Any other interface, or none.
    Other,
}

/// The reason why an open from a peer is refused. The peer is not told this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenRefusal {
    ServerNotServed,
    ServerNotListed,
    ServerIsThisNode,
    ServerIsNoHost,
    ServeRule,
    ClientNotOfPeer,
    ClientIsHere,
    PeerWithoutPrefixes,
}

impl OpenRefusal {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::ServerNotServed => {
                "the server is not in a network behind lan_interfaces; if peers may connect to it, list its \
                 network in serve under [policy]"
            }
            Self::ServerNotListed => "serve under [policy] does not list the server's address",
            Self::ServerIsThisNode => {
                "the server's address belongs to this node; if peers may connect to it, list this exact \
                 address in serve under [policy]"
            }
            Self::ServerIsNoHost => {
                "the server's address is a loopback, link-local, multicast or unspecified address, to which \
                 no peer may connect"
            }
            Self::ServeRule => "a [[policy.serve_rule]] refuses the connection",
            Self::ClientNotOfPeer => {
                "the client's address is not in the prefixes of this [[peer]]; add the client's network to \
                 these prefixes"
            }
            Self::ClientIsHere => {
                "the client's address belongs to this node or to a network that is directly connected to it"
            }
            Self::PeerWithoutPrefixes => {
                "the [[peer]] has no prefixes; write the networks of the peer's clients there, or set \
                 serve_peers_without_prefixes = true under [policy]"
            }
        }
    }
}

/// The source address of a connection to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceAddress {
    /// The client's own address.
    Client,
    /// This node's.
    Node,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct AddressBounds {
    routes: BTreeMap<IpPrefix, RouteSide>,
    /// The prefix lengths of the routes, which a lookup tries from the longest.
    lengths: BTreeSet<u8>,
    own: BTreeSet<IpPrefix>,
    own_lengths: BTreeSet<u8>,
}

impl AddressBounds {
    pub(crate) fn new(surroundings: &NetworkSurroundings) -> Self {
        let mut routes = BTreeMap::new();
        for route in &surroundings.routes {
            if is_default(&route.to) {
                continue;
            }
            // Two tables, or two paths, may differ: an address is on the LAN side when all agree.
            let side = routes.entry(route.to).or_insert(route.side);
            if route.side == RouteSide::Other {
                *side = RouteSide::Other;
            }
        }
        Self {
            lengths: routes.keys().map(IpPrefix::length).collect(),
            routes,
            own: surroundings.own.iter().copied().collect(),
            own_lengths: surroundings.own.iter().map(IpPrefix::length).collect(),
        }
    }

    /// The networks on the LAN side.
    pub(crate) fn lan_networks(&self) -> impl Iterator<Item = IpPrefix> {
        let lan = self
            .routes
            .iter()
            .filter(|(_, side)| **side == RouteSide::Lan);
        lan.map(|(prefix, _)| *prefix)
            .filter(|prefix| !is_special(prefix.address()))
    }

    /// Checks that a peer's flow may go to this server.
    pub(crate) fn check_server(
        &self,
        config: &EngineConfig,
        server: IpAddr,
    ) -> Result<(), OpenRefusal> {
        let server = server.to_canonical();
        let excluded = self.excluded(server);
        let Some(listed) = &config.serve else {
            return match excluded {
                Some(refusal) => Err(refusal),
                None if self.is_beside(&config.peers, server) => Ok(()),
                None => Err(OpenRefusal::ServerNotServed),
            };
        };
        let mut around = listed
            .iter()
            .filter(|prefix| prefix.contains(server))
            .peekable();
        if around.peek().is_none() {
            return Err(OpenRefusal::ServerNotListed);
        }
        match excluded {
            // Who lists a network does not mean this node, or a loopback address, within it.
            Some(refusal) if !around.any(|prefix| self.names_excluded(prefix)) => Err(refusal),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the source address of a connection for this peer's client, or the reason for
    /// refusing it.
    pub(crate) fn check_client(
        &self,
        config: &EngineConfig,
        peer: &PeerConfig,
        client: IpAddr,
        keep_client_address: bool,
    ) -> Result<SourceAddress, OpenRefusal> {
        if peer.prefixes.is_empty() {
            // Where peers' proxies may go was written down: the node's address is what they use.
            let is_allowed = config.serve_peers_without_prefixes
                || (!keep_client_address && config.serve.is_some());
            return match is_allowed {
                true => Ok(SourceAddress::Node),
                false => Err(OpenRefusal::PeerWithoutPrefixes),
            };
        }
        if !keep_client_address {
            return Ok(SourceAddress::Node);
        }
        let client = client.to_canonical();
        if self.excluded(client).is_some() || self.is_beside(&config.peers, client) {
            return Err(OpenRefusal::ClientIsHere);
        }
        let mut prefixes = peer.prefixes.iter();
        match prefixes.any(|prefix| prefix.contains(client)) {
            true => Ok(SourceAddress::Client),
            false => Err(OpenRefusal::ClientNotOfPeer),
        }
    }

    /// Checks that the rules for peers' connections allow this connection, whose client may have
    /// this address.
    pub(crate) fn check_rules(
        config: &EngineConfig,
        client: IpAddr,
        source: SourceAddress,
        server: SocketAddr,
    ) -> Result<(), OpenRefusal> {
        let address = server.ip().to_canonical();
        let matches = |rule: &&ServeRule| {
            let is_accepting = rule.action == ServeAction::Accept;
            let of_client = match source {
                SourceAddress::Client => holds(&rule.clients, client.to_canonical()),
                // Nobody has checked the address.
                SourceAddress::Node => rule.clients.is_empty() || !is_accepting,
            };
            // What a translator takes out of an address may be refused, and is not what was accepted.
            let mut inner = embedded(address).map(IpAddr::from);
            let to_server = holds(&rule.servers, address)
                || !is_accepting && inner.any(|inner| holds(&rule.servers, inner));
            of_client && to_server && has_port(&rule.ports, server.port())
        };
        match config.policy.serve_rules.iter().find(matches) {
            Some(rule) if rule.action == ServeAction::Refuse => Err(OpenRefusal::ServeRule),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns true if the address is in a network behind one of the LAN interfaces. An address
    /// that the configuration places behind a peer is not, even if it is routed there.
    fn is_beside(&self, peers: &[PeerConfig], address: IpAddr) -> bool {
        let Some((route, RouteSide::Lan)) = self.route(address) else {
            return false;
        };
        let behind = peers.iter().flat_map(|peer| &peer.prefixes);
        let longest = behind
            .filter(|prefix| prefix.contains(address))
            .map(IpPrefix::length)
            .max();
        longest.is_none_or(|length| length < route.length())
            && embedded(address).all(|inner| !self.is_elsewhere(inner.into()))
    }

    /// Returns true if a route other than a default route leads the address away from the LAN side.
    fn is_elsewhere(&self, address: IpAddr) -> bool {
        matches!(self.route(address), Some((_, RouteSide::Other)))
    }

    fn route(&self, address: IpAddr) -> Option<(IpPrefix, RouteSide)> {
        self.lengths.iter().rev().find_map(|length| {
            let prefix = IpPrefix::around(address, *length)?;
            self.routes.get(&prefix).map(|side| (prefix, *side))
        })
    }

    /// Returns the reason why no host may use the address as client or server unless it is listed
    /// by itself.
    fn excluded(&self, address: IpAddr) -> Option<OpenRefusal> {
        if is_special(address) {
            return Some(OpenRefusal::ServerIsNoHost);
        }
        if self.is_own(address) {
            return Some(OpenRefusal::ServerIsThisNode);
        }
        embedded(address).find_map(|inner| self.excluded(inner.into()))
    }

    fn is_own(&self, address: IpAddr) -> bool {
        let around = |length: &u8| IpPrefix::around(address, *length);
        let mut own = self.own_lengths.iter().filter_map(around);
        own.any(|prefix| self.own.contains(&prefix))
    }

    /// Returns true if all addresses of the prefix are excluded. An operator who lists such a
    /// prefix means these addresses.
    fn names_excluded(&self, prefix: &IpPrefix) -> bool {
        let is_host = prefix.length() == full_length(prefix.address());
        is_host
            || special_networks().any(|special| prefix.is_within(&special))
            || self.own.iter().any(|own| prefix.is_within(own))
    }
}

fn full_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn is_default(prefix: &IpPrefix) -> bool {
    let least = match prefix.address() {
        IpAddr::V4(_) => LEAST_LENGTH_V4,
        IpAddr::V6(_) => LEAST_LENGTH_V6,
    };
    prefix.length() < least
}

/// Returns true if no host on a routed network can have the address.
fn is_special(address: IpAddr) -> bool {
    special_networks().any(|special| special.contains(address))
        || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// RFC 6890 §2.2 (Information Registries), as far as no host can be reached there by routing.
fn special_networks() -> impl Iterator<Item = IpPrefix> {
    let v4 = [
        (Ipv4Addr::UNSPECIFIED, 8),
        (Ipv4Addr::new(127, 0, 0, 0), 8),
        (Ipv4Addr::new(169, 254, 0, 0), 16),
        (Ipv4Addr::new(224, 0, 0, 0), 4),
    ];
    let v6 = [
        // With it the unspecified and the loopback address, and the IPv4-compatible ones of
        // RFC 4291 §2.5.5.1, which nobody uses for anything honest.
        (Ipv6Addr::UNSPECIFIED, 96),
        (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
        (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
    ];
    let v4 = v4.map(|(address, length)| (IpAddr::from(address), length));
    let v6 = v6.map(|(address, length)| (IpAddr::from(address), length));
    let all = v4.into_iter().chain(v6);
    all.filter_map(|(address, length)| IpPrefix::around(address, length))
}

/// The IPv4 addresses that a translator or a tunnel may take out of an IPv6 address.
fn embedded(address: IpAddr) -> impl Iterator<Item = Ipv4Addr> {
    let found = match address {
        IpAddr::V4(_) => [None; 4],
        IpAddr::V6(address) => embedded_v6(address),
    };
    found.into_iter().flatten()
}

fn embedded_v6(address: Ipv6Addr) -> [Option<Ipv4Addr>; 4] {
    let words = address.segments();
    let bits = address.to_bits();
    let at = |shift: u32| Some(Ipv4Addr::from_bits((bits >> shift) as u32));
    // RFC 6052 §2.2: bits 64 to 71 are zero, and the address goes on behind them.
    let around_zero = |before: u32| {
        let high = (bits >> 64) as u32 & ((1 << before) - 1);
        let after = 32 - before;
        let low = ((bits >> (56 - after)) & ((1 << after) - 1)) as u32;
        Some(Ipv4Addr::from_bits(high << after | low))
    };
    match words {
        // 6to4 (RFC 3056).
        [0x2002, ..] => [at(80), None, None, None],
        // Teredo (RFC 4380 §4): the client's address, inverted, and the server's.
        [0x2001, 0, ..] => [
            Some(Ipv4Addr::from_bits(!(bits as u32))),
            at(64),
            None,
            None,
        ],
        // NAT64's well-known prefix (RFC 6052 §2.1).
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => [at(0), None, None, None],
        // NAT64's local prefix (RFC 8215), whose length only its translator knows.
        [0x64, 0xff9b, 1, ..] => [at(0), around_zero(16), around_zero(8), at(24)],
        // IPv4-translated (RFC 2765 §2.1).
        [0, 0, 0, 0, 0xffff, 0, _, _] => [at(0), None, None, None],
        // ISATAP (RFC 5214 §6.1), with and without the universal bit.
        [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => [at(0), None, None, None],
        _ => [None; 4],
    }
}

#[cfg(test)]
mod tests;
