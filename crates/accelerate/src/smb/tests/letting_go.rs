//! Tests of flows that cannot be accelerated: before any change they pass untouched for ever,
//! afterwards they are closed.

use std::time::Duration;

use super::super::testing::messages::{self, frame};
use super::super::testing::server::Smb2Server;
use super::super::testing::world::Smb2World;
use super::super::wire::header::flag;
use super::super::{ConsistencyMode, SmbSettings};
use super::{DELAY, contents, open, read, world_with};
use crate::{LettingGo, ReasonCode};

#[test]
fn signed_request_lets_go_before_any_change() {
    let mut world = Smb2World::new(DELAY);
    world.ask(0, &messages::negotiate());
    let answer = world.ask(0, &messages::session_setup());
    world.clients[0].session = answer.header.session;
    let signed = messages::tree_connect().with_flags(flag::SIGNED);
    let answer = world.ask(0, &signed);
    world.clients[0].tree = answer.header.tree;
    assert_eq!(
        world.let_go,
        Some(LettingGo::LetGo {
            reason: ReasonCode::SIGNED
        })
    );
    world.server.files.insert("a".to_owned(), contents(100_000));
    let file = open(&mut world, 0);
    assert_eq!(read(&mut world, 0, file, 0, 1_000), contents(1_000));
    assert_eq!(read(&mut world, 0, file, 1_000, 10).len(), 10);
    // Every byte is the server's own.
    let mut direct = Smb2Server::new();
    direct.connect();
    direct.files.insert("a".to_owned(), contents(100_000));
    let mut bytes = Vec::new();
    let requests = [
        (0, 0, messages::negotiate()),
        (0, 0, messages::session_setup()),
        (77, 0, signed),
        (77, 5, super::Smb2CreateParameters::open("a").request()),
        (77, 5, messages::read(file, 0, 1_000)),
        (77, 5, messages::read(file, 1_000, 10)),
    ];
    for (id, (session, tree, request)) in requests.into_iter().enumerate() {
        let header = request.header(id as u64, session, tree);
        direct.receive(0, &frame(&[(header, &request.body)]));
        bytes.extend(direct.take(0));
    }
    assert_eq!(world.clients[0].bytes, bytes);
}

#[test]
fn non_smb2_passes_with_its_reason() {
    let cases: [(&[u8], ReasonCode); 4] = [
        (
            b"\0\0\0\x20\xfdSMB0123456789012345678901234567",
            ReasonCode::ENCRYPTED,
        ),
        (
            b"\0\0\0\x20\xfcSMB0123456789012345678901234567",
            ReasonCode::UNSUPPORTED,
        ),
        (b"GET / HTTP/1.0\r\n\r\n", ReasonCode::VIOLATION),
        (b"\0\xff\xff\xff\xfeSMB", ReasonCode::LIMIT),
    ];
    for (bytes, reason) in cases {
        for piece in [1, 2, 5, 100] {
            let mut far = super::super::build(
                crate::WanEnd::Far,
                SmbSettings::STRICT,
                vocab::SeededRandom::from_seed(1),
            );
            let mut out = Vec::new();
            let mut gone = None;
            far.handle(vocab::Time::ZERO, crate::AcceleratorInput::Start);
            for chunk in bytes.chunks(piece) {
                if gone.is_none() {
                    let segment = vocab::FlowSegment::control(bytes::Bytes::copy_from_slice(chunk));
                    far.handle(vocab::Time::ZERO, crate::AcceleratorInput::Wan(segment));
                } else {
                    out.extend_from_slice(chunk);
                }
                while let Some(output) = far.poll_output() {
                    match output {
                        crate::AcceleratorOutput::ToLan(bytes) => out.extend_from_slice(&bytes),
                        crate::AcceleratorOutput::LettingGo(LettingGo::LetGo { reason }) => {
                            gone = Some(reason);
                        }
                        _ => {}
                    }
                }
            }
            assert_eq!(gone, Some(reason));
            assert_eq!(out, bytes);
        }
    }
}

#[test]
fn signed_request_after_serving_ends_the_flow() {
    let mut world = world_with(100_000);
    let file = open(&mut world, 0);
    let signed = messages::read(file, 0, 10).with_flags(flag::SIGNED);
    world.send(0, &signed);
    world.run_for(Duration::from_secs(1));
    assert_eq!(
        world.let_go,
        Some(LettingGo::Close {
            reason: ReasonCode::SIGNED
        })
    );
}

#[test]
fn switched_off_it_lets_go_at_once() {
    let settings = SmbSettings {
        consistency: ConsistencyMode::Off,
        ..SmbSettings::STRICT
    };
    let mut world = Smb2World::with_settings(DELAY, settings);
    world.set_up(0);
    world.server.files.insert("a".to_owned(), contents(1_000));
    let file = open(&mut world, 0);
    assert_eq!(read(&mut world, 0, file, 0, 1_000), contents(1_000));
    assert_eq!(
        world.let_go,
        Some(LettingGo::LetGo {
            reason: ReasonCode::POLICY
        })
    );
}
