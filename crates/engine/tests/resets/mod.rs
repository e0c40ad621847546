//! A reset follows the bytes that were sent before it: in all four directions, by TLS and by UDP,
//! with and without an accelerator, and in direct connections.

use std::time::Duration;

use bytes::Bytes;
use engine::{ConnectionId, EngineEvent, EngineInput};

use crate::world::{FAR, NEAR, ServerScript, TwoNodeWorld};
use crate::{PATIENCE, REQUEST, random_bytes, world_with, world_with_packets};

/// A port of no accelerator, and that of the SMB accelerator.
const PORTS: [u16; 2] = [80, 445];

/// Longer than all windows and queues between two hosts.
const LONG: usize = 700_000;

/// The head of an SMB 2 message that states 4,096 bytes and ends after 64.
fn incomplete_smb_message() -> Bytes {
    let mut bytes = vec![0, 0, 0x10, 0, 0xfe, b'S', b'M', b'B'];
    bytes.resize(64, 0);
    bytes.into()
}

fn contents() -> [Bytes; 4] {
    [
        Bytes::from_static(b"HTTP/1.1 413 Too Large\r\n\r\n"),
        incomplete_smb_message(),
        random_bytes(1, 100_000),
        random_bytes(2, LONG),
    ]
}

/// By TLS, and by UDP with a loss of 2 %.
fn worlds() -> [TwoNodeWorld; 2] {
    [world_with([]), world_with_packets(0.02, [])]
}

fn failed_flows(world: &TwoNodeWorld, node: usize) -> usize {
    let events = world.nodes[node].events.iter();
    events
        .filter(|event| matches!(event, EngineEvent::FlowFailed { .. }))
        .count()
}

fn flows_left(world: &TwoNodeWorld) -> usize {
    let status = world.nodes.each_ref().map(|node| node.engine.status());
    status
        .iter()
        .map(|status| status.flows + status.direct)
        .sum()
}

#[test]
fn server_data_before_reset_reaches_the_client() {
    for mut world in worlds() {
        for port in PORTS {
            for answer in contents() {
                let script = ServerScript::AnswerAndReset {
                    after: 5,
                    answer: answer.clone(),
                };
                world.servers.insert(port, script);
                let connection = world.accept(port);
                world.send(connection, &random_bytes(3, LONG), false);
                world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
                let host = world.client_host(connection);
                assert!(host.received == answer, "{} bytes", host.received.len());
                assert!(!host.peer_finished, "a failure is never a clean end");
                world.run_until(|world| flows_left(world) == 0, PATIENCE);
            }
        }
        assert_eq!(failed_flows(&world, NEAR), 8);
    }
}

#[test]
fn client_data_before_reset_reaches_the_server() {
    for mut world in worlds() {
        for port in PORTS {
            for request in contents() {
                world.servers.insert(port, ServerScript::Swallow);
                let connection = world.accept(port);
                world.send_and_reset(connection, &request);
                let is_reset = |world: &TwoNodeWorld| {
                    world
                        .server_hosts()
                        .last()
                        .is_some_and(|host| host.was_reset)
                };
                let flows = world.server_hosts().count();
                world.run_until(|world| world.server_hosts().count() > flows, PATIENCE);
                world.run_until(is_reset, PATIENCE);
                let host = world.server_hosts().last().unwrap();
                assert!(host.received == request, "{} bytes", host.received.len());
                assert!(!host.peer_finished, "a failure is never a clean end");
                world.run_until(|world| flows_left(world) == 0, PATIENCE);
            }
        }
    }
}

#[test]
fn direct_connections_deliver_before_a_reset_too() {
    let answer = random_bytes(4, LONG);
    let script = ServerScript::AnswerAndReset {
        after: 5,
        answer: answer.clone(),
    };
    let mut world = world_with([(80, script), (81, ServerScript::Swallow)]);
    world.forget_peers(NEAR);
    let connection = world.accept(80);
    world.send(connection, REQUEST, false);
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
    assert!(world.client_host(connection).received == answer);
    assert!(!world.client_host(connection).peer_finished);

    let connection = world.accept(81);
    world.send_and_reset(connection, &answer);
    let is_reset =
        |world: &TwoNodeWorld| world.nodes[NEAR].hosts.values().last().unwrap().was_reset;
    world.run_until(is_reset, PATIENCE);
    let server = world.nodes[NEAR].hosts.values().last().unwrap();
    assert!(server.received == answer && !server.peer_finished);
    assert_eq!(flows_left(&world), 0);
}

/// The reset of a host whose bytes wait for a client that does not read.
#[test]
fn reset_waits_for_a_slow_reader() {
    let answer = random_bytes(5, 100_000);
    let script = ServerScript::AnswerAndReset {
        after: 5,
        answer: answer.clone(),
    };
    for direct in [false, true] {
        let mut world = world_with([(80, script.clone())]);
        if direct {
            world.forget_peers(NEAR);
        }
        let connection = world.accept(80);
        world.read_at_most(connection, 0);
        world.send(connection, REQUEST, false);
        for _ in 0..9 {
            world.run_for(Duration::from_secs(50));
            assert!(!world.client_host(connection).was_reset);
            world.take(connection, 10_000);
        }
        world.run_for(Duration::from_secs(50));
        world.take(connection, 10_000);
        world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
        assert!(world.client_host(connection).received == answer);
    }
}

#[test]
fn dead_flow_ends_after_a_minute_without_reads() {
    for (direct, length) in [(false, 1_000), (false, LONG), (true, 1_000), (true, LONG)] {
        let script = ServerScript::AnswerAndReset {
            after: 5,
            answer: random_bytes(6, length),
        };
        let mut world = world_with([(80, script)]);
        if direct {
            world.forget_peers(NEAR);
        }
        let connection = world.accept(80);
        world.read_at_most(connection, 0);
        world.send(connection, REQUEST, false);
        world.run_for(Duration::from_secs(55));
        assert!(flows_left(&world) > 0);
        world.run_for(Duration::from_secs(10));
        assert_eq!(flows_left(&world), 0, "{direct} {length}");
        assert!(world.client_host(connection).was_reset);
        let buffered = |node: &crate::world::TestNode| node.engine.status().buffered_bytes;
        assert_eq!(world.nodes.each_ref().map(buffered), [0, 0]);
    }
}

#[test]
fn clean_end_comes_before_a_following_reset() {
    let script = ServerScript::AnswerAndReset {
        after: usize::MAX,
        answer: Bytes::new(),
    };
    let mut world = world_with([(80, script)]);
    let connection = world.accept(80);
    world.send(connection, b"the whole request", true);
    world.input(NEAR, EngineInput::Failed { connection });
    world.abort(connection);
    let is_reset = |world: &TwoNodeWorld| world.server_hosts().any(|host| host.was_reset);
    world.run_until(is_reset, PATIENCE);
    let host = world.server_hosts().next().unwrap();
    assert!(host.peer_finished, "the client had ended its stream");
    assert_eq!(host.received, b"the whole request"[..]);
    world.run_until(|world| flows_left(world) == 0, PATIENCE);
}

#[test]
fn resets_of_both_hosts_cross_each_other() {
    let both = random_bytes(7, 50_000);
    let script = ServerScript::AnswerAndReset {
        after: 0,
        answer: both.clone(),
    };
    for mut world in worlds() {
        world.servers.insert(80, script.clone());
        let connection = world.accept(80);
        world.send_and_reset(connection, &both);
        world.run_until(
            |world| world.server_hosts().count() == 1 && flows_left(world) == 0,
            PATIENCE,
        );
    }
}

#[test]
fn reset_keeps_its_order_across_link_loss() {
    let answer = random_bytes(8, 500_000);
    let script = ServerScript::AnswerAndReset {
        after: 5,
        answer: answer.clone(),
    };
    let mut world = world_with([(80, script)]);
    let connection = world.accept(80);
    world.send(connection, REQUEST, false);
    world.run_until(
        |world| world.client_host(connection).received.len() > 100_000,
        PATIENCE,
    );
    world.cut();
    world.run_for(Duration::from_secs(3));
    world.connect();
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
    assert!(world.client_host(connection).received == answer);
}

/// A host's last action on its connection.
#[derive(Clone, Copy, Debug)]
enum HostEnding {
    /// It reads on and sends nothing.
    None,
    /// It resets, and nothing of it is unread.
    Reset,
    /// It resets, and more of it is unread than any window holds.
    ResetBehindData,
    /// It ends its stream and resets.
    FinishAndReset,
    /// It sends as much, ends its stream and resets.
    ResetBehindDataAndFinish,
}

impl HostEnding {
    const ALL: [Self; 5] = [
        Self::None,
        Self::Reset,
        Self::ResetBehindData,
        Self::FinishAndReset,
        Self::ResetBehindDataAndFinish,
    ];

    fn happen(self, world: &mut TwoNodeWorld, own: usize, connection: ConnectionId) {
        let data = random_bytes(own as u64, LONG);
        let (bytes, finish) = match self {
            Self::None => return,
            Self::Reset => (Bytes::new(), false),
            Self::ResetBehindData => (data, false),
            Self::FinishAndReset => (Bytes::new(), true),
            Self::ResetBehindDataAndFinish => (data, true),
        };
        world.reset_behind(own, connection, &bytes, finish);
    }
}

/// Every pair of endings, the second at different times after the first: as soon as nothing can be delivered
/// to either host any more, the flow is over.
#[test]
fn no_pair_of_endings_keeps_a_flow() {
    // From a crossing on the path to a time at which a part of the data has arrived.
    let delays = [0, 10, 400].map(Duration::from_millis);
    let idle = ServerScript::AnswerAndReset {
        after: usize::MAX,
        answer: Bytes::new(),
    };
    let pairs = HostEnding::ALL.map(|one| HostEnding::ALL.map(|other| (one, other)));
    let pairs = pairs.into_iter().flatten();
    let pairs = pairs.filter(|pair| !matches!(pair, (HostEnding::None, HostEnding::None)));
    for ((client, server), delay, client_first, direct) in pairs.flat_map(|pair| {
        let cases = [(true, false), (false, false), (true, true), (false, true)];
        let cases = cases.into_iter();
        cases.flat_map(move |(first, direct)| delays.map(|delay| (pair, delay, first, direct)))
    }) {
        let case = format!("{client:?}, {server:?}, {delay:?}, {client_first}, {direct}");
        let mut world = world_with([(80, idle.clone())]);
        let server_side = if direct { NEAR } else { FAR };
        if direct {
            world.forget_peers(NEAR);
        }
        let connection = world.accept(80);
        world.run_for(Duration::from_millis(200));
        let opened = |id: &&ConnectionId| matches!(id, ConnectionId::Opened(_));
        let served = *world.nodes[server_side].hosts.keys().find(opened).unwrap();
        let mut endings = [(client, NEAR, connection), (server, server_side, served)];
        if !client_first {
            endings.reverse();
        }
        for (ending, own, connection) in endings {
            ending.happen(&mut world, own, connection);
            world.run_for(delay);
        }
        // Twice what the data of both take at the path's rate.
        world.run_for(Duration::from_secs(3));
        assert_eq!(flows_left(&world), 0, "{case}");
        for (own, connection) in [(NEAR, connection), (server_side, served)] {
            let host = &world.nodes[own].hosts[&connection];
            assert!(host.was_reset || host.was_closed, "{case}");
        }
    }
}
