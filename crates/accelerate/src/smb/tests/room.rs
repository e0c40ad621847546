//! WRITEs are answered only while the server has room for them (docs/decisions/0091).

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::DISK_FULL;
use super::super::testing::world::Smb2World;
use super::super::wire::FileId;
use super::super::wire::header::{command, status};
use super::{open, world_with};

/// More room than a flow's answered WRITEs may need, and less.
const ENOUGH: u64 = 100 << 20;
const LITTLE: u64 = 70 << 20;

/// Writes a block. Returns the status, and true if the server's answer was waited for.
fn write(world: &mut Smb2World, file: FileId, offset: u64) -> (u32, bool) {
    let start = world.now;
    let answer = world.ask(0, &messages::write(file, offset, &[7; 60_000]));
    (answer.header.status, world.round_trips(start) >= 1.0)
}

#[test]
fn full_disk_is_reported_by_the_write() {
    let mut world = world_with(0);
    world.server.told_room = LITTLE;
    world.server.disk = 100_000;
    // Nobody asks again about a file that is closed: its WRITEs report the error.
    for name in ["a", "b"] {
        let file = world.create(0, &Smb2CreateParameters::open(name));
        let statuses = [0, 60_000].map(|offset| write(&mut world, file, offset));
        world.ask(0, &messages::close(file));
        assert!(statuses.iter().all(|(_, is_waited)| *is_waited));
        assert_eq!(statuses[1].0, DISK_FULL, "{name}");
    }
    assert!(world.let_go.is_none());
}

#[test]
fn enough_room_lets_writes_be_answered() {
    let mut world = world_with(0);
    world.server.told_room = ENOUGH;
    for _ in 0..2 {
        let file = open(&mut world, 0);
        assert_eq!(write(&mut world, file, 0), (status::SUCCESS, false));
        world.ask(0, &messages::close(file));
        // What was known is old by then.
        world.run_for(Duration::from_secs(20));
    }
    assert_eq!(world.server.room_questions, 2);
}

#[test]
fn server_that_does_not_tell_its_room_answers_writes() {
    let mut world = world_with(0);
    world.server.refuses = Some((command::QUERY_INFO, status::NOT_SUPPORTED));
    let file = open(&mut world, 0);
    assert_eq!(write(&mut world, file, 0), (status::SUCCESS, true));
}

#[test]
fn room_that_others_use_up_ends_early_answers() {
    let mut world = world_with(0);
    let file = open(&mut world, 0);
    assert_eq!(write(&mut world, file, 0), (status::SUCCESS, false));
    world.server.told_room = LITTLE;
    world.run_for(Duration::from_secs(2));
    // Its question finds little room.
    assert_eq!(write(&mut world, file, 0), (status::SUCCESS, false));
    world.run_for(Duration::from_secs(1));
    world.server.disk = 0;
    assert_eq!(write(&mut world, file, 60_000), (DISK_FULL, true));
}

#[test]
fn own_writes_are_counted_until_the_next_question() {
    let mut world = world_with(0);
    world.server.told_room = ENOUGH;
    world.server.credits_max = 512;
    let file = open(&mut world, 0);
    let mut waited = Vec::new();
    for index in 0..1_000 {
        let stored = world.server.files["a"].len() as u64;
        world.server.told_room = ENOUGH - stored;
        let answer = write(&mut world, file, index * 60_000);
        assert_eq!(answer.0, status::SUCCESS);
        waited.push(answer.1);
    }
    // Some 28 MB are answered early but for a wait for each 8 MiB, and then those on the path.
    assert!(waited[..450].iter().filter(|is_waited| **is_waited).count() < 10);
    assert!(waited[850..].iter().all(|is_waited| *is_waited));
}

#[test]
fn refusal_for_want_of_room_ends_early_answers_for_a_minute() {
    let mut world = world_with(0);
    // A quota that the server does not tell.
    world.server.disk = 10_000;
    let file = open(&mut world, 0);
    assert_eq!(write(&mut world, file, 0), (status::SUCCESS, false));
    let answer = world.ask(0, &messages::close(file));
    assert_eq!(answer.header.status, DISK_FULL);
    let other = world.create(0, &Smb2CreateParameters::open("b"));
    assert_eq!(write(&mut world, other, 0), (DISK_FULL, true));
    world.run_for(Duration::from_secs(30));
    assert_eq!(write(&mut world, other, 0), (DISK_FULL, true));
    world.ask(0, &messages::close(other));
    world.server.disk = usize::MAX;
    world.run_for(Duration::from_secs(61));
    let file = open(&mut world, 0);
    assert_eq!(write(&mut world, file, 0), (status::SUCCESS, false));
}

#[test]
fn oplock_that_nothing_is_answered_under_is_given_back_at_once() {
    let mut world = world_with(0);
    let other = world.beside();
    let file = open(&mut world, 0);
    world.server.told_room = LITTLE;
    world.run_for(Duration::from_secs(2));
    write(&mut world, file, 0);
    world.run_for(Duration::from_secs(1));
    // The near half has stopped long ago.
    let start = world.now;
    let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
    assert_eq!(world.wait(other, wanted).header.status, status::SUCCESS);
    assert_eq!(world.round_trips(start), 0.0);
}
