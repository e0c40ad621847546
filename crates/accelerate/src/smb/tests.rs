//! The two halves between a client and a server, in virtual time.

mod breaks;
mod children;
mod closing;
mod company;
mod compounds;
mod durable;
mod ends;
mod file_system;
mod impaired;
mod kerberos;
mod leases;
mod letting_go;
mod listing;
mod look_ahead;
mod model;
mod office;
mod open_after_change;
mod open_after_stat;
mod passing;
mod questions;
mod races;
mod reading;
mod relaxed;
mod room;
mod sealed;
mod signed;
mod writing;

use std::time::Duration;

use super::testing::messages::{self, Smb2CreateParameters};
use super::testing::world::Smb2World;
use super::wire::FileId;
use super::{DurablePolicy, SmbSettings};

/// One way of the path: 100 ms round trip.
const DELAY: Duration = Duration::from_millis(50);

/// `length` bytes that are nowhere alike.
fn contents(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// A world whose client is connected, with one file of that many bytes.
fn world_with(length: usize) -> Smb2World {
    let mut world = Smb2World::new(DELAY);
    world.server.files.insert("a".to_owned(), contents(length));
    world.set_up(0);
    world
}

/// The same at a server that grants durable handles, with nodes that let it.
fn durable_world(length: usize) -> Smb2World {
    let settings = SmbSettings {
        durable: DurablePolicy::Keep,
        ..SmbSettings::STRICT
    };
    let mut world = Smb2World::with_settings(DELAY, settings);
    world.server.grants_durable = true;
    world.server.files.insert("a".to_owned(), contents(length));
    world.set_up(0);
    world
}

/// Opens the file "a".
fn open(world: &mut Smb2World, who: usize) -> FileId {
    world.create(who, &Smb2CreateParameters::open("a"))
}

/// Reads one block; its data, empty at the file's end.
fn read(world: &mut Smb2World, who: usize, file: FileId, offset: u64, length: u32) -> Vec<u8> {
    let answer = world.ask(who, &messages::read(file, offset, length));
    match answer.header.status {
        super::wire::header::status::END_OF_FILE => Vec::new(),
        _ => answer.data().to_vec(),
    }
}
