//! Server's end of a session: it carries out one client's orders.
//!
//! ```text
//!  Free ─ Stream down ─► Streaming ─ sent ─► Free
//!       ─ Run ─► Joining ─ all came ─► Preparing ─► Transferring ─► Free
//!  beside it: a stream up that arrives ─ StreamSent, quiet ─► counted ─► its arrivals are reported
//! ```
//! What it sends is limited in rate and time, by each order and by the session, and ends
//! [`SILENCE_MAX`](super::SILENCE_MAX) after the client's last word. An order that it cannot carry
//! out fails, and the session goes on.

mod arrivals;
mod run;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use vocab::{ByteCount, Time};

use self::arrivals::{ArrivalReport, StreamListener};
use self::run::RunJoining;
use super::channel::ControlChannel;
use super::client::ShellResult;
use super::error::{OrderError, ServerSessionError};
use super::greeting::AuthenticatedClient;
use super::stream::{OutgoingStream, SentDatagrams};
use crate::procedure::{
    ResponderAction, StreamPlan, UDP_HEADERS_IPV4, UDP_HEADERS_IPV6, UdpResponder,
};
use crate::wire::{
    ControlMessage, DATAGRAM_HEADER, DatagramHeader, RunOrder, ServerLimits, ServerRefusal,
    SessionKey, SessionRole, StreamOrder, TestDirection, frame,
};

/// Settings of a server's end.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Number of the session: fresh random bits.
    pub session: u64,
    /// Secret of the UDP cookies: fresh random bits.
    pub secret: u64,
    /// Limits for the client.
    pub limits: ServerLimits,
    /// Remarks about this host for the client's user.
    pub remarks: String,
}

/// Action that the server's machine asks of its shell.
#[derive(Clone, Debug)]
pub enum ServerOutput {
    /// Send these bytes over the control connection.
    Control(Vec<u8>),
    /// Send this datagram to the address.
    Datagram(SocketAddr, Vec<u8>),
    /// Send this stream to the address, then [`ServerConversation::stream_sent`].
    SendStream(SocketAddr, OutgoingStream),
    /// Count the datagrams that the socket drops from now on.
    BeginDropCount,
    /// Hand in their number by [`ServerConversation::drops_counted`].
    EndDropCount,
    /// Bound the window of connections that are accepted from now on: the window scale, and so the
    /// grain of all windows, follows from it. [`None`] takes the bound away.
    BoundWindow(Option<ByteCount>),
    /// Prepare the joined connections for this run, then [`ServerConversation::prepared`].
    Prepare(RunOrder),
    /// Transfer over the prepared connections, then [`ServerConversation::transferred`].
    Transfer(RunOrder),
    /// Abandon the stream, the joined connections and the transfer.
    Abandon,
}

/// Order that is carried out.
#[derive(Debug)]
enum OrderState {
    Free,
    Streaming {
        order: u32,
    },
    Joining(RunJoining),
    Preparing(RunOrder),
    Transferring {
        order: u32,
        congestion_control: String,
    },
}

/// Server's end of a session.
#[derive(Debug)]
pub struct ServerConversation {
    settings: ServerSettings,
    key: SessionKey,
    began: Time,
    channel: ControlChannel,
    responder: UdpResponder,
    order: OrderState,
    listening: Option<StreamListener>,
    reporting: Option<ArrivalReport>,
    outputs: VecDeque<ServerOutput>,
    ended: Option<Result<(), ServerSessionError>>,
}

impl ServerConversation {
    /// A session that begins with `Welcome`.
    #[must_use]
    pub fn new(now: Time, client: AuthenticatedClient, settings: ServerSettings) -> Self {
        let mut channel = ControlChannel::new(now);
        channel.takes_keep_alive(now);
        let mut conversation = Self {
            began: now,
            channel,
            responder: UdpResponder::new(settings.session, client.key.clone(), settings.secret),
            key: client.key,
            order: OrderState::Free,
            listening: None,
            reporting: None,
            outputs: VecDeque::new(),
            ended: None,
            settings,
        };
        conversation.send(&ControlMessage::Welcome {
            proof: client.proof,
            session: conversation.settings.session,
            limits: conversation.settings.limits,
            remarks: conversation.settings.remarks.clone(),
        });
        conversation
    }

    /// Result of the session, once it has ended; the last outputs still wait.
    #[must_use]
    pub fn ended(&self) -> Option<&Result<(), ServerSessionError>> {
        self.ended.as_ref()
    }

    /// Takes in bytes of the control connection.
    pub fn handle_control(&mut self, now: Time, bytes: &[u8]) {
        self.channel.handle(now, bytes);
        while self.ended.is_none() {
            match self.channel.next_message() {
                Ok(Some(message)) => self.handle_message(now, message),
                Ok(None) => break,
                Err(error) => self.end(Err(error.into())),
            }
        }
        self.advance(now);
    }

    /// Takes note that the control connection has ended, and how.
    pub fn control_lost(&mut self, how: impl Into<String>) {
        self.end(Err(ServerSessionError::Broken(how.into())));
    }

    /// Ends the session because the server is stopped.
    pub fn stop(&mut self) {
        self.end(Err(ServerSessionError::Stopped));
    }

    /// Takes in a datagram that arrived at `arrived`.
    pub fn handle_datagram(&mut self, now: Time, arrived: Time, from: SocketAddr, bytes: &[u8]) {
        if self.ended.is_some() {
            return;
        }
        let answers = match self.responder.handle(now, arrived, from, bytes) {
            ResponderAction::Silence => return,
            ResponderAction::Data(data) => {
                self.channel.note_activity(now);
                let listening = self.listening.as_mut();
                let keep_alive = listening.and_then(|one| one.arrived(now, arrived, &data));
                if let Some(order) = keep_alive {
                    let head = super::channel::stream_keep_alive(self.settings.session, order);
                    self.send_datagram(from, head, DATAGRAM_HEADER);
                }
                return;
            }
            ResponderAction::Send(answers) => answers,
            ResponderAction::Confirmed(answer) => vec![answer],
        };
        for answer in answers {
            self.send_datagram(from, answer.datagram, answer.length);
        }
    }

    /// Hands in the end of a stream that this end sent.
    pub fn stream_sent(&mut self, sent: ShellResult<SentDatagrams>) {
        let OrderState::Streaming { order } = self.order else {
            return;
        };
        self.order = OrderState::Free;
        match sent {
            Ok(sent) => self.send(&ControlMessage::StreamSent {
                order,
                datagrams: sent.datagrams,
            }),
            Err(why) => self.fail(order, &OrderError::Host(why)),
        }
    }

    /// The next output.
    pub fn poll_output(&mut self) -> Option<ServerOutput> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if self.ended.is_some() {
            return None;
        }
        let report = self.reporting.as_mut()?;
        let message = report.next_message()?;
        if report.is_done() {
            self.reporting = None;
        }
        Some(ServerOutput::Control(frame(&message)))
    }

    /// Time of the next call of [`ServerConversation::handle_timeout`]; [`None`] after the end.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let has_report = self.reporting.as_ref().is_some_and(ArrivalReport::is_known);
        if !self.outputs.is_empty() || (has_report && self.ended.is_none()) {
            return Some(Time::ZERO);
        }
        if self.ended.is_some() {
            return None;
        }
        let times = [
            Some(self.began + self.settings.limits.session),
            Some(self.channel.silent_at()),
            self.alive_at(),
            match &self.order {
                OrderState::Joining(joining) => Some(joining.until()),
                OrderState::Free
                | OrderState::Streaming { .. }
                | OrderState::Preparing(_)
                | OrderState::Transferring { .. } => None,
            },
            self.report_at(),
        ];
        times.into_iter().flatten().min()
    }

    /// Handles everything that is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.ended.is_some() {
            return;
        }
        if self.alive_at().is_some_and(|at| at <= now) && self.channel.takes_keep_alive(now) {
            self.send(&ControlMessage::Alive);
        }
        if self.channel.is_silent(now) {
            return self.end(Err(ServerSessionError::Silent));
        }
        if now >= self.began + self.settings.limits.session {
            let error = ServerSessionError::TimeUp;
            self.send(&ControlMessage::Refused {
                reason: ServerRefusal::TimeUp,
                retry: Duration::ZERO,
                text: error.to_string(),
            });
            return self.end(Err(error));
        }
        self.advance(now);
    }

    /// Time of the next keep-alive; [`None`] while a stream is sent here, and put off while one
    /// arrives.
    fn alive_at(&self) -> Option<Time> {
        if matches!(self.order, OrderState::Streaming { .. }) {
            return None;
        }
        let due = self.channel.alive_at();
        let quiet = self.listening.as_ref().map(StreamListener::quiet_until);
        Some(quiet.map_or(due, |quiet| due.max(quiet)))
    }

    fn send(&mut self, message: &ControlMessage) {
        self.outputs
            .push_back(ServerOutput::Control(frame(message)));
    }

    fn send_datagram(&mut self, to: SocketAddr, head: DatagramHeader, length: usize) {
        let mut bytes = Vec::new();
        head.emit(&self.key, SessionRole::Server, length, &mut bytes);
        self.outputs.push_back(ServerOutput::Datagram(to, bytes));
    }

    fn end(&mut self, result: Result<(), ServerSessionError>) {
        if self.ended.is_none() {
            self.ended = Some(result);
            self.outputs.push_back(ServerOutput::Abandon);
        }
    }

    fn fail(&mut self, order: u32, why: &OrderError) {
        let text = why.to_string();
        let text = text.chars().filter(|one| !one.is_control()).collect();
        self.send(&ControlMessage::Failed { order, text });
    }

    fn handle_message(&mut self, now: Time, message: ControlMessage) {
        match message {
            ControlMessage::Alive => {}
            ControlMessage::Bye => self.end(Ok(())),
            ControlMessage::Stop { order } => self.give_up(order),
            // Never more than one: a client may say it again and again.
            ControlMessage::StreamSent { order, datagrams } => {
                if self.reporting.is_none() {
                    self.reporting = Some(ArrivalReport::new(now, order, datagrams));
                }
            }
            ControlMessage::Stream(order) => {
                let number = order.order;
                let begun = match self.order {
                    OrderState::Free => self.begin_stream(now, order),
                    _ => Err(OrderError::Busy),
                };
                if let Err(why) = begun {
                    self.fail(number, &why);
                }
            }
            ControlMessage::Run(order) => {
                let number = order.order;
                let begun = match self.order {
                    OrderState::Free => self.begin_run(now, order),
                    _ => Err(OrderError::Busy),
                };
                if let Err(why) = begun {
                    self.fail(number, &why);
                }
            }
            ControlMessage::Hello { .. }
            | ControlMessage::Authenticate { .. }
            | ControlMessage::Join(_)
            | ControlMessage::Welcome { .. }
            | ControlMessage::Refused { .. }
            | ControlMessage::Ready { .. }
            | ControlMessage::Arrivals { .. }
            | ControlMessage::NoRoom { .. }
            | ControlMessage::Samples { .. }
            | ControlMessage::RunEnded { .. }
            | ControlMessage::Failed { .. } => self.end(Err(ServerSessionError::WrongSide)),
        }
    }

    fn give_up(&mut self, given_up: u32) {
        match &self.order {
            OrderState::Joining(joining) if joining.order().order == given_up => {
                self.fail_run(given_up, &OrderError::GivenUp);
            }
            OrderState::Streaming { order } | OrderState::Transferring { order, .. }
                if *order == given_up =>
            {
                self.outputs.push_back(ServerOutput::Abandon);
            }
            _ => {}
        }
    }

    fn begin_stream(&mut self, now: Time, order: StreamOrder) -> Result<(), OrderError> {
        let limits = self.settings.limits;
        if order.rate > limits.rate || order.duration > limits.order {
            return Err(OrderError::StreamLimit {
                rate: order.rate,
                duration: order.duration,
                limits,
            });
        }
        // A smaller one would go out all the same, and at a multiple of the rate.
        if usize::from(order.payload_bytes) < DATAGRAM_HEADER {
            return Err(OrderError::SmallPackets(order.payload_bytes));
        }
        let to = self.responder.client().ok_or(OrderError::NoUdp)?;
        match order.direction {
            TestDirection::Up => {
                self.listening = Some(StreamListener::new(now, order.order));
                self.outputs.push_back(ServerOutput::BeginDropCount);
                self.send(&ControlMessage::Ready { order: order.order });
            }
            TestDirection::Down => {
                self.send(&ControlMessage::Ready { order: order.order });
                let headers = udp_headers(to.ip());
                let stream = OutgoingStream {
                    role: SessionRole::Server,
                    key: self.key.clone(),
                    session: self.settings.session,
                    order: order.order,
                    plan: StreamPlan {
                        rate: order.rate,
                        duration: order.duration,
                        ip_bytes: order.payload_bytes.saturating_add(headers),
                    },
                    headers,
                    left_ns: Vec::new(),
                };
                self.order = OrderState::Streaming { order: order.order };
                self.outputs.push_back(ServerOutput::SendStream(to, stream));
            }
        }
        Ok(())
    }

    /// Goes on as far as possible without an input.
    fn advance(&mut self, now: Time) {
        self.check_joining(now);
        self.advance_report(now);
    }
}

/// Bytes of the IP and UDP headers of packets to an address.
#[must_use]
pub fn udp_headers(address: IpAddr) -> u16 {
    match address.to_canonical() {
        IpAddr::V4(_) => UDP_HEADERS_IPV4,
        IpAddr::V6(_) => UDP_HEADERS_IPV6,
    }
}
