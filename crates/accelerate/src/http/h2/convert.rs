//! Requests of HTTP/2 as heads of HTTP/1.1, and responses the other way (RFC 9113 §8.3, HTTP Control Data).

use ::h2::RecvStream;
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, COOKIE, HOST, HeaderName, HeaderValue, TE};
use http::{Method, Request, Response};

use super::RequestBody;
use crate::http::wire::{FIELDS_MAX, HEAD_MAX, ResponseHead, START_LINE_MAX};

/// Fields that belong to one connection of HTTP/1.1 (RFC 9113 §8.2.2, Connection-Specific Header Fields).
const OF_CONNECTION: [&str; 5] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];

/// Why a request is answered here, with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestRefusal {
    /// It has no authority, or two, or a target that HTTP/1.1 cannot carry.
    Malformed,
    /// Its head is longer than what servers take.
    TooLong,
    /// CONNECT, which is for proxies.
    Connect,
}

impl RequestRefusal {
    /// The status that the client gets.
    pub(super) fn status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::TooLong => 431,
            Self::Connect => 501,
        }
    }
}

/// The head of HTTP/1.1 of a request, the host that it asks, and how its body is sent.
pub(super) fn request(
    request: &Request<RecvStream>,
) -> Result<(Bytes, String, RequestBody), RequestRefusal> {
    let is_end = request.body().is_end_stream();
    let (method, uri, fields) = (request.method(), request.uri(), request.headers());
    if method == Method::CONNECT {
        return Err(RequestRefusal::Connect);
    }
    let mut hosts = fields.get_all(HOST).iter();
    let host = hosts.next().map(HeaderValue::as_bytes);
    let named = uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    let authority = named.or(host).ok_or(RequestRefusal::Malformed)?;
    let differs = host.is_some_and(|host| !host.eq_ignore_ascii_case(authority));
    // RFC 9113 §8.3.1 (Request Pseudo-Header Fields): no user information.
    let is_plain = authority
        .iter()
        .all(|byte| byte.is_ascii_graphic() && *byte != b'@');
    if differs || hosts.next().is_some() || !is_plain || authority.is_empty() {
        return Err(RequestRefusal::Malformed);
    }
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let is_target = target.starts_with('/') || (target == "*" && method == Method::OPTIONS);
    if !is_target
        || !target
            .bytes()
            .all(|byte| matches!(byte, 0x21..=0x7e | 0x80..))
    {
        return Err(RequestRefusal::Malformed);
    }
    if target.len() + method.as_str().len() > START_LINE_MAX - 16 || fields.len() > FIELDS_MAX - 4 {
        return Err(RequestRefusal::TooLong);
    }
    let mut head = BytesMut::new();
    for part in [method.as_str(), " ", target, " HTTP/1.1\r\n"] {
        head.put_slice(part.as_bytes());
    }
    put_field(&mut head, "host", authority);
    for (name, value) in fields {
        if *name != HOST && *name != COOKIE && *name != TE && !is_of_connection(name) {
            put_field(&mut head, name.as_str(), value.as_bytes());
        }
    }
    // RFC 9113 §8.2.3 (Compressing the Cookie Header Field): crumbs are one field again.
    let crumbs: Vec<&[u8]> = fields
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if !crumbs.is_empty() {
        put_field(&mut head, "cookie", &crumbs.join(&b"; "[..]));
    }
    let body = match (is_end, fields.contains_key(CONTENT_LENGTH)) {
        (true, _) => RequestBody::Empty,
        (false, true) => RequestBody::Counted,
        (false, false) => RequestBody::Chunked,
    };
    if body == RequestBody::Chunked {
        put_field(&mut head, "transfer-encoding", b"chunked");
    }
    head.put_slice(b"\r\n");
    if head.len() > HEAD_MAX {
        return Err(RequestRefusal::TooLong);
    }
    let host = String::from_utf8_lossy(authority).to_ascii_lowercase();
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name.to_owned(),
        _ => host,
    };
    Ok((head.freeze(), host, body))
}

fn put_field(head: &mut BytesMut, name: &str, value: &[u8]) {
    head.put_slice(name.as_bytes());
    head.put_slice(b": ");
    head.put_slice(value);
    head.put_slice(b"\r\n");
}

fn is_of_connection(name: &HeaderName) -> bool {
    OF_CONNECTION.contains(&name.as_str())
}

/// The head of HTTP/2 of a response; `None` where it has none.
pub(super) fn response(head: &ResponseHead) -> Option<Response<()>> {
    let mut response = Response::builder().status(head.status).body(()).ok()?;
    let fields = response.headers_mut();
    let named: Vec<Vec<u8>> = head
        .fields
        .list("connection")
        .map(<[u8]>::to_ascii_lowercase)
        .collect();
    for (name, value) in head.fields.iter() {
        let name = HeaderName::from_bytes(name).ok()?;
        let is_named = named.iter().any(|named| named == name.as_str().as_bytes());
        if is_of_connection(&name) || is_named {
            continue;
        }
        fields.append(name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(response)
}
