//! Clients that go through a tree, as the Linux kernel's client does: their waits, and the names that they
//! get of directories that were listed ahead.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::super::SmbSettings;
use super::super::config::{LEASED_OFFER_LASTS, LISTING_OFFERS_MAX};
use super::super::frames::{HalfFrame, OFFICE_REQUESTS, OpenLicence};
use super::super::testing::login::ANNA;
use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::{ACCESS_DENIED, EncryptionPolicy, FULL, SigningPolicy};
use super::super::testing::world::{FAR, NEAR, Smb2Response, Smb2World};
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::directory::entries;
use super::super::wire::header::{MessageProtection, command, flag, status};
use super::DELAY;
use crate::AcceleratorInput;
use crate::credentials::DelegatedAccounts;
use crate::smb::keys::SigningAlgorithm;
use crate::smb::offer::names_of;

const BRANCHES: usize = 6;
const TWIGS: usize = 4;
/// The time that the kernel's client in the lab needs for a directory.
const STEP: Duration = Duration::from_millis(7);
const KERNEL_LENGTH: u32 = 15_380;

fn branch(index: usize) -> String {
    format!("tree\\branch-{index}")
}

fn twig(of: usize, index: usize) -> String {
    format!("tree\\branch-{of}\\twig-{index}")
}

fn planted(mut world: Smb2World) -> Smb2World {
    let directories = &mut world.server.directories;
    directories.insert("tree".to_owned());
    for of in 0..BRANCHES {
        directories.insert(branch(of));
        directories.extend((0..TWIGS).map(|index| twig(of, index)));
    }
    world.server.files.insert("leaf".to_owned(), Vec::new());
    world.server.credits_max = 512;
    world.set_up(0);
    // As the kernel's client does when it mounts the share.
    let root = world.create(0, &Smb2CreateParameters::directory(""));
    world.ask(0, &messages::close(root));
    world
}

fn world() -> Smb2World {
    planted(Smb2World::new(DELAY))
}

/// The compound that opens a directory and requests its first names.
fn send_listing(world: &mut Smb2World, path: &str) -> Vec<u64> {
    let create = Smb2CreateParameters {
        access: 0x81,
        disposition: 1,
        options: 0,
        share: 7,
        context: Some(b"QFid"),
        ..Smb2CreateParameters::open(path)
    };
    let mut list = messages::list(FileId::RELATED, 0, KERNEL_LENGTH);
    list.body[2] = FULL;
    world.send_chain(0, &[create.request(), list.with_flags(flag::RELATED)])
}

fn names(answer: &Smb2Response) -> Vec<String> {
    if answer.header.status == status::NO_MORE_FILES {
        return Vec::new();
    }
    assert_eq!(answer.header.status, status::SUCCESS);
    let names = names_of(38, entries(&answer.body).unwrap());
    let text = |name: &&[u8]| {
        let units = name.chunks_exact(2);
        let units: Vec<u16> = units
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .collect();
        String::from_utf16(&units).unwrap()
    };
    names.iter().map(text).collect()
}

/// Lists a directory, and closes it; its names, and true if the first ones cost no wait.
fn list(world: &mut Smb2World, path: &str) -> (Vec<String>, bool) {
    let start = world.now;
    let ids = send_listing(world, path);
    let answer = world.wait(0, ids[0]);
    assert_eq!(answer.header.status, status::SUCCESS, "{path}");
    let file = CreateResponse::parse(&answer.body).unwrap().file;
    assert_eq!(answer.body[112..128], file.0, "its id on disk");
    let mut found = names(&world.wait(0, ids[1]));
    let is_here = world.now == start;
    loop {
        let mut more = messages::list(file, 0, KERNEL_LENGTH);
        more.body[2] = FULL;
        let more = names(&world.ask(0, &more));
        if more.is_empty() {
            break;
        }
        found.extend(more);
    }
    let closed = world.ask(0, &messages::close(file));
    assert_eq!(closed.header.status, status::SUCCESS);
    (found, is_here)
}

/// Lists the whole tree; the directories and how many cost no wait. `is_backward`: the last of a directory
/// first.
fn walk(world: &mut Smb2World, is_backward: bool) -> (usize, usize) {
    let mut waiting = vec!["tree".to_owned()];
    let (mut count, mut here) = (0, 0);
    while let Some(path) = waiting.pop() {
        let (found, is_here) = list(world, &path);
        count += 1;
        here += usize::from(is_here);
        assert!(found.contains(&"leaf".to_owned()), "{path}: {found:?}");
        let within = found
            .iter()
            .filter(|name| *name != "leaf" && *name != "made");
        let mut within: Vec<String> = within.map(|name| format!("{path}\\{name}")).collect();
        if !is_backward {
            within.reverse();
        }
        waiting.extend(within);
        world.run_for(STEP);
    }
    (count, here)
}

#[test]
fn walk_takes_less_than_a_round_trip_for_each_directory() {
    for (piece, is_backward) in [(usize::MAX, true), (usize::MAX, false), (77, true)] {
        let mut world = world();
        world.piece = piece;
        let start = world.now;
        let (count, here) = walk(&mut world, is_backward);
        assert_eq!(count, 1 + BRANCHES + BRANCHES * TWIGS);
        let each = world.round_trips(start) / count as f64;
        assert!(
            each <= 0.65,
            "{piece}, {is_backward}: {each}, {here} of {count}"
        );
        world.run_for(2 * LEASED_OFFER_LASTS);
        assert_eq!(world.server.open_count(), 0);
        assert!(world.let_go.is_none());
    }
}

#[test]
fn protected_walk_takes_as_much() {
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
        let mut world = planted(world);
        let start = world.now;
        let (count, _) = walk(&mut world, true);
        let each = world.round_trips(start) / count as f64;
        assert!(each <= 0.65, "{sealing:?}: {each}");
        assert_eq!((world.clients[0].forged, world.server.refused), (0, 0));
        world.run_for(2 * LEASED_OFFER_LASTS);
        assert_eq!(world.server.open_count(), 0);
    }
}

#[test]
fn client_that_lists_one_directory_causes_no_other_open() {
    let mut world = world();
    for _ in 0..3 {
        let before = world.server.count(0, command::CREATE);
        list(&mut world, "tree");
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.server.count(0, command::CREATE) - before, 1);
    }
    // One that goes on, and stops.
    list(&mut world, &branch(0));
    let before = world.server.count(0, command::CREATE);
    world.run_for(2 * DELAY + Duration::from_millis(30));
    assert!(world.server.count(0, command::CREATE) - before <= LISTING_OFFERS_MAX);
    assert_eq!(world.server.open_count(), 0);
    list(&mut world, "tree");
    let before = world.server.count(0, command::CREATE);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.count(0, command::CREATE), before);
    assert!(world.let_go.is_none());
}

#[test]
fn late_listing_has_the_present_names() {
    for pause in [0, 10, 19, 21, 500] {
        let mut world = world();
        let other = world.beside();
        list(&mut world, "tree");
        list(&mut world, &branch(5));
        // What comes ahead arrives with the answer or a moment later.
        world.run_for(Duration::from_millis(1));
        world.create(other, &Smb2CreateParameters::open("made"));
        world.run_for(Duration::from_millis(pause));
        let (found, is_here) = list(&mut world, &twig(5, TWIGS - 1));
        assert_eq!(is_here, pause < 19, "{pause}");
        assert_eq!(found.contains(&"made".to_owned()), !is_here, "{pause}");
        world.run_for(2 * LEASED_OFFER_LASTS);
        // The other client's.
        assert_eq!(world.server.open_count(), 1);
    }
}

#[test]
fn own_changes_are_in_what_was_listed_ahead() {
    for is_at_once in [false, true] {
        let mut world = world();
        list(&mut world, "tree");
        list(&mut world, &branch(5));
        let made = world.send(0, &Smb2CreateParameters::open("made").request());
        if !is_at_once {
            world.wait(0, made);
        }
        let (found, is_here) = list(&mut world, &twig(5, TWIGS - 1));
        assert!(found.contains(&"made".to_owned()) && !is_here);
        let (found, _) = list(&mut world, &twig(5, TWIGS - 2));
        assert!(found.contains(&"made".to_owned()));
        assert!(world.let_go.is_none());
    }
}

/// A file that is marked for deletion is deleted with its last CLOSE, and that may be of any open.
#[test]
fn close_that_deletes_is_a_change() {
    let mut world = world();
    let read = Smb2CreateParameters {
        access: 0x81,
        disposition: 1,
        ..Smb2CreateParameters::open("leaf")
    };
    let kept = world.create(0, &read);
    let marks = Smb2CreateParameters {
        access: 0x1_0080,
        disposition: 1,
        ..Smb2CreateParameters::open("leaf")
    };
    let marks = world.create(0, &marks);
    world.ask(0, &messages::delete(marks));
    world.ask(0, &messages::close(marks));
    list(&mut world, "tree");
    let (found, _) = list(&mut world, &branch(5));
    assert!(found.contains(&"leaf".to_owned()));
    world.send(0, &messages::close(kept));
    let (found, is_here) = list(&mut world, &twig(5, TWIGS - 1));
    assert!(!found.contains(&"leaf".to_owned()) && !is_here);
}

/// Opens a directory in this way, and closes it once it has this new name; the statuses.
fn change_directory(
    world: &mut Smb2World,
    create: &Smb2CreateParameters<'_>,
    to: Option<&str>,
) -> Vec<u32> {
    let answer = world.ask(0, &create.request());
    let mut statuses = vec![answer.header.status];
    if let Ok(opened) = CreateResponse::parse(&answer.body) {
        if let Some(to) = to {
            let answer = world.ask(0, &messages::rename(opened.file, to));
            statuses.push(answer.header.status);
        }
        let answer = world.ask(0, &messages::close(opened.file));
        statuses.push(answer.header.status);
    }
    statuses
}

/// A client goes through a tree and changes the names of its directories. For a server, those that were opened
/// ahead of it are open.
#[test]
fn directory_above_one_that_is_opened_ahead_may_be_renamed() {
    for delay in [2, 9, 50] {
        for pause in 0..30 {
            let mut world = planted(Smb2World::new(Duration::from_millis(delay)));
            list(&mut world, "tree");
            list(&mut world, &branch(5));
            world.run_for(Duration::from_millis(pause));
            let create = Smb2CreateParameters {
                access: 0x1_0080,
                ..Smb2CreateParameters::directory("tree\\branch-5")
            };
            let start = world.now;
            let statuses = change_directory(&mut world, &create, Some("tree\\moved"));
            assert_eq!(statuses, [status::SUCCESS; 3], "{delay}, {pause}");
            // No waits but for the server's answers to the three.
            assert!(world.round_trips(start) <= 3.01, "{delay}, {pause}");
            let (found, _) = list(&mut world, "tree\\moved\\twig-1");
            assert!(found.contains(&"leaf".to_owned()));
            world.run_for(2 * LEASED_OFFER_LASTS);
            assert_eq!(world.server.open_count(), 0);
            assert!(world.let_go.is_none());
        }
    }
}

#[test]
fn directory_that_is_opened_ahead_may_be_made_anew() {
    for delay in [2, 9, 50] {
        for pause in 0..30 {
            let mut world = planted(Smb2World::new(Duration::from_millis(delay)));
            list(&mut world, "tree");
            list(&mut world, &branch(5));
            world.run_for(Duration::from_millis(pause));
            for index in (0..TWIGS).rev() {
                let name = twig(5, index);
                let delete = Smb2CreateParameters {
                    access: 0x1_0080,
                    options: 0x1001,
                    ..Smb2CreateParameters::directory(&name)
                };
                let make = Smb2CreateParameters {
                    disposition: 2,
                    ..Smb2CreateParameters::directory(&name)
                };
                for create in [delete, make] {
                    let statuses = change_directory(&mut world, &create, None);
                    assert_eq!(statuses, [status::SUCCESS; 2], "{delay}, {pause}, {index}");
                }
            }
            world.run_for(2 * LEASED_OFFER_LASTS);
            assert_eq!(world.server.open_count(), 0);
            assert!(world.let_go.is_none());
        }
    }
}

/// While a request is at the server that may change names, no directory is listed ahead; one that is open already
/// is given back as soon as the client requests its names.
#[test]
fn listing_does_not_wait_for_names_that_are_not_requested() {
    for moment in 0..20 {
        let mut world = world();
        world.server_takes = Duration::from_millis(30);
        let root = world.create(0, &Smb2CreateParameters::directory(""));
        list(&mut world, "tree");
        let ids = send_listing(&mut world, &branch(5));
        world.run_for(Duration::from_millis(10 * moment));
        // It is pending for as long as nothing changes.
        world.send(0, &messages::change_notify(root));
        for id in ids {
            world.wait(0, id);
        }
        for index in (0..TWIGS).rev() {
            let start = world.now;
            list(&mut world, &twig(5, index));
            // The compound, the next names and the CLOSE, and the server's time.
            let took = world.now.since(start);
            assert!(took <= 10 * DELAY, "{moment}, {index}: {took:?}");
        }
        assert!(world.let_go.is_none());
    }
}

/// The directories that a client would have listed next are forgotten after a while.
#[test]
fn directories_are_not_listed_ahead_of_a_client_that_has_stopped() {
    let mut world = world();
    let root = world.create(0, &Smb2CreateParameters::directory(""));
    list(&mut world, "tree");
    let notify = world.send(0, &messages::change_notify(root));
    list(&mut world, &branch(5));
    world.run_for(Duration::from_secs(60));
    let before = world.server.count(0, command::CREATE);
    world.cancel(0, notify);
    world.wait(0, notify);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.count(0, command::CREATE), before);
}

/// A tree or a session ends while offers in it are on their way.
#[test]
fn offers_end_with_their_tree() {
    let mut world = world();
    for index in 0..40u64 {
        let file = FileId([index as u8; 16]);
        for frame in [
            HalfFrame::Licence(OpenLicence {
                file,
                session: 77,
                tree: 5,
                may_read: false,
                may_write: false,
                may_set: false,
                may_close: true,
                may_close_renamed: false,
                guard: MessageProtection::Nothing,
                read_max: 0,
                write_max: 0,
            }),
            HalfFrame::ListingOffer {
                file,
                position: 0,
                request: Bytes::from_static(&[0; 58]),
                answer: Bytes::from_static(&[0; 88]),
            },
        ] {
            world.input(NEAR, AcceleratorInput::Wan(frame.emit()));
        }
        let ended = world.ask(0, &messages::tree_disconnect());
        assert_eq!(ended.header.status, status::SUCCESS);
        world.ask(0, &messages::tree_connect());
        assert!(world.let_go.is_none(), "{index}");
    }
}

/// The client sends all at once, its next listing among them.
#[test]
fn rename_behind_an_unanswered_listing_succeeds_as_without_the_halves() {
    for pause in 0..120 {
        let mut world = world();
        list(&mut world, "tree");
        let create = Smb2CreateParameters {
            access: 0x1_0080,
            ..Smb2CreateParameters::directory("tree\\branch-5")
        };
        let file = world.create(0, &create);
        list(&mut world, &branch(4));
        list(&mut world, &branch(5));
        world.run_for(Duration::from_millis(pause));
        let listed = send_listing(&mut world, &twig(5, TWIGS - 2));
        let renamed = world.send(0, &messages::rename(file, "tree\\moved"));
        let answer = world.wait(0, listed[0]);
        let open = CreateResponse::parse(&answer.body);
        let answer = world.wait(0, renamed);
        // The client has that one open itself.
        let is_refused = answer.header.status == ACCESS_DENIED;
        assert_eq!(is_refused, open.is_ok(), "{pause}");
        world.run_for(2 * LEASED_OFFER_LASTS);
        let left = 1 + usize::from(open.is_ok());
        assert_eq!(world.server.open_count(), left, "{pause}");
        assert!(world.let_go.is_none());
    }
}

#[test]
fn client_that_leaves_leaves_nothing_open() {
    for is_cut in [false, true] {
        let mut world = world();
        list(&mut world, "tree");
        list(&mut world, &branch(5));
        world.is_cut = is_cut;
        let ids = send_listing(&mut world, &twig(5, TWIGS - 1));
        assert!(world.clients[0].answered.contains_key(&ids[1]));
        world.run_for(Duration::from_secs(3));
        world.is_cut = false;
        world.run_for(Duration::from_secs(3));
        assert_eq!(world.server.open_count(), 1);
        world.reset();
        assert_eq!(world.server.open_count(), 0);
    }
}

/// Another client lists the same directory in between, or the same client twice.
#[test]
fn directory_is_given_once() {
    for moment in 0..30 {
        let mut world = world();
        list(&mut world, "tree");
        let ids = send_listing(&mut world, &branch(5));
        world.run_for(Duration::from_millis(5 * moment));
        let both = [(); 2].map(|()| send_listing(&mut world, &twig(5, TWIGS - 1)));
        for id in ids.iter().chain(both.iter().flatten()) {
            assert_eq!(
                world.wait(0, *id).header.status,
                status::SUCCESS,
                "{moment}"
            );
        }
        world.run_for(2 * LEASED_OFFER_LASTS);
        assert_eq!(world.server.open_count(), 3, "{moment}");
        assert!(world.let_go.is_none(), "{moment}");
    }
}

#[test]
fn earlier_near_half_gets_no_directories_ahead() {
    let mut world = Smb2World::new(DELAY);
    let earlier = HalfFrame::Speaks {
        version: OFFICE_REQUESTS,
    };
    world.run_for(Duration::from_secs(1));
    world.input(FAR, AcceleratorInput::Wan(earlier.emit()));
    let mut world = planted(world);
    let before = world.server.count(0, command::CREATE);
    let (count, here) = walk(&mut world, true);
    assert_eq!((count, here), (31, 0));
    assert_eq!(world.server.count(0, command::CREATE) - before, 31);
}
