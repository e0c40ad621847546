//! Opens files ahead of a client: under the policy `relaxed` the files of a directory that the client
//! goes through (docs/decisions/0042), and always the file whose attributes it has just asked for
//! (`open_after_stat`).
//!
//! ```text
//!            server has opened it           the client's own CREATE
//!   asked ────────────────────► Offered ──────────────────────────────► an open like any other
//!                                  │ too old, a break, a change ──► Revoke … Revoked ──► closed
//! ```
//! The request is the client's last CREATE with another name, so the server's answer is the one
//! that the client would have received: its own file id, and the shares that the client will hold.
//! A batch oplock makes all other clients wait until the near half has confirmed that the client
//! was not given the open, and then it is closed. So an open that no client made causes no refusal.
//!
//! The names in the client's last listing predict the next files, in their order or sorted.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use vocab::{SegmentKind, Time};

use super::answers::CreateIntent;
use super::connection::OplockRequester;
use super::message::GatheredMessage;
use super::open::{LicenceState, TrackedOpen};
use super::open_after_change::ChangeKind;
use super::open_after_stat::LeaseBreakNotice;
use super::{FarState, FileChange, OutstandingRequest, RequestPurpose, Smb2FarHalf, StreamFinish};
use crate::smb::config::{
    AHEAD_CREDITS, ConsistencyMode, LEASED_OFFER_LASTS, NAMES_KEPT, OPENS_AHEAD_BYTES,
    OPENS_AHEAD_FIRST, OPENS_AHEAD_MAX, OPENS_MAX,
};
use crate::smb::frames::HalfFrame;
use crate::smb::offer::names_of;
use crate::smb::wire::FileId;
use crate::smb::wire::create::{
    ANSWER_OPLOCK_AT, CreateRequest, CreateResponse, REQUEST_OPLOCK_AT, name_of, oplock_level,
    without_drawn_numbers,
};
use crate::smb::wire::frame::{FRAME_HEADER, frame_header};
use crate::smb::wire::header::{self, MessageProtection, Smb2Header, command, status};
use crate::smb::wire::lease::LeaseKey;
use crate::smb::wire::split::Smb2MessageHead;

/// The offset of a file's name in a CREATE of ours: behind the fixed part ([MS-SMB2] §2.2.13).
const NAME_AT: usize = header::LENGTH + 56;

/// The fixed part of a CREATE answer, and the padding that may follow it.
const ANSWER: usize = 88;
const ANSWER_PADDING: usize = 8;

/// A separator in names on the wire.
const BACKSLASH: [u8; 2] = [b'\\', 0];

/// The names that the client has listed in a directory.
#[derive(Debug)]
struct ListedDirectory {
    session: u64,
    tree: u32,
    path: Vec<u8>,
    /// The names in the original order, and sorted.
    names: [Vec<Vec<u8>>; 2],
    bytes: usize,
    is_sorted: bool,
}

/// The client's last CREATE, and its position in the directory's names in both orders.
#[derive(Debug)]
struct AccessPattern {
    header: Smb2Header,
    body: Vec<u8>,
    at: [Option<usize>; 2],
    /// The order that it follows, once two files were opened in it, and the next file to open.
    order: Option<usize>,
    next: usize,
}

/// An outstanding CREATE of this half.
#[derive(Debug)]
pub(super) struct PendingCreate {
    pub(super) header: Smb2Header,
    /// The body of the client's CREATE that it answers, without the numbers that clients draw.
    pub(super) body: Vec<u8>,
    pub(super) position: u64,
    pub(super) at: Time,
    /// The key of the lease that it asks for.
    pub(super) lease: Option<LeaseKey>,
    /// The change of a name that it was made after.
    pub(super) after: Option<ChangeKind>,
    /// The lease was broken before the answer.
    pub(super) is_broken: bool,
    /// The client's CREATE, which waits for the answer.
    pub(super) waiting: Option<GatheredMessage>,
}

/// An open that no client has requested.
#[derive(Debug)]
pub(super) struct SpeculativeOpen {
    pub(super) asked: PendingCreate,
    pub(super) answer: Vec<u8>,
    pub(super) bytes: u64,
    /// The near half was asked to stop; its confirmation is outstanding.
    pub(super) is_retiring: bool,
    /// The client's CREATE, which waits for that, or for the near half's word under a lease.
    pub(super) waiting: Option<GatheredMessage>,
    /// The server's break of its lease, for the client that was given the open.
    pub(super) notice: Option<LeaseBreakNotice>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct SpeculativeOpens {
    directory: Option<ListedDirectory>,
    /// The names of directories with an outstanding CREATE, by the client's message id, and of the
    /// open ones.
    opening: HashMap<u64, Vec<u8>>,
    paths: HashMap<FileId, Vec<u8>>,
    model: Option<AccessPattern>,
    pub(super) asked: HashMap<u64, PendingCreate>,
    pub(super) next_number: u64,
    pub(super) offers: HashMap<FileId, SpeculativeOpen>,
    window: usize,
    /// Opens from before this frame of the client's are not offered.
    dropped_at: u64,
    /// Unwanted opens, which are closed as soon as the server grants a credit.
    unwanted: VecDeque<FileId>,
}

impl ListedDirectory {
    fn places(&mut self, name: &[u8]) -> [Option<usize>; 2] {
        if !self.is_sorted {
            let mut sorted = self.names[0].clone();
            sorted.sort_by_cached_key(|name| units(name));
            self.names[1] = sorted;
            self.is_sorted = true;
        }
        let first = self.names[0].iter().position(|other| other == name);
        let key = units(name);
        let second = self.names[1].binary_search_by(|other| units(other).cmp(&key));
        [first, second.ok()]
    }
}

/// UTF-16 by its units.
fn units(name: &[u8]) -> Vec<u16> {
    let pairs = name.chunks_exact(2);
    pairs
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect()
}

/// A path's directory and its last part.
fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    let separator = path.chunks_exact(2).rposition(|unit| unit == BACKSLASH);
    match separator {
        Some(index) => (&path[..2 * index], &path[2 * index + 2..]),
        None => (&[], path),
    }
}

/// A CREATE's body with another name.
fn with_name(body: &[u8], name: &[u8]) -> Vec<u8> {
    let mut named = body[..56].to_vec();
    named[44..46].copy_from_slice(&(NAME_AT as u16).to_le_bytes());
    named[46..48].copy_from_slice(&(name.len() as u16).to_le_bytes());
    named.extend_from_slice(name);
    named
}

impl SpeculativeOpens {
    /// A directory is being opened, under this id of the client's.
    pub(super) fn opening(&mut self, message_id: u64, message: &[u8]) {
        if let Some(name) = message.get(header::LENGTH..).and_then(name_of)
            && self.opening.len() < OPENS_MAX
        {
            self.opening.insert(message_id, name.to_vec());
        }
    }

    /// It is open, or could not be opened.
    pub(super) fn opened(&mut self, message_id: u64, file: Option<FileId>) {
        if let (Some(path), Some(file)) = (self.opening.remove(&message_id), file)
            && self.paths.len() < OPENS_MAX
        {
            self.paths.insert(file, path);
        }
    }

    /// Records the entries of an open directory that the client receives.
    pub(super) fn learn(&mut self, file: FileId, open: (u64, u32), class: u8, entries: &[u8]) {
        let Some(path) = self.paths.get(&file) else {
            return;
        };
        let (session, tree) = open;
        let is_same = self.directory.as_ref().is_some_and(|directory| {
            (directory.session, directory.tree, &directory.path) == (session, tree, path)
        });
        if !is_same {
            self.model = None;
            self.directory = Some(ListedDirectory {
                session,
                tree,
                path: path.clone(),
                names: [Vec::new(), Vec::new()],
                bytes: 0,
                is_sorted: false,
            });
        }
        let Some(directory) = &mut self.directory else {
            return;
        };
        for name in names_of(class, entries) {
            let is_dots = name == [b'.', 0] || name == [b'.', 0, b'.', 0];
            if !is_dots && directory.bytes + name.len() <= NAMES_KEPT {
                directory.bytes += name.len();
                directory.names[0].push(name.to_vec());
            }
        }
        directory.is_sorted = false;
    }

    /// A directory is listed from the beginning, or closed.
    pub(super) fn begins(&mut self, file: FileId) {
        let path = self.paths.get(&file);
        if self.directory.as_ref().map(|directory| &directory.path) == path {
            self.directory = None;
            self.model = None;
        }
    }

    /// The client opens a file in a way that others may be opened in.
    fn follow(&mut self, header: &Smb2Header, body: &[u8]) {
        let Some(name) = name_of(body).filter(|_| !header.is_dfs()) else {
            self.model = None;
            return;
        };
        let (path, leaf) = split_path(name);
        let whose = (header.session, header.tree);
        let directory = self.directory.as_mut().filter(|directory| {
            directory.path == path && (directory.session, directory.tree) == whose
        });
        let Some(at) = directory.map(|directory| directory.places(leaf)) else {
            self.model = None;
            return;
        };
        let is_alike = |model: &&AccessPattern| {
            let (old, new) = (&model.body, body);
            let is_same = old[..44] == new[..44] && old[48..56] == new[48..56];
            is_same && model.header.guard() == header.guard()
        };
        let last = self.model.as_ref().filter(is_alike);
        let follows = |order: &usize| {
            let before = last.and_then(|model| model.at[*order]);
            before.is_some_and(|before| at[*order] == Some(before + 1))
        };
        let kept = last
            .and_then(|model| model.order)
            .filter(|order| follows(order));
        let order = kept.or_else(|| [0, 1].into_iter().find(follows));
        let next = order.and_then(|order| at[order]).map_or(0, |at| at + 1);
        let next = match (kept, last) {
            (Some(_), Some(model)) => next.max(model.next),
            _ => next,
        };
        if kept.is_none() {
            self.window = OPENS_AHEAD_FIRST;
        }
        self.model = Some(AccessPattern {
            header: *header,
            body: body.to_vec(),
            at,
            order,
            next,
        });
    }

    /// Returns the next file to open, if any.
    fn next(&mut self) -> Option<(Smb2Header, Vec<u8>)> {
        let count = self.offers.len() + self.asked.len();
        let bytes: u64 = self.offers.values().map(|offer| offer.bytes).sum();
        let model = self.model.as_mut()?;
        let order = model.order?;
        if count >= self.window || bytes >= OPENS_AHEAD_BYTES {
            return None;
        }
        let directory = self.directory.as_ref()?;
        let leaf = directory.names[order].get(model.next)?;
        let name = match directory.path.is_empty() {
            true => leaf.clone(),
            false => [&directory.path[..], &BACKSLASH, leaf].concat(),
        };
        model.next += 1;
        Some((model.header, with_name(&model.body, &name)))
    }

    /// Returns the offer that answers a client's CREATE.
    fn find(&self, header: &Smb2Header, body: &[u8]) -> Option<FileId> {
        let is_meant = |offer: &SpeculativeOpen| {
            let asked = &offer.asked.header;
            !header.is_dfs()
                && (asked.session, asked.tree) == (header.session, header.tree)
                && asked.guard() == header.guard()
                && offer.asked.body == body
        };
        let offers = self.offers.iter();
        let mut meant = offers.filter(|(_, offer)| is_meant(offer) && offer.waiting.is_none());
        meant.next().map(|(file, _)| *file)
    }

    /// Returns the outstanding CREATE under a lease that may answer a client's CREATE.
    fn find_asked(&mut self, header: &Smb2Header, body: &[u8]) -> Option<&mut PendingCreate> {
        let mut asked = self.asked.values_mut();
        asked.find(|asked| {
            asked.lease.is_some()
                && !header.is_dfs()
                && asked.waiting.is_none()
                && (asked.header.session, asked.header.tree) == (header.session, header.tree)
                && asked.header.guard() == header.guard()
                && asked.body == body
        })
    }

    /// Returns true if a CREATE of this name is outstanding, or the client has not used its open yet.
    pub(super) fn holds_unused(&self, session: u64, tree: u32, name: &[u8]) -> bool {
        let offered = self.offers.values().map(|offer| &offer.asked);
        self.asked.values().chain(offered).any(|asked| {
            (asked.header.session, asked.header.tree) == (session, tree)
                && name_of(&asked.body) == Some(name)
        })
    }

    /// Returns true if a request of the client waits for the answer to a CREATE made ahead.
    pub(super) fn holds_requests(&self) -> bool {
        self.asked.values().any(|asked| asked.waiting.is_some())
    }

    /// Returns true if unwanted opens wait to be closed.
    pub(super) fn has_unwanted(&self) -> bool {
        !self.unwanted.is_empty()
    }

    /// Returns true if a CREATE was made before the client's last frame that ends offers.
    pub(super) fn is_dropped(&self, asked: &PendingCreate) -> bool {
        asked.position < self.dropped_at
    }

    /// Returns true if an open was made here and no client has requested it yet.
    pub(super) fn is_offered(&self, file: FileId) -> bool {
        self.offers.contains_key(&file)
    }

    /// An open is forgotten.
    pub(super) fn forget(&mut self, file: FileId) -> Option<GatheredMessage> {
        self.paths.remove(&file);
        self.unwanted.retain(|other| *other != file);
        self.offers.remove(&file)?.waiting
    }

    /// The time at which the next offer is too old.
    pub(super) fn next_overdue(&self, staleness: Option<Duration>) -> Option<Time> {
        let offers = self.offers.values().filter(|offer| !offer.is_retiring);
        offers
            .map(|offer| offer.asked.at + offer.lasts(staleness))
            .min()
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        let names = self
            .directory
            .as_ref()
            .map_or(0, |directory| 2 * directory.bytes);
        let offers = self.offers.values();
        let asked = self.asked.values();
        let waiting = offers
            .filter_map(|offer| offer.waiting.as_ref())
            .chain(asked.filter_map(|asked| asked.waiting.as_ref()));
        names + waiting.map(GatheredMessage::bytes).sum::<usize>()
    }
}

impl SpeculativeOpen {
    /// The time for which it stays at the server without a client.
    fn lasts(&self, staleness: Option<Duration>) -> Duration {
        match self.asked.lease {
            Some(_) => LEASED_OFFER_LASTS,
            None => staleness.unwrap_or_default(),
        }
    }
}

impl Smb2FarHalf {
    pub(super) fn staleness(&self) -> Option<Duration> {
        match self.settings.consistency {
            ConsistencyMode::Relaxed { staleness } => Some(staleness),
            ConsistencyMode::Off | ConsistencyMode::Strict => None,
        }
    }

    /// Updates the speculative opens from a frame of the client's. Takes a CREATE that one of them
    /// answers.
    pub(super) fn open_next(
        &mut self,
        now: Time,
        message: GatheredMessage,
    ) -> Option<GatheredMessage> {
        let is_relaxed = self.staleness().is_some();
        let is_idle = !is_relaxed && !self.near_takes_leased_offers;
        if is_idle || self.state != FarState::Engaged {
            return Some(message);
        }
        let Some(head) = message
            .single()
            .filter(|head| head.header.command == command::CREATE)
        else {
            return Some(message);
        };
        let header = head.header;
        let Some(joined) = message.joined() else {
            return Some(message);
        };
        if is_relaxed && self.may_be_model(&header, &joined) {
            self.opens_ahead.follow(&header, &joined[header::LENGTH..]);
        }
        self.note_open_after_stat(&header, &joined);
        self.note_open_after_change(&header, &joined);
        let body = &without_drawn_numbers(&joined[header::LENGTH..]);
        if let Some(asked) = self.opens_ahead.find_asked(&header, body) {
            asked.waiting = Some(message);
            return None;
        }
        let Some(file) = self.opens_ahead.find(&header, body) else {
            return Some(message);
        };
        let offer = self.opens_ahead.offers.get_mut(&file)?;
        if offer.is_retiring || offer.asked.lease.is_some() {
            // The near half may have given it before it heard, or judges its age; its word comes next.
            offer.waiting = Some(message);
            return None;
        }
        self.give_offer(now, file, &header);
        None
    }

    /// Returns true if a CREATE opens a file to read it, in a way that changes nothing.
    fn may_be_model(&self, header: &Smb2Header, message: &[u8]) -> bool {
        let Ok(request) = CreateRequest::parse(message) else {
            return false;
        };
        let is_keyed = self.sessions.client_key(header.session).is_some();
        let asking = self.connection.judge(header, &request, is_keyed);
        let names = request.context_names();
        asking == OplockRequester::ForUs
            && request.only_reads()
            && names.is_ok_and(|names| names.is_empty())
            && match header.guard() {
                // The server takes such from this client, and will judge ours.
                MessageProtection::Nothing => true,
                MessageProtection::Signed => is_keyed,
                // What encrypts costs its client the round trip.
                MessageProtection::Sealed => false,
            }
    }

    /// A frame of the client's has come that ends all offers by the near half's rule: it gives those no more that no
    /// request waits for.
    pub(super) fn give_up_offers(&mut self) {
        self.opens_ahead.dropped_at = self.position;
        for file in self.offered() {
            self.retire(file);
            let offer = &self.opens_ahead.offers[&file];
            if offer.waiting.is_none() {
                self.not_taken(file);
            }
        }
    }

    fn offered(&self) -> Vec<FileId> {
        self.opens_ahead.offers.keys().copied().collect()
    }

    /// The client is given an open that was made ahead; from here on it is one like any other.
    fn give_offer(&mut self, now: Time, file: FileId, header: &Smb2Header) {
        let Some(offer) = self.opens_ahead.offers.remove(&file) else {
            return;
        };
        if let Some(ours) = offer.asked.lease {
            return self.give_leased_offer(file, header, ours, offer);
        }
        let create = [&[0; header::LENGTH][..], &offer.asked.body].concat();
        self.stats.opening(header, &create);
        self.stats.opened(header.message_id, Some(file));
        // As far ahead as can be used up before it is too old.
        let (age, most) = (
            now.since(offer.asked.at),
            self.staleness().unwrap_or_default(),
        );
        let window = &mut self.opens_ahead.window;
        if age < most * 3 / 4 {
            *window = (2 * *window).min(OPENS_AHEAD_MAX);
        } else if *window > OPENS_AHEAD_FIRST {
            *window -= 1;
        }
        let mut answer = frame_header(header::LENGTH + offer.answer.len()).to_vec();
        answer.extend(header.answer(status::SUCCESS).emit());
        answer.extend(&offer.answer);
        let key = self.sessions.client_key(header.session);
        if let Some(key) = key.filter(|_| header.guard() == MessageProtection::Signed) {
            key.sign(&mut answer[FRAME_HEADER..], []);
        }
        self.answer_here(header, answer.into());
    }

    /// The near half has given this open to the client.
    pub(super) fn took(&mut self, now: Time, file: FileId) {
        let Some(offer) = self.opens_ahead.offers.get_mut(&file) else {
            return;
        };
        if let Some(header) = offer.waiting.as_ref().and_then(|message| message.first()) {
            let header = *header;
            self.give_offer(now, file, &header);
        }
    }

    /// Withdraws an offer.
    fn retire(&mut self, file: FileId) {
        let Some(offer) = self.opens_ahead.offers.get_mut(&file) else {
            return;
        };
        let is_new = !std::mem::replace(&mut offer.is_retiring, true);
        let after = offer.asked.lease.map(|_| offer.asked.after);
        if let Some(after) = after {
            self.was_not_used(after);
        }
        // It begins anew where the client goes on.
        if let Some(model) = &mut self.opens_ahead.model {
            model.order = None;
        }
        if is_new {
            // If it was taken, the near half has nothing to answer its READs with behind that.
            self.forget_ahead(file);
            if let Some(open) = self.opens.get_mut(&file) {
                open.reads = None;
            }
            self.reading.retain(|reading| *reading != file);
            self.tell_near(HalfFrame::Revoke { file });
        }
    }

    /// Handles the break of an offer's oplock: the near half is asked to stop.
    pub(super) fn offer_broken(&mut self, file: FileId) {
        if let Some(offer) = self.opens_ahead.offers.get_mut(&file) {
            offer.is_retiring = true;
        }
    }

    /// The near half has not given this open, and will not.
    pub(super) fn not_taken(&mut self, file: FileId) {
        let Some(offer) = self.opens_ahead.offers.remove(&file) else {
            return;
        };
        if offer.asked.lease.is_some() {
            self.was_not_used(offer.asked.after);
        }
        self.discard(file);
        if let Some(message) = offer.waiting {
            self.enqueue(message);
        }
    }

    /// Closes an unwanted open.
    pub(super) fn discard(&mut self, file: FileId) {
        if let Some(open) = self.opens.get_mut(&file).filter(|open| !open.is_closing) {
            open.close();
            open.grant = LicenceState::Given;
            open.reads = None;
            self.breaking.retain(|breaking| *breaking != file);
            self.reading.retain(|reading| *reading != file);
            self.opens_ahead.unwanted.push_back(file);
        }
    }

    /// Closes the unwanted opens.
    pub(super) fn close_unwanted(&mut self) {
        while !self.opens_ahead.unwanted.is_empty()
            && (self.ids.can_take(1) || self.outstanding.is_empty())
        {
            let Some(file) = self.opens_ahead.unwanted.pop_front() else {
                return;
            };
            let Some(open) = self.opens.get(&file) else {
                continue;
            };
            let header = open.request(command::CLOSE);
            let mut body = vec![0; 24];
            body[0] = 24;
            body[8..24].copy_from_slice(&file.0);
            self.send_own(header, &body, RequestPurpose::ClosesAhead(file));
        }
    }

    /// Ends offers that are too old.
    pub(super) fn retire_overdue(&mut self, now: Time) {
        let staleness = self.staleness();
        for file in self.offered() {
            let offer = &self.opens_ahead.offers[&file];
            if offer.asked.at + offer.lasts(staleness) <= now {
                self.retire(file);
            }
        }
    }

    /// Returns true while a request may change names: a rename, say.
    pub(super) fn is_changing_names(&self) -> bool {
        let changes = |request: &OutstandingRequest| {
            matches!(
                request.purpose,
                RequestPurpose::Changes {
                    change: FileChange::Plain(_) | FileChange::Other,
                    ..
                }
            )
        };
        self.outstanding.values().any(changes)
    }

    /// Opens the files that the client will probably open next.
    pub(super) fn open_ahead(&mut self, now: Time) {
        if self.staleness().is_none()
            || !self.near_takes_offers
            || !self.queue.is_empty()
            || self.client_finish != StreamFinish::Open
        {
            return;
        }
        if self.is_changing_names() {
            return;
        }
        while self.opens.len() < OPENS_MAX
            && self.ids.can_take(1)
            && (self.ahead_credits == 0 || self.ahead_credits < AHEAD_CREDITS)
            && let Some((model, body)) = self.opens_ahead.next()
        {
            // Another open would break the oplock of the one that the client has, or may still be given.
            let is_held = name_of(&body).is_none_or(|name| {
                self.stats.holds(&model, name)
                    || self
                        .opens_ahead
                        .holds_unused(model.session, model.tree, name)
            });
            if is_held {
                continue;
            }
            let mut header = Smb2Header::alike(command::CREATE, &model);
            header.credits = 1 + u16::from(!self.ids.can_take(4 * AHEAD_CREDITS)) * 4;
            let number = self.opens_ahead.next_number;
            self.opens_ahead.next_number += 1;
            let mut ours = body.clone();
            ours[REQUEST_OPLOCK_AT] = oplock_level::BATCH;
            self.ahead_credits += 1;
            self.send_own(header, &ours, RequestPurpose::OpensAhead(number));
            let asked = PendingCreate {
                header,
                body,
                position: self.position,
                at: now,
                lease: None,
                after: None,
                is_broken: false,
                waiting: None,
            };
            self.opens_ahead.asked.insert(number, asked);
        }
    }

    /// The server has opened a file ahead of the client, or not.
    pub(super) fn opened_ahead(
        &mut self,
        now: Time,
        head: &Smb2MessageHead,
        rest: &[(SegmentKind, Bytes)],
        number: u64,
    ) {
        let Some(asked) = self.opens_ahead.asked.remove(&number) else {
            return;
        };
        if let Some(ours) = asked.lease {
            return self.opened_under_lease(now, head, rest, ours, asked);
        }
        self.ahead_credits = self.ahead_credits.saturating_sub(1);
        if head.header.status != status::SUCCESS {
            return;
        }
        let Ok(answer) = CreateResponse::parse(head.body()) else {
            return self.stop(crate::ReasonCode::VIOLATION);
        };
        let file = answer.file;
        let fixed = header::LENGTH + ANSWER;
        let is_plain = (fixed..=fixed + ANSWER_PADDING).contains(&head.length);
        let is_exclusive = answer.oplock_level == oplock_level::BATCH;
        let is_there =
            self.client_finish == StreamFinish::Open && !self.opens_ahead.is_dropped(&asked);
        if !is_plain || !is_exclusive || answer.is_directory() || answer.is_elsewhere() || !is_there
        {
            let mut open = TrackedOpen::new(asked.header.session, asked.header.tree, true);
            open.guard = asked.header.guard();
            self.keep_open(file, open);
            self.forget_early_break(file);
            return self.discard(file);
        }
        let opened = CreateIntent {
            is_hidden: false,
            form: None,
            lease: None,
            is_durable: false,
            is_ours: true,
            guard: asked.header.guard(),
            may_read: true,
            may_write: false,
            may_set: false,
        };
        self.serve(now, &asked.header, &answer, true, opened);
        let mut body = head.body()[..ANSWER].to_vec();
        body[ANSWER_OPLOCK_AT] = oplock_level::NONE;
        self.tell_near(HalfFrame::Offer {
            file,
            position: asked.position,
            staleness: self.staleness().unwrap_or_default(),
            request: Bytes::copy_from_slice(&asked.body),
            answer: Bytes::copy_from_slice(&body),
        });
        let offer = SpeculativeOpen {
            bytes: answer
                .end_of_file
                .min(u64::from(crate::smb::config::FIRST_BLOCK)),
            asked,
            answer: body,
            is_retiring: false,
            waiting: None,
            notice: None,
        };
        self.opens_ahead.offers.insert(file, offer);
        self.finish_opening(now, file);
    }
}
