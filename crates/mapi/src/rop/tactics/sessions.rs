//! The sessions of all flows of a node, and the flows that use each of them.
//!
//! A client may use one session in several connections of an association group. Tactics move the
//! server's cursors and answer writes, so they are for a session that a single flow uses.
//!
//! ```text
//!  no entry ─ first call ─► Alone ─ a call of another flow ─► Leaving ─ the first flow has undone
//!     ▲                       │                                  │       what it did ahead ─► Together
//!     │                       └─ the flow ends, exposed ─► Lost ◄┴─ the first flow ends          │
//!     └──────────────────────────────── the last flow ends ──────────────────────────────────────┘
//! ```
//! | state | calls of the first flow | calls of other flows |
//! | --- | --- | --- |
//! | alone | pass, with tactics | make the first flow leave, and wait |
//! | leaving | pass, with the end of its tactics | wait |
//! | together | pass, without tactics | pass, without tactics |
//! | lost | - | close their connection: a cursor or a write may be wrong |
//!
//! The table is at the node beside the server, which sees every connection that either node has not
//! bypassed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use accelerate::shared::SharedHandle;
use bytes::Bytes;

use super::WriteFailure;
use super::history::{AnsweredCall, CallHistory, CallPosition, ExpectedCall};
use super::objects::SessionObjects;
use crate::emsmdb::ContextHandle;

/// Sessions of one flow. Clients open a few.
const SESSIONS_OF_FLOW_MAX: usize = 1024;
/// Sessions of all flows: a thousand clients with some sessions each, in some megabytes.
const SESSIONS_MAX: usize = 16_384;
/// Lost sessions that are remembered. Servers end a session soon after its last connection.
const LOST_MAX: usize = 4096;
/// Clients whose calls are remembered, with some kilobytes each.
const HISTORIES_MAX: usize = 1024;

/// A session, and the server that named it.
type SessionKey = (IpAddr, ContextHandle);

/// A client, and the server that it uses.
type HistoryKey = (IpAddr, IpAddr);

/// The way in which a flow may use a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionUse {
    /// With tactics.
    Alone,
    /// Without tactics.
    Together,
    /// Not before another flow has ended its tactics; the table wakes this flow then.
    Wait,
    /// Not at all.
    Lost,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct SessionTable {
    sessions: BTreeMap<SessionKey, SharedSession>,
    of_flow: BTreeMap<u64, BTreeSet<SessionKey>>,
    lost: BTreeSet<SessionKey>,
    lost_order: VecDeque<SessionKey>,
    wakes: VecDeque<u64>,
    histories: BTreeMap<HistoryKey, CallHistory>,
    /// The clients with a history, the oldest first.
    history_order: VecDeque<HistoryKey>,
}

#[derive(Debug)]
enum SharedSession {
    Alone {
        flow: u64,
        /// Something was done ahead that only this flow can undo.
        is_exposed: bool,
    },
    Leaving {
        flow: u64,
        waiting: BTreeSet<u64>,
    },
    Together {
        flows: BTreeSet<u64>,
        /// Objects that fail, with the error of the write that failed.
        failed: BTreeMap<u32, WriteFailure>,
        /// Transfers of which the client has still to take answers, with the flow that has them.
        sources: BTreeMap<u32, u64>,
        /// Events that wait for the session's next answer with room, on any of its flows.
        events: VecDeque<Bytes>,
        /// The objects of the session. The flows share them: without a table's columns, a flow
        /// cannot put `events` in front of those in the table's rows.
        objects: SessionObjects,
    },
}

impl SessionTable {
    /// Returns the next flow to wake.
    pub fn poll_wake(&mut self) -> Option<u64> {
        self.wakes.pop_front()
    }

    /// A flow has ended.
    pub fn ended(&mut self, flow: u64) {
        for key in self.of_flow.remove(&flow).unwrap_or_default() {
            let is_lost = match self.sessions.get_mut(&key) {
                None => continue,
                Some(SharedSession::Alone { is_exposed, .. }) => *is_exposed,
                Some(SharedSession::Leaving {
                    flow: first,
                    waiting,
                }) if *first == flow => {
                    self.wakes.extend(std::mem::take(waiting));
                    true
                }
                Some(SharedSession::Leaving { waiting, .. }) => {
                    waiting.remove(&flow);
                    continue;
                }
                Some(SharedSession::Together { flows, sources, .. }) => {
                    flows.remove(&flow);
                    let is_lost = sources.values().any(|of| *of == flow);
                    if !is_lost && !flows.is_empty() {
                        continue;
                    }
                    is_lost
                }
            };
            self.sessions.remove(&key);
            if is_lost {
                self.lose(key);
            }
        }
    }

    fn lose(&mut self, key: SessionKey) {
        if self.lost.insert(key) {
            self.lost_order.push_back(key);
        }
        if self.lost_order.len() > LOST_MAX
            && let Some(oldest) = self.lost_order.pop_front()
        {
            self.lost.remove(&oldest);
        }
    }

    fn begin(&mut self, flow: u64, key: SessionKey) -> SessionUse {
        if self.lost.contains(&key) {
            return SessionUse::Lost;
        }
        let count = self.sessions.len();
        let own = self.of_flow.entry(flow).or_default();
        if !own.contains(&key) {
            if own.len() >= SESSIONS_OF_FLOW_MAX {
                return SessionUse::Lost;
            }
            let is_known = self.sessions.contains_key(&key);
            if !is_known && count >= SESSIONS_MAX {
                return SessionUse::Together;
            }
            own.insert(key);
        }
        match self.sessions.get_mut(&key) {
            None => {
                let alone = SharedSession::Alone {
                    flow,
                    is_exposed: false,
                };
                self.sessions.insert(key, alone);
                SessionUse::Alone
            }
            Some(
                SharedSession::Alone { flow: first, .. }
                | SharedSession::Leaving { flow: first, .. },
            ) if *first == flow => SessionUse::Alone,
            Some(session @ SharedSession::Alone { .. }) => {
                let SharedSession::Alone { flow: first, .. } = *session else {
                    return SessionUse::Wait;
                };
                *session = SharedSession::Leaving {
                    flow: first,
                    waiting: BTreeSet::from([flow]),
                };
                self.wakes.push_back(first);
                SessionUse::Wait
            }
            Some(SharedSession::Leaving { waiting, .. }) => {
                waiting.insert(flow);
                SessionUse::Wait
            }
            Some(SharedSession::Together { flows, .. }) => {
                flows.insert(flow);
                SessionUse::Together
            }
        }
    }

    /// The history of a client's calls.
    fn history(&mut self, key: HistoryKey) -> &mut CallHistory {
        if !self.histories.contains_key(&key) {
            if self.history_order.len() >= HISTORIES_MAX
                && let Some(oldest) = self.history_order.pop_front()
            {
                self.histories.remove(&oldest);
            }
            self.history_order.push_back(key);
        }
        self.histories.entry(key).or_default()
    }

    fn is_leaving(&self, flow: u64, key: SessionKey) -> bool {
        matches!(
            self.sessions.get(&key),
            Some(SharedSession::Leaving { flow: first, .. }) if *first == flow
        )
    }

    fn left(
        &mut self,
        flow: u64,
        key: SessionKey,
        failed: BTreeMap<u32, WriteFailure>,
        events: Vec<Bytes>,
        objects: SessionObjects,
    ) {
        let Some(session) = self.sessions.get_mut(&key) else {
            return;
        };
        let SharedSession::Leaving {
            flow: first,
            waiting,
        } = session
        else {
            return;
        };
        if *first != flow {
            return;
        }
        let mut flows = std::mem::take(waiting);
        self.wakes.extend(flows.iter().copied());
        flows.insert(flow);
        *session = SharedSession::Together {
            flows,
            failed,
            sources: BTreeMap::new(),
            events: events.into(),
            objects,
        };
    }
}

/// A flow's place in the table.
#[derive(Clone, Debug)]
pub struct SessionPlace {
    table: SharedHandle<SessionTable>,
    flow: u64,
    client: IpAddr,
    server: IpAddr,
}

impl SessionPlace {
    /// The place of a flow from a client to a server.
    #[must_use]
    pub fn new(
        table: SharedHandle<SessionTable>,
        flow: u64,
        client: IpAddr,
        server: IpAddr,
    ) -> Self {
        Self {
            table,
            flow,
            client,
            server,
        }
    }

    /// Records a call of the client at this position.
    pub(super) fn record(&self, position: &CallPosition, call: &AnsweredCall<'_>) {
        let key = (self.client, self.server);
        self.table
            .with(|table| table.history(key).record(position, call));
    }

    /// The call that the client is expected to make at this position.
    pub(super) fn expected(
        &self,
        position: &CallPosition,
        context: ContextHandle,
    ) -> Option<ExpectedCall> {
        let key = (self.client, self.server);
        self.table
            .with(|table| table.histories.get(&key)?.expected(position, context))
    }

    fn key(&self, context: ContextHandle) -> SessionKey {
        (self.server, context)
    }

    /// Asks before each call of a session.
    pub(super) fn begin(&self, context: ContextHandle) -> SessionUse {
        self.table
            .with(|table| table.begin(self.flow, self.key(context)))
    }

    /// True if this flow has to end its tactics on a session.
    pub(super) fn is_leaving(&self, context: ContextHandle) -> bool {
        self.table
            .with(|table| table.is_leaving(self.flow, self.key(context)))
    }

    /// This flow has ended its tactics. The objects in `failed` fail, and the client has not got
    /// these events.
    pub(super) fn left(
        &self,
        context: ContextHandle,
        failed: BTreeMap<u32, WriteFailure>,
        events: Vec<Bytes>,
        objects: SessionObjects,
    ) {
        self.table
            .with(|table| table.left(self.flow, self.key(context), failed, events, objects));
    }

    /// The objects of a session that several flows use.
    pub(super) fn objects(&self, context: ContextHandle) -> Option<SessionObjects> {
        self.table
            .with(|table| match table.sessions.get(&self.key(context)) {
                Some(SharedSession::Together { objects, .. }) => Some(objects.clone()),
                Some(SharedSession::Alone { .. } | SharedSession::Leaving { .. }) | None => None,
            })
    }

    /// Works on the events that wait for the next answer of a session that several flows use.
    pub(super) fn with_events<R>(
        &self,
        context: ContextHandle,
        work: impl FnOnce(&mut VecDeque<Bytes>) -> R,
    ) -> Option<R> {
        self.table
            .with(|table| match table.sessions.get_mut(&self.key(context)) {
                Some(SharedSession::Together { events, .. }) => Some(work(events)),
                Some(SharedSession::Alone { .. } | SharedSession::Leaving { .. }) | None => None,
            })
    }

    /// Records if something was done ahead that only this flow can undo.
    pub(super) fn set_exposed(&self, context: ContextHandle, value: bool) {
        self.table.with(|table| {
            if let Some(SharedSession::Alone { flow, is_exposed }) =
                table.sessions.get_mut(&self.key(context))
                && *flow == self.flow
            {
                *is_exposed = value;
            }
        });
    }

    /// The objects of a session that fail.
    pub(super) fn failed(&self, context: ContextHandle) -> BTreeMap<u32, WriteFailure> {
        self.table
            .with(|table| match table.sessions.get(&self.key(context)) {
                Some(SharedSession::Together { failed, .. }) => failed.clone(),
                Some(SharedSession::Alone { .. } | SharedSession::Leaving { .. }) | None => {
                    BTreeMap::new()
                }
            })
    }

    /// The client has released an object.
    pub(super) fn released(&self, context: ContextHandle, handle: u32) {
        self.table.with(|table| {
            if let Some(SharedSession::Together { failed, .. }) =
                table.sessions.get_mut(&self.key(context))
            {
                failed.remove(&handle);
            }
        });
    }

    /// Records the transfers of which this flow has answers that the client has still to take.
    pub(super) fn set_sources(&self, context: ContextHandle, handles: &BTreeSet<u32>) {
        self.table.with(|table| {
            if let Some(SharedSession::Together { sources, .. }) =
                table.sessions.get_mut(&self.key(context))
            {
                sources.retain(|handle, flow| *flow != self.flow || handles.contains(handle));
                sources.extend(handles.iter().map(|handle| (*handle, self.flow)));
            }
        });
    }

    /// The transfers of which another flow has answers.
    pub(super) fn sources_elsewhere(&self, context: ContextHandle) -> BTreeSet<u32> {
        self.table
            .with(|table| match table.sessions.get(&self.key(context)) {
                Some(SharedSession::Together { sources, .. }) => sources
                    .iter()
                    .filter(|(_, flow)| **flow != self.flow)
                    .map(|(handle, _)| *handle)
                    .collect(),
                Some(SharedSession::Alone { .. } | SharedSession::Leaving { .. }) | None => {
                    BTreeSet::new()
                }
            })
    }

    /// The session has ended at the server, as far as this flow used it alone.
    pub(super) fn disconnected(&self, context: ContextHandle) {
        let key = self.key(context);
        self.table.with(|table| {
            let is_own = matches!(
                table.sessions.get(&key),
                Some(SharedSession::Alone { flow, .. }) if *flow == self.flow
            );
            if is_own {
                table.sessions.remove(&key);
                if let Some(own) = table.of_flow.get_mut(&self.flow) {
                    own.remove(&key);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: ContextHandle = ContextHandle([5; 20]);

    fn places() -> (SharedHandle<SessionTable>, [SessionPlace; 3]) {
        let table = SharedHandle::new(SessionTable::default());
        let place = |flow| {
            SessionPlace::new(
                table.clone(),
                flow,
                [198, 18, 1, 2].into(),
                [198, 18, 2, 2].into(),
            )
        };
        (table.clone(), [1, 2, 3].map(place))
    }

    #[test]
    fn second_flow_waits_until_the_first_has_left() {
        let (table, [first, second, third]) = places();
        assert_eq!(first.begin(CONTEXT), SessionUse::Alone);
        assert_eq!(second.begin(CONTEXT), SessionUse::Wait);
        assert_eq!(third.begin(CONTEXT), SessionUse::Wait);
        assert_eq!(table.with(SessionTable::poll_wake), Some(1));
        assert_eq!(table.with(SessionTable::poll_wake), None);
        assert!(first.is_leaving(CONTEXT) && !second.is_leaving(CONTEXT));
        assert_eq!(first.begin(CONTEXT), SessionUse::Alone);
        first.left(
            CONTEXT,
            BTreeMap::from([(7, WriteFailure::Result(5))]),
            vec![Bytes::from_static(&[9])],
            SessionObjects::default(),
        );
        assert_eq!(table.with(SessionTable::poll_wake), Some(2));
        assert_eq!(table.with(SessionTable::poll_wake), Some(3));
        for place in [&first, &second, &third] {
            assert_eq!(place.begin(CONTEXT), SessionUse::Together);
            assert_eq!(
                place.failed(CONTEXT),
                BTreeMap::from([(7, WriteFailure::Result(5))])
            );
        }
        let taken = second.with_events(CONTEXT, |events| events.pop_front());
        assert_eq!(taken, Some(Some(Bytes::from_static(&[9]))));
        assert_eq!(first.with_events(CONTEXT, |events| events.len()), Some(0));
        second.released(CONTEXT, 7);
        assert!(first.failed(CONTEXT).is_empty());
        for flow in [1, 2, 3] {
            table.with(|table| table.ended(flow));
        }
        assert!(table.with(|table| table.sessions.is_empty() && table.of_flow.is_empty()));
    }

    #[test]
    fn session_of_ended_flow_is_lost_if_exposed() {
        for is_exposed in [false, true] {
            let (table, [first, second, _]) = places();
            first.begin(CONTEXT);
            first.set_exposed(CONTEXT, is_exposed);
            table.with(|table| table.ended(1));
            let expected = match is_exposed {
                true => SessionUse::Lost,
                false => SessionUse::Alone,
            };
            assert_eq!(second.begin(CONTEXT), expected);
        }
    }

    #[test]
    fn flow_that_ends_as_it_leaves_loses_the_session() {
        let (table, [first, second, _]) = places();
        first.begin(CONTEXT);
        second.begin(CONTEXT);
        table.with(SessionTable::poll_wake);
        table.with(|table| table.ended(1));
        assert_eq!(table.with(SessionTable::poll_wake), Some(2));
        assert_eq!(second.begin(CONTEXT), SessionUse::Lost);
    }

    #[test]
    fn sessions_of_a_flow_are_limited() {
        let (_, [first, ..]) = places();
        let context = |number: usize| {
            let mut handle = [0; 20];
            handle[..8].copy_from_slice(&(number as u64).to_le_bytes());
            ContextHandle(handle)
        };
        for number in 0..SESSIONS_OF_FLOW_MAX {
            assert_eq!(first.begin(context(number)), SessionUse::Alone);
        }
        assert_eq!(first.begin(context(SESSIONS_OF_FLOW_MAX)), SessionUse::Lost);
        assert_eq!(first.begin(context(0)), SessionUse::Alone);
    }
}
