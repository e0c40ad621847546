//! A document that streams through the far half, decoded and scanned as it comes.
//!
//! ```text
//!   body ──► gzip, if it is so coded ──► PageScanner or StyleScanner ──► targets on the same server
//! ```
//! The decoded bytes exist for the scan alone. `br` and `zstd` are not decoded: browsers offer them over TLS only, and no
//! decoder of `br` is part of this program.

use std::io::{self, Write};

use flate2::write::GzDecoder;

use super::page::PageScanner;
use super::reference::{DocumentUrl, ReferenceBase};
use super::style::StyleScanner;
use super::subresource::SubresourceKind;
use super::{REFERENCES_MAX, SCANNED_MAX};
use crate::http::wire::ResponseHead;

/// A reference as a document has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundReference {
    /// The kind of what it names.
    pub(super) kind: SubresourceKind,
    /// The reference, without quotes.
    pub(super) reference: Vec<u8>,
}

/// Something that a scanner has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScanFinding {
    /// A subresource.
    Reference(FoundReference),
    /// Base to which later references are relative.
    Base(Vec<u8>),
}

/// A subresource on the document's own server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedSubresource {
    /// Its kind.
    pub(super) kind: SubresourceKind,
    /// Its path and query.
    pub(super) target: Vec<u8>,
}

/// A document that is scanned.
#[derive(Debug)]
pub(super) struct ScannedDocument {
    coding: DocumentCoding,
    base: ReferenceBase,
    /// References that may still be found.
    left: usize,
}

#[derive(Debug)]
enum DocumentCoding {
    Identity(Box<ScanSink>),
    Gzip(Box<GzDecoder<ScanSink>>),
    /// It cannot be decoded any further, or has been scanned as far as documents are.
    Ended,
}

#[derive(Debug)]
enum DocumentScanner {
    Page(PageScanner),
    Style(StyleScanner),
}

/// Takes decoded bytes.
#[derive(Debug)]
struct ScanSink {
    scanner: DocumentScanner,
    found: Vec<ScanFinding>,
    /// Bytes that may still be scanned.
    left: usize,
}

impl ScannedDocument {
    /// Begins with a response to a request for this URL, if it is a page or a style sheet in a coding that is
    /// decoded.
    pub(super) fn of(url: DocumentUrl, head: &ResponseHead) -> Option<Self> {
        let content_type = head.fields.single("content-type")?.to_ascii_lowercase();
        let media_type = content_type.split(|byte| *byte == b';').next()?;
        let scanner = match media_type.trim_ascii() {
            b"text/html" | b"application/xhtml+xml" => {
                DocumentScanner::Page(PageScanner::default())
            }
            b"text/css" => DocumentScanner::Style(StyleScanner::default()),
            _ => return None,
        };
        let sink = ScanSink {
            scanner,
            found: Vec::new(),
            left: SCANNED_MAX,
        };
        let coding = head.fields.single("content-encoding");
        let coding = match coding.map(<[u8]>::to_ascii_lowercase).as_deref() {
            None if !head.fields.has("content-encoding") => {
                DocumentCoding::Identity(Box::new(sink))
            }
            Some(b"identity") => DocumentCoding::Identity(Box::new(sink)),
            Some(b"gzip" | b"x-gzip") => DocumentCoding::Gzip(Box::new(GzDecoder::new(sink))),
            None | Some(_) => return None,
        };
        Some(Self {
            coding,
            base: ReferenceBase::new(url),
            left: REFERENCES_MAX,
        })
    }

    /// True if it is a style sheet.
    pub(super) fn is_style(&self) -> bool {
        let sink: &ScanSink = match &self.coding {
            DocumentCoding::Identity(sink) => sink,
            DocumentCoding::Gzip(decoder) => decoder.get_ref(),
            DocumentCoding::Ended => return false,
        };
        matches!(sink.scanner, DocumentScanner::Style(_))
    }

    /// Takes the body's next piece; the subresources that it names.
    pub(super) fn scan(&mut self, piece: &[u8]) -> Vec<NamedSubresource> {
        let mut named = Vec::new();
        // A small piece of a body that expands a thousand times is still small.
        for part in piece.chunks(1_024) {
            let (outcome, sink): (_, &mut ScanSink) = match &mut self.coding {
                DocumentCoding::Identity(sink) => (sink.write_all(part), sink),
                DocumentCoding::Gzip(decoder) => (decoder.write_all(part), decoder.get_mut()),
                DocumentCoding::Ended => break,
            };
            let found = std::mem::take(&mut sink.found);
            for finding in found {
                match finding {
                    ScanFinding::Base(reference) => self.base.set(&reference),
                    ScanFinding::Reference(FoundReference { kind, reference }) => {
                        let Some(left) = self.left.checked_sub(1) else {
                            continue;
                        };
                        self.left = left;
                        let target = self.base.resolve(&reference);
                        named.extend(target.map(|target| NamedSubresource { kind, target }));
                    }
                }
            }
            if outcome.is_err() {
                self.coding = DocumentCoding::Ended;
            }
        }
        named
    }
}

impl Write for ScanSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let bytes = &bytes[..bytes.len().min(self.left)];
        self.left -= bytes.len();
        match &mut self.scanner {
            DocumentScanner::Page(page) => page.scan(bytes, &mut self.found),
            DocumentScanner::Style(style) => {
                let mut references = Vec::new();
                style.scan(bytes, &mut references);
                let references = references.into_iter().map(ScanFinding::Reference);
                self.found.extend(references);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    fn document(fields: &str) -> Option<ScannedDocument> {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let head = ResponseHead::parse(Bytes::from(head)).unwrap();
        let url = DocumentUrl::parse(b"http://a/d/").unwrap();
        ScannedDocument::of(url, &head)
    }

    fn targets(document: &mut ScannedDocument, pieces: &[&[u8]]) -> Vec<String> {
        let named = pieces.iter().flat_map(|piece| document.scan(piece));
        named
            .map(|named| String::from_utf8(named.target).unwrap())
            .collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn pages_and_sheets_are_scanned() {
        let mut page = document("Content-Type: Text/HTML; charset=utf-8\r\n").unwrap();
        let pieces = [
            &b"<base href=/e/><img sr"[..],
            b"c=a.png><img src=//b/c.png>",
        ];
        assert_eq!(targets(&mut page, &pieces), ["/e/a.png"]);
        let mut sheet =
            document("Content-Type: text/css\r\nContent-Encoding: identity\r\n").unwrap();
        assert_eq!(targets(&mut sheet, &[b"a{b:url(c.png)}"]), ["/d/c.png"]);
        for other in [
            "",
            "Content-Type: image/png\r\n",
            "Content-Type: text/html\r\nContent-Encoding: br\r\n",
            "Content-Type: text/html\r\nContent-Encoding: gzip\r\nContent-Encoding: gzip\r\n",
        ] {
            assert!(document(other).is_none(), "{other}");
        }
    }

    #[test]
    fn coded_page_is_scanned_as_it_streams() {
        let page = b"<img src=a.png>".iter().chain(&[b' '; 100]);
        let coded = gzip(&page.copied().collect::<Vec<u8>>());
        let head = "Content-Type: text/html\r\nContent-Encoding: gzip\r\n";
        let pieces: Vec<&[u8]> = coded.chunks(3).collect();
        let mut whole = document(head).unwrap();
        assert_eq!(targets(&mut whole, &pieces), ["/d/a.png"]);
        // Nothing is found behind a fault, and nothing panics.
        let mut damaged = document(head).unwrap();
        assert!(targets(&mut damaged, &[b"no gzip", &coded]).is_empty());
    }

    #[test]
    fn expansion_is_bounded() {
        let mut page = vec![b' '; SCANNED_MAX + (64 << 10)];
        page.extend_from_slice(b"<img src=a.png>");
        let head = "Content-Type: text/html\r\nContent-Encoding: gzip\r\n";
        let mut document = document(head).unwrap();
        let coded = gzip(&page);
        assert!(targets(&mut document, &[&coded]).is_empty());
        assert!(matches!(document.coding, DocumentCoding::Ended));
    }

    #[test]
    fn references_are_bounded() {
        let mut page = document("Content-Type: text/html\r\n").unwrap();
        let many = "<img src=a.png>".repeat(REFERENCES_MAX + 1);
        assert_eq!(targets(&mut page, &[many.as_bytes()]).len(), REFERENCES_MAX);
    }
}
