//! The daemon around an engine: sockets, TLS, files and privileges; it decides nothing about
//! protocols.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod config;
pub mod identity;
pub mod pairing;
pub mod tls;
