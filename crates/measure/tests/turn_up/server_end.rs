//! Server's end of a turn-up test in virtual time: the machine, its host, and what a shell does.

use std::net::SocketAddr;
use std::time::Duration;

use measure::procedure::DepartureSchedule;
use measure::session::{
    GreetingOutcome, OutgoingStream, ServerConversation, ServerGreeting, ServerOutput,
    ServerSettings,
};
use measure::wire::{RunOrder, ServerLimits, SharedKey};
use tcp::{ConnectionConfig, ConnectionNumber, TcpHost};
use testkit::earliest;
use vocab::{Bitrate, SeededRandom, Time};

use crate::circuit::{CircuitPacket, EmulatedCircuit, PacketDirection};
use crate::messages::{GreetedConnection, read, say, write};
use crate::transfer::SimulatedTransfer;
use crate::{SERVER, SIMULATED_CONTROL, WORDS, connection_config};

/// Server of a test.
pub(crate) struct ServerEnd {
    pub(crate) host: TcpHost,
    random: SeededRandom,
    /// Connections that have not been greeted.
    strangers: Vec<(ServerGreeting, GreetedConnection)>,
    session: Option<(ServerConversation, ConnectionNumber)>,
    stream: Option<(SocketAddr, OutgoingStream, DepartureSchedule)>,
    joined: Vec<(u16, ConnectionNumber)>,
    transfer: Option<SimulatedTransfer>,
    /// Result of the session.
    pub(crate) ended: Option<Result<(), String>>,
}

impl ServerEnd {
    /// A server that listens.
    pub(crate) fn new(seed: u64) -> Self {
        let mut host = TcpHost::new(SeededRandom::for_stream(seed, 2));
        host.listen(port(), connection_config());
        Self {
            host,
            random: SeededRandom::for_stream(seed, 4),
            strangers: Vec::new(),
            session: None,
            stream: None,
            joined: Vec::new(),
            transfer: None,
            ended: None,
        }
    }

    pub(crate) fn handle_datagram(&mut self, now: Time, from: SocketAddr, bytes: &[u8]) {
        if let Some((conversation, _)) = &mut self.session {
            conversation.handle_datagram(now, now, from, bytes);
        }
    }

    /// Does what can be done now.
    pub(crate) fn step(&mut self, now: Time, circuit: &mut EmulatedCircuit) {
        while let Some(connection) = self.host.accept() {
            let mut nonce = [0; 32];
            self.random.fill(&mut nonce);
            let greeting = ServerGreeting::new(nonce);
            say(now, &mut self.host, connection, &greeting.hello());
            self.strangers
                .push((greeting, GreetedConnection::new(connection)));
        }
        self.greet(now);
        let Some((conversation, control)) = &mut self.session else {
            return;
        };
        let bytes = read(&mut self.host, *control);
        if !bytes.is_empty() {
            conversation.handle_control(now, &bytes);
        }
        if let Some((to, stream, departures)) = &mut self.stream {
            let mut bytes = Vec::new();
            while let Some((number, stamp)) = departures.poll_transmit(now) {
                stream.emit(number, stamp, &mut bytes);
                send(now, circuit, *to, bytes.clone());
            }
            if departures.poll_timeout().is_none() {
                let (_, stream, departures) = self.stream.take().expect("it is sent");
                conversation.stream_sent(Ok(stream.finish(departures.sent())));
            }
        }
        if let Some(transfer) = &mut self.transfer
            && let Some(samples) = transfer.step(now, &mut self.host)
        {
            self.transfer = None;
            conversation.transferred(&samples, 0);
        }
        if conversation.poll_timeout().is_some_and(|due| due <= now) {
            conversation.handle_timeout(now);
        }
        self.carry_out(now, circuit);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        earliest([
            self.session
                .as_ref()
                .and_then(|(conversation, _)| conversation.poll_timeout()),
            self.host.poll_timeout(),
            self.stream
                .as_ref()
                .and_then(|(_, _, departures)| departures.poll_timeout()),
            self.transfer
                .as_ref()
                .and_then(SimulatedTransfer::poll_timeout),
        ])
    }

    fn greet(&mut self, now: Time) {
        let mut greeted = Vec::new();
        let host = &mut self.host;
        self.strangers.retain_mut(|(greeting, stranger)| {
            let Some(message) = stranger.next(host) else {
                return true;
            };
            let outcome = greeting.handle(message, &SharedKey::from_words(WORDS));
            greeted.push((outcome, *greeting.nonce(), stranger.connection));
            false
        });
        for (outcome, nonce, connection) in greeted {
            match outcome {
                GreetingOutcome::Session(client) => {
                    let settings = ServerSettings {
                        session: self.random.next_u64(),
                        secret: self.random.next_u64(),
                        limits: limits(),
                        remarks: String::new(),
                    };
                    let conversation = ServerConversation::new(now, client, settings);
                    self.session = Some((conversation, connection));
                }
                GreetingOutcome::Join(joining) => {
                    let (conversation, _) = self.session.as_mut().expect("a session runs");
                    if conversation
                        .join(now, &joining, &nonce)
                        .expect("it is wanted")
                    {
                        self.joined.push((joining.connection, connection));
                    }
                }
                GreetingOutcome::Refused(_, text) => panic!("{text}"),
                GreetingOutcome::Foreign => panic!("the client is ours"),
            }
        }
    }

    fn carry_out(&mut self, now: Time, circuit: &mut EmulatedCircuit) {
        let Some((conversation, control)) = &mut self.session else {
            return;
        };
        while let Some(output) = conversation.poll_output() {
            match output {
                ServerOutput::Control(bytes) => write(now, &mut self.host, *control, &bytes),
                ServerOutput::Datagram(to, bytes) => send(now, circuit, to, bytes),
                ServerOutput::SendStream(to, stream) => {
                    let departures = DepartureSchedule::new(now, stream.plan);
                    self.stream = Some((to, stream, departures));
                }
                ServerOutput::BeginDropCount => {}
                ServerOutput::EndDropCount => conversation.drops_counted(0),
                ServerOutput::BoundWindow(window) => {
                    let config = connection_config();
                    let receive_buffer = window.unwrap_or(config.receive_buffer);
                    let config = ConnectionConfig {
                        receive_buffer,
                        ..config
                    };
                    self.host.listen(port(), config);
                }
                ServerOutput::Prepare(_) => {
                    conversation.prepared(Ok(SIMULATED_CONTROL.to_owned()));
                }
                ServerOutput::Transfer(order) => {
                    self.transfer = Some(transfer(now, &order, std::mem::take(&mut self.joined)));
                }
                ServerOutput::Abandon => {
                    self.joined.clear();
                    (self.stream, self.transfer) = (None, None);
                }
            }
        }
        if let Some(ended) = conversation.ended() {
            self.ended = Some(ended.clone().map_err(|error| error.to_string()));
            self.session = None;
        }
    }
}

fn transfer(
    now: Time,
    order: &RunOrder,
    joined: Vec<(u16, ConnectionNumber)>,
) -> SimulatedTransfer {
    let [up, _] = order.connections;
    let (receiving, sending): (Vec<_>, Vec<_>) =
        joined.into_iter().partition(|(number, _)| *number < up);
    let [_, window] = order.windows;
    SimulatedTransfer::new(now, order.duration, &sending, &receiving, window)
}

fn limits() -> ServerLimits {
    ServerLimits {
        rate: Bitrate::from_bits_per_second(1_000_000_000),
        order: Duration::from_secs(60),
        session: Duration::from_secs(30 * 60),
        connections: 64,
    }
}

fn send(now: Time, circuit: &mut EmulatedCircuit, _to: SocketAddr, bytes: Vec<u8>) {
    let packet = CircuitPacket::Udp {
        from: SERVER.parse().expect("the address is well formed"),
        bytes,
    };
    circuit.send(now, PacketDirection::ToClient, packet);
}

fn port() -> u16 {
    let address: SocketAddr = SERVER.parse().expect("the address is well formed");
    address.port()
}
