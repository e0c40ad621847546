//! The half beside the client: frames requests and the responses to them.
//!
//! Only this half lets go. It holds the begin of a head at most, and puts that out first.

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::{Segment, SegmentKind, Time};

use super::config::PIPELINED_MAX;
use super::reasons;
use super::wire::{Body, Expectation, Fault, RequestHead, Requests, Responses, What, has_option};
use crate::{Accelerator, Input, LettingGo, Output, ReasonCode};

/// The near half.
#[derive(Debug)]
pub(super) struct Near {
    state: State,
    requests: Requests,
    responses: Responses,
    /// Requests whose response has not ended, in their order.
    exchanges: VecDeque<Exchange>,
    outputs: VecDeque<Output>,
}

/// See the table in the head of `http/mod.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Following,
    /// What the client sends passes untouched, and the responses that are due are still followed.
    Draining(ReasonCode),
    LetGo,
}

/// A request whose response has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exchange {
    /// It asks to switch to another protocol, so what the client sends behind it has no known meaning.
    asks_upgrade: bool,
}

impl Near {
    /// A half that has not started.
    pub(super) fn new() -> Self {
        Self {
            state: State::Following,
            requests: Requests::new(),
            responses: Responses::new(),
            exchanges: VecDeque::new(),
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
                What::Head(head, _) => self.request(&head),
                What::Control => self.send_wan(Segment::control(run)),
                What::Payload | What::Opaque => self.send_wan(Segment::payload(run)),
            }
        }
        self.send_wan(Segment::payload(bytes));
        self.let_go_when_drained();
    }

    /// Whether what the client sends next has a meaning only once a response has come.
    fn awaits_upgrade(&self) -> bool {
        self.requests.is_between_messages()
            && self.exchanges.iter().any(|exchange| exchange.asks_upgrade)
    }

    fn request(&mut self, head: &RequestHead) {
        self.send_wan(Segment::control(head.bytes.clone()));
        if head.method() == b"CONNECT" {
            return self.drain(reasons::UPGRADED);
        }
        self.responses.expect(Expectation::of(head));
        self.exchanges.push_back(Exchange {
            asks_upgrade: has_option(&head.fields, "connection", "upgrade"),
        });
        if self.exchanges.len() > PIPELINED_MAX {
            self.drain(ReasonCode::LIMIT);
        }
    }

    /// Takes what the server answers.
    fn hear_server(&mut self, mut bytes: Bytes) {
        while !bytes.is_empty() && self.state != State::LetGo {
            let step = match self.responses.step(&bytes) {
                Ok(step) => step,
                Err(fault) => {
                    let held = self.responses.take_held();
                    self.write_lan(held.into());
                    self.write_lan(bytes);
                    return self.let_go(reason(fault));
                }
            };
            let run = bytes.split_to(step.length);
            match step.what {
                What::PartOfHead => {}
                What::Head(head, body) => {
                    let ends = step.is_end && !head.is_interim();
                    self.write_lan(head.bytes);
                    if body == Body::Opaque {
                        self.write_lan(bytes);
                        return self.let_go(reasons::UPGRADED);
                    }
                    if ends {
                        self.exchanges.pop_front();
                    }
                }
                What::Control | What::Payload | What::Opaque => {
                    self.write_lan(run);
                    if step.is_end {
                        self.exchanges.pop_front();
                    }
                }
            }
        }
        self.let_go_when_drained();
    }

    /// The server, or the way to it, has ended.
    fn finish_client(&mut self) {
        let held = self.responses.take_held();
        self.write_lan(held.into());
        self.outputs.push_back(Output::FinishLan);
    }

    fn drain(&mut self, reason: ReasonCode) {
        if self.state == State::Following {
            self.state = State::Draining(reason);
        }
    }

    fn let_go_when_drained(&mut self) {
        if let State::Draining(reason) = self.state
            && self.exchanges.is_empty()
        {
            self.let_go(reason);
        }
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
    fn handle(&mut self, _now: Time, input: Input) {
        if self.state == State::LetGo {
            return;
        }
        match input {
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
            Input::WanFinished => self.finish_client(),
            Input::Start
            | Input::WanSilent(_)
            | Input::Timeout
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
        let exchanges = self.exchanges.capacity() * size_of::<Exchange>();
        self.requests.held().len() + self.responses.held().len() + exchanges
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
