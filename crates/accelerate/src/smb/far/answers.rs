//! The server's messages on their way to the client: answers under the client's ids, and answers to
//! requests made here.

use bytes::Bytes;
use vocab::{SegmentKind, Time};

use super::leases::RequestedLease;
use super::listing::OpenListing;
use super::open::{LicenceState, TrackedOpen};
use super::query_ahead::QuestionTrigger;
use super::read_ahead::{ReadAhead, ReadVerdict};
use super::{
    FarState, FileChange, HeldMessage, OutstandingRequest, RequestPurpose, ResponseRemainder,
    Smb2FarHalf,
};
use crate::ReasonCode;
use crate::smb::config::{AHEAD_BLOCK_MAX, OUTSTANDING_MAX};
use crate::smb::frames::{HalfFrame, OpenLicence};
use crate::smb::keys::{MissingKeyReason, PendingSetUps, SetUpOutcome};
use crate::smb::listing::DirectoryQuery;
use crate::smb::reasons;
use crate::smb::wire::create::{ANSWER_OPLOCK_AT, CreateResponse, oplock_level};
use crate::smb::wire::header::{self, MessageProtection, Smb2Header, command, flag, status};
use crate::smb::wire::split::{Smb2MessageHead, SplitterPiece};
use crate::smb::wire::transfer::READ_DATA_AT;
use crate::smb::wire::{FileId, u8_at, u32_at};

/// The parameters of a CREATE that its answer needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreateIntent {
    pub(super) is_ours: bool,
    pub(super) guard: MessageProtection,
    pub(super) may_read: bool,
    pub(super) may_write: bool,
    pub(super) may_set: bool,
    /// The requested lease.
    pub(super) lease: Option<RequestedLease>,
    pub(super) is_durable: bool,
    /// The lease is the far half's own: its client requested none, to rename the file or delete it.
    pub(super) is_hidden: bool,
    /// The form of the CREATE, if other opens are alike.
    pub(super) form: Option<QuestionTrigger>,
}

/// The parameters of a compound that opens a directory and lists it.
#[derive(Clone, Copy, Debug)]
struct ListingIntent {
    tree: u32,
    query: Option<DirectoryQuery>,
    length: u32,
    guard: MessageProtection,
}

impl Smb2FarHalf {
    /// Bytes of the server's.
    pub(super) fn answer_bytes(&mut self, now: Time, bytes: Bytes) {
        self.answers.push(bytes);
        while self.state != FarState::Gone {
            match self.answers.next() {
                Ok(Some(SplitterPiece::Sealed(frame))) => self.sealed_answer(now, frame),
                Ok(Some(SplitterPiece::Head(head))) if self.must_be_whole(&head.header) => {
                    let left = head.length - head.message().len();
                    let rest = Vec::new();
                    self.held = Some(HeldMessage { head, rest, left });
                    self.if_whole(now);
                }
                Ok(Some(SplitterPiece::Head(head))) => self.answer(now, head, &[]),
                Ok(Some(SplitterPiece::Rest(kind, bytes))) => match &mut self.held {
                    Some(held) => {
                        held.left -= bytes.len();
                        held.rest.push((kind, bytes));
                        self.if_whole(now);
                    }
                    None => self.pass_rest(kind, bytes),
                },
                Ok(Some(SplitterPiece::End)) => {
                    self.answer_complete();
                    self.give_ready();
                }
                Ok(None) => return,
                Err(foreign) => self.stop_for(foreign),
            }
        }
    }

    /// Passes the bytes after a message's head.
    pub(super) fn pass_rest(&mut self, kind: SegmentKind, bytes: Bytes) {
        match (self.rest, kind) {
            (ResponseRemainder::Listed(..), _) => self.gather(&bytes),
            (ResponseRemainder::Told(_), _) => {
                self.gather_listing(&bytes);
                self.pass(kind, bytes);
            }
            (ResponseRemainder::Pass, _) => self.pass(kind, bytes),
            (ResponseRemainder::Ahead { .. }, SegmentKind::Payload) => {
                let kind = self.storable(kind, self.answer_sealed.is_some());
                self.send_client(kind, bytes);
            }
            (ResponseRemainder::Swallow | ResponseRemainder::Ahead { .. }, _) => {}
        }
    }

    /// Returns true if an answer must be gathered whole: a key is derived from it, or its signature
    /// is verified.
    fn must_be_whole(&self, header: &Smb2Header) -> bool {
        let is_keyed = self.sessions.server_key(header.session).is_some();
        header.has(flag::FROM_SERVER)
            && header.message_id != header::UNASKED
            && (PendingSetUps::wants(header)
                || is_keyed && header.has(flag::SIGNED)
                || self.may_be_aliased(header)
                || self.has_needed_contexts(header)
                || self.is_information_ahead(header))
    }

    /// Returns true if an answer is one to a question of our own.
    fn is_information_ahead(&self, header: &Smb2Header) -> bool {
        let request = self.outstanding.get(&header.message_id);
        request.is_some_and(|of| matches!(of.purpose, RequestPurpose::AsksAhead { .. }))
    }

    /// Returns true if the create contexts of an answer are needed: they may grant a lease or a durable
    /// handle, or belong to an open ahead.
    fn has_needed_contexts(&self, header: &Smb2Header) -> bool {
        let request = self.outstanding.get(&header.message_id);
        header.status == status::SUCCESS
            && request.is_some_and(|request| {
                matches!(
                    request.purpose,
                    RequestPurpose::Create { lease: Some(_), .. }
                        | RequestPurpose::Create {
                            is_durable: true,
                            ..
                        }
                        | RequestPurpose::OpensAhead(_)
                        | RequestPurpose::OpensChild(_)
                )
            })
    }

    /// Handles the gathered answer, once it is complete.
    fn if_whole(&mut self, now: Time) {
        let Some(mut held) = self.held.take_if(|held| held.left == 0) else {
            return;
        };
        let header = held.head.header;
        // A set-up's last answer is signed with a key that was not known as the answer began.
        self.learn_keys(&held.head, &held.rest);
        if self.state == FarState::Gone {
            return;
        }
        let key = self.sessions.server_key(header.session);
        if let Some(key) = key.filter(|_| header.has(flag::SIGNED)) {
            let mut mac = key.begin(held.head.message());
            held.rest.iter().for_each(|(_, bytes)| mac.update(bytes));
            if mac.verify().is_none() {
                // While everything passes, this passes too, and its client judges it.
                self.held = Some(held);
                return self.stop(ReasonCode::FORGED);
            }
        }
        let rest = std::mem::take(&mut held.rest);
        self.whole_answer(now, held.head, rest);
    }

    /// Derives a session's keys from a complete answer.
    pub(super) fn learn_keys(&mut self, head: &Smb2MessageHead, rest: &[(SegmentKind, Bytes)]) {
        let header = head.header;
        if !PendingSetUps::wants(&header) {
            return;
        }
        let client_id = self.outstanding.get(&header.message_id);
        let client_id = client_id.and_then(|request| request.client_id);
        let as_asked = Smb2Header {
            message_id: client_id.unwrap_or(header.message_id),
            ..header
        };
        let mut joined = head.message().to_vec();
        rest.iter()
            .for_each(|(_, bytes)| joined.extend_from_slice(bytes));
        let mut passed = joined.clone();
        header::set_message_id(&mut passed, as_asked.message_id);
        let Some(outcome) = self.set_ups.answer(&as_asked, &joined, &passed) else {
            return;
        };
        if let Some((reason, account)) = self.parts_the_hosts(header.session, &outcome) {
            self.no_key_for = account;
            return self.stop(reason);
        }
        let ends = self.set_ups.ticket_ends();
        let ends = ends.and_then(|ends| self.connection.at_server(ends));
        let chance = self.draw();
        self.sessions.insert(header.session, outcome, chance);
        self.sessions.lasts_until(header.session, ends);
    }

    /// Returns the reason why a session's set-up gives its hosts keys that cannot be told apart
    /// here: it was set up beside others, with other message ids at either end.
    fn parts_the_hosts(
        &self,
        session: u64,
        outcome: &SetUpOutcome,
    ) -> Option<(ReasonCode, Option<String>)> {
        let is_alike = self.state != FarState::Engaged
            || !self.connection.hashes_set_up()
            || self.sessions.stands(session);
        match outcome {
            _ if is_alike => None,
            // Nobody's sessions have none.
            SetUpOutcome::NoKey(MissingKeyReason::Keyless) => None,
            SetUpOutcome::NoKey(no_key) => {
                Some((no_key.reason(), no_key.account().map(str::to_owned)))
            }
            SetUpOutcome::Key {
                key,
                may_sign: false,
                account,
                ..
            } if key.differ() => Some((reasons::GMAC, Some(account.clone()))),
            SetUpOutcome::Key { .. } => None,
        }
    }

    /// Handles a complete and verified answer.
    pub(super) fn whole_answer(
        &mut self,
        now: Time,
        mut head: Smb2MessageHead,
        mut rest: Vec<(SegmentKind, Bytes)>,
    ) {
        self.alias_answer(&mut head, &mut rest);
        self.answer(now, head, &rest);
        if self.state != FarState::Gone {
            for (kind, bytes) in rest {
                self.pass_rest(kind, bytes);
            }
        }
    }

    /// Handles the beginning of a server's message, with the rest of a gathered one.
    fn answer(&mut self, now: Time, mut head: Smb2MessageHead, rest: &[(SegmentKind, Bytes)]) {
        let header = head.header;
        if !header.has(flag::FROM_SERVER) {
            return self.object(head, rest, ReasonCode::VIOLATION);
        }
        self.ids.granted(header.credits);
        // Of the message before it in the same frame.
        self.answer_complete();
        if header.message_id == header::UNASKED {
            return self.unasked(now, head);
        }
        let Some(request) = self.outstanding.get(&header.message_id).copied() else {
            if self.state == FarState::Engaged {
                return self.stop(ReasonCode::VIOLATION);
            }
            return self.pass_head(head);
        };
        // [MS-SMB2] §3.3.4.2 (Sending an Interim Response): the answer is still to come.
        let is_interim = header.status == status::PENDING && header.has(flag::ASYNC);
        if !self.is_vouched_for(&header, &request, is_interim) {
            return self.object(head, rest, ReasonCode::FORGED);
        }
        match is_interim {
            true => self.outstanding.mark_pending(header.message_id),
            false => self.outstanding.remove(&header.message_id),
        }
        let Some(client_id) = request.client_id else {
            if !head.is_single() {
                return self.stop(ReasonCode::VIOLATION);
            }
            if let RequestPurpose::AsksAhead {
                file,
                question,
                position,
            } = request.purpose
                && !is_interim
            {
                self.send_information(&head, rest, (file, question, position));
            }
            self.own_answer(now, &head, rest, request, is_interim);
            self.give_early_breaks(header.message_id, &request, is_interim);
            if !header.is_sealed {
                self.forget_ended(request.session);
            }
            return;
        };
        head.set_message_id(client_id);
        if !is_interim {
            self.connection.learn(now, &header, head.body());
            self.ask_for_company();
            self.note_refused_room(now, &head.header, &request);
            self.finished(now, &mut head, rest, request);
            self.looked(&head);
            if header.command == command::SESSION_SETUP && header.status == status::SUCCESS {
                self.give_back_refused(now, header.session);
            }
        }
        self.give_early_breaks(header.message_id, &request, is_interim);
        if self.state == FarState::Engaged && header.guard() == MessageProtection::Signed {
            match self.sessions.client_key(header.session) {
                Some(key) => {
                    let rest = rest.iter().map(|(_, bytes)| &bytes[..]);
                    key.sign(head.message_mut(), rest);
                }
                // The last answer of a set-up that led to no key: its client would take it for forged.
                None if client_id != header.message_id => {
                    let (reason, account) = self.sessions.why_no_key(header.session);
                    self.no_key_for = account;
                    return self.stop(reason);
                }
                None => {}
            }
        }
        if header.command == command::LOGOFF && header.status == status::SUCCESS {
            self.sessions.end(header.session);
        }
        // Of what is encrypted once all of it has gone: the near half needs the key for this very answer.
        if !header.is_sealed {
            self.forget_ended(request.session);
        }
        if self.state != FarState::Gone {
            self.pass_head(head);
        }
    }

    /// Returns true if an answer is protected like its request ([MS-SMB2] §3.2.5.1.3, Verifying the
    /// Signature; §3.2.5.1.1, Decrypting the Message). Two answers may be unprotected: that of a
    /// server that has lost the session, which can neither sign nor encrypt, and that of Samba to
    /// an invalid compound.
    fn is_vouched_for(
        &self,
        header: &Smb2Header,
        request: &OutstandingRequest,
        is_interim: bool,
    ) -> bool {
        let is_its = header.session == request.session
            || header.is_sealed && self.answer_sealed == Some(request.session);
        let has_lost_session = matches!(
            header.status,
            status::USER_SESSION_DELETED | status::NETWORK_SESSION_EXPIRED
        );
        // The client judges whether that is enough for a refusal.
        let is_refusal = request.is_refused && header.status == status::INVALID_PARAMETER;
        has_lost_session
            || is_refusal
            || match (request.guard, header.guard()) {
                (MessageProtection::Nothing, _) => true,
                (
                    MessageProtection::Signed | MessageProtection::Sealed,
                    MessageProtection::Sealed,
                ) => is_its,
                // [MS-SMB2] §3.3.4.2 (Sending an Interim Response): such go unsigned.
                (MessageProtection::Signed, _) if is_interim => true,
                (MessageProtection::Signed, MessageProtection::Signed) => {
                    is_its && self.sessions.server_key(header.session).is_some()
                }
                (MessageProtection::Signed, MessageProtection::Nothing) => false,
                // Who proves again who they are is answered under a signature, while everything passes.
                (
                    MessageProtection::Sealed,
                    MessageProtection::Nothing | MessageProtection::Signed,
                ) => header.command == command::SESSION_SETUP,
            }
    }

    /// Forgets the keys of an ended session, once no signed or encrypted answer of it is
    /// outstanding: such an answer would pass unverified.
    pub(super) fn forget_ended(&mut self, session: u64) {
        let is_awaited = |request: &OutstandingRequest| {
            request.session == session && request.guard != MessageProtection::Nothing
        };
        if self.sessions.has_ended(session)
            && !self.outstanding.values().any(is_awaited)
            && self.sessions.forget(session)
        {
            self.tell_near(HalfFrame::Forget { session });
        }
    }

    /// Stops at a message that cannot be; in a state that may let go, it is passed on first.
    fn object(&mut self, head: Smb2MessageHead, rest: &[(SegmentKind, Bytes)], reason: ReasonCode) {
        if self.state == FarState::Watching {
            self.pass_head(head);
            for (kind, bytes) in rest {
                self.pass(*kind, bytes.clone());
            }
        }
        self.stop(reason);
    }

    /// A request of the client's is answered.
    fn finished(
        &mut self,
        now: Time,
        head: &mut Smb2MessageHead,
        rest: &[(SegmentKind, Bytes)],
        request: OutstandingRequest,
    ) {
        let header = head.header;
        self.deleting.answered(head, &request);
        if request.is_early {
            self.early = self.early.saturating_sub(1);
            if let RequestPurpose::Changes {
                change: FileChange::Plain(_),
                ..
            } = request.purpose
            {
                self.early_sets = self.early_sets.saturating_sub(1);
            }
        }
        match request.purpose {
            RequestPurpose::Create {
                is_bare: true,
                may_read,
                tree,
                is_leased,
                form,
                ..
            } => {
                self.opened_bare(head, tree, may_read, request.guard, is_leased);
                self.opened_in_form(head, form);
            }
            RequestPurpose::Create {
                is_ours,
                may_read,
                may_write,
                may_set,
                is_bare: false,
                tree,
                lease,
                is_durable,
                form,
                ..
            } => {
                let opened = CreateIntent {
                    is_ours,
                    guard: request.guard,
                    may_read,
                    may_write,
                    may_set,
                    lease,
                    is_durable,
                    is_hidden: false,
                    form: Some(form),
                };
                self.opened(now, head, rest, tree, opened);
                self.opened_in_form(head, form);
            }
            RequestPurpose::OpensListing {
                tree,
                query,
                length,
            } => {
                let opened = ListingIntent {
                    tree,
                    query,
                    length,
                    guard: request.guard,
                };
                self.opened_listing(head, opened);
            }
            RequestPurpose::Changes { file, change } => {
                self.outdate_opening_of(file);
                if let Some(open) = self.opens.get_mut(&file) {
                    self.leases.change_ends(open);
                    if request.is_awaited {
                        open.writing = open.writing.saturating_sub(1);
                    }
                    if let Some(start) = request.written_at {
                        open.written.remove(&start);
                    }
                }
                // A name is changed by no other command, and by no plain change.
                let may_rename = header.command == command::SET_INFO && change == FileChange::Other;
                if may_rename && header.status == status::SUCCESS {
                    self.name_changed(file);
                    self.ask_after_change(file);
                }
            }
            RequestPurpose::Closes(file) if header.status == status::SUCCESS => {
                self.closed_after_change(file);
                self.forget_open(file);
            }
            RequestPurpose::Closes(file) => self.stays_open(now, file),
            RequestPurpose::Ends { session, tree } if header.status == status::SUCCESS => {
                self.room.forget(session, tree);
                for file in self.files() {
                    let open = &self.opens[&file];
                    if open.session == session && tree.is_none_or(|tree| tree == open.tree) {
                        self.forget_open(file);
                    }
                }
            }
            // They have not ended, and what breaks must be given back.
            RequestPurpose::Ends { session, tree } => {
                for file in self.files() {
                    let open = &self.opens[&file];
                    if open.session == session && tree.is_none_or(|tree| tree == open.tree) {
                        self.stays_open(now, file);
                    }
                }
            }
            RequestPurpose::Plain
                if header.command == command::FLUSH && header.status == status::SUCCESS =>
            {
                self.ask_after_flush(header.message_id);
            }
            RequestPurpose::Plain if header.command == command::CREATE => {
                let answer = CreateResponse::parse(head.body());
                let answer = answer.ok().filter(|_| header.status == status::SUCCESS);
                self.stats.answered(header.message_id, answer.as_ref());
                let is_held = |answer: &CreateResponse| answer.oplock_level != oplock_level::NONE;
                let held = answer.filter(is_held).map(|answer| answer.file);
                self.stats.opened(header.message_id, held);
                self.opened_unserved(now, head);
            }
            RequestPurpose::Asks { file, question } => {
                if header.status == status::SUCCESS {
                    self.ask_after_question(file, question);
                }
            }
            RequestPurpose::Lists(file) => {
                if let Some(listing) = self.listing(file) {
                    listing.answered_client(header.status);
                    self.list_begun(file);
                }
                let is_learned = self.staleness().is_some() || self.children.follows(file);
                if header.status == status::SUCCESS && is_learned {
                    self.gathered = head.body().to_vec();
                    self.rest = ResponseRemainder::Told(file);
                }
            }
            RequestPurpose::Plain
            | RequestPurpose::Ahead { .. }
            | RequestPurpose::ListsAhead(_)
            | RequestPurpose::AsksFileSystem { .. }
            | RequestPurpose::AsksRoom { .. }
            | RequestPurpose::AsksAhead { .. }
            | RequestPurpose::OpensAhead(_)
            | RequestPurpose::LooksAhead(_)
            | RequestPurpose::ClosesAhead(_)
            | RequestPurpose::GivesBack(_)
            | RequestPurpose::OpensChild(_)
            | RequestPurpose::Own => {}
        }
    }

    /// Asks the questions that follow opens of this form.
    fn opened_in_form(&mut self, head: &Smb2MessageHead, form: QuestionTrigger) {
        if head.header.status == status::SUCCESS
            && self.state != FarState::Gone
            && let Ok(answer) = CreateResponse::parse(head.body())
        {
            self.ask_after_open(answer.file, form);
        }
    }

    /// The server has opened a file, or not.
    fn opened(
        &mut self,
        now: Time,
        head: &mut Smb2MessageHead,
        rest: &[(SegmentKind, Bytes)],
        tree: u32,
        mut opened: CreateIntent,
    ) {
        let is_ours = opened.is_ours;
        let header = Smb2Header {
            tree,
            ..head.header
        };
        if header.status != status::SUCCESS {
            return self.stats.opened(header.message_id, None);
        }
        let Ok(answer) = CreateResponse::parse(head.body()) else {
            return self.stop(ReasonCode::VIOLATION);
        };
        self.stats.opened(header.message_id, Some(answer.file));
        if is_ours {
            head.body_mut()[ANSWER_OPLOCK_AT] = oplock_level::NONE;
        }
        // A server may decline; what it says that is not read counts as granted.
        if opened.is_durable {
            let mut message = head.message().to_vec();
            rest.iter()
                .for_each(|(_, bytes)| message.extend_from_slice(bytes));
            opened.is_durable = CreateResponse::is_durable(&message).unwrap_or(true);
            self.durable_opens += u64::from(opened.is_durable);
        }
        let is_exclusive = !answer.is_directory()
            && !answer.is_elsewhere()
            && match answer.oplock_level {
                oplock_level::EXCLUSIVE | oplock_level::BATCH => true,
                oplock_level::LEASE => self.is_exclusive_lease(head, rest, opened.lease),
                _ => false,
            };
        let is_watched = opened.lease.is_some() && !answer.is_directory();
        if is_exclusive || is_watched || (is_ours && answer.oplock_level != oplock_level::NONE) {
            self.serve(now, &header, &answer, is_exclusive, opened);
            self.ask_room(now, answer.file);
        }
        self.finish_opening(now, answer.file);
    }

    /// Performs the work that has waited for a file to be opened.
    pub(super) fn finish_opening(&mut self, now: Time, file: FileId) {
        self.break_early(now, file);
        // Its client may have asked for channels while the CREATE was under way.
        self.give_back_for_channels(now, file);
    }

    /// The server has opened a directory, or something for its attributes alone.
    fn opened_bare(
        &mut self,
        head: &Smb2MessageHead,
        tree: u32,
        may_list: bool,
        guard: MessageProtection,
        is_leased: bool,
    ) {
        let message_id = head.header.message_id;
        if head.header.status != status::SUCCESS {
            self.stats.opened(message_id, None);
            return self.opens_ahead.opened(message_id, None);
        }
        let Ok(answer) = CreateResponse::parse(head.body()) else {
            return self.stop(ReasonCode::VIOLATION);
        };
        let may_list = may_list && answer.is_directory();
        let (file, session) = (answer.file, head.header.session);
        self.stats.opened(message_id, Some(file));
        self.opens_ahead
            .opened(message_id, may_list.then_some(file));
        // Its client has asked for channels while the CREATE was under way.
        if self.may_have_channels(session) {
            return;
        }
        let listing = may_list.then(|| self.usual_listing.begin());
        self.serve_bare(file, (session, tree), guard, listing, is_leased);
        if answer.is_directory() && !may_list {
            self.ask_file_system(file);
        }
    }

    /// The server has opened a directory in a compound with requests for its names, or something
    /// else, or nothing.
    fn opened_listing(&mut self, head: &Smb2MessageHead, opened: ListingIntent) {
        let message_id = head.header.message_id;
        let answer = match head.header.status {
            status::SUCCESS => CreateResponse::parse(head.body()),
            _ => {
                self.children.not_opened(message_id);
                return self.opens_ahead.opened(message_id, None);
            }
        };
        let Ok(answer) = answer else {
            return self.stop(ReasonCode::VIOLATION);
        };
        let (file, session) = (answer.file, head.header.session);
        let is_served = answer.is_directory() && !self.may_have_channels(session);
        self.opens_ahead
            .opened(message_id, is_served.then_some(file));
        if !is_served {
            return self.children.not_opened(message_id);
        }
        self.children.opened(message_id, file);
        self.opens_ahead.begins(file);
        let mut asked = 0;
        for request in self.outstanding.values_mut() {
            if request.opens_with == Some(message_id) {
                request.purpose = RequestPurpose::Lists(file);
                asked += 1;
            }
        }
        let ListingIntent {
            tree,
            query,
            length,
            guard,
        } = opened;
        if let Some(query) = query {
            (self.usual_listing.query, self.usual_listing.length) = (query, length);
        }
        let listing = OpenListing::begun(query, &self.usual_listing, length, asked);
        self.serve_bare(file, (session, tree), guard, Some(listing), false);
    }

    /// Keeps an open of a directory, or of something for its attributes alone: its CLOSE may be
    /// answered early.
    pub(super) fn serve_bare(
        &mut self,
        file: FileId,
        (session, tree): (u64, u32),
        guard: MessageProtection,
        listing: Option<OpenListing>,
        is_leased: bool,
    ) {
        let mut open = TrackedOpen::new(session, tree, false);
        open.may_close = true;
        open.listing = listing;
        open.guard = guard;
        self.keep_open(file, open);
        self.tell_key(session);
        self.tell_near(HalfFrame::Licence(OpenLicence {
            file,
            session,
            tree,
            may_read: false,
            may_write: false,
            may_set: false,
            may_close: true,
            may_close_renamed: is_leased,
            guard,
            read_max: 0,
            write_max: 0,
        }));
    }

    /// Handles an open that is not served. If the client has an oplock of its own, its break must
    /// be distinguished from one of an open in progress.
    fn opened_unserved(&mut self, now: Time, head: &Smb2MessageHead) {
        if head.header.status != status::SUCCESS {
            return;
        }
        let Ok(answer) = CreateResponse::parse(head.body()) else {
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
            let open = TrackedOpen::new(head.header.session, head.header.tree, false);
            self.keep_open(answer.file, open);
            self.break_early(now, answer.file);
        }
    }

    /// Keeps an open, and tells the near half its licence before the client has the open's id, so
    /// that both halves see every request that names it.
    pub(super) fn serve(
        &mut self,
        now: Time,
        header: &Smb2Header,
        answer: &CreateResponse,
        is_exclusive: bool,
        opened: CreateIntent,
    ) {
        let (read_max, write_max) = self
            .connection
            .negotiated()
            .map_or((0, 0), |agreed| (agreed.max_read, agreed.max_write));
        let file = answer.file;
        let may_read = opened.may_read && is_exclusive && read_max > 0;
        let lease = opened.lease.map(|lease| lease.key);
        // An open that outlives its connection would hide that WRITEs were lost with it, those through another
        // of its lease as well: it keeps the file as its client knows it.
        let is_outlived = opened.is_durable || lease.is_some_and(|key| self.has_durable_kin(key));
        let is_writer = opened.may_write && is_exclusive && !is_outlived && write_max > 0;
        let tree = (header.session, header.tree);
        // A near half that cannot be told later is told now, until the server says how much room there is.
        let has_room = self.room.has_room(now, tree)
            || !self.near_takes_late_writes && self.room.is_unknown(now, tree);
        let may_answer_writes = has_room && self.may_answer_writes(now, header.session);
        let may_close = is_exclusive && !opened.is_durable;
        let mut open = TrackedOpen::new(header.session, header.tree, opened.is_ours);
        open.guard = opened.guard;
        open.form = opened.form;
        open.lease = lease;
        open.is_durable = opened.is_durable;
        if is_exclusive {
            open.grant = LicenceState::Held;
            open.sets_attributes = opened.may_set;
            open.may_close = may_close;
        }
        if is_writer && may_answer_writes {
            open.allow_writes(self.near_takes_compounds, self.near_takes_office_requests);
        }
        open.awaits_room = is_writer && !may_answer_writes;
        if is_exclusive || open.lease.is_some() {
            self.tell_key(header.session);
            self.tell_near(HalfFrame::Licence(OpenLicence {
                file,
                session: header.session,
                tree: header.tree,
                may_read,
                may_write: open.may_write,
                may_set: open.may_set,
                may_close,
                may_close_renamed: opened.is_hidden,
                guard: opened.guard,
                read_max,
                write_max,
            }));
        }
        if let Some(key) = open.lease.filter(|_| !opened.is_hidden) {
            self.tell_near(HalfFrame::Lease { file, key });
        }
        if may_read {
            // Without multi-credit requests one credit pays for 64 KiB and no more.
            let most = match self.connection.negotiated() {
                Some(agreed) if agreed.is_large_mtu() => read_max.min(AHEAD_BLOCK_MAX),
                _ => read_max.min(65_536),
            };
            let usual = opened.form.map(|form| self.read_habits.of(form));
            open.reads = Some(ReadAhead::reading(
                answer.end_of_file,
                most,
                self.settings.path_bytes,
                usual.unwrap_or_default(),
            ));
            self.reading.push_back(file);
            self.tell_near(HalfFrame::EndOfFile {
                file,
                position: self.position,
                offset: answer.end_of_file,
            });
        }
        self.keep_open(file, open);
    }

    /// Watches an open from here on.
    pub(super) fn keep_open(&mut self, file: FileId, open: TrackedOpen) {
        if let Some(before) = self.opens.remove(&file) {
            self.leases.remove(file, &before);
        }
        self.leases.insert(file, &open);
        self.opens.insert(file, open);
    }

    /// Hands the session's key to the near half, if it has one and the near half does not.
    fn tell_key(&mut self, session: u64) {
        if let Some(key) = self.sessions.key_to_tell(session) {
            self.tell_near(HalfFrame::Key { session, key });
        }
    }

    pub(super) fn forget_open(&mut self, file: FileId) {
        self.forget_ahead(file);
        self.forget_lists(file);
        self.stats.forget(file);
        self.changes.forget(file);
        let waiting = [self.opens_ahead.forget(file), self.children.forget(file)];
        for message in waiting.into_iter().flatten() {
            self.enqueue(message);
        }
        if let Some(open) = self.opens.remove(&file) {
            self.leases.remove(file, &open);
        }
        self.reading.retain(|reading| *reading != file);
        self.breaking.retain(|breaking| *breaking != file);
    }

    /// The server has answered a request of ours.
    fn own_answer(
        &mut self,
        now: Time,
        head: &Smb2MessageHead,
        rest: &[(SegmentKind, Bytes)],
        request: OutstandingRequest,
        is_interim: bool,
    ) {
        self.rest = ResponseRemainder::Swallow;
        match request.purpose {
            _ if is_interim => {}
            RequestPurpose::OpensAhead(number) => {
                return self.opened_ahead(now, head, rest, number);
            }
            RequestPurpose::LooksAhead(number) => return self.looked_ahead(head, number),
            RequestPurpose::OpensChild(number) => {
                return self.opened_child(head, rest, number);
            }
            RequestPurpose::ClosesAhead(file) => return self.forget_open(file),
            RequestPurpose::GivesBack(file) => {
                return self.given_back(file, head.header.status);
            }
            RequestPurpose::AsksFileSystem {
                file,
                class,
                position,
            } => return self.send_file_system_reply(head, file, class, position),
            RequestPurpose::AsksRoom { session, tree, at } => {
                return self.room_answered(now, head, (session, tree), at);
            }
            _ => {}
        }
        if let RequestPurpose::ListsAhead(file) = request.purpose {
            if !is_interim {
                self.ahead_credits -= u32::from(request.charge).min(self.ahead_credits);
                self.gathered = head.body().to_vec();
                self.rest = ResponseRemainder::Listed(file, head.header.status);
            }
            return;
        }
        let RequestPurpose::Ahead {
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
                _ => return self.stop(ReasonCode::VIOLATION),
            },
            _ => 0,
        };
        let sent_on = if is_awaited { count } else { 0 };
        self.pace
            .answered(at, u64::from(length), u64::from(sent_on));
        match head.header.status {
            _ if !is_awaited => {}
            status::SUCCESS => {
                self.tell_near(HalfFrame::Ahead {
                    file,
                    position,
                    offset,
                    length: count,
                });
                self.rest = ResponseRemainder::Ahead {
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

    pub(super) fn answer_complete(&mut self) {
        let rest = std::mem::replace(&mut self.rest, ResponseRemainder::Pass);
        if let ResponseRemainder::Listed(file, status) = rest {
            self.listed(file, status);
        }
        if let ResponseRemainder::Told(file) = rest {
            self.learn_names(file);
            self.gathered.clear();
        }
        if let ResponseRemainder::Ahead {
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
            self.tell_near(HalfFrame::EndOfFile {
                file,
                position,
                offset,
            });
        }
        self.judge_waiting(file);
        self.ask_delayed(file);
    }

    /// Settles the waiting READs of an open that can be answered now, and sends those to the server
    /// that no data in transit will answer.
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
                ReadVerdict::Settled => settled.push(waiting.message_id),
                ReadVerdict::Wait => open.waiting.push(waiting),
                ReadVerdict::Forward => unanswered.push(waiting.message),
            }
        }
        for message_id in settled {
            self.tell_near(HalfFrame::Settled { message_id });
        }
        for message in unanswered {
            self.enqueue(message);
        }
    }
}

/// The bytes of data that a READ answer holds, if they lie within it and behind its fixed part.
fn data_length(head: &Smb2MessageHead) -> Option<u32> {
    let at = usize::from(u8_at(head.body(), 2).ok()?);
    let count = u32_at(head.body(), 4).ok()?;
    let lies_within = at >= READ_DATA_AT && at + count as usize <= head.length;
    (count > 0 && lies_within).then_some(count)
}
