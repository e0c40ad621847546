//! Frames in packets, which may be lost, duplicated or reordered.
//!
//! While [`Session::packets_up`] holds, flow frames travel in packets of a transport beneath, and
//! the link carries only greetings. A packet is never sent again. When the transport reports its
//! outcome, each of its frames is checked, and one that still matters is scheduled again with its
//! newest content.
//!
//! Frames may therefore arrive in any order. Opens are repeated beside the data of their flow until
//! the peer is known to have one of them, so that data never arrives for a flow that was not
//! opened.

use std::ops::Range;

use vocab::{FlowId, Time};

use super::Session;
use super::link::LinkPhase;
use crate::limits::RESETS_WAITING;
use crate::packet::CloseCode;
use crate::wire::{FlowAck, SessionFrame};
use crate::{ResetReason, SessionError};

/// One frame that a packet took along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CarriedFrame {
    /// Bytes of a flow.
    Data {
        /// The flow.
        flow: FlowId,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u32,
    },
    /// The end of our direction of a flow.
    Finish(FlowId),
    /// The open of a flow of ours.
    Open(FlowId),
    /// Our answer to an open.
    Answer(FlowId),
    /// The reset of a flow.
    Reset(FlowId, ResetReason),
    /// Acknowledgement of a flow.
    Ack(FlowId),
    /// Acknowledgement of a flow that has closed since.
    LastAck(Box<FlowAck>),
    /// A piece of an engine's message, by its sequence.
    Message(u64),
    /// Acknowledgement of the peer's messages.
    MessageAck,
    /// A question for a sign of life.
    Ping,
    /// The answer to one. When it is lost the peer asks again; a late answer would tell it a wrong
    /// round-trip time.
    Pong,
    /// The word that this node takes no new flows.
    GoAway,
}

impl Session {
    /// Moves flow frames to packets: the peer has told its address over the established link, and
    /// the transport has had an answer from there.
    pub fn packets_up(&mut self, now: Time) {
        self.advance(now);
        if let Some(link) = self
            .link
            .as_mut()
            .filter(|link| link.phase == LinkPhase::Established)
        {
            link.in_packets = true;
        }
    }

    /// Flow frames travel on the link again. The caller has reported all packets that were under
    /// way as lost.
    pub fn packets_down(&mut self, now: Time) {
        self.advance(now);
        if let Some(link) = &mut self.link {
            link.in_packets = false;
        }
    }

    /// Returns `true` if flow frames travel in packets.
    #[must_use]
    pub fn is_in_packets(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.in_packets)
    }

    /// Takes in one frame that came in an authenticated packet.
    ///
    /// # Errors
    /// When it breaks the rules. The session has let go of the link then, and the shell must close
    /// it and the transport beneath it.
    pub fn handle_packet_frame(
        &mut self,
        now: Time,
        frame: SessionFrame,
    ) -> Result<(), SessionError> {
        self.advance(now);
        let Some(phase) = self.link.as_ref().map(|link| link.phase) else {
            return Ok(());
        };
        self.counters.received_frames += 1;
        let outcome = match (phase, frame) {
            _ if self.control.resets.len() > RESETS_WAITING => Err(SessionError::PeerMisbehaved(
                "it does not read which of its flows were reset",
            )),
            (
                _,
                SessionFrame::Hello(_) | SessionFrame::Resume(_) | SessionFrame::DatagramOffer(_),
            ) => Err(SessionError::PeerMisbehaved("a greeting in a packet")),
            (LinkPhase::Greeting | LinkPhase::Resuming, _) => Err(SessionError::PeerMisbehaved(
                "packets before the last resume",
            )),
            (LinkPhase::Established, frame) => self.dispatch(phase, frame),
        };
        if outcome.is_err() {
            self.detach(CloseCode::Misbehaved);
        }
        outcome
    }

    /// The packet that carried this has arrived.
    pub fn packet_arrived(&mut self, carried: &CarriedFrame) {
        match *carried {
            CarriedFrame::Data {
                flow,
                offset,
                length,
            } => {
                self.note_delivered(flow, offset..offset + u64::from(length));
                if let Some(link) = &mut self.link {
                    link.datagrams.selection.arrived(length.into());
                }
            }
            CarriedFrame::Open(flow) => {
                if let Some(flow) = self.flows.get_mut(&flow) {
                    flow.is_open_known = true;
                }
                self.control.opens.remove(&flow);
            }
            CarriedFrame::Message(sequence) => self.messages.arrived_there(sequence),
            CarriedFrame::Finish(_)
            | CarriedFrame::Answer(_)
            | CarriedFrame::Reset(..)
            | CarriedFrame::Ack(_)
            | CarriedFrame::LastAck(_)
            | CarriedFrame::MessageAck
            | CarriedFrame::Ping
            | CarriedFrame::Pong
            | CarriedFrame::GoAway => {}
        }
    }

    /// The peer has these bytes, if not in order.
    pub(super) fn note_delivered(&mut self, flow: FlowId, range: Range<u64>) {
        let Some(flow) = self.flows.get_mut(&flow) else {
            return;
        };
        let delivered = flow.send.arrived(range);
        if let Some(link) = &mut self.link {
            link.datagrams.selection.delivered(delivered);
        }
    }

    /// The packet that carried this is lost, or its transport is gone.
    pub fn packet_lost(&mut self, now: Time, carried: &CarriedFrame) {
        self.advance(now);
        // A new link begins with a Resume, which knows better.
        let Some(link) = &mut self.link else {
            return;
        };
        if let CarriedFrame::Data { length, .. } = carried {
            link.datagrams.selection.lost((*length).into());
        }
        match carried {
            CarriedFrame::Data {
                flow,
                offset,
                length,
            } => {
                if let Some(state) = self.flows.get_mut(flow) {
                    state.send.lost(*offset..*offset + u64::from(*length));
                    self.activate(*flow);
                }
            }
            CarriedFrame::Finish(flow) => {
                if let Some(state) = self.flows.get_mut(flow) {
                    state.send.lost_finish();
                    self.activate(*flow);
                }
            }
            CarriedFrame::Open(flow) => {
                if self.flows.get(flow).is_some_and(|flow| flow.needs_open()) {
                    self.control.opens.insert(*flow);
                }
            }
            CarriedFrame::Answer(flow) => {
                if self.flows.contains_key(flow) {
                    self.control.answers.insert(*flow);
                }
            }
            CarriedFrame::Reset(flow, reason) => {
                self.control.resets.insert(*flow, *reason);
            }
            CarriedFrame::Ack(flow) => {
                if self.flows.contains_key(flow) {
                    self.control.note_acknowledgement(self.now);
                    self.control.acknowledgements.insert(*flow);
                    self.control.acknowledge_now = true;
                } else {
                    // It may have been the one that the peer's end of the flow waits for.
                    self.reset_closed_flow(*flow);
                }
            }
            CarriedFrame::LastAck(ack) => {
                self.control.note_acknowledgement(self.now);
                self.control.last_acknowledgements.insert(ack.flow, **ack);
                self.control.acknowledge_now = true;
            }
            CarriedFrame::Message(sequence) => self.messages.lost(*sequence),
            CarriedFrame::MessageAck => {
                self.control.note_acknowledgement(self.now);
                self.control.message_ack = true;
                self.control.acknowledge_now = true;
            }
            CarriedFrame::Ping => self.liveness.ping_lost(),
            CarriedFrame::Pong => {}
            CarriedFrame::GoAway => self.control.go_away = true,
        }
    }
}
