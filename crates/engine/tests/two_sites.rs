//! Two engines, an emulated path and scripted hosts: the product's promises in virtual time.

#![allow(clippy::unwrap_used, missing_docs)]

mod accepting;
mod bounds;
mod contents;
mod files;
mod opening;
mod resets;
mod server_connections;
mod shared_state;
mod shares;
mod stalled_readers;
mod vanished_peers;
mod web;
mod world;

use std::time::Duration;

use bytes::Bytes;
use engine::{EngineEvent, EngineInput, EngineLimits, FlowPolicy, LinkId, StageReport};
use reduce::DictionaryConfig;
use vocab::{Bitrate, ByteCount, NodeId, Probability, SeededRandom};
use world::{FAR, NEAR, ServerScript, TestPath, TwoNodeWorld, WorldSettings, client, server};

const PATIENCE: Duration = Duration::from_secs(120);
const REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
const ROUND_TRIP: Duration = Duration::from_millis(30);

fn random_bytes(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    SeededRandom::from_seed(seed).fill(&mut bytes);
    bytes.into()
}

fn world_with(scripts: impl IntoIterator<Item = (u16, ServerScript)>) -> TwoNodeWorld {
    let mut world = TwoNodeWorld::new(WorldSettings::default());
    world.servers.extend(scripts);
    world
}

/// Gives both nodes this accelerator beside those of the release.
fn setting_with(entry: &'static accelerate::registry::AcceleratorEntry) -> WorldSettings {
    let settings = (entry.parse)(&accelerate::settings::SettingsTable::default());
    let mut policy = FlowPolicy::default();
    policy.accelerators.set(entry, settings.unwrap());
    WorldSettings {
        policy: policy.clone(),
        far_policy: policy,
        ..WorldSettings::default()
    }
}

/// A server that gives this answer to [`REQUEST`].
fn answering(answer: &Bytes) -> ServerScript {
    ServerScript::Answer {
        after: REQUEST.len(),
        answer: answer.clone(),
    }
}

/// Downloads once to the end. Returns the WAN bytes in both directions.
fn download(world: &mut TwoNodeWorld, port: u16, expected: &Bytes) -> u64 {
    let before: u64 = world.wan_bytes.iter().sum();
    let connection = world.accept(port);
    world.send(connection, REQUEST, true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    let host = world.client_host(connection);
    assert!(host.received == expected, "the client got other bytes");
    assert!(host.peer_finished && !host.was_reset);
    world.wan_bytes.iter().sum::<u64>() - before
}

#[test]
fn the_first_answer_costs_one_round_trip() {
    let answer = Bytes::from_static(b"hello");
    let mut world = world_with([(80, ServerScript::Answer { after: 18, answer })]);
    let begun = world.now;
    let connection = world.accept(80);
    world.send(connection, REQUEST, true);
    world.run_until(
        |world| !world.client_host(connection).received.is_empty(),
        PATIENCE,
    );
    let took = world
        .client_host(connection)
        .first_byte_at
        .unwrap()
        .since(begun);
    assert!(took >= ROUND_TRIP, "{took:?} is faster than the path");
    assert!(
        took < ROUND_TRIP + Duration::from_millis(3),
        "{took:?} is more than one round trip"
    );
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    let greeting = Bytes::from_static(b"220 ready\r\n");
    let mut world = world_with([(21, ServerScript::GreetAndEcho { greeting })]);
    let connection = world.accept(21);
    world.run_until(
        |world| world.client_host(connection).received.len() == 11,
        PATIENCE,
    );
    world.send(connection, b"QUIT\r\n", true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert_eq!(
        &world.client_host(connection).received[..],
        b"220 ready\r\nQUIT\r\n"
    );
}

#[test]
fn second_download_costs_a_thousandth_of_the_first() {
    let answer = random_bytes(1, 2_000_000);
    let mut world = world_with([(80, answering(&answer))]);
    let cold = download(&mut world, 80, &answer);
    assert!(cold < 2_000_000 + 40_000, "cold cost {cold} bytes");
    let warm = download(&mut world, 80, &answer);
    assert!(warm < 2_000, "warm cost {warm} bytes");
}

#[test]
fn an_edited_file_costs_its_edits() {
    let answer = random_bytes(8, 2_000_000);
    let mut edited = answer.to_vec();
    for at in (50_000..2_000_000).step_by(100_000).rev() {
        edited.splice(at..at + 3, *b"ten bytes.");
    }
    let edited = Bytes::from(edited);
    let mut world = world_with([(80, answering(&answer)), (81, answering(&edited))]);
    download(&mut world, 80, &answer);
    let cost = download(&mut world, 81, &edited);
    assert!(cost < 4_000, "twenty edits cost {cost} bytes");
}

#[test]
fn uploaded_content_downloads_cheaply() {
    let data = random_bytes(2, 1_000_000);
    let answer = answering(&data);
    let mut world = world_with([(21, ServerScript::Swallow), (80, answer)]);
    let connection = world.accept(21);
    world.send(connection, &data, true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert!(world.server_hosts().next().unwrap().received == data);
    let down = download(&mut world, 80, &data);
    assert!(
        down < 30_000,
        "down cost {down} bytes: one dictionary must serve both directions"
    );
}

#[test]
fn each_direction_ends_apart() {
    let greeting = Bytes::from_static(b"still here\n");
    let mut world = world_with([(7, ServerScript::GreetAndEcho { greeting })]);
    let connection = world.accept(7);
    world.send(connection, b"last words", true);
    let both_closed = |world: &TwoNodeWorld| {
        world.client_host(connection).was_closed && world.server_hosts().all(|far| far.was_closed)
    };
    world.run_until(both_closed, PATIENCE);
    assert!(world.server_hosts().all(|far| far.peer_finished));
    assert_eq!(
        &world.client_host(connection).received[..],
        b"still here\nlast words"
    );
}

#[test]
fn the_far_leg_carries_the_clients_address() {
    let greeting = Bytes::from_static(b"hi");
    let mut world = world_with([(7, ServerScript::GreetAndEcho { greeting })]);
    let connection = world.accept(7);
    world.run_until(
        |world| !world.client_host(connection).received.is_empty(),
        PATIENCE,
    );
    let seen = world.server_hosts().next().unwrap().seen_client.unwrap();
    assert_eq!(seen.ip(), client().ip());
}

#[test]
fn refusing_server_resets_the_client_and_is_bypassed() {
    let mut world = world_with([(81, ServerScript::Refuse)]);
    let connection = world.accept(81);
    world.send(connection, b"anyone there?", false);
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);
    assert!(
        !world.client_host(connection).peer_finished,
        "a failure is never a clean end"
    );
    assert!(world.nodes[NEAR].avoided.contains_key(&server(81)));
}

#[test]
fn resets_are_carried_over_both_ways() {
    let mut world = world_with([
        (82, ServerScript::ResetAfter { after: 5 }),
        (83, ServerScript::Swallow),
    ]);
    let connection = world.accept(82);
    world.send(connection, b"12345", false);
    world.run_until(|world| world.client_host(connection).was_reset, PATIENCE);

    let connection = world.accept(83);
    world.send(connection, b"and off", false);
    world.run_until(
        |world| world.server_hosts().any(|host| !host.received.is_empty()),
        PATIENCE,
    );
    world.abort(connection);
    let server_reset =
        |world: &TwoNodeWorld| world.server_hosts().filter(|host| host.was_reset).count();
    world.run_until(|world| server_reset(world) == 2, PATIENCE);
}

#[test]
fn flows_outlive_an_outage_of_thirty_seconds() {
    let answer = random_bytes(3, 3_000_000);
    let mut world = world_with([(80, answering(&answer))]);
    let connection = world.accept(80);
    world.send(connection, REQUEST, true);
    world.run_until(
        |world| world.client_host(connection).received.len() > 500_000,
        PATIENCE,
    );

    world.set_blocked(true);
    world.run_for(Duration::from_secs(30));
    assert!(
        world.nodes[NEAR]
            .events
            .iter()
            .any(|event| matches!(event, EngineEvent::PeerSilent { .. }))
    );
    assert!(
        world.nodes[NEAR].intercepted.is_empty(),
        "a silent peer's prefixes are let go"
    );
    world.cut();
    world.connect();

    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert!(world.client_host(connection).received == answer);
}

#[test]
fn restarted_far_node_resets_its_flows() {
    let answer = random_bytes(4, 2_000_000);
    let mut world = world_with([(80, answering(&answer))]);
    download(&mut world, 80, &answer);
    // What was learnt goes to the disk within seconds; a crash before that only costs bytes.
    world.run_for(Duration::from_secs(3));
    let torn = world.accept(80);
    world.send(torn, REQUEST, true);
    world.run_for(Duration::from_millis(20));

    world.restart(FAR, &WorldSettings::default());
    world.connect();
    world.run_until(|world| world.client_host(torn).was_reset, PATIENCE);
    assert!(!world.client_host(torn).peer_finished);

    let warm = download(&mut world, 80, &answer);
    assert!(
        warm < 2_000,
        "warm after a restart cost {warm} bytes: the disk was not used"
    );
}

#[test]
fn lost_dictionary_costs_bytes_but_no_correctness() {
    let answer = random_bytes(5, 1_000_000);
    let mut world = world_with([(80, answering(&answer))]);
    download(&mut world, 80, &answer);
    // The near node loses what it knew while its peer goes on believing in it.
    world.nodes[NEAR].disk = Default::default();
    world.restart(NEAR, &WorldSettings::default());
    world.connect();
    let again = download(&mut world, 80, &answer);
    assert!(
        again > 900_000,
        "{again} bytes cannot have carried what was lost"
    );
    let warm = download(&mut world, 80, &answer);
    assert!(warm < 2_000, "warm cost {warm} bytes");
}

#[test]
fn stalled_client_stalls_only_its_server() {
    let answer = random_bytes(6, 500_000);
    let script = answering(&answer);
    let mut world = world_with([(80, script), (84, ServerScript::Stall)]);
    let stalled = world.accept(84);
    world.send(stalled, &random_bytes(7, 40_000_000), false);
    world.run_for(Duration::from_secs(60));
    let buffered = world
        .nodes
        .each_ref()
        .map(|node| node.engine.status().buffered_bytes);
    assert!(
        buffered.iter().sum::<u64>() < 12 << 20,
        "{buffered:?} bytes for one flow"
    );
    download(&mut world, 80, &answer);
}

#[test]
fn many_flows_end_with_their_own_bytes() {
    let scripts = (0..50_u16).map(|index| {
        let answer = random_bytes(u64::from(index), 20_000 + 997 * usize::from(index));
        (1000 + index, ServerScript::Answer { after: 18, answer })
    });
    let mut world = world_with(scripts);
    let connections: Vec<_> = (0..500_u16)
        .map(|index| (index, world.accept(1000 + index % 50)))
        .collect();
    for (_, connection) in &connections {
        world.send(*connection, REQUEST, true);
    }
    let all_closed = |world: &TwoNodeWorld| {
        connections
            .iter()
            .all(|(_, connection)| world.client_host(*connection).was_closed)
    };
    world.run_until(all_closed, PATIENCE);
    for (index, connection) in &connections {
        let index = u64::from(index % 50);
        let expected = random_bytes(index, 20_000 + 997 * index as usize);
        assert!(world.client_host(*connection).received == expected);
    }
    let status = world.nodes[NEAR].engine.status();
    assert_eq!((status.flows, status.buffered_bytes), (0, 0));
}

#[test]
fn at_the_limit_new_connections_pass_by() {
    let setting = WorldSettings {
        limits: EngineLimits {
            flows: 2,
            ..EngineLimits::default()
        },
        ..WorldSettings::default()
    };
    let mut world = TwoNodeWorld::new(setting);
    world.servers.insert(83, ServerScript::Swallow);
    let first = world.accept(83);
    let _second = world.accept(83);
    assert!(
        world.nodes[NEAR].intercepted.is_empty(),
        "nothing is intercepted at the limit"
    );
    // One that was accepted in the same moment goes directly.
    let late = world.accept(83);
    world.send(late, b"data", true);
    world.run_until(|world| world.client_host(late).was_closed, PATIENCE);

    world.send(first, b"bye", true);
    world.run_until(|world| !world.nodes[NEAR].intercepted.is_empty(), PATIENCE);
}

#[test]
fn full_peer_is_bypassed_without_blaming_servers() {
    let setting = WorldSettings {
        far_limits: EngineLimits {
            flows: 1,
            ..EngineLimits::default()
        },
        ..WorldSettings::default()
    };
    let mut world = TwoNodeWorld::new(setting);
    world.servers.insert(83, ServerScript::Swallow);
    let first = world.accept(83);
    world.run_for(Duration::from_millis(100));
    let second = world.accept(83);
    world.run_until(|world| world.client_host(second).was_reset, PATIENCE);
    assert!(world.nodes[NEAR].intercepted.is_empty());
    assert!(world.nodes[NEAR].avoided.is_empty());
    world.run_for(Duration::from_secs(6));
    assert_eq!(world.nodes[NEAR].intercepted.len(), 1);
    assert!(!world.client_host(first).was_reset);
}

/// A peer that becomes full reports it before it must refuse: flows in transit are served.
#[test]
fn flows_in_transit_are_served_by_full_peer() {
    let setting = WorldSettings {
        far_limits: EngineLimits {
            flows: 10,
            comfortable_flows: 2,
            ..EngineLimits::default()
        },
        ..WorldSettings::default()
    };
    let mut world = TwoNodeWorld::new(setting);
    world.servers.insert(83, ServerScript::Swallow);
    let connections: Vec<_> = (0..8).map(|_| world.accept(83)).collect();
    world.run_until(|world| world.nodes[NEAR].intercepted.is_empty(), PATIENCE);
    for connection in &connections {
        world.send(*connection, b"bye", true);
    }
    for connection in &connections {
        world.run_until(|world| world.client_host(*connection).was_closed, PATIENCE);
        assert!(!world.client_host(*connection).was_reset);
    }
    assert!(world.nodes[NEAR].avoided.is_empty());
    world.run_for(Duration::from_secs(6));
    assert_eq!(world.nodes[NEAR].intercepted.len(), 1);
}

#[test]
fn without_a_peer_connections_go_directly() {
    let greeting = Bytes::from_static(b"direct");
    let mut world = world_with([(7, ServerScript::GreetAndEcho { greeting })]);
    world.cut();
    assert!(world.nodes[NEAR].intercepted.is_empty());
    let connection = world.accept(7);
    world.send(connection, b"!", true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert_eq!(&world.client_host(connection).received[..], b"direct!");
    let flows = world.nodes[NEAR].engine.flows(world.now);
    let why = world.nodes[NEAR]
        .engine
        .why(world.now, flows[0].flow)
        .unwrap();
    assert!(
        why.stages[0]
            .why_not
            .as_deref()
            .unwrap()
            .contains("could not be reached")
    );
}

#[test]
fn why_names_encryption_and_promises_nothing_for_it() {
    let answer = random_bytes(12, 100_000);
    let mut world = world_with([(443, answering(&answer))]);
    let connection = world.accept(443);
    world.send(
        connection,
        &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 0, 0, 0, 0, 0, 0, 0],
        true,
    );
    let closed = |world: &TwoNodeWorld| world.client_host(connection).was_closed;
    world.run_until(closed, PATIENCE);
    let why = world.nodes[NEAR].engine.why(world.now, 1).unwrap();
    let reduce = why
        .stages
        .iter()
        .find(|stage| stage.stage == "reduce")
        .unwrap();
    assert!(reduce.why_not.as_deref().unwrap().contains("encrypt"));
    assert_eq!(reduce.remedy, None);
}

#[test]
fn unstorable_content_is_sent_again_in_full() {
    let setting = WorldSettings {
        policy: FlowPolicy {
            never_store_ports: vec![80..=80],
            ..FlowPolicy::default()
        },
        ..WorldSettings::default()
    };
    let answer = random_bytes(8, 300_000);
    let mut world = TwoNodeWorld::new(setting);
    world.servers.insert(80, answering(&answer));
    download(&mut world, 80, &answer);
    let again = download(&mut world, 80, &answer);
    assert!(again > 300_000, "{again} bytes: something was kept");
    assert_eq!(world.nodes[NEAR].engine.status().dictionary.chunks, 0);
}

#[test]
fn carried_content_is_stored_on_neither_side() {
    let setting = WorldSettings {
        policy: FlowPolicy {
            carry_only_ports: vec![80..=90],
            ..FlowPolicy::default()
        },
        ..WorldSettings::default()
    };
    let answer = random_bytes(8, 300_000);
    let mut world = TwoNodeWorld::new(setting);
    world.servers.insert(80, answering(&answer));
    download(&mut world, 80, &answer);
    for own in [NEAR, FAR] {
        assert_eq!(world.nodes[own].engine.status().dictionary.chunks, 0);
    }
}

#[test]
fn both_nodes_say_why_an_accelerator_let_go() {
    let mut policy = FlowPolicy::default();
    let settings = std::sync::Arc::new(accelerate::smb::SmbSettings::STRICT);
    policy.accelerators.set(&accelerate::smb::ENTRY, settings);
    let setting = WorldSettings {
        policy,
        ..WorldSettings::default()
    };
    let answer = random_bytes(10, 300_000);
    let mut world = TwoNodeWorld::new(setting);
    // The far node's policy is the default one, in which file shares are not accelerated.
    world.servers.insert(445, answering(&answer));
    download(&mut world, 445, &answer);
    for (own, off) in [(NEAR, "off on the peer"), (FAR, "off on this node")] {
        let stage = accelerate_stage(&world, own);
        assert_eq!(stage.did, "smb");
        let reason = stage.why_not.unwrap();
        assert!(reason.contains(off), "{reason}");
        assert!(stage.remedy.unwrap().contains("mode = \"strict\""));
    }
}

#[test]
fn both_nodes_report_switched_off_file_shares() {
    let answer = random_bytes(10, 300_000);
    let mut world = world_with([(445, answering(&answer))]);
    download(&mut world, 445, &answer);
    for (own, off) in [(NEAR, "off on this node"), (FAR, "off on the peer")] {
        let stage = accelerate_stage(&world, own);
        assert_eq!(stage.did, "passthrough");
        let reason = stage.why_not.unwrap();
        assert!(reason.contains(off), "{reason}");
        assert!(stage.remedy.unwrap().contains("mode = \"strict\""));
    }
}

fn accelerate_stage(world: &TwoNodeWorld, own: usize) -> StageReport {
    let why = world.nodes[own].engine.why(world.now, 1).unwrap();
    let mut stages = why.stages.into_iter();
    stages.find(|stage| stage.stage == "accelerate").unwrap()
}

#[test]
fn purge_empties_both_views_of_the_dictionary() {
    let answer = random_bytes(9, 500_000);
    let mut world = world_with([(80, answering(&answer))]);
    download(&mut world, 80, &answer);
    for own in [NEAR, FAR] {
        world.input(own, EngineInput::ClearDictionary { key: None });
    }
    world.run_for(Duration::from_secs(1));
    let cold = download(&mut world, 80, &answer);
    assert!(cold > 500_000, "{cold} bytes: something was kept");
}

#[test]
fn stopping_node_gives_flows_a_grace_period() {
    let answer = random_bytes(10, 1_000_000);
    let script = answering(&answer);
    let mut world = world_with([(80, script), (83, ServerScript::Swallow)]);
    let ending = world.accept(80);
    world.send(ending, REQUEST, true);
    let endless = world.accept(83);
    world.run_for(Duration::from_millis(100));
    let grace = Duration::from_secs(10);
    world.input(NEAR, EngineInput::Stop { grace });
    assert!(world.nodes[NEAR].intercepted.is_empty());
    world.run_until(|world| world.nodes[NEAR].stopped, PATIENCE);
    assert!(world.client_host(ending).received == answer);
    assert!(world.client_host(endless).was_reset);
}

#[test]
fn memory_limit_slows_flows_without_loss() {
    let setting = WorldSettings {
        limits: EngineLimits {
            memory: ByteCount::kibibytes(512),
            ..EngineLimits::default()
        },
        ..WorldSettings::default()
    };
    let answer = random_bytes(11, 1_000_000);
    let mut world = TwoNodeWorld::new(setting);
    world.servers.insert(80, answering(&answer));
    let connections: Vec<_> = (0..8).map(|_| world.accept(80)).collect();
    for connection in &connections {
        world.send(*connection, REQUEST, true);
    }
    let done = |world: &TwoNodeWorld| connections.iter().all(|c| world.client_host(*c).was_closed);
    world.run_until(done, PATIENCE);
    for connection in &connections {
        assert!(world.client_host(*connection).received == answer);
    }
}

/// A world whose nodes may also send packets, which meet the given loss each way.
fn world_with_packets(
    loss: f64,
    scripts: impl IntoIterator<Item = (u16, ServerScript)>,
) -> TwoNodeWorld {
    let path = world::TestPath::default();
    let direction = emulate::DirectionConfig {
        line: emulate::LineConfig::Rate(path.rate),
        delay: path.delay,
        loss: emulate::LossModel::Random(Probability::from_fraction(loss).unwrap()),
        ..emulate::DirectionConfig::default()
    };
    let packets = emulate::LinkConfig {
        forward: direction.clone(),
        back: direction,
        seed: 7,
    };
    let mut world = TwoNodeWorld::new(WorldSettings {
        packets: Some(packets),
        ..WorldSettings::default()
    });
    world.servers.extend(scripts);
    let carries = |node: &world::TestNode| node.engine.status().peers[0].path.carries == "udp";
    world.run_until(|world| world.nodes.iter().all(carries), PATIENCE);
    world
}

#[test]
fn flows_use_udp_if_both_nodes_take_it() {
    let answer = random_bytes(1, 3 << 20);
    let mut world = world_with_packets(0.02, [(80, answering(&answer))]);
    let wan = download(&mut world, 80, &answer);
    assert!(wan as usize > answer.len(), "random bytes cannot shrink");
    let path = world.nodes[FAR].engine.status().peers[0].path.clone();
    let udp = path.udp.unwrap();
    assert_eq!((path.carries, path.fallback), ("udp", None));
    assert!(udp.sent_bytes as usize > answer.len(), "{udp:?}");
    assert!((0.5..5.0).contains(&udp.loss_percent), "{udp:?}");
    assert!(udp.rtt_min_ms.unwrap() >= 30.0, "{udp:?}");
}

/// The counters of a peer include the bytes by UDP, and keep them when the path is gone.
#[test]
fn the_byte_counters_of_a_peer_include_udp() {
    let answer = random_bytes(1, 3 << 20);
    let mut world = world_with_packets(0.0, [(80, answering(&answer))]);
    download(&mut world, 80, &answer);
    let far = world.nodes[FAR].engine.status().peers[0].clone();
    let near = world.nodes[NEAR].engine.status().peers[0].clone();
    for bytes in [far.sent_bytes, near.received_bytes] {
        assert!(bytes as usize > answer.len(), "{bytes} B were counted");
    }
    let udp = far.path.udp.unwrap();
    assert_eq!(far.sent_bytes, far.link_sent_bytes + udp.sent_bytes);
    assert_eq!(
        far.received_bytes,
        far.link_received_bytes + udp.received_bytes
    );
    assert!(udp.sent_bytes > far.link_sent_bytes, "{udp:?}");
    world.cut();
    world.run_for(Duration::from_secs(120));
    let after = world.nodes[FAR].engine.status().peers[0].clone();
    assert_eq!(after.path.udp, None);
    assert!(after.sent_bytes >= far.sent_bytes, "{after:?}");
}

/// A peer that breaks the rules is named in the log, at once and then at most once a minute.
#[test]
fn violations_are_logged_once_a_minute_and_counted() {
    let mut world = world_with([]);
    let peer = NodeId([2; 32]);
    let told = |world: &TwoNodeWorld| -> Vec<(String, u64)> {
        let events = world.nodes[NEAR].events.iter();
        let told = events.filter_map(|event| match event {
            EngineEvent::PeerMisbehaved {
                peer: who,
                what,
                unlogged: untold,
            } => {
                assert_eq!(*who, peer);
                Some((what.clone(), *untold))
            }
            _ => None,
        });
        told.collect()
    };
    let mut links = 1_000;
    let mut break_rules = |world: &mut TwoNodeWorld, times: u64| {
        for _ in 0..times {
            links += 1;
            let link = LinkId(links);
            let up = EngineInput::LinkUp {
                link,
                peer,
                dialed_by_us: true,
                offer: None,
            };
            let bytes = Bytes::from_static(&[0xff; 64]);
            let engine = &mut world.nodes[NEAR].engine;
            engine.handle(world.now, up);
            engine.handle(world.now, EngineInput::LinkReceived { link, bytes });
            world.run_for(Duration::from_millis(1));
        }
    };
    break_rules(&mut world, 100);
    let first = told(&world);
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(first[0].0.contains("the peer sent bytes that are no frame"));
    world.run_for(Duration::from_secs(60));
    break_rules(&mut world, 2);
    let both = told(&world);
    assert_eq!(both.len(), 2, "{both:?}");
    assert_eq!(both[1].1, 99);
    let status = world.nodes[NEAR].engine.status();
    assert_eq!(status.peers[0].violations_total, 102);
}

#[test]
fn a_download_outlives_udp_and_status_says_why() {
    let answer = random_bytes(2, 4 << 20);
    let mut world = world_with_packets(0.0, [(80, answering(&answer))]);
    let connection = world.accept(80);
    world.send(connection, REQUEST, true);
    world.run_for(Duration::from_secs(1));
    world.set_packets_blocked(true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert!(world.client_host(connection).received == answer);
    let path = world.nodes[FAR].engine.status().peers[0].path.clone();
    assert_eq!((path.carries, path.fallbacks_total), ("tls", 1));
    assert!(
        path.fallback.unwrap().contains("does not answer by UDP"),
        "{path:?}"
    );
    let is_down = |event: &EngineEvent| matches!(event, EngineEvent::DatagramsDown { .. });
    assert!(world.nodes[FAR].events.iter().any(is_down));

    // When UDP gets through again it is used again.
    world.set_packets_blocked(false);
    let carries = |node: &world::TestNode| node.engine.status().peers[0].path.carries == "udp";
    world.run_until(|world| world.nodes.iter().all(carries), PATIENCE);
    download(&mut world, 80, &answer);
}

#[test]
fn a_fresh_link_has_a_fresh_datagram_path() {
    let answer = random_bytes(3, 1 << 20);
    let mut world = world_with_packets(0.01, [(80, answering(&answer))]);
    let connection = world.accept(80);
    world.send(connection, REQUEST, true);
    world.run_for(Duration::from_millis(300));
    world.cut();
    world.run_for(Duration::from_secs(3));
    world.connect();
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert!(world.client_host(connection).received == answer);
    let carries = |node: &world::TestNode| node.engine.status().peers[0].path.carries == "udp";
    world.run_until(|world| world.nodes.iter().all(carries), PATIENCE);
}

#[test]
fn held_back_udp_falls_back_to_tls() {
    let answer = random_bytes(4, 24 << 20);
    let mut setting = WorldSettings::default();
    let policed = emulate::DirectionConfig {
        delay: setting.path.delay,
        policer: Some(emulate::TokenBucket {
            rate: Bitrate::from_bits_per_second(1_000_000),
            burst: ByteCount::kibibytes(32),
            peak: None,
        }),
        ..emulate::DirectionConfig::default()
    };
    setting.packets = Some(emulate::LinkConfig {
        forward: policed.clone(),
        back: policed,
        seed: 8,
    });
    let mut world = TwoNodeWorld::new(setting);
    world.servers.extend([(80, answering(&answer))]);
    let begun = world.now;
    let connection = world.accept(80);
    world.send(connection, REQUEST, true);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert!(world.client_host(connection).received == answer);
    // By TLS alone it takes 20.2 s, by UDP 202 s.
    let took = world.now.since(begun);
    assert!(took < Duration::from_secs(30), "{took:?}");
    let path = world.nodes[FAR].engine.status().peers[0].path.clone();
    assert_eq!(path.carries, "tls");
    assert!(
        path.fallback.unwrap().contains("slows UDP down"),
        "{path:?}"
    );
}

/// Otherwise the peer would keep sending for a second and four probe timeouts, without a receiver.
#[test]
fn peer_learns_at_once_that_a_path_ended() {
    let mut world = world_with_packets(0.0, []);
    let grace = Duration::ZERO;
    world.input(NEAR, EngineInput::Stop { grace });
    world.run_for(world::TestPath::default().delay + Duration::from_millis(1));
    let path = world.nodes[FAR].engine.status().peers[0].path.clone();
    assert_eq!(path.carries, "tls");
    let why = path.fallback.unwrap();
    assert!(why.contains("has closed its UDP path"), "{why}");
}

fn was_down(world: &TwoNodeWorld, own: usize) -> bool {
    let is_down = |event: &EngineEvent| matches!(event, EngineEvent::PeerDown { .. });
    world.nodes[own].events.iter().any(is_down)
}

/// DESIGN: UDP outlives a lost control connection by 60 s at most.
#[test]
fn flows_continue_by_udp_for_a_minute() {
    let answer = random_bytes(6, 4 << 20);
    let mut world = world_with_packets(0.01, [(80, answering(&answer))]);
    let connection = world.accept(80);
    world.send(connection, REQUEST, true);
    world.run_for(Duration::from_secs(1));
    world.lose_link(NEAR);
    let began = world.now;
    // The peer may be dead, and is trusted with new flows when it has answered.
    assert!(world.nodes[NEAR].intercepted.is_empty());
    world.run_for(2 * ROUND_TRIP);
    assert_eq!(world.nodes[NEAR].intercepted.len(), 1);
    world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
    assert!(world.client_host(connection).received == answer);
    // New ones are opened meanwhile.
    download(&mut world, 80, &answer);
    let end = began + Duration::from_secs(59);
    world.run_for(end.since(world.now));
    assert_eq!(
        world.nodes[NEAR].engine.status().peers[0].path.carries,
        "udp"
    );
    assert!(!was_down(&world, NEAR));
    world.run_for(Duration::from_secs(2));
    assert!(was_down(&world, NEAR));
    assert!(world.nodes[NEAR].intercepted.is_empty());
    let path = world.nodes[FAR].engine.status().peers[0].path.clone();
    let why = path.fallback.unwrap();
    assert!(why.contains("has closed its UDP path"), "{why}");
}

/// The end of the TCP connection tells a node at once that the peer was killed.
#[test]
fn killed_peer_gets_no_new_flows() {
    let mut world = world_with_packets(0.0, []);
    world.set_packets_blocked(true);
    world.lose_link(NEAR);
    assert!(world.nodes[NEAR].intercepted.is_empty());
    world.run_for(Duration::from_secs(10));
    assert!(world.nodes[NEAR].intercepted.is_empty());
    assert!(was_down(&world, NEAR));
}

/// Revoking an identity must end its UDP keys within 5 s. The peer learns it by the link.
#[test]
fn removed_peer_learns_it_by_the_link() {
    let answer = random_bytes(7, 4 << 20);
    for breaks in [false, true] {
        let mut world = world_with_packets(0.0, [(80, answering(&answer))]);
        let connection = world.accept(80);
        world.send(connection, REQUEST, true);
        world.run_for(Duration::from_secs(1));
        if breaks {
            world.lose_link(FAR);
        }
        world.forget_peers(FAR);
        let told = world.wan_bytes[FAR];
        world.run_for(Duration::from_secs(5));
        assert_eq!(world.wan_bytes[FAR], told);
        assert!(world.nodes[FAR].engine.status().peers.is_empty());
        assert_eq!(world.nodes[FAR].engine.status().flows, 0);
        let client = world.client_host(connection);
        assert!(!client.was_closed);
        assert_eq!(client.was_reset, !breaks);
        let peer = world.id(FAR);
        let events = &world.nodes[NEAR].events;
        let is_told = events.contains(&EngineEvent::RefusedByPeer { peer, flows: 1 });
        let is_broken = events.contains(&EngineEvent::LinkBroken { peer });
        assert_eq!((is_told, is_broken), (!breaks, false), "{events:?}");
    }
}

/// A new run of the node starts from the measurements of an earlier run.
#[test]
fn a_path_that_is_remembered_is_started_from() {
    let answer = random_bytes(5, 3 << 20);
    let mut world = world_with_packets(0.0, [(80, answering(&answer))]);
    download(&mut world, 80, &answer);
    let measured: Vec<_> = world.nodes[FAR].engine.measured_paths().collect();
    let (near, path) = measured[0];
    assert_eq!(measured.len(), 1);
    let share = path.rate.bits_per_second() as f64 / 10e6;
    assert!((0.9..1.1).contains(&share), "{path:?}");
    assert!(
        path.rtt >= ROUND_TRIP && path.rtt < ROUND_TRIP * 11 / 10,
        "{path:?}"
    );

    for (is_told, begins) in [(false, "startup"), (true, "resume")] {
        world.restart(FAR, &WorldSettings::default());
        if is_told {
            world.nodes[FAR].engine.remember_path(near, path);
        }
        world.connect();
        let carries =
            |world: &TwoNodeWorld| world.nodes[FAR].engine.status().peers[0].path.carries == "udp";
        world.run_until(carries, PATIENCE);
        let udp = world.nodes[FAR].engine.status().peers[0].path.udp.clone();
        assert_eq!(udp.unwrap().congestion, begins);
    }
}

/// The data kept for repairs does not slow a warm transfer down: at 1 Gbit/s and 200 ms, 25 MB are
/// in flight and unacknowledged.
#[test]
fn a_warm_flow_fills_a_long_fat_line() {
    let answer = random_bytes(12, 40 << 20);
    let mut world = TwoNodeWorld::new(WorldSettings {
        path: TestPath {
            rate: Bitrate::from_bits_per_second(1_000_000_000),
            delay: Duration::from_millis(100),
        },
        dictionary: DictionaryConfig::default(),
        ..WorldSettings::default()
    });
    world.servers.insert(80, answering(&answer));
    download(&mut world, 80, &answer);
    let began = world.now;
    download(&mut world, 80, &answer);
    let took = world.now.since(began);
    // 8 MiB for each round trip would take five of them, and one to begin with.
    assert!(took < 3 * 2 * Duration::from_millis(100), "{took:?}");
}
