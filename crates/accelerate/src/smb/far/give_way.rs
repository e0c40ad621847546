//! Closes the opens that no client has before a request of the client that a server would refuse because of them
//! (docs/decisions/0090).
//!
//! A server refuses to rename a directory while something in it is open, and to replace an open file. What is
//! deleted keeps its name while it is open.
//!
//! ```text
//!  client            near half                 far half                         server
//!    │── SET_INFO, name ────────────────────────►│── CLOSE of the opens ahead ───►│
//!    │                   │◄── Revoke ────────────│◄───────────────────────────────│
//!    │                   │                       │── SET_INFO, name ─────────────►│
//! ```
//! The near half has seen the request before. From then on it gives the client no open from before this request. What
//! it gave earlier was to a request that came earlier, too, and that waits here. So this half closes an open that no
//! request waits for without the near half's word, and the client's request waits for the server alone.

use std::collections::HashMap;

use super::message::GatheredMessage;
use super::{OutstandingRequest, RequestPurpose, Smb2FarHalf};
use crate::smb::config::OPENS_MAX;
use crate::smb::listing::deletes_on_close;
use crate::smb::offer::drops_offers;
use crate::smb::wire::FileId;
use crate::smb::wire::create::CreateResponse;
use crate::smb::wire::header::{command, status};
use crate::smb::wire::set_info::{plain_change, position_set};
use crate::smb::wire::split::Smb2MessageHead;
use crate::smb::wire::target::{CompoundChain, RequestEffect};

/// The opens ahead that a server may refuse a frame for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConflictingOpens {
    None,
    /// Those of directories, and of names that were looked for. The files' own are under oplocks and leases.
    Directories,
    All,
}

/// The client's opens that delete their files as they are closed, with their sessions and trees.
#[derive(Debug, Default)]
pub(super) struct DeletingOpens(HashMap<FileId, (u64, u32)>);

impl DeletingOpens {
    /// The server has answered a request of the client's.
    pub(super) fn answered(&mut self, head: &Smb2MessageHead, request: &OutstandingRequest) {
        if head.header.status != status::SUCCESS {
            return;
        }
        match request.purpose {
            RequestPurpose::Closes(file) => {
                self.0.remove(&file);
            }
            RequestPurpose::Ends { session, tree } => {
                let is_ended =
                    |of: &(u64, u32)| of.0 == session && tree.is_none_or(|id| id == of.1);
                self.0.retain(|_, of| !is_ended(of));
            }
            _ if request.deletes && self.0.len() < OPENS_MAX => {
                if let Ok(answer) = CreateResponse::parse(head.body()) {
                    self.0
                        .insert(answer.file, (head.header.session, head.header.tree));
                }
            }
            _ => {}
        }
    }
}

impl Smb2FarHalf {
    /// The opens ahead that the server may refuse this frame for.
    fn conflicts(&self, message: &GatheredMessage) -> ConflictingOpens {
        let mut chain = CompoundChain::default();
        let mut found = ConflictingOpens::None;
        for head in message.heads() {
            let body = head.body();
            let touch = chain.touch(&head.header, body);
            let is_meant = match (head.header.command, touch) {
                (command::SET_INFO, _)
                    if plain_change(body).is_none() && position_set(body).is_none() =>
                {
                    return ConflictingOpens::All;
                }
                (command::CREATE, _) => deletes_on_close(body),
                (_, RequestEffect::Closes(file)) => self.deleting.0.contains_key(&file),
                (_, RequestEffect::EndsTree | RequestEffect::EndsSession) => true,
                _ => false,
            };
            if is_meant {
                found = ConflictingOpens::Directories;
            }
        }
        found
    }

    /// A frame of the client's has come: opens ahead that it conflicts with, and those that it ends by the near half's
    /// rule, are closed.
    pub(super) fn give_way(&mut self, message: &GatheredMessage) {
        if self.conflicts(message) != ConflictingOpens::None {
            self.give_up_children();
        }
        if message.heads().any(|head| drops_offers(&head.header)) {
            self.give_up_offers();
        }
    }

    /// Returns true if a frame waits for opens ahead to be closed.
    pub(super) fn waits_for_opens_ahead(&self, message: &GatheredMessage) -> bool {
        let conflicts = self.conflicts(message);
        if conflicts == ConflictingOpens::None {
            return false;
        }
        let is_all = conflicts == ConflictingOpens::All;
        let mut own = self.outstanding.values().filter(|of| {
            // One that the server has told to be pending has opened nothing, and may be so for long.
            let is_opening = match of.purpose {
                RequestPurpose::OpensChild(_) | RequestPurpose::LooksAhead(_) => true,
                RequestPurpose::OpensAhead(_) => is_all,
                RequestPurpose::ClosesAhead(_) => return true,
                _ => false,
            };
            is_opening && !of.is_pending
        });
        self.children.has_offers()
            || is_all && !self.opens_ahead.offers.is_empty()
            || self.opens_ahead.has_unwanted()
            || own.next().is_some()
    }
}
