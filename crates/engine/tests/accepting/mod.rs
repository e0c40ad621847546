//! Tests of the moment of acceptance, of the client's view of a failing server, and of the servers
//! that are bypassed.

use std::time::Duration;

use bytes::Bytes;
use engine::{
    AcceptMode, AcceptRule, ArrivalMethod, ConnectFailure, EngineEvent, EngineInput, FlowPolicy,
};

use super::world::{FAR, NEAR, ServerScript, TwoNodeWorld, WorldSettings, server};
use super::{PATIENCE, REQUEST, ROUND_TRIP, answering, download, world_with};

#[test]
fn server_bypass_doubles_until_a_connection_succeeds() {
    let mut world = world_with([(81, ServerScript::Refuse)]);
    let minute = Duration::from_secs(60);
    let refused = |world: &mut TwoNodeWorld, lasting: Duration| {
        let connection = world.accept(81);
        world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
        assert_eq!(world.nodes[NEAR].avoided.get(&server(81)), Some(&lasting));
        world.run_for(lasting);
    };
    for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
        refused(&mut world, minutes * minute);
    }
    let answer = Bytes::from_static(b"here again");
    world.servers.insert(81, answering(&answer));
    download(&mut world, 81, &answer);
    assert!(world.nodes[NEAR].avoided.is_empty());
    world.servers.insert(81, ServerScript::Refuse);
    refused(&mut world, minute);
    // The client's own connection to the server is seen to succeed.
    let server = server(81);
    world.input(NEAR, EngineInput::BypassedServerAnswered { server });
    assert!(world.nodes[NEAR].avoided.is_empty());
    refused(&mut world, minute);
}

#[test]
fn server_of_a_proxy_client_is_not_bypassed() {
    let mut world = world_with([(81, ServerScript::Refuse)]);
    let connection = world.accept_via(81, ArrivalMethod::Socks5);
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
    assert!(world.nodes[NEAR].avoided.is_empty());
}

#[test]
fn waiting_client_is_admitted_when_the_server_accepts() {
    let answer = Bytes::from_static(b"hello");
    let mut world = world_with([(80, answering(&answer))]);
    for via in [ArrivalMethod::Transparent, ArrivalMethod::Socks5] {
        let begun = world.now;
        let connection = world.ask_via(80, via);
        world.run_until(
            |world| world.client_host(connection).admitted_at.is_some(),
            PATIENCE,
        );
        let took = world
            .client_host(connection)
            .admitted_at
            .unwrap()
            .since(begun);
        let expected = match via {
            ArrivalMethod::Transparent => ROUND_TRIP,
            // By now the server is known to answer.
            _ => Duration::ZERO,
        };
        assert!(took >= expected, "{took:?}");
        assert!(took < expected + Duration::from_millis(3), "{took:?}");
        world.send(connection, REQUEST, true);
        world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
        assert!(world.client_host(connection).received == answer);
    }
}

#[test]
fn server_greeting_arrives_after_admission() {
    let greeting = Bytes::from_static(b"220 ready\r\n");
    let mut world = world_with([(21, ServerScript::GreetAndEcho { greeting })]);
    let connection = world.ask_via(21, ArrivalMethod::Transparent);
    world.run_until(
        |world| world.client_host(connection).received.len() == 11,
        PATIENCE,
    );
    let host = world.client_host(connection);
    assert!(host.admitted_at.unwrap() <= host.first_byte_at.unwrap());
    world.send(connection, b"QUIT\r\n", true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
}

#[test]
fn waiting_client_gets_the_failure_and_no_admission() {
    for via in [
        ArrivalMethod::Transparent,
        ArrivalMethod::Socks5,
        ArrivalMethod::HttpConnect,
    ] {
        let mut world = world_with([(81, ServerScript::Refuse)]);
        let connection = world.ask_via(81, via);
        world.run_until(
            |world| world.client_host(connection).declined.is_some(),
            PATIENCE,
        );
        let host = world.client_host(connection);
        assert_eq!(host.declined, Some(ConnectFailure::Refused));
        assert_eq!(host.admitted_at, None);
        let is_intercepted = via == ArrivalMethod::Transparent;
        let avoided = &world.nodes[NEAR].avoided;
        assert_eq!(avoided.contains_key(&server(81)), is_intercepted);
    }
}

#[test]
fn early_accept_lasts_from_success_to_failure() {
    let answer = Bytes::from_static(b"hello");
    let mut world = world_with([(80, answering(&answer))]);
    assert!(world.nodes[NEAR].accepted_at_once.is_empty());
    download(&mut world, 80, &answer);
    assert!(world.nodes[NEAR].accepted_at_once.contains(&server(80)));
    world.servers.insert(80, ServerScript::Refuse);
    let connection = world.accept(80);
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
    assert!(world.nodes[NEAR].accepted_at_once.is_empty());
    let connection = world.ask_via(80, ArrivalMethod::Socks5);
    world.run_until(
        |world| world.client_host(connection).declined.is_some(),
        PATIENCE,
    );
}

#[test]
fn the_policy_says_when_clients_are_accepted() {
    let rule = |port: u16, mode| AcceptRule {
        clients: vec![],
        servers: vec![],
        ports: vec![port..=port],
        mode,
    };
    let policy = FlowPolicy {
        accept_rules: vec![
            rule(80, AcceptMode::AfterServer),
            rule(81, AcceptMode::AtOnce),
        ],
        ..FlowPolicy::default()
    };
    let answer = Bytes::from_static(b"hello");
    let mut world = TwoNodeWorld::new(WorldSettings {
        policy,
        ..WorldSettings::default()
    });
    world.servers.insert(80, answering(&answer));
    download(&mut world, 80, &answer);
    let connection = world.ask_via(80, ArrivalMethod::Socks5);
    assert_eq!(world.client_host(connection).admitted_at, None);
    world.servers.insert(81, ServerScript::Refuse);
    let connection = world.ask_via(81, ArrivalMethod::Socks5);
    assert!(world.client_host(connection).admitted_at.is_some());
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
}

#[test]
fn waiting_client_times_out_on_a_silent_peer() {
    let greeting = Bytes::from_static(b"hello");
    let mut world = world_with([(7, ServerScript::GreetAndEcho { greeting })]);
    world.set_blocked(true);
    for via in [ArrivalMethod::Transparent, ArrivalMethod::Socks5] {
        let connection = world.ask_via(7, via);
        let has_heard = |world: &TwoNodeWorld| {
            let host = world.client_host(connection);
            host.was_reset || host.declined.is_some() || host.admitted_at.is_some()
        };
        world.run_until(has_heard, PATIENCE);
        let host = world.client_host(connection);
        assert!(host.received.is_empty() || host.admitted_at.is_some());
    }
}

#[test]
fn waiting_client_that_goes_directly_gets_the_outcome() {
    let greeting = Bytes::from_static(b"direct");
    let scripts = [
        (7, ServerScript::GreetAndEcho { greeting }),
        (81, ServerScript::Refuse),
    ];
    let mut world = world_with(scripts);
    world.cut();
    let connection = world.ask_via(7, ArrivalMethod::Socks5);
    assert!(world.client_host(connection).admitted_at.is_some());
    world.send(connection, b"!", true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert_eq!(&world.client_host(connection).received[..], b"direct!");
    let connection = world.ask_via(81, ArrivalMethod::Socks5);
    let host = world.client_host(connection);
    assert_eq!(host.declined, Some(ConnectFailure::Refused));
    assert!(!host.was_reset && host.admitted_at.is_none());
}

#[test]
fn asymmetric_route_is_bypassed_and_explained() {
    let mut world = world_with([(80, ServerScript::Fail(ConnectFailure::AnswersElsewhere))]);
    let minute = Duration::from_secs(60);
    let networks = ["198.18.1.0/24 to 198.18.2.0/24"];
    for minutes in [1, 2] {
        let connection = world.ask_via(80, ArrivalMethod::Transparent);
        world.run_until(
            |world| world.client_host(connection).declined.is_some(),
            PATIENCE,
        );
        assert_eq!(world.nodes[NEAR].bypassed_routes, networks);
        let lasting = minutes * minute;
        world.run_for(lasting - Duration::from_secs(1));
        assert_eq!(world.nodes[NEAR].bypassed_routes, networks);
        world.run_for(Duration::from_secs(1));
        assert!(world.nodes[NEAR].bypassed_routes.is_empty());
    }
    let told = |event: &EngineEvent| matches!(event, EngineEvent::AsymmetricRoute { lasting, .. } if *lasting == 2 * minute);
    assert!(world.nodes[NEAR].events.iter().any(told));
    let last = world.nodes[NEAR].engine.flows(world.now).pop().unwrap();
    let why = world.nodes[NEAR].engine.why(world.now, last.flow).unwrap();
    let stage = &why.stages[0];
    assert!(stage.why_not.as_ref().unwrap().contains("asymmetric route"));
    assert!(
        stage
            .remedy
            .as_ref()
            .unwrap()
            .contains("through the far node")
    );

    let answer = Bytes::from_static(b"repaired");
    world.servers.insert(80, answering(&answer));
    download(&mut world, 80, &answer);
    world
        .servers
        .insert(80, ServerScript::Fail(ConnectFailure::AnswersElsewhere));
    let connection = world.accept(80);
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
    world.run_for(minute);
    assert!(world.nodes[NEAR].bypassed_routes.is_empty());
}

/// A world in which the packet filter of the peer's machine dropped the connection to one server, and another
/// server has refused one.
fn world_with_back_offs() -> TwoNodeWorld {
    let scripts = [
        (80, ServerScript::Fail(ConnectFailure::Filtered)),
        (81, ServerScript::Refuse),
    ];
    let mut world = world_with(scripts);
    for port in [81, 80] {
        let connection = world.accept(port);
        world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
    }
    assert_eq!(bypassed(&world), [80, 81]);
    assert!(world.nodes[NEAR].intercepted.is_empty());
    world
}

fn bypassed(world: &TwoNodeWorld) -> Vec<u16> {
    let avoided = world.nodes[NEAR].avoided.keys();
    avoided.map(std::net::SocketAddr::port).collect()
}

#[test]
fn reload_ends_backoffs_not_caused_by_servers() {
    let mut world = world_with_back_offs();
    world.reload(NEAR);
    assert_eq!(bypassed(&world), [81]);
    assert_eq!(world.nodes[NEAR].intercepted, [world.id(FAR)]);
    // The next failure is the first one again.
    let connection = world.accept(80);
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
    let minute = Duration::from_secs(60);
    assert_eq!(world.nodes[NEAR].avoided[&server(80)], minute);
}

#[test]
fn reload_to_another_peer_ends_all_backoffs() {
    let mut world = world_with_back_offs();
    world.forget_peers(NEAR);
    assert_eq!(bypassed(&world), [0; 0]);
}

#[test]
fn peer_restart_ends_backoffs_not_caused_by_servers() {
    let mut world = world_with_back_offs();
    world.restart(FAR, &WorldSettings::default());
    world.connect();
    assert_eq!(bypassed(&world), [81]);
    assert_eq!(world.nodes[NEAR].intercepted, [world.id(FAR)]);
}
