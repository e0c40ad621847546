//! A flow that is not open at the peer yet: who knows it, and what its client has sent meanwhile.
//!
//! ```text
//!  Unopened ── the near half has something for the far half, or lets go ──► Opened
//!     └─────── both directions of the client's connection end, or it is reset ──► over, 0 bytes on the WAN
//! ```
//! The engine opens the flow after the turn in which it is wanted (`connections.rs`), or has it go directly.
//! For that the client's bytes are kept until the open has left this node, save those that were answered here.

use std::collections::VecDeque;

use accelerate::WanEnd;
use bytes::Bytes;
use tunnel::{OpenRequest, Session};
use vocab::{FlowId, FlowSegment};

use super::lan::{HostState, StreamFinish};
use super::{Flow, FlowEnd, FlowTurn};

/// The client's bytes that are kept in case that they go directly: what a client sends while the link is full.
const UNSENT_MAX: usize = 256 * 1024;

/// What the session knows of a flow.
#[derive(Clone, Debug)]
pub(crate) enum FlowRegistration {
    /// Nothing. It is opened as this when its near half wants it.
    Unopened(Box<OpenRequest>),
    /// It is known by this id.
    Opened(FlowId),
}

impl FlowRegistration {
    /// What the session calls the flow, if it knows it.
    pub(crate) fn id(&self) -> Option<FlowId> {
        match self {
            Self::Unopened(_) => None,
            Self::Opened(id) => Some(*id),
        }
    }
}

/// What a client has sent that is not answered yet, of a flow that the peer never heard of.
#[derive(Debug)]
pub(crate) struct UnansweredBytes {
    pub(crate) bytes: VecDeque<Bytes>,
    /// It has sent its last byte.
    pub(crate) is_finished: bool,
}

/// What the client has sent while the open had not left this node.
#[derive(Debug)]
pub(super) struct UnsentBytes {
    /// `None` once that is not all.
    bytes: Option<VecDeque<Bytes>>,
    held: usize,
    /// The client was sent bytes that belong to no [`UnsentBytes::note_answered`] yet.
    is_answer_begun: bool,
}

impl UnsentBytes {
    pub(super) fn new(half: WanEnd) -> Self {
        Self {
            bytes: (half == WanEnd::Near).then(VecDeque::new),
            held: 0,
            is_answer_begun: false,
        }
    }

    /// Bytes that it holds.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    fn push(&mut self, bytes: &Bytes) {
        let Some(kept) = &mut self.bytes else {
            return;
        };
        if self.held + bytes.len() > UNSENT_MAX {
            return self.forget();
        }
        kept.push_back(bytes.clone());
        self.held += bytes.len();
    }

    pub(super) fn forget(&mut self) {
        self.bytes = None;
        self.held = 0;
    }

    /// The client is sent bytes.
    pub(super) fn note_answer(&mut self) {
        self.is_answer_begun = true;
    }

    /// The near half has answered so many of the bytes completely.
    pub(super) fn note_answered(&mut self, mut answered: usize) {
        let Some(kept) = &mut self.bytes else {
            return;
        };
        self.is_answer_begun = false;
        while answered > 0 {
            let Some(mut first) = kept.pop_front() else {
                // More than the client has sent: the half has lost count, and nothing may be sent twice.
                return self.forget();
            };
            let part = answered.min(first.len());
            answered -= part;
            self.held -= part;
            if part < first.len() {
                kept.push_front(first.split_off(part));
            }
        }
    }

    fn take(&mut self) -> Option<VecDeque<Bytes>> {
        self.held = 0;
        self.bytes.take().filter(|_| !self.is_answer_begun)
    }
}

impl Flow {
    /// What the session calls the flow; `None` while it is not open.
    pub(crate) fn id(&self) -> Option<FlowId> {
        self.registration.id()
    }

    /// How the flow is to be opened, if it is not.
    pub(crate) fn unopened(&self) -> Option<&OpenRequest> {
        match &self.registration {
            FlowRegistration::Unopened(open) => Some(open),
            FlowRegistration::Opened(_) => None,
        }
    }

    /// The flow is open by this id; what was put out for the peer follows at the next pump.
    pub(crate) fn opened(&mut self, id: FlowId) {
        self.registration = FlowRegistration::Opened(id);
    }

    /// Whether the flow is to be opened and is not. The end of the client's stream alone opens it as well,
    /// unless the half has ended the other direction: the server may have something to say to that.
    pub(crate) fn take_wish_for_opening(&mut self) -> bool {
        let is_server_waited_for =
            self.finish_wan != StreamFinish::Open && self.lan.finish == StreamFinish::Open;
        let is_wanted = std::mem::take(&mut self.wants_opening) || is_server_waited_for;
        is_wanted && self.unopened().is_some()
    }

    pub(super) fn send_to_peer(&mut self, turn: &FlowTurn<'_>, segment: FlowSegment) {
        self.wants_opening = true;
        self.encoder.push(turn.now, segment);
    }

    /// How a flow that was never opened has ended. The server of a client that is gone never heard of it.
    pub(super) fn end_unopened(&self) -> Option<FlowEnd> {
        if self.is_host_gone() {
            return Some(FlowEnd::HostReset);
        }
        self.lan.is_over().then_some(FlowEnd::Closed)
    }

    fn is_open_sent(&self, session: &Session) -> bool {
        self.id().is_some_and(|id| session.is_open_sent(id))
    }

    /// Keeps what the client sends as long as the peer cannot have heard of the flow.
    pub(super) fn keep_unsent(&mut self, session: &Session, bytes: &Bytes) {
        match self.is_open_sent(session) {
            true => self.unsent.forget(),
            false => self.unsent.push(bytes),
        }
    }

    /// All that the client has sent and that was not answered here, if it has no part of an answer and the
    /// peer cannot have heard of the flow.
    pub(crate) fn take_unanswered(&mut self, session: &Session) -> Option<UnansweredBytes> {
        let is_untouched = !self.is_open_sent(session)
            && self.lan.host == HostState::Standing
            && self.lan.finish == StreamFinish::Open;
        let bytes = self.unsent.take().filter(|_| is_untouched);
        Some(UnansweredBytes {
            bytes: bytes?,
            is_finished: self.lan.finished,
        })
    }

    /// Bytes given to the shell for the host and not yet taken by the operating system.
    pub(crate) fn queued(&self) -> usize {
        self.lan.queued
    }
}
