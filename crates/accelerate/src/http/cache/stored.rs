//! A stored response: its head without the fields of one connection, and a handle of its content.

use bytes::Bytes;

use super::date;
use super::directives::CacheDirectives;
use super::key::CacheKey;
use super::policy::ResponseFreshness;
use super::vary::VarySelection;
use super::{Content, WallTime};
use crate::http::recall::RecallTag;
use crate::http::wire::{FIELDS_MAX, FieldSection, HEAD_MAX, RequestHead, ResponseHead};

/// Fields that are of one connection or hop, and are not stored (RFC 9111 §3.1). Those that Connection
/// names come to them.
const NOT_STORED: [&str; 14] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    // Said anew of every response that is sent.
    "age",
    "content-length",
    "warning",
    "via",
];
/// Fields that a 304 does not change: they describe the content that is stored (RFC 9111 §3.2).
const NOT_UPDATED: [&str; 6] = [
    "content-encoding",
    "content-type",
    "content-range",
    "content-length",
    // A cookie of the 304 is for the client that asked, and not for later ones.
    "set-cookie",
    "set-cookie2",
];

/// Whose validators a conditional request had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestConditions {
    /// These, of the response that was stored when the request was sent.
    Stored(ResponseValidators),
    /// The client's.
    OfClient,
}

/// One stored response.
#[derive(Clone, Debug)]
pub(crate) struct StoredResponse<H> {
    /// Its head, as [`ResponseHead::parse`] reads it.
    pub(super) head: ResponseHead,
    pub(super) selection: VarySelection,
    pub(super) freshness: ResponseFreshness,
    /// Its content.
    pub(crate) content: H,
    /// Bytes of content.
    pub(crate) length: u64,
    /// The moment that its freshness was computed from, besides the head: when it was asked for.
    pub(super) asked: WallTime,
    /// By which the far node knows its request and its head as it is.
    pub(crate) recall: Option<RecallTag>,
}

/// Validators of a response (RFC 9110 §8.8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseValidators {
    /// The entity tag, with its `W/` if it is a weak one.
    pub(crate) etag: Option<Vec<u8>>,
    /// When it was modified, as it was written.
    pub(crate) last_modified: Option<Vec<u8>>,
}

impl ResponseValidators {
    /// Those of a response.
    pub(crate) fn of(fields: &FieldSection) -> Self {
        Self {
            etag: fields.single("etag").map(<[u8]>::to_vec),
            last_modified: fields.single("last-modified").map(<[u8]>::to_vec),
        }
    }

    /// True if a 304 with these validators is about the same response (RFC 9111 §4.3.3, §4.3.4).
    pub(super) fn match_304(&self, other: &Self, conditions: &RequestConditions) -> bool {
        match (&other.etag, &other.last_modified) {
            (Some(etag), _) => self
                .etag
                .as_ref()
                .is_some_and(|own| opaque(own) == opaque(etag)),
            (None, Some(modified)) => self.last_modified.as_ref() == Some(modified),
            // It speaks of what was asked about, and another response may be stored since.
            (None, None) => matches!(conditions, RequestConditions::Stored(asked) if asked == self),
        }
    }

    /// The field lines by which a response states them.
    pub(crate) fn lines(&self) -> Vec<u8> {
        let line = |name: &[u8], value: &Option<Vec<u8>>| match value {
            Some(value) => [name, b": ", value, b"\r\n"].concat(),
            None => Vec::new(),
        };
        [
            line(b"ETag", &self.etag),
            line(b"Last-Modified", &self.last_modified),
        ]
        .concat()
    }

    /// The conditions of a request that asks whether the response still holds.
    pub(crate) fn conditions(&self) -> Vec<u8> {
        let line = |name: &str, value: &Option<Vec<u8>>| match value {
            Some(value) => [name.as_bytes(), b": ", value, b"\r\n"].concat(),
            None => Vec::new(),
        };
        [
            line("If-None-Match", &self.etag),
            line("If-Modified-Since", &self.last_modified),
        ]
        .concat()
    }
}

/// An entity tag without its strength.
fn opaque(etag: &[u8]) -> &[u8] {
    etag.strip_prefix(b"W/").unwrap_or(etag)
}

/// The head of a response as it is stored.
pub(super) fn head_to_store(head: &ResponseHead) -> ResponseHead {
    let dropped: Vec<&[u8]> = head.fields.list("connection").collect();
    let stays = |name: &[u8]| {
        !is_one_of(name, &NOT_STORED)
            && !dropped
                .iter()
                .any(|option| option.eq_ignore_ascii_case(name))
    };
    let fields = head.fields.iter().filter(|(name, _)| stays(name));
    rewritten(head, fields)
}

/// A stored head with the fields of a 304 in it; `None` where it becomes longer than a server may send.
pub(super) fn updated_head(stored: &ResponseHead, update: &ResponseHead) -> Option<ResponseHead> {
    let update = head_to_store(update);
    let is_replaced = |name: &[u8]| {
        let mut names = update.fields.iter().map(|(name, _)| name);
        !is_one_of(name, &NOT_UPDATED) && names.any(|other| other.eq_ignore_ascii_case(name))
    };
    let kept = stored.fields.iter().filter(|(name, _)| !is_replaced(name));
    let new = update
        .fields
        .iter()
        .filter(|(name, _)| !is_one_of(name, &NOT_UPDATED));
    let fields: Vec<_> = kept.chain(new).collect();
    let lengths = fields
        .iter()
        .map(|(name, value)| name.len() + value.len() + 4);
    let fits = fields.len() <= FIELDS_MAX && lengths.sum::<usize>() <= HEAD_MAX;
    fits.then(|| rewritten(stored, fields.into_iter()))
}

fn is_one_of(name: &[u8], names: &[&str]) -> bool {
    names
        .iter()
        .any(|other| other.as_bytes().eq_ignore_ascii_case(name))
}

fn rewritten<'a>(
    head: &ResponseHead,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> ResponseHead {
    let end = head
        .bytes
        .windows(2)
        .position(|pair| pair == b"\r\n")
        .unwrap_or(0);
    // What is sent from here is HTTP/1.1, whatever the server spoke.
    let mut bytes = [b"HTTP/1.1", &head.bytes[8.min(end)..end], b"\r\n"].concat();
    for (name, value) in fields {
        bytes.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
    }
    bytes.extend_from_slice(b"\r\n");
    ResponseHead::parse(Bytes::from(bytes)).expect("parts of a head that was read make a head")
}

impl<H: Content> StoredResponse<H> {
    /// Its status code.
    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    /// Its validators.
    pub(crate) fn validators(&self) -> ResponseValidators {
        ResponseValidators::of(&self.head.fields)
    }

    /// What it says when it is sent to a client now: its head with Age and the content's length.
    pub(crate) fn head_to_send(&self, now: WallTime, closes: bool) -> Bytes {
        let content = match self.head.status {
            // RFC 9110 §8.6: a 204 has no Content-Length.
            204 => String::new(),
            _ => format!("Content-Length: {}\r\n", self.length),
        };
        self.head_with(&self.head.bytes, &content, now, closes)
    }

    /// Head for the client whose request made this node ask for a confirmation. The cookies that the server set in its
    /// 304 are for that client, and come last so that they replace stored ones.
    pub(crate) fn confirmed_to_send(
        &self,
        update: &ResponseHead,
        now: WallTime,
        closes: bool,
    ) -> Bytes {
        let head = self.head_to_send(now, closes);
        let mut bytes = head[..head.len() - 2].to_vec();
        for (name, value) in update.fields.iter() {
            if is_one_of(name, &["set-cookie", "set-cookie2"]) {
                bytes.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
            }
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.into()
    }

    /// The same as 304 (RFC 9110 §15.4.5).
    pub(crate) fn not_modified_to_send(&self, now: WallTime, closes: bool) -> Bytes {
        let mut bytes = b"HTTP/1.1 304 Not Modified\r\n".to_vec();
        for (name, value) in self.head.fields.iter() {
            if !is_one_of(name, &["content-type", "content-encoding", "content-range"]) {
                bytes.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
            }
        }
        bytes.extend_from_slice(b"\r\n");
        self.head_with(&bytes, "", now, closes)
    }

    pub(super) fn head_with(&self, head: &[u8], more: &str, now: WallTime, closes: bool) -> Bytes {
        let age = self.freshness.age_ms(now) / 1_000;
        let date = match self.head.fields.has("date") {
            // RFC 9110 §6.6.1: who receives a response without a date dates it.
            false => format!(
                "Date: {}\r\n",
                date::format(self.freshness.response_time.seconds())
            ),
            true => String::new(),
        };
        let close = if closes { "Connection: close\r\n" } else { "" };
        let end = head.len() - 2;
        let added = format!("{more}{date}Age: {age}\r\n{close}\r\n");
        [&head[..end], added.as_bytes()].concat().into()
    }

    /// Whether the client's own conditions are met by what is stored, so that 304 answers it (RFC 9111
    /// §4.3.2); `None` where it has none, or such as only the server can judge.
    pub(crate) fn is_not_modified(&self, request: &RequestHead, now: WallTime) -> bool {
        let fields = &request.fields;
        if fields.has("if-none-match") {
            let etag = self.head.fields.single("etag").map(opaque);
            let mut tags = fields.list("if-none-match");
            return tags.any(|tag| tag == b"*" || Some(opaque(tag)) == etag);
        }
        let seconds = now.seconds();
        let since = fields
            .single("if-modified-since")
            .and_then(|value| date::parse(value, seconds));
        let own = |name| {
            self.head
                .fields
                .single(name)
                .and_then(|value| date::parse(value, seconds))
        };
        let modified = own("last-modified").or_else(|| own("date"));
        let modified = modified.unwrap_or(self.freshness.response_time.seconds());
        self.head.status == 200 && since.is_some_and(|since| modified <= since)
    }

    /// Takes what a 304 says, which speaks of this response; false if the head becomes too long, and is as before.
    #[must_use]
    pub(super) fn update(
        &mut self,
        update: &ResponseHead,
        key: &CacheKey,
        asked: WallTime,
        answered: WallTime,
    ) -> bool {
        let Some(head) = updated_head(&self.head, update) else {
            return false;
        };
        // Its age is that of the 304, if it has one.
        let age = update.fields.list("age").next();
        self.freshness = ResponseFreshness::of_updated(&head, age, key, asked, answered);
        self.head = head;
        self.asked = asked;
        self.recall = None;
        true
    }

    /// True if a 304 to a request with this response's validators confirms it.
    pub(crate) fn is_confirmed(&self, update: &ResponseHead) -> bool {
        let asked = RequestConditions::Stored(self.validators());
        let found = ResponseValidators::of(&update.fields);
        self.validators().match_304(&found, &asked)
    }

    /// Bytes of memory beside the content.
    pub(crate) fn held(&self) -> usize {
        self.head.bytes.len() + self.selection.held() + self.content.held() + 384
    }

    /// True if it may be used although it is stale (RFC 9111 §4.2.4), when the server cannot answer.
    pub(crate) fn may_replace_error(&self, request: &RequestHead, now: WallTime) -> bool {
        let Some(stale_ms) = self.freshness.stale_for_ms(now) else {
            return true;
        };
        let asked = CacheDirectives::of_request(&request.fields);
        let allowed_ms = self
            .freshness
            .stale_if_error_ms
            .max(asked.stale_if_error.unwrap_or(0) * 1_000);
        !self.freshness.must_revalidate && !self.freshness.no_cache && stale_ms < allowed_ms
    }
}
