//! The half beside the server: finds out whether an origin can be intercepted, and speaks TLS with it.
//!
//! The flow's own connection is opened at the start and says nothing until the near half has decided, so that a client
//! that is left alone has it for itself. Whether the origin's certificate is valid is found out on a further connection.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::TlsState;
use super::far_lanes::OriginLanes;
use super::frames::{TlsCarriage, TlsFrame};
use super::further::{FurtherOutput, FurtherStreams};
use super::origin::{OriginFault, OriginStream};
use super::relay::relayed;
use crate::http::carried::ConnectionFar;
use crate::http::parts::FarHalfParts;
use crate::http::reasons;
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, LettingGo, ReasonCode, ServerCommand,
    ServerConnection, ServerEvent,
};

/// How long an origin may take for its part of a handshake.
pub(super) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Bytes for an origin that may wait for the end of the handshake: a round trip beside the far node at 1 Gbit/s.
const WAITING_MAX: usize = 8 << 20;
/// The further connection that finds out about the origin. The halves inside use low numbers.
const PROBE: ServerConnection = ServerConnection(255);
/// Memory of a TLS connection beside what it holds of its users' bytes.
pub(super) const STREAM_OVERHEAD: usize = 24 * 1024;

/// The half beside the server.
pub(crate) struct FarTls {
    shared: TlsState,
    /// Parts of the halves inside.
    parts: FarHalfParts,
    probe: Option<OriginProbe>,
    session: Option<Box<OriginSession>>,
    /// The connections of a client that speaks HTTP/2.
    lanes: Option<Box<OriginLanes>>,
    /// When the handshake that goes on is given up.
    timeout: Option<Time>,
    /// The near half was told that the origin failed.
    has_failed: bool,
    note: Option<String>,
    now: Time,
    outputs: VecDeque<AcceleratorOutput>,
}

/// A connection that finds out whether an origin can be intercepted.
struct OriginProbe {
    stream: OriginStream,
    is_answered: bool,
}

/// An intercepted connection.
struct OriginSession {
    name: String,
    stream: OriginStream,
    inner: FarContent,
    may_store: bool,
    /// Bytes that wait for the end of the handshake.
    waiting: usize,
    /// The client has ended its direction during the handshake.
    is_finished: bool,
    /// The server has ended its direction as TLS wants it.
    has_ended: bool,
    /// Connections of the half inside, beside the flow's own.
    further: FurtherStreams,
}

/// Handler of the content.
enum FarContent {
    Http1(Box<ConnectionFar>),
    /// Nothing any more: it passes as it is, inside TLS.
    Relay,
}

impl FarTls {
    /// A half that has not started.
    pub(super) fn new(shared: TlsState, parts: FarHalfParts) -> Self {
        Self {
            shared,
            parts,
            probe: None,
            session: None,
            lanes: None,
            timeout: None,
            has_failed: false,
            note: None,
            now: Time::ZERO,
            outputs: VecDeque::new(),
        }
    }

    fn open_stream(&self, name: &str) -> Result<OriginStream, OriginFault> {
        // Whoever has no table takes no part.
        let consents = self.shared.settings.is_some();
        match self.shared.trust.as_ref().filter(|_| consents) {
            Some(trust) => OriginStream::new(trust, name),
            None => Err(OriginFault::plain(reasons::TLS_OFF)),
        }
    }

    fn may_store(&self) -> bool {
        let settings = self.shared.settings.as_ref();
        settings.is_some_and(|tls| tls.may_store_decrypted)
    }

    fn send_frame(&mut self, frame: &TlsFrame) {
        self.outputs
            .push_back(AcceleratorOutput::ToWan(frame.to_segment()));
    }

    fn hear_frame(&mut self, now: Time, frame: TlsFrame) {
        if let Some(lanes) = &mut self.lanes {
            return match lanes.hear_frame(now, &frame) {
                true => self.drain_lanes(),
                false => self.close(ReasonCode::VIOLATION),
            };
        }
        match frame {
            TlsFrame::Ask { name } => self.probe(now, &name),
            TlsFrame::Begin {
                name,
                carriage: TlsCarriage::Single,
                may_store,
            } => self.begin(now, name, may_store),
            TlsFrame::Relay => {
                if let Some(session) = &mut self.session {
                    session.inner = FarContent::Relay;
                }
            }
            TlsFrame::Begin {
                name,
                carriage: TlsCarriage::Lanes,
                may_store,
            } => {
                let may_store = may_store && self.may_store();
                match self.shared.trust.clone().filter(|_| self.session.is_none()) {
                    Some(trust) => {
                        let parts = self.parts.clone();
                        let lanes = OriginLanes::new(trust, name, may_store, parts);
                        self.lanes = Some(Box::new(lanes));
                    }
                    None => self.fail(OriginFault::plain(reasons::TLS_OFF)),
                }
            }
            TlsFrame::Facts(_)
            | TlsFrame::Refused(..)
            | TlsFrame::Failed(..)
            | TlsFrame::Lane(_)
            | TlsFrame::Reset(_)
            | TlsFrame::ResetDone(_)
            | TlsFrame::LaneEnded(..)
            | TlsFrame::Credit(..)
            | TlsFrame::Taken(..) => self.close(ReasonCode::VIOLATION),
        }
    }

    /// Finds out whether the origin can be intercepted.
    fn probe(&mut self, now: Time, name: &str) {
        if self.probe.is_some() || self.session.is_some() {
            return self.close(ReasonCode::VIOLATION);
        }
        match self.open_stream(name) {
            Ok(stream) => {
                self.probe = Some(OriginProbe {
                    stream,
                    is_answered: false,
                });
                self.timeout = Some(now + HANDSHAKE_WITHIN);
                self.command(PROBE, ServerCommand::Open);
            }
            Err(fault) => self.refuse(fault),
        }
    }

    fn refuse(&mut self, fault: OriginFault) {
        if self.probe.as_ref().is_some_and(|probe| probe.is_answered) {
            return;
        }
        if let Some(probe) = &mut self.probe {
            probe.is_answered = true;
            self.command(PROBE, ServerCommand::Reset);
        }
        self.timeout = None;
        self.note = fault.certificate.text().map(str::to_owned);
        self.send_frame(&TlsFrame::Refused(fault.reason, fault.certificate));
    }

    fn probe_event(&mut self, event: ServerEvent) {
        let may_store = self.may_store();
        let Some(probe) = self.probe.as_mut().filter(|probe| !probe.is_answered) else {
            return;
        };
        match event {
            ServerEvent::Connected => {
                let output = probe.stream.take_output();
                self.command(PROBE, ServerCommand::Write(output));
            }
            ServerEvent::Received(bytes) => {
                let received = probe.stream.receive(&bytes);
                if received.is_verified_now {
                    probe.is_answered = true;
                    probe.stream.finish();
                }
                let facts = probe.stream.facts(may_store);
                let output = probe.stream.take_output();
                if !output.is_empty() {
                    self.command(PROBE, ServerCommand::Write(output));
                }
                match (received.fault, facts) {
                    (Some(fault), _) => self.refuse(fault),
                    (None, Some(facts)) if received.is_verified_now => {
                        self.timeout = None;
                        self.command(PROBE, ServerCommand::Finish);
                        self.send_frame(&TlsFrame::Facts(facts));
                    }
                    (None, _) if received.is_finished => {
                        self.refuse(OriginFault::plain(reasons::ORIGIN_TLS));
                    }
                    (None, _) => {}
                }
            }
            ServerEvent::ConnectFailed(_)
            | ServerEvent::Finished
            | ServerEvent::Closed
            | ServerEvent::Failed => self.refuse(OriginFault::plain(reasons::ORIGIN_TLS)),
            ServerEvent::Taken(_) => {}
        }
    }

    /// Takes a segment for the halves inside.
    fn hear_inside(&mut self, now: Time, segment: FlowSegment) {
        match &mut self.lanes {
            Some(lanes) => {
                lanes.hear_near(now, segment);
                self.drain_lanes();
            }
            None => self.tell(now, AcceleratorInput::Wan(segment)),
        }
    }

    /// Passes on what lanes have put out.
    fn drain_lanes(&mut self) {
        let Some(lanes) = &mut self.lanes else {
            return;
        };
        while let Some(output) = lanes.poll_output() {
            self.outputs.push_back(output);
        }
        if let Some(fault) = lanes.take_fault() {
            self.fail(fault);
        }
    }

    /// The near half intercepts: from here on the server's connection is TLS.
    fn begin(&mut self, now: Time, name: String, may_store: bool) {
        if self.session.is_some() {
            return self.close(ReasonCode::VIOLATION);
        }
        let stream = match self.open_stream(&name) {
            Ok(stream) => stream,
            Err(fault) => return self.fail(fault),
        };
        self.timeout = Some(now + HANDSHAKE_WITHIN);
        let may_store = may_store && self.may_store();
        let far = self.parts.build_only_inside(may_store);
        self.session = Some(Box::new(OriginSession {
            name,
            stream,
            inner: FarContent::Http1(Box::new(far)),
            may_store,
            waiting: 0,
            is_finished: false,
            has_ended: false,
            further: FurtherStreams::default(),
        }));
        self.flush();
        self.tell(now, AcceleratorInput::Start);
    }

    /// The origin is not what it was when the near half answered its client.
    fn fail(&mut self, fault: OriginFault) {
        self.timeout = None;
        self.has_failed = true;
        self.note = fault.certificate.text().map(str::to_owned);
        self.send_frame(&TlsFrame::Failed(fault.reason, fault.certificate));
    }

    /// Sends what TLS has for the server.
    fn flush(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        let output = session.stream.take_output();
        if !output.is_empty() {
            self.outputs.push_back(AcceleratorOutput::ToLan(output));
        }
    }

    /// Takes what the server sends.
    fn hear_server(&mut self, now: Time, bytes: Bytes) {
        if self.lanes.is_some() {
            return;
        }
        let Some(session) = &mut self.session else {
            // It is not TLS; the near half lets go.
            return self
                .outputs
                .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(bytes)));
        };
        let received = session.stream.receive(&bytes);
        if received.is_verified_now {
            self.timeout = None;
            session.waiting = 0;
            if std::mem::take(&mut session.is_finished) {
                session.stream.finish();
                self.flush();
                self.outputs.push_back(AcceleratorOutput::FinishLan);
            }
        }
        self.flush();
        if !received.plain.is_empty() {
            self.tell(now, AcceleratorInput::Lan(received.plain));
        }
        if let Some(fault) = received.fault {
            let is_verified = self
                .session
                .as_ref()
                .is_some_and(|one| one.stream.is_verified());
            return match is_verified {
                // It broke off in the middle: so does the client's connection.
                true => self.close(reasons::ORIGIN_TLS),
                false => self.fail(fault),
            };
        }
        if received.is_finished {
            if let Some(session) = &mut self.session {
                session.has_ended = true;
            }
            self.server_finished(now);
        }
    }

    fn server_finished(&mut self, now: Time) {
        match &self.session {
            // The flow's own connection says nothing, so servers end it sooner or later.
            None if self.lanes.is_some() => {}
            Some(session) if !session.stream.is_verified() => {
                self.fail(OriginFault::plain(reasons::ORIGIN_TLS));
            }
            // RFC 8446 §6.1 (Closure Alerts): without one, somebody else may have cut the response. The client gets all of
            // it, and no closure alert either.
            Some(session) if !session.has_ended => {
                self.send_frame(&TlsFrame::LaneEnded(0, false));
                self.tell(now, AcceleratorInput::LanFinished);
            }
            Some(_) => self.tell(now, AcceleratorInput::LanFinished),
            None => self.outputs.push_back(AcceleratorOutput::FinishWan),
        }
    }

    /// Tells the half inside what happened, and does what it wants.
    fn tell(&mut self, now: Time, input: AcceleratorInput) {
        let Some(session) = &mut self.session else {
            return;
        };
        match &mut session.inner {
            FarContent::Http1(far) => far.handle(now, input),
            FarContent::Relay => relayed(input)
                .into_iter()
                .for_each(|output| self.put_out(output)),
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(session) = &mut self.session
            && let FarContent::Http1(far) = &mut session.inner
            && let Some(output) = far.poll_output()
        {
            self.put_out(output);
        }
    }

    /// Does what the half inside wants.
    fn put_out(&mut self, output: AcceleratorOutput) {
        if let Some(session) = &mut self.session {
            match output {
                AcceleratorOutput::ToLan(bytes) => self.write_server(&bytes),
                AcceleratorOutput::FinishLan => self.finish_server(),
                AcceleratorOutput::ToWan(segment) => self.send_wan(segment),
                AcceleratorOutput::EndBody if !session.may_store => {}
                AcceleratorOutput::Server(which, command) => self.further(which, command),
                AcceleratorOutput::LettingGo(LettingGo::LetGo { .. }) => {
                    session.inner = FarContent::Relay;
                    self.send_frame(&TlsFrame::Relay);
                }
                // It was opened at the start.
                AcceleratorOutput::OpenServer => {}
                AcceleratorOutput::EndBody
                | AcceleratorOutput::FinishWan
                | AcceleratorOutput::OpenFlow
                | AcceleratorOutput::AnsweredHere(_)
                | AcceleratorOutput::Claim(_)
                | AcceleratorOutput::ClaimReleased
                | AcceleratorOutput::Content(_)
                | AcceleratorOutput::LettingGo(LettingGo::Close { .. }) => {
                    self.outputs.push_back(output)
                }
            }
        }
    }

    fn send_wan(&mut self, mut segment: FlowSegment) {
        let may_store = self.session.as_ref().is_some_and(|one| one.may_store);
        if segment.kind == SegmentKind::Payload && !may_store {
            segment.kind = SegmentKind::Control;
        }
        self.outputs.push_back(AcceleratorOutput::ToWan(segment));
    }

    /// Sends bytes to the server, inside TLS.
    fn write_server(&mut self, plain: &[u8]) {
        let Some(session) = &mut self.session else {
            return;
        };
        session.stream.send(plain);
        if !session.stream.is_verified() {
            session.waiting += plain.len();
            if session.waiting > WAITING_MAX {
                return self.close(ReasonCode::LIMIT);
            }
        }
        self.flush();
    }

    fn finish_server(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        if !session.stream.is_verified() {
            session.is_finished = true;
            return;
        }
        session.stream.finish();
        self.flush();
        self.outputs.push_back(AcceleratorOutput::FinishLan);
    }

    fn command(&mut self, which: ServerConnection, command: ServerCommand) {
        self.outputs
            .push_back(AcceleratorOutput::Server(which, command));
    }

    /// The half inside wants something of a further connection.
    fn further(&mut self, which: ServerConnection, command: ServerCommand) {
        let Some(session) = &mut self.session else {
            return;
        };
        let (trust, name) = (self.shared.trust.as_ref(), &session.name);
        session.further.command(which, command, || match trust {
            Some(trust) => OriginStream::new(trust, name),
            None => Err(OriginFault::plain(reasons::TLS_OFF)),
        });
        self.pass_further();
    }

    /// Takes what happened to a further connection of the half inside.
    fn further_event(&mut self, which: ServerConnection, event: ServerEvent) {
        if let Some(session) = &mut self.session {
            session.further.event(which, event);
            self.pass_further();
            self.drain();
        }
    }

    fn pass_further(&mut self) {
        while let Some(session) = &mut self.session
            && let Some(output) = session.further.poll_output()
        {
            match (output, &mut session.inner) {
                (FurtherOutput::Command(which, command), _) => self.command(which, command),
                (FurtherOutput::Event(which, event), FarContent::Http1(far)) => {
                    far.handle(self.now, AcceleratorInput::Server(which, event));
                }
                (FurtherOutput::Event(..), FarContent::Relay) => {}
            }
        }
    }

    fn close(&mut self, reason: ReasonCode) {
        let letting_go = LettingGo::Close { reason };
        self.outputs
            .push_back(AcceleratorOutput::LettingGo(letting_go));
    }

    fn timed_out(&mut self, now: Time) {
        if self.timeout.is_some_and(|at| at <= now) {
            self.timeout = None;
            let late = OriginFault::plain(reasons::ORIGIN_TLS);
            match &self.session {
                Some(_) => self.fail(late),
                None => self.refuse(late),
            }
        }
        if let Some(lanes) = &mut self.lanes {
            lanes.timed_out(now);
        }
        self.drain_lanes();
        self.tell(now, AcceleratorInput::Timeout);
    }
}

impl AcceleratorHalf for FarTls {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        self.now = now;
        self.shared.clock.observe(now);
        if self.has_failed {
            // What comes is decrypted content for an origin that must not get it. The near half closes the flow.
            return;
        }
        match input {
            AcceleratorInput::Start => self.outputs.push_back(AcceleratorOutput::OpenServer),
            AcceleratorInput::Lan(bytes) => self.hear_server(now, bytes),
            AcceleratorInput::LanFinished => self.server_finished(now),
            AcceleratorInput::Wan(segment) if segment.kind == SegmentKind::Frame => {
                match TlsFrame::parse(&segment.bytes) {
                    Ok(Some(frame)) => self.hear_frame(now, frame),
                    Ok(None) => self.hear_inside(now, segment),
                    Err(_) => self.close(ReasonCode::VIOLATION),
                }
            }
            AcceleratorInput::Wan(segment) if self.lanes.is_some() || self.session.is_some() => {
                self.hear_inside(now, segment);
            }
            // The near half is about to let go.
            AcceleratorInput::Wan(segment) => {
                let output = AcceleratorOutput::ToLan(segment.bytes);
                self.outputs.push_back(output);
            }
            AcceleratorInput::WanFinished if self.lanes.is_some() => {
                self.outputs.push_back(AcceleratorOutput::FinishLan);
                self.outputs.push_back(AcceleratorOutput::FinishWan);
            }
            AcceleratorInput::WanFinished => match self.session {
                Some(_) => self.tell(now, AcceleratorInput::WanFinished),
                None => self.outputs.push_back(AcceleratorOutput::FinishLan),
            },
            AcceleratorInput::Server(PROBE, event) => self.probe_event(event),
            AcceleratorInput::Server(which, event) if self.lanes.is_some() => {
                if let Some(lanes) = &mut self.lanes {
                    lanes.server_event(now, which, event);
                }
                self.drain_lanes();
            }
            AcceleratorInput::Server(which, event) => self.further_event(which, event),
            AcceleratorInput::Timeout => self.timed_out(now),
            AcceleratorInput::WanSilent(_)
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
        let inner = self
            .session
            .as_ref()
            .and_then(|session| match &session.inner {
                FarContent::Http1(far) => far.poll_timeout(),
                FarContent::Relay => None,
            });
        let lanes = self.lanes.as_ref().and_then(|lanes| lanes.poll_timeout());
        [self.timeout, inner, lanes].into_iter().flatten().min()
    }

    fn set_backlog(&mut self, now: Time, bytes: u64) {
        if let Some(session) = &mut self.session
            && let FarContent::Http1(far) = &mut session.inner
        {
            far.set_backlog(now, bytes);
        }
        self.drain();
    }

    fn buffered(&self) -> usize {
        let probe = self.probe.as_ref().map_or(0, |_| STREAM_OVERHEAD);
        let session = self.session.as_ref().map_or(0, |session| {
            let inner = match &session.inner {
                FarContent::Http1(far) => far.buffered(),
                FarContent::Relay => 0,
            };
            inner + session.waiting + STREAM_OVERHEAD + session.further.held()
        });
        let lanes = self.lanes.as_ref().map_or(0, |lanes| lanes.held());
        probe + session + lanes
    }

    fn note(&self) -> Option<String> {
        let inner = match self.session.as_ref().map(|session| &session.inner) {
            Some(FarContent::Http1(far)) => far.note(),
            Some(FarContent::Relay) | None => None,
        };
        self.note.clone().or(inner)
    }
}
