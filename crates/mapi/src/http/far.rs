//! The half beside the server.
//!
//! ```text
//!  stub of an Execute request ─► template, identity, cookie ─► POST ─► answer is read ─► stub ─► machine
//!  stub of any other request  ─► its head, then its body    ─►         its response passes at once
//! ```
//! | state | leads to |
//! | --- | --- |
//! | passing: all bytes pass; the half offers itself at the first request of HTTP | following |
//! | following: one request is at the server at a time | blind, closed |
//! | blind: all bytes pass | |
//!
//! A client that waits for an answer sees it at once if the answer is not read: because its head or
//! its form is not known, or because the server reports that it takes long. The machine then takes
//! it for a fault, and knows nothing of the objects in it.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use accelerate::http::wire::{
    BodyExpectation, BodyFraming, MessagePart, Requests, ResponseHead, Responses,
};
use accelerate::shared::SharedHandle;
use accelerate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, LettingGo, ReasonCode};
use bytes::{BufMut, Bytes, BytesMut};
use vocab::{FlowSegment, SegmentKind, Time};

use super::heads::{
    execute_head, is_refusal, may_be_read, own_request_id, renewed_sequence, with_sequence,
};
use super::meta::MetaLines;
use super::near::HEADS_MAX;
use super::sequences::SequenceTable;
use crate::emsmdb::ContextHandle;
use crate::emsmdb::execute::{
    EXECUTE_MAX, HttpStub, answer_stub, failed_stub, is_success, split_stub,
};
use crate::frames::HalfFrame;
use crate::rop::tactics::{CallOutcome, FarOutput, SessionPlace, TacticsFar};

/// Bytes of an answer that is read: as long as a request, with the framing of its chunks.
const ANSWER_MAX: usize = 2 * EXECUTE_MAX;
/// Bytes of a request's body that wait for its turn, behind one call of the machine's own.
const HELD_MAX: usize = 16 << 20;
/// The fault that stands for a response that has passed to the client.
const NOT_READ: u32 = 1;
/// MAPI_E_CALL_FAILED, for a request of this half that the server has refused.
const CALL_FAILED: u32 = 0x8000_4005;

/// The far half.
#[derive(Debug)]
pub(crate) struct HttpMailFarHalf {
    state: HttpFarState,
    is_on: bool,
    has_offered: bool,
    server: IpAddr,
    flow: u64,
    sequences: SharedHandle<SequenceTable>,
    requests: Requests,
    responses: Responses,
    machine: TacticsFar,
    call: Option<ServerCall>,
    heads: BTreeMap<ContextHandle, Bytes>,
    /// Bytes of the client that wait for their turn.
    held: VecDeque<Bytes>,
    held_bytes: usize,
    ending: EndingWish,
    own_requests: u32,
    server_finished: bool,
    now: Time,
    outputs: VecDeque<AcceleratorOutput>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpFarState {
    Passing,
    Following,
    Blind,
    Gone,
}

/// The end that waits for the machine's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndingWish {
    None,
    /// The client sends no more.
    Finish,
    /// The near half passes all bytes.
    Blind,
}

/// The request that is at the server.
#[derive(Debug)]
struct ServerCall {
    context: Option<ContextHandle>,
    is_plain: bool,
    /// All of its body is at the server.
    is_whole: bool,
    answer: AnswerReading,
}

#[derive(Debug)]
enum AnswerReading {
    /// The head has not come.
    Awaited,
    /// The answer is read.
    Reading {
        head: Bytes,
        /// All of it as it came, for a client that has to see it.
        raw: BytesMut,
        /// Its body without the framing.
        body: BytesMut,
    },
    /// It passes to the client.
    Passing,
    /// It is for the machine alone, and is not read.
    Skipped {
        /// The server has not carried out the request.
        is_refusal: bool,
    },
    /// It has ended.
    Ended(CallOutcome),
}

impl HttpMailFarHalf {
    /// A half that has not started. Its content may be in the dictionaries if `may_store`.
    pub(crate) fn new(
        may_store: bool,
        server: IpAddr,
        flow: u64,
        place: SessionPlace,
        sequences: SharedHandle<SequenceTable>,
    ) -> Self {
        Self {
            state: HttpFarState::Passing,
            is_on: true,
            has_offered: false,
            server,
            flow,
            sequences,
            requests: Requests::new(),
            responses: Responses::new(),
            machine: TacticsFar::new(may_store, place),
            call: None,
            heads: BTreeMap::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            ending: EndingWish::None,
            own_requests: 0,
            server_finished: false,
            now: Time::ZERO,
            outputs: VecDeque::new(),
        }
    }

    /// A half that lets go at once, because this node's accelerator is switched off.
    pub(crate) fn switched_off(mut self) -> Self {
        self.is_on = false;
        self
    }

    fn send_near(&mut self, segment: FlowSegment) {
        if !segment.bytes.is_empty() {
            self.outputs.push_back(AcceleratorOutput::ToWan(segment));
        }
    }

    fn send_server(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.outputs.push_back(AcceleratorOutput::ToLan(bytes));
        }
    }

    /// Stops helping, in the way that the state allows.
    fn stop(&mut self, reason: ReasonCode) {
        let letting_go = match self.state {
            HttpFarState::Passing => LettingGo::LetGo { reason },
            HttpFarState::Following | HttpFarState::Blind => LettingGo::Close { reason },
            HttpFarState::Gone => return,
        };
        self.state = HttpFarState::Gone;
        let letting_go = AcceleratorOutput::LettingGo(letting_go);
        self.outputs.push_back(letting_go);
    }

    /// Bytes of the client while all passes.
    fn pass_client(&mut self, bytes: Bytes) {
        let mut rest = &bytes[..];
        while !rest.is_empty() && !self.has_offered {
            let Ok(step) = self.requests.step(rest) else {
                // The near half lets go.
                break;
            };
            rest = &rest[step.length..];
            if matches!(step.what, MessagePart::Head(..)) {
                self.has_offered = true;
                self.send_near(FlowSegment::frame(HalfFrame::HttpReady.emit()));
            }
        }
        self.send_server(bytes);
    }

    /// Does what the machine requests.
    fn drain_machine(&mut self) {
        while self.state == HttpFarState::Following {
            match self.machine.poll_output() {
                None => return,
                Some(FarOutput::ToNear(segment)) => self.send_near(segment),
                Some(FarOutput::Close) => self.stop(ReasonCode::VIOLATION),
                Some(FarOutput::Call { stub, .. }) => self.begin_call(&stub),
            }
        }
    }

    /// Makes a request at the server.
    fn begin_call(&mut self, stub: &Bytes) {
        let context = ContextHandle::of_stub(stub).filter(|context| !context.is_null());
        let (server, sequences) = (self.server, self.sequences.clone());
        let sequence =
            context.and_then(|context| sequences.with(|known| known.get(server, context)));
        match split_stub(stub) {
            Ok(HttpStub::Execute { request_id, body }) => {
                let template = context.and_then(|context| self.heads.get(&context));
                let Some(template) = template else {
                    return self.stop(ReasonCode::VIOLATION);
                };
                let request_id = match request_id.is_empty() {
                    false => Some(request_id),
                    true => {
                        self.own_requests = self.own_requests.wrapping_add(1);
                        own_request_id(template, self.flow, self.own_requests)
                    }
                };
                let Some(request_id) = request_id else {
                    return self.stop(ReasonCode::VIOLATION);
                };
                let head = execute_head(template, &request_id, body.len(), sequence.as_deref());
                self.responses.expect(BodyExpectation::Usual);
                self.call = Some(ServerCall {
                    context,
                    is_plain: false,
                    is_whole: true,
                    answer: AnswerReading::Awaited,
                });
                let mut request = BytesMut::from(&head[..]);
                request.put_slice(&body);
                self.send_server(request.freeze());
            }
            Ok(HttpStub::Plain(head)) => {
                let head = match &sequence {
                    Some(sequence) => with_sequence(&head, sequence),
                    None => head,
                };
                let step = self.requests.step(&head);
                let Ok(step) = step.map_err(|_| ()) else {
                    return self.stop(ReasonCode::VIOLATION);
                };
                let MessagePart::Head(parsed, _) = step.what else {
                    return self.stop(ReasonCode::VIOLATION);
                };
                self.responses.expect(BodyExpectation::of(&parsed));
                self.call = Some(ServerCall {
                    context,
                    is_plain: true,
                    is_whole: step.is_end,
                    answer: AnswerReading::Awaited,
                });
                self.send_server(head);
                self.held_bytes = 0;
                for bytes in std::mem::take(&mut self.held) {
                    self.client_body(bytes);
                }
            }
            Err(_) => self.stop(ReasonCode::VIOLATION),
        }
    }

    /// Bytes of the client that are not for the machine: those of the body of a request that passes.
    fn client_body(&mut self, mut bytes: Bytes) {
        let is_begun = |call: &ServerCall| call.is_plain && !call.is_whole;
        while !bytes.is_empty() && self.call.as_ref().is_some_and(is_begun) {
            let Ok(step) = self.requests.step(&bytes) else {
                // The near half goes blind.
                break;
            };
            let run = bytes.split_to(step.length);
            self.send_server(run);
            if let Some(call) = self.call.as_mut().filter(|_| step.is_end) {
                call.is_whole = true;
            }
        }
        if bytes.is_empty() {
            return self.end_call();
        }
        self.held_bytes += bytes.len();
        self.held.push_back(bytes);
        match self.held_bytes > HELD_MAX {
            true => self.stop(ReasonCode::LIMIT),
            false => self.end_call(),
        }
    }

    /// Bytes of the server while the half follows.
    fn server_bytes(&mut self, mut bytes: Bytes) {
        while !bytes.is_empty() && self.state == HttpFarState::Following {
            let Ok(step) = self.responses.step(&bytes) else {
                return self.lose_server(bytes);
            };
            let run = bytes.split_to(step.length);
            let is_end = step.is_end && !step.what.is_interim();
            match step.what {
                MessagePart::PartOfHead => {}
                MessagePart::Head(head, body) => self.answer_head(&head, body),
                MessagePart::Payload => self.answer_run(SegmentKind::Payload, run),
                MessagePart::Control => self.answer_run(SegmentKind::Control, run),
                MessagePart::Opaque => {
                    return self.lose_server([&run[..], &bytes[..]].concat().into());
                }
            }
            if is_end {
                self.answer_ended();
            }
        }
        if self.state == HttpFarState::Blind {
            self.send_near(FlowSegment::payload(bytes));
        }
    }

    fn client_waits(&self) -> bool {
        self.machine.serves_client()
    }

    fn answer_head(&mut self, head: &ResponseHead, body: BodyFraming) {
        let waits = self.client_waits();
        let Some(call) = &mut self.call else {
            return self.stop(ReasonCode::VIOLATION);
        };
        if let Some(context) = call.context
            && let Some(sequence) = renewed_sequence(&head.fields)
        {
            let server = self.server;
            self.sequences
                .with(|known| known.set(server, context, sequence));
        }
        if head.is_interim() {
            if waits {
                self.send_near(FlowSegment::control(head.bytes.clone()));
            }
            return;
        }
        if !call.is_plain && may_be_read(head, body) {
            call.answer = AnswerReading::Reading {
                head: head.bytes.clone(),
                raw: BytesMut::from(&head.bytes[..]),
                body: BytesMut::new(),
            };
        } else if waits {
            call.answer = AnswerReading::Passing;
            self.send_near(FlowSegment::control(head.bytes.clone()));
        } else {
            let is_refusal = is_refusal(head);
            call.answer = AnswerReading::Skipped { is_refusal };
        }
    }

    fn answer_run(&mut self, kind: SegmentKind, run: Bytes) {
        let waits = self.client_waits();
        let Some(call) = &mut self.call else {
            return self.stop(ReasonCode::VIOLATION);
        };
        match &mut call.answer {
            AnswerReading::Passing => self.send_near(FlowSegment { kind, bytes: run }),
            AnswerReading::Reading { raw, body, .. } => {
                raw.put_slice(&run);
                if kind == SegmentKind::Payload {
                    body.put_slice(&run);
                }
                let is_slow = MetaLines::read(body) == MetaLines::Pending;
                let is_long = raw.len() > ANSWER_MAX;
                if waits && (is_slow || is_long) {
                    let passed = std::mem::take(raw).freeze();
                    call.answer = AnswerReading::Passing;
                    self.send_near(FlowSegment::control(passed));
                } else if is_long {
                    self.stop(ReasonCode::LIMIT);
                }
            }
            AnswerReading::Awaited | AnswerReading::Skipped { .. } | AnswerReading::Ended(_) => {}
        }
    }

    /// The response has ended.
    fn answer_ended(&mut self) {
        let waits = self.client_waits();
        let Some(call) = &mut self.call else {
            return self.stop(ReasonCode::VIOLATION);
        };
        let context = call.context;
        let answer = std::mem::replace(&mut call.answer, AnswerReading::Awaited);
        let outcome = match answer {
            AnswerReading::Reading { head, raw, body } => {
                let body = body.freeze();
                let read = match (MetaLines::read(&body), context) {
                    (MetaLines::Whole(length), Some(context)) => {
                        let content = body.slice(length..);
                        is_success(&content).then(|| (context, body.slice(..length), content))
                    }
                    _ => None,
                };
                match read {
                    Some((context, meta, content)) => {
                        if waits {
                            let answer = HalfFrame::HttpAnswer { head, meta };
                            self.send_near(FlowSegment::frame(answer.emit()));
                        }
                        CallOutcome::Response(answer_stub(context, &content))
                    }
                    None if waits => {
                        self.send_near(FlowSegment::control(raw.freeze()));
                        CallOutcome::Fault(NOT_READ)
                    }
                    // Nobody knows what the server has done.
                    None => CallOutcome::Response(Bytes::new()),
                }
            }
            AnswerReading::Passing => CallOutcome::Fault(NOT_READ),
            // The machine may give this result to a later call of the client.
            AnswerReading::Skipped { is_refusal: true } => {
                let context = context.unwrap_or(ContextHandle([0; 20]));
                CallOutcome::Response(failed_stub(context, CALL_FAILED))
            }
            AnswerReading::Skipped { is_refusal: false }
            | AnswerReading::Awaited
            | AnswerReading::Ended(_) => CallOutcome::Response(Bytes::new()),
        };
        if let Some(call) = &mut self.call {
            call.answer = AnswerReading::Ended(outcome);
        }
        self.end_call();
    }

    /// Gives the answer to the machine, once the whole request is at the server.
    fn end_call(&mut self) {
        let is_over =
            |call: &ServerCall| call.is_whole && matches!(call.answer, AnswerReading::Ended(_));
        if !self.call.as_ref().is_some_and(is_over) {
            return;
        }
        if let Some(ServerCall {
            answer: AnswerReading::Ended(outcome),
            ..
        }) = self.call.take()
        {
            self.machine.answered(self.now, outcome);
            self.drain_machine();
            self.end();
        }
    }

    /// The server's bytes cannot be followed any more. They pass, if they are the client's and
    /// nothing is ahead of it.
    fn lose_server(&mut self, bytes: Bytes) {
        let is_plain = self.call.as_ref().is_some_and(|call| call.is_plain);
        if !is_plain || self.machine.is_exposed() {
            return self.stop(ReasonCode::VIOLATION);
        }
        let begun = self.responses.take_held();
        self.state = HttpFarState::Blind;
        self.send_near(FlowSegment::frame(HalfFrame::Blind.emit()));
        self.send_near(FlowSegment::payload(begun.into()));
        self.send_near(FlowSegment::payload(bytes));
        self.send_held();
    }

    fn send_held(&mut self) {
        self.held_bytes = 0;
        for bytes in std::mem::take(&mut self.held) {
            self.send_server(bytes);
        }
    }

    /// Ends what the client or the near half has ended, once the machine has no work.
    fn end(&mut self) {
        if self.ending == EndingWish::None || self.state != HttpFarState::Following {
            return;
        }
        let passes = self.call.as_ref().is_some_and(|call| call.is_plain);
        if !passes && (self.call.is_some() || !self.machine.is_idle()) {
            return;
        }
        match std::mem::replace(&mut self.ending, EndingWish::None) {
            EndingWish::None => {}
            EndingWish::Finish => {
                self.send_held();
                self.outputs.push_back(AcceleratorOutput::FinishLan);
            }
            EndingWish::Blind => {
                self.state = HttpFarState::Blind;
                self.send_held();
            }
        }
    }

    fn begin_end(&mut self, ending: EndingWish) {
        self.ending = ending;
        self.machine.finish(self.now);
        self.drain_machine();
        self.end();
    }

    fn frame(&mut self, frame: &[u8]) {
        match (HalfFrame::parse(frame), self.state) {
            (Some(HalfFrame::HttpBegin), HttpFarState::Passing) => {
                self.state = HttpFarState::Following;
                self.requests = Requests::new();
            }
            (
                Some(HalfFrame::HttpHead {
                    context,
                    sequence,
                    template,
                }),
                HttpFarState::Following,
            ) => {
                if self.heads.len() >= HEADS_MAX && !self.heads.contains_key(&context) {
                    return self.stop(ReasonCode::LIMIT);
                }
                self.heads.insert(context, template);
                let server = self.server;
                self.sequences
                    .with(|known| known.offer(server, context, &sequence));
            }
            (Some(HalfFrame::Blind), HttpFarState::Following) => self.begin_end(EndingWish::Blind),
            _ => self.stop(ReasonCode::VIOLATION),
        }
    }

    fn wan(&mut self, segment: FlowSegment) {
        match (segment.kind, self.state) {
            (_, HttpFarState::Following) if self.machine.takes(&segment) => {
                self.machine.segment(self.now, segment);
                self.drain_machine();
                self.end();
            }
            (SegmentKind::Frame, _) => self.frame(&segment.bytes),
            (_, HttpFarState::Passing) => self.pass_client(segment.bytes),
            (_, HttpFarState::Following) => self.client_body(segment.bytes),
            (_, HttpFarState::Blind | HttpFarState::Gone) => self.send_server(segment.bytes),
        }
    }

    /// The server sends no more.
    fn server_finished(&mut self) {
        self.server_finished = true;
        let waits = self.client_waits();
        let begun = self.responses.take_held();
        if let Some(call) = &mut self.call
            && waits
        {
            if let AnswerReading::Reading { raw, .. } = &mut call.answer {
                let passed = std::mem::take(raw).freeze();
                self.send_near(FlowSegment::control(passed));
            }
            self.send_near(FlowSegment::control(begun.into()));
        }
        self.outputs.push_back(AcceleratorOutput::FinishWan);
    }
}

impl AcceleratorHalf for HttpMailFarHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        self.now = now;
        if self.state == HttpFarState::Gone {
            return;
        }
        match input {
            AcceleratorInput::Start => {
                self.outputs.push_back(AcceleratorOutput::OpenServer);
                if !self.is_on {
                    self.stop(ReasonCode::POLICY);
                }
            }
            AcceleratorInput::Lan(bytes) => match self.state {
                HttpFarState::Following => self.server_bytes(bytes),
                HttpFarState::Passing | HttpFarState::Blind | HttpFarState::Gone => {
                    self.send_near(FlowSegment::payload(bytes));
                }
            },
            AcceleratorInput::LanFinished => self.server_finished(),
            AcceleratorInput::Wan(segment) => self.wan(segment),
            AcceleratorInput::WanFinished => {
                match self.state == HttpFarState::Following && !self.server_finished {
                    true => self.begin_end(EndingWish::Finish),
                    false => self.outputs.push_back(AcceleratorOutput::FinishLan),
                }
            }
            AcceleratorInput::Woken => {
                if self.state == HttpFarState::Following {
                    self.machine.woken(now);
                    self.drain_machine();
                    self.end();
                }
            }
            AcceleratorInput::WanSilent(_)
            | AcceleratorInput::Timeout
            | AcceleratorInput::Server(..)
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied
            | AcceleratorInput::Content(_) => {}
        }
    }

    fn set_backlog(&mut self, now: Time, bytes: u64) {
        self.now = now;
        if self.state == HttpFarState::Following {
            self.machine.set_backlog(now, bytes);
            self.drain_machine();
            self.end();
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn buffered(&self) -> usize {
        let answer = match self.call.as_ref().map(|call| &call.answer) {
            Some(AnswerReading::Reading { raw, body, .. }) => raw.len() + body.len(),
            _ => 0,
        };
        let framed = self.requests.held().len() + self.responses.held().len();
        answer + framed + self.held_bytes + self.machine.buffered()
    }
}
