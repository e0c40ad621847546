//! The operator's commands that let a packet filter pass the traffic that a node needs.

use engine::IpPrefix;

use super::firewall_watch::{AddressFamily, PacketDirection};
use super::rules::MARK_MASK;

/// The commands for the usual packet filters, each with its purpose.
#[must_use]
pub(crate) fn commands(
    way: PacketDirection,
    family: AddressFamily,
    mark: u32,
    peers: &[IpPrefix],
    chains: &[String],
) -> Vec<String> {
    let prefixes: Vec<String> = peers
        .iter()
        .filter(|prefix| prefix.address().is_ipv4() == (family == AddressFamily::Ipv4))
        .map(ToString::to_string)
        .collect();
    let (ip, iptables, ufw, files) = match family {
        AddressFamily::Ipv4 => ("ip", "iptables", "ufw", "before.rules"),
        AddressFamily::Ipv6 => ("ip6", "ip6tables", "ufw6", "before6.rules"),
    };
    let other = match family {
        AddressFamily::Ipv4 => "ip6 ",
        AddressFamily::Ipv6 => "ip ",
    };
    let chains = chains.iter().filter(|chain| !chain.starts_with(other));
    let chains: Vec<&str> = chains.map(String::as_str).collect();
    let chains = chains.as_slice();
    let lower = family.name().to_lowercase();
    let zone = "--permanent --zone=ZONE_OF_THE_LAN";
    let mut commands = Vec::new();
    match way {
        PacketDirection::ClientToNode | PacketDirection::ServerToNode => {
            let nft = format!("meta mark and {MARK_MASK:#010x} == {mark:#010x} accept");
            let legacy = format!("-m mark --mark {mark:#010x}/{MARK_MASK:#010x} -j ACCEPT");
            commands.extend(inserted(chains, "inet filter input", &nft));
            commands.push(format!("iptables: {iptables} -I INPUT {legacy}"));
            commands.extend(prefixes.iter().map(|prefix| {
                format!("firewalld: firewall-cmd {zone} --add-rich-rule='rule family=\"{lower}\" destination address=\"{prefix}\" protocol value=\"tcp\" accept' && firewall-cmd --reload")
            }));
            if family == AddressFamily::Ipv6 {
                commands.push(
                    "firewalld: write `IPv6_rpfilter=no` into /etc/firewalld/firewalld.conf as well"
                        .to_owned(),
                );
            }
            // A chain in the middle drops what is not addressed to this machine.
            commands.push(format!(
                "ufw: write `-A {ufw}-before-input {legacy}` into /etc/ufw/{files} above the first line that begins with `-A {ufw}-before-input`, then `ufw reload`"
            ));
        }
        PacketDirection::NodeToClient | PacketDirection::NodeToServer => {
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

fn inserted(chains: &[&str], otherwise: &str, rule: &str) -> Vec<String> {
    let insert = |chain: &str| format!("nft: nft insert rule {chain} {rule}");
    match chains {
        [] => vec![insert(otherwise)],
        chains => chains.iter().map(|chain| insert(chain)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cures(family: AddressFamily, chains: &[&str]) -> Vec<String> {
        let peers = ["198.18.2.0/24", "2001:2:0:2::/64"].map(|prefix| prefix.parse().unwrap());
        let chains: Vec<String> = chains.iter().map(ToString::to_string).collect();
        commands(
            PacketDirection::ClientToNode,
            family,
            0x7400_0000,
            &peers,
            &chains,
        )
    }

    #[test]
    fn rule_goes_into_chains_of_its_family() {
        let chains = ["ip filter INPUT", "ip6 filter INPUT", "inet fw input"];
        let into = |family| {
            let cures = cures(family, &chains);
            let of_nft = cures.iter().filter(|cure| cure.starts_with("nft: "));
            of_nft
                .map(|cure| cure.contains("ip6 filter"))
                .collect::<Vec<_>>()
        };
        assert_eq!(into(AddressFamily::Ipv4), [false, false]);
        assert_eq!(into(AddressFamily::Ipv6), [true, false]);
    }

    #[test]
    fn ufw_and_firewalld_get_their_own_remedy() {
        let ufw = |cure: &&String| cure.starts_with("ufw: ");
        let first_line = "above the first line that begins with `-A ufw6-before-input`";
        let cures = cures(AddressFamily::Ipv6, &[]);
        assert!(cures.iter().find(ufw).unwrap().contains(first_line));
        assert!(cures.iter().any(|cure| cure.contains("IPv6_rpfilter=no")));
    }
}
