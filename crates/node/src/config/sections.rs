//! The sections of the file, their keys and their defaults.
//!
//! Each default stands beside its key with its reason. [`KEYS`] lists all keys, so that the error
//! for a misspelt one can suggest the nearest.

use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroU16};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use engine::{AcceptMode, IpPrefix, ServeAction};
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;
use vocab::{Bitrate, ByteCount};

use super::interception::{MarkMatch, PortRange, RuleAction};

/// Every key and section name, for suggestions.
pub(super) const KEYS: &[&str] = &[
    "node",
    "wan",
    "intercept",
    "proxy",
    "peer",
    "dictionary",
    "limits",
    "policy",
    "credentials",
    "name",
    "state_directory",
    "lan_interfaces",
    "admin_socket",
    "metrics",
    "grace",
    "listen",
    "congestion_control",
    "unsent",
    "udp",
    "fec",
    "udp_congestion_control",
    "rate_max",
    "mode",
    "port",
    "mark",
    "route_table",
    "only_marked",
    "rule",
    "reset_surviving",
    "idle",
    "after",
    "clients",
    "servers",
    "ports",
    "action",
    "socks5",
    "http_connect",
    "address",
    "prefixes",
    "memory",
    "disk",
    "key_file",
    "flows",
    "source_flows_percent",
    "peer_flows_percent",
    "bypass_ports",
    "accept",
    "accept_rule",
    "clients",
    "servers",
    "ports",
    "carry_only_ports",
    "never_store",
    "never_store_ports",
    "serve",
    "serve_rule",
    "serve_peers_without_prefixes",
    "accounts",
    "keytab",
];

/// The sections of [`ConfigFile`]; those of accelerators stand beside them.
pub(super) const SECTIONS: &[&str] = &[
    "node",
    "wan",
    "intercept",
    "proxy",
    "peer",
    "dictionary",
    "limits",
    "policy",
    "credentials",
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    pub(super) node: NodeSection,
    #[serde(default)]
    pub(super) wan: WanSection,
    #[serde(default)]
    pub(super) intercept: InterceptSection,
    #[serde(default)]
    pub(super) proxy: ProxySection,
    #[serde(default)]
    pub(super) peer: Vec<PeerSection>,
    #[serde(default)]
    pub(super) dictionary: DictionarySection,
    #[serde(default)]
    pub(super) limits: LimitsSection,
    #[serde(default)]
    pub(super) policy: PolicySection,
    #[serde(default)]
    pub(super) credentials: CredentialsSection,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeSection {
    pub(super) name: Spanned<String>,
    /// `/var/lib/trunkline/NAME`, where the systemd unit makes it.
    pub(super) state_directory: Option<PathBuf>,
    #[serde(default)]
    pub(super) lan_interfaces: Vec<Spanned<String>>,
    /// `admin.sock` in the state directory.
    pub(super) admin_socket: Option<PathBuf>,
    pub(super) metrics: Option<SocketAddr>,
    #[serde(default = "grace")]
    pub(super) grace: Spanned<DurationSetting>,
}

/// Ten seconds: most requests end within it, and service managers wait longer.
fn grace() -> Spanned<DurationSetting> {
    Spanned::new(0..0, DurationSetting(Duration::from_secs(10)))
}

/// A time with its unit.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct DurationSetting(pub(super) Duration);

impl<'de> Deserialize<'de> for DurationSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        vocab::parse_duration(&text)
            .map(DurationSetting)
            .map_err(de::Error::custom)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WanSection {
    pub(super) listen: Option<SocketAddr>,
    pub(super) congestion_control: Option<String>,
    pub(super) unsent: ByteCount,
    pub(super) udp: UdpMode,
    pub(super) fec: FecMode,
    pub(super) udp_congestion_control: UdpCongestionControl,
    pub(super) rate_max: Option<Bitrate>,
}

/// The use of UDP for flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum UdpMode {
    /// Where the peer takes it and it gets through.
    #[default]
    Auto,
    /// By TLS over TCP alone.
    Off,
}

/// The use of redundant packets that repair losses in advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FecMode {
    /// Where a loss would cost a round trip that someone waits for.
    #[default]
    Auto,
    /// All the time, as much as the losses require.
    On,
    /// Never.
    Off,
}

/// The algorithm that decides how fast packets are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum UdpCongestionControl {
    /// A model of the path (draft-ietf-ccwg-bbr).
    #[default]
    Bbr,
    /// RFC 9438, for paths that are shared with CUBIC alone.
    Cubic,
}

impl Default for WanSection {
    fn default() -> Self {
        Self {
            listen: None,
            congestion_control: None,
            // 5 ms at 200 Mbit/s: enough that the kernel never waits for a wake-up of ours,
            // little enough that a small flow's frame does not queue long behind a bulk one's.
            unsent: ByteCount::kibibytes(128),
            udp: UdpMode::default(),
            fec: FecMode::default(),
            udp_congestion_control: UdpCongestionControl::default(),
            rate_max: None,
        }
    }
}

/// The mode of transparent interception.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterceptMode {
    /// By nftables TPROXY; needs CAP_NET_ADMIN.
    Transparent,
    /// No interception: clients come by the explicit proxies, or the node only serves its peers.
    #[default]
    Off,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct InterceptSection {
    pub(super) mode: InterceptMode,
    pub(super) port: NonZeroU16,
    pub(super) mark: NonZeroU8,
    pub(super) route_table: u32,
    pub(super) only_marked: Option<MarkMatch>,
    pub(super) rule: Vec<Spanned<RuleSection<RuleAction>>>,
    pub(super) reset_surviving: Option<ResetSurvivingSection>,
}

/// `[intercept.reset_surviving]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetSurvivingSection {
    pub(super) ports: Spanned<Vec<PortRange>>,
    #[serde(default = "surviving_idle")]
    pub(super) idle: Spanned<DurationSetting>,
    #[serde(default = "surviving_after")]
    pub(super) after: Spanned<DurationSetting>,
}

/// A quarter of the interval at which the clients of Linux send a message on an idle SMB connection.
fn surviving_idle() -> Spanned<DurationSetting> {
    Spanned::new(0..0, DurationSetting(Duration::from_secs(15)))
}

/// Twice that interval: all connections of a client have been seen by then.
fn surviving_after() -> Spanned<DurationSetting> {
    Spanned::new(0..0, DurationSetting(Duration::from_secs(120)))
}

/// One `[[intercept.rule]]` or `[[policy.serve_rule]]`; a list that is left out matches everything.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleSection<Action> {
    pub(super) clients: Option<Spanned<Vec<IpPrefix>>>,
    pub(super) servers: Option<Spanned<Vec<IpPrefix>>>,
    pub(super) ports: Option<Spanned<Vec<PortRange>>>,
    pub(super) action: Action,
}

impl Default for InterceptSection {
    fn default() -> Self {
        Self {
            mode: InterceptMode::default(),
            port: NonZeroU16::new(4434).expect("4434 is not zero"),
            // The letter t; a top byte that no common tool (Docker, kube-proxy, Tailscale) uses.
            mark: NonZeroU8::new(0x74).expect("0x74 is not zero"),
            // Above the tables 0-255 that administrators number by hand.
            route_table: 7443,
            only_marked: None,
            rule: Vec::new(),
            reset_surviving: None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ProxySection {
    pub(super) socks5: Option<SocketAddr>,
    pub(super) http_connect: Option<SocketAddr>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeerSection {
    pub(super) name: Spanned<String>,
    pub(super) address: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) prefixes: Vec<Spanned<IpPrefix>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DictionarySection {
    pub(super) memory: ByteCount,
    pub(super) disk: ByteCount,
    pub(super) key_file: Option<PathBuf>,
}

impl Default for DictionarySection {
    /// Sets a sixteenth of a branch's 4 GB in memory, and on disk the space that a small system
    /// volume can spare.
    fn default() -> Self {
        Self {
            memory: ByteCount::mebibytes(256),
            disk: ByteCount::mebibytes(4096),
            key_file: None,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitsSection {
    pub(super) flows: usize,
    pub(super) memory: ByteCount,
    pub(super) source_flows_percent: u8,
    pub(super) peer_flows_percent: u8,
}

impl Default for LimitsSection {
    fn default() -> Self {
        let limits = engine::EngineLimits::default();
        Self {
            flows: limits.flows,
            memory: limits.memory,
            source_flows_percent: limits.source_flows_percent,
            peer_flows_percent: limits.peer_flows_percent,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PolicySection {
    pub(super) accept: AcceptMode,
    pub(super) accept_rule: Vec<Spanned<AcceptRuleSection>>,
    pub(super) bypass_ports: Vec<PortsSetting>,
    pub(super) carry_only_ports: Vec<PortsSetting>,
    pub(super) never_store: Vec<IpPrefix>,
    pub(super) never_store_ports: Vec<PortsSetting>,
    /// The networks behind `lan_interfaces`, followed as routes change.
    pub(super) serve: Option<Vec<IpPrefix>>,
    pub(super) serve_rule: Vec<Spanned<RuleSection<ServeAction>>>,
    /// Off: servers may trust this node's own address more than a peer's clients.
    pub(super) serve_peers_without_prefixes: bool,
}

/// The files with the secrets that hosts' users and services have delegated.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CredentialsSection {
    pub(super) accounts: Option<PathBuf>,
    pub(super) keytab: Option<PathBuf>,
}

/// One `[[policy.accept_rule]]`; a list that is left out matches everything.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcceptRuleSection {
    #[serde(default)]
    pub(super) clients: Vec<IpPrefix>,
    #[serde(default)]
    pub(super) servers: Vec<IpPrefix>,
    #[serde(default)]
    pub(super) ports: Vec<PortsSetting>,
    pub(super) accept: AcceptMode,
}

/// Ports from the first to the last, written as 443 or "8000-8099".
#[derive(Clone, Debug)]
pub(super) struct PortsSetting(pub(super) RangeInclusive<u16>);

impl<'de> Deserialize<'de> for PortsSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let range = PortRange::deserialize(deserializer)?;
        Ok(Self(range.first..=range.last))
    }
}
