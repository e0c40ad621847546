//! The accelerator's half of a flow: its inputs, its requests, and its end.

use std::time::Duration;

use accelerate::passthrough;
use accelerate::registry::AcceleratorReason;
use accelerate::{
    AcceleratorHalf, AcceleratorInput, FrameKind, LettingGo, ReasonCode, ReasonSource, WanEnd,
};
use bytes::Bytes;
use tunnel::ResetReason;
use vocab::{FlowSegment, SegmentKind};

use super::{Flow, FlowFailure, FlowTurn, PeerHost};
use crate::passthrough_pairs::PassthroughReason;

/// The handler of the bytes between host and reduction.
pub(super) enum FlowStage {
    Running(Box<dyn AcceleratorHalf>),
    /// Bytes pass untouched, for ever.
    Released,
}

/// The reason why a flow is not accelerated, and the node whose half gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenReason {
    pub(crate) reason: AcceleratorReason,
    pub(crate) by: WanEnd,
}

impl Flow {
    /// Lets the flow go before anything has passed.
    pub(super) fn pass_unaccelerated(
        &mut self,
        turn: &mut FlowTurn<'_>,
        cause: &PassthroughReason,
    ) -> Result<(), FlowFailure> {
        if self.half == WanEnd::Far {
            self.wants_server = true;
        }
        self.letting_go_note = Some(cause.text());
        let reason = cause.reason.code;
        self.let_go(turn, LettingGo::LetGo { reason })
    }

    /// Requests of its host that the accelerator has answered on this side.
    pub(crate) fn answered_here(&self) -> u64 {
        match &self.stage {
            FlowStage::Running(accelerator) => accelerator.answered(),
            FlowStage::Released => 0,
        }
    }

    /// The accelerator's present or last note to the operator.
    pub(crate) fn note(&self) -> Option<String> {
        match &self.stage {
            FlowStage::Running(accelerator) => accelerator.note(),
            FlowStage::Released => self.letting_go_note.clone(),
        }
    }

    /// The peer may not be there any more.
    pub(crate) fn wan_silent(
        &mut self,
        turn: &mut FlowTurn<'_>,
        since: Duration,
    ) -> Result<(), FlowFailure> {
        self.accelerate(turn, AcceleratorInput::WanSilent(since))?;
        self.read_contents(turn)?;
        self.flush_lan(turn);
        Ok(())
    }

    /// The flow's claim was granted, revoked or denied.
    pub(crate) fn claim_decided(
        &mut self,
        turn: &mut FlowTurn<'_>,
        decision: AcceleratorInput,
    ) -> Result<(), FlowFailure> {
        self.accelerate(turn, decision)?;
        self.pump(turn)
    }

    /// Wakes this flow's half on behalf of the state that the accelerator's flows share.
    pub(crate) fn woken(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        self.accelerate(turn, AcceleratorInput::Woken)?;
        self.pump(turn)
    }

    pub(super) fn deliver(
        &mut self,
        turn: &mut FlowTurn<'_>,
        segment: FlowSegment,
    ) -> Result<(), FlowFailure> {
        let released = segment.kind == SegmentKind::Frame
            && FrameKind::of(&segment.bytes) == Some(FrameKind::Released);
        if !released {
            return self.accelerate(turn, AcceleratorInput::Wan(segment));
        }
        // The other half has let go; this one puts out what it still holds and goes too.
        self.drain_accelerator(turn)?;
        self.release(turn);
        if let Some(&byte) = segment.bytes.get(1) {
            let by = match self.half {
                WanEnd::Near => WanEnd::Far,
                WanEnd::Far => WanEnd::Near,
            };
            self.letting_go = Some(self.given_reason(ReasonCode::new(byte), by));
        }
        Ok(())
    }

    pub(super) fn accelerate(
        &mut self,
        turn: &mut FlowTurn<'_>,
        input: AcceleratorInput,
    ) -> Result<(), FlowFailure> {
        match &mut self.stage {
            FlowStage::Running(accelerator) => {
                accelerator.handle(turn.now, input);
                self.drain_accelerator(turn)?;
                self.tell_server_events(turn)
            }
            FlowStage::Released => {
                self.pass(turn, input);
                Ok(())
            }
        }
    }

    /// Tells the half how much of its output waits for the WAN; true if it was told.
    pub(super) fn tell_backlog(&mut self, turn: &mut FlowTurn<'_>) -> Result<bool, FlowFailure> {
        let FlowStage::Running(accelerator) = &mut self.stage else {
            return Ok(false);
        };
        let backlog = self.encoder.pending() as u64;
        if self.backlog_told == Some(backlog) {
            return Ok(false);
        }
        self.backlog_told = Some(backlog);
        accelerator.set_backlog(turn.now, backlog);
        self.drain_accelerator(turn)?;
        self.tell_server_events(turn)?;
        Ok(true)
    }

    pub(super) fn drain_accelerator(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        use accelerate::AcceleratorOutput as Wish;
        while let FlowStage::Running(accelerator) = &mut self.stage {
            let Some(wish) = accelerator.poll_output() else {
                break;
            };
            match wish {
                Wish::OpenServer => self.wants_server = true,
                Wish::ToLan(bytes) => self.write_lan(turn, bytes),
                Wish::FinishLan => self.finish_lan(turn),
                // Nobody would take it any more.
                Wish::ToWan(_) | Wish::FinishWan if self.peer_host != PeerHost::Standing => {}
                Wish::ToWan(segment) => self.send_to_peer(turn, segment),
                Wish::EndBody => self.encoder.end_body(),
                Wish::FinishWan => self.finish_wan(),
                Wish::Server(which, command) => self.command_server(turn, which, command),
                Wish::OpenFlow => self.wants_opening = true,
                Wish::AnsweredHere(bytes) => self.unsent.note_answered(bytes),
                Wish::Claim(key) => turn.claims.claim(self.number, key),
                Wish::ClaimReleased => turn.claims.released(self.number),
                Wish::Content(request) => self.handle_content(turn, request),
                Wish::LettingGo(letting_go) => {
                    self.letting_go_note = accelerator.note();
                    self.let_go(turn, letting_go)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn let_go(
        &mut self,
        turn: &mut FlowTurn<'_>,
        letting_go: LettingGo,
    ) -> Result<(), FlowFailure> {
        let given = self.given_reason(letting_go.reason(), self.half);
        self.letting_go = Some(given);
        match letting_go {
            LettingGo::LetGo { reason } => {
                let released = [FrameKind::Released.to_byte(), reason.to_byte()];
                let frame = Bytes::copy_from_slice(&released);
                self.send_to_peer(turn, FlowSegment::frame(frame));
                self.release(turn);
                Ok(())
            }
            LettingGo::Close { .. } => {
                let explanation = given.reason.explanation(ReasonSource::ThisNode);
                Err(FlowFailure {
                    recurs: explanation.recurs.then(|| PassthroughReason {
                        reason: given.reason,
                        note: self.letting_go_note.clone(),
                    }),
                    reset: ResetReason::Accelerator,
                    text: format!("the accelerator closed the flow: {}", explanation.text),
                })
            }
        }
    }

    /// Releases the flow from its accelerator, and drops the state that the accelerator held beside
    /// the flow.
    fn release(&mut self, turn: &mut FlowTurn<'_>) {
        self.stage = FlowStage::Released;
        turn.claims.released(self.number);
        self.server_connections.reset_all(turn.outputs);
    }

    /// Passes bytes that no accelerator handles any more.
    pub(super) fn pass(&mut self, turn: &mut FlowTurn<'_>, input: AcceleratorInput) {
        match input {
            AcceleratorInput::Lan(bytes) => self.send_to_peer(turn, FlowSegment::payload(bytes)),
            AcceleratorInput::LanFinished => self.finish_wan(),
            AcceleratorInput::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => self.write_lan(turn, segment.bytes),
                SegmentKind::Frame => {}
            },
            AcceleratorInput::WanFinished => self.finish_lan(turn),
            AcceleratorInput::ClaimRevoked => turn.claims.released(self.number),
            AcceleratorInput::Start
            | AcceleratorInput::WanSilent(_)
            | AcceleratorInput::Timeout
            | AcceleratorInput::Server(..)
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimDenied
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken => {}
        }
    }

    /// Returns true if an accelerator has requested the server's connection since the last call.
    pub(crate) fn take_wish_for_server(&mut self) -> bool {
        std::mem::take(&mut self.wants_server)
    }

    fn given_reason(&self, code: ReasonCode, by: WanEnd) -> GivenReason {
        let accelerator = self.accelerator;
        let reason = AcceleratorReason { accelerator, code };
        GivenReason { reason, by }
    }

    /// The reason why the accelerate stage does nothing, or nothing more. If a flow has no
    /// accelerator because the one for its port is switched off, or set to leave the port alone, that
    /// accelerator explains it.
    pub(crate) fn reason_given(&self) -> Option<GivenReason> {
        if self.letting_go.is_some() || *self.accelerator != passthrough::ENTRY {
            return self.letting_go;
        }
        // The near node chooses the accelerator.
        let (reason, by) = (self.unserved, WanEnd::Near);
        Some(GivenReason { reason, by })
    }
}
