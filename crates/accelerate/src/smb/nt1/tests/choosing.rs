//! Tests of the dialect selection, and of flows that are let go.

use super::{DELAY, world};
use crate::smb::nt1::frames::Smb1HalfFrame;
use crate::smb::nt1::testing::world::Smb1World;
use crate::smb::nt1::testing::{
    close, framed, header, negotiate, pipes_connect, read, session_setup, tree_connect, unix_open,
    write,
};
use crate::smb::nt1::wire::header::command;
use crate::smb::reasons;
use crate::smb::{ConsistencyMode, SmbSettings};
use crate::{AcceleratorInput, LettingGo, ReasonCode};

const SIGNED: LettingGo = LettingGo::LetGo {
    reason: reasons::SIGNED_BY_SMB1,
};

fn signed(message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    message[14..22].copy_from_slice(b"\x01signed!");
    message
}

#[test]
fn smb2_answer_selects_smb2() {
    for piece in [1, 3, usize::MAX] {
        let mut world = Smb1World::new(DELAY);
        world.piece = piece;
        world.server.speaks_smb2 = true;
        world.send(0, &negotiate());
        world.run_for(super::ROUND_TRIP * 2);
        assert_eq!(world.let_go, None);
        assert_eq!(world.clients[0].bytes[4..8], [0xfe, b'S', b'M', b'B']);
        assert_eq!(world.server.heard, [command::NEGOTIATE]);
    }
}

#[test]
fn session_set_up_works_in_any_pieces() {
    for piece in [1, 2, 7, 33] {
        let mut world = Smb1World::new(DELAY);
        world.piece = piece;
        world.set_up(0);
        let file = world.open(0, "a");
        world.ask(0, &write(file, 0, &[5; 1_000]).0);
        assert!(world.ask(0, &read(file, 0, 2_000)).data() == [5; 1_000]);
        assert_eq!(world.ask(0, &close(file)).header.status, 0);
        assert_eq!(world.answered(), 1);
        assert_eq!(world.let_go, None);
    }
}

#[test]
fn bytes_pass_unchanged_until_a_file_opens() {
    let mut world = Smb1World::new(DELAY);
    world.clients[0].said = Some(Vec::new());
    world.set_up(0);
    let said = world.clients[0].said.take().expect("it was to be kept");
    assert!(!said.is_empty() && world.server.bytes == said);
    assert_eq!(world.let_go, None);
}

#[test]
fn pipe_flow_may_still_be_let_go() {
    let mut world = world(100);
    world.clients[0].tree = world.ask(0, &pipes_connect()).header.tree;
    world.open(0, "srvsvc");
    world.send(0, &signed(&session_setup()));
    world.run_for(super::ROUND_TRIP);
    assert_eq!(world.let_go, Some(SIGNED));
}

#[test]
fn a_server_that_demands_signatures_is_let_go() {
    let mut world = Smb1World::new(DELAY);
    world.server.requires_signatures = true;
    world.ask(0, &negotiate());
    assert_eq!(world.let_go, Some(SIGNED));
    // The bytes go on.
    world.set_up(0);
    let file = world.open(0, "a");
    world.ask(0, &write(file, 0, b"data").0);
    assert_eq!(world.server.files["a"], b"data");
    assert_eq!(world.answered(), 0);
}

#[test]
fn signing_client_is_let_go_unchanged() {
    let mut world = Smb1World::new(DELAY);
    world.ask(0, &negotiate());
    world.server.bytes.clear();
    world.piece = 5;
    let message = signed(&session_setup());
    world.ask(0, &message);
    assert_eq!(world.let_go, Some(SIGNED));
    assert_eq!(world.server.bytes.len(), message.len() + 4);
    assert_eq!(world.server.bytes[18..26], *b"\x01signed!");
}

#[test]
fn signature_after_the_first_file_ends_the_flow() {
    let mut world = world(100);
    let file = world.open(0, "a");
    world.send(0, &signed(&read(file, 0, 10)));
    world.run_for(super::ROUND_TRIP);
    let reason = reasons::SIGNED_BY_SMB1;
    assert_eq!(world.let_go, Some(LettingGo::Close { reason }));
    assert!(world.clients[0].is_reset);
}

#[test]
fn raw_mode_lets_go_or_ends_the_flow() {
    let reason = ReasonCode::UNSUPPORTED;
    let raw = header(0x1a).alone();
    let mut early = Smb1World::new(DELAY);
    early.set_up(0);
    early.server.bytes.clear();
    early.piece = 3;
    early.send_bytes(0, &framed(&raw));
    early.run_for(super::ROUND_TRIP);
    assert_eq!(early.server.bytes, framed(&raw));
    assert_eq!(early.let_go, Some(LettingGo::LetGo { reason }));
    let mut late = world(100);
    late.open(0, "a");
    late.send(0, &raw);
    late.run_for(super::ROUND_TRIP);
    assert_eq!(late.let_go, Some(LettingGo::Close { reason }));
}

#[test]
fn invalid_message_ends_only_an_altered_flow() {
    let mut world = world(100);
    world.open(0, "a");
    world.send_bytes(0, b"\0\0\0\x08whatever");
    world.run_for(super::ROUND_TRIP);
    let reason = ReasonCode::UNSUPPORTED;
    assert_eq!(world.let_go, Some(LettingGo::Close { reason }));
}

#[test]
fn switched_off_nothing_is_answered() {
    let settings = SmbSettings {
        consistency: ConsistencyMode::Off,
        ..SmbSettings::STRICT
    };
    let mut world = Smb1World::with_settings(DELAY, settings);
    world.set_up(0);
    let file = world.open(0, "a");
    world.ask(0, &write(file, 0, b"data").0);
    assert_eq!(world.answered(), 0);
    assert_eq!(world.server.files["a"], b"data");
}

/// It would answer longer READs than the server.
#[test]
fn first_version_near_half_passes_unserved() {
    let mut world = Smb1World::new(DELAY);
    world.server.files.insert("a".to_owned(), vec![7; 3_000]);
    world.ask(0, &negotiate());
    let speaks = Smb1HalfFrame::Speaks { version: 1 };
    // Behind the word of the near half that is there.
    world.run_for(super::ROUND_TRIP);
    world.tell(1, AcceleratorInput::Wan(speaks.emit()));
    world.clients[0].user = world.ask(0, &session_setup()).header.user;
    world.clients[0].tree = world.ask(0, &tree_connect()).header.tree;
    let reason = ReasonCode::UNSUPPORTED;
    assert_eq!(world.let_go, Some(LettingGo::LetGo { reason }));
    let file = world.open(0, "a");
    assert!(world.ask(0, &read(file, 0, 1_000)).data() == [7; 1_000]);
    assert_eq!(world.answered(), 0);
}

#[test]
fn note_counts_served_and_unix_opens() {
    let mut world = world(100);
    world.open(0, "a");
    assert_eq!(world.note().as_deref(), Some("1 opens served"));
    world.send(0, &unix_open("a"));
    world.run_for(super::ROUND_TRIP);
    let note = world.note().unwrap();
    assert!(
        note.contains("; 1 opens for writing by the Unix extensions"),
        "{note}"
    );
}
