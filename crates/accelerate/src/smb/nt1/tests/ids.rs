//! Multiplex ids, and requests that name others by them.

use super::world;
use crate::smb::nt1::testing::server::MPX;
use crate::smb::nt1::testing::{cancel, close, echo, notify, read, set_size_in_parts, write};
use crate::smb::nt1::wire::header::command;

#[test]
fn answers_to_own_requests_never_reach_the_client() {
    let mut world = world(1 << 20);
    let file = world.open(0, "a");
    for turn in 0..17 {
        world.ask(0, &read(file, turn * 60_000, 60_000));
    }
    world.ask(0, &close(file));
    world.run_for(super::ROUND_TRIP * 5);
    assert!(world.clients[0].answered.is_empty());
    assert!(world.clients[0].unasked.is_empty());
}

#[test]
fn client_multiplex_ids_are_restored() {
    for has_one_mid in [true, false] {
        let mut world = world(100);
        world.clients[0].has_one_mid = has_one_mid;
        let file = world.open(0, "a");
        for turn in 0..50u8 {
            let mid = world.send(0, &write(file, turn.into(), &[turn]).0);
            assert_eq!(world.wait(0).header.mid, mid);
        }
        let mid = world.send(0, &read(file, 0, 100));
        let answer = world.wait(0);
        assert_eq!(answer.header.mid, mid);
        assert_eq!(answer.data()[..50], (0..50).collect::<Vec<u8>>());
    }
}

#[test]
fn parallel_requests_each_get_their_answer() {
    let mut world = world(1 << 20);
    let file = world.open(0, "a");
    let asked: Vec<u16> = (0..u64::from(MPX))
        .map(|turn| world.send(0, &read(file, turn * 1_000, 1_000)))
        .collect();
    let mut answered: Vec<u16> = asked.iter().map(|_| world.wait(0).header.mid).collect();
    answered.sort_unstable();
    assert_eq!(answered, asked);
}

#[test]
fn every_echo_returns_under_its_id() {
    let mut world = world(100);
    world.open(0, "a");
    let mid = world.send(0, &echo(3));
    let answers: Vec<u16> = (0..3).map(|_| world.wait(0).header.mid).collect();
    assert_eq!(answers, [mid; 3]);
    world.open(0, "b");
}

#[test]
fn secondary_request_follows_its_primary() {
    let mut world = world(100);
    let file = world.open(0, "a");
    world.clients[0].has_one_mid = true;
    let [first, second] = set_size_in_parts(file, 5);
    world.ask(0, &first);
    // These wait for ever, under the same id.
    for _ in 0..6 {
        world.send(0, &notify(file));
    }
    // Under another id the server would not know what it belongs to.
    assert_eq!(world.ask(0, &second).header.status, 0);
    assert_eq!(world.server.files["a"].len(), 5);
}

#[test]
fn cancel_of_an_answered_request_is_dropped() {
    let mut world = world(100);
    let file = world.open(0, "a");
    world.ask(0, &read(file, 0, 10));
    world.clients[0].has_one_mid = true;
    world.server.heard.clear();
    world.send(0, &cancel());
    world.run_for(super::ROUND_TRIP);
    assert!(!world.server.heard.contains(&command::NT_CANCEL));
    assert_eq!(world.ask(0, &close(file)).header.status, 0);
}
