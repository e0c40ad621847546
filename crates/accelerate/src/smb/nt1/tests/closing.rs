//! CLOSEs that are answered before the server has them (docs/decisions/0035).

use std::time::Duration;

use super::{ROUND_TRIP, contents, world};
use crate::smb::nt1::testing::server::INVALID_HANDLE;
use crate::smb::nt1::testing::world::Smb1World;
use crate::smb::nt1::testing::{
    Smb1CreateParameters, close, locking, read, set_size_by_name, unix_open_with, write,
};
use crate::smb::nt1::wire::WORDS_AT;
use crate::smb::nt1::wire::create::opened_file;
use crate::smb::nt1::wire::header::command;

/// Closes a file; true if that took no round trip.
fn closes_at_once(world: &mut Smb1World, request: &[u8]) -> bool {
    let time = world.takes(|world| assert_eq!(world.ask(0, request).header.status, 0));
    time < ROUND_TRIP / 2
}

#[test]
fn file_that_was_only_read_is_closed_at_once() {
    let mut world = world(10_000);
    world.server_takes = Duration::from_millis(5);
    let time = world.takes(|world| {
        for _ in 0..10 {
            let answer = world.ask(0, &unix_open_with("a", 2, 1));
            let file = opened_file(&answer.message).unwrap();
            assert!(world.ask(0, &read(file, 0, 12_288)).data() == contents(10_000));
            assert!(closes_at_once(world, &close(file)));
        }
    });
    assert!(
        time <= 10 * (ROUND_TRIP + Duration::from_millis(30)),
        "{time:?}"
    );
    world.run_for(ROUND_TRIP);
    assert_eq!(world.server.open_count(), 0);
}

#[test]
fn next_request_finds_the_file_closed() {
    let mut world = world(10_000);
    world.server_takes = Duration::from_millis(20);
    let file = world.open(0, "a");
    assert!(closes_at_once(&mut world, &close(file)));
    // A second CLOSE, and an open of the same file: the server has done the first one before both.
    assert_eq!(world.ask(0, &close(file)).header.status, INVALID_HANDLE);
    let again = world.open(0, "a");
    assert!(world.ask(0, &read(again, 0, 10_000)).data() == contents(10_000));
    let closed = world.server.heard.iter();
    assert_eq!(closed.filter(|heard| **heard == command::CLOSE).count(), 2);
}

#[test]
fn close_with_something_to_report_is_the_servers() {
    let acts: [fn(&mut Smb1World, u16); 3] = [
        |world, file| drop(world.ask(0, &write(file, 0, b"new").0)),
        |world, file| drop(world.ask(0, &locking(file, 0, 1))),
        |world, _| drop(world.ask(0, &set_size_by_name("b", 9))),
    ];
    for act in acts {
        let mut world = world(100);
        world.server.files.insert("b".to_owned(), contents(100));
        let file = world.open(0, "a");
        act(&mut world, file);
        assert!(!closes_at_once(&mut world, &close(file)));
    }
    // One that sets the time of the last change, and one of an open that is not served.
    let mut world = world(100);
    let file = world.open(0, "a");
    let mut request = close(file);
    request[WORDS_AT + 2..WORDS_AT + 6].copy_from_slice(&1_000_000_000u32.to_le_bytes());
    assert!(!closes_at_once(&mut world, &request));
    let create = Smb1CreateParameters {
        access: 0x80,
        ..Smb1CreateParameters::file("a")
    };
    let answer = world.ask(0, &create.message());
    let file = opened_file(&answer.message).unwrap();
    assert!(!closes_at_once(&mut world, &close(file)));
    let note = world.note().unwrap();
    assert!(
        note.starts_with("1 opens served; 1 opens of directories or pipes"),
        "{note}"
    );
}

#[test]
fn close_behind_an_unanswered_read_is_the_servers() {
    let mut world = world(2_000_000);
    let file = world.open(0, "a");
    world.send(0, &read(file, 1_000_000, 60_000));
    world.send(0, &close(file));
    assert!(world.wait(0).data() == &contents(2_000_000)[1_000_000..1_060_000]);
    assert_eq!(world.wait(0).header.status, 0);
    assert_eq!(world.server.open_count(), 0);
}
