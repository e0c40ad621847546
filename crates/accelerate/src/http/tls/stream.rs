//! One end of a TLS connection: bytes of the wire in, bytes of the user out, and the other way.
//!
//! rustls does no I/O itself; what it calls reading and writing is a copy from and to memory here.

use std::io::{Read, Write};

use bytes::Bytes;
use rustls::{Connection, Error};

/// One end of a TLS connection.
pub(crate) struct TlsStream {
    connection: Connection,
}

/// The meaning of what came.
#[derive(Debug)]
pub(crate) struct ReceivedBytes {
    /// The peer's bytes.
    pub(crate) plain: Bytes,
    /// The peer has ended its direction (RFC 8446 §6.1, close_notify).
    pub(crate) is_finished: bool,
    /// The connection has failed. What is to be sent ends with an alert.
    pub(crate) error: Option<Error>,
}

impl TlsStream {
    /// An end that has sent nothing yet.
    pub(crate) fn new(connection: impl Into<Connection>) -> Self {
        let mut connection = connection.into();
        // What is written is taken out at once.
        connection.set_buffer_limit(None);
        Self { connection }
    }

    /// True until both ends have proved who they are.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The application protocol that was agreed on.
    pub(crate) fn protocol(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    /// The certificate of the peer.
    pub(crate) fn peer_certificate(&self) -> Option<&[u8]> {
        let chain = self.connection.peer_certificates()?;
        chain.first().map(AsRef::as_ref)
    }

    /// Takes bytes of the wire.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> ReceivedBytes {
        let mut plain = Vec::new();
        let mut is_finished = false;
        let mut error = None;
        while !bytes.is_empty() {
            // Nothing is taken any more behind the peer's end.
            if !matches!(self.connection.read_tls(&mut bytes), Ok(1..)) {
                break;
            }
            match self.connection.process_new_packets() {
                Ok(state) => {
                    is_finished |= state.peer_has_closed();
                    let before = plain.len();
                    plain.resize(before + state.plaintext_bytes_to_read(), 0);
                    let read = self.connection.reader().read_exact(&mut plain[before..]);
                    if read.is_err() {
                        plain.truncate(before);
                    }
                }
                Err(failure) => {
                    error = Some(failure);
                    break;
                }
            }
        }
        ReceivedBytes {
            plain: plain.into(),
            is_finished,
            error,
        }
    }

    /// Sends the user's bytes; while the handshake goes on they wait for its end.
    pub(crate) fn send(&mut self, plain: &[u8]) {
        // It takes all, as there is no limit.
        let _ = self.connection.writer().write_all(plain);
    }

    /// Ends this direction.
    pub(crate) fn finish(&mut self) {
        self.connection.send_close_notify();
    }

    /// The bytes that are to go over the wire.
    pub(crate) fn take_output(&mut self) -> Bytes {
        let mut output = Vec::new();
        while self.connection.wants_write() {
            if !matches!(self.connection.write_tls(&mut output), Ok(1..)) {
                break;
            }
        }
        output.into()
    }
}

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("TlsStream").finish_non_exhaustive()
    }
}
