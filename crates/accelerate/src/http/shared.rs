//! What the flows of one node share: the cache, and the time on the calendar.
#![expect(
    clippy::disallowed_types,
    reason = "one engine owns all flows that share the index, and they take turns"
)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vocab::Time;

use super::cache::{self, Index, Key, WallTime};
use super::config::{INDEX_MAX, Settings};
use super::far::Far;
use super::near::Near;
use crate::settings::AcceleratorSettings;
use crate::shared::{HalfContext, SharedState};
use crate::{Accelerator, ContentHandle, Half};

/// What one engine keeps for all flows of HTTP.
pub(super) struct HttpState {
    settings: Settings,
    /// `None` until the calendar is known: without it no age can be computed.
    cache: Option<SharedCache>,
}

impl HttpState {
    /// With nothing stored.
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            cache: None,
        }
    }
}

impl SharedState for HttpState {
    fn configure(&mut self, settings: &Arc<dyn AcceleratorSettings>) {
        self.settings = *settings.expect::<Settings>();
        if !self.settings.caches {
            self.cache = None;
        }
    }

    fn set_calendar(&mut self, now: Time, since_1970: Duration) {
        if !self.settings.caches {
            return;
        }
        let clock = Calendar { now, since_1970 };
        let cache = self.cache.get_or_insert_with(|| SharedCache::new(clock));
        cache.shared().calendar = clock;
    }

    fn build(&mut self, half: Half, context: HalfContext) -> Box<dyn Accelerator> {
        match half {
            Half::Near => {
                let cache = self.cache.as_ref();
                let cache = cache.map(|cache| cache.for_server(context.server));
                Box::new(Near::new(cache))
            }
            Half::Far => Box::new(Far::new()),
        }
    }
}

/// A moment of the engine's clock, and which one on the calendar it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calendar {
    /// The engine's time.
    pub(super) now: Time,
    /// The same moment, since 1970.
    pub(super) since_1970: Duration,
}

impl Calendar {
    fn wall(self, now: Time) -> WallTime {
        let moment = self.since_1970 + now.since(self.now);
        WallTime(moment.as_millis() as u64)
    }
}

/// Where the content of a stored response is.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// In the dictionary; `None` where there is no content.
    pub(super) handle: Option<ContentHandle>,
}

impl cache::Content for Content {
    fn held(&self) -> usize {
        self.handle
            .as_ref()
            .map_or(0, |handle| handle.to_bytes().len())
    }
}

/// What is shared.
#[derive(Debug)]
pub(super) struct Shared {
    calendar: Calendar,
    /// What is stored.
    pub(super) index: Index<Content>,
}

/// The shared cache as one flow sees it.
#[derive(Clone, Debug)]
pub(super) struct SharedCache {
    /// The server of the flow.
    server: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

impl SharedCache {
    /// An empty cache, for no server yet.
    pub(super) fn new(calendar: Calendar) -> Self {
        let index = Index::new(INDEX_MAX);
        Self {
            server: SocketAddr::from(([0, 0, 0, 0], 0)),
            shared: Arc::new(Mutex::new(Shared { calendar, index })),
        }
    }

    /// The same cache for a flow to this server.
    pub(super) fn for_server(&self, server: SocketAddr) -> Self {
        let shared = Arc::clone(&self.shared);
        Self { server, shared }
    }

    /// What is shared, for one use.
    pub(super) fn shared(&self) -> MutexGuard<'_, Shared> {
        // The lock is never waited for, since the engine's flows take turns. A panic ends the engine.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The moment on the calendar.
    pub(super) fn wall(&self, now: Time) -> WallTime {
        self.shared().calendar.wall(now)
    }

    /// The key of a request on this flow.
    pub(super) fn key(&self, head: &super::wire::RequestHead) -> Option<Key> {
        Key::of(self.server, head)
    }
}
