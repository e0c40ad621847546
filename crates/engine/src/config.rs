//! The operator's settings of an engine: the networks that it serves, the content that it may
//! store, and its limits.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use reduce::{DictionaryConfig, DictionaryKey};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;
use vocab::{ByteCount, NodeId};

use crate::accelerators::default_registry;

/// The operator's settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// This node.
    pub local: NodeId,
    /// The nodes it may have sessions with.
    pub peers: Vec<PeerConfig>,
    /// The networks to which this node opens connections for its peers; `None` means the networks
    /// behind the LAN interfaces ([`crate::NetworkSurroundings`]).
    pub serve: Option<Vec<IpPrefix>>,
    /// True if a peer without prefixes is served, from this node's own address.
    pub serve_peers_without_prefixes: bool,
    /// The limits.
    pub limits: EngineLimits,
    /// The rules that decide how flows are handled.
    pub policy: FlowPolicy,
    /// The dictionary's sizes; read once, at the start.
    pub dictionary: DictionaryConfig,
    /// The key that seals the dictionary on disk. `None` keeps nothing on disk.
    pub dictionary_key: Option<DictionaryKey>,
    /// The sessions' timing and windows; read when a peer is added.
    pub tunnel: tunnel::SessionConfig,
    /// The settings of datagram paths, read when one is started. The engine fills in the remembered
    /// properties of a path, its packet size and its seed.
    pub datagrams: tunnel::transport::PathSettings,
}

impl EngineConfig {
    /// The peer with the longest prefix around the address.
    pub(crate) fn peer_for(&self, server: IpAddr) -> Option<NodeId> {
        let serving = self.peers.iter();
        let serving = serving.filter_map(|peer| Some((peer.serves(server)?, peer.node)));
        serving
            .max_by_key(|(length, _)| *length)
            .map(|(_, node)| node)
    }
}

/// One peer and the networks behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Its pinned identity.
    pub node: NodeId,
    /// The operator's name for the peer.
    pub name: String,
    /// The destinations that it serves; the longest matching prefix of all peers wins.
    pub prefixes: Vec<IpPrefix>,
}

impl PeerConfig {
    /// The length of the longest prefix that holds the address.
    pub(crate) fn serves(&self, address: IpAddr) -> Option<u8> {
        let prefixes = self.prefixes.iter();
        let around = prefixes.filter(|prefix| prefix.contains(address));
        around.map(IpPrefix::length).max()
    }
}

/// Limits with their units. At a limit new connections bypass the node and are not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Flows and direct connections at the same time.
    pub flows: usize,
    /// The number of flows at which interception ends and peers are asked to open no more. Flows in
    /// transit are still served, up to `flows`. [`usize::MAX`]: as `flows`.
    pub comfortable_flows: usize,
    /// The bytes held for all flows together (waiting, retained for repair, in transit to slow
    /// readers, and the memory of the sessions). At a quarter more, the flows that hold most are
    /// reset.
    pub memory: ByteCount,
    /// The share of `flows` that one client's address may use, in per cent of the flows that others
    /// leave; 100 sets no limit.
    pub source_flows_percent: u8,
    /// The share of `flows` that one of several peers may use, in per cent of the flows that others
    /// leave.
    pub peer_flows_percent: u8,
}

impl Default for EngineLimits {
    /// Sets 10,000 flows (each uses at most two descriptors of the usual 2^20) and 256 MiB, a tenth
    /// of the memory that a branch's 4 GB leaves beside the dictionary.
    fn default() -> Self {
        Self {
            flows: 10_000,
            comfortable_flows: usize::MAX,
            memory: ByteCount::mebibytes(256),
            // A terminal server, or a site behind NAT, is one source: half of all flows are
            // enough for it. It leaves as many for all others.
            source_flows_percent: 50,
            peer_flows_percent: 50,
        }
    }
}

/// The moment at which a client's connection is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AcceptMode {
    /// At once where a connection through the peer has succeeded before, else after the server.
    #[default]
    Learned,
    /// After the server has accepted it, so that the client sees the server's behaviour.
    AfterServer,
    /// Before the server answers, which saves a round trip; a closed port looks open.
    AtOnce,
}

/// A rule that decides when connections of some clients to some servers are accepted. An empty list
/// matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptRule {
    /// The clients of the connection.
    pub clients: Vec<IpPrefix>,
    /// The servers of the connection.
    pub servers: Vec<IpPrefix>,
    /// The server's ports.
    pub ports: Vec<RangeInclusive<u16>>,
    /// The moment at which it is accepted.
    pub mode: AcceptMode,
}

impl AcceptRule {
    fn matches(&self, client: IpAddr, server: SocketAddr) -> bool {
        holds(&self.clients, client)
            && holds(&self.servers, server.ip())
            && has_port(&self.ports, server.port())
    }
}

/// Returns true if an address is in a rule's list. An empty list contains every address.
pub(crate) fn holds(prefixes: &[IpPrefix], address: IpAddr) -> bool {
    prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.contains(address))
}

/// Returns true if a port is in a rule's list. An empty list contains every port.
pub(crate) fn has_port(ports: &[RangeInclusive<u16>], port: u16) -> bool {
    ports.is_empty() || is_listed(ports, port)
}

fn is_listed(ports: &[RangeInclusive<u16>], port: u16) -> bool {
    ports.iter().any(|ports| ports.contains(&port))
}

/// A rule that allows or refuses connections of some peers' clients to some servers, within
/// [`EngineConfig::serve`]. An empty list matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeRule {
    /// The clients of the connection. The client of a peer's proxy, or of a peer without prefixes,
    /// may be any: a refusing rule matches it, and an accepting rule does not.
    pub clients: Vec<IpPrefix>,
    /// The servers of the connection.
    pub servers: Vec<IpPrefix>,
    /// The server's ports.
    pub ports: Vec<RangeInclusive<u16>>,
    /// The action for connections that match.
    pub action: ServeAction,
}

/// The action for connections that a [`ServeRule`] matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServeAction {
    /// They are opened.
    Accept,
    /// They are refused, as all others that the policy forbids.
    Refuse,
}

/// The rules that decide how flows are handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPolicy {
    /// The moment at which a client is accepted to whom none of [`Self::accept_rules`] applies.
    pub accept: AcceptMode,
    /// The rules for accepting clients. The first match decides.
    pub accept_rules: Vec<AcceptRule>,
    /// The rules for opening peers' connections. The first match decides; a connection without a
    /// match is opened.
    pub serve_rules: Vec<ServeRule>,
    /// Flows to these server ports are not reduced or accelerated, only carried.
    pub carry_only_ports: Vec<RangeInclusive<u16>>,
    /// Content of flows to these destinations is never stored in the dictionary.
    pub never_store_prefixes: Vec<IpPrefix>,
    /// Content of flows to these server ports is never stored in the dictionary.
    pub never_store_ports: Vec<RangeInclusive<u16>>,
    /// The protocols' accelerators and their settings.
    pub accelerators: accelerate::registry::AcceleratorRegistry,
}

impl Default for FlowPolicy {
    /// No rules, and every accelerator with its default settings.
    fn default() -> Self {
        Self {
            accept: AcceptMode::default(),
            accept_rules: Vec::new(),
            serve_rules: Vec::new(),
            carry_only_ports: Vec::new(),
            never_store_prefixes: Vec::new(),
            never_store_ports: Vec::new(),
            accelerators: default_registry(),
        }
    }
}

impl FlowPolicy {
    /// Returns the moment at which a connection of `client` to `server` is accepted.
    #[must_use]
    pub fn accept_mode(&self, client: IpAddr, server: SocketAddr) -> AcceptMode {
        let mut rules = self.accept_rules.iter();
        let rule = rules.find(|rule| rule.matches(client, server));
        rule.map_or(self.accept, |rule| rule.mode)
    }

    /// Returns true if the content of a flow to `server` may be stored in the dictionary.
    #[must_use]
    pub fn may_store(&self, server: SocketAddr) -> bool {
        !is_listed(&self.never_store_ports, server.port())
            && !self
                .never_store_prefixes
                .iter()
                .any(|prefix| prefix.contains(server.ip()))
    }

    /// Returns true if a flow to `server` is carried without reduction or acceleration.
    #[must_use]
    pub fn carry_only(&self, server: SocketAddr) -> bool {
        is_listed(&self.carry_only_ports, server.port())
    }
}

/// An address prefix in CIDR form, its host bits zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpPrefix {
    address: IpAddr,
    length: u8,
}

impl IpPrefix {
    /// The prefix of this length around an address; `None` when an address has fewer bits.
    #[must_use]
    pub fn around(address: IpAddr, length: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(_) if length > 32 => return None,
            IpAddr::V6(_) if length > 128 => return None,
            IpAddr::V4(address) => {
                let kept = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                IpAddr::V4((address.to_bits() & kept).into())
            }
            IpAddr::V6(address) => {
                let kept = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                IpAddr::V6((address.to_bits() & kept).into())
            }
        };
        Some(Self { address, length })
    }

    /// The first address of the prefix.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The number of leading bits that all its addresses share.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Returns true if the prefix contains `address`. An IPv6 prefix never contains an IPv4
    /// address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(prefix), IpAddr::V4(address)) => {
                let kept = u32::MAX
                    .checked_shl(32 - u32::from(self.length))
                    .unwrap_or(0);
                prefix.to_bits() == address.to_bits() & kept
            }
            (IpAddr::V6(prefix), IpAddr::V6(address)) => {
                let kept = u128::MAX
                    .checked_shl(128 - u32::from(self.length))
                    .unwrap_or(0);
                prefix.to_bits() == address.to_bits() & kept
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// Returns true if the other prefix contains all addresses of this one.
    #[must_use]
    pub fn is_within(&self, other: &IpPrefix) -> bool {
        self.length >= other.length && other.contains(self.address)
    }

    /// Returns true if the two prefixes share an address.
    #[must_use]
    pub fn overlaps(&self, other: &IpPrefix) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

/// A text that is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParsePrefixError {
    /// Not of the form address/length.
    #[error("`{0}` is not a prefix; write it as \"198.51.100.0/24\" or \"2001:db8::/64\"")]
    Form(String),
    /// Bits are set behind the length: two readers would take it for two different prefixes.
    #[error("`{0}` has bits set after its prefix length; did you mean `{1}`?")]
    HostBits(String, IpPrefix),
}

impl FromStr for IpPrefix {
    type Err = ParsePrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || ParsePrefixError::Form(text.to_owned());
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| form())?;
        let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            Some(length) => length.parse().map_err(|_| form())?,
            None => bits,
        };
        let prefix = Self::around(address, length).ok_or_else(form)?;
        if prefix.address != address {
            return Err(ParsePrefixError::HostBits(text.to_owned(), prefix));
        }
        Ok(prefix)
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.length)
    }
}

impl Serialize for IpPrefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IpPrefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> IpPrefix {
        text.parse().unwrap()
    }

    #[test]
    fn a_prefix_holds_its_addresses_and_no_others() {
        let net = prefix("198.18.2.0/24");
        assert!(net.contains("198.18.2.255".parse().unwrap()));
        assert!(net.contains("::ffff:198.18.2.1".parse().unwrap()));
        assert!(!net.contains("198.18.3.0".parse().unwrap()));
        assert!(!net.contains("2001:2::1".parse().unwrap()));
        assert!(prefix("0.0.0.0/0").contains("203.0.113.9".parse().unwrap()));
        assert!(prefix("::/0").contains("2001:2::1".parse().unwrap()));
        assert!(prefix("2001:2:0:2::/64").contains("2001:2:0:2::9".parse().unwrap()));
    }

    #[test]
    fn first_matching_accept_rule_decides() {
        let rule = |clients: &[&str], servers: &[&str], ports, mode| AcceptRule {
            clients: clients.iter().map(|text| prefix(text)).collect(),
            servers: servers.iter().map(|text| prefix(text)).collect(),
            ports,
            mode,
        };
        let policy = FlowPolicy {
            accept: AcceptMode::Learned,
            accept_rules: vec![
                rule(&["198.18.1.9"], &[], vec![], AcceptMode::AtOnce),
                rule(
                    &[],
                    &["198.18.2.0/24"],
                    vec![80..=89],
                    AcceptMode::AfterServer,
                ),
            ],
            ..FlowPolicy::default()
        };
        let mode = |client: &str, server: &str| {
            policy.accept_mode(client.parse().unwrap(), server.parse().unwrap())
        };
        assert_eq!(mode("198.18.1.9", "198.18.2.2:80"), AcceptMode::AtOnce);
        assert_eq!(mode("198.18.1.2", "198.18.2.2:89"), AcceptMode::AfterServer);
        assert_eq!(mode("198.18.1.2", "198.18.2.2:90"), AcceptMode::Learned);
        assert_eq!(mode("198.18.1.2", "198.18.3.2:80"), AcceptMode::Learned);
    }

    #[test]
    fn overlap_is_seen_from_both_sides() {
        assert!(prefix("10.0.0.0/8").overlaps(&prefix("10.1.0.0/16")));
        assert!(prefix("10.1.0.0/16").overlaps(&prefix("10.0.0.0/8")));
        assert!(!prefix("10.0.0.0/16").overlaps(&prefix("10.1.0.0/16")));
    }

    #[test]
    fn errors_say_what_was_meant() {
        let error = "198.18.2.7/24".parse::<IpPrefix>().unwrap_err();
        assert!(error.to_string().contains("did you mean `198.18.2.0/24`"));
        assert!("198.18.2.0/33".parse::<IpPrefix>().is_err());
        assert_eq!(prefix("198.18.2.7").to_string(), "198.18.2.7/32");
    }
}
