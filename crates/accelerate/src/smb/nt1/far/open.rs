//! The far half's view of one open that it serves, or served; its states are those of SMB 2
//! ([`LicenceState`]).

use std::collections::BTreeMap;

use super::super::wire::header::Smb1Header;
use super::super::wire::position::{SeekOrigin, SeekRequest, set_position};
use super::super::wire::transfer::{ReadAndxRequest, WriteAndxRequest};
use super::Smb1ClientMessage;
use crate::smb::far::open::LicenceState;
use crate::smb::far::read_ahead::ReadAhead;

/// One of an open's positions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FilePosition {
    /// As the client's requests leave it.
    at: u64,
    /// The last of these requests, by its place among the client's messages: answers arrive in any
    /// order.
    by: u64,
    /// The server's may be another.
    pub(crate) is_moved: bool,
}

impl FilePosition {
    /// This request of the client's leaves it here.
    pub(crate) fn set(&mut self, by: u64, at: u64) {
        if by >= self.by {
            *self = Self { at, by, ..*self };
        }
    }
}

/// One open.
#[derive(Debug)]
pub(crate) struct Smb1TrackedOpen {
    /// The number that distinguishes opens with the same file id, because file ids are reused.
    pub(crate) serial: u64,
    /// The last request of the client's for it, after which ours are made: its process holds its locks.
    pub(crate) like: Smb1Header,
    /// The process that has locked parts of the file, if one has.
    pub(crate) locker: Option<(u16, u16)>,
    /// This half requested the oplock, and the client does not know of it.
    pub(crate) is_ours: bool,
    pub(crate) grant: LicenceState,
    pub(crate) may_write: bool,
    /// The near half may answer its CLOSE.
    pub(crate) may_close: bool,
    pub(crate) reads: Option<ReadAhead>,
    /// The position that SEEK moves: where the client's last READ, WRITE or SEEK ended.
    pub(crate) sought: FilePosition,
    /// FilePositionInformation: where the client's last READ ended, or where it has set it.
    pub(crate) reported: FilePosition,
    /// The outstanding READs, the client's and ours: the position is unknown until they are
    /// answered.
    pub(crate) reading: usize,
    /// The client's READs that data in transit will answer.
    pub(crate) waiting: Vec<(ReadAndxRequest, Smb1ClientMessage)>,
    /// The number of outstanding requests that may change the file.
    pub(crate) changing: usize,
    /// The number of outstanding WRITEs from before the near half's confirmation: the oplock is
    /// given back behind them.
    pub(crate) writing: usize,
    /// The same that waited here as it confirmed.
    pub(crate) queued_writes: usize,
    /// The ranges of outstanding WRITEs that the client may believe complete. None overlap.
    pub(crate) written: BTreeMap<u64, u64>,
    /// The oplock was given back before the near half confirmed: until it has, WRITEs are refused.
    pub(crate) refuses_writes: bool,
    /// A CLOSE was sent.
    pub(crate) is_closing: bool,
    /// Its oplock is one that others may share, and the client does not know of it either.
    pub(crate) is_shared: bool,
    /// True if the oplock was given back without a break: the server may have sent one meanwhile.
    pub(crate) may_be_asked: bool,
    /// This message of the client's may have ended it unseen.
    pub(crate) gone_at: Option<u64>,
}

impl Smb1TrackedOpen {
    /// One that is just opened, by this request, with an exclusive oplock.
    pub(crate) fn new(serial: u64, like: Smb1Header, is_ours: bool) -> Self {
        Self {
            serial,
            like,
            locker: None,
            is_ours,
            grant: LicenceState::Held,
            may_write: false,
            may_close: false,
            reads: None,
            sought: FilePosition::default(),
            reported: FilePosition::default(),
            reading: 0,
            waiting: Vec::new(),
            changing: 0,
            writing: 0,
            queued_writes: 0,
            written: BTreeMap::new(),
            refuses_writes: false,
            is_closing: false,
            is_shared: false,
            may_be_asked: false,
            gone_at: None,
        }
    }

    /// A READ of the client's is answered that the server does not see: it leaves its position behind.
    pub(crate) fn note_unseen(&mut self, by: u64, read: ReadAndxRequest) {
        self.reads_moved();
        let end = self.reads.as_ref().and_then(ReadAhead::end);
        let left = end.map_or(u64::MAX, |end| end.saturating_sub(read.offset));
        self.note_read(by, read, left.min(u64::from(read.length)) as u32);
    }

    /// A READ of the client's has read so many bytes, or none at the file's end.
    pub(crate) fn note_read(&mut self, by: u64, read: ReadAndxRequest, count: u32) {
        let end = read.offset + u64::from(count.min(read.length));
        self.sought.set(by, end);
        self.reported.set(by, end);
    }

    /// Records the answer to a client's SEEK.
    pub(crate) fn note_seek(&mut self, by: u64, seek: SeekRequest, told: u32) {
        self.sought.set(by, seek.leads_to(self.sought.at, told));
    }

    /// A WRITE of the client's has failed, or has written no more than this; the position was there before.
    pub(crate) fn note_short(
        &mut self,
        by: u64,
        write: WriteAndxRequest,
        before: FilePosition,
        count: Option<u32>,
    ) {
        if self.sought.by != by {
            // Another has moved it since, perhaps in another order.
            self.sought.is_moved = true;
        } else if let Some(count) = count {
            self.sought.at = write.offset + u64::from(count);
        } else {
            let is_moved = before.is_moved || self.sought.is_moved;
            self.sought = FilePosition { is_moved, ..before };
        }
    }

    /// The server's positions may be others: it has seen a READ of ours, or not one of the client's, or several
    /// at a time.
    pub(crate) fn reads_moved(&mut self) {
        self.sought.is_moved = true;
        self.reported.is_moved = true;
    }

    /// A request that puts the position that SEEK moves where the client's own would have left it.
    pub(crate) fn put_sought(&mut self, file: u16) -> Vec<u8> {
        self.sought.is_moved = false;
        if let Ok(by) = i32::try_from(self.sought.at) {
            let from = SeekOrigin::Start;
            return SeekRequest { file, from, by }.emit(&self.like);
        }
        // No SEEK reaches that far. A READ of the byte before it does, and moves the other position as well.
        self.reported.is_moved = true;
        let read = ReadAndxRequest {
            file,
            offset: self.sought.at - 1,
            length: 1,
        };
        read.emit(&self.like)
    }

    /// Builds the request that sets FilePositionInformation to the reported value.
    pub(crate) fn emit_reported(&mut self, file: u16) -> Vec<u8> {
        self.reported.is_moved = false;
        set_position(&self.like, file, self.reported.at)
    }

    /// Returns true if a request comes from the open's own user and tree, and no lock excludes it.
    pub(crate) fn takes(&self, header: &Smb1Header) -> bool {
        let who = (header.process, header.process_high);
        (self.like.user, self.like.tree) == (header.user, header.tree)
            && self.locker.is_none_or(|locker| locker == who)
    }

    /// Returns true if the near half may answer for this open.
    pub(crate) fn is_held(&self) -> bool {
        self.grant == LicenceState::Held && !self.is_closing
    }

    /// Returns true if a WRITE would overlap an outstanding one. Servers may execute several at a
    /// time and in any order, but a client relies on the order of WRITEs that it believes complete.
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        let last_before = self.written.range(..end).next_back();
        last_before.is_some_and(|(_, written_to)| *written_to > start)
    }

    /// Returns true if the near half has confirmed that it has stopped.
    pub(crate) fn has_confirmed(&self) -> bool {
        match self.grant {
            LicenceState::Held => false,
            LicenceState::Breaking { confirmed, .. } => confirmed && !self.refuses_writes,
            LicenceState::Given => !self.refuses_writes,
        }
    }

    /// Returns true if the next WRITE may have been answered already.
    pub(crate) fn is_from_before(&self) -> bool {
        !self.has_confirmed() || self.queued_writes > 0
    }

    /// Returns true if the server's oplock break must be hidden from the client. A break of an open
    /// without an oplock belongs to another open with the same file id.
    pub(crate) fn hides_break(&mut self) -> bool {
        let has_oplock = self.grant != LicenceState::Given || self.is_shared;
        self.is_ours && (has_oplock || std::mem::take(&mut self.may_be_asked))
    }

    /// Handles an oplock that the client has given back: its later requests are the server's to
    /// answer.
    pub(crate) fn given_by_client(&mut self) {
        self.grant = LicenceState::Given;
        self.reads = None;
        self.queued_writes = 0;
        self.refuses_writes = false;
    }

    /// Returns true if outstanding WRITEs may have been answered already.
    pub(crate) fn has_early_writes(&self) -> bool {
        self.may_write && self.grant != LicenceState::Given
    }
}
