//! Requests in the form of Windows' redirector, as office programs cause them: the waits of clients, and
//! the effects at the server.

use std::time::Duration;

use super::super::frames::{COMPOUNDS, HalfFrame};
use super::super::testing::messages::{self, Smb2CreateParameters, Smb2Message};
use super::super::testing::server::{ACCESS_DENIED, NO_SUCH_FILE};
use super::super::testing::world::{FAR, Smb2World};
use super::super::wire::FileId;
use super::super::wire::header::{command, status};
use super::super::wire::lease::LeaseKey;
use super::super::wire::query_info::InformationQuestion;
use super::super::{DurablePolicy, SmbSettings};
use super::leases::is_answered_here;
use super::{DELAY, contents};
use crate::AcceleratorInput;

/// DELETE and FILE_READ_ATTRIBUTES, as in Windows' requests to rename and delete.
const NAMES: u32 = 0x1_0080;

fn world_of(durable: DurablePolicy) -> Smb2World {
    let settings = SmbSettings {
        durable,
        ..SmbSettings::STRICT
    };
    let mut world = Smb2World::with_settings(DELAY, settings);
    world.server.grants_durable = true;
    world.server.credits_max = 512;
    world.server.files.insert("a".to_owned(), contents(100));
    world.set_up(0);
    world
}

/// The CREATE of Windows' redirector: under a lease of this state, with a durable handle.
fn windows_open(name: &str, access: u32, state: u8) -> Smb2CreateParameters<'_> {
    let key = name.bytes().next().unwrap_or_default();
    Smb2CreateParameters {
        access,
        disposition: 1,
        context: Some(b"DH2Q"),
        lease: Some((LeaseKey([key; 16]), state)),
        ..Smb2CreateParameters::leased(name, key)
    }
}

/// Opens a name to change it, sends the change, and closes it; the round trips.
fn change_name(world: &mut Smb2World, name: &str, change: impl Fn(FileId) -> Smb2Message) -> f64 {
    let start = world.now;
    let file = world.create(0, &windows_open(name, NAMES, 0));
    let changed = world.ask(0, &change(file));
    assert_eq!(changed.header.status, status::SUCCESS);
    let closed = world.ask(0, &messages::close(file));
    assert_eq!(closed.header.status, status::SUCCESS);
    world.round_trips(start)
}

#[test]
fn renames_take_two_round_trips() {
    let mut world = world_of(DurablePolicy::Decline);
    let renamed = change_name(&mut world, "a", |file| messages::rename(file, "b"));
    assert!(renamed <= 2.01, "{renamed}");
    // The next request finds what the CLOSE has reported.
    let answer = world.ask(0, &windows_open("a", NAMES, 0).request());
    assert_eq!(answer.header.status, NO_SUCH_FILE);
    let deleted = change_name(&mut world, "b", messages::delete);
    assert!(deleted <= 3.01, "{deleted}");
    // Every client finds the file gone once the CLOSE is answered.
    assert!(!world.server.files.contains_key("b"));
    let answer = world.ask(0, &windows_open("b", NAMES, 0).request());
    assert_eq!(answer.header.status, NO_SUCH_FILE);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.open_count(), 0);
    assert_eq!(world.server.asked_durable, 0);
    assert!(world.let_go.is_none());
}

#[test]
fn close_waits_for_unconfirmed_names() {
    let mut world = world_of(DurablePolicy::Decline);
    let file = world.create(0, &windows_open("a", NAMES, 0));
    world.run_for(Duration::from_secs(1));
    let renamed = world.send(0, &messages::rename(file, "b"));
    assert!(!is_answered_here(&mut world, &messages::close(file)));
    assert_eq!(world.wait(0, renamed).header.status, status::SUCCESS);
    // What follows a change besides that of the name is the server's to close.
    let file = world.create(0, &windows_open("b", NAMES, 0));
    world.ask(0, &messages::lock(file));
    assert!(!is_answered_here(&mut world, &messages::close(file)));
}

#[test]
fn refused_name_is_the_servers_answer() {
    let mut world = world_of(DurablePolicy::Decline);
    world.server.files.insert("b".to_owned(), contents(10));
    let file = world.create(0, &windows_open("a", NAMES, 0));
    let answer = world.ask(0, &messages::rename(file, "b"));
    assert_ne!(answer.header.status, status::SUCCESS);
    assert!(is_answered_here(&mut world, &messages::close(file)));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.files["a"], contents(100));
}

#[test]
fn kept_durable_names_close_at_the_server() {
    let mut world = world_of(DurablePolicy::Keep);
    let file = world.create(0, &windows_open("a", NAMES, 0));
    world.run_for(Duration::from_secs(1));
    assert!(!is_answered_here(&mut world, &messages::close(file)));
}

#[test]
fn attributes_open_keeps_the_files_licence() {
    let mut world = world_of(DurablePolicy::Decline);
    let file = world.create(0, &windows_open("a", 0x103, 7));
    world.run_for(Duration::from_secs(1));
    world.ask(0, &messages::write(file, 0, b"early"));
    let other = world.create(0, &windows_open("a", 0x80, 7));
    assert!(is_answered_here(&mut world, &messages::close(other)));
    assert!(is_answered_here(
        &mut world,
        &messages::write(file, 5, b"and later")
    ));
}

#[test]
fn allocation_is_answered_before_the_server() {
    let mut world = world_of(DurablePolicy::Decline);
    let file = world.create(0, &windows_open("a", 0x103, 7));
    world.run_for(Duration::from_secs(1));
    for bytes in [4_096, 8_192, 50] {
        assert!(is_answered_here(
            &mut world,
            &messages::set_allocation(file, bytes)
        ));
    }
    // It truncates, and no READ ahead from before is used.
    assert_eq!(super::read(&mut world, 0, file, 0, 1_000), contents(50));
    // A length that stays as it was is lost.
    world.server.refuses = Some((command::SET_INFO, ACCESS_DENIED));
    assert!(is_answered_here(
        &mut world,
        &messages::set_allocation(file, 49)
    ));
    for request in [messages::flush(file), messages::close(file)] {
        assert_eq!(world.ask(0, &request).header.status, ACCESS_DENIED);
    }
}

/// Some file systems refuse requests for room. Direct clients then write all the same.
#[test]
fn refused_room_loses_nothing() {
    let mut world = world_of(DurablePolicy::Decline);
    let file = world.create(0, &windows_open("a", 0x103, 7));
    world.run_for(Duration::from_secs(1));
    let first = messages::write(file, 100, &[7; 100]);
    assert!(is_answered_here(&mut world, &first));
    world.server.refuses = Some((command::SET_INFO, ACCESS_DENIED));
    assert!(is_answered_here(
        &mut world,
        &messages::set_allocation(file, 200)
    ));
    world.run_for(Duration::from_secs(1));
    assert!(world.server.refuses.is_none());
    // It has kept no promise of room: from now on the server answers.
    let write = messages::write(file, 200, &[8; 50]);
    assert!(!is_answered_here(&mut world, &write));
    let room = messages::set_allocation(file, 300);
    assert!(!is_answered_here(&mut world, &room));
    for request in [messages::flush(file), messages::close(file)] {
        assert_eq!(world.ask(0, &request).header.status, status::SUCCESS);
    }
    let wanted = [&contents(100)[..], &[7; 100], &[8; 50]].concat();
    assert_eq!(world.server.files["a"], wanted);
}

/// Windows' Explorer opens pictures so: with FILE_OPEN_REPARSE_POINT.
#[test]
fn explorers_opens_are_served() {
    let mut world = world_of(DurablePolicy::Decline);
    for name in ["b", "c"] {
        world
            .server
            .files
            .insert(name.to_owned(), contents(150_000));
    }
    let mut trips = Vec::new();
    for name in ["b", "c", "b"] {
        let start = world.now;
        let create = Smb2CreateParameters {
            options: 0x20_0064,
            ..windows_open(name, 0x89, 7)
        };
        let file = world.create(0, &create);
        world.run_for(Duration::from_millis(10));
        for offset in [0, 32_768] {
            let wanted = contents(150_000)[offset..offset + 32_768].to_vec();
            let got = super::read(&mut world, 0, file, offset as u64, 32_768);
            assert!(got == wanted, "{name} at {offset}");
        }
        world.ask(0, &messages::close(file));
        trips.push(world.round_trips(start));
    }
    assert!(trips.iter().all(|trips| *trips <= 1.2), "{trips:?}");
    // A link leads to other files, which its lease does not protect.
    world.server.links.insert("a".to_owned());
    let create = Smb2CreateParameters {
        options: 0x20_0064,
        ..windows_open("a", 0x89, 7)
    };
    let file = world.create(0, &create);
    world.run_for(Duration::from_secs(1));
    assert!(!is_answered_here(&mut world, &messages::read(file, 0, 50)));
}

#[test]
fn earlier_near_half_gets_earlier_licences() {
    let mut world = Smb2World::new(DELAY);
    let earlier = HalfFrame::Speaks { version: COMPOUNDS };
    world.run_for(Duration::from_secs(1));
    world.input(FAR, AcceleratorInput::Wan(earlier.emit()));
    world.server.files.insert("a".to_owned(), contents(100));
    world.set_up(0);
    let file = world.create(0, &windows_open("a", 0x103, 7));
    world.run_for(Duration::from_secs(1));
    assert!(!is_answered_here(
        &mut world,
        &messages::set_allocation(file, 5)
    ));
    assert!(is_answered_here(&mut world, &messages::set_end(file, 5)));
    let other = world.create(0, &windows_open("a", NAMES, 0));
    assert!(!is_answered_here(&mut world, &messages::close(other)));
}

/// Reads a document as a program does that unpacks it: the start, the end, and the rest. Returns the round trips.
fn unpack(world: &mut Smb2World, name: &str, pause: u64) -> f64 {
    let whole = world.server.files[name].clone();
    let file = world.create(0, &windows_open(name, 0x103, 7));
    // Meanwhile it looks at something else.
    world.run_for(Duration::from_millis(pause));
    let start = world.now;
    let pieces: Vec<usize> = (0..whole.len()).step_by(32_768).collect();
    let middle = &pieces[1..pieces.len() - 1];
    for at in [&pieces[..1], &pieces[pieces.len() - 1..], middle].concat() {
        let wanted = &whole[at..whole.len().min(at + 32_768)];
        let got = super::read(world, 0, file, at as u64, 32_768);
        assert!(got == wanted, "{name} at {at}");
    }
    let trips = world.round_trips(start);
    world.ask(0, &messages::close(file));
    trips
}

#[test]
fn documents_end_is_read_with_the_open() {
    let mut world = world_of(DurablePolicy::Decline);
    for (name, length) in [("b", 200_000), ("c", 210_000), ("d", 300_000)] {
        world.server.files.insert(name.to_owned(), contents(length));
    }
    let first = unpack(&mut world, "b", 100);
    assert!(first >= 1.99, "{first}");
    for name in ["c", "d", "b"] {
        let trips = unpack(&mut world, name, 100);
        assert!(trips <= 1.01, "{name}: {trips}");
    }
    assert!(world.let_go.is_none());
}

/// A program that reads before it asks gets its answers behind the data, and so within their time.
#[test]
fn questions_follow_the_first_data() {
    let mut world = world_of(DurablePolicy::Decline);
    for name in ["b", "c", "d"] {
        world
            .server
            .files
            .insert(name.to_owned(), contents(150_000));
    }
    // One after the other, as data on a path takes its time.
    world.server_takes = Duration::from_millis(12);
    let mut trips = Vec::new();
    for name in ["b", "c", "d"] {
        let file = world.create(0, &windows_open(name, 0x89, 7));
        let start = world.now;
        super::read(&mut world, 0, file, 0, 32_768);
        let rights = InformationQuestion {
            kind: 3,
            class: 0,
            additional: 7,
        };
        world.ask(0, &messages::query_information(file, rights));
        super::read(&mut world, 0, file, 117_232, 32_768);
        world.run_for(Duration::from_millis(15));
        let path = format!("{name}:Zone");
        let look = Smb2CreateParameters {
            lease: Some((LeaseKey([b'Z'; 16]), 7)),
            ..windows_open(&path, 0x89, 7)
        };
        let looked = world.ask(0, &look.request());
        assert_eq!(looked.header.status, NO_SUCH_FILE);
        trips.push(world.round_trips(start));
        world.ask(0, &messages::close(file));
        world.run_for(Duration::from_secs(1));
    }
    assert!(trips[0] >= 2.9, "{trips:?}");
    assert!(trips[1..].iter().all(|trips| *trips <= 0.7), "{trips:?}");
    assert!(world.let_go.is_none());
}

/// Saves as Word does, without its questions for attributes: docs/guides/smb.md names the sources.
#[test]
fn word_save_takes_ten_round_trips() {
    let mut world = world_of(DurablePolicy::Decline);
    let data = contents(200_000);
    let document = world.create(0, &windows_open("a", 0x103, 7));
    let start = world.now;
    let create = Smb2CreateParameters {
        disposition: 2,
        ..windows_open("temporary", 0x103, 7)
    };
    let file = world.create(0, &create);
    for part in 1..=5 {
        world.ask(0, &messages::set_allocation(file, 40_000 * part));
    }
    for (block, piece) in data.chunks(65_536).enumerate() {
        world.ask(0, &messages::write(file, (block * 65_536) as u64, piece));
    }
    world.ask(0, &messages::flush(file));
    world.ask(0, &messages::close_with_attributes(file));
    world.ask(0, &messages::close(document));
    change_name(&mut world, "a", |file| messages::rename(file, "backup"));
    change_name(&mut world, "temporary", |file| messages::rename(file, "a"));
    change_name(&mut world, "backup", messages::delete);
    let again = world.create(0, &windows_open("a", 0x103, 7));
    assert_eq!(super::read(&mut world, 0, again, 0, 50_000), data[..50_000]);
    // The client waits 24 times: five CREATEs, three changes of names, a FLUSH and the CLOSE that deletes cost a round trip.
    let round_trips = world.round_trips(start);
    assert!(round_trips <= 10.01, "{round_trips}");
    world.ask(0, &messages::close(again));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.open_count(), 0);
    assert!(world.server.files.keys().eq(["a"]) && world.server.files["a"] == data);
}
