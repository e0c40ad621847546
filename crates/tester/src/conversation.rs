//! One end of a control connection: outgoing and incoming messages, and the detection of a lost
//! peer.
//!
//! While a stream is measured the connection is silent, because its packets, and the other end's
//! acknowledgements, would share the stream's bottleneck: at 512 kbit/s they were a quarter to half
//! a percent of it; and where most of the offered load is dropped, so are they, until the other end
//! seems lost. The stream's own packets are then the sender's sign of life, and an empty one
//! against the stream, every [`ALIVE_EVERY`], is the receiver's; see [`LastHeard`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use measure::wire::{ControlMessage, frame, next_frame};

/// Interval of each end's keep-alive messages.
pub const ALIVE_EVERY: Duration = Duration::from_millis(500);
/// Time without a message after which an end stops sending: several retransmissions of a message on
/// a full link, and a short time for a link to be flooded.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Time limit for a write, after which the other end no longer reads.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// Time at which the other end was last heard over UDP.
#[derive(Debug)]
pub(super) struct LastHeard {
    began: Instant,
    /// Milliseconds since then.
    last: AtomicU64,
}

impl LastHeard {
    /// Heard of just now.
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    /// Records that a packet has arrived.
    pub(super) fn note_activity(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        self.last.store(now, Ordering::Relaxed);
    }

    /// Time since the last arrival.
    pub(super) fn silence(&self) -> Duration {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(last)
    }
}

/// Writing half, shared by all threads that send messages.
#[derive(Debug)]
pub(super) struct MessageWriter {
    stream: Mutex<TcpStream>,
}

impl MessageWriter {
    /// Writes to this connection.
    pub(super) fn new(stream: &TcpStream) -> Result<Self> {
        let stream = stream
            .try_clone()
            .context("sharing the control connection")?;
        stream.set_write_timeout(Some(WRITE_MAX))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: Mutex::new(stream),
        })
    }

    /// Sets the DSCP of later messages.
    pub(super) fn mark(&self, dscp: u8) -> io::Result<()> {
        let stream = self
            .stream
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        host::tester_sockets::mark(&*stream, dscp)
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &ControlMessage) -> io::Result<()> {
        let mut stream = self
            .stream
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        stream.write_all(&frame(message))
    }
}

/// The half that reads.
#[derive(Debug)]
pub(super) struct MessageReader {
    stream: TcpStream,
    buffer: Vec<u8>,
    heard: Instant,
}

impl MessageReader {
    /// Reads from this connection.
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            heard: Instant::now(),
        }
    }

    /// Time since the last message.
    pub(super) fn silence(&self) -> Duration {
        self.heard.elapsed()
    }

    /// The connection, for data after the messages.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// The next message; [`None`] when none has come within `wait`.
    ///
    /// # Errors
    /// Fails when the connection is over, or the received bytes are not a message.
    pub(super) fn next(&mut self, wait: Duration) -> Result<Option<ControlMessage>> {
        let until = Instant::now() + wait;
        let mut bytes = [0; READ_BYTES];
        loop {
            if let Some((message, length)) = next_frame(&self.buffer)? {
                self.buffer.drain(..length);
                return Ok(Some(message));
            }
            let left = until.saturating_duration_since(Instant::now());
            if !self.receive(&mut bytes, left)? && left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Reads exactly one message before a moment, byte by byte behind it untouched, for connections on
    /// which something else follows.
    ///
    /// # Errors
    /// As [`MessageReader::next`], and when it does not come in time.
    pub(super) fn only(&mut self, wait: Duration) -> Result<ControlMessage> {
        let until = Instant::now() + wait;
        loop {
            if let Some((message, length)) = next_frame(&self.buffer)? {
                self.buffer.drain(..length);
                return Ok(message);
            }
            let wanted = match self.buffer.first_chunk::<4>() {
                None => 4,
                Some(length) => 4 + u32::from_be_bytes(*length) as usize,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("no greeting in {} s", wait.as_secs());
            }
            let mut bytes = vec![0; wanted - self.buffer.len()];
            self.receive(&mut bytes, left)?;
        }
    }

    /// Adds bytes that arrive within `wait` to the buffer, at most as many as `room` holds; tells
    /// whether any arrived.
    fn receive(&mut self, room: &mut [u8], wait: Duration) -> Result<bool> {
        // Zero would be for ever.
        let wait = wait.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(wait))?;
        match self.stream.read(room) {
            Ok(0) => bail!("the other end closed the connection"),
            Ok(count) => {
                self.heard = Instant::now();
                self.buffer.extend_from_slice(&room[..count]);
                Ok(true)
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error).context("the control connection broke"),
        }
    }
}

/// State that a client's threads share: the one that measures, and those that send and receive.
#[derive(Debug)]
pub(super) struct ClientThreadState {
    /// Ends those that speak and listen.
    pub(super) is_over: AtomicBool,
    /// Set while a stream is measured: nothing is sent over TCP then.
    pub(super) is_streaming: AtomicBool,
    pub(super) heard: LastHeard,
    /// Error that ended the connection, unless it just fell silent.
    broken: OnceLock<String>,
}

impl ClientThreadState {
    /// Heard of just now.
    pub(super) fn new() -> Self {
        Self {
            is_over: AtomicBool::new(false),
            is_streaming: AtomicBool::new(false),
            heard: LastHeard::new(),
            broken: OnceLock::new(),
        }
    }

    /// Checks that the other end is still there. Repeated calls return the same reason.
    ///
    /// # Errors
    /// When it is not, with how that showed.
    pub(super) fn check(&self) -> Result<()> {
        if !self.is_over.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.broken.get() {
            Some(how) => bail!("{how}: the server was stopped, or the network is down"),
            None => bail!(
                "no message from the server arrived for {} s: the network or the server is down",
                SILENCE_MAX.as_secs()
            ),
        }
    }
}

/// Sends keep-alive messages, except while a stream is measured.
pub(super) fn speak(writer: Arc<MessageWriter>, line: Arc<ClientThreadState>) {
    std::thread::spawn(move || {
        while !line.is_over.load(Ordering::Relaxed) {
            let is_quiet = line.is_streaming.load(Ordering::Relaxed);
            if !is_quiet && let Err(error) = writer.send(&ControlMessage::Alive) {
                let how = || format!("the control connection broke: {error}");
                line.broken.get_or_init(how);
                line.is_over.store(true, Ordering::Release);
            }
            std::thread::sleep(ALIVE_EVERY);
        }
    });
}

/// Hands on the server's messages; a silence of [`SILENCE_MAX`] ends the test.
pub(super) fn listen(
    mut reader: MessageReader,
    line: Arc<ClientThreadState>,
) -> Receiver<Result<ControlMessage>> {
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        while !line.is_over.load(Ordering::Relaxed) {
            let heard = reader.next(ALIVE_EVERY);
            let silence = reader.silence().min(line.heard.silence());
            let is_broken = heard.is_err() || silence >= SILENCE_MAX;
            if let Err(error) = &heard {
                line.broken.get_or_init(|| format!("{error:#}"));
            }
            if let Some(heard) = heard.transpose()
                && sender.send(heard).is_err()
            {
                return;
            }
            if is_broken {
                line.is_over.store(true, Ordering::Release);
            }
        }
    });
    messages
}

/// Fresh random bytes.
///
/// # Errors
/// Fails when the system has none.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("reading /dev/urandom")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that is killed closes the connection within the same second. Several threads check
    /// it, and each gets the error.
    #[test]
    fn closed_connection_is_not_called_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let line = Arc::new(ClientThreadState::new());
        let messages = listen(MessageReader::new(near), line.clone());
        drop(far);
        assert!(messages.recv().unwrap().is_err());
        while line.check().is_ok() {
            std::thread::yield_now();
        }
        for _ in 0..2 {
            let why = line.check().unwrap_err().to_string();
            assert!(
                why.starts_with("the other end closed the connection"),
                "{why}"
            );
        }
    }
}
