//! The near half's part: takes what comes ahead of its requests, and answers clients with it.
//!
//! ```text
//!   far half ──Promises, Head, Part, Done──► here ──content──► the dictionary ──► AheadTable, or the shared cache
//!   any flow of the client's ──request──► AheadTable ──► answered, or waits, or goes to the server
//! ```
//! Content goes into the dictionary as it comes; a handle of it is kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use vocab::Time;

use super::document::NamedSubresource;
use super::frames::{MalformedFrame, PageId, PrefetchFrame, PrefetchId};
use super::request::PageContext;
use super::settings::PrefetchSettings;
use super::table::{AheadMatch, AheadTable, AskingClient};
use super::{ARRIVING_MAX, PAGES_MAX, PATIENCE, RESPONSE_HEAD_MAX, WAITS_MAX};
use crate::http::cache::{CacheKey, LookUp, StoredResponse, WallTime};
use crate::http::shared::{SharedCache, SharedContent};
use crate::http::wire::{RequestHead, ResponseHead};
use crate::shared::SharedHandle;
use crate::{AcceleratorOutput, ContentId, ContentRefusal, ContentReport, ContentRequest};

/// Numbers of contents from here on are those of responses ahead of their requests.
const FIRST_CONTENT: u64 = 1 << 63;

/// The prefetches of one near half.
#[derive(Debug)]
pub(in crate::http) struct NearPrefetch {
    table: SharedHandle<AheadTable>,
    settings: Arc<PrefetchSettings>,
    asker: AskingClient,
    /// What the far half was last told that it may send; `None` while it may send nothing.
    allowed: Option<u16>,
    /// The site that the far half was last told.
    site: u64,
    /// The far half may have served another near half before.
    is_successor: bool,
    is_stopped: bool,
    pages: BTreeMap<PageId, PageContext>,
    arriving: BTreeMap<PrefetchId, ArrivingResponse>,
    /// The response that the next so many bytes of payload belong to.
    part: Option<(PrefetchId, usize)>,
    contents_total: u64,
    /// The response that a request on this flow waits for.
    awaited: Option<AwaitedResponse>,
    outputs: VecDeque<AcceleratorOutput>,
}

/// A response that was promised on this flow.
#[derive(Debug)]
struct ArrivingResponse {
    key: CacheKey,
    request: RequestHead,
    asked: WallTime,
    /// With the moment when it came.
    head: Option<(ResponseHead, WallTime)>,
    content: Option<ContentId>,
    is_done: bool,
}

impl ArrivingResponse {
    /// Bytes of memory.
    fn held(&self) -> usize {
        let head = self.head.as_ref().map_or(0, |(head, _)| head.bytes.len());
        self.key.url.len() + self.request.bytes.len() + head + 1_024
    }
}

#[derive(Debug)]
struct AwaitedResponse {
    key: CacheKey,
    request: RequestHead,
    since: Time,
    until: Time,
    /// The moment has come, and the half looks again.
    is_due: bool,
}

/// Prefetched response for a request, or the wait for one.
#[derive(Debug)]
pub(in crate::http) enum AheadAnswer {
    /// Nothing: the server is asked.
    Nothing,
    /// This answers it.
    Response(Box<StoredResponse<SharedContent>>),
    /// A response is on its way; the half is woken or gets its timeout.
    OnItsWay,
}

impl NearPrefetch {
    /// For a flow of this client's.
    pub(in crate::http) fn new(
        table: SharedHandle<AheadTable>,
        settings: Arc<PrefetchSettings>,
        asker: AskingClient,
    ) -> Self {
        Self {
            table,
            settings,
            asker,
            allowed: None,
            site: 0,
            is_successor: false,
            is_stopped: false,
            pages: BTreeMap::new(),
            arriving: BTreeMap::new(),
            part: None,
            contents_total: 0,
            awaited: None,
            outputs: VecDeque::new(),
        }
    }

    /// The same, for a half whose far half may have served another one before: what that one allowed does not count, and
    /// what is still on its way for it is passed over.
    pub(in crate::http) fn with_predecessor(mut self) -> Self {
        self.is_successor = true;
        self
    }

    /// True if a response that was promised has not come yet.
    pub(in crate::http) fn expects(&self) -> bool {
        !self.arriving.is_empty() || self.part.is_some()
    }

    /// A request is about to go to the server: says first how much may be sent ahead for it.
    pub(in crate::http) fn before_request(&mut self, key: &CacheKey, request: &RequestHead) {
        if self.is_stopped || request.method() != b"GET" {
            return;
        }
        let url = super::reference::DocumentUrl::parse(&key.url);
        let is_allowed = url.is_some_and(|url| self.settings.allows(url.origin()));
        let (site, objects) = self.table.with(|table| {
            let objects = if is_allowed { table.objects(key) } else { 0 };
            (table.site(), objects)
        });
        let is_said = match self.allowed {
            None => objects == 0 && !self.is_successor,
            Some(allowed) => objects == allowed && site == self.site,
        };
        if !is_said {
            self.allowed = Some(objects);
            self.site = site;
            self.frame(&PrefetchFrame::Allows { site, objects });
        }
    }

    /// The site that the far half knows; `None` while it knows none.
    pub(in crate::http) fn site(&self) -> Option<u64> {
        self.allowed.filter(|_| !self.is_stopped).map(|_| self.site)
    }

    /// True if the far half may still send something ahead, so that what it sends cannot pass untouched.
    pub(in crate::http) fn may_come(&self) -> bool {
        self.allowed.is_some() && !self.is_stopped
    }

    /// Asks the far half to send nothing more ahead. The half takes what comes until [`Self::may_come`] says
    /// that nothing does.
    pub(in crate::http) fn stop(&mut self) {
        self.frame(&PrefetchFrame::Stop);
        self.abandon();
    }

    /// Nothing that comes on this flow is of use any more.
    pub(in crate::http) fn abandon(&mut self) {
        self.awaited = None;
        for arriving in std::mem::take(&mut self.arriving).into_values() {
            if let Some(id) = arriving.content.filter(|_| !arriving.is_done) {
                self.content(ContentRequest::Abandon { id });
            }
        }
        self.table.with(|table| table.lane_ended(self.asker.lane));
    }

    /// Takes a frame of the far half.
    pub(in crate::http) fn hear(
        &mut self,
        now: Time,
        cache: &SharedCache,
        frame: &Bytes,
    ) -> Result<(), MalformedFrame> {
        // Content of a part comes before anything else.
        let is_asked_for = self.allowed.is_some() || self.is_successor;
        if self.part.is_some() || !is_asked_for {
            return Err(MalformedFrame);
        }
        match PrefetchFrame::parse(frame)? {
            Some(PrefetchFrame::Context { page, head }) => {
                let context = PageContext::parse(head).ok_or(MalformedFrame)?;
                self.pages.insert(page, context);
                if self.pages.len() > PAGES_MAX {
                    self.pages.pop_first();
                }
            }
            Some(PrefetchFrame::Promises { page, first, named }) => {
                self.promised(now, cache, page, first, &named);
            }
            Some(PrefetchFrame::Head { id, head }) => {
                if head.len() > RESPONSE_HEAD_MAX {
                    return Err(MalformedFrame);
                }
                let head = ResponseHead::parse(head).map_err(|_| MalformedFrame)?;
                if let Some(arriving) = self.arriving.get_mut(&id) {
                    arriving.head = Some((head, cache.wall(now)));
                }
            }
            Some(PrefetchFrame::Part { id, length }) => {
                self.part = Some((id, length as usize)).filter(|(_, length)| *length > 0);
            }
            Some(PrefetchFrame::Done(id)) => self.done(now, cache, id),
            Some(PrefetchFrame::Cancelled(id)) => self.fail(id),
            Some(PrefetchFrame::Stopped) => self.is_stopped = true,
            // Those that only this half sends, and those of a later release.
            Some(
                PrefetchFrame::Allows { .. }
                | PrefetchFrame::Wanted(_)
                | PrefetchFrame::Declined(_)
                | PrefetchFrame::Stop,
            )
            | None => {}
        }
        Ok(())
    }

    fn promised(
        &mut self,
        now: Time,
        cache: &SharedCache,
        page: PageId,
        first: PrefetchId,
        named: &[NamedSubresource],
    ) {
        let wall = cache.wall(now);
        for (place, NamedSubresource { kind, target }) in named.iter().enumerate() {
            let id = PrefetchId(first.0.saturating_add(place as u32));
            let context = self.pages.get(&page);
            let request = context.and_then(|context| context.request_for(target, *kind));
            let known = request.and_then(|request| Some((cache.key(&request)?, request)));
            let (Some((key, request)), false) = (known, self.arriving.len() >= ARRIVING_MAX) else {
                self.frame(&PrefetchFrame::Declined(id));
                continue;
            };
            let found = cache.with(|shared| shared.index.look_up(wall, &key, &request));
            let is_taken = !matches!(found, LookUp::Fresh(_))
                && self
                    .table
                    .with(|table| table.promise(now, self.asker, id, &key, request.clone()));
            if !is_taken {
                self.frame(&PrefetchFrame::Declined(id));
                continue;
            }
            self.arriving.insert(
                id,
                ArrivingResponse {
                    key,
                    request,
                    asked: wall,
                    head: None,
                    content: None,
                    is_done: false,
                },
            );
        }
    }

    /// Takes payload out of a piece that belongs to a response ahead of its request; the rest is the server's.
    pub(in crate::http) fn take_content(&mut self, now: Time, bytes: &mut Bytes) {
        let Some((id, left)) = self.part.take() else {
            return;
        };
        let own = bytes.split_to(left.min(bytes.len()));
        let left = left - own.len();
        self.part = Some((id, left)).filter(|(_, left)| *left > 0);
        self.table
            .with(|table| table.note_progress(now, self.asker.lane));
        let next = ContentId(FIRST_CONTENT + self.contents_total);
        let Some(arriving) = self.arriving.get_mut(&id) else {
            return;
        };
        let (content, is_new) = match arriving.content {
            Some(content) => (content, false),
            None => (next, true),
        };
        arriving.content = Some(content);
        if is_new {
            self.contents_total += 1;
            self.content(ContentRequest::Store { id: content });
        }
        self.content(ContentRequest::Append {
            id: content,
            bytes: own,
        });
    }

    /// True if this content is of a response ahead of its request.
    pub(in crate::http) fn owns(id: ContentId) -> bool {
        id.0 >= FIRST_CONTENT
    }

    fn done(&mut self, now: Time, cache: &SharedCache, id: PrefetchId) {
        let Some(arriving) = self.arriving.get_mut(&id) else {
            return;
        };
        arriving.is_done = true;
        match (arriving.head.is_some(), arriving.content) {
            (true, Some(content)) => self.content(ContentRequest::Finish { id: content }),
            (true, None) => self.complete(now, cache, id, SharedContent::default(), 0),
            (false, _) => self.fail(id),
        }
    }

    /// Takes news of content that [`Self::owns`] is true of.
    pub(in crate::http) fn content_report(
        &mut self,
        now: Time,
        cache: &SharedCache,
        report: ContentReport,
    ) {
        let of = |content: ContentId, arriving: &BTreeMap<PrefetchId, ArrivingResponse>| {
            let mut arriving = arriving.iter();
            let found = arriving.find(|(_, one)| one.content == Some(content));
            found.map(|(id, _)| *id)
        };
        match report {
            ContentReport::Stored { id, handle, length } => {
                if let Some(id) = of(id, &self.arriving) {
                    let content = SharedContent {
                        handle: Some(handle),
                    };
                    self.complete(now, cache, id, content, length);
                }
            }
            ContentReport::Refused { id, refusal } => {
                if let Some(id) = of(id, &self.arriving) {
                    // It is gone already.
                    if let Some(arriving) = self.arriving.get_mut(&id) {
                        arriving.content = None;
                    }
                    self.fail(id);
                }
                if refusal == ContentRefusal::Policy && self.may_come() {
                    self.allowed = Some(0);
                    let site = self.site;
                    self.frame(&PrefetchFrame::Allows { site, objects: 0 });
                    for id in self.arriving.keys().copied().collect::<Vec<_>>() {
                        self.frame(&PrefetchFrame::Declined(id));
                        self.fail(id);
                    }
                }
            }
            // Nothing is read by these numbers.
            ContentReport::Piece { .. }
            | ContentReport::Ended { .. }
            | ContentReport::Gone { .. } => {}
        }
    }

    /// A response is whole, and so is its content.
    fn complete(
        &mut self,
        now: Time,
        cache: &SharedCache,
        id: PrefetchId,
        content: SharedContent,
        length: u64,
    ) {
        let Some(arriving) = self.arriving.remove(&id) else {
            return;
        };
        let (key, request, asked) = (&arriving.key, &arriving.request, arriving.asked);
        // Something may have changed at the server since it was asked for, or an operator has purged it.
        let lane = self.asker.lane;
        if !self.table.with(|table| table.is_expected(lane, id, key)) {
            return;
        }
        let Some((head, answered)) = &arriving.head else {
            return;
        };
        let exchange = (request, head);
        let is_fresh = cache.with(|shared| {
            let index = &mut shared.index;
            let content = (content.clone(), length);
            let is_stored = index
                .store(asked, *answered, key, exchange, content)
                .is_ok();
            is_stored && matches!(index.look_up(*answered, key, request), LookUp::Fresh(_))
        });
        let stored = match is_fresh {
            true => None,
            false => {
                let content = (content, length);
                let stored =
                    StoredResponse::of_prefetched(asked, *answered, key, exchange, content);
                if stored.is_none() {
                    // It answers no request at all.
                    return self
                        .table
                        .with(|table| table.fail(self.asker.lane, id, key));
                }
                stored
            }
        };
        self.table.with(|table| {
            table.complete(now, self.asker.lane, (id, key), length, stored);
        });
    }

    fn fail(&mut self, id: PrefetchId) {
        let Some(arriving) = self.arriving.remove(&id) else {
            return;
        };
        if let Some(id) = arriving.content {
            self.content(ContentRequest::Abandon { id });
        }
        self.table
            .with(|table| table.fail(self.asker.lane, id, &arriving.key));
    }

    /// Looks for a response to a request that the cache does not answer.
    pub(in crate::http) fn meet(
        &mut self,
        now: Time,
        key: &CacheKey,
        request: &RequestHead,
    ) -> AheadAnswer {
        let is_same = |awaited: &AwaitedResponse| {
            awaited.key == *key && awaited.request.bytes == request.bytes
        };
        let awaited = self.awaited.take().filter(is_same);
        let since = awaited.map_or(now, |awaited| awaited.since);
        match self
            .table
            .with(|table| table.meet(self.asker, key, request))
        {
            AheadMatch::Nothing => AheadAnswer::Nothing,
            AheadMatch::Held(stored) => AheadAnswer::Response(stored),
            AheadMatch::OnItsWay(progress) => {
                let until = (progress.max(since) + PATIENCE).min(since + WAITS_MAX);
                if until <= now {
                    self.table
                        .with(|table| table.give_up(self.asker, key, request));
                    return AheadAnswer::Nothing;
                }
                self.awaited = Some(AwaitedResponse {
                    key: key.clone(),
                    request: request.clone(),
                    since,
                    until,
                    is_due: false,
                });
                AheadAnswer::OnItsWay
            }
        }
    }

    /// The client is answered with what [`Self::meet`] found.
    pub(in crate::http) fn take_held(&mut self, key: &CacheKey, request: &RequestHead) {
        self.table
            .with(|table| table.take_held(self.asker, key, request));
    }

    /// The client is answered from the cache.
    pub(in crate::http) fn note_cache_hit(&mut self, key: &CacheKey) {
        self.awaited = None;
        self.table.with(|table| table.note_cache_hit(key));
    }

    /// A request that may change something at the server.
    pub(in crate::http) fn note_unsafe(&mut self, key: Option<&CacheKey>) {
        if let Some(key) = key {
            self.table
                .with(|table| table.forget_changed(self.asker.client, key));
        }
    }

    /// When the request on this flow waits no longer.
    pub(in crate::http) fn poll_timeout(&self) -> Option<Time> {
        let awaited = self.awaited.as_ref().filter(|awaited| !awaited.is_due);
        awaited.map(|awaited| awaited.until)
    }

    /// Handles the timeout.
    pub(in crate::http) fn timeout(&mut self, now: Time) {
        if let Some(awaited) = &mut self.awaited {
            awaited.is_due |= awaited.until <= now;
        }
    }

    /// The half was woken: what the far half is to be told.
    pub(in crate::http) fn woken(&mut self) {
        let (wanted, declined) = self.table.with(|table| table.take_words(self.asker.lane));
        if !self.may_come() {
            return;
        }
        for id in wanted {
            self.frame(&PrefetchFrame::Wanted(id));
        }
        for id in declined {
            if let Some(arriving) = self.arriving.remove(&id)
                && let Some(id) = arriving.content
            {
                self.content(ContentRequest::Abandon { id });
            }
            self.frame(&PrefetchFrame::Declined(id));
        }
    }

    /// The next thing to do.
    pub(in crate::http) fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    /// Bytes of memory beside those of the table.
    pub(in crate::http) fn held(&self) -> usize {
        let pages = self.pages.values();
        let pages: usize = pages.map(|page| page.to_bytes().len() + 512).sum();
        let arriving = self.arriving.values();
        let arriving: usize = arriving.map(ArrivingResponse::held).sum();
        pages + arriving
    }

    /// Note for the operator.
    pub(in crate::http) fn note(&self) -> Option<String> {
        let count = self.table.with(|table| table.count(self.asker.lane));
        (count.responses > 0).then(|| {
            format!(
                "prefetch: {} responses ({} bytes) arrived before their requests; clients requested {} of \
                 them, and {} expired unused",
                count.responses, count.bytes, count.used, count.unused
            )
        })
    }

    fn content(&mut self, request: ContentRequest) {
        self.outputs.push_back(AcceleratorOutput::Content(request));
    }

    fn frame(&mut self, frame: &PrefetchFrame) {
        let segment = frame.to_segment();
        self.outputs.push_back(AcceleratorOutput::ToWan(segment));
    }
}

const _: () = assert!(PATIENCE.as_nanos() <= WAITS_MAX.as_nanos());
