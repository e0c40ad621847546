//! The shares of a node's flows that one client, and one peer, may use.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use engine::{ArrivalMethod, ConnectFailure, ConnectionId, EngineEvent, EngineInput, EngineLimits};

use super::PATIENCE;
use super::world::{FAR, NEAR, ServerScript, TwoNodeWorld, WorldSettings, client, server};

/// A server that keeps its connections.
const PORT: u16 = 9000;

fn limits(flows: usize) -> EngineLimits {
    EngineLimits {
        flows,
        ..EngineLimits::default()
    }
}

fn world(setting: WorldSettings) -> TwoNodeWorld {
    let mut world = TwoNodeWorld::new(setting);
    world.servers.insert(PORT, ServerScript::Swallow);
    world
}

fn open(world: &mut TwoNodeWorld, client: &str, via: ArrivalMethod) -> ConnectionId {
    let client = SocketAddr::new(client.parse().unwrap(), 1);
    world.accept_between(client, server(PORT), via)
}

/// The numbers of the near node's open flows of a client through the peer, and directly.
fn counts(world: &TwoNodeWorld, client: &str) -> (usize, usize) {
    let flows = world.nodes[NEAR].engine.flows(world.now);
    let of = |is_direct: bool| {
        let flows = flows.iter().filter(|flow| {
            let client = format!("{client}:");
            flow.state == "open"
                && flow.client.starts_with(&client)
                && (flow.peer == "direct") == is_direct
        });
        flows.count()
    };
    (of(false), of(true))
}

#[test]
fn one_client_leaves_half_of_the_flows() {
    let mut world = world(WorldSettings {
        limits: limits(40),
        ..WorldSettings::default()
    });
    let opened: Vec<_> = (0..24)
        .map(|_| open(&mut world, "198.18.1.7", ArrivalMethod::Transparent))
        .collect();
    assert_eq!(counts(&world, "198.18.1.7"), (20, 4));
    let resets = |world: &TwoNodeWorld| {
        let hosts = opened.iter().map(|opened| world.client_host(*opened));
        hosts.filter(|host| host.was_reset).count()
    };
    assert_eq!(resets(&world), 0, "at a share nothing is refused");
    assert_eq!(world.nodes[NEAR].passing, ["198.18.1.7".parse().unwrap()]);
    assert_eq!(world.nodes[NEAR].intercepted.len(), 1, "others are taken");

    let status = world.nodes[NEAR].engine.status();
    assert_eq!(status.shares_reached, ["clients 198.18.1.7/32 (24 flows)"]);
    assert_eq!(status.at_share_total, 4);
    let flows = world.nodes[NEAR].engine.flows(world.now);
    let direct = flows.iter().rfind(|flow| flow.peer == "direct").unwrap();
    let why = world.nodes[NEAR]
        .engine
        .why(world.now, direct.flow)
        .unwrap();
    let (reason, remedy) = (&why.stages[0].why_not, &why.stages[0].remedy);
    assert!(
        reason
            .as_ref()
            .unwrap()
            .contains("as many flows as its share allows")
    );
    assert!(remedy.as_ref().unwrap().contains("source_flows_percent"));

    open(&mut world, "198.18.1.8", ArrivalMethod::Transparent);
    assert_eq!(counts(&world, "198.18.1.8"), (1, 0));
}

#[test]
fn proxy_client_goes_directly_and_leaves_room() {
    let mut world = world(WorldSettings {
        limits: limits(40),
        ..WorldSettings::default()
    });
    for _ in 0..400 {
        open(&mut world, "198.18.1.7", ArrivalMethod::Socks5);
    }
    assert_eq!(counts(&world, "198.18.1.7"), (20, 10));
    assert_eq!(world.nodes[NEAR].passing, [], "no kernel could help");
    open(&mut world, "198.18.1.8", ArrivalMethod::Socks5);
    assert_eq!(counts(&world, "198.18.1.8"), (1, 0));
}

#[test]
fn closed_connections_can_be_opened_again() {
    let mut world = world(WorldSettings {
        limits: limits(16),
        ..WorldSettings::default()
    });
    let opened: Vec<_> = (0..8)
        .map(|_| open(&mut world, "198.18.1.7", ArrivalMethod::Socks5))
        .collect();
    open(&mut world, "198.18.1.7", ArrivalMethod::Socks5);
    assert_eq!(counts(&world, "198.18.1.7"), (8, 1));
    for connection in opened {
        world.abort(connection);
    }
    // A reset flow counts until the peer has all that its client sent.
    let are_over = |world: &TwoNodeWorld| counts(world, "198.18.1.7") == (0, 1);
    world.run_until(are_over, PATIENCE);
    open(&mut world, "198.18.1.7", ArrivalMethod::Socks5);
    assert_eq!(counts(&world, "198.18.1.7"), (1, 1));
}

#[test]
fn one_of_several_peers_gets_half_the_flows() {
    let all = || EngineLimits {
        source_flows_percent: 100,
        ..limits(1_000)
    };
    let mut world = world(WorldSettings {
        limits: all(),
        far_limits: limits(20),
        has_other_peer: true,
        ..WorldSettings::default()
    });
    let opened: Vec<_> = (0..12)
        .map(|_| open(&mut world, "198.18.1.7", ArrivalMethod::Transparent))
        .collect();
    let resets = |world: &TwoNodeWorld| {
        let hosts = opened.iter().map(|opened| world.client_host(*opened));
        hosts.filter(|host| host.was_reset).count()
    };
    world.run_until(|world| resets(world) == 2, PATIENCE);
    let status = world.nodes[FAR].engine.status();
    assert_eq!(status.flows, 10);
    let near = &status.peers[0];
    assert_eq!(
        (near.name.as_str(), near.refused_at_share_total),
        ("near", 2)
    );
    assert_eq!(status.shares_reached, ["peer near (10 flows)"]);
    let told = |event: &EngineEvent| matches!(event, EngineEvent::PeerAtShare { flows: 10, .. });
    assert_eq!(
        world.nodes[FAR]
            .events
            .iter()
            .filter(|event| told(event))
            .count(),
        1
    );
    // The near node hears that its peer is at a limit, and has new connections pass by for a while.
    assert!(world.nodes[NEAR].intercepted.is_empty());
    let flows = world.nodes[NEAR].engine.flows(world.now);
    let refused = flows.iter().find(|flow| flow.state != "open").unwrap();
    assert_eq!(refused.state, "the far node has reached a limit");
}

#[test]
fn connections_to_a_peer_at_its_share_pass() {
    let mut world = world(WorldSettings {
        limits: EngineLimits {
            source_flows_percent: 100,
            ..limits(20)
        },
        has_other_peer: true,
        ..WorldSettings::default()
    });
    for number in 0..12 {
        open(
            &mut world,
            &format!("198.18.1.{}", 10 + number),
            ArrivalMethod::Transparent,
        );
    }
    assert!(world.nodes[NEAR].intercepted.is_empty());
    let flows = world.nodes[NEAR].engine.flows(world.now);
    let direct: Vec<_> = flows.iter().filter(|flow| flow.peer == "direct").collect();
    assert_eq!(direct.len(), 2);
    let why = world.nodes[NEAR]
        .engine
        .why(world.now, direct[0].flow)
        .unwrap();
    let remedy = why.stages[0].remedy.clone().unwrap();
    assert!(remedy.contains("peer_flows_percent"), "{remedy}");
}

#[test]
fn the_only_peer_gets_all_flows() {
    let mut world = world(WorldSettings {
        limits: EngineLimits {
            source_flows_percent: 100,
            ..limits(20)
        },
        ..WorldSettings::default()
    });
    for _ in 0..20 {
        open(
            &mut world,
            &client().ip().to_string(),
            ArrivalMethod::Transparent,
        );
    }
    assert_eq!(counts(&world, &client().ip().to_string()), (20, 0));
}

/// A peer opens thousands of flows to a server that never answers.
#[test]
fn dead_server_holds_few_sockets_for_limited_time() {
    let mut world = world(WorldSettings::default());
    world.servers.insert(PORT + 1, ServerScript::Dead);
    let begun = world.now;
    let dead = SocketAddr::new(server(PORT).ip(), PORT + 1);
    for _ in 0..1_000 {
        world.accept_between(client(), dead, ArrivalMethod::Transparent);
    }
    world.run_until(|world| world.nodes[FAR].attempts.len() == 256, PATIENCE);
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.nodes[FAR].attempts.len(), 256);
    // Another server is reached meanwhile.
    let another = world.accept_between(
        client(),
        "198.18.2.3:9000".parse().unwrap(),
        ArrivalMethod::Transparent,
    );
    world.send(another, b"!", true);
    world.run_until(|world| world.client_host(another).was_closed, PATIENCE);
    // Who still waits for its turn fails after ten seconds, like an attempt.
    let flows = |world: &TwoNodeWorld| world.nodes[FAR].engine.status().flows;
    world.run_until(|world| flows(world) == 256, Duration::from_secs(6));
    for connection in std::mem::take(&mut world.nodes[FAR].attempts) {
        let result = Err(ConnectFailure::TimedOut);
        world.input(FAR, EngineInput::Connected { connection, result });
    }
    assert_eq!(flows(&world), 0);
    assert_eq!(world.nodes[FAR].attempts, []);
    assert!(world.now.since(begun) < Duration::from_secs(12));
}

#[test]
fn flows_to_a_busy_server_take_turns() {
    let mut world = world(WorldSettings::default());
    world.servers.insert(PORT + 1, ServerScript::Dead);
    let slow = SocketAddr::new(server(PORT).ip(), PORT + 1);
    for _ in 0..300 {
        world.accept_between(client(), slow, ArrivalMethod::Transparent);
    }
    let flows = |world: &TwoNodeWorld| world.nodes[FAR].engine.status().flows;
    world.run_until(|world| flows(world) == 300, PATIENCE);
    assert_eq!(world.nodes[FAR].attempts.len(), 256);
    for connection in std::mem::take(&mut world.nodes[FAR].attempts) {
        let result = Err(ConnectFailure::Refused);
        world.input(FAR, EngineInput::Connected { connection, result });
    }
    assert_eq!(world.nodes[FAR].attempts.len(), 44);
}

/// A shell detects with few probes that a host is unreachable. The result applies to all flows to
/// that host, so that many simultaneous opens tell a peer no more than one.
#[test]
fn all_flows_to_a_dead_host_fail_together() {
    let mut world = world(WorldSettings::default());
    let host = server(PORT).ip();
    let ports = [PORT + 1, PORT + 2];
    for port in ports {
        world.servers.insert(port, ServerScript::Dead);
    }
    let begun = world.now;
    let clients: Vec<ConnectionId> = (0..700)
        .map(|number| {
            let dead = SocketAddr::new(host, ports[number % 2]);
            world.accept_between(client(), dead, ArrivalMethod::Transparent)
        })
        .collect();
    world.run_until(|world| world.nodes[FAR].attempts.len() == 256, PATIENCE);
    world.run_for(Duration::from_millis(2_900));
    // The one probe that there was a place for.
    let connection = world.nodes[FAR].attempts.remove(100);
    let result = Err(ConnectFailure::Unreachable);
    world.input(FAR, EngineInput::Connected { connection, result });
    let is_over =
        |world: &TwoNodeWorld, client: &ConnectionId| world.client_host(*client).was_reset;
    world.run_until(
        |world| clients.iter().all(|client| is_over(world, client)),
        PATIENCE,
    );
    // After 3.2 s at the far node, as what the policy forbids.
    let took = world.now.since(begun);
    assert!(took < Duration::from_millis(3_600), "{took:?}");
    let flows = world.nodes[NEAR].engine.flows(world.now);
    let reasons: BTreeSet<&str> = flows.iter().map(|flow| flow.state.as_str()).collect();
    let unreachable = |reason: &&str| reason.starts_with("the far node cannot reach the server");
    assert!(
        reasons.len() == 1 && reasons.iter().all(unreachable),
        "{reasons:?}"
    );
    assert_eq!(world.nodes[FAR].engine.status().flows, 0);
    assert_eq!(world.nodes[FAR].attempts, [], "all were given up");
}
