//! Files that are opened ahead of a client that goes through them: its waits, and that no client
//! gets an answer or refusal that differs from one without the pair.

use std::sync::Arc;
use std::time::Duration;

use super::super::config::{FRESH_FOR, OPENS_AHEAD_MAX};
use super::super::testing::login::ANNA;
use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::{FULL, HistoryEvent, NO_SUCH_FILE, SigningPolicy};
use super::super::testing::world::Smb2World;
use super::super::wire::FileId;
use super::super::wire::header::{command, status};
use super::super::{ConsistencyMode, SmbSettings};
use super::{DELAY, contents};
use crate::credentials::DelegatedAccounts;
use crate::smb::keys::SigningAlgorithm;

const STALENESS: Duration = Duration::from_secs(1);
const LENGTH: usize = 10_000;
/// For how long a breaker waits where the path is cut, as docs/decisions/0029 states it.
const CONFIRM_WITHIN: Duration = Duration::from_secs(12);

fn name(index: usize) -> String {
    format!("file-{index:04}")
}

/// A world whose client is connected, and has listed a directory of so many files.
fn world_with(files: usize) -> Smb2World {
    world_of(
        files,
        SmbSettings {
            consistency: ConsistencyMode::Relaxed {
                staleness: STALENESS,
            },
            ..SmbSettings::STRICT
        },
    )
}

fn world_of(files: usize, settings: SmbSettings) -> Smb2World {
    let mut world = Smb2World::with_settings(DELAY, settings);
    fill(&mut world, files);
    world.set_up(0);
    list(&mut world);
    world
}

fn fill(world: &mut Smb2World, files: usize) {
    for index in 0..files {
        let mut of = contents(LENGTH);
        of[..8].copy_from_slice(&(index as u64).to_le_bytes());
        world.server.files.insert(name(index), of);
    }
    world.server.credits_max = 512;
}

fn list(world: &mut Smb2World) {
    let directory = world.create(0, &Smb2CreateParameters::directory(""));
    loop {
        let mut list = messages::list(directory, 0, 65_536);
        list.body[2] = FULL;
        if world.ask(0, &list).header.status != status::SUCCESS {
            break;
        }
    }
    world.ask(0, &messages::close(directory));
}

fn to_read(name: &str) -> Smb2CreateParameters<'_> {
    Smb2CreateParameters {
        access: 0x1,
        disposition: 1,
        ..Smb2CreateParameters::open(name)
    }
}

fn open(world: &mut Smb2World, who: usize, index: usize) -> FileId {
    world.create(who, &to_read(&name(index)))
}

/// Opens, reads and closes a file. Returns its contents.
fn read(world: &mut Smb2World, index: usize) -> Vec<u8> {
    let file = open(world, 0, index);
    let data = super::read(world, 0, file, 0, LENGTH as u32);
    let answer = world.ask(0, &messages::close(file));
    assert_eq!(answer.header.status, status::SUCCESS);
    data
}

fn read_all(world: &mut Smb2World, files: std::ops::Range<usize>) {
    for index in files {
        let wanted = world.server.files[&name(index)].clone();
        assert!(read(world, index) == wanted, "file {index}");
    }
}

#[test]
fn small_files_wait_a_fifth_round_trip() {
    let mut world = world_with(1_000);
    let start = world.now;
    read_all(&mut world, 0..1_000);
    let each = world.round_trips(start) / 1_000.0;
    // The bar is 0.2; it is the window of opens that doubles, and then the path.
    assert!(each <= 0.02, "{each}");
    // No file is opened twice, nor left open.
    world.run_for(2 * STALENESS);
    assert_eq!(world.server.count(0, command::CREATE), 1_001);
    assert_eq!(world.server.open_count(), 0);
    assert!(world.let_go.is_none());
}

#[test]
fn signed_small_files_also_open_ahead() {
    for signs_little in [false, true] {
        let accounts = DelegatedAccounts::parse("CORP\\anna:password:secret").expect("it is one");
        let settings = SmbSettings {
            accounts: Some(Arc::new(accounts)),
            consistency: ConsistencyMode::Relaxed {
                staleness: STALENESS,
            },
            ..SmbSettings::STRICT
        };
        let mut world = Smb2World::with_settings(DELAY, settings);
        world.server.dialect = 0x0311;
        world.server.signing = Some(SigningPolicy {
            login: ANNA,
            algorithm: SigningAlgorithm::AesCmac,
            is_required: !signs_little,
        });
        fill(&mut world, 200);
        world.set_up(0);
        world.clients[0].signs_little = signs_little;
        list(&mut world);
        let start = world.now;
        read_all(&mut world, 0..200);
        let each = world.round_trips(start) / 200.0;
        assert!(each <= 0.1, "{each}");
        assert!(world.let_go.is_none());
        assert_eq!((world.clients[0].forged, world.server.refused), (0, 0));
    }
}

#[test]
fn under_the_strict_policy_nothing_is_opened_ahead() {
    let mut world = world_of(20, SmbSettings::STRICT);
    for index in 0..5 {
        let file = open(&mut world, 0, index);
        world.ask(0, &messages::close(file));
    }
    world.run_for(Duration::from_secs(3));
    assert_eq!(world.server.count(0, command::CREATE), 6);
}

/// The server makes an open ahead wait until another client gives its oplock back, and the client's requests do
/// not wait with it.
#[test]
fn open_ahead_that_waits_for_another_client_holds_up_no_request() {
    let mut world = world_with(100);
    world.beside();
    world.server.keep_history();
    let held_name = name(5);
    let held = Smb2CreateParameters {
        oplock: 9,
        ..to_read(&held_name)
    };
    world.create(1, &held);
    read_all(&mut world, 0..3);
    let file = open(&mut world, 0, 3);
    super::read(&mut world, 0, file, 0, 4_000);
    world.run_for(Duration::from_secs(1));
    let waits = world.server.history.as_ref().unwrap().iter();
    let waits =
        waits.filter(|happened| matches!(happened, HistoryEvent::Waits { connection: 0, .. }));
    assert!(waits.count() > 0, "an open ahead waits");
    let start = world.now;
    let answer = world.ask(0, &messages::query_position(file));
    assert_eq!(answer.body[8..16], 4_000u64.to_le_bytes());
    assert!(world.now.since(start) <= 3 * DELAY);
}

#[test]
fn outdated_speculative_open_is_closed() {
    let mut world = world_with(200);
    read_all(&mut world, 0..20);
    world.run_for(DELAY * 4);
    let ahead = world.server.open_count();
    assert!(ahead > 0 && ahead <= OPENS_AHEAD_MAX, "{ahead}");
    world.run_for(2 * STALENESS);
    assert_eq!(world.server.open_count(), 0);
    // Who goes on is gone ahead of again.
    let start = world.now;
    read_all(&mut world, 20..200);
    assert!(world.round_trips(start) <= 30.0);
    assert!(world.let_go.is_none());
}

#[test]
fn client_sees_a_write_to_an_offered_open() {
    for pause in [0, 30, 60, 200] {
        let mut world = world_with(100);
        let other = world.beside();
        read_all(&mut world, 0..10);
        world.run_for(Duration::from_millis(pause));
        let next = name(11);
        // It lets nobody in beside it, and is let in itself.
        let alone = Smb2CreateParameters {
            share: 0,
            ..Smb2CreateParameters::open(&next)
        };
        let start = world.now;
        let theirs = world.create(other, &alone);
        assert!(world.round_trips(start) <= 1.01, "{pause} ms");
        world.ask(other, &messages::write(theirs, 0, b"theirs!!"));
        world.ask(other, &messages::close(theirs));
        read_all(&mut world, 10..100);
        assert_eq!(&world.server.files[&next][..8], b"theirs!!");
        assert!(world.let_go.is_none());
        assert!(world.clients[0].unasked.is_empty());
    }
}

#[test]
fn second_open_at_any_time_stays_consistent() {
    for moment in 0..40 {
        let mut world = world_with(60);
        let other = world.beside();
        read_all(&mut world, 0..4);
        // Both at a time.
        let ids: Vec<u64> = (4..8)
            .map(|index| world.send(0, &to_read(&name(index)).request()))
            .collect();
        world.run_for(Duration::from_millis(5 * moment));
        let sixth = name(6);
        let wanted = world.send(other, &Smb2CreateParameters::open(&sixth).request());
        for id in ids {
            assert_eq!(world.wait(0, id).header.status, status::SUCCESS);
        }
        let start = world.now;
        world.wait(other, wanted);
        assert!(world.round_trips(start) <= 1.01, "{moment}");
        read_all(&mut world, 8..60);
        assert!(world.let_go.is_none(), "{moment}");
        assert!(world.clients[0].unasked.is_empty(), "{moment}");
    }
}

#[test]
fn a_file_that_is_gone_cannot_be_opened() {
    let mut world = world_with(100);
    let other = world.beside();
    read_all(&mut world, 0..10);
    let next = name(12);
    let to_delete = Smb2CreateParameters {
        access: 0x1_0080,
        disposition: 1,
        ..Smb2CreateParameters::open(&next)
    };
    let theirs = world.create(other, &to_delete);
    world.ask(other, &messages::delete(theirs));
    world.ask(other, &messages::close(theirs));
    read_all(&mut world, 10..12);
    let answer = world.ask(0, &to_read(&next).request());
    assert_eq!(answer.header.status, NO_SUCH_FILE);
    read_all(&mut world, 13..100);
}

#[test]
fn a_client_that_renames_gets_nothing_from_before() {
    let mut world = world_with(100);
    read_all(&mut world, 0..10);
    let (eleventh, other) = (name(11), "other".to_owned());
    let renaming = Smb2CreateParameters {
        access: 0x1_0080,
        disposition: 1,
        ..Smb2CreateParameters::open(&eleventh)
    };
    let file = world.create(0, &renaming);
    world.ask(0, &messages::rename(file, &other));
    world.ask(0, &messages::close(file));
    let answer = world.ask(0, &to_read(&eleventh).request());
    assert_eq!(answer.header.status, NO_SUCH_FILE);
    read_all(&mut world, 12..100);
    assert!(world.let_go.is_none());
}

/// The same holds before any change is known.
#[test]
fn open_after_name_change_goes_to_server() {
    let mut world = world_with(40);
    read_all(&mut world, 0..10);
    let is_at_once = |world: &mut Smb2World, index: usize| {
        let id = world.send(0, &to_read(&name(index)).request());
        let is_at_once = world.clients[0].answered.contains_key(&id);
        assert_eq!(world.wait(0, id).header.status, status::SUCCESS);
        is_at_once
    };
    assert!(is_at_once(&mut world, 10));
    let connecting = world.send(0, &messages::tree_connect());
    assert!(!is_at_once(&mut world, 11));
    world.wait(0, connecting);
    assert!(world.let_go.is_none());
}

#[test]
fn no_offer_is_used_beyond_its_age() {
    let mut world = world_with(100);
    let other = world.beside();
    read_all(&mut world, 0..10);
    world.run_for(2 * DELAY);
    world.is_cut = true;
    let file = open(&mut world, 0, 10);
    world.run_for(STALENESS);
    let id = world.send(0, &to_read(&name(11)).request());
    world.run_for(FRESH_FOR);
    assert!(!world.clients[0].answered.contains_key(&id));
    // Others wait for no longer than for any oplock.
    let start = world.now;
    open(&mut world, other, 12);
    assert!(world.now.since(start) <= CONFIRM_WITHIN);
    world.is_cut = false;
    assert_eq!(world.wait(0, id).header.status, status::SUCCESS);
    world.ask(0, &messages::close(file));
    read_all(&mut world, 13..100);
    world.run_for(2 * STALENESS);
    // The first client's eleventh, and the other's.
    assert_eq!(world.server.open_count(), 2);
    assert!(world.let_go.is_none());
}

#[test]
fn tree_disconnect_leaves_nothing_open() {
    let mut world = world_with(100);
    read_all(&mut world, 0..20);
    world.ask(0, &messages::tree_disconnect());
    world.run_for(2 * STALENESS);
    assert_eq!(world.server.open_count(), 0);
    assert!(world.let_go.is_none());
}
