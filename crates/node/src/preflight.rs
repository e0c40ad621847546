//! What `trunkline node check` says beyond the file itself: what the node would do, and what on
//! this machine stands in its way.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};

use accelerate::smb::{Channels, Consistency};

use crate::config::{InterceptMode, NodeConfig};
use crate::delegated::{self, DelegatedError};
use crate::identity::{Identity, IdentityError};
use crate::pairing::Pins;
use crate::{intercept, smb_keytab, sys, wan};

/// What a node with this configuration would do, in some lines.
#[must_use]
pub fn describe(config: &NodeConfig) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<12} {value}");
    };
    line("node", config.name.clone());
    let identity = match Identity::load(&config.state_directory) {
        Ok(identity) => identity.node().to_string(),
        Err(_) => "none yet; made on the first run".to_owned(),
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
    let listen = config
        .wan
        .listen
        .map_or("nowhere; it only dials out".to_owned(), |address| {
            address.to_string()
        });
    line("wan", listen);
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
    if let Some(path) = &config.smb_accounts {
        line("smb accounts", path.display().to_string());
    }
    if let Some(path) = &config.smb_keytab {
        let keys = smb_keytab::load(path).map_or(String::new(), |keytab| {
            format!(", with keys of {}", keytab.principals().join(", "))
        });
        line("smb keytab", format!("{}{keys}", path.display()));
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
    let pins = Pins::new(&config.state_directory)
        .load()
        .unwrap_or_default();
    for peer in &config.peers {
        let prefixes: Vec<String> = peer.prefixes.iter().map(ToString::to_string).collect();
        let how = match &peer.address {
            Some(address) => format!("dialled at {address}"),
            None => "dials us".to_owned(),
        };
        let paired = match pins.get(&peer.name) {
            Some(pin) => format!("paired ({})", pin.node.short()),
            None => "not paired".to_owned(),
        };
        line("peer", format!("{}: {how}, {paired}", peer.name));
        line("", format!("serves {}", listed(&prefixes)));
    }
    text
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
pub fn look_at_secrets(config: &NodeConfig) -> Result<(), DelegatedError> {
    delegated::delegate(&mut config.clone())
}

/// What else stands in the way on this machine, each with what to do about it.
#[must_use]
pub fn look(config: &NodeConfig) -> Vec<String> {
    let mut problems = Vec::new();
    if config.intercept.mode == InterceptMode::Transparent {
        look_at_interception(config, &mut problems);
    }
    for (what, address) in listeners(config) {
        if let Err(error) = TcpListener::bind(address) {
            problems.push(format!(
                "{what} {address} cannot be listened on now: {error} (is the node, or another program, running?)"
            ));
        }
    }
    let controls = wan::known_congestion_controls();
    if let Some(name) = &config.wan.congestion_control
        && !controls.contains(name)
    {
        problems.push(format!(
            "this kernel does not have the congestion control `{name}` loaded (it has {}); `modprobe tcp_{name}` may help",
            controls.join(", ")
        ));
    }
    look_at_file_shares(config, &mut problems);
    if config.peers.is_empty() {
        problems.push("there is no [[peer]], so nothing will be accelerated".to_owned());
    }
    match Identity::load(&config.state_directory) {
        Ok(_) => {}
        Err(IdentityError::Io { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => problems.push(error.to_string()),
    }
    match Pins::new(&config.state_directory).load() {
        Ok(pins) => {
            for peer in &config.peers {
                if !pins.contains_key(&peer.name) {
                    problems.push(format!(
                        "peer `{}` is not paired; run `trunkline peer invite` on one node and `trunkline peer join` on the other",
                        peer.name
                    ));
                }
            }
        }
        Err(error) => problems.push(error.to_string()),
    }
    problems
}

/// Settings for SMB that do nothing without others.
fn look_at_file_shares(config: &NodeConfig, problems: &mut Vec<String>) {
    let smb = &config.policy.accelerators.smb;
    let is_one_channel = smb.channels == Channels::One;
    let has_secrets = config.smb_accounts.is_some() || config.smb_keytab.is_some();
    if smb.consistency == Consistency::Off {
        let settings = [
            ("smb_accounts", config.smb_accounts.is_some()),
            ("smb_keytab", config.smb_keytab.is_some()),
            ("smb_channels = \"one\"", is_one_channel),
        ];
        for (setting, _) in settings.into_iter().filter(|(_, is_set)| *is_set) {
            problems.push(format!(
                "{setting} does nothing without smb = \"strict\" in [policy]"
            ));
        }
    } else if is_one_channel && !has_secrets {
        problems.push(
            "smb_channels = \"one\" does nothing without smb_accounts or smb_keytab in [policy]: only sessions whose key is known are told so".to_owned(),
        );
    }
}

fn look_at_interception(config: &NodeConfig, problems: &mut Vec<String>) {
    for tool in intercept::missing_tools() {
        let package = if tool == "nft" {
            "nftables"
        } else {
            "iproute2"
        };
        problems.push(format!(
            "`{tool}` is not installed; install the package {package}"
        ));
    }
    if !sys::has_capability(sys::CAP_NET_ADMIN) {
        problems.push(
            "transparent interception needs CAP_NET_ADMIN; run as root or by the systemd unit, or use [proxy] with mode = \"off\"".to_owned(),
        );
    }
    for interface in &config.lan_interfaces {
        if !std::path::Path::new("/sys/class/net")
            .join(interface)
            .exists()
        {
            problems.push(format!(
                "there is no interface `{interface}` here (`ip link` lists them)"
            ));
        }
    }
    for (file, what) in [
        ("/proc/sys/net/ipv4/ip_forward", "IPv4"),
        ("/proc/sys/net/ipv6/conf/all/forwarding", "IPv6"),
    ] {
        if std::fs::read_to_string(file).is_ok_and(|value| value.trim() == "0") {
            problems.push(format!(
                "this machine does not forward {what}; what is not accelerated would not pass (echo 1 > {file})"
            ));
        }
    }
    for interface in &config.lan_interfaces {
        let file = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
        if std::fs::read_to_string(&file).is_ok_and(|value| value.trim() == "1") {
            problems.push(format!(
                "strict reverse path filtering on `{interface}` drops packets whose way back is another interface; write 2 to {file} if routes are asymmetric"
            ));
        }
    }
}

fn listeners(config: &NodeConfig) -> Vec<(&'static str, SocketAddr)> {
    [
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

    fn problems(policy: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("node.toml");
        let text = format!(
            "[node]\nname = \"hub\"\nstate_directory = {:?}\n[intercept]\nmode = \"off\"\n[policy]\n{policy}",
            directory.path()
        );
        std::fs::write(&file, text).unwrap();
        let config = NodeConfig::load(&file).unwrap();
        let mut problems = Vec::new();
        look_at_file_shares(&config, &mut problems);
        problems
    }

    #[test]
    fn settings_for_file_shares_that_do_nothing_are_named() {
        let key = "smb_keytab = \"/nowhere\"\n";
        let one = "smb_channels = \"one\"\n";
        let on = "smb = \"strict\"\n";
        for (policy, named) in [
            (String::new(), vec![]),
            (one.to_owned(), vec!["smb_channels"]),
            (format!("{key}{one}"), vec!["smb_keytab", "smb_channels"]),
            (format!("{on}{one}"), vec!["smb_channels"]),
            (format!("{on}{key}{one}"), vec![]),
            (format!("{on}smb_channels = \"several\"\n"), vec![]),
        ] {
            let found = problems(&policy);
            assert_eq!(found.len(), named.len(), "{policy}: {found:?}");
            for (problem, setting) in found.iter().zip(named) {
                assert!(problem.starts_with(setting), "{problem}");
            }
        }
    }
}
