//! Clients that request leases themselves, as Windows does: the local answers under them, also for
//! several opens of one lease, and the view of other clients when a lease is broken.

use std::time::Duration;

use super::super::SmbSettings;
use super::super::frames::{HalfFrame, TAKES_OFFERS};
use super::super::testing::messages::{self, Smb2CreateParameters, Smb2Message};
use super::super::testing::world::{FAR, Smb2World};
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{command, status};
use super::super::wire::lease::{LeaseBreak, LeaseKey};
use super::{contents, durable_world, read, world_with};
use crate::AcceleratorInput;

pub(super) const KEY: u8 = 7;

pub(super) fn leased(world: &mut Smb2World) -> FileId {
    world.create(0, &Smb2CreateParameters::leased("a", KEY))
}

/// Returns true if a request is answered at once, and not by the server.
pub(super) fn is_answered_here(world: &mut Smb2World, request: &Smb2Message) -> bool {
    let start = world.now;
    let answer = world.ask(0, request);
    assert_eq!(answer.header.status, status::SUCCESS);
    world.now == start
}

/// Runs until client 0 receives a break. Returns the remaining state of its lease.
fn hears_of_a_break(world: &mut Smb2World) -> LeaseBreak {
    let heard = world.run_until(Duration::from_secs(1), |world| {
        !world.clients[0].unasked.is_empty()
    });
    assert!(heard);
    let notice = world.clients[0].unasked.pop().unwrap();
    let notice = LeaseBreak::parse(&notice.body).unwrap();
    assert_eq!(notice.key, LeaseKey([KEY; 16]));
    notice
}

#[test]
fn leased_serial_reader_waits_no_longer() {
    for piece in [usize::MAX, 77] {
        let mut world = world_with(1_200_000);
        world.piece = piece;
        let create = Smb2CreateParameters::leased("a", KEY).request();
        let answer = world.ask(0, &create);
        // The client gets its lease as the server gave it.
        let lease = CreateResponse::lease(&[&[0; 64][..], &answer.body].concat());
        let lease = lease.unwrap().expect("it has a lease");
        assert!(lease.key == LeaseKey([KEY; 16]) && lease.is_exclusive());
        let file = CreateResponse::parse(&answer.body).unwrap().file;
        let start = world.now;
        let mut got = Vec::new();
        while got.len() < 1_200_000 {
            got.extend(read(&mut world, 0, file, got.len() as u64, 60_000));
        }
        assert!(got == contents(1_200_000));
        assert!(world.round_trips(start) <= 5.01);
    }
}

/// The Linux kernel's client opens files so with O_SYNC, each under a key of its own.
#[test]
fn opens_that_are_not_tracked_leave_other_leases_alone() {
    let mut world = world_with(100_000);
    for index in 0..1_100u64 {
        let mut key = [0xaa; 16];
        key[..8].copy_from_slice(&index.to_le_bytes());
        let file = Smb2CreateParameters {
            options: 0x2,
            lease: Some((LeaseKey(key), 7)),
            ..Smb2CreateParameters::leased("a", KEY)
        };
        let file = world.create(0, &file);
        world.ask(0, &messages::close(file));
    }
    let file = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    assert!(is_answered_here(
        &mut world,
        &messages::read(file, 0, 4_096)
    ));
    // The far half would say that it knows no more leases.
    let [_, far] = world.notes();
    assert_eq!(far, None);
}

#[test]
fn leased_writes_reach_the_server_before_a_breaker() {
    let mut world = world_with(0);
    let other = world.beside();
    let file = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    for block in 0..20 {
        assert!(is_answered_here(
            &mut world,
            &messages::write(file, block * 10, &[block as u8; 10])
        ));
    }
    let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
    hears_of_a_break(&mut world);
    // What the client says now is the server's to answer; and it says when the breaker may go on.
    assert!(!is_answered_here(
        &mut world,
        &messages::write(file, 0, b"late")
    ));
    assert!(!world.clients[other].answered.contains_key(&wanted));
    let key = LeaseKey([KEY; 16]);
    world.ask(0, &messages::acknowledge_lease(key, 3));
    let answer = world.wait(other, wanted);
    let theirs = CreateResponse::parse(&answer.body).unwrap().file;
    assert_eq!(read(&mut world, other, theirs, 0, 10), b"late\0\0\0\0\0\0");
    for block in 1..20 {
        let data = read(&mut world, other, theirs, block * 10, 10);
        assert_eq!(data, [block as u8; 10]);
    }
    // What is left, READ and HANDLE caching, is the client's own.
    world.ask(other, &messages::write(theirs, 0, b"theirs"));
    assert_eq!(read(&mut world, 0, file, 0, 6), b"theirs");
    assert_eq!(world.server.count(0, command::OPLOCK_BREAK), 1);
}

#[test]
fn lease_break_at_any_time_leaves_nothing_stale() {
    for moment in 0..60 {
        let mut world = world_with(300_000);
        let other = world.beside();
        let file = leased(&mut world);
        let first = world.send(0, &messages::read(file, 0, 20_000));
        let second = world.send(0, &messages::read(file, 20_000, 20_000));
        world.run_for(Duration::from_millis(moment * 5));
        let created = world.send(other, &Smb2CreateParameters::open("a").request());
        hears_of_a_break(&mut world);
        assert_eq!(world.wait(0, first).data(), &contents(300_000)[..20_000]);
        world.wait(0, second);
        let key = LeaseKey([KEY; 16]);
        world.ask(0, &messages::acknowledge_lease(key, 1));
        let answer = world.wait(other, created);
        let theirs = CreateResponse::parse(&answer.body).unwrap();
        world.ask(other, &messages::write(theirs.file, 0, &[1; 300_000]));
        for block in 0..15 {
            let data = read(&mut world, 0, file, block * 20_000, 20_000);
            assert!(data == [1; 20_000], "at {moment}, block {block}");
        }
        world.ask(0, &messages::close(file));
        assert!(world.let_go.is_none());
    }
}

#[test]
fn opens_of_one_lease_see_shared_writes() {
    let mut world = world_with(300_000);
    let first = leased(&mut world);
    read(&mut world, 0, first, 0, 10_000);
    let second = leased(&mut world);
    let mut expected = contents(300_000);
    world.run_for(Duration::from_secs(1));
    for round in 0..40usize {
        let (writes, reads) = match round % 2 {
            0 => (first, second),
            _ => (second, first),
        };
        let at = round * 5_000;
        world.ask(0, &messages::write(writes, at as u64, &[round as u8; 700]));
        expected[at..at + 700].fill(round as u8);
        let start = world.now;
        let data = read(&mut world, 0, reads, at as u64, 5_000);
        assert!(data == expected[at..at + 5_000], "{round}");
        assert!(world.round_trips(start) <= 1.01, "{round}");
    }
    world.ask(0, &messages::close(first));
    world.ask(0, &messages::close(second));
    assert!(world.server.files["a"] == expected);
    assert!(world.clients[0].unasked.is_empty());
}

/// A server executes several WRITEs at a time and in any order, through any opens.
#[test]
fn writes_of_one_lease_keep_their_order() {
    let mut world = world_with(0);
    let first = leased(&mut world);
    let second = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    world.server.holds_writes = true;
    for (file, value) in [(first, 1), (second, 2), (first, 3), (second, 4)] {
        assert!(is_answered_here(
            &mut world,
            &messages::write(file, 0, &[value; 100])
        ));
    }
    let flushed = world.send(0, &messages::flush(first));
    while !world.clients[0].answered.contains_key(&flushed) {
        world.run_for(Duration::from_millis(100));
        world.server.do_held_writes();
    }
    assert_eq!(world.server.files["a"], [4; 100]);
}

/// The second open gets the file's state before a WRITE that its own client sent meanwhile.
#[test]
fn write_during_another_open_is_visible_to_it() {
    for moment in 0..24 {
        let mut world = world_with(100_000);
        let first = leased(&mut world);
        world.run_for(Duration::from_secs(1));
        let created = world.send(0, &Smb2CreateParameters::leased("a", KEY).request());
        world.run_for(Duration::from_millis(moment * 5));
        world.ask(0, &messages::write(first, 99_000, &[9; 3_000]));
        world.run_for(Duration::from_millis(moment % 3 * 30));
        let answer = world.wait(0, created);
        let second = CreateResponse::parse(&answer.body).unwrap().file;
        let start = if moment % 2 == 0 { 99_000 } else { 40_000 };
        let mut expected = contents(100_000);
        expected.resize(102_000, 0);
        expected[99_000..].fill(9);
        for at in (start..102_000).step_by(1_000) {
            let data = read(&mut world, 0, second, at as u64, 1_000);
            assert!(data == expected[at..at + 1_000], "at {moment}, {at}");
        }
    }
}

/// Both halves must agree on the data that came with it: a READ that one half believes answered,
/// and the other cannot answer, would reach the server behind the client's next request.
#[test]
fn open_is_served_despite_writes_to_another_file() {
    for moment in 0..12 {
        let mut world = world_with(100_000);
        world.server.files.insert("b".to_owned(), contents(10));
        let other = world.create(0, &Smb2CreateParameters::open("b"));
        let created = world.send(0, &Smb2CreateParameters::leased("a", KEY).request());
        world.run_for(Duration::from_millis(moment * 10));
        world.send(0, &messages::write(other, 0, b"b"));
        let answer = world.wait(0, created);
        let file = CreateResponse::parse(&answer.body).unwrap().file;
        world.run_for(Duration::from_secs(1));
        let first = messages::read(file, 0, 10_000);
        assert!(is_answered_here(&mut world, &first), "at {moment}");
        let behind_the_end = world.send(0, &messages::read(file, 100_000, 10));
        let closed = world.send(0, &messages::close(file));
        assert_eq!(world.wait(0, closed).header.status, status::SUCCESS);
        let answer = world.wait(0, behind_the_end);
        assert_eq!(answer.header.status, status::END_OF_FILE);
    }
}

#[test]
fn durable_open_is_prefetched_but_written_through() {
    for context in [b"DHnQ", b"DH2Q"] {
        let mut world = durable_world(300_000);
        let create = Smb2CreateParameters {
            context: Some(context),
            ..Smb2CreateParameters::leased("a", KEY)
        };
        let file = world.create(0, &create);
        world.run_for(Duration::from_secs(1));
        assert!(is_answered_here(
            &mut world,
            &messages::read(file, 0, 10_000)
        ));
        for request in [messages::write(file, 0, b"durable"), messages::close(file)] {
            assert!(!is_answered_here(&mut world, &request));
        }
    }
}

/// Its client continues with the file after the connection has broken, and must not miss its own
/// writes through another open of the lease.
#[test]
fn durable_open_stops_early_writes_of_its_lease() {
    let durable = Smb2CreateParameters {
        context: Some(b"DH2Q"),
        ..Smb2CreateParameters::leased("a", KEY)
    };
    let mut world = durable_world(300_000);
    let before = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    let early = messages::write(before, 0, b"early");
    assert!(is_answered_here(&mut world, &early));
    let file = world.create(0, &durable);
    let behind = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    for file in [before, behind] {
        let late = messages::write(file, 0, b"late");
        assert!(!is_answered_here(&mut world, &late));
    }
    world.run_for(Duration::from_secs(1));
    // What is read is no harm.
    for file in [file, behind] {
        world.ask(0, &messages::read(file, 0, 10_000));
        assert!(is_answered_here(
            &mut world,
            &messages::read(file, 10_000, 10_000)
        ));
    }
    assert!(world.clients[0].unasked.is_empty());
}

/// The connection may break as soon as such an open can exist, and its client then continues with
/// the data that it has written.
#[test]
fn answered_writes_precede_a_durable_open() {
    let open = Smb2CreateParameters::leased("a", KEY);
    let [durable, again] = [b"DH2Q", b"DH2C"].map(|context| Smb2CreateParameters {
        context: Some(context),
        ..open
    });
    // Alone; beside another that is under way; in a compound; taken up again.
    let ways = [
        vec![vec![durable.request()]],
        vec![vec![open.request()], vec![durable.request()]],
        vec![vec![durable.request(), messages::echo()]],
        vec![vec![again.request()]],
    ];
    for way in ways {
        let mut world = durable_world(300_000);
        let file = leased(&mut world);
        world.run_for(Duration::from_secs(1));
        let before = world.server.count(0, command::CREATE);
        let asked: Vec<u64> = way
            .iter()
            .flat_map(|chain| world.send_chain(0, chain))
            .collect();
        let (mut written, mut answered) = (Vec::new(), 0);
        for block in 0..100 {
            let write = messages::write(file, block * 10, &[1; 10]);
            let id = world.send(0, &write);
            written.push(id);
            let is_here = world.clients[0].answered.contains_key(&id);
            answered += usize::from(is_here);
            world.run_for(Duration::from_millis(5));
            if world.server.count(0, command::CREATE) == before + way.len() {
                assert!(world.server.count(0, command::WRITE) >= answered, "{block}");
                assert!(!is_here, "{block}");
            }
        }
        assert!((1..100).contains(&answered));
        for id in asked.into_iter().chain(written) {
            world.wait(0, id);
        }
        assert!(world.clients[0].unasked.is_empty());
    }
}

/// A WRITE behind a compound may be answered already when the compound reaches the server.
#[test]
fn answered_writes_precede_a_compounded_durable_open() {
    let durable = Smb2CreateParameters {
        context: Some(b"DH2Q"),
        ..Smb2CreateParameters::leased("a", KEY)
    };
    let ways = |file: FileId| {
        let alone = (true, [durable.request(), messages::echo()]);
        // What it says of another open stays in order.
        [
            alone,
            (false, [messages::query_length(file), durable.request()]),
        ]
    };
    for way in 0..2 {
        let mut world = durable_world(300_000);
        let file = leased(&mut world);
        world.run_for(Duration::from_secs(1));
        world.server.holds_writes = true;
        let before = world.server.count(0, command::CREATE);
        let (waits, chain) = &ways(file)[way];
        let older = messages::write(file, 0, b"older");
        assert!(is_answered_here(&mut world, &older));
        let asked = world.send_chain(0, chain);
        // The server has not done the one before, which this one must not overtake.
        let newer = messages::write(file, 0, b"newer");
        assert!(is_answered_here(&mut world, &newer));
        world.run_for(Duration::from_secs(1));
        world.server.do_held_writes();
        world.run_for(Duration::from_secs(1));
        let is_opened = world.server.count(0, command::CREATE) > before;
        assert_eq!(is_opened, !waits, "{way}");
        world.server.holds_writes = false;
        world.server.do_held_writes();
        for id in asked {
            assert_eq!(world.wait(0, id).header.status, status::SUCCESS);
        }
        assert_eq!(world.server.files["a"][..5], *b"newer");
    }
}

/// A lease is untracked only for the file of that open.
#[test]
fn compounded_open_leaves_leases_of_other_files() {
    let directory = Smb2CreateParameters {
        oplock: 0xff,
        lease: Some((LeaseKey([9; 16]), 3)),
        ..Smb2CreateParameters::directory("")
    };
    for create in [Smb2CreateParameters::leased("b", 9), directory] {
        let mut world = world_with(300_000);
        world.server.files.insert("b".to_owned(), contents(10));
        let file = leased(&mut world);
        let chain = [create.request(), messages::echo()];
        let ids = world.send_chain(0, &chain);
        for id in ids {
            assert_eq!(world.wait(0, id).header.status, status::SUCCESS);
        }
        world.run_for(Duration::from_secs(1));
        let write = messages::write(file, 0, b"x");
        assert!(is_answered_here(&mut world, &write));
    }
}

/// A WRITE that is not answered here bars no READ; nor may it be overtaken by one made ahead.
#[test]
fn outstanding_write_stops_prefetching() {
    let mut world = durable_world(300_000);
    let create = Smb2CreateParameters {
        context: Some(b"DH2Q"),
        ..Smb2CreateParameters::leased("a", KEY)
    };
    let file = world.create(0, &create);
    for block in 0..3 {
        read(&mut world, 0, file, block * 10_000, 10_000);
    }
    world.server.holds_writes = true;
    let writing = world.send(0, &messages::write(file, 50_000, &[7; 10_000]));
    read(&mut world, 0, file, 30_000, 10_000);
    world.run_for(Duration::from_secs(1));
    world.server.holds_writes = false;
    world.server.do_held_writes();
    world.wait(0, writing);
    read(&mut world, 0, file, 40_000, 10_000);
    assert_eq!(read(&mut world, 0, file, 50_000, 10_000), [7; 10_000]);
}

#[test]
fn shared_or_unknown_lease_is_no_licence() {
    let plain = Smb2CreateParameters::leased("a", KEY);
    let key = LeaseKey([KEY; 16]);
    let to_read = Smb2CreateParameters {
        lease: Some((key, 3)),
        ..plain
    };
    let again = Smb2CreateParameters {
        context: Some(b"DHnC"),
        ..plain
    };
    let unbuffered = Smb2CreateParameters {
        options: 0x8,
        ..plain
    };
    for create in [to_read, again, unbuffered] {
        let mut world = world_with(300_000);
        let file = world.create(0, &create);
        world.run_for(Duration::from_secs(1));
        assert!(!is_answered_here(
            &mut world,
            &messages::read(file, 0, 1_000)
        ));
        assert!(!is_answered_here(
            &mut world,
            &messages::write(file, 0, b"x")
        ));
    }
}

/// The file may change through an untracked open.
#[test]
fn compounded_or_unknown_lease_open_ends_the_licence() {
    let plain = Smb2CreateParameters::leased("a", KEY);
    let unbuffered = Smb2CreateParameters {
        options: 0x8,
        ..plain
    };
    for is_compound in [true, false] {
        let mut world = world_with(300_000);
        let first = leased(&mut world);
        world.run_for(Duration::from_secs(1));
        assert!(is_answered_here(
            &mut world,
            &messages::read(first, 0, 10_000)
        ));
        let id = match is_compound {
            true => world.send_chain(0, &[plain.request(), messages::echo()])[0],
            false => world.send(0, &unbuffered.request()),
        };
        let answer = world.wait(0, id);
        let second = CreateResponse::parse(&answer.body).unwrap().file;
        world.ask(0, &messages::write(second, 10_000, b"changed"));
        assert_eq!(read(&mut world, 0, first, 10_000, 7), b"changed");
        assert!(!is_answered_here(
            &mut world,
            &messages::write(first, 0, b"x")
        ));
        // Nor is one that is made later.
        let third = leased(&mut world);
        world.run_for(Duration::from_secs(1));
        assert!(!is_answered_here(&mut world, &messages::read(third, 0, 10)));
    }
}

#[test]
fn leased_file_opens_again_for_attributes() {
    let mut world = world_with(300_000);
    let first = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    let second = world.create(
        0,
        &Smb2CreateParameters {
            access: 0x0012_0080,
            ..Smb2CreateParameters::leased("a", KEY)
        },
    );
    world.ask(0, &messages::query_length(second));
    assert!(is_answered_here(
        &mut world,
        &messages::write(first, 0, b"x")
    ));
}

/// A lock through one open excludes others from its range, including those of its lease.
#[test]
fn lock_sends_other_opens_to_the_server() {
    let mut world = world_with(300_000);
    let first = leased(&mut world);
    let second = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    assert!(is_answered_here(
        &mut world,
        &messages::write(second, 0, b"x")
    ));
    world.send(0, &messages::lock(first));
    assert!(!is_answered_here(
        &mut world,
        &messages::write(second, 0, b"x")
    ));
    assert!(!is_answered_here(
        &mut world,
        &messages::read(second, 0, 10)
    ));
    // One that was locked before is no better.
    let mut world = world_with(300_000);
    let first = leased(&mut world);
    world.ask(0, &messages::lock(first));
    let second = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    assert!(!is_answered_here(
        &mut world,
        &messages::read(second, 0, 10)
    ));
}

/// A client that empties its own file through a second open breaks no lease by it.
#[test]
fn leased_file_emptied_by_holder_is_not_prefetched() {
    let mut world = world_with(300_000);
    let first = leased(&mut world);
    read(&mut world, 0, first, 0, 10_000);
    world.run_for(Duration::from_secs(1));
    let second = world.create(
        0,
        &Smb2CreateParameters {
            disposition: 5,
            ..Smb2CreateParameters::leased("a", KEY)
        },
    );
    assert_eq!(read(&mut world, 0, first, 10_000, 10), b"");
    world.ask(0, &messages::write(second, 0, b"new"));
    assert_eq!(read(&mut world, 0, first, 0, 10), b"new");
}

#[test]
fn older_near_half_gets_no_leases() {
    let mut world = Smb2World::with_settings(super::DELAY, SmbSettings::STRICT);
    let speaks = HalfFrame::Speaks {
        version: TAKES_OFFERS,
    };
    world.run_for(Duration::from_secs(1));
    world.input(FAR, AcceleratorInput::Wan(speaks.emit()));
    world.server.files.insert("a".to_owned(), contents(100_000));
    world.set_up(0);
    let file = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    assert!(!is_answered_here(&mut world, &messages::read(file, 0, 10)));
}

/// WRITEs that the client believes complete are not overtaken by one through an untracked open.
#[test]
fn untracked_write_waits_for_answered_ones() {
    let mut world = world_with(300_000);
    let first = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    world.server.holds_writes = true;
    let unbuffered = Smb2CreateParameters {
        options: 0x8,
        ..Smb2CreateParameters::leased("a", KEY)
    };
    let opening = world.send(0, &unbuffered.request());
    world.run_for(Duration::from_millis(80));
    assert!(is_answered_here(
        &mut world,
        &messages::write(first, 0, b"older")
    ));
    let answer = world.wait(0, opening);
    let second = CreateResponse::parse(&answer.body).unwrap().file;
    let writing = world.send(0, &messages::write(second, 0, b"newer"));
    world.run_for(Duration::from_secs(1));
    // The last that has come is done first.
    world.server.do_held_writes();
    world.server.holds_writes = false;
    world.wait(0, writing);
    assert_eq!(world.server.files["a"][..5], *b"newer");
}

/// The client may give back more of its lease than the server requires.
#[test]
fn partly_broken_lease_is_no_licence() {
    let mut world = world_with(300_000);
    let file = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    assert!(is_answered_here(
        &mut world,
        &messages::read(file, 0, 1_000)
    ));
    world.server.say_lease_broken(0, LeaseKey([KEY; 16]), 1 | 4);
    hears_of_a_break(&mut world);
    assert!(!is_answered_here(
        &mut world,
        &messages::read(file, 1_000, 1_000)
    ));
}

#[test]
fn parallel_open_and_truncation_are_not_served() {
    for empties_first in [true, false] {
        let mut world = world_with(300_000);
        let plain = Smb2CreateParameters::leased("a", KEY).request();
        // FILE_OVERWRITE_IF ([MS-SMB2] §2.2.13).
        let mut emptying = plain.clone();
        emptying.body[36..40].copy_from_slice(&5_u32.to_le_bytes());
        let both = match empties_first {
            true => [&emptying, &plain],
            false => [&plain, &emptying],
        };
        // Both are with the server before it has answered either.
        let frames = both.map(|create| world.clients[0].frame(std::slice::from_ref(create)));
        let bytes = [&frames[0].1[..], &frames[1].1].concat();
        world.send_bytes(0, &bytes);
        for id in frames.map(|(ids, _)| ids[0]) {
            let answer = world.wait(0, id);
            assert_eq!(answer.header.status, status::SUCCESS);
            let file = CreateResponse::parse(&answer.body).unwrap().file;
            world.run_for(Duration::from_secs(1));
            let start = world.now;
            world.ask(0, &messages::read(file, 0, 1_000));
            assert!(world.now > start, "{empties_first}");
        }
    }
}

/// A reconnected handle has its previous lease, whatever its CREATE requests.
#[test]
fn reconnected_handle_without_lease_ends_the_licence() {
    let mut world = world_with(300_000);
    let file = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    assert!(is_answered_here(
        &mut world,
        &messages::read(file, 0, 1_000)
    ));
    let again = Smb2CreateParameters {
        context: Some(b"DHnC"),
        ..Smb2CreateParameters::open("a")
    };
    world.send(0, &again.request());
    world.run_for(Duration::from_secs(1));
    assert!(!is_answered_here(
        &mut world,
        &messages::read(file, 1_000, 1_000)
    ));
}
