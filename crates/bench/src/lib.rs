//! Measurements of this machine, of the project itself and of its rivals.
//!
//! [`sessions`] measures two sessions, in virtual time and between two nodes; [`reduction`]
//! measures data reduction; [`smb`] clients of file shares with and without a pair of nodes;
//! [`http`] a browser and other web clients; [`mapi`] mail clients;
//! [`peers`] the emulator in comparison with the kernel's shaper and policer; [`labelled`] the
//! diagnosis on the kernel's policers and shapers; [`known_links`] the turn-up tester on links with
//! known figures.
//!
//! `site.rs`, `lanes.rs` and `references.rs` are the common parts of benches over the lab's network.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod http;
pub mod known_links;
pub mod labelled;
pub mod lanes;
pub mod lines;
pub mod mapi;
pub mod peers;
mod realm;
pub mod reasons;
pub mod reduction;
mod references;
pub mod sessions;
mod site;
pub mod smb;
