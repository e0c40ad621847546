//! A flow that is not open at the peer yet: its state, and the bytes that its client has sent
//! meanwhile.
//!
//! ```text
//!  Unopened ── the near half has something for the far half, or lets go ──► Opened
//!     └─────── both directions of the client's connection end, or it is reset ──► over, 0 bytes on the WAN
//! ```
//! The engine opens the flow after the turn in which it was requested (`connections.rs`), or makes
//! it a direct connection. For that case the client's bytes are kept until the open has left this
//! node, except those that were answered here.

use std::collections::VecDeque;

use accelerate::WanEnd;
use bytes::Bytes;
use tunnel::{OpenRequest, Session};
use vocab::{FlowId, FlowSegment};

use super::lan::{HostState, StreamFinish};
use super::{Flow, FlowEnd, FlowTurn};

/// The client's bytes that are kept in case the flow goes directly: the bytes that a client sends
/// while the link is full.
const UNSENT_MAX: usize = 256 * 1024;

/// The session's view of a flow.
#[derive(Clone, Debug)]
pub(crate) enum FlowRegistration {
    /// Nothing. It is opened as this when its near half wants it.
    Unopened(Box<OpenRequest>),
    /// It is known by this id.
    Opened(FlowId),
}

impl FlowRegistration {
    /// The session's id of the flow, if the flow is open.
    pub(crate) fn id(&self) -> Option<FlowId> {
        match self {
            Self::Unopened(_) => None,
            Self::Opened(id) => Some(*id),
        }
    }
}

/// The client's unanswered bytes of a flow that was never opened at the peer.
#[derive(Debug)]
pub(crate) struct UnansweredBytes {
    pub(crate) bytes: VecDeque<Bytes>,
    /// It has sent its last byte.
    pub(crate) is_finished: bool,
}

/// The client's bytes that arrived before the open left this node.
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
    /// The session's id of the flow; `None` while the flow is not open.
    pub(crate) fn id(&self) -> Option<FlowId> {
        self.registration.id()
    }

    /// The open that the flow is to be opened with, if it is not open.
    pub(crate) fn unopened(&self) -> Option<&OpenRequest> {
        match &self.registration {
            FlowRegistration::Unopened(open) => Some(open),
            FlowRegistration::Opened(_) => None,
        }
    }

    /// Records that the flow is open by this id; output for the peer follows at the next pump.
    pub(crate) fn opened(&mut self, id: FlowId) {
        self.registration = FlowRegistration::Opened(id);
    }

    /// Returns true if the flow must be opened now. The end of the client's stream alone opens it
    /// as well, because the server may still answer, unless the half has ended the other direction.
    pub(crate) fn take_wish_for_opening(&mut self) -> bool {
        let is_server_waited_for =
            self.finish_wan != StreamFinish::Open && self.lan.finish == StreamFinish::Open;
        let is_wanted = std::mem::take(&mut self.wants_opening) || is_server_waited_for;
        is_wanted && self.unopened().is_some()
    }

    pub(super) fn send_to_peer(&mut self, turn: &FlowTurn<'_>, segment: FlowSegment) {
        self.wants_opening = true;
        self.backlog_told = None;
        self.encoder.push(turn.now, segment);
    }

    /// Returns how an unopened flow has ended. The server of a client that is gone never learns of
    /// it.
    pub(super) fn end_unopened(&self) -> Option<FlowEnd> {
        if self.is_host_gone() {
            return Some(FlowEnd::HostReset);
        }
        self.lan.is_over().then_some(FlowEnd::Closed)
    }

    fn is_open_sent(&self, session: &Session) -> bool {
        self.id().is_some_and(|id| session.is_open_sent(id))
    }

    /// Keeps the client's bytes as long as the peer cannot know the flow.
    pub(super) fn keep_unsent(&mut self, session: &Session, bytes: &Bytes) {
        match self.is_open_sent(session) {
            true => self.unsent.forget(),
            false => self.unsent.push(bytes),
        }
    }

    /// Returns all bytes of the client that were not answered here, if it has no part of an answer
    /// and the peer cannot know the flow.
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
