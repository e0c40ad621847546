//! Leases that clients request, used as licences.
//!
//! ```text
//!  lease K ─┬─ open A   Held: read ahead for, WRITEs answered         ─┐ what changes the file through
//!           ├─ open B   Held, too                                     │ one makes what was read ahead
//!           └─ open C   only watched: opened while the file changed,  ─┘ for any of them out of date
//!                       or under less than READ and WRITE caching
//! ```
//! A lease with READ and WRITE caching is equivalent to an exclusive oplock: all other clients wait
//! until its holder has given it back ([MS-SMB2] §3.3.4.7, Object Store Indicates a Lease Break).
//! But opens under the same lease do not break it, so they are tracked together, and WRITEs through
//! one do not overtake those through another. The client answers breaks itself: it receives them
//! after [`HalfFrame::Revoke`], and its acknowledgement follows all requests that were answered for
//! it.
//!
//! A client's leases apply to all of its connections to a server. While another connection is
//! known, none of its leases is a licence (docs/decisions/0051): the far half sends its claim after
//! NEGOTIATE, and the client's next messages wait for the answer.
//!
//! A lease with an open that cannot be tracked (in a compound, with unknown contexts) is *shared*,
//! and no longer a licence. Leases with READ caching alone are none (docs/decisions/0029), nor are
//! those of directories.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use vocab::{SegmentKind, Time};

use super::message::GatheredMessage;
use super::open::{LicenceState, TrackedOpen};
use super::{RequestPurpose, Smb2FarHalf, StreamFinish};
use crate::smb::config::{CONFIRM_WITHIN, LAST_TAKES_WITHIN, SHARED_LEASES_MAX, TAKES_WITHIN};
use crate::smb::wire::FileId;
use crate::smb::wire::create::{CreateRequest, CreateResponse, REQUEST_OPLOCK_AT, oplock_level};
use crate::smb::wire::header::{LENGTH, Smb2Header, command};
use crate::smb::wire::lease::{LeaseBreak, LeaseKey};
use crate::smb::wire::split::Smb2MessageHead;
use crate::{AcceleratorOutput, ReasonCode};

/// A lease that is requested with an open in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestedLease {
    pub(super) key: LeaseKey,
    /// With the open the file is emptied.
    pub(super) empties: bool,
    /// It was broken meanwhile, or its file changed through another open: the answer's lease or
    /// contents are out of date.
    pub(super) is_stale: bool,
}

/// The tracked opens of one lease: the same as among all opens, indexed by their key.
#[derive(Debug, Default, PartialEq, Eq)]
struct LeaseOpens {
    files: Vec<FileId>,
    /// The number of outstanding requests that may change their file, through any of them.
    changing: usize,
}

/// The client's other connections, which may work under its leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LeaseSharing {
    #[default]
    Unknown,
    /// The claim was sent, and the client waits.
    Asked,
    Alone,
    /// There are others.
    Beside {
        /// The latest end of the work that was done under leases, and of answered WRITEs, as long as
        /// they are not finished.
        stops_by: Option<Time>,
    },
}

/// The known state of the leases.
#[derive(Debug, Default)]
pub(super) struct LeaseTable {
    company: LeaseSharing,
    kin: BTreeMap<LeaseKey, LeaseOpens>,
    shared: BTreeSet<LeaseKey>,
    /// Any may be.
    are_all_shared: bool,
}

impl LeaseTable {
    /// Returns true if opens of this lease are tracked.
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

    /// Returns true if the client waits for the answer whether it has other connections.
    pub(super) fn awaits_company(&self) -> bool {
        self.company == LeaseSharing::Asked
    }

    /// Bytes of the keys that are remembered.
    pub(super) fn bytes(&self) -> usize {
        self.shared.len() * size_of::<LeaseKey>()
    }

    /// The note to the operator, once no lease is a licence any more.
    pub(super) fn text(&self) -> Option<String> {
        self.are_all_shared.then(|| {
            "opens that the nodes cannot follow may be under any lease, so that no lease allows answers here until \
             the client connects again"
                .to_owned()
        })
    }

    fn share(&mut self, key: Option<LeaseKey>) {
        match key {
            Some(key) if self.shared.len() < SHARED_LEASES_MAX => {
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

    /// Returns true if requests that may change an open's file are outstanding, through it or
    /// another open of its lease.
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

    /// Does the same for opens in progress alone.
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

    /// Returns true if the lease in an open's answer is exclusive to the client, and no outstanding
    /// request could change that unseen.
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

    /// Handles a lock through an open, which affects the near half's answers through others of its
    /// lease.
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

    /// Sends the claim once the server's messages have identified the client, to learn of its other
    /// connections.
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

    /// Handles the client's other connections. Through those the file may change, and breaks may be
    /// sent; so work under leases ends, without the near half's confirmation once it has surely
    /// stopped, and finally without the server's.
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
        // A client that reconnects ends its opens of before, and what was answered must be there by then.
        for file in self.files() {
            if self.opens[&file].may_write {
                self.give_back(now, file);
            }
        }
        let is_waited_for = |open: &&mut TrackedOpen| open.lease.is_some() || open.may_write;
        for open in self.opens.values_mut().filter(is_waited_for) {
            if let LicenceState::Breaking { at_latest, .. } = &mut open.grant {
                *at_latest = (*at_latest).min(now + CONFIRM_WITHIN);
            }
        }
    }

    /// Marks the known leases as shared, which are no licences even when the flow is alone again:
    /// opens made under them through another connection may outlive it, as may their requests at
    /// the server.
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

    /// Reports when no work is done under leases any more, and no answered WRITE is under way, if another
    /// flow waits for that.
    pub(super) fn tell_given_back(&mut self) {
        let is_done =
            |open: &TrackedOpen| open.lease.is_none() && !open.may_write || open.has_stopped();
        if self.stops_by().is_some() && self.opens.values().all(is_done) {
            self.leases.company = LeaseSharing::Beside { stops_by: None };
            self.outputs.push_back(AcceleratorOutput::ClaimReleased);
        }
    }

    /// The end of the flow if others still wait for it then.
    pub(super) fn stops_by(&self) -> Option<Time> {
        match self.leases.company {
            LeaseSharing::Beside { stops_by } => stops_by,
            LeaseSharing::Unknown | LeaseSharing::Asked | LeaseSharing::Alone => None,
        }
    }

    /// Ends the flow if it is overdue. The reset ends its outstanding requests at the server: if
    /// the others were released beside it, its WRITEs could overwrite theirs.
    pub(super) fn end_overdue(&mut self, now: Time) {
        if self.stops_by().is_some_and(|at| at <= now) {
            self.stop(ReasonCode::UNCONFIRMED);
        }
    }

    /// Handles the loss of the client: no request waits for the others any more, and those that
    /// wait for this flow are released as soon as possible.
    pub(super) fn forgo_company(&mut self, now: Time) {
        if self.leases.awaits_company() {
            self.leases.company = LeaseSharing::Beside { stops_by: None };
        }
        if let LeaseSharing::Beside { stops_by: Some(at) } = &mut self.leases.company {
            *at = (*at).min(now + LAST_TAKES_WITHIN);
        }
    }

    /// Handles a server's break of a lease, or of a part of it, which is always passed to the
    /// client. The client's own acknowledgement states the part that it keeps ([MS-SMB2]
    /// §3.3.5.22.2, Processing a Lease Acknowledgment).
    pub(super) fn lease_broken(&mut self, now: Time, notice: LeaseBreak) {
        self.outdate_opening(notice.key);
        self.give_back_lease(now, Some(notice.key));
    }

    /// Ends the work for the opens of one lease, or of all.
    fn give_back_lease(&mut self, now: Time, key: Option<LeaseKey>) {
        let files = match key {
            Some(key) => self.leases.of(key).to_vec(),
            None => self.files(),
        };
        for file in files {
            let open = &self.opens[&file];
            if open.lease.is_some() && open.grant == LicenceState::Held {
                self.give_back(now, file);
            }
        }
    }

    /// Returns true if an open of this lease may outlive its connection, or one that is being
    /// opened.
    pub(super) fn has_durable_kin(&self, key: LeaseKey) -> bool {
        let mut kin = self.leases.of(key).iter();
        let mut opening = self.outstanding.values();
        kin.any(|file| self.opens[file].is_durable) || opening.any(|request| {
            matches!(request.purpose, RequestPurpose::Create { lease: Some(lease), is_durable: true, .. }
                    if lease.key == key)
        })
    }

    /// Returns the opens whose WRITEs may be answered while a frame requests a durable open of
    /// their lease. Answered WRITEs would be lost with this connection.
    fn outlived_writers(&self, message: &GatheredMessage) -> Vec<FileId> {
        let may_ask = |header: &Smb2Header| header.command == command::CREATE;
        if self.leases.kin.is_empty()
            || !message.heads().any(|head| may_ask(&head.header))
            || self.will_decline(message)
        {
            return Vec::new();
        }
        let creates = message.messages().filter(|(header, _)| may_ask(header));
        let keys = creates.filter_map(|(_, create)| outlives_under(&create));
        let kin = keys.flat_map(|key| self.leases.of(key).to_vec());
        kin.filter(|file| self.opens[file].has_early_writes())
            .collect()
    }

    /// Returns true if such an open waits for those requests. Messages that give an oplock or lease
    /// back pass it.
    pub(super) fn waits_for_writers(&self, message: &GatheredMessage) -> bool {
        !self.outlived_writers(message).is_empty()
    }

    /// The same in a compound that also works on opens, which may contain the awaited CLOSE: it
    /// waits until no WRITE is answered any more, and all answered ones have arrived here.
    pub(super) fn is_written_behind(&self, message: &GatheredMessage) -> bool {
        let mut writers = self.outlived_writers(message).into_iter();
        writers.any(|file| {
            let open = &self.opens[&file];
            !open.is_closing && !open.has_confirmed()
        })
    }

    /// Ends the work for the opens that the next waiting open waits for.
    pub(super) fn give_back_writers(&mut self, now: Time) {
        let mut turn = self.queue.iter();
        let next = turn.position(|message| !self.waits_for_opens(message));
        let turn = next.map_or(self.queue.len(), |next| next + 1);
        let turn = self.queue.iter().take(turn);
        let writers: Vec<_> = turn.flat_map(|of| self.outlived_writers(of)).collect();
        for file in writers {
            self.give_back(now, file);
        }
    }

    /// Asserts that the index by lease key equals the tracked opens.
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

    /// Handles a frame that goes to the server untracked: leases that it requests are shared from
    /// here on, if a change through their opens is possible.
    pub(super) fn share_leases(&mut self, now: Time, message: &GatheredMessage) {
        let may_ask = |header: &Smb2Header| header.command == command::CREATE;
        if !message.heads().any(|head| may_ask(&head.header)) {
            return;
        }
        let creates: Vec<_> = message
            .messages()
            .filter(|(header, _)| may_ask(header))
            .collect();
        let is_held = |create: &[u8]| {
            let level = create.get(LENGTH + REQUEST_OPLOCK_AT);
            level.is_some_and(|level| *level != oplock_level::NONE)
        };
        if self.near_takes_leased_offers {
            for (header, create) in creates.iter().filter(|(_, create)| is_held(create)) {
                self.stats.opening(header, create);
            }
        }
        let shared: Vec<_> = creates
            .iter()
            .filter_map(|(_, create)| shared_by(create))
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

/// Returns the lease that an untracked CREATE shares, if any; `Some(None)` if it may be any lease.
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
