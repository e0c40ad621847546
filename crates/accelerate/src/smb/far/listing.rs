//! The far half's view of one open's directory listing: the entries read ahead of the client, and
//! the positions of server and client.
//!
//! ```text
//!   Fresh ── its first request ───────────────────────────► Going
//!     └── any other, or a change ──► Off ── a first request ──┘
//! ```
//! `list_ahead.rs` moves it.

use std::collections::VecDeque;

use super::message::GatheredMessage;
use crate::smb::config::{LISTING_AHEAD, LISTING_BLOCK, LISTING_FIRST, LISTING_OFFER_BYTES};
use crate::smb::listing::DirectoryQuery;
use crate::smb::wire::directory::QueryDirectoryRequest;
use crate::smb::wire::header::status;

/// The query that is predicted for a directory opened to be listed: the client's last one.
#[derive(Debug)]
pub(crate) struct ListingGuess {
    pub(super) query: DirectoryQuery,
    /// Bytes that an answer may hold.
    pub(super) length: u32,
    /// The last directory that was opened so was listed.
    pub(super) is_wanted: bool,
}

impl Default for ListingGuess {
    fn default() -> Self {
        Self {
            query: DirectoryQuery::usual(),
            length: LISTING_BLOCK,
            is_wanted: true,
        }
    }
}

impl ListingGuess {
    /// A directory is opened.
    pub(crate) fn begin(&mut self) -> OpenListing {
        let is_wanted = std::mem::replace(&mut self.is_wanted, false);
        let state = match is_wanted {
            true => ListingPhase::Fresh,
            false => ListingPhase::Off,
        };
        OpenListing::new(state, self.query, self.length)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListingPhase {
    /// The client has requested nothing, and the first entries are read for it.
    Fresh,
    /// The next entries are read ahead.
    Going,
    /// Nothing is read ahead.
    Off,
}

/// The position of the client if a request to restart is refused; the server's position differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListingPosition {
    /// At the beginning, where the next request can be changed to reopen the listing.
    First,
    /// Amid a listing: no request leads there.
    Amid,
}

/// One open's listing.
#[derive(Debug)]
pub(crate) struct OpenListing {
    pub(super) state: ListingPhase,
    pub(super) query: DirectoryQuery,
    /// Bytes that an answer may hold.
    pub(super) length: u32,
    /// There are no more names behind those sent.
    pub(super) is_complete: bool,
    /// The bytes that were sent ahead and not requested, answer by answer.
    pub(super) sent: VecDeque<usize>,
    pub(super) is_under_way: bool,
    /// The server's place is not the beginning, and the client has had nothing.
    pub(super) is_moved: bool,
    /// The server's position differs from the client's, which was amid the names: only a restart
    /// helps.
    pub(super) is_lost: bool,
    /// An outstanding request restarts the listing although the server's position differs from the
    /// client's.
    pub(super) beginning: Option<ListingPosition>,
    /// It was opened ahead, and the client does not have it.
    pub(super) is_offered: bool,
    /// The client has closed it: its later requests are the server's to answer.
    pub(super) is_closed: bool,
    /// The client's requests that an outstanding one will answer, or that must wait for it.
    pub(super) waiting: Vec<GatheredMessage>,
    /// The number of the client's outstanding requests to the server.
    pub(super) asked_by_client: usize,
}

impl OpenListing {
    fn new(state: ListingPhase, query: DirectoryQuery, length: u32) -> Self {
        Self {
            state,
            query,
            length,
            is_complete: false,
            sent: VecDeque::new(),
            is_under_way: false,
            is_moved: false,
            is_lost: false,
            beginning: None,
            is_offered: false,
            is_closed: false,
            waiting: Vec::new(),
            asked_by_client: 0,
        }
    }

    /// A listing of a directory that was opened ahead.
    pub(super) fn offered(query: DirectoryQuery, length: u32) -> Self {
        Self {
            is_offered: true,
            ..Self::new(ListingPhase::Fresh, query, length)
        }
    }

    /// A listing whose first requests, `asked` of them, are in the compound of the open. Entries
    /// are read ahead behind them if they go through the whole directory.
    pub(super) fn begun(
        query: Option<DirectoryQuery>,
        usual: &ListingGuess,
        length: u32,
        asked: usize,
    ) -> Self {
        let state = match query {
            Some(_) => ListingPhase::Going,
            None => ListingPhase::Off,
        };
        Self {
            asked_by_client: asked,
            ..Self::new(state, query.unwrap_or(usual.query), length)
        }
    }

    /// The server has answered a request of the client's own.
    pub(super) fn answered_client(&mut self, answer: u32) {
        self.asked_by_client = self.asked_by_client.saturating_sub(1);
        if answer != status::SUCCESS && self.state == ListingPhase::Going {
            self.is_complete = true;
        }
        let has_begun = matches!(
            answer,
            status::SUCCESS | status::NO_MORE_FILES | status::NO_SUCH_FILE
        );
        // What is refused has not opened it again.
        match self.beginning.take() {
            Some(_) if has_begun => self.is_lost = false,
            Some(ListingPosition::First) => self.is_moved = true,
            Some(ListingPosition::Amid) => self.is_lost = true,
            None => {}
        }
    }

    /// Bytes of requests that wait.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(GatheredMessage::bytes).sum()
    }

    /// Returns true if entries that the client has not requested are available or expected.
    pub(super) fn is_ahead(&self) -> bool {
        self.is_under_way || !self.sent.is_empty()
    }

    /// Returns true if the first unrequested answer that was sent ahead answers this request.
    pub(super) fn is_next_for(&self, request: &QueryDirectoryRequest, least_length: u32) -> bool {
        let is_fresh = self.state == ListingPhase::Fresh;
        let front = self.sent.front();
        self.state != ListingPhase::Off
            && front.is_some_and(|front| {
                let query = &self.query;
                query.answers(request, is_fresh, *front, least_length)
            })
    }

    /// The bytes that were sent ahead and not requested, and those in flight.
    pub(super) fn ahead(&self) -> usize {
        let coming = usize::from(self.is_under_way) * self.length as usize;
        self.sent.iter().sum::<usize>() + coming
    }

    /// Returns true if more entries are wanted.
    pub(super) fn wants_more(&self) -> bool {
        let most = match self.state {
            ListingPhase::Fresh if self.is_offered => LISTING_OFFER_BYTES,
            ListingPhase::Fresh => LISTING_FIRST,
            ListingPhase::Going => LISTING_AHEAD,
            ListingPhase::Off => return false,
        };
        let is_idle = !self.is_under_way && self.asked_by_client == 0;
        self.ahead() < most && !self.is_complete && !self.is_closed && is_idle
    }
}
