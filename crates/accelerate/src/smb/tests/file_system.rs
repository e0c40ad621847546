//! What is asked about a share as it is opened, and that nobody is told what is out of date.

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

/// Bytes that are used, and the class that the server was asked for.
fn used(answer: &Smb2Response) -> (u64, Option<u8>) {
    assert_eq!(answer.header.status, status::SUCCESS);
    let found = information(&answer.body).unwrap();
    let used = u64::from_le_bytes(found[..8].try_into().unwrap());
    (used, found.last().copied())
}

/// Opens the root and asks; the answer, and round trips.
fn ask(world: &mut Smb2World, class: u8) -> ((u64, Option<u8>), f64) {
    let start = world.now;
    let root = root(world);
    let answer = world.ask(0, &messages::query_file_system(root, class));
    world.ask(0, &messages::close(root));
    (used(&answer), world.round_trips(start))
}

/// What is left comes to the server and is answered there.
fn settle(world: &mut Smb2World) {
    world.run_for(Duration::from_secs(2));
    assert!(world.let_go.is_none(), "{:?}", world.let_go);
}

#[test]
fn the_free_space_comes_with_the_open_of_the_root() {
    let mut world = world_with(1_000);
    for _ in 0..3 {
        let (told, round_trips) = ask(&mut world, SIZE);
        assert_eq!(told, (1_000, Some(SIZE)));
        assert!(round_trips <= 1.01, "{round_trips}");
    }
    settle(&mut world);
}

#[test]
fn a_client_that_asks_for_another_class_is_told_that_and_the_next_time_at_once() {
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
fn a_client_sees_what_it_wrote_after_the_open() {
    let mut world = world_with(1_000);
    let file = open(&mut world, 0);
    let root = root(&mut world);
    world.ask(0, &messages::write(file, 1_000, &contents(500)));
    let answer = world.ask(0, &messages::query_file_system(root, SIZE));
    assert_eq!(used(&answer).0, 1_500);
    settle(&mut world);
}

#[test]
fn a_client_sees_what_it_wrote_before_the_open() {
    let mut world = world_with(1_000);
    let file = open(&mut world, 0);
    world.send(0, &messages::write(file, 1_000, &contents(500)));
    let ((used, _), _) = ask(&mut world, SIZE);
    assert_eq!(used, 1_500);
    settle(&mut world);
}

#[test]
fn what_is_not_asked_for_at_once_is_the_servers_to_say() {
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
fn nothing_is_asked_of_clients_that_do_not_ask() {
    let mut world = world_with(1_000);
    for _ in 0..5 {
        let root = root(&mut world);
        world.ask(0, &messages::close(root));
    }
    settle(&mut world);
    assert_eq!(world.server.file_system_questions, 1);
}

#[test]
fn long_answers_and_answers_for_short_questions_are_the_servers() {
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
fn a_question_and_a_close_at_once_are_answered_in_order() {
    let mut world = Smb2World::new(DELAY);
    world.set_up(0);
    let root = root(&mut world);
    let question = world.send(0, &messages::query_file_system(root, SIZE));
    let close = world.send(0, &messages::close(root));
    assert_eq!(used(&world.wait(0, question)).0, 0);
    assert_eq!(world.wait(0, close).header.status, status::SUCCESS);
    settle(&mut world);
}
