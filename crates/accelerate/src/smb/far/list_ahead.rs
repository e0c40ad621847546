//! Lists a directory ahead of its client.
//!
//! A server keeps the position of an open's listing, and each request continues from there
//! ([MS-SMB2] §3.3.5.18, Receiving an SMB2 QUERY_DIRECTORY Request). So entries that our requests
//! receive are missing for the client: they are sent to the near half, in order, and answer the
//! client's next requests. Unwanted entries are no loss while the client has received none: its
//! first request is changed to reopen the listing. Later only a request that restarts can be passed
//! on; one that continues differently ends the flow. Until the server has confirmed a restart,
//! further requests wait: if it refuses, its position differs from the client's.
//!
//! Many clients open a directory and request its first names in one compound. The server answers
//! the compound, and the entries behind it are read ahead.

use bytes::Bytes;
use vocab::SegmentKind;

use super::listing::{ListingGuess, ListingPhase, ListingPosition, OpenListing};
use super::message::{GatheredMessage, SAME_SESSION, SAME_TREE};
use super::open::TrackedOpen;
use super::{RequestPurpose, Smb2FarHalf, StreamFinish};
use crate::ReasonCode;
use crate::smb::config::{AHEAD_CREDITS, LISTING_BLOCK, LISTINGS_AHEAD, NAMES_KEPT};
use crate::smb::frames::HalfFrame;
use crate::smb::listing::{DirectoryQuery, LEAST_LENGTH, OLD_LEAST_LENGTH};
use crate::smb::wire::directory::{FLAGS_AT, QueryDirectoryRequest, entries, flag};
use crate::smb::wire::header::{Smb2Header, command, status};
use crate::smb::wire::target::{CompoundChain, RequestEffect};
use crate::smb::wire::{FileId, u8_at};

impl Smb2FarHalf {
    pub(super) fn listing(&mut self, file: FileId) -> Option<&mut OpenListing> {
        self.opens.get_mut(&file)?.listing.as_mut()
    }

    /// The least length of a request for names that prefetched entries may answer: the near half
    /// applies the same.
    pub(super) fn least_length(&self) -> u32 {
        match self.near_takes_compounds {
            true => LEAST_LENGTH,
            false => OLD_LEAST_LENGTH,
        }
    }

    /// Takes a request for names that is, or will be, answered by prefetched entries; gives others
    /// back.
    pub(super) fn list_ahead(&mut self, message: GatheredMessage) -> Option<GatheredMessage> {
        if let Some((_, request)) = listed_request(&message)
            && let Some(open) = self.opens.get(&request.file)
            && let Some(listing) = open.listing.as_ref().filter(|listing| listing.is_closed)
        {
            // A CLOSE that failed has left the server's place where it was.
            let is_elsewhere = listing.is_ahead() || listing.is_moved || listing.is_lost;
            if !open.is_closing && (is_elsewhere || listing.beginning.is_some()) {
                self.stop(ReasonCode::UNSUPPORTED);
                return None;
            }
            return Some(message);
        }
        self.list_next(message)
    }

    /// The same for one whose turn it is.
    fn list_next(&mut self, mut message: GatheredMessage) -> Option<GatheredMessage> {
        let Some((header, request)) = listed_request(&message) else {
            return self.list_unseen(message);
        };
        let least_length = self.least_length();
        let Some(open) = self.opens.get_mut(&request.file) else {
            return Some(message);
        };
        let is_its = (open.session, open.tree) == (header.session, header.tree);
        let Some(listing) = open.listing.as_mut().filter(|_| is_its) else {
            return Some(message);
        };
        if header.guard() < open.guard {
            return self.list_unsigned(message, request.file);
        }
        let is_fresh = listing.state == ListingPhase::Fresh;
        // None overtakes one that waits.
        if listing.waiting.is_empty() && listing.is_next_for(&request, least_length) {
            listing.sent.pop_front();
            if is_fresh {
                listing.state = ListingPhase::Going;
                listing.is_moved = false;
                self.usual_listing.is_wanted = true;
            }
            self.tell_near(HalfFrame::Settled {
                message_id: header.message_id,
            });
            return None;
        }
        if listing.is_under_way || listing.beginning.is_some() {
            listing.waiting.push(message);
            self.lists_waiting += 1;
            return None;
        }
        let begins = request.flags & (flag::RESTART | flag::REOPEN) != 0;
        if listing.is_moved {
            let body = message.heads_mut().next()?.body_mut();
            body[FLAGS_AT] |= flag::REOPEN;
            listing.beginning = Some(ListingPosition::First);
        } else if listing.is_ahead() || listing.is_lost {
            if !begins {
                // Its place in the listing is where the server stands no more.
                self.stop(ReasonCode::UNSUPPORTED);
                return None;
            }
            listing.beginning = Some(ListingPosition::Amid);
        }
        listing.sent.clear();
        let is_first = begins || listing.is_moved || listing.state == ListingPhase::Off;
        if is_first {
            self.opens_ahead.begins(request.file);
        }
        listing.is_moved = false;
        listing.is_complete = false;
        listing.state = ListingPhase::Off;
        if let Some(query) = DirectoryQuery::of(&request, least_length) {
            listing.state = ListingPhase::Going;
            listing.query = query;
            listing.length = request.length.min(LISTING_BLOCK);
            if is_first {
                self.usual_listing = ListingGuess {
                    query,
                    length: listing.length,
                    is_wanted: true,
                };
            }
        }
        Some(message)
    }

    /// Handles an unsigned request on an open whose client signs: no other sender may take that
    /// client's entries, or move its position.
    fn list_unsigned(&mut self, message: GatheredMessage, file: FileId) -> Option<GatheredMessage> {
        let Some(listing) = self.listing(file) else {
            return Some(message);
        };
        let is_elsewhere = listing.is_ahead() || listing.is_moved || listing.is_lost;
        if is_elsewhere || listing.beginning.is_some() {
            self.stop(ReasonCode::FORGED);
            return None;
        }
        listing.state = ListingPhase::Off;
        Some(message)
    }

    /// Handles requests for names that are in a compound, or not understood: the server answers
    /// them, from the client's position.
    fn list_unseen(&mut self, mut message: GatheredMessage) -> Option<GatheredMessage> {
        let (mut chain, mut session, mut tree) = (CompoundChain::default(), 0, 0);
        let mut asked = Vec::new();
        for (index, head) in message.heads().enumerate() {
            let header = &head.header;
            let touch = chain.touch(header, head.body());
            // [MS-SMB2] §3.2.4.1.4 (Sending Compounded Requests).
            if header.session != SAME_SESSION {
                session = header.session;
            }
            if header.tree != SAME_TREE {
                tree = header.tree;
            }
            if header.command == command::QUERY_DIRECTORY
                && let Some(file) = touch.file()
            {
                let flags = u8_at(head.body(), FLAGS_AT).unwrap_or(0);
                let begins = flags & (flag::RESTART | flag::REOPEN) != 0;
                asked.push((index, file, (session, tree), header.guard(), begins));
            }
        }
        for (_, file, ..) in &asked {
            if let Some(listing) = self.listing(*file)
                && (listing.beginning.is_some()
                    || listing.is_under_way && (listing.is_moved || !listing.waiting.is_empty()))
            {
                listing.waiting.push(message);
                self.lists_waiting += 1;
                return None;
            }
        }
        let mut begun = Vec::new();
        for (index, file, whose, guard, begins) in asked {
            // It may be this very frame that closes it, behind its question.
            let is_last = self.ends(&message, |other, _| other == file);
            let Some(open) = self.opens.get_mut(&file) else {
                continue;
            };
            let is_asked = |listing: &&mut OpenListing| is_last || !listing.is_closed;
            let Some(listing) = open.listing.as_mut().filter(is_asked) else {
                continue;
            };
            if guard < open.guard {
                message = self.list_unsigned(message, file)?;
                continue;
            }
            // One of another session's the server refuses, and stays where it stands.
            let is_its = (open.session, open.tree) == whose;
            if listing.is_moved {
                if let Some(head) = message.heads_mut().nth(index).filter(|_| is_its) {
                    head.body_mut()[FLAGS_AT] |= flag::REOPEN;
                    listing.is_moved = false;
                    listing.beginning = Some(ListingPosition::First);
                }
            } else if listing.is_ahead() || listing.is_lost {
                if begins && is_its {
                    listing.beginning = Some(ListingPosition::Amid);
                } else if !begun.contains(&file) {
                    self.stop(ReasonCode::UNSUPPORTED);
                    return None;
                }
            }
            if begins && is_its {
                begun.push(file);
            }
            listing.state = ListingPhase::Off;
            listing.sent.clear();
        }
        Some(message)
    }

    /// Returns true if a frame ends an open while earlier requests for its names wait.
    pub(super) fn ends_listed(&self, message: &GatheredMessage) -> bool {
        self.lists_waiting > 0 && self.ends(message, |_, open| open.has_waiting_lists())
    }

    /// Returns true if a frame ends one of the selected opens.
    fn ends(
        &self,
        message: &GatheredMessage,
        is_meant: impl Fn(FileId, &TrackedOpen) -> bool,
    ) -> bool {
        let mut chain = CompoundChain::default();
        message.heads().any(|head| {
            let touch = chain.touch(&head.header, head.body());
            let (session, tree) = (head.header.session, head.header.tree);
            let mut opens = self.opens.iter();
            match touch {
                RequestEffect::Closes(file) => {
                    opens.any(|(other, open)| *other == file && is_meant(file, open))
                }
                RequestEffect::EndsTree => opens.any(|(file, open)| {
                    (open.session, open.tree) == (session, tree) && is_meant(*file, open)
                }),
                RequestEffect::EndsSession => {
                    opens.any(|(file, open)| open.session == session && is_meant(*file, open))
                }
                RequestEffect::Nothing
                | RequestEffect::Asks(_)
                | RequestEffect::Changes(_)
                | RequestEffect::Flushes(_)
                | RequestEffect::Anything => false,
            }
        })
    }

    /// Passes waiting requests for names of a closed open on: the server refuses them.
    pub(super) fn forget_lists(&mut self, file: FileId) {
        let Some(listing) = self.listing(file) else {
            return;
        };
        for message in std::mem::take(&mut listing.waiting) {
            self.lists_waiting -= 1;
            self.enqueue(message);
        }
    }

    /// The first entries that were read as this directory was opened are out of date.
    pub(super) fn forget_fresh(&mut self, file: FileId) {
        if let Some(listing) = self.listing(file)
            && listing.state == ListingPhase::Fresh
        {
            listing.state = ListingPhase::Off;
            listing.sent.clear();
        }
    }

    /// Sends queries for the names that clients will probably request.
    pub(super) fn list_all_ahead(&mut self) {
        if !self.queue.is_empty() || self.client_finish != StreamFinish::Open {
            return;
        }
        let wants_more = |listing: &OpenListing| listing.wants_more();
        let wanted: Vec<FileId> = self
            .opens
            .iter()
            .filter(|(_, open)| !open.is_closing && open.listing.as_ref().is_some_and(wants_more))
            .map(|(file, _)| *file)
            .collect();
        for file in wanted {
            let listings = self.opens.values().filter_map(|open| open.listing.as_ref());
            if listings.map(OpenListing::ahead).sum::<usize>() >= LISTINGS_AHEAD {
                return;
            }
            self.list_one_ahead(file);
        }
    }

    fn list_one_ahead(&mut self, file: FileId) {
        let is_large = self
            .connection
            .negotiated()
            .is_some_and(|agreed| agreed.is_large_mtu());
        // [MS-SMB2] §3.1.5.2 (Calculating the CreditCharge): one pays for a block.
        let charge = 1;
        let fits = self.ids.can_take(charge)
            && (self.ahead_credits == 0 || self.ahead_credits + charge <= AHEAD_CREDITS);
        // What a client asked for before must be in what it is shown.
        let is_changing = self
            .outstanding
            .values()
            .any(|request| request.changes_names);
        let Some(open) = self.opens.get_mut(&file).filter(|_| fits) else {
            return;
        };
        let Some(listing) = &mut open.listing else {
            return;
        };
        if listing.state == ListingPhase::Fresh && is_changing {
            return;
        }
        listing.is_under_way = true;
        listing.is_moved = listing.state == ListingPhase::Fresh;
        let request = QueryDirectoryRequest {
            class: listing.query.class,
            flags: 0,
            file,
            pattern: listing.query.pattern().to_vec(),
            length: listing.length,
        };
        let mut header = open.request(command::QUERY_DIRECTORY);
        header.credit_charge = if is_large { charge as u16 } else { 0 };
        header.credits = charge as u16;
        self.ahead_credits += charge;
        self.send_own(header, &request.emit(), RequestPurpose::ListsAhead(file));
    }

    /// More of the answer to a request of ours for names.
    pub(super) fn gather(&mut self, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
        // What was asked for, and room for the answer's fixed part and padding.
        if self.gathered.len() > LISTING_BLOCK as usize + 1_024 {
            self.stop(ReasonCode::VIOLATION);
        }
    }

    /// More of an answer to the client's own request for names.
    pub(super) fn gather_listing(&mut self, bytes: &[u8]) {
        if self.gathered.len() + bytes.len() <= NAMES_KEPT {
            self.gathered.extend_from_slice(bytes);
        }
    }

    /// Remembers the names that were gathered.
    pub(super) fn learn_names(&mut self, file: FileId) {
        if let Ok(found) = entries(&self.gathered)
            && let Some(open) = self.opens.get(&file)
            && let Some(listing) = open.listing.as_ref()
            && listing.state != ListingPhase::Off
        {
            let (whose, class) = ((open.session, open.tree), listing.query.class);
            self.children.learn(file, class, found);
            if self.staleness().is_some() && !listing.is_offered {
                self.opens_ahead.learn(file, whose, class, found);
            }
        }
    }

    /// The answer to a request of ours for names is complete.
    pub(super) fn listed(&mut self, file: FileId, answer: u32) {
        if answer == status::SUCCESS {
            self.learn_names(file);
        }
        let gathered = std::mem::take(&mut self.gathered);
        let least_length = self.least_length();
        let Some(listing) = self.listing(file) else {
            return;
        };
        listing.is_under_way = false;
        let waiting = std::mem::take(&mut listing.waiting);
        let found = match (answer, listing.state) {
            (status::SUCCESS, _) => match entries(&gathered) {
                Ok(found) if !found.is_empty() => Some(found),
                _ => return self.stop(ReasonCode::VIOLATION),
            },
            (status::NO_MORE_FILES, ListingPhase::Going) => Some(&[][..]),
            (status::NO_MORE_FILES, ListingPhase::Fresh) if !listing.sent.is_empty() => {
                Some(&[][..])
            }
            // Whatever it is, the client shall hear it from the server.
            _ => None,
        };
        match (listing.state, found) {
            (ListingPhase::Fresh | ListingPhase::Going, Some(found)) => {
                listing.is_complete = found.is_empty();
                listing.sent.push_back(found.len());
                // What the request that waits for it does not want would be taken there for the
                // beginning that the server answers it with.
                let is_wanted = waiting.first().is_none_or(|message| {
                    let asked = listed_request(message);
                    asked.is_some_and(|(_, request)| listing.is_next_for(&request, least_length))
                });
                if is_wanted {
                    self.send_listed(file, found);
                }
            }
            // What was sent still answers; behind it nothing is read ahead.
            (ListingPhase::Fresh | ListingPhase::Going, None) => listing.is_complete = true,
            (ListingPhase::Off, _) => {}
        }
        let is_complete = self
            .listing(file)
            .is_some_and(|listing| listing.is_complete);
        self.list_waiting(file, waiting);
        self.child_listed(file);
        if is_complete {
            self.list_children(file);
        }
    }

    /// Continues the requests that waited for the server to confirm or refuse a restart.
    pub(super) fn list_begun(&mut self, file: FileId) {
        let Some(listing) = self.listing(file) else {
            return;
        };
        // What is under way sees to them as it comes.
        if listing.beginning.is_none() && !listing.is_under_way {
            let waiting = std::mem::take(&mut listing.waiting);
            self.list_waiting(file, waiting);
        }
    }

    /// It is the turn of requests that have waited.
    fn list_waiting(&mut self, file: FileId, waiting: Vec<GatheredMessage>) {
        self.lists_waiting -= waiting.len();
        // They came before what ends their open, and that has waited for them.
        let ends = |message: &GatheredMessage| self.ends(message, |other, _| other == file);
        let end = self.queue.len();
        let mut at = match waiting.is_empty() {
            true => end,
            false => self.queue.iter().position(ends).unwrap_or(end),
        };
        for message in waiting {
            if self.state == super::FarState::Gone {
                return;
            }
            if let Some(message) = self.list_next(message) {
                self.queue_bytes += message.bytes();
                self.queue.insert(at, message);
                at += 1;
            }
        }
    }

    fn send_listed(&mut self, file: FileId, found: &[u8]) {
        let position = self.position;
        let Some(listing) = self.listing(file) else {
            return;
        };
        let frame = HalfFrame::Listed {
            file,
            position,
            query: listing.query,
            is_fresh: listing.state == ListingPhase::Fresh,
            length: found.len() as u32,
        };
        self.tell_near(frame);
        let kind = self.storable(SegmentKind::Payload, self.answer_sealed.is_some());
        self.send_client(kind, Bytes::copy_from_slice(found));
    }
}

/// A request for names alone in its frame.
fn listed_request(message: &GatheredMessage) -> Option<(Smb2Header, QueryDirectoryRequest)> {
    let head = message.single()?;
    if head.header.command != command::QUERY_DIRECTORY {
        return None;
    }
    let request = QueryDirectoryRequest::parse(head.body()).ok()?;
    Some((head.header, request))
}
