//! Parts of stored responses (RFC 9110 §14, Range Requests).
//!
//! One range of bytes is answered from a stored response. Several ranges, other units, and ranges that the content does
//! not have are the server's to answer.

use std::ops::Range;

use bytes::Bytes;

use super::stored::StoredResponse;
use super::{Content, WallTime, date};
use crate::http::wire::RequestHead;

/// How much older than its response a modification has to be, so that no second one had the same date (RFC 9110
/// §8.8.2.2, Comparison).
const STRONG_AFTER_S: i64 = 60;

/// The part of content of this length that a request asks for; `None` if it is not one range that the content has.
pub(crate) fn single_range(request: &RequestHead, length: u64) -> Option<Range<u64>> {
    let value = request.fields.single("range")?;
    let (unit, range) = value.split_at_checked(b"bytes=".len())?;
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return None;
    }
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let (first, last) = (&range[..dash], &range[dash + 1..]);
    let range = match (first.is_empty(), last.is_empty()) {
        (true, true) => return None,
        (true, false) => length.saturating_sub(number(last)?)..length,
        (false, true) => number(first)?..length,
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            first..length.min(last.saturating_add(1))
        }
    };
    (!range.is_empty()).then_some(range)
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
    text.parse().ok()
}

impl<H: Content> StoredResponse<H> {
    /// True if a request for a part means this response: it has no If-Range, or one with a strong validator of it
    /// (RFC 9110 §13.1.5, If-Range).
    pub(crate) fn is_meant_by_range(&self, request: &RequestHead) -> bool {
        if !request.fields.has("if-range") {
            return true;
        }
        let fields = &self.head.fields;
        let Some(condition) = request.fields.single("if-range") else {
            return false;
        };
        if condition.starts_with(b"\"") {
            return fields.single("etag") == Some(condition);
        }
        let modified = fields.single("last-modified");
        let seconds = |value| date::parse(value, 0);
        let dates = modified
            .and_then(seconds)
            .zip(fields.single("date").and_then(seconds));
        modified == Some(condition)
            && dates.is_some_and(|(modified, answered)| modified + STRONG_AFTER_S <= answered)
    }

    /// Its head as 206 with this part of its content (RFC 9110 §15.3.7, 206 Partial Content).
    pub(crate) fn part_to_send(&self, now: WallTime, closes: bool, range: &Range<u64>) -> Bytes {
        let mut head = b"HTTP/1.1 206 Partial Content\r\n".to_vec();
        for (name, value) in self.head.fields.iter() {
            if !name.eq_ignore_ascii_case(b"content-range") {
                head.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
            }
        }
        head.extend_from_slice(b"\r\n");
        let (first, last, whole) = (range.start, range.end.saturating_sub(1), self.length);
        let content = format!(
            "Content-Range: bytes {first}-{last}/{whole}\r\nContent-Length: {}\r\n",
            range.end - range.start
        );
        self.head_with(&head, &content, now, closes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_ranges_are_read() {
        for (value, expected) in [
            ("bytes=0-0", Some(0..1)),
            ("Bytes=2-4", Some(2..5)),
            ("bytes=2-99999999999", Some(2..10)),
            ("bytes=2-18446744073709551615", Some(2..10)),
            ("bytes=7-", Some(7..10)),
            ("bytes=-3", Some(7..10)),
            ("bytes=-30", Some(0..10)),
            ("bytes=10-", None),
            ("bytes=4-2", None),
            ("bytes=-0", None),
            ("bytes=-", None),
            ("bytes=0-1,3-4", None),
            ("bytes= 0-1", None),
            ("bytes=+1-2", None),
            ("bytes=1-99999999999999999999", None),
            ("items=0-1", None),
            ("bytes", None),
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\nRange: {value}\r\n\r\n");
            let request = RequestHead::parse(request.into()).unwrap();
            assert_eq!(single_range(&request, 10), expected, "{value}");
        }
    }
}
