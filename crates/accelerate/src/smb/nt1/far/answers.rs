//! The server's messages: answers to the client's requests and to our own, and oplock breaks.

use bytes::BytesMut;
use vocab::{SegmentKind, Time};

use super::super::frames::{Smb1HalfFrame, Smb1OpenLicence};
use super::super::wire::create::{NtCreateResponse, hide_oplock, opened_file};
use super::super::wire::header::{self, Smb1Header, UNASKED, command};
use super::super::wire::negotiate::Smb1NegotiateResponse;
use super::super::wire::oplock::broken;
use super::super::wire::position::sought;
use super::super::wire::set_up::connected;
use super::super::wire::split::{self, FRAME_HEADER, in_runs, message_mut};
use super::super::wire::transfer::{read_data, written};
use super::{
    Smb1FarHalf, Smb1FarState, Smb1OutstandingRequest, Smb1RequestPurpose, Smb1TrackedOpen,
};
use crate::ReasonCode;
use crate::smb::far::open::LicenceState;
use crate::smb::far::read_ahead::ReadAhead;
use crate::smb::reasons;

/// For less than a disk's sector at a time nothing is read ahead.
const READ_LEAST: u32 = 512;

impl Smb1FarHalf {
    /// Bytes of the server's.
    pub(super) fn answer_bytes(&mut self, now: Time, bytes: &[u8]) {
        self.answers.push(bytes);
        while self.state != Smb1FarState::Gone {
            match self.answers.next() {
                Ok(Some(split::Smb1Frame::KeepAlive(frame))) => {
                    self.send_client(SegmentKind::Control, frame.freeze());
                }
                Ok(Some(split::Smb1Frame::Message(header, frame))) => {
                    self.answer(now, &header, frame);
                    self.pump(now);
                }
                Ok(None) => return,
                Err(unread) => self.stop_unread(unread),
            }
        }
    }

    /// A message of the server's.
    fn answer(&mut self, now: Time, header: &Smb1Header, mut frame: BytesMut) {
        if header.is_signed() {
            if self.state == Smb1FarState::Watching {
                self.pass(header, frame);
            }
            return self.stop(reasons::SIGNED_BY_SMB1);
        }
        if header.command == command::NEGOTIATE && self.state == Smb1FarState::Watching {
            return self.negotiated(header, frame);
        }
        if header.mid == UNASKED && !self.outstanding.contains_key(&UNASKED) {
            let file = broken(header, split::message(&frame));
            if file.is_none_or(|file| self.break_of(now, file)) {
                self.pass(header, frame);
            }
            return;
        }
        let Some(outstanding) = self.outstanding.get_mut(&header.mid) else {
            return match self.state {
                Smb1FarState::Watching => self.pass(header, frame),
                Smb1FarState::Engaged | Smb1FarState::Gone => self.unexpected(header, frame),
            };
        };
        let is_last = match header.command {
            command::TRANSACTION | command::TRANSACTION_2 | command::NT_TRANSACT => {
                outstanding.progress.is_last(header, split::message(&frame))
            }
            _ => {
                outstanding.answers -= 1;
                outstanding.answers == 0
            }
        };
        let outstanding = *outstanding;
        if is_last {
            self.outstanding.remove(&header.mid);
        }
        let Some((asked, position)) = outstanding.client else {
            return self.own_answered(&outstanding, header, frame);
        };
        header::set_mid(message_mut(&mut frame), asked.mid);
        if outstanding.may_open && header.status == 0 {
            self.file_given(split::message(&frame));
        }
        if is_last {
            self.learn(&outstanding, header, &mut frame);
        }
        if self.state == Smb1FarState::Engaged {
            self.tell_near(&Smb1HalfFrame::Reply { position });
        }
        self.pass(header, frame);
        if !is_last {
            return;
        }
        if !self.is_opening() {
            self.early_breaks.clear();
        }
        match outstanding.purpose {
            Smb1RequestPurpose::Closes { file, serial } => {
                let is_same = |open: &&Smb1TrackedOpen| open.serial == serial;
                if self.opens.get(&file).filter(is_same).is_some() {
                    self.closed(now, file, position, header.status == 0);
                }
            }
            Smb1RequestPurpose::Ends { tree, user } if header.status != 0 => {
                for file in self.files_of(tree, user) {
                    self.closed(now, file, position, false);
                }
            }
            _ => {}
        }
    }

    /// Handles an answer to a request that is answered only if it fails. An answer to our own
    /// request is dropped.
    fn unexpected(&mut self, header: &Smb1Header, mut frame: BytesMut) {
        let at = self
            .silent
            .iter()
            .position(|silent| silent.mid == header.mid);
        let Some(silent) = at.and_then(|at| self.silent.remove(at)) else {
            return self.stop(ReasonCode::VIOLATION);
        };
        if let Some((asked, position)) = silent.client {
            header::set_mid(message_mut(&mut frame), asked.mid);
            self.tell_near(&Smb1HalfFrame::Reply { position });
            self.pass(header, frame);
        }
    }

    /// Handles a new file id from the server: earlier state under that id is forgotten.
    fn file_given(&mut self, message: &[u8]) {
        if let Some(file) = opened_file(message) {
            self.forget_ahead(file);
            self.opens.remove(&file);
            self.forget_gone();
        }
    }

    /// Handles the answer to NEGOTIATE, which selects the dialect.
    fn negotiated(&mut self, header: &Smb1Header, frame: BytesMut) {
        let agreed = Smb1NegotiateResponse::parse(split::message(&frame)).ok();
        self.agreed = agreed.filter(|agreed| agreed.knows_nt());
        self.pass(header, frame);
        match self.agreed {
            Some(agreed) if agreed.requires_signatures => self.stop(reasons::SIGNED_BY_SMB1),
            Some(_) => {}
            None => self.stop(ReasonCode::UNSUPPORTED),
        }
    }

    /// Passes a message on to the client: a READ's data as payload.
    fn pass(&mut self, header: &Smb1Header, frame: BytesMut) {
        let data = match header.command {
            command::READ => read_data(split::message(&frame)).ok(),
            _ => None,
        };
        let (at, length) = data.unwrap_or((frame.len(), 0));
        for (kind, bytes) in in_runs(frame.freeze(), at + FRAME_HEADER, length) {
            self.send_client(kind, bytes);
        }
    }

    /// Applies the information in the answer to a client's request.
    fn learn(
        &mut self,
        outstanding: &Smb1OutstandingRequest,
        header: &Smb1Header,
        frame: &mut BytesMut,
    ) {
        let is_done = header.status == 0;
        if let (true, Some((tree, is_disk))) = (is_done, connected(header, split::message(frame))) {
            match is_disk {
                true => self.disks.insert(tree),
                false => self.disks.remove(&tree),
            };
        }
        self.early -= usize::from(outstanding.is_early);
        let position = outstanding.client.map_or(0, |(_, position)| position);
        if let Some((file, serial)) = outstanding.purpose.bars_reads_ahead() {
            let open = self.opens.get_mut(&file);
            if let Some(open) = open.filter(|open| open.serial == serial) {
                open.changing = open.changing.saturating_sub(1);
            }
        }
        match outstanding.purpose {
            Smb1RequestPurpose::Create {
                is_ours,
                may_read,
                may_write,
                is_unix,
            } if is_done => {
                self.opened(outstanding, [is_ours, may_read, may_write, is_unix], frame)
            }
            Smb1RequestPurpose::Reads { read, serial, end } => {
                let count = read_data(split::message(frame)).map_or(0, |(_, count)| count);
                let open = self.opens.get_mut(&read.file);
                if let Some(open) = open.filter(|open| open.serial == serial) {
                    open.reading = open.reading.saturating_sub(1);
                    if is_done {
                        let left = end.map_or(u64::MAX, |end| end.saturating_sub(read.offset));
                        open.note_read(position, read, left.min(count as u64) as u32);
                    }
                }
            }
            Smb1RequestPurpose::Anything => {
                self.changing -= 1;
                // What is asked from here on is done behind it.
                self.changed_at = self.position;
            }
            Smb1RequestPurpose::Changes { file, serial, .. } => {
                let open = self.opens.get_mut(&file);
                if let Some(open) = open.filter(|open| open.serial == serial) {
                    let count = written(split::message(frame)).ok().filter(|_| is_done);
                    if let Some((write, before)) = outstanding.moved
                        && count != Some(write.length)
                    {
                        let count = count.map(|count| count.min(write.length));
                        open.note_short(position, write, before, count);
                    }
                    open.writing = open
                        .writing
                        .saturating_sub(usize::from(outstanding.is_awaited));
                    if let Some(start) = outstanding.written_at {
                        open.written.remove(&start);
                    }
                }
            }
            Smb1RequestPurpose::Seeks { seek, serial } if is_done => {
                let open = self.opens.get_mut(&seek.file);
                if let (Some(open), Ok(told)) = (
                    open.filter(|open| open.serial == serial),
                    sought(split::message(frame)),
                ) {
                    open.note_seek(position, seek, told);
                }
            }
            Smb1RequestPurpose::SetsPosition { file, serial, to } if is_done => {
                let open = self.opens.get_mut(&file);
                if let Some(open) = open.filter(|open| open.serial == serial) {
                    open.reported.set(position, to);
                }
            }
            Smb1RequestPurpose::Ends { tree, user } if is_done => {
                for file in self.files_of(tree, user) {
                    self.opens.remove(&file);
                }
                self.forget_gone();
            }
            Smb1RequestPurpose::Create { .. }
            | Smb1RequestPurpose::Ends { .. }
            | Smb1RequestPurpose::Tells { .. }
            | Smb1RequestPurpose::Seeks { .. }
            | Smb1RequestPurpose::SetsPosition { .. }
            | Smb1RequestPurpose::Plain
            | Smb1RequestPurpose::Closes { .. }
            | Smb1RequestPurpose::Ahead { .. }
            | Smb1RequestPurpose::Moves { .. } => {}
        }
    }

    /// A file was opened that may be served.
    fn opened(
        &mut self,
        outstanding: &Smb1OutstandingRequest,
        [is_ours, may_read, may_write, is_unix]: [bool; 4],
        frame: &mut BytesMut,
    ) {
        let answer = match is_unix {
            true => NtCreateResponse::parse_unix(split::message(frame)),
            false => NtCreateResponse::parse(split::message(frame)),
        };
        let (Ok(answer), Some((asked, position)), Some(agreed)) =
            (answer, outstanding.client, self.agreed)
        else {
            return;
        };
        if is_ours {
            hide_oplock(message_mut(frame));
        }
        let is_ended = self.unread_at > position;
        if self.was_broken_early(answer.file) || is_ended {
            // The near half has never answered for it. Of an oplock of its own the client has heard.
            if is_ours && answer.has_oplock() {
                self.next_serial += 1;
                let mut open = Smb1TrackedOpen::new(self.next_serial, asked, is_ours);
                open.gone_at = is_ended.then_some(self.unread_at);
                open.grant = LicenceState::Breaking {
                    confirmed: true,
                    at_latest: Time::ZERO,
                };
                self.opens.insert(answer.file, open);
                self.breaking.push(answer.file);
            }
            return;
        }
        // One whose oplock is not exclusive is remembered where the client does not know of it: its break
        // must not reach the client.
        let is_licence = answer.is_exclusive() && answer.is_file();
        let is_hidden = is_ours && answer.has_oplock();
        self.unserved.without_oplock += u64::from(!is_licence && answer.is_file());
        self.unserved.by_request += u64::from(!answer.is_file());
        if !(is_licence || is_hidden) {
            return;
        }
        self.next_serial += 1;
        let mut open = Smb1TrackedOpen::new(self.next_serial, asked, is_ours);
        if is_licence {
            open.may_write = may_write;
            open.may_close = true;
            // Who may write as well perhaps never reads, and a READ of ours would be told by the time of
            // the last access.
            let reads = match may_write {
                true => ReadAhead::waiting,
                false => ReadAhead::new,
            };
            let read_max = agreed.read_max(self.client);
            let may_read = may_read && read_max >= READ_LEAST;
            open.reads = may_read.then(|| reads(answer.size, read_max, self.settings.path_bytes));
            // What was under way beside it may have been done behind it.
            // One of the Unix extensions counts as a change itself, and is none.
            let is_unchanged = self.changed_at < position || is_unix && self.changed_at == position;
            let is_certain = self.changing == 0 && is_unchanged;
            if let Some(reads) = open.reads.as_mut().filter(|_| !is_certain) {
                reads.forget();
            }
            self.tell_near(&Smb1HalfFrame::Licence(Smb1OpenLicence {
                file: answer.file,
                user: asked.user,
                tree: asked.tree,
                may_read,
                may_write,
                may_close: true,
                longest: agreed.longest_answered(self.client),
            }));
            if is_certain {
                self.tell_near(&Smb1HalfFrame::EndOfFile {
                    file: answer.file,
                    position: self.position,
                    offset: answer.size,
                });
            }
            self.served_opens += 1;
            self.reading.retain(|file| *file != answer.file);
            self.reading.push_back(answer.file);
        } else {
            open.grant = LicenceState::Given;
            open.is_shared = true;
        }
        self.opens.insert(answer.file, open);
    }

    /// An open was closed, or could not be.
    fn closed(&mut self, now: Time, file: u16, position: u64, is_gone: bool) {
        if is_gone {
            self.opens.remove(&file);
            return self.forget_gone();
        }
        if let Some(open) = self.opens.get_mut(&file) {
            open.is_closing = false;
            // What fails may have ended it all the same.
            open.gone_at = Some(position);
            // The near half has ended it.
            open.reads = None;
            self.broken(now, file);
        }
    }

    /// Drops the state of opens that no longer exist.
    fn forget_gone(&mut self) {
        let opens = &self.opens;
        self.breaking.retain(|file| opens.contains_key(file));
        self.reading.retain(|file| opens.contains_key(file));
    }

    /// The server has answered a request of our own.
    fn own_answered(
        &mut self,
        outstanding: &Smb1OutstandingRequest,
        header: &Smb1Header,
        frame: BytesMut,
    ) {
        self.own = self.own.saturating_sub(1);
        let (file, serial) = match outstanding.purpose {
            Smb1RequestPurpose::Ahead { file, serial, .. }
            | Smb1RequestPurpose::Moves { file, serial } => (file, serial),
            _ => return,
        };
        let open = self.opens.get_mut(&file);
        let mut open = open.filter(|open| open.serial == serial);
        if let Some(open) = &mut open {
            open.reading = open.reading.saturating_sub(1);
        }
        let Smb1RequestPurpose::Ahead {
            offset,
            length,
            position,
            at,
            ..
        } = outstanding.purpose
        else {
            return;
        };
        let data = match header.status {
            0 => read_data(split::message(&frame)).ok(),
            _ => None,
        };
        // More than was asked for is no answer to it.
        let data = data.filter(|(_, count)| *count as u64 <= u64::from(length));
        let reads = open.and_then(|open| open.reads.as_mut());
        let reads = reads.filter(|reads| reads.awaits(offset, length));
        let Some(reads) = reads else {
            return self.pace.answered(at, u64::from(length), 0);
        };
        let Some((data_at, count)) = data else {
            self.pace.answered(at, u64::from(length), 0);
            return self.stop_ahead(file);
        };
        // A server may give less than it is asked for without being at the file's end.
        let is_whole = count as u64 == u64::from(length);
        if is_whole {
            reads.sent(offset, length, length);
        }
        self.pace.answered(at, u64::from(length), count as u64);
        if count > 0 {
            self.tell_near(&Smb1HalfFrame::Ahead {
                file,
                position,
                offset,
                length: count as u32,
            });
            let data_at = data_at + FRAME_HEADER;
            let payload = frame.freeze().slice(data_at..data_at + count);
            self.send_client(SegmentKind::Payload, payload);
        }
        match is_whole {
            true => self.judge_waiting(file),
            false => self.stop_ahead(file),
        }
    }
}
