//! Prefetch: the far half asks the server for what a page needs before the client does.
//!
//! ```text
//!   server ──page──► far half ──► scanner ──► targets ──► further connections to the server
//!                       └─────page, then the responses ahead of their requests──────► near half
//! ```
//! `document.rs` scans what streams through (`page.rs` HTML, `style.rs` CSS), `links.rs` reads `Link`, `reference.rs`
//! resolves references, and `subresource.rs` says which of them may be asked for.

mod document;
mod links;
mod page;
mod reference;
mod style;
mod subresource;

/// Bytes of a URL at most. Subresources with longer ones are rare, and each is kept until it is fetched.
const URL_MAX: usize = 1_024;
/// Decoded bytes of one document that are scanned at most. What is needed first is named first, and a larger page is
/// a list or a log.
const SCANNED_MAX: usize = 1 << 20;
/// References of one document that are looked at, most of them repetitions.
const REFERENCES_MAX: usize = 1_024;
