//! Chunked bodies (RFC 9112 §7.1, Chunked Transfer Coding).
//!
//! ```text
//!   Size ──► Data(n) ──► DataEnd ──► Size ... Size(0) ──► Trailers ──► done
//! ```
//! Lines of sizes and trailers are control; what lies in the chunks is payload. Nothing is held back:
//! each byte is named as it comes.

use bytes::Bytes;

use super::{CHUNK_LINE_MAX, EXTENSIONS_MAX, FieldSection, FramingFault, HEAD_MAX};

/// Where in a chunked body the reader stands.
#[derive(Debug, Default)]
pub(super) struct ChunkedReader {
    state: ChunkedState,
    /// The line that has begun, or all trailers so far.
    line: Vec<u8>,
    extension_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkedState {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    Trailers,
}

/// Kind of the next bytes of a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkedRun {
    Payload(usize),
    Control { length: usize, is_last: bool },
}

impl ChunkedReader {
    /// Names a prefix of `input`, which is not empty.
    pub(super) fn next(&mut self, input: &[u8]) -> Result<ChunkedRun, FramingFault> {
        match self.state {
            ChunkedState::Size => self.size(input),
            ChunkedState::Data(left) => {
                let length =
                    usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
                self.state = match left - length as u64 {
                    0 => ChunkedState::DataEnd,
                    left => ChunkedState::Data(left),
                };
                Ok(ChunkedRun::Payload(length))
            }
            ChunkedState::DataEnd => self.data_end(input),
            ChunkedState::Trailers => self.trailers(input),
        }
    }

    fn size(&mut self, input: &[u8]) -> Result<ChunkedRun, FramingFault> {
        let (length, is_whole) = self.take_line(input, CHUNK_LINE_MAX)?;
        if is_whole {
            let line = &self.line[..self.line.len() - 2];
            let size = parse_size(line)?;
            self.extension_bytes += line.iter().skip_while(|byte| **byte != b';').count();
            if self.extension_bytes > EXTENSIONS_MAX {
                return Err(FramingFault::Limit);
            }
            self.line.clear();
            self.state = match size {
                0 => ChunkedState::Trailers,
                size => ChunkedState::Data(size),
            };
        }
        Ok(ChunkedRun::Control {
            length,
            is_last: false,
        })
    }

    fn data_end(&mut self, input: &[u8]) -> Result<ChunkedRun, FramingFault> {
        let expected = &b"\r\n"[self.line.len()..];
        let length = expected.len().min(input.len());
        if input[..length] != expected[..length] {
            return Err(FramingFault::ChunkEnd);
        }
        self.line.extend_from_slice(&input[..length]);
        if self.line.len() == 2 {
            self.line.clear();
            self.state = ChunkedState::Size;
        }
        Ok(ChunkedRun::Control {
            length,
            is_last: false,
        })
    }

    fn trailers(&mut self, input: &[u8]) -> Result<ChunkedRun, FramingFault> {
        let (length, is_whole) = self.take_line(input, HEAD_MAX)?;
        let is_last = is_whole && (self.line == b"\r\n" || self.line.ends_with(b"\r\n\r\n"));
        if is_last {
            FieldSection::parse(&Bytes::copy_from_slice(&self.line), 0)?;
        }
        Ok(ChunkedRun::Control { length, is_last })
    }

    /// Adds to `line` up to the next line feed: how many bytes, and whether the line is whole.
    fn take_line(&mut self, input: &[u8], max: usize) -> Result<(usize, bool), FramingFault> {
        take_line(&mut self.line, input, max)
    }
}

/// Adds to `line` the bytes of `input` up to the next line feed: how many, and whether it is there.
pub(super) fn take_line(
    line: &mut Vec<u8>,
    input: &[u8],
    max: usize,
) -> Result<(usize, bool), FramingFault> {
    let end = input.iter().position(|byte| *byte == b'\n');
    let length = end.map_or(input.len(), |at| at + 1);
    if line.len() + length > max {
        line.extend_from_slice(&input[..max - line.len()]);
        return Err(FramingFault::Limit);
    }
    line.extend_from_slice(&input[..length]);
    if end.is_some() && !line.ends_with(b"\r\n") {
        return Err(FramingFault::BareLineFeed);
    }
    Ok((length, end.is_some()))
}

/// The size in a line without its CRLF; what follows a semicolon says nothing here.
fn parse_size(line: &[u8]) -> Result<u64, FramingFault> {
    let digits = line
        .iter()
        .position(|byte| !byte.is_ascii_hexdigit())
        .unwrap_or(line.len());
    let (digits, extensions) = line.split_at(digits);
    let is_printable = |byte: &u8| matches!(byte, b'\t' | 0x20..=0x7e);
    let is_extension = extensions.is_empty() || extensions[0] == b';';
    if !(1..=15).contains(&digits.len()) || !is_extension || !extensions.iter().all(is_printable) {
        return Err(FramingFault::ChunkSize);
    }
    let value = |byte: &u8| u64::from((*byte as char).to_digit(16).unwrap_or(0));
    Ok(digits
        .iter()
        .fold(0, |size, digit| size << 4 | value(digit)))
}
