//! Report of an accelerator on all of its flows, for the operator.

use std::net::SocketAddr;
use std::time::Duration;

/// Servers that a report names at most: those that make clients wait longest.
pub const REPORTED_SERVERS_MAX: usize = 10;

/// The account of an accelerator since the engine began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceleratorReport {
    /// Counts by name. A name is lower-case words joined by `_` and ends in `_total`.
    pub counts: Vec<(&'static str, u64)>,
    /// Servers by the mean time of their answers, the slowest first, [`REPORTED_SERVERS_MAX`] at most.
    pub slowest_servers: Vec<ServerReport>,
}

/// The account of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// The address.
    pub server: SocketAddr,
    /// The name by which clients asked for it, if the protocol has one.
    pub name: Option<String>,
    /// Requests that it has answered.
    pub answers: u64,
    /// The mean time from a request to the begin of its answer, seen beside the client.
    pub mean: Duration,
    /// The longest such time.
    pub longest: Duration,
}
