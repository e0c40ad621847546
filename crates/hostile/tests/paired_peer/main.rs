//! Attacks by a compromised paired peer on a real engine, in virtual time.
//!
//! ```text
//! hostile peer: a session of its own ═link═► engine ──► servers, clients, disk: all in `site.rs`
//! honest peer:  a session of its own ═link═►   │
//!                                              └ what must hold: docs/SECURITY.md, "Attackers"
//! ```
//! Each file is one kind of attack and asserts the peer's present gain. Add a file for a further
//! kind; its needs of the environment go into [`site`].
#![allow(clippy::unwrap_used)]

mod dictionary;
mod frames;
mod opens;
mod reasons;
mod repairs;
mod site;
