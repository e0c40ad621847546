//! Clients that request durable handles, as the Linux kernel's client and Windows do: their waits,
//! and the contents that they find when they reconnect after the near node has died.

use std::time::Duration;

use vocab::SeededRandom;

use super::super::testing::messages::{self, Smb2CreateParameters, Smb2Message};
use super::super::testing::server::{ACCESS_DENIED, NO_SUCH_FILE};
use super::super::testing::world::{NEAR, Smb2World};
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{command, status};
use super::super::{DurablePolicy, SmbSettings};
use super::leases::{KEY, is_answered_here};
use super::{DELAY, contents, durable_world, read, world_with};

/// The CREATE of the kernel's client: under a lease, durable, to read and write everything.
fn kernel_open(name: &str) -> Smb2CreateParameters<'_> {
    Smb2CreateParameters {
        access: 0x103,
        context: Some(b"DH2Q"),
        ..Smb2CreateParameters::leased(name, KEY)
    }
}

/// A world with this policy, at a server that grants durable handles.
fn world_of(durable: DurablePolicy) -> Smb2World {
    let settings = SmbSettings {
        durable,
        ..SmbSettings::STRICT
    };
    let mut world = Smb2World::with_settings(DELAY, settings);
    world.server.grants_durable = true;
    world.server.credits_max = 512;
    world.set_up(0);
    world
}

#[test]
fn declined_durability_gives_a_whole_licence() {
    let mut world = world_of(DurablePolicy::Decline);
    let answer = world.ask(0, &kernel_open("a").request());
    let whole = [&[0; 64][..], &answer.body].concat();
    assert_eq!(CreateResponse::is_durable(&whole), Ok(false));
    let lease = CreateResponse::lease(&whole).unwrap().expect("its lease");
    assert!(lease.is_exclusive());
    assert_eq!(world.server.asked_durable, 0);
    let file = CreateResponse::parse(&answer.body).unwrap().file;
    world.run_for(Duration::from_secs(1));
    let write = messages::write(file, 0, b"early");
    assert!(is_answered_here(&mut world, &write));
}

#[test]
fn kept_durability_reaches_the_client() {
    let mut world = durable_world(10);
    let answer = world.ask(0, &kernel_open("a").request());
    let whole = [&[0; 64][..], &answer.body].concat();
    assert_eq!(CreateResponse::is_durable(&whole), Ok(true));
    let note = world.notes()[1].clone().unwrap_or_default();
    assert!(note.contains("1 durable opens"), "{note}");
}

/// Samba grants none with the POSIX locking that it has by default.
#[test]
fn refused_durability_gives_a_whole_licence() {
    let mut world = durable_world(10);
    world.server.grants_durable = false;
    let file = world.create(0, &kernel_open("a"));
    assert_eq!(world.server.asked_durable, 1);
    world.run_for(Duration::from_secs(1));
    let write = messages::write(file, 0, b"early");
    assert!(is_answered_here(&mut world, &write));
}

#[test]
fn kernel_reads_and_writes_small_files_in_few_round_trips() {
    let mut world = world_of(DurablePolicy::Decline);
    let start = world.now;
    for number in 0..50 {
        let name = format!("file-{number}");
        let create = Smb2CreateParameters {
            lease: Smb2CreateParameters::leased(&name, 100 + number).lease,
            ..kernel_open(&name)
        };
        let file = world.create(
            0,
            &Smb2CreateParameters {
                disposition: 5,
                ..create
            },
        );
        world.ask(0, &messages::flush(file));
        world.ask(0, &messages::set_end(file, 0));
        world.ask(0, &messages::set_basic(file));
        world.ask(0, &messages::write(file, 0, &[7; 10_000]));
        // The kernel closes it later, and nobody waits.
        world.send(0, &messages::close_with_attributes(file));
    }
    let written = world.round_trips(start) / 50.0;
    assert!(written <= 2.01, "{written}");
    let start = world.now;
    for number in 0..50 {
        let name = format!("file-{number}");
        let create = Smb2CreateParameters {
            lease: Smb2CreateParameters::leased(&name, 100 + number).lease,
            ..kernel_open(&name)
        };
        let file = world.create(0, &create);
        assert_eq!(read(&mut world, 0, file, 0, 16_384), [7; 10_000]);
        world.send(0, &messages::close_with_attributes(file));
    }
    let round_trips = world.round_trips(start) / 50.0;
    assert!(round_trips <= 1.01, "{round_trips}");
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.open_count(), 0);
    assert!(world.let_go.is_none());
}

/// Builds a request about an open file.
type RequestBuilder = fn(FileId) -> Smb2Message;

#[test]
fn flushed_file_closes_at_once() {
    let mut world = world_with(0);
    let create = Smb2CreateParameters {
        access: 0x1_0103,
        ..Smb2CreateParameters::open("a")
    };
    let file = world.create(0, &create);
    world.run_for(Duration::from_secs(1));
    world.ask(0, &messages::write(file, 0, b"written"));
    world.ask(0, &messages::flush(file));
    assert!(is_answered_here(&mut world, &messages::close(file)));
    // A change behind the FLUSH is the CLOSE's to report, and so is what it does besides.
    let changes: [(RequestBuilder, bool); 4] = [
        (|file| messages::write(file, 0, b"more"), false),
        (messages::set_basic, false),
        (messages::lock, true),
        (messages::delete, true),
    ];
    for (change, is_bound) in changes {
        let file = world.create(0, &create);
        world.run_for(Duration::from_secs(1));
        world.ask(0, &change(file));
        let flush = world.send(0, &messages::flush(file));
        if !is_bound {
            world.send(0, &change(file));
        }
        world.wait(0, flush);
        assert!(!is_answered_here(&mut world, &messages::close(file)));
    }
}

/// The kernel's client closes a file a second after its user, and its next request waits for that.
#[test]
fn leased_file_closes_at_once_without_attributes() {
    let mut world = world_of(DurablePolicy::Decline);
    let reads: fn(FileId) -> Vec<Smb2Message> = |file| vec![messages::read(file, 0, 100)];
    let writes = |file| vec![messages::write(file, 0, b"new"), messages::set_basic(file)];
    for requests in [reads, writes] {
        for pause in [0, 1_000] {
            let file = world.create(0, &kernel_open("a"));
            world.run_for(Duration::from_secs(1));
            for request in requests(file) {
                world.ask(0, &request);
            }
            world.run_for(Duration::from_millis(pause));
            let start = world.now;
            let answer = world.ask(0, &messages::close_with_attributes(file));
            assert_eq!(answer.header.status, status::SUCCESS);
            // The server confirms changes within a round trip.
            let is_here = pause > 0 || requests(file).len() == 1;
            assert_eq!(world.now == start, is_here, "{pause}");
            if is_here {
                assert_eq!(answer.body[2..], [0; 58]);
            }
            world.run_for(Duration::from_secs(1));
            assert_eq!(world.server.open_count(), 0);
        }
    }
}

#[test]
fn lost_change_is_reported_by_a_late_close() {
    let mut world = world_of(DurablePolicy::Decline);
    let file = world.create(0, &kernel_open("a"));
    world.run_for(Duration::from_secs(1));
    world.server.refuses = Some((command::WRITE, ACCESS_DENIED));
    assert!(is_answered_here(
        &mut world,
        &messages::write(file, 0, b"lost")
    ));
    world.run_for(Duration::from_secs(1));
    let answer = world.ask(0, &messages::close_with_attributes(file));
    assert_eq!(answer.header.status, ACCESS_DENIED);
}

#[test]
fn attributes_are_set_before_the_server_has() {
    let mut world = world_with(10);
    let file = world.create(0, &kernel_open("a"));
    world.run_for(Duration::from_secs(1));
    assert!(is_answered_here(&mut world, &messages::set_basic(file)));
    assert!(is_answered_here(&mut world, &messages::set_end(file, 3)));
    assert_eq!(read(&mut world, 0, file, 0, 100), contents(3));
    // Without the right to it the server refuses.
    let reader = Smb2CreateParameters {
        access: 0x3,
        ..Smb2CreateParameters::open("b")
    };
    let file = world.create(0, &reader);
    world.run_for(Duration::from_secs(1));
    assert!(!is_answered_here(&mut world, &messages::set_basic(file)));
    assert!(is_answered_here(&mut world, &messages::set_end(file, 3)));
}

#[test]
fn refused_attributes_are_told_once_and_leave_data_alone() {
    let requests: [(RequestBuilder, bool); 3] = [
        (messages::flush, false),
        (messages::set_basic, false),
        (messages::close, true),
    ];
    for (request, is_last) in requests {
        let mut world = world_with(10);
        let file = world.create(0, &kernel_open("a"));
        world.run_for(Duration::from_secs(1));
        world.server.refuses = Some((command::SET_INFO, ACCESS_DENIED));
        assert!(is_answered_here(&mut world, &messages::set_basic(file)));
        world.run_for(Duration::from_secs(1));
        for change in [messages::write(file, 0, b"written"), messages::lock(file)] {
            let answer = world.ask(0, &change);
            assert_eq!(answer.header.status, status::SUCCESS);
        }
        assert!(world.server.files["a"].starts_with(b"written"));
        let answer = world.ask(0, &request(file));
        assert_eq!(answer.header.status, ACCESS_DENIED);
        if !is_last {
            let answer = world.ask(0, &messages::flush(file));
            assert_eq!(answer.header.status, status::SUCCESS);
        }
    }
}

#[test]
fn write_does_not_overtake_answered_attributes() {
    let mut world = world_with(10);
    let file = world.create(0, &kernel_open("a"));
    world.run_for(Duration::from_secs(1));
    world.server_takes = Duration::from_millis(400);
    assert!(is_answered_here(&mut world, &messages::set_basic(file)));
    assert!(is_answered_here(
        &mut world,
        &messages::write(file, 0, b"behind")
    ));
    world.run_for(Duration::from_millis(300));
    assert_eq!(world.server.count(0, command::SET_INFO), 1);
    assert_eq!(world.server.count(0, command::WRITE), 0);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.count(0, command::WRITE), 1);
}

#[test]
fn answered_attributes_precede_a_breaker() {
    for pause in [0, 20, 49, 51, 80, 120] {
        let mut world = world_with(10);
        let other = world.beside();
        let create = Smb2CreateParameters {
            access: 0x103,
            ..Smb2CreateParameters::open("a")
        };
        let file = world.create(0, &create);
        world.run_for(Duration::from_secs(1));
        let opened = world.send(other, &Smb2CreateParameters::open("a").request());
        world.run_for(Duration::from_millis(pause));
        let set = world.send(0, &messages::set_basic(file));
        let is_here = world.clients[0].answered.contains_key(&set);
        world.wait(other, opened);
        let log = world.server.log.iter().map(|(_, header)| header.command);
        let set = log.clone().position(|of| of == command::SET_INFO);
        let given = log.clone().position(|of| of == command::OPLOCK_BREAK);
        assert!(!is_here || set < given && set.is_some(), "{pause}");
        assert_eq!(is_here, pause < 50, "{pause}");
    }
}

#[test]
fn kernel_copies_large_files_at_line_rate() {
    const BLOCK: usize = 65_536;
    const BLOCKS: usize = 96;
    let data = contents(BLOCK * BLOCKS);
    let mut world = world_of(DurablePolicy::Decline);
    // 20 Mbit/s.
    let rate = 2.5e6;
    world.rate = Some(rate);
    let fraction = |world: &Smb2World, start| {
        let line = data.len() as f64 / rate;
        line / world.now.since(start).as_secs_f64()
    };
    let file = world.create(0, &kernel_open("a"));
    world.run_for(Duration::from_secs(1));
    let start = world.now;
    for (block, piece) in data.chunks(BLOCK).enumerate() {
        world.ask(0, &messages::write(file, (block * BLOCK) as u64, piece));
    }
    world.ask(0, &messages::flush(file));
    let written = fraction(&world, start);
    assert!(written >= 0.8, "{written}");
    assert!(world.server.files["a"] == data);
    world.ask(0, &messages::close_with_attributes(file));
    let file = world.create(0, &kernel_open("a"));
    let start = world.now;
    for (block, piece) in data.chunks(BLOCK).enumerate() {
        let offset = (block * BLOCK) as u64;
        assert!(read(&mut world, 0, file, offset, BLOCK as u32) == piece);
    }
    let got = fraction(&world, start);
    assert!(got >= 0.8, "{got}");
}

/// One run: a client writes, its near node dies, and it reconnects beside the server. Returns the
/// number of WRITEs that were answered before the server had them, and whether it reconnected.
fn reconnect_once(seed: u64, policy: DurablePolicy) -> (usize, bool) {
    let mut random = SeededRandom::from_seed(seed);
    let mut world = world_of(policy);
    let other = world.beside();
    let file = world.create(0, &kernel_open("a"));
    let mut written = Vec::new();
    let mut early = 0;
    for number in 0..1 + random.below(30) {
        let data = [number as u8 + 1; 10];
        let id = world.send(0, &messages::write(file, number * 10, &data));
        early += usize::from(world.clients[0].answered.contains_key(&id));
        written.push((id, number, data));
        if random.below(6) == 0 {
            let flushed = world.send(0, &messages::flush(file));
            world.run_for(Duration::from_millis(random.below(150)));
            world.clients[0].answered.remove(&flushed);
        }
        world.run_for(Duration::from_millis(random.below(60)));
    }
    let is_answered = |id: &u64| world.clients[0].answered.contains_key(id);
    let acknowledged: Vec<_> = written.iter().filter(|(id, ..)| is_answered(id)).collect();
    let acknowledged: Vec<_> = acknowledged.into_iter().cloned().collect();
    world.kill(NEAR);
    // The client names its previous session, and the server ends it.
    world.server.disconnect(0);
    let answer = world.ask(other, &messages::reconnect("a", file));
    if answer.header.status != status::SUCCESS {
        assert_eq!(answer.header.status, NO_SUCH_FILE);
        return (early, false);
    }
    for (_, number, data) in acknowledged {
        let found = read(&mut world, other, file, number * 10, 10);
        assert_eq!(found, data, "seed {seed}: WRITE {number} was acknowledged");
    }
    (early, true)
}

/// A client that reconnects finds all that it believes written; one whose WRITEs were answered early
/// cannot reconnect, and learns so that they may be lost.
#[test]
fn reconnected_handle_has_every_acknowledged_write() {
    let mut answered_early = 0;
    for seed in 0..150 {
        let (early, is_reconnected) = reconnect_once(seed, DurablePolicy::Keep);
        assert!(early == 0 && is_reconnected, "seed {seed}");
        let (early, is_reconnected) = reconnect_once(seed, DurablePolicy::Decline);
        assert!(!is_reconnected, "seed {seed}");
        answered_early += early;
    }
    assert!(answered_early > 100, "{answered_early}");
}
