//! For tests: a small SMB2 server in memory, clients that follow a script, and the path between.
//!
//! ```text
//!  Client ── near half ══ delay, rate ══ far half ── Server ── a second client beside it
//! ```
//! The server is strict: a message id out of its window or an unknown open fails the test, because
//! the halves must not make a client's message invalid.

// Each of the crates that use this uses some of it.
#![cfg_attr(not(test), allow(dead_code))]

mod hosts;
mod probe;

pub(crate) mod login;
pub(crate) mod messages;
pub(crate) mod seal;
pub(crate) mod server;
pub(crate) mod world;

use std::sync::Arc;
use std::time::Duration;

use super::keys::SigningAlgorithm;
use super::wire::FileId;
use super::wire::create::CreateResponse;
use super::wire::header::flag;
use super::{ChannelPolicy, ConsistencyMode, DurablePolicy, SmbSettings, nt1};
use crate::AcceleratorInput;
use crate::credentials::DelegatedAccounts;
use messages::Smb2CreateParameters;
use server::{EncryptionPolicy, SigningPolicy};
use world::Smb2World;

pub use hosts::{ClientStep, FileClient, FileServer};
pub use probe::structures;

/// Records the inputs of the near and the far half while a client opens a file, reads and writes
/// it, and another client beside the server opens it too. Fuzzing starts from them.
#[must_use]
pub fn conversation() -> [Vec<AcceleratorInput>; 2] {
    told(Smb2World::with_settings(
        Duration::from_millis(10),
        settings(),
    ))
}

/// The same by a client of SMB 1.
#[must_use]
pub fn smb1_conversation() -> [Vec<AcceleratorInput>; 2] {
    nt1::testing::conversation()
}

/// Reads bytes as every structure of SMB 1: as a stream of frames, and as one message.
///
/// # Panics
/// When something is read from outside of them, or reads back other than it was.
pub fn smb1_structures(bytes: &[u8]) {
    nt1::testing::structures(bytes);
}

/// The same by SMB 3.1.1 and signed by a user whose account [`settings`] hold.
#[must_use]
pub fn signed_conversation() -> [Vec<AcceleratorInput>; 2] {
    let mut world = Smb2World::with_settings(Duration::from_millis(10), settings());
    world.server.dialect = 0x0311;
    world.server.signing = Some(SigningPolicy {
        login: login::ANNA,
        algorithm: SigningAlgorithm::AesCmac,
        is_required: true,
    });
    told(world)
}

/// The same by a client that has a ticket for the service whose keytab [`settings`] hold.
#[must_use]
pub fn kerberos_conversation() -> [Vec<AcceleratorInput>; 2] {
    let mut world = Smb2World::with_settings(Duration::from_millis(10), settings());
    world.server.dialect = 0x0311;
    world.server.signing = Some(SigningPolicy {
        login: login::UserLogin::Ticket,
        algorithm: SigningAlgorithm::AesCmac,
        is_required: true,
    });
    told(world)
}

/// The same, and encrypted.
#[must_use]
pub fn sealed_conversation() -> [Vec<AcceleratorInput>; 2] {
    let mut world = Smb2World::with_settings(Duration::from_millis(10), settings());
    world.server.dialect = 0x0311;
    world.server.signing = Some(SigningPolicy {
        login: login::ANNA,
        algorithm: SigningAlgorithm::AesCmac,
        is_required: true,
    });
    world.server.sealing = Some(EncryptionPolicy::OfSessions(2));
    told(world)
}

/// The Kerberos structures of a client and a server, each by itself: those that cross in the clear,
/// and those that only the holders of a key can decrypt. [`settings`] have the service's key.
#[must_use]
pub fn kerberos_structures() -> Vec<Vec<u8>> {
    let exchange = login::exchange();
    vec![
        exchange.token(),
        exchange.answer(),
        exchange.ap_req(),
        exchange.ap_rep(),
        exchange.enc_ticket_part(),
        exchange.authenticator(),
        exchange.enc_ap_rep_part(),
    ]
}

/// A keytab of its service.
#[must_use]
pub fn keytab_file() -> Vec<u8> {
    login::exchange().keytab_file()
}

/// Everything switched on, and an account and a service delegated.
#[must_use]
pub fn settings() -> SmbSettings {
    let accounts = DelegatedAccounts::parse("CORP\\anna:password:secret");
    SmbSettings {
        accounts: Some(Arc::new(accounts.expect("it is one"))),
        keytab: Some(Arc::new(login::exchange().keytab())),
        may_resign_gmac: true,
        may_store_decrypted: true,
        channels: ChannelPolicy::One,
        durable: DurablePolicy::Decline,
        path_bytes: 0,
        consistency: ConsistencyMode::Relaxed {
            staleness: ConsistencyMode::STALENESS,
        },
    }
}

fn told(mut world: Smb2World) -> [Vec<AcceleratorInput>; 2] {
    world.told = Some([Vec::new(), Vec::new()]);
    world.server.files.insert("a".to_owned(), vec![7; 3_000]);
    world.set_up(0);
    let other = world.beside();
    let file = world.create(0, &Smb2CreateParameters::open("a"));
    for offset in [0, 1_000, 2_000] {
        world.ask(0, &messages::read(file, offset, 1_000));
    }
    world.ask(0, &messages::write(file, 500, b"written"));
    world.ask(0, &messages::flush(file));
    world.create(other, &Smb2CreateParameters::open("a"));
    world.ask(0, &messages::read(file, 0, 1_000));
    world.ask(0, &messages::close(file));
    let directory = world.create(0, &Smb2CreateParameters::directory(""));
    for _ in 0..2 {
        world.ask(0, &messages::list(directory, 0, 65_536));
    }
    world.ask(0, &messages::close(directory));
    for name in ["b", "c", "d", "e"] {
        world.server.files.insert(name.to_owned(), vec![9; 100]);
    }
    let directory = world.create(0, &Smb2CreateParameters::directory(""));
    let mut list = messages::list(directory, 0, 65_536);
    list.body[2] = server::FULL;
    world.ask(0, &list);
    for name in ["b", "c", "d", "e"] {
        let create = Smb2CreateParameters {
            access: 0x1,
            disposition: 1,
            ..Smb2CreateParameters::open(name)
        };
        let file = world.create(0, &create);
        world.ask(0, &messages::read(file, 0, 100));
        world.ask(0, &messages::close(file));
        world.run_for(Duration::from_millis(50));
    }
    for path in ["tree", "tree\\twig", "tree\\leaf"] {
        world.server.directories.insert(path.to_owned());
    }
    for path in ["tree", "tree\\leaf", "tree\\twig"] {
        let create = Smb2CreateParameters {
            access: 0x81,
            disposition: 1,
            options: 0,
            share: 7,
            ..Smb2CreateParameters::open(path)
        };
        let mut list = messages::list(FileId::RELATED, 0, 15_380);
        list.body[2] = server::FULL;
        let requests = [create.request(), list.with_flags(flag::RELATED)];
        let ids = world.send_chain(0, &requests);
        let answer = world.wait(0, ids[0]);
        let file = CreateResponse::parse(&answer.body)
            .expect("it is opened")
            .file;
        world.wait(0, ids[1]);
        world.ask(0, &messages::close(file));
    }
    world.told.take().expect("it was to be kept")
}
