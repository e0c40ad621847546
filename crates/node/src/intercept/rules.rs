//! The ruleset as text for `nft -f`: a table, its sets and chains.
//!
//! ```text
//!   SYN from the LAN ─► choose: only_marked, [[intercept.rule]] ─► begin
//!   begin: accept rules of the policy ─┬─► take: to the listener, which accepts
//!                                      ├─► learn: server @reached ? take : hold
//!                                      └─► hold: logged, to the mute listener
//!   held SYN that is let in (loopback, marked) ─► take
//!   packet of a socket of ours ─► own: mark, deliver locally
//!   input, last: taken SYN ─► arrived     (it passed the rules of this machine)
//!   output, first and last: SYN-ACK to a client, SYN to a server ─► made, left
//! ```
//!
//! Only SYNs are handed to the listener, so that bypassed connections, and connections older than
//! the rules, are never intercepted in the middle. Later packets of an intercepted connection are
//! recognised by its socket. During the handshake this is a request socket, for which
//! `socket wildcard` is undecided and stops a rule: chain `handshake` tells it from the listener of
//! another program. Its packets are ours even if the server is bypassed meanwhile. One exception is
//! a listener that answers with SYN cookies, which has no socket until the handshake is complete:
//! for it, the four-tuples of SYNs that reached the listener are remembered for some seconds. A
//! bypassed SYN ends this for its connection. When the set of SYNs is full, as in a SYN flood, a
//! SYN is not intercepted and passes.
//!
//! Where `[intercept.reset_surviving]` names ports, up to two packets each half second of a connection that passes by
//! are logged to this node, if a SYN in its place would be intercepted ([`super::surviving_flows`]).
//!
//! A packet filter of this machine may drop an intercepted SYN. The client then sends its SYN
//! again. A SYN that was intercepted before and has not passed the input hook is therefore not
//! intercepted again: it passes, and so do later SYNs of the same client to the same server for
//! some minutes. The counters report the number of these SYNs ([`super::firewall_watch`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use engine::{AcceptMode, AcceptRule, IpPrefix};

use super::held::HoldPorts;
use super::surviving::{CLIENT_PREFIX, SERVER_PREFIX};
use super::surviving_flows::FLOWS_MAX;
use crate::config::{InterceptRule, MarkMatch, NodeConfig, PortRange, RuleAction, joined};

/// SYNs remembered for [`OPENING_SECONDS`]; at 6,500 new connections a second it is full.
const OPENING_SIZE: usize = 65_535;
/// A handshake over a slow LAN with two lost packets ends within it.
const OPENING_SECONDS: u64 = 10;
/// SYNs that passed the input hook. Twice [`OPENING_SIZE`], because the kernel frees expired
/// elements late; a SYN that is missing here counts as dropped.
const ARRIVED_SIZE: usize = 131_070;
/// Clients and servers between which a SYN was dropped by this machine.
const FILTERED_SIZE: usize = 65_535;
/// The time for which these pairs are kept. The end costs one repeated SYN (1 s); an operator who
/// repairs the packet filter waits no longer than this.
pub(super) const FILTERED_FOR: Duration = Duration::from_secs(300);
/// SYNs that wait for the node: [`HELD_EACH_SECOND`] for [`OPENING_SECONDS`], and room for expired ones.
const HELD_SIZE: usize = 16_384;
/// Servers bypassed at a time: four times as many as the engine keeps, whose ends are a moment early.
const AVOIDED_SIZE: usize = 65_535;
/// The limit of clients that are bypassed at a time, twice the number that the engine requests
/// within their time.
const PASSING_SIZE: usize = 2_000;

/// Servers whose clients are accepted at once: four times as many as the engine keeps.
const REACHED_SIZE: usize = 65_535;
/// The number of SYNs that are held each second; further clients go to their servers directly. It
/// is twice the burst of a large branch's morning, and a tenth of the log's buffer.
const HELD_EACH_SECOND: u32 = 1_000;
/// The limit for one client (IPv6: one /64) each second, and at once. A person who opens a page
/// with fifty new servers stays below it; a port scan soon exceeds it and goes directly.
const HELD_EACH_SECOND_PER_CLIENT: u32 = 10;
const HELD_AT_ONCE_PER_CLIENT: u32 = 100;
/// Clients whose SYNs are counted for that.
const HOLDERS_SIZE: usize = 16_384;
/// The packets that are logged of each direction of a connection that passes by. Whether it is idle is decided for
/// seconds, so that one packet each half second is enough; the second one is the answer to a question.
const PASSING_EACH_SECOND: u32 = 2;
/// The time for which these connections are sampled after their last packet.
const PASSING_SECONDS: u64 = 300;
/// The bytes that are logged of them: the longest headers of IPv6 and TCP are 100.
const PASSING_BYTES: u32 = 128;
/// The number of bypassed servers' answers that are logged each second: each ends a bypass, so they
/// are few.
const ANSWERED_EACH_SECOND: u32 = 100;
/// The log prefix that the rules give to a SYN that waits for the node.
pub(super) const HELD_PREFIX: &[u8] = b"held";
/// The log prefix that the rules give to a SYN-ACK of a server that is bypassed.
pub(super) const ANSWERED_PREFIX: &[u8] = b"answered";

/// A SYN, and a server's answer to one.
const SYN: &str = "tcp flags & (fin | syn | rst | ack) == syn";
const SYN_ACK: &str = "tcp flags & (fin | syn | rst | ack) == (syn | ack)";

/// After the chains of other rulesets, which end at 300 (conntrack helpers), and before the
/// probe's chains (one more) and the kernel's own confirmation of connections.
pub(super) const PRIORITY_LAST: i64 = i32::MAX as i64 - 2;
/// Before all others.
pub(super) const PRIORITY_FIRST: i64 = i32::MIN as i64;
/// After rules of others at `mangle` (-150), which may set or restore packet marks, and before
/// destination NAT (-100).
pub(super) const PRIORITY_TAKE: i64 = -140;

/// The counters of one family. A counter's name in the table ends in the family's number.
pub(super) const FAMILY_COUNTERS: [&str; 9] = [
    "syns_taken",
    "syns_arrived",
    "syns_lost",
    "answers_made",
    "answers_left",
    "opens_made",
    "opens_left",
    "replies_came",
    "replies_arrived",
];

/// The name of the counter of a rule, counted from 1.
pub(super) fn rule_counter(number: usize) -> String {
    format!("rule_{number}")
}

/// nft's names of the address families, and the numbers that our names end in.
const FAMILIES: [(&str, u8); 2] = [("ip", 4), ("ip6", 6)];

/// The contents of the table that change while it is installed.
#[derive(Debug, Default)]
pub struct TableContents<'a> {
    /// The destinations that are intercepted.
    pub destinations: &'a [IpPrefix],
    /// Clients' and servers' networks between which nothing is taken.
    pub bypassed_routes: &'a [(IpPrefix, IpPrefix)],
    /// Addresses of the peers themselves.
    pub peer_addresses: BTreeSet<IpAddr>,
    /// Servers that are bypassed, and for how long still.
    pub avoided: BTreeMap<SocketAddr, Duration>,
    /// The servers whose clients are accepted at once where the policy allows learning, and the
    /// remaining times.
    pub reached: BTreeMap<SocketAddr, Duration>,
}

/// The prefix of every node's table.
pub(super) const TABLE_PREFIX: &str = "trunkline_";

/// The name of a node's table.
#[must_use]
pub fn table_name(node: &str) -> String {
    format!("{TABLE_PREFIX}{}", node.replace('-', "_"))
}

/// The inputs of the rules that do not change while they are installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterceptRuleset {
    table: String,
    lan_interfaces: Vec<String>,
    port: u16,
    mark: u32,
    bypass_ports: Vec<RangeInclusive<u16>>,
    only_marked: Option<MarkMatch>,
    rules: Vec<InterceptRule>,
    /// UDP ports of servers that clients are kept from, so that they come by TCP.
    blocked_udp_ports: Vec<u16>,
    accept: AcceptMode,
    accept_rules: Vec<AcceptRule>,
    /// The ports for held SYNs; `None` where they cannot be held, and all clients are accepted at
    /// once.
    hold: Option<HoldPorts>,
    /// The ports of servers whose connections are reset if they pass by.
    surviving_ports: Vec<PortRange>,
}

/// The UDP ports that accelerators which are on keep clients from.
fn blocked_udp_ports(config: &NodeConfig) -> Vec<u16> {
    let accelerators = config.policy.accelerators.iter();
    let ports = accelerators.flat_map(|one| one.settings.blocked_udp_ports());
    let ports: BTreeSet<u16> = ports.copied().collect();
    ports.into_iter().collect()
}

/// The bits of the packet mark that are ours.
pub(super) const MARK_MASK: u32 = 0xff00_0000;

impl InterceptRuleset {
    /// The rules of this configuration.
    #[must_use]
    pub fn new(config: &NodeConfig, hold: Option<HoldPorts>) -> Self {
        Self {
            table: table_name(&config.name),
            lan_interfaces: config.lan_interfaces.clone(),
            port: config.intercept.port,
            mark: u32::from(config.intercept.mark) << 24,
            bypass_ports: joined(config.bypass_ports.clone()),
            only_marked: config.intercept.only_marked,
            rules: config.intercept.rules.clone(),
            blocked_udp_ports: blocked_udp_ports(config),
            accept: config.policy.accept,
            accept_rules: config.policy.accept_rules.clone(),
            hold,
            surviving_ports: (config.intercept.reset_surviving.as_ref())
                .map_or(Vec::new(), |resets| resets.ports.clone()),
        }
    }

    /// The value of the mark within [`MARK_MASK`].
    pub(super) fn mark(&self) -> u32 {
        self.mark
    }

    /// The operator's rules, in the configuration's order.
    pub(super) fn rules(&self) -> &[InterceptRule] {
        &self.rules
    }

    /// Puts the whole table in place, instead of one that may be there.
    #[must_use]
    pub fn install(&self, contents: &TableContents<'_>) -> String {
        let table = &self.table;
        let (v4, v6) = by_family(contents.destinations);
        let (avoided4, avoided6) = servers_by_family(&contents.avoided);
        let (reached4, reached6) = servers_by_family(&contents.reached);
        let (routes4, routes6) = routes_by_family(contents.bypassed_routes);
        let (peers4, peers6) = addresses_by_family(&contents.peer_addresses);
        let interfaces = quoted(&self.lan_interfaces);
        let mark = set_mark(self.mark);
        let mut text = removal(table);
        let _ = write!(
            text,
            r"table inet {table} {{
{counters}  set destinations4 {{ type ipv4_addr; flags interval; {v4} }}
  set destinations6 {{ type ipv6_addr; flags interval; {v6} }}
  set bypassed_routes4 {{ type ipv4_addr . ipv4_addr; flags interval; {routes4} }}
  set bypassed_routes6 {{ type ipv6_addr . ipv6_addr; flags interval; {routes6} }}
  set peers4 {{ type ipv4_addr; {peers4} }}
  set peers6 {{ type ipv6_addr; {peers6} }}
  set avoided4 {{ type ipv4_addr . inet_service; flags timeout; size {AVOIDED_SIZE}; {avoided4} }}
  set avoided6 {{ type ipv6_addr . inet_service; flags timeout; size {AVOIDED_SIZE}; {avoided6} }}
  set reached4 {{ type ipv4_addr . inet_service; flags timeout; size {REACHED_SIZE}; {reached4} }}
  set reached6 {{ type ipv6_addr . inet_service; flags timeout; size {REACHED_SIZE}; {reached6} }}
  set holders4 {{ type ipv4_addr; flags dynamic,timeout; timeout 60s; size {HOLDERS_SIZE}; }}
  set holders6 {{ type ipv6_addr; flags dynamic,timeout; timeout 60s; size {HOLDERS_SIZE}; }}
  set passing4 {{ type ipv4_addr; flags interval,timeout; size {PASSING_SIZE}; }}
  set passing6 {{ type ipv6_addr; flags interval,timeout; size {PASSING_SIZE}; }}
  set opening4 {{ type ipv4_addr . inet_service . ipv4_addr . inet_service; flags dynamic,timeout; timeout {OPENING_SECONDS}s; size {OPENING_SIZE}; }}
  set opening6 {{ type ipv6_addr . inet_service . ipv6_addr . inet_service; flags dynamic,timeout; timeout {OPENING_SECONDS}s; size {OPENING_SIZE}; }}
{chains}  chain own {{
    tcp flags & syn == 0 {mark} accept
    meta nfproto ipv4 {SYN_ACK} counter name replies_came4
    meta nfproto ipv6 {SYN_ACK} counter name replies_came6
    {mark} accept
  }}
  chain handshake {{
    socket wildcard 1 return
    goto own
  }}
  chain prerouting {{
    type filter hook prerouting priority {PRIORITY_TAKE}; policy accept;
    meta l4proto != tcp return
    socket transparent 1 socket wildcard 0 goto own
    tcp flags & syn == 0 socket transparent 1 jump handshake
{held}    iifname != {{ {interfaces} }} return
    fib daddr type local return
",
            counters = self.counters(),
            chains = self.chains(),
            held = self.rules_for_held(&interfaces) + &self.answers_passing(&interfaces),
        );
        if !self.bypass_ports.is_empty() {
            let ports: Vec<String> = self.bypass_ports.iter().map(range_text).collect();
            let _ = writeln!(text, "    tcp dport {{ {} }} return", ports.join(", "));
        }
        for (family, version) in FAMILIES {
            let tuple = tuple(family);
            let tproxy = self.tproxy(version, self.port);
            let _ = write!(
                text,
                r"    {family} daddr @peers{version} return
    {family} saddr . {family} daddr @bypassed_routes{version} return
    {family} daddr . tcp dport @avoided{version} return
    {family} saddr @passing{version} {SYN} goto pass{version}
    {SYN} {pair} @filtered{version} goto pass{version}
{passing}    {family} daddr @destinations{version} {SYN} goto choose{version}
    {SYN} {tuple} @arrived{version} goto pass{version}
    {tuple} @arrived{version} {tproxy} accept
",
                pair = pair(family),
                passing = self.requests_passing(family, version),
            );
        }
        text.push_str("  }\n");
        text.push_str(&self.udp_chain(&interfaces));
        text.push_str(&self.watching_chains());
        text.push_str("}\n");
        text
    }

    /// Refuses what is forwarded to the UDP ports that clients are kept from. A refusal has a browser go on by TCP at once.
    fn udp_chain(&self, interfaces: &str) -> String {
        if self.blocked_udp_ports.is_empty() {
            return String::new();
        }
        let ports: Vec<String> = self.blocked_udp_ports.iter().map(u16::to_string).collect();
        let ports = ports.join(", ");
        let mut text =
            "  chain refuse_udp {\n    type filter hook forward priority filter; policy accept;\n"
                .to_owned();
        let _ = writeln!(text, "    iifname != {{ {interfaces} }} return");
        for (family, version) in FAMILIES {
            let _ = write!(
                text,
                r"    {family} daddr @peers{version} return
    {family} saddr . {family} daddr @bypassed_routes{version} return
    {family} saddr @passing{version} return
    {family} daddr @destinations{version} udp dport {{ {ports} }} reject
"
            );
        }
        text.push_str("  }\n");
        text
    }

    /// The chains that a SYN to a destination goes through.
    fn chains(&self) -> String {
        let mut text = String::new();
        for (family, version) in FAMILIES {
            let tuple = tuple(family);
            let take = self.tproxy(version, self.port);
            let _ = write!(
                text,
                r#"  set arrived{version} {{ type {of_tuple}; flags dynamic,timeout; timeout {OPENING_SECONDS}s; size {ARRIVED_SIZE}; }}
  set filtered{version} {{ type {of_pair}; flags dynamic,timeout; timeout {filtered_seconds}s; size {FILTERED_SIZE}; }}
  chain pass{version} {{
    delete @arrived{version} {{ {tuple} }}
  }}
  chain take{version} {{
    {tuple} @opening{version} {tuple} != @arrived{version} counter name syns_lost{version} update @filtered{version} {{ {pair} }}
    {pair} @filtered{version} iifname "lo" drop
    {pair} @filtered{version} goto pass{version}
    iifname "lo" update @opening{version} {{ {tuple} }} {take} accept
    update @opening{version} {{ {tuple} }} counter name syns_taken{version} {take} accept
  }}
"#,
                of_tuple = format_args!(
                    "ipv{version}_addr . inet_service . ipv{version}_addr . inet_service"
                ),
                of_pair = format_args!("ipv{version}_addr . ipv{version}_addr . inet_service"),
                filtered_seconds = FILTERED_FOR.as_secs(),
                pair = pair(family),
            );
            let hold = self.hold_port(version).zip(self.hold);
            if let Some((port, HoldPorts { ipv4: group, .. })) = hold {
                let hold = self.tproxy(version, port);
                let log = log(HELD_PREFIX, group);
                let network = match version {
                    4 => "",
                    _ => " & ffff:ffff:ffff:ffff::",
                };
                let _ = write!(
                    text,
                    r"  set held{version} {{ type {of_tuple}; flags dynamic,timeout; timeout {OPENING_SECONDS}s; size {HELD_SIZE}; }}
  chain hold{version} {{
    {tuple} @opening{version} goto take{version}
    update @holders{version} {{ {family} saddr{network} limit rate over {HELD_EACH_SECOND_PER_CLIENT}/second burst {HELD_AT_ONCE_PER_CLIENT} packets }} return
    limit rate over {HELD_EACH_SECOND}/second burst {HELD_EACH_SECOND} packets return
    update @held{version} {{ {tuple} }} {log} {hold} accept
  }}
  chain learn{version} {{
    {family} daddr . tcp dport @reached{version} goto take{version}
    goto hold{version}
  }}
",
                    of_tuple = format_args!(
                        "ipv{version}_addr . inet_service . ipv{version}_addr . inet_service"
                    ),
                );
            }
            let _ = writeln!(text, "  chain begin{version} {{");
            for rule in &self.accept_rules {
                let ports = rule.ports.iter().map(range_text).collect();
                let hosts = (&*rule.clients, &*rule.servers);
                if let Some(matches) = rule_matches(hosts, ports, family, version) {
                    let chain = self.chain(rule.mode, version);
                    let _ = writeln!(text, "    {matches}goto {chain}");
                }
            }
            let chain = self.chain(self.accept, version);
            let _ = writeln!(text, "    goto {chain}\n  }}");
            text.push_str(&self.choose(family, version));
            text.push_str(&self.sample_passing(family, version));
        }
        if self.hold.is_some() {
            text.push_str(&self.input_chain());
        }
        text
    }

    /// Ends a held SYN before the kernel keeps an entry of it: the client's next SYN may go another way, and
    /// has to pass forwarding and address translation as a new connection.
    fn input_chain(&self) -> String {
        let mut text = format!(
            "  chain held {{\n    type filter hook input priority filter - 1; policy accept;\n    meta mark & {MARK_MASK:#010x} != {:#010x} return\n",
            self.mark
        );
        for (family, version) in FAMILIES {
            if self.hold_port(version).is_some() {
                let tuple = tuple(family);
                let _ = writeln!(
                    text,
                    "    {SYN} {tuple} @held{version} {tuple} != @opening{version} drop"
                );
            }
        }
        text.push_str("  }\n");
        text
    }

    /// The rules for traffic from other interfaces than the LAN's: admitted SYNs, and answers of
    /// bypassed servers.
    fn rules_for_held(&self, interfaces: &str) -> String {
        let Some(HoldPorts { ipv4: group, .. }) = self.hold else {
            return String::new();
        };
        let mut text = String::new();
        for (family, version) in FAMILIES {
            let answered = log(ANSWERED_PREFIX, group);
            let _ = write!(
                text,
                r#"    iifname "lo" meta nfproto ipv{version} meta mark & {MARK_MASK:#010x} == {mark:#010x} {SYN} goto take{version}
    iifname != {{ {interfaces} }} {SYN_ACK} {family} saddr . tcp sport @avoided{version} limit rate {ANSWERED_EACH_SECOND}/second {answered}
"#,
                mark = self.mark
            );
        }
        text
    }

    /// The port group that packets of connections that pass by are logged to, if any are.
    fn passing_group(&self) -> Option<u16> {
        let hold = self.hold.filter(|_| !self.surviving_ports.is_empty());
        hold.map(|ports| ports.ipv4)
    }

    /// The chain that samples the packets of clients. It follows the operator's choice as [`Self::choose`] does,
    /// and counts nothing.
    fn sample_passing(&self, family: &str, version: u8) -> String {
        let Some(group) = self.passing_group() else {
            return String::new();
        };
        let of_tuple =
            format!("ipv{version}_addr . inet_service . ipv{version}_addr . inet_service");
        let mut text = String::new();
        for set in ["surviving", "answering"] {
            let _ = writeln!(
                text,
                "  set {set}{version} {{ type {of_tuple}; flags dynamic,timeout; timeout {PASSING_SECONDS}s; size {FLOWS_MAX}; }}"
            );
        }
        let sample = sample("surviving", CLIENT_PREFIX, (family, version), group);
        let _ = write!(
            text,
            "  chain sample{version} {{\n    {sample}\n  }}\n  chain passing{version} {{\n"
        );
        if let Some(only) = &self.only_marked {
            let _ = writeln!(
                text,
                "    meta mark & {:#010x} != {:#010x} return",
                only.mask, only.value
            );
        }
        for rule in &self.rules {
            let ports = rule.ports.iter().map(PortRange::to_string).collect();
            let hosts = (&*rule.clients, &*rule.servers);
            if let Some(matches) = rule_matches(hosts, ports, family, version) {
                let verdict = match rule.action {
                    RuleAction::Accept => format!("goto sample{version}"),
                    RuleAction::Bypass => "return".to_owned(),
                };
                let _ = writeln!(text, "    {matches}{verdict}");
            }
        }
        let _ = writeln!(text, "    goto sample{version}\n  }}");
        text
    }

    /// The rule for clients' packets of connections that pass by, behind all reasons to bypass a SYN.
    fn requests_passing(&self, family: &str, version: u8) -> String {
        if self.passing_group().is_none() {
            return String::new();
        }
        let ports: Vec<String> = self
            .surviving_ports
            .iter()
            .map(PortRange::to_string)
            .collect();
        format!(
            "    tcp flags & syn == 0 tcp dport {{ {} }} {family} daddr @destinations{version} {family} saddr != @passing{version} {} != @filtered{version} {} != @arrived{version} goto passing{version}\n",
            ports.join(", "),
            pair(family),
            tuple(family),
        )
    }

    /// The rules for servers' packets of connections that pass by.
    fn answers_passing(&self, interfaces: &str) -> String {
        let Some(group) = self.passing_group() else {
            return String::new();
        };
        let mut text = String::new();
        for (family, version) in FAMILIES {
            let reverse = format!("{family} daddr . tcp dport . {family} saddr . tcp sport");
            let sample = sample("answering", SERVER_PREFIX, (family, version), group);
            let _ = writeln!(
                text,
                "    iifname != {{ {interfaces} }} {reverse} @surviving{version} {sample}"
            );
        }
        text
    }

    /// The chain that applies the policy.
    fn chain(&self, mode: AcceptMode, version: u8) -> String {
        let name = match mode {
            _ if self.hold_port(version).is_none() => "take",
            AcceptMode::AtOnce => "take",
            AcceptMode::AfterServer => "hold",
            AcceptMode::Learned => "learn",
        };
        format!("{name}{version}")
    }

    fn hold_port(&self, version: u8) -> Option<u16> {
        let ports = self.hold?;
        match version {
            4 => Some(ports.ipv4),
            _ => ports.ipv6,
        }
    }

    /// Hands a packet to the listener on this port.
    fn tproxy(&self, version: u8, port: u16) -> String {
        let mark = set_mark(self.mark);
        match version {
            4 => format!("tproxy ip to 127.0.0.1:{port} {mark}"),
            _ => format!("tproxy ip6 to [::1]:{port} {mark}"),
        }
    }

    fn counters(&self) -> String {
        let mut text = String::new();
        for (_, version) in FAMILIES {
            for name in FAMILY_COUNTERS {
                let _ = writeln!(text, "  counter {name}{version} {{ }}");
            }
        }
        for number in 1..=self.rules.len() {
            let _ = writeln!(text, "  counter {} {{ }}", rule_counter(number));
        }
        text
    }

    /// The statements for the operator's choice of connections to intercept.
    fn choose(&self, family: &str, version: u8) -> String {
        let mut text = format!("  chain choose{version} {{\n");
        if let Some(only) = &self.only_marked {
            let _ = writeln!(
                text,
                "    meta mark & {:#010x} != {:#010x} return",
                only.mask, only.value
            );
        }
        for (index, rule) in self.rules.iter().enumerate() {
            let ports = rule.ports.iter().map(PortRange::to_string).collect();
            let hosts = (&*rule.clients, &*rule.servers);
            if let Some(matches) = rule_matches(hosts, ports, family, version) {
                let verdict = match rule.action {
                    RuleAction::Accept => format!("goto begin{version}"),
                    RuleAction::Bypass => "return".to_owned(),
                };
                let counter = rule_counter(index + 1);
                let _ = writeln!(text, "    {matches}counter name {counter} {verdict}");
            }
        }
        let _ = writeln!(text, "    goto begin{version}\n  }}");
        text
    }

    /// The chains that only count: they show whether intercepted SYNs, answers and opened
    /// connections pass the rules of this machine.
    fn watching_chains(&self) -> String {
        let mut text = format!(
            "  chain input {{\n    type filter hook input priority {PRIORITY_LAST}; policy accept;\n    meta l4proto != tcp return\n    meta mark & {MARK_MASK:#010x} != {:#010x} return\n    tcp flags & syn == 0 return\n",
            self.mark
        );
        for (family, version) in FAMILIES {
            let tuple = tuple(family);
            let _ = write!(
                text,
                r#"    {SYN} {tuple} @opening{version} iifname != "lo" counter name syns_arrived{version}
    {SYN} {tuple} @opening{version} update @arrived{version} {{ {tuple} }}
    meta nfproto ipv{version} {SYN_ACK} counter name replies_arrived{version}
"#
            );
        }
        text.push_str("  }\n");
        for (chain, priority, suffix) in [
            ("output_first", PRIORITY_FIRST, "made"),
            ("output_last", PRIORITY_LAST, "left"),
        ] {
            let _ = write!(
                text,
                "  chain {chain} {{\n    type filter hook output priority {priority}; policy accept;\n    meta l4proto != tcp return\n    tcp flags & syn == 0 return\n"
            );
            for (family, version) in FAMILIES {
                let reverse = format!("{family} daddr . tcp dport . {family} saddr . tcp sport");
                let _ = write!(
                    text,
                    r"    {SYN_ACK} {reverse} @arrived{version} counter name answers_{suffix}{version}
    meta nfproto ipv{version} {SYN} socket transparent 1 counter name opens_{suffix}{version}
"
                );
            }
            text.push_str("  }\n");
        }
        text
    }

    /// Changes which destinations are taken.
    #[must_use]
    pub fn set_destinations(&self, destinations: &[IpPrefix]) -> String {
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

    /// Intercepts again between clients and servers where packets were dropped before.
    #[must_use]
    pub(super) fn forget_filtered(&self) -> String {
        let table = &self.table;
        let mut text = String::new();
        for (_, version) in FAMILIES {
            for set in ["opening", "filtered"] {
                let _ = writeln!(text, "flush set inet {table} {set}{version}");
            }
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

    /// Changes between which networks nothing is taken.
    #[must_use]
    pub fn set_bypassed_routes(&self, routes: &[(IpPrefix, IpPrefix)]) -> String {
        let table = &self.table;
        let mut text = String::new();
        for version in [4, 6] {
            let _ = writeln!(text, "flush set inet {table} bypassed_routes{version}");
        }
        for (clients, servers) in routes {
            let version = if clients.address().is_ipv4() { 4 } else { 6 };
            let _ = writeln!(
                text,
                "add element inet {table} bypassed_routes{version} {{ {clients} . {servers} }}"
            );
        }
        text
    }

    /// Leaves the new connections of some clients alone.
    #[must_use]
    pub fn pass_by(&self, clients: IpPrefix, lasting: Duration) -> String {
        let version = if clients.address().is_ipv4() { 4 } else { 6 };
        format!(
            "add element inet {} passing{version} {{ {clients} timeout {}s }}\n",
            self.table,
            lasting.as_secs().max(1)
        )
    }

    /// Bypasses one more server, or the same one for another time.
    #[must_use]
    pub fn avoid(&self, server: SocketAddr, lasting: Duration) -> String {
        let version = if server.is_ipv4() { 4 } else { 6 };
        format!(
            "{}add element inet {} avoided{version} {{ {} }}\n",
            self.readmit(server),
            self.table,
            server_element(server, lasting)
        )
    }

    /// Ends the bypass of a server.
    #[must_use]
    pub fn readmit(&self, server: SocketAddr) -> String {
        self.delete_server("avoided", server)
    }

    /// Accepts clients of one more server at once where the policy allows learning.
    #[must_use]
    pub fn accept_at_once(&self, server: SocketAddr, lasting: Duration) -> String {
        let version = if server.is_ipv4() { 4 } else { 6 };
        format!(
            "{}add element inet {} reached{version} {{ {} }}\n",
            self.accept_after_server(server),
            self.table,
            server_element(server, lasting)
        )
    }

    /// Accepts clients of a server after it again.
    #[must_use]
    pub fn accept_after_server(&self, server: SocketAddr) -> String {
        self.delete_server("reached", server)
    }

    /// Adding the element first makes it no error when the kernel has just removed it.
    fn delete_server(&self, set: &str, server: SocketAddr) -> String {
        let version = if server.is_ipv4() { 4 } else { 6 };
        let table = &self.table;
        let (address, port) = (server.ip(), server.port());
        format!(
            "add element inet {table} {set}{version} {{ {address} . {port} timeout 1s }}\n\
             delete element inet {table} {set}{version} {{ {address} . {port} }}\n"
        )
    }
}

/// Ports as nft writes them.
fn range_text(ports: &RangeInclusive<u16>) -> String {
    match ports.start() == ports.end() {
        true => ports.start().to_string(),
        false => format!("{}-{}", ports.start(), ports.end()),
    }
}

fn tuple(family: &str) -> String {
    format!("{family} saddr . tcp sport . {family} daddr . tcp dport")
}

fn log(prefix: &[u8], group: u16) -> String {
    let prefix = String::from_utf8_lossy(prefix);
    format!("log prefix \"{prefix}\" group {group} queue-threshold 1")
}

/// The statements that log some packets of each connection.
fn sample(set: &str, prefix: &[u8], (family, version): (&str, u8), group: u16) -> String {
    format!(
        "update @{set}{version} {{ {} limit rate {PASSING_EACH_SECOND}/second burst {PASSING_EACH_SECOND} packets }} {} snaplen {PASSING_BYTES}",
        tuple(family),
        log(prefix, group),
    )
}

/// The statement that sets our bits of the packet mark and leaves the others.
pub(super) fn set_mark(mark: u32) -> String {
    format!(
        "meta mark set meta mark and {:#010x} or {mark:#010x}",
        !MARK_MASK
    )
}

/// A client and a server with its port.
fn pair(family: &str) -> String {
    format!("{family} saddr . {family} daddr . tcp dport")
}

/// The conditions on a packet of this family for a rule to match; `None` when no packet can match.
fn rule_matches(
    (clients, servers): (&[IpPrefix], &[IpPrefix]),
    ports: Vec<String>,
    family: &str,
    version: u8,
) -> Option<String> {
    let mut text = String::new();
    for (field, prefixes) in [("saddr", clients), ("daddr", servers)] {
        if prefixes.is_empty() {
            continue;
        }
        let of_family: Vec<String> = prefixes
            .iter()
            .filter(|prefix| prefix.address().is_ipv4() == (version == 4))
            .map(ToString::to_string)
            .collect();
        if of_family.is_empty() {
            return None;
        }
        // nft takes no prefix of length 0 in a set.
        if !of_family.iter().any(|prefix| prefix.ends_with("/0")) {
            let _ = write!(text, "{family} {field} {{ {} }} ", of_family.join(", "));
        }
    }
    if !ports.is_empty() {
        let _ = write!(text, "tcp dport {{ {} }} ", ports.join(", "));
    }
    Some(text)
}

/// Removes a table. It adds the table first, so that a missing one is no error.
pub(super) fn removal(table: &str) -> String {
    format!("add table inet {table}\ndelete table inet {table}\n")
}

fn by_family(prefixes: &[IpPrefix]) -> (String, String) {
    let (v4, v6): (Vec<&IpPrefix>, Vec<&IpPrefix>) = prefixes
        .iter()
        .partition(|prefix| prefix.address().is_ipv4());
    let texts = |prefixes: Vec<&IpPrefix>| prefixes.iter().map(ToString::to_string).collect();
    (elements(texts(v4)), elements(texts(v6)))
}

fn routes_by_family(routes: &[(IpPrefix, IpPrefix)]) -> (String, String) {
    let of_family = |v4: bool| {
        let routes = routes.iter();
        let routes = routes.filter(|(clients, _)| clients.address().is_ipv4() == v4);
        let texts = routes.map(|(clients, servers)| format!("{clients} . {servers}"));
        elements(texts.collect())
    };
    (of_family(true), of_family(false))
}

fn addresses_by_family(addresses: &BTreeSet<IpAddr>) -> (String, String) {
    let of_family = |v4: bool| {
        let addresses = addresses.iter().filter(|address| address.is_ipv4() == v4);
        elements(addresses.map(ToString::to_string).collect())
    };
    (of_family(true), of_family(false))
}

fn servers_by_family(servers: &BTreeMap<SocketAddr, Duration>) -> (String, String) {
    let of_family = |v4: bool| {
        servers
            .iter()
            .filter(|(server, _)| server.is_ipv4() == v4)
            .map(|(server, lasting)| server_element(*server, *lasting))
            .collect()
    };
    (elements(of_family(true)), elements(of_family(false)))
}

fn server_element(server: SocketAddr, lasting: Duration) -> String {
    let address: IpAddr = server.ip();
    let seconds = lasting.as_secs().max(1);
    format!("{address} . {} timeout {seconds}s", server.port())
}

/// Formats a list of elements. nft has no syntax for an empty list.
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

    fn ruleset() -> InterceptRuleset {
        InterceptRuleset {
            table: table_name("near-1"),
            lan_interfaces: vec!["lan0".to_owned(), "lan1".to_owned()],
            port: 4434,
            mark: 0x7400_0000,
            bypass_ports: vec![22..=22, 8100..=8199],
            only_marked: None,
            rules: Vec::new(),
            blocked_udp_ports: Vec::new(),
            accept: AcceptMode::Learned,
            accept_rules: Vec::new(),
            hold: Some(HoldPorts {
                ipv4: 5001,
                ipv6: Some(5002),
            }),
            surviving_ports: Vec::new(),
        }
    }

    fn prefixes() -> Vec<IpPrefix> {
        ["198.18.2.0/24", "2001:2:0:2::/64"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect()
    }

    #[test]
    fn blocked_udp_ports_are_refused_towards_intercepted_networks() {
        let contents = TableContents {
            destinations: &prefixes(),
            ..TableContents::default()
        };
        assert!(!ruleset().install(&contents).contains("refuse_udp"));
        let ruleset = InterceptRuleset {
            blocked_udp_ports: vec![443],
            ..ruleset()
        };
        let text = ruleset.install(&contents);
        let chain = text.split("chain refuse_udp").nth(1).unwrap();
        let first = chain.lines().nth(2).unwrap();
        assert!(
            first.contains("iifname != { \"lan0\", \"lan1\" } return"),
            "{chain}"
        );
        for line in [
            "ip daddr @destinations4 udp dport { 443 } reject",
            "ip6 daddr @destinations6 udp dport { 443 } reject",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn rules_decide_before_a_syn_and_per_family() {
        let rule = |clients: &[&str], servers: &[&str], ports: &[&str], action| InterceptRule {
            clients: clients.iter().map(|text| text.parse().unwrap()).collect(),
            servers: servers.iter().map(|text| text.parse().unwrap()).collect(),
            ports: ports.iter().map(|text| text.parse().unwrap()).collect(),
            action,
        };
        let ruleset = InterceptRuleset {
            only_marked: Some("0x1/0x1".parse().unwrap()),
            rules: vec![
                rule(
                    &["10.0.0.0/8"],
                    &[],
                    &["80", "8000-8099"],
                    RuleAction::Accept,
                ),
                rule(&[], &["2001:db8::/32"], &[], RuleAction::Bypass),
                rule(&["0.0.0.0/0"], &[], &[], RuleAction::Bypass),
            ],
            ..ruleset()
        };
        let contents = TableContents {
            destinations: &prefixes(),
            ..TableContents::default()
        };
        let text = ruleset.install(&contents);
        let chain = |name: &str| {
            let (_, rest) = text.split_once(&format!("  chain {name} {{\n")).unwrap();
            let (body, _) = rest.split_once("  }").unwrap();
            body.lines().map(str::trim).collect::<Vec<_>>()
        };
        assert_eq!(
            chain("choose4"),
            [
                "meta mark & 0x00000001 != 0x00000001 return",
                "ip saddr { 10.0.0.0/8 } tcp dport { 80, 8000-8099 } counter name rule_1 goto begin4",
                "counter name rule_3 return",
                "goto begin4",
            ]
        );
        assert_eq!(
            chain("choose6"),
            [
                "meta mark & 0x00000001 != 0x00000001 return",
                "ip6 daddr { 2001:db8::/32 } counter name rule_2 return",
                "goto begin6",
            ]
        );
    }

    #[test]
    fn own_sockets_and_wan_side_are_never_intercepted() {
        let contents = TableContents {
            destinations: &prefixes(),
            peer_addresses: BTreeSet::from(["198.18.11.2".parse().unwrap()]),
            ..TableContents::default()
        };
        let text = ruleset().install(&contents);
        let text = &text[text.find("chain prerouting").unwrap()..];
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part}"));
        assert!(place("socket transparent 1") < place("iifname != { \"lan0\", \"lan1\" } return"));
        assert!(place("jump handshake") < place("@avoided4 return"));
        assert!(place("fib daddr type local return") < place("goto choose4"));
        assert!(place("tcp dport { 22, 8100-8199 } return") < place("goto choose4"));
        assert!(place("ip daddr @peers4 return") < place("goto choose4"));
        assert!(place("@avoided6 return") < place("goto choose6"));
    }

    #[test]
    fn table_replaces_the_existing_one() {
        let contents = TableContents {
            peer_addresses: BTreeSet::from(["198.18.11.2".parse().unwrap()]),
            ..TableContents::default()
        };
        let text = ruleset().install(&contents);
        assert!(text.starts_with("add table inet trunkline_near_1\ndelete table"));
        assert!(text.contains("set peers4 { type ipv4_addr; elements = { 198.18.11.2 }; }"));
    }

    /// The lines of one chain.
    fn chain<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let begin = format!("  chain {name} {{");
        let lines = text.lines().skip_while(|line| *line != begin).skip(1);
        let lines = lines.take_while(|line| *line != "  }");
        lines.map(str::trim).collect()
    }

    #[test]
    fn the_policy_decides_which_syns_are_held() {
        let rule = |clients: &[&str], ports, mode| AcceptRule {
            clients: clients.iter().map(|text| text.parse().unwrap()).collect(),
            servers: Vec::new(),
            ports,
            mode,
        };
        let mut ruleset = ruleset();
        ruleset.accept_rules = vec![
            rule(&["198.18.1.9"], vec![], AcceptMode::AtOnce),
            rule(&[], vec![443..=443, 8000..=8099], AcceptMode::AfterServer),
        ];
        let text = ruleset.install(&TableContents::default());
        let rules = [
            "ip saddr { 198.18.1.9/32 } goto take4",
            "tcp dport { 443, 8000-8099 } goto hold4",
            "goto learn4",
        ];
        assert_eq!(chain(&text, "begin4"), rules);
        assert_eq!(
            chain(&text, "begin6"),
            ["tcp dport { 443, 8000-8099 } goto hold6", "goto learn6"]
        );
        let held = chain(&text, "hold6").pop().unwrap();
        assert!(
            held.starts_with("update @held6 ") && held.contains(" log prefix \"held\" group 5001 "),
            "{held}"
        );
        assert!(held.contains("tproxy ip6 to [::1]:5002"), "{held}");
    }

    #[test]
    fn passing_connections_are_sampled_where_syns_are_taken() {
        let contents = TableContents::default();
        assert!(!ruleset().install(&contents).contains("surviving"));
        let rule = |ports: &[&str], action| InterceptRule {
            clients: Vec::new(),
            servers: Vec::new(),
            ports: ports.iter().map(|text| text.parse().unwrap()).collect(),
            action,
        };
        let ruleset = InterceptRuleset {
            surviving_ports: vec!["139".parse().unwrap(), "445-450".parse().unwrap()],
            only_marked: Some("0x1/0x1".parse().unwrap()),
            rules: vec![
                rule(&["446"], RuleAction::Bypass),
                rule(&["445-450"], RuleAction::Accept),
                rule(&[], RuleAction::Bypass),
            ],
            ..ruleset()
        };
        let text = ruleset.install(&contents);
        let rules = [
            "meta mark & 0x00000001 != 0x00000001 return",
            "tcp dport { 446 } return",
            "tcp dport { 445-450 } goto sample6",
            "return",
            "goto sample6",
        ];
        assert_eq!(chain(&text, "passing6"), rules);
        let sample = chain(&text, "sample4").concat();
        assert!(
            sample.contains(
                "limit rate 2/second burst 2 packets } log prefix \"passing-client\" group 5001 "
            ),
            "{sample}"
        );
        let prerouting = chain(&text, "prerouting");
        let place = |part: &str| {
            let place = prerouting.iter().position(|line| line.contains(part));
            place.unwrap_or_else(|| panic!("no {part}"))
        };
        let passing = place("tcp dport { 139, 445-450 } ip daddr @destinations4");
        for earlier in [
            "socket transparent 1",
            "fib daddr type local return",
            "{ 22, 8100-8199 } return",
            "@peers4 return",
            "@bypassed_routes4 return",
            "@avoided4 return",
        ] {
            assert!(place(earlier) < passing, "{earlier}");
        }
        assert!(place("ip daddr . tcp dport . ip saddr . tcp sport @surviving4") < passing);
        let unheld = InterceptRuleset {
            hold: None,
            ..ruleset
        };
        assert!(!unheld.install(&contents).contains("surviving"));
    }

    #[test]
    fn unholdable_connections_are_accepted_at_once() {
        let mut ruleset = ruleset();
        ruleset.accept = AcceptMode::AfterServer;
        ruleset.hold = Some(HoldPorts {
            ipv4: 5001,
            ipv6: None,
        });
        let text = ruleset.install(&TableContents::default());
        assert_eq!(chain(&text, "begin4"), ["goto hold4"]);
        assert_eq!(chain(&text, "begin6"), ["goto take6"]);
        ruleset.hold = None;
        let text = ruleset.install(&TableContents::default());
        assert_eq!(chain(&text, "begin4"), ["goto take4"]);
        assert!(!text.contains("chain held") && !text.contains("log"));
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
