//! Cuts a byte stream into SMB2 messages ([MS-SMB2] §2.1, Transport).
//!
//! ```text
//!  frame:   0 | length (24 bits) | message            | message            | …
//!                                  header body payload  header body …
//!                                  ◄─────── next ──────►
//!  pieces:  ◄────────── Head ────────────────►◄─ Rest ─►◄── Head ──► … End
//! ```
//! A head contains the bytes that decisions need: the frame's length (with the first message of a
//! frame), the header and the first bytes of the body. It is returned whole, however the stream was
//! fragmented. The bytes after it are returned as they arrive, so that a large READ is not delayed.
//! User data in READs and WRITEs is marked as payload.
//!
//! A splitter that finds other data than SMB2 returns its kind and the bytes that it holds.

use bytes::{Bytes, BytesMut};
use vocab::SegmentKind;

use super::frame::FRAME_HEADER;
use super::header::{self, Smb2Header, command, flag};
use super::{WireError, u8_at, u16_at, u32_at};

/// Bytes of a body that a head holds at most: the fixed part of a CREATE answer, the longest that
/// a tactic reads ([MS-SMB2] §2.2.14, CREATE Response).
const BODY_LOOK: usize = 88;
/// The same where data follows the fixed part, so that no data is in the head ([MS-SMB2] §2.2.20,
/// READ Response; §2.2.21, WRITE Request).
const READ_ANSWER_LOOK: usize = 16;
const WRITE_LOOK: usize = 48;
/// The longest accepted frame: the largest READ and WRITE that servers allow are 8 MiB, and the
/// bytes around them are far below the rest.
const FRAME_MAX: usize = 9 << 20;

/// The type of a frame that only shows that its sender lives (RFC 1002 §4.3.1, SESSION PACKET).
const KEEP_ALIVE: u8 = 0x85;

/// The kind of a frame that is not plain SMB2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignFrame {
    /// SMB1, by its first four bytes.
    Smb1,
    /// An encrypted message ([MS-SMB2] §2.2.41, SMB2 TRANSFORM_HEADER).
    Encrypted,
    /// A compressed message ([MS-SMB2] §2.2.42, SMB2 COMPRESSION_TRANSFORM_HEADER).
    Compressed,
    /// A frame longer than any message need be.
    TooLong,
    /// Something else, or a header that cannot be one.
    Unknown,
}

/// The beginning of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Smb2MessageHead {
    /// The bytes: the frame header if the message is its frame's first, the header, some body.
    pub(crate) bytes: BytesMut,
    /// The offset of the message in the bytes: [`FRAME_HEADER`] or 0.
    pub(crate) start: usize,
    /// The header.
    pub(crate) header: Smb2Header,
    /// Bytes of the message, header included, and padding before the next one.
    pub(crate) length: usize,
}

impl Smb2MessageHead {
    /// The part of the body that the head contains.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[self.start + header::LENGTH..]
    }

    /// The same, to be changed.
    pub(crate) fn body_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start + header::LENGTH..]
    }

    /// The header and the part of the body that the head contains.
    pub(crate) fn message(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The header and body, to be changed.
    pub(crate) fn message_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    /// Returns true if the message is alone in its frame.
    pub(crate) fn is_single(&self) -> bool {
        self.start == FRAME_HEADER && self.header.next == 0
    }

    /// Gives the message another id.
    pub(crate) fn set_message_id(&mut self, message_id: u64) {
        self.header.message_id = message_id;
        header::set_message_id(self.message_mut(), message_id);
    }
}

/// An output of a splitter, in the stream's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SplitterPiece {
    /// A message begins.
    Head(Smb2MessageHead),
    /// More bytes of the same message.
    Rest(SegmentKind, Bytes),
    /// The frame is complete.
    End,
    /// A whole frame that holds an encrypted message, for a splitter that takes such.
    Sealed(BytesMut),
}

/// The state of the splitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitterState {
    /// Before a frame, or in its first bytes.
    Frame,
    /// Before a message of a frame with this many bytes left, or in its head.
    Message { first: bool, left: usize },
    /// Behind a head.
    Rest {
        /// Bytes left of the message.
        message: usize,
        /// The numbers of bytes before the payload, and of the payload.
        before: usize,
        payload: usize,
        /// Bytes left of the frame behind the message.
        frame: usize,
    },
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Smb2Splitter {
    held: BytesMut,
    /// Bytes not yet looked at.
    input: Bytes,
    place: SplitterState,
    takes_sealed: bool,
}

impl Smb2Splitter {
    pub(crate) fn new() -> Self {
        Self {
            held: BytesMut::new(),
            input: Bytes::new(),
            place: SplitterState::Frame,
            takes_sealed: false,
        }
    }

    /// One that gathers encrypted messages, where another stops at them.
    pub(crate) fn taking_sealed() -> Self {
        Self {
            takes_sealed: true,
            ..Self::new()
        }
    }

    /// Takes more of the stream. Earlier bytes have been taken out by [`Self::next`].
    pub(crate) fn push(&mut self, bytes: Bytes) {
        if self.input.is_empty() {
            self.input = bytes;
        } else {
            let mut joined = BytesMut::from(&self.input[..]);
            joined.extend_from_slice(&bytes);
            self.input = joined.freeze();
        }
    }

    /// Bytes held back because a head, or an encrypted message, is not complete.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns true if the output so far ends with a frame.
    pub(crate) fn is_between(&self) -> bool {
        self.place == SplitterState::Frame && self.held.is_empty()
    }

    /// Returns true if the stream, as far as it is known, ends with a frame.
    pub(crate) fn at_boundary(&self) -> bool {
        self.is_between() && self.input.is_empty()
    }

    /// Returns all bytes that were not returned yet, when nothing more is to be split.
    pub(crate) fn give_back(&mut self) -> Bytes {
        let mut bytes = self.held.split();
        bytes.extend_from_slice(&std::mem::take(&mut self.input));
        bytes.freeze()
    }

    /// Takes the frame at the stream's present place as one run of bytes without a head: for the
    /// SMB1 NEGOTIATE with which some clients begin ([MS-SMB2] §3.3.5.3.1).
    pub(crate) fn skip_frame(&mut self) {
        let length = frame_length(&self.held).unwrap_or(0);
        let mut bytes = self.held.split();
        bytes.extend_from_slice(&std::mem::take(&mut self.input));
        self.input = bytes.freeze();
        self.place = SplitterState::Rest {
            message: FRAME_HEADER + length,
            before: FRAME_HEADER + length,
            payload: 0,
            frame: 0,
        };
    }

    /// The next piece, or `None` when more bytes are needed.
    ///
    /// # Errors
    /// When the stream is not SMB2 from here; [`Self::give_back`] has the bytes.
    pub(crate) fn next(&mut self) -> Result<Option<SplitterPiece>, ForeignFrame> {
        match self.place {
            SplitterState::Frame => {
                if self.hold(1) && self.held[0] == KEEP_ALIVE {
                    return self.keep_alive();
                }
                // With the first bytes of the message, which say what it is.
                if !self.hold(FRAME_HEADER + header::MAGIC.len()) {
                    return self.judge_short_frame();
                }
                let length = frame_length(&self.held).ok_or(ForeignFrame::Unknown)?;
                match self.held[FRAME_HEADER..] {
                    _ if length > FRAME_MAX => return Err(ForeignFrame::TooLong),
                    [0xfe, b'S', b'M', b'B', ..] if length >= header::LENGTH => {}
                    [0xff, b'S', b'M', b'B', ..] => return Err(ForeignFrame::Smb1),
                    [0xfd, b'S', b'M', b'B', ..] if self.takes_sealed => {
                        let is_whole = self.hold(FRAME_HEADER + length);
                        return Ok(is_whole.then(|| SplitterPiece::Sealed(self.held.split())));
                    }
                    [0xfd, b'S', b'M', b'B', ..] => return Err(ForeignFrame::Encrypted),
                    [0xfc, b'S', b'M', b'B', ..] => return Err(ForeignFrame::Compressed),
                    _ => return Err(ForeignFrame::Unknown),
                }
                self.place = SplitterState::Message {
                    first: true,
                    left: length,
                };
                self.next()
            }
            SplitterState::Message { first, left } => self.head(first, left),
            SplitterState::Rest {
                message: 0,
                frame: 0,
                ..
            } => {
                self.place = SplitterState::Frame;
                Ok(Some(SplitterPiece::End))
            }
            SplitterState::Rest {
                message: 0, frame, ..
            } => {
                self.place = SplitterState::Message {
                    first: false,
                    left: frame,
                };
                self.next()
            }
            SplitterState::Rest {
                message,
                before,
                payload,
                frame,
            } => {
                if self.input.is_empty() {
                    return Ok(None);
                }
                let (kind, run) = match (before, payload) {
                    (1.., _) => (SegmentKind::Control, before),
                    (0, 1..) => (SegmentKind::Payload, payload),
                    (0, 0) => (SegmentKind::Control, message),
                };
                let run = run.min(message).min(self.input.len());
                let bytes = self.input.split_to(run);
                self.place = SplitterState::Rest {
                    message: message - run,
                    before: before.saturating_sub(run),
                    payload: match before {
                        0 => payload.saturating_sub(run),
                        _ => payload,
                    },
                    frame,
                };
                Ok(Some(SplitterPiece::Rest(kind, bytes)))
            }
        }
    }

    fn head(&mut self, first: bool, left: usize) -> Result<Option<SplitterPiece>, ForeignFrame> {
        // The first message of a frame stands behind the frame's header, which is held already.
        let start = match first {
            true => FRAME_HEADER,
            false => 0,
        };
        if left < header::LENGTH {
            return Err(ForeignFrame::Unknown);
        }
        if !self.hold(start + header::LENGTH) {
            return Ok(None);
        }
        let header = Smb2Header::parse(&self.held[start..]).map_err(|_| ForeignFrame::Unknown)?;
        let next = header.next as usize;
        // [MS-SMB2] §3.2.4.1.4: messages of a compound start at multiples of 8.
        if next > left || !next.is_multiple_of(8) || (1..header::LENGTH).contains(&next) {
            return Err(ForeignFrame::Unknown);
        }
        let length = match next {
            0 => left,
            next => next,
        };
        let look = length.min(header::LENGTH + body_look(&header));
        if !self.hold(start + look) {
            return Ok(None);
        }
        let head = Smb2MessageHead {
            bytes: self.held.split(),
            start,
            header,
            length,
        };
        let (data_at, data) = payload(&head).unwrap_or((length, 0));
        let data_at = data_at.clamp(look, length);
        let data_end = data_at.saturating_add(data).min(length);
        self.place = SplitterState::Rest {
            message: length - look,
            before: data_at - look,
            payload: data_end - data_at,
            frame: left - length,
        };
        Ok(Some(SplitterPiece::Head(head)))
    }

    /// Handles an empty frame, which passes.
    fn keep_alive(&mut self) -> Result<Option<SplitterPiece>, ForeignFrame> {
        if !self.hold(FRAME_HEADER) {
            return Ok(None);
        }
        if self.held[1..] != [0, 0, 0] {
            return Err(ForeignFrame::Unknown);
        }
        self.place = SplitterState::Rest {
            message: 0,
            before: 0,
            payload: 0,
            frame: 0,
        };
        let bytes = self.held.split().freeze();
        Ok(Some(SplitterPiece::Rest(SegmentKind::Control, bytes)))
    }

    /// Bytes that end before the first four of a message are waited for, unless they show already
    /// that it is none.
    fn judge_short_frame(&self) -> Result<Option<SplitterPiece>, ForeignFrame> {
        match self.held.first() {
            // Any other type is of NetBIOS's session service (RFC 1002 §4.3) and its set-up.
            Some(1..) => Err(ForeignFrame::Unknown),
            _ => Ok(None),
        }
    }

    /// Fills `held` to `count` bytes; whether there were enough.
    fn hold(&mut self, count: usize) -> bool {
        let missing = count.saturating_sub(self.held.len()).min(self.input.len());
        let more = self.input.split_to(missing);
        self.held.extend_from_slice(&more);
        self.held.len() >= count
    }
}

/// Returns true if a frame with an encrypted message begins here.
pub(crate) fn is_sealed(bytes: &[u8]) -> bool {
    matches!(bytes, [0, _, _, _, 0xfd, ..])
}

fn frame_length(bytes: &[u8]) -> Option<usize> {
    let [0, high, middle, low] = *bytes.first_chunk()? else {
        return None;
    };
    Some(u32::from_be_bytes([0, high, middle, low]) as usize)
}

/// Returns the offset of a message's payload, and its stated length.
fn payload(head: &Smb2MessageHead) -> Result<(usize, usize), WireError> {
    let body = head.body();
    let from_server = head.header.has(flag::FROM_SERVER);
    match head.header.command {
        // [MS-SMB2] §2.2.20 (READ Response): DataOffset, DataLength.
        command::READ if from_server && head.header.status == 0 => {
            Ok((usize::from(u8_at(body, 2)?), u32_at(body, 4)? as usize))
        }
        // [MS-SMB2] §2.2.21 (WRITE Request): DataOffset, Length.
        command::WRITE if !from_server => {
            Ok((usize::from(u16_at(body, 2)?), u32_at(body, 4)? as usize))
        }
        _ => Ok((head.length, 0)),
    }
}

fn body_look(header: &Smb2Header) -> usize {
    match (header.command, header.has(flag::FROM_SERVER)) {
        (command::READ, true) => READ_ANSWER_LOOK,
        (command::WRITE, false) => WRITE_LOOK,
        _ => BODY_LOOK,
    }
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
