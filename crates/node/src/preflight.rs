//! The report of `trunkline node check` beyond the file itself: the node's behaviour, and the
//! obstacles on this machine.
//!
//! An obstacle keeps the node from starting or from working; `check` then exits with 1, so that
//! `ExecStartPre` of the systemd unit stops there. A warning does not. A peer that is not paired
//! yet is a warning where this node listens, because the node must run to be paired. It is an
//! obstacle where the node only dials and has no peer at all: `peer join` needs no running node.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::admin::{self, AdminRequest, NO_SOCKET};
use crate::config::{InterceptMode, NodeConfig};
use crate::credentials::{self, CredentialsError, keytab_file};
use crate::dictionary_key::{self, DictionaryKeyError};
use crate::identity::{IdentityError, NodeIdentity};
use crate::pairing::{LoadedPins, PinDirectory};
use crate::private_directory::{check_state_directory, node_user, other_owner};
use crate::{intercept, surroundings, sys, wan};

/// Describes in a few lines the behaviour of a node with this configuration.
#[must_use]
pub fn describe(config: &NodeConfig) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<12} {value}");
    };
    line("node", config.name.clone());
    let identity = match NodeIdentity::load(&config.state_directory) {
        Ok(identity) => identity.node().to_string(),
        Err(_) => "none yet; the node creates it on the first run".to_owned(),
    };
    line("identity", identity);
    line("state", config.state_directory.display().to_string());
    let interception = match config.intercept.mode {
        InterceptMode::Transparent => format!(
            "transparent, from {}, table inet {}",
            config.lan_interfaces.join(", "),
            intercept::table_name(&config.name)
        ),
        InterceptMode::Off => "off".to_owned(),
    };
    line("interception", interception);
    if let Some(address) = config.proxy.socks5 {
        line("socks5", address.to_string());
    }
    if let Some(address) = config.proxy.http_connect {
        line("http connect", address.to_string());
    }
    let listen = config.wan.listen.map_or(
        "off; the node only connects to its peers' addresses".to_owned(),
        |address| address.to_string(),
    );
    line("wan", listen);
    line("serves", serves(config));
    let controls = wan::known_congestion_controls();
    line(
        "congestion",
        config.wan.congestion_control.clone().unwrap_or_else(|| {
            format!(
                "the system's ({})",
                controls.first().map_or("unknown", |name| name)
            )
        }),
    );
    line(
        "dictionary",
        format!(
            "{} in memory, {} on disk",
            config.dictionary.memory, config.dictionary.disk
        ),
    );
    if let Some(path) = &config.credentials.accounts {
        line("accounts", path.display().to_string());
    }
    if let Some(path) = &config.credentials.keytab {
        let node = node_user(&config.state_directory);
        let keys = keytab_file::load_for(path, node).map_or(String::new(), |keytab| {
            format!(", with keys of {}", keytab.principals().join(", "))
        });
        line("keytab", format!("{}{keys}", path.display()));
    }
    for one in config.policy.accelerators.iter() {
        let settings = one.settings.lines().into_iter();
        let settings: Vec<String> = settings
            .map(|(key, value)| format!("{key} = {value}"))
            .collect();
        if !settings.is_empty() {
            line(one.entry.name, settings.join(", "));
        }
    }
    line(
        "limits",
        format!(
            "{} flows, {} buffered",
            config.limits.flows, config.limits.memory
        ),
    );
    line(
        "metrics",
        config
            .metrics
            .map_or("off".to_owned(), |address| address.to_string()),
    );
    let LoadedPins { pins, damaged } = PinDirectory::new(&config.state_directory)
        .load_all()
        .unwrap_or_default();
    for peer in &config.peers {
        let prefixes: Vec<String> = peer.prefixes.iter().map(ToString::to_string).collect();
        let how = match &peer.address {
            Some(address) => format!("this node connects to {address}"),
            None => "the peer connects to this node".to_owned(),
        };
        let paired = match pins.get(&peer.name) {
            Some(pin) => format!("paired ({})", pin.node.short()),
            None if damaged.contains_key(&peer.name) => {
                "not trusted, its pin is damaged".to_owned()
            }
            None => "not paired".to_owned(),
        };
        line("peer", format!("{}: {how}, {paired}", peer.name));
        line("", format!("serves {}", listed(&prefixes)));
    }
    text
}

/// Describes the networks where peers may open connections.
fn serves(config: &NodeConfig) -> String {
    let networks = match &config.serve {
        Some(serve) => serve.clone(),
        None if config.lan_interfaces.is_empty() => {
            return "nothing: the configuration has neither lan_interfaces under [node] nor serve under [policy]"
                .to_owned();
        }
        None => match surroundings::lan_networks(&config.lan_interfaces) {
            Ok(networks) => networks,
            Err(error) => return format!("nothing: the routes cannot be read ({error})"),
        },
    };
    let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
    let networks = listed(&networks);
    match config.policy.serve_rules.len() {
        0 => networks,
        1 => format!("{networks}; limited by 1 serve_rule"),
        rules => format!("{networks}; limited by {rules} serve_rules"),
    }
}

fn listed(words: &[String]) -> String {
    if words.is_empty() {
        return "nothing".to_owned();
    }
    words.join(", ")
}

/// Reads the secrets that the configuration names, without which a node does not start.
///
/// # Errors
/// When a file cannot be read, is open to others, or holds something else.
pub fn look_at_secrets(config: &NodeConfig) -> Result<(), CredentialsError> {
    credentials::load(&mut config.clone())
}

/// The findings of `check` on this machine, each with a remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckFindings {
    /// The problems that keep the node from starting or from working.
    pub obstacles: Vec<String>,
    /// The problems that keep a part of it from working.
    pub warnings: Vec<String>,
}

/// Checks the other preconditions on this machine.
#[must_use]
pub fn look(config: &NodeConfig) -> CheckFindings {
    let mut found = CheckFindings::default();
    let CheckFindings {
        obstacles,
        warnings,
    } = &mut found;
    let running = RunningNode::find(config);
    look_at_state_directory(config, running.as_ref(), obstacles);
    if config.intercept.mode == InterceptMode::Transparent {
        look_at_interception(config, obstacles, warnings);
    }
    look_at_listeners(config, running.as_ref(), obstacles);
    let controls = wan::known_congestion_controls();
    if let Some(name) = &config.wan.congestion_control
        && !controls.contains(name)
    {
        warnings.push(format!(
            "the kernel has not loaded the congestion control `{name}` (it has {}); try `modprobe \
             tcp_{name}`, or write another congestion_control under [wan]",
            controls.join(", ")
        ));
    }
    let mut loaded = config.clone();
    // A file that cannot be read is an error of its own.
    let is_loaded = credentials::load(&mut loaded).is_ok();
    look_at_accelerators(if is_loaded { &loaded } else { config }, warnings);
    look_at_bounds(config, warnings);
    look_at_pins(config, obstacles, warnings);
    found
}

/// A node of this configuration that runs now.
struct RunningNode {
    /// The listening addresses; `None` where the node does not report them.
    listeners: Option<Vec<String>>,
}

impl RunningNode {
    fn find(config: &NodeConfig) -> Option<Self> {
        let status = admin::ask(&config.admin_socket, AdminRequest::Status).ok()?;
        let listeners = status["listeners"].as_array().map(|listeners| {
            let texts = listeners.iter().filter_map(|listener| listener.as_str());
            texts.map(str::to_owned).collect()
        });
        (status["name"] == config.name.as_str()).then_some(Self { listeners })
    }

    fn listens_at(&self, address: SocketAddr) -> bool {
        let address = address.to_string();
        let listeners = self.listeners.as_ref();
        listeners.is_none_or(|listeners| listeners.contains(&address))
    }
}

/// Checks the content and the owner of the state directory.
fn look_at_state_directory(
    config: &NodeConfig,
    running: Option<&RunningNode>,
    obstacles: &mut Vec<String>,
) {
    let directory = &config.state_directory;
    // Root may look after a node that runs as the directory's owner, once it runs.
    let is_the_nodes = running.is_some() && other_owner(directory).is_some();
    if !is_the_nodes && let Err(error) = check_state_directory(directory) {
        obstacles.push(error.to_string());
    }
    match NodeIdentity::load(directory) {
        Ok(_) => {}
        Err(IdentityError::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {}
        Err(error) => obstacles.push(error.to_string()),
    }
    let key_file = &config.dictionary.key_file;
    if config.dictionary.disk.bytes() > 0 && key_file.exists() {
        let damaged = dictionary_key::load_or_make(key_file).err();
        obstacles.extend(damaged.as_ref().map(DictionaryKeyError::to_string));
    }
    if running.is_some() {
        return;
    }
    // What was opened, not what has the name now; a node writes nothing into it.
    let lock = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(directory.join("lock"));
    if let Ok(lock) = lock
        && matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock))
    {
        obstacles.push(format!(
            "another node uses the state directory {}; stop that node, or write another state_directory under [node]",
            directory.display()
        ));
    }
    if let Ok(metadata) = fs::symlink_metadata(&config.admin_socket)
        && !metadata.file_type().is_socket()
    {
        obstacles.push(format!(
            "the administration socket {} cannot be created: {NO_SOCKET}",
            config.admin_socket.display()
        ));
    }
}

/// Addresses that another program has. A running node of this configuration is no conflict.
fn look_at_listeners(
    config: &NodeConfig,
    running: Option<&RunningNode>,
    obstacles: &mut Vec<String>,
) {
    let is_ours = |address: SocketAddr| running.is_some_and(|node| node.listens_at(address));
    for (what, address) in listeners(config) {
        if is_ours(address) {
            continue;
        }
        let by_udp = config.wan.udp && config.wan.listen == Some(address);
        let tcp = TcpListener::bind(address).map(drop);
        let both = tcp.and_then(|()| match by_udp {
            true => UdpSocket::bind(address).map(drop),
            false => Ok(()),
        });
        if let Err(error) = both {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "; another program uses this port, and `ss -lntup` shows which program"
                }
                io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
                _ => "",
            };
            obstacles.push(format!(
                "the node cannot listen on {what} {address}: {error}{hint}"
            ));
        }
    }
}

/// Peers that cannot be trusted yet, or no more.
fn look_at_pins(config: &NodeConfig, obstacles: &mut Vec<String>, warnings: &mut Vec<String>) {
    if config.peers.is_empty() {
        warnings.push(
            "the configuration has no [[peer]], so the node will accelerate nothing; write a \
                       [[peer]] section"
                .to_owned(),
        );
    }
    let LoadedPins { pins, damaged } = match PinDirectory::new(&config.state_directory).load_all() {
        Ok(loaded) => loaded,
        Err(error) => return obstacles.push(error.to_string()),
    };
    warnings.extend(damaged.values().map(ToString::to_string));
    let is_paired = config
        .peers
        .iter()
        .any(|peer| pins.contains_key(&peer.name));
    for peer in &config.peers {
        if pins.contains_key(&peer.name) {
            continue;
        }
        let name = &peer.name;
        match config.wan.listen {
            Some(_) => warnings.push(format!(
                "peer `{name}` is not paired; start this node, run `trunkline peer invite --name {name}` here and `trunkline peer join` on the other node"
            )),
            None if is_paired => warnings.push(format!(
                "peer `{name}` is not paired; run `trunkline peer invite` on that node and `trunkline peer join --name {name}` here"
            )),
            None => obstacles.push(format!(
                "peer `{name}` is not paired, and without a paired peer the node has no work; run \
                 `trunkline peer invite` on that node and `trunkline peer join --name {name}` here"
            )),
        }
    }
}

/// Adds the problems that would make the node refuse every connection that a peer requests.
fn look_at_bounds(config: &NodeConfig, problems: &mut Vec<String>) {
    // A node without a place for its peers is a client's, and needs none.
    let is_served = config.serve.as_ref().is_none_or(|serve| !serve.is_empty())
        && (config.serve.is_some() || !config.lan_interfaces.is_empty());
    if !is_served || config.serve_peers_without_prefixes {
        return;
    }
    for peer in config.peers.iter().filter(|peer| peer.prefixes.is_empty()) {
        problems.push(format!(
            "peer `{}` has no prefixes, so this node refuses connections from the addresses of the peer's \
             clients; write the clients' networks as prefixes = [...] in this [[peer]], or \
             serve_peers_without_prefixes = true under [policy]",
            peer.name
        ));
    }
}

/// Settings of accelerators that do nothing without others.
fn look_at_accelerators(config: &NodeConfig, problems: &mut Vec<String>) {
    let accelerators = &config.policy.accelerators;
    let delegated = [
        ("accounts", config.credentials.accounts.is_some()),
        ("keytab", config.credentials.keytab.is_some()),
    ];
    let users = || accelerators.iter().filter(|one| one.entry.uses_delegated);
    if !users().any(|one| one.settings.is_on()) {
        let ways = users().filter_map(|one| {
            let switch_on = one.entry.switch_on?;
            Some(format!("{switch_on} in [{}]", one.entry.name))
        });
        let ways = ways.collect::<Vec<_>>().join(" or ");
        for (key, _) in delegated.iter().filter(|(_, is_set)| *is_set) {
            problems.push(format!(
                "{key} in [credentials] has no effect without {ways}"
            ));
        }
    }
    let delegates = delegated.iter().any(|(_, is_set)| *is_set);
    for one in accelerators.iter() {
        for remark in one.settings.remarks(delegates) {
            problems.push(format!("[{}] {remark}", one.entry.name));
        }
    }
}

fn look_at_interception(
    config: &NodeConfig,
    obstacles: &mut Vec<String>,
    problems: &mut Vec<String>,
) {
    for tool in intercept::missing_tools() {
        let package = if tool == "nft" {
            "nftables"
        } else {
            "iproute2"
        };
        obstacles.push(format!(
            "`{tool}` is not installed; install the package {package}"
        ));
    }
    if !sys::has_capability(sys::CAP_NET_ADMIN) {
        obstacles.push(
            "transparent interception needs CAP_NET_ADMIN; run the node as root or by the systemd unit, or \
             set mode = \"off\" in [intercept] and use [proxy]".to_owned(),
        );
    }
    for interface in &config.lan_interfaces {
        if !Path::new("/sys/class/net").join(interface).exists() {
            obstacles.push(format!(
                "this machine has no interface `{interface}`; write an interface that `ip link` lists in \
                 lan_interfaces"
            ));
        }
    }
    let prefixes = config.peers.iter().flat_map(|peer| &peer.prefixes);
    let has_ipv6 = prefixes.clone().any(|prefix| prefix.address().is_ipv6());
    let has_ipv4 = prefixes.clone().any(|prefix| prefix.address().is_ipv4());
    for (file, what, is_needed) in [
        // A node that intercepts nothing itself stands in the servers' path, over IPv4 at least.
        (
            "/proc/sys/net/ipv4/ip_forward",
            "IPv4",
            has_ipv4 || !has_ipv6,
        ),
        ("/proc/sys/net/ipv6/conf/all/forwarding", "IPv6", has_ipv6),
    ] {
        if fs::read_to_string(file).is_ok_and(|value| value.trim() == "0") {
            let places = if is_needed {
                &mut *obstacles
            } else {
                &mut *problems
            };
            places.push(format!(
                "this machine does not forward {what}, so connections that the node does not intercept \
                 would fail; run `echo 1 > {file}`"
            ));
        }
    }
    for interface in &config.lan_interfaces {
        // The kernel takes the greater of the interface's value and that of all.
        let value = |name: &str| {
            let file = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
            let text = fs::read_to_string(file).unwrap_or_default();
            text.trim().parse::<u8>().unwrap_or(0)
        };
        if value(interface).max(value("all")) == 1 {
            problems.push(format!(
                "strict reverse path filtering on `{interface}` drops packets from an address whose route \
                 leaves by another interface; if your routes are asymmetric, write 2 to \
                 /proc/sys/net/ipv4/conf/{interface}/rp_filter"
            ));
        }
    }
    let can_probe = [sys::CAP_NET_ADMIN, sys::CAP_NET_RAW]
        .into_iter()
        .all(sys::has_capability);
    if can_probe && intercept::missing_tools().is_empty() {
        problems.extend(intercept::examine(config));
    }
}

/// The addresses where a node of this configuration listens, with their purposes.
pub(crate) fn listeners(config: &NodeConfig) -> Vec<(&'static str, SocketAddr)> {
    let intercepts = config.intercept.mode == InterceptMode::Transparent;
    let interception = SocketAddr::from((Ipv4Addr::LOCALHOST, config.intercept.port));
    [
        ("the interception port", intercepts.then_some(interception)),
        ("the WAN address", config.wan.listen),
        ("SOCKS5 at", config.proxy.socks5),
        ("HTTP CONNECT at", config.proxy.http_connect),
        ("the metrics address", config.metrics),
    ]
    .into_iter()
    .filter_map(|(what, address)| Some((what, address?)))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(sections: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("node.toml");
        let text = format!(
            "[node]\nname = \"hub\"\nstate_directory = {:?}\n[intercept]\nmode = \"off\"\n{sections}",
            directory.path()
        );
        std::fs::write(&file, text).unwrap();
        let config = NodeConfig::load(&file).unwrap();
        let mut problems = Vec::new();
        look_at_accelerators(&config, &mut problems);
        problems
    }

    #[test]
    fn peer_that_is_always_refused_is_named() {
        for (text, named) in [
            (
                "lan_interfaces = [\"lan0\"]\n[[peer]]\nname = \"far\"\naddress = \"h:1\"\n",
                true,
            ),
            ("[[peer]]\nname = \"far\"\naddress = \"h:1\"\n", false),
            (
                "lan_interfaces = [\"lan0\"]\n[[peer]]\nname = \"far\"\naddress = \"h:1\"\nprefixes = [\"10.0.0.0/8\"]\n",
                false,
            ),
            (
                "lan_interfaces = [\"lan0\"]\n[[peer]]\nname = \"far\"\naddress = \"h:1\"\n[policy]\nserve_peers_without_prefixes = true\n",
                false,
            ),
        ] {
            let text = format!("[node]\nname = \"hub\"\n{text}");
            let config = NodeConfig::parse(std::path::Path::new("node.toml"), &text).unwrap();
            let mut problems = Vec::new();
            look_at_bounds(&config, &mut problems);
            assert_eq!(problems.len(), usize::from(named), "{text}: {problems:?}");
        }
    }

    #[test]
    fn settings_of_accelerators_that_do_nothing_are_named() {
        let key = "[credentials]\nkeytab = \"/nowhere\"\n";
        let one = "channels = \"one\"\n";
        let on = "mode = \"strict\"\n";
        for (credentials, smb, named) in [
            ("", "", vec![]),
            ("", one, vec!["[smb] channels"]),
            (key, one, vec!["keytab in [credentials]", "[smb] channels"]),
            ("", &format!("{on}{one}"), vec!["[smb] channels"]),
            (key, &format!("{on}{one}"), vec![]),
            ("", &format!("{on}channels = \"several\"\n"), vec![]),
        ] {
            let found = problems(&format!("{credentials}[smb]\n{smb}"));
            assert_eq!(found.len(), named.len(), "{credentials}{smb}: {found:?}");
            for (problem, setting) in found.iter().zip(named) {
                assert!(problem.starts_with(setting), "{problem}");
                assert!(
                    problem.contains("mode = \"strict\"") || problem.contains("accounts or keytab")
                );
            }
        }
    }
}
