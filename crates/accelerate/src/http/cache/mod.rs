//! A shared cache of HTTP responses (RFC 9111), without their content.
//!
//! It decides what may be stored, what answers a request, and what has to be asked for anew. Content is
//! named by a handle `H` that it does not look into. Time is handed in as [`WallTime`], since ages are
//! computed from the dates of servers.
//!
//! ```text
//!   request ──► Index::look_up ──► Miss ───────────────► server ──► Index::store
//!                    │     │
//!                    │     └─► Stale(validators) ──────► server ──► 304: Index::freshen
//!                    └───────► Fresh ──► client                     else: Index::store
//! ```
//!
//! `policy.rs` says whether and how long, `stored.rs` what is kept and sent, `index.rs` what is where, and
//! `log.rs` how it is written to disk.
//!
//! It stores responses to GET only, and none that is partial. It answers one range of a stored response (`range.rs`). It obeys `CDN-Cache-Control` (RFC 9213) before
//! Cache-Control, and it is stricter than RFC 9111 has to be in two ways: `private` and `no-cache` with field
//! names hold for the whole response, and a response that sets a cookie is stored only if it says `public` or
//! `s-maxage`.

pub(in crate::http) mod date;
mod directives;
mod index;
mod invalidation;
mod key;
pub(crate) mod log;
mod policy;
mod prefetched;
mod range;
mod stored;
mod structured;
#[cfg(any(test, feature = "testing"))]
pub(super) mod testing;
#[cfg(test)]
mod tests;
mod vary;

use bytes::Bytes;

pub(crate) use index::{CacheIndex, IndexChange, LookUp};
pub(crate) use invalidation::CacheGeneration;
pub(crate) use key::{CacheKey, UrlScheme, key_prefix};
pub(crate) use prefetched::ResponseReuse;
pub(crate) use range::single_range;
pub(crate) use stored::{RequestConditions, ResponseValidators, StoredResponse};

/// Of the time for which a response had not changed, one part in so many is heuristically fresh
/// (RFC 9111 §4.2.2 names 10 %).
const HEURISTIC_FRACTION: u64 = 10;
/// Seconds of heuristic freshness at most. Longer than a day a guess would outlive a working day's change.
const HEURISTIC_MAX_S: u64 = 86_400;

/// Where the content of a response is; what that means is its owner's matter.
pub(crate) trait Content: Clone {
    /// Bytes of memory that it takes itself.
    fn held(&self) -> usize;
    /// Bytes by which the log stores it.
    fn to_bytes(&self) -> Bytes;
    /// The content that a log has kept so.
    fn from_bytes(bytes: Bytes) -> Self;
}

/// Milliseconds since 1970, from a clock that may be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WallTime(pub(crate) u64);

impl WallTime {
    /// Whole seconds since 1970.
    pub(crate) fn seconds(self) -> i64 {
        (self.0 / 1_000) as i64
    }

    /// Milliseconds since an earlier moment; none where the clock was set back.
    pub(crate) fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
