//! The machine beside the client.
//!
//! ```text
//!  session: queue of calls ──► first call ──┬─ the next answer of its lane is here ─► answered
//!                                           ├─ it will come ────────────────────────► waits for the lane
//!                                           ├─ a write that may be answered ────────► answered, sent on
//!                                           └─ any other ───────────────────────────► sent on, waits for the server
//! ```
//! A call that is sent on ends the lanes that it touches or may change ([`LaneEffect`]). A list of
//! ROPs that cannot be read ends all of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use vocab::{FlowSegment, Time};

use super::super::buffer::{RopBuffer, SIZE_FIELD};
use super::super::id;
use super::super::request::{RequestDetail, RequestRop, read_requests};
use super::message::{HalfMessage, LaneEnd, LaneId, MessageError, MessageReader, WriterKind};
use super::{CONTEXTS_MAX, CallOutcome, HANDLES_MAX, QUEUED_MAX, SCRIPT_HANDLE, WRITE_BEHIND_MAX};
use crate::emsmdb::rpc::{RpcRequest, RpcResponse};
use crate::emsmdb::{ContextHandle, PlainBuffer, opnum};

/// Bytes of an extended buffer's header.
const EXTENDED_HEADER: usize = 8;
/// The most bytes of one ROP buffer in an answer.
const BUFFER_MAX: usize = 0x7fff;
/// Events that wait for an answer with room. More of them end the connection.
pub(super) const EVENTS_MAX: usize = 4096;
/// Requests of a script that wait for their answers. The far machine promises one after the other.
const PROMISED_MAX: usize = 64;
/// The age at which an answer of a script is out of date. A program makes the calls of one action
/// without a pause; a user who thinks in between gets the server's present answer.
const SCRIPT_AGE_MAX: Duration = Duration::from_secs(5);
/// TransferStatus of a transfer with more to come.
const STATUS_PARTIAL: u16 = 1;

/// An action that the machine requests from its half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NearOutput {
    /// Answer the client's call.
    Answer {
        /// The number that the half gave to the call.
        call: u64,
        /// The answer.
        outcome: CallOutcome,
    },
    /// Send a segment to the other half.
    ToFar(FlowSegment),
    /// The connection cannot continue: end it at both ends.
    Close,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct TacticsNear {
    may_store: bool,
    now: Time,
    contexts: BTreeMap<ContextHandle, NearContext>,
    reader: MessageReader,
    /// Calls that the far machine has.
    forwarded: BTreeMap<u32, ForwardedCall>,
    next_call: u32,
    answered: u64,
    is_closed: bool,
    outputs: VecDeque<NearOutput>,
}

#[derive(Debug)]
struct ForwardedCall {
    /// The client's call; `None` if it was answered here.
    call: Option<u64>,
    context: Option<ContextHandle>,
    /// The most bytes of its answer.
    out_max: usize,
    /// The bytes of an answered write.
    written: usize,
    /// It ends the session.
    is_disconnect: bool,
}

#[derive(Debug, Default)]
struct NearContext {
    queue: VecDeque<QueuedCall>,
    waiting: Option<NearWait>,
    lanes: BTreeMap<u32, NearLane>,
    writers: BTreeMap<u32, WriterKind>,
    /// Events for the next answers with room, as the server sent them.
    events: VecDeque<Bytes>,
    /// Bytes and number of the writes that the server has not answered.
    unconfirmed: usize,
    unconfirmed_calls: usize,
}

/// The reason why the first call of a session waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NearWait {
    Server,
    Lane(u32),
    Room,
}

#[derive(Debug)]
struct QueuedCall {
    call: u64,
    opnum: u16,
    stub: Bytes,
    batch: Option<ReadBatch>,
}

/// A call whose ROP buffer was read.
#[derive(Clone, Debug)]
struct ReadBatch {
    request: RpcRequest,
    buffer: RopBuffer,
    /// `None` if one of them is not known.
    requests: Option<Vec<RequestRop>>,
}

impl ReadBatch {
    fn read(opnum: u16, stub: &Bytes) -> Option<Self> {
        let request = RpcRequest::read(opnum, stub).ok()?;
        let [only] = &request.buffers[..] else {
            return None;
        };
        let buffer = RopBuffer::read(&only.bytes).ok()?;
        if buffer.handles.len() > HANDLES_MAX {
            return None;
        }
        let requests = read_requests(&buffer).ok();
        Some(Self {
            request,
            buffer,
            requests,
        })
    }

    /// The only ROP of the batch.
    fn only(&self) -> Option<&RequestRop> {
        match self.requests.as_deref() {
            Some([only]) => Some(only),
            Some(_) | None => None,
        }
    }
}

/// The kind of object that a lane reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneKind {
    Stream,
    Table,
    Source,
    Script,
}

#[derive(Debug)]
struct NearLane {
    id: LaneId,
    kind: LaneKind,
    /// The request of every answer; the requests of the next answers in a script.
    requests: VecDeque<RpcRequest>,
    answers: VecDeque<LaneAnswer>,
    delivered: u32,
    is_over: bool,
}

#[derive(Debug)]
struct LaneAnswer {
    response: RpcResponse,
    arrived: Time,
    /// The remaining pieces of a transfer that the client takes in other sizes than it first asked for.
    pieces: Option<VecDeque<TransferPiece>>,
}

/// One response of RopFastTransferSourceGetBuffer.
#[derive(Debug)]
struct TransferPiece {
    result: u32,
    /// TransferStatus, InProgressCount, TotalStepCount and the reserved byte.
    status: [u8; 7],
    data: Bytes,
    /// The bytes behind the data.
    rest: Bytes,
}

/// The effect of a call on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneEffect {
    None,
    /// The server's cursor must be where the client believes it is.
    Rewind,
    /// The object is released.
    Release,
    /// The call needs the server to be where it cannot go back to.
    Conflict,
}

impl TacticsNear {
    /// A machine for one connection. User data goes into the dictionary if `may_store`.
    #[must_use]
    pub fn new(may_store: bool) -> Self {
        Self {
            may_store,
            ..Self::default()
        }
    }

    /// Takes a call of the client on the interface EMSMDB. `call` is any number of the half's.
    pub fn call(&mut self, now: Time, call: u64, opnum: u16, stub: Bytes) {
        if self.is_closed {
            return;
        }
        self.now = now;
        let context = opnum::has_context(opnum)
            .then(|| ContextHandle::of_stub(&stub))
            .flatten()
            .filter(|context| {
                self.contexts.contains_key(context) || self.contexts.len() < CONTEXTS_MAX
            });
        let Some(context) = context else {
            self.forward_stub(call, None, opnum, stub, Vec::new());
            return;
        };
        let batch = match opnum::carries_rops(opnum) {
            true => ReadBatch::read(opnum, &stub),
            false => None,
        };
        let session = self.contexts.entry(context).or_default();
        if session.queue.len() >= QUEUED_MAX {
            self.close();
            return;
        }
        session.queue.push_back(QueuedCall {
            call,
            opnum,
            stub,
            batch,
        });
        self.proceed(context);
    }

    /// True if the segment from the other half is for this machine.
    #[must_use]
    pub fn takes(&self, segment: &FlowSegment) -> bool {
        self.reader.takes(segment)
    }

    /// Takes a segment from the far machine.
    pub fn segment(&mut self, now: Time, segment: FlowSegment) {
        if self.is_closed {
            return;
        }
        self.now = now;
        let handled = match self.reader.segment(segment) {
            Ok(Some(message)) => self.message(message),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if handled.is_err() {
            self.close();
        }
    }

    /// Returns the next action.
    pub fn poll_output(&mut self) -> Option<NearOutput> {
        self.outputs.pop_front()
    }

    /// Calls that were answered here.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Bytes that the machine holds.
    #[must_use]
    pub fn buffered(&self) -> usize {
        let lanes = self
            .contexts
            .values()
            .flat_map(|session| session.lanes.values());
        let ahead: usize = lanes
            .flat_map(|lane| &lane.answers)
            .map(|answer| length_of(&answer.response.buffers))
            .sum();
        let queued: usize = self
            .contexts
            .values()
            .flat_map(|session| &session.queue)
            .map(|queued| queued.stub.len())
            .sum();
        ahead + queued + self.reader.buffered()
    }

    fn close(&mut self) {
        if !self.is_closed {
            self.is_closed = true;
            self.outputs.push_back(NearOutput::Close);
        }
    }

    fn send(&mut self, message: &HalfMessage) {
        let segments = message.emit(self.may_store);
        self.outputs
            .extend(segments.into_iter().map(NearOutput::ToFar));
    }

    fn answer(&mut self, call: u64, outcome: CallOutcome) {
        self.outputs.push_back(NearOutput::Answer { call, outcome });
    }

    fn message(&mut self, message: HalfMessage) -> Result<(), MessageError> {
        match message {
            HalfMessage::StubAnswer { call, outcome } => {
                let forwarded = self.forwarded.remove(&call).ok_or(MessageError)?;
                self.answer(forwarded.call.ok_or(MessageError)?, outcome);
                self.served(forwarded.context);
                if let Some(context) = forwarded.context
                    && forwarded.is_disconnect
                    && let Some(session) = self.contexts.get(&context)
                    && session.queue.is_empty()
                    && session.unconfirmed_calls == 0
                    && session.waiting.is_none()
                {
                    self.contexts.remove(&context);
                }
            }
            HalfMessage::BatchAnswer {
                call,
                events,
                mut response,
            } => {
                let forwarded = self.forwarded.remove(&call).ok_or(MessageError)?;
                let context = forwarded.context.ok_or(MessageError)?;
                self.events(context, events);
                let session = self.contexts.get_mut(&context).ok_or(MessageError)?;
                attach_events(&mut session.events, &mut response, forwarded.out_max);
                let stub = CallOutcome::Response(response.write());
                self.answer(forwarded.call.ok_or(MessageError)?, stub);
                self.served(Some(context));
            }
            HalfMessage::Promise { lane, template } => self.promised(lane, template)?,
            HalfMessage::Follow { lane, template } => {
                if let Some(script) = self.lane(lane).filter(|of| of.kind == LaneKind::Script) {
                    if script.requests.len() >= PROMISED_MAX {
                        return Err(MessageError);
                    }
                    script.requests.push_back(template);
                }
            }
            HalfMessage::Ahead {
                lane,
                is_last,
                events,
                response,
            } => self.arrived(lane, is_last, events, response),
            HalfMessage::Cancel { lane } => {
                if let Some(known) = self.lane(lane) {
                    known.is_over = true;
                }
                self.lane_changed(lane);
            }
            HalfMessage::Revoke { lane } => {
                if self.lane(lane).is_some()
                    && let Some(session) = self.contexts.get_mut(&lane.context)
                {
                    session.lanes.remove(&lane.handle);
                    session.stop_waiting_for_ended_lane();
                    self.proceed(lane.context);
                }
            }
            HalfMessage::MayWrite {
                context,
                handle,
                kind,
            } => {
                if let Some(session) = self.contexts.get_mut(&context) {
                    session.writers.insert(handle, kind);
                }
            }
            HalfMessage::MustForward { context, handle } => {
                if let Some(session) = self.contexts.get_mut(&context) {
                    session.writers.remove(&handle);
                }
            }
            HalfMessage::Confirmed { call, events } => {
                let forwarded = self.forwarded.remove(&call).ok_or(MessageError)?;
                let context = forwarded.context.ok_or(MessageError)?;
                if forwarded.call.is_some() {
                    return Err(MessageError);
                }
                self.events(context, events);
                let session = self.contexts.get_mut(&context).ok_or(MessageError)?;
                session.unconfirmed -= forwarded.written;
                session.unconfirmed_calls -= 1;
                if session.waiting == Some(NearWait::Room) {
                    session.waiting = None;
                    self.proceed(context);
                }
            }
            HalfMessage::Leave { context } => self.leave(context),
            HalfMessage::Stub { .. }
            | HalfMessage::Batch { .. }
            | HalfMessage::Delivered { .. }
            | HalfMessage::Left { .. }
            | HalfMessage::Rested { .. }
            | HalfMessage::Declined { .. } => return Err(MessageError),
        }
        Ok(())
    }

    /// True if [`Self::rest`] would end something.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        let mut sessions = self.contexts.values();
        sessions.any(|session| {
            let mut lanes = session.lanes.values();
            !session.writers.is_empty() || lanes.any(|lane| lane.kind != LaneKind::Source)
        })
    }

    /// True if the client has still to take answers of a transfer.
    #[must_use]
    pub fn has_transfers(&self) -> bool {
        let mut sessions = self.contexts.values();
        sessions.any(|session| {
            let mut lanes = session.lanes.values();
            lanes.any(|lane| lane.kind == LaneKind::Source)
        })
    }

    /// Ends what is under way ahead of the client, because its calls pause here or may go on in
    /// another connection. The client still takes the answers of transfers, which the server cannot
    /// repeat.
    pub fn rest(&mut self, now: Time) {
        self.now = now;
        if self.is_closed {
            return;
        }
        let mut rested = Vec::new();
        for (context, session) in &mut self.contexts {
            let ended = session.end_lanes(|lane| match lane.kind {
                LaneKind::Stream | LaneKind::Table | LaneKind::Script => LaneEffect::Rewind,
                LaneKind::Source => LaneEffect::None,
            });
            let ends = ended.unwrap_or_default();
            if !ends.is_empty() || !session.writers.is_empty() {
                session.writers.clear();
                session.stop_waiting_for_ended_lane();
                rested.push((*context, ends));
            }
        }
        for (context, ends) in rested {
            self.send(&HalfMessage::Rested { context, ends });
            self.proceed(context);
        }
    }

    /// Ends the tactics on a session, except that the client still takes the answers of transfers.
    fn leave(&mut self, context: ContextHandle) {
        let mut ends = Vec::new();
        let mut events = Vec::new();
        if let Some(session) = self.contexts.get_mut(&context) {
            events.extend(session.events.drain(..));
            session.writers.clear();
            let ended = session.end_lanes(|lane| match lane.kind {
                LaneKind::Stream | LaneKind::Table | LaneKind::Script => LaneEffect::Rewind,
                LaneKind::Source => LaneEffect::None,
            });
            ends = ended.unwrap_or_default();
            session.stop_waiting_for_ended_lane();
        }
        self.send(&HalfMessage::Left {
            context,
            ends,
            events,
        });
        self.proceed(context);
    }

    /// The server has answered the call that the session waited for.
    fn served(&mut self, context: Option<ContextHandle>) {
        let Some(context) = context else { return };
        if let Some(session) = self.contexts.get_mut(&context)
            && session.waiting == Some(NearWait::Server)
        {
            session.waiting = None;
        }
        self.proceed(context);
    }

    fn lane(&mut self, id: LaneId) -> Option<&mut NearLane> {
        let lane = self
            .contexts
            .get_mut(&id.context)?
            .lanes
            .get_mut(&id.handle);
        lane.filter(|lane| lane.id == id)
    }

    fn promised(&mut self, id: LaneId, template: RpcRequest) -> Result<(), MessageError> {
        let first = template.buffers.first();
        let kind = match first.and_then(|one| one.bytes.get(SIZE_FIELD)) {
            _ if id.handle == SCRIPT_HANDLE => LaneKind::Script,
            Some(&id::READ_STREAM) => LaneKind::Stream,
            Some(&id::QUERY_ROWS) => LaneKind::Table,
            Some(&id::SOURCE_GET_BUFFER) => LaneKind::Source,
            _ => return Err(MessageError),
        };
        let Some(session) = self.contexts.get_mut(&id.context) else {
            return Ok(());
        };
        if session.unconfirmed_calls > 0 && kind != LaneKind::Source {
            // A write that the server has not seen yet may change what it reads.
            let end = LaneEnd {
                lane: id,
                delivered: 0,
                is_released: false,
            };
            self.send(&HalfMessage::Declined { ends: vec![end] });
            return Ok(());
        }
        let lane = NearLane {
            id,
            kind,
            requests: VecDeque::from([template]),
            answers: VecDeque::new(),
            delivered: 0,
            is_over: false,
        };
        session.lanes.insert(id.handle, lane);
        Ok(())
    }

    fn arrived(&mut self, id: LaneId, is_last: bool, events: Vec<Bytes>, response: RpcResponse) {
        let arrived = self.now;
        if let Some(lane) = self.lane(id) {
            lane.answers.push_back(LaneAnswer {
                response,
                arrived,
                pieces: None,
            });
            lane.is_over = is_last;
        }
        self.events(id.context, events);
        self.lane_changed(id);
    }

    fn lane_changed(&mut self, id: LaneId) {
        let Some(session) = self.contexts.get_mut(&id.context) else {
            return;
        };
        session
            .lanes
            .retain(|_, lane| !lane.is_over || !lane.answers.is_empty());
        if session.waiting == Some(NearWait::Lane(id.handle)) {
            session.waiting = None;
            self.proceed(id.context);
        }
    }

    /// Keeps events for the next answer. Rows and objects that were read before an event may be out
    /// of date.
    fn events(&mut self, context: ContextHandle, events: Vec<Bytes>) {
        if events.is_empty() {
            return;
        }
        let Some(session) = self.contexts.get_mut(&context) else {
            return;
        };
        session.events.extend(events);
        if session.events.len() > EVENTS_MAX {
            self.close();
            return;
        }
        let tables = session.end_lanes(|lane| match lane.kind {
            LaneKind::Table | LaneKind::Script => LaneEffect::Rewind,
            LaneKind::Stream | LaneKind::Source => LaneEffect::None,
        });
        if let Ok(ends) = tables
            && !ends.is_empty()
        {
            if let Some(session) = self.contexts.get_mut(&context) {
                session.stop_waiting_for_ended_lane();
            }
            self.send(&HalfMessage::Declined { ends });
            self.proceed(context);
        }
    }

    /// Serves a call by the session's script. Any call but the next one of the script ends it.
    fn take_step(&mut self, context: ContextHandle, queued: &QueuedCall) -> LocalAnswer {
        let now = self.now;
        let Some(session) = self.contexts.get_mut(&context) else {
            return LocalAnswer::None;
        };
        let Some(script) = session.lanes.get_mut(&SCRIPT_HANDLE) else {
            return LocalAnswer::None;
        };
        let taken = match &queued.batch {
            Some(batch) => script.take_step(now, batch),
            None => LocalAnswer::None,
        };
        if matches!(taken, LocalAnswer::None)
            && let Ok(ends) = session.end_lanes(|lane| match lane.kind {
                LaneKind::Script => LaneEffect::Rewind,
                LaneKind::Stream | LaneKind::Table | LaneKind::Source => LaneEffect::None,
            })
        {
            self.send(&HalfMessage::Declined { ends });
        }
        taken
    }

    /// Handles the calls of a session until one of them has to wait.
    fn proceed(&mut self, context: ContextHandle) {
        while !self.is_closed {
            let Some(session) = self.contexts.get_mut(&context) else {
                return;
            };
            if session.waiting.is_some() {
                return;
            }
            let Some(queued) = session.queue.pop_front() else {
                return;
            };
            self.first_call(context, queued);
        }
    }

    fn first_call(&mut self, context: ContextHandle, queued: QueuedCall) {
        let step = self.take_step(context, &queued);
        let Some(session) = self.contexts.get_mut(&context) else {
            return;
        };
        let taken = match (step, &queued.batch) {
            (LocalAnswer::None, Some(batch)) => session.take(batch),
            (step, _) => step,
        };
        let wait = match (taken, &queued.batch) {
            (LocalAnswer::Answer(mut response, handle), Some(batch)) => {
                let delivered = session.delivered(handle);
                if handle == SCRIPT_HANDLE {
                    session.release_objects(batch);
                }
                let room = batch.request.envelope.out_max();
                attach_events(&mut session.events, &mut response, room);
                self.answered += 1;
                self.answer(queued.call, CallOutcome::Response(response.write()));
                if let Some((lane, count)) = delivered {
                    self.send(&HalfMessage::Delivered { lane, count });
                }
                return;
            }
            (LocalAnswer::Wait(handle), _) => Some(NearWait::Lane(handle)),
            (LocalAnswer::Write(mut response, length), Some(batch)) => {
                let is_full = session.unconfirmed + length > WRITE_BEHIND_MAX;
                if !is_full || session.unconfirmed == 0 {
                    let room = batch.request.envelope.out_max();
                    attach_events(&mut session.events, &mut response, room);
                    self.answered += 1;
                    self.answer(queued.call, CallOutcome::Response(response.write()));
                    self.forward(context, queued, Some(length));
                    return;
                }
                Some(NearWait::Room)
            }
            (LocalAnswer::Answer(..) | LocalAnswer::Write(..), None) | (LocalAnswer::None, _) => {
                None
            }
        };
        match wait {
            Some(wait) => {
                session.waiting = Some(wait);
                session.queue.push_front(queued);
            }
            None => self.forward(context, queued, None),
        }
    }

    /// Sends a call to the far machine; it was answered here if it is a write of `answered` bytes.
    fn forward(&mut self, context: ContextHandle, queued: QueuedCall, answered: Option<usize>) {
        let Some(session) = self.contexts.get_mut(&context) else {
            return;
        };
        let carries_rops = opnum::carries_rops(queued.opnum);
        let effects = match (&queued.batch, carries_rops) {
            (Some(batch), _) => session.end_lanes(|lane| effect(batch, lane)),
            (None, true) => session.end_lanes(|lane| match lane.kind {
                LaneKind::Stream | LaneKind::Table | LaneKind::Script => LaneEffect::Rewind,
                LaneKind::Source => LaneEffect::Conflict,
            }),
            (None, false) => Ok(Vec::new()),
        };
        let Ok(ends) = effects else {
            self.close();
            return;
        };
        match queued.batch.as_ref().map(|batch| &batch.requests) {
            Some(Some(requests)) => {
                let buffer = &queued.batch.as_ref().expect("looked at above").buffer;
                for request in requests {
                    if request.id == id::RELEASE
                        && let Some(handle) = buffer.handle(request.index)
                    {
                        session.writers.remove(&handle);
                    }
                }
            }
            Some(None) | None if carries_rops => session.writers.clear(),
            Some(None) | None => {}
        }
        if queued.opnum == opnum::DISCONNECT {
            // What follows goes to the server as it is, whatever it is.
            session.writers.clear();
            session.lanes.clear();
        }
        let Some(batch) = queued.batch else {
            session.waiting = Some(NearWait::Server);
            self.forward_stub(queued.call, Some(context), queued.opnum, queued.stub, ends);
            return;
        };
        match answered {
            Some(length) => {
                session.unconfirmed += length;
                session.unconfirmed_calls += 1;
            }
            None => session.waiting = Some(NearWait::Server),
        }
        let call = self.number(ForwardedCall {
            call: answered.is_none().then_some(queued.call),
            context: Some(context),
            out_max: batch.request.envelope.out_max(),
            written: answered.unwrap_or(0),
            is_disconnect: false,
        });
        self.send(&HalfMessage::Batch {
            call,
            is_answered: answered.is_some(),
            ends,
            request: batch.request,
        });
    }

    fn forward_stub(
        &mut self,
        call: u64,
        context: Option<ContextHandle>,
        opnum: u16,
        stub: Bytes,
        ends: Vec<LaneEnd>,
    ) {
        let call = self.number(ForwardedCall {
            call: Some(call),
            context,
            out_max: 0,
            written: 0,
            is_disconnect: opnum == opnum::DISCONNECT,
        });
        self.send(&HalfMessage::Stub {
            call,
            opnum,
            stub,
            ends,
        });
    }

    fn number(&mut self, forwarded: ForwardedCall) -> u32 {
        let call = self.next_call;
        self.next_call = self.next_call.wrapping_add(1);
        self.forwarded.insert(call, forwarded);
        call
    }
}

/// The way in which a call of one ROP is served.
enum LocalAnswer {
    /// By the next answer of the lane with this handle.
    Answer(RpcResponse, u32),
    /// By the next answer of this lane, which is not here yet.
    Wait(u32),
    /// A write of so many bytes, by this answer.
    Write(RpcResponse, usize),
    /// By the server.
    None,
}

impl NearContext {
    /// Serves a call of one ROP.
    fn take(&mut self, batch: &ReadBatch) -> LocalAnswer {
        let Some(only) = batch.only() else {
            return LocalAnswer::None;
        };
        let Some(handle) = batch.buffer.handle(only.index) else {
            return LocalAnswer::None;
        };
        match (only.id, &only.detail) {
            (id::READ_STREAM | id::QUERY_ROWS | id::SOURCE_GET_BUFFER, _) => {
                let Some(lane) = self.lanes.get_mut(&handle) else {
                    return LocalAnswer::None;
                };
                lane.take(batch, only)
            }
            (_, RequestDetail::Data { length, .. }) => match self.writers.get(&handle) {
                Some(kind) => match written(batch, only, *kind, *length) {
                    Some(response) => LocalAnswer::Write(response, *length),
                    None => LocalAnswer::None,
                },
                None => LocalAnswer::None,
            },
            _ => LocalAnswer::None,
        }
    }

    /// The client releases objects with a call that was answered here.
    fn release_objects(&mut self, batch: &ReadBatch) {
        let requests = batch.requests.iter().flatten();
        for release in requests.filter(|one| one.id == id::RELEASE) {
            if let Some(handle) = batch.buffer.handle(release.index) {
                self.writers.remove(&handle);
                self.lanes.remove(&handle);
            }
        }
    }

    /// The lane and the number of answers that the client has taken of it, after it took one. A
    /// lane that is over ends with its last answer.
    fn delivered(&mut self, handle: u32) -> Option<(LaneId, u32)> {
        let lane = self.lanes.get(&handle)?;
        let delivered = (lane.id, lane.delivered);
        if lane.is_over && lane.answers.is_empty() {
            self.lanes.remove(&handle);
        }
        Some(delivered)
    }

    fn stop_waiting_for_ended_lane(&mut self) {
        if let Some(NearWait::Lane(handle)) = self.waiting
            && !self.lanes.contains_key(&handle)
        {
            self.waiting = None;
        }
    }

    /// Ends the lanes on which a call has an effect.
    fn end_lanes(
        &mut self,
        effect: impl Fn(&NearLane) -> LaneEffect,
    ) -> Result<Vec<LaneEnd>, LaneConflict> {
        let mut ends = Vec::new();
        for lane in self.lanes.values() {
            let is_released = match effect(lane) {
                LaneEffect::None => continue,
                LaneEffect::Rewind => false,
                LaneEffect::Release => true,
                LaneEffect::Conflict => return Err(LaneConflict),
            };
            ends.push(LaneEnd {
                lane: lane.id,
                delivered: lane.delivered,
                is_released,
            });
        }
        for end in &ends {
            self.lanes.remove(&end.lane.handle);
        }
        Ok(ends)
    }
}

/// A call needs a transfer to be where the server cannot go back to.
#[derive(Debug)]
struct LaneConflict;

/// The effect of a batch on a lane.
fn effect(batch: &ReadBatch, lane: &NearLane) -> LaneEffect {
    let handle = lane.id.handle;
    let Some(requests) = &batch.requests else {
        return match lane.kind {
            LaneKind::Stream | LaneKind::Table | LaneKind::Script => LaneEffect::Rewind,
            LaneKind::Source if batch.buffer.handles.contains(&handle) => LaneEffect::Conflict,
            LaneKind::Source => LaneEffect::None,
        };
    };
    let touches = |request: &&RequestRop| {
        request
            .inputs()
            .any(|index| batch.buffer.handle(index) == Some(handle))
    };
    for request in requests.iter().filter(touches) {
        match (lane.kind, request.id) {
            (LaneKind::Script, _) => return LaneEffect::Rewind,
            (_, id::RELEASE) => return LaneEffect::Release,
            (LaneKind::Stream, id::GET_STREAM_SIZE) => {}
            (LaneKind::Source, _) => return LaneEffect::Conflict,
            (LaneKind::Stream | LaneKind::Table, _) => return LaneEffect::Rewind,
        }
    }
    let may_change = requests.iter().any(|request| !id::is_harmless(request.id));
    match lane.kind {
        LaneKind::Script => LaneEffect::Rewind,
        LaneKind::Stream | LaneKind::Table if may_change => LaneEffect::Rewind,
        LaneKind::Stream | LaneKind::Table | LaneKind::Source => LaneEffect::None,
    }
}

impl NearLane {
    /// True if the client's call is the request of the next answer.
    fn is_next(&self, batch: &ReadBatch) -> bool {
        self.requests.front().is_some_and(|request| {
            request.envelope.is_like(&batch.request.envelope)
                && request.buffers.first().map(|one| &one.bytes)
                    == batch.request.buffers.first().map(|one| &one.bytes)
        })
    }

    /// Serves a call by the next step of a script.
    fn take_step(&mut self, now: Time, batch: &ReadBatch) -> LocalAnswer {
        if !self.is_next(batch) {
            return LocalAnswer::None;
        }
        match self.answers.pop_front() {
            None => LocalAnswer::Wait(self.id.handle),
            Some(answer) if now.since(answer.arrived) > SCRIPT_AGE_MAX => LocalAnswer::None,
            Some(answer) => {
                self.requests.pop_front();
                self.delivered += 1;
                LocalAnswer::Answer(answer.response, self.id.handle)
            }
        }
    }

    fn take(&mut self, batch: &ReadBatch, only: &RequestRop) -> LocalAnswer {
        let is_same = self.is_next(batch);
        let handle = self.id.handle;
        match (self.answers.front_mut(), self.kind) {
            (_, LaneKind::Stream | LaneKind::Table) if !is_same => LocalAnswer::None,
            (None, _) => LocalAnswer::Wait(handle),
            (Some(answer), LaneKind::Source) if !is_same || answer.pieces.is_some() => {
                self.take_piece(batch, only)
            }
            (Some(_), _) => {
                let answer = self.answers.pop_front().expect("looked at above");
                self.delivered += 1;
                LocalAnswer::Answer(answer.response, handle)
            }
        }
    }

    /// Serves a request for another size of a transfer than the answers were asked for with.
    fn take_piece(&mut self, batch: &ReadBatch, only: &RequestRop) -> LocalAnswer {
        let RequestDetail::GetBuffer { size } = only.detail else {
            return LocalAnswer::None;
        };
        let Some(answer) = self.answers.front_mut() else {
            return LocalAnswer::Wait(self.id.handle);
        };
        let pieces = answer
            .pieces
            .get_or_insert_with(|| transfer_pieces(&answer.response));
        // A server answers with less than asked where the answer has no room.
        let around = SIZE_FIELD + 15 + EXTENDED_HEADER + 4 * batch.buffer.handles.len();
        let room = batch.request.envelope.out_max().saturating_sub(around);
        let Some(piece) = pieces.front_mut() else {
            let answer = self.answers.pop_front().expect("looked at above");
            self.delivered += 1;
            return LocalAnswer::Answer(answer.response, self.id.handle);
        };
        let length = piece
            .data
            .len()
            .min(usize::from(size))
            .min(room)
            .min(BUFFER_MAX.saturating_sub(around));
        let mut rops = BytesMut::with_capacity(length + 15);
        rops.put_slice(&[id::SOURCE_GET_BUFFER, only.index]);
        rops.put_u32_le(piece.result);
        let mut status = piece.status;
        if length < piece.data.len() {
            status[..2].copy_from_slice(&STATUS_PARTIAL.to_le_bytes());
        }
        rops.put_slice(&status);
        rops.put_u16_le(length as u16);
        rops.put_slice(&piece.data.split_to(length));
        if piece.data.is_empty() {
            rops.put_slice(&piece.rest);
            pieces.pop_front();
        }
        if pieces.is_empty() {
            self.answers.pop_front();
            self.delivered += 1;
        }
        LocalAnswer::Answer(made_here(batch, rops.freeze()), self.id.handle)
    }
}

/// The responses of a transfer, one behind the other. None if they have another form.
fn transfer_pieces(response: &RpcResponse) -> VecDeque<TransferPiece> {
    let mut pieces = VecDeque::new();
    for one in &response.buffers {
        let Ok(buffer) = RopBuffer::read(&one.bytes) else {
            return VecDeque::new();
        };
        let rops = &buffer.rops;
        let head: Option<&[u8; 15]> = rops.first_chunk();
        let Some(head) = head.filter(|head| head[0] == id::SOURCE_GET_BUFFER) else {
            return VecDeque::new();
        };
        let length = usize::from(u16::from_le_bytes([head[13], head[14]]));
        if rops.len() < 15 + length {
            return VecDeque::new();
        }
        pieces.push_back(TransferPiece {
            result: u32::from_le_bytes([head[2], head[3], head[4], head[5]]),
            status: [
                head[6], head[7], head[8], head[9], head[10], head[11], head[12],
            ],
            data: rops.slice(15..15 + length),
            rest: rops.slice(15 + length..),
        });
    }
    pieces
}

/// The answer to a write on an object of this kind.
fn written(
    batch: &ReadBatch,
    only: &RequestRop,
    kind: WriterKind,
    length: usize,
) -> Option<RpcResponse> {
    let mut rops = BytesMut::with_capacity(16);
    rops.put_slice(&[only.id, only.index]);
    rops.put_u32_le(0);
    match (only.id, kind) {
        (id::WRITE_STREAM, WriterKind::Stream) => {}
        (id::DESTINATION_PUT_BUFFER, WriterKind::Destination { status }) => {
            rops.put_u16_le(status);
            rops.put_slice(&[0; 5]);
        }
        _ => return None,
    }
    rops.put_u16_le(length as u16);
    Some(made_here(batch, rops.freeze()))
}

/// An answer with these responses and the table of the request.
fn made_here(batch: &ReadBatch, rops: Bytes) -> RpcResponse {
    let buffer = RopBuffer {
        rops,
        handles: batch.buffer.handles.clone(),
    };
    let plain = PlainBuffer {
        flags: batch.request.envelope.answer_flags(),
        bytes: buffer.write(),
    };
    RpcResponse::answering(&batch.request, vec![plain])
}

/// Appends events to an answer as far as there is room.
pub(super) fn attach_events(
    events: &mut VecDeque<Bytes>,
    response: &mut RpcResponse,
    out_max: usize,
) {
    if response.result != 0 {
        return;
    }
    while let Some(event) = events.front() {
        let whole = length_of(&response.buffers) + EXTENDED_HEADER * response.buffers.len();
        let Some(last) = response.buffers.last_mut() else {
            return;
        };
        if whole + event.len() > out_max || last.bytes.len() + event.len() > BUFFER_MAX {
            return;
        }
        let Ok(mut buffer) = RopBuffer::read(&last.bytes) else {
            return;
        };
        let mut rops = BytesMut::from(&buffer.rops[..]);
        rops.extend_from_slice(event);
        buffer.rops = rops.freeze();
        last.bytes = buffer.write();
        events.pop_front();
    }
}

fn length_of(buffers: &[PlainBuffer]) -> usize {
    buffers.iter().map(|one| one.bytes.len()).sum()
}
