//! Tests of emulated devices in real time, measured by the profiler through virtual cables.
//!
//! ```text
//!   namespace of the ports:   port0   port1 …
//!                               ║       ║
//!   namespace of the device:   in0 ─── in1 …   (trunkline emulate run --device)
//! ```
//! The tests need root; without it each says so on standard error, and passes. They run one at a time,
//! because both sides share the processors of this machine.

#![allow(clippy::unwrap_used)]

mod command_line;
mod failures;
mod fitted_device;
mod stand;
mod through_a_device;
