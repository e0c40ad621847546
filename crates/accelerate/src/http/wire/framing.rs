//! How long a message's body is (RFC 9112 §6.3, Message Body Length).

use super::reader::BodyExpectation;
use super::{FieldSection, FramingFault, HttpVersion, RequestHead, ResponseHead};

/// The body that follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
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

impl BodyFraming {
    pub(super) fn of_request(head: &RequestHead) -> Result<Self, FramingFault> {
        Ok(declared(&head.fields, head.version)?.unwrap_or(Self::Empty))
    }

    pub(super) fn of_response(
        head: &ResponseHead,
        to: BodyExpectation,
    ) -> Result<Self, FramingFault> {
        let declared = declared(&head.fields, head.version)?;
        if head.status == 101 {
            return Ok(Self::Opaque);
        }
        let is_empty =
            head.is_interim() || matches!(head.status, 204 | 304) || to == BodyExpectation::NoBody;
        match declared {
            _ if is_empty => Ok(Self::Empty),
            Some(body) => Ok(body),
            None => Ok(Self::UntilClose),
        }
    }
}

/// What Transfer-Encoding and Content-Length say, if they are there and agree with themselves.
fn declared(
    fields: &FieldSection,
    version: HttpVersion,
) -> Result<Option<BodyFraming>, FramingFault> {
    let is_coded = fields.has("transfer-encoding");
    let is_counted = fields.has("content-length");
    if is_coded && is_counted {
        return Err(FramingFault::TwoLengths);
    }
    if is_coded {
        let coding = fields
            .single("transfer-encoding")
            .ok_or(FramingFault::TransferEncoding)?;
        // RFC 9112 §6.1 (Transfer-Encoding): HTTP/1.0 has no transfer codings.
        if version == HttpVersion::Http10 || !coding.eq_ignore_ascii_case(b"chunked") {
            return Err(FramingFault::TransferEncoding);
        }
        return Ok(Some(BodyFraming::Chunked));
    }
    if !is_counted {
        return Ok(None);
    }
    let value = fields
        .single("content-length")
        .ok_or(FramingFault::ContentLength)?;
    let is_number = (1..=19).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_number);
    let length: u64 = text
        .and_then(|text| text.parse().ok())
        .ok_or(FramingFault::ContentLength)?;
    Ok(Some(match length {
        0 => BodyFraming::Empty,
        length => BodyFraming::Fixed(length),
    }))
}

/// True if a list field, such as Connection, has this member, in any case.
pub fn has_option(fields: &FieldSection, name: &str, option: &str) -> bool {
    fields
        .list(name)
        .any(|member| member.eq_ignore_ascii_case(option.as_bytes()))
}
