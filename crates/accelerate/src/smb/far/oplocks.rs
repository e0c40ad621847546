//! Gives oplocks back.
//!
//! ```text
//!  server          far half             near half
//!    │── break ──────►│── Revoke ──────────►│  stops answering for this open
//!    │                │◄───────── Revoked ──│  (behind every WRITE that it has answered)
//!    │◄─ WRITEs ──────│
//!    │◄─ acknowledge ─│  once all of them are answered, or CONFIRM_WITHIN after the break
//! ```
//! WRITEs after Revoked belong to the server alone, and the acknowledgement waits for none of them:
//! a client that never stops writing delays no other client.
//!
//! The near half stops by itself [`FRESH_FOR`](crate::smb::config::FRESH_FOR) after the last
//! confirmation of its licences, so that an oplock given back without its confirmation is no longer
//! in use. Later WRITEs, from before the path broke, are refused and reported.

use bytes::Bytes;
use vocab::Time;

use super::message::GatheredMessage;
use super::open::LicenceState;
use super::requests::change_of;
use super::{
    FarState, FileChange, OutstandingRequest, RequestPurpose, ResponseRemainder, Smb2FarHalf,
    StreamFinish,
};
use crate::ReasonCode;
use crate::smb::config::{CONFIRM_WITHIN, TAKEN_AFTER};
use crate::smb::frames::HalfFrame;
use crate::smb::wire::FileId;
use crate::smb::wire::create::oplock_level;
use crate::smb::wire::header::{command, status};
use crate::smb::wire::lease::LeaseBreak;
use crate::smb::wire::oplock::OplockBreak;
use crate::smb::wire::split::Smb2MessageHead;
use crate::smb::wire::target::touch;

/// The limit of breaks of unknown opens; a server has no reason to send more of them than there are
/// outstanding CREATEs.
const EARLY_BREAKS_MAX: usize = 64;

/// A break that may precede the answer to its CREATE, which then identifies its open.
#[derive(Debug)]
pub(super) struct EarlyBreak {
    file: FileId,
    /// The original notice, with its frame header, until the client receives it, and the session
    /// that it was encrypted for.
    notice: Option<Bytes>,
    sealed: Option<u64>,
    /// Its place among all of the flow.
    number: u64,
    /// It may belong to CREATEs whose ids at the server are below this, and to so many still.
    below: u64,
    creates: usize,
    /// The number of those without news since.
    unheard: usize,
}

/// See [`EarlyBreak`].
#[derive(Debug, Default)]
pub(super) struct EarlyBreaks {
    kept: Vec<EarlyBreak>,
    /// The number of breaks so far.
    count: u64,
}

impl EarlyBreaks {
    /// The bytes kept: many outstanding CREATEs keep no more than one.
    pub(super) fn bytes(&self) -> usize {
        let notices = self.kept.iter().filter_map(|early| early.notice.as_ref());
        self.kept.len() * size_of::<EarlyBreak>() + notices.map(Bytes::len).sum::<usize>()
    }
}

impl Smb2FarHalf {
    /// Something that the server sends unasked.
    pub(super) fn unasked(&mut self, now: Time, mut head: Smb2MessageHead) {
        let is_for_the_client = match OplockBreak::parse(head.body()) {
            Ok(notice) if head.header.command == command::OPLOCK_BREAK => {
                self.break_of(now, notice.file, &head)
            }
            // Only a client has asked for a lease, or for what is not known.
            Ok(_) | Err(_) => match LeaseBreak::parse(head.body()) {
                Ok(notice) if head.header.command == command::OPLOCK_BREAK => {
                    self.aliased_break(now, notice, &mut head)
                }
                Ok(_) | Err(_) => true,
            },
        };
        if self.state == FarState::Gone {
            return;
        }
        if is_for_the_client {
            self.pass_head(head);
        } else if head.is_single() {
            self.rest = ResponseRemainder::Swallow;
        } else {
            self.stop(ReasonCode::VIOLATION);
        }
    }

    /// Handles a server's oplock break. Returns true if the client must receive it now.
    fn break_of(&mut self, now: Time, file: FileId, head: &Smb2MessageHead) -> bool {
        if let Some(open) = self.opens.get(&file) {
            let is_ours = open.is_ours;
            self.broken(now, file);
            return !is_ours;
        }
        let creates = self.outstanding.values();
        let creates = creates.filter(|request| may_hold(&request.purpose)).count();
        if creates == 0 || head.message().len() < head.length {
            return true;
        }
        // Of an open whose CREATE was answered in another order, perhaps.
        if self.early_breaks.kept.len() == EARLY_BREAKS_MAX {
            self.stop(ReasonCode::VIOLATION);
            return false;
        }
        self.early_breaks.kept.push(EarlyBreak {
            file,
            notice: Some(Bytes::copy_from_slice(&head.bytes)),
            sealed: self.answer_sealed,
            number: self.early_breaks.count,
            below: self.ids.next(),
            creates,
            unheard: creates,
        });
        self.early_breaks.count += 1;
        false
    }

    /// Handles an open whose break may have arrived before. A client that has requested its oplock
    /// receives the break behind the answer, and so behind the near half.
    pub(super) fn break_early(&mut self, now: Time, file: FileId) {
        let mut early = self.early_breaks.kept.iter();
        let Some(index) = early.position(|early| early.file == file) else {
            return;
        };
        let early = self.early_breaks.kept.remove(index);
        self.broken(now, file);
        if !self.opens.get(&file).is_some_and(|open| open.is_ours) {
            let notice = early.notice.into_iter();
            self.ready.extend(notice.map(|of| (early.sealed, of)));
        }
    }

    /// Handles an answered or pending request. Breaks that belong to no outstanding CREATE are the
    /// client's, because their opens are unknown here. It also receives them once the remaining
    /// CREATEs are pending: a pending CREATE has hardly opened a file yet, and may wait for that
    /// very break.
    pub(super) fn give_early_breaks(
        &mut self,
        answered: u64,
        of: &OutstandingRequest,
        is_interim: bool,
    ) {
        if self.early_breaks.kept.is_empty() || !may_hold(&of.purpose) {
            return;
        }
        if is_interim {
            let heard = self.early_breaks.count;
            self.outstanding.is_pending(answered, heard);
        }
        for mut early in std::mem::take(&mut self.early_breaks.kept) {
            if answered < early.below {
                early.unheard -= usize::from(of.heard_breaks <= early.number);
                early.creates -= usize::from(!is_interim);
            }
            if early.unheard == 0 {
                let notice = early.notice.take().into_iter();
                self.ready.extend(notice.map(|of| (early.sealed, of)));
            }
            if early.creates > 0 {
                self.early_breaks.kept.push(early);
            }
        }
    }

    /// Drops the oplock break of an open that is discarded.
    pub(super) fn forget_early_break(&mut self, file: FileId) {
        self.early_breaks.kept.retain(|early| early.file != file);
    }

    /// Handles the server's break of an open's oplock or lease.
    pub(super) fn broken(&mut self, now: Time, file: FileId) {
        if let Some(open) = self.opens.get_mut(&file) {
            open.is_recalled = true;
            // The near half stopped before the server asked; a CLOSE under way gives the oplock back as well.
            if open.keeps_oplock && !open.is_closing {
                self.acknowledge(file);
            }
        }
        self.give_back(now, file);
    }

    /// Ends the work for an open, and begins to give its oplock back if the server wants it.
    pub(super) fn give_back(&mut self, now: Time, file: FileId) {
        self.forget_ahead(file);
        let is_alone = self.client_finish != StreamFinish::Open;
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        if open.grant != LicenceState::Held {
            return;
        }
        // A CLOSE under way gives it back as well.
        if open.is_closing {
            open.is_broken = true;
            return;
        }
        open.grant = LicenceState::Breaking {
            confirmed: is_alone,
            at_latest: match open.is_ours {
                true => now + CONFIRM_WITHIN,
                // The client gives it back itself, and hears of the break after the near half; if
                // it does not, the server takes it.
                false => now + TAKEN_AFTER,
            },
        };
        self.breaking.push(file);
        self.reading.retain(|reading| *reading != file);
        self.offer_broken(file);
        self.tell_near(HalfFrame::Revoke { file });
    }

    /// Handles a failed CLOSE: the oplock that it should release is given back otherwise.
    pub(super) fn stays_open(&mut self, now: Time, file: FileId) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        open.is_closing = false;
        let (is_broken, is_recalled) = (open.is_broken, open.is_recalled && open.keeps_oplock);
        open.is_broken = false;
        if is_broken {
            self.give_back(now, file);
        }
        if is_recalled {
            self.acknowledge(file);
        }
        self.give_back_for_channels(now, file);
    }

    /// Ends the licences to answer WRITEs of sessions that the server will soon refuse ([MS-SMB2] §3.3.5.2.9,
    /// Verifying the Session). A client repeats a refused WRITE, but not one that was answered.
    pub(super) fn give_back_for_ending_sessions(&mut self, now: Time) {
        for session in self.sessions.take_ending(now) {
            for file in self.files() {
                let open = &self.opens[&file];
                if open.session == session && open.may_write {
                    self.give_back(now, file);
                }
            }
        }
    }

    /// Returns true if another connection may work on this session's opens.
    pub(super) fn may_have_channels(&self, session: u64) -> bool {
        let is_keyed = self.sessions.is_keyed(session);
        self.connection.may_have_channels(session, is_keyed)
    }

    /// Ends the work for an open that its client could use through another channel, if its session
    /// may have one.
    pub(super) fn give_back_for_channels(&mut self, now: Time, file: FileId) {
        let Some(open) = self.opens.get(&file) else {
            return;
        };
        let is_given = open.grant == LicenceState::Given;
        if !self.may_have_channels(open.session) {
            return;
        }
        if !is_given {
            return self.give_back(now, file);
        }
        let Some(open) = self.opens.get_mut(&file).filter(|open| open.may_close) else {
            return;
        };
        if let Some(listing) = &mut open.listing {
            // As if a request of the client's own were under way for ever: the server's place in the
            // listing is where it stands in every channel. First names are forgotten by both halves
            // as the IOCTL passes, which may change names.
            listing.asked_by_client += 1;
        }
        self.tell_near(HalfFrame::Revoke { file });
    }

    /// The near half has stopped.
    pub(super) fn confirmed(&mut self, file: FileId) {
        if self.opens_ahead.is_offered(file) {
            return self.not_taken(file);
        }
        if self.children.is_offered(file) {
            return self.child_not_taken(file);
        }
        let queued_writes = self.queued_writes(file);
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        // Those that wait came before, and are treated so.
        if !open.has_confirmed() {
            open.queued_writes = queued_writes;
        }
        open.refuses_writes = false;
        // A CLOSE that has come may have been answered before.
        open.may_close &= open.is_closing;
        if let LicenceState::Breaking { confirmed, .. } = &mut open.grant {
            *confirmed = true;
        }
    }

    /// Gives overdue oplocks back without the near half's confirmation.
    pub(super) fn give_back_overdue(&mut self, now: Time) {
        for file in &self.breaking {
            if let Some(open) = self.opens.get_mut(file)
                && let LicenceState::Breaking {
                    confirmed,
                    at_latest,
                } = &mut open.grant
                && !*confirmed
                && *at_latest <= now
            {
                *confirmed = true;
                // Where none is answered here, none was lost.
                open.refuses_writes = open.may_write;
            }
        }
    }

    /// The time at which the next one is overdue.
    pub(super) fn next_overdue(&self) -> Option<Time> {
        self.breaking
            .iter()
            .filter_map(|file| match self.opens.get(file)?.grant {
                LicenceState::Breaking {
                    confirmed: false,
                    at_latest,
                } => Some(at_latest),
                LicenceState::Held | LicenceState::Breaking { .. } | LicenceState::Given => None,
            })
            .min()
    }

    /// Gives back the oplocks that the near half has confirmed and that have no outstanding WRITE.
    pub(super) fn give_back_confirmed(&mut self) {
        for file in self.breaking.clone() {
            let open = &self.opens[&file];
            let LicenceState::Breaking {
                confirmed: true, ..
            } = open.grant
            else {
                continue;
            };
            let has_credit = self.ids.can_take(1) || self.outstanding.is_empty();
            // A CLOSE that has come gives it back as well, and behind that the server knows it no more.
            let is_closing = open.is_closing;
            let is_queued = match open.refuses_writes {
                true => self.queued_writes(file) > 0,
                false => open.queued_writes > 0,
            };
            if open.writing > 0 || is_closing || !has_credit || is_queued {
                continue;
            }
            let mut is_recalled = false;
            if let Some(open) = self.opens.get_mut(&file) {
                open.grant = LicenceState::Given;
                open.reads = None;
                open.keeps_oplock = open.is_ours;
                is_recalled = open.is_ours && open.is_recalled;
            }
            self.breaking.retain(|breaking| *breaking != file);
            if is_recalled {
                self.acknowledge(file);
            }
        }
    }

    /// Gives the server an oplock that the client does not know of.
    fn acknowledge(&mut self, file: FileId) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        (open.keeps_oplock, open.is_recalled) = (false, false);
        let header = open.request(command::OPLOCK_BREAK);
        let acknowledgement = OplockBreak {
            level: oplock_level::NONE,
            file,
        };
        self.send_own(
            header,
            &acknowledgement.emit(),
            RequestPurpose::GivesBack(file),
        );
    }

    /// The server has answered an acknowledgement. If the session has expired, the oplock is given back once the
    /// client has proved its identity again.
    pub(super) fn given_back(&mut self, file: FileId, status: u32) {
        if status == status::NETWORK_SESSION_EXPIRED
            && let Some(open) = self.opens.get_mut(&file)
        {
            (open.keeps_oplock, open.is_recalled) = (true, true);
        }
    }

    /// The client has set up this session, perhaps again: what the server has refused meanwhile is given back.
    pub(super) fn give_back_refused(&mut self, now: Time, session: u64) {
        for (file, open) in &mut self.opens {
            let is_refused = open.keeps_oplock && open.is_recalled && !open.is_closing;
            if open.session == session && is_refused {
                open.keeps_oplock = false;
                open.grant = LicenceState::Breaking {
                    confirmed: true,
                    at_latest: now,
                };
                self.breaking.push(*file);
            }
        }
    }

    /// WRITEs and other changes of this open that wait and may have been answered: those alone in
    /// their frames.
    fn queued_writes(&self, file: FileId) -> usize {
        let open = self.opens.get(&file);
        let singles = self.queue.iter().filter_map(GatheredMessage::single);
        let writes = singles.filter(|head| {
            let is_answered = match change_of(&head.header, head.body()) {
                FileChange::Write => true,
                change => open.is_some_and(|open| open.answers(change)),
            };
            is_answered && touch(&head.header, head.body()).file() == Some(file)
        });
        writes.count()
    }

    /// Handles the loss of the client: nothing is served, and broken oplocks are given back at
    /// once.
    pub(super) fn stop_serving_all(&mut self) {
        for file in self.files() {
            self.forget_ahead(file);
            self.confirmed(file);
        }
        self.reading.clear();
    }
}

/// Returns true if the open of a request may be served, and so may hold an oplock that is known
/// here.
fn may_hold(purpose: &RequestPurpose) -> bool {
    matches!(
        purpose,
        RequestPurpose::Create { is_bare: false, .. } | RequestPurpose::OpensAhead(_)
    )
}
