//! Administration: a socket in the state directory, for its owner alone, and the client to it.
//!
//! One request and one answer, each a line of JSON, then the connection is closed:
//!
//! ```text
//!   {"ask":"status"}  {"ask":"flows"}  {"ask":"why","flow":7}  {"ask":"reload"}
//!   {"ask":"reload","remove_peers":true,"remove_restrictions":true}
//!   {"ask":"clear-dictionary"}
//!   {"ask":"purge","accelerator":"http","prefix":"http://intranet/"}
//! ```

mod client;
mod purge;
mod server;
pub mod tables;

pub use client::{AdminRequest, AskError, ask};
pub(crate) use purge::DictionaryPurge;
pub(crate) use server::{AdminContext, NO_SOCKET, bind, listen};
