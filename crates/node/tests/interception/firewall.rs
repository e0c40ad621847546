//! Gateways with a packet filter of their own, by real nftables rules.
//!
//! The `input` hook sees intercepted connections, the `output` hook the answers, and `forward` only
//! bypassed ones.

use std::time::Duration;

use super::{InterceptionLab, SERVER, SERVER_IPV6, text, within};

const IPV4: &str = "198.18.1.2 200000";
const IPV6: &str = "2001:2:0:1::2 200000";
/// The time within which everything works directly after a packet filter has begun to drop: three
/// seconds, and more on a busy machine.
const DIRECT_WITHIN: Duration = Duration::from_secs(20);
/// The time within which a server that failed is intercepted again: the longest bypass that the tests cause, and
/// more on a busy machine.
const REACHED_WITHIN: Duration = Duration::from_secs(90);
/// The milliseconds that a client waits whose SYNs are dropped for as long as [`DIRECT_WITHIN`] at most.
const PATIENT: &str = "40000";
/// Shorter than a client waits before it repeats a SYN (1 s).
const NO_REPEATED_SYN: &str = "700";

/// Rules that many gateways have.
const INPUT_DROP: &str = "table inet fw { chain input { type filter hook input priority 0; policy drop; ct state established,related accept; iifname lo accept; meta l4proto ipv6-icmp accept; }; }";
const ACCEPT_MARK: &str = "meta mark and 0xff000000 == 0x74000000 accept";

pub(super) fn near_input(lab: &mut InterceptionLab) {
    reach_servers(lab);
    assert_eq!(problems_of(lab, "near"), "", "before there is a filter");
    lab.set("near", &["nft", INPUT_DROP]);
    let found = problems_of(lab, "near");
    for part in [
        "198.18.2.1:445",
        "[2001:2:0:2::1]:445",
        "inet fw input (policy drop)",
        "nft insert rule inet fw input meta mark and 0xff000000 == 0x74000000 accept",
        "iptables -I INPUT -m mark --mark 0x74000000/0xff000000 -j ACCEPT",
        "--add-rich-rule='rule family=\"ipv4\" destination address=\"198.18.2.0/24\"",
        "-A ufw6-before-input -m mark",
    ] {
        assert!(found.contains(part), "no {part} in {found}");
    }

    let before = lab.flows_total("near");
    assert_eq!(lab.fetch(SERVER), IPV4, "its second SYN passes by");
    assert_eq!(lab.fetch(SERVER_IPV6), IPV6);
    within(DIRECT_WITHIN, || {
        blocked(lab, "near") == ["IPv4 input", "IPv6 input"]
    });
    assert_eq!(lab.fetch_within(SERVER, NO_REPEATED_SYN), IPV4);
    assert_eq!(lab.fetch_within(SERVER_IPV6, NO_REPEATED_SYN), IPV6);
    assert_eq!(lab.flows_total("near"), before, "they went directly");
    let status = lab.status("near").unwrap();
    assert_eq!(status["interception"]["withdrawn"], 1);
    assert!(status["interception"]["syns_lost"].as_u64().unwrap() >= 2);
    let shown = node::admin::tables::status(&status);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let cure = "nft insert rule inet fw input meta mark and 0xff000000 == 0x74000000 accept";
    assert!(shown.contains(cure), "{shown}");

    let rule = format!("insert rule inet fw input {ACCEPT_MARK}");
    lab.set("near", &["nft", &rule]);
    reload(lab, "near");
    intercepted_again(lab, &[SERVER, SERVER_IPV6]);
    assert_eq!(problems_of(lab, "near"), "");
    lab.set("near", &["nft", "delete table inet fw"]);
}

pub(super) fn one_family(lab: &mut InterceptionLab) {
    reach_servers(lab);
    // The names that iptables-nft gives.
    let rules = "table ip filter { chain INPUT { type filter hook input priority filter; policy drop; ct state established,related accept; iifname lo accept; }; }";
    lab.set("near", &["nft", rules]);
    let found = problems_of(lab, "near");
    assert!(found.contains("ip filter INPUT (policy drop)"), "{found}");
    assert!(!found.contains("IPv6"), "{found}");
    assert_eq!(lab.fetch(SERVER), IPV4);
    within(DIRECT_WITHIN, || blocked(lab, "near") == ["IPv4 input"]);
    let before = lab.flows_total("near");
    assert_eq!(lab.fetch_within(SERVER, NO_REPEATED_SYN), IPV4);
    assert_eq!(lab.flows_total("near"), before);
    assert_eq!(lab.fetch_within(SERVER_IPV6, NO_REPEATED_SYN), IPV6);
    assert_eq!(lab.flows_total("near"), before + 1, "IPv6 is intercepted");
    lab.set("near", &["nft", "delete table ip filter"]);
    reload(lab, "near");
    intercepted_again(lab, &[SERVER]);
}

pub(super) fn one_port(lab: &mut InterceptionLab) {
    reach_servers(lab);
    let rules = "table inet fw { chain input { type filter hook input priority 0; iifname lan0 tcp dport 8080 drop; }; }";
    lab.set("near", &["nft", rules]);
    let before = lab.flows_total("near");
    assert_eq!(lab.fetch(SERVER), IPV4);
    // Between this client and this server there is no second trial.
    assert_eq!(lab.fetch_within(SERVER, NO_REPEATED_SYN), IPV4);
    assert_eq!(lab.flows_total("near"), before);
    within(DIRECT_WITHIN, || {
        let status = lab.status("near").unwrap();
        status["interception"]["partly_dropped"] == serde_json::json!(["IPv4"])
    });
    assert_eq!(blocked(lab, "near"), [""; 0], "the way is not to blame");
    lab.set("near", &["nft", "delete table inet fw"]);
    reload(lab, "near");
    intercepted_again(lab, &[SERVER]);
}

pub(super) fn near_output(lab: &mut InterceptionLab) {
    reach_servers(lab);
    let rules = "table inet fw { chain output { type filter hook output priority 0; oifname lan0 meta l4proto tcp drop; }; }";
    lab.set("near", &["nft", rules]);
    let found = problems_of(lab, "near");
    assert!(
        found.contains("the node's answers do not reach the clients (IPv4)"),
        "{found}"
    );
    let _ = lab.fetch_within(SERVER, "2500");
    within(DIRECT_WITHIN, || blocked(lab, "near") == ["IPv4 output"]);
    assert_eq!(lab.fetch_within(SERVER, NO_REPEATED_SYN), IPV4);
    lab.set("near", &["nft", "delete table inet fw"]);
    reload(lab, "near");
    intercepted_again(lab, &[SERVER]);
}

/// A client that begins before the withdrawal is through with the first SYN that it repeats a second after it. Linux
/// repeats a SYN after 1, 2, 3, 4, 5, 7, 11 and 19 s.
pub(super) fn clients_before_a_withdrawal(lab: &mut InterceptionLab) {
    reach_servers(lab);
    // One cause of many: a policy that knows neither the LAN side nor the clients.
    let rules = "table inet fw { chain output { type filter hook output priority 0; policy drop; oifname { lo, wan0 } accept; meta l4proto ipv6-icmp accept; icmp type destination-unreachable accept; }; }";
    lab.set("near", &["nft", rules]);
    // This one's clients are accepted after it, because it was never reached before.
    let address = "198.18.2.5/24";
    lab.set("server", &["ip", "addr", "add", address, "dev", "eth0"]);
    let mut clients = vec![(lab.begin_fetch("198.18.2.5:8080", PATIENT), IPV4)];
    for _ in 0..5 {
        for (server, answer) in [(SERVER, IPV4), (SERVER_IPV6, IPV6)] {
            clients.push((lab.begin_fetch(server, PATIENT), answer));
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    let withdrawn = vec!["IPv4 output", "IPv6 output"];
    within(DIRECT_WITHIN, || blocked(lab, "near") == withdrawn);
    for (number, (client, answer)) in clients.into_iter().enumerate() {
        let output = client.wait_with_output().unwrap();
        assert_eq!(text(&output), answer, "client {number}");
    }
    lab.set("near", &["nft", "delete table inet fw"]);
    reload(lab, "near");
    intercepted_again(lab, &[SERVER, SERVER_IPV6]);
}

pub(super) fn far_input(lab: &mut InterceptionLab) {
    let rules = "table inet fw { chain input { type filter hook input priority 0; policy drop; iifname { lo, wan0 } accept; meta l4proto ipv6-icmp accept; }; }";
    lab.set("far", &["nft", rules]);
    let found = problems_of(lab, "far");
    assert!(found.contains("inet fw input (policy drop)"), "{found}");
    // A server of its own, because one whose connection failed is left alone for a while.
    lab.set(
        "server",
        &["ip", "addr", "add", "198.18.2.3/24", "dev", "eth0"],
    );
    let server = "198.18.2.3:8080";
    let first = lab.fetch(server);
    // A client that was not accepted yet sends its SYN again, which passes by.
    assert!(
        [IPV4, "ConnectionReset", "BrokenPipe"].contains(&&*first),
        "{first}"
    );
    assert_eq!(lab.fetch_within(server, NO_REPEATED_SYN), IPV4);
    // Not this server alone passes by, but all that lies behind the peer.
    let status = lab.status("near").unwrap();
    assert_eq!(status["peers"][0]["filtered"], true);
    assert_eq!(
        status["interception"]["destinations"],
        serde_json::json!([])
    );
    assert_eq!(blocked(lab, "far"), ["IPv4 input"]);
    let flows = node::admin::ask(
        &lab.state("near").join("admin.sock"),
        node::admin::AdminRequest::Flows,
    );
    let flows = flows.unwrap().to_string();
    assert!(
        flows.contains("packet filter of the far node's machine"),
        "{flows}"
    );

    lab.set(
        "far",
        &["nft", &format!("insert rule inet fw input {ACCEPT_MARK}")],
    );
    reload(lab, "far");
    reload(lab, "near");
    intercepted_again(lab, &[SERVER, SERVER_IPV6, server]);
    within(DIRECT_WITHIN, || bypassed_servers(lab) == 0);
    within(DIRECT_WITHIN, || blocked(lab, "far").is_empty());
    lab.set("far", &["nft", "delete table inet fw"]);
}

/// The near node's `node reload` ends the bypass of the server that was hit, and not only that of the others.
pub(super) fn far_output(lab: &mut InterceptionLab) {
    let rules = "table inet fw { chain output { type filter hook output priority 0; policy drop; oifname { lo, wan0 } accept; meta l4proto ipv6-icmp accept; }; }";
    lab.set("far", &["nft", rules]);
    let address = "198.18.2.6/24";
    lab.set("server", &["ip", "addr", "add", address, "dev", "eth0"]);
    let server = "198.18.2.6:8080";
    let _ = lab.fetch(server);
    within(DIRECT_WITHIN, || bypassed_servers(lab) == 1);
    for _ in 0..8 {
        assert_eq!(lab.fetch_within(server, NO_REPEATED_SYN), IPV4);
    }
    lab.set("far", &["nft", "delete table inet fw"]);
    reload(lab, "far");
    reload(lab, "near");
    within(DIRECT_WITHIN, || bypassed_servers(lab) == 0);
    intercepted_again(lab, &[server, SERVER]);
    within(DIRECT_WITHIN, || blocked(lab, "far").is_empty());
}

fn bypassed_servers(lab: &InterceptionLab) -> u64 {
    let status = lab.status("near").unwrap();
    status["interception"]["avoided"].as_u64().unwrap()
}

/// Answers to the node's own address pass, so the server seems to answer the client by another route.
pub(super) fn far_input_of_clients(lab: &mut InterceptionLab) {
    let rules = "table inet fw { chain input { type filter hook input priority 0; iifname lan0 ip daddr 198.18.1.0/24 drop; }; }";
    lab.set("far", &["nft", rules]);
    lab.set(
        "server",
        &["ip", "addr", "add", "198.18.2.4/24", "dev", "eth0"],
    );
    let server = "198.18.2.4:8080";
    let _ = lab.fetch(server);
    within(DIRECT_WITHIN, || {
        let status = lab.status("near").unwrap();
        let peer_is_blamed = status["peers"][0]["filtered"] == true;
        let routes = &status["interception"]["bypassed_routes"];
        assert_eq!(*routes, serde_json::json!([]), "the route is not to blame");
        peer_is_blamed
    });
    assert_eq!(lab.fetch_within(server, NO_REPEATED_SYN), IPV4);
    lab.set("far", &["nft", "delete table inet fw"]);
    reload(lab, "far");
    reload(lab, "near");
    intercepted_again(lab, &[SERVER, server]);
    within(DIRECT_WITHIN, || blocked(lab, "far").is_empty());
}

pub(super) fn forward_policy(lab: &mut InterceptionLab) {
    let rules = "table inet fw { chain forward { type filter hook forward priority 0; ct state invalid drop; tcp dport 8080 drop; }; }";
    lab.set("near", &["nft", rules]);
    let found = problems_of(lab, "near");
    assert!(
        found.contains("do not apply to them: inet fw forward (1 rule drops or rejects)"),
        "{found}"
    );
    assert_eq!(lab.fetch(SERVER), IPV4, "interception skips the rule");
    let rules = "[[intercept.rule]]\nclients = [\"198.18.1.3\", \"0.0.0.0/0\", \"::/0\"]\nservers = [\"198.18.2.0/24\", \"198.18.2.2\"]\nports = [8080, \"8000-8099\", \"8099-9000\"]\naction = \"bypass\"\n[[intercept.rule]]\nports = [8080]\naction = \"accept\"\n[[intercept.rule]]\naction = \"bypass\"\n";
    with_intercept(lab, "near", rules);
    holds(lab, "counter rule_3");
    assert_eq!(problems_of(lab, "near"), "");
    let before = lab.flows_total("near");
    assert_eq!(lab.fetch_within(SERVER, "600"), "TimedOut");
    assert_eq!(lab.flows_total("near"), before);
    assert_eq!(lab.fetch(SERVER_IPV6), IPV6, "the second rule accepts it");
    assert_eq!(lab.flows_total("near"), before + 1);
    within(DIRECT_WITHIN, || {
        let status = lab.status("near").unwrap();
        let rules = &status["interception"]["rules"];
        rules[0]["action"] == "bypass"
            && rules[0]["syns"].as_u64() >= Some(1)
            && rules[1]["syns"].as_u64() == Some(1)
            && rules[2]["syns"] == 0
    });
    lab.set("near", &["nft", "delete table inet fw"]);
    with_intercept(lab, "near", "");
    intercepted_again(lab, &[SERVER]);
}

pub(super) fn only_marked(lab: &mut InterceptionLab) {
    with_intercept(lab, "near", "only_marked = \"0x1/0x1\"\n");
    holds(lab, "0x00000001");
    let before = lab.flows_total("near");
    assert_eq!(lab.fetch(SERVER), IPV4);
    assert_eq!(lab.flows_total("near"), before, "nobody marked it");
    let rules = "table inet fw { chain prerouting { type filter hook prerouting priority mangle; iifname lan0 tcp dport 8080 meta mark set meta mark or 0x1; }; }";
    lab.set("near", &["nft", rules]);
    assert_eq!(lab.fetch(SERVER), IPV4);
    assert_eq!(lab.fetch(SERVER_IPV6), IPV6);
    assert_eq!(lab.flows_total("near"), before + 2);
    lab.set("near", &["nft", "delete table inet fw"]);
    with_intercept(lab, "near", "");
    intercepted_again(lab, &[SERVER]);
}

/// The report of `trunkline node check` about the packet filter of a site.
fn problems_of(lab: &InterceptionLab, site: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let config = lab.config(site);
    let command = [program.to_str().unwrap(), "check", config.to_str().unwrap()];
    let problems = text(&lab.inside(site, &command));
    let about_filter = |problem: &&str| {
        problem.starts_with(' ')
            || ["probe", "SYN", "hook"]
                .iter()
                .any(|word| problem.contains(word))
    };
    let lines: Vec<&str> = problems.lines().filter(about_filter).collect();
    lines.join("\n")
}

/// Returns the families and hooks at which a node reports that its machine drops connections.
fn blocked(lab: &InterceptionLab, site: &str) -> Vec<String> {
    let status = lab.status(site).unwrap_or_default();
    let blocked = status["interception"]["blocked"].as_array().cloned();
    let word = |value: &serde_json::Value| value.as_str().unwrap_or("?").to_owned();
    blocked
        .unwrap_or_default()
        .iter()
        .map(|one| format!("{} {}", word(&one["family"]), word(&one["hook"])))
        .collect()
}

/// Reaches both servers through the node. Clients of servers that were reached are accepted at once: their
/// SYNs go to the listener from the LAN side. Those of others are let in by the loopback device, which most
/// packet filters accept. An earlier test may have left a server bypassed for a while.
fn reach_servers(lab: &InterceptionLab) {
    reload(lab, "near");
    for (server, answer, set, element) in [
        (SERVER, IPV4, "reached4", "198.18.2.2 . 8080"),
        (SERVER_IPV6, IPV6, "reached6", "2001:2:0:2::2 . 8080"),
    ] {
        within(REACHED_WITHIN, || {
            let before = lab.flows_total("near");
            assert_eq!(lab.fetch(server), answer);
            lab.flows_total("near") > before
        });
        let list = ["nft", "list", "set", "inet", "trunkline_near", set];
        within(REACHED_WITHIN, || {
            text(&lab.inside("near", &list)).contains(element)
        });
    }
}

fn reload(lab: &InterceptionLab, site: &str) {
    let socket = lab.state(site).join("admin.sock");
    node::admin::ask(&socket, super::RELOAD).unwrap();
}

/// Replaces the lines beside the mode in `[intercept]` of a site.
pub(super) fn with_intercept(lab: &InterceptionLab, site: &str, lines: &str) {
    let text = std::fs::read_to_string(lab.config(site)).unwrap();
    let mode = "mode = \"transparent\"\n";
    let (before, rest) = text.split_once(mode).unwrap();
    let (_, after) = rest.split_once("[dictionary]").unwrap();
    let text = format!("{before}{mode}{lines}[dictionary]{after}");
    std::fs::write(lab.config(site), text).unwrap();
    reload(lab, site);
}

/// Waits until the near node's table has this in it; a reload is answered before.
fn holds(lab: &InterceptionLab, part: &str) {
    let list = ["nft", "list", "table", "inet", "trunkline_near"];
    within(DIRECT_WITHIN, || {
        text(&lab.inside("near", &list)).contains(part)
    });
}

fn intercepted_again(lab: &InterceptionLab, servers: &[&str]) {
    for server in servers {
        within(Duration::from_secs(10), || {
            let before = lab.flows_total("near");
            !lab.fetch_within(server, "1500").contains("T") && lab.flows_total("near") > before
        });
    }
}
