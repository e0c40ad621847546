//! Lists the directories that a client goes to next ahead of it, as it goes through a tree
//! (docs/decisions/0090).
//!
//! The Linux kernel's client opens a directory and requests its first names in one compound. If a
//! directory stood in a listing that it was given before, it probably goes through the tree, and the
//! next directories are those in this listing, or those that are left in the listings above.
//!
//! ```text
//!  client            near half                    far half               server
//!    │── list D ──────────────────────────────────────►│── the same ───────►│
//!    │◄───────────── names ────────────────────────────│◄── names ──────────│
//!    │                   │                             │── CREATE D\a ─────►│
//!    │                   │◄── ListingOffer, names ─────│── list D\a ───────►│
//!    │── list D\a ──────►│                             │
//!    │◄── names ─────────│── list D\a, Took ──────────►│  the open is the client's
//! ```
//! The open is the server's own, made with the client's last such CREATE and another name. The near
//! half alone decides whether the client is given it: its names are at most 20 ms old there, and the
//! client has requested no change since. After Took the directory is one like any other; after Revoked
//! this half closes it, and the server answers the client's compound, which has waited here.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use vocab::{SegmentKind, Time};

use super::listing::{ListingPhase, OpenListing};
use super::message::GatheredMessage;
use super::open::TrackedOpen;
use super::{FarState, RequestPurpose, Smb2FarHalf, StreamFinish};
use crate::ReasonCode;
use crate::smb::config::{
    LEASED_OFFER_LASTS, LISTING_OFFERS_BYTES, LISTING_OFFERS_FIRST, LISTING_OFFERS_MAX,
    LISTING_WAITS, LISTINGS_AHEAD, OPENS_MAX, WALKED_DIRECTORIES_MAX, WALKED_NAMES_KEPT,
    WALKED_NAMES_MAX,
};
use crate::smb::frames::HalfFrame;
use crate::smb::listing::{DirectoryQuery, ListingFrame, plain_create, plain_create_of};
use crate::smb::offer::subdirectories_of;
use crate::smb::wire::FileId;
use crate::smb::wire::create::{CreateRequest, CreateResponse, name_of};
use crate::smb::wire::header::{self, Smb2Header, command, status};
use crate::smb::wire::split::Smb2MessageHead;
use crate::smb::wire::u32_at;

/// A separator in names on the wire.
const BACKSLASH: [u8; 2] = [b'\\', 0];

/// The offset of the options in the body of a CREATE, and FILE_DIRECTORY_FILE: what is no directory any
/// more is not opened. FILE_SHARE_READ, FILE_SHARE_WRITE and FILE_SHARE_DELETE together refuse nobody
/// ([MS-SMB2] §2.2.13).
const OPTIONS_AT: usize = 40;
const DIRECTORY_FILE: u8 = 1;
const SHARE_AT: usize = 32;
const SHARES_ALL: u32 = 7;

/// The padding that may follow a CREATE answer.
const ANSWER_PADDING: usize = 8;

/// The orders in which clients go through the directories of a listing: in the server's order or sorted,
/// from the front or, where they keep a stack, from the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WalkOrder {
    is_sorted: bool,
    is_backward: bool,
}

/// A directory in a tree of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DirectoryPath {
    session: u64,
    tree: u32,
    path: Vec<u8>,
}

/// The subdirectories of a directory that the client has listed, and those it has gone to.
#[derive(Debug)]
struct WalkedDirectory {
    at: DirectoryPath,
    children: Vec<(Vec<u8>, bool)>,
    bytes: usize,
}

/// The client's last compound that listed a directory.
#[derive(Clone, Debug)]
struct ListingModel {
    header: Smb2Header,
    /// The body of its CREATE.
    create: Vec<u8>,
    query: DirectoryQuery,
    length: u32,
}

/// A CREATE of this half, outstanding or answered.
#[derive(Debug)]
struct ChildOpen {
    header: Smb2Header,
    /// The body of the client's CREATE that it answers.
    request: Vec<u8>,
    directory: DirectoryPath,
    model: ListingModel,
    position: u64,
    at: Time,
    /// The client's compound, which waits for the near half's word, and since when.
    waiting: Option<GatheredMessage>,
    waits_since: Time,
    /// The near half was asked to stop; its confirmation is outstanding.
    is_retiring: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct ChildListings {
    walked: VecDeque<WalkedDirectory>,
    order: WalkOrder,
    model: Option<ListingModel>,
    /// The client went to a directory that it had seen in a listing.
    is_wanted: bool,
    /// Directories that are opened by the client, by its message id, and open ones.
    opening: HashMap<u64, DirectoryPath>,
    paths: HashMap<FileId, DirectoryPath>,
    /// The directories to list ahead, and since when.
    wanted: VecDeque<DirectoryPath>,
    wanted_since: Option<Time>,
    /// Directories from before this frame of the client's are not offered.
    dropped_at: u64,
    window: usize,
    asked: BTreeMap<u64, ChildOpen>,
    next_number: u64,
    offers: BTreeMap<FileId, ChildOpen>,
}

impl WalkedDirectory {
    /// The names that the client has not gone to, in the server's order.
    fn left(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        let left = self.children.iter().filter(|(_, is_done)| !is_done);
        left.map(|(name, _)| &name[..])
    }

    /// The first of them in this order.
    fn first(&self, order: WalkOrder) -> Option<&[u8]> {
        let mut left = self.left();
        match (order.is_sorted, order.is_backward) {
            (false, false) => left.next(),
            (false, true) => left.next_back(),
            (true, false) => left.min_by(|one, other| units(one).cmp(units(other))),
            (true, true) => left.max_by(|one, other| units(one).cmp(units(other))),
        }
    }

    /// The first ones in this order.
    fn next(&self, order: WalkOrder, most: usize) -> Vec<&[u8]> {
        let mut left: Vec<&[u8]> = match (order.is_sorted, order.is_backward) {
            (true, _) => self.left().collect(),
            (false, false) => return self.left().take(most).collect(),
            (false, true) => return self.left().rev().take(most).collect(),
        };
        left.sort_unstable_by(|one, other| match order.is_backward {
            false => units(one).cmp(units(other)),
            true => units(other).cmp(units(one)),
        });
        left.truncate(most);
        left
    }
}

/// UTF-16 by its units.
fn units(name: &[u8]) -> impl Iterator<Item = u16> {
    let units = name.chunks_exact(2);
    units.map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
}

/// A path's directory and its last part; the top has none.
fn parent_of(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let separator = path.chunks_exact(2).rposition(|unit| unit == BACKSLASH);
    match separator {
        Some(index) => Some((&path[..2 * index], &path[2 * index + 2..])),
        None if path.is_empty() => None,
        None => Some((&[], path)),
    }
}

impl ChildListings {
    fn find(&mut self, at: &DirectoryPath, path: &[u8]) -> Option<&mut WalkedDirectory> {
        let mut walked = self.walked.iter_mut();
        walked.find(|of| (of.at.session, of.at.tree) == (at.session, at.tree) && of.at.path == path)
    }

    /// The client lists a directory.
    fn visit(&mut self, at: &DirectoryPath) {
        let Some((parent, name)) = parent_of(&at.path) else {
            return;
        };
        let order = self.order;
        let Some(directory) = self.find(at, parent) else {
            return;
        };
        let is_next = |order: &WalkOrder| directory.first(*order) == Some(name);
        let flags = [false, true];
        let every = flags.map(|is_backward| {
            flags.map(|is_sorted| WalkOrder {
                is_sorted,
                is_backward,
            })
        });
        let mut orders = std::iter::once(order).chain(every.into_iter().flatten());
        let found = orders.find(is_next);
        let mut children = directory.children.iter_mut();
        let Some((_, is_done)) = children.find(|(child, _)| child == name) else {
            return;
        };
        *is_done = true;
        self.order = found.unwrap_or(order);
        if !std::mem::replace(&mut self.is_wanted, true) {
            self.window = LISTING_OFFERS_FIRST;
        }
    }

    /// A directory is opened, to be listed from its beginning.
    fn begin(&mut self, file: FileId, at: DirectoryPath) {
        if self.paths.len() >= OPENS_MAX {
            return;
        }
        self.walked.retain(|other| other.at != at);
        if self.walked.len() >= WALKED_DIRECTORIES_MAX {
            self.walked.pop_front();
        }
        self.walked.push_back(WalkedDirectory {
            at: at.clone(),
            children: Vec::new(),
            bytes: 0,
        });
        self.paths.insert(file, at);
    }

    /// The client's compound could not be answered with a directory that may be served.
    pub(super) fn not_opened(&mut self, message_id: u64) {
        self.opening.remove(&message_id);
    }

    /// It opened this directory.
    pub(super) fn opened(&mut self, message_id: u64, file: FileId) {
        if let Some(at) = self.opening.remove(&message_id) {
            self.begin(file, at);
        }
    }

    /// Returns true if the names in a directory are to be remembered.
    pub(super) fn follows(&self, file: FileId) -> bool {
        self.paths.contains_key(&file)
    }

    /// Records entries of a directory.
    pub(super) fn learn(&mut self, file: FileId, class: u8, entries: &[u8]) {
        let Some(at) = self.paths.get(&file) else {
            return;
        };
        let mut walked = self.walked.iter_mut();
        let Some(directory) = walked.find(|of| of.at == *at) else {
            return;
        };
        for name in subdirectories_of(class, entries) {
            let is_room = directory.children.len() < WALKED_NAMES_MAX
                && directory.bytes + name.len() <= WALKED_NAMES_KEPT;
            if is_room {
                directory.bytes += name.len();
                directory.children.push((name.to_vec(), false));
            }
        }
    }

    /// The directories that a client lists behind this one, as many as there is room for: those in it,
    /// or else those that are left beside it, beside the one above it, and so on.
    fn next(&mut self, at: &DirectoryPath, room: usize) -> VecDeque<DirectoryPath> {
        let order = self.order;
        let mut found = VecDeque::new();
        let mut path = &at.path[..];
        loop {
            if let Some(directory) = self.find(at, path) {
                for name in directory.next(order, room - found.len()) {
                    let joined = match path.is_empty() {
                        true => name.to_vec(),
                        false => [path, &BACKSLASH, name].concat(),
                    };
                    found.push_back(DirectoryPath {
                        path: joined,
                        ..*at
                    });
                }
            }
            // What is in the directory comes before all else, and what is in that is not known.
            let is_within = path.len() == at.path.len() && !found.is_empty();
            match parent_of(path).filter(|_| !is_within && found.len() < room) {
                Some((parent, _)) => path = parent,
                None => return found,
            }
        }
    }

    /// Returns true if an open was made here and no client has it yet.
    pub(super) fn is_offered(&self, file: FileId) -> bool {
        self.offers.contains_key(&file)
    }

    pub(super) fn has_offers(&self) -> bool {
        !self.offers.is_empty()
    }

    /// Returns true if a request of the client waits here.
    pub(super) fn holds_requests(&self) -> bool {
        let all = self.asked.values().chain(self.offers.values());
        all.into_iter().any(|child| child.waiting.is_some())
    }

    /// Bytes that wait or are remembered.
    pub(super) fn bytes(&self) -> usize {
        let all = self.asked.values().chain(self.offers.values());
        let waiting = all.filter_map(|child| child.waiting.as_ref());
        let names = self.walked.iter().map(|directory| directory.bytes);
        waiting.map(GatheredMessage::bytes).sum::<usize>() + names.sum::<usize>()
    }

    /// An open is forgotten.
    pub(super) fn forget(&mut self, file: FileId) -> Option<GatheredMessage> {
        self.paths.remove(&file);
        self.offers.remove(&file)?.waiting
    }

    /// The open or outstanding CREATE that answers a client's compound.
    fn find_child(&mut self, header: &Smb2Header, request: &[u8]) -> Option<&mut ChildOpen> {
        let mut all = self.asked.values_mut().chain(self.offers.values_mut());
        all.find(|child| {
            child.waiting.is_none()
                && (child.header.session, child.header.tree) == (header.session, header.tree)
                && child.header.guard() == header.guard()
                && child.request == request
        })
    }
}

/// The frame as one that opens and lists a directory.
fn listing_frame(message: &GatheredMessage) -> Option<ListingFrame> {
    let mut heads = message.heads();
    let mut frame = ListingFrame::begin(heads.next()?)?;
    let (_, create) = message.messages().next()?;
    frame.extend(create.get(header::LENGTH + frame.known()..)?);
    let is_one = heads.all(|head| frame.add(head));
    (is_one && frame.query().is_some()).then_some(frame)
}

impl Smb2FarHalf {
    /// Keeps a compound of the client's that a directory opened ahead may answer; gives others back.
    pub(super) fn hold_listing(
        &mut self,
        now: Time,
        message: GatheredMessage,
    ) -> Option<GatheredMessage> {
        let is_idle = self.children.asked.is_empty() && self.children.offers.is_empty();
        if is_idle || self.state != FarState::Engaged {
            return Some(message);
        }
        if let Some(frame) = listing_frame(&message)
            && let Some(request) = frame.request()
            && let Some(child) = self.children.find_child(&frame.header, &request)
        {
            child.waiting = Some(message);
            child.waits_since = now;
            return None;
        }
        Some(message)
    }

    /// The client's compound of a CREATE and requests for names goes to the server.
    pub(super) fn note_walk(&mut self, message: &GatheredMessage, length: u32) {
        if !self.near_takes_listing_offers {
            return;
        }
        let Some(frame) = listing_frame(message) else {
            return;
        };
        let header = frame.header;
        let (Some(create), Some((_, request))) = (frame.request(), frame.query()) else {
            return;
        };
        let query = DirectoryQuery::of(request, self.least_length());
        let model = query.map(|query| ListingModel {
            header,
            create: create.clone(),
            query,
            length,
        });
        self.children.model = model.filter(|model| self.may_list_alike(model));
        let Some(name) = name_of(&create) else {
            return;
        };
        let at = DirectoryPath {
            session: header.session,
            tree: header.tree,
            path: name.to_vec(),
        };
        self.children.visit(&at);
        if self.children.opening.len() < OPENS_MAX {
            self.children.opening.insert(header.message_id, at);
        }
    }

    /// Returns true if a request opens a directory to read it, in a way that changes nothing and refuses
    /// nobody.
    fn may_list_alike(&self, model: &ListingModel) -> bool {
        let whole = [&[0; header::LENGTH][..], &model.create].concat();
        let Ok(request) = CreateRequest::parse(&whole) else {
            return false;
        };
        let header = &model.header;
        let is_keyed = self.sessions.is_keyed(header.session);
        request.only_reads()
            && u32_at(&model.create, SHARE_AT) == Ok(SHARES_ALL)
            && self.may_answer(header)
            && self.connection.serves_listing(header, &request, is_keyed)
    }

    /// All names of a directory are known, which the client has or gets: lists those that follow.
    pub(super) fn list_children(&mut self, file: FileId) {
        let children = &mut self.children;
        if children.is_offered(file) || !children.is_wanted || children.model.is_none() {
            return;
        }
        if let Some(at) = children.paths.get(&file).cloned() {
            children.wanted = children.next(&at, children.window);
            children.wanted_since = None;
        }
    }

    /// Opens the directories that the client will probably list next.
    pub(super) fn open_children(&mut self, now: Time) {
        if self.children.wanted.is_empty() {
            return;
        }
        let since = *self.children.wanted_since.get_or_insert(now);
        if now.since(since) >= LISTING_WAITS {
            // By now, the client has stopped, or lists them by itself.
            return self.children.wanted.clear();
        }
        // What a client asked for before must be in what it is shown.
        let is_changing = self.outstanding.values().any(|of| of.changes_names);
        let is_quiet = self.queue.is_empty()
            && self.lists_waiting == 0
            && !self.opens_ahead.holds_requests()
            && self.client_finish == StreamFinish::Open;
        if is_changing || !is_quiet {
            return;
        }
        while let Some(directory) = self.children.wanted.pop_front() {
            self.open_child(now, directory);
        }
    }

    fn open_child(&mut self, now: Time, directory: DirectoryPath) {
        let children = &self.children;
        let unused = children.asked.len() + children.offers.len();
        let bytes = children.offers.keys().filter_map(|file| {
            let listing = self.opens.get(file)?.listing.as_ref();
            listing.map(OpenListing::ahead)
        });
        let listings = self.opens.values().filter_map(|open| open.listing.as_ref());
        let is_room = unused < children.window.min(LISTING_OFFERS_MAX)
            && bytes.sum::<usize>() < LISTING_OFFERS_BYTES
            && listings.map(OpenListing::ahead).sum::<usize>() < LISTINGS_AHEAD
            && self.opens.len() < OPENS_MAX
            && self.ids.can_take(1);
        let Some(model) = children.model.clone().filter(|_| is_room) else {
            return;
        };
        let mut all = children.asked.values().chain(children.offers.values());
        let is_its =
            (model.header.session, model.header.tree) == (directory.session, directory.tree);
        if !is_its || all.any(|child| child.directory == directory) {
            return;
        }
        let Some(request) = plain_create_of(&model.create, &directory.path) else {
            return;
        };
        if !self.may_list_alike(&model) || plain_create(&request).as_ref() != Some(&request) {
            return;
        }
        let header = Smb2Header::alike(command::CREATE, &model.header);
        let mut ours = request.clone();
        ours[OPTIONS_AT] |= DIRECTORY_FILE;
        let number = self.children.next_number;
        self.children.next_number += 1;
        self.send_own(header, &ours, RequestPurpose::OpensChild(number));
        let child = ChildOpen {
            header,
            request,
            directory,
            model,
            position: self.position,
            at: now,
            waiting: None,
            waits_since: now,
            is_retiring: false,
        };
        self.children.asked.insert(number, child);
    }

    /// The server has opened a directory ahead of the client, or not.
    pub(super) fn opened_child(
        &mut self,
        head: &Smb2MessageHead,
        rest: &[(SegmentKind, Bytes)],
        number: u64,
    ) {
        let Some(mut child) = self.children.asked.remove(&number) else {
            return;
        };
        if head.header.status != status::SUCCESS {
            return self.requeue(child.waiting);
        }
        let Ok(answer) = CreateResponse::parse(head.body()) else {
            return self.stop(ReasonCode::VIOLATION);
        };
        let (file, session, tree) = (answer.file, child.header.session, child.header.tree);
        let guard = child.header.guard();
        let mut message = head.message().to_vec();
        rest.iter()
            .for_each(|(_, bytes)| message.extend_from_slice(bytes));
        let length = CreateResponse::length_with_id_on_disk(&message);
        let length = length.filter(|length| message.len() <= length + ANSWER_PADDING);
        let is_served = answer.is_directory()
            && child.position >= self.children.dropped_at
            && self.client_finish == StreamFinish::Open
            && !self.may_have_channels(session);
        let Some(length) = length.filter(|_| is_served) else {
            let mut open = TrackedOpen::new(session, tree, false);
            open.guard = guard;
            self.keep_open(file, open);
            self.discard(file);
            return self.requeue(child.waiting.take());
        };
        let listing = OpenListing::offered(child.model.query, child.model.length);
        self.serve_bare(file, (session, tree), guard, Some(listing), false);
        self.tell_near(HalfFrame::ListingOffer {
            file,
            position: child.position,
            request: Bytes::copy_from_slice(&child.request),
            answer: Bytes::copy_from_slice(&message[header::LENGTH..length]),
        });
        self.children.begin(file, child.directory.clone());
        self.children.offers.insert(file, child);
    }

    fn requeue(&mut self, waiting: Option<GatheredMessage>) {
        if let Some(message) = waiting {
            self.enqueue(message);
        }
    }

    /// The near half has given the client a directory that was opened ahead, with its first names: from
    /// here on it is one like any other.
    pub(super) fn took_child(&mut self, file: FileId) {
        let Some(child) = self.children.offers.remove(&file) else {
            return;
        };
        let listing = self.opens.get_mut(&file);
        let listing = listing.and_then(|open| open.listing.as_mut());
        let (Some(listing), true) = (listing, child.waiting.is_some()) else {
            return self.stop(ReasonCode::VIOLATION);
        };
        if listing.state != ListingPhase::Fresh || listing.sent.pop_front().is_none() {
            return self.stop(ReasonCode::VIOLATION);
        }
        listing.state = ListingPhase::Going;
        listing.is_moved = false;
        listing.is_offered = false;
        let is_complete = listing.is_complete;
        self.children.window = (self.children.window + 1).min(LISTING_OFFERS_MAX);
        self.children.visit(&child.directory);
        if is_complete {
            self.list_children(file);
        }
    }

    /// The near half has not given this directory, and will not.
    pub(super) fn child_not_taken(&mut self, file: FileId) {
        let Some(child) = self.children.offers.remove(&file) else {
            return;
        };
        self.children.window = (self.children.window - 1).max(1);
        // A client that goes on lists another one by itself.
        self.children.is_wanted &= child.waiting.is_some();
        self.discard(file);
        self.requeue(child.waiting);
    }

    /// Names of a directory that was opened ahead have come, or will not.
    pub(super) fn child_listed(&mut self, file: FileId) {
        let listing = self.opens.get(&file).and_then(|open| open.listing.as_ref());
        if listing.is_none_or(|listing| listing.sent.is_empty() && !listing.is_under_way) {
            self.retire_child(file);
        }
    }

    fn retire_child(&mut self, file: FileId) {
        let child = self.children.offers.get_mut(&file);
        if child.is_some_and(|child| !std::mem::replace(&mut child.is_retiring, true)) {
            self.tell_near(HalfFrame::Revoke { file });
        }
    }

    /// The time at which an offer ends that the near half has said nothing about.
    fn child_ends_at(&self, file: FileId, child: &ChildOpen) -> Time {
        let ends_at = child.at + LEASED_OFFER_LASTS;
        match child.waiting {
            Some(_) if !self.has_names(file) => ends_at.min(child.waits_since + LISTING_WAITS),
            Some(_) | None => ends_at,
        }
    }

    /// Returns true if names of a directory that was opened ahead were sent to the near half, or were requested.
    fn has_names(&self, file: FileId) -> bool {
        let listing = self.opens.get(&file).and_then(|open| open.listing.as_ref());
        listing.is_some_and(OpenListing::is_ahead)
    }

    /// The time at which the next offer is too old.
    pub(super) fn next_child_overdue(&self) -> Option<Time> {
        let offers = self.children.offers.iter();
        let offers = offers.filter(|(_, child)| !child.is_retiring);
        offers
            .map(|(file, child)| self.child_ends_at(*file, child))
            .min()
    }

    /// Ends offers that the near half has said nothing about. Without names it cannot give one, so its word is not
    /// needed.
    pub(super) fn retire_old_children(&mut self, now: Time) {
        let offers = self.children.offers.iter();
        let old = offers.filter(|(file, child)| self.child_ends_at(**file, child) <= now);
        let old: Vec<FileId> = old.map(|(file, _)| *file).collect();
        for file in old {
            self.retire_child(file);
            if !self.has_names(file) {
                self.child_not_taken(file);
            }
        }
    }

    /// A frame of the client's has come that ends all offers by the near half's rule: it gives those no more that no
    /// request waits for.
    pub(super) fn give_up_children(&mut self) {
        self.children.dropped_at = self.position;
        self.children.wanted.clear();
        let offers: Vec<FileId> = self.children.offers.keys().copied().collect();
        for file in offers {
            self.retire_child(file);
            if self.children.offers[&file].waiting.is_none() {
                self.child_not_taken(file);
            }
        }
    }

    /// The client's stream has ended: the near half says nothing more.
    pub(super) fn forgo_children(&mut self) {
        self.children.wanted.clear();
        let children = &mut self.children;
        let offers = std::mem::take(&mut children.offers);
        let waiting: Vec<GatheredMessage> = children
            .asked
            .values_mut()
            .filter_map(|child| child.waiting.take())
            .collect();
        for (file, child) in offers {
            self.discard(file);
            self.requeue(child.waiting);
        }
        for message in waiting {
            self.enqueue(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_names_are_the_first_of_the_sorted_ones() {
        let names = ["b", "\u{1f600}", "a", "\u{e000}", "ab", "c", "\u{fffd}"];
        let bytes = |name: &str| -> Vec<u8> {
            let units = name.encode_utf16();
            units.flat_map(u16::to_le_bytes).collect()
        };
        let mut directory = WalkedDirectory {
            at: DirectoryPath {
                session: 1,
                tree: 1,
                path: Vec::new(),
            },
            children: names.iter().map(|name| (bytes(name), false)).collect(),
            bytes: 0,
        };
        directory.children[5].1 = true;
        let sorted = ["a", "ab", "b", "\u{1f600}", "\u{e000}", "\u{fffd}"];
        let listed = ["b", "\u{1f600}", "a", "\u{e000}", "ab", "\u{fffd}"];
        for (is_sorted, wanted) in [(true, sorted), (false, listed)] {
            for is_backward in [false, true] {
                let order = WalkOrder {
                    is_sorted,
                    is_backward,
                };
                let mut wanted: Vec<Vec<u8>> = wanted.iter().map(|name| bytes(name)).collect();
                if is_backward {
                    wanted.reverse();
                }
                assert_eq!(directory.first(order), Some(&wanted[0][..]), "{order:?}");
                for most in [0, 1, 3, 9] {
                    let next = directory.next(order, most);
                    assert_eq!(next, wanted[..most.min(6)], "{order:?}");
                }
            }
        }
    }

    #[test]
    fn few_enough_names_are_remembered() {
        let mut children = ChildListings::default();
        let file = FileId([1; 16]);
        let at = DirectoryPath {
            session: 1,
            tree: 1,
            path: Vec::new(),
        };
        children.begin(file, at);
        let mut entries = Vec::new();
        for unit in 1..=2 * WALKED_NAMES_MAX as u16 {
            let start = entries.len();
            entries.resize(start + 88, 0);
            entries[start] = 88;
            entries[start + 56] = 0x10;
            entries[start + 60] = 2;
            entries[start + 80..start + 82].copy_from_slice(&(0x100 + unit).to_le_bytes());
        }
        children.learn(file, 38, &entries);
        assert_eq!(children.walked[0].children.len(), WALKED_NAMES_MAX);
    }
}
