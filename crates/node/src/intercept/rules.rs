//! The ruleset as text for `nft -f`: a table, its sets, and one chain.
//!
//! Only SYNs are handed to the listener, so that connections which began before the rules came,
//! or which pass by, are never touched in the middle. What belongs to a connection that was
//! taken is recognised by its socket. The one exception is a listener that answers with SYN
//! cookies, which has no socket until the handshake is over: for these, the four-tuples of taken
//! SYNs are remembered for some seconds. When that set is full, as in a SYN flood, a SYN is not
//! taken and passes by.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use engine::Prefix;

use crate::config::NodeConfig;

/// SYNs remembered for [`OPENING_SECONDS`]; at 6,500 new connections a second it is full.
const OPENING_SIZE: usize = 65_535;
/// A handshake over a slow LAN with two lost packets ends within it.
const OPENING_SECONDS: u64 = 10;
/// Servers bypassed at a time: four times as many as the engine keeps, whose ends are a moment early.
const AVOIDED_SIZE: usize = 65_535;

/// How every node's table begins.
pub(super) const TABLE_PREFIX: &str = "trunkline_";

/// The name of a node's table.
#[must_use]
pub fn table_name(node: &str) -> String {
    format!("{TABLE_PREFIX}{}", node.replace('-', "_"))
}

/// What the rules depend on and what does not change while they are in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    table: String,
    lan_interfaces: Vec<String>,
    port: u16,
    mark: u32,
    bypass_ports: Vec<u16>,
}

/// The bits of the packet mark that are ours.
pub(super) const MARK_MASK: u32 = 0xff00_0000;

impl Ruleset {
    /// The rules of this configuration.
    #[must_use]
    pub fn new(config: &NodeConfig) -> Self {
        Self {
            table: table_name(&config.name),
            lan_interfaces: config.lan_interfaces.clone(),
            port: config.intercept.port,
            mark: u32::from(config.intercept.mark) << 24,
            bypass_ports: config.bypass_ports.clone(),
        }
    }

    /// The value of the mark within [`MARK_MASK`].
    pub(super) fn mark(&self) -> u32 {
        self.mark
    }

    /// Puts the whole table in place, instead of one that may be there.
    #[must_use]
    pub fn install(
        &self,
        destinations: &[Prefix],
        peer_addresses: &BTreeSet<IpAddr>,
        avoided: &BTreeMap<SocketAddr, Duration>,
    ) -> String {
        let table = &self.table;
        let (v4, v6) = by_family(destinations);
        let (avoided4, avoided6) = avoided_by_family(avoided);
        let (peers4, peers6) = addresses_by_family(peer_addresses);
        let interfaces = quoted(&self.lan_interfaces);
        let mark = format!(
            "meta mark set meta mark and {:#010x} or {:#010x}",
            !MARK_MASK, self.mark
        );
        let port = self.port;
        let mut text = removal(table);
        let _ = write!(
            text,
            r"table inet {table} {{
  set destinations4 {{ type ipv4_addr; flags interval; {v4} }}
  set destinations6 {{ type ipv6_addr; flags interval; {v6} }}
  set peers4 {{ type ipv4_addr; {peers4} }}
  set peers6 {{ type ipv6_addr; {peers6} }}
  set avoided4 {{ type ipv4_addr . inet_service; flags timeout; size {AVOIDED_SIZE}; {avoided4} }}
  set avoided6 {{ type ipv6_addr . inet_service; flags timeout; size {AVOIDED_SIZE}; {avoided6} }}
  set opening4 {{ type ipv4_addr . inet_service . ipv4_addr . inet_service; flags dynamic,timeout; timeout {OPENING_SECONDS}s; size {OPENING_SIZE}; }}
  set opening6 {{ type ipv6_addr . inet_service . ipv6_addr . inet_service; flags dynamic,timeout; timeout {OPENING_SECONDS}s; size {OPENING_SIZE}; }}
  chain prerouting {{
    type filter hook prerouting priority mangle; policy accept;
    meta l4proto != tcp return
    socket transparent 1 socket wildcard 0 {mark} accept
    iifname != {{ {interfaces} }} return
    fib daddr type local return
"
        );
        if !self.bypass_ports.is_empty() {
            let ports: Vec<String> = self.bypass_ports.iter().map(u16::to_string).collect();
            let _ = writeln!(text, "    tcp dport {{ {} }} return", ports.join(", "));
        }
        for (family, version, listener) in [
            ("ip", 4, format!("127.0.0.1:{port}")),
            ("ip6", 6, format!("[::1]:{port}")),
        ] {
            let tuple = format!("{family} saddr . tcp sport . {family} daddr . tcp dport");
            let _ = write!(
                text,
                r"    {family} daddr @peers{version} return
    {family} daddr . tcp dport @avoided{version} return
    {family} daddr @destinations{version} tcp flags & (fin | syn | rst | ack) == syn update @opening{version} {{ {tuple} }} tproxy {family} to {listener} {mark} accept
    {tuple} @opening{version} tproxy {family} to {listener} {mark} accept
"
            );
        }
        text.push_str("  }\n}\n");
        text
    }

    /// Changes which destinations are taken.
    #[must_use]
    pub fn set_destinations(&self, destinations: &[Prefix]) -> String {
        let table = &self.table;
        let mut text = String::new();
        for version in [4, 6] {
            let _ = writeln!(text, "flush set inet {table} destinations{version}");
        }
        for prefix in destinations {
            let version = if prefix.address().is_ipv4() { 4 } else { 6 };
            let _ = writeln!(
                text,
                "add element inet {table} destinations{version} {{ {prefix} }}"
            );
        }
        text
    }

    /// Changes which addresses are known as peers' own.
    #[must_use]
    pub fn set_peer_addresses(&self, addresses: &BTreeSet<IpAddr>) -> String {
        let table = &self.table;
        let mut text = String::new();
        for version in [4, 6] {
            let _ = writeln!(text, "flush set inet {table} peers{version}");
        }
        for address in addresses {
            let version = if address.is_ipv4() { 4 } else { 6 };
            let _ = writeln!(
                text,
                "add element inet {table} peers{version} {{ {address} }}"
            );
        }
        text
    }

    /// Bypasses one more server, or the same one for another time.
    #[must_use]
    pub fn avoid(&self, server: SocketAddr, lasting: Duration) -> String {
        let version = if server.is_ipv4() { 4 } else { 6 };
        format!(
            "{}add element inet {} avoided{version} {{ {} }}\n",
            self.readmit(server),
            self.table,
            avoided_element(server, lasting)
        )
    }

    /// Ends the bypass of a server. Adding the element first makes it no error when the kernel has
    /// just removed it.
    #[must_use]
    pub fn readmit(&self, server: SocketAddr) -> String {
        let version = if server.is_ipv4() { 4 } else { 6 };
        let table = &self.table;
        let (address, port) = (server.ip(), server.port());
        format!(
            "add element inet {table} avoided{version} {{ {address} . {port} timeout 1s }}\n\
             delete element inet {table} avoided{version} {{ {address} . {port} }}\n"
        )
    }
}

/// Removes a table; adding it first makes that no error when there is none.
pub(super) fn removal(table: &str) -> String {
    format!("add table inet {table}\ndelete table inet {table}\n")
}

fn by_family(prefixes: &[Prefix]) -> (String, String) {
    let (v4, v6): (Vec<&Prefix>, Vec<&Prefix>) = prefixes
        .iter()
        .partition(|prefix| prefix.address().is_ipv4());
    let texts = |prefixes: Vec<&Prefix>| prefixes.iter().map(ToString::to_string).collect();
    (elements(texts(v4)), elements(texts(v6)))
}

fn addresses_by_family(addresses: &BTreeSet<IpAddr>) -> (String, String) {
    let of_family = |v4: bool| {
        let addresses = addresses.iter().filter(|address| address.is_ipv4() == v4);
        elements(addresses.map(ToString::to_string).collect())
    };
    (of_family(true), of_family(false))
}

fn avoided_by_family(avoided: &BTreeMap<SocketAddr, Duration>) -> (String, String) {
    let of_family = |v4: bool| {
        avoided
            .iter()
            .filter(|(server, _)| server.is_ipv4() == v4)
            .map(|(server, lasting)| avoided_element(*server, *lasting))
            .collect()
    };
    (elements(of_family(true)), elements(of_family(false)))
}

fn avoided_element(server: SocketAddr, lasting: Duration) -> String {
    let address: IpAddr = server.ip();
    let seconds = lasting.as_secs().max(1);
    format!("{address} . {} timeout {seconds}s", server.port())
}

/// nft has no word for an empty list of elements.
fn elements(texts: Vec<String>) -> String {
    if texts.is_empty() {
        return String::new();
    }
    format!("elements = {{ {} }};", texts.join(", "))
}

fn quoted(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruleset() -> Ruleset {
        Ruleset {
            table: table_name("near-1"),
            lan_interfaces: vec!["lan0".to_owned(), "lan1".to_owned()],
            port: 4434,
            mark: 0x7400_0000,
            bypass_ports: vec![22, 179],
        }
    }

    fn prefixes() -> Vec<Prefix> {
        ["198.18.2.0/24", "2001:2:0:2::/64"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect()
    }

    #[test]
    fn own_sockets_come_first_and_the_wan_side_is_never_taken() {
        let peers = BTreeSet::from(["198.18.11.2".parse().unwrap()]);
        let text = ruleset().install(&prefixes(), &peers, &BTreeMap::new());
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part}"));
        assert!(place("socket transparent 1") < place("iifname != { \"lan0\", \"lan1\" } return"));
        assert!(place("iifname !=") < place("tproxy ip to 127.0.0.1:4434"));
        assert!(place("fib daddr type local return") < place("tproxy"));
        assert!(place("tcp dport { 22, 179 } return") < place("tproxy"));
        assert!(text.contains("set peers4 { type ipv4_addr; elements = { 198.18.11.2 }; }"));
        assert!(place("ip daddr @peers4 return") < place("tproxy ip to"));
        assert!(place("@avoided6 return") < place("tproxy ip6 to [::1]:4434"));
        assert!(text.starts_with("add table inet trunkline_near_1\ndelete table"));
    }

    #[test]
    fn changes_name_the_family_of_what_they_change() {
        let text = ruleset().set_destinations(&prefixes());
        assert!(text.contains("destinations4 { 198.18.2.0/24 }"));
        assert!(text.contains("destinations6 { 2001:2:0:2::/64 }"));
        let server = "[2001:2:0:2::9]:445".parse().unwrap();
        let text = ruleset().avoid(server, Duration::from_secs(60));
        assert!(text.ends_with(
            "add element inet trunkline_near_1 avoided6 { 2001:2:0:2::9 . 445 timeout 60s }\n"
        ));
        let text = ruleset().readmit(server);
        assert!(
            text.ends_with(
                "delete element inet trunkline_near_1 avoided6 { 2001:2:0:2::9 . 445 }\n"
            )
        );
    }
}
