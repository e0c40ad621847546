//! A client that waits for the outcome of its server's connection, before its own connection
//! begins.

use bytes::Bytes;
use engine::{ConnectFailure, ConnectionId, EngineInput};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::connection::{ConnectionCommand, serve};
use crate::mailbox::LoopMailbox;

/// The engine's answer to a waiting client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientOutcome {
    /// The server's connection is established, or the client may be accepted before that.
    Admitted,
    /// The server's connection could not be opened.
    Declined(ConnectFailure),
    /// The flow ended for another reason, or the node stops.
    Ended,
}

/// A client that waits for the outcome.
#[derive(Debug)]
pub(crate) struct WaitingClient {
    pub(crate) connection: ConnectionId,
    pub(crate) orders: mpsc::UnboundedReceiver<ConnectionCommand>,
}

impl WaitingClient {
    /// Waits for the engine's outcome.
    pub(crate) async fn outcome(&mut self) -> ClientOutcome {
        match self.orders.recv().await {
            Some(ConnectionCommand::Admit) => ClientOutcome::Admitted,
            Some(ConnectionCommand::Decline(failure)) => ClientOutcome::Declined(failure),
            // Nothing else is said to a client that was not admitted.
            Some(
                ConnectionCommand::Reset
                | ConnectionCommand::ResetWhenDelivered
                | ConnectionCommand::Close
                | ConnectionCommand::Write(_)
                | ConnectionCommand::FinishWrite
                | ConnectionCommand::ReadCredit(_),
            )
            | None => ClientOutcome::Ended,
        }
    }

    /// Serves the connection of an admitted client. `early` is the data that was already read.
    pub(crate) async fn serve(self, stream: TcpStream, early: Bytes, mailbox: LoopMailbox) {
        serve(self.connection, stream, early, None, self.orders, mailbox).await;
    }

    /// The client that was admitted is gone.
    pub(crate) async fn abort(self, mailbox: &LoopMailbox) {
        let connection = self.connection;
        // A loop that has ended has forgotten it.
        let _ = mailbox.input(EngineInput::Aborted { connection }).await;
    }
}
