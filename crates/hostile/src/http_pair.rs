//! Both nodes of HTTP back to back, with a cache, prefetches and recalled requests, between a client and a server that
//! may say anything, and with a far node whose frames may say anything.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use accelerate::shared::{SharedInput, SharedOutput, SharedState};
use accelerate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ContentAbsence, ContentHandle, ContentId,
    ContentReport, ContentRequest, LettingGo, ServerCommand, ServerConnection, ServerEvent, WanEnd,
    http,
};
use bytes::Bytes;
use vocab::{FlowSegment, Time};

use crate::ByteScript;
use crate::accelerator::{HTTP_PORT, MOST_OUTPUTS, context, settings, start};
use crate::seed::{CorpusSeed, seed, sized};

const NEAR: usize = 0;
const FAR: usize = 1;

/// Steps of a script.
const CLIENT_SAYS: u8 = 0;
const SERVER_SAYS: u8 = 1;
const FRAME_TO_NEAR: u8 = 2;
const FRAME_TO_FAR: u8 = 3;
const FETCHED: u8 = 4;
const WAIT: u8 = 5;
const CONNECT: u8 = 6;
const FINISH: u8 = 7;

/// Two nodes and one flow at a time.
struct HttpNodes {
    states: [Box<dyn SharedState>; 2],
    halves: [Box<dyn AcceleratorHalf>; 2],
    flow: u64,
    /// A half has let go, or closed the flow.
    is_over: bool,
    /// Bodies that are being stored.
    storing: BTreeMap<ContentId, Vec<u8>>,
    reports: VecDeque<ContentReport>,
    /// Further connections to the server that are open.
    fetching: Vec<ServerConnection>,
    now: Time,
}

impl HttpNodes {
    fn new() -> Self {
        let mut states = [settings(&http::ENTRY), settings(&http::ENTRY)]
            .map(|settings| settings.start(start()));
        for state in &mut states {
            state.handle(Time::ZERO, SharedInput::Start);
            state.set_calendar(Time::ZERO, Duration::from_secs(1_767_225_600));
        }
        let halves = Self::build(&mut states, 1);
        let mut nodes = Self {
            states,
            halves,
            flow: 1,
            is_over: false,
            storing: BTreeMap::new(),
            reports: VecDeque::new(),
            fetching: Vec::new(),
            now: Time::ZERO,
        };
        nodes.begin();
        nodes
    }

    fn build(states: &mut [Box<dyn SharedState>; 2], flow: u64) -> [Box<dyn AcceleratorHalf>; 2] {
        let mut build = |at: usize, end| {
            let mut context = context(HTTP_PORT);
            context.flow = flow;
            states[at].build(end, context)
        };
        [build(NEAR, WanEnd::Near), build(FAR, WanEnd::Far)]
    }

    fn begin(&mut self) {
        self.tell(NEAR, AcceleratorInput::Start);
        self.tell(FAR, AcceleratorInput::Start);
    }

    /// The next connection of the client.
    fn connect(&mut self) {
        for state in &mut self.states {
            state.handle(self.now, SharedInput::FlowEnded(self.flow));
        }
        self.flow += 1;
        self.halves = Self::build(&mut self.states, self.flow);
        self.is_over = false;
        self.storing.clear();
        self.reports.clear();
        self.fetching.clear();
        self.begin();
    }

    fn wait(&mut self, seconds: u8) {
        self.now += Duration::from_secs(u64::from(seconds));
        for state in &mut self.states {
            let is_due = state.poll_timeout().is_some_and(|at| at <= self.now);
            if is_due {
                state.handle(self.now, SharedInput::Timeout);
            }
        }
        for half in [NEAR, FAR] {
            let is_due = self.halves[half]
                .poll_timeout()
                .is_some_and(|at| at <= self.now);
            if is_due {
                self.tell(half, AcceleratorInput::Timeout);
            }
        }
    }

    /// Tells a half something, and carries what follows from it until all is silent.
    fn tell(&mut self, half: usize, input: AcceleratorInput) {
        if self.is_over {
            return;
        }
        self.halves[half].handle(self.now, input);
        for _ in 0..MOST_OUTPUTS {
            if self.is_over {
                return;
            }
            if let Some(output) = self.halves[NEAR].poll_output() {
                self.carry(NEAR, output);
            } else if let Some(report) = self.reports.pop_front() {
                self.halves[NEAR].handle(self.now, AcceleratorInput::Content(report));
            } else if let Some(output) = self.halves[FAR].poll_output() {
                self.carry(FAR, output);
            } else if !self.wake() {
                return;
            }
        }
        panic!("more than {MOST_OUTPUTS} outputs after one input");
    }

    /// Wakes the flow if a state wants that; false if no state wants anything.
    fn wake(&mut self) -> bool {
        for half in [NEAR, FAR] {
            match self.states[half].poll_output() {
                Some(SharedOutput::Wake(flow)) if flow == self.flow => {
                    self.halves[half].handle(self.now, AcceleratorInput::Woken);
                    return true;
                }
                Some(_) => return true,
                None => {}
            }
        }
        false
    }

    fn carry(&mut self, from: usize, output: AcceleratorOutput) {
        let (now, to) = (self.now, 1 - from);
        match output {
            AcceleratorOutput::ToWan(segment) => {
                self.halves[to].handle(now, AcceleratorInput::Wan(segment));
            }
            AcceleratorOutput::FinishWan => {
                self.halves[to].handle(now, AcceleratorInput::WanFinished)
            }
            AcceleratorOutput::Content(request) => self.content(request),
            AcceleratorOutput::Server(connection, command) => self.command(connection, command),
            AcceleratorOutput::LettingGo(LettingGo::LetGo { .. } | LettingGo::Close { .. }) => {
                self.is_over = true;
            }
            _ => {}
        }
    }

    /// A dictionary in which a handle is the body itself.
    fn content(&mut self, request: ContentRequest) {
        match request {
            ContentRequest::Store { id } => drop(self.storing.insert(id, Vec::new())),
            ContentRequest::Append { id, bytes } => {
                if let Some(body) = self.storing.get_mut(&id) {
                    body.extend_from_slice(&bytes);
                }
            }
            ContentRequest::Finish { id } => {
                if let Some(body) = self.storing.remove(&id) {
                    let length = body.len() as u64;
                    let handle = ContentHandle::from_bytes(body.into());
                    let stored = ContentReport::Stored { id, handle, length };
                    self.reports.push_back(stored);
                }
            }
            ContentRequest::Abandon { id } => drop(self.storing.remove(&id)),
            ContentRequest::Read { id, handle, range } => {
                let body = handle.to_bytes();
                let range = range.start as usize..range.end as usize;
                match body.get(range) {
                    Some(part) => {
                        let bytes = Bytes::copy_from_slice(part);
                        let piece = ContentReport::Piece { id, bytes };
                        self.reports.extend((!part.is_empty()).then_some(piece));
                        self.reports.push_back(ContentReport::Ended { id });
                    }
                    None => self.reports.push_back(ContentReport::Gone {
                        id,
                        absence: ContentAbsence::Gone,
                    }),
                }
            }
            ContentRequest::StopReading { .. }
            | ContentRequest::Keep { .. }
            | ContentRequest::Release { .. } => {}
        }
    }

    fn command(&mut self, connection: ServerConnection, command: ServerCommand) {
        let mut event = |event| {
            let input = AcceleratorInput::Server(connection, event);
            self.halves[FAR].handle(self.now, input);
        };
        match command {
            ServerCommand::Open => {
                self.fetching.push(connection);
                event(ServerEvent::Connected);
            }
            ServerCommand::Write(bytes) => event(ServerEvent::Taken(bytes.len())),
            ServerCommand::Finish => {
                self.fetching.retain(|open| *open != connection);
                event(ServerEvent::Closed);
            }
            ServerCommand::Reset => self.fetching.retain(|open| *open != connection),
            ServerCommand::PauseReading | ServerCommand::ResumeReading => {}
        }
    }

    /// The server answers on the first further connection that is open.
    fn fetched(&mut self, bytes: Bytes) {
        if let Some(connection) = self.fetching.first().copied() {
            self.tell(
                FAR,
                AcceleratorInput::Server(connection, ServerEvent::Received(bytes)),
            );
        }
    }
}

/// Plays a script against both nodes. Whatever it says, nothing panics and nothing goes round in a circle.
pub(crate) fn pair(bytes: &[u8]) {
    let mut script = ByteScript::new(bytes);
    let mut nodes = HttpNodes::new();
    while let Some(step) = script.step() {
        let mut said = || Bytes::copy_from_slice(script.bytes());
        match step % 8 {
            CLIENT_SAYS => nodes.tell(NEAR, AcceleratorInput::Lan(said())),
            SERVER_SAYS => nodes.tell(FAR, AcceleratorInput::Lan(said())),
            FRAME_TO_NEAR => nodes.tell(NEAR, AcceleratorInput::Wan(FlowSegment::frame(said()))),
            FRAME_TO_FAR => nodes.tell(FAR, AcceleratorInput::Wan(FlowSegment::frame(said()))),
            FETCHED => nodes.fetched(said()),
            WAIT => nodes.wait(script.byte()),
            CONNECT => nodes.connect(),
            FINISH => {
                let half = usize::from(script.byte() % 2);
                nodes.tell(half, AcceleratorInput::LanFinished);
            }
            _ => unreachable!("a remainder of eight"),
        }
    }
}

/// Good inputs for [`pair`].
pub(crate) fn pair_seeds() -> Vec<CorpusSeed> {
    let say = |step: u8, text: &str| [&[step][..], &sized(text.as_bytes())].concat();
    let request = "GET /d/ HTTP/1.1\r\nHost: a\r\n\r\n";
    let fields = "ETag: \"1\"\r\nCache-Control: no-cache\r\n";
    let date = |second: &str| format!("Date: Thu, 01 Jan 2026 00:00:{second} GMT\r\n");
    let whole = format!(
        "HTTP/1.1 200 OK\r\n{}{fields}Content-Length: 5\r\n\r\nhello",
        date("00")
    );
    let unchanged = |second| format!("HTTP/1.1 304 Not Modified\r\n{}{fields}\r\n", date(second));
    // A response that is stored, recalled twice, and then recalled with a tag that the far node does not know.
    let recall = [
        say(CLIENT_SAYS, request),
        say(SERVER_SAYS, &whole),
        vec![WAIT, 2, CONNECT],
        say(CLIENT_SAYS, request),
        say(SERVER_SAYS, &unchanged("02")),
        vec![WAIT, 2, CONNECT],
        say(CLIENT_SAYS, request),
        say(SERVER_SAYS, &unchanged("04")),
        say(FRAME_TO_FAR, "\x05tag-tag-"),
        say(FRAME_TO_NEAR, "\x19tag-tag-"),
    ];
    let page = "<link rel=stylesheet href=a.css><img src=b.png>";
    let length = page.len();
    let page = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\r\n{page}"
    );
    let object = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nCache-Control: max-age=9\r\n\r\nab";
    // A page whose objects come ahead; the second request is answered with one of them.
    let prefetch = [
        say(CLIENT_SAYS, request),
        say(SERVER_SAYS, &page),
        say(FETCHED, object),
        say(
            CLIENT_SAYS,
            "GET /d/a.css HTTP/1.1\r\nHost: a\r\nReferer: http://a/d/\r\n\r\n",
        ),
        say(FETCHED, object),
        vec![FINISH, 0],
    ];
    // Pipelined requests, the second of which is stored.
    let fresh = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nab";
    let pipelined = [
        say(CLIENT_SAYS, request),
        say(SERVER_SAYS, fresh),
        vec![CONNECT],
        say(
            CLIENT_SAYS,
            &["GET /late HTTP/1.1\r\nHost: a\r\n\r\n", request, request].concat(),
        ),
        say(
            SERVER_SAYS,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
        ),
    ];
    vec![
        seed("recall", recall.concat()),
        seed("prefetch", prefetch.concat()),
        seed("pipelined", pipelined.concat()),
    ]
}
