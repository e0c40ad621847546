//! The machine beside the server.
//!
//! ```text
//!  calls of the client ──► ends of lanes ──► undo calls ──► the call ──► its answer, promises
//!  no call waits       ──► the next lane with room ───────► its request again ──► Ahead
//! ```
//! One call is at the server at a time, because a server handles the calls of a session in order,
//! and so does an association without multiplexing.
//!
//! Another connection may use the same session. Before its first call, this machine ends its lanes,
//! and has the server's answers to all writes ([`super::sessions`]).
//!
//! A lane begins where a client reads by itself: at once for the data of an attachment or a body,
//! for rows and for a transfer, and with the second request of the same bytes for other streams.
//! If the client's earlier calls show that it reads, a lane begins before the first read.

mod anticipation;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use accelerate::pace::ReadAheadPace;
use bytes::{BufMut, Bytes, BytesMut};
use vocab::{FlowSegment, Time};

use super::super::buffer::{NO_HANDLE, RopBuffer};
use super::super::id;
use super::super::request::{RequestDetail, RequestRop, read_requests};
use super::super::response::{ResponseDetail, ResponseList, ResponseTail, read_responses};
use super::history::{AnsweredCall, CallPosition};
use super::message::{HalfMessage, LaneEnd, LaneId, MessageReader, WriterKind};
use super::near::{EVENTS_MAX, attach_events};
use super::objects::{ObjectRole, ServerObjects, SessionObjects, executed, is_clean, is_too_small};
use super::sessions::{SessionPlace, SessionUse};
use super::{
    CALL_FAILED, CONTEXTS_MAX, CallOutcome, HANDLES_MAX, LANE_FIRST, LANE_MAX, LANES_MAX,
    SCRIPT_HANDLE, WriteFailure,
};
use crate::emsmdb::rpc::{CHAIN, NO_COMPRESSION, RpcRequest, RpcResponse};
use crate::emsmdb::{ContextHandle, ExtendedFlags, PlainBuffer, opnum, write_chain};
use anticipation::{FarScript, ScriptStep};

/// PidTagAttachDataBinary.
const ATTACH_DATA: u32 = 0x3701_0102;
/// PidTagBody in both encodings, PidTagRtfCompressed, and PidTagHtml.
const BODIES: [u32; 4] = [0x1000_001e, 0x1000_001f, 0x1009_0102, 0x1013_0102];
/// The size that is expected of the first answer of a lane.
const ANSWER_GUESS: u64 = 32 << 10;
/// STG_E_MEDIUMFULL, for a write of which the server took a part.
const MEDIUM_FULL: u32 = 0x8003_0070;
/// The most bytes of responses that fail here. A client's batch has far fewer.
const FAILURES_MAX: usize = 16 << 10;
/// TransferStatus of a transfer with more to come.
const STATUS_PARTIAL: u16 = 1;

/// An action that the machine requests from its half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FarOutput {
    /// Call the server on the interface EMSMDB. [`TacticsFar::answered`] follows before the next
    /// call.
    Call {
        /// The number of the method.
        opnum: u16,
        /// The stub of the request.
        stub: Bytes,
    },
    /// Send a segment to the other half.
    ToNear(FlowSegment),
    /// The connection cannot continue: end it at both ends.
    Close,
}

/// See the module documentation.
#[derive(Debug)]
pub struct TacticsFar {
    may_store: bool,
    place: SessionPlace,
    reader: MessageReader,
    work: VecDeque<FarWork>,
    undos: VecDeque<(ContextHandle, RpcRequest)>,
    current: Option<CurrentCall>,
    contexts: BTreeMap<ContextHandle, FarContext>,
    pace: ReadAheadPace,
    next_epoch: u32,
    /// The session and object of the lane that was served last.
    last_lane: Option<(ContextHandle, u32)>,
    is_closed: bool,
    outputs: VecDeque<FarOutput>,
}

/// A call of the client, or the end of lanes alone.
#[derive(Debug)]
struct FarWork {
    ends: Vec<LaneEnd>,
    call: Option<WorkCall>,
}

impl FarWork {
    /// True if it ends the session.
    fn is_disconnect(&self) -> bool {
        let disconnect = opnum::DISCONNECT;
        matches!(&self.call, Some(WorkCall::Stub { opnum, .. }) if *opnum == disconnect)
    }

    /// The session whose other work it follows.
    fn context(&self) -> Option<ContextHandle> {
        match &self.call {
            Some(WorkCall::Stub { opnum, stub, .. }) => opnum::has_context(*opnum)
                .then(|| ContextHandle::of_stub(stub))
                .flatten(),
            Some(WorkCall::Batch { request, .. }) => Some(request.context),
            Some(WorkCall::Leave { context, .. } | WorkCall::Rest { context }) => Some(*context),
            None => self.ends.first().map(|end| end.lane.context),
        }
    }
}

#[derive(Debug)]
enum WorkCall {
    Stub {
        call: u32,
        opnum: u16,
        stub: Bytes,
    },
    Batch {
        call: u32,
        is_answered: bool,
        request: RpcRequest,
    },
    /// The near machine has ended its tactics on a session.
    Leave {
        context: ContextHandle,
        /// Events that the client has not got.
        events: Vec<Bytes>,
    },
    /// The near machine answers no more writes on the objects that it may write to so far.
    Rest {
        context: ContextHandle,
    },
}

/// The call that is at the server.
#[derive(Debug)]
enum CurrentCall {
    Stub {
        call: u32,
        /// It is outside all sessions, and may last for minutes.
        is_outside: bool,
    },
    Batch {
        call: u32,
        is_answered: bool,
        request: RpcRequest,
    },
    /// The releases of a batch whose other ROPs failed here.
    Releases {
        call: u32,
        request: RpcRequest,
        failed: RpcResponse,
    },
    Undo {
        request: RpcRequest,
    },
    Ahead {
        context: ContextHandle,
        handle: u32,
        asked_at: Time,
        expected: u64,
    },
}

#[derive(Debug, Default)]
struct FarContext {
    objects: SessionObjects,
    lanes: BTreeMap<u32, FarLane>,
    /// The client's last read of one ROP, for streams that are read on at the second one.
    last_read: Option<Bytes>,
    /// The client's place among its calls.
    position: CallPosition,
    /// Streams on which a lane ended early.
    rewound: BTreeSet<u32>,
    /// Objects that fail, with the error of the write that failed.
    failed: BTreeMap<u32, WriteFailure>,
    /// Objects whose writes the near machine may answer.
    writers: BTreeSet<u32>,
    /// Events that came with answers to calls of this machine, those of each answer for themselves.
    events: Vec<Bytes>,
    /// Other connections use the session: no tactics begin.
    is_shared: bool,
    /// The near machine was asked to end its tactics, and has not answered.
    is_leaving: bool,
    /// The last report of [`Self::is_exposed`] to the table of sessions.
    was_exposed: bool,
}

#[derive(Debug)]
struct FarLane {
    id: LaneId,
    kind: FarLaneKind,
    template: RpcRequest,
    requests: Vec<RequestRop>,
    asked: RopBuffer,
    /// It began before the client's first read.
    is_guess: bool,
    /// The answers that the client has not taken yet.
    amounts: VecDeque<LaneAmount>,
    script: Option<FarScript>,
    delivered: u32,
    undelivered: u64,
    limit: u64,
    /// The size of the last answer.
    expected: u64,
    is_over: bool,
    /// It cannot be undone.
    is_lost: bool,
    /// Its next answer is its last one.
    is_cancelled: bool,
}

/// An answer that the client has not taken yet.
#[derive(Debug)]
struct LaneAmount {
    /// The distance that it moved the cursor.
    moved: u64,
    bytes: u64,
    /// The call that it answers, in a script.
    step: Option<ScriptStep>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarLaneKind {
    /// The cursor behind the last answer.
    Stream {
        position: u64,
    },
    Table,
    Source,
    /// Calls of several forms.
    Script,
}

impl TacticsFar {
    /// A machine for one connection. User data goes into the dictionary if `may_store`.
    #[must_use]
    pub fn new(may_store: bool, place: SessionPlace) -> Self {
        Self {
            may_store,
            place,
            reader: MessageReader::default(),
            work: VecDeque::new(),
            undos: VecDeque::new(),
            current: None,
            contexts: BTreeMap::new(),
            pace: ReadAheadPace::default(),
            next_epoch: 0,
            last_lane: None,
            is_closed: false,
            outputs: VecDeque::new(),
        }
    }

    /// True if the segment from the other half is for this machine.
    #[must_use]
    pub fn takes(&self, segment: &FlowSegment) -> bool {
        self.reader.takes(segment)
    }

    /// Takes a segment from the near machine.
    pub fn segment(&mut self, now: Time, segment: FlowSegment) {
        if self.is_closed {
            return;
        }
        match self.reader.segment(segment) {
            Ok(Some(message)) => self.message(message),
            Ok(None) => {}
            Err(_) => self.close(),
        }
        self.proceed(now);
        self.report();
    }

    /// The table of sessions has woken this connection.
    pub fn woken(&mut self, now: Time) {
        if self.is_closed {
            return;
        }
        let place = &self.place;
        let leaving: Vec<ContextHandle> = self
            .contexts
            .iter()
            .filter(|(context, session)| !session.is_leaving && place.is_leaving(**context))
            .map(|(context, _)| *context)
            .collect();
        for context in leaving {
            self.begin_to_leave(context);
        }
        self.proceed(now);
        self.report();
    }

    /// Another connection uses a session: the near machine ends its tactics, and then this one.
    fn begin_to_leave(&mut self, context: ContextHandle) {
        let Some(session) = self.contexts.get_mut(&context) else {
            return;
        };
        session.is_shared = true;
        session.is_leaving = true;
        session.writers.clear();
        let current = match self.current {
            Some(CurrentCall::Ahead {
                context: of,
                handle,
                ..
            }) if of == context => Some(handle),
            _ => None,
        };
        let mut cancelled = Vec::new();
        for lane in session.lanes.values_mut() {
            lane.is_cancelled = true;
            // The near machine keeps the answers of a transfer, because the server cannot repeat
            // them, and must not wait for more.
            if lane.kind == FarLaneKind::Source && current != Some(lane.id.handle) && !lane.is_over
            {
                lane.is_over = true;
                cancelled.push(lane.id);
            }
        }
        for lane in cancelled {
            self.send(&HalfMessage::Cancel { lane });
        }
        self.send(&HalfMessage::Leave { context });
    }

    /// Tells the table of sessions what only this connection can undo or deliver.
    fn report(&mut self) {
        let (work, undos, current) = (&self.work, &self.undos, &self.current);
        for (context, session) in &mut self.contexts {
            if session.is_shared {
                let sources = session.undelivered_sources();
                self.place.set_sources(*context, &sources);
            }
            let is_of = |request: &RpcRequest| request.context == *context;
            let is_written = |work: &FarWork| match &work.call {
                Some(WorkCall::Batch {
                    is_answered: true,
                    request,
                    ..
                }) => is_of(request),
                _ => false,
            };
            let is_under_way = match current {
                Some(
                    CurrentCall::Batch {
                        is_answered: true,
                        request,
                        ..
                    }
                    | CurrentCall::Undo { request },
                ) => is_of(request),
                _ => false,
            };
            let is_exposed = session.is_exposed()
                || is_under_way
                || undos.iter().any(|(_, request)| is_of(request))
                || work.iter().any(is_written);
            if is_exposed != session.was_exposed {
                session.was_exposed = is_exposed;
                self.place.set_exposed(*context, is_exposed);
            }
        }
    }

    /// The client sends no more: the machine undoes what the client has not taken.
    pub fn finish(&mut self, now: Time) {
        let mut ends = Vec::new();
        for session in self.contexts.values_mut() {
            session.writers.clear();
            for lane in session.lanes.values_mut() {
                lane.is_cancelled = true;
                if lane.kind != FarLaneKind::Source && !lane.is_lost {
                    ends.push(LaneEnd {
                        lane: lane.id,
                        delivered: lane.delivered,
                        is_released: false,
                    });
                }
            }
        }
        for end in ends {
            let ends = vec![end];
            self.work.push_back(FarWork { ends, call: None });
        }
        self.proceed(now);
        self.report();
    }

    /// True if the call at the server is one that the client waits for.
    #[must_use]
    pub fn serves_client(&self) -> bool {
        matches!(
            self.current,
            Some(
                CurrentCall::Stub { .. }
                    | CurrentCall::Batch {
                        is_answered: false,
                        ..
                    }
            )
        )
    }

    /// True if something is ahead of the client that only this machine can undo.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        !self.undos.is_empty() || self.contexts.values().any(FarContext::is_exposed)
    }

    /// True if no call of the client waits and none is at the server.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_closed || (self.current.is_none() && self.work.is_empty() && self.undos.is_empty())
    }

    /// Takes the server's answer to the call that is there.
    pub fn answered(&mut self, now: Time, outcome: CallOutcome) {
        if self.is_closed {
            return;
        }
        match self.current.take() {
            Some(CurrentCall::Stub { call, .. }) => {
                self.send(&HalfMessage::StubAnswer { call, outcome });
            }
            Some(CurrentCall::Batch {
                call,
                is_answered,
                request,
            }) => self.batch_answered(call, is_answered, &request, outcome),
            Some(CurrentCall::Releases {
                call,
                request,
                failed,
            }) => {
                if let Some((response, answers)) = read_answer(&request, outcome) {
                    // A release has no response: only events can be there.
                    let no_columns = |_| None;
                    let read = |answer| read_responses(&[], answer, no_columns);
                    let mut lists: Vec<_> = answers.iter().map(read).collect();
                    let (_, own) = without_events(response, &answers, &mut lists);
                    self.keep_events(request.context, own);
                }
                self.answer_batch(call, &request, failed);
            }
            Some(CurrentCall::Undo { request }) => self.undone(&request, outcome),
            Some(CurrentCall::Ahead {
                context,
                handle,
                asked_at,
                expected,
            }) => {
                let sent = self.ahead_answered(context, handle, outcome);
                self.pace.answered(asked_at, expected, sent);
            }
            None => self.close(),
        }
        self.proceed(now);
        self.report();
    }

    /// Takes the bytes of output that still wait in this node, and uses the room that others have left.
    pub fn set_backlog(&mut self, now: Time, bytes: u64) {
        self.pace.set_backlog(now, bytes);
        if !self.is_closed {
            self.proceed(now);
        }
    }

    /// Returns the next action.
    pub fn poll_output(&mut self) -> Option<FarOutput> {
        self.outputs.pop_front()
    }

    /// Bytes that the machine holds.
    #[must_use]
    pub fn buffered(&self) -> usize {
        let waiting = self.work.iter().map(|work| match &work.call {
            Some(WorkCall::Stub { stub, .. }) => stub.len(),
            Some(WorkCall::Batch { request, .. }) => length_of(&request.buffers),
            Some(WorkCall::Leave { events, .. }) => events.iter().map(Bytes::len).sum(),
            Some(WorkCall::Rest { .. }) | None => 0,
        });
        waiting.sum::<usize>() + self.reader.buffered()
    }

    fn close(&mut self) {
        if !self.is_closed {
            self.is_closed = true;
            self.outputs.push_back(FarOutput::Close);
        }
    }

    fn send(&mut self, message: &HalfMessage) {
        let segments = message.emit(self.may_store);
        self.outputs
            .extend(segments.into_iter().map(FarOutput::ToNear));
    }

    fn message(&mut self, message: HalfMessage) {
        match message {
            HalfMessage::Stub {
                call,
                opnum,
                stub,
                ends,
            } => self.work.push_back(FarWork {
                ends,
                call: Some(WorkCall::Stub { call, opnum, stub }),
            }),
            HalfMessage::Batch {
                call,
                is_answered,
                ends,
                request,
            } => self.work.push_back(FarWork {
                ends,
                call: Some(WorkCall::Batch {
                    call,
                    is_answered,
                    request,
                }),
            }),
            HalfMessage::Declined { ends } => self.work.push_back(FarWork { ends, call: None }),
            HalfMessage::Left {
                context,
                ends,
                events,
            } => self.work.push_back(FarWork {
                ends,
                call: Some(WorkCall::Leave { context, events }),
            }),
            HalfMessage::Rested { context, ends } => self.work.push_back(FarWork {
                ends,
                call: Some(WorkCall::Rest { context }),
            }),
            HalfMessage::Delivered { lane, count } => self.delivered(lane, count),
            // Where this node's output waits decides, and not what has arrived.
            HalfMessage::StubAnswer { .. }
            | HalfMessage::BatchAnswer { .. }
            | HalfMessage::Promise { .. }
            | HalfMessage::Follow { .. }
            | HalfMessage::Ahead { .. }
            | HalfMessage::Cancel { .. }
            | HalfMessage::Revoke { .. }
            | HalfMessage::MayWrite { .. }
            | HalfMessage::MustForward { .. }
            | HalfMessage::Leave { .. }
            | HalfMessage::Confirmed { .. } => self.close(),
        }
    }

    /// Lets sessions leave while a call outside all sessions is at the server, for which another
    /// connection would have to wait. Their lanes have ended before that call.
    fn begin_leaves(&mut self) {
        if !matches!(
            self.current,
            Some(CurrentCall::Stub {
                is_outside: true,
                ..
            })
        ) {
            return;
        }
        let mut blocked: BTreeSet<ContextHandle> =
            self.undos.iter().map(|(context, _)| *context).collect();
        let mut place = 0;
        while let Some(work) = self.work.get(place) {
            let context = work.context();
            let is_free = context.is_some_and(|context| !blocked.contains(&context))
                && work.ends.is_empty()
                && matches!(work.call, Some(WorkCall::Leave { .. }));
            if is_free && let Some(work) = self.work.remove(place) {
                self.begin(work);
                continue;
            }
            blocked.extend(context);
            place += 1;
        }
    }

    /// Makes the next call at the server, if none is there.
    fn proceed(&mut self, now: Time) {
        self.begin_leaves();
        while self.current.is_none() && !self.is_closed {
            if let Some((_, request)) = self.undos.pop_front() {
                self.call_batch(&request);
                self.current = Some(CurrentCall::Undo { request });
                continue;
            }
            if let Some(place) = self.next_work() {
                let Some(work) = self.work.get_mut(place) else {
                    return;
                };
                let ends = std::mem::take(&mut work.ends);
                if ends.is_empty() {
                    let work = self.work.remove(place).expect("looked at above");
                    self.begin(work);
                } else {
                    for end in ends {
                        self.end_lane(end);
                    }
                }
                continue;
            }
            if self.is_closed || !self.run_ahead(now) {
                return;
            }
        }
    }

    /// The place of the first work that need not wait for another connection. Work of one session
    /// keeps its order.
    fn next_work(&mut self) -> Option<usize> {
        let mut waiting: BTreeSet<ContextHandle> = BTreeSet::new();
        for (place, work) in self.work.iter().enumerate() {
            let Some(context) = work.context().filter(|context| !context.is_null()) else {
                return Some(place);
            };
            if waiting.contains(&context) {
                continue;
            }
            let is_call = !matches!(
                work.call,
                Some(WorkCall::Leave { .. } | WorkCall::Rest { .. }) | None
            );
            let session_use = match is_call {
                true => self.place.begin(context),
                false => SessionUse::Alone,
            };
            match session_use {
                SessionUse::Alone => return Some(place),
                SessionUse::Together => {
                    if self.contexts.contains_key(&context) || self.contexts.len() < CONTEXTS_MAX {
                        let session = self.contexts.entry(context).or_default();
                        session.is_shared = true;
                        session.failed = self.place.failed(context);
                        if let Some(objects) = self.place.objects(context) {
                            session.objects = objects;
                        }
                    }
                    return Some(place);
                }
                SessionUse::Wait => {
                    waiting.insert(context);
                }
                // A client ends such a session, and begins another one.
                SessionUse::Lost if work.is_disconnect() => return Some(place),
                SessionUse::Lost => {
                    self.close();
                    return None;
                }
            }
        }
        None
    }

    fn call_batch(&mut self, request: &RpcRequest) {
        let opnum = request.envelope.opnum();
        let stub = request.write();
        self.outputs.push_back(FarOutput::Call { opnum, stub });
    }

    fn begin(&mut self, work: FarWork) {
        match work.call {
            None => {}
            Some(WorkCall::Leave { context, events }) => {
                let mut undelivered = events;
                let mut failed = BTreeMap::new();
                let mut objects = SessionObjects::default();
                if let Some(session) = self.contexts.get_mut(&context) {
                    session.is_leaving = false;
                    undelivered.append(&mut session.events);
                    failed = session.failed.clone();
                    objects = session.objects.clone();
                }
                self.place.left(context, failed, undelivered, objects);
            }
            Some(WorkCall::Rest { context }) => {
                if let Some(session) = self.contexts.get_mut(&context) {
                    session.writers.clear();
                }
            }
            Some(WorkCall::Stub { call, opnum, stub }) => {
                let is_outside = opnum == opnum::HTTP_PLAIN;
                let context = ContextHandle::of_stub(&stub).filter(|_| !is_outside);
                if context.is_some_and(|context| !self.place.sources_elsewhere(context).is_empty())
                    && opnum::carries_rops(opnum)
                {
                    self.close();
                    return;
                }
                if let Some(session) = context.and_then(|context| self.contexts.get_mut(&context)) {
                    match opnum {
                        opnum::DISCONNECT => {
                            let context = context.expect("looked at above");
                            self.contexts.remove(&context);
                            self.place.disconnected(context);
                        }
                        // It was not read, so it may do anything with any object.
                        carrier if opnum::carries_rops(carrier) => {
                            if !session.failed.is_empty() {
                                self.close();
                                return;
                            }
                            session.objects.with(ServerObjects::forget_all);
                            session.writers.clear();
                        }
                        _ => {}
                    }
                }
                self.outputs.push_back(FarOutput::Call { opnum, stub });
                self.current = Some(CurrentCall::Stub { call, is_outside });
            }
            Some(WorkCall::Batch {
                call,
                is_answered,
                request,
            }) => self.begin_batch(call, is_answered, request),
        }
    }

    fn begin_batch(&mut self, call: u32, is_answered: bool, request: RpcRequest) {
        if !self.contexts.contains_key(&request.context) && self.contexts.len() < CONTEXTS_MAX {
            self.contexts.insert(request.context, FarContext::default());
        }
        let elsewhere = self.place.sources_elsewhere(request.context);
        if !elsewhere.is_empty() && names_any(&request, &elsewhere) {
            // Another connection has answers of this transfer that the server cannot repeat.
            self.close();
            return;
        }
        let session = self.contexts.get_mut(&request.context);
        if let Some(session) = session.filter(|session| !session.failed.is_empty()) {
            match session.failure(&request) {
                Ok(None) => {}
                Ok(Some(_)) if is_answered => {
                    let events = Vec::new();
                    self.send(&HalfMessage::Confirmed { call, events });
                    return;
                }
                Ok(Some(WriteFailure::Fault(status))) => {
                    let outcome = CallOutcome::Fault(status);
                    self.send(&HalfMessage::StubAnswer { call, outcome });
                    return;
                }
                Ok(Some(WriteFailure::Result(result))) => {
                    self.fail_batch(call, &request, result);
                    return;
                }
                Err(UnreadableBatch) => {
                    self.close();
                    return;
                }
            }
        }
        self.call_batch(&request);
        self.current = Some(CurrentCall::Batch {
            call,
            is_answered,
            request,
        });
    }

    /// Fails all ROPs of a batch but its releases, which the server gets.
    fn fail_batch(&mut self, call: u32, request: &RpcRequest, result: u32) {
        let Some((buffer, requests)) = read_batch(request) else {
            self.close();
            return;
        };
        let failed = failed_response(request, &buffer, &requests, result);
        let mut rops = BytesMut::new();
        for release in requests.iter().filter(|one| one.id == id::RELEASE) {
            rops.put_slice(&buffer.rops[release.start..release.end]);
            if let (Some(handle), Some(session)) = (
                buffer.handle(release.index),
                self.contexts.get_mut(&request.context),
            ) {
                session.released(handle);
                session.objects.with(|objects| objects.forget(handle));
                self.place.released(request.context, handle);
            }
        }
        if rops.is_empty() {
            self.answer_batch(call, request, failed);
            return;
        }
        let releases = with_buffer(
            request,
            &RopBuffer {
                rops: rops.freeze(),
                handles: buffer.handles.clone(),
            },
        );
        self.call_batch(&releases);
        self.current = Some(CurrentCall::Releases {
            call,
            request: releases,
            failed,
        });
    }

    /// Keeps events of the server for the client's next answer.
    fn keep_events(&mut self, context: ContextHandle, events: Bytes) {
        if let Some(session) = self
            .contexts
            .get_mut(&context)
            .filter(|_| !events.is_empty())
        {
            session.events.push(events);
        }
    }

    /// Answers a batch of the client, with the events that wait.
    fn answer_batch(&mut self, call: u32, request: &RpcRequest, mut response: RpcResponse) {
        let context = request.context;
        let mut events = Vec::new();
        if let Some(session) = self.contexts.get_mut(&context) {
            let attached = self.place.with_events(context, |waiting| {
                // The client's next call may be on another connection. An event that has no room in
                // this answer goes with that call's answer.
                waiting.extend(session.events.drain(..));
                attach_events(waiting, &mut response, request.envelope.out_max());
                waiting.len() <= EVENTS_MAX
            });
            if attached == Some(false) {
                self.close();
                return;
            }
            events = session.events_for_near();
        }
        self.send(&HalfMessage::BatchAnswer {
            call,
            events,
            response,
        });
    }

    /// The client has taken so many answers of a lane in all.
    fn delivered(&mut self, id: LaneId, count: u32) {
        let context = id.context;
        let Some(session) = self.contexts.get_mut(&context) else {
            return;
        };
        if let Some(lane) = session.lanes.get(&id.handle).filter(|lane| lane.id == id)
            && lane.script.is_none()
            && lane.delivered == 0
            && count > 0
        {
            let (template, asked) = (lane.template.clone(), lane.asked.clone());
            let requests = lane.requests.clone();
            let call = AnsweredCall {
                request: &template,
                asked: &asked,
                requests: &requests,
                handles: &asked.handles,
                succeeded: true,
            };
            self.client_called(context, &call);
        }
        let Some(session) = self.contexts.get_mut(&context) else {
            return;
        };
        for step in session.delivered(id, count) {
            self.step_taken(context, &step);
        }
    }

    /// Ends a lane, and moves the server's cursor back to where the client is.
    fn end_lane(&mut self, end: LaneEnd) {
        self.delivered(end.lane, end.delivered);
        let Some(session) = self.contexts.get_mut(&end.lane.context) else {
            return;
        };
        let is_known = session
            .lanes
            .get(&end.lane.handle)
            .is_some_and(|lane| lane.id == end.lane);
        if !is_known {
            return;
        }
        let lane = session
            .lanes
            .remove(&end.lane.handle)
            .expect("looked at above");
        if lane.kind == FarLaneKind::Script {
            let steps = lane.amounts.into_iter().filter_map(|amount| amount.step);
            let steps = steps.collect();
            return self.steps_declined(end.lane.context, steps);
        }
        if end.is_released {
            return;
        }
        if !lane.is_guess || lane.delivered > 0 {
            session.rewound.insert(end.lane.handle);
        }
        let moved: u64 = lane.amounts.iter().map(|amount| amount.moved).sum();
        if moved == 0 && !lane.is_lost {
            return;
        }
        let Some(undo) = lane.undo(moved) else {
            self.close();
            return;
        };
        if let FarLaneKind::Stream { position } = lane.kind {
            let target = position.saturating_sub(moved);
            session
                .objects
                .with(|objects| objects.set_position(end.lane.handle, Some(target)));
        }
        self.undos.push_back((end.lane.context, undo));
    }

    fn undone(&mut self, request: &RpcRequest, outcome: CallOutcome) {
        let read = read_answer(request, outcome);
        let Some((response, answers)) = read.filter(|(response, _)| response.result == 0) else {
            self.close();
            return;
        };
        let Some((_, requests)) = read_batch(request) else {
            self.close();
            return;
        };
        // A release has no response.
        let answered = requests.iter().filter(|one| one.id != id::RELEASE).count();
        let succeeded = answers.first().is_some_and(|answer| {
            let responses = read_responses(&requests, answer, |_| None).responses;
            responses.len() == answered && responses.iter().all(|one| one.result == 0)
        });
        if !succeeded {
            self.close();
            return;
        }
        let mut lists: Vec<ResponseList> = answers
            .iter()
            .map(|answer| read_responses(&requests, answer, |_| None))
            .collect();
        let (_, events) = without_events(response, &answers, &mut lists);
        self.keep_events(request.context, events);
    }

    fn batch_answered(
        &mut self,
        call: u32,
        is_answered: bool,
        request: &RpcRequest,
        outcome: CallOutcome,
    ) {
        let Some((asked, requests)) = read_batch(request) else {
            // A ROP that is not known may do anything with the objects that it names.
            self.unread_answered(call, request, outcome);
            return;
        };
        let read = match &outcome {
            CallOutcome::Response(_) => read_answer(request, outcome.clone()),
            CallOutcome::Fault(_) => None,
        };
        let Some((response, answers)) = read else {
            if is_answered {
                let failure = match outcome {
                    CallOutcome::Response(_) => WriteFailure::Result(CALL_FAILED),
                    CallOutcome::Fault(status) => WriteFailure::Fault(status),
                };
                self.write_failed(call, request, &asked, &requests, failure, Vec::new());
                return;
            }
            if let Some(session) = self.contexts.get_mut(&request.context) {
                session.objects.with(ServerObjects::forget_all);
                session.position.forget_call();
            }
            self.send(&HalfMessage::StubAnswer { call, outcome });
            return;
        };
        let mut promises = Vec::new();
        let mut response = response;
        let mut lists = Vec::new();
        if let Some(session) = self.contexts.get_mut(&request.context)
            && response.result == 0
        {
            lists = session
                .objects
                .with(|objects| objects.observe(&requests, &asked, &answers));
            let executed = executed(&requests, &lists);
            for release in executed.iter().filter(|one| one.id == id::RELEASE) {
                if let Some(handle) = asked.handle(release.index) {
                    session.released(handle);
                    self.place.released(request.context, handle);
                }
            }
            let (without, own) = without_events(response, &answers, &mut lists);
            response = without;
            if !own.is_empty() {
                session.events.push(own);
            }
            if is_clean(&lists) && !is_too_small(&lists) && !is_answered && !session.is_shared {
                promises = session.promises(request, &asked, &requests, &answers, &lists);
            }
        }
        if is_answered {
            let session = self.contexts.get_mut(&request.context);
            let events = session.map_or(Vec::new(), FarContext::events_for_near);
            match write_result(&response, &requests, &lists) {
                Ok(()) => self.send(&HalfMessage::Confirmed { call, events }),
                Err(result) => {
                    let failure = WriteFailure::Result(result);
                    self.write_failed(call, request, &asked, &requests, failure, events);
                }
            }
            if let Some(session) = self.contexts.get_mut(&request.context) {
                session.position.forget_call();
            }
            return;
        }
        for promise in promises {
            match promise {
                LanePromise::Lane(handle, kind, template) => {
                    self.promise(request.context, handle, kind, template, LANE_FIRST);
                }
                LanePromise::Writes(handle, kind) => self.send(&HalfMessage::MayWrite {
                    context: request.context,
                    handle,
                    kind,
                }),
            }
        }
        if let Some(answer) = answers.first().filter(|_| response.result == 0) {
            let mut results = lists.iter().flat_map(|list| &list.responses);
            self.client_called(
                request.context,
                &AnsweredCall {
                    request,
                    asked: &asked,
                    requests: &requests,
                    handles: &answer.handles,
                    succeeded: is_clean(&lists)
                        && !is_too_small(&lists)
                        && results.all(|one| one.result == 0),
                },
            );
            self.anticipate(request.context);
        }
        if is_too_small(&lists) {
            // The client takes all bytes behind that response for ROPs that it has to send again.
            let outcome = CallOutcome::Response(response.write());
            self.send(&HalfMessage::StubAnswer { call, outcome });
            return;
        }
        self.answer_batch(call, request, response);
    }

    fn unread_answered(&mut self, call: u32, request: &RpcRequest, outcome: CallOutcome) {
        if let Some(session) = self.contexts.get_mut(&request.context) {
            session.objects.with(ServerObjects::forget_all);
            session.writers.clear();
            session.position.forget_call();
        }
        self.send(&HalfMessage::StubAnswer { call, outcome });
    }

    /// The server refused a write that the client believes in: all around it fails from here on.
    fn write_failed(
        &mut self,
        call: u32,
        request: &RpcRequest,
        asked: &RopBuffer,
        requests: &[RequestRop],
        failure: WriteFailure,
        events: Vec<Bytes>,
    ) {
        let handle = requests.first().and_then(|first| asked.handle(first.index));
        if let (Some(handle), Some(session)) = (handle, self.contexts.get_mut(&request.context)) {
            session.failed.insert(handle, failure);
            let around = session.objects.with(|objects| objects.items_around(handle));
            for around in around.unwrap_or_default() {
                session.failed.insert(around, failure);
            }
            session.writers.remove(&handle);
            self.send(&HalfMessage::MustForward {
                context: request.context,
                handle,
            });
        }
        self.send(&HalfMessage::Confirmed { call, events });
    }

    fn promise(
        &mut self,
        context: ContextHandle,
        handle: u32,
        kind: FarLaneKind,
        template: RpcRequest,
        limit: u64,
    ) {
        if let Some(lane) = self.new_lane(context, handle, kind, template.clone(), limit) {
            let id = lane.id;
            self.send(&HalfMessage::Promise { lane: id, template });
        }
    }

    /// A lane that makes this request at the server, if there is room for one.
    fn new_lane(
        &mut self,
        context: ContextHandle,
        handle: u32,
        kind: FarLaneKind,
        template: RpcRequest,
        limit: u64,
    ) -> Option<&mut FarLane> {
        let (asked, requests) = read_batch(&template)?;
        let session = self.contexts.get_mut(&context)?;
        if session.lanes.len() >= LANES_MAX || session.lanes.contains_key(&handle) {
            return None;
        }
        let id = LaneId {
            context,
            handle,
            epoch: self.next_epoch,
        };
        self.next_epoch = self.next_epoch.wrapping_add(1);
        let lane = FarLane {
            id,
            kind,
            template,
            requests,
            asked,
            is_guess: false,
            amounts: VecDeque::new(),
            script: None,
            delivered: 0,
            undelivered: 0,
            limit,
            expected: ANSWER_GUESS,
            is_over: false,
            is_lost: false,
            is_cancelled: false,
        };
        Some(session.lanes.entry(handle).or_insert(lane))
    }

    /// Repeats the request of the next lane that has room.
    fn run_ahead(&mut self, now: Time) -> bool {
        let lanes = self.contexts.iter().flat_map(|(context, session)| {
            let ready = session.lanes.values().filter(|lane| lane.has_room());
            ready.map(move |lane| (*context, lane.id.handle, lane.expected))
        });
        let ready: Vec<_> = lanes.collect();
        let after = |lane: &&(ContextHandle, u32, u64)| Some((lane.0, lane.1)) > self.last_lane;
        // The client may wait for a step, and its answer is small.
        let script = ready.iter().find(|(_, handle, _)| *handle == SCRIPT_HANDLE);
        let next = script.or_else(|| ready.iter().find(after));
        let Some((context, handle, expected)) = next.or_else(|| ready.first()).copied() else {
            return false;
        };
        if handle != SCRIPT_HANDLE && !self.pace.has_room(expected) {
            return false;
        }
        let Some(lane) = self
            .contexts
            .get(&context)
            .and_then(|session| session.lanes.get(&handle))
        else {
            return false;
        };
        let mut template = lane.template.clone();
        if let Some(flags) = template.envelope.flags_mut() {
            // The near machine's answer could become longer than the server's otherwise.
            *flags |= NO_COMPRESSION;
        }
        self.last_lane = Some((context, handle));
        self.pace.asked(expected);
        self.call_batch(&template);
        self.current = Some(CurrentCall::Ahead {
            context,
            handle,
            asked_at: now,
            expected,
        });
        true
    }

    /// Sends the answer of a lane on, and returns its bytes.
    fn ahead_answered(&mut self, context: ContextHandle, handle: u32, outcome: CallOutcome) -> u64 {
        let Some(session) = self.contexts.get_mut(&context) else {
            return 0;
        };
        let Some(lane) = session.lanes.get_mut(&handle) else {
            return 0;
        };
        let id = lane.id;
        let has_failed = match &outcome {
            CallOutcome::Response(stub) => {
                let opnum = lane.template.envelope.opnum();
                RpcResponse::read(opnum, stub).is_ok_and(|response| response.result != 0)
            }
            CallOutcome::Fault(_) => true,
        };
        if has_failed {
            // The server did nothing. The client's own request meets the same.
            lane.is_over = true;
            if lane.amounts.is_empty() {
                session.lanes.remove(&handle);
            }
            self.send(&HalfMessage::Cancel { lane: id });
            return 0;
        }
        let Some((response, answers)) = read_answer(&lane.template, outcome) else {
            // Nobody knows how far the server has moved the cursor.
            self.close();
            return 0;
        };
        let mut lists = session
            .objects
            .with(|objects| objects.observe(&lane.requests, &lane.asked, &answers));
        if lane.kind == FarLaneKind::Script {
            return self.step_answered(context, response, &answers, lists);
        }
        if is_too_small(&lists) {
            // The server did nothing. The client's own request meets the same.
            lane.is_over = true;
            if lane.amounts.is_empty() {
                session.lanes.remove(&handle);
            }
            let (_, own) = without_events(response, &answers, &mut lists);
            self.keep_events(context, own);
            self.send(&HalfMessage::Cancel { lane: id });
            return 0;
        }
        let moved = moved_by(&lists);
        lane.is_lost |= !is_clean(&lists);
        lane.is_over = lane.is_lost || lane.is_cancelled || is_last(&lists);
        if let FarLaneKind::Stream { position } = &mut lane.kind {
            *position = position.saturating_add(moved);
        }
        let (response, own) = without_events(response, &answers, &mut lists);
        let bytes = length_of(&response.buffers) as u64;
        lane.amounts.push_back(LaneAmount {
            moved,
            bytes,
            step: None,
        });
        lane.undelivered += bytes;
        lane.expected = bytes;
        let is_last = lane.is_over;
        if !own.is_empty() {
            session.events.push(own);
        }
        let events = session.events_for_near();
        self.send(&HalfMessage::Ahead {
            lane: id,
            is_last,
            events,
            response,
        });
        bytes
    }
}

/// A right that the far machine gives to the near machine after an answer of the server.
enum LanePromise {
    Lane(u32, FarLaneKind, RpcRequest),
    Writes(u32, WriterKind),
}

/// A batch with an object that failed, and with a ROP that is not known.
struct UnreadableBatch;

impl FarContext {
    /// The client has taken so many answers of a lane in all. Returns the steps that they are of, if
    /// it is a script.
    fn delivered(&mut self, id: LaneId, count: u32) -> Vec<ScriptStep> {
        let mut steps = Vec::new();
        let Some(lane) = self.lanes.get_mut(&id.handle).filter(|lane| lane.id == id) else {
            return steps;
        };
        while lane.delivered != count {
            let Some(amount) = lane.amounts.pop_front() else {
                break;
            };
            lane.delivered = lane.delivered.wrapping_add(1);
            lane.undelivered -= amount.bytes;
            lane.limit = (lane.limit * 2).min(LANE_MAX);
            steps.extend(amount.step);
        }
        if lane.is_over && lane.amounts.is_empty() && !lane.is_lost {
            self.lanes.remove(&id.handle);
        }
        steps
    }

    /// The events that the client gets next. While the session leaves this connection, events wait
    /// for the connection that makes its next call.
    fn events_for_near(&mut self) -> Vec<Bytes> {
        match self.is_leaving {
            true => Vec::new(),
            false => std::mem::take(&mut self.events),
        }
    }

    /// True if something was done ahead that only this connection can undo, or may be done.
    fn is_exposed(&self) -> bool {
        !self.writers.is_empty() || !self.lanes.is_empty() || !self.failed.is_empty()
    }

    /// Transfers of which the client has still to take answers.
    fn undelivered_sources(&self) -> BTreeSet<u32> {
        let lanes = self.lanes.values();
        lanes
            .filter(|lane| lane.kind == FarLaneKind::Source && !lane.amounts.is_empty())
            .map(|lane| lane.id.handle)
            .collect()
    }

    fn released(&mut self, handle: u32) {
        self.failed.remove(&handle);
        self.writers.remove(&handle);
        self.rewound.remove(&handle);
    }

    /// The error of a batch that uses an object that failed.
    fn failure(&self, request: &RpcRequest) -> Result<Option<WriteFailure>, UnreadableBatch> {
        let Some((buffer, requests)) = read_batch(request) else {
            let handles = request
                .buffers
                .iter()
                .filter_map(|one| RopBuffer::read(&one.bytes).ok());
            let names_one = handles
                .flat_map(|buffer| buffer.handles)
                .any(|handle| self.failed.contains_key(&handle));
            return if names_one {
                Err(UnreadableBatch)
            } else {
                Ok(None)
            };
        };
        let used = requests.iter().filter(|one| one.id != id::RELEASE);
        let mut handles =
            used.flat_map(|one| one.inputs().filter_map(|index| buffer.handle(index)));
        Ok(handles.find_map(|handle| self.failed.get(&handle).copied()))
    }

    /// The lanes and the writers that begin with the answer to a batch.
    fn promises(
        &mut self,
        request: &RpcRequest,
        asked: &RopBuffer,
        requests: &[RequestRop],
        answers: &[RopBuffer],
        lists: &[ResponseList],
    ) -> Vec<LanePromise> {
        let mut promises = Vec::new();
        let Some((last, answer)) = requests.last().zip(answers.first()) else {
            return promises;
        };
        let responses: Vec<_> = lists.iter().flat_map(|list| &list.responses).collect();
        let handle_of = |index: u8| answer.handle(index).or_else(|| asked.handle(index));
        for (place, one) in requests.iter().enumerate() {
            let succeeded = responses
                .iter()
                .any(|response| response.request == place && response.result == 0);
            let Some(handle) = handle_of(one.response_index()).filter(|_| succeeded) else {
                continue;
            };
            match one.detail {
                RequestDetail::OpenStream { mode, .. } if mode != 0 => {
                    let parent = self.objects.with(|objects| objects.get(handle)?.parent);
                    if parent.is_some() {
                        self.writers.insert(handle);
                        promises.push(LanePromise::Writes(handle, WriterKind::Stream));
                    }
                }
                RequestDetail::Data { length, .. } if one.id == id::DESTINATION_PUT_BUFFER => {
                    let around = self.objects.with(|objects| objects.items_around(handle));
                    let status =
                        put_status(answer, &responses, place, length).filter(|_| around.is_some());
                    if let Some(status) = status.filter(|_| self.writers.insert(handle)) {
                        let kind = WriterKind::Destination { status };
                        promises.push(LanePromise::Writes(handle, kind));
                    }
                }
                _ => {}
            }
        }
        let Some(handle) = handle_of(last.index) else {
            return promises;
        };
        let Some(template) = repeated(request, asked, requests, handle) else {
            return promises;
        };
        let Some(kind) = self.lane_kind(last, handle, &template, lists) else {
            return promises;
        };
        promises.push(LanePromise::Lane(handle, kind, template));
        promises
    }

    /// The lane that reads on behind a client's last ROP, if it is worth one.
    fn lane_kind(
        &mut self,
        last: &RequestRop,
        handle: u32,
        template: &RpcRequest,
        lists: &[ResponseList],
    ) -> Option<FarLaneKind> {
        let response = lists.last()?.responses.last()?;
        let bytes = template.buffers.first().map(|one| one.bytes.clone())?;
        let is_second = self.last_read.as_ref() == Some(&bytes);
        if matches!(last.id, id::READ_STREAM | id::QUERY_ROWS) {
            self.last_read = Some(bytes);
        }
        if response.result != 0 {
            return None;
        }
        match (&last.detail, response.detail) {
            (RequestDetail::ReadStream { .. }, ResponseDetail::Data { length, .. }) => {
                let ObjectRole::Stream {
                    tag,
                    is_read_only: true,
                    position: Some(position),
                } = self
                    .objects
                    .with(|objects| objects.get(handle).cloned())?
                    .role
                else {
                    return None;
                };
                let is_content = tag == ATTACH_DATA || BODIES.contains(&tag);
                let begins = is_content && !self.rewound.contains(&handle);
                (length > 0 && (begins || is_second)).then_some(FarLaneKind::Stream { position })
            }
            (RequestDetail::QueryRows { advances: true, .. }, ResponseDetail::Rows { count }) => {
                (count > 0 && (!self.rewound.contains(&handle) || is_second))
                    .then_some(FarLaneKind::Table)
            }
            (RequestDetail::GetBuffer { .. }, ResponseDetail::Transfer { status, .. }) => {
                (status == STATUS_PARTIAL).then_some(FarLaneKind::Source)
            }
            _ => None,
        }
    }
}

impl FarLane {
    fn has_room(&self) -> bool {
        let is_wanted = match &self.script {
            Some(script) => script.has_promised(),
            None => self.undelivered < self.limit,
        };
        is_wanted && !self.is_over && !self.is_cancelled
    }

    /// The call that moves the cursor back by so much.
    fn undo(&self, moved: u64) -> Option<RpcRequest> {
        if self.is_lost {
            return None;
        }
        let logon = self.requests.first()?.logon;
        let mut rops = BytesMut::new();
        match self.kind {
            FarLaneKind::Stream { .. } => {
                // Relative to the server's own cursor, which a read beyond the end may have set.
                rops.put_slice(&[id::SEEK_STREAM, logon, 0, 1]);
                rops.put_i64_le(-i64::try_from(moved).ok()?);
            }
            FarLaneKind::Table => {
                rops.put_slice(&[id::SEEK_ROW, logon, 0, 1]);
                rops.put_i32_le(-i32::try_from(moved).ok()?);
                rops.put_u8(0);
            }
            FarLaneKind::Source | FarLaneKind::Script => return None,
        }
        let buffer = RopBuffer {
            rops: rops.freeze(),
            handles: vec![self.id.handle],
        };
        let mut undo = with_buffer(&self.template, &buffer);
        if let Some(flags) = undo.envelope.flags_mut() {
            *flags &= !CHAIN;
        }
        Some(undo)
    }
}

fn length_of(buffers: &[PlainBuffer]) -> usize {
    buffers.iter().map(|one| one.bytes.len()).sum()
}

/// True if a request names one of these objects, or cannot be read.
fn names_any(request: &RpcRequest, handles: &BTreeSet<u32>) -> bool {
    request
        .buffers
        .iter()
        .any(|one| match RopBuffer::read(&one.bytes) {
            Ok(buffer) => buffer.handles.iter().any(|handle| handles.contains(handle)),
            Err(_) => true,
        })
}

/// The ROPs of a request with one buffer, all of which are known.
fn read_batch(request: &RpcRequest) -> Option<(RopBuffer, Vec<RequestRop>)> {
    let [only] = &request.buffers[..] else {
        return None;
    };
    let buffer = RopBuffer::read(&only.bytes).ok()?;
    if buffer.handles.len() > HANDLES_MAX {
        return None;
    }
    let requests = read_requests(&buffer).ok()?;
    Some((buffer, requests))
}

/// An answer whose buffers can be read, and written again within the client's limit.
fn read_answer(
    request: &RpcRequest,
    outcome: CallOutcome,
) -> Option<(RpcResponse, Vec<RopBuffer>)> {
    let CallOutcome::Response(stub) = outcome else {
        return None;
    };
    let response = RpcResponse::read(request.envelope.opnum(), &stub).ok()?;
    let buffers = response
        .buffers
        .iter()
        .map(|one| RopBuffer::read(&one.bytes));
    let buffers: Vec<RopBuffer> = buffers.collect::<Result<_, _>>().ok()?;
    let is_compressed = response
        .buffers
        .iter()
        .any(|one| one.flags.has(ExtendedFlags::COMPRESSED));
    if is_compressed
        && length_of(&response.buffers) + 8 * response.buffers.len() > request.envelope.out_max()
        && write_chain(&response.buffers).len() > request.envelope.out_max()
    {
        return None;
    }
    Some((response, buffers))
}

/// A request like `request` with another buffer and no auxiliary data.
fn with_buffer(request: &RpcRequest, buffer: &RopBuffer) -> RpcRequest {
    let flags = request
        .buffers
        .first()
        .map_or(ExtendedFlags(0), |one| one.flags);
    let mut other = request.clone();
    other.buffers = vec![PlainBuffer {
        flags,
        bytes: buffer.write(),
    }];
    other.envelope.forget_call();
    other
}

/// The request that a client is expected to repeat: its batch of one ROP, or the last ROP of a
/// longer batch alone.
fn repeated(
    request: &RpcRequest,
    asked: &RopBuffer,
    requests: &[RequestRop],
    handle: u32,
) -> Option<RpcRequest> {
    let last = requests.last()?;
    if !matches!(
        last.id,
        id::READ_STREAM | id::QUERY_ROWS | id::SOURCE_GET_BUFFER
    ) {
        return None;
    }
    if requests.len() == 1 {
        return Some(with_buffer(request, asked));
    }
    let mut rops = BytesMut::from(&asked.rops[last.start..last.end]);
    rops[2] = 0;
    let buffer = RopBuffer {
        rops: rops.freeze(),
        handles: vec![handle],
    };
    Some(with_buffer(request, &buffer))
}

/// Takes the events behind the last buffer's responses out of an answer.
fn without_events(
    mut response: RpcResponse,
    answers: &[RopBuffer],
    lists: &mut [ResponseList],
) -> (RpcResponse, Bytes) {
    let last = response
        .buffers
        .last_mut()
        .zip(answers.last())
        .zip(lists.last_mut());
    let Some(((plain, answer), list)) = last else {
        return (response, Bytes::new());
    };
    let ResponseTail::Events(at) = list.tail else {
        return (response, Bytes::new());
    };
    list.tail = ResponseTail::Nothing;
    let events = answer.rops.slice(at..);
    let rest = RopBuffer {
        rops: answer.rops.slice(..at),
        handles: answer.handles.clone(),
    };
    plain.bytes = rest.write();
    (response, events)
}

/// Returns the distance by which an answer of a lane moved the server's cursor: bytes of a stream or
/// a transfer, or rows of a table.
fn moved_by(lists: &[ResponseList]) -> u64 {
    let responses = lists.iter().flat_map(|list| &list.responses);
    let moved = responses.map(|response| match response.detail {
        ResponseDetail::Data { length, .. } | ResponseDetail::Transfer { length, .. } => {
            length as u64
        }
        ResponseDetail::Rows { count } => u64::from(count),
        _ => 0,
    });
    moved.sum()
}

/// True if a lane has nothing to add to this answer.
fn is_last(lists: &[ResponseList]) -> bool {
    let Some(last) = lists.last().and_then(|list| list.responses.last()) else {
        return true;
    };
    last.result != 0
        || match last.detail {
            ResponseDetail::Data { length, .. } => length == 0,
            ResponseDetail::Rows { count } => count == 0,
            ResponseDetail::Transfer { status, .. } => status != STATUS_PARTIAL,
            _ => true,
        }
}

/// The result of a write that was answered before the server had it.
fn write_result(
    response: &RpcResponse,
    requests: &[RequestRop],
    lists: &[ResponseList],
) -> Result<(), u32> {
    if response.result != 0 {
        return Err(response.result);
    }
    let first = lists.first().and_then(|list| list.responses.first());
    let (Some(first), Some(request)) = (first, requests.first()) else {
        return Err(CALL_FAILED);
    };
    if first.result != 0 {
        return Err(first.result);
    }
    match (first.detail, &request.detail) {
        (ResponseDetail::Written { size }, RequestDetail::Data { length, .. })
            if usize::from(size) == *length =>
        {
            Ok(())
        }
        _ => Err(MEDIUM_FULL),
    }
}

/// The TransferStatus of a server that took all of a transfer's buffer and reports no progress.
fn put_status(
    answer: &RopBuffer,
    responses: &[&super::super::response::ResponseRop],
    place: usize,
    length: usize,
) -> Option<u16> {
    let response = responses.iter().find(|one| one.request == place)?;
    if response.detail
        != (ResponseDetail::Written {
            size: u16::try_from(length).ok()?,
        })
    {
        return None;
    }
    let fields = answer.rops.get(response.start + 6..response.start + 13)?;
    let has_progress = fields[2..].iter().any(|byte| *byte != 0);
    (!has_progress).then(|| u16::from_le_bytes([fields[0], fields[1]]))
}

/// The answer in which every ROP but the releases fails.
fn failed_response(
    request: &RpcRequest,
    buffer: &RopBuffer,
    requests: &[RequestRop],
    result: u32,
) -> RpcResponse {
    let mut rops = BytesMut::new();
    for one in requests.iter().filter(|one| one.id != id::RELEASE) {
        if rops.len() > FAILURES_MAX {
            break;
        }
        rops.put_slice(&[one.id, one.response_index()]);
        rops.put_u32_le(result);
        // These responses have their fields after a failure as well.
        let fields = match one.id {
            id::READ_STREAM | id::WRITE_STREAM | 0x90 | 0xa3 => 2,
            id::SOURCE_GET_BUFFER | id::DESTINATION_PUT_BUFFER => 9,
            id::COPY_TO_STREAM => 16,
            _ => 0,
        };
        rops.put_bytes(0, fields);
    }
    let mut handles = buffer.handles.clone();
    for output in requests.iter().filter_map(RequestRop::output) {
        if let Some(handle) = handles.get_mut(usize::from(output)) {
            *handle = NO_HANDLE;
        }
    }
    let failed = RopBuffer {
        rops: rops.freeze(),
        handles,
    };
    let plain = PlainBuffer {
        flags: request.envelope.answer_flags(),
        bytes: failed.write(),
    };
    RpcResponse::answering(request, vec![plain])
}
