//! Tests of requests that are not served and pass: set-up, compounds, pending requests, cancels,
//! breaks of others.

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters, frame};
use super::super::testing::server::{CANCELLED, Smb2Server};
use super::super::testing::world::Smb2World;
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{flag, status};
use super::{DELAY, contents, open, read, world_with};

#[test]
fn set_up_passes_byte_for_byte() {
    let mut world = Smb2World::new(DELAY);
    world.set_up(0);
    let mut direct = Smb2Server::new();
    direct.connect();
    let mut bytes = Vec::new();
    for (id, (session, request)) in [
        (0, messages::negotiate()),
        (0, messages::session_setup()),
        (77, messages::tree_connect()),
    ]
    .into_iter()
    .enumerate()
    {
        let header = request.header(id as u64, session, 0);
        direct.receive(0, &frame(&[(header, &request.body)]));
        bytes.extend(direct.take(0));
    }
    assert_eq!(world.clients[0].bytes, bytes);
}

#[test]
fn related_compounds_keep_the_clients_ids() {
    let mut world = world_with(50_000);
    let served = open(&mut world, 0);
    let other = world.server.files["a"].clone();
    world.server.files.insert("b".to_owned(), other);
    let create = Smb2CreateParameters::open("b").request();
    let of_before = FileId::RELATED;
    let chain = [
        create,
        messages::read(of_before, 0, 100).with_flags(4),
        messages::close(of_before).with_flags(4),
    ];
    for _ in 0..3 {
        let ids = world.send_chain(0, &chain);
        let answers = ids.map_answers(&mut world);
        assert!(answers.iter().all(|status| *status == status::SUCCESS));
    }
    // The open beside it is still served.
    let start = world.now;
    assert_eq!(
        read(&mut world, 0, served, 0, 1_000),
        contents(50_000)[..1_000]
    );
    assert!(world.round_trips(start) < 0.01);
}

trait MapAnswers {
    fn map_answers(self, world: &mut Smb2World) -> Vec<u32>;
}

impl MapAnswers for Vec<u64> {
    fn map_answers(self, world: &mut Smb2World) -> Vec<u32> {
        self.into_iter()
            .map(|id| world.wait(0, id).header.status)
            .collect()
    }
}

#[test]
fn compounded_write_makes_prefetched_data_stale() {
    let mut world = world_with(500_000);
    let file = open(&mut world, 0);
    for block in 0..4 {
        read(&mut world, 0, file, block * 10_000, 10_000);
    }
    let chain = [
        messages::write(file, 40_000, &[3; 64]),
        messages::flush(FileId::RELATED).with_flags(4),
    ];
    let ids = world.send_chain(0, &chain);
    ids.map_answers(&mut world);
    assert_eq!(read(&mut world, 0, file, 40_000, 64), [3; 64]);
}

/// The server uses the request before, not the open that a related one names ([MS-SMB2]
/// §3.3.5.2.7.2).
#[test]
fn related_request_uses_the_previous_open() {
    for names in [FileId::RELATED, FileId([9; 16])] {
        let mut world = world_with(500_000);
        let other = world.server.files["a"].clone();
        world.server.files.insert("b".to_owned(), other);
        let file = open(&mut world, 0);
        let named = match names {
            FileId::RELATED => FileId::RELATED,
            _ => open_b(&mut world, 0),
        };
        for block in 0..4 {
            read(&mut world, 0, file, block * 10_000, 10_000);
        }
        let written = [
            messages::query_length(file),
            messages::echo().with_flags(4),
            messages::write(named, 40_000, &[3; 64]).with_flags(4),
        ];
        world.send_chain(0, &written).map_answers(&mut world);
        assert_eq!(read(&mut world, 0, file, 40_000, 64), [3; 64]);

        let closed = [
            messages::query_length(file),
            messages::close(named).with_flags(4),
        ];
        world.send_chain(0, &closed).map_answers(&mut world);
        if names != FileId::RELATED {
            assert_eq!(
                read(&mut world, 0, named, 40_000, 64),
                contents(500_000)[40_000..40_064]
            );
            // It is still held, and given back to who wants it.
            let beside = world.beside();
            let theirs = open_b(&mut world, beside);
            world.ask(beside, &messages::write(theirs, 0, b"theirs"));
            assert_eq!(read(&mut world, 0, named, 0, 6), b"theirs");
        }
    }
}

fn open_b(world: &mut Smb2World, who: usize) -> FileId {
    let answer = world.ask(who, &Smb2CreateParameters::open("b").request());
    CreateResponse::parse(&answer.body).unwrap().file
}

#[test]
fn pending_requests_pass_and_can_be_cancelled() {
    let mut world = world_with(500_000);
    let file = open(&mut world, 0);
    for by_async_id in [false, true] {
        // Ids are no longer the client's own by then.
        read(&mut world, 0, file, 0, 10_000);
        read(&mut world, 0, file, 10_000, 10_000);
        let id = world.send(0, &messages::change_notify(file));
        world.run_for(Duration::from_millis(200));
        let interim = world.clients[0].interim.pop().expect("it is pending");
        assert_eq!(interim.header.message_id, id);
        assert!(interim.header.has(flag::ASYNC));
        if by_async_id {
            world.clients[0].interim.push(interim);
            world.cancel_by_async_id(0);
        } else {
            world.cancel(0, id);
        }
        assert_eq!(world.wait(0, id).header.status, CANCELLED);
    }
}

#[test]
fn cancel_of_a_locally_answered_read_is_harmless() {
    let mut world = world_with(500_000);
    let file = open(&mut world, 0);
    for block in 0..10 {
        let id = world.send(0, &messages::read(file, block * 10_000, 10_000));
        world.cancel(0, id);
        let data = world.wait(0, id).data().to_vec();
        let at = block as usize * 10_000;
        assert_eq!(data, contents(500_000)[at..at + 10_000]);
    }
}

#[test]
fn open_of_another_session_is_not_answered() {
    let mut world = world_with(100_000);
    let file = open(&mut world, 0);
    world.run_for(Duration::from_secs(1));
    // Somebody who guesses another's open gets what the server says, which here is an error of
    // the test; so only the near half is asked whether it would answer.
    let mut stranger = messages::read(file, 0, 100).header(world_next_id(&world), 1, 5);
    stranger.command = 8;
    let body = messages::read(file, 0, 100).body;
    let before = world.clients[0].bytes.len();
    world.is_cut = true;
    world.send_bytes(0, &frame(&[(stranger, &body)]));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.clients[0].bytes.len(), before);
}

fn world_next_id(world: &Smb2World) -> u64 {
    world.server.log.len() as u64
}

/// The client increments the number by then, and servers refuse late requests under an earlier
/// number.
#[test]
fn requests_after_channel_loss_go_to_the_server() {
    let mut world = world_with(100_000);
    let file = open(&mut world, 0);
    world.run_for(Duration::from_secs(1));
    for (id, request) in [
        (1_000, messages::read(file, 0, 100)),
        (1_001, messages::write(file, 0, b"late")),
    ] {
        let mut header = request.header(id, world.clients[0].session, world.clients[0].tree);
        header.status = 1;
        world.send_bytes(0, &frame(&[(header, &request.body)]));
        assert!(!world.clients[0].answered.contains_key(&id));
        assert_eq!(world.wait(0, id).header.status, status::SUCCESS);
    }
}

#[test]
fn keep_alives_pass_while_an_open_is_served() {
    let mut world = world_with(300_000);
    let file = open(&mut world, 0);
    for block in 0..5 {
        world.send_bytes(0, b"\x85\0\0\0");
        let data = read(&mut world, 0, file, block * 10_000, 10_000);
        let at = block as usize * 10_000;
        assert_eq!(data, contents(300_000)[at..at + 10_000]);
    }
    world.ask(0, &messages::write(file, 0, b"written"));
    world.send_bytes(0, b"\x85\0\0\0");
    assert_eq!(read(&mut world, 0, file, 0, 7), b"written");
    assert!(world.let_go.is_none());
}

#[test]
fn echo_and_unserved_open_pass() {
    let mut world = world_with(300_000);
    let file = open(&mut world, 0);
    let answer = world.ask(0, &messages::echo());
    assert_eq!(answer.header.status, status::SUCCESS);
    let created = world.ask(
        0,
        &Smb2CreateParameters {
            context: Some(b"DH2Q"),
            ..Smb2CreateParameters::open("b")
        }
        .request(),
    );
    let other = CreateResponse::parse(&created.body).unwrap().file;
    world.ask(0, &messages::write(other, 0, b"plain"));
    assert_eq!(read(&mut world, 0, other, 0, 5), b"plain");
    assert_eq!(read(&mut world, 0, file, 0, 5), contents(5));
    world.ask(0, &messages::lock(file));
    assert_eq!(read(&mut world, 0, file, 0, 5), contents(5));
}

/// A guest's session of SMB 3.1.1 has no keys that would follow from the bytes of its set-up.
#[test]
fn a_guest_may_set_its_session_up_again() {
    let mut world = Smb2World::new(DELAY);
    world.server.dialect = 0x0311;
    world.server.takes_guests = true;
    world.server.files.insert("a".to_owned(), contents(100_000));
    world.set_up(0);
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 10_000);
    let answer = world.ask(0, &messages::session_setup());
    assert_eq!(answer.header.status, status::SUCCESS);
    let start = world.now;
    assert_eq!(
        read(&mut world, 0, file, 10_000, 10_000),
        contents(100_000)[10_000..20_000]
    );
    assert!(world.round_trips(start) < 0.01, "read ahead");
    assert!(world.let_go.is_none());
}
