//! Serial writers: their waits, and the reports of losses.

use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::DISK_FULL;
use super::super::testing::world::Smb2World;
use super::super::wire::FileId;
use super::super::wire::header::status;
use super::{contents, open, read, world_with};

const BLOCK: usize = 60_000;

/// Writes that many blocks, one after the other. Returns the statuses.
fn write_blocks(world: &mut Smb2World, file: FileId, blocks: usize) -> Vec<u32> {
    let whole = contents(blocks * BLOCK);
    whole
        .chunks(BLOCK)
        .enumerate()
        .map(|(index, block)| {
            let offset = (index * BLOCK) as u64;
            let answer = world.ask(0, &messages::write(file, offset, block));
            answer.header.status
        })
        .collect()
}

#[test]
fn serial_writer_waits_only_for_open_and_close() {
    let mut world = world_with(0);
    let start = world.now;
    let file = open(&mut world, 0);
    write_blocks(&mut world, file, 100);
    let answer = world.ask(0, &messages::close(file));
    assert_eq!(answer.header.status, status::SUCCESS);
    assert!(world.round_trips(start) <= 2.01);
    assert!(world.server.files["a"] == contents(100 * BLOCK));
}

#[test]
fn flush_is_answered_after_all_writes() {
    let mut world = world_with(0);
    let file = open(&mut world, 0);
    write_blocks(&mut world, file, 10);
    assert!(world.server.files["a"].is_empty());
    world.ask(0, &messages::flush(file));
    assert!(world.server.files["a"] == contents(10 * BLOCK));
}

#[test]
fn no_more_is_answered_than_may_be_lost() {
    let mut world = world_with(0);
    let file = open(&mut world, 0);
    let start = world.now;
    // More than BEHIND_MAX: the writer waits for confirmations, but not for each.
    write_blocks(&mut world, file, 300);
    let waited = world.round_trips(start);
    assert!((0.9..=3.0).contains(&waited), "{waited}");
    world.ask(0, &messages::close(file));
    assert!(world.server.files["a"] == contents(300 * BLOCK));
}

#[test]
fn full_disk_is_reported_until_close() {
    let mut world = world_with(0);
    world.server.disk = 5 * BLOCK + 1;
    let file = open(&mut world, 0);
    let heard = write_blocks(&mut world, file, 10);
    assert_eq!(heard, vec![status::SUCCESS; 10]);
    for request in [
        messages::flush(file),
        messages::write(file, 0, b"again"),
        messages::set_end(file, 5),
        messages::close(file),
    ] {
        let answer = world.ask(0, &request);
        assert_eq!(answer.header.status, DISK_FULL, "{request:?}");
    }
    // The next open of the file has nothing to do with it.
    let file = open(&mut world, 0);
    let answer = world.ask(0, &messages::close(file));
    assert_eq!(answer.header.status, status::SUCCESS);
}

#[test]
fn compounded_close_reports_a_loss() {
    let mut world = world_with(0);
    world.server.disk = 10;
    let file = open(&mut world, 0);
    write_blocks(&mut world, file, 1);
    let ids = world.send_chain(0, &[messages::flush(file), messages::close(file)]);
    for id in ids {
        assert_eq!(world.wait(0, id).header.status, DISK_FULL);
    }
}

#[test]
fn written_data_is_read_back() {
    let mut world = world_with(200_000);
    let file = open(&mut world, 0);
    let mut expected = contents(200_000);
    assert_eq!(read(&mut world, 0, file, 0, 50_000), &expected[..50_000]);
    world.ask(0, &messages::write(file, 60_000, &[7; 1_000]));
    expected[60_000..61_000].fill(7);
    assert_eq!(
        read(&mut world, 0, file, 50_000, 50_000),
        &expected[50_000..100_000]
    );
    world.ask(0, &messages::set_end(file, 120_000));
    assert_eq!(
        read(&mut world, 0, file, 100_000, 50_000),
        &expected[100_000..120_000]
    );
    assert_eq!(read(&mut world, 0, file, 120_000, 50_000), []);
}

#[test]
fn durable_or_unauthorised_writes_wait_for_the_server() {
    let mut world = world_with(0);
    let file = open(&mut world, 0);
    let start = world.now;
    let mut through = messages::write(file, 0, b"through");
    through.body[44] = 1;
    world.ask(0, &through);
    assert!(world.round_trips(start) >= 1.0);
    let reader = world.create(
        0,
        &Smb2CreateParameters {
            name: "b",
            access: 0x1,
            ..Smb2CreateParameters::open("b")
        },
    );
    let start = world.now;
    world.ask(
        0,
        &messages::write(reader, 0, b"not allowed, says the server"),
    );
    assert!(world.round_trips(start) >= 1.0);
}

#[test]
fn no_request_overtakes_what_is_held_for_written() {
    let mut world = world_with(0);
    world.server.credits_max = 8;
    let file = open(&mut world, 0);
    write_blocks(&mut world, file, 20);
    let other = world.create(0, &Smb2CreateParameters::open("b"));
    // The open of another file came behind all that was written before it.
    assert!(world.server.files["a"] == contents(20 * BLOCK));
    world.ask(0, &messages::close(other));
}
