//! Peers that hang, die, or remove this node: the fate of the connections beside both nodes.

use std::time::Duration;

use bytes::Bytes;
use engine::{ArrivalMethod, EngineEvent, EngineInput, LinkEnd};

use crate::world::{FAR, NEAR, ServerScript, TestHost, TwoNodeWorld};
use crate::{
    PATIENCE, REQUEST, ROUND_TRIP, answering, random_bytes, world_with, world_with_packets,
};

/// Both ends of every flow are gone one way of the path after the removal, in both directions, however many.
#[test]
fn removed_peer_resets_its_flow_ends_at_once() {
    let mut by_link = world_with([(9, ServerScript::Swallow)]);
    let mut by_packets = world_with_packets(0.0, [(9, ServerScript::Swallow)]);
    for world in [&mut by_link, &mut by_packets] {
        let connections: Vec<_> = (0..300).map(|_| world.accept(9)).collect();
        for connection in &connections {
            world.send(*connection, b"hello", false);
        }
        let received = |host: &TestHost| host.received.len() == 5;
        let all = |world: &TwoNodeWorld| {
            world.server_hosts().filter(|host| received(host)).count() == 300
        };
        world.run_until(all, PATIENCE);
        let begun = world.now;
        world.forget_peers(FAR);
        assert!(world.server_hosts().all(|host| host.was_reset));
        let are_reset =
            |world: &TwoNodeWorld| connections.iter().all(|c| world.client_host(*c).was_reset);
        world.run_until(are_reset, PATIENCE);
        let took = world.now.since(begun);
        assert!(took < ROUND_TRIP, "{took:?}");
    }
}

/// The peer was removed while the path was dark: the next dial is refused.
#[test]
fn refused_node_resets_the_flows_of_its_remover() {
    let mut world = world_with([(9, ServerScript::Swallow)]);
    let connection = world.accept(9);
    world.run_for(2 * ROUND_TRIP);
    assert_eq!(world.server_hosts().count(), 1);
    world.set_blocked(true);
    world.forget_peers(FAR);
    world.run_for(Duration::from_secs(10));
    assert!(!world.client_host(connection).was_reset);
    let peer = world.id(FAR);
    world.input(NEAR, EngineInput::RefusedByPeer { peer });
    assert!(world.client_host(connection).was_reset);
    let told = EngineEvent::RefusedByPeer { peer, flows: 1 };
    assert!(world.nodes[NEAR].events.contains(&told));
}

fn unanswered(world: &TwoNodeWorld) -> Option<(usize, usize)> {
    let mut events = world.nodes[NEAR].events.iter();
    events.find_map(|event| match event {
        EngineEvent::UnansweredFlowsEnded { direct, reset, .. } => Some((*direct, *reset)),
        _ => None,
    })
}

/// Their opens are in the stopped node's kernel. The node may execute them when it continues, so
/// they are never executed here as well.
#[test]
fn unconfirmed_connections_reset_when_the_peer_is_silent() {
    let answer = random_bytes(21, 400_000);
    let greeting = Bytes::from_static(b"220 ready");
    let scripts = [
        (80, answering(&answer)),
        (21, ServerScript::GreetAndEcho { greeting }),
    ];
    let mut by_link = world_with(scripts.clone());
    let mut by_packets = world_with_packets(0.0, scripts);
    for world in [&mut by_link, &mut by_packets] {
        let established = world.accept(21);
        let greeted = |world: &TwoNodeWorld| world.client_host(established).received.len() == 9;
        world.run_until(greeted, PATIENCE);
        world.freeze(FAR);
        let begun = world.now;
        let hanging: Vec<_> = (0..3)
            .map(|_| {
                let connection = world.accept(80);
                world.send(connection, REQUEST, true);
                world.run_for(Duration::from_millis(500));
                connection
            })
            .collect();
        // One that waits for the server before it is accepted: its SYN is let go and sent again.
        let asking = world.ask_via(80, ArrivalMethod::Transparent);
        let are_reset = |world: &TwoNodeWorld| {
            let mut all = hanging.iter().chain([&asking]);
            all.all(|c| world.client_host(*c).was_reset)
        };
        world.run_until(are_reset, PATIENCE);
        let took = world.now.since(begun);
        assert!(took <= Duration::from_secs(5), "{took:?}");
        assert_eq!(unanswered(world), Some((0, 4)));
        assert_eq!(world.client_host(asking).admitted_at, None);
        let executed_here = world.nodes[NEAR].hosts.len() - 5;
        assert_eq!(executed_here, 0);
        // New ones go directly, and those that stood outlive it.
        let connection = world.accept(80);
        world.send(connection, REQUEST, true);
        world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
        assert!(world.client_host(connection).received == answer);
        world.run_for(Duration::from_secs(20));
        assert!(!world.client_host(established).was_reset);
        world.thaw(FAR);
        world.send(established, b"QUIT", true);
        world.run_until(|world| world.client_host(established).was_closed, PATIENCE);
        assert_eq!(
            &world.client_host(established).received[..],
            b"220 readyQUIT"
        );
    }
}

/// The link is full of an upload, so that the opens of later connections wait for room on it.
#[test]
fn unsent_open_goes_directly_with_all_bytes() {
    let answer = random_bytes(22, 400_000);
    let mut world = world_with([(80, answering(&answer)), (9, ServerScript::Swallow)]);
    let upload = world.accept(9);
    world.run_until(|world| world.server_hosts().count() == 1, PATIENCE);
    world.freeze(FAR);
    world.send(upload, &random_bytes(23, 900_000), false);
    world.run_for(Duration::from_millis(500));
    let waiting: Vec<_> = (0..4)
        .map(|index| {
            let connection = match index {
                0 => world.ask_via(80, ArrivalMethod::Socks5),
                _ => world.accept(80),
            };
            world.send(connection, REQUEST, true);
            connection
        })
        .collect();
    let begun = world.now;
    let are_served =
        |world: &TwoNodeWorld| waiting.iter().all(|c| world.client_host(*c).was_closed);
    world.run_until(are_served, PATIENCE);
    assert!(world.now.since(begun) <= Duration::from_secs(5));
    for connection in &waiting {
        assert!(world.client_host(*connection).received == answer);
    }
    assert_eq!(unanswered(&world), Some((4, 0)));
    assert!(world.client_host(waiting[0]).admitted_at.is_some());
    let flows = world.nodes[NEAR].engine.flows(world.now);
    let direct = flows.iter().rfind(|flow| flow.peer == "direct").unwrap();
    let why = world.nodes[NEAR]
        .engine
        .why(world.now, direct.flow)
        .unwrap();
    let why_not = why.stages[0].why_not.clone().unwrap();
    assert!(
        why_not.contains("fell silent before this node asked"),
        "{why_not}"
    );
    // The far node goes on, hears of all that waited, and executes none of it.
    world.thaw(FAR);
    world.run_for(Duration::from_secs(30));
    assert_eq!(world.server_hosts().count(), 1);
    assert!(!world.client_host(upload).was_reset);
}

/// Its files and locks are free for the client's next connection.
#[test]
fn server_connections_of_a_dead_peer_end_quickly() {
    let mut by_link = world_with([(9, ServerScript::Swallow)]);
    let mut by_packets = world_with_packets(0.0, [(9, ServerScript::Swallow)]);
    for world in [&mut by_link, &mut by_packets] {
        for _ in 0..3 {
            let connection = world.accept(9);
            world.send(connection, b"hello", false);
        }
        let received = |host: &TestHost| host.received.len() == 5;
        world.run_until(
            |world| world.server_hosts().filter(|host| received(host)).count() == 3,
            PATIENCE,
        );
        world.kill(NEAR);
        let begun = world.now;
        world.run_until(
            |world| world.server_hosts().all(|host| host.was_reset),
            PATIENCE,
        );
        let took = world.now.since(begun);
        assert!(took <= Duration::from_secs(5), "{took:?}");
        let peer = world.id(NEAR);
        let told = EngineEvent::PeerLost { peer, flows: 3 };
        assert!(world.nodes[FAR].events.contains(&told));
    }
}

/// A firewall that forgets a TCP connection resets it at both ends; the node dials again.
#[test]
fn reset_link_costs_no_flow() {
    let answer = random_bytes(24, 2_000_000);
    let mut world = world_with([(80, answering(&answer))]);
    let connection = world.accept(80);
    world.send(connection, REQUEST, true);
    world.run_for(Duration::from_millis(300));
    world.end_link(LinkEnd::ClosedByPeer);
    world.run_for(Duration::from_millis(4_500));
    world.connect();
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert!(world.client_host(connection).received == answer);
}

/// An outage that something on the path answers with resets after a while is an outage all the same.
#[test]
fn a_reset_in_an_outage_costs_no_flow() {
    let answer = random_bytes(25, 2_000_000);
    let mut world = world_with([(80, answering(&answer))]);
    let connection = world.accept(80);
    world.send(connection, REQUEST, true);
    world.run_for(Duration::from_millis(300));
    world.set_blocked(true);
    world.run_for(Duration::from_secs(10));
    world.end_link(LinkEnd::ClosedByPeer);
    world.run_for(Duration::from_secs(20));
    world.connect();
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert!(world.client_host(connection).received == answer);
}
