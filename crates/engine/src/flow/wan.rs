//! The peer's side of a flow: encoded bytes for the peer, received bytes, repairs, and its ends.

use accelerate::AcceleratorInput;
use bytes::Bytes;
use reduce::DecoderOutput;
use tunnel::ResetReason;

use super::lan::{HostState, StreamFinish, WRITE_AHEAD};
use super::{Flow, FlowFailure, FlowTurn, PeerHost};

/// Encoded bytes taken from the session at a time.
const SESSION_READ: usize = 64 * 1024;
/// The limit of repairs that the peer may request before the first is answered: as many as a
/// decoder requests together.
const REPAIRS_ASKED: usize = reduce::REPAIR_AHEAD_RECORDS;

// A record that was begun can be sent to its end: see `tunnel::credit`.
const _: () = assert!(reduce::MAX_RECORD_BODY as u64 + 16 <= tunnel::credit::RECORD);

/// Memory of a request for a repair, about: most are some dozens of bytes.
pub(super) const REPAIR_REQUEST_MEMORY: usize = 256;

/// The engine's messages between the two ends of a flow, beside its bytes.
pub(crate) mod message {
    /// The decoder requests a range that it cannot resolve.
    pub(crate) const REPAIR_REQUEST: u8 = 1;
    /// The encoder answers with the bytes.
    pub(crate) const REPAIR_ANSWER: u8 = 2;
    /// The node that was asked to open the flow has reached its limit: the peer must open no more
    /// for a while. The flow itself continues. Nodes that do not know this message ignore it.
    pub(crate) const NODE_IS_FULL: u8 = 3;
}

impl Flow {
    /// The peer has opened the server's connection.
    pub(crate) fn answered(&mut self) {
        self.is_answered = true;
        self.unsent.forget();
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
    }

    pub(crate) fn consumed(
        &mut self,
        turn: &mut FlowTurn<'_>,
        offset: u64,
    ) -> Result<(), FlowFailure> {
        self.encoder.acknowledged(offset, turn.dictionary);
        self.note_progress(turn.now);
        self.pump(turn)
    }

    /// Records that the peer's host has reset its connection and that the session has forgotten the
    /// flow. Its earlier data is delivered, then this host's connection is reset.
    pub(crate) fn wan_reset(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        self.peer_host = PeerHost::Reset;
        self.wan_finished = true;
        self.unanswered.clear();
        self.expect_delivery(turn.now);
        self.pump(turn)
    }

    pub(crate) fn wan_finished(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        self.wan_finished = true;
        self.pump(turn)
    }

    pub(crate) fn session_closed(&mut self) {
        self.session_closed = true;
    }

    pub(crate) fn message(
        &mut self,
        turn: &mut FlowTurn<'_>,
        kind: u8,
        bytes: Bytes,
    ) -> Result<(), FlowFailure> {
        match kind {
            message::REPAIR_REQUEST => {
                let is_long = bytes.len() > reduce::MAX_REPAIR_REQUEST;
                if is_long || self.unanswered.len() >= REPAIRS_ASKED {
                    return Err(FlowFailure {
                        recurs: None,
                        reset: ResetReason::Reduction,
                        text: "the peer requests more repairs than it can use".to_owned(),
                    });
                }
                // Without the packet that it came in.
                self.unanswered.push_back(Bytes::copy_from_slice(&bytes));
                // The encoder notes what the peer lacks at its next turn; without one, requests
                // that come again and again would pile that up.
                self.pump(turn)
            }
            message::REPAIR_ANSWER => {
                self.decoder.handle_repair(&bytes).map_err(failed_repair)?;
                self.pump(turn)
            }
            // A later release may have messages that this one need not understand.
            _ => Ok(()),
        }
    }

    /// Answers requests for repairs while answers have room.
    pub(super) fn repair(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        let Some(id) = self.id() else {
            return Ok(());
        };
        while !self.unanswered.is_empty() && turn.session.has_message_room(id) {
            if let Some(request) = self.unanswered.pop_front() {
                let answer = self.encoder.repair(&request).map_err(failed_repair)?;
                turn.session
                    .send_message(id, message::REPAIR_ANSWER, answer);
            }
        }
        Ok(())
    }

    /// LAN to WAN: encodes as much as the session can take.
    pub(super) fn encode(&mut self, turn: &mut FlowTurn<'_>) {
        // What the encoder holds waits for the open.
        let Some(id) = self.id() else {
            return;
        };
        if self.is_reset_by_peer() {
            return;
        }
        loop {
            // Asked even without room: that a held tail is due must stop its timer, or the
            // timer would fire for ever while the peer gives no credit.
            let room = turn.session.writable(id);
            self.encoder.limit_record(turn.session.record_room(id));
            self.encoder
                .limit_retained(turn.budget.share(), turn.budget.spare());
            let Some(encoded) = self.encoder.poll_encoded(turn.now, turn.dictionary, room) else {
                break;
            };
            // The peer can consume whole records only, so a record that was begun is written to
            // its end.
            let rest = self.encoder.rest_of_record();
            for bytes in std::iter::once(encoded).chain(rest) {
                self.sent_wan_bytes += bytes.len() as u64;
                turn.session.write(id, bytes);
            }
        }
        self.waits_for_disk |= self.encoder.waits_for_disk();
        if self.finish_wan == StreamFinish::Wanted && self.encoder.pending() == 0 {
            self.finish_wan = StreamFinish::Done;
            // A reset is no end in good order; the peer is told of it once it has consumed all bytes.
            if self.lan.host != (HostState::Gone { finished: false }) {
                turn.session.finish(id);
            }
        }
    }

    /// WAN to LAN: decodes as much as the host takes.
    pub(super) fn restore(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        self.waits_for_disk = false;
        let Some(id) = self.id() else {
            return Ok(());
        };
        let share = turn.budget.share();
        self.decoder.limit_ahead(share);
        while self.lan.held() < WRITE_AHEAD.min(share) {
            match self.decoder.poll(turn.dictionary) {
                Ok(DecoderOutput::Segment(segment)) => self.deliver(turn, segment)?,
                Ok(DecoderOutput::NeedMore) => {
                    let Some(encoded) = turn.session.read(id, SESSION_READ) else {
                        self.end_of_wan(turn)?;
                        break;
                    };
                    self.received_wan_bytes += encoded.len() as u64;
                    self.is_answered = true;
                    self.decoder.push(encoded);
                }
                Ok(DecoderOutput::WaitForDisk) => {
                    self.waits_for_disk = true;
                    break;
                }
                Ok(DecoderOutput::NeedRepair(request)) => {
                    self.repairs_asked += 1;
                    turn.session
                        .send_message(id, message::REPAIR_REQUEST, request);
                }
                Ok(DecoderOutput::WaitForRepair) => {
                    if self.is_reset_by_peer() {
                        // No repair comes of a flow that the session has forgotten.
                        self.end_of_wan(turn)?;
                    }
                    break;
                }
                Err(error) => {
                    return Err(FlowFailure {
                        recurs: None,
                        reset: ResetReason::Reduction,
                        text: format!("the peer's data cannot be restored: {error}"),
                    });
                }
            }
        }
        self.flush_lan(turn);
        let consumed = self.decoder.consumed();
        if consumed > self.consumed_told {
            self.consumed_told = consumed;
            turn.session.consumed(id, consumed);
        }
        Ok(())
    }

    /// Ends the stream towards the host once the peer's has ended and all of it was delivered.
    pub(super) fn end_of_wan(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        if !self.wan_finished || self.wan_finish_told {
            return Ok(());
        }
        self.wan_finish_told = true;
        if !self.decoder.is_at_boundary() && !self.is_reset_by_peer() {
            return Err(FlowFailure {
                recurs: None,
                reset: ResetReason::Reduction,
                text: "the peer's data ended in the middle of a record".to_owned(),
            });
        }
        self.accelerate(turn, AcceleratorInput::WanFinished)
    }

    pub(super) fn finish_wan(&mut self) {
        if self.finish_wan == StreamFinish::Open {
            self.finish_wan = StreamFinish::Wanted;
            self.encoder.finish();
        }
    }
}

fn failed_repair(error: reduce::ReductionError) -> FlowFailure {
    FlowFailure {
        recurs: None,
        reset: ResetReason::Reduction,
        text: format!("repair failed: {error}"),
    }
}
