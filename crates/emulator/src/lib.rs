//! The link emulator as a program: devices, drivers, control and calibration around `emulate`.
//!
//! [`link`] runs a link between two devices of this machine. [`around`] runs one command behind a
//! link. [`calibrate`] measures a link that runs in a process of its own, from sockets at both
//! ends, and keeps the result as a certificate.
//!
//! What happens to a packet is decided in `emulate` alone, so that a link in real time and one in
//! virtual time are the same.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod around;
pub mod calibrate;
pub mod link;
