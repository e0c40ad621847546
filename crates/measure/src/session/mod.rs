//! Conversation of client and server in a turn-up test, as machines.
//!
//! ```text
//!  TestClient ──► ClientConversation ── control bytes, datagrams ──► ServerConversation
//!   TurnUpProcedure, StreamProcedure       (a shell's sockets, or a path in virtual time)
//!   say which step is next        ▲
//!                                 └ streams, connections and transfers, which a shell carries out
//! ```
//! [`TestClient`] runs the steps that a [`ClientProcedure`] names, one after the other;
//! [`ServerConversation`] carries out one client's orders. A shell joins them to sockets: it hands in
//! the time and what arrives, and carries out the outputs. What takes the processor to itself is one
//! output each: a stream to be sent ([`OutgoingStream`]), connections to be opened, a transfer
//! ([`TransferMonitor`]). Its end is an input.
//!
//! The contract is that of all cores: after each input, drain `poll_output` to [`None`]; then wait
//! until `poll_timeout`, or for an input.

mod channel;
mod client;
mod error;
mod greeting;
mod plausible;
mod procedure;
mod server;
mod stream;
mod stream_procedure;
mod test_client;
mod transfer;
mod turn_up_procedure;

pub use channel::{ALIVE_EVERY, SILENCE_MAX};
pub use client::{
    ClientConversation, ClientOutput, ClientSettings, ClientStep, CompletedRun, ConnectionPlan,
    RunConnections, ShellResult, StepOutcome,
};
pub use error::{ConversationError, JoinError, OrderError, ServerSessionError};
pub use greeting::{
    AuthenticatedClient, ClientGreeting, GreetedServer, GreetingError, GreetingOutcome,
    ServerGreeting,
};
pub use plausible::ImplausibleReport;
pub use procedure::{ClientProcedure, describe_run, describe_stream};
pub use server::{ServerConversation, ServerOutput, ServerSettings, udp_headers};
pub use stream::{OutgoingStream, SentDatagrams};
pub use stream_procedure::{OversizedFrame, StreamProcedure, check_frames};
pub use test_client::TestClient;
pub use transfer::{PIECE_BYTES_MAX, SAMPLE_EVERY, SendPiece, TransferAction, TransferMonitor};
pub use turn_up_procedure::{
    TurnUpProcedure, TurnUpSettings, UnreachableThreshold, check_thresholds,
};

/// Reason why nothing but TCP is measured where no UDP packet is answered, with the remedy.
#[must_use]
pub fn udp_blocked(server: std::net::SocketAddr) -> String {
    let port = server.port();
    format!(
        "{server} answers over TCP, but no answer arrives from UDP port {port}: a firewall on the \
         path or at one of the hosts blocks UDP; allow UDP port {port} to the server. Without UDP, \
         the test cannot measure path MTU, baseline RTT and bottleneck rate"
    )
}

#[cfg(test)]
mod tests;
