//! A record's check: made from hashes of the record's parts, so that no byte is hashed twice.
//!
//! ```text
//! raw bytes   ├──── literal, ends ────┤├── chunk ──┤├ range ┤├ literal ┤├─ control ─┤
//! spans       └ a whole chunk         ┘└ a chunk   ┘└ not ended yet    ┘└ an aside  ┘
//!                    │                      │                │                │
//!                fingerprint           fingerprint       BLAKE3           BLAKE3
//!                    └──────────────────┬───┴────────────────┴────────────────┘
//!                               BLAKE3, first 16 bytes ─► check
//! ```
//! The raw bytes fall into *spans*. One ends where a chunk ends, before and after a whole chunk
//! that is referred to and each piece that belongs to no chunk, and at the record's end; an empty
//! one does not count. The check is the hash of the spans' hashes, so two records with the same
//! check have the same spans and thus the same bytes. The hash of a span that is a whole chunk is
//! that chunk's fingerprint, which both sides need in any case.

use crate::fingerprint::Fingerprint;

/// Bytes of a record's check.
pub(crate) const CHECK_LENGTH: usize = 16;

/// Spans of a record that is being written or checked. The last span is open.
pub(crate) struct CheckSpans {
    hashes: blake3::Hasher,
}

/// A span: its length in bytes and their hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckSpan {
    pub(crate) length: usize,
    pub(crate) hash: Fingerprint,
}

impl CheckSpan {
    /// The spans of these bytes each.
    pub(crate) fn of_each(spans: &[&[u8]]) -> Vec<Self> {
        let hashes = Fingerprint::of_each(spans);
        let spans = spans.iter().zip(hashes);
        spans
            .map(|(bytes, hash)| Self {
                length: bytes.len(),
                hash,
            })
            .collect()
    }
}

/// The check of a record of these spans.
pub(crate) fn check_of(spans: &[CheckSpan]) -> [u8; CHECK_LENGTH] {
    let mut made = CheckSpans::new();
    for span in spans {
        made.add(span);
    }
    made.check()
}

impl CheckSpans {
    pub(crate) fn new() -> Self {
        Self {
            hashes: blake3::Hasher::new(),
        }
    }

    /// Ends the open span, which consists of these pieces. A `known` span, one of a chunk whose
    /// fingerprint is available, is not hashed if it equals the open one.
    pub(crate) fn end<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
        known: Option<CheckSpan>,
    ) -> CheckSpan {
        let length = pieces.clone().map(<[u8]>::len).sum();
        // The open span is made of bytes of one chunk only, so it is all of that chunk if it is
        // as long.
        let span = known
            .filter(|known| known.length == length)
            .unwrap_or_else(|| CheckSpan {
                length,
                hash: Fingerprint::of_pieces(pieces),
            });
        self.add(&span);
        span
    }

    fn add(&mut self, span: &CheckSpan) {
        if span.length > 0 {
            self.hashes.update(&span.hash.0);
        }
    }

    /// The check, once the last span has ended.
    pub(crate) fn check(&self) -> [u8; CHECK_LENGTH] {
        let mut check = [0; CHECK_LENGTH];
        check.copy_from_slice(&self.hashes.finalize().as_bytes()[..CHECK_LENGTH]);
        check
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_span_equals_its_bytes_if_lengths_match() {
        let raw = b"the first span, and the second";
        let hashed = {
            let mut spans = CheckSpans::new();
            spans.end([&raw[..7], &raw[7..15]].into_iter(), None);
            spans.end([&raw[15..]].into_iter(), None);
            spans.check()
        };
        let span = |bytes: &[u8]| CheckSpan {
            length: bytes.len(),
            hash: Fingerprint::of(bytes),
        };
        let mut spans = CheckSpans::new();
        let longer = span(b"a longer chunk, of which this is a part");
        let ended = spans.end([&raw[..15]].into_iter(), Some(longer));
        assert_eq!(ended, span(&raw[..15]));
        let ended = spans.end([&raw[15..]].into_iter(), Some(span(&raw[15..])));
        assert_eq!(ended, span(&raw[15..]));
        spans.end([].into_iter(), None);
        assert_eq!(spans.check(), hashed);
    }

    #[test]
    fn check_covers_span_ends_and_every_byte() {
        let check = |raw: &[u8], cut: usize| {
            let mut spans = CheckSpans::new();
            spans.end([&raw[..cut]].into_iter(), None);
            spans.end([&raw[cut..]].into_iter(), None);
            spans.check()
        };
        let sound = check(b"abcdef", 3);
        assert_ne!(sound, check(b"abcdef", 2));
        assert_ne!(sound, check(b"abcdeg", 3));
        assert_ne!(sound, check(b"bbcdef", 3));
    }
}
