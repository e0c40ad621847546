//! The near half for SMB 1: the client's server, for requests that it has a licence to answer.
//!
//! All messages of the client pass to the far half at once and unaltered, including those that are
//! answered here, so the far half sees everything in order. The server's messages pass as well,
//! except answers to requests that were answered here, which the far half names by the request's
//! position.
//!
//! ```text
//!             Engaged, from the far half
//!   Passing ─────────────────────────────► Serving ── bytes that cannot be ──► Close
//! ```
//! While Passing, every byte passes unchanged, so that the far half may still let go.
//!
//! A READ is answered when all of its data has been prefetched, a WRITE as soon as it has passed,
//! both only for opens with a licence and while licences are fresh, exactly as in SMB 2. The
//! failure of an answered WRITE is reported with every further WRITE, FLUSH, LOCKING, SET_FILE and
//! CLOSE of its open, and with the end of its tree or user.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use vocab::{FlowSegment, SegmentKind, Time};

use super::frames::{Smb1HalfFrame, Smb1OpenLicence, VERSION};
use super::wire::create::opened_file;
use super::wire::header::{Smb1Header, command};
use super::wire::oplock::LockingRequest;
use super::wire::split::{self, PassedMessage, PassingFrame, Smb1Splitter};
use super::wire::target::{Smb1RequestEffect, answers, is_secondary, may_open, only_closes, touch};
use super::wire::transaction::TransactionProgress;
use super::wire::transfer::{
    ReadAndxRequest, WriteAndxRequest, read_answer_front, write_answer, written,
};
use crate::smb::config::{BEHIND_MAX, OPENS_MAX, OUTSTANDING_MAX};
use crate::smb::near::contents::{BYTES_MAX, CachedRead, FileContents};
use crate::smb::near::freshness::LicenceFreshness;
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, LettingGo, ReasonCode};

/// The state of the half; see the drawing above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Smb1NearState {
    Passing,
    Serving,
    /// Closed; the engine drops it.
    Gone,
}

/// An open with a licence.
#[derive(Debug)]
struct Smb1LicensedOpen {
    licence: Smb1OpenLicence,
    /// Revoked, or closed by the client: its later requests are the server's to answer.
    is_over: bool,
    contents: FileContents,
    /// The client's requests up to this message belong to another open with the same file id.
    opened_at: u64,
    /// Data that was read before this message of the client's is out of date.
    changed_at: u64,
    /// The process that has locked parts of the file, if one has.
    locker: Option<(u16, u16)>,
    /// The status of an answered WRITE that failed later, as the server's answer gave it.
    lost: Option<u32>,
    /// Its CLOSE may do more than that: report a change that was made through it, or end locks.
    is_changed: bool,
}

impl Smb1LicensedOpen {
    /// Its file changes with this message of the client's.
    fn change(&mut self, at: u64) {
        self.contents.clear();
        self.changed_at = at;
        self.is_changed = true;
    }

    /// Nothing is answered for it any more.
    fn end(&mut self) {
        self.is_over = true;
        self.contents.clear();
    }
}

/// A client's request outstanding at the server, by its position.
#[derive(Clone, Debug)]
enum Smb1PendingRequest {
    Read {
        header: Smb1Header,
        request: ReadAndxRequest,
        message: Bytes,
        /// The client has its answer from here.
        is_answered: bool,
    },
    Write {
        file: u16,
        length: u32,
        is_answered: bool,
    },
    /// A request whose answer reports a loss, and the received part of the answer.
    Reports {
        file: u16,
        progress: TransactionProgress,
    },
    /// The same for any open.
    ReportsAny {
        progress: TransactionProgress,
        /// The server may give out a file id with its answer.
        may_open: bool,
    },
    Closes {
        file: u16,
        /// The client has its answer from here.
        is_answered: bool,
    },
    /// The opens of a tree, or of a user, end with it.
    Ends {
        tree: Option<u16>,
        user: Option<u16>,
    },
}

impl Smb1PendingRequest {
    fn reports(file: u16) -> Self {
        let progress = TransactionProgress::default();
        Self::Reports { file, progress }
    }

    fn reports_any(may_open: bool) -> Self {
        let progress = TransactionProgress::default();
        Self::ReportsAny { progress, may_open }
    }
}

/// A block that is coming in.
#[derive(Debug)]
struct Smb1IncomingBlock {
    file: u16,
    position: u64,
    offset: u64,
    left: usize,
    pieces: Vec<Bytes>,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Smb1NearHalf {
    state: Smb1NearState,
    outputs: VecDeque<AcceleratorOutput>,
    requests: PassingFrame,
    /// The client's bytes cannot be followed and are not looked at.
    is_blind: bool,
    /// Messages of the client's that have passed.
    position: u64,
    answers: Smb1Splitter,
    /// The request that the server's next message answers.
    reply: Option<u64>,
    /// The file that has a licence since the server's last message: the next one opens it.
    licensed: Option<u16>,
    opens: BTreeMap<u16, Smb1LicensedOpen>,
    pending: BTreeMap<u64, Smb1PendingRequest>,
    incoming: Option<Smb1IncomingBlock>,
    /// Bytes of WRITEs that were answered and not confirmed.
    behind: u64,
    fresh: LicenceFreshness,
    /// Requests answered here.
    answered: u64,
    /// The opens with READs that were answered since the last drop.
    answered_files: Vec<u16>,
    client_finished: bool,
    /// The stream towards the client has ended.
    server_finished: bool,
}

impl Smb1NearHalf {
    /// A half for a flow on which the client's first message, and nothing more, has passed.
    pub(crate) fn new() -> Self {
        let mut near = Self {
            state: Smb1NearState::Passing,
            outputs: VecDeque::new(),
            requests: PassingFrame::default(),
            is_blind: false,
            position: 1,
            answers: Smb1Splitter::default(),
            reply: None,
            licensed: None,
            opens: BTreeMap::new(),
            pending: BTreeMap::new(),
            incoming: None,
            behind: 0,
            fresh: LicenceFreshness::default(),
            answered: 0,
            answered_files: Vec::new(),
            client_finished: false,
            server_finished: false,
        };
        near.tell_far(&Smb1HalfFrame::Speaks { version: VERSION });
        near
    }

    fn tell_far(&mut self, frame: &Smb1HalfFrame) {
        if !self.client_finished {
            self.outputs
                .push_back(AcceleratorOutput::ToWan(frame.emit()));
        }
    }

    fn send_client(&mut self, bytes: Bytes) {
        if !bytes.is_empty() && !self.server_finished {
            self.outputs.push_back(AcceleratorOutput::ToLan(bytes));
        }
    }

    fn close(&mut self, reason: ReasonCode) {
        if self.state == Smb1NearState::Gone {
            return;
        }
        self.state = Smb1NearState::Gone;
        let closing = LettingGo::Close { reason };
        self.outputs
            .push_back(AcceleratorOutput::LettingGo(closing));
    }

    /// Handles the client's bytes: they pass at once, and then are parsed.
    fn request_bytes(&mut self, now: Time, bytes: Bytes) {
        if let Some(number) = self.fresh.beat(now) {
            self.tell_far(&Smb1HalfFrame::Beat { number });
        }
        if self.is_blind {
            return self
                .outputs
                .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(bytes)));
        }
        match self.requests.push(bytes.clone()) {
            Ok((runs, messages)) => {
                for (kind, bytes) in runs {
                    let segment = FlowSegment { kind, bytes };
                    self.outputs.push_back(AcceleratorOutput::ToWan(segment));
                }
                for passed in messages {
                    self.passed(now, passed);
                }
            }
            Err(_) => {
                // The far half finds the same, and lets go or ends the flow.
                self.is_blind = true;
                self.fresh.expire();
                self.outputs
                    .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(bytes)));
            }
        }
    }

    /// A message of the client's has passed.
    fn passed(&mut self, now: Time, passed: PassedMessage) {
        self.position += 1;
        if self.opens.is_empty() {
            return;
        }
        let at = self.position;
        let touch = touch(&passed.header, &passed.message);
        let may_open = may_open(&passed.header, touch, &passed.message);
        match touch {
            Smb1RequestEffect::Nothing
            | Smb1RequestEffect::Asks(_)
            | Smb1RequestEffect::AsksPosition(_)
            | Smb1RequestEffect::Seeks(_)
            | Smb1RequestEffect::ReadsOtherwise(_)
            | Smb1RequestEffect::Opens
            | Smb1RequestEffect::Raw => {}
            Smb1RequestEffect::Reads(request) => self.read_passed(now, passed, request),
            Smb1RequestEffect::Writes(request) => self.write_passed(now, &passed, request),
            Smb1RequestEffect::Changes(file) => {
                self.change(file, at);
                self.expect(at, file, Smb1PendingRequest::reports(file));
            }
            Smb1RequestEffect::Locks(locking) => {
                self.locks(&passed.header, locking);
                self.expect(at, locking.file, Smb1PendingRequest::reports(locking.file));
            }
            Smb1RequestEffect::Releases(locking) => {
                // The server takes it back whether it has asked for it or not.
                if let Some(open) = self.opens.get_mut(&locking.file) {
                    open.end();
                }
                if !locking.is_without_answer() {
                    self.locks(&passed.header, locking);
                    self.expect(at, locking.file, Smb1PendingRequest::reports(locking.file));
                }
            }
            Smb1RequestEffect::Flushes(file) => {
                self.expect(at, file, Smb1PendingRequest::reports(file))
            }
            Smb1RequestEffect::FlushesAll => self.note(at, Smb1PendingRequest::reports_any(false)),
            Smb1RequestEffect::Closes(file) => self.close_passed(now, &passed, file),
            Smb1RequestEffect::EndsTree => self.ends(at, Some(passed.header.tree), None),
            Smb1RequestEffect::EndsUser => self.ends(at, None, Some(passed.header.user)),
            Smb1RequestEffect::Anything => {
                for open in self.opens.values_mut() {
                    open.change(at);
                }
                // A part of a request is answered with the first one.
                if !is_secondary(&passed.header) {
                    self.note(at, Smb1PendingRequest::reports_any(may_open));
                }
            }
            Smb1RequestEffect::Unread => {
                for open in self.opens.values_mut() {
                    open.end();
                }
                if answers(&passed.header, &passed.message) > 0 {
                    self.note(at, Smb1PendingRequest::reports_any(may_open));
                }
            }
        }
    }

    fn locks(&mut self, header: &Smb1Header, locking: LockingRequest) {
        let Some(open) = self.opens.get_mut(&locking.file) else {
            return;
        };
        let who = process(header);
        let is_another = open.locker.is_some_and(|locker| locker != who);
        if is_another || !locking.is_of(header.process) {
            // Who may read or write what is for the server to judge.
            open.licence.may_read = false;
            open.licence.may_write = false;
        }
        open.locker = Some(who);
        open.licence.may_write &= !locking.may_lock_shared();
    }

    fn change(&mut self, file: u16, at: u64) {
        if let Some(open) = self.opens.get_mut(&file) {
            open.change(at);
        }
    }

    fn ends(&mut self, at: u64, tree: Option<u16>, user: Option<u16>) {
        for open in self.opens.values_mut() {
            if is_of(&open.licence, tree, user) {
                open.end();
            }
        }
        self.note(at, Smb1PendingRequest::Ends { tree, user });
    }

    /// Records a request on an open whose answer this half gives or modifies.
    fn expect(&mut self, at: u64, file: u16, pending: Smb1PendingRequest) {
        if self.opens.contains_key(&file) {
            self.note(at, pending);
        }
    }

    fn note(&mut self, at: u64, pending: Smb1PendingRequest) {
        // One that is not noted could never be answered here, and the far half may count on it.
        if self.pending.len() >= OUTSTANDING_MAX {
            return self.close(ReasonCode::LIMIT);
        }
        self.pending.insert(at, pending);
    }

    fn read_passed(&mut self, now: Time, passed: PassedMessage, request: ReadAndxRequest) {
        let at = self.position;
        let pending = Smb1PendingRequest::Read {
            header: passed.header,
            request,
            message: passed.message.into(),
            is_answered: false,
        };
        self.expect(at, request.file, pending);
        if let Some(open) = self.opens.get_mut(&request.file) {
            open.contents.note_read(request.offset, request.length);
        }
        if self.serves(now, request.file, &passed.header).is_some() {
            self.answer_read(at, &passed.header, request);
        }
    }

    fn write_passed(&mut self, now: Time, passed: &PassedMessage, request: WriteAndxRequest) {
        let at = self.position;
        self.change(request.file, at);
        let may_answer = self
            .serves(now, request.file, &passed.header)
            .is_some_and(|open| open.licence.may_write && open.lost.is_none())
            && request.is_plain(passed.length)
            && self.behind + u64::from(request.length) <= BEHIND_MAX;
        let pending = Smb1PendingRequest::Write {
            file: request.file,
            length: request.length,
            is_answered: may_answer,
        };
        self.expect(at, request.file, pending);
        if !may_answer || self.state == Smb1NearState::Gone {
            return;
        }
        self.answered += 1;
        self.behind += u64::from(request.length);
        let answer = write_answer(&passed.header, request.length);
        self.send_client(super::wire::frame(&answer).into());
    }

    /// A CLOSE has passed: it is answered if it has nothing to report (docs/decisions/0035).
    fn close_passed(&mut self, now: Time, passed: &PassedMessage, file: u16) {
        let is_unanswered = |pending: &Smb1PendingRequest| match *pending {
            Smb1PendingRequest::Read {
                ref request,
                is_answered: false,
                ..
            } => request.file == file,
            Smb1PendingRequest::Write { file: of, .. }
            | Smb1PendingRequest::Reports { file: of, .. }
            | Smb1PendingRequest::Closes { file: of, .. } => of == file,
            Smb1PendingRequest::Read { .. }
            | Smb1PendingRequest::ReportsAny { .. }
            | Smb1PendingRequest::Ends { .. } => false,
        };
        let open = self.serves(now, file, &passed.header);
        let is_answered = open.is_some_and(|open| {
            let has_nothing = open.lost.is_none() && open.locker.is_none() && !open.is_changed;
            open.licence.may_close && has_nothing
        }) && only_closes(&passed.message)
            && !self.pending.values().any(is_unanswered);
        if let Some(open) = self.opens.get_mut(&file) {
            // What READs before it wait for is on its way.
            open.is_over = true;
        }
        self.expect(
            self.position,
            file,
            Smb1PendingRequest::Closes { file, is_answered },
        );
        if is_answered && self.state != Smb1NearState::Gone {
            self.answered += 1;
            let answer = passed.header.answer().alone();
            self.send_client(super::wire::frame(&answer).into());
        }
    }

    /// Returns the open if answers may be given for it to the sender of this request.
    fn serves(&self, now: Time, file: u16, header: &Smb1Header) -> Option<&Smb1LicensedOpen> {
        let open = self.opens.get(&file)?;
        (!open.is_over && open.takes(header) && self.fresh.is_fresh(now)).then_some(open)
    }

    /// Answers a READ if all of it is here; whether it was.
    fn answer_read(&mut self, at: u64, header: &Smb1Header, request: ReadAndxRequest) -> bool {
        let Some(open) = self.opens.get_mut(&request.file) else {
            return false;
        };
        let is_short = request.length <= open.licence.longest;
        let is_of_it = at > open.opened_at && open.takes(header);
        if !(open.licence.may_read && is_short && is_of_it) {
            return false;
        }
        let Some(found) = open.contents.find(request.offset, request.length) else {
            return false;
        };
        // At its end a file has no more bytes, and that is no error in SMB 1.
        let (length, pieces) = match found {
            CachedRead::Data { pieces, length } => (length, pieces),
            CachedRead::End => (0, Vec::new()),
        };
        let front = read_answer_front(header, length);
        let total = (front.len() + length as usize) as u32;
        let mut answer = total.to_be_bytes().to_vec();
        answer.extend(front);
        self.send_client(answer.into());
        for piece in pieces {
            self.send_client(piece);
        }
        if let Some(Smb1PendingRequest::Read { is_answered, .. }) = self.pending.get_mut(&at) {
            *is_answered = true;
        }
        if let Some(open) = self.opens.get_mut(&request.file) {
            open.contents.answered(request.offset);
            if self.answered_files.last() != Some(&request.file) {
                self.answered_files.push(request.file);
            }
        }
        self.answered += 1;
        true
    }

    /// Answers the READs of an open for which data has arrived since.
    fn answer_waiting(&mut self, now: Time, file: u16) {
        let mut waiting: Vec<(u64, Smb1Header, ReadAndxRequest)> = Vec::new();
        for (at, pending) in &self.pending {
            if let Smb1PendingRequest::Read {
                header,
                request,
                is_answered: false,
                ..
            } = pending
                && request.file == file
            {
                waiting.push((*at, *header, *request));
            }
        }
        waiting.sort_unstable_by_key(|(at, ..)| *at);
        for (at, header, request) in waiting {
            // The server may answer what was asked before a change and what was asked behind it in
            // any order; the far half's word decides on what came before.
            let is_current = self
                .serves(now, file, &header)
                .is_some_and(|open| at >= open.changed_at);
            if is_current {
                self.answer_read(at, &header, request);
            }
        }
    }

    /// Handles the far half's report that sent data answers a READ, with nothing revoked before:
    /// the READ is answered here whatever the licence's later state.
    fn settled(&mut self, position: u64) {
        let Some(Smb1PendingRequest::Read {
            header,
            request,
            message,
            is_answered,
        }) = self.pending.get(&position).cloned()
        else {
            return;
        };
        if is_answered || self.answer_read(position, &header, request) {
            self.pending.remove(&position);
        } else {
            self.tell_far(&Smb1HalfFrame::Again { position, message });
        }
    }

    fn frame(&mut self, now: Time, bytes: &[u8]) {
        let Ok(frame) = Smb1HalfFrame::parse(bytes) else {
            return self.close(ReasonCode::VIOLATION);
        };
        match frame {
            Some(Smb1HalfFrame::Engaged {
                version: 1..=VERSION,
            }) if self.state == Smb1NearState::Passing => {
                self.state = Smb1NearState::Serving;
            }
            Some(Smb1HalfFrame::Engaged { .. }) => self.close(ReasonCode::UNSUPPORTED),
            Some(Smb1HalfFrame::Licence(licence)) => self.licensed(licence),
            Some(Smb1HalfFrame::Ahead {
                file,
                position,
                offset,
                length,
            }) => {
                if self.incoming.is_some() || length == 0 || self.state != Smb1NearState::Serving {
                    return self.close(ReasonCode::VIOLATION);
                }
                self.incoming = Some(Smb1IncomingBlock {
                    file,
                    position,
                    offset,
                    left: length as usize,
                    pieces: Vec::new(),
                });
            }
            Some(Smb1HalfFrame::EndOfFile {
                file,
                position,
                offset,
            }) => {
                if let Some(contents) = self.contents_at(file, position) {
                    contents.set_end(offset);
                    self.answer_waiting(now, file);
                }
            }
            Some(Smb1HalfFrame::Settled { position }) => self.settled(position),
            Some(Smb1HalfFrame::Revoke { file }) => {
                if let Some(open) = self.opens.get_mut(&file) {
                    open.end();
                }
                self.tell_far(&Smb1HalfFrame::Revoked { file });
            }
            Some(Smb1HalfFrame::Heard { number }) => self.fresh.heard(number),
            Some(Smb1HalfFrame::Reply { position }) => self.reply = Some(position),
            // What only this half sends, or another release.
            Some(
                Smb1HalfFrame::Speaks { .. }
                | Smb1HalfFrame::Beat { .. }
                | Smb1HalfFrame::Again { .. }
                | Smb1HalfFrame::Dropped { .. }
                | Smb1HalfFrame::Revoked { .. },
            )
            | None => {}
        }
    }

    fn licensed(&mut self, licence: Smb1OpenLicence) {
        // What the far half grants it also counts on. It keeps to its limit but for opens that are under
        // way as it is reached.
        if self.opens.len() >= OPENS_MAX + OUTSTANDING_MAX || self.state != Smb1NearState::Serving {
            return self.close(ReasonCode::LIMIT);
        }
        let open = Smb1LicensedOpen {
            licence,
            is_over: false,
            contents: FileContents::default(),
            opened_at: self.position,
            changed_at: 0,
            locker: None,
            lost: None,
            is_changed: false,
        };
        self.opens.insert(licence.file, open);
        self.licensed = Some(licence.file);
    }

    /// Returns the contents that data belongs to if it was read of a file behind this message of
    /// the client's.
    fn contents_at(&mut self, file: u16, position: u64) -> Option<&mut FileContents> {
        let open = self.opens.get_mut(&file)?;
        (position >= open.changed_at).then_some(&mut open.contents)
    }

    /// Takes payload of a block. Returns the rest when the block is complete.
    fn incoming(&mut self, now: Time, mut bytes: Bytes) -> Bytes {
        let Some(incoming) = &mut self.incoming else {
            return bytes;
        };
        let piece = bytes.split_to(incoming.left.min(bytes.len()));
        incoming.left -= piece.len();
        incoming.pieces.push(piece);
        if incoming.left > 0 {
            return bytes;
        }
        let block = self.incoming.take().expect("it was there just now");
        if let Some(contents) = self.contents_at(block.file, block.position) {
            contents.insert(block.offset, block.pieces);
            self.answer_waiting(now, block.file);
            self.limit_contents();
        }
        bytes
    }

    /// Drops the contents of all opens if they have become too many: first of those for which no READ waits.
    fn limit_contents(&mut self) {
        for is_last in [false, true] {
            if self.kept() <= BYTES_MAX {
                return;
            }
            let files: Vec<u16> = self.opens.keys().copied().collect();
            for file in files {
                let is_waiting = self.least_waiting(file).is_some();
                let Some(open) = self.opens.get_mut(&file) else {
                    continue;
                };
                if open.contents.bytes() == 0 || is_waiting && !is_last {
                    continue;
                }
                open.contents.drop_blocks();
                let (from, to) = (0, u64::MAX);
                self.tell_far(&Smb1HalfFrame::Dropped { file, from, to });
            }
        }
    }

    /// The offset of the first READ of an open that waits.
    fn least_waiting(&self, file: u16) -> Option<u64> {
        let offset = |pending: &Smb1PendingRequest| match pending {
            Smb1PendingRequest::Read {
                request,
                is_answered: false,
                ..
            } if request.file == file => Some(request.offset),
            _ => None,
        };
        self.pending.values().filter_map(offset).min()
    }

    /// Drops what lies before the answered READs. All that the client has sent is known by now, so what none of it
    /// waits for is told to the far half before it hears of the next.
    fn drop_answered(&mut self) {
        for file in std::mem::take(&mut self.answered_files) {
            let waiting = self.least_waiting(file);
            let open = self.opens.get_mut(&file);
            let dropped = open.map(|open| open.contents.drop_answered(waiting));
            for range in dropped.unwrap_or_default() {
                let (from, to) = (range.start, range.end);
                self.tell_far(&Smb1HalfFrame::Dropped { file, from, to });
            }
        }
    }

    /// Bytes of all opens that were read ahead.
    fn kept(&self) -> u64 {
        let opens = self.opens.values();
        opens.map(|open| open.contents.bytes()).sum()
    }

    /// Bytes of the server's.
    fn answer_bytes(&mut self, bytes: Bytes) {
        if self.state == Smb1NearState::Passing {
            return self.send_client(bytes);
        }
        self.answers.push(&bytes);
        while self.state == Smb1NearState::Serving {
            match self.answers.next() {
                Ok(Some(split::Smb1Frame::KeepAlive(frame))) => self.send_client(frame.freeze()),
                Ok(Some(split::Smb1Frame::Message(header, frame))) => self.answer(&header, frame),
                Ok(None) => return,
                Err(_) => return self.close(ReasonCode::VIOLATION),
            }
        }
    }

    /// A message of the server's.
    fn answer(&mut self, header: &Smb1Header, frame: BytesMut) {
        let licensed = self.licensed.take();
        let reply = self.reply.take();
        let (is_last, may_open) = self.progress(reply, header, split::message(&frame));
        let given = match header.status {
            0 if may_open => opened_file(split::message(&frame)),
            _ => None,
        };
        if let Some(file) = given.filter(|file| licensed != Some(*file)) {
            // What was known by this file id is no more.
            self.opens.remove(&file);
        }
        // What was lost is said at the end of an answer.
        let pending = reply
            .filter(|_| is_last)
            .and_then(|at| self.pending.remove(&at));
        match pending {
            None
            | Some(Smb1PendingRequest::Read {
                is_answered: false, ..
            }) => self.send_client(frame.freeze()),
            Some(Smb1PendingRequest::Read {
                is_answered: true, ..
            }) => {}
            Some(Smb1PendingRequest::Write {
                file,
                length,
                is_answered: true,
            }) => {
                self.behind = self.behind.saturating_sub(u64::from(length));
                let count = written(split::message(&frame));
                let lost = match header.status {
                    0 if count == Ok(length) => return,
                    0 => header.io_error(),
                    status => status,
                };
                if let Some(open) = self.opens.get_mut(&file) {
                    open.lost.get_or_insert(lost);
                }
            }
            Some(
                Smb1PendingRequest::Write { file, .. } | Smb1PendingRequest::Reports { file, .. },
            ) => {
                let lost = self.opens.get(&file).and_then(|open| open.lost);
                self.report(header, frame, lost);
            }
            Some(Smb1PendingRequest::Closes { file, is_answered }) => {
                if !is_answered {
                    let lost = self.opens.get(&file).and_then(|open| open.lost);
                    self.report(header, frame, lost);
                }
                // Another may have its file id already.
                if header.status == 0 && self.opens.get(&file).is_some_and(|open| open.is_over) {
                    self.opens.remove(&file);
                }
            }
            // Nobody would close what is opened so.
            Some(Smb1PendingRequest::ReportsAny { .. }) if given.is_some() => {
                self.send_client(frame.freeze());
            }
            Some(Smb1PendingRequest::ReportsAny { .. }) => {
                let lost = self.opens.values().find_map(|open| open.lost);
                self.report(header, frame, lost);
            }
            Some(Smb1PendingRequest::Ends { tree, user }) => {
                // The last answer in which what was lost with an open can be said.
                let mut ended = self.opens.values();
                let lost =
                    ended.find_map(|open| open.lost.filter(|_| is_of(&open.licence, tree, user)));
                self.report(header, frame, lost);
                if header.status == 0 {
                    self.opens
                        .retain(|_, open| !is_of(&open.licence, tree, user));
                }
            }
        }
    }

    /// Returns whether a message is the last of the answer to this request, and whether it may
    /// contain a new file id.
    fn progress(
        &mut self,
        reply: Option<u64>,
        header: &Smb1Header,
        message: &[u8],
    ) -> (bool, bool) {
        let is_transaction = matches!(
            header.command,
            command::TRANSACTION | command::TRANSACTION_2 | command::NT_TRANSACT
        );
        if !is_transaction {
            return (true, true);
        }
        match reply.and_then(|at| self.pending.get_mut(&at)) {
            Some(Smb1PendingRequest::Reports { progress, .. }) => {
                (progress.is_last(header, message), false)
            }
            Some(Smb1PendingRequest::ReportsAny { progress, may_open }) => {
                (progress.is_last(header, message), *may_open)
            }
            _ => (true, false),
        }
    }

    /// Passes an answer on, with an earlier loss in place of its own status.
    fn report(&mut self, header: &Smb1Header, frame: BytesMut, lost: Option<u32>) {
        let Some(status) = lost else {
            return self.send_client(frame.freeze());
        };
        let header = Smb1Header { status, ..*header };
        self.send_client(super::wire::frame(&header.alone()).into());
    }
}

impl Smb1LicensedOpen {
    /// Returns true if the request comes from the open's own user and tree, and no lock excludes
    /// it.
    fn takes(&self, header: &Smb1Header) -> bool {
        (self.licence.user, self.licence.tree) == (header.user, header.tree)
            && self.locker.is_none_or(|locker| locker == process(header))
    }
}

/// Returns the requesting process, with both halves of its id.
fn process(header: &Smb1Header) -> (u16, u16) {
    (header.process, header.process_high)
}

/// Returns true if an open ends with a tree, or with a user.
fn is_of(licence: &Smb1OpenLicence, tree: Option<u16>, user: Option<u16>) -> bool {
    tree.is_none_or(|tree| tree == licence.tree) && user.is_none_or(|user| user == licence.user)
}

impl AcceleratorHalf for Smb1NearHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        if self.state == Smb1NearState::Gone {
            return;
        }
        match input {
            AcceleratorInput::Start
            | AcceleratorInput::Timeout
            | AcceleratorInput::Server(..)
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken => {}
            AcceleratorInput::Lan(bytes) => self.request_bytes(now, bytes),
            AcceleratorInput::LanFinished => {
                self.outputs.push_back(AcceleratorOutput::FinishWan);
                self.client_finished = true;
            }
            AcceleratorInput::Wan(segment) => match segment.kind {
                SegmentKind::Frame => self.frame(now, &segment.bytes),
                SegmentKind::Payload => {
                    let rest = self.incoming(now, segment.bytes);
                    self.answer_bytes(rest);
                }
                SegmentKind::Control if self.incoming.is_some() => {
                    self.close(ReasonCode::VIOLATION);
                }
                SegmentKind::Control => self.answer_bytes(segment.bytes),
            },
            AcceleratorInput::WanFinished => {
                let held = self.answers.give_back();
                self.send_client(held);
                self.outputs.push_back(AcceleratorOutput::FinishLan);
                // The server's opens have ended with its stream, and what they allowed.
                self.server_finished = true;
                self.fresh.expire();
            }
            AcceleratorInput::WanSilent(_) => self.fresh.expire(),
        }
        self.drop_answered();
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn buffered(&self) -> usize {
        let incoming = self.incoming.iter().flat_map(|incoming| &incoming.pieces);
        self.kept() as usize + incoming.map(Bytes::len).sum::<usize>() + self.answers.held()
    }

    fn answered(&self) -> u64 {
        self.answered
    }

    fn note(&self) -> Option<String> {
        (self.answered > 0).then(|| "SMB 1".to_owned())
    }
}
