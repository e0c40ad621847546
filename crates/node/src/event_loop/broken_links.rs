//! Links whose TLS connection is gone. They stay only as long as their UDP sockets have packets to
//! send.

use engine::{EngineInput, LinkEnd, LinkId};
use vocab::Time;

use super::{EventLoop, LinkSlot};

impl EventLoop {
    pub(super) fn link_down(&mut self, now: Time, link: LinkId, end: LinkEnd) {
        self.note_paths();
        self.engine.handle(now, EngineInput::LinkDown { link, end });
        self.drain();
        if let Some(slot) = self.links.get_mut(&link) {
            slot.is_broken = true;
            let peer = slot.peer;
            self.count_link(peer, |links| links.up = links.up.saturating_sub(1));
            self.broken.push(link);
        }
        self.forget_broken_links();
    }

    /// Drops broken links once their UDP sockets have nothing left to send: flows may continue in
    /// packets until there is another link, and the end of a path is sent a few times.
    pub(super) fn forget_broken_links(&mut self) {
        let mut broken = std::mem::take(&mut self.broken);
        broken.retain(|link| {
            let is_used = self.engine.uses(*link);
            if !is_used {
                drop(self.forget_link(*link));
            }
            is_used
        });
        self.broken = broken;
    }

    pub(super) fn forget_link(&mut self, link: LinkId) -> Option<LinkSlot> {
        let slot = self.links.remove(&link)?;
        if let Some(datagrams) = &slot.datagrams {
            self.paths.remove(datagrams.connection_id());
        }
        Some(slot)
    }
}
