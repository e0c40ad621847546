//! Names that programs look for behind the files that they open, and that are seldom there: the waits of
//! clients, and the answers that they get.

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters, Smb2Message};
use super::super::testing::server::NO_SUCH_FILE;
use super::super::testing::world::Smb2World;
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{command, flag, status};
use super::{contents, sealed, signed, world_with};

/// The CREATE of Windows' redirector for a file that is there.
fn opening(name: &str) -> Smb2CreateParameters<'_> {
    Smb2CreateParameters {
        access: 0x12_0089,
        disposition: 1,
        options: 0x60,
        ..Smb2CreateParameters::leased(name, name.as_bytes()[0])
    }
}

/// Its CREATE for a stream, without a lease.
fn stream(name: &str) -> Smb2CreateParameters<'_> {
    Smb2CreateParameters {
        lease: None,
        oplock: 0,
        ..opening(name)
    }
}

/// Opens a file, looks for its stream, and closes both. Returns the status of the second CREATE, and whether
/// its answer took no time.
fn open_and_look(world: &mut Smb2World, name: &str, pause: u64) -> (u32, bool) {
    let file = world.create(0, &opening(name));
    world.run_for(Duration::from_millis(pause));
    let path = format!("{name}:s");
    let start = world.now;
    let answer = world.ask(0, &stream(&path).request());
    let is_here = world.now == start;
    let status = answer.header.status;
    if status == status::SUCCESS {
        let other = CreateResponse::parse(&answer.body);
        world.ask(0, &messages::close(other.unwrap().file));
    }
    world.ask(0, &messages::close(file));
    world.run_for(Duration::from_secs(1));
    (status, is_here)
}

fn filled(mut world: Smb2World) -> Smb2World {
    for name in ["b", "c", "d"] {
        world.server.files.insert(name.to_owned(), contents(100));
    }
    world
}

#[test]
fn missing_stream_is_told_with_the_open() {
    let mut world = filled(world_with(1_000));
    assert_eq!(open_and_look(&mut world, "a", 0), (NO_SUCH_FILE, false));
    for name in ["b", "c", "a"] {
        assert_eq!(open_and_look(&mut world, name, 10), (NO_SUCH_FILE, true));
    }
    // No other client would see it made for longer.
    assert_eq!(open_and_look(&mut world, "b", 30), (NO_SUCH_FILE, false));
    world.server.files.insert("c:s".to_owned(), contents(10));
    assert_eq!(open_and_look(&mut world, "c", 10), (status::SUCCESS, false));
    assert_eq!(world.server.open_count(), 0);
    assert!(world.let_go.is_none());
}

#[test]
fn protected_client_is_told_too() {
    for way in signed::WAYS.into_iter().filter(|way| way.0 > 0x0202) {
        let mut world = filled(signed::world_of(way, 1_000));
        open_and_look(&mut world, "a", 0);
        assert_eq!(open_and_look(&mut world, "b", 0), (NO_SUCH_FILE, true));
        signed::assert_all_signed(&world);
    }
    for way in sealed::WAYS {
        let mut world = filled(sealed::world_of(way, 1_000));
        open_and_look(&mut world, "a", 0);
        assert_eq!(open_and_look(&mut world, "b", 0), (NO_SUCH_FILE, true));
        sealed::assert_all_sealed(&world);
    }
}

#[test]
fn stream_that_the_client_makes_is_there() {
    let mut world = filled(world_with(1_000));
    open_and_look(&mut world, "a", 0);
    let file = world.create(0, &opening("b"));
    let making = Smb2CreateParameters {
        disposition: 2,
        ..stream("b:s")
    };
    let made = world.send(0, &making.request());
    let looked = world.ask(0, &stream("b:s").request());
    assert_eq!(world.wait(0, made).header.status, status::SUCCESS);
    assert_eq!(looked.header.status, status::SUCCESS);
    world.ask(0, &messages::close(file));
    assert!(world.let_go.is_none());
}

/// Another client makes the stream after the nodes have looked for it, and before the client does.
#[test]
fn open_that_the_client_does_not_know_is_closed() {
    let mut world = filled(world_with(1_000));
    let other = world.beside();
    open_and_look(&mut world, "a", 0);
    let file = world.create(0, &opening("b"));
    let making = Smb2CreateParameters {
        disposition: 2,
        ..stream("b:s")
    };
    let made = world.create(other, &making);
    let looked = world.ask(0, &stream("b:s").request());
    assert_eq!(looked.header.status, NO_SUCH_FILE);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.open_count(), 2);
    assert_eq!(open_and_look(&mut world, "b", 0).0, status::SUCCESS);
    world.ask(other, &messages::close(made));
    world.ask(0, &messages::close(file));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.open_count(), 0);
    assert!(world.let_go.is_none());
}

/// Another client makes the stream after the nodes have looked for it, and this client learns of that.
#[test]
fn name_is_there_once_the_client_is_told_of_a_change() {
    let mut world = filled(world_with(1_000));
    let other = world.beside();
    let directory = world.create(0, &Smb2CreateParameters::directory(""));
    let notice = world.send(0, &messages::change_notify(directory));
    open_and_look(&mut world, "a", 0);
    let file = world.create(0, &opening("b"));
    let making = Smb2CreateParameters {
        disposition: 2,
        ..stream("b:s")
    };
    world.create(other, &making);
    // The server ends the request as it would with the change.
    world.cancel(0, notice);
    let start = world.now;
    world.wait(0, notice);
    assert!(world.now.since(start) < Duration::from_millis(250));
    let looked = world.ask(0, &stream("b:s").request());
    assert_eq!(looked.header.status, status::SUCCESS);
    world.ask(0, &messages::close(file));
    assert!(world.let_go.is_none());
}

/// The far half makes no requests ahead for a path that the server resolves by its distributed file system.
#[test]
fn name_of_a_distributed_file_system_is_not_looked_for() {
    let mut world = filled(world_with(1_000));
    for name in ["a", "b", "c"] {
        let dfs =
            |create: &Smb2CreateParameters<'_>| create.request().with_flags(flag::DFS_OPERATIONS);
        let before = world.server.count(0, command::CREATE);
        let answer = world.ask(0, &dfs(&opening(name)));
        let file = CreateResponse::parse(&answer.body).unwrap().file;
        let looked = world.ask(0, &dfs(&stream(&format!("{name}:s"))));
        assert_eq!(looked.header.status, NO_SUCH_FILE);
        world.ask(0, &messages::close(file));
        assert_eq!(world.server.count(0, command::CREATE) - before, 2);
    }
}

/// Programs ask for the name of each file that they make, which is no habit.
#[test]
fn name_in_a_directory_is_looked_for_once_two_have_missed_it() {
    let mut world = filled(world_with(1_000));
    world.server.directories.insert("x".to_owned());
    world.server.directories.insert("y".to_owned());
    world.server.directories.insert("z".to_owned());
    let mut looked_for = Vec::new();
    for name in ["x", "x", "y", "z"] {
        let before = world.server.count(0, command::CREATE);
        let folder = Smb2CreateParameters {
            disposition: 1,
            ..Smb2CreateParameters::directory(name)
        };
        let directory = world.create(0, &folder);
        world.run_for(Duration::from_millis(500));
        looked_for.push(world.server.count(0, command::CREATE) - before - 1);
        let path = format!("{name}\\desktop.ini");
        let answer = world.ask(0, &stream(&path).request());
        assert_eq!(answer.header.status, NO_SUCH_FILE);
        world.ask(0, &messages::close(directory));
    }
    assert_eq!(looked_for, [0, 0, 0, 1]);
}

/// Looks for a stream in one compound, as macOS' Finder does. Returns the statuses.
fn look_in_compound(world: &mut Smb2World, name: &str) -> Vec<u32> {
    let related = |request: Smb2Message| request.with_flags(flag::RELATED);
    let requests = [
        stream(name).request(),
        related(messages::query_length(FileId::RELATED)),
        related(messages::close(FileId::RELATED)),
    ];
    let ids = world.send_chain(0, &requests);
    let answers = ids.iter().map(|id| world.wait(0, *id));
    answers.map(|answer| answer.header.status).collect()
}

#[test]
fn compound_that_looks_in_vain_takes_no_round_trip() {
    let mut world = filled(world_with(1_000));
    let mut trips = Vec::new();
    for name in ["a", "b", "c"] {
        let start = world.now;
        let file = world.create(0, &opening(name));
        for suffix in [":info", ":more"] {
            let path = format!("{name}{suffix}");
            assert_eq!(look_in_compound(&mut world, &path), [NO_SUCH_FILE; 3]);
        }
        world.ask(0, &messages::close(file));
        trips.push(world.round_trips(start));
    }
    assert!(trips[0] >= 2.9 && trips[2] <= 1.01, "{trips:?}");
    world.server.files.insert("b:info".to_owned(), contents(10));
    let file = world.create(0, &opening("b"));
    assert_eq!(look_in_compound(&mut world, "b:info"), [status::SUCCESS; 3]);
    world.ask(0, &messages::close(file));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.open_count(), 0);
    assert!(world.let_go.is_none());
}

#[test]
fn names_are_not_looked_for_in_vain_for_long() {
    let mut world = filled(world_with(1_000));
    open_and_look(&mut world, "a", 0);
    let before = world.server.count(0, command::CREATE);
    for _ in 0..20 {
        let file = world.create(0, &opening("b"));
        world.ask(0, &messages::close(file));
    }
    let creates = world.server.count(0, command::CREATE) - before;
    assert!((21..=24).contains(&creates), "{creates}");
}
