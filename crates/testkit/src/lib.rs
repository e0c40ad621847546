//! A virtual clock and pairs of machines over an emulated path, for tests and simulations.
//!
//! ```text
//!   machine A ──transmit──► path (BytePipe or emulate::Link, each way) ──receive──► machine B
//!             ◄──receive──                                             ◄──transmit──
//! ```
//!
//! Nothing sleeps. [`MachinePair`] jumps from one due moment to the next ([`earliest`], [`VirtualClock`]), so
//! an hour on a slow link passes in milliseconds, and always in the same way. A test whose world
//! has more than two machines drives [`BytePipe`]s and [`emulate::Link`]s itself by the same
//! contract: drain every `poll` to `None`, then let the clock go to the earliest `poll_timeout`.
//!
//! [`TcpHostPair`] is two hosts of the crate `tcp` at the ends of a link.
//!
//! It uses vocab, tcp and emulate only; other machines are the tests'.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod byte_pipe;
mod pair;
mod schedule;
mod tcp_pair;

pub use byte_pipe::{BytePipe, PipeConfig, SEGMENT_BYTES};
pub use pair::{MachinePair, MachinePath, RunOutcome, TestMachine};
pub use schedule::{VirtualClock, earliest};
pub use tcp_pair::TcpHostPair;
