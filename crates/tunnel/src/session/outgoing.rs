//! What goes out: greetings, then control frames, then acknowledgements, then data in turn.

use bytes::Bytes;
use vocab::{FlowId, Time, Writer};

use super::Session;
use super::link::{Link, Phase, ResumeOut};
use super::schedule::After;
use super::send::Ending;
use crate::LinkId;
use crate::limits::{ACKNOWLEDGE_SPACING, DATA_LIMIT};
use crate::wire::{
    Ack, AnswerFrame, Finish, Frame, GoAway, MessageAck, OpenFrame, Ping, Pong, Reset, data_header,
};

/// A frame is not cut shorter than this because the caller's room ends.
const LEAST_DATA: usize = 1 << 10;

/// What a frame's length, type, flow and offset add, at most.
const HEADER_ROOM: usize = 32;

impl Session {
    /// The link that [`Self::poll_transmit`] has frames for now; to be asked after every call.
    #[must_use]
    pub fn wants_transmit(&self) -> Option<LinkId> {
        let link = self.link.as_ref()?;
        let greeting = link.hello_waiting || resume_waiting(link);
        let wants = greeting
            || self.control.pong.is_some() && link.phase != Phase::Greeting
            || link.phase == Phase::Established
                && (self.control_waiting()
                    || self.acknowledgements_due()
                    || !self.schedule.is_empty());
        wants.then_some(link.id)
    }

    /// Takes frames that are ready to go on the link: whole frames in one piece, about `max`
    /// bytes (one control frame more at most). To be called whenever the link is writable and
    /// has little waiting; what it has taken can no longer be overtaken.
    pub fn poll_transmit(&mut self, now: Time, link: LinkId, max: usize) -> Option<Bytes> {
        self.advance(now);
        let current = self.link.as_ref().filter(|current| current.id == link)?;
        if max == 0 {
            return None;
        }
        let capacity = if current.phase == Phase::Established && !self.schedule.is_empty() {
            max.min(self.waiting_estimate()) + HEADER_ROOM
        } else {
            256
        };
        let mut out = Writer::with_capacity(capacity);
        self.put_greeting(max, &mut out);
        let established = self
            .link
            .as_ref()
            .is_some_and(|link| link.phase == Phase::Established && !resume_waiting(link));
        if established {
            self.put_control(max, &mut out);
            self.put_acknowledgements(max, &mut out);
            if !self.control_waiting() {
                self.put_data(max, &mut out);
            }
        }
        self.counters.sent_bytes += out.len() as u64;
        (!out.is_empty()).then(|| out.finish())
    }

    /// Bytes that a call could fill at most, so that a short frame does not hold a long buffer.
    fn waiting_estimate(&self) -> usize {
        let unsent = self.committed - self.outstanding;
        let again = if self.repeating { usize::MAX / 2 } else { 0 };
        (unsent as usize)
            .saturating_add(again)
            .saturating_add((self.schedule.len() + 8) * HEADER_ROOM)
    }

    fn put(&mut self, frame: &Frame, out: &mut Writer) {
        self.counters.sent_frames += 1;
        frame.emit(out);
    }

    fn put_greeting(&mut self, max: usize, out: &mut Writer) {
        if self.link.as_ref().is_some_and(|link| link.hello_waiting) {
            let hello = self.hello();
            self.put(&hello, out);
            if let Some(link) = &mut self.link {
                link.hello_waiting = false;
            }
        }
        while out.len() < max && self.link.as_ref().is_some_and(resume_waiting) {
            let Some(resume) = self.next_resume() else {
                return;
            };
            self.put(&resume, out);
        }
        let greeted = self
            .link
            .as_ref()
            .is_some_and(|link| link.phase != Phase::Greeting);
        if greeted && let Some(stamp_us) = self.control.pong.take() {
            self.put(&Frame::Pong(Pong { stamp_us }), out);
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

    fn put_control(&mut self, max: usize, out: &mut Writer) {
        if self.liveness.ping_waiting() {
            let stamp_us = self.liveness.ping(self.now);
            self.put(&Frame::Ping(Ping { stamp_us }), out);
        }
        if std::mem::take(&mut self.control.go_away) {
            self.put(&Frame::GoAway(GoAway), out);
        }
        while out.len() < max
            && let Some((flow, reason)) = self.control.resets.pop_first()
        {
            self.put(&Frame::Reset(Reset { flow, reason }), out);
        }
        // Opens in rising order, because ids below the highest seen count as closed.
        while out.len() < max
            && let Some(id) = self.control.opens.pop_first()
        {
            if let Some(flow) = self.flows.get(&id) {
                let open = flow.open.clone();
                self.put(&Frame::Open(OpenFrame { flow: id, open }), out);
            }
        }
        while out.len() < max
            && let Some(id) = self.control.answers.pop_first()
        {
            if let Some(answer) = self.flows.get(&id).and_then(|flow| flow.answer) {
                self.put(&Frame::Answer(AnswerFrame { flow: id, answer }), out);
            }
        }
        while out.len() < max
            && let Some(message) = self.messages.next_to_send()
        {
            self.put(&Frame::Message(message), out);
        }
    }

    pub(super) fn acknowledgements_due(&self) -> bool {
        self.control.acknowledge_now || self.control.acknowledge_at.is_some_and(|at| at <= self.now)
    }

    /// Acknowledgements go when they are due, or along with what goes anyway.
    fn put_acknowledgements(&mut self, max: usize, out: &mut Writer) {
        let company = !out.is_empty() || !self.schedule.is_empty();
        let spaced = self
            .acknowledged_at
            .is_none_or(|last| self.now.since(last) >= ACKNOWLEDGE_SPACING);
        let ride_along = self.control.acknowledge_at.is_some() && company && spaced;
        if !self.acknowledgements_due() && !ride_along {
            return;
        }
        self.acknowledged_at = Some(self.now);
        if std::mem::take(&mut self.control.message_ack) {
            let next = self.messages.next_incoming();
            self.put(&Frame::MessageAck(MessageAck { next }), out);
        }
        while out.len() < max
            && let Some((_, ack)) = self.control.last_acknowledgements.pop_first()
        {
            self.put_ack(ack, out);
        }
        let around = self.surroundings();
        while out.len() < max
            && let Some(id) = self.control.acknowledgements.pop_first()
        {
            if let Some(flow) = self.flows.get_mut(&id) {
                let ack = flow.receive.acknowledgement(id, &around);
                self.put_ack(ack, out);
            }
        }
        let all_out = self.control.acknowledgements.is_empty()
            && self.control.last_acknowledgements.is_empty();
        self.control.acknowledge_now = !all_out;
        if all_out {
            self.control.acknowledge_at = None;
        }
    }

    fn put_ack(&mut self, ack: Ack, out: &mut Writer) {
        self.counters.sent_acknowledgements += 1;
        self.put(&Frame::Ack(ack), out);
    }

    fn put_data(&mut self, max: usize, out: &mut Writer) {
        let before = self.counters.sent_data_bytes;
        while let Some(id) = self.schedule.next() {
            let room = max.saturating_sub(out.len());
            if room < LEAST_DATA && !out.is_empty() {
                break;
            }
            if !self.put_turn(id, room.max(1), out) {
                break;
            }
        }
        if self.schedule.is_empty() {
            self.repeating = false;
        }
        if self.counters.sent_data_bytes > before && self.liveness.refresh_due(self.now) {
            let stamp_us = self.liveness.ping(self.now);
            self.put(&Frame::Ping(Ping { stamp_us }), out);
        }
    }

    /// Sends one frame of a flow, and its end if that comes next; `false` when the frame was
    /// cut short by the room that is left.
    fn put_turn(&mut self, id: FlowId, room: usize, out: &mut Writer) -> bool {
        let total = self.total_room(id);
        let Some(flow) = self.flows.get_mut(&id) else {
            self.schedule.gone(id);
            return true;
        };
        let allowance = self.schedule.allowance(&mut flow.turn);
        let by_total = flow.send.repeatable().saturating_add(total);
        let sendable = flow.send.sendable().min(by_total);
        let wanted = usize::try_from(sendable).map_or(allowance, |bytes| bytes.min(allowance));
        let count = wanted.min(room).min(DATA_LIMIT);
        if count > 0 {
            data_header(out, id, flow.send.sent(), count);
            let reached = flow.send.reached();
            let again = flow.send.take(count, out);
            self.outstanding += flow.send.reached() - reached;
            self.counters.sent_frames += 1;
            self.counters.sent_data_bytes += count as u64;
            self.counters.retransmitted_bytes += again;
        }
        let mut finish = None;
        if flow.send.finish_due() {
            flow.send.ending = Ending::Sent;
            finish = Some(Frame::Finish(Finish {
                flow: id,
                final_offset: flow.send.written(),
            }));
        }
        let after = if sendable == count as u64 {
            After::Nothing
        } else {
            After::More
        };
        flow.send.note_blocked(self.now);
        // What is left then waits for the total credit only.
        if flow.send.sendable() > 0 && after == After::Nothing {
            self.stalled.insert(id);
        }
        self.schedule.served(self.now, &mut flow.turn, count, after);
        if let Some(finish) = finish {
            self.put(&finish, out);
        }
        self.check_room(id);
        count == wanted || count == 0
    }
}

fn resume_waiting(link: &Link) -> bool {
    link.phase != Phase::Greeting && link.resume_out != ResumeOut::Done
}
