//! The accelerator's half of a flow: what it is told, what it wants, and how it lets go.

use std::time::Duration;

use accelerate::passthrough;
use accelerate::registry::Reason;
use accelerate::{Accelerator, FrameKind, Half, Input, LettingGo, ReasonCode, ReasonSource};
use bytes::Bytes;
use tunnel::ResetReason;
use vocab::{Segment, SegmentKind};

use super::{Broken, Flow, PeerHost, Turn};
use crate::left_alone::Because;

/// Who handles the bytes between host and reduction.
pub(super) enum Stage {
    Running(Box<dyn Accelerator>),
    /// Bytes pass untouched, for ever.
    Released,
}

/// Why a flow is not accelerated, and which node's half says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenReason {
    pub(crate) reason: Reason,
    pub(crate) by: Half,
}

impl Flow {
    /// Lets go before anything has passed.
    pub(super) fn leave_alone(
        &mut self,
        turn: &mut Turn<'_>,
        because: &Because,
    ) -> Result<(), Broken> {
        if self.half == Half::Far {
            self.wants_server = true;
        }
        self.letting_go_note = Some(because.text());
        let reason = because.reason.code;
        self.let_go(turn, LettingGo::LetGo { reason })
    }

    /// Requests of its host that the accelerator has answered on this side.
    pub(crate) fn answered_here(&self) -> u64 {
        match &self.stage {
            Stage::Running(accelerator) => accelerator.answered(),
            Stage::Released => 0,
        }
    }

    /// What the accelerator has, or had, to say to the operator.
    pub(crate) fn note(&self) -> Option<String> {
        match &self.stage {
            Stage::Running(accelerator) => accelerator.note(),
            Stage::Released => self.letting_go_note.clone(),
        }
    }

    /// The peer may not be there any more.
    pub(crate) fn wan_silent(
        &mut self,
        turn: &mut Turn<'_>,
        since: Duration,
    ) -> Result<(), Broken> {
        self.accelerate(turn, Input::WanSilent(since))?;
        self.read_contents(turn)?;
        self.flush_lan(turn);
        Ok(())
    }

    /// The flow's claim was granted, revoked or denied.
    pub(crate) fn claim_decided(
        &mut self,
        turn: &mut Turn<'_>,
        decision: Input,
    ) -> Result<(), Broken> {
        self.accelerate(turn, decision)?;
        self.pump(turn)
    }

    /// What the accelerator's flows share has woken this one.
    pub(crate) fn woken(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        self.accelerate(turn, Input::Woken)?;
        self.pump(turn)
    }

    pub(super) fn deliver(&mut self, turn: &mut Turn<'_>, segment: Segment) -> Result<(), Broken> {
        let released = segment.kind == SegmentKind::Frame
            && FrameKind::of(&segment.bytes) == Some(FrameKind::Released);
        if !released {
            return self.accelerate(turn, Input::Wan(segment));
        }
        // The other half has let go; this one puts out what it still holds and goes too.
        self.drain_accelerator(turn)?;
        self.release(turn);
        if let Some(&byte) = segment.bytes.get(1) {
            let by = match self.half {
                Half::Near => Half::Far,
                Half::Far => Half::Near,
            };
            self.letting_go = Some(self.given_reason(ReasonCode::new(byte), by));
        }
        Ok(())
    }

    pub(super) fn accelerate(&mut self, turn: &mut Turn<'_>, input: Input) -> Result<(), Broken> {
        match &mut self.stage {
            Stage::Running(accelerator) => {
                accelerator.handle(turn.now, input);
                self.drain_accelerator(turn)?;
                self.tell_server_events(turn)
            }
            Stage::Released => {
                self.pass(turn, input);
                Ok(())
            }
        }
    }

    pub(super) fn drain_accelerator(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        use accelerate::Output as Wish;
        while let Stage::Running(accelerator) = &mut self.stage {
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
        turn: &mut Turn<'_>,
        letting_go: LettingGo,
    ) -> Result<(), Broken> {
        let given = self.given_reason(letting_go.reason(), self.half);
        self.letting_go = Some(given);
        match letting_go {
            LettingGo::LetGo { reason } => {
                let released = [FrameKind::Released.to_byte(), reason.to_byte()];
                let frame = Bytes::copy_from_slice(&released);
                self.send_to_peer(turn, Segment::frame(frame));
                self.release(turn);
                Ok(())
            }
            LettingGo::Close { .. } => {
                let explanation = given.reason.explanation(ReasonSource::ThisNode);
                Err(Broken {
                    recurs: explanation.recurs.then(|| Because {
                        reason: given.reason,
                        note: self.letting_go_note.clone(),
                    }),
                    reset: ResetReason::Accelerator,
                    text: format!("the accelerator closed the flow: {}", explanation.text),
                })
            }
        }
    }

    /// No accelerator handles the flow any more, and what it held beside the flow goes with it.
    fn release(&mut self, turn: &mut Turn<'_>) {
        self.stage = Stage::Released;
        turn.claims.released(self.number);
        self.server_connections.reset_all(turn.outputs);
    }

    /// What happens to bytes that no accelerator handles any more.
    pub(super) fn pass(&mut self, turn: &mut Turn<'_>, input: Input) {
        match input {
            Input::Lan(bytes) => self.send_to_peer(turn, Segment::payload(bytes)),
            Input::LanFinished => self.finish_wan(),
            Input::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => self.write_lan(turn, segment.bytes),
                SegmentKind::Frame => {}
            },
            Input::WanFinished => self.finish_lan(turn),
            Input::ClaimRevoked => turn.claims.released(self.number),
            Input::Start
            | Input::WanSilent(_)
            | Input::Timeout
            | Input::Server(..)
            | Input::ClaimGranted
            | Input::ClaimDenied
            | Input::Content(_)
            | Input::Woken => {}
        }
    }

    /// Whether an accelerator has asked for the server's connection since this was last called.
    pub(crate) fn take_wish_for_server(&mut self) -> bool {
        std::mem::take(&mut self.wants_server)
    }

    fn given_reason(&self, code: ReasonCode, by: Half) -> GivenReason {
        let accelerator = self.accelerator;
        let reason = Reason { accelerator, code };
        GivenReason { reason, by }
    }

    /// Why the accelerate stage does nothing (more), if so. That a flow has no accelerator is explained by
    /// the one that is registered for its port, which is then switched off.
    pub(crate) fn reason_given(&self) -> Option<GivenReason> {
        if self.letting_go.is_some() || *self.accelerator != passthrough::ENTRY {
            return self.letting_go;
        }
        let reason = Reason {
            accelerator: self.registered,
            code: ReasonCode::NO_ACCELERATOR,
        };
        // The near node chooses the accelerator.
        let by = Half::Near;
        Some(GivenReason { reason, by })
    }
}
