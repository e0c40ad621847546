//! Directories that the far half has opened and listed ahead of the client, and the compounds that they
//! answer (docs/decisions/0090).
//!
//! ```text
//!  client   CREATE + QUERY_DIRECTORY ──► passes to the far half, which keeps it
//!           ◄── both answers, if the directory's first names arrived at most 20 ms before ── Took
//!               otherwise the server answers ────────────────────────────────────────────── Revoked
//! ```
//! A client that goes through a tree closes and opens directories all the time. These requests change no
//! names, so they leave the listings as they are; any other request of the client's ends those that the
//! far half began before it ([`Smb2NearHalf::names_stay`]).

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use vocab::Time;

use super::Smb2NearHalf;
use super::requests::is_paid;
use crate::ReasonCode;
use crate::smb::config::{LISTING_OFFERS_MAX, LISTING_WAITS};
use crate::smb::frames::{HalfFrame, LISTING_OFFERS};
use crate::smb::keys::SignatureMac;
use crate::smb::listing::{ListingFrame, may_change_names, only_opens};
use crate::smb::wire::FileId;
use crate::smb::wire::create::CreateResponse;
use crate::smb::wire::directory::{QueryDirectoryRequest, answer_body};
use crate::smb::wire::header::{MessageProtection, Smb2Header, command, flag, status};
use crate::smb::wire::split::Smb2MessageHead;
use crate::smb::wire::target::RequestEffect;

/// The compounds that have passed unanswered, and that a later offer may answer; and those whose opens are
/// not known yet. More than a client sends within the server's time for an open.
const PASSED_MAX: usize = 64;

/// A directory that was opened ahead.
#[derive(Debug)]
struct OfferedListing {
    /// The client's frames that had arrived at the far half before it.
    position: u64,
    request: Bytes,
    answer: Bytes,
    /// The arrival of its first names.
    at: Option<Time>,
}

/// A compound of the client's.
#[derive(Debug)]
struct PassedCompound {
    position: u64,
    header: Smb2Header,
    request: Vec<u8>,
    query: (Smb2Header, QueryDirectoryRequest),
}

/// A compound that is passing, and the signature of its present message.
#[derive(Debug)]
pub(super) struct PassingCompound {
    frame: ListingFrame,
    mac: Option<SignatureMac>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct ListingOffers {
    passing: Option<PassingCompound>,
    offers: HashMap<FileId, OfferedListing>,
    passed: VecDeque<PassedCompound>,
    /// The last compound that was dropped from them, by its frame.
    dropped_at: u64,
    /// The frames of compounds whose opens are not known, by the id of the CREATE.
    opening: VecDeque<(u64, u64)>,
    /// The client's last frame that may have changed the entries of directories, other than by a request
    /// that is known to keep them.
    changed_at: u64,
}

impl ListingOffers {
    pub(super) fn holds(&self, file: FileId) -> bool {
        self.offers.contains_key(&file)
    }

    /// Keeps the offers of these opens.
    pub(super) fn retain(&mut self, is_kept: impl Fn(FileId) -> bool) {
        self.offers.retain(|file, _| is_kept(*file));
    }

    /// Takes an offer back; whether it was there.
    pub(super) fn remove(&mut self, file: FileId) -> bool {
        self.offers.remove(&file).is_some()
    }

    /// A frame with unknown content passes.
    pub(super) fn passed_unread(&mut self, position: u64) {
        self.changed_at = position;
        self.passing = None;
    }

    /// The time at which the next offer is too old.
    pub(super) fn next_overdue(&self) -> Option<Time> {
        let arrived = self.offers.values().filter_map(|offer| offer.at);
        arrived.min().map(|at| at + LISTING_WAITS)
    }

    /// More of the message that is passing.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        if let Some(passing) = &mut self.passing {
            passing.frame.extend(bytes);
            if let Some(mac) = &mut passing.mac {
                mac.update(bytes);
            }
        }
    }
}

impl PassingCompound {
    /// Ends the message that is passing; false if its signature is not its session's.
    fn verify(&mut self) -> bool {
        let is_signed = self.frame.header.guard() == MessageProtection::Signed;
        let mac = self.mac.take();
        !is_signed || mac.and_then(SignatureMac::verify).is_some()
    }
}

impl Smb2NearHalf {
    /// A message of the client's begins to pass: perhaps one of a compound that lists a directory, perhaps
    /// one that changes names.
    pub(super) fn note_listing(&mut self, head: &Smb2MessageHead, touch: RequestEffect) {
        if !self.names_stay(head, touch) {
            self.children.changed_at = self.position + 1;
        }
        let passing = self.children.passing.take();
        if self.far_version < LISTING_OFFERS {
            return;
        }
        let frame = match head.start {
            0 => passing.and_then(|mut passing| {
                (passing.verify() && passing.frame.add(head)).then_some(passing.frame)
            }),
            _ => ListingFrame::begin(head),
        };
        self.children.passing = frame.map(|frame| {
            let is_signed = head.header.guard() == MessageProtection::Signed;
            let key = self.keys.get(&frame.header.session);
            let key = key.filter(|_| is_signed);
            PassingCompound {
                mac: key.map(|key| key.begin(head.message())),
                frame,
            }
        });
    }

    /// Returns true if a request is known to change no entries of directories: it opens what exists, or
    /// closes an open that was made after the last change. What was opened then was not to be deleted, and
    /// nothing has marked it since.
    fn names_stay(&self, head: &Smb2MessageHead, touch: RequestEffect) -> bool {
        match (head.header.command, touch) {
            (command::CREATE, _) => only_opens(head.body()),
            // Of a CREATE in the same frame.
            (command::CLOSE, RequestEffect::Closes(FileId::RELATED)) => {
                head.header.has(flag::RELATED)
            }
            (command::CLOSE, RequestEffect::Closes(file)) => {
                let opened_at = self.opens.get(&file).and_then(|open| open.opened_at);
                opened_at.is_some_and(|at| at > self.children.changed_at)
            }
            _ => !may_change_names(&head.header),
        }
    }

    /// A frame of the client's has passed.
    pub(super) fn listing_passed(&mut self, now: Time) {
        let Some(mut passing) = self.children.passing.take() else {
            return;
        };
        let is_valid = passing.verify();
        let frame = passing.frame;
        let (true, Some(query), Some(request)) = (is_valid, frame.query(), frame.request()) else {
            return;
        };
        let children = &mut self.children;
        if children.opening.len() == PASSED_MAX {
            children.opening.pop_front();
        }
        let opening = (frame.header.message_id, self.position);
        children.opening.push_back(opening);
        if children.passed.len() == PASSED_MAX
            && let Some(dropped) = children.passed.pop_front()
        {
            children.dropped_at = dropped.position;
        }
        children.passed.push_back(PassedCompound {
            position: self.position,
            header: frame.header,
            request,
            query: query.clone(),
        });
        let arrived = children.offers.iter();
        let arrived = arrived.filter(|(_, offer)| offer.at.is_some());
        let arrived: Vec<FileId> = arrived.map(|(file, _)| *file).collect();
        for file in arrived {
            self.judge_offer(now, file);
        }
    }

    /// The server's answer to a CREATE passes: that of a compound names its open.
    pub(super) fn note_listing_opened(&mut self, head: &Smb2MessageHead) {
        let opening = &mut self.children.opening;
        let id = head.header.message_id;
        let Some(index) = opening.iter().position(|(of, _)| *of == id) else {
            return;
        };
        let position = opening.remove(index).map(|(_, position)| position);
        if head.header.status == status::SUCCESS
            && let Ok(answer) = CreateResponse::parse(head.body())
            && let Some(open) = self.opens.get_mut(&answer.file)
        {
            open.opened_at = position;
        }
    }

    /// Stores a directory that was opened ahead; its names follow.
    pub(super) fn listing_offered(
        &mut self,
        file: FileId,
        position: u64,
        request: Bytes,
        answer: Bytes,
    ) {
        let offers = &mut self.children.offers;
        if offers.len() > 2 * LISTING_OFFERS_MAX || !self.opens.contains_key(&file) {
            return self.close(ReasonCode::VIOLATION);
        }
        offers.insert(
            file,
            OfferedListing {
                position,
                request,
                answer,
                at: None,
            },
        );
    }

    /// Names of a directory have arrived.
    pub(super) fn offered_names_arrived(&mut self, now: Time, file: FileId) {
        if let Some(offer) = self.children.offers.get_mut(&file) {
            offer.at.get_or_insert(now);
            self.judge_offer(now, file);
        }
    }

    /// Refuses the offers that have waited too long.
    pub(super) fn refuse_old_listings(&mut self, now: Time) {
        let offers = self.children.offers.iter();
        let is_old = |offer: &OfferedListing| {
            let at = offer.at;
            at.is_some_and(|at| now.since(at) >= LISTING_WAITS)
        };
        let old = offers.filter(|(_, offer)| is_old(offer));
        let old: Vec<FileId> = old.map(|(file, _)| *file).collect();
        for file in old {
            self.refuse_listing(file);
        }
    }

    fn refuse_listing(&mut self, file: FileId) {
        self.children.offers.remove(&file);
        self.opens.remove(&file);
        self.tell_far(HalfFrame::Revoked { file });
    }

    /// Answers the compound that an offer is for, if one has passed, or gives the open back.
    fn judge_offer(&mut self, now: Time, file: FileId) {
        let Some(offer) = self.children.offers.get(&file) else {
            return;
        };
        let licence = self.opens.get(&file).map(|open| open.licence);
        let is_meant = |passed: &PassedCompound| {
            let header = &passed.header;
            passed.position > offer.position
                && passed.request == offer.request
                && licence.is_some_and(|of| {
                    (of.session, of.tree) == (header.session, header.tree)
                        && of.guard == header.guard()
                })
        };
        let Some(index) = self.children.passed.iter().position(is_meant) else {
            return;
        };
        let Some(passed) = self.children.passed.remove(index) else {
            return;
        };
        match self.answers_of(now, file, &passed) {
            Some(front) => {
                self.children.offers.remove(&file);
                let opening = &mut self.children.opening;
                opening.retain(|(id, _)| *id != passed.header.message_id);
                if let Some(open) = self.opens.get_mut(&file) {
                    open.opened_at = Some(passed.position);
                    open.listing.begin();
                }
                self.answered += 2;
                self.give_signed(&passed.header, front);
                self.tell_far(HalfFrame::Took { file });
            }
            None => self.refuse_listing(file),
        }
    }

    /// The answers to a compound in one frame, if an offer's may be given now.
    fn answers_of(&self, now: Time, file: FileId, passed: &PassedCompound) -> Option<Vec<u8>> {
        let children = &self.children;
        let offer = children.offers.get(&file)?;
        let (header, (query_header, query)) = (&passed.header, &passed.query);
        let is_young = offer.at.is_some_and(|at| now.since(at) <= LISTING_WAITS);
        let is_current =
            offer.position >= children.changed_at && offer.position >= children.dropped_at;
        let open = self.serves(now, file, header)?;
        let names = open.listing.first_names(query, self.least_length())?;
        let is_first = query_header.is_of_first_channel() && is_paid(query_header, query.length);
        if !is_young || !is_current || !is_first {
            return None;
        }
        let mut listed = answer_body(names.len() as u32).to_vec();
        listed.extend(names);
        Some(self.compound_frame([
            (*header, status::SUCCESS, offer.answer.to_vec()),
            (*query_header, status::SUCCESS, listed),
        ]))
    }
}
