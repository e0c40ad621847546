//! The half beside the client.
//!
//! ```text
//!  Passing ──Keys, Mailbox──► Opening ──┐
//!     │                          │      └─► closed: a signature of the client is not valid
//!     └──────── Blind ◄──────────┘  the client's bytes are no PDUs
//! ```
//! | state | client's bytes | held |
//! | --- | --- | --- |
//! | passing | pass at once, stubs apart; protected PDUs are counted | nothing |
//! | opening | protected PDUs are verified and cross in the clear; calls to the mailbox go to its machine; others pass | the begin of a PDU, fragments of calls |
//! | blind | pass at once | nothing |
//!
//! It never lets go: the far half decides, because it knows whether the near half may still hold
//! or have opened something. It holds nothing before the far half has sent keys, which the far half
//! does only when it will not let go any more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use accelerate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, FrameKind, LettingGo, ReasonCode,
};
use bytes::Bytes;
use vocab::{FlowSegment, Time};

use crate::frames::HalfFrame;
use crate::protected::{GatheredBytes, OpenSession, OpenedGatherer, segments};
use crate::rop::tactics::{CallOutcome, NearOutput, TacticsNear};
use crate::rpc::calls::{CallGatherer, GatheredFragment};
use crate::rpc::cutter::{PassedPdu, PduCutter};
use crate::rpc::fragments::{CallFrame, unprotected};
use crate::rpc::pdu::{PduKind, pfc};
use crate::rpc::protector::{MessageOrigin, SessionSecret};
use crate::rpc::security::OpenedPdu;
use crate::rpc::splitter::{PduSplitter, RawPdu, SecurityTrailer, level};

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
    mailbox: Option<NearMailbox>,
    gatherer: OpenedGatherer,
    now: Time,
    outputs: VecDeque<AcceleratorOutput>,
}

/// The client's calls to its mailbox, and the machine that takes them.
#[derive(Debug)]
struct NearMailbox {
    context_id: u16,
    /// Bytes of the largest fragment that the client takes.
    fragment_max: u16,
    calls: CallGatherer,
    /// Calls that the machine has.
    taken: BTreeSet<u32>,
    machine: TacticsNear,
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
            mailbox: None,
            gatherer: OpenedGatherer::default(),
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
        let session = self
            .session
            .as_mut()
            .filter(|session| pdu.is_protected() && session.protects(pdu.trailer()));
        let opened = match session {
            None => None,
            Some(session) => match session.from_host.open(&pdu) {
                None => return self.close(ReasonCode::FORGED),
                opened => opened,
            },
        };
        if self.is_for_mailbox(&pdu) {
            let clear = opened.map(|opened| RawPdu::parse(opened.to_bytes().into()));
            return match clear {
                // In a security context that is not opened here: the machine would miss the call.
                None if pdu.is_protected() => self.close(ReasonCode::MECHANISM),
                None if self.session.is_some() => self.pass(&pdu),
                None => self.mailbox_fragment(pdu),
                Some(Ok(clear)) => self.mailbox_fragment(clear),
                Some(Err(_)) => self.close(ReasonCode::VIOLATION),
            };
        }
        match opened {
            _ if self.is_of_machine(&pdu) => {}
            None => self.pass(&pdu),
            Some(opened) => {
                for segment in segments(opened, self.may_store) {
                    self.send_far(segment);
                }
            }
        }
    }

    /// True of fragments of calls that the machine takes. The begin of a call may have passed
    /// before there was a machine; the rest of it passes as well.
    fn is_for_mailbox(&self, pdu: &RawPdu) -> bool {
        let Some(mailbox) = &self.mailbox else {
            return false;
        };
        pdu.header.kind == PduKind::Request
            && !pdu.header.has(pfc::OBJECT)
            && pdu.context_id() == Some(mailbox.context_id)
            && (pdu.header.has(pfc::FIRST) || mailbox.calls.holds(pdu.header.call_id))
    }

    /// True if the client gives up a call that the machine has. The server does not know the call
    /// by this number, and may answer a cancelled call as any other.
    fn is_of_machine(&self, pdu: &RawPdu) -> bool {
        let mailbox = self.mailbox.as_ref();
        matches!(pdu.header.kind, PduKind::Cancel | PduKind::Orphaned)
            && mailbox.is_some_and(|of| of.taken.contains(&pdu.header.call_id))
    }

    fn mailbox_fragment(&mut self, pdu: RawPdu) {
        let Some(mailbox) = &mut self.mailbox else {
            return;
        };
        match mailbox.calls.fragment(pdu) {
            GatheredFragment::Partial => {}
            GatheredFragment::Refused(_) => self.close(ReasonCode::VIOLATION),
            GatheredFragment::Whole(call) => {
                let is_new = mailbox.taken.insert(call.call_id);
                let number = u64::from(call.call_id);
                match call.opnum {
                    Some(opnum) if is_new => {
                        mailbox.machine.call(self.now, number, opnum, call.stub);
                        self.drain_machine();
                    }
                    _ => self.close(ReasonCode::VIOLATION),
                }
            }
        }
    }

    /// Does what the machine requests.
    fn drain_machine(&mut self) {
        while let Some(output) = self
            .mailbox
            .as_mut()
            .and_then(|mailbox| mailbox.machine.poll_output())
        {
            match output {
                NearOutput::Answer { call, outcome } => self.answer(call as u32, &outcome),
                NearOutput::ToFar(segment) => self.send_far(segment),
                NearOutput::Close => return self.close(ReasonCode::VIOLATION),
            }
        }
    }

    /// Answers a call of the client.
    fn answer(&mut self, call_id: u32, outcome: &CallOutcome) {
        let Some(mailbox) = &mut self.mailbox else {
            return;
        };
        mailbox.taken.remove(&call_id);
        let (kind, stub) = match outcome {
            CallOutcome::Response(stub) => (PduKind::Response, stub.clone()),
            // The status, and four reserved bytes ([C706] §12.6.4.7, The fault PDU).
            CallOutcome::Fault(status) => {
                let stub = [status.to_le_bytes(), [0; 4]].concat();
                (PduKind::Fault, stub.into())
            }
        };
        let frame = CallFrame {
            kind,
            call_id,
            context_id: mailbox.context_id,
            opnum: 0,
            protection: self.session.as_ref().map(OpenSession::call_protection),
            fragment_max: mailbox.fragment_max,
        };
        for fragment in frame.fragments(&stub) {
            let bytes = match &mut self.session {
                Some(session) => session.to_host.seal(&fragment),
                None => Some(unprotected(fragment)),
            };
            match bytes {
                Some(bytes) => self.send_client(bytes.into()),
                None => return self.close(ReasonCode::VIOLATION),
            }
        }
    }

    /// The machines take the client's calls from here on.
    fn take_mailbox(&mut self, context_id: u16, fragment_max: u16) {
        let is_private = self.session.as_ref().is_some_and(OpenSession::is_private);
        self.mailbox = Some(NearMailbox {
            context_id,
            fragment_max,
            calls: CallGatherer::default(),
            taken: BTreeSet::new(),
            machine: TacticsNear::new(self.may_store || !is_private),
        });
        self.begin_opening();
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
        if passed.header.kind.is_of_call() && session.protects(Some(trailer)) {
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
    fn take_keys(&mut self, protection: SecurityTrailer, secret: &SessionSecret, may_store: bool) {
        let mut session = OpenSession::new(protection, secret, MessageOrigin::Client);
        if let Some(count) = self.passed.remove(&protection.context) {
            session.from_host.skip(count.pdus, count.stub_bytes);
        }
        self.may_store &= may_store;
        self.session = Some(session);
        self.begin_opening();
    }

    fn begin_opening(&mut self) {
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
                protection,
                secret,
                may_store,
            }) if self.session.is_none() => self.take_keys(protection, &secret, may_store),
            Some(HalfFrame::Mailbox {
                context_id,
                fragment_max,
            }) if self.mailbox.is_none() => self.take_mailbox(context_id, fragment_max),
            Some(HalfFrame::Opened {
                head,
                trailer,
                stub_length,
            }) => match self.gatherer.announce(head, trailer, stub_length) {
                Ok(Some(pdu)) => self.server_pdu(&pdu),
                Ok(None) => {}
                Err(()) => self.close(ReasonCode::VIOLATION),
            },
            Some(
                HalfFrame::Keys { .. }
                | HalfFrame::Mailbox { .. }
                | HalfFrame::Blind
                | HalfFrame::MayStore
                | HalfFrame::HttpReady
                | HalfFrame::HttpBegin
                | HalfFrame::HttpHead { .. }
                | HalfFrame::HttpAnswer { .. },
            )
            | None => self.close(ReasonCode::VIOLATION),
        }
    }

    /// A PDU of the server that the far half has opened.
    fn server_pdu(&mut self, pdu: &OpenedPdu) {
        let session = self.session.as_mut();
        let session = session.filter(|session| session.protects(Some(pdu.trailer)));
        match session.and_then(|session| session.to_host.seal(pdu)) {
            Some(sealed) => self.send_client(sealed.into()),
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

    fn is_for_machine(&self, segment: &FlowSegment) -> bool {
        let mailbox = self.mailbox.as_ref();
        mailbox.is_some_and(|mailbox| mailbox.machine.takes(segment))
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
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        self.now = now;
        if matches!(self.state, NearState::Closed) {
            return;
        }
        match input {
            AcceleratorInput::Start if self.may_store => {
                self.send_far(FlowSegment::frame(HalfFrame::MayStore.emit()));
            }
            AcceleratorInput::Lan(bytes) => self.client_bytes(bytes),
            AcceleratorInput::LanFinished => self.client_finished(),
            AcceleratorInput::Wan(segment) if self.is_for_machine(&segment) => {
                if let Some(mailbox) = &mut self.mailbox {
                    mailbox.machine.segment(now, segment);
                }
                self.drain_machine();
            }
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
        let mailbox = self.mailbox.as_ref();
        let mailbox = mailbox.map_or(0, |of| of.calls.held() + of.machine.buffered());
        held + mailbox + self.gatherer.held()
    }

    fn answered(&self) -> u64 {
        let mailbox = self.mailbox.as_ref();
        mailbox.map_or(0, |mailbox| mailbox.machine.answered())
    }
}
