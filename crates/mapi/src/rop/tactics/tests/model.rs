//! Random calls of a client, answered directly and through the machines: the answers are equal.
//!
//! A failure prints its seed.

use std::time::Duration;

use bytes::Bytes;
use vocab::SeededRandom;

use super::super::super::buffer::{NO_HANDLE, RopBuffer};
use super::super::super::id;
use super::server::{MailServer, strip_events};
use super::{
    ClientGeneration, TacticsWorld, contents_table, copy_messages, get_buffer, logon, noise,
    open_attachment, open_message, open_stream, plain, query_rows, read_stream, save, seek_stream,
    set_columns, write_stream,
};
use crate::emsmdb::rpc::{RpcRequest, RpcResponse};

const CALLS: usize = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelRole {
    Reader(u16),
    Writer,
    Table(u16),
    Source(u16),
}

fn server(random: &mut SeededRandom) -> MailServer {
    let mut server = MailServer::new();
    for attachment in [1000, 1001, 2000] {
        let length = random.next_u64() % 400_000;
        server.contents.insert(attachment, noise(length as usize));
    }
    server.rows = (random.next_u64() % 600) as usize;
    server.event_every = (random.next_u64() % 8) as u32;
    server
}

/// The client, which chooses its next call by what it has open.
struct ModelClient {
    random: SeededRandom,
    generation: ClientGeneration,
    store: u32,
    objects: Vec<(u32, ModelRole)>,
    /// Transfers, also those that are released.
    sources: Vec<u32>,
}

impl ModelClient {
    fn below(&mut self, most: u64) -> u64 {
        self.random.next_u64() % most
    }

    /// ROPs, handles, and the role of the object in the last place if one is opened.
    fn next(&mut self) -> (Vec<Vec<u8>>, Vec<u32>, Option<ModelRole>) {
        let choice = self.below(20);
        if self.objects.is_empty() || choice == 0 {
            return self.open();
        }
        let place = self.below(self.objects.len() as u64) as usize;
        let (handle, role) = match choice {
            1..=14 => *self.objects.last().unwrap(),
            _ => self.objects[place],
        };
        if choice == 19 {
            self.objects.retain(|(other, _)| *other != handle);
            return (vec![plain(id::RELEASE, 0)], vec![handle], None);
        }
        let is_odd = self.below(12) == 0;
        let rops = match role {
            ModelRole::Reader(size) if is_odd => match self.below(5) {
                0 => vec![seek_stream(0, 0, (size / 3).into())],
                1 => vec![seek_stream(0, 1, -100), read_stream(0, size)],
                2 => vec![plain(id::GET_STREAM_SIZE, 0)],
                3 => vec![read_stream(0, size), plain(id::GET_STREAM_SIZE, 0)],
                _ => vec![read_stream(0, size / 2)],
            },
            ModelRole::Reader(size) => vec![read_stream(0, size)],
            ModelRole::Writer if is_odd => match self.below(4) {
                0 => vec![seek_stream(0, 0, 10)],
                1 => vec![plain(id::COMMIT_STREAM, 0)],
                2 => vec![seek_stream(0, 0, 0), read_stream(0, 5000)],
                _ => vec![save(id::SAVE_CHANGES_ATTACHMENT, 0)],
            },
            ModelRole::Writer => {
                let length = self.below(20_000) as usize;
                vec![write_stream(0, &noise(length))]
            }
            ModelRole::Table(count) if is_odd => match self.below(3) {
                0 => vec![vec![id::SEEK_ROW, 0, 0, 1, 0xfd, 0xff, 0xff, 0xff, 0]],
                1 => vec![query_rows(0, count / 2 + 1)],
                _ => vec![set_columns(0), query_rows(0, count)],
            },
            ModelRole::Table(count) => vec![query_rows(0, count)],
            ModelRole::Source(size) => vec![get_buffer(0, size)],
        };
        (rops, vec![handle], None)
    }

    fn open(&mut self) -> (Vec<Vec<u8>>, Vec<u32>, Option<ModelRole>) {
        let size = 500 + self.below(31_000) as u16;
        let message = 1 + self.below(2) as u32;
        let attachment = self.below(2) as u32;
        let inside = [
            open_message(0, 1, message),
            open_attachment(1, 2, attachment),
        ];
        let four = vec![self.store, NO_HANDLE, NO_HANDLE, NO_HANDLE];
        match self.below(6) {
            0 | 1 => {
                let rops = [&inside[..], &[open_stream(2, 3, 0)]].concat();
                (rops, four, Some(ModelRole::Reader(size)))
            }
            2 => {
                let rops = [&inside[..], &[open_stream(2, 3, 0), read_stream(3, size)]].concat();
                (rops, four, Some(ModelRole::Reader(size)))
            }
            3 => {
                let rops = [&inside[..], &[open_stream(2, 3, 1)]].concat();
                (rops, four, Some(ModelRole::Writer))
            }
            4 => {
                let count = 1 + self.below(60) as u16;
                let rops = vec![contents_table(0, 1), set_columns(1)];
                (
                    rops,
                    vec![self.store, NO_HANDLE],
                    Some(ModelRole::Table(count)),
                )
            }
            _ => {
                let rops = vec![copy_messages(0, 1)];
                (
                    rops,
                    vec![self.store, NO_HANDLE],
                    Some(ModelRole::Source(size)),
                )
            }
        }
    }
}

/// The buffers of an answer without its events, and the events.
fn read(response: &RpcResponse) -> (Vec<RopBuffer>, Vec<u32>) {
    let mut events = Vec::new();
    let buffers = response.buffers.iter().map(|one| {
        let mut buffer = RopBuffer::read(&one.bytes).unwrap();
        events.extend(strip_events(&mut buffer.rops));
        buffer
    });
    (buffers.collect(), events)
}

/// Runs one seed with so many connections of one session; returns how many of the client's calls
/// were answered here.
fn run(seed: u64, connections: usize) -> u64 {
    let mut random = SeededRandom::from_seed(seed);
    let generation = match random.next_u64() % 3 {
        0 => ClientGeneration::Xp,
        1 => ClientGeneration::Single,
        _ => ClientGeneration::Chained,
    };
    let start = random.next_u64();
    let mut direct = server(&mut SeededRandom::from_seed(start));
    let delay = Duration::from_millis(1 + random.next_u64() % 200);
    let rate = random.next_u64().is_multiple_of(2).then_some(1_000_000.0);
    let far = server(&mut SeededRandom::from_seed(start));
    let mut world = TacticsWorld::new(far, delay, rate);
    for _ in 1..connections {
        world.connect();
    }
    let mut ask =
        |world: &mut TacticsWorld, pair: usize, request: &RpcRequest, pause: u64| -> RopBuffer {
            let opnum = request.envelope.opnum();
            let stub: Bytes = direct.call(opnum, &request.write());
            let expected = RpcResponse::read(opnum, &stub).unwrap();
            world.wait(Duration::from_millis(pause));
            let given = world.call_on(pair, request);
            let (expected, _) = read(&expected);
            let (given, events) = read(&given);
            assert_eq!(given, expected, "seed {seed}");
            SEEN.with_borrow_mut(|seen| seen.extend(events));
            expected[0].clone()
        };
    SEEN.with_borrow_mut(Vec::clear);
    let request = generation.request(&[logon()], &[NO_HANDLE]);
    let store = ask(&mut world, 0, &request, 0).handles[0];
    let mut client = ModelClient {
        random,
        generation,
        store,
        objects: Vec::new(),
        sources: Vec::new(),
    };
    // The other connections begin to be used at a random call.
    let alone = match connections {
        1 => CALLS,
        _ => client.below(CALLS as u64) as usize,
    };
    for number in 0..CALLS {
        let random_pair = client.below(connections as u64) as usize;
        let (rops, handles, opened) = client.next();
        // A transfer stays in the connection that has its answers.
        let is_transfer = handles.iter().any(|handle| client.sources.contains(handle));
        let pair = match number < alone || is_transfer {
            true => 0,
            false => random_pair,
        };
        let pause = match client.below(3) {
            0 => 0,
            _ => client.below(300),
        };
        let request = client.generation.request(&rops, &handles);
        let answer = ask(&mut world, pair, &request, pause);
        let handle = *answer.handles.last().unwrap();
        if let Some(role) = opened
            && handle != NO_HANDLE
        {
            client.objects.push((handle, role));
            if matches!(role, ModelRole::Source(_)) {
                client.sources.push(handle);
            }
        }
    }
    world.wait(Duration::from_secs(10));
    SEEN.with_borrow(|seen| {
        let in_order = seen.iter().copied().eq(1..=seen.len() as u32);
        assert!(in_order, "seed {seed}: events {seen:?}");
    });
    assert_eq!(world.server.contents, direct.contents, "seed {seed}");
    world.pairs.iter().map(|pair| pair.near.answered()).sum()
}

thread_local! {
    static SEEN: std::cell::RefCell<Vec<u32>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[test]
fn random_calls_get_the_direct_answers() {
    let answered: u64 = (0..100).map(|seed| run(seed, 1)).sum();
    // Most of the calls go on reading or writing.
    assert!(answered > 100 * CALLS as u64 / 4, "{answered} answered");
}

#[test]
fn random_calls_on_two_connections_get_direct_answers() {
    let answered: u64 = (0..50).map(|seed| run(seed, 2)).sum();
    assert!(answered > 0);
}

#[test]
#[ignore = "takes minutes"]
fn random_calls_get_the_direct_answers_long() {
    for seed in 100..2100 {
        run(seed, 1);
        run(seed, 2);
    }
}
