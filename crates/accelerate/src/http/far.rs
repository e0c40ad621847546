//! The half beside the server: opens its connection, and tells heads from bodies in what it answers.
//!
//! It holds nothing back and alters nothing, so the other half can let go at any moment. Requests are
//! followed only to learn how their responses are framed.

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::wire::{Expectation, Fault, Requests, Responses, What};
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput};

/// The far half.
#[derive(Debug)]
pub(super) struct Far {
    requests: Requests,
    responses: Responses,
    /// From the first message on that cannot be followed, everything is payload.
    follows: bool,
    /// The response has had payload.
    has_body: bool,
    outputs: VecDeque<AcceleratorOutput>,
}

impl Far {
    /// A half that has not started.
    pub(super) fn new() -> Self {
        Self {
            requests: Requests::new(),
            responses: Responses::new(),
            follows: true,
            has_body: false,
            outputs: VecDeque::new(),
        }
    }

    /// True if no response has begun and not ended, as far as is known.
    pub(super) fn is_between_responses(&self) -> bool {
        self.follows && self.responses.is_between_messages()
    }

    /// Learns of the requests in what the client sends.
    fn follow_requests(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let step = self.requests.step(bytes)?;
            bytes = &bytes[step.length..];
            if let What::Head(head, _) = step.what {
                self.responses.expect(Expectation::of(&head));
            }
        }
        Ok(())
    }

    /// Sends what the server says, each run by its kind.
    fn send(&mut self, mut bytes: Bytes) {
        while !bytes.is_empty() && self.follows {
            let Ok(step) = self.responses.step(&bytes) else {
                self.follows = false;
                break;
            };
            let run = bytes.split_to(step.length);
            self.has_body |= matches!(step.what, What::Payload);
            let segment = match step.what {
                What::PartOfHead | What::Head(..) | What::Control => FlowSegment::control(run),
                What::Payload | What::Opaque => FlowSegment::payload(run),
            };
            self.outputs.push_back(AcceleratorOutput::ToWan(segment));
            if step.is_end && std::mem::take(&mut self.has_body) {
                self.outputs.push_back(AcceleratorOutput::EndBody);
            }
        }
        if !bytes.is_empty() {
            self.outputs
                .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(bytes)));
        }
    }
}

impl AcceleratorHalf for Far {
    fn handle(&mut self, _now: Time, input: AcceleratorInput) {
        match input {
            AcceleratorInput::Start => self.outputs.push_back(AcceleratorOutput::OpenServer),
            AcceleratorInput::Lan(bytes) => self.send(bytes),
            AcceleratorInput::LanFinished => self.outputs.push_back(AcceleratorOutput::FinishWan),
            AcceleratorInput::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => {
                    if self.follows && self.follow_requests(&segment.bytes).is_err() {
                        self.follows = false;
                    }
                    self.outputs
                        .push_back(AcceleratorOutput::ToLan(segment.bytes));
                }
                // The near half of this release sends none.
                SegmentKind::Frame => {}
            },
            AcceleratorInput::WanFinished => self.outputs.push_back(AcceleratorOutput::FinishLan),
            AcceleratorInput::WanSilent(_)
            | AcceleratorInput::Timeout
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

    fn buffered(&self) -> usize {
        self.requests.held().len() + self.responses.held().len()
    }
}
