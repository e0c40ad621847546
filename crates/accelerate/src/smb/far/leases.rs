//! Leases that clients ask for, as licences.
//!
//! ```text
//!  lease K ─┬─ open A   Held: read ahead for, WRITEs answered         ─┐ what changes the file through
//!           ├─ open B   Held, too                                     │ one makes what was read ahead
//!           └─ open C   only watched: opened while the file changed,  ─┘ for any of them out of date
//!                       or under less than READ and WRITE caching
//! ```
//! A lease with READ and WRITE caching is what an exclusive oplock is: everybody else waits until its client has
//! given it back ([MS-SMB2] §3.3.4.7, Object Store Indicates a Lease Break). But opens under the same lease do
//! not break it, so they are watched together, and WRITEs through one are not overtaken by those through
//! another. Breaks are the client's to answer: it hears of them behind [`Frame::Revoke`], and
//! what it says to them comes behind all that was answered for it.
//!
//! A lease of which an open cannot be watched (in a compound, with what is not understood) is *shared*, and no
//! licence any more. Leases of READ caching alone are none (docs/decisions/0044), nor are those of
//! directories.

use std::collections::HashSet;

use bytes::Bytes;
use vocab::{SegmentKind, Time};

use super::message::Message;
use super::open::Grant;
use super::{Far, Purpose};
use crate::smb::config::OPENS_MAX;
use crate::smb::wire::FileId;
use crate::smb::wire::create::{CreateAnswer, CreateRequest, REQUEST_OPLOCK_AT, oplock_level};
use crate::smb::wire::header::{Header, command};
use crate::smb::wire::lease::{LeaseBreak, LeaseKey};
use crate::smb::wire::split::Head;
use crate::smb::wire::u8_at;

/// A lease that is asked for with an open under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseAsked {
    pub(super) key: LeaseKey,
    /// With the open the file is emptied.
    pub(super) empties: bool,
    /// Meanwhile it was taken back, or its file changed through another open: what the answer says of either is
    /// out of date.
    pub(super) is_stale: bool,
}

/// What is known of leases beside the opens that are watched.
#[derive(Debug, Default)]
pub(super) struct Leases {
    shared: HashSet<LeaseKey>,
    /// Any may be.
    are_all_shared: bool,
}

impl Leases {
    pub(super) fn is_shared(&self, key: LeaseKey) -> bool {
        self.are_all_shared || self.shared.contains(&key)
    }

    fn share(&mut self, key: Option<LeaseKey>) {
        match key {
            Some(key) if self.shared.len() < OPENS_MAX => {
                self.shared.insert(key);
            }
            _ => self.are_all_shared = true,
        }
    }
}

impl Far {
    /// The opens of this one's lease, itself first.
    pub(super) fn kin(&self, file: FileId) -> Vec<FileId> {
        let key = self.opens.get(&file).and_then(|open| open.lease);
        let mut kin = vec![file];
        if let Some(key) = key {
            kin.extend(self.of_lease(key).filter(|other| *other != file));
        }
        kin
    }

    fn of_lease(&self, key: LeaseKey) -> impl Iterator<Item = FileId> {
        let opens = self.opens.iter();
        let opens = opens.filter(move |(_, open)| open.lease == Some(key));
        opens.map(|(file, _)| *file)
    }

    /// Whether requests that may change an open's file are under way, through it or another of its lease.
    pub(super) fn is_changing(&self, file: FileId) -> bool {
        let Some(open) = self.opens.get(&file) else {
            return false;
        };
        let key = open.lease;
        open.changing > 0
            || key.is_some_and(|key| {
                let mut kin = self.opens.values();
                kin.any(|open| open.lease == Some(key) && open.changing > 0)
            })
    }

    /// An open's file may have changed, or may change now.
    pub(super) fn changes(&mut self, file: FileId) {
        for file in self.kin(file) {
            self.forget_ahead(file);
        }
        self.outdate_opening_of(file);
    }

    /// The same, of what only opens that are under way need know.
    pub(super) fn outdate_opening_of(&mut self, file: FileId) {
        if let Some(key) = self.opens.get(&file).and_then(|open| open.lease) {
            self.outdate_opening(key);
        }
    }

    fn outdate_opening(&mut self, of: LeaseKey) {
        for request in self.outstanding.values_mut() {
            if let Purpose::Create {
                lease: Some(lease), ..
            } = &mut request.purpose
                && lease.key == of
            {
                lease.is_stale = true;
            }
        }
    }

    /// Whether an open is the client's alone by the lease that its answer gives, and nothing was under way
    /// meanwhile that the answer does not tell.
    pub(super) fn is_exclusive_lease(
        &self,
        head: &Head,
        rest: &[(SegmentKind, Bytes)],
        asked: Option<LeaseAsked>,
    ) -> bool {
        let mut message = head.message().to_vec();
        rest.iter()
            .for_each(|(_, bytes)| message.extend_from_slice(bytes));
        let (Some(asked), Ok(Some(given))) = (asked, CreateAnswer::lease(&message)) else {
            return false;
        };
        given.key == asked.key && given.is_exclusive() && self.may_serve_lease(asked)
    }

    fn may_serve_lease(&self, lease: LeaseAsked) -> bool {
        let kin: Vec<_> = self.of_lease(lease.key).collect();
        let is_quiet = |file: &FileId| {
            let open = &self.opens[file];
            open.changing == 0 && !open.is_locked
        };
        !lease.is_stale
            && !self.leases.is_shared(lease.key)
            && (kin.is_empty() || self.queue.is_empty() && kin.iter().all(is_quiet))
    }

    /// An open is locked, against what the near half would answer through others of its lease.
    pub(super) fn locks(&mut self, now: Time, file: FileId) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        open.is_locked = true;
        if let Some(key) = open.lease
            && self.of_lease(key).nth(1).is_some()
        {
            self.leases.share(Some(key));
            self.give_back_lease(now, Some(key));
        }
    }

    /// The server takes a lease back, or a part of it; its client hears of it in any case. What it keeps it says
    /// itself, and it may be less than it was left ([MS-SMB2] §3.3.5.22.2, Processing a Lease Acknowledgment).
    pub(super) fn lease_broken(&mut self, now: Time, notice: LeaseBreak) {
        self.outdate_opening(notice.key);
        self.give_back_lease(now, Some(notice.key));
    }

    /// Ends what is done for the opens of one lease, or of all.
    fn give_back_lease(&mut self, now: Time, key: Option<LeaseKey>) {
        let is_meant = |lease: Option<LeaseKey>| lease.is_some() && (key.is_none() || lease == key);
        for file in self.files() {
            let open = &self.opens[&file];
            if is_meant(open.lease) && open.grant == Grant::Held {
                self.broken(now, file);
            }
        }
    }

    /// A request goes to the server as it is, unwatched: leases that it asks for are shared from here on, if
    /// something could be changed through their opens.
    pub(super) fn share_leases(&mut self, now: Time, message: &Message) {
        let asks = |header: &Header, body: &[u8]| {
            let level = u8_at(body, REQUEST_OPLOCK_AT);
            header.command == command::CREATE && level == Ok(oplock_level::LEASE)
        };
        let joined = message.joined();
        let request = joined.as_deref().map(CreateRequest::parse);
        let request = request.and_then(Result::ok);
        let is_again = message.first().map(|header| header.command) == Some(command::CREATE)
            && request
                .as_ref()
                .is_some_and(CreateRequest::is_taken_up_again);
        let mut heads = message.heads();
        if !is_again && !heads.any(|head| asks(&head.header, head.body())) {
            return;
        }
        let mut key = None;
        if let Some(request) = request
            && let Ok(lease) = request.lease()
        {
            match lease {
                // Its lease is the one that the server remembers.
                None if is_again => {}
                // Without the context the server gives none ([MS-SMB2] §3.3.5.9, Receiving an SMB2 CREATE Request).
                None => return,
                Some(_) if request.is_for_attributes() => return,
                Some(lease) => key = Some(lease.key),
            }
        }
        self.leases.share(key);
        self.give_back_lease(now, key);
    }
}
