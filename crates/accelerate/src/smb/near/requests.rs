//! The client's requests as they pass, and the answers that are given to them here.

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::contents::CachedRead;
use super::{
    CLOSE_ASKS_ATTRIBUTES, LicensedOpen, NearState, PassingRequest, PendingRequest, SetLoss,
    Smb2NearHalf, passing,
};
use crate::smb::config::{BEHIND_BLOCK_MAX, BEHIND_MAX, OFFERED_MAX, OUTSTANDING_MAX};
use crate::smb::frames::{COMPOUNDS, HalfFrame, LEASED_OFFERS, OFFICE_REQUESTS};
use crate::smb::keys::SignatureMac;
use crate::smb::listing::may_change_names;
use crate::smb::offer::drops_offers;
use crate::smb::wire::frame::{FRAME_HEADER, frame_header};
use crate::smb::wire::header::{self, MessageProtection, Smb2Header, command, flag, status};
use crate::smb::wire::lock::{changes_contents, may_lock_shared};
use crate::smb::wire::set_info::{
    ANSWER as SET_ANSWER, PlainChange, length_set, plain_change, renames,
};
use crate::smb::wire::split::{ForeignFrame, Smb2MessageHead, SplitterPiece};
use crate::smb::wire::target::{CompoundChain, RequestEffect};
use crate::smb::wire::transfer::{
    READ_DATA_AT, ReadRequest, WriteRequest, read_answer_body, write_answer_body,
};
use crate::smb::wire::{FileId, u16_at};
use crate::{AcceleratorOutput, ReasonCode};

/// The answer to a CLOSE, without attributes: its fixed length, and zeros ([MS-SMB2] §2.2.16, CLOSE
/// Response).
const CLOSE_ANSWER: [u8; 60] = {
    let mut body = [0; 60];
    body[0] = 60;
    body
};

/// The number of bytes that one credit pays for ([MS-SMB2] §3.1.5.2, Calculating the CreditCharge).
const CREDIT_BYTES: u32 = 65_536;

impl Smb2NearHalf {
    /// Handles the client's bytes: they pass at once, payload apart, and then are parsed.
    pub(super) fn request_bytes(&mut self, now: Time, bytes: Bytes) {
        if self.is_blind {
            let segment = FlowSegment::payload(bytes);
            self.outputs.push_back(AcceleratorOutput::ToWan(segment));
            return;
        }
        self.forget_old_listings(now);
        if let Some(number) = self.fresh.beat(now) {
            self.tell_far(HalfFrame::Beat { number });
        }
        if !self.sealing.is_empty() {
            return self.open_bytes(now, bytes);
        }
        let mut rest = bytes.clone();
        let (runs, pieces) = self.split(bytes);
        for (kind, length) in runs {
            let bytes = rest.split_to(length);
            self.outputs
                .push_back(AcceleratorOutput::ToWan(FlowSegment { kind, bytes }));
        }
        for piece in pieces {
            match piece {
                SplitterPiece::Head(head) => self.passes(now, &head),
                SplitterPiece::Rest(_, bytes) => {
                    self.gather_open(&bytes);
                    if let Some(mac) = &mut self.mac {
                        mac.update(&bytes);
                    }
                    if let Some(frame) = &mut self.asking {
                        frame.update(&bytes);
                    }
                    if let Some(frame) = &mut self.looking {
                        frame.update(&bytes);
                    }
                    self.children.update(&bytes);
                }
                SplitterPiece::End => self.passed(now),
                SplitterPiece::Sealed(_) => self.passed_unread(now),
            }
        }
    }

    /// Cuts bytes into runs of payload and others, and into the parsed pieces.
    fn split(&mut self, bytes: Bytes) -> (Vec<(SegmentKind, usize)>, Vec<SplitterPiece>) {
        let mut runs = PayloadRuns {
            passed: self.requests.held(),
            left: bytes.len(),
            runs: Vec::new(),
        };
        let mut pieces = Vec::new();
        self.requests.push(bytes);
        loop {
            match self.requests.next() {
                Ok(Some(piece)) => {
                    match &piece {
                        SplitterPiece::Head(head) => {
                            runs.add(SegmentKind::Control, head.bytes.len())
                        }
                        SplitterPiece::Rest(kind, bytes) => runs.add(*kind, bytes.len()),
                        SplitterPiece::End => {}
                        SplitterPiece::Sealed(frame) => runs.add(SegmentKind::Payload, frame.len()),
                    }
                    pieces.push(piece);
                }
                Ok(None) => {
                    runs.add_left(SegmentKind::Control);
                    break;
                }
                // The far half passes the same one frame (see `far::requests`).
                Err(ForeignFrame::Smb1) if self.position == 0 && pieces.is_empty() => {
                    self.requests.skip_frame();
                }
                Err(_) => {
                    self.is_blind = true;
                    self.requests.give_back();
                    runs.add_left(SegmentKind::Payload);
                    break;
                }
            }
        }
        (runs.runs, pieces)
    }

    /// A message of the client's begins to pass.
    pub(super) fn passes(&mut self, now: Time, head: &Smb2MessageHead) {
        if may_change_names(&head.header) {
            self.names_may_change(self.position + 1);
        }
        if drops_offers(&head.header) {
            self.offers.drop_before(self.position + 1);
        }
        self.note_looking(head);
        if head.start > 0 {
            self.chain = CompoundChain::default();
        }
        let touch = self.chain.touch(&head.header, head.body());
        if head.start > 0 {
            self.passing = None;
            self.mac = None;
        }
        self.opens_file(head);
        self.note_listing(head, touch);
        // The CLOSE of an open that deletes nothing changes no answer about another.
        let only_closes = matches!(touch, RequestEffect::Closes(file)
            if self.opens.get(&file).is_some_and(|open| !open.is_bound));
        if may_change_names(&head.header) && !only_closes {
            self.answers_changed_at = self.position + 1;
        }
        if self.opens.is_empty() {
            return;
        }
        let at = self.position + 1;
        let closes_early =
            matches!(touch, RequestEffect::Closes(file) if self.may_close(now, file, head));
        match touch {
            // Requests for names that are not alone in their frame.
            RequestEffect::Asks(file)
                if head.header.command == command::QUERY_DIRECTORY && passing(head).is_none() =>
            {
                self.lists_unseen(head.header.message_id, file, at);
            }
            RequestEffect::Nothing | RequestEffect::Asks(_) => {}
            RequestEffect::Flushes(file) => {
                if let Some(open) = self.opens.get_mut(&file) {
                    open.flushing = Some(head.header.message_id);
                }
            }
            RequestEffect::Changes(file) => {
                if changes_contents(
                    &head.header,
                    self.opens
                        .get(&file)
                        .is_some_and(|open| open.lease.is_some()),
                ) {
                    self.change(file, at);
                }
                self.change_length(file, head);
                let is_done = head.header.command == command::WRITE
                    || head.header.command == command::SET_INFO
                        && plain_change(head.body()).is_some();
                // A file that is marked for deletion is there until its CLOSE has reached the server.
                let is_rename = head.header.command == command::SET_INFO && renames(head.body());
                if let Some(open) = self.opens.get_mut(&file) {
                    let is_done = is_done || is_rename && open.licence.may_close_renamed;
                    open.is_changed = true;
                    open.is_bound |= !is_done;
                    open.flushing = None;
                }
                if head.header.command == command::LOCK {
                    self.locks(file, may_lock_shared(head.body()));
                }
            }
            RequestEffect::Closes(file) => {
                if let Some(open) = self.opens.get_mut(&file) {
                    open.is_closed = true;
                    open.listing.is_closed = true;
                }
            }
            RequestEffect::EndsTree | RequestEffect::EndsSession | RequestEffect::Anything => {
                let of_tree = touch == RequestEffect::EndsTree;
                for open in self.opens.values_mut() {
                    let is_meant = touch == RequestEffect::Anything
                        || open.licence.session == head.header.session
                            && (!of_tree || open.licence.tree == head.header.tree);
                    if is_meant {
                        open.is_changed = true;
                        open.is_bound = true;
                        open.is_closed |= touch != RequestEffect::Anything;
                        if touch == RequestEffect::Anything {
                            open.change(at, &self.pending);
                        }
                        open.listing.is_closed |= touch != RequestEffect::Anything;
                    }
                }
            }
        }
        if matches!(touch, RequestEffect::EndsTree | RequestEffect::EndsSession) {
            let ends = PendingRequest::Ends {
                session: head.header.session,
                tree: (touch == RequestEffect::EndsTree).then_some(head.header.tree),
            };
            self.pending.insert(head.header.message_id, ends);
        }
        self.expect_answer(head, touch);
        self.note_question(head, touch.file());
        if let Some(PassingRequest::Close(_, is_early)) = &mut self.passing {
            *is_early = closes_early;
        }
    }

    /// More of a CREATE that may be answered ahead.
    pub(super) fn gather_open(&mut self, bytes: &[u8]) {
        if let Some(PassingRequest::Opens(_, body)) = &mut self.passing {
            body.extend_from_slice(bytes);
        }
    }

    /// A CREATE that an open made ahead may answer begins to pass.
    fn opens_file(&mut self, head: &Smb2MessageHead) {
        if head.header.command == command::CREATE
            && head.is_single()
            && head.length <= OFFERED_MAX
            && !head.header.is_dfs()
            && (self.far_version >= LEASED_OFFERS || !self.offers.is_empty())
        {
            self.passing = Some(PassingRequest::Opens(head.header, head.body().to_vec()));
            let key = self.keys.get(&head.header.session);
            let key = key.filter(|_| head.header.guard() == MessageProtection::Signed);
            self.mac = key.map(|key| key.begin(head.message()));
        }
    }

    /// Handles a lock on an open: a possibly shared lock excludes its own holder's WRITEs, and any
    /// lock those through other opens of its lease.
    fn locks(&mut self, file: FileId, may_be_shared: bool) {
        let Some(lease) = self.opens.get(&file).map(|open| open.lease) else {
            return;
        };
        for (other, open) in &mut self.opens {
            let is_against = match *other == file {
                true => may_be_shared,
                false => lease.is_some() && open.lease == lease,
            };
            open.is_locked |= is_against;
        }
    }

    /// Returns true if the CLOSE of an open may be answered here: nothing was changed through the
    /// open, so that nothing can fail, and no other request for it is unanswered.
    fn may_close(&self, now: Time, file: FileId, head: &Smb2MessageHead) -> bool {
        let Some(open) = self.serves(now, file, &head.header) else {
            return false;
        };
        // A client with a lease closes its files long after its user, and needs no more than that they
        // are closed: it is told the flag that says that the answer has no attributes ([MS-SMB2] §2.2.16).
        let asks = u16_at(head.body(), 2) == Ok(CLOSE_ASKS_ATTRIBUTES);
        let is_leased = open.lease.is_some();
        let is_confirmed = (is_leased || open.licence.may_close_renamed)
            && !open.is_bound
            && open.lost.is_none()
            && open.refused.is_none();
        let is_unanswered = |pending: &PendingRequest| match *pending {
            PendingRequest::Read {
                request,
                is_answered: false,
                ..
            } => request.file == file,
            PendingRequest::Lists {
                ref request,
                is_answered: false,
                ..
            } => request.file == file,
            PendingRequest::Write { file: of, .. }
            | PendingRequest::Sets { file: of, .. }
            | PendingRequest::Reports { file: of }
            | PendingRequest::Close { file: of, .. }
            | PendingRequest::Asks {
                file: of,
                is_answered: false,
                ..
            } => of == file,
            PendingRequest::Read { .. }
            | PendingRequest::Lists { .. }
            | PendingRequest::Asks { .. }
            | PendingRequest::Ends { .. }
            | PendingRequest::Opens
            | PendingRequest::Missed { .. } => false,
        };
        open.licence.may_close
            && (is_leased || !asks)
            && (is_confirmed || !open.is_changed)
            && !self.pending.values().any(is_unanswered)
    }

    /// A request may change the length of a file, for this open and all others of its lease.
    fn change_length(&mut self, file: FileId, head: &Smb2MessageHead) {
        let Some(lease) = self.opens.get(&file).map(|open| open.lease) else {
            return;
        };
        let body = head.body();
        let is_its = |(of, open): &(&FileId, &mut LicensedOpen)| {
            **of == file || lease.is_some() && open.lease == lease
        };
        for (_, open) in self.opens.iter_mut().filter(is_its) {
            open.longest = match (head.header.command, plain_change(body)) {
                // Room may shorten the file, which then is still no longer than it was.
                (command::LOCK, _)
                | (command::SET_INFO, Some(PlainChange::Attributes | PlainChange::Room)) => {
                    open.longest
                }
                (command::SET_INFO, Some(PlainChange::Length)) => length_set(body),
                (command::WRITE, _) => open
                    .longest
                    .zip(written_to(body))
                    .map(|(longest, written)| longest.max(written)),
                _ => None,
            };
        }
    }

    /// Returns what is lost if the server refuses a SET_INFO.
    fn set_loss(&self, file: FileId, head: &Smb2MessageHead) -> SetLoss {
        let longest = self.opens.get(&file).and_then(|open| open.longest);
        let room = length_set(head.body());
        let is_enough = longest
            .zip(room)
            .is_some_and(|(longest, room)| longest <= room && room > 0);
        match plain_change(head.body()) {
            Some(PlainChange::Room) if is_enough => SetLoss::Nothing,
            Some(PlainChange::Attributes) => SetLoss::Attributes,
            _ => SetLoss::Data,
        }
    }

    /// A file changes, for this open and all others of its lease.
    fn change(&mut self, file: FileId, at: u64) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        open.change(at, &self.pending);
        let Some(key) = open.lease else {
            return;
        };
        for (other, open) in &mut self.opens {
            if open.lease == Some(key) && *other != file {
                open.change(at, &self.pending);
            }
        }
    }

    /// Records a request whose answer this half gives or modifies.
    fn expect_answer(&mut self, head: &Smb2MessageHead, touch: RequestEffect) {
        let Some(file) = touch.file().filter(|file| self.opens.contains_key(file)) else {
            return;
        };
        // One that is not noted could never be answered here, and the far half may count on it.
        if self.pending.len() >= OUTSTANDING_MAX {
            return self.close(ReasonCode::LIMIT);
        }
        self.passing = passing(head);
        if self.passing.is_some() && head.header.guard() == MessageProtection::Signed {
            let key = self.keys.get(&head.header.session);
            self.mac = key.map(|key| key.begin(head.message()));
        }
        if let (Some(PassingRequest::Read(_, request)), Some(open)) =
            (&self.passing, self.opens.get_mut(&file))
        {
            open.contents.note_read(request.offset, request.length);
        }
        let pending = match (&self.passing, touch) {
            (Some(PassingRequest::Read(header, request)), _) => PendingRequest::Read {
                header: *header,
                request: *request,
                position: self.position + 1,
                is_answered: false,
                is_servers: self.opens[&file].is_closed,
            },
            (Some(PassingRequest::Write(_, request, _)), _) => PendingRequest::Write {
                file,
                length: request.length,
                is_answered: false,
            },
            (Some(PassingRequest::Sets(..)), _) => PendingRequest::Sets {
                file,
                loses: self.set_loss(file, head),
                is_answered: false,
            },
            (Some(PassingRequest::Close(..)), _) | (None, RequestEffect::Closes(_)) => {
                PendingRequest::Close {
                    file,
                    is_answered: false,
                }
            }
            (Some(PassingRequest::Lists(header, request)), _) => PendingRequest::Lists {
                header: *header,
                request: request.clone(),
                is_answered: false,
                is_servers: false,
            },
            // It works on no open, and is noted once it is answered.
            (Some(PassingRequest::Opens(..)), _) => return,
            (None, RequestEffect::Flushes(_) | RequestEffect::Changes(_)) => {
                PendingRequest::Reports { file }
            }
            (Some(PassingRequest::FileSystem(..)), _) | (None, RequestEffect::Asks(_)) => {
                PendingRequest::Asks {
                    file,
                    file_system: None,
                    is_answered: false,
                }
            }
            (None, _) => return,
        };
        self.pending.insert(head.header.message_id, pending);
    }

    /// A frame of the client's has passed.
    pub(super) fn passed(&mut self, now: Time) {
        self.position += 1;
        self.offers.passed(now, self.position);
        self.chain = CompoundChain::default();
        self.questions_passed(now);
        self.listing_passed(now);
        let mac = self.mac.take();
        let passing = self.passing.take();
        if self.answer_looking(now) {
            return;
        }
        let header = match &passing {
            Some(
                PassingRequest::Read(header, _)
                | PassingRequest::Write(header, ..)
                | PassingRequest::Sets(header, ..)
                | PassingRequest::Close(header, _)
                | PassingRequest::Lists(header, _)
                | PassingRequest::FileSystem(header, _)
                | PassingRequest::Opens(header, _),
            ) => header,
            None => return,
        };
        // What says that it is signed and is not by this session's key is not acted upon here; the
        // far half finds the same, and ends the flow.
        if header.guard() == MessageProtection::Signed
            && mac.and_then(SignatureMac::verify).is_none()
        {
            self.pending.remove(&header.message_id);
            return;
        }
        match passing {
            Some(PassingRequest::Read(header, request)) => {
                if !self.answer_read_if_served(now, &header, &request)
                    && let Some(open) = self.opens.get_mut(&request.file)
                {
                    open.waiting.push(header.message_id);
                }
            }
            Some(PassingRequest::Write(header, request, length)) => {
                self.answer_write(now, &header, &request, length);
            }
            Some(PassingRequest::Sets(header, file, change)) => {
                self.answer_set(now, &header, file, change);
            }
            Some(PassingRequest::Close(header, true)) => self.answer_close(&header),
            Some(PassingRequest::Close(_, false)) => {}
            Some(PassingRequest::Lists(header, request)) => self.lists(&header, &request),
            Some(PassingRequest::FileSystem(header, question)) => {
                self.asks_file_system(now, &header, &question);
            }
            Some(PassingRequest::Opens(header, body)) => self.answer_open(now, &header, &body),
            None => {}
        }
    }

    /// Answers the READs of an open for which data has arrived since.
    pub(super) fn answer_waiting(&mut self, now: Time, file: FileId) {
        let Some(open) = self.opens.get(&file) else {
            return;
        };
        let mut waiting = open.waiting.clone();
        waiting.retain(|id| match self.pending.get(id).cloned() {
            Some(PendingRequest::Read {
                header,
                request,
                is_answered: false,
                is_servers: false,
                ..
            }) => !self.answer_read_if_served(now, &header, &request),
            _ => false,
        });
        if let Some(open) = self.opens.get_mut(&file) {
            open.waiting = waiting;
            open.drop_earlier(&self.pending);
        }
    }

    /// Handles the far half's report that sent data answers a READ, with nothing revoked before:
    /// the READ is answered here whatever the licence's later state.
    pub(super) fn settled(&mut self, message_id: u64) {
        if let Some(PendingRequest::Lists { .. }) = self.pending.get(&message_id) {
            return self.list_settled(message_id);
        }
        let Some(PendingRequest::Read {
            header,
            request,
            position,
            is_answered,
            ..
        }) = self.pending.get(&message_id).cloned()
        else {
            return;
        };
        if is_answered || self.answer_read(&header, &request, position) {
            self.pending.remove(&message_id);
        } else {
            self.tell_far(HalfFrame::Again { header, request });
        }
    }

    /// Answers a READ by a licence, if all of it is here; whether it was.
    fn answer_read_if_served(
        &mut self,
        now: Time,
        header: &Smb2Header,
        request: &ReadRequest,
    ) -> bool {
        // One that was asked before the CLOSE and is not answered by then waits for the far half's word.
        self.serves(now, request.file, header).is_some()
            && self.answer_read(header, request, u64::MAX)
    }

    /// Answers a READ of this frame if all of it is here; whether it was.
    fn answer_read(&mut self, header: &Smb2Header, request: &ReadRequest, position: u64) -> bool {
        let Some(open) = self.opens.get_mut(&request.file) else {
            return false;
        };
        let fits = open.licence.may_read
            && request.length <= open.licence.read_max
            && is_paid(header, request.length);
        if !fits {
            return false;
        }
        let contents = open.contents_of(position);
        let found = contents.and_then(|contents| contents.find(request.offset, request.length));
        let found = match found {
            Some(CachedRead::Data { length, .. }) if length < request.minimum => return false,
            Some(found) => found,
            None => return false,
        };
        match found {
            CachedRead::End => {
                let answer = header::error_answer(header, status::END_OF_FILE);
                self.give(header, answer, Vec::new());
            }
            CachedRead::Data { pieces, length } => {
                let mut front = frame_header(READ_DATA_AT + length as usize).to_vec();
                front.extend(header.answer(status::SUCCESS).emit());
                front.extend(read_answer_body(length));
                self.give(header, front, pieces);
            }
        }
        if let Some(PendingRequest::Read { is_answered, .. }) =
            self.pending.get_mut(&header.message_id)
        {
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

    /// Answers a WRITE that has passed, if it may be.
    fn answer_write(
        &mut self,
        now: Time,
        header: &Smb2Header,
        request: &WriteRequest,
        message_length: usize,
    ) {
        let Some(open) = self.serves(now, request.file, header) else {
            return;
        };
        let fits = open.licence.may_write
            && !open.is_locked
            && open.lost.is_none()
            && !open.is_refused
            && request.is_plain(message_length)
            && request.length <= open.licence.write_max.min(BEHIND_BLOCK_MAX)
            && is_paid(header, request.length)
            && self.behind + u64::from(request.length) <= BEHIND_MAX;
        if !fits {
            return;
        }
        let Some(PendingRequest::Write { is_answered, .. }) =
            self.pending.get_mut(&header.message_id)
        else {
            return;
        };
        *is_answered = true;
        self.answered += 1;
        self.behind += u64::from(request.length);
        let body = write_answer_body(request.length);
        let mut answer = frame_header(header::LENGTH + body.len()).to_vec();
        answer.extend(header.answer(status::SUCCESS).emit());
        answer.extend(body);
        self.give(header, answer, Vec::new());
    }

    /// Answers a SET_INFO that has passed, if it may be.
    fn answer_set(&mut self, now: Time, header: &Smb2Header, file: FileId, change: PlainChange) {
        let Some(open) = self.serves(now, file, header) else {
            return;
        };
        let is_allowed = match change {
            PlainChange::Attributes => open.licence.may_set,
            PlainChange::Length => self.far_version >= COMPOUNDS,
            PlainChange::Room => self.far_version >= OFFICE_REQUESTS,
        };
        let is_refused = open.lost.is_some() || open.is_refused;
        if !is_allowed || !open.licence.may_write || open.is_locked || is_refused {
            return;
        }
        let Some(PendingRequest::Sets { is_answered, .. }) =
            self.pending.get_mut(&header.message_id)
        else {
            return;
        };
        *is_answered = true;
        self.answered += 1;
        let mut answer = frame_header(header::LENGTH + SET_ANSWER.len()).to_vec();
        answer.extend(header.answer(status::SUCCESS).emit());
        answer.extend(SET_ANSWER);
        self.give(header, answer, Vec::new());
    }

    /// Answers a CLOSE that has passed.
    fn answer_close(&mut self, header: &Smb2Header) {
        let Some(PendingRequest::Close { is_answered, .. }) =
            self.pending.get_mut(&header.message_id)
        else {
            return;
        };
        *is_answered = true;
        self.answered += 1;
        let mut answer = frame_header(header::LENGTH + CLOSE_ANSWER.len()).to_vec();
        answer.extend(header.answer(status::SUCCESS).emit());
        answer.extend(CLOSE_ANSWER);
        self.give(header, answer, Vec::new());
    }

    /// Gives the client an answer from here, signed or encrypted as its request was ([MS-SMB2] §3.3.4.1.1,
    /// Signing the Message; §3.3.4.1.4, Encrypting the Message). The front begins with the frame's header.
    pub(super) fn give(&mut self, request: &Smb2Header, mut front: Vec<u8>, rest: Vec<Bytes>) {
        match request.guard() {
            MessageProtection::Sealed => {
                let parts = rest.iter().map(|piece| &piece[..]);
                let parts = std::iter::once(&front[FRAME_HEADER..]).chain(parts);
                if let Some(sealed) = self.seal(request.session, parts) {
                    self.reply(sealed);
                }
                return;
            }
            MessageProtection::Signed => {
                if let Some(key) = self.keys.get(&request.session) {
                    let parts = rest.iter().map(|piece| &piece[..]);
                    key.sign(&mut front[FRAME_HEADER..], parts);
                }
            }
            MessageProtection::Nothing => {}
        }
        self.reply(front.into());
        for piece in rest {
            self.reply(piece);
        }
    }

    /// Returns the answers to the requests of a compound as one frame: header of the request, status and body
    /// of each. They are signed if the first request is signed.
    pub(super) fn compound_frame(
        &self,
        answers: impl IntoIterator<Item = (Smb2Header, u32, Vec<u8>)>,
    ) -> Vec<u8> {
        let mut messages = Vec::new();
        let mut answers = answers.into_iter().peekable();
        let first = answers.peek().map(|(request, ..)| *request);
        let first = first.expect("a compound has messages");
        let key = self.keys.get(&first.session);
        let key = key.filter(|_| first.guard() == MessageProtection::Signed);
        while let Some((request, status, mut body)) = answers.next() {
            let mut answer = request.answer(status);
            (answer.session, answer.tree) = (first.session, first.tree);
            answer.flags |= request.flags & flag::RELATED;
            if answers.peek().is_some() {
                // Messages of a compound begin at multiples of eight ([MS-SMB2] §3.3.4.1.3).
                let length = (header::LENGTH + body.len()).next_multiple_of(8);
                body.resize(length - header::LENGTH, 0);
                answer.next = length as u32;
            }
            let mut message = answer.emit().to_vec();
            message.extend(body);
            if let Some(key) = key {
                key.sign(&mut message, []);
            }
            messages.extend(message);
        }
        let mut frame = frame_header(messages.len()).to_vec();
        frame.extend(messages);
        frame
    }

    /// Gives the client a frame of answers from here that are signed, if they have to be; encrypted as their
    /// first request was.
    pub(super) fn give_signed(&mut self, request: &Smb2Header, front: Vec<u8>) {
        if request.guard() != MessageProtection::Sealed {
            return self.reply(front.into());
        }
        let parts = std::iter::once(&front[FRAME_HEADER..]);
        if let Some(sealed) = self.seal(request.session, parts) {
            self.reply(sealed);
        }
    }

    /// Gives the client bytes of an answer from here, behind the message that is passing.
    fn reply(&mut self, bytes: Bytes) {
        let is_free = self.answers.at_boundary() && self.sealed.is_none();
        if is_free && self.state == NearState::Serving {
            self.send_client(bytes);
        } else {
            self.ready.push_back(bytes);
        }
    }
}

/// The division of an input's bytes into payload and the rest.
struct PayloadRuns {
    /// Bytes of the first pieces that have passed with an earlier input.
    passed: usize,
    /// Bytes of this input that are in no run yet.
    left: usize,
    runs: Vec<(SegmentKind, usize)>,
}

impl PayloadRuns {
    fn add(&mut self, kind: SegmentKind, length: usize) {
        let passed = length.min(self.passed);
        self.passed -= passed;
        let length = (length - passed).min(self.left);
        self.left -= length;
        match self.runs.last_mut() {
            _ if length == 0 => {}
            Some((last, total)) if *last == kind => *total += length,
            _ => self.runs.push((kind, length)),
        }
    }

    fn add_left(&mut self, kind: SegmentKind) {
        self.passed = 0;
        self.add(kind, self.left);
    }
}

/// The end of the range that a WRITE changes; none of one that appends.
fn written_to(body: &[u8]) -> Option<u64> {
    let request = WriteRequest::parse(body).ok()?;
    request.offset.checked_add(u64::from(request.length))
}

/// Returns true if the client's credit charge covers so many bytes. If not, the server reports the
/// error.
pub(super) fn is_paid(header: &Smb2Header, bytes: u32) -> bool {
    bytes <= CREDIT_BYTES * u32::from(header.charge())
}
