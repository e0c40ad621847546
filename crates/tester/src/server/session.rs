//! Thread of one client's test: it joins [`ServerConversation`] to the sockets.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;

use anyhow::{Context, Result};
use host::packets::system::wait_readable;
use host::tester_sockets::{self as system, IncomingDatagrams, SocketDropCounter, TesterClock};
use measure::session::{
    AuthenticatedClient, SentDatagrams, ServerConversation, ServerOutput, ServerSettings,
};
use measure::wire::{JoinMessage, RunOrder, SessionNonce, TestDirection};

use super::super::conversation::{MessageWriter, broken, read_control};
use super::super::events::{EventReceiver, EventSender};
use super::super::local_limits::{self, ProcessorUsage};
use super::super::streams::send_stream;
use super::super::transfers::{
    RunTransfers, TransferResult, prepare_receiver, prepare_sender, scaled,
};
use super::{LOOK_EVERY, ServerEvent, ServerState};

/// A window clamp that bounds nothing.
const NO_CLAMP: u64 = i32::MAX as u64;

/// Event that another thread reports to a session.
pub(super) enum SessionEvent {
    /// A connection of a run was greeted.
    Joined(JoiningConnection),
    StreamSent(Result<SentDatagrams, String>),
    /// Result of a transfer, and this host's load in thousandths.
    Transferred(TransferResult, u16),
}

/// Connection of a run with its greeting.
pub(super) struct JoiningConnection {
    pub(super) joining: JoinMessage,
    pub(super) nonce: SessionNonce,
    pub(super) stream: TcpStream,
    pub(super) from: SocketAddr,
}

/// Sockets and events of a session.
pub(super) struct SessionThread<'a> {
    pub(super) state: &'a ServerState<'a>,
    pub(super) control: &'a TcpStream,
    pub(super) writer: &'a MessageWriter,
    pub(super) sender: EventSender<SessionEvent>,
    pub(super) receiver: EventReceiver<SessionEvent>,
}

impl SessionThread<'_> {
    /// Serves a client until the session ends.
    pub(super) fn serve(self, id: u64, secret: u64, client: AuthenticatedClient) -> Result<()> {
        let server = self.state.server;
        // Answers to probes as well as streams; the test before this one had another mark.
        system::mark(&server.udp, client.dscp)?;
        self.writer.mark(client.dscp)?;
        // Messages are read when there are some, and never waited for.
        self.control.set_read_timeout(Some(LOOK_EVERY))?;
        let mut shell = SessionShell::new(&self, id, secret, client);
        let served = std::thread::scope(|scope| {
            let mut incoming = IncomingDatagrams::new();
            shell.carry_out(scope);
            let mut served = Ok(());
            while served.is_ok() && shell.conversation.ended().is_none() {
                served = shell.wait(&mut incoming);
                shell.carry_out(scope);
            }
            shell.work.store(true, Ordering::Relaxed);
            served
        });
        match shell.conversation.ended() {
            Some(Err(error)) => Err(error.clone().into()),
            Some(Ok(())) | None => served,
        }
    }
}

/// Machine of a session with its sockets and threads.
struct SessionShell<'a> {
    conversation: ServerConversation,
    clock: TesterClock,
    thread: &'a SessionThread<'a>,
    /// Ends the thread that is under way.
    work: Arc<AtomicBool>,
    drops: Option<SocketDropCounter>,
    /// Connections of a run that have come.
    connections: Vec<(u16, TcpStream)>,
    /// Connections of a run that are prepared.
    transfers: Option<RunTransfers>,
}

impl<'a> SessionShell<'a> {
    fn new(
        thread: &'a SessionThread<'a>,
        id: u64,
        secret: u64,
        client: AuthenticatedClient,
    ) -> Self {
        let clock = TesterClock::new();
        let settings = ServerSettings {
            session: id,
            secret,
            limits: thread.state.server.limits,
            remarks: local_limits::remarks().join("; "),
        };
        Self {
            conversation: ServerConversation::new(clock.now(), client, settings),
            clock,
            thread,
            work: Arc::new(AtomicBool::new(false)),
            drops: None,
            connections: Vec::new(),
            transfers: None,
        }
    }

    /// Waits for the next input or the next timer, and hands it to the machine.
    fn wait(&mut self, incoming: &mut IncomingDatagrams) -> Result<()> {
        let (thread, clock) = (self.thread, self.clock);
        let udp = &thread.state.server.udp;
        let now = clock.now();
        let due = self.conversation.poll_timeout();
        let wait = due.map_or(LOOK_EVERY, |due| due.since(now).min(LOOK_EVERY));
        let files = [thread.control.as_fd(), udp.as_fd(), thread.receiver.as_fd()];
        let [has_control, has_datagrams, has_events] =
            wait_readable(files, Some(wait)).context("waiting for the sockets")?;
        if has_datagrams {
            let conversation = &mut self.conversation;
            let received = incoming.receive(udp, clock, |arrived, from, bytes| {
                conversation.handle_datagram(clock.now(), arrived, from, bytes);
            });
            received.context("receiving over UDP")?;
        }
        if has_control {
            match read_control(thread.control) {
                Ok(bytes) => self.conversation.handle_control(clock.now(), &bytes),
                Err(how) => self.conversation.control_lost(how),
            }
        }
        if has_events {
            thread.receiver.clear();
            while let Some(event) = thread.receiver.poll() {
                self.handle_event(event);
            }
        }
        if thread.state.stop.load(Ordering::Relaxed) {
            self.conversation.stop();
        }
        let now = clock.now();
        if self
            .conversation
            .poll_timeout()
            .is_some_and(|due| due <= now)
        {
            self.conversation.handle_timeout(now);
        }
        Ok(())
    }

    fn handle_event(&mut self, event: SessionEvent) {
        let now = self.clock.now();
        match event {
            SessionEvent::Joined(connection) => {
                let JoiningConnection {
                    joining,
                    nonce,
                    stream,
                    from,
                } = connection;
                match self.conversation.join(now, &joining, &nonce) {
                    Ok(true) => self.connections.push((joining.connection, stream)),
                    Ok(false) => {}
                    Err(error) => {
                        let tell = self.thread.state.tell;
                        tell(ServerEvent::Refused(from, error.to_string()));
                    }
                }
            }
            SessionEvent::StreamSent(sent) => self.conversation.stream_sent(sent),
            SessionEvent::Transferred(result, busy) => {
                self.conversation.transferred(&result.samples, busy);
            }
        }
    }

    /// Carries out the machine's outputs.
    fn carry_out<'scope>(&mut self, scope: &'scope Scope<'scope, '_>)
    where
        'a: 'scope,
    {
        let (thread, clock) = (self.thread, self.clock);
        let server = thread.state.server;
        while let Some(output) = self.conversation.poll_output() {
            match output {
                ServerOutput::Control(bytes) => {
                    if let Err(error) = thread.writer.send_bytes(&bytes) {
                        self.conversation.control_lost(broken(&error));
                    }
                }
                ServerOutput::Datagram(to, bytes) => {
                    // A size that this host cannot send is one that does not pass.
                    let _ = server.udp.send_to(&bytes, to);
                }
                ServerOutput::SendStream(to, stream) => {
                    let (stop, sender) = (self.begin_work(), thread.sender.clone());
                    scope.spawn(move || {
                        let is_over = || stop.load(Ordering::Relaxed);
                        let sent = send_stream(&server.udp, Some(to), stream, clock, &is_over);
                        sender.send(SessionEvent::StreamSent(sent))
                    });
                }
                ServerOutput::BeginDropCount => {
                    self.drops = Some(SocketDropCounter::begin(&server.udp));
                }
                ServerOutput::EndDropCount => {
                    let counter = self.drops.take();
                    let dropped = counter.map_or(0, |counter| counter.until_now(&server.udp));
                    self.conversation.drops_counted(dropped);
                }
                ServerOutput::BoundWindow(window) => {
                    let bound = window.map_or(NO_CLAMP, scaled);
                    if let Err(error) = system::clamp_window(&server.listener, bound) {
                        self.conversation.window_not_bounded(error.to_string());
                    }
                }
                ServerOutput::Prepare(order) => {
                    let connections = std::mem::take(&mut self.connections);
                    let prepared = prepare(&order, connections)
                        .map_err(|error| format!("{error:#}"))
                        .and_then(|transfers| {
                            let control = transfers.congestion_control();
                            self.transfers = Some(transfers);
                            control
                        });
                    self.conversation.prepared(prepared);
                }
                ServerOutput::Transfer(_) => {
                    let Some(transfers) = self.transfers.take() else {
                        continue;
                    };
                    let (stop, sender) = (self.begin_work(), thread.sender.clone());
                    scope.spawn(move || {
                        let busy = ProcessorUsage::begin();
                        let result = transfers.run(&|| stop.load(Ordering::Relaxed));
                        sender.send(SessionEvent::Transferred(result, busy.permille()))
                    });
                }
                ServerOutput::Abandon => {
                    self.work.store(true, Ordering::Relaxed);
                    self.connections.clear();
                    self.transfers = None;
                }
            }
        }
    }

    /// A flag that ends the thread which begins now.
    fn begin_work(&mut self) -> Arc<AtomicBool> {
        self.work = Arc::new(AtomicBool::new(false));
        self.work.clone()
    }
}

/// Prepares the connections of a run for its windows.
fn prepare(order: &RunOrder, connections: Vec<(u16, TcpStream)>) -> Result<RunTransfers> {
    let up = order.connections[TestDirection::Up as usize];
    let (receiving, sending): (Vec<_>, Vec<_>) = connections
        .into_iter()
        .partition(|(number, _)| *number < up);
    let [window, other] = order.windows;
    for (_, stream) in &receiving {
        prepare_receiver(stream, window);
    }
    for (_, stream) in &sending {
        prepare_sender(stream, other);
        local_limits::set_congestion_control(stream, &order.congestion_control)?;
    }
    Ok(RunTransfers {
        sending,
        receiving,
        window,
        send_window: other,
        duration: order.duration,
    })
}

#[cfg(test)]
mod tests;
