//! Connections to hosts on the LAN side: clients' that were accepted, and servers' that were
//! opened for the engine.

mod connect;
mod connection;
mod outcome;

pub(crate) use connect::{open, reset};
pub(crate) use connection::{ConnectionCommand, serve};
pub(crate) use outcome::{ClientOutcome, WaitingClient};
