//! Flows whose near half decides when they are opened at the far node.

use std::time::Duration;

use accelerate::testing::cache;
use bytes::Bytes;
use engine::{AcceptMode, ArrivalMethod, ConnectionId, EngineEvent, EngineInput, EngineLimits};

use super::world::{FAR, NEAR, ServerScript, TwoNodeWorld, WorldSettings, server};
use super::{PATIENCE, ROUND_TRIP, random_bytes, setting_with};

const PORT: u16 = cache::PORT;

fn setting() -> WorldSettings {
    setting_with(&cache::ENTRY)
}

fn world() -> TwoNodeWorld {
    world_of(setting())
}

fn world_of(setting: WorldSettings) -> TwoNodeWorld {
    let mut world = TwoNodeWorld::new(setting);
    let greeting = Bytes::new();
    world
        .servers
        .insert(PORT, ServerScript::GreetAndEcho { greeting });
    world
}

fn ask(world: &mut TwoNodeWorld, connection: ConnectionId, line: &str) {
    world.send(connection, line.as_bytes(), false);
}

fn received(world: &TwoNodeWorld, connection: ConnectionId) -> &[u8] {
    &world.client_host(connection).received
}

fn wait_for(world: &mut TwoNodeWorld, connection: ConnectionId, answer: &str) {
    let came = |world: &TwoNodeWorld| received(world, connection) == answer.as_bytes();
    world.run_until(came, PATIENCE);
}

fn flows(world: &TwoNodeWorld, own: usize) -> usize {
    world.nodes[own].engine.status().flows
}

fn directs(world: &TwoNodeWorld) -> usize {
    world.nodes[NEAR].engine.status().direct
}

/// The near node's report about its last flow: the stages' texts, and the state.
fn why(world: &TwoNodeWorld) -> (Vec<String>, String) {
    let engine = &world.nodes[NEAR].engine;
    let flows = engine.flows(world.now);
    let last = flows.last().unwrap();
    let why = engine.why(world.now, last.flow).unwrap();
    let stages = why.stages.into_iter().map(|stage| stage.did);
    (stages.collect(), last.state.clone())
}

fn silence(world: &mut TwoNodeWorld) {
    world.freeze(FAR);
    let silent = |world: &TwoNodeWorld| {
        let mut events = world.nodes[NEAR].events.iter();
        events.any(|event| matches!(event, EngineEvent::PeerSilent { .. }))
    };
    world.run_until(silent, Duration::from_secs(10));
}

#[test]
fn locally_answered_client_costs_no_wan_bytes() {
    let mut world = world();
    let before = world.wan_bytes;
    let connection = world.accept(PORT);
    ask(&mut world, connection, "LOCAL one\nLOCAL");
    assert_eq!(received(&world, connection), b"local one\n");
    let (stages, _) = why(&world);
    assert!(
        stages[0].ends_with("the peer has not been asked to connect yet"),
        "{stages:?}"
    );
    world.send(connection, b" two\n", true);
    assert_eq!(received(&world, connection), b"local one\nlocal two\n");
    let host = world.client_host(connection);
    assert!(host.was_closed && host.peer_finished && !host.was_reset);
    assert_eq!(world.wan_bytes, before);
    assert_eq!((flows(&world, NEAR), flows(&world, FAR)), (0, 0));
    assert_eq!(world.nodes[FAR].engine.status().flows_total, 0);
    let (stages, state) = why(&world);
    assert_eq!(state, "closed");
    assert!(
        stages[0].contains("this node answered everything"),
        "{stages:?}"
    );
    assert!(
        stages[2].contains("2 requests answered on this side"),
        "{stages:?}"
    );
    assert_eq!(stages[4], "carried no bytes of the flow to far");
}

#[test]
fn first_server_request_travels_with_the_open() {
    let mut world = world();
    let connection = world.accept(PORT);
    ask(&mut world, connection, "LOCAL one\n");
    world.run_for(Duration::from_secs(20));
    assert_eq!(flows(&world, FAR), 0);
    let begun = world.now;
    ask(&mut world, connection, "FAR two\nLOCAL three\n");
    wait_for(&mut world, connection, "local one\nlocal three\nFAR two\n");
    let took = world.now.since(begun);
    assert!(took < ROUND_TRIP + Duration::from_millis(3), "{took:?}");
    world.send(connection, b"", true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    world.run_until(|world| flows(world, FAR) == 0, PATIENCE);
    assert_eq!(flows(&world, NEAR), 0);
}

#[test]
fn early_let_go_leaves_every_byte_unchanged() {
    for length in [0, 10, 300_000] {
        let mut world = world();
        let connection = world.accept(PORT);
        ask(&mut world, connection, "LOCAL one\n");
        let mut bytes = random_bytes(length as u64, length).to_vec();
        bytes.extend_from_slice(b"\nFAR is no request any more\nLOCAL neither, and no line");
        world.send(connection, &bytes, true);
        world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
        let mut expected = b"local one\n".to_vec();
        expected.extend_from_slice(&bytes);
        assert!(received(&world, connection) == expected, "{length}");
        world.run_until(|world| flows(world, FAR) == 0, PATIENCE);
        assert!(world.server_hosts().all(|host| host.peer_finished));
    }
}

#[test]
fn server_greeting_arrives_while_client_is_silent() {
    let mut world = world();
    let greeting = Bytes::from_static(b"220 ready\n");
    world
        .servers
        .insert(PORT, ServerScript::GreetAndEcho { greeting });
    let begun = world.now;
    let connection = world.accept(PORT);
    wait_for(&mut world, connection, "220 ready\n");
    let took = world.now.since(begun);
    assert!(took >= cache::SPEAKS_FIRST, "{took:?}");
    assert!(took < cache::SPEAKS_FIRST + ROUND_TRIP + Duration::from_millis(3));
}

#[test]
fn client_stream_end_opens_the_flow() {
    let mut world = world();
    let connection = world.accept(PORT);
    world.send(connection, b"LOCAL one\nFAR wit", true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert_eq!(received(&world, connection), b"local one\nFAR wit");
}

#[test]
fn client_reset_before_open_reaches_nobody() {
    let mut world = world();
    let before = world.wan_bytes;
    let connection = world.accept(PORT);
    world.send_and_reset(connection, b"LOCAL one\nFAR wit");
    let aborted = world.accept(PORT);
    world.abort(aborted);
    assert_eq!(flows(&world, NEAR), 0);
    assert_eq!(world.wan_bytes, before);
    let (stages, state) = why(&world);
    assert_eq!(state, "a host on this node's LAN side reset the connection");
    assert!(
        stages[0].contains("the peer was never asked to connect"),
        "{stages:?}"
    );
}

#[test]
fn bytes_before_client_reset_reach_the_server() {
    let mut world = world();
    world.servers.insert(PORT, ServerScript::Swallow);
    let connection = world.accept(PORT);
    world.send_and_reset(connection, b"LOCAL one\nFAR two\n");
    world.run_until(
        |world| flows(world, NEAR) + flows(world, FAR) == 0,
        PATIENCE,
    );
    let host = world.server_hosts().next().unwrap();
    assert_eq!(&host.received[..], b"FAR two\n");
    assert!(host.was_reset);
}

#[test]
fn silent_peer_leads_to_local_answers_or_bypass() {
    let mut world = world();
    let [open, halfway] = [(); 2].map(|()| world.accept(PORT));
    ask(&mut world, open, "LOCAL one\n");
    ask(&mut world, halfway, "LOC");
    silence(&mut world);
    // Those that are neither answered nor asked for wait for their clients, whatever the peer does.
    assert_eq!(flows(&world, NEAR), 2);
    ask(&mut world, open, "LOCAL two\n");
    let new = world.accept(PORT);
    world.send(new, b"LOCAL three\n", true);
    assert_eq!(received(&world, new), b"local three\n");
    assert!(world.client_host(new).was_closed);
    // The server gets what was not answered, and only that.
    ask(&mut world, open, "LOCAL three\nFAR four\n");
    wait_for(
        &mut world,
        open,
        "local one\nlocal two\nlocal three\nFAR four\n",
    );
    assert_eq!(directs(&world), 1);
    let engine = &world.nodes[NEAR].engine;
    let ended = engine.flows(world.now);
    let states: Vec<_> = ended.iter().map(|flow| flow.state.as_str()).collect();
    let directly = "continues as a direct connection: the peer that serves this destination could not be reached";
    assert!(states.contains(&directly), "{states:?}");
    world.send(open, b"to the end", true);
    world.run_until(|world| world.client_host(open).was_closed, PATIENCE);
    assert!(received(&world, open).ends_with(b"FAR four\nto the end"));
    // A client that has a part of an answer cannot get the rest elsewhere.
    ask(&mut world, halfway, "AL four\nPART five\n");
    assert_eq!(received(&world, halfway), b"local four\npart five ");
    assert!(world.client_host(halfway).was_reset);
    assert_eq!((flows(&world, NEAR), directs(&world)), (0, 0));
}

#[test]
fn bytes_in_flight_survive_the_move_to_direct() {
    let mut world = world();
    let connection = world.accept(PORT);
    ask(&mut world, connection, "LOC");
    silence(&mut world);
    world.read_at_most(connection, 0);
    ask(&mut world, connection, "AL one\n");
    let bytes = random_bytes(3, 200_000);
    world.send(connection, &bytes, true);
    let all = |world: &TwoNodeWorld| received(world, connection).len() == 10 + bytes.len();
    world.run_until(all, PATIENCE);
    assert!(!world.client_host(connection).was_closed);
    world.take(connection, usize::MAX);
    assert!(world.client_host(connection).was_closed);
    assert!(received(&world, connection)[10..] == bytes);
}

#[test]
fn late_flow_leaves_a_peer_that_never_answers() {
    let mut world = world();
    let connection = world.accept(PORT);
    ask(&mut world, connection, "LOCAL one\n");
    world.set_blocked(true);
    ask(&mut world, connection, "FAR two\n");
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
    let ended = world.nodes[NEAR]
        .events
        .iter()
        .find_map(|event| match event {
            EngineEvent::UnansweredFlowsEnded { direct, reset, .. } => Some((*direct, *reset)),
            _ => None,
        });
    // The open was handed to the link.
    assert_eq!(ended, Some((0, 1)));
}

#[test]
fn server_that_refuses_a_late_flow_is_bypassed() {
    let mut world = world();
    world.servers.insert(PORT, ServerScript::Refuse);
    let connection = world.accept(PORT);
    ask(&mut world, connection, "LOCAL one\nFAR two\n");
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
    assert_eq!(received(&world, connection), b"local one\n");
    assert!(world.nodes[NEAR].avoided.contains_key(&server(PORT)));
}

#[test]
fn unopened_flows_count_in_the_nodes_limit() {
    let limits = EngineLimits {
        flows: 2,
        ..EngineLimits::default()
    };
    let mut world = world_of(WorldSettings {
        limits,
        ..setting()
    });
    let [first, _second, third] = [(); 3].map(|()| world.accept(PORT));
    assert_eq!((flows(&world, NEAR), directs(&world)), (2, 1));
    ask(&mut world, third, "LOCAL three\n");
    wait_for(&mut world, third, "LOCAL three\n");
    // Those that are counted may still be opened.
    ask(&mut world, first, "FAR one\n");
    wait_for(&mut world, first, "FAR one\n");
    assert_eq!((flows(&world, NEAR), flows(&world, FAR)), (2, 1));
}

#[test]
fn peer_at_its_share_gets_no_late_flow() {
    let limits = EngineLimits {
        flows: 40,
        peer_flows_percent: 10,
        source_flows_percent: 100,
        ..EngineLimits::default()
    };
    let mut world = world_of(WorldSettings {
        limits,
        has_other_peer: true,
        ..setting()
    });
    let connections = [(); 40].map(|()| world.accept(PORT));
    assert_eq!(flows(&world, NEAR), 40);
    for connection in connections {
        ask(&mut world, connection, "FAR one\n");
        wait_for(&mut world, connection, "FAR one\n");
    }
    let (through, direct) = (flows(&world, NEAR), directs(&world));
    assert_eq!((through, direct), (8, 32));
    assert_eq!(flows(&world, FAR), through);
}

#[test]
fn flow_of_a_waiting_client_opens_at_once() {
    let mut setting = setting();
    setting.policy.accept = AcceptMode::AfterServer;
    let mut world = world_of(setting);
    for via in [ArrivalMethod::Transparent, ArrivalMethod::Socks5] {
        let connection = world.ask_via(PORT, via);
        let admitted = |world: &TwoNodeWorld| world.client_host(connection).admitted_at.is_some();
        world.run_until(admitted, PATIENCE);
        assert!(flows(&world, FAR) > 0);
        ask(&mut world, connection, "LOCAL one\n");
        assert_eq!(received(&world, connection), b"local one\n");
    }
}

#[test]
fn next_client_is_answered_from_learned_data() {
    let mut world = world();
    let first = world.ask_via(PORT, ArrivalMethod::Transparent);
    let admitted = |world: &TwoNodeWorld| world.client_host(first).admitted_at.is_some();
    world.run_until(admitted, PATIENCE);
    world.send(first, b"", true);
    world.run_until(
        |world| flows(world, NEAR) + flows(world, FAR) == 0,
        PATIENCE,
    );
    let before = world.wan_bytes;
    let second = world.ask_via(PORT, ArrivalMethod::Transparent);
    world.send(second, b"LOCAL two\n", true);
    assert!(world.client_host(second).was_closed);
    assert_eq!(world.wan_bytes, before);
}

#[test]
fn claims_hold_between_flows_that_are_not_open() {
    let mut world = world();
    let before = world.wan_bytes;
    let [first, second] = [(); 2].map(|()| world.accept(PORT));
    ask(&mut world, first, "CLAIM\n");
    assert_eq!(received(&world, first), b"granted\n");
    ask(&mut world, second, "CLAIM\n");
    assert_eq!(received(&world, second), b"denied\n");
    world.abort(first);
    assert_eq!(received(&world, second), b"denied\ngranted\n");
    assert_eq!(world.wan_bytes, before);
}

#[test]
fn removed_peer_ends_its_unopened_flows() {
    let mut world = world();
    let connection = world.accept(PORT);
    world.forget_peers(NEAR);
    assert!(world.client_host(connection).was_reset);
    assert_eq!(flows(&world, NEAR), 0);

    let mut world = self::world();
    let [one, other] = [(); 2].map(|()| world.accept(PORT));
    let grace = Duration::from_secs(30);
    world.input(NEAR, EngineInput::Stop { grace });
    ask(&mut world, one, "LOCAL one\n");
    world.send(one, b"", true);
    assert!(world.client_host(one).was_closed && !world.nodes[NEAR].stopped);
    world.run_until(|world| world.nodes[NEAR].stopped, grace + PATIENCE);
    assert!(world.client_host(other).was_reset);
}
