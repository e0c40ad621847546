//! Connections to hosts on the LAN side: clients' that were accepted, and servers' that were
//! opened for the engine.

mod connect;
mod connection;
mod outcome;

pub(crate) use connect::{Failed, open};
pub(crate) use connection::{Command, reset, serve};
pub(crate) use outcome::{Asked, Outcome};
