//! Client's end of a session: it carries out one step after another.
//!
//! ```text
//!  Idle ─ begin ─► Resting ─┬► Exchange (probes over UDP, and the opening of the UDP path)
//!                           ├► StreamOrdered ─ Ready ─► StreamUp ─ sent ─► StreamReported
//!                           │                        └► StreamDown ─ StreamSent, quiet ─► StreamCounted
//!                           └► RunOrdered ─ Ready ─► RunConnecting ─ Ready ─► RunTransfer
//!  any state ─ outcome ─► Idle                    any state ─ failure ─► Over
//! ```
//! When the server falls silent, or says that it failed, the conversation is over; the outcomes of
//! earlier steps stand.

mod run;
mod state;
mod stream;

use std::collections::VecDeque;
use std::time::Duration;

use vocab::Time;

use self::state::{ConversationState, UdpStep};
use super::channel::ControlChannel;
use super::error::ConversationError;
use super::stream::{OutgoingStream, SentDatagrams};
use crate::procedure::{
    BaselineRtt, MtuOutcome, PROBED_MTU_MAX, PathMtuTest, RttOutcome, StreamPlan, StreamRecord,
    UdpOpening,
};
use crate::turn_up::RunPlan;
use crate::wire::{
    ControlMessage, DatagramHeader, RunSample, ServerLimits, SessionKey, SessionRole,
    TestDirection, frame,
};

pub use self::run::{CompletedRun, ConnectionPlan, RunConnections};

/// Time limit for the server's part in an order, beyond the order's own duration.
const ORDER_MAX: Duration = Duration::from_secs(20);
/// Time without arrivals after which a stream whose end was announced is over.
const QUIET: Duration = Duration::from_millis(150);
/// Time for which a NAT is expected to keep an idle UDP mapping (RFC 4787 §4.3 asks for two
/// minutes; many keep half a minute).
const MAPPING_KEPT: Duration = Duration::from_secs(20);
/// Probes for the path MTU go out before the round-trip time is known; longer paths take longer.
const PATH_MTU_ROUND_TRIP: Duration = Duration::from_millis(400);

/// Settings of a client's end.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Number of the session, from the greeting.
    pub session: u64,
    /// Key of the session.
    pub key: SessionKey,
    /// Limits of the server.
    pub limits: ServerLimits,
    /// MTU of the interface that the test goes by.
    pub interface_mtu: u16,
    /// Bytes of the IP and UDP headers.
    pub udp_headers: u16,
    /// Congestion control of the senders of runs; empty for each system's own.
    pub congestion_control: String,
}

/// Step of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientStep {
    /// Show the server our UDP address.
    OpenUdp,
    /// Find the path MTU of a direction.
    PathMtu(TestDirection),
    /// Find the baseline RTT.
    BaselineRtt,
    /// Send a stream after a pause.
    Stream {
        /// Direction of the stream.
        direction: TestDirection,
        /// Plan of the stream.
        plan: StreamPlan,
        /// Pause before it, in which queues become empty.
        rest: Duration,
    },
    /// Run TCP connections after a pause.
    Run {
        /// Plan of the run.
        plan: RunPlan,
        /// Greatest segments up and down; [`None`] leaves them to the hosts.
        segments_max: [Option<u16>; 2],
        /// Pause before it, in which queues become empty.
        rest: Duration,
    },
}

/// Outcome of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutcome {
    /// Tells whether the server answers over UDP.
    UdpOpened(bool),
    /// Result of the search for the path MTU.
    PathMtu(MtuOutcome),
    /// Result of the probing.
    BaselineRtt(RttOutcome),
    /// A stream with the fates of its packets.
    Stream(StreamRecord),
    /// A run with its counters.
    Run(CompletedRun),
}

/// Action that the client's machine asks of its shell.
#[derive(Clone, Debug)]
pub enum ClientOutput {
    /// Send these bytes over the control connection.
    Control(Vec<u8>),
    /// Send this datagram; [`ClientConversation::datagram_refused`] if this host cannot.
    Datagram(Vec<u8>),
    /// Send this stream, then [`ClientConversation::stream_sent`].
    SendStream(OutgoingStream),
    /// Count the datagrams that the socket drops from now on.
    BeginDropCount,
    /// Hand in their number by [`ClientConversation::drops_counted`].
    EndDropCount,
    /// Open these connections, then [`ClientConversation::connected`].
    Connect(RunConnections),
    /// Transfer over these connections, then [`ClientConversation::transferred`].
    Transfer(RunPlan),
    /// Abandon the stream, the connections and the transfer.
    Abandon,
    /// Share of the test that is done, and what is measured now.
    Progress(f64, String),
    /// Remark that the user must read at once.
    Remark(String),
}

/// Client's end of a session.
#[derive(Debug)]
pub struct ClientConversation {
    settings: ClientSettings,
    channel: ControlChannel,
    next_order: u32,
    /// Time at which UDP last worked both ways; [`None`] after a stream without arrivals.
    udp_open_at: Option<Time>,
    state: ConversationState,
    outputs: VecDeque<ClientOutput>,
    outcome: Option<StepOutcome>,
    failure: Option<ConversationError>,
}

impl ClientConversation {
    /// A conversation that begins after the greeting.
    #[must_use]
    pub fn new(now: Time, settings: ClientSettings) -> Self {
        Self {
            settings,
            channel: ControlChannel::new(now),
            next_order: 1,
            udp_open_at: None,
            state: ConversationState::Idle,
            outputs: VecDeque::new(),
            outcome: None,
            failure: None,
        }
    }

    /// Settings of this end.
    #[must_use]
    pub fn settings(&self) -> &ClientSettings {
        &self.settings
    }

    /// Tells whether no step is under way, and none failed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, ConversationState::Idle)
    }

    /// Error that ended the conversation.
    #[must_use]
    pub fn failure(&self) -> Option<&ConversationError> {
        self.failure.as_ref()
    }

    /// Outcome of the step that has ended.
    pub fn poll_outcome(&mut self) -> Option<StepOutcome> {
        self.outcome.take()
    }

    /// Begins a step; nothing happens while another one is under way or after a failure.
    pub fn begin(&mut self, now: Time, step: ClientStep) {
        if !self.is_idle() {
            return;
        }
        let session = self.settings.session;
        self.state = match step {
            ClientStep::OpenUdp => {
                ConversationState::Exchange(UdpStep::Opening(UdpOpening::new(now, session), None))
            }
            ClientStep::PathMtu(direction) => {
                ConversationState::Exchange(UdpStep::PathMtu(PathMtuTest::new(
                    now,
                    direction,
                    session,
                    self.settings.interface_mtu.min(PROBED_MTU_MAX),
                    self.settings.udp_headers,
                    PATH_MTU_ROUND_TRIP,
                )))
            }
            ClientStep::BaselineRtt => {
                let seed = now.as_nanos();
                ConversationState::Exchange(UdpStep::BaselineRtt(BaselineRtt::new(
                    now, session, seed,
                )))
            }
            ClientStep::Stream { rest, .. } | ClientStep::Run { rest, .. } => {
                ConversationState::Resting {
                    until: now + rest,
                    step,
                }
            }
        };
        self.advance(now);
    }

    /// Takes in bytes of the control connection.
    pub fn handle_control(&mut self, now: Time, bytes: &[u8]) {
        self.channel.handle(now, bytes);
        while !self.is_over() {
            match self.channel.next_message() {
                Ok(Some(message)) => self.handle_message(now, message),
                Ok(None) => break,
                Err(error) => self.fail(error.into()),
            }
        }
        self.advance(now);
    }

    /// Takes note that the control connection has ended, and how.
    pub fn control_lost(&mut self, how: String) {
        self.fail(ConversationError::Broken(how));
    }

    /// Takes in a datagram that arrived at `arrived`.
    pub fn handle_datagram(&mut self, now: Time, arrived: Time, bytes: &[u8]) {
        let Ok(datagram) = DatagramHeader::parse(bytes, &self.settings.key, SessionRole::Server)
        else {
            return;
        };
        if datagram.session != self.settings.session {
            return;
        }
        match &mut self.state {
            ConversationState::Exchange(step) => {
                step.exchange().handle(arrived, &datagram, bytes.len());
                self.advance(now);
            }
            ConversationState::StreamUp(_) => self.channel.note_activity(now),
            ConversationState::StreamDown(stream) => {
                let is_own = stream.arrived(now, arrived, &datagram);
                if is_own {
                    self.channel.note_activity(now);
                }
            }
            _ => {}
        }
    }

    /// Takes note that this host refused to send a datagram of this length (EMSGSIZE).
    pub fn datagram_refused(&mut self, now: Time, length: usize) {
        if let ConversationState::Exchange(step) = &mut self.state {
            step.exchange().refused(now, length);
            self.advance(now);
        }
    }

    /// Takes note that this host cannot go on, and why.
    pub fn host_failed(&mut self, why: String) {
        self.fail(ConversationError::Host(why));
    }

    /// Ends the conversation on behalf of the user.
    pub fn interrupt(&mut self) {
        if let Some(order) = self.state.run_order() {
            self.send(&ControlMessage::Stop { order });
        }
        self.fail(ConversationError::Interrupted);
    }

    /// Says goodbye.
    pub fn finish(&mut self) {
        self.state = ConversationState::Over;
        self.send(&ControlMessage::Bye);
    }

    /// The next output.
    pub fn poll_output(&mut self) -> Option<ClientOutput> {
        self.outputs.pop_front()
    }

    /// Time of the next call of [`ClientConversation::handle_timeout`]; [`None`] after the end.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.outputs.is_empty() {
            return Some(Time::ZERO);
        }
        if self.is_over() {
            return None;
        }
        let alive = (!self.state.is_quiet()).then(|| self.channel.alive_at());
        let times = [Some(self.channel.silent_at()), alive, self.state.due()];
        times.into_iter().flatten().min()
    }

    /// Handles everything that is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.is_over() {
            return;
        }
        if self.channel.is_silent(now) {
            return self.fail(ConversationError::Silent);
        }
        if !self.state.is_quiet() && self.channel.takes_keep_alive(now) {
            self.send(&ControlMessage::Alive);
        }
        if let Err(error) = self.state.check_deadline(now) {
            return self.fail(error);
        }
        self.advance(now);
    }

    fn is_over(&self) -> bool {
        matches!(self.state, ConversationState::Over)
    }

    fn send(&mut self, message: &ControlMessage) {
        self.outputs
            .push_back(ClientOutput::Control(frame(message)));
    }

    fn fail(&mut self, error: ConversationError) {
        if self.is_over() {
            return;
        }
        self.state = ConversationState::Over;
        self.failure = Some(error);
        self.outputs.push_back(ClientOutput::Abandon);
    }

    fn complete(&mut self, outcome: StepOutcome) {
        self.state = ConversationState::Idle;
        self.outcome = Some(outcome);
    }

    fn number_order(&mut self) -> u32 {
        let order = self.next_order;
        self.next_order += 1;
        order
    }

    fn handle_message(&mut self, now: Time, message: ControlMessage) {
        match message {
            ControlMessage::Alive => {}
            ControlMessage::Failed { text, .. } | ControlMessage::Refused { text, .. } => {
                self.fail(ConversationError::ServerSays(text));
            }
            message => {
                let state = std::mem::replace(&mut self.state, ConversationState::Idle);
                let handled = match state {
                    ConversationState::StreamOrdered(_)
                    | ConversationState::StreamReported(_)
                    | ConversationState::StreamDown(_) => {
                        self.handle_stream_message(now, state, message)
                    }
                    ConversationState::RunOrdered(..)
                    | ConversationState::RunConnecting(_)
                    | ConversationState::RunTransfer(_) => {
                        self.handle_run_message(now, state, message)
                    }
                    ConversationState::Idle
                    | ConversationState::Resting { .. }
                    | ConversationState::Exchange(_)
                    | ConversationState::StreamUp(_)
                    | ConversationState::StreamCounted(_)
                    | ConversationState::Over => Err(ConversationError::unexpected(&message)),
                };
                if let Err(error) = handled {
                    self.fail(error);
                }
            }
        }
    }

    /// Goes on as far as possible without an input.
    fn advance(&mut self, now: Time) {
        match &mut self.state {
            ConversationState::Resting { until, .. } if *until <= now => self.end_rest(now),
            ConversationState::Exchange(_) => self.advance_exchange(now),
            ConversationState::StreamDown(stream) => {
                if stream.takes_keep_alive(now) {
                    let order = stream.order();
                    self.send_stream_keep_alive(order);
                }
                self.end_stream_down(now);
            }
            _ => {}
        }
    }

    fn end_rest(&mut self, now: Time) {
        let state = std::mem::replace(&mut self.state, ConversationState::Idle);
        let ConversationState::Resting { step, .. } = state else {
            unreachable!("only a rest ends");
        };
        match step {
            ClientStep::Stream {
                direction, plan, ..
            } => self.begin_stream(now, direction, plan),
            ClientStep::Run {
                plan, segments_max, ..
            } => self.order_run(now, plan, segments_max),
            ClientStep::OpenUdp | ClientStep::PathMtu(_) | ClientStep::BaselineRtt => {
                unreachable!("only streams and runs begin with a rest")
            }
        }
    }

    /// Sends the datagrams of a step, until it is over.
    fn advance_exchange(&mut self, now: Time) {
        let ConversationState::Exchange(step) = &mut self.state else {
            return;
        };
        let exchange = step.exchange();
        if exchange.poll_timeout().is_some_and(|due| due <= now) {
            exchange.handle_timeout(now);
        }
        while let Some(outgoing) = exchange.poll_transmit(now) {
            let mut bytes = Vec::new();
            let key = &self.settings.key;
            let head = outgoing.datagram;
            head.emit(key, SessionRole::Client, outgoing.length, &mut bytes);
            self.outputs.push_back(ClientOutput::Datagram(bytes));
        }
        if !exchange.is_over(now) {
            return;
        }
        let state = std::mem::replace(&mut self.state, ConversationState::Idle);
        let ConversationState::Exchange(step) = state else {
            unreachable!("it was one before");
        };
        match step {
            UdpStep::Opening(opening, then) => {
                let is_open = opening.is_open();
                self.udp_open_at = is_open.then_some(now);
                match then {
                    Some((direction, plan)) => self.order_stream(now, direction, plan),
                    None => self.complete(StepOutcome::UdpOpened(is_open)),
                }
            }
            UdpStep::PathMtu(test) => {
                let found = test.outcome().unwrap_or(MtuOutcome::NoAnswer);
                self.complete(StepOutcome::PathMtu(found));
            }
            UdpStep::BaselineRtt(mut probing) => {
                let found = probing.outcome(now).expect("the probing is over");
                self.complete(StepOutcome::BaselineRtt(found));
            }
        }
    }
}

/// Result of a stream or a transfer that a shell carried out: what came of it, or why it failed.
pub type ShellResult<T> = Result<T, String>;

impl ClientConversation {
    /// Hands in the end of a stream that this end sent.
    pub fn stream_sent(&mut self, now: Time, sent: ShellResult<SentDatagrams>) {
        self.handle_stream_sent(now, sent);
        self.advance(now);
    }

    /// Hands in the number of datagrams that the socket dropped.
    pub fn drops_counted(&mut self, now: Time, datagrams: u64) {
        self.handle_drops(now, datagrams);
    }

    /// Hands in that all connections are open, with the congestion control of those that send.
    pub fn connected(&mut self, now: Time, connected: ShellResult<String>) {
        self.handle_connected(now, connected);
    }

    /// Hands in the samples of the connections that sent, and this host's load in thousandths.
    pub fn transferred(&mut self, now: Time, samples: Vec<RunSample>, busy_permille: u16) {
        self.handle_transferred(now, samples, busy_permille);
    }
}
