//! Opens the file whose attributes a client has just asked for, ahead of the client's own CREATE
//! (docs/decisions/0086).
//!
//! The Linux kernel's client asks for the attributes of each name before it opens the file: a compound
//! of CREATE, QUERY_INFO and CLOSE. If it opened the last file that it asked for, it probably opens
//! the next one.
//!
//! ```text
//!  client            near half                    far half               server
//!    │── attributes of N ─────────────────────────────►│── the same ───────►│
//!    │◄────────────────────────────────────────────────│◄───────────────────│
//!    │                   │                             │── CREATE N, K' ───►│
//!    │                   │◄── LeasedOffer, contents ───│◄── lease K' ───────│
//!    │── CREATE N, K ───►│                             │
//!    │◄── lease K ───────│── CREATE N, K, Took ───────►│  the lease is K to the client
//! ```
//! The open and its lease are the server's own. The client draws a new lease key for each open, so
//! the far half asks under a key K' of its own, and from then on translates: the client's messages
//! name K, and those of the server K' ([`LeaseAliases`]). The lease makes all other clients wait, so
//! the answer stays correct for contents, length, name and deletion until the near half has
//! confirmed a break. Its times and attributes are as old as the near half lets them be.

use std::collections::{HashMap, HashSet, VecDeque};

use bytes::{Bytes, BytesMut};
use vocab::{SegmentKind, Time};

use super::answers::CreateIntent;
use super::connection::OplockRequester;
use super::leases::RequestedLease;
use super::message::{GatheredMessage, SAME_SESSION, SAME_TREE};
use super::open::{LicenceState, TrackedOpen};
use super::open_after_change::ChangeKind;
use super::open_ahead::{PendingCreate, SpeculativeOpen};
use super::query_ahead::QuestionTrigger;
use super::{RequestPurpose, Smb2FarHalf, StreamFinish};
use crate::smb::config::{
    DurablePolicy, FIRST_BLOCK, LEASE_ALIASES_MAX, LEASED_OFFERS_MAX, OFFERED_MAX, OPENS_AHEAD_MAX,
    OPENS_MAX,
};
use crate::smb::frames::HalfFrame;
use crate::smb::wire::FileId;
use crate::smb::wire::create::{
    CreateRequest, CreateResponse, answered_lease_key_at, contexts_offset, decline_durable,
    lease_key_at, name_of, oplock_level, renamed, without_drawn_numbers,
};
use crate::smb::wire::frame::{FRAME_HEADER, frame_header};
use crate::smb::wire::header::{self, MessageProtection, Smb2Header, command, flag, status};
use crate::smb::wire::lease::{LeaseBreak, LeaseKey, WHOLE, awaits_acknowledgement};
use crate::smb::wire::set_info::plain_change;
use crate::smb::wire::split::Smb2MessageHead;
use crate::smb::wire::target::CompoundChain;

/// The longest answer to a CREATE that is handed to the near half: those of clients' contexts take
/// some two hundred bytes.
const ANSWER_MAX: usize = 1_024;

/// The place of the lease key in the body of a break, and of its acknowledgement and answer
/// ([MS-SMB2] §2.2.23.2, Lease Break Notification; §2.2.24.2, Lease Break Acknowledgment; §2.2.25.2,
/// Lease Break Response), and the structure size of the latter two.
const BREAK_KEY_AT: usize = 8;
const ACKNOWLEDGEMENT: u8 = 36;

/// A break notice with its frame header, and the session that it was encrypted for.
pub(super) type LeaseBreakNotice = (Option<u64>, Bytes);

/// A name in a tree of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeName {
    session: u64,
    tree: u32,
    name: Vec<u8>,
}

/// A name whose attributes are requested, and the offset of the contexts in that request: a client
/// lays out all requests with this name alike.
#[derive(Clone, Debug)]
struct StatedName {
    name: TreeName,
    contexts: u32,
}

/// The client's requests for attributes, and the files that it opens after them.
#[derive(Debug, Default)]
pub(super) struct StatHistory {
    /// The names in outstanding requests, by the client's message id of their CREATE.
    asked: HashMap<u64, StatedName>,
    /// The file whose attributes the client was given last.
    last: Option<TreeName>,
    /// The client's last CREATE of such a file: its header and body.
    model: Option<(Smb2Header, Vec<u8>)>,
    /// The client opened the last file.
    pub(super) is_wanted: bool,
    /// The files to open ahead.
    wanted: VecDeque<StatedName>,
    /// The files that the client has open under oplocks and leases, or is opening, by the client's
    /// message id: another lease would break theirs.
    opening: HashMap<u64, TreeName>,
    open: HashMap<FileId, TreeName>,
    /// Those that were open or being opened when the client sent a request that may have given them another
    /// name.
    renamed: HashSet<FileId>,
    renamed_opening: HashSet<u64>,
}

impl StatHistory {
    /// The client opens a file under an oplock or a lease.
    pub(super) fn opening(&mut self, header: &Smb2Header, message: &[u8]) {
        if let Some(name) = TreeName::of(header, message)
            && self.opening.len() < OPENS_MAX
        {
            self.opening.insert(header.message_id, name);
        }
    }

    /// It is open, or could not be opened.
    pub(super) fn opened(&mut self, message_id: u64, file: Option<FileId>) {
        let is_renamed = self.renamed_opening.remove(&message_id);
        if let (Some(name), Some(file)) = (self.opening.remove(&message_id), file)
            && self.open.len() < OPENS_MAX
        {
            self.open.insert(file, name);
            if is_renamed {
                self.renamed.insert(file);
            }
        }
    }

    /// The server has given a file this name.
    pub(super) fn renamed_to(&mut self, file: FileId, name: &TreeName) {
        if let Some(open) = self.open.get_mut(&file) {
            *open = name.clone();
            self.renamed.remove(&file);
        }
    }

    pub(super) fn forget(&mut self, file: FileId) {
        self.open.remove(&file);
        self.renamed.remove(&file);
    }

    /// The client sends a request that may give the file of this open another name, and what lies in it if it is
    /// a directory.
    fn names_change(&mut self, of: FileId) {
        // What was renamed before may have any name.
        let renamed = self.open.get(&of).filter(|_| !self.renamed.contains(&of));
        let renamed = renamed.cloned();
        let is_meant = |name: &TreeName| renamed.as_ref().is_none_or(|of| name.is_within(of));
        let open = self.open.iter().filter(|(_, name)| is_meant(name));
        let opening = self.opening.iter().filter(|(_, name)| is_meant(name));
        self.renamed.extend(open.map(|(file, _)| *file));
        self.renamed_opening.extend(opening.map(|(id, _)| *id));
    }

    /// Returns true if the client may have this name of a tree open.
    pub(super) fn holds(&self, header: &Smb2Header, name: &[u8]) -> bool {
        self.is_open(&TreeName {
            session: header.session,
            tree: header.tree,
            name: name.to_vec(),
        })
    }

    /// Returns true if the client may have this file open.
    fn is_open(&self, name: &TreeName) -> bool {
        let is_renamed = !self.renamed.is_empty() || !self.renamed_opening.is_empty();
        let mut known = self.open.values().chain(self.opening.values());
        is_renamed || known.any(|open| open == name)
    }

    /// The server has answered the CREATE of a request for attributes.
    pub(super) fn answered(&mut self, message_id: u64, file: Option<&CreateResponse>) {
        let Some(stated) = self.asked.remove(&message_id) else {
            return;
        };
        if file.is_none_or(CreateResponse::is_directory) {
            return;
        }
        if self.is_wanted && self.wanted.len() < LEASED_OFFERS_MAX {
            self.wanted.push_back(stated.clone());
        }
        self.last = Some(stated.name);
    }
}

impl TreeName {
    /// A name in UTF-16.
    pub(super) fn new(session: u64, tree: u32, name: &[u8]) -> Self {
        Self {
            session,
            tree,
            name: name.to_vec(),
        }
    }

    /// The name in UTF-16.
    pub(super) fn units(&self) -> &[u8] {
        &self.name
    }

    /// Returns true if it is this name, or that of something in this directory.
    fn is_within(&self, directory: &Self) -> bool {
        let is_its = (directory.session, directory.tree) == (self.session, self.tree);
        let rest = self.name.strip_prefix(&directory.name[..]);
        is_its && rest.is_some_and(|rest| matches!(rest.get(..2), None | Some([b'\\' | b':', 0])))
    }

    /// The rest of this name behind that of an open.
    pub(super) fn behind(&self, open: &Self) -> Option<&[u8]> {
        let is_its = (open.session, open.tree) == (self.session, self.tree);
        self.name.strip_prefix(&open.name[..]).filter(|_| is_its)
    }

    /// The name with more behind it.
    pub(super) fn with(&self, rest: &[u8]) -> Vec<u8> {
        [&self.name[..], rest].concat()
    }

    /// The name in a CREATE; none if it is resolved by a distributed file system, or longer than that of an
    /// offered open may be.
    pub(super) fn of(header: &Smb2Header, message: &[u8]) -> Option<Self> {
        let name = message.get(header::LENGTH..).and_then(name_of)?;
        let is_kept = !header.is_dfs() && name.len() <= OFFERED_MAX;
        is_kept.then(|| Self {
            session: header.session,
            tree: header.tree,
            name: name.to_vec(),
        })
    }
}

/// The leases that the server knows by a key of the far half's.
#[derive(Debug, Default)]
pub(super) struct LeaseAliases {
    /// The far half's key of each client's key.
    to_server: HashMap<LeaseKey, LeaseKey>,
    /// The client's key of each key of the far half's, once the client has the open.
    to_client: HashMap<LeaseKey, Option<LeaseKey>>,
    /// The far half's keys, the oldest first.
    order: VecDeque<LeaseKey>,
}

impl LeaseAliases {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn insert(&mut self, ours: LeaseKey) {
        self.to_client.insert(ours, None);
        self.order.push_back(ours);
    }

    fn bind(&mut self, ours: LeaseKey, client: LeaseKey) {
        self.to_client.insert(ours, Some(client));
        self.to_server.insert(client, ours);
    }

    /// Drops the oldest alias, or keeps it for longer if it is still in use.
    fn age(&mut self, is_used: impl Fn(LeaseKey) -> bool) {
        let Some(oldest) = self.order.pop_front() else {
            return;
        };
        let client = self.to_client.get(&oldest).copied().flatten();
        if is_used(oldest) || client.is_some_and(is_used) {
            self.order.push_back(oldest);
            return;
        }
        self.to_client.remove(&oldest);
        if let Some(client) = client
            && self.to_server.get(&client) == Some(&oldest)
        {
            self.to_server.remove(&client);
        }
    }

    fn is_full(&self) -> bool {
        self.order.len() >= LEASE_ALIASES_MAX
    }
}

impl Smb2FarHalf {
    /// Records a frame that asks for the attributes of a name: a CREATE for attributes alone,
    /// QUERY_INFO and CLOSE.
    pub(super) fn note_stat(&mut self, message: &GatheredMessage) {
        if !self.near_takes_leased_offers {
            return;
        }
        let Some(first) = message.first().copied() else {
            return;
        };
        let mut chain = CompoundChain::default();
        for head in message.heads() {
            let file = chain.touch(&head.header, head.body()).file();
            if let Some(file) = file
                && head.header.command == command::SET_INFO
                && plain_change(head.body()).is_none()
            {
                self.stats.names_change(file);
            }
        }
        let commands = message.heads().map(|head| head.header.command);
        let is_stat = commands.eq([command::CREATE, command::QUERY_INFO, command::CLOSE]);
        let is_of_first = |other: &Smb2Header| {
            other.has(flag::RELATED)
                && [first.session, SAME_SESSION].contains(&other.session)
                && [first.tree, SAME_TREE].contains(&other.tree)
        };
        if !is_stat
            || !message
                .heads()
                .skip(1)
                .all(|head| is_of_first(&head.header))
        {
            return;
        }
        let Some((_, create)) = message.messages().next() else {
            return;
        };
        let is_plain = CreateRequest::parse(&create).is_ok_and(|request| {
            request.is_for_attributes()
                && request.disposition == 1
                && request.oplock_level == oplock_level::NONE
        });
        if let Some(name) = TreeName::of(&first, &create)
            && let Some(contexts) = contexts_offset(&create[header::LENGTH..])
            && is_plain
            && self.stats.asked.len() < OPENS_AHEAD_MAX
        {
            let stated = StatedName { name, contexts };
            self.stats.asked.insert(first.message_id, stated);
        }
    }

    /// Records a CREATE of the client's: one of the file whose attributes it was given last is the
    /// model of the next.
    pub(super) fn note_open_after_stat(&mut self, header: &Smb2Header, message: &[u8]) {
        if !self.near_takes_leased_offers || self.stats.last.is_none() {
            return;
        }
        let Some(name) = TreeName::of(header, message) else {
            return;
        };
        if self.stats.last.as_ref() != Some(&name) {
            return;
        }
        self.stats.last = None;
        if self.may_open_alike(header, message) {
            let body = message[header::LENGTH..].to_vec();
            self.stats.model = Some((*header, body));
            self.stats.is_wanted = true;
        }
    }

    /// Returns true if a CREATE opens a file to read it, changes nothing, and asks for a lease that
    /// the holder of another open waits for, whatever it conflicts with.
    fn may_open_alike(&self, header: &Smb2Header, message: &[u8]) -> bool {
        let Ok(request) = CreateRequest::parse(message) else {
            return false;
        };
        let is_keyed = self.sessions.is_keyed(header.session);
        let is_exclusive = request.lease().is_ok_and(|lease| {
            let is_leased = request.oplock_level == oplock_level::LEASE;
            is_leased && lease.is_some_and(|lease| lease.is_whole())
        });
        let is_declined = !request.is_durable()
            || self.settings.durable == DurablePolicy::Decline && !request.is_persistent();
        self.connection.judge(header, &request, is_keyed) == OplockRequester::ForItself
            && request.only_reads()
            && is_exclusive
            && is_declined
            && self.may_answer(header)
    }

    /// Opens the files whose attributes the client was given.
    pub(super) fn open_stated(&mut self, now: Time) {
        while let Some(stated) = self.stats.wanted.pop_front() {
            if let Some(model) = self.stats.model.clone().filter(|_| self.stats.is_wanted) {
                self.open_under_lease(now, (&stated.name, stated.contexts), model, None);
            }
        }
    }

    /// An open that was made ahead under a lease was of no use.
    pub(super) fn was_not_used(&mut self, after: Option<ChangeKind>) {
        match after {
            Some(after) => self.changes.not_used(after),
            None => self.stats.is_wanted = false,
        }
    }

    /// Opens a file ahead of the client, in the form of an earlier CREATE with its contexts at this place: after a
    /// request for its attributes, or after a change of a name.
    pub(super) fn open_under_lease(
        &mut self,
        now: Time,
        (name, contexts): (&TreeName, u32),
        (model, body): (Smb2Header, Vec<u8>),
        after: Option<ChangeKind>,
    ) {
        let asked = self.opens_ahead.asked.values();
        let offers = self.opens_ahead.offers.values();
        let unused = asked.filter(|asked| asked.lease.is_some()).count()
            + offers.filter(|offer| offer.asked.lease.is_some()).count();
        let is_room =
            self.opens.len() < OPENS_MAX && unused < LEASED_OFFERS_MAX && self.ids.can_take(1);
        let is_quiet = self.queue.is_empty()
            && self.client_finish == StreamFinish::Open
            && !self.is_changing_names()
            && !self.stats.is_open(name);
        let is_its = (model.session, model.tree) == (name.session, name.tree);
        let is_new = !self
            .opens_ahead
            .holds_unused(name.session, name.tree, &name.name);
        if !is_room || !is_quiet || !is_its || !is_new {
            return;
        }
        let Some(body) = renamed(&body, &name.name, contexts) else {
            return;
        };
        let whole = [&[0; header::LENGTH][..], &body].concat();
        if whole.len() > OFFERED_MAX {
            return;
        }
        if self.aliases.is_full() {
            let (leases, changes) = (&self.leases, &self.changes);
            self.aliases
                .age(|key| leases.has_kin(key) || leases.is_shared(key) || changes.is_hidden(key));
        }
        let may_open = match after {
            Some(_) => self.may_open_after_change(&model, &whole),
            None => self.may_open_alike(&model, &whole),
        };
        if !may_open || self.aliases.is_full() {
            return;
        }
        let ours = LeaseKey(self.draw_key());
        if self.leases.is_shared(ours) {
            return;
        }
        let mut asking = whole;
        let (Some(key_at), Ok(())) = (lease_key_at(&asking), decline_durable(&mut asking)) else {
            return;
        };
        asking[key_at..key_at + 16].copy_from_slice(&ours.0);
        // A client that wants no caching gets an open under a lease all the same (`open_after_change`).
        asking[key_at + 16..key_at + 20].copy_from_slice(&WHOLE.to_le_bytes());
        // Contexts that overlap may hold another key now.
        let request = CreateRequest::parse(&asking);
        let is_ours = request.is_ok_and(|request| {
            let lease = request.lease().ok().flatten();
            !request.is_durable() && lease.is_some_and(|lease| lease.key == ours)
        });
        if !is_ours {
            return;
        }
        self.aliases.insert(ours);
        let header = Smb2Header::alike(command::CREATE, &model);
        let number = self.opens_ahead.next_number;
        self.opens_ahead.next_number += 1;
        let purpose = RequestPurpose::OpensAhead(number);
        self.send_own(header, &asking[header::LENGTH..], purpose);
        let asked = PendingCreate {
            header,
            body: without_drawn_numbers(&body),
            position: self.position,
            at: now,
            lease: Some(ours),
            after,
            is_broken: false,
            waiting: None,
        };
        self.opens_ahead.asked.insert(number, asked);
    }

    /// The server has opened a file under a lease ahead of the client, or not.
    pub(super) fn opened_under_lease(
        &mut self,
        now: Time,
        head: &Smb2MessageHead,
        rest: &[(SegmentKind, Bytes)],
        ours: LeaseKey,
        mut asked: PendingCreate,
    ) {
        let waiting = asked.waiting.take();
        if head.header.status != status::SUCCESS {
            self.was_not_used(asked.after);
            return waiting
                .into_iter()
                .for_each(|message| self.enqueue(message));
        }
        let Ok(answer) = CreateResponse::parse(head.body()) else {
            return self.stop(crate::ReasonCode::VIOLATION);
        };
        let mut whole = head.message().to_vec();
        rest.iter()
            .for_each(|(_, bytes)| whole.extend_from_slice(bytes));
        let given = CreateResponse::lease(&whole).ok().flatten();
        let is_exclusive = answer.oplock_level == oplock_level::LEASE
            && given.is_some_and(|given| given.key == ours && given.is_whole())
            && CreateResponse::is_durable(&whole) == Ok(false)
            && whole.len() <= ANSWER_MAX
            && !asked.is_broken
            && !answer.is_directory()
            && !answer.is_elsewhere();
        let file = answer.file;
        let lease = RequestedLease {
            key: ours,
            empties: false,
            is_stale: false,
        };
        let is_there =
            self.client_finish == StreamFinish::Open && !self.opens_ahead.is_dropped(&asked);
        let create = [&[0; header::LENGTH][..], &asked.body].concat();
        let request = CreateRequest::parse(&create).ok();
        let Some(request) =
            request.filter(|_| is_exclusive && is_there && !self.leases.is_shared(ours))
        else {
            self.was_not_used(asked.after);
            let mut open = TrackedOpen::new(asked.header.session, asked.header.tree, false);
            open.guard = asked.header.guard();
            self.keep_open(file, open);
            self.discard(file);
            return waiting
                .into_iter()
                .for_each(|message| self.enqueue(message));
        };
        let is_hidden = request
            .lease()
            .ok()
            .flatten()
            .is_none_or(|lease| lease.is_empty());
        let form = QuestionTrigger::of(&request);
        let opened = CreateIntent {
            is_ours: false,
            guard: asked.header.guard(),
            may_read: request.may_read(),
            may_write: request.may_write(),
            may_set: request.may_set_attributes(),
            lease: Some(lease),
            is_durable: false,
            is_hidden,
            form: asked.after.map(|_| form),
        };
        self.serve(now, &asked.header, &answer, true, opened);
        if let Some(at) = answered_lease_key_at(&whole).filter(|_| is_hidden) {
            whole[at + 16..at + 20].fill(0);
        }
        let answer = whole.split_off(header::LENGTH);
        self.tell_near(HalfFrame::LeasedOffer {
            file,
            position: asked.position,
            request: Bytes::copy_from_slice(&asked.body),
            answer: Bytes::copy_from_slice(&answer),
        });
        let length = CreateResponse::parse(&answer).map_or(0, |answer| answer.end_of_file);
        let offer = SpeculativeOpen {
            bytes: length.min(u64::from(FIRST_BLOCK)),
            asked,
            answer,
            is_retiring: false,
            waiting,
            notice: None,
        };
        let is_after_change = offer.asked.after.is_some();
        self.opens_ahead.offers.insert(file, offer);
        self.finish_opening(now, file);
        if is_after_change {
            self.ask_after_open(file, form);
        }
    }

    /// The near half has given the client an open that was made under a lease: the client knows the
    /// lease by its own key.
    pub(super) fn give_leased_offer(
        &mut self,
        file: FileId,
        header: &Smb2Header,
        ours: LeaseKey,
        offer: SpeculativeOpen,
    ) {
        let joined = offer.waiting.as_ref().and_then(GatheredMessage::joined);
        let key = joined.as_ref().and_then(|message| {
            let at = lease_key_at(message)?;
            Some(LeaseKey(message.get(at..at + 16)?.try_into().ok()?))
        });
        let (Some(joined), Some(client)) = (joined, key) else {
            return self.stop(crate::ReasonCode::VIOLATION);
        };
        let asked = [&[0; header::LENGTH][..], &offer.asked.body].concat();
        let lease = CreateRequest::parse(&asked).ok();
        let lease = lease.and_then(|request| request.lease().ok().flatten());
        let is_hidden = lease.is_none_or(|lease| lease.is_empty());
        match is_hidden {
            true => self.changes.hide(ours, file),
            false => self.aliases.bind(ours, client),
        }
        if let Some(mut open) = self.opens.remove(&file) {
            self.leases.remove(file, &open);
            open.lease = Some(client).filter(|_| !is_hidden);
            if is_hidden {
                // The client has no lease that others wait for.
                open.grant = LicenceState::Given;
                self.breaking.retain(|breaking| *breaking != file);
            }
            self.leases.insert(file, &open);
            self.opens.insert(file, open);
        }
        self.stats.opening(header, &joined);
        self.stats.opened(header.message_id, Some(file));
        if let Some(name) = TreeName::of(header, &joined) {
            self.changes.used(&name, Some(file));
        }
        let mut answer = frame_header(header::LENGTH + offer.answer.len()).to_vec();
        answer.extend(header.answer(status::SUCCESS).emit());
        answer.extend(&offer.answer);
        if let Some(at) = answered_lease_key_at(&answer[FRAME_HEADER..]) {
            answer[FRAME_HEADER + at..FRAME_HEADER + at + 16].copy_from_slice(&client.0);
        }
        let key = self.sessions.client_key(header.session);
        if let Some(key) = key.filter(|_| header.guard() == MessageProtection::Signed) {
            key.sign(&mut answer[FRAME_HEADER..], []);
        }
        self.answer_here(header, answer.into());
        if let Some((_, notice)) = offer.notice.as_ref().filter(|_| is_hidden) {
            let is_awaited = awaits_acknowledgement(&notice[FRAME_HEADER + header::LENGTH..]);
            self.give_back_hidden(ours, is_awaited);
        } else if let Some((sealed, notice)) = offer.notice {
            let mut notice = BytesMut::from(&notice[..]);
            let at = FRAME_HEADER + header::LENGTH + BREAK_KEY_AT;
            notice[at..at + 16].copy_from_slice(&client.0);
            self.ready.push((sealed, notice.freeze()));
            if self.answers.at_boundary() && self.answer_sealed.is_none() {
                self.give_ready();
            }
        }
    }

    /// Handles the server's break of a lease that the client may know by another key, or not at all.
    /// Returns true if the client must receive it now.
    pub(super) fn aliased_break(
        &mut self,
        now: Time,
        notice: LeaseBreak,
        head: &mut Smb2MessageHead,
    ) -> bool {
        let Some(client) = self.aliases.to_client.get(&notice.key).copied() else {
            self.lease_broken(now, notice);
            return true;
        };
        if let Some(client) = client {
            head.body_mut()[BREAK_KEY_AT..BREAK_KEY_AT + 16].copy_from_slice(&client.0);
            self.lease_broken(now, LeaseBreak { key: client });
            return true;
        }
        if self.give_back_hidden(notice.key, awaits_acknowledgement(head.body())) {
            return false;
        }
        let mut asked = self.opens_ahead.asked.values_mut();
        if let Some(asked) = asked.find(|asked| asked.lease == Some(notice.key)) {
            asked.is_broken = true;
        }
        let mut offers = self.opens_ahead.offers.values_mut();
        if let Some(offer) = offers.find(|offer| offer.asked.lease == Some(notice.key)) {
            let bytes = Bytes::copy_from_slice(&head.bytes);
            offer.notice = Some((self.answer_sealed, bytes));
        }
        self.lease_broken(now, notice);
        false
    }

    /// Gives the leases in a client's frame the keys that the server knows.
    pub(super) fn alias_requests(&mut self, message: &mut GatheredMessage) {
        let may_hold =
            |header: &Smb2Header| matches!(header.command, command::CREATE | command::OPLOCK_BREAK);
        if self.aliases.is_empty() || !message.heads().any(|head| may_hold(&head.header)) {
            return;
        }
        let to_server = &self.aliases.to_server;
        message.rewrite(|header, message| {
            let at = match header.command {
                command::CREATE => lease_key_at(message),
                command::OPLOCK_BREAK if message.get(header::LENGTH) == Some(&ACKNOWLEDGEMENT) => {
                    Some(header::LENGTH + BREAK_KEY_AT)
                }
                _ => None,
            };
            replace_key(message, at, |key| to_server.get(&key).copied());
        });
    }

    /// Returns true if a server's message may hold a key that the client does not know.
    pub(super) fn may_be_aliased(&self, header: &Smb2Header) -> bool {
        !self.aliases.is_empty()
            && matches!(header.command, command::CREATE | command::OPLOCK_BREAK)
            && header.status == status::SUCCESS
    }

    /// Gives the lease in a server's whole answer the key that the client knows.
    pub(super) fn alias_answer(
        &self,
        head: &mut Smb2MessageHead,
        rest: &mut [(SegmentKind, Bytes)],
    ) {
        if !self.may_be_aliased(&head.header) {
            return;
        }
        let mut whole = head.message().to_vec();
        rest.iter()
            .for_each(|(_, bytes)| whole.extend_from_slice(bytes));
        let at = match head.header.command {
            command::CREATE => answered_lease_key_at(&whole),
            _ => (whole.get(header::LENGTH) == Some(&ACKNOWLEDGEMENT))
                .then_some(header::LENGTH + BREAK_KEY_AT),
        };
        let to_client = &self.aliases.to_client;
        if replace_key(&mut whole, at, |key| to_client.get(&key).copied().flatten()) {
            let place = head.message_mut();
            let mut behind = Bytes::from(whole);
            place.copy_from_slice(&behind.split_to(place.len()));
            for (_, bytes) in rest {
                *bytes = behind.split_to(bytes.len());
            }
        }
    }

    /// A lease key that no client has drawn.
    fn draw_key(&mut self) -> [u8; 16] {
        let mut key = [0; 16];
        self.random.fill(&mut key);
        key
    }
}

/// Replaces the key at a place of a message. Returns true if it was replaced.
fn replace_key(
    message: &mut [u8],
    at: Option<usize>,
    other: impl Fn(LeaseKey) -> Option<LeaseKey>,
) -> bool {
    let place = at.and_then(|at| message.get_mut(at..at + 16));
    let Some(place) = place else {
        return false;
    };
    let key = <[u8; 16]>::try_from(&*place).map(LeaseKey);
    match key.ok().and_then(other) {
        Some(other) => {
            place.copy_from_slice(&other.0);
            true
        }
        None => false,
    }
}
