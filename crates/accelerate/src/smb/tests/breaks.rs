//! A second client beside the server wants the file too.

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::ACCESS_DENIED;
use super::super::testing::world::{FAR, Smb2World, is_notice};
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{Smb2Header, UNASKED, command, flag, status};
use super::super::wire::oplock::OplockBreak;
use super::{contents, open, read, world_with};
use crate::{AcceleratorInput, LettingGo, ReasonCode};

/// For how long a breaker waits where the path is cut, as docs/decisions/0029 states it.
const CONFIRM_WITHIN: Duration = Duration::from_secs(12);

/// Client 1 opens "a" and waits for it; how many round trips.
fn open_beside(world: &mut Smb2World, who: usize) -> (FileId, f64) {
    let start = world.now;
    let file = open(world, who);
    (file, world.round_trips(start))
}

#[test]
fn breaker_waits_one_round_trip_before_writing() {
    let mut world = world_with(500_000);
    let other = world.beside();
    let file = open(&mut world, 0);
    let mut expected = contents(500_000);
    for block in 0..4 {
        read(&mut world, 0, file, block * 10_000, 10_000);
    }
    let (theirs, waited) = open_beside(&mut world, other);
    assert!(waited <= 1.01, "{waited}");
    world.ask(other, &messages::write(theirs, 40_000, &[9; 100]));
    expected[40_000..40_100].fill(9);
    assert_eq!(
        read(&mut world, 0, file, 40_000, 10_000),
        &expected[40_000..50_000]
    );
    // The client that never asked for an oplock never hears of it.
    assert!(world.clients[0].unasked.is_empty());
    assert_eq!(world.server.count(0, command::OPLOCK_BREAK), 1);
}

#[test]
fn writes_reach_the_server_before_the_breaker() {
    let mut world = world_with(0);
    let other = world.beside();
    let file = open(&mut world, 0);
    for block in 0..20 {
        world.ask(0, &messages::write(file, block * 10, &[block as u8; 10]));
    }
    let (theirs, _) = open_beside(&mut world, other);
    for block in 0..20 {
        let data = read(&mut world, other, theirs, block * 10, 10);
        assert_eq!(data, [block as u8; 10]);
    }
    world.ask(0, &messages::write(file, 0, b"after"));
    assert_eq!(read(&mut world, other, theirs, 0, 5), b"after");
}

#[test]
fn breaker_waits_for_all_queued_writes() {
    let mut world = world_with(100);
    world.server.files.insert("b".to_owned(), contents(100));
    let other = world.beside();
    let file = open(&mut world, 0);
    let beside = world.create(0, &Smb2CreateParameters::open("b"));
    read(&mut world, 0, file, 0, 10);
    world.server.holds_writes = true;
    world.ask(0, &messages::write(beside, 0, b"b"));
    // It waits for the WRITE before it, and the WRITE behind it for both.
    let flushed = world.send(0, &messages::flush(beside));
    let early = world.ask(0, &messages::write(file, 0, b"early"));
    assert_eq!(early.header.status, status::SUCCESS);
    world.run_for(Duration::from_millis(60));
    let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
    world.run_for(Duration::from_secs(1));
    assert!(!world.clients[other].answered.contains_key(&wanted));
    world.server.holds_writes = false;
    world.server.do_held_writes();
    let answer = world.wait(other, wanted);
    let theirs = super::super::wire::create::CreateResponse::parse(&answer.body).unwrap();
    assert_eq!(read(&mut world, other, theirs.file, 0, 5), b"early");
    assert_eq!(world.wait(0, flushed).header.status, status::SUCCESS);
}

#[test]
fn break_at_any_time_leaves_nothing_stale() {
    for moment in 0..60 {
        let mut world = world_with(300_000);
        let other = world.beside();
        let file = open(&mut world, 0);
        let mut expected = contents(300_000);
        let first = world.send(0, &messages::read(file, 0, 20_000));
        let second = world.send(0, &messages::read(file, 20_000, 20_000));
        world.run_for(Duration::from_millis(moment * 5));
        let wanted = Smb2CreateParameters::open("a").request();
        let created = world.send(other, &wanted);
        let (first, second) = (world.wait(0, first), world.wait(0, second));
        assert_eq!(first.data(), &expected[..20_000]);
        assert_eq!(second.data(), &expected[20_000..40_000]);
        let answer = world.wait(other, created);
        let theirs = super::super::wire::create::CreateResponse::parse(&answer.body).unwrap();
        world.ask(other, &messages::write(theirs.file, 0, &[1; 300_000]));
        expected.fill(1);
        for block in 0..15 {
            let data = read(&mut world, 0, file, block * 20_000, 20_000);
            assert!(data == expected[..20_000], "at {moment}, block {block}");
        }
        world.ask(0, &messages::close(file));
        assert!(world.let_go.is_none());
    }
}

/// The server is slow, so that a READ waits for prefetched data and its answer follows the break.
#[test]
fn waiting_read_is_answered_despite_a_break() {
    let expected = contents(600_000);
    for moment in 0..10 {
        let mut world = world_with(600_000);
        let other = world.beside();
        world.server_takes = Duration::from_millis(200);
        let file = open(&mut world, 0);
        for block in 0..5 {
            read(&mut world, 0, file, block * 20_000, 20_000);
        }
        world.run_for(Duration::from_millis(moment * 100));
        let created = world.send(other, &Smb2CreateParameters::open("a").request());
        for block in 5..20 {
            let at = block as usize * 20_000;
            let data = read(&mut world, 0, file, at as u64, 20_000);
            assert!(data == expected[at..at + 20_000], "{moment}, {block}");
        }
        assert_eq!(world.wait(other, created).header.status, status::SUCCESS);
    }
}

#[test]
fn cut_path_break_is_answered_in_time() {
    let mut world = world_with(100_000);
    let other = world.beside();
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 1_000);
    world.is_cut = true;
    let late = world.ask(0, &messages::write(file, 0, b"held for written"));
    assert_eq!(late.header.status, status::SUCCESS);
    let start = world.now;
    let theirs = open(&mut world, other);
    let waited = world.now.since(start);
    assert!(waited <= CONFIRM_WITHIN, "{waited:?}");
    world.ask(other, &messages::write(theirs, 0, b"theirs"));
    // Nothing is answered from what came ahead any more.
    let stale = world.send(0, &messages::read(file, 1_000, 1_000));
    world.run_for(Duration::from_secs(1));
    assert!(!world.clients[0].answered.contains_key(&stale));
    world.is_cut = false;
    world.wait(0, stale);
    assert_eq!(&world.server.files["a"][..6], b"theirs");
    let answer = world.ask(0, &messages::close(file));
    assert_eq!(answer.header.status, status::UNEXPECTED_IO_ERROR);
}

#[test]
fn unconfirmed_licence_expires_before_release() {
    let mut world = world_with(1_000_000);
    let file = open(&mut world, 0);
    for block in 0..5 {
        read(&mut world, 0, file, block * 10_000, 10_000);
    }
    world.run_for(Duration::from_secs(1));
    world.is_cut = true;
    let mut offset = 50_000;
    let start = world.now;
    // As long as the licence is fresh, blocks that came ahead are given out.
    while world.now.since(start) < CONFIRM_WITHIN {
        let id = world.send(0, &messages::read(file, offset, 1_000));
        if !world.clients[0].answered.contains_key(&id) {
            break;
        }
        offset += 1_000;
        world.run_for(Duration::from_millis(250));
    }
    let served_for = world.now.since(start);
    assert!(offset > 60_000, "{offset}");
    assert!(served_for < CONFIRM_WITHIN, "{served_for:?}");
}

#[test]
fn client_with_own_oplock_answers_the_break() {
    let mut world = world_with(200_000);
    let other = world.beside();
    let create = Smb2CreateParameters {
        oplock: 9,
        ..Smb2CreateParameters::open("a")
    };
    let answer = world.created(0, &create);
    assert_eq!(answer.oplock_level, 9);
    let file = answer.file;
    world.ask(0, &messages::write(file, 0, b"early"));
    let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
    let heard = world.run_until(Duration::from_secs(1), |world| {
        world.clients[0].unasked.iter().any(is_notice)
    });
    assert!(heard);
    let notice = OplockBreak::parse(&world.clients[0].unasked[0].body).unwrap();
    assert_eq!(notice.file, file);
    // What comes after the break is the server's to answer.
    let start = world.now;
    world.ask(0, &messages::write(file, 10, b"late"));
    assert!(world.round_trips(start) >= 1.0);
    world.ask(0, &messages::acknowledge(file, 0));
    world.wait(other, wanted);
    assert_eq!(&world.server.files["a"][..5], b"early");
}

#[test]
fn attribute_open_never_waits_and_gets_server_data() {
    let mut world = world_with(100);
    let other = world.beside();
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 10);
    world.ask(0, &messages::write(file, 100, &[7; 50]));
    let for_attributes = Smb2CreateParameters {
        access: 0x80,
        disposition: 1,
        ..Smb2CreateParameters::open("a")
    };
    let length = |world: &mut Smb2World, who: usize, of: super::FileId| {
        let answer = world.ask(who, &messages::query_length(of));
        u64::from_le_bytes(answer.body[8..16].try_into().unwrap())
    };
    let start = world.now;
    let theirs = world.create(other, &for_attributes);
    assert_eq!(length(&mut world, other, theirs), 100);
    assert_eq!(world.now, start);
    // The WRITE's own client sees it, and once it is flushed everybody does.
    let own = world.create(0, &for_attributes);
    assert_eq!(length(&mut world, 0, own), 150);
    world.ask(0, &messages::write(file, 150, &[7; 50]));
    world.ask(0, &messages::flush(file));
    assert_eq!(length(&mut world, other, theirs), 200);
    // Nobody gave anything back for that.
    assert_eq!(world.server.count(0, command::OPLOCK_BREAK), 0);
}

#[test]
fn the_same_client_may_open_its_file_twice() {
    let mut world = world_with(100_000);
    let first = open(&mut world, 0);
    world.ask(0, &messages::write(first, 0, b"first"));
    let second = open(&mut world, 0);
    assert_eq!(read(&mut world, 0, second, 0, 5), b"first");
    world.ask(0, &messages::write(second, 0, b"other"));
    assert_eq!(read(&mut world, 0, first, 0, 5), b"other");
    world.ask(0, &messages::close(second));
    world.ask(0, &messages::close(first));
    assert!(world.clients[0].unasked.is_empty());
}

#[test]
fn a_break_that_crosses_a_close_is_nobodys() {
    for moment in 0..30 {
        let mut world = world_with(100_000);
        let other = world.beside();
        let file = open(&mut world, 0);
        world.ask(0, &messages::write(file, 0, b"written"));
        let closed = world.send(0, &messages::close(file));
        world.run_for(Duration::from_millis(moment * 10));
        let theirs = open(&mut world, other);
        assert_eq!(read(&mut world, other, theirs, 0, 7), b"written");
        assert_eq!(world.wait(0, closed).header.status, status::SUCCESS);
        assert!(world.clients[0].unasked.is_empty());
    }
}

#[test]
fn delayed_open_is_served_under_its_own_tree() {
    let mut world = world_with(100_000);
    let other = world.beside();
    let theirs = world.create(
        other,
        &Smb2CreateParameters {
            oplock: 9,
            ..Smb2CreateParameters::open("a")
        },
    );
    let wanted = world.send(0, &Smb2CreateParameters::open("a").request());
    world.run_for(Duration::from_millis(200));
    assert_eq!(world.clients[0].interim.len(), 1);
    world.ask(other, &messages::close(theirs));
    let answer = world.wait(0, wanted);
    let file = super::super::wire::create::CreateResponse::parse(&answer.body)
        .unwrap()
        .file;
    let start = world.now;
    assert_eq!(
        read(&mut world, 0, file, 0, 1_000),
        contents(100_000)[..1_000]
    );
    assert!(world.round_trips(start) < 0.01);
    let (theirs, waited) = open_beside(&mut world, other);
    assert!(waited <= 1.01, "{waited}");
    world.ask(other, &messages::close(theirs));
}

/// A server may send an oplock break before the answer that grants the oplock.
#[test]
fn break_before_its_open_ends_the_licence() {
    for is_beside_another in [false, true] {
        for oplock in [8, 9] {
            let mut world = world_with(200_000);
            world.server.files.insert("b".to_owned(), contents(10));
            let other = world.beside();
            if is_beside_another {
                // A CREATE with an oplock of ours is under way all the while.
                let kept = Smb2CreateParameters {
                    oplock: 9,
                    ..Smb2CreateParameters::open("b")
                };
                world.create(other, &kept);
                world.send(0, &Smb2CreateParameters::open("b").request());
                world.run_for(Duration::from_secs(1));
            }
            world.server.is_overtaken = Some(command::CREATE);
            let create = Smb2CreateParameters {
                oplock,
                ..Smb2CreateParameters::open("a")
            };
            let created = world.send(0, &create.request());
            world.run_for(Duration::from_millis(60));
            let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
            let answer = world.wait(0, created);
            let file = CreateResponse::parse(&answer.body).unwrap().file;
            // Nothing is answered here, for the break may be answered now.
            let start = world.now;
            world.ask(0, &messages::write(file, 0, b"mine"));
            assert!(world.round_trips(start) >= 1.0);
            let notice = world.clients[0]
                .unasked
                .pop()
                .expect("it hears of the break");
            assert_eq!(OplockBreak::parse(&notice.body).unwrap().file, file);
            world.ask(0, &messages::acknowledge(file, 0));
            let answer = world.wait(other, wanted);
            let theirs = CreateResponse::parse(&answer.body).unwrap().file;
            world.ask(other, &messages::write(theirs, 0, &[1; 200_000]));
            assert_eq!(read(&mut world, 0, file, 0, 1_000), [1; 1_000]);
        }
    }
}

#[test]
fn own_oplock_broken_early_is_released_unseen() {
    let mut world = world_with(200_000);
    let other = world.beside();
    world.server.is_overtaken = Some(command::CREATE);
    let created = world.send(0, &Smb2CreateParameters::open("a").request());
    world.run_for(Duration::from_millis(60));
    let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
    let answer = world.wait(0, created);
    let file = CreateResponse::parse(&answer.body).unwrap().file;
    let answer = world.wait(other, wanted);
    let theirs = CreateResponse::parse(&answer.body).unwrap().file;
    world.ask(other, &messages::write(theirs, 0, &[1; 200_000]));
    assert_eq!(read(&mut world, 0, file, 0, 1_000), [1; 1_000]);
    assert!(world.clients[0].unasked.is_empty());
}

/// The client may know an open that is unknown here.
fn breaks_what_nobody_opened(world: &mut Smb2World) {
    breaks(world, FileId([9; 16]));
}

fn breaks(world: &mut Smb2World, file: FileId) {
    let notice = OplockBreak { level: 0, file }.emit();
    let mut header = Smb2Header::request(command::OPLOCK_BREAK, UNASKED, 0, 0);
    header.flags = flag::FROM_SERVER;
    world.input(
        FAR,
        AcceleratorInput::Lan(messages::frame(&[(header, &notice)]).into()),
    );
}

#[test]
fn unknown_break_waits_only_for_current_opens() {
    let mut world = world_with(100);
    world.server_takes = Duration::from_millis(20);
    let mut last = 0;
    for round in 0..100 {
        let name = format!("{round}");
        last = world.send(0, &Smb2CreateParameters::open(&name).request());
        world.run_for(Duration::from_millis(10));
        if round == 50 {
            breaks_what_nobody_opened(&mut world);
        }
    }
    assert!(world.clients[0].unasked.is_empty());
    let has_heard = |world: &Smb2World| !world.clients[0].unasked.is_empty();
    assert!(world.run_until(Duration::from_secs(60), has_heard));
    assert!(!world.clients[0].answered.contains_key(&last));
}

/// Breaks that arrive before their opens are kept up to a limit, which does not grow with the
/// number of possible opens.
#[test]
fn unknown_breaks_are_kept_up_to_a_limit() {
    let kept = |creates: usize| {
        let mut world = world_with(100);
        world.server_takes = Duration::from_secs(5);
        for name in 0..creates {
            world.send(0, &Smb2CreateParameters::open(&format!("{name}")).request());
        }
        world.run_for(Duration::from_millis(100));
        let before = world.buffered();
        for number in 0..64 {
            breaks(&mut world, FileId([number; 16]));
        }
        let kept = world.buffered() - before;
        assert_eq!(world.let_go, None);
        breaks(&mut world, FileId([64; 16]));
        let reason = ReasonCode::VIOLATION;
        assert_eq!(world.let_go, Some(LettingGo::Close { reason }));
        kept
    };
    let of_one = kept(1);
    assert!((1..16 << 10).contains(&of_one), "{of_one}");
    assert_eq!(kept(60), of_one);
}

/// It may be the very one that this open waits for.
#[test]
fn unknown_break_ignores_a_pending_open() {
    let mut world = world_with(100);
    let other = world.beside();
    let batch = Smb2CreateParameters {
        oplock: 9,
        ..Smb2CreateParameters::open("a")
    };
    world.create(other, &batch);
    world.server_takes = Duration::from_millis(200);
    let pending = world.send(0, &Smb2CreateParameters::open("a").request());
    world.run_for(Duration::from_millis(100));
    breaks_what_nobody_opened(&mut world);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.clients[0].unasked.len(), 1);
    assert_eq!(world.clients[0].interim.len(), 1);
    assert!(!world.clients[0].answered.contains_key(&pending));
}

/// The CLOSE was to give the oplock back, and has not.
#[test]
fn break_before_a_failing_close_blocks_nobody() {
    for ends in [messages::tree_disconnect(), messages::logoff()] {
        breaks_beside_what_fails(&ends);
    }
    for moment in 0..10 {
        let mut world = world_with(100_000);
        let other = world.beside();
        let file = open(&mut world, 0);
        read(&mut world, 0, file, 0, 1_000);
        world.server_takes = Duration::from_millis(100);
        world.server.refuses = Some((command::CLOSE, ACCESS_DENIED));
        // It asks for what only the server knows.
        let closed = world.send(0, &messages::close_with_attributes(file));
        world.run_for(Duration::from_millis(20 * moment));
        let start = world.now;
        let theirs = open(&mut world, other);
        let waited = world.now.since(start);
        assert!(waited < CONFIRM_WITHIN, "at {moment}: {waited:?}");
        assert_eq!(world.wait(0, closed).header.status, ACCESS_DENIED);
        world.ask(other, &messages::write(theirs, 0, &[1; 100_000]));
        assert_eq!(read(&mut world, 0, file, 1_000, 1_000), [1; 1_000]);
    }
}

fn breaks_beside_what_fails(ends: &messages::Smb2Message) {
    let mut world = world_with(100_000);
    let other = world.beside();
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 1_000);
    world.server_takes = Duration::from_millis(100);
    world.server.refuses = Some((ends.command, ACCESS_DENIED));
    let ended = world.send(0, ends);
    world.run_for(Duration::from_millis(40));
    let start = world.now;
    let theirs = open(&mut world, other);
    assert!(world.now.since(start) < CONFIRM_WITHIN);
    assert_eq!(world.wait(0, ended).header.status, ACCESS_DENIED);
    world.ask(other, &messages::write(theirs, 0, &[1; 100_000]));
    assert_eq!(read(&mut world, 0, file, 1_000, 1_000), [1; 1_000]);
}
