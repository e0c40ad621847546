//! The half beside the client (see the table in `http/mod.rs`).
//!
//! It has one request of the client under way at a time, as HTTP/1.1 answers in order. The body of an
//! Execute request is gathered for the machine; all other bodies pass as they come.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use accelerate::http::wire::{
    BodyExpectation, BodyFraming, MessagePart, RequestHead, Requests, Responses,
};
use accelerate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, FrameKind, LettingGo, ReasonCode,
};
use bytes::{Bytes, BytesMut};
use vocab::{FlowSegment, SegmentKind, Time};

use super::heads::{AnswerHead, ExecuteHead, RequestUse};
use crate::emsmdb::execute::{answer_body, execute_stub, plain_stub};
use crate::emsmdb::{ContextHandle, opnum};
use crate::frames::HalfFrame;
use crate::reasons;
use crate::rop::tactics::{CallOutcome, NearOutput, TacticsNear};

/// The pause of a client after which the machines end what is ahead of it. Servers close idle
/// connections after a minute or two, and then nothing may be ahead.
const REST_AFTER: Duration = Duration::from_secs(10);
/// The first byte of a connection with TLS (RFC 8446 §5.1, Record Layer: handshake).
const TLS_HANDSHAKE: u8 = 22;
/// Sessions of one connection whose heads the far half knows. Clients have one or two.
pub(super) const HEADS_MAX: usize = 64;

/// The near half.
#[derive(Debug)]
pub(crate) struct HttpMailNearHalf {
    state: HttpNearState,
    /// The far half can take requests.
    is_ready: bool,
    requests: Requests,
    /// Follows responses while bytes pass.
    responses: Responses,
    /// Bytes behind the request that is under way.
    held: BytesMut,
    request: Option<RequestUnderWay>,
    machine: TacticsNear,
    next_call: u64,
    /// The heads that the far half has.
    templates: BTreeMap<ContextHandle, Bytes>,
    /// The head of the answer that comes next.
    answer: Option<AnswerHead>,
    /// The head of the last answer of the server.
    last_answer: AnswerHead,
    /// The time of the client's last call.
    called_at: Time,
    client_finished: bool,
    wan_finished: bool,
    now: Time,
    outputs: VecDeque<AcceleratorOutput>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpNearState {
    Passing,
    Following,
    Blind,
    Gone,
}

/// The request that is under way.
#[derive(Debug)]
struct RequestUnderWay {
    call: u64,
    body: RequestBody,
    request_id: Bytes,
    is_answered: bool,
    /// Bytes of the response have passed to the client.
    has_passed: bool,
}

#[derive(Debug)]
enum RequestBody {
    /// For the machine, when it is whole.
    Gathering {
        head: Box<ExecuteHead>,
        raw_head: Bytes,
        body: BytesMut,
    },
    /// Passes as it comes.
    Passing,
    Whole,
}

impl HttpMailNearHalf {
    /// A half that has not started. Its content may be in the dictionaries if `may_store`.
    pub(crate) fn new(may_store: bool) -> Self {
        Self {
            state: HttpNearState::Passing,
            is_ready: false,
            requests: Requests::new(),
            responses: Responses::new(),
            held: BytesMut::new(),
            request: None,
            machine: TacticsNear::new(may_store),
            next_call: 0,
            templates: BTreeMap::new(),
            answer: None,
            last_answer: AnswerHead::default(),
            called_at: Time::ZERO,
            client_finished: false,
            wan_finished: false,
            now: Time::ZERO,
            outputs: VecDeque::new(),
        }
    }

    fn send_far(&mut self, segment: FlowSegment) {
        if !segment.bytes.is_empty() {
            self.outputs.push_back(AcceleratorOutput::ToWan(segment));
        }
    }

    fn send_client(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.outputs.push_back(AcceleratorOutput::ToLan(bytes));
        }
    }

    fn let_go(&mut self, reason: ReasonCode) {
        self.state = HttpNearState::Gone;
        let letting_go = LettingGo::LetGo { reason };
        let output = AcceleratorOutput::LettingGo(letting_go);
        self.outputs.push_back(output);
    }

    fn close(&mut self, reason: ReasonCode) {
        if self.state != HttpNearState::Gone {
            self.state = HttpNearState::Gone;
            let close = LettingGo::Close { reason };
            self.outputs.push_back(AcceleratorOutput::LettingGo(close));
        }
    }

    fn finish_wan(&mut self) {
        if !self.wan_finished {
            self.wan_finished = true;
            self.outputs.push_back(AcceleratorOutput::FinishWan);
        }
    }

    /// Bytes of the client while all passes.
    fn pass_client(&mut self, mut bytes: Bytes) {
        let is_first = self.requests.is_between_messages() && !self.responses.expects_more();
        if is_first && bytes.first() == Some(&TLS_HANDSHAKE) {
            self.send_far(FlowSegment::payload(bytes));
            return self.let_go(reasons::TLS);
        }
        while !bytes.is_empty() {
            let Ok(step) = self.requests.step(&bytes) else {
                self.send_far(FlowSegment::payload(bytes));
                return self.let_go(ReasonCode::UNSUPPORTED);
            };
            let run = bytes.split_to(step.length);
            if let MessagePart::Head(head, _) = &step.what {
                self.responses.expect(BodyExpectation::of(head));
            }
            let kind = kind_of(&step.what);
            self.send_far(FlowSegment { kind, bytes: run });
        }
    }

    /// Bytes of the server while all passes.
    fn pass_server(&mut self, bytes: Bytes) {
        let mut rest = &bytes[..];
        let mut is_followed = true;
        while !rest.is_empty() && is_followed {
            match self.responses.step(rest) {
                Ok(step) => rest = &rest[step.length..],
                Err(_) => is_followed = false,
            }
        }
        self.send_client(bytes);
        match is_followed {
            true => self.begin_following(),
            false => self.let_go(ReasonCode::UNSUPPORTED),
        }
    }

    /// Takes the client's requests from here on, if no request is under way.
    fn begin_following(&mut self) {
        let is_between = self.requests.is_between_messages() && !self.responses.expects_more();
        let is_open = !self.client_finished && !self.wan_finished;
        if self.state == HttpNearState::Passing && self.is_ready && is_between && is_open {
            self.state = HttpNearState::Following;
            self.send_far(FlowSegment::frame(HalfFrame::HttpBegin.emit()));
        }
    }

    /// Works until something has to come.
    fn work(&mut self) {
        loop {
            self.drain_machine();
            if self.state != HttpNearState::Following || !self.next_run() {
                break;
            }
        }
        self.finish_client();
    }

    /// Handles the next run of the client's bytes; false if it has to wait or there is none.
    fn next_run(&mut self) -> bool {
        let is_waiting = self
            .request
            .as_ref()
            .is_some_and(|request| matches!(request.body, RequestBody::Whole));
        if is_waiting || self.held.is_empty() {
            return false;
        }
        let Ok(step) = self.requests.step(&self.held) else {
            self.go_blind();
            return false;
        };
        let run = self.held.split_to(step.length).freeze();
        match step.what {
            MessagePart::PartOfHead => {}
            MessagePart::Head(head, body) => self.begin_request(&head, body),
            MessagePart::Payload | MessagePart::Control | MessagePart::Opaque => {
                let kind = kind_of(&step.what);
                match self.request.as_mut().map(|request| &mut request.body) {
                    Some(RequestBody::Gathering { body, .. }) => body.extend_from_slice(&run),
                    Some(RequestBody::Passing | RequestBody::Whole) | None => {
                        self.send_far(FlowSegment { kind, bytes: run });
                    }
                }
            }
        }
        if step.is_end && self.state == HttpNearState::Following {
            self.end_request();
        }
        true
    }

    fn begin_request(&mut self, head: &RequestHead, body: BodyFraming) {
        let call = self.next_call;
        self.next_call += 1;
        self.called_at = self.now;
        let (opnum, context) = match RequestUse::of(head, body) {
            RequestUse::Execute(execute) => {
                self.request = Some(RequestUnderWay {
                    call,
                    request_id: execute.request_id.clone(),
                    body: RequestBody::Gathering {
                        body: BytesMut::with_capacity(execute.length),
                        head: execute,
                        raw_head: head.bytes.clone(),
                    },
                    is_answered: false,
                    has_passed: false,
                });
                return;
            }
            RequestUse::Upgrade => {
                let rest = std::mem::take(&mut self.held);
                self.held.extend_from_slice(&head.bytes);
                self.held.extend_from_slice(&rest);
                return self.go_blind();
            }
            RequestUse::Unread(context) => (opnum::HTTP_EXECUTE, Some(context)),
            RequestUse::Disconnect(context) => (opnum::DISCONNECT, Some(context)),
            RequestUse::Outside(context) => (opnum::HTTP_PLAIN, context),
        };
        self.request = Some(RequestUnderWay {
            call,
            request_id: Bytes::new(),
            body: RequestBody::Passing,
            is_answered: false,
            has_passed: false,
        });
        if opnum != opnum::HTTP_EXECUTE {
            // The server may refuse a Disconnect, and may keep any other request for minutes.
            self.machine.rest(self.now);
        }
        let stub = plain_stub(context, &head.bytes);
        self.machine.call(self.now, call, opnum, stub);
    }

    /// The request that is under way is whole.
    fn end_request(&mut self) {
        let Some(request) = &mut self.request else {
            return;
        };
        let body = std::mem::replace(&mut request.body, RequestBody::Whole);
        if request.is_answered {
            self.request = None;
            return;
        }
        let RequestBody::Gathering { head, body, .. } = body else {
            return;
        };
        let (call, request_id) = (request.call, request.request_id.clone());
        let context = head.context;
        if self.templates.get(&context) != Some(&head.template) {
            if self.templates.len() >= HEADS_MAX && !self.templates.contains_key(&context) {
                return self.close(ReasonCode::LIMIT);
            }
            self.templates.insert(context, head.template.clone());
            let frame = HalfFrame::HttpHead {
                context,
                sequence: head.sequence.clone(),
                template: head.template.clone(),
            };
            self.send_far(FlowSegment::frame(frame.emit()));
        }
        let stub = execute_stub(context, &request_id, &body);
        self.machine.call(self.now, call, opnum::HTTP_EXECUTE, stub);
    }

    /// Does what the machine requests.
    fn drain_machine(&mut self) {
        while self.state == HttpNearState::Following {
            match self.machine.poll_output() {
                None => return,
                Some(NearOutput::Answer { call, outcome }) => self.answer(call, &outcome),
                Some(NearOutput::ToFar(segment)) => self.send_far(segment),
                Some(NearOutput::Close) => self.close(ReasonCode::VIOLATION),
            }
        }
    }

    /// The answer to the request that is under way. The response to a request that is not read has
    /// passed already.
    fn answer(&mut self, call: u64, outcome: &CallOutcome) {
        let Some(request) = self.request.as_mut().filter(|of| of.call == call) else {
            return self.close(ReasonCode::VIOLATION);
        };
        request.is_answered = true;
        self.called_at = self.now;
        let (request_id, has_passed) = (request.request_id.clone(), request.has_passed);
        if matches!(request.body, RequestBody::Whole) {
            self.request = None;
        }
        if matches!(outcome, CallOutcome::Fault(_)) && !has_passed {
            // The client would wait for ever.
            return self.close(ReasonCode::VIOLATION);
        }
        if let CallOutcome::Response(stub) = outcome {
            let head = match self.answer.take() {
                Some(head) => {
                    self.last_answer = head.clone();
                    head
                }
                None => self.last_answer.for_other_request(&request_id),
            };
            self.send_client(head.with_body(&answer_body(stub)));
        }
        self.answer = None;
    }

    /// From here on all of the client's bytes pass as they are, from those that are held.
    fn go_blind(&mut self) {
        self.machine.rest(self.now);
        if self.machine.has_transfers() {
            return self.close(ReasonCode::UNSUPPORTED);
        }
        self.drain_machine();
        if self.state != HttpNearState::Following {
            return;
        }
        self.state = HttpNearState::Blind;
        self.send_far(FlowSegment::frame(HalfFrame::Blind.emit()));
        if let Some(RequestUnderWay {
            body: RequestBody::Gathering { raw_head, body, .. },
            ..
        }) = self.request.take()
        {
            self.send_far(FlowSegment::payload(raw_head));
            self.send_far(FlowSegment::payload(body.freeze()));
        }
        self.send_held();
    }

    fn send_held(&mut self) {
        let begun = self.requests.take_held();
        self.send_far(FlowSegment::payload(begun.into()));
        let held = std::mem::take(&mut self.held);
        self.send_far(FlowSegment::payload(held.freeze()));
    }

    /// The client sends no more: so does this half, once it has handled what it holds.
    fn finish_client(&mut self) {
        if !self.client_finished || self.wan_finished {
            return;
        }
        if self.state == HttpNearState::Following {
            let is_gathering = self
                .request
                .as_ref()
                .is_some_and(|request| matches!(request.body, RequestBody::Gathering { .. }));
            let is_waiting = self.request.is_some() && !is_gathering;
            let holds = !self.held.is_empty() || !self.requests.held().is_empty();
            match (holds || is_gathering, is_waiting) {
                (true, true) => return,
                // The end of a request is missing.
                (true, false) => self.go_blind(),
                (false, _) => {}
            }
        }
        self.finish_wan();
    }

    fn frame(&mut self, frame: &[u8]) {
        if FrameKind::of(frame) == Some(FrameKind::Released) {
            return;
        }
        match (HalfFrame::parse(frame), self.state) {
            (Some(HalfFrame::HttpReady), _) => {
                self.is_ready = true;
                self.begin_following();
            }
            (Some(HalfFrame::HttpAnswer { head, meta }), HttpNearState::Following) => {
                self.answer = Some(AnswerHead { head, meta });
            }
            // The far half cannot follow the server any more. It had nothing ahead.
            (Some(HalfFrame::Blind), HttpNearState::Following) => {
                if self.machine.is_ahead() || self.machine.has_transfers() {
                    return self.close(ReasonCode::UNSUPPORTED);
                }
                self.state = HttpNearState::Blind;
                self.send_held();
            }
            _ => self.close(ReasonCode::VIOLATION),
        }
    }

    /// The server sends no more, so nothing can be answered any more.
    fn server_finished(&mut self) {
        self.outputs.push_back(AcceleratorOutput::FinishLan);
        if self.state == HttpNearState::Following {
            self.state = HttpNearState::Blind;
            self.request = None;
            self.held.clear();
        }
    }

    fn wan(&mut self, segment: FlowSegment) {
        match (segment.kind, self.state) {
            _ if self.state == HttpNearState::Following && self.machine.takes(&segment) => {
                self.machine.segment(self.now, segment);
            }
            (SegmentKind::Frame, _) => self.frame(&segment.bytes),
            (SegmentKind::Payload | SegmentKind::Control, HttpNearState::Passing) => {
                self.pass_server(segment.bytes);
            }
            (SegmentKind::Payload | SegmentKind::Control, _) => {
                if let Some(request) = &mut self.request {
                    request.has_passed = true;
                }
                self.send_client(segment.bytes);
            }
        }
        self.work();
    }
}

/// The kind of segment for a run of a request.
fn kind_of<H>(what: &MessagePart<H>) -> SegmentKind {
    match what {
        MessagePart::PartOfHead | MessagePart::Head(..) | MessagePart::Control => {
            SegmentKind::Control
        }
        MessagePart::Payload | MessagePart::Opaque => SegmentKind::Payload,
    }
}

impl AcceleratorHalf for HttpMailNearHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        self.now = now;
        if self.state == HttpNearState::Gone {
            return;
        }
        match input {
            AcceleratorInput::Lan(bytes) => match self.state {
                HttpNearState::Passing => self.pass_client(bytes),
                HttpNearState::Following => {
                    self.held.extend_from_slice(&bytes);
                    self.work();
                }
                HttpNearState::Blind => self.send_far(FlowSegment::payload(bytes)),
                HttpNearState::Gone => {}
            },
            AcceleratorInput::LanFinished => {
                self.client_finished = true;
                self.work();
            }
            AcceleratorInput::Wan(segment) => self.wan(segment),
            AcceleratorInput::WanFinished => self.server_finished(),
            AcceleratorInput::Timeout => {
                if self.poll_timeout().is_some_and(|at| at <= now) {
                    self.machine.rest(now);
                    self.work();
                }
            }
            AcceleratorInput::Start
            | AcceleratorInput::WanSilent(_)
            | AcceleratorInput::Server(..)
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken => {}
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        let is_idle = self.state == HttpNearState::Following && self.request.is_none();
        (is_idle && self.machine.is_ahead()).then(|| self.called_at + REST_AFTER)
    }

    fn buffered(&self) -> usize {
        let gathered = match self.request.as_ref().map(|request| &request.body) {
            Some(RequestBody::Gathering { raw_head, body, .. }) => raw_head.len() + body.len(),
            Some(RequestBody::Passing | RequestBody::Whole) | None => 0,
        };
        self.held.len() + self.requests.held().len() + gathered + self.machine.buffered()
    }

    fn waiting_host_bytes(&self) -> usize {
        self.held.len()
    }

    fn answered(&self) -> u64 {
        self.machine.answered()
    }
}
