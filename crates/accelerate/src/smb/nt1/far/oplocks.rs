//! Gives oplocks back: as in SMB 2, with the messages of SMB 1.
//!
//! ```text
//!  server          far half             near half
//!    │── break ──────►│── Revoke ──────────►│  stops answering for this open
//!    │                │◄───────── Revoked ──│  (behind every WRITE that it has answered)
//!    │◄─ WRITEs ──────│
//!    │◄─ release ─────│  once all of them are answered, or CONFIRM_WITHIN after the break
//! ```
//! The client gives its own oplock back itself; it receives the break behind the near half's
//! answers.

use std::collections::hash_map::Entry;

use vocab::Time;

use super::super::frames::Smb1HalfFrame;
use super::super::wire::header::set_mid;
use super::super::wire::oplock::release;
use super::super::wire::target::{Smb1RequestEffect, touch};
use super::{Smb1FarHalf, Smb1FarState, Smb1RequestPurpose, Smb1StreamFinish, Smb1TrackedOpen};
use crate::ReasonCode;
use crate::smb::config::{CONFIRM_WITHIN, TAKEN_AFTER};
use crate::smb::far::open::LicenceState;

/// The number of breaks that are remembered while a request to open a file is outstanding: more
/// than the requests that a server allows. A server that sends more breaks opens that do not exist.
const EARLY_BREAKS_MAX: usize = 64;

impl Smb1FarHalf {
    /// Handles a server's oplock break. Returns true if the client must receive it.
    pub(super) fn break_of(&mut self, now: Time, file: u16) -> bool {
        let is_opening = self.is_opening();
        let open = self.opens.get(&file);
        if is_opening && open.is_none_or(|open| open.is_closing || open.gone_at.is_some()) {
            if self.early_breaks.len() >= EARLY_BREAKS_MAX {
                self.stop(ReasonCode::LIMIT);
                return false;
            }
            self.early_breaks.push(file);
        }
        let Some(open) = self.opens.get_mut(&file) else {
            // Of an oplock that the client may have, it hears at once: it may be what keeps the server from
            // answering.
            return !is_opening || self.has_other_oplocks;
        };
        // It is there, since the server asks.
        open.gone_at = None;
        let is_hidden = open.hides_break();
        self.broken(now, file);
        !is_hidden
    }

    /// Returns true if a file that may be served is possibly being opened now.
    pub(super) fn is_opening(&self) -> bool {
        let mut outstanding = self.outstanding.values();
        outstanding
            .any(|outstanding| matches!(outstanding.purpose, Smb1RequestPurpose::Create { .. }))
    }

    /// Returns true if the server broke the oplock of an open before its answer granted it.
    pub(super) fn was_broken_early(&mut self, file: u16) -> bool {
        let at = self.early_breaks.iter().position(|early| *early == file);
        at.map(|at| self.early_breaks.swap_remove(at)).is_some()
    }

    /// Begins to give an open's oplock back.
    pub(super) fn broken(&mut self, now: Time, file: u16) {
        self.forget_ahead(file);
        let is_alone = self.client_finish != Smb1StreamFinish::Open;
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        // A CLOSE under way gives it back as well.
        if open.grant != LicenceState::Held
            || open.is_closing
            || self.state != Smb1FarState::Engaged
        {
            return;
        }
        open.grant = LicenceState::Breaking {
            confirmed: is_alone,
            at_latest: match open.is_ours {
                true => now + CONFIRM_WITHIN,
                false => now + TAKEN_AFTER,
            },
        };
        self.breaking.push(file);
        self.reading.retain(|reading| *reading != file);
        *self.revoking.entry(file).or_default() += 1;
        self.tell_near(&Smb1HalfFrame::Revoke { file });
    }

    /// The near half has stopped for an open with this file id.
    pub(super) fn revoked(&mut self, file: u16) {
        if let Entry::Occupied(mut left) = self.revoking.entry(file) {
            *left.get_mut() -= 1;
            if *left.get() > 0 {
                return;
            }
            left.remove();
        }
        self.confirmed(file);
    }

    /// The near half answers nothing for this open any more.
    pub(super) fn confirmed(&mut self, file: u16) {
        let queued_writes = self.queued_writes(file);
        let open = self.opens.get_mut(&file);
        // One that is held was opened since.
        let Some(open) = open.filter(|open| open.grant != LicenceState::Held) else {
            return;
        };
        // Those that wait came before, and are treated so.
        if !open.has_confirmed() {
            open.queued_writes = queued_writes;
        }
        open.refuses_writes = false;
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
                open.refuses_writes = true;
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
            let Some(open) = self.opens.get(&file) else {
                continue;
            };
            let LicenceState::Breaking {
                confirmed: true, ..
            } = open.grant
            else {
                continue;
            };
            let is_queued = match open.refuses_writes {
                true => self.queued_writes(file) > 0,
                false => open.queued_writes > 0,
            };
            if open.writing > 0 || open.is_closing || is_queued || self.may_be_another(open) {
                continue;
            }
            let mut message = open.is_ours.then(|| release(&open.like, file));
            if let Some(open) = self.opens.get_mut(&file) {
                open.grant = LicenceState::Given;
                open.reads = None;
                open.may_be_asked = open.gone_at.is_some();
            }
            self.breaking.retain(|breaking| *breaking != file);
            if let Some(message) = &mut message {
                let mid = self.take_silent_mid(None);
                set_mid(message, mid);
                self.send_server(super::super::wire::frame(message).into());
            }
        }
    }

    /// Returns true if the server may have given this open's file id to another open, which is not
    /// known yet.
    fn may_be_another(&self, open: &Smb1TrackedOpen) -> bool {
        let Some(gone_at) = open.gone_at else {
            return false;
        };
        self.outstanding.values().any(|outstanding| {
            let client = outstanding.client;
            outstanding.may_open && client.is_some_and(|(_, position)| position > gone_at)
        })
    }

    /// WRITEs to this open that wait and may have been answered.
    fn queued_writes(&self, file: u16) -> usize {
        let writes = self.queue.iter().filter(|request| {
            matches!(touch(&request.header, request.message()), Smb1RequestEffect::Writes(write) if write.file == file)
        });
        writes.count()
    }
}
