//! Message, what the engines say to each other beside the flows (repair), and its acknowledgement.

use bytes::Bytes;
use vocab::{ByteReader, ByteWriter, FlowId};

use crate::SessionError;

/// Continuation of a message: whether the next frame belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageContinuation {
    /// More follows.
    Part,
    /// The message ends here.
    Last,
}

/// A message, or a piece of one. Pieces of one message follow each other directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageFrame {
    /// The flow it is about.
    pub flow: FlowId,
    /// The engine's own number for the kind of message.
    pub kind: u8,
    /// Continuation of the message in the next frame.
    pub piece: MessageContinuation,
    /// Counts the session's message frames from 0.
    pub sequence: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// All message frames below this sequence have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageAck {
    /// The sequence that is expected next.
    pub next: u64,
}

impl MessageFrame {
    pub(super) fn parse(frame: &Bytes, reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        Ok(Self {
            flow: FlowId(reader.varint()?),
            kind: reader.u8()?,
            piece: match reader.u8()? {
                0 => MessageContinuation::Last,
                1 => MessageContinuation::Part,
                _ => return Err(SessionError::InvalidMessage("unknown flags in a message")),
            },
            sequence: reader.varint()?,
            bytes: frame.slice_ref(reader.bytes(reader.remaining())?),
        })
    }

    pub(super) fn emit(&self, out: &mut ByteWriter) {
        out.varint(self.flow.0)
            .u8(self.kind)
            .u8(match self.piece {
                MessageContinuation::Last => 0,
                MessageContinuation::Part => 1,
            })
            .varint(self.sequence)
            .bytes(&self.bytes);
    }
}

impl MessageAck {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let next = reader.varint()?;
        Ok(Self { next })
    }

    pub(super) fn emit(self, out: &mut ByteWriter) {
        out.varint(self.next);
    }
}
