//! The server's messages on their way to the client: answers under the client's ids, and answers to
//! what was asked for here.

use bytes::Bytes;
use vocab::{SegmentKind, Time};

use super::open::{Grant, Open};
use super::read_ahead::{ReadAhead, Verdict};
use super::{Far, Outstanding, Purpose, Rest, State};
use crate::LetGoReason;
use crate::smb::config::{AHEAD_BLOCK_MAX, OUTSTANDING_MAX};
use crate::smb::frames::{Frame, Licence};
use crate::smb::wire::create::{ANSWER_OPLOCK_AT, CreateAnswer, oplock_level};
use crate::smb::wire::header::{self, Header, command, flag, status};
use crate::smb::wire::split::{Head, Piece};
use crate::smb::wire::transfer::READ_DATA_AT;
use crate::smb::wire::{FileId, u8_at, u32_at};

impl Far {
    /// Bytes of the server's.
    pub(super) fn answer_bytes(&mut self, now: Time, bytes: Bytes) {
        self.answers.push(bytes);
        while self.state != State::Gone {
            match self.answers.next() {
                Ok(Some(Piece::Head(head))) => self.answer(now, head),
                Ok(Some(Piece::Rest(kind, bytes))) => match (self.rest, kind) {
                    (Rest::Listed(..), _) => self.gather(&bytes),
                    (Rest::Pass, _) | (Rest::Ahead { .. }, SegmentKind::Payload) => {
                        self.send_client(kind, bytes);
                    }
                    (Rest::Swallow | Rest::Ahead { .. }, _) => {}
                },
                Ok(Some(Piece::End)) => {
                    self.answer_complete();
                    for answer in std::mem::take(&mut self.ready) {
                        self.send_client(SegmentKind::Control, answer);
                    }
                }
                Ok(None) => return,
                Err(foreign) => self.stop_for(foreign),
            }
        }
    }

    /// A message of the server's begins.
    fn answer(&mut self, now: Time, mut head: Head) {
        let header = head.header;
        if !header.has(flag::FROM_SERVER) {
            return self.object(head, LetGoReason::Violation);
        }
        self.ids.granted(header.credits);
        self.rest = Rest::Pass;
        if header.message_id == header::UNASKED {
            return self.unasked(now, head);
        }
        let Some(request) = self.outstanding.get(&header.message_id).copied() else {
            if self.state == State::Engaged {
                return self.stop(LetGoReason::Violation);
            }
            return self.send_client(SegmentKind::Control, head.bytes.freeze());
        };
        // [MS-SMB2] §3.3.4.2 (Sending an Interim Response): the answer is still to come.
        let is_interim = header.status == status::PENDING && header.has(flag::ASYNC);
        if !is_interim {
            self.outstanding.remove(&header.message_id);
        }
        let Some(client_id) = request.client_id else {
            if !head.is_single() {
                return self.stop(LetGoReason::Violation);
            }
            return self.own_answer(&head, request, is_interim);
        };
        head.set_message_id(client_id);
        if !is_interim {
            self.connection.learn(&header, head.body());
            self.finished(now, &mut head, request);
        }
        if self.state != State::Gone {
            self.send_client(SegmentKind::Control, head.bytes.freeze());
        }
    }

    /// Stops at a message that cannot be; in a state that may let go, it is passed on first.
    fn object(&mut self, head: Head, reason: LetGoReason) {
        if self.state == State::Watching {
            self.send_client(SegmentKind::Control, head.bytes.freeze());
        }
        self.stop(reason);
    }

    /// A request of the client's is answered.
    fn finished(&mut self, now: Time, head: &mut Head, request: Outstanding) {
        let header = head.header;
        if request.is_early {
            self.early = self.early.saturating_sub(1);
        }
        match request.purpose {
            Purpose::Create {
                is_bare: true,
                may_read,
                tree,
                ..
            } => self.opened_bare(head, tree, may_read),
            Purpose::Create {
                is_ours,
                may_read,
                may_write,
                is_bare: false,
                tree,
            } => self.opened(now, head, is_ours, tree, (may_read, may_write)),
            Purpose::Changes { file, is_write } => {
                if let Some(open) = self.opens.get_mut(&file) {
                    open.changing = open.changing.saturating_sub(1);
                    if is_write {
                        open.writing = open.writing.saturating_sub(1);
                    }
                    if let Some(start) = request.written_at {
                        open.written.remove(&start);
                    }
                }
            }
            Purpose::Closes(file) if header.status == status::SUCCESS => self.forget_open(file),
            Purpose::Closes(file) => {
                if let Some(open) = self.opens.get_mut(&file) {
                    open.is_closing = false;
                }
            }
            Purpose::Ends { session, tree } if header.status == status::SUCCESS => {
                for file in self.files() {
                    let open = &self.opens[&file];
                    if open.session == session && tree.is_none_or(|tree| tree == open.tree) {
                        self.forget_open(file);
                    }
                }
            }
            Purpose::Plain if header.command == command::CREATE => self.opened_unserved(head),
            Purpose::Lists(file) => {
                if let Some(listing) = self.listing(file) {
                    listing.answered_client(header.status);
                }
            }
            Purpose::Ends { .. }
            | Purpose::Plain
            | Purpose::Ahead { .. }
            | Purpose::ListsAhead(_)
            | Purpose::Own => {}
        }
    }

    /// The server has opened a file, or not.
    fn opened(
        &mut self,
        now: Time,
        head: &mut Head,
        is_ours: bool,
        tree: u32,
        rights: (bool, bool),
    ) {
        if is_ours {
            self.creating -= 1;
        }
        let header = Header {
            tree,
            ..head.header
        };
        if header.status != status::SUCCESS {
            return;
        }
        let Ok(answer) = CreateAnswer::parse(head.body()) else {
            return self.stop(LetGoReason::Violation);
        };
        if is_ours {
            head.body_mut()[ANSWER_OPLOCK_AT] = oplock_level::NONE;
        }
        let is_exclusive = matches!(
            answer.oplock_level,
            oplock_level::EXCLUSIVE | oplock_level::BATCH
        ) && !answer.is_directory();
        if is_exclusive || (is_ours && answer.oplock_level != oplock_level::NONE) {
            self.serve(&header, &answer, is_ours, is_exclusive, rights);
        }
        if let Some(index) = self
            .early_breaks
            .iter()
            .position(|file| *file == answer.file)
        {
            self.early_breaks.swap_remove(index);
            self.broken(now, answer.file);
        }
        if self.creating == 0 {
            self.early_breaks.clear();
        }
    }

    /// The server has opened a directory, or something for its attributes alone.
    fn opened_bare(&mut self, head: &Head, tree: u32, may_list: bool) {
        if head.header.status != status::SUCCESS {
            return;
        }
        let Ok(answer) = CreateAnswer::parse(head.body()) else {
            return self.stop(LetGoReason::Violation);
        };
        let may_list = may_list && answer.is_directory();
        let (file, session) = (answer.file, head.header.session);
        let mut open = Open::new(session, tree, false);
        open.may_close = true;
        open.listing = may_list.then(|| self.usual_listing.begin());
        self.opens.insert(file, open);
        self.tell_near(Frame::Licence(Licence {
            file,
            session,
            tree,
            may_read: false,
            may_write: false,
            may_close: true,
            read_max: 0,
            write_max: 0,
        }));
    }

    /// The server has opened a file that is not served. If the client has an oplock of its own, its
    /// break must be known from one of an open that is under way.
    fn opened_unserved(&mut self, head: &Head) {
        if head.header.status != status::SUCCESS {
            return;
        }
        let Ok(answer) = CreateAnswer::parse(head.body()) else {
            return;
        };
        if matches!(
            answer.oplock_level,
            oplock_level::NONE | oplock_level::LEASE
        ) {
            return;
        }
        // With so many opens no more are served, and every unknown break is the client's.
        if self.opens.len() < OUTSTANDING_MAX {
            let open = Open::new(head.header.session, head.header.tree, false);
            self.opens.insert(answer.file, open);
        }
    }

    /// Keeps an open, and tells the near half what it may do with it: before the client has the
    /// open's id, so that both halves see every request that names it.
    fn serve(
        &mut self,
        header: &Header,
        answer: &CreateAnswer,
        is_ours: bool,
        is_exclusive: bool,
        (may_read, may_write): (bool, bool),
    ) {
        let (read_max, write_max) = self
            .connection
            .negotiated()
            .map_or((0, 0), |agreed| (agreed.max_read, agreed.max_write));
        let file = answer.file;
        let may_read = may_read && is_exclusive && read_max > 0;
        let may_write = may_write && is_exclusive && write_max > 0;
        let mut open = Open::new(header.session, header.tree, is_ours);
        if is_exclusive {
            open.grant = Grant::Held;
            open.may_write = may_write;
            open.may_close = true;
            self.tell_near(Frame::Licence(Licence {
                file,
                session: header.session,
                tree: header.tree,
                may_read,
                may_write,
                may_close: true,
                read_max,
                write_max,
            }));
        }
        if may_read {
            // Without multi-credit requests one credit pays for 64 KiB and no more.
            let most = match self.connection.negotiated() {
                Some(agreed) if agreed.is_large_mtu() => read_max.min(AHEAD_BLOCK_MAX),
                _ => read_max.min(65_536),
            };
            open.reads = Some(ReadAhead::new(answer.end_of_file, most));
            self.reading.push_back(file);
            self.tell_near(Frame::EndOfFile {
                file,
                position: self.position,
                offset: answer.end_of_file,
            });
        }
        self.opens.insert(file, open);
    }

    pub(super) fn forget_open(&mut self, file: FileId) {
        self.forget_ahead(file);
        self.opens.remove(&file);
        self.reading.retain(|reading| *reading != file);
        self.breaking.retain(|breaking| *breaking != file);
    }

    /// The server has answered a request of ours.
    fn own_answer(&mut self, head: &Head, request: Outstanding, is_interim: bool) {
        self.rest = Rest::Swallow;
        if let Purpose::ListsAhead(file) = request.purpose {
            if !is_interim {
                self.ahead_credits -= u32::from(request.charge).min(self.ahead_credits);
                self.gathered = head.body().to_vec();
                self.rest = Rest::Listed(file, head.header.status);
            }
            return;
        }
        let Purpose::Ahead {
            file,
            offset,
            length,
            position,
            at,
        } = request.purpose
        else {
            return;
        };
        if is_interim {
            return;
        }
        self.ahead_credits -= u32::from(request.charge).min(self.ahead_credits);
        let is_awaited = self.opens.get(&file).is_some_and(|open| {
            open.is_held()
                && open
                    .reads
                    .as_ref()
                    .is_some_and(|reads| reads.awaits(offset, length))
        });
        let count = match head.header.status {
            status::SUCCESS => match data_length(head) {
                Some(count) if count <= length => count,
                _ => return self.stop(LetGoReason::Violation),
            },
            _ => 0,
        };
        let sent_on = if is_awaited { count } else { 0 };
        self.pace
            .answered(at, u64::from(length), u64::from(sent_on));
        match head.header.status {
            _ if !is_awaited => {}
            status::SUCCESS => {
                self.tell_near(Frame::Ahead {
                    file,
                    position,
                    offset,
                    length: count,
                });
                self.rest = Rest::Ahead {
                    file,
                    offset,
                    length,
                    count,
                };
            }
            status::END_OF_FILE => self.sent_ahead(file, offset, length, 0),
            // Whatever it is, the client shall hear it from the server.
            _ => {
                self.forget_ahead(file);
                self.reading.retain(|reading| *reading != file);
                if let Some(open) = self.opens.get_mut(&file) {
                    open.reads = None;
                }
            }
        }
    }

    fn answer_complete(&mut self) {
        let rest = std::mem::replace(&mut self.rest, Rest::Pass);
        if let Rest::Listed(file, status) = rest {
            self.listed(file, status);
        }
        if let Rest::Ahead {
            file,
            offset,
            length,
            count,
        } = rest
        {
            self.sent_ahead(file, offset, length, count);
        }
    }

    /// A block is on its way; READs that waited for it are settled.
    fn sent_ahead(&mut self, file: FileId, offset: u64, length: u32, count: u32) {
        let position = self.position;
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        let Some(reads) = &mut open.reads else {
            return;
        };
        if !reads.awaits(offset, length) {
            return;
        }
        let known = reads.end();
        reads.sent(offset, length, count);
        let end = reads.end();
        if let Some(offset) = end
            && end != known
        {
            self.tell_near(Frame::EndOfFile {
                file,
                position,
                offset,
            });
        }
        self.judge_waiting(file);
    }

    /// Settles the READs of an open that wait and need not any more, and asks the server what
    /// nothing on its way will answer.
    pub(super) fn judge_waiting(&mut self, file: FileId) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        let Some(reads) = &open.reads else {
            return;
        };
        let mut settled = Vec::new();
        let mut unanswered = Vec::new();
        for waiting in std::mem::take(&mut open.waiting) {
            match reads.verdict(waiting.offset, waiting.length) {
                Verdict::Settled => settled.push(waiting.message_id),
                Verdict::Wait => open.waiting.push(waiting),
                Verdict::Forward => unanswered.push(waiting.message),
            }
        }
        for message_id in settled {
            self.tell_near(Frame::Settled { message_id });
        }
        for message in unanswered {
            self.enqueue(message);
        }
    }
}

/// The bytes of data that a READ answer holds, if they lie within it and behind its fixed part.
fn data_length(head: &Head) -> Option<u32> {
    let at = usize::from(u8_at(head.body(), 2).ok()?);
    let count = u32_at(head.body(), 4).ok()?;
    let lies_within = at >= READ_DATA_AT && at + count as usize <= head.length;
    (count > 0 && lies_within).then_some(count)
}
