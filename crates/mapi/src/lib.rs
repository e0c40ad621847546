//! The accelerator of MAPI: Outlook's connections to Exchange over DCE/RPC.
//!
//! ```text
//!  client ──► near half: associations opened ──plain stubs──► far half: sealed again ──► server
//!             │                                               │
//!             └─ rpc/ PDUs, security · emsmdb/ calls · rop/ remote operations of a mailbox
//! ```
//! | folder | content |
//! | --- | --- |
//! | `rpc/` | DCE/RPC ([MS-RPCE], C706): PDUs, fragments, associations and their protection |
//! | `emsmdb/` | the calls of the mailbox interface ([MS-OXCRPC]) and the coding of their buffers |
//! | `rop/` | the remote operations in these buffers ([MS-OXCROPS]) |
//! | `http/` | MAPI over HTTP ([MS-OXCMAPIHTTP]), the second carrier of these buffers |
//!
//! It does no I/O. It uses the contract, the credentials and the settings of `accelerate`.

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
#![cfg_attr(any(test, feature = "testing"), allow(clippy::unwrap_used))]

mod config;
pub mod emsmdb;
mod entry;
pub mod epm;
mod epm_watch;
mod far;
mod frames;
mod http;
mod learnt_ports;
mod near;
mod protected;
mod reasons;
pub mod rop;
pub mod rpc;
mod shared;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use config::MapiSettings;
pub use entry::ENTRY;

#[cfg(test)]
mod tests;
