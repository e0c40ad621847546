//! Measurements of this machine, of the project itself and of its rivals.
//!
//! [`sessions`] measures two sessions, in virtual time and between two nodes; [`reduction`] data
//! reduction; [`smb`] clients of file shares beside and through a pair of nodes; [`peers`] the
//! emulator beside the kernel's shaper and policer; [`labelled`] the diagnosis on policers and
//! shapers of the kernel; [`known_links`] the turn-up tester on links whose figures are known.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod known_links;
pub mod labelled;
pub mod peers;
pub mod reduction;
pub mod sessions;
pub mod smb;
