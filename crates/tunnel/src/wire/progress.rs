//! Progress frames of a receiver: Ack, TotalCredit, and Resume after a change of links.

use vocab::{ByteReader, ByteWriter, FlowId};

use super::number_sum;
use crate::SessionError;

/// Positions in one Resume frame, at most: 512 of at most 33 bytes stay below 17 KiB.
pub const POSITIONS_PER_FRAME: usize = 512;

/// Receipt of something that the peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptState {
    /// Not yet.
    NotYet,
    /// It has.
    Seen,
}

/// Progress of the receiver of one direction: `consumed` ≤ `received` ≤ `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowAck {
    /// The flow.
    pub flow: FlowId,
    /// Offset below which everything has arrived and need not be kept.
    pub received: u64,
    /// Offset below which the decoder has restored everything.
    pub consumed: u64,
    /// Bytes up to this offset may be sent.
    pub limit: u64,
    /// Receipt of the direction's Finish.
    pub finish: ReceiptState,
}

/// Credit of all flows together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TotalCredit {
    /// Bytes sent and not acknowledged as consumed, over all flows, at most.
    pub window: u64,
}

/// One open flow in a [`ResumeFrame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePosition {
    /// Progress of its receiver.
    pub ack: FlowAck,
    /// Receipt of the peer's Answer.
    pub answer: ReceiptState,
}

/// Continuation of the Resume frames: whether more follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeContinuation {
    /// More follow.
    More,
    /// Last frame; all other frames may follow it.
    Last,
}

/// Positions of the sender at the start of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeFrame {
    /// Continuation of the Resume frames.
    pub series: ResumeContinuation,
    /// Above the ids of all flows of the receiver's that the sender has seen opened.
    pub flows_seen_below: u64,
    /// The message sequence expected next.
    pub next_message: u64,
    /// The flows that the sender has open, in rising order of ids over all frames.
    pub positions: Vec<ResumePosition>,
}

impl FlowAck {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let (ack, flags) = parse_progress(reader, 1)?;
        Ok(Self {
            finish: seen(flags & 1),
            ..ack
        })
    }

    pub(super) fn emit(self, out: &mut ByteWriter) {
        emit_progress(&self, bit(self.finish), 1, out);
    }
}

impl TotalCredit {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let window = reader.varint()?;
        Ok(Self { window })
    }

    pub(super) fn emit(self, out: &mut ByteWriter) {
        out.varint(self.window);
    }
}

impl ResumeFrame {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let series = match reader.u8()? {
            0 => ResumeContinuation::Last,
            1 => ResumeContinuation::More,
            _ => return Err(SessionError::InvalidMessage("unknown flags in a resume")),
        };
        let flows_seen_below = reader.varint()?;
        let next_message = reader.varint()?;
        let mut positions = Vec::new();
        while !reader.is_empty() {
            if positions.len() == POSITIONS_PER_FRAME {
                return Err(SessionError::InvalidMessage(
                    "too many positions in one resume",
                ));
            }
            let (ack, flags) = parse_progress(reader, 2)?;
            positions.push(ResumePosition {
                ack: FlowAck {
                    finish: seen(flags & 1),
                    ..ack
                },
                answer: seen(flags & 2),
            });
        }
        Ok(Self {
            series,
            flows_seen_below,
            next_message,
            positions,
        })
    }

    pub(super) fn emit(&self, out: &mut ByteWriter) {
        out.u8(match self.series {
            ResumeContinuation::Last => 0,
            ResumeContinuation::More => 1,
        })
        .varint(self.flows_seen_below)
        .varint(self.next_message);
        for position in &self.positions {
            let flags = bit(position.ack.finish) | bit(position.answer) << 1;
            emit_progress(&position.ack, flags, 2, out);
        }
    }
}

/// Received counts from zero, the rest from each other, so that an ordinary acknowledgement
/// is some twelve bytes; `flag_bits` flags share a number with the unconsumed bytes.
fn parse_progress(
    reader: &mut ByteReader<'_>,
    flag_bits: u32,
) -> Result<(FlowAck, u64), SessionError> {
    let flow = FlowId(reader.varint()?);
    let received = reader.varint()?;
    let unconsumed = reader.varint()?;
    let flags = unconsumed & ((1 << flag_bits) - 1);
    let consumed = received
        .checked_sub(unconsumed >> flag_bits)
        .ok_or(SessionError::InvalidMessage("more consumed than received"))?;
    let limit = number_sum(received, reader.varint()?)?;
    let ack = FlowAck {
        flow,
        received,
        consumed,
        limit,
        finish: ReceiptState::NotYet,
    };
    Ok((ack, flags))
}

fn emit_progress(ack: &FlowAck, flags: u64, flag_bits: u32, out: &mut ByteWriter) {
    out.varint(ack.flow.0)
        .varint(ack.received)
        .varint((ack.received - ack.consumed) << flag_bits | flags)
        .varint(ack.limit - ack.received);
}

fn seen(flag: u64) -> ReceiptState {
    if flag == 0 {
        ReceiptState::NotYet
    } else {
        ReceiptState::Seen
    }
}

fn bit(seen: ReceiptState) -> u64 {
    match seen {
        ReceiptState::NotYet => 0,
        ReceiptState::Seen => 1,
    }
}
