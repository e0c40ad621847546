//! The crate `tcp` beside the kernel's TCP, over emulated links in real time. Each test has a network
//! namespace of its own with a TUN device; without the right to make one it says so and passes.
//!
//! ```text
//!  interoperation   kernel socket ─► TUN ─► emulated link ─► TcpHost of `tcp`        (and back)
//!  comparison       kernel socket ─► TUN ─► emulated link ─► TUN ─► kernel socket
//!                   TcpHost ───────► the same link in virtual time ──────► TcpHost
//! ```
#![allow(clippy::unwrap_used, reason = "a test")]

mod comparison;
mod interoperation;
mod real_time;
