//! The framing of HTTP/1.1 messages (RFC 9112), strict and incremental.
//!
//! [`MessageReader`] is handed a stream in pieces and says of each run of bytes what it is: part of a head,
//! control bytes of a chunked body, payload. It copies heads (at most [`HEAD_MAX`] bytes each) and
//! nothing else. Any split of the stream into pieces gives the same messages.
//!
//! ```text
//!   Head ──► Fixed(n) | Chunked | UntilClose ──► Head of the next message
//!     └─────► (no body) ─────────────────────────┘
//! ```
//!
//! A message that another implementation could understand differently is a [`FramingFault`]: the reader
//! stops in front of it, and its user passes the rest of the stream untouched. RFC 9112 §11.2
//! (Request Smuggling) says why; `tests/smuggling.rs` lists the shapes.

mod chunked;
mod fields;
mod framing;
mod head;
mod reader;

pub use fields::{FieldSection, is_token};
pub use framing::{BodyFraming, has_option};
pub use head::{HttpVersion, RequestHead, ResponseHead};
pub use reader::{
    BodyExpectation, MessageHead, MessagePart, MessageReader, ReaderStep, Requests, Responses,
};

/// Bytes of a request line or a status line. RFC 9112 §3 (Request Line) recommends that 8,000 are
/// supported; servers stop at 8 KiB (nginx, Apache) or 16 KiB (IIS).
pub const START_LINE_MAX: usize = 16 * 1024;
/// Bytes of a head, its start line included, and of the trailers of a chunked body. Twice what
/// the most generous of common servers takes (32 KiB, nginx `large_client_header_buffers`).
pub const HEAD_MAX: usize = 64 * 1024;
/// Field lines of a head, or of trailers. Apache takes 100, and browsers send about 20.
pub const FIELDS_MAX: usize = 256;
/// Bytes of one line with a chunk's size and its extensions. Nobody uses extensions; a size alone
/// has at most 16 digits.
pub const CHUNK_LINE_MAX: usize = 256;
/// Bytes of chunk extensions of one message, so that a body of extensions alone does not last
/// for ever (RFC 9112 §7.1.1, Chunk Extensions).
pub const EXTENSIONS_MAX: usize = 16 * 1024;
/// Empty lines before a request line that are passed over (RFC 9112 §2.2, Message Parsing).
pub const EMPTY_LINES_MAX: usize = 4;

/// Why a stream cannot be followed any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FramingFault {
    /// A line feed without a carriage return before it.
    #[error("a line ends in LF without CR")]
    BareLineFeed,
    /// A carriage return without a line feed behind it.
    #[error("a CR is not at the end of a line")]
    BareCarriageReturn,
    /// The first line is no request line of HTTP/1.x.
    #[error("the request line is not valid in HTTP/1")]
    RequestLine,
    /// The first line is no status line of HTTP/1.x.
    #[error("the status line is not valid in HTTP/1")]
    StatusLine,
    /// A field name that is no token, for example with whitespace before the colon.
    #[error("a field name is not a token")]
    FieldName,
    /// A field value with control characters.
    #[error("a field value contains control characters")]
    FieldValue,
    /// A field line that begins with whitespace (obs-fold, RFC 9112 §5.2).
    #[error("a field continues on a second line (obsolete line folding)")]
    Folded,
    /// Content-Length is no number, or stands there twice.
    #[error("Content-Length is not a single number")]
    ContentLength,
    /// Content-Length beside Transfer-Encoding.
    #[error("the message has both Content-Length and Transfer-Encoding")]
    TwoLengths,
    /// Any Transfer-Encoding but "chunked", or one in HTTP/1.0.
    #[error("Transfer-Encoding is not chunked")]
    TransferEncoding,
    /// A chunk's size that is no hexadecimal number, or extensions with control characters.
    #[error("the line with a chunk's size is malformed")]
    ChunkSize,
    /// A chunk without CRLF behind it.
    #[error("the line end after a chunk is missing")]
    ChunkEnd,
    /// Host is missing in HTTP/1.1, stands there twice or is malformed (RFC 9112 §3.2).
    #[error("Host is missing, repeated or malformed")]
    Host,
    /// A limit of this module.
    #[error("a message head or a chunk line is longer than its limit")]
    Limit,
    /// Bytes of a response to which there is no request.
    #[error("a response has no request")]
    Unsolicited,
}

#[cfg(test)]
mod tests;
