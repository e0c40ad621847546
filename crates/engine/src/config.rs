//! What an operator can set of an engine: who serves what, what may be kept, how much of anything.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use reduce::{DictionaryConfig, DictionaryKey};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;
use vocab::{ByteCount, NodeId};

/// Everything an engine is told by its operator.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// This node.
    pub local: NodeId,
    /// The nodes it may have sessions with.
    pub peers: Vec<PeerConfig>,
    /// Where this node opens connections to on behalf of its peers; `None` means the networks
    /// behind the LAN interfaces ([`crate::NetworkSurroundings`]).
    pub serve: Option<Vec<IpPrefix>>,
    /// Whether a peer without prefixes is served, from this node's own address.
    pub serve_peers_without_prefixes: bool,
    /// What may not be exceeded.
    pub limits: EngineLimits,
    /// What is done with which flows.
    pub policy: FlowPolicy,
    /// The dictionary's sizes; read once, at the start.
    pub dictionary: DictionaryConfig,
    /// What seals the dictionary on disk; without one nothing is kept there.
    pub dictionary_key: Option<DictionaryKey>,
    /// The sessions' timing and windows; read when a peer is added.
    pub tunnel: tunnel::SessionConfig,
    /// The datagram paths'; read when one is started. What is remembered of a path, its packets'
    /// size and its seed are the engine's own to fill in.
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

/// One peer and what lies behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Its pinned identity.
    pub node: NodeId,
    /// What the operator calls it.
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

/// Limits with their units. At each of them new connections are passed by, not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Flows and direct connections at the same time.
    pub flows: usize,
    /// With so many of them interception ends and peers are told to open no more. Those that are on
    /// their way are still served, up to `flows`. [`usize::MAX`]: as `flows`.
    pub comfortable_flows: usize,
    /// Bytes held for all flows together (waiting, retained for repair, on their way to slow readers,
    /// and what the sessions keep). A quarter more, and the flows that hold most are reset.
    pub memory: ByteCount,
    /// What one client's address may have of `flows`, in per cent of what others leave; 100 is no
    /// limit of its own.
    pub source_flows_percent: u8,
    /// What one of several peers may have of `flows`, in per cent of what others leave.
    pub peer_flows_percent: u8,
}

impl Default for EngineLimits {
    /// 10,000 flows (each has two descriptors at most of the usual 2^20) and 256 MiB, a tenth
    /// of what a branch's 4 GB has left beside the dictionary.
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

/// When a client's connection is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AcceptMode {
    /// At once where a connection through the peer has succeeded before, else after the server.
    #[default]
    Learned,
    /// After the server has accepted it, so that the client sees what the server does.
    AfterServer,
    /// Before the server is asked, which saves a round trip; a closed port looks open.
    AtOnce,
}

/// When the connections of some clients to some servers are accepted. An empty list matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptRule {
    /// Where the connection comes from.
    pub clients: Vec<IpPrefix>,
    /// Where it goes.
    pub servers: Vec<IpPrefix>,
    /// The server's ports.
    pub ports: Vec<RangeInclusive<u16>>,
    /// When it is accepted.
    pub mode: AcceptMode,
}

impl AcceptRule {
    fn matches(&self, client: IpAddr, server: SocketAddr) -> bool {
        holds(&self.clients, client)
            && holds(&self.servers, server.ip())
            && has_port(&self.ports, server.port())
    }
}

/// Whether an address is in a rule's list; an empty list holds all.
pub(crate) fn holds(prefixes: &[IpPrefix], address: IpAddr) -> bool {
    prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.contains(address))
}

/// Whether a port is in a rule's list; an empty list has all.
pub(crate) fn has_port(ports: &[RangeInclusive<u16>], port: u16) -> bool {
    ports.is_empty() || is_listed(ports, port)
}

fn is_listed(ports: &[RangeInclusive<u16>], port: u16) -> bool {
    ports.iter().any(|ports| ports.contains(&port))
}

/// Whether this node opens the connections of some peers' clients to some servers, where [`EngineConfig::serve`] lets
/// it. An empty list matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeRule {
    /// Where the connection comes from. A client that goes by the peer's proxy, or whose peer has no prefixes,
    /// may be any: a rule that refuses takes it to be one of these, and one that accepts does not.
    pub clients: Vec<IpPrefix>,
    /// Where it goes.
    pub servers: Vec<IpPrefix>,
    /// The server's ports.
    pub ports: Vec<RangeInclusive<u16>>,
    /// What becomes of it.
    pub action: ServeAction,
}

/// What becomes of the connections that a [`ServeRule`] matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServeAction {
    /// They are opened.
    Accept,
    /// They are refused, as all others that the policy forbids.
    Refuse,
}

/// Rules that say what is done with which flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowPolicy {
    /// When a client is accepted to whom none of [`Self::accept_rules`] applies.
    pub accept: AcceptMode,
    /// The first rule that matches says when a client is accepted.
    pub accept_rules: Vec<AcceptRule>,
    /// The first rule that matches says whether a peer's connection is opened; one to which none of them applies
    /// is.
    pub serve_rules: Vec<ServeRule>,
    /// Flows to these server ports are not reduced or accelerated, only carried.
    pub carry_only_ports: Vec<RangeInclusive<u16>>,
    /// Content of flows to these destinations is never stored in the dictionary.
    pub never_store_prefixes: Vec<IpPrefix>,
    /// Content of flows to these server ports is never stored in the dictionary.
    pub never_store_ports: Vec<RangeInclusive<u16>>,
    /// The protocols' accelerators and what is set of them.
    pub accelerators: accelerate::registry::AcceleratorRegistry,
}

impl FlowPolicy {
    /// When a connection of `client` to `server` is accepted.
    #[must_use]
    pub fn accept_mode(&self, client: IpAddr, server: SocketAddr) -> AcceptMode {
        let mut rules = self.accept_rules.iter();
        let rule = rules.find(|rule| rule.matches(client, server));
        rule.map_or(self.accept, |rule| rule.mode)
    }

    /// Whether the content of a flow to `server` may be kept in the dictionary.
    #[must_use]
    pub fn may_store(&self, server: SocketAddr) -> bool {
        !is_listed(&self.never_store_ports, server.port())
            && !self
                .never_store_prefixes
                .iter()
                .any(|prefix| prefix.contains(server.ip()))
    }

    /// Whether a flow to `server` is only carried.
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

    /// How many leading bits all its addresses share.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether `address` lies in it. An IPv4 address never lies in an IPv6 prefix.
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

    /// Whether all its addresses are in the other one.
    #[must_use]
    pub fn is_within(&self, other: &IpPrefix) -> bool {
        self.length >= other.length && other.contains(self.address)
    }

    /// Whether the two share an address.
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
    #[error("`{0}` has bits set behind its length; did you mean `{1}`?")]
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
    fn the_first_rule_that_matches_says_when_a_client_is_accepted() {
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
