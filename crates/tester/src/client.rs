//! `trunkline measure run`: the near end of a turn-up test.
//!
//! The client opens everything: the control connection, the connections of runs, and the return
//! path of UDP packets, so it may be behind NAT. [`TestClient`] decides; this file waits for its
//! sockets, and carries out what it says. When the control connection falls silent, or the user
//! interrupts, the current step ends and the results so far are reported.

mod connections;

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use anyhow::Result;
use host::packets::system::wait_readable;
use host::progress::ProgressReporter;
use host::tester_sockets::{self as system, IncomingDatagrams, SocketDropCounter, TesterClock};
use measure::session::{
    ClientOutput, ClientProcedure, ClientSettings, GreetedServer, SentDatagrams, TestClient,
    TurnUpProcedure, TurnUpSettings, check_thresholds, udp_headers,
};
use measure::turn_up::{FinishedTest, TestProfile};
use measure::wire::ServerLimits;

use self::connections::ConnectionOpener;
use super::conversation::{MessageWriter, broken, read_control};
use super::events::{EventReceiver, EventSender, events};
use super::failure::MeasurementFailure;
use super::greeting::{connect, greet, open_udp, resolve};
use super::local_limits::{self, ProcessorUsage};
use super::options::RunOptions;
use super::streams::send_stream;
use super::transfers::{RunTransfers, TransferResult};

/// Interval of the checks for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs a whole test.
///
/// # Errors
/// Fails when the test could not begin: the server does not answer, refuses, or is a different
/// program. Later failures are in the result.
pub fn run(
    options: &RunOptions,
    profile: TestProfile,
    is_over: &(dyn Fn() -> bool + Sync),
    progress: &dyn ProgressReporter,
) -> Result<FinishedTest, MeasurementFailure> {
    let began = Instant::now();
    let procedure = measure(options, profile, is_over, progress).map_err(MeasurementFailure)?;
    Ok(procedure.finish(began.elapsed()))
}

fn measure(
    options: &RunOptions,
    mut profile: TestProfile,
    is_over: &(dyn Fn() -> bool + Sync),
    progress: &dyn ProgressReporter,
) -> Result<TurnUpProcedure> {
    let client = ConnectedClient::open(options, progress, |limits| {
        Ok(check_thresholds(&profile, limits)?)
    })?;
    let mut hosts = client.hosts.clone();
    hosts.extend(profile.cut_to(&client.greeted.limits));
    for remark in &hosts {
        progress.note(remark);
    }
    profile.tcp_headers = super::tcp_headers(client.server.ip());
    let settings = TurnUpSettings {
        server: client.server,
        local: client.local,
        interface_mtu: client.interface_mtu,
        rest: options.rest,
        hosts,
    };
    client.run(TurnUpProcedure::new(profile, settings), is_over, progress)
}

/// Client whose server has greeted it.
pub(super) struct ConnectedClient<'a> {
    options: &'a RunOptions,
    pub(super) server: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) greeted: GreetedServer,
    /// Remarks about the two hosts.
    pub(super) hosts: Vec<String>,
    pub(super) interface_mtu: u16,
    control: TcpStream,
    udp: UdpSocket,
}

impl<'a> ConnectedClient<'a> {
    /// Connects to the server and greets it; `check` judges its limits.
    pub(super) fn open(
        options: &'a RunOptions,
        progress: &dyn ProgressReporter,
        check: impl FnOnce(&ServerLimits) -> Result<()>,
    ) -> Result<Self> {
        progress.step(0.0, "connecting");
        let server = resolve(options)?;
        let control = connect(options, server)?;
        let local = control.local_addr()?;
        let greeted = greet(options, server, &control)?;
        check(&greeted.limits)?;
        let udp = open_udp(options, server, local.ip())?;
        let own = local_limits::remarks();
        let mut hosts: Vec<String> = own
            .into_iter()
            .map(|remark| format!("this host: {remark}"))
            .collect();
        if !greeted.remarks.is_empty() {
            hosts.push(format!("the server's host: {}", greeted.remarks));
        }
        Ok(Self {
            options,
            server,
            local,
            greeted,
            hosts,
            interface_mtu: system::route_mtu(&udp).unwrap_or(1_500),
            control,
            udp,
        })
    }

    /// Runs a test to its end, and returns its results.
    pub(super) fn run<P: ClientProcedure>(
        self,
        procedure: P,
        is_over: &dyn Fn() -> bool,
        progress: &dyn ProgressReporter,
    ) -> Result<P> {
        // Messages are read when there are some, and never waited for.
        self.control.set_read_timeout(Some(LOOK_EVERY))?;
        self.udp.set_read_timeout(Some(LOOK_EVERY))?;
        let clock = TesterClock::new();
        let settings = ClientSettings {
            session: self.greeted.session,
            key: self.greeted.key.clone(),
            limits: self.greeted.limits,
            interface_mtu: self.interface_mtu,
            udp_headers: udp_headers(self.server.ip()),
            congestion_control: self.options.congestion_control.clone(),
        };
        let (sender, receiver) = events()?;
        let mut shell = ClientShell {
            test: TestClient::new(clock.now(), settings, procedure),
            clock,
            writer: MessageWriter::new(&self.control)?,
            client: &self,
            stop: Arc::new(AtomicBool::new(false)),
            drops: None,
            connections: None,
            sender,
        };
        std::thread::scope(|scope| {
            let mut incoming = IncomingDatagrams::new();
            shell.carry_out(scope, progress);
            while !shell.test.is_over() {
                shell.wait(&mut incoming, &receiver);
                if is_over() {
                    shell.test.interrupt(clock.now());
                }
                shell.carry_out(scope, progress);
            }
            shell.stop.store(true, Ordering::Relaxed);
        });
        Ok(shell.test.into_procedure())
    }
}

/// Event that a thread of the client reports.
enum ClientEvent {
    StreamSent(Result<SentDatagrams, String>),
    Connected(Result<RunTransfers, String>),
    /// Result of a transfer, and this host's load in thousandths.
    Transferred(TransferResult, u16),
}

/// Machine of the client with its sockets and threads.
struct ClientShell<'a, P> {
    test: TestClient<P>,
    clock: TesterClock,
    writer: MessageWriter,
    client: &'a ConnectedClient<'a>,
    /// Ends the threads that are under way.
    stop: Arc<AtomicBool>,
    drops: Option<SocketDropCounter>,
    /// Open connections of a run that has not begun.
    connections: Option<RunTransfers>,
    sender: EventSender<ClientEvent>,
}

impl<'a, P: ClientProcedure> ClientShell<'a, P> {
    /// Waits for the next input or the next timer, and hands it to the machine.
    fn wait(&mut self, incoming: &mut IncomingDatagrams, receiver: &EventReceiver<ClientEvent>) {
        let now = self.clock.now();
        let due = self.test.poll_timeout();
        let wait = due.map_or(LOOK_EVERY, |due| due.since(now).min(LOOK_EVERY));
        let (control, udp) = (&self.client.control, &self.client.udp);
        let files = [control.as_fd(), udp.as_fd(), receiver.as_fd()];
        let ready = match wait_readable(files, Some(wait)) {
            Ok(ready) => ready,
            Err(error) => {
                let why = format!("waiting for the sockets: {error}");
                return self.test.host_failed(self.clock.now(), why);
            }
        };
        let [has_control, has_datagrams, has_events] = ready;
        if has_datagrams {
            let (clock, test) = (self.clock, &mut self.test);
            let received = incoming.receive(udp, clock, |arrived, _, bytes| {
                test.handle_datagram(clock.now(), arrived, bytes);
            });
            if let Err(error) = received {
                let why = format!("receiving over UDP: {error}");
                self.test.host_failed(self.clock.now(), why);
            }
        }
        if has_control {
            match read_control(control) {
                Ok(bytes) => self.test.handle_control(self.clock.now(), &bytes),
                Err(how) => self.test.control_lost(self.clock.now(), how),
            }
        }
        if has_events {
            receiver.clear();
            while let Some(event) = receiver.poll() {
                self.handle_event(event);
            }
        }
        let now = self.clock.now();
        if self.test.poll_timeout().is_some_and(|due| due <= now) {
            self.test.handle_timeout(now);
        }
    }

    fn handle_event(&mut self, event: ClientEvent) {
        let now = self.clock.now();
        match event {
            ClientEvent::StreamSent(sent) => self.test.stream_sent(now, sent),
            ClientEvent::Connected(Ok(connections)) => {
                let control = connections.congestion_control();
                self.connections = Some(connections);
                self.test.connected(now, control);
            }
            ClientEvent::Connected(Err(why)) => self.test.connected(now, Err(why)),
            ClientEvent::Transferred(result, busy) => {
                self.test.transferred(now, result.samples, busy);
            }
        }
    }

    /// Carries out the machine's outputs.
    fn carry_out<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        progress: &dyn ProgressReporter,
    ) where
        'a: 'scope,
    {
        let client = self.client;
        let (clock, stop, sender) = (self.clock, self.stop.clone(), self.sender.clone());
        while let Some(output) = self.test.poll_output() {
            match output {
                ClientOutput::Control(bytes) => {
                    if let Err(error) = self.writer.send_bytes(&bytes) {
                        self.test.control_lost(clock.now(), broken(&error));
                    }
                }
                ClientOutput::Datagram(bytes) => match client.udp.send(&bytes) {
                    Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                        self.test.datagram_refused(clock.now(), bytes.len());
                    }
                    // Lost like any other.
                    _ => {}
                },
                ClientOutput::SendStream(stream) => {
                    let (stop, sender) = (stop.clone(), sender.clone());
                    scope.spawn(move || {
                        let is_over = || stop.load(Ordering::Relaxed);
                        let sent = send_stream(&client.udp, None, stream, clock, &is_over);
                        sender.send(ClientEvent::StreamSent(sent))
                    });
                }
                ClientOutput::BeginDropCount => {
                    self.drops = Some(SocketDropCounter::begin(&client.udp));
                }
                ClientOutput::EndDropCount => {
                    let counter = self.drops.take();
                    let dropped = counter.map_or(0, |counter| counter.until_now(&client.udp));
                    self.test.drops_counted(clock.now(), dropped);
                }
                ClientOutput::Connect(run) => {
                    let (stop, sender) = (stop.clone(), sender.clone());
                    let opener = ConnectionOpener {
                        options: client.options,
                        server: client.server,
                    };
                    scope.spawn(move || {
                        let is_over = || stop.load(Ordering::Relaxed);
                        let opened = opener.open_all(&run, &is_over);
                        let opened = opened.map_err(|error| format!("{error:#}"));
                        sender.send(ClientEvent::Connected(opened))
                    });
                }
                ClientOutput::Transfer(_) => {
                    let Some(connections) = self.connections.take() else {
                        continue;
                    };
                    let (stop, sender) = (stop.clone(), sender.clone());
                    scope.spawn(move || {
                        let busy = ProcessorUsage::begin();
                        let result = connections.run(&|| stop.load(Ordering::Relaxed));
                        sender.send(ClientEvent::Transferred(result, busy.permille()))
                    });
                }
                ClientOutput::Abandon => stop.store(true, Ordering::Relaxed),
                ClientOutput::Progress(done, text) => progress.step(done, &text),
                ClientOutput::Remark(text) => progress.note(&text),
            }
        }
    }
}
