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

use crate::frames::HalfFrame;
use crate::protected::{GatheredBytes, OpenSession, OpenedGatherer, segments};
use crate::rpc::association::RpcAssociation;
use crate::rpc::cutter::PduCutter;
use crate::rpc::ntlm::{MessageOrigin, NtlmProtector};
use crate::rpc::pdu::{PduError, PduKind};
use crate::rpc::security::{self, OpenedPdu, SecuritySetUp, SessionSecret};
use crate::rpc::splitter::{PduSplitter, RawPdu};

/// The far half (see the head of this file).
#[derive(Debug)]
pub(crate) struct MapiFarHalf {
    state: FarState,
    may_store: bool,
    near_may_store: bool,
    client: PduSplitter,
    server: PduSplitter,
    association: RpcAssociation,
    set_up: SecuritySetUp,
    session: Option<ServerSession>,
    gatherer: OpenedGatherer,
    /// The account of the session, or the one that has no key.
    account: Option<String>,
    outputs: VecDeque<AcceleratorOutput>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarState {
    Watching,
    Engaged,
    Gone,
}

impl MapiFarHalf {
    /// A half that has not started.
    pub(crate) fn new(may_store: bool, delegated: DelegatedKeys) -> Self {
        Self {
            state: FarState::Watching,
            may_store,
            near_may_store: false,
            client: PduSplitter::default(),
            server: PduSplitter::default(),
            association: RpcAssociation::default(),
            set_up: SecuritySetUp::new(delegated),
            session: None,
            gatherer: OpenedGatherer::default(),
            account: None,
            outputs: VecDeque::new(),
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
        let Some(trailer) = pdu.trailer() else {
            return self.send_server(pdu.bytes.clone());
        };
        if !pdu.header.kind.is_of_call() {
            if self.session.is_none() {
                self.set_up.client_token(pdu.auth_value());
            }
            return self.send_server(pdu.bytes.clone());
        }
        if !trailer.protects() {
            return self.send_server(pdu.bytes.clone());
        }
        match &mut self.session {
            Some(session) if session.context == trailer.context => {
                // It was on its way when the near half got the keys.
                match security::open(&mut session.from_near, pdu) {
                    Some(opened) => self.client_opened(&opened),
                    None => self.stop(ReasonCode::FORGED),
                }
            }
            Some(_) => self.send_server(pdu.bytes.clone()),
            None => self.first_protected(trailer.context, pdu),
        }
    }

    /// The first protected PDU shows which key the session has.
    fn first_protected(&mut self, context: u32, pdu: &RawPdu) {
        let proved = match self.set_up.candidates() {
            Ok(found) => {
                let mut secrets = found.secrets.iter();
                let proves = |secret: &&SessionSecret| {
                    let mut protector = secret.protector(MessageOrigin::Client);
                    security::open(&mut protector, pdu).is_some()
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
                self.engage(context, secret);
                self.client_pdu(pdu);
            }
            Err(reason) => {
                self.send_server(pdu.bytes.clone());
                self.stop(reason);
            }
        }
    }

    fn engage(&mut self, context: u32, secret: SessionSecret) {
        self.session = Some(ServerSession {
            context,
            from_near: secret.protector(MessageOrigin::Client),
            server: OpenSession::new(context, &secret, MessageOrigin::Server),
        });
        self.state = FarState::Engaged;
        let keys = HalfFrame::Keys {
            context,
            secret,
            may_store: self.may_store,
        };
        self.send_near(SegmentKind::Frame, keys.emit());
    }

    /// A client's PDU in the clear.
    fn client_opened(&mut self, pdu: &OpenedPdu) {
        let session = self.session.as_mut();
        match session.filter(|session| session.context == pdu.trailer.context) {
            Some(session) => {
                let sealed = security::seal(&mut session.server.to_host, pdu);
                self.send_server(sealed.into());
            }
            None => self.stop(ReasonCode::VIOLATION),
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
        let context = pdu.trailer().map(|trailer| trailer.context);
        let session = self
            .session
            .as_mut()
            .filter(|session| pdu.is_protected() && context == Some(session.context));
        let Some(session) = session else {
            return self.pass_to_near(pdu);
        };
        match security::open(&mut session.server.from_host, pdu) {
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
            Some(HalfFrame::Keys { .. }) | None => self.stop(ReasonCode::VIOLATION),
        }
    }

    fn client_finished(&mut self) {
        let held = self.client.give_back();
        self.send_server(held);
        self.outputs.push_back(AcceleratorOutput::FinishLan);
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
    context: u32,
    from_near: NtlmProtector,
    server: OpenSession,
}

fn reason_of(error: PduError) -> ReasonCode {
    match error {
        PduError::Version | PduError::Representation | PduError::Kind => ReasonCode::UNSUPPORTED,
        PduError::Truncated | PduError::Length => ReasonCode::VIOLATION,
    }
}

impl AcceleratorHalf for MapiFarHalf {
    fn handle(&mut self, _now: Time, input: AcceleratorInput) {
        if self.state == FarState::Gone {
            return;
        }
        match input {
            AcceleratorInput::Start => self.outputs.push_back(AcceleratorOutput::OpenServer),
            AcceleratorInput::Lan(bytes) => self.server_bytes(&bytes),
            AcceleratorInput::LanFinished => self.server_finished(),
            AcceleratorInput::Wan(segment) if crate::protected::is_bytes(&segment) => {
                self.near_bytes(segment.bytes);
            }
            AcceleratorInput::Wan(segment) => self.frame(&segment.bytes),
            AcceleratorInput::WanFinished if self.gatherer.is_waiting() => {
                self.stop(ReasonCode::VIOLATION);
            }
            AcceleratorInput::WanFinished => self.client_finished(),
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
        self.client.held() + self.server.held() + self.gatherer.held()
    }

    fn note(&self) -> Option<String> {
        let account = self.account.as_ref()?;
        Some(match self.state {
            FarState::Engaged => format!("for {account}"),
            FarState::Watching | FarState::Gone => account.clone(),
        })
    }
}
