//! State that all HTTP flows of one node share: the cache, its log on disk, and the time on the calendar.
//!
//! ```text
//!   halves ──► index ──changes──► log ──► disk
//!                └◄── records of an earlier run, while flows use the index already
//! ```

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vocab::{SeededRandom, Time};

use super::account::HttpTotals;
use super::cache::{self, CacheIndex, CacheKey, IndexChange, LookUp, UrlScheme, WallTime, log};
use super::carried::CarriedProtocols;
use super::collapse::CollapseTable;
use super::config::{HttpSettings, INDEX_MAX};
use super::parts::{FarHalfParts, NearHalfParts};
use super::prefetch::{AheadTable, FarMemory, PrefetchSettings};
use super::recall::RecallMemory;
use super::tls::{ProvedOrigin, TlsState};
use crate::settings::AcceleratorSettings;
use crate::shared::{
    AcceleratorReport, DiskTrouble, HalfContext, LogEvent, PurgeCount, SealedLog, SharedHandle,
    SharedInput, SharedOutput, SharedState, StartContext,
};
use crate::{AcceleratorHalf, CarriedFlow, CarriedProtocol, ContentHandle, WanEnd};

/// The name of the index's files.
const LOG_NAME: &str = "index";

/// The shared state of HTTP in one engine.
pub(super) struct HttpState {
    settings: HttpSettings,
    /// `None` until the calendar is known: without it no age can be computed.
    cache: Option<SharedCache>,
    /// `None` where the node keeps no content on disk.
    log: Option<SealedLog>,
    /// The number of the rewrite of the log that goes on, and the last response that it has.
    snapshot: Option<(u64, Option<u64>)>,
    /// Purges that wait until all is read back.
    asked_purges: Vec<(u64, String)>,
    /// Purges that are answered once the log was written anew.
    purges: Vec<PendingPurge>,
    /// Bytes of memory that the index may hold.
    memory_max: usize,
    tls: TlsState,
    now: Time,
    prefetch: Arc<PrefetchSettings>,
    /// Prefetched responses, shared by near halves.
    ahead: SharedHandle<AheadTable>,
    /// Memory of the far halves for prefetches.
    far_memory: SharedHandle<FarMemory>,
    /// Exchanges that the far halves have tagged.
    recall: SharedHandle<RecallMemory>,
    /// For numbers of sites.
    random: SeededRandom,
    outputs: VecDeque<SharedOutput>,
    /// Totals of all requests.
    totals: SharedHandle<HttpTotals>,
    /// The calendar time as it was said last.
    clock: Option<HttpCalendar>,
    /// The protocols that connections may carry.
    carriable: Arc<[Arc<dyn CarriedProtocol>]>,
}

/// A purge that is not durable yet.
struct PendingPurge {
    rewrite: u64,
    id: u64,
    purged: PurgeCount,
}

impl HttpState {
    /// With nothing stored.
    pub(super) fn new(settings: HttpSettings, context: StartContext) -> Self {
        let mut random = context.random;
        let (site, secret) = (random.next_u64(), random.next_u64());
        let recall = RecallMemory::new(
            context.memory_max / 8,
            SeededRandom::from_seed(random.next_u64()),
        );
        let sites = SeededRandom::from_seed(random.next_u64());
        let log = context.key.map(|key| SealedLog::new(LOG_NAME, key, random));
        Self {
            tls: TlsState::new(settings.tls.clone()),
            prefetch: Arc::new(settings.prefetch.clone()),
            ahead: SharedHandle::new(AheadTable::new(site)),
            far_memory: SharedHandle::new(FarMemory::new(secret)),
            recall: SharedHandle::new(recall),
            settings,
            cache: None,
            log,
            snapshot: None,
            asked_purges: Vec::new(),
            purges: Vec::new(),
            memory_max: INDEX_MAX.min(context.memory_max),
            now: Time::ZERO,
            random: sites,
            outputs: VecDeque::new(),
            totals: SharedHandle::new(HttpTotals::default()),
            clock: None,
            carriable: Arc::default(),
        }
    }

    /// Responses are stored, and requests that invalidate them are seen.
    fn stores(&self) -> bool {
        self.settings.is_on && self.settings.caches
    }

    /// Clients will miss what the far halves remember as carried.
    fn begin_site(&mut self) {
        let site = self.random.next_u64();
        self.ahead.with(|ahead| ahead.begin_site(site));
        self.far_memory.with(FarMemory::forget);
        self.recall.with(RecallMemory::forget);
    }

    fn near_parts(&self, context: &HalfContext) -> NearHalfParts {
        let table = || (self.ahead.clone(), Arc::clone(&self.prefetch));
        let prefetches = self.prefetch.is_on && self.settings.caches;
        NearHalfParts {
            flow: context.flow,
            client: context.client.ip(),
            totals: self.totals.clone(),
            prefetch: prefetches.then(table),
            carried: self.carried(context),
        }
    }

    fn far_parts(&self, context: &HalfContext) -> FarHalfParts {
        let memory = || (self.far_memory.clone(), Arc::clone(&self.prefetch));
        FarHalfParts {
            client: context.client.ip(),
            server: context.server,
            prefetch: self.prefetch.is_on.then(memory),
            recall: self.recall.clone(),
            carried: self.carried(context),
        }
    }

    fn carried(&self, context: &HalfContext) -> CarriedProtocols {
        CarriedProtocols {
            known: Arc::clone(&self.carriable),
            flow: CarriedFlow {
                flow: context.flow,
                client: context.client,
                server: context.server,
                may_store: true,
            },
        }
    }

    fn purge(&mut self, id: u64, prefix: &str) {
        let cache = self.cache.as_ref();
        let prefix = cache::key_prefix(prefix);
        let purged = cache.map(|cache| cache.with(|shared| shared.index.purge(&prefix)));
        let rewrite = self.log.as_mut().map_or(0, SealedLog::rewrite);
        self.purges.push(PendingPurge {
            rewrite,
            id,
            purged: purged.unwrap_or_default(),
        });
    }

    /// Stores from here on, once the calendar time is known: at the start, and when the settings switch the cache on.
    fn start_storing(&mut self) {
        let (true, None, Some(clock)) = (self.stores(), &self.cache, self.clock) else {
            return;
        };
        let cache = SharedCache::new(clock, self.memory_max);
        if let Some(log) = &mut self.log {
            cache.with(|shared| shared.index.begin_recovery());
            log.start();
            log.resume(self.now);
        }
        self.cache = Some(cache);
    }

    /// Stores nothing from here on. What is on disk goes, because nobody would see what invalidates it.
    fn stop_storing(&mut self) {
        self.begin_site();
        self.cache = None;
        self.snapshot = None;
        if let Some(log) = &mut self.log {
            log.discard(self.now);
        }
    }

    /// Brings the log up to date with the index, and the index with what is read of the log.
    fn follow(&mut self) {
        let Some(log) = &mut self.log else {
            if let Some(cache) = &self.cache {
                cache.with(|shared| while shared.index.poll_change().is_some() {});
            }
            for (id, prefix) in std::mem::take(&mut self.asked_purges) {
                self.purge(id, &prefix);
            }
            return self.answer_purges(None);
        };
        let mut failure = None;
        while let Some(event) = log.poll_event() {
            match (event, &self.cache) {
                (LogEvent::Record { kind, body }, Some(cache)) => cache.with(|shared| {
                    let now = shared.calendar.wall(self.now);
                    shared.index.recover(now, kind, &body);
                }),
                (LogEvent::Recovered(damage), cache) => {
                    if let Some(cache) = cache {
                        cache.with(|shared| shared.index.end_recovery(damage.is_any()));
                    }
                    if damage.is_any() {
                        let (files, records) = (damage.files, damage.records);
                        let trouble = DiskTrouble::Damaged { files, records };
                        let output = SharedOutput::DiskTrouble(trouble);
                        self.outputs.push_back(output);
                    }
                }
                (LogEvent::Failed(fault), _) => {
                    failure = Some(format!(
                        "the purged content was removed from memory, but its index entries may still be on \
                         disk: {fault}; remove accelerators/http in the state directory, or free disk space \
                         and purge again"
                    ));
                    let trouble = DiskTrouble::Failed(fault);
                    let output = SharedOutput::DiskTrouble(trouble);
                    self.outputs.push_back(output);
                }
                (LogEvent::Record { .. }, None) => {}
            }
        }
        if !log.is_recovering() {
            for (id, prefix) in std::mem::take(&mut self.asked_purges) {
                self.purge(id, &prefix);
            }
        }
        if let (Some(log), Some(cache)) = (&mut self.log, &self.cache) {
            let (now, snapshot) = (self.now, &mut self.snapshot);
            cache.with(|shared| shared.follow(now, log, snapshot));
        }
        self.answer_purges(failure);
    }

    /// Answers the purges that are durable; all that wait where there is a failure.
    fn answer_purges(&mut self, failure: Option<String>) {
        let purges = std::mem::take(&mut self.purges);
        for purge in purges {
            let log = self.log.as_ref();
            let is_durable = log.is_none_or(|log| log.is_rewritten(purge.rewrite));
            let result = match (is_durable, &failure) {
                (true, _) => Ok(purge.purged),
                (false, Some(failure)) => Err(failure.clone()),
                (false, None) => {
                    self.purges.push(purge);
                    continue;
                }
            };
            let id = purge.id;
            self.outputs.push_back(SharedOutput::Purged { id, result });
        }
    }
}

impl SharedState for HttpState {
    fn configure(&mut self, settings: &Arc<dyn AcceleratorSettings>) {
        self.settings = settings.expect::<HttpSettings>().clone();
        self.tls.configure(self.settings.tls.clone());
        self.prefetch = Arc::new(self.settings.prefetch.clone());
        match self.stores() {
            true => self.start_storing(),
            false => self.stop_storing(),
        }
    }

    fn set_calendar(&mut self, now: Time, since_1970: Duration) {
        self.now = now;
        self.tls.set_calendar(now, since_1970);
        let clock = HttpCalendar { now, since_1970 };
        self.far_memory.with(|memory| memory.set_calendar(clock));
        self.clock = Some(clock);
        if let Some(cache) = &self.cache {
            cache.with(|shared| shared.calendar = clock);
        }
        self.start_storing();
    }

    fn build(&mut self, half: WanEnd, context: HalfContext) -> Box<dyn AcceleratorHalf> {
        // What is decided by the server's port must be decided alike at both nodes.
        let is_clear = super::ENTRY.ports.contains(&context.server.port());
        match half {
            WanEnd::Near => {
                let parts = self.near_parts(&context);
                let cache = self.cache.as_ref();
                match is_clear {
                    true => {
                        let cache = cache.map(|cache| cache.for_flow(context.flow, context.server));
                        Box::new(parts.build(cache, true))
                    }
                    false => Box::new(self.tls.near(context.server, cache.cloned(), parts)),
                }
            }
            WanEnd::Far => {
                let parts = self.far_parts(&context);
                match is_clear {
                    true => Box::new(parts.build_only()),
                    false => Box::new(self.tls.far(parts)),
                }
            }
        }
    }

    fn carry(&mut self, protocols: &[Arc<dyn CarriedProtocol>]) {
        self.carriable = protocols.into();
    }

    fn handle(&mut self, now: Time, input: SharedInput) {
        self.now = now;
        match input {
            SharedInput::Start if !self.stores() => self.stop_storing(),
            SharedInput::Purge { id, prefix } => {
                let written = cache::key_prefix(&prefix);
                self.ahead.with(|ahead| ahead.purge(&written));
                self.begin_site();
                self.asked_purges.push((id, prefix));
            }
            SharedInput::Shrink { to } => {
                self.ahead.with(AheadTable::forget_all);
                self.far_memory.with(FarMemory::forget);
                self.recall.with(RecallMemory::forget);
                let log = self.log.as_ref().map_or(0, SealedLog::held);
                if let Some(cache) = &self.cache {
                    cache.with(|shared| shared.index.shrink(to.saturating_sub(log)));
                }
            }
            SharedInput::File(completion) => {
                if let Some(log) = &mut self.log {
                    log.handle(now, completion);
                }
            }
            SharedInput::Timeout => {
                self.ahead.with(|ahead| ahead.timeout(now));
                if let Some(log) = &mut self.log {
                    log.handle_timeout(now);
                }
            }
            SharedInput::ContentCleared { key } => {
                self.begin_site();
                self.ahead.with(AheadTable::forget_all);
                if let Some(cache) = &self.cache {
                    cache.with(|shared| {
                        shared.index.end_recovery(true);
                        shared.index.clear();
                    });
                }
                if let Some(log) = &mut self.log {
                    log.replace_key(now, key);
                }
            }
            SharedInput::Stop => {
                self.follow();
                if let Some(log) = &mut self.log {
                    log.stop();
                }
            }
            SharedInput::FlowEnded(flow) => self.ahead.with(|ahead| ahead.flow_ended(flow)),
            SharedInput::Start => {}
        }
    }

    fn poll_output(&mut self) -> Option<SharedOutput> {
        let cache = self.cache.as_ref();
        let wake = cache.and_then(|cache| cache.with(|shared| shared.collapse.poll_wake()));
        if let Some(flow) = wake {
            return Some(SharedOutput::Wake(flow));
        }
        self.follow();
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if let Some(flow) = self.ahead.with(AheadTable::poll_wake) {
            return Some(SharedOutput::Wake(flow));
        }
        if let Some(request) = self.log.as_mut()?.poll_request() {
            return Some(SharedOutput::File(request));
        }
        // A rewrite may have ended just now.
        self.answer_purges(None);
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        let log = self.log.as_ref().and_then(SealedLog::poll_timeout);
        let ahead = self.ahead.with(|ahead| ahead.poll_timeout());
        log.into_iter().chain(ahead).min()
    }

    fn buffered(&self) -> usize {
        let cache = self.cache.as_ref();
        let index = cache.map_or(0, |cache| cache.with(|shared| shared.index.held()));
        let ahead = self.ahead.with(|ahead| ahead.held());
        let memory = self.far_memory.with(|memory| memory.held());
        let log = self.log.as_ref().map_or(0, SealedLog::held);
        let recall = self.recall.with(|recall| recall.held());
        index + ahead + memory + recall + log + self.tls.held()
    }

    fn report(&self) -> Option<AcceleratorReport> {
        Some(self.totals.with(|totals| totals.report()))
    }

    fn keeps_content(&self) -> bool {
        true
    }
}

#[cfg(any(test, feature = "testing"))]
impl HttpState {
    /// Stores an empty page of the host `web` that is fresh for a day.
    ///
    /// # Panics
    /// When it cannot be stored.
    pub(super) fn store_page(&self, path: &str) {
        use super::wire::{MessagePart, Requests, ResponseHead};
        let cache = self.cache.as_ref().expect("the calendar is known");
        let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\n\r\n");
        let step = Requests::new()
            .step(request.as_bytes())
            .map(|step| step.what);
        let Ok(MessagePart::Head(head, _)) = step else {
            panic!("the request has a head");
        };
        let response = "HTTP/1.1 200 OK\r\nCache-Control: max-age=86400\r\n\r\n";
        let response = ResponseHead::parse(Bytes::from(response)).expect("it is a head");
        let key = cache.key(&head).expect("the URL has one reading");
        let wall = cache.wall(self.now);
        let stored = cache.with(|shared| {
            let content = (SharedContent::default(), 0);
            (shared.index).store(wall, wall, &key, (&head, &response), content)
        });
        stored.expect("it may be stored");
    }
}

/// A moment of the engine's clock, and which one on the calendar it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct HttpCalendar {
    /// The engine's time.
    pub(super) now: Time,
    /// The same moment, since 1970.
    pub(super) since_1970: Duration,
}

impl HttpCalendar {
    pub(super) fn wall(self, now: Time) -> WallTime {
        let moment = self.since_1970 + now.since(self.now);
        WallTime(moment.as_millis() as u64)
    }
}

/// Where the content of a stored response is.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedContent {
    /// In the dictionary; `None` where there is no content.
    pub(super) handle: Option<ContentHandle>,
}

impl cache::Content for SharedContent {
    fn held(&self) -> usize {
        self.handle
            .as_ref()
            .map_or(0, |handle| handle.to_bytes().len())
    }

    fn to_bytes(&self) -> Bytes {
        let handle = self.handle.as_ref();
        handle.map(ContentHandle::to_bytes).unwrap_or_default()
    }

    fn from_bytes(bytes: Bytes) -> Self {
        let handle = (!bytes.is_empty()).then(|| ContentHandle::from_bytes(bytes));
        Self { handle }
    }
}

/// The index of stored responses, and the time on the calendar.
#[derive(Debug)]
pub(super) struct HttpSharedState {
    calendar: HttpCalendar,
    /// The stored responses.
    pub(super) index: CacheIndex<SharedContent>,
    /// Requests that wait for the response to another.
    pub(super) collapse: CollapseTable,
}

impl HttpSharedState {
    /// Appends to the log what has changed, and what it wants of all that is stored.
    fn follow(
        &mut self,
        now: Time,
        log: &mut SealedLog,
        snapshot: &mut Option<(u64, Option<u64>)>,
    ) {
        let index = &mut self.index;
        let append = |log: &mut SealedLog, index: &CacheIndex<SharedContent>, id| {
            if let Some(record) = index.record(id) {
                log.append(now, log::STORED, &record);
            }
        };
        while let Some(change) = index.poll_change() {
            match change {
                IndexChange::Stored(id) => append(log, index, id),
                IndexChange::Removed(id) => log.append(now, log::REMOVED, &log::emit_removed(id)),
            }
        }
        while let Some(number) = log.wants_snapshot() {
            let last = snapshot.filter(|(of, _)| *of == number);
            match index.after(last.and_then(|(_, last)| last)) {
                Some(id) => {
                    append(log, index, id);
                    *snapshot = Some((number, Some(id)));
                }
                None => log.finish_snapshot(),
            }
        }
    }
}

/// The shared cache as one flow sees it.
#[derive(Clone, Debug)]
pub(super) struct SharedCache {
    /// The server of the flow.
    server: SocketAddr,
    /// The flow's number; `None` where its half has no way to pass on that it is woken.
    flow: Option<u64>,
    /// The proof of the server's identity; `None` for a connection without TLS.
    proved: Option<Arc<ProvedOrigin>>,
    shared: SharedHandle<HttpSharedState>,
}

impl SharedCache {
    /// An empty cache, for no server yet, whose index holds at most `memory_max` bytes.
    pub(super) fn new(calendar: HttpCalendar, memory_max: usize) -> Self {
        // A million responses a millisecond are not stored, so that the next run begins above them.
        let first_id = (calendar.since_1970.as_millis() as u64) << 20;
        let index = CacheIndex::new(memory_max, first_id);
        Self {
            server: SocketAddr::from(([0, 0, 0, 0], 0)),
            flow: None,
            proved: None,
            shared: SharedHandle::new(HttpSharedState {
                calendar,
                index,
                collapse: CollapseTable::default(),
            }),
        }
    }

    /// The same cache for a flow with this number to this server.
    pub(super) fn for_flow(&self, flow: u64, server: SocketAddr) -> Self {
        let shared = self.shared.clone();
        Self {
            server,
            flow: Some(flow),
            proved: None,
            shared,
        }
    }

    /// The same cache for a flow to this server inside TLS, which has proved these names.
    pub(super) fn for_proved_server(&self, server: SocketAddr, proved: Arc<ProvedOrigin>) -> Self {
        Self {
            server,
            flow: None,
            proved: Some(proved),
            shared: self.shared.clone(),
        }
    }

    /// The number of the flow, if it can be woken.
    pub(super) fn flow(&self) -> Option<u64> {
        self.flow
    }

    /// Works on what is shared.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut HttpSharedState) -> R) -> R {
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

    /// Looks for a stored response to a request. Where the server's certificate was verified too long ago, or has
    /// expired, the server has to confirm the response.
    pub(super) fn look_up(
        &self,
        now: Time,
        key: &CacheKey,
        head: &super::wire::RequestHead,
    ) -> LookUp<SharedContent> {
        let wall = self.wall(now);
        let found = self.with(|shared| shared.index.look_up(wall, key, head));
        match self.may_stand_for_server(now) {
            true => found,
            false => found.until_confirmed(head),
        }
    }

    /// True if stored responses may be used without the server: it has proved who it is a short time ago, or need not.
    pub(super) fn may_stand_for_server(&self, now: Time) -> bool {
        let proved = self.proved.as_ref();
        proved.is_none_or(|proved| proved.is_current(now))
    }

    /// The key of a request on this flow.
    pub(super) fn key(&self, head: &super::wire::RequestHead) -> Option<CacheKey> {
        let Some(proved) = &self.proved else {
            return CacheKey::of(self.server, UrlScheme::Http, head);
        };
        // A host that the server has not proved to be, or that is excluded, is none of this connection's.
        let host = std::str::from_utf8(head.fields.single("host")?).ok()?;
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let is_proved = proved.answers_for(&host.to_ascii_lowercase());
        let key = is_proved.then(|| CacheKey::of(self.server, UrlScheme::Https, head));
        key.flatten()
    }
}
