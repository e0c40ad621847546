//! One connection's input and output: a task that only carries out the engine's commands.
//!
//! ```text
//!   host ──► read, while there is read credit ──► Received, Finished, Aborted ──► engine
//!   host ◄── queue (what the engine wrote and was not told of as Written) ◄── Command ◄──
//! ```
//!
//! The queue has no limit of its own: the engine counts the bytes that it has written and those
//! that were taken, and stops at its own limits. A reset is seen even while there is no read
//! credit.
//!
//! A reset, or a failed write, ends only the writing side. Linux keeps the data that arrived before
//! a RST in the receive queue (`tcp_reset`), and it is read before the end is reported. In the
//! other direction the RST waits until the host has acknowledged everything, because a close with a
//! linger time of zero drops the content of the send queue.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::time::Duration;

use bytes::{Buf, Bytes};
use engine::{ConnectFailure, ConnectionId, EngineInput};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::connect::{ReportedFailure, reset};
use crate::mailbox::{LoopEnded, LoopMailbox};
use crate::sys;

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

/// The first pause before the send queue is checked again ahead of a reset: the kernel reports
/// room, but not the last acknowledgement. The pause starts at the round trip of a LAN and doubles
/// up to a delay that no person notices.
const FIRST_LOOK_AFTER: Duration = Duration::from_micros(500);
const LOOK_AFTER_MOST: Duration = Duration::from_millis(100);

/// Time that a connection which the engine has closed waits without progress for a host that does not read the
/// rest: as long as Linux keeps a connection that its program has closed (tcp_fin_timeout, 60 s).
const CLOSE_STALL_LIMIT: Duration = Duration::from_secs(60);

/// The engine's commands to a connection; see the [`engine::EngineOutput`]s of the same names.
#[derive(Debug)]
pub(crate) enum ConnectionCommand {
    /// To a waiting client: see [`super::WaitingClient`].
    Admit,
    Decline(ConnectFailure),
    Write(Bytes),
    FinishWrite,
    Reset,
    ResetWhenDelivered,
    Close,
    ReadCredit(usize),
}

/// The progress of our direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    Open,
    /// A FIN goes out after the queue.
    Finishing,
    /// A FIN has gone out.
    Finished,
    /// The socket is closed after the queue.
    Closing,
    /// The connection is reset once the host has acknowledged the queue. `unacknowledged` is the
    /// number of bytes that the operating system last held for the host.
    Resetting {
        unacknowledged: u32,
    },
}

/// The progress of the host's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveState {
    Open,
    /// A FIN was read.
    Finished,
    /// The connection has failed; data that had arrived is still read. `how` is the error that the
    /// operating system has reported.
    Rest {
        how: Option<ReportedFailure>,
    },
}

/// The end of the task.
enum ConnectionEnd {
    /// In good order, or because the engine is gone.
    Quiet,
    /// By the engine's reset.
    Reset,
    /// By the host's reset or an error, with nothing left to read, or by a reset that the engine waits for.
    Aborted,
}

impl From<LoopEnded> for ConnectionEnd {
    fn from(_: LoopEnded) -> Self {
        // The node is going away; what is open is reset, never ended as if it were whole.
        Self::Reset
    }
}

struct HostConnection {
    id: ConnectionId,
    stream: TcpStream,
    mailbox: LoopMailbox,
    queue: VecDeque<Bytes>,
    credit: usize,
    /// Read before the connection was announced; handed on as credit allows.
    early: Bytes,
    receiving: ReceiveState,
    sending: SendState,
    /// The pause before the next check of the send queue.
    look_after: Duration,
}

/// Serves a connection until it ends. `early` is the data that was already read; `failed` its
/// failure since.
pub(crate) async fn serve(
    id: ConnectionId,
    stream: TcpStream,
    early: Bytes,
    failed: Option<ReportedFailure>,
    commands: mpsc::UnboundedReceiver<ConnectionCommand>,
    mailbox: LoopMailbox,
) {
    prepare(&stream);
    let mut connection = HostConnection {
        id,
        stream,
        mailbox,
        queue: VecDeque::new(),
        credit: 0,
        early,
        receiving: ReceiveState::Open,
        sending: SendState::Open,
        look_after: FIRST_LOOK_AFTER,
    };
    match connection.run(failed, commands).await {
        ConnectionEnd::Quiet => {
            let _ = SockRef::from(&connection.stream).set_linger(None);
        }
        ConnectionEnd::Reset => reset(connection.stream),
        ConnectionEnd::Aborted => {
            let _ = connection
                .mailbox
                .input(EngineInput::Aborted { connection: id })
                .await;
            reset(connection.stream);
        }
    }
}

fn prepare(stream: &TcpStream) {
    // Each of these only makes the connection better; a system that lacks one is no failure.
    // An urgent byte is read in its place: without this, a read would skip it (tcp(7)).
    let _ = SockRef::from(stream).set_out_of_band_inline(true);
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

impl HostConnection {
    async fn run(
        &mut self,
        failed: Option<ReportedFailure>,
        mut commands: mpsc::UnboundedReceiver<ConnectionCommand>,
    ) -> ConnectionEnd {
        if failed.is_some()
            && let Err(end) = self.failed(failed).await
        {
            return end;
        }
        loop {
            let step = match self.finish_sending().await {
                Ok(()) => self.step(&mut commands).await,
                ended => ended,
            };
            if let Err(end) = step {
                return end;
            }
        }
    }

    /// Performs the action after the last byte of the queue.
    async fn finish_sending(&mut self) -> Result<(), ConnectionEnd> {
        if !self.queue.is_empty() {
            return Ok(());
        }
        match self.sending {
            SendState::Open | SendState::Finished => Ok(()),
            SendState::Finishing => {
                self.sending = SendState::Finished;
                let socket = SockRef::from(&self.stream);
                if socket.shutdown(std::net::Shutdown::Write).is_ok() {
                    let _ = socket.set_linger(None);
                    return Ok(());
                }
                self.failed(None).await
            }
            SendState::Closing => Err(ConnectionEnd::Quiet),
            SendState::Resetting { unacknowledged } => {
                let left = sys::unacknowledged_bytes(&self.stream).unwrap_or(0);
                if left == 0 {
                    return Err(ConnectionEnd::Aborted);
                }
                if left < unacknowledged {
                    self.look_after = FIRST_LOOK_AFTER;
                    let connection = self.id;
                    // The host reads: the engine goes on waiting for it.
                    let progress = EngineInput::Written {
                        connection,
                        bytes: 0,
                    };
                    self.mailbox.input(progress).await?;
                }
                self.sending = SendState::Resetting {
                    unacknowledged: left,
                };
                Ok(())
            }
        }
    }

    async fn step(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<ConnectionCommand>,
    ) -> Result<(), ConnectionEnd> {
        if self.credit > 0 && !self.early.is_empty() {
            return self.hand_on_early().await;
        }
        let (stream, interest) = (&self.stream, self.interest());
        let ready = async {
            match interest {
                Some(interest) => stream.ready(interest).await,
                None => std::future::pending().await,
            }
        };
        // The loop forgets a connection that it closes. The end of its commands is no order to reset then.
        let is_closing = self.sending == SendState::Closing;
        let wait = match self.sending {
            SendState::Resetting { .. } => Some(self.look_after),
            SendState::Closing => Some(CLOSE_STALL_LIMIT),
            SendState::Open | SendState::Finishing | SendState::Finished => None,
        };
        tokio::select! {
            biased;
            command = commands.recv(), if !is_closing => self.obey(command),
            ready = ready => {
                // The runtime is going away.
                let Ok(ready) = ready else { return Err(ConnectionEnd::Reset) };
                if ready.is_error() && !matches!(self.receiving, ReceiveState::Rest { .. }) {
                    return self.failed(None).await;
                }
                self.advance(ready).await
            }
            () = async { tokio::time::sleep(wait.unwrap_or_default()).await }, if wait.is_some() => {
                if is_closing {
                    return Err(ConnectionEnd::Reset);
                }
                self.look_after = (self.look_after * 2).min(LOOK_AFTER_MOST);
                Ok(())
            }
        }
    }

    fn interest(&self) -> Option<Interest> {
        let is_reading = self.credit > 0 && self.receiving != ReceiveState::Finished;
        let wishes = [
            (!matches!(self.receiving, ReceiveState::Rest { .. })).then_some(Interest::ERROR),
            is_reading.then_some(Interest::READABLE),
            (!self.queue.is_empty()).then_some(Interest::WRITABLE),
        ];
        wishes.into_iter().flatten().reduce(Interest::add)
    }

    fn obey(&mut self, command: Option<ConnectionCommand>) -> Result<(), ConnectionEnd> {
        match command {
            // What is written to a failed connection is lost, as the engine knows.
            Some(ConnectionCommand::Write(bytes)) => {
                if !matches!(self.receiving, ReceiveState::Rest { .. }) {
                    self.queue.push_back(bytes);
                }
            }
            Some(ConnectionCommand::ReadCredit(bytes)) => self.credit += bytes,
            Some(ConnectionCommand::FinishWrite) if self.sending == SendState::Open => {
                self.sending = SendState::Finishing;
            }
            Some(ConnectionCommand::FinishWrite | ConnectionCommand::Admit) => {}
            Some(ConnectionCommand::Close) => self.sending = SendState::Closing,
            // The host takes nothing more, and the engine wants nothing more of it.
            Some(ConnectionCommand::ResetWhenDelivered)
                if matches!(self.receiving, ReceiveState::Rest { .. }) =>
            {
                return Err(ConnectionEnd::Aborted);
            }
            Some(ConnectionCommand::ResetWhenDelivered) => {
                self.sending = SendState::Resetting {
                    unacknowledged: u32::MAX,
                };
            }
            Some(ConnectionCommand::Reset | ConnectionCommand::Decline(_)) | None => {
                return Err(ConnectionEnd::Reset);
            }
        }
        Ok(())
    }

    async fn advance(&mut self, ready: tokio::io::Ready) -> Result<(), ConnectionEnd> {
        if ready.is_writable() && !self.queue.is_empty() {
            self.write().await?;
        }
        if ready.is_readable() && self.credit > 0 && self.receiving != ReceiveState::Finished {
            self.read().await?;
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), ConnectionEnd> {
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
            Err(error) => return self.failed(Some(ReportedFailure::by(&error))).await,
        };
        self.take_from_queue(bytes);
        let connection = self.id;
        // After a close the engine has forgotten the connection and wants no more counts.
        if self.sending != SendState::Closing {
            self.mailbox
                .input(EngineInput::Written { connection, bytes })
                .await?;
        }
        Ok(())
    }

    /// Records that the connection accepts nothing more. Data that had arrived is still read. `how`
    /// is the reported error; if there is none yet, the last read will return it.
    async fn failed(&mut self, how: Option<ReportedFailure>) -> Result<(), ConnectionEnd> {
        self.queue.clear();
        match self.sending {
            // The engine has forgotten the connection, or has read all that it wants.
            SendState::Closing => return Err(ConnectionEnd::Quiet),
            SendState::Resetting { .. } => return Err(ConnectionEnd::Aborted),
            SendState::Open | SendState::Finishing | SendState::Finished => {}
        }
        if self.receiving != ReceiveState::Open {
            return Err(ConnectionEnd::Aborted);
        }
        self.sending = SendState::Finished;
        let left = if self.early.is_empty() {
            SockRef::from(&self.stream).peek(&mut [MaybeUninit::uninit()])
        } else {
            Ok(1)
        };
        if !matches!(left, Ok(1..)) {
            let finished = how.map_or(left.is_ok(), |how| how.finished);
            return self.end_of_rest(finished).await;
        }
        self.receiving = ReceiveState::Rest { how };
        let connection = self.id;
        self.mailbox
            .input(EngineInput::Failed { connection })
            .await?;
        Ok(())
    }

    /// Nothing is left to read of a connection that failed.
    async fn end_of_rest(&mut self, finished: bool) -> Result<(), ConnectionEnd> {
        let connection = self.id;
        if finished {
            self.mailbox
                .input(EngineInput::Finished { connection })
                .await?;
        }
        Err(ConnectionEnd::Aborted)
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

    async fn hand_on_early(&mut self) -> Result<(), ConnectionEnd> {
        let bytes = self.early.split_to(self.early.len().min(self.credit));
        self.credit -= bytes.len();
        let connection = self.id;
        self.mailbox
            .input(EngineInput::Received { connection, bytes })
            .await?;
        Ok(())
    }

    async fn read(&mut self) -> Result<(), ConnectionEnd> {
        let wanted = self.credit.min(READ_BYTES);
        let read = SCRATCH.with_borrow_mut(|scratch| {
            let read = self.stream.try_read(&mut scratch[..wanted])?;
            Ok::<_, io::Error>(Bytes::copy_from_slice(&scratch[..read]))
        });
        let connection = self.id;
        match (read, self.receiving) {
            (Ok(bytes), _) if !bytes.is_empty() => {
                self.credit -= bytes.len();
                self.mailbox
                    .input(EngineInput::Received { connection, bytes })
                    .await?;
            }
            // After an error was told the kernel says 0, with a FIN before it or without.
            (Ok(_), ReceiveState::Rest { how }) => {
                let finished = how.is_none_or(|how| how.finished);
                return self.end_of_rest(finished).await;
            }
            (Ok(_), ReceiveState::Open | ReceiveState::Finished) => {
                self.receiving = ReceiveState::Finished;
                self.mailbox
                    .input(EngineInput::Finished { connection })
                    .await?;
            }
            (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => {}
            (Err(_), _) => return Err(ConnectionEnd::Aborted),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::mailbox::LoopMessage;

    /// The longest wait for an immediate result; a poll that finds nothing new takes longer.
    const AT_ONCE: Duration = Duration::from_secs(2);

    #[tokio::test]
    async fn failed_connection_ends_before_reset_after_delivery() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut host = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (mailbox, mut messages) = LoopMailbox::new();
        let (commands, orders) = mpsc::unbounded_channel();
        let id = ConnectionId::Accepted(1);
        // The host acknowledges less than is written to it, sends something, and resets.
        let unread = Bytes::from(vec![0; 16 << 20]);
        commands.send(ConnectionCommand::Write(unread)).unwrap();
        let serving = tokio::spawn(serve(id, stream, Bytes::new(), None, orders, mailbox));
        let written = messages.recv().await.unwrap();
        assert!(matches!(
            written,
            LoopMessage::Input(EngineInput::Written { .. })
        ));
        host.write_all(b"unread").await.unwrap();
        reset(host);
        loop {
            match messages.recv().await.unwrap() {
                LoopMessage::Input(EngineInput::Written { .. }) => {}
                LoopMessage::Input(EngineInput::Failed { .. }) => break,
                other => panic!("{other:?}"),
            }
        }

        commands
            .send(ConnectionCommand::ResetWhenDelivered)
            .unwrap();
        let told = tokio::time::timeout(AT_ONCE, messages.recv()).await;
        let told = told.expect("it waits for a host that is gone").unwrap();
        assert!(matches!(
            told,
            LoopMessage::Input(EngineInput::Aborted { .. })
        ));
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_close_delivers_what_was_written_before() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut host = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (mailbox, _messages) = LoopMailbox::new();
        let (commands, orders) = mpsc::unbounded_channel();
        let id = ConnectionId::Accepted(1);
        // More than the sockets hold, so that some of it waits when the close comes.
        let written = Bytes::from(vec![7; 16 << 20]);
        commands
            .send(ConnectionCommand::Write(written.clone()))
            .unwrap();
        commands.send(ConnectionCommand::Close).unwrap();
        // The loop forgets a connection that it closes.
        drop(commands);
        let serving = tokio::spawn(serve(id, stream, Bytes::new(), None, orders, mailbox));
        let mut read = Vec::new();
        host.read_to_end(&mut read).await.unwrap();
        assert!(read == written, "{} bytes", read.len());
        serving.await.unwrap();
    }
}
