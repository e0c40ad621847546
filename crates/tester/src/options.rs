//! Options of a test beside its profile.

use std::net::IpAddr;
use std::time::Duration;

/// Options of a test beside its profile.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The server's name or address.
    pub host: String,
    /// Its port, TCP and UDP.
    pub port: u16,
    /// The key's words, which the server was given, too.
    pub words: String,
    /// The address to send from.
    pub bind: Option<IpAddr>,
    /// Set to use only IPv6.
    pub only_v6: bool,
    /// The code point of all packets of the test, both ways.
    pub dscp: u8,
    /// Congestion control of senders; empty for each system's own.
    pub congestion_control: String,
    /// Rest of the path before a stream that measures by overload, so that a bucket is full.
    pub rest: Duration,
}
