//! Turn-up tests against iperf3's own server, as a person runs them.
//!
//! As in `turn_up`, only what a busy machine cannot change is asserted.

use std::fs::File;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use lab::command;
use lab::kernel;
use lab::servers::Kind;
use lab::site::{Lab, WithNodes};
use lab::topology::Site;
use serde_json::Value;

use crate::setting::{SLOW, standing, turn};
use crate::turn_up::{NO_UDP, Serving, document, filter, queue, trunkline, wait_for};

/// What [`SLOW`] carries of IP packets.
const LINK_BIT_S: f64 = 10e6;
/// The kernel's own shaper behind it, both ways. It counts an Ethernet header with each packet.
const SHAPER: &str = "tbf rate 5mbit burst 4542 limit 30000";
const SHAPED_BIT_S: f64 = 5e6 * 1_500.0 / 1_514.0;

/// What a tunnel of 1,400 bytes lets through, with no word about the rest.
const TUNNEL: &str = "table ip tunnel {
    chain forward {
        type filter hook forward priority 0
        ip length > 1400 drop
    }
}
";

/// iperf3's own server, in the far host: a turn-up test with an end that is not ours.
fn serve_iperf3(lab: &Lab) -> Serving {
    let log = lab.logs().join("iperf3-server.log");
    let output = File::create(&log).expect("the log can be written");
    let errors = output.try_clone().expect("the log can be shared");
    let mut command = Command::new("iperf3");
    command
        .args(["--server", "--forceflush"])
        .stdout(output)
        .stderr(errors)
        .stdin(Stdio::null());
    let namespace = lab.topology().namespace_file("server");
    kernel::prepare_child(&mut command, Some(&namespace)).expect("the namespace is there");
    let child = command.spawn().expect("iperf3 starts");
    wait_for(&log, "Server listening");
    Serving(child)
}

/// RFC 6349 with iperf3 at the far end: the rate of each direction by streams of UDP, which its server counts or
/// sends, what TCP shows from this end, and nothing that only a far end of ours could tell.
#[test]
fn an_iperf3_server_is_enough_for_what_one_end_can_tell() {
    let name = "an_iperf3_server_is_enough_for_what_one_end_can_tell";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    assert_iperf3();
    let lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    let _server = serve_iperf3(&lab);
    assert_told_by_one_end(&lab, Site::Far.host_address().into(), LINK_BIT_S);
}

/// The same over IPv6, whose headers take more of each packet, behind a shaper of the kernel's.
#[test]
fn an_iperf3_server_is_enough_over_ipv6_behind_the_kernels_shaper() {
    let name = "an_iperf3_server_is_enough_over_ipv6_behind_the_kernels_shaper";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    assert_iperf3();
    let lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    for towards in ["lan0", "wan0"] {
        queue(&lab, "far", towards, SHAPER);
    }
    let _server = serve_iperf3(&lab);
    assert_told_by_one_end(&lab, Site::Far.host_address_v6().into(), SHAPED_BIT_S);
}

/// Tests against the server at an address over a path that carries so much of IP packets each way.
fn assert_told_by_one_end(lab: &Lab, server: IpAddr, carries_bit_s: f64) {
    let more = ["--window=12kB", "--connections=1", "--rest=0"];
    let found = run_one_ended(lab, server, &more, 0);
    assert_eq!(found["verdict"], "measured");
    let remark = found["remarks"][0].as_str().expect("a remark");
    assert!(remark.contains("one-ended"), "{remark}");
    let rtt = least_rtt(&found);
    for way in ["up", "down"] {
        let found = &found["directions"][way];
        assert_eq!(found["bottleneck_limited_by"], "path", "{way}");
        assert!(found["reached_bit_s"].is_null(), "{way}");
        let streams = found["streams"].as_array().expect("a list");
        // Up a short one and a long one, down a long one; then the one below the rate.
        let least = if way == "up" { 3 } else { 2 };
        assert!(streams.len() >= least, "{way}: {streams:?}");
        for stream in streams {
            let count = |name: &str| stream[name].as_u64().expect("counted");
            assert_eq!(count("packet_bytes"), 1_500, "{way}");
            assert!(0 < count("arrived_packets"), "{way}: {stream}");
            assert!(count("arrived_packets") <= count("sent_packets"), "{way}");
        }
        let overload = &streams[streams.len() - 2];
        let lost = overload["sent_packets"].as_u64() > overload["arrived_packets"].as_u64();
        assert!(lost, "{way}: half as much again was offered: {overload}");
        // Up it is a difference of two counts, which a host that stands still changes.
        let rate = found["bottleneck_bit_s"].as_f64().expect("by streams");
        let offered = overload["offered_bit_s"].as_f64().expect("planned");
        assert!(rate > 1e6 && rate <= 0.95 * offered, "{way}: {rate}");
        if found["bottleneck_is_steady"] == true {
            assert!(rate <= 1.02 * carries_bit_s, "{way}: {rate}");
        }
        let runs = found["runs"].as_array().expect("a list");
        assert_window_held(runs.last().expect("the listed window"), rtt, way);
    }
    let up = &found["directions"]["up"]["runs"][1];
    let number = |name: &str| up[name].as_f64().expect("our kernel counts");
    let (sent, again) = (number("sent_bytes"), number("retransmitted_bytes"));
    let efficiency = (sent - again) / sent * 100.0;
    assert!((number("tcp_efficiency_percent") - efficiency).abs() < 1e-9);
    let down = &found["directions"]["down"]["runs"][0];
    assert!(down["tcp_efficiency_percent"].is_null() && down["average_rtt_ms"].is_null());
    assert!(
        down["server_retransmitted_segments"].as_u64().is_some(),
        "{down}"
    );
}

/// The same behind a firewall that lets no UDP through: it is named, and TCP alone is measured.
#[test]
fn an_iperf3_server_behind_a_firewall_that_eats_udp_is_tested_by_tcp_alone() {
    let name = "an_iperf3_server_behind_a_firewall_that_eats_udp_is_tested_by_tcp_alone";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    if command::find("nft").is_none() {
        return;
    }
    assert_iperf3();
    let lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    filter(&lab, "far", NO_UDP);
    let _server = serve_iperf3(&lab);
    let more = [
        "--direction=up",
        "--connections=3",
        "--connection-window=6kB",
    ];
    let found = run_one_ended(&lab, Site::Far.host_address().into(), &more, 2);
    assert_eq!(found["verdict"], "not-measured");
    let reason = found["reasons"][0].as_str().expect("a reason");
    assert!(reason.contains("lets no UDP through"), "{reason}");
    let rtt = least_rtt(&found);
    let up = &found["directions"]["up"];
    assert!(up["bottleneck_bit_s"].is_null(), "{up}");
    let reached = up["reached_bit_s"].as_f64().expect("TCP gets through");
    assert!(reached > 0.0 && reached <= 10.02e6, "{reached}");
    let many = up["runs"].as_array().and_then(|runs| runs.last());
    let many = many.expect("three connections");
    assert_eq!(many["connections"], 3);
    assert!(many["throughput_bit_s"].as_f64().expect("measured") > 0.0 && rtt > 0.0);
}

/// A tunnel on the way that drops what it does not carry, both ways and without a word: full packets are found to
/// vanish, all else is measured with smaller ones, and that the path MTU is not found so is said.
#[test]
fn behind_a_tunnel_that_drops_full_packets_one_end_measures_with_smaller_ones() {
    let name = "behind_a_tunnel_that_drops_full_packets_one_end_measures_with_smaller_ones";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    assert_iperf3();
    let lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    filter(&lab, "far", TUNNEL);
    let _server = serve_iperf3(&lab);
    let more = ["--window=12kB", "--connections=1", "--rest=0"];
    let found = run_one_ended(&lab, Site::Far.host_address().into(), &more, 0);
    assert_eq!(found["verdict"], "measured");
    least_rtt(&found);
    for way in ["up", "down"] {
        let remarks = found["remarks"].as_array().expect("a list").iter();
        let vanish = format!("packets of 1500 bytes vanish on the way {way} ");
        let mut said = remarks
            .filter_map(Value::as_str)
            .filter(|one| one.contains(&vanish));
        let said = said.next().expect("it is said");
        assert!(said.contains("finds it to the byte"), "{said}");
        let causes = found["diagnosis"].as_array().expect("a list").iter();
        let mut causes = causes.filter(|one| one["direction"] == way);
        assert!(causes.any(|one| one["cause"] == "mtu-black-hole"), "{way}");
        let found = &found["directions"][way];
        assert!(found["path_mtu_bytes"].is_null(), "{way}");
        assert_eq!(found["path_mtu_at_least_bytes"], 1_200, "{way}");
        assert_eq!(found["path_mtu_below_bytes"], 1_500, "{way}");
        assert_eq!(found["bottleneck_limited_by"], "path", "{way}");
        for stream in found["streams"].as_array().expect("a list") {
            let count = |name: &str| stream[name].as_u64().expect("counted");
            let came = count("arrived_packets") > 0;
            assert_eq!(came, count("packet_bytes") == 1_200, "{way}: {stream}");
            assert!(count("sent_packets") > 0, "{way}: {stream}");
        }
        let runs = found["runs"].as_array().expect("a list");
        let listed = runs.last().expect("the listed window");
        assert!(
            listed["throughput_bit_s"].as_f64() > Some(0.0),
            "{way}: {listed}"
        );
    }
}

/// The same tunnel behind a firewall that eats UDP: that nothing of TCP's full segments gets through is said, and no
/// rate is claimed.
#[test]
fn behind_a_tunnel_and_a_firewall_it_is_said_that_nothing_gets_through() {
    let name = "behind_a_tunnel_and_a_firewall_it_is_said_that_nothing_gets_through";
    let Some(_turn) = turn(name, &[Kind::Http]) else {
        return;
    };
    assert_iperf3();
    let lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    filter(&lab, "far", TUNNEL);
    filter(&lab, "far", NO_UDP);
    let _server = serve_iperf3(&lab);
    let found = run_one_ended(
        &lab,
        Site::Far.host_address().into(),
        &["--connections=1"],
        2,
    );
    assert_eq!(found["verdict"], "not-measured");
    for way in ["up", "down"] {
        let silence = format!("nothing of what it then sends {way} gets through");
        let mut remarks = found["remarks"].as_array().expect("a list").iter();
        let is_said = |one: &Value| one.as_str().is_some_and(|one| one.contains(&silence));
        assert!(remarks.any(is_said), "{way}: {}", found["remarks"]);
        let found = &found["directions"][way];
        assert!(found["reached_bit_s"].is_null(), "{way}");
        assert!(found["bottleneck_bit_s"].is_null(), "{way}");
    }
}

fn assert_iperf3() {
    assert!(
        command::find("iperf3").is_some(),
        "iperf3 is missing: scripts/install.sh test installs it (package iperf3)"
    );
}

/// Tests against the iperf3 server at an address for two seconds a run, and returns what was found.
fn run_one_ended(lab: &Lab, server: IpAddr, more: &[&str], code: i32) -> Value {
    let host = server.to_string();
    let common = [
        "run",
        &host,
        "--iperf3",
        "--duration=2s",
        "--walk=0",
        "--json",
    ];
    let output = trunkline(lab, "client", &[&common[..], more].concat())
        .output()
        .expect("the program starts");
    let found = document(&output);
    assert_eq!(output.status.code(), Some(code), "{found}");
    found
}

fn least_rtt(found: &Value) -> f64 {
    assert_eq!(found["baseline_rtt_by"], "tcp");
    let rtt = found["baseline_rtt_ms"].as_f64().expect("TCP measures it");
    assert!(rtt >= 20.0, "both delays are 10 ms: {rtt}");
    rtt
}

/// RFC 6349 §3.3.1: no more than a window a round trip.
fn assert_window_held(listed: &Value, rtt_ms: f64, way: &str) {
    assert_eq!(listed["window_bytes"], 12_000, "{way}");
    let window = match way {
        "up" => listed["effective_window_bytes"]
            .as_f64()
            .expect("our kernel tells"),
        _ => 12_000.0,
    };
    let most = window * 8.0 / (rtt_ms / 1e3);
    let throughput = listed["throughput_bit_s"].as_f64().expect("measured");
    assert!(throughput <= 1.03 * most, "{way}: {throughput} of {most}");
}
