//! The far half's part: finds what a page needs, fetches it, and sends it ahead.
//!
//! ```text
//!   page passes ──► named ──► FetchQueue ──► FetchConnection (6 further connections) ──► Head, Part, Done to the near half
//! ```
//! It never touches what passes. What is fetched is put out behind what has passed, and not at all while a response to
//! the client is flowing on the same flow, unless a client waits for it. Its limits are in `mod.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vocab::{FlowSegment, Time};

use super::document::{NamedSubresource, ScannedDocument};
use super::fetch::FetchConnection;
use super::frames::{PageId, PrefetchFrame, PrefetchId};
use super::links;
use super::memory::{CARRIED_MAX, CopyHolder, FarMemory, FetchFailure};
use super::queue::{FetchCandidate, FetchQueue, PROMISED_FOR};
use super::reference::DocumentUrl;
use super::request::PageContext;
use super::settings::PrefetchSettings;
use super::subresource::{SubresourceKind, is_prefetchable};
use super::{
    ASKED_FOR, BYTES_PER_PAGE, CLOSED_WITHIN, CONNECTIONS_MAX, IDLE_FOR, LEVELS_MAX,
    OBJECTS_PER_PAGE, PAGES_MAX, QUEUED_MAX, STALLED_AFTER, STREAMED_FROM, YIELDS_FOR,
};
use crate::http::cache::{CacheKey, ResponseReuse, UrlScheme};
use crate::http::config::PIPELINED_MAX;
use crate::http::near::{asks_connection_login, offers_connection_login};
use crate::http::wire::{BodyFraming, HttpVersion, RequestHead, ResponseHead, has_option};
use crate::shared::SharedHandle;
use crate::{AcceleratorOutput, ServerCommand, ServerConnection, ServerEvent, ServerFailure};

/// The prefetches of one far half.
#[derive(Debug)]
pub(in crate::http) struct FarPrefetch {
    memory: SharedHandle<FarMemory>,
    settings: Arc<PrefetchSettings>,
    client: IpAddr,
    server: SocketAddr,
    scheme: UrlScheme,
    /// Prefetches that the near half accepts; `None` until it has said so.
    allowance: Option<NearAllowance>,
    /// Nothing is fetched any more.
    is_over: bool,
    /// The client logs in for the whole connection (NTLM, Negotiate), and further connections are not logged in.
    has_connection_login: bool,
    /// Requests whose responses have not ended; `None` for those that name nothing.
    requests: VecDeque<Option<FollowedRequest>>,
    /// The document that passes.
    document: Option<(PageId, u8, ScannedDocument)>,
    /// The latest pages, the newest last.
    pages: VecDeque<NamingPage>,
    pages_total: u32,
    promised_total: u32,
    queue: FetchQueue,
    fetches: BTreeMap<ServerConnection, FetchConnection>,
    connections_max: usize,
    /// The connection whose response is being put out.
    sends: Option<ServerConnection>,
    /// When content of a response to the client passed, if that has not ended.
    own_content_at: Option<Time>,
    /// Payload was put out since a body last ended.
    has_open_body: bool,
    fetched: u64,
    fetched_bytes: u64,
    cancelled: u64,
    outputs: VecDeque<AcceleratorOutput>,
}

/// Prefetches that the near half accepts.
#[derive(Clone, Copy, Debug)]
struct NearAllowance {
    site: u64,
    objects: u16,
}

/// A request of the client's for something that may name subresources.
#[derive(Clone, Debug)]
struct FollowedRequest {
    key: CacheKey,
    request: RequestHead,
    /// The page that was made of it.
    page: Option<PageId>,
}

/// A page, or a style sheet that the client asked for itself.
#[derive(Debug)]
struct NamingPage {
    id: PageId,
    url: DocumentUrl,
    context: PageContext,
    /// The near half has the context.
    is_announced: bool,
    objects_left: u16,
    bytes_left: u64,
}

impl FarPrefetch {
    /// For a flow between these hosts.
    pub(in crate::http) fn new(
        memory: SharedHandle<FarMemory>,
        settings: Arc<PrefetchSettings>,
        client: IpAddr,
        server: SocketAddr,
    ) -> Self {
        Self {
            memory,
            settings,
            client,
            server,
            scheme: UrlScheme::Http,
            allowance: None,
            is_over: false,
            has_connection_login: false,
            requests: VecDeque::new(),
            document: None,
            pages: VecDeque::new(),
            pages_total: 0,
            promised_total: 0,
            queue: FetchQueue::default(),
            fetches: BTreeMap::new(),
            connections_max: CONNECTIONS_MAX,
            sends: None,
            own_content_at: None,
            has_open_body: false,
            fetched: 0,
            fetched_bytes: 0,
            cancelled: 0,
            outputs: VecDeque::new(),
        }
    }

    /// The same, for URLs of this scheme.
    pub(in crate::http) fn with_scheme(mut self, scheme: UrlScheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// Takes a request of the client's, which passes.
    pub(in crate::http) fn note_request(&mut self, now: Time, head: &RequestHead) {
        if self.is_over {
            return;
        }
        if self.requests.len() >= PIPELINED_MAX {
            return self.end(now);
        }
        self.has_connection_login |= asks_connection_login(&head.fields);
        let followed = self.followed(now, head);
        self.requests.push_back(followed);
    }

    fn followed(&mut self, now: Time, head: &RequestHead) -> Option<FollowedRequest> {
        let allowance = self.allowance?;
        let is_plain = head.method() == b"GET" && head.target().starts_with(b"/");
        if !is_plain || head.fields.has("range") || self.has_connection_login {
            return None;
        }
        let key = CacheKey::of(self.server, self.scheme, head)?;
        let client = CopyHolder::Client(allowance.site, self.client);
        let accept = head.fields.single("accept").unwrap_or_default();
        let browser = head.fields.single("user-agent").unwrap_or_default();
        self.memory.with(|memory| {
            memory.note_asked(now, client, self.server, &key.url);
            memory.note_image_accept(browser, accept);
        });
        Some(FollowedRequest {
            key,
            request: head.clone(),
            page: None,
        })
    }

    /// Takes the head of a response to the client, before it passes.
    pub(in crate::http) fn note_head(&mut self, now: Time, head: &ResponseHead, body: BodyFraming) {
        self.has_connection_login |= offers_connection_login(&head.fields);
        let Some(Some(followed)) = self.requests.front() else {
            return;
        };
        if self.is_over || self.has_connection_login {
            return;
        }
        let (key, request) = (followed.key.clone(), followed.request.clone());
        if !head.is_interim() {
            self.note_carried(now, &key, &request, head);
        }
        let is_early = head.status == 103;
        let has_end = is_early || matches!(body, BodyFraming::Fixed(_) | BodyFraming::Chunked);
        // Behind a response that ends the connection nothing can be sent.
        let stays = [&request.fields, &head.fields]
            .iter()
            .all(|fields| !has_option(fields, "connection", "close"))
            && request.version == HttpVersion::Http11
            && head.version == HttpVersion::Http11;
        let is_document = request
            .fields
            .single("sec-fetch-dest")
            .is_none_or(|what| matches!(what, b"document" | b"iframe" | b"frame" | b"style"));
        if !(is_early || head.status == 200) || !has_end || !stays || !is_document {
            return;
        }
        let Some(url) = DocumentUrl::parse(&key.url) else {
            return;
        };
        let document = match is_early {
            true => None,
            false => ScannedDocument::of(url.clone(), head),
        };
        let named = links::named_by(&url, &head.fields);
        if document.is_none() && named.is_empty() {
            return;
        }
        let Some(page) = self.page(&url, &request, head) else {
            return;
        };
        // A style sheet that the client asks for is named by a page.
        let is_sheet = document.as_ref().is_some_and(ScannedDocument::is_style);
        let level = if is_sheet { 2 } else { 1 };
        self.document = document.map(|document| (page, level, document));
        self.add(now, page, level, named);
    }

    /// The page that the response in front belongs to.
    fn page(
        &mut self,
        url: &DocumentUrl,
        request: &RequestHead,
        head: &ResponseHead,
    ) -> Option<PageId> {
        let allowance = self.allowance?;
        let followed = self.requests.front_mut()?.as_mut()?;
        if let Some(page) = followed.page {
            return Some(page);
        }
        if !self.settings.allows(url.origin()) {
            return None;
        }
        let browser = request.fields.single("user-agent").unwrap_or_default();
        let accept = self.memory.with(|memory| memory.image_accept(browser));
        let sends_referer = !head.fields.has("referrer-policy");
        let context = PageContext::of(request, url, sends_referer, &accept)?;
        self.pages_total += 1;
        let id = PageId(self.pages_total);
        followed.page = Some(id);
        self.pages.push_back(NamingPage {
            id,
            url: url.clone(),
            context,
            is_announced: false,
            objects_left: allowance.objects.min(OBJECTS_PER_PAGE),
            bytes_left: BYTES_PER_PAGE,
        });
        if self.pages.len() > PAGES_MAX {
            self.pages.pop_front();
        }
        Some(id)
    }

    /// Takes content of a response to the client, before it passes.
    pub(in crate::http) fn note_content(&mut self, now: Time, content: &[u8]) {
        self.own_content_at = Some(now);
        self.has_open_body = true;
        if self.is_over {
            return;
        }
        if let Some((page, level, document)) = &mut self.document {
            let (page, level) = (*page, *level);
            let named = document.scan(content);
            self.add(now, page, level, named);
        }
    }

    /// The response in front has ended.
    pub(in crate::http) fn note_end(&mut self, now: Time) {
        self.requests.pop_front();
        self.document = None;
        self.own_content_at = None;
        self.has_open_body = false;
        self.send(now);
    }

    /// Queues what a document of this level names.
    fn add(&mut self, now: Time, page: PageId, level: u8, named: Vec<NamedSubresource>) {
        let Some(allowance) = self.allowance else {
            return;
        };
        let Some(page) = self.pages.iter_mut().find(|known| known.id == page) else {
            return;
        };
        let (memory, origin) = (&self.memory, page.url.origin());
        if memory.with(|memory| memory.is_stopped(now, self.server, origin)) {
            return;
        }
        let (server, client) = (self.server, CopyHolder::Client(allowance.site, self.client));
        let first = PrefetchId(self.promised_total + 1);
        let mut promised = Vec::new();
        for NamedSubresource { kind, target } in named {
            if page.objects_left == 0 || self.queue.len() >= QUEUED_MAX {
                break;
            }
            let url = page.url.with_target(target.clone()).to_bytes();
            let is_new = self.memory.with(|memory| {
                let is_held =
                    memory.is_carried(now, CopyHolder::Site(allowance.site), server, &url)
                        || memory.is_carried(now, client, server, &url);
                let asked = memory.asked_at(client, server, &url);
                let is_asked = asked.is_some_and(|at| now.since(at) < ASKED_FOR);
                let is_new = !is_held && !is_asked && is_prefetchable(&target, || asked.is_some());
                if is_new {
                    memory.note_carried(now + PROMISED_FOR, client, server, &url);
                }
                is_new
            });
            if !is_new {
                continue;
            }
            page.objects_left -= 1;
            self.promised_total += 1;
            self.queue.push(FetchCandidate {
                id: PrefetchId(self.promised_total),
                page: page.id,
                kind,
                target: target.clone(),
                level: level + 1,
                promised: now,
                is_wanted: false,
                was_retried: false,
            });
            promised.push(NamedSubresource { kind, target });
        }
        if promised.is_empty() {
            return;
        }
        let page_id = page.id;
        if !page.is_announced {
            page.is_announced = true;
            let head = page.context.to_bytes();
            self.frame(&PrefetchFrame::Context {
                page: page_id,
                head,
            });
        }
        self.frame(&PrefetchFrame::Promises {
            page: page_id,
            first,
            named: promised,
        });
        self.start(now);
    }

    /// Asks the server for what waits, as far as there are connections.
    fn start(&mut self, now: Time) {
        for candidate in self.queue.expire(now) {
            self.cancel(candidate.id);
        }
        while let Some(candidate) = self.queue.pop() {
            if self.was_asked(&candidate) || self.is_stopped(now, &candidate) {
                self.cancel(candidate.id);
                continue;
            }
            let mut fetches = self.fetches.iter();
            let idle = fetches.find(|(_, fetch)| fetch.is_idle());
            let idle = idle.map(|(connection, _)| *connection);
            let Some(connection) = idle.or_else(|| self.open(now)) else {
                self.queue.push(candidate);
                break;
            };
            self.ask(now, connection, candidate);
        }
        if self.fetches.is_empty() {
            // There is no place for a connection, now or for long.
            for candidate in self.queue.clear() {
                self.cancel(candidate.id);
            }
        }
    }

    /// True if the client has asked for it itself meanwhile.
    fn was_asked(&self, candidate: &FetchCandidate) -> bool {
        let (Some(allowance), Some(page)) = (self.allowance, self.page_of(candidate)) else {
            return true;
        };
        let url = page.url.with_target(candidate.target.clone()).to_bytes();
        let client = CopyHolder::Client(allowance.site, self.client);
        let asked = self
            .memory
            .with(|memory| memory.asked_at(client, self.server, &url));
        asked.is_some_and(|at| at >= candidate.promised)
    }

    /// True if fetches of its host failed lately.
    fn is_stopped(&self, now: Time, candidate: &FetchCandidate) -> bool {
        let origin = self.page_of(candidate).map(|page| page.url.origin());
        let is_stopped = |origin| {
            let server = self.server;
            (self.memory).with(|memory| memory.is_stopped(now, server, origin))
        };
        origin.is_some_and(is_stopped)
    }

    /// Counts a fetch that has brought nothing against its host.
    fn note_failure(&self, now: Time, candidate: &FetchCandidate, failure: FetchFailure) {
        if let Some(origin) = self.page_of(candidate).map(|page| page.url.origin()) {
            let server = self.server;
            (self.memory).with(|memory| memory.note_failure(now, server, origin, failure));
        }
    }

    fn page_of(&self, candidate: &FetchCandidate) -> Option<&NamingPage> {
        self.pages.iter().find(|page| page.id == candidate.page)
    }

    fn open(&mut self, now: Time) -> Option<ServerConnection> {
        if self.fetches.len() >= self.connections_max {
            return None;
        }
        let mut numbers = (0..=u8::MAX).map(ServerConnection);
        let connection = numbers.find(|number| !self.fetches.contains_key(number))?;
        if !self
            .memory
            .with(|memory| memory.take_connection(self.server))
        {
            return None;
        }
        self.fetches
            .insert(connection, FetchConnection::new(now + STALLED_AFTER));
        self.command(connection, ServerCommand::Open);
        Some(connection)
    }

    fn ask(&mut self, now: Time, connection: ServerConnection, candidate: FetchCandidate) {
        let page = self.page_of(&candidate);
        let request =
            page.and_then(|page| page.context.request_for(&candidate.target, candidate.kind));
        let (Some(request), Some(fetch)) = (request, self.fetches.get_mut(&connection)) else {
            return self.cancel(candidate.id);
        };
        fetch.ask(now + STALLED_AFTER, candidate);
        self.command(connection, ServerCommand::Write(request.bytes));
    }

    /// Takes what happened to a further connection.
    pub(in crate::http) fn server_event(
        &mut self,
        now: Time,
        connection: ServerConnection,
        event: ServerEvent,
    ) {
        if !self.fetches.contains_key(&connection) {
            return;
        }
        match event {
            ServerEvent::Connected | ServerEvent::Taken(_) => {}
            ServerEvent::Received(bytes) => self.receive(now, connection, bytes),
            ServerEvent::Finished => {
                if let Some(fetch) = self.fetches.get_mut(&connection) {
                    fetch.is_closing = true;
                    fetch.until = now + CLOSED_WITHIN;
                    let current = fetch.current.take_if(|current| !current.is_whole);
                    let was_used = fetch.was_used;
                    self.command(connection, ServerCommand::Finish);
                    if let Some(current) = current {
                        let is_unanswered = current.head.is_none();
                        self.lose(now, current.candidate, was_used && is_unanswered);
                    }
                }
            }
            ServerEvent::ConnectFailed(failure) => {
                let fetch = self.forget(connection);
                self.connections_max = self.fetches.len();
                if let Some(current) = fetch.and_then(|fetch| fetch.current) {
                    // A limit of this node says nothing about the host.
                    if failure != ServerFailure::Limit {
                        self.note_failure(now, &current.candidate, FetchFailure::Failed);
                    }
                    match self.connections_max {
                        0 => self.cancel(current.candidate.id),
                        _ => self.queue.push(current.candidate),
                    }
                }
            }
            ServerEvent::Closed | ServerEvent::Failed => {
                let fetch = self.fetches.get_mut(&connection);
                if let Some(fetch) = fetch.filter(|fetch| fetch.is_whole()) {
                    // It is sent all the same.
                    fetch.is_closing = true;
                    if !std::mem::replace(&mut fetch.is_gone, true) {
                        self.give_places(1);
                    }
                } else if let Some(fetch) = self.forget(connection) {
                    let may_retry = fetch.may_have_been_closed();
                    if let Some(current) = fetch.current {
                        self.lose(now, current.candidate, may_retry);
                    }
                }
            }
        }
        self.send(now);
        self.start(now);
    }

    /// A response does not come on its connection.
    fn lose(&mut self, now: Time, mut candidate: FetchCandidate, may_retry: bool) {
        match may_retry && !candidate.was_retried {
            true => {
                candidate.was_retried = true;
                self.queue.push(candidate);
            }
            false => {
                self.note_failure(now, &candidate, FetchFailure::Failed);
                self.cancel(candidate.id);
            }
        }
    }

    fn receive(&mut self, now: Time, connection: ServerConnection, bytes: Bytes) {
        let Some(fetch) = self.fetches.get_mut(&connection) else {
            return;
        };
        fetch.until = now + STALLED_AFTER;
        let length = bytes.len() as u64;
        let page = fetch.current.as_ref().map(|current| current.candidate.page);
        let page = page.and_then(|page| self.pages.iter_mut().find(|known| known.id == page));
        let has_room = page.as_ref().is_some_and(|page| page.bytes_left >= length);
        if let Some(page) = page {
            page.bytes_left = page.bytes_left.saturating_sub(length);
        }
        let mut named = Vec::new();
        let pages = &self.pages;
        let begin = |candidate: &FetchCandidate, head: &ResponseHead| {
            let is_scanned =
                candidate.kind == SubresourceKind::Style && candidate.level < LEVELS_MAX;
            let page = pages.iter().find(|page| page.id == candidate.page);
            let page = page.filter(|_| is_scanned)?;
            let url = page.url.with_target(candidate.target.clone());
            ScannedDocument::of(url, head)
        };
        let scan = |candidate: &FetchCandidate, document: &mut ScannedDocument, content: &[u8]| {
            named.push((candidate.page, candidate.level, document.scan(content)));
        };
        let received = fetch.receive(bytes, begin, scan);
        if received.is_err() || !has_room {
            let fetch = self.forget(connection);
            self.command(connection, ServerCommand::Reset);
            if let Some(current) = fetch.and_then(|fetch| fetch.current) {
                if let Err(failure) = received {
                    self.note_failure(now, &current.candidate, failure);
                }
                self.cancel(current.candidate.id);
            }
            return;
        }
        // Promises stand before the style sheet that makes the client ask.
        for (page, level, named) in named {
            self.add(now, page, level, named);
        }
        self.send(now);
        let is_sent = self.sends == Some(connection);
        let fetch = self.fetches.get_mut(&connection);
        let current = fetch.and_then(|fetch| fetch.current.as_mut());
        if let Some(current) = current
            && !current.is_whole
            && !current.is_paused
            && !is_sent
            && current.held_bytes >= STREAMED_FROM
        {
            current.is_paused = true;
            self.command(connection, ServerCommand::PauseReading);
        }
    }

    /// Puts out what has been fetched, one response after the other.
    fn send(&mut self, now: Time) {
        while let Some(connection) = self.next_to_send(now) {
            let Some(fetch) = self.fetches.get_mut(&connection) else {
                break;
            };
            let Some(current) = &mut fetch.current else {
                break;
            };
            let id = current.candidate.id;
            if let Some(head) = current.head.as_ref().filter(|_| !current.is_begun) {
                if std::mem::take(&mut self.has_open_body) {
                    self.outputs.push_back(AcceleratorOutput::EndBody);
                }
                let head = head.bytes.clone();
                let frame = PrefetchFrame::Head { id, head };
                self.outputs
                    .push_back(AcceleratorOutput::ToWan(frame.to_segment()));
                current.is_begun = true;
            }
            for bytes in std::mem::take(&mut current.held) {
                let length = bytes.len() as u32;
                let part = PrefetchFrame::Part { id, length };
                self.outputs
                    .push_back(AcceleratorOutput::ToWan(part.to_segment()));
                let content = FlowSegment::payload(bytes);
                self.outputs.push_back(AcceleratorOutput::ToWan(content));
            }
            current.held_bytes = 0;
            if !current.is_whole {
                self.sends = Some(connection);
                if std::mem::take(&mut current.is_paused) {
                    self.command(connection, ServerCommand::ResumeReading);
                }
                break;
            }
            self.sends = None;
            self.finish(now, connection);
        }
    }

    /// The connection whose response is put out next, if one may be.
    fn next_to_send(&self, now: Time) -> Option<ServerConnection> {
        let yields = self.yields_until().is_some_and(|until| now < until);
        let is_wanted = |connection: ServerConnection| {
            let fetch = self.fetches.get(&connection);
            let current = fetch.and_then(|fetch| fetch.current.as_ref());
            current.is_some_and(|current| current.candidate.is_wanted)
        };
        if let Some(connection) = self.sends {
            return (!yields || is_wanted(connection)).then_some(connection);
        }
        let ready = self.fetches.iter().filter_map(|(connection, fetch)| {
            let current = fetch.current.as_ref()?;
            let is_ready = current.head.is_some()
                && (current.is_whole || current.held_bytes >= STREAMED_FROM)
                && (!yields || current.candidate.is_wanted);
            is_ready.then_some((current.candidate.rank(), *connection))
        });
        ready.min().map(|(_, connection)| connection)
    }

    /// Until when the client's own response goes first.
    fn yields_until(&self) -> Option<Time> {
        self.own_content_at.map(|at| at + YIELDS_FOR)
    }

    /// A response has been put out to its end.
    fn finish(&mut self, now: Time, connection: ServerConnection) {
        let Some(fetch) = self.fetches.get_mut(&connection) else {
            return;
        };
        let Some(current) = fetch.current.take() else {
            return;
        };
        let (is_gone, is_closing) = (fetch.is_gone, fetch.is_closing);
        fetch.until = now + IDLE_FOR;
        if current.length > 0 {
            self.outputs.push_back(AcceleratorOutput::EndBody);
        }
        self.frame(&PrefetchFrame::Done(current.candidate.id));
        self.fetched += 1;
        self.fetched_bytes += current.length;
        if is_gone {
            self.fetches.remove(&connection);
        } else if !current.keeps_alive && !is_closing {
            self.close(now, connection);
        }
        let page = self.page_of(&current.candidate);
        let candidate = &current.candidate;
        if let Some(origin) = page.map(|page| page.url.origin()) {
            let server = self.server;
            (self.memory).with(|memory| memory.note_success(server, origin));
        }
        let request =
            page.and_then(|page| page.context.request_for(&candidate.target, candidate.kind));
        if let (Some(request), Some(head)) = (request, &current.head)
            && let Some(key) = CacheKey::of(self.server, self.scheme, &request)
        {
            self.note_carried(now, &key, &request, head);
        }
        self.start(now);
    }

    /// Ends a connection in good order.
    fn close(&mut self, now: Time, connection: ServerConnection) {
        if let Some(fetch) = self.fetches.get_mut(&connection) {
            fetch.is_closing = true;
            fetch.until = now + CLOSED_WITHIN;
            self.command(connection, ServerCommand::Finish);
        }
    }

    /// Remembers who needs no copy of a response that passes.
    fn note_carried(&self, now: Time, key: &CacheKey, request: &RequestHead, head: &ResponseHead) {
        let Some(allowance) = self.allowance else {
            return;
        };
        let (client, server) = (self.client, self.server);
        self.memory.with(|memory| {
            let Some(wall) = memory.wall(now) else {
                return;
            };
            let (holder, left_ms) = match ResponseReuse::of(wall, key, request, head) {
                ResponseReuse::Never => return,
                ResponseReuse::ByClient(left_ms) => {
                    (CopyHolder::Client(allowance.site, client), left_ms)
                }
                ResponseReuse::ByAll(left_ms) => (CopyHolder::Site(allowance.site), left_ms),
            };
            let span = Duration::from_millis(left_ms).min(CARRIED_MAX);
            memory.note_carried(now + span, holder, server, &key.url);
        });
    }

    /// The run of the near half, if it reads frames.
    pub(in crate::http) fn site(&self) -> Option<u64> {
        let allowance = self.allowance.filter(|_| !self.is_over);
        allowance.map(|allowance| allowance.site)
    }

    /// Takes a frame of the near half.
    pub(in crate::http) fn hear(&mut self, now: Time, frame: &Bytes) {
        let Ok(frame) = PrefetchFrame::parse(frame) else {
            return self.end(now);
        };
        match frame {
            Some(PrefetchFrame::Allows { site, objects }) if self.settings.is_on => {
                self.allowance = Some(NearAllowance { site, objects });
            }
            Some(PrefetchFrame::Wanted(id)) => {
                self.queue.want(id);
                if let Some(connection) = self.connection_of(id)
                    && let Some(fetch) = self.fetches.get_mut(&connection)
                    && let Some(current) = &mut fetch.current
                {
                    current.candidate.is_wanted = true;
                }
                self.send(now);
            }
            Some(PrefetchFrame::Declined(id)) => {
                self.queue.remove(id);
                if let Some(connection) = self.connection_of(id) {
                    self.abandon(connection);
                }
                self.start(now);
            }
            Some(PrefetchFrame::Stop) => {
                self.end(now);
                self.frame(&PrefetchFrame::Stopped);
            }
            // Those that only this half sends, and those of a later release.
            Some(
                PrefetchFrame::Allows { .. }
                | PrefetchFrame::Context { .. }
                | PrefetchFrame::Promises { .. }
                | PrefetchFrame::Head { .. }
                | PrefetchFrame::Part { .. }
                | PrefetchFrame::Done(_)
                | PrefetchFrame::Cancelled(_)
                | PrefetchFrame::Stopped,
            )
            | None => {}
        }
    }

    fn connection_of(&self, id: PrefetchId) -> Option<ServerConnection> {
        let mut fetches = self.fetches.iter();
        let is_current = |fetch: &FetchConnection| {
            let current = fetch.current.as_ref();
            current.is_some_and(|current| current.candidate.id == id)
        };
        let found = fetches.find(|(_, fetch)| is_current(fetch));
        found.map(|(connection, _)| *connection)
    }

    /// Resets a connection, and cancels what it fetches.
    fn abandon(&mut self, connection: ServerConnection) {
        if let Some(fetch) = self.forget(connection) {
            self.command(connection, ServerCommand::Reset);
            if let Some(current) = fetch.current {
                self.cancel(current.candidate.id);
            }
        }
    }

    /// Takes a connection out of those that there are.
    fn forget(&mut self, connection: ServerConnection) -> Option<FetchConnection> {
        let fetch = self.fetches.remove(&connection)?;
        if self.sends == Some(connection) {
            self.sends = None;
        }
        if !fetch.is_gone {
            self.give_places(1);
        }
        Some(fetch)
    }

    fn give_places(&self, count: usize) {
        self.memory
            .with(|memory| memory.give_connections(self.server, count));
    }

    /// Does what is due.
    pub(in crate::http) fn timeout(&mut self, now: Time) {
        let due = self.fetches.iter().filter(|(_, fetch)| {
            // What is whole waits for its turn, and for nothing else.
            !fetch.is_whole() && fetch.until <= now
        });
        let due: Vec<ServerConnection> = due.map(|(connection, _)| *connection).collect();
        for connection in due {
            let is_idle = self
                .fetches
                .get(&connection)
                .is_some_and(FetchConnection::is_idle);
            match is_idle {
                true => self.close(now, connection),
                false => {
                    let fetch = self.fetches.get(&connection);
                    let current = fetch.and_then(|fetch| fetch.current.as_ref());
                    if let Some(current) = current {
                        self.note_failure(now, &current.candidate, FetchFailure::Failed);
                    }
                    self.abandon(connection);
                }
            }
        }
        self.send(now);
        self.start(now);
    }

    /// When something is due.
    pub(in crate::http) fn poll_timeout(&self) -> Option<Time> {
        let waits = |fetch: &&FetchConnection| !fetch.is_whole();
        let fetches = self.fetches.values().filter(waits).map(|fetch| fetch.until);
        let has_held = self.fetches.values().any(FetchConnection::has_held);
        let yields = self.yields_until().filter(|_| has_held);
        let queue = self.queue.poll_timeout();
        fetches.chain(yields).chain(queue).min()
    }

    /// Fetches nothing any more: the client or the server has left, or their words are not understood.
    pub(in crate::http) fn end(&mut self, _now: Time) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.document = None;
        self.requests.clear();
        for candidate in self.queue.clear() {
            self.cancel(candidate.id);
        }
        let connections: Vec<ServerConnection> = self.fetches.keys().copied().collect();
        for connection in connections {
            self.abandon(connection);
        }
    }

    /// The next thing to do.
    pub(in crate::http) fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    /// Bytes of memory.
    pub(in crate::http) fn held(&self) -> usize {
        let fetches: usize = self.fetches.values().map(FetchConnection::held).sum();
        let requests = self.requests.iter().flatten();
        let requests: usize = requests.map(|one| one.request.bytes.len() + 512).sum();
        let pages = self.pages.iter();
        let pages: usize = pages.map(|page| page.context.to_bytes().len() + 512).sum();
        fetches + requests + pages + self.queue.held()
    }

    /// Note for the operator.
    pub(in crate::http) fn note(&self) -> Option<String> {
        (self.promised_total > 0).then(|| {
            format!(
                "prefetch: the node fetched {} objects ({} bytes) before the client requested them, and abandoned {}",
                self.fetched, self.fetched_bytes, self.cancelled
            )
        })
    }

    fn cancel(&mut self, id: PrefetchId) {
        self.cancelled += 1;
        self.frame(&PrefetchFrame::Cancelled(id));
    }

    fn frame(&mut self, frame: &PrefetchFrame) {
        let segment = frame.to_segment();
        self.outputs.push_back(AcceleratorOutput::ToWan(segment));
    }

    fn command(&mut self, connection: ServerConnection, command: ServerCommand) {
        let command = AcceleratorOutput::Server(connection, command);
        self.outputs.push_back(command);
    }
}

impl Drop for FarPrefetch {
    fn drop(&mut self) {
        let standing = self.fetches.values().filter(|fetch| !fetch.is_gone);
        self.give_places(standing.count());
    }
}
