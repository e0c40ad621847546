//! The state that the flows of one accelerator share in an engine, on disk and after a crash.

mod store;

use std::sync::Arc;
use std::time::Duration;

use accelerate::shared::{FileOperation, PurgeCount};
use engine::{ArrivalMethod, ConnectionId, EngineInput, EngineLimits, FlowPolicy};
use vocab::ByteCount;

use super::PATIENCE;
use super::world::{NEAR, ServerScript, TwoNodeWorld, WorldSettings, client, server};
use store::PORT;

/// Both nodes have the accelerator.
fn setting() -> WorldSettings {
    let mut policy = FlowPolicy::default();
    policy
        .accelerators
        .set(&store::ENTRY, Arc::new(store::StoreSettings));
    WorldSettings {
        policy: policy.clone(),
        far_policy: policy,
        ..WorldSettings::default()
    }
}

fn world_with(setting: &WorldSettings) -> TwoNodeWorld {
    let mut world = TwoNodeWorld::new(setting.clone());
    world.servers.insert(PORT, ServerScript::Swallow);
    world
}

/// A second client.
fn other_client(world: &mut TwoNodeWorld) -> ConnectionId {
    let mut other = client();
    other.set_ip("198.18.1.3".parse().unwrap());
    world.accept_between(other, server(PORT), ArrivalMethod::Transparent)
}

/// The text that the client has received so far.
fn heard(world: &TwoNodeWorld, connection: ConnectionId) -> String {
    String::from_utf8_lossy(&world.client_host(connection).received).into_owned()
}

/// The answer to one line, without time passing.
fn ask(world: &mut TwoNodeWorld, connection: ConnectionId, line: &str) -> String {
    let before = heard(world, connection).len();
    world.send(connection, format!("{line}\n").as_bytes(), false);
    heard(world, connection)[before..].to_owned()
}

fn purge(world: &mut TwoNodeWorld, name: &str, prefix: &str) -> Result<PurgeCount, String> {
    let id = world.nodes[NEAR].purged.len() as u64 + 1;
    let purge = EngineInput::PurgeAccelerator {
        id,
        name: name.to_owned(),
        prefix: prefix.to_owned(),
    };
    world.input(NEAR, purge);
    let (ended, result) = world.nodes[NEAR].purged.pop().expect("it has ended");
    assert_eq!(ended, id);
    result
}

#[test]
fn flows_of_two_clients_share_a_value() {
    let mut world = world_with(&setting());
    let (first, second) = (world.accept(PORT), world.accept(PORT));
    let third = other_client(&mut world);
    assert_eq!(ask(&mut world, second, "GET colour"), "NONE\n");
    assert_eq!(ask(&mut world, first, "SET colour red"), "OK\n");
    assert_eq!(ask(&mut world, second, "GET colour"), "red\n");
    assert_eq!(ask(&mut world, third, "GET colour"), "red\n");
    // They end as flows do.
    for connection in [first, second, third] {
        world.send(connection, b"", true);
    }
    let closed = |world: &TwoNodeWorld| {
        [first, second, third]
            .iter()
            .all(|connection| world.client_host(*connection).was_closed)
    };
    world.run_until(closed, PATIENCE);
}

#[test]
fn flow_that_waits_is_woken_by_another() {
    let mut world = world_with(&setting());
    let (first, second, third) = (
        world.accept(PORT),
        world.accept(PORT),
        other_client(&mut world),
    );
    assert_eq!(ask(&mut world, first, "WAIT answer"), "");
    assert_eq!(ask(&mut world, second, "WAIT answer"), "");
    // One of them goes away meanwhile; that it waited does no harm.
    world.abort(second);
    world.run_for(Duration::from_secs(1));
    assert_eq!(heard(&world, first), "");
    assert_eq!(ask(&mut world, third, "SET answer 42"), "OK\n");
    assert_eq!(heard(&world, first), "42\n");
}

#[test]
fn nothing_is_confirmed_before_the_disk_has_it() {
    let mut world = world_with(&setting());
    let (first, second) = (world.accept(PORT), world.accept(PORT));
    world.hold_files(NEAR, true);
    assert_eq!(ask(&mut world, first, "SET colour red"), "");
    assert_eq!(ask(&mut world, second, "GET colour"), "NONE\n");
    world.hold_files(NEAR, false);
    assert_eq!(heard(&world, first), "OK\n");
    assert_eq!(ask(&mut world, second, "GET colour"), "red\n");
}

#[test]
fn restarted_engine_reads_only_whole_synced_records() {
    let setting = setting();
    for bytes_left in 0..8 {
        let mut world = world_with(&setting);
        let client = world.accept(PORT);
        assert_eq!(ask(&mut world, client, "SET colour red"), "OK\n");
        assert_eq!(ask(&mut world, client, "SET size 7"), "OK\n");
        // The next record is written, and the process dies before its sync.
        world.hold_files(NEAR, true);
        ask(&mut world, client, "SET shape round");
        let node = &mut world.nodes[NEAR];
        let (_, append) = node.file_requests.pop_front().unwrap();
        assert!(matches!(append.operation, FileOperation::Append { .. }));
        node.files.complete(append);
        node.files.crash(bytes_left);
        world.restart(NEAR, &setting);
        world.hold_files(NEAR, false);
        world.connect();
        let client = world.accept(PORT);
        assert_eq!(ask(&mut world, client, "GET colour"), "red\n");
        assert_eq!(ask(&mut world, client, "GET size"), "7\n");
        assert_eq!(ask(&mut world, client, "GET shape"), "NONE\n");
        // What is written next stands behind whole records.
        assert_eq!(ask(&mut world, client, "SET shape oval"), "OK\n");
        let log = world.nodes[NEAR].files.content("store.log").unwrap();
        assert_eq!(log, b"colour red\nsize 7\nshape oval\n");
    }
}

#[test]
fn full_disk_is_reported_and_keeps_old_data() {
    let mut world = world_with(&setting());
    let client = world.accept(PORT);
    assert_eq!(ask(&mut world, client, "SET colour red"), "OK\n");
    world.nodes[NEAR].files.is_full = true;
    assert_eq!(ask(&mut world, client, "SET colour blue"), "FULL\n");
    assert_eq!(ask(&mut world, client, "GET colour"), "red\n");
    world.nodes[NEAR].files.is_full = false;
    assert_eq!(ask(&mut world, client, "SET colour green"), "OK\n");
    assert_eq!(ask(&mut world, client, "GET colour"), "green\n");
    let log = world.nodes[NEAR].files.content("store.log").unwrap();
    assert_eq!(log, b"colour red\ncolour green\n");
}

#[test]
fn purge_by_prefix_survives_a_crash() {
    let setting = setting();
    let mut world = world_with(&setting);
    let client = world.accept(PORT);
    for (name, value) in [("a.one", "1"), ("a.two", "22"), ("b.one", "333")] {
        ask(&mut world, client, &format!("SET {name} {value}"));
    }
    let (entries, bytes) = (2, 13);
    assert_eq!(
        purge(&mut world, "store", "a."),
        Ok(PurgeCount { entries, bytes })
    );
    assert_eq!(ask(&mut world, client, "GET a.one"), "NONE\n");
    world.nodes[NEAR].files.crash(0);
    world.restart(NEAR, &setting);
    world.connect();
    let client = world.accept(PORT);
    assert_eq!(ask(&mut world, client, "GET a.two"), "NONE\n");
    assert_eq!(ask(&mut world, client, "GET b.one"), "333\n");
    let (entries, bytes) = (1, 8);
    assert_eq!(
        purge(&mut world, "store", ""),
        Ok(PurgeCount { entries, bytes })
    );
    // A disk that fails is told, and an accelerator that keeps nothing.
    world.nodes[NEAR].files.is_full = true;
    assert!(purge(&mut world, "store", "").unwrap_err().contains("full"));
    let error = purge(&mut world, "passthrough", "").unwrap_err();
    assert!(
        error.contains("accelerators that do: ") && error.contains("store"),
        "{error}"
    );
}

#[test]
fn shared_memory_is_counted_and_limited() {
    let memory = ByteCount::mebibytes(4);
    let setting = WorldSettings {
        limits: EngineLimits {
            memory,
            ..EngineLimits::default()
        },
        ..setting()
    };
    let mut world = world_with(&setting);
    let client = world.accept(PORT);
    let held = |world: &TwoNodeWorld| world.nodes[NEAR].engine.status().buffered_bytes;
    let before = held(&world);
    let value = "v".repeat(100_000);
    ask(&mut world, client, &format!("SET n0 {value}"));
    assert!(held(&world) >= before + 100_000);
    for number in 1..40 {
        let set = format!("SET n{number} {value}");
        world.send(client, format!("{set}\n").as_bytes(), false);
        world.run_for(Duration::from_secs(1));
        assert!(held(&world) <= memory.bytes() / 2);
    }
    // The oldest went, and the flow did not.
    assert_eq!(ask(&mut world, client, "GET n0"), "NONE\n");
    assert_eq!(ask(&mut world, client, "GET n39"), format!("{value}\n"));
    assert!(heard(&world, client).starts_with(&"OK\n".repeat(40)));
}

#[test]
fn outstanding_requests_of_an_accelerator_are_limited() {
    let mut world = world_with(&setting());
    world.hold_files(NEAR, true);
    let clients: Vec<_> = (0..100).map(|_| world.accept(PORT)).collect();
    for (number, client) in clients.iter().enumerate() {
        assert_eq!(ask(&mut world, *client, &format!("SET n{number} v")), "");
    }
    assert_eq!(world.nodes[NEAR].file_requests.len(), 64);
    world.hold_files(NEAR, false);
    assert!(
        clients
            .iter()
            .all(|client| heard(&world, *client) == "OK\n")
    );
}
