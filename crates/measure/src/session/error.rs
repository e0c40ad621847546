//! Errors of a conversation, by whose fault they are.

use std::time::Duration;

use thiserror::Error;
use vocab::Bitrate;

use super::channel::SILENCE_MAX;
use super::plausible::ImplausibleReport;
use crate::wire::{ControlMessage, DATAGRAM_HEADER, ServerLimits, WireError};

/// Error that ends a client's test.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConversationError {
    /// The user ended it.
    #[error("it was interrupted")]
    Interrupted,
    /// The server could not do its part, or ended the test.
    #[error("the server says: {0}")]
    ServerSays(String),
    /// The control connection ended, and how.
    #[error("{0}: the server was stopped, or the network is down")]
    Broken(String),
    /// Nothing more came.
    #[error("no message from the server arrived for {} s: the network or the server is down", SILENCE_MAX.as_secs())]
    Silent,
    /// The server is there and does not do its part.
    #[error("the server did not answer in {} s", .0.as_secs())]
    NoAnswer(Duration),
    /// A stream that the server sends has no end.
    #[error("a stream of {} s did not end", .0.as_secs())]
    EndlessStream(Duration),
    /// The server sent this message at the wrong time.
    #[error("the server said `{0}` where it should not")]
    Unexpected(String),
    /// The server's figures cannot be true.
    #[error(transparent)]
    Implausible(#[from] ImplausibleReport),
    /// The server's bytes are no messages.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// This host could not do its part, and why.
    #[error("{0}")]
    Host(String),
}

impl ConversationError {
    /// Error for a message that the server should not have sent.
    #[must_use]
    pub(super) fn unexpected(message: &ControlMessage) -> Self {
        ConversationError::Unexpected(message_name(message))
    }
}

/// Name of a message's kind.
pub(super) fn message_name(message: &ControlMessage) -> String {
    let text = format!("{message:?}");
    text.chars()
        .take_while(|one| one.is_alphanumeric())
        .collect()
}

/// Error that ends a session at the server.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ServerSessionError {
    /// The control connection ended, and how.
    #[error("{0}")]
    Broken(String),
    /// Nothing more came.
    #[error("no message from the client arrived for {} s", SILENCE_MAX.as_secs())]
    Silent,
    /// The server's user ended it.
    #[error("the server was stopped")]
    Stopped,
    /// The session lasted as long as it may.
    #[error("the test reached the server's time limit")]
    TimeUp,
    /// The client sent a message of the other side.
    #[error("the client sent what only a server sends")]
    WrongSide,
    /// The client's bytes are no messages.
    #[error("{0}")]
    Wire(#[from] WireError),
}

/// Reason why an order is not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OrderError {
    /// Another one is in progress.
    #[error("the order before this one is not over")]
    Busy,
    /// The stream is beyond the limits.
    #[error("a stream of {rate} for {} s exceeds the server's limits ({} for {} s)", .duration.as_secs(), .limits.rate, .limits.order.as_secs())]
    StreamLimit {
        /// The rate that was ordered.
        rate: Bitrate,
        /// The duration that was ordered.
        duration: Duration,
        /// The limits.
        limits: ServerLimits,
    },
    /// Packets of this size do not exist; larger ones would have a multiple of the rate.
    #[error("a stream of {0} bytes above UDP: its packets have {DATAGRAM_HEADER} or more")]
    SmallPackets(u16),
    /// The client has not shown its UDP address.
    #[error("no UDP packet of the client has arrived yet")]
    NoUdp,
    /// The run is beyond the limits.
    #[error("{connections} connections for {} s exceed the server's limits ({} for {} s)", .duration.as_secs(), .limits.connections, .limits.order.as_secs())]
    RunLimit {
        /// The connections that were ordered, in the direction with more.
        connections: u16,
        /// The duration that was ordered.
        duration: Duration,
        /// The limits.
        limits: ServerLimits,
    },
    /// The client ended the order.
    #[error("the run was given up")]
    GivenUp,
    /// The client did not open all connections.
    #[error("{came} of {wanted} connections came in {} s", .within.as_secs())]
    ConnectionsMissing {
        /// Connections that came.
        came: usize,
        /// Connections that were ordered.
        wanted: usize,
        /// Time limit.
        within: Duration,
    },
    /// This host could not do its part, and why.
    #[error("{0}")]
    Host(String),
}

/// Reason why a connection does not join a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JoinError {
    /// Its session is not the one that runs.
    #[error("the connection belongs to a test that is not running")]
    OtherSession,
    /// Its proof is wrong.
    #[error("the connection does not have the session's key")]
    WrongKey,
    /// No run waits for it.
    #[error("the connection belongs to a test run that was not requested")]
    NotRequested,
}
