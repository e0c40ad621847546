//! Attached link of a session, and the move from one link to the next.
//!
//! ```text
//!  link_up ──► greeting ──peer's Hello──► resuming ──peer's last Resume──► established
//!     our Hello goes out     our Resume goes out      everything else goes out
//! ```
//!
//! A side sends nothing about flows before it knows the peer's progress. Data in flight on the old
//! link can therefore be forgotten: the Resume names the position to continue from.

use vocab::{FlowId, Time};

use super::datagrams::DatagramPath;
use super::flow::FlowOrigin;
use super::liveness::PeerPresence;
use super::{MessageQueue, PendingControl, RecentResets, Session};
use crate::limits::{HELLO_TIMEOUT, PACKETS_OUTLIVE_LINK, SIMULTANEOUS_DIAL};
use crate::packet::CloseCode;
use crate::wire::{
    HelloFrame, LEAST_VERSION, POSITIONS_PER_FRAME, ReceiptState, ResumeContinuation, ResumeFrame,
    ResumePosition, SessionFrame, VERSION,
};
use crate::{LinkEnd, LinkId, ResetReason, SessionError, SessionEvent};

/// Phase of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkPhase {
    Greeting,
    Resuming,
    Established,
}

/// Part of this side's Resume that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumeOut {
    From(FlowId),
    Done,
}

#[derive(Debug)]
pub(super) struct SessionLink {
    pub(super) id: LinkId,
    pub(super) phase: LinkPhase,
    /// The bytes of a frame that is not all there yet.
    pub(super) begun: Vec<u8>,
    pub(super) hello_waiting: bool,
    pub(super) resume_out: ResumeOut,
    /// Flow frames travel in packets beside it.
    pub(super) in_packets: bool,
    pub(super) datagrams: DatagramPath,
    dialed_by_us: bool,
    attached: Time,
    /// Time at which the link broke, if packets continue without it.
    pub(super) broken_at: Option<Time>,
}

impl SessionLink {
    /// Returns the time at which a link without a hello is dropped, or at which packets without a
    /// link end.
    pub(super) fn timeout(&self) -> Time {
        if let Some(broken_at) = self.broken_at {
            return broken_at + PACKETS_OUTLIVE_LINK;
        }
        match self.phase {
            LinkPhase::Greeting | LinkPhase::Resuming => self.attached + HELLO_TIMEOUT,
            LinkPhase::Established => Time::NEVER,
        }
    }

    pub(super) fn dialed_by_us(&self) -> bool {
        self.dialed_by_us
    }
}

impl Session {
    /// A new link to the peer, authenticated by the shell on both sides.
    ///
    /// It takes the place of the attached one, which [`SessionEvent::LinkReplaced`] then names. Only
    /// when the attached one is younger than [`SIMULTANEOUS_DIAL`], was dialled by the other
    /// side and is not silent, the link dialled by the lower node id stays.
    pub fn link_up(&mut self, now: Time, link: LinkId, dialed_by_us: bool) {
        self.advance(now);
        if let Some(current) = &self.link {
            let together = current.broken_at.is_none()
                && current.dialed_by_us != dialed_by_us
                && self.now.since(current.attached) < SIMULTANEOUS_DIAL
                && self.liveness.presence() != PeerPresence::Silent;
            let lower_dialed_current = current.dialed_by_us == (self.local < self.peer);
            if together && lower_dialed_current {
                self.events.push_back(SessionEvent::LinkReplaced { link });
                return;
            }
            let link = current.id;
            self.events.push_back(SessionEvent::LinkReplaced { link });
            self.detach(CloseCode::Finished);
        }
        self.link = Some(SessionLink {
            id: link,
            phase: LinkPhase::Greeting,
            begun: Vec::new(),
            hello_waiting: true,
            resume_out: ResumeOut::From(FlowId(0)),
            in_packets: false,
            datagrams: DatagramPath::new(),
            dialed_by_us,
            attached: self.now,
            broken_at: None,
        });
    }

    /// Handles the loss of a link; a link that was replaced before may still be reported here.
    /// Frames that travel in packets beside it continue until there is another link, for 60 s at
    /// most ([`Self::is_path_without_link`]). [`SessionEvent::Heard`] reports that they get
    /// through, and [`SessionEvent::LinkLost`] their end.
    ///
    /// Flows wait for another link until [`crate::SessionConfig::give_up_after`]. When the peer's
    /// host closed this one ([`LinkEnd::ClosedByPeer`]) and no sign of life arrives for
    /// [`crate::SessionConfig::silent_after`], the peer's process is dead and its flows are reset.
    pub fn link_down(&mut self, now: Time, link: LinkId, end: LinkEnd) {
        self.advance(now);
        let current = self.link.as_ref().filter(|current| current.id == link);
        if current.is_none_or(|current| current.broken_at.is_some()) {
            return;
        }
        if end == LinkEnd::ClosedByPeer {
            self.liveness.closed(self.now);
        }
        if !self.keep_path_after_link() {
            self.detach(CloseCode::Finished);
        }
    }

    /// Drops the link and its pending frames; the next one begins with a Resume. Its datagram path
    /// ends with this code.
    pub(super) fn detach(&mut self, code: CloseCode) {
        if let Some(link) = self.link.take()
            && let Some(path) = link.datagrams.into_transport()
        {
            self.leave_path(link.id, path, code);
        }
        self.control = PendingControl::default();
        self.liveness.stop();
    }

    pub(super) fn drop_timed_out_link(&mut self) {
        let late = (self.link.as_ref()).filter(|link| self.now >= link.timeout());
        if let Some(current) = late {
            let link = current.id;
            self.events.push_back(match current.broken_at {
                Some(_) => SessionEvent::LinkLost { link },
                None => SessionEvent::LinkReplaced { link },
            });
            self.detach(CloseCode::Finished);
        }
    }

    pub(super) fn hello(&self) -> SessionFrame {
        SessionFrame::Hello(HelloFrame {
            version: VERSION,
            least_version: LEAST_VERSION,
            sender: self.local,
            receiver: self.peer,
            incarnation: self.incarnation,
            known_incarnation: self.peer_incarnation.unwrap_or_default(),
            flow_window: self.config.flow_window.bytes(),
            total_window: self.config.total_window.bytes(),
            blob: self.blob.clone(),
        })
    }

    pub(super) fn on_hello(&mut self, hello: HelloFrame) -> Result<(), SessionError> {
        if hello.version < LEAST_VERSION || hello.least_version > VERSION {
            return Err(SessionError::PeerIncompatible {
                least: hello.least_version,
                newest: hello.version,
                ours_least: LEAST_VERSION,
                ours_newest: VERSION,
            });
        }
        if hello.sender != self.peer || hello.receiver != self.local {
            return Err(SessionError::WrongNode(hello.sender));
        }
        if hello.incarnation == [0; 16] {
            return Err(SessionError::PeerMisbehaved("an incarnation of zero"));
        }
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        match link.phase {
            LinkPhase::Greeting => {
                link.phase = LinkPhase::Resuming;
                self.liveness.met();
            }
            LinkPhase::Resuming | LinkPhase::Established => {
                if self.peer_incarnation != Some(hello.incarnation) {
                    return Err(SessionError::PeerMisbehaved(
                        "another incarnation on one link",
                    ));
                }
                if self.peer_blob.as_ref() != Some(&hello.blob) {
                    self.peer_blob = Some(hello.blob.clone());
                    self.events
                        .push_back(SessionEvent::Hello { blob: hello.blob });
                }
                return Ok(());
            }
        }
        if self.peer_incarnation != Some(hello.incarnation) {
            if self.peer_incarnation.is_some() {
                self.events.push_back(SessionEvent::PeerRestarted);
                self.lose_all(ResetReason::PeerRestarted);
                // The new incarnation numbers its flows from the start: a reset or an
                // acknowledgement meant for the old one must not hit a namesake.
                self.control.resets.clear();
                self.control.last_acknowledgements.clear();
            }
            self.peer_incarnation = Some(hello.incarnation);
            self.peer_next = 0;
            self.unopened.clear();
            self.peer_leaving = false;
            self.messages = MessageQueue::default();
            self.resets = RecentResets::default();
        }
        self.peer_version = hello.version;
        self.peer_flow_window = hello.flow_window;
        self.peer_total_window = self.total_credit(hello.total_window);
        self.peer_blob = Some(hello.blob.clone());
        self.events
            .push_back(SessionEvent::Hello { blob: hello.blob });
        Ok(())
    }

    /// The next of our Resume frames, as long as there is one.
    pub(super) fn next_resume(&mut self) -> Option<SessionFrame> {
        let link = self.link.as_ref()?;
        let ResumeOut::From(from) = link.resume_out else {
            return None;
        };
        let ids: Vec<FlowId> = self
            .flows
            .range(from..)
            .map(|(flow, _)| *flow)
            .take(POSITIONS_PER_FRAME + 1)
            .collect();
        let more = ids.get(POSITIONS_PER_FRAME).copied();
        let around = self.surroundings();
        let positions = ids
            .iter()
            .take(POSITIONS_PER_FRAME)
            .filter_map(|id| {
                let flow = self.flows.get_mut(id)?;
                let answered = flow.origin == FlowOrigin::Ours && flow.answer.is_some();
                self.control.acknowledgements.remove(id);
                Some(ResumePosition {
                    ack: flow.receive.acknowledgement(*id, &around),
                    answer: if answered {
                        ReceiptState::Seen
                    } else {
                        ReceiptState::NotYet
                    },
                })
            })
            .collect();
        let link = self.link.as_mut()?;
        link.resume_out = more.map_or(ResumeOut::Done, ResumeOut::From);
        Some(SessionFrame::Resume(ResumeFrame {
            series: if more.is_some() {
                ResumeContinuation::More
            } else {
                ResumeContinuation::Last
            },
            flows_seen_below: self.unopened.first().map_or(self.peer_next, |id| id.0),
            next_message: self.messages.next_incoming(),
            positions,
        }))
    }

    pub(super) fn on_resume(&mut self, resume: ResumeFrame) -> Result<(), SessionError> {
        if resume.flows_seen_below > self.next_id {
            return Err(SessionError::PeerMisbehaved(
                "it has seen flows that were never opened",
            ));
        }
        if !self.messages.acknowledge(resume.next_message) {
            return Err(SessionError::PeerMisbehaved(
                "it has messages that were never sent",
            ));
        }
        for position in &resume.positions {
            self.on_position(position)?;
        }
        if resume.series == ResumeContinuation::More {
            return Ok(());
        }
        for (id, flow) in &mut self.flows {
            if flow.origin == FlowOrigin::Ours && id.0 >= resume.flows_seen_below {
                flow.send.rewind();
                self.control.opens.insert(*id);
            }
        }
        self.messages.rewind();
        self.establish();
        Ok(())
    }

    fn on_position(&mut self, position: &ResumePosition) -> Result<(), SessionError> {
        let id = position.ack.flow;
        let Some(flow) = self.flows.get_mut(&id) else {
            // A flow of the peer's whose Open has not come yet needs no answer.
            if !self.is_ours(id) && (id.0 >= self.peer_next || self.unopened.contains(&id)) {
                return Ok(());
            }
            if id.0 >= self.next_id && self.is_ours(id) {
                return Err(SessionError::PeerMisbehaved(
                    "it has a flow that was never opened",
                ));
            }
            let reason = self.resets.reason(id).unwrap_or(ResetReason::Gone);
            self.control.resets.insert(id, reason);
            return Ok(());
        };
        let answer_missing =
            flow.origin == FlowOrigin::Theirs && position.answer == ReceiptState::NotYet;
        if answer_missing && flow.answer.is_some() {
            self.control.answers.insert(id);
        }
        self.apply_ack(&position.ack)?;
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.send.rewind();
        }
        Ok(())
    }

    fn establish(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        link.phase = LinkPhase::Established;
        let link = link.id;
        if self.establishments > 0 {
            self.counters.link_changes += 1;
        }
        self.establishments += 1;
        self.liveness.restart();
        self.control.go_away = self.leaving;
        self.events.push_back(SessionEvent::LinkAttached { link });
        let ids: Vec<FlowId> = self.flows.keys().copied().collect();
        for id in ids {
            self.activate(id);
            self.check_room(id);
        }
    }
}
