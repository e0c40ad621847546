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
//! link, so that they may travel in packets as well, in any order: [`transport`] sends those, with
//! [`packet`] (seals), [`recovery`] (losses), [`congestion`] (rates) and [`fec`] (correction) under it.
//! This crate reads no clock and opens nothing.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
pub mod congestion;
pub mod credit;
mod error;
mod event;
pub mod fec;
pub mod limits;
pub mod packet;
mod ranges;
pub mod recovery;
mod session;
mod statistics;
pub mod transport;
pub mod wire;

pub use config::SessionConfig;
pub use error::{OpenError, SessionError};
pub use event::{
    ConnectFailure, DatagramAgreement, LinkEnd, LinkId, OpenAnswer, OpenRequest, ResetReason,
    SessionEvent,
};
pub use session::{CarriedFrame, Session};
pub use statistics::{FlowStatistics, SessionStatistics};
