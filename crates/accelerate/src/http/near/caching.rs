//! What is answered here, what is asked anew, and what is stored.

use bytes::{Bytes, BytesMut};

use super::Near;
use super::exchange::{Cached, Keeping, Owed, Rest};
use crate::http::cache::{Conditions, LookUp, Stored};
use crate::http::config::OBJECT_MAX;
use crate::http::wire::{Body, RequestHead, ResponseHead, Version, has_option};

/// RFC 9111 §5.2.1.7 (only-if-cached).
const NOT_CACHED: &[u8] = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n";

/// Fields of requests that only the server can answer.
const FOR_THE_SERVER: [&str; 5] = [
    "range",
    "if-range",
    "if-match",
    "if-unmodified-since",
    "upgrade",
];

impl Near {
    /// Answers a request without a body if what is stored allows it; whether it did, or sent the request to
    /// the server in another form.
    pub(super) fn answer(&mut self, head: &RequestHead) -> bool {
        let Some(cache) = &self.cache else {
            return false;
        };
        let is_get = matches!(head.method(), b"GET" | b"HEAD");
        let is_plain = !FOR_THE_SERVER.iter().any(|name| head.fields.has(name));
        if !is_get || !is_plain || head.version != Version::Http11 {
            return false;
        }
        let Some(key) = cache.key(head) else {
            return false;
        };
        let now = cache.wall(self.now);
        let found = cache.shared().index.look_up(now, &key, head);
        match found {
            LookUp::Miss => false,
            LookUp::NotCached => {
                self.answered += 1;
                self.put_answer(vec![Bytes::from_static(NOT_CACHED)], false);
                true
            }
            LookUp::Fresh(stored) => {
                self.answer_stored(head, &stored);
                true
            }
            LookUp::StaleWhileRevalidate(stored) => {
                self.answer_stored(head, &stored);
                let validates = self.owed.iter().filter_map(|owed| owed.cached.as_ref());
                let is_asked = validates.clone().any(|cached| cached.key == key);
                if !is_asked && head.method() == b"GET" {
                    self.ask_anew(head, &stored, false);
                }
                true
            }
            LookUp::Stale(stored) => {
                let is_own = ["if-none-match", "if-modified-since"];
                let has_own = is_own.iter().any(|name| head.fields.has(name));
                if head.method() != b"GET" || has_own {
                    return false;
                }
                self.ask_anew(head, &stored, true);
                true
            }
        }
    }

    /// Answers with a stored response.
    fn answer_stored(&mut self, head: &RequestHead, stored: &Stored<Bytes>) {
        let Some(cache) = &self.cache else {
            return;
        };
        let now = cache.wall(self.now);
        let closes = has_option(&head.fields, "connection", "close");
        let pieces = match stored.is_not_modified(head, now) {
            true => vec![stored.not_modified_to_send(now, closes)],
            false if head.method() == b"HEAD" => vec![stored.head_to_send(now, closes)],
            false => vec![stored.head_to_send(now, closes), stored.content.clone()],
        };
        self.answered += 1;
        self.put_answer(pieces, closes);
    }

    /// Asks the server whether a stored response still holds.
    fn ask_anew(&mut self, head: &RequestHead, stored: &Stored<Bytes>, is_for_client: bool) {
        let Some(cache) = &self.cache else {
            return;
        };
        let Some(key) = cache.key(head) else {
            return;
        };
        let conditions = stored.validators().conditions();
        let end = head.bytes.len() - 2;
        let bytes = [&head.bytes[..end], &conditions, b"\r\n"].concat();
        let cached = Cached {
            key,
            request: head.clone(),
            asked: cache.wall(self.now),
            stored: Some(stored.clone()),
            is_validating: !conditions.is_empty(),
        };
        let owed = Owed {
            asks_upgrade: false,
            is_for_client,
            cached: Some(Box::new(cached)),
            rest: Rest::Pass,
        };
        self.forward(bytes.into(), owed);
    }

    /// What makes a request that passes as it is of use for the cache.
    pub(super) fn cached(&self, request: RequestHead) -> Option<Box<Cached>> {
        let cache = self.cache.as_ref()?;
        let key = cache.key(&request)?;
        let asked = cache.wall(self.now);
        let cached = Cached {
            key,
            request,
            asked,
            stored: None,
            is_validating: false,
        };
        Some(Box::new(cached))
    }

    /// Takes the head of a final response.
    pub(super) fn response(&mut self, head: ResponseHead, body: Body) {
        let Some(owed) = self.owed.front_mut() else {
            return;
        };
        let (Some(cache), Some(cached)) = (&self.cache, &owed.cached) else {
            return self.write_lan(head.bytes);
        };
        let is_for_client = owed.is_for_client;
        let now = cache.wall(self.now);
        let exchange = (&cached.request, &head);
        let mut shared = cache.shared();
        let index = &mut shared.index;
        if head.status == 304 {
            let conditions = match cached.is_validating {
                true => Conditions::Stored,
                false => Conditions::OfClient,
            };
            let found = index.freshen(cached.asked, now, &cached.key, exchange, conditions);
            drop(shared);
            if !cached.is_validating {
                return self.write_lan(head.bytes);
            }
            self.validated += 1;
            let stored = found.or_else(|| cached.stored.clone());
            if let (true, Some(stored)) = (is_for_client, stored) {
                self.write_stored(&stored);
            }
            return;
        }
        index.invalidate(&cached.key, &cached.request, &head);
        let replaces = |stored: &Stored<Bytes>| stored.may_replace_error(&cached.request, now);
        let is_error = matches!(head.status, 500 | 502 | 503 | 504);
        if is_error && let Some(stored) = cached.stored.clone().filter(replaces) {
            drop(shared);
            owed.rest = Rest::Drop;
            if is_for_client {
                self.write_stored(&stored);
            }
            return;
        }
        let fits = match body {
            Body::Fixed(length) => length <= OBJECT_MAX as u64,
            Body::Empty | Body::Chunked => true,
            // Whether it is whole is not known at its end.
            Body::UntilClose | Body::Opaque => false,
        };
        let would_store = index.would_store(cached.asked, now, &cached.key, exchange);
        match would_store {
            Ok(()) if fits => {
                owed.rest = Rest::Keep(Box::new(Keeping {
                    head: head.clone(),
                    answered: now,
                    content: BytesMut::new(),
                }));
            }
            // What was stored is older than what is now answered.
            _ if cached.request.method() == b"GET" && head.status < 500 && head.status != 206 => {
                index.remove_selected(&cached.key, &cached.request);
            }
            _ => {}
        }
        drop(shared);
        if is_for_client {
            self.write_lan(head.bytes);
        }
    }

    /// Sends a stored response to the client whose turn it is, in the place of what the server said.
    fn write_stored(&mut self, stored: &Stored<Bytes>) {
        let Some(cache) = &self.cache else {
            return;
        };
        let head = stored.head_to_send(cache.wall(self.now), false);
        let content = stored.content.clone();
        self.write_lan(head);
        self.write_lan(content);
    }

    /// Takes content of a response, or the framing around it.
    pub(super) fn content(&mut self, bytes: Bytes, is_payload: bool) {
        let Some(owed) = self.owed.front_mut() else {
            return;
        };
        match &mut owed.rest {
            Rest::Keep(keeping) if is_payload => {
                match keeping.content.len() + bytes.len() <= OBJECT_MAX {
                    true => keeping.content.extend_from_slice(&bytes),
                    false => owed.rest = Rest::Pass,
                }
            }
            Rest::Keep(_) | Rest::Pass => {}
            Rest::Drop => return,
        }
        if owed.is_for_client {
            self.write_lan(bytes);
        }
    }

    /// Stores a response that has ended.
    pub(super) fn store(&mut self, owed: Owed) {
        let (Some(cache), Some(cached), Rest::Keep(keeping)) =
            (&self.cache, owed.cached, owed.rest)
        else {
            return;
        };
        let length = keeping.content.len() as u64;
        let exchange = (&cached.request, &keeping.head);
        // A copy of the right length: what is kept for long has no room to spare.
        let content = (Bytes::copy_from_slice(&keeping.content), length);
        let mut shared = cache.shared();
        let index = &mut shared.index;
        // It was judged by its head, and nothing that was judged has changed since.
        let _ = index.store(
            cached.asked,
            keeping.answered,
            &cached.key,
            exchange,
            content,
        );
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
        let may_replace = |stored: &&Stored<Bytes>| stored.may_replace_error(&cached.request, now);
        let stored = cached.stored.as_ref().filter(may_replace).cloned();
        let has_begun = !self.responses.is_between_messages();
        if owed.is_for_client
            && !has_begun
            && let Some(stored) = stored
        {
            self.write_stored(&stored);
        }
    }
}
