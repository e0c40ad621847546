//! Clients with several connections to a server, where no flow serves a lease: the stop of the
//! first, and the wait of the second.

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters};
use super::super::testing::world::{FAR, NEAR, Smb2World};
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{command, flag, status};
use super::leases::{KEY, is_answered_here, leased};
use super::{contents, durable_world, open, read, world_with};
use crate::{AcceleratorInput, LettingGo, ReasonCode};

/// Another connection of the same client shares its leases: a change through that breaks none of
/// them.
#[test]
fn second_connection_makes_leases_no_licence() {
    let mut world = world_with(300_000);
    world.server.files.insert("b".to_owned(), contents(100));
    let file = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    let early = messages::write(file, 0, b"early");
    world.server.holds_writes = true;
    assert!(is_answered_here(&mut world, &early));
    world.input(FAR, AcceleratorInput::ClaimRevoked);
    world.run_for(Duration::from_secs(1));
    // The other one waits for what was answered.
    assert!(!world.has_given_back);
    world.server.holds_writes = false;
    world.server.do_held_writes();
    world.run_for(Duration::from_secs(1));
    assert!(world.has_given_back);
    let held = world.server.files.get_mut("a").unwrap();
    assert_eq!(held[..5], *b"early");
    held.fill(1);
    for at in [0, 10_000] {
        assert_eq!(read(&mut world, 0, file, at, 10_000), [1; 10_000]);
    }
    let second = world.create(0, &Smb2CreateParameters::leased("b", 9));
    let third = leased(&mut world);
    // Once it is alone again, leases are licences that nobody else can have shared.
    world.input(FAR, AcceleratorInput::ClaimGranted);
    let fourth = world.create(0, &Smb2CreateParameters::leased("c", 11));
    for (file, is_here) in [(second, false), (third, false), (fourth, true)] {
        world.run_for(Duration::from_secs(1));
        let write = messages::write(file, 0, b"x");
        assert_eq!(is_answered_here(&mut world, &write), is_here);
    }
    assert!(world.clients[0].unasked.is_empty());
}

/// An open that the other connection has made under such a lease may outlive it, as may its WRITEs.
#[test]
fn old_lease_is_no_licence_beside_another_connection() {
    let mut world = world_with(300_000);
    for name in ["b", "c"] {
        world.server.files.insert(name.to_owned(), contents(100));
    }
    let first = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    // One is under way all the time.
    world.server_takes = Duration::from_secs(2);
    let opening = world.send(0, &Smb2CreateParameters::leased("b", 9).request());
    world.run_for(Duration::from_secs(1));
    world.input(FAR, AcceleratorInput::ClaimRevoked);
    world.run_for(Duration::from_millis(500));
    assert!(world.has_given_back);
    world.input(FAR, AcceleratorInput::ClaimGranted);
    assert!(!world.clients[0].answered.contains_key(&opening));
    let answer = world.wait(0, opening);
    world.server_takes = Duration::ZERO;
    let second = CreateResponse::parse(&answer.body).unwrap().file;
    let again = leased(&mut world);
    let second_again = world.create(0, &Smb2CreateParameters::leased("b", 9));
    let new = world.create(0, &Smb2CreateParameters::leased("c", 11));
    world.run_for(Duration::from_secs(1));
    for file in [first, second, again, second_again] {
        let write = messages::write(file, 0, b"x");
        assert!(!is_answered_here(&mut world, &write));
    }
    let write = messages::write(new, 0, b"x");
    assert!(is_answered_here(&mut world, &write));
}

#[test]
fn cut_path_delays_another_connection_twelve_seconds() {
    let mut world = world_with(300_000);
    let file = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    world.is_cut = true;
    let late = messages::write(file, 0, b"late");
    assert!(is_answered_here(&mut world, &late));
    world.input(FAR, AcceleratorInput::ClaimRevoked);
    let is_given_back = world.run_until(Duration::from_secs(12), |world| world.has_given_back);
    assert!(is_given_back);
    world.server.files.get_mut("a").unwrap().fill(1);
    world.is_cut = false;
    assert_eq!(read(&mut world, 0, file, 0, 10), [1; 10]);
    // What came too late is reported.
    let closed = world.ask(0, &messages::close(file));
    assert_eq!(closed.header.status, status::UNEXPECTED_IO_ERROR);
}

/// A server that does not answer here may answer there: a cable of one of its two has been pulled.
#[test]
fn stalled_connection_ends_for_the_next_one() {
    for (ends_after, limit) in [(None, 30_000), (Some(0), 2_000), (Some(5_000), 7_000)] {
        for is_close in [true, false] {
            let mut world = world_with(300_000);
            let file = leased(&mut world);
            world.run_for(Duration::from_secs(1));
            world.server.holds_writes = !is_close;
            world.server.holds_closes = is_close;
            let early = match is_close {
                true => messages::close(file),
                false => messages::write(file, 0, b"early"),
            };
            assert!(is_answered_here(&mut world, &early));
            world.run_for(Duration::from_secs(1));
            if ends_after == Some(0) {
                world.input(NEAR, AcceleratorInput::LanFinished);
                world.run_for(Duration::from_secs(1));
            }
            let waits_from = world.now;
            world.input(FAR, AcceleratorInput::ClaimRevoked);
            if let Some(after) = ends_after.filter(|after| *after > 0) {
                world.run_for(Duration::from_millis(after) - super::DELAY);
                world.input(NEAR, AcceleratorInput::LanFinished);
            }
            let is_over = world.run_until(Duration::from_secs(60), |world| world.let_go.is_some());
            assert!(is_over && !world.has_given_back);
            let reason = ReasonCode::UNCONFIRMED;
            assert_eq!(world.let_go, Some(LettingGo::Close { reason }));
            assert_eq!(world.now.since(waits_from), Duration::from_millis(limit));
        }
    }
}

/// A server may take any time for a request that was not answered early.
#[test]
fn server_answered_connection_is_not_ended() {
    let durable = Smb2CreateParameters {
        context: Some(b"DH2Q"),
        ..Smb2CreateParameters::leased("a", KEY)
    };
    for request in [messages::write, |file, _, _: &[u8]| messages::close(file)] {
        let mut world = durable_world(300_000);
        let file = world.create(0, &durable);
        world.run_for(Duration::from_secs(1));
        world.server.holds_writes = true;
        world.server.holds_closes = true;
        let asked = world.send(0, &request(file, 0, b"slow"));
        world.run_for(Duration::from_secs(1));
        world.input(FAR, AcceleratorInput::ClaimRevoked);
        let is_given_back = world.run_until(super::DELAY * 2, |world| world.has_given_back);
        assert!(is_given_back);
        world.run_for(Duration::from_secs(60));
        assert_eq!(world.let_go, None);
        assert!(!world.clients[0].answered.contains_key(&asked));
        world.server.do_held_writes();
        world.server.do_held_closes();
        assert_eq!(world.wait(0, asked).header.status, status::SUCCESS);
    }
}

/// Writes that the client believes complete are not dropped with its connection.
#[test]
fn ended_connection_still_delivers_answered_writes() {
    let mut world = world_with(300_000);
    let file = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    world.server.holds_writes = true;
    let early = messages::write(file, 0, b"early");
    assert!(is_answered_here(&mut world, &early));
    world.input(NEAR, AcceleratorInput::LanFinished);
    world.run_for(Duration::from_secs(1));
    world.input(FAR, AcceleratorInput::ClaimRevoked);
    world.run_for(Duration::from_secs(1));
    assert!(!world.has_given_back);
    world.server.do_held_writes();
    world.run_for(Duration::from_secs(60));
    assert!(world.has_given_back && world.let_go.is_none());
    assert_eq!(world.server.files["a"][..5], *b"early");
}

/// A client without leases whose connection breaks connects again, and its server then ends the session of
/// before, with all that is under way.
#[test]
fn reconnection_without_leases_waits_for_answered_writes() {
    for is_client_gone in [true, false] {
        let mut world = world_with(0);
        world.server.credits_max = 512;
        let file = open(&mut world, 0);
        world.run_for(Duration::from_secs(1));
        let block = contents(60_000);
        for index in 0..20 {
            let write = messages::write(file, index * 60_000, &block);
            assert!(is_answered_here(&mut world, &write));
        }
        if is_client_gone {
            world.input(NEAR, AcceleratorInput::LanFinished);
        }
        // It overtakes what is on the path.
        world.input(FAR, AcceleratorInput::ClaimRevoked);
        assert!(!world.has_given_back && world.server.files["a"].is_empty());
        let is_given_back = world.run_until(super::DELAY * 4, |world| world.has_given_back);
        assert!(is_given_back, "{is_client_gone}");
        assert_eq!(world.server.files["a"].len(), 20 * block.len());
        assert!(world.let_go.is_none());
    }
}

/// Opens that are made while it waits do not make it wait longer.
#[test]
fn second_connection_waits_for_no_later_writes() {
    let mut world = world_with(0);
    world.server.files.insert("b".to_owned(), Vec::new());
    let file = open(&mut world, 0);
    world.run_for(Duration::from_secs(1));
    world.server_takes = Duration::from_secs(1);
    let opening = world.send(0, &Smb2CreateParameters::open("b").request());
    world.run_for(Duration::from_millis(100));
    world.server.holds_writes = true;
    let early = messages::write(file, 0, b"early");
    assert!(is_answered_here(&mut world, &early));
    world.input(FAR, AcceleratorInput::ClaimRevoked);
    let answer = world.wait(0, opening);
    world.server_takes = Duration::ZERO;
    let other = CreateResponse::parse(&answer.body).unwrap().file;
    assert!(!world.has_given_back);
    world.send(0, &messages::write(other, 0, b"late"));
    world.server.holds_writes = false;
    world.server.do_held_writes();
    world.run_for(Duration::from_secs(1));
    assert!(world.has_given_back && world.let_go.is_none());
}

#[test]
fn second_connection_waits_for_the_first_ones_release() {
    let mut world = Smb2World::new(super::DELAY);
    world.server.files.insert("a".to_owned(), contents(300_000));
    world.keeps_company = true;
    world.ask(0, &messages::negotiate());
    assert!(world.between.is_some());
    let waits = world.send(0, &messages::session_setup());
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.count(0, command::SESSION_SETUP), 0);
    world.input(FAR, AcceleratorInput::ClaimRevoked);
    let answer = world.wait(0, waits);
    world.clients[0].session = answer.header.session;
    let answer = world.ask(0, &messages::tree_connect());
    world.clients[0].tree = answer.header.tree;
    let file = leased(&mut world);
    world.run_for(Duration::from_secs(1));
    let write = messages::write(file, 0, b"x");
    assert!(!is_answered_here(&mut world, &write));
}

/// Waiting requests are sent first, even when the flow is let go or ends.
#[test]
fn let_go_or_ended_second_connection_loses_nothing() {
    for is_let_go in [true, false] {
        let mut world = Smb2World::new(super::DELAY);
        world.keeps_company = true;
        world.ask(0, &messages::negotiate());
        let waits = world.send(0, &messages::session_setup());
        match is_let_go {
            true => drop(world.send(0, &messages::echo().with_flags(flag::SIGNED))),
            false => world.input(NEAR, AcceleratorInput::LanFinished),
        }
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.let_go.is_some(), is_let_go);
        assert_eq!(world.server.count(0, command::SESSION_SETUP), 1);
        assert!(world.clients[0].answered.contains_key(&waits));
    }
}
