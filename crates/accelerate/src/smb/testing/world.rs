//! A client behind the pair, a server, and clients beside the server, in virtual time.
//!
//! Only the path takes time, so a user's wait in round trips is the elapsed time divided by the
//! round trip. The halves are run as an engine runs them, letting go included.

mod users;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use vocab::{FlowSegment, SeededRandom, SegmentKind, Time};

use super::login::PreauthHashes;
use super::messages::{self, Smb2CreateParameters, Smb2Message, frame};
use super::seal::{SessionEncryption, SessionEndpoint};
use super::server::{EncryptionPolicy, SigningPolicy, Smb2Server};
use crate::claims::ClaimKey;
use crate::smb::keys::SigningKey;
use crate::smb::wire::create::CreateResponse;
use crate::smb::wire::frame::FRAME_HEADER;
use crate::smb::wire::header::{LENGTH, Smb2Header, command, flag, status};
use crate::smb::wire::split::{Smb2Splitter, SplitterPiece};
use crate::smb::wire::{FileId, u32_at};
use crate::smb::{self, SmbSettings};
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, FrameKind, LettingGo, WanEnd};

/// Longer than any test's user waits.
const PATIENCE: Duration = Duration::from_secs(600);

/// An answer: its header, and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Smb2Response {
    pub(crate) header: Smb2Header,
    pub(crate) body: Vec<u8>,
}

impl Smb2Response {
    /// The data of a READ.
    pub(crate) fn data(&self) -> &[u8] {
        assert_eq!(self.header.status, status::SUCCESS);
        let length = u32_at(&self.body, 4).unwrap() as usize;
        &self.body[16..16 + length]
    }
}

/// An item that crosses the path.
enum PathItem {
    Segment(FlowSegment),
    Finish,
}

/// One direction of the path.
struct PathDirection {
    items: VecDeque<(Time, PathItem)>,
    free_at: Time,
}

/// A half, or its state after its end.
enum HalfStage {
    Running(Box<dyn AcceleratorHalf>),
    Released,
    /// Its node is gone.
    Dead,
}

/// The arrival of an answer: the number of events at the server by then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseArrival {
    pub(crate) who: usize,
    pub(crate) message_id: u64,
    pub(crate) happened: usize,
    pub(crate) at: Time,
}

/// A client's end of a connection.
pub(crate) struct Smb2Client {
    next_id: u64,
    credits: u64,
    pub(crate) session: u64,
    pub(crate) tree: u32,
    answers: Smb2Splitter,
    frame: BytesMut,
    /// Answers by message id; interim ones apart.
    pub(crate) answered: BTreeMap<u64, Smb2Response>,
    pub(crate) interim: Vec<Smb2Response>,
    /// The messages that arrived unasked.
    pub(crate) unasked: Vec<Smb2Response>,
    /// True if it keeps all bytes that arrive.
    pub(crate) keeps_streams: bool,
    /// All bytes that have arrived.
    pub(crate) bytes: Vec<u8>,
    /// All bytes that went.
    pub(crate) sent: Vec<u8>,
    heard: PreauthHashes,
    /// The session key, from the proof of the password to the server's last answer.
    session_key: Option<(SigningPolicy, u16, [u8; 16])>,
    /// The encryption of the server.
    sealing: Option<EncryptionPolicy>,
    pub(crate) seal: Option<SessionEncryption>,
    /// True if it encrypts all of its messages.
    pub(crate) seals_all: bool,
    /// The tree whose messages it encrypts.
    seals_tree: Option<u32>,
    /// Requests that went encrypted.
    sealed: BTreeSet<u64>,
    /// Answers that were encrypted though their requests were not, or the other way round.
    pub(crate) unlike: usize,
    /// It signs, and takes nothing that is not signed.
    pub(crate) key: Option<SigningKey>,
    /// Answers whose signature was missing or not valid. A real client would be gone.
    pub(crate) forged: usize,
    /// It signs TREE_CONNECT alone.
    pub(crate) signs_little: bool,
    /// The ids of new answers since the last check.
    arrived: Vec<u64>,
}

impl Smb2Client {
    pub(crate) fn new() -> Self {
        Self {
            next_id: 0,
            credits: 1,
            session: 0,
            tree: 0,
            answers: Smb2Splitter::taking_sealed(),
            frame: BytesMut::new(),
            answered: BTreeMap::new(),
            interim: Vec::new(),
            unasked: Vec::new(),
            keeps_streams: true,
            bytes: Vec::new(),
            sent: Vec::new(),
            heard: PreauthHashes::NOTHING,
            session_key: None,
            sealing: None,
            seal: None,
            seals_all: false,
            seals_tree: None,
            sealed: BTreeSet::new(),
            unlike: 0,
            key: None,
            forged: 0,
            signs_little: false,
            arrived: Vec::new(),
        }
    }

    /// The number of credits that remain.
    pub(crate) fn credits(&self) -> u64 {
        self.credits
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        if self.keeps_streams {
            self.bytes.extend_from_slice(bytes);
        }
        self.answers.push(Bytes::copy_from_slice(bytes));
        while let Some(piece) = self.answers.next().expect("a server speaks SMB2") {
            match piece {
                SplitterPiece::Head(head) => self.frame.extend_from_slice(&head.bytes),
                SplitterPiece::Rest(_, bytes) => self.frame.extend_from_slice(&bytes),
                SplitterPiece::Sealed(frame) => {
                    let seal = self.seal.as_mut().expect("it knows the keys");
                    match seal.open(&frame[FRAME_HEADER..]) {
                        Some(messages) => self.messages(&messages, true),
                        None => self.forged += 1,
                    }
                }
                SplitterPiece::End => {
                    let frame = self.frame.split();
                    self.messages(&frame[FRAME_HEADER..], false);
                }
            }
        }
    }

    /// Parses the messages in a frame.
    fn messages(&mut self, mut rest: &[u8], is_sealed: bool) {
        while !rest.is_empty() {
            let header = Smb2Header::parse(rest).expect("an answer has a header");
            let length = match header.next as usize {
                0 => rest.len(),
                next => next,
            };
            self.message(&rest[..length], is_sealed);
            rest = &rest[length..];
        }
    }

    fn message(&mut self, message: &[u8], is_sealed: bool) {
        let header = Smb2Header {
            is_sealed,
            ..Smb2Header::parse(message).expect("an answer has a header")
        };
        if header.message_id != u64::MAX {
            self.unlike += usize::from(self.sealed.contains(&header.message_id) != is_sealed);
        }
        assert!(header.has(flag::FROM_SERVER));
        self.heard = self.heard.and(&header, message);
        if let Some((signing, dialect, key)) = self
            .session_key
            .take_if(|_| header.status == status::SUCCESS)
        {
            self.key = Some(self.heard.key(dialect, signing.algorithm, &key));
            self.seal = self.sealing.map(|sealing| {
                let agreed = (dialect, sealing.cipher());
                self.heard
                    .seal(SessionEndpoint::Client, agreed, &key, header.session)
            });
            self.seals_all |= message[LENGTH + 2] & 4 != 0;
        }
        if header.command == command::TREE_CONNECT && message[LENGTH + 5] & 0x80 != 0 {
            self.seals_tree = Some(header.tree);
        }
        let is_vouched_for = match &self.key {
            _ if is_sealed => true,
            Some(key) if header.has(flag::SIGNED) => key.verify(message).is_some(),
            Some(_) => {
                self.signs_little
                    || header.status == status::PENDING
                    || header.message_id == u64::MAX
            }
            None => true,
        };
        self.forged += usize::from(!is_vouched_for);
        self.credits += u64::from(header.credits);
        let answer = Smb2Response {
            header,
            body: message[LENGTH..].to_vec(),
        };
        if header.message_id == u64::MAX {
            self.unasked.push(answer);
        } else if header.status == status::PENDING {
            self.interim.push(answer);
        } else {
            self.arrived.push(header.message_id);
            let again = self.answered.insert(header.message_id, answer);
            assert!(again.is_none(), "{} is answered twice", header.message_id);
        }
    }

    /// Signs the messages of a frame, if it signs, and records the bytes that its key depends on.
    fn sign(&mut self, mut rest: &mut [u8]) {
        while !rest.is_empty() {
            let header = Smb2Header::parse(rest).expect("it wrote a header");
            let length = match header.next as usize {
                0 => rest.len(),
                next => next,
            };
            let (message, behind) = rest.split_at_mut(length);
            let signs = !self.seals(&header)
                && (!self.signs_little || header.command == command::TREE_CONNECT);
            if let Some(key) = self.key.as_ref().filter(|_| signs) {
                key.sign(message, []);
            }
            self.heard = self.heard.and(&header, message);
            rest = behind;
        }
    }

    /// Returns true if the client encrypts a message.
    fn seals(&self, header: &Smb2Header) -> bool {
        self.seal.is_some() && (self.seals_all || self.seals_tree == Some(header.tree))
    }

    /// The frame as it goes.
    fn protect(&mut self, mut frame: Vec<u8>) -> Vec<u8> {
        self.sign(&mut frame[FRAME_HEADER..]);
        let header = Smb2Header::parse(&frame[FRAME_HEADER..]).expect("it wrote a header");
        if !self.seals(&header) {
            return frame;
        }
        let mut at = FRAME_HEADER;
        loop {
            let header = Smb2Header::parse(&frame[at..]).expect("it wrote a header");
            self.sealed.insert(header.message_id);
            at += header.next as usize;
            if header.next == 0 {
                break;
            }
        }
        let seal = self.seal.as_mut().expect("it encrypts");
        seal.seal(&frame[FRAME_HEADER..])
    }

    /// Requests in one frame, as it goes; their ids.
    pub(crate) fn frame(&mut self, requests: &[Smb2Message]) -> (Vec<u64>, Vec<u8>) {
        let (session, tree) = (self.session, self.tree);
        let headers: Vec<Smb2Header> = requests
            .iter()
            .map(|request| {
                let id = self.take_id(request.charge);
                request.header(id, session, tree)
            })
            .collect();
        let bodies = requests.iter().map(|request| &request.body[..]);
        let messages: Vec<(Smb2Header, &[u8])> = headers.iter().copied().zip(bodies).collect();
        let ids = headers.iter().map(|header| header.message_id).collect();
        (ids, self.protect(frame(&messages)))
    }

    /// The next message's id, paid for.
    fn take_id(&mut self, charge: u16) -> u64 {
        assert!(
            self.credits >= u64::from(charge),
            "the client has no credit left"
        );
        self.credits -= u64::from(charge);
        let id = self.next_id;
        self.next_id += u64::from(charge);
        id
    }
}

/// Alters bytes once.
pub(crate) type TamperFunction = Box<dyn FnOnce(&mut [u8])>;

/// See the module documentation.
pub(crate) struct Smb2World {
    pub(crate) now: Time,
    pub(crate) server: Smb2Server,
    /// Client 0 is behind the pair, the others are beside the server.
    pub(crate) clients: Vec<Smb2Client>,
    pub(crate) delay: Duration,
    /// Bytes a second of each direction.
    pub(crate) rate: Option<f64>,
    /// Nothing crosses the path while it is cut; data in transit is kept.
    pub(crate) is_cut: bool,
    /// Bytes that hosts and the path hand over at a time.
    pub(crate) piece: usize,
    /// The server's bytes to client 0 are kept back after so many more.
    pub(crate) stalls_after: Option<usize>,
    stalled: Vec<u8>,
    /// The time that the server takes for its messages to client 0.
    pub(crate) server_takes: Duration,
    saying: VecDeque<(Time, Vec<u8>)>,
    pub(crate) let_go: Option<LettingGo>,
    /// The note beside that.
    pub(crate) no_key_for: Option<String>,
    /// Alters the next frame of client 0's, or the next bytes of the server's to it, on its LAN.
    pub(crate) alters_client: Option<TamperFunction>,
    pub(crate) alters_server: Option<TamperFunction>,
    /// Bytes that crossed the path to the near half, without frames' own few.
    pub(crate) wan_bytes: u64,
    /// The times at which answers arrived, if the server keeps a history.
    pub(crate) arrivals: Vec<ResponseArrival>,
    /// The stream towards client 0 has ended, cleanly or not.
    pub(crate) is_client_gone: bool,
    /// The hosts that the far half has named in its claim.
    pub(crate) between: Option<ClaimKey>,
    /// True if the claim is not granted automatically: the test sends the claim inputs itself.
    pub(crate) keeps_company: bool,
    pub(crate) has_given_back: bool,
    /// The inputs of each half, if they are recorded.
    pub(crate) told: Option<[Vec<AcceleratorInput>; 2]>,
    halves: [HalfStage; 2],
    ways: [PathDirection; 2],
}

/// Index of a half, and of the way that leads to it.
pub(crate) const NEAR: usize = 0;
pub(crate) const FAR: usize = 1;

impl Smb2World {
    pub(crate) fn new(delay: Duration) -> Self {
        Self::with_settings(delay, SmbSettings::STRICT)
    }

    pub(crate) fn with_settings(delay: Duration, settings: SmbSettings) -> Self {
        let mut server = Smb2Server::new();
        server.connect();
        let half = |half| {
            HalfStage::Running(smb::build(
                half,
                settings.clone(),
                SeededRandom::from_seed(7),
            ))
        };
        let way = || PathDirection {
            items: VecDeque::new(),
            free_at: Time::ZERO,
        };
        let mut world = Self {
            now: Time::ZERO,
            server,
            clients: vec![Smb2Client::new()],
            delay,
            rate: None,
            is_cut: false,
            piece: usize::MAX,
            stalls_after: None,
            stalled: Vec::new(),
            server_takes: Duration::ZERO,
            saying: VecDeque::new(),
            let_go: None,
            no_key_for: None,
            alters_client: None,
            alters_server: None,
            wan_bytes: 0,
            arrivals: Vec::new(),
            is_client_gone: false,
            between: None,
            keeps_company: false,
            has_given_back: false,
            told: None,
            halves: [half(WanEnd::Near), half(WanEnd::Far)],
            ways: [way(), way()],
        };
        world.input(NEAR, AcceleratorInput::Start);
        world.input(FAR, AcceleratorInput::Start);
        world
    }

    /// Adds a client beside the server, with a session and a tree.
    pub(crate) fn beside(&mut self) -> usize {
        let connection = self.server.connect();
        self.clients.push(Smb2Client::new());
        self.set_up(connection);
        connection
    }

    /// Connects client `who` to the share.
    pub(crate) fn set_up(&mut self, who: usize) {
        self.sign_in(who);
        let answer = self.ask(who, &messages::tree_connect());
        self.clients[who].tree = answer.header.tree;
    }

    /// Opens a file.
    pub(crate) fn create(&mut self, who: usize, create: &Smb2CreateParameters<'_>) -> FileId {
        self.created(who, create).file
    }

    pub(crate) fn created(
        &mut self,
        who: usize,
        create: &Smb2CreateParameters<'_>,
    ) -> CreateResponse {
        let answer = self.ask(who, &create.request());
        assert_eq!(answer.header.status, status::SUCCESS);
        CreateResponse::parse(&answer.body).unwrap()
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(&mut self, who: usize, request: &Smb2Message) -> Smb2Response {
        let id = self.send(who, request);
        self.wait(who, id)
    }

    /// Sends a request; its id.
    pub(crate) fn send(&mut self, who: usize, request: &Smb2Message) -> u64 {
        self.send_chain(who, std::slice::from_ref(request))[0]
    }

    /// Sends requests in one frame; their ids.
    pub(crate) fn send_chain(&mut self, who: usize, requests: &[Smb2Message]) -> Vec<u64> {
        let (ids, bytes) = self.clients[who].frame(requests);
        self.send_bytes(who, &bytes);
        ids
    }

    /// Cancels the last pending request, by its async id.
    pub(crate) fn cancel_by_async_id(&mut self, who: usize) {
        let client = &mut self.clients[who];
        let interim = client.interim.pop().expect("something is pending");
        let header = Smb2Header {
            command: command::CANCEL,
            flags: flag::ASYNC,
            status: 0,
            message_id: 0,
            signature: [0; 16],
            ..interim.header
        };
        let bytes = client.protect(frame(&[(header, &messages::cancel().body)]));
        self.send_bytes(who, &bytes);
    }

    /// Cancels an outstanding request, by its own id.
    pub(crate) fn cancel(&mut self, who: usize, message_id: u64) {
        let client = &self.clients[who];
        let header = messages::cancel().header(message_id, client.session, client.tree);
        let bytes = frame(&[(header, &messages::cancel().body)]);
        let bytes = self.clients[who].protect(bytes);
        self.send_bytes(who, &bytes);
    }

    pub(crate) fn send_bytes(&mut self, who: usize, bytes: &[u8]) {
        self.clients[who].sent.extend_from_slice(bytes);
        self.server.now = self.now;
        if who == 0 {
            let mut bytes = bytes.to_vec();
            if let Some(alters) = self.alters_client.take() {
                alters(&mut bytes);
            }
            for piece in bytes.chunks(self.piece) {
                self.input(NEAR, AcceleratorInput::Lan(Bytes::copy_from_slice(piece)));
            }
        } else {
            self.server.receive(who, bytes);
        }
        self.exchange();
    }

    /// Runs until this request is answered.
    pub(crate) fn wait(&mut self, who: usize, id: u64) -> Smb2Response {
        let is_there = self.run_until(PATIENCE, |world| {
            world.clients[who].answered.contains_key(&id)
        });
        assert!(is_there, "request {id} is never answered");
        self.clients[who].answered.remove(&id).unwrap()
    }

    /// Runs until `reached`, for at most `span`; whether it was.
    pub(crate) fn run_until(
        &mut self,
        span: Duration,
        reached: impl Fn(&Smb2World) -> bool,
    ) -> bool {
        let end = self.now + span;
        loop {
            self.exchange();
            if reached(self) {
                return true;
            }
            match self.next_time() {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => {
                    self.now = end;
                    return false;
                }
            }
            self.deliver_due();
        }
    }

    pub(crate) fn run_for(&mut self, span: Duration) {
        self.run_until(span, |_| false);
    }

    /// The number of round trips in the time since `start`.
    pub(crate) fn round_trips(&self, start: Time) -> f64 {
        self.now.since(start).as_secs_f64() / (2.0 * self.delay.as_secs_f64())
    }

    fn next_time(&self) -> Option<Time> {
        let arrivals = self
            .ways
            .iter()
            .filter(|_| !self.is_cut)
            .filter_map(|way| way.items.front().map(|(at, _)| *at));
        let timers = self.halves.iter().filter_map(|stage| match stage {
            HalfStage::Running(half) => half.poll_timeout(),
            HalfStage::Released | HalfStage::Dead => None,
        });
        let said = self.saying.front().map(|(at, _)| *at);
        arrivals.chain(timers).chain(said).min()
    }

    fn deliver_due(&mut self) {
        while let Some((_, said)) = self.saying.pop_front_if(|(at, _)| *at <= self.now) {
            self.hear(&said);
        }
        for half in [NEAR, FAR] {
            while !self.is_cut
                && self.ways[half]
                    .items
                    .front()
                    .is_some_and(|(at, _)| *at <= self.now)
            {
                let (_, item) = self.ways[half].items.pop_front().unwrap();
                match item {
                    PathItem::Finish => self.input(half, AcceleratorInput::WanFinished),
                    PathItem::Segment(segment) => self.arrive(half, segment),
                }
                self.exchange();
            }
            let is_due = match &self.halves[half] {
                HalfStage::Running(running) => {
                    running.poll_timeout().is_some_and(|at| at <= self.now)
                }
                HalfStage::Released | HalfStage::Dead => false,
            };
            if is_due {
                self.input(half, AcceleratorInput::Timeout);
            }
        }
    }

    fn arrive(&mut self, half: usize, segment: FlowSegment) {
        if segment.kind == SegmentKind::Frame {
            if FrameKind::of(&segment.bytes) == Some(FrameKind::Released) {
                self.drain(half);
                self.halves[half] = HalfStage::Released;
                return;
            }
            self.input(half, AcceleratorInput::Wan(segment));
            return;
        }
        if half == NEAR {
            self.wan_bytes += segment.bytes.len() as u64;
        }
        for piece in segment.bytes.chunks(self.piece) {
            let bytes = segment.bytes.slice_ref(piece);
            let kind = segment.kind;
            self.input(half, AcceleratorInput::Wan(FlowSegment { kind, bytes }));
        }
    }

    /// The halves' notes to the operator.
    pub(crate) fn notes(&self) -> [Option<String>; 2] {
        [NEAR, FAR].map(|half| match &self.halves[half] {
            HalfStage::Running(half) => half.note(),
            HalfStage::Released | HalfStage::Dead => None,
        })
    }

    /// Bytes that both halves hold.
    pub(crate) fn buffered(&self) -> usize {
        let held = self.halves.iter().map(|stage| match stage {
            HalfStage::Running(half) => half.buffered(),
            HalfStage::Released | HalfStage::Dead => 0,
        });
        held.sum()
    }

    /// Delivers the server's kept bytes, and keeps no more.
    pub(crate) fn go_on(&mut self) {
        self.stalls_after = None;
        let said = std::mem::take(&mut self.stalled);
        self.input(FAR, AcceleratorInput::Lan(said.into()));
    }

    /// Lets the hosts exchange their messages.
    fn exchange(&mut self) {
        loop {
            let mut moved = false;
            for connection in 0..self.clients.len() {
                let mut said = self.server.take(connection);
                if said.is_empty() {
                    continue;
                }
                moved = true;
                if connection == 0
                    && let Some(alters) = self.alters_server.take()
                {
                    alters(&mut said);
                }
                if connection == 0
                    && let Some(left) = &mut self.stalls_after
                {
                    let passing = said.len().min(*left);
                    *left -= passing;
                    self.stalled.extend(said.drain(passing..));
                }
                if connection > 0 {
                    self.clients[connection].receive(&said);
                    self.note_arrivals(connection);
                } else if self.server_takes > Duration::ZERO {
                    let free_at = self.saying.back().map_or(self.now, |(at, _)| *at);
                    self.saying.push_back((free_at + self.server_takes, said));
                } else {
                    self.hear(&said);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Gives the server's bytes to the far half.
    fn hear(&mut self, said: &[u8]) {
        for piece in said.chunks(self.piece) {
            self.input(FAR, AcceleratorInput::Lan(Bytes::copy_from_slice(piece)));
        }
    }

    pub(crate) fn input(&mut self, half: usize, input: AcceleratorInput) {
        self.server.now = self.now;
        if let Some(told) = &mut self.told {
            told[half].push(input.clone());
        }
        match &mut self.halves[half] {
            HalfStage::Running(running) => {
                running.handle(self.now, input);
                self.drain(half);
            }
            HalfStage::Released => match input {
                AcceleratorInput::Lan(bytes) => {
                    self.send_segment(half, FlowSegment::payload(bytes))
                }
                AcceleratorInput::Wan(segment) if segment.kind != SegmentKind::Frame => {
                    self.give_host(half, &segment.bytes);
                }
                AcceleratorInput::LanFinished => self.push(1 - half, PathItem::Finish, 0),
                _ => {}
            },
            HalfStage::Dead => {}
        }
    }

    /// The node of the near or the far half dies, and its host's connection with it. The path leads
    /// nowhere from here on.
    pub(crate) fn kill(&mut self, half: usize) {
        self.halves[half] = HalfStage::Dead;
        self.is_cut = true;
        match half {
            NEAR => self.is_client_gone = true,
            _ => self.server.disconnect(0),
        }
        self.exchange();
    }

    /// The server ends client 0's connection.
    pub(crate) fn server_disconnects(&mut self) {
        self.exchange();
        self.server.disconnect(0);
        self.input(FAR, AcceleratorInput::LanFinished);
        self.exchange();
    }

    /// Resets the flow at both ends, as its nodes do after they have closed it, or have lost each
    /// other.
    pub(crate) fn reset(&mut self) {
        self.halves = [HalfStage::Dead, HalfStage::Dead];
        self.is_client_gone = true;
        self.server.disconnect(0);
        self.exchange();
    }

    /// Records the answers that have arrived.
    fn note_arrivals(&mut self, who: usize) {
        let arrived = std::mem::take(&mut self.clients[who].arrived);
        if self.server.history.is_none() {
            return;
        }
        for message_id in arrived {
            let arrival = ResponseArrival {
                who,
                message_id,
                happened: self.server.tells(),
                at: self.now,
            };
            self.arrivals.push(arrival);
        }
    }

    fn drain(&mut self, half: usize) {
        let knew = self.between.is_some();
        self.drain_outputs(half);
        if !knew && self.between.is_some() && !self.keeps_company {
            self.input(half, AcceleratorInput::ClaimGranted);
        }
    }

    fn drain_outputs(&mut self, half: usize) {
        while let HalfStage::Running(running) = &mut self.halves[half] {
            let Some(output) = running.poll_output() else {
                return;
            };
            match output {
                AcceleratorOutput::FinishLan if half == NEAR => self.is_client_gone = true,
                AcceleratorOutput::OpenServer | AcceleratorOutput::FinishLan => {}
                AcceleratorOutput::OpenFlow
                | AcceleratorOutput::AnsweredHere(_)
                | AcceleratorOutput::Server(..) => {
                    panic!("{output:?} is not for file shares")
                }
                AcceleratorOutput::ToLan(bytes) => self.give_host(half, &bytes),
                AcceleratorOutput::ToWan(segment) => self.send_segment(half, segment),
                AcceleratorOutput::FinishWan => self.push(1 - half, PathItem::Finish, 0),
                AcceleratorOutput::Claim(ends) => self.between = Some(ends),
                AcceleratorOutput::ClaimReleased => self.has_given_back = true,
                AcceleratorOutput::EndBody | AcceleratorOutput::Content(_) => {
                    panic!("it keeps no bodies")
                }
                AcceleratorOutput::LettingGo(letting_go) => {
                    assert!(self.let_go.is_none(), "it lets go twice");
                    self.let_go = Some(letting_go);
                    self.no_key_for = running.note();
                    if let LettingGo::LetGo { .. } = letting_go {
                        let released = Bytes::from_static(&[0]);
                        self.send_segment(half, FlowSegment::frame(released));
                        self.halves[half] = HalfStage::Released;
                    }
                }
            }
        }
    }

    fn give_host(&mut self, half: usize, bytes: &[u8]) {
        if half == NEAR {
            assert!(!self.is_client_gone, "something follows the stream's end");
            self.clients[0].receive(bytes);
            self.note_arrivals(0);
        } else {
            self.server.receive(0, bytes);
        }
    }

    fn send_segment(&mut self, half: usize, segment: FlowSegment) {
        let bytes = segment.bytes.len();
        self.push(1 - half, PathItem::Segment(segment), bytes);
    }

    fn push(&mut self, to: usize, item: PathItem, bytes: usize) {
        let way = &mut self.ways[to];
        way.free_at = way.free_at.max(self.now);
        if let Some(rate) = self.rate {
            way.free_at += Duration::from_secs_f64(bytes as f64 / rate);
        }
        way.items.push_back((way.free_at + self.delay, item));
    }
}

/// Returns true if an answer is an oplock break notice.
pub(crate) fn is_notice(answer: &Smb2Response) -> bool {
    answer.header.command == command::OPLOCK_BREAK
}
