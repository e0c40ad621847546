//! The client's requests on their way to the server, and our own.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use vocab::{SegmentKind, Time};

use super::super::frames::Smb1HalfFrame;
use super::super::wire::create::{NtCreateRequest, UnixOpenRequest, ask_for_oplock};
use super::super::wire::header::{self, Smb1Header, UNASKED, command};
use super::super::wire::position::{SeekOrigin, SeekRequest, position_set};
use super::super::wire::set_up::ClientCapabilities;
use super::super::wire::split::{self, is_short, message_mut};
use super::super::wire::target::{self, Smb1RequestEffect, touch};
use super::super::wire::transaction::TransactionProgress;
use super::super::wire::transfer::ReadAndxRequest;
use super::{
    SILENT_MAX, SilentRequest, Smb1ClientMessage, Smb1FarHalf, Smb1FarState,
    Smb1OutstandingRequest, Smb1RequestPurpose, Smb1StreamFinish, Smb1TrackedOpen,
};
use crate::ReasonCode;
use crate::smb::config::{ConsistencyMode, OPENS_MAX, OUTSTANDING_MAX};
use crate::smb::far::open::LicenceState;
use crate::smb::far::read_ahead::{ReadAhead, ReadVerdict};
use crate::smb::reasons;

impl Smb1FarHalf {
    /// Bytes of the client's.
    pub(super) fn request_bytes(&mut self, now: Time, bytes: &[u8]) {
        self.requests.push(bytes);
        while self.state != Smb1FarState::Gone {
            match self.requests.next() {
                Ok(Some(split::Smb1Frame::KeepAlive(frame))) => self.send_server(frame.freeze()),
                Ok(Some(split::Smb1Frame::Message(header, frame))) => {
                    self.position += 1;
                    self.arrived(now, header, frame);
                }
                Ok(None) => return,
                Err(unread) => self.stop_unread(unread),
            }
        }
    }

    /// A message of the client's is complete.
    fn arrived(&mut self, now: Time, header: Smb1Header, frame: BytesMut) {
        let touch = touch(&header, split::message(&frame));
        if let Some(takes) = ClientCapabilities::parse(&header, split::message(&frame)) {
            // One for each session; what the server makes of several is not known.
            self.client = self.client.and(takes);
        }
        if let Some(reason) = self.objection(&header, &frame, touch) {
            self.in_hand = frame;
            return self.stop(reason);
        }
        self.note_touch(now, &header, touch);
        let request = Smb1ClientMessage {
            position: self.position,
            header,
            frame,
        };
        let request = match touch {
            Smb1RequestEffect::Reads(read) => self.answer_ahead(read, request),
            _ => Some(request),
        };
        if let Some(request) = request {
            self.enqueue(request);
        }
        self.pump(now);
    }

    /// Returns the reason why the client's message cannot be handled, if there is one.
    fn objection(
        &self,
        header: &Smb1Header,
        frame: &[u8],
        touch: Smb1RequestEffect,
    ) -> Option<ReasonCode> {
        if self.outstanding.len() + self.queue.len() > OUTSTANDING_MAX {
            return Some(ReasonCode::LIMIT);
        }
        if header.is_reply() || is_short(split::message(frame)) {
            return Some(ReasonCode::VIOLATION);
        }
        if header.is_signed() {
            return Some(reasons::SIGNED_BY_SMB1);
        }
        // Without a near half that follows there is nothing to do here; and a second message with the id of
        // one under way could not be told from it.
        let is_taken = self.outstanding.contains_key(&header.mid)
            && !target::is_secondary(header)
            && target::answers(header, split::message(frame)) > 0;
        let is_lost = self.state == Smb1FarState::Watching && (!self.near_speaks || is_taken);
        // What is renumbered or negotiated anew, or has no header, cannot be followed.
        let is_foreign = touch == Smb1RequestEffect::Raw || header.command == command::NEGOTIATE;
        (is_lost || is_foreign).then_some(ReasonCode::UNSUPPORTED)
    }

    /// Applies the message's effects on the tracked opens.
    fn note_touch(&mut self, now: Time, header: &Smb1Header, touch: Smb1RequestEffect) {
        match touch {
            Smb1RequestEffect::Changes(file) => {
                self.forget_ahead(file);
                if header.command == command::WRITE_OLD {
                    self.leave_position(file);
                }
            }
            Smb1RequestEffect::ReadsOtherwise(file) => {
                self.forget_ahead(file);
                self.leave_position(file);
            }
            Smb1RequestEffect::Writes(request) => self.forget_ahead(request.file),
            Smb1RequestEffect::Locks(locking) | Smb1RequestEffect::Releases(locking) => {
                let who = (header.process, header.process_high);
                let open = self.opens.get(&locking.file);
                let locker = open.and_then(|open| open.locker);
                // As at the near half: of what several processes lock it answers no READ.
                let is_several = locker.is_some_and(|locker| locker != who);
                let ends = locking.releases() || is_several || !locking.is_of(header.process);
                if ends {
                    self.forget_ahead(locking.file);
                }
                if let Some(open) = self.opens.get_mut(&locking.file) {
                    open.like.process = header.process;
                    open.like.process_high = header.process_high;
                    open.locker = Some(who);
                    if ends {
                        open.reads = None;
                    }
                }
            }
            Smb1RequestEffect::Closes(file) => {
                self.forget_ahead(file);
                if let Some(open) = self.opens.get_mut(&file) {
                    open.is_closing = true;
                }
            }
            Smb1RequestEffect::EndsTree => self.end_opens(Some(header.tree), None),
            Smb1RequestEffect::EndsUser => self.end_opens(None, Some(header.user)),
            Smb1RequestEffect::Anything => {
                self.changed_at = self.position;
                for file in self.files() {
                    self.forget_ahead(file);
                }
            }
            Smb1RequestEffect::Unread => {
                self.unread_at = self.position;
                for file in self.files() {
                    self.forget_ahead(file);
                    let Some(open) = self.opens.get_mut(&file) else {
                        continue;
                    };
                    open.reads = None;
                    open.gone_at = Some(self.position);
                    // The near half has ended them all by itself; what is ours goes back.
                    self.broken(now, file);
                }
            }
            Smb1RequestEffect::Nothing
            | Smb1RequestEffect::Reads(_)
            | Smb1RequestEffect::Asks(_)
            | Smb1RequestEffect::AsksPosition(_)
            | Smb1RequestEffect::Seeks(_)
            | Smb1RequestEffect::Flushes(_)
            | Smb1RequestEffect::FlushesAll
            | Smb1RequestEffect::Opens
            | Smb1RequestEffect::Raw => {}
        }
    }

    /// Only the server knows an open's position from here on: no READ of ours may move it any more.
    fn leave_position(&mut self, file: u16) {
        if let Some(open) = self.opens.get_mut(&file) {
            open.reads = None;
        }
    }

    fn end_opens(&mut self, tree: Option<u16>, user: Option<u16>) {
        // What is under way to be opened may end with it as well.
        self.unread_at = self.position;
        for file in self.files_of(tree, user) {
            if let Some(open) = self.opens.get_mut(&file) {
                open.is_closing = true;
            }
            self.forget_ahead(file);
        }
    }

    /// The opens of a tree, or of a user.
    pub(super) fn files_of(&self, tree: Option<u16>, user: Option<u16>) -> Vec<u16> {
        let is_meant = |like: &Smb1Header| {
            tree.is_none_or(|tree| tree == like.tree) && user.is_none_or(|user| user == like.user)
        };
        let opens = self.opens.iter();
        opens
            .filter(|(_, open)| is_meant(&open.like))
            .map(|(file, _)| *file)
            .collect()
    }

    /// Forgets the data that was read ahead of this open because it is out of date. READs that wait
    /// for it go to the server.
    pub(super) fn forget_ahead(&mut self, file: u16) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        if let Some(reads) = &mut open.reads {
            reads.forget();
        }
        self.ask_for_waiting(file);
    }

    /// Stops using the data that is read ahead of this open; READs that wait for it go to the
    /// server.
    pub(super) fn stop_ahead(&mut self, file: u16) {
        if let Some(reads) = self
            .opens
            .get_mut(&file)
            .and_then(|open| open.reads.as_mut())
        {
            reads.stop();
        }
        self.ask_for_waiting(file);
    }

    fn ask_for_waiting(&mut self, file: u16) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        for (_, request) in std::mem::take(&mut open.waiting) {
            self.enqueue(request);
        }
    }

    /// Takes a READ that is, or will be, answered by prefetched data; gives others back.
    fn answer_ahead(
        &mut self,
        read: ReadAndxRequest,
        request: Smb1ClientMessage,
    ) -> Option<Smb1ClientMessage> {
        let header = request.header;
        let agreed = self.agreed;
        let longest = agreed.map(|agreed| agreed.longest_answered(self.client));
        let is_own =
            |open: &&mut Smb1TrackedOpen| open.takes(&header) && longest >= Some(read.length);
        let Some(open) = self.opens.get_mut(&read.file).filter(is_own) else {
            return Some(request);
        };
        open.like = header;
        let is_held = open.is_held();
        let Some(reads) = open.reads.as_mut().filter(|_| is_held) else {
            return Some(request);
        };
        if self.reading.back() != Some(&read.file) {
            self.reading.retain(|file| *file != read.file);
            self.reading.push_back(read.file);
        }
        // What the near half answers without a word is none of the server's business.
        let is_behind = reads.end().is_some_and(|end| read.offset >= end);
        let verdict = match is_behind {
            true => ReadVerdict::Settled,
            false => reads.read(read.offset, read.length),
        };
        match verdict {
            ReadVerdict::Settled => {
                open.note_unseen(request.position, read);
                self.tell_near(&Smb1HalfFrame::Settled {
                    position: request.position,
                });
                None
            }
            ReadVerdict::Wait => {
                open.waiting.push((read, request));
                None
            }
            ReadVerdict::Forward => {
                // It may have ended the run that others wait for.
                self.judge_waiting(read.file);
                Some(request)
            }
        }
    }

    /// Settles the READs that wait for data in transit which has arrived, or will not.
    pub(super) fn judge_waiting(&mut self, file: u16) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        for (read, request) in std::mem::take(&mut open.waiting) {
            let Some(open) = self.opens.get_mut(&file) else {
                return;
            };
            let verdict = match &open.reads {
                Some(reads) => reads.verdict(read.offset, read.length),
                None => ReadVerdict::Forward,
            };
            match verdict {
                ReadVerdict::Settled => {
                    open.note_unseen(request.position, read);
                    self.tell_near(&Smb1HalfFrame::Settled {
                        position: request.position,
                    });
                }
                ReadVerdict::Wait => open.waiting.push((read, request)),
                ReadVerdict::Forward => self.enqueue(request),
            }
        }
    }

    /// The near half no longer has the blocks of an open that begin in this range.
    pub(super) fn dropped(&mut self, file: u16, range: &Range<u64>) {
        let open = self.opens.get_mut(&file);
        if let Some(reads) = open.and_then(|open| open.reads.as_mut()) {
            reads.dropped(range);
            self.judge_waiting(file);
        }
    }

    /// Handles a READ whose data the near half no longer has.
    pub(super) fn read_again(&mut self, position: u64, message: &[u8]) {
        let (Ok(header), Ok(read), Smb1FarState::Engaged) = (
            Smb1Header::parse(message),
            ReadAndxRequest::parse(message),
            self.state,
        ) else {
            return self.stop(ReasonCode::VIOLATION);
        };
        if self.queue.len() > OUTSTANDING_MAX {
            return self.stop(ReasonCode::LIMIT);
        }
        // Written anew, because the near half keeps no more than the beginning of a message.
        let frame = super::super::wire::frame(&read.emit(&header));
        self.enqueue(Smb1ClientMessage {
            position,
            header,
            frame: BytesMut::from(&frame[..]),
        });
    }

    fn enqueue(&mut self, request: Smb1ClientMessage) {
        self.queue_bytes += request.frame.len();
        self.queue.push_back(request);
    }

    /// Sends all that may be sent now.
    pub(super) fn pump(&mut self, now: Time) {
        if self.state == Smb1FarState::Gone {
            return;
        }
        self.give_back_confirmed();
        while let Some(request) = self.queue.front() {
            if !self.may_pass(request) || self.moves_position() {
                break;
            }
            let request = self.queue.pop_front().expect("it was there just now");
            self.queue_bytes -= request.frame.len();
            self.dispatch(request);
        }
        if self.client_finish == Smb1StreamFinish::Wanted && self.queue.is_empty() {
            self.client_finish = Smb1StreamFinish::Done;
            self.outputs.push_back(crate::AcceleratorOutput::FinishLan);
        }
        self.read_ahead(now);
    }

    /// The number of requests that may be outstanding ([MS-CIFS] §3.2.4.1.1, MaxMpxCount).
    pub(super) fn mpx(&self) -> usize {
        let agreed = self.agreed.map_or(1, |agreed| agreed.mpx_count);
        usize::from(agreed).max(1)
    }

    fn may_pass(&self, request: &Smb1ClientMessage) -> bool {
        if self.state == Smb1FarState::Watching {
            return true;
        }
        let header = &request.header;
        let touch = touch(header, request.message());
        let is_barred = self.early > 0
            && !matches!(touch, Smb1RequestEffect::Writes(_))
            && !matches!(header.command, command::ECHO | command::NT_CANCEL);
        let is_reading = |file: u16| self.opens.get(&file).is_some_and(|open| open.reading > 0);
        let is_in_the_way = match touch {
            Smb1RequestEffect::Writes(write) => self
                .opens
                .get(&write.file)
                .is_some_and(|open| open.overlaps(write.offset, write.end().unwrap_or(u64::MAX))),
            // No READ of ours may move its position any more.
            Smb1RequestEffect::AsksPosition(file)
            | Smb1RequestEffect::Seeks(SeekRequest { file, .. })
            | Smb1RequestEffect::ReadsOtherwise(file) => is_reading(file),
            Smb1RequestEffect::Changes(file) if header.command == command::WRITE_OLD => {
                is_reading(file)
            }
            _ => false,
        };
        // What a client asks for beyond what it may, by itself, is between it and the server. READs may have been
        // answered to it, of what the near half still has, and end soon.
        let is_its_own = self.own == 0 && self.early == 0 && !self.is_reading();
        let has_room = self.outstanding.len() < self.mpx()
            || is_its_own
            || self.outstanding.len() == self.mpx() && self.has_awaited()
            || target::answers(header, request.message()) == 0;
        !is_barred && !is_in_the_way && has_room
    }

    fn is_reading(&self) -> bool {
        let mut outstanding = self.outstanding.values();
        outstanding
            .any(|outstanding| matches!(outstanding.purpose, Smb1RequestPurpose::Reads { .. }))
    }

    /// Returns true if a WRITE waits here that a breaker waits for. The last request slot at the
    /// server may wait for the breaker, so one request more is sent than the server allows.
    fn has_awaited(&self) -> bool {
        !self.breaking.is_empty()
            && self.queue.iter().any(|request| {
                let file = match touch(&request.header, request.message()) {
                    Smb1RequestEffect::Writes(write) => write.file,
                    _ => return false,
                };
                let open = self.opens.get(&file);
                open.is_some_and(|open| matches!(open.grant, LicenceState::Breaking { .. }))
            })
    }

    /// Sets the position of an open, which the next request queries, to the value that the client's
    /// own requests would have left. Returns true if that was begun.
    fn moves_position(&mut self) -> bool {
        let Some(request) = self.queue.front() else {
            return false;
        };
        let (file, message, serial) = match touch(&request.header, request.message()) {
            Smb1RequestEffect::AsksPosition(file) => {
                let open = self.opens.get_mut(&file);
                let Some(open) = open.filter(|open| open.reported.is_moved) else {
                    return false;
                };
                open.reading += 1;
                (file, open.emit_reported(file), open.serial)
            }
            Smb1RequestEffect::Seeks(seek) if seek.from == SeekOrigin::Current => {
                let open = self.opens.get_mut(&seek.file);
                let Some(open) = open.filter(|open| open.sought.is_moved) else {
                    return false;
                };
                open.reading += 1;
                (seek.file, open.put_sought(seek.file), open.serial)
            }
            _ => return false,
        };
        self.send_own(message, Smb1RequestPurpose::Moves { file, serial });
        true
    }

    /// Gives a message of the client's an id at the server and sends it.
    fn dispatch(&mut self, mut request: Smb1ClientMessage) {
        let header = request.header;
        let touch = touch(&header, request.message());
        if self.refuse_late_write(&request, touch) {
            return;
        }
        let purpose = self.purpose(&header, touch, &request);
        if target::is_secondary(&header) {
            return self.dispatch_secondary(request);
        }
        let answers = target::answers(&header, request.message());
        if let Smb1RequestEffect::Releases(locking) = touch
            && let Some(open) = self.opens.get_mut(&locking.file)
        {
            open.given_by_client();
            self.breaking.retain(|file| *file != locking.file);
        }
        if answers == 0 && self.state == Smb1FarState::Engaged {
            let mid = self.take_silent_mid(Some((header, request.position)));
            header::set_mid(message_mut(&mut request.frame), mid);
        }
        if answers > 0 {
            self.changing += usize::from(purpose == Smb1RequestPurpose::Anything);
            let mut outstanding = Smb1OutstandingRequest {
                client: Some((header, request.position)),
                purpose,
                may_open: target::may_open(&header, touch, request.message()),
                answers,
                progress: TransactionProgress::default(),
                is_early: false,
                is_awaited: false,
                written_at: None,
                moved: None,
            };
            let is_ours = matches!(purpose, Smb1RequestPurpose::Create { is_ours: true, .. });
            self.has_other_oplocks |= outstanding.may_open && !is_ours;
            self.note_change(&mut outstanding, touch);
            if let Smb1RequestPurpose::Create { is_ours: true, .. } = purpose {
                ask_for_oplock(message_mut(&mut request.frame));
            }
            let mid = match self.state {
                Smb1FarState::Watching => header.mid,
                Smb1FarState::Engaged | Smb1FarState::Gone => self.take_mid(),
            };
            header::set_mid(message_mut(&mut request.frame), mid);
            self.outstanding.insert(mid, outstanding);
        }
        self.send_server(request.frame.freeze());
    }

    /// Sends a secondary request, or a cancel, under the primary request's own id.
    fn dispatch_secondary(&mut self, mut request: Smb1ClientMessage) {
        let header = request.header;
        // Others may have the same id: what the client holds for done, which stays, and what serial clients have
        // waiting for ever. It is the last one.
        let meant = self.outstanding.iter().filter_map(|(mid, outstanding)| {
            let (asked, position) = outstanding.client?;
            let is_meant = !outstanding.is_early
                && (asked.mid, asked.process) == (header.mid, header.process)
                && target::belongs_to(&header, asked.command);
            is_meant.then_some((position, *mid))
        });
        match meant.max() {
            Some((_, mid)) => {
                header::set_mid(message_mut(&mut request.frame), mid);
                self.send_server(request.frame.freeze());
            }
            // It is answered already. Under the client's id the server may know another.
            None if self.state == Smb1FarState::Engaged => {}
            None => self.send_server(request.frame.freeze()),
        }
    }

    /// Records at its open that a READ, or a request which may change its file, is outstanding.
    fn note_change(&mut self, outstanding: &mut Smb1OutstandingRequest, touch: Smb1RequestEffect) {
        if let Smb1RequestEffect::ReadsOtherwise(file) = touch
            && let Some(open) = self.opens.get_mut(&file)
        {
            open.sought.is_moved = false;
            open.reported.is_moved = false;
        }
        if let Smb1RequestPurpose::Reads { read, .. } = outstanding.purpose
            && let Some(open) = self.opens.get_mut(&read.file)
        {
            if open.reading > 0 {
                open.reads_moved();
            }
            open.reading += 1;
        }
        if let Smb1RequestPurpose::Closes { file, .. } = outstanding.purpose {
            // What the client asks for next must find the file closed, as it was told.
            outstanding.is_early = self.opens.get(&file).is_some_and(|open| open.may_close);
            self.early += usize::from(outstanding.is_early);
        }
        let Some((file, _)) = outstanding.purpose.bars_reads_ahead() else {
            return;
        };
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        open.changing += 1;
        if matches!(outstanding.purpose, Smb1RequestPurpose::SetsPosition { .. }) {
            open.reported.is_moved |= open.reading > 0;
        }
        if !matches!(
            outstanding.purpose,
            Smb1RequestPurpose::Changes { is_write: true, .. }
        ) {
            return;
        }
        // From here on the server's position is the client's, but for what else is under way.
        if let Smb1RequestEffect::Writes(write) = touch
            && write.length > 0
        {
            outstanding.moved = Some((write, open.sought));
            open.sought.is_moved = open.reading > 0 || !open.written.is_empty();
            open.reported.is_moved |= open.reading > 0;
            let position = outstanding.client.map_or(0, |(_, position)| position);
            open.sought.set(position, write.end().unwrap_or_default());
        }
        outstanding.is_awaited = open.is_from_before();
        open.writing += usize::from(outstanding.is_awaited);
        open.queued_writes = open.queued_writes.saturating_sub(1);
        outstanding.is_early = open.has_early_writes();
        self.early += usize::from(outstanding.is_early);
        if let Smb1RequestEffect::Writes(write) = touch
            && outstanding.is_early
            && write.length > 0
        {
            open.written
                .insert(write.offset, write.end().unwrap_or(u64::MAX));
            outstanding.written_at = Some(write.offset);
        }
    }

    /// Returns the purpose of a request: the information that its answer will bring.
    fn purpose(
        &mut self,
        header: &Smb1Header,
        touch: Smb1RequestEffect,
        request: &Smb1ClientMessage,
    ) -> Smb1RequestPurpose {
        let serial = |file: u16| self.opens.get(&file).map(|open| open.serial);
        let changes = |file: u16, is_write: bool| match serial(file) {
            Some(serial) => Smb1RequestPurpose::Changes {
                file,
                serial,
                is_write,
            },
            None => Smb1RequestPurpose::Plain,
        };
        self.name_requests += u64::from(target::asks_by_name(header, request.message()));
        match touch {
            Smb1RequestEffect::Reads(read) => match self.opens.get(&read.file) {
                Some(open) => Smb1RequestPurpose::Reads {
                    read,
                    serial: open.serial,
                    end: open.reads.as_ref().and_then(ReadAhead::end),
                },
                None => Smb1RequestPurpose::Plain,
            },
            Smb1RequestEffect::Opens => {
                let purpose = self.judge_create(request);
                self.unserved.by_request += u64::from(purpose.is_none());
                purpose.unwrap_or(Smb1RequestPurpose::Plain)
            }
            Smb1RequestEffect::Writes(write) => changes(write.file, true),
            Smb1RequestEffect::Changes(file) => {
                match (serial(file), position_set(request.message())) {
                    (Some(serial), Some(to)) if header.command == command::TRANSACTION_2 => {
                        Smb1RequestPurpose::SetsPosition { file, serial, to }
                    }
                    _ => changes(file, false),
                }
            }
            Smb1RequestEffect::AsksPosition(file) => match serial(file) {
                Some(serial) => Smb1RequestPurpose::Tells { file, serial },
                None => Smb1RequestPurpose::Plain,
            },
            Smb1RequestEffect::Seeks(seek) => match serial(seek.file) {
                Some(serial) => Smb1RequestPurpose::Seeks { seek, serial },
                None => Smb1RequestPurpose::Plain,
            },
            Smb1RequestEffect::Locks(locking) | Smb1RequestEffect::Releases(locking) => {
                changes(locking.file, false)
            }
            Smb1RequestEffect::Closes(file) => match serial(file) {
                Some(serial) => Smb1RequestPurpose::Closes { file, serial },
                None => Smb1RequestPurpose::Plain,
            },
            Smb1RequestEffect::Anything
                if target::opens_by_unix_extensions(header, request.message()) =>
            {
                let purpose = self.judge_unix_open(request);
                self.unix_opens += u64::from(purpose.is_none());
                purpose.unwrap_or(Smb1RequestPurpose::Anything)
            }
            Smb1RequestEffect::Anything | Smb1RequestEffect::Unread => Smb1RequestPurpose::Anything,
            Smb1RequestEffect::EndsTree => Smb1RequestPurpose::Ends {
                tree: Some(header.tree),
                user: None,
            },
            Smb1RequestEffect::EndsUser => Smb1RequestPurpose::Ends {
                tree: None,
                user: Some(header.user),
            },
            Smb1RequestEffect::Nothing
            | Smb1RequestEffect::Asks(_)
            | Smb1RequestEffect::ReadsOtherwise(_)
            | Smb1RequestEffect::Flushes(_)
            | Smb1RequestEffect::FlushesAll
            | Smb1RequestEffect::Raw => Smb1RequestPurpose::Plain,
        }
    }

    /// Returns the purpose of a request to open a file, if its open may be served.
    fn judge_create(&mut self, request: &Smb1ClientMessage) -> Option<Smb1RequestPurpose> {
        if !self.may_serve_opens(request) {
            return None;
        }
        let create = NtCreateRequest::parse(request.message()).ok()?;
        if !create.is_served() {
            return None;
        }
        self.engage();
        Some(Smb1RequestPurpose::Create {
            is_ours: !create.asks_for_oplock(),
            may_read: create.may_read(),
            may_write: create.may_write(),
            is_unix: false,
        })
    }

    /// The same of a request of the Unix extensions that asks for an oplock of the client's own.
    fn judge_unix_open(&mut self, request: &Smb1ClientMessage) -> Option<Smb1RequestPurpose> {
        let open = UnixOpenRequest::parse(request.message()).ok()?;
        if !open.is_served() || !self.may_serve_opens(request) {
            return None;
        }
        self.engage();
        Some(Smb1RequestPurpose::Create {
            is_ours: false,
            may_read: true,
            may_write: false,
            is_unix: true,
        })
    }

    fn may_serve_opens(&self, request: &Smb1ClientMessage) -> bool {
        let is_on = self.settings.consistency != ConsistencyMode::Off;
        // Pipes are opened the same way, and by clients that will sign.
        let is_disk = self.disks.contains(&request.header.tree);
        let may_engage = is_on && self.near_speaks && self.agreed.is_some() && is_disk;
        may_engage && self.opens.len() < OPENS_MAX
    }

    /// A free id.
    fn take_mid(&mut self) -> u16 {
        loop {
            let mid = self.next_mid;
            self.next_mid = self.next_mid.checked_add(1).unwrap_or(1);
            // There are four times as many ids as requests may be under way.
            let is_taken = self.outstanding.contains_key(&mid)
                || self.silent.iter().any(|silent| silent.mid == mid);
            if mid != UNASKED && !is_taken {
                return mid;
            }
        }
    }

    /// Returns an id for a request that is answered only if it fails.
    pub(super) fn take_silent_mid(&mut self, client: Option<(Smb1Header, u64)>) -> u16 {
        let mid = self.take_mid();
        if self.silent.len() >= SILENT_MAX {
            self.silent.pop_front();
        }
        self.silent.push_back(SilentRequest { mid, client });
        mid
    }

    /// Sends a request of our own.
    pub(super) fn send_own(&mut self, mut message: Vec<u8>, purpose: Smb1RequestPurpose) {
        let mid = self.take_mid();
        header::set_mid(&mut message, mid);
        let outstanding = Smb1OutstandingRequest {
            client: None,
            purpose,
            may_open: false,
            answers: 1,
            progress: TransactionProgress::default(),
            is_early: false,
            is_awaited: false,
            written_at: None,
            moved: None,
        };
        self.outstanding.insert(mid, outstanding);
        self.own += 1;
        self.send_server(super::super::wire::frame(&message).into());
    }

    /// Refuses a WRITE that the client may believe complete, to a file that another client has
    /// opened since; the near half reports the loss.
    fn refuse_late_write(&mut self, request: &Smb1ClientMessage, touch: Smb1RequestEffect) -> bool {
        let Smb1RequestEffect::Writes(write) = touch else {
            return false;
        };
        let is_late = |open: &&mut Smb1TrackedOpen| {
            open.grant == LicenceState::Given && open.is_from_before()
        };
        let Some(open) = self.opens.get_mut(&write.file).filter(is_late) else {
            return false;
        };
        open.queued_writes = open.queued_writes.saturating_sub(1);
        let header = request.header;
        let refusal = Smb1Header {
            status: header.io_error(),
            ..header.answer()
        };
        self.tell_near(&Smb1HalfFrame::Reply {
            position: request.position,
        });
        let refusal = super::super::wire::frame(&refusal.alone());
        self.send_client(SegmentKind::Control, Bytes::from(refusal));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::nt1::testing::{header, read};
    use crate::smb::{SmbSettings, nt1::wire::split::FRAME_HEADER};
    use crate::{AcceleratorOutput, LettingGo};

    fn engaged() -> Smb1FarHalf {
        let mut far = Smb1FarHalf::new(SmbSettings::STRICT);
        far.state = Smb1FarState::Engaged;
        far
    }

    #[test]
    fn partial_read_is_sent_again_unchanged() {
        let mut far = engaged();
        let mut message = read(7, 1 << 33, 70_000);
        let whole = message.clone();
        message.extend([0; 96]);
        message.truncate(96);
        far.read_again(5, &message);
        let frame = &far.queue[0].frame;
        assert_eq!(frame[FRAME_HEADER..], whole);
        assert_eq!(frame[..FRAME_HEADER], (whole.len() as u32).to_be_bytes());
    }

    #[test]
    fn read_that_cannot_wait_gets_an_answer() {
        let mut far = engaged();
        let message = read(7, 0, 10);
        let request = Smb1ClientMessage {
            position: 1,
            header: header(command::READ),
            frame: BytesMut::from(&super::super::super::wire::frame(&message)[..]),
        };
        far.queue = vec![request; OUTSTANDING_MAX + 1].into();
        far.read_again(5, &message);
        let reason = ReasonCode::LIMIT;
        let closing = AcceleratorOutput::LettingGo(LettingGo::Close { reason });
        assert_eq!(far.outputs.pop_back(), Some(closing));
    }
}
