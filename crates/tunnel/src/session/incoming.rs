//! Frames that arrive on the link: each is checked against the session and applied.

use bytes::Bytes;
use vocab::{FlowId, Time};

use super::Session;
use super::flow::FlowOrigin;
use super::link::LinkPhase;
use super::liveness::PeerPresence;
use super::messages::ReassembledMessage;
use super::receive::{AckUrgency, ReceiveViolation};
use super::send::FinishState;
use crate::credit::CreditPool;
use crate::limits::{ACKNOWLEDGE_BYTES, FLOW_LIMIT, RESETS_WAITING, held_pieces_limit};
use crate::packet::CloseCode;
use crate::wire::{
    AnswerFrame, DataView, FinishFrame, FlowAck, OpenFrame, ReceiptState, ResetFrame, SessionFrame,
    frame_length, next_frame,
};
use crate::{LinkId, OpenAnswer, ResetReason, SessionError, SessionEvent};

/// State of a flow id.
enum FlowIdState {
    Open,
    Closed,
    NeverOpened,
}

impl Session {
    /// Takes bytes from the link. Bytes of a link that is not attached are ignored: its peer
    /// sends them again on the one that is.
    ///
    /// # Errors
    /// When the bytes are no frames or break the rules. The session has let go of the link
    /// then and the shell must close it; the flows wait for the next one.
    pub fn handle(&mut self, now: Time, link: LinkId, bytes: &[u8]) -> Result<(), SessionError> {
        self.advance(now);
        let outcome = self.take_in(link, bytes);
        match outcome {
            Ok(()) => self.compare_ways(),
            Err(_) => self.detach(CloseCode::Misbehaved),
        }
        outcome
    }

    fn take_in(&mut self, link: LinkId, bytes: &[u8]) -> Result<(), SessionError> {
        let Some(current) = self.link.as_mut().filter(|current| current.id == link) else {
            return Ok(());
        };
        let mut begun = std::mem::take(&mut current.begun);
        self.counters.received_bytes += bytes.len() as u64;
        let mut rest = bytes;
        // A frame never detaches the link, it only fails.
        while let Some(part) = next_part(&begun, rest)? {
            let (taken, left) = rest.split_at(part.length);
            rest = left;
            if begun.is_empty() && part.is_whole {
                self.take_frame(&taken[part.prefix..])?;
                continue;
            }
            begun.extend_from_slice(taken);
            if part.is_whole {
                self.take_frame(&begun[part.prefix..])?;
                begun.clear();
            }
        }
        // Of a buffer that was large once, nothing is kept.
        if begun.is_empty() {
            begun = Vec::new();
        }
        if let Some(link) = &mut self.link {
            link.begun = begun;
        }
        Ok(())
    }

    fn take_frame(&mut self, frame: &[u8]) -> Result<(), SessionError> {
        let waiting = self.control.resets.len() + self.control.last_acknowledgements.len();
        if waiting > RESETS_WAITING {
            return Err(SessionError::PeerMisbehaved(
                "it does not read which of its flows were reset or closed",
            ));
        }
        self.counters.received_frames += 1;
        let Some(phase) = self.link.as_ref().map(|link| link.phase) else {
            return Ok(());
        };
        // Data is copied once, to where its flow keeps it.
        if phase == LinkPhase::Established
            && let Some(data) = DataView::of_frame(frame)
        {
            self.on_data(data?)?;
            self.note_heard();
            return Ok(());
        }
        self.dispatch(phase, SessionFrame::parse(&Bytes::copy_from_slice(frame))?)
    }

    pub(super) fn dispatch(
        &mut self,
        phase: LinkPhase,
        frame: SessionFrame,
    ) -> Result<(), SessionError> {
        match (phase, frame) {
            (_, SessionFrame::Hello(hello)) => {
                self.on_hello(hello)?;
                self.note_heard();
                return Ok(());
            }
            (LinkPhase::Greeting, _) => {
                return Err(SessionError::PeerMisbehaved(
                    "a link does not begin with a hello",
                ));
            }
            (LinkPhase::Resuming, SessionFrame::Resume(resume)) => self.on_resume(resume)?,
            (LinkPhase::Established, SessionFrame::Resume(_)) => {
                return Err(SessionError::PeerMisbehaved(
                    "a resume in the middle of a link",
                ));
            }
            (LinkPhase::Established, SessionFrame::DatagramOffer(offer)) => {
                self.on_datagram_offer(offer)?
            }
            (_, SessionFrame::Ping(ping)) => self.control.pong = Some(ping.stamp_us),
            (_, SessionFrame::Pong(pong)) => {
                self.liveness.pong(self.now, pong.stamp_us);
                self.mark_answered(pong.stamp_us);
            }
            (LinkPhase::Resuming, _) => {
                return Err(SessionError::PeerMisbehaved(
                    "flows go on before the last resume",
                ));
            }
            (LinkPhase::Established, frame) => self.on_flow_frame(frame)?,
        }
        self.note_heard();
        Ok(())
    }

    fn on_flow_frame(&mut self, frame: SessionFrame) -> Result<(), SessionError> {
        match frame {
            SessionFrame::Open(open) => self.on_open(open),
            SessionFrame::Answer(answer) => self.on_answer(answer),
            SessionFrame::Data(data) => self.on_data(data.view()),
            SessionFrame::Finish(finish) => self.on_finish(finish),
            SessionFrame::Reset(reset) => self.on_reset(reset),
            SessionFrame::Ack(ack) => match self.standing(ack.flow) {
                FlowIdState::Open => {
                    self.apply_ack(&ack)?;
                    self.activate(ack.flow);
                    self.check_room(ack.flow);
                    Ok(())
                }
                // The flow may have been reset here while the acknowledgement was under way.
                FlowIdState::Closed => Ok(()),
                FlowIdState::NeverOpened => never_opened(ack.flow),
            },
            SessionFrame::TotalCredit(credit) => {
                self.peer_total_window = self.total_credit(credit.window);
                self.release_stalled();
                Ok(())
            }
            SessionFrame::Message(message) => self.on_message(message),
            SessionFrame::MessageAck(ack) => {
                if self.messages.acknowledge(ack.next) {
                    self.release_messages();
                    Ok(())
                } else {
                    Err(SessionError::PeerMisbehaved(
                        "it has messages that were never sent",
                    ))
                }
            }
            SessionFrame::GoAway(_) => {
                if !self.peer_leaving {
                    self.peer_leaving = true;
                    self.events.push_back(SessionEvent::GoAway);
                }
                Ok(())
            }
            SessionFrame::Hello(_)
            | SessionFrame::Resume(_)
            | SessionFrame::DatagramOffer(_)
            | SessionFrame::Ping(_)
            | SessionFrame::Pong(_) => Ok(()),
        }
    }

    fn note_heard(&mut self) {
        let before = self
            .liveness
            .heard(self.now, &self.config, &mut self.random);
        match before {
            PeerPresence::Doubted | PeerPresence::Silent | PeerPresence::GivenUp => {
                self.events.push_back(SessionEvent::Heard)
            }
            PeerPresence::Unmet | PeerPresence::Heard => {}
        }
    }

    pub(super) fn is_ours(&self, flow: FlowId) -> bool {
        flow.0 % 2 == u64::from(self.local > self.peer)
    }

    fn standing(&self, flow: FlowId) -> FlowIdState {
        let next = if self.is_ours(flow) {
            self.next_id
        } else {
            self.peer_next
        };
        if self.flows.contains_key(&flow) {
            FlowIdState::Open
        } else if flow.0 < next && !self.unopened.contains(&flow) {
            FlowIdState::Closed
        } else {
            FlowIdState::NeverOpened
        }
    }

    fn on_open(&mut self, frame: OpenFrame) -> Result<(), SessionError> {
        let id = frame.flow;
        if self.is_ours(id) {
            return Err(SessionError::PeerMisbehavedOnFlow {
                flow: id,
                what: "its id is one of ours to give",
            });
        }
        match self.standing(id) {
            FlowIdState::Open => Ok(()),
            FlowIdState::Closed => {
                self.reset_closed_flow(id);
                Ok(())
            }
            FlowIdState::NeverOpened => {
                self.note_id(id)?;
                if self.peer_flows >= self.config.flow_limit {
                    self.send_reset(id, ResetReason::Limit);
                    return Ok(());
                }
                self.peer_flows += 1;
                self.counters.accepted_flows += 1;
                self.begin_flow(id, FlowOrigin::Theirs, frame.open.clone());
                self.events.push_back(SessionEvent::Opened {
                    flow: id,
                    open: frame.open,
                });
                Ok(())
            }
        }
    }

    /// The peer has used this id. Those below it that it has not opened yet may come later, in
    /// another packet.
    fn note_id(&mut self, id: FlowId) -> Result<(), SessionError> {
        if self.unopened.remove(&id) || id.0 < self.peer_next {
            return Ok(());
        }
        let parity = u64::from(self.peer > self.local);
        let first = self.peer_next + u64::from(self.peer_next % 2 != parity);
        if (id.0 - first) / 2 > FLOW_LIMIT as u64 {
            return Err(SessionError::PeerMisbehavedOnFlow {
                flow: id,
                what: "its id is far above the last one",
            });
        }
        self.unopened.extend((first..id.0).step_by(2).map(FlowId));
        // Of flows that were reset before their Open went out nothing may ever come.
        while self.unopened.len() > FLOW_LIMIT {
            self.unopened.pop_first();
        }
        self.peer_next = id.0 + 1;
        Ok(())
    }

    fn on_answer(&mut self, frame: AnswerFrame) -> Result<(), SessionError> {
        let id = frame.flow;
        if !self.is_ours(id) {
            return Err(SessionError::PeerMisbehavedOnFlow {
                flow: id,
                what: "it answers a flow of its own",
            });
        }
        let Some(flow) = self.flows.get_mut(&id) else {
            return match self.standing(id) {
                FlowIdState::NeverOpened => never_opened(id),
                // A failed flow is kept over there until it hears that we know.
                FlowIdState::Open | FlowIdState::Closed => {
                    self.reset_closed_flow(id);
                    Ok(())
                }
            };
        };
        if flow.answer.is_some() {
            return Ok(());
        }
        flow.answer = Some(frame.answer);
        self.control.opens.remove(&id);
        self.events.push_back(SessionEvent::Answered {
            flow: id,
            answer: frame.answer,
        });
        if let OpenAnswer::Failed(_) = frame.answer {
            self.remove(id);
            self.send_reset(id, ResetReason::Gone);
            self.events.push_back(SessionEvent::Closed { flow: id });
            self.check_drained();
        }
        Ok(())
    }

    fn on_data(&mut self, data: DataView<'_>) -> Result<(), SessionError> {
        let id = data.flow;
        let Some(flow) = self.flows.get_mut(&id) else {
            return self.on_unknown_flow(id);
        };
        self.counters.received_data_bytes += data.bytes.len() as u64;
        if flow.is_failed() {
            return Ok(());
        }
        let held = flow.receive.pieces();
        let fresh = flow
            .receive
            .push(data.offset, data.bytes)
            .map_err(|violation| misbehaved(id, violation))?;
        self.held_pieces = self.held_pieces - held + flow.receive.pieces();
        self.account(id);
        let Some(flow) = self.flows.get_mut(&id) else {
            return Ok(());
        };
        self.counters.duplicate_bytes += data.bytes.len() as u64 - fresh;
        self.unconsumed += fresh;
        if self.unconsumed > self.config.total_window.bytes() {
            return Err(SessionError::PeerMisbehaved(
                "it sent more than the total credit",
            ));
        }
        if self.held_pieces > held_pieces_limit(self.config.total_window) {
            return Err(SessionError::PeerMisbehaved(
                "it sent too many pieces that do not join",
            ));
        }
        if !flow.receive.readable_told && flow.receive.has_unread() {
            flow.receive.readable_told = true;
            self.events.push_back(SessionEvent::Readable { flow: id });
        }
        self.note_progress(id);
        Ok(())
    }

    fn on_finish(&mut self, finish: FinishFrame) -> Result<(), SessionError> {
        let id = finish.flow;
        let Some(flow) = self.flows.get_mut(&id) else {
            return self.on_unknown_flow(id);
        };
        if flow.is_failed() {
            return Ok(());
        }
        flow.receive
            .finish(finish.final_offset)
            .map_err(|violation| misbehaved(id, violation))?;
        self.note_progress(id);
        self.tell_finish(id);
        Ok(())
    }

    /// Tells the engine of the end once everything before it has been read.
    pub(super) fn tell_finish(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        if flow.receive.is_read_to_end() && !flow.receive.finish_told {
            flow.receive.finish_told = true;
            self.events.push_back(SessionEvent::Finished { flow: id });
            self.close_if_complete(id);
        }
    }

    /// Schedules an acknowledgement of a flow's receiving half. Also while a link is being agreed
    /// on, because this side's Resume may have been sent already.
    pub(super) fn note_progress(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(&id).filter(|_| self.link.is_some()) else {
            return;
        };
        self.control.note_acknowledgement(self.now);
        self.control.acknowledgements.insert(id);
        if flow.receive.urgency(ACKNOWLEDGE_BYTES) == AckUrgency::Now {
            self.control.acknowledge_now = true;
        }
    }

    fn on_reset(&mut self, reset: ResetFrame) -> Result<(), SessionError> {
        let id = reset.flow;
        let Some(flow) = self.flows.get_mut(&id) else {
            return match self.standing(id) {
                FlowIdState::Open | FlowIdState::Closed => Ok(()),
                FlowIdState::NeverOpened if self.is_ours(id) => never_opened(id),
                // It was reset before its Open went out, which then never comes, or the Open was
                // overtaken and must not be executed.
                FlowIdState::NeverOpened => {
                    self.resets.remember(id, reset.reason);
                    self.note_id(id)
                }
            };
        };
        // The peer forgets a flow when all of it is acknowledged both ways; when the link was
        // lost with the last acknowledgement, this reset is all we hear of a clean end.
        let all_sent = flow.send.unsent() == 0 && flow.send.ending != FinishState::Open;
        if reset.reason == ResetReason::Gone && all_sent && flow.receive.is_finished() {
            let (written, committed) = (flow.send.written(), flow.committed());
            self.outstanding -= flow.send.outstanding();
            self.committed -= committed;
            self.freed += committed;
            flow.send.ending = FinishState::Sent;
            flow.send.acknowledge(self.now, written, written, written);
            flow.send.acknowledge_finish(written);
            if committed > 0 {
                self.events.push_back(SessionEvent::Consumed {
                    flow: id,
                    offset: written,
                });
            }
            self.close_if_complete(id);
            return Ok(());
        }
        let failed = flow.is_failed();
        self.remove(id);
        self.resets.remember(id, reset.reason);
        if failed {
            self.events.push_back(SessionEvent::Closed { flow: id });
        } else {
            self.counters.reset_flows += 1;
            self.events.push_back(SessionEvent::Reset {
                flow: id,
                reason: reset.reason,
            });
        }
        self.check_drained();
        Ok(())
    }

    pub(super) fn apply_ack(&mut self, ack: &FlowAck) -> Result<(), SessionError> {
        let id = ack.flow;
        let Some(flow) = self.flows.get_mut(&id) else {
            return Ok(());
        };
        flow.is_open_known = true;
        let claim = |what| SessionError::PeerMisbehavedOnFlow { flow: id, what };
        let progress = flow
            .send
            .acknowledge(self.now, ack.received, ack.consumed, ack.limit)
            .ok_or_else(|| claim("it has bytes that were never sent"))?;
        if let Some(link) = &mut self.link {
            link.datagrams.selection.delivered(progress.delivered);
        }
        let mut is_news = progress.consumed > 0;
        if ack.finish == ReceiptState::Seen {
            is_news |= flow.send.ending != FinishState::Acknowledged;
            flow.send
                .acknowledge_finish(ack.received)
                .ok_or_else(|| claim("it has an end that was never sent"))?;
        }
        self.outstanding -= progress.consumed;
        self.committed -= progress.consumed;
        self.freed += progress.consumed;
        let pool = CreditPool::new(self.peer_total_window, self.committed);
        flow.send.note_consumed(&pool, progress.consumed);
        if is_news {
            let offset = flow.send.consumed();
            self.events
                .push_back(SessionEvent::Consumed { flow: id, offset });
        }
        if progress.consumed > 0 {
            self.release_stalled();
        }
        self.account(id);
        self.close_if_complete(id);
        Ok(())
    }

    fn on_message(&mut self, message: crate::wire::MessageFrame) -> Result<(), SessionError> {
        let received = self.messages.receive(message);
        self.control.note_acknowledgement(self.now);
        self.control.message_ack = true;
        while let Some(ReassembledMessage { flow, kind, bytes }) = self.messages.next_whole() {
            if self.flows.contains_key(&flow) {
                self.events
                    .push_back(SessionEvent::Message { flow, kind, bytes });
            }
        }
        received.map_err(SessionError::PeerMisbehaved)
    }

    fn on_unknown_flow(&mut self, id: FlowId) -> Result<(), SessionError> {
        match self.standing(id) {
            FlowIdState::NeverOpened => never_opened(id),
            FlowIdState::Open | FlowIdState::Closed => {
                self.reset_closed_flow(id);
                Ok(())
            }
        }
    }

    /// Handles a frame for a closed flow. If the flow was reset here, the peer knows or will soon
    /// know; otherwise it is told once.
    pub(super) fn reset_closed_flow(&mut self, id: FlowId) {
        if self.resets.reason(id).is_none() {
            self.send_reset(id, ResetReason::Gone);
        }
    }

    pub(super) fn send_reset(&mut self, id: FlowId, reason: ResetReason) {
        self.resets.remember(id, reason);
        if self.link.is_some() {
            self.control.resets.insert(id, reason);
        }
    }
}

/// Part of the received bytes to take next.
struct FramePart {
    length: usize,
    /// Length of the frame's length prefix, in bytes.
    prefix: usize,
    /// The frame ends with it.
    is_whole: bool,
}

/// The next of the bytes that came, behind those of a frame that has `begun`; `None` at their end.
fn next_part(begun: &[u8], came: &[u8]) -> Result<Option<FramePart>, SessionError> {
    /// The longest length, in bytes.
    const LENGTH_BYTES: usize = 10;
    if came.is_empty() {
        return Ok(None);
    }
    let known = if begun.is_empty() { came } else { begun };
    let Some((prefix, length)) = next_frame(known) else {
        // The length itself is not all there.
        let length = if begun.is_empty() { came.len() } else { 1 };
        let is_endless = begun.len() + length > LENGTH_BYTES;
        return match is_endless {
            true => frame_length(u64::MAX).map(|_| None),
            false => Ok(Some(FramePart {
                length,
                prefix: 0,
                is_whole: false,
            })),
        };
    };
    let missing = prefix + frame_length(length)? - begun.len();
    Ok(Some(FramePart {
        length: missing.min(came.len()),
        prefix,
        is_whole: missing <= came.len(),
    }))
}

fn never_opened(flow: FlowId) -> Result<(), SessionError> {
    Err(SessionError::PeerMisbehavedOnFlow {
        flow,
        what: "it was never opened",
    })
}

fn misbehaved(flow: FlowId, violation: ReceiveViolation) -> SessionError {
    let what = match violation {
        ReceiveViolation::BeyondCredit => "more bytes than the flow's credit",
        ReceiveViolation::BeyondEnd => "bytes after the end",
        ReceiveViolation::EndMoved => "the end moved",
    };
    SessionError::PeerMisbehavedOnFlow { flow, what }
}
