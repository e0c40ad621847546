//! Going through a directory ahead of its client.
//!
//! ```text
//!   Fresh ── its first request ───────────────────────────► Going
//!     └── any other, or a change ──► Off ── a first request ──┘
//! ```
//! A server keeps the place where an open's listing stands, and each request goes on from there
//! ([MS-SMB2] §3.3.5.18, Receiving an SMB2 QUERY_DIRECTORY Request). So requests of ours take from
//! the client what they are given: it is sent to the near half, in order, and answers the client's
//! next requests. Entries that the client does not want then are no loss while it has had none:
//! its first request is told to open the listing again. Later only a request that begins anew can
//! be passed on; one that goes on in another way ends the flow.

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::SegmentKind;

use super::message::Message;
use super::{Far, Finish, Purpose};
use crate::LetGoReason;
use crate::smb::config::{AHEAD_CREDITS, LISTING_AHEAD, LISTING_BLOCK, LISTING_FIRST};
use crate::smb::frames::Frame;
use crate::smb::listing::Query;
use crate::smb::wire::FileId;
use crate::smb::wire::directory::{FLAGS_AT, QueryDirectoryRequest, entries, flag};
use crate::smb::wire::header::{self, Header, command, status};
use crate::smb::wire::target::touch;

/// What is guessed of a directory that is opened to be listed: what the client asked for last.
#[derive(Debug)]
pub(crate) struct Usual {
    query: Query,
    /// Bytes that an answer may hold.
    length: u32,
    /// The last directory that was opened so was listed.
    is_wanted: bool,
}

impl Default for Usual {
    fn default() -> Self {
        Self {
            query: Query::usual(),
            length: LISTING_BLOCK,
            is_wanted: true,
        }
    }
}

impl Usual {
    /// A directory is opened.
    pub(crate) fn begin(&mut self) -> Listing {
        let is_wanted = std::mem::replace(&mut self.is_wanted, false);
        Listing {
            state: if is_wanted { State::Fresh } else { State::Off },
            query: self.query,
            length: self.length,
            is_complete: false,
            sent: VecDeque::new(),
            is_under_way: false,
            is_moved: false,
            waiting: Vec::new(),
            asked_by_client: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The client has asked for nothing, and the first entries are read for it.
    Fresh,
    /// What comes next is read for it.
    Going,
    /// Nothing is read ahead.
    Off,
}

/// One open's listing.
#[derive(Debug)]
pub(crate) struct Listing {
    state: State,
    query: Query,
    /// Bytes that an answer may hold.
    length: u32,
    /// There are no more names behind those sent.
    is_complete: bool,
    /// Bytes of what was sent ahead and not asked for, answer by answer.
    sent: VecDeque<usize>,
    is_under_way: bool,
    /// The server's place is not the beginning, and the client has had nothing.
    is_moved: bool,
    /// Requests of the client's that what is under way will answer, or that must wait for it.
    waiting: Vec<Message>,
    /// Requests of the client's under way to the server.
    pub(super) asked_by_client: usize,
}

impl Listing {
    /// The server has answered a request of the client's own.
    pub(super) fn answered_client(&mut self, answer: u32) {
        self.asked_by_client = self.asked_by_client.saturating_sub(1);
        if answer != status::SUCCESS && self.state == State::Going {
            self.is_complete = true;
        }
    }

    /// Whether something is there, or will be, that the client has not asked for.
    fn is_ahead(&self) -> bool {
        self.is_under_way || !self.sent.is_empty()
    }

    /// Whether what was sent first, and not asked for, answers this request.
    fn is_next_for(&self, request: &QueryDirectoryRequest) -> bool {
        let is_fresh = self.state == State::Fresh;
        let front = self.sent.front();
        self.state != State::Off
            && front.is_some_and(|front| self.query.answers(request, is_fresh, *front))
    }

    /// Whether more is wanted.
    fn wants_more(&self) -> bool {
        let most = match self.state {
            State::Fresh => LISTING_FIRST,
            State::Going => LISTING_AHEAD,
            State::Off => return false,
        };
        let ahead: usize = self.sent.iter().sum();
        ahead < most && !self.is_complete && !self.is_under_way && self.asked_by_client == 0
    }
}

impl Far {
    pub(super) fn listing(&mut self, file: FileId) -> Option<&mut Listing> {
        self.opens.get_mut(&file)?.listing.as_mut()
    }

    /// Takes a request for names that is, or will be, answered by what is read ahead; gives back
    /// what is not.
    pub(super) fn list_ahead(&mut self, mut message: Message) -> Option<Message> {
        let Some((header, request)) = listed_request(&message) else {
            return self.list_unseen(message);
        };
        let Some(open) = self.opens.get_mut(&request.file) else {
            return Some(message);
        };
        let is_its = (open.session, open.tree) == (header.session, header.tree);
        let Some(listing) = open.listing.as_mut().filter(|_| is_its) else {
            return Some(message);
        };
        // Its client signs, and nobody else may take what is there for it, or lose its place.
        if open.is_signed && !header.has(header::flag::SIGNED) && listing.is_ahead() {
            self.stop(LetGoReason::Forged);
            return None;
        }
        let is_fresh = listing.state == State::Fresh;
        // None overtakes one that waits.
        if listing.waiting.is_empty() && listing.is_next_for(&request) {
            listing.sent.pop_front();
            if is_fresh {
                listing.state = State::Going;
                listing.is_moved = false;
                self.usual_listing.is_wanted = true;
            }
            self.tell_near(Frame::Settled {
                message_id: header.message_id,
            });
            return None;
        }
        if listing.is_under_way {
            listing.waiting.push(message);
            return None;
        }
        let begins = request.flags & (flag::RESTART | flag::REOPEN) != 0;
        if listing.is_moved {
            let body = message.heads_mut().next()?.body_mut();
            body[FLAGS_AT] |= flag::REOPEN;
        } else if listing.is_ahead() && !begins {
            // Its place in the listing is where the server stands no more.
            self.stop(LetGoReason::Unsupported);
            return None;
        }
        listing.sent.clear();
        let is_first = begins || listing.is_moved || listing.state == State::Off;
        listing.is_moved = false;
        listing.is_complete = false;
        listing.state = State::Off;
        if let Some(query) = Query::of(&request) {
            listing.state = State::Going;
            listing.query = query;
            listing.length = request.length.min(LISTING_BLOCK);
            if is_first {
                self.usual_listing = Usual {
                    query,
                    length: listing.length,
                    is_wanted: true,
                };
            }
        }
        Some(message)
    }

    /// Requests for names that are not alone in their frame, or not understood: they are the
    /// server's, from where the client stands.
    fn list_unseen(&mut self, mut message: Message) -> Option<Message> {
        for head in message.heads_mut() {
            if head.header.command != command::QUERY_DIRECTORY {
                continue;
            }
            let file = touch(&head.header, head.body(), None).file();
            let Some(listing) = file.and_then(|file| self.listing(file)) else {
                continue;
            };
            if listing.is_moved && !listing.is_under_way {
                listing.is_moved = false;
                head.body_mut()[FLAGS_AT] |= flag::REOPEN;
            } else if listing.is_ahead() {
                self.stop(LetGoReason::Unsupported);
                return None;
            }
            listing.state = State::Off;
            listing.sent.clear();
        }
        Some(message)
    }

    /// The first entries that were read as this directory was opened are out of date.
    pub(super) fn forget_fresh(&mut self, file: FileId) {
        if let Some(listing) = self.listing(file)
            && listing.state == State::Fresh
        {
            listing.state = State::Off;
            listing.sent.clear();
        }
    }

    /// Asks the server for the names that clients will probably ask for.
    pub(super) fn list_all_ahead(&mut self) {
        if !self.queue.is_empty() || self.client_finish != Finish::Open {
            return;
        }
        let wants_more = |listing: &Listing| listing.wants_more();
        let wanted: Vec<FileId> = self
            .opens
            .iter()
            .filter(|(_, open)| !open.is_closing && open.listing.as_ref().is_some_and(wants_more))
            .map(|(file, _)| *file)
            .collect();
        for file in wanted {
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
        if listing.state == State::Fresh && is_changing {
            return;
        }
        listing.is_under_way = true;
        listing.is_moved = listing.state == State::Fresh;
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
        self.send_own(header, &request.emit(), Purpose::ListsAhead(file));
    }

    /// More of the answer to a request of ours for names.
    pub(super) fn gather(&mut self, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
        // What was asked for, and room for the answer's fixed part and padding.
        if self.gathered.len() > LISTING_BLOCK as usize + 1_024 {
            self.stop(LetGoReason::Violation);
        }
    }

    /// The answer to a request of ours for names is complete.
    pub(super) fn listed(&mut self, file: FileId, answer: u32) {
        let gathered = std::mem::take(&mut self.gathered);
        let Some(listing) = self.listing(file) else {
            return;
        };
        listing.is_under_way = false;
        let waiting = std::mem::take(&mut listing.waiting);
        let found = match (answer, listing.state) {
            (status::SUCCESS, _) => match entries(&gathered) {
                Ok(found) if !found.is_empty() => Some(found),
                _ => return self.stop(LetGoReason::Violation),
            },
            (status::NO_MORE_FILES, State::Going) => Some(&[][..]),
            (status::NO_MORE_FILES, State::Fresh) if !listing.sent.is_empty() => Some(&[][..]),
            // Whatever it is, the client shall hear it from the server.
            _ => None,
        };
        match (listing.state, found) {
            (State::Fresh | State::Going, Some(found)) => {
                listing.is_complete = found.is_empty();
                listing.sent.push_back(found.len());
                // What the request that waits for it does not want would be taken there for the
                // beginning that the server answers it with.
                let is_wanted = waiting.first().is_none_or(|message| {
                    let asked = listed_request(message);
                    asked.is_some_and(|(_, request)| listing.is_next_for(&request))
                });
                if is_wanted {
                    self.send_listed(file, found);
                }
            }
            // What was sent still answers; behind it nothing is read ahead.
            (State::Fresh | State::Going, None) => listing.is_complete = true,
            (State::Off, _) => {}
        }
        for message in waiting {
            if let Some(message) = self.list_ahead(message) {
                self.enqueue(message);
            }
        }
    }

    fn send_listed(&mut self, file: FileId, found: &[u8]) {
        let position = self.position;
        let Some(listing) = self.listing(file) else {
            return;
        };
        let frame = Frame::Listed {
            file,
            position,
            query: listing.query,
            is_fresh: listing.state == State::Fresh,
            length: found.len() as u32,
        };
        self.tell_near(frame);
        self.send_client(SegmentKind::Payload, Bytes::copy_from_slice(found));
    }
}

/// A request for names alone in its frame.
fn listed_request(message: &Message) -> Option<(Header, QueryDirectoryRequest)> {
    let head = message.single()?;
    if head.header.command != command::QUERY_DIRECTORY {
        return None;
    }
    let request = QueryDirectoryRequest::parse(head.body()).ok()?;
    Some((head.header, request))
}
