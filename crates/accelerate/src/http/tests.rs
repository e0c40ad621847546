//! The two halves back to back: what goes in comes out, whatever the pieces.

mod caching;
mod collapse;
mod invalidation;
mod pipelining;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use vocab::{SeededRandom, SegmentKind, Time};

use super::far::HttpFarHalf;
use super::near::HttpNearHalf;
use super::reasons;
use super::shared::SharedCache;
use super::testing::{REQUESTS, RESPONSES};
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ContentAbsence, ContentHandle, ContentId,
    ContentReport, ContentRequest, LettingGo, ReasonCode, WanEnd,
};

/// Both halves, and what the hosts have got.
struct HttpHalfPair {
    /// `None` once they have been let go.
    halves: Option<(HttpNearHalf, HttpFarHalf)>,
    let_go: Option<ReasonCode>,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    client_finished: bool,
    server_finished: bool,
    /// Payload that crossed, towards the server and towards the client.
    payload: [Vec<u8>; 2],
    closed: Option<ReasonCode>,
    contents: ContentFixture,
    now: Time,
    /// The number of the flow.
    flow: u64,
}

/// A dictionary for the near half: a handle is the body itself.
#[derive(Default)]
pub(super) struct ContentFixture {
    pub(super) storing: BTreeMap<ContentId, Vec<u8>>,
    /// Reads that have not ended.
    pub(super) reading: BTreeSet<ContentId>,
    /// Reads bring nothing, as those that wait for the disk.
    pub(super) is_stalled: bool,
    pub(super) reports: VecDeque<ContentReport>,
    /// How many pieces of a body are there until it is gone.
    gone_after: Option<usize>,
    /// Nothing is reported for now.
    is_paused: bool,
}

impl ContentFixture {
    fn next_report(&mut self) -> Option<ContentReport> {
        match self.is_paused {
            true => None,
            false => self.reports.pop_front(),
        }
    }

    pub(super) fn take(&mut self, request: ContentRequest) {
        match request {
            ContentRequest::Store { id } => drop(self.storing.insert(id, Vec::new())),
            ContentRequest::Append { id, bytes } => {
                let storing = self.storing.get_mut(&id);
                storing.expect("it was begun").extend_from_slice(&bytes);
            }
            ContentRequest::Finish { id } => {
                let body = self.storing.remove(&id).expect("it was begun");
                let length = body.len() as u64;
                let handle = ContentHandle::from_bytes(body.into());
                let stored = ContentReport::Stored { id, handle, length };
                self.reports.push_back(stored);
            }
            ContentRequest::Abandon { id } => drop(self.storing.remove(&id)),
            ContentRequest::Read { id, .. } if self.is_stalled => {
                self.reading.insert(id);
            }
            ContentRequest::Read { id, handle, range } => {
                let body = handle.to_bytes();
                let body = body.slice(range.start as usize..range.end as usize);
                let pieces = body.chunks(2).map(Bytes::copy_from_slice);
                let given = pieces.take(self.gone_after.unwrap_or(usize::MAX));
                self.reports
                    .extend(given.map(|bytes| ContentReport::Piece { id, bytes }));
                self.reports.push_back(match self.gone_after {
                    Some(_) => ContentReport::Gone {
                        id,
                        absence: ContentAbsence::Gone,
                    },
                    None => ContentReport::Ended { id },
                });
            }
            ContentRequest::StopReading { id } => {
                self.reading.remove(&id);
                self.reports.clear();
            }
            // Nothing is evicted here.
            ContentRequest::Keep { .. } | ContentRequest::Release { .. } => {}
        }
    }
}

impl HttpHalfPair {
    fn new() -> Self {
        Self::with(None)
    }

    fn with(cache: Option<SharedCache>) -> Self {
        let mut pair = Self {
            halves: Some((HttpNearHalf::new(cache), HttpFarHalf::new())),
            let_go: None,
            to_server: Vec::new(),
            to_client: Vec::new(),
            client_finished: false,
            server_finished: false,
            payload: [Vec::new(), Vec::new()],
            closed: None,
            contents: ContentFixture::default(),
            now: Time::ZERO,
            flow: 0,
        };
        pair.tell(WanEnd::Near, AcceleratorInput::Start);
        pair.tell(WanEnd::Far, AcceleratorInput::Start);
        pair
    }

    fn say(&mut self, half: WanEnd, bytes: &[u8]) {
        self.tell(half, AcceleratorInput::Lan(Bytes::copy_from_slice(bytes)));
    }

    /// Does what an engine does, for both nodes and without a path between them.
    fn tell(&mut self, half: WanEnd, input: AcceleratorInput) {
        let Some((near, far)) = &mut self.halves else {
            return match (half, input) {
                (WanEnd::Near, AcceleratorInput::Lan(bytes)) => {
                    self.to_server.extend_from_slice(&bytes)
                }
                (WanEnd::Far, AcceleratorInput::Lan(bytes)) => {
                    self.to_client.extend_from_slice(&bytes)
                }
                (_, other) => panic!("{other:?} after both have let go"),
            };
        };
        match half {
            WanEnd::Near => near.handle(self.now, input),
            WanEnd::Far => far.handle(self.now, input),
        }
        let mut let_go = false;
        loop {
            if let Some(output) = near.poll_output() {
                assert!(!let_go, "{output:?} after letting go");
                match output {
                    AcceleratorOutput::ToWan(segment) => {
                        if segment.kind == SegmentKind::Payload {
                            self.payload[0].extend_from_slice(&segment.bytes);
                        }
                        far.handle(self.now, AcceleratorInput::Wan(segment));
                    }
                    AcceleratorOutput::FinishWan => {
                        far.handle(self.now, AcceleratorInput::WanFinished)
                    }
                    AcceleratorOutput::ToLan(bytes) => self.to_client.extend_from_slice(&bytes),
                    AcceleratorOutput::FinishLan => self.client_finished = true,
                    AcceleratorOutput::Content(request) => self.contents.take(request),
                    AcceleratorOutput::OpenFlow | AcceleratorOutput::AnsweredHere(_) => {}
                    AcceleratorOutput::LettingGo(LettingGo::LetGo { reason }) => {
                        let_go = true;
                        self.let_go = Some(reason);
                    }
                    AcceleratorOutput::LettingGo(LettingGo::Close { reason }) => {
                        self.closed = Some(reason);
                    }
                    other => panic!("{other:?}"),
                }
            } else if let Some(report) = self.contents.next_report() {
                near.handle(self.now, AcceleratorInput::Content(report));
            } else if let Some(output) = far.poll_output() {
                match output {
                    AcceleratorOutput::ToWan(segment) => {
                        if segment.kind == SegmentKind::Payload {
                            self.payload[1].extend_from_slice(&segment.bytes);
                        }
                        match let_go {
                            true => self.to_client.extend_from_slice(&segment.bytes),
                            false => near.handle(self.now, AcceleratorInput::Wan(segment)),
                        }
                    }
                    AcceleratorOutput::FinishWan => {
                        near.handle(self.now, AcceleratorInput::WanFinished)
                    }
                    AcceleratorOutput::ToLan(bytes) => self.to_server.extend_from_slice(&bytes),
                    AcceleratorOutput::FinishLan => self.server_finished = true,
                    AcceleratorOutput::OpenServer | AcceleratorOutput::EndBody => {}
                    other => panic!("{other:?}"),
                }
            } else {
                break;
            }
        }
        if let_go {
            self.halves = None;
        }
    }
}

fn pieces<'a>(mut bytes: &'a [u8], random: &mut SeededRandom) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let most = bytes.len().min(60) as u64;
        let (piece, rest) = bytes.split_at(1 + random.below(most) as usize);
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

#[test]
fn a_conversation_passes_unchanged_with_bodies_as_payload() {
    let mut random = SeededRandom::from_seed(1);
    for _ in 0..200 {
        let mut pair = HttpHalfPair::new();
        for piece in pieces(REQUESTS, &mut random) {
            pair.say(WanEnd::Near, piece);
        }
        for piece in pieces(RESPONSES, &mut random) {
            pair.say(WanEnd::Far, piece);
        }
        pair.tell(WanEnd::Far, AcceleratorInput::LanFinished);
        assert_eq!(pair.to_server, REQUESTS);
        assert_eq!(pair.to_client, RESPONSES);
        assert!(pair.client_finished && !pair.server_finished);
        assert_eq!(pair.let_go, None);
        assert_eq!(pair.payload[0], b"wiki0123456789hello");
        assert_eq!(pair.payload[1], b"abcabcde");
    }
}

#[test]
fn a_response_is_passed_on_before_it_is_whole() {
    let mut pair = HttpHalfPair::new();
    pair.say(WanEnd::Near, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let begin = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n";
    pair.say(WanEnd::Far, begin);
    assert_eq!(pair.to_client, begin);
    pair.say(WanEnd::Far, b"d");
    assert_eq!(pair.to_client.len(), begin.len() + 1);
}

#[test]
fn an_ambiguous_request_is_let_go_when_the_responses_before_it_have_ended() {
    let first = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let second = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab";
    let mut pair = HttpHalfPair::new();
    pair.say(WanEnd::Near, &[&first[..], second].concat());
    assert_eq!(pair.to_server, [&first[..], second].concat());
    assert_eq!(pair.let_go, None);
    pair.say(WanEnd::Near, b"more");
    pair.say(
        WanEnd::Far,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 400 x\r\n",
    );
    assert_eq!(pair.let_go, Some(ReasonCode::VIOLATION));
    pair.say(WanEnd::Far, b"\r\n");
    assert_eq!(pair.to_server, [&first[..], second, b"more"].concat());
    let answered = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 400 x\r\n\r\n";
    assert_eq!(pair.to_client, answered);
}

#[test]
fn tunnels_and_upgrades_are_let_go() {
    let mut pair = HttpHalfPair::new();
    pair.say(
        WanEnd::Near,
        b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n\x16\x03",
    );
    assert_eq!(pair.let_go, Some(reasons::UPGRADED));
    assert_eq!(
        pair.to_server,
        b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n\x16\x03"
    );

    let mut pair = HttpHalfPair::new();
    pair.say(WanEnd::Near, b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\r\n");
    assert_eq!(pair.let_go, None);
    let switched = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello";
    pair.say(WanEnd::Far, switched);
    assert_eq!(pair.let_go, Some(reasons::UPGRADED));
    assert_eq!(pair.to_client, switched);
}

#[test]
fn a_declined_upgrade_goes_on_as_http() {
    let mut pair = HttpHalfPair::new();
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n";
    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for _ in 0..2 {
        pair.say(WanEnd::Near, request);
        pair.say(WanEnd::Far, response);
    }
    assert_eq!(pair.let_go, None);
    // A client that does not wait for the answer is not understood.
    pair.say(WanEnd::Near, &[&request[..], request].concat());
    pair.say(WanEnd::Far, &[&response[..], response].concat());
    assert_eq!(pair.let_go, Some(reasons::UPGRADED));
    assert_eq!(pair.to_server, request.repeat(4));
    assert_eq!(pair.to_client, response.repeat(4));
}

#[test]
fn a_server_that_speaks_no_http_is_let_go() {
    let mut pair = HttpHalfPair::new();
    pair.say(WanEnd::Near, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    for piece in [&b"HT"[..], b"TP/1.1 2", b"x nonsense\r\nand more"] {
        pair.say(WanEnd::Far, piece);
    }
    assert_eq!(pair.let_go, Some(ReasonCode::VIOLATION));
    assert_eq!(pair.to_client, b"HTTP/1.1 2x nonsense\r\nand more");
}

#[test]
fn a_head_that_never_ends_is_put_out_at_the_end_of_the_stream() {
    let mut pair = HttpHalfPair::new();
    pair.say(WanEnd::Near, b"GET / HT");
    pair.tell(WanEnd::Near, AcceleratorInput::LanFinished);
    assert_eq!(pair.to_server, b"GET / HT");
    assert!(pair.server_finished);
}

/// Bent conversations: whatever the hosts say arrives, byte for byte.
#[test]
fn bent_streams_pass_unchanged() {
    let mut random = SeededRandom::from_seed(28);
    let mut let_go = 0;
    for _ in 0..3_000 {
        let (asked, answered) = (bent(REQUESTS, &mut random), bent(RESPONSES, &mut random));
        let mut pair = HttpHalfPair::new();
        let mut said = [pieces(&asked, &mut random), pieces(&answered, &mut random)];
        said.iter_mut().for_each(|said| said.reverse());
        while said.iter().any(|said| !said.is_empty()) {
            let side = random.below(2) as usize;
            if let Some(piece) = said[side].pop() {
                pair.say([WanEnd::Near, WanEnd::Far][side], piece);
            }
        }
        if pair.halves.is_some() {
            pair.tell(WanEnd::Near, AcceleratorInput::LanFinished);
            pair.tell(WanEnd::Far, AcceleratorInput::LanFinished);
        }
        assert!(pair.to_server == asked && pair.to_client == answered);
        let_go += usize::from(pair.let_go.is_some());
    }
    assert!(let_go > 500, "{let_go}");
}

fn bent(stream: &[u8], random: &mut SeededRandom) -> Vec<u8> {
    let mut bent = stream.to_vec();
    for _ in 0..random.below(3) {
        let at = random.below(bent.len() as u64) as usize;
        let byte = b"\r\n \t:;,0\0a"[random.below(10) as usize];
        match random.below(3) {
            0 => bent[at] = byte,
            1 => bent.insert(at, byte),
            _ => drop(bent.remove(at)),
        }
    }
    bent
}
