//! Client's end of a turn-up test in virtual time: the machine, its host, and what a shell does.

use std::net::SocketAddr;

use measure::procedure::DepartureSchedule;
use measure::session::{
    ClientGreeting, ClientOutput, ClientSettings, OutgoingStream, RunConnections, TestClient,
    TurnUpProcedure, TurnUpSettings, check_thresholds, udp_headers,
};
use measure::turn_up::{FinishedTest, TestProfile};
use measure::wire::TestDirection;
use std::time::Duration;
use tcp::{ConnectionConfig, ConnectionNumber, TcpHost};
use testkit::earliest;
use vocab::{SeededRandom, Time};

use crate::circuit::{CircuitPacket, EmulatedCircuit, PacketDirection};
use crate::messages::{GreetedConnection, read, say, write};
use crate::transfer::SimulatedTransfer;
use crate::{CLIENT, SERVER, SIMULATED_CONTROL, WORDS, connection_config};

/// Segment size of the control connection, as in the tester (RFC 9293 §3.7.1).
const CONTROL_SEGMENT: u16 = 536;
/// MTU of the client's interface.
const INTERFACE_MTU: u16 = 1_500;

/// Client of a test.
pub(crate) struct ClientEnd {
    pub(crate) host: TcpHost,
    phase: ClientPhase,
    control: ConnectionNumber,
    next_port: u16,
    stream: Option<(OutgoingStream, DepartureSchedule)>,
    opening: Option<OpeningConnections>,
    transfer: Option<SimulatedTransfer>,
    /// Lines that the machine showed the user.
    pub(crate) shown: Vec<String>,
}

enum ClientPhase {
    Greeting(Box<GreetingClient>),
    Testing(Box<TestClient<TurnUpProcedure>>),
}

struct GreetingClient {
    greeting: Option<ClientGreeting>,
    connection: GreetedConnection,
    has_answered: bool,
    profile: TestProfile,
}

/// Connections of a run that are opened, and those that have joined.
struct OpeningConnections {
    run: RunConnections,
    waiting: Vec<(u16, GreetedConnection)>,
    joined: Vec<(u16, ConnectionNumber)>,
}

impl ClientEnd {
    /// A client that connects now.
    pub(crate) fn new(profile: TestProfile, seed: u64) -> Self {
        let mut random = SeededRandom::for_stream(seed, 3);
        let mut nonce = [0; 32];
        random.fill(&mut nonce);
        let mut host = TcpHost::new(SeededRandom::for_stream(seed, 1));
        let config = ConnectionConfig {
            mss: CONTROL_SEGMENT,
            ..connection_config()
        };
        let control = host
            .connect(address(CLIENT), address(SERVER), config)
            .expect("the first connection");
        Self {
            host,
            phase: ClientPhase::Greeting(Box::new(GreetingClient {
                greeting: Some(ClientGreeting::new(WORDS, nonce, 0)),
                connection: GreetedConnection::new(control),
                has_answered: false,
                profile,
            })),
            control,
            next_port: address(CLIENT).port() + 1,
            stream: None,
            opening: None,
            transfer: None,
            shown: Vec::new(),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        match &self.phase {
            ClientPhase::Greeting(_) => false,
            ClientPhase::Testing(test) => test.is_over(),
        }
    }

    /// Result of the test.
    pub(crate) fn finish(self, took: Duration) -> FinishedTest {
        match self.phase {
            ClientPhase::Greeting(_) => panic!("the greeting did not end"),
            ClientPhase::Testing(test) => test.into_procedure().finish(took),
        }
    }

    pub(crate) fn handle_datagram(&mut self, now: Time, bytes: &[u8]) {
        if let ClientPhase::Testing(test) = &mut self.phase {
            test.handle_datagram(now, now, bytes);
        }
    }

    /// Does what can be done now.
    pub(crate) fn step(&mut self, now: Time, circuit: &mut EmulatedCircuit) {
        self.greet(now);
        let ClientPhase::Testing(test) = &mut self.phase else {
            return;
        };
        let bytes = read(&mut self.host, self.control);
        if !bytes.is_empty() {
            test.handle_control(now, &bytes);
        }
        if let Some((stream, departures)) = &mut self.stream {
            let mut bytes = Vec::new();
            while let Some((number, stamp)) = departures.poll_transmit(now) {
                stream.emit(number, stamp, &mut bytes);
                send(now, circuit, bytes.clone());
            }
            if departures.poll_timeout().is_none() {
                let (stream, departures) = self.stream.take().expect("it is sent");
                test.stream_sent(now, Ok(stream.finish(departures.sent())));
            }
        }
        if let Some(opening) = &mut self.opening
            && opening.step(now, &mut self.host)
        {
            test.connected(now, Ok(SIMULATED_CONTROL.to_owned()));
        }
        if let Some(transfer) = &mut self.transfer
            && let Some(samples) = transfer.step(now, &mut self.host)
        {
            self.transfer = None;
            test.transferred(now, samples, 0);
        }
        if test.poll_timeout().is_some_and(|due| due <= now) {
            test.handle_timeout(now);
        }
        self.carry_out(now, circuit);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let test = match &self.phase {
            ClientPhase::Greeting(_) => None,
            ClientPhase::Testing(test) => test.poll_timeout(),
        };
        earliest([
            test,
            self.host.poll_timeout(),
            self.stream
                .as_ref()
                .and_then(|(_, departures)| departures.poll_timeout()),
            self.transfer
                .as_ref()
                .and_then(SimulatedTransfer::poll_timeout),
        ])
    }

    fn greet(&mut self, now: Time) {
        let ClientPhase::Greeting(client) = &mut self.phase else {
            return;
        };
        let Some(message) = client.connection.next(&mut self.host) else {
            return;
        };
        if !client.has_answered {
            client.has_answered = true;
            let greeting = client.greeting.as_mut().expect("it has not ended");
            let proof = greeting.answer(&message).expect("the server is ours");
            say(now, &mut self.host, self.control, &proof);
            return;
        }
        let greeting = client.greeting.take().expect("it ends once");
        let greeted = greeting.finish(message).expect("the key is the same");
        let mut profile = client.profile.clone();
        check_thresholds(&profile, &greeted.limits).expect("the server offers enough");
        let hosts = profile.cut_to(&greeted.limits);
        let (server, local) = (address(SERVER), address(CLIENT));
        let settings = ClientSettings {
            session: greeted.session,
            key: greeted.key,
            limits: greeted.limits,
            interface_mtu: INTERFACE_MTU,
            udp_headers: udp_headers(server.ip()),
            congestion_control: String::new(),
        };
        let procedure = TurnUpProcedure::new(
            profile,
            TurnUpSettings {
                server,
                local,
                interface_mtu: INTERFACE_MTU,
                rest: Duration::ZERO,
                hosts,
            },
        );
        let test = TestClient::new(now, settings, procedure);
        self.phase = ClientPhase::Testing(Box::new(test));
    }

    fn carry_out(&mut self, now: Time, circuit: &mut EmulatedCircuit) {
        let ClientPhase::Testing(test) = &mut self.phase else {
            return;
        };
        while let Some(output) = test.poll_output() {
            match output {
                ClientOutput::Control(bytes) => write(now, &mut self.host, self.control, &bytes),
                ClientOutput::Datagram(bytes) => {
                    if bytes.len() + 28 > usize::from(INTERFACE_MTU) {
                        test.datagram_refused(now, bytes.len());
                    } else {
                        send(now, circuit, bytes);
                    }
                }
                ClientOutput::SendStream(stream) => {
                    let departures = DepartureSchedule::new(now, stream.plan);
                    self.stream = Some((stream, departures));
                }
                ClientOutput::BeginDropCount => {}
                ClientOutput::EndDropCount => test.drops_counted(now, 0),
                ClientOutput::Connect(run) => {
                    let mut waiting = Vec::new();
                    for plan in run.plans() {
                        let mut local = address(CLIENT);
                        local.set_port(self.next_port);
                        self.next_port += 1;
                        let mut config = connection_config();
                        config.mss = plan.segment_max.unwrap_or(config.mss);
                        if plan.direction == TestDirection::Down && plan.window.bytes() > 0 {
                            config.receive_buffer = plan.window;
                        }
                        let connection = self
                            .host
                            .connect(local, address(SERVER), config)
                            .expect("each has a port of its own");
                        waiting.push((plan.number, GreetedConnection::new(connection)));
                    }
                    self.opening = Some(OpeningConnections {
                        run,
                        waiting,
                        joined: Vec::new(),
                    });
                }
                ClientOutput::Transfer(plan) => {
                    let opening = self.opening.take().expect("the connections are open");
                    let up = plan.connections[0];
                    let (sending, receiving): (Vec<_>, Vec<_>) = opening
                        .joined
                        .into_iter()
                        .partition(|(number, _)| *number < up);
                    let [window, _] = plan.windows;
                    self.transfer = Some(SimulatedTransfer::new(
                        now,
                        plan.duration,
                        &sending,
                        &receiving,
                        window,
                    ));
                }
                ClientOutput::Abandon => {
                    (self.stream, self.opening, self.transfer) = (None, None, None);
                }
                ClientOutput::Progress(_, text) | ClientOutput::Remark(text) => {
                    self.shown.push(text);
                }
            }
        }
    }
}

impl OpeningConnections {
    /// Answers greetings; tells whether the last connection has joined now.
    fn step(&mut self, now: Time, host: &mut TcpHost) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let (run, joined) = (&self.run, &mut self.joined);
        self.waiting.retain_mut(|(number, greeted)| {
            let Some(hello) = greeted.next(host) else {
                return true;
            };
            let join = run.join(&hello, *number).expect("the server greets");
            say(now, host, greeted.connection, &join);
            joined.push((*number, greeted.connection));
            false
        });
        self.waiting.is_empty()
    }
}

fn send(now: Time, circuit: &mut EmulatedCircuit, bytes: Vec<u8>) {
    let packet = CircuitPacket::Udp {
        from: address(CLIENT),
        bytes,
    };
    circuit.send(now, PacketDirection::ToServer, packet);
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("the address is well formed")
}
