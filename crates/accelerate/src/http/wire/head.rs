//! The heads of requests and responses (RFC 9112 §3, Request Line; §4, Status Line).

use std::ops::Range;

use bytes::Bytes;

use super::{EMPTY_LINES_MAX, FieldSection, FramingFault, START_LINE_MAX, is_token};

/// The minor version of HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpVersion {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

impl HttpVersion {
    fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes {
            b"HTTP/1.0" => Some(Self::Http10),
            b"HTTP/1.1" => Some(Self::Http11),
            _ => None,
        }
    }
}

/// A request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// All of it as it came, the empty line included.
    pub bytes: Bytes,
    /// The minor version.
    pub version: HttpVersion,
    /// The field lines.
    pub fields: FieldSection,
    method: Range<usize>,
    target: Range<usize>,
}

impl RequestHead {
    /// Whether these bytes begin a head: said as soon as possible, since what is no HTTP may wait for an answer.
    pub(super) fn check_begin(bytes: &[u8]) -> Result<(), FramingFault> {
        let mut line = bytes;
        for _ in 0..EMPTY_LINES_MAX {
            line = line.strip_prefix(b"\r\n").unwrap_or(line);
        }
        let method = line.iter().position(|byte| b" \r\n".contains(byte));
        let method = &line[..method.unwrap_or(line.len())];
        match method.is_empty() || is_token(method) {
            false => Err(FramingFault::RequestLine),
            true if line.len() > 2 && line.ends_with(b"\r\n") => {
                Self::parse_line(bytes).map(|_| ())
            }
            true => Ok(()),
        }
    }

    /// True if the method changes nothing at the server (RFC 9110 §9.2.1, Safe Methods).
    pub fn is_safe(&self) -> bool {
        matches!(self.method(), b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE")
    }

    /// Reads a whole head.
    pub fn parse(bytes: Bytes) -> Result<Self, FramingFault> {
        let (method, target, version, end) = Self::parse_line(&bytes)?;
        let fields = FieldSection::parse(&bytes, end + 2)?;
        let head = Self {
            version,
            fields,
            method,
            target,
            bytes,
        };
        head.check_host()?;
        Ok(head)
    }

    /// Method, target and version, and where the line's CRLF begins.
    fn parse_line(
        bytes: &[u8],
    ) -> Result<(Range<usize>, Range<usize>, HttpVersion, usize), FramingFault> {
        let (start, end) = start_line(bytes, EMPTY_LINES_MAX)?;
        let line = &bytes[start..end];
        let first = position(line, b' ').ok_or(FramingFault::RequestLine)?;
        let second =
            position(&line[first + 1..], b' ').ok_or(FramingFault::RequestLine)? + first + 1;
        let target = &line[first + 1..second];
        let is_target = |byte: &u8| matches!(byte, 0x21..=0x7e | 0x80..);
        if !is_token(&line[..first]) || target.is_empty() || !target.iter().all(is_target) {
            return Err(FramingFault::RequestLine);
        }
        let version = HttpVersion::parse(&line[second + 1..]).ok_or(FramingFault::RequestLine)?;
        let method = start..start + first;
        let target = start + first + 1..start + second;
        Ok((method, target, version, end))
    }

    /// The method, whose case matters.
    pub fn method(&self) -> &[u8] {
        &self.bytes[self.method.clone()]
    }

    /// The request target.
    pub fn target(&self) -> &[u8] {
        &self.bytes[self.target.clone()]
    }

    /// RFC 9112 §3.2 (Request Target): one Host in HTTP/1.1, and no two ever.
    fn check_host(&self) -> Result<(), FramingFault> {
        let mut hosts = self.fields.all("host");
        let host = hosts.next();
        let is_malformed = host.is_some_and(|host| {
            host.iter()
                .any(|byte| matches!(byte, b' ' | b'\t' | b',' | b'/' | b'@' | b'\\'))
        });
        if hosts.next().is_some()
            || is_malformed
            || (host.is_none() && self.version == HttpVersion::Http11)
        {
            return Err(FramingFault::Host);
        }
        Ok(())
    }
}

/// A response's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// All of it as it came, the empty line included.
    pub bytes: Bytes,
    /// The minor version.
    pub version: HttpVersion,
    /// The status code, 100 to 999.
    pub status: u16,
    /// The field lines.
    pub fields: FieldSection,
}

impl ResponseHead {
    /// True if these bytes begin a head.
    pub(super) fn check_begin(bytes: &[u8]) -> Result<(), FramingFault> {
        let known = bytes.len().min(b"HTTP/1.".len());
        match bytes[..known] == b"HTTP/1."[..known] {
            false => Err(FramingFault::StatusLine),
            true if bytes.ends_with(b"\r\n") => Self::parse_line(bytes).map(|_| ()),
            true => Ok(()),
        }
    }

    /// Reads a whole head.
    pub fn parse(bytes: Bytes) -> Result<Self, FramingFault> {
        let (version, status, end) = Self::parse_line(&bytes)?;
        let fields = FieldSection::parse(&bytes, end + 2)?;
        Ok(Self {
            version,
            status,
            fields,
            bytes,
        })
    }

    /// Version and status, and where the line's CRLF begins.
    fn parse_line(bytes: &[u8]) -> Result<(HttpVersion, u16, usize), FramingFault> {
        let (start, end) = start_line(bytes, 0)?;
        let line = &bytes[start..end];
        let (version, rest) = line.split_at_checked(8).ok_or(FramingFault::StatusLine)?;
        let version = HttpVersion::parse(version).ok_or(FramingFault::StatusLine)?;
        // A missing space before an empty reason is common, and means nothing else.
        let [
            b' ',
            a @ b'1'..=b'9',
            b @ b'0'..=b'9',
            c @ b'0'..=b'9',
            reason @ ..,
        ] = rest
        else {
            return Err(FramingFault::StatusLine);
        };
        let is_reason = |byte: &u8| matches!(byte, b'\t' | 0x20..=0x7e | 0x80..);
        if !(reason.is_empty() || reason[0] == b' ') || !reason.iter().all(is_reason) {
            return Err(FramingFault::StatusLine);
        }
        let status = [a, b, c]
            .iter()
            .fold(0, |sum, digit| sum * 10 + u16::from(*digit - b'0'));
        Ok((version, status, end))
    }

    /// True if another response to the same request follows (RFC 9110 §15.2, Informational 1xx).
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }
}

/// Where the first line that is not empty begins, and where its CRLF does.
fn start_line(bytes: &[u8], empty_lines: usize) -> Result<(usize, usize), FramingFault> {
    let mut start = 0;
    while bytes[start..].starts_with(b"\r\n") && start < 2 * empty_lines {
        start += 2;
    }
    let length = position(&bytes[start..], b'\n').unwrap_or(0);
    if length > START_LINE_MAX {
        return Err(FramingFault::Limit);
    }
    let end = (start + length)
        .checked_sub(1)
        .ok_or(FramingFault::BareLineFeed)?;
    if bytes[end] != b'\r' {
        return Err(FramingFault::BareLineFeed);
    }
    match bytes[start..end].contains(&b'\r') {
        true => Err(FramingFault::BareCarriageReturn),
        false => Ok((start, end)),
    }
}

fn position(bytes: &[u8], byte: u8) -> Option<usize> {
    bytes.iter().position(|other| *other == byte)
}
