//! One flow: its two halves and what stands between them.
//!
//! ```text
//!  ours:    opened ──Answer(Connected)──► answered ──both ends acknowledged──► closed
//!              └────Answer(Failed)──────────────────────────────────────────► closed
//!  theirs:  asked ──answer(Connected)──► answered ──both ends acknowledged──► closed
//!              └────answer(Failed)──► failed ──the peer's Reset─────────────► closed
//!  any:     reset, from either side or by losing the peer, ends it at once
//! ```

use vocab::Time;

use super::receive::ReceiveHalf;
use super::schedule::ScheduledFlow;
use super::send::{FinishState, SendHalf};
use crate::{FlowStatistics, OpenAnswer, OpenRequest};

/// Node that opened the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowOrigin {
    Ours,
    Theirs,
}

#[derive(Debug)]
pub(super) struct SessionFlow {
    pub(super) origin: FlowOrigin,
    pub(super) open: OpenRequest,
    /// Ours: the answer that came. Theirs: the answer that was given.
    pub(super) answer: Option<OpenAnswer>,
    /// Ours: its Open was handed to a link or put in a packet, so the peer may have it.
    pub(super) is_open_sent: bool,
    /// Ours: the peer is known to have its Open.
    pub(super) is_open_known: bool,
    pub(super) send: SendHalf,
    pub(super) receive: ReceiveHalf,
    pub(super) turn: ScheduledFlow,
    /// Bytes of the flow's memory that the session's total includes.
    pub(super) accounted: usize,
}

impl SessionFlow {
    pub(super) fn new(
        now: Time,
        origin: FlowOrigin,
        open: OpenRequest,
        credit: u64,
        window: u64,
    ) -> Self {
        Self {
            origin,
            open,
            answer: None,
            is_open_sent: false,
            is_open_known: false,
            send: SendHalf::new(credit),
            receive: ReceiveHalf::new(window),
            turn: ScheduledFlow::new(now),
            accounted: 0,
        }
    }

    /// The flow ends with its answer and carries nothing.
    pub(super) fn is_failed(&self) -> bool {
        matches!(self.answer, Some(OpenAnswer::Failed(_)))
    }

    /// Its Open may not have arrived yet.
    pub(super) fn needs_open(&self) -> bool {
        self.origin == FlowOrigin::Ours && !self.is_open_known && self.answer.is_none()
    }

    /// Both directions have ended, and both decoders are through.
    pub(super) fn is_complete(&self) -> bool {
        self.send.ending == FinishState::Acknowledged
            && self.send.consumed() == self.send.written()
            && self.receive.is_consumed_to_end()
            && self.receive.finish_told
    }

    /// Bytes of memory that its two halves take beside itself, about.
    pub(super) fn memory(&self) -> usize {
        self.send.memory() + self.receive.memory()
    }

    /// Written and not consumed by the peer: what `writable` counts against the total credit.
    pub(super) fn committed(&self) -> u64 {
        self.send.written() - self.send.consumed()
    }

    pub(super) fn statistics(&self, now: Time) -> FlowStatistics {
        FlowStatistics {
            written_bytes: self.send.written(),
            sent_bytes: self.send.reached(),
            acknowledged_bytes: self.send.base(),
            peer_consumed_bytes: self.send.consumed(),
            received_bytes: self.receive.received(),
            consumed_bytes: self.receive.consumed(),
            retransmitted_bytes: self.send.retransmitted(),
            unsent_bytes: self.send.unsent(),
            receive_window_bytes: self.receive.window(),
            credit_blocked: self.send.blocked(now),
        }
    }
}
