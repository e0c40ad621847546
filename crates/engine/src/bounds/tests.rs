//! Tests of the bounds on servers and clients that a peer may name.

use super::*;

use reduce::DictionaryConfig;
use vocab::NodeId;

use crate::config::{EngineLimits, FlowPolicy};

fn prefix(text: &str) -> IpPrefix {
    text.parse().unwrap()
}

fn prefixes(texts: &[&str]) -> Vec<IpPrefix> {
    texts.iter().map(|text| prefix(text)).collect()
}

fn peer(texts: &[&str]) -> PeerConfig {
    PeerConfig {
        node: NodeId([1; 32]),
        name: "near".to_owned(),
        prefixes: prefixes(texts),
    }
}

fn config(serve: Option<&[&str]>) -> EngineConfig {
    EngineConfig {
        local: NodeId([2; 32]),
        peers: vec![peer(&["10.10.0.0/16", "2001:2:0:1::/64"])],
        serve: serve.map(prefixes),
        serve_peers_without_prefixes: false,
        limits: EngineLimits::default(),
        policy: FlowPolicy::default(),
        dictionary: DictionaryConfig::default(),
        dictionary_key: None,
        tunnel: tunnel::SessionConfig::default(),
        datagrams: tunnel::transport::PathSettings::default(),
    }
}

fn bounds(lan: &[&str], other: &[&str], own: &[&str]) -> AddressBounds {
    let routes = |texts: &[&str], side| -> Vec<NetworkRoute> {
        let route = |to| NetworkRoute { to, side };
        prefixes(texts).into_iter().map(route).collect()
    };
    let mut all = routes(other, RouteSide::Other);
    all.extend(routes(lan, RouteSide::Lan));
    AddressBounds::new(&NetworkSurroundings {
        routes: all,
        own: prefixes(own),
    })
}

/// A data centre's gateway: servers beside it and behind a router of its LAN, the branch and the
/// Internet on its WAN side.
fn gateway() -> AddressBounds {
    bounds(
        &[
            "10.20.0.0/16",
            "10.0.0.0/8",
            "2001:2:0:2::/64",
            "64:ff9b::/96",
            "64:ff9b:1::/48",
            "2002::/16",
            "fe80::/64",
        ],
        &["0.0.0.0/0", "192.0.2.0/24", "10.99.0.0/16"],
        &[
            "127.0.0.0/8",
            "10.20.0.1/32",
            "10.20.255.255/32",
            "192.0.2.1",
            "::1",
            "2001:2:0:2::1",
        ],
    )
}

fn server(bounds: &AddressBounds, serve: Option<&[&str]>, server: &str) -> Result<(), OpenRefusal> {
    bounds.check_server(&config(serve), server.parse().unwrap())
}

#[test]
fn only_lan_networks_are_served_by_default() {
    let gateway = gateway();
    for inside in [
        "10.20.0.9",
        "10.30.1.1",
        "2001:2:0:2::9",
        "::ffff:10.20.0.9",
    ] {
        assert_eq!(server(&gateway, None, inside), Ok(()), "{inside}");
    }
    for outside in [
        "192.0.2.9",     // beside the WAN interface
        "203.0.113.1",   // by the default route
        "10.99.1.1",     // a longer route leads to the WAN
        "10.10.0.9",     // behind a peer
        "2001:2:0:1::9", // likewise
        "2001:db8::1",   // no route at all
    ] {
        let refused = Err(OpenRefusal::ServerNotServed);
        assert_eq!(server(&gateway, None, outside), refused, "{outside}");
    }
}

#[test]
fn own_and_non_host_addresses_are_always_refused() {
    let gateway = gateway();
    for disguised in [
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "::",
        "169.254.1.1",
        "fe80::1",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "10.20.0.1",
        "10.20.255.255",
        "192.0.2.1",
        "2001:2:0:2::1",
        "::ffff:127.0.0.1",
        "::ffff:10.20.0.1",
        "::127.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::10.20.0.1",
        "64:ff9b::169.254.1.1",
        "64:ff9b:1::10.20.0.1",
        "64:ff9b:1:0a14:0:1::",   // 10.20.0.1 behind a /48
        "64:ff9b:1:7f:0:1::",     // 127.0.0.1 behind a /56
        "64:ff9b:1:1:7f:0:100::", // 127.0.0.1 behind a /64
        "2002:7f00:1::1",
        "2002:0a14:1::1",
        "2001:2:0:2:0:5efe:127.0.0.1",
        "2001:2:0:2:200:5efe:10.20.0.1",
    ] {
        for serve in [None, Some(&["0.0.0.0/0", "::/0"][..])] {
            let checked = server(&gateway, serve, disguised);
            assert!(checked.is_err(), "{disguised} with {serve:?}: {checked:?}");
        }
    }
    // Teredo's client address is inverted: this one is 127.0.0.1.
    let teredo = "2001:0:cb00:7101:0:0:80ff:fffe";
    assert!(server(&gateway, Some(&["::/0"]), teredo).is_err());
}

#[test]
fn wan_address_behind_a_translator_is_not_served() {
    let gateway = gateway();
    assert_eq!(server(&gateway, None, "64:ff9b::10.20.0.9"), Ok(()));
    let wan = server(&gateway, None, "64:ff9b::10.99.1.1");
    assert_eq!(wan, Err(OpenRefusal::ServerNotServed));
}

#[test]
fn default_route_adds_no_lan_network() {
    let one_armed = bounds(
        &[
            "0.0.0.0/0",
            "0.0.0.0/1",
            "128.0.0.0/1",
            "::/0",
            "2000::/3",
            "10.20.0.0/16",
        ],
        &[],
        &[],
    );
    for outside in ["203.0.113.1", "10.30.0.1", "2001:db8::1"] {
        let refused = Err(OpenRefusal::ServerNotServed);
        assert_eq!(server(&one_armed, None, outside), refused, "{outside}");
    }
    assert_eq!(server(&one_armed, None, "10.20.0.9"), Ok(()));
}

#[test]
fn wan_route_wins_over_equal_lan_route() {
    let twice = bounds(&["10.20.0.0/16"], &["10.20.0.0/16"], &[]);
    let refused = Err(OpenRefusal::ServerNotServed);
    assert_eq!(server(&twice, None, "10.20.0.9"), refused);
}

#[test]
fn a_list_is_all_that_is_served() {
    let gateway = gateway();
    let serve: Option<&[&str]> = Some(&["10.20.4.0/24", "198.51.100.0/24"]);
    assert_eq!(server(&gateway, serve, "10.20.4.9"), Ok(()));
    assert_eq!(server(&gateway, serve, "198.51.100.9"), Ok(()));
    let refused = Err(OpenRefusal::ServerNotListed);
    assert_eq!(server(&gateway, serve, "10.20.5.9"), refused);
    assert_eq!(server(&gateway, Some(&[]), "10.20.5.9"), refused);
}

#[test]
fn this_node_is_served_only_if_listed() {
    let gateway = gateway();
    let around: Option<&[&str]> = Some(&["10.20.0.0/16", "0.0.0.0/0"]);
    let refused = Err(OpenRefusal::ServerIsThisNode);
    assert_eq!(server(&gateway, around, "10.20.0.1"), refused);
    assert_eq!(server(&gateway, Some(&["10.20.0.1"]), "10.20.0.1"), Ok(()));
    let loopback: Option<&[&str]> = Some(&["127.0.0.0/8"]);
    assert_eq!(server(&gateway, loopback, "127.0.0.1"), Ok(()));
}

#[test]
fn clients_are_those_behind_the_peer() {
    let gateway = gateway();
    let config = config(None);
    let check = |client: &str| {
        let peer = &config.peers[0];
        gateway.check_client(&config, peer, client.parse().unwrap(), true)
    };
    assert_eq!(check("10.10.3.4"), Ok(SourceAddress::Client));
    assert_eq!(check("::ffff:10.10.3.4"), Ok(SourceAddress::Client));
    assert_eq!(check("2001:2:0:1::7"), Ok(SourceAddress::Client));
    assert_eq!(check("192.0.2.9"), Err(OpenRefusal::ClientNotOfPeer));
    for here in [
        "10.20.0.9",
        "10.30.0.9",
        "10.20.0.1",
        "127.0.0.1",
        "::1",
        "::ffff:10.20.0.1",
    ] {
        assert_eq!(check(here), Err(OpenRefusal::ClientIsHere), "{here}");
    }
}

#[test]
fn wide_peer_prefix_excludes_addresses_of_this_site() {
    let gateway = gateway();
    let mut config = config(None);
    config.peers = vec![peer(&["10.0.0.0/8", "0.0.0.0/0"])];
    let check = |client: &str| {
        let peer = &config.peers[0];
        gateway.check_client(&config, peer, client.parse().unwrap(), true)
    };
    assert_eq!(check("10.20.0.9"), Err(OpenRefusal::ClientIsHere));
    assert_eq!(check("10.20.0.1"), Err(OpenRefusal::ClientIsHere));
    assert_eq!(check("10.77.0.9"), Ok(SourceAddress::Client));
}

#[test]
fn peer_without_prefixes_is_served_if_allowed() {
    let gateway = gateway();
    let nobody = peer(&[]);
    let client: IpAddr = "10.10.3.4".parse().unwrap();
    let check = |config: &EngineConfig, keep| gateway.check_client(config, &nobody, client, keep);
    let refused = Err(OpenRefusal::PeerWithoutPrefixes);
    let mut config = config(None);
    assert_eq!(check(&config, true), refused);
    assert_eq!(check(&config, false), refused);
    config.serve = Some(prefixes(&["10.20.0.0/16"]));
    assert_eq!(check(&config, true), refused);
    assert_eq!(check(&config, false), Ok(SourceAddress::Node));
    config.serve = None;
    config.serve_peers_without_prefixes = true;
    assert_eq!(check(&config, true), Ok(SourceAddress::Node));
    assert_eq!(check(&config, false), Ok(SourceAddress::Node));
}

#[test]
fn proxy_connection_uses_the_nodes_own_address() {
    let gateway = gateway();
    let config = config(None);
    let client = "127.0.0.1".parse().unwrap();
    let checked = gateway.check_client(&config, &config.peers[0], client, false);
    assert_eq!(checked, Ok(SourceAddress::Node));
}

#[test]
fn first_matching_serve_rule_decides() {
    let rule = |clients: &[&str],
                servers: &[&str],
                ports: &[std::ops::RangeInclusive<u16>],
                action| ServeRule {
        clients: prefixes(clients),
        servers: prefixes(servers),
        ports: ports.to_vec(),
        action,
    };
    let mut config = config(None);
    config.policy.serve_rules = vec![
        rule(&[], &["10.20.9.0/24"], &[80..=80], ServeAction::Refuse),
        rule(
            &[],
            &["10.20.0.0/16"],
            &[80..=80, 443..=443],
            ServeAction::Accept,
        ),
        rule(&["10.10.1.0/24"], &[], &[22..=22], ServeAction::Accept),
        rule(&["10.10.2.0/24"], &[], &[25..=25], ServeAction::Refuse),
        rule(&[], &[], &[0..=1023], ServeAction::Refuse),
    ];
    let check = |client: &str, source, server: &str| {
        let (client, server) = (client.parse().unwrap(), server.parse().unwrap());
        AddressBounds::check_rules(&config, client, source, server).is_ok()
    };
    for (client, server, is_accepted) in [
        ("10.10.1.7", "10.20.0.5:80", true),
        ("10.10.1.7", "10.20.9.5:80", false),
        ("10.10.1.7", "10.20.9.5:443", true),
        ("10.10.1.7", "10.20.0.5:22", true),
        ("10.10.2.7", "10.20.0.5:22", false),
        ("10.10.2.7", "10.20.0.5:25", false),
        ("10.10.2.7", "10.30.0.5:80", false),
        // No rule applies.
        ("10.10.2.7", "10.30.0.5:8080", true),
        ("::ffff:10.10.1.7", "[::ffff:10.20.0.5]:22", true),
    ] {
        let accepted = check(client, SourceAddress::Client, server);
        assert_eq!(accepted, is_accepted, "{client} to {server}");
    }
    // A client that may be any is none that is accepted, and one that is refused.
    assert!(!check("10.10.1.7", SourceAddress::Node, "10.20.0.5:22"));
    assert!(check("10.10.1.7", SourceAddress::Node, "10.20.0.5:443"));
    config.policy.serve_rules.remove(4);
    let check = |source, server: &str| {
        let (client, server) = ("10.10.1.7".parse().unwrap(), server.parse().unwrap());
        AddressBounds::check_rules(&config, client, source, server).is_ok()
    };
    assert!(!check(SourceAddress::Node, "10.20.0.5:25"));
    assert!(check(SourceAddress::Client, "10.20.0.5:25"));
    // What a translator would make of it is refused too, and is not accepted.
    assert!(!check(SourceAddress::Client, "[64:ff9b::10.20.9.5]:80"));
    assert!(check(SourceAddress::Client, "[64:ff9b::10.20.9.5]:8080"));
}
