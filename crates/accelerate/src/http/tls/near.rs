//! The half beside the client: reads the ClientHello, decides, and answers as the origin would.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::{AlertDescription, Error, ServerConfig, ServerConnection};
use vocab::{FlowSegment, SegmentKind, Time};

use super::TlsState;
use super::client_hello::{ClientHello, HelloReader, HelloStep};
use super::facts::{
    HANDSHAKE_FAILURES_MAX, KnownOrigin, OriginFacts, OriginKnowledge, ProvedOrigin,
};
use super::frames::{CertificateFault, TlsCarriage, TlsFrame};
use super::lanes::ClientLanes;
use super::open_transfers::OpenTransfers;
use super::relay::relayed;
use super::stream::{ReceivedBytes, TlsStream};
use crate::http::carried::ConnectionNear;
use crate::http::config::OPEN_AFTER;
use crate::http::parts::NearHalfParts;
use crate::http::reasons;
use crate::http::shared::SharedCache;
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, LettingGo, ReasonCode};

/// How long the far half may take to find out whether an origin can be intercepted: longer than its own patience
/// with the origin, and shorter than a client's with its connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Bytes of a client that may wait for the far half's answer. Clients send nothing behind their ClientHello but early
/// data, of which servers allow 16 KiB.
const WAITING_MAX: usize = 64 * 1024;
/// Memory of a TLS connection beside what it holds of its users' bytes.
const STREAM_OVERHEAD: usize = 24 * 1024;

/// The half beside the client.
pub(crate) struct NearTls {
    shared: TlsState,
    client: IpAddr,
    server: SocketAddr,
    cache: Option<SharedCache>,
    /// Parts of the halves inside.
    parts: NearHalfParts,
    state: NearTlsState,
    /// When the flow is opened although the client has said nothing, or when the far half's answer is late.
    timeout: Option<Time>,
    note: Option<String>,
    /// Requests that a session which has ended answered.
    answered: u64,
    outputs: VecDeque<AcceleratorOutput>,
}

enum NearTlsState {
    /// The ClientHello is not whole.
    Reading(HelloReader),
    /// The far half finds out whether the origin can be intercepted.
    Asked {
        name: String,
        hello: ClientHello,
        held: BytesMut,
    },
    Intercepting(Box<ClientSession>),
    /// The client's connection has ended, and the other direction is about to.
    Ended,
    LetGo,
}

/// An intercepted connection.
struct ClientSession {
    origin: Arc<ProvedOrigin>,
    stream: TlsStream,
    inner: NearContent,
    transfers: OpenTransfers,
    /// The far half knows that the connection is intercepted.
    has_begun: bool,
    may_store: bool,
    /// The origin has ended its connection without a closure alert, and so does this node.
    is_cut: bool,
}

/// Handler of the content.
enum NearContent {
    /// Nothing, until the handshake has ended.
    Handshake,
    Http1(Box<ConnectionNear>),
    Http2(Box<ClientLanes>),
    /// Nothing any more: it passes as it is, inside TLS.
    Relay,
}

impl NearTls {
    /// A half that has not started.
    pub(super) fn new(
        shared: TlsState,
        server: SocketAddr,
        cache: Option<SharedCache>,
        parts: NearHalfParts,
    ) -> Self {
        Self {
            shared,
            client: parts.client,
            server,
            cache,
            parts,
            state: NearTlsState::Reading(HelloReader::default()),
            timeout: None,
            note: None,
            answered: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Takes what the client sends before it is known what becomes of the connection.
    fn read(&mut self, now: Time, bytes: &[u8]) {
        self.timeout = None;
        match &mut self.state {
            NearTlsState::Reading(reader) => match reader.push(bytes) {
                HelloStep::More => {}
                HelloStep::NotTls => self.let_go(reasons::TLS_MISSING),
                HelloStep::Whole(hello) => self.decide(now, hello),
            },
            NearTlsState::Asked { held, .. } => {
                held.extend_from_slice(bytes);
                self.timeout = Some(now + ANSWER_WITHIN);
                if held.len() > WAITING_MAX {
                    self.let_go(ReasonCode::LIMIT);
                }
            }
            NearTlsState::Intercepting(_) | NearTlsState::Ended | NearTlsState::LetGo => {}
        }
    }

    fn decide(&mut self, now: Time, hello: ClientHello) {
        let name = match self.interceptable(now, &hello) {
            Ok(name) => name,
            Err(reason) => return self.let_go(reason),
        };
        let known = self.shared.known.with(|known| {
            let origin = known.origin(now, self.server, &name);
            origin.cloned()
        });
        match known {
            Some(OriginKnowledge::Verified(known)) => self.intercept(now, name, &hello, &known),
            Some(OriginKnowledge::LeftAlone(reason)) => self.let_go(reason),
            None => {
                let held = self.take_held();
                let ask = TlsFrame::Ask { name: name.clone() };
                self.outputs
                    .push_back(AcceleratorOutput::ToWan(ask.to_segment()));
                self.timeout = Some(now + ANSWER_WITHIN);
                self.state = NearTlsState::Asked {
                    name,
                    hello,
                    held: BytesMut::from(&held[..]),
                };
            }
        }
    }

    /// The name of a connection that may be intercepted, or why it may not.
    fn interceptable(&self, now: Time, hello: &ClientHello) -> Result<String, ReasonCode> {
        let Some(settings) = &self.shared.settings else {
            return Err(ReasonCode::POLICY);
        };
        let listed = hello.name.as_ref().filter(|name| settings.lists(name));
        let Some(name) = listed else {
            return Err(match (hello.has_encrypted, &hello.name) {
                (true, _) => reasons::TLS_ENCRYPTED_NAME,
                (false, None) => reasons::TLS_NO_NAME,
                (false, Some(name)) if settings.excludes(name) => reasons::TLS_EXCLUDED,
                (false, Some(_)) => reasons::TLS_NOT_LISTED,
            });
        };
        if protocol_of(hello).is_none() {
            return Err(reasons::TLS_PROTOCOL);
        }
        let known = &self.shared.known;
        if let Some(reason) = known.with(|known| known.left_alone(now, self.client, name)) {
            return Err(reason);
        }
        let since_1970 = self.shared.clock.since_1970();
        let authority = settings.authority.as_ref();
        let may_sign = authority.is_some_and(|authority| {
            authority.permits(name) && since_1970.is_some_and(|now| authority.is_valid(now))
        });
        match may_sign {
            true => Ok(name.clone()),
            false => Err(reasons::TLS_AUTHORITY),
        }
    }

    /// Takes what the far half found out.
    fn answered(&mut self, now: Time, answer: Result<OriginFacts, (ReasonCode, CertificateFault)>) {
        let NearTlsState::Asked { name, hello, .. } = &self.state else {
            return;
        };
        let (name, hello) = (name.clone(), hello.clone());
        match answer {
            Ok(facts) => {
                let since_1970 = self.shared.clock.since_1970().unwrap_or_default();
                let left =
                    u64::try_from(facts.not_after.saturating_sub(since_1970)).unwrap_or_default();
                let (facts, valid_for) = (Arc::new(facts), Duration::from_secs(left));
                let known = (self.shared.known)
                    .with(|all| all.verified(now, self.server, &name, facts, valid_for));
                self.intercept(now, name, &hello, &known);
            }
            Err((reason, fault)) => {
                self.leave_alone(now, &name, reason, fault);
                self.let_go(reason);
            }
        }
    }

    fn leave_alone(&mut self, now: Time, name: &str, reason: ReasonCode, fault: CertificateFault) {
        self.note = fault.text().map(|text| format!("{name}: {text}"));
        let server = self.server;
        let known = &self.shared.known;
        known.with(|known| known.leave_alone(now, server, name, reason));
    }

    /// Answers the client in the origin's place.
    fn intercept(&mut self, now: Time, name: String, hello: &ClientHello, known: &KnownOrigin) {
        self.timeout = None;
        let connection = self.leaf(&name, known).and_then(|mut leaf| {
            if protocol_of(hello) == Some(ClientProtocol::Http1) {
                let http1 = Arc::make_mut(&mut leaf);
                http1.alpn_protocols = vec![HTTP1.to_vec()];
            }
            ServerConnection::new(leaf).ok()
        });
        let (Some(connection), Some(settings)) = (connection, &self.shared.settings) else {
            return self.let_go(reasons::TLS_AUTHORITY);
        };
        let may_store = known.facts.may_store && settings.may_store_decrypted;
        let origin = ProvedOrigin {
            name,
            facts: Arc::clone(&known.facts),
            until: known.until,
            settings: Arc::clone(settings),
        };
        let held = self.take_held();
        self.state = NearTlsState::Intercepting(Box::new(ClientSession {
            origin: Arc::new(origin),
            stream: TlsStream::new(connection),
            inner: NearContent::Handshake,
            transfers: OpenTransfers::default(),
            has_begun: false,
            is_cut: false,
            may_store,
        }));
        self.hear_client(now, &held);
    }

    /// The settings with the leaf certificate of a name.
    fn leaf(&self, name: &str, known: &KnownOrigin) -> Option<Arc<ServerConfig>> {
        if let Some(leaf) = &known.leaf {
            return Some(Arc::clone(leaf));
        }
        let settings = self.shared.settings.as_ref()?;
        let authority = settings.authority.as_ref()?;
        let provider = &self.shared.provider;
        let mut names = vec![name];
        for other in &known.facts.names {
            if settings.may_sign_for(other) && !other.starts_with('*') && other != name {
                names.push(other);
            }
        }
        let now = self.shared.clock.since_1970()?;
        let leaf = authority
            .sign_leaf(provider, now, &names, &known.facts)
            .ok()?;
        let clock = Arc::clone(&self.shared.clock);
        let mut config = ServerConfig::builder_with_details(Arc::clone(provider), clock)
            .with_safe_default_protocol_versions()
            .ok()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(leaf)));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        let config = Arc::new(config);
        let (all, server) = (&self.shared.known, self.server);
        all.with(|all| all.keep_leaf(server, name, &config));
        Some(config)
    }

    /// Takes what the client sends on an intercepted connection.
    fn hear_client(&mut self, now: Time, bytes: &[u8]) {
        let NearTlsState::Intercepting(session) = &mut self.state else {
            return;
        };
        let received = session.stream.receive(bytes);
        let output = session.stream.take_output();
        self.write_lan(output);
        let ReceivedBytes {
            plain,
            is_finished,
            error,
        } = received;
        self.take_up(now);
        if !plain.is_empty() {
            self.tell(now, AcceleratorInput::Lan(plain));
        }
        if let Some(error) = error {
            return self.client_failed(now, &error);
        }
        if is_finished {
            self.tell(now, AcceleratorInput::LanFinished);
        }
    }

    /// Begins to work on the content once the handshake has ended.
    fn take_up(&mut self, now: Time) {
        let NearTlsState::Intercepting(session) = &mut self.state else {
            return;
        };
        if session.stream.is_handshaking() || !matches!(session.inner, NearContent::Handshake) {
            return;
        }
        let (client, name) = (self.client, &session.origin.name);
        let known = &self.shared.known;
        known.with(|known| known.note_handshake(client, name));
        let cache = self.cache.as_ref().filter(|_| session.may_store);
        let origin = Arc::clone(&session.origin);
        if session.stream.protocol() == Some(HTTP2) {
            let parts = self.parts.clone();
            let lanes = ClientLanes::new(self.server, cache.cloned(), origin, parts);
            session.inner = NearContent::Http2(Box::new(lanes));
            return;
        }
        let cache = cache.map(|cache| cache.for_proved_server(self.server, origin));
        let near = self.parts.build(cache, session.may_store);
        session.inner = NearContent::Http1(Box::new(near));
        self.tell(now, AcceleratorInput::Start);
    }

    /// The client's end of TLS has failed, or it has said why it does not go on.
    fn client_failed(&mut self, now: Time, error: &Error) {
        let NearTlsState::Intercepting(session) = &self.state else {
            return;
        };
        if let Error::AlertReceived(alert) = error
            && refuses_certificate(*alert)
        {
            let name = &session.origin.name;
            self.note = Some(format!(
                "the client refused the certificate that this node made for {name} ({alert:?}); the node \
                 does not decrypt the client's next connections to this name"
            ));
            let (known, client) = (&self.shared.known, self.client);
            known.with(|known| known.pin(now, client, name));
        } else if session.stream.is_handshaking() {
            self.note_failed_handshake(now);
        }
        self.end();
    }

    /// The client has ended the handshake without a word about the certificate.
    fn note_failed_handshake(&mut self, now: Time) {
        let NearTlsState::Intercepting(session) = &self.state else {
            return;
        };
        let (known, client, name) = (&self.shared.known, self.client, &session.origin.name);
        let failures = known.with(|known| known.note_failed_handshake(now, client, name));
        self.note = Some(format!(
            "the client ended the TLS handshake for {name} without a reason, {failures} times in a row; \
             after {HANDSHAKE_FAILURES_MAX} times, the node does not decrypt its connections to this name \
             for an hour"
        ));
    }

    /// Keeps what the operator is told of a session that ends.
    fn keep_account(&mut self) {
        self.note = self.note();
        self.answered = AcceleratorHalf::answered(self);
    }

    /// Ends what the half inside stores and reads, because nobody takes it any more.
    fn end_transfers(&mut self) {
        if let NearTlsState::Intercepting(session) = &mut self.state {
            let requests = session.transfers.end_all().into_iter();
            self.outputs
                .extend(requests.map(AcceleratorOutput::Content));
        }
    }

    /// Ends the connection behind what was written.
    fn end(&mut self) {
        self.keep_account();
        self.end_transfers();
        self.state = NearTlsState::Ended;
        self.outputs.push_back(AcceleratorOutput::FinishLan);
        self.outputs.push_back(AcceleratorOutput::FinishWan);
    }

    /// Tells the half inside what happened, and does what it wants.
    fn tell(&mut self, now: Time, input: AcceleratorInput) {
        let NearTlsState::Intercepting(session) = &mut self.state else {
            return;
        };
        if let AcceleratorInput::Content(report) = &input {
            session.transfers.note_report(report);
        }
        match &mut session.inner {
            NearContent::Handshake => {
                // Whoever ends before the handshake has, ends it.
                if input == AcceleratorInput::LanFinished {
                    self.note_failed_handshake(now);
                    self.end();
                } else if input == AcceleratorInput::WanFinished {
                    self.end();
                }
                return;
            }
            NearContent::Http1(near) => near.handle(now, input),
            NearContent::Http2(lanes) => {
                match input {
                    AcceleratorInput::Lan(bytes) => lanes.hear_client(now, bytes),
                    AcceleratorInput::LanFinished => lanes.client_finished(now),
                    AcceleratorInput::Wan(segment) => lanes.hear_far(now, segment),
                    AcceleratorInput::Content(report) => lanes.content_report(now, report),
                    // The flow's own connection to the origin is not used; lanes have their own ends.
                    AcceleratorInput::WanFinished => {}
                    AcceleratorInput::Start
                    | AcceleratorInput::Server(..)
                    | AcceleratorInput::ClaimGranted
                    | AcceleratorInput::ClaimRevoked
                    | AcceleratorInput::ClaimDenied => {}
                    AcceleratorInput::WanSilent(_)
                    | AcceleratorInput::Timeout
                    | AcceleratorInput::Woken => lanes.tell_all(now, &input),
                }
                return self.drain_lanes();
            }
            NearContent::Relay => relayed(input)
                .into_iter()
                .for_each(|output| self.put_out(output)),
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let NearTlsState::Intercepting(session) = &mut self.state
            && let NearContent::Http1(near) = &mut session.inner
            && let Some(output) = near.poll_output()
        {
            self.put_out(output);
        }
    }

    /// Does what the half inside wants.
    fn put_out(&mut self, output: AcceleratorOutput) {
        if let NearTlsState::Intercepting(session) = &mut self.state {
            match output {
                AcceleratorOutput::ToLan(bytes) => self.write_client(&bytes),
                AcceleratorOutput::FinishLan => self.finish_client(),
                AcceleratorOutput::ToWan(segment) => self.send_wan(segment),
                AcceleratorOutput::EndBody if !session.may_store => {}
                AcceleratorOutput::LettingGo(LettingGo::LetGo { reason }) => {
                    session.inner = NearContent::Relay;
                    let explanation = reasons::explain(reason, crate::ReasonSource::ThisNode);
                    let explanation = explanation.or_else(|| reason.common_explanation());
                    let text = explanation.map(|explanation| explanation.text);
                    self.note =
                        text.map(|text| format!("forwarded inside TLS without decryption: {text}"));
                    self.end_transfers();
                    self.send_wan(TlsFrame::Relay.to_segment());
                }
                // The server never speaks first in TLS; what was answered here cannot be told from what was not.
                AcceleratorOutput::OpenFlow | AcceleratorOutput::AnsweredHere(_) => {}
                AcceleratorOutput::Content(request) => {
                    session.transfers.note_request(&request);
                    self.outputs.push_back(AcceleratorOutput::Content(request));
                }
                AcceleratorOutput::FinishWan
                | AcceleratorOutput::EndBody
                | AcceleratorOutput::OpenServer
                | AcceleratorOutput::Server(..)
                | AcceleratorOutput::Claim(_)
                | AcceleratorOutput::ClaimReleased
                | AcceleratorOutput::LettingGo(LettingGo::Close { .. }) => {
                    self.outputs.push_back(output)
                }
            }
        }
    }

    /// Passes on what lanes have put out.
    fn drain_lanes(&mut self) {
        while let NearTlsState::Intercepting(session) = &mut self.state
            && let NearContent::Http2(lanes) = &mut session.inner
        {
            let bytes = lanes.take_client_output();
            if !bytes.is_empty() {
                self.write_client(&bytes);
                continue;
            }
            match lanes.poll_output() {
                Some(AcceleratorOutput::ToWan(segment)) => self.send_wan(segment),
                Some(AcceleratorOutput::EndBody) if !session.may_store => {}
                Some(AcceleratorOutput::Content(request)) => {
                    session.transfers.note_request(&request);
                    self.outputs.push_back(AcceleratorOutput::Content(request));
                }
                Some(output) => self.outputs.push_back(output),
                None if lanes.is_closed() => {
                    self.finish_client();
                    self.keep_account();
                    self.end_transfers();
                    self.state = NearTlsState::Ended;
                    self.outputs.push_back(AcceleratorOutput::FinishWan);
                    return;
                }
                None => return,
            }
        }
    }

    /// Sends to the far half, which first hears that the connection is intercepted.
    fn send_wan(&mut self, mut segment: FlowSegment) {
        let NearTlsState::Intercepting(session) = &mut self.state else {
            return;
        };
        if !std::mem::replace(&mut session.has_begun, true) {
            let begin = TlsFrame::Begin {
                name: session.origin.name.clone(),
                carriage: match session.inner {
                    NearContent::Http2(_) => TlsCarriage::Lanes,
                    NearContent::Handshake | NearContent::Http1(_) | NearContent::Relay => {
                        TlsCarriage::Single
                    }
                },
                may_store: session.may_store,
            };
            self.outputs
                .push_back(AcceleratorOutput::ToWan(begin.to_segment()));
        }
        if segment.kind == SegmentKind::Payload && !session.may_store {
            segment.kind = SegmentKind::Control;
        }
        self.outputs.push_back(AcceleratorOutput::ToWan(segment));
    }

    /// Sends bytes to the client, inside TLS.
    fn write_client(&mut self, plain: &[u8]) {
        let NearTlsState::Intercepting(session) = &mut self.state else {
            return;
        };
        session.stream.send(plain);
        let output = session.stream.take_output();
        self.write_lan(output);
    }

    fn finish_client(&mut self) {
        let NearTlsState::Intercepting(session) = &mut self.state else {
            return;
        };
        if !session.is_cut {
            session.stream.finish();
        }
        let output = session.stream.take_output();
        self.write_lan(output);
        self.outputs.push_back(AcceleratorOutput::FinishLan);
    }

    fn write_lan(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.outputs.push_back(AcceleratorOutput::ToLan(bytes));
        }
    }

    /// Takes a segment of the far half.
    fn hear_far(&mut self, now: Time, segment: FlowSegment) {
        if segment.kind == SegmentKind::Frame {
            match TlsFrame::parse(&segment.bytes) {
                Ok(Some(frame)) => return self.hear_frame(now, frame),
                Ok(None) => {}
                Err(_) => return self.close(ReasonCode::VIOLATION),
            }
        }
        match &self.state {
            NearTlsState::Reading(_) | NearTlsState::Asked { .. } => {
                if segment.kind != SegmentKind::Frame {
                    // The server has spoken first, which none does in TLS.
                    self.write_lan(segment.bytes);
                    self.let_go(reasons::TLS_MISSING);
                }
            }
            NearTlsState::Intercepting(_) => self.tell(now, AcceleratorInput::Wan(segment)),
            NearTlsState::Ended | NearTlsState::LetGo => {}
        }
    }

    fn hear_frame(&mut self, now: Time, frame: TlsFrame) {
        match frame {
            TlsFrame::Facts(facts) => self.answered(now, Ok(facts)),
            TlsFrame::Refused(reason, fault) => self.answered(now, Err((reason, fault))),
            TlsFrame::Failed(reason, fault) => {
                if let NearTlsState::Intercepting(session) = &self.state {
                    let name = session.origin.name.clone();
                    self.leave_alone(now, &name, reason, fault);
                    self.close(reason);
                }
            }
            TlsFrame::Relay => {
                self.end_transfers();
                if let NearTlsState::Intercepting(session) = &mut self.state {
                    session.inner = NearContent::Relay;
                }
            }
            TlsFrame::Lane(_)
            | TlsFrame::ResetDone(_)
            | TlsFrame::LaneEnded(..)
            | TlsFrame::Taken(..) => {
                if let NearTlsState::Intercepting(session) = &mut self.state {
                    match &mut session.inner {
                        NearContent::Http2(lanes) => {
                            lanes.hear_frame(now, &frame);
                            self.drain_lanes();
                        }
                        NearContent::Handshake | NearContent::Http1(_) | NearContent::Relay => {
                            session.is_cut |= matches!(frame, TlsFrame::LaneEnded(_, false));
                        }
                    }
                }
            }
            // Those of the near half.
            TlsFrame::Ask { .. }
            | TlsFrame::Begin { .. }
            | TlsFrame::Reset(_)
            | TlsFrame::Credit(..) => {}
        }
    }

    /// Bytes of the client that have no response yet.
    fn take_held(&mut self) -> Bytes {
        match &mut self.state {
            NearTlsState::Reading(reader) => reader.take_held(),
            NearTlsState::Asked { held, .. } => held.split().freeze(),
            NearTlsState::Intercepting(_) | NearTlsState::Ended | NearTlsState::LetGo => {
                Bytes::new()
            }
        }
    }

    /// Passes the connection untouched.
    fn let_go(&mut self, reason: ReasonCode) {
        self.timeout = None;
        let held = self.take_held();
        if !held.is_empty() {
            self.outputs
                .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(held)));
        }
        self.state = NearTlsState::LetGo;
        let letting_go = LettingGo::LetGo { reason };
        self.outputs
            .push_back(AcceleratorOutput::LettingGo(letting_go));
    }

    fn close(&mut self, reason: ReasonCode) {
        self.state = NearTlsState::LetGo;
        let letting_go = LettingGo::Close { reason };
        self.outputs
            .push_back(AcceleratorOutput::LettingGo(letting_go));
    }

    fn client_finished(&mut self, now: Time) {
        match &self.state {
            NearTlsState::Reading(reader) if reader.held().is_empty() => self.end(),
            NearTlsState::Reading(_) | NearTlsState::Asked { .. } => {
                let held = self.take_held();
                self.outputs
                    .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(held)));
                self.outputs.push_back(AcceleratorOutput::FinishWan);
                self.let_go(reasons::TLS_MISSING);
            }
            NearTlsState::Intercepting(_) => self.tell(now, AcceleratorInput::LanFinished),
            NearTlsState::Ended | NearTlsState::LetGo => {}
        }
    }

    fn far_finished(&mut self, now: Time) {
        match &self.state {
            NearTlsState::Reading(_) | NearTlsState::Asked { .. } => {
                self.outputs.push_back(AcceleratorOutput::FinishLan);
                self.let_go(reasons::TLS_MISSING);
            }
            NearTlsState::Intercepting(_) => self.tell(now, AcceleratorInput::WanFinished),
            NearTlsState::Ended | NearTlsState::LetGo => {}
        }
    }

    fn timed_out(&mut self, now: Time) {
        let is_due = self.timeout.is_some_and(|at| at <= now);
        match &self.state {
            NearTlsState::Reading(_) if is_due => {
                self.timeout = None;
                self.outputs.push_back(AcceleratorOutput::OpenFlow);
            }
            // A far node of an earlier release never answers.
            NearTlsState::Asked { .. } if is_due => self.let_go(reasons::TLS_OFF),
            NearTlsState::Reading(_)
            | NearTlsState::Asked { .. }
            | NearTlsState::Ended
            | NearTlsState::LetGo => {}
            NearTlsState::Intercepting(_) => self.tell(now, AcceleratorInput::Timeout),
        }
    }
}

/// A version of HTTP towards the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientProtocol {
    Http1,
    Http2,
}

/// Names of application protocols (RFC 7301 §6, IANA Considerations; RFC 9113 §3.1, HTTP/2 Version Identification).
const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// The protocol that a client will speak; `None` where it offers others only.
fn protocol_of(hello: &ClientHello) -> Option<ClientProtocol> {
    let Some(protocols) = &hello.protocols else {
        return Some(ClientProtocol::Http1);
    };
    let offers = |protocol: &[u8]| protocols.iter().any(|one| one == protocol);
    match (offers(HTTP2), offers(HTTP1)) {
        (true, _) => Some(ClientProtocol::Http2),
        (false, true) => Some(ClientProtocol::Http1),
        (false, false) => None,
    }
}

/// True if a client says by this alert that it does not want our certificate (RFC 8446 §6.2, Error Alerts), or that
/// it has meant Encrypted Client Hello in earnest.
fn refuses_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::EncryptedClientHelloRequired
    )
}

impl AcceleratorHalf for NearTls {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        self.shared.clock.observe(now);
        match input {
            AcceleratorInput::Start => self.timeout = Some(now + OPEN_AFTER),
            AcceleratorInput::Lan(bytes) => match self.state {
                NearTlsState::Intercepting(_) => self.hear_client(now, &bytes),
                _ => self.read(now, &bytes),
            },
            AcceleratorInput::LanFinished => self.client_finished(now),
            AcceleratorInput::Wan(segment) => self.hear_far(now, segment),
            AcceleratorInput::WanFinished => self.far_finished(now),
            AcceleratorInput::Timeout => self.timed_out(now),
            AcceleratorInput::WanSilent(_)
            | AcceleratorInput::Server(..)
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken => self.tell(now, input),
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        match &self.state {
            NearTlsState::Intercepting(session) => match &session.inner {
                NearContent::Http1(near) => near.poll_timeout(),
                NearContent::Http2(lanes) => lanes.poll_timeout(),
                NearContent::Handshake | NearContent::Relay => None,
            },
            _ => self.timeout,
        }
    }

    fn buffered(&self) -> usize {
        match &self.state {
            NearTlsState::Reading(reader) => reader.held().len(),
            NearTlsState::Asked { held, .. } => held.len(),
            NearTlsState::Intercepting(session) => {
                let inner = match &session.inner {
                    NearContent::Http1(near) => near.buffered(),
                    NearContent::Http2(lanes) => lanes.held(),
                    NearContent::Handshake | NearContent::Relay => 0,
                };
                inner + STREAM_OVERHEAD
            }
            NearTlsState::Ended | NearTlsState::LetGo => 0,
        }
    }

    fn waiting_host_bytes(&self) -> usize {
        match &self.state {
            NearTlsState::Intercepting(session) => match &session.inner {
                NearContent::Http1(near) => near.waiting_host_bytes(),
                NearContent::Handshake | NearContent::Http2(_) | NearContent::Relay => 0,
            },
            _ => 0,
        }
    }

    fn takes_content(&self) -> bool {
        match &self.state {
            NearTlsState::Intercepting(session) => match &session.inner {
                NearContent::Http2(lanes) => lanes.takes_content(),
                NearContent::Handshake | NearContent::Http1(_) | NearContent::Relay => true,
            },
            _ => true,
        }
    }

    fn answered(&self) -> u64 {
        match &self.state {
            NearTlsState::Intercepting(session) => match &session.inner {
                NearContent::Http1(near) => near.answered(),
                NearContent::Http2(lanes) => lanes.answered(),
                NearContent::Handshake | NearContent::Relay => 0,
            },
            _ => self.answered,
        }
    }

    fn note(&self) -> Option<String> {
        if self.note.is_some() {
            return self.note.clone();
        }
        let NearTlsState::Intercepting(session) = &self.state else {
            return None;
        };
        let version = session.stream.protocol().unwrap_or(b"http/1.1");
        let inner = match &session.inner {
            NearContent::Http1(near) => near.note(),
            NearContent::Handshake | NearContent::Http2(_) | NearContent::Relay => None,
        };
        let inner = inner.map(|note| format!(", {note}"));
        Some(format!(
            "decrypted TLS for {} ({}){}",
            session.origin.name,
            String::from_utf8_lossy(version),
            inner.unwrap_or_default()
        ))
    }
}
