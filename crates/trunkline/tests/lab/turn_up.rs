//! Turn-up tests over an emulated link, as a person runs them.
//!
//! Only what a busy machine cannot change is asserted: sizes, windows, counters, and that no rate is
//! above the link's.

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lab::capture::{self, Edge, Frames, MarkerPath, Packet, Recorder, Transport};
use lab::command;
use lab::kernel::{self, Signal};
use lab::servers::Kind;
use lab::site::{Lab, WithNodes};
use lab::topology::Site;
use serde_json::Value;

use crate::setting::{SLOW, standing, turn};

const KEY: &str = "an onyx cat sleeps";
/// What the far router lets through of the way up, without a word about the rest.
const CARRIED: u64 = 1_380;
const SILENT_DROP: &str = "table ip hole {
    chain forward {
        type filter hook forward priority 0
        iifname wan0 ip length > 1380 drop
    }
}
";

/// The near router gives its own address to what it sends on.
const MASQUERADE: &str = "table ip hidden {
    chain out {
        type nat hook postrouting priority 100
        oifname wan0 masquerade
    }
}
";
pub(crate) const NO_UDP: &str = "table ip closed {
    chain forward {
        type filter hook forward priority 0
        meta l4proto udp drop
    }
}
";

/// The server, ended when dropped.
pub(crate) struct Serving(pub(crate) Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn trunkline(lab: &Lab, role: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command
        .args(["measure"])
        .args(arguments)
        .env("TRUNKLINE_MEASURE_KEY", KEY);
    let namespace = lab.topology().namespace_file(role);
    kernel::prepare_child(&mut command, Some(&namespace)).expect("the namespace is there");
    command
}

fn serve(lab: &Lab) -> Serving {
    let log = lab.logs().join("turn-up-server.log");
    let output = std::fs::File::create(&log).expect("the log can be written");
    let child = trunkline(lab, "server", &["server"])
        .stdout(output)
        .stdin(Stdio::null())
        .spawn()
        .expect("the program starts");
    wait_for(&log, "ready");
    Serving(child)
}

pub(crate) fn wait_for(log: &Path, word: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_to_string(log)
        .unwrap_or_default()
        .contains(word)
    {
        assert!(Instant::now() < until, "the server did not say \"{word}\"");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Has one of the lab's hosts do what these nftables rules say.
pub(crate) fn filter(lab: &Lab, host: &str, rules: &str) {
    let namespace = lab.topology().namespace(host);
    let nft = ["netns", "exec", &namespace, "nft", "-f", "-"];
    command::run_with_input("ip", nft, rules).expect("the rules are taken");
}

/// Has one of the lab's hosts send through this queueing discipline.
pub(crate) fn queue(lab: &Lab, host: &str, device: &str, discipline: &str) {
    let namespace = lab.topology().namespace(host);
    let mut tc = vec![
        "netns", "exec", &namespace, "tc", "qdisc", "replace", "dev", device, "root",
    ];
    tc.extend(discipline.split_whitespace());
    command::run("ip", tc).expect("the discipline is taken");
}

pub(crate) fn document(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

fn causes(found: &Value) -> Vec<&str> {
    let all = found["diagnosis"].as_array().expect("a list").iter();
    all.filter_map(|finding| finding["cause"].as_str())
        .collect()
}

/// RFC 6349 from end to end: path MTU to the byte behind a silent drop, a rate no higher than the
/// link's, the effective window within 2 % of the one asked for, counters that agree.
#[test]
fn a_circuit_is_measured_from_end_to_end() {
    let Some(_turn) = turn("a_circuit_is_measured_from_end_to_end", &[Kind::Http]) else {
        return;
    };
    if command::find("nft").is_none() {
        return;
    }
    let lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    filter(&lab, "far", SILENT_DROP);
    let _server = serve(&lab);
    let page = lab.logs().join("turn-up.html");
    let host = Site::Far.host_address().to_string();
    let arguments = [
        "run",
        &host,
        "--direction=up",
        "--duration=2s",
        "--walk=0",
        "--window=12kB",
        "--connections=1",
        "--max-rate=40Mbit",
        "--min-path-mtu=1400",
        "--json",
        "--html",
        page.to_str().expect("a path of plain letters"),
    ];
    let output = trunkline(&lab, "client", &arguments)
        .output()
        .expect("the program starts");
    let found = document(&output);
    assert_eq!(output.status.code(), Some(1), "{}", found["reasons"]);
    assert_eq!(found["path_mtu_bytes"], CARRIED);
    let rtt = found["baseline_rtt_ms"].as_f64().expect("it was measured");
    assert!(rtt >= 20.0, "both delays are 10 ms: {rtt}");
    let up = &found["directions"]["up"];
    let rate = up["bottleneck_bit_s"].as_f64().expect("it was measured");
    // A host that stood still hands on at once what came meanwhile, and a rate that is not called steady may hold that.
    let most = match up["bottleneck_is_steady"] == true {
        true => 10.02e6,
        false => 10.5e6,
    };
    assert!(rate <= most, "the link has 10 Mbit/s: {rate}");
    let run = &up["runs"][0];
    assert_eq!(run["window_bytes"], 12_000);
    let effective = run["effective_window_bytes"]
        .as_f64()
        .expect("the kernel tells");
    assert!((effective / 12_000.0 - 1.0).abs() <= 0.02, "{effective}");
    let (sent, again) = (&run["sent_bytes"], &run["retransmitted_bytes"]);
    let (sent, again) = (
        sent.as_f64().expect("counted"),
        again.as_f64().expect("counted"),
    );
    let efficiency = run["tcp_efficiency_percent"].as_f64().expect("computed");
    assert!((efficiency - (sent - again) / sent * 100.0).abs() < 1e-9);
    let causes = causes(&found);
    assert!(causes.contains(&"mtu-black-hole"), "{causes:?}");
    let page = std::fs::read_to_string(&page).expect("the page was written");
    assert!(page.contains("<svg") && page.contains("FAILED: path MTU up"));
}

/// The first case study, with its BDP of 250 kB on a path five times as long and as slow, whose figures a
/// busy machine changes less: the host is named, with its window.
#[test]
fn a_window_limited_host_is_named_and_the_queue_it_never_fills_is_not() {
    let name = "a_window_limited_host_is_named_and_the_queue_it_never_fills_is_not";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    let lab = standing(
        "rate=20Mbit,delay=50ms,queue=250kB",
        WithNodes::No,
        &[Site::Near, Site::Far],
    );
    let _server = serve(&lab);
    let host = Site::Far.host_address().to_string();
    let arguments = [
        "run",
        &host,
        "--direction=up",
        "--duration=2s",
        "--walk=0",
        "--window=32kB",
        "--connections=1",
        "--congestion=reno",
        "--max-rate=60Mbit",
        "--json",
    ];
    let output = trunkline(&lab, "client", &arguments)
        .output()
        .expect("the program starts");
    let found = document(&output);
    assert_eq!(output.status.code(), Some(0), "{}", found["reasons"]);
    let number = |value: &Value| value.as_f64().expect("it was measured");
    let run = &found["directions"]["up"]["runs"][0];
    let effective = number(&run["effective_window_bytes"]);
    assert!((effective / 32_000.0 - 1.0).abs() <= 0.02, "{effective}");
    // RFC 6349 §3.3.1: window x 8 / RTT.
    let formula = effective * 8.0 / (number(&found["baseline_rtt_ms"]) / 1e3);
    let ideal = number(&run["ideal_bit_s"]);
    assert!((ideal / formula - 1.0).abs() < 1e-3, "{ideal} {formula}");
    let throughput = number(&run["throughput_bit_s"]);
    assert!(throughput <= 1.02 * ideal, "{throughput} of {ideal}");
    let causes = causes(&found);
    assert!(causes.contains(&"host-window"), "{causes:?}");
    if run["retransmitted_bytes"] == 0 {
        assert!(!causes.contains(&"drop-tail-queue"), "{causes:?}");
    }
    assert!(!causes.contains(&"shallow-buffer"), "{causes:?}");
}

/// The second case study, on a path four times as long and a hundred and fifty times as slow, whose packets take
/// longer than hosts mostly stand still: the buffer is named, with its size to a packet. A host that stood still
/// for longer says so, or that it cannot tell, and blames nothing on the path; then the same is tried on a path
/// that is slower still, of which its pauses are a smaller part.
#[test]
fn a_shallow_buffer_is_named_with_its_size() {
    const TIMES_SLOWER: [u32; 5] = [1, 2, 4, 8, 8];
    const QUEUE_BYTES: f64 = 9_000.0;
    const PACKET_BYTES: f64 = 1_500.0;
    let Some(_turn) = turn("a_shallow_buffer_is_named_with_its_size", &[Kind::Http]) else {
        return;
    };
    for slower in TIMES_SLOWER {
        let found = over_a_shallow_buffer(slower);
        let causes = causes(&found);
        let is_right = |cause: &&str| BUFFER_OR_HOST.contains(cause);
        assert!(causes.iter().all(is_right), "{causes:?}");
        if causes.contains(&"unknown") || causes.contains(&"test-host-limited") {
            continue;
        }
        let mut findings = found["diagnosis"].as_array().expect("a list").iter();
        let shallow = findings.find(|finding| finding["cause"] == "shallow-buffer");
        let shallow = shallow.unwrap_or_else(|| panic!("{causes:?}"));
        let queue = shallow["parameters"]["queue_bytes"].as_f64();
        let queue = queue.expect("its size is told");
        assert!((queue - QUEUE_BYTES).abs() <= PACKET_BYTES, "{queue}");
        return;
    }
    panic!("no try told the buffer, not even where a packet takes 48 ms");
}

/// The buffer, and what is said beside it, or instead of it, where the testing host stood still.
const BUFFER_OR_HOST: [&str; 4] = [
    "shallow-buffer",
    "unknown",
    "test-host-limited",
    "cross-traffic",
];

/// What is found of a path of 2 Mbit/s and 200 ms, so many times slower, with a buffer of six packets.
fn over_a_shallow_buffer(slower: u32) -> Value {
    let (rate, delay) = (2_000 / slower, 100 * slower);
    let lab = standing(
        &format!("rate={rate}kbit,delay={delay}ms,queue=9kB"),
        WithNodes::No,
        &[Site::Near, Site::Far],
    );
    let _server = serve(&lab);
    let host = Site::Far.host_address().to_string();
    let arguments = [
        "run",
        &host,
        "--direction=up",
        &format!("--duration={}s", 2 * slower),
        "--rest=0",
        "--walk=0",
        "--connections=1",
        &format!("--max-rate={}kbit", 4 * rate),
        "--json",
    ];
    let output = trunkline(&lab, "client", &arguments)
        .output()
        .expect("the program starts");
    let found = document(&output);
    assert_eq!(output.status.code(), Some(0), "{}", found["reasons"]);
    found
}

/// What TCP sent over a buffer of a few packets, and sent again, is what captures outside the sending host hold,
/// to the byte (RFC 6349 §4.2).
#[test]
fn efficiency_is_what_a_capture_counts_to_the_byte() {
    let name = "efficiency_is_what_a_capture_counts_to_the_byte";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    let lab = standing(
        "rate=10Mbit,delay=20ms,queue=6kB",
        WithNodes::No,
        &[Site::Near, Site::Far],
    );
    let _server = serve(&lab);
    let markers = MarkerPath::open(lab.topology()).expect("the markers' sockets open");
    let (run, topology) = (lab.run(), lab.topology());
    let mut recorder = Recorder::start(run, topology, lab.logs(), lab.logs(), "turn-up")
        .expect("the captures start");
    recorder
        .mark(&markers, Edge::Begin, "turn-up")
        .expect("the captures run");
    let host = Site::Far.host_address().to_string();
    let arguments = [
        "run",
        &host,
        "--direction=up",
        "--duration=2s",
        "--walk=0",
        "--window=100kB",
        "--connections=1",
        "--congestion=reno",
        "--max-rate=30Mbit",
        "--json",
    ];
    let output = trunkline(&lab, "client", &arguments)
        .output()
        .expect("the program starts");
    recorder
        .mark(&markers, Edge::End, "turn-up")
        .expect("the captures run");
    let files = recorder.finish().expect("the captures end");
    let found = document(&output);
    let run = &found["directions"]["up"]["runs"][0];
    let counted = (
        run["sent_bytes"].as_u64().expect("counted"),
        run["retransmitted_bytes"].as_u64().expect("counted"),
    );
    assert!(counted.1 > 0, "the buffer holds four packets");
    // Past the sender's own interface, before the emulated line drops anything.
    for file in [files.client, files.wan] {
        let packets = capture::read(&file).expect("a capture");
        assert_eq!(sent_by(&packets), counted, "{}", file.display());
        assert_eq!(beside_a_stream(&packets), 0, "{}", file.display());
    }
}

/// Packets with which one of the two ends said something to the other by TCP while the longest stream was sent,
/// past its first 300 ms: it would share the bottleneck that is measured. What was lost in the overload is said
/// again whenever its time has come, and does not count.
fn beside_a_stream(packets: &[Packet]) -> usize {
    /// A host that stands still for longer cuts a stream in two here.
    const GAP: Duration = Duration::from_millis(100);
    const BEGINNING: Duration = Duration::from_millis(300);
    let from_here = || {
        let all = packets.iter();
        all.filter(|packet| packet.source.ip() == Site::Near.host_address())
    };
    let mut streams: Vec<(Duration, Duration)> = Vec::new();
    // Small ones ask for the round-trip time.
    let of_streams =
        |packet: &&Packet| packet.transport == Transport::Udp && packet.ip_bytes > 1_000;
    for packet in from_here().filter(of_streams) {
        match streams.last_mut() {
            Some((_, end)) if packet.at < *end + GAP => *end = packet.at,
            _ => streams.push((packet.at, packet.at)),
        }
    }
    let longest = streams.into_iter().max_by_key(|(begin, end)| *end - *begin);
    let (begin, end) = longest.expect("a stream was sent");
    assert!(end - begin > BEGINNING, "a stream takes two seconds");
    // Of each connection and way, where what was said so far ends.
    let mut said: HashMap<(SocketAddr, SocketAddr), u32> = HashMap::new();
    let says = |packet: &&Packet| {
        let Transport::Tcp {
            sequence,
            payload_bytes,
            ..
        } = packet.transport
        else {
            return false;
        };
        let to = sequence.wrapping_add(payload_bytes);
        let said = said
            .entry((packet.source, packet.destination))
            .or_insert(sequence);
        let is_new = payload_bytes > 0 && (to.wrapping_sub(*said) as i32) > 0;
        if is_new {
            *said = to;
        }
        is_new && (begin + BEGINNING..end).contains(&packet.at)
    };
    packets.iter().filter(says).count()
}

/// Payload of the connection that carried most, towards the server: all of it, and what was there before.
fn sent_by(packets: &[Packet]) -> (u64, u64) {
    let mut connections: HashMap<u16, (u64, u32, u64)> = HashMap::new();
    for packet in packets {
        let Transport::Tcp {
            sequence,
            flags,
            payload_bytes,
            ..
        } = packet.transport
        else {
            continue;
        };
        if packet.source.ip() != Site::Near.host_address() {
            continue;
        }
        let begins = sequence.wrapping_add(u32::from(packet.opens_connection()));
        let (sent, first, most) = connections
            .entry(packet.source.port())
            .or_insert((0, begins, 0));
        *sent += u64::from(payload_bytes);
        // What ends a connection may be a reset with a number of its own.
        if payload_bytes > 0 && flags != 0 {
            let end = sequence.wrapping_sub(*first).wrapping_add(payload_bytes);
            *most = (*most).max(u64::from(end));
        }
    }
    let (sent, _, fresh) = connections
        .into_values()
        .max_by_key(|(sent, ..)| *sent)
        .expect("something was sent");
    (sent, sent - fresh)
}

/// A client behind NAT, and a code point on all packets both ways (but for the server's first words to
/// somebody it does not know yet).
#[test]
fn a_client_behind_nat_is_served_and_every_packet_is_marked() {
    let name = "a_client_behind_nat_is_served_and_every_packet_is_marked";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    if command::find("nft").is_none() {
        return;
    }
    let lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    filter(&lab, "near", MASQUERADE);
    let _server = serve(&lab);
    let (run, topology) = (lab.run(), lab.topology());
    let markers = MarkerPath::open(topology).expect("the markers' sockets open");
    let mut recorder = Recorder::start(run, topology, lab.logs(), lab.logs(), "turn-up")
        .expect("the captures start");
    let host = Site::Far.host_address().to_string();
    let arguments = [
        "run",
        &host,
        "--direction=down",
        "--duration=2s",
        "--walk=0",
        "--window=12kB",
        "--connections=1",
        "--max-rate=20Mbit",
        "--dscp=10",
        "--json",
    ];
    let output = trunkline(&lab, "client", &arguments)
        .output()
        .expect("the program starts");
    recorder
        .mark(&markers, Edge::End, "turn-up")
        .expect("the captures run");
    let files = recorder.finish().expect("the captures end");
    let found = document(&output);
    assert_eq!(output.status.code(), Some(0), "{}", found["reasons"]);
    let log = std::fs::read_to_string(lab.logs().join("turn-up-server.log")).expect("it is there");
    let inside = Site::Near.host_address().to_string();
    assert!(
        !log.contains(&inside),
        "the server sees the router's address: {log}"
    );
    let mut frames = Frames::open(File::open(&files.wan).expect("a capture")).expect("a capture");
    let (mut marked, mut unmarked) = (0, 0);
    while let Ok(Some(frame)) = frames.next_frame() {
        let Some(packet) = Packet::of(&frame) else {
            continue;
        };
        let ports = [packet.source.port(), packet.destination.port()];
        if !ports.contains(&6_349) {
            continue;
        }
        let (bytes, _) = frame.network().expect("it was read");
        match bytes[1] >> 2 {
            10 => marked += 1,
            _ if packet.transport == Transport::Udp || packet.source.port() != 6_349 => {
                panic!("an unmarked packet from {}", packet.source)
            }
            _ => unmarked += 1,
        }
    }
    // Of two connections: what opens them, the greeting, and acknowledgements before the proof.
    assert!(marked > 1_000 && unmarked <= 10, "{marked} and {unmarked}");
}

/// A link that goes away in mid-test, over IPv6: both ends end, and what was measured before is told.
#[test]
fn a_link_that_dies_ends_the_test_at_both_ends_and_keeps_what_was_measured() {
    let name = "a_link_that_dies_ends_the_test_at_both_ends_and_keeps_what_was_measured";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    let mut lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    let _server = serve(&lab);
    let host = Site::Far.host_address_v6().to_string();
    let arguments = ["run", &host, "-6", "--direction=down", "--json"];
    let progress = lab.logs().join("turn-up-client.log");
    let errors = std::fs::File::create(&progress).expect("the log can be written");
    let client = trunkline(&lab, "client", &arguments)
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .expect("the program starts");
    wait_for(&progress, "rate down");
    lab.emulator()
        .signal(Signal::Freeze)
        .expect("the emulator runs");
    let output = client.wait_with_output().expect("it ends");
    let found: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(output.status.code(), Some(2), "{found}");
    assert_eq!(found["verdict"], "not-measured");
    assert_eq!(found["path_mtu_bytes"], 1_500);
    assert!(found["baseline_rtt_ms"].as_f64().expect("it was measured") >= 20.0);
    let reason = found["reasons"][0].as_str().expect("a reason");
    assert!(
        reason.contains("the link, or the server, is down"),
        "{reason}"
    );
    let log = lab.logs().join("turn-up-server.log");
    wait_for(&log, "the test is over: nothing was heard of the client");
}

/// A firewall that lets TCP through and no UDP is named, with what to open; what TCP shows is reported as TCP's,
/// and nothing is claimed of the bottleneck.
#[test]
fn a_firewall_that_eats_udp_is_named_and_tcp_is_measured() {
    let name = "a_firewall_that_eats_udp_is_named_and_tcp_is_measured";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    if command::find("nft").is_none() {
        return;
    }
    let lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    filter(&lab, "far", NO_UDP);
    let _server = serve(&lab);
    let host = Site::Far.host_address().to_string();
    let arguments = [
        "run",
        &host,
        "--direction=up",
        "--duration=2s",
        "--walk=50",
        "--connections=1",
        "--json",
    ];
    let output = trunkline(&lab, "client", &arguments)
        .output()
        .expect("the program starts");
    let found = document(&output);
    assert_eq!(output.status.code(), Some(2), "{found}");
    assert_eq!(found["verdict"], "not-measured");
    let reason = found["reasons"][0].as_str().expect("a reason");
    assert!(reason.contains("lets no UDP through"), "{reason}");
    assert!(reason.contains("open UDP port 6349"), "{reason}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("lets no UDP through"),
        "said at once: {errors}"
    );
    assert_eq!(found["baseline_rtt_by"], "tcp");
    let rtt = found["baseline_rtt_ms"].as_f64().expect("TCP measures it");
    assert!(rtt >= 20.0, "both delays are 10 ms: {rtt}");
    let up = &found["directions"]["up"];
    for unknown in ["bottleneck_bit_s", "bdp_bytes", "path_mtu_bytes"] {
        assert!(up[unknown].is_null(), "{unknown}: {}", up[unknown]);
    }
    let reached = up["reached_bit_s"].as_f64().expect("TCP gets through");
    assert!(reached > 0.0 && reached <= 10.02e6, "{reached}");
    let purposes: Vec<&str> = up["runs"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|run| run["purpose"].as_str())
        .collect();
    assert_eq!(
        purposes,
        ["least RTT", "hosts' own windows", "50 % of reached"]
    );
    let half = &up["runs"][2];
    let (window, rtt_s) = (half["window_bytes"].as_f64(), rtt / 1e3);
    let expected = reached * rtt_s / 8.0 / 2.0;
    assert!((window.expect("planned") / expected - 1.0).abs() < 0.01);
}

/// Y.1564 and RFC 2544 over a line of 10 Mbit/s: what was bought in excess of it fails, and no load above it is
/// found to be carried.
#[test]
fn a_service_beyond_the_line_fails_and_no_throughput_is_above_it() {
    let name = "a_service_beyond_the_line_fails_and_no_throughput_is_above_it";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    let lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    let _server = serve(&lab);
    let host = Site::Far.host_address().to_string();
    let arguments = [
        "service",
        &host,
        "--cir=16Mbit",
        "--flr=0.1%",
        "--direction=up",
        "--step=1s",
        "--rest=0",
        "--json",
    ];
    let output = trunkline(&lab, "client", &arguments)
        .output()
        .expect("the program starts");
    let found = document(&output);
    assert_eq!(output.status.code(), Some(1), "{found}");
    let steps = found["steps"].as_array().expect("a list");
    let names: Vec<&str> = steps
        .iter()
        .filter_map(|one| one["step"].as_str())
        .collect();
    let expected = ["25 % CIR", "50 % CIR", "75 % CIR", "100 % CIR", "overshoot"];
    assert_eq!(names, expected);
    let full = &steps[3];
    assert_eq!(full["verdict"], "failed");
    // 10 Mbit/s of IP packets are 10.12 of frames.
    let received = full["received_bit_s"].as_f64().expect("frames arrive");
    assert!(received <= 10.2e6, "{received}");
    let lost = full["flr"].as_f64().expect("counted");
    assert!(lost > 0.2, "{lost}");
    let trip = full["round_trip_ms"].as_f64().expect("frames arrive");
    assert!(
        trip >= found["baseline_rtt_ms"].as_f64().expect("probed"),
        "{trip}"
    );
    assert_eq!(found["criteria"]["policing"], false);
    let arguments = [
        "throughput",
        &host,
        "--frame-sizes=1518",
        "--direction=down",
        "--trial=500ms",
        "--duration-sum=500ms",
        "--width=5%",
        "--search-only",
        "--rest=0",
        "--json",
    ];
    let output = trunkline(&lab, "client", &arguments)
        .output()
        .expect("the program starts");
    let found = document(&output);
    assert_eq!(output.status.code(), Some(0), "{found}");
    let size = &found["sizes"][0];
    let carried = size["lower_bit_s"].as_f64().expect("something is carried");
    // Half a second at the line's rate and a queue of 125 kB.
    assert!(carried <= 12.4e6, "{carried}");
    assert!(size["upper_bit_s"].as_f64().expect("the line ends") > carried);
}
