//! WAN session between two nodes: hello, flows with offsets, acknowledgements, credits.
//!
//! A [`Session`] stands for one peer. It outlives its links. A link is a reliable byte pipe that a
//! shell has opened and authenticated (TLS over TCP). When a link is lost the flows wait and
//! continue over the next link without losing or repeating a byte.
//!
//! ```text
//!  engine ── open, write, finish, send_message ──►┌─────────┐── poll_transmit ─► link
//!         ◄─ poll_event, read ────────────────────│ Session │◄─ handle ───────── link
//!                                                 └─────────┘◄─ handle_timeout ─ clock
//! ```
//!
//! [`wire`] holds the frames, `session` the state machine. Frames are acknowledged by the session
//! and not by the link, so that they may also travel in packets, in any order. [`transport`] sends
//! packets, on top of [`packet`] (sealing), [`recovery`] (losses), [`congestion`] (rates) and
//! [`fec`] (correction). This crate reads no clock and opens nothing.

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
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
