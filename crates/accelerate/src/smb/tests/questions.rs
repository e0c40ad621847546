//! Questions about files in the form of Windows' redirector, asked ahead of clients: their waits, and the
//! answers that they get.

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters, Smb2Message};
use super::super::testing::world::Smb2World;
use super::super::wire::FileId;
use super::super::wire::header::{command, flag, status};
use super::super::wire::lease::LeaseKey;
use super::super::wire::query_info::{InformationQuestion, information};
use super::{sealed, signed, world_with};

/// FileEaInformation, FileStreamInformation and FileNormalizedNameInformation.
const EA: (u8, u8) = (1, 7);
const STREAMS: (u8, u8) = (1, 22);
const NAME: (u8, u8) = (1, 48);
/// The rights of a file.
const SECURITY: (u8, u8) = (3, 0);
/// FileFsVolumeInformation and FileFsAttributeInformation.
const VOLUME: [(u8, u8); 2] = [(2, 1), (2, 5)];

fn question(file: FileId, (kind, class): (u8, u8)) -> Smb2Message {
    let question = InformationQuestion {
        kind,
        class,
        additional: if kind == 3 { 7 } else { 0 },
    };
    messages::query_information(file, question)
}

/// Sends questions in one compound, and waits for all answers; each must have its information.
fn ask(world: &mut Smb2World, file: FileId, questions: &[(u8, u8)]) {
    let mut compound = vec![question(file, questions[0])];
    for other in &questions[1..] {
        compound.push(question(FileId::RELATED, *other).with_flags(flag::RELATED));
    }
    let ids = world.send_chain(0, &compound);
    for id in ids {
        let answer = world.wait(0, id);
        assert_eq!(answer.header.status, status::SUCCESS);
        assert!(information(&answer.body).is_ok());
    }
}

/// Returns true if questions are answered on this side of the path.
fn are_answered_here(world: &mut Smb2World, file: FileId, questions: &[(u8, u8)]) -> bool {
    let start = world.now;
    ask(world, file, questions);
    world.now == start
}

fn create(world: &mut Smb2World) -> FileId {
    let create = Smb2CreateParameters {
        access: 0x103,
        lease: Some((LeaseKey([7; 16]), 7)),
        ..Smb2CreateParameters::leased("a", 7)
    };
    world.create(0, &create)
}

/// Opens the file "a", asks as Explorer does, reads, and closes; the round trips.
fn browse(world: &mut Smb2World) -> f64 {
    let start = world.now;
    let file = create(world);
    ask(world, file, &[EA, STREAMS, SECURITY]);
    ask(world, file, &VOLUME);
    assert!(!super::read(world, 0, file, 0, 1_000).is_empty());
    world.ask(0, &messages::close(file));
    world.round_trips(start)
}

#[test]
fn repeated_questions_come_with_the_open() {
    let mut world = world_with(1_000);
    let first = browse(&mut world);
    assert!(first >= 2.9, "{first}");
    for _ in 0..5 {
        let round_trips = browse(&mut world);
        assert!(round_trips <= 1.01, "{round_trips}");
    }
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.open_count(), 0);
    assert!(world.let_go.is_none());
}

#[test]
fn protected_questions_come_with_the_open() {
    // SMB 2.0.2 has no leases.
    for way in signed::WAYS.into_iter().filter(|way| way.0 > 0x0202) {
        let mut world = signed::world_of(way, 1_000);
        let trips: Vec<f64> = (0..3).map(|_| browse(&mut world)).collect();
        assert!(trips[2] <= 1.01, "{trips:?}");
        signed::assert_all_signed(&world);
    }
    for way in sealed::WAYS {
        let mut world = sealed::world_of(way, 1_000);
        let trips: Vec<f64> = (0..3).map(|_| browse(&mut world)).collect();
        assert!(trips[2] <= 1.01, "{trips:?}");
        sealed::assert_all_sealed(&world);
    }
}

#[test]
fn new_name_is_told_with_the_rename() {
    let mut world = world_with(1_000);
    let mut names = ["a", "b", "c", "d"].into_iter().peekable();
    let mut trips = Vec::new();
    while let (Some(from), Some(to)) = (names.next(), names.peek()) {
        let start = world.now;
        let create = Smb2CreateParameters {
            access: 0x1_0080,
            lease: Some((LeaseKey([from.as_bytes()[0]; 16]), 0)),
            ..Smb2CreateParameters::leased(from, 1)
        };
        let file = world.create(0, &create);
        world.ask(0, &messages::rename(file, to));
        ask(&mut world, file, &[NAME]);
        world.ask(0, &messages::close(file));
        trips.push(world.round_trips(start));
    }
    assert!(trips[0] >= 2.9 && trips[2] <= 2.01, "{trips:?}");
}

#[test]
fn renamed_file_is_asked_about_once() {
    let mut world = world_with(1_000);
    let count = |world: &Smb2World| {
        world.server.count(0, command::QUERY_INFO) - world.server.room_questions
    };
    for (from, to) in [("a", "b"), ("b", "c")] {
        let create = Smb2CreateParameters {
            access: 0x1_0103,
            ..Smb2CreateParameters::leased(from, from.as_bytes()[0])
        };
        let file = world.create(0, &create);
        world.ask(0, &messages::rename(file, to));
        ask(&mut world, file, &[NAME]);
        world.run_for(Duration::from_secs(1));
        let before = count(&world);
        for offset in 0..5 {
            world.ask(0, &messages::write(file, offset, b"new"));
            world.run_for(Duration::from_secs(1));
        }
        assert_eq!(count(&world), before, "{from}");
        world.ask(0, &messages::close(file));
    }
}

#[test]
fn delayed_or_changed_questions_go_to_the_server() {
    let mut world = world_with(1_000);
    browse(&mut world);
    let file = create(&mut world);
    assert!(are_answered_here(
        &mut world,
        file,
        &[EA, STREAMS, SECURITY]
    ));
    world.run_for(Duration::from_millis(30));
    assert!(!are_answered_here(&mut world, file, &VOLUME));
    world.ask(0, &messages::close(file));
    let file = create(&mut world);
    world.ask(0, &messages::write(file, 0, b"longer or not"));
    assert!(!are_answered_here(&mut world, file, &[EA, STREAMS]));
}

#[test]
fn lengths_are_never_told_from_here() {
    let mut world = world_with(1_000);
    for _ in 0..3 {
        let file = create(&mut world);
        let start = world.now;
        world.ask(0, &messages::query_length(file));
        assert!(world.round_trips(start) > 0.9);
        world.ask(0, &messages::close(file));
    }
    // Lengths of streams are told where nobody else can change them.
    let reader = |world: &mut Smb2World| {
        let create = Smb2CreateParameters {
            access: 0x81,
            lease: Some((LeaseKey([7; 16]), 1)),
            ..Smb2CreateParameters::leased("a", 7)
        };
        world.create(0, &create)
    };
    for _ in 0..3 {
        let file = reader(&mut world);
        assert!(!are_answered_here(&mut world, file, &[STREAMS]));
        world.ask(0, &messages::close(file));
    }
}

/// Windows asks for the lengths and times of a new document, and then for its rights.
#[test]
fn questions_behind_a_length_come_with_it() {
    let mut world = world_with(1_000);
    let mut trips = Vec::new();
    for _ in 0..3 {
        let file = create(&mut world);
        world.ask(0, &messages::write(file, 0, b"new"));
        let start = world.now;
        world.ask(0, &messages::query_length(file));
        ask(&mut world, file, &[SECURITY]);
        trips.push(world.round_trips(start));
        world.ask(0, &messages::close(file));
    }
    assert!(trips[0] >= 1.9 && trips[2] <= 1.01, "{trips:?}");
}

#[test]
fn other_questions_replace_the_earlier_ones() {
    let mut world = world_with(1_000);
    browse(&mut world);
    let count = |world: &Smb2World| {
        world.server.count(0, command::QUERY_INFO) - world.server.room_questions
    };
    let file = create(&mut world);
    world.ask(0, &messages::close(file));
    world.run_for(Duration::from_secs(1));
    // Five were asked ahead for an open without questions; then none.
    let before = count(&world);
    let file = create(&mut world);
    world.ask(0, &messages::close(file));
    world.run_for(Duration::from_secs(1));
    assert_eq!(count(&world), before);
    assert!(world.let_go.is_none());
}

/// Writes a new file beside an open one, and asks about the streams of that one, as programs do that replace a document.
/// Returns true if the question is answered on this side of the path.
fn replace(world: &mut Smb2World, name: &str, pause: u64) -> bool {
    let document = create(world);
    ask(world, document, &[STREAMS]);
    let new = Smb2CreateParameters {
        disposition: 2,
        ..Smb2CreateParameters::leased(name, name.as_bytes()[0])
    };
    let new = world.create(0, &new);
    world.ask(0, &messages::write(new, 0, &[1; 100]));
    world.ask(0, &messages::flush(new));
    world.ask(0, &messages::close(new));
    world.run_for(Duration::from_millis(pause));
    let is_here = are_answered_here(world, document, &[STREAMS]);
    world.ask(0, &messages::close(document));
    is_here
}

#[test]
fn question_behind_a_flush_comes_with_its_answer() {
    let mut world = world_with(1_000);
    assert!(!replace(&mut world, "b", 0));
    assert!(replace(&mut world, "c", 0));
    assert!(replace(&mut world, "d", 10));
    // Another client's stream would be missing for longer.
    assert!(!replace(&mut world, "e", 30));
    assert!(world.let_go.is_none());
}

/// The answer to a question behind a FLUSH contains a stream that the client has just written.
#[test]
fn own_stream_is_in_the_answer_behind_a_flush() {
    let mut world = world_with(1_000);
    replace(&mut world, "b", 0);
    let document = create(&mut world);
    let stream = Smb2CreateParameters::leased("a:s", b's');
    let stream = world.create(0, &stream);
    let new = world.create(0, &Smb2CreateParameters::leased("n", b'n'));
    world.ask(0, &messages::write(new, 0, &[1; 100]));
    world.ask(0, &messages::flush(new));
    world.ask(0, &messages::write(stream, 0, &[2; 100]));
    world.ask(0, &messages::close(new));
    assert!(!are_answered_here(&mut world, document, &[STREAMS]));
    assert!(world.let_go.is_none());
}

/// Explorer waits for changes in the folder that it shows, all the while.
#[test]
fn client_that_waits_for_changes_gets_answers_with_its_opens() {
    let mut world = world_with(1_000);
    let folder = world.create(0, &Smb2CreateParameters::directory(""));
    world.send(0, &messages::change_notify(folder));
    browse(&mut world);
    let round_trips = browse(&mut world);
    assert!(round_trips <= 1.01, "{round_trips}");
}
