//! The half beside the client: frames requests and the responses to them, and answers what is stored.
//!
//! `exchange.rs` says what is kept of a request, `caching.rs` what is answered here and what is stored.
//! Only this half lets go. It holds the begin of a head at most, and puts that out first.

mod caching;
mod exchange;

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::{Segment, SegmentKind, Time};

use super::config::PIPELINED_MAX;
use super::reasons;
use super::shared::SharedCache;
use super::wire::{Body, Expectation, Fault, RequestHead, Requests, Responses, What, has_option};
use crate::{Accelerator, Input, LettingGo, Output, ReasonCode};
use exchange::{Due, Owed, Rest};

/// The near half.
#[derive(Debug)]
pub(super) struct Near {
    state: State,
    requests: Requests,
    responses: Responses,
    due: VecDeque<Due>,
    owed: VecDeque<Owed>,
    cache: Option<SharedCache>,
    answered: u64,
    validated: u64,
    now: Time,
    outputs: VecDeque<Output>,
}

/// See the table in the head of `http/mod.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Following,
    /// What the client sends passes untouched, and the responses that are due are still followed.
    Draining(ReasonCode),
    /// The server sends no more. What the client sends passes untouched.
    ServerEnded,
    /// The connection to the client ends behind what was answered; nothing that comes is of use.
    Ended,
    LetGo,
}

impl Near {
    /// A half that has not started; without a cache it answers nothing itself.
    pub(super) fn new(cache: Option<SharedCache>) -> Self {
        Self {
            state: State::Following,
            requests: Requests::new(),
            responses: Responses::new(),
            due: VecDeque::new(),
            owed: VecDeque::new(),
            cache,
            answered: 0,
            validated: 0,
            now: Time::ZERO,
            outputs: VecDeque::new(),
        }
    }

    /// Takes what the client sends.
    fn hear_client(&mut self, mut bytes: Bytes) {
        while !bytes.is_empty() && self.state == State::Following {
            if self.awaits_upgrade() {
                self.drain(reasons::UPGRADED);
                break;
            }
            let step = match self.requests.step(&bytes) {
                Ok(step) => step,
                Err(fault) => {
                    let held = self.requests.take_held();
                    self.send_wan(Segment::payload(held.into()));
                    self.drain(reason(fault));
                    break;
                }
            };
            let run = bytes.split_to(step.length);
            match step.what {
                What::PartOfHead => {}
                What::Head(head, body) => self.request(*head, body),
                What::Control => self.send_wan(Segment::control(run)),
                What::Payload | What::Opaque => self.send_wan(Segment::payload(run)),
            }
        }
        if self.state != State::Ended {
            self.send_wan(Segment::payload(bytes));
            self.let_go_when_drained();
        }
    }

    /// Whether what the client sends next has a meaning only once a response has come.
    fn awaits_upgrade(&self) -> bool {
        self.requests.is_between_messages() && self.owed.iter().any(|owed| owed.asks_upgrade)
    }

    fn request(&mut self, head: RequestHead, body: Body) {
        if head.method() == b"CONNECT" {
            self.send_wan(Segment::control(head.bytes));
            return self.drain(reasons::UPGRADED);
        }
        if body == Body::Empty && self.answer(&head) {
            return;
        }
        let asks_upgrade = has_option(&head.fields, "connection", "upgrade");
        let bytes = head.bytes.clone();
        let cached = self.cached(head);
        self.forward(
            bytes,
            Owed {
                asks_upgrade,
                is_for_client: true,
                cached,
                rest: Rest::Pass,
            },
        );
    }

    /// Sends a request to the server.
    fn forward(&mut self, bytes: Bytes, owed: Owed) {
        self.responses.expect(match bytes.starts_with(b"HEAD ") {
            true => Expectation::NoBody,
            false => Expectation::Usual,
        });
        self.send_wan(Segment::control(bytes));
        if owed.is_for_client {
            self.due.push_back(Due::Server);
        }
        self.owed.push_back(owed);
        if self.owed.len() > PIPELINED_MAX {
            self.drain(ReasonCode::LIMIT);
        }
    }

    /// Takes what the server answers.
    fn hear_server(&mut self, mut bytes: Bytes) {
        while !bytes.is_empty() && !matches!(self.state, State::LetGo | State::Ended) {
            let step = match self.responses.step(&bytes) {
                Ok(step) => step,
                Err(fault) => return self.give_up(bytes, reason(fault)),
            };
            let run = bytes.split_to(step.length);
            match step.what {
                What::PartOfHead => continue,
                What::Head(head, Body::Opaque) => {
                    self.write_lan(head.bytes);
                    return self.give_up(bytes, reasons::UPGRADED);
                }
                What::Head(head, _) if head.is_interim() => {
                    if self.owed.front().is_some_and(|owed| owed.is_for_client) {
                        self.write_lan(head.bytes);
                    }
                    continue;
                }
                What::Head(head, body) => self.response(*head, body),
                What::Control => self.content(run, false),
                What::Payload | What::Opaque => self.content(run, true),
            }
            if step.is_end {
                self.end_response();
            }
        }
        self.let_go_when_drained();
    }

    /// The server has ended its stream, or the way to it has.
    fn hear_end_of_server(&mut self) {
        self.replace_missing_response();
        if self.owed.front().is_none_or(Owed::is_untouched) {
            let held = self.responses.take_held();
            self.write_lan(held.into());
        }
        self.outputs.push_back(Output::FinishLan);
        let held = self.requests.take_held();
        self.send_wan(Segment::control(held.into()));
        self.state = State::ServerEnded;
    }

    /// The response that was owed has ended.
    fn end_response(&mut self) {
        let Some(owed) = self.owed.pop_front() else {
            return;
        };
        let is_for_client = owed.is_for_client;
        self.store(owed);
        if is_for_client {
            self.due.pop_front();
            self.write_answers();
        }
    }

    /// Queues an answer of our own behind what the client is due, and writes it if that is nothing.
    fn put_answer(&mut self, pieces: Vec<Bytes>, closes: bool) {
        self.due.push_back(Due::Answer { pieces, closes });
        self.write_answers();
    }

    fn write_answers(&mut self) {
        while let Some(Due::Answer { .. }) = self.due.front()
            && let Some(Due::Answer { pieces, closes }) = self.due.pop_front()
        {
            for piece in pieces {
                self.write_lan(piece);
            }
            if closes {
                return self.end();
            }
        }
    }

    /// Ends the connection to the client behind what was written.
    fn end(&mut self) {
        self.due.clear();
        self.state = State::Ended;
        self.outputs.push_back(Output::FinishLan);
        self.outputs.push_back(Output::FinishWan);
    }

    fn drain(&mut self, reason: ReasonCode) {
        if self.state == State::Following {
            self.state = State::Draining(reason);
        }
    }

    fn let_go_when_drained(&mut self) {
        if let State::Draining(reason) = self.state
            && self.due.is_empty()
            && self.owed.is_empty()
        {
            self.let_go(reason);
        }
    }

    /// The responses cannot be followed from here on: they pass as they come where they answer what the
    /// client sent, and nothing of ours is to be put among them.
    fn give_up(&mut self, bytes: Bytes, reason: ReasonCode) {
        let are_untouched = self.owed.iter().all(Owed::is_untouched);
        if !are_untouched || self.due.iter().any(|due| matches!(due, Due::Answer { .. })) {
            self.state = State::LetGo;
            let close = LettingGo::Close { reason };
            return self.outputs.push_back(Output::LettingGo(close));
        }
        let held = self.responses.take_held();
        self.write_lan(held.into());
        self.write_lan(bytes);
        self.let_go(reason);
    }

    /// Puts out what is held, and lets go.
    fn let_go(&mut self, reason: ReasonCode) {
        let held = self.requests.take_held();
        self.send_wan(Segment::control(held.into()));
        let held = self.responses.take_held();
        self.write_lan(held.into());
        self.state = State::LetGo;
        let letting_go = LettingGo::LetGo { reason };
        self.outputs.push_back(Output::LettingGo(letting_go));
    }

    fn send_wan(&mut self, segment: Segment) {
        if !segment.bytes.is_empty() {
            self.outputs.push_back(Output::ToWan(segment));
        }
    }

    fn write_lan(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.outputs.push_back(Output::ToLan(bytes));
        }
    }
}

impl Accelerator for Near {
    fn handle(&mut self, now: Time, input: Input) {
        self.now = now;
        match input {
            // Nothing is of use any more to a client that was told that its connection ends.
            _ if matches!(self.state, State::LetGo | State::Ended) => {
                if input == Input::LanFinished && self.state == State::Ended {
                    self.outputs.push_back(Output::FinishWan);
                }
            }
            Input::Lan(bytes) => self.hear_client(bytes),
            Input::LanFinished => {
                let held = self.requests.take_held();
                self.send_wan(Segment::control(held.into()));
                self.outputs.push_back(Output::FinishWan);
            }
            Input::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => self.hear_server(segment.bytes),
                // The far half of this release sends none.
                SegmentKind::Frame => {}
            },
            Input::WanFinished => self.hear_end_of_server(),
            Input::Start
            | Input::WanSilent(_)
            | Input::Timeout
            | Input::Server(..)
            | Input::ClaimGranted
            | Input::ClaimRevoked
            | Input::ClaimDenied
            | Input::Content(_) => {}
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn buffered(&self) -> usize {
        let owed: usize = self.owed.iter().map(Owed::held).sum();
        let queues =
            self.owed.capacity() * size_of::<Owed>() + self.due.capacity() * size_of::<Due>();
        self.requests.held().len() + self.responses.held().len() + owed + queues
    }

    fn answered(&self) -> u64 {
        self.answered
    }

    fn note(&self) -> Option<String> {
        let validated = self.validated;
        (validated > 0).then(|| format!("{validated} stored responses confirmed by the server"))
    }
}

/// Why a message that cannot be followed is let go, for the operator.
fn reason(fault: Fault) -> ReasonCode {
    match fault {
        Fault::Limit => ReasonCode::LIMIT,
        Fault::TransferEncoding => ReasonCode::UNSUPPORTED,
        Fault::BareLineFeed
        | Fault::BareCarriageReturn
        | Fault::RequestLine
        | Fault::StatusLine
        | Fault::FieldName
        | Fault::FieldValue
        | Fault::Folded
        | Fault::ContentLength
        | Fault::TwoLengths
        | Fault::ChunkSize
        | Fault::ChunkEnd
        | Fault::Host
        | Fault::Unsolicited => ReasonCode::VIOLATION,
    }
}
