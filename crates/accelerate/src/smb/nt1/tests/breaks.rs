//! Another client that wants the file.

use std::time::Duration;

use super::{ROUND_TRIP, contents, world};
use crate::smb::config::CONFIRM_WITHIN;
use crate::smb::nt1::testing::server::MPX;
use crate::smb::nt1::testing::world::Smb1World;
use crate::smb::nt1::testing::{
    Smb1CreateParameters, chained, close, locking, process_exit, read, tree_disconnect,
    tree_reconnect, write,
};
use crate::smb::nt1::wire::create::NtCreateResponse;

#[test]
fn other_client_waits_a_round_trip_for_writes() {
    let mut world = world(0);
    let other = world.beside();
    let file = world.open(0, "a");
    world.ask(0, &write(file, 0, b"first").0);
    world.ask(0, &write(file, 5, b" second").0);
    let time = world.takes(|world| {
        let theirs = world.open(other, "a");
        assert_eq!(
            world.ask(other, &read(theirs, 0, 100)).data(),
            b"first second"
        );
        world.ask(other, &write(theirs, 0, b"FIRST").0);
    });
    assert!(time <= ROUND_TRIP + Duration::from_millis(1), "{time:?}");
    assert!(
        world.clients[0].unasked.is_empty(),
        "it asked for no oplock"
    );
    // From now on the server is asked.
    assert_eq!(world.ask(0, &read(file, 0, 5)).data(), b"FIRST");
    let before = world.answered();
    world.ask(0, &write(file, 0, b"again").0);
    assert_eq!(world.answered(), before);
    assert_eq!(world.ask(0, &close(file)).header.status, 0);
}

#[test]
fn prefetched_data_ends_when_another_may_write() {
    let mut world = world(300_000);
    let other = world.beside();
    let file = world.open(0, "a");
    world.ask(0, &read(file, 0, 60_000));
    let theirs = world.open(other, "a");
    world.ask(other, &write(theirs, 60_000, &[0xaa; 10]).0);
    let data = world.ask(0, &read(file, 60_000, 10)).data().to_vec();
    assert_eq!(data, [0xaa; 10]);
}

#[test]
fn client_with_own_oplock_answers_the_break() {
    let mut world = world(0);
    let other = world.beside();
    let create = Smb1CreateParameters {
        flags: 0x02,
        ..Smb1CreateParameters::file("a")
    };
    let answer = world.ask(0, &create.message());
    let file = NtCreateResponse::parse(&answer.message).unwrap().file;
    world.ask(0, &write(file, 0, b"dirty").0);
    assert_eq!(world.answered(), 1);
    world.send(other, &Smb1CreateParameters::file("a").message());
    world.run_for(ROUND_TRIP);
    assert_eq!(world.clients[0].unasked.len(), 1);
    assert!(world.clients[other].answered.is_empty(), "it still waits");
    // It has something left to write, and then gives it back.
    world.ask(0, &write(file, 5, b" last").0);
    assert_eq!(world.answered(), 1, "this one is the server's");
    world.send(0, &locking(file, 2, 0));
    let answer = world.wait(other);
    let theirs = NtCreateResponse::parse(&answer.message).unwrap().file;
    assert_eq!(
        world.ask(other, &read(theirs, 0, 100)).data(),
        b"dirty last"
    );
    // What gives an oplock back is not answered.
    assert!(world.clients[0].answered.is_empty());
}

#[test]
fn breaker_wait_is_bounded_on_a_cut_path() {
    let mut world = world(0);
    let other = world.beside();
    let file = world.open(0, "a");
    world.ask(0, &write(file, 0, b"arrives").0);
    world.run_for(ROUND_TRIP);
    world.is_cut = true;
    // Answered, and under way as the file goes to another.
    world.ask(0, &write(file, 0, b"comes too late").0);
    let time = world.takes(|world| {
        let theirs = world.open(other, "a");
        assert_eq!(world.ask(other, &read(theirs, 0, 100)).data(), b"arrives");
    });
    assert!(
        time <= CONFIRM_WITHIN + Duration::from_millis(1),
        "{time:?}"
    );
    // Nothing is answered here any more by then.
    let before = world.answered();
    world.send(0, &write(file, 0, b"not here").0);
    assert_eq!(world.answered(), before);
    world.is_cut = false;
    let refused = world.wait(0);
    assert_ne!(refused.header.status, 0);
    assert_ne!(world.ask(0, &close(file)).header.status, 0, "it was lost");
    assert_eq!(world.server.files["a"], b"arrives");
}

#[test]
fn second_open_sees_the_first_ones_writes() {
    let mut world = world(0);
    let file = world.open(0, "a");
    world.ask(0, &write(file, 0, b"through one").0);
    let again = world.open(0, "a");
    assert_eq!(world.ask(0, &read(again, 0, 100)).data(), b"through one");
    world.ask(0, &write(again, 0, b"by").0);
    assert_eq!(world.ask(0, &read(file, 0, 2)).data(), b"by");
    assert!(world.clients[0].unasked.is_empty());
}

/// Opens the file with an oplock of the client's own.
fn open_with_own(world: &mut Smb1World) -> u16 {
    let create = Smb1CreateParameters {
        flags: 0x02,
        ..Smb1CreateParameters::file("a")
    };
    let answer = world.ask(0, &create.message());
    let answer = NtCreateResponse::parse(&answer.message).unwrap();
    assert!(answer.has_oplock());
    answer.file
}

#[test]
fn reused_file_id_gets_its_own_break() {
    type End = fn(&mut Smb1World, u16);
    let ends: [End; 4] = [
        |world, file| drop(world.ask(0, &chained(&read(file, 0, 0)))),
        |world, _| drop(world.ask(0, &process_exit())),
        |world, file| {
            world.server.fails_to_end = true;
            world.ask(0, &close(file));
            world.run_for(ROUND_TRIP);
        },
        |world, _| drop(world.ask(0, &tree_reconnect())),
    ];
    for (index, end) in ends.into_iter().enumerate() {
        for is_early in [true, false] {
            let mut world = world(0);
            let other = world.beside();
            let file = world.open(0, "a");
            end(&mut world, file);
            assert_eq!(world.server.open_count(), 0);
            if !is_early {
                world.run_for(ROUND_TRIP * 2);
            }
            assert_eq!(open_with_own(&mut world), file, "it is used again");
            world.run_for(ROUND_TRIP * 2);
            world.send(other, &Smb1CreateParameters::file("a").message());
            world.run_for(ROUND_TRIP);
            assert_eq!(world.clients[0].unasked.len(), 1, "{index} {is_early}");
            assert!(world.clients[other].answered.is_empty(), "it waits");
            world.send(0, &locking(file, 2, 0));
            world.wait(other);
            assert_eq!(world.let_go, None);
            assert!(world.clients[0].answered.is_empty());
        }
    }
}

#[test]
fn unasked_oplock_release_ends_the_licence() {
    let mut world = world(0);
    let other = world.beside();
    let file = open_with_own(&mut world);
    world.ask(0, &write(file, 0, b"mine").0);
    assert_eq!(world.answered(), 1);
    world.send(0, &locking(file, 2, 0));
    world.run_for(ROUND_TRIP);
    let theirs = world.open(other, "a");
    world.ask(other, &write(theirs, 0, b"ours").0);
    assert_eq!(world.ask(0, &read(file, 0, 4)).data(), b"ours");
    world.ask(0, &write(file, 0, b"last").0);
    assert_eq!(world.answered(), 1);
    assert_eq!(world.ask(other, &read(theirs, 0, 4)).data(), b"last");
}

#[test]
fn release_for_unknown_open_reaches_the_client() {
    let mut world = world(0);
    world.open(0, "a");
    let mid = world.send(0, &locking(9, 2, 0));
    let answer = world.wait(0);
    assert_eq!(answer.header.mid, mid);
    assert_ne!(answer.header.status, 0);
    assert_eq!(world.let_go, None);
}

#[test]
fn unfinished_tree_disconnect_releases_its_oplocks() {
    let mut world = world(0);
    let other = world.beside();
    let file = world.open(0, "a");
    world.ask(0, &write(file, 0, b"data").0);
    world.server.fails_to_end = true;
    assert_ne!(world.ask(0, &tree_disconnect()).header.status, 0);
    let time = world.takes(|world| {
        let theirs = world.open(other, "a");
        assert_eq!(world.ask(other, &read(theirs, 0, 4)).data(), b"data");
    });
    assert!(time <= ROUND_TRIP + Duration::from_millis(1), "{time:?}");
    assert_eq!(world.ask(0, &read(file, 0, 4)).data(), b"data");
}

#[test]
fn break_among_writes_exceeds_the_limit_by_one() {
    let mut world = world(0);
    let other = world.beside();
    world.server_takes = Duration::from_millis(20);
    let file = world.open(0, "a");
    for index in 0..40u8 {
        world.ask(0, &write(file, u64::from(index) * 10, &[index; 10]).0);
    }
    world.run_for(ROUND_TRIP / 2);
    let theirs = world.open(other, "a");
    let whole: Vec<u8> = (0..40).flat_map(|index| [index; 10]).collect();
    assert_eq!(world.ask(other, &read(theirs, 0, 1_000)).data(), whole);
    assert!(world.server.mpx_most <= usize::from(MPX) + 1);
}

#[test]
fn break_before_its_open_releases_the_oplock() {
    for has_other in [false, true] {
        let mut world = world(100);
        let other = world.beside();
        if has_other {
            let create = Smb1CreateParameters {
                flags: 0x02,
                ..Smb1CreateParameters::file("b")
            };
            world.ask(0, &create.message());
        }
        world.server_takes = Duration::from_millis(5);
        world.server.breaks_first = true;
        world.send(0, &Smb1CreateParameters::file("a").message());
        // The server has opened it, and has not said so.
        world.run_for(ROUND_TRIP / 2 + Duration::from_millis(1));
        let time = world.takes(|world| {
            let theirs = world.open(other, "a");
            world.ask(other, &write(theirs, 0, b"theirs").0);
        });
        assert!(time <= ROUND_TRIP / 2, "{time:?}");
        let answer = NtCreateResponse::parse(&world.wait(0).message).unwrap();
        assert!(!answer.has_oplock());
        // It may be of an oplock of its own that is not known here, and then it hears.
        assert_eq!(world.clients[0].unasked.len(), usize::from(has_other));
        let before = world.answered();
        assert_eq!(world.ask(0, &read(answer.file, 0, 6)).data(), b"theirs");
        world.ask(0, &write(answer.file, 0, b"ours").0);
        assert_eq!(world.answered(), before);
        assert_eq!(world.let_go, None);
    }
}

#[test]
fn late_word_does_not_affect_the_next_open() {
    let mut world = world(0);
    let [first, second] = [world.beside(), world.beside()];
    let file = world.open(0, "a");
    world.run_for(ROUND_TRIP);
    let tick = Duration::from_millis(10);
    // On its way as the server wants the first oplock back, which nobody waits for any more then.
    world.send(0, &close(file));
    world.send(0, &Smb1CreateParameters::file("b").message());
    world.run_for(tick * 4);
    world.send(first, &Smb1CreateParameters::file("a").message());
    world.server.disconnect(first);
    world.run_for(tick);
    assert_eq!(world.wait(0).header.status, 0);
    let answer = NtCreateResponse::parse(&world.wait(0).message).unwrap();
    assert_eq!(answer.file, file, "it is used again");
    world.run_for(tick * 3);
    world.send(second, &Smb1CreateParameters::file("b").message());
    world.run_for(tick * 2);
    // The near half has said that it has stopped for the first, and goes on with the second.
    let before = world.answered();
    world.ask(0, &write(file, 0, b"ours").0);
    assert_eq!(world.answered(), before + 1);
    assert!(world.clients[second].answered.is_empty(), "it waits");
    let theirs = NtCreateResponse::parse(&world.wait(second).message)
        .unwrap()
        .file;
    assert_eq!(world.ask(second, &read(theirs, 0, 9)).data(), b"ours");
}

#[test]
fn licences_end_with_silence() {
    let mut world = world(300_000);
    let file = world.open(0, "a");
    world.ask(0, &read(file, 0, 60_000));
    world.run_for(Duration::from_secs(11));
    let before = world.answered();
    assert!(world.ask(0, &read(file, 60_000, 100)).data() == &contents(300_000)[60_000..60_100]);
    assert_eq!(world.answered(), before + 1, "by the far half's word");
}
