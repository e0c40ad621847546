//! `trunkline measure run --iperf3`: a turn-up test against an ordinary iperf3 server.
//!
//! Each run and each stream is a session of iperf3's. Streams determine the rates: up by the
//! server's counts, down by the arrivals here. For TCP up, the sender is ours and its counters are
//! exact; its window depends on the buffer that the server is told to set, and so does the window
//! that was seen. Down, the window is ours, and of the sender only its own count of retransmitted
//! segments is known. Values for which the other end must answer probes are not measured, and the
//! report says so.

mod streams;

use std::io::{ErrorKind, Read as _, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use measure::diagnosis::found_no_room;
use measure::iperf3::{
    COOKIE_BYTES, ClientSession, ConnectionCount, SILENCE_MAX, ServerReport, SessionOutput,
    TestFailure, TestOrder, TestProtocol,
};
use measure::procedure::{MtuOutcome, StreamPlan};
use measure::run::{self, ReadProgress, RunFigures};
use measure::session::{describe_run, describe_stream};
use measure::turn_up::{
    FinishedTest, RawRun, RunPlan, RunPurpose, TestProfile, TurnUp, TurnUpTask,
};
use measure::wire::TestDirection;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use vocab::ByteCount;

use super::conversation::random;
use super::failure::MeasurementFailure;
use super::greeting::CONNECT_MAX;
use super::greeting::resolve;
use super::local_limits;
use super::options::RunOptions;
use super::transfers::{RunTransfers, TransferResult, prepare_receiver, prepare_sender};
use host::kernel;
use host::progress::ProgressReporter;
use host::tester_sockets::{self as system, TesterClock};

/// Interval of the checks for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Pause before each run, in which queues become empty and the server gets ready for its next test.
const REST: Duration = Duration::from_millis(300);
/// Time for which a server that has just ended a test may refuse the next.
const READY_MAX: Duration = Duration::from_secs(3);
/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// Runs a test against an iperf3 server.
///
/// # Errors
/// Fails when the test could not begin: there is no answer, it is no iperf3 server, or it is busy.
/// Later failures are in the result.
pub fn run_against_iperf3(
    options: &RunOptions,
    profile: TestProfile,
    is_over: &(dyn Fn() -> bool + Sync),
    progress: &dyn ProgressReporter,
) -> Result<FinishedTest, MeasurementFailure> {
    let began = Instant::now();
    let mut test =
        OneEndedTest::begin(options, profile, is_over, progress).map_err(MeasurementFailure)?;
    test.measure()?;
    Ok(FinishedTest {
        turn_up: test.turn_up,
        runs: test.runs,
        server: test.server,
        local: test.local,
        hosts: test.hosts,
        interface_mtu: test.interface_mtu,
        took: began.elapsed(),
    })
}

fn is_of_window(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<TestFailure>()
        .is_some_and(TestFailure::is_of_window)
}

/// Limits of a one-ended test, for the reader of the result.
const UNKNOWN: [&str; 3] = [
    "one-ended: the bottleneck rate up is counted by the server over a short and a long stream; down it is \
     measured here. The baseline RTT is the least that TCP saw, of whole segments",
    "one-ended: down, TCP efficiency in bytes, RTT and buffer delay are the sender's to know and are not \
     measured (the server's count of segments sent again is in --json); its window is the one this host \
     offered",
    "one-ended: up, windows are what the server's kernel makes of the socket buffer it is told to set; the \
     one that was seen is reported, and ideals are taken from it",
];

struct OneEndedTest<'a> {
    options: &'a RunOptions,
    turn_up: TurnUp,
    runs: Vec<RawRun>,
    server: SocketAddr,
    local: SocketAddr,
    hosts: Vec<String>,
    interface_mtu: u16,
    /// Set once the server's UDP port has answered.
    has_streamed: bool,
    clock: TesterClock,
    interrupted: &'a (dyn Fn() -> bool + Sync),
    progress: &'a dyn ProgressReporter,
}

impl<'a> OneEndedTest<'a> {
    fn begin(
        options: &'a RunOptions,
        mut profile: TestProfile,
        interrupted: &'a (dyn Fn() -> bool + Sync),
        progress: &'a dyn ProgressReporter,
    ) -> Result<Self> {
        progress.step(0.0, "connecting");
        let server = resolve(options)?;
        profile.tcp_headers = super::tcp_headers(server.ip());
        let hosts: Vec<String> = local_limits::remarks()
            .into_iter()
            .map(|remark| format!("this host: {remark}"))
            .collect();
        for remark in &hosts {
            progress.note(remark);
        }
        // Nothing is sent by it: it tells which address and interface the test goes by.
        let probe = std::net::UdpSocket::bind(SocketAddr::new(
            options
                .bind
                .unwrap_or_else(|| super::unspecified(server.ip())),
            0,
        ))
        .context("opening a UDP socket")?;
        probe
            .connect(server)
            .with_context(|| format!("there is no route to {server}"))?;
        let why = format!(
            "{server} is tested by iperf3's protocol, one-ended: neither path MTU, nor baseline RTT by probes, \
             nor both directions at once can be measured with it (`trunkline measure server` at the far end \
             can)"
        );
        let mut turn_up = TurnUp::one_ended(profile, why).without_both_at_once();
        for text in UNKNOWN {
            turn_up.remark(text);
        }
        Ok(Self {
            options,
            turn_up,
            runs: Vec::new(),
            server,
            local: probe.local_addr()?,
            hosts,
            interface_mtu: system::route_mtu(&probe).unwrap_or(1_500),
            has_streamed: false,
            clock: TesterClock::new(),
            interrupted,
            progress,
        })
    }

    fn check(&self) -> Result<()> {
        ensure!(!(self.interrupted)(), "it was interrupted");
        Ok(())
    }

    fn pause(&self, span: Duration) -> Result<()> {
        let until = Instant::now() + span;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn measure(&mut self) -> Result<(), MeasurementFailure> {
        loop {
            match self.turn_up.next_task() {
                TurnUpTask::Run(plan) => self.measure_run(plan)?,
                TurnUpTask::Stream(direction, plan) => self.measure_stream(direction, plan),
                TurnUpTask::PathMtu(_) | TurnUpTask::BaselineRtt | TurnUpTask::Done => {
                    return Ok(());
                }
            }
        }
    }

    fn measure_run(&mut self, plan: RunPlan) -> Result<(), MeasurementFailure> {
        let text = describe_run(&plan);
        self.progress.step(self.turn_up.progress(), &text);
        match self.run(plan) {
            Ok(figures) => self.turn_up.run(figures),
            // Nothing is known yet but that it does not work.
            Err(error) if self.runs.is_empty() => return Err(MeasurementFailure(error)),
            Err(error) if is_of_window(&error) => {
                self.turn_up
                    .remark(format!("{text}: not measured: {error}"));
                self.turn_up.run([None, None]);
            }
            Err(error) => self.give_up(&text, &error),
        }
        Ok(())
    }

    fn measure_stream(&mut self, direction: TestDirection, plan: StreamPlan) {
        let text = describe_stream(direction, &plan);
        let (name, server) = (direction.name(), self.server);
        match self.stream(direction, plan) {
            Ok(Some(stream)) => {
                let no_room = stream.no_room.unwrap_or(0);
                if let Some(remark) = found_no_room(direction, plan.rate, no_room) {
                    self.progress.note(&remark);
                    self.turn_up.remark(remark);
                }
                self.turn_up.counted(stream);
            }
            Ok(None) => {
                let port = server.port();
                let of = match self.has_streamed {
                    true => format!("the server's UDP port {port} does not answer any more"),
                    false => format!(
                        "no answer arrives from UDP port {port}: a firewall on the path or at one of the \
                         hosts blocks UDP"
                    ),
                };
                let why = format!(
                    "the bottleneck rate {name} could not be measured: {server} answers over TCP, but {of}"
                );
                self.progress.note(&why);
                self.turn_up.no_stream(why);
            }
            // It will have TCP, and not this.
            Err(error) if matches!(error.downcast_ref(), Some(TestFailure::Refused { .. })) => {
                self.turn_up
                    .no_stream(format!("{text}: not measured: {error}"));
            }
            Err(error) => self.give_up(&text, &error),
        }
    }

    fn give_up(&mut self, at: &str, error: &anyhow::Error) {
        let why = format!("the test ended early ({at}): {error:#}");
        self.turn_up.give_up(why);
    }

    /// Begins one of iperf3's tests; returns its control connection and the cookie of its data connections.
    fn begin_session(&self, order: TestOrder) -> Result<(ControlConnection, [u8; COOKIE_BYTES])> {
        let cookie = ClientSession::cookie(&random::<{ COOKIE_BYTES - 1 }>()?);
        let control = ControlConnection {
            stream: self.connect_ready()?,
            session: ClientSession::new(self.clock.now(), &cookie, order),
            clock: self.clock,
        };
        Ok((control, cookie))
    }

    fn run(&mut self, plan: RunPlan) -> Result<[Option<RunFigures>; 2]> {
        let direction = match plan.connections {
            [0, _] => TestDirection::Down,
            [_, _] => TestDirection::Up,
        };
        let place = direction as usize;
        self.pause(REST)?;
        let window = plan.windows[place];
        let order = TestOrder {
            carried: TestProtocol::Tcp,
            direction,
            connections: plan.connections[place],
            // Down, the window is ours to bound, and the server's buffer must not.
            window: (direction == TestDirection::Up && window.bytes() > 0).then_some(window),
            duration: plan.duration,
            congestion_control: self.options.congestion_control.clone(),
            dscp: self.options.dscp,
        };
        let (mut control, cookie) = self.begin_session(order)?;
        control.wait_for(&SessionOutput::Open, &|| self.check())?;
        let mut transfers = RunTransfers {
            window,
            send_window: window,
            duration: plan.duration,
            ..RunTransfers::default()
        };
        let mut kept = Vec::new();
        for number in 0..plan.connections[place] {
            let stream = self.open(direction, window, &cookie)?;
            kept.push(stream.try_clone().context("sharing a connection")?);
            match direction {
                TestDirection::Up => transfers.sending.push((number, stream)),
                TestDirection::Down => transfers.receiving.push((number, stream)),
            }
        }
        let own_control = kept
            .first()
            .map(kernel::congestion_control)
            .transpose()?
            .unwrap_or_default();
        control.wait_for(&SessionOutput::Start, &|| self.check())?;
        let busy = local_limits::ProcessorUsage::begin();
        let began = Instant::now();
        // The server sends until it is told to stop, and is told only when the reading here has ended.
        let is_over = || (self.interrupted)() || began.elapsed() >= plan.duration;
        self.progress
            .step(self.turn_up.progress(), &describe_run(&plan));
        let transferred = transfers.run(&is_over);
        let own_busy = busy.permille();
        // What TCP has learned of the path by now streams would not: their packets are never cut up.
        let headers = self.turn_up.profile().tcp_headers;
        if let (RunPurpose::RoundTrip, Some(stream)) = (plan.purpose, kept.first())
            && let Ok(bytes) = system::full_packet(stream, headers)
        {
            self.turn_up.assume_mtu(bytes.min(self.interface_mtu));
        }
        let counted = count(&kept, direction, began.elapsed());
        let report = control.finish(&kept, direction, counted, &|| self.check())?;
        Ok(self.keep(plan, direction, transferred, &report, own_control, own_busy))
    }

    fn keep(
        &mut self,
        plan: RunPlan,
        direction: TestDirection,
        transferred: TransferResult,
        report: &ServerReport,
        own_control: String,
        own_busy: u16,
    ) -> [Option<RunFigures>; 2] {
        let reads: Vec<ReadProgress> = match direction {
            TestDirection::Up => Vec::new(),
            TestDirection::Down => transferred
                .received
                .iter()
                .map(|(at, bytes)| ReadProgress {
                    at: *at,
                    bytes: *bytes,
                })
                .collect(),
        };
        let again = report.streams.iter().map(|one| one.retransmitted_segments);
        let run = RawRun {
            plan,
            direction,
            seconds: match direction {
                TestDirection::Up => run::seconds(&transferred.samples),
                TestDirection::Down => run::received_seconds(&reads),
            },
            samples: transferred.samples,
            reads,
            congestion_control: match direction {
                TestDirection::Up => own_control,
                TestDirection::Down => report.congestion_control.clone(),
            },
            segments_retransmitted: match direction {
                TestDirection::Up => None,
                TestDirection::Down => again.sum(),
            },
            busy_permille: [
                own_busy,
                (report.busy_percent.unwrap_or(0.0) * 10.0).clamp(0.0, 1_000.0) as u16,
            ],
        };
        let mut figures = [None, None];
        let ideal = self.turn_up.ideal(direction);
        figures[direction as usize] = ideal.and_then(|ideal| run.figures(&ideal));
        self.runs.push(run);
        figures
    }

    fn socket(&self) -> Result<Socket> {
        let domain = Domain::for_address(self.server);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if let Some(address) = self.options.bind {
            socket
                .bind(&SocketAddr::new(address, 0).into())
                .with_context(|| format!("{address} is not an address of this host"))?;
        }
        system::mark(&socket, self.options.dscp)?;
        Ok(socket)
    }

    /// The control connection; between two tests a server may not listen for a moment.
    fn connect_ready(&self) -> Result<TcpStream> {
        let until = Instant::now() + READY_MAX;
        loop {
            self.check()?;
            let error = match self.connect_control() {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            let server = self.server;
            match error.kind() {
                ErrorKind::ConnectionRefused if self.runs.is_empty() => bail!(
                    "{server} refuses the connection: no iperf3 server listens at this port; start it with \
                     iperf3 -s, or give its port with --iperf3 PORT"
                ),
                ErrorKind::ConnectionRefused if Instant::now() >= until => bail!(
                    "{server} does not listen any more after one test; start the iperf3 server without -1"
                ),
                ErrorKind::ConnectionRefused => std::thread::sleep(LOOK_EVERY),
                ErrorKind::TimedOut | ErrorKind::WouldBlock => bail!(
                    "{server} did not answer within {} s: the host is down, or a firewall drops TCP port {}",
                    CONNECT_MAX.as_secs(),
                    server.port()
                ),
                _ => return Err(error).with_context(|| format!("{server} cannot be reached")),
            }
        }
    }

    fn connect_control(&self) -> std::io::Result<TcpStream> {
        let socket = self
            .socket()
            .map_err(|error| std::io::Error::other(format!("{error:#}")))?;
        socket.connect_timeout(&self.server.into(), CONNECT_MAX)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        Ok(stream)
    }

    fn open(
        &self,
        direction: TestDirection,
        window: ByteCount,
        cookie: &[u8; COOKIE_BYTES],
    ) -> Result<TcpStream> {
        let socket = self.socket()?;
        let known = self.turn_up.known(direction);
        if let Some(MtuOutcome::Between { passes, .. }) = known.path_mtu {
            // As between two ends: TCP would find what passes by itself in minutes or never.
            let headers = self.turn_up.profile().tcp_headers as u32;
            socket.set_tcp_mss(u32::from(passes).saturating_sub(headers))?;
        }
        match direction {
            TestDirection::Up => {
                prepare_sender(&socket, window);
                local_limits::set_congestion_control(&socket, &self.options.congestion_control)?;
            }
            TestDirection::Down => prepare_receiver(&socket, window),
        }
        socket
            .connect_timeout(&self.server.into(), CONNECT_MAX)
            .context("opening a data connection")?;
        let mut stream = TcpStream::from(socket);
        stream
            .write_all(cookie)
            .context("opening a data connection")?;
        Ok(stream)
    }
}

/// Counts of each connection, for the server's own report.
fn count(kept: &[TcpStream], direction: TestDirection, span: Duration) -> Vec<ConnectionCount> {
    kept.iter()
        .map(|stream| {
            let info = system::tcp_info(stream).unwrap_or_default();
            ConnectionCount {
                bytes: match direction {
                    TestDirection::Up => info.bytes_acknowledged,
                    TestDirection::Down => info.bytes_received,
                },
                span,
                ..ConnectionCount::default()
            }
        })
        .collect()
}

/// The control connection of one run.
struct ControlConnection {
    stream: TcpStream,
    session: ClientSession,
    clock: TesterClock,
}

impl ControlConnection {
    /// Tells whether the server has closed the connection.
    fn is_closed(&self) -> bool {
        let look = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(&self.stream).recv_with_flags(&mut byte, look) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    /// Continues until the session has this output.
    fn wait_for(&mut self, wanted: &SessionOutput, check: &dyn Fn() -> Result<()>) -> Result<()> {
        loop {
            let said = self.next(check)?;
            if said == *wanted {
                return Ok(());
            }
        }
    }

    /// Ends the data transfer on the server, and takes its report. Data that it still sends is read
    /// meanwhile, because a server that cannot write does not read.
    fn finish(
        &mut self,
        kept: &[TcpStream],
        direction: TestDirection,
        counted: Vec<ConnectionCount>,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<ServerReport> {
        self.session.end(self.clock.now(), counted);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if direction == TestDirection::Down {
                for stream in kept {
                    scope.spawn(|| discard(stream, &is_done));
                }
            }
            let report = loop {
                match self.next(check) {
                    Ok(SessionOutput::Over(report)) => break Ok(report),
                    Ok(SessionOutput::Write(_) | SessionOutput::Open | SessionOutput::Start) => {}
                    Err(error) => break Err(error),
                }
            };
            is_done.store(true, Ordering::Relaxed);
            let _ = self.stream.shutdown(Shutdown::Both);
            report
        })
    }

    /// The next thing that the session says which is not to be written.
    fn next(&mut self, check: &dyn Fn() -> Result<()>) -> Result<SessionOutput> {
        let mut bytes = [0; READ_BYTES];
        loop {
            while let Some(output) = self.session.poll_output() {
                match output {
                    SessionOutput::Write(bytes) => self
                        .stream
                        .write_all(&bytes)
                        .context("the control connection broke")?,
                    other => return Ok(other),
                }
            }
            if let Some(failure) = self.session.failure() {
                return Err(failure.clone().into());
            }
            check()?;
            self.stream.set_read_timeout(Some(LOOK_EVERY))?;
            let heard = self.stream.read(&mut bytes);
            self.take_in(heard, &bytes);
        }
    }

    /// Hands the session the bytes that the server has sent by now; the session's outputs wait.
    ///
    /// # Errors
    /// Fails when the session has ended: the server is gone, or refuses.
    fn listen(&mut self) -> Result<()> {
        let mut bytes = [0; READ_BYTES];
        self.stream.set_nonblocking(true)?;
        let heard = self.stream.read(&mut bytes);
        self.stream.set_nonblocking(false)?;
        self.take_in(heard, &bytes);
        match self.session.failure() {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(()),
        }
    }

    fn take_in(&mut self, heard: std::io::Result<usize>, bytes: &[u8]) {
        let now = self.clock.now();
        match heard {
            Ok(0) => self.session.closed(),
            Ok(count) => self.session.handle(now, &bytes[..count]),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(_) => self.session.closed(),
        }
        self.session.handle_timeout(now);
    }
}

/// Reads and forgets.
fn discard(mut stream: &TcpStream, is_done: &AtomicBool) {
    let mut bytes = vec![0; READ_BYTES];
    let _ = stream.set_read_timeout(Some(LOOK_EVERY));
    while !is_done.load(Ordering::Relaxed) {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn server_that_closes_during_greeting_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let clock = TesterClock::new();
        let order = TestOrder {
            carried: TestProtocol::Tcp,
            direction: TestDirection::Up,
            connections: 1,
            window: None,
            duration: Duration::from_secs(1),
            congestion_control: String::new(),
            dscp: 0,
        };
        let cookie = ClientSession::cookie(&[7; COOKIE_BYTES - 1]);
        let mut control = ControlConnection {
            stream,
            session: ClientSession::new(clock.now(), &cookie, order),
            clock,
        };
        // Nothing said yet is no fault, and is not waited for.
        control.listen().unwrap();
        drop(server);
        let failure = loop {
            if let Err(error) = control.listen() {
                break error;
            }
        };
        assert!(failure.to_string().contains("closed"), "{failure}");
    }
}
