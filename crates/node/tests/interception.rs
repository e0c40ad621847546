//! Interception in network namespaces, with real processes. The tests need root, and report it if
//! it is missing.
//!
//! ```text
//!   client ── lan0 [near] wan0 ── wan0 [far] lan0 ── server
//!   198.18.1.0/24     198.18.11.0/30      198.18.2.0/24       and the same in 2001:2::/48
//!     └────────────────── 198.18.3.0/24 ──────────────┘          for an asymmetric route
//! ```
//!
//! The test program also provides the tested processes: started as `node ...` it is a node or its
//! watchdog, as `serve` a server that answers with its client's address, as `fetch` a client.

#![allow(clippy::unwrap_used)]

mod accepting;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime};

use node::identity::NodeIdentity;
use node::pairing::PinDirectory;

#[path = "interception/firewall.rs"]
mod firewall;
#[path = "interception/surviving.rs"]
mod surviving;

/// The reload request of tests, which remove the peers and restrictions that they have added.
const RELOAD: node::admin::AdminRequest = node::admin::AdminRequest::Reload {
    remove_peers: false,
    remove_restrictions: true,
};
const SERVER: &str = "198.18.2.2:8080";
const SERVER_IPV6: &str = "[2001:2:0:2::2]:8080";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["node", "run", config, ..] => run_node(Path::new(config)),
        ["node", "watchdog", name, ..] => watch(name, &arguments),
        ["serve", port] => serve(port.parse().unwrap()),
        ["echo", port] => surviving::echo(port.parse().unwrap()),
        ["mount", server, pause_ms] => {
            let pause = Duration::from_millis(pause_ms.parse().unwrap());
            surviving::mount(server.parse().unwrap(), pause);
        }
        ["fetch", server, patience_ms] => {
            let patience = Duration::from_millis(patience_ms.parse().unwrap());
            return fetch(server.parse().unwrap(), patience);
        }
        ["hold", server, count] => hold(server.parse().unwrap(), count.parse().unwrap()),
        ["check", config] => {
            let config = node::config::NodeConfig::load(Path::new(config)).unwrap();
            let found = node::preflight::look(&config);
            println!("{}", found.warnings.join("\n"));
        }
        ["flood", server] => flood(server.parse().unwrap()),
        ["crowd", server, count] => crowd(server.parse().unwrap(), count.parse().unwrap()),
        // What `cargo test` and its relatives ask of a harness.
        words if words.contains(&"--list") => {
            println!("interception: test");
        }
        words => return run_tests(words),
    }
    ExitCode::SUCCESS
}

// The parts that the test program plays.

fn run_node(config: &Path) {
    let path = config.to_owned();
    let watchdog_arguments = move |intercepting: Option<&str>| {
        let mut arguments: Vec<OsString> = vec!["node".into(), "watchdog".into()];
        arguments.push(intercepting.unwrap().into());
        arguments.extend(["node", "run"].map(OsString::from));
        arguments.push(path.clone().into());
        arguments
    };
    let result = node::run(&node::RunOptions {
        config: config.to_owned(),
        watchdog_arguments: Box::new(watchdog_arguments),
    });
    if let Err(error) = result {
        eprintln!("node: {error}");
        std::process::exit(1);
    }
}

fn watch(name: &str, arguments: &[String]) {
    let restart = arguments[3..].iter();
    let restart = restart.filter(|argument| !argument.starts_with("--"));
    node::watch(node::WatchdogOptions {
        intercepting_node: Some(name.to_owned()),
        restart: restart.map(OsString::from).collect(),
        restarts: Vec::new(),
        restarts_option: "--restarted-at",
    })
    .unwrap();
}

/// Answers each connection, once its client has finished, with the client's address and the
/// number of bytes it sent.
fn serve(port: u16) {
    // The standard library's queue of 128 connections overflows in a crowd, and then the kernel resets
    // some of them without any node.
    let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    let address = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port));
    socket.bind(&address.into()).unwrap();
    socket.listen(4_096).unwrap();
    let listener = TcpListener::from(socket);
    println!("ready");
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        std::thread::spawn(move || {
            let mut received = Vec::new();
            if stream.read_to_end(&mut received).is_ok() {
                let from = stream.peer_addr().unwrap().ip().to_canonical();
                let _ = write!(stream, "{from} {}", received.len());
            }
        });
    }
}

/// Sends 200,000 bytes, ends its direction, and prints the answer.
fn fetch(server: SocketAddr, patience: Duration) -> ExitCode {
    let exchange = || {
        let mut stream = TcpStream::connect_timeout(&server, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(&[b'x'; 200_000])?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    match exchange() {
        Ok(answer) => {
            print!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            print!("{:?}", error.kind());
            ExitCode::FAILURE
        }
    }
}

/// Opens so many connections and keeps them until its input ends.
fn hold(server: SocketAddr, count: usize) {
    let connect = |_| TcpStream::connect(server).unwrap();
    let held: Vec<TcpStream> = (0..count).map(connect).collect();
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    drop(held);
}

/// Opens so many connections at the same time, sends a request on each, and prints their ends.
fn crowd(server: SocketAddr, count: usize) {
    let all_open = Arc::new(Barrier::new(count));
    let exchange = move || {
        let patience = Duration::from_secs(30);
        let connected = TcpStream::connect_timeout(&server, patience);
        all_open.wait();
        let mut stream = connected?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(&[b'x'; 1_000])?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    let clients: Vec<_> = (0..count)
        .map(|_| {
            let client = std::thread::Builder::new().stack_size(64 << 10);
            client.spawn(exchange.clone()).unwrap()
        })
        .collect();
    let mut ends = BTreeMap::new();
    for client in clients {
        let end = match client.join().unwrap() {
            Ok(answer) => answer,
            Err(error) => format!("{:?}", error.kind()),
        };
        *ends.entry(end).or_insert(0) += 1;
    }
    print!("{ends:?}");
}

/// Sends 100,000 datagrams that look like packets of an unknown path, and prints how many were
/// answered.
fn flood(server: SocketAddr) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(server).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let mut datagram = [0x40; 1_200];
    for number in 0..100_000_u32 {
        datagram[1..5].copy_from_slice(&number.to_be_bytes());
        // A full queue is as good as a flood.
        let _ = socket.send(&datagram);
    }
    let mut answers = 0;
    while socket.recv(&mut datagram).is_ok() {
        answers += 1;
    }
    print!("{answers}");
}

// The tests.

/// Runs the tests whose names contain one of the words, or all without words.
fn run_tests(words: &[&str]) -> ExitCode {
    let mut words = words
        .iter()
        .filter(|word| !word.starts_with('-'))
        .peekable();
    let is_every_one = words.peek().is_none();
    let words: Vec<_> = words.collect();
    let is_wanted = |name: &str| is_every_one || words.iter().any(|word| name.contains(**word));
    if let Err(missing) = preconditions() {
        println!("interception: SKIPPED, because {missing}");
        return ExitCode::SUCCESS;
    }
    let mut lab = InterceptionLab::build();
    lab.start_nodes();
    for (name, test) in [
        (
            "both_addresses_are_kept_in_both_families",
            both_addresses as fn(&mut InterceptionLab),
        ),
        (
            "a_closed_port_is_refused_from_the_first_try",
            accepting::closed_port,
        ),
        (
            "clients_accepted_at_once_by_the_policy_find_a_closed_port_on_the_next_try",
            accepting::accepted_at_once,
        ),
        (
            "the_first_connection_to_a_server_is_accelerated_and_accepted_after_it",
            accepting::first_connection,
        ),
        (
            "a_server_that_answers_while_it_is_bypassed_is_accelerated_again",
            accepting::bypassed_server_answers,
        ),
        (
            "held_connections_survive_strict_reverse_path_filtering",
            accepting::strict_reverse_path,
        ),
        ("routes_are_followed", followed_routes),
        ("a_client_at_its_share_passes_by", client_at_its_share),
        (
            "a_peers_own_address_is_never_intercepted",
            accepting::peers_own_address,
        ),
        (
            "an_asymmetric_route_is_found_named_and_bypassed",
            accepting::asymmetric_route,
        ),
        (
            "servers_that_are_silent_or_unreachable_look_so_to_their_clients",
            accepting::silent_and_unreachable,
        ),
        (
            "udp_is_taken_and_left_when_it_is_blocked_and_taken_again",
            blocked_udp,
        ),
        (
            "strangers_get_no_answer_by_udp_and_disturb_nobody",
            strangers,
        ),
        ("a_hung_node_is_passed_by_within_two_seconds", hung_node),
        (
            "a_killed_node_is_passed_by_at_once_and_comes_back",
            killed_node,
        ),
        ("a_silent_peer_is_passed_by", silent_peer),
        (
            "what_input_rules_of_the_near_gateway_drop_is_found_and_passes_by",
            firewall::near_input,
        ),
        (
            "one_family_alone_is_withdrawn_when_the_other_passes",
            firewall::one_family,
        ),
        (
            "input_rules_that_drop_one_port_cost_one_repeated_syn",
            firewall::one_port,
        ),
        (
            "answers_that_output_rules_drop_are_found",
            firewall::near_output,
        ),
        (
            "clients_whose_answers_were_dropped_go_directly_after_the_withdrawal",
            firewall::clients_before_a_withdrawal,
        ),
        (
            "what_input_rules_of_the_far_gateway_drop_is_told_to_the_near_node",
            firewall::far_input,
        ),
        (
            "a_reload_ends_the_bypass_of_the_server_that_output_rules_of_the_far_gateway_hit",
            firewall::far_output,
        ),
        (
            "dropped_answers_to_clients_are_no_asymmetric_route",
            firewall::far_input_of_clients,
        ),
        (
            "rules_of_the_configuration_keep_a_forward_policy",
            firewall::forward_policy,
        ),
        (
            "only_connections_that_the_operator_marked_are_intercepted",
            firewall::only_marked,
        ),
        (
            "a_handshake_that_began_here_ends_here",
            handshake_before_a_bypass,
        ),
        (
            "idle_connections_older_than_the_node_are_reset_once",
            surviving::idle_connections,
        ),
        ("rules_that_somebody_removed_come_back", removed_rules),
        ("a_stopped_node_leaves_nothing_behind", stopped_node),
        (
            "a_stopped_node_leaves_what_another_one_needs",
            stopped_beside_another,
        ),
    ] {
        if is_wanted(name) {
            test(&mut lab);
            println!("interception: {name} ... ok");
        }
    }
    drop(lab);
    for site in ["near", "far"] {
        let name = format!("a_{site}_node_of_few_descriptors_resets_nobody");
        if is_wanted(&name) {
            few_descriptors(site);
            println!("interception: {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}

fn preconditions() -> Result<(), String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !status.lines().any(|line| line.starts_with("Uid:\t0\t")) {
        return Err("it needs root for network namespaces".to_owned());
    }
    match node::intercept::missing_tools().as_slice() {
        [] => Ok(()),
        missing => Err(format!("{} is not installed", missing.join(" and "))),
    }
}

fn both_addresses(lab: &mut InterceptionLab) {
    let before = lab.flows_total("near");
    assert_eq!(lab.fetch(SERVER), "198.18.1.2 200000");
    assert_eq!(lab.fetch(SERVER_IPV6), "2001:2:0:1::2 200000");
    assert_eq!(
        lab.flows_total("near"),
        before + 2,
        "they went through the session"
    );
}

/// Checks that peers may reach the networks that are routed out of the LAN interface, as long as
/// the route exists.
fn followed_routes(lab: &mut InterceptionLab) {
    let serves = |lab: &InterceptionLab| -> Vec<String> {
        let status = lab.status("far").unwrap_or_default();
        let networks = status["serves"].as_array().cloned().unwrap_or_default();
        let texts = networks.iter().filter_map(|network| network.as_str());
        texts.map(str::to_owned).collect()
    };
    let before = serves(lab);
    assert_eq!(before, ["198.18.2.0/24", "2001:2:0:2::/64"]);
    let route = "198.18.77.0/24 via 198.18.2.2 dev lan0";
    let change = |lab: &mut InterceptionLab, action: &str| {
        let words = ["ip", "route", action].into_iter();
        let words: Vec<&str> = words.chain(route.split(' ')).collect();
        lab.set("far", &words);
    };
    change(lab, "add");
    within(Duration::from_secs(3), || {
        serves(lab).contains(&"198.18.77.0/24".to_owned())
    });
    change(lab, "del");
    within(Duration::from_secs(3), || serves(lab) == before);
}

/// Checks that the rules bypass a client that opens more than its share, and that its connections
/// work.
fn client_at_its_share(lab: &mut InterceptionLab) {
    let file = lab.config("near");
    let config = std::fs::read_to_string(&file).unwrap();
    let reload = |lab: &InterceptionLab, config: &str| {
        std::fs::write(&file, config).unwrap();
        let socket = lab.state("near").join("admin.sock");
        node::admin::ask(&socket, RELOAD).unwrap();
    };
    reload(lab, &format!("{config}[limits]\nflows = 16\n"));
    lab.wait_for_session();
    let program = std::env::current_exe().unwrap();
    let mut holder = Command::new("ip")
        .args(["netns", "exec", &lab.namespace("client")])
        .arg(program)
        .args(["hold", SERVER, "9"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    within(Duration::from_secs(5), || {
        let listed = lab.inside(
            "near",
            &["nft", "list", "set", "inet", "trunkline_near", "passing4"],
        );
        text(&listed).contains("198.18.1.2")
    });
    let status = lab.status("near").unwrap();
    assert_eq!(status["flows"], 8, "{status}");
    assert_eq!(
        status["shares_reached"][0],
        "clients 198.18.1.2/32 (9 flows)"
    );
    let before = lab.flows_total("near");
    let direct = lab.status("near").unwrap()["direct_total"].clone();
    assert_eq!(lab.fetch(SERVER), "198.18.1.2 200000");
    assert_eq!(lab.flows_total("near"), before, "it passed by");
    assert_eq!(lab.status("near").unwrap()["direct_total"], direct);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    reload(lab, &config);
    lab.set("near", &["nft", "flush set inet trunkline_near passing4"]);
    within(Duration::from_secs(5), || {
        lab.fetch(SERVER) == "198.18.1.2 200000" && lab.flows_total("near") > before
    });
}

fn blocked_udp(lab: &mut InterceptionLab) {
    let carries = |lab: &InterceptionLab, path: &str| {
        within(Duration::from_secs(20), || {
            ["near", "far"].iter().all(|site| {
                let status = lab.status(site).unwrap_or_default();
                status["peers"][0]["path"]["carries"] == path
            })
        });
    };
    carries(lab, "udp");
    let sent = |lab: &InterceptionLab| {
        let status = lab.status("near").unwrap_or_default();
        status["peers"][0]["path"]["udp"]["sent_bytes"]
            .as_u64()
            .unwrap_or(0)
    };
    // By now the dictionaries know the request: what crosses is an Open, a reference and headers.
    let before = sent(lab);
    assert_eq!(lab.fetch(SERVER), "198.18.1.2 200000");
    assert!(sent(lab) > before + 100, "the request went by UDP");

    let rules = "table inet no_udp { chain input { type filter hook input priority 0; meta l4proto udp drop; }; }";
    for site in ["near", "far"] {
        lab.set(site, &["nft", rules]);
    }
    assert_eq!(lab.fetch(SERVER), "198.18.1.2 200000");
    carries(lab, "tls");
    let status = lab.status("near").unwrap();
    let why = status["peers"][0]["path"]["fallback"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(why.contains("does not answer by UDP"), "{why}");
    assert_eq!(lab.fetch(SERVER), "198.18.1.2 200000");

    for site in ["near", "far"] {
        lab.set(site, &["nft", "delete table inet no_udp"]);
    }
    carries(lab, "udp");
    assert_eq!(lab.fetch(SERVER), "198.18.1.2 200000");
}

fn strangers(lab: &mut InterceptionLab) {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let flood = lab.inside("client", &[program, "flood", "198.18.11.2:4433"]);
    assert_eq!(text(&flood), "0", "UDP answers nobody without a valid tag");
    assert_eq!(lab.fetch(SERVER), "198.18.1.2 200000");
    let status = lab.status("far").unwrap();
    let path = &status["peers"][0]["path"];
    assert_eq!(path["carries"], "udp");
    assert_eq!(path["udp"]["refused_packets"], 0, "they never came so far");
}

fn hung_node(lab: &mut InterceptionLab) {
    let hung = lab.process("near");
    signal(hung, "STOP");
    let started = Instant::now();
    within(Duration::from_secs(3), || {
        lab.fetch_within(SERVER, "200") == "198.18.1.2 200000"
    });
    let took = started.elapsed();
    signal(hung, "CONT");
    assert!(took < Duration::from_millis(2400), "{took:?}");
    lab.wait_for_session();
}

fn killed_node(lab: &mut InterceptionLab) {
    let killed = lab.process("near");
    signal(killed, "KILL");
    let started = Instant::now();
    within(Duration::from_secs(1), || {
        lab.fetch_within(SERVER, "300") == "198.18.1.2 200000"
    });
    assert!(started.elapsed() < Duration::from_secs(1));
    within(Duration::from_secs(5), || {
        lab.status("near")
            .is_some_and(|status| status["process"] != killed)
    });
    lab.wait_for_session();
}

fn silent_peer(lab: &mut InterceptionLab) {
    let far = lab.process("far");
    // Its watchdog only removes the far node's own rules.
    signal(far, "STOP");
    within(Duration::from_secs(9), || {
        let status = lab.status("near").unwrap();
        status["peers"][0]["state"] == "silent"
    });
    within(Duration::from_secs(2), || {
        lab.fetch(SERVER) == "198.18.1.2 200000"
    });
    signal(far, "CONT");
    lab.wait_for_session();
}

fn removed_rules(lab: &mut InterceptionLab) {
    let harms: [&[&str]; 2] = [
        &["nft", "flush", "ruleset"],
        &["ip", "rule", "del", "priority", "7443"],
    ];
    for harm in harms {
        let before = lab.flows_total("near");
        lab.set("near", harm);
        within(Duration::from_secs(12), || {
            lab.fetch_within(SERVER, "500") == "198.18.1.2 200000"
                && lab.flows_total("near") > before
        });
    }
}

/// The near node has answered a client's SYN when its server becomes bypassed. The client's later packets
/// still belong to the connection with the node: the server would reset it.
fn handshake_before_a_bypass(lab: &mut InterceptionLab) {
    let only_syns = "add table ip only_syns; add chain ip only_syns out { type filter hook output priority 0; }; add rule ip only_syns out tcp flags & syn == 0 drop";
    lab.set("client", &["nft", only_syns]);
    let client = lab.begin_fetch(SERVER, "9000");
    within(Duration::from_secs(3), || {
        let established = ["ss", "-Htn", "state", "established", "dport", "8080"];
        !lab.inside("client", &established).stdout.is_empty()
    });
    let bypass = "add element inet trunkline_near avoided4 { 198.18.2.2 . 8080 timeout 9s }";
    lab.set("near", &["nft", bypass]);
    lab.set("client", &["nft", "delete table ip only_syns"]);
    let output = client.wait_with_output().unwrap();
    assert_eq!(text(&output), "198.18.1.2 200000");
    let again = "delete element inet trunkline_near avoided4 { 198.18.2.2 . 8080 }";
    lab.set("near", &["nft", again]);
}

fn stopped_node(lab: &mut InterceptionLab) {
    stop(lab, "far");
    within(Duration::from_secs(3), || {
        let rules = lab.inside("far", &["nft", "list", "ruleset"]);
        rules.stdout.is_empty() && !delivers(lab, "far")
    });
    assert_eq!(lab.fetch(SERVER), "198.18.1.2 200000");
}

fn stopped_beside_another(lab: &mut InterceptionLab) {
    // All that is seen of the other node is its table.
    lab.set("near", &["nft", "add", "table", "inet", "trunkline_other"]);
    stop(lab, "near");
    within(Duration::from_secs(3), || {
        let rules = lab.inside("near", &["nft", "list", "tables"]);
        !text(&rules).contains("trunkline_near")
    });
    assert!(
        delivers(lab, "near"),
        "the other node's connections go nowhere"
    );
}

/// 600 connections at once meet a node that may open 256 files: none is reset, all are answered, rules can
/// still be changed, and then the node works as before.
fn few_descriptors(site: &'static str) {
    let mut lab = InterceptionLab::build();
    lab.limited = Some(site);
    lab.start_nodes();
    assert_eq!(lab.fetch(SERVER), "198.18.1.2 200000");
    let program = std::env::current_exe().unwrap();
    for _ in 0..2 {
        let command = [program.to_str().unwrap(), "crowd", SERVER, "600"];
        let ends = text(&lab.inside("client", &command));
        assert_eq!(ends, "{\"198.18.1.2 1000\": 600}", "{}", lab.log(site));
        // It has told, or was told, that there were too many; and then there is room again.
        lab.wait_for_session();
        let before = lab.flows_total("near");
        within(Duration::from_secs(10), || {
            lab.fetch(SERVER) == "198.18.1.2 200000" && lab.flows_total("near") > before
        });
    }
    let log = lab.log(site);
    for failure in [
        "cannot take a connection",
        "cannot be installed",
        "Too many open files",
    ] {
        assert!(!log.contains(failure), "{log}");
    }
}

fn stop(lab: &InterceptionLab, site: &str) {
    signal(lab.process(site), "TERM");
    within(Duration::from_secs(15), || lab.status(site).is_none());
}

/// Returns true if marked packets are delivered to the site itself.
fn delivers(lab: &InterceptionLab, site: &str) -> bool {
    text(&lab.inside(site, &["ip", "rule"])).contains("7443")
}

// The topology.

struct InterceptionLab {
    prefix: String,
    home: tempfile::TempDir,
    children: Vec<Child>,
    /// The site whose node may open 256 files, if any.
    limited: Option<&'static str>,
}

impl InterceptionLab {
    fn build() -> Self {
        let lab = Self {
            prefix: format!("tln-it{}-", std::process::id()),
            home: tempfile::tempdir().unwrap(),
            children: Vec::new(),
            limited: None,
        };
        for site in ["client", "near", "far", "server"] {
            run(&["ip", "netns", "add", &lab.namespace(site)]);
            lab.set(site, &["ip", "link", "set", "lo", "up"]);
        }
        lab.join(("client", "eth0", 2), ("near", "lan0", 1), 1);
        lab.join(("near", "wan0", 1), ("far", "wan0", 2), 11);
        lab.join(("far", "lan0", 1), ("server", "eth0", 2), 2);
        lab.join(("client", "eth1", 1), ("server", "eth1", 2), 3);
        lab.route("client", "default", 1, 1);
        lab.route("server", "default", 2, 1);
        lab.route("near", "198.18.2.0/24", 11, 2);
        lab.route("far", "198.18.1.0/24", 11, 1);
        for site in ["near", "far"] {
            let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";
            lab.set(site, &["sh", "-c", forward]);
        }
        let strict = "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter";
        lab.set("near", &["sh", "-c", strict]);
        lab
    }

    /// Joins two namespaces by a pair of devices in the networks of this number.
    fn join(&self, one: (&str, &str, u8), two: (&str, &str, u8), network: u8) {
        let (here, there) = (self.namespace(one.0), self.namespace(two.0));
        run(&[
            "ip", "link", "add", one.1, "netns", &here, "type", "veth", "peer", "name", two.1,
            "netns", &there,
        ]);
        for (site, device, host) in [one, two] {
            let v4 = format!("198.18.{network}.{host}/24");
            let v6 = format!("2001:2:0:{network}::{host}/64");
            self.set(site, &["ip", "addr", "add", &v4, "dev", device]);
            self.set(site, &["ip", "addr", "add", &v6, "dev", device, "nodad"]);
            self.set(site, &["ip", "link", "set", device, "up"]);
        }
    }

    fn route(&self, site: &str, to: &str, network: u8, host: u8) {
        let v4 = format!("198.18.{network}.{host}");
        let v6 = format!("2001:2:0:{network}::{host}");
        let to6 = to.replace("198.18.", "2001:2:0:").replace(".0/24", "::/64");
        self.set(site, &["ip", "route", "add", to, "via", &v4]);
        self.set(site, &["ip", "-6", "route", "add", &to6, "via", &v6]);
    }

    fn start_nodes(&mut self) {
        self.serve(8080);
        // IPv6 takes some seconds until all neighbours know each other.
        within(Duration::from_secs(15), || {
            self.fetch_within(SERVER_IPV6, "400") == "2001:2:0:1::2 200000"
        });
        let mut identities = Vec::new();
        for (site, wan, peer, prefixes) in [
            (
                "near",
                "[[policy.accept_rule]]\nports = [8082]\naccept = \"at-once\"\n[[policy.accept_rule]]\nports = [8084]\naccept = \"after-server\"\n",
                "far",
                r#""198.18.2.0/24", "2001:2:0:2::/64", "198.18.11.0/24""#,
            ),
            (
                "far",
                "[wan]\nlisten = \"[::]:4433\"\n",
                "near",
                r#""198.18.1.0/24", "2001:2:0:1::/64""#,
            ),
        ] {
            let state = self.state(site);
            let address = if site == "near" {
                "address = \"198.18.11.2:4433\"\n"
            } else {
                ""
            };
            let config = format!(
                "[node]\nname = \"{site}\"\nstate_directory = \"{}\"\nlan_interfaces = [\"lan0\"]\ngrace = \"1s\"\n{wan}[intercept]\nmode = \"transparent\"\n[dictionary]\nmemory = \"8MiB\"\ndisk = \"16MiB\"\n[[peer]]\nname = \"{peer}\"\n{address}prefixes = [{prefixes}]\n",
                state.display()
            );
            std::fs::write(self.config(site), config).unwrap();
            identities.push((
                peer,
                state.clone(),
                NodeIdentity::load_or_create(&state).unwrap(),
            ));
        }
        let [(_, near, near_id), (_, far, far_id)] = identities.as_slice() else {
            unreachable!("two nodes were made");
        };
        PinDirectory::new(near).add("far", far_id.node()).unwrap();
        PinDirectory::new(far).add("near", near_id.node()).unwrap();
        for site in ["near", "far"] {
            let config = self.config(site);
            self.start(site, &["node", "run", config.to_str().unwrap()]);
        }
        self.wait_for_session();
    }

    /// Waits until both nodes intercept for each other.
    fn wait_for_session(&self) {
        within(Duration::from_secs(15), || {
            ["near", "far"].iter().all(|site| {
                self.status(site).is_some_and(|status| {
                    status["peers"][0]["state"] == "up"
                        && status["interception"]["state"] == "in place"
                        && status["interception"]["destinations"]
                            .as_array()
                            .is_some_and(|destinations| destinations.len() >= 2)
                })
            })
        });
    }

    /// Starts a server and returns its process.
    fn serve(&mut self, port: u16) -> u64 {
        self.start("server", &["serve", &port.to_string()]);
        let server = self.children.last().unwrap();
        u64::from(server.id())
    }

    /// The near node's first stage text about the flow that it accepted last.
    fn last_intercept_stage(&self) -> String {
        let did = &self.last_why()["stages"][0]["did"];
        did.as_str().unwrap().to_owned()
    }

    /// The report about the flow that the near node accepted last.
    fn last_why(&self) -> serde_json::Value {
        let socket = self.state("near").join("admin.sock");
        let ask = |request| node::admin::ask(&socket, request).unwrap();
        let flows = ask(node::admin::AdminRequest::Flows);
        let last = flows["flows"].as_array().unwrap().last().unwrap()["flow"].as_u64();
        ask(node::admin::AdminRequest::Why {
            flow: last.unwrap(),
        })
    }

    fn log(&self, site: &str) -> String {
        let log = self.home.path().join(format!("{site}.log"));
        std::fs::read_to_string(log).unwrap_or_default()
    }

    fn start(&mut self, site: &str, arguments: &[&str]) {
        let log = std::fs::File::create(self.home.path().join(format!("{site}.log"))).unwrap();
        let limit: &[&str] = match self.limited == Some(site) {
            true => &["prlimit", "--nofile=64:256"],
            false => &[],
        };
        let child = Command::new("ip")
            .args(["netns", "exec", &self.namespace(site)])
            .args(limit)
            .arg(std::env::current_exe().unwrap())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.children.push(child);
    }

    fn fetch(&self, server: &str) -> String {
        self.fetch_within(server, "5000")
    }

    fn fetch_within(&self, server: &str, patience_ms: &str) -> String {
        let program = std::env::current_exe().unwrap();
        let command = [program.to_str().unwrap(), "fetch", server, patience_ms];
        text(&self.inside("client", &command))
    }

    /// Begins the work of [`Self::fetch_within`].
    fn begin_fetch(&self, server: &str, patience_ms: &str) -> Child {
        Command::new("ip")
            .args(["netns", "exec", &self.namespace("client")])
            .arg(std::env::current_exe().unwrap())
            .args(["fetch", server, patience_ms])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn status(&self, site: &str) -> Option<serde_json::Value> {
        let socket = self.state(site).join("admin.sock");
        node::admin::ask(&socket, node::admin::AdminRequest::Status).ok()
    }

    fn flows_total(&self, site: &str) -> u64 {
        self.status(site).unwrap()["flows_total"].as_u64().unwrap()
    }

    fn process(&self, site: &str) -> u64 {
        self.status(site).unwrap()["process"].as_u64().unwrap()
    }

    fn inside(&self, site: &str, command: &[&str]) -> Output {
        Command::new("ip")
            .args(["netns", "exec", &self.namespace(site)])
            .args(command)
            .output()
            .unwrap()
    }

    fn set(&self, site: &str, command: &[&str]) {
        let output = self.inside(site, command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
    }

    fn namespace(&self, site: &str) -> String {
        format!("{}{site}", self.prefix)
    }

    fn state(&self, site: &str) -> PathBuf {
        self.home.path().join(site)
    }

    fn config(&self, site: &str) -> PathBuf {
        self.home.path().join(format!("{site}.toml"))
    }
}

impl Drop for InterceptionLab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for site in ["near", "far"] {
                let log = self.home.path().join(format!("{site}.log"));
                let log = std::fs::read_to_string(log).unwrap_or_default();
                eprintln!("--- {site}\n{log}");
            }
        }
        for site in ["client", "near", "far", "server"] {
            // Whatever was started in the namespace, restarted nodes and watchdogs included.
            let namespace = self.namespace(site);
            let output = Command::new("ip")
                .args(["netns", "pids", &namespace])
                .output();
            for process in output.iter().flat_map(|output| {
                let pids = String::from_utf8_lossy(&output.stdout).into_owned();
                pids.split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            }) {
                let _ = Command::new("kill").args(["-KILL", &process]).status();
            }
            let _ = Command::new("ip")
                .args(["netns", "del", &namespace])
                .status();
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

fn run(command: &[&str]) {
    let status = Command::new(command[0])
        .args(&command[1..])
        .status()
        .unwrap();
    assert!(status.success(), "{command:?}");
}

fn signal(process: u64, name: &str) {
    run(&["kill", &format!("-{name}"), &process.to_string()]);
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn within(limit: Duration, mut condition: impl FnMut() -> bool) {
    let started = SystemTime::now();
    while !condition() {
        let elapsed = started.elapsed().unwrap_or_default();
        assert!(elapsed < limit, "it did not happen within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
