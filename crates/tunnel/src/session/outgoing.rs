//! Frames that are sent: greetings, then control frames, then acknowledgements, then data in turn.
//!
//! On a link frames follow each other as they are made. A packet has a limited length, and its
//! frames are recorded ([`CarriedFrame`]) until the packet is acknowledged or lost (`packets.rs`).
//! A [`FrameBundle`] is either.

use bytes::Bytes;
use path::INITIAL_RTT;
use vocab::{ByteWriter, FlowId, Time};

use super::Session;
use super::link::{LinkPhase, ResumeOut, SessionLink};
use super::liveness::{PingPurpose, stamp_us};
use super::packets::CarriedFrame;
use super::path_selection::{BacklogState, TrialPiece};
use super::schedule::FlowBacklog;
use super::send::FinishState;
use crate::LinkId;
use crate::limits::{ACKNOWLEDGE_SPACING, DATA_LIMIT, MESSAGE_PIECE};
use crate::transport::LEAST_FRAMES_ROOM;
use crate::wire::{
    AnswerFrame, FinishFrame, FlowAck, GoAway, MessageAck, OpenFrame, PingFrame, PongFrame,
    ResetFrame, SessionFrame, data_header,
};

/// Minimum length to which a data frame is cut, on a link or in a packet; shorter space in a packet
/// stays empty.
const LEAST_DATA: usize = 1 << 10;
const LEAST_DATA_IN_PACKET: usize = 64;

/// Largest size of a data frame's length, type, flow and offset, and of the flow's end behind it,
/// in bytes.
const HEADER_ROOM: usize = 40;

// A piece that did not fit would wait for the acknowledgement beside it to leave.
const _: () = assert!(MESSAGE_PIECE + HEADER_ROOM <= LEAST_FRAMES_ROOM);

/// A frame that carries neither data nor a message, at most: an Open with two IPv6 addresses.
const CONTROL_ROOM: usize = 80;

/// Frames on their way to the caller.
pub(super) struct FrameBundle<'a> {
    out: &'a mut ByteWriter,
    max: usize,
    /// Record of the frames in a packet.
    carried: Option<&'a mut Vec<CarriedFrame>>,
}

impl<'a> FrameBundle<'a> {
    /// For a link: about `max` bytes.
    fn for_link(out: &'a mut ByteWriter, max: usize) -> Self {
        let carried = None;
        Self { out, max, carried }
    }

    /// For a packet: no more than `max` bytes.
    fn for_packet(out: &'a mut ByteWriter, max: usize, carried: &'a mut Vec<CarriedFrame>) -> Self {
        let carried = Some(carried);
        Self { out, max, carried }
    }

    fn is_packet(&self) -> bool {
        self.carried.is_some()
    }

    fn left(&self) -> usize {
        self.max.saturating_sub(self.out.len())
    }

    /// Returns `true` if one more control frame fits.
    fn has_room(&self) -> bool {
        self.left() >= if self.is_packet() { CONTROL_ROOM } else { 1 }
    }

    fn note(&mut self, carried: impl FnOnce() -> CarriedFrame) {
        if let Some(list) = &mut self.carried {
            list.push(carried());
        }
    }
}

impl Session {
    /// The link that [`Self::poll_transmit`] has frames for now; to be asked after every call.
    #[must_use]
    pub fn wants_transmit(&self) -> Option<LinkId> {
        let link = self.link.as_ref().filter(|link| link.broken_at.is_none())?;
        let greeting = link.hello_waiting || resume_waiting(link) || offer_waiting(link);
        let wants = greeting
            || self.control.pong.is_some() && link.phase == LinkPhase::Resuming
            || self.travels_by(FrameCarrier::Link) && self.has_frames()
            || self.tries_link() && !self.schedule.is_empty();
        wants.then_some(link.id)
    }

    /// Returns `true` if [`Self::poll_packet`] has frames now. Ask after every call.
    #[must_use]
    pub fn wants_packet(&self) -> bool {
        self.travels_by(FrameCarrier::Packets) && self.has_frames()
    }

    /// Returns `true` if there is flow data to send now, beside control frames.
    #[must_use]
    pub fn has_data_to_send(&self) -> bool {
        !self.schedule.is_empty()
    }

    fn travels_by(&self, way: FrameCarrier) -> bool {
        let packets = if self.is_in_packets() {
            FrameCarrier::Packets
        } else {
            FrameCarrier::Link
        };
        self.is_up() && way == packets
    }

    /// Returns `true` if data may use the link although frames travel in packets.
    fn tries_link(&self) -> bool {
        let link = self.link.as_ref();
        self.travels_by(FrameCarrier::Packets)
            && link.is_some_and(|link| link.datagrams.selection.is_trial())
    }

    fn has_frames(&self) -> bool {
        self.control.pong.is_some()
            || self.control_waiting()
            || self.acknowledgements_due()
            || !self.schedule.is_empty()
    }

    /// Takes frames to send on the link: complete frames in one piece, about `max` bytes (at most
    /// one control frame more). Call it whenever the link is writable and has little waiting; later
    /// frames cannot overtake the ones it has taken.
    pub fn poll_transmit(&mut self, now: Time, link: LinkId, max: usize) -> Option<Bytes> {
        self.advance(now);
        let current = self.link.as_ref().filter(|current| current.id == link)?;
        if max == 0 || current.broken_at.is_some() {
            return None;
        }
        let capacity = if current.phase == LinkPhase::Established && !self.schedule.is_empty() {
            max.min(self.waiting_estimate()) + HEADER_ROOM
        } else {
            256
        };
        let mut out = ByteWriter::with_capacity(capacity);
        let mut bundle = FrameBundle::for_link(&mut out, max);
        self.put_greeting(&mut bundle);
        let greeted = self.link.as_ref().is_some_and(|link| !resume_waiting(link));
        if greeted && self.travels_by(FrameCarrier::Link) {
            self.put_frames(&mut bundle);
        } else if greeted && self.tries_link() {
            self.put_data(&mut bundle);
            self.put_mark(&mut bundle);
        }
        self.counters.sent_bytes += out.len() as u64;
        (!out.is_empty()).then(|| out.finish())
    }

    /// Appends whole frames to a packet, at most `room` bytes, and to `carried` what they were.
    /// The caller hands that back, to [`Self::packet_arrived`] or to [`Self::packet_lost`].
    pub fn poll_packet(
        &mut self,
        now: Time,
        room: usize,
        out: &mut ByteWriter,
        carried: &mut Vec<CarriedFrame>,
    ) {
        self.advance(now);
        if self.travels_by(FrameCarrier::Packets) {
            let before = out.len();
            let mut bundle = FrameBundle::for_packet(out, before + room, carried);
            self.put_frames(&mut bundle);
            self.counters.sent_bytes += (out.len() - before) as u64;
        }
    }

    fn put_frames(&mut self, bundle: &mut FrameBundle<'_>) {
        if bundle.has_room()
            && let Some(stamp_us) = self.control.pong.take()
        {
            self.put(&SessionFrame::Pong(PongFrame { stamp_us }), bundle);
            bundle.note(|| CarriedFrame::Pong);
        }
        self.put_control(bundle);
        self.put_acknowledgements(bundle);
        if !self.control_waiting() || bundle.is_packet() {
            self.put_data(bundle);
        }
    }

    /// Bytes that a call could fill at most, so that a short frame does not hold a long buffer.
    fn waiting_estimate(&self) -> usize {
        let unsent = self.committed - self.outstanding;
        let again = if self.repeating { usize::MAX / 2 } else { 0 };
        (unsent as usize)
            .saturating_add(again)
            .saturating_add((self.schedule.len() + 8) * HEADER_ROOM)
    }

    fn put(&mut self, frame: &SessionFrame, bundle: &mut FrameBundle<'_>) {
        self.counters.sent_frames += 1;
        frame.emit(bundle.out);
    }

    fn put_greeting(&mut self, bundle: &mut FrameBundle<'_>) {
        if self.link.as_ref().is_some_and(|link| link.hello_waiting) {
            let hello = self.hello();
            self.put(&hello, bundle);
            if let Some(link) = &mut self.link {
                link.hello_waiting = false;
            }
        }
        while bundle.left() > 0 && self.link.as_ref().is_some_and(resume_waiting) {
            let Some(resume) = self.next_resume() else {
                return;
            };
            self.put(&resume, bundle);
        }
        if let Some(link) = self.link.as_mut().filter(|link| offer_waiting(link))
            && let Some(offer) = link.datagrams.offer()
        {
            self.put(&SessionFrame::DatagramOffer(offer), bundle);
        }
        let resuming = self
            .link
            .as_ref()
            .is_some_and(|link| link.phase == LinkPhase::Resuming);
        if resuming && let Some(stamp_us) = self.control.pong.take() {
            self.put(&SessionFrame::Pong(PongFrame { stamp_us }), bundle);
        }
    }

    fn control_waiting(&self) -> bool {
        let control = &self.control;
        control.go_away
            || !control.resets.is_empty()
            || !control.opens.is_empty()
            || !control.answers.is_empty()
            || self.liveness.ping_waiting()
            || self.messages.is_waiting()
    }

    fn put_control(&mut self, bundle: &mut FrameBundle<'_>) {
        if bundle.has_room() && self.liveness.ping_waiting() {
            self.put_ping(bundle);
        }
        if bundle.has_room() && std::mem::take(&mut self.control.go_away) {
            self.put(&SessionFrame::GoAway(GoAway), bundle);
            bundle.note(|| CarriedFrame::GoAway);
        }
        while bundle.has_room()
            && let Some((flow, reason)) = self.control.resets.pop_first()
        {
            self.put(&SessionFrame::Reset(ResetFrame { flow, reason }), bundle);
            bundle.note(|| CarriedFrame::Reset(flow, reason));
        }
        // Opens in rising order, because on a link ids below the highest seen count as closed.
        while bundle.has_room()
            && let Some(id) = self.control.opens.pop_first()
        {
            self.put_open(id, bundle);
        }
        while bundle.has_room()
            && let Some(id) = self.control.answers.pop_first()
        {
            if let Some(answer) = self.flows.get(&id).and_then(|flow| flow.answer) {
                self.put(
                    &SessionFrame::Answer(AnswerFrame { flow: id, answer }),
                    bundle,
                );
                bundle.note(|| CarriedFrame::Answer(id));
            }
        }
        loop {
            let room = match bundle.is_packet() {
                // A message may have no bytes of its own: its header needs room all the same.
                true => bundle.left().checked_sub(HEADER_ROOM),
                false => bundle.has_room().then_some(MESSAGE_PIECE),
            };
            let Some(room) = room else { break };
            let Some(message) = self.messages.next_to_send(room) else {
                break;
            };
            let sequence = message.sequence;
            self.put(&SessionFrame::Message(message), bundle);
            bundle.note(|| CarriedFrame::Message(sequence));
        }
    }

    fn put_ping(&mut self, bundle: &mut FrameBundle<'_>) {
        let stamp_us = self.liveness.ping(self.now);
        self.put(&SessionFrame::Ping(PingFrame { stamp_us }), bundle);
        bundle.note(|| CarriedFrame::Ping);
    }

    /// Asks, behind what went on the link in a trial, whether it is there.
    fn put_mark(&mut self, bundle: &mut FrameBundle<'_>) {
        let round_trip = self.round_trip().unwrap_or(INITIAL_RTT);
        let Some(link) = &mut self.link else {
            return;
        };
        let choice = &mut link.datagrams.selection;
        if choice.wants_mark(self.now, round_trip) {
            let stamp_us = stamp_us(self.now, PingPurpose::Mark);
            choice.marked(self.now, stamp_us);
            self.put(&SessionFrame::Ping(PingFrame { stamp_us }), bundle);
        }
    }

    fn put_open(&mut self, id: FlowId, bundle: &mut FrameBundle<'_>) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.is_open_sent = true;
            let open = flow.open.clone();
            self.put(&SessionFrame::Open(OpenFrame { flow: id, open }), bundle);
            bundle.note(|| CarriedFrame::Open(id));
        }
    }

    pub(super) fn acknowledgements_due(&self) -> bool {
        self.control.acknowledge_now || self.control.acknowledge_at.is_some_and(|at| at <= self.now)
    }

    /// Acknowledgements go when they are due, or along with what goes anyway.
    fn put_acknowledgements(&mut self, bundle: &mut FrameBundle<'_>) {
        let company = !bundle.out.is_empty() || !self.schedule.is_empty();
        let spaced = self
            .acknowledged_at
            .is_none_or(|last| self.now.since(last) >= ACKNOWLEDGE_SPACING);
        let ride_along = self.control.acknowledge_at.is_some() && company && spaced;
        if !self.acknowledgements_due() && !ride_along || !bundle.has_room() {
            return;
        }
        self.acknowledged_at = Some(self.now);
        if std::mem::take(&mut self.control.message_ack) {
            let next = self.messages.next_incoming();
            self.put(&SessionFrame::MessageAck(MessageAck { next }), bundle);
            bundle.note(|| CarriedFrame::MessageAck);
        }
        while bundle.has_room()
            && let Some((_, ack)) = self.control.last_acknowledgements.pop_first()
        {
            self.put_ack(ack, bundle);
            bundle.note(|| CarriedFrame::LastAck(Box::new(ack)));
        }
        let around = self.surroundings();
        while bundle.has_room()
            && let Some(id) = self.control.acknowledgements.pop_first()
        {
            if let Some(flow) = self.flows.get_mut(&id) {
                let ack = flow.receive.acknowledgement(id, &around);
                self.put_ack(ack, bundle);
                bundle.note(|| CarriedFrame::Ack(id));
            }
        }
        let all_out = self.control.acknowledgements.is_empty()
            && self.control.last_acknowledgements.is_empty();
        self.control.acknowledge_now = !all_out;
        if all_out {
            self.control.acknowledge_at = None;
        }
    }

    fn put_ack(&mut self, ack: FlowAck, bundle: &mut FrameBundle<'_>) {
        self.counters.sent_acknowledgements += 1;
        self.put(&SessionFrame::Ack(ack), bundle);
    }

    fn put_data(&mut self, bundle: &mut FrameBundle<'_>) {
        let before = self.counters.sent_data_bytes;
        while let Some(id) = self.schedule.next() {
            let enough = if bundle.is_packet() {
                bundle.left() >= LEAST_DATA_IN_PACKET + HEADER_ROOM + CONTROL_ROOM
            } else {
                bundle.left() >= LEAST_DATA || bundle.out.is_empty()
            };
            if !enough || !self.put_turn(id, bundle) {
                break;
            }
        }
        if self.schedule.is_empty() {
            self.repeating = false;
        }
        let sent = self.counters.sent_data_bytes > before;
        let left = if !self.schedule.is_empty() {
            BacklogState::Data
        } else if self.committed > self.outstanding {
            BacklogState::Credit
        } else {
            BacklogState::Nothing
        };
        if let Some(link) = self.link.as_mut().filter(|_| sent) {
            link.datagrams.selection.sent(self.now, left);
        }
        // In a trial the link's round trip is not what is asked for.
        let is_usual = bundle.is_packet() || self.travels_by(FrameCarrier::Link);
        if sent && is_usual && self.liveness.refresh_due(self.now) && bundle.has_room() {
            self.put_ping(bundle);
        }
    }

    /// Sends one frame of a flow, and its end if that comes next; `false` when the frame was
    /// cut short by the room that is left.
    fn put_turn(&mut self, id: FlowId, bundle: &mut FrameBundle<'_>) -> bool {
        // What was written had its part of the total credit then.
        let total = self.peer_total_window.saturating_sub(self.outstanding);
        if !self.flows.contains_key(&id) {
            self.schedule.gone(id);
            return true;
        }
        let is_trial = !bundle.is_packet() && self.is_in_packets();
        // On the link an Open counts as the end of all flows before it that were not opened there.
        if is_trial && self.flows.get(&id).is_some_and(|flow| flow.needs_open()) {
            return false;
        }
        let Some(flow) = self.flows.get(&id) else {
            return true;
        };
        // In a packet the bytes may overtake the flow's Open, or be all that arrives of the two.
        if bundle.is_packet() && flow.needs_open() {
            self.put_open(id, bundle);
            self.control.opens.remove(&id);
        }
        let room = if bundle.is_packet() {
            bundle.left().saturating_sub(HEADER_ROOM)
        } else {
            bundle.left().max(1)
        };
        let Some(flow) = self.flows.get_mut(&id) else {
            return true;
        };
        let allowance = self.schedule.allowance(&mut flow.turn);
        let by_total = flow.send.repeatable().saturating_add(total);
        let sendable = flow.send.sendable().min(by_total);
        let next = flow.send.next();
        let run = (next.end - next.start).min(sendable);
        let wanted = usize::try_from(run).map_or(allowance, |bytes| bytes.min(allowance));
        let count = wanted.min(room).min(DATA_LIMIT);
        if count > 0 {
            data_header(bundle.out, id, next.start, count);
            let reached = flow.send.reached();
            let again = flow.send.take(count, bundle.out);
            self.outstanding += flow.send.reached() - reached;
            self.counters.sent_frames += 1;
            self.counters.sent_data_bytes += count as u64;
            self.counters.retransmitted_bytes += again;
            bundle.note(|| CarriedFrame::Data {
                flow: id,
                offset: next.start,
                length: count as u32,
            });
            if let Some(link) = self.link.as_mut().filter(|_| is_trial) {
                let piece = TrialPiece {
                    flow: id,
                    offset: next.start,
                    length: count as u64,
                };
                link.datagrams.selection.sent_on_link(self.now, piece);
            }
        }
        let mut finish = None;
        if flow.send.finish_due() {
            flow.send.ending = FinishState::Sent;
            finish = Some(SessionFrame::Finish(FinishFrame {
                flow: id,
                final_offset: flow.send.written(),
            }));
        }
        let after = if sendable == count as u64 {
            FlowBacklog::Nothing
        } else {
            FlowBacklog::More
        };
        flow.send.note_blocked(self.now);
        // What is left then waits for the total credit only.
        if flow.send.sendable() > 0 && after == FlowBacklog::Nothing {
            self.stalled.insert(id);
        }
        self.schedule.served(self.now, &mut flow.turn, count, after);
        if let Some(finish) = finish {
            self.put(&finish, bundle);
            bundle.note(|| CarriedFrame::Finish(id));
        }
        self.check_room(id);
        count == wanted || count == 0
    }
}

/// Carrier of flow frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameCarrier {
    Link,
    Packets,
}

fn resume_waiting(link: &SessionLink) -> bool {
    link.phase != LinkPhase::Greeting && link.resume_out != ResumeOut::Done
}

/// Before its last Resume has gone out, the peer would not take an offer.
fn offer_waiting(link: &SessionLink) -> bool {
    link.datagrams.offer_waiting && link.resume_out == ResumeOut::Done
}
