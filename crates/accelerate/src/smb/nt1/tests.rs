//! Both halves for SMB 1 between a client and a server, in virtual time.

mod breaks;
mod choosing;
mod closing;
mod ids;
mod model;
mod near_alone;
mod reading;
mod writing;

use std::time::Duration;

use super::testing::world::Smb1World;

/// A path of 50 ms each way.
const DELAY: Duration = Duration::from_millis(50);
const ROUND_TRIP: Duration = Duration::from_millis(100);

/// A world with a file `a` of so many bytes, and client 0 with a session.
fn world(length: usize) -> Smb1World {
    let mut world = Smb1World::new(DELAY);
    world.server.files.insert("a".to_owned(), contents(length));
    world.set_up(0);
    world
}

/// Bytes that differ from place to place.
fn contents(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at ^ at >> 8 ^ at >> 16) as u8)
        .collect()
}
