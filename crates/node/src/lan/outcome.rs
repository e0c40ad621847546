//! A client that waits to hear whether its server can be reached, before its connection begins.

use bytes::Bytes;
use engine::{ConnectFailure, ConnectionId, Input};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::connection::{Command, serve};
use crate::mailbox::Mailbox;

/// What the engine says to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server's connection stands, or the client may be accepted before that.
    Admitted,
    /// The server's connection could not be opened.
    Declined(ConnectFailure),
    /// The flow ended for another reason, or the node stops.
    Ended,
}

/// A client that has asked.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) connection: ConnectionId,
    pub(crate) orders: mpsc::UnboundedReceiver<Command>,
}

impl Asked {
    /// Waits for the engine's word.
    pub(crate) async fn outcome(&mut self) -> Outcome {
        match self.orders.recv().await {
            Some(Command::Admit) => Outcome::Admitted,
            Some(Command::Decline(failure)) => Outcome::Declined(failure),
            // Nothing else is said to a client that was not admitted.
            Some(
                Command::Reset
                | Command::ResetWhenDelivered
                | Command::Close
                | Command::Write(_)
                | Command::FinishWrite
                | Command::ReadCredit(_),
            )
            | None => Outcome::Ended,
        }
    }

    /// Serves the connection of a client that was admitted. `early` is what was read of it already.
    pub(crate) async fn serve(self, stream: TcpStream, early: Bytes, mailbox: Mailbox) {
        serve(self.connection, stream, early, None, self.orders, mailbox).await;
    }

    /// The client that was admitted is gone.
    pub(crate) async fn abort(self, mailbox: &Mailbox) {
        let connection = self.connection;
        // A loop that has ended has forgotten it.
        let _ = mailbox.input(Input::Aborted { connection }).await;
    }
}
