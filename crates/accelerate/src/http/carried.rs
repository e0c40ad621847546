//! Connections of HTTP that carry the protocol of another accelerator, in clear and inside TLS.
//!
//! ```text
//!  client ─► FirstRequest ─┬─ carried: frame Carries(number) ─► FlowStart ─► far half of that protocol
//!                          └─ any other ─► HttpNearHalf                    ─► HttpFarHalf
//! ```
//! The head of the client's first request decides, for all of the connection. A far half of an earlier
//! release, or of a node that has the other accelerator switched off, does not know the frame: then the
//! bytes pass through the half of HTTP, and the near half of the carried protocol finds no other half.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use vocab::{FlowSegment, SegmentKind, Time};

use super::far::HttpFarHalf;
use super::near::HttpNearHalf;
use super::wire::{MessagePart, Requests};
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, CarriedFlow, CarriedProtocol, FrameKind,
    WanEnd,
};

/// The kind of the frame Carries (docs/formats/http-frames.md).
const CARRIES: u8 = 6;

/// The protocols that flows of HTTP may carry, and the flow.
#[derive(Clone, Debug)]
pub(super) struct CarriedProtocols {
    pub(super) known: Arc<[Arc<dyn CarriedProtocol>]>,
    pub(super) flow: CarriedFlow,
}

impl CarriedProtocols {
    /// The same for content that may be stored, or may not.
    pub(super) fn with_storage(mut self, may_store: bool) -> Self {
        self.flow.may_store = may_store;
        self
    }

    fn of_first_request(&self, head: &[u8]) -> Option<&Arc<dyn CarriedProtocol>> {
        self.known
            .iter()
            .find(|protocol| protocol.begins_with(head))
    }
}

/// The near half of one connection.
pub(super) struct ConnectionNear {
    state: NearChoice,
    protocols: CarriedProtocols,
    /// The frame for the far half, in front of all other output.
    frame: Option<FlowSegment>,
}

enum NearChoice {
    /// The head of the first request is not whole.
    FirstRequest {
        http: Box<HttpNearHalf>,
        requests: Requests,
        held: BytesMut,
    },
    Http(Box<HttpNearHalf>),
    Carried {
        half: Box<dyn AcceleratorHalf>,
        name: &'static str,
    },
}

impl ConnectionNear {
    /// A half that has not started. `http` takes the connection if it carries nothing else.
    pub(super) fn new(http: HttpNearHalf, protocols: CarriedProtocols) -> Self {
        let http = Box::new(http);
        let state = match protocols.known.is_empty() {
            true => NearChoice::Http(http),
            false => NearChoice::FirstRequest {
                http,
                requests: Requests::new(),
                held: BytesMut::new(),
            },
        };
        Self {
            state,
            protocols,
            frame: None,
        }
    }

    fn half(&self) -> &dyn AcceleratorHalf {
        match &self.state {
            NearChoice::FirstRequest { http, .. } | NearChoice::Http(http) => &**http,
            NearChoice::Carried { half, .. } => &**half,
        }
    }

    fn half_mut(&mut self) -> &mut dyn AcceleratorHalf {
        match &mut self.state {
            NearChoice::FirstRequest { http, .. } | NearChoice::Http(http) => &mut **http,
            NearChoice::Carried { half, .. } => &mut **half,
        }
    }

    /// Bytes of the client in front of the decision.
    fn first_bytes(&mut self, now: Time, bytes: &Bytes) {
        let NearChoice::FirstRequest { requests, held, .. } = &mut self.state else {
            return;
        };
        held.extend_from_slice(bytes);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let head = match requests.step(rest) {
                Ok(step) => {
                    rest = &rest[step.length..];
                    match step.what {
                        MessagePart::Head(head, _) => head,
                        MessagePart::PartOfHead => continue,
                        MessagePart::Payload | MessagePart::Control | MessagePart::Opaque => {
                            return self.take_http(now);
                        }
                    }
                }
                Err(_) => return self.take_http(now),
            };
            let protocol = self.protocols.of_first_request(&head.bytes).cloned();
            return match protocol {
                Some(protocol) => self.take_carried(now, &*protocol),
                None => self.take_http(now),
            };
        }
    }

    /// The connection is one of HTTP.
    fn take_http(&mut self, now: Time) {
        let NearChoice::FirstRequest { http, held, .. } = &mut self.state else {
            return;
        };
        let held = held.split().freeze();
        let http = std::mem::replace(http, Box::new(HttpNearHalf::new(None)));
        self.state = NearChoice::Http(http);
        if !held.is_empty() {
            self.half_mut().handle(now, AcceleratorInput::Lan(held));
        }
    }

    /// The connection is one of this protocol.
    fn take_carried(&mut self, now: Time, protocol: &dyn CarriedProtocol) {
        let NearChoice::FirstRequest { http, held, .. } = &mut self.state else {
            return;
        };
        http.abandon();
        let held = held.split().freeze();
        let frame = Bytes::copy_from_slice(&[CARRIES, protocol.number()]);
        self.frame = Some(FlowSegment::frame(frame));
        self.state = NearChoice::Carried {
            half: protocol.build(WanEnd::Near, self.protocols.flow),
            name: protocol.name(),
        };
        self.half_mut().handle(now, AcceleratorInput::Start);
        self.half_mut().handle(now, AcceleratorInput::Lan(held));
    }
}

impl AcceleratorHalf for ConnectionNear {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        if matches!(self.state, NearChoice::FirstRequest { .. }) {
            match &input {
                AcceleratorInput::Lan(bytes) => return self.first_bytes(now, bytes),
                AcceleratorInput::Start | AcceleratorInput::Timeout => {}
                // Whatever else comes first is of HTTP.
                _ => self.take_http(now),
            }
        }
        self.half_mut().handle(now, input);
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        if let Some(frame) = self.frame.take() {
            return Some(AcceleratorOutput::ToWan(frame));
        }
        self.half_mut().poll_output()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.half().poll_timeout()
    }

    fn buffered(&self) -> usize {
        let held = match &self.state {
            NearChoice::FirstRequest { requests, held, .. } => held.len() + requests.held().len(),
            NearChoice::Http(_) | NearChoice::Carried { .. } => 0,
        };
        held + self.half().buffered()
    }

    fn waiting_host_bytes(&self) -> usize {
        self.half().waiting_host_bytes()
    }

    fn set_backlog(&mut self, now: Time, bytes: u64) {
        self.half_mut().set_backlog(now, bytes);
    }

    fn takes_content(&self) -> bool {
        self.half().takes_content()
    }

    fn answered(&self) -> u64 {
        self.half().answered()
    }

    fn note(&self) -> Option<String> {
        match &self.state {
            NearChoice::FirstRequest { http, .. } | NearChoice::Http(http) => http.note(),
            NearChoice::Carried { half, name } => {
                let inner = half.note().map(|note| format!(" ({note})"));
                let inner = inner.unwrap_or_default();
                Some(format!(
                    "the accelerator {name} works on the content{inner}"
                ))
            }
        }
    }
}

/// The far half of one connection.
pub(super) struct ConnectionFar {
    half: Box<dyn AcceleratorHalf>,
    protocols: CarriedProtocols,
    state: FarChoice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarChoice {
    /// Nothing has come from either side.
    FlowStart,
    Http,
    /// The half of HTTP has opened the server's connection.
    Carried,
}

impl ConnectionFar {
    /// A half that has not started. `http` takes the connection if it carries nothing else.
    pub(super) fn new(http: HttpFarHalf, protocols: CarriedProtocols) -> Self {
        Self {
            half: Box::new(http),
            protocols,
            state: FarChoice::FlowStart,
        }
    }

    /// Takes the first segment of the near half; false if it is one of HTTP.
    fn first_segment(&mut self, now: Time, segment: &FlowSegment) -> bool {
        self.state = FarChoice::Http;
        let is_carries = segment.kind == SegmentKind::Frame
            && FrameKind::of(&segment.bytes) == Some(FrameKind::Own(CARRIES));
        if !is_carries {
            return false;
        }
        let mut known = self.protocols.known.iter();
        let protocol = known.find(|one| segment.bytes.get(1) == Some(&one.number()));
        if let Some(protocol) = protocol {
            self.half = protocol.build(WanEnd::Far, self.protocols.flow);
            self.state = FarChoice::Carried;
            self.half.handle(now, AcceleratorInput::Start);
        }
        true
    }
}

impl AcceleratorHalf for ConnectionFar {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        if self.state == FarChoice::FlowStart {
            let is_taken = match &input {
                AcceleratorInput::Wan(segment) => self.first_segment(now, segment),
                AcceleratorInput::Lan(_) | AcceleratorInput::LanFinished => {
                    self.state = FarChoice::Http;
                    false
                }
                _ => false,
            };
            if is_taken {
                return;
            }
        }
        self.half.handle(now, input);
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        let output = self.half.poll_output();
        match output {
            Some(AcceleratorOutput::OpenServer) if self.state == FarChoice::Carried => {
                self.half.poll_output()
            }
            _ => output,
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.half.poll_timeout()
    }

    fn buffered(&self) -> usize {
        self.half.buffered()
    }

    fn waiting_host_bytes(&self) -> usize {
        self.half.waiting_host_bytes()
    }

    fn set_backlog(&mut self, now: Time, bytes: u64) {
        self.half.set_backlog(now, bytes);
    }

    fn takes_content(&self) -> bool {
        self.half.takes_content()
    }

    fn answered(&self) -> u64 {
        self.half.answered()
    }

    fn note(&self) -> Option<String> {
        self.half.note()
    }
}
