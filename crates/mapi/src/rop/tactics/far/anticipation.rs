//! Scripts: calls that the client is expected to make one behind the other.
//!
//! ```text
//!  client's call A ─► answer ─► step B at the server ─► step C … ─► a lane reads what C opened
//!                                    └─ Promise, Ahead    └─ Follow, Ahead
//! ```
//! A script is a lane with a request of its own for each answer. The near machine takes the next
//! step only for the client's next call, if that is byte for byte the step's request. Any other
//! call ends the script, and the objects that the client does not know are released.
//!
//! A step can be undone by that alone: it opens objects, reads, and moves the cursors of no objects
//! but its own. Objects that a step releases are released at the server when the client has taken
//! the step. A user chooses messages and folders, so no step opens one.

use std::collections::BTreeSet;

use bytes::{BufMut, BytesMut};

use super::super::history::{AnsweredCall, CallPosition, ExpectedCall, ReleasedEntry};
use super::super::message::{HalfMessage, LaneEnd};
use super::super::objects::{ObjectRole, is_clean};
use super::super::{LANE_FIRST, SCRIPT_HANDLE};
use super::{
    FarContext, FarLane, FarLaneKind, FarWork, LaneAmount, TacticsFar, length_of, read_batch,
    with_buffer, without_events,
};
use crate::emsmdb::ContextHandle;
use crate::emsmdb::rpc::{CHAIN, RpcRequest, RpcResponse};
use crate::rop::buffer::{NO_HANDLE, RopBuffer};
use crate::rop::id;
use crate::rop::request::{RequestDetail, RequestRop};
use crate::rop::response::ResponseList;

/// Steps of one script. The longest known one opens and saves an attachment in six calls.
const STEPS_MAX: usize = 8;
/// NoNotifications, of the TableFlags ([MS-OXCROPS] §2.2.4.14.1, RopGetContentsTable). Without it,
/// the client would get events of a table that it has not opened.
const NO_NOTIFICATIONS: u8 = 0x10;

/// A call that was made or will be made in place of the client.
#[derive(Clone, Debug)]
pub(super) struct ScriptStep {
    /// The client's request.
    request: RpcRequest,
    asked: RopBuffer,
    requests: Vec<RequestRop>,
    released_entry: ReleasedEntry,
    /// The handles of its answer, as the client gets them.
    answer: Vec<u32>,
}

/// The steps of a script.
#[derive(Debug)]
pub(super) struct FarScript {
    /// The position of a client that has taken all steps that were made.
    position: CallPosition,
    steps_left: usize,
    /// The step that was promised and not answered by the server.
    promised: Option<ScriptStep>,
}

impl FarScript {
    pub(super) fn has_promised(&self) -> bool {
        self.promised.is_some()
    }
}

/// The expected continuation of a client's calls.
enum ExpectedNext {
    Lane(u32, FarLaneKind, RpcRequest),
    Step(ScriptStep),
}

impl ScriptStep {
    /// A step, if it can be made and undone without the client.
    fn new(expected: ExpectedCall) -> Option<Self> {
        let (asked, requests) = read_batch(&expected.request)?;
        can_be_undone(&asked, &requests).then_some(Self {
            request: expected.request,
            asked,
            requests,
            released_entry: expected.released_entry,
            answer: Vec::new(),
        })
    }

    fn releases(&self) -> impl Iterator<Item = &RequestRop> {
        self.requests.iter().filter(|one| one.id == id::RELEASE)
    }

    /// Handles that the client gives up with it.
    fn released(&self) -> Vec<u32> {
        let indexes = self.releases().map(|one| one.index);
        indexes
            .filter_map(|index| self.asked.handle(index))
            .collect()
    }

    /// Handles that the client gets with it.
    fn created(&self) -> Vec<u32> {
        let outputs = self.requests.iter().filter_map(RequestRop::output);
        let is_new = |index: &usize| self.answer.get(*index) != self.asked.handles.get(*index);
        outputs
            .map(usize::from)
            .filter(is_new)
            .filter_map(|index| self.answer.get(index).copied())
            .filter(|handle| *handle != NO_HANDLE)
            .collect()
    }

    fn call(&self) -> AnsweredCall<'_> {
        AnsweredCall {
            request: &self.request,
            asked: &self.asked,
            requests: &self.requests,
            handles: &self.answer,
            succeeded: true,
        }
    }

    /// The request without its releases.
    fn for_server(&self) -> RpcRequest {
        let at = self.releases().map(|one| one.end).max().unwrap_or(0);
        let buffer = RopBuffer {
            rops: self.asked.rops.slice(at..),
            handles: self.asked.handles.clone(),
        };
        with_buffer(&self.request, &buffer)
    }

    /// Puts the entries of released objects into the server's answer.
    fn complete(&self, response: &mut RpcResponse) {
        let ReleasedEntry::Value(value) = self.released_entry else {
            return;
        };
        for plain in &mut response.buffers {
            let Ok(mut buffer) = RopBuffer::read(&plain.bytes) else {
                continue;
            };
            for release in self.releases() {
                if let Some(entry) = buffer.handles.get_mut(usize::from(release.index)) {
                    *entry = value;
                }
            }
            plain.bytes = buffer.write();
        }
    }
}

/// True for a batch that leaves nothing behind once the objects that it opens are released, except
/// for releases in front.
fn can_be_undone(asked: &RopBuffer, requests: &[RequestRop]) -> bool {
    let is_release = |one: &&RequestRop| one.id == id::RELEASE;
    let released: BTreeSet<u8> = requests
        .iter()
        .take_while(is_release)
        .map(|one| one.index)
        .collect();
    let rest = &requests[released.len().min(requests.len())..];
    let mut own = BTreeSet::new();
    for one in rest {
        let is_own = own.contains(&one.index);
        let is_undone = match one.id {
            id::GET_PROPERTIES_SPECIFIC
            | id::GET_PROPERTIES_ALL
            | id::GET_PROPERTIES_LIST
            | id::GET_VALID_ATTACHMENTS
            | id::GET_STREAM_SIZE
            | id::READ_RECIPIENTS
            | id::OPEN_ATTACHMENT
            | id::GET_ATTACHMENT_TABLE => true,
            id::OPEN_STREAM => matches!(one.detail, RequestDetail::OpenStream { mode: 0, .. }),
            id::GET_HIERARCHY_TABLE | id::GET_CONTENTS_TABLE => {
                asked.rops[one.start + 4] & NO_NOTIFICATIONS != 0
            }
            id::SET_COLUMNS
            | id::SORT_TABLE
            | id::RESTRICT
            | id::QUERY_ROWS
            | id::SEEK_ROW
            | id::READ_STREAM
            | id::SEEK_STREAM => is_own,
            _ => false,
        };
        let mut indexes = one.inputs().chain(one.output());
        if !is_undone || indexes.any(|index| released.contains(&index)) {
            return false;
        }
        own.extend(one.output());
    }
    !rest.is_empty()
}

impl TacticsFar {
    /// Records a call that the client has made.
    pub(super) fn client_called(&mut self, context: ContextHandle, call: &AnsweredCall<'_>) {
        if let Some(session) = self.contexts.get_mut(&context)
            && !session.is_shared
        {
            self.place.record(&session.position, call);
            session.position.advance(call);
        }
    }

    /// Begins a script or a lane with the calls that usually follow the client's last one.
    pub(super) fn anticipate(&mut self, context: ContextHandle) {
        let Some(session) = self.contexts.get(&context) else {
            return;
        };
        let position = session.position.clone();
        match self.expected_next(context, &position) {
            Some(ExpectedNext::Lane(handle, kind, template)) => {
                self.promise(context, handle, kind, template, LANE_FIRST);
                self.set_guess(context, handle);
            }
            Some(ExpectedNext::Step(step)) => self.begin_script(context, position, step),
            None => {}
        }
    }

    fn expected_next(
        &self,
        context: ContextHandle,
        position: &CallPosition,
    ) -> Option<ExpectedNext> {
        let session = self.contexts.get(&context)?;
        if session.is_shared || !session.failed.is_empty() {
            return None;
        }
        let expected = self.place.expected(position, context)?;
        let (asked, requests) = read_batch(&expected.request)?;
        if let [only] = &requests[..]
            && let Some(handle) = asked.handle(only.index)
            && let Some(kind) = session.first_lane_kind(only, handle)
        {
            let template = expected.request;
            return (!session.lanes.contains_key(&handle))
                .then_some(ExpectedNext::Lane(handle, kind, template));
        }
        let used = requests.iter().filter(|one| one.id != id::RELEASE);
        let mut inputs = used.flat_map(|one| one.inputs().filter_map(|index| asked.handle(index)));
        if inputs.any(|handle| session.lanes.contains_key(&handle)) {
            return None;
        }
        ScriptStep::new(expected).map(ExpectedNext::Step)
    }

    /// A lane began before the client's first read.
    fn set_guess(&mut self, context: ContextHandle, handle: u32) {
        let session = self.contexts.get_mut(&context);
        if let Some(lane) = session.and_then(|session| session.lanes.get_mut(&handle)) {
            lane.is_guess = true;
        }
    }

    fn begin_script(&mut self, context: ContextHandle, position: CallPosition, step: ScriptStep) {
        let template = step.request.clone();
        let script = FarScript {
            position,
            steps_left: STEPS_MAX - 1,
            promised: Some(step.clone()),
        };
        let request = step.for_server();
        let kind = FarLaneKind::Script;
        let Some(lane) = self.new_lane(context, SCRIPT_HANDLE, kind, request, LANE_FIRST) else {
            return;
        };
        lane.script = Some(script);
        let id = lane.id;
        self.send(&HalfMessage::Promise { lane: id, template });
    }

    /// Sends the answer of a step on, and promises the next one; returns its bytes.
    pub(super) fn step_answered(
        &mut self,
        context: ContextHandle,
        response: RpcResponse,
        answers: &[RopBuffer],
        mut lists: Vec<ResponseList>,
    ) -> u64 {
        let Some(session) = self.contexts.get_mut(&context) else {
            return 0;
        };
        let Some(lane) = session.lanes.get_mut(&SCRIPT_HANDLE) else {
            return 0;
        };
        let id = lane.id;
        let asked_for = lane.requests.len();
        let (mut response, own) = without_events(response, answers, &mut lists);
        if !own.is_empty() {
            session.events.push(own);
        }
        let Some((script, mut step)) = lane
            .script
            .as_mut()
            .and_then(|script| script.promised.take().map(|step| (script, step)))
        else {
            return 0;
        };
        step.complete(&mut response);
        let handles = response
            .buffers
            .first()
            .and_then(|first| RopBuffer::read(&first.bytes).ok())
            .map(|buffer| buffer.handles);
        step.answer = handles.unwrap_or_default();
        let responses = || lists.iter().flat_map(|list| &list.responses);
        let succeeded = is_clean(&lists)
            && responses().all(|one| one.result == 0)
            && lists
                .first()
                .is_some_and(|first| first.responses.len() == asked_for);
        if !succeeded {
            // The client's own request meets the same.
            lane.is_over = true;
            if lane.amounts.is_empty() {
                session.lanes.remove(&SCRIPT_HANDLE);
            }
            self.send(&HalfMessage::Cancel { lane: id });
            self.give_up(context, &step.request, &step.created());
            return 0;
        }
        script.position.advance(&step.call());
        script.steps_left -= 1;
        let bytes = length_of(&response.buffers) as u64;
        let position = script.position.clone();
        let created = step.created();
        let goes_on =
            script.steps_left > 0 && !lane.is_cancelled && lane.undelivered + bytes < lane.limit;
        lane.amounts.push_back(LaneAmount {
            moved: 0,
            bytes,
            step: Some(step),
        });
        lane.undelivered += bytes;
        let next = match goes_on {
            true => self.expected_next(context, &position),
            false => None,
        };
        let is_last = !matches!(next, Some(ExpectedNext::Step(_)));
        let lane = self
            .contexts
            .get_mut(&context)
            .and_then(|session| session.lanes.get_mut(&SCRIPT_HANDLE));
        match next {
            // The near machine must know of the lane before the client knows the object. One answer
            // is enough until then.
            Some(ExpectedNext::Lane(handle, kind, template)) if created.contains(&handle) => {
                self.promise(context, handle, kind, template, 1);
                self.set_guess(context, handle);
            }
            Some(ExpectedNext::Step(step)) => {
                let template = step.request.clone();
                if let Some(lane) = lane {
                    set_request(lane, step.for_server());
                    if let Some(script) = &mut lane.script {
                        script.promised = Some(step);
                    }
                }
                self.send(&HalfMessage::Follow { lane: id, template });
            }
            Some(ExpectedNext::Lane(..)) | None => {}
        }
        let mut events = Vec::new();
        if let Some(session) = self.contexts.get_mut(&context) {
            if let Some(lane) = session.lanes.get_mut(&SCRIPT_HANDLE) {
                lane.is_over = is_last;
            }
            events = session.events_for_near();
        }
        self.send(&HalfMessage::Ahead {
            lane: id,
            is_last,
            events,
            response,
        });
        bytes
    }

    /// The client has made the call of a step, and has got its answer.
    pub(super) fn step_taken(&mut self, context: ContextHandle, step: &ScriptStep) {
        self.client_called(context, &step.call());
        let Some(session) = self.contexts.get_mut(&context) else {
            return;
        };
        for handle in step.created() {
            if let Some(lane) = session.lanes.get_mut(&handle) {
                lane.limit = lane.limit.max(LANE_FIRST);
            }
        }
        let released = step.released();
        let mut ends = Vec::new();
        for handle in &released {
            if let Some(lane) = session.lanes.get_mut(handle) {
                // Its last call may be at the server.
                lane.is_cancelled = true;
                ends.push(LaneEnd {
                    lane: lane.id,
                    delivered: lane.delivered,
                    is_released: true,
                });
            }
            self.place.released(context, *handle);
        }
        if !ends.is_empty() {
            self.work.push_back(FarWork { ends, call: None });
        }
        self.give_up(context, &step.request, &released);
    }

    /// The client makes another call: it never gets to know what these steps have opened.
    pub(super) fn steps_declined(&mut self, context: ContextHandle, steps: Vec<ScriptStep>) {
        for step in steps.iter().rev() {
            let created = step.created();
            for handle in &created {
                let session = self.contexts.get_mut(&context);
                if let Some(lane) = session.and_then(|session| session.lanes.remove(handle)) {
                    self.send(&HalfMessage::Revoke { lane: lane.id });
                }
            }
            self.give_up(context, &step.request, &created);
        }
    }

    /// Releases objects at the server.
    fn give_up(&mut self, context: ContextHandle, like: &RpcRequest, handles: &[u32]) {
        if handles.is_empty() {
            return;
        }
        if let Some(session) = self.contexts.get_mut(&context) {
            for handle in handles {
                session.objects.with(|objects| objects.forget(*handle));
                session.released(*handle);
            }
        }
        let logon = read_batch(like)
            .and_then(|(_, requests)| requests.first().map(|first| first.logon))
            .unwrap_or(0);
        let mut rops = BytesMut::new();
        for index in 0..handles.len() {
            rops.put_slice(&[id::RELEASE, logon, index as u8]);
        }
        let buffer = RopBuffer {
            rops: rops.freeze(),
            handles: handles.to_vec(),
        };
        let mut release = with_buffer(like, &buffer);
        if let Some(flags) = release.envelope.flags_mut() {
            *flags &= !CHAIN;
        }
        self.undos.push_back((context, release));
    }
}

impl FarContext {
    /// The lane that a client's first read of an object begins, if it is certain before the read.
    fn first_lane_kind(&self, only: &RequestRop, handle: u32) -> Option<FarLaneKind> {
        if self.rewound.contains(&handle) {
            return None;
        }
        let object = self.objects.with(|objects| objects.get(handle).cloned())?;
        match (&only.detail, object.role) {
            (
                RequestDetail::ReadStream { .. },
                ObjectRole::Stream {
                    is_read_only: true,
                    position: Some(position),
                    ..
                },
            ) => Some(FarLaneKind::Stream { position }),
            (
                RequestDetail::QueryRows { advances: true, .. },
                ObjectRole::Table { columns: Some(_) },
            ) => Some(FarLaneKind::Table),
            _ => None,
        }
    }
}

/// The next call of a lane.
fn set_request(lane: &mut FarLane, template: RpcRequest) {
    if let Some((asked, requests)) = read_batch(&template) {
        lane.asked = asked;
        lane.requests = requests;
    }
    lane.template = template;
}
