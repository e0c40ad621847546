//! The steps of a test that need no TCP, each a machine that is handed the time and datagrams.
//!
//! ```text
//!  client                                              server
//!  PathMtuTest, BaselineRtt ── Outgoing ──► path ──►  Responder ── its answers ──► path ──► handle
//!  BottleneckSearch ── Step::Stream ──► a stream, Departures at one end, ArrivalLog at the other
//! ```
//! The contract is that of all cores: after each `handle`, drain `poll_transmit` to [`None`]; then
//! wait until `poll_timeout` or for a datagram. `outcome` says when a step is over.

mod baseline_rtt;
mod bottleneck;
mod path_mtu;
mod responder;
mod stream;

pub use baseline_rtt::{BaselineRtt, PROBES_WANTED, RttOutcome};
pub use bottleneck::{
    Bottleneck, BottleneckSearch, LimitedBy, OVERLOAD_PERCENT, STEADY_PERMILLE, SearchConfig, Step,
    StreamPlan,
};
pub use path_mtu::{MtuOutcome, PathMtuTest};
pub use responder::{ANSWERS_PER_SECOND, Answer, Responder};
pub use stream::{ArrivalLog, Delivered, Departures, StreamRecord};

use crate::wire::Datagram;

/// Bytes that IPv4 and UDP add to a datagram's payload.
pub const UDP_HEADERS_IPV4: u16 = 28;
/// Bytes that IPv6 and UDP add to a datagram's payload.
pub const UDP_HEADERS_IPV6: u16 = 48;

/// A datagram to be sent, of `length` bytes above UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its head.
    pub datagram: Datagram,
    /// With its filling.
    pub length: usize,
}

#[cfg(test)]
mod tests;
