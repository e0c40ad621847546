//! Messages on a socket: the writing half of a control connection, and exactly one message of a
//! connection's greeting. `measure::session` decides what is sent.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use measure::wire::{ControlMessage, frame, next_frame};

/// Time limit for a write, after which the other end no longer reads.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// Writing half of a connection.
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
        host::tester_sockets::mark(&*self.stream(), dscp)
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &ControlMessage) -> io::Result<()> {
        self.send_bytes(&frame(message))
    }

    /// Sends the bytes of messages.
    pub(super) fn send_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        self.stream().write_all(bytes)
    }

    fn stream(&self) -> MutexGuard<'_, TcpStream> {
        self.stream
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Reads exactly one message within `wait`, and leaves what follows it on the connection.
///
/// # Errors
/// Fails when the connection is over, the received bytes are not a message, or it does not come in
/// time.
pub(super) fn only_message(mut stream: &TcpStream, wait: Duration) -> Result<ControlMessage> {
    let until = Instant::now() + wait;
    let mut received = Vec::new();
    loop {
        if let Some((message, _)) = next_frame(&received)? {
            return Ok(message);
        }
        let wanted = match received.first_chunk::<4>() {
            None => 4,
            Some(length) => 4 + u32::from_be_bytes(*length) as usize,
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("no greeting in {} s", wait.as_secs());
        }
        // Zero would be for ever.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut room = vec![0; wanted - received.len()];
        match stream.read(&mut room) {
            Ok(0) => bail!("the other end closed the connection"),
            Ok(count) => received.extend_from_slice(&room[..count]),
            Err(error) if is_wait(&error) => {}
            Err(error) => return Err(error).context("the control connection broke"),
        }
    }
}

/// Reads what a control connection has; it was reported to be readable.
///
/// # Errors
/// Fails with how the connection ended.
pub(super) fn read_control(mut stream: &TcpStream) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; READ_BYTES];
    match stream.read(&mut bytes) {
        Ok(0) => Err("the other end closed the connection".to_owned()),
        Ok(count) => {
            bytes.truncate(count);
            Ok(bytes)
        }
        Err(error) if is_wait(&error) => Ok(Vec::new()),
        Err(error) => Err(broken(&error)),
    }
}

/// Text for a control connection that broke.
pub(super) fn broken(error: &io::Error) -> String {
    format!("the control connection broke: {error}")
}

fn is_wait(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
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
