//! The turn-up tester with its sockets: both ends of the tests that `measure` plans and computes.
//!
//! ```text
//!  client ── control: one TCP connection ──► server        orders, reports, "I am here"
//!         ◄─ probes and streams: UDP ──────►
//!         ◄─ runs: TCP connections, opened by the client ─►
//! ```
//! [`run`] is the client and [`TestServer`] the server: each joins a machine of [`measure::session`] to sockets. Threads
//! of their own send streams and run TCP transfers; their end is an event for the machine. `one_ended` tests against an
//! iperf3 server. `report` writes down what was found. Nothing here decides what is measured or what a figure means.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod conversation;
mod events;
mod failure;
mod greeting;
mod local_limits;
mod one_ended;
mod options;
mod report;
mod server;
mod steps;
mod streams;
mod transfers;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use measure::metrics::{HEADERS_IPV4, HEADERS_IPV6};

pub use client::run;
pub use failure::MeasurementFailure;
pub use one_ended::run_against_iperf3;
pub use options::RunOptions;
pub use report::{
    headline, html, json, service_html, service_json, service_text, text, throughput_html,
    throughput_json, throughput_text, transfers_text,
};
pub use server::{ServerEvent, ServerOptions, TestServer, default_limits, window_max};
pub use steps::{SteppedTest, service, throughput};

/// Default port, TCP and UDP. IANA has not assigned it.
pub const PORT: u16 = 6349;

/// Bytes of the IP and TCP headers of packets to an address.
fn tcp_headers(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(_) => HEADERS_IPV4,
        IpAddr::V6(_) => HEADERS_IPV6,
    }
}

/// Any address of the same family.
fn unspecified(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
