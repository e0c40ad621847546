//! Clients that ask for the attributes of a file before they open it, as the Linux kernel's client
//! does: their waits, and the answers, breaks and refusals that they and other clients get.

use std::sync::Arc;
use std::time::Duration;

use super::super::SmbSettings;
use super::super::config::{LEASED_OFFER_LASTS, LEASED_OFFERS_MAX};
use super::super::testing::login::ANNA;
use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::{EncryptionPolicy, NO_SUCH_FILE, SigningPolicy};
use super::super::testing::world::{Smb2Response, Smb2World};
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{command, flag, status};
use super::super::wire::lease::{LeaseBreak, LeaseKey};
use super::{DELAY, contents, read};
use crate::credentials::DelegatedAccounts;
use crate::smb::keys::SigningAlgorithm;

const LENGTH: usize = 10_000;

fn name(index: usize) -> String {
    format!("file-{index}")
}

fn filled(mut world: Smb2World, files: usize) -> Smb2World {
    for index in 0..files {
        let mut of = contents(LENGTH);
        of[..8].copy_from_slice(&(index as u64).to_le_bytes());
        world.server.files.insert(name(index), of);
    }
    world.server.credits_max = 512;
    world.set_up(0);
    // As the kernel's client does when it mounts the share.
    let root = world.create(0, &Smb2CreateParameters::directory(""));
    world.ask(0, &messages::close(root));
    world
}

/// A world whose client has opened one file after it asked for the attributes.
fn world_with(files: usize) -> Smb2World {
    let mut world = filled(Smb2World::new(DELAY), files);
    read_file(&mut world, 0);
    world
}

/// Asks for the attributes of a name in one compound, and does not wait.
fn send_stat(world: &mut Smb2World, name: &str) -> Vec<u64> {
    let create = Smb2CreateParameters {
        access: 0x80,
        disposition: 1,
        options: 0,
        context: Some(b"QFid"),
        ..Smb2CreateParameters::open(name)
    };
    let related = |request: messages::Smb2Message| request.with_flags(flag::RELATED);
    world.send_chain(
        0,
        &[
            create.request(),
            related(messages::query_position(FileId::RELATED)),
            related(messages::close(FileId::RELATED)),
        ],
    )
}

/// Asks for the attributes of a name. Returns the status of its CREATE.
fn stat(world: &mut Smb2World, name: &str) -> u32 {
    let ids = send_stat(world, name);
    let answers: Vec<_> = ids.iter().map(|id| world.wait(0, *id)).collect();
    answers[0].header.status
}

/// The kernel client's CREATE of a file to read it, with a lease key of its own.
fn kernel_open(name: &str, key: u8) -> Smb2CreateParameters<'_> {
    Smb2CreateParameters {
        access: 0x8000_0080,
        disposition: 1,
        context: Some(b"DHnQ"),
        ..Smb2CreateParameters::leased(name, key)
    }
}

fn opened(answer: &Smb2Response, key: u8) -> FileId {
    assert_eq!(answer.header.status, status::SUCCESS);
    let whole = [&[0; 64][..], &answer.body].concat();
    let lease = CreateResponse::lease(&whole).unwrap().expect("its lease");
    assert!(lease.key == LeaseKey([key; 16]) && lease.is_exclusive());
    CreateResponse::parse(&answer.body).unwrap().file
}

/// Asks for the attributes of a file, opens it, and reads it.
fn read_file(world: &mut Smb2World, index: usize) -> FileId {
    let key = index as u8 + 1;
    assert_eq!(stat(world, &name(index)), status::SUCCESS);
    let answer = world.ask(0, &kernel_open(&name(index), key).request());
    let file = opened(&answer, key);
    let wanted = world.server.files[&name(index)].clone();
    assert!(
        read(world, 0, file, 0, 16_384) == wanted,
        "the contents of {index}"
    );
    file
}

fn read_all(world: &mut Smb2World, files: usize) -> f64 {
    let start = world.now;
    for index in 0..files {
        let file = read_file(world, index);
        // The kernel closes it later, and nobody waits.
        world.send(0, &messages::close_with_attributes(file));
    }
    let each = world.round_trips(start) / files as f64;
    world.run_for(2 * LEASED_OFFER_LASTS);
    assert_eq!(world.server.open_count(), 0);
    assert!(world.let_go.is_none());
    each
}

#[test]
fn kernel_reads_small_files_in_one_round_trip() {
    for (piece, takes) in [(usize::MAX, 0), (77, 0), (usize::MAX, 3)] {
        let mut world = filled(Smb2World::new(DELAY), 100);
        world.piece = piece;
        world.server_takes = Duration::from_millis(takes);
        let each = read_all(&mut world, 100);
        // The first takes two, and each waits for the server four times: for the CLOSE before it, the
        // attributes, the open and the contents.
        let most = 1.02 + 4.0 * takes as f64 / 100.0;
        assert!(each <= most, "{piece}, {takes} ms: {each}");
    }
}

#[test]
fn protected_small_files_also_take_one() {
    for sealing in [None, Some(EncryptionPolicy::OfSessions(2))] {
        let accounts = DelegatedAccounts::parse("CORP\\anna:password:secret").expect("it is one");
        let settings = SmbSettings {
            accounts: Some(Arc::new(accounts)),
            ..SmbSettings::STRICT
        };
        let mut world = Smb2World::with_settings(DELAY, settings);
        world.server.dialect = 0x0311;
        world.server.signing = Some(SigningPolicy {
            login: ANNA,
            algorithm: SigningAlgorithm::AesCmac,
            is_required: true,
        });
        world.server.sealing = sealing;
        let mut world = filled(world, 100);
        let each = read_all(&mut world, 100);
        assert!(each <= 1.02, "{sealing:?}: {each}");
        assert_eq!((world.clients[0].forged, world.server.refused), (0, 0));
    }
}

#[test]
fn attributes_alone_open_nothing_for_long() {
    let mut world = world_with(60);
    let before = world.server.count(0, command::CREATE);
    for index in 1..50 {
        stat(&mut world, &name(index));
    }
    // One that nobody opened ends it.
    let opened = world.server.count(0, command::CREATE) - before;
    assert!(opened <= 49 + LEASED_OFFERS_MAX, "{opened}");
    world.run_for(2 * LEASED_OFFER_LASTS);
    assert_eq!(world.server.open_count(), 1);
    assert_eq!(stat(&mut world, "absent"), NO_SUCH_FILE);
    assert!(world.let_go.is_none());
}

#[test]
fn late_open_gets_the_present_attributes() {
    for pause in [0, 10, 30, 500, 3_000] {
        let mut world = world_with(3);
        stat(&mut world, &name(1));
        world.run_for(Duration::from_millis(pause));
        // No oplock breaks for attributes: the answer must be of this moment.
        let start = world.now;
        let creates = world.server.count(0, command::CREATE);
        let answer = world.ask(0, &kernel_open(&name(1), 9).request());
        let file = opened(&answer, 9);
        let is_here = world.now == start;
        assert_eq!(is_here, pause <= 20, "{pause}");
        let asked = world.server.count(0, command::CREATE) - creates;
        assert_eq!(asked, usize::from(!is_here), "{pause}");
        assert!(world.round_trips(start) <= 1.01, "{pause}");
        world.ask(0, &messages::close(file));
        world.run_for(2 * LEASED_OFFER_LASTS);
        assert_eq!(world.server.open_count(), 1);
        assert!(world.let_go.is_none());
    }
}

/// Another client opens the file at any moment. The first client hears of the break of the lease
/// that it knows, or of none.
#[test]
fn break_names_the_lease_of_the_client() {
    for moment in 0..60 {
        let mut world = world_with(3);
        let other = world.beside();
        let path = name(1);
        let theirs = Smb2CreateParameters {
            share: 7,
            ..Smb2CreateParameters::open(&path)
        };
        let ids = send_stat(&mut world, &path);
        let wanted = moment * 5;
        let (mut theirs_id, mut ours_id) = (None, None);
        let mut has_heard = false;
        for step in 0..120 {
            if step * 5 == wanted {
                theirs_id = Some(world.send(other, &theirs.request()));
            }
            if ours_id.is_none() && world.clients[0].answered.contains_key(&ids[2]) {
                ours_id = Some(world.send(0, &kernel_open(&path, 9).request()));
            }
            if let Some(notice) = world.clients[0].unasked.pop() {
                let notice = LeaseBreak::parse(&notice.body).unwrap();
                assert_eq!(notice.key, LeaseKey([9; 16]), "{moment}");
                let acknowledge = messages::acknowledge_lease(notice.key, 3);
                let answer = world.send(0, &acknowledge);
                let answer = world.wait(0, answer);
                assert_eq!(answer.header.status, status::SUCCESS, "{moment}");
                assert_eq!(answer.body[8..24], [9; 16]);
                has_heard = true;
            }
            world.run_for(Duration::from_millis(5));
        }
        let start = world.now;
        let theirs = world.wait(other, theirs_id.expect("it has asked"));
        assert_eq!(theirs.header.status, status::SUCCESS, "{moment}");
        assert_eq!(world.now, start, "{moment}");
        let theirs = CreateResponse::parse(&theirs.body).unwrap().file;
        world.ask(other, &messages::write(theirs, 0, b"theirs!!"));
        let ours = world.wait(0, ours_id.expect("it has asked"));
        let ours = CreateResponse::parse(&ours.body).unwrap().file;
        world.run_for(Duration::from_secs(1));
        assert_eq!(&read(&mut world, 0, ours, 0, 8), b"theirs!!", "{moment}");
        // Whoever came first held the lease.
        assert!(has_heard || wanted <= 160, "{moment}");
        for (who, file) in [(0, ours), (other, theirs)] {
            world.ask(who, &messages::close(file));
        }
        world.run_for(2 * LEASED_OFFER_LASTS);
        assert_eq!(world.server.open_count(), 1, "{moment}");
        assert!(world.let_go.is_none(), "{moment}");
    }
}

/// Two programs look at a file, and one of them opens it at any moment.
#[test]
fn file_is_opened_ahead_once() {
    for moment in 0..60 {
        let mut world = world_with(3);
        let both = [(); 2].map(|()| send_stat(&mut world, "file-1"));
        world.run_for(Duration::from_millis(5 * moment));
        let answer = world.ask(0, &kernel_open("file-1", 9).request());
        let file = opened(&answer, 9);
        for id in both.iter().flatten() {
            assert_eq!(world.wait(0, *id).header.status, status::SUCCESS);
        }
        world.run_for(Duration::from_secs(2));
        let wanted = world.server.files["file-1"].clone();
        assert!(
            read(&mut world, 0, file, 0, 16_384) == wanted,
            "{moment}: its contents"
        );
        assert!(world.clients[0].unasked.is_empty(), "{moment}");
        world.ask(0, &messages::close(file));
        world.run_for(2 * LEASED_OFFER_LASTS);
        assert_eq!(world.server.open_count(), 1, "{moment}");
        assert!(world.let_go.is_none(), "{moment}");
    }
}

/// Another client keeps the lease of a file for long after it was asked for it.
#[test]
fn open_ahead_that_waits_delays_no_other_request() {
    let mut world = world_with(3);
    let other = world.beside();
    let file = read_file(&mut world, 1);
    read(&mut world, 0, file, 0, 4_096);
    read(&mut world, 0, file, 4_096, 4_096);
    world.create(other, &Smb2CreateParameters::leased("file-2", 90));
    send_stat(&mut world, "file-2");
    world.run_for(Duration::from_millis(200));
    assert_eq!(world.clients[other].unasked.len(), 1, "it was asked");
    let start = world.now;
    world.ask(0, &messages::query_position(file));
    assert!(world.round_trips(start) <= 1.01);
}

#[test]
fn second_open_shares_the_lease_of_the_first() {
    let mut world = world_with(3);
    let first = read_file(&mut world, 1);
    let again = Smb2CreateParameters {
        access: 0x3,
        ..Smb2CreateParameters::leased("file-1", 2)
    };
    let answer = world.ask(0, &again.request());
    let second = opened(&answer, 2);
    world.run_for(Duration::from_secs(1));
    assert!(world.clients[0].unasked.is_empty());
    world.ask(0, &messages::write(second, 0, b"changed!"));
    assert_eq!(&read(&mut world, 0, first, 0, 8), b"changed!");
    world.ask(0, &messages::flush(second));
    assert_eq!(&world.server.files["file-1"][..8], b"changed!");
    assert!(world.let_go.is_none());
}

#[test]
fn file_that_the_client_holds_is_not_opened() {
    let mut world = world_with(3);
    let held = world.create(0, &Smb2CreateParameters::leased("file-1", 50));
    world.ask(0, &messages::write(held, 0, b"changed!"));
    stat(&mut world, "file-1");
    world.run_for(Duration::from_secs(1));
    assert!(world.clients[0].unasked.is_empty());
    assert_eq!(world.server.open_count(), 2);
}

/// A client changes the name of a file that it holds, and looks at the new name.
#[test]
fn renamed_file_that_the_client_holds_is_not_opened() {
    for is_leased in [false, true] {
        let mut world = world_with(3);
        let held = Smb2CreateParameters {
            share: 7,
            ..Smb2CreateParameters::leased("file-1", 50)
        };
        let held = world.create(0, &held);
        let renaming = Smb2CreateParameters {
            access: 0x1_0080,
            disposition: 1,
            ..match is_leased {
                true => Smb2CreateParameters::leased("file-1", 50),
                false => Smb2CreateParameters::open("file-1"),
            }
        };
        // Without the lease, the client's own open takes it back.
        if is_leased {
            let file = world.create(0, &renaming);
            world.ask(0, &messages::rename(file, "other"));
            world.ask(0, &messages::close(file));
        } else {
            world.ask(0, &messages::rename(held, "other"));
        }
        stat(&mut world, "other");
        world.run_for(Duration::from_secs(1));
        assert!(world.clients[0].unasked.is_empty(), "{is_leased}");
        assert_eq!(world.server.open_count(), 2, "{is_leased}");
        // Once it is closed, files are opened ahead again.
        world.ask(0, &messages::close(held));
        read_file(&mut world, 2);
        stat(&mut world, "other");
        let start = world.now;
        opened(&world.ask(0, &kernel_open("other", 9).request()), 9);
        assert_eq!(world.now, start, "{is_leased}");
    }
}

#[test]
fn name_that_changes_is_opened_anew() {
    let mut world = world_with(3);
    let renaming = Smb2CreateParameters {
        access: 0x1_0080,
        disposition: 1,
        ..Smb2CreateParameters::open("file-1")
    };
    let file = world.create(0, &renaming);
    stat(&mut world, "file-1");
    let renamed = world.send(0, &messages::rename(file, "other"));
    let opened = world.send(0, &kernel_open("file-1", 9).request());
    assert_eq!(world.wait(0, renamed).header.status, status::SUCCESS);
    assert_eq!(world.wait(0, opened).header.status, NO_SUCH_FILE);
    world.run_for(2 * LEASED_OFFER_LASTS);
    assert!(world.let_go.is_none());
    assert_eq!(world.server.open_count(), 2);
}

/// A file that was opened ahead lies in a directory that the client renames, or has the name that it gives to
/// another.
#[test]
fn directory_of_a_file_that_is_opened_ahead_may_be_renamed() {
    for pause in 0..40 {
        let mut world = world_with(3);
        world.server.directories.insert("directory".to_owned());
        let contents = contents(LENGTH);
        let files = &mut world.server.files;
        files.insert("directory\\file".to_owned(), contents);
        stat(&mut world, "directory\\file");
        world.run_for(Duration::from_millis(5 * pause));
        let create = Smb2CreateParameters {
            access: 0x1_0080,
            ..Smb2CreateParameters::directory("directory")
        };
        let file = world.create(0, &create);
        let start = world.now;
        let renamed = world.ask(0, &messages::rename(file, "moved"));
        assert_eq!(renamed.header.status, status::SUCCESS, "{pause}");
        assert!(world.round_trips(start) <= 1.01, "{pause}");
        world.run_for(2 * LEASED_OFFER_LASTS);
        assert_eq!(world.server.open_count(), 2);
        assert!(world.let_go.is_none());
    }
}

/// While the path is cut nothing is given, and the client that has gone leaves nothing open.
#[test]
fn unused_opens_end_with_the_client() {
    for is_reset in [false, true] {
        let mut world = world_with(3);
        let other = world.beside();
        stat(&mut world, "file-1");
        world.is_cut = true;
        let id = world.send(0, &kernel_open("file-1", 9).request());
        assert!(world.clients[0].answered.contains_key(&id));
        world.run_for(Duration::from_secs(3));
        world.is_cut = false;
        if is_reset {
            world.reset();
        }
        let start = world.now;
        world.create(other, &Smb2CreateParameters::open("file-2"));
        assert!(world.round_trips(start) <= 1.01);
        world.run_for(2 * LEASED_OFFER_LASTS);
        let left = if is_reset { 1 } else { 3 };
        assert_eq!(world.server.open_count(), left, "{is_reset}");
    }
}
