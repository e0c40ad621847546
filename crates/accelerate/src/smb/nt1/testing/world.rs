//! A client behind the pair, a server, and clients beside it, in virtual time. Only the path takes time.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use vocab::{FlowSegment, SeededRandom, Time};

use super::messages::{Smb1CreateParameters, framed, negotiate, session_setup, tree_connect};
use super::server::Smb1Server;
use crate::smb::nt1::wire::create::NtCreateResponse;
use crate::smb::nt1::wire::header::{Smb1Header, UNASKED, set_mid};
use crate::smb::nt1::wire::split::{Smb1Frame, Smb1Splitter};
use crate::smb::nt1::wire::transfer::read_data;
use crate::smb::{self, SmbSettings};
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, FrameKind, LettingGo, WanEnd};

/// Longer than any test's user waits.
const PATIENCE: Duration = Duration::from_secs(300);

/// An item that crosses the path.
enum Smb1PathItem {
    Segment(FlowSegment),
    Finish,
}

/// A half, or its state after its end.
enum Smb1HalfStage {
    Running(Box<dyn AcceleratorHalf>),
    Released,
    Dead,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Smb1Response {
    pub(crate) header: Smb1Header,
    pub(crate) message: Vec<u8>,
}

impl Smb1Response {
    /// The data of a READ.
    pub(crate) fn data(&self) -> &[u8] {
        assert_eq!(self.header.status, 0);
        let (at, length) = read_data(&self.message).expect("an answer to a READ");
        &self.message[at..at + length]
    }
}

/// A client's end of a connection.
#[derive(Default)]
pub(crate) struct Smb1Client {
    next_mid: u16,
    /// True if it uses one multiplex id for all requests, as some serial clients do.
    pub(crate) has_one_mid: bool,
    pub(crate) user: u16,
    pub(crate) tree: u16,
    pub(crate) process: Option<u16>,
    answers: Smb1Splitter,
    pub(crate) answered: VecDeque<Smb1Response>,
    /// The messages that arrived unasked.
    pub(crate) unasked: Vec<Smb1Response>,
    /// All bytes that it sends, if they are to be kept.
    pub(crate) said: Option<Vec<u8>>,
    /// All bytes that have arrived.
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_reset: bool,
}

impl Smb1Client {
    fn receive(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.answers.push(bytes);
        loop {
            match self.answers.next() {
                Ok(Some(Smb1Frame::Message(header, frame))) => {
                    assert!(header.is_reply() || header.mid == UNASKED, "{header:?}");
                    let answer = Smb1Response {
                        header,
                        message: frame[4..].to_vec(),
                    };
                    match header.mid {
                        UNASKED => self.unasked.push(answer),
                        _ => self.answered.push_back(answer),
                    }
                }
                Ok(Some(Smb1Frame::KeepAlive(_))) => {}
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

/// See the module documentation.
pub(crate) struct Smb1World {
    pub(crate) now: Time,
    pub(crate) server: Smb1Server,
    /// Client 0 is behind the pair, the others are beside the server.
    pub(crate) clients: Vec<Smb1Client>,
    pub(crate) delay: Duration,
    /// Nothing crosses the path while it is cut; data in transit is kept.
    pub(crate) is_cut: bool,
    /// The time that the server takes for each message to client 0.
    pub(crate) server_takes: Duration,
    /// The time of its next message.
    says_at: Option<Time>,
    pub(crate) let_go: Option<LettingGo>,
    halves: [Smb1HalfStage; 2],
    /// Towards the far half, towards the near half.
    ways: [VecDeque<(Time, Smb1PathItem)>; 2],
    /// The inputs of the halves, if they are recorded.
    pub(crate) told: Option<[Vec<AcceleratorInput>; 2]>,
    is_server_gone: bool,
    /// Bytes that hosts hand over at a time.
    pub(crate) piece: usize,
}

impl Smb1World {
    pub(crate) fn new(delay: Duration) -> Self {
        Self::with_settings(delay, SmbSettings::STRICT)
    }

    pub(crate) fn with_settings(delay: Duration, settings: SmbSettings) -> Self {
        let half = |half| {
            let built = smb::build(half, settings.clone(), SeededRandom::from_seed(1));
            Smb1HalfStage::Running(built)
        };
        let mut world = Self {
            now: Time::ZERO + Duration::from_secs(1),
            server: Smb1Server::default(),
            clients: vec![Smb1Client::default()],
            delay,
            is_cut: false,
            server_takes: Duration::ZERO,
            says_at: None,
            let_go: None,
            halves: [half(WanEnd::Near), half(WanEnd::Far)],
            ways: [VecDeque::new(), VecDeque::new()],
            told: None,
            is_server_gone: false,
            piece: usize::MAX,
        };
        world.server.connect();
        for half in [0, 1] {
            world.tell(half, AcceleratorInput::Start);
        }
        world
    }

    /// Adds another client, beside the server, with its session.
    pub(crate) fn beside(&mut self) -> usize {
        let who = self.server.connect();
        self.clients.push(Smb1Client::default());
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
        let answer = self.ask(who, &Smb1CreateParameters::file(name).message());
        NtCreateResponse::parse(&answer.message)
            .expect("it opens")
            .file
    }

    /// The far half's note to the operator.
    pub(crate) fn note(&self) -> Option<String> {
        match &self.halves[1] {
            Smb1HalfStage::Running(half) => half.note(),
            Smb1HalfStage::Released | Smb1HalfStage::Dead => None,
        }
    }

    /// Requests that the near half has answered.
    pub(crate) fn answered(&self) -> u64 {
        match &self.halves[0] {
            Smb1HalfStage::Running(half) => half.answered(),
            Smb1HalfStage::Released | Smb1HalfStage::Dead => 0,
        }
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn ask(&mut self, who: usize, message: &[u8]) -> Smb1Response {
        self.send(who, message);
        self.wait(who)
    }

    /// Sends a request without waiting.
    pub(crate) fn send(&mut self, who: usize, message: &[u8]) -> u16 {
        let (mid, bytes) = self.clients[who].dress(message);
        self.send_bytes(who, &bytes);
        mid
    }

    pub(crate) fn send_bytes(&mut self, who: usize, bytes: &[u8]) {
        for piece in bytes.chunks(self.piece.min(bytes.len()).max(1)) {
            match who {
                0 => self.tell(0, AcceleratorInput::Lan(Bytes::copy_from_slice(piece))),
                _ => self.server.receive(who, piece),
            }
        }
        self.settle();
    }

    /// The next answer.
    pub(crate) fn wait(&mut self, who: usize) -> Smb1Response {
        let until = self.now + PATIENCE;
        loop {
            if let Some(answer) = self.clients[who].answered.pop_front() {
                return answer;
            }
            assert!(!self.clients[who].is_reset, "{:?}", self.let_go);
            assert!(self.step(until), "nobody answers");
        }
    }

    /// Returns the duration of some work.
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
        self.tell(0, AcceleratorInput::LanFinished);
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
            if let Smb1HalfStage::Running(half) = half {
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
                self.tell(1, AcceleratorInput::Lan(bytes.into()));
            }
        }
        for half in [0, 1] {
            if let Smb1HalfStage::Running(running) = &self.halves[half]
                && running.poll_timeout().is_some_and(|at| at <= self.now)
            {
                self.tell(half, AcceleratorInput::Timeout);
            }
        }
        for way in [0, 1] {
            while !self.is_cut
                && let Some((_, item)) = self.ways[way].pop_front_if(|(at, _)| *at <= self.now)
            {
                let input = match item {
                    Smb1PathItem::Segment(segment) => AcceleratorInput::Wan(segment),
                    Smb1PathItem::Finish => AcceleratorInput::WanFinished,
                };
                self.tell(1 - way, input);
            }
        }
        self.settle();
        true
    }

    /// Passes an input to a half, 0 beside the client and 1 beside the server.
    pub(crate) fn tell(&mut self, half: usize, input: AcceleratorInput) {
        if let Some(told) = &mut self.told {
            told[half].push(input.clone());
        }
        match &mut self.halves[half] {
            Smb1HalfStage::Dead => return,
            Smb1HalfStage::Released => return self.passes(half, input),
            Smb1HalfStage::Running(running) => {
                if let AcceleratorInput::Wan(segment) = &input
                    && FrameKind::of(&segment.bytes) == Some(FrameKind::Released)
                    && segment.kind == vocab::SegmentKind::Frame
                {
                    self.halves[half] = Smb1HalfStage::Released;
                    return;
                }
                running.handle(self.now, input);
            }
        }
        self.drain(half);
    }

    /// Passes an input on as an engine does for a half that has let go.
    fn passes(&mut self, half: usize, input: AcceleratorInput) {
        match input {
            AcceleratorInput::Lan(bytes) => {
                self.put_on_wan(half, Smb1PathItem::Segment(FlowSegment::payload(bytes)))
            }
            AcceleratorInput::LanFinished => self.put_on_wan(half, Smb1PathItem::Finish),
            AcceleratorInput::Wan(segment) if segment.kind != vocab::SegmentKind::Frame => {
                self.put_on_lan(half, &segment.bytes);
            }
            AcceleratorInput::WanFinished if half == 1 => self.server_gone(),
            _ => {}
        }
    }

    fn drain(&mut self, half: usize) {
        while let Smb1HalfStage::Running(running) = &mut self.halves[half]
            && let Some(output) = running.poll_output()
        {
            match output {
                AcceleratorOutput::OpenServer | AcceleratorOutput::FinishLan if half == 0 => {}
                AcceleratorOutput::OpenServer => {}
                AcceleratorOutput::OpenFlow
                | AcceleratorOutput::AnsweredHere(_)
                | AcceleratorOutput::Server(..) => {
                    panic!("{output:?} is not for file shares")
                }
                AcceleratorOutput::FinishLan => self.server_gone(),
                AcceleratorOutput::ToLan(bytes) => self.put_on_lan(half, &bytes),
                AcceleratorOutput::ToWan(segment) => {
                    self.put_on_wan(half, Smb1PathItem::Segment(segment))
                }
                AcceleratorOutput::FinishWan => self.put_on_wan(half, Smb1PathItem::Finish),
                AcceleratorOutput::Claim(_) | AcceleratorOutput::ClaimReleased => {}
                AcceleratorOutput::EndBody | AcceleratorOutput::Content(_) => {
                    panic!("it keeps no bodies")
                }
                AcceleratorOutput::LettingGo(letting_go) => {
                    self.let_go = Some(letting_go);
                    match letting_go {
                        LettingGo::LetGo { .. } => {
                            self.halves[half] = Smb1HalfStage::Released;
                            let released = Bytes::from_static(&[0]);
                            self.put_on_wan(
                                half,
                                Smb1PathItem::Segment(FlowSegment::frame(released)),
                            );
                        }
                        LettingGo::Close { .. } => self.die(),
                    }
                }
            }
        }
    }

    /// Both nodes' ends are reset.
    pub(crate) fn die(&mut self) {
        self.halves = [Smb1HalfStage::Dead, Smb1HalfStage::Dead];
        self.clients[0].is_reset = true;
        self.server_gone();
    }

    fn server_gone(&mut self) {
        self.is_server_gone = true;
        self.server.disconnect(0);
    }

    fn put_on_wan(&mut self, half: usize, item: Smb1PathItem) {
        self.ways[half].push_back((self.now + self.delay, item));
    }

    fn put_on_lan(&mut self, half: usize, bytes: &[u8]) {
        match half {
            0 => self.clients[0].receive(bytes),
            _ if !self.is_server_gone => self.server.receive(0, bytes),
            _ => {}
        }
    }

    /// Delivers the server's messages.
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
                                self.tell(1, AcceleratorInput::Lan(Bytes::copy_from_slice(piece)));
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
