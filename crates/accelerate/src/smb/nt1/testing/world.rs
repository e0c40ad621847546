//! A client behind the pair, a server, and clients beside it, in virtual time. Only the path takes time.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use vocab::{Random, Segment, Time};

use super::messages::{Create, framed, negotiate, session_setup, tree_connect};
use super::server::Server;
use crate::smb::nt1::wire::create::CreateAnswer;
use crate::smb::nt1::wire::header::{Header, UNASKED, set_mid};
use crate::smb::nt1::wire::split::{Frame, Splitter};
use crate::smb::nt1::wire::transfer::read_data;
use crate::smb::{self, Settings};
use crate::{Accelerator, FrameKind, Half, Input, LettingGo, Output};

/// Longer than any test's user waits.
const PATIENCE: Duration = Duration::from_secs(300);

/// What crosses the path.
enum Item {
    Segment(Segment),
    Finish,
}

/// A half, or what is left of it.
enum Stage {
    Running(Box<dyn Accelerator>),
    Released,
    Dead,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) header: Header,
    pub(crate) message: Vec<u8>,
}

impl Answer {
    /// The data of a READ.
    pub(crate) fn data(&self) -> &[u8] {
        assert_eq!(self.header.status, 0);
        let (at, length) = read_data(&self.message).expect("an answer to a READ");
        &self.message[at..at + length]
    }
}

/// A client's end of a connection.
#[derive(Default)]
pub(crate) struct Client {
    next_mid: u16,
    /// It uses one multiplex id for all that it asks, as some serial clients do.
    pub(crate) has_one_mid: bool,
    pub(crate) user: u16,
    pub(crate) tree: u16,
    pub(crate) process: Option<u16>,
    answers: Splitter,
    pub(crate) answered: VecDeque<Answer>,
    /// What came unasked.
    pub(crate) unasked: Vec<Answer>,
    /// All bytes that it sends, if they are to be kept.
    pub(crate) said: Option<Vec<u8>>,
    /// All bytes that came.
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_reset: bool,
}

impl Client {
    fn receive(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.answers.push(bytes);
        loop {
            match self.answers.next() {
                Ok(Some(Frame::Message(header, frame))) => {
                    assert!(header.is_reply() || header.mid == UNASKED, "{header:?}");
                    let answer = Answer {
                        header,
                        message: frame[4..].to_vec(),
                    };
                    match header.mid {
                        UNASKED => self.unasked.push(answer),
                        _ => self.answered.push_back(answer),
                    }
                }
                Ok(Some(Frame::KeepAlive(_))) => {}
                Ok(None) => return,
                // SMB 2: tests look at its bytes.
                Err(_) => {
                    self.answers.give_back();
                    return;
                }
            }
        }
    }

    /// A message as it goes: in the client's name and with a multiplex id.
    fn dress(&mut self, message: &[u8]) -> (u16, Vec<u8>) {
        if !self.has_one_mid {
            self.next_mid += 1;
        }
        let mut message = message.to_vec();
        message[24..26].copy_from_slice(&self.tree.to_le_bytes());
        message[28..30].copy_from_slice(&self.user.to_le_bytes());
        if let Some(process) = self.process {
            message[26..28].copy_from_slice(&process.to_le_bytes());
        }
        set_mid(&mut message, self.next_mid);
        let bytes = framed(&message);
        if let Some(said) = &mut self.said {
            said.extend_from_slice(&bytes);
        }
        (self.next_mid, bytes)
    }
}

/// See the head of this file.
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) server: Server,
    /// Client 0 is behind the pair, the others are beside the server.
    pub(crate) clients: Vec<Client>,
    pub(crate) delay: Duration,
    /// Nothing crosses the path while it is cut; it keeps what is under way.
    pub(crate) is_cut: bool,
    /// How long the server takes for each thing that it says to client 0.
    pub(crate) server_takes: Duration,
    /// When it says the next.
    says_at: Option<Time>,
    pub(crate) let_go: Option<LettingGo>,
    halves: [Stage; 2],
    /// Towards the far half, towards the near half.
    ways: [VecDeque<(Time, Item)>; 2],
    /// What the halves are told, if it is to be kept.
    pub(crate) told: Option<[Vec<Input>; 2]>,
    is_server_gone: bool,
    /// Bytes that hosts hand over at a time.
    pub(crate) piece: usize,
}

impl World {
    pub(crate) fn new(delay: Duration) -> Self {
        Self::with_settings(delay, Settings::STRICT)
    }

    pub(crate) fn with_settings(delay: Duration, settings: Settings) -> Self {
        let half = |half| {
            let built = smb::build(half, settings.clone(), Random::from_seed(1));
            Stage::Running(built)
        };
        let mut world = Self {
            now: Time::ZERO + Duration::from_secs(1),
            server: Server::default(),
            clients: vec![Client::default()],
            delay,
            is_cut: false,
            server_takes: Duration::ZERO,
            says_at: None,
            let_go: None,
            halves: [half(Half::Near), half(Half::Far)],
            ways: [VecDeque::new(), VecDeque::new()],
            told: None,
            is_server_gone: false,
            piece: usize::MAX,
        };
        world.server.connect();
        for half in [0, 1] {
            world.tell(half, Input::Start);
        }
        world
    }

    /// Another client, beside the server, with its session.
    pub(crate) fn beside(&mut self) -> usize {
        let who = self.server.connect();
        self.clients.push(Client::default());
        assert_eq!(who, self.clients.len() - 1);
        self.set_up(who);
        who
    }

    pub(crate) fn set_up(&mut self, who: usize) {
        self.ask(who, &negotiate());
        self.clients[who].user = self.ask(who, &session_setup()).header.user;
        self.clients[who].tree = self.ask(who, &tree_connect()).header.tree;
    }

    pub(crate) fn open(&mut self, who: usize, name: &str) -> u16 {
        let answer = self.ask(who, &Create::file(name).message());
        CreateAnswer::parse(&answer.message).expect("it opens").file
    }

    /// Requests that the near half has answered.
    pub(crate) fn answered(&self) -> u64 {
        match &self.halves[0] {
            Stage::Running(half) => half.answered(),
            Stage::Released | Stage::Dead => 0,
        }
    }

    /// Asks and waits for the answer.
    pub(crate) fn ask(&mut self, who: usize, message: &[u8]) -> Answer {
        self.send(who, message);
        self.wait(who)
    }

    /// Asks, and does not wait.
    pub(crate) fn send(&mut self, who: usize, message: &[u8]) -> u16 {
        let (mid, bytes) = self.clients[who].dress(message);
        self.send_bytes(who, &bytes);
        mid
    }

    pub(crate) fn send_bytes(&mut self, who: usize, bytes: &[u8]) {
        for piece in bytes.chunks(self.piece.min(bytes.len()).max(1)) {
            match who {
                0 => self.tell(0, Input::Lan(Bytes::copy_from_slice(piece))),
                _ => self.server.receive(who, piece),
            }
        }
        self.settle();
    }

    /// The next answer.
    pub(crate) fn wait(&mut self, who: usize) -> Answer {
        let until = self.now + PATIENCE;
        loop {
            if let Some(answer) = self.clients[who].answered.pop_front() {
                return answer;
            }
            assert!(!self.clients[who].is_reset, "{:?}", self.let_go);
            assert!(self.step(until), "nobody answers");
        }
    }

    /// How long it takes.
    pub(crate) fn takes(&mut self, work: impl FnOnce(&mut Self)) -> Duration {
        let before = self.now;
        work(self);
        self.now.since(before)
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
    }

    /// The client ends its stream.
    pub(crate) fn finish(&mut self) {
        self.tell(0, Input::LanFinished);
        self.settle();
    }

    /// Lets the next thing happen that happens by then; whether anything did.
    fn step(&mut self, until: Time) -> bool {
        self.settle();
        let mut next = self.says_at;
        let mut also = |at: Option<Time>| next = [next, at].into_iter().flatten().min();
        if !self.is_cut {
            for way in &self.ways {
                also(way.front().map(|(at, _)| *at));
            }
        }
        for half in &self.halves {
            if let Stage::Running(half) = half {
                also(half.poll_timeout());
            }
        }
        let Some(at) = next.filter(|at| *at <= until) else {
            return false;
        };
        self.now = self.now.max(at);
        if self.says_at.take_if(|at| *at <= self.now).is_some() {
            // What it has done last may need no answer.
            if let Some(bytes) = self.server.take(0) {
                self.tell(1, Input::Lan(bytes.into()));
            }
        }
        for half in [0, 1] {
            if let Stage::Running(running) = &self.halves[half]
                && running.poll_timeout().is_some_and(|at| at <= self.now)
            {
                self.tell(half, Input::Timeout);
            }
        }
        for way in [0, 1] {
            while !self.is_cut
                && let Some((_, item)) = self.ways[way].pop_front_if(|(at, _)| *at <= self.now)
            {
                let input = match item {
                    Item::Segment(segment) => Input::Wan(segment),
                    Item::Finish => Input::WanFinished,
                };
                self.tell(1 - way, input);
            }
        }
        self.settle();
        true
    }

    /// Tells a half, 0 beside the client and 1 beside the server.
    pub(crate) fn tell(&mut self, half: usize, input: Input) {
        if let Some(told) = &mut self.told {
            told[half].push(input.clone());
        }
        match &mut self.halves[half] {
            Stage::Dead => return,
            Stage::Released => return self.passes(half, input),
            Stage::Running(running) => {
                if let Input::Wan(segment) = &input
                    && FrameKind::of(&segment.bytes) == Some(FrameKind::Released)
                    && segment.kind == vocab::SegmentKind::Frame
                {
                    self.halves[half] = Stage::Released;
                    return;
                }
                running.handle(self.now, input);
            }
        }
        self.drain(half);
    }

    /// What an engine does for a half that has let go.
    fn passes(&mut self, half: usize, input: Input) {
        match input {
            Input::Lan(bytes) => self.put_on_wan(half, Item::Segment(Segment::payload(bytes))),
            Input::LanFinished => self.put_on_wan(half, Item::Finish),
            Input::Wan(segment) if segment.kind != vocab::SegmentKind::Frame => {
                self.put_on_lan(half, &segment.bytes);
            }
            Input::WanFinished if half == 1 => self.server_gone(),
            _ => {}
        }
    }

    fn drain(&mut self, half: usize) {
        while let Stage::Running(running) = &mut self.halves[half]
            && let Some(output) = running.poll_output()
        {
            match output {
                Output::OpenServer | Output::FinishLan if half == 0 => {}
                Output::OpenServer => {}
                Output::OpenFlow | Output::AnsweredHere(_) | Output::Server(..) => {
                    panic!("{output:?} is not for file shares")
                }
                Output::FinishLan => self.server_gone(),
                Output::ToLan(bytes) => self.put_on_lan(half, &bytes),
                Output::ToWan(segment) => self.put_on_wan(half, Item::Segment(segment)),
                Output::FinishWan => self.put_on_wan(half, Item::Finish),
                Output::Claim(_) | Output::ClaimReleased => {}
                Output::EndBody | Output::Content(_) => panic!("it keeps no bodies"),
                Output::LettingGo(letting_go) => {
                    self.let_go = Some(letting_go);
                    match letting_go {
                        LettingGo::LetGo { .. } => {
                            self.halves[half] = Stage::Released;
                            let released = Bytes::from_static(&[0]);
                            self.put_on_wan(half, Item::Segment(Segment::frame(released)));
                        }
                        LettingGo::Close { .. } => self.die(),
                    }
                }
            }
        }
    }

    /// Both nodes' ends are reset.
    pub(crate) fn die(&mut self) {
        self.halves = [Stage::Dead, Stage::Dead];
        self.clients[0].is_reset = true;
        self.server_gone();
    }

    fn server_gone(&mut self) {
        self.is_server_gone = true;
        self.server.disconnect(0);
    }

    fn put_on_wan(&mut self, half: usize, item: Item) {
        self.ways[half].push_back((self.now + self.delay, item));
    }

    fn put_on_lan(&mut self, half: usize, bytes: &[u8]) {
        match half {
            0 => self.clients[0].receive(bytes),
            _ if !self.is_server_gone => self.server.receive(0, bytes),
            _ => {}
        }
    }

    /// Hands over what the server says.
    fn settle(&mut self) {
        loop {
            let mut is_quiet = true;
            for who in 0..self.clients.len() {
                if who == 0 && !self.server_takes.is_zero() {
                    if self.server.has_answers(0) && self.says_at.is_none() {
                        self.says_at = Some(self.now + self.server_takes);
                    }
                    continue;
                }
                while let Some(bytes) = self.server.take(who) {
                    is_quiet = false;
                    match who {
                        0 => {
                            for piece in bytes.chunks(self.piece.min(bytes.len()).max(1)) {
                                self.tell(1, Input::Lan(Bytes::copy_from_slice(piece)));
                            }
                        }
                        _ => self.clients[who].receive(&bytes),
                    }
                }
            }
            if is_quiet {
                return;
            }
        }
    }
}
