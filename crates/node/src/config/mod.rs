//! A node's configuration: one TOML file, which is read, checked and refused as a whole.
//!
//! Errors are found before anything is started, and every error points at the line and names the
//! correction ([`ConfigError`]). Quantities carry units (`"256MiB"`, `"10s"`). Unknown keys are
//! refused, because a misspelt limit without effect is worse than a node that does not start. Paths
//! that are not set are derived from the state directory.
//!
//! It does not look at the machine (privileges, ports, tools); [`crate::preflight`] does, because
//! the same file may be checked on another machine.

mod accelerators;
mod interception;
mod located;
mod restrictions;
mod sections;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use accelerate::registry::AcceleratorRegistry;
use engine::{AcceptRule, IpPrefix};
use serde::Deserialize;
use toml::Spanned;
use toml::de::DeTable;
use tunnel::congestion::CongestionAlgorithm;
use tunnel::fec;
use vocab::ByteCount;

pub use interception::{
    ConnectionRule, InterceptRule, MarkMatch, PortRange, RuleAction, SurvivingResets,
};
pub use located::ConfigError;
pub use sections::InterceptMode;
use sections::{
    AcceptRuleSection, ConfigFile, FecMode, PeerSection, PortsSetting, ResetSurvivingSection,
    RuleSection, UdpCongestionControl, UdpMode, WanSection,
};

/// The least grace is none; more than this would outlast every service manager's patience.
const GREATEST_GRACE: Duration = Duration::from_secs(600);
/// Each rule is one rule of the kernel's for every new connection.
const ACCEPT_RULES_MAX: usize = 256;
/// A name becomes part of file names and of an nftables table's name.
const LONGEST_NAME: usize = 32;

/// A node's configuration, checked.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The file it came from, for messages.
    pub file: PathBuf,
    /// The text of the file.
    text: String,
    /// The node's name: lower-case letters, digits and `-`, 32 at most.
    pub name: String,
    /// The directory of identity, pins, invitations and the dictionary.
    pub state_directory: PathBuf,
    /// The interfaces behind which the clients and servers are.
    pub lan_interfaces: Vec<String>,
    /// The administration socket.
    pub admin_socket: PathBuf,
    /// The address where metrics are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// The time that flows may take to end by themselves when the node stops.
    pub grace: Duration,
    /// The WAN side.
    pub wan: WanConfig,
    /// Transparent interception.
    pub intercept: InterceptConfig,
    /// The explicit proxies.
    pub proxy: ProxyConfig,
    /// The peers, in the file's order.
    pub peers: Vec<ConfiguredPeer>,
    /// The dictionary's sizes: in memory, on disk (0: none).
    pub dictionary: DictionaryStorage,
    /// The limits.
    pub limits: engine::EngineLimits,
    /// The rules that decide how flows are handled.
    pub policy: engine::FlowPolicy,
    /// The files with the secrets of hosts; [`crate::credentials`] reads them into `policy`.
    pub credentials: CredentialFiles,
    /// Server ports that are never intercepted.
    pub bypass_ports: Vec<RangeInclusive<u16>>,
    /// The networks where this node opens connections for its peers; `None` means the networks that
    /// are routed out of the LAN interfaces.
    pub serve: Option<Vec<IpPrefix>>,
    /// True if peers without prefixes are served, from this node's own address.
    pub serve_peers_without_prefixes: bool,
}

/// The WAN side: where links are taken and how their sockets are set.
#[derive(Clone, Debug)]
pub struct WanConfig {
    /// The address where links are accepted; `None` for a node that only dials out.
    pub listen: Option<SocketAddr>,
    /// The kernel's name of a congestion control; the system's default when `None`.
    pub congestion_control: Option<String>,
    /// The bytes that may wait unsent in the kernel (TCP_NOTSENT_LOWAT): few, so that the session
    /// and not a filled queue decides the order of sending.
    pub unsent: ByteCount,
    /// True if flows may travel by UDP, at the same address and port as links.
    pub udp: bool,
    /// The settings of UDP, where it is used.
    pub datagrams: tunnel::transport::PathSettings,
}

/// Transparent interception.
#[derive(Clone, Debug)]
pub struct InterceptConfig {
    /// The mode of interception.
    pub mode: InterceptMode,
    /// The port that the kernel hands intercepted connections to, on the loopback addresses.
    pub port: u16,
    /// The value of the packet mark's top byte.
    pub mark: u8,
    /// The routing table that delivers marked packets locally.
    pub route_table: u32,
    /// Only connections whose SYN carries this mark are intercepted; all when `None`.
    pub only_marked: Option<MarkMatch>,
    /// The rules for interception. The first rule that matches decides; a connection that matches
    /// none is intercepted.
    pub rules: Vec<InterceptRule>,
    /// The connections that are reset once if they pass by; none when `None`.
    pub reset_surviving: Option<SurvivingResets>,
}

/// The explicit proxies.
#[derive(Clone, Debug, Default)]
pub struct ProxyConfig {
    /// The address of the SOCKS5 proxy (RFC 1928).
    pub socks5: Option<SocketAddr>,
    /// The address of the HTTP CONNECT proxy (RFC 9110 §9.3.6).
    pub http_connect: Option<SocketAddr>,
}

/// One peer.
#[derive(Clone, Debug)]
pub struct ConfiguredPeer {
    /// The name under which it is paired.
    pub name: String,
    /// The address to dial, as HOST:PORT; `None` when the peer dials this node.
    pub address: Option<String>,
    /// The destinations behind it.
    pub prefixes: Vec<IpPrefix>,
}

/// The dictionary's sizes, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DictionaryStorage {
    /// In memory.
    pub memory: ByteCount,
    /// On disk; 0 for none.
    pub disk: ByteCount,
    /// The file with the key that seals the dictionary on disk.
    pub key_file: PathBuf,
}

/// `[credentials]`: the files with the secrets that hosts' users and services have delegated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialFiles {
    /// The accounts whose signed and encrypted sessions may be worked on.
    pub accounts: Option<PathBuf>,
    /// The keys of services whose Kerberos sessions may be worked on.
    pub keytab: Option<PathBuf>,
}

impl NodeConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// When it cannot be read or is not a valid configuration; the message says where and what
    /// to write.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|cause| ConfigError::Unreadable {
            file: file.to_owned(),
            cause,
        })?;
        Self::parse(file, &text)
    }

    /// Checks a text that was read from `file`.
    ///
    /// # Errors
    /// When it is not a valid configuration.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let located = located::SourceText { file, text };
        let toml_error = |error| located.toml_error(&error, sections::KEYS);
        let mut table = DeTable::parse(text).map_err(toml_error)?;
        let accelerators = accelerators::take_accelerators(table.get_mut(), &located)?;
        let sections =
            ConfigFile::deserialize(toml::Deserializer::from(table)).map_err(toml_error)?;
        check(sections, accelerators, file, &located)
    }

    /// Returns true if this configuration is a prefix of `whole` and sets less: a file that is
    /// being written, or was truncated.
    #[must_use]
    pub fn is_cut_from(&self, whole: &Self) -> bool {
        let content = |config: &Self| toml::from_str::<toml::Table>(&config.text).ok();
        whole.text.starts_with(self.text.trim_end()) && content(self) != content(whole)
    }
}

fn check(
    sections: ConfigFile,
    accelerators: AcceleratorRegistry,
    file: &Path,
    located: &located::SourceText<'_>,
) -> Result<NodeConfig, ConfigError> {
    let ConfigFile {
        node,
        wan,
        intercept,
        proxy,
        peer: peers,
        dictionary,
        limits,
        policy,
        credentials,
    } = sections;

    check_name(&node.name, located)?;
    let name_span = node.name.span();
    let name = node.name.into_inner();
    let state_directory = node
        .state_directory
        .unwrap_or_else(|| PathBuf::from("/var/lib/trunkline").join(&name));
    if *node.grace.get_ref() > sections::DurationSetting(GREATEST_GRACE) {
        return Err(located.at(
            node.grace.span(),
            "the service manager kills a node that needs more than 10 minutes to stop; write \"600s\" or less",
        ));
    }
    for interface in &node.lan_interfaces {
        check_interface(interface, located)?;
    }
    if intercept.mode == InterceptMode::Transparent && node.lan_interfaces.is_empty() {
        return Err(located.at(
            name_span,
            "transparent interception needs lan_interfaces; write lan_interfaces = [\"eth1\"] under [node], \
             or mode = \"off\" under [intercept] if clients use only the proxies",
        ));
    }
    let rules = check_rules(
        intercept.rule,
        ", or set a packet mark in your own ruleset and write this mark in only_marked",
        located,
    )?;
    let reset_surviving = intercept
        .reset_surviving
        .map(|section| check_reset_surviving(section, located))
        .transpose()?;
    let peers = check_peers(peers, wan.listen, located)?;
    if limits.flows == 0 {
        return Err(ConfigError::Whole {
            file: file.to_owned(),
            message: "[limits] flows = 0 would bypass every connection; write 1 or more".to_owned(),
        });
    }

    for (name, percent) in [
        ("source_flows_percent", limits.source_flows_percent),
        ("peer_flows_percent", limits.peer_flows_percent),
    ] {
        if !(1..=100).contains(&percent) {
            return Err(ConfigError::Whole {
                file: file.to_owned(),
                message: format!(
                    "[limits] {name} = {percent} is not a percentage from 1 to 100; write a value in this \
                     range (100 switches the share off)"
                ),
            });
        }
    }

    let key_file = dictionary
        .key_file
        .unwrap_or_else(|| state_directory.join("dictionary.key"));
    Ok(NodeConfig {
        file: file.to_owned(),
        text: located.text.to_owned(),
        admin_socket: node
            .admin_socket
            .unwrap_or_else(|| state_directory.join("admin.sock")),
        name,
        state_directory,
        lan_interfaces: node
            .lan_interfaces
            .into_iter()
            .map(Spanned::into_inner)
            .collect(),
        metrics: node.metrics,
        grace: node.grace.into_inner().0,
        wan: WanConfig {
            datagrams: datagrams(&wan),
            listen: wan.listen,
            congestion_control: wan.congestion_control,
            unsent: wan.unsent,
            udp: wan.udp == UdpMode::Auto,
        },
        intercept: InterceptConfig {
            mode: intercept.mode,
            port: intercept.port.get(),
            mark: intercept.mark.get(),
            route_table: intercept.route_table,
            only_marked: intercept.only_marked,
            rules,
            reset_surviving,
        },
        proxy: ProxyConfig {
            socks5: proxy.socks5,
            http_connect: proxy.http_connect,
        },
        peers,
        dictionary: DictionaryStorage {
            memory: dictionary.memory,
            disk: dictionary.disk,
            key_file,
        },
        limits: engine::EngineLimits {
            flows: limits.flows,
            memory: limits.memory,
            source_flows_percent: limits.source_flows_percent,
            peer_flows_percent: limits.peer_flows_percent,
            ..engine::EngineLimits::default()
        },
        policy: engine::FlowPolicy {
            accept: policy.accept,
            accept_rules: accept_rules(policy.accept_rule, located)?,
            serve_rules: check_rules(policy.serve_rule, "", located)?
                .into_iter()
                .map(serve_rule)
                .collect(),
            accelerators,
            carry_only_ports: ranges(policy.carry_only_ports),
            never_store_prefixes: policy.never_store,
            never_store_ports: ranges(policy.never_store_ports),
        },
        credentials: CredentialFiles {
            accounts: credentials.accounts,
            keytab: credentials.keytab,
        },
        bypass_ports: ranges(policy.bypass_ports),
        serve: policy.serve,
        serve_peers_without_prefixes: policy.serve_peers_without_prefixes,
    })
}

/// Builds the rules that decide when clients are accepted.
fn accept_rules(
    sections: Vec<Spanned<AcceptRuleSection>>,
    located: &located::SourceText<'_>,
) -> Result<Vec<AcceptRule>, ConfigError> {
    if let Some(beyond) = sections.get(ACCEPT_RULES_MAX) {
        return Err(located.at(
            beyond.span(),
            &format!(
                "the configuration has more than {ACCEPT_RULES_MAX} rules of this kind; list several \
                 prefixes and ports in one rule"
            ),
        ));
    }
    let rules = sections.into_iter().map(|section| {
        let section = section.into_inner();
        AcceptRule {
            clients: without_contained(section.clients),
            servers: without_contained(section.servers),
            ports: joined(ranges(section.ports)),
            mode: section.accept,
        }
    });
    Ok(rules.collect())
}

fn ranges(ports: Vec<PortsSetting>) -> Vec<RangeInclusive<u16>> {
    ports.into_iter().map(|PortsSetting(range)| range).collect()
}

/// Returns the same prefixes without those inside another one: nft refuses overlaps.
fn without_contained(mut prefixes: Vec<IpPrefix>) -> Vec<IpPrefix> {
    prefixes.sort_by_key(IpPrefix::length);
    let mut widest: Vec<IpPrefix> = Vec::with_capacity(prefixes.len());
    for prefix in prefixes {
        if !widest.iter().any(|wider| wider.overlaps(&prefix)) {
            widest.push(prefix);
        }
    }
    widest
}

/// The same ports in order, with ranges that touch or overlap made one: nft refuses overlaps.
pub(crate) fn joined(mut ports: Vec<RangeInclusive<u16>>) -> Vec<RangeInclusive<u16>> {
    ports.sort_by_key(|range| *range.start());
    let mut joined: Vec<RangeInclusive<u16>> = Vec::with_capacity(ports.len());
    for range in ports {
        match joined.last_mut() {
            Some(last) if u32::from(*range.start()) <= u32::from(*last.end()) + 1 => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            Some(_) | None => joined.push(range),
        }
    }
    joined
}

fn datagrams(wan: &WanSection) -> tunnel::transport::PathSettings {
    tunnel::transport::PathSettings {
        fec: match wan.fec {
            FecMode::Auto => fec::RepairMode::Auto,
            FecMode::On => fec::RepairMode::On,
            FecMode::Off => fec::RepairMode::Off,
        },
        algorithm: match wan.udp_congestion_control {
            UdpCongestionControl::Bbr => CongestionAlgorithm::Bbr,
            UdpCongestionControl::Cubic => CongestionAlgorithm::Cubic,
        },
        rate_max: wan.rate_max,
        ..tunnel::transport::PathSettings::default()
    }
}

fn check_name(
    name: &Spanned<String>,
    located: &located::SourceText<'_>,
) -> Result<(), ConfigError> {
    if is_name(name.get_ref()) {
        return Ok(());
    }
    Err(located.at(
        name.span(),
        "a name must have 1 to 32 lower-case letters, digits and `-`, and must start with a letter, because \
         it becomes part of the names of files and of an nftables table; write a name such as \"branch-7\"",
    ))
}

/// Returns true if `text` is a valid name of a node or a peer.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.len() <= LONGEST_NAME
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Checks an interface name for a ruleset. A name that the kernel allows but nft would have to
/// quote is refused.
fn check_interface(
    interface: &Spanned<String>,
    located: &located::SourceText<'_>,
) -> Result<(), ConfigError> {
    let text = interface.get_ref();
    let fits = (1..16).contains(&text.len())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c));
    if fits {
        return Ok(());
    }
    Err(located.at(
        interface.span(),
        "this is not the name of a network interface; write a name that `ip link` shows, such as \"eth1\"",
    ))
}

fn check_reset_surviving(
    section: ResetSurvivingSection,
    located: &located::SourceText<'_>,
) -> Result<SurvivingResets, ConfigError> {
    if section.ports.get_ref().is_empty() {
        return Err(located.at(
            section.ports.span(),
            "an empty list matches no connection; remove [intercept.reset_surviving] to reset none",
        ));
    }
    let (least, greatest) = (interception::LEAST_IDLE, interception::GREATEST_IDLE);
    let (idle, after) = (section.idle.get_ref().0, section.after.get_ref().0);
    if !(least..=greatest).contains(&idle) {
        return Err(located.at(
            section.idle.span(),
            "this is too short to find an idle connection, or longer than a connection is watched; write a \
             time from \"2s\" to \"1800s\"",
        ));
    }
    if after > greatest {
        return Err(located.at(
            section.after.span(),
            "a connection is not watched for so long; write \"1800s\" or less",
        ));
    }
    Ok(SurvivingResets {
        ports: interception::merged(section.ports.into_inner()),
        idle,
        after,
    })
}

/// Checks the rules in order. `instead` names an alternative for a list that is too long.
fn check_rules<Action>(
    sections: Vec<Spanned<RuleSection<Action>>>,
    instead: &str,
    located: &located::SourceText<'_>,
) -> Result<Vec<ConnectionRule<Action>>, ConfigError> {
    let mut rules: Vec<ConnectionRule<Action>> = Vec::with_capacity(sections.len());
    for section in sections {
        let span = section.span();
        let section = section.into_inner();
        if rules.len() == interception::RULES_MAX {
            return Err(located.at(
                span,
                &format!(
                    "the configuration has more than {} rules of this kind; list several prefixes and ports \
                     in one rule{instead}",
                    interception::RULES_MAX
                ),
            ));
        }
        let matches_all = |rule: &ConnectionRule<Action>| {
            rule.clients.is_empty() && rule.servers.is_empty() && rule.ports.is_empty()
        };
        if let Some(earlier) = rules.iter().position(matches_all) {
            return Err(located.at(
                span,
                &format!(
                    "this rule has no effect, because rule {} above it matches every connection, and the \
                     first rule that matches decides; move rule {0} to the end",
                    earlier + 1
                ),
            ));
        }
        for (key, list) in [("clients", &section.clients), ("servers", &section.servers)] {
            if let Some(list) = list.as_ref().filter(|list| list.get_ref().is_empty()) {
                return Err(located.at(
                    list.span(),
                    &format!(
                        "an empty list matches no connection; remove {key} to match every connection"
                    ),
                ));
            }
        }
        if let Some(list) = section
            .ports
            .as_ref()
            .filter(|list| list.get_ref().is_empty())
        {
            return Err(located.at(
                list.span(),
                "an empty list matches no connection; remove ports to match every connection",
            ));
        }
        let prefixes = |list: Option<Spanned<Vec<IpPrefix>>>| {
            list.map_or(Vec::new(), |list| interception::widest(list.get_ref()))
        };
        rules.push(ConnectionRule {
            clients: prefixes(section.clients),
            servers: prefixes(section.servers),
            ports: section
                .ports
                .map_or(Vec::new(), |list| interception::merged(list.into_inner())),
            action: section.action,
        });
    }
    Ok(rules)
}

fn serve_rule(rule: ConnectionRule<engine::ServeAction>) -> engine::ServeRule {
    let ports = rule.ports.into_iter();
    engine::ServeRule {
        clients: rule.clients,
        servers: rule.servers,
        ports: ports.map(|ports| ports.first..=ports.last).collect(),
        action: rule.action,
    }
}

fn check_peers(
    sections: Vec<PeerSection>,
    listen: Option<SocketAddr>,
    located: &located::SourceText<'_>,
) -> Result<Vec<ConfiguredPeer>, ConfigError> {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut taken: Vec<(IpPrefix, String)> = Vec::new();
    let mut peers = Vec::new();
    for section in sections {
        check_name(&section.name, located)?;
        let span = section.name.span();
        let name = section.name.into_inner();
        if names.insert(name.clone(), span.start).is_some() {
            return Err(located.at(
                span,
                &format!(
                    "two [[peer]] sections have the name `{name}`; give each peer a different name"
                ),
            ));
        }
        let address = check_address(section.address, located)?;
        if address.is_none() && listen.is_none() {
            return Err(located.at(
                span,
                "no link to this peer is possible, because this peer has no address and this node has no \
                 [wan] listen; write address = \"HOST:PORT\" in this [[peer]], or listen = \"0.0.0.0:4433\" \
                 under [wan]",
            ));
        }
        let mut prefixes = Vec::new();
        for prefix in section.prefixes {
            let span = prefix.span();
            let prefix = prefix.into_inner();
            if let Some((other, owner)) = taken.iter().find(|(other, _)| other.overlaps(&prefix)) {
                return Err(located.at(
                    span,
                    &format!("`{prefix}` overlaps `{other}` of peer `{owner}`, but only one peer can serve \
                              a destination; write prefixes that do not overlap"),
                ));
            }
            taken.push((prefix, name.clone()));
            prefixes.push(prefix);
        }
        peers.push(ConfiguredPeer {
            name,
            address,
            prefixes,
        });
    }
    Ok(peers)
}

fn check_address(
    address: Option<Spanned<String>>,
    located: &located::SourceText<'_>,
) -> Result<Option<String>, ConfigError> {
    let Some(address) = address else {
        return Ok(None);
    };
    if is_host_and_port(address.get_ref()) {
        return Ok(Some(address.into_inner()));
    }
    Err(located.at(
        address.span(),
        "this is not an address with a port; write an address such as \"198.51.100.7:4433\", \
         \"[2001:db8::7]:4433\" or \"hub.example.net:4433\"",
    ))
}

/// Returns true if `text` is HOST:PORT with a port from 1 to 65535.
#[must_use]
pub fn is_host_and_port(text: &str) -> bool {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return address.port() != 0;
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let host_fits = (1..=253).contains(&host.len())
        && host
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
    host_fits && port.parse::<u16>().is_ok_and(|port| port != 0)
}

#[cfg(test)]
mod tests;
