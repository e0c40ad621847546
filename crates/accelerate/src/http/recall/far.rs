//! The far half's part: tags responses, asks recalled requests, and says by a date what a 304 repeats.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use super::EXCHANGE_MAX;
use super::memory::{RecallMemory, RecalledExchange};
use crate::http::cache::{ResponseValidators, date};
use crate::http::config::PIPELINED_MAX;
use crate::http::wire::{FieldSection, HttpVersion, RequestHead, ResponseHead, has_option};
use crate::shared::SharedHandle;

/// Fields of a request that are its conditions.
const CONDITIONS: [&[u8]; 2] = [b"if-none-match", b"if-modified-since"];
/// Fields of a connection, which no cache stores (RFC 9111 §3.1, Storing Header and Trailer Fields).
const OF_CONNECTION: [&[u8]; 2] = [b"connection", b"keep-alive"];
/// Fields of a response that a server says anew each time, so that a tag would be of no use.
const CHANGING: [&str; 3] = ["age", "set-cookie", "set-cookie2"];

/// The requests of one flow that have no response yet.
#[derive(Debug)]
pub(in crate::http) struct FarRecall {
    memory: SharedHandle<RecallMemory>,
    server: SocketAddr,
    asked: VecDeque<AskedRequest>,
    held: usize,
}

#[derive(Debug)]
enum AskedRequest {
    /// Its response gets no tag.
    Plain,
    /// A request with this head, without conditions.
    Taggable(Bytes),
    /// A recalled one.
    Recalled(Arc<RecalledExchange>),
}

/// The form in which the near half gets the head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum RecallReply {
    /// The head, as it is.
    Head,
    /// The same, with this tag before it.
    TaggedHead(u64),
    /// This Date in place of the head.
    Confirmed(u64),
}

impl AskedRequest {
    fn held(&self) -> usize {
        let head = match self {
            Self::Plain | Self::Recalled(_) => 0,
            Self::Taggable(head) => head.len(),
        };
        head + size_of::<Self>()
    }
}

impl FarRecall {
    /// For a flow to this server.
    pub(in crate::http) fn new(memory: SharedHandle<RecallMemory>, server: SocketAddr) -> Self {
        Self {
            memory,
            server,
            asked: VecDeque::new(),
            held: 0,
        }
    }

    fn push(&mut self, asked: AskedRequest) {
        self.held += asked.held();
        self.asked.push_back(asked);
    }

    /// A request passes to the server.
    pub(in crate::http) fn note_request(&mut self, head: &RequestHead) {
        let is_plain = head.method() == b"GET"
            && head.version == HttpVersion::Http11
            && ![
                "content-length",
                "transfer-encoding",
                "range",
                "upgrade",
                "authorization",
            ]
            .iter()
            .any(|name| head.fields.has(name))
            && head.bytes.len() <= EXCHANGE_MAX
            && self.asked.len() < PIPELINED_MAX;
        self.push(match is_plain {
            true => AskedRequest::Taggable(without_conditions(&head.bytes)),
            false => AskedRequest::Plain,
        });
    }

    /// Finds the request with this tag; it is about to be sent.
    pub(in crate::http) fn recall(&mut self, site: u64, tag: u64) -> Option<Bytes> {
        let of = (site, self.server);
        let exchange = self.memory.with(|memory| memory.find(of, tag))?;
        if self.asked.len() >= PIPELINED_MAX {
            return None;
        }
        let bytes = exchange.request_to_send();
        self.push(AskedRequest::Recalled(exchange));
        Some(bytes)
    }

    /// A final response has a head. `is_whole` if nothing of it has passed; `site` is that of the near half, if it reads
    /// frames.
    pub(in crate::http) fn reply(
        &mut self,
        site: Option<u64>,
        head: &ResponseHead,
        is_whole: bool,
    ) -> RecallReply {
        let (Some(site), Some(asked)) = (site, self.asked.front()) else {
            return RecallReply::Head;
        };
        let request = match asked {
            AskedRequest::Plain => return RecallReply::Head,
            AskedRequest::Taggable(request) => request.clone(),
            AskedRequest::Recalled(exchange) => {
                let repeats = is_whole && repeats(head, &exchange.response);
                if let Some(seconds) = date_of(head).filter(|_| repeats) {
                    return RecallReply::Confirmed(seconds);
                }
                exchange.request.clone()
            }
        };
        if !is_taggable(head, request.len()) {
            return RecallReply::Head;
        }
        let of = (site, self.server);
        let tag = self
            .memory
            .with(|memory| memory.keep(of, request, head.clone()));
        RecallReply::TaggedHead(tag)
    }

    /// A final response has ended.
    pub(in crate::http) fn note_end(&mut self) {
        if let Some(asked) = self.asked.pop_front() {
            self.held -= asked.held();
        }
    }

    /// Bytes of memory.
    pub(in crate::http) fn held(&self) -> usize {
        self.held
    }
}

/// A request's head without the lines of its conditions.
fn without_conditions(head: &[u8]) -> Bytes {
    let is_condition = |line: &[u8]| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        CONDITIONS
            .iter()
            .any(|condition| condition.eq_ignore_ascii_case(name))
    };
    let lines = head.split_inclusive(|byte| *byte == b'\n');
    let kept = lines.filter(|line| !is_condition(line));
    kept.collect::<Vec<_>>().concat().into()
}

/// The Date of a response that has one in the usual form, so that the other half writes it alike.
fn date_of(head: &ResponseHead) -> Option<u64> {
    let value = head.fields.single("date")?;
    let seconds = date::parse(value, 0)?;
    let is_usual = date::format(seconds).as_bytes() == value;
    u64::try_from(seconds).ok().filter(|_| is_usual)
}

fn is_taggable(head: &ResponseHead, request: usize) -> bool {
    let validators = ResponseValidators::of(&head.fields);
    let has_validators = validators.etag.is_some() || validators.last_modified.is_some();
    matches!(head.status, 200 | 304)
        && stays_open(head)
        && head.version == HttpVersion::Http11
        && has_validators
        && request + head.bytes.len() <= EXCHANGE_MAX
        && !CHANGING.iter().any(|name| head.fields.has(name))
        && !["no-store", "private"]
            .iter()
            .any(|option| has_option(&head.fields, "cache-control", option))
}

/// True if Connection names no field and does not end the connection.
fn stays_open(head: &ResponseHead) -> bool {
    let mut options = head.fields.list("connection");
    options.all(|option| option.eq_ignore_ascii_case(b"keep-alive"))
}

/// True if a 304 says nothing that the tagged response has not said, but for its Date.
fn repeats(update: &ResponseHead, known: &ResponseHead) -> bool {
    let values = |fields: &FieldSection, name: &[u8]| -> Vec<Vec<u8>> {
        let of_name = fields
            .iter()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name));
        of_name.map(|(_, value)| value.to_vec()).collect()
    };
    let is_silent = |name: &[u8]| {
        name.eq_ignore_ascii_case(b"date")
            || OF_CONNECTION
                .iter()
                .any(|other| other.eq_ignore_ascii_case(name))
    };
    update.status == 304
        && update.version == HttpVersion::Http11
        && stays_open(update)
        && update.fields.iter().all(|(name, _)| {
            is_silent(name) || values(&update.fields, name) == values(&known.fields, name)
        })
}
