//! Tests of far halves with several connections to the server, and with unrequested data.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use accelerate::ServerConnection;
use accelerate::testing::fan;
use bytes::Bytes;
use engine::{ConnectFailure, ConnectionId, EngineInput, EngineLimits};

use super::world::{FAR, NEAR, ServerScript, TwoNodeWorld, WorldSettings};
use super::{PATIENCE, ROUND_TRIP, setting_with};

const PORT: u16 = fan::PORT;

fn echo() -> ServerScript {
    ServerScript::GreetAndEcho {
        greeting: Bytes::new(),
    }
}

/// A client whose flow has an established connection to an echoing server; the next connections
/// meet these servers.
fn world_with_next(next: impl IntoIterator<Item = ServerScript>) -> (TwoNodeWorld, ConnectionId) {
    world_of(setting_with(&fan::ENTRY), next)
}

fn world_of(
    setting: WorldSettings,
    next: impl IntoIterator<Item = ServerScript>,
) -> (TwoNodeWorld, ConnectionId) {
    let mut world = TwoNodeWorld::new(setting);
    let scripts: VecDeque<ServerScript> = std::iter::once(echo()).chain(next).collect();
    let scripts = ServerScript::InTurn(Rc::new(RefCell::new(scripts)));
    world.servers.insert(PORT, scripts);
    let connection = world.accept(PORT);
    wait_for(&mut world, connection, "welcome\n");
    (world, connection)
}

fn ask(world: &mut TwoNodeWorld, connection: ConnectionId, line: &str) {
    world.send(connection, line.as_bytes(), false);
}

fn wait_for(world: &mut TwoNodeWorld, connection: ConnectionId, answer: &str) {
    world.run_until(
        |world| world.client_host(connection).received == answer.as_bytes(),
        PATIENCE,
    );
}

/// Waits for these lines, whichever comes first.
fn wait_for_lines(world: &mut TwoNodeWorld, connection: ConnectionId, lines: &[&str]) {
    let sorted = |bytes: &[u8]| {
        let mut lines: Vec<_> = bytes
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        lines.sort_unstable();
        lines
    };
    let expected = sorted(lines.concat().as_bytes());
    world.run_until(
        |world| sorted(&world.client_host(connection).received) == expected,
        PATIENCE,
    );
}

/// The client ends its stream and the flow ends in good order: no connection is left at the far node.
fn finish(world: &mut TwoNodeWorld, connection: ConnectionId) {
    world.send(connection, b"", true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    let is_over = |world: &TwoNodeWorld| {
        let mut flows = world.nodes.iter().map(|node| node.engine.status().flows);
        flows.all(|flows| flows == 0)
    };
    world.run_until(is_over, PATIENCE);
    assert!(world.client_host(connection).received.ends_with(b"late\n"));
    assert_all_ended(world);
}

fn assert_all_ended(world: &TwoNodeWorld) {
    let mut hosts = world.server_hosts();
    assert!(hosts.all(|host| host.was_closed || host.was_reset));
    assert_eq!(world.nodes[FAR].engine.status().buffered_bytes, 0);
}

fn far_did(world: &TwoNodeWorld) -> String {
    let engine = &world.nodes[FAR].engine;
    let flow = engine.flows(world.now).last().unwrap().flow;
    let why = engine.why(world.now, flow).unwrap();
    why.stages[0].did.clone()
}

#[test]
fn one_request_merges_answers_of_three_connections() {
    let (mut world, connection) = world_with_next([echo(), echo(), echo()]);
    let begun = world.now;
    ask(&mut world, connection, "FAN 3\n");
    wait_for(&mut world, connection, "welcome\npart 1\npart 2\npart 3\n");
    let took = world.now.since(begun);
    assert!(took < ROUND_TRIP + Duration::from_millis(3), "{took:?}");
    assert_eq!(world.server_hosts().count(), 4);
    // Those that have ended in good order are closed while the flow goes on.
    let closed = world.server_hosts().filter(|host| host.was_closed);
    assert_eq!(closed.count(), 3);
    assert!(far_did(&world).ends_with("3 further connections to the server"));
    // The server sees its client on all of them; the flow's own has the client's port.
    let ports: Vec<_> = world
        .server_hosts()
        .map(|host| host.seen_client.unwrap().port())
        .collect();
    assert_eq!(ports, [40_001, 0, 0, 0]);
    finish(&mut world, connection);
}

#[test]
fn failed_further_connections_do_not_fail_the_flow() {
    let next = [
        ServerScript::Refuse,
        ServerScript::ResetAfter { after: 7 },
        ServerScript::Unreachable,
        echo(),
    ];
    let (mut world, connection) = world_with_next(next);
    ask(&mut world, connection, "FAN 4\n");
    let answers = "welcome\n[refused]\n[reset]\n[unreachable]\npart 4\n";
    wait_for(&mut world, connection, answers);
    assert!(world.nodes[NEAR].avoided.is_empty());
    finish(&mut world, connection);
}

#[test]
fn stalled_server_connection_blocks_no_other() {
    let (mut world, connection) = world_with_next([ServerScript::Stall, echo(), echo()]);
    ask(&mut world, connection, "FILL\nFAN 2\nown\n");
    let answers = ["welcome\n", "own\n", "part 1\n", "part 2\n"];
    wait_for_lines(&mut world, connection, &answers);
    let held = world.nodes[FAR].engine.status().buffered_bytes;
    assert!(held >= ServerConnection::UNTAKEN_MAX as u64, "{held}");
    let (stalled, host) = server_host(&world, 1);
    assert_eq!(host.received.len(), ServerConnection::UNTAKEN_MAX);
    let bytes = ServerConnection::UNTAKEN_MAX;
    world.input(
        FAR,
        EngineInput::Written {
            connection: stalled,
            bytes,
        },
    );
    let answers = ["welcome\n", "own\n", "part 1\n", "part 2\n", "all taken\n"];
    wait_for_lines(&mut world, connection, &answers);
    finish(&mut world, connection);
}

#[test]
fn write_beyond_the_limit_ends_that_connection_alone() {
    let (mut world, connection) = world_with_next([ServerScript::Stall, echo()]);
    ask(&mut world, connection, "FILL\nown\n");
    wait_for(&mut world, connection, "welcome\nown\n");
    ask(&mut world, connection, "SPILL\nFAN 1\n");
    let answers = ["welcome\n", "own\n", "spilled\n", "part 1\n"];
    wait_for_lines(&mut world, connection, &answers);
    assert!(server_host(&world, 1).1.was_reset);
    finish(&mut world, connection);
}

#[test]
fn paused_connection_delivers_only_the_allowed_bytes() {
    let (mut world, connection) = world_with_next([ServerScript::Pour]);
    ask(&mut world, connection, "DRINK\n");
    wait_for(&mut world, connection, "welcome\npaused\n");
    world.run_for(Duration::from_secs(5));
    ask(&mut world, connection, "own\n");
    wait_for(&mut world, connection, "welcome\npaused\nown\n");
    ask(&mut world, connection, "DRAIN\n");
    wait_for(
        &mut world,
        connection,
        "welcome\npaused\nown\ndrank enough\n",
    );
    assert!(server_host(&world, 1).1.was_reset);
    finish(&mut world, connection);
}

#[test]
fn far_half_sends_before_and_after_its_client() {
    // `world_with_next` waits for the welcome, `finish` for what comes late.
    let (mut world, connection) = world_with_next([]);
    let begun = world.now;
    finish(&mut world, connection);
    assert!(world.now.since(begun) >= Duration::from_secs(1));
    let host = world.client_host(connection);
    assert_eq!(&host.received[..], b"welcome\nlate\n");
}

#[test]
fn further_connections_end_with_their_flow() {
    let (mut world, connection) = world_with_next([ServerScript::Stall, ServerScript::Swallow]);
    ask(&mut world, connection, "HOLD 2\nown\n");
    wait_for(&mut world, connection, "welcome\nown\n");
    finish(&mut world, connection);
    assert!(world.server_hosts().skip(1).all(|host| host.was_closed));

    let (mut world, connection) = world_with_next([ServerScript::Stall, ServerScript::Swallow]);
    ask(&mut world, connection, "HOLD 2\nown\n");
    wait_for(&mut world, connection, "welcome\nown\n");
    world.abort(connection);
    world.run_until(
        |world| world.server_hosts().all(|host| host.was_reset),
        PATIENCE,
    );
    assert_all_ended(&world);
}

#[test]
fn connection_that_opens_after_its_flow_is_reset() {
    let (mut world, connection) = world_with_next([ServerScript::Dead, ServerScript::Dead]);
    ask(&mut world, connection, "HOLD 2\nown\n");
    wait_for(&mut world, connection, "welcome\nown\n");
    let attempts = world.nodes[FAR].attempts.clone();
    assert_eq!(attempts.len(), 2);
    ask(&mut world, connection, "DROP\nHOLD 0\nown\n");
    wait_for(&mut world, connection, "welcome\nown\nown\n");
    let opened = |connection| EngineInput::Connected {
        connection,
        result: Ok(()),
    };
    world.add_server_host(attempts[0]);
    world.input(FAR, opened(attempts[0]));
    finish(&mut world, connection);
    world.add_server_host(attempts[1]);
    world.input(FAR, opened(attempts[1]));
    assert_all_ended(&world);
}

#[test]
fn further_connections_of_a_flow_are_limited() {
    let most = ServerConnection::MAX_PER_FLOW;
    let (mut world, connection) = world_with_next((0..most).map(|_| ServerScript::Swallow));
    ask(&mut world, connection, &format!("HOLD {}\n", most + 1));
    wait_for(&mut world, connection, "welcome\nLimit\n");
    assert_eq!(world.server_hosts().count(), 1 + most);
    finish(&mut world, connection);
}

#[test]
fn further_connections_use_half_of_the_remaining_places() {
    let far_limits = EngineLimits {
        flows: 8,
        ..EngineLimits::default()
    };
    let setting = WorldSettings {
        far_limits,
        ..setting_with(&fan::ENTRY)
    };
    let next = (0..12).map(|_| ServerScript::Swallow);
    let (mut world, connection) = world_of(setting, next);
    ask(&mut world, connection, "HOLD 5\n");
    wait_for(&mut world, connection, "welcome\nLimit\nLimit\n");
    // Four flows more find room beside three of them, and the next does not.
    let others = [(); 4].map(|()| world.accept(PORT));
    for other in others {
        wait_for(&mut world, other, "welcome\n");
    }
    let refused = world.accept(PORT);
    world.run_until(|world| world.client_host(refused).was_reset, PATIENCE);
    ask(&mut world, connection, "DROP\nown\n");
    let answers = ["welcome\n", "Limit\n", "Limit\n", "own\n"];
    wait_for(&mut world, connection, &answers.concat());
    // The peer is left alone for some seconds when it was full.
    world.run_for(Duration::from_secs(6));
    let next = world.accept(PORT);
    wait_for(&mut world, next, "welcome\n");
    for other in others.into_iter().chain([next]) {
        world.send(other, b"", true);
    }
    finish(&mut world, connection);
}

#[test]
fn further_connections_open_in_turn() {
    // So many attempts to one server may be under way.
    const ATTEMPTS: usize = 256;
    let most = ServerConnection::MAX_PER_FLOW;
    let flows = ATTEMPTS / most + 1;
    let mut world = TwoNodeWorld::new(setting_with(&fan::ENTRY));
    world.servers.insert(PORT, echo());
    let clients: Vec<_> = (0..flows).map(|_| world.accept(PORT)).collect();
    for client in &clients {
        wait_for(&mut world, *client, "welcome\n");
    }
    world.servers.insert(PORT, ServerScript::Dead);
    for client in &clients {
        ask(&mut world, *client, &format!("HOLD {most}\nown\n"));
    }
    for client in &clients {
        wait_for(&mut world, *client, "welcome\nown\n");
    }
    assert_eq!(world.nodes[FAR].attempts.len(), ATTEMPTS);
    // The first attempt ends, and the next in turn begins.
    let failed = EngineInput::Connected {
        connection: world.nodes[FAR].attempts[0],
        result: Err(ConnectFailure::TimedOut),
    };
    world.input(FAR, failed);
    assert_eq!(world.nodes[FAR].attempts.len(), ATTEMPTS + 1);
    // Those that have had no turn fail as if the server had not answered; the flows go on.
    world.run_for(Duration::from_secs(11));
    let last = *clients.last().unwrap();
    let lines = world.client_host(last).received.to_vec();
    let lines = lines.split(|byte| *byte == b'\n');
    let without_turn = flows * most - ATTEMPTS - 1;
    let timed_out = lines.filter(|line| *line == b"TimedOut");
    assert_eq!(timed_out.count(), without_turn);
    for client in clients {
        world.send(client, b"", true);
    }
    let is_over = |world: &TwoNodeWorld| world.nodes[FAR].engine.status().flows == 0;
    world.run_until(is_over, PATIENCE);
    assert_all_ended(&world);
}

fn server_host(world: &TwoNodeWorld, place: usize) -> (ConnectionId, &super::world::TestHost) {
    let mut hosts = world.nodes[FAR].hosts.iter();
    let (connection, host) = hosts.nth(place).unwrap();
    (*connection, host)
}
