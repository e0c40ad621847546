//! Turn-up of a circuit by RFC 6349: whether it gives TCP users the service that was purchased.
//!
//! ```text
//!  path MTU ─► baseline RTT ─► bottleneck rate ─► BDP, windows ─► TCP runs ─► figures
//!                              (each direction)   metrics         tcp_info    metrics
//! ```
//! [`turn_up`] says what is measured next and holds what is known; [`procedure`] has the steps that need
//! no TCP, as machines; [`run`] makes the figures of a run of TCP connections from what the kernel
//! counts ([`tcp_info`]), exact to the byte, by the formulas of RFC 6349 and RFC 8337 in [`metrics`].
//! [`wire`] is what the two ends say to each other; [`iperf3`] what an ordinary iperf3 server is told where the
//! other end is not ours.
//!
//! [`steps`] are the tests that go before TCP: service activation by Y.1564, throughput by RFC 2544.
//!
//! [`session`] is the conversation of client and server as two machines, which run a whole test over sockets or in
//! virtual time. [`diagnosis`] names the limits of a transfer.
//!
//! It opens no socket and reads no clock: a shell sends, receives, and hands in the measurements.

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod diagnosis;
pub mod iperf3;
pub mod metrics;
pub mod procedure;
pub mod run;
pub mod session;
pub mod steps;
pub mod tcp_info;
pub mod turn_up;
pub mod wire;
