//! Tests of peers that hang, die or are removed, and of the connections at the other end.
//!
//! The asserted times are far from the nodes' own limits, and from the time that waiting for the
//! peer would take (45 s).

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::sites::{self, PATIENCE, RATE, TestSites};

/// A node waits for 5 s where it can, and for 45 s where it must.
const SOON: Duration = Duration::from_secs(15);

/// A client's connection through the nodes, and its end at the server.
struct ConnectionPair {
    client: TcpStream,
    server: TcpStream,
    listener: TcpListener,
}

impl ConnectionPair {
    /// Connected from end to end: a byte has gone each way.
    fn new(sites: &TestSites) -> Self {
        for node in ["near", "far"] {
            sites.wait_for(node, |path| path["carries"] == "udp");
        }
        let listener = TcpListener::bind((sites.far(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = sites::connect(sites.socks(), sites.far(), port).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut pair = Self {
            client,
            server,
            listener,
        };
        pair.exchange();
        pair
    }

    fn exchange(&mut self) {
        let mut byte = [0];
        self.client.write_all(b"?").unwrap();
        self.server.read_exact(&mut byte).unwrap();
        self.server.write_all(b"!").unwrap();
        self.client.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"!");
    }
}

/// Waits for the reset of a connection on which nothing comes.
fn await_reset(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    begun.elapsed()
}

/// SIGSTOP at the far node: connections that it never confirmed end, and confirmed ones go on when it does.
#[test]
fn hung_far_node_delays_no_new_connection() {
    let sites = TestSites::new(8, RATE);
    let mut established = ConnectionPair::new(&sites);
    let reached = established.listener.local_addr().unwrap().port();
    let fresh = TcpListener::bind((sites.far(), 0)).unwrap();
    let fresh = fresh.local_addr().unwrap().port();
    sites.signal("far", "STOP");
    // The server was reached before, so its clients are accepted at once.
    let mut hanging: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut client = sites::connect(sites.socks(), sites.far(), reached).unwrap();
            client.write_all(b"order one").unwrap();
            client
        })
        .collect();
    // This one was not, and its client waits for it.
    let begun = Instant::now();
    assert!(sites::connect(sites.socks(), sites.far(), fresh).is_err());
    let took = begun.elapsed();
    assert!(took < SOON, "{took:?}");
    for client in &mut hanging {
        let took = await_reset(client);
        assert!(took < SOON, "{took:?}");
    }
    sites.wait_for_log("near", "connections that the silent peer had not confirmed");
    let log = sites.log("near");
    let line = log.lines().find(|line| line.contains("not confirmed"));
    let line = line.unwrap();
    for said in ["peer=\"far\"", "direct=0", "reset=3"] {
        assert!(line.contains(said), "{line}");
    }
    // What stood before goes on when the node does.
    sites.signal("far", "CONT");
    established.exchange();
}

/// kill -9 of the near node: nothing at the server waits for a client that has no connection any more.
#[test]
fn dead_near_node_leaves_no_server_connection() {
    let mut sites = TestSites::new(9, RATE);
    let mut pair = ConnectionPair::new(&sites);
    sites.kill("near");
    let took = await_reset(&mut pair.server);
    assert!(took < SOON, "{took:?}");
    sites.wait_for_log("far", "the session with the peer ended");
}

/// Whichever node removes the other.
#[test]
fn a_removed_peers_flows_end_at_both_ends() {
    let sites = TestSites::new(10, RATE);
    for (remover, removed) in [("far", "near"), ("near", "far")] {
        let mut pair = ConnectionPair::new(&sites);
        let (code, said) = sites.ends(remover, &["peer", "remove", removed]);
        assert_eq!(code, Some(0), "{said}");
        for end in [&mut pair.client, &mut pair.server] {
            let took = await_reset(end);
            assert!(took < SOON, "{took:?}");
        }
        let (code, said) = sites.ends(removed, &["peer", "remove", remover]);
        assert_eq!(code, Some(0), "{said}");
        sites.pair();
    }
}

/// A truncated file removes nothing from flows until an operator confirms it.
#[test]
fn truncated_configuration_removes_no_peer_in_use() {
    let sites = TestSites::new(11, RATE);
    let mut pair = ConnectionPair::new(&sites);
    let whole = sites.configuration("near");
    let without_peer = whole.split("[[peer]]").next().unwrap();
    let without_prefixes = whole.split("prefixes").next().unwrap();
    let edited = without_peer.replace("grace = \"0s\"", "grace = \"1s\"");
    let reload = ["node", "reload"];
    for (text, said) in [
        (
            without_peer,
            "far (1 flow; its [[peer]] section is missing)",
        ),
        (without_prefixes, "far (1 flow; its prefixes are missing)"),
        (&edited, "far (1 flow; its [[peer]] section is missing)"),
        ("", "continues with the old one"),
        ("[node]\nname = \"ne", "continues with the old one"),
    ] {
        sites.set_configuration("near", text);
        let (code, error) = sites.ends_by_socket("near", &reload);
        assert_eq!(code, Some(1), "{text}: {error}");
        assert!(error.contains(said), "{text}: {error}");
        pair.exchange();
    }
    // What has only lost a section behind the peers is an edit like others, and is mentioned.
    sites.set_configuration("near", &format!("{whole}[limits]\nflows = 100\n"));
    assert_eq!(sites.ends("near", &reload), (Some(0), String::new()));
    sites.set_configuration("near", &whole);
    let (code, said) = sites.ends("near", &reload);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("only the beginning of the old one"), "{said}");
    pair.exchange();
    sites.set_configuration("near", without_peer);
    sites.signal("near", "HUP");
    let refused = "refused the new configuration and continues with the old one";
    sites.wait_for_log("near", refused);
    pair.exchange();
    // Whole again, it holds at once; cut off and confirmed, it holds too.
    sites.set_configuration("near", &whole);
    assert_eq!(sites.ends("near", &reload), (Some(0), String::new()));
    pair.exchange();
    sites.set_configuration("near", without_peer);
    let (code, said) = sites.ends("near", &["node", "reload", "--remove-peers"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Removed the peer far"), "{said}");
    for end in [&mut pair.client, &mut pair.server] {
        let took = await_reset(end);
        assert!(took < SOON, "{took:?}");
    }
}

/// Nor does it take away a restriction.
#[test]
fn truncated_configuration_lifts_no_restriction() {
    let sites = TestSites::new(13, RATE);
    let mut pair = ConnectionPair::new(&sites);
    let bare = sites.configuration("near");
    let whole = format!("{bare}[policy]\nnever_store_ports = [5432]\n");
    let reload = ["node", "reload"];
    sites.set_configuration("near", &whole);
    assert_eq!(sites.ends("near", &reload), (Some(0), String::new()));
    // Cut off, and edited.
    for text in [&bare, &format!("# An edit.\n{bare}")] {
        sites.set_configuration("near", text);
        for flags in [&[][..], &["--remove-peers"]] {
            let (code, said) = sites.ends("near", &[&reload[..], flags].concat());
            assert_eq!(code, Some(1), "{said}");
            assert!(
                said.contains("any more: [policy] never_store_ports"),
                "{said}"
            );
            assert!(said.contains("--remove-restrictions"), "{said}");
        }
    }
    sites.wait_for_log(
        "near",
        "to accept the new one, run `trunkline node reload --remove-restrictions`",
    );
    let (code, said) = sites.ends("near", &["node", "reload", "--remove-restrictions"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("Removed the restriction [policy] never_store_ports"),
        "{said}"
    );
    assert_eq!(sites.ends("near", &reload), (Some(0), String::new()));
    pair.exchange();
}

/// An order to remove a peer does not wait for the configuration to be put right.
#[test]
fn removed_peer_is_gone_despite_refused_configuration() {
    let sites = TestSites::new(12, RATE);
    let mut pair = ConnectionPair::new(&sites);
    sites.configure("near", "[credentials]\naccounts = \"/nowhere/accounts\"\n");
    let (_, said) = sites.ends("near", &["peer", "remove", "far"]);
    for end in [&mut pair.client, &mut pair.server] {
        let took = await_reset(end);
        assert!(took < SOON, "{took:?}");
    }
    assert!(said.contains("/nowhere/accounts"), "{said}");
}
