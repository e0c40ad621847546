//! Hosts that stop reading: a bulk flow beside them keeps its share of the path.

use std::time::Duration;

use vocab::{Bitrate, ByteCount};

use super::world::{ServerScript, TestPath, TwoNodeWorld, WorldSettings};
use super::{PATIENCE, REQUEST, answering, random_bytes};

const ANSWERS: u16 = 80;
const SINK: u16 = 81;
const POURS: u16 = 82;
const STALLS: u16 = 83;

/// The time that the stalled flows have before the bulk flow begins: longer than they take to fill
/// up.
const FILLING: Duration = Duration::from_secs(60);

/// The direction of the unread bytes, and of the bulk flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StallDirection {
    Down,
    Up,
}

/// The transport of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameCarrier {
    Tls,
    Udp,
}

/// One case: so many stalled flows, whose readers take so many bytes each before they stop.
#[derive(Clone, Copy, Debug)]
struct StallCase {
    carrier: FrameCarrier,
    direction: StallDirection,
    stalled: usize,
    read_before: usize,
    /// Bytes that the bulk flow carries.
    bulk: usize,
    /// The bytes that all flows together may have in flight.
    total_window: ByteCount,
}

/// Sixty stalled downloads, small enough for every test run. For its window that is as much as 480
/// flows are for the usual one.
const SHORT: StallCase = StallCase {
    carrier: FrameCarrier::Tls,
    direction: StallDirection::Down,
    stalled: 60,
    read_before: 0,
    bulk: 4 << 20,
    total_window: ByteCount::mebibytes(8),
};

/// The same with the usual window.
const USUAL: StallCase = StallCase {
    bulk: 8 << 20,
    total_window: ByteCount::mebibytes(64),
    ..SHORT
};

fn path() -> TestPath {
    TestPath {
        rate: Bitrate::from_bits_per_second(50_000_000),
        delay: Duration::from_millis(25),
    }
}

fn world(case: StallCase) -> TwoNodeWorld {
    let carrier = case.carrier;
    let path = path();
    let direction = emulate::DirectionConfig {
        line: emulate::LineConfig::Rate(path.rate),
        delay: path.delay,
        ..emulate::DirectionConfig::default()
    };
    let packets = emulate::LinkConfig {
        forward: direction.clone(),
        back: direction,
        seed: 7,
    };
    let mut world = TwoNodeWorld::new(WorldSettings {
        path,
        packets: (carrier == FrameCarrier::Udp).then_some(packets),
        tunnel: tunnel::SessionConfig {
            total_window: case.total_window,
            ..tunnel::SessionConfig::default()
        },
        ..WorldSettings::default()
    });
    let bulk = random_bytes(70, case.bulk);
    world.servers.extend([
        (ANSWERS, answering(&bulk)),
        (SINK, ServerScript::Swallow),
        (POURS, ServerScript::Pour),
        (STALLS, ServerScript::Stall),
    ]);
    if carrier == FrameCarrier::Udp {
        let carries =
            |node: &super::world::TestNode| node.engine.status().peers[0].path.carries == "udp";
        world.run_until(|world| world.nodes.iter().all(carries), PATIENCE);
    }
    world
}

/// The duration of the bulk flow beside the stalled ones.
fn bulk_time(case: StallCase) -> Duration {
    let mut world = world(case);
    for _ in 0..case.stalled {
        match case.direction {
            StallDirection::Down => {
                let connection = world.accept(POURS);
                world.read_at_most(connection, case.read_before);
            }
            StallDirection::Up => {
                let connection = world.accept(STALLS);
                world.pour(connection);
            }
        }
    }
    world.run_for(FILLING);
    let begun = world.now;
    match case.direction {
        StallDirection::Down => {
            let connection = world.accept(ANSWERS);
            world.send(connection, REQUEST, true);
            let done =
                |world: &TwoNodeWorld| world.client_host(connection).received.len() == case.bulk;
            world.run_until(done, PATIENCE);
        }
        StallDirection::Up => {
            let connection = world.accept(SINK);
            world.send(connection, &random_bytes(70, case.bulk), true);
            world.run_until(|world| world.client_host(connection).was_closed, PATIENCE);
        }
    }
    for node in &world.nodes {
        assert!(
            node.engine.status().limits_reached.is_empty(),
            "{case:?}: new flows would pass by"
        );
    }
    world.now.since(begun)
}

/// Beside any number of stalled flows the bulk flow takes at most a quarter longer: 80 % of the
/// rate that it has alone.
fn assert_share(case: StallCase) {
    let alone = bulk_time(StallCase { stalled: 0, ..case });
    let beside = bulk_time(case);
    assert!(
        beside * 4 <= alone * 5,
        "{case:?}: {beside:?} beside the stalled flows, {alone:?} alone"
    );
}

#[test]
fn stalled_downloads_leave_a_bulk_share_by_tls() {
    assert_share(SHORT);
}

#[test]
fn stalled_uploads_leave_a_bulk_share_by_udp() {
    assert_share(StallCase {
        carrier: FrameCarrier::Udp,
        direction: StallDirection::Up,
        ..SHORT
    });
}

#[test]
#[ignore = "long: 4 cases of 60 and 500 stalled flows with the usual windows, minutes"]
fn any_number_of_stalled_flows_leaves_a_share() {
    for stalled in [60, 500] {
        assert_share(StallCase { stalled, ..USUAL });
        assert_share(StallCase {
            carrier: FrameCarrier::Udp,
            direction: StallDirection::Up,
            stalled,
            ..USUAL
        });
    }
}

#[test]
#[ignore = "long: readers that take a mebibyte each before they stop, a minute"]
fn readers_that_stop_midway_leave_a_bulk_share() {
    assert_share(StallCase {
        read_before: 1 << 20,
        ..USUAL
    });
}
