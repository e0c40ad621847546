//! Turn-up tests against iperf3's own server, as a user runs them.
//!
//! As in `turn_up`, only facts that a busy machine cannot change are asserted.

use serde_json::Value;

use crate::circuit::{NO_UDP, TestCircuit, TestReport, assert_efficiency, count, list, number};
use crate::setting::SLOW;

/// A test with runs of two seconds.
const BRIEF: &str = "run --iperf3 --duration=2s --walk=0";
/// Options of a run with a single listed window.
const LISTED: &str = "--window=12kB --connections=1 --rest=0";

/// Rate of IP packets that [`SLOW`] carries.
const LINK_BIT_S: f64 = 10e6;
/// The kernel's own shaper behind it, both ways. It counts an Ethernet header with each packet.
const SHAPER: &str = "tbf rate 5mbit burst 4542 limit 30000";
const SHAPED_BIT_S: f64 = 5e6 * 1_500.0 / 1_514.0;

/// Rules of a tunnel that lets packets of 1,400 bytes through and silently drops larger ones.
const TUNNEL: &str = "table ip tunnel {
    chain forward {
        type filter hook forward priority 0
        ip length > 1400 drop
    }
}
";

/// RFC 6349 with iperf3 at the far end: the rate of each direction by UDP streams, which its server
/// counts or sends, TCP's results from this end, and no value that needs a far end of ours.
#[test]
fn iperf3_server_suffices_for_a_one_ended_test() {
    let name = "iperf3_server_suffices_for_a_one_ended_test";
    let Some(mut circuit) = TestCircuit::over(SLOW, name) else {
        return;
    };
    circuit.serve_iperf3();
    assert_told_by_one_end(&circuit, LINK_BIT_S);
}

/// The same over IPv6, whose headers take more of each packet, behind a shaper of the kernel's.
#[test]
fn iperf3_server_suffices_over_ipv6_behind_a_shaper() {
    let name = "iperf3_server_suffices_over_ipv6_behind_a_shaper";
    let Some(circuit) = TestCircuit::over(SLOW, name) else {
        return;
    };
    let mut circuit = circuit.by_ipv6();
    for towards in ["lan0", "wan0"] {
        circuit.queue("far", towards, SHAPER);
    }
    circuit.serve_iperf3();
    assert_told_by_one_end(&circuit, SHAPED_BIT_S);
}

/// Tests a circuit that carries this rate of IP packets in each direction.
fn assert_told_by_one_end(circuit: &TestCircuit, carries_bit_s: f64) {
    let found = circuit.measure(&format!("{BRIEF} {LISTED}"), 0);
    assert_eq!(found["verdict"], "measured");
    let remark = found.remarks()[0];
    assert!(remark.contains("one-ended"), "{remark}");
    let rtt = least_rtt_ms(&found);
    for way in ["up", "down"] {
        let found = found.way(way);
        assert_eq!(found["bottleneck_limited_by"], "path", "{way}");
        assert!(found["reached_bit_s"].is_null(), "{way}");
        let streams = list(found, "streams");
        // Up a short one and a long one, down a long one; then the one below the rate.
        let least = if way == "up" { 3 } else { 2 };
        assert!(streams.len() >= least, "{way}: {streams:?}");
        for stream in streams {
            assert_eq!(count(stream, "packet_bytes"), 1_500, "{way}");
            let arrived = count(stream, "arrived_packets");
            assert!(0 < arrived, "{way}: {stream}");
            assert!(arrived <= count(stream, "sent_packets"), "{way}: {stream}");
        }
        let overload = &streams[streams.len() - 2];
        let lost = count(overload, "sent_packets") > count(overload, "arrived_packets");
        assert!(lost, "{way}: half as much again was offered: {overload}");
        // Up it is a difference of two counts, which a host that stands still changes.
        let rate = number(found, "bottleneck_bit_s");
        let offered = number(overload, "offered_bit_s");
        assert!(rate > 1e6 && rate <= 0.95 * offered, "{way}: {rate}");
        if found["bottleneck_is_steady"] == true {
            assert!(rate <= 1.02 * carries_bit_s, "{way}: {rate}");
        }
        let listed = list(found, "runs").last().expect("the listed window");
        assert_window_held(listed, rtt, way);
    }
    assert_efficiency(&found.way("up")["runs"][1]);
    let down = &found.way("down")["runs"][0];
    assert!(down["tcp_efficiency_percent"].is_null() && down["average_rtt_ms"].is_null());
    count(down, "server_retransmitted_segments");
}

/// Asserts at most one window per round trip (RFC 6349 §3.3.1).
fn assert_window_held(listed: &Value, rtt_ms: f64, way: &str) {
    assert_eq!(listed["window_bytes"], 12_000, "{way}");
    let window = match way {
        "up" => number(listed, "effective_window_bytes"),
        _ => 12_000.0,
    };
    let most = window * 8.0 / (rtt_ms / 1e3);
    let throughput = number(listed, "throughput_bit_s");
    assert!(throughput <= 1.03 * most, "{way}: {throughput} of {most}");
}

/// The same behind a firewall that lets no UDP through: it is named, and TCP alone is measured.
#[test]
fn iperf3_without_udp_is_tested_by_tcp_alone() {
    let name = "iperf3_without_udp_is_tested_by_tcp_alone";
    let Some(mut circuit) = TestCircuit::over(SLOW, name) else {
        return;
    };
    circuit.filter("far", NO_UDP);
    circuit.serve_iperf3();
    let many = "--direction=up --connections=3 --connection-window=6kB";
    let found = circuit.measure(&format!("{BRIEF} {many}"), 2);
    assert_eq!(found["verdict"], "not-measured");
    let reason = found.reason();
    assert!(reason.contains("blocks UDP"), "{reason}");
    least_rtt_ms(&found);
    let up = found.way("up");
    assert!(up["bottleneck_bit_s"].is_null(), "{up}");
    let reached = number(up, "reached_bit_s");
    assert!(reached > 0.0 && reached <= 10.02e6, "{reached}");
    let many = list(up, "runs").last().expect("three connections");
    assert_eq!(many["connections"], 3);
    assert!(number(many, "throughput_bit_s") > 0.0);
}

/// A tunnel on the path silently drops large packets in both directions: the test finds that
/// full-size packets are lost, measures everything else with smaller ones, and reports that the
/// path MTU is not measured.
#[test]
fn one_end_measures_with_small_packets_behind_tunnel() {
    let name = "one_end_measures_with_small_packets_behind_tunnel";
    let Some(mut circuit) = TestCircuit::over(SLOW, name) else {
        return;
    };
    circuit.filter("far", TUNNEL);
    circuit.serve_iperf3();
    let found = circuit.measure(&format!("{BRIEF} {LISTED}"), 0);
    assert_eq!(found["verdict"], "measured");
    least_rtt_ms(&found);
    for way in ["up", "down"] {
        let vanish = format!("packets of 1500 bytes vanish on the way {way} ");
        let mut said = found.remarks().into_iter();
        let said = said.find(|one| one.contains(&vanish)).expect("it is said");
        assert!(said.contains("finds it to the byte"), "{said}");
        let named = list(&found, "diagnosis").iter();
        let mut named = named.filter(|one| one["direction"] == way);
        assert!(named.any(|one| one["cause"] == "mtu-black-hole"), "{way}");
        let found = found.way(way);
        assert!(found["path_mtu_bytes"].is_null(), "{way}");
        assert_eq!(found["path_mtu_at_least_bytes"], 1_200, "{way}");
        assert_eq!(found["path_mtu_below_bytes"], 1_500, "{way}");
        assert_eq!(found["bottleneck_limited_by"], "path", "{way}");
        for stream in list(found, "streams") {
            let came = count(stream, "arrived_packets") > 0;
            let is_small = count(stream, "packet_bytes") == 1_200;
            assert_eq!(came, is_small, "{way}: {stream}");
            assert!(count(stream, "sent_packets") > 0, "{way}: {stream}");
        }
        let listed = list(found, "runs").last().expect("the listed window");
        assert!(number(listed, "throughput_bit_s") > 0.0, "{way}: {listed}");
    }
}

/// The same tunnel behind a firewall that drops UDP: the report says that none of TCP's full-size
/// segments gets through, and claims no rate.
#[test]
fn tunnel_and_firewall_report_that_nothing_passes() {
    let name = "tunnel_and_firewall_report_that_nothing_passes";
    let Some(mut circuit) = TestCircuit::over(SLOW, name) else {
        return;
    };
    circuit.filter("far", TUNNEL);
    circuit.filter("far", NO_UDP);
    circuit.serve_iperf3();
    let found = circuit.measure(&format!("{BRIEF} --connections=1"), 2);
    assert_eq!(found["verdict"], "not-measured");
    let remarks = found.remarks();
    for way in ["up", "down"] {
        let silence = format!("nothing of what it then sends {way} gets through");
        let is_said = remarks.iter().any(|one| one.contains(&silence));
        assert!(is_said, "{way}: {remarks:?}");
        assert!(found.way(way)["reached_bit_s"].is_null(), "{way}");
        assert!(found.way(way)["bottleneck_bit_s"].is_null(), "{way}");
    }
}

fn least_rtt_ms(found: &TestReport) -> f64 {
    assert_eq!(found["baseline_rtt_by"], "tcp");
    found.baseline_rtt_ms(10.0)
}
