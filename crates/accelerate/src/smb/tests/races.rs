//! Tests of unusual orders: a server that executes WRITEs in parallel, breaks beside other CREATEs,
//! cancellations of finished requests, trees that end with their opens.

use std::time::Duration;

use super::super::config::OPENS_MAX;
use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::DISK_FULL;
use super::super::testing::world::{NEAR, Smb2World, is_notice};
use super::super::wire::header::status;
use super::{contents, durable_world, open, read, world_with};
use crate::AcceleratorInput;

/// Returns true if a request was answered by the server, which is a round trip away.
fn waits_for_the_server(world: &mut Smb2World, request: &messages::Smb2Message) -> bool {
    let start = world.now;
    world.ask(0, request);
    world.round_trips(start) >= 1.0
}

#[test]
fn overlapping_writes_reach_a_parallel_server_in_order() {
    let mut world = world_with(0);
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 10);
    world.server.holds_writes = true;
    for (offset, value) in [(0, 1), (100, 2), (50, 3), (0, 4), (100, 5)] {
        world.ask(0, &messages::write(file, offset, &[value; 100]));
    }
    let flushed = world.send(0, &messages::flush(file));
    while !world.clients[0].answered.contains_key(&flushed) {
        world.run_for(Duration::from_millis(100));
        world.server.do_held_writes();
    }
    let expected = [[4; 100], [5; 100]].concat();
    assert_eq!(world.server.files["a"], expected);
}

#[test]
fn own_break_arrives_during_another_open() {
    let mut world = world_with(1_000);
    // In a compound, so that it is the server's alone.
    let theirs = Smb2CreateParameters {
        oplock: 9,
        ..Smb2CreateParameters::open("a")
    };
    world.server.files.insert("b".to_owned(), contents(10));
    let served = world.create(0, &Smb2CreateParameters::open("b"));
    let ids = world.send_chain(0, &[theirs.request(), messages::echo()]);
    world.wait(0, ids[0]);
    // The same client opens the file again, which waits for what it holds itself.
    world.send(0, &Smb2CreateParameters::open("a").request());
    let heard = world.run_until(Duration::from_secs(1), |world| {
        world.clients[0].unasked.iter().any(is_notice)
    });
    assert!(heard);
    world.ask(0, &messages::close(served));
}

#[test]
fn cancelling_what_is_done_cancels_nothing_else() {
    let mut world = world_with(100_000);
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 1_000);
    let notify = world.send(0, &messages::change_notify(file));
    for _ in 0..60 {
        let id = world.send(0, &messages::echo());
        world.wait(0, id);
        world.cancel(0, id);
        world.run_for(Duration::from_secs(1));
        assert!(!world.clients[0].answered.contains_key(&notify));
    }
    world.cancel(0, notify);
    world.wait(0, notify);
}

#[test]
fn opens_ended_by_their_tree_free_their_places() {
    let mut world = world_with(1_000);
    for _ in 0..=OPENS_MAX {
        open(&mut world, 0);
        world.ask(0, &messages::tree_disconnect());
        let answer = world.ask(0, &messages::tree_connect());
        world.clients[0].tree = answer.header.tree;
    }
    let file = open(&mut world, 0);
    let start = world.now;
    assert_eq!(read(&mut world, 0, file, 0, 1_000), contents(1_000));
    assert!(world.round_trips(start) < 0.01);
}

#[test]
fn late_write_is_refused_after_a_partial_answer() {
    let mut world = world_with(1_000_000);
    let other = world.beside();
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 1_000);
    world.is_cut = true;
    let wanted = world.send(0, &messages::read(file, 500_000, 65_536));
    let late = world.ask(0, &messages::write(file, 0, b"held for written"));
    assert_eq!(late.header.status, status::SUCCESS);
    open(&mut world, other);
    world.stalls_after = Some(1_000);
    world.is_cut = false;
    world.run_for(Duration::from_secs(1));
    world.go_on();
    let answer = world.wait(0, wanted);
    assert!(answer.data() == &contents(1_000_000)[500_000..565_536]);
    let answer = world.ask(0, &messages::close(file));
    assert_eq!(answer.header.status, status::UNEXPECTED_IO_ERROR);
}

#[test]
fn late_write_during_confirmation_is_refused() {
    let mut world = world_with(100);
    world.server.files.insert("b".to_owned(), contents(100));
    let other = world.beside();
    let file = open(&mut world, 0);
    let beside = world.create(0, &Smb2CreateParameters::open("b"));
    read(&mut world, 0, file, 0, 10);
    world.is_cut = true;
    world.ask(0, &messages::write(beside, 0, b"b"));
    // It waits for the WRITE before it, and all behind it wait with it.
    let flushed = world.send(0, &messages::flush(beside));
    let late = world.ask(0, &messages::write(file, 0, b"held for written"));
    assert_eq!(late.header.status, status::SUCCESS);
    let theirs = open(&mut world, other);
    world.ask(other, &messages::write(theirs, 0, b"theirs"));
    world.server.holds_writes = true;
    world.is_cut = false;
    world.run_for(Duration::from_secs(1));
    world.server.holds_writes = false;
    world.server.do_held_writes();
    assert_eq!(world.wait(0, flushed).header.status, status::SUCCESS);
    let closed = world.ask(0, &messages::close(file));
    assert_eq!(closed.header.status, status::UNEXPECTED_IO_ERROR);
    assert_eq!(&world.server.files["a"][..6], b"theirs");
    // What it writes from then on is the server's to take.
    let file = open(&mut world, 0);
    world.ask(0, &messages::write(file, 0, b"again!"));
    world.ask(0, &messages::close(file));
    assert_eq!(&world.server.files["a"][..6], b"again!");
}

#[test]
fn endless_writer_does_not_block_a_breaker() {
    let mut world = world_with(100);
    world.server.credits_max = 512;
    let other = world.beside();
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 10);
    world.server.holds_writes = true;
    let (mut wanted, start) = (None, world.now);
    for step in 0..200 {
        world.send(0, &messages::write(file, step * 10, &[1; 10]));
        world.run_for(Duration::from_millis(20));
        // There are always some under way.
        if step > 10 {
            world.server.do_oldest_held_write();
        }
        if step == 20 {
            wanted = Some(world.send(other, &Smb2CreateParameters::open("a").request()));
        }
        if wanted.is_some_and(|id| world.clients[other].answered.contains_key(&id)) {
            break;
        }
    }
    // Ten and those of a round trip, of 20 ms each, and not the four seconds of them all.
    let waited = world.now.since(start) - Duration::from_millis(21 * 20);
    assert!(waited < Duration::from_secs(1), "{waited:?}");
}

#[test]
fn durable_open_is_written_only_by_the_server() {
    let mut world = durable_world(0);
    let create = Smb2CreateParameters {
        oplock: 9,
        context: Some(b"DHnQ"),
        ..Smb2CreateParameters::open("a")
    };
    world.create(0, &Smb2CreateParameters::open("b"));
    let file = world.create(0, &create);
    assert!(waits_for_the_server(
        &mut world,
        &messages::write(file, 0, b"durable")
    ));
}

#[test]
fn write_under_shared_lock_goes_to_server() {
    let mut world = world_with(1_000);
    let file = open(&mut world, 0);
    assert!(!waits_for_the_server(
        &mut world,
        &messages::write(file, 0, b"free")
    ));
    world.ask(0, &messages::lock_shared(file));
    assert!(waits_for_the_server(
        &mut world,
        &messages::write(file, 0, b"locked")
    ));
}

#[test]
fn writes_after_a_broken_client_oplock_are_refused() {
    let mut world = world_with(100);
    let other = world.beside();
    let create = Smb2CreateParameters {
        oplock: 9,
        ..Smb2CreateParameters::open("a")
    };
    let file = world.create(0, &create);
    read(&mut world, 0, file, 0, 10);
    world.is_cut = true;
    let early = world.ask(0, &messages::write(file, 0, b"held for written"));
    assert_eq!(early.header.status, status::SUCCESS);
    let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
    // As long as servers wait for an answer to a break.
    world.run_for(Duration::from_secs(35));
    world.server.give_up_breaks();
    let answer = world.wait(other, wanted);
    let theirs = super::super::wire::create::CreateResponse::parse(&answer.body).unwrap();
    world.ask(other, &messages::write(theirs.file, 0, b"theirs"));
    world.is_cut = false;
    let closed = world.ask(0, &messages::close(file));
    assert_eq!(closed.header.status, status::UNEXPECTED_IO_ERROR);
    assert_eq!(&world.server.files["a"][..6], b"theirs");
}

#[test]
fn skipped_data_is_not_kept_forever() {
    let mut world = world_with(12 << 20);
    let files: Vec<_> = ["a", "b", "c", "d"]
        .iter()
        .map(|name| {
            let whole = vec![7; 24 << 20];
            world.server.files.insert((*name).to_owned(), whole);
            world.create(0, &Smb2CreateParameters::open(name))
        })
        .collect();
    let mut most = 0;
    for place in (0..8u64).rev() {
        for file in &files {
            // Five in a row, which more follow, and then before them.
            for index in 0..5 {
                let offset = (place << 20) + index * 60_000;
                read(&mut world, 0, *file, offset, 60_000);
            }
            world.run_for(Duration::from_millis(500));
            most = most.max(world.buffered());
        }
    }
    assert!(most <= 22 << 20, "{most}");
}

#[test]
fn reads_pipelined_before_a_close_are_answered() {
    for cut in [Duration::ZERO, Duration::from_secs(15)] {
        for moment in 0..30 {
            let mut world = world_with(300_000);
            let file = open(&mut world, 0);
            world.run_for(Duration::from_millis(moment * 5));
            world.is_cut = cut > Duration::ZERO;
            let asked = [0, 20_000, 40_000, 400_000];
            let asked = asked.map(|offset| world.send(0, &messages::read(file, offset, 20_000)));
            let [asked @ .., behind] = asked;
            let written = world.send(0, &messages::write(file, 30_000, b"later"));
            let closed = world.send(0, &messages::close(file));
            world.run_for(cut);
            world.is_cut = false;
            for (index, id) in asked.into_iter().enumerate() {
                let answer = world.wait(0, id);
                let start = index * 20_000;
                let wanted = &contents(300_000)[start..start + 20_000];
                assert!(answer.data() == wanted, "{moment}, {cut:?}, {index}");
            }
            for (id, wanted) in [
                (behind, status::END_OF_FILE),
                (written, status::SUCCESS),
                (closed, status::SUCCESS),
            ] {
                assert_eq!(world.wait(0, id).header.status, wanted);
            }
            assert!(world.let_go.is_none());
        }
    }
}

#[test]
fn reads_among_pipelined_writes_are_answered() {
    for rounds in 1..5 {
        let mut world = world_with(10_000);
        world.server.credits_max = 512;
        let file = open(&mut world, 0);
        read(&mut world, 0, file, 0, 1_000);
        world.is_cut = true;
        let mut asked = Vec::new();
        for round in 0..rounds {
            // One after the other up to the end, behind which nothing is: that is known ahead.
            for offset in [8_000, 9_000, 10_000] {
                let id = world.send(0, &messages::read(file, offset, 1_000));
                asked.push((id, offset));
            }
            let written = messages::write(file, round * 100, &[1; 100]);
            let written = world.ask(0, &written);
            assert_eq!(written.header.status, status::SUCCESS);
        }
        let closed = world.send(0, &messages::close(file));
        world.run_for(Duration::from_secs(1));
        world.is_cut = false;
        for (id, offset) in asked {
            let answer = world.wait(0, id);
            let end = (offset + 1_000).min(10_000);
            match offset {
                10_000 => assert_eq!(answer.header.status, status::END_OF_FILE),
                _ => assert!(answer.data() == &contents(10_000)[offset as usize..end as usize]),
            }
        }
        assert_eq!(world.wait(0, closed).header.status, status::SUCCESS);
        assert!(world.let_go.is_none());
    }
}

#[test]
fn oplock_ended_by_close_is_not_released_again() {
    // A server that knows the open no more objects.
    for moment in 0..30 {
        let mut world = world_with(10_000);
        let other = world.beside();
        let file = open(&mut world, 0);
        world.run_for(Duration::from_secs(1));
        let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
        world.run_for(Duration::from_millis(moment * 5));
        let closed = world.send(0, &messages::close(file));
        world.wait(0, closed);
        world.wait(other, wanted);
        world.run_for(Duration::from_secs(1));
        assert!(world.let_go.is_none());
    }
}

#[test]
fn lost_far_node_stops_local_answers() {
    let mut world = world_with(100_000);
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 1_000);
    world.input(NEAR, AcceleratorInput::WanSilent(Duration::ZERO));
    assert!(waits_for_the_server(
        &mut world,
        &messages::read(file, 1_000, 1_000)
    ));
    // It was heard again.
    world.run_for(Duration::from_secs(1));
    read(&mut world, 0, file, 2_000, 1_000);
    world.run_for(Duration::from_secs(1));
    assert!(!waits_for_the_server(
        &mut world,
        &messages::read(file, 3_000, 1_000)
    ));
}

#[test]
fn no_local_answers_after_the_servers_stream_end() {
    let mut world = world_with(10_000);
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 1_000);
    world.server_disconnects();
    world.run_for(Duration::from_secs(1));
    assert!(world.is_client_gone);
    for request in [messages::read(file, 1_000, 10), messages::close(file)] {
        // The world objects to anything that follows.
        let id = world.send(0, &request);
        world.run_for(Duration::from_secs(1));
        assert!(!world.clients[0].answered.contains_key(&id));
    }
}

#[test]
fn tree_disconnect_reports_a_lost_write() {
    let mut world = world_with(0);
    world.server.disk = 10;
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 10);
    let early = world.ask(0, &messages::write(file, 0, &[1; 100]));
    assert_eq!(early.header.status, status::SUCCESS);
    let answer = world.ask(0, &messages::tree_disconnect());
    assert_eq!(answer.header.status, DISK_FULL);
}
