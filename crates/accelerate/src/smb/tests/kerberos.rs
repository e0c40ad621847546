//! Sessions that are set up by Kerberos: helped with the service's keytab, signed and encrypted, and passed
//! byte for byte without it.

use std::sync::Arc;
use std::time::Duration;

use super::super::SmbSettings;
use super::super::testing::login::{UserLogin, exchange};
use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::server::{EncryptionPolicy, SigningPolicy};
use super::super::testing::world::Smb2World;
use super::super::wire::FileId;
use super::super::wire::header::{command, status};
use super::super::wire::set_up::SECONDS_1601_TO_1970;
use super::{DELAY, contents, open, read};
use crate::credentials::DelegatedAccounts;
use crate::credentials::kerberos::testing::KerberosExchange;
use crate::smb::keys::SigningAlgorithm;
use crate::{LettingGo, ReasonCode};

const BLOCK: u32 = 60_000;

/// Every dialect with its signing algorithm.
const WAYS: [(u16, SigningAlgorithm); 3] = [
    (0x0210, SigningAlgorithm::HmacSha256),
    (0x0302, SigningAlgorithm::AesCmac),
    (0x0311, SigningAlgorithm::AesCmac),
];

/// A world whose server accepts the client's ticket, with the file "a", before any client is
/// connected.
fn unconnected(
    settings: SmbSettings,
    (dialect, algorithm): (u16, SigningAlgorithm),
    length: usize,
) -> Smb2World {
    let mut world = Smb2World::with_settings(DELAY, settings);
    world.server.dialect = dialect;
    world.server.signing = Some(SigningPolicy {
        login: UserLogin::Ticket,
        algorithm,
        is_required: true,
    });
    world.server.files.insert("a".to_owned(), contents(length));
    world
}

fn with_keytab(exchange: &KerberosExchange) -> SmbSettings {
    SmbSettings {
        keytab: Some(Arc::new(exchange.keytab())),
        ..SmbSettings::STRICT
    }
}

/// Reads the file and writes it again, block by block. Returns the round trips of both.
fn read_and_write(world: &mut Smb2World, length: usize) -> [f64; 2] {
    let file = open(world, 0);
    let start = world.now;
    let mut got = Vec::new();
    while got.len() < length {
        got.extend(read(world, 0, file, got.len() as u64, BLOCK));
    }
    assert!(got == contents(length), "the contents differ");
    let reading = world.round_trips(start);
    world.run_for(Duration::from_secs(1));
    let start = world.now;
    for (index, block) in got.chunks(BLOCK as usize).enumerate() {
        let at = index as u64 * u64::from(BLOCK);
        world.ask(0, &messages::write(file, at, block));
    }
    let writing = world.round_trips(start);
    world.ask(0, &messages::close(file));
    [reading, writing]
}

#[test]
fn kerberos_client_is_prefetched_and_written_behind() {
    let length = 20 * BLOCK as usize;
    for (way, sealing) in [
        (WAYS[0], None),
        (WAYS[1], None),
        (WAYS[2], None),
        (WAYS[2], Some(EncryptionPolicy::OfSessions(2))),
    ] {
        let mut world = unconnected(with_keytab(&exchange()), way, length);
        world.server.credits_max = 64;
        world.server.sealing = sealing;
        world.set_up(0);
        let [reading, writing] = read_and_write(&mut world, length);
        // Without help each block costs one.
        assert!(reading <= 8.01, "{way:x?} {sealing:?}: {reading}");
        assert!(writing <= 1.01, "{way:x?} {sealing:?}: {writing}");
        assert_eq!((world.clients[0].forged, world.server.refused), (0, 0));
        assert_eq!(world.let_go, None);
        assert!(world.server.files["a"] == contents(length));
    }
}

/// Clients do this when their ticket expires: their session continues with its keys.
#[test]
fn repeated_ticket_keeps_the_session_served() {
    for (way, sealing) in [
        (WAYS[0], None),
        (WAYS[1], None),
        (WAYS[2], None),
        (WAYS[2], Some(EncryptionPolicy::OfSessions(2))),
    ] {
        let mut world = unconnected(with_keytab(&exchange()), way, 300_000);
        world.server.sealing = sealing;
        world.set_up(0);
        let file = open(&mut world, 0);
        read(&mut world, 0, file, 0, 10_000);
        world.prove_again(0);
        let start = world.now;
        let data = read(&mut world, 0, file, 10_000, 10_000);
        assert!(data == contents(300_000)[10_000..20_000]);
        assert!(world.round_trips(start) < 0.5, "{way:x?}: read ahead");
        world.ask(0, &messages::write(file, 0, b"again"));
        world.ask(0, &messages::close(file));
        assert_eq!(world.server.files["a"][..5], *b"again");
        assert_eq!((world.clients[0].forged, world.server.refused), (0, 0));
        assert_eq!(world.let_go, None);
    }
}

/// The end of the client's ticket, 2036-01-01, in seconds since 1970.
const TICKET_ENDS: u64 = 2_082_758_400;

/// Writes to a file. Returns true if the near half answered.
fn is_write_answered(world: &mut Smb2World, file: FileId) -> bool {
    // The near half knows that its licences are fresh.
    world.ask(0, &messages::echo());
    let start = world.now;
    let answer = world.ask(0, &messages::write(file, 0, b"written"));
    assert_eq!(answer.header.status, status::SUCCESS);
    world.now == start
}

/// The server refuses what comes after the end, and a client does not repeat what was answered.
#[test]
fn writes_at_the_end_of_a_ticket_go_to_the_server() {
    for sealing in [None, Some(EncryptionPolicy::OfSessions(2))] {
        let mut world = unconnected(with_keytab(&exchange()), WAYS[2], 100);
        world.server.sealing = sealing;
        world.server.clock = (TICKET_ENDS - 300 + SECONDS_1601_TO_1970) * 10_000_000;
        world.set_up(0);
        let file = open(&mut world, 0);
        world.run_for(Duration::from_secs(220));
        assert!(is_write_answered(&mut world, file));
        world.run_for(Duration::from_secs(30));
        assert!(!is_write_answered(&mut world, file));
        let other = world.create(0, &Smb2CreateParameters::open("b"));
        assert!(!is_write_answered(&mut world, other));
        // A server that still makes opens then does not end sessions.
        world.run_for(Duration::from_secs(120));
        let other = world.create(0, &Smb2CreateParameters::open("c"));
        assert!(is_write_answered(&mut world, other));
        assert_eq!((world.clients[0].forged, world.server.refused), (0, 0));
    }
}

#[test]
fn oplock_of_an_expired_session_is_given_back_after_its_renewal() {
    let mut world = unconnected(with_keytab(&exchange()), WAYS[1], 100);
    world.set_up(0);
    let other = world.beside();
    open(&mut world, 0);
    world.run_for(Duration::from_secs(1));
    world.server.refuses = Some((command::OPLOCK_BREAK, status::NETWORK_SESSION_EXPIRED));
    let wanted = world.send(other, &Smb2CreateParameters::open("a").request());
    world.run_for(Duration::from_secs(5));
    assert!(world.server.refuses.is_none());
    assert!(!world.clients[other].answered.contains_key(&wanted));
    world.prove_again(0);
    world.run_for(Duration::from_secs(1));
    let answer = world.clients[other].answered.get(&wanted);
    assert_eq!(
        answer.map(|answer| answer.header.status),
        Some(status::SUCCESS)
    );
    assert_eq!(world.let_go, None);
}

#[test]
fn kerberos_session_without_key_passes_unchanged() {
    let accounts = DelegatedAccounts::parse("*\\anna:password:secret").unwrap();
    let with_accounts = SmbSettings {
        accounts: Some(Arc::new(accounts)),
        ..SmbSettings::STRICT
    };
    let renewed = KerberosExchange {
        service_key: 0x99,
        ..exchange()
    };
    let cases = [
        (with_accounts, ReasonCode::NO_KEYTAB),
        (with_keytab(&renewed), ReasonCode::UNKNOWN_TICKET),
    ];
    for (settings, reason) in cases {
        for way in WAYS {
            let mut world = unconnected(settings.clone(), way, 50_000);
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
