//! What an operator writes so that a packet filter lets through what a node needs.

use engine::Prefix;

use super::firewall_watch::{Family, Way};
use super::rules::MARK_MASK;

/// Commands for the usual packet filters, each with the name of what it is for.
#[must_use]
pub(crate) fn commands(
    way: Way,
    family: Family,
    mark: u32,
    peers: &[Prefix],
    chains: &[String],
) -> Vec<String> {
    let prefixes: Vec<String> = peers
        .iter()
        .filter(|prefix| prefix.address().is_ipv4() == (family == Family::Ipv4))
        .map(ToString::to_string)
        .collect();
    let (ip, iptables, ufw, files) = match family {
        Family::Ipv4 => ("ip", "iptables", "ufw", "before.rules"),
        Family::Ipv6 => ("ip6", "ip6tables", "ufw6", "before6.rules"),
    };
    let lower = family.name().to_lowercase();
    let zone = "--permanent --zone=ZONE_OF_THE_LAN";
    let mut commands = Vec::new();
    match way {
        Way::ClientToNode | Way::ServerToNode => {
            let nft = format!("meta mark and {MARK_MASK:#010x} == {mark:#010x} accept");
            let legacy = format!("-m mark --mark {mark:#010x}/{MARK_MASK:#010x} -j ACCEPT");
            commands.extend(inserted(chains, "inet filter input", &nft));
            commands.push(format!("iptables: {iptables} -I INPUT {legacy}"));
            commands.extend(prefixes.iter().map(|prefix| {
                format!("firewalld: firewall-cmd {zone} --add-rich-rule='rule family=\"{lower}\" destination address=\"{prefix}\" protocol value=\"tcp\" accept' && firewall-cmd --reload")
            }));
            commands.push(format!(
                "ufw: write `-A {ufw}-before-input {legacy}` into /etc/ufw/{files} above COMMIT, then `ufw reload`"
            ));
        }
        Way::NodeToClient | Way::NodeToServer => {
            for prefix in &prefixes {
                let nft = format!("{ip} saddr {prefix} meta l4proto tcp accept");
                commands.extend(inserted(chains, "inet filter output", &nft));
                let legacy = format!("-p tcp -s {prefix} -j ACCEPT");
                commands.push(format!("iptables: {iptables} -I OUTPUT {legacy}"));
                commands.push(format!(
                    "ufw: write `-A {ufw}-before-output {legacy}` into /etc/ufw/{files} above COMMIT, then `ufw reload`"
                ));
            }
        }
    }
    commands
}

fn inserted(chains: &[String], otherwise: &str, rule: &str) -> Vec<String> {
    let insert = |chain: &str| format!("nft: nft insert rule {chain} {rule}");
    match chains {
        [] => vec![insert(otherwise)],
        chains => chains.iter().map(|chain| insert(chain)).collect(),
    }
}
