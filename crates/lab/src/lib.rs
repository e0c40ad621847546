//! The lab: two sites, an emulated WAN, real servers and real clients on one Linux machine.
//!
//! ```text
//!  client ── near node ══ emulated WAN ══ far node ── server      (a network namespace each)
//! ```
//! [`topology`] makes the network, [`servers`] and [`workload`] fill it with traffic, [`nodes`]
//! runs Trunkline in it, [`browser`] drives a real browser, [`machine`] boots another kernel for its
//! SMB client, [`recording`] captures and evaluates the traffic, [`campaign`] runs the demo,
//! [`cells`] runs campaigns, and [`report`] writes the results.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod browser;
pub mod campaign;
pub mod cells;
pub mod machine;
pub mod mailbox;
pub mod nodes;
pub mod preflight;
pub mod recording;
pub mod report;
pub mod servers;
pub mod site;
pub mod topology;
pub mod workload;
