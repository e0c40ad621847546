//! The far half's view of one open that it serves, or served.
//!
//! ```text
//!            break          near has confirmed, or did not in time        CLOSE
//!   Held ───────────► Breaking ────────────────────────────────► Given ──────► gone
//!     └──────────────────────────── CLOSE ──────────────────────────────────►
//! ```

use std::collections::BTreeMap;

use vocab::Time;

use super::super::wire::header::{MessageProtection, Smb2Header, flag};
use super::super::wire::lease::LeaseKey;
use super::super::wire::set_info::PlainChange;
use super::FileChange;
use super::listing::OpenListing;
use super::look_ahead::DelayedLooks;
use super::message::GatheredMessage;
use super::query_ahead::{AskedQuestions, QuestionTrigger};
use super::read_ahead::ReadAhead;

/// The state of an open's licence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LicenceState {
    /// The oplock is held: every other client waits for us before it sees or changes anything.
    Held,
    /// The server wants it back.
    Breaking {
        /// The near half has stopped, and all it has answered lies before.
        confirmed: bool,
        /// The time at which it is given back in any case.
        at_latest: Time,
    },
    /// It was given back, or never given.
    Given,
}

/// One open.
#[derive(Debug)]
pub(crate) struct TrackedOpen {
    pub(crate) session: u64,
    pub(crate) tree: u32,
    /// This half requested the oplock, and the client does not know of it.
    pub(crate) is_ours: bool,
    /// The protection of the CREATE request. Requests that are made here for the open are protected
    /// alike.
    pub(crate) guard: MessageProtection,
    pub(crate) grant: LicenceState,
    /// The client's lease that it is part of: others may share it, and change the file without breaking it.
    pub(crate) lease: Option<LeaseKey>,
    /// A LOCK went through it.
    pub(crate) is_locked: bool,
    /// It may outlive its connection, and with it the state of its lease.
    pub(crate) is_durable: bool,
    pub(crate) may_write: bool,
    /// The near half may answer its requests to set times and attributes, too.
    pub(crate) may_set: bool,
    /// The same of those to set the length.
    pub(crate) may_cut: bool,
    /// The same of those to set the allocation.
    pub(crate) may_allocate: bool,
    /// Its WRITEs may be answered once its tree is known to have room.
    pub(crate) awaits_room: bool,
    /// Its client may set times and attributes.
    pub(crate) sets_attributes: bool,
    /// The near half may answer its CLOSE before the server does.
    pub(crate) may_close: bool,
    pub(crate) reads: Option<ReadAhead>,
    /// The listing of a directory that may be prefetched.
    pub(crate) listing: Option<OpenListing>,
    /// The client's position in the file, as the server would report it: the end of the client's
    /// last READ, or a position that the client has set.
    pub(crate) seek: u64,
    /// The server's may be another: it has seen READs of ours, or not all of the client's.
    pub(crate) is_moved: bool,
    /// The client's READs that data in transit will answer.
    pub(crate) waiting: Vec<WaitingRead>,
    /// The number of outstanding requests that may change the file.
    pub(crate) changing: usize,
    /// The number of outstanding WRITEs from before the near half's confirmation: the oplock is
    /// given back behind them.
    pub(crate) writing: usize,
    /// The same that waited here as it confirmed.
    pub(crate) queued_writes: usize,
    /// The ranges of outstanding WRITEs that the client may believe complete. None overlap, because
    /// an overlapping WRITE waits.
    pub(crate) written: BTreeMap<u64, u64>,
    /// True after WRITEs were refused because the oplock was given back before they arrived;
    /// further ones are refused until the near half has confirmed.
    pub(crate) refuses_writes: bool,
    /// A CLOSE was sent.
    pub(crate) is_closing: bool,
    /// The form of its CREATE.
    pub(super) form: Option<QuestionTrigger>,
    /// The client has read of it.
    pub(super) is_read: bool,
    /// The questions of its client.
    pub(super) questions: AskedQuestions,
    /// The names to look for behind its own, once its first data is sent.
    pub(super) looks: Option<DelayedLooks>,
    /// The licence has to end, and the CLOSE ends it if it succeeds.
    pub(crate) is_broken: bool,
    /// The server wants the oplock back, and has not been answered.
    pub(crate) is_recalled: bool,
    /// The oplock is this half's still, although nothing is answered under it any more.
    pub(crate) keeps_oplock: bool,
}

/// A READ that waits.
#[derive(Debug)]
pub(crate) struct WaitingRead {
    pub(crate) message_id: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) message: GatheredMessage,
}

impl TrackedOpen {
    /// An open without a licence.
    pub(crate) fn new(session: u64, tree: u32, is_ours: bool) -> Self {
        Self {
            session,
            tree,
            is_ours,
            guard: MessageProtection::Nothing,
            grant: LicenceState::Given,
            lease: None,
            is_locked: false,
            is_durable: false,
            may_write: false,
            may_set: false,
            may_cut: false,
            may_allocate: false,
            awaits_room: false,
            sets_attributes: false,
            may_close: false,
            reads: None,
            listing: None,
            seek: 0,
            is_moved: false,
            waiting: Vec::new(),
            changing: 0,
            writing: 0,
            queued_writes: 0,
            written: BTreeMap::new(),
            refuses_writes: false,
            is_closing: false,
            form: None,
            is_read: false,
            questions: AskedQuestions::default(),
            looks: None,
            is_broken: false,
            is_recalled: false,
            keeps_oplock: false,
        }
    }

    /// A request of our own on this open: signed or encrypted as its client's.
    pub(crate) fn request(&self, command: u16) -> Smb2Header {
        Smb2Header {
            flags: match self.guard {
                MessageProtection::Signed => flag::SIGNED,
                MessageProtection::Nothing | MessageProtection::Sealed => 0,
            },
            is_sealed: self.guard == MessageProtection::Sealed,
            ..Smb2Header::request(command, 0, self.session, self.tree)
        }
    }

    /// From here on the near half may answer its WRITEs, and with these releases the changes of SET_INFO.
    pub(crate) fn allow_writes(&mut self, takes_compounds: bool, takes_office_requests: bool) {
        self.awaits_room = false;
        self.may_write = true;
        self.may_set = self.sets_attributes && takes_compounds;
        self.may_cut = takes_compounds;
        self.may_allocate = takes_office_requests;
    }

    /// The client closes it.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
        if let Some(listing) = &mut self.listing {
            listing.is_closed = true;
        }
    }

    /// Returns true if data is read ahead of the client that has not been sent.
    pub(super) fn awaits_first_data(&self) -> bool {
        let reads = self.reads.as_ref();
        self.is_held() && reads.is_some_and(|reads| !reads.is_sent())
    }

    /// Returns true if the near half may answer for this open.
    pub(crate) fn is_held(&self) -> bool {
        self.grant == LicenceState::Held && !self.is_closing
    }

    /// Returns true if a WRITE from `start` to `end` would overlap an outstanding one. A server may
    /// execute several WRITEs at a time and in any order ([MS-SMB2] §3.3.5.2.3), but a client
    /// relies on the order of WRITEs that it believes complete. A WRITE to the end of all offsets
    /// appends to the file ([MS-SMB2] §3.3.5.13), and any other WRITE moves that end.
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        let last_before = self.written.range(..end).next_back();
        last_before.is_some_and(|(_, written_to)| *written_to > start || end == u64::MAX)
    }

    /// Returns true if requests for its names wait for entries that are read ahead.
    pub(crate) fn has_waiting_lists(&self) -> bool {
        let listing = self.listing.as_ref();
        listing.is_some_and(|listing| !listing.waiting.is_empty())
    }

    /// Returns true if the near half has confirmed that it has stopped, or never had a licence.
    pub(crate) fn has_confirmed(&self) -> bool {
        match self.grant {
            LicenceState::Held => false,
            LicenceState::Breaking { confirmed, .. } => confirmed && !self.refuses_writes,
            LicenceState::Given => !self.refuses_writes,
        }
    }

    /// Returns true if nothing is answered for the open any more, and all answered requests are
    /// complete at the server. Outstanding requests do not count where neither WRITEs nor the CLOSE
    /// are answered early.
    pub(crate) fn has_stopped(&self) -> bool {
        let answers = self.may_write || self.may_close;
        match self.grant {
            LicenceState::Held => !answers && self.is_closing,
            LicenceState::Breaking { confirmed, .. } => !answers && (confirmed || self.is_closing),
            LicenceState::Given => true,
        }
    }

    /// Returns true if the near half answers a change of this kind before the server.
    pub(super) fn answers(&self, change: FileChange) -> bool {
        match change {
            FileChange::Write => self.may_write,
            FileChange::Plain(PlainChange::Attributes) => self.may_set,
            FileChange::Plain(PlainChange::Length) => self.may_cut,
            FileChange::Plain(PlainChange::Room) => self.may_allocate,
            FileChange::Other => false,
        }
    }

    /// Returns true if the next WRITE may have been answered already.
    pub(crate) fn is_from_before(&self) -> bool {
        !self.has_confirmed() || self.queued_writes > 0
    }

    /// Returns true if outstanding WRITEs may have been answered already.
    pub(crate) fn has_early_writes(&self) -> bool {
        self.may_write && self.grant != LicenceState::Given
    }

    /// The same of outstanding changes of one kind.
    pub(super) fn has_early(&self, change: FileChange) -> bool {
        self.answers(change) && self.grant != LicenceState::Given
    }
}
