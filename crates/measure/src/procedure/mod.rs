//! The steps of a test that need no TCP, each a machine that is handed the time and datagrams.
//!
//! ```text
//!  client                                              server
//!  PathMtuTest, BaselineRtt ── Outgoing ──► path ──►  Responder ── its answers ──► path ──► handle
//!  BottleneckSearch ── Step::Stream ──► a stream, Departures at one end, ArrivalLog at the other
//!  CountedSearch    ── Step::Stream ──► a stream that somebody else's server counts or sends
//! ```
//! The contract is that of all cores: after each `handle`, drain `poll_transmit` to [`None`]; then
//! wait until `poll_timeout` or for a datagram. `outcome` says when a step is over.

mod baseline_rtt;
mod bottleneck;
mod climb;
mod counted;
mod opening;
mod path_mtu;
mod responder;
#[cfg(test)]
pub(crate) mod slow_host;
mod stream;

pub use baseline_rtt::{BaselineRtt, PROBES_WANTED, RttOutcome};
pub use bottleneck::{
    BottleneckResult, BottleneckSearch, LimitedBy, OVERLOAD_PERCENT, SearchConfig, SearchStep,
};
pub use counted::{CountedSearch, CountedStream};
pub use opening::UdpOpening;
pub use path_mtu::{MtuOutcome, PathMtuTest};
pub use responder::{ANSWERS_PER_SECOND, ResponderAction, UdpResponder};
pub use stream::{
    ARRIVALS_MAX, ArrivalLog, DeliveredSecond, DepartureSchedule, STEADY_PERMILLE, StreamPlan,
    StreamRecord,
};

use vocab::Time;

use crate::wire::DatagramHeader;

/// Bytes that IPv4 and UDP add to a datagram's payload.
pub const UDP_HEADERS_IPV4: u16 = 28;
/// Bytes that IPv6 and UDP add to a datagram's payload.
pub const UDP_HEADERS_IPV6: u16 = 48;

/// Largest packet size that is searched for, in bytes of IP: a jumbo frame. Loopback devices allow
/// more, but no circuit does; larger probes are not answered, which must not count as a hole in the
/// path.
pub const PROBED_MTU_MAX: u16 = 9_216;

/// A datagram to be sent, of `length` bytes above UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingDatagram {
    /// Its head.
    pub datagram: DatagramHeader,
    /// With its filling.
    pub length: usize,
}

/// A step of the client's that asks over UDP and waits for answers.
pub trait UdpExchange {
    /// The next datagram to send now.
    fn poll_transmit(&mut self, now: Time) -> Option<OutgoingDatagram>;
    /// Takes in a verified datagram of the server's that arrived at `now`, of `length` bytes above UDP.
    fn handle(&mut self, now: Time, datagram: &DatagramHeader, length: usize);
    /// Takes note that this host refused to send a datagram of this length (EMSGSIZE).
    fn refused(&mut self, now: Time, length: usize);
    /// Time of the next call of [`UdpExchange::handle_timeout`] or [`UdpExchange::poll_transmit`].
    fn poll_timeout(&self) -> Option<Time>;
    /// Handles everything that is due.
    fn handle_timeout(&mut self, now: Time);
    /// Tells whether nothing more is to be sent or waited for.
    fn is_over(&mut self, now: Time) -> bool;
}

#[cfg(test)]
mod tests;
