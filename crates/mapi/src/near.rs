//! The half beside the client.
//!
//! ```text
//!  Passing ──Keys──► Opening ──┐
//!     │                 │      └─► closed: a signature of the client is not valid
//!     └──── Blind ◄─────┘  the client's bytes are no PDUs
//! ```
//! | state | client's bytes | held |
//! | --- | --- | --- |
//! | passing | pass at once, stubs apart; protected PDUs are counted | nothing |
//! | opening | protected PDUs are verified and cross in the clear; others pass | the begin of a PDU |
//! | blind | pass at once | nothing |
//!
//! It never lets go: the far half decides, because it knows whether the near half may still hold
//! or have opened something. It holds nothing before the far half has sent keys, which the far half
//! does only when it will not let go any more.

use std::collections::{BTreeMap, VecDeque};

use accelerate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, FrameKind, LettingGo, ReasonCode,
};
use bytes::Bytes;
use vocab::{FlowSegment, Time};

use crate::frames::HalfFrame;
use crate::protected::{GatheredBytes, OpenSession, OpenedGatherer, segments};
use crate::rpc::cutter::{PassedPdu, PduCutter};
use crate::rpc::ntlm::MessageOrigin;
use crate::rpc::security::{self, OpenedPdu, SessionSecret};
use crate::rpc::splitter::{PduSplitter, RawPdu, level};

/// Security contexts whose PDUs are counted. Clients of Exchange have one or two.
const COUNTED_MAX: usize = 16;

/// Protected PDUs of one security context that have passed.
#[derive(Clone, Copy, Debug, Default)]
struct PassedCount {
    pdus: u32,
    /// Bytes of encrypted stubs.
    stub_bytes: u64,
}

/// The near half (see the head of this file).
#[derive(Debug)]
pub(crate) struct MapiNearHalf {
    state: NearState,
    may_store: bool,
    passed: BTreeMap<u32, PassedCount>,
    session: Option<OpenSession>,
    gatherer: OpenedGatherer,
    outputs: VecDeque<AcceleratorOutput>,
}

#[derive(Debug)]
enum NearState {
    Passing(PduCutter),
    Opening {
        /// The PDU that had begun to pass when the keys came.
        cutter: PduCutter,
        splitter: PduSplitter,
    },
    Blind,
    Closed,
}

impl MapiNearHalf {
    /// A half that has not started.
    pub(crate) fn new(may_store: bool) -> Self {
        Self {
            state: NearState::Passing(PduCutter::default()),
            may_store,
            passed: BTreeMap::new(),
            session: None,
            gatherer: OpenedGatherer::default(),
            outputs: VecDeque::new(),
        }
    }

    fn send_far(&mut self, segment: FlowSegment) {
        if !segment.bytes.is_empty() {
            self.outputs.push_back(AcceleratorOutput::ToWan(segment));
        }
    }

    fn send_client(&mut self, bytes: Bytes) {
        self.outputs.push_back(AcceleratorOutput::ToLan(bytes));
    }

    fn close(&mut self, reason: ReasonCode) {
        self.state = NearState::Closed;
        let close = LettingGo::Close { reason };
        self.outputs.push_back(AcceleratorOutput::LettingGo(close));
    }

    /// Bytes of the client.
    fn client_bytes(&mut self, bytes: Bytes) {
        match &mut self.state {
            NearState::Passing(cutter) => match cutter.cut(&bytes, false) {
                Ok(cut) => {
                    for passed in cut.passed {
                        self.count(passed);
                    }
                    for (kind, bytes) in cut.pieces {
                        self.send_far(FlowSegment { kind, bytes });
                    }
                }
                Err(_) => self.go_blind(bytes),
            },
            NearState::Opening { cutter, splitter } => {
                let mut rest = bytes;
                if !cutter.at_boundary() {
                    match cutter.cut(&rest, true) {
                        Ok(cut) => {
                            rest = cut.rest;
                            let passed = cut.passed;
                            for (kind, bytes) in cut.pieces {
                                let segment = FlowSegment { kind, bytes };
                                self.outputs.push_back(AcceleratorOutput::ToWan(segment));
                            }
                            splitter.push(&rest);
                            for passed in passed {
                                self.skip(passed);
                            }
                        }
                        Err(_) => return self.go_blind(rest),
                    }
                } else {
                    splitter.push(&rest);
                }
                self.open_pdus();
            }
            NearState::Blind => self.send_far(FlowSegment::payload(bytes)),
            NearState::Closed => {}
        }
    }

    fn open_pdus(&mut self) {
        while let NearState::Opening { splitter, .. } = &mut self.state {
            match splitter.next_pdu() {
                Ok(Some(pdu)) => self.client_pdu(pdu),
                Ok(None) => return,
                Err(_) => {
                    let held = splitter.give_back();
                    return self.go_blind(held);
                }
            }
        }
    }

    fn client_pdu(&mut self, pdu: RawPdu) {
        let context = pdu.trailer().map(|trailer| trailer.context);
        let session = self
            .session
            .as_mut()
            .filter(|session| pdu.is_protected() && context == Some(session.context));
        let Some(session) = session else {
            return self.pass(&pdu);
        };
        match security::open(&mut session.from_host, &pdu) {
            Some(opened) => {
                for segment in segments(opened, self.may_store) {
                    self.send_far(segment);
                }
            }
            None => self.close(ReasonCode::FORGED),
        }
    }

    /// Sends a PDU on as it is.
    fn pass(&mut self, pdu: &RawPdu) {
        match PduCutter::default().cut(&pdu.bytes, false) {
            Ok(cut) => {
                for (kind, bytes) in cut.pieces {
                    self.send_far(FlowSegment { kind, bytes });
                }
            }
            Err(_) => self.send_far(FlowSegment::payload(pdu.bytes.clone())),
        }
    }

    /// Counts a PDU that has passed before there were keys.
    fn count(&mut self, passed: PassedPdu) {
        let Some(trailer) = passed.trailer else {
            return;
        };
        let is_full = self.passed.len() >= COUNTED_MAX;
        if !passed.header.kind.is_of_call()
            || !trailer.protects()
            || (is_full && !self.passed.contains_key(&trailer.context))
        {
            return;
        }
        let count = self.passed.entry(trailer.context).or_default();
        count.pdus = count.pdus.wrapping_add(1);
        if trailer.level == level::PRIVACY {
            count.stub_bytes += passed.stub_length as u64;
        }
    }

    /// The PDU that had begun to pass when the keys came has ended.
    fn skip(&mut self, passed: PassedPdu) {
        let trailer = passed.trailer.filter(|trailer| trailer.protects());
        let (Some(trailer), Some(session)) = (trailer, self.session.as_mut()) else {
            return;
        };
        if passed.header.kind.is_of_call() && trailer.context == session.context {
            let stub_bytes = match trailer.level {
                level::PRIVACY => passed.stub_length as u64,
                _ => 0,
            };
            session.from_host.skip(1, stub_bytes);
        }
    }

    /// The client's bytes are no PDUs.
    fn go_blind(&mut self, held: Bytes) {
        self.state = NearState::Blind;
        self.send_far(FlowSegment::frame(HalfFrame::Blind.emit()));
        self.send_far(FlowSegment::payload(held));
    }

    /// Takes the keys of a security context.
    fn take_keys(&mut self, context: u32, secret: &SessionSecret, may_store: bool) {
        let mut session = OpenSession::new(context, secret, MessageOrigin::Client);
        if let Some(count) = self.passed.remove(&context) {
            session.from_host.skip(count.pdus, count.stub_bytes);
        }
        self.may_store &= may_store;
        self.session = Some(session);
        if let NearState::Passing(cutter) = &mut self.state {
            self.state = NearState::Opening {
                cutter: std::mem::take(cutter),
                splitter: PduSplitter::default(),
            };
        }
    }

    fn frame(&mut self, frame: &[u8]) {
        if FrameKind::of(frame) == Some(FrameKind::Released) {
            return;
        }
        match HalfFrame::parse(frame) {
            Some(HalfFrame::Keys {
                context,
                secret,
                may_store,
            }) if self.session.is_none() => self.take_keys(context, &secret, may_store),
            Some(HalfFrame::Opened {
                head,
                trailer,
                stub_length,
            }) => match self.gatherer.announce(head, trailer, stub_length) {
                Ok(Some(pdu)) => self.server_pdu(&pdu),
                Ok(None) => {}
                Err(()) => self.close(ReasonCode::VIOLATION),
            },
            Some(HalfFrame::Keys { .. } | HalfFrame::Blind | HalfFrame::MayStore) | None => {
                self.close(ReasonCode::VIOLATION);
            }
        }
    }

    /// A PDU of the server that the far half has opened.
    fn server_pdu(&mut self, pdu: &OpenedPdu) {
        let session = self.session.as_mut();
        match session.filter(|session| session.context == pdu.trailer.context) {
            Some(session) => {
                let sealed = security::seal(&mut session.to_host, pdu);
                self.send_client(sealed.into());
            }
            None => self.close(ReasonCode::VIOLATION),
        }
    }

    fn server_bytes(&mut self, mut bytes: Bytes) {
        while let Some(gathered) = self.gatherer.take(&mut bytes) {
            match gathered {
                GatheredBytes::Opened(pdu) => self.server_pdu(&pdu),
                GatheredBytes::Raw(bytes) => self.send_client(bytes),
            }
        }
    }

    fn client_finished(&mut self) {
        if let NearState::Opening { splitter, .. } = &mut self.state {
            let held = splitter.give_back();
            if !held.is_empty() {
                self.go_blind(held);
            }
        }
        self.outputs.push_back(AcceleratorOutput::FinishWan);
    }
}

impl AcceleratorHalf for MapiNearHalf {
    fn handle(&mut self, _now: Time, input: AcceleratorInput) {
        if matches!(self.state, NearState::Closed) {
            return;
        }
        match input {
            AcceleratorInput::Start if self.may_store => {
                self.send_far(FlowSegment::frame(HalfFrame::MayStore.emit()));
            }
            AcceleratorInput::Lan(bytes) => self.client_bytes(bytes),
            AcceleratorInput::LanFinished => self.client_finished(),
            AcceleratorInput::Wan(segment) if crate::protected::is_bytes(&segment) => {
                self.server_bytes(segment.bytes);
            }
            AcceleratorInput::Wan(segment) => self.frame(&segment.bytes),
            AcceleratorInput::WanFinished if self.gatherer.is_waiting() => {
                self.close(ReasonCode::VIOLATION);
            }
            AcceleratorInput::WanFinished => self.outputs.push_back(AcceleratorOutput::FinishLan),
            AcceleratorInput::Start
            | AcceleratorInput::WanSilent(_)
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
        let held = match &self.state {
            NearState::Opening { splitter, .. } => splitter.held(),
            NearState::Passing(_) | NearState::Blind | NearState::Closed => 0,
        };
        held + self.gatherer.held()
    }
}
