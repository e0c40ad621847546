//! The link emulator as a program: devices, drivers, control and calibration around `emulate`.
//!
//! [`link`] runs a link between two devices of this machine. [`device`] runs the model of a router or
//! switch between several interfaces. [`around`] runs one command behind a
//! link. [`calibrate`] measures a link that runs in a process of its own, from sockets at both
//! ends, and stores the result as a certificate. `lateness.rs` counts how late packets leave.
//!
//! The fate of a packet is decided in `emulate` alone, so that links in real time and in virtual
//! time behave the same.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod around;
pub mod calibrate;
pub mod device;
mod lateness;
pub mod link;

pub use lateness::LatenessReport;
