//! A protocol whose messages travel inside those of another accelerator's protocol.
//!
//! ```text
//!  client ──► near half of the carrier: reads the first message ─┬─ another's ─► it goes on itself
//!                                                                └─ carried ───► near half of the carried
//!             frame to the far half of the carrier ──────────────────────────► far half of the carried
//! ```
//! The flow belongs to the carrier, which keeps its port, its TLS, and its account. The accelerator of
//! the carried protocol gives the engine a [`CarriedProtocol`], and the engine passes it to all others.

use std::fmt;
use std::net::SocketAddr;

use super::{AcceleratorHalf, WanEnd};

/// A protocol that another accelerator carries.
pub trait CarriedProtocol: fmt::Debug + Send + Sync {
    /// The accelerator's number in the registry.
    fn number(&self) -> u8;

    /// The accelerator's name, for the operator.
    fn name(&self) -> &'static str;

    /// True if a connection whose first message has this head carries the protocol.
    fn begins_with(&self, head: &[u8]) -> bool;

    /// Builds a half for a connection. The carrier gives it
    /// [`Start`](super::AcceleratorInput::Start), and all bytes of the connection.
    fn build(&self, half: WanEnd, flow: CarriedFlow) -> Box<dyn AcceleratorHalf>;
}

/// The flow for which a half of a carried protocol is built.
#[derive(Clone, Copy, Debug)]
pub struct CarriedFlow {
    /// The engine's number of the flow.
    pub flow: u64,
    /// The client's address.
    pub client: SocketAddr,
    /// The server's address.
    pub server: SocketAddr,
    /// True if the content may be in the dictionaries. If not, a half sends no payload segments.
    pub may_store: bool,
}
