//! A byte stream cut into frames ([MS-SMB] §2.1, Transport; RFC 1002 §4.3.1).
//!
//! [`Smb1Splitter`] returns whole frames. [`PassingFrame`] inspects frames that pass in pieces: it
//! keeps the beginning of each and separates a WRITE's data from the rest, and holds no byte back.

use bytes::{Bytes, BytesMut};
use vocab::SegmentKind;

use super::header::{self, Smb1Header, command};
use super::transfer::WriteAndxRequest;

/// Bytes of a frame's own header.
pub(crate) const FRAME_HEADER: usize = 4;
/// The longest accepted frame. Servers take 128 KiB at a time (measured on Samba 4.17); this is
/// sixteen times as much, and bounds the memory that a host can make a half hold.
const FRAME_MAX: usize = 2 << 20;
/// The bytes of a passing message that are kept: those that [`super::target`] and locally answered
/// requests need, and of a READ all.
const LOOK: usize = 96;

/// The types of frames: a message, and a sign of life (RFC 1002 §4.3.1).
const MESSAGE: u8 = 0;
const KEEP_ALIVE: u8 = 0x85;

/// The reason why a stream cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnreadableFrame {
    /// It is not the expected protocol.
    Foreign,
    /// A frame longer than any message need be.
    TooLong,
}

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Smb1Frame {
    /// One that holds a message, and the message's header.
    Message(Smb1Header, BytesMut),
    /// One that only shows that its sender lives.
    KeepAlive(BytesMut),
}

/// The length of the frame's content.
fn length(front: [u8; FRAME_HEADER]) -> usize {
    let [_, high, middle, low] = front;
    u32::from_be_bytes([0, high, middle, low]) as usize
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Smb1Splitter {
    held: BytesMut,
}

impl Smb1Splitter {
    /// Takes more of the stream.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The bytes that were not returned yet.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns all of those, when nothing more is to be split.
    pub(crate) fn give_back(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    /// The next frame, or `None` when more bytes are needed.
    ///
    /// # Errors
    /// When the stream cannot be followed from here; [`Self::give_back`] has the bytes.
    pub(crate) fn next(&mut self) -> Result<Option<Smb1Frame>, UnreadableFrame> {
        let Some(front) = self.held.first_chunk::<FRAME_HEADER>().copied() else {
            return Ok(None);
        };
        let length = length(front);
        if length > FRAME_MAX {
            return Err(UnreadableFrame::TooLong);
        }
        if front[0] != MESSAGE && front[0] != KEEP_ALIVE {
            return Err(UnreadableFrame::Foreign);
        }
        if self.held.len() < FRAME_HEADER + length {
            return Ok(None);
        }
        let frame = self.held.split_to(FRAME_HEADER + length);
        if front[0] == KEEP_ALIVE {
            return Ok(Some(Smb1Frame::KeepAlive(frame)));
        }
        match Smb1Header::parse(&frame[FRAME_HEADER..]) {
            Ok(header) => Ok(Some(Smb1Frame::Message(header, frame))),
            Err(_) => {
                // Put back, so that nothing is lost.
                let behind = std::mem::replace(&mut self.held, frame);
                self.held.unsplit(behind);
                Err(UnreadableFrame::Foreign)
            }
        }
    }
}

/// A message that has passed: its header, its beginning and how long it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PassedMessage {
    pub(crate) header: Smb1Header,
    /// As much as is kept.
    pub(crate) message: Vec<u8>,
    pub(crate) length: usize,
}

/// Bytes of one kind.
pub(crate) type SegmentRun = (SegmentKind, Bytes);

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct PassingFrame {
    /// The beginning of the frame that is passing.
    front: Vec<u8>,
    /// Bytes of it that have passed.
    passed: usize,
    /// The start and end of its payload, once they are known.
    payload: Option<(usize, usize)>,
}

impl PassingFrame {
    /// Takes passing bytes. Returns their runs by kind, and the messages that ended with them.
    ///
    /// # Errors
    /// When the stream cannot be followed from here. The bytes pass nevertheless.
    pub(crate) fn push(
        &mut self,
        mut bytes: Bytes,
    ) -> Result<(Vec<SegmentRun>, Vec<PassedMessage>), UnreadableFrame> {
        let (mut runs, mut messages) = (Vec::new(), Vec::new());
        while !bytes.is_empty() {
            let (kind, run) = self.run(bytes.len())?;
            let piece = bytes.split_to(run);
            let room = (FRAME_HEADER + LOOK).saturating_sub(self.front.len());
            if self.front.len() == self.passed {
                self.front.extend_from_slice(&piece[..run.min(room)]);
            }
            self.passed += run;
            runs.push((kind, piece));
            messages.extend(self.ended()?);
        }
        Ok((runs, messages))
    }

    /// Returns the number of next bytes that are of one kind, and the kind.
    fn run(&mut self, available: usize) -> Result<(SegmentKind, usize), UnreadableFrame> {
        let Some(front) = self.front.first_chunk::<FRAME_HEADER>().copied() else {
            let missing = FRAME_HEADER - self.front.len();
            return Ok((SegmentKind::Control, missing.min(available)));
        };
        let length = length(front);
        if length > FRAME_MAX {
            return Err(UnreadableFrame::TooLong);
        }
        // What says where a WRITE's data stands.
        let look = FRAME_HEADER + length.min(WriteAndxRequest::LOOK);
        if self.passed < look {
            return Ok((SegmentKind::Control, (look - self.passed).min(available)));
        }
        let end = FRAME_HEADER + length;
        let (from, to) = *self
            .payload
            .get_or_insert_with(|| payload(&self.front[FRAME_HEADER..], end));
        let (kind, until) = match self.passed {
            at if at < from => (SegmentKind::Control, from),
            at if at < to => (SegmentKind::Payload, to),
            _ => (SegmentKind::Control, end),
        };
        Ok((kind, (until - self.passed).min(available)))
    }

    /// The message that is complete, if one is.
    fn ended(&mut self) -> Result<Option<PassedMessage>, UnreadableFrame> {
        let Some(front) = self.front.first_chunk::<FRAME_HEADER>().copied() else {
            return Ok(None);
        };
        let length = length(front);
        if self.passed < FRAME_HEADER + length {
            return Ok(None);
        }
        let message = self.front.split_off(FRAME_HEADER);
        *self = Self::default();
        match front[0] {
            KEEP_ALIVE => Ok(None),
            MESSAGE => {
                let header = Smb1Header::parse(&message).map_err(|_| UnreadableFrame::Foreign)?;
                Ok(Some(PassedMessage {
                    header,
                    message,
                    length,
                }))
            }
            _ => Err(UnreadableFrame::Foreign),
        }
    }
}

/// Returns the range of the payload in a frame that ends at `end`: a WRITE's data; empty in
/// another.
fn payload(message: &[u8], end: usize) -> (usize, usize) {
    let is_write = message.get(4) == Some(&command::WRITE);
    let request = WriteAndxRequest::parse(message).ok().filter(|_| is_write);
    let looked = FRAME_HEADER + message.len();
    match request {
        Some(request) => {
            let from = (FRAME_HEADER + request.data_at).clamp(looked.min(end), end);
            (from, (from + request.length as usize).min(end))
        }
        None => (end, end),
    }
}

/// Divides a whole message's frame into runs: `length` bytes from `at` on are payload.
pub(crate) fn in_runs(frame: Bytes, at: usize, length: usize) -> [SegmentRun; 3] {
    let at = at.min(frame.len());
    let end = at.saturating_add(length).min(frame.len());
    [
        (SegmentKind::Control, frame.slice(..at)),
        (SegmentKind::Payload, frame.slice(at..end)),
        (SegmentKind::Control, frame.slice(end..)),
    ]
}

/// The message in a frame.
pub(crate) fn message(frame: &[u8]) -> &[u8] {
    frame.get(FRAME_HEADER..).unwrap_or_default()
}

/// The same, to be changed.
pub(crate) fn message_mut(frame: &mut [u8]) -> &mut [u8] {
    frame.get_mut(FRAME_HEADER..).unwrap_or_default()
}

/// Returns true if a message is too short to be valid. All other checks follow this one.
pub(crate) fn is_short(message: &[u8]) -> bool {
    message.len() < header::LENGTH + 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::nt1::testing::{framed, header, read, write};

    fn stream() -> (Vec<u8>, usize) {
        let (write, data) = write(3, 0, &[9; 300]);
        assert_eq!(data, 300);
        let mut bytes = framed(&read(3, 0, 100));
        bytes.extend(framed(&write));
        bytes.extend([KEEP_ALIVE, 0, 0, 0]);
        bytes.extend(framed(&header(command::ECHO).alone()));
        (bytes, data)
    }

    #[test]
    fn frames_come_out_whole_however_the_stream_arrives() {
        let (bytes, _) = stream();
        for piece in [1, 3, 50, bytes.len()] {
            let mut splitter = Smb1Splitter::default();
            let mut out = Vec::new();
            let mut messages = 0;
            for piece in bytes.chunks(piece) {
                splitter.push(piece);
                while let Some(frame) = splitter.next().unwrap() {
                    let frame = match frame {
                        Smb1Frame::Message(_, frame) => {
                            messages += 1;
                            frame
                        }
                        Smb1Frame::KeepAlive(frame) => frame,
                    };
                    out.extend_from_slice(&frame);
                }
            }
            assert_eq!((out, messages), (bytes.clone(), 3));
        }
    }

    #[test]
    fn passing_bytes_are_classified_and_never_held() {
        let (bytes, data) = stream();
        for piece in [1, 3, 50, bytes.len()] {
            let mut passing = PassingFrame::default();
            let (mut out, mut payload, mut commands) = (Vec::new(), 0, Vec::new());
            for piece in bytes.chunks(piece) {
                let (runs, messages) = passing.push(Bytes::copy_from_slice(piece)).unwrap();
                let before = out.len();
                for (kind, bytes) in runs {
                    payload += match kind {
                        SegmentKind::Payload => bytes.len(),
                        _ => 0,
                    };
                    out.extend_from_slice(&bytes);
                }
                assert_eq!(out.len() - before, piece.len());
                commands.extend(messages.iter().map(|passed| passed.header.command));
            }
            assert_eq!(out, bytes);
            assert_eq!(payload, data);
            assert_eq!(commands, [command::READ, command::WRITE, command::ECHO]);
            assert_eq!(passing.passed, 0);
        }
    }

    #[test]
    fn invalid_message_ends_parsing_and_is_returned() {
        let strange = [&[0, 0, 0, 40][..], &[0xfe; 40]].concat();
        let mut splitter = Smb1Splitter::default();
        splitter.push(&strange);
        splitter.push(b"more");
        assert_eq!(splitter.next(), Err(UnreadableFrame::Foreign));
        assert_eq!(splitter.give_back(), [&strange[..], b"more"].concat());
        let long = [0, 0xff, 0, 0];
        splitter.push(&long);
        assert_eq!(splitter.next(), Err(UnreadableFrame::TooLong));
        let mut passing = PassingFrame::default();
        assert_eq!(
            passing.push(Bytes::from(strange)),
            Err(UnreadableFrame::Foreign)
        );
    }
}
