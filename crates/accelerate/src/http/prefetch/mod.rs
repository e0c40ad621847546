//! Prefetch: the far half asks the server for what a page needs before the client does.
//!
//! ```text
//!   server ──page──► far half ──► ScannedDocument ──► FetchQueue ──► further connections to the server
//!                       └─────page, then the responses ahead of their requests──────► near half ──► AheadTable
//!   client ──request──► near half (any flow of that client's) ──► answered from AheadTable or the cache
//! ```
//! `document.rs` scans what streams through (`page.rs` HTML, `style.rs` CSS), `links.rs` reads `Link`, `reference.rs`
//! resolves references, and `subresource.rs` says which of them may be asked for. `far.rs` queues (`queue.rs`) and
//! fetches (`fetch.rs`) them; `memory.rs` says what is not worth it. `near.rs` takes what comes, and `table.rs` is what
//! the near halves share. Both make the same requests (`request.rs`) and speak in frames (`frames.rs`).
//!
//! Never does it hold up, alter or reorder what the hosts say to each other, and what came for one client answers no
//! other, unless the shared cache may have it by its own rules.

mod document;
mod far;
#[cfg(test)]
mod far_tests;
mod fetch;
mod frames;
mod links;
mod memory;
mod near;
#[cfg(test)]
mod near_tests;
mod page;
mod queue;
mod reference;
mod request;
mod settings;
mod style;
mod subresource;
mod table;
#[cfg(any(test, feature = "testing"))]
pub(super) mod testing;

use std::time::Duration;

pub(super) use far::FarPrefetch;
pub(super) use memory::FarMemory;
pub(super) use near::{AheadAnswer, NearPrefetch};
pub use settings::{HostPattern, InvalidHostPattern, PrefetchSettings};
pub(super) use table::{AheadTable, AskingClient, FlowLane};

/// Bytes of a URL at most. Subresources with longer ones are rare, and each is kept until it is fetched.
const URL_MAX: usize = 1_024;
/// Decoded bytes of one document that are scanned at most. What is needed first is named first, and a larger page is
/// a list or a log.
const SCANNED_MAX: usize = 1 << 20;
/// References of one document that are looked at, most of them repetitions.
const REFERENCES_MAX: usize = 1_024;
/// Levels of a page: the page itself, what it names, and what the style sheets among that name.
const LEVELS_MAX: u8 = 3;

/// Bytes of the request that a page's others are made of. Cookies may have 4 KiB each, and servers take heads of 8 KiB.
const CONTEXT_MAX: usize = 8 << 10;
/// Bytes of the head of a response that is sent ahead; servers stop at 8 KiB for requests, and responses have less.
const RESPONSE_HEAD_MAX: usize = 8 << 10;
/// Pages of one flow whose subresources are fetched. A browser has its further pages on other connections.
const PAGES_MAX: usize = 8;
/// Responses for one page. Pages of the web name 70 in the median, of all servers together.
const OBJECTS_PER_PAGE: u16 = 128;
/// Bytes for one page: four times what such pages have in the median.
const BYTES_PER_PAGE: u64 = 8 << 20;
/// Bytes of one response. What is longer is a video or a download, of which only a part may be wanted.
const OBJECT_MAX: u64 = 1 << 20;
/// Subresources of one flow that wait.
const QUEUED_MAX: usize = 256;
/// Connections of one flow for prefetches: as many as a browser has to one server.
const CONNECTIONS_MAX: usize = 6;
/// Connections of all flows for prefetches to one server: four clients' pages at a time.
const SERVER_CONNECTIONS_MAX: usize = 24;
/// Bytes from which on a response is sent while it comes. Up to this length, six fit in the memory of one flow.
const STREAMED_FROM: usize = 64 << 10;

/// For how long a response to the client goes first after its last byte.
const YIELDS_FOR: Duration = Duration::from_millis(50);
/// How long a server may be silent. A page that needs it has been given up by then.
const STALLED_AFTER: Duration = Duration::from_secs(5);
/// How long a connection stays open without a request, for what style sheets and the next page name.
const IDLE_FOR: Duration = Duration::from_secs(2);
/// How long a server has to close a connection that was ended.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);
/// For how long a URL that the client asked for is not asked for again.
const ASKED_FOR: Duration = Duration::from_secs(5);

/// URLs that a far node remembers, in each of two lists: some 100 pages.
const NAMES_MAX: usize = 16_384;
/// Fetches of a host that may fail in a row before it is left alone for [`STOPPED_FOR`]. A page may name a few objects that
/// are gone; more of them cost the server requests for nothing.
const FAILURES_MAX: u32 = 5;
const STOPPED_FOR: Duration = Duration::from_secs(300);

/// Browsers of which a far node remembers which images they take, and the longest list that it keeps.
const ACCEPTS_MAX: usize = 64;
const ACCEPT_MAX: usize = 256;

/// Responses that are on their way on one flow.
const ARRIVING_MAX: usize = 2 * QUEUED_MAX;
/// How long a response is held for its client. A page asks for what it names within seconds.
const HELD_FOR: Duration = Duration::from_secs(10);
/// How long a request waits while nothing comes ahead on the flow, and how long at all.
const PATIENCE: Duration = Duration::from_secs(2);
const WAITS_MAX: Duration = Duration::from_secs(10);
/// Bytes of memory for what is on its way or held at a near node, without content: some 2,500 responses.
const HELD_MAX: usize = 8 << 20;
/// Responses that wait to be judged.
const JUDGED_MAX: usize = 8_192;
/// Hosts whose hits are counted; beyond them all counts begin anew.
const HOSTS_MAX: usize = 1_024;
/// Responses of a host that are judged before its share of hits says anything.
const JUDGED_MIN: u32 = 20;
/// Responses for one page of a host whose responses nobody asks for: they show when that changes.
const OBJECTS_MIN: u16 = 2;
