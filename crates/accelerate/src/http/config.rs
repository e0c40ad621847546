//! What can be set of the accelerator, and its limits.

/// What the operator decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether flows to HTTP servers are followed. By default they are reduced and carried like any
    /// other.
    pub is_on: bool,
    /// Whether responses are stored for other clients of the site.
    pub caches: bool,
}

impl Default for Settings {
    /// Off; where it is switched on, with a cache.
    fn default() -> Self {
        Self {
            is_on: false,
            caches: true,
        }
    }
}

/// Requests of one flow that may be under way. Browsers pipeline none, and other clients some tens; each
/// takes some dozens of bytes.
pub(crate) const PIPELINED_MAX: usize = 1_024;

/// Bytes of content of one response that is stored: what a page is made of, and no downloads. The content is kept
/// in memory.
pub(crate) const OBJECT_MAX: usize = 1 << 20;

/// Bytes of content in all: some thousand objects of a page, of a branch's 4 GB of memory one part in sixty.
pub(crate) const CONTENT_MAX: u64 = 64 << 20;

/// Bytes of keys and heads of stored responses: some ten thousand, at 1 to 2 kB each.
pub(crate) const INDEX_MAX: usize = 16 << 20;
