//! Two real nodes on this machine's loopback addresses, without privileges, and a relay between
//! them that acts as a network does: it breaks the TCP connection, or changes one side's UDP port
//! in mid-transfer; both ends of a turn-up test, with a faulty other end; and captures of every
//! kind.
//!
//! Times are not asserted: the reasons that the nodes report distinguish events learned from the
//! peer from those learned by waiting.

#![allow(clippy::unwrap_used)]

mod bent_ends;
mod broken_pipes;
mod captures;
mod closes;
mod http;
mod https;
mod kills;
mod operation;
mod relay;
mod silence;
mod sites;
mod turn_up;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use sites::{RATE, TestSites};

/// Size of a transfer: some four seconds at the rate to which the far node is limited.
const BYTES: usize = 12 << 20;

/// RFC 9000 §9.3 (Responding to Connection Migration), as far as a transfer shows it: a translator
/// that gives a path another port in the middle of it costs neither the path nor a byte.
#[test]
fn nat_port_change_in_mid_transfer_is_followed() {
    let sites = TestSites::new(1, RATE);
    sites.wait_for("near", |path| path["carries"] == "udp");
    let mut download = sites.download(BYTES);
    for part in 1..4 {
        download.read_until(BYTES / 4 * part);
        sites.relay.rebind();
    }
    download.read_until(BYTES);
    assert!(download.is_right());
    let sent = sites.relay.by_port();
    assert_eq!(sent.len(), 4);
    assert!(sent.iter().all(|packets| *packets > 500), "{sent:?}");
    for node in ["near", "far"] {
        let path = sites.path(node);
        assert_eq!(path["carries"], "udp", "{node}: {path}");
        assert_eq!(path["fallbacks_total"], 0, "{node}: {path}");
    }
}

/// The link breaks for one side only, which gets no other meanwhile; the packets continue.
#[test]
fn transfer_continues_over_udp_when_its_link_breaks() {
    let sites = TestSites::new(2, RATE);
    for node in ["near", "far"] {
        sites.wait_for(node, |path| path["carries"] == "udp");
    }
    let mut download = sites.download(BYTES);
    download.read_until(BYTES / 4);
    sites.relay.break_near_links();
    download.read_until(BYTES);
    assert!(download.is_right());
    for node in ["near", "far"] {
        let path = sites.path(node);
        assert_eq!(path["carries"], "udp", "{node}: {path}");
        assert_eq!(path["fallbacks_total"], 0, "{node}: {path}");
    }
    // New flows are opened meanwhile, too.
    let mut download = sites.download(BYTES / 4);
    download.read_until(BYTES / 4);
    assert!(download.is_right());
    let log = sites.log("near");
    assert!(!log.contains("bypasses"), "{log}");
}

/// A node restores the path's properties when it restarts, and keeps them.
#[test]
fn path_properties_survive_the_node() {
    let mut sites = TestSites::new(3, RATE);
    sites.wait_for("near", |path| path["carries"] == "udp");
    let mut download = sites.download(BYTES / 4);
    download.read_until(BYTES / 4);
    for _ in 0..2 {
        sites.stop("far");
        let text = std::fs::read_to_string(sites.state("far").join("paths.json")).unwrap();
        let kept: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(kept["paths"].as_array().unwrap().len(), 1, "{text}");
        let rate = kept["paths"][0]["rate_bit_s"].as_u64().unwrap();
        assert!(rate > 1_000_000, "{text}");
        sites.start("far");
        let log = sites.log("far");
        assert!(!log.contains("measures the paths"), "{log}");
    }
}

/// RFC 1928 §6 (Replies): the client learns of the far server's refusal before it learns of a
/// success.
#[test]
fn a_proxys_client_hears_that_the_server_refuses() {
    // The long test of sockets has this number too; long tests run by themselves.
    let sites = TestSites::new(14, RATE);
    sites.wait_for("near", |path| path["carries"] == "udp");
    let mut download = sites.download(BYTES / 64);
    download.read_until(BYTES / 64);
    for _ in 0..2 {
        let refused = sites.connect_to_a_closed_port().unwrap_err().to_string();
        assert!(refused.contains("[5, 5, "), "{refused}");
    }
}

/// Every command reports it, with an exit code for scripts, before and while a node runs.
#[test]
fn account_file_open_to_others_is_refused() {
    let sites = TestSites::new(4, RATE);
    let accounts = sites.state("near").join("accounts");
    std::fs::write(&accounts, "*\\backup:password:secret\n").unwrap();
    let open_to = |mode| {
        std::fs::set_permissions(&accounts, Permissions::from_mode(mode)).unwrap();
    };
    let policy = format!("[credentials]\naccounts = {accounts:?}\n[smb]\nmode = \"strict\"\n");
    sites.configure("near", &policy);
    open_to(0o644);
    let (code, error) = sites.ends("near", &["node", "reload"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(
        error.contains("mode 644") && error.contains("the old"),
        "{error}"
    );
    let (code, error) = sites.check("near");
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("mode 644"), "{error}");
    open_to(0o600);
    assert_eq!(
        sites.ends("near", &["node", "reload"]),
        (Some(0), String::new())
    );
    assert_eq!(sites.check("near"), (Some(0), String::new()));
}

/// The kernel reports the reason since Linux 6.15; on older kernels the log says that it does not.
#[test]
fn the_log_says_how_a_node_died() {
    let mut sites = TestSites::new(5, RATE);
    sites.kill("near");
    sites.wait_for_log("near", "the node's process ended");
    let log = sites.log("near");
    let said = ["killed by signal 9", "the kernel did not report"];
    assert!(said.iter().any(|said| log.contains(said)), "{log}");
}

/// Some points; the next test uses a thousand.
#[test]
fn killed_node_loses_no_acknowledged_byte() {
    kills_lose_nothing(10);
}

/// `cargo test --release -p trunkline --test loopback -- --ignored --nocapture thousand`
#[test]
#[ignore = "takes a quarter of an hour"]
fn node_killed_at_thousand_points_loses_nothing_acknowledged() {
    kills_lose_nothing(1_000);
}

fn kills_lose_nothing(points: u32) {
    let mut sites = TestSites::new(0, "400Mbit");
    sites.wait_for("near", |path| path["carries"] == "udp");
    let seen = kills::kill(&mut sites, points, u64::from(points));
    println!("{seen:?}");
    assert!(seen.whole > 0 && seen.cut_off > 0, "{seen:?}");
    assert!(seen.again_wan_bytes < seen.again_bytes / 20, "{seen:?}");
}

/// Some scripts over UDP; the next test runs a thousand, over UDP and TLS.
#[test]
fn sockets_behave_the_same_through_two_nodes() {
    let sites = TestSites::new(31, "400Mbit");
    sites.wait_for("near", |path| path["carries"] == "udp");
    closes::compare(&sites, 0..60);
}

/// `cargo test -p trunkline --test loopback -- --ignored --nocapture five_hundred`
#[test]
#[ignore = "long: two minutes"]
fn five_hundred_socket_scripts_match_direct_ones() {
    let sites = TestSites::with_wan(14, "udp = \"auto\"");
    sites.wait_for("near", |path| path["carries"] == "udp");
    closes::compare(&sites, 1_000..1_500);
    let sites = TestSites::with_wan(15, "udp = \"off\"");
    closes::compare(&sites, 2_000..2_500);
}
