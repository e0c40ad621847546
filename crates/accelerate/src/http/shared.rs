//! State that all HTTP flows of one node share: the cache, and the time on the calendar.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use vocab::Time;

use super::account::{FlowAccount, HttpTotals};
use super::cache::{self, Index, Key, Scheme, WallTime};
use super::config::{INDEX_MAX, Settings};
use super::far::Far;
use super::near::Near;
use super::tls::{OriginFacts, TlsState};
use crate::settings::AcceleratorSettings;
use crate::shared::{
    AcceleratorReport, HalfContext, PurgeCount, SharedHandle, SharedInput, SharedOutput,
    SharedState, StartContext,
};
use crate::{AcceleratorHalf, ContentHandle, WanEnd};

/// The shared state of HTTP in one engine.
pub(super) struct HttpState {
    settings: Settings,
    /// `None` until the calendar is known: without it no age can be computed.
    cache: Option<SharedCache>,
    /// Bytes of memory that the index may hold.
    memory_max: usize,
    tls: TlsState,
    outputs: VecDeque<SharedOutput>,
    /// What became of all requests.
    totals: SharedHandle<HttpTotals>,
}

impl HttpState {
    /// With nothing stored.
    pub(super) fn new(settings: Settings, context: &StartContext) -> Self {
        Self {
            tls: TlsState::new(settings.tls.clone()),
            settings,
            cache: None,
            memory_max: INDEX_MAX.min(context.memory_max),
            outputs: VecDeque::new(),
            totals: SharedHandle::new(HttpTotals::default()),
        }
    }

    fn purge(&self, prefix: &str) -> PurgeCount {
        let Some(cache) = &self.cache else {
            return PurgeCount::default();
        };
        cache.with(|shared| shared.index.purge(prefix.as_bytes()))
    }
}

impl SharedState for HttpState {
    fn configure(&mut self, settings: &Arc<dyn AcceleratorSettings>) {
        self.settings = settings.expect::<Settings>().clone();
        self.tls.configure(self.settings.tls.clone());
        if !self.settings.caches {
            self.cache = None;
        }
    }

    fn set_calendar(&mut self, now: Time, since_1970: Duration) {
        self.tls.set_calendar(now, since_1970);
        if !self.settings.caches {
            return;
        }
        let clock = Calendar { now, since_1970 };
        let memory_max = self.memory_max;
        let cache = self
            .cache
            .get_or_insert_with(|| SharedCache::new(clock, memory_max));
        cache.with(|shared| shared.calendar = clock);
    }

    fn build(&mut self, half: WanEnd, context: HalfContext) -> Box<dyn AcceleratorHalf> {
        // What is decided by the server's port must be decided alike at both nodes.
        let is_clear = super::ENTRY.ports.contains(&context.server.port());
        match half {
            WanEnd::Near if !is_clear => {
                let (client, server) = (context.client.ip(), context.server);
                Box::new(self.tls.near(client, server, self.cache.clone()))
            }
            WanEnd::Far if !is_clear => Box::new(self.tls.far()),
            WanEnd::Near => {
                let cache = self.cache.as_ref();
                let cache = cache.map(|cache| cache.for_server(context.server));
                Box::new(Near::new(cache).with_account(FlowAccount::new(self.totals.clone())))
            }
            WanEnd::Far => Box::new(Far::new()),
        }
    }

    fn handle(&mut self, _: Time, input: SharedInput) {
        match input {
            SharedInput::Purge { id, prefix } => {
                let result = Ok(self.purge(&prefix));
                self.outputs.push_back(SharedOutput::Purged { id, result });
            }
            SharedInput::Shrink { to } => {
                if let Some(cache) = &self.cache {
                    cache.with(|shared| shared.index.shrink(to));
                }
            }
            SharedInput::Start
            | SharedInput::File(_)
            | SharedInput::Timeout
            | SharedInput::FlowEnded(_)
            | SharedInput::Stop => {}
        }
    }

    fn poll_output(&mut self) -> Option<SharedOutput> {
        self.outputs.pop_front()
    }

    fn buffered(&self) -> usize {
        let cache = self.cache.as_ref();
        let index = cache.map_or(0, |cache| cache.with(|shared| shared.index.held()));
        index + self.tls.held()
    }

    fn report(&self) -> Option<AcceleratorReport> {
        Some(self.totals.with(|totals| totals.report()))
    }

    fn keeps_content(&self) -> bool {
        true
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

/// The index of stored responses, and the time on the calendar.
#[derive(Debug)]
pub(super) struct Shared {
    calendar: Calendar,
    /// The stored responses.
    pub(super) index: Index<Content>,
}

/// The shared cache as one flow sees it.
#[derive(Clone, Debug)]
pub(super) struct SharedCache {
    /// The server of the flow.
    server: SocketAddr,
    /// The names that the server has proved to have; `None` for a connection without TLS, where none does.
    proved: Option<Arc<OriginFacts>>,
    shared: SharedHandle<Shared>,
}

impl SharedCache {
    /// An empty cache, for no server yet, whose index holds at most `memory_max` bytes.
    pub(super) fn new(calendar: Calendar, memory_max: usize) -> Self {
        let index = Index::new(memory_max);
        Self {
            server: SocketAddr::from(([0, 0, 0, 0], 0)),
            proved: None,
            shared: SharedHandle::new(Shared { calendar, index }),
        }
    }

    /// The same cache for a flow to this server.
    pub(super) fn for_server(&self, server: SocketAddr) -> Self {
        let shared = self.shared.clone();
        Self {
            server,
            proved: None,
            shared,
        }
    }

    /// The same cache for a flow to this server inside TLS, which has proved these names.
    pub(super) fn for_proved_server(&self, server: SocketAddr, proved: Arc<OriginFacts>) -> Self {
        Self {
            proved: Some(proved),
            ..self.for_server(server)
        }
    }

    /// Works on what is shared.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Shared) -> R) -> R {
        self.shared.with(work)
    }

    /// The moment on the calendar.
    pub(super) fn wall(&self, now: Time) -> WallTime {
        self.with(|shared| shared.calendar.wall(now))
    }

    /// The server of the flow.
    pub(super) fn server(&self) -> SocketAddr {
        self.server
    }

    /// The key of a request on this flow.
    pub(super) fn key(&self, head: &super::wire::RequestHead) -> Option<Key> {
        let Some(proved) = &self.proved else {
            return Key::of(self.server, Scheme::Http, head);
        };
        // A host that the server has not proved to be is none of this connection's.
        let host = std::str::from_utf8(head.fields.single("host")?).ok()?;
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let is_proved = proved.covers(&host.to_ascii_lowercase());
        let key = is_proved.then(|| Key::of(self.server, Scheme::Https, head));
        key.flatten()
    }
}
