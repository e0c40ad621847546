//! Responses that came ahead of their requests, and how long what passes is of use to whom.

use super::directives::CacheDirectives;
use super::key::CacheKey;
use super::policy::{self, NotStored, ResponseFreshness};
use super::stored::{StoredResponse, head_to_store};
use super::vary::VarySelection;
use super::{Content, WallTime};
use crate::http::wire::{RequestHead, ResponseHead};

/// Reuse of a response without asking the server: by whom, and for how many milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseReuse {
    /// Nobody.
    Never,
    /// The client that it was sent to.
    ByClient(u64),
    /// All clients of a shared cache.
    ByAll(u64),
}

impl ResponseReuse {
    /// Judges a response that has just come.
    pub(crate) fn of(
        now: WallTime,
        key: &CacheKey,
        request: &RequestHead,
        response: &ResponseHead,
    ) -> Self {
        let freshness = ResponseFreshness::of(response, key, now, now);
        let left_ms = freshness
            .lifetime_ms
            .saturating_sub(freshness.initial_age_ms);
        if left_ms == 0 || freshness.no_cache {
            return Self::Never;
        }
        let directives = CacheDirectives::of_response(&response.fields);
        let is_kept = !directives.no_store && !directives.is_malformed;
        match policy::storing(request, response, &freshness) {
            Ok(_) => Self::ByAll(left_ms),
            Err(NotStored::Forbidden | NotStored::Personal) if is_kept => Self::ByClient(left_ms),
            Err(_) => Self::Never,
        }
    }
}

impl<H: Content> StoredResponse<H> {
    /// A response that may answer one request like the one that fetched it, whether a cache may store it or not;
    /// `None` if it answers no other request at all.
    pub(crate) fn of_prefetched(
        asked: WallTime,
        answered: WallTime,
        key: &CacheKey,
        exchange: (&RequestHead, &ResponseHead),
        content: (H, u64),
    ) -> Option<Self> {
        let (request, response) = exchange;
        Some(Self {
            head: head_to_store(response),
            selection: VarySelection::of(&response.fields, &request.fields)?,
            freshness: ResponseFreshness::of(response, key, asked, answered),
            content: content.0,
            length: content.1,
            asked,
            recall: None,
        })
    }

    /// True if the request has the values of the fields that the response varies by.
    pub(crate) fn is_selected_by(&self, request: &RequestHead) -> bool {
        self.selection.selects(&request.fields)
    }
}
