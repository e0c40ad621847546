//! Requests whose response has not ended, and answers that are being read from the dictionary.
//!
//! ```text
//!   the server owes:    1  (asked anew for 2)  3       in the order in which they were sent
//!   the client is due:  an answer only when the server owes it nothing
//! ```
//! Responses to the client keep the order of its requests (RFC 9112 §9.3.2, Pipelining): an answer of our own is
//! begun when nothing else is due to the client, and until it has ended what the client sends next waits. What the
//! half asks for by itself is due to nobody.

use bytes::Bytes;

use crate::ContentId;
use crate::http::cache::{CacheGeneration, CacheKey, StoredResponse, WallTime};
use crate::http::collapse::CollapseLead;
use crate::http::recall::RecallTag;
use crate::http::shared::SharedContent;
use crate::http::wire::{RequestHead, ResponseHead};

/// A request that the server has not answered to the end.
#[derive(Debug)]
pub(super) struct OwedResponse {
    /// It asks to switch to another protocol, so what the client sends behind it has no known meaning.
    pub(super) asks_upgrade: bool,
    /// The response is due to the client. Otherwise this half asked by itself.
    pub(super) is_for_client: bool,
    /// Its part in caching, if it has one.
    pub(super) cached: Option<Box<CachedExchange>>,
    /// Treatment of its response's content.
    pub(super) rest: ReceivedRemainder,
}

/// A request that takes part in caching.
#[derive(Debug)]
pub(super) struct CachedExchange {
    pub(super) key: CacheKey,
    /// As the client sent it.
    pub(super) request: RequestHead,
    pub(super) asked: WallTime,
    /// Invalidations that happened before it was asked.
    pub(super) generation: CacheGeneration,
    /// Response that was stored when it was asked.
    pub(super) stored: Option<StoredResponse<SharedContent>>,
    /// Others wait for the response.
    pub(super) lead: Option<CollapseLead>,
    /// The request that was sent has the stored response's validators as its conditions.
    pub(super) is_validating: bool,
    /// The tag by which the far half is asked, if it knows the request.
    pub(super) recall: Option<PendingRecall>,
    /// The tag of the response, and of the request without conditions.
    pub(super) tag: Option<RecallTag>,
}

/// A request that the far half is asked by its tag.
#[derive(Debug)]
pub(super) struct PendingRecall {
    pub(super) tag: RecallTag,
    /// The whole request, for a far half that does not know the tag.
    pub(super) request: Bytes,
}

/// Treatment of a response's content.
#[derive(Debug)]
pub(super) enum ReceivedRemainder {
    /// It goes to the client, if it is for it.
    Pass,
    /// It goes to the client, and is stored.
    Keep(Box<BodyStore>),
    /// Nobody gets it: something else is sent in its place.
    Drop,
}

/// A response that is being stored.
#[derive(Debug)]
pub(super) struct BodyStore {
    /// Its content in the dictionary; `None` while there is none.
    pub(super) content: Option<ContentId>,
    pub(super) head: ResponseHead,
    pub(super) answered: WallTime,
}

/// A response that is stored as soon as the dictionary has said by what its content is found.
#[derive(Debug)]
pub(super) struct EndedExchange {
    pub(super) cached: Box<CachedExchange>,
    pub(super) keeping: Box<BodyStore>,
}

/// An answer whose content is being read.
#[derive(Debug)]
pub(super) struct LocalAnswer {
    pub(super) id: ContentId,
    /// Its head, until the first of its content has come: then all of it is there.
    pub(super) head: Option<Bytes>,
    /// Bytes of content that have not come.
    pub(super) left: u64,
    pub(super) request: RequestHead,
    pub(super) key: CacheKey,
    pub(super) instead_of: InsteadOf,
    /// The connection ends behind it.
    pub(super) closes: bool,
}

/// Request to the server if the content turns out to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsteadOf {
    /// The request, as the client sent it.
    Request,
    /// Nothing more: it could not answer.
    Failure,
}

impl OwedResponse {
    /// Bytes of memory beside those of the struct.
    pub(super) fn held(&self) -> usize {
        let cached = self.cached.as_ref();
        let cached = cached.map_or(0, |cached| {
            let recalled = cached.recall.as_ref();
            let recalled = recalled.map_or(0, |recalled| recalled.request.len());
            cached.request.bytes.len() + recalled + 512
        });
        let kept = match &self.rest {
            ReceivedRemainder::Keep(keeping) => keeping.head.bytes.len() + 256,
            ReceivedRemainder::Pass | ReceivedRemainder::Drop => 0,
        };
        cached + kept
    }

    /// The client waits for it, and the server was asked something else than the client asks.
    pub(super) fn is_validating(&self) -> bool {
        let cached = self.cached.as_ref();
        self.is_for_client && cached.is_some_and(|cached| cached.is_validating)
    }

    /// The request passed as the client sent it, and its response passes as the server sends it.
    pub(super) fn is_untouched(&self) -> bool {
        self.is_for_client && !self.is_validating() && !matches!(self.rest, ReceivedRemainder::Drop)
    }
}
