//! READs ahead of a serial client.

use std::time::Duration;

use vocab::SeededRandom;

use super::{ROUND_TRIP, contents, world};
use crate::smb::far::read_ahead::looks;
use crate::smb::nt1::testing::server::{INVALID_HANDLE, LOCK_CONFLICT};
use crate::smb::nt1::testing::world::Smb1World;
use crate::smb::nt1::testing::{
    Smb1CreateParameters, chained, close, echo, find_first, header, lock_ranges, locking,
    negotiate, process_exit, query_file, read, read_old, seek, session_setup, set_size,
    set_size_by_name, tell, tree_connect, tree_disconnect, unix_open_with, write,
};
use crate::smb::nt1::wire::WORDS_AT;
use crate::smb::nt1::wire::create::{NtCreateResponse, opened_file};
use crate::smb::nt1::wire::header::command;
use crate::smb::wire::u32_at;

const BLOCK: u32 = 60_000;

/// Reads a file of this length to its end, a block at a time.
fn read_all(world: &mut Smb1World, file: u16, length: usize) -> Vec<u8> {
    let mut whole = Vec::new();
    while whole.len() <= length {
        let answer = world.ask(0, &read(file, whole.len() as u64, BLOCK));
        if answer.data().is_empty() {
            break;
        }
        whole.extend_from_slice(answer.data());
    }
    whole
}

#[test]
fn serial_reader_waits_for_few_round_trips() {
    const LENGTH: usize = 100 * BLOCK as usize + 77;
    for piece in [usize::MAX, 1_000] {
        let mut world = world(LENGTH);
        world.piece = piece;
        let file = world.open(0, "a");
        let time = world.takes(|world| {
            assert!(read_all(world, file, LENGTH) == contents(LENGTH));
        });
        // The path has no rate here: what is left is the window's growth.
        assert!(time <= 12 * ROUND_TRIP, "{time:?} for 101 blocks");
        assert!(world.answered() >= 100, "{}", world.answered());
        let asked = world.server.heard.iter();
        let reads = asked.filter(|heard| **heard == command::READ).count();
        assert!(reads <= 104, "{reads} READs for 101 blocks");
        assert_eq!(world.ask(0, &close(file)).header.status, 0);
        world.run_for(ROUND_TRIP);
        assert_eq!(world.server.open_count(), 0);
    }
}

#[test]
fn small_read_only_file_arrives_with_its_open() {
    let mut world = world(10_000);
    let create = Smb1CreateParameters {
        access: 0x0002_0089,
        ..Smb1CreateParameters::file("a")
    };
    let answer = world.ask(0, &create.message());
    let file = NtCreateResponse::parse(&answer.message).unwrap().file;
    let time = world.takes(|world| {
        assert!(world.ask(0, &read(file, 0, 65_000)).data() == contents(10_000));
        assert!(world.ask(0, &read(file, 10_000, 65_000)).data().is_empty());
    });
    assert!(time < ROUND_TRIP / 2, "{time:?}");
}

/// As the Linux kernel's client opens files with the Unix extensions.
#[test]
fn file_opened_by_unix_extensions_arrives_with_its_open() {
    let mut world = world(10_000);
    for _ in 0..3 {
        let answer = world.ask(0, &unix_open_with("a", 2, 1));
        let file = opened_file(&answer.message).unwrap();
        let time = world.takes(|world| {
            assert!(world.ask(0, &read(file, 0, 12_288)).data() == contents(10_000));
            assert!(world.ask(0, &read(file, 10_000, 12_288)).data().is_empty());
        });
        assert!(time < ROUND_TRIP / 2, "{time:?}");
        assert_eq!(world.ask(0, &close(file)).header.status, 0);
    }
    world.run_for(ROUND_TRIP);
    assert_eq!(world.server.open_count(), 0);
    assert_eq!(world.note().as_deref(), Some("3 opens served"));
}

#[test]
fn writable_file_is_not_prefetched_before_reads() {
    let mut world = world(10_000);
    world.open(0, "a");
    world.run_for(ROUND_TRIP);
    assert!(!world.server.heard.contains(&command::READ));
}

#[test]
fn own_oplock_stays_hidden_and_clients_is_kept() {
    let mut world = world(100);
    let answer = world.ask(0, &Smb1CreateParameters::file("a").message());
    assert_eq!(answer.message[37], 0, "it asked for none");
    let create = Smb1CreateParameters {
        flags: 0x06,
        ..Smb1CreateParameters::file("b")
    };
    let answer = world.ask(0, &create.message());
    assert_eq!(answer.message[37], 2, "it asked for a batch oplock");
}

#[test]
fn short_answer_alone_is_not_end_of_file() {
    let mut world = world(500_000);
    world.server.read_most = Some(4_000);
    let file = world.open(0, "a");
    assert!(read_all(&mut world, file, 500_000) == contents(500_000));
}

#[test]
fn local_answer_is_no_longer_than_the_servers() {
    let mut world = Smb1World::new(super::DELAY);
    world.server.has_short_reads = true;
    world.server.files.insert("a".to_owned(), contents(500_000));
    world.set_up(0);
    let file = world.open(0, "a");
    for at in 0..40 {
        let at = at * 4_000;
        let answer = world.ask(0, &read(file, at, 4_000));
        assert!(answer.data() == &contents(500_000)[at as usize..][..4_000]);
    }
    assert!(world.answered() >= 30, "{}", world.answered());
    world.run_for(ROUND_TRIP * 5);
    // Its client's buffer has 4,356 bytes; and lengths have no upper half.
    for (length, given) in [
        (4_296, 4_296),
        (4_297, 4_296),
        (9_000, 4_296),
        (0x1_0005, 5),
    ] {
        let answer = world.ask(0, &read(file, 160_000, length));
        assert!(answer.data() == &contents(500_000)[160_000..][..given]);
    }
    let mut world = super::world(500_000);
    let file = world.open(0, "a");
    world.ask(0, &read(file, 0, 0x1_0000));
    world.ask(0, &read(file, 0x1_0000, 0x1_0000));
    world.run_for(ROUND_TRIP * 5);
    // No frame of NetBIOS is longer.
    let answer = world.ask(0, &read(file, 0x2_0000, 0x1_ffff));
    assert_eq!(answer.message.len(), 0x1_ffff);
}

#[test]
fn read_after_change_gets_new_data() {
    let mut world = world(300_000);
    let file = world.open(0, "a");
    for offset in [0, 60_000, 120_000] {
        world.ask(0, &read(file, offset, BLOCK));
    }
    assert_eq!(world.ask(0, &set_size(file, 150_000)).header.status, 0);
    let data = world.ask(0, &read(file, 120_000, BLOCK)).data().to_vec();
    assert!(data == contents(150_000)[120_000..]);
}

#[test]
fn position_follows_the_clients_own_reads() {
    let mut world = world(1 << 20);
    let file = world.open(0, "a");
    for offset in [0, 60_000, 120_000] {
        world.ask(0, &read(file, offset, BLOCK));
    }
    let answer = world.ask(0, &seek(file, 1, 0));
    assert_eq!(u32_at(&answer.message, 33), Ok(180_000));
    // And again with more ahead.
    world.ask(0, &read(file, 180_000, BLOCK));
    let answer = world.ask(0, &seek(file, 1, 5));
    assert_eq!(u32_at(&answer.message, 33), Ok(240_005));
}

#[test]
fn sought_position_survives_prefetching() {
    let mut world = world(32 << 20);
    // So slowly that there is always something left to read ahead.
    world.server_takes = Duration::from_millis(100);
    let file = world.open(0, "a");
    for offset in [0, 60_000, 120_000, 180_000, 240_000] {
        world.ask(0, &read(file, offset, BLOCK));
    }
    let sought = |world: &mut Smb1World, from, by| {
        let answer = world.ask(0, &seek(file, from, by));
        world.server.heard.clear();
        world.run_for(ROUND_TRIP * 5);
        // So that there is something to put right.
        assert!(world.server.heard.contains(&command::READ));
        u32_at(&answer.message, 33).unwrap()
    };
    assert_eq!(sought(&mut world, 0, 500), 500);
    assert_eq!(
        u32_at(&world.ask(0, &seek(file, 1, 0)).message, 33),
        Ok(500)
    );
    // The other position is where the last READ has left it.
    let told = |world: &mut Smb1World| {
        let answer = world.ask(0, &query_file(file, 1_014)).message;
        u64::from_le_bytes(answer[answer.len() - 8..].try_into().unwrap())
    };
    assert_eq!(told(&mut world), 300_000);
    world.ask(0, &write(file, 70, b"written").0);
    assert_eq!(told(&mut world), 300_000);
    assert_eq!(u32_at(&world.ask(0, &seek(file, 1, 0)).message, 33), Ok(77));
    assert_eq!(world.ask(0, &tell(file, 9)).header.status, 0);
    world.ask(0, &read(file, 0, 100));
    world.ask(0, &read(file, 100, 100));
    world.ask(0, &read(file, 200, 100));
    world.ask(0, &tell(file, 7));
    world.run_for(ROUND_TRIP * 5);
    assert_eq!(told(&mut world), 7);
    assert_eq!(
        u32_at(&world.ask(0, &seek(file, 1, 0)).message, 33),
        Ok(300)
    );
    // Back to where it began, which no READ of a byte before it reaches.
    assert_eq!(world.ask(0, &seek(file, 0, 0)).header.status, 0);
    world.ask(0, &read(file, 300, 0));
    assert_eq!(told(&mut world), 300);
}

#[test]
fn position_known_only_to_the_server_passes() {
    let mut world = world(4 << 20);
    world.server_takes = Duration::from_millis(1);
    let file = world.open(0, "a");
    for offset in [0, 60_000, 120_000] {
        world.ask(0, &read(file, offset, BLOCK));
    }
    world.ask(0, &read_old(file, 40, 2));
    world.run_for(ROUND_TRIP * 5);
    assert_eq!(u32_at(&world.ask(0, &seek(file, 1, 0)).message, 33), Ok(42));
    assert!(world.ask(0, &read(file, 180_000, 10)).data() == &contents(1 << 20)[180_000..180_010]);
    assert_eq!(
        u32_at(&world.ask(0, &seek(file, 1, 0)).message, 33),
        Ok(180_010)
    );
}

#[test]
fn chain_passes_unchanged_and_ends_the_licence() {
    let mut world = world(1 << 20);
    let file = world.open(0, "a");
    for offset in [0, 60_000] {
        world.ask(0, &read(file, offset, BLOCK));
    }
    let answered = world.answered();
    assert!(answered > 0);
    let sent = chained(&read(file, 120_000, BLOCK));
    world.ask(0, &sent);
    // All of it but the multiplex id.
    let tail = &world.server.bytes[world.server.bytes.len() - sent.len() + 32..];
    assert!(tail == &sent[32..]);
    assert_eq!(world.server.open_count(), 0);
    let status = world.ask(0, &read(file, 120_000, BLOCK)).header.status;
    assert_ne!(status, 0, "its file is closed");
    assert_eq!(world.answered(), answered);
    // Its oplock is given back meanwhile, which the server does not like any more.
    world.run_for(ROUND_TRIP * 2);
    assert_eq!(world.let_go, None);
    let file = world.open(0, "a");
    assert!(world.ask(0, &read(file, 60_000, BLOCK)).data() == &contents(1 << 20)[60_000..120_000]);
    assert!(world.clients[0].answered.is_empty());
}

#[test]
fn lock_for_another_process_goes_to_the_server() {
    let mut world = world(200_000);
    let file = world.open(0, "a");
    world.ask(0, &read(file, 0, BLOCK));
    world.clients[0].process = Some(1_234);
    // Its range names process 77.
    world.ask(0, &locking(file, 0, 1));
    let before = world.answered();
    world.ask(0, &read(file, 60_000, BLOCK));
    assert_eq!(world.answered(), before);
}

#[test]
fn locks_of_several_processes_go_to_the_server() {
    let mut world = world(200_000);
    let file = world.open(0, "a");
    world.ask(0, &read(file, 0, BLOCK));
    world.ask(0, &read(file, 60_000, BLOCK));
    world.ask(0, &lock_ranges(file, 0, false, &[(77, 0), (88, 130_000)]));
    let before = world.answered();
    // The client's process is 77, and 88 has locked a part of this.
    let status = world.ask(0, &read(file, 120_000, BLOCK)).header.status;
    assert_eq!(status, LOCK_CONFLICT);
    assert_eq!(
        world.ask(0, &write(file, 130_000, b"x").0).header.status,
        LOCK_CONFLICT
    );
    assert_eq!(world.answered(), before);
}

#[test]
fn any_file_change_stops_prefetching() {
    let mut world = world(4 << 20);
    let file = world.open(0, "a");
    for offset in [0, 60_000, 120_000] {
        world.ask(0, &read(file, offset, BLOCK));
    }
    world.run_for(ROUND_TRIP * 2);
    world.server_takes = ROUND_TRIP * 3;
    world.server.heard.clear();
    world.send(0, &header(0x00).alone());
    world.send(0, &read(file, 180_000, BLOCK));
    world.run_for(ROUND_TRIP * 2);
    assert_eq!(world.server.heard, [0x00, command::READ]);
    world.run_for(ROUND_TRIP * 5);
    assert!(world.server.heard.len() > 2, "and is again behind it");
}

#[test]
fn open_with_truncation_leaves_end_uncertain() {
    let mut world = world(100);
    world.send(0, &Smb1CreateParameters::file("a").message());
    world.send(0, &set_size_by_name("a", 1_000));
    let file = NtCreateResponse::parse(&world.wait(0).message)
        .unwrap()
        .file;
    assert_eq!(world.wait(0).header.status, 0);
    assert_eq!(world.ask(0, &read(file, 100, 50)).data(), [0; 50]);
}

#[test]
fn later_server_change_leaves_end_uncertain() {
    let mut world = world(100);
    world.server.creates_first = true;
    world.server_takes = Duration::from_millis(5);
    world.server.disorder = Some(SeededRandom::from_seed(1));
    let resized = world.send(0, &set_size_by_name("a", 1_000));
    let opened = world.send(0, &Smb1CreateParameters::file("a").message());
    let mut file = 0;
    for _ in 0..2 {
        let answer = world.wait(0);
        assert_eq!(answer.header.status, 0);
        assert!([resized, opened].contains(&answer.header.mid));
        if answer.header.mid == opened {
            let create = NtCreateResponse::parse(&answer.message).unwrap();
            assert_eq!(create.size, 100, "it was opened first");
            file = create.file;
        }
    }
    assert_eq!(world.ask(0, &read(file, 100, 50)).data(), [0; 50]);
}

#[test]
fn open_that_ends_at_once_is_not_served() {
    for end in [process_exit(), tree_disconnect()] {
        let mut world = world(100);
        world.send(0, &Smb1CreateParameters::file("a").message());
        world.send(0, &end);
        let file = NtCreateResponse::parse(&world.wait(0).message)
            .unwrap()
            .file;
        // It is not the near half's to answer while the other answer is on its way, either.
        let before = world.answered();
        world.send(0, &write(file, 0, b"lost").0);
        assert_eq!(world.answered(), before);
        assert_eq!(world.wait(0).header.status, 0);
        assert_eq!(world.wait(0).header.status, INVALID_HANDLE);
        let status = world.ask(0, &read(file, 200, 10)).header.status;
        assert_eq!(status, INVALID_HANDLE);
        world.run_for(ROUND_TRIP * 2);
        assert_eq!(world.let_go, None);
        assert!(world.clients[0].answered.is_empty());
    }
}

#[test]
fn failed_write_leaves_the_position() {
    let mut world = world(4 << 20);
    let file = world.open(0, "a");
    for offset in [0, 60_000, 120_000] {
        world.ask(0, &read(file, offset, BLOCK));
    }
    world.run_for(ROUND_TRIP * 2);
    world.ask(0, &lock_ranges(file, 0, false, &[(88, 10)]));
    let status = world.ask(0, &write(file, 0, &[1; 100]).0).header.status;
    assert_eq!(status, LOCK_CONFLICT);
    assert_eq!(
        u32_at(&world.ask(0, &seek(file, 1, 0)).message, 33),
        Ok(180_000)
    );
}

#[test]
fn locked_read_moves_no_position() {
    let mut world = world(200_000);
    let file = world.open(0, "a");
    for offset in [0, 60_000, 120_000] {
        world.ask(0, &read(file, offset, BLOCK));
    }
    world.ask(0, &lock_ranges(file, 0, false, &[(77, 300_000)]));
    world.clients[0].process = Some(88);
    let status = world.ask(0, &read(file, 300_000, 10)).header.status;
    assert_eq!(status, LOCK_CONFLICT);
    let answer = world.ask(0, &query_file(file, 1_014)).message;
    assert_eq!(answer[answer.len() - 8..], 180_000u64.to_le_bytes());
}

#[test]
fn large_read_needs_the_clients_capability() {
    let mut world = Smb1World::new(super::DELAY);
    world.server.files.insert("a".to_owned(), contents(500_000));
    world.server.ignores_high_lengths = true;
    world.ask(0, &negotiate());
    let mut message = session_setup();
    // Its capabilities.
    message[WORDS_AT + 22..WORDS_AT + 26].fill(0);
    world.clients[0].user = world.ask(0, &message).header.user;
    world.clients[0].tree = world.ask(0, &tree_connect()).header.tree;
    let file = world.open(0, "a");
    for offset in [0, 60_000, 120_000] {
        world.ask(0, &read(file, offset, BLOCK));
    }
    assert!(world.answered() > 0, "up to 16 bits it is read ahead of");
    world.run_for(ROUND_TRIP * 2);
    assert_eq!(world.ask(0, &read(file, 180_000, 0x1_0005)).data().len(), 5);
}

#[test]
fn an_answer_in_two_messages_comes_whole() {
    let mut world = world(100);
    world.open(0, "a");
    world.send(0, &find_first());
    let first = world.wait(0);
    let second = world.wait(0);
    assert_eq!(first.header.mid, second.header.mid);
    let file = world.open(0, "b");
    assert_eq!(world.ask(0, &close(file)).header.status, 0);
}

#[test]
fn range_locked_by_another_goes_to_the_server() {
    let mut world = world(200_000);
    let file = world.open(0, "a");
    world.ask(0, &read(file, 0, BLOCK));
    world.ask(0, &locking(file, 0, 1));
    let before = world.answered();
    world.ask(0, &read(file, 60_000, BLOCK));
    assert!(world.answered() > before, "its own lock is in nobody's way");
    world.clients[0].process = Some(1_234);
    let before = world.answered();
    world.ask(0, &read(file, 120_000, BLOCK));
    assert_eq!(world.answered(), before);
}

/// The data that opens want read ahead is limited for all of them together. The sum needs one look
/// at each open, if any open wants data.
#[test]
fn message_cost_is_one_look_per_open() {
    const OPENS: usize = 200;
    let mut world = world(0);
    let data = contents(200_000);
    let mut files = Vec::new();
    for number in 0..OPENS {
        let name = format!("{number}");
        world.server.files.insert(name.clone(), data.clone());
        files.push(world.open(0, &name));
    }
    world.run_for(Duration::from_secs(1));
    let looks_at_echoes = |world: &mut Smb1World| {
        looks::take();
        for _ in 0..10 {
            world.ask(0, &echo(1));
        }
        looks::take()
    };
    assert_eq!(looks_at_echoes(&mut world), 0);
    for file in files {
        for offset in [0, u64::from(BLOCK)] {
            world.ask(0, &read(file, offset, BLOCK));
        }
    }
    world.run_for(Duration::from_secs(1));
    // An echo comes in a few pieces, as does its answer, and there are timers.
    let looked = looks_at_echoes(&mut world);
    assert!(looked > 0 && looked <= 10 * 20 * OPENS, "{looked}");
}
