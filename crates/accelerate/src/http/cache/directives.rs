//! Directives of Cache-Control (RFC 9111 §5.2) and of targeted fields (RFC 9213).
//!
//! A directive that is not understood is ignored, with its value. One that limits reuse is taken in its
//! strictest reading: of two spans the shorter, of a malformed span none at all. Where the directives cannot be told apart,
//! any of them may be there, so nothing is stored.

use super::structured;
use crate::http::wire::{FieldSection, is_token};

/// The longest span that is told apart from longer ones (RFC 9111 §1.2.2, Delta Seconds).
const LONGEST_S: u64 = 1 << 31;

/// The targeted fields that this cache obeys, in the order of preference (RFC 9213 §2.1).
const TARGETED: [&str; 1] = ["cdn-cache-control"];

/// The directives of responses that have a span.
const SPANS: [&[u8]; 4] = [
    b"max-age",
    b"s-maxage",
    b"stale-while-revalidate",
    b"stale-if-error",
];

/// The cache directives of a request or a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheDirectives {
    /// Spans in seconds.
    pub(super) max_age: Option<u64>,
    pub(super) s_maxage: Option<u64>,
    pub(super) stale_while_revalidate: Option<u64>,
    pub(super) stale_if_error: Option<u64>,
    pub(super) min_fresh: Option<u64>,
    /// Without a value: any span.
    pub(super) max_stale: Option<u64>,
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) is_private: bool,
    pub(super) is_public: bool,
    pub(super) must_revalidate: bool,
    pub(super) proxy_revalidate: bool,
    pub(super) must_understand: bool,
    pub(super) only_if_cached: bool,
    /// A line is no list of directives (RFC 9111 §5.2), so what it forbids is not known.
    pub(super) is_malformed: bool,
    /// They come from a targeted field, so that Expires and Pragma say nothing.
    pub(super) is_targeted: bool,
}

impl CacheDirectives {
    /// Reads those of a request. Pragma counts where there is no Cache-Control (RFC 9111 §5.4).
    pub(super) fn of_request(fields: &FieldSection) -> Self {
        let mut found = Self::cache_control(fields);
        if !fields.has("cache-control") {
            let mut members = fields.list("pragma");
            found.no_cache = members.any(|member| member.eq_ignore_ascii_case(b"no-cache"));
        }
        found
    }

    /// Reads those of a response.
    pub(super) fn of_response(fields: &FieldSection) -> Self {
        let mut targeted = TARGETED
            .iter()
            .filter_map(|name| Self::targeted(fields, name));
        let general = Self::cache_control(fields);
        match targeted.next() {
            None => general,
            // RFC 9213 §2.1 lets the targeted field stand alone. It may speak of a cache that keeps users
            // apart by their cookies; what is forbidden to shared caches stays forbidden here.
            Some(found) => Self {
                no_store: found.no_store || general.no_store,
                is_private: found.is_private || general.is_private,
                is_malformed: general.is_malformed,
                ..found
            },
        }
    }

    fn cache_control(fields: &FieldSection) -> Self {
        let mut found = Self::default();
        for member in fields.list("cache-control") {
            let equals = member.iter().position(|byte| *byte == b'=');
            let (name, value) = match equals {
                Some(at) => (&member[..at], Some(&member[at + 1..])),
                None => (member, None),
            };
            let name = name.trim_ascii().to_ascii_lowercase();
            match is_token(&name) {
                true => {
                    let value = value.map(unquoted);
                    found.add(&name, value.as_deref());
                }
                false => found.is_malformed = true,
            }
        }
        found.is_malformed |= fields.all("cache-control").any(has_open_quote);
        found
    }

    /// RFC 9213 §2.2: a field that is no dictionary of RFC 8941, or an empty one, is ignored.
    fn targeted(fields: &FieldSection, name: &str) -> Option<Self> {
        let lines: Vec<&[u8]> = fields.all(name).collect();
        let members = structured::dictionary(&lines.join(&b", "[..]))?;
        if members.is_empty() {
            return None;
        }
        let mut found = Self {
            is_targeted: true,
            ..Self::default()
        };
        for (name, value) in members {
            match value {
                structured::StructuredItem::Integer(number) => {
                    found.add(&name, Some(number.to_string().as_bytes()));
                }
                structured::StructuredItem::True => found.add(&name, None),
                // A span that is none: the field is not meant for readers like this one.
                structured::StructuredItem::Other if SPANS.contains(&name.as_slice()) => {
                    return None;
                }
                // Strictly read: `private="set-cookie"` is private, too.
                structured::StructuredItem::Other => found.add(&name, None),
            }
        }
        Some(found)
    }

    fn add(&mut self, name: &[u8], value: Option<&[u8]>) {
        let shorter = |span: &mut Option<u64>| {
            let new = value.map_or(0, |value| delta_seconds(value).unwrap_or(0));
            *span = Some(span.map_or(new, |old| old.min(new)));
        };
        match name {
            b"max-age" => shorter(&mut self.max_age),
            b"s-maxage" => shorter(&mut self.s_maxage),
            b"stale-while-revalidate" => shorter(&mut self.stale_while_revalidate),
            b"stale-if-error" => shorter(&mut self.stale_if_error),
            b"max-stale" => {
                let span = match value {
                    Some(value) => delta_seconds(value).unwrap_or(0),
                    None => LONGEST_S,
                };
                self.max_stale = Some(self.max_stale.map_or(span, |old| old.min(span)));
            }
            b"min-fresh" => {
                // The longer one is the stricter here, and a malformed one is never met.
                let span = value.and_then(delta_seconds).unwrap_or(LONGEST_S);
                self.min_fresh = Some(self.min_fresh.map_or(span, |old| old.max(span)));
            }
            b"no-store" => self.no_store = true,
            // With field names these hold for the fields alone; here for all of the response,
            // which RFC 9111 §5.2.2.4 and §5.2.2.7 allow.
            b"no-cache" => self.no_cache = true,
            b"private" => self.is_private = true,
            b"public" => self.is_public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"only-if-cached" => self.only_if_cached = true,
            _ => {}
        }
    }
}

/// A span in seconds; too large a one is the longest (RFC 9111 §1.2.2).
pub(super) fn delta_seconds(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| {
        let digit = |byte: &u8| u64::from(*byte - b'0');
        let digits = value.iter().map(digit);
        digits.fold(0, |sum: u64, digit| (sum * 10 + digit).min(LONGEST_S))
    })
}

/// True if a quoted string does not end in this line, so that a directive may hide in it.
fn has_open_quote(line: &[u8]) -> bool {
    let mut quoted = false;
    let mut escaped = false;
    for byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'"' => quoted = !quoted,
            b'\\' if quoted => escaped = true,
            _ => {}
        }
    }
    quoted
}

/// The content of a quoted string, or the value as it is.
fn unquoted(value: &[u8]) -> Vec<u8> {
    let value = value.trim_ascii();
    let inner = value
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    let Some(inner) = inner else {
        return value.to_vec();
    };
    let mut escaped = false;
    let kept = inner.iter().filter(|byte| {
        escaped = **byte == b'\\' && !escaped;
        !escaped
    });
    kept.copied().collect()
}
