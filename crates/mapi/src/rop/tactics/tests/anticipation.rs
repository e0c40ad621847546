//! Round trips of a user's actions, and calls that do not follow the earlier ones.

use std::time::Duration;

use super::super::super::buffer::{NO_HANDLE, RopBuffer};
use super::super::super::id;
use super::server::MailServer;
use super::{
    ClientGeneration, TacticsWorld, attachment_table, contents_table, data_of, get_properties,
    logon, noise, open_attachment, open_message, open_stream, plain, query_rows, read_all,
    read_stream, set_columns,
};

const DELAY: Duration = Duration::from_millis(50);
const LENGTH: usize = 20_000;

/// The calls that open a message and read its attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpeningStyle {
    /// A call for nearly each ROP, as Outlook XP makes them.
    Single,
    /// Several ROPs in a call, as Outlook 2003 makes them.
    Combined,
}

const STYLES: [(ClientGeneration, OpeningStyle); 4] = [
    (ClientGeneration::Xp, OpeningStyle::Single),
    (ClientGeneration::Single, OpeningStyle::Single),
    (ClientGeneration::Single, OpeningStyle::Combined),
    (ClientGeneration::Chained, OpeningStyle::Combined),
];

fn server() -> MailServer {
    let mut server = MailServer::new();
    for message in 1..9 {
        server.contents.insert(message * 1000, noise(LENGTH));
    }
    server
}

/// A client that makes the first so many calls of an action.
struct OpeningClient<'a> {
    world: &'a mut TacticsWorld,
    generation: ClientGeneration,
    calls_left: usize,
}

impl OpeningClient<'_> {
    fn call(&mut self, rops: &[Vec<u8>], handles: &[u32]) -> Option<RopBuffer> {
        self.calls_left = self.calls_left.checked_sub(1)?;
        Some(self.world.rops(self.generation, rops, handles))
    }

    /// Opens a message and its first attachment; returns the stream.
    fn open(&mut self, style: OpeningStyle, store: u32, message: u32) -> Option<u32> {
        let no = NO_HANDLE;
        let (message, table) = match style {
            OpeningStyle::Single => {
                let opened = self.call(&[open_message(0, 1, message)], &[store, no])?;
                let message = opened.handles[1];
                self.call(&[get_properties(0)], &[message])?;
                let opened = self.call(&[attachment_table(0, 1)], &[message, no])?;
                let table = opened.handles[1];
                let rops = [set_columns(1), query_rows(1, 50)];
                self.call(&rops, &[message, table])?;
                (message, table)
            }
            OpeningStyle::Combined => {
                let rops = [open_message(0, 1, message), get_properties(1)];
                let message = self.call(&rops, &[store, no])?.handles[1];
                let rops = [attachment_table(0, 1), set_columns(1), query_rows(1, 50)];
                (message, self.call(&rops, &[message, no])?.handles[1])
            }
        };
        let rops = [
            plain(id::RELEASE, 2),
            open_attachment(0, 1, 0),
            get_properties(1),
        ];
        let attachment = self.call(&rops, &[message, no, table])?.handles[1];
        let opened = self.call(&[open_stream(0, 1, 0)], &[attachment, no])?;
        Some(opened.handles[1])
    }
}

/// Opens a message and reads its attachment to its end; returns the round trips to the first bytes.
fn save(
    world: &mut TacticsWorld,
    (generation, style): (ClientGeneration, OpeningStyle),
    store: u32,
    message: u32,
) -> f64 {
    let start = world.now;
    let mut client = OpeningClient {
        world,
        generation,
        calls_left: usize::MAX,
    };
    let stream = client.open(style, store, message).unwrap();
    let request = generation.request(&[read_stream(0, 9_000)], &[stream]);
    let mut data = data_of(&world.call(&request));
    let round_trips = world.round_trips(start);
    data.extend(read_all(world, &request, LENGTH - data.len()));
    assert_eq!(data, noise(LENGTH));
    round_trips
}

fn log_on(world: &mut TacticsWorld, generation: ClientGeneration) -> u32 {
    world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0]
}

#[test]
fn message_with_attachment_opens_in_two_round_trips() {
    for (generation, style) in STYLES {
        let mut world = TacticsWorld::new(server(), DELAY, None);
        let store = log_on(&mut world, generation);
        let first = save(&mut world, (generation, style), store, 1);
        let again = save(&mut world, (generation, style), store, 2);
        assert!(
            first >= 4.9,
            "{generation:?} {style:?}: {first} the first time"
        );
        assert!(
            again <= 2.0,
            "{generation:?} {style:?}: {again} round trips"
        );
    }
}

#[test]
fn next_session_of_a_client_anticipates_at_once() {
    let (generation, style) = STYLES[0];
    let mut world = TacticsWorld::new(server(), DELAY, None);
    let store = log_on(&mut world, generation);
    save(&mut world, (generation, style), store, 1);
    world.end(0);
    world.current_pair = world.connect();
    let store = log_on(&mut world, generation);
    let again = save(&mut world, (generation, style), store, 2);
    assert!(again <= 2.0, "{again} round trips");
}

/// Lists a folder of 500 messages with so many rows in a call; returns the round trips.
fn list(world: &mut TacticsWorld, generation: ClientGeneration, store: u32, count: u16) -> f64 {
    let start = world.now;
    let rops = [contents_table(0, 1), set_columns(1)];
    let table = world.rops(generation, &rops, &[store, NO_HANDLE]).handles[1];
    let mut rows = 0;
    while rows < 500 {
        let answer = world.rops(generation, &[query_rows(0, count)], &[table]);
        let count = u16::from_le_bytes([answer.rops[7], answer.rops[8]]);
        assert!(count > 0);
        rows += usize::from(count);
        if generation == ClientGeneration::Chained {
            // The other buffers of a chain have the rest.
            break;
        }
    }
    world.round_trips(start)
}

#[test]
fn folder_of_500_messages_needs_three_round_trips() {
    for (generation, _) in STYLES {
        let mut world = TacticsWorld::new(server(), DELAY, None);
        let store = log_on(&mut world, generation);
        for most in [3.0, 1.0] {
            let round_trips = list(&mut world, generation, store, 40);
            assert!(round_trips <= most, "{generation:?}: {round_trips}");
        }
    }
}

#[test]
fn sealed_list_is_anticipated_beside_unsealed_ones() {
    let mut world = TacticsWorld::new(server(), DELAY, None);
    for most in [3.0, 1.0] {
        for generation in [ClientGeneration::Single, ClientGeneration::Sealed] {
            world.current_pair = world.connect();
            let store = log_on(&mut world, generation);
            // Two calls have all rows.
            let round_trips = list(&mut world, generation, store, 250);
            let answered = world.pairs[world.current_pair].near.answered();
            assert!(round_trips <= most, "{generation:?}: {round_trips}");
            assert!(answered > 0, "{generation:?} {most}");
            world.end(world.current_pair);
        }
    }
}

#[test]
fn list_with_another_count_is_read_ahead() {
    let generation = ClientGeneration::Single;
    let mut world = TacticsWorld::new(server(), DELAY, None);
    let store = log_on(&mut world, generation);
    list(&mut world, generation, store, 40);
    // Another program of the same computer, which has all rows with two calls.
    let round_trips = list(&mut world, generation, store, 250);
    assert!(round_trips <= 2.0, "{round_trips} round trips");
}

#[test]
fn log_on_takes_one_round_trip_a_call() {
    for (generation, _) in STYLES {
        let mut world = TacticsWorld::new(server(), DELAY, None);
        for _ in 0..2 {
            let start = world.now;
            let store = log_on(&mut world, generation);
            world.rops(generation, &[get_properties(0)], &[store]);
            let register = [vec![id::REGISTER_NOTIFICATION, 0, 0, 1, 2, 0, 1]];
            world.rops(generation, &register, &[store, NO_HANDLE]);
            let round_trips = world.round_trips(start);
            assert!(round_trips <= 3.0, "{generation:?}: {round_trips}");
        }
    }
}

#[test]
fn objects_that_the_client_never_opens_are_released() {
    for (generation, style) in STYLES {
        for calls in 1..6 {
            let mut world = TacticsWorld::new(server(), DELAY, None);
            let store = log_on(&mut world, generation);
            save(&mut world, (generation, style), store, 1);
            let before = world.server.open_objects();
            let mut client = OpeningClient {
                world: &mut world,
                generation,
                calls_left: calls,
            };
            client.open(style, store, 2);
            world.wait(Duration::from_secs(1));
            let ahead = world.server.open_objects();
            // Another call than the expected one.
            let rops = [get_properties(0), get_properties(0)];
            let answer = world.rops(generation, &rops, &[store]);
            assert_eq!(answer.rops[2..6], [0; 4]);
            let after = world.server.open_objects();
            let opened = open_objects(style, calls);
            assert_eq!(after - before, opened, "{generation:?} {style:?} {calls}");
            assert!(ahead >= after);
        }
    }
}

/// The objects that the first calls of an action leave open.
fn open_objects(style: OpeningStyle, calls: usize) -> usize {
    match (style, calls) {
        (OpeningStyle::Single, 1 | 2) => 1,
        (OpeningStyle::Single, 3..=5) => 2,
        (OpeningStyle::Combined, 1) => 1,
        (OpeningStyle::Combined, 2 | 3) => 2,
        (OpeningStyle::Single | OpeningStyle::Combined, _) => 3,
    }
}

#[test]
fn late_call_gets_the_servers_present_answer() {
    let (generation, style) = STYLES[2];
    let mut world = TacticsWorld::new(server(), DELAY, None);
    let store = log_on(&mut world, generation);
    save(&mut world, (generation, style), store, 1);
    let answered = world.pairs[0].near.answered();
    let rops = [open_message(0, 1, 2), get_properties(1)];
    let message = world.rops(generation, &rops, &[store, NO_HANDLE]).handles[1];
    world.wait(Duration::from_secs(60));
    let rops = [attachment_table(0, 1), set_columns(1), query_rows(1, 50)];
    let opened = world.rops(generation, &rops, &[message, NO_HANDLE]);
    assert_eq!(opened.rops[2..6], [0; 4]);
    assert_eq!(world.pairs[0].near.answered(), answered);
}
