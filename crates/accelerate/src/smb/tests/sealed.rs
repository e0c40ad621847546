//! Encrypted sessions and shares, with and without their key: each host gets the other's messages,
//! encrypted where the original was, and no nonce repeats under one key.

use std::sync::Arc;
use std::time::Duration;

use vocab::SegmentKind;

use super::super::SmbSettings;
use super::super::testing::login::ANNA;
use super::super::testing::messages::{self, Smb2CreateParameters, frame};
use super::super::testing::server::{DISK_FULL, EncryptionPolicy, SigningPolicy};
use super::super::testing::world::{Smb2World, TamperFunction};
use super::super::wire::FileId;
use super::super::wire::header::{command, flag, status};
use super::{DELAY, contents, open, read};
use crate::credentials::DelegatedAccounts;
use crate::smb::keys::SigningAlgorithm;
use crate::{AcceleratorInput, LettingGo, ReasonCode};

const BLOCK: u32 = 60_000;

/// Every dialect with every cipher that it has.
pub(super) const WAYS: [(u16, u16); 6] = [
    (0x0300, 1),
    (0x0302, 1),
    (0x0311, 1),
    (0x0311, 2),
    (0x0311, 3),
    (0x0311, 4),
];

fn settings(accounts: &str) -> SmbSettings {
    SmbSettings {
        accounts: Some(Arc::new(DelegatedAccounts::parse(accounts).unwrap())),
        ..SmbSettings::STRICT
    }
}

/// A world whose server encrypts, with the file "a", before any client is connected.
fn unconnected(
    accounts: &str,
    dialect: u16,
    sealing: EncryptionPolicy,
    length: usize,
) -> Smb2World {
    let mut world = Smb2World::with_settings(DELAY, settings(accounts));
    world.server.dialect = dialect;
    world.server.signing = Some(SigningPolicy {
        login: ANNA,
        // Nothing is signed but the last answer of the set-up, and so none is signed again.
        algorithm: match dialect {
            0x0311 => SigningAlgorithm::AesGmac,
            _ => SigningAlgorithm::AesCmac,
        },
        is_required: true,
    });
    world.server.sealing = Some(sealing);
    world.server.files.insert("a".to_owned(), contents(length));
    world
}

pub(super) fn world_of((dialect, cipher): (u16, u16), length: usize) -> Smb2World {
    let sealing = EncryptionPolicy::OfSessions(cipher);
    let mut world = unconnected("CORP\\anna:password:secret", dialect, sealing, length);
    world.set_up(0);
    world
}

/// Asserts that every message was encrypted as required, that no nonce repeated, that nothing was
/// let go, and that requests were answered early.
pub(super) fn assert_all_sealed(world: &Smb2World) {
    let client = &world.clients[0];
    assert_eq!((client.forged, client.unlike), (0, 0), "answers");
    assert_eq!(world.server.refused, 0, "requests");
    assert_eq!(world.let_go, None);
    let (up, down) = (world.server.seal(0), client.seal.as_ref().unwrap());
    assert_eq!((up.refused, down.refused), (0, 0));
}

#[test]
fn encrypted_serial_reader_waits_no_longer() {
    for way in WAYS {
        let length = 20 * BLOCK as usize;
        let mut world = world_of(way, length);
        let file = open(&mut world, 0);
        let start = world.now;
        let mut got = Vec::new();
        while got.len() < length {
            got.extend(read(&mut world, 0, file, got.len() as u64, BLOCK));
        }
        assert!(got == contents(length), "the contents differ");
        let round_trips = world.round_trips(start);
        assert!(round_trips <= 5.01, "{way:x?}: {round_trips}");
        world.ask(0, &messages::close(file));
        assert_all_sealed(&world);
    }
}

#[test]
fn encrypted_serial_writer_waits_no_longer() {
    for way in WAYS {
        let mut world = world_of(way, 0);
        let file = open(&mut world, 0);
        world.run_for(Duration::from_secs(1));
        let whole = contents(10 * BLOCK as usize);
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
        assert_all_sealed(&world);
    }
}

#[test]
fn an_encrypted_listing_comes_ahead_as_another() {
    let mut world = world_of(WAYS[3], 10);
    for name in 0..1_000 {
        let name = format!("file-{name:05}");
        world.server.files.insert(name, Vec::new());
    }
    let directory = world.create(0, &Smb2CreateParameters::directory(""));
    let start = world.now;
    let mut answers = 0;
    while world
        .ask(0, &messages::list(directory, 0, 16_384))
        .header
        .status
        != status::NO_MORE_FILES
    {
        answers += 1;
    }
    assert!(answers > 1);
    let round_trips = world.round_trips(start);
    assert!(round_trips <= 2.01, "{round_trips}");
    world.ask(0, &messages::close(directory));
    assert_all_sealed(&world);
}

#[test]
fn no_nonce_comes_twice_on_either_lan() {
    for way in WAYS {
        let mut world = world_of(way, 300_000);
        let file = open(&mut world, 0);
        for block in 0..20 {
            read(&mut world, 0, file, block * 10_000, 10_000);
            world.ask(0, &messages::write(file, block * 10, b"0123456789"));
        }
        world.ask(0, &messages::close(file));
        assert_all_sealed(&world);
        // Under the client's key the client counts from 1, and the far half takes others, and so on.
        let count = |host: u64| {
            let mut nonce = [0; 16];
            nonce[..8].copy_from_slice(&host.to_le_bytes());
            nonce.to_vec()
        };
        let (up, down) = (
            &world.server.seal(0).nonces,
            &world.clients[0].seal.as_ref().unwrap().nonces,
        );
        for nonces in [up, down] {
            // What passed before the first open came as its host had sealed it, and nothing after it.
            let own = (1..1_000).filter(|host| nonces.contains(&count(*host)));
            assert!(own.count() <= 1, "{way:x?}");
            assert!(nonces.len() > 5);
        }
    }
}

#[test]
fn encryption_is_independent_of_fragmentation() {
    for piece in [1, 63, 68, 84, 1_000] {
        let mut world = unconnected(
            "*\\anna:password:secret",
            0x0311,
            EncryptionPolicy::OfSessions(2),
            60_000,
        );
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
        assert_all_sealed(&world);
    }
}

#[test]
fn messages_in_transit_at_key_exchange_are_decrypted() {
    let mut world = unconnected(
        "*\\anna:password:secret",
        0x0311,
        EncryptionPolicy::OfSessions(2),
        60_000,
    );
    world.set_up(0);
    // One after the other in every 10 ms, so that some are on the path, and one half sent, as the first
    // CREATE engages.
    let mut asked = vec![world.send(0, &Smb2CreateParameters::open("a").request())];
    for index in 0..20 {
        world.run_for(Duration::from_millis(10));
        world.piece = 60 + index;
        asked.push(world.send(0, &messages::echo()));
        asked.push(world.send(0, &Smb2CreateParameters::directory("").request()));
    }
    for id in asked {
        world.wait(0, id);
    }
    assert_all_sealed(&world);
}

#[test]
fn compounds_pending_requests_cancels_and_breaks_stay_encrypted() {
    for way in WAYS {
        let mut world = world_of(way, 200_000);
        let file = open(&mut world, 0);
        read(&mut world, 0, file, 0, 10_000);
        read(&mut world, 0, file, 10_000, 10_000);
        let ids = world.send_chain(
            0,
            &[
                messages::write(file, 100, &[3; 61]),
                messages::flush(FileId::RELATED).with_flags(4),
            ],
        );
        for id in ids {
            assert_eq!(world.wait(0, id).header.status, status::SUCCESS);
        }
        let id = world.send(0, &messages::change_notify(file));
        world.run_for(Duration::from_millis(200));
        world.cancel(0, id);
        world.wait(0, id);
        world.ask(0, &messages::write(file, 0, b"before"));
        let other = world.beside();
        let theirs = open(&mut world, other);
        assert_eq!(read(&mut world, other, theirs, 0, 6), b"before");
        assert_eq!(read(&mut world, 0, file, 0, 6), b"before");
        assert_eq!(world.server.count(0, command::OPLOCK_BREAK), 1);
        let answer = world.ask(0, &messages::query_position(file));
        assert_eq!(answer.header.status, status::SUCCESS);
        world.ask(0, &messages::close(file));
        world.ask(0, &messages::tree_disconnect());
        world.ask(0, &messages::logoff());
        assert_all_sealed(&world);
    }
}

/// As smbtorture's `compound.related9` sends it, and as Samba's server answers.
#[test]
fn compound_related_to_nothing_is_refused() {
    for names_its_session in [true, false] {
        let mut world = world_of(WAYS[3], 200_000);
        let file = open(&mut world, 0);
        read(&mut world, 0, file, 0, 10_000);
        let session = world.clients[0].session;
        if !names_its_session {
            world.clients[0].session = u64::MAX;
        }
        let chain = [
            messages::change_notify(FileId([0; 16])).with_flags(flag::RELATED),
            messages::close(file).with_flags(flag::RELATED),
            messages::set_end(file, 5).with_flags(flag::RELATED),
        ];
        let ids = world.send_chain(0, &chain);
        world.clients[0].session = session;
        for id in ids {
            let answer = world.wait(0, id);
            assert_eq!(answer.header.status, status::INVALID_PARAMETER);
        }
        // As the server said it, and whether that will do is its client's to judge.
        let client = &mut world.clients[0];
        assert_eq!((client.forged, client.unlike), (3, 3));
        (client.forged, client.unlike) = (0, 0);
        assert!(read(&mut world, 0, file, 10_000, 10_000) == contents(200_000)[10_000..20_000]);
        // It is not closed, and is given back to who wants it.
        let other = world.beside();
        let theirs = open(&mut world, other);
        world.ask(other, &messages::write(theirs, 0, b"theirs"));
        assert_eq!(read(&mut world, 0, file, 0, 6), b"theirs");
        world.ask(0, &messages::close(file));
        assert_all_sealed(&world);
    }
}

/// No other clear answer to an encrypted request passes.
#[test]
fn clear_answer_to_invalid_compound_is_a_refusal() {
    let mut world = world_of(WAYS[3], 200_000);
    let file = open(&mut world, 0);
    let chain = [
        messages::flush(file).with_flags(flag::RELATED),
        messages::flush(file).with_flags(flag::RELATED),
    ];
    world.send_chain(0, &chain);
    world.alters_server = Some(Box::new(|said: &mut [u8]| said[4 + 8..4 + 12].fill(0)));
    world.run_for(Duration::from_secs(1));
    let reason = ReasonCode::FORGED;
    assert_eq!(world.let_go, Some(LettingGo::Close { reason }));
}

#[test]
fn a_lost_write_is_reported_encrypted() {
    let mut world = world_of(WAYS[3], 10);
    world.server.disk = 1_000;
    let file = open(&mut world, 0);
    world.run_for(Duration::from_secs(1));
    let answer = world.ask(0, &messages::write(file, 0, &[1; 5_000]));
    assert_eq!(answer.header.status, status::SUCCESS);
    let answer = world.ask(0, &messages::flush(file));
    assert_eq!(answer.header.status, DISK_FULL);
    let chain = [
        messages::flush(file),
        messages::close(FileId::RELATED).with_flags(4),
    ];
    for id in world.send_chain(0, &chain) {
        assert_eq!(world.wait(0, id).header.status, DISK_FULL);
    }
    assert_all_sealed(&world);
}

#[test]
fn encrypted_share_encrypts_only_its_own_messages() {
    // The TREE_CONNECT is signed, by an algorithm that signs again under any policy.
    let mut world = unconnected(
        "*\\anna:password:secret",
        0x0311,
        EncryptionPolicy::OfTheShare(2),
        300_000,
    );
    world.server.signing.as_mut().unwrap().algorithm = SigningAlgorithm::AesCmac;
    world.set_up(0);
    let file = open(&mut world, 0);
    world.run_for(Duration::from_secs(1));
    let start = world.now;
    for block in 0..5 {
        read(&mut world, 0, file, block * 10_000, 10_000);
    }
    assert!(world.round_trips(start) <= 0.01, "it was read ahead");
    // Another tree connect after ids differ, in the clear and signed again.
    world.clients[0].tree = 0;
    world.ask(0, &messages::tree_connect());
    world.clients[0].tree = 5;
    world.ask(0, &messages::write(file, 0, b"encrypted"));
    world.ask(0, &messages::close(file));
    let of = |wanted: u16| {
        let mut log = world.server.log.iter();
        log.rfind(|(_, header)| header.command == wanted).unwrap().1
    };
    assert!(of(command::TREE_CONNECT).has(flag::SIGNED) && !of(command::TREE_CONNECT).is_sealed);
    assert!(of(command::WRITE).is_sealed);
    assert_all_sealed(&world);
}

#[test]
fn client_requested_encryption_works_both_ways() {
    let mut world = unconnected(
        "*\\anna:password:secret",
        0x0302,
        EncryptionPolicy::AsAsked(1),
        300_000,
    );
    world.clients[0].seals_all = true;
    world.set_up(0);
    let file = open(&mut world, 0);
    for block in 0..5 {
        read(&mut world, 0, file, block * 10_000, 10_000);
    }
    world.ask(0, &messages::close(file));
    assert!(world.server.log.iter().skip(3).all(|(_, of)| of.is_sealed));
    assert_all_sealed(&world);
}

#[test]
fn clear_request_on_encrypted_session_is_not_answered() {
    let mut world = unconnected(
        "*\\anna:password:secret",
        0x0302,
        EncryptionPolicy::AsAsked(1),
        300_000,
    );
    world.clients[0].seals_all = true;
    world.set_up(0);
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 10_000);
    world.run_for(Duration::from_secs(1));
    let asked = world.server.count(0, command::READ);
    // As from somebody on the client's LAN, who knows the file's name for the server.
    world.clients[0].seals_all = false;
    world.clients[0].key = None;
    let start = world.now;
    let id = world.send(0, &messages::read(file, 10_000, 10_000));
    let answer = world.wait(0, id);
    assert!(world.round_trips(start) >= 0.99, "the server judges it");
    assert_ne!(answer.header.status, status::SUCCESS);
    assert_eq!(world.server.count(0, command::READ), asked + 1);
    assert_eq!(world.clients[0].unlike, 0);
}

#[test]
fn encrypted_session_without_key_passes_unchanged() {
    let cases = [
        ("CORP\\anna:password:wrong", ReasonCode::WRONG_KEY),
        ("CORP\\ben:password:secret", ReasonCode::UNKNOWN_ACCOUNT),
    ];
    for (accounts, reason) in cases {
        for (dialect, cipher) in WAYS {
            let sealing = EncryptionPolicy::OfSessions(cipher);
            let mut world = unconnected(accounts, dialect, sealing, 50_000);
            world.set_up(0);
            let file = open(&mut world, 0);
            assert_eq!(read(&mut world, 0, file, 0, 50_000), contents(50_000));
            world.ask(0, &messages::close(file));
            assert_eq!(world.let_go, Some(LettingGo::LetGo { reason }));
            assert_eq!(world.no_key_for.as_deref(), Some("CORP\\anna"));
            assert_passed_unaltered(&world, 50_000);
        }
    }
}

/// Asserts that a client beside the server gets the same answers as this one.
fn assert_passed_unaltered(world: &Smb2World, length: usize) {
    assert_eq!((world.clients[0].forged, world.server.refused), (0, 0));
    let mut direct = Smb2World::new(DELAY);
    direct.server.dialect = world.server.dialect;
    direct.server.signing = world.server.signing.clone();
    direct.server.sealing = world.server.sealing;
    direct.server.files.insert("a".to_owned(), contents(length));
    direct.server.receive(0, &world.clients[0].sent);
    assert!(direct.server.take(0) == world.clients[0].bytes);
    assert_eq!(direct.server.refused, 0);
}

#[test]
fn without_accounts_nothing_encrypted_is_waited_for() {
    let mut world = unconnected("", 0x0311, EncryptionPolicy::OfSessions(2), 50_000);
    let server = world.server;
    world = Smb2World::with_settings(DELAY, SmbSettings::STRICT);
    world.server = server;
    world.set_up(0);
    let file = open(&mut world, 0);
    assert_eq!(read(&mut world, 0, file, 0, 50_000), contents(50_000));
    let reason = ReasonCode::ENCRYPTED;
    assert_eq!(world.let_go, Some(LettingGo::LetGo { reason }));
    assert_passed_unaltered(&world, 50_000);
}

#[test]
fn undecryptable_messages_pass_before_any_change() {
    // The first encrypted message of either host, with one bit altered on the LAN.
    for from_client in [true, false] {
        let mut world = unconnected(
            "*\\anna:password:secret",
            0x0311,
            EncryptionPolicy::OfSessions(2),
            10,
        );
        let alters: TamperFunction = Box::new(|bytes| {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
        });
        world.sign_in(0);
        match from_client {
            true => world.alters_client = Some(alters),
            false => world.alters_server = Some(alters),
        }
        world.send(0, &messages::tree_connect());
        world.run_for(Duration::from_secs(1));
        // What the client encrypted has proved the key.
        let reason = match from_client {
            true => ReasonCode::WRONG_KEY,
            false => ReasonCode::FORGED,
        };
        assert_eq!(world.let_go, Some(LettingGo::LetGo { reason }));
        // The hosts judge it themselves.
        let judged = (world.server.refused, world.clients[0].forged);
        assert_eq!(judged, if from_client { (1, 0) } else { (0, 1) });
    }
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
        let mut world = world_of(way, 200_000);
        let file = open(&mut world, 0);
        world.alters_server = Some(Box::new(|bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
        }));
        let mut at = 0;
        while world.let_go.is_none() && at < 200_000 {
            let id = world.send(0, &messages::read(file, at, 20_000));
            world.run_for(Duration::from_secs(2));
            if let Some(answer) = world.clients[0].answered.remove(&id) {
                assert_eq!(answer.data(), &contents(200_000)[at as usize..][..20_000]);
            }
            at += 20_000;
        }
        let reason = ReasonCode::FORGED;
        assert_eq!(world.let_go, Some(LettingGo::Close { reason }), "{way:x?}");
        assert_eq!(world.clients[0].forged, 0);
    }
}

#[test]
fn false_headers_end_the_flow_or_release_it() {
    /// The offsets of transform header fields: the session, the size, the flags, the nonce; and the
    /// frame's length.
    const LIES: [usize; 6] = [4 + 44, 4 + 36, 4 + 42, 4 + 20, 4 + 4, 3];
    for lie in LIES {
        for is_engaged in [false, true] {
            if lie == 3 && !is_engaged {
                // It would pass, and this server expects frames to be whole.
                continue;
            }
            let mut world = world_of(WAYS[3], 100_000);
            if is_engaged {
                let file = open(&mut world, 0);
                read(&mut world, 0, file, 0, 10_000);
                world.run_for(Duration::from_secs(1));
            }
            let came = world.clients[0].bytes.len();
            world.alters_client = Some(Box::new(move |bytes| bytes[lie] ^= 2));
            world.send(0, &messages::echo());
            // A frame that is longer than it was needs another behind it.
            world.send(0, &messages::echo());
            world.run_for(Duration::from_secs(2));
            match (is_engaged, world.let_go) {
                (true, Some(LettingGo::Close { .. })) => {
                    assert_eq!(world.clients[0].bytes.len(), came, "{lie}");
                }
                (false, Some(LettingGo::LetGo { .. })) => {}
                (_, letting_go) => panic!("{lie}: {letting_go:?}"),
            }
        }
    }
}

#[test]
fn misplaced_encrypted_messages_are_rejected() {
    for is_nested in [false, true] {
        let mut world = world_of(WAYS[3], 100_000);
        let file = open(&mut world, 0);
        read(&mut world, 0, file, 0, 10_000);
        world.run_for(Duration::from_secs(1));
        let echo = messages::echo();
        let session = match is_nested {
            true => world.clients[0].session,
            false => 99,
        };
        let plain = frame(&[(echo.header(40, session, 5), &echo.body)]);
        let seal = world.clients[0].seal.as_mut().unwrap();
        let mut bytes = seal.seal(&plain[4..]);
        if is_nested {
            let again = bytes.split_off(4);
            bytes = seal.seal(&again);
        }
        world.send_bytes(0, &bytes);
        world.run_for(Duration::from_secs(1));
        assert!(matches!(world.let_go, Some(LettingGo::Close { .. })));
        assert_eq!(world.server.count(0, command::ECHO), 0);
    }
}

#[test]
fn clear_answer_to_an_encrypted_request_is_dropped() {
    for is_engaged in [false, true] {
        let mut world = world_of(WAYS[3], 100_000);
        if is_engaged {
            open(&mut world, 0);
            world.run_for(Duration::from_secs(1));
        }
        world.server.forgets_to_seal = true;
        let id = world.send(0, &messages::echo());
        world.run_for(Duration::from_secs(1));
        let reason = ReasonCode::FORGED;
        let (wanted, reaches_client) = match is_engaged {
            true => (LettingGo::Close { reason }, false),
            false => (LettingGo::LetGo { reason }, true),
        };
        assert_eq!(world.let_go, Some(wanted));
        assert_eq!(world.clients[0].answered.contains_key(&id), reaches_client);
    }
}

#[test]
fn decrypted_data_is_stored_only_by_policy() {
    for may_store_decrypted in [false, true] {
        let server = unconnected("", 0x0311, EncryptionPolicy::OfSessions(2), 300_000).server;
        let settings = SmbSettings {
            may_store_decrypted,
            ..settings("*\\anna:password:secret")
        };
        let mut world = Smb2World::with_settings(DELAY, settings);
        world.server = server;
        world.set_up(0);
        let file = open(&mut world, 0);
        world.told = Some([Vec::new(), Vec::new()]);
        for block in 0..5 {
            read(&mut world, 0, file, block * 10_000, 10_000);
            world.ask(0, &messages::write(file, block, &[7; 1_000]));
        }
        world.ask(0, &messages::close(file));
        let told = world.told.take().unwrap();
        for said in told {
            let mut kinds = said.iter().filter_map(|input| match input {
                AcceleratorInput::Wan(segment) => Some(segment.kind),
                _ => None,
            });
            assert_eq!(
                kinds.any(|kind| kind == SegmentKind::Payload),
                may_store_decrypted
            );
        }
        assert_all_sealed(&world);
    }
}

#[test]
fn the_notes_say_for_whom_and_how() {
    let mut world = world_of(WAYS[3], 1_000);
    let file = open(&mut world, 0);
    read(&mut world, 0, file, 0, 100);
    let notes = world.notes();
    let wanted = [
        "encrypted by AES-128-GCM; waited for the server: 1 CREATE (the server opens files)",
        "encrypted for CORP\\anna (AES-128-GCM)",
    ];
    assert_eq!(notes.each_ref().map(Option::as_deref), wanted.map(Some));
}
