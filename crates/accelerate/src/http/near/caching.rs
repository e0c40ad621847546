//! Answers from the cache, revalidation, and storing.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use super::exchange::{
    BodyStore, CachedExchange, EndedExchange, InsteadOf, LocalAnswer, OwedResponse, PendingRecall,
    ReceivedRemainder,
};
use super::{HttpNearHalf, HttpNearState, offers_connection_login};
use crate::http::account::PassReason;
use crate::http::cache::{
    CacheKey, LookUp, RequestConditions, ResponseValidators, StoredResponse, date, single_range,
};
use crate::http::collapse::{self, CollapseOutcome, CollapseRole};
use crate::http::prefetch::{AheadAnswer, NearPrefetch};
use crate::http::reasons;
use crate::http::recall::{RecallFrame, RecallTag};
use crate::http::shared::{SharedCache, SharedContent};
use crate::http::wire::{
    BodyExpectation, BodyFraming, HttpVersion, RequestHead, ResponseHead, has_option,
};
use crate::{
    AcceleratorOutput, ContentAbsence, ContentId, ContentReport, ContentRequest, LettingGo,
    MAX_CONTENT_STORES, ReasonCode,
};
use vocab::FlowSegment;

/// Where the server cannot be asked, or is not to be (RFC 9111 §5.2.1.7, only-if-cached).
const NOT_CACHED: &[u8] = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n";

/// Fields of requests that only the server can answer.
const FOR_THE_SERVER: [&str; 5] = [
    "range",
    "if-range",
    "if-match",
    "if-unmodified-since",
    "upgrade",
];

/// Conditions of a client, which are about its own copy.
const OWN_CONDITIONS: [&str; 2] = ["if-none-match", "if-modified-since"];

/// Why only the server can answer a request, whatever is stored.
fn pass_reason(head: &RequestHead) -> Option<PassReason> {
    let is_plain = !FOR_THE_SERVER.iter().any(|name| head.fields.has(name));
    match head.method() {
        b"GET" | b"HEAD" if is_plain && head.version == HttpVersion::Http11 => None,
        b"GET" | b"HEAD" => Some(PassReason::Form),
        _ => Some(PassReason::Method),
    }
}

/// True if a request for a part may be answered from what is stored.
fn is_answerable_range(head: &RequestHead) -> bool {
    let is_plain = !["if-match", "if-unmodified-since", "upgrade"]
        .iter()
        .any(|name| head.fields.has(name));
    head.method() == b"GET" && is_plain && head.version == HttpVersion::Http11
}

impl HttpNearHalf {
    /// Deals with a request without a body if what is stored allows it: answers it, asks the server in
    /// another form, or puts it off until the client is due nothing else. Gives it back otherwise.
    /// If `may_join`, the request waits for the same request of another client.
    pub(super) fn answer(&mut self, head: RequestHead, may_join: bool) -> Option<RequestHead> {
        let cache = self.cache.as_ref()?.clone();
        let has_range = head.fields.has("range");
        if has_range && !is_answerable_range(&head) || !has_range && pass_reason(&head).is_some() {
            return Some(head);
        }
        let Some(key) = cache.key(&head) else {
            return Some(head);
        };
        if has_range {
            return self.answer_range(&cache, head, key);
        }
        let found = cache.look_up(self.now, &key, &head);
        let found = match self.look_ahead(found, &key, &head) {
            Some(found) => found,
            None => {
                // It is asked again when it has come, or does not come.
                self.postponed = Some(head);
                return None;
            }
        };
        let answers = matches!(
            found,
            LookUp::Fresh(_) | LookUp::StaleWhileRevalidate(_) | LookUp::NotCached
        );
        if answers && self.owes_client() {
            self.postponed = Some(head);
            return None;
        }
        match found {
            LookUp::Miss if may_join && self.owed.is_empty() && collapse::is_collapsible(&head) => {
                match collapse::join(self.now, &cache, &key) {
                    CollapseRole::Lead(lead) => self.lead = Some(lead),
                    CollapseRole::Follow(follower) => {
                        self.following = Some(follower);
                        self.postponed = Some(head);
                        return None;
                    }
                    CollapseRole::Alone => {}
                }
                return Some(head);
            }
            LookUp::Miss => return Some(head),
            LookUp::NotCached => {
                self.answered += 1;
                self.account.hit();
                self.write_lan(Bytes::from_static(NOT_CACHED));
                self.note_answered(&head.bytes);
            }
            LookUp::Fresh(stored) => self.answer_stored(head, key, &stored),
            LookUp::StaleWhileRevalidate(stored) => {
                let validates = self.owed.iter().filter_map(|owed| owed.cached.as_ref());
                let is_asked = validates
                    .map(|cached| &cached.key)
                    .any(|asked| *asked == key);
                if !is_asked && head.method() == b"GET" {
                    self.ask_anew(&head, key.clone(), &stored, false);
                }
                self.answer_stored(head, key, &stored);
            }
            LookUp::Stale(stored) => {
                let has_own = OWN_CONDITIONS.iter().any(|name| head.fields.has(name));
                if head.method() != b"GET" || has_own {
                    return Some(head);
                }
                self.ask_anew(&head, key, &stored, true);
            }
        }
        None
    }

    /// Answers a request for one range of a fresh response, as [`Self::answer`] does.
    fn answer_range(
        &mut self,
        cache: &SharedCache,
        head: RequestHead,
        key: CacheKey,
    ) -> Option<RequestHead> {
        let now = cache.wall(self.now);
        let LookUp::Fresh(stored) = cache.look_up(self.now, &key, &head) else {
            return Some(head);
        };
        let is_part = stored.is_meant_by_range(&head);
        let range = single_range(&head, stored.length).filter(|_| is_part);
        if stored.status() != 200 || is_part && range.is_none() {
            return Some(head);
        }
        if self.owes_client() {
            self.postponed = Some(head);
            return None;
        }
        let closes = has_option(&head.fields, "connection", "close");
        match range {
            Some(range) if !stored.is_not_modified(&head, now) => {
                self.answered += 1;
                self.account.hit();
                let sent = stored.part_to_send(now, closes, &range);
                let content = (sent, range);
                self.send_content((head, key), &stored, content, InsteadOf::Request, closes);
            }
            _ => self.answer_stored(head, key, &stored),
        }
        None
    }

    /// Response that came ahead of its request. `None` while one is on its way.
    fn look_ahead(
        &mut self,
        found: LookUp<SharedContent>,
        key: &CacheKey,
        head: &RequestHead,
    ) -> Option<LookUp<SharedContent>> {
        if matches!(found, LookUp::Fresh(_)) {
            self.prefetch(|prefetch| prefetch.note_cache_hit(key));
            return Some(found);
        }
        let is_missing = matches!(found, LookUp::Miss | LookUp::Stale(_));
        if !is_missing || head.method() != b"GET" {
            return Some(found);
        }
        let now = self.now;
        match self.prefetch(|prefetch| prefetch.meet(now, key, head)) {
            Some(AheadAnswer::Response(stored)) => {
                if !self.owes_client() {
                    self.prefetch(|prefetch| prefetch.take_held(key, head));
                }
                Some(LookUp::Fresh(*stored))
            }
            Some(AheadAnswer::OnItsWay) => None,
            Some(AheadAnswer::Nothing) | None => Some(found),
        }
    }

    /// Answers with a stored response.
    fn answer_stored(
        &mut self,
        head: RequestHead,
        key: CacheKey,
        stored: &StoredResponse<SharedContent>,
    ) {
        let Some(cache) = &self.cache else {
            return;
        };
        let now = cache.wall(self.now);
        let closes = has_option(&head.fields, "connection", "close");
        self.answered += 1;
        self.account.hit();
        if stored.is_not_modified(&head, now) {
            self.write_lan(stored.not_modified_to_send(now, closes));
        } else if head.method() == b"HEAD" {
            self.write_lan(stored.head_to_send(now, closes));
        } else {
            return self.send_stored((head, key), stored, InsteadOf::Request, closes);
        }
        self.note_answered(&head.bytes);
        if closes {
            self.end();
        }
    }

    /// Sends a stored response as soon as its content is read.
    fn send_stored(
        &mut self,
        (request, key): (RequestHead, CacheKey),
        stored: &StoredResponse<SharedContent>,
        instead_of: InsteadOf,
        closes: bool,
    ) {
        let Some(cache) = &self.cache else {
            return;
        };
        let head = stored.head_to_send(cache.wall(self.now), closes);
        let content = (head, 0..stored.length);
        self.send_content((request, key), stored, content, instead_of, closes);
    }

    /// Sends this head and this part of a stored response's content, as soon as the content is read.
    fn send_content(
        &mut self,
        (request, key): (RequestHead, CacheKey),
        stored: &StoredResponse<SharedContent>,
        (head, range): (Bytes, Range<u64>),
        instead_of: InsteadOf,
        closes: bool,
    ) {
        let Some(handle) = stored.content.handle.clone() else {
            self.write_lan(head);
            self.note_answered(&request.bytes);
            if closes {
                self.end();
            }
            return;
        };
        let id = self.next_content();
        let length = range.end - range.start;
        self.account.answered_bytes(length);
        let read = ContentRequest::Read { id, handle, range };
        self.outputs.push_back(AcceleratorOutput::Content(read));
        self.answering = Some(LocalAnswer {
            id,
            head: Some(head),
            left: length,
            request,
            key,
            instead_of,
            closes,
        });
    }

    fn next_content(&mut self) -> ContentId {
        self.contents += 1;
        ContentId(self.contents)
    }

    /// Takes news of content that is stored or read.
    pub(super) fn content_report(&mut self, report: ContentReport) {
        if let (ContentReport::Stored { id, .. } | ContentReport::Refused { id, .. }, Some(cache)) =
            (&report, &self.cache)
            && NearPrefetch::owns(*id)
        {
            let (now, cache) = (self.now, cache.clone());
            self.prefetch(|prefetch| prefetch.content_report(now, &cache, report));
            return;
        }
        match report {
            ContentReport::Stored { id, handle, length } => {
                if let Some(ended) = self.ended.remove(&id) {
                    let content = SharedContent {
                        handle: Some(handle),
                    };
                    self.store(ended, content, length);
                }
            }
            ContentReport::Refused { id, .. } => {
                let mut leads = Vec::new();
                if let Some(mut ended) = self.ended.remove(&id) {
                    leads.extend(ended.cached.lead.take());
                }
                for owed in &mut self.owed {
                    if matches!(&owed.rest, ReceivedRemainder::Keep(keeping) if keeping.content == Some(id))
                    {
                        owed.rest = ReceivedRemainder::Pass;
                        leads.extend(owed.cached.as_mut().and_then(|cached| cached.lead.take()));
                    }
                }
                for lead in leads {
                    lead.end(self.now, CollapseOutcome::NotShared);
                }
            }
            ContentReport::Piece { id, bytes } => {
                let Some(answering) = self
                    .answering
                    .as_mut()
                    .filter(|answering| answering.id == id)
                else {
                    return;
                };
                answering.left = answering.left.saturating_sub(bytes.len() as u64);
                let head = answering.head.take();
                self.write_lan(head.unwrap_or_default());
                self.write_lan(bytes);
            }
            ContentReport::Ended { id } => self.content_ended(id),
            ContentReport::Gone { id, absence } => self.content_gone(id, absence),
        }
    }

    fn content_ended(&mut self, id: ContentId) {
        let Some(answering) = self.answering.take_if(|answering| answering.id == id) else {
            return;
        };
        if answering.left > 0 {
            return self.close(reasons::CONTENT_GONE);
        }
        self.note_answered(&answering.request.bytes);
        match answering.closes {
            true => self.end(),
            false => self.resume(),
        }
    }

    /// The dictionary has lost the content: a miss, as long as the client has got nothing of it.
    fn content_gone(&mut self, id: ContentId, absence: ContentAbsence) {
        let Some(answering) = self.answering.take_if(|answering| answering.id == id) else {
            return;
        };
        if answering.head.is_none() {
            return self.close(reasons::CONTENT_GONE);
        }
        if let Some(cache) = &self.cache
            && absence == ContentAbsence::Gone
        {
            let (key, request) = (&answering.key, &answering.request);
            cache.with(|shared| shared.index.remove_selected(key, request));
        }
        match answering.instead_of {
            InsteadOf::Request => {
                let bytes = answering.request.bytes.clone();
                let expectation = BodyExpectation::of(&answering.request);
                let cached = self.cached(answering.request);
                self.forward(
                    bytes,
                    expectation,
                    OwedResponse {
                        asks_upgrade: false,
                        is_for_client: true,
                        cached,
                        rest: ReceivedRemainder::Pass,
                    },
                );
            }
            InsteadOf::Failure => self.write_lan(Bytes::from_static(NOT_CACHED)),
        }
        self.resume();
    }

    /// Asks the server whether a stored response still holds.
    fn ask_anew(
        &mut self,
        head: &RequestHead,
        key: CacheKey,
        stored: &StoredResponse<SharedContent>,
        is_for_client: bool,
    ) {
        let Some(cache) = &self.cache else {
            return;
        };
        let conditions = stored.validators().conditions();
        let end = head.bytes.len() - 2;
        let bytes = Bytes::from([&head.bytes[..end], &conditions, b"\r\n"].concat());
        let cached = CachedExchange {
            key,
            request: head.clone(),
            asked: cache.wall(self.now),
            generation: cache.with(|shared| shared.index.generation()),
            stored: Some(stored.clone()),
            lead: None,
            is_validating: !conditions.is_empty(),
            recall: self
                .recall_of(head, stored)
                .filter(|_| is_for_client)
                .map(|tag| {
                    let request = bytes.clone();
                    PendingRecall { tag, request }
                }),
            tag: None,
        };
        let owed = OwedResponse {
            asks_upgrade: false,
            is_for_client,
            cached: Some(Box::new(cached)),
            rest: ReceivedRemainder::Pass,
        };
        self.forward(bytes, BodyExpectation::of(head), owed);
    }

    /// The tag by which the far half may know the request that revalidates this response.
    fn recall_of(
        &self,
        head: &RequestHead,
        stored: &StoredResponse<SharedContent>,
    ) -> Option<RecallTag> {
        let is_first = self.owed.is_empty() && !self.has_connection_login;
        stored
            .recall
            .filter(|recall| is_first && recall.is_of(&head.bytes))
    }

    /// Takes a frame about short revalidations.
    pub(super) fn hear_recall(&mut self, frame: RecallFrame) {
        let recalled = self.owed.front_mut().and_then(|owed| owed.cached.as_mut());
        let recalled = recalled.filter(|cached| cached.recall.is_some());
        match (frame, recalled) {
            // It belongs to the response that comes next, unless that has to wait behind others.
            (RecallFrame::Tagged(tag), _) => {
                let site = self.prefetch.as_ref().and_then(NearPrefetch::site);
                self.tag = site
                    .map(|site| (site, tag))
                    .filter(|_| self.answering.is_none());
            }
            (RecallFrame::Unknown(_), Some(cached)) => {
                if let Some(pending) = cached.recall.take() {
                    self.send_wan(FlowSegment::control(pending.request));
                }
            }
            (RecallFrame::Confirmed(date), Some(cached)) => {
                cached.tag = cached.recall.take().map(|pending| pending.tag);
                let validators = cached.stored.as_ref().map(StoredResponse::validators);
                let lines = validators.unwrap_or_default().lines();
                let date = date::format(i64::try_from(date).unwrap_or_default());
                let line = format!("HTTP/1.1 304 Not Modified\r\nDate: {date}\r\n");
                let head = [line.as_bytes(), &lines, b"\r\n"].concat();
                self.hear_server(head.into());
            }
            (RecallFrame::Confirmed(_) | RecallFrame::Unknown(_), None) => {
                self.close(ReasonCode::VIOLATION);
            }
            // Only this half sends it.
            (RecallFrame::Recall(_), _) => {}
        }
    }

    /// What makes a request that passes as it is of use for the cache.
    pub(super) fn cached(&self, request: RequestHead) -> Option<Box<CachedExchange>> {
        let cache = self.cache.as_ref()?;
        let key = cache.key(&request)?;
        let asked = cache.wall(self.now);
        let cached = CachedExchange {
            key,
            request,
            asked,
            generation: cache.with(|shared| shared.index.generation()),
            stored: None,
            lead: None,
            is_validating: false,
            recall: None,
            tag: None,
        };
        Some(Box::new(cached))
    }

    /// The response to a request that may have changed something comes: what was fetched ahead before is out of date.
    fn forget_changed(&mut self) {
        let cached = self.owed.front().and_then(|owed| owed.cached.as_ref());
        let key = cached.filter(|cached| !cached.request.is_safe());
        if let Some(key) = key.map(|cached| cached.key.clone()) {
            self.prefetch(|prefetch| prefetch.note_unsafe(Some(&key)));
        }
    }

    /// Takes the head of a final response.
    pub(super) fn response(&mut self, head: ResponseHead, body: BodyFraming) {
        self.has_connection_login |= offers_connection_login(&head.fields);
        self.forget_changed();
        let tag = self.tag.take();
        let Some(owed) = self.owed.front_mut() else {
            return;
        };
        if let Some(cached) = &mut owed.cached {
            cached.recall = None;
            let has_own = OWN_CONDITIONS
                .iter()
                .any(|name| cached.request.fields.has(name));
            if let Some((site, tag)) = tag.filter(|_| !has_own) {
                cached.tag = Some(RecallTag::new(site, tag, &cached.request.bytes));
            }
        }
        let cached = owed.cached.as_mut();
        let mut lead = cached.and_then(|cached| cached.lead.take());
        if let Some(lead) = &mut lead {
            lead.note_answer(self.now);
        }
        let (Some(cache), Some(cached)) = (&self.cache, &owed.cached) else {
            let reason = match self.cache {
                Some(_) => PassReason::Url,
                None => PassReason::NoCache,
            };
            self.account.passed(reason);
            return self.write_lan(head.bytes);
        };
        let is_for_client = owed.is_for_client;
        let now = cache.wall(self.now);
        if is_for_client {
            let took = Duration::from_millis(now.0.saturating_sub(cached.asked.0));
            let account = &mut self.account;
            account.answer_time(cache.server(), &cached.key.url, took);
            match pass_reason(&cached.request) {
                Some(reason) => account.passed(reason),
                None if head.status == 304 => account.confirmed(),
                None => account.fetched(),
            }
        }
        let exchange = (&cached.request, &head);
        if head.status == 304 {
            let asked = cached.stored.as_ref().filter(|_| cached.is_validating);
            let conditions = match asked {
                Some(stored) => RequestConditions::Stored(stored.validators()),
                None => RequestConditions::OfClient,
            };
            let found = cache.with(|shared| {
                let (index, key) = (&mut shared.index, &cached.key);
                let found = index.freshen(cached.asked, now, key, exchange, &conditions);
                if let (Some(found), Some(tag)) = (&found, cached.tag) {
                    index.note_recall(key, &cached.request, &found.validators(), tag);
                }
                found
            });
            if !cached.is_validating {
                return self.write_lan(head.bytes);
            }
            let confirmed = || cached.stored.clone().filter(|one| one.is_confirmed(&head));
            let stored = found.or_else(confirmed);
            let asked = (cached.request.clone(), cached.key.clone());
            if stored.is_none() {
                // It speaks of a response that is not here. What is here must not stand for it.
                cache.with(|shared| shared.index.remove_selected(&asked.1, &asked.0));
                self.postponed = is_for_client.then_some(asked.0);
                return;
            }
            self.validated += 1;
            if let (true, Some(stored)) = (is_for_client, stored) {
                let closes = has_option(&asked.0.fields, "connection", "close");
                let sent = stored.confirmed_to_send(&head, now, closes);
                let content = (sent, 0..stored.length);
                self.send_content(asked, &stored, content, InsteadOf::Request, closes);
            }
            return;
        }
        let (key, request) = (&cached.key, &cached.request);
        cache.with(|shared| shared.index.invalidate(key, request, &head));
        let may_stand = cache.may_stand_for_server(self.now);
        let replaces = |stored: &StoredResponse<SharedContent>| {
            may_stand && stored.may_replace_error(&cached.request, now)
        };
        let is_error = matches!(head.status, 500 | 502 | 503 | 504);
        if is_error && let Some(stored) = cached.stored.clone().filter(replaces) {
            let asked = (cached.request.clone(), cached.key.clone());
            owed.rest = ReceivedRemainder::Drop;
            if is_for_client {
                self.send_stored(asked, &stored, InsteadOf::Failure, false);
            }
            return;
        }
        // Whether a response that ends with the connection is whole is not known at its end.
        let has_end = matches!(
            body,
            BodyFraming::Empty | BodyFraming::Fixed(_) | BodyFraming::Chunked
        );
        let may_store = !self.has_connection_login
            && cache
                .with(|shared| shared.index.would_store(cached.asked, now, key, exchange))
                .is_ok();
        let has_room = self.ended.len() < MAX_CONTENT_STORES / 2;
        let mut keeps = false;
        match may_store {
            true if has_end && has_room => {
                owed.rest = ReceivedRemainder::Keep(Box::new(BodyStore {
                    content: None,
                    head: head.clone(),
                    answered: now,
                }));
                keeps = true;
            }
            // What was stored is older than what is now answered.
            _ if cached.request.method() == b"GET" && head.status < 500 && head.status != 206 => {
                cache.with(|shared| shared.index.remove_selected(key, request));
            }
            _ => {}
        }
        if let (true, Some(lead)) = (keeps, &mut lead) {
            lead.note_head();
        }
        if let (true, Some(cached)) = (keeps, &mut owed.cached) {
            cached.lead = lead.take();
        }
        if let Some(lead) = lead {
            lead.end(self.now, CollapseOutcome::NotShared);
        }
        if is_for_client {
            self.write_lan(head.bytes);
        }
    }

    /// Takes content of a response, or the framing around it.
    pub(super) fn content(&mut self, bytes: Bytes, is_payload: bool) {
        let id = ContentId(self.contents + 1);
        let Some(owed) = self.owed.front_mut() else {
            return;
        };
        match &mut owed.rest {
            ReceivedRemainder::Keep(keeping) if is_payload => {
                if keeping.content.is_none() {
                    self.contents += 1;
                    keeping.content = Some(id);
                    let store = ContentRequest::Store { id };
                    self.outputs.push_back(AcceleratorOutput::Content(store));
                }
                let id = keeping.content.unwrap_or(id);
                let bytes = bytes.clone();
                let append = ContentRequest::Append { id, bytes };
                self.outputs.push_back(AcceleratorOutput::Content(append));
            }
            ReceivedRemainder::Keep(_) | ReceivedRemainder::Pass => {}
            ReceivedRemainder::Drop => return,
        }
        if owed.is_for_client {
            if is_payload {
                self.account.fetched_bytes(bytes.len());
            }
            self.write_lan(bytes);
        }
    }

    /// A response has ended: it is stored, now or when its content is.
    pub(super) fn keep(&mut self, owed: OwedResponse) {
        let (Some(cached), ReceivedRemainder::Keep(keeping)) = (owed.cached, owed.rest) else {
            return;
        };
        let content = keeping.content;
        let ended = EndedExchange { cached, keeping };
        match content {
            None => self.store(ended, SharedContent::default(), 0),
            Some(id) => {
                self.ended.insert(id, ended);
                let finish = ContentRequest::Finish { id };
                self.outputs.push_back(AcceleratorOutput::Content(finish));
            }
        }
    }

    fn store(&mut self, ended: EndedExchange, content: SharedContent, length: u64) {
        let Some(cache) = &self.cache else {
            return;
        };
        let EndedExchange {
            mut cached,
            keeping,
        } = ended;
        // Its content is what was there before. Those that wait for it ask the server.
        if cache.with(|shared| shared.index.is_outdated(cached.generation, &cached.key)) {
            return;
        }
        let exchange = (&cached.request, &keeping.head);
        let content = (content, length);
        cache.with(|shared| {
            let (index, key) = (&mut shared.index, &cached.key);
            // It was judged by its head, and nothing that was judged has changed since.
            let stored = index.store(cached.asked, keeping.answered, key, exchange, content);
            if let (Ok(()), Some(tag)) = (stored, cached.tag) {
                let validators = ResponseValidators::of(&keeping.head.fields);
                index.note_recall(key, &cached.request, &validators, tag);
            }
        });
        if let Some(lead) = cached.lead.take() {
            lead.end(self.now, CollapseOutcome::Stored);
        }
    }

    /// The server has ended its stream: a stored response may stand for the one that does not come.
    pub(super) fn replace_missing_response(&mut self) {
        let Some(owed) = self.owed.front() else {
            return;
        };
        let (Some(cache), Some(cached)) = (&self.cache, &owed.cached) else {
            return;
        };
        let now = cache.wall(self.now);
        let may_stand = cache.may_stand_for_server(self.now);
        let may_replace = |stored: &&StoredResponse<SharedContent>| {
            may_stand && stored.may_replace_error(&cached.request, now)
        };
        let stored = cached.stored.as_ref().filter(may_replace).cloned();
        let has_begun = !self.responses.is_between_messages();
        let asked = (cached.request.clone(), cached.key.clone());
        if owed.is_for_client
            && !has_begun
            && let Some(stored) = stored
        {
            self.owed.pop_front();
            self.send_stored(asked, &stored, InsteadOf::Failure, false);
        }
    }

    /// Resets the flow: what the client has got so far is not what it was told.
    pub(super) fn close(&mut self, reason: crate::ReasonCode) {
        self.state = HttpNearState::LetGo;
        let close = LettingGo::Close { reason };
        self.outputs.push_back(AcceleratorOutput::LettingGo(close));
    }
}
