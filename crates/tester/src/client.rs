//! `trunkline measure run`: the near end of a turn-up test.
//!
//! The client opens everything: the control connection, the connections of runs, and the return
//! path of UDP packets, so it may be behind NAT. When the control connection falls silent, or the
//! user interrupts, it ends the current step and reports its results so far.

mod runs;

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use measure::diagnosis::{found_no_room, interrupted};
use measure::procedure::{
    ARRIVALS_MAX, ArrivalLog, BaselineRtt, MtuOutcome, OVERLOAD_PERCENT, PROBED_MTU_MAX,
    PathMtuTest, StreamPlan, StreamRecord, UdpExchange, UdpOpening,
};
use measure::turn_up::{
    FinishedTest, RawRun, RunPlan, RunPurpose, TestProfile, TurnUp, TurnUpTask,
};
use measure::wire::{
    ControlMessage, DATAGRAM_HEADER, DatagramHeader, DatagramKind, ServerLimits, SessionKey,
    SessionRole, StreamOrder, TestDirection,
};
use vocab::{Bitrate, Time};

use super::conversation::{ALIVE_EVERY, ClientThreadState, MessageWriter, listen, speak};
use super::failure::MeasurementFailure;
use super::greeting::{CONNECT_MAX, GREETING_MAX, connect, greet, open_udp, resolve, unexpected};
use super::local_limits;
use super::options::RunOptions;
use super::plausible;
use super::streams::StreamSender;
use host::progress::ProgressReporter;
use host::tester_sockets::{self as system, IncomingDatagrams, SocketDropCounter, TesterClock};

/// Time limit for the server's part in an order, beyond the order's own duration.
const ORDER_MAX: Duration = Duration::from_secs(20);
/// Interval of the checks for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time without arrivals after which a stream whose end was announced is over.
const QUIET: Duration = Duration::from_millis(150);
/// Time for which a NAT is expected to keep an idle UDP mapping (RFC 4787 §4.3 asks for two
/// minutes; many keep half a minute).
const WAY_KEPT: Duration = Duration::from_secs(20);
/// Pause between two streams, and before each run, in which queues become empty.
const REST: Duration = Duration::from_millis(100);

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
    let mut test =
        TwoEndedTest::begin(options, profile, is_over, progress).map_err(MeasurementFailure)?;
    if let Err(error) = test.measure() {
        test.turn_up
            .give_up(format!("the test ended early: {error:#}"));
    }
    let _ = test.writer.send(&ControlMessage::Bye);
    test.line.is_over.store(true, Ordering::Relaxed);
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

/// A test under way.
pub(super) struct TwoEndedTest<'a> {
    options: &'a RunOptions,
    pub(super) turn_up: TurnUp,
    runs: Vec<RawRun>,
    pub(super) server: SocketAddr,
    pub(super) local: SocketAddr,
    /// Limits of the server.
    pub(super) limits: ServerLimits,
    pub(super) hosts: Vec<String>,
    pub(super) interface_mtu: u16,
    headers: u16,
    pub(super) session: u64,
    key: SessionKey,
    pub(super) writer: Arc<MessageWriter>,
    messages: Receiver<Result<ControlMessage>>,
    /// State shared with the threads that send keep-alives and receive messages.
    pub(super) line: Arc<ClientThreadState>,
    udp: UdpSocket,
    incoming: RefCell<IncomingDatagrams>,
    pub(super) clock: TesterClock,
    next_order: u32,
    /// Time at which UDP last worked both ways; `None` after a stream without arrivals.
    way_open: Option<Instant>,
    interrupted: &'a (dyn Fn() -> bool + Sync),
    pub(super) progress: &'a dyn ProgressReporter,
}

impl<'a> TwoEndedTest<'a> {
    pub(super) fn begin(
        options: &'a RunOptions,
        mut profile: TestProfile,
        interrupted: &'a (dyn Fn() -> bool + Sync),
        progress: &'a dyn ProgressReporter,
    ) -> Result<Self> {
        progress.step(0.0, "connecting");
        let server = resolve(options)?;
        let stream = connect(options, server)?;
        let local = stream.local_addr()?;
        let greeted = greet(options, server, stream)?;
        if let Some(least) = profile.thresholds.rate_min {
            let given = greeted.limits.rate;
            ensure!(
                profile.thresholds.are_within(given),
                "the server limits streams to {given}, which is too low to test --min-rate {least}; start \
                 the server with --max-rate {} or more",
                overload(least)
            );
        }
        let udp = open_udp(options, server, local.ip())?;
        let interface_mtu = system::route_mtu(&udp).unwrap_or(1_500);
        let mut hosts = local_limits::remarks();
        hosts
            .iter_mut()
            .for_each(|remark| remark.insert_str(0, "this host: "));
        if !greeted.remarks.is_empty() {
            hosts.push(format!("the server's host: {}", greeted.remarks));
        }
        hosts.extend(profile.cut_to(&greeted.limits));
        for remark in &hosts {
            progress.note(remark);
        }
        profile.tcp_headers = super::tcp_headers(server.ip());
        let line = Arc::new(ClientThreadState::new());
        let writer = Arc::new(greeted.writer);
        speak(writer.clone(), line.clone());
        let mut test = Self {
            options,
            turn_up: TurnUp::new(profile.clone()),
            runs: Vec::new(),
            server,
            local,
            limits: greeted.limits,
            hosts,
            interface_mtu,
            headers: super::udp_headers(server.ip()),
            session: greeted.session,
            key: greeted.key,
            messages: listen(greeted.reader, line.clone()),
            writer,
            line,
            udp,
            incoming: RefCell::new(IncomingDatagrams::new()),
            clock: TesterClock::new(),
            next_order: 1,
            way_open: None,
            interrupted,
            progress,
        };
        if !test.open_way()? {
            let port = server.port();
            let why = format!(
                "{server} answers over TCP, but no answer arrives from UDP port {port}: a firewall on the \
                 path or at one of the hosts blocks UDP; allow UDP port {port} to the server. Without UDP, \
                 the test cannot measure path MTU, baseline RTT and bottleneck rate"
            );
            progress.note(&why);
            test.turn_up = TurnUp::of_tcp_alone(profile, why);
        }
        Ok(test)
    }

    /// Adds a remark about the two hosts for the user.
    pub(super) fn note(&mut self, remark: Option<String>) {
        if let Some(remark) = remark {
            self.progress.note(&remark);
            self.hosts.push(remark);
        }
    }

    fn measure(&mut self) -> Result<()> {
        loop {
            let done = self.turn_up.progress();
            match self.turn_up.next_task() {
                TurnUpTask::Done => return Ok(()),
                TurnUpTask::PathMtu(direction) => {
                    self.progress
                        .step(done, &format!("path MTU {}", direction.name()));
                    let found = self.path_mtu(direction)?;
                    self.turn_up.path_mtu(found);
                }
                TurnUpTask::BaselineRtt => {
                    self.progress.step(done, "baseline RTT");
                    let now = self.clock.now();
                    let mut probing = BaselineRtt::new(now, self.session, now.as_nanos());
                    self.exchange(&mut probing)?;
                    let found = probing
                        .outcome(self.clock.now())
                        .context("the probing of the round-trip time is over")?;
                    self.turn_up.baseline_rtt(found);
                }
                TurnUpTask::Stream(direction, plan) => {
                    self.progress.step(done, &describe_stream(direction, &plan));
                    let mut rest = REST;
                    if self.turn_up.is_overloading() {
                        rest += self.options.rest;
                    }
                    self.pause(rest)?;
                    let duration = plan.duration.min(self.limits.order);
                    let record = self.stream(direction, StreamPlan { duration, ..plan })?;
                    let remarks = [
                        found_no_room(direction, plan.rate, record.no_room),
                        interrupted(direction, &record),
                    ];
                    for remark in remarks.into_iter().flatten() {
                        self.progress.note(&remark);
                        self.turn_up.remark(remark);
                    }
                    self.turn_up.stream(record);
                }
                TurnUpTask::Run(plan) => {
                    self.progress.step(done, &describe(&plan));
                    self.pause(REST)?;
                    let figures = self.tcp_run(plan)?;
                    self.turn_up.run(figures);
                }
            }
        }
    }

    /// Checks that the test may continue.
    fn check(&self) -> Result<()> {
        ensure!(!(self.interrupted)(), "it was interrupted");
        if !self.line.is_over.load(Ordering::Acquire) {
            return Ok(());
        }
        // How the connection broke is the last thing that was heard; why is what the server said before.
        while let Ok(heard) = self.messages.try_recv() {
            if let ControlMessage::Refused { text, .. } | ControlMessage::Failed { text, .. } =
                heard?
            {
                bail!("the server says: {text}");
            }
        }
        self.line.check()
    }

    pub(super) fn pause(&self, span: Duration) -> Result<()> {
        let until = Instant::now() + span;
        while Instant::now() < until {
            self.check()?;
            std::thread::sleep(LOOK_EVERY.min(span));
        }
        Ok(())
    }

    /// The next message that the server says about an order.
    fn answer(&self, wait: Duration) -> Result<ControlMessage> {
        let until = Instant::now() + wait;
        loop {
            self.check()?;
            match self.messages.recv_timeout(LOOK_EVERY) {
                Ok(Ok(ControlMessage::Alive)) => {}
                Ok(Ok(ControlMessage::Failed { text, .. })) => bail!("the server says: {text}"),
                Ok(Ok(ControlMessage::Refused { text, .. })) => bail!("the server says: {text}"),
                Ok(message) => return message,
                Err(RecvTimeoutError::Timeout) => {
                    ensure!(
                        Instant::now() < until,
                        "the server did not answer in {} s",
                        wait.as_secs()
                    );
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.check()?;
                    bail!("the control connection has ended")
                }
            }
        }
    }

    fn ready(&self, order: u32) -> Result<()> {
        match self.answer(ORDER_MAX)? {
            ControlMessage::Ready { order: ready } if ready == order => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends and receives the datagrams of a step, until it is over.
    pub(super) fn exchange(&self, step: &mut impl UdpExchange) -> Result<()> {
        let mut bytes = Vec::new();
        loop {
            let now = self.clock.now();
            if step.poll_timeout().is_some_and(|due| due <= now) {
                step.handle_timeout(now);
            }
            while let Some(outgoing) = step.poll_transmit(self.clock.now()) {
                let head = outgoing.datagram;
                head.emit(&self.key, SessionRole::Client, outgoing.length, &mut bytes);
                match self.udp.send(&bytes) {
                    Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                        step.refused(self.clock.now(), outgoing.length);
                    }
                    // Lost like any other.
                    _ => {}
                }
            }
            if step.is_over(self.clock.now()) {
                return Ok(());
            }
            self.check()?;
            let now = self.clock.now();
            let wait = step.poll_timeout().map_or(LOOK_EVERY, |due| due.since(now));
            self.receive(wait, |arrived, datagram, length| {
                step.handle(arrived, datagram, length);
            })?;
        }
    }

    /// Takes in datagrams that have arrived, or arrive within `wait`.
    fn receive(
        &self,
        wait: Duration,
        mut each: impl FnMut(Time, &DatagramHeader, usize),
    ) -> Result<usize> {
        // Zero would be for ever.
        let wait = wait.clamp(Duration::from_micros(200), LOOK_EVERY);
        self.udp.set_read_timeout(Some(wait))?;
        let received =
            self.incoming
                .borrow_mut()
                .receive(&self.udp, self.clock, |arrived, _, bytes| {
                    if let Ok(datagram) =
                        DatagramHeader::parse(bytes, &self.key, SessionRole::Server)
                        && datagram.session == self.session
                    {
                        each(arrived, &datagram, bytes.len());
                    }
                });
        received.context("receiving over UDP")
    }

    /// Shows the server where we are over UDP; whether it has answered. A NAT on the way forgets it after a
    /// while, or has another port for us from some moment on.
    fn open_way(&mut self) -> Result<bool> {
        let mut opening = UdpOpening::new(self.clock.now(), self.session);
        self.exchange(&mut opening)?;
        let is_open = opening.is_open();
        self.way_open = is_open.then(Instant::now);
        Ok(is_open)
    }

    fn path_mtu(&self, direction: TestDirection) -> Result<MtuOutcome> {
        let mut test = PathMtuTest::new(
            self.clock.now(),
            direction,
            self.session,
            self.interface_mtu.min(PROBED_MTU_MAX),
            self.headers,
            PATH_MTU_ROUND_TRIP,
        );
        self.exchange(&mut test)?;
        test.outcome()
            .context("the search for the path MTU is over")
    }

    fn number_order(&mut self) -> u32 {
        let order = self.next_order;
        self.next_order += 1;
        order
    }

    pub(super) fn stream(
        &mut self,
        direction: TestDirection,
        plan: StreamPlan,
    ) -> Result<StreamRecord> {
        if self.way_open.is_none_or(|at| at.elapsed() >= WAY_KEPT) {
            self.open_way()?;
        }
        let order = self.number_order();
        let no_room = SocketDropCounter::begin(&self.udp);
        self.writer.send(&ControlMessage::Stream(StreamOrder {
            order,
            direction,
            rate: plan.rate,
            duration: plan.duration,
            payload_bytes: plan.ip_bytes.saturating_sub(self.headers),
        }))?;
        self.ready(order)?;
        self.line.is_streaming.store(true, Ordering::Relaxed);
        let streamed = match direction {
            TestDirection::Up => self.stream_up(order, plan),
            TestDirection::Down => self.stream_down(order, plan, no_room),
        };
        self.line.is_streaming.store(false, Ordering::Relaxed);
        let record = streamed?;
        self.way_open = (!record.arrivals.is_empty()).then(Instant::now);
        Ok(record)
    }

    fn stream_up(&self, order: u32, plan: StreamPlan) -> Result<StreamRecord> {
        let sender = StreamSender {
            socket: &self.udp,
            to: None,
            role: SessionRole::Client,
            key: &self.key,
            session: self.session,
            order,
        };
        let is_sent = AtomicBool::new(false);
        let mut left_ns = Vec::new();
        let (udp, key, session, clock, line) =
            (&self.udp, &self.key, self.session, self.clock, &self.line);
        udp.set_read_timeout(Some(LOOK_EVERY))?;
        let datagrams = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut incoming = IncomingDatagrams::new();
                while !is_sent.load(Ordering::Relaxed) {
                    let received = incoming.receive(udp, clock, |_, _, bytes| {
                        if DatagramHeader::parse(bytes, key, SessionRole::Server)
                            .is_ok_and(|datagram| datagram.session == session)
                        {
                            line.heard.note_activity();
                        }
                    });
                    if received.is_err() {
                        std::thread::sleep(LOOK_EVERY);
                    }
                }
            });
            // Not by `check`: what the server said last is for whoever reports it.
            let is_over = || line.is_over.load(Ordering::Relaxed) || (self.interrupted)();
            let mut note = |stamp| {
                if left_ns.len() < ARRIVALS_MAX {
                    left_ns.push(stamp);
                }
            };
            let sent = sender.send(plan, self.headers, clock, &is_over, &mut note);
            is_sent.store(true, Ordering::Relaxed);
            sent
        })
        .context("sending the stream")?;
        self.line.is_streaming.store(false, Ordering::Relaxed);
        self.check()?;
        self.writer
            .send(&ControlMessage::StreamSent { order, datagrams })?;
        let (mut arrivals, mut no_room) = (Vec::new(), None);
        loop {
            match self.answer(ORDER_MAX)? {
                ControlMessage::Arrivals {
                    order: of,
                    arrivals: some,
                } if of == order => {
                    if some.is_empty() {
                        return Ok(StreamRecord {
                            plan,
                            sent: datagrams,
                            no_room: plausible::no_room(
                                datagrams,
                                arrivals.len(),
                                no_room.unwrap_or(0),
                            )?,
                            arrivals,
                            left_ns,
                        });
                    }
                    plausible::arrivals(plan, arrivals.len(), &some)?;
                    arrivals.extend(some);
                }
                ControlMessage::NoRoom {
                    order: of,
                    datagrams,
                } if of == order && no_room.is_none() => no_room = Some(datagrams),
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn stream_down(
        &self,
        order: u32,
        plan: StreamPlan,
        no_room: SocketDropCounter,
    ) -> Result<StreamRecord> {
        let mut log = ArrivalLog::new(self.clock.now());
        let until = Instant::now() + plan.duration + ORDER_MAX;
        let mut last = Instant::now();
        let mut said = Instant::now();
        let mut sent = None;
        loop {
            if said.elapsed() >= ALIVE_EVERY {
                said = Instant::now();
                self.send_keep_alive(order);
            }
            let before = log.len();
            self.receive(LOOK_EVERY, |arrived, datagram, _| {
                if datagram.kind == DatagramKind::Data && datagram.order == order {
                    log.arrived(arrived, datagram.number, datagram.stamp);
                }
            })?;
            if log.len() > before {
                last = Instant::now();
                self.line.heard.note_activity();
            }
            if sent.is_none() {
                let said = self.stream_end(order)?;
                sent = said
                    .map(|datagrams| plausible::sent(plan, datagrams))
                    .transpose()?;
                let is_streaming = sent.is_none();
                self.line
                    .is_streaming
                    .store(is_streaming, Ordering::Relaxed);
            }
            if let Some(sent) = sent
                && last.elapsed() >= QUIET
            {
                let arrivals = log.into_arrivals();
                // What a path brings twice finds no room either.
                let missing = sent.saturating_sub(arrivals.len() as u64);
                return Ok(StreamRecord {
                    plan,
                    sent,
                    no_room: no_room.until_now(&self.udp).min(missing),
                    arrivals,
                    left_ns: Vec::new(),
                });
            }
            self.check()?;
            ensure!(
                Instant::now() < until,
                "a stream of {} s did not end",
                plan.duration.as_secs()
            );
        }
    }

    /// Sends an empty packet against the direction of a stream as a keep-alive; it is not answered.
    fn send_keep_alive(&self, order: u32) {
        let head = DatagramHeader {
            kind: DatagramKind::Data,
            session: self.session,
            order,
            number: 0,
            stamp: 0,
            extra: 0,
        };
        let mut bytes = Vec::new();
        head.emit(&self.key, SessionRole::Client, DATAGRAM_HEADER, &mut bytes);
        // Lost like any other.
        let _ = self.udp.send(&bytes);
    }

    /// Number of datagrams that the server sent, once it has reported it.
    fn stream_end(&self, order: u32) -> Result<Option<u64>> {
        loop {
            match self.messages.try_recv() {
                Ok(Ok(ControlMessage::Alive)) => {}
                Ok(Ok(ControlMessage::StreamSent {
                    order: of,
                    datagrams,
                })) if of == order => return Ok(Some(datagrams)),
                Ok(Ok(
                    ControlMessage::Failed { text, .. } | ControlMessage::Refused { text, .. },
                )) => {
                    bail!("the server says: {text}")
                }
                Ok(Ok(other)) => return Err(unexpected(&other)),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Ok(None),
            }
        }
    }
}

/// Load that must be offered to distinguish a rate from higher ones.
fn overload(rate: Bitrate) -> Bitrate {
    let bits = u128::from(rate.bits_per_second()) * u128::from(OVERLOAD_PERCENT) / 100;
    Bitrate::from_bits_per_second(u64::try_from(bits).unwrap_or(u64::MAX))
}

/// Probes for the path MTU go out before the round-trip time is known; longer paths take longer.
const PATH_MTU_ROUND_TRIP: Duration = Duration::from_millis(400);

/// Short description of a stream, for the progress display.
pub(super) fn describe_stream(direction: TestDirection, plan: &StreamPlan) -> String {
    format!("rate {}: a stream of {}", direction.name(), plan.rate)
}

/// Short description of a run, for the progress display.
pub(super) fn describe(plan: &RunPlan) -> String {
    let [up, down] = plan.connections;
    let window = plan.windows[usize::from(up == 0)];
    let way = match (up, down) {
        (0, _) => "down",
        (_, 0) => "up",
        _ => return "both directions together".to_owned(),
    };
    match plan.purpose {
        RunPurpose::Walk(percent) => format!("window walk {way}: {percent} %, {window}"),
        RunPurpose::Listed => format!("window {window} {way}"),
        RunPurpose::RoundTrip => "least RTT of TCP".to_owned(),
        RunPurpose::Open => format!("TCP {way}, with the hosts' own windows"),
        RunPurpose::Many | RunPurpose::Together => {
            format!("{} connections {way}, {window} each", up.max(down))
        }
    }
}
