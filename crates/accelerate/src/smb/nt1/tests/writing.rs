//! WRITEs that are answered before the server has them.

use std::time::Duration;

use super::{ROUND_TRIP, contents, world};
use crate::smb::nt1::testing::server::{DISK_FULL, MPX};
use crate::smb::nt1::testing::{
    Smb1CreateParameters, close, flush, locking, open_andx, query_file, set_size,
    set_size_in_parts, tree_disconnect, write,
};
use crate::smb::nt1::wire::header::command;

const BLOCK: usize = 60_000;

#[test]
fn serial_writer_waits_only_for_open_and_close() {
    for (has_one_mid, piece) in [(true, usize::MAX), (false, 999)] {
        let mut world = world(0);
        world.clients[0].has_one_mid = has_one_mid;
        world.piece = piece;
        world.server_takes = Duration::from_millis(2);
        let file = world.open(0, "a");
        let data = contents(40 * BLOCK);
        let time = world.takes(|world| {
            for (index, block) in data.chunks(BLOCK).enumerate() {
                let answer = world.ask(0, &write(file, (index * BLOCK) as u64, block).0);
                assert_eq!(answer.header.status, 0);
                assert_eq!(answer.message[37..39], (BLOCK as u16).to_le_bytes());
            }
            assert_eq!(world.ask(0, &close(file)).header.status, 0);
        });
        assert!(time <= 3 * ROUND_TRIP, "{time:?}");
        assert!(world.server.files["a"] == data);
        assert_eq!(world.answered(), 40);
        // Forty were under way; no more than it takes reached the server at a time.
        assert!(world.server.mpx_most > 2 && world.server.mpx_most <= usize::from(MPX));
    }
}

#[test]
fn full_disk_is_reported_until_close() {
    let lost = |last: fn(u16) -> Vec<u8>| {
        let mut world = world(0);
        world.server.room = Some(100);
        let file = world.open(0, "a");
        assert_eq!(world.ask(0, &write(file, 0, &[1; 60]).0).header.status, 0);
        assert_eq!(world.ask(0, &write(file, 60, &[1; 60]).0).header.status, 0);
        world.run_for(ROUND_TRIP * 2);
        // Answered by the server now, and with what was lost though there is room for this one.
        let status = world.ask(0, &write(file, 60, &[1; 10]).0).header.status;
        assert_eq!(status, DISK_FULL);
        let status = world.ask(0, &last(file)).header.status;
        (status, world.ask(0, &close(file)).header.status)
    };
    assert_eq!(lost(flush), (DISK_FULL, DISK_FULL));
    assert_eq!(lost(|_| flush(0xffff)), (DISK_FULL, DISK_FULL));
    assert_eq!(lost(|file| set_size(file, 0)), (DISK_FULL, DISK_FULL));
    assert_eq!(lost(|file| locking(file, 0, 1)), (DISK_FULL, DISK_FULL));
    assert_eq!(lost(|file| query_file(file, 0x107)), (0, DISK_FULL));
}

#[test]
fn full_disk_is_reported_by_close_and_tree() {
    for is_close in [true, false] {
        let mut world = world(0);
        world.server.room = Some(10);
        let file = world.open(0, "a");
        assert_eq!(world.ask(0, &write(file, 0, &[1; 60]).0).header.status, 0);
        let last = match is_close {
            true => close(file),
            false => tree_disconnect(),
        };
        assert_eq!(world.ask(0, &last).header.status, DISK_FULL);
        assert_eq!(world.server.open_count(), 0);
        // Another file with the same client is none of it.
        let file = world.open(0, "b");
        assert_eq!(world.ask(0, &close(file)).header.status, 0);
    }
}

#[test]
fn full_disk_report_waits_for_a_complete_request() {
    let mut world = world(0);
    world.clients[0].has_one_mid = true;
    world.server.room = Some(10);
    let file = world.open(0, "a");
    assert_eq!(world.ask(0, &write(file, 0, &[1; 60]).0).header.status, 0);
    world.run_for(ROUND_TRIP * 2);
    let [first, second] = set_size_in_parts(file, 5);
    let interim = world.ask(0, &first);
    assert_eq!((interim.header.status, interim.message[32]), (0, 0));
    assert_eq!(world.ask(0, &second).header.status, DISK_FULL);
    assert_eq!(world.server.files["a"].len(), 5);
}

#[test]
fn lost_write_does_not_block_other_opens() {
    let mut world = world(0);
    world.server.room = Some(10);
    let file = world.open(0, "a");
    world.ask(0, &write(file, 0, &[1; 60]).0);
    world.run_for(ROUND_TRIP * 2);
    let answer = world.ask(0, &open_andx("b"));
    assert_eq!(answer.header.status, 0);
    let other = u16::from_le_bytes([answer.message[37], answer.message[38]]);
    assert_eq!(world.ask(0, &close(other)).header.status, 0);
    assert_eq!(world.ask(0, &close(file)).header.status, DISK_FULL);
    assert_eq!(world.server.open_count(), 0);
}

#[test]
fn nothing_overtakes_what_the_client_holds_for_done() {
    let mut world = world(0);
    world.server_takes = Duration::from_millis(20);
    let file = world.open(0, "a");
    world.server.heard.clear();
    for index in 0..4 {
        // Each overlaps the one before it, so the server has one at a time.
        world.ask(0, &write(file, index * 5, &[index as u8; 10]).0);
    }
    let size = world.ask(0, &query_file(file, 0x107));
    assert_eq!(size.message[size.message.len() - 8..], 25u64.to_le_bytes());
    assert_eq!(
        world.server.heard,
        [&[command::WRITE; 4][..], &[command::TRANSACTION_2]].concat()
    );
    let whole: Vec<u8> = [0, 1, 2, 3, 3].iter().flat_map(|at| [*at; 5]).collect();
    assert_eq!(world.server.files["a"], whole);
}

#[test]
fn durable_writes_go_to_the_server() {
    let mut world = world(0);
    let file = world.open(0, "a");
    let mut through = write(file, 0, b"through").0;
    // WriteMode: write-through.
    through[47] = 1;
    world.ask(0, &through);
    assert_eq!(world.answered(), 0);
    world.ask(0, &locking(file, 1, 1));
    world.ask(0, &write(file, 0, b"shared lock").0);
    assert_eq!(world.answered(), 0);
    let create = Smb1CreateParameters {
        options: 0x42,
        ..Smb1CreateParameters::file("b")
    };
    world.ask(0, &create.message());
    world.ask(0, &write(file + 1, 0, b"write-through open").0);
    assert_eq!(world.answered(), 0);
}

#[test]
fn without_an_oplock_nothing_is_answered() {
    let mut world = world(200_000);
    world.server.keeps_oplocks = true;
    let file = world.open(0, "a");
    world.ask(0, &write(file, 0, b"x").0);
    world.ask(0, &flush(file));
    assert_eq!(world.answered(), 0);
}

#[test]
fn flushed_data_outlives_a_broken_connection() {
    let mut world = world(0);
    let file = world.open(0, "a");
    world.ask(0, &write(file, 0, b"kept").0);
    assert_eq!(world.ask(0, &flush(file)).header.status, 0);
    world.ask(0, &write(file, 4, b" perhaps").0);
    world.die();
    assert!(world.clients[0].is_reset);
    assert!(world.server.files["a"].starts_with(b"kept"));
    assert_eq!(world.server.open_count(), 0);
}

#[test]
fn stream_end_completes_the_clients_writes() {
    let mut world = world(0);
    let file = world.open(0, "a");
    for index in 0..20u8 {
        world.ask(0, &write(file, u64::from(index), &[index]).0);
    }
    world.finish();
    world.run_for(ROUND_TRIP * 3);
    assert_eq!(world.server.files["a"], (0..20).collect::<Vec<u8>>());
    assert_eq!(world.server.open_count(), 0);
}
