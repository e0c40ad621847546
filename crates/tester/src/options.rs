//! What a test is told beside its profile.

use std::net::IpAddr;
use std::time::Duration;

/// What a test is told beside its profile.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The server's name or address.
    pub host: String,
    /// Its port, TCP and UDP.
    pub port: u16,
    /// The words that the server was given, too.
    pub words: String,
    /// The address to send from.
    pub bind: Option<IpAddr>,
    /// Whether only IPv6 will do.
    pub only_v6: bool,
    /// The code point of all packets of the test, both ways.
    pub dscp: u8,
    /// Congestion control of senders; empty for each system's own.
    pub congestion_control: String,
    /// How long the path rests before a stream that measures by overload: a bucket that is to be seen
    /// is full.
    pub rest: Duration,
}
