//! How long a message's body is (RFC 9112 §6.3, Message Body Length).

use super::reader::Expectation;
use super::{Fault, Fields, RequestHead, ResponseHead, Version};

/// The body that follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// None.
    Empty,
    /// So many bytes, at least one.
    Fixed(u64),
    /// In chunks.
    Chunked,
    /// All until the connection ends (responses only).
    UntilClose,
    /// What follows is not HTTP/1.1 any more: the connection was upgraded.
    Opaque,
}

impl Body {
    pub(super) fn of_request(head: &RequestHead) -> Result<Self, Fault> {
        Ok(declared(&head.fields, head.version)?.unwrap_or(Self::Empty))
    }

    pub(super) fn of_response(head: &ResponseHead, to: Expectation) -> Result<Self, Fault> {
        let declared = declared(&head.fields, head.version)?;
        if head.status == 101 {
            return Ok(Self::Opaque);
        }
        let is_empty =
            head.is_interim() || matches!(head.status, 204 | 304) || to == Expectation::NoBody;
        match declared {
            _ if is_empty => Ok(Self::Empty),
            Some(body) => Ok(body),
            None => Ok(Self::UntilClose),
        }
    }
}

/// What Transfer-Encoding and Content-Length say, if they are there and agree with themselves.
fn declared(fields: &Fields, version: Version) -> Result<Option<Body>, Fault> {
    let is_coded = fields.has("transfer-encoding");
    let is_counted = fields.has("content-length");
    if is_coded && is_counted {
        return Err(Fault::TwoLengths);
    }
    if is_coded {
        let coding = fields
            .single("transfer-encoding")
            .ok_or(Fault::TransferEncoding)?;
        // RFC 9112 §6.1 (Transfer-Encoding): HTTP/1.0 has no transfer codings.
        if version == Version::Http10 || !coding.eq_ignore_ascii_case(b"chunked") {
            return Err(Fault::TransferEncoding);
        }
        return Ok(Some(Body::Chunked));
    }
    if !is_counted {
        return Ok(None);
    }
    let value = fields
        .single("content-length")
        .ok_or(Fault::ContentLength)?;
    let is_number = (1..=19).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_number);
    let length: u64 = text
        .and_then(|text| text.parse().ok())
        .ok_or(Fault::ContentLength)?;
    Ok(Some(match length {
        0 => Body::Empty,
        length => Body::Fixed(length),
    }))
}

/// Whether a list field, such as Connection, has this member, in whatever case.
pub(crate) fn has_option(fields: &Fields, name: &str, option: &str) -> bool {
    fields
        .list(name)
        .any(|member| member.eq_ignore_ascii_case(option.as_bytes()))
}
