//! Helpers for tests of other crates: they read any bytes as a document, as a frame and as a reference.

use bytes::Bytes;
use vocab::SeededRandom;

use super::document::{NamedSubresource, ScannedDocument};
use super::frames::{PageId, PrefetchFrame, PrefetchId};
use super::links;
use super::reference::{DocumentUrl, ReferenceBase};
use super::subresource::SubresourceKind;
use super::{REFERENCES_MAX, URL_MAX};
use crate::http::wire::ResponseHead;

/// A page, a style sheet and a link that name things.
pub const DOCUMENTS: [&[u8]; 3] = [
    b"<!DOCTYPE html><base href=/d/><link rel=\"stylesheet\" href='a.css'><script src=b.js></script>\
        <style>p{c:url(d.png)}</style><!-- x --><img src=e.png alt=\"&lt;\"><template><img src=f></template>",
    b"@charset \"x\"; @import url('a.css') screen; /* b */ c{d:url( e.png );f:\"g\\\"\"}",
    b"</a.css>; rel=preload; as=style, <b.js>; rel=\"modulepreload\"",
];

/// Scans these bytes as a page and as a style sheet, in one piece and in many, and reads them as a frame, a field Link
/// and a reference.
///
/// # Panics
/// When the pieces change what is found, when more is found than the limits say, or when a frame is not read as it is
/// written.
pub fn documents(bytes: &[u8]) {
    for media_type in ["text/html", "text/css"] {
        for coding in ["", "Content-Encoding: gzip\r\n"] {
            let fields = format!("Content-Type: {media_type}\r\n{coding}");
            let whole = scanned(&fields, &[bytes]);
            assert_eq!(whole, scanned(&fields, &pieces(bytes)));
            assert!(whole.len() <= REFERENCES_MAX);
        }
    }
    frame(&Bytes::copy_from_slice(bytes));
    let head = [b"HTTP/1.1 103 x\r\nLink: ", bytes, b"\r\n\r\n"].concat();
    if let Ok(head) = ResponseHead::parse(Bytes::from(head)) {
        links::named_by(&url(), &head.fields);
    }
    let base = ReferenceBase::new(url());
    // A path of two slashes would be read as an authority.
    if let Some(target) = base
        .resolve(bytes)
        .filter(|target| !target.starts_with(b"//"))
    {
        assert!(target.starts_with(b"/"));
        // A target is its own target.
        assert_eq!(base.resolve(&target).as_ref(), Some(&target));
    }
}

/// Reads the bytes as a frame of prefetches; true if they are one.
///
/// # Panics
/// When it is not read as it is written.
pub(in crate::http) fn frame(bytes: &Bytes) -> bool {
    let Ok(Some(frame)) = PrefetchFrame::parse(bytes) else {
        return false;
    };
    let written = frame.to_segment().bytes;
    assert_eq!(PrefetchFrame::parse(&written), Ok(Some(frame)));
    true
}

/// Frames that a near half and a far half send, with names.
pub(in crate::http) fn sample_frames() -> Vec<(&'static str, Bytes)> {
    let (page, id) = (PageId(3), PrefetchId(7));
    let named = vec![NamedSubresource {
        kind: SubresourceKind::Font,
        target: b"/a.woff2".to_vec(),
    }];
    let head = Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n");
    let frames = [
        (
            "prefetch-allows",
            PrefetchFrame::Allows {
                site: u64::MAX,
                objects: 128,
            },
        ),
        ("prefetch-wanted", PrefetchFrame::Wanted(id)),
        (
            "prefetch-promises",
            PrefetchFrame::Promises {
                page,
                first: id,
                named,
            },
        ),
        ("prefetch-head", PrefetchFrame::Head { id, head }),
        ("prefetch-part", PrefetchFrame::Part { id, length: 9 }),
        ("prefetch-done", PrefetchFrame::Done(id)),
    ];
    let bytes = frames.map(|(name, frame)| (name, frame.to_segment().bytes));
    bytes.to_vec()
}

fn url() -> DocumentUrl {
    DocumentUrl::parse(b"http://a.example/d/").expect("this is a URL")
}

fn scanned(fields: &str, pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
    let head = ResponseHead::parse(Bytes::from(head)).expect("this is a head");
    let document = ScannedDocument::of(url(), &head);
    let mut document = document.expect("pages and style sheets are scanned");
    let named = pieces.iter().flat_map(|piece| document.scan(piece));
    let targets = named.map(|named| named.target).collect::<Vec<_>>();
    for target in &targets {
        assert!(target.starts_with(b"/") && target.len() <= 2 * URL_MAX);
    }
    targets
}

fn pieces(bytes: &[u8]) -> Vec<&[u8]> {
    let mut random = SeededRandom::from_seed(bytes.len() as u64);
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(1 + random.below(rest.len().min(99) as u64) as usize);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bent_documents_are_scanned_alike_in_any_pieces() {
        let mut random = SeededRandom::from_seed(28);
        for _ in 0..2_000 {
            let mut bent = DOCUMENTS[random.below(3) as usize].to_vec();
            for _ in 0..=random.below(4) {
                let at = random.below(bent.len() as u64) as usize;
                let byte = b"<>\"'=/\\-!()@;&{}\0"[random.below(17) as usize];
                match random.below(3) {
                    0 => bent[at] = byte,
                    1 => bent.insert(at, byte),
                    _ => drop(bent.remove(at)),
                }
            }
            documents(&bent);
        }
    }
}
