//! Serial readers: their waits, counted in round trips.

use std::time::Duration;

use super::super::far::read_ahead::looks;
use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::world::Smb2World;
use super::super::wire::header::command;
use super::{DELAY, contents, open, read, world_with};

const BLOCK: u32 = 60_000;

/// Reads the file "a" block by block until it ends, and checks every byte.
fn read_all(world: &mut Smb2World, length: usize, block: u32) {
    let file = open(world, 0);
    let mut got = Vec::new();
    loop {
        let data = read(world, 0, file, got.len() as u64, block);
        if data.is_empty() {
            break;
        }
        got.extend(data);
    }
    assert!(got == contents(length), "the contents differ");
    world.ask(0, &messages::close(file));
}

#[test]
fn serial_reader_waits_for_few_round_trips() {
    let length = 100 * BLOCK as usize;
    let mut world = world_with(length);
    let start = world.now;
    read_all(&mut world, length, BLOCK);
    let round_trips = world.round_trips(start);
    // The open, the close, and the window of what is ahead as it opens: it doubles.
    assert!(round_trips <= 8.01, "{round_trips}");
    assert!(world.let_go.is_none());
}

#[test]
fn bandwidth_limits_a_serial_reader() {
    // T1 and OC-1 with the delays of the published tables, 15 s of data.
    for (rate, delay) in [(193_000.0, 30), (193_000.0, 250), (6_480_000.0, 250)] {
        let length = (15.0 * rate) as u64;
        let mut world = Smb2World::new(Duration::from_millis(delay));
        world.rate = Some(rate);
        let whole = vec![1; length as usize];
        world.server.files.insert("a".to_owned(), whole);
        world.set_up(0);
        let file = open(&mut world, 0);
        let start = world.now;
        for offset in (0..length).step_by(BLOCK as usize) {
            let answer = world.ask(0, &messages::read(file, offset, BLOCK));
            assert!(!answer.data().is_empty());
        }
        let seconds = world.now.since(start).as_secs_f64();
        let share = length as f64 / seconds / rate;
        assert!(
            share > 0.9,
            "{share} of {rate} bytes a second at {delay} ms"
        );
    }
}

#[test]
fn no_block_crosses_the_path_twice() {
    let length = 3_000_000;
    let mut world = world_with(length);
    read_all(&mut world, length, 65_536);
    assert!(
        world.wan_bytes < length as u64 + 20_000,
        "{}",
        world.wan_bytes
    );
}

#[test]
fn small_file_is_read_with_its_open() {
    let mut world = world_with(10_000);
    let start = world.now;
    let file = open(&mut world, 0);
    assert_eq!(read(&mut world, 0, file, 0, 65_536), contents(10_000));
    assert_eq!(read(&mut world, 0, file, 10_000, 65_536), []);
    world.ask(0, &messages::close(file));
    assert!(world.round_trips(start) <= 1.01);
}

/// A document as an office program opens it: a LOCK, its first piece, its last ones, and then the rest.
#[test]
fn document_is_opened_in_few_round_trips() {
    const PIECE: usize = 8_192;
    for length in [60_000, 226_500, 2_100_000] {
        let mut world = world_with(length);
        let whole = contents(length);
        let start = world.now;
        let file = open(&mut world, 0);
        world.ask(0, &messages::lock(file));
        let pieces = length.div_ceil(PIECE);
        let tail = pieces - 8..pieces;
        for piece in [0].into_iter().chain(tail).chain(1..pieces - 8) {
            let at = piece * PIECE;
            let data = read(&mut world, 0, file, at as u64, PIECE as u32);
            assert!(data == whole[at..length.min(at + PIECE)], "piece {piece}");
        }
        let round_trips = world.round_trips(start);
        // The open, the LOCK, the end, and the window ahead at the start, which doubles.
        let most = if length < 65_536 { 2.01 } else { 7.01 };
        assert!(round_trips <= most, "{length}: {round_trips}");
    }
}

#[test]
fn every_cut_of_the_streams_gives_the_same() {
    for piece in [1, 3, 64, 67, 68, 69, 84, 100, 4_096] {
        let mut world = world_with(150_000);
        world.piece = piece;
        read_all(&mut world, 150_000, 10_000);
        assert!(world.let_go.is_none());
    }
}

#[test]
fn server_granting_one_credit_is_prefetched() {
    let length = 50 * BLOCK as usize;
    let mut world = Smb2World::new(DELAY);
    world.server.credits_max = 1;
    world.server.dialect = 0x0202;
    world.server.files.insert("a".to_owned(), contents(length));
    world.set_up(0);
    let start = world.now;
    read_all(&mut world, length, BLOCK);
    let round_trips = world.round_trips(start);
    assert!(round_trips <= 9.01, "{round_trips}");
}

#[test]
fn random_reader_gets_correct_data() {
    let length = 400_000;
    let mut world = world_with(length);
    let whole = contents(length);
    let file = open(&mut world, 0);
    let mut seed = 1u64;
    for _ in 0..200 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset = (seed >> 33) % 410_000;
        let count = 1 + (seed >> 20) % 50_000;
        for step in 0..(seed >> 60) % 4 {
            let at = offset + step * count;
            let data = read(&mut world, 0, file, at, count as u32);
            let start = (at as usize).min(length);
            let end = (start + count as usize).min(length);
            assert_eq!(data, &whole[start..end]);
        }
    }
}

/// A document's first blocks are kept while the client reads elsewhere. What the near half no longer has of them, the
/// far half must not count on: a CLOSE that follows the READ would arrive at the server first.
#[test]
fn read_of_forgotten_blocks_is_answered_before_the_close_behind_it() {
    const PIECE: u32 = 65_536;
    let length = 8 << 20;
    let mut world = world_with(length);
    let whole = contents(length);
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 8_192);
    // A run that is too long to be set aside, and one behind it.
    for (start, pieces) in [(2 << 20, 4), (5 << 20, 4)] {
        for piece in 0..pieces {
            let at = start + piece * u64::from(PIECE);
            let data = read(&mut world, 0, file, at, PIECE);
            assert!(data == whole[at as usize..(at + u64::from(PIECE)) as usize]);
        }
    }
    let reading = world.send(0, &messages::read(file, 8_192, 8_192));
    let closing = world.send(0, &messages::close(file));
    let answer = world.wait(0, reading);
    assert_eq!(answer.header.status, 0);
    assert!(answer.data() == &whole[8_192..16_384]);
    assert_eq!(world.wait(0, closing).header.status, 0);
}

#[test]
fn a_client_that_pipelines_gets_everything_once() {
    let length = 3_000_000;
    let mut world = world_with(length);
    let file = open(&mut world, 0);
    let ids: Vec<u64> = (0..30)
        .map(|index| world.send(0, &messages::read(file, index * 100_000, 100_000)))
        .collect();
    let start = world.now;
    let mut got = Vec::new();
    for id in ids {
        got.extend_from_slice(world.wait(0, id).data());
    }
    assert!(got == contents(length));
    assert!(world.round_trips(start) <= 3.01);
}

#[test]
fn position_follows_the_clients_own_reads() {
    let mut world = world_with(100_000);
    let file = open(&mut world, 0);
    let position = |world: &mut Smb2World| {
        let answer = world.ask(0, &messages::query_position(file));
        u64::from_le_bytes(answer.body[8..16].try_into().unwrap())
    };
    assert_eq!(position(&mut world), 0);
    for block in 0..6u64 {
        read(&mut world, 0, file, block * 20_000, 20_000);
        assert_eq!(position(&mut world), (block * 20_000 + 20_000).min(100_000));
    }
    // Or where it has been set, as smbtorture's `replay.replay-commands` does.
    read(&mut world, 0, file, 0, 20_000);
    world.ask(0, &messages::set_position(file, 4_096));
    assert_eq!(position(&mut world), 4_096);
    read(&mut world, 0, file, 20_000, 20_000);
    read(&mut world, 0, file, 40_000, 20_000);
    assert_eq!(position(&mut world), 60_000);
}

#[test]
fn opens_with_special_options_are_not_served() {
    let cases: [Smb2CreateParameters<'_>; 5] = [
        Smb2CreateParameters {
            context: Some(b"DHnQ"),
            ..Smb2CreateParameters::open("a")
        },
        Smb2CreateParameters {
            options: 0x2,
            ..Smb2CreateParameters::open("a")
        },
        Smb2CreateParameters {
            options: 0x1000,
            ..Smb2CreateParameters::open("a")
        },
        Smb2CreateParameters {
            // To read attributes.
            access: 0x80,
            ..Smb2CreateParameters::open("a")
        },
        Smb2CreateParameters {
            oplock: 1,
            ..Smb2CreateParameters::open("a")
        },
    ];
    for create in cases {
        let mut world = world_with(100_000);
        let answer = world.created(0, &create);
        assert_eq!(answer.oplock_level, create.oplock);
        read(&mut world, 0, answer.file, 0, 10_000);
        read(&mut world, 0, answer.file, 10_000, 10_000);
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.server.count(0, command::READ), 2, "{create:?}");
    }
}

/// The data that opens want read ahead is limited for all of them together. The sum needs one look
/// at each open.
#[test]
fn message_cost_is_one_look_per_open() {
    const OPENS: usize = 400;
    let mut world = world_with(0);
    let data = contents(100_000);
    for number in 0..OPENS {
        let name = format!("{number}");
        world.server.files.insert(name.clone(), data.clone());
        world.create(0, &Smb2CreateParameters::open(&name));
    }
    world.run_for(Duration::from_secs(1));
    assert!((1..OPENS).contains(&world.server.count(0, command::READ)));
    looks::take();
    for _ in 0..10 {
        world.ask(0, &messages::echo());
    }
    // It comes in a few pieces, as does its answer, and there are timers.
    let looked = looks::take();
    assert!(looked > 0 && looked <= 10 * 20 * OPENS, "{looked}");
}
