//! What two nodes say to each other: hello, flows with offsets, acknowledgements, credits.
//!
//! A [`Session`] stands for one peer. It outlives the links it runs over: a link is a reliable
//! byte pipe that a shell has opened and authenticated (TLS over TCP), and when one is lost the
//! flows wait, and go on over the next without losing or repeating a byte.
//!
//! ```text
//!  engine ── open, write, finish, send_message ──►┌─────────┐── poll_transmit ─► link
//!         ◄─ poll_event, read ────────────────────│ Session │◄─ handle ───────── link
//!                                                 └─────────┘◄─ handle_timeout ─ clock
//! ```
//!
//! [`wire`] holds the frames, `session` the machine. Frames are acknowledged here and not by the
//! link, so another kind of link (datagrams with their own loss recovery) can go underneath.
//! This crate reads no clock, opens nothing and encrypts nothing.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod error;
mod event;
pub mod limits;
mod session;
mod statistics;
pub mod wire;

pub use config::Config;
pub use error::{Error, OpenError};
pub use event::{Answer, ConnectFailure, Event, LinkId, Open, ResetReason};
pub use session::Session;
pub use statistics::{FlowStatistics, Statistics};
