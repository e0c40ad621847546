//! The half beside the server.
//!
//! ```text
//!            a signature of the client proves a delegated key
//!  Watching ────────────────────────────────────────────────► Engaged
//!     │                                                           │
//!     └─► let go: no PDUs, no key                                 └─► closed: a signature is not valid
//! ```
//! | state | client's bytes | server's bytes | lets go |
//! | --- | --- | --- | --- |
//! | watching | pass once a PDU is whole | pass once a PDU is whole | by `LetGo`, after it has put out what it holds |
//! | engaged | as watching, and opened PDUs are protected for the server | protected PDUs are verified and cross in the clear; others pass | by `Close` |
//!
//! The near half may hold bytes from the keys on, so the far half does not let go after it has sent
//! them. PDUs of another security context than the first one with a key pass as they are.

use std::collections::VecDeque;

use accelerate::credentials::DelegatedKeys;
use accelerate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, LettingGo, ReasonCode};
use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use crate::emsmdb::EMSMDB;
use crate::frames::HalfFrame;
use crate::protected::{GatheredBytes, OpenSession, OpenedGatherer, segments};
use crate::rop::tactics::{CallOutcome, FarOutput, SessionPlace, TacticsFar};
use crate::rpc::association::RpcAssociation;
use crate::rpc::calls::{CallGatherer, GatheredFragment};
use crate::rpc::cutter::PduCutter;
use crate::rpc::fragments::{CallFrame, unprotected};
use crate::rpc::pdu::{CALL_HEADER, PduError, PduHeader, PduKind, pfc};
use crate::rpc::protector::{MessageOrigin, PduProtector, SessionSecret};
use crate::rpc::security::{OpenedPdu, SecuritySetUp};
use crate::rpc::splitter::{PduSplitter, RawPdu, SecurityTrailer};

/// The far half (see the head of this file).
#[derive(Debug)]
pub(crate) struct MapiFarHalf {
    state: FarState,
    is_on: bool,
    may_store: bool,
    near_may_store: bool,
    client: PduSplitter,
    server: PduSplitter,
    association: RpcAssociation,
    set_up: SecuritySetUp,
    session: Option<ServerSession>,
    place: SessionPlace,
    mailbox: Option<FarMailbox>,
    /// True if the client has proposed presentation contexts without protecting its calls.
    is_unprotected: bool,
    /// Calls at the server that the client has made itself.
    at_server: usize,
    /// The number of the last call of the machine.
    next_call: u32,
    /// The client sends no more, and the answer to a call of the machine is due.
    is_finishing: bool,
    now: Time,
    gatherer: OpenedGatherer,
    /// The account of the session, or the one that has no key.
    account: Option<String>,
    outputs: VecDeque<AcceleratorOutput>,
}

/// The machine of the mailbox, and its call at the server.
#[derive(Debug)]
struct FarMailbox {
    context_id: u16,
    machine: TacticsFar,
    /// The number of the call that is at the server.
    current: Option<u32>,
    answers: CallGatherer,
    /// A call that waits until the server is free.
    waiting: Option<(u16, Bytes)>,
    /// PDUs of the client's own calls that wait for the end of the machine's.
    held: VecDeque<ClientRequest>,
    held_bytes: usize,
}

/// A fragment of a client's call that the machine does not take.
#[derive(Debug)]
enum ClientRequest {
    Raw(RawPdu),
    Opened(OpenedPdu),
}

impl ClientRequest {
    fn length(&self) -> usize {
        match self {
            Self::Raw(pdu) => pdu.bytes.len(),
            Self::Opened(pdu) => pdu.head.len() + pdu.stub.len(),
        }
    }
}

/// Calls of the machine have numbers from here on. Clients count from small ones.
const FIRST_CALL: u32 = 0x4000_0000;
/// Bytes of the client's own calls that wait for the machine's call: some calls of the largest size.
const HELD_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarState {
    Watching,
    Engaged,
    Gone,
}

impl MapiFarHalf {
    /// A half that has not started.
    pub(crate) fn new(may_store: bool, delegated: DelegatedKeys, place: SessionPlace) -> Self {
        Self {
            state: FarState::Watching,
            is_on: true,
            may_store,
            near_may_store: false,
            client: PduSplitter::default(),
            server: PduSplitter::default(),
            association: RpcAssociation::default(),
            set_up: SecuritySetUp::new(delegated),
            session: None,
            place,
            mailbox: None,
            is_unprotected: true,
            at_server: 0,
            next_call: FIRST_CALL,
            is_finishing: false,
            now: Time::ZERO,
            gatherer: OpenedGatherer::default(),
            account: None,
            outputs: VecDeque::new(),
        }
    }

    /// A half of a node that does not accelerate MAPI: it lets go at once.
    pub(crate) fn switched_off(place: SessionPlace) -> Self {
        Self {
            is_on: false,
            ..Self::new(false, DelegatedKeys::default(), place)
        }
    }

    fn send_near(&mut self, kind: SegmentKind, bytes: Bytes) {
        if !bytes.is_empty() {
            let segment = FlowSegment { kind, bytes };
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
            FarState::Watching => {
                let (client, server) = (self.client.give_back(), self.server.give_back());
                self.send_server(client);
                self.send_near(SegmentKind::Payload, server);
                LettingGo::LetGo { reason }
            }
            FarState::Engaged => LettingGo::Close { reason },
            FarState::Gone => return,
        };
        self.state = FarState::Gone;
        let letting_go = AcceleratorOutput::LettingGo(letting_go);
        self.outputs.push_back(letting_go);
    }

    /// Bytes of the client that no half has opened.
    fn client_bytes(&mut self, bytes: &[u8]) {
        self.client.push(bytes);
        while self.state != FarState::Gone {
            match self.client.next_pdu() {
                Ok(Some(pdu)) => self.client_pdu(&pdu),
                Ok(None) => return,
                Err(error) => return self.stop(reason_of(error)),
            }
        }
    }

    fn client_pdu(&mut self, pdu: &RawPdu) {
        self.association.client_sent(pdu);
        if matches!(pdu.header.kind, PduKind::Bind | PduKind::AlterContext) {
            let protects = pdu.trailer().is_some_and(|trailer| trailer.protects());
            self.is_unprotected &= !protects;
        }
        let Some(trailer) = pdu.trailer() else {
            return self.pass_to_server(ClientRequest::Raw(pdu.clone()));
        };
        if !pdu.header.kind.is_of_call() {
            if self.session.is_none() {
                self.set_up.client_token(pdu.auth_value());
            }
            return self.send_server(pdu.bytes.clone());
        }
        if !trailer.protects() {
            return self.pass_to_server(ClientRequest::Raw(pdu.clone()));
        }
        match &mut self.session {
            Some(session) if session.server.protects(Some(trailer)) => {
                // It was on its way when the near half got the keys.
                match session.from_near.open(pdu) {
                    Some(opened) => self.client_opened(&opened),
                    None => self.stop(ReasonCode::FORGED),
                }
            }
            Some(_) => self.pass_to_server(ClientRequest::Raw(pdu.clone())),
            // The machine would miss the calls of a session that began later.
            None if self.mailbox.is_some() => self.stop(ReasonCode::MECHANISM),
            None => self.first_protected(trailer, pdu),
        }
    }

    /// The first protected PDU shows which key the session has.
    fn first_protected(&mut self, protection: SecurityTrailer, pdu: &RawPdu) {
        let proved = match self.set_up.candidates() {
            Ok(found) => {
                let mut secrets = found.secrets.iter();
                let proves = |secret: &&SessionSecret| {
                    let mut protector = secret.protector(MessageOrigin::Client);
                    protector.open(pdu).is_some()
                };
                self.account = Some(found.account.clone());
                secrets.find(proves).cloned().ok_or(ReasonCode::WRONG_KEY)
            }
            Err(missing) => {
                self.account = missing.account.clone();
                Err(missing.reason)
            }
        };
        match proved {
            Ok(secret) => {
                self.engage(protection, secret);
                self.client_pdu(pdu);
            }
            Err(reason) => {
                self.send_server(pdu.bytes.clone());
                self.stop(reason);
            }
        }
    }

    fn engage(&mut self, protection: SecurityTrailer, secret: SessionSecret) {
        self.session = Some(ServerSession {
            from_near: secret.protector(MessageOrigin::Client),
            server: OpenSession::new(protection, &secret, MessageOrigin::Server),
        });
        self.state = FarState::Engaged;
        let keys = HalfFrame::Keys {
            protection,
            secret,
            may_store: self.may_store,
        };
        self.send_near(SegmentKind::Frame, keys.emit());
        self.begin_mailbox();
    }

    /// Lets the machines take the client's calls, if it has bound the mailbox interface.
    fn begin_mailbox(&mut self) {
        let Some(context_id) = self.association.context_of(&EMSMDB) else {
            return;
        };
        let session = self.session.as_ref();
        let is_private = session.is_some_and(|session| session.server.is_private());
        let may_store = !is_private || self.may_store && self.near_may_store;
        self.mailbox = Some(FarMailbox {
            context_id,
            machine: TacticsFar::new(may_store, self.place.clone()),
            current: None,
            answers: CallGatherer::default(),
            waiting: None,
            held: VecDeque::new(),
            held_bytes: 0,
        });
        self.state = FarState::Engaged;
        let mailbox = HalfFrame::Mailbox {
            context_id,
            fragment_max: self.association.fragment_to_client(),
        };
        self.send_near(SegmentKind::Frame, mailbox.emit());
    }

    /// Sends a PDU of the client's own on, in its turn: without multiplexing a server has one call
    /// of a connection at a time.
    fn pass_to_server(&mut self, request: ClientRequest) {
        let is_busy = !self.association.multiplexes()
            && self.mailbox.as_ref().is_some_and(|of| of.current.is_some());
        let header = match &request {
            ClientRequest::Raw(pdu) => Ok(pdu.header),
            ClientRequest::Opened(pdu) => PduHeader::parse(&pdu.head),
        };
        let Ok(header) = header else {
            return self.stop(ReasonCode::VIOLATION);
        };
        if header.kind == PduKind::Request {
            if let Some(mailbox) = self.mailbox.as_mut().filter(|_| is_busy) {
                mailbox.held_bytes += request.length();
                mailbox.held.push_back(request);
                if mailbox.held_bytes > HELD_MAX {
                    self.stop(ReasonCode::LIMIT);
                }
                return;
            }
            if header.has(pfc::FIRST) {
                self.at_server += 1;
            }
        }
        match (request, &mut self.session) {
            (ClientRequest::Raw(pdu), _) => self.send_server(pdu.bytes),
            (ClientRequest::Opened(pdu), Some(session)) => {
                match session.server.to_host.seal(&pdu) {
                    Some(sealed) => self.send_server(sealed.into()),
                    None => self.stop(ReasonCode::VIOLATION),
                }
            }
            (ClientRequest::Opened(_), None) => self.stop(ReasonCode::VIOLATION),
        }
    }

    /// Does what the machine requests.
    fn drain_machine(&mut self) {
        while self.state != FarState::Gone {
            let mailbox = self.mailbox.as_mut();
            match mailbox.and_then(|mailbox| mailbox.machine.poll_output()) {
                None => return,
                Some(FarOutput::ToNear(segment)) => self.send_near(segment.kind, segment.bytes),
                Some(FarOutput::Close) => self.stop(ReasonCode::VIOLATION),
                Some(FarOutput::Call { opnum, stub }) => {
                    if let Some(mailbox) = &mut self.mailbox {
                        mailbox.waiting = Some((opnum, stub));
                        self.begin_call();
                    }
                }
            }
        }
    }

    /// Calls the server for the machine, once it is free.
    fn begin_call(&mut self) {
        let is_free = self.at_server == 0 || self.association.multiplexes();
        let Some(mailbox) = self.mailbox.as_mut().filter(|_| is_free) else {
            return;
        };
        let Some((opnum, stub)) = mailbox.waiting.take() else {
            return;
        };
        let session = self.session.as_ref();
        let frame = CallFrame {
            kind: PduKind::Request,
            call_id: self.next_call,
            context_id: mailbox.context_id,
            opnum,
            protection: session.map(|session| session.server.call_protection()),
            fragment_max: self.association.fragment_to_server(),
        };
        mailbox.current = Some(self.next_call);
        self.next_call = FIRST_CALL | self.next_call.wrapping_add(1);
        for fragment in frame.fragments(&stub) {
            let bytes = match &mut self.session {
                Some(session) => session.server.to_host.seal(&fragment),
                None => Some(unprotected(fragment)),
            };
            match bytes {
                Some(bytes) => self.send_server(bytes.into()),
                None => return self.stop(ReasonCode::VIOLATION),
            }
        }
    }

    /// The server has sent a fragment of its answer to the machine's call.
    fn machine_answer(&mut self, pdu: RawPdu) {
        let Some(mailbox) = &mut self.mailbox else {
            return;
        };
        let outcome = match pdu.header.kind {
            PduKind::Fault => match pdu.bytes.get(CALL_HEADER..).and_then(<[u8]>::first_chunk) {
                Some(status) => CallOutcome::Fault(u32::from_le_bytes(*status)),
                None => return self.stop(ReasonCode::VIOLATION),
            },
            _ => match mailbox.answers.fragment(pdu) {
                GatheredFragment::Partial => return,
                GatheredFragment::Refused(_) => return self.stop(ReasonCode::VIOLATION),
                GatheredFragment::Whole(call) => CallOutcome::Response(call.stub),
            },
        };
        mailbox.current = None;
        let held = std::mem::take(&mut mailbox.held);
        mailbox.held_bytes = 0;
        for request in held {
            self.pass_to_server(request);
        }
        if let Some(mailbox) = &mut self.mailbox {
            mailbox.machine.answered(self.now, outcome);
        }
        self.drain_machine();
        self.finish_if_idle();
    }

    /// The client sends no more: finishes its stream once the machine has no work.
    fn finish_if_idle(&mut self) {
        if self.is_finishing && self.state != FarState::Gone {
            self.is_finishing = false;
            self.client_finished();
        }
    }

    /// A client's PDU in the clear.
    fn client_opened(&mut self, pdu: &OpenedPdu) {
        let session = self.session.as_ref();
        match session.is_some_and(|session| session.server.protects(Some(pdu.trailer))) {
            true => self.pass_to_server(ClientRequest::Opened(pdu.clone())),
            false => self.stop(ReasonCode::VIOLATION),
        }
    }

    fn server_bytes(&mut self, bytes: &[u8]) {
        self.server.push(bytes);
        while self.state != FarState::Gone {
            match self.server.next_pdu() {
                Ok(Some(pdu)) => self.server_pdu(&pdu),
                Ok(None) => return,
                Err(error) => return self.stop(reason_of(error)),
            }
        }
    }

    fn server_pdu(&mut self, pdu: &RawPdu) {
        self.association.server_sent(pdu);
        if !pdu.header.kind.is_of_call() && self.session.is_none() {
            self.set_up.server_token(pdu.auth_value());
        }
        let answers = matches!(
            pdu.header.kind,
            PduKind::BindAck | PduKind::AlterContextResponse
        );
        if answers && self.is_unprotected && self.mailbox.is_none() {
            self.begin_mailbox();
        }
        let current = self.mailbox.as_ref().and_then(|mailbox| mailbox.current);
        let is_answer = matches!(pdu.header.kind, PduKind::Response | PduKind::Fault);
        let is_of_machine = is_answer && current == Some(pdu.header.call_id);
        let is_last = is_answer
            && !is_of_machine
            && (pdu.header.kind == PduKind::Fault || pdu.header.has(pfc::LAST));
        let session = self
            .session
            .as_mut()
            .filter(|session| pdu.is_protected() && session.server.protects(pdu.trailer()));
        let Some(session) = session else {
            let is_due = self.session.is_some() && pdu.header.kind == PduKind::Response;
            match is_of_machine {
                true if is_due => self.stop(ReasonCode::FORGED),
                true => self.machine_answer(pdu.clone()),
                false => self.pass_to_near(pdu),
            }
            return self.answer_passed(is_last);
        };
        match session.server.from_host.open(pdu) {
            Some(opened) if is_of_machine => match RawPdu::parse(opened.to_bytes().into()) {
                Ok(clear) => self.machine_answer(clear),
                Err(_) => self.stop(ReasonCode::VIOLATION),
            },
            Some(opened) => {
                let may_store = self.may_store && self.near_may_store;
                for segment in segments(opened, may_store) {
                    self.send_near(segment.kind, segment.bytes);
                }
            }
            // A fault may come without a signature that is worth the name: the client judges it.
            None if pdu.header.kind == PduKind::Fault => self.pass_to_near(pdu),
            None => self.stop(ReasonCode::FORGED),
        }
        self.answer_passed(is_last);
    }

    /// The last fragment of an answer to a call of the client's own has passed.
    fn answer_passed(&mut self, is_last: bool) {
        if is_last && self.state != FarState::Gone {
            self.at_server = self.at_server.saturating_sub(1);
            self.begin_call();
        }
    }

    fn pass_to_near(&mut self, pdu: &RawPdu) {
        match PduCutter::default().cut(&pdu.bytes, false) {
            Ok(cut) => {
                for (kind, bytes) in cut.pieces {
                    self.send_near(kind, bytes);
                }
            }
            Err(_) => self.send_near(SegmentKind::Payload, pdu.bytes.clone()),
        }
    }

    fn near_bytes(&mut self, mut bytes: Bytes) {
        while let Some(gathered) = self.gatherer.take(&mut bytes) {
            match gathered {
                GatheredBytes::Opened(pdu) => self.client_opened(&pdu),
                GatheredBytes::Raw(bytes) => self.client_bytes(&bytes),
            }
        }
    }

    fn frame(&mut self, frame: &[u8]) {
        match HalfFrame::parse(frame) {
            Some(HalfFrame::Blind) => self.stop(ReasonCode::UNSUPPORTED),
            Some(HalfFrame::MayStore) => self.near_may_store = true,
            Some(HalfFrame::Opened {
                head,
                trailer,
                stub_length,
            }) => match self.gatherer.announce(head, trailer, stub_length) {
                Ok(Some(pdu)) => self.client_opened(&pdu),
                Ok(None) => {}
                Err(()) => self.stop(ReasonCode::VIOLATION),
            },
            Some(
                HalfFrame::Keys { .. }
                | HalfFrame::Mailbox { .. }
                | HalfFrame::HttpReady
                | HalfFrame::HttpBegin
                | HalfFrame::HttpHead { .. }
                | HalfFrame::HttpAnswer { .. },
            )
            | None => self.stop(ReasonCode::VIOLATION),
        }
    }

    fn client_finished(&mut self) {
        if let Some(mailbox) = &mut self.mailbox {
            mailbox.machine.finish(self.now);
        }
        self.drain_machine();
        // A call that waits for the end of another one may wait for minutes: it is given up.
        let is_busy = |mailbox: &FarMailbox| {
            mailbox.current.is_some() || (mailbox.waiting.is_none() && !mailbox.machine.is_idle())
        };
        if self.mailbox.as_ref().is_some_and(is_busy) {
            self.is_finishing = true;
            return;
        }
        let held = self.client.give_back();
        self.send_server(held);
        self.outputs.push_back(AcceleratorOutput::FinishLan);
    }

    fn is_for_machine(&self, segment: &FlowSegment) -> bool {
        let mailbox = self.mailbox.as_ref();
        mailbox.is_some_and(|mailbox| mailbox.machine.takes(segment))
    }

    fn server_finished(&mut self) {
        let held = self.server.give_back();
        self.send_near(SegmentKind::Payload, held);
        self.outputs.push_back(AcceleratorOutput::FinishWan);
    }
}

/// The session at the server's end, and what opens PDUs that the near half has passed as they came.
#[derive(Debug)]
struct ServerSession {
    from_near: PduProtector,
    server: OpenSession,
}

fn reason_of(error: PduError) -> ReasonCode {
    match error {
        PduError::Version | PduError::Representation | PduError::Kind => ReasonCode::UNSUPPORTED,
        PduError::Truncated | PduError::Length => ReasonCode::VIOLATION,
    }
}

impl AcceleratorHalf for MapiFarHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        self.now = now;
        if self.state == FarState::Gone {
            return;
        }
        match input {
            AcceleratorInput::Start => {
                self.outputs.push_back(AcceleratorOutput::OpenServer);
                if !self.is_on {
                    self.stop(ReasonCode::POLICY);
                }
            }
            AcceleratorInput::Lan(bytes) => self.server_bytes(&bytes),
            AcceleratorInput::LanFinished => self.server_finished(),
            AcceleratorInput::Wan(segment) if self.is_for_machine(&segment) => {
                if let Some(mailbox) = &mut self.mailbox {
                    mailbox.machine.segment(now, segment);
                }
                self.drain_machine();
            }
            AcceleratorInput::Wan(segment) if crate::protected::is_bytes(&segment) => {
                self.near_bytes(segment.bytes);
            }
            AcceleratorInput::Wan(segment) => self.frame(&segment.bytes),
            AcceleratorInput::WanFinished if self.gatherer.is_waiting() => {
                self.stop(ReasonCode::VIOLATION);
            }
            AcceleratorInput::WanFinished => self.client_finished(),
            AcceleratorInput::Woken => {
                if let Some(mailbox) = &mut self.mailbox {
                    mailbox.machine.woken(now);
                }
                self.drain_machine();
                self.finish_if_idle();
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
        if self.state == FarState::Gone {
            return;
        }
        if let Some(mailbox) = &mut self.mailbox {
            mailbox.machine.set_backlog(now, bytes);
        }
        self.drain_machine();
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn buffered(&self) -> usize {
        let mailbox = self.mailbox.as_ref();
        let mailbox = mailbox.map_or(0, |of| {
            let waiting = of.waiting.as_ref().map_or(0, |(_, stub)| stub.len());
            of.answers.held() + of.machine.buffered() + of.held_bytes + waiting
        });
        self.client.held() + self.server.held() + self.gatherer.held() + mailbox
    }

    fn note(&self) -> Option<String> {
        let account = self.account.as_ref()?;
        Some(match self.state {
            FarState::Engaged => format!("for {account}"),
            FarState::Watching | FarState::Gone => account.clone(),
        })
    }
}
