//! The rules for storing a response, and for how long it may be used (RFC 9111 §3 and §4.2).

use super::date;
use super::directives::{CacheDirectives, delta_seconds};
use super::key::CacheKey;
use super::vary::VarySelection;
use super::{HEURISTIC_FRACTION, HEURISTIC_MAX_S, WallTime};
use crate::http::wire::{RequestHead, ResponseHead};

/// Final status codes that this cache understands (RFC 9111 §3, §5.2.2.3), but for 206 and 304, which
/// are no whole responses.
const UNDERSTOOD: [u16; 18] = [
    200, 203, 204, 300, 301, 302, 303, 307, 308, 400, 404, 405, 410, 414, 421, 451, 500, 501,
];
/// Those that may be stored without explicit freshness (RFC 9110 §15.1).
const HEURISTIC: [u16; 11] = [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501];

/// The time for which a response may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseFreshness {
    /// Its age when it came, in milliseconds (RFC 9111 §4.2.3, corrected_initial_age).
    pub(super) initial_age_ms: u64,
    /// When it came.
    pub(super) response_time: WallTime,
    /// Milliseconds for which it is fresh.
    pub(super) lifetime_ms: u64,
    /// It may be used only after the server has said that it still holds.
    pub(super) no_cache: bool,
    /// It may never be used stale without that.
    pub(super) must_revalidate: bool,
    /// Milliseconds beyond freshness for which it may be used while it is asked for anew (RFC 5861 §3).
    pub(super) stale_while_revalidate_ms: u64,
    /// ... and when the server fails (RFC 5861 §4).
    pub(super) stale_if_error_ms: u64,
}

impl ResponseFreshness {
    /// Computes it for a response.
    pub(super) fn of(
        response: &ResponseHead,
        key: &CacheKey,
        asked: WallTime,
        answered: WallTime,
    ) -> Self {
        let age = response.fields.list("age").next();
        Self::of_updated(response, age, key, asked, answered)
    }

    /// Computes it for a stored response that a 304 with this Age confirms.
    pub(super) fn of_updated(
        response: &ResponseHead,
        age: Option<&[u8]>,
        key: &CacheKey,
        asked: WallTime,
        answered: WallTime,
    ) -> Self {
        let directives = CacheDirectives::of_response(&response.fields);
        let now = answered.seconds();
        let date = response
            .fields
            .single("date")
            .and_then(|value| date::parse(value, now));
        // Upstream caches say how old it is; a clock that runs behind makes it older, never younger.
        let apparent_ms = date.map_or(0, |date| now.saturating_sub(date).max(0) as u64 * 1_000);
        let age = age.and_then(delta_seconds);
        let delay_ms = answered.since_ms(asked);
        let corrected_ms = age.unwrap_or(0) * 1_000 + delay_ms;
        let seconds = |span: Option<u64>| span.unwrap_or(0) * 1_000;
        Self {
            initial_age_ms: apparent_ms.max(corrected_ms),
            response_time: answered,
            lifetime_ms: lifetime_s(response, key, &directives, date.unwrap_or(now), now) * 1_000,
            no_cache: directives.no_cache,
            must_revalidate: directives.must_revalidate
                || directives.proxy_revalidate
                // RFC 9111 §5.2.2.10: s-maxage has proxy-revalidate in it.
                || directives.s_maxage.is_some(),
            stale_while_revalidate_ms: seconds(directives.stale_while_revalidate),
            stale_if_error_ms: seconds(directives.stale_if_error),
        }
    }

    /// The response's age, in milliseconds (RFC 9111 §4.2.3, current_age).
    pub(super) fn age_ms(&self, now: WallTime) -> u64 {
        (self.initial_age_ms).saturating_add(now.since_ms(self.response_time))
    }

    /// Milliseconds for which it has been stale; `None` while it is fresh.
    pub(super) fn stale_for_ms(&self, now: WallTime) -> Option<u64> {
        self.age_ms(now).checked_sub(self.lifetime_ms)
    }
}

/// RFC 9111 §4.2.1 (Calculating Freshness Lifetime).
fn lifetime_s(
    response: &ResponseHead,
    key: &CacheKey,
    directives: &CacheDirectives,
    date: i64,
    now: i64,
) -> u64 {
    if let Some(span) = directives.s_maxage.or(directives.max_age) {
        return span;
    }
    let fields = &response.fields;
    if !directives.is_targeted && fields.has("expires") {
        let expires = fields
            .single("expires")
            .and_then(|value| date::parse(value, now));
        return expires.map_or(0, |expires| expires.saturating_sub(date).max(0) as u64);
    }
    // RFC 9111 §4.2.2 (Calculating Heuristic Freshness).
    let may_guess = HEURISTIC.contains(&response.status) || directives.is_public;
    let modified = fields
        .single("last-modified")
        .and_then(|value| date::parse(value, now));
    match modified {
        Some(modified) if may_guess && !key.has_query() => {
            let unchanged = date.saturating_sub(modified).max(0) as u64;
            (unchanged / HEURISTIC_FRACTION).min(HEURISTIC_MAX_S)
        }
        _ => 0,
    }
}

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotStored {
    /// The method, or a request for a part or under a condition.
    Request,
    /// The status.
    Status,
    /// A directive forbids it.
    Forbidden,
    /// It answers credentials, or sets a cookie, without a word that others may have it.
    Personal,
    /// Nothing says for how long it could be used, nor how to ask whether it holds.
    NoUse,
    /// It answers no other request.
    VariesByAll,
}

/// Decides if a response may be stored, and which fields of its request select it (RFC 9111 §3).
pub(super) fn storing(
    request: &RequestHead,
    response: &ResponseHead,
    freshness: &ResponseFreshness,
) -> Result<VarySelection, NotStored> {
    let asked = CacheDirectives::of_request(&request.fields);
    let answered = CacheDirectives::of_response(&response.fields);
    // RFC 9110 §9.3.1: content of a GET has no meaning for its URL, yet some servers answer by it.
    let has_content = request.fields.has("transfer-encoding")
        || request
            .fields
            .all("content-length")
            .any(|length| length != b"0");
    if request.method() != b"GET" || request.fields.has("range") || has_content {
        return Err(NotStored::Request);
    }
    let is_understood = UNDERSTOOD.contains(&response.status);
    if answered.must_understand && !is_understood
        || matches!(response.status, 206 | 304 | 412 | 416 | 417)
    {
        return Err(NotStored::Status);
    }
    // RFC 9111 §5.2.2.3: must-understand comes with a no-store for caches that do not know it.
    let no_store = answered.no_store && !(answered.must_understand && is_understood);
    let is_malformed = asked.is_malformed || answered.is_malformed;
    if asked.no_store || no_store || answered.is_private || is_malformed {
        return Err(NotStored::Forbidden);
    }
    let is_for_all = answered.is_public || answered.s_maxage.is_some();
    // RFC 9111 §3.5 (Storing Responses to Authenticated Requests) also allows it for must-revalidate. Pages
    // behind a login often have that, and mean one user.
    let is_authenticated = request.fields.has("authorization");
    if is_authenticated && !is_for_all {
        return Err(NotStored::Personal);
    }
    // RFC 9111 §7.3 allows it. Servers that set a session's cookie on a page that they call fresh are
    // common, and what goes wrong then is one user in another's session.
    let sets_cookie = response.fields.has("set-cookie") || response.fields.has("set-cookie2");
    if sets_cookie && !is_for_all {
        return Err(NotStored::Personal);
    }
    let is_explicit = answered.max_age.is_some()
        || answered.s_maxage.is_some()
        || !answered.is_targeted && response.fields.has("expires");
    if !is_explicit && !answered.is_public && !HEURISTIC.contains(&response.status) {
        return Err(NotStored::Status);
    }
    // A page for the user whom a cookie names must not be fresh for others by a guess.
    if !is_explicit && !answered.is_public && request.fields.has("cookie") {
        return Err(NotStored::Personal);
    }
    let has_validator = response.fields.has("etag") || response.fields.has("last-modified");
    let may_be_used = freshness.stale_for_ms(freshness.response_time).is_none()
        || freshness.stale_while_revalidate_ms > 0
        || freshness.stale_if_error_ms > 0;
    if !has_validator && (!may_be_used || answered.no_cache) {
        return Err(NotStored::NoUse);
    }
    VarySelection::of(&response.fields, &request.fields).ok_or(NotStored::VariesByAll)
}
