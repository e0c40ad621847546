//! Link models: rate, delay, loss and queues, in whatever time they are handed.
//!
//! A [`Link`] is two independent [`Direction`]s. A packet that enters a direction passes a queue
//! and a line of some rate (the bottleneck), then random loss, then the propagation delay:
//!
//! ```text
//! handle ─► queue (bytes, drop-tail) ─► line (rate) ─► loss ─► delay ─► poll_output
//!           bottleneck.rs                              loss.rs  delay.rs
//! ```
//!
//! The same models carry the packets of a lab in real time and those of a test in virtual time,
//! because time and chance come in from outside. Every later model (a policer, an AQM, jitter,
//! bursts of loss, a trace, a device model) is one more file that takes one of these places in
//! `direction.rs`.
//!
//! It opens no device, reads no clock, and does not look inside packets.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bottleneck;
mod config;
mod counters;
mod delay;
mod direction;
mod link;
mod loss;

pub use config::{ConfigError, DirectionConfig, LinkConfig, RATE_MAX};
pub use counters::{Counters, Tally};
pub use direction::{Delivery, Direction, DropReason, Fate, HELD_BYTES_MAX, HELD_PACKETS_MAX};
pub use link::Link;
