//! Further connections of a far half to the server of its flow.
//!
//! A flow has one connection to its server, for its client's bytes. A far half may open more
//! connections beside it: to fetch several objects at a time, or ahead of its client. It chooses a
//! number for each.
//!
//! ```text
//!  Open ──► Connected ──► Received, Taken, Finished … ──┬── both directions ended ──► Closed
//!    │                                                  ├── the server reset it, or it broke ──► Failed
//!    └────► ConnectFailed                               └── Reset from the half ──► (nothing is told any more)
//! ```
//! After `Closed`, `Failed`, `ConnectFailed` or its own `Reset` the half may use the number again.
//! Outputs for a number without a connection are dropped, because the connection may have failed at
//! the same time. The end of the flow, or of the half, ends all of them.
//!
//! Each is a separate stream: a server that does not read, or sends nothing, on one of them delays
//! no other. Towards the server a half has at most [`ServerConnection::UNTAKEN_MAX`] bytes in
//! flight, and [`ServerEvent::Taken`] reports their progress. In the other direction the half takes
//! all data, or requests [`ServerCommand::PauseReading`]; the bytes that were allowed before, at
//! most [`ServerConnection::READ_AHEAD`], still arrive.
//!
//! The server sees them come from the address of the flow's own connection, from any port. They
//! count as flows in the node's limit and in the share of the peer that opened the flow, and take
//! at most half of the places that flows leave there. Without a free place the open fails with
//! [`ServerFailure::Limit`].

use bytes::Bytes;

/// A further connection to the server of a flow, by the number that the far half chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerConnection(pub u8);

impl ServerConnection {
    /// Further connections of one flow at a time. Browsers open six to one server, so a server takes that of one
    /// client, and as many for what is fetched ahead, beside one that finds out about the server; 1,000 flows of a branch
    /// are then 14,000 connections at most.
    pub const MAX_PER_FLOW: usize = 13;
    /// Bytes that a half may have written and the server's operating system not taken. As much as waits for the host
    /// of a flow. A connection on which more waits is reset.
    pub const UNTAKEN_MAX: usize = 256 * 1024;
    /// The bytes that may be read beyond those that the half has received: 64 KiB is half a
    /// millisecond at 1 Gbit/s.
    pub const READ_AHEAD: usize = 64 * 1024;
}

/// A far half's command for one of its further connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerCommand {
    /// Open it. Earlier written data follows then.
    Open,
    /// Write to the server.
    Write(Bytes),
    /// End the stream towards the server, after all that was written.
    Finish,
    /// Read no more of it for now.
    PauseReading,
    /// Read of it again.
    ResumeReading,
    /// Reset it at once, or give up opening it.
    Reset,
}

/// An event of one of a far half's further connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// It is open.
    Connected,
    /// It could not be opened.
    ConnectFailed(ServerFailure),
    /// The server sent bytes.
    Received(Bytes),
    /// The operating system has taken so many more of the bytes that were written.
    Taken(usize),
    /// The server sends no more.
    Finished,
    /// Both directions have ended in good order, and everything that was written was taken.
    Closed,
    /// The server reset it, or it broke. Bytes that were written may not have arrived.
    Failed,
}

/// The reason why a further connection could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFailure {
    /// The server refused it.
    Refused,
    /// The server did not answer, or there was no turn for the attempt in time.
    TimedOut,
    /// The flow, the node or the peer has as many connections as it may, or the number is in use.
    Limit,
    /// There is no route to the server, or another fault of the system.
    Unreachable,
}
