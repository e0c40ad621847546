//! Names that came ahead, and the requests that they answer.

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::Time;

use super::{PendingRequest, Smb2NearHalf};
use crate::ReasonCode;
use crate::smb::config::LISTING_WAITS;
use crate::smb::frames::{COMPOUNDS, HalfFrame};
use crate::smb::listing::{DirectoryQuery, LEAST_LENGTH, OLD_LEAST_LENGTH};
use crate::smb::wire::FileId;
use crate::smb::wire::directory::{QueryDirectoryRequest, answer_body};
use crate::smb::wire::frame::frame_header;
use crate::smb::wire::header::{self, Smb2Header, status};

/// One prefetched answer.
#[derive(Debug)]
struct PrefetchedAnswer {
    query: DirectoryQuery,
    is_fresh: bool,
    pieces: Vec<Bytes>,
    length: usize,
    at: Time,
}

/// Those of one open, and requests that are not answered.
#[derive(Debug, Default)]
pub(super) struct PrefetchedListing {
    answers: VecDeque<PrefetchedAnswer>,
    waiting: VecDeque<UnansweredQuery>,
    /// The client has received the first entries that came with the open, and continues.
    is_begun: bool,
    /// The client has closed it: its later requests are the server's to answer.
    pub(super) is_closed: bool,
    /// Answers from before this frame of the client's are dropped.
    dropped_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct UnansweredQuery {
    message_id: u64,
    /// The position of its frame: data that is read behind it arrives with this position or a later
    /// one.
    position: u64,
    /// No prefetched entry answers it, and no earlier one answers a request behind it.
    is_unseen: bool,
    /// The client's last frame before it that may have changed the entries of directories.
    names_changed_at: u64,
}

impl PrefetchedListing {
    /// Bytes kept.
    pub(super) fn bytes(&self) -> usize {
        self.answers.iter().map(|answer| answer.length).sum()
    }

    /// The first names, if they answer a request that came with the open.
    pub(super) fn first_names(
        &self,
        request: &QueryDirectoryRequest,
        least_length: u32,
    ) -> Option<Vec<u8>> {
        let first = self.answers.front().filter(|first| {
            let query = &first.query;
            !self.is_begun
                && first.is_fresh
                && first.length > 0
                && query.answers(request, true, first.length, least_length)
        })?;
        Some(first.pieces.concat())
    }

    /// The client has received them with the open.
    pub(super) fn begin(&mut self) {
        self.answers.pop_front();
        self.is_begun = true;
    }

    /// Drops the entries that came with the open, if the client has received none of them.
    fn forget_fresh(&mut self) {
        if !self.is_begun {
            self.answers.retain(|answer| !answer.is_fresh);
        }
    }

    /// Drops all answers from before this frame of the client's.
    fn drop_answers(&mut self, at: u64) {
        self.answers.clear();
        self.is_begun = false;
        self.dropped_at = at;
    }
}

/// A block of names that is coming in.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingListing {
    pub(super) file: FileId,
    pub(super) position: u64,
    pub(super) query: DirectoryQuery,
    pub(super) is_fresh: bool,
}

impl Smb2NearHalf {
    /// Stores a prefetched answer.
    pub(super) fn listed(&mut self, now: Time, coming: IncomingListing, pieces: Vec<Bytes>) {
        let names_changed_at = self.names_changed_at;
        let is_offered = self.children.holds(coming.file);
        let Some(open) = self.opens.get_mut(&coming.file) else {
            return;
        };
        let listing = &mut open.listing;
        let pending = &self.pending;
        listing
            .waiting
            .retain(|waiting| pending.contains_key(&waiting.message_id));
        // The client has asked for a change before it asks for names, and must see it in them; the
        // far half drops them, too.
        let changed_at = listing
            .waiting
            .front()
            .map_or(names_changed_at, |waiting| waiting.names_changed_at);
        let is_stale = coming.is_fresh && !listing.is_begun && coming.position < changed_at;
        // What was opened ahead is judged as a whole once it is used.
        if is_stale && !is_offered || coming.position < listing.dropped_at {
            return;
        }
        let length = pieces.iter().map(Bytes::len).sum();
        open.listing.answers.push_back(PrefetchedAnswer {
            query: coming.query,
            is_fresh: coming.is_fresh,
            pieces,
            length,
            at: now,
        });
        if is_offered {
            return self.offered_names_arrived(now, coming.file);
        }
        if coming.is_fresh && !open.listing.is_begun {
            self.fresh_listings.push(coming.file);
        }
        self.answer_waiting_lists(coming.file);
    }

    /// Drops first entries that have waited too long, and tells the far half.
    pub(super) fn forget_old_listings(&mut self, now: Time) {
        let mut files = std::mem::take(&mut self.fresh_listings);
        let position = self.position;
        files.retain(|file| {
            let Some(open) = self.opens.get_mut(file) else {
                return false;
            };
            let front = open.listing.answers.front();
            let Some(answer) = front.filter(|answer| answer.is_fresh) else {
                return false;
            };
            if open.listing.is_begun {
                return false;
            }
            if now.since(answer.at) <= LISTING_WAITS {
                return true;
            }
            open.listing.drop_answers(position + 1);
            self.tell_far(HalfFrame::Forgot { file: *file });
            false
        });
        self.fresh_listings = files;
    }

    /// Handles a client's request that may change the entries of directories.
    pub(super) fn names_may_change(&mut self, at: u64) {
        self.names_changed_at = at;
        for file in std::mem::take(&mut self.fresh_listings) {
            if let Some(open) = self.opens.get_mut(&file) {
                open.listing.forget_fresh();
            }
        }
    }

    /// A request for names that is the server's passes, in the frame with this number.
    pub(super) fn lists_unseen(&mut self, message_id: u64, file: FileId, position: u64) {
        let names_changed_at = self.names_changed_at;
        if let Some(open) = self.opens.get_mut(&file) {
            open.listing.waiting.push_back(UnansweredQuery {
                message_id,
                position,
                is_unseen: true,
                names_changed_at,
            });
            self.answer_waiting_lists(file);
        }
    }

    /// A request for names has passed.
    pub(super) fn lists(&mut self, header: &Smb2Header, request: &QueryDirectoryRequest) {
        let names_changed_at = self.names_changed_at;
        let its = (header.session, header.tree);
        if let Some(open) = self.opens.get_mut(&request.file)
            && !open.listing.is_closed
            && (open.licence.session, open.licence.tree) == its
            && header.guard() >= open.licence.guard
        {
            open.listing.waiting.push_back(UnansweredQuery {
                message_id: header.message_id,
                position: self.position,
                is_unseen: false,
                names_changed_at,
            });
            self.answer_waiting_lists(request.file);
        }
    }

    /// Answers the requests for names of an open that are next.
    fn answer_waiting_lists(&mut self, file: FileId) {
        let least_length = self.least_length();
        while let Some(open) = self.opens.get_mut(&file) {
            let Some(waiting) = open.listing.waiting.front().copied() else {
                return;
            };
            if waiting.is_unseen {
                open.listing.drop_answers(waiting.position);
                open.listing.waiting.pop_front();
                continue;
            }
            let id = waiting.message_id;
            let Some(PendingRequest::Lists {
                header,
                request,
                is_answered: false,
                is_servers: false,
            }) = self.pending.get(&id).cloned()
            else {
                open.listing.waiting.pop_front();
                continue;
            };
            let is_fresh = !open.listing.is_begun;
            let Some(answer) = open.listing.answers.front() else {
                return;
            };
            let is_first = answer.is_fresh && is_fresh;
            let query = &answer.query;
            if !query.answers(&request, is_first, answer.length, least_length) {
                // It begins anew, or the far half ends the flow; what else was sent before it
                // arrived there is still under way, and no more is sent until the server answers.
                open.listing.drop_answers(waiting.position);
                return;
            }
            let (length, is_end) = (answer.length, answer.length == 0);
            let pieces = answer.pieces.clone();
            open.listing.is_begun |= answer.is_fresh;
            open.listing.answers.pop_front();
            open.listing.waiting.pop_front();
            if let Some(PendingRequest::Lists { is_answered, .. }) = self.pending.get_mut(&id) {
                *is_answered = true;
            }
            self.answered += 1;
            if is_end {
                let answer = header::error_answer(&header, status::NO_MORE_FILES);
                self.give(&header, answer, Vec::new());
                continue;
            }
            let body = answer_body(length as u32);
            let mut front = frame_header(header::LENGTH + body.len() + length).to_vec();
            front.extend(header.answer(status::SUCCESS).emit());
            front.extend(body);
            self.give(&header, front, pieces);
        }
    }

    /// The least length of a request for names that prefetched entries may answer: the far half
    /// applies the same.
    pub(super) fn least_length(&self) -> u32 {
        match self.far_version >= COMPOUNDS {
            true => LEAST_LENGTH,
            false => OLD_LEAST_LENGTH,
        }
    }

    /// Handles the far half's report that prefetched entries answer a request for names.
    pub(super) fn list_settled(&mut self, message_id: u64) {
        match self.pending.remove(&message_id) {
            Some(PendingRequest::Lists {
                is_answered: true, ..
            }) => {}
            // Both halves drop by the same rule, so it cannot be missing.
            _ => self.close(ReasonCode::VIOLATION),
        }
    }
}
