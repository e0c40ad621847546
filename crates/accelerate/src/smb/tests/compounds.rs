//! Compounds that open a directory and list it, as the Linux kernel's client and Windows send them:
//! the waits of clients, and the names that they get.

use std::time::Duration;

use super::super::frames::{HalfFrame, TAKES_LEASES};
use super::super::testing::messages::{self, Smb2CreateParameters, Smb2Message};
use super::super::testing::world::{FAR, Smb2Response, Smb2World};
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::directory::entries;
use super::super::wire::header::{command, flag, status};
use super::DELAY;
use crate::AcceleratorInput;

/// The length of the kernel client's requests for names: its buffer of 16 KiB without room for the
/// answers to CREATE and CLOSE.
const KERNEL_LENGTH: u32 = 15_380;
/// The length that Windows requests.
const WINDOWS_LENGTH: u32 = 65_536;

fn world_with(names: usize) -> Smb2World {
    let mut world = Smb2World::new(DELAY);
    for name in 0..names {
        let name = format!("file-{name:05}");
        world.server.files.insert(name, Vec::new());
    }
    for name in 0..20 {
        world.server.directories.insert(format!("directory-{name}"));
    }
    world.server.credits_max = 512;
    world.set_up(0);
    world
}

/// The CREATE of the kernel's client: it does not ask for a directory.
fn kernel_create(name: &str) -> Smb2Message {
    let create = Smb2CreateParameters {
        access: 0x81,
        disposition: 1,
        options: 0,
        ..Smb2CreateParameters::open(name)
    };
    create.request()
}

fn related(request: Smb2Message) -> Smb2Message {
    request.with_flags(flag::RELATED)
}

fn names(answer: &Smb2Response) -> usize {
    if answer.header.status == status::NO_MORE_FILES {
        return 0;
    }
    assert_eq!(answer.header.status, status::SUCCESS);
    let mut rest = entries(&answer.body).unwrap();
    let mut count = 0;
    while !rest.is_empty() {
        let next = u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
        rest = &rest[next..];
        count += 1;
    }
    count
}

/// Opens a directory and requests its first names `queries` times in one compound, lists the rest and
/// closes it; the number of names.
fn list_directory(
    world: &mut Smb2World,
    create: Smb2Message,
    length: u32,
    queries: usize,
) -> usize {
    let list = related(messages::list(FileId::RELATED, 0, length));
    let mut compound = vec![create];
    compound.extend(std::iter::repeat_n(list, queries));
    let ids = world.send_chain(0, &compound);
    let file = CreateResponse::parse(&world.wait(0, ids[0]).body)
        .unwrap()
        .file;
    let mut count = 0;
    let mut is_complete = false;
    for id in &ids[1..] {
        let some = names(&world.wait(0, *id));
        is_complete |= some == 0;
        count += some;
    }
    while !is_complete {
        let some = names(&world.ask(0, &messages::list(file, 0, length)));
        is_complete = some == 0;
        count += some;
    }
    let closed = world.ask(0, &messages::close(file));
    assert_eq!(closed.header.status, status::SUCCESS);
    count
}

#[test]
fn kernel_walk_takes_one_round_trip_each() {
    for files in [0, 5, 1_000] {
        let mut world = world_with(files);
        let start = world.now;
        for directory in 0..20 {
            let create = kernel_create(&format!("directory-{directory}"));
            assert_eq!(list_directory(&mut world, create, KERNEL_LENGTH, 1), files);
        }
        let round_trips = world.round_trips(start) / 20.0;
        assert!(round_trips <= 1.01, "{files} files: {round_trips}");
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.server.open_count(), 0);
        assert!(world.let_go.is_none());
    }
}

#[test]
fn explorer_walk_takes_one_round_trip_each() {
    for files in [0, 5, 1_000] {
        let mut world = world_with(files);
        let start = world.now;
        for directory in 0..20 {
            let name = format!("directory-{directory}");
            let create = Smb2CreateParameters {
                context: Some(b"MxAc"),
                ..Smb2CreateParameters::directory(&name)
            };
            let count = list_directory(&mut world, create.request(), WINDOWS_LENGTH, 2);
            assert_eq!(count, files);
        }
        let round_trips = world.round_trips(start) / 20.0;
        assert!(round_trips <= 1.01, "{files} files: {round_trips}");
        assert!(world.let_go.is_none());
    }
}

#[test]
fn absent_directory_is_not_listed_ahead() {
    let mut world = world_with(3);
    let list = related(messages::list(FileId::RELATED, 0, KERNEL_LENGTH));
    let ids = world.send_chain(0, &[kernel_create("absent"), list]);
    assert_ne!(world.wait(0, ids[0]).header.status, status::SUCCESS);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.count(0, command::QUERY_DIRECTORY), 1);
    assert!(world.let_go.is_none());
}

#[test]
fn names_changed_between_compounds_are_seen() {
    let mut world = world_with(10);
    let count = |world: &mut Smb2World| {
        list_directory(world, kernel_create("directory-1"), KERNEL_LENGTH, 1)
    };
    assert_eq!(count(&mut world), 10);
    let file = world.create(0, &Smb2CreateParameters::open("made"));
    assert_eq!(count(&mut world), 11);
    world.ask(0, &messages::delete(file));
    world.ask(0, &messages::close(file));
    assert_eq!(count(&mut world), 10);
}

/// An earlier release's near half answers no request for less than 16 KiB.
#[test]
fn earlier_near_half_lists_without_prefetched_names() {
    let mut world = Smb2World::new(DELAY);
    let earlier = HalfFrame::Speaks {
        version: TAKES_LEASES,
    };
    world.input(FAR, AcceleratorInput::Wan(earlier.emit()));
    world.server.directories.insert("directory-1".to_owned());
    for name in 0..1_000 {
        let name = format!("file-{name:05}");
        world.server.files.insert(name, Vec::new());
    }
    world.run_for(Duration::from_secs(1));
    world.input(FAR, AcceleratorInput::Wan(earlier.emit()));
    world.set_up(0);
    let count = list_directory(&mut world, kernel_create("directory-1"), KERNEL_LENGTH, 1);
    assert_eq!(count, 1_000);
    // No answer was read ahead: the near half could not use it.
    let asked = 1_000 / 153 + 2;
    assert_eq!(world.server.count(0, command::QUERY_DIRECTORY), asked);
    assert!(world.let_go.is_none());
}
