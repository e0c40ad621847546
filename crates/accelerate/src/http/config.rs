//! The settings of the accelerator, and its limits.

use std::sync::Arc;
use std::time::Duration;

use super::prefetch::PrefetchSettings;
use super::tls::config::TlsSettings;

/// The operator's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// True if flows to HTTP servers are followed. By default they are reduced and carried like any
    /// other.
    pub is_on: bool,
    /// True if responses are stored for other clients of the site.
    pub caches: bool,
    /// Whose HTTPS is intercepted; `None` where the configuration has no `[http.tls]`.
    pub tls: Option<Arc<TlsSettings>>,
    /// Prefetches. The near half needs the cache for them.
    pub prefetch: PrefetchSettings,
}

impl Default for HttpSettings {
    /// Off; where it is switched on, with a cache.
    fn default() -> Self {
        Self {
            is_on: false,
            caches: true,
            tls: None,
            prefetch: PrefetchSettings::default(),
        }
    }
}

/// Requests of one flow that may be under way. Browsers pipeline none, and other clients some tens; each
/// takes some dozens of bytes.
pub(crate) const PIPELINED_MAX: usize = 1_024;

/// How long the flow of a client that says nothing stays unopened: servers on such a port that speak first are rare.
pub(crate) const OPEN_AFTER: Duration = Duration::from_secs(1);

/// Bytes that may wait behind an answer which is being read from the dictionary, or behind the question whether it
/// still holds. The engine reads at most 128 KiB of a client that waits; what a server sends for a client after such an
/// answer is an error page.
pub(crate) const HELD_MAX: usize = 1 << 20;

/// Bytes of keys, heads and handles of stored responses: some ten thousand, at 1 to 3 kB each. A branch has 4 GB of
/// memory.
pub(crate) const INDEX_MAX: usize = 32 << 20;
