//! Tests of the moment at which a client is accepted, and of the servers and routes that are
//! bypassed.

use std::time::Duration;

use super::{InterceptionLab, RELOAD, SERVER, SERVER_IPV6, signal, text, within};

const CLOSED: &str = "198.18.2.2:8081";
const CLOSED_IPV6: &str = "[2001:2:0:2::2]:8081";
/// A closed port at the far node's WAN address, which lies in a prefix of the far node.
const PEER_ITSELF: &str = "198.18.11.2:8081";
/// A server that drops all packets, and addresses that no host has.
const SILENT: &str = "198.18.2.2:8087";
const NO_HOST: &str = "198.18.2.77:80";
const NO_HOST_EITHER: &str = "198.18.2.78:80";
/// A closed port whose clients are accepted before the server answered, by the policy.
const CLOSED_AT_ONCE: &str = "198.18.2.2:8082";
/// The address of a server that is started and stopped during a test.
const COMES_AND_GOES: &str = "198.18.2.2:8083";
/// A server whose clients are accepted after it, by the policy, though it was reached before.
const AFTER_SERVER: &str = "198.18.2.2:8084";
/// The address of a server whose answers take another route; the second is another port of the same
/// host.
const ELSEWHERE: &str = "198.18.2.2:8085";
const ELSEWHERE_TOO: &str = "198.18.2.2:8086";

pub(super) fn closed_port(lab: &mut InterceptionLab) {
    for closed in [CLOSED, CLOSED_IPV6] {
        let before = lab.flows_total("near");
        assert_eq!(lab.fetch(closed), "ConnectionRefused");
        assert_eq!(lab.flows_total("near"), before + 1, "the far node asked it");
        // It is bypassed now, and looks the same.
        assert_eq!(lab.fetch(closed), "ConnectionRefused");
    }
}

pub(super) fn silent_and_unreachable(lab: &mut InterceptionLab) {
    let rules = "table inet silent { chain input { type filter hook input priority 0; tcp dport 8087 drop; }; }";
    lab.set("server", &["nft", rules]);
    let before = lab.flows_total("near");
    // An accepted client would wait for an answer, and say `WouldBlock`.
    assert_eq!(lab.fetch_within(SILENT, "1200"), "TimedOut");
    // The far node gives up the search for the host after three seconds.
    assert_eq!(lab.fetch_within(NO_HOST, "6000"), "HostUnreachable");
    assert_eq!(lab.flows_total("near"), before + 2);
    // However many call at once (of one client so many are held), and however few probes the far node has for them.
    let program = std::env::current_exe().unwrap();
    let crowd = [program.to_str().unwrap(), "crowd", NO_HOST_EITHER, "100"];
    let ends = text(&lab.inside("client", &crowd));
    assert_eq!(ends, "{\"HostUnreachable\": 100}", "{}", lab.log("far"));
    lab.set("server", &["nft", "delete table inet silent"]);
}

pub(super) fn accepted_at_once(lab: &mut InterceptionLab) {
    let first = lab.fetch(CLOSED_AT_ONCE);
    assert!(
        first == "ConnectionReset" || first == "BrokenPipe",
        "{first}"
    );
    within(Duration::from_secs(3), || {
        lab.fetch(CLOSED_AT_ONCE) == "ConnectionRefused"
    });
}

pub(super) fn first_connection(lab: &mut InterceptionLab) {
    lab.serve(8084);
    for server in [SERVER, SERVER_IPV6] {
        // An earlier test has reached it.
        lab.fetch(server);
        assert!(
            lab.last_intercept_stage()
                .contains("accepted before the server answered")
        );
    }
    for _ in 0..2 {
        let before = lab.flows_total("near");
        assert_eq!(lab.fetch(AFTER_SERVER), "198.18.1.2 200000");
        assert_eq!(lab.flows_total("near"), before + 1);
        let stage = lab.last_intercept_stage();
        assert!(stage.contains("accepted after the server"), "{stage}");
    }
}

pub(super) fn bypassed_server_answers(lab: &mut InterceptionLab) {
    assert_eq!(lab.fetch(COMES_AND_GOES), "ConnectionRefused");
    let is_bypassed = |lab: &InterceptionLab| {
        let list = ["nft", "list", "set", "inet", "trunkline_near", "avoided4"];
        let listed = lab.inside("near", &list);
        assert!(listed.status.success());
        text(&listed).contains("198.18.2.2 . 8083")
    };
    within(Duration::from_secs(3), || is_bypassed(lab));
    let server = lab.serve(8083);
    let before = lab.flows_total("near");
    // The server may not listen yet; whoever reaches it first does so directly.
    within(Duration::from_secs(5), || {
        lab.fetch(COMES_AND_GOES) == "198.18.1.2 200000"
    });
    assert_eq!(lab.flows_total("near"), before, "it went directly");
    within(Duration::from_secs(3), || !is_bypassed(lab));
    assert_eq!(lab.fetch(COMES_AND_GOES), "198.18.1.2 200000");
    assert_eq!(lab.flows_total("near"), before + 1);

    // A monitor sees a server go down after one connection at most.
    signal(server, "KILL");
    lab.fetch(COMES_AND_GOES);
    within(Duration::from_secs(3), || {
        lab.fetch(COMES_AND_GOES) == "ConnectionRefused"
    });
}

/// The admitted SYN arrives by the loopback device, and the route back to its client uses another.
pub(super) fn strict_reverse_path(lab: &mut InterceptionLab) {
    // A SYN that is lost is sent again after a second.
    assert_eq!(lab.fetch_within(AFTER_SERVER, "900"), "198.18.1.2 200000");
}

pub(super) fn asymmetric_route(lab: &mut InterceptionLab) {
    lab.serve(8085);
    lab.serve(8086);
    let route = ["198.18.1.0/24", "via", "198.18.3.1", "dev", "eth1"];
    lab.set("server", &[&["ip", "route", "add"], &route[..]].concat());
    let before = lab.flows_total("near");
    // The far node finds out between the client's second SYN and its third, which goes directly.
    assert_eq!(lab.fetch(ELSEWHERE), "198.18.1.2 200000");
    assert_eq!(lab.flows_total("near"), before + 1);
    let status = lab.status("near").unwrap();
    let routes = &status["interception"]["bypassed_routes"];
    assert_eq!(routes[0], "198.18.1.0/24 to 198.18.2.0/24");
    let stage = lab.last_why()["stages"][0].clone();
    let says = |field: &str| stage[field].as_str().unwrap().to_owned();
    assert!(says("why_not").contains("asymmetric route"));
    assert!(says("remedy").contains("through the far node"));

    // Nobody else waits: neither for another port nor for a server that was reached before.
    for server in [ELSEWHERE_TOO, SERVER] {
        assert_eq!(lab.fetch_within(server, "900"), "198.18.1.2 200000");
    }
    assert_eq!(lab.flows_total("near"), before + 1);

    // The next tests use the same networks. A configuration that is read again starts anew.
    lab.set("server", &[&["ip", "route", "del"], &route[..]].concat());
    let socket = lab.state("near").join("admin.sock");
    node::admin::ask(&socket, RELOAD).unwrap();
    within(Duration::from_secs(3), || {
        let status = lab.status("near").unwrap();
        status["interception"]["bypassed_routes"] == serde_json::json!([])
    });
}

pub(super) fn peers_own_address(lab: &mut InterceptionLab) {
    let before = lab.flows_total("near");
    assert_eq!(lab.fetch(PEER_ITSELF), "ConnectionRefused");
    assert_eq!(lab.flows_total("near"), before);
}
