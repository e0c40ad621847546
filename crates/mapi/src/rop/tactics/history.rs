//! The calls that a client makes behind one another.
//!
//! ```text
//!  call A ─► call B      key of A ─► shape of B
//! ```
//! A program opens a message, reads its properties, its table of attachments and an attachment by
//! the same calls each time. Only the identifiers and the handles differ. A key is a call without
//! the identifiers that a user chooses and without releases. A shape is a call whose handles are
//! given by the order in which the client got them. So the shape and the handles of now make the
//! request that the client is expected to send.
//!
//! A shape counts from its first time on. After another call came in its place, it counts again
//! only when it came twice in a row.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};

use super::super::buffer::{NO_HANDLE, RopBuffer};
use super::super::id;
use super::super::request::RequestRop;
use crate::emsmdb::rpc::{RequestEnvelope, RpcRequest};
use crate::emsmdb::{ContextHandle, ExtendedFlags, PlainBuffer};

/// The newest handles that a shape can name. A program opens fewer for one action.
const RECENT_MAX: usize = 16;
/// The longest list of ROPs that is remembered: properties and columns take some hundred bytes.
const ROPS_MAX: usize = 512;
/// Handles of a call that is remembered.
const HANDLES_MAX: usize = 16;
/// Calls of one client whose followers are remembered.
const FOLLOWERS_MAX: usize = 64;
/// A call that came so often makes no difference to one that came more often.
const SCORE_MAX: u8 = 3;

/// A call of the client and its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredCall<'a> {
    pub(super) request: &'a RpcRequest,
    pub(super) asked: &'a RopBuffer,
    pub(super) requests: &'a [RequestRop],
    /// The handles of the answer.
    pub(super) handles: &'a [u32],
    /// Every ROP succeeded.
    pub(super) succeeded: bool,
}

impl AnsweredCall<'_> {
    /// The call without the identifiers that a user chooses, and without releases.
    fn key(&self) -> Option<Bytes> {
        if self.asked.rops.len() > ROPS_MAX {
            return None;
        }
        let mut key = BytesMut::new();
        for one in self.requests.iter().filter(|one| one.id != id::RELEASE) {
            let rop = &self.asked.rops[one.start..one.end];
            match one.id {
                // FolderId, and MessageId behind OpenModeFlags ([MS-OXCROPS] §2.2.6.1.1).
                id::OPEN_MESSAGE => key.put_slice(&[&rop[..6], &rop[14..15]].concat()),
                // FolderId ([MS-OXCROPS] §2.2.4.1.1).
                id::OPEN_FOLDER => key.put_slice(&[&rop[..4], &rop[12..]].concat()),
                _ => key.put_slice(rop),
            }
        }
        if key.is_empty() {
            return None;
        }
        // Two programs of one computer may differ in this only, and a program that encrypts some of its
        // sessions asks for no obfuscation in those.
        let envelope = &self.request.envelope;
        key.put_u16(envelope.opnum());
        key.put_u64(envelope.out_max() as u64);
        if let RequestEnvelope::Extended { flags, .. } | RequestEnvelope::Http { flags, .. } =
            envelope
        {
            key.put_u32(*flags);
        }
        Some(key.freeze())
    }

    /// The objects that it created.
    pub(super) fn created(&self) -> impl Iterator<Item = u32> {
        let outputs = self.requests.iter().filter_map(RequestRop::output);
        outputs
            .filter_map(|index| self.handles.get(usize::from(index)).copied())
            .filter(|handle| *handle != NO_HANDLE)
    }
}

/// The place of a client in its calls: the last call, and the newest handles.
#[derive(Clone, Debug, Default)]
pub(super) struct CallPosition {
    /// The newest is the first.
    created: VecDeque<u32>,
    /// The key of the last call.
    key: Option<Bytes>,
}

impl CallPosition {
    /// Moves on behind a call.
    pub(super) fn advance(&mut self, call: &AnsweredCall<'_>) {
        for handle in call.created() {
            self.created.push_front(handle);
        }
        self.created.truncate(RECENT_MAX);
        self.key = call.key().filter(|_| call.succeeded);
    }

    /// The last call is not known, or may have changed something.
    pub(super) fn forget_call(&mut self) {
        self.key = None;
    }
}

/// The entry that a server leaves for a released object in the table of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleasedEntry {
    /// The handle, as in the request.
    Kept,
    /// This value.
    Value(u32),
}

/// A request that the client is expected to send next.
#[derive(Clone, Debug)]
pub(super) struct ExpectedCall {
    pub(super) request: RpcRequest,
    /// The entries of the objects that it releases.
    pub(super) released_entry: ReleasedEntry,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct CallShape {
    /// Without auxiliary data.
    envelope: RequestEnvelope,
    flags: ExtendedFlags,
    rops: Bytes,
    /// The place of each handle among the newest ones; `None` for the place of a new object.
    handles: Vec<Option<u8>>,
    released_entry: ReleasedEntry,
}

impl CallShape {
    /// The shape of a call, if the newest handles are enough to make it again.
    fn of(call: &AnsweredCall<'_>, position: &CallPosition) -> Option<Self> {
        let [only] = &call.request.buffers[..] else {
            return None;
        };
        if call.asked.rops.len() > ROPS_MAX || call.asked.handles.len() > HANDLES_MAX {
            return None;
        }
        let place = |handle: &u32| match *handle {
            NO_HANDLE => Some(None),
            handle => {
                let place = position.created.iter().position(|known| *known == handle)?;
                Some(Some(place as u8))
            }
        };
        let handles: Option<Vec<Option<u8>>> = call.asked.handles.iter().map(place).collect();
        let mut envelope = call.request.envelope.clone();
        envelope.forget_call();
        Some(Self {
            envelope,
            flags: ExtendedFlags(only.flags.0 & !ExtendedFlags::COMPRESSED),
            rops: call.asked.rops.clone(),
            handles: handles?,
            released_entry: released_entry(call)?,
        })
    }

    fn request(&self, position: &CallPosition, context: ContextHandle) -> Option<RpcRequest> {
        let handle = |place: &Option<u8>| match place {
            None => Some(NO_HANDLE),
            Some(place) => position.created.get(usize::from(*place)).copied(),
        };
        let handles: Option<Vec<u32>> = self.handles.iter().map(handle).collect();
        let buffer = RopBuffer {
            rops: self.rops.clone(),
            handles: handles?,
        };
        Some(RpcRequest {
            context,
            envelope: self.envelope.clone(),
            buffers: vec![PlainBuffer {
                flags: self.flags,
                bytes: buffer.write(),
            }],
        })
    }
}

/// The entry of every released object in an answer; `None` if they are not alike.
fn released_entry(call: &AnsweredCall<'_>) -> Option<ReleasedEntry> {
    let mut common = None;
    for release in call.requests.iter().filter(|one| one.id == id::RELEASE) {
        let index = usize::from(release.index);
        let (asked, answered) = (call.asked.handles.get(index)?, call.handles.get(index)?);
        let entry = match asked == answered {
            true => ReleasedEntry::Kept,
            false => ReleasedEntry::Value(*answered),
        };
        if common.is_some_and(|common| common != entry) {
            return None;
        }
        common = Some(entry);
    }
    Some(common.unwrap_or(ReleasedEntry::Kept))
}

#[derive(Clone, Debug)]
struct FollowerRecord {
    shape: CallShape,
    /// Zero: another call came in its place, and this one came once since.
    score: u8,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct CallHistory {
    followers: BTreeMap<Bytes, FollowerRecord>,
    /// The keys, the oldest first.
    order: VecDeque<Bytes>,
}

impl CallHistory {
    /// Records that a client made a call at this position. A call that is repeated follows nothing.
    pub(super) fn record(&mut self, position: &CallPosition, call: &AnsweredCall<'_>) {
        let Some(key) = &position.key else { return };
        if call.key().as_ref() == Some(key) {
            return;
        }
        let shape = CallShape::of(call, position);
        match (self.followers.get_mut(key), shape) {
            (Some(known), Some(shape)) if known.shape == shape => {
                known.score = (known.score + 1).min(SCORE_MAX);
            }
            (Some(known), _) if known.score > 1 => known.score -= 1,
            (Some(known), shape) => {
                known.score = 0;
                if let Some(shape) = shape {
                    known.shape = shape;
                }
            }
            (None, Some(shape)) => {
                if self.order.len() >= FOLLOWERS_MAX
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.followers.remove(&oldest);
                }
                self.order.push_back(key.clone());
                let record = FollowerRecord { shape, score: 1 };
                self.followers.insert(key.clone(), record);
            }
            (None, None) => {}
        }
    }

    /// The call that a client is expected to make at this position.
    pub(super) fn expected(
        &self,
        position: &CallPosition,
        context: ContextHandle,
    ) -> Option<ExpectedCall> {
        let known = self.followers.get(position.key.as_ref()?)?;
        if known.score == 0 {
            return None;
        }
        Some(ExpectedCall {
            request: known.shape.request(position, context)?,
            released_entry: known.shape.released_entry,
        })
    }
}
