//! The messages between the two machines.
//!
//! ```text
//!  frame: kind u8 │ bytes of control u32 │ bytes of payload u32 │ fields, big-endian
//!  then so many bytes of control and of payload: ROPs, and the user's data inside them
//! ```
//! The data of streams and transfers travels as payload, so the dictionary finds an attachment that
//! it knows from another protocol. A frame's kinds are [`KINDS`] of the accelerator's.

use std::ops::{Range, RangeInclusive};

use bytes::{Bytes, BytesMut};
use thiserror::Error;
use vocab::{ByteReader, ByteWriter, FlowSegment, SegmentKind, TruncatedInput};

use super::super::buffer::{RopBuffer, SIZE_FIELD};
use super::super::request::{RequestDetail, read_requests};
use super::super::{id, request::RequestRop};
use super::CallOutcome;
use crate::emsmdb::execute::REQUEST_ID_MAX;
use crate::emsmdb::rpc::{RequestEnvelope, ResponseEnvelope, RpcRequest, RpcResponse};
use crate::emsmdb::{ContextHandle, ExtendedFlags, MAX_BUFFERS, PlainBuffer};

/// The kinds of these frames.
pub(super) const KINDS: RangeInclusive<u8> = 32..=63;
/// The most bytes of one message behind its frame: a chain of full buffers, and a stub.
const BULK_MAX: usize = 8 << 20;
/// Shorter data stays with the ROPs around it.
const PAYLOAD_MIN: usize = 64;

const STUB: u8 = 32;
const BATCH: u8 = 33;
const DELIVERED: u8 = 34;
const DECLINED: u8 = 36;
const LEFT: u8 = 37;
const RESTED: u8 = 38;
const STUB_ANSWER: u8 = 48;
const FAULT: u8 = 49;
const BATCH_ANSWER: u8 = 50;
const PROMISE: u8 = 51;
const AHEAD: u8 = 52;
const CANCEL: u8 = 53;
const MAY_WRITE: u8 = 54;
const MUST_FORWARD: u8 = 55;
const CONFIRMED: u8 = 56;
const LEAVE: u8 = 57;
const FOLLOW: u8 = 58;
const REVOKE: u8 = 59;

/// A frame that the other machine cannot have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the other half sent a message that is not valid")]
pub(super) struct MessageError;

impl From<TruncatedInput> for MessageError {
    fn from(_: TruncatedInput) -> Self {
        Self
    }
}

/// A lane: an object that is read ahead, and the count of lanes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneId {
    pub(super) context: ContextHandle,
    pub(super) handle: u32,
    pub(super) epoch: u32,
}

/// The end of a lane: the client took so many answers and does something else now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneEnd {
    pub(super) lane: LaneId,
    pub(super) delivered: u32,
    /// The client releases the object, so its cursor need not move back.
    pub(super) is_released: bool,
}

/// The local answers to writes on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriterKind {
    /// RopWriteStream.
    Stream,
    /// RopFastTransferDestinationPutBuffer, with the server's usual TransferStatus.
    Destination { status: u16 },
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HalfMessage {
    /// A call that is not read.
    Stub {
        call: u32,
        opnum: u16,
        stub: Bytes,
        ends: Vec<LaneEnd>,
    },
    /// A call with ROPs. The near machine has answered it if `is_answered`.
    Batch {
        call: u32,
        is_answered: bool,
        ends: Vec<LaneEnd>,
        request: RpcRequest,
    },
    /// The client has taken so many answers of a lane in all.
    Delivered { lane: LaneId, count: u32 },
    /// Lanes end without a call.
    Declined { ends: Vec<LaneEnd> },
    /// The near machine has ended its tactics on a session. Lanes end with it, and the events that
    /// it has not delivered go back.
    Left {
        context: ContextHandle,
        ends: Vec<LaneEnd>,
        events: Vec<Bytes>,
    },
    /// Lanes end, and the near machine answers no more writes on the objects of a session.
    Rested {
        context: ContextHandle,
        ends: Vec<LaneEnd>,
    },
    /// The answer to a call, as it is.
    StubAnswer { call: u32, outcome: CallOutcome },
    /// The answer to a call with ROPs, without its events. Each item of `events` is the end of one of
    /// the server's answers, so it has room in an answer of this client.
    BatchAnswer {
        call: u32,
        events: Vec<Bytes>,
        response: RpcResponse,
    },
    /// Answers to this request will be sent ahead.
    Promise { lane: LaneId, template: RpcRequest },
    /// The request behind the last one of a script.
    Follow { lane: LaneId, template: RpcRequest },
    /// The next answer of a lane.
    Ahead {
        lane: LaneId,
        is_last: bool,
        events: Vec<Bytes>,
        response: RpcResponse,
    },
    /// The lane sends no more, and what it sent stays valid.
    Cancel { lane: LaneId },
    /// The lane is of an object that the client has never known, and which is released.
    Revoke { lane: LaneId },
    /// Writes on this object may be answered.
    MayWrite {
        context: ContextHandle,
        handle: u32,
        kind: WriterKind,
    },
    /// Writes on this object may not be answered any more.
    MustForward { context: ContextHandle, handle: u32 },
    /// The server has answered a call that the near machine had answered.
    Confirmed { call: u32, events: Vec<Bytes> },
    /// Another connection uses the session: the near machine ends its tactics on it.
    Leave { context: ContextHandle },
}

impl HalfMessage {
    /// The message as segments. User data becomes payload if it may be stored.
    pub(super) fn emit(&self, may_store: bool) -> Vec<FlowSegment> {
        let mut body = BodyWriter {
            fields: ByteWriter::with_capacity(64),
            control: BytesMut::new(),
            payload: Vec::new(),
            may_store,
        };
        let kind = body.message(self);
        let payload_length: usize = body.payload.iter().map(Bytes::len).sum();
        let mut frame = ByteWriter::with_capacity(body.fields.len() + 9);
        frame
            .u8(kind)
            .u32(body.control.len() as u32)
            .u32(payload_length as u32)
            .bytes(body.fields.as_slice());
        let mut segments = vec![FlowSegment::frame(frame.finish())];
        if !body.control.is_empty() {
            segments.push(FlowSegment::control(body.control.freeze()));
        }
        segments.extend(body.payload.into_iter().map(FlowSegment::payload));
        segments
    }
}

struct BodyWriter {
    fields: ByteWriter,
    control: BytesMut,
    payload: Vec<Bytes>,
    may_store: bool,
}

impl BodyWriter {
    fn message(&mut self, message: &HalfMessage) -> u8 {
        match message {
            HalfMessage::Stub {
                call,
                opnum,
                stub,
                ends,
            } => {
                self.fields.u32(*call).u16(*opnum);
                self.ends(ends);
                self.bulk(stub, &[]);
                STUB
            }
            HalfMessage::Batch {
                call,
                is_answered,
                ends,
                request,
            } => {
                self.fields.u32(*call).u8(u8::from(*is_answered));
                self.ends(ends);
                self.request(request);
                BATCH
            }
            HalfMessage::Delivered { lane, count } => {
                self.lane(*lane);
                self.fields.u32(*count);
                DELIVERED
            }
            HalfMessage::Declined { ends } => {
                self.ends(ends);
                DECLINED
            }
            HalfMessage::Left {
                context,
                ends,
                events,
            } => {
                self.fields.bytes(&context.0);
                self.ends(ends);
                self.events(events);
                LEFT
            }
            HalfMessage::Rested { context, ends } => {
                self.fields.bytes(&context.0);
                self.ends(ends);
                RESTED
            }
            HalfMessage::StubAnswer { call, outcome } => {
                self.fields.u32(*call);
                match outcome {
                    CallOutcome::Response(stub) => {
                        self.bulk(stub, &[]);
                        STUB_ANSWER
                    }
                    CallOutcome::Fault(status) => {
                        self.fields.u32(*status);
                        FAULT
                    }
                }
            }
            HalfMessage::BatchAnswer {
                call,
                events,
                response,
            } => {
                self.fields.u32(*call);
                self.events(events);
                self.response(response);
                BATCH_ANSWER
            }
            HalfMessage::Promise { lane, template } => {
                self.lane(*lane);
                self.request(template);
                PROMISE
            }
            HalfMessage::Follow { lane, template } => {
                self.lane(*lane);
                self.request(template);
                FOLLOW
            }
            HalfMessage::Ahead {
                lane,
                is_last,
                events,
                response,
            } => {
                self.lane(*lane);
                self.fields.u8(u8::from(*is_last));
                self.events(events);
                self.response(response);
                AHEAD
            }
            HalfMessage::Cancel { lane } => {
                self.lane(*lane);
                CANCEL
            }
            HalfMessage::Revoke { lane } => {
                self.lane(*lane);
                REVOKE
            }
            HalfMessage::MayWrite {
                context,
                handle,
                kind,
            } => {
                self.fields.bytes(&context.0).u32(*handle);
                match kind {
                    WriterKind::Stream => self.fields.u8(0).u16(0),
                    WriterKind::Destination { status } => self.fields.u8(1).u16(*status),
                };
                MAY_WRITE
            }
            HalfMessage::MustForward { context, handle } => {
                self.fields.bytes(&context.0).u32(*handle);
                MUST_FORWARD
            }
            HalfMessage::Confirmed { call, events } => {
                self.fields.u32(*call);
                self.events(events);
                CONFIRMED
            }
            HalfMessage::Leave { context } => {
                self.fields.bytes(&context.0);
                LEAVE
            }
        }
    }

    fn lane(&mut self, lane: LaneId) {
        self.fields
            .bytes(&lane.context.0)
            .u32(lane.handle)
            .u32(lane.epoch);
    }

    fn ends(&mut self, ends: &[LaneEnd]) {
        self.fields.u8(ends.len() as u8);
        for end in ends {
            self.lane(end.lane);
            self.fields.u32(end.delivered).u8(u8::from(end.is_released));
        }
    }

    fn events(&mut self, events: &[Bytes]) {
        self.fields.u16(events.len() as u16);
        for one in events {
            self.bulk(one, &[]);
        }
    }

    fn request(&mut self, request: &RpcRequest) {
        self.fields.bytes(&request.context.0);
        match &request.envelope {
            RequestEnvelope::Xp { most, out_max } => {
                self.fields.u8(0).u32(*most).u16(*out_max);
            }
            RequestEnvelope::Extended {
                flags,
                out_max,
                auxiliary,
                auxiliary_max,
            } => {
                self.fields.u8(1).u32(*flags).u32(*out_max);
                self.fields.prefixed(auxiliary).u32(*auxiliary_max);
            }
            RequestEnvelope::Http {
                flags,
                out_max,
                auxiliary,
                request_id,
            } => {
                self.fields.u8(2).u32(*flags).u32(*out_max);
                self.fields.prefixed(auxiliary).prefixed(request_id);
            }
        }
        self.buffers(&request.buffers, request_payload);
    }

    fn response(&mut self, response: &RpcResponse) {
        self.fields.bytes(&response.context.0).u32(response.result);
        match &response.envelope {
            ResponseEnvelope::Xp { most } => {
                self.fields.u8(0).u32(*most);
            }
            ResponseEnvelope::Extended {
                flags,
                auxiliary,
                milliseconds,
            } => {
                self.fields.u8(1).u32(*flags).u32(*milliseconds);
                self.fields.prefixed(auxiliary);
            }
            ResponseEnvelope::Http { flags, auxiliary } => {
                self.fields.u8(2).u32(*flags).prefixed(auxiliary);
            }
        }
        self.buffers(&response.buffers, response_payload);
    }

    fn buffers(&mut self, buffers: &[PlainBuffer], payload: fn(&Bytes) -> Vec<Range<usize>>) {
        self.fields.u8(buffers.len() as u8);
        for buffer in buffers {
            self.fields.u16(buffer.flags.0);
            let ranges = payload(&buffer.bytes);
            self.bulk(&buffer.bytes, &ranges);
        }
    }

    /// Bytes behind the frame, with the ranges among them that are payload.
    fn bulk(&mut self, bytes: &Bytes, ranges: &[Range<usize>]) {
        let ranges = if self.may_store { ranges } else { &[] };
        self.fields.u32(bytes.len() as u32).u16(ranges.len() as u16);
        let mut at = 0;
        for range in ranges {
            self.fields.u32(range.start as u32).u32(range.len() as u32);
            self.control.extend_from_slice(&bytes[at..range.start]);
            self.payload.push(bytes.slice(range.clone()));
            at = range.end;
        }
        self.control.extend_from_slice(&bytes[at..]);
    }
}

/// The places of written data in a ROP buffer.
fn request_payload(bytes: &Bytes) -> Vec<Range<usize>> {
    let Ok(requests) = RopBuffer::read(bytes).and_then(|buffer| read_requests(&buffer)) else {
        return Vec::new();
    };
    let place = |request: &RequestRop| match request.detail {
        RequestDetail::Data { start, length } if length >= PAYLOAD_MIN => {
            Some(start + SIZE_FIELD..start + SIZE_FIELD + length)
        }
        _ => None,
    };
    requests.iter().filter_map(place).collect()
}

/// The place of read data in a ROP buffer that begins with it. Others are sent as control.
fn response_payload(bytes: &Bytes) -> Vec<Range<usize>> {
    let size_at = match bytes.get(SIZE_FIELD) {
        Some(&id::READ_STREAM) => SIZE_FIELD + 6,
        Some(&id::SOURCE_GET_BUFFER) => SIZE_FIELD + 13,
        _ => return Vec::new(),
    };
    let Some(size) = bytes.get(size_at..).and_then(<[u8]>::first_chunk) else {
        return Vec::new();
    };
    let range = size_at + 2..size_at + 2 + usize::from(u16::from_le_bytes(*size));
    match range.end <= bytes.len() && range.len() >= PAYLOAD_MIN {
        true => vec![range],
        false => Vec::new(),
    }
}

/// Puts messages together from their segments.
#[derive(Debug, Default)]
pub(super) struct MessageReader {
    pending: Option<PendingMessage>,
}

#[derive(Debug)]
struct PendingMessage {
    frame: Bytes,
    control: BytesMut,
    payload: BytesMut,
    control_length: usize,
    payload_length: usize,
}

impl MessageReader {
    /// True if the segment belongs to these messages.
    pub(super) fn takes(&self, segment: &FlowSegment) -> bool {
        match segment.kind {
            SegmentKind::Frame => segment
                .bytes
                .first()
                .is_some_and(|kind| KINDS.contains(kind)),
            SegmentKind::Payload | SegmentKind::Control => self.pending.is_some(),
        }
    }

    /// Bytes of the message that is not complete.
    pub(super) fn buffered(&self) -> usize {
        self.pending
            .as_ref()
            .map_or(0, |pending| pending.control.len() + pending.payload.len())
    }

    /// Takes a segment, and returns the message that it completes.
    pub(super) fn segment(
        &mut self,
        segment: FlowSegment,
    ) -> Result<Option<HalfMessage>, MessageError> {
        match (segment.kind, &mut self.pending) {
            (SegmentKind::Frame, Some(_)) => return Err(MessageError),
            (SegmentKind::Frame, None) => {
                let mut reader = ByteReader::new(&segment.bytes);
                reader.u8()?;
                let (control, payload) = (reader.u32()? as usize, reader.u32()? as usize);
                if control > BULK_MAX || payload > BULK_MAX {
                    return Err(MessageError);
                }
                self.pending = Some(PendingMessage {
                    frame: segment.bytes,
                    control: BytesMut::new(),
                    payload: BytesMut::new(),
                    control_length: control,
                    payload_length: payload,
                });
            }
            (SegmentKind::Control, Some(pending)) => {
                pending.control.extend_from_slice(&segment.bytes);
            }
            (SegmentKind::Payload, Some(pending)) => {
                pending.payload.extend_from_slice(&segment.bytes);
            }
            (SegmentKind::Control | SegmentKind::Payload, None) => return Err(MessageError),
        }
        let Some(pending) = &self.pending else {
            return Err(MessageError);
        };
        if pending.control.len() > pending.control_length
            || pending.payload.len() > pending.payload_length
        {
            return Err(MessageError);
        }
        let is_complete = pending.control.len() == pending.control_length
            && pending.payload.len() == pending.payload_length;
        if !is_complete {
            return Ok(None);
        }
        let pending = self.pending.take().ok_or(MessageError)?;
        BodyReader {
            fields: ByteReader::new(&pending.frame[9..]),
            control: pending.control.freeze(),
            payload: pending.payload.freeze(),
        }
        .message(pending.frame[0])
        .map(Some)
    }
}

struct BodyReader<'a> {
    fields: ByteReader<'a>,
    control: Bytes,
    payload: Bytes,
}

impl BodyReader<'_> {
    fn message(mut self, kind: u8) -> Result<HalfMessage, MessageError> {
        let message = match kind {
            STUB => HalfMessage::Stub {
                call: self.fields.u32()?,
                opnum: self.fields.u16()?,
                ends: self.ends()?,
                stub: self.bulk()?,
            },
            BATCH => HalfMessage::Batch {
                call: self.fields.u32()?,
                is_answered: self.flag()?,
                ends: self.ends()?,
                request: self.request()?,
            },
            DELIVERED => HalfMessage::Delivered {
                lane: self.lane()?,
                count: self.fields.u32()?,
            },
            DECLINED => HalfMessage::Declined { ends: self.ends()? },
            LEFT => HalfMessage::Left {
                context: self.context()?,
                ends: self.ends()?,
                events: self.events()?,
            },
            RESTED => HalfMessage::Rested {
                context: self.context()?,
                ends: self.ends()?,
            },
            STUB_ANSWER => HalfMessage::StubAnswer {
                call: self.fields.u32()?,
                outcome: CallOutcome::Response(self.bulk()?),
            },
            FAULT => HalfMessage::StubAnswer {
                call: self.fields.u32()?,
                outcome: CallOutcome::Fault(self.fields.u32()?),
            },
            BATCH_ANSWER => HalfMessage::BatchAnswer {
                call: self.fields.u32()?,
                events: self.events()?,
                response: self.response()?,
            },
            PROMISE => HalfMessage::Promise {
                lane: self.lane()?,
                template: self.request()?,
            },
            FOLLOW => HalfMessage::Follow {
                lane: self.lane()?,
                template: self.request()?,
            },
            AHEAD => HalfMessage::Ahead {
                lane: self.lane()?,
                is_last: self.flag()?,
                events: self.events()?,
                response: self.response()?,
            },
            CANCEL => HalfMessage::Cancel { lane: self.lane()? },
            REVOKE => HalfMessage::Revoke { lane: self.lane()? },
            MAY_WRITE => HalfMessage::MayWrite {
                context: self.context()?,
                handle: self.fields.u32()?,
                kind: match (self.fields.u8()?, self.fields.u16()?) {
                    (0, _) => WriterKind::Stream,
                    (1, status) => WriterKind::Destination { status },
                    _ => return Err(MessageError),
                },
            },
            MUST_FORWARD => HalfMessage::MustForward {
                context: self.context()?,
                handle: self.fields.u32()?,
            },
            CONFIRMED => HalfMessage::Confirmed {
                call: self.fields.u32()?,
                events: self.events()?,
            },
            LEAVE => HalfMessage::Leave {
                context: self.context()?,
            },
            _ => return Err(MessageError),
        };
        match self.fields.is_empty() && self.control.is_empty() && self.payload.is_empty() {
            true => Ok(message),
            false => Err(MessageError),
        }
    }

    fn flag(&mut self) -> Result<bool, MessageError> {
        match self.fields.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MessageError),
        }
    }

    fn context(&mut self) -> Result<ContextHandle, MessageError> {
        Ok(ContextHandle(self.fields.array()?))
    }

    fn lane(&mut self) -> Result<LaneId, MessageError> {
        Ok(LaneId {
            context: self.context()?,
            handle: self.fields.u32()?,
            epoch: self.fields.u32()?,
        })
    }

    fn ends(&mut self) -> Result<Vec<LaneEnd>, MessageError> {
        (0..self.fields.u8()?)
            .map(|_| {
                Ok(LaneEnd {
                    lane: self.lane()?,
                    delivered: self.fields.u32()?,
                    is_released: self.flag()?,
                })
            })
            .collect()
    }

    fn events(&mut self) -> Result<Vec<Bytes>, MessageError> {
        (0..self.fields.u16()?).map(|_| self.bulk()).collect()
    }

    fn request(&mut self) -> Result<RpcRequest, MessageError> {
        Ok(RpcRequest {
            context: self.context()?,
            envelope: match self.fields.u8()? {
                0 => RequestEnvelope::Xp {
                    most: self.fields.u32()?,
                    out_max: self.fields.u16()?,
                },
                1 => RequestEnvelope::Extended {
                    flags: self.fields.u32()?,
                    out_max: self.fields.u32()?,
                    auxiliary: Bytes::copy_from_slice(self.fields.prefixed()?),
                    auxiliary_max: self.fields.u32()?,
                },
                2 => RequestEnvelope::Http {
                    flags: self.fields.u32()?,
                    out_max: self.fields.u32()?,
                    auxiliary: Bytes::copy_from_slice(self.fields.prefixed()?),
                    request_id: self.request_id()?,
                },
                _ => return Err(MessageError),
            },
            buffers: self.buffers()?,
        })
    }

    fn request_id(&mut self) -> Result<Bytes, MessageError> {
        let request_id = self.fields.prefixed()?;
        match request_id.len() <= REQUEST_ID_MAX {
            true => Ok(Bytes::copy_from_slice(request_id)),
            false => Err(MessageError),
        }
    }

    fn response(&mut self) -> Result<RpcResponse, MessageError> {
        let context = self.context()?;
        let result = self.fields.u32()?;
        let envelope = match self.fields.u8()? {
            0 => ResponseEnvelope::Xp {
                most: self.fields.u32()?,
            },
            1 => {
                let (flags, milliseconds) = (self.fields.u32()?, self.fields.u32()?);
                ResponseEnvelope::Extended {
                    flags,
                    auxiliary: Bytes::copy_from_slice(self.fields.prefixed()?),
                    milliseconds,
                }
            }
            2 => ResponseEnvelope::Http {
                flags: self.fields.u32()?,
                auxiliary: Bytes::copy_from_slice(self.fields.prefixed()?),
            },
            _ => return Err(MessageError),
        };
        Ok(RpcResponse {
            context,
            envelope,
            buffers: self.buffers()?,
            result,
        })
    }

    fn buffers(&mut self) -> Result<Vec<PlainBuffer>, MessageError> {
        let count = self.fields.u8()?;
        if usize::from(count) > MAX_BUFFERS {
            return Err(MessageError);
        }
        let buffer = |_| {
            let flags = ExtendedFlags(self.fields.u16()?);
            let bytes = self.bulk()?;
            // A buffer is written behind a 16-bit size.
            match bytes.len() <= usize::from(u16::MAX) {
                true => Ok(PlainBuffer { flags, bytes }),
                false => Err(MessageError),
            }
        };
        (0..count).map(buffer).collect()
    }

    fn bulk(&mut self) -> Result<Bytes, MessageError> {
        let length = self.fields.u32()? as usize;
        let ranges = self.fields.u16()?;
        if ranges == 0 {
            return take(&mut self.control, length);
        }
        if length > self.control.len() + self.payload.len() {
            return Err(MessageError);
        }
        let mut bytes = BytesMut::with_capacity(length);
        for _ in 0..ranges {
            let (start, count) = (self.fields.u32()? as usize, self.fields.u32()? as usize);
            let before = start.checked_sub(bytes.len()).ok_or(MessageError)?;
            bytes.extend_from_slice(&take(&mut self.control, before)?);
            bytes.extend_from_slice(&take(&mut self.payload, count)?);
        }
        let behind = length.checked_sub(bytes.len()).ok_or(MessageError)?;
        bytes.extend_from_slice(&take(&mut self.control, behind)?);
        Ok(bytes.freeze())
    }
}

fn take(from: &mut Bytes, count: usize) -> Result<Bytes, MessageError> {
    match count <= from.len() {
        true => Ok(from.split_to(count)),
        false => Err(MessageError),
    }
}
