//! Attacks of a paired peer that was taken over, on a real engine, in virtual time.
//!
//! ```text
//! hostile peer: a session of its own ═link═► engine ──► servers, clients, disk: all in `site.rs`
//! honest peer:  a session of its own ═link═►   │
//!                                              └ what must hold: docs/SECURITY.md, "Who is considered"
//! ```
//! Each file is one kind of attack, with what the peer gains today written as an assertion. A further
//! kind is a further file; what it needs of the surroundings goes into [`site`].
#![allow(clippy::unwrap_used)]

mod dictionary;
mod frames;
mod opens;
mod reasons;
mod repairs;
mod site;
