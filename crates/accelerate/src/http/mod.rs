//! HTTP/1.1: messages told apart, so that their heads do not break up repeated content.
//!
//! A response's head holds a date and often a cookie, and changes each time; its body does not. The
//! halves send heads, chunk sizes and trailers as control segments and bodies as payload segments
//! ([`vocab::SegmentKind`]), so the dictionary sees the same body whatever its head says. Bytes are
//! neither added nor removed nor reordered, and none waits for the rest of a body.
//!
//! ```text
//!  client ──► near half: requests framed ──control, payload──► far half ──► server
//!  client ◄── near half: responses framed ◄─control, payload── far half: responses framed ◄── server
//! ```
//!
//! Specifications: RFC 9110 (HTTP Semantics), RFC 9112 (HTTP/1.1).
//!
//! | state of the near half | holds | leads to |
//! | --- | --- | --- |
//! | following | the begin of a request head and of a response head; what waits behind an answer of its own | draining, server ended, ended, let go |
//! | draining | the begin of a response head | let go, when the responses that are due have ended |
//! | server ended | nothing | |
//! | ended | nothing: it has told the client that the connection ends | |
//! | parting | nothing: all passes, but for what comes ahead | let go, when nothing comes ahead any more |
//! | let go | nothing | |
//!
//! The near half answers from a cache that all flows of the node share (`shared.rs`, `cache/`). Content is in the node's
//! dictionary; the cache keeps heads and handles. Content that the dictionary has lost is a miss.
//!
//! Clients that miss the same URL at once wait for the first of them (`collapse.rs`).
//! The far half fetches ahead what pages name (`prefetch/`), and the near half answers with it. The table's row *parting* is
//! about that: while responses ahead of their requests may come, bytes of the flow are not all the client's.
//! Connections whose first request shows another accelerator's protocol belong to that one (`carried.rs`).
//! A revalidation that both nodes have seen before costs two short frames (`recall/`).
//!
//! When it lets go: at a message that another implementation could understand differently
//! (`wire::FramingFault`), at CONNECT, after 101 (Switching Protocols), and when a client sends on behind a
//! request for an upgrade that is not answered. It lets go only while all bytes have passed unchanged; after it has asked
//! something else than its client, it closes the flow instead. The far
//! half never lets go: where it cannot follow, it sends everything as payload.
//!
//! It does not decode content codings, and it holds no message back to see its end.

mod account;
mod cache;
mod carried;
mod collapse;
mod config;
mod entry;
mod far;
mod h2;
mod near;
mod parts;
mod prefetch;
pub(crate) mod reasons;
mod recall;
mod shared;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod wire;

pub use config::HttpSettings;
pub use entry::ENTRY;
pub use prefetch::{HostPattern, InvalidHostPattern, PrefetchSettings};
