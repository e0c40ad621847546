//! A client and a server in virtual time, with the machines between them and without.

mod anticipation;
mod drops;
mod model;
pub(crate) mod server;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use accelerate::shared::SharedHandle;
use bytes::{BufMut, Bytes, BytesMut};
use vocab::{FlowSegment, Time};

use super::super::buffer::{NO_HANDLE, RopBuffer};
use super::super::id;
use super::{
    CallOutcome, FarOutput, NearOutput, SessionPlace, SessionTable, TacticsFar, TacticsNear,
};
use crate::emsmdb::rpc::{CHAIN, NO_XOR_MAGIC, RequestEnvelope, RpcRequest, RpcResponse};
use crate::emsmdb::{ContextHandle, ExtendedFlags, PlainBuffer};
use server::{MailServer, TOO_BIG, strip_events};

const CONTEXT: ContextHandle = ContextHandle([3; 20]);
const OC1: f64 = 51_840_000.0 / 8.0;

/// The envelope of a client's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientGeneration {
    Xp,
    Single,
    /// As `Single`, in an encrypted session.
    Sealed,
    Chained,
    /// Outlook 2013, over HTTP.
    Http,
}

impl ClientGeneration {
    fn envelope(self) -> RequestEnvelope {
        match self {
            Self::Xp => RequestEnvelope::Xp {
                most: 0x7fff,
                out_max: 0x7fff,
            },
            Self::Single | Self::Sealed | Self::Chained => RequestEnvelope::Extended {
                flags: match self {
                    Self::Chained => CHAIN,
                    Self::Sealed => NO_XOR_MAGIC,
                    Self::Xp | Self::Single | Self::Http => 0,
                },
                out_max: if self == Self::Chained {
                    0x1_8008
                } else {
                    0x8008
                },
                auxiliary: Bytes::new(),
                auxiliary_max: 0x1008,
            },
            Self::Http => RequestEnvelope::Http {
                flags: CHAIN,
                out_max: 0x1_8008,
                auxiliary: Bytes::new(),
                request_id: Bytes::from_static(b"{guid}:1"),
            },
        }
    }

    fn request(self, rops: &[Vec<u8>], handles: &[u32]) -> RpcRequest {
        let buffer = RopBuffer {
            rops: rops.concat().into(),
            handles: handles.to_vec(),
        };
        RpcRequest {
            context: CONTEXT,
            envelope: self.envelope(),
            buffers: vec![PlainBuffer {
                flags: ExtendedFlags(match self {
                    Self::Sealed => ExtendedFlags::LAST,
                    Self::Xp | Self::Single | Self::Chained | Self::Http => {
                        ExtendedFlags::XOR_MAGIC | ExtendedFlags::LAST
                    }
                }),
                bytes: buffer.write(),
            }],
        }
    }
}

/// One direction of the WAN.
#[derive(Default)]
struct WanDirection {
    free_at: Time,
    queue: VecDeque<(Time, FlowSegment)>,
    bytes: usize,
}

/// The machines of one connection, and the WAN between them.
struct MachinePair {
    near: TacticsNear,
    far: TacticsFar,
    up: WanDirection,
    down: WanDirection,
    /// The machines have ended the connection, or it broke.
    is_closed: bool,
}

/// The connections of a client, and the server.
struct TacticsWorld {
    now: Time,
    delay: Duration,
    /// Bytes a second; none is without limit.
    rate: Option<f64>,
    pairs: Vec<MachinePair>,
    /// The connection of the client's calls.
    current_pair: usize,
    sessions: SharedHandle<SessionTable>,
    server: MailServer,
    answers: BTreeMap<u64, CallOutcome>,
    next_call: u64,
    /// Calls that the server answers with a fault.
    faults: VecDeque<u32>,
}

impl TacticsWorld {
    fn new(server: MailServer, delay: Duration, rate: Option<f64>) -> Self {
        let mut world = Self {
            now: Time::ZERO,
            delay,
            rate,
            pairs: Vec::new(),
            current_pair: 0,
            sessions: SharedHandle::new(SessionTable::default()),
            server,
            answers: BTreeMap::new(),
            next_call: 0,
            faults: VecDeque::new(),
        };
        world.connect();
        world
    }

    /// Opens one more connection, and returns its place.
    fn connect(&mut self) -> usize {
        let flow = self.pairs.len();
        let server = [198, 18, 2, 2].into();
        let client = [198, 18, 1, 2].into();
        let place = SessionPlace::new(self.sessions.clone(), flow as u64, client, server);
        self.pairs.push(MachinePair {
            near: TacticsNear::new(true),
            far: TacticsFar::new(true, place),
            up: WanDirection::default(),
            down: WanDirection::default(),
            is_closed: false,
        });
        flow
    }

    fn drain(&mut self) {
        loop {
            let drained: Vec<bool> = (0..self.pairs.len())
                .map(|at| self.drain_pair(at))
                .collect();
            let woken = self.sessions.with(SessionTable::poll_wake);
            if let Some(flow) = woken
                && !self.pairs[flow as usize].is_closed
            {
                self.pairs[flow as usize].far.woken(self.now);
            }
            if woken.is_none() && !drained.contains(&true) {
                return;
            }
        }
    }

    /// Handles the next output of a connection's machines.
    fn drain_pair(&mut self, at: usize) -> bool {
        let (now, delay, rate) = (self.now, self.delay, self.rate);
        let pair = &mut self.pairs[at];
        if pair.is_closed {
            return false;
        }
        if let Some(output) = pair.near.poll_output() {
            match output {
                NearOutput::Answer { call, outcome } => {
                    self.answers.insert(call, outcome);
                }
                NearOutput::ToFar(segment) => send(&mut pair.up, now, delay, rate, segment),
                NearOutput::Close => self.break_off(at),
            }
            return true;
        }
        let Some(output) = pair.far.poll_output() else {
            return false;
        };
        match output {
            FarOutput::Call { opnum, stub } => {
                let answer = self.server.call(opnum, &stub);
                let outcome = match self.faults.front() == Some(&self.server.calls) {
                    true => CallOutcome::Fault(5),
                    false => CallOutcome::Response(answer),
                };
                pair.far.answered(now, outcome);
            }
            FarOutput::ToNear(segment) => send(&mut pair.down, now, delay, rate, segment),
            FarOutput::Close => self.break_off(at),
        }
        true
    }

    /// A connection breaks: what is under way in it is lost, and the calls of its machines as well.
    fn break_off(&mut self, at: usize) {
        let pair = &mut self.pairs[at];
        if pair.is_closed {
            return;
        }
        pair.is_closed = true;
        (pair.up, pair.down) = <(WanDirection, WanDirection)>::default();
        self.sessions.with(|sessions| sessions.ended(at as u64));
    }

    /// The client ends a connection. The far machine gets all that is under way, and undoes what the
    /// client has not taken.
    fn end(&mut self, at: usize) {
        while !self.pairs[at].up.queue.is_empty() && self.step(None) {}
        self.pairs[at].far.finish(self.now);
        self.drain();
        assert!(self.pairs[at].far.is_idle());
        self.break_off(at);
    }

    /// Delivers the next segment, if it arrives before `until`.
    fn step(&mut self, until: Option<Time>) -> bool {
        self.drain();
        let arrival = |direction: &WanDirection| direction.queue.front().map(|(at, _)| *at);
        let next = self.pairs.iter().enumerate().flat_map(|(place, pair)| {
            let up = arrival(&pair.up).map(|at| (at, place, true));
            up.into_iter()
                .chain(arrival(&pair.down).map(|at| (at, place, false)))
        });
        let Some((at, place, is_up)) = next.min_by_key(|(at, ..)| *at) else {
            return false;
        };
        if until.is_some_and(|until| at > until) {
            return false;
        }
        self.now = self.now.max(at);
        let pair = &mut self.pairs[place];
        if is_up {
            let (_, segment) = pair.up.queue.pop_front().unwrap();
            assert!(pair.far.takes(&segment));
            pair.far.segment(self.now, segment);
        } else {
            let (_, segment) = pair.down.queue.pop_front().unwrap();
            assert!(pair.near.takes(&segment));
            pair.near.segment(self.now, segment);
        }
        self.drain();
        true
    }

    /// Lets time pass.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(Some(until)) {}
        self.now = until;
    }

    /// The client pauses in a connection.
    fn rest(&mut self, pair: usize) {
        let near = &mut self.pairs[pair].near;
        near.rest(self.now);
        self.drain();
    }

    /// Calls, and waits for the answer.
    fn call(&mut self, request: &RpcRequest) -> RpcResponse {
        self.call_on(self.current_pair, request)
    }

    /// Calls on one of the connections, and waits for the answer.
    fn call_on(&mut self, pair: usize, request: &RpcRequest) -> RpcResponse {
        let call = self.begin_on(pair, request);
        self.finish_call(call, request)
    }

    fn begin_on(&mut self, pair: usize, request: &RpcRequest) -> u64 {
        let call = self.next_call;
        self.next_call += 1;
        let opnum = request.envelope.opnum();
        let near = &mut self.pairs[pair].near;
        near.call(self.now, call, opnum, request.write());
        self.drain();
        call
    }

    fn finish_call(&mut self, call: u64, request: &RpcRequest) -> RpcResponse {
        self.answer_until(call, request, None)
            .expect("the call has no answer")
    }

    /// Waits for the answer to a call. There is none if the connection ends or the time is up.
    fn answer_until(
        &mut self,
        call: u64,
        request: &RpcRequest,
        until: Option<Time>,
    ) -> Option<RpcResponse> {
        loop {
            if let Some(outcome) = self.answers.remove(&call) {
                let CallOutcome::Response(stub) = outcome else {
                    panic!("the call failed");
                };
                let response = RpcResponse::read(request.envelope.opnum(), &stub);
                return Some(response.unwrap());
            }
            if !self.step(until) {
                return None;
            }
        }
    }

    fn rops(
        &mut self,
        generation: ClientGeneration,
        rops: &[Vec<u8>],
        handles: &[u32],
    ) -> RopBuffer {
        let response = self.call(&generation.request(rops, handles));
        RopBuffer::read(&response.buffers[0].bytes).unwrap()
    }

    fn round_trips(&self, since: Time) -> f64 {
        self.now.since(since).as_secs_f64() / (2.0 * self.delay.as_secs_f64())
    }
}

fn send(
    direction: &mut WanDirection,
    now: Time,
    delay: Duration,
    rate: Option<f64>,
    segment: FlowSegment,
) {
    let mut leaves = direction.free_at.max(now);
    if let Some(rate) = rate {
        leaves += Duration::from_secs_f64(segment.bytes.len() as f64 / rate);
    }
    direction.free_at = leaves;
    direction.bytes += segment.bytes.len();
    direction.queue.push_back((leaves + delay, segment));
}

pub(crate) fn logon() -> Vec<u8> {
    let mut rop = vec![id::LOGON, 0, 0];
    rop.extend([0; 9]);
    rop.extend([2, 0, b'/', 0]);
    rop
}

pub(crate) fn open_message(input: u8, output: u8, message: u32) -> Vec<u8> {
    let mut rop = vec![id::OPEN_MESSAGE, 0, input, output];
    rop.extend([0; 11]);
    rop.extend(u64::from(message).to_le_bytes());
    rop
}

pub(crate) fn open_attachment(input: u8, output: u8, number: u32) -> Vec<u8> {
    let mut rop = vec![id::OPEN_ATTACHMENT, 0, input, output, 0];
    rop.extend(number.to_le_bytes());
    rop
}

pub(crate) fn open_stream(input: u8, output: u8, mode: u8) -> Vec<u8> {
    vec![id::OPEN_STREAM, 0, input, output, 2, 1, 1, 0x37, mode]
}

pub(crate) fn read_stream(input: u8, size: u16) -> Vec<u8> {
    let [low, high] = size.to_le_bytes();
    vec![id::READ_STREAM, 0, input, low, high]
}

pub(crate) fn write_stream(input: u8, data: &[u8]) -> Vec<u8> {
    let mut rop = vec![id::WRITE_STREAM, 0, input];
    rop.extend((data.len() as u16).to_le_bytes());
    rop.extend(data);
    rop
}

fn seek_stream(input: u8, origin: u8, offset: i64) -> Vec<u8> {
    let mut rop = vec![id::SEEK_STREAM, 0, input, origin];
    rop.extend(offset.to_le_bytes());
    rop
}

pub(crate) fn create_message(input: u8, output: u8) -> Vec<u8> {
    let mut rop = vec![id::CREATE_MESSAGE, 0, input, output];
    rop.extend([0; 11]);
    rop
}

fn contents_table(input: u8, output: u8) -> Vec<u8> {
    vec![id::GET_CONTENTS_TABLE, 0, input, output, 0]
}

fn set_columns(input: u8) -> Vec<u8> {
    let mut rop = vec![id::SET_COLUMNS, 0, input, 0, 2, 0];
    rop.extend(0x6748_0014_u32.to_le_bytes());
    rop.extend(0x674a_0014_u32.to_le_bytes());
    rop
}

fn query_rows(input: u8, count: u16) -> Vec<u8> {
    let [low, high] = count.to_le_bytes();
    vec![id::QUERY_ROWS, 0, input, 0, 1, low, high]
}

fn get_properties(input: u8) -> Vec<u8> {
    let mut rop = vec![id::GET_PROPERTIES_SPECIFIC, 0, input, 0, 0, 0, 0, 1, 0];
    rop.extend(0x6748_0014_u32.to_le_bytes());
    rop
}

fn attachment_table(input: u8, output: u8) -> Vec<u8> {
    vec![id::GET_ATTACHMENT_TABLE, 0, input, output, 0]
}

pub(crate) fn copy_messages(input: u8, output: u8) -> Vec<u8> {
    vec![id::SOURCE_COPY_MESSAGES, 0, input, output, 0, 0, 0, 0]
}

pub(crate) fn get_buffer(input: u8, size: u16) -> Vec<u8> {
    let [low, high] = size.to_le_bytes();
    vec![id::SOURCE_GET_BUFFER, 0, input, low, high]
}

pub(crate) fn plain(id: u8, input: u8) -> Vec<u8> {
    vec![id, 0, input]
}

pub(crate) fn save(id: u8, input: u8) -> Vec<u8> {
    vec![id, 0, input, input, 0]
}

pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut random = vocab::SeededRandom::from_seed(5);
    (0..length).map(|_| random.next_u64() as u8).collect()
}

pub(crate) fn server_with(length: usize) -> MailServer {
    let mut server = MailServer::new();
    server.contents.insert(1000, noise(length));
    server
}

/// Opens message 1 and its attachment; returns the handles of store, message, attachment, stream.
fn open(world: &mut TacticsWorld, generation: ClientGeneration) -> [u32; 4] {
    let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
    let message = world.rops(generation, &[open_message(0, 1, 1)], &[store, NO_HANDLE]);
    let message = message.handles[1];
    let rops = [open_attachment(0, 1, 0), open_stream(1, 2, 0)];
    let opened = world.rops(generation, &rops, &[message, NO_HANDLE, NO_HANDLE]);
    [store, message, opened.handles[1], opened.handles[2]]
}

pub(crate) fn data_of(response: &RpcResponse) -> Vec<u8> {
    let mut data = Vec::new();
    for one in &response.buffers {
        let buffer = RopBuffer::read(&one.bytes).unwrap();
        let at = if buffer.rops[0] == id::READ_STREAM {
            8
        } else {
            15
        };
        let length = u16::from_le_bytes([buffer.rops[at - 2], buffer.rops[at - 1]]);
        data.extend_from_slice(&buffer.rops[at..at + usize::from(length)]);
    }
    data
}

/// Reads a stream or a transfer to its end.
fn read_all(world: &mut TacticsWorld, request: &RpcRequest, length: usize) -> Vec<u8> {
    let mut data = Vec::new();
    while data.len() < length {
        let more = data_of(&world.call(request));
        assert!(!more.is_empty());
        data.extend(more);
    }
    data
}

#[test]
fn attachment_is_saved_at_link_rate() {
    const LENGTH: usize = 10_000_000;
    // A chained answer has 98 kB. The first window of the read-ahead holds two of them, less than the
    // path, and the first one that arrives only measures the path. These idle round trips cost 0.03
    // of a transfer of 1.5 s.
    for (generation, target) in [
        (ClientGeneration::Xp, 0.9),
        (ClientGeneration::Single, 0.9),
        (ClientGeneration::Chained, 0.85),
        (ClientGeneration::Http, 0.85),
    ] {
        let server = server_with(LENGTH);
        let mut world = TacticsWorld::new(server, Duration::from_millis(50), Some(OC1));
        let [.., stream] = open(&mut world, generation);
        let start = world.now;
        let request = generation.request(&[read_stream(0, 32_000)], &[stream]);
        let data = read_all(&mut world, &request, LENGTH);
        assert_eq!(data, world.server.contents[&1000]);
        let seconds = world.now.since(start).as_secs_f64();
        let share = LENGTH as f64 / seconds / OC1;
        assert!(share >= target, "{generation:?}: {share:.3} of the link");
    }
}

#[test]
fn message_is_sent_at_link_rate() {
    const LENGTH: usize = 10_000_000;
    let data = noise(LENGTH);
    for generation in [
        ClientGeneration::Xp,
        ClientGeneration::Single,
        ClientGeneration::Http,
    ] {
        let server = MailServer::new();
        let mut world = TacticsWorld::new(server, Duration::from_millis(50), Some(OC1));
        let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
        let rops = [
            create_message(0, 1),
            vec![id::CREATE_ATTACHMENT, 0, 1, 2],
            open_stream(2, 3, 2),
        ];
        let opened = world.rops(generation, &rops, &[store, NO_HANDLE, NO_HANDLE, NO_HANDLE]);
        let [_, message, attachment, stream] = opened.handles[..] else {
            panic!("four handles");
        };
        let start = world.now;
        for chunk in data.chunks(31_000) {
            world.rops(generation, &[write_stream(0, chunk)], &[stream]);
        }
        let rops = [
            plain(id::COMMIT_STREAM, 0),
            plain(id::RELEASE, 0),
            save(id::SAVE_CHANGES_ATTACHMENT, 1),
            save(id::SAVE_CHANGES_MESSAGE, 2),
        ];
        let saved = world.rops(generation, &rops, &[stream, attachment, message]);
        assert_eq!(saved.rops[2..6], [0; 4]);
        let seconds = world.now.since(start).as_secs_f64();
        let share = LENGTH as f64 / seconds / OC1;
        assert!(share >= 0.9, "{generation:?}: {share:.3} of the link");
        assert!(world.server.contents.values().any(|sent| *sent == data));
    }
}

#[test]
fn refused_write_fails_everything_around_it() {
    let generation = ClientGeneration::Single;
    let mut server = MailServer::new();
    server.stream_max = 50_000;
    let mut world = TacticsWorld::new(server, Duration::from_millis(50), None);
    let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
    let rops = [
        create_message(0, 1),
        vec![id::CREATE_ATTACHMENT, 0, 1, 2],
        open_stream(2, 3, 2),
    ];
    let opened = world.rops(generation, &rops, &[store, NO_HANDLE, NO_HANDLE, NO_HANDLE]);
    let [_, message, attachment, stream] = opened.handles[..] else {
        panic!("four handles");
    };
    for _ in 0..4 {
        let written = world.rops(generation, &[write_stream(0, &[7; 30_000])], &[stream]);
        assert_eq!(written.rops[2..6], [0; 4]);
    }
    let results = [
        (plain(id::COMMIT_STREAM, 0), stream),
        (write_stream(0, &[7; 10]), stream),
        (save(id::SAVE_CHANGES_ATTACHMENT, 0), attachment),
        (save(id::SAVE_CHANGES_MESSAGE, 0), message),
    ];
    for (rop, handle) in results {
        let answer = world.rops(generation, &[rop], &[handle]);
        assert_eq!(answer.rops[2..6], TOO_BIG.to_le_bytes());
    }
    assert_eq!(world.server.saved, 0);
    // The store is not inside the stream, and another message begins anew.
    let other = world.rops(generation, &[create_message(0, 1)], &[store, NO_HANDLE]);
    let other = other.handles[1];
    let saved = world.rops(generation, &[save(id::SAVE_CHANGES_MESSAGE, 0)], &[other]);
    assert_eq!(saved.rops[2..6], [0; 4]);
}

#[test]
fn write_that_met_a_fault_fails_with_it() {
    let generation = ClientGeneration::Single;
    let mut world = TacticsWorld::new(MailServer::new(), Duration::from_millis(50), None);
    let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
    let rops = [
        create_message(0, 1),
        vec![id::CREATE_ATTACHMENT, 0, 1, 2],
        open_stream(2, 3, 2),
    ];
    let opened = world.rops(generation, &rops, &[store, NO_HANDLE, NO_HANDLE, NO_HANDLE]);
    let [_, message, attachment, stream] = opened.handles[..] else {
        panic!("four handles");
    };
    // The server refuses the third of these writes as a call.
    world.faults.push_back(world.server.calls + 3);
    for _ in 0..5 {
        let written = world.rops(generation, &[write_stream(0, &[7; 30_000])], &[stream]);
        assert_eq!(written.rops[2..6], [0; 4]);
    }
    let results = [
        (plain(id::COMMIT_STREAM, 0), stream),
        (save(id::SAVE_CHANGES_ATTACHMENT, 0), attachment),
        (save(id::SAVE_CHANGES_MESSAGE, 0), message),
    ];
    for (rop, handle) in results {
        let request = generation.request(&[rop], &[handle]);
        let call = world.begin_on(0, &request);
        let until = world.now + Duration::from_secs(1);
        while !world.answers.contains_key(&call) && world.step(Some(until)) {}
        assert_eq!(world.answers.remove(&call), Some(CallOutcome::Fault(5)));
    }
    assert_eq!(world.server.saved, 0);
}

#[test]
fn transfer_arrives_once_in_any_sizes() {
    for generation in [
        ClientGeneration::Xp,
        ClientGeneration::Single,
        ClientGeneration::Chained,
        ClientGeneration::Http,
    ] {
        let server = MailServer::new();
        let mut world = TacticsWorld::new(server, Duration::from_millis(50), None);
        let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
        let opened = world.rops(generation, &[copy_messages(0, 1)], &[store, NO_HANDLE]);
        let source = opened.handles[1];
        let mut data = Vec::new();
        for size in [30_000, 30_000, 12_000, 30_000, 500, 31_000]
            .into_iter()
            .cycle()
        {
            let answer = world.call(&generation.request(&[get_buffer(0, size)], &[source]));
            data.extend(data_of(&answer));
            if data.len() == world.server.transfer.len() {
                break;
            }
            assert!(data.len() < world.server.transfer.len());
        }
        assert_eq!(data, world.server.transfer);
    }
}

#[test]
fn events_keep_their_order() {
    let generation = ClientGeneration::Single;
    let mut server = server_with(2_000_000);
    server.event_every = 3;
    let mut world = TacticsWorld::new(server, Duration::from_millis(50), None);
    let [.., stream] = open(&mut world, generation);
    let mut events = Vec::new();
    for size in [20_000; 60].into_iter().chain([100; 40]) {
        let mut answer = world.rops(generation, &[read_stream(0, size)], &[stream]);
        events.extend(strip_events(&mut answer.rops));
    }
    assert!(events.len() > 10, "{} events", events.len());
    assert!(
        events.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "{events:?}"
    );
}

#[test]
fn rows_on_second_connection_keep_event_order() {
    let generation = ClientGeneration::Single;
    let mut server = MailServer::new();
    server.event_every = 1;
    let mut world = TacticsWorld::new(server, Duration::from_millis(50), None);
    let second = world.connect();
    let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
    let rops = [contents_table(0, 1), set_columns(1), query_rows(1, 10)];
    let opened = world.rops(generation, &rops, &[store, NO_HANDLE]);
    // The rows that are read ahead bring events that the client gets later.
    world.wait(Duration::from_secs(1));
    let more = generation.request(&[query_rows(0, 10)], &[opened.handles[1]]);
    let response = world.call_on(second, &more);
    let mut answer = RopBuffer::read(&response.buffers[0].bytes).unwrap();
    let mut events = strip_events(&mut answer.rops);
    assert!(events.len() > 1, "{events:?}");
    assert!(events.is_sorted(), "{events:?}");
    assert_eq!(events.pop(), Some(world.server.calls));
}

#[test]
fn events_without_room_go_to_the_next_connection() {
    let generation = ClientGeneration::Single;
    let mut server = MailServer::new();
    server.event_every = 1;
    server.rows = 5000;
    let mut world = TacticsWorld::new(server, Duration::from_millis(50), None);
    let second = world.connect();
    let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
    let rops = [contents_table(0, 1), set_columns(1), query_rows(1, 10)];
    let opened = world.rops(generation, &rops, &[store, NO_HANDLE]);
    world.wait(Duration::from_secs(1));
    // These rows fill their answer.
    let rows = generation.request(&[query_rows(0, 3000)], &[opened.handles[1]]);
    let properties = generation.request(&[get_properties(0)], &[store]);
    let mut events = Vec::new();
    for (pair, request) in [(second, &rows), (0, &properties), (second, &properties)] {
        let response = world.call_on(pair, request);
        let mut answer = RopBuffer::read(&response.buffers[0].bytes).unwrap();
        events.extend(strip_events(&mut answer.rops));
    }
    assert!(events.is_sorted(), "{events:?}");
    assert_eq!(events.len() as u32, 1 + world.server.calls - events[0]);
}

/// Makes a call, and returns its answer without the events, which it adds to `events`.
fn rops_and_events(
    world: &mut TacticsWorld,
    pair: usize,
    request: &RpcRequest,
    events: &mut Vec<u32>,
) -> RopBuffer {
    let response = world.call_on(pair, request);
    let mut answer = RopBuffer::read(&response.buffers[0].bytes).unwrap();
    events.extend(strip_events(&mut answer.rops));
    answer
}

fn are_consecutive(events: &[u32]) -> bool {
    events.windows(2).all(|pair| pair[0] + 1 == pair[1])
}

#[test]
fn events_longer_than_an_answer_change_the_connection() {
    let generation = ClientGeneration::Single;
    let mut server = server_with(2_000_000);
    server.event_every = 1;
    server.events_at_once = 100;
    let mut world = TacticsWorld::new(server, Duration::from_millis(50), None);
    let second = world.connect();
    let [store, .., stream] = open(&mut world, generation);
    let read = generation.request(&[read_stream(0, 1_000)], &[stream]);
    let mut events = Vec::new();
    rops_and_events(&mut world, 0, &read, &mut events);
    world.wait(Duration::from_secs(1));
    let properties = generation.request(&[get_properties(0)], &[store]);
    for pair in [second, 0].into_iter().cycle().take(10) {
        rops_and_events(&mut world, pair, &properties, &mut events);
    }
    // An answer has room for 3,200 events.
    assert!(events.len() > 5_000, "{} events", events.len());
    assert!(are_consecutive(&events));
    assert_eq!(events.last(), Some(&(100 * world.server.calls)));
}

#[test]
fn events_behind_releases_of_failed_batch_arrive() {
    let generation = ClientGeneration::Single;
    let mut server = MailServer::new();
    server.stream_max = 50_000;
    server.event_every = 1;
    let mut world = TacticsWorld::new(server, Duration::from_millis(50), None);
    let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
    let rops = [
        create_message(0, 1),
        vec![id::CREATE_ATTACHMENT, 0, 1, 2],
        open_stream(2, 3, 2),
    ];
    let opened = world.rops(generation, &rops, &[store, NO_HANDLE, NO_HANDLE, NO_HANDLE]);
    let [_, message, attachment, stream] = opened.handles[..] else {
        panic!("four handles");
    };
    let mut events = Vec::new();
    let write = generation.request(&[write_stream(0, &[7; 30_000])], &[stream]);
    for _ in 0..3 {
        rops_and_events(&mut world, 0, &write, &mut events);
    }
    let rops = [
        plain(id::RELEASE, 1),
        plain(id::RELEASE, 2),
        save(id::SAVE_CHANGES_MESSAGE, 0),
    ];
    let batch = generation.request(&rops, &[message, stream, attachment]);
    let answer = rops_and_events(&mut world, 0, &batch, &mut events);
    assert_eq!(answer.rops[2..6], TOO_BIG.to_le_bytes());
    assert_eq!(world.server.open_objects(), 2);
    let properties = generation.request(&[get_properties(0)], &[store]);
    rops_and_events(&mut world, 0, &properties, &mut events);
    assert!(are_consecutive(&events), "{events:?}");
    assert_eq!(events.last(), Some(&world.server.calls));
}

#[test]
fn no_event_follows_rops_without_room() {
    let generation = ClientGeneration::Single;
    let mut server = server_with(2_000_000);
    server.event_every = 1;
    let mut world = TacticsWorld::new(server, Duration::from_millis(50), None);
    let [store, .., stream] = open(&mut world, generation);
    let mut events = Vec::new();
    let read = generation.request(&[read_stream(0, 20_000)], &[stream]);
    rops_and_events(&mut world, 0, &read, &mut events);
    world.wait(Duration::from_secs(1));
    // The first three ROPs have room, and the client sends the fourth one again.
    let next = world.server.calls + 1;
    world.server.room_for.insert(next, 3);
    let rops = [get_properties(0), get_properties(0), get_properties(0)];
    let batch = generation.request(&[&rops[..], &[get_properties(0)]].concat(), &[store]);
    let response = world.call(&batch);
    let answer = RopBuffer::read(&response.buffers[0].bytes).unwrap();
    let tail = [&[id::BUFFER_TOO_SMALL, 0, 16], &get_properties(0)[..]].concat();
    assert!(answer.rops.ends_with(&tail), "{:?}", answer.rops);
    let rest = generation.request(&[get_properties(0)], &[store]);
    rops_and_events(&mut world, 0, &rest, &mut events);
    assert!(are_consecutive(&events), "{events:?}");
    assert_eq!(events.last(), Some(&world.server.calls));
}

#[test]
fn read_ahead_without_room_keeps_the_cursor() {
    let generation = ClientGeneration::Single;
    let mut world = TacticsWorld::new(server_with(200_000), Duration::from_millis(50), None);
    let [.., stream] = open(&mut world, generation);
    let next = world.server.calls + 1;
    world.server.room_for.insert(next + 2, 0);
    let request = generation.request(&[read_stream(0, 30_000)], &[stream]);
    let data = read_all(&mut world, &request, 200_000);
    assert_eq!(data, world.server.contents[&1000]);
    assert!(!world.pairs[0].is_closed);
    let rops = [seek_stream(0, 0, 1_000), read_stream(0, 500)];
    let answer = world.rops(generation, &rops, &[stream]);
    assert_eq!(
        answer.rops[22..],
        world.server.contents[&1000][1_000..1_500]
    );
}

#[test]
fn stream_data_crosses_as_payload() {
    let generation = ClientGeneration::Xp;
    let mut world = TacticsWorld::new(server_with(100_000), Duration::from_millis(50), None);
    let [.., stream] = open(&mut world, generation);
    let request = generation.request(&[read_stream(0, 30_000)], &[stream]);
    world.begin_on(0, &request);
    let mut payload = BytesMut::new();
    loop {
        for (_, segment) in &world.pairs[0].down.queue {
            if segment.kind == vocab::SegmentKind::Payload {
                payload.put_slice(&segment.bytes);
            }
        }
        if !payload.is_empty() || !world.step(None) {
            break;
        }
    }
    assert!(!payload.is_empty());
    assert_eq!(payload, world.server.contents[&1000][..payload.len()]);
}

#[test]
fn second_connection_reads_on_where_the_first_stopped() {
    for generation in [
        ClientGeneration::Xp,
        ClientGeneration::Single,
        ClientGeneration::Chained,
        ClientGeneration::Http,
    ] {
        const LENGTH: usize = 3_000_000;
        let mut world =
            TacticsWorld::new(server_with(LENGTH), Duration::from_millis(50), Some(OC1));
        let second = world.connect();
        let [.., stream] = open(&mut world, generation);
        let request = generation.request(&[read_stream(0, 30_000)], &[stream]);
        let mut data = Vec::new();
        for place in [0, 0, 0, second, 0, second, second] {
            data.extend(data_of(&world.call_on(place, &request)));
        }
        assert!(world.pairs[0].near.answered() > 0, "{generation:?}");
        let answered = world.pairs[0].near.answered();
        while data.len() < LENGTH {
            let more = data_of(&world.call_on(second, &request));
            assert!(!more.is_empty());
            data.extend(more);
        }
        assert_eq!(data, world.server.contents[&1000], "{generation:?}");
        assert_eq!(world.pairs[0].near.answered(), answered);
        assert_eq!(world.pairs[second].near.answered(), 0);
    }
}

#[test]
fn second_connection_saves_what_the_first_has_written() {
    let generation = ClientGeneration::Single;
    let delay = Duration::from_millis(50);
    let mut world = TacticsWorld::new(MailServer::new(), delay, Some(OC1));
    let second = world.connect();
    let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
    let rops = [
        create_message(0, 1),
        vec![id::CREATE_ATTACHMENT, 0, 1, 2],
        open_stream(2, 3, 2),
    ];
    let opened = world.rops(generation, &rops, &[store, NO_HANDLE, NO_HANDLE, NO_HANDLE]);
    let [_, message, attachment, stream] = opened.handles[..] else {
        panic!("four handles");
    };
    let data = noise(2_000_000);
    for chunk in data.chunks(31_000) {
        world.rops(generation, &[write_stream(0, chunk)], &[stream]);
    }
    let rops = [
        plain(id::COMMIT_STREAM, 0),
        plain(id::RELEASE, 0),
        save(id::SAVE_CHANGES_ATTACHMENT, 1),
        save(id::SAVE_CHANGES_MESSAGE, 2),
    ];
    let request = generation.request(&rops, &[stream, attachment, message]);
    let answer = world.call_on(second, &request);
    let saved = RopBuffer::read(&answer.buffers[0].bytes).unwrap();
    assert_eq!(saved.rops[2..6], [0; 4]);
    assert!(world.server.contents.values().any(|sent| *sent == data));
}

#[test]
fn write_that_failed_fails_on_every_connection() {
    let generation = ClientGeneration::Single;
    let mut server = MailServer::new();
    server.stream_max = 50_000;
    let mut world = TacticsWorld::new(server, Duration::from_millis(50), None);
    let second = world.connect();
    let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
    let rops = [
        create_message(0, 1),
        vec![id::CREATE_ATTACHMENT, 0, 1, 2],
        open_stream(2, 3, 2),
    ];
    let opened = world.rops(generation, &rops, &[store, NO_HANDLE, NO_HANDLE, NO_HANDLE]);
    let message = opened.handles[1];
    let stream = opened.handles[3];
    for _ in 0..4 {
        world.rops(generation, &[write_stream(0, &[7; 30_000])], &[stream]);
    }
    let request = generation.request(&[save(id::SAVE_CHANGES_MESSAGE, 0)], &[message]);
    for place in [second, 0] {
        let answer = world.call_on(place, &request);
        let answer = RopBuffer::read(&answer.buffers[0].bytes).unwrap();
        assert_eq!(answer.rops[2..6], TOO_BIG.to_le_bytes());
    }
    assert_eq!(world.server.saved, 0);
}

#[test]
fn client_that_ends_leaves_the_servers_cursor() {
    let generation = ClientGeneration::Single;
    const LENGTH: usize = 1_000_000;
    let delay = Duration::from_millis(50);
    let mut world = TacticsWorld::new(server_with(LENGTH), delay, Some(OC1));
    let second = world.connect();
    let [.., stream] = open(&mut world, generation);
    let request = generation.request(&[read_stream(0, 30_000)], &[stream]);
    let mut data = Vec::new();
    for _ in 0..3 {
        data.extend(data_of(&world.call(&request)));
    }
    let deliveries = Duration::from_millis(200);
    world.wait(deliveries);
    world.end(0);
    while data.len() < LENGTH {
        let more = data_of(&world.call_on(second, &request));
        assert!(!more.is_empty());
        data.extend(more);
    }
    assert_eq!(data, world.server.contents[&1000]);
}
