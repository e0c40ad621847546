//! MAPI over HTTP ([MS-OXCMAPIHTTP]): the carrier of a mailbox's calls since Outlook 2013.
//!
//! ```text
//!  POST … X-RequestType: Execute ──► near half ─ stub ─► TacticsNear ══► TacticsFar ─ stub ─► far half ──► POST
//!  any other request             ──► near half ─ stub with its head, and its body ────────► far half ──► as it is
//! ```
//! The machines of `rop::tactics` take the calls, as they take those of DCE/RPC. `heads.rs` reads and
//! writes the fields around a call, `meta.rs` the lines in front of an answer, and `sequences.rs`
//! keeps the cookies that a server renews with each answer.
//!
//! | state of the near half | client's bytes | leads to |
//! | --- | --- | --- |
//! | passing | pass at once | following, between two requests, when the far half is ready; let go |
//! | following | one request at a time | blind, closed |
//! | blind | pass at once | |
//!
//! Bytes pass unchanged while the near half is passing, so either half can let go. While it follows,
//! the far half makes requests of its own between those of the client. A request that is not read
//! waits for its turn among them, and it and its response pass unchanged but for the sequence cookie.
//! NotificationWait is such a request: only the server answers it.
//!
//! The accelerator `http` builds the halves too, for connections that carry MAPI (`carried.rs`).
//!
//! It does not understand HTTP/2, TLS, or compressed bodies.

mod carried;
mod far;
mod heads;
mod meta;
mod near;
mod sequences;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub(crate) use carried::HttpMailProtocol;
pub(crate) use far::HttpMailFarHalf;
pub(crate) use near::HttpMailNearHalf;
pub(crate) use sequences::SequenceTable;
