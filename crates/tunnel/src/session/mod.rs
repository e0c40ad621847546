//! State machine of the session: one for each peer, over any number of links.
//!
//! `link` moves it from one link to the next, `incoming` applies frames, `outgoing` makes them. A
//! flow (`flow`) has two halves (`send`, `receive`); `schedule` selects the flow that sends next,
//! `liveness` watches the peer, `messages` carries messages between the engines, `resets` remembers
//! resets that a peer may have missed.
//!
//! Frames are never queued. A pending frame is a flag on its subject, and the frame is made when
//! the link has room. So it always has the newest content, and memory is bounded by the number of
//! flows. Frames travel on the link, in order, or in packets beside it, in any order and with
//! losses (`packets`), by a transport that `datagrams` agrees on with the peer. Packets continue
//! for a while when the link breaks (`linkless`).

mod datagrams;
mod flow;
mod incoming;
mod link;
mod linkless;
mod liveness;
mod messages;
mod outgoing;
mod packets;
mod path_selection;
mod receive;
mod resets;
mod schedule;
mod send;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use vocab::{ByteWriter, FlowId, NodeId, SeededRandom, Time};

use crate::credit::{CreditPool, KNOWN_WINDOW_LIMIT};
use crate::limits::{ACKNOWLEDGE_DELAY, FLOW_LIMIT, HELLO_BLOB_LIMIT, MESSAGE_BACKLOG_LIMIT};
use crate::transport::DatagramTransport;
use crate::wire::{FlowAck, ResetFrame, SessionFrame};
use crate::{
    FlowStatistics, LinkId, OpenAnswer, OpenError, OpenRequest, ResetReason, SessionConfig,
    SessionEvent, SessionStatistics,
};
pub use packets::CarriedFrame;

use flow::{FlowOrigin, SessionFlow};
use link::{LinkPhase, ResumeOut, SessionLink};
use liveness::{LivenessTimeout, PeerLiveness, PeerPresence};
use messages::MessageQueue;
use receive::WindowContext;
use resets::RecentResets;
use schedule::FlowScheduler;
use send::FinishState;

/// Less room than this is little: `Writable` is said when there is that much again.
const LITTLE_ROOM: u64 = 16 << 10;

/// Limit for the peer's total credit that is used, as a multiple of this side's total credit.
const MOST_TOTAL_CREDIT: u64 = 4;

/// One peer, over all the links that come and go.
///
/// After every call, drain [`Self::poll_event`] and ask [`Self::wants_transmit`] and
/// [`Self::poll_timeout`]. Calls about a flow that is not open do nothing: the event that
/// ended it may still be waiting.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    local: NodeId,
    peer: NodeId,
    random: SeededRandom,
    now: Time,
    incarnation: [u8; 16],
    peer_incarnation: Option<[u8; 16]>,
    blob: Bytes,
    peer_blob: Option<Bytes>,
    link: Option<SessionLink>,
    /// Datagram path of a lost link, while the peer may still have to be told of its end.
    closing: Option<(LinkId, Box<DatagramTransport<Vec<CarriedFrame>>>)>,
    establishments: u64,
    liveness: PeerLiveness,
    /// Boxed: a tree that grows at its end leaves almost half of the room in its nodes empty.
    flows: BTreeMap<FlowId, Box<SessionFlow>>,
    /// The id our next flow gets.
    next_id: u64,
    /// Above every id that the peer has used.
    peer_next: u64,
    /// Ids below that whose Open was overtaken or will never come.
    unopened: BTreeSet<FlowId>,
    peer_flows: usize,
    peer_version: u16,
    /// The greatest window that a flow has reached here.
    reached_window: u64,
    peer_flow_window: u64,
    peer_total_window: u64,
    leaving: bool,
    peer_leaving: bool,
    drained_told: bool,
    control: PendingControl,
    acknowledged_at: Option<Time>,
    schedule: FlowScheduler,
    /// Flows that wait for the total credit alone.
    stalled: BTreeSet<FlowId>,
    /// Flows that get an event when messages have room.
    message_waiters: BTreeSet<FlowId>,
    /// True while data is sent again after a change of links.
    repeating: bool,
    messages: MessageQueue,
    resets: RecentResets,
    /// Over all flows: sent and not consumed by the peer.
    outstanding: u64,
    /// Over all flows: written and not consumed by the peer.
    committed: u64,
    /// Over all flows: received and not consumed here.
    unconsumed: u64,
    /// Over all flows: pieces that arrived behind gaps.
    held_pieces: usize,
    /// Over all flows: bytes of memory that they take.
    flow_memory: usize,
    /// Total credit that came back since waiting writers were last looked for.
    freed: u64,
    counters: SessionStatistics,
    events: VecDeque<SessionEvent>,
}

/// Pending control frames of the current link, apart from data. Dropped with the link.
#[derive(Debug, Default)]
struct PendingControl {
    pong: Option<u32>,
    go_away: bool,
    opens: BTreeSet<FlowId>,
    answers: BTreeSet<FlowId>,
    resets: BTreeMap<FlowId, ResetReason>,
    acknowledgements: BTreeSet<FlowId>,
    /// Last acknowledgements of flows that have closed since.
    last_acknowledgements: BTreeMap<FlowId, FlowAck>,
    message_ack: bool,
    acknowledge_at: Option<Time>,
    acknowledge_now: bool,
}

impl PendingControl {
    fn note_acknowledgement(&mut self, now: Time) {
        self.acknowledge_at.get_or_insert(now + ACKNOWLEDGE_DELAY);
    }
}

impl Session {
    /// A session that has not met its peer yet. `random` must be seeded from the system: the
    /// nonce that tells this life of the node from the one before comes from it.
    #[must_use]
    pub fn new(
        config: SessionConfig,
        local: NodeId,
        peer: NodeId,
        mut random: SeededRandom,
        now: Time,
    ) -> Self {
        let mut incarnation = [0; 16];
        random.fill(&mut incarnation);
        Self {
            config,
            local,
            peer,
            random,
            now,
            incarnation,
            peer_incarnation: None,
            blob: Bytes::new(),
            peer_blob: None,
            link: None,
            closing: None,
            establishments: 0,
            liveness: PeerLiveness::new(),
            flows: BTreeMap::new(),
            next_id: u64::from(local > peer),
            peer_next: 0,
            unopened: BTreeSet::new(),
            peer_flows: 0,
            peer_version: 0,
            reached_window: 0,
            peer_flow_window: 0,
            peer_total_window: 0,
            leaving: false,
            peer_leaving: false,
            drained_told: false,
            control: PendingControl::default(),
            acknowledged_at: None,
            schedule: FlowScheduler::default(),
            stalled: BTreeSet::new(),
            message_waiters: BTreeSet::new(),
            repeating: false,
            messages: MessageQueue::default(),
            resets: RecentResets::default(),
            outstanding: 0,
            committed: 0,
            unconsumed: 0,
            held_pieces: 0,
            flow_memory: 0,
            freed: 0,
            counters: SessionStatistics::default(),
            events: VecDeque::new(),
        }
    }

    /// Sets what the peer's engine gets as [`SessionEvent::Hello`]: with the next link, and at once
    /// when one is up.
    ///
    /// # Panics
    /// When it is longer than [`HELLO_BLOB_LIMIT`].
    pub fn set_hello_blob(&mut self, blob: Bytes) {
        assert!(blob.len() <= HELLO_BLOB_LIMIT, "the engine keeps it short");
        if self.blob == blob {
            return;
        }
        self.blob = blob;
        if let Some(link) = &mut self.link {
            link.hello_waiting = true;
        }
    }

    /// The next event; to be called until there is none.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Returns the time at which to call [`Self::handle_timeout`]; `None` for never.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let mut next = self.liveness.timeout(&self.config);
        if let Some(link) = &self.link {
            next = next.min(link.timeout());
        }
        if let Some(at) = self.datagram_timeout() {
            next = next.min(at);
        }
        if let Some(at) = self.control.acknowledge_at
            && !self.acknowledgements_due()
        {
            next = next.min(at);
        }
        (next != Time::NEVER).then_some(next)
    }

    /// Handles expired timers: pings, acknowledgements, silence, giving up.
    pub fn handle_timeout(&mut self, now: Time) {
        self.advance(now);
        self.drop_timed_out_link();
        self.handle_datagram_timeout();
        while let Some(due) = self
            .liveness
            .handle_timeout(self.now, &self.config, &mut self.random)
        {
            match due {
                LivenessTimeout::Silent => self.events.push_back(SessionEvent::Silent),
                LivenessTimeout::GiveUp => {
                    let flows = self.flows.len();
                    self.events.push_back(SessionEvent::PeerLost { flows });
                    self.lose_all(ResetReason::PeerLost);
                }
            }
        }
    }

    /// Opens a flow. Data written next travels right behind the open. Without a link it waits for
    /// the next one, as open flows do.
    ///
    /// # Errors
    /// When the connection should be bypassed instead.
    pub fn open(&mut self, now: Time, open: OpenRequest) -> Result<FlowId, OpenError> {
        self.advance(now);
        if self.establishments == 0 || self.liveness.presence() == PeerPresence::GivenUp {
            return Err(OpenError::NotConnected);
        }
        if self.leaving {
            return Err(OpenError::Leaving);
        }
        if self.peer_leaving {
            return Err(OpenError::PeerLeaving);
        }
        if self.flows.len() - self.peer_flows >= FLOW_LIMIT {
            return Err(OpenError::TooManyFlows);
        }
        let id = FlowId(self.next_id);
        self.next_id += 2;
        self.begin_flow(id, FlowOrigin::Ours, open);
        self.counters.opened_flows += 1;
        if self.link.is_some() {
            self.control.opens.insert(id);
        }
        Ok(id)
    }

    fn begin_flow(&mut self, id: FlowId, origin: FlowOrigin, open: OpenRequest) {
        let window = self.config.flow_window.bytes();
        let mut flow = SessionFlow::new(self.now, origin, open, self.peer_flow_window, window);
        flow.receive
            .take_over(self.reached_window.min(KNOWN_WINDOW_LIMIT));
        self.flows.insert(id, Box::new(flow));
    }

    /// Answers a flow that the peer opened, once. After [`OpenAnswer::Failed`] the flow carries
    /// nothing, and [`SessionEvent::Closed`] comes when the peer knows.
    pub fn answer(&mut self, flow: FlowId, answer: OpenAnswer) {
        let linked = self.link.is_some();
        let Some(state) = self.flows.get_mut(&flow) else {
            return;
        };
        if state.origin == FlowOrigin::Theirs && state.answer.is_none() {
            state.answer = Some(answer);
            if linked {
                self.control.answers.insert(flow);
            }
        }
    }

    /// Encoded bytes that may be written now: what the limit on unsent bytes, the flow's
    /// credit and the total credit allow. When it is little, [`SessionEvent::Writable`] follows.
    #[must_use]
    pub fn writable(&self, flow: FlowId) -> usize {
        let Some(state) = self.flows.get(&flow) else {
            return 0;
        };
        let room = self.room(state);
        if room < LITTLE_ROOM {
            state.send.wants_room.set(true);
        }
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Largest size of a record that is begun now, in encoded bytes: the limit of the flow's credit
    /// and of its part of the total credit. A record that is longer by at most
    /// [`crate::credit::RECORD`] can still be completed.
    #[must_use]
    pub fn record_room(&self, flow: FlowId) -> usize {
        let room = self.flows.get(&flow).map_or(0, |flow| {
            let pool = CreditPool::new(self.peer_total_window, self.committed);
            flow.send
                .credit()
                .min(pool.record_room(flow.send.holding()))
        });
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Appends to our direction of the flow. More than [`Self::writable`] is taken as well
    /// (the rest of a record), and waits here for the peer's credit.
    ///
    /// # Panics
    /// After [`Self::finish`].
    pub fn write(&mut self, flow: FlowId, bytes: Bytes) {
        let Some(state) = self.flows.get_mut(&flow) else {
            return;
        };
        if state.is_failed() || bytes.is_empty() {
            return;
        }
        assert_eq!(
            state.send.ending,
            FinishState::Open,
            "nothing after the end"
        );
        self.committed += bytes.len() as u64;
        state.send.write(bytes);
        state.send.note_blocked(self.now);
        self.account(flow);
        self.activate(flow);
    }

    /// Ends this side's direction cleanly after the written data.
    pub fn finish(&mut self, flow: FlowId) {
        let Some(state) = self.flows.get_mut(&flow) else {
            return;
        };
        if !state.is_failed() && state.send.ending == FinishState::Open {
            state.send.ending = FinishState::Wanted;
            self.activate(flow);
        }
    }

    /// Returns `true` if the peer knows of the flow, has consumed all written data and has seen the
    /// end of our direction, if it ended.
    ///
    /// [`SessionEvent::Answered`] and [`SessionEvent::Consumed`] report changes. Also `true` for a
    /// flow that is not open or was answered with [`OpenAnswer::Failed`].
    #[must_use]
    pub fn is_delivered(&self, flow: FlowId) -> bool {
        self.flows.get(&flow).is_none_or(|state| {
            let is_ended = match state.send.ending {
                FinishState::Open | FinishState::Acknowledged => true,
                FinishState::Wanted | FinishState::Sent => false,
            };
            state.is_failed()
                || is_ended && !state.needs_open() && state.send.consumed() == state.send.written()
        })
    }

    /// Ends both directions at once; no event follows. A flow that was answered with
    /// [`OpenAnswer::Failed`] ends by that answer.
    pub fn reset(&mut self, flow: FlowId, reason: ResetReason) {
        if self.flows.get(&flow).is_none_or(|flow| flow.is_failed()) {
            return;
        }
        self.remove(flow);
        self.counters.reset_flows += 1;
        self.send_reset(flow, reason);
        self.check_drained();
    }

    /// Ends all flows at once, because the peer holds none of them any more. Each gets an [`SessionEvent::Reset`].
    pub fn reset_all(&mut self, now: Time, reason: ResetReason) {
        self.advance(now);
        self.lose_all(reason);
    }

    /// Returns `true` if the open of this node's flow may have reached the peer: it was handed to a
    /// link or put in a packet. Before that no other node executes it, and [`Self::reset`] ensures
    /// that none will.
    #[must_use]
    pub fn is_open_sent(&self, flow: FlowId) -> bool {
        (self.flows.get(&flow)).is_none_or(|flow| flow.is_open_sent)
    }

    /// Ends all flows at once, for good. Gives the frames that tell the peer so on the present link, which is to
    /// be closed behind them; `None` when there is no link that could take them. No event follows.
    pub fn take_leave(&mut self, now: Time, reason: ResetReason) -> Option<Bytes> {
        self.advance(now);
        self.lose_all(reason);
        self.events.clear();
        if !self.is_up() {
            return None;
        }
        let mut out = ByteWriter::new();
        for (flow, reason) in std::mem::take(&mut self.control.resets) {
            SessionFrame::Reset(ResetFrame { flow, reason }).emit(&mut out);
        }
        Some(out.finish())
    }

    /// The next received bytes, at most `max`.
    pub fn read(&mut self, flow: FlowId, max: usize) -> Option<Bytes> {
        let state = self.flows.get_mut(&flow)?;
        let bytes = state.receive.read(max);
        if !state.receive.has_unread() {
            state.receive.readable_told = false;
            self.tell_finish(flow);
        }
        self.account(flow);
        bytes
    }

    /// Records that the decoder has consumed everything below `offset` of the received bytes. The
    /// peer is told and gets the credit back. A flow closes only when this has reached its end.
    pub fn consumed(&mut self, flow: FlowId, offset: u64) {
        let around = self.surroundings();
        let Some(state) = self.flows.get_mut(&flow) else {
            return;
        };
        let freed = state.receive.consume(offset, &around);
        self.reached_window = self.reached_window.max(state.receive.window());
        if freed > 0 {
            self.unconsumed -= freed;
            self.note_progress(flow);
            self.close_if_complete(flow);
        }
    }

    /// Returns `true` if a message of any length may be sent and much room remains for messages of
    /// other flows.
    ///
    /// Otherwise [`SessionEvent::Writable`] follows once there is room. A caller that can wait asks
    /// before each message, so that no flow is reset because many flows send at once.
    pub fn has_message_room(&mut self, flow: FlowId) -> bool {
        let has_room = self.messages.backlog() <= MESSAGE_BACKLOG_LIMIT / 2;
        if !has_room && self.flows.contains_key(&flow) {
            self.message_waiters.insert(flow);
        }
        has_room
    }

    /// Sends a message to the peer's engine: no credit, in order over all flows, not lost with
    /// a link. When it is above [`crate::limits::MESSAGE_LIMIT`] or too much is waiting, the
    /// flow is reset instead on both sides ([`ResetReason::Limit`]).
    pub fn send_message(&mut self, flow: FlowId, kind: u8, bytes: Bytes) {
        if self.flows.contains_key(&flow) && !self.messages.push(flow, kind, bytes) {
            self.reset(flow, ResetReason::Limit);
            self.events.push_back(SessionEvent::Reset {
                flow,
                reason: ResetReason::Limit,
            });
        }
    }

    /// Takes and opens no new flows from here on; [`SessionEvent::Drained`] when none is left.
    pub fn goaway(&mut self, now: Time) {
        self.advance(now);
        if self.leaving {
            return;
        }
        self.leaving = true;
        self.control.go_away = self.is_up();
        self.check_drained();
    }

    /// Returns `true` if a link is attached and both sides have agreed on it, or if packets
    /// continue without it.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.link
            .as_ref()
            .is_some_and(|link| link.phase == LinkPhase::Established)
    }

    /// Returns `true` if the peer was not heard for the silence timeout, or never.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        match self.liveness.presence() {
            PeerPresence::Heard => false,
            PeerPresence::Unmet
            | PeerPresence::Doubted
            | PeerPresence::Silent
            | PeerPresence::GivenUp => true,
        }
    }

    /// Flows open now.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Returns the counters of the session so far.
    #[must_use]
    pub fn statistics(&self) -> SessionStatistics {
        SessionStatistics {
            round_trip_latest: self.liveness.latest,
            round_trip_minimum: self.liveness.minimum,
            round_trip_smoothed: self.liveness.smoothed,
            flows: self.flows.len(),
            unsent_bytes: self.committed - self.outstanding,
            outstanding_bytes: self.outstanding,
            unconsumed_bytes: self.unconsumed,
            message_backlog_bytes: self.messages.backlog() as u64,
            ..self.counters.clone()
        }
    }

    /// Bytes of memory that the session takes beside a few hundred for each flow, about: what waits
    /// to be read, what the peer has not acknowledged, and messages.
    #[must_use]
    pub fn memory(&self) -> usize {
        let begun = self.link.as_ref().map_or(0, |link| link.begun.capacity());
        self.flow_memory + self.messages.memory() + begun
    }

    /// Memory of one flow within that total, in bytes.
    #[must_use]
    pub fn flow_memory(&self, flow: FlowId) -> usize {
        self.flows.get(&flow).map_or(0, |flow| flow.accounted)
    }

    /// Returns the counters of a flow so far; `None` when it is not open.
    #[must_use]
    pub fn flow_statistics(&self, flow: FlowId) -> Option<FlowStatistics> {
        self.flows
            .get(&flow)
            .map(|state| state.statistics(self.now))
    }

    /// Brings the total of memory up to date with a flow.
    fn account(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(&id) {
            let memory = flow.memory();
            self.flow_memory = self.flow_memory + memory - flow.accounted;
            flow.accounted = memory;
        }
    }

    /// Time never runs backwards here, whatever a shell says.
    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    fn surroundings(&self) -> WindowContext {
        WindowContext {
            now: self.now,
            round_trip: self.round_trip(),
            window_limit: self.config.flow_window_limit.bytes(),
            total_free: self
                .config
                .total_window
                .bytes()
                .saturating_sub(self.unconsumed),
        }
    }

    /// Round-trip time for the size of windows: that of packets where frames travel in them.
    fn round_trip(&self) -> Option<Duration> {
        let transport = self
            .link
            .as_ref()
            .and_then(|link| link.datagrams.transport());
        transport
            .filter(|_| self.is_in_packets())
            .and_then(DatagramTransport::round_trip)
            .or(self.liveness.smoothed)
    }

    fn room(&self, flow: &SessionFlow) -> u64 {
        if flow.send.ending != FinishState::Open || flow.is_failed() {
            return 0;
        }
        let unsent = self.config.unsent_limit.bytes();
        unsent
            .saturating_sub(flow.send.unsent())
            .min(self.credit(flow))
    }

    /// Part of the peer's total credit that is used. Unacknowledged data is kept in memory here, so
    /// it is limited whatever the peer gives.
    fn total_credit(&self, window: u64) -> u64 {
        window.min(MOST_TOTAL_CREDIT * self.config.total_window.bytes())
    }

    /// Bytes that the flow's credit and its part of the total credit allow.
    fn credit(&self, flow: &SessionFlow) -> u64 {
        let pool = CreditPool::new(self.peer_total_window, self.committed);
        flow.send.credit().min(pool.room(flow.send.holding()))
    }

    /// Puts a flow that has something to send where the schedule finds it.
    fn activate(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(&id)
            && (flow.send.sendable() > 0 || flow.send.finish_due())
        {
            self.repeating |= flow.send.repeatable() > 0;
            self.schedule.activate(self.now, id, &mut flow.turn);
        }
    }

    /// Says `Writable` to who waits for it, when it is true.
    fn check_room(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(&id) else {
            return;
        };
        if !flow.send.wants_room.get() {
            return;
        }
        let room = self.room(flow);
        let idle = flow.send.unsent() == 0;
        if room >= LITTLE_ROOM.min(self.config.unsent_limit.bytes()) || (idle && room > 0) {
            flow.send.wants_room.set(false);
            self.events.push_back(SessionEvent::Writable { flow: id });
        }
    }

    /// Lets flows that waited for message room continue after messages were acknowledged.
    fn release_messages(&mut self) {
        if self.messages.backlog() > MESSAGE_BACKLOG_LIMIT / 4 {
            return;
        }
        for flow in std::mem::take(&mut self.message_waiters) {
            self.events.push_back(SessionEvent::Writable { flow });
        }
    }

    /// Lets flows that waited for total credit continue after credit was returned.
    fn release_stalled(&mut self) {
        for id in std::mem::take(&mut self.stalled) {
            self.activate(id);
        }
        if self.wakes_writers() {
            let ids: Vec<FlowId> = self.flows.keys().copied().collect();
            for id in ids {
                self.check_room(id);
            }
        }
    }

    /// Returns `true` if writers may be waiting for the total credit.
    ///
    /// While half of it was left before the newly freed bytes, no writer waits for it alone. The
    /// check looks at all flows, so it runs for every 64th of the credit, and more often only when
    /// nearly nothing is left.
    fn wakes_writers(&mut self) -> bool {
        let window = self.peer_total_window;
        let left = CreditPool::new(window, self.committed).left();
        let was_left = left.saturating_sub(self.freed);
        let step = if was_left < window / 8 {
            LITTLE_ROOM
        } else {
            window / 64
        };
        // Where nothing was left, a writer may have nothing under way that would wake it.
        let was_empty = was_left < LITTLE_ROOM && self.freed > 0;
        if was_left < window / 2 && self.freed < step && !was_empty {
            return false;
        }
        self.freed = 0;
        was_left < window / 2
    }

    /// Takes a flow out of everything but the schedule, which finds out by itself.
    fn remove(&mut self, id: FlowId) {
        let Some(flow) = self.flows.remove(&id) else {
            return;
        };
        self.outstanding -= flow.send.outstanding();
        self.committed -= flow.committed();
        self.freed += flow.committed();
        self.unconsumed -= flow.receive.unconsumed();
        self.held_pieces -= flow.receive.pieces();
        self.flow_memory -= flow.accounted;
        self.peer_flows -= usize::from(flow.origin == FlowOrigin::Theirs);
        self.control.opens.remove(&id);
        self.control.answers.remove(&id);
        self.control.acknowledgements.remove(&id);
        self.stalled.remove(&id);
        self.message_waiters.remove(&id);
        let Self {
            schedule, flows, ..
        } = self;
        schedule.forget_removed(|id| flows.contains_key(&id), flows.len());
        self.release_stalled();
    }

    /// Closes a flow that has nothing left to send, receive or decode.
    fn close_if_complete(&mut self, id: FlowId) {
        let around = self.surroundings();
        let Some(flow) = self.flows.get_mut(&id).filter(|flow| flow.is_complete()) else {
            return;
        };
        // While our Resume is not out, the peer hears of the flow in no other way either.
        let untold = self
            .link
            .as_ref()
            .is_some_and(|link| link.resume_out != ResumeOut::Done);
        if untold || self.control.acknowledgements.contains(&id) {
            self.control.note_acknowledgement(self.now);
            let ack = flow.receive.acknowledgement(id, &around);
            self.control.last_acknowledgements.insert(id, ack);
        }
        // A flow that has ended in good order was answered, even if its end overtook the answer.
        if flow.origin == FlowOrigin::Ours && flow.answer.is_none() {
            let answer = OpenAnswer::Connected;
            self.events
                .push_back(SessionEvent::Answered { flow: id, answer });
        }
        self.remove(id);
        self.events.push_back(SessionEvent::Closed { flow: id });
        self.check_drained();
    }

    /// The peer as it was is gone, and every flow with it.
    fn lose_all(&mut self, reason: ResetReason) {
        let lost = std::mem::take(&mut self.flows);
        self.peer_flows = 0;
        (self.outstanding, self.committed, self.unconsumed) = (0, 0, 0);
        self.held_pieces = 0;
        self.flow_memory = 0;
        self.stalled.clear();
        self.message_waiters.clear();
        self.schedule = FlowScheduler::default();
        self.control.opens.clear();
        self.control.answers.clear();
        self.control.acknowledgements.clear();
        for (flow, state) in lost {
            self.send_reset(flow, reason);
            if state.is_failed() {
                self.events.push_back(SessionEvent::Closed { flow });
            } else {
                self.counters.reset_flows += 1;
                self.events.push_back(SessionEvent::Reset { flow, reason });
            }
        }
        self.check_drained();
    }

    fn check_drained(&mut self) {
        if self.leaving && self.flows.is_empty() && !self.drained_told {
            self.drained_told = true;
            self.events.push_back(SessionEvent::Drained);
        }
    }
}

#[cfg(test)]
mod datagram_tests;
#[cfg(test)]
mod tests;
