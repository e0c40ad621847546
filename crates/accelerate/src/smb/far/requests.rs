//! The client's requests on their way to the server, and our own.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use vocab::Time;

use super::connection::asks_for_interfaces;
use super::message::{GatheredMessage, SAME_SESSION, SignatureError};
use super::open::{LicenceState, TrackedOpen, WaitingRead};
use super::read_ahead::ReadVerdict;
use super::{FarState, FileChange, OutstandingRequest, RequestPurpose, Smb2FarHalf, StreamFinish};
use crate::smb::config::{AHEAD_CREDITS, AHEAD_MAX, ChannelPolicy, OUTSTANDING_MAX};
use crate::smb::frames::HalfFrame;
use crate::smb::keys::PendingSetUps;
use crate::smb::listing::{deletes_on_close, may_change_names, may_make_names};
use crate::smb::reasons;
use crate::smb::wire::FileId;
use crate::smb::wire::create::{REQUEST_OPLOCK_AT, oplock_level};
use crate::smb::wire::frame::{FRAME_HEADER, frame_header};
use crate::smb::wire::header::{self, MessageProtection, Smb2Header, command, flag, status};
use crate::smb::wire::lock::changes_contents;
use crate::smb::wire::query_info::InformationQuestion;
use crate::smb::wire::set_info::{
    asks_for_position, plain_change, position_set, set_position_body,
};
use crate::smb::wire::set_up::is_binding;
use crate::smb::wire::split::{ForeignFrame, Smb2MessageHead, SplitterPiece};
use crate::smb::wire::target::{CompoundChain, RequestEffect, touch};
use crate::smb::wire::transfer::{ReadRequest, WriteRequest};
use crate::{AcceleratorOutput, ReasonCode};

impl Smb2FarHalf {
    /// Bytes of the client's.
    pub(super) fn request_bytes(&mut self, now: Time, bytes: Bytes) {
        self.requests.push(bytes);
        while self.state != FarState::Gone {
            match self.requests.next() {
                Ok(Some(SplitterPiece::Sealed(frame))) => self.sealed_request(now, frame),
                Ok(Some(piece)) => {
                    if self.gathering.push(piece) {
                        let mut message = std::mem::take(&mut self.gathering);
                        if !self.mark_sealed(&mut message) {
                            return self.stop(ReasonCode::VIOLATION);
                        }
                        self.arrived(now, message);
                    }
                }
                Ok(None) => return,
                Err(ForeignFrame::Smb1) if self.position == 0 => {
                    // The only SMB1 message that an SMB2 client sends: its first NEGOTIATE, which
                    // takes id 0 ([MS-SMB2] §3.3.5.3.1, SMB 2.??? Support).
                    self.ids.pass(0, 1);
                    let nobodys = (0, MessageProtection::Nothing);
                    let negotiate =
                        OutstandingRequest::new(Some(0), RequestPurpose::Plain, 1, nobodys);
                    self.outstanding.insert(0, negotiate);
                    self.requests.skip_frame();
                }
                Err(foreign) => self.stop_for(foreign),
            }
        }
    }

    /// A frame of the client's is complete.
    pub(super) fn arrived(&mut self, now: Time, message: GatheredMessage) {
        self.position += 1;
        if let Some(reason) = self.objection(&message) {
            // Put back, so that letting go passes it on.
            self.gathering = message;
            self.stop(reason);
            return;
        }
        let refused = self.refused_channels(&message);
        if refused.is_none() {
            self.note_channels(now, &message);
        }
        self.note_set_up(&message);
        for head in message.heads() {
            self.connection.note_client(&head.header, head.body());
        }
        self.note_touches(now, &message);
        self.note_file_system(&message);
        self.note_stat(&message);
        self.note_name_change(&message);
        self.note_opening(&message);
        self.note_questions(&message);
        self.give_way(&message);
        if let Some(message) = self.open_next(now, message)
            && refused.is_none()
            && let Some(message) = self.hold_listing(now, message)
            && let Some(message) = self.answer_ahead(message)
            && let Some(message) = self.list_ahead(message)
        {
            self.enqueue(message);
        }
        if let Some(header) = refused {
            self.engage();
            self.tell_sealing();
            self.refuse(&header, status::NOT_SUPPORTED);
        }
        self.pump(now);
    }

    /// A question for the server's interfaces that is answered here as a server does that has no further
    /// channels ([MS-SMB2] §3.3.5.15.11, Handling a Query Network Interface Request): in a session
    /// that can be helped, and would not be any more after it.
    fn refused_channels(&self, message: &GatheredMessage) -> Option<Smb2Header> {
        let head = message.single()?;
        let header = head.header;
        let is_refused = self.settings.channels == ChannelPolicy::One
            && asks_for_interfaces(&header, head.body())
            && self.sessions.is_keyed(header.session)
            && !self.may_have_channels(header.session)
            && self.may_answer(&header);
        is_refused.then_some(header)
    }

    /// Returns the reason why the client's message cannot be handled, if there is one.
    fn objection(&mut self, message: &GatheredMessage) -> Option<ReasonCode> {
        let waiting = self.queue.len() + self.lists_waiting;
        if self.outstanding.len() > OUTSTANDING_MAX || waiting > OUTSTANDING_MAX {
            return Some(ReasonCode::LIMIT);
        }
        for head in message.heads() {
            let header = &head.header;
            if header.has(flag::FROM_SERVER) {
                return Some(ReasonCode::VIOLATION);
            }
            // Keys of SMB 3.1.1 come out of the very bytes of a session's set-up; with other message
            // ids the two ends derive different ones, which only who has their accounts can do, too.
            let is_lost = match header.command {
                command::NEGOTIATE => true,
                command::SESSION_SETUP => {
                    self.connection.hashes_set_up() && !self.can_follow(message)
                }
                _ => false,
            };
            if self.state == FarState::Engaged && is_lost {
                return Some(ReasonCode::UNSUPPORTED);
            }
        }
        match message.verify(|session| self.sessions.client_key(session)) {
            Ok(_) => None,
            Err(SignatureError::Forged) => Some(ReasonCode::FORGED),
            // A further channel signs its set-up with the key of the session that it joins ([MS-SMB2]
            // §3.2.4.2.3, Authenticating the User).
            Err(SignatureError::NoKey { .. }) if self.joins_session(message) => {
                Some(reasons::CHANNEL)
            }
            Err(SignatureError::NoKey { session }) => {
                let (reason, account) = self.sessions.why_no_key(session);
                self.no_key_for = account;
                Some(reason)
            }
        }
    }

    /// Returns true if a message makes this connection a further channel of a session that the node
    /// could have followed.
    fn joins_session(&self, message: &GatheredMessage) -> bool {
        let has_secrets = self.settings.accounts.is_some() || self.settings.keytab.is_some();
        let is_set_up = |header: &Smb2Header| header.command == command::SESSION_SETUP;
        has_secrets
            && message.first().is_some_and(is_set_up)
            && message.joined().is_some_and(|joined| is_binding(&joined))
    }

    /// Returns true if the set-up of a session can be followed, so that its keys may be derived. An
    /// established session keeps its keys ([MS-SMB2] §3.3.5.5.2, Reauthenticating an Existing
    /// Session), or continues without.
    fn can_follow(&self, message: &GatheredMessage) -> bool {
        let is_new = self.settings.accounts.is_some() || self.settings.keytab.is_some();
        let session = message.single().map(|head| head.header.session);
        let stands =
            |session| self.sessions.stands(session) || self.connection.is_without_key(session);
        session.is_some_and(|session| is_new || stands(session))
            && message.joined().is_some_and(|joined| !is_binding(&joined))
    }

    /// Handles a frame that may request further channels.
    fn note_channels(&mut self, now: Time, message: &GatheredMessage) {
        for session in message.asks_for_interfaces() {
            self.connection.note_channels(session);
            for file in self.files() {
                if self.opens[&file].session == session {
                    self.give_back_for_channels(now, file);
                }
            }
        }
    }

    /// Records the frame's information about the connection and its sessions.
    fn note_set_up(&mut self, message: &GatheredMessage) {
        if let Some(header) = message.first().copied()
            && PendingSetUps::wants(&header)
            && let Some(joined) = message.joined()
        {
            self.set_ups.request(&header, &joined);
        }
    }

    /// Applies the frame's effects on the tracked opens.
    fn note_touches(&mut self, now: Time, message: &GatheredMessage) {
        if self.opens.is_empty() {
            return;
        }
        if message.heads().any(|head| may_change_names(&head.header)) {
            for file in self.files() {
                // The near half judges one that no client has.
                if !self.children.is_offered(file) {
                    self.forget_fresh(file);
                }
            }
        }
        let mut chain = CompoundChain::default();
        let touches: Vec<(RequestEffect, Smb2Header, Option<u64>)> = message
            .heads()
            .map(|head| {
                let touch = chain.touch(&head.header, head.body());
                let position = position_set(head.body());
                (touch, head.header, position)
            })
            .collect();
        for (touch, header, position) in touches {
            if let (RequestEffect::Changes(file), command::SET_INFO, Some(position)) =
                (touch, header.command, position)
                && let Some(open) = self.opens.get_mut(&file)
            {
                open.seek = position;
            }
            let (session, tree) = (header.session, header.tree);
            match touch {
                RequestEffect::Changes(file) if header.command == command::LOCK => {
                    let lease = self.opens.get(&file).and_then(|open| open.lease);
                    if changes_contents(&header, lease.is_some()) {
                        self.changes(file);
                    }
                    self.locks(now, file);
                }
                RequestEffect::Nothing | RequestEffect::Asks(_) | RequestEffect::Flushes(_) => {}
                RequestEffect::Changes(file) => self.changes(file),
                RequestEffect::Closes(file) => {
                    self.forget_ahead(file);
                    if let Some(open) = self.opens.get_mut(&file) {
                        open.close();
                    }
                }
                RequestEffect::EndsTree => self.end_opens(|open| open == (session, tree)),
                RequestEffect::EndsSession => self.end_opens(|open| open.0 == session),
                RequestEffect::Anything => {
                    for file in self.files() {
                        self.forget_ahead(file);
                    }
                }
            }
        }
    }

    fn end_opens(&mut self, is_meant: impl Fn((u64, u32)) -> bool) {
        for file in self.files() {
            let Some(open) = self.opens.get_mut(&file) else {
                continue;
            };
            if is_meant((open.session, open.tree)) {
                open.close();
                self.forget_ahead(file);
            }
        }
    }

    pub(super) fn files(&self) -> Vec<FileId> {
        self.opens.keys().copied().collect()
    }

    /// Forgets the data that was read ahead of this open because it is out of date. READs that wait
    /// for it go to the server.
    pub(super) fn forget_ahead(&mut self, file: FileId) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        if let Some(reads) = &mut open.reads {
            reads.forget();
        }
        for waiting in std::mem::take(&mut open.waiting) {
            self.enqueue(waiting.message);
        }
    }

    /// Takes a READ alone in its frame that is, or will be, answered by prefetched data; gives
    /// others back.
    fn answer_ahead(&mut self, message: GatheredMessage) -> Option<GatheredMessage> {
        let Some((header, request)) = served_read(&message) else {
            return Some(message);
        };
        let Some(open) = self.opens.get_mut(&request.file) else {
            return Some(message);
        };
        // What its client has not signed, or encrypted, is for the server to judge.
        let is_its = (open.session, open.tree) == (header.session, header.tree)
            && header.guard() >= open.guard
            && header.is_of_first_channel();
        let is_held = open.is_held();
        let end = request.offset + u64::from(request.length);
        let Some(reads) = open.reads.as_mut().filter(|_| is_its) else {
            return Some(message);
        };
        // At the file's end a READ stops, and behind it moves nothing.
        let end = reads.end().map_or(end, |file_end| end.min(file_end));
        if request.offset < end {
            open.seek = end;
        }
        if !is_held {
            return Some(message);
        }
        if self.reading.back() != Some(&request.file) {
            self.reading.retain(|file| *file != request.file);
            self.reading.push_back(request.file);
        }
        let verdict = reads.read(request.offset, request.length);
        self.learn_first_parts(request.file);
        let Some(open) = self.opens.get_mut(&request.file) else {
            return Some(message);
        };
        // A READ that the server does not see leaves its position behind.
        open.is_moved |= verdict != ReadVerdict::Forward;
        match verdict {
            ReadVerdict::Settled => {
                self.tell_near(HalfFrame::Settled {
                    message_id: header.message_id,
                });
                None
            }
            ReadVerdict::Wait => {
                open.waiting.push(WaitingRead {
                    message_id: header.message_id,
                    offset: request.offset,
                    length: request.length,
                    message,
                });
                None
            }
            ReadVerdict::Forward => {
                // It may have ended the run that others wait for.
                self.judge_waiting(request.file);
                Some(message)
            }
        }
    }

    /// The near half no longer has the blocks of an open that begin in this range.
    pub(super) fn dropped(&mut self, file: FileId, range: &Range<u64>) {
        let open = self.opens.get_mut(&file);
        if let Some(reads) = open.and_then(|open| open.reads.as_mut()) {
            reads.dropped(range);
            self.judge_waiting(file);
        }
    }

    /// Handles a READ whose data the near half no longer has.
    pub(super) fn read_again(&mut self, header: &Smb2Header, request: &ReadRequest) {
        let mut bytes = BytesMut::from(&frame_header(header::LENGTH + 49)[..]);
        bytes.extend_from_slice(&header.emit());
        bytes.extend_from_slice(&request.emit());
        let mut message = GatheredMessage::default();
        message.push(SplitterPiece::Head(Smb2MessageHead {
            bytes,
            start: FRAME_HEADER,
            header: *header,
            length: header::LENGTH + 49,
        }));
        if header.is_sealed {
            message.mark_sealed(header.session);
        }
        let is_one = header.command == command::READ && header.next == 0;
        if is_one && self.state == FarState::Engaged && self.queue.len() <= OUTSTANDING_MAX {
            self.enqueue(message);
        }
    }

    pub(super) fn enqueue(&mut self, message: GatheredMessage) {
        self.queue_bytes += message.bytes();
        self.queue.push_back(message);
    }

    /// Sends all that may be sent now.
    pub(super) fn pump(&mut self, now: Time) {
        if self.state == FarState::Gone {
            return;
        }
        self.give_back_confirmed();
        self.tell_given_back();
        self.close_unwanted();
        while !self.leases.awaits_company() {
            self.give_back_writers(now);
            // What waits for opens to be given back concerns none of them, and what they are given
            // back with, WRITEs and CLOSEs, stands behind it.
            let mut waiting = self.queue.iter();
            let next = waiting.position(|message| !self.waits_for_opens(message));
            let Some(index) = next.filter(|index| self.may_pass(&self.queue[*index])) else {
                break;
            };
            let message = self.queue.remove(index).expect("it was found just now");
            self.queue_bytes -= message.bytes();
            let written = written_range(&message).map(|(file, start, end)| (file, end - start));
            self.dispatch(now, message);
            if let Some(written) = written {
                self.note_written(now, written);
            }
        }
        let is_sent = self.queue.is_empty()
            && !self.opens_ahead.holds_requests()
            && !self.children.holds_requests();
        if self.client_finish == StreamFinish::Wanted && is_sent {
            self.client_finish = StreamFinish::Done;
            self.outputs.push_back(AcceleratorOutput::FinishLan);
        }
        self.read_ahead(now);
        self.list_all_ahead();
        self.open_ahead(now);
        self.open_stated(now);
        self.open_predicted(now);
        self.open_children(now);
        #[cfg(test)]
        self.check_kin();
    }

    /// Returns true for two kinds of message that must wait for other opens: one alone in its frame
    /// that asks for further channels of a session whose opens are not given back yet, and a frame
    /// for an open that outlives others which are not.
    pub(super) fn waits_for_opens(&self, message: &GatheredMessage) -> bool {
        let is_single = message.single().is_some();
        is_single && self.asks_for_channels(message, |grant| grant != LicenceState::Given)
            || (is_single || !self.works_on_opens(message)) && self.waits_for_writers(message)
    }

    /// Returns true if a message in a frame may work on existing opens.
    fn works_on_opens(&self, message: &GatheredMessage) -> bool {
        let mut chain = CompoundChain::default();
        message.heads().any(|head| {
            let touch = chain.touch(&head.header, head.body());
            match touch {
                RequestEffect::Nothing => false,
                RequestEffect::EndsTree | RequestEffect::EndsSession | RequestEffect::Anything => {
                    true
                }
                RequestEffect::Asks(file)
                | RequestEffect::Changes(file)
                | RequestEffect::Flushes(file)
                | RequestEffect::Closes(file) => self.opens.contains_key(&file),
            }
        })
    }

    /// Returns true if a message asks for further channels of a session that has opens in such a
    /// licence state.
    fn asks_for_channels(
        &self,
        message: &GatheredMessage,
        is_meant: impl Fn(LicenceState) -> bool,
    ) -> bool {
        let mut sessions = message
            .asks_for_interfaces()
            .filter(|session| self.may_have_channels(*session));
        sessions.any(|session| {
            let mut opens = self.opens.values();
            opens.any(|open| open.session == session && is_meant(open.grant))
        })
    }

    fn may_pass(&self, message: &GatheredMessage) -> bool {
        if self.state == FarState::Watching {
            return true;
        }
        // Whether WRITEs through opens that are not watched overlap with those under way nobody knows.
        let is_write = message.single().is_some_and(|head| {
            let file = touch(&head.header, head.body()).file();
            head.header.command == command::WRITE
                && file.is_some_and(|file| self.opens.contains_key(&file))
        });
        // A WRITE moves the end and the times that a request before it sets.
        let is_barred = (self.early > 0 && !is_write || self.early_sets > 0)
            && !message
                .first()
                .is_some_and(|header| matches!(header.command, command::CANCEL | command::ECHO));
        let charge = match self.moved_open(message) {
            // The position is set first, and no READ of ours may move it again meanwhile.
            Some(file) if self.reads_ahead_of(file) => return false,
            Some(_) => message.charge() + 1,
            None => message.charge(),
        };
        let overlaps = written_range(message).is_some_and(|(file, start, end)| {
            let kin = self.kin(file).into_iter();
            let mut kin = kin.filter_map(|file| self.opens.get(&file));
            kin.any(|open| open.overlaps(start, end))
        });
        // Before a client may get another channel, nothing is answered for it any more. A compound may
        // hold the very WRITE that its file is given back behind, so it waits for no more than that.
        let is_served = self.asks_for_channels(message, |grant| match grant {
            LicenceState::Held => true,
            LicenceState::Breaking { confirmed, .. } => !confirmed,
            LicenceState::Given => false,
        });
        // With nothing under way no credit will come; then the server may judge.
        !is_served
            && !is_barred
            && !self.is_written_behind(message)
            && !self.ends_listed(message)
            && !self.waits_for_opens_ahead(message)
            && !overlaps
            && (self.ids.can_take(charge) || self.outstanding.is_empty())
    }

    /// Returns the open whose position a request queries, if the server's may differ.
    fn moved_open(&self, message: &GatheredMessage) -> Option<FileId> {
        let mut chain = CompoundChain::default();
        message.heads().find_map(|head| {
            let file = chain.touch(&head.header, head.body()).file()?;
            let asks = head.header.command == command::QUERY_INFO
                && asks_for_position(head.body()).unwrap_or(false);
            let is_moved = self.opens.get(&file).is_some_and(|open| open.is_moved);
            (asks && is_moved).then_some(file)
        })
    }

    /// Returns true if READs of our own are under way through this open.
    fn reads_ahead_of(&self, file: FileId) -> bool {
        self.outstanding.values().any(
            |request| matches!(request.purpose, RequestPurpose::Ahead { file: of, .. } if of == file),
        )
    }

    /// Puts the server's position of an open where the client's own READs have left it.
    fn set_position(&mut self, file: FileId) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        open.is_moved = false;
        let header = open.request(command::SET_INFO);
        let body = set_position_body(file, open.seek);
        self.send_own(header, &body, RequestPurpose::Own);
    }

    /// Gives a frame of the client's ids of the server's window and sends it.
    fn dispatch(&mut self, now: Time, mut message: GatheredMessage) {
        if self.refuse_late_write(&message) {
            return;
        }
        if let Some(file) = self.moved_open(&message) {
            self.set_position(file);
        }
        let asking = match self.judge_create(&mut message) {
            None => self.judge_listing(&message),
            asking => asking,
        };
        let mut opens_with = None;
        if asking.is_none() {
            self.share_leases(now, &message);
        }
        let written = written_range(&message);
        let is_single = message.single().is_some();
        let asked = message.first().copied();
        let mut is_void = false;
        let is_refused = message.relates_to_nothing();
        let (mut chain, mut session) =
            (CompoundChain::default(), message.sealed_for().unwrap_or(0));
        for head in message.heads_mut() {
            let header = head.header;
            if header.session != SAME_SESSION {
                session = header.session;
            }
            if header.command == command::CANCEL {
                let meant = self.cancelled(&header);
                if self.state == FarState::Engaged {
                    is_void |= meant.is_none();
                    head.set_message_id(meant.unwrap_or(header::UNASKED));
                }
                continue;
            }
            let touch = chain.touch(&header, head.body());
            let purpose = match (header.command, asking) {
                (command::CREATE, Some(purpose)) => purpose,
                _ => purpose(&header, head.body(), touch),
            };
            if let RequestPurpose::OpensListing { .. } = purpose {
                opens_with = Some(header.message_id);
            }
            let (mut is_early, mut is_awaited, mut written_at) = (false, false, None);
            if let RequestPurpose::Changes { file, change } = purpose
                && let Some(open) = self.opens.get_mut(&file)
            {
                self.leases.change_begins(open);
                let is_write = change == FileChange::Write;
                let is_answered = is_single && (is_write || open.answers(change));
                is_awaited = is_answered && open.is_from_before();
                open.writing += usize::from(is_awaited);
                if is_answered {
                    open.queued_writes = open.queued_writes.saturating_sub(1);
                }
                is_early = open.has_early(change);
                self.early_sets += usize::from(is_early && !is_write);
                if let Some((_, start, end)) = written.filter(|_| is_early) {
                    open.written.insert(start, end);
                    written_at = Some(start);
                }
            }
            if let RequestPurpose::Closes(file) = purpose {
                is_early = self.opens.get(&file).is_some_and(|open| open.may_close);
            }
            self.early += usize::from(is_early);
            if let RequestPurpose::Lists(file) = purpose
                && let Some(listing) = self.listing(file)
            {
                listing.asked_by_client += 1;
            }
            if let RequestPurpose::Create {
                is_bare: false,
                is_ours: true,
                ..
            } = purpose
            {
                head.body_mut()[REQUEST_OPLOCK_AT] = oplock_level::EXCLUSIVE;
            }
            let id = match self.state {
                FarState::Watching => {
                    self.ids.pass(header.message_id, header.charge());
                    header.message_id
                }
                FarState::Engaged | FarState::Gone => self.ids.take(header.charge()),
            };
            head.set_message_id(id);
            let request = OutstandingRequest {
                client_id: Some(header.message_id),
                purpose,
                charge: header.charge(),
                session,
                guard: header.guard(),
                is_refused,
                is_early,
                is_awaited,
                written_at,
                opens_with: opens_with.filter(|create| *create != header.message_id),
                // One that waits for changes makes none.
                changes_names: may_change_names(&header)
                    && header.command != command::CHANGE_NOTIFY,
                makes_names: may_make_names(&header, head.body()),
                deletes: is_single
                    && header.command == command::CREATE
                    && deletes_on_close(head.body()),
                is_pending: false,
                heard_breaks: 0,
            };
            self.outstanding.insert(id, request);
        }
        if is_void && message.single().is_some() {
            return;
        }
        if self.state == FarState::Engaged {
            self.alias_requests(&mut message);
            message.sign(|session| self.sessions.server_key(session));
            if let Some(header) = asked.filter(PendingSetUps::wants)
                && let Some(joined) = message.joined()
            {
                self.set_ups.sent(header.message_id, &joined);
            }
            message.forget_raw();
            if let Some(session) = message.sealed_for() {
                let frame: Vec<Bytes> = message.into_bytes().collect();
                return self.send_sealed(session, &frame);
            }
        }
        for bytes in message.into_bytes() {
            self.send_server(bytes);
        }
    }

    /// Returns the server's id of the request that a CANCEL names, if it is known. A CANCEL names
    /// an outstanding request, and takes no id itself ([MS-SMB2] §3.2.4.24, Application Requests
    /// Canceling an Operation).
    fn cancelled(&self, header: &Smb2Header) -> Option<u64> {
        match self.outstanding.of_client(header.message_id) {
            // What the client holds for done stays.
            Some((_, request)) if request.is_early => None,
            Some((id, _)) => Some(id),
            // The async id says it, and clients may leave the other at 0. Samba's server does not verify
            // a signature under the id of what nobody asked for.
            None if header.has(flag::ASYNC) => Some(header.message_id),
            // It is answered already, or waits here. Under the client's id the server may know another.
            None => None,
        }
    }

    /// Sends a request of our own, signed or encrypted if its header says so.
    pub(super) fn send_own(
        &mut self,
        mut header: Smb2Header,
        body: &[u8],
        purpose: RequestPurpose,
    ) {
        header.message_id = self.ids.take(header.charge());
        let mut bytes = frame_header(header::LENGTH + body.len()).to_vec();
        bytes.extend(header.emit());
        bytes.extend(body);
        let key = self.sessions.server_key(header.session);
        if let Some(key) = key.filter(|_| header.has(flag::SIGNED)) {
            key.sign(&mut bytes[FRAME_HEADER..], []);
        }
        self.outstanding.insert(
            header.message_id,
            OutstandingRequest::new(
                None,
                purpose,
                header.charge(),
                (header.session, header.guard()),
            ),
        );
        match header.is_sealed {
            true => self.send_sealed(header.session, &[bytes.into()]),
            false => self.send_server(bytes.into()),
        }
    }

    /// Sends READs for the data that clients will probably request.
    fn read_ahead(&mut self, now: Time) {
        if !self.queue.is_empty() || self.client_finish != StreamFinish::Open {
            return;
        }
        let mut ahead = None;
        let mut index = self.reading.len();
        while index > 0 {
            index -= 1;
            let file = self.reading[index];
            if !self.read_ahead_of(now, file, &mut ahead) {
                self.reading.remove(index);
            }
        }
    }

    /// Does the same for one open; returns false when it is no longer read ahead. The sum over all
    /// opens is computed once for all of them, and only when something is wanted.
    fn read_ahead_of(&mut self, now: Time, file: FileId, ahead: &mut Option<u64>) -> bool {
        let large = self
            .connection
            .negotiated()
            .is_some_and(|agreed| agreed.is_large_mtu());
        loop {
            let is_changing = self.is_changing(file);
            let wants_more = self.opens.get(&file).is_some_and(|open| {
                !is_changing
                    && open
                        .reads
                        .as_ref()
                        .is_some_and(|reads| reads.next(u64::MAX).is_some())
            });
            if !wants_more {
                return self.opens.get(&file).is_some_and(TrackedOpen::is_held);
            }
            let ahead = ahead.get_or_insert_with(|| self.ahead_of_all());
            let Some(open) = self.opens.get_mut(&file).filter(|open| open.is_held()) else {
                return false;
            };
            let Some(reads) = &mut open.reads else {
                return true;
            };
            let Some((offset, length)) = reads.next(AHEAD_MAX.saturating_sub(*ahead)) else {
                return true;
            };
            // [MS-SMB2] §3.1.5.2 (Calculating the CreditCharge).
            let charge = length.div_ceil(65_536);
            let fits = self.pace.has_room(u64::from(length))
                && self.ids.can_take(charge)
                && (self.ahead_credits == 0 || self.ahead_credits + charge <= AHEAD_CREDITS);
            if !fits {
                return true;
            }
            reads.asked(offset, length);
            *ahead += u64::from(length);
            open.is_moved = true;
            let mut header = open.request(command::READ);
            header.credit_charge = if large { charge as u16 } else { 0 };
            // As many as are taken, and some that the client does not know of, so that its own
            // requests need not wait for those given back.
            let more = match self.ids.can_take(4 * AHEAD_CREDITS) {
                true => 0,
                false => AHEAD_CREDITS,
            };
            header.credits = (charge + more) as u16;
            let request = ReadRequest {
                flags: 0,
                length,
                offset,
                file,
                minimum: 0,
                channel: 0,
            };
            self.pace.asked(u64::from(length));
            self.ahead_credits += charge;
            let purpose = RequestPurpose::Ahead {
                file,
                offset,
                length,
                position: self.position,
                at: now,
            };
            self.send_own(header, &request.emit(), purpose);
        }
    }

    /// The bytes read ahead of all opens together that the client has not requested yet.
    fn ahead_of_all(&self) -> u64 {
        let reading = self.reading.iter();
        let reads = reading.filter_map(|file| self.opens.get(file)?.reads.as_ref());
        reads.map(|reads| reads.ahead()).sum()
    }

    /// Refuses a WRITE that the client may believe complete, to a file that another client has
    /// opened since; the near half reports the loss.
    fn refuse_late_write(&mut self, message: &GatheredMessage) -> bool {
        let Some(head) = message.single() else {
            return false;
        };
        let change = change_of(&head.header, head.body());
        let Some(file) = touch(&head.header, head.body()).file() else {
            return false;
        };
        let is_late = |open: &&mut TrackedOpen| {
            (change == FileChange::Write || open.answers(change))
                && open.grant == LicenceState::Given
                && open.is_from_before()
        };
        let Some(open) = self.opens.get_mut(&file).filter(is_late) else {
            return false;
        };
        open.queued_writes = open.queued_writes.saturating_sub(1);
        let header = head.header;
        self.refuse(&header, status::UNEXPECTED_IO_ERROR);
        true
    }

    /// Answers a request in the server's place with an error.
    fn refuse(&mut self, request: &Smb2Header, status: u32) {
        let mut refusal = header::error_answer(request, status);
        let key = self.sessions.client_key(request.session);
        if let Some(key) = key.filter(|_| request.guard() == MessageProtection::Signed) {
            key.sign(&mut refusal[FRAME_HEADER..], []);
        }
        self.answer_here(request, refusal.into());
    }
}

/// Returns the purpose of a request: the information that its answer will bring.
fn purpose(header: &Smb2Header, body: &[u8], touch: RequestEffect) -> RequestPurpose {
    match touch {
        RequestEffect::Changes(file) => RequestPurpose::Changes {
            file,
            change: change_of(header, body),
        },
        RequestEffect::Closes(file) => RequestPurpose::Closes(file),
        RequestEffect::Asks(file) if header.command == command::QUERY_DIRECTORY => {
            RequestPurpose::Lists(file)
        }
        RequestEffect::Asks(file) if header.command == command::QUERY_INFO => {
            match InformationQuestion::parse(body) {
                Ok(Some((question, _))) => RequestPurpose::Asks { file, question },
                Ok(None) | Err(_) => RequestPurpose::Plain,
            }
        }
        RequestEffect::EndsTree => RequestPurpose::Ends {
            session: header.session,
            tree: Some(header.tree),
        },
        RequestEffect::EndsSession => RequestPurpose::Ends {
            session: header.session,
            tree: None,
        },
        RequestEffect::Nothing
        | RequestEffect::Asks(_)
        | RequestEffect::Flushes(_)
        | RequestEffect::Anything => RequestPurpose::Plain,
    }
}

/// Returns the kind of a request that may change a file.
pub(super) fn change_of(header: &Smb2Header, body: &[u8]) -> FileChange {
    match header.command {
        command::WRITE => FileChange::Write,
        command::SET_INFO if header.next == 0 && !header.has(flag::RELATED) => {
            plain_change(body).map_or(FileChange::Other, FileChange::Plain)
        }
        _ => FileChange::Other,
    }
}

/// Returns the range that a WRITE alone in its frame changes: the open, the start, and the end.
pub(super) fn written_range(message: &GatheredMessage) -> Option<(FileId, u64, u64)> {
    let head = message.single()?;
    if head.header.command != command::WRITE {
        return None;
    }
    let request = WriteRequest::parse(head.body()).ok()?;
    let end = request.offset.saturating_add(u64::from(request.length));
    (request.length > 0).then_some((request.file, request.offset, end))
}

/// A plain READ alone in its frame.
fn served_read(message: &GatheredMessage) -> Option<(Smb2Header, ReadRequest)> {
    let head = message.single()?;
    if head.header.command != command::READ {
        return None;
    }
    let request = ReadRequest::parse(head.body()).ok()?;
    request.is_plain().then_some((head.header, request))
}
