//! Nodes that fail, a path that is cut for good, a server that ends the connection: confirmed data
//! is kept, losses are reported, and clients that wait for this one wait no longer than stated.

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::DISK_FULL;
use super::super::testing::world::{FAR, NEAR, Smb2Response, Smb2World};
use super::super::wire::FileId;
use super::super::wire::header::{command, status};
use super::{contents, open, read, world_with};

/// The longest wait of an open for a client that cannot be reached, and the time for which that
/// client is answered near it (docs/decisions/0029).
const BREAKER_WAITS: Duration = Duration::from_secs(12);
const FRESH_FOR: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowEnding {
    NearDies,
    FarDies,
    IsCut,
    ServerEnds,
}

const ENDS: [FlowEnding; 4] = [
    FlowEnding::NearDies,
    FlowEnding::FarDies,
    FlowEnding::IsCut,
    FlowEnding::ServerEnds,
];

fn comes(end: FlowEnding, world: &mut Smb2World) {
    match end {
        FlowEnding::NearDies => world.kill(NEAR),
        FlowEnding::FarDies => world.kill(FAR),
        FlowEnding::IsCut => world.is_cut = true,
        FlowEnding::ServerEnds => world.server_disconnects(),
    }
}

/// A world whose client has these files open, and has read of each.
fn world_of(names: &[&str]) -> (Smb2World, Vec<FileId>) {
    let mut world = world_with(0);
    world.server.credits_max = 512;
    let mut files = Vec::new();
    for name in names {
        world.server.files.insert((*name).to_owned(), contents(100));
        let file = world.create(0, &Smb2CreateParameters::open(name));
        read(&mut world, 0, file, 0, 10);
        files.push(file);
    }
    (world, files)
}

fn answer(world: &Smb2World, id: u64) -> Option<&Smb2Response> {
    world.clients[0].answered.get(&id)
}

fn succeeded(world: &Smb2World, id: u64) -> bool {
    answer(world, id).is_some_and(|answer| answer.header.status == status::SUCCESS)
}

#[test]
fn flushed_or_closed_data_outlives_every_end() {
    let (mut kept, mut unanswered) = (0, 0);
    for end in ENDS {
        for moment in 0..30 {
            let (mut world, files) = world_of(&["a", "b"]);
            let mut asked = Vec::new();
            for (index, file) in files.into_iter().enumerate() {
                for block in 0..5 {
                    world.ask(0, &messages::write(file, block * 20, &[7; 20]));
                }
                let request = match index {
                    0 => messages::flush(file),
                    _ => messages::close(file),
                };
                asked.push((world.send(0, &request), ["a", "b"][index]));
            }
            world.run_for(Duration::from_millis(5 * moment));
            comes(end, &mut world);
            world.run_for(Duration::from_secs(30));
            world.reset();
            for (id, name) in asked {
                if succeeded(&world, id) {
                    assert_eq!(world.server.files[name], [7; 100], "{end:?}, {moment}");
                    kept += 1;
                } else {
                    assert!(answer(&world, id).is_none(), "{end:?}, {moment}");
                    unanswered += 1;
                }
            }
        }
    }
    // Otherwise it was tried at no moment of worth.
    assert!(kept > 20 && unanswered > 20, "{kept}, {unanswered}");
}

#[test]
fn lost_writes_are_never_confirmed() {
    let mut lost = 0;
    for end in ENDS {
        for moment in 0..30 {
            let (mut world, files) = world_of(&["a"]);
            let file = files[0];
            let early = world.ask(0, &messages::write(file, 0, &[7; 100]));
            assert_eq!(early.header.status, status::SUCCESS);
            world.run_for(Duration::from_millis(5 * moment));
            comes(end, &mut world);
            let mut asked = Vec::new();
            for request in [
                messages::write(file, 0, &[8; 10]),
                messages::flush(file),
                messages::close(file),
            ] {
                if !world.is_client_gone {
                    asked.push(world.send(0, &request));
                    world.run_for(Duration::from_secs(1));
                }
            }
            world.run_for(Duration::from_secs(30));
            world.reset();
            // Its connection ends, and that is how it is told.
            assert!(world.is_client_gone);
            lost += usize::from(world.server.files["a"] == contents(100));
            for id in &asked[asked.len().min(1)..] {
                assert!(!succeeded(&world, *id), "{end:?}, {moment}");
            }
        }
    }
    assert!(lost > 20, "{lost}");
}

#[test]
fn loss_is_reported_only_on_its_open() {
    for cut in [None, Some(Duration::from_secs(20))] {
        let (mut world, files) = world_of(&["a", "b"]);
        let other = world.beside();
        let told = match cut {
            // The server refuses the WRITE.
            None => {
                world.server.disk = 0;
                let early = world.ask(0, &messages::write(files[0], 0, &[7; 1_000]));
                assert_eq!(early.header.status, status::SUCCESS);
                world.run_for(Duration::from_secs(1));
                world.server.disk = usize::MAX;
                DISK_FULL
            }
            // It comes when another client has been given the file.
            Some(cut) => {
                world.is_cut = true;
                let early = world.ask(0, &messages::write(files[0], 0, &[7; 1_000]));
                assert_eq!(early.header.status, status::SUCCESS);
                world.send(other, &Smb2CreateParameters::open("a").request());
                world.run_for(cut);
                world.is_cut = false;
                status::UNEXPECTED_IO_ERROR
            }
        };
        world.ask(0, &messages::write(files[1], 0, b"kept"));
        for request in [
            messages::write(files[0], 0, b"x"),
            messages::flush(files[0]),
            messages::set_end(files[0], 10),
            messages::flush(files[0]),
            messages::close(files[0]),
        ] {
            let answer = world.ask(0, &request);
            assert_eq!(answer.header.status, told, "{cut:?}, {request:?}");
        }
        for request in [messages::flush(files[1]), messages::close(files[1])] {
            let answer = world.ask(0, &request);
            assert_eq!(answer.header.status, status::SUCCESS);
        }
        assert_eq!(&world.server.files["b"][..4], b"kept");
        assert!(world.let_go.is_none());
    }
}

/// A client writes through one of the opens under its lease, and asks for confirmation through another.
#[test]
fn loss_is_reported_on_every_open_of_its_lease() {
    let mut world = world_with(0);
    world.server.files.insert("a".to_owned(), contents(100));
    let create = Smb2CreateParameters::leased("a", 1);
    let files = [0, 1].map(|_| world.create(0, &create));
    world.run_for(Duration::from_secs(1));
    world.server.disk = 0;
    let early = world.ask(0, &messages::write(files[0], 0, &[7; 1_000]));
    assert_eq!(early.header.status, status::SUCCESS);
    world.run_for(Duration::from_secs(1));
    world.server.disk = usize::MAX;
    for file in [files[1], files[0]] {
        let answer = world.ask(0, &messages::flush(file));
        assert_eq!(answer.header.status, DISK_FULL);
    }
}

/// A client would do again what its expired session was refused, but it has the WRITE no more.
#[test]
fn refusal_for_an_expired_session_is_told_as_a_loss() {
    for refusal in [
        status::NETWORK_SESSION_EXPIRED,
        status::USER_SESSION_DELETED,
    ] {
        let (mut world, files) = world_of(&["a"]);
        world.server.refuses = Some((command::WRITE, refusal));
        let early = world.ask(0, &messages::write(files[0], 0, b"lost"));
        assert_eq!(early.header.status, status::SUCCESS);
        world.run_for(Duration::from_secs(1));
        let answer = world.ask(0, &messages::flush(files[0]));
        assert_eq!(answer.header.status, status::UNEXPECTED_IO_ERROR);
    }
}

#[test]
fn open_waits_at_most_twelve_seconds() {
    for end in ENDS {
        for moment in [0, 10, 30, 49, 51, 70, 99, 101, 150] {
            // Before another client wants the file, and while it waits.
            for is_before in [true, false] {
                let (mut world, files) = world_of(&["a"]);
                let other = world.beside();
                world.ask(0, &messages::write(files[0], 0, b"early"));
                if is_before {
                    world.run_for(Duration::from_millis(moment));
                    comes(end, &mut world);
                }
                let start = world.now;
                let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
                if !is_before {
                    world.run_for(Duration::from_millis(moment));
                    comes(end, &mut world);
                }
                let answer = world.wait(other, wanted);
                assert_eq!(answer.header.status, status::SUCCESS);
                let waited = world.now.since(start);
                let most = match end {
                    FlowEnding::NearDies | FlowEnding::IsCut => BREAKER_WAITS,
                    // The server's opens end with their connection.
                    FlowEnding::FarDies | FlowEnding::ServerEnds => Duration::from_millis(moment),
                };
                assert!(waited <= most, "{end:?}, {moment}: {waited:?}");
            }
        }
    }
}

#[test]
fn local_answers_stop_once_others_have_the_file() {
    for end in [FlowEnding::FarDies, FlowEnding::IsCut] {
        let mut world = world_with(1_000_000);
        let other = world.beside();
        let file = open(&mut world, 0);
        for block in 0..5 {
            read(&mut world, 0, file, block * 10_000, 10_000);
        }
        world.run_for(Duration::from_secs(1));
        comes(end, &mut world);
        let start = world.now;
        let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
        let mut last = None;
        for step in 0..200 {
            let request = messages::read(file, 50_000 + step * 1_000, 1_000);
            if world.clients[0].credits() == 0 {
                break;
            }
            let id = world.send(0, &request);
            if succeeded(&world, id) {
                last = Some(world.now);
                let is_given = world.clients[other].answered.contains_key(&wanted);
                // A node that is gone takes the server's promise with it, and is missed only then.
                assert!(!is_given || end == FlowEnding::FarDies, "step {step}");
            }
            world.run_for(Duration::from_millis(100));
        }
        let last = last.expect("it is answered while it may be").since(start);
        assert!(last > Duration::from_secs(5), "{end:?}: {last:?}");
        assert!(last < FRESH_FOR, "{end:?}: {last:?}");
    }
}
