//! Two nodes, the path between them, and hosts with scripts at both ends, in virtual time.
//!
//! ```text
//!  client ── near node ══ emulate::Link ══ far node ── server
//!  (script    (engine,                      (engine,    (scripts of HTTP,
//!   over tcp)  LAN by tcp)                   LAN by tcp)  FTP, SMB and MAPI)
//!      └─ tap        └─ tap
//! ```
//! The TCP of all hosts and nodes is the crate `tcp`, the path is `emulate`, the nodes are two engines
//! with their sessions by UDP, forward error correction, data reduction and accelerators. Without
//! nodes, client and server are at the ends of the link. LANs take no time.
//!
//! A [`SimulatedSite`] transfers files and records the packets at the client and at the near end of
//! the link. Time jumps from one event to the next, and one seed gives one result.
//!
//! Nodes take no processor time. Programs of hosts react after a fixed time ([`HostLatency`]). The session's TLS connection carries its frames in the
//! clear, and the dictionary is in memory only.

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod host;
mod node;
mod packet;
mod path_keys;
mod recording;
mod scripts;
mod site;

pub use path_keys::{LAN_ADDRESSES, LANS, public_path_keys, site_surroundings};
pub use recording::{SiteRecording, TappedHeader, TappedPacket};
pub use scripts::{MailGeneration, SimulatedWorkload};
pub use site::{
    HostLatency, NodeCorrection, NodeSettings, SimulatedSite, SimulationFailure, SiteSettings,
    TransferOutcome,
};
