//! The requests of an HTTP/2 client, each as an exchange of HTTP/1.1 in a lane of its own.
//!
//! ```text
//!  client ═HTTP/2═► Http2Server ─┬─► lane: Near (cache) ─┐ a number: Lane(n), segments ─► far half
//!                                └─► lane: Near (cache) ─┘ no number yet: it waits
//! ```
//! A lane has an HTTP/1.1 half of its own, so an answer from the cache needs nothing else, and a slow response holds up no
//! other. What has to go to the origin needs one of [`LANES_MAX`] numbers. The far half has [`LINKS_MAX`] connections for
//! them, and requests wait there for a connection. A lane whose exchange has ended keeps its number for the next request,
//! or gives it to a lane that waits.
//!
//! A number whose connection ended, or whose client lost interest, is used again only when the far half has said that
//! nothing of the former use follows (Reset, ResetDone), so no response can be taken for that to another request.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use ::h2::Reason;
use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::facts::ProvedOrigin;
use super::frames::TlsFrame;
use super::open_transfers::OpenTransfers;
use crate::http::h2::{Http2Event, Http2Server, RequestBody};
use crate::http::near::HttpNearHalf;
use crate::http::parts::NearHalfParts;
use crate::http::shared::SharedCache;
use crate::http::wire::{BodyExpectation, BodyFraming, MessagePart, ResponseHead, Responses};
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ContentId, ContentReport, ContentRequest,
    LettingGo,
};

/// Lanes of one client's connection that the far half knows: as many as a client may have streams.
pub(super) const LANES_MAX: u8 = 100;
/// Connections to the origin of one client's connection: as many as browsers open without HTTP/2.
pub(super) const LINKS_MAX: u8 = 6;
/// Bytes of a response that may be on their way to a client that does not read: 160 Mbit/s at a round trip of 100 ms.
pub(super) const LANE_CREDIT: u32 = 2 << 20;
/// Credit is given back in portions of at least this size.
const LEAST_CREDIT: u32 = 64 * 1024;
/// Stored content that may wait for the windows of a client; then no more is read.
const CONTENT_WAITING_MAX: usize = 16 << 20;

/// All exchanges of one client's connection.
pub(super) struct ClientLanes {
    server: Http2Server,
    lanes: BTreeMap<u32, ClientLane>,
    next_lane: u32,
    numbers: [NumberUse; LANES_MAX as usize],
    /// Lanes that wait for a number, the first in front.
    waiting: VecDeque<u32>,
    /// The number that the far half's segments belong to, and that ours do.
    heard: Option<u8>,
    said: Option<u8>,
    /// Bytes of responses that wait for the client's windows, by stream, and the number that they came by.
    unsent: BTreeMap<u32, (u8, usize)>,
    /// Bytes that the far half has no credit back for, by number.
    credit: [u32; LANES_MAX as usize],
    origin: LaneOrigin,
    /// Content that lanes store or read.
    transfers: OpenTransfers,
    answered: u64,
    now: Time,
    outputs: VecDeque<AcceleratorOutput>,
}

/// The origin of all lanes.
struct LaneOrigin {
    server: SocketAddr,
    cache: Option<SharedCache>,
    proved: Arc<ProvedOrigin>,
    /// Parts of the lanes' halves.
    parts: NearHalfParts,
}

/// The use of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberUse {
    Free,
    /// By this lane.
    Lane(u32),
    /// By nobody, but segments of its former use may still come.
    Resetting,
}

struct ClientLane {
    near: HttpNearHalf,
    responses: Responses,
    exchange: Option<LaneExchange>,
    number: Option<u8>,
    /// Requests that wait for a lane number.
    held: Vec<AcceleratorOutput>,
    /// The connection to the origin has ended.
    is_ended: bool,
    /// It has ended otherwise than TLS wants it, so that a response may have been cut.
    is_cut: bool,
}

/// A request and its response.
struct LaneExchange {
    stream: u32,
    head: Bytes,
    body: RequestBody,
    /// The request has been taken to its end.
    is_asked: bool,
    /// Bytes of the response have come.
    has_answer: bool,
    /// The final head has been passed on.
    has_head: bool,
    /// The response ends with the connection.
    ends_with_connection: bool,
    /// The request was sent before, and got no answer.
    is_retry: bool,
}

impl ClientLanes {
    /// A connection that has said nothing yet.
    pub(super) fn new(
        server: SocketAddr,
        cache: Option<SharedCache>,
        proved: Arc<ProvedOrigin>,
        parts: NearHalfParts,
    ) -> Self {
        Self {
            server: Http2Server::new(),
            lanes: BTreeMap::new(),
            next_lane: 0,
            numbers: [NumberUse::Free; LANES_MAX as usize],
            waiting: VecDeque::new(),
            heard: None,
            said: None,
            unsent: BTreeMap::new(),
            credit: [0; LANES_MAX as usize],
            origin: LaneOrigin {
                server,
                cache,
                proved,
                parts,
            },
            transfers: OpenTransfers::default(),
            answered: 0,
            now: Time::ZERO,
            outputs: VecDeque::new(),
        }
    }

    /// The next thing for the far half or for the node's content.
    pub(super) fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    /// The bytes that are to go to the client.
    pub(super) fn take_client_output(&mut self) -> Bytes {
        self.server.take_output()
    }

    /// True once the client's connection is of no more use.
    pub(super) fn is_closed(&self) -> bool {
        self.server.is_closed()
    }

    /// Takes what the client sends.
    pub(super) fn hear_client(&mut self, now: Time, bytes: Bytes) {
        self.now = now;
        self.server.receive(now, bytes);
        self.take_events();
    }

    /// The client sends no more.
    pub(super) fn client_finished(&mut self, now: Time) {
        self.now = now;
        self.server.finish();
        self.take_events();
    }

    fn take_events(&mut self) {
        loop {
            while let Some(event) = self.server.poll_event() {
                match event {
                    Http2Event::Request {
                        stream,
                        head,
                        host,
                        body,
                    } => self.begin(stream, head, &host, body),
                    Http2Event::Body { stream, bytes } => self.request_body(stream, &bytes),
                    Http2Event::BodyEnded { stream } => self.request_ended(stream),
                    Http2Event::Reset { stream } => self.client_reset(stream),
                }
            }
            self.server.drive();
            self.give_credit();
            if !self.server.has_events() {
                return;
            }
        }
    }

    fn begin(&mut self, stream: u32, head: Bytes, host: &str, body: RequestBody) {
        // RFC 9110 §15.5.20 (421 Misdirected Request): the origin has not proved to be that host, or the host is excluded
        // and wants a connection of its own, which passes untouched.
        if !self.origin.proved.answers_for(host) {
            return self.answer_error(stream, 421);
        }
        self.dispatch(stream, head, body, false);
    }

    /// Gives a request to a lane that is free, or to a new one.
    fn dispatch(&mut self, stream: u32, head: Bytes, body: RequestBody, is_retry: bool) {
        // What comes ahead in a lane yields to the lane's own responses, so it keeps its lane.
        let is_free = |lane: &ClientLane| lane.number.is_some() && lane.is_spare();
        let mut lanes = self.lanes.iter();
        let free = lanes.find(|(_, lane)| is_free(lane) && !is_retry);
        let key = match free.map(|(key, _)| *key) {
            Some(key) => key,
            None => self.add_lane(),
        };
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        lane.responses.expect(match head.starts_with(b"HEAD ") {
            true => BodyExpectation::NoBody,
            false => BodyExpectation::Usual,
        });
        lane.exchange = Some(LaneExchange {
            stream,
            head: head.clone(),
            body,
            is_asked: body == RequestBody::Empty,
            has_answer: false,
            has_head: false,
            ends_with_connection: false,
            is_retry,
        });
        self.tell(key, AcceleratorInput::Lan(head));
    }

    fn add_lane(&mut self) -> u32 {
        self.next_lane = self.next_lane.wrapping_add(1);
        let key = self.next_lane;
        let proved = &self.origin.proved;
        let cache = self.origin.cache.as_ref();
        let cache =
            cache.map(|cache| cache.for_proved_server(self.origin.server, Arc::clone(proved)));
        let mut lane = ClientLane {
            near: self.origin.parts.build_lane(cache, key),
            responses: Responses::new(),
            exchange: None,
            number: None,
            held: Vec::new(),
            is_ended: false,
            is_cut: false,
        };
        // Not by `tell`, which lets go of a lane that has nothing to do.
        lane.near.handle(self.now, AcceleratorInput::Start);
        self.lanes.insert(key, lane);
        key
    }

    fn lane_of(&self, stream: u32) -> Option<u32> {
        let is_of = |lane: &ClientLane| {
            let exchange = lane.exchange.as_ref();
            exchange.is_some_and(|exchange| exchange.stream == stream)
        };
        let mut lanes = self.lanes.iter();
        lanes.find(|(_, lane)| is_of(lane)).map(|(key, _)| *key)
    }

    fn request_body(&mut self, stream: u32, bytes: &Bytes) {
        let Some(key) = self.lane_of(stream) else {
            return self.server.release(stream, bytes.len());
        };
        let exchange = self.lanes.get(&key).and_then(|lane| lane.exchange.as_ref());
        let is_chunked = exchange.is_some_and(|one| one.body == RequestBody::Chunked);
        match is_chunked {
            true if bytes.is_empty() => {}
            true => {
                let size = format!("{:x}\r\n", bytes.len());
                self.tell(key, AcceleratorInput::Lan(size.into_bytes().into()));
                self.tell(key, AcceleratorInput::Lan(bytes.clone()));
                self.tell(key, AcceleratorInput::Lan(Bytes::from_static(b"\r\n")));
            }
            false => self.tell(key, AcceleratorInput::Lan(bytes.clone())),
        }
    }

    fn request_ended(&mut self, stream: u32) {
        let Some(key) = self.lane_of(stream) else {
            return;
        };
        let mut is_chunked = false;
        if let Some(exchange) = self.exchange_mut(key) {
            exchange.is_asked = true;
            is_chunked = exchange.body == RequestBody::Chunked;
        }
        if is_chunked {
            let last = Bytes::from_static(b"0\r\n\r\n");
            self.tell(key, AcceleratorInput::Lan(last));
        }
    }

    fn exchange_mut(&mut self, key: u32) -> Option<&mut LaneExchange> {
        self.lanes.get_mut(&key)?.exchange.as_mut()
    }

    fn client_reset(&mut self, stream: u32) {
        if let Some((number, unsent)) = self.unsent.remove(&stream) {
            self.credit[usize::from(number)] += unsent as u32;
        }
        if let Some(key) = self.lane_of(stream) {
            self.discard(key);
        }
    }

    /// A lane is of no use any more, and its number only when the far half has let go of it.
    fn discard(&mut self, key: u32) {
        if let Some(number) = self.remove_lane(key).and_then(|lane| lane.number) {
            self.reset_number(number);
        }
    }

    /// Takes a lane out, with what it stores and reads.
    fn remove_lane(&mut self, key: u32) -> Option<ClientLane> {
        let mut lane = self.lanes.remove(&key)?;
        lane.near.abandon();
        self.answered += lane.near.answered();
        self.waiting.retain(|waiting| *waiting != key);
        let first = u64::from(key) << 32;
        let ids = ContentId(first)..=ContentId(first | u64::from(u32::MAX));
        let requests = self.transfers.end(ids).into_iter();
        self.outputs
            .extend(requests.map(AcceleratorOutput::Content));
        Some(lane)
    }

    fn reset_number(&mut self, number: u8) {
        self.numbers[usize::from(number)] = NumberUse::Resetting;
        self.credit[usize::from(number)] = 0;
        self.said = self.said.filter(|said| *said != number);
        self.unsent.retain(|_, (of, _)| *of != number);
        self.send_frame(&TlsFrame::Reset(number));
    }

    fn send_frame(&mut self, frame: &TlsFrame) {
        self.outputs
            .push_back(AcceleratorOutput::ToWan(frame.to_segment()));
    }

    /// Answers a request with an error of this node.
    fn answer_error(&mut self, stream: u32, status: u16) {
        let text = format!("HTTP/1.1 {status} \r\nContent-Length: 0\r\n\r\n");
        if let Ok(head) = ResponseHead::parse(text.into_bytes().into()) {
            self.server.respond(stream, &head, true);
        }
    }

    /// Tells a lane's half what happened, and does what it wants.
    fn tell(&mut self, key: u32, input: AcceleratorInput) {
        let now = self.now;
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        lane.near.handle(now, input);
        while let Some(lane) = self.lanes.get_mut(&key)
            && let Some(output) = lane.near.poll_output()
        {
            match output {
                AcceleratorOutput::ToLan(bytes) => self.response(key, bytes),
                AcceleratorOutput::FinishLan => self.response_cut(key),
                AcceleratorOutput::ToWan(_) | AcceleratorOutput::EndBody => {
                    self.lane_output(key, output);
                }
                AcceleratorOutput::Content(request) => {
                    let request = with_id(request, |id| of_lane(key, id));
                    self.transfers.note_request(&request);
                    self.outputs.push_back(AcceleratorOutput::Content(request));
                }
                // Its messages cannot be followed any further; there is nothing that could pass.
                AcceleratorOutput::LettingGo(LettingGo::LetGo { .. } | LettingGo::Close { .. }) => {
                    self.give_up(key);
                }
                AcceleratorOutput::FinishWan
                | AcceleratorOutput::OpenFlow
                | AcceleratorOutput::AnsweredHere(_)
                | AcceleratorOutput::OpenServer
                | AcceleratorOutput::Server(..)
                | AcceleratorOutput::Claim(_)
                | AcceleratorOutput::ClaimReleased => {}
            }
        }
        self.settle(key);
    }

    /// Ends an exchange that cannot be ended well.
    fn give_up(&mut self, key: u32) {
        let exchange = self
            .lanes
            .get_mut(&key)
            .and_then(|lane| lane.exchange.take());
        self.discard(key);
        let Some(exchange) = exchange else {
            return;
        };
        match exchange.has_head {
            true => self.server.reset(exchange.stream, Reason::INTERNAL_ERROR),
            false => self.answer_error(exchange.stream, 502),
        }
    }

    /// Something of a lane for the far half, which waits for a number if the lane has none.
    fn lane_output(&mut self, key: u32, output: AcceleratorOutput) {
        if self.number_of(key).is_none() {
            self.find_number(key);
        }
        match self.number_of(key) {
            Some(number) => self.send(number, output),
            None => {
                if !self.waiting.contains(&key) {
                    self.waiting.push_back(key);
                }
                if let Some(lane) = self.lanes.get_mut(&key) {
                    lane.held.push(output);
                }
            }
        }
    }

    fn number_of(&self, key: u32) -> Option<u8> {
        self.lanes.get(&key)?.number
    }

    /// Gives the lane a number, if one is free or belongs to a lane without an exchange.
    fn find_number(&mut self, key: u32) {
        let free = self.numbers.iter().position(|one| *one == NumberUse::Free);
        let number = free.or_else(|| {
            let mut lanes = self.lanes.iter();
            let idle = lanes.find(|(_, lane)| lane.number.is_some() && lane.is_spare());
            let idle = idle.map(|(key, _)| *key)?;
            self.remove_lane(idle)?.number.map(usize::from)
        });
        if let Some(number) = number
            && let Some(lane) = self.lanes.get_mut(&key)
        {
            self.numbers[number] = NumberUse::Lane(key);
            lane.number = u8::try_from(number).ok();
        }
    }

    fn send(&mut self, number: u8, output: AcceleratorOutput) {
        if self.said != Some(number) {
            self.said = Some(number);
            self.send_frame(&TlsFrame::Lane(number));
        }
        self.outputs.push_back(output);
    }

    /// Lets lanes go on that wait for a number.
    fn serve_waiting(&mut self) {
        while let Some(&key) = self.waiting.front() {
            self.find_number(key);
            let Some(number) = self.number_of(key) else {
                return;
            };
            self.waiting.pop_front();
            let held = self
                .lanes
                .get_mut(&key)
                .map(|lane| std::mem::take(&mut lane.held));
            for output in held.unwrap_or_default() {
                self.send(number, output);
            }
        }
    }

    /// Takes what a lane's half answers the client.
    fn response(&mut self, key: u32, mut bytes: Bytes) {
        while !bytes.is_empty()
            && let Some(lane) = self.lanes.get_mut(&key)
        {
            let Some(exchange) = &mut lane.exchange else {
                return;
            };
            exchange.has_answer = true;
            let stream = exchange.stream;
            let Ok(step) = lane.responses.step(&bytes) else {
                return self.give_up(key);
            };
            let run = bytes.split_to(step.length);
            match step.what {
                MessagePart::PartOfHead | MessagePart::Control => {}
                MessagePart::Head(_, BodyFraming::Opaque) => return self.give_up(key),
                MessagePart::Head(head, _) if head.is_interim() => {
                    self.server.inform(stream, &head);
                    continue;
                }
                MessagePart::Head(head, body) => {
                    exchange.has_head = true;
                    exchange.ends_with_connection = body == BodyFraming::UntilClose;
                    self.server.respond(stream, &head, step.is_end);
                }
                MessagePart::Payload | MessagePart::Opaque => self.server.send_body(stream, run),
            }
            if step.is_end {
                self.server.finish_body(stream);
                self.end_exchange(key);
            }
        }
    }

    /// A response has ended well.
    fn end_exchange(&mut self, key: u32) {
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        let exchange = lane.exchange.take();
        // The rest of a request that was answered early has nowhere to go.
        if exchange.is_some_and(|exchange| !exchange.is_asked) {
            self.discard(key);
        }
    }

    /// A lane's half has ended its connection to the client.
    fn response_cut(&mut self, key: u32) {
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        let is_cut = lane.is_cut;
        let exchange = lane.exchange.take();
        self.discard(key);
        let Some(exchange) = exchange else {
            return;
        };
        let is_safe = [&b"GET "[..], b"HEAD ", b"OPTIONS "]
            .iter()
            .any(|method| exchange.head.starts_with(method));
        let may_repeat = is_safe && exchange.body == RequestBody::Empty && !exchange.is_retry;
        match (exchange.has_head, exchange.ends_with_connection && !is_cut) {
            (true, true) => self.server.finish_body(exchange.stream),
            (true, false) => self.server.reset(exchange.stream, Reason::INTERNAL_ERROR),
            // RFC 9110 §9.2.2 (Idempotent Methods): the origin closed an idle connection at the same moment.
            (false, _) if may_repeat && !exchange.has_answer => {
                self.dispatch(exchange.stream, exchange.head, exchange.body, true);
            }
            (false, _) => self.answer_error(exchange.stream, 502),
        }
    }

    /// Lets go of a lane that has nothing to do, and of a number that others wait for.
    fn settle(&mut self, key: u32) {
        let lane = self.lanes.get(&key).filter(|lane| lane.number.is_none());
        if lane.is_some_and(|lane| lane.is_spare() || lane.is_ended && lane.exchange.is_none()) {
            self.remove_lane(key);
        }
        self.serve_waiting();
    }

    /// Tells the far half what the client's windows have let go.
    fn give_credit(&mut self) {
        for (stream, bytes) in self.server.take_sent() {
            let Some((number, unsent)) = self.unsent.get_mut(&stream) else {
                continue;
            };
            let sent = bytes.min(*unsent);
            *unsent -= sent;
            self.credit[usize::from(*number)] += sent as u32;
            if *unsent == 0 {
                self.unsent.remove(&stream);
            }
        }
        for number in 0..LANES_MAX {
            let credit = &mut self.credit[usize::from(number)];
            if *credit >= LEAST_CREDIT {
                let bytes = std::mem::take(credit);
                self.send_frame(&TlsFrame::Credit(number, bytes));
            }
        }
    }

    /// Takes a segment of the far half.
    pub(super) fn hear_far(&mut self, now: Time, segment: FlowSegment) {
        self.now = now;
        let Some(number) = self.heard.filter(|number| *number < LANES_MAX) else {
            return;
        };
        let NumberUse::Lane(key) = self.numbers[usize::from(number)] else {
            return;
        };
        // Frames are short, and need no credit.
        let length = match segment.kind {
            SegmentKind::Frame => 0,
            SegmentKind::Payload | SegmentKind::Control => segment.bytes.len(),
        };
        let stream = self.exchange_mut(key).map(|exchange| exchange.stream);
        let pending = |server: &Http2Server| stream.map_or(0, |stream| server.pending(stream));
        let before = pending(&self.server);
        self.tell(key, AcceleratorInput::Wan(segment));
        // What waits for the client's windows is credited when they have let it go.
        let waits = pending(&self.server).saturating_sub(before).min(length);
        self.credit[usize::from(number)] += (length - waits) as u32;
        if let Some(stream) = stream.filter(|_| waits > 0) {
            self.unsent.entry(stream).or_insert((number, 0)).1 += waits;
        }
        self.take_events();
    }

    /// Takes a frame of the far half.
    pub(super) fn hear_frame(&mut self, now: Time, frame: &TlsFrame) {
        self.now = now;
        let user = |number: u8| self.numbers.get(usize::from(number)).copied();
        match *frame {
            TlsFrame::Lane(number) => self.heard = Some(number),
            TlsFrame::ResetDone(number) => {
                if user(number) == Some(NumberUse::Resetting) {
                    self.numbers[usize::from(number)] = NumberUse::Free;
                    self.serve_waiting();
                }
            }
            TlsFrame::LaneEnded(number, is_clean) => {
                if let Some(NumberUse::Lane(key)) = user(number) {
                    if let Some(lane) = self.lanes.get_mut(&key) {
                        lane.is_ended = true;
                        lane.is_cut = !is_clean;
                    }
                    self.tell(key, AcceleratorInput::WanFinished);
                    // If it still is there, it waits for an answer of its own; its number is of no use.
                    if self.number_of(key).is_some() {
                        self.discard_number(key);
                    }
                }
            }
            TlsFrame::Taken(number, bytes) => {
                if let Some(NumberUse::Lane(key)) = user(number)
                    && let Some(exchange) = self.exchange_mut(key)
                {
                    let stream = exchange.stream;
                    self.server.release(stream, bytes as usize);
                }
            }
            TlsFrame::Ask { .. }
            | TlsFrame::Begin { .. }
            | TlsFrame::Relay
            | TlsFrame::Facts(_)
            | TlsFrame::Refused(..)
            | TlsFrame::Failed(..)
            | TlsFrame::Reset(_)
            | TlsFrame::Credit(..) => {}
        }
        self.take_events();
    }

    /// The connection behind a lane's number has ended, and the lane goes on without.
    fn discard_number(&mut self, key: u32) {
        if let Some(lane) = self.lanes.get_mut(&key)
            && let Some(number) = lane.number.take()
        {
            self.reset_number(number);
            self.settle(key);
        }
    }

    /// Takes news of content that is stored or read.
    pub(super) fn content_report(&mut self, now: Time, report: ContentReport) {
        self.now = now;
        self.transfers.note_report(&report);
        let (key, report) = unmapped(report);
        self.tell(key, AcceleratorInput::Content(report));
        self.take_events();
    }

    /// Takes what concerns all lanes.
    pub(super) fn tell_all(&mut self, now: Time, input: &AcceleratorInput) {
        self.now = now;
        let keys: Vec<u32> = self.lanes.keys().copied().collect();
        for key in keys {
            self.tell(key, input.clone());
        }
        self.take_events();
    }

    /// When a lane wants to be told.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let lanes = self.lanes.values();
        lanes.filter_map(|lane| lane.near.poll_timeout()).min()
    }

    /// True if more stored content may be read.
    pub(super) fn takes_content(&self) -> bool {
        self.server.held() < CONTENT_WAITING_MAX
    }

    /// Bytes of memory.
    pub(super) fn held(&self) -> usize {
        let lanes = self.lanes.values();
        let lanes: usize = lanes.map(ClientLane::memory).sum();
        self.server.held() + lanes
    }

    /// Requests that were answered here.
    pub(super) fn answered(&self) -> u64 {
        let lanes = self.lanes.values();
        self.answered + lanes.map(|lane| lane.near.answered()).sum::<u64>()
    }
}

impl ClientLane {
    /// Bytes of memory.
    fn memory(&self) -> usize {
        let held = self.held.iter().map(|output| match output {
            AcceleratorOutput::ToWan(segment) => segment.bytes.len() + 64,
            _ => 64,
        });
        self.near.buffered() + held.sum::<usize>() + 1_024
    }

    /// True if the lane can serve another request, or go.
    fn is_spare(&self) -> bool {
        self.is_idle() && !self.near.expects_ahead()
    }

    /// True if the lane has no request.
    fn is_idle(&self) -> bool {
        self.exchange.is_none() && self.near.is_idle() && self.held.is_empty()
    }
}

/// A lane's own number for content, among those of all lanes: the lane, whether the number is a high one, and its end.
fn of_lane(key: u32, id: ContentId) -> ContentId {
    let high = id.0 >> 63 << 31;
    ContentId(u64::from(key) << 32 | high | id.0 & 0x7fff_ffff)
}

/// The lane of a number, and the lane's own number.
fn own_number(id: ContentId) -> (u32, ContentId) {
    let high = (id.0 & 0x8000_0000) << 32;
    ((id.0 >> 32) as u32, ContentId(high | id.0 & 0x7fff_ffff))
}

fn with_id(request: ContentRequest, map: impl Fn(ContentId) -> ContentId) -> ContentRequest {
    match request {
        ContentRequest::Store { id } => ContentRequest::Store { id: map(id) },
        ContentRequest::Append { id, bytes } => ContentRequest::Append { id: map(id), bytes },
        ContentRequest::Finish { id } => ContentRequest::Finish { id: map(id) },
        ContentRequest::Abandon { id } => ContentRequest::Abandon { id: map(id) },
        ContentRequest::Read { id, handle, range } => ContentRequest::Read {
            id: map(id),
            handle,
            range,
        },
        ContentRequest::StopReading { id } => ContentRequest::StopReading { id: map(id) },
        ContentRequest::Keep { .. } | ContentRequest::Release { .. } => request,
    }
}

/// The lane of a report, and the report with the lane's own number.
fn unmapped(mut report: ContentReport) -> (u32, ContentReport) {
    let (ContentReport::Stored { id, .. }
    | ContentReport::Refused { id, .. }
    | ContentReport::Piece { id, .. }
    | ContentReport::Ended { id }
    | ContentReport::Gone { id, .. }) = &mut report;
    let (key, own) = own_number(*id);
    *id = own;
    (key, report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_have_their_contents_numbers_back() {
        for id in [0, 1, 0x7fff_ffff, 1 << 63, 1 << 63 | 5] {
            let id = ContentId(id);
            assert_eq!(own_number(of_lane(7, id)), (7, id));
        }
    }

    #[test]
    fn requests_that_wait_for_numbers_count_as_memory() {
        let mut lane = ClientLane {
            near: HttpNearHalf::new(None),
            responses: Responses::new(),
            exchange: None,
            number: None,
            held: Vec::new(),
            is_ended: false,
            is_cut: false,
        };
        let before = lane.memory();
        let body = FlowSegment::payload(Bytes::from(vec![b'x'; 40_000]));
        lane.held.push(AcceleratorOutput::ToWan(body));
        assert!(lane.memory() >= before + 40_000);
    }
}
