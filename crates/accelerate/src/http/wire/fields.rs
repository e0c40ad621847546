//! Field lines: names and values of a head or of trailers (RFC 9110 §5, Fields).

use std::ops::Range;

use bytes::Bytes;

use super::{FIELDS_MAX, FramingFault};

/// The field lines of one message, in their order, as places in its head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSection {
    bytes: Bytes,
    lines: Vec<FieldLine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldLine {
    name: Range<u32>,
    value: Range<u32>,
}

impl FieldSection {
    /// Reads lines until the empty one, from `at` on; every line ends in CRLF.
    pub(super) fn parse(bytes: &Bytes, mut at: usize) -> Result<Self, FramingFault> {
        let mut lines = Vec::new();
        loop {
            let rest = &bytes[at..];
            let end = rest
                .iter()
                .position(|byte| *byte == b'\n')
                .map_or(0, |lf| lf + 1);
            let Some(line) = rest[..end].strip_suffix(b"\r\n") else {
                return Err(FramingFault::BareLineFeed);
            };
            if line.is_empty() {
                break;
            }
            if lines.len() == FIELDS_MAX {
                return Err(FramingFault::Limit);
            }
            lines.push(FieldLine::parse(line, at)?);
            at += end;
        }
        Ok(Self {
            bytes: bytes.clone(),
            lines,
        })
    }

    /// All field lines as (name, value), in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.lines.iter().map(|line| {
            let part = |range: &Range<u32>| &self.bytes[range.start as usize..range.end as usize];
            (part(&line.name), part(&line.value))
        })
    }

    /// The values of all lines with this name; `name` is in lower case.
    pub fn all<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        debug_assert!(name.bytes().all(|byte| !byte.is_ascii_uppercase()));
        self.iter()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// The value of the only line with this name; `None` where there is none, or several.
    pub fn single<'a>(&'a self, name: &'a str) -> Option<&'a [u8]> {
        let mut values = self.all(name);
        let first = values.next()?;
        values.next().is_none().then_some(first)
    }

    /// True if a line has this name.
    pub fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// The members of a list field over all its lines (RFC 9110 §5.6.1, Lists); commas in quoted
    /// strings separate nothing.
    pub fn list<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.all(name).flat_map(members)
    }
}

impl FieldLine {
    fn parse(line: &[u8], at: usize) -> Result<Self, FramingFault> {
        if matches!(line[0], b' ' | b'\t') {
            return Err(FramingFault::Folded);
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return Err(FramingFault::FieldName);
        };
        if !is_token(&line[..colon]) {
            return Err(FramingFault::FieldName);
        }
        let value = &line[colon + 1..];
        for byte in value {
            match byte {
                b'\r' => return Err(FramingFault::BareCarriageReturn),
                b'\t' | 0x20..=0x7e | 0x80.. => {}
                _ => return Err(FramingFault::FieldValue),
            }
        }
        let trimmed = value.trim_ascii();
        let start = at + colon + 1 + (value.len() - value.trim_ascii_start().len());
        let range = |start: usize, length: usize| start as u32..(start + length) as u32;
        Ok(Self {
            name: range(at, colon),
            value: range(start, trimmed.len()),
        })
    }
}

/// True if this is a token (RFC 9110 §5.6.2, Tokens).
pub fn is_token(bytes: &[u8]) -> bool {
    let is_token_byte =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(is_token_byte)
}

/// The members of one line of a list, without empty ones.
fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut quoted = false;
    let mut escaped = false;
    value
        .split(move |byte| {
            if escaped {
                escaped = false;
                return false;
            }
            match byte {
                b'"' => quoted = !quoted,
                b'\\' if quoted => escaped = true,
                b',' => return !quoted,
                _ => {}
            }
            false
        })
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}
