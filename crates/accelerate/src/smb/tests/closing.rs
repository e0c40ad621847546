//! CLOSE before the server has closed: its time, and that no client sees the difference.

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters, Smb2Message};
use super::super::testing::world::Smb2World;
use super::super::wire::FileId;
use super::super::wire::header::{command, status};
use super::{open, read, world_with};

/// Closes with this request; how many round trips the client waited.
fn close(world: &mut Smb2World, request: &Smb2Message) -> f64 {
    let start = world.now;
    let answer = world.ask(0, request);
    assert_eq!(answer.header.status, status::SUCCESS);
    assert_eq!(answer.body.len(), 60);
    world.round_trips(start)
}

#[test]
fn safe_close_is_answered_at_once() {
    let mut world = world_with(10_000);
    for create in [
        Smb2CreateParameters::open("a"),
        Smb2CreateParameters::directory(""),
        // For attributes.
        Smb2CreateParameters {
            access: 0x80,
            ..Smb2CreateParameters::open("a")
        },
    ] {
        let before = world.server.count(0, command::CLOSE);
        let file = world.create(0, &create);
        world.run_for(Duration::from_secs(1));
        assert!(
            close(&mut world, &messages::close(file)) < 0.01,
            "{create:?}"
        );
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.server.count(0, command::CLOSE), before + 1);
    }
    assert!(world.let_go.is_none());
}

#[test]
fn a_close_that_tells_something_is_the_servers() {
    let cases: [fn(&mut Smb2World, FileId) -> Smb2Message; 6] = [
        |_, file| messages::close_with_attributes(file),
        |world, file| {
            world.ask(0, &messages::write(file, 0, b"changed"));
            messages::close(file)
        },
        |world, file| {
            world.ask(0, &messages::set_end(file, 3));
            messages::close(file)
        },
        |world, file| {
            world.ask(0, &messages::lock(file));
            messages::close(file)
        },
        // Its answer comes with the CLOSE.
        |world, file| {
            world.send(0, &messages::change_notify(file));
            messages::close(file)
        },
        // Nothing was heard for longer than licences last.
        |world, file| {
            world.run_for(Duration::from_secs(20));
            messages::close(file)
        },
    ];
    for (index, case) in cases.into_iter().enumerate() {
        let mut world = world_with(10_000);
        let file = open(&mut world, 0);
        world.run_for(Duration::from_secs(1));
        let request = case(&mut world, file);
        assert!(close(&mut world, &request) > 0.99, "case {index}");
    }
}

#[test]
fn nothing_overtakes_a_close_that_was_answered() {
    let mut world = world_with(10_000);
    let file = open(&mut world, 0);
    world.server.holds_closes = true;
    assert!(close(&mut world, &messages::close(file)) < 0.01);
    let id = world.send(0, &Smb2CreateParameters::open("a").request());
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.server.count(0, command::CREATE), 1);
    world.server.do_held_closes();
    let answer = world.wait(0, id);
    assert_eq!(answer.header.status, status::SUCCESS);
}

#[test]
fn thousand_small_files_wait_one_round_trip_each() {
    let mut world = world_with(10_000);
    let start = world.now;
    for _ in 0..1_000 {
        let file = open(&mut world, 0);
        assert_eq!(read(&mut world, 0, file, 0, 10_000).len(), 10_000);
        world.ask(0, &messages::close(file));
    }
    assert!(world.round_trips(start) <= 1_001.0);
}

#[test]
fn small_file_is_written_in_two_round_trips() {
    let mut world = world_with(0);
    let start = world.now;
    for _ in 0..100 {
        let file = open(&mut world, 0);
        world.ask(0, &messages::write(file, 0, &[7; 10_000]));
        world.ask(0, &messages::close(file));
    }
    assert!(world.round_trips(start) <= 201.0);
    assert_eq!(world.server.files["a"], [7; 10_000]);
}
