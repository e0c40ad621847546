//! Tests of the file system queries as a share is opened; no client gets an outdated answer.

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::world::{Smb2Response, Smb2World};
use super::super::wire::FileId;
use super::super::wire::header::status;
use super::super::wire::query_info::information;
use super::{DELAY, contents, open, world_with};

const SIZE: u8 = 3;
const FULL_SIZE: u8 = 7;

/// FILE_READ_ATTRIBUTES.
const ATTRIBUTES: u32 = 0x80;

fn root(world: &mut Smb2World) -> FileId {
    world.create(
        0,
        &Smb2CreateParameters {
            access: ATTRIBUTES,
            ..Smb2CreateParameters::directory("")
        },
    )
}

/// Returns the used bytes, and the class of the query that the server received.
fn used(answer: &Smb2Response) -> (u64, Option<u8>) {
    assert_eq!(answer.header.status, status::SUCCESS);
    let found = information(&answer.body).unwrap();
    let used = u64::from_le_bytes(found[..8].try_into().unwrap());
    (used, found.last().copied())
}

/// Opens the root and sends the query. Returns the answer, and the round trips.
fn ask(world: &mut Smb2World, class: u8) -> ((u64, Option<u8>), f64) {
    let start = world.now;
    let root = root(world);
    let answer = world.ask(0, &messages::query_file_system(root, class));
    world.ask(0, &messages::close(root));
    (used(&answer), world.round_trips(start))
}

/// Sends the remaining messages to the server, which answers them.
fn settle(world: &mut Smb2World) {
    world.run_for(Duration::from_secs(2));
    assert!(world.let_go.is_none(), "{:?}", world.let_go);
}

#[test]
fn free_space_arrives_with_the_root_open() {
    let mut world = world_with(1_000);
    for _ in 0..3 {
        let (told, round_trips) = ask(&mut world, SIZE);
        assert_eq!(told, (1_000, Some(SIZE)));
        assert!(round_trips <= 1.01, "{round_trips}");
    }
    settle(&mut world);
}

#[test]
fn other_class_is_answered_then_predicted() {
    let mut world = world_with(1_000);
    let (told, round_trips) = ask(&mut world, FULL_SIZE);
    assert_eq!(told, (1_000, Some(FULL_SIZE)));
    assert!(round_trips > 1.9, "{round_trips}");
    let (told, round_trips) = ask(&mut world, FULL_SIZE);
    assert_eq!(told, (1_000, Some(FULL_SIZE)));
    assert!(round_trips <= 1.01, "{round_trips}");
    settle(&mut world);
}

#[test]
fn client_sees_its_write_after_the_open() {
    let mut world = world_with(1_000);
    let file = open(&mut world, 0);
    let root = root(&mut world);
    world.ask(0, &messages::write(file, 1_000, &contents(500)));
    let answer = world.ask(0, &messages::query_file_system(root, SIZE));
    assert_eq!(used(&answer).0, 1_500);
    settle(&mut world);
}

#[test]
fn client_sees_its_write_before_the_open() {
    let mut world = world_with(1_000);
    let file = open(&mut world, 0);
    world.send(0, &messages::write(file, 1_000, &contents(500)));
    let ((used, _), _) = ask(&mut world, SIZE);
    assert_eq!(used, 1_500);
    settle(&mut world);
}

#[test]
fn delayed_query_goes_to_the_server() {
    let mut world = world_with(1_000);
    let root = root(&mut world);
    world.run_for(Duration::from_millis(30));
    world.server.files.insert("b".to_owned(), contents(70));
    let start = world.now;
    let answer = world.ask(0, &messages::query_file_system(root, SIZE));
    assert_eq!(used(&answer).0, 1_070);
    assert!(world.round_trips(start) > 0.9);
    settle(&mut world);
}

#[test]
fn an_answer_is_given_once() {
    let mut world = world_with(1_000);
    let root = root(&mut world);
    world.ask(0, &messages::query_file_system(root, SIZE));
    let start = world.now;
    world.ask(0, &messages::query_file_system(root, SIZE));
    assert!(world.round_trips(start) > 0.9);
    settle(&mut world);
}

#[test]
fn clients_without_queries_cause_none() {
    let mut world = world_with(1_000);
    for _ in 0..5 {
        let root = root(&mut world);
        world.ask(0, &messages::close(root));
    }
    settle(&mut world);
    assert_eq!(world.server.file_system_questions, 1);
}

#[test]
fn mismatched_lengths_go_to_the_server() {
    for bytes in [8, 80, 81, 300] {
        let mut world = world_with(1_000);
        world.server.file_system_bytes = bytes;
        let (_, round_trips) = ask(&mut world, SIZE);
        assert_eq!(round_trips <= 1.01, bytes <= 80, "{bytes}");
        settle(&mut world);
    }
    let mut world = world_with(1_000);
    let root = root(&mut world);
    let mut question = messages::query_file_system(root, SIZE);
    question.body[4..8].copy_from_slice(&10u32.to_le_bytes());
    let start = world.now;
    world.ask(0, &question);
    assert!(world.round_trips(start) > 0.9);
    settle(&mut world);
}

#[test]
fn query_and_close_are_answered_in_order() {
    let mut world = Smb2World::new(DELAY);
    world.set_up(0);
    let root = root(&mut world);
    let question = world.send(0, &messages::query_file_system(root, SIZE));
    let close = world.send(0, &messages::close(root));
    assert_eq!(used(&world.wait(0, question)).0, 0);
    assert_eq!(world.wait(0, close).header.status, status::SUCCESS);
    settle(&mut world);
}
