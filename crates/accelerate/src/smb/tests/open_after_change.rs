//! Clients that rename and delete files and open others after it, as programs that save a document do: their waits,
//! and what other clients get.

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters, Smb2Message};
use super::super::testing::server::NO_SUCH_FILE;
use super::super::testing::world::{FAR, NEAR, Smb2World};
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{command, status};
use super::super::wire::lease::LeaseKey;
use super::{contents, sealed, signed, world_with};

/// DELETE and FILE_READ_ATTRIBUTES, as in Windows' requests to rename and delete.
const NAMES: u32 = 0x1_0080;
/// STATUS_SHARING_VIOLATION.
const SHARING_VIOLATION: u32 = 0xc000_0043;

/// The CREATE of Windows' redirector under a lease of this state, by a key of the file.
fn windows_open(name: &str, access: u32, state: u8) -> Smb2CreateParameters<'_> {
    let key = name.bytes().next().unwrap_or_default();
    Smb2CreateParameters {
        access,
        disposition: 1,
        context: Some(b"DHnQ"),
        lease: Some((LeaseKey([key; 16]), state)),
        ..Smb2CreateParameters::leased(name, key)
    }
}

/// Opens a name to change it, sends the change, and closes it.
fn change_name(world: &mut Smb2World, name: &str, change: impl Fn(FileId) -> Smb2Message) {
    let file = world.create(0, &windows_open(name, NAMES, 0));
    let changed = world.ask(0, &change(file));
    assert_eq!(changed.header.status, status::SUCCESS);
    let closed = world.ask(0, &messages::close(file));
    assert_eq!(closed.header.status, status::SUCCESS);
}

/// Saves the file "a" in the order of Word, through the open of the last save. Returns the next open.
fn save(world: &mut Smb2World, document: FileId, data: &[u8]) -> FileId {
    let create = Smb2CreateParameters {
        disposition: 2,
        ..windows_open("temporary", 0x103, 7)
    };
    let file = world.create(0, &create);
    world.ask(0, &messages::write(file, 0, data));
    world.ask(0, &messages::flush(file));
    world.ask(0, &messages::close_with_attributes(file));
    world.ask(0, &messages::close(document));
    change_name(world, "a", |file| messages::rename(file, "backup"));
    change_name(world, "temporary", |file| messages::rename(file, "a"));
    change_name(world, "backup", messages::delete);
    let again = world.create(0, &windows_open("a", 0x103, 7));
    assert_eq!(super::read(world, 0, again, 0, 50_000), data);
    again
}

/// The round trips of some saves, one after the other. The world must have the file "a".
fn saves(world: &mut Smb2World, count: usize) -> Vec<f64> {
    let mut document = world.create(0, &windows_open("a", 0x103, 7));
    let mut trips = Vec::new();
    for turn in 0..count {
        let mut data = contents(20_000);
        data[..8].copy_from_slice(&(turn as u64).to_le_bytes());
        let start = world.now;
        document = save(world, document, &data);
        trips.push(world.round_trips(start));
        world.run_for(Duration::from_secs(2));
        assert!(world.server.files.keys().eq(["a"]) && world.server.files["a"] == data);
    }
    world.ask(0, &messages::close(document));
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.server.open_count(), 0);
    assert!(world.let_go.is_none());
    trips
}

#[test]
fn next_names_of_a_save_are_opened_ahead() {
    let mut world = world_with(1_000);
    world.server.credits_max = 512;
    let trips = saves(&mut world, 4);
    // The CREATE of the new file, its FLUSH, the CREATE of the document to rename it, three changes of names, the
    // CLOSE that deletes, and the next open. The first save also waits for the CREATE that follows its first rename.
    assert!(trips[0] >= 8.9, "{trips:?}");
    assert!(trips[1..].iter().all(|trips| *trips <= 8.01), "{trips:?}");
}

#[test]
fn protected_saves_are_opened_ahead_too() {
    for way in signed::WAYS.into_iter().filter(|way| way.0 > 0x0202) {
        let mut world = signed::world_of(way, 1_000);
        world.server.credits_max = 512;
        let trips = saves(&mut world, 2);
        assert!(trips[1] <= 8.01, "{way:?}: {trips:?}");
        signed::assert_all_signed(&world);
    }
    for way in sealed::WAYS {
        let mut world = sealed::world_of(way, 1_000);
        world.server.credits_max = 512;
        let trips = saves(&mut world, 2);
        assert!(trips[1] <= 8.01, "{way:?}: {trips:?}");
        sealed::assert_all_sealed(&world);
    }
}

/// A world whose client has saved twice, and is about to open "temporary" as it has renamed "a"; the file of that
/// rename.
fn amid_save() -> Smb2World {
    let mut world = world_with(1_000);
    world.server.credits_max = 512;
    saves(&mut world, 2);
    world
        .server
        .files
        .insert("temporary".to_owned(), contents(500));
    let names = [("temporary", 0x103), ("a", 0x103)];
    for (name, access) in names.into_iter().rev() {
        let file = world.create(0, &windows_open(name, access, 7));
        world.ask(0, &messages::close(file));
    }
    change_name(&mut world, "a", |file| messages::rename(file, "backup"));
    world
}

/// Another client's open that shares the file with nobody.
fn alone(name: &str) -> Smb2CreateParameters<'_> {
    Smb2CreateParameters {
        access: 0x3,
        share: 0,
        disposition: 1,
        ..Smb2CreateParameters::open(name)
    }
}

#[test]
fn open_that_nobody_wants_refuses_nobody() {
    for pause in [0, 10, 60, 500] {
        let mut world = amid_save();
        world.server.breaks_handles = true;
        let other = world.beside();
        world.run_for(Duration::from_millis(pause));
        assert!(
            pause < 60 || world.server.open_count() == 1,
            "it is opened ahead"
        );
        let start = world.now;
        let answer = world.ask(other, &alone("temporary").request());
        assert_eq!(answer.header.status, status::SUCCESS, "after {pause} ms");
        assert!(world.round_trips(start) <= 1.01);
        let file = CreateResponse::parse(&answer.body).unwrap().file;
        // The client finds what it would without nodes.
        let refused = world.ask(0, &windows_open("temporary", NAMES, 0).request());
        assert_eq!(refused.header.status, SHARING_VIOLATION);
        world.ask(other, &messages::close(file));
        change_name(&mut world, "temporary", |file| messages::rename(file, "a"));
        world.run_for(Duration::from_secs(2));
        assert_eq!(world.server.open_count(), 0);
        assert!(world.let_go.is_none());
    }
}

/// The client opens a file without caching, so nobody waits for it.
#[test]
fn given_open_is_one_without_a_lease() {
    for cuts in [false, true] {
        let mut world = amid_save();
        let other = world.beside();
        let before = world.now;
        let answer = world.ask(0, &windows_open("temporary", NAMES, 0).request());
        assert_eq!(world.now, before, "it is opened ahead");
        let whole = [&[0; 64][..], &answer.body].concat();
        let lease = CreateResponse::lease(&whole)
            .unwrap()
            .expect("as requested");
        assert!(lease.key == LeaseKey([b't'; 16]) && lease.is_empty());
        let file = CreateResponse::parse(&answer.body).unwrap().file;
        if cuts {
            world.run_for(Duration::from_millis(200));
            world.is_cut = true;
        }
        let notices = world.clients[0].unasked.len();
        let start = world.now;
        let shared = Smb2CreateParameters {
            share: 0x7,
            ..alone("temporary")
        };
        let opened = world.ask(other, &shared.request());
        assert_eq!(opened.header.status, status::SUCCESS);
        let refused = world.ask(other, &alone("temporary").request());
        assert_eq!(refused.header.status, SHARING_VIOLATION);
        if cuts {
            assert_eq!(world.now, start, "nobody waits");
            world.is_cut = false;
        }
        let theirs = CreateResponse::parse(&opened.body).unwrap().file;
        world.ask(other, &messages::close(theirs));
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.clients[0].unasked.len(), notices, "it has no lease");
        let renamed = world.ask(0, &messages::rename(file, "a"));
        assert_eq!(renamed.header.status, status::SUCCESS);
        world.ask(0, &messages::close(file));
        world.run_for(Duration::from_secs(2));
        assert_eq!(world.server.open_count(), 0);
        assert!(world.let_go.is_none());
    }
}

#[test]
fn deleted_and_replaced_names_are_the_servers_to_judge() {
    let mut world = amid_save();
    let other = world.beside();
    let theirs = Smb2CreateParameters {
        access: NAMES,
        disposition: 1,
        ..Smb2CreateParameters::open("temporary")
    };
    let file = world.create(other, &theirs);
    world.ask(other, &messages::delete(file));
    world.ask(other, &messages::close(file));
    assert!(!world.server.files.contains_key("temporary"));
    let answer = world.ask(0, &windows_open("temporary", NAMES, 0).request());
    assert_eq!(answer.header.status, NO_SUCH_FILE);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.server.open_count(), 0);
    assert!(world.let_go.is_none());
}

#[test]
fn wrong_prediction_is_not_repeated() {
    let mut world = amid_save();
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.server.open_count(), 0);
    // The client does something else.
    let file = world.create(0, &windows_open("backup", 0x103, 7));
    world.ask(0, &messages::close(file));
    let before = world.server.count(0, command::CREATE);
    for (name, to) in [("backup", "c"), ("c", "backup"), ("backup", "d")] {
        change_name(&mut world, name, |file| messages::rename(file, to));
    }
    world.run_for(Duration::from_secs(2));
    let creates = world.server.count(0, command::CREATE) - before;
    assert!(creates <= 4, "{creates}");
    assert_eq!(world.server.open_count(), 0);
}

#[test]
fn death_of_a_node_leaves_no_open() {
    for node in [NEAR, FAR] {
        let mut world = amid_save();
        let other = world.beside();
        world.kill(node);
        world.run_for(Duration::from_secs(1));
        world.reset();
        world.run_for(Duration::from_secs(40));
        assert_eq!(world.server.open_count(), 0);
        let file = world.create(other, &alone("temporary"));
        world.ask(other, &messages::close(file));
    }
}
