//! The frames on a link: a length, a type, and a body, as docs/formats/wan-frames.md says.
//!
//! ```text
//! +----------------+---------+------------------------+
//! | length varint  | type u8 | body (length − 1 bytes)|
//! +----------------+---------+------------------------+
//! ```
//!
//! Each family has a file with its meaning as structs; what they can hold, `emit` writes and
//! [`SessionFrame::parse`] reads back equal. Parsing checks what one frame can show; what depends on
//! the session's state is checked by the session. It allocates nothing that the frame's own
//! size does not bound.

mod data;
mod datagrams;
mod flow;
mod hello;
mod liveness;
mod message;
mod progress;

use bytes::{Buf, Bytes, BytesMut};
use vocab::{ByteReader, ByteWriter, varint_length};

pub use data::DataFrame;
pub(crate) use data::{DataView, data_header};
pub use datagrams::{DATAGRAM_VERSION, DatagramOffer};
pub use flow::{AnswerFrame, FinishFrame, OpenFrame, ResetFrame};
pub use hello::{HelloFrame, LEAST_VERSION, VERSION};
pub use liveness::{GoAway, PingFrame, PongFrame};
pub use message::{MessageAck, MessageContinuation, MessageFrame};
pub use progress::{
    FlowAck, POSITIONS_PER_FRAME, ReceiptState, ResumeContinuation, ResumeFrame, ResumePosition,
    TotalCredit,
};

use crate::SessionError;
use crate::limits::FRAME_LIMIT;

/// Offsets, ids and credits are below this, so that they fit a variable-length integer.
pub const NUMBER_LIMIT: u64 = 1 << 62;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionFrame {
    /// Identity and version of the sender.
    Hello(HelloFrame),
    /// Position of each flow after a change of links.
    Resume(ResumeFrame),
    /// A question for a sign of life.
    Ping(PingFrame),
    /// The answer to it.
    Pong(PongFrame),
    /// No new flows, please.
    GoAway(GoAway),
    /// Parameters for packets to the sender.
    DatagramOffer(DatagramOffer),
    /// A new flow.
    Open(OpenFrame),
    /// Result of an open.
    Answer(AnswerFrame),
    /// Bytes of a flow.
    Data(DataFrame),
    /// The end of a direction.
    Finish(FinishFrame),
    /// The end of a flow.
    Reset(ResetFrame),
    /// Progress of a flow's receiver.
    Ack(FlowAck),
    /// Credit for all flows together.
    TotalCredit(TotalCredit),
    /// A message between the engines.
    Message(MessageFrame),
    /// Acknowledgement of messages.
    MessageAck(MessageAck),
}

/// Frame types as written on the wire; numbers are never given out again.
mod kind {
    pub(super) const HELLO: u8 = 0x01;
    pub(super) const RESUME: u8 = 0x02;
    pub(super) const PING: u8 = 0x03;
    pub(super) const PONG: u8 = 0x04;
    pub(super) const GO_AWAY: u8 = 0x05;
    pub(super) const DATAGRAM_OFFER: u8 = 0x06;
    pub(super) const OPEN: u8 = 0x10;
    pub(super) const ANSWER: u8 = 0x11;
    pub(super) const DATA: u8 = 0x12;
    pub(super) const FINISH: u8 = 0x13;
    pub(super) const RESET: u8 = 0x14;
    pub(super) const ACK: u8 = 0x15;
    pub(super) const TOTAL_CREDIT: u8 = 0x16;
    pub(super) const MESSAGE: u8 = 0x18;
    pub(super) const MESSAGE_ACK: u8 = 0x19;
}

impl SessionFrame {
    /// Reads a frame without its length. Payloads are slices of `frame`, not copies.
    ///
    /// # Errors
    /// [`SessionError::InvalidMessage`] when it is no frame of this version.
    pub fn parse(frame: &Bytes) -> Result<Self, SessionError> {
        let mut reader = ByteReader::new(frame);
        let kind = reader.u8()?;
        let parsed = match kind {
            kind::HELLO => Self::Hello(HelloFrame::parse(&mut reader)?),
            kind::RESUME => Self::Resume(ResumeFrame::parse(&mut reader)?),
            kind::PING => Self::Ping(PingFrame::parse(&mut reader)?),
            kind::PONG => Self::Pong(PongFrame::parse(&mut reader)?),
            kind::GO_AWAY => Self::GoAway(GoAway),
            kind::DATAGRAM_OFFER => Self::DatagramOffer(DatagramOffer::parse(&mut reader)?),
            kind::OPEN => Self::Open(OpenFrame::parse(&mut reader)?),
            kind::ANSWER => Self::Answer(AnswerFrame::parse(&mut reader)?),
            kind::DATA => Self::Data(DataFrame::parse(frame, &mut reader)?),
            kind::FINISH => Self::Finish(FinishFrame::parse(&mut reader)?),
            kind::RESET => Self::Reset(ResetFrame::parse(&mut reader)?),
            kind::ACK => Self::Ack(FlowAck::parse(&mut reader)?),
            kind::TOTAL_CREDIT => Self::TotalCredit(TotalCredit::parse(&mut reader)?),
            kind::MESSAGE => Self::Message(MessageFrame::parse(frame, &mut reader)?),
            kind::MESSAGE_ACK => Self::MessageAck(MessageAck::parse(&mut reader)?),
            _ => return Err(SessionError::InvalidMessage("unknown frame type")),
        };
        if !reader.is_empty() {
            return Err(SessionError::InvalidMessage(
                "bytes after the end of a frame",
            ));
        }
        Ok(parsed)
    }

    /// Appends the frame with its length.
    pub fn emit(&self, out: &mut ByteWriter) {
        let mut body = ByteWriter::with_capacity(64);
        match self {
            Self::Hello(hello) => hello.emit(body.u8(kind::HELLO)),
            Self::Resume(resume) => resume.emit(body.u8(kind::RESUME)),
            Self::Ping(ping) => ping.emit(body.u8(kind::PING)),
            Self::Pong(pong) => pong.emit(body.u8(kind::PONG)),
            Self::GoAway(GoAway) => {
                body.u8(kind::GO_AWAY);
            }
            Self::DatagramOffer(offer) => offer.emit(body.u8(kind::DATAGRAM_OFFER)),
            Self::Open(open) => open.emit(body.u8(kind::OPEN)),
            Self::Answer(answer) => answer.emit(body.u8(kind::ANSWER)),
            Self::Data(data) => return data.emit(out),
            Self::Finish(finish) => finish.emit(body.u8(kind::FINISH)),
            Self::Reset(reset) => reset.emit(body.u8(kind::RESET)),
            Self::Ack(ack) => ack.emit(body.u8(kind::ACK)),
            Self::TotalCredit(credit) => credit.emit(body.u8(kind::TOTAL_CREDIT)),
            Self::Message(message) => message.emit(body.u8(kind::MESSAGE)),
            Self::MessageAck(ack) => ack.emit(body.u8(kind::MESSAGE_ACK)),
        }
        out.prefixed(&body.finish());
    }
}

/// Takes the next whole frame, without its length, off the front of what a link delivered;
/// `None` when more bytes are needed.
///
/// # Errors
/// [`SessionError::InvalidMessage`] when the length is zero or above [`FRAME_LIMIT`].
pub fn split_frame(incoming: &mut BytesMut) -> Result<Option<Bytes>, SessionError> {
    let Some((prefix, length)) = next_frame(incoming) else {
        return Ok(None);
    };
    let length = frame_length(length)?;
    if incoming.len() < prefix + length {
        return Ok(None);
    }
    incoming.advance(prefix);
    Ok(Some(incoming.split_to(length).freeze()))
}

/// The length of a frame, if there can be one so long.
pub(crate) fn frame_length(length: u64) -> Result<usize, SessionError> {
    if length == 0 || length > FRAME_LIMIT as u64 {
        return Err(SessionError::InvalidMessage(
            "a frame's length is zero or too large",
        ));
    }
    Ok(length as usize)
}

/// Returns the size of the length prefix at the start of `bytes`, and the length of the frame
/// behind it, whether it is complete or not; `None` when the length itself is incomplete.
pub(crate) fn next_frame(bytes: &[u8]) -> Option<(usize, u64)> {
    let mut reader = ByteReader::new(bytes);
    let length = reader.varint().ok()?;
    // It may be written in more bytes than it needs.
    Some((bytes.len() - reader.remaining(), length))
}

/// Reads a number and checks that it can be written again.
fn number_sum(base: u64, more: u64) -> Result<u64, SessionError> {
    base.checked_add(more)
        .filter(|sum| *sum < NUMBER_LIMIT)
        .ok_or(SessionError::InvalidMessage("a number is above 2^62"))
}

/// Bytes that a length prefix adds to a frame of `length` bytes.
fn prefix_length(length: usize) -> usize {
    varint_length(length as u64)
}

#[cfg(test)]
mod tests;
