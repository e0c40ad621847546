//! Packets without a link: they continue for a while after the link breaks.
//!
//! ```text
//!               link_down()                       a new link
//!  in packets ───────────────► broken, in packets ───────────► greeting … (link.rs)
//!                                       │
//!                                       └─ 60 s, or nothing is answered ──► no link, LinkLost
//! ```
//!
//! A TCP connection also ends for reasons unrelated to the path: a firewall that forgets it, a
//! reset. Flows then need not stop until there is another link. It also ends because the peer is
//! dead, so the peer counts as silent until it is heard again ([`SessionEvent::Heard`]), and is
//! pinged at once. There is no greeting meanwhile. A revocation by an operator still takes effect
//! at once, since the session ends with its peer.

use super::Session;
use super::flow::FlowOrigin;
use super::link::SessionLink;
use crate::SessionEvent;
use crate::packet::CloseCode;

impl Session {
    /// Lets packets continue without the link that has just broken, if frames travel in them.
    /// Returns `true` if they do.
    pub(super) fn keep_path_after_link(&mut self) -> bool {
        let now = self.now;
        let carries =
            |link: &&mut SessionLink| link.in_packets && link.datagrams.transport().is_some();
        let Some(link) = self.link.as_mut().filter(carries) else {
            return false;
        };
        link.broken_at = Some(now);
        link.datagrams.selection.restart();
        self.liveness.doubt();
        self.resend_unconfirmed();
        true
    }

    /// Returns `true` if packets continue without their link.
    #[must_use]
    pub fn is_path_without_link(&self) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| link.broken_at.is_some())
    }

    /// Has all that the peer may not have heard go out in packets: some of it may have been on the
    /// link, from before packets were up or from a trial.
    fn resend_unconfirmed(&mut self) {
        for (id, flow) in &mut self.flows {
            flow.send.rewind();
            if flow.needs_open() {
                self.control.opens.insert(*id);
            }
            if flow.origin == FlowOrigin::Theirs && flow.answer.is_some() {
                self.control.answers.insert(*id);
            }
            // A peer that may not know of a flow yet must not hear of it in this way.
            if !flow.needs_open() || flow.receive.received() > 0 {
                self.control.acknowledgements.insert(*id);
            }
        }
        self.messages.repeat();
        self.control.message_ack = true;
        self.control.go_away |= self.leaving;
        self.control.note_acknowledgement(self.now);
        for id in self.flows.keys().copied().collect::<Vec<_>>() {
            self.activate(id);
        }
    }

    /// Gives up a broken link beside which packets no longer get through.
    pub(super) fn check_broken_link(&mut self) {
        let link = self.link.as_ref();
        if let Some(link) = link.filter(|link| link.broken_at.is_some() && !link.in_packets) {
            let link = link.id;
            self.events.push_back(SessionEvent::LinkLost { link });
            self.detach(CloseCode::Finished);
        }
    }
}
