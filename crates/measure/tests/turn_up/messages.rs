//! Messages on simulated connections.

use measure::wire::{ControlMessage, frame, next_frame};
use tcp::{ConnectionNumber, TcpHost};
use vocab::Time;

/// Connection that is greeted: one message is read from it, and the rest is left.
#[derive(Debug)]
pub(crate) struct GreetedConnection {
    pub(crate) connection: ConnectionNumber,
    received: Vec<u8>,
}

impl GreetedConnection {
    pub(crate) fn new(connection: ConnectionNumber) -> Self {
        Self {
            connection,
            received: Vec::new(),
        }
    }

    /// The next message, once it has come.
    pub(crate) fn next(&mut self, host: &mut TcpHost) -> Option<ControlMessage> {
        self.received.extend(read(host, self.connection));
        let (message, length) = next_frame(&self.received).expect("both ends are ours")?;
        self.received.drain(..length);
        Some(message)
    }
}

/// Everything that a connection has received.
pub(crate) fn read(host: &mut TcpHost, connection: ConnectionNumber) -> Vec<u8> {
    let received = host.with_connection(connection, |one| {
        let mut all = Vec::new();
        while let Some(bytes) = one.read() {
            all.extend_from_slice(&bytes);
        }
        all
    });
    received.unwrap_or_default()
}

/// Writes the bytes of messages, for which there is always room here.
pub(crate) fn write(now: Time, host: &mut TcpHost, connection: ConnectionNumber, bytes: &[u8]) {
    let taken = host.with_connection(connection, |one| one.write(now, bytes));
    assert_eq!(
        taken,
        Some(bytes.len()),
        "the send buffer holds the messages"
    );
}

pub(crate) fn say(
    now: Time,
    host: &mut TcpHost,
    connection: ConnectionNumber,
    message: &ControlMessage,
) {
    write(now, host, connection, &frame(message));
}
