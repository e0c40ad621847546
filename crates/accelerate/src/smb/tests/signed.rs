//! Signed sessions, with and without their key: the hosts get messages signed as if they spoke to
//! each other, and unsigned messages have no effect.

use std::sync::Arc;
use std::time::Duration;

use super::super::testing::login::{ANNA, UserLogin};
use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::{DISK_FULL, SigningPolicy};
use super::super::testing::world::Smb2World;
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{command, flag, status};
use super::super::{ChannelPolicy, SmbSettings};
use super::{DELAY, contents, open, read};
use crate::credentials::DelegatedAccounts;
use crate::smb::keys::SigningAlgorithm;
use crate::smb::reasons;
use crate::{LettingGo, ReasonCode};

const BLOCK: u32 = 60_000;

/// Every dialect with its signing algorithm.
pub(super) const WAYS: [(u16, SigningAlgorithm); 5] = [
    (0x0202, SigningAlgorithm::HmacSha256),
    (0x0210, SigningAlgorithm::HmacSha256),
    (0x0302, SigningAlgorithm::AesCmac),
    (0x0311, SigningAlgorithm::AesCmac),
    (0x0311, SigningAlgorithm::AesGmac),
];

fn settings(accounts: &str) -> SmbSettings {
    SmbSettings {
        accounts: Some(Arc::new(DelegatedAccounts::parse(accounts).unwrap())),
        may_resign_gmac: true,
        ..SmbSettings::STRICT
    }
}

/// A world whose server signs, with the file "a", before any client is connected.
fn unconnected(
    accounts: &str,
    (dialect, algorithm): (u16, SigningAlgorithm),
    length: usize,
) -> Smb2World {
    let mut world = Smb2World::with_settings(DELAY, settings(accounts));
    world.server.dialect = dialect;
    world.server.signing = Some(SigningPolicy {
        login: ANNA,
        algorithm,
        is_required: true,
    });
    world.server.files.insert("a".to_owned(), contents(length));
    world
}

pub(super) fn world_of(way: (u16, SigningAlgorithm), length: usize) -> Smb2World {
    let mut world = unconnected("CORP\\anna:password:secret", way, length);
    world.set_up(0);
    world
}

/// Nothing that either host got lacked its signature, and nothing let go.
pub(super) fn assert_all_signed(world: &Smb2World) {
    assert_eq!(world.clients[0].forged, 0, "answers");
    assert_eq!(world.server.refused, 0, "requests");
    assert_eq!(world.let_go, None);
}

#[test]
fn signed_serial_reader_waits_no_longer() {
    for way in WAYS {
        let length = 100 * BLOCK as usize;
        let mut world = world_of(way, length);
        world.server.credits_max = 64;
        let file = open(&mut world, 0);
        let start = world.now;
        let mut got = Vec::new();
        while got.len() < length {
            got.extend(read(&mut world, 0, file, got.len() as u64, BLOCK));
        }
        assert!(got == contents(length), "the contents differ");
        let round_trips = world.round_trips(start);
        // One more than `reading` has for as much: it counts the open and the close.
        assert!(round_trips <= 8.01, "{way:x?}: {round_trips}");
        world.ask(0, &messages::close(file));
        assert_all_signed(&world);
    }
}

#[test]
fn signed_serial_writer_waits_no_longer() {
    for way in WAYS {
        let mut world = world_of(way, 0);
        let file = open(&mut world, 0);
        world.run_for(Duration::from_secs(1));
        let whole = contents(40 * BLOCK as usize);
        let start = world.now;
        for (index, block) in whole.chunks(BLOCK as usize).enumerate() {
            let at = index as u64 * u64::from(BLOCK);
            let answer = world.ask(0, &messages::write(file, at, block));
            assert_eq!(answer.header.status, status::SUCCESS);
        }
        assert!(world.round_trips(start) <= 0.01, "{way:x?}");
        world.ask(0, &messages::flush(file));
        assert!(world.round_trips(start) <= 1.01, "{way:x?}");
        world.ask(0, &messages::close(file));
        assert!(world.server.files["a"] == whole);
        assert_all_signed(&world);
    }
}

#[test]
fn signing_is_independent_of_fragmentation() {
    for piece in [1, 63, 68, 84, 1_000] {
        let mut world = unconnected("*\\anna:password:secret", WAYS[3], 60_000);
        world.piece = piece;
        world.set_up(0);
        let file = open(&mut world, 0);
        for block in 0..6 {
            let data = read(&mut world, 0, file, block * 10_000, 10_000);
            assert_eq!(data, contents(60_000)[block as usize * 10_000..][..10_000]);
        }
        world.ask(0, &messages::write(file, 5, b"written"));
        world.ask(0, &messages::close(file));
        assert_eq!(world.server.files["a"][5..12], *b"written");
        assert_all_signed(&world);
    }
}

#[test]
fn compounds_pending_requests_cancels_and_breaks_stay_signed() {
    for way in WAYS {
        let mut world = world_of(way, 200_000);
        let file = open(&mut world, 0);
        read(&mut world, 0, file, 0, 10_000);
        read(&mut world, 0, file, 10_000, 10_000);
        // A compound: each of its messages is signed with its padding.
        let related = super::super::wire::FileId::RELATED;
        let ids = world.send_chain(
            0,
            &[
                messages::write(file, 100, &[3; 61]),
                messages::flush(related).with_flags(4),
            ],
        );
        for id in ids {
            assert_eq!(world.wait(0, id).header.status, status::SUCCESS);
        }
        // One that is pending until it is cancelled.
        for by_async_id in [false, true] {
            let id = world.send(0, &messages::change_notify(file));
            world.run_for(Duration::from_millis(200));
            match by_async_id {
                true => world.cancel_by_async_id(0),
                false => world.cancel(0, id),
            }
            world.wait(0, id);
            // Nobody knows any more what this one means.
            world.cancel(0, id);
        }
        // Another client takes the file: WRITEs are drained, and the oplock goes back signed.
        world.ask(0, &messages::write(file, 0, b"before"));
        let other = world.beside();
        let theirs = open(&mut world, other);
        assert_eq!(read(&mut world, other, theirs, 0, 6), b"before");
        assert_eq!(read(&mut world, 0, file, 0, 6), b"before");
        assert_eq!(world.server.count(0, command::OPLOCK_BREAK), 1);
        // Where READs ended is set on the client's behalf.
        let answer = world.ask(0, &messages::query_position(file));
        assert_eq!(answer.header.status, status::SUCCESS);
        world.ask(0, &messages::close(file));
        world.ask(0, &messages::tree_disconnect());
        world.ask(0, &messages::logoff());
        assert_all_signed(&world);
    }
}

#[test]
fn a_lost_write_is_reported_under_a_signature() {
    let mut world = world_of(WAYS[2], 10);
    world.server.disk = 1_000;
    let file = open(&mut world, 0);
    world.run_for(Duration::from_secs(1));
    let answer = world.ask(0, &messages::write(file, 0, &[1; 5_000]));
    assert_eq!(answer.header.status, status::SUCCESS);
    let answer = world.ask(0, &messages::flush(file));
    assert_eq!(answer.header.status, DISK_FULL);
    let related = super::super::wire::FileId::RELATED;
    let ids = world.send_chain(
        0,
        &[
            messages::flush(file),
            messages::close(related).with_flags(4),
        ],
    );
    for id in ids {
        assert_eq!(world.wait(0, id).header.status, DISK_FULL);
    }
    assert_all_signed(&world);
}

#[test]
fn client_signing_only_tree_connect_is_served_unsigned() {
    let mut world = unconnected("*\\anna:password:secret", WAYS[3], 300_000);
    world.server.signing.as_mut().unwrap().is_required = false;
    world.clients[0].signs_little = true;
    world.set_up(0);
    let file = open(&mut world, 0);
    for block in 0..5 {
        read(&mut world, 0, file, block * 10_000, 10_000);
    }
    world.ask(0, &messages::close(file));
    // Ids differ by now, and the next one is signed all the same.
    world.ask(0, &messages::tree_connect());
    let signed = world
        .server
        .log
        .iter()
        .filter(|(_, header)| header.has(flag::SIGNED));
    assert_eq!(signed.count(), 2);
    assert_all_signed(&world);
}

#[test]
fn signed_session_without_key_passes_unchanged() {
    let cases = [
        ("CORP\\anna:password:wrong", ReasonCode::WRONG_KEY),
        ("CORP\\ben:password:secret", ReasonCode::UNKNOWN_ACCOUNT),
    ];
    for (accounts, reason) in cases {
        for way in WAYS {
            let mut world = unconnected(accounts, way, 50_000);
            world.set_up(0);
            let file = open(&mut world, 0);
            assert_eq!(read(&mut world, 0, file, 0, 50_000), contents(50_000));
            world.ask(0, &messages::close(file));
            assert_eq!(world.let_go, Some(LettingGo::LetGo { reason }));
            assert_eq!((world.clients[0].forged, world.server.refused), (0, 0));
            // The server says to a client beside it what it said to this one.
            let mut direct = Smb2World::new(DELAY);
            direct.server.dialect = way.0;
            direct.server.signing = world.server.signing.clone();
            direct.server.files.insert("a".to_owned(), contents(50_000));
            direct.server.receive(0, &world.clients[0].sent);
            assert!(direct.server.take(0) == world.clients[0].bytes);
            assert_eq!(direct.server.refused, 0);
        }
    }
}

#[test]
fn gmac_is_signed_again_under_its_policy_alone() {
    let mut world = unconnected("*\\anna:password:secret", WAYS[4], 100);
    let settings = SmbSettings {
        may_resign_gmac: false,
        ..settings("*\\anna:password:secret")
    };
    let server = world.server;
    world = Smb2World::with_settings(DELAY, settings);
    world.server = server;
    world.set_up(0);
    let reason = reasons::GMAC;
    assert_eq!(world.let_go, Some(LettingGo::LetGo { reason }));
    let file = open(&mut world, 0);
    assert_eq!(read(&mut world, 0, file, 0, 100), contents(100));
}

#[test]
fn message_altered_on_the_client_lan_is_ignored() {
    for way in WAYS {
        for target in [command::READ, command::WRITE] {
            let mut world = world_of(way, 100_000);
            let file = open(&mut world, 0);
            read(&mut world, 0, file, 0, 10_000);
            let request = match target {
                command::READ => messages::read(file, 10_000, 10_000),
                _ => messages::write(file, 0, &[9; 100]),
            };
            let came = world.clients[0].bytes.len();
            world.alters_client = Some(Box::new(|bytes| {
                let last = bytes.len() - 30;
                bytes[last] ^= 1;
            }));
            world.send(0, &request);
            world.run_for(Duration::from_secs(2));
            let reason = ReasonCode::FORGED;
            assert_eq!(world.let_go, Some(LettingGo::Close { reason }), "{way:x?}");
            assert_eq!(world.clients[0].bytes.len(), came, "nothing was answered");
            assert!(world.server.files["a"] == contents(100_000));
        }
    }
}

#[test]
fn message_altered_on_the_server_lan_is_dropped() {
    for way in WAYS {
        let mut world = world_of(way, 400_000);
        let file = open(&mut world, 0);
        // Somewhere in what is read ahead, and in what is asked for.
        world.alters_server = Some(Box::new(|bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
        }));
        let mut at = 0;
        while world.let_go.is_none() && at < 400_000 {
            let id = world.send(0, &messages::read(file, at, 20_000));
            world.run_for(Duration::from_secs(2));
            if let Some(answer) = world.clients[0].answered.remove(&id) {
                assert_eq!(answer.data(), &contents(400_000)[at as usize..][..20_000]);
            }
            at += 20_000;
        }
        let reason = ReasonCode::FORGED;
        assert_eq!(world.let_go, Some(LettingGo::Close { reason }), "{way:x?}");
        assert_eq!(world.clients[0].forged, 0);
    }
}

#[test]
fn unsigned_request_on_signed_open_goes_to_server() {
    let mut world = world_of(WAYS[3], 100_000);
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 10_000);
    world.run_for(Duration::from_secs(1));
    let key = world.clients[0].key.take();
    for request in [
        messages::read(file, 10_000, 10_000),
        messages::write(file, 0, b"forged"),
        messages::close(file),
    ] {
        let answer = world.ask(0, &request);
        assert_eq!(
            answer.header.status,
            super::super::testing::server::ACCESS_DENIED
        );
    }
    assert_eq!(world.server.refused, 3);
    world.clients[0].key = key;
    assert_eq!(read(&mut world, 0, file, 0, 10), contents(10));
    assert_eq!(world.clients[0].forged, 0);
}

#[test]
fn answers_behind_a_logoff_are_verified() {
    for way in WAYS {
        for is_altered in [false, true] {
            let mut world = world_of(way, 100);
            let file = open(&mut world, 0);
            let pending = world.send(0, &messages::change_notify(file));
            world.run_for(Duration::from_millis(200));
            world.ask(0, &messages::logoff());
            if is_altered {
                world.alters_server = Some(Box::new(|bytes| *bytes.last_mut().unwrap() ^= 1));
            }
            world.cancel(0, pending);
            world.run_for(Duration::from_secs(2));
            let answer = world.clients[0].answered.get(&pending);
            assert_eq!(answer.is_some(), !is_altered, "{way:x?}");
            let reason = ReasonCode::FORGED;
            let closing = is_altered.then_some(LettingGo::Close { reason });
            assert_eq!(world.let_go, closing, "{way:x?}");
            assert_eq!(world.clients[0].forged, 0);
            if !is_altered {
                let notes = world.notes();
                let mut notes = notes.iter().flatten();
                assert!(
                    notes.all(|note| !note.contains("signed")),
                    "both halves have forgotten the key"
                );
            }
        }
    }
}

#[test]
fn reauthenticated_session_stays_served() {
    for way in WAYS {
        let mut world = world_of(way, 300_000);
        let file = open(&mut world, 0);
        read(&mut world, 0, file, 0, 10_000);
        world.prove_again(0);
        let start = world.now;
        assert_eq!(
            read(&mut world, 0, file, 10_000, 10_000),
            contents(300_000)[10_000..20_000]
        );
        assert!(world.round_trips(start) < 0.5, "{way:x?}: read ahead");
        world.ask(0, &messages::write(file, 0, b"again"));
        world.ask(0, &messages::close(file));
        assert_eq!(world.server.files["a"][..5], *b"again");
        assert_all_signed(&world);
    }
}

#[test]
fn second_session_beside_a_served_one_is_served() {
    for way in WAYS {
        let mut world = world_of(way, 300_000);
        for _ in 0..3 {
            let file = open(&mut world, 0);
            read(&mut world, 0, file, 0, 10_000);
            world.run_for(Duration::from_secs(1));
            let start = world.now;
            for block in 1..4 {
                read(&mut world, 0, file, block * 10_000, 10_000);
            }
            assert!(world.round_trips(start) < 0.5, "{way:x?}: read ahead");
            world.ask(0, &messages::write(file, 0, b"each"));
            world.ask(0, &messages::close(file));
            world.run_for(Duration::from_secs(1));
            world.set_up_another(0);
        }
        assert_all_signed(&world);
    }
}

#[test]
fn unknown_session_beside_a_served_one_ends_flow() {
    for way in WAYS {
        let mut world = unconnected("*\\anna:password:secret", way, 300_000);
        world.set_up(0);
        open(&mut world, 0);
        world.server.signing.as_mut().unwrap().login = UserLogin::Password {
            domain: "CORP",
            user: "berta",
            password: "secret",
        };
        world.leave_session(0);
        world.send(0, &messages::session_setup_with(&UserLogin::begins()));
        world.run_for(Duration::from_secs(1));
        let token = world.server.signing.clone().unwrap().login.proves().token;
        world.clients[0].session = 1_077;
        world.send(0, &messages::session_setup_with(&token));
        world.run_for(Duration::from_secs(1));
        let reason = ReasonCode::UNKNOWN_ACCOUNT;
        assert_eq!(world.let_go, Some(LettingGo::Close { reason }), "{way:x?}");
        assert_eq!(world.no_key_for.as_deref(), Some("CORP\\berta"));
        assert_eq!(world.clients[0].forged, 0, "{way:x?}");
    }
}

/// A server with several channels, as the policy presents them to clients.
fn several_channels(channels: ChannelPolicy) -> Smb2World {
    let server = unconnected("", WAYS[3], 300_000).server;
    let settings = SmbSettings {
        channels,
        ..settings("*\\anna:password:secret")
    };
    let mut world = Smb2World::with_settings(DELAY, settings);
    world.server = server;
    world.server.capabilities = 8;
    world.set_up(0);
    world
}

#[test]
fn channel_query_is_answered_with_none() {
    for looks_first in [false, true] {
        let mut world = several_channels(ChannelPolicy::One);
        let refused = |world: &mut Smb2World| {
            let answer = world.ask(0, &messages::query_interfaces());
            assert_eq!(answer.header.status, status::NOT_SUPPORTED);
        };
        if looks_first {
            refused(&mut world);
        }
        let file = open(&mut world, 0);
        refused(&mut world);
        for block in 0..3 {
            read(&mut world, 0, file, block * 10_000, 10_000);
        }
        assert_eq!(world.server.count(0, command::READ), 1, "read ahead");
        assert_eq!(world.server.count(0, command::IOCTL), 0);
        assert_eq!(world.server.count(0, command::OPLOCK_BREAK), 0);
        assert_all_signed(&world);
    }
}

#[test]
fn channel_query_ends_serving_if_allowed() {
    let mut world = several_channels(ChannelPolicy::Several);
    let file = open(&mut world, 0);
    for block in 0..3 {
        read(&mut world, 0, file, block * 10_000, 10_000);
    }
    assert_eq!(world.server.count(0, command::READ), 1, "read ahead");
    world.ask(0, &messages::query_interfaces());
    let acknowledged = world.server.count(0, command::OPLOCK_BREAK);
    assert_eq!(
        acknowledged, 0,
        "servers refuse what they have not asked for"
    );
    let other = world.create(0, &Smb2CreateParameters::open("b"));
    world.ask(0, &messages::write(other, 0, b"plain"));
    let before = world.server.count(0, command::READ);
    assert_eq!(read(&mut world, 0, other, 0, 5), b"plain");
    assert_eq!(world.server.count(0, command::READ), before + 1);
    assert_all_signed(&world);
}

/// Opens a file beside the server, whose oplock nothing is answered under any more.
fn open_without_waiting(world: &mut Smb2World, other: usize, name: &str) {
    let before = world.server.count(0, command::OPLOCK_BREAK);
    let start = world.now;
    world.create(other, &Smb2CreateParameters::open(name));
    assert_eq!(world.now, start);
    assert_eq!(world.server.count(0, command::OPLOCK_BREAK), before + 1);
}

/// A world whose client may get further channels, and with the file "b" in another's hands.
fn with_channels() -> (Smb2World, usize, FileId) {
    let mut world = several_channels(ChannelPolicy::Several);
    let other = world.beside();
    let batch = Smb2CreateParameters {
        oplock: 9,
        ..Smb2CreateParameters::open("b")
    };
    let theirs = world.create(other, &batch);
    (world, other, theirs)
}

#[test]
fn open_during_a_channel_query_is_released() {
    for holds_another in [false, true] {
        let (mut world, other, theirs) = with_channels();
        if holds_another {
            open(&mut world, 0);
        }
        let creating = world.send(0, &Smb2CreateParameters::open("b").request());
        world.run_for(Duration::from_secs(1));
        let asking = world.send(0, &messages::query_interfaces());
        // The question is at the far half, and waits there if there is what to give back.
        world.run_for(DELAY + DELAY / 2);
        assert_eq!(
            world.server.count(0, command::IOCTL),
            usize::from(!holds_another)
        );
        world.ask(other, &messages::close(theirs));
        assert_eq!(world.wait(0, creating).header.status, status::SUCCESS);
        world.wait(0, asking);
        world.run_for(Duration::from_secs(1));
        open_without_waiting(&mut world, other, "b");
        if holds_another {
            open_without_waiting(&mut world, other, "a");
        }
        assert_all_signed(&world);
    }
}

#[test]
fn close_does_not_wait_for_a_channel_query() {
    let (mut world, other, theirs) = with_channels();
    open(&mut world, 0);
    let creating = world.send(0, &Smb2CreateParameters::open("b").request());
    world.run_for(Duration::from_secs(1));
    let asking = world.send(0, &messages::query_interfaces());
    world.run_for(DELAY + DELAY / 2);
    world.ask(other, &messages::close(theirs));
    let answer = world.wait(0, creating);
    let file = CreateResponse::parse(&answer.body).unwrap().file;
    let closing = world.send(0, &messages::close(file));
    assert_eq!(world.wait(0, closing).header.status, status::SUCCESS);
    world.wait(0, asking);
    assert_all_signed(&world);
}

#[test]
fn writes_pass_the_waiting_channel_query() {
    let (mut world, other, _) = with_channels();
    let file = open(&mut world, 0);
    world.run_for(Duration::from_secs(1));
    let asking = world.send(0, &messages::query_interfaces());
    for at in 0..3 {
        let writing = world.send(0, &messages::write(file, at, b"w"));
        world.wait(0, writing);
    }
    world.wait(0, asking);
    let order: Vec<u16> = world.server.log.iter().map(|(_, of)| of.command).collect();
    let place = |wanted| order.iter().rposition(|of| *of == wanted);
    assert!(place(command::WRITE) < place(command::IOCTL));
    assert_eq!(world.server.files["a"][..3], *b"www");
    open_without_waiting(&mut world, other, "a");
    assert_all_signed(&world);
}

#[test]
fn compounded_channel_query_waits_for_answered_requests() {
    let (mut world, other, _) = with_channels();
    let file = open(&mut world, 0);
    world.run_for(Duration::from_secs(1));
    let start = world.now;
    let chain = [
        messages::write(file, 0, b"with it"),
        messages::query_interfaces(),
    ];
    let ids = world.send_chain(0, &chain);
    let is_asked = world.run_until(Duration::from_secs(60), |world| {
        world.server.count(0, command::IOCTL) > 0
    });
    assert!(is_asked);
    // There, the near half told, and its word.
    assert!(world.round_trips(start) >= 1.49);
    for id in ids {
        world.wait(0, id);
    }
    world.run_for(Duration::from_secs(1));
    open_without_waiting(&mut world, other, "a");
    assert_all_signed(&world);
}

#[test]
fn channel_query_stops_opening_ahead() {
    let (mut world, ..) = with_channels();
    for name in 0..1_000 {
        world
            .server
            .files
            .insert(format!("file-{name}"), Vec::new());
    }
    let attributes = Smb2CreateParameters {
        access: 0x80,
        ..Smb2CreateParameters::open("a")
    };
    let (listed, kept) = (
        Smb2CreateParameters::directory(""),
        world.create(0, &attributes),
    );
    let listed = world.create(0, &listed);
    world.run_for(Duration::from_secs(1));
    let ahead = world.server.count(0, command::QUERY_DIRECTORY);
    assert!(ahead > 0, "the first names come with the open");
    world.ask(0, &messages::query_interfaces());
    let mut asked = 0;
    loop {
        asked += 1;
        let answer = world.ask(0, &messages::list(listed, 0, 16_384));
        world.run_for(Duration::from_secs(1));
        let seen = world.server.count(0, command::QUERY_DIRECTORY);
        assert_eq!(seen, ahead + asked);
        if answer.header.status == status::NO_MORE_FILES {
            break;
        }
    }
    assert!(asked > 2);
    for file in [listed, kept] {
        let start = world.now;
        world.ask(0, &messages::close(file));
        assert!(world.round_trips(start) >= 0.99, "the server's answer");
    }
    assert_all_signed(&world);
}

#[test]
fn the_note_says_for_whom() {
    let mut world = world_of(WAYS[3], 1_000);
    open(&mut world, 0);
    let notes = world.notes();
    assert_eq!(
        notes[1].as_deref(),
        Some("signed for CORP\\anna (AES-CMAC)")
    );
    assert_eq!(
        notes[0].as_deref(),
        Some("signed by AES-CMAC; waited for the server: 1 CREATE (the server opens files)")
    );
    let mut world = unconnected("", WAYS[3], 1_000);
    world.set_up(0);
    assert_eq!(world.no_key_for.as_deref(), Some("CORP\\anna"));
}

#[test]
fn signed_listing_is_prefetched_like_an_unsigned_one() {
    for way in WAYS {
        let mut world = world_of(way, 10);
        for name in 0..1_000 {
            let name = format!("file-{name:05}");
            world.server.files.insert(name, Vec::new());
        }
        let directory = world.create(0, &Smb2CreateParameters::directory(""));
        let start = world.now;
        let mut answers = 0;
        loop {
            let answer = world.ask(0, &messages::list(directory, 0, 16_384));
            if answer.header.status == status::NO_MORE_FILES {
                break;
            }
            answers += 1;
        }
        assert!(answers > 1, "{way:x?}");
        let round_trips = world.round_trips(start);
        assert!(round_trips <= 2.01, "{way:x?}: {round_trips}");
        world.ask(0, &messages::close(directory));
        assert_all_signed(&world);
    }
}

#[test]
fn unsigned_query_closes_a_signing_clients_flow() {
    for is_alone in [true, false] {
        let mut world = unconnected("*\\anna:password:secret", WAYS[3], 0);
        world.server.signing.as_mut().unwrap().is_required = false;
        world.set_up(0);
        // Of an empty directory nothing is sent ahead, and the server's place has moved.
        world.server.files.clear();
        let file = world.create(0, &Smb2CreateParameters::directory(""));
        world.run_for(Duration::from_secs(1));
        world.clients[0].signs_little = true;
        let list = messages::list(file, 0, 65_536);
        match is_alone {
            true => world.send(0, &list),
            false => world.send_chain(0, &[messages::flush(file), list])[1],
        };
        world.run_for(Duration::from_secs(1));
        let reason = ReasonCode::FORGED;
        assert_eq!(
            world.let_go,
            Some(LettingGo::Close { reason }),
            "{is_alone}"
        );
    }
}

#[test]
fn further_channel_is_named_as_the_reason() {
    let mut world = unconnected("*\\anna:password:secret", WAYS[3], 10);
    world.ask(0, &messages::negotiate());
    let mut binds = messages::session_setup_with(b"token").with_flags(flag::SIGNED);
    binds.body[2] = 1;
    world.clients[0].session = 4_711;
    world.send(0, &binds);
    world.run_for(DELAY * 4);
    let reason = reasons::CHANNEL;
    assert_eq!(world.let_go, Some(LettingGo::LetGo { reason }));
}

#[test]
fn signed_kernel_requests_are_answered_here() {
    for way in &WAYS[1..] {
        let mut world = world_of(*way, 10);
        world.server.grants_durable = true;
        let create = Smb2CreateParameters {
            context: Some(b"DHnQ"),
            ..Smb2CreateParameters::leased("a", 7)
        };
        let file = world.create(0, &create);
        assert_eq!(world.server.asked_durable, 0);
        world.run_for(Duration::from_secs(1));
        let start = world.now;
        world.ask(0, &messages::write(file, 0, b"early"));
        world.ask(0, &messages::set_end(file, 3));
        assert_eq!(world.now, start);
        world.ask(0, &messages::close(file));
        assert_eq!(world.server.files["a"], b"ear");
        let create = Smb2CreateParameters::directory("").request();
        let list = messages::list(FileId::RELATED, 0, 65_536).with_flags(flag::RELATED);
        let ids = world.send_chain(0, &[create, list]);
        let opened = CreateResponse::parse(&world.wait(0, ids[0]).body).unwrap();
        world.wait(0, ids[1]);
        let start = world.now;
        let answer = world.ask(0, &messages::list(opened.file, 0, 65_536));
        assert_eq!(answer.header.status, status::NO_MORE_FILES);
        world.ask(0, &messages::close(opened.file));
        assert_eq!(world.now, start, "{way:?}");
        world.run_for(Duration::from_secs(1));
        assert_all_signed(&world);
    }
}
