//! The turn-up tester with its sockets: both ends of the tests that `measure` plans and computes.
//!
//! ```text
//!  client ── control: one TCP connection ──► server        orders, reports, "I am here"
//!         ◄─ probes and streams: UDP ──────►
//!         ◄─ runs: TCP connections, opened by the client ─►
//! ```
//! [`run`] is the client: it asks [`measure::turn_up::TurnUp`] what is next, does it, and hands in what
//! came of it. `one_ended` does the same against an iperf3 server. `report` writes down what was found. Nothing here decides what is measured or what a
//! figure means.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod conversation;
mod failure;
mod greeting;
mod local_limits;
mod one_ended;
mod options;
mod plausible;
mod report;
mod server;
mod steps;
mod streams;
mod transfers;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use measure::metrics::{HEADERS_IPV4, HEADERS_IPV6};
use measure::procedure::{UDP_HEADERS_IPV4, UDP_HEADERS_IPV6};

pub use client::run;
pub use conversation::{ALIVE_EVERY, SILENCE_MAX};
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

/// Bytes of the IP and UDP headers of packets to an address.
fn udp_headers(address: IpAddr) -> u16 {
    match address.to_canonical() {
        IpAddr::V4(_) => UDP_HEADERS_IPV4,
        IpAddr::V6(_) => UDP_HEADERS_IPV6,
    }
}

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
