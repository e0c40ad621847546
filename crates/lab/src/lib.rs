//! The lab: two sites, an emulated WAN, real servers and real clients on one Linux machine.
//!
//! ```text
//!  client ── near node ══ emulated WAN ══ far node ── server      (a network namespace each)
//! ```
//! [`topology`] makes the network, [`servers`] and [`workload`] fill it with traffic, [`nodes`]
//! runs Trunkline in it, [`capture`] records and reads out what happened, [`campaign`] says in
//! which order, and [`report`] writes it down. [`run`] remembers all that was made and removes
//! it, whatever happens.
//!
//! It measures programs from outside: nodes, emulator, servers and clients are processes of their
//! own, and nothing here knows how a node works. Two modules do: [`sessions`], two sessions in virtual
//! time, and [`reduction`], an encoder and a decoder with their dictionaries.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod around;
pub mod calibrate;
pub mod campaign;
pub mod capture;
pub mod command;
mod drawing;
pub mod host;
pub mod kernel;
pub mod known_links;
pub mod labelled;
pub mod link;
mod median;
pub mod nodes;
pub mod peers;
pub mod preflight;
pub mod process;
pub mod progress;
pub mod reduction;
pub mod report;
pub mod rootless;
pub mod run;
pub mod servers;
pub mod sessions;
pub mod site;
pub mod smb;
pub mod terminal;
pub mod topology;
pub mod turnup;
pub mod wait;
pub mod workload;

use std::ffi::OsString;
use std::path::PathBuf;

/// What the lab has to be told about where it runs; the binary reads it from its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The `trunkline` program that emulator and nodes are started from.
    pub program: PathBuf,
    /// What this process was started with, should it have to be started again.
    pub arguments: Vec<OsString>,
    /// Whether this process is already the root of a user namespace of the lab's own.
    pub user_namespace: rootless::Inside,
}
