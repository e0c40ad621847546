//! One connection's input and output: a task that does what the engine says and no more.
//!
//! ```text
//!   host ──► read, while there is read credit ──► Received, Finished, Aborted ──► engine
//!   host ◄── queue (what the engine wrote and was not told of as Written) ◄── Command ◄──
//! ```
//!
//! The queue has no limit of its own: the engine counts what it has written and what was taken,
//! and stops at its own limits. A reset is seen even while there is no read credit.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Buf, Bytes};
use engine::{ConnectFailure, ConnectionId, Input};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::mailbox::{LoopEnded, Mailbox};

/// Bytes read at once; larger reads gain nothing measurable and hold up other connections.
const READ_BYTES: usize = 64 * 1024;
/// Pieces written by one system call.
const WRITE_PIECES: usize = 16;
/// Probing of idle hosts begins after this and gives up about a minute later, so that a client
/// that lost power does not keep its flow for ever.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

thread_local! {
    /// Reads go here and are copied out in their true size, so that an idle connection holds no
    /// buffer and a short read does not pin a long one.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// What the engine wants of a connection; see the [`engine::Output`]s of the same names.
#[derive(Debug)]
pub(crate) enum Command {
    /// To a client that asked: see [`super::Asked`].
    Admit,
    Decline(ConnectFailure),
    Write(Bytes),
    FinishWrite,
    Reset,
    Close,
    ReadCredit(usize),
}

/// How far our direction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Open,
    /// A FIN goes out after the queue.
    Finishing,
    /// A FIN has gone out.
    Finished,
    /// The socket is closed after the queue.
    Closing,
}

/// How the task ends.
enum End {
    /// In good order, or because the engine is gone.
    Quiet,
    /// By the engine's reset.
    Reset,
    /// By the host's reset or an error.
    Aborted,
}

impl From<LoopEnded> for End {
    fn from(_: LoopEnded) -> Self {
        // The node is going away; what is open is reset, never ended as if it were whole.
        Self::Reset
    }
}

struct Connection {
    id: ConnectionId,
    stream: TcpStream,
    mailbox: Mailbox,
    queue: VecDeque<Bytes>,
    credit: usize,
    /// Read before the connection was announced; handed on as credit allows.
    early: Bytes,
    reading: bool,
    sending: Sending,
}

/// Serves a connection until it ends. `early` is what was read of it already.
pub(crate) async fn serve(
    id: ConnectionId,
    stream: TcpStream,
    early: Bytes,
    commands: mpsc::UnboundedReceiver<Command>,
    mailbox: Mailbox,
) {
    prepare(&stream);
    let mut connection = Connection {
        id,
        stream,
        mailbox,
        queue: VecDeque::new(),
        credit: 0,
        early,
        reading: true,
        sending: Sending::Open,
    };
    match connection.run(commands).await {
        End::Quiet => {
            let _ = SockRef::from(&connection.stream).set_linger(None);
        }
        End::Reset => reset(connection.stream),
        End::Aborted => {
            let _ = connection
                .mailbox
                .input(Input::Aborted { connection: id })
                .await;
            reset(connection.stream);
        }
    }
}

/// Closes with a RST instead of a FIN.
pub(crate) fn reset(stream: TcpStream) {
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}

fn prepare(stream: &TcpStream) {
    // Each of these only makes the connection better; a system that lacks one is no failure.
    let _ = stream.set_nodelay(true);
    // Until a direction has ended in good order, a close is a reset: when this process dies, the
    // kernel closes its sockets, and half a file must not look like a whole one.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

impl Connection {
    async fn run(&mut self, mut commands: mpsc::UnboundedReceiver<Command>) -> End {
        loop {
            if self.queue.is_empty() {
                match self.sending {
                    Sending::Finishing => {
                        if SockRef::from(&self.stream)
                            .shutdown(std::net::Shutdown::Write)
                            .is_err()
                        {
                            return End::Aborted;
                        }
                        let _ = SockRef::from(&self.stream).set_linger(None);
                        self.sending = Sending::Finished;
                    }
                    Sending::Closing => return End::Quiet,
                    Sending::Open | Sending::Finished => {}
                }
            }
            if self.credit > 0 && !self.early.is_empty() {
                if let Err(end) = self.hand_on_early().await {
                    return end;
                }
                continue;
            }
            tokio::select! {
                biased;
                command = commands.recv() => {
                    if let Err(end) = self.obey(command) {
                        return end;
                    }
                }
                ready = self.stream.ready(self.interest()) => {
                    let Ok(ready) = ready else { return End::Aborted };
                    if ready.is_error() {
                        return End::Aborted;
                    }
                    let done = self.advance(ready).await;
                    if let Err(end) = done {
                        return end;
                    }
                }
            }
        }
    }

    fn interest(&self) -> Interest {
        let mut interest = Interest::ERROR;
        if self.reading && self.credit > 0 {
            interest |= Interest::READABLE;
        }
        if !self.queue.is_empty() {
            interest |= Interest::WRITABLE;
        }
        interest
    }

    fn obey(&mut self, command: Option<Command>) -> Result<(), End> {
        match command {
            Some(Command::Write(bytes)) => self.queue.push_back(bytes),
            Some(Command::ReadCredit(bytes)) => self.credit += bytes,
            Some(Command::FinishWrite) if self.sending == Sending::Open => {
                self.sending = Sending::Finishing;
            }
            Some(Command::FinishWrite | Command::Admit) => {}
            Some(Command::Close) => self.sending = Sending::Closing,
            Some(Command::Reset | Command::Decline(_)) | None => return Err(End::Reset),
        }
        Ok(())
    }

    async fn advance(&mut self, ready: tokio::io::Ready) -> Result<(), End> {
        if ready.is_writable() && !self.queue.is_empty() {
            self.write().await?;
        }
        if ready.is_readable() && self.reading && self.credit > 0 {
            self.read().await?;
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), End> {
        let written = {
            let pieces: Vec<IoSlice<'_>> = self
                .queue
                .iter()
                .take(WRITE_PIECES)
                .map(|bytes| IoSlice::new(bytes))
                .collect();
            self.stream.try_write_vectored(&pieces)
        };
        let bytes = match written {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return Err(End::Aborted),
        };
        self.take_from_queue(bytes);
        let connection = self.id;
        // After a close the engine has forgotten the connection and wants no more counts.
        if self.sending != Sending::Closing {
            self.mailbox
                .input(Input::Written { connection, bytes })
                .await?;
        }
        Ok(())
    }

    fn take_from_queue(&mut self, mut bytes: usize) {
        while let Some(front) = self.queue.front_mut() {
            if front.len() > bytes {
                front.advance(bytes);
                return;
            }
            bytes -= front.len();
            self.queue.pop_front();
        }
    }

    async fn hand_on_early(&mut self) -> Result<(), End> {
        let bytes = self.early.split_to(self.early.len().min(self.credit));
        self.credit -= bytes.len();
        let connection = self.id;
        self.mailbox
            .input(Input::Received { connection, bytes })
            .await?;
        Ok(())
    }

    async fn read(&mut self) -> Result<(), End> {
        let wanted = self.credit.min(READ_BYTES);
        let read = SCRATCH.with_borrow_mut(|scratch| {
            let read = self.stream.try_read(&mut scratch[..wanted])?;
            Ok::<_, io::Error>(Bytes::copy_from_slice(&scratch[..read]))
        });
        let connection = self.id;
        match read {
            Ok(bytes) if bytes.is_empty() => {
                self.reading = false;
                self.mailbox.input(Input::Finished { connection }).await?;
            }
            Ok(bytes) => {
                self.credit -= bytes.len();
                self.mailbox
                    .input(Input::Received { connection, bytes })
                    .await?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(End::Aborted),
        }
        Ok(())
    }
}
