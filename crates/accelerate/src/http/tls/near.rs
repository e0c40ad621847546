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
use super::facts::{KnownOrigin, OriginFacts, OriginKnowledge};
use super::frames::{Carriage, CertificateFault, TlsFrame};
use super::stream::{ReceivedBytes, TlsStream};
use crate::http::config::OPEN_AFTER;
use crate::http::near::Near;
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
    state: State,
    /// When the flow is opened although the client has said nothing, or when the far half's answer is late.
    timeout: Option<Time>,
    note: Option<String>,
    outputs: VecDeque<AcceleratorOutput>,
}

enum State {
    /// The ClientHello is not whole.
    Reading(HelloReader),
    /// The far half finds out whether the origin can be intercepted.
    Asked {
        name: String,
        hello: ClientHello,
        held: BytesMut,
    },
    Intercepting(Box<Session>),
    /// The client's connection has ended, and the other direction is about to.
    Ended,
    LetGo,
}

/// An intercepted connection.
struct Session {
    name: String,
    stream: TlsStream,
    facts: Arc<OriginFacts>,
    inner: Inner,
    /// The far half knows that the connection is intercepted.
    has_begun: bool,
    may_store: bool,
}

/// What works on the content.
enum Inner {
    /// Nothing, until the handshake has ended.
    Handshake,
    Http1(Box<Near>),
    /// Nothing any more: it passes as it is, inside TLS.
    Relay,
}

impl NearTls {
    /// A half that has not started.
    pub(super) fn new(
        shared: TlsState,
        client: IpAddr,
        server: SocketAddr,
        cache: Option<SharedCache>,
    ) -> Self {
        Self {
            shared,
            client,
            server,
            cache,
            state: State::Reading(HelloReader::default()),
            timeout: None,
            note: None,
            outputs: VecDeque::new(),
        }
    }

    /// Takes what the client sends before it is known what becomes of the connection.
    fn read(&mut self, now: Time, bytes: &[u8]) {
        self.timeout = None;
        match &mut self.state {
            State::Reading(reader) => match reader.push(bytes) {
                HelloStep::More => {}
                HelloStep::NotTls => self.let_go(reasons::TLS_MISSING),
                HelloStep::Whole(hello) => self.decide(now, hello),
            },
            State::Asked { held, .. } => {
                held.extend_from_slice(bytes);
                self.timeout = Some(now + ANSWER_WITHIN);
                if held.len() > WAITING_MAX {
                    self.let_go(ReasonCode::LIMIT);
                }
            }
            State::Intercepting(_) | State::Ended | State::LetGo => {}
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
                self.state = State::Asked {
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
                (false, Some(_)) => reasons::TLS_NOT_LISTED,
            });
        };
        if protocol_of(hello).is_none() {
            return Err(reasons::TLS_PROTOCOL);
        }
        let is_pinned = |known: &mut super::Knowledge| known.is_pinned(now, self.client, name);
        if self.shared.known.with(is_pinned) {
            return Err(reasons::TLS_PINNED);
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
        let State::Asked { name, hello, .. } = &self.state else {
            return;
        };
        let (name, hello) = (name.clone(), hello.clone());
        match answer {
            Ok(facts) => {
                let since_1970 = self.shared.clock.since_1970().unwrap_or_default();
                let left = u64::try_from(facts.not_after - since_1970).unwrap_or_default();
                let known = KnownOrigin {
                    facts: Arc::new(facts),
                    leaf: None,
                };
                let valid_for = Duration::from_secs(left);
                self.shared.known.with(|all| {
                    all.verified(now, self.server, &name, known.clone(), valid_for);
                });
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
            if protocol_of(hello) == Some(Protocol::Http1) {
                let http1 = Arc::make_mut(&mut leaf);
                http1.alpn_protocols = vec![b"http/1.1".to_vec()];
            }
            ServerConnection::new(leaf).ok()
        });
        let Some(connection) = connection else {
            return self.let_go(reasons::TLS_AUTHORITY);
        };
        let held = self.take_held();
        let settings = self.shared.settings.as_ref();
        let may_store =
            known.facts.may_store && settings.is_some_and(|tls| tls.may_store_decrypted);
        self.state = State::Intercepting(Box::new(Session {
            name,
            stream: TlsStream::new(connection),
            facts: Arc::clone(&known.facts),
            inner: Inner::Handshake,
            has_begun: false,
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
            let is_ours = settings.lists(other) && authority.permits(other);
            if is_ours && !other.starts_with('*') && other != name {
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
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let config = Arc::new(config);
        let (all, server) = (&self.shared.known, self.server);
        all.with(|all| all.keep_leaf(server, name, &config));
        Some(config)
    }

    /// Takes what the client sends on an intercepted connection.
    fn hear_client(&mut self, now: Time, bytes: &[u8]) {
        let State::Intercepting(session) = &mut self.state else {
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
        let State::Intercepting(session) = &mut self.state else {
            return;
        };
        if session.stream.is_handshaking() || !matches!(session.inner, Inner::Handshake) {
            return;
        }
        let cache = self.cache.as_ref().filter(|_| session.may_store);
        let facts = Arc::clone(&session.facts);
        let cache = cache.map(|cache| cache.for_proved_server(self.server, facts));
        session.inner = Inner::Http1(Box::new(Near::new(cache)));
        self.tell(now, AcceleratorInput::Start);
    }

    /// The client's end of TLS has failed, or it has said why it does not go on.
    fn client_failed(&mut self, now: Time, error: &Error) {
        let State::Intercepting(session) = &self.state else {
            return;
        };
        if let Error::AlertReceived(alert) = error
            && refuses_certificate(*alert)
        {
            let name = &session.name;
            self.note = Some(format!(
                "the client refused the operator's certificate for {name} ({alert:?}); its next connections to it pass untouched"
            ));
            let (known, client) = (&self.shared.known, self.client);
            known.with(|known| known.pin(now, client, name));
        }
        self.end();
    }

    /// Ends the connection behind what was written.
    fn end(&mut self) {
        self.state = State::Ended;
        self.outputs.push_back(AcceleratorOutput::FinishLan);
        self.outputs.push_back(AcceleratorOutput::FinishWan);
    }

    /// Tells the half inside what happened, and does what it wants.
    fn tell(&mut self, now: Time, input: AcceleratorInput) {
        let State::Intercepting(session) = &mut self.state else {
            return;
        };
        match &mut session.inner {
            Inner::Handshake => {
                // Whoever ends before the handshake has, ends it.
                if matches!(
                    input,
                    AcceleratorInput::LanFinished | AcceleratorInput::WanFinished
                ) {
                    self.end();
                }
                return;
            }
            Inner::Http1(near) => near.handle(now, input),
            Inner::Relay => match input {
                AcceleratorInput::Lan(bytes) => self.send_wan(FlowSegment::payload(bytes)),
                AcceleratorInput::LanFinished => {
                    self.outputs.push_back(AcceleratorOutput::FinishWan)
                }
                AcceleratorInput::Wan(segment) if segment.kind != SegmentKind::Frame => {
                    self.write_client(&segment.bytes);
                }
                AcceleratorInput::WanFinished => self.finish_client(),
                _ => {}
            },
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let State::Intercepting(session) = &mut self.state
            && let Inner::Http1(near) = &mut session.inner
            && let Some(output) = near.poll_output()
        {
            match output {
                AcceleratorOutput::ToLan(bytes) => self.write_client(&bytes),
                AcceleratorOutput::FinishLan => self.finish_client(),
                AcceleratorOutput::ToWan(segment) => self.send_wan(segment),
                AcceleratorOutput::EndBody if !session.may_store => {}
                AcceleratorOutput::LettingGo(LettingGo::LetGo { reason }) => {
                    session.inner = Inner::Relay;
                    let explanation = reasons::explain(reason, crate::ReasonSource::ThisNode);
                    let explanation = explanation.or_else(|| reason.common_explanation());
                    let text = explanation.map(|explanation| explanation.text);
                    self.note = text.map(|text| format!("passed inside TLS: {text}"));
                    self.send_wan(TlsFrame::Relay.to_segment());
                }
                // The server never speaks first in TLS; what was answered here cannot be told from what was not.
                AcceleratorOutput::OpenFlow | AcceleratorOutput::AnsweredHere(_) => {}
                AcceleratorOutput::FinishWan
                | AcceleratorOutput::EndBody
                | AcceleratorOutput::OpenServer
                | AcceleratorOutput::Server(..)
                | AcceleratorOutput::Claim(_)
                | AcceleratorOutput::ClaimReleased
                | AcceleratorOutput::Content(_)
                | AcceleratorOutput::LettingGo(LettingGo::Close { .. }) => {
                    self.outputs.push_back(output)
                }
            }
        }
    }

    /// Sends to the far half, which first hears that the connection is intercepted.
    fn send_wan(&mut self, mut segment: FlowSegment) {
        let State::Intercepting(session) = &mut self.state else {
            return;
        };
        if !std::mem::replace(&mut session.has_begun, true) {
            let begin = TlsFrame::Begin {
                name: session.name.clone(),
                carriage: Carriage::Single,
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
        let State::Intercepting(session) = &mut self.state else {
            return;
        };
        session.stream.send(plain);
        let output = session.stream.take_output();
        self.write_lan(output);
    }

    fn finish_client(&mut self) {
        let State::Intercepting(session) = &mut self.state else {
            return;
        };
        session.stream.finish();
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
            State::Reading(_) | State::Asked { .. } => {
                if segment.kind != SegmentKind::Frame {
                    // The server has spoken first, which none does in TLS.
                    self.write_lan(segment.bytes);
                    self.let_go(reasons::TLS_MISSING);
                }
            }
            State::Intercepting(_) => self.tell(now, AcceleratorInput::Wan(segment)),
            State::Ended | State::LetGo => {}
        }
    }

    fn hear_frame(&mut self, now: Time, frame: TlsFrame) {
        match frame {
            TlsFrame::Facts(facts) => self.answered(now, Ok(facts)),
            TlsFrame::Refused(reason, fault) => self.answered(now, Err((reason, fault))),
            TlsFrame::Failed(reason, fault) => {
                if let State::Intercepting(session) = &self.state {
                    let name = session.name.clone();
                    self.leave_alone(now, &name, reason, fault);
                    self.close(reason);
                }
            }
            TlsFrame::Relay => {
                if let State::Intercepting(session) = &mut self.state {
                    session.inner = Inner::Relay;
                }
            }
            // Those of the near half, and of lanes, which this connection has none of.
            TlsFrame::Ask { .. }
            | TlsFrame::Begin { .. }
            | TlsFrame::Lane(_)
            | TlsFrame::Reset(_)
            | TlsFrame::ResetDone(_)
            | TlsFrame::LaneEnded(..)
            | TlsFrame::Credit(..)
            | TlsFrame::Taken(..) => {}
        }
    }

    /// What the client has sent and nobody has answered.
    fn take_held(&mut self) -> Bytes {
        match &mut self.state {
            State::Reading(reader) => reader.take_held(),
            State::Asked { held, .. } => held.split().freeze(),
            State::Intercepting(_) | State::Ended | State::LetGo => Bytes::new(),
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
        self.state = State::LetGo;
        let letting_go = LettingGo::LetGo { reason };
        self.outputs
            .push_back(AcceleratorOutput::LettingGo(letting_go));
    }

    fn close(&mut self, reason: ReasonCode) {
        self.state = State::LetGo;
        let letting_go = LettingGo::Close { reason };
        self.outputs
            .push_back(AcceleratorOutput::LettingGo(letting_go));
    }

    fn client_finished(&mut self, now: Time) {
        match &self.state {
            State::Reading(reader) if reader.held().is_empty() => self.end(),
            State::Reading(_) | State::Asked { .. } => {
                let held = self.take_held();
                self.outputs
                    .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(held)));
                self.outputs.push_back(AcceleratorOutput::FinishWan);
                self.let_go(reasons::TLS_MISSING);
            }
            State::Intercepting(_) => self.tell(now, AcceleratorInput::LanFinished),
            State::Ended | State::LetGo => {}
        }
    }

    fn far_finished(&mut self, now: Time) {
        match &self.state {
            State::Reading(_) | State::Asked { .. } => {
                self.outputs.push_back(AcceleratorOutput::FinishLan);
                self.let_go(reasons::TLS_MISSING);
            }
            State::Intercepting(_) => self.tell(now, AcceleratorInput::WanFinished),
            State::Ended | State::LetGo => {}
        }
    }

    fn timed_out(&mut self, now: Time) {
        let is_due = self.timeout.is_some_and(|at| at <= now);
        match &self.state {
            State::Reading(_) if is_due => {
                self.timeout = None;
                self.outputs.push_back(AcceleratorOutput::OpenFlow);
            }
            // A far node of an earlier release never answers.
            State::Asked { .. } if is_due => self.let_go(reasons::TLS_OFF),
            State::Reading(_) | State::Asked { .. } | State::Ended | State::LetGo => {}
            State::Intercepting(_) => self.tell(now, AcceleratorInput::Timeout),
        }
    }
}

/// A version of HTTP towards the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
}

/// The protocol that a client will speak; `None` where it offers others only.
fn protocol_of(hello: &ClientHello) -> Option<Protocol> {
    let Some(protocols) = &hello.protocols else {
        return Some(Protocol::Http1);
    };
    let offers = |protocol: &[u8]| protocols.iter().any(|one| one == protocol);
    offers(b"http/1.1").then_some(Protocol::Http1)
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
                State::Intercepting(_) => self.hear_client(now, &bytes),
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
            State::Intercepting(session) => match &session.inner {
                Inner::Http1(near) => near.poll_timeout(),
                Inner::Handshake | Inner::Relay => None,
            },
            _ => self.timeout,
        }
    }

    fn buffered(&self) -> usize {
        match &self.state {
            State::Reading(reader) => reader.held().len(),
            State::Asked { held, .. } => held.len(),
            State::Intercepting(session) => {
                let inner = match &session.inner {
                    Inner::Http1(near) => near.buffered(),
                    Inner::Handshake | Inner::Relay => 0,
                };
                inner + STREAM_OVERHEAD
            }
            State::Ended | State::LetGo => 0,
        }
    }

    fn answered(&self) -> u64 {
        match &self.state {
            State::Intercepting(session) => match &session.inner {
                Inner::Http1(near) => near.answered(),
                Inner::Handshake | Inner::Relay => 0,
            },
            _ => 0,
        }
    }

    fn note(&self) -> Option<String> {
        if self.note.is_some() {
            return self.note.clone();
        }
        let State::Intercepting(session) = &self.state else {
            return None;
        };
        let version = session.stream.protocol().unwrap_or(b"http/1.1");
        let inner = match &session.inner {
            Inner::Http1(near) => near.note(),
            Inner::Handshake | Inner::Relay => None,
        };
        let inner = inner.map(|note| format!(", {note}"));
        Some(format!(
            "TLS of {} intercepted ({}){}",
            session.name,
            String::from_utf8_lossy(version),
            inner.unwrap_or_default()
        ))
    }
}
