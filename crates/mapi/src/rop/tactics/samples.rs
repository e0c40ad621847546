//! Good inputs for fuzzing the two machines: frames about scripts and about several connections.

use bytes::Bytes;
use vocab::FlowSegment;

use super::SCRIPT_HANDLE;
use super::message::{HalfMessage, LaneEnd, LaneId};
use crate::emsmdb::rpc::{RpcRequest, RpcResponse};

/// Frames for one of the machines, as their segments.
#[derive(Clone, Debug)]
pub struct FrameSample {
    /// A short name.
    pub name: &'static str,
    /// True if they are for the near machine.
    pub is_for_near: bool,
    /// The segments.
    pub segments: Vec<FlowSegment>,
}

/// Frames about the session of these calls. `answer` is the answer to `request`.
#[must_use]
pub fn frames(request: &RpcRequest, answer: &RpcResponse) -> Vec<FrameSample> {
    let context = request.context;
    let lane = |handle| LaneId {
        context,
        handle,
        epoch: 7,
    };
    let script = lane(SCRIPT_HANDLE);
    let end = |delivered| LaneEnd {
        lane: script,
        delivered,
        is_released: false,
    };
    let events = vec![Bytes::from_static(&[0x6e, 0, 0]); 2];
    let ahead = HalfMessage::Ahead {
        lane: script,
        is_last: false,
        events: Vec::new(),
        response: answer.clone(),
    };
    let promise = HalfMessage::Promise {
        lane: script,
        template: request.clone(),
    };
    let follow = HalfMessage::Follow {
        lane: script,
        template: request.clone(),
    };
    let cancel = HalfMessage::Cancel { lane: script };
    let revoke = HalfMessage::Revoke { lane: lane(6) };
    let leave = HalfMessage::Leave { context };
    let left = HalfMessage::Left {
        context,
        ends: vec![end(1)],
        events,
    };
    let delivered = HalfMessage::Delivered {
        lane: script,
        count: 1,
    };
    let declined = HalfMessage::Declined { ends: vec![end(1)] };
    [
        ("promise", true, promise),
        ("ahead", true, ahead),
        ("follow", true, follow),
        ("cancel", true, cancel),
        ("revoke", true, revoke),
        ("leave", true, leave),
        ("left", false, left),
        ("delivered", false, delivered),
        ("declined", false, declined),
    ]
    .map(|(name, is_for_near, message)| FrameSample {
        name,
        is_for_near,
        segments: message.emit(true),
    })
    .into()
}
