//! The request for a subresource, made of the request for the page that names it.
//!
//! Both halves make the same request of the same page's, so it crosses the WAN once for all subresources of a page. A
//! response that was fetched so answers a client's request only if that has the same fields, but for those that say
//! what kind of thing is asked for and by whom in the page ([`is_alike`]). A cookie, a credential or a field of a
//! script's own that differs makes it another request.

use bytes::Bytes;

use super::CONTEXT_MAX;
use super::reference::DocumentUrl;
use super::subresource::SubresourceKind;
use crate::http::wire::{FieldSection, RequestHead, has_option};

/// Fields that belong to the page's own request or to its connection.
const OF_PAGE: [&str; 27] = [
    "accept",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "origin",
    "priority",
    "proxy-authorization",
    "proxy-connection",
    "purpose",
    "range",
    "referer",
    "sec-purpose",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "upgrade-insecure-requests",
    "via",
    "x-requested-with",
];

/// Fields in which a client's request may differ from the one that fetched ahead of it.
const MAY_DIFFER: [&str; 12] = [
    "accept",
    "connection",
    "host",
    "if-modified-since",
    "if-none-match",
    "keep-alive",
    "priority",
    "proxy-connection",
    "purpose",
    "referer",
    "sec-purpose",
    "upgrade-insecure-requests",
];

/// Fields that browsers add to say what a request is for. They begin so.
const FETCH_METADATA: &[u8] = b"sec-fetch-";

/// A page's request, as far as those for its subresources are like it. Its Accept is that for images.
#[derive(Clone, Debug)]
pub(super) struct PageContext {
    head: RequestHead,
}

impl PageContext {
    /// Makes it of a page's request. `image_accept` is what the client says of the images that it takes.
    pub(super) fn of(
        request: &RequestHead,
        url: &DocumentUrl,
        sends_referer: bool,
        image_accept: &[u8],
    ) -> Option<Self> {
        if !may_repeat_credentials(&request.fields) {
            return None;
        }
        let mut bytes = [b"GET ", request.target(), b" HTTP/1.1\r\n"].concat();
        let mut add = |name: &[u8], value: &[u8]| {
            bytes.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        };
        for (name, value) in request.fields.iter() {
            if is_inherited(&request.fields, name) {
                add(name, value);
            }
        }
        add(b"Accept", image_accept);
        if sends_referer {
            add(b"Referer", &url.to_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        Self::parse(bytes.into())
    }

    /// Reads it as the other half wrote it.
    pub(super) fn parse(bytes: Bytes) -> Option<Self> {
        if bytes.len() > CONTEXT_MAX {
            return None;
        }
        let head = RequestHead::parse(bytes).ok()?;
        Some(Self { head })
    }

    /// The same for the other half.
    pub(super) fn to_bytes(&self) -> Bytes {
        self.head.bytes.clone()
    }

    /// The request for a subresource of the page; `None` where the target is none.
    pub(super) fn request_for(&self, target: &[u8], kind: SubresourceKind) -> Option<RequestHead> {
        let mut bytes = [b"GET ", target, b" HTTP/1.1\r\n"].concat();
        for (name, value) in self.head.fields.iter() {
            let value: &[u8] = match kind {
                // Browsers agree on these.
                SubresourceKind::Style if is(name, "accept") => b"text/css,*/*;q=0.1",
                SubresourceKind::Script | SubresourceKind::Font if is(name, "accept") => b"*/*",
                _ => value,
            };
            bytes.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
        bytes.extend_from_slice(b"\r\n");
        RequestHead::parse(bytes.into()).ok()
    }
}

/// True if a client's request may be answered with what another one fetched, as far as both go.
pub(super) fn is_alike(fetched: &RequestHead, asked: &RequestHead) -> bool {
    let compared = |head: &RequestHead| {
        let mut fields: Vec<(Vec<u8>, Vec<u8>)> = head
            .fields
            .iter()
            .filter(|(name, _)| !may_differ(name))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()))
            .collect();
        fields.sort();
        fields
    };
    compared(fetched) == compared(asked)
}

fn may_differ(name: &[u8]) -> bool {
    MAY_DIFFER.iter().any(|other| is(name, other)) || is_fetch_metadata(name)
}

fn is_fetch_metadata(name: &[u8]) -> bool {
    let begin = name.get(..FETCH_METADATA.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(FETCH_METADATA))
}

/// True if a field of a page's request belongs in those for its subresources.
fn is_inherited(fields: &FieldSection, name: &[u8]) -> bool {
    let is_hop = std::str::from_utf8(name).is_ok_and(|name| has_option(fields, "connection", name));
    // A person who reloads a page has it asked for anew, and not what it names.
    let is_reload = is(name, "cache-control") && has_option(fields, "cache-control", "max-age=0");
    let is_of_page = OF_PAGE.iter().any(|other| is(name, other));
    !is_hop && !is_reload && !is_of_page && !is_fetch_metadata(name)
}

/// True if the credentials of a request, if it has any, may be sent again on other connections: Basic (RFC 7617) and
/// Bearer (RFC 6750). Those of Digest hold for one request (RFC 7616 §3.3, nonce count), and those of NTLM and Negotiate
/// for one connection; a server may take their repetition for an attack.
fn may_repeat_credentials(fields: &FieldSection) -> bool {
    fields.all("authorization").all(|value| {
        let mut words = value.split(|byte| matches!(byte, b' ' | b'\t'));
        let scheme = words.find(|word| !word.is_empty()).unwrap_or_default();
        is(scheme, "basic") || is(scheme, "bearer")
    })
}

fn is(name: &[u8], other: &str) -> bool {
    name.eq_ignore_ascii_case(other.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "GET /d/?q HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\
        Cache-Control: max-age=0\r\nUpgrade-Insecure-Requests: 1\r\nUser-Agent: u\r\nAccept: text/html\r\n\
        Sec-Fetch-Dest: document\r\nIf-None-Match: \"1\"\r\nReferer: http://b/\r\nCookie: c=1\r\n\
        Authorization: Basic eDp5\r\nAccept-Encoding: gzip\r\n\r\n";

    fn head(text: &str) -> RequestHead {
        RequestHead::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn context() -> PageContext {
        let url = DocumentUrl::parse(b"http://a/d/?q").unwrap();
        PageContext::of(&head(PAGE), &url, true, b"image/*").unwrap()
    }

    #[test]
    fn request_has_the_fields_of_the_client() {
        let made = context().request_for(b"/a.css", SubresourceKind::Style);
        let expected = "GET /a.css HTTP/1.1\r\nHost: a\r\nUser-Agent: u\r\nCookie: c=1\r\n\
            Authorization: Basic eDp5\r\nAccept-Encoding: gzip\r\nAccept: text/css,*/*;q=0.1\r\n\
            Referer: http://a/d/?q\r\n\r\n";
        assert_eq!(made.unwrap().bytes, expected);
        let image = context().request_for(b"/a.png", SubresourceKind::Image);
        assert_eq!(
            image.unwrap().fields.single("accept"),
            Some(&b"image/*"[..])
        );
        // The other half makes the same.
        let other = PageContext::parse(context().to_bytes()).unwrap();
        let made = other.request_for(b"/a.css", SubresourceKind::Style);
        assert_eq!(made.unwrap().bytes, expected);
        assert!(
            context()
                .request_for(b"/a b", SubresourceKind::Style)
                .is_none()
        );
    }

    #[test]
    fn long_request_makes_no_context() {
        let cookie = format!("Cookie: {}\r\n", "c".repeat(CONTEXT_MAX));
        let long = PAGE.replace("Cookie: c=1\r\n", &cookie);
        let url = DocumentUrl::parse(b"http://a/").unwrap();
        assert!(PageContext::of(&head(&long), &url, true, b"*/*").is_none());
    }

    #[test]
    fn only_repeatable_credentials_are_repeated() {
        let url = DocumentUrl::parse(b"http://a/").unwrap();
        for (credentials, may_repeat) in [
            ("Basic eDp5", true),
            ("bearer abc", true),
            ("Digest username=\"u\", nc=00000001", false),
            ("NTLM TlRMTVNTUAAB", false),
            ("Negotiate YII", false),
            ("DPoP abc", false),
            ("", false),
        ] {
            let page = PAGE.replace("Basic eDp5", credentials);
            let context = PageContext::of(&head(&page), &url, true, b"*/*");
            assert_eq!(context.is_some(), may_repeat, "{credentials}");
        }
    }

    #[test]
    fn only_requests_with_the_same_fields_are_alike() {
        let fetched = context().request_for(b"/a.css", SubresourceKind::Style);
        let fetched = fetched.unwrap();
        let asked = "GET /a.css HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nUser-Agent: u\r\nAccept: x/y\r\n\
            Sec-Fetch-Dest: style\r\nReferer: http://a/\r\nAuthorization: Basic eDp5\r\nAccept-Encoding: gzip\r\n\
            Cookie: c=1\r\n\r\n";
        assert!(is_alike(&fetched, &head(asked)));
        for (from, to) in [
            ("Cookie: c=1", "Cookie: c=2"),
            ("Cookie: c=1\r\n", ""),
            ("Basic eDp5", "Basic eDp6"),
            ("User-Agent: u", "User-Agent: v"),
            ("Accept-Encoding: gzip", "Accept-Encoding: br"),
            ("\r\n\r\n", "\r\nX-Token: 1\r\n\r\n"),
            ("\r\n\r\n", "\r\nCache-Control: no-cache\r\n\r\n"),
            ("\r\n\r\n", "\r\nRange: bytes=0-1\r\n\r\n"),
        ] {
            let other = asked.replace(from, to);
            assert!(!is_alike(&fetched, &head(&other)), "{to}");
        }
    }
}
