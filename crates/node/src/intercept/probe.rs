//! Sends SYNs through the packet filter of this machine as if they came from the LAN side, and
//! reports the hook at which they are lost.
//!
//! ```text
//!   packet socket ─► veth ─ tc: mirred ingress redirect ─► LAN interface (as if received)
//!     ─► prerouting: tproxy, mark ─► routing ─► input ─► the probe's own listener
//!     ─► SYN-ACK ─► output ─► dropped by the probe's table: nothing leaves the machine
//! ```
//!
//! The probe's own table counts its packets before and behind the rules of others. It matches only
//! the probe's addresses and ports, so it affects no other traffic. Afterwards the device and the
//! table are removed. A kernel without veth or tc's mirred action cannot be probed; the probe then
//! returns an error and no finding.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::{Duration, Instant};

use engine::IpPrefix;

use super::counters::{CounterReader, PacketCounts};
use super::firewall_watch::PacketDirection;
use super::frame::syn_frame;
use super::listener::bind_one;
use super::routes::PolicyRoute;
use super::rules::{PRIORITY_FIRST, PRIORITY_LAST, PRIORITY_TAKE, removal, set_mark};
use super::{explain_missing, run_nft, tables_in_place, tool};
use crate::config::NodeConfig;
use crate::sys;

/// Ports whose SYNs are sent: a packet filter may let some through and others not.
const PORTS: [u16; 3] = [445, 80, 443];
/// Prefixes of peers that are tried, for each interface and family.
const PREFIXES_MAX: usize = 4;
/// The packets have passed when the sender's call returns, or a softirq later.
const PASSED_WITHIN: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The subject of a probe: interfaces, destinations and delivery.
#[derive(Clone, Debug)]
pub(crate) struct ProbePlan {
    pub(crate) interfaces: Vec<String>,
    pub(crate) destinations: Vec<IpPrefix>,
    pub(crate) delivery: PolicyRoute,
}

impl ProbePlan {
    /// SYNs from every LAN interface to the prefixes of all peers.
    pub(crate) fn new(config: &NodeConfig) -> Self {
        let prefixes = config.peers.iter().flat_map(|peer| &peer.prefixes);
        Self {
            interfaces: config.lan_interfaces.clone(),
            destinations: prefixes.copied().collect(),
            delivery: PolicyRoute::new(config),
        }
    }
}

/// The result of one SYN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeFinding {
    pub(crate) interface: String,
    pub(crate) client: IpAddr,
    pub(crate) server: SocketAddr,
    pub(crate) outcome: ProbeOutcome,
}

/// The progress of a SYN and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
    /// The SYN reached the listener and the answer passed.
    Passed,
    /// It was dropped before it could be taken, by a rule at hook prerouting or ingress.
    NotTaken,
    /// It did not get from one end of a way to the other.
    Lost(PacketDirection),
}

/// One SYN of the probe.
#[derive(Clone, Debug)]
struct ProbeCase {
    interface: String,
    client: SocketAddr,
    server: SocketAddr,
}

/// Probes; one finding for each SYN.
///
/// # Errors
/// When this machine cannot be probed: a tool or a part of the kernel is missing, or an interface
/// has no address.
pub(crate) fn probe(plan: &ProbePlan) -> io::Result<Vec<ProbeFinding>> {
    let cases = cases(plan)?;
    if cases.is_empty() {
        return Err(io::Error::other(
            "no LAN interface has an address of a peer's address family",
        ));
    }
    let listener4 = bind_one(([127, 0, 0, 1], 0).into())?;
    let listener6 = bind_one((std::net::Ipv6Addr::LOCALHOST, 0).into());
    let port4 = listener4.local_addr()?.port();
    let port6 = match &listener6 {
        Ok(listener) => listener.local_addr()?.port(),
        Err(_) => 0,
    };
    let table = format!("tl_probe_{}", std::process::id());
    let _removed = InstalledProbe {
        table: table.clone(),
        delivery: plan.delivery,
    };
    plan.delivery.set_up()?;
    run_nft(&rules(&table, &cases, plan.delivery.mark, (port4, port6)))?;
    let device = VethPair::make(&cases)?;
    for case in &cases {
        let frame = syn_frame(&hardware_address(&case.interface), case.client, case.server);
        sys::send_frame(&device.name, &frame)?;
    }
    let mut reader = CounterReader::open()?;
    let started = Instant::now();
    loop {
        let counts = reader.read(&table)?;
        let findings: Vec<ProbeFinding> = cases
            .iter()
            .enumerate()
            .map(|(number, case)| finding(case, number, &counts))
            .collect();
        let all_passed = findings
            .iter()
            .all(|finding| finding.outcome == ProbeOutcome::Passed);
        if all_passed || started.elapsed() >= PASSED_WITHIN {
            return Ok(findings);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn finding(case: &ProbeCase, number: usize, counts: &PacketCounts) -> ProbeFinding {
    let passed = |stage: &str| {
        counts
            .get(&format!("{stage}_{number}"))
            .is_some_and(|n| *n > 0)
    };
    let outcome = if !passed("taken") {
        ProbeOutcome::NotTaken
    } else if !passed("arrived") {
        ProbeOutcome::Lost(PacketDirection::ClientToNode)
    } else if passed("made") && !passed("left") {
        ProbeOutcome::Lost(PacketDirection::NodeToClient)
    } else {
        ProbeOutcome::Passed
    };
    ProbeFinding {
        interface: case.interface.clone(),
        client: case.client.ip(),
        server: case.server,
        outcome,
    }
}

/// SYNs from a neighbour at each LAN interface to a host behind each peer.
fn cases(plan: &ProbePlan) -> io::Result<Vec<ProbeCase>> {
    let mut cases = Vec::new();
    for interface in &plan.interfaces {
        let neighbours = neighbours(interface)?;
        for is_ipv4 in [true, false] {
            let Some(client) = neighbours.iter().find(|one| one.is_ipv4() == is_ipv4) else {
                continue;
            };
            let prefixes = plan.destinations.iter();
            let prefixes = prefixes.filter(|prefix| prefix.address().is_ipv4() == is_ipv4);
            for server in prefixes.take(PREFIXES_MAX).map(host_in) {
                // A fresh port each time: the kernel remembers connections of an earlier probe.
                let client = SocketAddr::new(*client, random_port()?);
                cases.extend(PORTS.map(|port| ProbeCase {
                    interface: interface.clone(),
                    client,
                    server: SocketAddr::new(server, port),
                }));
            }
        }
    }
    Ok(cases)
}

fn random_port() -> io::Result<u16> {
    let mut bytes = [0; 2];
    sys::fill_random(&mut bytes)?;
    Ok(0x8000 | u16::from_ne_bytes(bytes))
}

/// The first address that a host in the prefix may have.
fn host_in(prefix: &IpPrefix) -> IpAddr {
    match prefix.address() {
        IpAddr::V4(address) if prefix.length() < 31 => IpAddr::V4((u32::from(address) + 1).into()),
        IpAddr::V6(address) if prefix.length() < 127 => {
            IpAddr::V6((u128::from(address) + 1).into())
        }
        address => address,
    }
}

/// For each network at an interface the address that a neighbour could have.
fn neighbours(interface: &str) -> io::Result<Vec<IpAddr>> {
    let output = tool("ip")
        .args(["-j", "addr", "show", "dev", interface])
        .output()
        .map_err(|error| explain_missing("ip", error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(said.trim().to_owned()));
    }
    let links: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let addresses = links[0]["addr_info"].as_array().cloned();
    Ok(addresses
        .unwrap_or_default()
        .iter()
        .filter(|address| address["scope"] == "global")
        .filter_map(|address| {
            let local: IpAddr = address["local"].as_str()?.parse().ok()?;
            neighbour(local, address["prefixlen"].as_u64()?)
        })
        .collect())
}

/// Another host's address in the network of this one.
fn neighbour(own: IpAddr, length: u64) -> Option<IpAddr> {
    match own {
        IpAddr::V4(own) if length <= 30 => {
            let (own, host_bits) = (u32::from(own), u32::MAX.checked_shr(length as u32)?);
            // The last host, or the one before it where that is us.
            let last = own | host_bits;
            let other = if last - 1 == own { last - 2 } else { last - 1 };
            Some(IpAddr::V4(other.into()))
        }
        IpAddr::V6(own) if length <= 126 => {
            let (own, host_bits) = (u128::from(own), u128::MAX.checked_shr(length as u32)?);
            let last = own | host_bits;
            let other = if last - 1 == own { last - 2 } else { last - 1 };
            Some(IpAddr::V6(other.into()))
        }
        // A link between two: the other one.
        IpAddr::V4(own) if length == 31 => Some(IpAddr::V4((u32::from(own) ^ 1).into())),
        IpAddr::V6(own) if length == 127 => Some(IpAddr::V6((u128::from(own) ^ 1).into())),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

fn hardware_address(interface: &str) -> [u8; 6] {
    let file = format!("/sys/class/net/{interface}/address");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut address = [0; 6];
    for (byte, text) in address.iter_mut().zip(text.trim().split(':')) {
        *byte = u8::from_str_radix(text, 16).unwrap_or(0);
    }
    address
}

fn rules(table: &str, cases: &[ProbeCase], mark: u32, (port4, port6): (u16, u16)) -> String {
    let mark = set_mark(mark);
    let (mut counters, mut taken, mut arrived) = (String::new(), String::new(), String::new());
    let (mut made, mut left) = (String::new(), String::new());
    for (number, case) in cases.iter().enumerate() {
        let (client, server) = (case.client.ip(), case.server.ip());
        let (from, to) = (case.client.port(), case.server.port());
        let (family, listener) = match client {
            IpAddr::V4(_) => ("ip", format!("127.0.0.1:{port4}")),
            IpAddr::V6(_) => ("ip6", format!("[::1]:{port6}")),
        };
        let there = format!(
            "{family} saddr {client} {family} daddr {server} tcp sport {from} tcp dport {to}"
        );
        let back = format!(
            "{family} saddr {server} {family} daddr {client} tcp sport {to} tcp dport {from}"
        );
        for stage in ["taken", "arrived", "made", "left"] {
            let _ = writeln!(counters, "  counter {stage}_{number} {{ }}");
        }
        let interface = &case.interface;
        let _ = writeln!(
            taken,
            "    iifname \"{interface}\" {there} counter name taken_{number} tproxy {family} to {listener} {mark} accept"
        );
        let _ = writeln!(arrived, "    {there} counter name arrived_{number}");
        let _ = writeln!(made, "    {back} counter name made_{number}");
        let _ = writeln!(left, "    {back} counter name left_{number} drop");
    }
    let before_nodes = PRIORITY_TAKE - 1;
    // Behind the chains of nodes, whose counters see the packets too.
    let last = PRIORITY_LAST + 1;
    format!(
        "{}table inet {table} {{\n{counters}  chain prerouting {{\n    type filter hook prerouting priority {before_nodes}; policy accept;\n{taken}  }}\n  chain input {{\n    type filter hook input priority {last}; policy accept;\n{arrived}  }}\n  chain output_first {{\n    type filter hook output priority {PRIORITY_FIRST}; policy accept;\n{made}  }}\n  chain output_last {{\n    type filter hook output priority {last}; policy accept;\n{left}  }}\n}}\n",
        removal(table)
    )
}

/// The probe's table and policy route, which must be removed afterwards.
struct InstalledProbe {
    table: String,
    delivery: PolicyRoute,
}

impl Drop for InstalledProbe {
    fn drop(&mut self) {
        if let Err(error) = run_nft(&removal(&self.table)) {
            tracing::warn!(%error, "the probe's table could not be removed");
        }
        // A running node needs the rule and the route itself.
        if tables_in_place().is_ok_and(|tables| tables.is_empty()) {
            self.delivery.remove();
        }
    }
}

/// A pair of devices. The LAN interfaces receive the packets sent on the first.
struct VethPair {
    name: String,
}

impl VethPair {
    fn make(cases: &[ProbeCase]) -> io::Result<Self> {
        let process = std::process::id();
        let device = Self {
            name: format!("tlp{process}a"),
        };
        let (one, other) = (device.name.as_str(), format!("tlp{process}b"));
        run("ip", &format!("link add {one} type veth peer name {other}"))?;
        for end in [one, &other] {
            // Without an address it sends nothing of itself. A kernel without IPv6 refuses this.
            let _ = run("ip", &format!("link set {end} addrgenmode none"));
        }
        run("ip", &format!("link set {one} up"))?;
        run("ip", &format!("link set {other} up"))?;
        run("tc", &format!("qdisc add dev {one} clsact"))?;
        let mut sources: Vec<(IpAddr, &str)> = cases
            .iter()
            .map(|case| (case.client.ip(), case.interface.as_str()))
            .collect();
        sources.dedup();
        for (client, interface) in sources {
            let (protocol, matched) = match client {
                IpAddr::V4(_) => ("ip", format!("ip src {client}/32")),
                IpAddr::V6(_) => ("ipv6", format!("ip6 src {client}/128")),
            };
            run(
                "tc",
                &format!(
                    "filter add dev {one} egress protocol {protocol} u32 match {matched} action mirred ingress redirect dev {interface}"
                ),
            )?;
        }
        Ok(device)
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        // It may not have come into being.
        let _ = run("ip", &format!("link del {}", self.name));
    }
}

fn run(name: &str, arguments: &str) -> io::Result<()> {
    let output = tool(name)
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| explain_missing(name, error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "{name} {arguments}: {}",
        said.lines()
            .next()
            .unwrap_or("it failed without an error message")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbour_shares_the_network_but_differs() {
        for (own, length, other) in [
            ("198.18.1.1", 24, Some("198.18.1.254")),
            ("198.18.1.254", 24, Some("198.18.1.253")),
            ("198.18.1.1", 30, Some("198.18.1.2")),
            ("198.18.1.1", 31, Some("198.18.1.0")),
            ("198.18.1.1", 32, None),
            ("2001:2:0:1::1", 127, Some("2001:2:0:1::")),
            ("2001:2:0:1::1", 128, None),
        ] {
            let other = other.map(|text| text.parse::<IpAddr>().unwrap());
            assert_eq!(neighbour(own.parse().unwrap(), length), other, "{own}");
        }
    }

    #[test]
    fn the_first_host_of_a_prefix_is_probed() {
        let host = |text: &str| host_in(&text.parse().unwrap()).to_string();
        assert_eq!(host("198.18.2.0/24"), "198.18.2.1");
        assert_eq!(host("198.18.2.9/32"), "198.18.2.9");
        assert_eq!(host("2001:2:0:2::/64"), "2001:2:0:2::1");
    }
}
