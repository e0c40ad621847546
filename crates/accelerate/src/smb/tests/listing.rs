//! Listings: the waits of clients, and that each gets the names that it would get without the pair.

use std::time::Duration;

use vocab::SeededRandom;

use super::super::config::{LISTING_BLOCK, LISTINGS_AHEAD, OUTSTANDING_MAX};
use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::{FILE_CLOSED, INVALID_INFO_CLASS, NO_CLASS};
use super::super::testing::world::{Smb2Response, Smb2World};
use super::super::wire::FileId;
use super::super::wire::directory::entries;
use super::super::wire::header::{command, status};
use super::DELAY;
use crate::{LettingGo, ReasonCode};

const SINGLE: u8 = 2;

/// A world whose client is connected, and a directory with so many names.
fn world_with(names: usize) -> Smb2World {
    let mut world = Smb2World::new(DELAY);
    for name in 0..names {
        let name = format!("file-{name:05}");
        world.server.files.insert(name, Vec::new());
    }
    world.server.credits_max = 512;
    world.set_up(0);
    world
}

fn names(answer: &Smb2Response) -> Vec<String> {
    if answer.header.status == status::NO_MORE_FILES {
        return Vec::new();
    }
    assert_eq!(answer.header.status, status::SUCCESS);
    let mut rest = entries(&answer.body).unwrap();
    let mut names = Vec::new();
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        let (next, length) = (number(0), number(4));
        names.push(String::from_utf8(rest[8..8 + length].to_vec()).unwrap());
        rest = &rest[next..];
    }
    names
}

/// Lists a directory to its end.
fn list_all(world: &mut Smb2World, who: usize, directory: FileId, length: u32) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let answer = world.ask(who, &messages::list(directory, 0, length));
        let some = names(&answer);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

fn directory(world: &mut Smb2World) -> FileId {
    world.create(0, &Smb2CreateParameters::directory(""))
}

fn all(world: &Smb2World) -> Vec<String> {
    world.server.files.keys().cloned().collect()
}

/// The requests of a stock smbclient that lists a directory and the free space.
fn stock_listing(world: &mut Smb2World) -> f64 {
    let start = world.now;
    let file = directory(world);
    assert_eq!(list_all(world, 0, file, 8 << 20), all(world));
    world.ask(0, &messages::close(file));
    let root = world.create(
        0,
        &Smb2CreateParameters {
            access: 0x80,
            ..Smb2CreateParameters::directory("")
        },
    );
    world.ask(0, &messages::query_file_system(root, 3));
    world.ask(0, &messages::close(root));
    world.round_trips(start)
}

#[test]
fn thousand_names_take_two_round_trips() {
    let mut world = world_with(1_000);
    for _ in 0..3 {
        let round_trips = stock_listing(&mut world);
        assert!(round_trips <= 2.01, "{round_trips}");
    }
    assert!(world.let_go.is_none());
}

#[test]
fn long_listing_waits_only_for_its_beginning() {
    let mut world = world_with(20_000);
    let file = directory(&mut world);
    let start = world.now;
    assert_eq!(list_all(&mut world, 0, file, 65_536), all(&world));
    // Two million bytes, half a million of them ahead at a time.
    let round_trips = world.round_trips(start);
    assert!(round_trips <= 7.01, "{round_trips}");
}

#[test]
fn listing_restarts_when_the_client_restarts() {
    for flags in [0x01, 0x10, 0x11] {
        let mut world = world_with(3_000);
        let file = directory(&mut world);
        let first = names(&world.ask(0, &messages::list(file, flags, 65_536)));
        let again = names(&world.ask(0, &messages::list(file, flags, 65_536)));
        assert_eq!(first, again);
        world.run_for(Duration::from_secs(1));
        let mut both = names(&world.ask(0, &messages::list(file, flags, 65_536)));
        both.extend(list_all(&mut world, 0, file, 65_536));
        assert_eq!(both, all(&world));
        assert!(world.let_go.is_none());
    }
}

#[test]
fn waiting_client_gets_current_names() {
    let mut world = world_with(10);
    let file = directory(&mut world);
    world.run_for(Duration::from_secs(1));
    world.server.files.insert("new".to_owned(), Vec::new());
    assert_eq!(list_all(&mut world, 0, file, 65_536), all(&world));
    assert!(world.let_go.is_none());
}

#[test]
fn client_sees_its_file_made_before() {
    for pause in [0, 40, 51, 99, 101, 150] {
        let mut world = world_with(10);
        let file = directory(&mut world);
        let made = world.send(0, &Smb2CreateParameters::open("made").request());
        world.run_for(Duration::from_millis(pause));
        world.wait(0, made);
        assert_eq!(list_all(&mut world, 0, file, 65_536), all(&world));
        assert!(world.server.files.contains_key("made"));
        assert!(world.let_go.is_none());
    }
}

/// On a path so short that the first names still wait for their question.
#[test]
fn client_sees_its_changes_after_first_names() {
    let mut world = Smb2World::new(Duration::from_millis(4));
    world.set_up(0);
    world.create(0, &Smb2CreateParameters::open("old"));
    let directory = directory(&mut world);
    let start = world.now;
    world.create(0, &Smb2CreateParameters::open("new"));
    let listed = list_all(&mut world, 0, directory, 65_536);
    assert_eq!(listed, ["new", "old"]);
    // With nothing made in between they are there at once.
    let directory = self::directory(&mut world);
    assert!(world.now.since(start) < Duration::from_millis(40));
    world.run_for(Duration::from_millis(10));
    let start = world.now;
    world.ask(0, &messages::list(directory, 0, 65_536));
    assert_eq!(world.now, start);
}

#[test]
fn unpredicted_query_gets_the_servers_answer() {
    let mut world = world_with(1_000);
    let file = directory(&mut world);
    let mut request = messages::list(file, 0, 65_536);
    // FileNamesInformation.
    request.body[2] = 12;
    let answer = world.ask(0, &request);
    assert_eq!(names(&answer)[0], "file-00000");
    assert!(answer.body.ends_with(&[12]));
    // Now it is what is guessed.
    world.ask(0, &messages::close(file));
    let file = directory(&mut world);
    request.body[8..24].copy_from_slice(&file.0);
    let start = world.now;
    assert_eq!(names(&world.ask(0, &request))[0], "file-00000");
    assert!(world.round_trips(start) < 0.01);
    assert!(world.let_go.is_none());
}

#[test]
fn single_entry_queries_are_not_prefetched() {
    let mut world = world_with(20);
    let file = directory(&mut world);
    for name in all(&world) {
        let answer = world.ask(0, &messages::list(file, SINGLE, 65_536));
        assert_eq!(names(&answer), [name]);
    }
    let before = world.server.count(0, command::QUERY_DIRECTORY);
    // And what was read as it was opened: its names, and that there are no more.
    assert_eq!(before, 22);
    assert!(world.let_go.is_none());
}

#[test]
fn small_queries_get_small_answers() {
    let mut world = world_with(1_000);
    for length in [4_096, 16_384, 20_000, 8 << 20] {
        let file = directory(&mut world);
        assert_eq!(list_all(&mut world, 0, file, length), all(&world));
        world.ask(0, &messages::close(file));
    }
    assert!(world.let_go.is_none());
}

/// The times that a server may take: prefetched data arrives after the client's query, or after the
/// query has reached the far half, or both.
const TAKES: [u64; 6] = [0, 1, 10, 40, 120, 300];

#[test]
fn oversized_answer_is_never_used_later() {
    for takes in TAKES {
        for count in [0, 1, 20, 200, 350, 1_000, 2_000] {
            for (length, flags) in [(16_384, 0), (32_768, 0), (32_768, 0x01), (32_768, 0x10)] {
                let mut world = world_with(count);
                world.server_takes = Duration::from_millis(takes);
                let file = directory(&mut world);
                let mut listed = names(&world.ask(0, &messages::list(file, flags, length)));
                listed.extend(list_all(&mut world, 0, file, length));
                let case = (takes, count, length, flags);
                assert_eq!(listed, all(&world), "{case:?}");
                assert!(world.let_go.is_none(), "{case:?}");
            }
        }
    }
}

#[test]
fn restart_during_prefetch_gets_first_names() {
    for takes in TAKES {
        for pause in [0, 1, 50, 101, 250] {
            let mut world = world_with(2_500);
            world.server_takes = Duration::from_millis(takes);
            let file = directory(&mut world);
            let first = names(&world.ask(0, &messages::list(file, 0, 65_536)));
            world.run_for(Duration::from_millis(pause));
            // The second is asked before the first is answered.
            let begins = world.send(0, &messages::list(file, 0x01, 65_536));
            let follows = world.send(0, &messages::list(file, 0, 65_536));
            let mut again = names(&world.wait(0, begins));
            assert_eq!(again, first, "{takes} ms, {pause} ms");
            again.extend(names(&world.wait(0, follows)));
            again.extend(list_all(&mut world, 0, file, 65_536));
            assert_eq!(again, all(&world), "{takes} ms, {pause} ms");
            assert!(world.let_go.is_none(), "{takes} ms, {pause} ms");
        }
    }
}

#[test]
fn compounded_queries_get_all_names() {
    for takes in TAKES {
        for pause in [0, 60, 1_000] {
            let mut world = world_with(1_000);
            world.server_takes = Duration::from_millis(takes);
            let file = directory(&mut world);
            world.run_for(Duration::from_millis(pause));
            let related = messages::list(FileId::RELATED, 0, 65_536).with_flags(4);
            let ids = world.send_chain(0, &[messages::flush(file), related.clone()]);
            let mut listed = names(&world.wait(0, ids[1]));
            listed.extend(list_all(&mut world, 0, file, 65_536));
            assert_eq!(listed, all(&world), "{takes} ms, {pause} ms");
            assert!(world.let_go.is_none(), "{takes} ms, {pause} ms");
        }
    }
}

#[test]
fn compounded_restart_gets_first_names() {
    for takes in TAKES {
        for pause in [0, 60, 1_000] {
            let mut world = world_with(3_000);
            world.server_takes = Duration::from_millis(takes);
            let file = directory(&mut world);
            let first = names(&world.ask(0, &messages::list(file, 0, 65_536)));
            world.run_for(Duration::from_millis(pause));
            let begins = messages::list(file, 0x01, 65_536);
            let follows = messages::list(FileId::RELATED, 0, 65_536).with_flags(4);
            let ids = world.send_chain(0, &[begins, follows]);
            let mut again = names(&world.wait(0, ids[0]));
            assert_eq!(again, first, "{takes} ms, {pause} ms");
            again.extend(names(&world.wait(0, ids[1])));
            again.extend(list_all(&mut world, 0, file, 65_536));
            assert_eq!(again, all(&world), "{takes} ms, {pause} ms");
            assert!(world.let_go.is_none(), "{takes} ms, {pause} ms");
        }
    }
}

#[test]
fn compounded_list_and_close_gets_first_names() {
    for takes in TAKES {
        for pause in [0, 60, 1_000] {
            let mut world = world_with(1_000);
            world.server_takes = Duration::from_millis(takes);
            let file = directory(&mut world);
            world.run_for(Duration::from_millis(pause));
            let list = messages::list(file, 0, 65_536);
            let close = messages::close(FileId::RELATED).with_flags(4);
            let ids = world.send_chain(0, &[list, close]);
            let listed = names(&world.wait(0, ids[0]));
            assert_eq!(listed, all(&world)[..655], "{takes} ms, {pause} ms");
            assert_eq!(world.wait(0, ids[1]).header.status, status::SUCCESS);
            assert!(world.let_go.is_none(), "{takes} ms, {pause} ms");
        }
    }
}

#[test]
fn refused_query_leaves_the_position() {
    let mut world = world_with(1_000);
    let file = directory(&mut world);
    let mut request = messages::list(file, 0, 65_536);
    request.body[2] = NO_CLASS;
    let refusal = world.ask(0, &request);
    assert_eq!(refusal.header.status, INVALID_INFO_CLASS);
    assert_eq!(list_all(&mut world, 0, file, 65_536), all(&world));
    assert!(world.let_go.is_none());
}

#[test]
fn refused_restart_gets_no_later_names() {
    for takes in TAKES {
        for (waits, goes_on) in [(true, true), (false, true), (true, false), (false, false)] {
            let mut world = world_with(3_000);
            world.server_takes = Duration::from_millis(takes);
            let file = directory(&mut world);
            let first = names(&world.ask(0, &messages::list(file, 0, 65_536)));
            // More of them are with the near half by now.
            world.run_for(Duration::from_secs(1));
            let mut begins = messages::list(file, 0x01, 65_536);
            begins.body[2] = NO_CLASS;
            let refused = world.send(0, &begins);
            if waits {
                let refusal = world.wait(0, refused);
                assert_eq!(refusal.header.status, INVALID_INFO_CLASS);
            }
            if goes_on {
                // From behind the first, where the server stands no more.
                world.send(0, &messages::list(file, 0, 65_536));
                world.run_for(Duration::from_secs(2));
                let reason = ReasonCode::UNSUPPORTED;
                assert_eq!(world.let_go, Some(LettingGo::Close { reason }));
                continue;
            }
            let again = world.send(0, &messages::list(file, 0x01, 65_536));
            let mut again = names(&world.wait(0, again));
            assert_eq!(again, first);
            again.extend(list_all(&mut world, 0, file, 65_536));
            assert_eq!(again, all(&world));
            assert!(world.let_go.is_none());
        }
    }
}

#[test]
fn query_after_a_refused_one_gets_first_names() {
    for takes in TAKES {
        let mut world = world_with(1_000);
        world.server_takes = Duration::from_millis(takes);
        let file = directory(&mut world);
        world.run_for(Duration::from_secs(1));
        let mut request = messages::list(file, 0, 65_536);
        request.body[2] = NO_CLASS;
        world.send(0, &request);
        let listed = world.send(0, &messages::list(file, 0, 65_536));
        let mut listed = names(&world.wait(0, listed));
        assert_eq!(listed[..], all(&world)[..listed.len().max(1)]);
        listed.extend(list_all(&mut world, 0, file, 65_536));
        assert_eq!(listed, all(&world), "{takes} ms");
        assert!(world.let_go.is_none());
    }
}

#[test]
fn a_closed_directory_is_not_listed() {
    for takes in TAKES {
        let mut world = world_with(3_000);
        world.server_takes = Duration::from_millis(takes);
        let file = directory(&mut world);
        world.ask(0, &messages::list(file, 0, 65_536));
        world.run_for(Duration::from_secs(3));
        let closed = world.send(0, &messages::close(file));
        let late = world.send(0, &messages::list(file, 0, 65_536));
        assert_eq!(world.wait(0, closed).header.status, status::SUCCESS);
        assert_eq!(world.wait(0, late).header.status, FILE_CLOSED);
        assert!(world.let_go.is_none(), "{takes} ms");
    }
}

#[test]
fn query_before_close_is_answered() {
    let ends = [
        messages::close as fn(FileId) -> messages::Smb2Message,
        |_| messages::tree_disconnect(),
    ];
    for (takes, length) in TAKES
        .into_iter()
        .flat_map(|takes| [(takes, 16_384), (takes, 65_536)])
    {
        for end in ends {
            let mut world = world_with(1_000);
            world.server_takes = Duration::from_millis(takes);
            let file = directory(&mut world);
            let asked = world.send(0, &messages::list(file, 0, length));
            let follows = world.send(0, &messages::list(file, 0, length));
            let ended = world.send(0, &end(file));
            let mut listed = names(&world.wait(0, asked));
            listed.extend(names(&world.wait(0, follows)));
            // This server's entries are 100 bytes long.
            let count = 2 * (length as usize / 100).min(500);
            assert_eq!(listed, all(&world)[..count], "{takes} ms, {length}");
            assert_eq!(world.wait(0, ended).header.status, status::SUCCESS);
            assert!(world.let_go.is_none(), "{takes} ms");
        }
    }
}

#[test]
fn idle_listings_hold_limited_bytes() {
    let mut world = world_with(6_000);
    let directories: Vec<FileId> = (0..20)
        .map(|_| {
            let file = directory(&mut world);
            world.ask(0, &messages::list(file, 0, 65_536));
            world.run_for(Duration::from_secs(1));
            file
        })
        .collect();
    // What is not here already is at most one block.
    let held = world.buffered();
    assert!(held > LISTINGS_AHEAD / 2, "{held}");
    assert!(held <= LISTINGS_AHEAD + LISTING_BLOCK as usize, "{held}");
    for file in [directories[0], directories[19]] {
        let listed = list_all(&mut world, 0, file, 65_536);
        assert_eq!(listed.last(), all(&world).last());
    }
    assert!(world.let_go.is_none());
}

#[test]
fn questions_that_wait_are_counted_and_limited() {
    let mut world = world_with(10);
    world.server.credits_max = u16::MAX;
    while world.clients[0].credits() < 2 * OUTSTANDING_MAX as u64 {
        world.ask(0, &messages::echo());
    }
    world.server_takes = Duration::from_secs(60);
    let file = directory(&mut world);
    let before = world.buffered();
    for _ in 0..100 {
        world.send(0, &messages::list(file, 0, 65_536));
    }
    world.run_for(Duration::from_secs(1));
    assert!(world.buffered() >= before + 100 * 64);
    for _ in 0..OUTSTANDING_MAX {
        world.send(0, &messages::list(file, 0, 65_536));
    }
    world.run_for(Duration::from_secs(1));
    let reason = ReasonCode::LIMIT;
    assert_eq!(world.let_go, Some(LettingGo::Close { reason }));
}

#[test]
fn changed_continuation_is_closed_without_wrong_names() {
    let mut world = world_with(3_000);
    let file = directory(&mut world);
    world.ask(0, &messages::list(file, 0, 65_536));
    world.run_for(Duration::from_secs(1));
    world.send(0, &messages::list(file, SINGLE, 65_536));
    world.run_for(Duration::from_secs(1));
    let reason = ReasonCode::UNSUPPORTED;
    assert_eq!(world.let_go, Some(LettingGo::Close { reason }));
}

#[test]
fn unlisted_directories_stop_being_prefetched() {
    let mut world = world_with(100);
    for _ in 0..10 {
        let file = directory(&mut world);
        world.run_for(Duration::from_secs(1));
        world.ask(0, &messages::close(file));
    }
    // Its names, and that there are no more.
    assert_eq!(world.server.count(0, command::QUERY_DIRECTORY), 2);
}

#[test]
fn random_listings_are_never_outdated() {
    for seed in 0..20 {
        let mut random = SeededRandom::from_seed(seed);
        let mut world = world_with(1 + random.below(1_000) as usize);
        world.piece = [usize::MAX, 900, 177][random.below(3) as usize];
        for step in 0..15 {
            let file = directory(&mut world);
            if random.below(3) == 0 {
                world.run_for(Duration::from_millis(random.below(200)));
            }
            if random.below(3) == 0 {
                let made = format!("made-{step}");
                let made = world.create(0, &Smb2CreateParameters::open(&made));
                world.ask(0, &messages::close(made));
            }
            if random.below(3) == 0 {
                // By somebody else, and long enough before.
                let name = format!("other-{step}");
                world.server.files.insert(name, Vec::new());
                world.run_for(Duration::from_millis(30));
            }
            let length = [4_096, 16_384, 65_536, 1 << 20][random.below(4) as usize];
            let mut first = [0, 0x01, 0x10][random.below(3) as usize];
            let mut listed = Vec::new();
            loop {
                let answer = world.ask(0, &messages::list(file, first, length));
                first = 0;
                let some = names(&answer);
                if some.is_empty() {
                    break;
                }
                listed.extend(some);
            }
            assert_eq!(listed, all(&world), "seed {seed}, step {step}");
            world.ask(0, &messages::close(file));
        }
        assert!(world.let_go.is_none(), "seed {seed}");
    }
}

#[test]
fn random_queries_follow_the_clients_position() {
    for seed in 0..150 {
        // Who goes on as it began is never cut off.
        let is_steady = seed % 3 > 0;
        let mut random = SeededRandom::from_seed(seed);
        let mut world = world_with(random.below(2_500) as usize);
        let all = all(&world);
        world.piece = [usize::MAX, 900, 177][random.below(3) as usize];
        world.server_takes = Duration::from_millis(TAKES[random.below(6) as usize]);
        for _ in 0..4 {
            let file = directory(&mut world);
            let (mut next, mut is_first) = (0, true);
            let steady = [4_096, 16_384, 32_768, 65_536][random.below(4) as usize];
            for _ in 0..4 {
                if random.below(2) == 0 {
                    world.run_for(Duration::from_millis(random.below(200)));
                }
                // Some at a time, without waiting for answers.
                let mut asked = Vec::new();
                for _ in 0..1 + random.below(3) {
                    let length = [16_384, 65_536, 65_536, 4_096][random.below(4) as usize];
                    let length = if is_steady { steady } else { length };
                    let flags = [0, 0, 0, 0x01, 0x10, SINGLE][random.below(6) as usize];
                    let flags = if is_steady { flags & 0x11 } else { flags };
                    let list = messages::list(file, flags, length);
                    let may_chain = !is_steady || std::mem::take(&mut is_first);
                    let id = match random.below(5) {
                        0 if may_chain => world.send_chain(0, &[messages::flush(file), list])[1],
                        _ => world.send(0, &list),
                    };
                    asked.push((id, flags, length));
                }
                for (id, flags, length) in asked {
                    let is_there = |world: &Smb2World| world.clients[0].answered.contains_key(&id);
                    world.run_until(Duration::from_secs(10), |world| {
                        world.let_go.is_some() || is_there(world)
                    });
                    if !is_there(&world) {
                        assert!(
                            world.let_go.is_some(),
                            "seed {seed}: {id} is never answered"
                        );
                        break;
                    }
                    let got = names(&world.wait(0, id));
                    let begin = if flags & 0x11 == 0 { next } else { 0 };
                    next = begin + got.len();
                    // As many as fit are not owed, but some are.
                    assert!(got[..] == all[begin..next], "seed {seed}: not from {begin}");
                    assert!(
                        !got.is_empty() || begin == all.len(),
                        "seed {seed}: at {begin}"
                    );
                    assert!(got.len() * 100 <= length as usize, "seed {seed}");
                    assert!(got.len() < 2 || flags != SINGLE, "seed {seed}");
                }
            }
            if world.let_go.is_some() {
                break;
            }
            world.ask(0, &messages::close(file));
        }
        let reason = ReasonCode::UNSUPPORTED;
        let cut_off = Some(LettingGo::Close { reason });
        let is_fine = world.let_go.is_none() || !is_steady && world.let_go == cut_off;
        assert!(is_fine, "seed {seed}: {:?}", world.let_go);
    }
}
