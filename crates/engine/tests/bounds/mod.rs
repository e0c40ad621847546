//! Tests of the servers that a peer may reach, seen from the asking node: forbidden and unreachable
//! servers look the same there.

use std::net::SocketAddr;
use std::time::Duration;

use engine::{ArrivalMethod, EngineEvent, ServeAction, ServeRule};
use vocab::Time;

use super::world::{FAR, NEAR, ServerScript, TwoNodeWorld, WorldSettings, client};
use super::{PATIENCE, REQUEST, answering};
use bytes::Bytes;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The end of a connection between these, at the near node.
struct ConnectionOutcome {
    after: Duration,
    was_reset: bool,
    reason: String,
    wan_bytes: u64,
}

fn try_between(
    world: &mut TwoNodeWorld,
    client: SocketAddr,
    server: SocketAddr,
    via: ArrivalMethod,
) -> ConnectionOutcome {
    let begun = world.now;
    let before: u64 = world.wan_bytes.iter().sum();
    let connection = world.accept_between(client, server, via);
    world.send(connection, REQUEST, true);
    let over = |world: &TwoNodeWorld| {
        let host = world.client_host(connection);
        host.was_reset || host.was_closed
    };
    world.run_until(over, PATIENCE);
    let flows = world.nodes[NEAR].engine.flows(world.now);
    ConnectionOutcome {
        after: world.now.since(begun),
        was_reset: world.client_host(connection).was_reset,
        reason: flows.last().unwrap().state.clone(),
        wan_bytes: world.wan_bytes.iter().sum::<u64>() - before,
    }
}

fn refused_total(world: &TwoNodeWorld) -> u64 {
    world.nodes[FAR].engine.status().peers[0].refused_by_policy_total
}

#[test]
fn forbidden_and_unreachable_servers_look_alike() {
    let mut world = TwoNodeWorld::new(WorldSettings::default());
    world
        .servers
        .insert(80, answering(&Bytes::from_static(b"secret")));
    world.servers.insert(81, ServerScript::Unreachable);
    let out_of_reach = try_between(
        &mut world,
        client(),
        address("198.18.2.2:81"),
        ArrivalMethod::Transparent,
    );
    assert!(out_of_reach.was_reset);
    for (from, to) in [
        ("198.18.1.2:1", "198.18.0.9:80"), // the WAN side of the far node
        ("198.18.1.2:1", "198.18.2.1:80"), // the far node itself
        ("198.18.1.2:1", "127.0.0.1:80"),
        ("198.18.2.7:1", "198.18.2.2:80"), // as a host beside the server
        ("203.0.113.1:1", "198.18.2.2:80"), // as anybody
        ("127.0.0.1:1", "198.18.2.2:80"),
    ] {
        let refused = refused_total(&world);
        // The near node is one that its owner has turned against the far one.
        world.widen_prefixes(NEAR, &["198.18.0.0/24", "198.18.2.0/24", "127.0.0.0/8"]);
        let forbidden = try_between(
            &mut world,
            address(from),
            address(to),
            ArrivalMethod::Transparent,
        );
        assert_eq!(refused_total(&world), refused + 1, "{from} to {to}");
        assert!(forbidden.was_reset);
        assert_eq!(forbidden.reason, out_of_reach.reason, "{from} to {to}");
        let apart = forbidden.after.abs_diff(out_of_reach.after);
        assert!(
            apart < Duration::from_millis(1),
            "{from} to {to}: {apart:?}"
        );
        assert!(forbidden.wan_bytes.abs_diff(out_of_reach.wan_bytes) < 32);
    }
    assert_eq!(world.server_hosts().count(), 0, "no connection was opened");
}

#[test]
fn refused_open_is_logged_once_a_minute() {
    let mut world = TwoNodeWorld::new(WorldSettings::default());
    world.widen_prefixes(NEAR, &["198.18.0.0/24"]);
    for _ in 0..5 {
        try_between(
            &mut world,
            client(),
            address("198.18.0.9:80"),
            ArrivalMethod::Transparent,
        );
    }
    let told = |world: &TwoNodeWorld| -> Vec<u64> {
        let opens = |event: &EngineEvent| match event {
            EngineEvent::OpensRefused { opens, .. } => Some(*opens),
            _ => None,
        };
        world.nodes[FAR].events.iter().filter_map(opens).collect()
    };
    assert_eq!(told(&world), [1]);
    world.run_for(Duration::from_secs(60));
    try_between(
        &mut world,
        client(),
        address("198.18.0.9:80"),
        ArrivalMethod::Transparent,
    );
    assert_eq!(told(&world), [1, 5]);
    let flows = world.nodes[FAR].engine.flows(world.now);
    let refused = flows.last().unwrap();
    assert!(
        refused.state.contains("lan_interfaces"),
        "{}",
        refused.state
    );
    let why = world.nodes[FAR]
        .engine
        .why(world.now, refused.flow)
        .unwrap();
    let reason = why.stages[0].why_not.clone().unwrap();
    assert!(reason.contains("serve under [policy]"), "{reason}");
}

#[test]
fn routes_that_change_change_what_is_served() {
    let mut world = TwoNodeWorld::new(WorldSettings::default());
    world
        .servers
        .insert(80, answering(&Bytes::from_static(b"hello")));
    world.widen_prefixes(NEAR, &["198.18.2.0/24", "198.18.7.0/24"]);
    let server = address("198.18.7.9:80");
    let before = try_between(&mut world, client(), server, ArrivalMethod::Transparent);
    assert!(before.was_reset);
    world.add_lan_route(FAR, "198.18.7.0/24");
    let after = try_between(&mut world, client(), server, ArrivalMethod::Transparent);
    assert!(!after.was_reset);
    world.look_around(FAR);
    assert!(try_between(&mut world, client(), server, ArrivalMethod::Transparent).was_reset);
}

#[test]
fn a_proxys_client_may_have_any_address() {
    let mut world = TwoNodeWorld::new(WorldSettings::default());
    world
        .servers
        .insert(80, answering(&Bytes::from_static(b"hello")));
    let from = address("127.0.0.1:1");
    let ending = try_between(
        &mut world,
        from,
        address("198.18.2.2:80"),
        ArrivalMethod::Socks5,
    );
    assert!(!ending.was_reset, "{}", ending.reason);
    let seen: Vec<_> = world.server_hosts().map(|host| host.seen_client).collect();
    assert_eq!(seen, [None], "the server sees the far node");
    assert!(world.now > Time::ZERO);
}

#[test]
fn port_refused_by_rule_looks_unreachable() {
    let rule = |ports: &[std::ops::RangeInclusive<u16>], action| ServeRule {
        clients: Vec::new(),
        servers: vec!["198.18.2.0/24".parse().unwrap()],
        ports: ports.to_vec(),
        action,
    };
    let mut setting = WorldSettings::default();
    setting.far_policy.serve_rules = vec![
        rule(&[80..=80], ServeAction::Accept),
        rule(&[], ServeAction::Refuse),
    ];
    let mut world = TwoNodeWorld::new(setting);
    for port in [80, 22] {
        let secret = Bytes::from_static(b"secret");
        world.servers.insert(port, answering(&secret));
    }
    let served = try_between(
        &mut world,
        client(),
        address("198.18.2.2:80"),
        ArrivalMethod::Transparent,
    );
    assert!(!served.was_reset);
    for via in [ArrivalMethod::Transparent, ArrivalMethod::Socks5] {
        let refused = try_between(&mut world, client(), address("198.18.2.2:22"), via);
        assert!(refused.was_reset);
        assert!(refused.after >= Duration::from_millis(3_200));
        assert!(!refused.reason.contains("rule"), "{}", refused.reason);
    }
    assert_eq!(refused_total(&world), 2);
    assert_eq!(world.server_hosts().count(), 1, "no connection was opened");
    let told = world.nodes[FAR].events.iter();
    let told = told.filter(|event| {
        matches!(event, EngineEvent::OpensRefused { reason, .. } if reason.contains("serve_rule"))
    });
    assert_eq!(told.count(), 1);
}
