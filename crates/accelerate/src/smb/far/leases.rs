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
//! A client's leases count for all of its connections to a server. While another one than this is known, none of its
//! leases is a licence (docs/decisions/0070): the far half asks behind NEGOTIATE, and what its client says then
//! waits for the answer.
//!
//! A lease of which an open cannot be watched (in a compound, with what is not understood) is *shared*, and no
//! licence any more. Leases of READ caching alone are none (docs/decisions/0044), nor are those of
//! directories.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use vocab::{SegmentKind, Time};

use super::message::GatheredMessage;
use super::open::{LicenceState, TrackedOpen};
use super::{RequestPurpose, Smb2FarHalf, StreamFinish};
use crate::smb::config::{CONFIRM_WITHIN, LAST_TAKES_WITHIN, OPENS_MAX, TAKES_WITHIN};
use crate::smb::wire::FileId;
use crate::smb::wire::create::{CreateRequest, CreateResponse, REQUEST_OPLOCK_AT, oplock_level};
use crate::smb::wire::header::{LENGTH, Smb2Header, command};
use crate::smb::wire::lease::{LeaseBreak, LeaseKey};
use crate::smb::wire::split::Smb2MessageHead;
use crate::{AcceleratorOutput, ReasonCode};

/// A lease that is asked for with an open under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestedLease {
    pub(super) key: LeaseKey,
    /// With the open the file is emptied.
    pub(super) empties: bool,
    /// Meanwhile it was taken back, or its file changed through another open: what the answer says of either is
    /// out of date.
    pub(super) is_stale: bool,
}

/// The opens that are watched of one lease: the same that stand among all opens, found by their key.
#[derive(Debug, Default, PartialEq, Eq)]
struct LeaseOpens {
    files: Vec<FileId>,
    /// Requests under way that may change their file, through any of them.
    changing: usize,
}

/// Whether other connections of the client may work under its leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LeaseSharing {
    #[default]
    Unknown,
    /// The engine was asked, and the client waits.
    Asked,
    Alone,
    /// There are others.
    Beside {
        /// What was done under leases has still to end, and until then at the latest.
        stops_by: Option<Time>,
    },
}

/// What is known of leases.
#[derive(Debug, Default)]
pub(super) struct LeaseTable {
    company: LeaseSharing,
    kin: BTreeMap<LeaseKey, LeaseOpens>,
    shared: BTreeSet<LeaseKey>,
    /// Any may be.
    are_all_shared: bool,
}

impl LeaseTable {
    /// Whether opens of this lease are watched.
    pub(super) fn has_kin(&self, key: LeaseKey) -> bool {
        self.kin.contains_key(&key)
    }

    fn of(&self, key: LeaseKey) -> &[FileId] {
        self.kin.get(&key).map_or(&[], |kin| &kin.files)
    }

    pub(super) fn insert(&mut self, file: FileId, open: &TrackedOpen) {
        if let Some(key) = open.lease {
            let kin = self.kin.entry(key).or_default();
            kin.files.push(file);
            kin.changing += open.changing;
        }
    }

    pub(super) fn remove(&mut self, file: FileId, open: &TrackedOpen) {
        if let Some(key) = open.lease
            && let Some(kin) = self.kin.get_mut(&key)
        {
            kin.files.retain(|other| *other != file);
            kin.changing -= open.changing;
            if kin.files.is_empty() {
                self.kin.remove(&key);
            }
        }
    }

    /// A request that may change this open's file goes to the server.
    pub(super) fn change_begins(&mut self, open: &mut TrackedOpen) {
        open.changing += 1;
        if let Some(kin) = open.lease.and_then(|key| self.kin.get_mut(&key)) {
            kin.changing += 1;
        }
    }

    /// One is answered; it may have gone before the open was there, by another of the same id.
    pub(super) fn change_ends(&mut self, open: &mut TrackedOpen) {
        let ended = open.changing.min(1);
        open.changing -= ended;
        if let Some(kin) = open.lease.and_then(|key| self.kin.get_mut(&key)) {
            kin.changing -= ended;
        }
    }

    pub(super) fn is_shared(&self, key: LeaseKey) -> bool {
        self.company != LeaseSharing::Alone || self.are_all_shared || self.shared.contains(&key)
    }

    /// Whether the client waits to hear whether it has other connections.
    pub(super) fn awaits_company(&self) -> bool {
        self.company == LeaseSharing::Asked
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

impl Smb2FarHalf {
    /// The opens of this one's lease, itself first.
    pub(super) fn kin(&self, file: FileId) -> Vec<FileId> {
        let key = self.opens.get(&file).and_then(|open| open.lease);
        let mut kin = vec![file];
        if let Some(key) = key {
            let all = self.leases.of(key).iter();
            kin.extend(all.filter(|other| **other != file));
        }
        kin
    }

    /// Whether requests that may change an open's file are under way, through it or another of its lease.
    pub(super) fn is_changing(&self, file: FileId) -> bool {
        let Some(open) = self.opens.get(&file) else {
            return false;
        };
        let kin = open.lease.and_then(|key| self.leases.kin.get(&key));
        open.changing > 0 || kin.is_some_and(|kin| kin.changing > 0)
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
            if let RequestPurpose::Create {
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
        head: &Smb2MessageHead,
        rest: &[(SegmentKind, Bytes)],
        asked: Option<RequestedLease>,
    ) -> bool {
        let mut message = head.message().to_vec();
        rest.iter()
            .for_each(|(_, bytes)| message.extend_from_slice(bytes));
        let (Some(asked), Ok(Some(given))) = (asked, CreateResponse::lease(&message)) else {
            return false;
        };
        given.key == asked.key && given.is_exclusive() && self.may_serve_lease(asked)
    }

    fn may_serve_lease(&self, lease: RequestedLease) -> bool {
        let kin = self.leases.of(lease.key);
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
            && self.leases.of(key).len() > 1
        {
            self.leases.share(Some(key));
            self.give_back_lease(now, Some(key));
        }
    }

    /// A message of the server's was learned from: once it has said who it is, the engine is asked who else there is.
    pub(super) fn ask_for_company(&mut self) {
        if self.leases.company == LeaseSharing::Unknown
            && let Some(ends) = self.connection.ends()
        {
            self.leases.company = LeaseSharing::Asked;
            self.outputs.push_back(AcceleratorOutput::Claim(ends));
        }
    }

    /// The client has no other connection that is known, or none any more.
    pub(super) fn is_alone(&mut self) {
        self.leases.company = LeaseSharing::Alone;
    }

    /// The client has other connections. Through those the file may change, and breaks be told; so what is done under
    /// leases ends, without the near half's word once it has surely stopped, and without the server's in the end.
    pub(super) fn is_beside_others(&mut self, now: Time) {
        let is_stopping = self.leases.company == LeaseSharing::Alone;
        let within = match self.client_finish {
            StreamFinish::Open => TAKES_WITHIN,
            StreamFinish::Wanted | StreamFinish::Done => LAST_TAKES_WITHIN,
        };
        let stops_by = is_stopping.then(|| now + within);
        self.leases.company = LeaseSharing::Beside { stops_by };
        self.share_known_leases();
        self.give_back_lease(now, None);
        for open in self.opens.values_mut().filter(|open| open.lease.is_some()) {
            if let LicenceState::Breaking { at_latest, .. } = &mut open.grant {
                *at_latest = (*at_latest).min(now + CONFIRM_WITHIN);
            }
        }
    }

    /// Leases that are known now are no licences again once the flow is alone: what was opened under them through another
    /// connection may outlive that one, as may what the server does for it.
    fn share_known_leases(&mut self) {
        let opening = self.outstanding.values();
        let opening = opening.filter_map(|request| match request.purpose {
            RequestPurpose::Create { lease, .. } => lease.map(|lease| lease.key),
            _ => None,
        });
        let known: Vec<_> = opening.chain(self.leases.kin.keys().copied()).collect();
        for key in known {
            self.leases.share(Some(key));
        }
    }

    /// Says so when nothing is done under leases any more and somebody waits for that.
    pub(super) fn tell_given_back(&mut self) {
        let is_done = |open: &TrackedOpen| open.lease.is_none() || open.has_stopped();
        if self.stops_by().is_some() && self.opens.values().all(is_done) {
            self.leases.company = LeaseSharing::Beside { stops_by: None };
            self.outputs.push_back(AcceleratorOutput::ClaimReleased);
        }
    }

    /// When the flow ends if others still wait for it then.
    pub(super) fn stops_by(&self) -> Option<Time> {
        match self.leases.company {
            LeaseSharing::Beside { stops_by } => stops_by,
            LeaseSharing::Unknown | LeaseSharing::Asked | LeaseSharing::Alone => None,
        }
    }

    /// Ends the flow if it is that late. The reset ends what the server may still do for it: were the others let go on
    /// beside it, its WRITEs could fall upon theirs.
    pub(super) fn end_overdue(&mut self, now: Time) {
        if self.stops_by().is_some_and(|at| at <= now) {
            self.stop(ReasonCode::UNCONFIRMED);
        }
    }

    /// The client is gone: nobody waits to hear of others any more, and those that wait for this flow do so
    /// no longer than need be.
    pub(super) fn forgo_company(&mut self, now: Time) {
        if self.leases.awaits_company() {
            self.leases.company = LeaseSharing::Beside { stops_by: None };
        }
        if let LeaseSharing::Beside { stops_by: Some(at) } = &mut self.leases.company {
            *at = (*at).min(now + LAST_TAKES_WITHIN);
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
        let files = match key {
            Some(key) => self.leases.of(key).to_vec(),
            None => self.files(),
        };
        for file in files {
            let open = &self.opens[&file];
            if open.lease.is_some() && open.grant == LicenceState::Held {
                self.broken(now, file);
            }
        }
    }

    /// Whether an open of this lease may outlive its connection, or one that is under way.
    pub(super) fn has_durable_kin(&self, key: LeaseKey) -> bool {
        let mut kin = self.leases.of(key).iter();
        let mut opening = self.outstanding.values();
        kin.any(|file| self.opens[file].is_durable) || opening.any(|request| {
            matches!(request.purpose, RequestPurpose::Create { lease: Some(lease), is_durable: true, .. }
                    if lease.key == key)
        })
    }

    /// The opens whose WRITEs may be answered while a frame asks for one of their lease that may outlive the connection
    /// with which answered WRITEs would be lost.
    fn outlived_writers(&self, message: &GatheredMessage) -> Vec<FileId> {
        let may_ask = |header: &Smb2Header| header.command == command::CREATE;
        if self.leases.kin.is_empty() || !message.heads().any(|head| may_ask(&head.header)) {
            return Vec::new();
        }
        let creates = message.messages().filter(|(header, _)| may_ask(header));
        let keys = creates.filter_map(|(_, create)| outlives_under(&create));
        let kin = keys.flat_map(|key| self.leases.of(key).to_vec());
        kin.filter(|file| self.opens[file].has_early_writes())
            .collect()
    }

    /// Whether such an open waits for those. What they are given back behind passes it.
    pub(super) fn waits_for_writers(&self, message: &GatheredMessage) -> bool {
        !self.outlived_writers(message).is_empty()
    }

    /// The same in a compound that works on opens as well, which may hold the very CLOSE that is waited for: until no
    /// WRITE is answered any more, and all that were have come here.
    pub(super) fn is_written_behind(&self, message: &GatheredMessage) -> bool {
        let mut writers = self.outlived_writers(message).into_iter();
        writers.any(|file| {
            let open = &self.opens[&file];
            !open.is_closing && !open.has_confirmed()
        })
    }

    /// Ends what is done for the opens that one waits for whose turn it is.
    pub(super) fn give_back_writers(&mut self, now: Time) {
        let mut turn = self.queue.iter();
        let next = turn.position(|message| !self.waits_for_opens(message));
        let turn = next.map_or(self.queue.len(), |next| next + 1);
        let turn = self.queue.iter().take(turn);
        let writers: Vec<_> = turn.flat_map(|of| self.outlived_writers(of)).collect();
        for file in writers {
            self.broken(now, file);
        }
    }

    /// What is found by a lease's key is what stands among the opens.
    #[cfg(test)]
    pub(super) fn check_kin(&self) {
        let mut opens = LeaseTable::default();
        for (file, open) in &self.opens {
            opens.insert(*file, open);
        }
        assert_eq!(self.leases.kin.len(), opens.kin.len());
        for (key, kin) in &self.leases.kin {
            let of = &opens.kin[key];
            assert_eq!(kin.changing, of.changing, "{key:?}");
            assert_eq!(kin.files.len(), of.files.len(), "{key:?}");
            assert!(kin.files.iter().all(|file| of.files.contains(file)));
        }
    }

    /// A frame goes to the server as it is, unwatched: leases that it asks for are shared from here on, if
    /// something could be changed through their opens.
    pub(super) fn share_leases(&mut self, now: Time, message: &GatheredMessage) {
        let may_ask = |header: &Smb2Header| header.command == command::CREATE;
        if !message.heads().any(|head| may_ask(&head.header)) {
            return;
        }
        let creates = message.messages().filter(|(header, _)| may_ask(header));
        let shared: Vec<_> = creates
            .filter_map(|(_, create)| shared_by(&create))
            .collect();
        for key in shared {
            self.leases.share(key);
            self.give_back_lease(now, key);
        }
    }
}

/// The lease of a CREATE whose open may outlive its connection.
fn outlives_under(create: &[u8]) -> Option<LeaseKey> {
    let request = CreateRequest::parse(create).ok()?;
    let may_outlive = request.is_durable() || request.is_taken_up_again();
    let lease = request.lease().ok().flatten();
    lease.filter(|_| may_outlive).map(|lease| lease.key)
}

/// Which lease a CREATE that nobody watches shares, if any; nothing inside if it may be any.
fn shared_by(create: &[u8]) -> Option<Option<LeaseKey>> {
    let level = create.get(LENGTH + REQUEST_OPLOCK_AT);
    let asks = level == Some(&oplock_level::LEASE);
    let Ok(request) = CreateRequest::parse(create) else {
        return asks.then_some(None);
    };
    match request.lease() {
        // It has the lease that the server remembers.
        _ if request.is_taken_up_again() => Some(request.lease().ok().flatten().map(|of| of.key)),
        _ if !asks => None,
        Err(_) => Some(None),
        // Without the context the server gives none ([MS-SMB2] §3.3.5.9, Receiving an SMB2 CREATE Request).
        Ok(None) => None,
        // Directories have leases of their own, which nobody here serves.
        Ok(Some(_)) if request.is_for_attributes() || request.is_directory() => None,
        Ok(Some(lease)) => Some(Some(lease.key)),
    }
}
