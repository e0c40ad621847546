//! What the flows of one node share: the cache, and what it costs.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use vocab::Time;

use super::cache::{Index, Key, Limits, WallTime};
use super::config::{CONTENT_MAX, INDEX_MAX};

/// The shared cache as one flow sees it.
#[derive(Clone, Debug)]
pub(super) struct SharedCache {
    /// The server of the flow.
    server: SocketAddr,
    /// Milliseconds since 1970 at [`Time::ZERO`].
    epoch_ms: u64,
    index: Arc<Mutex<Index<Bytes>>>,
}

impl SharedCache {
    /// An empty cache.
    pub(super) fn new(server: SocketAddr, epoch_ms: u64) -> Self {
        let limits = Limits {
            memory: INDEX_MAX,
            content: CONTENT_MAX,
        };
        Self {
            server,
            epoch_ms,
            index: Arc::new(Mutex::new(Index::new(limits))),
        }
    }

    /// The same cache for a flow to another server.
    pub(super) fn for_server(&self, server: SocketAddr) -> Self {
        Self {
            server,
            ..self.clone()
        }
    }

    pub(super) fn index(&self) -> MutexGuard<'_, Index<Bytes>> {
        // An engine's flows take turns, so the lock is never waited for; a panic ends the engine.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The moment on the calendar.
    pub(super) fn wall(&self, now: Time) -> WallTime {
        WallTime(self.epoch_ms + now.as_nanos() / 1_000_000)
    }

    /// The key of a request on this flow.
    pub(super) fn key(&self, head: &super::wire::RequestHead) -> Option<Key> {
        Key::of(self.server, head)
    }
}
